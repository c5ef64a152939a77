//! Rails: ways to the other end that have no interface in common.
//!
//! Rail 0 is the one that the session began on. The end that dials finds the others from the addresses of the other
//! end, and tries them as it tries more lanes: a rail is kept if it carries a tenth more. Each rail has an equal,
//! contiguous range of the path's places for lanes. Chunks are not divided among rails beforehand. A lane is given its
//! next chunk when it has sent enough of the previous ones, so each rail carries what it can.
//!
//! A rail that has failed is left. It is tried with one lane now and then, and gets all its lanes again once that lane
//! is up. A rail that was left because it carried next to nothing may still let any number of lanes come up. Its one
//! lane is therefore on trial, and the rail gets all its lanes once that lane carries enough. If the lane carries too
//! little, it is closed, as on any rail, and another is tried after the next rest. A rail that fails again soon, or on
//! trial, or has never worked, is tried later each time. If no rail works any more, all are tried, including those that
//! were not worth using.

use std::time::Duration;

use super::Notice;
use super::growth::LaneGrowth;
use super::lanes::RDMA_LANE_FIRST;
use crate::control::Path;

/// How long trials of anything else wait until the rails have been tried.
const FIRST_TRIAL_MAX: Duration = Duration::from_secs(5);

/// Maximum number of rails of a session.
pub const RAILS_MAX: u8 = 8;

/// How long a rail that has failed is left alone: the first time, and the maximum after repeated failures.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);

/// Maximum rest after failed trials of a slow rail, if it did not rest longer before. Each trial may hold up a stream for
/// about 2 s.
const TRIAL_REST_MAX: Duration = Duration::from_secs(30);

/// How long a rail must last to count as one that never failed.
const STEADY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Rail {
    /// If the rail has failed: left alone until this time. From then on one lane is tried.
    left_until: Option<Duration>,
    rest: Duration,
    /// When the rail was last taken back.
    back_at: Option<Duration>,
    /// Whether any lane of the rail has been up.
    was_up: bool,
    /// Whether the rail carried next to nothing when that was last known, or was left at such a time.
    is_slow: bool,
    /// Whether a lane of a slow rail that was left has come up, to show what it carries.
    on_trial: bool,
}

/// The rails of a path, at the end that dials.
#[derive(Debug)]
pub(crate) struct Rails {
    path: Path,
    rails: Vec<Rail>,
    /// Trials of how many rails are worth using; `None` if all are used without a trial.
    growth: Option<LaneGrowth>,
    /// How long other trials wait for the first trial of rails; `None` once there was one.
    untried_until: Option<Duration>,
    /// Whether no rail works. Any rail may then be tried, even one that was not worth using.
    are_lost: bool,
}

impl Rails {
    /// Creates `count` rails that were found. Those that are worth it will be used.
    pub(crate) fn found(path: Path, count: u8, round_trip: Duration, now: Duration, bytes: u64) -> Self {
        let growth = LaneGrowth::of_rails(count.into(), round_trip, now, bytes);
        Self { growth: Some(growth), untried_until: Some(now + FIRST_TRIAL_MAX), ..Self::all(path, count) }
    }

    /// Creates `count` rails, all of which will be used: those that were found, or the one that the path begins on.
    pub(crate) fn all(path: Path, count: u8) -> Self {
        let well =
            Rail { left_until: None, rest: REST_MIN, back_at: None, was_up: false, is_slow: false, on_trial: false };
        let rails = vec![well; usize::from(count.clamp(1, RAILS_MAX))];
        Self { path, rails, growth: None, untried_until: None, are_lost: false }
    }

    pub(crate) fn count(&self) -> u16 {
        self.rails.len() as u16
    }

    /// Returns the number of places for lanes that each rail has.
    pub(crate) fn places(&self) -> u16 {
        RDMA_LANE_FIRST / self.count()
    }

    /// Returns the rail of the lane at this place of the path, and the lane's number among the rail's lanes.
    pub(crate) fn of_place(&self, index: u16) -> (u8, u16) {
        ((index / self.places()) as u8, index % self.places())
    }

    /// Returns the number of rails to use, if they work.
    fn wanted(&self) -> usize {
        let worth_it = self.growth.as_ref().map(|growth| usize::from(growth.lanes()));
        worth_it.filter(|_| !self.are_lost).unwrap_or(self.rails.len())
    }

    /// Returns whether a rail may have its lane of this number now. A rail that works and is worth using may have all
    /// its lanes. A rail that was left may have one, to see whether it works again.
    pub(crate) fn may_have(&self, rail: u8, nth: u16, now: Duration) -> bool {
        let Some(known) = self.rails.get(usize::from(rail)) else { return false };
        match known.left_until {
            None => {
                let before = self.rails[..usize::from(rail)].iter().filter(|other| other.left_until.is_none());
                before.count() < self.wanted()
            }
            Some(until) => nth == 0 && now >= until,
        }
    }

