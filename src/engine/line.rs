//! Measurements of the line by the system, to which the session adapts its lanes and buffers.

use std::collections::HashSet;
use std::time::Duration;

use rd_proto::control::Path;
use rd_proto::session::{Notice, path_of};

use super::{Engine, Line, SessionEvent};
use crate::transport::{Lane, Medium};

/// When other rails are known at the latest, if there are any.
const RAILS_KNOWN_AFTER: Duration = Duration::from_secs(2);

/// Maximum number of ways that are distinguished.
const WAYS_MAX: usize = 32;

impl Engine {
    /// Tells the session the round-trip time to the other end and the state of its lanes.
    pub(super) fn measure_line(&mut self, now: Duration) {
        let mut shortest: Option<Duration> = None;
        for (&id, live) in &self.lanes {
            if let Some(state) = live.lane.state() {
                shortest = shortest.into_iter().chain(state.round_trip).min();
                self.half.machine().handle_lane_state(id, state, now);
            }
        }
        if let Some(round_trip) = shortest {
            self.half.machine().handle_round_trip(round_trip, now);
        }
        self.tell_one_rail(now);
    }

    /// Tells the user if only one rail was found although more were asked for.
    fn tell_one_rail(&mut self, now: Duration) {
        let core = self.half.machine_ref().core_ref();
        let (Some(dialer), Some(path)) = (&self.dialer, core.path()) else { return };
        let is_decided = path == Path::Tcp && self.addresses.is_some() || now >= RAILS_KNOWN_AFTER;
        if core.rails(path) > 1 || !is_decided {
            return;
        }
        let why = dialer.why_one_rail(path, self.addresses.as_deref());
        if let Some(why) = why {
            self.observer.observe(SessionEvent::OneRail(why));
        }
    }

    /// Returns the number of the way that a lane takes. All lanes between the same two addresses have the same number.
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

    /// Looks for more rails of a path, once its first lane is up and the other end has announced its addresses. Returns
    /// true if there are any.
    pub(super) fn find_rails(&mut self, path: Path) -> bool {
        let (Some(dialer), Some(addresses)) = (&self.dialer, &self.addresses) else { return false };
        if self.half.machine_ref().core_ref().rails(path) > 1 {
            return false;
        }
        let of_path = self.lanes.iter().filter(|(id, _)| path_of(**id) == path);
        let Some(first) = of_path.min_by_key(|(id, _)| **id).and_then(|(_, live)| live.lane.way()) else {
            return false;
        };
        let (count, all) = dialer.find_rails(path, first, addresses);
        if count < 2 {
            return false;
        }
        for rail in 0..count {
            let name = dialer.rail_name(path, rail).unwrap_or_default();
            self.observer.observe(SessionEvent::Rail(path, rail, name));
        }
        let now = self.now();
        self.half.machine().handle_rails(path, count, all, now);
        true
    }

    /// Records how many ways the lanes of this medium take at once.
    pub(super) fn count_ways(&mut self, medium: Medium) {
        let alike = self.lanes.values().filter(|live| live.lane.medium() == medium);
        let ways: HashSet<_> = alike.filter_map(|live| live.lane.way()).collect();
        self.ways_most = self.ways_most.max(ways.len());
    }

    /// Returns the name of the rail that a notice is about.
    pub(super) fn rail_name(&self, notice: Notice) -> Option<String> {
        match notice {
            Notice::RailLeft(path, rail) | Notice::RailSlow(path, rail) | Notice::RailBack(path, rail) => {
                self.dialer.as_ref()?.rail_name(path, rail)
            }
            _ => None,
        }
    }

    /// Returns the round-trip time of the line, and the buffers and rails used for it.
    pub(super) fn line(&self) -> Line {
        let core = self.half.machine_ref().core_ref();
        Line {
            round_trip_us: core.round_trip().map(|trip| trip.as_micros() as u64),
            buffer_bytes: u64::from(core.buffers_max()) * self.chunk_bytes as u64,
            rails: self.ways_most,
        }
    }
}
