//! Large files that have changed in places, with `--sync`: what is sent of them, and what becomes of the older file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rd_proto::tree::Answer;
use rustix::fs::{FallocateFlags, fallocate};

use super::sink::{Destination, Names, Report, TreeSink};
use super::source::TreeSource;
use super::sync_tests::{self, Maker, scratch, sync};
use super::walk::Sent;
use super::{Root, local};
use crate::options::{TreeOptions, Verify};

const BLOCK: u64 = 64 << 10;

/// Copies the directories that contain the files.
fn copy(from: &Path, to: &Path, options: &TreeOptions, is_local: bool) -> (Sent, Report) {
    sync_tests::copy(from.parent().expect("one"), to.parent().expect("one"), options, is_local)
}

/// Does the same within a host. `meet` gets each answer of the receiver before the sender does.
pub(super) fn copy_meanwhile(
    from: &Path,
    to: &Path,
    options: &TreeOptions,
    meet: impl Fn(&Answer) + Send + Sync + 'static,
) -> (Sent, Report) {
    let [from, to] = [from, to].map(|path| path.parent().expect("one"));
    let source = TreeSource::new(vec![Root::new(from, "root")], local::CHUNK_BYTES, options.clone(), Arc::default());
    let source = Arc::new(source.expect("a source").local());
    let names = Names::Only(to.file_name().expect("one").as_encoded_bytes().to_vec());
    let destination = Destination { options: options.clone(), names, is_local: true, ..Destination::default() };
    let tell = local::answer(&source);
    let answer = move |answer: Answer| {
        meet(&answer);
        tell(answer);
    };
    let mut sink = TreeSink::new(to.parent().expect("one"), destination, Box::new(answer)).expect("a sink");
    let report = local::copy(&source, &mut sink, &Arc::default(), || {}).expect("a copy");
    (source.sent(), report)
}

/// Returns the paths of a file and of its copy.
fn paths(scratch: &Path) -> (PathBuf, PathBuf) {
    fs::create_dir(scratch.join("from")).expect("a directory");
    (scratch.join("from/file"), scratch.join("to/file"))
}

/// Makes a file of a little over 20 MiB. With `has_holes`, every other MiB is a hole.
fn make(path: &Path, maker: &mut Maker, has_holes: bool) -> u64 {
    const MIB: u64 = 1 << 20;
    let (file, size) = (File::create(path).expect("a file"), 20 * MIB + 12_345);
    file.set_len(size).expect("a length");
    for start in (0..size).step_by(if has_holes { 2 * MIB } else { MIB } as usize) {
        // No two blocks are equal.
        let blocks = (0..MIB / BLOCK).flat_map(|_| maker.below(u64::MAX).to_le_bytes().repeat(BLOCK as usize / 8));
        let bytes: Vec<u8> = blocks.collect();
        file.write_all_at(&bytes[..MIB.min(size - start) as usize], start).expect("written");
    }
    size
}

/// Changes some bytes of a file in `count` places.
fn change(path: &Path, maker: &mut Maker, count: usize) {
    let file = File::options().write(true).open(path).expect("it");
    let size = file.metadata().expect("it").len();
    for _ in 0..count {
        let at = maker.below(size - 8);
        file.write_all_at(&maker.below(u64::MAX).to_le_bytes(), at).expect("written");
    }
}

/// Gives a file a time of modification that no other file has.
fn touch(path: &Path, maker: &mut Maker) {
    let time = UNIX_EPOCH + Duration::from_nanos(maker.below(1 << 60));
    File::options().write(true).open(path).expect("it").set_modified(time).expect("a time");
}

