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

/// Minimum rate, in bytes a second, that shows what a way carries, even if there was not always something to send: idle
/// lanes, which exchange heartbeats, move less.
const TELLING_RATE: f64 = 4096.0;

/// Part of the highest rate of a lane that is left in the next stretch. A good way carries nothing for a while if it
/// waits for the chunks of a slow one.
const KEPT_OF_PEAK: f64 = 0.9;

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
    /// Whether that rate is more than twice the one before. A new lane on a long line is still finding its rate then.
    rises: bool,
    /// The highest rate in a stretch, less what has faded since.
    peak: f64,
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
            rises: false,
            peak: 0.0,
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
            self.rises = self.rate.is_some_and(|(before, _)| rate > 2.0 * before);
            self.rate = Some((rate, !self.was_idle));
            self.peak = rate.max(KEPT_OF_PEAK * self.peak);
            (self.stretch, self.was_idle) = (Some((now, moved_bytes)), false);
        }
    }

    /// Discards all measurements, because one of the two ends was stopped.
    pub(crate) fn forget(&mut self, now: Duration) {
        (self.moved_at, self.stuck_since, self.step) = (now, None, Duration::ZERO);
        (self.stretch, self.was_idle, self.rate, self.peak) = (None, true, None, 0.0);
    }

    fn is_stuck(&self, now: Duration) -> bool {
        self.stuck_since.is_some_and(|since| now.saturating_sub(since) >= self.patience)
    }

    fn has_moved(&self, now: Duration) -> bool {
        now.saturating_sub(self.moved_at) < self.patience
    }

    /// Returns whether the lane still moves bytes. A lane that was cut at the beginning of a stretch seems to be slow
    /// when the stretch ends, but has then moved nothing for nearly its whole patience.
    fn still_moves(&self, now: Duration) -> bool {
        2 * now.saturating_sub(self.moved_at) < self.patience
    }

    fn carries(&self) -> f64 {
        self.rate.map_or(0.0, |(rate, _)| rate)
    }

    /// Returns whether the rate is all that the lane can carry.
    fn had_enough(&self) -> bool {
        matches!(self.rate, Some((_, true))) && !self.rises
    }

    fn had_pauses(&self) -> bool {
        matches!(self.rate, Some((_, false)))
    }
}

fn of(lanes: &[Health], way: u8) -> impl Iterator<Item = &Health> {
    lanes.iter().filter(move |lane| lane.way == way)
}

/// Returns whether a way carries next to nothing beside the best of the others. In an ordered stream, good ways soon
/// wait for the chunks of a slow one. So a way that waits while the stream is `held_up` counts with half of what it
/// carried before: the peaks of its lanes may be from different times.
fn is_slow(lanes: &[Health], way: u8, held_up: bool) -> bool {
    let could_carry = |other| {
        let waits = held_up && of(lanes, other).all(Health::had_pauses);
        of(lanes, other).map(|lane| if waits { lane.peak / 2.0 } else { lane.carries() }).sum::<f64>()
    };
    let others = lanes.iter().map(|lane| lane.way).filter(|&other| other != way);
    let carried: f64 = of(lanes, way).map(Health::carries).sum();
    carried < others.map(could_carry).fold(0.0, f64::max) * SLOW_PART
}

/// Returns a way to give up, if any, among those that these lanes take. `held_up`: chunks that have arrived or could be
/// sent wait for others.
pub(crate) fn failed(lanes: &[Health], held_up: bool, now: Duration) -> Option<u8> {
    let is_stalled = |way| {
        of(lanes, way).any(|lane| lane.is_stuck(now))
            && !of(lanes, way).any(|lane| lane.has_moved(now))
            && lanes.iter().any(|lane| lane.way != way && lane.has_moved(now))
    };
    let had_enough = |way| of(lanes, way).all(Health::had_enough);
    lanes.iter().map(|lane| lane.way).find(|&way| is_stalled(way) || had_enough(way) && is_slow(lanes, way, held_up))
}

