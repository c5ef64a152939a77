//! The spool: the part of a broadcast's stream that a node keeps in memory.
//!
//! What one session of this process receives, or what is read of a tree, goes in at the end; the node's own tree and the
//! session to the host behind take it out, each at its own place. What none of them needs is let go.
//!
//! # What holds
//!
//! * Kept is one range of the stream without gaps, in at most as many segments as there may be. Who puts more in waits.
//! * Nothing is let go that the own tree has not written, that has not been sent, or below which the host behind has not
//!   said that it needs nothing: that is what the host behind *it* has. So when the host behind dies, the one after it can
//!   be sent all that it lacks.
//! * At any time one session puts in and one takes out. Another that comes replaces it; what the one before does is void.
//! * Who puts in or takes out waits no longer than its session lives.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rd_proto::broadcast::{BroadcastError, Mark, Marks, PAGE_BYTES, encode_mark};

use super::{Buffer, Pool};
pub use segment::{Chunk, SEGMENT_BYTES};
use segment::{Memory, Segment, room_for};

mod segment;

/// Segments of full length in the smallest spool.
const SEGMENTS_MIN: usize = 4;

/// Who waits for room is woken when there is so much of the spool: a thread that sleeps and wakes for each segment costs
/// more than what it does.
const ROOM_SHARE: usize = 8;

/// How long a tree may stand still and fill the spool while the host behind waits for more.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// How long the host behind may take to say from where it wants the stream.
const MARK_MAX: Duration = Duration::from_secs(30);

/// How often those who wait check whether they still should.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The host before is told of what is no longer needed when it is so much of the spool more, or after so long.
const MARK_SHARE: u64 = 8;
const MARK_EVERY: Duration = Duration::from_millis(50);

fn emptied(mut buffer: Buffer) -> Buffer {
    buffer.give_back();
    buffer
}

/// The host behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    /// What is sent to it next, once it has said from where on.
    reader: Option<u64>,
    /// It has all below.
    passed: u64,
    /// It needs nothing kept below.
    safe: u64,
}

/// Who is where. Offsets only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    /// Kept is what lies between these two.
    start: u64,
    end: u64,
    has_ended: bool,
    /// What the own tree takes next; none if it takes nothing, or nothing more.
    tree: Option<u64>,
    next: Option<Next>,
}

impl Places {
    /// Below this nothing needs to be kept.
    fn floor(&self) -> u64 {
        let next = self.next.map_or(self.end, |next| next.reader.unwrap_or(u64::MAX).min(next.safe));
        next.min(self.tree.unwrap_or(self.end))
    }

    /// Below this the host before needs to keep nothing for the sake of this one.
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

    /// The host behind wants the stream from `from` on. False if that is not kept, or there is to be none behind.
    fn send_from(&mut self, from: u64) -> bool {
        // One that was taken away meanwhile: nobody would say again that it has gone.
        let Some(next) = &mut self.next else { return false };
        let is_kept = (self.start..=self.end).contains(&from);
        if is_kept {
            *next = Next { reader: Some(from), passed: from, safe: next.safe.min(from) };
        }
        is_kept
    }
}

struct State {
    places: Places,
    segments: VecDeque<Arc<Segment>>,
    /// What they take, in bytes.
    used_bytes: usize,
    /// Buffers for segments of full length: with memory, of segments that were let go, and without any.
    spare: Vec<Buffer>,
    blank: Vec<Buffer>,
    /// The session that puts in, and the one that takes out.
    input: u64,
    output: u64,
    marks: Marks,
    /// What the host behind asked for is not kept.
    is_refused: bool,
    /// It waits for what comes, and the own tree does, and who puts in waits for room.
    next_waits: bool,
    tree_waits: bool,
    input_waits: bool,
    /// What the host before was told last, and when.
    said: Option<(u64, Instant)>,
    /// Wakes the session that puts in.
    wake: Option<Box<dyn Fn() + Send>>,
    is_behind: bool,
    /// The own tree is never left behind for being slow.
    holds: bool,
    is_stopped: bool,
    has_news: bool,
    /// What the own tree has taken, also after it takes no more.
    written: u64,
    passed: u64,
}

/// A spool.
pub struct Spool {
    state: Mutex<State>,
    bytes_max: usize,
    has_room: Condvar,
    has_more_for_tree: Condvar,
    has_more_for_next: Condvar,
    news: Condvar,
    /// How long the own tree has waited for the stream, in microseconds.
    idle_micros: AtomicU64,
}

