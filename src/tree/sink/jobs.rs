//! Jobs for the sink's threads.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;

use flume::Receiver;
use rd_proto::tree::Record;

use super::directory::OpenDirectory;
use super::entry::{self, Large};
use super::judge::{self, Wanted};
use super::{Bytes, Shared};
use crate::tree::source::{FileRange, TreeSource};

/// Limits of one job: entries, bytes of their records, and directories they are in.
const BATCH_ENTRIES_MAX: usize = 64;
/// Maximum number of entries if files are listed and existing ones are not read: one answer for all of them costs as
/// much as comparing some.
const BATCH_LISTED_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 256 << 10;
const BATCH_DIRECTORIES_MAX: usize = 8;

/// A range of a large file of this host, which is copied from that file.
pub struct Local {
    /// Position of the range in the file and in its copy.
    pub range: FileRange,
    /// Ends the copy when set.
    pub stop: Arc<AtomicBool>,
    /// The source, which learns when the range has been copied, or why it could not be read.
    pub source: Arc<TreeSource>,
}

/// Entries to be made: the offsets of their records in the chunk, and how many of them are in each directory.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) offsets: Vec<usize>,
    runs: Vec<(Arc<OpenDirectory>, usize)>,
    bytes: usize,
    /// Number of the first listed file among the entries, and how many listed files there are.
    listed: (u64, u64),
}

pub(super) enum Job {
    Make(Bytes, Batch),
    Write(Bytes, Arc<Large>, u64),
    Copy(Local, Arc<Large>),
    /// Tells the sender what already exists of a large file.
    Look(Arc<Large>, u32),
    /// Releases the file in a sink thread, because publishing may take long.
    Settle(Arc<Large>),
    /// The existing file has turned out to be the same as a listed one.
    Keep(Wanted),
}

impl Batch {
    /// Adds an entry. Returns whether the batch is full.
    pub(super) fn add(&mut self, directory: &Arc<OpenDirectory>, offset: usize, bytes: usize) -> bool {
        match self.runs.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, directory) => *count += 1,
            _ => self.runs.push((Arc::clone(directory), 1)),
        }
        self.offsets.push(offset);
        self.bytes += bytes;
        let is_looked_at = self.has_listed() && !directory.shared.options.compares_contents();
        self.offsets.len() >= if is_looked_at { BATCH_LISTED_MAX } else { BATCH_ENTRIES_MAX }
            || self.bytes >= BATCH_BYTES_MAX
            || self.runs.len() == BATCH_DIRECTORIES_MAX
    }

    /// Counts a listed file if its number follows those of the others. Returns whether the number follows.
    pub(super) fn list(&mut self, number: u64) -> bool {
        let (first, count) = &mut self.listed;
        if *count == 0 {
            *first = number;
        }
        let follows = *first + *count == number;
        *count += u64::from(follows);
        follows
    }

    /// Decodes the records of the entries.
    pub(super) fn records<'a>(&'a self, chunk: &'a [u8]) -> impl Iterator<Item = Record<'a>> {
        self.offsets.iter().filter_map(|&offset| Record::decode(&mut &chunk[offset..]).ok().flatten())
    }

    /// Whether the sender waits for verdicts on some of the entries.
    pub(super) fn has_listed(&self) -> bool {
        self.listed.1 > 0
    }

    /// Has existing files read ahead if they are listed. Otherwise each thread would wait for one file after the other.
    fn look_ahead(&self, shared: &Shared, chunk: &[u8]) {
        let options = &shared.options;
        // Files whose digests are cached are not read. Looking only at inodes costs more than it gains.
        let are_read = options.compares_contents() && !options.ignore_existing && shared.cache.is_none();
        if !are_read || !self.has_listed() || !shared.ahead.is_on() {
            return;
        }
        let directories = self.runs.iter().flat_map(|(directory, count)| std::iter::repeat_n(directory, *count));
        for (record, directory) in self.records(chunk).zip(directories) {
            if let Record::Listed { name, .. } = record
                && !directory.is_fresh
                && let Ok(name) = CString::new(directory.final_name(name))
                && !shared.ahead.look_at(&directory.fd, &name)
            {
                return;
            }
        }
    }

    fn make(self, shared: &Shared, chunk: &[u8]) {
        self.look_ahead(shared, chunk);
        let mut offsets = self.offsets.into_iter();
        let (first, mut verdicts) = (self.listed.0, Vec::new());
        for (directory, count) in self.runs {
            for offset in offsets.by_ref().take(count) {
                if shared.is_stopped.load(Acquire) {
                    return;
                }
                let (record, mut acls) = (Record::decode(&mut &chunk[offset..]), Vec::new());
                let mut record = record.ok().flatten().expect("decoded before");
                shared.owners.localize(&mut record, &mut acls);
                if let Record::Listed { name, metadata, size } = record {
                    let number = first + verdicts.len() as u64;
                    verdicts.push(judge::judge(&directory, number, name, &metadata, size));
                } else {
                    entry::make(&directory, &record);
                }
            }
        }
        shared.answer_verdicts(first, verdicts);
    }
}

