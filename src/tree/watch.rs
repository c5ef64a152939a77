//! Changes in trees of this host, as inotify(7) reports them: which directories to look into.
//!
//! An event says only which directory to look into. A comparison finds out what has changed there. If events may have
//! been lost, or if what has changed may have further names elsewhere, the whole tree is compared.
//!
//! What is read is not reported: else a comparison of a large tree would fill the queue, and so start the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::Read;
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
use rustix::fs::{FileType, Timespec, fstat};
use rustix::io::{Errno, dup};

use super::digest_cache;
use crate::fs::{canonical, directory_of};

/// Changes are reported when nothing has changed for this long,
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// or this long after the first change.
const GATHERED_MAX: Duration = Duration::from_secs(2);

/// How long after such a comparison everything is watched anew and compared again, to find changes that no event
/// reports: on network file systems other hosts change things.
const SCAN_EVERY: Duration = Duration::from_secs(3600);

/// Maximum number of reads of the queue before the time is looked at.
const READS_MAX: usize = 64;

/// Maximum number of directories that are reported one by one, because they travel in one message.
pub const TOUCHED_MAX: usize = 500;

/// Maximum bytes of their paths.
pub const TOUCHED_BYTES_MAX: usize = 32 << 10;

/// Maximum number of links on the way to a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// What is reported of the entries of a directory. Only directories are watched, and none by a link.
const OF_ALL: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::MASK_ADD);

/// What else is reported of a root.
const OF_ROOT: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);

/// Events by which another entry may be at a path than before.
const MOVES: ReadFlags = ReadFlags::CREATE
    .union(ReadFlags::DELETE)
    .union(ReadFlags::MOVED_FROM)
    .union(ReadFlags::MOVED_TO)
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::MOVE_SELF);

/// Directories in which something has changed, with those above them, by their paths from the root on; `None` for all.
pub type Touched = Option<BTreeSet<Vec<u8>>>;

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
    find: Box<dyn Fn() -> Vec<PathBuf> + Send>,
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
    /// What is watched, without links.
    roots: BTreeSet<PathBuf>,
    /// Links that lead there.
    links: BTreeSet<PathBuf>,
    /// Whether paths in `touched` say which root they belong to.
    is_one_tree: bool,
    directories: HashMap<i32, Directory>,
    numbers: BTreeMap<Arc<Path>, i32>,
    /// Directories below the roots that are not watched, because they cannot be read. The copy reports them.
    denied: BTreeSet<PathBuf>,
    own: Own,
    touched: Touched,
    /// Whether a root may be another directory by now, or not everything is watched.
    is_stale: bool,
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

/// Files that change because a copy is made. Their changes are copied when something else has changed.
struct Own {
    /// Standard output and standard error, by device and inode, if they are files.
    streams: Vec<[u64; 2]>,
    digest_cache: Option<PathBuf>,
}

impl Own {
    fn find() -> Self {
        // The cache may not exist yet.
        let absolute = |path: PathBuf| {
            let found =
                path.ancestors().find_map(|above| Some((canonical(above).ok()?, path.strip_prefix(above).ok()?)));
            found.map(|(above, rest)| above.join(rest))
        };
        let identity = |fd| {
            let stat = fstat(fd).ok()?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            is_file.then_some([stat.st_dev, stat.st_ino])
        };
        let streams = [rustix::stdio::stdout(), rustix::stdio::stderr()].into_iter().filter_map(identity).collect();
        Self { streams, digest_cache: digest_cache::default_path().and_then(absolute) }
    }

