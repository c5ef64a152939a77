//! The control queue pair: carries whole messages in order, and every message finds a posted receive.
//!
//! Each end posts [`SLOTS`] receives before the other may send, and posts each again as soon as its message has been
//! copied. The accepting end posts before it accepts, the connecting end when the connection is up. So with any
//! transport the accepting end sends nothing before it has been sent something. Every message begins with the running
//! total of reposted receives, which tells the sender how many of its messages may be outstanding. A message that may
//! not be sent yet waits in a queue.
//!
//! # Invariants
//!
//! * `sent - peer_reposted <= SLOTS`. Both are running totals of messages, which wrap.
//! * A frame is sent only while fewer than `SLOTS - RESERVED` messages are outstanding, so that both ends
//!   can always announce: an end owes at most two announcements before the peer must have read the first
//!   (one for each half of `SLOTS`).

use std::collections::VecDeque;
use std::sync::Arc;

use rd_proto::frame::CONTROL_BYTES_MAX;
use rd_verbs::{Depths, Error as VerbsError, MessageRegion, ProtectionDomain, QueuePair, WorkCompletion};

use crate::transport::{CONTROL_QUEUE_MAX, LaneError};

/// Number of receives, and of sends, that each end has for control messages. Part of the
/// protocol: both ends rely on it.
pub(super) const SLOTS: u32 = 32;

/// Depths of the control queue pair.
pub(super) const DEPTHS: Depths = Depths { sends: SLOTS, receives: SLOTS, segments: 1, inline_bytes: 0 };

/// Number of the [`SLOTS`] that only announcements may use.
const RESERVED: u32 = 4;

/// Number of unannounced receives at which a separate announcement is due.
const ANNOUNCE_AT: u32 = SLOTS / 2;

/// Length of the prefix: the running total (u32, little-endian), the kind (u8), and zeros.
const PREFIX_BYTES: usize = 8;

const SLOT_BYTES: usize = (PREFIX_BYTES + CONTROL_BYTES_MAX).next_multiple_of(64);

/// Memory that each connection registers in addition to the pool, in bytes. It counts as locked memory.
pub const CONNECTION_LOCKED_BYTES: usize = (2 * SLOTS as usize + 1) * SLOT_BYTES;

/// The slot for the first message of the payload queue pair, at both ends.
const GREETING_SLOT: u32 = 2 * SLOTS;

const KIND_ANNOUNCEMENT: u8 = 0;
const KIND_FRAME: u8 = 1;
const KIND_READY: u8 = 2;

/// The purpose of a work request, encoded in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    ControlReceive(u32),
    ControlSend(u32),
    ChunkReceive(u32),
    ChunkSend(u32),
    /// The first message of the payload queue pair.
    Greeting,
}

impl Work {
    pub(super) fn encode(self) -> u64 {
        let (kind, slot) = match self {
            Self::ControlReceive(slot) => (1, slot),
            Self::ControlSend(slot) => (2, slot),
            Self::ChunkReceive(buffer) => (3, buffer),
            Self::ChunkSend(buffer) => (4, buffer),
            Self::Greeting => (5, 0),
        };
        kind << 32 | u64::from(slot)
    }

    pub(super) fn of(completion: &WorkCompletion) -> Self {
        let slot = completion.id() as u32;
        match completion.id() >> 32 {
            1 => Self::ControlReceive(slot),
            2 => Self::ControlSend(slot),
            3 => Self::ChunkReceive(slot),
            4 => Self::ChunkSend(slot),
            5 => Self::Greeting,
            _ => unreachable!("the device gives back the numbers it was given"),
        }
    }
}

/// Flow control of one end.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    sent: u32,
    peer_reposted: u32,
    reposted: u32,
    announced: u32,
}

impl Flow {
    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.peer_reposted)
    }

    fn may_send_frame(&self) -> bool {
        self.outstanding() < SLOTS - RESERVED
    }

    fn may_announce(&self) -> bool {
        self.outstanding() < SLOTS
    }

    fn announcement_due(&self) -> bool {
        self.reposted.wrapping_sub(self.announced) >= ANNOUNCE_AT
    }

    /// Counts a message that is about to be sent. Returns the total that the message announces.
    fn send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.announced = self.reposted;
        self.reposted
    }

    /// Records the total of a message that arrived. `None` if the total is impossible, which means
    /// that the peer is broken.
    fn arrived(&mut self, total: u32) -> Option<()> {
        if total.wrapping_sub(self.peer_reposted) > self.outstanding() {
            return None;
        }
        self.peer_reposted = total;
        Some(())
    }

    fn repost(&mut self) {
        self.reposted = self.reposted.wrapping_add(1);
    }
}

/// The beginning of every control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    /// Number of receives that the message's sender has reposted, modulo 2^32.
    total: u32,
    /// One of the `KIND_…` constants.
    kind: u8,
}