    /// Allows an attempt on every rail that is left alone: no rail works now, and one of these may.
    pub(crate) fn hurry(&mut self, now: Duration) {
        for rail in &mut self.rails {
            rail.left_until = rail.left_until.map(|until| until.min(now));
        }
    }

    /// Sets whether no rail has carried anything for a while. Rails that were not worth using may then be tried.
    pub(crate) fn set_lost(&mut self, are_lost: bool) {
        self.are_lost = are_lost;
    }

    /// Returns whether a rail is left alone.
    pub(crate) fn rests(&self, rail: u8, now: Duration) -> bool {
        self.rails.get(usize::from(rail)).and_then(|rail| rail.left_until).is_some_and(|until| now < until)
    }

    /// Handles a lane of the rail that is up. Returns the changes that follow.
    pub(crate) fn up(&mut self, rail: u8, now: Duration) -> Vec<Notice> {
        if usize::from(rail) >= self.rails.len() {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if std::mem::take(&mut self.are_lost) && !self.may_have(rail, 0, now) {
            // This rail was not worth using beside the rails in use, but came up before any of them. From now on every
            // rail is worth using. A network that lets only small packets through comes back at once, and carries
            // nothing.
            let is_used =
                |other: &u8| self.rails[usize::from(*other)].left_until.is_none() && self.may_have(*other, 0, now);
            let used: Vec<u8> = (0..self.rails.len() as u8).filter(is_used).collect();
            changes.extend(used.into_iter().filter_map(|other| self.failed(other, now)));
            self.growth = None;
        }
        let known = &mut self.rails[usize::from(rail)];
        if known.left_until.is_some() {
            if known.is_slow {
                // That a lane comes up does not show that it will carry more.
                known.on_trial = true;
                return changes;
            }
            known.back_at = Some(now);
            changes.extend(known.was_up.then_some(Notice::RailBack(self.path, rail)));
        }
        (known.left_until, known.was_up) = (None, true);
        changes
    }

    /// Handles what the lanes of a rail that are up carry: enough, or next to nothing; `None` if that is not known.
    /// Returns the change that follows.
    pub(crate) fn judge(&mut self, number: u8, is_enough: Option<bool>, now: Duration) -> Option<Notice> {
        let rail = self.rails.get_mut(usize::from(number))?;
        if rail.left_until.is_none() {
            rail.is_slow = is_enough == Some(false);
            return None;
        }
        if is_enough != Some(true) {
            return None;
        }
        (rail.left_until, rail.back_at, rail.is_slow, rail.on_trial) = (None, Some(now), false, false);
        Some(Notice::RailBack(self.path, number))
    }

    /// Handles the `nth` lane of the rail, which is up, or was lost or not made, while the rails in `used` have lanes.
    /// Returns the changes that follow.
    pub(crate) fn note(&mut self, (rail, nth): (u8, u16), is_up: bool, used: &[u8], now: Duration) -> Vec<Notice> {
        if is_up {
            return self.up(rail, now);
        }
        // A rail that was left is tried with its first lane. The others were dialled before it was left.
        let is_late = nth > 0 && self.rails.get(usize::from(rail)).is_some_and(|rail| rail.left_until.is_some());
        let is_left = !is_late && !used.is_empty() && !used.contains(&rail);
        if is_left { self.failed(rail, now).into_iter().collect() } else { Vec::new() }
    }

    /// Handles the failure of a rail: it has no lane any more, or could not get one, while another rail has lanes.
    fn failed(&mut self, number: u8, now: Duration) -> Option<Notice> {
        let rail = self.rails.get_mut(usize::from(number))?;
        // All its lanes may have been dialled at once. They fail together, and count as one failure.
        if rail.left_until.is_some_and(|until| now < until) {
            return None;
        }
        let was_well = rail.left_until.is_none();
        let was_on_trial = std::mem::take(&mut rail.on_trial);
        if !was_well && !was_on_trial {
            // No lane comes up on it any more. One that does then shows that the rail is back, as after any failure.
            rail.is_slow = false;
        }
        let is_news = was_well && rail.was_up;
        let is_flapping = match rail.back_at {
            // A rail that was never up may never be, and one that is slow may stay so.
            _ if !was_well => !rail.was_up || was_on_trial,
            Some(since) => now.saturating_sub(since) < STEADY,
            None => false,
        };
        if is_flapping {
            let most = if was_on_trial { rail.rest.max(TRIAL_REST_MAX) } else { REST_MAX };
            rail.rest = (2 * rail.rest).min(most);
        } else if is_news {
            rail.rest = REST_MIN;
        }
        rail.left_until = Some(now + rail.rest);
        let told = if rail.is_slow { Notice::RailSlow } else { Notice::RailLeft };
        is_news.then_some(told(self.path, number))
    }

    /// Adapts the number of rails to what they carry. Returns whether the number has changed. `limits`: the line limits
    /// throughput. An interval with fewer than `least` bytes says nothing.
    pub(crate) fn fit(&mut self, bytes: u64, limits: bool, least: u64, now: Duration) -> bool {
        let Some(growth) = &mut self.growth else { return false };
        let before = growth.lanes();
        growth.note(now, bytes, [limits, false], least);
        if growth.is_trying() {
            self.untried_until = None;
        }
        growth.lanes() != before
    }

    /// Returns whether other rails have been found whose first trial is still being waited for.
    pub(crate) fn are_untried(&self, now: Duration) -> bool {
        self.untried_until.is_some_and(|until| now < until)
    }

    /// Returns whether more or fewer rails are being tried.
    pub(crate) fn is_trying(&self) -> bool {
        self.growth.as_ref().is_some_and(LaneGrowth::is_trying)
    }

    /// Excludes the present interval from measurement, because something else is being tried.
    pub(crate) fn pause(&mut self) {
        if let Some(growth) = &mut self.growth {
            growth.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Frame, Path, Policy, RdmaKind};
    use crate::frame::ChunkHeader;
    use crate::handshake::LaneId;
    use crate::session::tests::pair;
    use crate::session::{Action, LaneState, Machine, Notice, Sender};

    const TICK: Duration = Duration::from_millis(100);

    fn random(seed: &mut u64) -> f64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn first_seed() -> u64 {
        std::env::var("RD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
    }

    #[test]
    fn places_are_divided_among_rails() {
        for count in 1..=RAILS_MAX {
            let rails = Rails::all(Path::Tcp, count);
            let mut lanes = vec![0; count.into()];
            for index in 0..RDMA_LANE_FIRST {
                let (rail, nth) = rails.of_place(index);
                if rails.may_have(rail, nth, Duration::ZERO) {
                    assert_eq!(nth, lanes[usize::from(rail)]);
                    lanes[usize::from(rail)] += 1;
                }
            }
            assert_eq!(lanes, vec![rails.places(); count.into()], "{count}");
        }
    }

    /// Simulates rails with the given rates and a ceiling for all together. Each rail carries what it can. Returns the
    /// number of rails used at the end.
    fn settled(rates: &[f64], ceiling: f64, seed: &mut u64, limits: bool) -> usize {
        let mut rails = Rails::found(Path::Tcp, rates.len() as u8, Duration::from_millis(1), Duration::ZERO, 0);
        let mut bytes = 0.0;
        for tick in 1..300 {
            let now = tick * TICK;
            let used = (0..rates.len() as u8).filter(|&rail| rails.may_have(rail, 0, now));
            let rate: f64 = used.map(|rail| rates[usize::from(rail)]).sum();
            bytes += rate.min(ceiling) * (1.0 + 0.04 * (random(seed) - 0.5)) / 10.0;
            rails.fit(bytes as u64, limits, 0, now);
        }
        rails.wanted()
    }

    #[test]
    fn rails_that_add_a_tenth_are_used_and_no_others() {
        for case in 0..200 {
            let seed = first_seed().wrapping_add(case);
            let mut luck = seed;
            random(&mut luck);
            let count = 2 + (random(&mut luck) * 7.0) as usize;
            let rates: Vec<f64> = (0..count).map(|_| 1e7 * (1.0 + random(&mut luck))).collect();
            let told = format!("RD_SEED={seed} {rates:?}");
            assert_eq!(settled(&rates, 1e12, &mut luck, true), count, "{told}");
            assert_eq!(settled(&rates, 0.9 * rates[0], &mut luck, true), 1, "they share what is full: {told}");
            assert_eq!(settled(&rates, 1e12, &mut luck, false), 1, "nobody needs more: {told}");
        }
    }

    /// Bytes come through a MiB at a time and in order: on a slow line none may until the new rail's first chunks have.
    #[test]
    fn a_rail_that_holds_the_others_up_at_first_is_kept() {
        for case in 0..200 {
            let seed = first_seed().wrapping_add(case);
            let mut luck = seed;
            let rate = 4e6 * (1.0 + random(&mut luck));
            let held_up = 2 + (random(&mut luck) * 14.0) as u32;
            let mut rails = Rails::found(Path::Tcp, 2, Duration::from_millis(1), Duration::ZERO, 0);
            let (mut bytes, mut held, mut since) = (0.0, 0.0, None);
            for tick in 1..100 {
                if rails.wanted() == 2 {
                    since.get_or_insert(tick);
                    held += 2.0 * rate / 10.0;
                } else {
                    held += rate / 10.0;
                }
                // The bytes that were held up then come soon.
                let is_held_up = since.is_some_and(|since| tick < since + held_up);
                let comes = if is_held_up { 0.35 * rate / 10.0 } else { held.min(rate) };
                bytes += comes;
                held -= comes;
                rails.fit(bytes as u64, true, 0, tick * TICK);
            }
            assert_eq!(rails.wanted(), 2, "RD_SEED={seed}: {rate} B/s, held up for {held_up} ticks");
        }
    }

    #[test]
    fn rails_are_tried_before_anything_else_and_not_waited_for_without_end() {
        let mut rails = Rails::found(Path::Tcp, 2, Duration::from_millis(1), Duration::ZERO, 0);
        let mut now = Duration::ZERO;
        while !rails.is_trying() {
            assert!(rails.are_untried(now), "{now:?}");
            now += TICK;
            rails.fit(now.as_millis() as u64 * 10_000, true, 0, now);
        }
        assert!(!rails.are_untried(now) && now < FIRST_TRIAL_MAX, "{now:?}");
        // A source that pauses in every interval gives no information.
        let mut rails = Rails::found(Path::Tcp, 2, Duration::from_millis(1), Duration::ZERO, 0);
        for tick in 1..100 {
            rails.fit(u64::from(tick) * 10_000, tick % 3 > 0, 0, tick * TICK);
        }
        assert!(!rails.is_trying() && rails.are_untried(FIRST_TRIAL_MAX - TICK) && !rails.are_untried(FIRST_TRIAL_MAX));
        assert!(
            !Rails::all(Path::Tcp, 1).are_untried(Duration::ZERO)
                && !Rails::all(Path::Tcp, 2).are_untried(Duration::ZERO)
        );
    }

    #[test]
    fn a_rail_is_left_tried_again_and_later_each_time_if_it_flaps() {
        for case in 0..100 {
            let seed = first_seed().wrapping_add(case);
            let mut luck = seed;
            let mut rails = Rails::all(Path::Tcp, 2);
            let mut now = Duration::ZERO;
            (0..2).for_each(|rail| assert_eq!(rails.up(rail, now), []));
            let mut rest = Duration::ZERO;
            for turn in 0..10 {
                now += Duration::from_secs_f64(random(&mut luck) * STEADY.as_secs_f64());
                assert_eq!(rails.failed(1, now), Some(Notice::RailLeft(Path::Tcp, 1)), "RD_SEED={seed}");
                assert_eq!(rails.failed(1, now), None, "once: RD_SEED={seed}");
                assert!(rails.may_have(0, 0, now) && !rails.may_have(1, 0, now), "RD_SEED={seed}");
                let left = now;
                while !rails.may_have(1, 0, now) {
                    now += TICK;
                }
                let rested = now - left;
                assert!(
                    rested >= rest && rested <= REST_MAX + TICK,
                    "RD_SEED={seed} {turn}: {rested:?} after {rest:?}"
                );
                assert!(!rails.may_have(1, 1, now), "one lane is tried: RD_SEED={seed}");
                rest = (2 * rest).max(REST_MIN).min(REST_MAX);
                assert_eq!(rails.up(1, now), [Notice::RailBack(Path::Tcp, 1)], "RD_SEED={seed}");
            }
            now += 2 * STEADY;
            rails.failed(1, now);
            assert!(rails.may_have(1, 0, now + REST_MIN), "it had been well for long: RD_SEED={seed}");
        }
    }

    #[test]
    fn a_slow_rail_is_on_trial_untold_until_it_carries_enough() {
        let mut rails = Rails::all(Path::Tcp, 2);
        (0..2).for_each(|rail| assert_eq!(rails.up(rail, TICK), []));
        let (mut now, mut rest) = (TICK, REST_MIN);
        assert_eq!(rails.judge(1, Some(false), now), None);
        assert_eq!(rails.note((1, 0), false, &[0], now), [Notice::RailSlow(Path::Tcp, 1)]);
        for turn in 0..10 {
            assert!(!rails.may_have(1, 0, now + rest - TICK), "{turn}: {rest:?}");
            now += rest;
            assert_eq!(rails.up(1, now), [], "{turn}: a lane that is up shows nothing");
            for is_enough in [None, Some(false)] {
                assert_eq!(rails.judge(1, is_enough, now), None);
            }
            assert!(rails.may_have(1, 0, now) && !rails.may_have(1, 1, now), "{turn}: one lane");
            assert_eq!(rails.note((1, 0), false, &[0], now), [], "{turn}: untold");
            rest = (2 * rest).min(TRIAL_REST_MAX);
        }
        now += rest;
        assert_eq!(rails.up(1, now), []);
        assert_eq!(rails.judge(1, Some(true), now), Some(Notice::RailBack(Path::Tcp, 1)));
        assert!(rails.may_have(1, 1, now), "all its lanes");
        // If it then stops answering, a lane that is up shows that it answers again.
        assert_eq!(rails.judge(1, Some(true), now), None);
        assert_eq!(rails.note((1, 0), false, &[0], now), [Notice::RailLeft(Path::Tcp, 1)]);
        assert_eq!(rails.up(1, now + REST_MAX), [Notice::RailBack(Path::Tcp, 1)]);
    }

    #[test]
    fn a_slow_rail_that_is_cut_is_tried_soon_and_back_when_a_lane_is_up() {
        let mut rails = Rails::all(Path::Tcp, 2);
        (0..2).for_each(|rail| assert_eq!(rails.up(rail, TICK), []));
        let mut now = TICK;
        assert_eq!(rails.judge(1, Some(false), now), None);
        assert_eq!(rails.note((1, 0), false, &[0], now), [Notice::RailSlow(Path::Tcp, 1)]);
        for turn in 0..10 {
            now += REST_MIN;
            assert!(rails.may_have(1, 0, now), "{turn}");
            assert_eq!(rails.note((1, 0), false, &[0], now), [], "{turn}: no lane can be made");
        }
        now += REST_MIN;
        assert_eq!(rails.up(1, now), [Notice::RailBack(Path::Tcp, 1)]);
        assert!(rails.may_have(1, 1, now), "all its lanes");
    }

    /// While the second rail is slow, the stream is held up: the first rail carries no more than a window beyond the
    /// chunk on the slow one.
    #[test]
    fn a_rail_that_is_slow_for_ten_minutes_is_told_once() {
        let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
        let mut sender = Sender::new(agreed, true, 8);
        let first = LaneId { index: 0, generation: 0 };
        sender.handle_lane_up(first, Duration::ZERO);
        sender.handle_rails(Path::Tcp, 2, true, Duration::ZERO);
        let (mut lanes, mut said, mut ahead, mut sequence) = (vec![(first, 0_u64)], Vec::new(), 0_u64, 0);
        for now in (1..8000).map(|tick| tick * TICK) {
            let is_slow = (60..660).contains(&now.as_secs());
            if !is_slow || lanes.iter().all(|(lane, _)| sender.core_ref().rail_of(*lane) == 0) {
                ahead = 0;
            }
            for (lane, moved_bytes) in &mut lanes {
                let rail = sender.core_ref().rail_of(*lane);
                let bytes = match rail {
                    1 if is_slow => 500,
                    0 if ahead >= 32 << 20 => 0,
                    _ => 6_000_000,
                };
                ahead += if rail == 0 { bytes } else { 0 };
                *moved_bytes += bytes;
                let (round_trip, moved_bytes) = (Some(Duration::from_millis(2)), Some(*moved_bytes));
                let is_unanswered = bytes > 0;
                sender.handle_way(*lane, rail);
                sender.handle_lane_state(*lane, LaneState { round_trip, is_unanswered, moved_bytes }, now);
                sender.handle_heard(*lane, now);
            }
            sender.handle_timeout(now);
            sender.advance(now);
            while let Some(action) = sender.poll_action() {
                match action {
                    Action::Dial(lane) => {
                        sender.handle_lane_up(lane, now);
                        lanes.push((lane, 0));
                    }
                    Action::Close(lane) => {
                        sender.handle_lane_down(lane, now);
                        lanes.retain(|(other, _)| *other != lane);
                    }
                    // Without credit, the chunk waits.
                    Action::Fill { buffer, .. } => {
                        sender.handle_sealed(buffer, &ChunkHeader { sequence, ..ChunkHeader::default() });
                        sequence += 1;
                    }
                    Action::Notice(Notice::LaneLost(_)) => {}
                    Action::Notice(notice) => said.push((notice, now.as_secs())),
                    _ => {}
                }
            }
        }
        let [(Notice::RailSlow(Path::Tcp, 1), left), (Notice::RailBack(Path::Tcp, 1), back)] = said[..] else {
            panic!("{said:?}");
        };
        assert!((60..65).contains(&left) && (660..694).contains(&back), "{said:?}");
        assert_eq!(lanes.len(), 4, "all lanes are back");
    }

    #[test]
    fn a_rail_that_was_never_up_is_tried_later_each_time_however_many_lanes_fail() {
        let mut rails = Rails::all(Path::Tcp, 2);
        rails.up(0, TICK);
        let (mut now, mut rest) = (TICK, REST_MIN);
        for turn in 0..10 {
            // The first lane may fail after the others, or before some of them.
            for nth in [1, 0, 1, 2, 3, 4, 5] {
                assert_eq!(rails.note((1, nth), false, &[0], now), [], "one that was never there is not missed");
            }
            assert!(!rails.may_have(1, 0, now + rest - TICK) && rails.may_have(1, 0, now + rest), "{turn}: {rest:?}");
            now += rest;
            assert_eq!(rails.note((1, 5), false, &[0], now), [], "dialled before the rail was left");
            assert!(rails.may_have(1, 0, now) && !rails.may_have(1, 1, now), "{turn}: one lane is tried");
            rest = (2 * rest).min(REST_MAX);
        }
        assert_eq!(rest, REST_MAX, "it is seldom tried at last");
        assert_eq!(rails.up(1, now), []);
        assert!(rails.may_have(1, 5, now));
    }

    #[test]
    fn a_rail_that_is_back_while_payload_goes_by_another_path_is_well() {
        let agreed = pair(|ours, _| ours.policy = Policy::PreferRdma).expect("agreed");
        let mut sender = Sender::new(agreed, true, 8);
        let act = |sender: &mut Sender, now| {
            sender.handle_timeout(now);
            sender.advance(now);
            std::iter::from_fn(|| sender.poll_action()).collect::<Vec<_>>()
        };
        let first = LaneId { index: 0, generation: 0 };
        sender.handle_lane_up(first, TICK);
        dials(&act(&mut sender, TICK)).into_iter().for_each(|lane| sender.handle_dial_failed(lane, TICK));
        assert_eq!(sender.core_ref().path(), Some(Path::Tcp));
        sender.handle_rails(Path::Tcp, 2, true, TICK);
        let lanes = dials(&act(&mut sender, TICK));
        lanes.iter().for_each(|&lane| sender.handle_lane_up(lane, TICK));
        for lane in std::iter::once(first).chain(lanes) {
            if sender.core_ref().rail_of(lane) == 0 {
                sender.handle_lane_down(lane, 2 * TICK);
            }
        }
        let actions = act(&mut sender, 2 * TICK);
        assert!(actions.contains(&Action::Notice(Notice::RailLeft(Path::Tcp, 0))), "{actions:?}");
        let now = 3 * TICK + REST_MIN;
        let [again, rdma] = [LaneId { index: 0, generation: 1 }, LaneId { index: RDMA_LANE_FIRST, generation: 2 }];
        assert_eq!(dials(&act(&mut sender, now)), [again, rdma]);
        sender.handle_lane_up(rdma, now);
        assert_eq!(sender.core_ref().path(), Some(Path::Rdma));
        sender.handle_lane_up(again, now);
        let actions = act(&mut sender, now);
        assert!(actions.contains(&Action::Notice(Notice::RailBack(Path::Tcp, 0))), "{actions:?}");
        assert!(sender.core_ref().lanes.rails_of(Path::Tcp).may_have(0, 1, now), "all its lanes are wanted again");
    }

    #[test]
    fn lanes_come_and_go_with_their_rail() {
        let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
        let mut sender = Sender::new(agreed, true, 8);
        let first = LaneId { index: 0, generation: 0 };
        let dialled = |sender: &mut Sender, now| {
            sender.handle_timeout(now);
            sender.advance(now);
            let actions: Vec<Action> = std::iter::from_fn(|| sender.poll_action()).collect();
            let lanes =
                actions.iter().filter_map(|action| if let Action::Dial(id) = action { Some(*id) } else { None });
            let lanes: Vec<LaneId> = lanes.collect();
            let notices = actions.iter().filter_map(|action| match action {
                Action::Notice(notice @ (Notice::RailLeft(..) | Notice::RailBack(..))) => Some(*notice),
                _ => None,
            });
            (lanes, notices.collect::<Vec<Notice>>())
        };
        sender.handle_lane_up(first, TICK);
        sender.handle_rails(Path::Tcp, 2, true, TICK);
        let (lanes, _) = dialled(&mut sender, TICK);
        let rails: Vec<u8> = lanes.iter().map(|lane| sender.core_ref().rail_of(*lane)).collect();
        assert_eq!(rails, [0, 1, 1], "two lanes each");
        lanes.iter().for_each(|&lane| sender.handle_lane_up(lane, TICK));
        sender.handle_lane_down(lanes[1], 2 * TICK);
        assert_eq!(dialled(&mut sender, 2 * TICK).1, [], "it has another");
        sender.handle_lane_down(lanes[2], 2 * TICK);
        assert_eq!(dialled(&mut sender, 2 * TICK), (vec![], vec![Notice::RailLeft(Path::Tcp, 1)]));
        let now = 3 * TICK + REST_MIN;
        let (tried, _) = dialled(&mut sender, now);
        assert_eq!(tried.len(), 1, "{tried:?}");
        sender.handle_lane_up(tried[0], now);
        let (lanes, notices) = dialled(&mut sender, now);
        assert_eq!((lanes.len(), notices), (1, vec![Notice::RailBack(Path::Tcp, 1)]));
        // If no other rail works either, all are tried at once and the session's window runs.
        sender.handle_lane_up(lanes[0], now);
        for lane in [first, LaneId { index: 1, generation: 1 }, tried[0], lanes[0]] {
            sender.handle_lane_down(lane, now);
        }
        let (lanes, notices) = dialled(&mut sender, now + TICK);
        assert_eq!(notices, [Notice::RailLeft(Path::Tcp, 0)]);
        let rails: Vec<u8> = lanes.iter().map(|lane| sender.core_ref().rail_of(*lane)).collect();
        assert_eq!(rails, [0, 1, 1], "and one of the other: {lanes:?}");
    }

    #[test]
    fn a_rail_that_was_not_worth_it_is_used_where_no_other_works() {
        let mut rails = Rails::found(Path::Tcp, 2, Duration::from_millis(1), Duration::ZERO, 0);
        let mut now = TICK;
        assert_eq!(rails.up(0, now), []);
        rails.set_lost(true);
        assert!(rails.may_have(0, 0, now) && rails.may_have(1, 0, now));
        assert_eq!(rails.up(1, now), [Notice::RailLeft(Path::Tcp, 0)]);
        assert!(!rails.may_have(0, 0, now) && rails.may_have(1, 0, now));
        now += REST_MIN;
        assert!(rails.may_have(0, 0, now) && rails.may_have(1, 0, now));
        assert_eq!(rails.up(0, now), [Notice::RailBack(Path::Tcp, 0)]);
        assert!(rails.may_have(0, 0, now) && rails.may_have(1, 0, now), "both, from then on");
        // The rail that was in use is back first.
        let mut rails = Rails::found(Path::Tcp, 2, Duration::from_millis(1), Duration::ZERO, 0);
        assert_eq!(rails.up(0, now), []);
        rails.set_lost(true);
        assert_eq!(rails.up(0, now), []);
        assert!(rails.may_have(0, 0, now) && !rails.may_have(1, 0, now));
        // All rails were in use, so each is waited for.
        let mut rails = Rails::all(Path::Tcp, 2);
        (0..2).for_each(|rail| assert_eq!(rails.up(rail, now), []));
        rails.set_lost(true);
        assert_eq!(rails.up(1, now), []);
        assert!(rails.may_have(0, 0, now) && rails.may_have(1, 0, now));
    }

    #[test]
    fn lanes_that_are_dialled_when_rails_are_found_make_room_for_them() {
        let agreed = pair(|ours, _| (ours.policy, ours.lanes) = (Policy::Tcp, 16)).expect("agreed");
        let mut sender = Sender::new(agreed, true, 32);
        let act = |sender: &mut Sender, now| {
            sender.handle_timeout(now);
            sender.advance(now);
            std::iter::from_fn(|| sender.poll_action()).collect::<Vec<_>>()
        };
        sender.handle_lane_up(LaneId { index: 0, generation: 0 }, TICK);
        let dialled = dials(&act(&mut sender, TICK));
        assert_eq!(dialled.len(), 15, "all that were asked for");
        sender.handle_rails(Path::Tcp, 2, true, TICK);
        dialled.iter().for_each(|&lane| sender.handle_lane_up(lane, TICK));
        let actions = act(&mut sender, TICK);
        let is_retired =
            |action: &Action| if let Action::Send(lane, Frame::Retired) = action { Some(lane.index) } else { None };
        assert_eq!(of(&actions, is_retired), (8..16).collect::<Vec<_>>(), "their places are the other rail's");
        // These lanes have sent nothing, so they close at the earliest time.
        let now = TICK + Duration::from_secs(2);
        (0..16).for_each(|index| sender.handle_heard(LaneId { index, generation: u32::from(index > 0) }, now));
        let closed =
            of(&act(&mut sender, now), |action| if let Action::Close(lane) = action { Some(*lane) } else { None });
        assert_eq!(closed.len(), 8, "{closed:?}");
        closed.iter().for_each(|&lane| sender.handle_lane_down(lane, now));
        let rails: Vec<u8> =
            dials(&act(&mut sender, now + TICK)).iter().map(|lane| sender.core_ref().rail_of(*lane)).collect();
        assert_eq!(rails, [1; 8]);
    }

    /// Returns a sender whose payload goes by one RDMA lane, and a function that returns its next actions.
    fn on_rdma(lanes: u8) -> (Sender, impl Fn(&mut Sender, Duration) -> Vec<Action>) {
        let agreed = pair(|ours, theirs| {
            (ours.policy, ours.lanes) = (Policy::Rdma, lanes);
            (ours.rdma, theirs.rdma) = (RdmaKind::Hardware, RdmaKind::Hardware);
        });
        let mut sender = Sender::new(agreed.expect("agreed"), true, 8);
        let act = |sender: &mut Sender, now| {
            sender.handle_timeout(now);
            sender.advance(now);
            std::iter::from_fn(|| sender.poll_action()).collect::<Vec<_>>()
        };
        sender.handle_lane_up(LaneId { index: 0, generation: 0 }, TICK);
        dials(&act(&mut sender, TICK)).into_iter().for_each(|lane| sender.handle_lane_up(lane, TICK));
        (sender, act)
    }

    fn of<T>(actions: &[Action], pick: impl FnMut(&Action) -> Option<T>) -> Vec<T> {
        actions.iter().filter_map(pick).collect()
    }

    fn dials(actions: &[Action]) -> Vec<LaneId> {
        of(actions, |action| if let Action::Dial(id) = action { Some(*id) } else { None })
    }

    #[test]
    fn rdma_has_rails_of_its_own() {
        let (mut sender, act) = on_rdma(0);
        sender.handle_rails(Path::Tcp, 2, true, TICK);
        assert_eq!(dials(&act(&mut sender, TICK)), [], "those of TCP, by which no payload goes");
        sender.handle_rails(Path::Rdma, 3, true, TICK);
        let lanes = dials(&act(&mut sender, TICK));
        let rails: Vec<u8> = lanes.iter().map(|lane| sender.core_ref().rail_of(*lane)).collect();
        assert_eq!(rails, [1, 2], "one lane each: {lanes:?}");
        lanes.iter().for_each(|&lane| sender.handle_lane_up(lane, TICK));
        sender.handle_lane_down(lanes[0], 2 * TICK);
        let actions = act(&mut sender, 2 * TICK);
        let notices = of(&actions, |action| if let Action::Notice(notice) = action { Some(*notice) } else { None });
        assert_eq!((notices, dials(&actions)), (vec![Notice::RailLeft(Path::Rdma, 1)], vec![]));
        let now = 3 * TICK + REST_MIN;
        let tried = dials(&act(&mut sender, now));
        assert_eq!(tried.iter().map(|lane| sender.core_ref().rail_of(*lane)).collect::<Vec<_>>(), [1]);
        sender.handle_lane_up(tried[0], now);
        let actions = act(&mut sender, now);
        assert!(actions.contains(&Action::Notice(Notice::RailBack(Path::Rdma, 1))), "{actions:?}");
        assert_eq!(sender.core_ref().path(), Some(Path::Rdma));
    }

    #[test]
    fn a_rail_of_rdma_that_adds_nothing_is_retired() {
        let (mut sender, _) = on_rdma(0);
        sender.handle_rails(Path::Rdma, 2, false, TICK);
        let second = LaneId { index: RDMA_LANE_FIRST + 8, generation: 1 };
        let mut moved = 0;
        let mut seen = Vec::new();
        for now in (2..200).map(|tick| tick * TICK) {
            // Two rails carry the same as one.
            moved += 1_000_000;
            let core = sender.core();
            core.counters.bytes = moved;
            core.fit(true, true, now);
            if seen.len() == 2 {
                for lane in
                    [LaneId { index: 0, generation: 0 }, LaneId { index: RDMA_LANE_FIRST, generation: 1 }, second]
                {
                    sender.handle_heard(lane, now);
                }
                sender.handle_timeout(now);
            }
            sender.advance(now);
            while let Some(action) = sender.poll_action() {
                match action {
                    Action::Dial(id) => {
                        assert_eq!(id, second);
                        sender.handle_lane_up(id, now);
                        seen.push("dialled");
                    }
                    Action::Send(id, Frame::Retired) => {
                        assert_eq!(id, second);
                        seen.push("retired");
                    }
                    Action::Close(id) => {
                        assert_eq!(id, second);
                        sender.handle_lane_down(id, now);
                        seen.push("closed");
                    }
                    Action::Notice(notice) => panic!("{notice:?}"),
                    _ => {}
                }
            }
            if seen.len() == 3 {
                break;
            }
        }
        assert_eq!(seen, ["dialled", "retired", "closed"]);
    }

    #[test]
    fn rdma_lanes_that_were_asked_for_are_those_of_all_its_rails() {
        let (mut sender, act) = on_rdma(4);
        sender.handle_rails(Path::Rdma, 2, true, TICK);
        let actions = act(&mut sender, TICK);
        let retired = of(&actions, |action| match action {
            Action::Send(lane, Frame::Retired) => Some(lane.index - RDMA_LANE_FIRST),
            _ => None,
        });
        assert_eq!(retired, [2, 3], "two stay: {actions:?}");
        let first = RDMA_LANE_FIRST + 8;
        assert_eq!(dials(&actions).iter().map(|lane| lane.index).collect::<Vec<_>>(), [first, first + 1]);
    }

    #[test]
    fn lanes_that_were_asked_for_are_those_of_all_rails_and_are_not_taken_for_a_trial() {
        let agreed = pair(|ours, _| (ours.policy, ours.lanes) = (Policy::Tcp, 4)).expect("agreed");
        for (all, lanes) in [(true, 2), (false, 4)] {
            let mut sender = Sender::new(agreed, true, 8);
            sender.handle_rails(Path::Tcp, 2, all, TICK);
            assert_eq!(sender.core_ref().lanes.tcp_lanes(), lanes);
        }
    }

    #[test]
    fn one_rail_is_as_before() {
        let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
        for (count, connector) in [(1, true), (2, false)] {
            let mut sender = Sender::new(agreed, connector, 8);
            sender.handle_rails(Path::Tcp, count, true, TICK);
            assert_eq!(
                (sender.core_ref().rail_of(LaneId { index: 8, generation: 1 }), sender.core_ref().lanes.tcp_lanes()),
                (0, 2)
            );
        }
    }
}
