//! Which ways to the other end work. The state of lanes, as measured by the system or the adapter, is compared between
//! lanes of one path that take different ways.
//!
//! Either end judges the ways by what it sends itself. A way is given up only while another works. The end that dials
//! decides which ways are used again, and when.

use std::time::Duration;

/// A way is given up if nothing on it was acknowledged for both this time and this many round trips.
const STALLED_MIN: Duration = Duration::from_secs(1);
const STALLED_ROUND_TRIPS: u32 = 4;

/// A way is given up if it carries less than this part of what the best way carries, although it has enough to send.
/// The chunks on a slow way keep all later chunks from being written, and occupy buffers that faster ways could use.
const SLOW_PART: f64 = 1.0 / 16.0;

/// Measured state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// Smoothed round trip; `None` if it is not measured.
    pub round_trip: Option<Duration>,
    /// Whether something has been sent and not been acknowledged.
    pub is_unanswered: bool,
    /// Number of bytes acknowledged and received since the lane came up; `None` if it is not known.
    pub moved_bytes: Option<u64>,
}

/// Health of a lane, derived from its measured states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    pub(crate) way: u8,
    /// How long no bytes may move before the lane counts as stuck.
    patience: Duration,
    /// Average time between two moves while something is unacknowledged. An adapter reports only whole chunks.
    step: Duration,
    moved_bytes: u64,
    moved_at: Duration,
    /// Since when something that was sent has not been acknowledged and no bytes have moved.
    stuck_since: Option<Duration>,
    /// The stretch of time in which the rate is measured: when it began, and how many bytes had moved by then.
    stretch: Option<(Duration, u64)>,
    /// Whether there was nothing to send at some time of the stretch.
    was_idle: bool,
    /// Rate in the last stretch, in bytes a second, and whether there was something to send all the time.
    rate: Option<(f64, bool)>,
}

impl Health {
    /// Creates the health of a lane that comes up now.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            way: 0,
            patience: STALLED_MIN,
            step: Duration::ZERO,
            moved_bytes: 0,
            moved_at: now,
            stuck_since: None,
            stretch: None,
            // The first stretch does not count, because a new lane must find its rate first.
            was_idle: true,
            rate: None,
        }
    }

    /// Returns the number of bytes that have moved since the lane came up.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Records the state measured now.
    pub(crate) fn note(&mut self, state: LaneState, now: Duration) {
        let Some(moved_bytes) = state.moved_bytes else { return };
        if moved_bytes != self.moved_bytes {
            if let Some(since) = self.stuck_since {
                self.step = (3 * self.step + now.saturating_sub(since)) / 4;
            }
            (self.moved_bytes, self.moved_at, self.stuck_since) = (moved_bytes, now, None);
        }
        if state.is_unanswered {
            self.stuck_since.get_or_insert(now);
        } else {
            self.stuck_since = None;
        }
        self.was_idle |= !state.is_unanswered;
        self.patience = STALLED_MIN.max(STALLED_ROUND_TRIPS * state.round_trip.unwrap_or_default().max(self.step));
        let (began, bytes_at) = *self.stretch.get_or_insert((now, moved_bytes));
        let took = now.saturating_sub(began);
        if took >= self.patience {
            let rate = moved_bytes.saturating_sub(bytes_at) as f64 / took.as_secs_f64();
            self.rate = Some((rate, !self.was_idle));
            (self.stretch, self.was_idle) = (Some((now, moved_bytes)), false);
        }
    }

    /// Discards all measurements, because one of the two ends was stopped.
    pub(crate) fn forget(&mut self, now: Duration) {
        (self.moved_at, self.stuck_since, self.step) = (now, None, Duration::ZERO);
        (self.stretch, self.was_idle, self.rate) = (None, true, None);
    }

    fn is_stuck(&self, now: Duration) -> bool {
        self.stuck_since.is_some_and(|since| now.saturating_sub(since) >= self.patience)
    }

    fn has_moved(&self, now: Duration) -> bool {
        now.saturating_sub(self.moved_at) < self.patience
    }
}

