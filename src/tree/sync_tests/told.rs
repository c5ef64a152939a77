//! Existing files whose digests the sender has been told. They are kept only with the contents that were read.

use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rd_proto::tree::Time;
use rd_proto::tree::answer::BLOCK_BYTES_MIN;
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::fstat;

use super::*;
use crate::fs::hash_range;
use crate::tree::digest_cache::{DigestCache, OfBlocks};

/// Modification time of the files at the source.
const SECONDS: i64 = 1_000_000_000;

fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("it");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
}

/// Lists files to a sink, calls `meanwhile` once their digests have been told, and replies that they are the same.
fn keep(options: &TreeOptions, to: &Path, names: &[&[u8]], size: u64, meanwhile: impl FnOnce()) -> Report {
    let (tell, told) = mpsc::channel();
    let answer = move |answer: Answer| {
        if let Answer::Verdicts { verdicts, .. } = answer {
            verdicts.into_iter().for_each(|verdict| tell.send(verdict).expect("it is waited for"));
        }
    };
    let mut sink = TreeSink::new(to, options.clone(), Box::new(answer)).expect("a sink");
    let mut push = |record: Record<'_>| {
        let mut bytes = vec![0; record.encoded_bytes()];
        record.encode(&mut bytes).expect("as long as it says");
        sink.push(0, 0, Arc::new(bytes)).expect("taken");
    };
    let modified = Time { seconds: SECONDS, nanoseconds: 0 };
    let metadata = Metadata { mode: 0o644, modified, ..Metadata::ZERO };
    for &name in names {
        push(Record::Listed { name, metadata, size });
        let verdict = told.recv_timeout(Duration::from_secs(60)).expect("a verdict");
        assert!(matches!(verdict, Verdict::Digest(_)), "{verdict:?}");
    }
    meanwhile();
    (0..names.len() as u64).for_each(|number| push(Record::Same { number }));
    push(Record::End { failures: 0 });
    sink.finish().expect("whole")
}

/// Records the digest of a large file, as a comparison of its blocks some time ago would have done.
fn remember(cache: &Path, file: &Path) {
    let file = fs::File::open(file).expect("it");
    let stat = fstat(&file).expect("it");
    let size = stat.st_size as u64;
    let (block_bytes, mut all) = (block_bytes(size, BLOCK_BYTES_MIN), OfBlocks::default());
    for start in (0..size).step_by(block_bytes as usize) {
        let digest = hash_range(&file, start, block_bytes.min(size - start), &mut [0; 4096]).expect("read");
        all.add(block_bytes, &[Some(digest)]);
    }
    let cache = DigestCache::open(cache).expect("a cache");
    cache.put(SystemTime::now() + Duration::from_secs(60), &file, &stat, all.finish(size).expect("all blocks"));
}

/// Otherwise it would have the size and time of the source, and later runs would take it for the same.
#[test]
fn what_is_rewritten_after_it_was_read_gets_no_time_of_the_source() {
    for size in [7, INLINE_BYTES_MAX + 100_000] {
        for (is_rewritten, is_touched) in [(true, true), (false, true), (false, false)] {
            let what = format!("{size} bytes, rewritten {is_rewritten}, touched {is_touched}");
            let scratch = scratch();
            let (to, cache) = (scratch.path().join("to"), scratch.path().join("cache"));
            fs::create_dir(&to).expect("a directory");
            let path = to.join("f");
            fs::write(&path, vec![1; size]).expect("a file");
            set_time(&path, 5);
            if size > INLINE_BYTES_MAX {
                remember(&cache, &path);
            }
            let digest_cache = Some(cache.as_os_str().as_encoded_bytes().to_vec().into());
            let options = TreeOptions { checksum: true, digest_cache, ..sync() };
            let report = keep(&options, &to, &[b"f"], size as u64, || {
                if is_rewritten {
                    fs::write(&path, vec![2; size]).expect("written");
                }
                if is_touched {
                    set_time(&path, 6);
                }
            });
            assert_eq!(report.figures.failed, u64::from(is_rewritten), "{what}: {report:?}");
            let expected = if is_rewritten { 6 } else { SECONDS };
            assert_eq!(fs::metadata(&path).expect("there").mtime(), expected, "{what}");
        }
    }
}

/// Setting the time of one name changes that of the other.
#[test]
fn names_of_one_file_are_kept_for_two_files_of_the_source() {
    let scratch = scratch();
    let [one, other] = ["f", "g"].map(|name| scratch.path().join(name));
    fs::write(&one, "contents").expect("a file");
    fs::hard_link(&one, &other).expect("a link");
    set_time(&one, 5);
    let options = TreeOptions { checksum: true, ..sync() };
    let report = keep(&options, scratch.path(), &[b"f", b"g"], 8, || {});
    assert_eq!((report.figures.failed, report.figures.same), (0, 2), "{report:?}");
    assert_eq!(fs::metadata(&other).expect("there").mtime(), SECONDS);
}
