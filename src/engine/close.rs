//! Closing of a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rd_proto::session::Outcome;

use super::work::Parts;
use super::{Engine, Event, Half, Read, SessionEvent, Summary, View, Writer};
use crate::transport::LaneEvent;

/// How long the engine waits for its lanes to close.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// How long the sink of a tree may take to remove what has not been published. Longer than a caller waits after a
/// signal (`job::STOP_MAX`): if an end has reported by then, the caller knows what that end keeps.
const DISCARD_WAIT: Duration = Duration::from_millis(2600);

/// Why a link counts as lost even though lanes come up.
pub(super) const NOTHING_LARGE: &str = "connections come up, but large packets do not get through, as when part of the network \
                             has a smaller MTU than the hosts";

impl Engine {
    /// Ends a session that has no lane: its threads end, and data that has begun is removed.
    pub(super) fn give_up(mut self) {
        self.ended = Some(Outcome::LinkLost { unanswered: false });
        self.close();
    }

    /// Closes the lanes, and gives their last frames time to leave.
    pub(super) fn close(mut self) -> Summary {
        // The sink's threads no longer wait for their answers to be taken.
        self.answers = None;
        self.shared.over.store(true, Ordering::Relaxed);
        self.summary.figures.seconds = self.flowing_since.unwrap_or(self.began).elapsed().as_secs_f64();
        self.summary.figures.encrypted &= !self.is_in_clear;
        self.summary.figures.counters = self.half.machine_ref().counters();
        self.summary.figures.line = self.line();
        self.summary.figures.view = if matches!(self.half, Half::Send { .. }) { View::Sender } else { View::Receiver };
        self.observer.observe(SessionEvent::Progress(self.summary.figures.counters, self.summary.figures.waits));
        self.summary.outcome = self.ended.take().expect("the loop ends with an outcome");
        let is_lost = matches!(self.summary.outcome, Outcome::LinkLost { unanswered: false });
        let is_in_vain = is_lost && self.half.machine_ref().lanes_come_up_in_vain();
        self.summary.reason = if is_in_vain { Some(NOTHING_LARGE.to_owned()) } else { self.reason.take() };
        if let Some(sink) = &self.shared.sink {
            self.summary.figures.written = sink.written();
            sink.discard();
        }
        self.summary.figures.read = Read {
            direct_bytes: self.shared.tally.direct_bytes.load(Ordering::Relaxed),
            cached_bytes: self.shared.tally.cached_bytes.load(Ordering::Relaxed),
        };
        if let Some(Parts::Tree(tree)) = &self.shared.source {
            let sent = tree.sent();
            // Only the walk counts what it has read.
            self.summary.figures.read.cached_bytes =
                sent.figures.amount.bytes.saturating_sub(self.summary.figures.read.direct_bytes);
            self.summary.sent_tree = Some(sent);
            self.summary.spent = tree.take_spent().map(Arc::new);
            tree.cancel();
        }
        let mut discarding = None;
        if let Half::Receive { writer, .. } = &mut self.half
            && let Writer::Tree(_, running) = std::mem::replace(writer, Writer::Workers)
        {
            discarding = Some(running.stop());
        }
        for live in self.lanes.values_mut() {
            live.lane.close();
        }
        let deadline = Instant::now() + CLOSE_WAIT;
        while !self.lanes.is_empty() {
            match self.events.recv_deadline(deadline) {
                Ok(Event::Lane(id, LaneEvent::Down { .. })) => drop(self.lanes.remove(&id)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if let Some(thread) = discarding {
            let deadline = Instant::now() + DISCARD_WAIT;
            while !thread.is_finished() && Instant::now() < deadline {
                // The sink's chunks come back through this queue.
                let _ = self.events.recv_timeout(Duration::from_millis(1));
            }
        }
        self.summary
    }
}
