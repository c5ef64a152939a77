//! Changes in trees of this host, as inotify(7) reports them: which directories to look into.
//!
//! An event says only which directory to look into. A comparison finds out what has changed there. If events may have
//! been lost, or if what has changed may have further names elsewhere, the whole tree is compared.
//!
//! What is read is not reported: else a comparison of a large tree would fill the queue, and so start the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File, Metadata};
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Timespec, lstat};
use rustix::io::{Errno, dup};

use super::patterns::Patterns;
use crate::fs::{Identity, canonical, directory_of, identity};

mod own;

use own::Own;

/// Changes are reported when nothing has changed for this long,
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// or this long after the first change.
const GATHERED_MAX: Duration = Duration::from_secs(2);

/// How long after such a comparison everything is watched anew and compared again, to find changes that no event
/// reports: on network file systems other hosts change things.
const SCAN_EVERY: Duration = Duration::from_secs(3600);

/// How long after an error that may pass a directory is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of reads of the queue before the time is looked at.
const READS_MAX: usize = 64;

/// Maximum number of directories that are reported one by one, because they travel in one message.
pub const TOUCHED_MAX: usize = 500;

/// Maximum bytes of their paths.
pub const TOUCHED_BYTES_MAX: usize = 32 << 10;

/// Maximum number of links on the way to a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// What is mounted where, one line each, see proc_pid_mountinfo(5).
const MOUNTS: &str = "/proc/self/mountinfo";

/// What is reported of the entries of a directory. Only directories are watched, and none by a link.
const OF_ALL: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    // A program may go on writing to a file that is deleted. Nor is it reported what a program writes that has opened
    // the file by a deleted name, if the file has another one.
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::MASK_ADD);

/// What is reported of a directory on the way to a root or a link, and what else of a root. Entries of a directory on
/// the way are not reported, because there may be many changes beside the root.
const OF_WAY: WatchFlags = WatchFlags::DELETE_SELF
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::MASK_ADD);

/// Events by which another entry may be at a path than before.
const MOVES: ReadFlags = ReadFlags::CREATE
    .union(ReadFlags::DELETE)
    .union(ReadFlags::MOVED_FROM)
    .union(ReadFlags::MOVED_TO)
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::MOVE_SELF);

/// Directories in which something has changed, with those above them, by their paths from the root on; `None` for all.
pub type Touched = Option<BTreeSet<Vec<u8>>>;

/// A path to watch.
pub struct WatchedPath {
    /// The path.
    pub path: PathBuf,
    /// Its possible paths from the transfer's root on, to which patterns apply. Only the caller knows which one is right.
    /// None if they leave out nothing there.
    pub names: Vec<PathBuf>,
}

/// How paths are watched.
#[derive(Default)]
pub struct WatchOptions {
    /// Whether other file systems below the paths are left out, as the copy does.
    pub is_one_system: bool,
    /// What these leave out is not watched.
    pub patterns: Patterns,
    /// A cache of digests besides the usual one.
    pub digest_cache: Option<PathBuf>,
}

/// Why a path cannot be watched.
#[derive(Debug)]
pub struct WatchError {
    /// Path that cannot be watched.
    pub path: PathBuf,
    /// Reason why not.
    pub reason: WatchReason,
}

/// Reason why a path cannot be watched.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchReason {
    /// The limit `fs.inotify.max_user_watches` has been reached.
    TooManyDirectories,
    /// The limit `fs.inotify.max_user_instances` has been reached.
    TooManyWatches,
    /// Error of the system.
    System(Errno),
}

/// A watch of some paths.
pub struct TreeWatch {
    /// Finds the paths, again each time that everything is watched anew.
    find: Box<dyn Fn() -> Vec<WatchedPath> + Send>,
    watches: Watches,
    /// When the first and the last change came that have not been reported.
    changed: Option<[Instant; 2]>,
    /// Whether everything was watched anew, and is compared before the caller asks again.
    is_compared: bool,
    scan_at: Instant,
}

