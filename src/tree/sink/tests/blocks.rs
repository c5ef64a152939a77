//! Large files of which something exists.

use std::os::unix::fs::FileExt;

use super::*;
use crate::fs::close::tests::fail_where;
use crate::fs::direct::Tally;
use crate::options::Verify;
use crate::tree::Root;
use crate::tree::source::{Next, TreeSource};
use crate::tree::sync_tests;

/// Makes what a killed copy leaves of the file `large`.
fn left(scratch: &Scratch, size: u64) -> fs::File {
    let file = fs::File::create(scratch.dst().join(name_beside(b"large", PARTIAL))).expect("a file");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("ours");
    file.set_len(size).expect("a length");
    file
}

/// It has more blocks than fit into one answer.
#[test]
fn a_file_of_many_small_blocks_is_compared_whole_and_only_its_changes_are_sent() {
    const BLOCK: u64 = 64 << 10;
    const SIZE: u64 = (64 << 20) + 1;
    let scratch = Scratch::new();
    let [ours, theirs] = ["dst", "src"].map(|parent| scratch.0.path().join(parent).join("large"));
    fs::create_dir(scratch.0.path().join("src")).expect("a directory");
    let contents: Vec<u8> = (0..SIZE).map(|at| (at.wrapping_mul(31) ^ at >> 9) as u8).collect();
    for path in [&ours, &theirs] {
        fs::write(path, &contents).expect("a file");
        let file = fs::File::options().write(true).open(path).expect("there");
        if path == &ours {
            for block in [0, 300, 301, 1024] {
                file.write_all_at(&[!contents[(block * BLOCK) as usize]], block * BLOCK).expect("written");
            }
        }
        // With this time the file looks as if a transfer had been interrupted after finishing it.
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30)).expect("a time");
    }
    let source = TreeSource::new(vec![Root::new(&theirs, "large")], 1 << 20, TreeOptions::default(), Arc::default());
    let source = Arc::new(source.expect("a source"));
    let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
    let answer = {
        let (source, answers) = (Arc::clone(&source), Arc::clone(&answers));
        Box::new(move |answer: Answer| {
            crate::locked(&answers).push(answer.clone());
            source.handle_answer(answer).expect("honest");
        })
    };
    let mut sink = TreeSink::with(&scratch.dst(), Destination::default(), answer, 2, BLOCK).expect("there");
    let (mut target, tally) = (vec![0; 1 << 20], Tally::default());
    loop {
        match source.next(&mut target, usize::MAX, &tally) {
            Next::Part(part) => {
                sink.push(part.item, part.position, Arc::new(target[..part.length].to_vec())).expect("taken");
            }
            Next::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    let report = sink.finish().expect("whole");
    assert_eq!((report.figures.failed, report.files), (0, 1), "{:?}", report.failures);
    assert!(fs::read(&ours).expect("there") == contents);
    let sent = source.sent();
    assert_eq!((sent.figures.amount.bytes, sent.figures.kept_bytes), (3 * BLOCK + 1, SIZE - 3 * BLOCK - 1));
    let answers = crate::locked(&answers);
    let told = answers.iter().map(|answer| match answer {
        Answer::Blocks { item: 1, block_bytes: BLOCK, is_last, digests } => (digests.len(), *is_last),
        other => panic!("{other:?}"),
    });
    let mut expected = vec![(128, false); 8];
    expected.push((1, true));
    assert_eq!(told.collect::<Vec<_>>(), expected);
    // The file is done. A late answer is allowed, because a file that cannot be read ends early. An answer for any
    // other item is an error.
    source.handle_answer(Answer::nothing(1)).expect("late");
    for item in [0, 2, u32::MAX] {
        assert!(source.handle_answer(Answer::nothing(item)).is_err(), "{item}");
    }
}

/// The sender of a broadcast waits for no digests. A block that is compared late must not be written over the block
/// that has come.
#[test]
fn what_exists_is_not_compared_in_a_broadcast() {
    const SIZE: u64 = 64 << 20;
    assert!(Record::awaits_have(SIZE));
    let scratch = Scratch::new();
    let path = scratch.dst().join("large");
    let old = fs::File::create(&path).expect("a file");
    old.set_len(SIZE).expect("a length");
    let Time { seconds, nanoseconds } = META.modified;
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds as u64, nanoseconds);
    old.set_modified(time).expect("a time");
    let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
    let answer = {
        let answers = Arc::clone(&answers);
        Box::new(move |answer| crate::locked(&answers).push(answer))
    };
    let destination = Destination { awaits_proof: true, ..Destination::default() };
    let mut sink = TreeSink::new(&scratch.dst(), destination, answer).expect("there");
    sink.push(0, 0, chunk(&[large(b"large", 1, SIZE)])).expect("taken");
    sink.push(1, 0, Arc::new(vec![2; SIZE as usize])).expect("taken");
    sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
    assert_eq!(sink.finish().expect("whole").figures.failed, 0);
    assert_eq!(*crate::locked(&answers), [Answer::nothing(1)]);
    assert!(fs::read(&path).expect("there").iter().all(|&byte| byte == 2));
}

