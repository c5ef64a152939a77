//! The spool: the part of a broadcast's stream that a node keeps in memory.
//!
//! Data from one session of this process, or from reading a tree, goes in at the end. The local tree and the session to
//! the next host in the chain take it out, each at its own position. Data that neither needs any more is let go.
//!
//! # Invariants
//!
//! * The spool keeps one range of the stream without gaps, within its bound on memory. The input
//!   waits while there is no room.
//! * Data is let go only when the local tree has written it, it has been sent to the next host, and the next host has
//!   said that it need not be kept. The next host says so once the host after it has the data. So if the next host
//!   dies, the host after it can be sent everything that it lacks.
//! * At any time one session puts data in, and one takes data out. A new session replaces the earlier one, whose
//!   calls then have no effect.
//! * No session waits in the spool after it is over.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rd_proto::broadcast::{Mark, Marks, PAGE_BYTES, encode_mark};

use super::{Buffer, Pool};
pub use segment::{Chunk, SEGMENT_BYTES};
use segment::{Memory, Segment, room_for};

mod segment;

/// Minimum size of a spool, in segments of full length.
const SEGMENTS_MIN: usize = 4;

/// An input that waits for room is woken when this fraction (1/8) of the spool is free. A thread that sleeps and wakes
/// for each segment costs more than its work does.
const ROOM_SHARE: usize = 8;

/// How long a tree may stand still with the spool full, while the next host waits for more.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// How long the next host may take to say from which offset it wants the stream.
const MARK_MAX: Duration = Duration::from_secs(30);

/// How often waiting threads check whether they should still wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// This host reports to the previous one how far data is no longer needed, whenever this fraction (1/8) of the spool
/// has been added, or after this time.
const MARK_SHARE: u64 = 8;
const MARK_EVERY: Duration = Duration::from_millis(50);

fn emptied(mut buffer: Buffer) -> Buffer {
    buffer.give_back();
    buffer
}

/// Positions of the next host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    /// Offset of the data to send next. `None` until the next host has said where to begin.
    reader: Option<u64>,
    /// The next host has everything below this offset.
    passed: u64,
    /// The next host needs nothing kept below this offset.
    safe: u64,
}

/// Positions of all parties, as offsets in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    /// The data between `start` and `end` is kept.
    start: u64,
    end: u64,
    has_ended: bool,
    /// Offset of the data that the local tree takes next. `None` if it takes none, or no more.
    tree: Option<u64>,
    next: Option<Next>,
}

impl Places {
    /// Returns the offset below which nothing needs to be kept.
    fn floor(&self) -> u64 {
        let next = self.next.map_or(self.end, |next| next.reader.unwrap_or(u64::MAX).min(next.safe));
        next.min(self.tree.unwrap_or(self.end))
    }

    /// Returns the offset below which the previous host need not keep anything for this host.
    fn safe(&self) -> u64 {
        self.next.map_or(self.end, |next| next.passed)
    }

    fn set_next(&mut self, is_there: bool) {
        self.next = match self.next {
            next @ Some(_) if is_there => next,
            None if is_there => Some(Next { reader: None, passed: self.start, safe: self.start }),
            _ => None,
        };
    }

    /// Makes `from` the offset of the data to send next, as the next host asked. False if that data is not kept,
    /// or there is no next host.
    fn send_from(&mut self, from: u64) -> bool {
        // The next host was removed meanwhile. It is not added again here, because no second removal would follow.
        let Some(next) = &mut self.next else { return false };
        let is_kept = (self.start..=self.end).contains(&from);
        if is_kept {
            *next = Next { reader: Some(from), passed: from, safe: next.safe.min(from) };
        }
        is_kept
    }
}

#[derive(Default)]
struct State {
    places: Places,
    segments: VecDeque<Arc<Segment>>,
    /// Number of bytes that the segments take.
    used_bytes: usize,
    /// Buffers for segments of full length: `spare` ones have memory, from segments let go; `blank` ones have none.
    spare: Vec<Buffer>,
    blank: Vec<Buffer>,
    /// Numbers of the session that puts data in, and of the session that takes data out.
    input: u64,
    output: u64,
    marks: Marks,
    /// Whether the next host asked for data that is not kept.
    is_refused: bool,
    /// Whether the next host waits for data, the local tree waits for data, and the input waits for room.
    next_waits: bool,
    tree_waits: bool,
    input_waits: bool,
    /// The last offset reported to the previous host, and when.
    said: Option<(u64, Instant)>,
    /// Wakes the session that puts data in.
    wake: Option<Box<dyn Fn() + Send>>,
    is_behind: bool,
    /// Whether the local tree is never cut off for being slow.
    holds: bool,
    is_stopped: bool,
    has_news: bool,
    /// How far the local tree has taken the stream; kept after it takes no more.
    written: u64,
    passed: u64,
}