/// How far everybody is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// The stream is here up to there.
    pub received: u64,
    /// The own tree has taken it up to there.
    pub written: u64,
    /// The host behind has it up to there.
    pub passed: u64,
    /// The end is here.
    pub has_all: bool,
    /// The own tree takes more.
    pub has_tree: bool,
    /// The own tree was too slow for the others and takes no more.
    pub is_behind: bool,
    /// How long the own tree has waited for the stream, in microseconds.
    pub idle_micros: u64,
}

/// The other end of something is gone: the session has ended, another has taken its place, or all of it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// What the own tree is given.
pub enum Taken {
    /// The next of the stream.
    Slice(Slice),
    /// It has had all.
    Ended,
    /// It is to take no more.
    Gone,
}

/// What [`SpoolOutput::next`] has for the host behind.
#[derive(Debug)]
pub enum Outgoing {
    /// Some of the stream.
    Chunk(Chunk),
    /// The stream has ended.
    Ended,
    /// What the host behind asked for is not kept.
    NotKept,
    /// It has not said from where it wants the stream.
    Silent,
    /// As [`Gone`].
    Gone,
}

impl Spool {
    /// A spool of at most so many bytes. `has_tree`: this host makes a tree of the stream; `has_next`: a host is behind it.
    pub fn new(bytes: u64, has_tree: bool, has_next: bool) -> Arc<Self> {
        let mut places = Places { tree: has_tree.then_some(0), ..Places::default() };
        places.set_next(has_next);
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX).max(SEGMENTS_MIN * SEGMENT_BYTES);
        let count = u32::try_from(bytes_max / SEGMENT_BYTES).unwrap_or(u32::MAX);
        // Where there is no such mapping, each segment has memory of its own.
        let pool = Pool::new(count, const { NonZeroUsize::new(SEGMENT_BYTES).expect("not 0") });
        let blank = pool.map_or_else(|_| Vec::new(), |(_, buffers)| buffers);
        let state = State {
            places,
            segments: VecDeque::new(),
            used_bytes: 0,
            spare: Vec::new(),
            blank,
            input: 0,
            output: 0,
            marks: Marks::default(),
            is_refused: false,
            next_waits: false,
            tree_waits: false,
            input_waits: false,
            said: None,
            wake: None,
            is_behind: false,
            holds: false,
            is_stopped: false,
            has_news: false,
            written: 0,
            passed: 0,
        };
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

    /// Whoever puts in from now on, in place of whoever did.
    pub fn input(self: &Arc<Self>) -> SpoolInput {
        let mut state = self.state();
        state.input += 1;
        (state.said, state.wake) = (None, None);
        self.has_room.notify_all();
        SpoolInput { spool: Arc::clone(self), turn: state.input, from: state.places.end }
    }

    /// Whoever takes out for the host behind from now on, in place of whoever did.
    pub fn output(self: &Arc<Self>) -> SpoolOutput {
        let mut state = self.state();
        state.output += 1;
        (state.marks, state.is_refused, state.next_waits) = (Marks::default(), false, false);
        if let Some(next) = &mut state.places.next {
            next.reader = None;
        }
        self.has_more_for_next.notify_all();
        SpoolOutput { spool: Arc::clone(self), turn: state.output, taken: AtomicU64::new(0) }
    }

    /// Whether a host is behind this one.
    pub fn set_next(&self, is_there: bool) {
        let mut state = self.state();
        state.places.set_next(is_there);
        self.let_go(&mut state);
        self.wake_input(&state);
    }

    /// The own tree takes no more. `is_behind`: it was too slow.
    pub fn leave(&self, is_behind: bool) {
        self.cut_off(&mut self.state(), is_behind);
    }

    /// Who puts in waits for the own tree however long it stands still.
    pub fn hold(&self) {
        self.state().holds = true;
    }

