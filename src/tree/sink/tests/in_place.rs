//! Files that are written in place, and entries that cannot be.

use rd_proto::tree::Extensions;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::fs::UNFINISHED;
use crate::tree::metadata::inode;

/// After a crash of the host, a file with the size and time to come would count as the same.
#[test]
fn in_place_a_file_gets_its_time_when_its_data_is_stable() {
    const SIZE: u64 = 1 << 20;
    for (fsync, failed) in [(true, 2), (false, 0)] {
        let scratch = Scratch::new();
        let paths = ["large", "small"].map(|name| scratch.dst().join(name));
        for path in &paths {
            fs::write(path, "old").expect("a file");
        }
        let run = || {
            let mut sink = scratch.sink(TreeOptions { in_place: true, fsync, ..TreeOptions::default() });
            sink.push(0, 0, chunk(&[large(b"large", 1, SIZE), file(b"small", b"new")])).expect("taken");
            sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
            sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
            sink.finish().expect("whole")
        };
        // An error that does not stop the whole copy.
        let report = where_calls_fail(&[libc::SYS_fdatasync], libc::EPERM, run);
        assert_eq!(report.figures.failed, failed, "{report:?}");
        for path in &paths {
            let has_time = fs::metadata(path).expect("there").mtime() == META.modified.seconds;
            assert_eq!(has_time, !fsync, "{}", path.display());
        }
        assert_eq!(run().figures.failed, 0);
        assert!(paths.iter().all(|path| fs::metadata(path).expect("there").mtime() == META.modified.seconds));
    }
}

/// It takes room that what is written in place may need.
#[test]
fn what_a_killed_copy_has_left_goes_before_its_file_is_written_in_place() {
    const SIZE: u64 = 1 << 20;
    for (is_held, is_there) in [(false, true), (false, false), (true, true)] {
        let scratch = Scratch::new();
        let left = scratch.dst().join(name_beside(b"a", PARTIAL));
        let held = fs::File::create(&left).expect("a file");
        if is_held {
            rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        }
        if is_there {
            fs::write(scratch.dst().join("a"), "old").expect("a file");
        }
        let mut sink = scratch.sink(TreeOptions { in_place: true, ..TreeOptions::default() });
        sink.push(0, 0, chunk(&[large(b"a", 1, SIZE)])).expect("taken");
        sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
        sink.shared.wait_drained();
        assert_eq!(left.exists(), is_held, "a live copy's stays");
        sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
        assert_eq!(sink.finish().expect("whole").figures.failed, 0);
        assert!(fs::read(scratch.dst().join("a")).expect("there") == vec![1; SIZE as usize]);
    }
}

/// Its successor may never come: the source may be gone by then, or the copy may be interrupted.
#[test]
fn what_cannot_be_written_in_place_stays_until_its_successor_is_whole() {
    const SIZE: u64 = 1 << 20;
    for is_link in [true, false] {
        for is_large in [true, false] {
            for comes in [false, true] {
                let what = format!("link {is_link}, large {is_large}, comes {comes}");
                let scratch = Scratch::new();
                let path = scratch.dst().join("a");
                match is_link {
                    true => symlink(scratch.outside().join("file"), &path).expect("a link"),
                    false => {
                        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
                    }
                }
                let stays = || {
                    let kind = fs::symlink_metadata(&path).expect("there").file_type();
                    assert!(if is_link { kind.is_symlink() } else { kind.is_fifo() }, "{what}");
                };
                let mut sink = scratch.sink(TreeOptions { sync: true, in_place: true, ..TreeOptions::default() });
                let size = if is_large { SIZE } else { 3 };
                sink.push(0, 0, chunk(&[Record::Listed { name: b"a", metadata: META, size }])).expect("taken");
                sink.shared.wait_drained();
                stays();
                if !comes {
                    sink.push(0, 0, chunk(&[Record::Gone { number: 0 }, END])).expect("taken");
                    sink.finish().expect("whole");
                    stays();
                    continue;
                }
                let wanted = Record::Wanted { number: 0 };
                let contents = if is_large { vec![7; SIZE as usize] } else { b"new".to_vec() };
                if is_large {
                    sink.push(0, 0, chunk(&[wanted, large(b"a", 1, SIZE)])).expect("taken");
                    sink.push(1, 0, Arc::new(contents.clone())).expect("taken");
                    sink.shared.wait_drained();
                    stays();
                    sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
                } else {
                    sink.push(0, 0, chunk(&[wanted, file(b"a", &contents), END])).expect("taken");
                }
                let report = sink.finish().expect("whole");
                assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {report:?}");
                assert!(fs::symlink_metadata(&path).expect("there").is_file(), "{what}");
                assert!(fs::read(&path).expect("readable") == contents, "{what}");
                scratch.outside_is_unchanged();
                scratch.no_temporaries();
            }
        }
    }
}

