//! Files that are written in place, and entries that cannot be.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

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
