//! The receiving half: moves each chunk once from posted buffers on the lanes to the sink.

use std::time::Duration;

use super::answers::Outgoing;
use super::lanes::path_of;
use super::sender::RETIRED_MAX;
use super::span::Span;
use super::{Action, Agreed, BufferId, Core, LANES_MAX, Machine, Notice, Outcome, Violation};
use crate::control::{Cause, Frame, Path, SPAN_MAX, SequenceSet};
use crate::frame::ChunkHeader;
use crate::handshake::LaneId;
use crate::record::TransferDigest;

/// Maximum delay of an acknowledgement, so that more can go with it. A few chunks, a shortage of credits, and the end of
/// the transfer trigger an acknowledgement at once. So the delay stalls a sender only on RDMA, and only if it has fewer
/// buffers than this end waits for.
const ACK_DELAY: Duration = Duration::from_millis(50);

/// Number of chunks after which a TCP lane is acknowledged. With so few, the sender uses few buffers in turn, which
/// stay in its cache.
const TCP_ACK_CHUNKS: u32 = 2;

/// The same on RDMA. The sender may have far fewer buffers than this end, if less memory can be locked there, and sends
/// nothing while all of them wait for an acknowledgement. The smallest pool has four: while two are acknowledged, the
/// others are on the way.
const RDMA_ACK_CHUNKS: u32 = 2;

/// Maximum number of acknowledgements on RDMA while as many chunks are taken as this end has buffers. With many buffers,
/// each acknowledgement therefore covers more chunks. A stopped process reads no acknowledgements, although its adapter
/// still sends everything that was posted, and a lane ends if too many control frames wait on it.
const RDMA_ACKS_MAX: u32 = 64;

/// The same if a round trip takes at least `RDMA_LONG`. A control lane carries some 16 frames in a round trip. If more
/// acknowledgements are due, they wait, and meanwhile the sender lacks the buffers of their chunks.
const RDMA_ACKS_LONG: u32 = 8;
const RDMA_LONG: Duration = Duration::from_micros(500);

/// Minimum time for which a receiver that has finished stays to repeat its answer.
const LINGER_MIN: Duration = Duration::from_secs(2);

/// Maximum number of sinks of one session.
pub const SINKS_MAX: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Posted(LaneId),
    Opening(LaneId),
    /// Opened, and waiting for its turn at the sink or being written.
    Held,
}

#[derive(Clone, Copy, Debug)]
struct BufferState {
    place: Place,
    sequence: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Absent,
    Opening,
    Held,
    Writing,
    Taken,
}

/// Structure of a transfer, which determines the order in which its sink wants the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One file: the sink takes chunks at their positions, in any order.
    File,
    /// One stream: chunks must reach the sink in order.
    Stream,
    /// A tree: item 0 is its records, in order, and the other items are the data of large files. All chunks reach the
    /// sink in order, because a file's data must not come before its record.
    Tree,
}

/// State of one sequence within the span.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    stage: Stage,
    /// One bit for each sink: whether the sink has the chunk.
    written: u8,
    buffer: BufferId,
    is_final: bool,
    plain_bytes: u32,
    item: u32,
    position: u64,
    tag: [u8; 16],
}

#[derive(Clone, Copy, Debug)]
struct LaneAccount {
    lane: LaneId,
    posted_total: u64,
    advertised: u64,
    arrived: u64,
    opening: u32,
    up: bool,
}

/// The receiver's state machine.
#[derive(Debug)]
pub struct Receiver {
    core: Core,
    layout: Layout,
    /// One bit for each sink.
    sinks: u8,
    buffers: Vec<BufferState>,
    free: Vec<BufferId>,
    chunks: Span<Chunk>,
    /// Lowest sequence not taken.
    base: u64,
    /// Next sequence to write, for ordered sinks.
    next_write: u64,
    /// One past the highest sequence that has arrived.
    seen_end: u64,
    lanes: Vec<LaneAccount>,
    /// Highest generation at each place that is gone: its transport has ended and its chunks have been opened.
    gone: [Option<u32>; LANES_MAX],
    ack_since: Option<Duration>,
    ack_owed: u32,
    /// Number of bytes of item 0 that have been taken, which is where its next chunk must begin.
    stream_bytes: u64,
    digest: TransferDigest,
    /// One past the final chunk's sequence, once the final chunk has been opened.
    final_end: u64,
    final_taken: bool,
    done: Option<(u64, u64, [u8; 32])>,
    committing: bool,
    answers: Outgoing,
}

