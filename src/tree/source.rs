//! Trees as sources: the records of one walk, together with the data of the large files that the walk finds.
//!
//! Any number of workers ask for parts. One worker at a time walks while the others read large files, so that neither
//! waits for the other. A worker without work sleeps until another has made some.
//!
//! # Invariants
//!
//! * Sequences are dense over all parts. A sequence is taken, under the lock, when the content of a part is settled,
//!   and the part is then given out.
//! * The sequences of records ascend as their positions do, because only the worker that has the [`Walk`] takes them.
//! * A large file is read only after the chunk that announces it has its sequence. The end of the file is recorded only
//!   after everything that was read of it has a sequence.
//! * The last part holds records, and nothing is being read when it is made.
//! * No worker waits while a range that was read elsewhere has arrived and is not settled, or while other work for
//!   workers has been announced. The waiting worker may be the one that has to do this work.
//! * With the lock held, nothing is asked of the system: the answer may take long, and the session's loop needs the
//!   lock.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use rd_proto::control::IoFact;
use rd_proto::tree::blocks::{Blocks, Step};
use rd_proto::tree::{Answer, OPEN_MAX, Verdict};
use rustix::io::Errno;

use super::digest_cache::{DigestCache, OfBlocks};
use super::progress::{Amount, Progress};
use super::root::Root;
use super::walk::{Come, Finished, LargeFile, Listed, Sent, Spent, Walk, WalkState};
use crate::fs::direct::{Cold, Tally};
use crate::fs::hash_range;
use crate::fs::holes::{data_from, hash_sparse};
use crate::fs::source::{Part, check_unchanged};
use crate::options::TreeOptions;

/// While the walk cannot go on, ends of large files wait until there are this many, so that they do not take a chunk
/// each.
const FINISHED_DUE: usize = OPEN_MAX / 2;

/// The ends also go out once the files have filled this many parts, so that files that arrived whole are soon
/// published.
const FINISHED_DUE_PARTS: u64 = 16;

/// Number of large files whose ranges are sent in turns. A file system allows one write into a file at a time, so a
/// single file is written no faster than one processor can write.
const FILES_AT_ONCE: usize = 4;

/// Bytes of a large file that are copied within a host as one piece of work.
const LOCAL_BYTES: usize = 32 << 20;

/// How long a copy within a host waits, while all threads are busy with large files, before it reports its progress.
const LOCAL_WAIT: Duration = Duration::from_millis(50);

/// One or several trees, given out in parts.
pub struct TreeSource {
    shared: Mutex<Shared>,
    /// Signalled when the walk is free, or there is something to read or to record.
    changed: Condvar,
    cancelled: AtomicBool,
    part_bytes: usize,
    progress: Arc<Progress>,
    /// Whether the caller copies large files, so that they are not read here.
    is_local: bool,
    /// Whether no receiver answers, so that everything is sent.
    is_unanswered: bool,
    cache: Option<Arc<DigestCache>>,
}

#[derive(Default)]
struct Shared {
    /// `None` while a worker walks.
    walk: Option<Box<Walk>>,
    state: WalkState,
    /// Large files that have not been given out whole, or of which parts are being read.
    files: BTreeMap<u32, Reading>,
    /// Files with more to give out. New files come last, and the first few take turns.
    ready: VecDeque<u32>,
    /// Large files whose ends are to be recorded, and the bytes of data that they had.
    finished: Vec<Finished>,
    finished_bytes: u64,
    /// Number of the last large file that was announced.
    announced: u32,
    listed: Listed,
    sequence: u64,
    /// Bytes of records given out.
    records_bytes: u64,
    sent: Sent,
    /// Lowest number that the next answer about a fresh directory may have.
    next_fresh: u64,
    /// Number of ranges that were read elsewhere and are not settled, and of other work that has not been taken up.
    arrived: usize,
}