/// The part of a broadcast's stream that a host keeps in memory, shared by the sessions and the local tree.
pub struct Spool {
    state: Mutex<State>,
    bytes_max: usize,
    has_room: Condvar,
    has_more_for_tree: Condvar,
    has_more_for_next: Condvar,
    news: Condvar,
    /// How long the local tree has waited for the stream, in microseconds.
    idle_micros: AtomicU64,
}

/// How far the host, its local tree and the next host are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Offset up to which the stream has arrived here.
    pub received: u64,
    /// Offset up to which the local tree has taken the stream.
    pub written: u64,
    /// Offset up to which the next host has the stream.
    pub passed: u64,
    /// Whether the end of the stream has arrived.
    pub has_all: bool,
    /// Whether the local tree takes more.
    pub has_tree: bool,
    /// Whether the local tree was too slow for the others and takes no more.
    pub is_behind: bool,
    /// How long the local tree has waited for the stream, in microseconds.
    pub idle_micros: u64,
}

/// Error if the session has ended, another session has taken its place, the local tree is to take no more, or the whole
/// spool has been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Result of [`SpoolOutput::next`], for the next host.
#[derive(Debug)]
pub enum Outgoing {
    /// A part of the stream.
    Chunk(Chunk),
    /// The stream has ended.
    Ended,
    /// The next host asked for data that is not kept.
    NotKept,
    /// The next host has not said from which offset it wants the stream.
    Silent,
    /// See [`Gone`].
    Gone,
}