    fn has(&self, path: &Path, found: Option<&Metadata>) -> bool {
        self.digest_cache.as_deref() == Some(path)
            || found.is_some_and(|found| self.streams.contains(&[found.dev(), found.ino()]))
    }
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
    pub fn start(find: impl Fn() -> Vec<PathBuf> + Send + 'static) -> Result<Self, WatchError> {
        let paths = find();
        let mut watches = Watches::new(paths.first().map_or(Path::new("."), PathBuf::as_path))?;
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
        let mut is_asked = false;
        loop {
            let settled = self.changed.map(|[first, last]| (first + GATHERED_MAX).min(last + SETTLED_AFTER));
            let due = settled.unwrap_or(self.scan_at);
            let left = is_asked.then(|| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.report().map(Some);
            }
            let failed = |errno| WatchError::new(Path::new("."), errno);
            let [has_events, has_asks] = ready([self.watches.queue.as_fd(), asks.as_fd()], left).map_err(failed)?;
            if has_events && self.watches.drain().map_err(failed)? {
                let now = Instant::now();
                self.changed = Some([self.changed.map_or(now, |[first, _]| first), now]);
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

    /// Returns what has been touched. Watches everything anew if that is necessary, and once an hour.
    fn report(&mut self) -> Result<Touched, WatchError> {
        self.changed = None;
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

/// Waits until one of these can be read, or for as long as `left`.
fn ready(fds: [BorrowedFd<'_>; 2], left: Option<Duration>) -> Result<[bool; 2], Errno> {
    let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled, left.as_ref()) {
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; 2]),
        Err(errno) => Err(errno),
    }
}

impl Watches {
    /// Returns a watch of nothing.
    fn new(first: &Path) -> Result<Self, WatchError> {
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
            roots: BTreeSet::new(),
            links: BTreeSet::new(),
            is_one_tree: false,
            directories: HashMap::new(),
            numbers: BTreeMap::new(),
            denied: BTreeSet::new(),
            own: Own::find(),
            touched: Some(BTreeSet::new()),
            is_stale: false,
        })
    }

    fn begin(&mut self, paths: &[PathBuf]) -> Result<(), WatchError> {
        for path in paths {
            let root = canonical(path)
                .map_err(|error| WatchError::new(path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            self.links.extend(links_on(path));
            self.roots.insert(root);
        }
        self.is_one_tree = paths.len() == 1 && self.roots.iter().all(|root| root.is_dir());
        for link in self.links.clone() {
            match self.add(directory_of(&link), false) {
                // It cannot be noticed when such a link is replaced.
                Ok(()) | Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(WatchError::new(&link, errno)),
            }
        }
        for root in self.roots.clone() {
            match root.is_dir() {
                true => self.add_tree(&root)?,
                false => {
                    self.add(directory_of(&root), false).map_err(|errno| WatchError::new(&root, errno))?;
                }
            }
        }
        Ok(())
    }

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
        self.roots.clear();
        self.links.clear();
        self.is_stale = false;
    }

    /// Watches a directory. `is_whole`: everything in it belongs to a root.
    fn add(&mut self, path: &Path, is_whole: bool) -> Result<(), Errno> {
        let own = if self.roots.contains(path) { OF_ROOT } else { WatchFlags::empty() };
        let number = inotify::add_watch(&self.queue, path, OF_ALL | own)?;
        let path: Arc<Path> = path.into();
        match self.directories.get_mut(&number) {
            Some(known) => {
                known.is_whole |= is_whole;
                if known.path != path {
                    // Otherwise it has only moved, and the event that tells it is still in the queue.
                    known.has_others |= known.path.symlink_metadata().is_ok_and(|found| found.is_dir());
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
        Ok(())
    }

    /// Watches a directory of a root and everything below it, except for directories that cannot be read.
    fn add_tree(&mut self, top: &Path) -> Result<(), WatchError> {
        let mut left = vec![top.to_owned()];
        while let Some(path) = left.pop() {
            let added = self.add(&path, true).and_then(|()| {
                let entries = path.read_dir().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                left.extend(directories.map(|entry| entry.path()));
                Ok(())
            });
            let is_root = self.roots.contains(&path);
            match added {
                Ok(()) => _ = self.denied.remove(&path),
                // It has gone, or another entry has taken its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !is_root => {}
                Err(errno) if is_root || matches!(errno, Errno::NOSPC | Errno::NOMEM) => {
                    return Err(WatchError::new(&path, errno));
                }
                Err(_) => _ = self.denied.insert(path),
            }
        }
        Ok(())
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
        let (is_root, is_link) = (self.roots.contains(&path), self.links.contains(&path));
        if !(is_whole || is_root || is_link) {
            return false;
        }
        let found = path.symlink_metadata().ok();
        if self.own.has(&path, found.as_ref()) {
            self.touch(&path);
            return false;
        }
        let is_moved = flags.intersects(MOVES);
        self.is_stale |= is_link || is_root && is_moved;
        if flags.contains(ReadFlags::ISDIR) && is_whole {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.remove_tree(&path);
            }
            let lacks = self.lacks(&path);
            if lacks {
                self.touched = None;
            }
            // After an exchange of two names there is another directory at the old name.
            let comes = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO);
            if (lacks || comes) && found.as_ref().is_some_and(Metadata::is_dir) {
                // Watching everything anew finds out the path and the reason.
                self.is_stale |= self.add_tree(&path).is_err();
            }
        }
        if has_others || found.is_some_and(|found| joins_others(&path, &found, is_moved)) {
            self.touched = None;
        }
        self.touch(&path);
        true
    }

    /// Records the directory of an entry.
    fn touch(&mut self, path: &Path) {
        for below in self.roots.iter().filter_map(|root| path.strip_prefix(root).ok()) {
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

/// Returns the links on the way to a path, by paths without links above them.
fn links_on(path: &Path) -> BTreeSet<PathBuf> {
    let reversed = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut at, mut left, mut links) = (std::env::current_dir().unwrap_or_default(), reversed(path), BTreeSet::new());
    while let Some(part) = left.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => _ = at.pop(),
            Some(Component::CurDir) | None => {}
            _ => at.push(part),
        }
        if let Ok(target) = at.read_link() {
            let is_new = links.insert(at.clone());
            if !is_new || links.len() > LINKS_MAX {
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
mod tests {
    use std::fs;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    fn started(path: &Path) -> TreeWatch {
        let path = path.to_owned();
        TreeWatch::start(move || vec![path.clone()]).expect("watched")
    }

    /// Asks for the next change, and waits for it for as long as given.
    fn next_within(watch: &mut TreeWatch, limit: Duration) -> Option<Touched> {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        ours.write_all(b"?").expect("room");
        let (answered, is_answered) = flume::bounded::<()>(1);
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ = is_answered.recv_timeout(limit);
                drop(ours);
            });
            let touched = watch.next(&theirs).expect("watched");
            drop(answered);
            touched
        })
    }

    const SOON: Duration = Duration::from_secs(4);
    const NEVER: Duration = Duration::from_millis(700);

    fn paths(touched: Option<Touched>) -> Vec<String> {
        let some = touched.expect("a change").expect("some directories");
        some.into_iter().map(|path| String::from_utf8(path).expect("ours")).collect()
    }

    /// Returns the number of directories that this process watches, in trees larger than those of other tests.
    fn watched() -> usize {
        let files = fs::read_dir("/proc/self/fdinfo").expect("descriptors").flatten();
        let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
        let counts = texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count());
        counts.filter(|count| *count > 1000).sum()
    }

    /// More directories than the queue has room for events, each of which has one when its watch ends.
    #[test]
    fn a_large_tree_is_watched_anew_in_place_of_the_earlier_watch_and_only_once() {
        let room: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .expect("a number");
        let directories = room.min(20_000) + 1000;
        let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
        for number in 0..directories {
            fs::create_dir(scratch.path().join(number.to_string())).expect("made");
        }
        let mut watch = started(scratch.path());
        watch.watches.is_stale = true;
        fs::write(scratch.path().join("new"), "").expect("written");
        let is_over = AtomicBool::new(false);
        let most = thread::scope(|scope| {
            let most = scope.spawn(|| {
                let mut most = 0;
                while !is_over.load(SeqCst) {
                    most = most.max(watched());
                    thread::sleep(Duration::from_micros(500));
                }
                most.max(watched())
            });
            assert_eq!(next_within(&mut watch, SOON), Some(None));
            is_over.store(true, SeqCst);
            most.join().expect("no panic")
        });
        assert!((directories..directories * 3 / 2).contains(&most), "{most} watches of {directories} directories");
        assert_eq!(next_within(&mut watch, NEVER), None);
        // The tree is watched as before.
        fs::write(scratch.path().join("7/new"), "").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), ["7"]);
    }

