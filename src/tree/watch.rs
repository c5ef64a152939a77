//! Changes in trees of this host, as inotify reports them: which directories to look into.
//!
//! An event says only which directory to look into. A comparison finds out what has changed there. If events may have
//! been lost, or if what has changed may have further names elsewhere, the whole tree is compared.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};
use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Config, ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::fs::{canonical, directory_of};

/// Changes are reported when nothing has changed for this long,
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// or this long after the first change.
const GATHERED_MAX: Duration = Duration::from_secs(2);

/// How long after the last change everything is compared, to find changes that no event reports: on network file
/// systems other hosts change things.
const SCAN_EVERY: Duration = Duration::from_secs(3600);

/// How often to check whether the watch is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Maximum number of attempts to watch a tree whose directories come and go meanwhile.
const ATTEMPTS_MAX: usize = 100;

/// Maximum number of directories that are reported one by one, because they travel in one message.
pub const TOUCHED_MAX: usize = 500;

/// Maximum bytes of their paths.
pub const TOUCHED_BYTES_MAX: usize = 32 << 10;

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
#[derive(Debug)]
pub enum WatchReason {
    /// The limit `fs.inotify.max_user_watches` has been reached.
    TooManyDirectories,
    /// The path does not exist.
    Missing,
    /// Error of the system.
    System(io::Error),
    /// Another error, in the library's words.
    Other(String),
}

/// A watch of some paths.
pub struct TreeWatch {
    paths: Vec<PathBuf>,
    shared: Arc<Shared>,
    watches: Watches,
    queue: Receiver<()>,
}

/// What inotify watches. Each directory counts against the user's limit.
struct Watches {
    watcher: RecommendedWatcher,
    /// What was to be watched: roots, with everything below them, and directories of links.
    paths: Vec<PathBuf>,
    /// Directories below the roots that are not watched, because this user may not read them.
    denied: BTreeSet<PathBuf>,
}

/// State that the watcher shares with the thread that waits.
struct Shared {
    woken: Sender<()>,
    /// Whether the queue has a change that has not been taken out. One is enough.
    is_told: AtomicBool,
    /// Whether a watched path has another object by now, or not everything is watched.
    is_stale: AtomicBool,
    touched: Mutex<Touched>,
    /// Directories that have come. The library tries to watch them, and does not say so where it may not read one.
    arrived: Mutex<BTreeSet<PathBuf>>,
}

impl TreeWatch {
    /// Watches everything below these paths. For a path that is not a directory, watches the directory that it is in.
    ///
    /// # Errors
    ///
    /// Fails with the path that cannot be watched.
    pub fn start(paths: Vec<PathBuf>) -> Result<Self, WatchError> {
        let (woken, queue) = flume::unbounded();
        let no = AtomicBool::default;
        let touched = Mutex::new(Some(BTreeSet::new()));
        let shared = Arc::new(Shared { woken, is_told: no(), is_stale: no(), touched, arrived: Mutex::default() });
        let watches = watch(&paths, &shared)?;
        Ok(Self { paths, shared, watches, queue })
    }

    /// Waits until something has changed and has come to rest; `None` once it `is_unwanted`.
    ///
    /// # Errors
    ///
    /// Fails if a watched path has gone, or cannot be watched any more.
    pub fn wait(&mut self, is_unwanted: impl Fn() -> bool) -> Result<Option<Touched>, WatchError> {
        let (began, mut first, mut due) = (Instant::now(), None, None);
        loop {
            let until = due.unwrap_or_else(|| Instant::now() + LOOK_AGAIN);
            match self.queue.recv_deadline(until) {
                Ok(()) => {
                    self.shared.is_told.store(false, SeqCst);
                    let latest = *first.get_or_insert_with(Instant::now) + GATHERED_MAX;
                    due = Some(latest.min(Instant::now() + SETTLED_AFTER));
                }
                Err(RecvTimeoutError::Timeout) if due.is_some() => break,
                Err(_) if is_unwanted() => return Ok(None),
                Err(_) if began.elapsed() >= SCAN_EVERY => {
                    self.shared.is_stale.store(true, SeqCst);
                    break;
                }
                Err(_) => {}
            }
        }
        let mut touched = self.shared.touched().replace(BTreeSet::new());
        let arrived = std::mem::take(&mut *self.shared.arrived());
        let mut is_stale = self.shared.is_stale.swap(false, SeqCst);
        if !is_stale {
            match self.watches.complete(&arrived) {
                Ok(false) => {}
                // No event has reported what changed there before.
                Ok(true) => touched = None,
                // Watching everything anew finds out the path and the reason.
                Err(_) => is_stale = true,
            }
        }
        if is_stale {
            touched = None;
            // There may be room for only one watch of a large tree. The comparison that follows finds changes made in
            // between.
            self.watches.end();
            self.watches = watch(&self.paths, &self.shared)?;
        }
        // Paths below several roots would not say which root they belong to.
        Ok(Some(touched.filter(|_| self.paths.len() == 1 && self.paths[0].is_dir())))
    }
}

