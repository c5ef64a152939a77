//! The sending half: moves buffers from the source to the lanes, and keeps them until the receiver has taken them.

use std::time::Duration;

use super::answers::Incoming;
use super::lanes::path_of;
use super::span::Span;
use super::{Action, Agreed, BufferId, CHUNK_BYTES_MIN, Core, Machine, Notice, Outcome, Violation};
use crate::control::{Frame, Path, SPAN_MAX, SequenceSet};
use crate::frame::ChunkHeader;
use crate::handshake::LaneId;
use crate::record::TransferDigest;

/// Maximum number of chunks given to a TCP lane, including the one that it is writing. More would only commit chunks to
/// a lane that may turn out to be slow.
const TCP_AHEAD_MAX: u32 = 3;

/// The same for an RDMA lane if there are several rails; with one rail only the credit limits the number. An adapter
/// takes the next chunk from its queue by itself, so this many chunks are more than is ever on the way.
const RDMA_AHEAD_MAX: u32 = 8;

/// A lane is slow if a chunk takes it more than `SLOWER` times as long as the fastest lane, and longer than
/// `SLOW_CHUNK`. A slow lane is given only the chunk that it is writing. A chunk that waits behind would keep later
/// chunks from being taken, and their buffers from faster lanes.
const SLOWER: u32 = 4;
const SLOW_CHUNK: Duration = Duration::from_millis(40);

/// Number of chunks read ahead for each TCP lane while the source is steady. Reading further ahead does not help then,
/// and a pool of which only a part is in use stays in the processor's cache.
const READ_AHEAD_PER_LANE: usize = 2;

/// Minimum number of chunks read ahead.
const READ_AHEAD_MIN: usize = 4;

/// Maximum number of buffers that wait for a stream's reader or have just been filled by it. The reader fills one
/// buffer at a time, and gets the next as soon as one is sealed. More would only be withheld from other uses, and from
/// the system, while no data comes.
const READER_FILLS_MAX: u32 = 8;

/// Maximum number of times the limit is doubled, which exceeds any pool.
const DOUBLINGS_MAX: u32 = 12;

/// How long the wire must be idle for lack of data before the source counts as unsteady.
const STARVED_MIN: Duration = Duration::from_millis(5);

/// Maximum time that a TCP lane should need for one chunk. A control frame waits until the previous chunk has gone, and
/// an ABORT that does not arrive within [`super::ABORT_WAIT`] does not arrive at all.
const CHUNK_TIME: Duration = Duration::from_millis(250);

/// The same if the receivers pass on what they get: each must have a whole chunk before it can pass it on.
const CHUNK_TIME_PASSED_ON: Duration = Duration::from_millis(20);

/// How long a lane that is to carry no more payload stays open at least. A connection closed with unread data is reset,
/// and the frame that says that it was closed by choice could be lost.
const RETIRED_MIN: Duration = Duration::from_secs(1);

/// How long such a lane stays open at most. Chunks that it still has are sent again.
pub(super) const RETIRED_MAX: Duration = Duration::from_secs(5);

/// Maximum size of the first chunks, until it is known how fast the lanes are.
const FIRST_PART_BYTES: usize = 64 << 10;

/// How much is read into a buffer, so that no TCP lane needs long for it.
#[derive(Debug)]
struct PartSize {
    bytes: usize,
    max: usize,
    /// Maximum time that a lane should need for a chunk.
    time: Duration,
}

impl PartSize {
    /// Records that a lane has sent a chunk of `bytes` plain bytes in the time `took`.
    fn note(&mut self, bytes: usize, took: Duration) {
        // A chunk that is not full says little: its time may be mostly waiting.
        let is_full = 2 * bytes >= self.bytes;
        if took > self.time {
            let carried = (bytes as f64 * self.time.as_secs_f64() / took.as_secs_f64()) as usize;
            self.set(if is_full { carried.min(self.bytes) } else { self.bytes / 2 });
        } else if is_full && took <= self.time / 2 {
            // Grow slowly, because buffers on the way absorb much at once even if the line is slow.
            self.set(self.bytes + (self.bytes / 8).max(CHUNK_BYTES_MIN));
        }
    }