/// A large file that is being read.
struct Reading {
    file: Arc<LargeFile>,
    /// Where the next part begins, unless a hole begins there.
    next: u64,
    /// A range that is known to be data.
    data: Range<u64>,
    /// Whether a worker asks the system where there is data from `next` on.
    is_looked_at: bool,
    /// Number of parts that are being read.
    in_flight: usize,
    data_bytes: u64,
    failure: Option<IoFact>,
    /// What the receiver already has of the file, if the source waits for that information.
    blocks: Option<Blocks>,
    /// Ranges of which the receiver has other data.
    again: Vec<Range<u64>>,
    /// Bytes of which the receiver has the same data, and the digest of all blocks of the file.
    same_bytes: u64,
    of_blocks: OfBlocks,
    /// Time before which the file has not been read.
    began: SystemTime,
}

/// A range of a large file.
enum Piece {
    /// To be read and sent.
    Send { position: u64, length: usize },
    /// To be read and compared, and sent only if it differs.
    Compare { range: Range<u64>, hash: [u8; 16] },
    /// From this position on: the system is to be asked where there is data.
    Look(u64),
}

/// What a worker does next.
enum Task {
    Walk(Box<Walk>, Come),
    Read(Arc<LargeFile>, Piece),
    Finish(Reading),
    /// Settle what has arrived.
    Settle,
    /// Ask again, because there was nothing to do for as long as the worker may wait.
    Wait,
    Nothing,
}

/// What a worker gets.
#[derive(Debug)]
pub enum Next {
    /// A part, which is now in the target.
    Part(Part),
    /// A range that is not in the page cache. The caller reads it into the target as `Cold` says, and then settles it.
    Cold(FileRange, Cold),
    /// A range that the caller copies within this host, and then reports with [`TreeSource::copied`].
    Copy(FileRange),
    /// Nothing yet: ranges that other threads have read must be settled first, or other threads are copying. The caller
    /// asks again after that.
    Later,
    /// Nothing: everything has been given out.
    Ended,
}

/// A range of a large file, all of it data, that is read or copied elsewhere.
#[derive(Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<LargeFile>,
    /// Position of the range in the file, and at the destination.
    pub position: u64,
    /// Length of the range in bytes.
    pub length: usize,
    /// Sequence of the range's part, if the range was planned.
    sequence: Option<u64>,
}

