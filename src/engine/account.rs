//! Where a transfer's time goes. Each stretch between two looks of the loop is put down to what it was spent waiting for.
//!
//! What limits a transfer is what never has to wait itself. In front of it work piles up, behind it everybody has time. So
//! each end looks where its work piles up, and only where nothing does, at what it is busy with: a sink that is fast enough
//! is busy, too, but has no queue. The stretches of one transfer add up to its whole time, so the share of one of them is
//! also the share of its ceiling that the transfer reached: what limits it for 80 % of the time would have allowed a rate
//! of 1 / 0.8 of what it was, had it been the only limit.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use minicbor::{Decode, Encode};
use rd_proto::control::Path;
use rd_proto::session::Machine;

use super::{Engine, Half};

/// Chunks before a sink that mean that it does not keep up. Fewer may have come in a burst, from several lanes at once.
const BURST_MAX: u32 = 4;

/// A sink that takes longer for a chunk is behind, though nothing may wait for it.
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

/// Seconds as an agent tells them: whole microseconds. Of whatever it tells, sums and shares are numbers.
pub(super) mod micros {
    use minicbor::encode::{Error, Write};
    use minicbor::{Decoder, Encoder};

    /// 35 years. Up to there they come out as they went in.
    const MAX: u64 = 1 << 50;

    pub fn encode<C, W: Write>(seconds: &f64, e: &mut Encoder<W>, _: &mut C) -> Result<(), Error<W::Error>> {
        e.u64((seconds * 1e6).round() as u64)?.ok()
    }

    pub fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<f64, minicbor::decode::Error> {
        Ok(d.u64()?.min(MAX) as f64 / 1e6)
    }
}

/// One of [`Waits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The source.
    Source,
    /// The processors of this end.
    Cpu,
    /// The receiver's room.
    Credits,
    /// The wire.
    Wire,
    /// The sink.
    Sink,
    /// `--bwlimit`.
    Limit,
}

/// Which of a session's ends has looked, and so what the times mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The sender. It cannot tell a slow wire from a receiver that is slow to take what it has made room for.
    #[default]
    Sender,
    /// The receiver. It cannot tell a slow wire from a slow sender.
    Receiver,
    /// What both know has been put together.
    Both,
}

/// What holds a transfer up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limiter {
    /// What was waited for most.
    pub what: Wait,
    /// For which share of the time, of 1.
    pub share: f64,
}

impl Waits {
    /// As [`Waits::from_array`] takes them.
    pub fn to_array(self) -> [f64; 6] {
        [self.source, self.cpu, self.credits, self.wire, self.sink, self.limit]
    }

    /// What [`Waits::to_array`] has given.
    pub fn from_array([source, cpu, credits, wire, sink, limit]: [f64; 6]) -> Self {
        Self { source, cpu, credits, wire, sink, limit }
    }

    /// Each of them with its kind.
    pub fn named(self) -> [(Wait, f64); 6] {
        use Wait::{Cpu, Credits, Limit, Sink, Source, Wire};
        let mut seconds = self.to_array().into_iter();
        [Source, Cpu, Credits, Wire, Sink, Limit].map(|wait| (wait, seconds.next().expect("six")))
    }

    /// All of the time.
    pub fn total(self) -> f64 {
        self.to_array().iter().sum()
    }

    /// What came after `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        let (mut all, earlier) = (self.to_array(), earlier.to_array());
        all.iter_mut().zip(earlier).for_each(|(one, before)| *one = (*one - before).max(0.0));
        Self::from_array(all)
    }

    /// Both together, of one transfer after the other.
    pub fn plus(self, other: Self) -> Self {
        let (mut all, other) = (self.to_array(), other.to_array());
        all.iter_mut().zip(other).for_each(|(one, more)| *one += more);
        Self::from_array(all)
    }

    /// What both ends of a session know together. A sender that waits for room or for the wire cannot see why there is
    /// none: that time is put down to what the receiver was behind with meanwhile.
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

    /// What was waited for most; `None` if nothing was.
    pub fn limiter(self) -> Option<Limiter> {
        let (what, most) = self.named().into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (most > 0.0).then(|| Limiter { what, share: most / self.total() })
    }
}

impl Wait {
    /// As reports name it.
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

/// For how long any of several threads has been at something.
#[derive(Debug, Default)]
pub struct Clock(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    threads: u32,
    since: Option<Instant>,
    before: Duration,
}

impl Clock {
    /// Does it, and counts the time.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        {
            let mut times = self.times();
            times.threads += 1;
            times.since.get_or_insert_with(Instant::now);
        }
        let done = work();
        let mut times = self.times();
        times.threads -= 1;
        if times.threads == 0 {
            let lasted = times.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            times.before += lasted;
        }
        done
    }

    /// All of it until now.
    pub fn total(&self) -> Duration {
        let times = self.times();
        times.before + times.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn times(&self) -> std::sync::MutexGuard<'_, Times> {
        self.0.lock().expect("no panic with it locked")
    }
}

/// What the loop has to remember between two looks.
#[derive(Debug)]
pub(super) struct Account {
    looked: Instant,
    /// What the clocks said then.
    busy: Duration,
    reading: Duration,
    pausing: Duration,
    /// Chunks that workers have been given to open.
    pub to_open: u32,
    /// Chunks that the sink has been given and has not taken.
    with_sink: u32,
    /// When it last took one, or got one while it had none.
    sink_moved: Instant,
    /// The sink has been given everything, and is publishing it.
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

    /// Leaves out the time until now.
    pub(super) fn skip(&mut self) {
        self.looked = Instant::now();
    }

    /// The sink has been given a chunk.
    pub(super) fn sink_given(&mut self) {
        if self.with_sink == 0 {
            self.sink_moved = Instant::now();
        }
        self.with_sink += 1;
    }

    /// The sink has taken a chunk, or could not.
    pub(super) fn sink_taken(&mut self) {
        self.sink_moved = Instant::now();
        self.with_sink -= 1;
    }

    /// The sink does not keep up: more waits for it than comes in a burst, or it has been at one chunk for long.
    fn is_sink_behind(&self, buffers: u32) -> bool {
        self.is_publishing
            || self.with_sink >= (buffers / 8).clamp(1, BURST_MAX)
            || self.with_sink > 0 && self.sink_moved.elapsed() > SINK_PATIENCE
    }
}

impl Engine {
    /// Adds the time since the last look to what it was spent waiting for.
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
                self.shared.is_line_busy.store(!machine.is_starved(), Ordering::Relaxed);
                if machine.waits_for_credit() {
                    &mut waits.credits
                } else if backlog {
                    // What has piled up before a lane that reads and seals itself waits for that, too.
                    if self.may_plan && machine.core_ref().path() == Some(Path::Tcp) {
                        waits.source += part(reading);
                        waits.cpu += part(busy);
                    }
                    &mut waits.wire
                } else {
                    waits.limit += part(pausing);
                    // A stream's reader that waits has nothing to hand on, however busy the others are with what it had.
                    // Workers that read a file do so when they have nothing else to do.
                    if reader.is_some() {
                        waits.source += part(reading);
                        waits.cpu += part(busy);
                    } else {
                        waits.cpu += part(busy);
                        waits.source += part(reading);
                    }
                    match machine.waits_for_source() {
                        true if self.shared.afloat.load(Ordering::Relaxed) > 0 => &mut waits.source,
                        // There is a buffer to be filled, and no thread has come to it.
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
        // What the sender knows better stays: nobody waited for this sink.
        let busy = Waits { source: 10.0, ..Waits::default() };
        assert_eq!(busy.joined(slow_sink), busy);
        // One of them began to count later.
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
