//! Account of where a transfer's time goes. Each stretch between two looks of the loop is attributed to what it was
//! spent waiting for.
//!
//! The part that limits a transfer never waits itself. Work piles up in front of it, and everything behind it has time
//! to spare. So each end looks at where its work piles up. Only if nothing piles up does it look at what it is busy
//! with: a sink that is fast enough is busy too, but has no queue. The stretches of a transfer add up to its whole
//! time. So the share of a cause is also the share of that cause's ceiling that the transfer reached: a cause that
//! limits it for 80 % of the time would, as the only limit, have allowed 1 / 0.8 of the rate.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use minicbor::{Decode, Encode};
use rd_proto::control::Path;
use rd_proto::session::Machine;

use super::{Engine, Half};

/// Number of chunks in front of a sink from which on the sink counts as behind. Fewer may have come in a burst, from
/// several lanes at once.
const BURST_MAX: u32 = 4;

/// How long a sink may take for a chunk before it counts as behind, even if nothing waits for it.
const SINK_PATIENCE: Duration = Duration::from_millis(10);

/// Where the time went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Waits {
    /// Waiting for the source to give data.
    #[cbor(n(0), with = "micros")]
    pub source: f64,
    /// Sealing, opening, compressing.
    #[cbor(n(1), with = "micros")]
    pub cpu: f64,
    /// Waiting for the receiver to make room.
    #[cbor(n(2), with = "micros")]
    pub credits: f64,
    /// Waiting for the wire, or for whatever the other end waits for.
    #[cbor(n(3), with = "micros")]
    pub wire: f64,
    /// Waiting for the sink to take data.
    #[cbor(n(4), with = "micros")]
    pub sink: f64,
    /// Waiting for what `--bwlimit` allows.
    #[cbor(n(5), with = "micros")]
    pub limit: f64,
}

/// Seconds in an agent's messages, as whole microseconds.
/// Whatever an agent sends, sums and shares of it are finite numbers.
pub(super) mod micros {
    use minicbor::encode::{Error, Write};
    use minicbor::{Decoder, Encoder};

    /// Maximum that is decoded, 35 years. Values up to this are decoded as they were encoded.
    const MAX: u64 = 1 << 50;

    pub fn encode<C, W: Write>(seconds: &f64, e: &mut Encoder<W>, _: &mut C) -> Result<(), Error<W::Error>> {
        e.u64((seconds * 1e6).round() as u64)?.ok()
    }

    pub fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<f64, minicbor::decode::Error> {
        Ok(d.u64()?.min(MAX) as f64 / 1e6)
    }
}

/// A kind of [`Waits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The source.
    Source,
    /// The processors of this end.
    Cpu,
    /// Room at the receiver.
    Credits,
    /// The wire.
    Wire,
    /// The sink.
    Sink,
    /// `--bwlimit`.
    Limit,
}

/// Which end of a session has measured, and so what the times mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The sender. It cannot distinguish a slow wire from a receiver that is slow to take chunks it has made room for.
    #[default]
    Sender,
    /// The receiver. It cannot distinguish a slow wire from a slow sender.
    Receiver,
    /// Both ends, whose knowledge has been combined.
    Both,
}

/// What limits a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limiter {
    /// What was waited for most.
    pub what: Wait,
    /// Share of the time spent on that, from 0 to 1.
    pub share: f64,
}

impl Waits {
    /// Returns the times in the order of [`Waits::from_array`].
    pub fn to_array(self) -> [f64; 6] {
        [self.source, self.cpu, self.credits, self.wire, self.sink, self.limit]
    }

    /// Takes the times in the order of [`Waits::to_array`].
    pub fn from_array([source, cpu, credits, wire, sink, limit]: [f64; 6]) -> Self {
        Self { source, cpu, credits, wire, sink, limit }
    }

    /// Returns each time with its kind.
    pub fn named(self) -> [(Wait, f64); 6] {
        use Wait::{Cpu, Credits, Limit, Sink, Source, Wire};
        let mut seconds = self.to_array().into_iter();
        [Source, Cpu, Credits, Wire, Sink, Limit].map(|wait| (wait, seconds.next().expect("six")))
    }

    /// Returns the sum of all times.
    pub fn total(self) -> f64 {
        self.to_array().iter().sum()
    }

