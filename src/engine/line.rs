//! The line as the system measures it, for the session, which fits lanes and buffers to it.

use std::time::Duration;

use rd_proto::control::RailAddress;
use rd_proto::session::Notice;

use super::{Detail, Engine, Line};
use crate::transport::Lane;

/// Ways that are distinguished.
const WAYS_MAX: usize = 32;

impl Engine {
    /// Tells the session how far the other end is, and how its lanes do.
    pub(super) fn measure_line(&mut self, now: Duration) {
        let mut shortest: Option<Duration> = None;
        for (&id, live) in &self.lanes {
            if let Some(state) = live.lane.state() {
                shortest = Some(shortest.map_or(state.round_trip, |known| known.min(state.round_trip)));
                self.half.machine().handle_lane_state(id, state, now);
            }
        }
        if let Some(round_trip) = shortest {
            self.half.machine().handle_round_trip(round_trip, now);
        }
    }

    /// The number of the way that a lane goes, which is that of all lanes between the same addresses.
    pub(super) fn way(&mut self, lane: &dyn Lane) -> u8 {
        let way = lane.way();
        let known = self.ways.iter().position(|known| *known == way);
        let number = known.unwrap_or_else(|| {
            if self.ways.len() < WAYS_MAX {
                self.ways.push(way);
            }
            self.ways.len() - 1
        });
        number as u8
    }

    /// Looks for more rails; true if there are.
    pub(super) fn find_rails(&mut self, addresses: &[RailAddress]) -> bool {
        let Some(dialer) = &self.dialer else { return false };
        let (count, all) = dialer.find_rails(addresses);
        if count < 2 {
            return false;
        }
        for rail in 0..count {
            self.observer.observe(Detail::Rail(rail, dialer.rail_name(rail).unwrap_or_default()).into());
        }
        let now = self.now();
        self.half.machine().handle_rails(count, all, now);
        true
    }

    /// The rail that a notice is about.
    pub(super) fn rail_name(&self, notice: Notice) -> Option<String> {
        match notice {
            Notice::RailLeft(rail) | Notice::RailBack(rail) => self.dialer.as_ref()?.rail_name(rail),
            _ => None,
        }
    }

    /// What the line was given.
    pub(super) fn line(&self) -> Line {
        let core = self.half.machine_ref().core_ref();
        Line {
            round_trip: core.round_trip(),
            buffer_bytes: u64::from(core.buffers_max()) * self.chunk_bytes as u64,
            rails: self.ways.iter().flatten().count(),
        }
    }
}
