//! `rdcp --watch`: the same copy again whenever something has changed at the source.
//!
//! The watch stands before the first scan, so that no change falls between the two. An event says only which directories to
//! look into: `--sync` finds out what has changed there. Where events may have been lost all of the tree is looked at.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use flume::{Receiver, Sender};
use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Config, ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::fault::{Exit, Failure, escaped, printable};
use crate::fs::directory_of;
use crate::job::plan::Spec;
use crate::tree::Only;

/// A copy begins when nothing has changed for so long,
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// or so long after the first change.
const GATHERED_MAX: Duration = Duration::from_secs(2);

/// A copy without any change, for what no event told: on network file systems other hosts change things.
const SCAN_EVERY: Duration = Duration::from_secs(3600);

/// Pauses before a host that was lost is tried again, in seconds; the last for good.
const PAUSES: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// More directories than these are not told one by one: all of the tree is looked at. They travel in one message.
const TOUCHED_MAX: usize = 500;
const TOUCHED_BYTES_MAX: usize = 32 << 10;

/// What ends a wait.
enum Woken {
    Changed,
    Signal(i32),
}

/// What the watcher, the signals and the loop share.
struct Shared {
    woken: Sender<Woken>,
    /// A change is in the queue that has not been taken out: one is enough.
    is_told: AtomicBool,
    /// What is watched is not what has the name by now, or not all of it is watched.
    is_stale: AtomicBool,
    touched: Mutex<Touched>,
    /// No copy is running, which would take signals itself.
    is_waiting: AtomicBool,
}

/// The directories in which something has changed, by their paths from the source on; `None` for all there are.
struct Touched(Option<BTreeSet<Vec<u8>>>);

impl Touched {
    /// Something in the directory that `path` lies in has changed.
    fn add(&mut self, path: &Path) {
        let Some(touched) = &mut self.0 else { return };
        // Those above as well: they are walked through.
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            touched.insert(above.as_os_str().as_bytes().to_vec());
        }
        if touched.len() > TOUCHED_MAX || touched.iter().map(Vec::len).sum::<usize>() > TOUCHED_BYTES_MAX {
            self.0 = None;
        }
    }
}

/// Copies, and goes on copying until a signal or a failure that no later copy would mend. `copy` makes one copy, of all
/// or of the entries of some directories, and takes signals while it does; `say` has lines for a person; the files that are
/// `written` with each copy must not be in what is watched.
///
/// # Errors
///
/// Exit 1 where a source is not on this host; exit 5 where it cannot be watched; how the last copy failed; the signal.
pub(super) fn run(
    sources: &[Spec],
    written: &[PathBuf],
    say: impl Fn(&str),
    mut copy: impl FnMut(Option<Only>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let paths = sources.iter().map(local).collect::<Result<Vec<_>, _>>()?;
    let (woken, queue) = flume::unbounded();
    let no = AtomicBool::default;
    let touched = Mutex::new(Touched(None));
    let shared = Arc::new(Shared { woken, is_told: no(), is_stale: no(), touched, is_waiting: no() });
    take_signals(&shared)?;
    let mut watcher = watch(&paths, &shared)?;
    for file in written {
        let directory = directory_of(file).canonicalize().unwrap_or_default();
        if paths.iter().any(|path| path.canonicalize().is_ok_and(|path| path.is_dir() && directory.starts_with(path))) {
            let line = format!("--watch: {} is in SRC; each copy would begin the next", escaped(file.as_os_str()));
            return Err(Failure::new(Exit::Usage, line));
        }
    }
    let (mut has_copied, mut lost) = (false, 0);
    loop {
        let mut touched = shared.touched().0.replace(BTreeSet::new());
        if shared.is_stale.swap(false, SeqCst) {
            touched = None;
            // What changes between the two is found by the copy, which comes after.
            drop(std::mem::replace(&mut watcher, watch(&paths, &shared)?));
        }
        // Several sources have paths of their own.
        let touched = touched.filter(|_| paths.len() == 1 && paths[0].is_dir());
        let pause = match copy(touched.map(entries_of)) {
            Err(failure) if matches!(failure.exit, Exit::Connect | Exit::LinkLost) && has_copied => {
                shared.touched().0 = None;
                let pause = Duration::from_secs(PAUSES[lost.min(PAUSES.len() - 1)]);
                lost += 1;
                super::complain("rdcp", &failure.message.unwrap_or_default());
                say(&format!("trying again in {} s", pause.as_secs()));
                Some(pause)
            }
            // What failed is named, and is tried again with the next change.
            Err(Failure { exit: Exit::Partial, message, .. }) => {
                shared.touched().0 = None;
                super::complain("rdcp", &message.unwrap_or_default());
                None
            }
            done => {
                done?;
                None
            }
        };
        if pause.is_none() {
            (has_copied, lost) = (true, 0);
            say("waiting for changes; ^C ends it");
        }
        shared.is_waiting.store(true, SeqCst);
        let waited = wait(&queue, &shared, pause);
        shared.is_waiting.store(false, SeqCst);
        if !waited? {
            shared.touched().0 = None;
            shared.is_stale.store(true, SeqCst);
        }
    }
}

/// The entries of these directories, and of the source itself.
fn entries_of(directories: BTreeSet<Vec<u8>>) -> Only {
    let paths = [Vec::new()].into_iter().chain(directories);
    Only { paths: paths.map(|path| [&path[..], b"/"].concat().into()).collect(), recursive: false }
}

/// The path of a source on this host.
fn local(source: &Spec) -> Result<PathBuf, Failure> {
    let usage = |line: String| Err(Failure::new(Exit::Usage, line));
    match source {
        Spec::Here(path) => Ok(path.into()),
        Spec::There(host, _) => {
            usage(format!("--watch: SRC is on {}; run rdcp there, with DST on this host", escaped(host)))
        }
        Spec::Standard => usage("--watch: SRC is standard input, which does not change".to_owned()),
    }
}

/// Waits until what has changed is at rest, or, for a host that was lost, for `pause`. Whether anything has changed.
fn wait(queue: &Receiver<Woken>, shared: &Shared, pause: Option<Duration>) -> Result<bool, Failure> {
    let signalled = |number: i32| Err(Failure::silent(Exit::Signal(number as u8)));
    let mut until = Instant::now() + pause.unwrap_or(SCAN_EVERY);
    let mut first = None;
    while let Ok(woken) = queue.recv_deadline(until) {
        shared.is_told.store(false, SeqCst);
        match woken {
            Woken::Signal(number) => return signalled(number),
            Woken::Changed if pause.is_some() => {}
            Woken::Changed => {
                let latest = *first.get_or_insert_with(Instant::now) + GATHERED_MAX;
                until = latest.min(Instant::now() + SETTLED_AFTER);
            }
        }
    }
    Ok(first.is_some())
}

impl Shared {
    fn touched(&self) -> MutexGuard<'_, Touched> {
        self.touched.lock().expect("no panics under it")
    }
}

