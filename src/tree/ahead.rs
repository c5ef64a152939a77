//! Reads ahead where a tree is cold. Threads open the entries that come next and bring them into the page cache,
//! because a disk or a file server handles many such requests in the time of one. A walk does so with what it sends, a
//! sink with what exists already, and a check with what it compares.
//!
//! Reading ahead is only a hint and changes nothing in what is done. Failures are met and reported by the thread that
//! comes to the entry. It begins once a thread has waited for an entry, and ends when none has for [`WARM_AFTER`]
//! entries, so a tree in memory is read as without it. It uses threads, not an io_uring: the kernel gives a request to
//! open a file of which nothing is in memory to a thread as well.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use flume::{Receiver, Sender, TrySendError, WeakSender};
use rustix::fs::{Advice, AtFlags, FileType, OFlags, fadvise, flistxattr, fstat, statat};
use rustix::io::Errno;

use super::names::Names;
use crate::fs::partial::for_each_of_kind;
use crate::fs::waits::{ThreadWaits, waits_of_thread};
use crate::fs::{is_regular, open_quietly};

/// Number of requests that wait for a device at once. More are on their way, because no thread waits for contents.
const THREADS: usize = 16;
const STACK_BYTES: usize = 128 << 10;

/// How far ahead entries of a directory are examined. With files of the largest size that travels in a record, this
/// takes 32 MiB of the page cache.
const ENTRIES_AHEAD: usize = 256;

/// Number of next directories that are entered, and of first entries handed out in each. A directory with more than
/// `NAMES_MAX` names is left alone.
pub(super) const DIRECTORIES_AHEAD: usize = 8;
pub(super) const ENTRIES_OF_DIRECTORY: usize = 64;
const NAMES_MAX: usize = 1024;

/// Maximum number of jobs that have been handed out and not begun.
const JOBS_MAX: usize = 2 * (ENTRIES_AHEAD + DIRECTORIES_AHEAD * ENTRIES_OF_DIRECTORY);

/// No entry in memory takes this long, unless another thread has the processor. After this time the kernel is asked
/// whether the thread waited for a disk.
const ASKED_AFTER: Duration = Duration::from_micros(30);

/// For a file server the kernel counts no reads. A thread that waits for a server sleeps this long in an entry, but it
/// may also do so because of another thread. So more than `SLOW_ENTRIES` of `SLOW_AMONG` entries must be that slow.
const SLOW: Duration = Duration::from_micros(100);
const SLOW_ENTRIES: u64 = 3;
const SLOW_AMONG: u64 = 16;

/// Number of entries without a wait after which the tree counts as warm.
const WARM_AFTER: u64 = 1024;

/// Reads ahead of the threads that come to the entries of one tree.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Queue of jobs, once it has been needed.
    jobs: OnceLock<Sender<Job>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Maximum size of files that are read, in bytes.
    bytes_max: u64,
    /// Whether extended attributes will be asked for.
    has_xattrs: bool,
    /// Number of entries passed, and the first entry that is not read ahead.
    passed: AtomicU64,
    until: AtomicU64,
    /// First of the entries among which slow ones are counted, and the number of slow ones.
    slow_since: AtomicU64,
    slow: AtomicU64,
    /// Whether no thread needs entries read ahead any more.
    is_over: AtomicBool,
}

/// When a thread finished its last entry, and what it had waited for by then.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    waits: ThreadWaits,
}

/// Entries of a directory that have been handed out.
#[derive(Debug, Default)]
pub(in crate::tree) struct HandedOut {
    /// Number of names handed out.
    names: usize,
    /// Which of these names are directories that have not been passed.
    directories: VecDeque<usize>,
}

#[derive(Debug)]
struct Job {
    at: Arc<OwnedFd>,
    name: CString,
    /// How many of its entries are looked at, if it is a directory.
    entries: Option<usize>,
    /// Whether contents will be read, and not only metadata.
    is_read: bool,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
    }
}

impl Pace {
    /// Begins to measure the calling thread.
    pub fn begin() -> Self {
        Self { since: Instant::now(), waits: waits_of_thread() }
    }
}

impl HandedOut {
    /// Returns what has been handed out of a directory that is being entered. The directory is entry `number` of the
    /// directory to which `above` belongs. There, `entries` entries of each directory have been handed out.
    pub fn of_entered(above: &Self, number: usize, names: &Names, entries: usize) -> Self {
        let is_seen = above.directories.contains(&number) && names.upcoming(NAMES_MAX).is_none();
        Self { names: if is_seen { entries } else { 0 }, ..Self::default() }
    }
}

