//! Files that are written in place, and interrupted copies of them: a half-written file is marked, and not taken for
//! whole.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::sink::{Destination, Names, Report, TreeSink};
use super::source::{Next, TreeSource};
use super::sync_tests::{self, scratch, sync};
use super::{Root, local};
use crate::fs::close::tests::where_calls_fail;
use crate::fs::direct::Tally;
use crate::fs::{PARTIAL, UNFINISHED, name_beside};
use crate::options::{Rule, Rules, Sizes, TreeOptions, Verify};

const SMALL: usize = 5_000;
const LARGE: usize = 700_000;
const PART_BYTES: usize = 128 << 10;

fn copy(top: &Path, options: &TreeOptions, is_local: bool) -> Report {
    sync_tests::copy(&top.join("from"), &top.join("to"), options, is_local).1
}

/// Returns the paths of a file, of its copy, and of the copy's marker.
fn paths(top: &Path) -> [PathBuf; 3] {
    for name in ["from", "to"] {
        fs::create_dir(top.join(name)).expect("a directory");
    }
    let marker = top.join("to").join(name_beside(b"file", UNFINISHED));
    [top.join("from/file"), top.join("to/file"), marker]
}

/// Returns bytes of which no two blocks are equal.
fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251 + at % 251) as u8).collect()
}

fn set_time(path: &Path, seconds: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).expect("it").set_modified(time).expect("a time");
    time
}

/// All modes in which a copy may accept an existing file, or leave it, without having read it.
fn modes() -> Vec<(&'static str, TreeOptions)> {
    let size_only = Sizes { size_only: true, ..Sizes::default() };
    let in_place = || TreeOptions { in_place: true, ..sync() };
    vec![
        ("in place, by size", TreeOptions { sizes: size_only.clone(), ..in_place() }),
        ("in place, not what is newer", TreeOptions { update: true, ..in_place() }),
        ("in place, times to the hour", TreeOptions { modify_window: 3600, ..in_place() }),
        ("in place, not what is there", TreeOptions { ignore_existing: true, ..in_place() }),
        ("appended", TreeOptions { append_verify: true, ..sync() }),
        ("appended, in place", TreeOptions { append_verify: true, ..in_place() }),
        ("appended, not what is newer", TreeOptions { append_verify: true, update: true, ..sync() }),
        ("by size", TreeOptions { sizes: size_only, ..sync() }),
        ("not what is newer", TreeOptions { update: true, ..sync() }),
        ("times to the hour", TreeOptions { modify_window: 3600, ..sync() }),
        ("not what is there", TreeOptions { ignore_existing: true, ..sync() }),
    ]
}

#[test]
fn what_is_half_written_is_compared_whatever_its_size_and_time_are() {
    for (mode, options) in modes() {
        for (bytes, is_local, more) in [
            (SMALL, true, 0),
            (SMALL, false, 0),
            (LARGE, true, 0),
            (LARGE, false, 0),
            // Longer than it should be.
            (LARGE, false, 70_000),
            (SMALL, true, 10),
        ] {
            if more > 0 && (options.sizes.size_only || options.modify_window > 0) && !options.append_verify {
                continue;
            }
            let what = format!("{mode}, {bytes} and {more} bytes, within a host: {is_local}");
            let scratch = scratch();
            let [from, to, marker] = paths(scratch.path());
            let (wanted, mut half) = (contents(bytes), contents(bytes + more));
            half[bytes / 3..].fill(0);
            fs::write(&from, &wanted).expect("a file");
            fs::write(&to, &half).expect("a file");
            set_time(&from, 1_500_000_000);
            set_time(&to, 1_500_000_001);
            let inode = fs::metadata(&to).expect("it").ino();
            // Without a marker the file stays, which is what these modes are for.
            assert_eq!(copy(scratch.path(), &options, is_local).figures.failed, 0, "{what}");
            let there = fs::read(&to).expect("it");
            assert!(there == half || options.append_verify && !options.update && more == 0, "{what}");
            fs::write(&to, &half).expect("a file");
            set_time(&to, 1_500_000_001);
            File::create(&marker).expect("a marker");
            let dry = copy(scratch.path(), &TreeOptions { dry_run: true, ..options.clone() }, is_local);
            assert!(dry.files == 1 && marker.exists(), "{what}: {dry:?}");
            let report = copy(scratch.path(), &options, is_local);
            assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {report:?}");
            assert!(fs::read(&to).expect("it") == wanted, "{what}");
            assert!(!marker.exists(), "{what}");
            let after = fs::metadata(&to).expect("it");
            assert_eq!(after.mtime(), 1_500_000_000, "{what}");
            let is_in_place = options.in_place || options.append_verify && bytes == LARGE;
            assert_eq!(after.ino() == inode, is_in_place, "{what}");
            let report = copy(scratch.path(), &options, is_local);
            assert_eq!((report.figures.failed, report.files), (0, 0), "{what}: once more: {report:?}");
        }
    }
}

