//! Which ways to the other end work: what the system or the adapter measures of lanes, compared between those of one path that
//! go different ways.
//!
//! Either end sees it of what it sends. A way is given up only while another works; which of them is used again, and when, is
//! for the end that dials to decide.

use std::time::Duration;

/// A way is given up that has had nothing acknowledged for so long, and for so many round trips.
const STALLED_MIN: Duration = Duration::from_secs(1);
const STALLED_ROUND_TRIPS: u32 = 4;

/// And one that carries less than this part of what the best one does, with enough to send: what is on it keeps all that
/// comes behind from being written, and buffers from the ways that could use them.
const SLOW_PART: f64 = 1.0 / 16.0;

/// What has been measured of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The smoothed round trip; `None` where nobody measures it.
    pub round_trip: Option<Duration>,
    /// Something has been sent and not been acknowledged.
    pub is_unanswered: bool,
    /// Bytes that have been acknowledged, and that have come, since it came up; `None` where that is not known.
    pub moved_bytes: Option<u64>,
}

/// How a lane does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    pub(crate) way: u8,
    /// For how long nothing may move.
    patience: Duration,
    /// How long it takes between two moves while something waits to be answered: an adapter tells of whole chunks.
    step: Duration,
    moved_bytes: u64,
    moved_at: Duration,
    /// Since when something that was sent has not been answered, and nothing has moved.
    stuck_since: Option<Duration>,
    /// The stretch of time in which the rate is measured: since when, and from how many bytes on.
    stretch: Option<(Duration, u64)>,
    /// There was nothing to send at some time of it.
    was_idle: bool,
    /// Bytes a second in the last one, and whether there was something to send all the time.
    rate: Option<(f64, bool)>,
}

impl Health {
    /// Of a lane that comes up now.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            way: 0,
            patience: STALLED_MIN,
            step: Duration::ZERO,
            moved_bytes: 0,
            moved_at: now,
            stuck_since: None,
            stretch: None,
            // It finds its rate first.
            was_idle: true,
            rate: None,
        }
    }

    /// Bytes that have moved since it came up.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// What is measured now.
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

    /// One of the two ends was stopped: what was measured says nothing.
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

/// A way to give up, of those that these lanes go.
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

    /// Two lanes on each of two ways, which carry what `rates` says at each tick, in bytes a second; whether something waits
    /// to be sent. When a way is given up, in ticks, and which.
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
        // A chunk every 0.8 s, and after 20 s none.
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
