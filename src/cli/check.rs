//! `rdcp --check`: what differs from a manifest, in lines for a person or a program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::ValueEnum;

use super::json::{At, Differs, Event, Failed};
use super::options::ReportOptions;
use super::report::Reporter;
use crate::fault::{Exit, Failure, escaped, os_number, printable};
use crate::job::plan::Spec;
use crate::tree::check::{Aspect, CheckError, Checked, Finding, Medium, check as compare};

/// `--check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckMedium {
    /// What the disk has stored
    Disk,
    /// What the page cache has, where it has it
    Cached,
}

/// Bytes of the manifest that are read at once.
const MANIFEST_READ_BYTES: usize = 256 << 10;

/// Compares a directory with a manifest. `paths`: FILE and DIR.
///
/// # Errors
///
/// Exit 5 where FILE is no manifest, 6 where DIR cannot be read, 7 where something differs, 8 where nothing does but
/// some entries could not be read.
pub(crate) fn check(paths: &[OsString], medium: CheckMedium, options: &ReportOptions) -> Result<(), Failure> {
    let usage = |message: &str| Failure::new(Exit::Usage, message);
    let [file, directory] = paths else { return Err(usage("--check takes the manifest FILE and DIR")) };
    let parse = |text| Spec::parse(text).map_err(|reason| Failure::new(Exit::Usage, reason));
    let (Spec::Here(file), Spec::Here(directory)) = (parse(file)?, parse(directory)?) else {
        return Err(usage("--check takes a FILE and a DIR of this host; run it on the host where DIR is"));
    };
    let medium = match medium {
        CheckMedium::Disk => Medium::Disk,
        CheckMedium::Cached => Medium::Cache,
    };
    let reporter = Reporter::open(options, false)?;
    let is_json_on_stdout =
        options.json.as_ref().is_some_and(|path| path == Path::new("-")) || options.json_fd == Some(1);
    let checking = Checking {
        reporter: &reporter,
        directory: Path::new(&directory),
        is_json_on_stdout,
        printed: Mutex::new(Ok(())),
    };
    let outcome = checking.run(Path::new(&file), medium);
    let failure = checking.failure(&file, &outcome);
    let printed = checking.printed.into_inner().expect("no panics under it");
    let failure = failure.or(printed.err());
    let last_line = outcome.as_ref().ok().map(summary);
    let told = reporter.finish(None, failure.as_ref(), last_line.as_deref());
    failure.map_or(told, Err)
}

fn summary(checked: &Checked) -> String {
    let Checked { entries, differing, unreadable, bytes } = *checked;
    let read = crate::job::progress::size_words(bytes);
    let failed = if unreadable > 0 { format!(", {unreadable} could not be read") } else { String::new() };
    format!("Checked {entries} entries, {read}: {differing} differ{failed}")
}

/// A comparison, and where its findings go.
struct Checking<'a> {
    reporter: &'a Reporter<'a>,
    directory: &'a Path,
    is_json_on_stdout: bool,
    /// Whether standard output takes what is printed.
    printed: Mutex<Result<(), Failure>>,
}

impl Checking<'_> {
    fn run(&self, file: &Path, medium: Medium) -> Result<Checked, CheckError> {
        let unreadable = |error| CheckError::Manifest(crate::tree::manifest::ManifestError::Io(error));
        let stream = BufReader::with_capacity(MANIFEST_READ_BYTES, File::open(file).map_err(unreadable)?);
        compare(stream, self.directory, medium, &|finding| self.tell(&finding))
    }

    /// Tells of one entry. Lines of several threads do not mix.
    fn tell(&self, finding: &Finding) {
        let mut printed = self.printed.lock().expect("no panics under it");
        match finding {
            Finding::Differs(path, aspects) => {
                let path: PathBuf = self.directory.join(OsStr::from_bytes(path)).components().collect();
                let names: Vec<&'static str> = aspects.iter().copied().map(Aspect::name).collect();
                if !self.is_json_on_stdout && printed.is_ok() {
                    *printed = super::print(&format!("{} {}\n", names.join(","), escaped(path.as_os_str())));
                }
                self.reporter.event(&Event::Differs(Differs { at: At::here(&path), differs: names }));
            }
            Finding::Unreadable(fact) => {
                let path = escaped(OsStr::from_bytes(&fact.path));
                let failure = Failure::new(Exit::Partial, format!("cannot read {path}: {}", os_number(fact.errno)))
                    .about("".as_ref(), &fact.path, fact.errno);
                super::complain("rdcp", failure.message.as_deref().unwrap_or_default());
                self.reporter.event(&Event::Failed(Failed::new(&failure)));
            }
        }
    }

    fn failure(&self, file: &OsStr, outcome: &Result<Checked, CheckError>) -> Option<Failure> {
        let directory = escaped(self.directory.as_os_str());
        Some(match outcome {
            Ok(Checked { differing: 0, unreadable: 0, .. }) => return None,
            Ok(Checked { differing: 0, unreadable, .. }) => {
                Failure::new(Exit::Partial, format!("{unreadable} entries of {directory} could not be compared"))
            }
            Ok(checked) => {
                let line =
                    format!("{} entries of {directory} are not as {} has them", checked.differing, escaped(file));
                Failure::new(Exit::Integrity, line)
            }
            Err(CheckError::Manifest(error)) => {
                let reason = printable(&error.to_string());
                Failure::new(Exit::Source, format!("cannot read the manifest {}: {reason}", escaped(file))).about(
                    "".as_ref(),
                    file.as_bytes(),
                    0,
                )
            }
            Err(CheckError::Directory(fact)) => {
                let reason = match fact.errno {
                    0 => printable(&String::from_utf8_lossy(&fact.detail)),
                    errno => os_number(errno),
                };
                let path = escaped(OsStr::from_bytes(&fact.path));
                Failure::new(Exit::Destination, format!("cannot read {path}: {reason}")).about(
                    "".as_ref(),
                    &fact.path,
                    fact.errno,
                )
            }
        })
    }
}
