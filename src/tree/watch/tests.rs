use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;
use crate::fs::close::tests::where_calls_fail;
use crate::not_run::not_run;

/// Watches the contents of one directory.
fn started_with(options: WatchOptions, path: &Path) -> Result<TreeWatch, WatchError> {
    let path = path.to_owned();
    TreeWatch::start(move || vec![WatchedPath { path: path.clone(), names: vec![PathBuf::new()] }], options)
}

fn started(path: &Path) -> TreeWatch {
    started_with(WatchOptions::default(), path).expect("watched")
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

/// Tells threads that the test is over, even if it ends by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Returns the number of directories that this process watches, in trees larger than those of other tests.
fn watched() -> usize {
    let files = fs::read_dir("/proc/self/fdinfo").expect("descriptors").flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let counts = texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count());
    counts.filter(|count| *count > 1000).sum()
}

/// Returns how many events a queue has room for.
fn room() -> usize {
    let text = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a setting");
    text.trim().parse().expect("a number")
}

/// Where changes were lost may be anywhere.
#[test]
fn a_queue_that_has_overflowed_leads_to_a_comparison_of_everything() {
    if room() > 100_000 {
        return not_run("there is room for more events than this test makes");
    }
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let files = ["a", "b"].map(|name| fs::File::create(scratch.path().join(name)).expect("a file"));
    let mut watch = started(scratch.path());
    // Events of one file that follow each other would be one event.
    for number in 0..room() + 10 {
        files[number % 2].set_modified(std::time::SystemTime::now()).expect("ours");
    }
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    fs::create_dir(scratch.path().join("later")).expect("made");
    assert!(next_within(&mut watch, SOON).is_some(), "it is watched as before");
}

/// More directories than the queue has room for events, each of which has one when its watch ends.
#[test]
fn a_large_tree_is_watched_anew_in_place_of_the_earlier_watch_and_only_once() {
    let directories = room().min(20_000) + 1000;
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for number in 0..directories {
        fs::create_dir(scratch.path().join(number.to_string())).expect("made");
    }
    let mut watch = started(scratch.path());
    watch.watches.is_stale = true;
    fs::write(scratch.path().join("new"), "").expect("written");
    let is_over = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let over = Over(&is_over);
        let most = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(SeqCst) {
                most = most.max(watched());
                thread::sleep(Duration::from_micros(500));
            }
            most.max(watched())
        });
        // To watch so many directories takes long on a busy machine.
        assert_eq!(next_within(&mut watch, Duration::from_secs(60)), Some(None));
        drop(over);
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
    // A link may be on the way twice.
    fs::create_dir_all(top.join("disk/releases/v7")).expect("made");
    symlink("disk", top.join("mounted")).expect("a link");
    symlink(top.join("mounted/releases/current"), top.join("disk/app")).expect("a link");
    symlink("v7", top.join("disk/releases/current")).expect("a link");
    let twice = ["mounted", "disk/app", "disk/releases/current"].map(|link| top.join(link));
    assert_eq!(links_on(&top.join("mounted/app")), BTreeSet::from(twice));
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
    let above = watch.watches.numbers.len() - 1;
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
    assert_eq!(watch.watches.numbers.len(), above + 5, "{:?}", watch.watches.numbers);
    fs::remove_dir_all(top.join("new")).expect("removed");
    assert!(next_within(&mut watch, SOON).is_some());
    assert_eq!((watch.watches.numbers.len(), watch.watches.directories.len()), (above + 2, above + 2));
}

#[test]
fn directories_that_are_exchanged_have_one_path_each() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path();
    for directory in ["a", "b"] {
        fs::create_dir(top.join(directory)).expect("made");
    }
    let mut watch = started(top);
    renameat_with(CWD, top.join("a"), CWD, top.join("b"), RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    for directory in ["a", "b"] {
        fs::write(top.join(directory).join("file"), "of it").expect("written");
        assert_eq!(paths(next_within(&mut watch, SOON)), [directory]);
    }
}