    /// Rounds down to whole pages, so that the parts of a file begin at offsets that suit direct reads from a disk.
    fn set(&mut self, bytes: usize) {
        self.bytes = (bytes / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN).clamp(CHUNK_BYTES_MIN, self.max);
    }
}

/// State of a buffer of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// Being read and sealed, or sealed anew.
    Working,
    /// Being read by a device that does many reads at once.
    Queued,
    /// Waiting for a lane.
    Ready,
    /// With a lane's transport.
    OnLane(LaneId),
    /// Sent, and the transport is done with it.
    Sent(LaneId),
    /// Its lane was lost after the chunk had arrived. The receiver has the chunk but has not taken it.
    Arrived,
}

impl Place {
    /// Returns whether the buffer is read ahead of the wire, or about to be. Chunks given to RDMA lanes count as on the
    /// wire.
    fn is_ahead(self) -> bool {
        match self {
            Self::Working | Self::Ready => true,
            Self::OnLane(lane) => path_of(lane) == Path::Tcp,
            Self::Free | Self::Queued | Self::Sent(_) | Self::Arrived => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct BufferState {
    place: Place,
    sequence: u64,
    plain_bytes: u32,
    encrypted: bool,
    /// Whether the receiver's sink has the chunk.
    taken: bool,
    /// Whether the receiver has the chunk although its lane is gone.
    arrived: bool,
}

impl BufferState {
    fn move_to(&mut self, place: Place, ahead: &mut ReadAhead) {
        ahead.count -= usize::from(self.place.is_ahead());
        ahead.count += usize::from(place.is_ahead());
        self.place = place;
    }
}

/// State of one sequence within the span.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    buffer: Option<BufferId>,
    taken: bool,
    plain_bytes: u32,
    tag: [u8; 16],
    /// How often the chunk was lost with its lane while nothing came through, and [`super::Lanes::carried_mark`] at
    /// that time.
    replays: (u32, u64),
}

#[derive(Clone, Copy, Debug)]
struct LaneAccount {
    lane: LaneId,
    credit_total: u64,
    used: u64,
    /// Number of chunks that the transport has not returned.
    ahead: u32,
    /// Since when the lane has been sending the first of these.
    busy_since: Duration,
    /// Average time that the lane needs for a chunk.
    takes: Duration,
    up: bool,
    /// Whether the receiver has released this lane.
    gone: bool,
}

/// The sender's state machine.
#[derive(Debug)]
pub struct Sender {
    core: Core,
    buffers: Vec<BufferState>,
    free: Vec<BufferId>,
    chunks: Span<Chunk>,
    /// Lowest sequence not taken.
    base: u64,
    /// One past the highest sequence that has been sealed.
    sealed_end: u64,
    /// No sequence below this one is ready to send.
    cursor: u64,
    /// How far beyond `base` the receiver can accept chunks.
    window: u64,
    fills: u64,
    fills_open: u32,
    fills_max: u32,
    final_sequence: Option<u64>,
    lanes: Vec<LaneAccount>,
    digest: TransferDigest,
    done_sent: bool,
    finished: bool,
    unfilled: bool,
    read_ahead: ReadAhead,
    part_size: PartSize,
    /// Answers of the receiver, if this is the sender of a tree or of a broadcast.
    answers: Option<Incoming>,
}

/// How far to read ahead of the wire: a little, until that turns out to be too little.
#[derive(Debug, Default)]
struct ReadAhead {
    /// Number of buffers in a [`Place`] that is ahead.
    count: usize,
    /// How often the limit has been doubled.
    doublings: u32,
    /// Whether a buffer was left empty because of the limit since the wire was last idle.
    held_back: bool,
    /// Since when a lane has been idle, with credit but without data.
    starved_since: Option<Duration>,
    /// Whether the source is read from a device that reaches its full rate only with many reads at once.
    is_deep: bool,
}

impl ReadAhead {
    /// Returns the number of chunks that may be ahead with this number of lanes.
    fn max(&self, lanes: usize) -> usize {
        if self.is_deep {
            return usize::MAX;
        }
        (READ_AHEAD_PER_LANE * lanes).max(READ_AHEAD_MIN) << self.doublings
    }

    /// Records whether a lane is idle for lack of data. Called after each round of sending.
    fn note_starved(&mut self, starved: bool, now: Duration) {
        if starved {
            self.starved_since.get_or_insert(now);
        } else if let Some(since) = self.starved_since.take()
            && now - since >= STARVED_MIN
            && std::mem::take(&mut self.held_back)
        {
            // If more had been read ahead while the source gave data, the wire would not have become idle.
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }
}

impl Sender {
    /// Creates a sender with `buffers` free buffers, numbered from 0. `connector`: this end dials the lanes.
    pub fn new(agreed: Agreed, connector: bool, buffers: u32) -> Self {
        let place = Place::Free;
        let free = BufferState { place, sequence: 0, plain_bytes: 0, encrypted: false, taken: false, arrived: false };
        let max = agreed.chunk_bytes;
        Self {
            core: Core { pool_shrinks: true, ..Core::new(agreed, connector, buffers) },
            buffers: vec![free; buffers as usize],
            free: (0..buffers).rev().collect(),
            chunks: Span::default(),
            base: 0,
            sealed_end: 0,
            cursor: 0,
            window: 0,
            fills: 0,
            fills_open: 0,
            fills_max: u32::MAX,
            final_sequence: None,
            lanes: Vec::with_capacity(2 * super::LANES_MAX),
            digest: TransferDigest::default(),
            done_sent: false,
            finished: false,
            unfilled: false,
            read_ahead: ReadAhead::default(),
            part_size: PartSize { bytes: FIRST_PART_BYTES.min(max), max, time: CHUNK_TIME },
            answers: None,
        }
    }

    /// Makes this the sender of a hop of a broadcast. Its chunks are short on a slow line, because each host must have
    /// a whole chunk before it can pass it on.
    #[must_use]
    pub fn passed_on(mut self) -> Self {
        self.part_size.time = CHUNK_TIME_PASSED_ON;
        self
    }

    /// Makes this the sender of a tree or of a broadcast, whose receiver may answer.
    #[must_use]
    pub fn with_answers(self) -> Self {
        Self { answers: Some(Incoming::default()), ..self }
    }

    /// Makes this the sender of a stream, whose single reader fills buffers one after the other.
    #[must_use]
    pub fn with_reader(self) -> Self {
        Self { fills_max: READER_FILLS_MAX, ..self }
    }

    /// Handles a chunk that has been sealed, for the first time or anew. Its header is what will be sent.
    ///
    /// The chunk may also be only planned: it is known what will be read into the buffer, and the lane's own thread
    /// will read and seal it just before sending. The header then has no tag yet. [`Self::handle_tag`] follows before
    /// the receiver can have the chunk, or else [`Self::handle_unsent`].
    pub fn handle_sealed(&mut self, buffer: BufferId, header: &ChunkHeader) {
        let sequence = header.sequence;
        let state = &mut self.buffers[buffer as usize];
        debug_assert!(matches!(state.place, Place::Working | Place::Queued));
        let chunk = &mut self.chunks[sequence];
        if chunk.buffer.is_none() {
            self.fills_open -= 1;
            // The latest fill decides: the data being read now is in memory, or is not.
            self.read_ahead.is_deep = state.place == Place::Queued;
        }
        state.move_to(Place::Ready, &mut self.read_ahead);
        let (plain_bytes, encrypted) = (header.plain_bytes, header.sealed);
        *state = BufferState { place: Place::Ready, sequence, plain_bytes, encrypted, taken: false, arrived: false };
        // A chunk that was sealed anew for another path is still the same chunk.
        let replays = if chunk.buffer == Some(buffer) { chunk.replays } else { (0, 0) };
        *chunk = Chunk { buffer: Some(buffer), taken: false, plain_bytes, tag: header.tag, replays };
        self.sealed_end = self.sealed_end.max(sequence + 1);
        self.cursor = self.cursor.min(sequence);
        if header.is_final {
            self.final_sequence = Some(sequence);
        }
    }

    /// Records the tag of a planned chunk that has been sealed.
    pub fn handle_tag(&mut self, buffer: BufferId, tag: [u8; 16]) {
        let chunk = &mut self.chunks[self.buffers[buffer as usize].sequence];
        if chunk.buffer == Some(buffer) {
            chunk.tag = tag;
        }
    }

    /// Handles a planned chunk that its lane returns because it could not read the data without waiting. The data is
    /// read elsewhere, and the chunk is then sealed anew.
    pub fn handle_unsent(&mut self, lane: LaneId, buffer: BufferId) {
        if let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) {
            account.ahead -= 1;
            account.used -= 1;
        }
        self.buffers[buffer as usize].move_to(Place::Working, &mut self.read_ahead);
    }

    /// Records that this buffer is read from a device that does many reads at once. As long as that is so, all free
    /// buffers are filled.
    pub fn handle_queued(&mut self, buffer: BufferId) {
        let state = &mut self.buffers[buffer as usize];
        // The buffer may be queued already, if one range could not be read and the buffer was given another.
        debug_assert!(matches!(state.place, Place::Working | Place::Queued));
        state.move_to(Place::Queued, &mut self.read_ahead);
        self.read_ahead.is_deep = true;
    }

    /// Handles a buffer for which no data was left, because the source had ended.
    pub fn handle_unfilled(&mut self, buffer: BufferId) {
        self.fills_open -= 1;
        self.unfilled = true;
        self.release(buffer);
    }

    /// Handles a buffer that the transport is done with. Not called for buffers that a lane returns when it goes down.
    pub fn handle_sent(&mut self, lane: LaneId, buffer: BufferId, now: Duration) {
        if let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) {
            account.ahead -= 1;
            let took = now.saturating_sub(std::mem::replace(&mut account.busy_since, now));
            account.takes = (3 * account.takes + took) / 4;
            if path_of(lane) == Path::Tcp {
                self.part_size.note(self.buffers[buffer as usize].plain_bytes as usize, took);
            }
        }
        self.handed_back(lane, buffer);
    }

    /// Returns how much to read into a buffer that is filled now.
    pub fn part_bytes(&self) -> usize {
        // On RDMA control frames do not wait for chunks.
        if self.core.path() == Some(Path::Rdma) { self.part_size.max } else { self.part_size.bytes }
    }

    /// Handles that the lane no longer holds this buffer, if it did.
    fn handed_back(&mut self, lane: LaneId, buffer: BufferId) {
        let state = &mut self.buffers[buffer as usize];
        if state.place == Place::OnLane(lane) {
            if state.taken {
                self.release(buffer);
            } else {
                state.move_to(Place::Sent(lane), &mut self.read_ahead);
            }
        }
    }

    /// Returns whether chunks wait for a lane, or half the pool is on its way. The source then does not limit
    /// throughput.
    pub fn backlog(&self) -> bool {
        self.cursor < self.sealed_end || 2 * (self.sealed_end - self.base) >= u64::from(self.core.pool.limit())
    }

    fn lacks_credit(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.up || lane.used == lane.credit_total)
    }