/// The source was written to in the same tick of the clock in which its copy was interrupted, so both have the same
/// time.
#[test]
fn what_is_half_written_may_have_its_time_by_chance() {
    for (bytes, is_local) in [(SMALL, true), (SMALL, false), (LARGE, true), (LARGE, false)] {
        let scratch = scratch();
        let [from, to, marker] = paths(scratch.path());
        fs::write(&from, contents(bytes)).expect("a file");
        File::create(&marker).expect("a marker");
        fs::write(&to, vec![0; bytes]).expect("a file");
        let time = fs::metadata(&to).and_then(|it| it.modified()).expect("a time");
        File::options().write(true).open(&from).and_then(|file| file.set_modified(time)).expect("a time");
        let report = copy(scratch.path(), &sync(), is_local);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{bytes} {is_local}: {report:?}");
        assert!(fs::read(&to).expect("it") == contents(bytes) && !marker.exists(), "{bytes} {is_local}");
    }
}

/// Time and size are those of the source, but the file is marked: the copy was killed at the last moment, or the file
/// was touched since.
#[test]
fn a_marked_file_that_is_the_same_loses_its_marker() {
    for (bytes, is_local) in [(SMALL, true), (SMALL, false), (LARGE, true), (LARGE, false)] {
        for is_same in [true, false] {
            let scratch = scratch();
            let [from, to, marker] = paths(scratch.path());
            let wanted = contents(bytes);
            fs::write(&from, &wanted).expect("a file");
            fs::write(&to, if is_same { wanted.clone() } else { vec![0; bytes] }).expect("a file");
            for path in [&from, &to] {
                set_time(path, 1_500_000_000);
            }
            File::create(&marker).expect("a marker");
            let report = copy(scratch.path(), &TreeOptions { in_place: true, ..sync() }, is_local);
            assert_eq!(
                (report.figures.failed, report.files),
                (0, u64::from(!is_same)),
                "{bytes} {is_local}: {report:?}"
            );
            assert!(fs::read(&to).expect("it") == wanted && !marker.exists(), "{bytes} {is_local}");
        }
    }
}

/// Begins a copy as between two hosts, and stops in the middle of a file's contents.
fn begin(top: &Path, options: &TreeOptions) -> TreeSink {
    let roots = vec![Root::new(top.join("from"), "root")];
    let source = Arc::new(TreeSource::new(roots, PART_BYTES, options.clone(), Arc::default()).expect("a source"));
    let destination =
        Destination { options: options.clone(), names: Names::Only(b"to".to_vec()), ..Destination::default() };
    let mut sink = TreeSink::new(top, destination, local::answer(&source)).expect("a sink");
    let (mut target, mut ranges) = (vec![0; PART_BYTES], 0);
    while ranges < 2 {
        match source.next(&mut target, PART_BYTES, &Tally::default()) {
            Next::Part(part) => {
                sink.push(part.item, part.position, Arc::new(target[..part.length].to_vec())).expect("taken");
                ranges += usize::from(part.item != 0);
            }
            other => panic!("{other:?}"),
        }
    }
    sink
}