impl Receiver {
    /// Creates a receiver with `buffers` free buffers, numbered from 0, and `sinks` sinks. A chunk is taken once every
    /// sink has it. `connector`: this end dials the lanes.
    ///
    /// # Panics
    ///
    /// If there is no sink, or there are more than [`SINKS_MAX`].
    pub fn new(agreed: Agreed, connector: bool, buffers: u32, layout: Layout, sinks: u8) -> Self {
        assert!((1..=SINKS_MAX).contains(&sinks), "{sinks} sinks");
        Self {
            sinks: u8::MAX >> (SINKS_MAX - sinks),
            core: Core::new(agreed, connector, buffers),
            layout,
            buffers: vec![BufferState { place: Place::Free, sequence: 0 }; buffers as usize],
            free: (0..buffers).rev().collect(),
            chunks: Span::default(),
            base: 0,
            next_write: 0,
            seen_end: 0,
            lanes: Vec::with_capacity(2 * LANES_MAX),
            gone: [None; LANES_MAX],
            ack_since: None,
            ack_owed: 0,
            stream_bytes: 0,
            digest: TransferDigest::default(),
            final_end: u64::MAX,
            final_taken: false,
            done: None,
            committing: false,
            answers: Outgoing::default(),
        }
    }

    /// Handles a chunk that has arrived in a buffer posted on this lane. Only the chunk's header has been decoded.
    ///
    /// # Errors
    ///
    /// [`Violation`] if the header is impossible; the engine then calls `handle_corrupt`. The buffer is free again.
    pub fn handle_chunk(
        &mut self,
        lane: LaneId,
        buffer: BufferId,
        header: Option<&ChunkHeader>,
    ) -> Result<(), Violation> {
        let account = self.lanes.iter_mut().find(|account| account.lane == lane);
        let Some(account) = account else {
            self.release(buffer);
            return Ok(());
        };
        account.arrived += 1;
        let Some(header) = header else {
            self.release(buffer);
            return Err(Violation::Impossible("chunk header"));
        };
        if !header.sealed && self.core.agreed.seal(path_of(lane)) {
            self.release(buffer);
            return Err(Violation::Impossible("unencrypted chunk"));
        }
        if self.core.is_ending() {
            self.release(buffer);
            return Ok(());
        }
        let sequence = header.sequence;
        let is_new = sequence >= self.base
            && sequence - self.base < SPAN_MAX as u64
            && self.chunks[sequence].stage == Stage::Absent;
        // A chunk is never in two places, so this sequence cannot be right. Without an error the receiver would wait
        // for the right sequence without end.
        if !is_new {
            self.release(buffer);
            return Err(Violation::Impossible("chunk sequence"));
        }
        let chunk = &mut self.chunks[sequence];
        *chunk = Chunk {
            stage: Stage::Opening,
            written: 0,
            buffer,
            is_final: header.is_final,
            plain_bytes: header.plain_bytes,
            item: header.item,
            position: header.position,
            tag: header.tag,
        };
        account.opening += 1;
        self.buffers[buffer as usize] = BufferState { place: Place::Opening(lane), sequence };
        self.core.lanes.actions.push_back(Action::Open(buffer));
        Ok(())
    }

