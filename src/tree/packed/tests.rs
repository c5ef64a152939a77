use std::fs;
use std::path::Path;

use super::*;
use crate::options::TreeOptions;
use crate::tree::Root;
use crate::tree::sink::{Destination, Names, TreeSink};
use crate::tree::sync_tests::{Maker, picture, scratch};

fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    println!("SEED={seed}");
    seed
}

fn packed(from: &Path) -> Vec<u8> {
    packed_counting(from, &Tally::default())
}

fn packed_counting(from: &Path, tally: &Tally) -> Vec<u8> {
    let roots = vec![Root::new(from, "tree")];
    let source = TreeSource::new(roots, PART_BYTES, TreeOptions::default(), Arc::default()).expect("a source");
    let mut stream = Vec::new();
    let put = |packet: Packet<'_>| {
        stream.extend_from_slice(packet.bytes);
        true
    };
    pack(&source.unanswered(), tally, put).expect("threads");
    stream
}

fn sink(to: &Path) -> TreeSink {
    let names = Names::Only(b"tree".to_vec());
    let options = Destination { names, awaits_proof: true, ..Destination::default() };
    TreeSink::new(to, options, Box::new(|_| {})).expect("a sink")
}

/// Unpacks a stream in pieces of random lengths.
fn unpack(
    stream: &[u8],
    maker: &mut Maker,
    mut push: impl FnMut(u32, u64, Bytes) -> Result<(), Refused>,
) -> Result<Unpacker, Refused> {
    let (mut rest, mut unpacker) = (stream, Unpacker::default());
    while !rest.is_empty() {
        let most = [1, 40, 5000, 300 << 10][maker.below(4) as usize];
        let (piece, behind) = rest.split_at((1 + maker.below(most) as usize).min(rest.len()));
        let piece: Bytes = Arc::new(piece.to_vec());
        unpacker.take(&piece, &mut push)?;
        rest = behind;
    }
    Ok(unpacker)
}

#[test]
fn what_is_packed_is_unpacked_however_it_is_cut() {
    let seed = seed();
    for case in 0..10 {
        let (scratch, mut maker) = (scratch(), Maker(seed.wrapping_add(case)));
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir(&from).expect("a directory");
        fs::create_dir(&to).expect("a directory");
        (0..15).for_each(|name| maker.make(&from.join(format!("n{name}")), 3));
        let mut large = vec![0; (2 << 20) + maker.below(3 << 20) as usize];
        maker.fill(&mut large[..1 << 20]);
        fs::write(from.join("large"), large).expect("a file");
        fs::File::create(from.join("holes")).and_then(|file| file.set_len(9 << 20)).expect("a file");
        let (stream, mut sink) = (packed(&from), sink(&to));
        let unpacker = unpack(&stream, &mut maker, |item, position, bytes| sink.push(item, position, bytes));
        assert!(unpacker.expect("a tree").has_ended());
        let report = sink.finish().expect("all of it");
        assert_eq!(report.figures.failed, 0);
        assert!(picture(&to.join("tree")) == picture(&from), "case {case}");
    }
}

#[test]
fn data_of_large_files_begins_with_pages() {
    let scratch = scratch();
    fs::write(scratch.path().join("a"), vec![7; 5_000_000]).expect("a file");
    let (stream, mut at, mut ranges) = (packed(&scratch.path().join("a")), 0, 0);
    loop {
        let head = Head::decode(&stream[at..at + HEAD_BYTES]).expect("a head");
        at += HEAD_BYTES;
        let Head::Data { item, length, .. } = head else { break };
        at += head.padding(at as u64) as usize;
        if item > 0 {
            assert_eq!(at % 4096, 0);
            assert!(stream[at..at + length as usize].iter().all(|&byte| byte == 7));
            ranges += length as usize;
        }
        at += length as usize;
    }
    assert_eq!((at, ranges), (stream.len(), 5_000_000));
    assert!(stream.len() < 5_000_000 * 101 / 100, "{}", stream.len());
}

#[test]
fn packing_ends_when_nobody_takes_it() {
    let scratch = scratch();
    fs::write(scratch.path().join("a"), vec![7; 50_000_000]).expect("a file");
    let roots = vec![Root::new(scratch.path(), "tree")];
    let source = TreeSource::new(roots, PART_BYTES, TreeOptions::default(), Arc::default()).expect("a source");
    let mut count = 0;
    let put = |_: Packet<'_>| {
        count += 1;
        count < 3
    };
    pack(&source.unanswered(), &Tally::default(), put).expect("threads");
    assert_eq!(count, 3);
}

