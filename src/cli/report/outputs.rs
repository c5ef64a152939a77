//! Checks the files that a command writes besides the data it moves: no two are the same file, and none is the data
//! itself.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::cli::options::ReportOptions;
use crate::fault::{Exit, Failure, escaped};
use crate::fs::{directory_of, standard};

/// Data that a command reads or writes besides its reports.
pub(crate) enum Moved<'a> {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// The command's own lines on standard output. A report may go to the same place unless that is a file, where it
    /// would overwrite them.
    Lines,
    /// A file of this host, and its description.
    File(&'static str, &'a Path),
}

/// Identifies a file, so that two names of it can be recognised.
#[derive(PartialEq, Eq)]
enum Which {
    /// An existing file: its device and inode number.
    There(u64, u64),
    /// A file that does not exist: the directory in which it would be, and its name.
    Named(PathBuf, PathBuf),
}

impl Which {
    fn of(path: &Path) -> Option<Self> {
        match path.metadata() {
            Ok(found) => Self::found(&found),
            Err(_) => Some(Self::Named(directory_of(path).canonicalize().ok()?, path.file_name()?.into())),
        }
    }

    fn open(file: std::io::Result<File>) -> Option<Self> {
        Self::found(&file.ok()?.metadata().ok()?)
    }

    /// A terminal, a socket or the null device may be used for several purposes at once. A directory cannot be a
    /// report.
    fn found(found: &Metadata) -> Option<Self> {
        let kind = found.file_type();
        let is_one = kind.is_file() || kind.is_block_device() || kind.is_fifo();
        is_one.then(|| Self::There(found.dev(), found.ino()))
    }
}

/// Whether two names lead to the same file.
pub(crate) fn are_one_file(one: &Path, other: &Path) -> bool {
    Which::of(one).is_some_and(|which| Some(which) == Which::of(other))
}

/// Whether a name leads to the file or pipe that is standard output.
pub(crate) fn is_output(path: &Path) -> bool {
    Which::of(path).is_some_and(|which| Some(which) == Which::open(standard::output()))
}

/// Refuses reports if two of them are the same file, or one is also the data, because one would overwrite the other.
///
/// # Errors
///
/// Exit 1.
pub(super) fn check(options: &ReportOptions, moved: &[Moved<'_>]) -> Result<(), Failure> {
    let asked = [("--json", &options.json), ("--report", &options.page), ("--trace", &options.trace)];
    let paths = asked.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?)));
    let named = |path: &Path| match path == Path::new("-") {
        true => (standard::OUTPUT.to_owned(), Which::open(standard::output())),
        false => (escaped(path.as_os_str()), Which::of(path)),
    };
    let mut reports: Vec<_> = paths.map(|(option, path)| (option, named(path))).collect();
    if let Some(number) = options.json_fd {
        reports.push(("--json-fd", (number.to_string(), Which::open(standard::given(number)))));
    }
    let moved: Vec<_> = moved
        .iter()
        .map(|one| match one {
            Moved::Input => (standard::INPUT, Which::open(standard::input())),
            Moved::Output => (standard::OUTPUT, Which::open(standard::output())),
            Moved::Lines => {
                let file = standard::output().and_then(|file| file.metadata()).ok().filter(Metadata::is_file);
                (standard::OUTPUT, file.as_ref().and_then(Which::found))
            }
            Moved::File(what, path) => (*what, Which::of(path)),
        })
        .collect();
    for (at, (option, (name, which))) in reports.iter().enumerate() {
        let Some(which) = which else { continue };
        let others = reports[..at].iter().map(|(option, (_, which))| (*option, which));
        let mut others = others.chain(moved.iter().map(|(what, which)| (*what, which)));
        if let Some((what, _)) = others.find(|(_, other)| other.as_ref() == Some(which)) {
            let line = format!("{option} {name} is also {what}; name another file");
            return Err(Exit::Usage.with(line));
        }
    }
    Ok(())
}