    /// Returns what was added since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        let (mut all, earlier) = (self.to_array(), earlier.to_array());
        all.iter_mut().zip(earlier).for_each(|(one, before)| *one = (*one - before).max(0.0));
        Self::from_array(all)
    }

    /// Returns the sum of two transfers that ran one after the other.
    pub fn plus(self, other: Self) -> Self {
        let (mut all, other) = (self.to_array(), other.to_array());
        all.iter_mut().zip(other).for_each(|(one, more)| *one += more);
        Self::from_array(all)
    }

    /// Returns what both ends of a session know together. A sender that waits for room or for the wire cannot see the
    /// reason, so that time is attributed to what the receiver was behind with meanwhile.
    pub fn joined(self, receiver: Self) -> Self {
        let scale = if receiver.total() > 0.0 { self.total() / receiver.total() } else { 0.0 };
        let mut joined = self;
        for (told, known) in [(receiver.sink, &mut joined.sink), (receiver.cpu, &mut joined.cpu)] {
            let mut told = told * scale;
            for unexplained in [&mut joined.credits, &mut joined.wire] {
                let part = told.min(*unexplained);
                *unexplained -= part;
                *known += part;
                told -= part;
            }
        }
        joined
    }

    /// Returns what was waited for most; `None` if nothing was.
    pub fn limiter(self) -> Option<Limiter> {
        let (what, most) = self.named().into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (most > 0.0).then(|| Limiter { what, share: most / self.total() })
    }
}

impl Wait {
    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Cpu => "cpu",
            Self::Credits => "credits",
            Self::Wire => "wire",
            Self::Sink => "sink",
            Self::Limit => "limit",
        }
    }
}

/// Measures for how long at least one of several threads has been working.
#[derive(Debug, Default)]
pub struct Clock(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    threads: u32,
    since: Option<Instant>,
    before: Duration,
}