/// The data left may lie where the source has holes, which are not sent without a digest.
#[test]
fn a_file_with_holes_resumes_and_keeps_them() {
    const BLOCK: u64 = 64 << 10;
    const PAGE: u64 = 4 << 10;
    const SIZE: u64 = 64 << 20;
    let fsync = || TreeOptions { fsync: true, ..TreeOptions::default() };
    let verify = TreeOptions { verify: Some(Verify::Disk), ..TreeOptions::default() };
    for (size, there, options, is_on_disk) in [
        (SIZE, SIZE / 2 + 5, TreeOptions::default(), true),
        (SIZE, SIZE, verify, true),
        (SIZE + 5, SIZE + 3 * BLOCK, fsync(), true),
        (SIZE, SIZE, fsync(), false),
    ] {
        let what = format!("{there} of {size} bytes, on the disk {is_on_disk}");
        let scratch = Scratch::new();
        let [ours, theirs] = ["dst", "src"].map(|parent| scratch.0.path().join(parent).join("large"));
        fs::create_dir(scratch.0.path().join("src")).expect("a directory");
        let (file, partial) = (fs::File::create(&theirs).expect("a file"), left(&scratch, there));
        file.set_len(size).expect("a length");
        // Of 16 blocks, one has two pages of data, one has no holes, and the others are holes.
        for (file, end) in [(&file, SIZE), (&partial, SIZE / 2)] {
            for start in (0..end).step_by(16 * BLOCK as usize) {
                for (data, at) in [(&[1; PAGE as usize][..], PAGE), (&[2; PAGE as usize], 8 * PAGE)] {
                    file.write_all_at(data, start + at).expect("written");
                }
                file.write_all_at(&[3; BLOCK as usize], start + BLOCK).expect("written");
            }
        }
        // Data where the source has a hole, beside its data, and at its end; and a block that is half written.
        let mut stale = vec![5 * BLOCK, 32 * BLOCK + 3 * PAGE, 17 * BLOCK + BLOCK / 2];
        stale.extend([size - BLOCK, size - 100].into_iter().filter(|_| there >= size));
        stale.into_iter().for_each(|at| partial.write_all_at(&[9; 100], at).expect("written"));
        let copy = || sync_tests::copy(&scratch.0.path().join("src"), &scratch.dst(), &options, false);
        // What cannot be dropped from the cache may not be on the disk.
        let copied = if is_on_disk { copy() } else { where_calls_fail(&[libc::SYS_fadvise64], libc::EIO, copy) };
        let (sent, report) = (copied.0.figures, copied.1);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {:?}", report.failures);
        assert!(fs::read(&ours).expect("it") == fs::read(&theirs).expect("it"), "{what}");
        assert_eq!(sent.kept_bytes, if is_on_disk { 62 * BLOCK } else { 0 }, "{what}");
        let most = if is_on_disk { 4 + 64 } else { 128 };
        assert!(sent.amount.bytes <= most * BLOCK, "{what}: {} sent", sent.amount.bytes);
        let [ours, theirs] = [&ours, &theirs].map(|path| fs::metadata(path).expect("it").blocks() * 512);
        assert!(ours <= theirs + 2 * BLOCK, "{what}: {ours} bytes of the disk instead of {theirs}");
    }
}

/// Its sender leaves out holes, and asks for no digests.
#[test]
fn a_broadcast_takes_over_no_partial_file_with_holes() {
    const SIZE: u64 = 64 << 20;
    let scratch = Scratch::new();
    left(&scratch, SIZE).write_all_at(&[9; 100], SIZE / 2).expect("written");
    let sparse = Record::Large { name: b"large", metadata: META, item: 1, size: SIZE, is_sparse: true };
    let destination = Destination { awaits_proof: true, ..Destination::default() };
    let report = scratch.run(destination, &[sparse, closed(1, 0), END]).expect("whole");
    assert_eq!((report.figures.failed, report.files), (0, 1), "{:?}", report.failures);
    assert!(fs::read(scratch.dst().join("large")).expect("there") == vec![0; SIZE as usize]);
}

