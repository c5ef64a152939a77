//! Large files of which something exists.

use std::os::unix::fs::FileExt;

use super::*;
use crate::fs::close::tests::fail_where;
use crate::fs::direct::Tally;
use crate::tree::Root;
use crate::tree::source::{Next, TreeSource};

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
    assert!(Record::awaits_have(SIZE, false));
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

/// The next copy would remove it, because the data left may lie where the holes are.
#[test]
fn a_partial_file_with_holes_does_not_stay_when_a_copy_is_given_up() {
    for is_sparse in [true, false] {
        let scratch = Scratch::new();
        fs::write(scratch.dst().join("a"), vec![1; 1 << 20]).expect("a file");
        let mut sink = scratch.sink(TreeOptions { sync: true, ..TreeOptions::default() });
        let top = sink.levels[0].clone().expect("the top");
        let compared = Some(Compared::Named);
        let large = Large::create(&top, b"a", &META, (1 << 20, is_sparse), true, compared).expect("begun");
        sink.discard();
        drop(large);
        let stays = scratch.dst().join(name_beside(b"a", PARTIAL)).exists();
        let told = crate::locked(&sink.shared.kept).len();
        assert_eq!((stays, told), (!is_sparse, usize::from(!is_sparse)));
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
