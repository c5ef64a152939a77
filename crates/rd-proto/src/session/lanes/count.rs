//! The number of lanes and rails: as many as carry more, or as many as were asked for.

use std::time::Duration;

use super::{Lanes, RDMA_LANE_FIRST, State, nth_place, path_of};
use crate::control::{Frame, Path};
use crate::handshake::LaneId;
use crate::session::Action;
use crate::session::growth::{LONG_LINE, LaneGrowth};
use crate::session::rails::Rails;

impl Lanes {
    /// Records the shortest round trip so far, which decides whether the line is long. On a busy host the first round
    /// trip may have included waiting for a processor.
    pub(crate) fn note_round_trip(&mut self, shortest: Duration, now: Duration, taken: u64) {
        if self.growth.as_ref().is_some_and(LaneGrowth::is_long) && shortest < LONG_LINE {
            self.growth = None;
            self.keep_tcp_lanes(self.first_lanes(), now);
        }
        if self.connector && self.growth.is_none() {
            let rails = self.rails_of(Path::Tcp);
            let max = self.agreed.tcp_lanes_max.min(rails.places());
            let processors = self.processors / rails.count();
            let bytes = self.carried_bytes(taken);
            self.growth = LaneGrowth::new(self.first_lanes(), max, processors, shortest, now, bytes);
        }
    }

    pub(crate) fn set_processors(&mut self, count: u16) {
        self.processors = count;
    }

    /// Returns the number of TCP lanes that each rail begins with.
    pub(super) fn first_lanes(&self) -> u16 {
        let lanes = self.agreed.tcp_lanes;
        // A number that was asked for is that of all rails together.
        let rails = self.rails_of(Path::Tcp);
        let lanes = if self.has_fixed_lanes() { lanes / rails.count() } else { lanes };
        lanes.clamp(1, rails.places())
    }

    /// Returns whether a number of TCP lanes was asked for.
    pub(super) fn has_fixed_lanes(&self) -> bool {
        self.agreed.tcp_lanes == self.agreed.tcp_lanes_max
    }

    /// At the end that dials: records how many rails of a path were found. `all`: use all whether they carry more or
    /// not.
    pub(crate) fn rails_found(
        &mut self,
        (path, count, all): (Path, u8, bool),
        round_trip: Duration,
        now: Duration,
        taken: u64,
    ) {
        // A rail without a lane would be useless.
        let lanes = if path == Path::Tcp { self.agreed.tcp_lanes_max } else { self.rdma_lanes_max() };
        let count = count.min(lanes as u8);
        // If a number of lanes was asked for, the existing rail keeps its lanes: none is moved to try another rail.
        if !self.connector || count < 2 || self.rails_of(path).count() > 1 || (self.has_fixed_lanes() && !all) {
            return;
        }
        let bytes = self.carried_bytes(taken);
        let mut rails = if all { Rails::all(path, count) } else { Rails::found(path, count, round_trip, now, bytes) };
        rails.up(0, now);
        *self.rails_of_mut(path) = rails;
        match path {
            Path::Tcp => {
                self.growth = None;
                self.keep_tcp_lanes(self.first_lanes(), now);
            }
            Path::Rdma => self.keep_lanes(Path::Rdma, now),
        }
    }

    /// Returns the number of lanes that each rail of a path has.
    pub(super) fn lanes_of_rail(&self, path: Path) -> u16 {
        let each = match path {
            Path::Tcp => self.tcp_lanes,
            Path::Rdma if self.has_fixed_lanes() => self.agreed.rdma_lanes / self.rails_of(path).count(),
            Path::Rdma => self.agreed.rdma_lanes,
        };
        each.clamp(1, self.rails_of(path).places())
    }

    /// Returns the maximum number of RDMA lanes on all rails together.
    pub(super) fn rdma_lanes_max(&self) -> u16 {
        if self.has_fixed_lanes() { self.agreed.rdma_lanes } else { RDMA_LANE_FIRST }
    }

    /// Adapts the number of rails to what they carry and, if payload goes by TCP, the number of lanes to the line.
    pub(crate) fn fit(&mut self, taken: u64, [limits, keeps_busy]: [bool; 2], queues: bool, least: u64, now: Duration) {
        let Some(path) = self.path else { return };
        let bytes = self.carried_bytes(taken);
        // Rails and lanes are tried one at a time; otherwise neither trial would show what it carries.
        if path == Path::Tcp && self.growth.as_ref().is_some_and(LaneGrowth::is_trying) {
            self.rails_of_mut(path).pause();
        } else if self.rails_of_mut(path).fit(bytes, keeps_busy, least, now) {
            self.keep_lanes(path, now);
        }
        let rails = &self.rails[path as usize];
        let Some(growth) = self.growth.as_mut().filter(|_| path == Path::Tcp) else { return };
        // Rails are tried first: a rail adds the capacity of its network, while more lanes on one rail may only share
        // it differently.
        if rails.is_trying() || keeps_busy && rails.are_untried(now) {
            growth.pause();
        }
        // On a short line little is ever on the way. The line limits throughput if the lanes always have something to
        // send.
        let limits = if growth.is_long() { limits } else { keeps_busy };
        growth.note(now, bytes, [limits, queues], least);
        let lanes = growth.lanes();
        self.keep_tcp_lanes(lanes, now);
    }

    /// Sets the number of TCP lanes wanted on each rail.
    pub(crate) fn keep_tcp_lanes(&mut self, lanes: u16, now: Duration) {
        self.tcp_lanes = lanes;
        self.keep_lanes(Path::Tcp, now);
    }

    /// Retires the lanes of a path that are no longer wanted, or whose place now belongs to another rail.
    pub(super) fn keep_lanes(&mut self, path: Path, now: Duration) {
        let each = self.lanes_of_rail(path);
        let (rails, places) = (&self.rails[path as usize], &mut self.places);
        let first = path as u16 * RDMA_LANE_FIRST;
        for nth_place in 1..RDMA_LANE_FIRST {
            let (rail, nth) = rails.of_place(nth_place);
            let is_wanted = nth < each && rails.may_have(rail, nth, now);
            let index = first + nth_place;
            let place = &mut places[usize::from(index)];
            if place.state == State::Up && place.retired.is_none() && (!is_wanted || place.rail != rail) {
                place.retired = Some(now);
                self.actions.push_back(Action::Send(LaneId { index, generation: place.generation }, Frame::Retired));
            }
        }
    }

    /// Handles a lane that has come up, was lost or could not be made. Its rail then works, or is left if another rail
    /// has lanes.
    pub(super) fn note_rail(&mut self, lane: LaneId, is_up: bool, now: Duration) {
        let (path, rail) = (path_of(lane), self.rail_of(lane));
        // A rail is left only while payload goes by its path: otherwise the other rails need not have lanes. But a lane
        // that is up shows that its rail works, whatever path the payload takes.
        if !self.connector || self.rails_of(path).count() < 2 || (!is_up && self.path != Some(path)) {
            return;
        }
        let used: Vec<u8> = self.payload().map(|other| self.rail_of(other)).collect();
        let (_, nth) = self.rails_of(path).of_place(nth_place(lane.index));
        let notices = self.rails_of_mut(path).note((rail, nth), is_up, &used, now);
        self.actions.extend(notices.into_iter().map(Action::Notice));
    }
}