    /// Returns whether the receiver has no buffer for another chunk, and is what limits: most of the chunks that it has
    /// not taken have left the lanes.
    pub fn waits_for_receiver(&self) -> bool {
        if !self.lacks_credit() {
            return false;
        }
        let with_lanes = self.lanes.iter().filter(|lane| lane.up).map(|lane| lane.ahead as usize).sum::<usize>();
        let is_out = |state: &&BufferState| !state.taken && matches!(state.place, Place::OnLane(_) | Place::Sent(_));
        let out = self.buffers.iter().filter(is_out).count();
        out == 0 || 2 * with_lanes < out
    }

    /// Returns whether the sender waits for the peer's credits, as opposed to the wire. For the report.
    pub fn waits_for_credit(&self) -> bool {
        self.backlog() && self.lacks_credit()
    }

    /// Returns whether buffers wait to be filled. If nothing is being sealed and nothing waits for the wire, the source
    /// limits throughput.
    pub fn waits_for_source(&self) -> bool {
        self.fills_open > 0
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers[buffer as usize].move_to(Place::Free, &mut self.read_ahead);
        self.free.push(buffer);
    }

    fn source_ended(&self) -> bool {
        self.final_sequence.is_some() || self.unfilled
    }

    fn fill(&mut self) {
        let Some(path) = self.core.path() else { return };
        let encrypt = self.core.agreed.seal(path);
        let ahead_max = self.read_ahead.max(self.lanes.len()).max(match path {
            Path::Tcp => 0,
            // These bytes are not read again by the processor, so a small working set would not help its cache.
            Path::Rdma => self.buffers.len() / 2,
        });
        while !self.source_ended() && self.fills - self.base < SPAN_MAX as u64 {
            if self.read_ahead.count >= ahead_max {
                self.read_ahead.held_back |= !self.free.is_empty();
                break;
            }
            let in_use = self.buffers.len() - self.free.len();
            if in_use >= self.core.pool.limit() as usize || self.fills_open >= self.fills_max {
                break;
            }
            let Some(buffer) = self.free.pop() else { break };
            self.buffers[buffer as usize].move_to(Place::Working, &mut self.read_ahead);
            self.fills += 1;
            self.fills_open += 1;
            self.core.lanes.actions.push_back(Action::Fill { buffer, encrypt });
        }
    }