impl Spool {
    /// Makes a spool of at most `bytes` bytes. `has_tree`: whether this host makes a tree of the stream. `has_next`:
    /// whether there is a next host.
    pub fn new(bytes: u64, has_tree: bool, has_next: bool) -> Arc<Self> {
        let mut places = Places { tree: has_tree.then_some(0), ..Places::default() };
        places.set_next(has_next);
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX).max(SEGMENTS_MIN * SEGMENT_BYTES);
        let count = u32::try_from(bytes_max / SEGMENT_BYTES).unwrap_or(u32::MAX);
        // If this mapping cannot be made, each segment has memory of its own.
        let pool = Pool::new(count, const { NonZeroUsize::new(SEGMENT_BYTES).expect("not 0") });
        let blank = pool.map_or_else(|_| Vec::new(), |(_, buffers)| buffers);
        let state = State { places, blank, ..State::default() };
        Arc::new(Self {
            state: Mutex::new(state),
            bytes_max,
            has_room: Condvar::new(),
            has_more_for_tree: Condvar::new(),
            has_more_for_next: Condvar::new(),
            news: Condvar::new(),
            idle_micros: AtomicU64::new(0),
        })
    }

    /// Starts a session that puts data in, and replaces the earlier one.
    pub fn input(self: &Arc<Self>) -> SpoolInput {
        let mut state = crate::locked(&self.state);
        state.input += 1;
        (state.said, state.wake) = (None, None);
        self.has_room.notify_all();
        SpoolInput { spool: Arc::clone(self), turn: state.input, from: state.places.end }
    }

    /// Starts a session that takes data out for the next host, and replaces the earlier one.
    pub fn output(self: &Arc<Self>) -> SpoolOutput {
        let mut state = crate::locked(&self.state);
        state.output += 1;
        (state.marks, state.is_refused, state.next_waits) = (Marks::default(), false, false);
        if let Some(next) = &mut state.places.next {
            next.reader = None;
        }
        self.has_more_for_next.notify_all();
        SpoolOutput { spool: Arc::clone(self), turn: state.output, taken: AtomicU64::new(0) }
    }

    /// Sets whether there is a next host.
    pub fn set_next(&self, is_there: bool) {
        let mut state = crate::locked(&self.state);
        state.places.set_next(is_there);
        self.let_go(&mut state);
        self.wake_input(&state);
    }

    /// Makes the local tree take no more. `is_behind`: whether it was too slow.
    pub fn leave(&self, is_behind: bool) {
        self.cut_off(&mut crate::locked(&self.state), is_behind);
    }

    /// Makes the input wait for the local tree, however long the tree stands still.
    pub fn hold(&self) {
        crate::locked(&self.state).holds = true;
    }

    /// Gives up the whole spool.
    pub fn stop(&self) {
        crate::locked(&self.state).is_stopped = true;
        for waiting in [&self.has_room, &self.has_more_for_tree, &self.has_more_for_next, &self.news] {
            waiting.notify_all();
        }
    }

    /// Returns how far the host, its local tree and the next host are.
    pub fn status(&self) -> SpoolStatus {
        let state = crate::locked(&self.state);
        SpoolStatus {
            received: state.places.end,
            written: state.written,
            passed: state.places.next.map_or(state.passed, |next| next.passed),
            has_all: state.places.has_ended,
            has_tree: state.places.tree.is_some(),
            is_behind: state.is_behind,
            idle_micros: self.idle_micros.load(Ordering::Relaxed),
        }
    }

    /// Sets a state that no real receiver would report: the next host has more than this host.
    #[cfg(test)]
    pub fn lie(&self, passed: u64) {
        crate::locked(&self.state).places.next = Some(Next { reader: None, passed, safe: 0 });
    }

    /// Waits until something has happened that others should know of, or `longest` has passed.
    pub fn wait_for_news(&self, longest: Duration) {
        let state = crate::locked(&self.state);
        let waited = self.news.wait_timeout_while(state, longest, |state| !state.has_news && !state.is_stopped);
        waited.expect("no panics under it").0.has_news = false;
    }

    /// Returns the next part of the stream for the local tree, and waits for it. `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// [`Gone`] if the tree is to take no more.
    pub fn take(self: &Arc<Self>) -> Result<Option<Slice>, Gone> {
        let mut state = crate::locked(&self.state);
        let at = loop {
            match state.places.tree.filter(|_| !state.is_stopped) {
                None => return Err(Gone),
                Some(at) if at < state.places.end => break at,
                Some(_) if state.places.has_ended => return Ok(None),
                Some(_) => {}
            }
            let since = Instant::now();
            state.tree_waits = true;
            state = self.has_more_for_tree.wait_timeout(state, LOOK_EVERY).expect("no panics under it").0;
            self.idle_micros.fetch_add(since.elapsed().as_micros() as u64, Ordering::Relaxed);
        };
        let segment = Arc::clone(&state.segments[state.find(at)]);
        state.places.tree = Some(segment.end());
        state.written = segment.end();
        let skip = (at - segment.start) as usize;
        Ok(Some(Slice { segment: Some(segment), skip, spool: Arc::clone(self) }))
    }

    /// Frees data that is no longer needed.
    fn let_go(&self, state: &mut State) {
        let floor = state.places.floor();
        while state.segments.front().is_some_and(|segment| segment.end() <= floor) {
            match Arc::try_unwrap(state.segments.pop_front().expect("just seen")) {
                Ok(segment) => {
                    state.used_bytes -= segment.room();
                    self.reclaim(state, segment.memory);
                }
                // The tree's threads still write this segment, so its memory is not free yet. Once the tree has been
                // cut off, the spool does not wait for them.
                Err(held) if state.places.tree.is_some() => {
                    state.segments.push_front(held);
                    break;
                }
                Err(held) => state.used_bytes -= held.room(),
            }
        }
        state.places.start = state.segments.front().map_or(state.places.end, |segment| segment.start);
        let share = (self.bytes_max / ROOM_SHARE).max(SEGMENT_BYTES);
        if state.input_waits && state.used_bytes + share <= self.bytes_max {
            state.input_waits = false;
            self.has_room.notify_all();
        }
    }

    /// Wakes the input if the previous host should be told that much more data need not be kept.
    fn wake_input(&self, state: &State) {
        if let (Some(wake), Some((said, _))) = (&state.wake, state.said)
            && state.places.safe() >= said + self.mark_bytes()
        {
            wake();
        }
    }

    fn mark_bytes(&self) -> u64 {
        self.bytes_max as u64 / MARK_SHARE
    }

    /// Whether `bytes` more memory may be used, beside that of segments and of spare buffers.
    fn has_memory_for(&self, state: &State, bytes: usize) -> bool {
        state.used_bytes + state.spare.len() * SEGMENT_BYTES + bytes <= self.bytes_max
    }

    /// Returns a buffer for a segment of full length. For a shorter segment returns `None`, after freeing spare buffers
    /// so that the segment's memory stays within the bound.
    fn buffer_for(&self, state: &mut State, bytes: usize) -> Option<Buffer> {
        if room_for(bytes) == SEGMENT_BYTES {
            return state.spare.pop().or_else(|| state.blank.pop());
        }
        while !self.has_memory_for(state, room_for(bytes))
            && let Some(buffer) = state.spare.pop()
        {
            state.blank.push(emptied(buffer));
        }
        None
    }

    /// Keeps a segment's buffer for another segment.
    fn reclaim(&self, state: &mut State, memory: Memory) {
        let Memory::Whole(buffer, _) = memory else { return };
        if self.has_memory_for(state, SEGMENT_BYTES) {
            state.spare.push(buffer);
        } else {
            state.blank.push(emptied(buffer));
        }
    }

    /// Wakes the local tree and the output if they wait for more data.
    fn tell_of_more(&self, state: &mut State) {
        if std::mem::take(&mut state.tree_waits) {
            self.has_more_for_tree.notify_all();
        }
        // `next_waits` stays set until the output's thread has looked.
        if state.next_waits {
            self.has_more_for_next.notify_all();
        }
    }

    fn cut_off(&self, state: &mut State, is_behind: bool) {
        let has_had_all = state.places.has_ended && state.places.tree == Some(state.places.end);
        if state.places.tree.is_none() || is_behind && has_had_all {
            return;
        }
        state.places.tree = None;
        state.is_behind |= is_behind;
        self.tell(state);
        self.let_go(state);
        self.has_more_for_tree.notify_all();
    }

    fn tell(&self, state: &mut State) {
        state.has_news = true;
        self.news.notify_all();
    }
}

