//! Bundles: connections that carry messages of one length and nothing else, for measurements.
//!
//! A lane adds a header to each chunk, and hands every arrival from its thread to its owner: right for a copy, and too
//! much for a message of two bytes. A bundle uses what lanes are made of (the same sockets, reliable queue pairs between
//! the same addresses, SEND and RECV, credits so that no message ever finds no receive posted), but the thread that waits
//! for a message is the one that sends the next.
//!
//! Its connections are divided into [`Group`]s, each run by one thread. [`Progress`] is what the groups of one end, and
//! the thread that talks to the other end, have in common.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use minicbor::{Decode, Encode};

use super::LaneError;

pub mod tcp;

/// Stack of a thread that sends and receives.
pub const STACK_BYTES: usize = 128 << 10;

/// What failed where the system has refused such a thread: no connection has been lost.
pub const NO_THREAD: &str = "cannot start a thread";

/// The longest that a thread sleeps before it checks whether the run is over.
pub const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Round trips at the start of an echo that are not measured: caches and clocks of processors warm up in them. Fewer,
/// where they would take more than a tenth of the run.
pub const WARM_UP: u64 = 32;

/// Longer latencies count as this one, in nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Stretches of time in which a run is counted.
const BINS: usize = 64;

/// The shortest stretch, in microseconds. They double whenever a run is longer than all of them.
const BIN_US_MIN: u64 = 1000;

/// The peak is the best of so many parts of a run: a burst out of full buffers is none.
const PARTS: usize = 10;

/// What a bundle is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Settings {
    /// Bytes of the largest message.
    #[n(0)]
    pub message_bytes_max: u32,
    /// Messages that one connection may have on their way.
    #[n(1)]
    pub depth: u16,
    /// Connections that there will be at most.
    #[n(2)]
    pub connections_max: u32,
    /// Both ends poll for messages all the time instead of sleeping until one comes.
    #[n(3)]
    pub poll: bool,
}

/// What a group does in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
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
pub struct Assignment {
    /// What it does.
    pub part: Task,
    /// When the run began, for all groups alike.
    pub start: Instant,
    /// Bytes of each message: at most what the bundle was made for.
    pub message_bytes: usize,
    /// Bytes that one receiving call asks for at least, where there are no messages but bytes.
    pub receive_bytes: usize,
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
pub struct Measured {
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
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// How many.
    pub messages: u64,
    /// When the first was sent, or had come.
    pub first: Option<Instant>,
    /// When the last had been sent, or had come.
    pub last: Option<Instant>,
    bins: Bins,
}

impl Flow {
    /// From the first to the last.
    pub fn time(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        }
    }

    /// Messages a second in the best tenth of the run; `None` if that was too short to be told apart.
    pub fn peak(&self) -> Option<f64> {
        self.bins.peak()
    }

    /// Both together: two groups of one end.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.last = self.last.max(other.last);
        self.bins.add(&other.bins);
    }
}

/// Messages by time.
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
        // The last one has not been filled.
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
    fn run(
        &mut self,
        plan: &Assignment,
        progress: &Progress,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Measured, LaneError>;
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

/// Counts messages in one direction.
pub(super) struct Meter {
    pub(super) flow: Flow,
    start: Instant,
}

impl Meter {
    pub(super) fn new(plan: &Assignment) -> Self {
        Self { flow: Flow::default(), start: plan.start }
    }

    /// The first message is about to be sent.
    pub(super) fn begin(&mut self, now: Instant) {
        self.flow.first.get_or_insert(now);
    }

    /// So many more messages are done.
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
