//! `rdcp --check`: reports differences from a manifest, in lines for a person or a program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use flume::{RecvTimeoutError, bounded};

use super::json::{At, Differs, Event, Failed};
use super::options::ReportOptions;
use super::rdcp::HostOptions;
use super::report::{Kept, Moved, Reporter};
use crate::fault::{Exit, Failure, escaped, os_number, printable};
use crate::fs::standard;
use crate::job::check::{Stopped, compare};
use crate::job::copy::entries as entries_words;
use crate::job::name_at;
use crate::job::plan::Spec;
use crate::job::targets::is_list;
use crate::tree::check::{Aspect, Finding};
use crate::tree::entries::Entry;
use crate::tree::progress::Amount;
use crate::tree::stats::TreeFigures;

/// How often the thread that reports findings checks whether the comparison is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// `--check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckMedium {
    /// Data stored on the disk
    Disk,
    /// Data in the page cache, else on the disk
    Cached,
}

/// Compares a directory of any host with a manifest on this host. `paths`: FILE, or `-` for standard input, and DIR.
///
/// # Errors
///
/// Exit code 5 if FILE is not a manifest, 6 if DIR cannot be read, 7 if something differs, 8 if nothing differs but
/// some entries could not be read.
pub(crate) fn check(
    paths: &[OsString],
    medium: CheckMedium,
    hosts: &HostOptions,
    options: &ReportOptions,
) -> Result<(), Failure> {
    let usage = |message: &str| Exit::Usage.with(message);
    let [file, directory] = paths else { return Err(usage("--check takes the manifest FILE and DIR")) };
    let parse = |text| Spec::parse(text).map_err(|reason| Exit::Usage.with(reason));
    let file = parse(file)?;
    if matches!(file, Spec::There(..)) {
        return Err(usage("--check: FILE must be on this host"));
    }
    let directory = parse(directory)?;
    if directory == Spec::Standard {
        return Err(usage("--check: DIR cannot be standard input (-)"));
    }
    let (host, directory) = (directory.host(), directory.path());
    if is_list(host) {
        let line = format!("--check: {} is a list of hosts; check each host by itself", escaped(host));
        return Err(Exit::Usage.with(line));
    }
    let setup = hosts.setup("rdcp", [host], options.quiet, false)?;
    let is_json_on_stdout = options.is_json_on_output();
    let manifest = match &file {
        Spec::Here(path) => Moved::File("the manifest", Path::new(path)),
        Spec::Standard | Spec::There(..) => Moved::Input,
    };
    let moved = [manifest, Moved::File("DIR", Path::new(directory))];
    let moved = if host.is_empty() { &moved[..] } else { &moved[..1] };
    let reporter = Reporter::open("rdcp", options, moved, &Kept::default())?;
    reporter.begin();
    let mut checking = Checking { reporter: &reporter, host, directory: Path::new(directory), differing: 0 };
    let is_cached = medium == CheckMedium::Cached;
    let is_over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let (give, findings) = bounded::<Vec<Entry>>(1);
        let (checking, over) = (&mut checking, &is_over);
        let telling = scope.spawn(move || {
            loop {
                match findings.recv_timeout(LOOK_EVERY) {
                    Ok(entries) => entries.iter().for_each(|entry| checking.tell(entry)),
                    Err(RecvTimeoutError::Timeout) if !over.load(Ordering::Relaxed) => {}
                    Err(_) => return,
                }
            }
        });
        // Called in a thread of the job, which ends without it if nobody reads standard output.
        let (host_named, directory_named) = (host.to_owned(), PathBuf::from(directory));
        let take = Box::new(move |entries: Vec<Entry>| {
            let printed = match lines(&entries, &host_named, &directory_named) {
                text if is_json_on_stdout || text.is_empty() => Ok(()),
                text => super::print(&text),
            };
            // The other thread receives for as long as the job goes on.
            let _ = give.send(entries);
            printed
        });
        let manifest = match &file {
            Spec::Here(path) => File::open(path),
            Spec::Standard | Spec::There(..) => standard::input(),
        };
        let outcome = manifest
            .map_err(|error| Stopped::Manifest(error.to_string()))
            .and_then(|manifest| compare(setup, host, directory.to_owned().into_vec(), is_cached, manifest, take));
        // After success the thread ends when it has taken everything. After a failure, what is still to be printed may
        // wait for ever.
        is_over.store(outcome.is_err(), Ordering::Relaxed);
        let told = telling.join();
        debug_assert!(told.is_ok(), "a thread has panicked");
        outcome
    });
    let last_line = outcome.as_ref().ok().map(|tree| summary(tree, checking.differing));
    let failure = checking.failure(file.path(), outcome);
    reporter.finish(None, failure, None, last_line.as_deref())
}