#[test]
fn directories_on_the_way_may_be_replaced() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path();
    for directory in ["app/sub/data", "new/sub/data"] {
        fs::create_dir_all(top.join(directory)).expect("made");
    }
    let mut watch = started(&top.join("app/sub/data"));
    fs::create_dir(top.join("app/beside")).expect("made");
    fs::set_permissions(top.join("app"), fs::Permissions::from_mode(0o700)).expect("ours");
    assert_eq!(next_within(&mut watch, NEVER), None, "the root is where it was");
    fs::rename(top.join("app"), top.join("old")).expect("renamed");
    fs::rename(top.join("new"), top.join("app")).expect("renamed");
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    fs::write(top.join("app/sub/data/file"), "").expect("written");
    assert_eq!(next_within(&mut watch, SOON), Some(Some(BTreeSet::new())), "the root itself");
}

/// The kernel tells that a directory has gone only once no process uses it.
#[test]
fn a_root_that_is_made_anew_while_a_process_uses_the_old_one_is_noticed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let root = scratch.path().join("root");
    fs::create_dir(&root).expect("made");
    fs::write(root.join("file"), "").expect("written");
    let mut watch = started(&root);
    let used = File::open(&root).expect("a directory");
    fs::remove_dir_all(&root).expect("removed");
    fs::create_dir(&root).expect("made");
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    fs::write(root.join("file"), "").expect("written");
    assert_eq!(next_within(&mut watch, SOON), Some(Some(BTreeSet::new())), "the root itself");
    drop(used);
}

#[test]
fn what_patterns_leave_out_is_not_watched() {
    use crate::options::Rule;
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path().canonicalize().expect("it");
    for directory in ["modules/a", "src", "build/here"] {
        fs::create_dir_all(top.join(directory)).expect("made");
    }
    let rules = [("*.keep.log", true), ("*.log", false), ("modules/", false), ("/build", false)]
        .map(|(pattern, is_include)| Rule { pattern: pattern.as_bytes().to_vec().into(), is_include });
    let options = || WatchOptions { patterns: Patterns::new(&rules).expect("patterns"), ..WatchOptions::default() };
    let mut watch = started_with(options(), &top).expect("watched");
    let is_watched = |watch: &TreeWatch, path: &str| watch.watches.numbers.contains_key(&*top.join(path));
    assert!(is_watched(&watch, "src"));
    for path in ["modules", "modules/a", "build", "build/here"] {
        assert!(!is_watched(&watch, path), "{path}");
    }
    // Events are in the queue before the call returns that has caused them.
    let has_changed = |watch: &mut TreeWatch| watch.watches.drain().expect("events");
    fs::write(top.join("modules/a/file"), "").expect("written");
    fs::write(top.join("src/a.log"), "").expect("written");
    fs::create_dir_all(top.join("src/modules/new")).expect("made");
    assert!(!has_changed(&mut watch));
    for file in ["src/a.keep.log", "src/modules.c", "src/build"] {
        fs::write(top.join(file), "").expect("written");
        assert!(has_changed(&mut watch), "{file}");
    }
    // A name that is not left out.
    fs::rename(top.join("src/modules"), top.join("src/mine")).expect("renamed");
    assert!(has_changed(&mut watch) && is_watched(&watch, "src/mine/new"));
    fs::rename(top.join("src/mine"), top.join("src/modules")).expect("renamed");
    assert!(has_changed(&mut watch) && !is_watched(&watch, "src/mine/new") && !is_watched(&watch, "src/modules/new"));
    // Another name of the file may be one that is not left out.
    fs::hard_link(top.join("src/a.log"), top.join("src/a")).expect("a link");
    assert!(has_changed(&mut watch));
    fs::write(top.join("src/a.log"), "more").expect("written");
    assert!(has_changed(&mut watch));
    // Whether the name of the directory belongs to the paths is not known.
    let path = top.clone();
    let find = move || vec![WatchedPath { path: path.clone(), names: vec![PathBuf::new(), "top".into()] }];
    let watch = TreeWatch::start(find, options()).expect("watched");
    assert!(is_watched(&watch, "build/here") && !is_watched(&watch, "modules"));
}

