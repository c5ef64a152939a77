//! Reading ahead of a walk where the tree is cold: what comes next is opened, and brought into the page cache, by threads
//! of their own, since a disk or a file server does many of such requests in the time of one.
//!
//! No more than a hint. It changes nothing of what is sent, and what fails here the walk meets, and reports, by itself. It
//! begins once the walk has slept for an entry, and ends when neither the walk nor a thread has for [`WARM_AFTER`] entries:
//! a tree in memory is walked as without it. Threads, not an io_uring: to open a file of which nothing is in memory the
//! kernel gives such a request to a thread as well.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use flume::{Receiver, Sender, TrySendError, WeakSender};
use rustix::fs::{Advice, AtFlags, FileType, OFlags, RawDir, fadvise, flistxattr, fstat, statat};
use rustix::io::Errno;

use super::place::{Level, Place};
use super::{Recorder, WantedFile};
use crate::fs::open_quietly;
use crate::fs::waits::waits_of_thread;

/// Requests that wait for a device at once; more are on their way, as reading is not waited for.
const THREADS: usize = 16;
const STACK_BYTES: usize = 128 << 10;

/// How far ahead of the walk entries of its directory are looked at: with files of the largest size that travels in a
/// record they take 32 MiB of the page cache.
const ENTRIES_AHEAD: usize = 256;

/// Directories next to come that are entered, and so many of the first entries of each; none of one with more names.
const DIRECTORIES_AHEAD: usize = 8;
const ENTRIES_OF_DIRECTORY: usize = 64;
const NAMES_MAX: usize = 1024;
const LISTING_BYTES: usize = 32 << 10;

/// What has been handed out and not begun.
const JOBS_MAX: usize = 2 * (ENTRIES_AHEAD + DIRECTORIES_AHEAD * ENTRIES_OF_DIRECTORY);

/// No entry in memory takes as long, unless another thread has the processor.
const SLOW: Duration = Duration::from_micros(100);

/// Entries in which nobody has slept after which the tree is taken for warm.
const WARM_AFTER: u64 = 1024;

/// What reads ahead of one walk.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Once it has been needed.
    jobs: Option<Sender<Job>>,
    /// When the last entry was done, and how often the thread had slept by then.
    since: Instant,
    slept: u64,
}

#[derive(Debug)]
struct Shared {
    /// Files of up to so many bytes are read.
    bytes_max: u64,
    /// Extended attributes will be asked for.
    has_xattrs: bool,
    /// Entries that the walk has passed, and the first that is not looked at ahead.
    passed: AtomicU64,
    until: AtomicU64,
    /// The walk is gone.
    is_over: AtomicBool,
}

/// What has been handed out of a directory.
#[derive(Debug, Default)]
pub(in crate::tree) struct HandedOut {
    /// How many of its names.
    names: usize,
    /// Which of them are directories that the walk has not come to.
    directories: VecDeque<usize>,
}

#[derive(Debug)]
struct Job {
    at: Arc<OwnedFd>,
    name: CString,
    what: What,
    /// Contents are sent, not only listed.
    is_read: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    File,
    /// With how many of its entries.
    Directory(usize),
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
    }
}