impl TreeSource {
    /// Prepares to send `roots` in parts of at most `part_bytes`, except for a longer record. An entry whose record does
    /// not fit into the target of [`TreeSource::next`] fails: 256 KiB are enough for any entry, 8 KiB for any entry
    /// without extended attributes.
    ///
    /// # Errors
    ///
    /// The errors of [`Walk::new`].
    pub fn new(
        roots: Vec<Root>,
        part_bytes: usize,
        options: TreeOptions,
        progress: Arc<Progress>,
    ) -> Result<Self, IoFact> {
        crate::fs::raise_open_files();
        let walk = Walk::new(roots, part_bytes, options)?;
        let cache = walk.cache();
        let shared = Shared { walk: Some(Box::new(walk)), ..Shared::default() };
        Ok(Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
            part_bytes,
            progress,
            is_local: false,
            is_unanswered: false,
            cache,
        })
    }

    /// For a copy within this host by one thread: large files are not read, but given out in ranges to be copied.
    #[must_use]
    pub fn local(self) -> Self {
        Self { is_local: true, ..self }
    }

    /// For receivers that do not answer: everything is sent, whatever they have. The options must not be those of
    /// `--sync`.
    #[must_use]
    pub fn unanswered(self) -> Self {
        Self { is_unanswered: true, ..self }
    }

    /// Fills `target`, which is at least as long as a part, with the next part: records (item 0) or data of a large
    /// file. For data that is not in the page cache, says how to read it. A part ends at `bytes`, except for the rest
    /// of a record.
    ///
    /// Several threads may call this at once. A call waits only while other threads must finish something first, and
    /// not while anything has arrived that is not settled. Returns [`Next::Ended`] once everything has been given out,
    /// and after [`TreeSource::cancel`].
    pub fn next(&self, target: &mut [u8], bytes: usize, tally: &Tally) -> Next {
        let (range_bytes, wait) = match self.is_local {
            true => (LOCAL_BYTES, LOCAL_WAIT),
            false => (self.part_bytes.min(bytes), Duration::MAX),
        };
        loop {
            match self.task(range_bytes, wait) {
                Task::Nothing => return Next::Ended,
                Task::Settle | Task::Wait => return Next::Later,
                Task::Walk(walk, come) => {
                    if let Some(part) = self.walk(walk, come, target, bytes) {
                        return Next::Part(part);
                    }
                }
                Task::Read(file, Piece::Compare { range, hash }) => {
                    let length = range.end - range.start;
                    let hash_it = if file.is_sparse { hash_sparse } else { hash_range };
                    let is_same = hash_it(&file.file, range.start, length, target).is_ok_and(|ours| ours == hash);
                    self.compared(&file, range, is_same);
                }
                Task::Read(file, Piece::Look(position)) => self.look(&file, position),
                Task::Read(file, Piece::Send { position, length }) if self.is_local => {
                    return Next::Copy(FileRange { file, position, length, sequence: None });
                }
                Task::Read(file, Piece::Send { position, length }) => {
                    let range = FileRange { file, position, length, sequence: None };
                    if let Some(next) = self.read(range, target, tally) {
                        return next;
                    }
                }
                Task::Finish(reading) => self.finish(reading),
            }
        }
    }

    /// Reads a range, or says how to read it. `None` if the range could not be read and has no sequence.
    fn read(&self, range: FileRange, target: &mut [u8], tally: &Tally) -> Option<Next> {
        let file = &range.file;
        match file.bypass.read(&file.file, &file.path, range.position, target, range.length, tally) {
            Ok(Some(cold)) => Some(Next::Cold(range, cold)),
            outcome => self.account(&range, outcome.map(drop)).map(Next::Part),
        }
    }

    /// Takes the next range of a large file, of at most `bytes`, for a caller that reads it just before it is sent.
    /// `None` if [`TreeSource::next`] has something else to do, or would have to ask the system. The range has its
    /// sequence from here on, so [`TreeSource::read_cached`] or [`TreeSource::read_planned`] must follow.
    pub fn plan(&self, bytes: usize) -> Option<Part> {
        let mut guard = crate::locked(&self.shared);
        let shared = &mut *guard;
        if self.cancelled.load(Ordering::Relaxed)
            || shared.state == WalkState::Ended
            || shared.walk_is_due(self.part_bytes)
        {
            return None;
        }
        // Files that have been planned whole leave the queue.
        while let Some(reading) = shared.ready.front().and_then(|item| shared.files.get(item))
            && reading.in_flight > 0
            && reading.is_given_out()
        {
            shared.ready.pop_front();
        }
        let item = *shared.ready.front()?;
        let reading = shared.files.get_mut(&item)?;
        let (position, length) = reading.next_simple(self.part_bytes.min(bytes))?;
        reading.in_flight += 1;
        shared.pass_turn(FILES_AT_ONCE);
        Some(Part { item, sequence: shared.take_sequence(), position, length, is_final: false })
    }

    /// Reads a planned range if that needs no wait for a disk. Returns false if it does, or if reading fails.
    pub fn read_cached(&self, part: &Part, target: &mut [u8], tally: &Tally) -> bool {
        let range = self.planned(part);
        let file = &range.file;
        let is_read = file.bypass.read_cached(&file.file, part.position, &mut target[..part.length], tally);
        if is_read {
            self.account(&range, Ok(()));
        }
        is_read
    }

    /// Reads a planned range, or says how to read it. If the range cannot be read, its part has no bytes.
    pub fn read_planned(&self, part: &Part, target: &mut [u8], tally: &Tally) -> Next {
        self.read(self.planned(part), target, tally).expect("its number is taken")
    }

    fn planned(&self, part: &Part) -> FileRange {
        let file = Arc::clone(&crate::locked(&self.shared).files.get(&part.item).expect("it is being read").file);
        FileRange { file, position: part.position, length: part.length, sequence: Some(part.sequence) }
    }

    /// Records that a range has been copied; `outcome` says if it could not be read.
    pub fn copied(&self, range: &FileRange, outcome: Result<(), IoFact>) {
        self.account(range, outcome);
        self.changed.notify_all();
    }

    /// Announces a range that has been read elsewhere, and that a worker is about to be asked to settle.
    pub fn note_arrival(&self) {
        crate::locked(&self.shared).arrived += 1;
        self.changed.notify_all();
    }

    /// Records that other work, which [`Self::note_arrival`] has announced, has been taken up.
    pub fn note_taken(&self) {
        crate::locked(&self.shared).arrived -= 1;
    }

    /// Settles a range that has been announced. `outcome` is the result of the direct read. `None` if the range could
    /// not be read. Then the file has failed, and the target is free again.
    pub fn settle(
        &self,
        range: &FileRange,
        cold: &Cold,
        outcome: Result<usize, Errno>,
        target: &mut [u8],
        tally: &Tally,
    ) -> Option<Part> {
        crate::locked(&self.shared).arrived -= 1;
        let file = &range.file;
        let outcome = file.bypass.finish(&file.file, &file.path, cold, outcome, target, tally);
        self.account(range, outcome)
    }

    /// Takes an answer of the receiver, as it arrived.
    ///
    /// # Errors
    ///
    /// Fails with the reason why no correct receiver would have sent the answer.
    pub fn handle_answer(&self, answer: Answer) -> Result<(), &'static str> {
        let mut shared = crate::locked(&self.shared);
        let (item, block_bytes, is_last, digests) = match answer {
            Answer::Blocks { item, block_bytes, is_last, digests } => (item, block_bytes, is_last, digests),
            Answer::Fresh { directory }
                if (shared.next_fresh..shared.sent.figures.amount.directories).contains(&directory) =>
            {
                shared.next_fresh = directory + 1;
                shared.listed.answered.fresh.push(directory);
                self.changed.notify_all();
                return Ok(());
            }
            Answer::Fresh { .. } => return Err("an answer about a directory that was not sent, or out of order"),
            Answer::Verdicts { first, verdicts } => {
                if verdicts.iter().any(Verdict::is_settled) {
                    self.progress.note_same();
                }
                shared.listed.judge(first, verdicts)?;
                self.changed.notify_all();
                return Ok(());
            }
        };
        let Some(reading) = shared.files.get_mut(&item) else {
            // A file that could not be read may be finished before the receiver has sent all its digests.
            let was_announced = (1..=shared.announced).contains(&item);
            return if was_announced { Ok(()) } else { Err("digests of a file that was not announced") };
        };
        let size = reading.file.stat.st_size as u64;
        let blocks = reading.blocks.as_mut().ok_or("digests of a file that needs none")?;
        if self.cache.is_some() {
            reading.of_blocks.add(block_bytes, &digests);
        }
        blocks.take(block_bytes, digests, is_last, size)?;
        if !shared.ready.contains(&item) {
            shared.ready.push_back(item);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Returns what has been given out so far.
    pub fn sent(&self) -> Sent {
        crate::locked(&self.shared).sent.clone()
    }

    /// Returns the list of sent entries once everything has been given out, with `--remove-source-files`. They are
    /// removed when the receiver has answered.
    pub fn take_spent(&self) -> Option<Spent> {
        crate::locked(&self.shared).walk.as_mut()?.take_spent()
    }

    /// Ends the transfer early: waiting and later calls of [`TreeSource::next`] return [`Next::Ended`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Under the lock, because a worker that has just checked and is about to wait would miss the signal.
        let _shared = crate::locked(&self.shared);
        self.changed.notify_all();
    }

    /// Finds a task, or waits up to `patience` for one. The walk goes first, because it makes work for other workers.
    /// `bytes`: maximum length of a range.
    fn task(&self, bytes: usize, patience: Duration) -> Task {
        let mut shared = crate::locked(&self.shared);
        loop {
            if self.cancelled.load(Ordering::Relaxed) || shared.state == WalkState::Ended {
                return Task::Nothing;
            }
            if shared.walk_is_due(self.part_bytes)
                && let Some(walk) = shared.walk.take()
            {
                shared.finished_bytes = 0;
                let (finished, listed) = (std::mem::take(&mut shared.finished), &mut shared.listed);
                let answered = std::mem::take(&mut listed.answered);
                let come = Come { finished, answered, room: listed.room(), unjudged: listed.unjudged() };
                return Task::Walk(walk, come);
            }
            if let Some(task) = shared.next_read(bytes, if self.is_local { 1 } else { FILES_AT_ONCE }) {
                return task;
            }
            if shared.arrived > 0 {
                return Task::Settle;
            }
            let (woken, waited) = self.changed.wait_timeout(shared, patience).expect("no panic with it locked");
            if waited.timed_out() {
                return Task::Wait;
            }
            shared = woken;
        }
    }

    /// Makes a chunk of records, unless there is nothing to record, and queues the large files that it announces.
    fn walk(&self, mut walk: Box<Walk>, come: Come, target: &mut [u8], bytes: usize) -> Option<Part> {
        let began = SystemTime::now();
        let filled = walk.fill(target, bytes, come, &self.cancelled);
        let mut shared = crate::locked(&self.shared);
        shared.walk = Some(walk);
        shared.state = filled.state;
        let large_bytes = filled.opened.iter().map(data_bytes).sum::<u64>();
        let amount = filled.sent.figures.amount;
        let is_all = matches!(filled.state, WalkState::Over | WalkState::Ended);
        self.progress.walked(Amount { bytes: amount.bytes.saturating_add(large_bytes), ..amount }, is_all);
        shared.sent.add(filled.sent);
        shared.listed.add(filled.listed, filled.settled);
        if is_all && shared.listed.is_settled() {
            self.progress.settled_all();
        }
        for file in filled.opened {
            let item = file.item;
            let blocks = (file.awaits_blocks && !self.is_unanswered).then(Blocks::default);
            if blocks.is_none() {
                shared.ready.push_back(item);
            }
            shared.announced = item;
            let reading = Reading {
                next: 0,
                data: if file.is_sparse { 0..0 } else { 0..file.stat.st_size as u64 },
                is_looked_at: false,
                file: Arc::new(file),
                in_flight: 0,
                data_bytes: 0,
                failure: None,
                blocks,
                again: Vec::new(),
                same_bytes: 0,
                of_blocks: OfBlocks::default(),
                began,
            };
            shared.files.insert(item, reading);
        }
        let is_final = filled.state == WalkState::Ended;
        let part = (filled.length > 0).then(|| {
            let position = shared.records_bytes;
            shared.records_bytes += filled.length as u64;
            Part { item: 0, sequence: shared.take_sequence(), position, length: filled.length, is_final }
        });
        self.changed.notify_all();
        part
    }

    /// Asks the system where a file has data from a position on, and queues the file again.
    fn look(&self, file: &LargeFile, position: u64) {
        let (start, end) = data_from(&file.file, position, file.stat.st_size as u64);
        let mut guard = crate::locked(&self.shared);
        let shared = &mut *guard;
        let reading = shared.files.get_mut(&file.item).expect("it is being read");
        reading.in_flight -= 1;
        (reading.data, reading.is_looked_at) = (start..end, false);
        // An answer of the receiver, or a block that differs, may have queued it meanwhile.
        if !shared.ready.contains(&file.item) {
            shared.ready.push_front(file.item);
        }
        self.changed.notify_all();
    }

    /// Accounts for a part that was read, or could not be. A sequence that was taken must be sent, if only without
    /// data.
    fn account(&self, range: &FileRange, outcome: Result<(), IoFact>) -> Option<Part> {
        let FileRange { file, position, length, sequence } = range;
        let mut guard = crate::locked(&self.shared);
        let shared = &mut *guard;
        let reading = shared.files.get_mut(&file.item).expect("it is being read");
        reading.in_flight -= 1;
        let part = |sequence, length| Part { item: file.item, sequence, position: *position, length, is_final: false };
        let part = match outcome {
            Ok(()) => {
                reading.data_bytes += *length as u64;
                shared.sent.figures.amount.bytes += *length as u64;
                Some(part(sequence.unwrap_or_else(|| shared.take_sequence()), *length))
            }
            Err(fact) => {
                reading.failure.get_or_insert(fact);
                sequence.map(|sequence| part(sequence, 0))
            }
        };
        let done = shared.take_done(file.item);
        drop(guard);
        if let Some(reading) = done {
            self.finish(reading);
        }
        part
    }

    /// Accounts for a range that was compared.
    fn compared(&self, file: &LargeFile, range: Range<u64>, is_same: bool) {
        let mut guard = crate::locked(&self.shared);
        let shared = &mut *guard;
        let reading = shared.files.get_mut(&file.item).expect("it is being read");
        reading.in_flight -= 1;
        if is_same {
            reading.same_bytes += range.end - range.start;
            shared.sent.figures.kept_bytes += range.end - range.start;
            self.progress.set_kept(shared.sent.figures.kept_bytes);
        } else {
            reading.again.push(range);
            if !shared.ready.contains(&file.item) {
                shared.ready.push_back(file.item);
            }
        }
        let done = shared.take_done(file.item);
        drop(guard);
        self.changed.notify_all();
        if let Some(reading) = done {
            self.finish(reading);
        }
    }

    /// Checks a file of which everything has been read for changes, and queues its end to be recorded.
    fn finish(&self, reading: Reading) {
        let Reading { file, data_bytes, failure, same_bytes, of_blocks, began, .. } = reading;
        let outcome = failure.map_or_else(|| check_unchanged(&file.file, &file.path, &file.stat), Err);
        let size = file.stat.st_size as u64;
        if let Some(cache) = self.cache.as_ref().filter(|_| outcome.is_ok() && data_bytes == 0 && same_bytes == size)
            && let Some(digest) = of_blocks.finish(size)
        {
            cache.put(began, &file.file, &file.stat, digest);
        }
        let item = file.item;
        drop(file);
        let mut shared = crate::locked(&self.shared);
        shared.finished.push(Finished { item, data_bytes, outcome });
        shared.finished_bytes += data_bytes;
        self.changed.notify_all();
    }
}