    #[test]
    fn what_is_read_has_not_changed() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("a")).expect("made");
        fs::write(scratch.path().join("a/file"), "text").expect("written");
        let mut watch = started(scratch.path());
        let read = || {
            fs::read_dir(scratch.path().join("a")).expect("listed").for_each(drop);
            fs::read(scratch.path().join("a/file")).expect("read");
        };
        read();
        assert_eq!(next_within(&mut watch, NEVER), None);
        assert!(watch.watches.read().expect("no error").is_empty(), "it does not even take room in the queue");
        fs::write(scratch.path().join("a/file"), "other").expect("written");
        read();
        assert_eq!(paths(next_within(&mut watch, SOON)), ["a"]);
    }

    #[test]
    fn a_scan_is_due_however_much_changes_an_hour_after_the_last_one_has_ended() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("a")).expect("made");
        let mut watch = started(scratch.path());
        let change = || fs::write(scratch.path().join("a/file"), "text").expect("written");
        change();
        assert_eq!(paths(next_within(&mut watch, SOON)), ["a"]);
        assert!(watch.scan_at > Instant::now() + SCAN_EVERY / 2, "it begins to count when a change is asked for");
        watch.scan_at = Instant::now() + SETTLED_AFTER / 2;
        change();
        assert_eq!(next_within(&mut watch, SOON), Some(None), "although something has changed");
        assert_eq!(next_within(&mut watch, NEVER), None);
        watch.scan_at = Instant::now();
        assert_eq!(next_within(&mut watch, SOON), Some(None), "although nothing has changed");
    }

    #[test]
    fn every_link_on_the_way_is_watched() {
        use std::os::unix::fs::symlink;
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path().canonicalize().expect("it");
        for directory in ["releases/1/data", "releases/2/data", "links"] {
            fs::create_dir_all(top.join(directory)).expect("made");
        }
        symlink("links/../releases/current", top.join("named")).expect("a link");
        symlink("1", top.join("releases/current")).expect("a link");
        let path = top.join("named/data");
        assert_eq!(links_on(&path), BTreeSet::from([top.join("named"), top.join("releases/current")]));
        symlink("loop", top.join("loop")).expect("a link");
        assert_eq!(links_on(&top.join("loop/x")).len(), 1);
        let mut watch = started(&path);
        symlink("2", top.join("releases/new")).expect("a link");
        assert_eq!(next_within(&mut watch, NEVER), None, "another entry beside the link");
        fs::rename(top.join("releases/new"), top.join("releases/current")).expect("renamed");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        fs::write(top.join("releases/2/data/file"), "").expect("written");
        assert_eq!(next_within(&mut watch, SOON), Some(Some(BTreeSet::new())), "the root itself");
    }

    #[test]
    fn directories_that_come_and_move_are_watched_where_they_are() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path();
        let mut watch = started(top);
        fs::create_dir_all(top.join("a/b/c")).expect("made");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        fs::write(top.join("a/b/c/file"), "").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), ["a", "a/b", "a/b/c"]);
        fs::rename(top.join("a/b"), top.join("moved")).expect("renamed");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        fs::write(top.join("moved/c/file"), "").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), ["moved", "moved/c"]);
        // Two names that are exchanged.
        fs::create_dir_all(top.join("other/sub")).expect("made");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        renameat_with(CWD, top.join("moved"), CWD, top.join("other"), RenameFlags::EXCHANGE).expect("exchanged");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        for directory in ["moved/sub", "other/c"] {
            fs::write(top.join(directory).join("file"), "of it").expect("written");
            assert_eq!(paths(next_within(&mut watch, SOON))[1], directory);
        }
        fs::remove_dir_all(top.join("moved")).expect("removed");
        fs::rename(top.join("other"), top.join("moved")).expect("renamed");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        // Moved before the directory above its new place is watched.
        fs::create_dir(top.join("new")).expect("made");
        fs::rename(top.join("moved"), top.join("new/moved")).expect("renamed");
        assert_eq!(next_within(&mut watch, SOON), Some(None));
        fs::write(top.join("new/moved/c/file"), "more").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), ["new", "new/moved", "new/moved/c"]);
        assert_eq!(watch.watches.numbers.len(), 5, "{:?}", watch.watches.numbers);
        fs::remove_dir_all(top.join("new")).expect("removed");
        assert!(next_within(&mut watch, SOON).is_some());
        assert_eq!((watch.watches.numbers.len(), watch.watches.directories.len()), (2, 2));
    }

    /// A listing of a directory above may find a directory before the events that tell of its move.
    #[test]
    fn a_directory_that_is_found_before_its_move_is_told_stays_watched() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path();
        fs::create_dir_all(top.join("old/x")).expect("made");
        let mut watch = started(top);
        fs::create_dir(top.join("new")).expect("made");
        fs::rename(top.join("old/x"), top.join("new/x")).expect("renamed");
        watch.watches.add_tree(top).expect("watched");
        assert!(next_within(&mut watch, SOON).is_some());
        fs::write(top.join("new/x/file"), "").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), ["new", "new/x"]);
    }

    /// The C library checks a path with a slash at its end by faccessat2, which older filters of system calls refuse.
    #[test]
    fn a_path_with_a_slash_is_watched_without_faccessat2() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("");
        let started = || TreeWatch::start(move || vec![path.clone()]).map(|_| ()).map_err(|error| error.path);
        assert_eq!(crate::fs::close::tests::where_calls_fail(&[libc::SYS_faccessat2], libc::EPERM, started), Ok(()));
    }

    #[test]
    fn directories_may_go_while_a_watch_begins() {
        let scratch = tempfile::tempdir().expect("a directory");
        let is_over = AtomicBool::new(false);
        let start = |path: PathBuf| TreeWatch::start(move || vec![path.clone()]).err();
        thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let path = scratch.path().join(name);
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)).expect("made and removed");
                    }
                });
            }
            let failed: Vec<_> = (0..300).filter_map(|_| start(scratch.path().to_owned())).collect();
            is_over.store(true, SeqCst);
            assert!(failed.is_empty(), "{failed:?}");
        });
        let missing = start(scratch.path().join("missing")).expect("there is none");
        assert_eq!((missing.path, missing.reason), (scratch.path().join("missing"), WatchReason::System(Errno::NOENT)));
    }
}