#[test]
fn a_digest_cache_that_is_named_is_no_change() {
    let scratch = tempfile::tempdir().expect("a directory");
    let cache = scratch.path().join("cache");
    let options = WatchOptions { digest_cache: Some(cache.clone()), ..WatchOptions::default() };
    let mut watch = started_with(options, scratch.path()).expect("watched");
    fs::write(&cache, "a record").expect("written");
    assert!(!watch.watches.drain().expect("events"));
    fs::write(scratch.path().join("other"), "").expect("written");
    assert!(watch.watches.drain().expect("events"));
}

#[test]
fn of_what_is_listed_so_much_is_watched_that_nothing_is_missed() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(scratch.path().join("a/b")).expect("made");
    fs::write(scratch.path().join("a/file"), "").expect("written");
    std::os::unix::fs::symlink("b", scratch.path().join("a/link")).expect("a link");
    for (listed, watched) in [
        ("a//./b/", "a/b"),
        ("/a", "a"),
        ("a/file", "a/file"),
        ("a/link/x", "a"),
        ("a/b/gone/x", "a/b"),
        ("gone", ""),
        (".", ""),
    ] {
        assert_eq!(watched_below(scratch.path(), listed.as_bytes()), Path::new(watched), "{listed}");
    }
}

#[test]
fn another_root_is_noticed_unless_less_is_mounted() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path().canonicalize().expect("it");
    let [root, old, other] = ["root", "old", "other"].map(|name| top.join(name));
    for directory in [&root, &other] {
        fs::create_dir(directory).expect("made");
    }
    let mut watch = started(&root);
    let points = [PathBuf::from("/")];
    watch.watches.roots.values_mut().for_each(|state| state.mounts = 1);
    assert!(!watch.watches.has_other_root(&points));
    fs::rename(&root, &old).expect("renamed");
    assert!(!watch.watches.has_other_root(&points), "there is none");
    // As if the root had been found again by another path, where it is mounted too.
    watch.watches.add(&old, OF_ALL, true).expect("watched");
    fs::rename(&other, &root).expect("renamed");
    assert!(watch.watches.has_other_root(&points));
    assert!(!watch.watches.has_other_root(&[]), "what is seen where nothing is mounted any more");
    // The same file system may be mounted again.
    fs::rename(&root, &other).expect("renamed");
    fs::rename(&old, &root).expect("renamed");
    assert!(!watch.watches.has_other_root(&points));
    let number = watch.watches.roots[&root].number;
    watch.watches.forget(number);
    assert!(watch.watches.has_other_root(&points));
}

/// Else `--delete` would empty the destination.
#[test]
fn a_root_that_waits_for_its_file_system_is_not_compared() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut watch = started(scratch.path());
    // As if this were what is seen after the file system is unmounted.
    for state in watch.watches.roots.values_mut() {
        state.mounts += 1;
        state.place.1 += 1;
    }
    watch.watches.is_stale = true;
    fs::write(scratch.path().join("new"), "").expect("written");
    assert_eq!(next_within(&mut watch, NEVER), None);
    assert!(watch.watches.is_stale, "it is compared later");
    watch.watches.roots.values_mut().for_each(|state| state.mounts -= 1);
    watch.note_change();
    assert_eq!(next_within(&mut watch, SOON), Some(None));
}

#[test]
fn mounts_are_counted_at_a_path_and_above_it() {
    let mounts = b"22 1 0:21 / / rw - ext4 /dev/a rw\n\
        30 22 8:1 / /srv/a\\040b rw - ext4 /dev/b rw\n\
        31 22 8:2 / /srv/a rw - ext4 /dev/c rw\n";
    for (path, count) in [("/srv/a b/c", 2), ("/srv/a b", 2), ("/srv/a", 2), ("/srv/a bc", 1), ("/", 1)] {
        assert_eq!(mounts_on(&points_in(mounts), Path::new(path)), count, "{path}");
    }
}

#[test]
fn other_file_systems_are_left_out_on_request() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path().canonicalize().expect("it");
    fs::create_dir_all(top.join("a/b")).expect("made");
    let options = WatchOptions { is_one_system: true, ..WatchOptions::default() };
    let mut watch = started_with(options, &top).expect("watched");
    assert!(watch.watches.numbers.contains_key(top.join("a/b").as_path()), "the file system of the root");
    // As if the root were on another one.
    for state in watch.watches.roots.values_mut() {
        state.place.0 += 1;
    }
    watch.watches.remove_tree(&top.join("a"));
    watch.watches.add_tree(&top).expect("watched");
    let watched = |path: &Path| watch.watches.numbers.contains_key(path);
    assert!(watched(&top) && !watched(&top.join("a")) && !watched(&top.join("a/b")));
}