    fn dispatch(&mut self, now: Duration) {
        // A lane that has sent nothing is neither fast nor slow.
        let sending = self.lanes.iter().filter(|account| account.up && !account.takes.is_zero());
        let quickest = sending.map(|account| account.takes).min();
        let slow = (SLOWER * quickest.unwrap_or_default()).max(SLOW_CHUNK);
        // A receiver that must write in order holds chunks that come early. If these filled its pool, the chunk that
        // all others wait for would find no receive.
        let window_end = self.base + self.window.min(SPAN_MAX as u64);
        while self.cursor < self.sealed_end.min(window_end) {
            let Some(buffer) = self.chunks[self.cursor].buffer else {
                self.cursor += 1;
                continue;
            };
            let state = &mut self.buffers[buffer as usize];
            if state.place != Place::Ready {
                self.cursor += 1;
                continue;
            }
            let Some(path) = self.core.lanes.path() else { return };
            if self.core.agreed.seal(path) && !state.encrypted {
                state.move_to(Place::Working, &mut self.read_ahead);
                self.core.lanes.actions.push_back(Action::Encrypt(buffer));
                self.cursor += 1;
                continue;
            }
            let rails = self.core.lanes.rails_of(path).count();
            let usable = self.lanes.iter_mut().filter(|account| {
                let ahead_max = match path {
                    Path::Tcp if account.takes > slow => 1,
                    Path::Tcp => TCP_AHEAD_MAX,
                    Path::Rdma if rails == 1 => u32::MAX,
                    // A chunk that waits for a slow rail keeps all later chunks from being written.
                    Path::Rdma if account.takes > slow => 1,
                    Path::Rdma => RDMA_AHEAD_MAX,
                };
                account.up
                    && path_of(account.lane) == path
                    && self.core.lanes.is_up(account.lane)
                    && !self.core.lanes.is_retired(account.lane)
                    && account.used < account.credit_total
                    && account.ahead < ahead_max
            });
            let Some(account) = usable.min_by_key(|account| (account.ahead, account.used)) else { return };
            if account.ahead == 0 {
                account.busy_since = now;
            }
            account.used += 1;
            account.ahead += 1;
            state.move_to(Place::OnLane(account.lane), &mut self.read_ahead);
            self.core.lanes.actions.push_back(Action::SendChunk(account.lane, buffer));
            self.cursor += 1;
        }
    }