impl Ahead {
    /// Reads ahead for a caller that reads files of up to `bytes_max` bytes one by one.
    pub fn new(bytes_max: usize, has_xattrs: bool) -> Self {
        let shared = Shared { bytes_max: bytes_max as u64, has_xattrs, ..Shared::default() };
        Self { shared: Arc::new(shared), jobs: OnceLock::new() }
    }

    /// Whether the next entries are to be handed out.
    pub fn is_on(&self) -> bool {
        self.shared.passed.load(Relaxed) < self.shared.until.load(Relaxed) && !self.shared.is_over.load(Relaxed)
    }

    /// Records that the calling thread has finished an entry.
    pub fn passed(&self, pace: &mut Pace) {
        self.shared.passed.fetch_add(1, Relaxed);
        self.went_on(pace);
    }

    /// Records that the calling thread has done something with an entry that was passed before.
    pub fn went_on(&self, pace: &mut Pace) {
        self.shared.went_on(pace);
    }

    /// Hands out what follows the current one of a directory's names, of which `passed` have been passed, except for
    /// names that are left out. Of each directory among them, hands out `entries` entries. `is_read`: contents are read
    /// as well.
    pub fn look(
        &self,
        at: &Arc<OwnedFd>,
        (names, passed): (&Names, usize),
        handed: &mut HandedOut,
        (is_read, entries): (bool, usize),
        is_left_out: impl Fn(&CStr, FileType) -> bool,
    ) {
        // The current directory stays: when it is entered, the walk asks whether it was handed out.
        while handed.directories.front().is_some_and(|&directory| directory < passed) {
            handed.directories.pop_front();
        }
        handed.names = handed.names.max(passed + 1);
        while handed.names <= passed + ENTRIES_AHEAD {
            let Some((kind, name)) = names.upcoming(handed.names - passed) else { return };
            let is_directory = kind == FileType::Directory;
            let are_enough = || handed.directories.iter().filter(|&&next| next > passed).count() >= DIRECTORIES_AHEAD;
            if is_directory && are_enough() {
                return;
            }
            let is_wanted = is_directory || kind == FileType::RegularFile;
            if is_wanted && !is_left_out(name, kind) {
                let entries = is_directory.then_some(entries);
                if !self.hand_out(Job { at: Arc::clone(at), name: name.to_owned(), entries, is_read }) {
                    return;
                }
            }
            if is_directory {
                let index = handed.names;
                handed.directories.push_back(index);
            }
            handed.names += 1;
        }
    }

    /// Hands out a file whose contents will be read. Returns false if the queue is full.
    pub fn look_at(&self, at: &Arc<OwnedFd>, name: &CStr) -> bool {
        self.hand_out(Job { at: Arc::clone(at), name: name.to_owned(), entries: None, is_read: true })
    }

    fn hand_out(&self, job: Job) -> bool {
        match self.jobs.get_or_init(|| begin(&self.shared)).try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            // No thread could be started.
            Err(TrySendError::Disconnected(_)) => {
                self.shared.is_over.store(true, Relaxed);
                false
            }
        }
    }

    /// Behaves from here on as if a thread had just slept.
    #[cfg(test)]
    pub fn stay_on(&self) {
        self.shared.until.store(u64::MAX, Relaxed);
    }

    /// Whether anything has been handed out.
    #[cfg(test)]
    pub fn has_begun(&self) -> bool {
        self.jobs.get().is_some()
    }
}