impl Prefix {
    fn encode(self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..4].copy_from_slice(&self.total.to_le_bytes());
        bytes[4] = self.kind;
        bytes
    }

    /// Decodes the prefix of a message of `message_bytes`. Fails if the message's length does not suit its kind.
    fn decode(bytes: &[u8], message_bytes: usize) -> Result<Self, LaneError> {
        let [t0, t1, t2, t3, kind, 0, 0, 0] = *bytes else {
            return Err(LaneError::Framing("control message without its prefix"));
        };
        let is_sound = match (kind, message_bytes.checked_sub(PREFIX_BYTES)) {
            (KIND_ANNOUNCEMENT | KIND_READY, Some(body_bytes)) => body_bytes == 0,
            (KIND_FRAME, Some(body_bytes)) => (1..=CONTROL_BYTES_MAX).contains(&body_bytes),
            _ => false,
        };
        if !is_sound {
            return Err(LaneError::Framing("control message of unknown kind or length"));
        }
        Ok(Self { total: u32::from_le_bytes([t0, t1, t2, t3]), kind })
    }
}

/// A control message that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Carries only the running total.
    Announcement,
    Frame(Vec<u8>),
    /// The accepting end waits for the connect request of the payload queue pair. The second time, it waits for the
    /// first message on that queue pair.
    Ready,
}

/// Allocates memory for the control messages of one connection, and for the payload queue pair's greeting.
pub(super) fn message_region(domain: &Arc<ProtectionDomain>) -> Result<Arc<MessageRegion>, VerbsError> {
    MessageRegion::new(domain, 2 * SLOTS + 1, SLOT_BYTES).map(Arc::new)
}

/// Posts the receive for the greeting. Must be the first receive posted, because the greeting is the first message.
pub(super) fn receive_greeting(payload: &QueuePair) -> Result<(), VerbsError> {
    payload.receive_message(Work::Greeting.encode(), GREETING_SLOT)
}

/// Sends the greeting. On iWARP the connecting end must be the first to send.
pub(super) fn send_greeting(payload: &QueuePair) -> Result<(), VerbsError> {
    let length = payload.messages().write(GREETING_SLOT, &[&[0; PREFIX_BYTES]]);
    payload.send_message(Work::Greeting.encode(), GREETING_SLOT, length)
}

/// Posts all receives of a control queue pair. Must be called before the peer may send.
pub(super) fn post_receives(queue_pair: &QueuePair) -> Result<(), VerbsError> {
    (0..SLOTS).try_for_each(|slot| queue_pair.receive_message(Work::ControlReceive(slot).encode(), slot))
}

/// The control queue pair with its flow control.
pub(super) struct ControlQueue {
    queue_pair: Option<QueuePair>,
    /// Whether nothing is posted any more.
    ending: bool,
    flow: Flow,
    free_slots: Vec<u32>,
    backlog: VecDeque<Vec<u8>>,
    /// Number of work requests that have not completed.
    posted: usize,
}

impl ControlQueue {
    /// Takes a queue pair whose receives [`post_receives`] has posted.
    pub(super) fn new(queue_pair: QueuePair) -> Self {
        Self {
            queue_pair: Some(queue_pair),
            ending: false,
            flow: Flow::default(),
            free_slots: (SLOTS..2 * SLOTS).collect(),
            backlog: VecDeque::new(),
            posted: SLOTS as usize,
        }
    }

    /// The queue pair; `None` once it has been taken.
    pub(super) fn queue_pair(&self) -> Option<&QueuePair> {
        self.queue_pair.as_ref()
    }

    /// From now on, posts nothing and drops frames given to be sent. Messages that have arrived can still be read.
    pub(super) fn begin_end(&mut self) {
        self.ending = true;
        self.backlog.clear();
    }

    /// Takes the queue pair, which is the last object here that holds the device.
    pub(super) fn take_queue_pair(&mut self) -> Option<QueuePair> {
        self.begin_end();
        self.queue_pair.take()
    }