fn take_signals(shared: &Arc<Shared>) -> Result<(), Failure> {
    let signals = Arc::clone(shared);
    let taken = crate::signals::forward(false, move |number| {
        match (number, signals.is_waiting.load(SeqCst)) {
            (libc::SIGTSTP, true) => crate::signals::stop_here(),
            (libc::SIGTSTP, false) => {}
            _ => drop(signals.woken.send(Woken::Signal(number))),
        }
        true
    });
    taken.map_err(|error| Failure::new(Exit::Source, format!("signals: {}", printable(&error.to_string()))))
}

/// Watches all that is below the sources; of one that is no directory, the directory that it is in.
fn watch(paths: &[PathBuf], shared: &Arc<Shared>) -> Result<RecommendedWatcher, Failure> {
    let failed = |path: &Path, error: &notify::Error| {
        let line = match &error.kind {
            ErrorKind::MaxFilesWatch => {
                "it has more directories than may be watched; raise it with `sysctl fs.inotify.max_user_watches=1048576`".to_owned()
            }
            ErrorKind::PathNotFound => "no such file or directory".to_owned(),
            _ => printable(&error.to_string()),
        };
        Failure::new(Exit::Source, format!("{}: cannot be watched: {line}", escaped(path.as_os_str())))
    };
    let found = |path: &PathBuf| path.canonicalize().map_err(|error| failed(path, &notify::Error::io(error)));
    let roots = paths.iter().map(found).collect::<Result<BTreeSet<_>, _>>()?;
    let links: BTreeSet<PathBuf> = paths.iter().map(|path| named(path)).filter(|path| path.is_symlink()).collect();
    let (told, watched, named_links) = (Arc::clone(shared), roots.clone(), links.clone());
    let config = Config::default().with_follow_symlinks(false);
    let handle = move |event: notify::Result<Event>| tell(&told, &watched, &named_links, event);
    let mut watcher = RecommendedWatcher::new(handle, config).map_err(|error| failed(Path::new("SRC"), &error))?;
    // Whatever else their names come to lead to.
    for link in &links {
        watcher.watch(directory_of(link), RecursiveMode::NonRecursive).map_err(|error| failed(link, &error))?;
    }
    for root in &roots {
        let (path, mode) = match root.parent() {
            Some(parent) if !root.is_dir() => (parent, RecursiveMode::NonRecursive),
            _ => (&**root, RecursiveMode::Recursive),
        };
        watcher.watch(path, mode).map_err(|error| failed(root, &error))?;
    }
    Ok(watcher)
}

/// Whether what has changed may have further names elsewhere in the tree, which only a look at all of it brings together:
/// a file with several, and a directory that is new or has moved, with whatever is in it.
fn joins_others(path: &Path, is_new: bool) -> bool {
    path.symlink_metadata().is_ok_and(|stat| if stat.is_dir() { is_new } else { stat.nlink() > 1 })
}

/// The path of a source itself, which may be a link, as events have it.
fn named(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    directory_of(path).canonicalize().unwrap_or_default().join(name)
}

/// Has the loop come to know of an event that may be a change below `roots`, or of the `links` that lead to some of them.
fn tell(shared: &Shared, roots: &BTreeSet<PathBuf>, links: &BTreeSet<PathBuf>, event: notify::Result<Event>) {
    let (is_change, is_stale) = match &event {
        Ok(event) => {
            let is_change = match event.kind {
                EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
                _ => true,
            };
            let is_link = event.paths.iter().any(|path| links.contains(path));
            let is_below = event.paths.iter().any(|path| roots.iter().any(|root| path.starts_with(root)));
            let is_change = is_change && (is_below || is_link) || event.need_rescan();
            let moves = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
            let is_root = event.paths.iter().any(|path| roots.contains(path));
            let is_new = moves || matches!(event.kind, EventKind::Create(_) | EventKind::Any | EventKind::Other);
            for path in event.paths.iter().filter(|_| is_change) {
                if joins_others(path, is_new) {
                    shared.touched().0 = None;
                }
                for below in roots.iter().filter_map(|root| path.strip_prefix(root).ok()) {
                    shared.touched().add(below);
                }
            }
            (is_change, event.need_rescan() || moves && is_root || is_change && is_link)
        }
        // A directory that could not be watched.
        Err(_) => (true, true),
    };
    if is_stale {
        shared.is_stale.store(true, SeqCst);
    }
    if is_change && !shared.is_told.swap(true, SeqCst) {
        let _ = shared.woken.send(Woken::Changed);
    }
}
