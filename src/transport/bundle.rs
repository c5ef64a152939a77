//! Bundles: connections that carry messages of one length and nothing else, for measurements.
//!
//! A lane adds a header to each chunk, and hands every arrival from its thread to its owner: right for a copy, and too
//! much for a message of two bytes. A bundle uses what lanes are made of (the same sockets, reliable queue pairs between
//! the same addresses, SEND and RECV, credits so that no message ever finds no receive posted), but the thread that waits
//! for a message is the one that sends the next.
//!
//! Its connections are divided into [`Group`]s, each run by one thread. [`Progress`] is what the groups of one end, and
//! whoever talks to the other end, know in common.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::LaneError;

pub mod tcp;

/// How long a thread sleeps at most before it looks whether the run is over.
pub const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Round trips at the start of an echo that are not measured: caches and clocks of processors warm up in them.
pub const WARM_UP: u64 = 32;

/// Longer latencies count as this one, in nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Parts of a run, of which the best is its peak.
const PARTS: u32 = 10;

/// What a group does in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Sends a message on each connection, and the next one when it has come back.
    Ask,
    /// Sends back what comes.
    Answer,
    /// Sends messages one behind the other, or receives them, or both.
    Stream {
        /// Sends.
        sends: bool,
        /// Receives.
        receives: bool,
    },
}

/// One run, for one group.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What it does.
    pub part: Part,
    /// Bytes of each message: at most what the bundle was made for.
    pub message_bytes: usize,
    /// How many messages this group sends; `u64::MAX` for as many as it can.
    pub messages: u64,
    /// How long it sends.
    pub duration: Duration,
    /// When it gives up waiting for what should come.
    pub limit: Duration,
    /// The seed of the messages' contents, where those are compared as they come back.
    pub verify: Option<u64>,
}

/// What the threads of one end know of a run.
#[derive(Debug, Default)]
pub struct Progress {
    stop: AtomicBool,
    received: AtomicU64,
    /// One more than the messages that the other end has sent; 0 until that is known.
    expected: AtomicU64,
}

impl Progress {
    /// Ends the run, whatever is still under way.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The run is to end at once.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The other end has sent this many messages, and sends no more.
    pub fn expect(&self, messages: u64) {
        self.expected.store(messages.saturating_add(1), Ordering::Release);
    }

    /// Counts messages that have come.
    pub fn count_received(&self, messages: u64) {
        self.received.fetch_add(messages, Ordering::AcqRel);
    }

    /// All has come that the other end has sent.
    pub fn is_complete(&self) -> bool {
        let expected = self.expected.load(Ordering::Acquire);
        expected > 0 && self.received.load(Ordering::Acquire) >= expected - 1
    }
}

/// What a group saw of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What it sent.
    pub sent: Flow,
    /// What it received.
    pub received: Flow,
    /// Half of each round trip, in nanoseconds, of an echo.
    pub latency: Option<Histogram<u64>>,
    /// Messages that came back with other contents than they had.
    pub damaged: u64,
}

/// Messages in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// How many.
    pub messages: u64,
    /// When the first was sent, or had come.
    pub first: Option<Instant>,
    /// When the last had been sent, or had come.
    pub last: Option<Instant>,
    /// Bytes a second in the best part of the run; 0 if it was too short to have parts.
    pub peak: u64,
}

impl Flow {
    /// From the first to the last.
    pub fn time(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        }
    }

    /// Both together: two groups of one end. Their best parts need not have been at one time, so that the sum of the
    /// peaks is what they reached at most.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.last = self.last.max(other.last);
        self.peak += other.peak;
    }
}

impl Outcome {
    /// What two groups of one end saw.
    pub fn add(&mut self, other: Self) {
        self.sent.add(&other.sent);
        self.received.add(&other.received);
        self.damaged += other.damaged;
        match (&mut self.latency, other.latency) {
            (Some(ours), Some(theirs)) => ours.add(theirs).expect("made alike"),
            (ours @ None, theirs) => *ours = theirs,
            (Some(_), None) => {}
        }
    }
}

/// Connections that one thread runs.
pub trait Group: Send {
    /// How many connections it has.
    fn connections(&self) -> usize;