    /// Gives all of it up.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        for waiting in [&self.has_room, &self.has_more_for_tree, &self.has_more_for_next, &self.news] {
            waiting.notify_all();
        }
    }

    /// How far everybody is.
    pub fn status(&self) -> SpoolStatus {
        let state = self.state();
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

    /// What no receiver would say: the host behind has more than this one.
    #[cfg(test)]
    pub fn lie(&self, passed: u64) {
        self.state().places.next = Some(Next { reader: None, passed, safe: 0 });
    }

    /// Waits until something has happened that others should know of, but no longer than this.
    pub fn wait_for_news(&self, longest: Duration) {
        let state = self.state();
        let waited = self.news.wait_timeout_while(state, longest, |state| !state.has_news && !state.is_stopped);
        waited.expect("no panics under it").0.has_news = false;
    }

    /// The next of the stream for the own tree; waits for it.
    pub fn take(self: &Arc<Self>) -> Taken {
        let mut state = self.state();
        let at = loop {
            match state.places.tree.filter(|_| !state.is_stopped) {
                None => return Taken::Gone,
                Some(at) if at < state.places.end => break at,
                Some(_) if state.places.has_ended => return Taken::Ended,
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
        Taken::Slice(Slice { segment: Some(segment), skip, spool: Arc::clone(self) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics under it")
    }

    /// Lets go what nobody needs.
    fn let_go(&self, state: &mut State) {
        let floor = state.places.floor();
        while state.segments.front().is_some_and(|segment| segment.end() <= floor) {
            match Arc::try_unwrap(state.segments.pop_front().expect("just seen")) {
                Ok(segment) => {
                    state.used_bytes -= segment.room();
                    self.reclaim(state, segment.memory);
                }
                // The threads of a tree write it: memory is not free before that. They are not waited for once that
                // tree is left behind.
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

    /// Has the session that puts in tell the host before what that need not keep, if it is much.
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

    /// Whether so much more memory can be had, beside that of segments and what was theirs.
    fn has_memory_for(&self, state: &State, bytes: usize) -> bool {
        state.used_bytes + state.spare.len() * SEGMENT_BYTES + bytes <= self.bytes_max
    }

    /// A buffer for a segment of full length; for a shorter one, its memory is within the bounds then.
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

    /// Keeps a buffer for another segment.
    fn reclaim(&self, state: &mut State, memory: Memory) {
        let Memory::Whole(buffer, _) = memory else { return };
        if self.has_memory_for(state, SEGMENT_BYTES) {
            state.spare.push(buffer);
        } else {
            state.blank.push(emptied(buffer));
        }
    }

    /// Wakes those who wait for more.
    fn tell_of_more(&self, state: &mut State) {
        if std::mem::take(&mut state.tree_waits) {
            self.has_more_for_tree.notify_all();
        }
        // What is told of it stays until it has looked.
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
    /// The segment that an offset lies in.
    fn find(&self, offset: u64) -> usize {
        self.segments.partition_point(|segment| segment.end() <= offset)
    }

    /// The tree is what keeps the first segment, and the host behind waits for what would come behind the last.
    fn is_held_up_by_tree(&self) -> bool {
        let Some(first) = self.segments.front() else { return false };
        let without = Places { tree: None, ..self.places };
        self.places.tree.is_some() && self.next_waits && without.floor() >= first.end()
    }
}

/// The end of the stream, where more is put in.
pub struct SpoolInput {
    spool: Arc<Spool>,
    turn: u64,
    from: u64,
}

impl SpoolInput {
    /// Puts in what comes next; waits for room until this session is `over`.
    ///
    /// # Errors
    ///
    /// [`Gone`]. Some of it may have been put in.
    pub fn append(&self, bytes: &[u8], over: &AtomicBool) -> Result<(), Gone> {
        bytes
            .chunks(SEGMENT_BYTES)
            .try_for_each(|piece| self.put(piece.len(), |spare| Memory::copy_of(piece, spare), over))
    }

    /// As [`SpoolInput::append`], of the first `length` bytes in a buffer, which may have another content then: where that can be, they
    /// are not copied, and the buffer gets other memory.
    ///
    /// # Errors
    ///
    /// As [`SpoolInput::append`].
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
        state = spool.state();
        // Only one whose turn it is moves the end.
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

    /// The stream ends here.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn end(&self) -> Result<(), Gone> {
        let spool = &*self.spool;
        let mut state = spool.state();
        if state.input != self.turn || state.is_stopped {
            return Err(Gone);
        }
        state.places.has_ended = true;
        spool.tell(&mut state);
        spool.tell_of_more(&mut state);
        Ok(())
    }

    /// What the host before is to be told now, if anything, as an answer.
    pub fn next_mark(&self) -> Option<Vec<u8>> {
        let mut state = self.spool.state();
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

    /// Has `wake` called when there may be something to tell the host before. It must not wait.
    pub fn on_mark(&self, wake: Box<dyn Fn() + Send>) {
        let mut state = self.spool.state();
        if state.input == self.turn {
            state.wake = Some(wake);
        }
    }

    fn wait_for_room(&self, room: usize, over: &AtomicBool) -> Result<MutexGuard<'_, State>, Gone> {
        let spool = &*self.spool;
        let mut state = spool.state();
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
            // A process that was stopped meanwhile has not waited for that long.
            let waited = before.elapsed().min(2 * LOOK_EVERY);
            stood_still = if state.is_held_up_by_tree() { stood_still + waited } else { Duration::ZERO };
            if stood_still >= LAG_MAX && !state.holds {
                spool.cut_off(&mut state, true);
            }
        }
    }
}

/// Where the stream is taken out for the host behind.
pub struct SpoolOutput {
    spool: Arc<Spool>,
    turn: u64,
    /// What the session says that the host behind has of what it was sent.
    taken: AtomicU64,
}

impl SpoolOutput {
    /// The next of the stream, so many bytes at most; waits for it until this session is `over`. The first call waits for the host
    /// behind to say from where on. It is the same again until [`SpoolOutput::pass`].
    pub fn next(&self, bytes_max: usize, over: &AtomicBool) -> Outgoing {
        let spool = &*self.spool;
        let asked = Instant::now();
        let mut state = spool.state();
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
                None if asked.elapsed() >= MARK_MAX => return Outgoing::Silent,
                _ => {}
            }
            state.next_waits = reader.is_some();
            state = spool.has_more_for_next.wait_timeout(state, LOOK_EVERY).expect("no panics under it").0;
        };
        let mut end = state.places.end.min(at + bytes_max as u64);
        let first = state.find(at);
        let cut = state.segments[first].end();
        let can_step = |next: &Arc<Segment>| next.data().len().is_multiple_of(bytes_max);
        if cut < end && cut.is_multiple_of(PAGE_BYTES) && state.segments.get(first + 1).is_some_and(can_step) {
            // From there on all that is sent at once lies in one piece, and can be sealed where it is.
            end = cut;
        }
        if end < state.places.end && end / PAGE_BYTES > at / PAGE_BYTES {
            // Where pages begin for this host, they begin for the next.
            end = end / PAGE_BYTES * PAGE_BYTES;
        }
        let segments = state.segments.range(first..).take_while(|segment| segment.start < end).cloned().collect();
        Outgoing::Chunk(Chunk { segments, at, end })
    }

    /// A chunk has been copied: what follows it is next.
    ///
    /// # Errors
    ///
    /// [`Gone`].
    pub fn pass(&self, chunk: Chunk) -> Result<(), Gone> {
        let end = chunk.end;
        drop(chunk);
        let spool = &*self.spool;
        let mut state = spool.state();
        let has_turn = state.output == self.turn;
        if let Some(next) = state.places.next.as_mut().filter(|_| has_turn) {
            next.reader = Some(end);
        }
        // Also what is not needed any more by another's word, and was only held by the chunk.
        spool.let_go(&mut state);
        has_turn.then_some(()).ok_or(Gone)
    }

    /// Takes an answer of the host behind, as the peer sent it.
    ///
    /// # Errors
    ///
    /// Why no receiver would have sent it.
    pub fn take_mark(&self, bytes: &[u8]) -> Result<(), BroadcastError> {
        let spool = &*self.spool;
        let mut state = spool.state();
        if state.output != self.turn {
            return Ok(());
        }
        let reader = state.places.next.and_then(|next| next.reader);
        if reader.is_none() && state.marks.have_begun() {
            // One that is refused, or not wanted any more, says more before it hears of that.
            return Ok(());
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
        Ok(())
    }

    /// The host behind has so many bytes of what this session has sent.
    pub fn note_taken(&self, bytes: u64) {
        let before = self.taken.swap(bytes, Ordering::Relaxed);
        if before == bytes {
            return;
        }
        let spool = &*self.spool;
        let mut state = spool.state();
        if state.output != self.turn {
            return;
        }
        // Of one that is not wanted any more, what it has does not count for who comes instead.
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

/// Some of the stream, with the own tree. It is let go when it is dropped.
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
        let mut state = self.spool.state();
        if let Some(segment) = alone {
            // The stream has gone on without this tree.
            self.spool.reclaim(&mut state, segment.memory);
        }
        self.spool.let_go(&mut state);
    }
}

#[cfg(test)]
mod tests;