impl Clock {
    /// Runs `work` and counts its time.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        {
            let mut times = crate::locked(&self.0);
            times.threads += 1;
            times.since.get_or_insert_with(Instant::now);
        }
        let done = work();
        let mut times = crate::locked(&self.0);
        times.threads -= 1;
        if times.threads == 0 {
            let lasted = times.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            times.before += lasted;
        }
        done
    }

    /// Returns the time counted until now, including work that has not ended.
    pub fn total(&self) -> Duration {
        let times = crate::locked(&self.0);
        times.before + times.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// What the loop remembers between two looks.
#[derive(Debug)]
pub(super) struct Account {
    looked: Instant,
    /// Readings of the clocks at the last look.
    busy: Duration,
    reading: Duration,
    pausing: Duration,
    /// Number of chunks that workers have been given to open.
    pub to_open: u32,
    /// Number of chunks that the sink has been given and has not taken.
    with_sink: u32,
    /// When the sink last took a chunk, or got one while it had none.
    sink_moved: Instant,
    /// Whether the sink has been given everything and is publishing it.
    pub is_publishing: bool,
}

impl Account {
    pub(super) fn new() -> Self {
        Self {
            looked: Instant::now(),
            busy: Duration::ZERO,
            reading: Duration::ZERO,
            pausing: Duration::ZERO,
            to_open: 0,
            with_sink: 0,
            sink_moved: Instant::now(),
            is_publishing: false,
        }
    }

    /// Leaves the time until now out of the account.
    pub(super) fn skip(&mut self) {
        self.looked = Instant::now();
    }

    /// Records that the sink has been given a chunk.
    pub(super) fn sink_given(&mut self) {
        if self.with_sink == 0 {
            self.sink_moved = Instant::now();
        }
        self.with_sink += 1;
    }

    /// Records that the sink has taken a chunk, or has failed to.
    pub(super) fn sink_taken(&mut self) {
        self.sink_moved = Instant::now();
        self.with_sink -= 1;
    }

    /// Whether the sink does not keep up: more chunks wait for it than come in a burst,
    /// or it has taken long for one chunk.
    fn is_sink_behind(&self, buffers: u32) -> bool {
        self.is_publishing
            || self.with_sink >= (buffers / 8).clamp(1, BURST_MAX)
            || self.with_sink > 0 && self.sink_moved.elapsed() > SINK_PATIENCE
    }
}

impl Engine {
    /// Attributes the time since the last look to what it was spent waiting for.
    pub(super) fn account(&mut self) {
        let account = &mut self.account;
        let is_sink_behind = account.is_sink_behind(self.buffers.len() as u32);
        let mut left = account.looked.elapsed().as_secs_f64();
        account.looked = Instant::now();
        let since = |clock: &Clock, before: &mut Duration| {
            let now = clock.total();
            (now - std::mem::replace(before, now)).as_secs_f64()
        };
        let busy = since(&self.shared.busy, &mut account.busy);
        let reading = since(&self.shared.reading, &mut account.reading);
        let pausing = since(self.shared.pace.clock(), &mut account.pausing);
        let mut part = |of: f64| {
            let part = of.min(left);
            left -= part;
            part
        };
        let waits = &mut self.summary.figures.waits;
        let rest = match &self.half {
            Half::Send { machine, reader, .. } => {
                let backlog = machine.backlog();
                self.shared.backlog.store(backlog, Ordering::Relaxed);
                let is_line_busy = !machine.is_starved() && !machine.waits_for_receiver();
                self.shared.is_line_busy.store(is_line_busy, Ordering::Relaxed);
                if machine.waits_for_credit() {
                    &mut waits.credits
                } else if backlog {
                    // A lane that reads and seals by itself makes the backlog wait for that too.
                    if self.may_plan && machine.core_ref().path() == Some(Path::Tcp) {
                        waits.source += part(reading);
                        waits.cpu += part(busy);
                    }
                    &mut waits.wire
                } else {
                    waits.limit += part(pausing);
                    // A stream's reader that waits has nothing to pass on, however busy other threads are with earlier
                    // data. Workers, in contrast, read a file when they have nothing else to do.
                    if reader.is_some() {
                        waits.source += part(reading);
                        waits.cpu += part(busy);
                    } else {
                        waits.cpu += part(busy);
                        waits.source += part(reading);
                    }
                    match machine.waits_for_source() {
                        true if self.shared.afloat.load(Ordering::Relaxed) > 0 => &mut waits.source,
                        // There is a buffer to fill, but no thread has got to it.
                        true => &mut waits.cpu,
                        false => &mut waits.wire,
                    }
                }
            }
            Half::Receive { .. } => {
                if is_sink_behind {
                    &mut waits.sink
                } else if account.to_open > 0 {
                    &mut waits.cpu
                } else {
                    waits.cpu += part(busy);
                    &mut waits.wire
                }
            }
        };
        *rest += left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limiter_is_what_took_most_and_its_share_is_of_all() {
        assert_eq!(Waits::default().limiter(), None);
        let waits = Waits { source: 1.0, sink: 3.0, ..Waits::default() };
        assert_eq!(waits.limiter(), Some(Limiter { what: Wait::Sink, share: 0.75 }));
        assert_eq!(waits.plus(waits).since(waits), waits);
        for (at, what) in ["source", "cpu", "credits", "wire", "sink", "limit"].into_iter().enumerate() {
            let one = Waits::from_array(std::array::from_fn(|other| f64::from(u8::from(other == at))));
            assert_eq!(one.limiter().map(|limiter| limiter.what.name()), Some(what));
        }
    }

    #[test]
    fn the_receiver_explains_what_the_sender_waited_for() {
        let sender = Waits { source: 1.0, credits: 6.0, wire: 3.0, ..Waits::default() };
        let joined = |receiver| sender.joined(receiver);
        assert_eq!(joined(Waits::default()), sender, "it has said nothing");
        let slow_wire = Waits { wire: 10.0, ..Waits::default() };
        assert_eq!(joined(slow_wire), sender);
        let slow_sink = Waits { sink: 8.0, wire: 2.0, ..Waits::default() };
        assert_eq!(joined(slow_sink), Waits { source: 1.0, sink: 8.0, wire: 1.0, ..Waits::default() });
        let both = Waits { sink: 8.0, cpu: 2.0, ..Waits::default() };
        assert_eq!(joined(both), Waits { source: 1.0, sink: 8.0, cpu: 1.0, ..Waits::default() });
        // The sender's own knowledge takes precedence: nothing waited for this sink.
        let busy = Waits { source: 10.0, ..Waits::default() };
        assert_eq!(busy.joined(slow_sink), busy);
        // The receiver began to count later than the sender.
        let short = Waits { sink: 0.8, wire: 0.2, ..Waits::default() };
        assert!((joined(short).sink - 8.0).abs() < 1e-9);
    }

    #[test]
    fn a_clock_counts_threads_that_overlap_once() {
        let clock = Clock::default();
        assert_eq!(clock.total(), Duration::ZERO);
        let pause = Duration::from_millis(60);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| clock.during(|| std::thread::sleep(pause)));
            }
            std::thread::sleep(pause / 2);
            assert!(clock.total() > Duration::ZERO, "what is not over counts, too");
        });
        let after = start.elapsed();
        let total = clock.total();
        assert!(total >= pause && total <= after, "{total:?} within {after:?}");
        std::thread::sleep(pause / 4);
        assert_eq!(clock.total(), total, "and stands still");
    }

    #[test]
    fn a_sink_is_behind_when_its_queue_grows_or_it_stands_still() {
        let mut account = Account::new();
        assert!(!account.is_sink_behind(32));
        for given in 1..=BURST_MAX {
            account.sink_given();
            account.sink_moved = Instant::now();
            assert_eq!(account.is_sink_behind(32), given == BURST_MAX, "{given}");
        }
        account.sink_taken();
        assert!(!account.is_sink_behind(32) && account.is_sink_behind(16), "few buffers make a short queue");
        account.sink_moved -= 2 * SINK_PATIENCE;
        assert!(account.is_sink_behind(32), "at one chunk for long");
    }
}