impl State {
    /// Returns the index of the segment that contains this offset.
    fn find(&self, offset: u64) -> usize {
        self.segments.partition_point(|segment| segment.end() <= offset)
    }

    /// Whether only the local tree keeps the first segment, while the next host waits for data after the last one.
    fn is_held_up_by_tree(&self) -> bool {
        let Some(first) = self.segments.front() else { return false };
        let without = Places { tree: None, ..self.places };
        self.places.tree.is_some() && self.next_waits && without.floor() >= first.end()
    }
}

/// The input of a spool: puts data in at the end of the stream.
pub struct SpoolInput {
    spool: Arc<Spool>,
    turn: u64,
    from: u64,
}

impl SpoolInput {
    /// Appends `bytes` to the stream. Waits for room until this session is `over`.
    ///
    /// # Errors
    ///
    /// [`Gone`] if this session or the spool has ended. Some of the bytes may have been appended.
    pub fn append(&self, bytes: &[u8], over: &AtomicBool) -> Result<(), Gone> {
        bytes
            .chunks(SEGMENT_BYTES)
            .try_for_each(|piece| self.put(piece.len(), |spare| Memory::copy_of(piece, spare), over))
    }

    /// Like [`SpoolInput::append`], for the first `length` bytes of a buffer, whose content may change. If possible,
    /// the bytes are not copied, and the buffer gets other memory instead.
    ///
    /// # Errors
    ///
    /// As for [`SpoolInput::append`].
    pub fn append_from(&self, buffer: &mut Buffer, length: usize, over: &AtomicBool) -> Result<(), Gone> {
        if room_for(length) != SEGMENT_BYTES {
            return self.append(&buffer.payload()[..length], over);
        }
        let take = |mut spare: Option<Buffer>| match spare.take_if(|spare| buffer.exchange(spare)) {
            Some(taken) => Memory::Whole(taken, length),
            None => Memory::copy_of(&buffer.payload()[..length], spare),
        };
        self.put(length, take, over)
    }