#[test]
fn what_is_written_to_a_deleted_file_is_no_change() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut file = File::create(scratch.path().join("log")).expect("made");
    let mut watch = started(scratch.path());
    fs::remove_file(scratch.path().join("log")).expect("removed");
    assert_eq!(next_within(&mut watch, SOON), Some(Some(BTreeSet::new())), "the root itself");
    file.write_all(b"more").expect("written");
    drop(file);
    assert_eq!(next_within(&mut watch, NEVER), None);
}

#[test]
fn a_directory_that_is_made_in_a_closed_one_is_watched_once_that_is_open() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = &scratch.path().canonicalize().expect("it");
    fs::create_dir(top.join("d")).expect("made");
    let mut watch = started(top);
    for directory in ["d/new", "d/other"] {
        fs::create_dir(top.join(directory)).expect("made");
    }
    let calls = [libc::SYS_statx, libc::SYS_newfstatat];
    where_calls_fail(&calls, libc::EACCES, || watch.watches.drain()).expect("events");
    assert_eq!(watch.watches.denied, BTreeSet::from([top.join("d")]), "however many are made there");
    fs::set_permissions(top.join("d"), fs::Permissions::from_mode(0o750)).expect("ours");
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    assert!(watch.watches.denied.is_empty(), "{:?}", watch.watches.denied);
    fs::write(top.join("d/new/file"), "").expect("written");
    assert_eq!(paths(next_within(&mut watch, SOON)), ["d", "d/new"]);
}

#[test]
fn a_directory_that_cannot_be_watched_for_a_while_is_tried_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let top = scratch.path();
    let mut watch = started(top);
    fs::create_dir(top.join("new")).expect("made");
    assert!(!watch.watches.read().expect("no error").is_empty(), "the event of the new directory");
    for (error, expected) in [
        (libc::ENAMETOOLONG, (0, false)),
        (libc::EACCES, (1, false)),
        (libc::EPERM, (1, false)),
        (libc::EMFILE, (1, true)),
    ] {
        let calls = [libc::SYS_inotify_add_watch];
        where_calls_fail(&calls, error, || watch.watches.add_tree(&top.join("new"))).expect("the root is watched");
        let Watches { denied, retry_at, .. } = &watch.watches;
        assert_eq!((denied.len(), retry_at.is_some()), expected, "{error}");
    }
    assert_eq!(next_within(&mut watch, NEVER), None, "not at once");
    watch.watches.retry_at = Some(Instant::now());
    assert_eq!(next_within(&mut watch, SOON), Some(None));
    assert!(watch.watches.denied.is_empty() && watch.watches.retry_at.is_none());
    fs::write(top.join("new/file"), "").expect("written");
    assert_eq!(paths(next_within(&mut watch, SOON)), ["new"]);
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
    let started = || started_with(WatchOptions::default(), &path).map(|_| ()).map_err(|error| error.path);
    assert_eq!(where_calls_fail(&[libc::SYS_faccessat2], libc::EPERM, started), Ok(()));
}

#[test]
fn directories_may_go_while_a_watch_begins() {
    let scratch = tempfile::tempdir().expect("a directory");
    let is_over = AtomicBool::new(false);
    let start = |path: &Path| started_with(WatchOptions::default(), path).err();
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for name in ["a", "b", "c"] {
            let path = scratch.path().join(name);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)).expect("made and removed");
                }
            });
        }
        let failed: Vec<_> = (0..300).filter_map(|_| start(scratch.path())).collect();
        assert!(failed.is_empty(), "{failed:?}");
    });
    let missing = start(&scratch.path().join("missing")).expect("there is none");
    assert_eq!((missing.path, missing.reason), (scratch.path().join("missing"), WatchReason::System(Errno::NOENT)));
}