#[test]
fn streams_that_are_no_tree_are_refused() {
    let data = |item, length, position| Head::Data { item, length, position }.encode().to_vec();
    let end = Head::End.encode().to_vec();
    let ends = |stream: &[u8]| unpack(stream, &mut Maker(1), |_, _, _| Ok(())).map(|unpacker| unpacker.has_ended());
    assert_eq!(ends(&end), Ok(true));
    assert_eq!(ends(&[data(0, 3, 0), b"abc".to_vec(), end.clone()].concat()), Ok(true));
    // Missing data is noticed by the caller, which knows where the stream ends.
    assert_eq!(ends(&end[..15]), Ok(false));
    assert_eq!(ends(&[data(0, 3, 0), b"ab".to_vec()].concat()), Ok(false));
    for stream in [
        [&end[..], &end].concat(),
        [&end[..], &data(0, 1, 0)].concat(),
        data(0, 3, 1),
        [data(0, 3, 0), b"abc".to_vec(), data(0, 1, 2)].concat(),
        data(1, (1 << 20) + 1, 0),
        data(1, 1, u64::MAX),
        vec![0; 16],
        vec![0xff; 16],
    ] {
        assert_eq!(ends(&stream), Err(BROKEN), "{stream:?}");
    }
    let refused = Err(Refused::Data("by the sink"));
    let stream = [data(3, 1, 0), vec![0; 5000]].concat();
    assert_eq!(unpack(&stream, &mut Maker(1), |_, _, _| refused.clone()).map(drop), refused);
}

#[test]
fn damaged_streams_do_no_harm() {
    let (scratch, seed) = (scratch(), seed());
    let from = scratch.path().join("from");
    fs::create_dir(&from).expect("a directory");
    let mut maker = Maker(seed);
    (0..8).for_each(|name| maker.make(&from.join(format!("n{name}")), 2));
    fs::write(from.join("large"), vec![1; 300_000]).expect("a file");
    let stream = packed(&from);
    for case in 0..200 {
        let mut damaged = stream.clone();
        for _ in 0..1 + maker.below(3) {
            let at = maker.below(if case % 2 == 0 { 4000 } else { stream.len() as u64 }.min(stream.len() as u64));
            damaged[at as usize] ^= 1 << maker.below(8);
        }
        let to = scratch.path().join(format!("to{case}"));
        fs::create_dir(&to).expect("a directory");
        let mut sink = sink(&to);
        let _ = unpack(&damaged, &mut maker, |item, position, bytes| sink.push(item, position, bytes));
        // Whatever has come, nothing has its name before it is proven, and afterwards nothing is left.
        assert!(!to.join("tree").exists(), "case {case}");
        sink.discard_forged();
        assert_eq!(fs::read_dir(&to).expect("it").count(), 0, "case {case}");
    }
}

#[test]
fn what_is_all_of_a_tree_has_no_name_before_it_is_proven() {
    let (scratch, mut maker) = (scratch(), Maker(1));
    let (file, large, directory) =
        (scratch.path().join("file"), scratch.path().join("large"), scratch.path().join("directory"));
    fs::write(&file, "contents").expect("a file");
    fs::write(&large, vec![3; 3 << 20]).expect("a file");
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("a"), "contents").expect("a file");
    for from in [file, large, directory] {
        for is_proven in [false, true] {
            let to = scratch.path().join("to");
            fs::create_dir(&to).expect("a directory");
            let mut sink = sink(&to);
            let stream = packed(&from);
            unpack(&stream, &mut maker, |item, position, bytes| sink.push(item, position, bytes)).expect("a tree");
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!to.join("tree").exists(), "{}", from.display());
            match is_proven {
                true => assert_eq!(sink.finish().expect("all of it").figures.failed, 0),
                false => sink.discard_forged(),
            }
            assert_eq!(fs::read_dir(&to).expect("it").count(), usize::from(is_proven), "{}", from.display());
            if is_proven && !from.is_dir() {
                assert!(fs::read(to.join("tree")).expect("it") == fs::read(&from).expect("it"));
            }
            drop(sink);
            fs::remove_dir_all(&to).expect("ours");
        }
    }
}

/// Data that is not in the page cache is read past it by both threads, and goes into the stream in order.
#[test]
fn what_is_cold_is_packed_as_well() {
    // Memory file systems have no way past their cache. The disk on which the tests are built has.
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let (directory, mut maker) = (tempfile::tempdir_in(beside).expect("a directory"), Maker(seed()));
    let from = directory.path().join("from");
    fs::create_dir(&from).expect("a directory");
    for name in 0..3 {
        let mut bytes = vec![0; (5 << 20) + maker.below(5000) as usize];
        maker.fill(&mut bytes[..3 << 20]);
        fs::write(from.join(format!("f{name}")), &bytes).expect("a file");
        let file = fs::File::open(from.join(format!("f{name}"))).expect("it");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicted");
    }
    let (tally, scratch) = (Tally::default(), scratch());
    let stream = packed_counting(&from, &tally);
    assert!(tally.direct_bytes.load(std::sync::atomic::Ordering::Relaxed) >= 15 << 20);
    let mut sink = sink(scratch.path());
    unpack(&stream, &mut maker, |item, position, bytes| sink.push(item, position, bytes)).expect("a tree");
    assert_eq!(sink.finish().expect("all of it").figures.failed, 0);
    assert!(picture(&scratch.path().join("tree")) == picture(&from));
}
