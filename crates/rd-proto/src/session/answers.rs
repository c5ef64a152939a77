//! Answers: what the receiver of a tree says to the sender, each once, whole and in order.
//!
//! They are numbered from 0. The receiver keeps each until the sender has it, with the lane that carries it, and sends it again
//! by another when that one is lost. At most [`ANSWERS_MAX`] are on the way, which bounds what either end keeps. The sender
//! says how many it has without waiting for anything else.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lanes::Lanes;
use super::{Action, TICK, Violation};
use crate::control::Frame;
use crate::handshake::LaneId;

/// Answers that the sender has not said to have. A lane queues more control frames than these.
pub const ANSWERS_MAX: usize = 32;

/// How long a lane that is alive may carry an answer without the sender's word for any.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// At the receiver.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// The number of the first that is kept.
    first: u64,
    /// Each with the lane that carries it.
    kept: VecDeque<(Vec<u8>, Option<LaneId>)>,
    /// Time-outs since the sender's last word, while a lane could bring it.
    ticks: u32,
}

impl Outgoing {
    pub fn has_room(&self) -> bool {
        self.kept.len() < ANSWERS_MAX
    }

    pub fn push(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.has_room());
        self.kept.push_back((bytes, None));
    }

    /// Those that no lane carries any more, to be sent by this one.
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

    /// The sender has all below this number.
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

    /// Time has passed. Whether the sender has been silent about the first for too long, on a lane that is up.
    pub fn is_overdue(&mut self, lanes: &Lanes) -> bool {
        let is_carried = self.kept.front().is_some_and(|(_, by)| by.is_some_and(|by| lanes.is_up(by)));
        self.ticks = if is_carried && !lanes.is_peer_paused() { self.ticks + 1 } else { 0 };
        TICK * self.ticks > ANSWER_WAIT
    }
}

/// At the sender.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// The number of the next to be handed on.
    next: u64,
    /// Those that have overtaken it.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// The receiver is to be told how many there are.
    pub is_owed: bool,
}

impl Incoming {
    pub fn take(&mut self, number: u64, bytes: Vec<u8>, actions: &mut VecDeque<Action>) -> Result<(), Violation> {
        if number >= self.next.saturating_add(ANSWERS_MAX as u64) {
            return Err(Violation::Impossible("ANSWER"));
        }
        self.is_owed = true;
        if number < self.next {
            // Its lane was lost with our word for it.
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

    /// A lane that has gone may have taken the last word with it.
    pub fn repeat(&mut self) {
        self.is_owed = self.next > 0;
    }

    pub fn answered(&mut self) -> Frame {
        self.is_owed = false;
        Frame::Answered { number: self.next }
    }
}