    /// Returns whether a lane that could send has nothing to send.
    pub fn is_starved(&self) -> bool {
        self.cursor == self.sealed_end
            && self.core.lanes.payload().any(|lane| {
                let account = self.lanes.iter().find(|account| account.lane == lane);
                account.is_some_and(|account| account.ahead == 0 && account.used < account.credit_total)
            })
    }

    fn take(&mut self, set: &SequenceSet) -> Result<(), Violation> {
        if set.below < self.base {
            // An older acknowledgement than the last one; it contains no news.
            return Ok(());
        }
        if set.below > self.sealed_end || set.above().any(|sequence| sequence >= self.sealed_end) {
            return Err(Violation::Impossible("acknowledgement"));
        }
        for sequence in (self.base..set.below).chain(set.above()) {
            let chunk = &self.chunks[sequence];
            if chunk.taken {
                continue;
            }
            let buffer = chunk.buffer.ok_or(Violation::Impossible("acknowledgement"))?;
            let state = &mut self.buffers[buffer as usize];
            match state.place {
                // Leave the buffer unchanged: if a worker has it, the worker returns it in the same state.
                Place::Free | Place::Working | Place::Queued | Place::Ready => {
                    return Err(Violation::Impossible("acknowledgement"));
                }
                // The chunk is planned but not yet read, so it cannot have been sent.
                Place::OnLane(_) if chunk.tag == [0; 16] => return Err(Violation::Impossible("acknowledgement")),
                Place::OnLane(_) => state.taken = true,
                Place::Sent(_) | Place::Arrived => self.release(buffer),
            }
            let chunk = &mut self.chunks[sequence];
            (chunk.buffer, chunk.taken) = (None, true);
            self.core.lanes.carried();
        }
        while self.base < self.sealed_end && self.chunks[self.base].taken {
            let chunk = std::mem::take(&mut self.chunks[self.base]);
            self.digest.push(&chunk.tag);
            self.core.counters.bytes += u64::from(chunk.plain_bytes);
            self.core.counters.chunks += 1;
            self.base += 1;
        }
        Ok(())
    }

