//! Copies files and trees within one host.
//!
//! Several threads share the work: each copies the files of the directory that it has listed, and hands over a part of
//! it to a thread that has none. Large files are copied in ranges by all threads. Everything is reached through
//! descriptors of directories and never through a symbolic link, so that a name that is swapped during the copy leads
//! nowhere else.
//!
//! # What is seen of an unfinished copy
//!
//! * A file appears under its name when it is whole; one that was there is as it was until then.
//! * A directory that was not there is filled under a temporary name and appears when it is done. In it, files need no
//!   temporary names of their own, which would cost a fifth of the time for small files.
//! * A copy that is stopped removes such a directory. One that is killed leaves the temporary name; the next copy to the
//!   same place removes it.
//!
//! # Memory
//!
//! For each thread: a buffer, and the names of those subdirectories that it has listed and not entered. Beside that a
//! record for each file with several names of which not all have been met. Entries of a directory are not kept: a million
//! empty files in one directory take 3 MiB.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::patterns::Patterns;
use super::{HAS_OTHER_NAMES, IS_LEFTOVER, IS_TEMPORARY, stops_everything};
use metadata::Preserve;

mod entry;
mod file;
mod links;
pub mod metadata;
mod place;
#[cfg(test)]
mod tests;
mod tree;
mod work;

/// Threads, if nothing is said. A copy within one host is bound by memory long before it is bound by more cores.
const THREADS_MAX: usize = 8;

/// One thing to copy, and the place that its copy gets.
#[derive(Clone, Debug)]
pub struct Item {
    /// The file or directory to copy. A symbolic link is copied, not followed, unless a slash follows it.
    pub source: PathBuf,
    /// The directory that the copy is put into. It must be there; links on the way to it are followed.
    pub directory: PathBuf,
    /// The name that the copy gets there: one component. `.` merges a directory into `directory` itself. What is there
    /// under that name is replaced, or merged with if both are directories; a symbolic link is never followed, so who
    /// wants to write through one resolves it first.
    pub name: OsString,
}

/// How to copy.
#[derive(Debug)]
pub struct Options<'a> {
    /// Directories are copied with what is in them. Off: a directory is a failure.
    pub recursive: bool,
    /// What is kept.
    pub preserve: Preserve,
    /// Write into files that are there instead of replacing them: for files that cannot be renamed over, as mount points.
    /// They are half-made while it lasts.
    pub in_place: bool,
    /// Each file, then each directory, is on stable storage before the copy ends.
    pub fsync: bool,
    /// What is left out, by the path below the source. A directory goes with all that is in it.
    pub leave_out: Patterns,
    /// Set by somebody else, it ends the copy after the piece at hand.
    pub cancel: &'a AtomicBool,
    /// Number of threads; `None`: as many as there are cores, at least 2 and at most 8.
    pub threads: Option<usize>,
}

impl<'a> Options<'a> {
    /// A recursive copy that keeps everything.
    pub fn archive(cancel: &'a AtomicBool) -> Self {
        Self {
            recursive: true,
            preserve: Preserve::ALL,
            in_place: false,
            fsync: false,
            leave_out: Patterns::default(),
            cancel,
            threads: None,
        }
    }
}

/// Where a failure lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What was read.
    Source,
    /// What was written.
    Destination,
}

/// Why an entry was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The system's answer.
    #[error("{0}")]
    Os(Errno),
    /// It grew, shrank or was changed while it was read.
    #[error("changed while it was read")]
    Changed,
    /// A directory, and `recursive` is off.
    #[error("is a directory")]
    Directory,
    /// Source and destination are the same file.
    #[error("is the same file as its copy would be")]
    SameFile,
    /// The copy of a directory would lie in that directory.
    #[error("cannot be copied into itself")]
    IntoItself,
    /// Directories lie too deep in each other.
    #[error("lies too deep")]
    TooDeep,
    /// A file that is to be written in place has other names.
    #[error("{}", HAS_OTHER_NAMES)]
    OtherNames,
    /// A temporary name, asked for by name.
    #[error("{}", IS_LEFTOVER)]
    Leftover,
    /// The copy would have a temporary name for good.
    #[error("{}", IS_TEMPORARY)]
    Temporary,
}

impl From<Errno> for Problem {
    fn from(error: Errno) -> Self {
        Self::Os(error)
    }
}