/// Waits until a condition holds.
fn soon(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come to be so");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_file_is_marked_for_as_long_as_it_is_written_in_place() {
    // No older file, one that differs from its beginning on, and one that is shorter.
    for old in [None, Some(vec![7; LARGE]), Some(contents(LARGE / 3))] {
        let scratch = scratch();
        let [from, to, marker] = paths(scratch.path());
        let wanted = contents(LARGE);
        fs::write(&from, &wanted).expect("a file");
        set_time(&from, 1_500_000_000);
        if let Some(old) = &old {
            fs::write(&to, old).expect("a file");
            set_time(&to, 1_400_000_000);
        }
        let options = TreeOptions { in_place: true, update: true, ..sync() };
        let sink = begin(scratch.path(), &options);
        let is_written = || {
            let there = fs::read(&to).unwrap_or_default();
            there.len() == LARGE && Some(&there) != old.as_ref() && there.iter().any(|&byte| byte != 0)
        };
        soon(is_written);
        assert!(marker.exists());
        let other = File::open(&marker).expect("it");
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "who writes holds it");
        drop((other, sink));
        assert!(marker.exists(), "it is not whole");
        assert!(fs::read(&to).expect("it") != wanted);
        let report = copy(scratch.path(), &options, false);
        assert_eq!(report.figures.failed, 0, "{report:?}");
        assert!(fs::read(&to).expect("it") == wanted && !marker.exists());
    }
}

#[test]
fn what_is_appended_to_is_as_it_was_if_not_all_comes() {
    for is_like in [true, false] {
        let scratch = scratch();
        let [from, to, marker] = paths(scratch.path());
        let (wanted, mut old) = (contents(LARGE), contents(LARGE / 3));
        if !is_like {
            // In the last block, which is sent as a whole.
            *old.last_mut().expect("one") ^= 1;
        }
        fs::write(&from, &wanted).expect("a file");
        fs::write(&to, &old).expect("a file");
        set_time(&from, 1_500_000_000);
        let time = set_time(&to, 1_400_000_000);
        let options = TreeOptions { append_verify: true, ..sync() };
        let sink = begin(scratch.path(), &options);
        soon(|| {
            fs::read(&to).is_ok_and(|there| there.len() == LARGE && there[LARGE / 3..].iter().any(|&byte| byte != 0))
        });
        assert!(marker.exists());
        drop(sink);
        let there = fs::metadata(&to).expect("it");
        let is_old = fs::read(&to).expect("it") == old && there.modified().expect("a time") == time;
        assert_eq!((is_old, marker.exists()), (is_like, !is_like));
        let report = copy(scratch.path(), &options, false);
        assert_eq!(report.figures.failed, 0, "{report:?}");
        assert!(fs::read(&to).expect("it") == wanted && !marker.exists());
    }
}

#[test]
fn markers_go_with_their_files_and_no_sooner() {
    let exclude = Rules(vec![Rule { pattern: b"kept".to_vec().into(), is_include: false }]);
    let options = TreeOptions { delete: true, rules: exclude, ..sync() };
    for is_local in [true, false] {
        let scratch = scratch();
        let [from, to, _] = paths(scratch.path());
        fs::write(&from, "contents").expect("a file");
        let into = to.parent().expect("one").to_owned();
        let marker = |directory: &Path, name: &str| directory.join(name_beside(name.as_bytes(), UNFINISHED));
        fs::create_dir(into.join("gone")).expect("a directory");
        for (directory, name) in [(into.clone(), "kept"), (into.clone(), "gone file"), (into.join("gone"), "file")] {
            fs::write(directory.join(name), "half").expect("a file");
            File::create(marker(&directory, name)).expect("a marker");
        }
        File::create(marker(&into, "never made")).expect("a marker");
        // The file has become a directory, now or before.
        for name in ["turned", "turned before"] {
            fs::create_dir(from.with_file_name(name)).expect("a directory");
            File::create(marker(&into, name)).expect("a marker");
        }
        fs::write(into.join("turned"), "half").expect("a file");
        fs::create_dir(into.join("turned before")).expect("a directory");
        let held = File::create(marker(&into, "coming")).expect("a marker");
        flock(&held, FlockOperation::LockExclusive).expect("a lock");
        copy(scratch.path(), &TreeOptions { dry_run: true, ..options.clone() }, is_local);
        assert!(marker(&into, "never made").exists());
        let report = copy(scratch.path(), &options, is_local);
        assert_eq!((report.figures.failed, report.figures.deleted), (0, 3), "{report:?}");
        let mut names: Vec<_> = fs::read_dir(&into).expect("it").map(|entry| entry.expect("one").path()).collect();
        names.sort();
        let mut expected = vec![into.join("file"), into.join("kept"), marker(&into, "kept"), marker(&into, "coming")];
        expected.extend(["turned", "turned before"].map(|name| into.join(name)));
        expected.sort();
        assert_eq!(names, expected);
        drop(held);
        // An entry that takes the place of a half-written file is whole.
        fs::write(from.with_file_name("kept"), "all").expect("a file");
        fs::create_dir(from.with_file_name("late")).expect("a directory");
        fs::write(into.join("late"), "half").expect("a file");
        File::create(marker(&into, "late")).expect("a marker");
        let report = copy(scratch.path(), &sync(), is_local);
        assert!(
            report.figures.failed == 0 && !["kept", "late"].iter().any(|name| marker(&into, name).exists()),
            "{report:?}"
        );
    }
}