#[test]
fn only_changed_blocks_are_sent_and_what_is_there_becomes_the_same() {
    for seed in 0..24 {
        let (scratch, mut maker) = (scratch(), Maker(seed));
        let (from, to) = paths(scratch.path());
        let (has_holes, in_place, is_local) = (seed % 2 == 1, seed / 2 % 2 == 1, seed / 4 % 3 == 2);
        let size = make(&from, &mut maker, has_holes);
        let options = TreeOptions { in_place, ..sync() };
        copy(&from, &to, &options, is_local);
        let before = fs::metadata(&to).expect("it");
        // The destination changes as well, also in length, and no time occurs twice.
        change(&from, &mut maker, 5);
        change(&to, &mut maker, 5);
        let to_size = [size, size - 3 * BLOCK - 7, size + BLOCK + 1, size / 2][maker.below(4) as usize];
        File::options().write(true).open(&to).expect("it").set_len(to_size).expect("a length");
        touch(&from, &mut maker);
        let (sent, report) = copy(&from, &to, &options, is_local);
        let what = format!("seed {seed}, holes {has_holes}, in place {in_place}, local {is_local}, {to_size} bytes");
        assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {sent:?} {report:?}");
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{what}");
        let after = fs::metadata(&to).expect("it");
        assert_eq!(after.ino() == before.ino(), in_place, "{what}");
        assert_eq!(after.mtime_nsec(), fs::metadata(&from).expect("it").mtime_nsec(), "{what}");
        if has_holes && !in_place {
            assert!(after.blocks() * 512 < size * 3 / 4, "{what}: {} blocks", after.blocks());
        }
        // Each change lies in one block or two.
        let missing = size.saturating_sub(to_size);
        let is_compared = in_place || !is_local;
        assert!(
            !is_compared || sent.figures.amount.bytes <= missing + 21 * BLOCK,
            "{what}: {} sent",
            sent.figures.amount.bytes
        );
        // Changes only the time.
        touch(&from, &mut maker);
        let (sent, report) = copy(&from, &to, &options, is_local);
        assert!(!is_compared || (sent.figures.amount.bytes, report.files) == (0, 0), "{what}: {sent:?} {report:?}");
        assert_eq!(fs::metadata(&to).expect("it").ino() == after.ino(), is_compared, "{what}");
        if has_holes && !in_place {
            // An image that has been trimmed takes less room in the copy as well.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(File::options().write(true).open(&from).expect("it"), flags, 4 * BLOCK, 300 * BLOCK)
                .expect("a hole");
            touch(&from, &mut maker);
            let (sent, report) = copy(&from, &to, &options, is_local);
            assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {sent:?} {report:?}");
            assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{what}");
            let blocks = [&from, &to].map(|path| fs::metadata(path).expect("it").blocks());
            assert!(blocks[1] * 512 <= blocks[0] * 512 + 2 * BLOCK, "{what}: {blocks:?}");
        }
    }
}

/// An image of a disk has data in each block, and takes little room all the same.
#[test]
fn blocks_that_are_copied_keep_the_holes_within_them() {
    const MIB: u64 = 1 << 20;
    for (is_local, checksum) in [(false, false), (false, true), (true, true)] {
        let what = format!("within a host {is_local}, with checksum {checksum}");
        let (scratch, mut maker) = (scratch(), Maker(11));
        let (from, to) = paths(scratch.path());
        let file = File::create(&from).expect("a file");
        file.set_len(20 * MIB).expect("a length");
        for start in (0..20 * MIB).step_by(MIB as usize) {
            file.write_all_at(&[7; 4096], start + 5 * 4096).expect("written");
        }
        copy(&from, &to, &sync(), is_local);
        let blocks = || [&from, &to].map(|path| fs::metadata(path).expect("it").blocks() * 512);
        let [source, target] = blocks();
        // It ends with a hole, so its last byte is written.
        assert!((source..=source + 4096).contains(&target), "{what}: {target} bytes instead of {source}");
        file.write_all_at(b"other", 10 * MIB + 5 * 4096 + 1).expect("written");
        touch(&from, &mut maker);
        let (sent, report) = copy(&from, &to, &TreeOptions { checksum, ..sync() }, is_local);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {sent:?} {report:?}");
        assert!(sent.figures.amount.bytes <= BLOCK, "{what}: {} sent", sent.figures.amount.bytes);
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{what}");
        // The block that was sent may come with its zeros.
        let [source, target] = blocks();
        assert!(target <= source + BLOCK, "{what}: {target} bytes instead of {source}");
    }
}

#[test]
fn an_appended_file_sends_its_end() {
    for (in_place, append_verify) in [(false, false), (true, false), (false, true)] {
        let (scratch, mut maker) = (scratch(), Maker(7));
        let (from, to) = paths(scratch.path());
        let size = make(&from, &mut maker, false);
        let options = TreeOptions { in_place, append_verify, ..sync() };
        copy(&from, &to, &options, false);
        let before = fs::metadata(&to).expect("it").ino();
        let more = vec![7; 3 << 20];
        File::options().write(true).open(&from).expect("it").write_all_at(&more, size).expect("written");
        let (sent, report) = copy(&from, &to, &options, false);
        assert_eq!(report.figures.failed, 0, "{report:?}");
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"));
        // The last block of the older file is not whole.
        assert!(sent.figures.amount.bytes <= more.len() as u64 + BLOCK, "{} sent", sent.figures.amount.bytes);
        assert_eq!(fs::metadata(&to).expect("it").ino() == before, in_place || append_verify);
        if append_verify {
            // A file at least as long at the destination stays, whatever it contains. A shorter one becomes that of the
            // source.
            touch(&from, &mut maker);
            change(&to, &mut maker, 3);
            let there = fs::read(&to).expect("it");
            let (sent, report) = copy(&from, &to, &options, false);
            assert_eq!((sent.figures.amount.bytes, report.files, report.figures.failed), (0, 0, 0));
            assert!(fs::read(&to).expect("it") == there);
            File::options().write(true).open(&to).expect("it").set_len(size - 5).expect("shorter");
            copy(&from, &to, &options, false);
            assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"));
        }
    }
}