/// Returns whether a way carries enough to be used beside the others, or next to nothing; `None` if that is not known.
pub(crate) fn carries_enough(lanes: &[Health], way: u8, held_up: bool, now: Duration) -> Option<bool> {
    if of(lanes, way).any(|lane| lane.rate.is_none()) || !of(lanes, way).any(|lane| lane.still_moves(now)) {
        return None;
    }
    let carried: f64 = of(lanes, way).map(Health::carries).sum();
    let is_telling = carried >= TELLING_RATE;
    if is_slow(lanes, way, held_up) {
        (is_telling || of(lanes, way).all(Health::had_enough)).then_some(false)
    } else {
        let peak = |lane: &Health| of(lanes, lane.way).map(|lane| lane.peak).sum::<f64>();
        (is_telling && carried >= lanes.iter().map(peak).fold(0.0, f64::max) * SLOW_PART).then_some(true)
    }
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
            failed(&lanes, true, now).map(|way| (tick, way))
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
            failed(&lanes, true, tick * TICK).is_some()
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
        let rises = |tick: u32| [(1e7, true), (1e3 * 2_f64.powi(tick as i32 / 3).min(1e4), true)];
        assert_eq!(given_up(rises), None, "one that is still finding its rate");
        // In an ordered stream the other way soon waits for the slow one's chunk.
        let waits = |tick| {
            let other = if tick < 52 { (1e7, true) } else { (0.0, false) };
            [other, (if tick < 50 { 1e7 } else { 5e3 }, true)]
        };
        let (tick, way) = given_up(waits).expect("given up");
        assert!(tick <= 71 && way == 1, "{tick} {way}");
    }

    /// Returns what is known of the second of two ways after some ticks. `rates` is as in [`given_up`].
    fn enough(ticks: u32, mut rates: impl FnMut(u32) -> [(f64, bool); 2]) -> Option<bool> {
        let mut lanes = [0, 1].map(|way| Health { way, ..Health::new(Duration::ZERO) });
        let mut moved = [0.0; 2];
        for tick in 1..=ticks {
            for ((lane, moved), (rate, is_unanswered)) in lanes.iter_mut().zip(&mut moved).zip(rates(tick)) {
                *moved += rate / 10.0;
                let state = LaneState { round_trip: None, is_unanswered, moved_bytes: Some(*moved as u64) };
                lane.note(state, tick * TICK);
            }
        }
        carries_enough(&lanes, 1, true, ticks * TICK)
    }

    #[test]
    fn a_way_carries_enough_only_if_that_is_seen() {
        for is_busy in [true, false] {
            assert_eq!(enough(50, |_| [(1e7, true), (1e6, is_busy)]), Some(true), "a tenth");
            assert_eq!(enough(50, |_| [(1e7, true), (1e5, is_busy)]), Some(false), "a hundredth");
            assert_eq!(enough(5, |_| [(1e7, true), (1e6, is_busy)]), None, "too early");
        }
        assert_eq!(enough(50, |_| [(1e7, true), (500.0, true)]), Some(false), "all that it can");
        assert_eq!(enough(50, |_| [(1e7, true), (500.0, false)]), None, "nothing to send there");
        assert_eq!(enough(50, |_| [(500.0, false); 2]), None, "nothing to send");
        let waits = |tick| [if tick < 25 { (1e7, true) } else { (0.0, false) }, (1e5, true)];
        assert_eq!(enough(60, waits), Some(false), "the other way waits for this one");
        let is_cut = |tick| [(1e7, true), if tick < 33 { (1e6, true) } else { (0.0, true) }];
        assert_eq!(enough(41, is_cut), None, "it was cut soon after a stretch had begun");
        let dies = |tick| [(1e7, true), if tick < 30 { (1e6, true) } else { (0.0, true) }];
        assert_eq!(enough(60, dies), None, "it has stopped");
    }

    #[test]
    fn a_kernel_that_does_not_count_and_an_end_that_was_stopped_show_nothing() {
        let mut lanes = [0, 1].map(|way| Health { way, ..Health::new(Duration::ZERO) });
        for tick in 1..100 {
            for (lane, moved_bytes) in lanes.iter_mut().zip([Some(u64::from(tick)), None]) {
                lane.note(LaneState { round_trip: Some(TICK), is_unanswered: true, moved_bytes }, tick * TICK);
            }
            assert_eq!(failed(&lanes, true, tick * TICK), None);
        }
        let state = LaneState { round_trip: None, is_unanswered: true, moved_bytes: Some(1) };
        lanes[1].note(state, 100 * TICK);
        lanes.iter_mut().for_each(|lane| lane.forget(150 * TICK));
        assert_eq!(failed(&lanes, true, 150 * TICK), None);
    }
}
