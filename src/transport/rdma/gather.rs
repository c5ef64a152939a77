//! How long the lane thread of a software device lets completions gather before it looks for them again.
//!
//! An adapter does this itself where it is told to (completion moderation, `ibv_modify_cq`); rxe and siw do not. They use
//! the processors that the session needs, too, and take long enough for a chunk that each would wake the lane's thread,
//! the loop, a worker and a writer for itself: with chunks of 64 KiB that is a third of all that is done.

use std::time::{Duration, Instant};

/// The longest rest. What comes after a quiet time is seen at once; in a stream this is what acknowledgements are late.
const REST_MAX: Duration = Duration::from_millis(4);

/// Not worth a timer, whose slack is as long.
const REST_MIN: Duration = Duration::from_micros(50);

/// Completions to wait for, at most.
const GATHER_MAX: u32 = 8;

/// The part of a pool's buffers that may lie completed and unseen: as many more are then still to be carried.
const POOL_PART: u32 = 8;

pub(super) struct Gather {
    /// Completions to wait for.
    number: u32,
    last: Option<Instant>,
    /// Between two completions, on the average of the last few times.
    gap: Duration,
}

impl Gather {
    /// For a lane that shares a pool of `buffers`.
    pub(super) fn new(buffers: u32) -> Self {
        Gather { number: GATHER_MAX.min(buffers / POOL_PART), last: None, gap: Duration::ZERO }
    }

    /// `taken` completions, not 0, have been found and handled by `now`: for how long to rest. It must be told of all, also
    /// where nobody rests: the gap is the time since it was told last, divided among them.
    ///
    /// Where buffers run out during a rest, the gap seems longer than it is, but by less than the rest is cut by
    /// [`POOL_PART`]: so rests become shorter until they do not hold anything up.
    pub(super) fn rest(&mut self, taken: usize, now: Instant) -> Option<Duration> {
        if let Some(last) = self.last.replace(now) {
            let gap = now.saturating_duration_since(last).min(REST_MAX) / u32::try_from(taken).unwrap_or(u32::MAX);
            self.gap = (self.gap + gap) / 2;
        }
        let rest = (self.gap * self.number).min(REST_MAX);
        (rest >= REST_MIN).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest that a lane comes to where one completes every `gap`.
    fn settle(buffers: u32, gap: Duration) -> Duration {
        let mut gather = Gather::new(buffers);
        let start = Instant::now();
        let (mut now, mut seen, mut rest) = (Duration::ZERO, 0, None);
        for _ in 0..100 {
            // Without a rest, it sleeps until the next one.
            now = (now + rest.unwrap_or_default()).max(gap * (seen + 1));
            let completed = (now.as_nanos() / gap.as_nanos()) as u32;
            rest = gather.rest((completed - seen) as usize, start + now);
            seen = completed;
        }
        rest.unwrap_or_default()
    }

    #[test]
    fn a_rest_is_as_long_as_some_completions_take() {
        let rest = settle(512, Duration::from_micros(100));
        assert!((700..=900).contains(&rest.as_micros()), "{rest:?}");
    }

    #[test]
    fn a_rest_has_a_limit() {
        assert_eq!(settle(512, Duration::from_millis(2)), REST_MAX);
        assert_eq!(settle(512, Duration::from_secs(5)), REST_MAX);
    }

    #[test]
    fn a_fast_device_is_not_held_up() {
        // 64 KiB in 8 µs are 8 GB/s. A rest is not worth its while then, or leaves most of the pool to be carried.
        for buffers in [32, 512] {
            let gap = Duration::from_micros(8);
            let rest = settle(buffers, gap);
            assert!(rest <= gap * buffers / POOL_PART, "{buffers} buffers: {rest:?}");
        }
    }

    #[test]
    fn the_first_is_not_waited_for_nor_any_with_few_buffers() {
        assert_eq!(Gather::new(512).rest(1, Instant::now()), None);
        assert_eq!(settle(4, Duration::from_millis(1)), Duration::ZERO);
    }

    #[test]
    fn one_behind_a_full_batch_does_not_pass_for_all_that_came() {
        let mut gather = Gather::new(512);
        let mut now = Instant::now();
        let mut rest = REST_MAX;
        gather.rest(1, now);
        for _ in 0..20 {
            now += rest;
            gather.rest(32, now);
            rest = gather.rest(1, now).unwrap_or_default();
        }
        assert!(rest < REST_MAX / 8, "{rest:?}");
    }

    #[test]
    fn a_stall_of_its_own_making_ends() {
        // Behind a long quiet time with a gap at its longest, and then a device that carries all buffers at once.
        let mut gather = Gather::new(64);
        let mut now = Instant::now();
        for _ in 0..20 {
            now += Duration::from_secs(1);
            gather.rest(1, now);
        }
        let mut rest = REST_MAX;
        for _ in 0..20 {
            now += rest;
            rest = gather.rest(64, now).unwrap_or_default();
        }
        assert!(rest < Duration::from_micros(100), "{rest:?}");
    }
}
