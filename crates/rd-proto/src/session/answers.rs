//! Answers of a tree's or broadcast's receiver to the sender. Each arrives once, whole and in order.
//!
//! Answers are numbered from 0. The receiver keeps each answer, with the lane that carries it, until the sender has
//! acknowledged it, and sends it again by another lane if that lane is lost. At most [`ANSWERS_MAX`] answers are on the
//! way, which bounds what either end keeps. The sender acknowledges answers without waiting for anything else.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lanes::Lanes;
use super::{Action, TICK, Violation};
use crate::control::Frame;
use crate::handshake::LaneId;

/// Maximum number of answers that the sender has not acknowledged. A lane can queue more control frames than this.
pub const ANSWERS_MAX: usize = 32;

/// How long a lane that is alive may carry an answer before the sender acknowledges any.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Answers at the receiver, which sends them.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Number of the first answer in `kept`.
    first: u64,
    /// Unacknowledged answers, each with the lane that carries it.
    kept: VecDeque<(Vec<u8>, Option<LaneId>)>,
    /// Number of time-outs since the sender's last acknowledgement, while a lane could have brought one and brought no
    /// chunk either.
    ticks: u32,
    /// [`Lanes::carried_mark`] at the last time-out.
    mark: u64,
}

impl Outgoing {
    pub fn has_room(&self) -> bool {
        self.kept.len() < ANSWERS_MAX
    }

    pub fn push(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.has_room());
        self.kept.push_back((bytes, None));
    }

    /// Returns the answers that no lane carries any more, as frames to send by `lane`.
    pub fn send_by(&mut self, lane: LaneId, lanes: &Lanes) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (number, (bytes, by)) in (self.first..).zip(&mut self.kept) {
            if by.is_none_or(|by| !lanes.is_up(by)) {
                *by = Some(lane);
                frames.push(Frame::Answer { number, bytes: bytes.clone() });
            }
        }
        frames
    }

    /// Handles the sender's acknowledgement of all answers below this number.
    pub fn acknowledged(&mut self, below: u64) -> Result<(), Violation> {
        let Some(count) = below.checked_sub(self.first) else { return Ok(()) };
        let was_sent = |number: u64| self.kept.get(number as usize).is_some_and(|(_, by)| by.is_some());
        if count > self.kept.len() as u64 || (0..count).any(|number| !was_sent(number)) {
            return Err(Violation::Impossible("ANSWERED"));
        }
        if count > 0 {
            self.kept.drain(..count as usize);
            (self.first, self.ticks) = (below, 0);
        }
        Ok(())
    }

    /// Handles the passing of time. Returns whether the sender has failed to acknowledge the first answer for too long
    /// although the lane that carries it is up. On a slow line, an acknowledgement arrives behind chunks that were sent
    /// before it. A sender that goes on without one fills the receiver's pool, and then no chunk comes.
    pub fn is_overdue(&mut self, lanes: &Lanes) -> bool {
        let is_carried = self.kept.front().is_some_and(|(_, by)| by.is_some_and(|by| lanes.is_up(by)));
        let comes = std::mem::replace(&mut self.mark, lanes.carried_mark()) != lanes.carried_mark();
        self.ticks = if is_carried && !comes && !lanes.is_peer_paused() { self.ticks + 1 } else { 0 };
        TICK * self.ticks > ANSWER_WAIT
    }
}

/// Answers at the sender, which receives them.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Number of the next answer to pass on.
    next: u64,
    /// Answers that have overtaken the next one.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// Whether the receiver must be told how many answers have arrived.
    pub is_owed: bool,
}

impl Incoming {
    pub fn take(&mut self, number: u64, bytes: Vec<u8>, actions: &mut VecDeque<Action>) -> Result<(), Violation> {
        if number >= self.next.saturating_add(ANSWERS_MAX as u64) {
            return Err(Violation::Impossible("ANSWER"));
        }
        self.is_owed = true;
        if number < self.next {
            // The lane with the acknowledgement of this answer was lost.
            return Ok(());
        }
        if self.ahead.insert(number, bytes.clone()).is_some_and(|before| before != bytes) {
            return Err(Violation::Impossible("ANSWER"));
        }
        while let Some(bytes) = self.ahead.remove(&self.next) {
            self.next += 1;
            actions.push_back(Action::Answer(bytes));
        }
        Ok(())
    }

    /// Acknowledges again, because a lane that has gone may have taken the last acknowledgement with it.
    pub fn repeat(&mut self) {
        self.is_owed = self.next > 0;
    }

    pub fn answered(&mut self) -> Frame {
        self.is_owed = false;
        Frame::Answered { number: self.next }
    }
}