fn summary(tree: &TreeFigures, differing: u64) -> String {
    let TreeFigures { amount: Amount { entries, bytes, .. }, failed, .. } = *tree;
    let read = crate::job::progress::size_words(bytes);
    let unread = if failed > 0 { format!(", {failed} could not be read") } else { String::new() };
    format!("Checked {}, {read}: {differing} differ{unread}", entries_words(entries))
}

/// Reports the findings of a comparison.
struct Checking<'a> {
    reporter: &'a Reporter<'a>,
    /// Host of the directory; empty for this host.
    host: &'a OsStr,
    directory: &'a Path,
    /// Number of entries that differ.
    differing: u64,
}

/// Returns the path of an entry of a directory.
fn path_below(directory: &Path, path: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(path)).components().collect()
}

/// Returns how an entry differs, in words.
fn names(aspects: &[Aspect]) -> Vec<&'static str> {
    aspects.iter().copied().map(Aspect::name).collect()
}

/// Returns the lines about entries that differ.
fn lines(entries: &[Entry], host: &OsStr, directory: &Path) -> String {
    let line = |entry: &Entry| match entry {
        Entry::Compared(Finding::Differs { path, aspects }) => {
            let path = path_below(directory, path);
            Some(format!("{} {}\n", names(aspects).join(","), name_at(host, path.as_os_str().as_bytes())))
        }
        _ => None,
    };
    entries.iter().filter_map(line).collect()
}

impl Checking<'_> {
    /// Reports one entry, except on standard output.
    fn tell(&mut self, entry: &Entry) {
        match entry {
            Entry::Compared(Finding::Differs { path, aspects }) => {
                self.differing += 1;
                let path = path_below(self.directory, path);
                let at = At::new(self.host, path.as_os_str().as_bytes());
                self.reporter.event(&Event::Differs(Differs { at, differs: names(aspects) }));
            }
            Entry::Compared(Finding::Unreadable { path, errno }) => {
                let path = path_below(self.directory, path);
                let path = path.as_os_str().as_bytes();
                let line = format!("cannot read {}: {}", name_at(self.host, path), os_number(*errno));
                let failure = Exit::Partial.with(line).about(self.host, path, *errno);
                super::complain("rdcp", failure.message.as_deref().unwrap_or_default());
                self.reporter.event(&Event::Failed(Failed::new(&failure)));
            }
            // The end reports only what it was asked for.
            _ => {}
        }
    }

    fn failure(&self, file: &OsStr, outcome: Result<TreeFigures, Stopped>) -> Option<Failure> {
        let directory = name_at(self.host, self.directory.as_os_str().as_bytes());
        match (outcome, self.differing) {
            (Ok(TreeFigures { failed: 0, .. }), 0) => None,
            (Ok(TreeFigures { failed, .. }), 0) => {
                let line = format!("{} of {directory} could not be compared", entries_words(failed));
                Some(Exit::Partial.with(line))
            }
            (Ok(_), differing) => {
                let differ = if differing == 1 { "differs" } else { "differ" };
                let line = format!("{} of {directory} {differ} from {}", entries_words(differing), escaped(file));
                Some(Exit::Integrity.with(line))
            }
            (Err(Stopped::Manifest(reason)), _) => {
                let line = format!("cannot read the manifest {}: {}", escaped(file), printable(&reason));
                Some(Exit::Source.with(line).about("".as_ref(), file.as_bytes(), 0))
            }
            (Err(Stopped::Failed(failure)), _) => Some(failure),
        }
    }
}