impl Ahead {
    /// For a walk that puts files of up to `bytes_max` into their records.
    pub fn new(bytes_max: usize, has_xattrs: bool) -> Self {
        let shared = Shared {
            bytes_max: bytes_max as u64,
            has_xattrs,
            passed: AtomicU64::new(0),
            until: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), jobs: None, since: Instant::now(), slept: 0 }
    }

    /// The walk goes on, in this thread.
    pub fn resume(&mut self) {
        (self.since, self.slept) = (Instant::now(), waits_of_thread());
    }

    /// The walk has done something with an entry.
    pub fn passed(&mut self) {
        self.shared.passed.fetch_add(1, Relaxed);
        let now = Instant::now();
        if now.duration_since(self.since) > SLOW {
            let slept = waits_of_thread();
            if slept > self.slept {
                self.shared.is_cold();
            }
            self.slept = slept;
        }
        self.since = now;
    }

    /// Hands out what follows the current entry of the walk's directory.
    pub fn look(&mut self, place: &Place, recorder: &Recorder) {
        if !self.shared.is_on() {
            return;
        }
        let Some(level) = place.levels.last() else { return };
        let [layer] = &level.layers[..] else { return };
        let mut handed = level.handed_out.borrow_mut();
        while handed.directories.front().is_some_and(|&directory| directory <= level.passed) {
            handed.directories.pop_front();
        }
        handed.names = handed.names.max(level.passed + 1);
        while handed.names <= level.passed + ENTRIES_AHEAD {
            let Some((kind, name)) = level.names.upcoming(handed.names - level.passed) else { return };
            let is_directory = kind == FileType::Directory;
            if is_directory && handed.directories.len() >= DIRECTORIES_AHEAD {
                return;
            }
            let is_wanted = is_directory || kind == FileType::RegularFile;
            if is_wanted && !recorder.is_left_out(place, name.to_bytes(), kind) {
                let what = if is_directory { What::Directory(recorder.entries_ahead(place)) } else { What::File };
                let at = Arc::clone(&layer.directory);
                if !self.hand_out(Job { at, name: name.to_owned(), what, is_read: level.is_fresh }) {
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

    /// Hands out a file whose contents are to be sent.
    pub fn look_at_wanted(&mut self, wanted: &WantedFile) {
        if self.shared.is_on()
            && let Some((at, name)) = wanted.file.at()
        {
            self.hand_out(Job { at: Arc::clone(at), name: name.to_owned(), what: What::File, is_read: true });
        }
    }

    /// False if there are as many as can be.
    fn hand_out(&mut self, job: Job) -> bool {
        let jobs = self.jobs.get_or_insert_with(|| begin(&self.shared));
        match jobs.try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            // No thread could be started.
            Err(TrySendError::Disconnected(_)) => {
                self.shared.is_over.store(true, Relaxed);
                false
            }
        }
    }
}

impl Recorder {
    /// How many entries of a directory that the walk will come to are certain to be copied.
    fn entries_ahead(&self, place: &Place) -> usize {
        if self.patterns.is_empty() && place.selected.is_none() { ENTRIES_OF_DIRECTORY } else { 0 }
    }

    /// What has been handed out of a directory that is entered, which the last level has just passed.
    pub(super) fn handed_out(&self, place: &Place, entered: &Level) -> HandedOut {
        let is_it = |above: &&Level| above.handed_out.borrow().directories.contains(&(above.passed.wrapping_sub(1)));
        let is_seen = place.levels.last().filter(is_it).is_some();
        let is_listed = entered.names.upcoming(NAMES_MAX).is_none();
        HandedOut { names: if is_seen && is_listed { self.entries_ahead(place) } else { 0 }, ..HandedOut::default() }
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
        let (began, slept) = (Instant::now(), waits_of_thread());
        match job.what {
            // Whatever fails, the walk will meet.
            What::File if job.is_read => drop(job.read(shared)),
            What::File => drop(statat(&job.at, &job.name, AtFlags::SYMLINK_NOFOLLOW)),
            What::Directory(entries) => drop(job.list(entries, sender)),
        }
        if began.elapsed() > SLOW && waits_of_thread() > slept {
            shared.is_cold();
        }
    }
}

impl Shared {
    fn is_on(&self) -> bool {
        self.passed.load(Relaxed) < self.until.load(Relaxed) && !self.is_over.load(Relaxed)
    }

    /// Somebody had to wait for an entry.
    fn is_cold(&self) {
        self.until.fetch_max(self.passed.load(Relaxed) + WARM_AFTER, Relaxed);
    }
}

impl Job {
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Nothing is waited for, nor read of what has been put in its place.
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        open_quietly(&self.at, &*self.name, flags)
    }

    fn read(&self, shared: &Shared) -> Result<(), Errno> {
        let file = self.open(OFlags::empty())?;
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && size <= shared.bytes_max {
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
        let mut listing = Vec::with_capacity(LISTING_BYTES);
        let mut found = RawDir::new(directory.as_fd(), listing.spare_capacity_mut());
        while let Some(entry) = found.next() {
            let entry = entry?;
            let name: &CStr = entry.file_name();
            if name != c"." && name != c".." {
                names.push((name.to_owned(), entry.file_type()));
            }
            if names.len() > NAMES_MAX {
                return Ok(());
            }
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let Some(sender) = sender.upgrade() else { return Ok(()) };
        for (name, _) in names.into_iter().take(entries).filter(|(_, kind)| *kind == FileType::RegularFile) {
            let job = Self { at: Arc::clone(&directory), name, what: What::File, is_read: self.is_read };
            if sender.try_send(job).is_err() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use rustix::fs::syncfs;

    use super::super::{Come, Walk};
    use super::*;
    use crate::fs::direct::cached_pages;
    use crate::options::{Rule, Rules, TreeOptions};
    use crate::tree::root::Root;

    const DIRECTORIES: usize = 11;
    const FILES: usize = 70;

    /// A tree on the disk of which nothing is in the page cache.
    fn cold_tree() -> tempfile::TempDir {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        let top = tempfile::tempdir_in(beside).expect("a directory");
        for directory in 0..DIRECTORIES {
            fs::create_dir(top.path().join(format!("d{directory:02}"))).expect("made");
            for file in 0..FILES {
                fs::write(path(top.path(), directory, file), [7; 5000]).expect("written");
            }
        }
        syncfs(File::open(top.path()).expect("open")).expect("on the disk");
        for at in 0..DIRECTORIES * FILES {
            let file = File::open(path(top.path(), at / FILES, at % FILES)).expect("open");
            fadvise(&file, 0, None, Advice::DontNeed).expect("evicted");
        }
        top
    }

    fn path(top: &Path, directory: usize, file: usize) -> PathBuf {
        top.join(format!("d{directory:02}/f{file:02}"))
    }

    fn is_cached(top: &Path, directory: usize, file: usize) -> bool {
        cached_pages(File::open(path(top, directory, file)).expect("open"), 0, 5000).expect("told") > 0
    }

    /// Walks over the root and the first directories as far as the first file of the last of these.
    fn walk_to(top: &Path, directory: usize, is_cold: bool, rules: Rules) -> Walk {
        let options = TreeOptions { rules, ..TreeOptions::default() };
        let mut walk = Walk::new(vec![Root::new(top, "t")], 1 << 20, options).expect("a tree");
        if is_cold {
            walk.ahead.shared.until.store(u64::MAX, Relaxed);
        }
        let mut target = vec![0; 1 << 20];
        // The root; directories with their files and their ends; and one more with its first file.
        for _ in 0..1 + directory * (FILES + 2) + 2 {
            let filled = walk.fill(&mut target, 1, Come { room: 1, ..Come::default() }, &AtomicBool::new(false));
            assert!(filled.length > 0);
        }
        walk
    }

    fn are_cached_soon(top: &Path, files: impl Iterator<Item = (usize, usize)>) {
        let until = Instant::now() + Duration::from_secs(20);
        for (directory, file) in files {
            while !is_cached(top, directory, file) {
                assert!(Instant::now() < until, "{} is not read", path(top, directory, file).display());
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn what_comes_next_is_read_and_no_more() {
        let top = cold_tree();
        let top = top.path();
        let walk = walk_to(top, 1, true, Rules::default());
        let next =
            (2..2 + DIRECTORIES_AHEAD).flat_map(|directory| (0..ENTRIES_OF_DIRECTORY).map(move |at| (directory, at)));
        are_cached_soon(top, (0..FILES).map(|file| (1, file)).chain(next));
        drop(walk);
        assert!(!is_cached(top, 3, ENTRIES_OF_DIRECTORY), "beyond the first entries of a directory");
        assert!(!is_cached(top, 2 + DIRECTORIES_AHEAD, 0), "beyond the next directories");
    }

    #[test]
    fn a_tree_that_is_not_cold_and_what_is_left_out_are_left_alone() {
        let top = cold_tree();
        let top = top.path();
        let walk = walk_to(top, 0, false, Rules::default());
        assert!(walk.ahead.jobs.is_none(), "no thread has begun");
        let out = ["f1*", "d02"].map(|pattern| Rule { pattern: pattern.as_bytes().to_vec().into(), is_include: false });
        let walk = walk_to(top, 0, true, Rules(out.to_vec()));
        are_cached_soon(top, (0..FILES).filter(|file| file / 10 != 1).map(|file| (0, file)));
        drop(walk);
        assert!((10..20).all(|file| !is_cached(top, 0, file)));
        assert!((0..FILES).all(|file| !is_cached(top, 2, file)));
    }
}