impl Shared {
    fn take_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// Whether the walk can go on, and whether that is worth a chunk by now.
    fn walk_is_due(&self, part_bytes: usize) -> bool {
        let Some(walk) = &self.walk else { return false };
        let finished = self.finished.len();
        let is_worth_it =
            finished >= FINISHED_DUE || finished > 0 && self.finished_bytes >= FINISHED_DUE_PARTS * part_bytes as u64;
        match self.state {
            WalkState::Going => true,
            WalkState::AtLimit => is_worth_it || self.listed.has_news() || finished > 0 && self.ready.is_empty(),
            WalkState::Over => {
                is_worth_it || self.listed.has_news() || finished == walk.open_files() && self.listed.is_settled()
            }
            WalkState::Ended => false,
        }
    }

    /// Returns the next part of a large file, or a file that turns out to have no more. Files that wait for the
    /// receiver, or for the system to say where they have data, leave the queue.
    fn next_read(&mut self, part_bytes: usize, files_at_once: usize) -> Option<Task> {
        while let Some(&item) = self.ready.front() {
            let reading = self.files.get_mut(&item).expect("it is being read");
            if let Some(piece) = reading.next_piece(part_bytes) {
                reading.in_flight += 1;
                let file = Arc::clone(&reading.file);
                if matches!(piece, Piece::Look(_)) {
                    self.ready.pop_front();
                } else {
                    self.pass_turn(files_at_once);
                }
                return Some(Task::Read(file, piece));
            }
            self.ready.pop_front();
            if let Some(reading) = self.take_done(item) {
                return Some(Task::Finish(reading));
            }
        }
        None
    }