    /// Handles the result of opening the chunk in this buffer: whether it passed its tag.
    pub fn handle_opened(&mut self, buffer: BufferId, genuine: bool, now: Duration) {
        let state = self.buffers[buffer as usize];
        let Place::Opening(lane) = state.place else {
            debug_assert!(false, "opened a buffer that was not being opened");
            return;
        };
        let chunk = &mut self.chunks[state.sequence];
        if genuine {
            self.core.lanes.carried();
            chunk.stage = Stage::Held;
            if chunk.is_final {
                self.final_end = self.final_end.min(state.sequence + 1);
            }
            self.buffers[buffer as usize].place = Place::Held;
            self.seen_end = self.seen_end.max(state.sequence + 1);
        } else {
            *chunk = Chunk::default();
            self.release(buffer);
        }
        if let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) {
            account.opening -= 1;
        }
        if !genuine {
            self.core.corrupt(lane, now);
        } else if self.seen_end > self.final_end {
            // Abort before any of it is written: otherwise data that may have been published by then would change.
            self.core.abort(Cause::Protocol, now);
        } else if !self.is_ordered() && !self.core.is_ending() {
            self.write(state.sequence);
        }
        self.settle(now);
    }

    /// Records that a sink, numbered from 0, has the chunk in this buffer. Once all sinks have it, the chunk is taken
    /// and the buffer is free.
    pub fn handle_written(&mut self, buffer: BufferId, sink: u8, now: Duration) {
        let sequence = self.buffers[buffer as usize].sequence;
        let chunk = &mut self.chunks[sequence];
        debug_assert!(chunk.stage == Stage::Writing && chunk.buffer == buffer && self.sinks >> sink & 1 == 1);
        chunk.written |= 1 << sink;
        if chunk.written != self.sinks {
            return;
        }
        chunk.stage = Stage::Taken;
        self.release(buffer);
        self.ack_owed += 1;
        self.ack_since.get_or_insert(now);
        while self.chunks[self.base].stage == Stage::Taken {
            let chunk = std::mem::take(&mut self.chunks[self.base]);
            let in_place = match chunk.item {
                0 => chunk.position == self.stream_bytes,
                _ => self.layout == Layout::Tree,
            };
            if !in_place || self.final_taken {
                return self.core.abort(Cause::Protocol, now);
            }
            if chunk.item == 0 {
                self.stream_bytes += u64::from(chunk.plain_bytes);
            }
            self.digest.push(&chunk.tag);
            self.core.counters.bytes += u64::from(chunk.plain_bytes);
            self.core.counters.chunks += 1;
            self.final_taken = chunk.is_final;
            self.base += 1;
        }
    }

    /// Returns whether [`Self::answer`] may be called.
    pub fn has_answer_room(&self) -> bool {
        self.answers.has_room()
    }

    /// Sends an answer of at most [`crate::control::ANSWER_BYTES_MAX`] bytes to the sender of a tree, or of a stream
    /// that may have to be sent from the middle.
    pub fn answer(&mut self, bytes: Vec<u8>) {
        debug_assert_ne!(self.layout, Layout::File);
        self.answers.push(bytes);
    }

    fn send_answers(&mut self, now: Duration) {
        let Some(lane) = self.core.control_lane().filter(|_| self.core.linger_until.is_none()) else { return };
        for frame in self.answers.send_by(lane, &self.core.lanes) {
            self.core.send(lane, frame, now);
        }
    }

    /// Returns whether the sink has taken everything that the sender has.
    pub fn has_taken_all(&self) -> bool {
        self.final_taken
    }

    /// Handles the completion of the sink: flushed and published, except for `failed` entries of a tree.
    pub fn handle_committed(&mut self, failed: u64, now: Duration) {
        // The session was given up meanwhile, and its outcome has been reported.
        if self.core.ended {
            return;
        }
        self.core.linger_until = Some(now + self.core.agreed.reconnect.max(LINGER_MIN));
        self.core.lanes.is_settled = true;
        self.core.counters.unmade = failed;
        let answer = self.finished();
        self.core.broadcast(&answer, now);
    }

    fn finished(&self) -> Frame {
        Frame::Finished { bytes: self.core.counters.bytes, failed: self.core.counters.unmade }
    }

    fn is_ordered(&self) -> bool {
        self.layout != Layout::File
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers[buffer as usize].place = Place::Free;
        self.free.push(buffer);
    }

    fn write(&mut self, sequence: u64) {
        let chunk = &mut self.chunks[sequence];
        chunk.stage = Stage::Writing;
        self.core.lanes.actions.push_back(Action::Write(chunk.buffer));
    }

    fn have(&self) -> SequenceSet {
        let above = (self.base..self.seen_end)
            .filter(|&sequence| !matches!(self.chunks[sequence].stage, Stage::Absent | Stage::Opening));
        SequenceSet::new(self.base, above)
    }

    fn taken(&self) -> SequenceSet {
        let above = (self.base..self.seen_end).filter(|&sequence| self.chunks[sequence].stage == Stage::Taken);
        SequenceSet::new(self.base, above)
    }

    /// Reports lanes as gone that are down and whose last chunks have been opened.
    fn settle(&mut self, now: Duration) {
        while let Some(at) = self.lanes.iter().position(|account| !account.up && account.opening == 0) {
            let lane = self.lanes.swap_remove(at).lane;
            let gone = &mut self.gone[usize::from(lane.index)];
            *gone = (*gone).max(Some(lane.generation));
            self.announce_gone(lane.index, None, now);
        }
    }

    /// Reports which generations at a place are gone, on one lane or on all, unless an older generation still lingers.
    fn announce_gone(&mut self, index: u16, to: Option<LaneId>, now: Duration) {
        let Some(generation) = self.gone[usize::from(index)] else { return };
        let lingers = |account: &LaneAccount| account.lane.index == index && account.lane.generation <= generation;
        if self.lanes.iter().any(lingers) {
            return;
        }
        let frame = Frame::LaneGone { lane: LaneId { index, generation }, have: self.have() };
        match to {
            Some(lane) => self.core.send(lane, frame, now),
            None => self.core.broadcast(&frame, now),
        }
    }

    fn post(&mut self) {
        while let Some(&buffer) = self.free.last() {
            if self.buffers.len() - self.free.len() >= self.core.pool.limit() as usize {
                return;
            }
            let payload = self.core.lanes.payload();
            let emptiest = payload
                .filter_map(|lane| self.lanes.iter().position(|account| account.lane == lane))
                .min_by_key(|&at| self.lanes[at].posted_total - self.lanes[at].arrived);
            let Some(at) = emptiest else { return };
            self.free.pop();
            let account = &mut self.lanes[at];
            account.posted_total += 1;
            self.buffers[buffer as usize].place = Place::Posted(account.lane);
            self.core.lanes.actions.push_back(Action::PostReceive(account.lane, buffer));
        }
    }

    fn acknowledge(&mut self, now: Duration) {
        let buffers = self.buffers.len() as u32;
        let is_long = || self.core.round_trip().is_some_and(|round_trip| round_trip >= RDMA_LONG);
        let batch_max = match self.core.path() {
            Some(Path::Tcp) => TCP_ACK_CHUNKS,
            _ if is_long() => RDMA_ACK_CHUNKS.max(buffers.div_ceil(RDMA_ACKS_LONG)),
            _ => RDMA_ACK_CHUNKS.max(buffers.div_ceil(RDMA_ACKS_MAX)),
        };
        let batch = (buffers / 4).clamp(1, batch_max);
        let mut due = self.ack_owed >= batch || (self.final_taken && self.ack_owed > 0);
        due |= self.ack_since.is_some_and(|since| now >= since + ACK_DELAY);
        for account in self.lanes.iter().filter(|account| self.core.lanes.is_up(account.lane)) {
            let outstanding = account.posted_total - account.arrived;
            let unadvertised = account.posted_total - account.advertised;
            // The lane has no credit left that the sender knows of, or has much new credit.
            due |= unadvertised > 0 && (unadvertised >= u64::from(batch) || outstanding == unadvertised);
            if unadvertised > 0 {
                self.ack_since.get_or_insert(now);
            }
        }
        if !due {
            return;
        }
        let taken = self.taken();
        // With an unordered sink, chunks need not wait for others, so they never fill the buffers.
        let window = if self.is_ordered() { self.core.pool.limit() } else { SPAN_MAX as u32 };
        let mut told = false;
        for at in 0..self.lanes.len() {
            let account = &mut self.lanes[at];
            if !self.core.lanes.is_up(account.lane) || account.posted_total == account.advertised {
                continue;
            }
            account.advertised = account.posted_total;
            let (lane, credit_total) = (account.lane, account.posted_total);
            self.core.send(lane, Frame::Ack { credit_total, window, taken: taken.clone() }, now);
            told = true;
        }
        if !told && self.ack_owed > 0 {
            let Some(lane) = self.core.lanes.payload().chain(self.core.lanes.up()).next() else {
                // The acknowledgement goes out on the next lane that comes up.
                self.ack_since = None;
                return;
            };
            let account = self.lanes.iter().find(|account| account.lane == lane);
            let credit_total = account.map_or(0, |account| account.posted_total);
            self.core.send(lane, Frame::Ack { credit_total, window, taken }, now);
        }
        self.ack_owed = 0;
        self.ack_since = None;
    }

    fn conclude(&mut self, now: Duration) {
        let Some((chunks, bytes, digest)) = self.done else { return };
        if self.committing {
            return;
        }
        let ours = (self.core.counters.chunks, self.core.counters.bytes, self.digest.finish());
        if ours == (chunks, bytes, digest) {
            self.committing = true;
            self.core.lanes.actions.push_back(Action::Commit);
        } else {
            self.core.abort(Cause::Integrity, now);
        }
    }
}