/// A link or a mount may lead from the source to its copy. What is listed may be the same as its copy, but not if it has
/// grown since: it would be cut.
#[test]
fn what_is_the_source_itself_is_not_written_in_place() {
    const SIZE: u64 = 1 << 20;
    for sync in [false, true] {
        let scratch = Scratch::new();
        let path = scratch.dst().join("a");
        let contents = vec![7; SIZE as usize + 1];
        fs::write(&path, &contents).expect("a file");
        let options = TreeOptions { sync, in_place: true, ..TreeOptions::default() };
        let mut extensions = Vec::new();
        assert!(Extensions::push(&mut extensions, inode(&rustix::fs::stat(&path).expect("there"), &options), true));
        let metadata = Metadata { extensions: Extensions::new(&extensions), ..META };
        let mut sink = scratch.sink(Destination { options, is_local: true, ..Destination::default() });
        let large = Record::Large { name: b"a", metadata, item: 1, size: SIZE, is_sparse: false };
        if sync {
            sink.push(0, 0, chunk(&[Record::Listed { name: b"a", metadata: META, size: SIZE }])).expect("taken");
            sink.shared.wait_drained();
            sink.push(0, 0, chunk(&[Record::Wanted { number: 0 }, large])).expect("taken");
        } else {
            sink.push(0, 0, chunk(&[large])).expect("taken");
        }
        sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
        sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
        let report = sink.finish().expect("whole");
        assert_eq!(report.figures.failed, 1, "{report:?}");
        assert!(report.failures[0].detail.starts_with(b"is the source itself"), "{report:?}");
        assert!(fs::read(&path).expect("there") == contents, "sync {sync}");
        scratch.no_temporaries();
    }
}

/// What has its name by then has not been written to, and must not get the time of the source.
#[test]
fn in_place_a_file_that_loses_its_name_is_a_failure() {
    const SIZE: u64 = 1 << 20;
    for is_removed in [true, false] {
        let scratch = Scratch::new();
        let [path, other] = ["large", "other"].map(|name| scratch.dst().join(name));
        fs::write(&path, "old").expect("a file");
        fs::write(&other, "other").expect("a file");
        let mut sink = scratch.sink(TreeOptions { in_place: true, ..TreeOptions::default() });
        sink.push(0, 0, chunk(&[large(b"large", 1, SIZE)])).expect("taken");
        sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
        sink.shared.wait_drained();
        match is_removed {
            true => fs::remove_file(&path).expect("there"),
            false => fs::rename(&other, &path).expect("there"),
        }
        sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
        assert_eq!(errnos(&sink.finish().expect("whole")), [Errno::STALE]);
        assert_eq!(path.exists(), !is_removed);
        scratch.no_temporaries();
        if !is_removed {
            assert_eq!(fs::read(&path).expect("there"), b"other");
            assert_ne!(fs::metadata(&path).expect("there").mtime(), META.modified.seconds);
        }
    }
}

/// If it stayed, `-u` would later overwrite what the user writes under this name, and copies from here would fail.
#[test]
fn no_mark_stays_beside_what_has_replaced_a_half_written_file() {
    let fifo = Record::Special { name: b"a", metadata: META, kind: Special::Fifo, device: (0, 0) };
    for entry in [link(b"a", b"x"), fifo] {
        let scratch = Scratch::new();
        fs::write(scratch.dst().join("a"), "half").expect("a file");
        fs::write(scratch.dst().join(name_beside(b"a", UNFINISHED)), "").expect("a mark");
        let report = scratch.run(TreeOptions::default(), &[entry, END]).expect("whole");
        assert_eq!((report.figures.failed, report.others), (0, 1), "{report:?}");
        scratch.no_temporaries();
    }
}

/// The source may have become shorter since. In a directory that has no name yet, short files get theirs at once.
#[test]
fn no_mark_stays_in_a_directory_that_an_interrupted_copy_has_left() {
    const SIZE: u64 = 1 << 20;
    let scratch = Scratch::new();
    let options = TreeOptions { in_place: true, ..TreeOptions::default() };
    let mut sink = scratch.sink(options.clone());
    sink.push(0, 0, chunk(&[directory(b"d"), large(b"a", 1, SIZE)])).expect("taken");
    sink.push(1, 0, Arc::new(vec![1; SIZE as usize / 2])).expect("taken");
    sink.shared.wait_drained();
    drop(sink);
    let left = scratch.dst().join(name_beside(b"d", PARTIAL));
    assert!(left.join(name_beside(b"a", UNFINISHED)).exists());
    let records = [directory(b"d"), file(b"a", b"short"), Record::Leave, END];
    assert_eq!(scratch.run(options, &records).expect("whole").failures, []);
    assert_eq!(fs::read(scratch.dst().join("d/a")).expect("there"), b"short");
    scratch.no_temporaries();
}

/// Where the directory has no name yet, nothing is there under the path that the file was to have.
#[test]
fn what_is_kept_of_a_file_in_place_is_named_by_a_path_that_exists() {
    const SIZE: u64 = 1 << 20;
    for sync in [false, true] {
        let scratch = Scratch::new();
        let (tell, told) = std::sync::mpsc::channel();
        let mut sink = scratch.sink(TreeOptions { sync, in_place: true, ..TreeOptions::default() });
        sink.on_kept(Box::new(move |paths, bytes, state| {
            tell.send((paths.to_vec(), bytes, state)).expect("it is heard");
        }));
        sink.push(0, 0, chunk(&[directory(b"d"), large(b"a", 1, SIZE)])).expect("taken");
        sink.push(1, 0, Arc::new(vec![1; SIZE as usize / 2])).expect("taken");
        sink.shared.wait_drained();
        drop(sink);
        let left = scratch.dst().join(name_beside(b"d", PARTIAL)).into_os_string().into_encoded_bytes();
        // Only with `--sync` will the next copy look at it.
        let bytes = if sync { SIZE / 2 } else { 0 };
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(vec![left], bytes, KeptState::Begun)]);
    }
}