/// What inotify watches, and what has been found. Each directory counts against the user's limit.
struct Watches {
    queue: OwnedFd,
    /// Tells by poll(2) that something has been mounted or unmounted; `None` without procfs.
    mounts: Option<File>,
    /// What is watched, without links.
    roots: BTreeMap<PathBuf, RootState>,
    /// Links that lead there.
    links: BTreeSet<PathBuf>,
    /// Whether paths in `touched` say which root they belong to.
    is_one_tree: bool,
    directories: HashMap<i32, Directory>,
    numbers: BTreeMap<Arc<Path>, i32>,
    options: WatchOptions,
    /// Directories below the roots that are not watched, because they cannot be read. The copy reports those that the
    /// user may not read.
    denied: BTreeSet<PathBuf>,
    /// When `denied` is tried again, if an error among them may pass.
    retry_at: Option<Instant>,
    own: Own,
    touched: Touched,
    /// Whether a root may be another directory by now, or not everything is watched.
    is_stale: bool,
}

/// What a root was when its watch began.
struct RootState {
    place: Identity,
    /// Number of mounts at the root and above it.
    mounts: usize,
    /// Number of the watch of the root, or of the directory that a file is in. Its path may be another one, where the
    /// same directory is mounted again. 0, which no watch has, until it is watched.
    number: i32,
    /// See [`WatchedPath::names`].
    names: Vec<PathBuf>,
}

struct Directory {
    path: Arc<Path>,
    /// Whether everything in it belongs to a root. Otherwise only a link or a root that is a file does.
    is_whole: bool,
    /// Whether the directory was found by another path before.
    has_others: bool,
}

/// An event of inotify.
struct Queued {
    number: i32,
    flags: ReadFlags,
    /// Entry of the directory; `None` for the directory itself.
    name: Option<OsString>,
}

impl WatchError {
    fn new(path: &Path, errno: Errno) -> Self {
        let reason = match errno {
            Errno::NOSPC => WatchReason::TooManyDirectories,
            errno => WatchReason::System(errno),
        };
        Self { path: path.to_owned(), reason }
    }
}

impl TreeWatch {
    /// Watches everything below the paths that `find` returns. For a path that is not a directory, watches the
    /// directory that it is in.
    ///
    /// # Errors
    ///
    /// Fails with the path that cannot be watched.
    pub fn start(
        find: impl Fn() -> Vec<WatchedPath> + Send + 'static,
        options: WatchOptions,
    ) -> Result<Self, WatchError> {
        let paths = find();
        let mut watches = Watches::new(paths.first().map_or(Path::new("."), |first| first.path.as_path()), options)?;
        watches.begin(&paths)?;
        Ok(Self { find: Box::new(find), watches, changed: None, is_compared: true, scan_at: Instant::now() })
    }

    /// Waits until a byte has come by `asks` and something has changed and come to rest; `None` once `asks` is closed.
    /// The caller asks when it has made the comparison that the last answer led to, and the first one.
    ///
    /// # Errors
    ///
    /// Fails if a watched path has gone, or cannot be watched any more.
    pub fn next(&mut self, asks: &UnixStream) -> Result<Option<Touched>, WatchError> {
        let (mut is_asked, mut look_at) = (false, Instant::now());
        loop {
            let settled = self.changed.map(|[first, last]| (first + GATHERED_MAX).min(last + SETTLED_AFTER));
            let due = settled.unwrap_or(self.scan_at);
            let next = self.watches.retry_at.map_or(due, |at| at.min(due));
            let now = Instant::now();
            if is_asked && now >= due {
                // What is seen where a file system is missing is compared once an hour only.
                if now < self.scan_at && self.watches.has_bare_root() {
                    self.watches.is_stale = true;
                    self.changed = None;
                    continue;
                }
                return self.report().map(Some);
            }
            if is_asked && now >= next {
                if self.watches.retry() {
                    self.note_change();
                }
                continue;
            }
            // Where much is mounted and unmounted, the mounts are not read each time.
            let (mounts, look) = match now < look_at {
                true => (None, Some(look_at)),
                false => (self.watches.mounts.as_ref(), None),
            };
            let wake = is_asked.then_some(next).into_iter().chain(look).min();
            let left = wake.map(|at| at.saturating_duration_since(now));
            let failed = |errno| WatchError::new(Path::new("."), errno);
            let fds = [self.watches.queue.as_fd(), asks.as_fd()];
            let [has_events, has_asks, has_mounts] = ready(fds, mounts, left).map_err(failed)?;
            if has_events && self.watches.drain().map_err(failed)? {
                self.note_change();
            }
            if has_mounts {
                look_at = Instant::now() + SETTLED_AFTER;
                if self.watches.is_stale || self.watches.has_other_root(&mount_points()) {
                    self.watches.is_stale = true;
                    self.note_change();
                }
            }
            if has_asks {
                if (&*asks).read_exact(&mut [0]).is_err() {
                    return Ok(None);
                }
                is_asked = true;
                if std::mem::take(&mut self.is_compared) {
                    self.scan_at = Instant::now() + SCAN_EVERY;
                }
            }
        }
    }