fn begin(shared: &Arc<Shared>) -> Sender<Job> {
    let (sender, receiver) = flume::bounded(JOBS_MAX);
    for _ in 0..THREADS {
        let (shared, receiver, sender) = (Arc::clone(shared), receiver.clone(), sender.downgrade());
        let thread = thread::Builder::new().name("ahead".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(move || work(&shared, &receiver, &sender)).is_err() {
            break;
        }
    }
    sender
}

fn work(shared: &Shared, jobs: &Receiver<Job>, sender: &WeakSender<Job>) {
    while let Ok(job) = jobs.recv() {
        if shared.is_over.load(Relaxed) {
            return;
        }
        let mut pace = Pace::begin();
        match job.entries {
            // Failures are met by the thread that comes to the entry.
            None if job.is_read => drop(job.read(shared)),
            None => drop(statat(&job.at, &job.name, AtFlags::SYMLINK_NOFOLLOW)),
            Some(entries) => drop(job.list(entries, sender)),
        }
        shared.went_on(&mut pace);
    }
}

impl Shared {
    fn went_on(&self, pace: &mut Pace) {
        let now = Instant::now();
        let took = now.duration_since(pace.since);
        if took > ASKED_AFTER {
            let waits = waits_of_thread();
            let has_slept = took > SLOW && waits.slept > pace.waits.slept;
            if waits.blocks > pace.waits.blocks || has_slept && self.is_often_slow() {
                // A thread had to wait for an entry.
                self.until.fetch_max(self.passed.load(Relaxed) + WARM_AFTER, Relaxed);
            }
            pace.waits = waits;
        }
        pace.since = now;
    }

    /// Counts one more slow entry. Returns whether several are slow, approximately if other threads count as well.
    fn is_often_slow(&self) -> bool {
        let passed = self.passed.load(Relaxed);
        if passed.saturating_sub(self.slow_since.load(Relaxed)) > SLOW_AMONG {
            self.slow_since.store(passed, Relaxed);
            self.slow.store(0, Relaxed);
        }
        self.slow.fetch_add(1, Relaxed) >= SLOW_ENTRIES
    }
}

impl Job {
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Does not block, and does not follow a link that has taken the entry's place.
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        open_quietly(&self.at, &*self.name, flags)
    }

    fn read(&self, shared: &Shared) -> Result<(), Errno> {
        let file = self.open(OFlags::empty())?;
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if is_regular(&stat) && size <= shared.bytes_max {
            fadvise(&file, 0, size.try_into().ok(), Advice::WillNeed)?;
        }
        if shared.has_xattrs {
            flistxattr(&file, &mut [0; 0][..])?;
        }
        Ok(())
    }

    /// Reads the directory, and hands out the first of its entries in the order of the walk.
    fn list(&self, entries: usize, sender: &WeakSender<Self>) -> Result<(), Errno> {
        let directory = Arc::new(self.open(OFlags::DIRECTORY)?);
        let mut names: Vec<(CString, FileType)> = Vec::new();
        for_each_of_kind(&directory, |name, kind| {
            names.push((name.to_owned(), kind));
            // A directory with too many names is left to the thread that comes to it.
            if names.len() > NAMES_MAX { Err(Errno::TOOBIG) } else { Ok(()) }
        })?;
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let Some(sender) = sender.upgrade() else { return Ok(()) };
        for (name, _) in names.into_iter().take(entries).filter(|(_, kind)| *kind == FileType::RegularFile) {
            let job = Self { at: Arc::clone(&directory), name, entries: None, is_read: self.is_read };
            if sender.try_send(job).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Cold trees, for tests.
#[cfg(test)]
pub(super) mod cold {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use rustix::fs::syncfs;

    use super::*;
    use crate::fs::direct::cached_pages;

    /// Size of each file, in bytes.
    pub const FILE_BYTES: u64 = 5000;

    /// Makes a tree on the disk of which nothing is in the page cache.
    pub fn tree(directories: usize, files: usize) -> tempfile::TempDir {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        let top = tempfile::tempdir_in(beside).expect("a directory");
        for directory in 0..directories {
            fs::create_dir(top.path().join(format!("d{directory:02}"))).expect("made");
            for file in 0..files {
                fs::write(path(top.path(), directory, file), [7; FILE_BYTES as usize]).expect("written");
            }
        }
        syncfs(File::open(top.path()).expect("open")).expect("on the disk");
        for at in 0..directories * files {
            let file = File::open(path(top.path(), at / files, at % files)).expect("open");
            fadvise(&file, 0, None, Advice::DontNeed).expect("evicted");
        }
        top
    }

    fn path(top: &Path, directory: usize, file: usize) -> PathBuf {
        top.join(format!("d{directory:02}/f{file:02}"))
    }

    pub fn is_cached(top: &Path, directory: usize, file: usize) -> bool {
        cached_pages(File::open(path(top, directory, file)).expect("open"), 0, FILE_BYTES).expect("told") > 0
    }

    pub fn are_cached_soon(top: &Path, files: impl Iterator<Item = (usize, usize)>) {
        let until = Instant::now() + Duration::from_secs(20);
        for (directory, file) in files {
            while !is_cached(top, directory, file) {
                assert!(Instant::now() < until, "{} is not read", path(top, directory, file).display());
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