/// A log has been rotated.
#[test]
fn what_became_shorter_after_it_was_listed_does_not_replace_its_longer_copy() {
    for (bytes, old) in [(1 << 20, Some(700_000)), (1 << 20, Some(100)), (100_000, Some(50_000)), (1 << 20, None)] {
        let what = format!("{bytes} bytes, {old:?} before");
        let scratch = scratch();
        let (from, to) = paths(scratch.path());
        let [link, its_copy] = [&from, &to].map(|path| path.with_file_name("link"));
        fs::write(&from, vec![7_u8; bytes]).expect("a file");
        fs::hard_link(&from, &link).expect("a link");
        fs::create_dir(to.parent().expect("one")).expect("a directory");
        let old = old.map(|bytes| vec![7_u8; bytes]);
        for path in [&to, &its_copy] {
            old.iter().for_each(|old| fs::write(path, old).expect("a file"));
        }
        let options = TreeOptions { append_verify: true, ..sync() };
        let rotated = from.clone();
        let (sent, report) = copy_meanwhile(&from, &to, &options, move |answer| {
            if matches!(answer, Answer::Verdicts { .. }) {
                File::options().write(true).open(&rotated).expect("it").set_len(5).expect("shorter");
            }
        });
        assert_eq!((sent.figures.failed, report.figures.failed_there), (1, 1), "{what}: {sent:?} {report:?}");
        assert!(fs::read(&to).ok() == old, "{what}");
        // It is listed with its new size.
        let of_link = if old.is_some() { old } else { Some(vec![7; 5]) };
        assert!(fs::read(&its_copy).ok() == of_link, "{what}");
    }
}

/// Its data stays where it is, so nothing else would show that it is not the data that was compared.
#[test]
fn what_is_written_in_place_by_another_process_after_it_was_compared_is_a_failure() {
    let (scratch, mut maker) = (scratch(), Maker(10));
    let (from, to) = paths(scratch.path());
    make(&from, &mut maker, false);
    let options = TreeOptions { in_place: true, ..sync() };
    copy(&from, &to, &options, true);
    touch(&from, &mut maker);
    let (path, time) = (to.clone(), UNIX_EPOCH + Duration::from_secs(5));
    let (_, report) = copy_meanwhile(&from, &to, &options, move |answer| {
        if matches!(answer, Answer::Blocks { is_last: true, .. }) {
            let file = File::options().write(true).open(&path).expect("it");
            file.write_all_at(b"other", 0).expect("written");
            // Whatever the clock says.
            file.set_modified(time).expect("a time");
        }
    });
    let errors: Vec<_> = report.failures.iter().map(|fact| fact.errno).collect();
    assert_eq!((report.figures.failed, errors), (1, vec![libc::ESTALE]), "{report:?}");
    assert_eq!(fs::metadata(&to).and_then(|it| it.modified()).expect("it"), time);
    let (_, report) = copy(&from, &to, &options, true);
    assert_eq!((report.figures.failed, report.files), (0, 1), "{report:?}");
    assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"));
}

/// Until its end the file lacks that page, because it gets its length after its data.
#[test]
fn a_file_that_ends_with_a_hole_is_read_back_from_the_disk() {
    const SIZE: u64 = 20 << 20;
    // The last block is taken from the older file; or it was data and is a hole by now.
    for is_punched in [false, true] {
        let (scratch, mut maker) = (scratch(), Maker(12));
        let (from, to) = paths(scratch.path());
        let file = File::create(&from).expect("a file");
        file.set_len(SIZE).expect("a length");
        for start in [SIZE / 2, SIZE - BLOCK] {
            file.write_all_at(&[7; 4096], start).expect("written");
        }
        let options = TreeOptions { verify: Some(Verify::Disk), ..sync() };
        copy(&from, &to, &options, false);
        file.write_all_at(b"other", SIZE / 2).expect("written");
        if is_punched {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, SIZE - BLOCK, BLOCK).expect("a hole");
        }
        touch(&from, &mut maker);
        let (sent, report) = copy(&from, &to, &options, false);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{is_punched}: {sent:?} {report:?}");
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{is_punched}");
    }
}