impl Machine for Receiver {
    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    fn lanes_come_up_in_vain(&self) -> bool {
        self.core.lanes.come_up_silent()
    }

    fn core_ref(&self) -> &Core {
        &self.core
    }

    fn handle_lane_up(&mut self, lane: LaneId, now: Duration) {
        if self.gone[usize::from(lane.index)].is_some_and(|gone| lane.generation <= gone) {
            return self.core.lanes.refuse(lane);
        }
        if !self.core.lanes.lane_up(lane, now) {
            return;
        }
        self.core.repeat(lane, now);
        self.lanes.push(LaneAccount { lane, posted_total: 0, advertised: 0, arrived: 0, opening: 0, up: true });
        for index in 0..LANES_MAX as u16 {
            self.announce_gone(index, Some(lane), now);
        }
        // Acknowledgements on a lost lane may never have been read.
        self.ack_owed += 1;
        self.ack_since.get_or_insert(now);
        if self.core.linger_until.is_some() {
            let answer = self.finished();
            self.core.send(lane, answer, now);
        }
    }

    fn handle_lane_down(&mut self, lane: LaneId, now: Duration) {
        let lost = self.core.lane_down(lane, now);
        let Some(account) = self.lanes.iter_mut().find(|account| account.lane == lane) else { return };
        account.up = false;
        let carried = account.arrived > 0;
        for buffer in 0..self.buffers.len() as u32 {
            if self.buffers[buffer as usize].place == Place::Posted(lane) {
                self.release(buffer);
            }
        }
        if lost && carried && !self.core.is_ending() && self.core.linger_until.is_none() {
            self.core.counters.retries += 1;
            self.core.lanes.actions.push_back(Action::Notice(Notice::LaneLost(lane)));
        }
        self.ack_owed += 1;
        self.ack_since.get_or_insert(now);
        self.settle(now);
    }