    /// Moves the file that has had its turn behind the other first files.
    fn pass_turn(&mut self, files_at_once: usize) {
        let last = files_at_once.min(self.ready.len());
        self.ready.make_contiguous()[..last].rotate_left(usize::from(last > 1));
    }

    /// Takes a file out of the table if all of it has been given out and read.
    fn take_done(&mut self, item: u32) -> Option<Reading> {
        let is_done = self.files.get(&item).is_some_and(|reading| reading.in_flight == 0 && reading.is_given_out());
        if !is_done {
            return None;
        }
        self.ready.retain(|&other| other != item);
        self.files.remove(&item)
    }
}

impl Reading {
    fn is_given_out(&self) -> bool {
        self.failure.is_some() || self.next >= self.file.stat.st_size as u64 && self.again.is_empty()
    }

    /// Returns the next range, if that is known to be data that the receiver does not have, and nothing comes before
    /// it.
    fn next_simple(&mut self, part_bytes: usize) -> Option<(u64, usize)> {
        let (position, size) = (self.next, self.file.stat.st_size as u64);
        let end = match &mut self.blocks {
            None => size,
            Some(blocks) => match blocks.step(position, size) {
                Step::Send(to) => to,
                Step::Wait | Step::Compare(..) => return None,
            },
        };
        if self.is_given_out() || !self.again.is_empty() || !self.data.contains(&position) {
            return None;
        }
        self.next = self.data.end.min(end).min(position + part_bytes as u64);
        Some((position, (self.next - position) as usize))
    }

