//! `--bwlimit`: how fast a source may be read.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::account::Clock;

/// Parts are kept to what the limit allows in this time, so that a slow limit does not come out as bursts.
const SLICE: Duration = Duration::from_millis(100);

/// The shortest part that the limit makes, in bytes.
const PART_BYTES_MIN: usize = 4096;

/// A rate limit over all threads that read one source.
#[derive(Debug, Default)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    /// When the bytes handed out so far will have been due.
    due: Mutex<Option<Instant>>,
    /// The time that threads have waited.
    clock: Clock,
}

impl Pace {
    /// A limit in bytes a second; `None` is no limit.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, due: Mutex::new(None), clock: Clock::default() }
    }

    /// There is no limit.
    pub fn is_free(&self) -> bool {
        self.bytes_per_second.is_none()
    }

    /// The length that a part should have: at most `wanted`, less under a low limit. A multiple of 4 KiB.
    pub fn part_bytes(&self, wanted: usize) -> usize {
        let Some(rate) = self.bytes_per_second else { return wanted };
        let slice = (rate as f64 * SLICE.as_secs_f64()) as usize / PART_BYTES_MIN * PART_BYTES_MIN;
        slice.clamp(PART_BYTES_MIN.min(wanted), wanted)
    }

    /// Waits until `bytes` more may go.
    pub fn wait(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else { return };
        let now = Instant::now();
        let until = {
            let mut due = self.due.lock().expect("no panic with it locked");
            // What was not used in a pause is not made up for afterwards.
            let start = due.unwrap_or(now).max(now - SLICE);
            let next = start + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *due = Some(next);
            start
        };
        self.clock.during(|| std::thread::sleep(until.saturating_duration_since(now)));
    }

    /// How long threads have waited.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_over_time() {
        let pace = Pace::new(Some(1_000_000));
        let start = Instant::now();
        for _ in 0..31 {
            pace.wait(10_000);
        }
        let seconds = start.elapsed().as_secs_f64();
        assert!((0.19..0.6).contains(&seconds), "300 kB at 1 MB/s, a slice of 0.1 s free: {seconds} s");
    }

    #[test]
    fn parts_shrink_with_the_limit() {
        assert_eq!(Pace::new(None).part_bytes(1 << 20), 1 << 20);
        assert_eq!(Pace::new(Some(1 << 30)).part_bytes(1 << 20), 1 << 20);
        assert_eq!(Pace::new(Some(1_000_000)).part_bytes(1 << 20), 98_304);
        assert_eq!(Pace::new(Some(1)).part_bytes(1 << 20), 4096);
    }
}
