//! The files that a command writes beside what it moves: each is one of its own, and none is what is moved.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::cli::options::ReportOptions;
use crate::fault::{Exit, Failure, escaped};
use crate::fs::{directory_of, standard};

/// What a command reads and writes besides its reports.
pub(crate) enum Moved<'a> {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Lines of the command's own on standard output: only in a file they would be overwritten.
    Lines,
    /// A file of this host, and what it is.
    File(&'static str, &'a Path),
}

/// What tells whether two names are those of one file.
#[derive(PartialEq, Eq)]
enum Which {
    /// One that is there: its device and number.
    There(u64, u64),
    /// One that is not: the directory that it would be in, and its name.
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

    /// A terminal, a socket or the null device may be several things at once; a directory is no report.
    fn found(found: &Metadata) -> Option<Self> {
        let kind = found.file_type();
        let is_one = kind.is_file() || kind.is_block_device() || kind.is_fifo();
        is_one.then(|| Self::There(found.dev(), found.ino()))
    }
}

/// Whether two names are those of one file.
pub(crate) fn are_one_file(one: &Path, other: &Path) -> bool {
    Which::of(one).is_some_and(|which| Some(which) == Which::of(other))
}

/// Whether a name is that of the file, or pipe, that standard output is.
pub(crate) fn is_output(path: &Path) -> bool {
    Which::of(path).is_some_and(|which| Some(which) == Which::open(standard::output()))
}

/// Refuses reports of which two are one file, or one is what is moved: it would be overwritten before or after that.
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
            let line = format!("{option} {name}: that is {what} as well; name a file of its own");
            return Err(Failure::new(Exit::Usage, line));
        }
    }
    Ok(())
}