    /// Returns the next range, and what is to be done with it. `None` if everything is given out, or the receiver has
    /// yet to say what it has there, or the system where there is data.
    fn next_piece(&mut self, part_bytes: usize) -> Option<Piece> {
        let size = self.file.stat.st_size as u64;
        if self.failure.is_none()
            && let Some(range) = self.again.last_mut()
        {
            let position = range.start;
            let length = (range.end - position).min(part_bytes as u64);
            range.start += length;
            if range.is_empty() {
                self.again.pop();
            }
            return Some(Piece::Send { position, length: length as usize });
        }
        while !self.is_looked_at && !self.is_given_out() {
            let (position, mut end) = (self.next, size);
            if let Some(blocks) = &mut self.blocks {
                match blocks.step(position, size) {
                    Step::Wait => return None,
                    Step::Compare(end, hash) => {
                        self.next = end;
                        return Some(Piece::Compare { range: position..end, hash });
                    }
                    Step::Send(to) => end = to,
                }
            }
            if position >= self.data.end {
                self.is_looked_at = true;
                return Some(Piece::Look(position));
            }
            if position < self.data.start {
                // What the receiver does not have becomes a hole there.
                self.next = self.data.start.min(end);
                continue;
            }
            self.next = self.data.end.min(end).min(position + part_bytes as u64);
            return Some(Piece::Send { position, length: (self.next - position) as usize });
        }
        None
    }
}

/// Returns the approximate amount of data in a file, without its holes.
fn data_bytes(file: &LargeFile) -> u64 {
    let (size, blocks) = (file.stat.st_size as u64, file.stat.st_blocks as u64);
    if file.is_sparse { size.min(blocks.saturating_mul(512)) } else { size }
}

#[cfg(test)]
mod tests;