/// Without locks, nothing tells whether another copy holds a marker that was just made. If it stayed beside a whole
/// file, `-u` would later overwrite what the user writes to that file.
#[test]
fn a_file_that_is_replaced_loses_its_marker_without_locks_too() {
    for error in [libc::ENOSYS, libc::ENOLCK] {
        let scratch = scratch();
        let [from, to, marker] = paths(scratch.path());
        fs::write(&from, contents(SMALL)).expect("a file");
        fs::write(&to, "half").expect("a file");
        File::create(&marker).expect("a marker");
        let report = where_calls_fail(&[libc::SYS_flock], error, || copy(scratch.path(), &sync(), false));
        assert_eq!((report.figures.failed, report.files), (0, 1), "{report:?}");
        assert!(fs::read(&to).expect("it") == contents(SMALL) && !marker.exists());
    }
}

/// A directory that is to be deleted may hold what a killed copy has left. If the directory must stay because a live
/// copy writes to something in it, that is reported.
#[test]
fn a_directory_is_deleted_with_what_a_killed_copy_has_left_in_it() {
    let options = TreeOptions { delete: true, ..sync() };
    for (is_local, is_held) in [(true, false), (false, false), (true, true), (false, true)] {
        let scratch = scratch();
        let [from, to, _] = paths(scratch.path());
        fs::write(&from, "contents").expect("a file");
        let (gone, below) = (to.with_file_name("gone"), to.with_file_name("gone/below"));
        fs::create_dir_all(below.join(name_beside(b"tree", PARTIAL))).expect("directories");
        let partial = below.join(name_beside(b"part", PARTIAL));
        fs::write(&partial, "a part").expect("a file");
        let held = File::open(&partial).expect("it");
        if is_held {
            flock(&held, FlockOperation::LockExclusive).expect("a lock");
        }
        let report = copy(scratch.path(), &options, is_local);
        let deleted = if is_held { 0 } else { 2 };
        assert_eq!((report.figures.failed, report.figures.deleted), (u64::from(is_held), deleted), "{report:?}");
        assert_eq!((gone.exists(), partial.exists()), (is_held, is_held), "{report:?}");
        if is_held {
            let Some(fact) = report.failures.first() else { panic!("{report:?}") };
            assert_eq!(fact.errno, libc::ENOTEMPTY, "{report:?}");
            assert!(fact.path.ends_with(b"to/gone") && !fact.detail.is_empty(), "{report:?}");
        }
        drop(held);
        let report = copy(scratch.path(), &options, is_local);
        assert!(report.figures.failed == 0 && !gone.exists(), "{report:?}");
    }
}

/// After a failed write the page cache may have data that the disk lacks, so it is dropped before the file is compared
/// with itself. Here it cannot be dropped.
#[test]
fn what_is_to_be_stable_in_place_is_compared_as_the_disk_has_it() {
    let disk = Some(Verify::Disk);
    for (fsync, verify, failed) in [(false, None, 0), (true, None, 1), (false, disk, 1)] {
        let scratch = scratch();
        let [from, to, _] = paths(scratch.path());
        let (wanted, mut old) = (contents(LARGE), contents(LARGE));
        old[LARGE / 2] ^= 1;
        fs::write(&from, &wanted).expect("a file");
        fs::write(&to, &old).expect("a file");
        set_time(&from, 1_500_000_000);
        set_time(&to, 1_400_000_000);
        let options = TreeOptions { in_place: true, fsync, verify, ..sync() };
        // An error that does not stop the whole copy.
        let run = || copy(scratch.path(), &options, false);
        let report = where_calls_fail(&[libc::SYS_fadvise64], libc::EPERM, run);
        assert_eq!(report.figures.failed, failed, "{fsync} {verify:?}: {report:?}");
        assert!(fs::read(&to).expect("it") == if failed == 0 { &wanted[..] } else { &old[..] }, "{fsync} {verify:?}");
        let report = run();
        assert_eq!(report.figures.failed, 0, "{fsync} {verify:?}: {report:?}");
        assert!(fs::read(&to).expect("it") == wanted, "{fsync} {verify:?}");
    }
}

