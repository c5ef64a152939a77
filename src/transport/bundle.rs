//! Bundles: connections for measurements, which carry only messages of a fixed length.
//!
//! A lane adds a header to each chunk, and passes each arrival from the lane's thread to its owner. That suits a copy,
//! but costs too much for a message of two bytes. A bundle is built from the same parts as lanes: the same sockets, or
//! reliable queue pairs between the same addresses, SEND and RECV, and credits so that every message finds a posted
//! receive. But the thread that waits for a message also sends the next one.
//!
//! The connections are divided into [`Group`]s, each run by one thread. [`Progress`] is shared by the groups of an end
//! and the thread that talks to the other end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use minicbor::{Decode, Encode};

use super::LaneError;

pub mod tcp;

/// Stack size of a thread that sends and receives.
pub const STACK_BYTES: usize = 128 << 10;

/// Error text for the case that the system refuses to start such a thread. No connection has been lost then.
pub const NO_THREAD: &str = "cannot start a thread";

/// Longest sleep before a thread checks whether the run is over.
pub const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Number of round trips at the start of an echo that are not measured, because processor caches and clocks warm up in
/// them. Fewer are left out if they would take more than a tenth of the run.
pub const WARM_UP: u64 = 32;

/// Longer latencies are recorded as this value, in nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Number of time intervals in which a run is counted.
const BINS: usize = 64;

/// Shortest interval in microseconds. The intervals double in length whenever a run outlasts all of them.
const BIN_US_MIN: u64 = 1000;

/// The peak is the best of this many parts of a run, so that a burst from full buffers does not count as a peak.
const PARTS: usize = 10;

/// Properties of a bundle, fixed when the bundle is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Settings {
    /// Maximum size of a message in bytes.
    #[n(0)]
    pub message_bytes_max: u32,
    /// Maximum number of messages in flight on a connection.
    #[n(1)]
    pub depth: u16,
    /// Maximum number of connections.
    #[n(2)]
    pub connections_max: u32,
    /// Whether both ends poll for messages constantly instead of sleeping until a message arrives.
    #[n(3)]
    pub poll: bool,
}

/// What a group does in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Sends a message on each connection, and the next message when the first has come back.
    Ask,
    /// Sends received messages back.
    Answer,
    /// Sends messages one after the other, receives them, or both.
    Stream {
        /// Whether the group sends.
        sends: bool,
        /// Whether the group receives.
        receives: bool,
    },
}

/// A group's part of a run.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    /// What the group does.
    pub part: Task,
    /// When the run began; the same for all groups.
    pub start: Instant,
    /// Size of each message in bytes, at most the bundle's maximum.
    pub message_bytes: usize,
    /// Minimum number of bytes that a receive call asks for on a connection that carries bytes instead of messages.
    pub receive_bytes: usize,
    /// Number of messages that this group sends; `u64::MAX` for as many as possible.
    pub messages: u64,
    /// How long the group sends.
    pub duration: Duration,
    /// How long the group waits for outstanding messages after `duration`.
    pub limit: Duration,
    /// Seed of the messages' contents, if they are compared when they come back.
    pub verify: Option<u64>,
}

/// State of a run that the threads of an end share.
#[derive(Debug, Default)]
pub struct Progress {
    stop: AtomicBool,
    received: AtomicU64,
    /// Number of messages that the other end has sent, plus one; 0 until that number is known.
    expected: AtomicU64,
}

impl Progress {
    /// Ends the run, even if messages are still in flight.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run has to end at once.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records that the other end has sent this many messages and sends no more.
    pub fn expect(&self, messages: u64) {
        self.expected.store(messages.saturating_add(1), Ordering::Release);
    }

    /// Adds to the number of received messages.
    pub fn count_received(&self, messages: u64) {
        self.received.fetch_add(messages, Ordering::AcqRel);
    }

    /// Whether everything that the other end has sent has arrived.
    pub fn is_complete(&self) -> bool {
        let expected = self.expected.load(Ordering::Acquire);
        expected > 0 && self.received.load(Ordering::Acquire) >= expected - 1
    }
}

/// A group's measurements in a run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Messages that the group sent.
    pub sent: Flow,
    /// Messages that the group received.
    pub received: Flow,
    /// Half of each round trip in nanoseconds; only for an echo.
    pub latency: Option<Histogram<u64>>,
    /// Number of messages that came back with different contents.
    pub damaged: u64,
}

/// Messages in one direction.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Number of messages.
    pub messages: u64,
    /// When the first message was sent, or had arrived.
    pub first: Option<Instant>,
    /// When the last message had been sent, or had arrived.
    pub last: Option<Instant>,
    bins: Bins,
}

impl Flow {
    /// Returns the time from the first message to the last.
    pub fn time(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        }
    }

    /// Returns the messages per second in the best tenth of the run; `None` if the run was too short to be divided.
    pub fn peak(&self) -> Option<f64> {
        self.bins.peak()
    }

    /// Adds the messages of another group of the same end.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.last = self.last.max(other.last);
        self.bins.add(&other.bins);
    }
}