/// To read its holes, or to answer for some of them at a time, would take far longer than to begin the file anew.
#[test]
fn what_is_left_of_a_file_with_holes_is_looked_at_only_where_it_has_data() {
    const LONG: u64 = 64 << 30;
    const SHORT: u64 = 64 << 20;
    // 238 of 65536 blocks are in an answer.
    for (size, has_data, tells_holes, expected) in
        [(LONG, true, true, (276, 65536, 1)), (LONG, false, true, (1, 0, 0)), (SHORT, true, false, (1, 0, 0))]
    {
        let what = format!("{size} bytes, with data {has_data}, holes are told {tells_holes}");
        let scratch = Scratch::new();
        let partial = left(&scratch, size);
        if has_data {
            partial.write_all_at(&[9; 4096], size / 2).expect("written");
        }
        let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
        let run = || {
            let answers = Arc::clone(&answers);
            let answer = Box::new(move |answer| crate::locked(&answers).push(answer));
            let mut sink = TreeSink::new(&scratch.dst(), Destination::default(), answer).expect("there");
            let sparse = Record::Large { name: b"large", metadata: META, item: 1, size, is_sparse: true };
            sink.push(0, 0, chunk(&[sparse, closed(1, 0), END])).expect("taken");
            sink.finish().expect("whole")
        };
        let untold = || {
            for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
                fail_where(libc::SYS_lseek, (2, whence as u64), libc::EINVAL);
            }
            run()
        };
        let report = match tells_holes {
            true => run(),
            false => std::thread::scope(|scope| scope.spawn(untold).join().expect("its end")),
        };
        assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {:?}", report.failures);
        let (mut blocks, mut there) = (0, 0);
        for answer in crate::locked(&answers).iter() {
            let Answer::Blocks { item: 1, digests, .. } = answer else { panic!("{what}: {answer:?}") };
            blocks += digests.len();
            there += digests.iter().flatten().count();
        }
        assert_eq!((crate::locked(&answers).len(), blocks, there), expected, "{what}");
        let large = fs::File::open(scratch.dst().join("large")).expect("it");
        let mut found = [1; 4096];
        large.read_exact_at(&mut found, size / 2).expect("read");
        // What the sender has not been told of does not stay: it would not send a hole there.
        assert_eq!(found, [if there > 0 { 9 } else { 0 }; 4096], "{what}");
    }
}

/// The sender keeps the digests of all of them.
#[test]
fn blocks_of_what_is_left_count_among_those_of_all_open_files() {
    const SIZE: u64 = 1 << 40;
    for (others, block_bytes) in [(0, 1 << 20), (4 << 20, 1 << 30)] {
        let scratch = Scratch::new();
        left(&scratch, SIZE).write_all_at(b"left", 0).expect("written");
        let sink = scratch.sink(TreeOptions::default());
        let open = &sink.shared.open_blocks;
        open.store(others, Relaxed);
        let top = sink.levels[0].clone().expect("the top");
        let large = Large::create(&top, b"large", &META, (SIZE, true), true, None).expect("begun");
        assert_eq!((large.block_bytes(), open.load(Relaxed)), (block_bytes, others + SIZE / block_bytes));
        drop(large);
        assert_eq!(open.load(Relaxed), others);
    }
}

/// It may take hours, in which the caller must see that the copy goes on.
#[test]
fn what_is_copied_within_the_host_counts_as_work() {
    const SIZE: u64 = 3 << 20;
    let [from, to] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
    from.write_all_at(&vec![7; SIZE as usize], 0).expect("written");
    let scratch = Scratch::new();
    // Otherwise the file may become a clone at once.
    let sink = scratch.sink(TreeOptions { sparse: false, ..TreeOptions::default() });
    elsewhere::copy_contents(&sink.shared, &from.into(), &to.into(), SIZE).expect("copied");
    assert_eq!(sink.shared.progress.work(), SIZE);
}

/// Threads that compare an older file write its blocks into a new file that is no clone of it, and would do so into a
/// clone of the source.
#[test]
fn a_file_becomes_no_clone_of_its_source_if_older_blocks_are_copied_into_it() {
    let scratch = Scratch::new();
    fs::write(scratch.dst().join("old"), vec![1; 1 << 20]).expect("a file");
    let sink = scratch.sink(Destination { is_local: true, ..Destination::default() });
    let top = sink.levels[0].clone().expect("the top");
    for (name, compared) in [(&b"old"[..], Some(Compared::Named)), (&b"new"[..], None)] {
        let large = Large::create(&top, name, &META, (1 << 20, false), true, compared).expect("begun");
        // Where the file system shares blocks, the new file begins as a clone of the older one, and nothing is copied.
        let is_copied = large.basis.as_ref().is_some_and(|basis| !basis.is_in_target);
        assert_eq!(large.basis.is_some(), name == b"old");
        assert_eq!(large.may_share(), !is_copied);
    }
}

