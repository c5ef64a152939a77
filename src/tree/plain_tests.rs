//! Copies over earlier ones without `--sync`. Data that digests prove to be there is not sent, and the result is the
//! same as that of a full copy.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::sync_tests::{Maker, copy, picture, scratch};
use crate::options::TreeOptions;

fn comparing() -> TreeOptions {
    TreeOptions { compares: true, ..TreeOptions::default() }
}

#[test]
fn the_outcome_is_that_of_a_copy_of_all() {
    let (mut all_bytes, mut sent_bytes) = (0, 0);
    for seed in 0..40 {
        let scratch = scratch();
        let [from, one, other] = ["from", "one", "other"].map(|name| scratch.path().join(name));
        let mut maker = Maker(seed);
        fs::create_dir(&from).expect("a directory");
        for name in 0..12 {
            maker.make(&from.join(format!("n{name}")), 3);
        }
        for to in [&one, &other] {
            copy(&from, to, &TreeOptions::default(), false);
        }
        for round in 0..3 {
            maker.change(&from);
            let (sent, whole) = copy(&from, &one, &TreeOptions::default(), false);
            all_bytes += sent.figures.amount.bytes;
            let (sent, report) = copy(&from, &other, &comparing(), false);
            sent_bytes += sent.figures.amount.bytes;
            // A directory in the place of a file stays.
            assert_eq!(
                whole.figures.failed, report.figures.failed,
                "seed {seed}, round {round}: {:?}",
                report.failures
            );
            assert_eq!(picture(&one), picture(&other), "seed {seed}, round {round}");
        }
    }
    assert!(sent_bytes < all_bytes / 2, "{sent_bytes} of {all_bytes}");
}

fn set_time(path: &Path, seconds: u64) {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().append(true).open(path).and_then(|file| file.set_modified(time)).expect("ours");
}

#[test]
fn contents_decide_and_nothing_else() {
    let scratch = scratch();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    fs::create_dir(&from).expect("a directory");
    let mut maker = Maker(7);
    for (name, bytes) in [("empty", 0), ("small", 4095), ("block", 4096), ("record", 100_000), ("large", 3 << 20)] {
        let mut data = vec![0; bytes];
        maker.fill(&mut data);
        fs::write(from.join(name), data).expect("a file");
    }
    let (sent, report) = copy(&from, &to, &TreeOptions::default(), false);
    assert_eq!((sent.figures.amount.bytes, report.figures.same), (4095 + 4096 + 100_000 + (3 << 20), 0));
    let again = || {
        let (sent, report) = copy(&from, &to, &comparing(), false);
        assert_eq!((report.figures.failed, picture(&from)), (0, picture(&to)), "{:?}", report.failures);
        (sent.figures.amount.bytes, report.figures.same)
    };
    assert_eq!(again(), (4095, 3));
    // Size and time decide nothing.
    for name in ["record", "large"] {
        let mut data = fs::read(from.join(name)).expect("it");
        data[50_000] ^= 1;
        let seconds = fs::metadata(from.join(name)).expect("it").mtime() as u64;
        fs::write(from.join(name), data).expect("written");
        for side in [&from, &to] {
            set_time(&side.join(name), seconds);
        }
    }
    let (sent_bytes, same) = again();
    assert_eq!(same, 1);
    assert!(
        (4095 + 100_000 + 1..4095 + 100_000 + (1 << 20)).contains(&sent_bytes),
        "{sent_bytes}: a block of the large one"
    );
    // Changes only the time.
    ["block", "record", "large"].iter().for_each(|name| set_time(&from.join(name), 1_000_000_000));
    assert_eq!(again(), (4095, 3));
    // A file that has another name at the destination becomes a file of its own, as always.
    fs::hard_link(to.join("record"), scratch.path().join("aside")).expect("a link");
    set_time(&from.join("record"), 1_111_111_111);
    assert_eq!(again(), (4095 + 100_000, 2));
    let aside = fs::metadata(scratch.path().join("aside")).expect("it");
    assert_eq!((aside.nlink(), aside.mtime()), (1, 1_000_000_000));
}

/// Nothing is asked below a directory that the receiver has made: contents are sent at once.
#[test]
fn what_is_new_is_not_asked_for() {
    let scratch = scratch();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    fs::create_dir_all(&to).expect("a directory");
    fs::create_dir_all(from.join("a")).expect("a directory");
    for number in 0..3000 {
        fs::write(from.join(format!("a/{number}")), [7; 5000]).expect("a file");
    }
    let options = TreeOptions { stats: true, ..comparing() };
    let (sent, report) = copy(&from, &to, &options, false);
    assert_eq!((sent.figures.amount.bytes, report.files, report.figures.failed), (3000 * 5000, 3000, 0));
    // A verdict is a byte. Some files were listed before the sender knew that the directory is new.
    let answered_bytes = report.figures.stats.answered_bytes;
    assert!((1..2000).contains(&answered_bytes), "{answered_bytes} bytes of answers");
}