    fn note_change(&mut self) {
        let now = Instant::now();
        self.changed = Some([self.changed.map_or(now, |[first, _]| first), now]);
    }

    /// Returns what has been touched. Watches everything anew if that is necessary, and once an hour.
    fn report(&mut self) -> Result<Touched, WatchError> {
        self.changed = None;
        if self.watches.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.watches.retry();
        }
        // The kernel tells that a directory has gone only once no process uses it.
        let Watches { roots, is_stale, .. } = &mut self.watches;
        *is_stale |= roots.iter().any(|(root, state)| place_of(root) != Some(state.place));
        if self.watches.is_stale || Instant::now() >= self.scan_at {
            // There may be room for only one watch of a large tree, so the earlier one has to end first. The comparison
            // that follows finds what changes in between.
            self.watches.end();
            self.watches.begin(&(self.find)())?;
            self.watches.touched = None;
            self.is_compared = true;
        }
        Ok(self.watches.touched.replace(BTreeSet::new()).filter(|_| self.watches.is_one_tree))
    }
}

/// Waits until one of these can be read or the mounts have changed, or for as long as `left`.
fn ready(fds: [BorrowedFd<'_>; 2], mounts: Option<&File>, left: Option<Duration>) -> Result<[bool; 3], Errno> {
    let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut polled = Vec::from(fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // They can be read at any time. Each poll tells whether they have changed since the last one.
    polled.extend(mounts.map(|mounts| PollFd::from_borrowed_fd(mounts.as_fd(), PollFlags::PRI)));
    match poll(&mut polled, left.as_ref()) {
        Ok(_) => Ok([0_usize, 1, 2].map(|at| polled.get(at).is_some_and(|fd| !fd.revents().is_empty()))),
        Err(Errno::INTR) => Ok([false; 3]),
        Err(errno) => Err(errno),
    }
}

impl Watches {
    /// Returns a watch of nothing.
    fn new(first: &Path, options: WatchOptions) -> Result<Self, WatchError> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| {
            // The error is the same where this process has too many files.
            let has_room = || dup(rustix::stdio::stderr()).err() != Some(Errno::MFILE);
            match errno {
                Errno::MFILE if has_room() => {
                    WatchError { path: first.to_owned(), reason: WatchReason::TooManyWatches }
                }
                errno => WatchError::new(first, errno),
            }
        })?;
        Ok(Self {
            queue,
            mounts: File::open(MOUNTS).ok(),
            roots: BTreeMap::new(),
            links: BTreeSet::new(),
            is_one_tree: false,
            directories: HashMap::new(),
            numbers: BTreeMap::new(),
            own: Own::find(options.digest_cache.as_deref()),
            options,
            denied: BTreeSet::new(),
            retry_at: None,
            touched: Some(BTreeSet::new()),
            is_stale: false,
        })
    }

    fn begin(&mut self, paths: &[WatchedPath]) -> Result<(), WatchError> {
        let mut roots = Vec::new();
        for WatchedPath { path, names } in paths {
            let root = canonical(path)
                .map_err(|error| WatchError::new(path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            self.links.extend(links_on(path));
            // What is mounted on access has to be mounted before the mounts are counted.
            let _ = root.join(".").metadata();
            roots.push((root, names));
        }
        let points = mount_points();
        for (root, names) in roots {
            let place = lstat(&root).map(|stat| identity(&stat)).map_err(|errno| WatchError::new(&root, errno))?;
            let state = RootState { place, mounts: mounts_on(&points, &root), number: 0, names: Vec::new() };
            self.roots.entry(root).or_insert(state).names.extend_from_slice(names);
        }
        self.is_one_tree = paths.len() == 1 && self.roots.keys().all(|root| root.is_dir());
        // The directory `/`, which has none above it, is never replaced.
        let ways = self.links.iter().chain(self.roots.keys()).flat_map(|path| path.ancestors().skip(1));
        let ways: BTreeSet<_> = ways.filter(|above| above.parent().is_some()).collect();
        let links = self.links.iter().map(|link| (directory_of(link), OF_ALL));
        // Links come last: a directory that has two paths keeps the last one, and the name of a link tells what it is.
        let above = ways.into_iter().map(|above| (above, OF_WAY)).chain(links);
        let above: Vec<_> = above.map(|(path, events)| (path.to_owned(), events)).collect();
        for (path, events) in above {
            match self.add(&path, events, false) {
                // It cannot be noticed when such a link or directory is replaced.
                Ok(_) | Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(WatchError::new(&path, errno)),
            }
        }
        for root in self.roots.keys().cloned().collect::<Vec<_>>() {
            let is_tree = root.is_dir();
            let watched = if is_tree { &root } else { directory_of(&root) };
            let number = self.add(watched, OF_ALL, is_tree).map_err(|errno| WatchError::new(&root, errno))?;
            if is_tree {
                self.add_tree(&root)?;
            }
            if let Some(state) = self.roots.get_mut(&root) {
                state.number = number;
            }
        }
        Ok(())
    }

    /// Ends all watches.
    fn end(&mut self) {
        for number in self.directories.keys() {
            // The directory may have gone, and its watch with it.
            let _ = inotify::remove_watch(&self.queue, *number);
        }
        // Each watch that ends is an event, of which a large tree has more than the queue has room for.
        while self.read().is_ok_and(|events| !events.is_empty()) {}
        self.directories.clear();
        self.numbers.clear();
        self.denied.clear();
        self.retry_at = None;
        self.roots.clear();
        self.links.clear();
        self.is_stale = false;
    }

    /// Watches a directory for these events, and returns the number of its watch. `is_whole`: everything in it belongs
    /// to a root.
    fn add(&mut self, path: &Path, events: WatchFlags, is_whole: bool) -> Result<i32, Errno> {
        let own = if self.roots.contains_key(path) { OF_WAY } else { WatchFlags::empty() };
        let number = inotify::add_watch(&self.queue, path, events | own)?;
        let path: Arc<Path> = path.into();
        match self.directories.get_mut(&number) {
            Some(known) => {
                known.is_whole |= is_whole;
                if known.path != path {
                    // Otherwise it has only moved, and the event that tells it is still in the queue.
                    known.has_others |= place_of(&known.path).is_some_and(|place| place_of(&path) == Some(place));
                    let earlier = std::mem::replace(&mut known.path, Arc::clone(&path));
                    if self.numbers.get(&earlier) == Some(&number) {
                        self.numbers.remove(&earlier);
                    }
                }
            }
            None => {
                let directory = Directory { path: Arc::clone(&path), is_whole, has_others: false };
                self.directories.insert(number, directory);
            }
        }
        if let Some(earlier) = self.numbers.insert(path, number).filter(|earlier| *earlier != number) {
            self.directories.remove(&earlier);
            let _ = inotify::remove_watch(&self.queue, earlier);
        }
        Ok(number)
    }

    /// Watches a directory of a root and everything below it, except for directories that are left out or cannot be
    /// read.
    fn add_tree(&mut self, top: &Path) -> Result<(), WatchError> {
        let devices: Option<Vec<_>> = self.options.is_one_system.then(|| {
            let around = self.roots.iter().filter(|(root, _)| top.starts_with(root));
            around.map(|(_, state)| state.place.0).collect()
        });
        // A device for each root, because a root may be mounted within another one.
        let is_within = |entry: &DirEntry| match &devices {
            Some(devices) => place_of(&entry.path()).is_none_or(|(device, _)| devices.contains(&device)),
            None => true,
        };
        let mut left = vec![top.to_owned()];
        while let Some(path) = left.pop() {
            let added = self.add(&path, OF_ALL, true).and_then(|_| {
                let entries = path.read_dir().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                let paths = directories.filter(is_within).map(|entry| entry.path());
                left.extend(paths.filter(|path| !self.is_left_out(path, true)));
                // What can be listed, but not entered, cannot be read either.
                let entered = path.join(".").metadata().map(drop);
                entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            });
            match added {
                Ok(()) => _ = self.denied.remove(&path),
                // It has gone, or another entry has taken its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno @ (Errno::NOSPC | Errno::NOMEM)) => return Err(WatchError::new(&path, errno)),
                // No path leads there, so only the comparison that is due once an hour finds what changes there.
                Err(Errno::NAMETOOLONG) => {}
                Err(errno) => {
                    self.denied.insert(path);
                    // The copy may be able to read it, and then reports nothing.
                    if !matches!(errno, Errno::ACCESS | Errno::PERM) {
                        self.retry_at = Some(Instant::now() + RETRY_AFTER);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tries again to watch what could not be read. Returns whether something has to be compared.
    fn retry(&mut self) -> bool {
        self.retry_at = None;
        let denied = std::mem::take(&mut self.denied);
        for path in &denied {
            self.is_stale |= self.add_tree(path).is_err();
        }
        let is_change = self.denied != denied;
        if is_change {
            self.touched = None;
        }
        is_change || self.is_stale
    }

    /// Whether something else is mounted where a root was, or the same is mounted again and not watched.
    fn has_other_root(&self, points: &[PathBuf]) -> bool {
        self.roots.iter().any(|(root, state)| {
            let is_other = |place| state.place != place || !self.directories.contains_key(&state.number);
            // The mounts come first, because a look at the path might mount again what has been idle.
            mounts_on(points, root) >= state.mounts && place_of(root).is_some_and(is_other)
        })
    }

    /// Whether a root may be an empty directory that waits for its file system: less is mounted than when the watch
    /// began, and what is there now has never been watched.
    fn has_bare_root(&self) -> bool {
        let is_any_bare = |points: &[PathBuf]| {
            self.roots.iter().any(|(root, state)| {
                mounts_on(points, root) < state.mounts && place_of(root).is_some_and(|place| state.place != place)
            })
        };
        is_any_bare(&mount_points()) && {
            // What has been idle is mounted again.
            self.roots.keys().for_each(|root| drop(root.join(".").metadata()));
            is_any_bare(&mount_points())
        }
    }

    /// Ends the watches of what was below a path. Its directories may be elsewhere now.
    fn remove_tree(&mut self, top: &Path) {
        let below = self.numbers.range::<Path, _>((Bound::Included(top), Bound::Unbounded));
        let below: Vec<_> = below.take_while(|(path, _)| path.starts_with(top)).map(|(_, number)| *number).collect();
        for number in below {
            let _ = inotify::remove_watch(&self.queue, number);
            self.forget(number);
        }
    }

    fn forget(&mut self, number: i32) {
        let Some(directory) = self.directories.remove(&number) else { return };
        if self.numbers.get(&directory.path) == Some(&number) {
            self.numbers.remove(&directory.path);
        }
    }

    /// Returns some of the events in the queue; none if it is empty.
    fn read(&self) -> Result<Vec<Queued>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let (mut reader, mut events) = (Reader::new(&self.queue, &mut buffer), Vec::new());
        loop {
            match reader.next() {
                Ok(event) => events.push(Queued {
                    number: event.wd(),
                    flags: event.events(),
                    name: event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                }),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(events),
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(events);
            }
        }
    }

    /// Takes events out of the queue, and returns whether there was a change among them.
    fn drain(&mut self) -> Result<bool, Errno> {
        let mut is_change = false;
        for _ in 0..READS_MAX {
            let events = self.read()?;
            if events.is_empty() {
                break;
            }
            for event in events {
                is_change |= self.take(&event);
            }
        }
        Ok(is_change)
    }

    /// Records an event, and returns whether it may be a change at the source.
    fn take(&mut self, Queued { number, flags, name }: &Queued) -> bool {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.is_stale = true;
            return true;
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.forget(*number);
            return false;
        }
        // That something is not mounted any more is no reason to compare what can be seen in its place.
        if flags.contains(ReadFlags::UNMOUNT) {
            return false;
        }
        let Some(Directory { path, is_whole, has_others }) = self.directories.get(number) else { return false };
        let (is_whole, has_others) = (*is_whole, *has_others);
        let path = name.as_ref().map_or_else(|| path.to_path_buf(), |name| path.join(name));
        let (is_root, is_link) = (self.roots.contains_key(&path), self.links.contains(&path));
        // Only roots and directories on the way report this of themselves.
        let is_replaced = flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF);
        if !(is_whole || is_root || is_link || is_replaced) {
            return false;
        }
        let found = path.symlink_metadata();
        let is_directory = flags.contains(ReadFlags::ISDIR);
        // A file may have another name that is copied, and a directory another path.
        let has_others = has_others || found.as_ref().is_ok_and(|found| !found.is_dir() && found.nlink() > 1);
        let is_left_out = || name.is_some() && !is_link && !has_others && self.is_left_out(&path, is_directory);
        if self.own.has(&path, found.as_ref().ok()) || is_left_out() {
            // With the next change, the directory gets its time.
            self.touch(&path);
            return false;
        }
        let is_moved = flags.intersects(MOVES);
        self.is_stale |= is_link || is_replaced || is_root && is_moved;
        if is_directory && is_whole {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.remove_tree(&path);
            }
            let lacks = self.lacks(&path);
            if lacks {
                self.touched = None;
            }
            // After an exchange of two names there is another directory at the old name.
            let comes = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO);
            match &found {
                Ok(found) if (lacks || comes) && found.is_dir() => {
                    if lacks {
                        // What still cannot be read is found again, and what has gone is not asked for any more.
                        self.denied.retain(|denied| !denied.starts_with(&path));
                    }
                    // Watching everything anew finds out the path and the reason.
                    self.is_stale |= self.add_tree(&path).is_err();
                }
                // It is still watched, but what changes in it is not copied until it can be read again.
                Ok(found) if found.is_dir() && is_closed(&path) => _ = self.denied.insert(path.clone()),
                // The directory that it is in cannot be entered at the moment. It stands for all that come there.
                Err(error) if comes && error.kind() == ErrorKind::PermissionDenied => {
                    self.denied.insert(directory_of(&path).to_owned());
                }
                _ => {}
            }
        }
        if has_others || found.is_ok_and(|found| joins_others(&path, &found, is_moved)) {
            self.touched = None;
        }
        self.touch(&path);
        true
    }

    /// Whether patterns leave out an entry of a watched directory, whichever root it is copied with.
    fn is_left_out(&self, path: &Path, is_directory: bool) -> bool {
        let Self { roots, options: WatchOptions { patterns, .. }, .. } = self;
        if patterns.is_empty() || roots.contains_key(path) {
            return false;
        }
        let ways = roots.iter().filter_map(|(root, state)| Some((path.strip_prefix(root).ok()?, &state.names)));
        let mut names = ways.flat_map(|(below, names)| names.iter().map(move |name| name.join(below))).peekable();
        let is_any = names.peek().is_some();
        is_any && names.all(|name| patterns.leave_out(name.as_os_str().as_bytes(), is_directory))
    }

    /// Records the directory of an entry.
    fn touch(&mut self, path: &Path) {
        for below in self.roots.keys().filter_map(|root| path.strip_prefix(root).ok()) {
            add(&mut self.touched, below);
        }
    }

    /// Whether the directory, or one below it, could not be read. A change of a mode is an event like any other.
    fn lacks(&self, path: &Path) -> bool {
        let mut from = self.denied.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.next().is_some_and(|denied| denied.starts_with(path))
    }
}

/// Records that something in the directory of `path` has changed.
pub fn add(touched: &mut Touched, path: &Path) {
    let Some(some) = touched else { return };
    // Directories above as well, because the walk passes through them.
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        some.insert(above.as_os_str().as_bytes().to_vec());
    }
    bound(touched);
}

/// Replaces too many directories by all.
pub fn bound(touched: &mut Touched) {
    let is_much = |some: &mut BTreeSet<Vec<u8>>| {
        some.len() > TOUCHED_MAX || some.iter().map(Vec::len).sum::<usize>() > TOUCHED_BYTES_MAX
    };
    if touched.as_mut().is_some_and(is_much) {
        *touched = None;
    }
}

/// Identifies what is at a path, without following a link.
fn place_of(path: &Path) -> Option<Identity> {
    lstat(path).ok().map(|stat| identity(&stat))
}

/// Returns where something is mounted, as the system writes these paths; nothing without procfs.
fn mount_points() -> Vec<PathBuf> {
    points_in(&std::fs::read(MOUNTS).unwrap_or_default())
}

fn points_in(mounts: &[u8]) -> Vec<PathBuf> {
    let points = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| OsStr::from_bytes(point).into()).collect()
}