/// Numbers of messages by time.
#[derive(Clone, Debug)]
struct Bins {
    width_us: u64,
    counts: [u64; BINS],
    used: usize,
}

impl Default for Bins {
    fn default() -> Self {
        Self { width_us: BIN_US_MIN, counts: [0; BINS], used: 0 }
    }
}

impl Bins {
    fn count(&mut self, messages: u64, since_start: Duration) {
        let at_us = u64::try_from(since_start.as_micros()).unwrap_or(u64::MAX);
        while at_us / self.width_us >= BINS as u64 {
            self.widen();
        }
        let at = (at_us / self.width_us) as usize;
        self.counts[at] += messages;
        self.used = self.used.max(at + 1);
    }

    fn widen(&mut self) {
        for at in 0..BINS {
            let pair = self.counts.get(2 * at..2 * at + 2);
            self.counts[at] = pair.map_or(0, |pair| pair.iter().sum());
        }
        self.width_us = self.width_us.saturating_mul(2);
        self.used = self.used.div_ceil(2);
    }

    fn add(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.width_us < other.width_us {
            self.widen();
        }
        while other.width_us < self.width_us {
            other.widen();
        }
        for (ours, theirs) in self.counts.iter_mut().zip(other.counts) {
            *ours += theirs;
        }
        self.used = self.used.max(other.used);
    }

    fn peak(&self) -> Option<f64> {
        // The last interval is incomplete.
        let whole = &self.counts[..self.used.saturating_sub(1)];
        let together = whole.len().div_ceil(PARTS);
        if whole.len() < PARTS {
            return None;
        }
        let best = whole.windows(together).map(|bins| bins.iter().sum::<u64>()).max()?;
        Some(best as f64 / (together as u64 * self.width_us) as f64 * 1e6)
    }
}

impl Measured {
    /// Adds the measurements of another group of the same end.
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

/// A group of connections that is run by one thread.
pub trait Group: Send {
    /// Number of connections in the group.
    fn connections(&self) -> usize;

    /// Runs the group's part. Returns when it has sent and received everything, or when `progress` is stopped.
    ///
    /// Calls `sent` once, when the last message has been sent, with the number of messages.
    ///
    /// # Errors
    ///
    /// Why a connection was lost. The bundle cannot be used any more.
    fn run(
        &mut self,
        plan: &Assignment,
        progress: &Progress,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, LaneError>;
}

/// Returns a histogram for latencies, with a precision of a thousandth. It starts small and grows, because there may be
/// thousands of histograms.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Records half of a round trip.
pub(super) fn record_half(histogram: &mut Histogram<u64>, round_trip: Duration) {
    let nanoseconds = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX).min(LATENCY_NS_MAX);
    histogram.record(nanoseconds).expect("it grows");
}

/// Fills `target` with the contents of message `number`.
pub fn fill_pattern(target: &mut [u8], seed: u64, number: u64) {
    // SplitMix64: any two messages differ in nearly every byte.
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

/// Counts the messages in one direction.
pub(super) struct Meter {
    pub(super) flow: Flow,
    start: Instant,
}

impl Meter {
    pub(super) fn new(plan: &Assignment) -> Self {
        Self { flow: Flow::default(), start: plan.start }
    }

    /// Records that the first message is about to be sent.
    pub(super) fn begin(&mut self, now: Instant) {
        self.flow.first.get_or_insert(now);
    }

    /// Records that more messages have been sent or received.
    pub(super) fn count(&mut self, messages: u64, now: Instant) {
        self.begin(now);
        self.flow.messages += messages;
        self.flow.last = Some(now);
        self.flow.bins.count(messages, now.saturating_duration_since(self.start));
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
    fn the_peak_is_the_best_tenth() {
        let ms = Duration::from_millis;
        let mut bins = Bins::default();
        for at in 0..40 {
            bins.count(if (10..14).contains(&at) { 30 } else { 10 }, ms(at));
        }
        assert_eq!(bins.peak(), Some(30_000.0), "four of forty");
        bins.count(10_000, ms(50));
        assert_eq!(bins.peak(), Some(26_000.0), "now five are a tenth, and the last one does not count");
        assert_eq!(Bins::default().peak(), None);
    }

    #[test]
    fn a_long_run_is_counted_in_longer_stretches() {
        let mut long = Bins::default();
        for second in 0..100 {
            long.count(1000, Duration::from_secs(second));
        }
        assert_eq!((long.counts.iter().sum::<u64>(), long.width_us), (100_000, 2_048_000));
        let peak = long.peak().expect("long enough");
        assert!((900.0..1200.0).contains(&peak), "{peak}");
        let mut both = Bins::default();
        both.count(5, Duration::from_millis(3));
        both.add(&long);
        assert_eq!((both.counts.iter().sum::<u64>(), both.counts[0]), (100_005, long.counts[0] + 5));
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