impl Watches {
    fn add(&mut self, path: &Path, mode: RecursiveMode) -> notify::Result<()> {
        let mut attempts = 0;
        loop {
            let added = self.watcher.watch(path, mode);
            let is_missing = |error: &notify::Error| match &error.kind {
                ErrorKind::PathNotFound => true,
                ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
                _ => false,
            };
            attempts += 1;
            // A directory below the path went after the library had listed it. The library gives up in this case.
            if attempts == ATTEMPTS_MAX || !added.as_ref().is_err_and(is_missing) || !path.exists() {
                return match added {
                    Err(error) if is_denied(&error) && !error.paths.iter().any(|denied| denied == path) => {
                        self.add_each(path)
                    }
                    added => added,
                };
            }
        }
    }

    /// Adds what is below a directory that is watched itself, except for directories that this user may not read: the
    /// library gives up at the first of these.
    fn add_each(&mut self, path: &Path) -> notify::Result<()> {
        for entry in path.read_dir().map_err(notify::Error::io)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add_readable(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Adds a directory below a root, if it is still there. What this user may not read is remembered instead; it
    /// cannot be copied either, which the copy reports.
    fn add_readable(&mut self, path: &Path) -> notify::Result<()> {
        let added = match path.symlink_metadata() {
            Ok(stat) if stat.is_dir() => self.add(path, RecursiveMode::Recursive),
            // Another entry has taken its place.
            Ok(_) => Ok(()),
            Err(error) => Err(notify::Error::io(error)),
        };
        match added {
            Err(error) if is_denied(&error) => {
                self.denied.insert(path.to_owned());
                Ok(())
            }
            Err(_) if !path.exists() => Ok(()),
            added => added,
        }
    }

    /// Adds the directories that have `arrived`, and tries again those that could not be read: a change of a mode is an
    /// event like any other. Returns whether some of the latter can be read now, or are gone.
    fn complete(&mut self, arrived: &BTreeSet<PathBuf>) -> notify::Result<bool> {
        let denied = std::mem::take(&mut self.denied);
        for path in arrived.iter().chain(&denied) {
            self.add_readable(path)?;
        }
        Ok(!denied.is_subset(&self.denied))
    }

    /// Ends all watches before returning. Dropping the watcher would end them some time later.
    fn end(&mut self) {
        for path in std::mem::take(&mut self.paths) {
            // The path may have gone, and its watch with it.
            let _ = self.watcher.unwatch(&path);
        }
    }
}

fn is_denied(error: &notify::Error) -> bool {
    matches!(&error.kind, ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied)
}

impl Shared {
    fn touched(&self) -> MutexGuard<'_, Touched> {
        self.touched.lock().expect("no panics under it")
    }

    fn arrived(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.arrived.lock().expect("no panics under it")
    }

    /// Records that a directory has come, unless it is added with one above it.
    fn add_arrived(&self, path: &Path) {
        let mut arrived = self.arrived();
        if path.ancestors().any(|above| arrived.contains(above)) {
            return;
        }
        arrived.insert(path.to_owned());
        if arrived.len() > TOUCHED_MAX {
            arrived.clear();
            self.is_stale.store(true, SeqCst);
        }
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

fn watch(paths: &[PathBuf], shared: &Arc<Shared>) -> Result<Watches, WatchError> {
    let failed = |path: &Path, error: notify::Error| {
        let path = error.paths.first().map_or(path, PathBuf::as_path).to_owned();
        let reason = match error.kind {
            ErrorKind::MaxFilesWatch => WatchReason::TooManyDirectories,
            ErrorKind::PathNotFound => WatchReason::Missing,
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound => WatchReason::Missing,
            ErrorKind::Io(error) => WatchReason::System(error),
            kind => WatchReason::Other(notify::Error::new(kind).to_string()),
        };
        WatchError { path, reason }
    };
    let found = |path: &PathBuf| canonical(path).map_err(|error| failed(path, notify::Error::io(error)));
    let roots = paths.iter().map(found).collect::<Result<BTreeSet<_>, _>>()?;
    let links: BTreeSet<PathBuf> = paths.iter().map(|path| named(path)).filter(|path| path.is_symlink()).collect();
    let (told, watched, named_links) = (Arc::clone(shared), roots.clone(), links.clone());
    let config = Config::default().with_follow_symlinks(false);
    let handle = move |event: notify::Result<Event>| tell(&told, &watched, &named_links, event);
    let watcher = RecommendedWatcher::new(handle, config);
    let watcher = watcher.map_err(|error| failed(paths.first().map_or(Path::new("."), PathBuf::as_path), error))?;
    let mut watches = Watches { watcher, paths: Vec::new(), denied: BTreeSet::new() };
    // The directories of links, to notice when a link comes to lead elsewhere.
    let of_links = links.iter().map(|link| (link, directory_of(link), RecursiveMode::NonRecursive));
    let of_roots = roots.iter().map(|root| match root.parent() {
        Some(parent) if !root.is_dir() => (root, parent, RecursiveMode::NonRecursive),
        _ => (root, &**root, RecursiveMode::Recursive),
    });
    for (named, path, mode) in of_links.chain(of_roots) {
        watches.add(path, mode).map_err(|error| failed(named, error))?;
        watches.paths.push(path.to_owned());
    }
    Ok(watches)
}

/// Whether what has changed may have further names elsewhere in the tree, so that the whole tree has to be compared.
/// This holds for a file with several names. It also holds for a new or moved directory with whatever is in it, even if
/// reached by a link, which an option may have followed.
fn joins_others(path: &Path, is_new: bool) -> bool {
    path.symlink_metadata().is_ok_and(|stat| {
        let leads_to_directory = || stat.is_dir() || stat.is_symlink() && path.is_dir();
        !stat.is_dir() && stat.nlink() > 1 || is_new && leads_to_directory()
    })
}

/// Returns the path of an entry itself, which may be a link, in the form that events have.
fn named(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    directory_of(path).canonicalize().unwrap_or_default().join(name)
}

/// Records an event that may be a change below `roots`, or of the `links` that lead to some of them.
fn tell(shared: &Shared, roots: &BTreeSet<PathBuf>, links: &BTreeSet<PathBuf>, event: notify::Result<Event>) {
    let (is_change, is_stale) = match &event {
        Ok(event) => {
            let is_change = match event.kind {
                EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
                _ => true,
            };
            let is_link = event.paths.iter().any(|path| links.contains(path));
            let is_inside = |path: &Path| roots.iter().any(|root| path.starts_with(root));
            let is_below = event.paths.iter().any(|path| is_inside(path));
            let is_change = is_change && (is_below || is_link) || event.need_rescan();
            let moves = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
            let is_root = event.paths.iter().any(|path| roots.contains(path));
            let is_new = moves || matches!(event.kind, EventKind::Create(_) | EventKind::Any | EventKind::Other);
            let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|stat| stat.is_dir());
            for path in event.paths.iter().filter(|_| is_change) {
                // Before all is marked as touched: the comparison that this leads to must find the directory watched.
                if is_new && is_inside(path) && is_directory(path) {
                    shared.add_arrived(path);
                }
                if joins_others(path, is_new) {
                    *shared.touched() = None;
                }
                for below in roots.iter().filter_map(|root| path.strip_prefix(root).ok()) {
                    add(&mut shared.touched(), below);
                }
            }
            (is_change, event.need_rescan() || moves && is_root || is_change && is_link)
        }
        // A directory could not be watched.
        Err(_) => (true, true),
    };
    if is_stale {
        shared.is_stale.store(true, SeqCst);
    }
    if is_change && !shared.is_told.swap(true, SeqCst) {
        let _ = shared.woken.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    /// Returns the number of directories that this process watches, in trees larger than those of other tests.
    fn watched() -> usize {
        let files = fs::read_dir("/proc/self/fdinfo").expect("descriptors").flatten();
        let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
        let counts = texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count());
        counts.filter(|count| *count > 50).sum()
    }

    #[test]
    fn a_tree_is_not_watched_twice_where_it_is_watched_anew() {
        const DIRECTORIES: usize = 1500;
        let scratch = tempfile::tempdir().expect("a directory");
        for number in 0..DIRECTORIES {
            fs::create_dir(scratch.path().join(number.to_string())).expect("made");
        }
        let mut watch = TreeWatch::start(vec![scratch.path().to_owned()]).expect("watched");
        watch.shared.is_stale.store(true, SeqCst);
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
            assert_eq!(watch.wait(|| false).expect("watched"), Some(None));
            is_over.store(true, SeqCst);
            most.join().expect("no panic")
        });
        assert!((DIRECTORIES..DIRECTORIES * 3 / 2).contains(&most), "{most} watches of {DIRECTORIES} directories");
        // The tree is watched as before.
        fs::write(scratch.path().join("7/new"), "").expect("written");
        let touched = watch.wait(|| false).expect("watched").flatten().expect("some directories");
        assert!(touched.contains(&b"7"[..]), "{touched:?}");
    }

    /// The C library checks a path with a slash at its end by faccessat2, which older filters of system calls refuse.
    #[test]
    fn a_path_with_a_slash_is_watched_without_faccessat2() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("");
        let started = || TreeWatch::start(vec![path]).map(|_| ()).map_err(|error| error.path);
        assert_eq!(crate::fs::close::tests::where_calls_fail(&[libc::SYS_faccessat2], libc::EPERM, started), Ok(()));
    }

    #[test]
    fn directories_may_go_while_a_watch_begins() {
        let scratch = tempfile::tempdir().expect("a directory");
        let is_over = AtomicBool::new(false);
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
            let failed: Vec<_> =
                (0..300).filter_map(|_| TreeWatch::start(vec![scratch.path().to_owned()]).err()).collect();
            is_over.store(true, SeqCst);
            assert!(failed.is_empty(), "{failed:?}");
        });
        let missing = TreeWatch::start(vec![scratch.path().join("missing")]).err().expect("there is none");
        assert_eq!(missing.path, scratch.path().join("missing"));
    }
}