pub(super) fn work(shared: &Shared, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        match job {
            Job::Make(chunk, batch) => batch.make(shared, (*chunk).as_ref()),
            Job::Write(range, large, position) => large.take(range, position),
            Job::Copy(local, large) => {
                let outcome = large.copy(&local);
                local.source.copied(&local.range, outcome);
            }
            Job::Look(large, item) => large.look(item),
            Job::Settle(large) => drop(large),
            Job::Keep(wanted) => wanted.keep(),
        }
        // Only now has everything that the job held been released.
        let mut pending = crate::locked(&shared.pending);
        *pending -= 1;
        if *pending == 0 {
            shared.drained.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::thread;
    use std::time::{Duration, Instant};

    use rd_proto::tree::answer::VERDICTS_BYTES_MAX;
    use rd_proto::tree::{Answer, Metadata, Verdict};

    use super::*;
    use crate::options::TreeOptions;
    use crate::tree::ahead::cold::{FILE_BYTES, are_cached_soon, is_cached, tree};
    use crate::tree::sink::TreeSink;

    /// Returns a sink over a tree, with files listed at a different size, so that they are not compared.
    fn listed(top: &Path, options: TreeOptions, is_cold: bool, files: usize) -> TreeSink {
        let mut sink = TreeSink::new(top, options, Box::new(|_| {})).expect("a sink");
        if is_cold {
            sink.shared.ahead.stay_on();
        }
        list(&mut sink, files, FILE_BYTES + 1);
        sink
    }

    /// Lists files of this size in the first directory of [`tree`].
    fn list(sink: &mut TreeSink, files: usize, size: u64) {
        let mut names: Vec<String> = (0..files).map(|file| format!("f{file:02}")).collect();
        names.sort();
        let mut records =
            vec![Record::Directory { name: b"d00", metadata: Metadata { mode: 0o755, ..Metadata::ZERO } }];
        records.extend(names.iter().map(|name| {
            let (name, metadata) = (name.as_bytes(), Metadata { mode: 0o644, ..Metadata::ZERO });
            Record::Listed { name, metadata, size }
        }));
        let mut chunk = Vec::new();
        for record in records {
            let at = chunk.len();
            chunk.resize(at + record.encoded_bytes(), 0);
            record.encode(&mut chunk[at..]).expect("as long as it says");
        }
        sink.push(0, 0, Arc::new(chunk)).expect("records");
    }

    /// For files with a different time, the answer is a digest of the existing file. One frame has no room for the
    /// digests of a batch.
    #[test]
    fn digests_of_a_whole_batch_are_answered_in_several_parts() {
        const FILES: usize = BATCH_LISTED_MAX + 44;
        let top = tree(1, FILES);
        let answers = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&answers);
        let answer = move |answer: Answer| {
            let encoded = answer.encode();
            assert_eq!(Answer::decode(&encoded).as_ref(), Ok(&answer), "{} bytes", encoded.len());
            told.lock().expect("no panic").push(answer);
        };
        let options = TreeOptions { sync: true, ..TreeOptions::default() };
        let mut sink = TreeSink::new(top.path(), options, Box::new(answer)).expect("a sink");
        list(&mut sink, FILES, FILE_BYTES);
        let judged = || -> usize {
            let answers = answers.lock().expect("no panic");
            answers
                .iter()
                .map(|answer| if let Answer::Verdicts { verdicts, .. } = answer { verdicts.len() } else { 0 })
                .sum()
        };
        let until = Instant::now() + Duration::from_secs(20);
        while judged() < FILES {
            assert!(Instant::now() < until, "{} of {FILES}", judged());
            thread::sleep(Duration::from_millis(1));
        }
        let mut answered: Vec<(u64, usize)> = Vec::new();
        for answer in &*answers.lock().expect("no panic") {
            let Answer::Verdicts { first, verdicts } = answer else { panic!("{answer:?}") };
            assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Digest(_))), "{verdicts:?}");
            answered.push((*first, verdicts.len()));
        }
        answered.sort_unstable();
        let whole = VERDICTS_BYTES_MAX / Verdict::Digest([0; 16]).encoded_bytes();
        let rest = BATCH_LISTED_MAX - whole;
        let [batch, second] = [BATCH_LISTED_MAX as u64, whole as u64];
        assert_eq!(answered, [(0, whole), (second, rest), (batch, 44)]);
    }

    #[test]
    fn what_is_there_and_cold_is_read_ahead_where_contents_are_compared() {
        let top = tree(1, 60);
        let sync = || TreeOptions { sync: true, ..TreeOptions::default() };
        for (options, is_cold) in [(TreeOptions { checksum: true, ..sync() }, false), (sync(), true)] {
            let sink = listed(top.path(), options, is_cold, 60);
            thread::sleep(Duration::from_millis(100));
            assert!(!sink.shared.ahead.has_begun());
            assert!((0..60).all(|file| !is_cached(top.path(), 0, file)), "nothing is read");
        }
        let sink = listed(top.path(), TreeOptions { checksum: true, ..sync() }, true, 60);
        are_cached_soon(top.path(), (0..60).map(|file| (0, file)));
        drop(sink);
    }
}