/// Returns the number of mounts at a path and above it, including those that others hide.
fn mounts_on(points: &[PathBuf], path: &Path) -> usize {
    let escaped = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    let path: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(escaped).collect();
    let path = Path::new(OsStr::from_bytes(&path));
    points.iter().filter(|point| path.starts_with(point)).count()
}

/// Returns the path, relative to `base`, that is watched for a path listed below `base`. If part of it is missing, a link,
/// or closed to this user, the directory of that part is watched, because something else may take its place.
pub fn watched_below(base: &Path, listed: &[u8]) -> PathBuf {
    let names = Path::new(OsStr::from_bytes(listed)).components();
    let mut below = PathBuf::new();
    for name in names.filter(|name| matches!(name, Component::Normal(_))) {
        let next = below.join(name);
        let path = base.join(&next);
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() && !is_closed(&path) => below = next,
            Ok(found) if found.is_file() => return next,
            _ => break,
        }
    }
    below
}

/// Whether this user may not list a directory or enter it.
fn is_closed(path: &Path) -> bool {
    path.join(".").read_dir().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Returns the links on the way to a path, by paths without links above them.
fn links_on(path: &Path) -> BTreeSet<PathBuf> {
    let reversed = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut at, mut left, mut links) = (std::env::current_dir().unwrap_or_default(), reversed(path), BTreeSet::new());
    // A link that is on the way twice is no loop. A loop ends as in the kernel.
    let mut followed = 0;
    while let Some(part) = left.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => _ = at.pop(),
            Some(Component::CurDir) | None => {}
            _ => at.push(part),
        }
        if let Ok(target) = at.read_link() {
            links.insert(at.clone());
            followed += 1;
            if followed > LINKS_MAX {
                break;
            }
            at.pop();
            left.extend(reversed(&target));
        }
    }
    links
}

/// Whether what has changed may have further names elsewhere in the tree, so that the whole tree has to be compared.
/// This holds for a file with several names. It also holds for a new or moved directory with whatever is in it, even if
/// reached by a link, which an option may have followed.
fn joins_others(path: &Path, found: &Metadata, is_moved: bool) -> bool {
    let leads_to_directory = || found.is_dir() || found.is_symlink() && path.is_dir();
    !found.is_dir() && found.nlink() > 1 || is_moved && leads_to_directory()
}

#[cfg(test)]
mod tests;