/// Returns a way to give up, if any, among those that these lanes take.
pub(crate) fn failed(lanes: &[Health], now: Duration) -> Option<u8> {
    let of = |way: u8| lanes.iter().filter(move |lane| lane.way == way);
    let is_stalled = |way| {
        of(way).any(|lane| lane.is_stuck(now))
            && !of(way).any(|lane| lane.has_moved(now))
            && lanes.iter().any(|lane| lane.way != way && lane.has_moved(now))
    };
    let carries = |way| of(way).filter_map(|lane| lane.rate).map(|(rate, _)| rate).sum::<f64>();
    let best = lanes.iter().map(|lane| carries(lane.way)).fold(0.0, f64::max);
    let is_slow = |way| of(way).all(|lane| matches!(lane.rate, Some((_, true)))) && carries(way) < best * SLOW_PART;
    lanes.iter().map(|lane| lane.way).find(|&way| is_stalled(way) || is_slow(way))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Simulates two lanes on each of two ways. At each tick `rates` returns, for each way, the bytes a second that it
    /// carries and whether something waits to be sent. Returns when a way is given up, in ticks, and which.
    fn given_up(mut rates: impl FnMut(u32) -> [(f64, bool); 2]) -> Option<(u32, u8)> {
        let mut lanes = [0, 0, 1, 1].map(|way| Health { way, ..Health::new(Duration::ZERO) });
        let mut moved = [0.0; 4];
        (1..600).find_map(|tick| {
            let (now, rates) = (tick * TICK, rates(tick));
            for (at, lane) in lanes.iter_mut().enumerate() {
                let (rate, is_unanswered) = rates[at / 2];
                moved[at] += rate / 20.0;
                let round_trip = Some(Duration::from_millis(2));
                lane.note(LaneState { round_trip, is_unanswered, moved_bytes: Some(moved[at] as u64) }, now);
            }
            failed(&lanes, now).map(|way| (tick, way))
        })
    }

    #[test]
    fn a_way_that_stops_is_left_in_a_second_while_another_works() {
        let stops = |tick, other| [(if tick < 50 { 1e7 } else { 0.0 }, true), other];
        let (tick, way) = given_up(|tick| stops(tick, (1e6, true))).expect("given up");
        assert!((59..=61).contains(&tick) && way == 0, "{tick} {way}");
        let both_stop = |tick| if tick < 50 { [(1e7, true), (1e6, true)] } else { [(0.0, true); 2] };
        assert_eq!(given_up(both_stop), None, "none works");
        assert_eq!(given_up(|tick| stops(tick, (0.0, false))), None, "nothing is known of the other");
        let heartbeats = |tick: u32| (if tick.is_multiple_of(10) { 800.0 } else { 0.0 }, tick.is_multiple_of(10));
        assert_eq!(given_up(|tick| [(1e7, true), heartbeats(tick)]), None, "one that has nothing to carry");
    }

    #[test]
    fn a_way_that_moves_in_large_steps_has_the_time_for_them() {
        // A chunk every 0.8 s, and none after 20 s.
        let mut lanes = [0, 1].map(|way| Health { way, ..Health::new(Duration::ZERO) });
        let given_up = (1_u32..600).find(|&tick| {
            for (lane, moved) in lanes.iter_mut().zip([u64::from(tick) << 18, u64::from(tick.min(200) / 8) << 20]) {
                lane.note(LaneState { round_trip: None, is_unanswered: true, moved_bytes: Some(moved) }, tick * TICK);
            }
            failed(&lanes, tick * TICK).is_some()
        });
        assert!(given_up.is_some_and(|tick| (225..=240).contains(&tick)), "{given_up:?}");
    }

    #[test]
    fn a_way_that_carries_next_to_nothing_is_left_if_it_had_enough_to_carry() {
        let slows = |tick, part: f64, is_busy| [(1e7, true), (if tick < 50 { 1e7 } else { 1e7 * part }, is_busy)];
        let (tick, way) = given_up(|tick| slows(tick, 0.01, true)).expect("given up");
        assert!(tick <= 71 && way == 1, "{tick} {way}");
        assert_eq!(given_up(|tick| slows(tick, 0.1, true)), None, "a tenth is worth it");
        assert_eq!(given_up(|tick| slows(tick, 0.01, tick % 7 != 0)), None, "nothing to send");
    }

    #[test]
    fn a_kernel_that_does_not_count_and_an_end_that_was_stopped_show_nothing() {
        let mut lanes = [0, 1].map(|way| Health { way, ..Health::new(Duration::ZERO) });
        for tick in 1..100 {
            for (lane, moved_bytes) in lanes.iter_mut().zip([Some(u64::from(tick)), None]) {
                lane.note(LaneState { round_trip: Some(TICK), is_unanswered: true, moved_bytes }, tick * TICK);
            }
            assert_eq!(failed(&lanes, tick * TICK), None);
        }
        let state = LaneState { round_trip: None, is_unanswered: true, moved_bytes: Some(1) };
        lanes[1].note(state, 100 * TICK);
        lanes.iter_mut().for_each(|lane| lane.forget(150 * TICK));
        assert_eq!(failed(&lanes, 150 * TICK), None);
    }
}