/// A tree without a name: everything in it comes from an interrupted copy.
#[test]
fn what_is_half_made_in_a_tree_that_is_resumed_is_compared() {
    let size_only = || Sizes { size_only: true, ..Sizes::default() };
    for options in [
        TreeOptions { update: true, ..sync() },
        TreeOptions { ignore_existing: true, ..sync() },
        TreeOptions { in_place: true, update: true, ..sync() },
        TreeOptions { in_place: true, sizes: size_only(), ..sync() },
        // Copied within the host from another file.
        TreeOptions { sizes: size_only(), ..sync() },
        TreeOptions { append_verify: true, ..sync() },
        TreeOptions { modify_window: 2, ..sync() },
    ] {
        let is_full = options.in_place || !options.update && !options.ignore_existing;
        for bytes in [SMALL, LARGE] {
            let scratch = scratch();
            let top = scratch.path();
            let tree = top.join(name_beside(b"to", PARTIAL));
            fs::create_dir(top.join("from")).expect("a directory");
            fs::create_dir(&tree).expect("a directory");
            fs::set_permissions(&tree, fs::Permissions::from_mode(0o700)).expect("ours");
            let wanted = contents(bytes);
            fs::write(top.join("from/file"), &wanted).expect("a file");
            set_time(&top.join("from/file"), 1_500_000_000);
            let half = File::create(tree.join("file")).expect("a file");
            half.write_all_at(&wanted[..bytes / 3], 0).expect("written");
            if is_full {
                half.set_len(bytes as u64).expect("a length");
                set_time(&tree.join("file"), 1_500_000_001);
            }
            if options.in_place {
                File::create(tree.join(name_beside(b"file", UNFINISHED))).expect("a marker");
            }
            let report = copy(top, &options, false);
            assert_eq!(report.figures.failed, 0, "{options:?}: {report:?}");
            assert!(fs::read(top.join("to/file")).expect("it") == wanted, "{options:?}, {bytes} bytes");
            assert_eq!(fs::read_dir(top.join("to")).expect("it").count(), 1, "{options:?}");
        }
    }
}

/// Nothing of it counts as existing: the tree becomes what a new copy would be.
#[test]
fn what_is_stale_in_a_tree_that_is_resumed_does_not_stay() {
    let sizes = Sizes { max_size: Some(50), ..Sizes::default() };
    for options in [
        TreeOptions { sizes, ..sync() },
        TreeOptions { ignore_existing: true, ..sync() },
        TreeOptions { update: true, ..sync() },
    ] {
        for is_local in [true, false] {
            let scratch = scratch();
            let top = scratch.path();
            let (from, to, tree) = (top.join("from"), top.join("to"), top.join(name_beside(b"to", PARTIAL)));
            for (directory, file, link, bytes) in [(&from, "new data", "new", 60), (&tree, "old", "old", 10)] {
                fs::create_dir(directory).expect("a directory");
                fs::write(directory.join("a1"), file).expect("a file");
                fs::hard_link(directory.join("a1"), directory.join("a2")).expect("a link");
                symlink(link, directory.join("link")).expect("a link");
                fs::write(directory.join("grown"), vec![1; bytes]).expect("a file");
            }
            fs::set_permissions(&tree, fs::Permissions::from_mode(0o700)).expect("ours");
            set_time(&from.join("a1"), 1_500_000_000);
            set_time(&tree.join("a1"), 1_500_000_001);
            let report = copy(top, &options, is_local);
            assert_eq!(report.figures.failed, 0, "{options:?}: {report:?}");
            let inode = |name: &str| fs::metadata(to.join(name)).expect("it").ino();
            assert_eq!(fs::read(to.join("a2")).expect("it"), b"new data", "{options:?}");
            assert_eq!(inode("a1"), inode("a2"), "{options:?}");
            assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("new"), "{options:?}");
            let grown = fs::read(to.join("grown")).map_or(0, |grown| grown.len());
            assert_eq!(grown, if options.sizes.take(60) { 60 } else { 0 }, "{options:?}");
        }
    }
}
