//! The line as the system measures it, for the session, which fits lanes and buffers to it.

use std::time::Duration;

use super::Engine;
use super::Line;

impl Engine {
    /// Tells the session how far the other end is.
    pub(super) fn measure_line(&mut self, now: Duration) {
        if let Some(round_trip) = self.lanes.values().filter_map(|live| live.lane.round_trip()).min() {
            self.half.machine().handle_round_trip(round_trip, now);
        }
    }

    /// What the line was given.
    pub(super) fn line(&self) -> Line {
        let core = self.half.machine_ref().core_ref();
        Line { round_trip: core.round_trip(), buffer_bytes: u64::from(core.buffers_max()) * self.chunk_bytes as u64 }
    }
}