/// An entry that was not copied. The others go on, unless it is fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which side's path it is.
    pub side: Side,
    /// The path, as the user would write it.
    pub path: PathBuf,
    /// Why.
    pub problem: Problem,
}

impl Failure {
    /// Whether every further file would fail as well: the destination is full, over its quota, read-only or broken.
    pub fn is_fatal(&self) -> bool {
        matches!(self.problem, Problem::Os(errno) if self.side == Side::Destination && stops_everything(errno))
    }
}

/// What is worth knowing of an entry and no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// The destination has not taken a property ([`metadata::OWNER`], [`metadata::MODE_AND_TIMES`], or an attribute's
    /// name).
    Lost(&'a std::ffi::CStr, Errno),
    /// Left out, as the options say.
    LeftOut,
    /// What an interrupted copy left, passed over.
    Leftover,
}

/// Told what happens, from several threads at once; must not block.
pub trait Events: Sync {
    /// Bytes of files have been written.
    fn progress(&self, bytes: u64) {
        let _ = bytes;
    }

    /// This entry is being copied, and more of it has been written.
    fn at(&self, entry: &dyn Paths) {
        let _ = entry;
    }

    /// An entry stands in the destination.
    fn copied(&self, kind: FileType, entry: &dyn Paths) {
        let _ = (kind, entry);
    }

    /// An entry was not copied.
    fn failed(&self, failure: &Failure) {
        let _ = failure;
    }

    /// Something else about an entry.
    fn note(&self, note: Note<'_>, entry: &dyn Paths) {
        let _ = (note, entry);
    }
}

/// Nobody wants to know.
impl Events for () {}

/// The paths of an entry, made when they are asked for.
pub trait Paths {
    /// What was read.
    fn source(&self) -> PathBuf;
    /// What was written.
    fn destination(&self) -> PathBuf;
}

/// How a copy ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Regular files copied.
    pub files: u64,
    /// Directories made or merged into.
    pub directories: u64,
    /// Symbolic links, FIFOs, sockets and devices copied.
    pub others: u64,
    /// Further names made of files that had been copied.
    pub hard_links: u64,
    /// Bytes of data in the files copied; holes and cloned ranges count as well.
    pub bytes: u64,
    /// Entries that were not copied; each has been told to [`Events::failed`].
    pub failed: u64,
    /// The first of those failures.
    pub first_failure: Option<Failure>,
    /// What ended the copy before it was complete.
    pub stopped: Option<Stop>,
}

/// What ends a copy before it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// [`Options::cancel`].
    Cancelled,
    /// A failure that every further file would share.
    Fatal(Failure),
}

/// Running totals.
#[derive(Debug, Default)]
struct Totals {
    files: AtomicU64,
    directories: AtomicU64,
    others: AtomicU64,
    hard_links: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

/// Copies all items. Never fails as a whole: the report says what was not copied.
///
/// The limit of open files is raised as far as it goes, since each level of a tree needs two.
pub fn copy(items: &[Item], options: &Options<'_>, events: &dyn Events) -> Report {
    super::raise_open_files();
    let threads = options.threads.unwrap_or(crate::processors().clamp(2, THREADS_MAX)).max(1);
    let engine = work::Engine::new(options, events, threads);
    let crew = work::Crew::new(&engine);
    // Two that get one name would be in each other's way: the second is merged with what the first has become.
    let (mut rest, mut names) = (items, HashSet::new());
    while !rest.is_empty() {
        names.clear();
        let count = rest.iter().take_while(|item| names.insert(item.name.as_os_str())).count();
        crew.run(&rest[..count]);
        rest = &rest[count..];
    }
    drop(crew);
    let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let totals = &engine.totals;
    let (first_failure, stopped) = engine.outcome();
    Report {
        files: total(&totals.files),
        directories: total(&totals.directories),
        others: total(&totals.others),
        hard_links: total(&totals.hard_links),
        bytes: total(&totals.bytes),
        failed: total(&totals.failed),
        first_failure,
        stopped,
    }
}

/// The directory that relative source paths start from.
fn working_directory() -> Result<rustix::fd::OwnedFd, Errno> {
    rustix::fs::openat(rustix::fs::CWD, c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Path::new(&self.path).display(), self.problem)
    }
}
