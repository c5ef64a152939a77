//! `--bwlimit`: how fast a source may be read.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rd_proto::session::BufferId;

use super::account::Clock;
use super::{Engine, work};

/// Maximum time that one part takes at the limit, so that data does not go in bursts under a low limit.
const SLICE: Duration = Duration::from_millis(100);

/// Minimum length, in bytes, of a part that the limit shortens.
const PART_BYTES_MIN: usize = 4096;

/// A rate limit shared by all threads that read one source.
#[derive(Debug, Default)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    /// The time at which the bytes handed out so far are due.
    due: Mutex<Option<Instant>>,
    /// Time that threads have spent waiting.
    clock: Clock,
}

impl Pace {
    /// Creates a limit in bytes per second; `None` means no limit.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, due: Mutex::new(None), clock: Clock::default() }
    }

    /// Reports whether there is no limit.
    pub fn is_free(&self) -> bool {
        self.bytes_per_second.is_none()
    }

    /// Returns the length that a part should have: `wanted`, or less under a low limit. A shortened part is a multiple
    /// of 4 KiB.
    pub fn part_bytes(&self, wanted: usize) -> usize {
        let Some(rate) = self.bytes_per_second else { return wanted };
        let slice = (rate as f64 * SLICE.as_secs_f64()) as usize / PART_BYTES_MIN * PART_BYTES_MIN;
        slice.clamp(PART_BYTES_MIN.min(wanted), wanted)
    }

    /// Blocks until `bytes` more may be sent.
    pub fn wait(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else { return };
        let now = Instant::now();
        let until = {
            let mut due = crate::locked(&self.due);
            // Time unused in a pause does not add up to a later burst.
            let start = due.unwrap_or(now).max(now - SLICE);
            let next = start + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *due = Some(next);
            start
        };
        self.clock.during(|| std::thread::sleep(until.saturating_duration_since(now)));
    }

    /// Returns how long threads have waited.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Engine {
    /// Encrypts a chunk that was sealed with a checksum, or has a worker do it if none is held up by the limit. Returns
    /// true if it is done.
    pub(super) fn encrypt(&mut self, id: BufferId) -> bool {
        if self.read_planned(id, true) {
            return false;
        }
        let buffer = self.take(id);
        let Some((buffer, header)) = work::encrypt(&self.shared, &self.jobs, buffer) else { return false };
        self.handle_sealed(buffer, &header);
        true
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