    /// Number of work requests that have not completed.
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// Whether all frames given to be sent have been sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog.is_empty() && self.free_slots.len() == SLOTS as usize
    }

    /// Whether a frame waits until the peer posts receives.
    pub(super) fn has_frames_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends a frame of 1 to [`CONTROL_BYTES_MAX`] bytes, or queues it.
    pub(super) fn send_frame(&mut self, frame: &[u8]) -> Result<(), LaneError> {
        debug_assert!(!frame.is_empty() && frame.len() <= CONTROL_BYTES_MAX, "a control frame of allowed size");
        if self.ending {
            return Ok(());
        }
        if self.backlog.is_empty() && self.flow.may_send_frame() && !self.free_slots.is_empty() {
            return self.post(KIND_FRAME, frame);
        }
        if self.backlog.len() == CONTROL_QUEUE_MAX {
            return Err(LaneError::Framing("the peer does not read its control frames"));
        }
        self.backlog.push_back(frame.to_vec());
        Ok(())
    }

    /// Sends a message that carries only the running total, if there is room for one. On iWARP the connecting end
    /// must be the first to send.
    pub(super) fn announce(&mut self) -> Result<(), LaneError> {
        if self.flow.may_announce() && !self.free_slots.is_empty() {
            self.post(KIND_ANNOUNCEMENT, &[])?;
        }
        Ok(())
    }

    /// Tells the peer to go on with the payload queue pair.
    pub(super) fn send_ready(&mut self) -> Result<(), LaneError> {
        self.post(KIND_READY, &[])
    }

    fn post(&mut self, kind: u8, body: &[u8]) -> Result<(), LaneError> {
        let Some(queue_pair) = self.queue_pair.as_ref().filter(|_| !self.ending) else { return Ok(()) };
        let Some(slot) = self.free_slots.pop() else {
            return Err(LaneError::Framing("no control slot is free"));
        };
        let prefix = Prefix { total: self.flow.send(), kind };
        let length = queue_pair.messages().write(slot, &[&prefix.encode(), body]);
        queue_pair.send_message(Work::ControlSend(slot).encode(), slot, length)?;
        self.posted += 1;
        Ok(())
    }

    /// Handles a successful completion of this queue pair, and sends what may be sent now.
    pub(super) fn completed(&mut self, completion: &WorkCompletion) -> Result<Option<Message>, LaneError> {
        self.note_done();
        let message = match Work::of(completion) {
            Work::ControlSend(slot) => {
                self.free_slots.push(slot);
                None
            }
            Work::ControlReceive(slot) => Some(self.received(slot, completion.bytes() as usize)?),
            other => unreachable!("{other:?} is not the control queue pair's"),
        };
        while self.flow.may_send_frame()
            && !self.free_slots.is_empty()
            && let Some(frame) = self.backlog.pop_front()
        {
            self.post(KIND_FRAME, &frame)?;
        }
        if self.flow.announcement_due() {
            self.announce()?;
        }
        Ok(message)
    }

    /// Counts a completed send or receive of this queue pair, also if it failed or was flushed. A device may report the
    /// completion of a work request that it had refused.
    pub(super) fn note_done(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    fn received(&mut self, slot: u32, length: usize) -> Result<Message, LaneError> {
        let Some(queue_pair) = &self.queue_pair else { return Err(LaneError::Closed) };
        let region = queue_pair.messages();
        let prefix = Prefix::decode(&region.read(slot, 0, length.min(PREFIX_BYTES)), length)?;
        let message = match prefix.kind {
            KIND_ANNOUNCEMENT => Message::Announcement,
            KIND_READY => Message::Ready,
            _ => Message::Frame(region.read(slot, PREFIX_BYTES, length - PREFIX_BYTES)),
        };
        self.flow.arrived(prefix.total).ok_or(LaneError::Framing("control message with an invalid total"))?;
        if !self.ending {
            queue_pair.receive_message(Work::ControlReceive(slot).encode(), slot)?;
            self.posted += 1;
            self.flow.repost();
        }
        Ok(message)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_numbers_are_distinct() {
        let all =
            [Work::ControlReceive(7), Work::ControlSend(7), Work::ChunkReceive(7), Work::ChunkSend(7), Work::Greeting];
        let numbers: std::collections::HashSet<u64> = all.iter().map(|work| work.encode()).collect();
        assert_eq!(numbers.len(), all.len());
    }

    /// Both ends send as much as they may, and messages are delivered and read in an order drawn from the seed. No more
    /// than `SLOTS` are ever outstanding, and neither end ever stands still.
    #[test]
    fn both_ends_always_get_on() {
        for seed in 1..=200u64 {
            let mut random = seed;
            let mut ends = [Flow::default(), Flow::default()];
            // The totals that each end has sent and the other has not read.
            let mut wires = [VecDeque::new(), VecDeque::new()];
            let mut frames_left = [3000u32, if seed % 3 == 0 { 0 } else { 3000 }];
            let mut steps = 0;
            while frames_left != [0, 0] {
                steps += 1;
                assert!(steps < 200_000, "seed {seed}: stands still at {ends:?}");
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let here = (random >> 33) as usize & 1;
                if random >> 40 & 3 != 0 {
                    if frames_left[here] > 0 && ends[here].may_send_frame() {
                        frames_left[here] -= 1;
                        wires[here].push_back(ends[here].send());
                    }
                } else if let Some(total) = wires[1 - here].pop_front() {
                    ends[here].arrived(total).unwrap_or_else(|| panic!("seed {seed}: total {total}"));
                    ends[here].repost();
                    if ends[here].announcement_due() {
                        assert!(ends[here].may_announce(), "seed {seed}: an announcement found no room");
                        wires[here].push_back(ends[here].send());
                    }
                }
                for (end, wire) in ends.iter().zip(&wires) {
                    assert!(end.outstanding() <= SLOTS && wire.len() <= SLOTS as usize, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn impossible_totals_are_refused() {
        let mut flow = Flow::default();
        assert!(flow.arrived(1).is_none(), "more than was sent");
        flow.send();
        flow.send();
        assert!(flow.arrived(2).is_some());
        assert!(flow.arrived(1).is_none(), "less than before");
        let mut wrapped = Flow { sent: 1, peer_reposted: u32::MAX, ..Flow::default() };
        assert!(wrapped.arrived(1).is_some());
    }
}