    /// Handles LANE_GONE: the receiver has released this place up to this generation, and has the chunks in `have`.
    fn lane_gone(&mut self, gone: LaneId, have: &SequenceSet, now: Duration) {
        let covers = |lane: LaneId| lane.index == gone.index && lane.generation <= gone.generation;
        for state in &mut self.buffers {
            if let Place::OnLane(lane) | Place::Sent(lane) = state.place
                && covers(lane)
            {
                state.arrived |= state.sequence < have.below || have.above().any(|sequence| sequence == state.sequence);
                if state.arrived {
                    self.core.lanes.carried();
                }
            }
        }
        for account in self.lanes.iter_mut().filter(|account| covers(account.lane)) {
            account.gone = true;
            if account.up {
                self.core.lanes.close(account.lane);
            }
        }
        self.settle(now);
    }

    /// Makes chunks ready again that did not arrive and whose lanes are down at both ends.
    fn settle(&mut self, now: Duration) {
        while let Some(at) = self.lanes.iter().position(|account| !account.up && account.gone) {
            let settled = self.lanes.swap_remove(at).lane;
            for state in &mut self.buffers {
                if state.place != Place::Sent(settled) {
                    continue;
                }
                if state.arrived {
                    // The receiver holds the chunk until its sink takes it, so the buffer is neither sent again nor
                    // freed.
                    state.move_to(Place::Arrived, &mut self.read_ahead);
                } else {
                    state.move_to(Place::Ready, &mut self.read_ahead);
                    self.cursor = self.cursor.min(state.sequence);
                    self.core.counters.replayed += 1;
                    let mark = self.core.lanes.carried_mark();
                    let chunk = &mut self.chunks[state.sequence];
                    let before = if chunk.replays.1 == mark { chunk.replays.0 } else { 0 };
                    chunk.replays = (before + 1, mark);
                    self.core.lanes.replayed(before + 1, now);
                }
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.final_sequence.is_some_and(|last| self.base == last + 1)
    }

    fn done_frame(&self) -> Frame {
        Frame::Done { chunks: self.core.counters.chunks, bytes: self.core.counters.bytes, digest: self.digest.finish() }
    }
}

impl Machine for Sender {
    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    fn lanes_come_up_in_vain(&self) -> bool {
        self.core.lanes.come_up_in_vain()
    }

    fn core_ref(&self) -> &Core {
        &self.core
    }

    fn handle_lane_up(&mut self, lane: LaneId, now: Duration) {
        if !self.core.lanes.lane_up(lane, now) {
            return;
        }
        self.core.repeat(lane, now);
        self.answers.iter_mut().for_each(Incoming::repeat);
        let account = LaneAccount {
            lane,
            credit_total: 0,
            used: 0,
            ahead: 0,
            busy_since: now,
            takes: Duration::ZERO,
            up: true,
            gone: false,
        };
        self.lanes.push(account);
        for at in 0..self.lanes.len() {
            let account = self.lanes[at];
            if !account.up && !account.gone {
                self.core.send(lane, Frame::LaneLost(account.lane), now);
            }
        }
        if self.done_sent {
            let done = self.done_frame();
            self.core.send(lane, done, now);
        }
    }

    fn handle_lane_down(&mut self, lane: LaneId, now: Duration) {
        let lost = self.core.lane_down(lane, now);
        self.answers.iter_mut().for_each(Incoming::repeat);
        let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) else { return };
        account.up = false;
        let carried = account.used > 0;
        if lost && carried && !self.core.is_ending() && !self.finished {
            self.core.counters.retries += 1;
            self.core.lanes.actions.push_back(Action::Notice(Notice::LaneLost(lane)));
        }
        if !account.gone {
            self.core.broadcast(&Frame::LaneLost(lane), now);
        }
        for buffer in 0..self.buffers.len() as u32 {
            self.handed_back(lane, buffer);
        }
        self.settle(now);
        if self.done_sent
            && !self.core.is_ending()
            && let Some(survivor) = self.core.control_lane()
        {
            // The lane may have taken DONE or its answer with it.
            let done = self.done_frame();
            self.core.send(survivor, done, now);
        }
    }

    fn handle_frame(&mut self, lane: LaneId, frame: Frame, now: Duration) -> Result<(), Violation> {
        let Some(frame) = self.core.common_frame(lane, frame, now)? else { return Ok(()) };
        match frame {
            Frame::Ack { credit_total, window, taken } => {
                self.window = u64::from(window);
                if let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) {
                    account.credit_total = account.credit_total.max(credit_total);
                }
                self.take(&taken)
            }
            Frame::LaneGone { lane, have } => {
                self.lane_gone(lane, &have, now);
                Ok(())
            }
            Frame::Answer { number, bytes } => match &mut self.answers {
                Some(answers) => answers.take(number, bytes, &mut self.core.lanes.actions),
                None => Err(Violation::Unexpected("ANSWER")),
            },
            Frame::Finished { bytes, failed } => {
                if !self.done_sent || bytes != self.core.counters.bytes {
                    return Err(Violation::Impossible("FINISHED"));
                }
                if !self.core.is_ending() {
                    self.finished = true;
                    self.core.counters.unmade = failed;
                    self.core.broadcast(&Frame::Bye, now);
                    self.core.end(Outcome::Done);
                }
                Ok(())
            }
            // This end's ABORT crossed the receiver's BYE; the time-out ends the session.
            Frame::Bye => Ok(()),
            _ => Err(Violation::Unexpected("receiver's")),
        }
    }