    fn handle_frame(&mut self, lane: LaneId, frame: Frame, now: Duration) -> Result<(), Violation> {
        let Some(frame) = self.core.common_frame(lane, frame, now)? else { return Ok(()) };
        match frame {
            Frame::LaneLost(lost) => {
                let mut alive = false;
                for at in 0..self.lanes.len() {
                    let account = self.lanes[at];
                    if account.lane.index == lost.index && account.lane.generation <= lost.generation {
                        alive = true;
                        self.core.lanes.close(account.lane);
                    }
                }
                if !alive {
                    let gone = &mut self.gone[usize::from(lost.index)];
                    *gone = (*gone).max(Some(lost.generation));
                    self.announce_gone(lost.index, Some(lane), now);
                }
                Ok(())
            }
            // The sender sends DONE only after this end has acknowledged everything.
            Frame::Done { .. } if !self.final_taken => Err(Violation::Impossible("DONE")),
            Frame::Done { chunks, bytes, digest } => {
                self.done = Some((chunks, bytes, digest));
                if self.core.linger_until.is_some() {
                    let answer = self.finished();
                    self.core.send(lane, answer, now);
                }
                Ok(())
            }
            Frame::Answered { number } => self.answers.acknowledged(number),
            Frame::Bye if self.core.linger_until.is_some() => {
                self.core.end(Outcome::Done);
                Ok(())
            }
            Frame::Bye => Ok(()),
            _ => Err(Violation::Unexpected("sender's")),
        }
    }

    fn handle_timeout(&mut self, now: Duration) {
        if let Some(linger_until) = self.core.linger_until
            && !self.core.is_ending()
        {
            // Everything has been published. Losing the link now costs only the answer, which is kept ready for a
            // while.
            self.core.linger(now);
            if now >= linger_until {
                self.core.end(Outcome::Done);
            }
            return;
        }
        let held_up = self.is_ordered() && self.seen_end > self.next_write;
        self.core.lanes.set_held_up(held_up);
        self.core.timeout(now, false);
        let held = self.buffers.iter().filter(|state| state.place == Place::Held).count();
        let limits = 4 * held < self.core.pool.limit() as usize;
        self.core.fit(limits, limits, now);
        for (lane, since) in self.core.lanes.all_retired() {
            if now.saturating_sub(since) >= 2 * RETIRED_MAX {
                self.core.lanes.close(lane);
            }
        }
        if self.answers.is_overdue(&self.core.lanes) {
            self.core.abort(Cause::Protocol, now);
        }
    }

    fn advance(&mut self, now: Duration) {
        if self.core.is_ending() {
            return;
        }
        while self.is_ordered()
            && self.next_write < self.base + SPAN_MAX as u64
            && self.chunks[self.next_write].stage == Stage::Held
        {
            self.write(self.next_write);
            self.next_write += 1;
        }
        self.core.lanes.dial(now);
        self.post();
        self.acknowledge(now);
        self.send_answers(now);
        self.conclude(now);
    }

    fn next_timeout(&self, now: Duration) -> Duration {
        match self.ack_since {
            // An ending session acknowledges nothing any more.
            _ if self.core.is_ending() => super::TICK,
            Some(since) => (since + ACK_DELAY).saturating_sub(now),
            None => super::TICK,
        }
    }

    fn is_free(&self, buffer: BufferId) -> bool {
        self.buffers[buffer as usize].place == Place::Free
    }
}