/// Short pieces of it, and its last bytes, go through the cache. After a power loss without them, it is too short.
#[test]
fn a_file_written_past_the_cache_gets_the_length_of_its_last_page_with_its_data() {
    const SIZE: u64 = 8 << 40;
    let scratch = Scratch::new();
    let sink = scratch.sink(TreeOptions::default());
    let top = sink.levels[0].clone().expect("the top");
    for (size, first) in [(SIZE, SIZE - 4096), (SIZE - 4096 + 1, SIZE - 4096)] {
        for is_sparse in [false, true] {
            let large = Large::create(&top, b"a", &META, (size, is_sparse), false, None).expect("begun");
            let length = || rustix::fs::fstat(&large.partial.file).expect("open").st_size as u64;
            assert_eq!((sink.shared.writes.are_direct(size), length()), (true, first));
            let filled = where_calls_fail(&[libc::SYS_ftruncate], libc::EIO, || large.fill());
            assert_eq!((filled, length()), (Ok(()), size), "its last byte is written");
        }
    }
}

/// After a direct write of it, the file would have its length before pieces that wait in the cache.
#[test]
fn the_last_page_of_a_file_is_never_written_past_the_cache() {
    const SIZE: u64 = 8 << 40;
    const RANGE_BYTES: usize = 1 << 20;
    let scratch = Scratch::new();
    let sink = scratch.sink(TreeOptions::default());
    let top = sink.levels[0].clone().expect("the top");
    let large = Large::create(&top, b"a", &META, (SIZE, false), false, None).expect("begun");
    // Its memory is aligned as direct writes need it.
    let range = Arc::new(memmap2::MmapMut::map_anon(RANGE_BYTES).expect("memory"));
    let take = || {
        fail_where(libc::SYS_pwrite64, (2, 4096), libc::EIO);
        large.take(range, SIZE - RANGE_BYTES as u64);
    };
    std::thread::scope(|scope| scope.spawn(take).join().expect("its end"));
    let length = rustix::fs::fstat(&large.partial.file).expect("open").st_size as u64;
    assert_eq!((length, large.has_failed.load(Relaxed)), (SIZE - 4096, true), "it is written by itself");
}

/// Of one that the next copy would begin anew, nothing is promised.
#[test]
fn a_partial_file_stays_when_a_copy_is_given_up() {
    for (is_sparse, has_data, expected) in [(true, true, true), (true, false, false), (false, true, true)] {
        let scratch = Scratch::new();
        let mut sink = scratch.sink(TreeOptions { sync: true, ..TreeOptions::default() });
        let top = sink.levels[0].clone().expect("the top");
        let large = Large::create(&top, b"a", &META, (1 << 20, is_sparse), true, None).expect("begun");
        if has_data {
            large.take(Arc::new(vec![1; 4096]), 0);
        }
        sink.discard();
        drop(large);
        let stays = scratch.dst().join(name_beside(b"a", PARTIAL)).exists();
        let told = crate::locked(&sink.shared.kept).len();
        assert_eq!(sink.shared.counts.resumable_bytes.load(Relaxed) > 0, is_sparse && expected);
        assert_eq!((stays, told), (expected, usize::from(expected)), "with holes {is_sparse}, with data {has_data}");
    }
}

/// ESTALE has other reasons than a file that changes while it is compared.
#[test]
fn a_file_that_was_not_compared_is_not_said_to_have_been() {
    const SIZE: u64 = 1 << 20;
    for is_removed in [true, false] {
        let scratch = Scratch::new();
        let run = || {
            let mut sink = scratch.sink(TreeOptions::default());
            sink.push(0, 0, chunk(&[large(b"large", 1, SIZE)])).expect("taken");
            sink.push(1, 0, Arc::new(vec![1; SIZE as usize])).expect("taken");
            sink.shared.wait_drained();
            if is_removed {
                fs::remove_file(scratch.dst().join(name_beside(b"large", PARTIAL))).expect("it has that name");
            }
            sink.push(0, 0, chunk(&[closed(1, SIZE), END])).expect("taken");
            sink.finish().expect("whole")
        };
        let (report, detail) = match is_removed {
            true => (run(), partial::REPLACED),
            // As on NFS.
            false => (where_calls_fail(&[libc::SYS_pwrite64], libc::ESTALE, run), ""),
        };
        assert_eq!(errnos(&report), [Errno::STALE]);
        assert_eq!(report.failures[0].detail, detail.as_bytes());
    }
}