    fn put(&self, bytes: usize, fill: impl FnOnce(Option<Buffer>) -> Memory, over: &AtomicBool) -> Result<(), Gone> {
        let (spool, room) = (&*self.spool, room_for(bytes));
        let mut state = self.wait_for_room(room, over)?;
        let (spare, start) = (spool.buffer_for(&mut state, bytes), state.places.end);
        drop(state);
        let segment = Segment { start, memory: fill(spare) };
        state = crate::locked(&spool.state);
        // Only the session whose turn it is moves the end.
        if state.input != self.turn {
            spool.reclaim(&mut state, segment.memory);
            return Err(Gone);
        }
        state.places.end = segment.end();
        state.used_bytes += room;
        state.segments.push_back(Arc::new(segment));
        spool.let_go(&mut state);
        spool.tell_of_more(&mut state);
        Ok(())
    }

    /// Marks the end of the stream.
    ///
    /// # Errors
    ///
    /// [`Gone`] if this session or the spool has ended.
    pub fn end(&self) -> Result<(), Gone> {
        let spool = &*self.spool;
        let mut state = crate::locked(&spool.state);
        if state.input != self.turn || state.is_stopped {
            return Err(Gone);
        }
        state.places.has_ended = true;
        spool.tell(&mut state);
        spool.tell_of_more(&mut state);
        Ok(())
    }

    /// Returns the answer that the previous host is to be sent now; `None` if none is due.
    pub fn next_mark(&self) -> Option<Vec<u8>> {
        let mut state = crate::locked(&self.spool.state);
        if state.input != self.turn {
            return None;
        }
        let mark = match state.said {
            None => {
                state.said = Some((0, Instant::now()));
                return Some(encode_mark(self.from));
            }
            Some((said, at)) => {
                let safe = state.places.safe();
                let is_due = safe >= said + self.spool.mark_bytes() || safe > said && at.elapsed() >= MARK_EVERY;
                is_due.then_some(safe)?
            }
        };
        state.said = Some((mark, Instant::now()));
        Some(encode_mark(mark))
    }

    /// Sets `wake`, to be called when there may be an answer for the previous host. `wake` must not block.
    pub fn on_mark(&self, wake: Box<dyn Fn() + Send>) {
        let mut state = crate::locked(&self.spool.state);
        if state.input == self.turn {
            state.wake = Some(wake);
        }
    }

    fn wait_for_room(&self, room: usize, over: &AtomicBool) -> Result<MutexGuard<'_, State>, Gone> {
        let spool = &*self.spool;
        let mut state = crate::locked(&spool.state);
        let mut stood_still = Duration::ZERO;
        loop {
            if state.input != self.turn || state.is_stopped || over.load(Ordering::Relaxed) {
                return Err(Gone);
            }
            if state.used_bytes + room <= spool.bytes_max {
                return Ok(state);
            }
            state.input_waits = true;
            let before = Instant::now();
            state = spool.has_room.wait_timeout(state, LOOK_EVERY).expect("no panics under it").0;
            // If the process was stopped meanwhile, that time does not count as waiting.
            let waited = before.elapsed().min(2 * LOOK_EVERY);
            stood_still = if state.is_held_up_by_tree() { stood_still + waited } else { Duration::ZERO };
            if stood_still >= LAG_MAX && !state.holds {
                spool.cut_off(&mut state, true);
            }
        }
    }
}

/// The output of a spool: takes data out for the next host.
pub struct SpoolOutput {
    spool: Arc<Spool>,
    turn: u64,
    /// Number of bytes sent that the next host has, as last reported by the session.
    taken: AtomicU64,
}