    /// Runs its part; returns when it has sent and received all, or when `progress` says stop.
    ///
    /// `sent` is called once, when the last message has been sent, with their number.
    ///
    /// # Errors
    ///
    /// Why a connection was lost. The bundle is of no more use.
    fn run(&mut self, plan: &Plan, progress: &Progress, sent: &(dyn Fn(u64) + Sync)) -> Result<Outcome, LaneError>;
}

/// A histogram for latencies, to a thousandth. It has room for short ones and grows: there may be thousands of them.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Half of a round trip.
pub(super) fn record_half(histogram: &mut Histogram<u64>, round_trip: Duration) {
    let nanoseconds = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX).min(LATENCY_NS_MAX);
    histogram.record(nanoseconds).expect("it grows");
}

/// Fills `target` with what message `number` holds.
pub fn fill_pattern(target: &mut [u8], seed: u64, number: u64) {
    // SplitMix64: each message differs from every other in nearly every byte.
    let mut state = seed ^ number.wrapping_mul(0xd134_2543_de82_ef95);
    for piece in target.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bytes = (word ^ word >> 31).to_le_bytes();
        piece.copy_from_slice(&bytes[..piece.len()]);
    }
}

/// Counts messages in one direction and finds the best part of the run.
pub(super) struct Meter {
    pub(super) flow: Flow,
    message_bytes: u64,
    part: PartLength,
    part_began: Instant,
    part_messages: u64,
}

enum PartLength {
    Messages(u64),
    Time(Duration),
}

impl Meter {
    pub(super) fn new(plan: &Plan) -> Self {
        let part = match plan.messages {
            u64::MAX => PartLength::Time(plan.duration / PARTS),
            messages => PartLength::Messages((messages / u64::from(PARTS)).max(1)),
        };
        let message_bytes = plan.message_bytes as u64;
        Self { flow: Flow::default(), message_bytes, part, part_began: Instant::now(), part_messages: 0 }
    }

    /// The first message is about to be sent.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.flow.first.is_none() {
            self.flow.first = Some(now);
            self.part_began = now;
        }
    }

    /// So many more messages are done. One that has come is the beginning only: nobody knows how long it took.
    pub(super) fn count(&mut self, messages: u64, now: Instant) {
        self.flow.messages += messages;
        self.flow.last = Some(now);
        if self.flow.first.is_none() {
            return self.begin(now);
        }
        self.part_messages += messages;
        let elapsed = now.saturating_duration_since(self.part_began);
        let is_over = match self.part {
            PartLength::Messages(length) => self.part_messages >= length,
            PartLength::Time(length) => elapsed >= length,
        };
        if is_over && !elapsed.is_zero() {
            let rate = (self.part_messages * self.message_bytes) as f64 / elapsed.as_secs_f64();
            self.flow.peak = self.flow.peak.max(rate as u64);
            (self.part_began, self.part_messages) = (now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_contents_of_its_own() {
        let made = |seed, number| {
            let mut bytes = [0; 19];
            fill_pattern(&mut bytes, seed, number);
            bytes
        };
        assert_eq!(made(1, 2), made(1, 2));
        for (seed, number) in [(1, 3), (2, 2), (0, 0)] {
            let differing = made(1, 2).iter().zip(made(seed, number)).filter(|(one, other)| **one != *other).count();
            assert!(differing > 12, "{seed} {number}: {differing}");
        }
    }

    #[test]
    fn the_peak_is_the_best_part() {
        let plan = Plan {
            part: Part::Stream { sends: true, receives: false },
            message_bytes: 1000,
            messages: 100,
            duration: Duration::MAX,
            limit: Duration::MAX,
            verify: None,
        };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(&plan);
        meter.begin(start);
        meter.count(10, at(10)); // 1 MB/s
        meter.count(10, at(12)); // 5 MB/s
        meter.count(80, at(100));
        assert_eq!((meter.flow.messages, meter.flow.peak), (100, 5_000_000));
        assert_eq!(meter.flow.time(), Duration::from_millis(100));
    }

    #[test]
    fn a_run_is_complete_when_the_other_end_has_said_how_many() {
        let progress = Progress::default();
        progress.count_received(3);
        assert!(!progress.is_complete());
        progress.expect(4);
        assert!(!progress.is_complete());
        progress.count_received(1);
        assert!(progress.is_complete());
        let nothing = Progress::default();
        nothing.expect(0);
        assert!(nothing.is_complete());
    }
}