    fn handle_timeout(&mut self, now: Duration) {
        let unanswered = self.done_sent;
        let held_up = self.backlog();
        self.core.lanes.set_held_up(held_up);
        self.core.timeout(now, unanswered);
        let starves = self.read_ahead.starved_since.is_some_and(|since| now.saturating_sub(since) >= STARVED_MIN);
        let keeps_busy = !starves && self.lanes.iter().any(|account| account.up && account.ahead > 0);
        // Chunks that lanes seal themselves are never seen to wait.
        let limits = (self.cursor < self.sealed_end || keeps_busy) && !self.lacks_credit();
        self.core.fit(limits, keeps_busy, now);
        for (lane, since) in self.core.lanes.all_retired() {
            let holds = |state: &BufferState| state.place == Place::OnLane(lane) || state.place == Place::Sent(lane);
            let (retired, is_empty) = (now.saturating_sub(since), !self.buffers.iter().any(holds));
            if retired >= RETIRED_MAX || (retired >= RETIRED_MIN && is_empty) {
                self.core.lanes.close(lane);
            }
        }
    }

    fn advance(&mut self, now: Duration) {
        if self.core.is_ending() {
            return;
        }
        self.core.lanes.dial(now);
        self.dispatch(now);
        let starved = self.is_starved();
        self.read_ahead.note_starved(starved, now);
        self.fill();
        if let Some(answers) = self.answers.as_mut().filter(|answers| answers.is_owed)
            && let Some(lane) = self.core.control_lane()
        {
            let answered = answers.answered();
            self.core.send(lane, answered, now);
        }
        if self.is_complete()
            && !self.done_sent
            && let Some(lane) = self.core.control_lane()
        {
            let done = self.done_frame();
            self.done_sent = true;
            self.core.send(lane, done, now);
        }
    }

    fn next_timeout(&self, _now: Duration) -> Duration {
        super::TICK
    }

    fn is_free(&self, buffer: BufferId) -> bool {
        self.buffers[buffer as usize].place == Place::Free
    }
}