impl SpoolOutput {
    /// Returns the next part of the stream, at most `bytes_max` bytes. Waits for it until this session is
    /// `over`. The first call waits for the next host to say where to begin. Returns the same part again
    /// until [`SpoolOutput::pass`].
    pub fn next(&self, bytes_max: usize, over: &AtomicBool) -> Outgoing {
        let spool = &*self.spool;
        let mut waited = Duration::ZERO;
        let mut state = crate::locked(&spool.state);
        let at = loop {
            state.next_waits = false;
            if state.output != self.turn || state.is_stopped || over.load(Ordering::Relaxed) {
                return Outgoing::Gone;
            }
            let reader = state.places.next.and_then(|next| next.reader);
            match reader {
                _ if state.is_refused => return Outgoing::NotKept,
                Some(at) if at < state.places.end => break at,
                Some(_) if state.places.has_ended => return Outgoing::Ended,
                None if waited >= MARK_MAX => return Outgoing::Silent,
                _ => {}
            }
            state.next_waits = reader.is_some();
            let before = Instant::now();
            state = spool.has_more_for_next.wait_timeout(state, LOOK_EVERY).expect("no panics under it").0;
            // If the process was stopped meanwhile, that time does not count as waiting.
            waited += before.elapsed().min(2 * LOOK_EVERY);
        };
        let mut end = state.places.end.min(at + bytes_max as u64);
        let first = state.find(at);
        let cut = state.segments[first].end();
        let can_step = |next: &Arc<Segment>| next.data().len().is_multiple_of(bytes_max);
        if cut < end && cut.is_multiple_of(PAGE_BYTES) && state.segments.get(first + 1).is_some_and(can_step) {
            // From this cut on, each chunk lies in one segment, so that it can be sealed in place.
            end = cut;
        }
        if end < state.places.end && end / PAGE_BYTES > at / PAGE_BYTES {
            // Page boundaries of this host are kept at the next host.
            end = end / PAGE_BYTES * PAGE_BYTES;
        }
        let segments = state.segments.range(first..).take_while(|segment| segment.start < end).cloned().collect();
        Outgoing::Chunk(Chunk { segments, at, end })
    }

    /// Records that a chunk has been copied: [`SpoolOutput::next`] goes on after it.
    ///
    /// # Errors
    ///
    /// [`Gone`] if another session has taken the place of this one.
    pub fn pass(&self, chunk: Chunk) -> Result<(), Gone> {
        let end = chunk.end;
        drop(chunk);
        let spool = &*self.spool;
        let mut state = crate::locked(&spool.state);
        let has_turn = state.output == self.turn;
        if let Some(next) = state.places.next.as_mut().filter(|_| has_turn) {
            next.reader = Some(end);
        }
        // The chunk may have been the last holder of segments that a mark has released meanwhile.
        spool.let_go(&mut state);
        has_turn.then_some(()).ok_or(Gone)
    }

    /// Takes in a mark of the next host, as the peer sent it. `None` if no receiver would have sent this mark.
    #[must_use]
    pub fn take_mark(&self, bytes: &[u8]) -> Option<()> {
        let spool = &*self.spool;
        let mut state = crate::locked(&spool.state);
        if state.output != self.turn {
            return Some(());
        }
        let reader = state.places.next.and_then(|next| next.reader);
        if reader.is_none() && state.marks.have_begun() {
            // A host that is refused or no longer wanted sends further marks until it learns of that.
            return Some(());
        }
        match state.marks.take(bytes, reader.unwrap_or(0))? {
            Mark::From(offset) => {
                state.is_refused = !state.places.send_from(offset);
                spool.has_more_for_next.notify_all();
            }
            Mark::Keep(offset) => {
                if let Some(next) = &mut state.places.next {
                    next.safe = offset;
                }
            }
        }
        spool.let_go(&mut state);
        spool.wake_input(&state);
        Some(())
    }

    /// Records that the next host has `bytes` bytes of what this session has sent.
    pub fn note_taken(&self, bytes: u64) {
        let before = self.taken.swap(bytes, Ordering::Relaxed);
        if before == bytes {
            return;
        }
        let spool = &*self.spool;
        let mut state = crate::locked(&spool.state);
        if state.output != self.turn {
            return;
        }
        // What an unwanted host has does not count for the host that replaces it.
        if let Some(next) = state.places.next.as_mut().filter(|next| next.reader.is_some()) {
            next.passed += bytes - before;
            let passed = next.passed;
            state.passed = passed;
            if state.places.has_ended && passed == state.places.end {
                spool.tell(&mut state);
            }
        }
        spool.wake_input(&state);
    }
}

/// A part of the stream, held by the local tree. Dropping it lets it go.
pub struct Slice {
    segment: Option<Arc<Segment>>,
    skip: usize,
    spool: Arc<Spool>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.segment.as_ref().expect("until it is dropped").data()[self.skip..]
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let alone = self.segment.take().and_then(|segment| Arc::try_unwrap(segment).ok());
        let mut state = crate::locked(&self.spool.state);
        if let Some(segment) = alone {
            // The spool has dropped this segment already, because the tree was cut off.
            self.spool.reclaim(&mut state, segment.memory);
        }
        self.spool.let_go(&mut state);
    }
}

#[cfg(test)]
mod tests;