/// The other name may belong to an earlier generation.
#[test]
fn a_file_with_other_names_is_not_appended_to() {
    for (is_local, checksum, has_time) in
        [(false, true, false), (true, true, false), (false, false, true), (true, false, true), (false, false, false)]
    {
        let what = format!("within a host {is_local}, with checksum {checksum}, of the same time {has_time}");
        let (scratch, mut maker) = (scratch(), Maker(9));
        let ((from, to), other) = (paths(scratch.path()), scratch.path().join("other"));
        let size = make(&from, &mut maker, false);
        copy(&from, &to, &sync(), is_local);
        fs::hard_link(&to, &other).expect("a link");
        let before = fs::read(&to).expect("it");
        let more = vec![7; 3 << 20];
        File::options().write(true).open(&from).expect("it").write_all_at(&more, size).expect("written");
        if has_time {
            let time = fs::metadata(&to).expect("it").modified().expect("a time");
            File::options().write(true).open(&from).expect("it").set_modified(time).expect("a time");
        }
        let options = TreeOptions { append_verify: true, checksum, ..sync() };
        let (sent, report) = copy(&from, &to, &options, is_local);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{what}: {report:?}");
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{what}");
        assert!(fs::read(&other).expect("it") == before, "{what}");
        if !is_local {
            assert!(
                sent.figures.amount.bytes <= more.len() as u64 + BLOCK,
                "{what}: {} sent",
                sent.figures.amount.bytes
            );
        }
    }
}

/// Names that do not belong to the copy stay as they are, also if only the time has changed.
#[test]
fn of_a_file_with_several_names_only_changed_blocks_are_sent() {
    for changes in [1, 0] {
        let (scratch, mut maker) = (scratch(), Maker(13));
        let ((from, to), other) = (paths(scratch.path()), scratch.path().join("other"));
        let its_link = to.with_file_name("link");
        make(&from, &mut maker, false);
        fs::hard_link(&from, from.with_file_name("link")).expect("a link");
        copy(&from, &to, &sync(), false);
        fs::hard_link(&to, &other).expect("a link");
        let stat = |path: &Path| fs::metadata(path).expect("it");
        let (before, contents) = (stat(&to), fs::read(&to).expect("it"));
        change(&from, &mut maker, changes);
        touch(&from, &mut maker);
        let (sent, report) = copy(&from, &to, &sync(), false);
        assert_eq!((report.figures.failed, report.files), (0, 1), "{changes}: {report:?}");
        assert!(sent.figures.amount.bytes <= 2 * BLOCK * changes as u64, "{changes}: {sent:?}");
        assert!(fs::read(&from).expect("it") == fs::read(&to).expect("it"), "{changes}");
        assert_eq!(stat(&to).modified().expect("a time"), stat(&from).modified().expect("a time"), "{changes}");
        assert!(stat(&its_link).ino() == stat(&to).ino() && stat(&to).ino() != before.ino(), "{changes}");
        assert!(fs::read(&other).expect("it") == contents, "{changes}");
        assert_eq!(stat(&other).modified().expect("a time"), before.modified().expect("a time"), "{changes}");
        let (sent, report) = copy(&from, &to, &sync(), false);
        assert_eq!((sent.figures.amount.bytes, report.files), (0, 0), "{changes}: {report:?}");
    }
}

#[test]
fn in_place_a_file_with_other_names_is_refused_as_it_is() {
    let (scratch, mut maker) = (scratch(), Maker(8));
    let (from, to) = paths(scratch.path());
    make(&from, &mut maker, false);
    copy(&from, &to, &sync(), false);
    fs::hard_link(&to, scratch.path().join("other")).expect("a link");
    let before = fs::read(&to).expect("it");
    // Nothing would be written into it.
    let checksum = TreeOptions { in_place: true, checksum: true, ..sync() };
    let (sent, report) = copy(&from, &to, &checksum, false);
    assert_eq!((sent.figures.amount.bytes, report.figures.failed), (0, 0), "{report:?}");
    let time = fs::metadata(&to).expect("it").modified().expect("it");
    change(&from, &mut maker, 3);
    touch(&from, &mut maker);
    let (_, report) = copy(&from, &to, &TreeOptions { in_place: true, ..sync() }, false);
    assert_eq!(report.figures.failed, 1, "{report:?}");
    assert!(fs::read(&to).expect("it") == before);
    assert_eq!(fs::metadata(&to).expect("it").modified().expect("it"), time);
}
