//! How many resources a session gives its line: TCP lanes as long as more lanes carry more, and buffers for the data on
//! the way.
//!
//! A lane carries no more than its socket's buffers in one round trip, and far less after a loss. So on a long line
//! several lanes carry more than one, up to what the line holds. How many lanes that takes cannot be known beforehand:
//! the end that dials tries twice as many, and half as many, and lets the measured rate decide. Buffers are different:
//! the amount of data on the way and not yet acknowledged is rate × round trip, and both can be measured.

use std::time::Duration;

/// Minimum round trip of a long line. On a shorter line the processors limit the rate. Each of them can serve a lane,
/// so no more lanes are tried than there are processors.
pub const LONG_LINE: Duration = Duration::from_millis(5);

/// Number of lanes to begin with on a line of at least this round trip. A short copy would be over before a single lane
/// has found its rate.
const FIRST: [(Duration, u16); 2] = [(Duration::from_millis(80), 6), (Duration::from_millis(20), 4)];

/// Minimum number of lanes tried.
const LEAST: u16 = 2;

/// Minimum time over which the rate is measured. At least two round trips are measured.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// The same on a short line, which has carried thousands of round trips by then.
const SHORT_INTERVAL: Duration = Duration::from_millis(200);

/// Minimum number of bytes that such a short interval must carry when rails are measured. A slow rail carries few
/// chunks in it, so one chunk more or less would look like a gain.
const SHORT_INTERVAL_BYTES: u64 = 32 << 20;

/// Minimum number of bytes in an interval that says something of the line at a receiver, which does not know whether
/// there is anything to send. Heartbeats and handshakes move less, and more lanes move more of them.
pub(crate) const INFORMATIVE_BYTES: u64 = 4 << 10;

/// Minimum number of intervals of a trial of more rails, unless the trial has already shown that they carry more. The
/// data of new rails comes through a chunk at a time, and until their first chunk has arrived, the chunks behind it
/// wait.
const RAILS_ROUNDS_MIN: u32 = 4;

/// Maximum growth, as a factor, between two successive intervals of lanes that have found their rate.
const SETTLED: f64 = 1.1;

/// More lanes are kept if in `ROUNDS_ALIKE` intervals in a row they carry `GAIN_MIN` times the best rate of the fewer
/// lanes. Fewer lanes are kept if over as many intervals they carry `LOSS_MAX` times the mean rate of the more lanes,
/// and in no interval less than `LOSS_SEEN` times that rate.
const GAIN_MIN: f64 = 1.1;
const LOSS_MAX: f64 = 0.95;
const LOSS_SEEN: f64 = 0.8;
const ROUNDS_ALIKE: u32 = 2;

/// Number of preceding intervals with which a trial is compared.
const RECENT: usize = 4;

/// Number of round trips in which a new lane finds its rate: it doubles from ten packets to some megabytes.
const START_ROUND_TRIPS: f64 = 10.0;

/// Number of intervals after which a trial is judged at the latest.
const ROUNDS_MAX: u32 = 10;

/// Number of intervals without information after which a trial is given up.
const IDLE_MAX: u32 = 4;

/// Number of intervals for which a line counts as full after packets were queued on it.
const FULL_INTERVALS: u32 = 6;

/// How long the session runs before fewer lanes are tried. A lane that comes back takes seconds to find its rate again.
const FEWER_AFTER: Duration = Duration::from_secs(30);

/// How long a trial without a result is not repeated: the first time, and the maximum after repeated failures.
const REST_MIN: Duration = Duration::from_secs(15);
const REST_MAX: Duration = Duration::from_secs(160);

/// Factor by which a rate must differ from the last settled rate to count as that of another line. All trials then
/// start anew.
const OTHER_LINE: f64 = 1.5;

/// How long each half of the window lasts in which the shortest round trip is looked for. It may have become longer for
/// good. A queue that never drains looks the same, so fewer lanes must have been tried before.
const SHORTEST_HALF: Duration = Duration::from_secs(60);

/// The same for the round trips that are compared with the shortest one. A queue makes all of them longer, jitter only
/// some.
const LATEST_HALF: Duration = Duration::from_millis(500);

/// Packets are queued on the way if even the shortest of the latest round trips exceeds the shortest one by more than a
/// quarter plus this time.
const QUEUE_MIN: Duration = Duration::from_millis(1);

/// How many times the data on the way the pool has buffers for.
const TIMES_ON_THE_WAY: f64 = 4.0;

/// Part of the surplus buffers that is taken away in each interval if the line holds less, as a divisor.
const SHRINK_PART: u32 = 8;

/// A pause during which a trial is not repeated.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Duration,
    next: Duration,
}

impl Rest {
    const NONE: Self = Self::until(Duration::ZERO);

    const fn until(until: Duration) -> Self {
        Self { until, next: REST_MIN }
    }

    fn begin(&mut self, now: Duration) {
        self.until = now + self.next;
        self.next = (self.next * 2).min(REST_MAX);
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The number of lanes is kept until this many intervals have passed and two in a row have similar rates.
    Settling(u32),
    /// A number of lanes other than `from`, which carried `before`, is being tried. In the trial's `rounds` intervals
    /// the last `good` in a row were good, and all together carried `sum`; `idle` more gave no information.
    Trial { from: u16, before: f64, rounds: u32, good: u32, sum: f64, idle: u32 },
}

/// Number of TCP lanes or of rails that carry payload, at the end that dials.
#[derive(Clone, Debug)]
pub(crate) struct LaneGrowth {
    lanes: u16,
    max: u16,
    is_long: bool,
    interval: Duration,
    /// Minimum number of bytes in `interval`. An interval that carries less is extended to [`INTERVAL_MIN`].
    interval_bytes: u64,
    /// Number of intervals in which new lanes find their rate.
    rounds_min: u32,
    /// Number of intervals before a trial of more lanes is judged, unless they carry more earlier.
    trial_min: u32,
    phase: Phase,
    began: Duration,
    bytes_at: u64,
    /// Whether the source or the sink limited throughput at some time in this interval.
    was_idle: bool,
    /// Rate of the previous interval, in bytes a second.
    last: Option<f64>,
    /// Rates of the most recent intervals with this number of lanes; 0 if there was none.
    recent: [f64; RECENT],
    /// The rate that was settled last.
    settled: f64,
    /// Until when the line counts as full because packets were queued on the way. More lanes would only lose more
    /// packets.
    full_until: Duration,
    more: Rest,
    fewer: Rest,
}

impl LaneGrowth {
    /// Creates the growth of a session that would have `lanes` lanes and may have `max`, at an end with this many
    /// `processors`, on a line of this round trip. `None` if there is no other number to try.
    pub(crate) fn new(
        lanes: u16,
        max: u16,
        processors: u16,
        round_trip: Duration,
        now: Duration,
        bytes: u64,
    ) -> Option<Self> {
        let first = FIRST.iter().find(|(least, _)| round_trip >= *least).map_or(lanes, |(_, first)| *first);
        let max = if round_trip >= LONG_LINE { max } else { max.min(processors) };
        (max > lanes).then(|| Self::begin(first.clamp(lanes, max), max, round_trip, now, bytes))
    }

    /// Creates the growth of a session that has found `max` rails and uses one.
    pub(crate) fn of_rails(max: u16, round_trip: Duration, now: Duration, bytes: u64) -> Self {
        let growth = Self::begin(1, max, round_trip, now, bytes);
        let trial_min = growth.trial_min.max(RAILS_ROUNDS_MIN);
        Self { interval_bytes: SHORT_INTERVAL_BYTES, trial_min, ..growth }
    }

    fn begin(lanes: u16, max: u16, round_trip: Duration, now: Duration, bytes: u64) -> Self {
        let is_long = round_trip >= LONG_LINE;
        let interval = if is_long { INTERVAL_MIN.max(2 * round_trip) } else { SHORT_INTERVAL };
        let rounds_min = (START_ROUND_TRIPS * round_trip.as_secs_f64() / interval.as_secs_f64()).ceil() as u32;
        Self {
            lanes,
            max,
            is_long,
            interval,
            interval_bytes: 0,
            rounds_min,
            trial_min: rounds_min,
            phase: Phase::Settling(rounds_min),
            began: now,
            bytes_at: bytes,
            was_idle: false,
            last: None,
            recent: [0.0; RECENT],
            settled: 0.0,
            full_until: Duration::ZERO,
            more: Rest::NONE,
            fewer: Rest::until(now + FEWER_AFTER),
        }
    }

    /// Returns whether the line limits the rate, and not the processors.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Returns the number of lanes to have.
    pub(crate) fn lanes(&self) -> u16 {
        self.lanes
    }

    /// Returns whether another number than the settled one is being tried.
    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Trial { .. })
    }

    /// Excludes the present interval from measurement, because something else is being tried.
    pub(crate) fn pause(&mut self) {
        self.was_idle = true;
    }

    /// Handles the passing of time. `bytes` is the number of bytes that have come through since the session began.
    /// `limits`: the line limits throughput. `queues`: round trips are longer than necessary, so data is queued on the
    /// way. An interval with fewer than `least` bytes says nothing.
    pub(crate) fn note(&mut self, now: Duration, bytes: u64, [limits, queues]: [bool; 2], least: u64) {
        self.was_idle |= !limits;
        if queues && self.is_long {
            self.full_until = now + FULL_INTERVALS * self.interval;
        }
        let took = now.saturating_sub(self.began);
        let moved = bytes.saturating_sub(self.bytes_at);
        if took < self.interval || took < INTERVAL_MIN && moved < self.interval_bytes {
            return;
        }
        let rate = moved as f64 / took.as_secs_f64();
        (self.began, self.bytes_at) = (now, bytes);
        if std::mem::take(&mut self.was_idle) || moved < least {
            // This interval gave no information. A trial continues once there is data to carry, if that is soon: too
            // many lanes may themselves be the reason why the receiver holds all that it can.
            self.last = None;
            if let Phase::Trial { from, idle, .. } = &mut self.phase {
                *idle += 1;
                if *idle >= IDLE_MAX {
                    let from = *from;
                    self.judge(now, from, self.lanes > from, false);
                }
            }
            return;
        }
        let before = self.last.replace(rate);
        let is_settled = before.is_some_and(|before| rate < before * SETTLED);
        if let Phase::Settling(_) = self.phase {
            self.recent.rotate_right(1);
            self.recent[0] = rate;
        }
        match &mut self.phase {
            Phase::Settling(0) if is_settled => self.settle(now, rate, queues),
            Phase::Settling(rounds) => *rounds = rounds.saturating_sub(1),
            // The first interval mixes both numbers of lanes and is not counted.
            Phase::Trial { rounds: rounds @ 0, .. } => *rounds = 1,
            Phase::Trial { from, before, rounds, good, sum, .. } => {
                let (from, is_more, seen) = (*from, self.lanes > *from, *rounds);
                let is_good = rate >= *before * if is_more { GAIN_MIN } else { LOSS_SEEN };
                *good = if is_good { *good + 1 } else { 0 };
                *sum += rate;
                let is_better = *good >= ROUNDS_ALIKE && (is_more || *sum >= *before * LOSS_MAX * f64::from(seen));
                // More lanes may need a while to show what they carry; fewer lanes show a loss at once.
                let is_over = match is_more {
                    true => seen >= ROUNDS_MAX || seen > self.trial_min && is_settled && !is_good,
                    false => seen >= ROUNDS_ALIKE || !is_good,
                };
                *rounds += 1;
                if is_better || is_over {
                    self.judge(now, from, is_more, is_better);
                }
            }
        }
    }

    fn settle(&mut self, now: Duration, rate: f64, queues: bool) {
        if self.settled > 0.0 && !(self.settled / OTHER_LINE..self.settled * OTHER_LINE).contains(&rate) {
            (self.more, self.fewer) = (Rest::NONE, Rest::until(now + FEWER_AFTER));
        }
        self.settled = rate;
        let lanes = if self.lanes < self.max && now >= self.more.until && now >= self.full_until {
            (2 * self.lanes).min(self.max)
        } else if queues && self.lanes > LEAST && now >= self.fewer.until {
            // If nothing is queued on the way, each lane is needed.
            (self.lanes / 2).max(LEAST)
        } else {
            return;
        };
        let known = self.recent.iter().filter(|rate| **rate > 0.0);
        let before = match lanes > self.lanes {
            true => known.copied().fold(0.0, f64::max),
            false => known.clone().sum::<f64>() / known.count().max(1) as f64,
        };
        self.phase = Phase::Trial { from: self.lanes, before, rounds: 0, good: 0, sum: 0.0, idle: 0 };
        self.lanes = lanes;
        self.last = None;
    }

    fn judge(&mut self, now: Duration, from: u16, is_more: bool, is_better: bool) {
        match (is_more, is_better) {
            (true, true) => self.more.until = now,
            (false, true) => {
                // A trial of too few lanes costs seconds, until the lanes that come back have found their rate.
                self.fewer.until = now + REST_MIN;
                // The trial has just shown the effect of more lanes, so they need not be tried soon.
                self.more.until = self.more.until.max(now + self.more.next);
            }
            (true, false) => self.more.begin(now),
            (false, false) => self.fewer.begin(now),
        }
        if !is_better {
            self.lanes = from;
        }
        // Lanes that are new or have come back must find their rate first.
        let rounds = if is_more && is_better { 0 } else { self.rounds_min };
        (self.phase, self.settled, self.last) = (Phase::Settling(rounds), 0.0, None);
        self.recent = [0.0; RECENT];
    }
}

/// The shortest of the times in a window: in its present half, and in the half before.
#[derive(Clone, Debug)]
struct Shortest {
    half: Duration,
    began: Duration,
    times: [Duration; 2],
}

impl Shortest {
    fn note(&mut self, time: Duration, now: Duration) {
        if now.saturating_sub(self.began) >= self.half {
            (self.began, self.times) = (now, [time, self.times[0]]);
        }
        self.times[0] = self.times[0].min(time);
    }

    fn time(&self) -> Duration {
        self.times[0].min(self.times[1])
    }
}

/// The round trips of the line, as measured on its fastest TCP lane.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrips {
    shortest: Duration,
    /// In the last one or two minutes.
    of_late: Shortest,
    latest: Shortest,
}

impl RoundTrips {
    pub(crate) fn new(round_trip: Duration, now: Duration) -> Self {
        let [of_late, latest] =
            [SHORTEST_HALF, LATEST_HALF].map(|half| Shortest { half, began: now, times: [round_trip; 2] });
        Self { shortest: round_trip, of_late, latest }
    }

    pub(crate) fn note(&mut self, round_trip: Duration, now: Duration) {
        self.shortest = self.shortest.min(round_trip);
        self.of_late.note(round_trip, now);
        self.latest.note(round_trip, now);
    }

    /// Returns the shortest round trip so far.
    pub(crate) fn shortest(&self) -> Duration {
        self.shortest
    }

    /// Returns whether round trips are longer than necessary, because packets are queued on the way.
    pub(crate) fn show_queues(&self) -> bool {
        let shortest = self.of_late.time();
        self.latest.time() > shortest + shortest / 4 + QUEUE_MIN
    }
}

/// Number of buffers of the pool that may be in use: the initial number, plus the data on the way on a longer line.
#[derive(Clone, Debug)]
pub(crate) struct PoolLimit {
    least: u32,
    most: u32,
    /// Maximum number of buffers, as this session's share of the free memory.
    room: u32,
    limit: u32,
    round_trip: Duration,
    began: Duration,
    chunks_at: u64,
    /// Recent number of chunks on the way.
    on_the_way: f64,
}

impl PoolLimit {
    /// Creates a limit of all `most` buffers, until the line is known.
    pub(crate) fn all(most: u32) -> Self {
        let (round_trip, began) = (Duration::ZERO, Duration::ZERO);
        Self { least: most, most, room: most, limit: most, round_trip, began, chunks_at: 0, on_the_way: 0.0 }
    }

    /// Limits the pool to `least` buffers until the line is seen to need more.
    pub(crate) fn begin_with(&mut self, least: u32) {
        self.least = least.clamp(1, self.most);
        self.limit = self.least;
    }

    /// Returns the number of buffers that may be in use.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns whether the pool limits throughput, and not the line.
    pub(crate) fn is_tight(&self) -> bool {
        self.on_the_way >= 0.7 * f64::from(self.limit)
    }

    /// Sets the shortest round trip that was seen.
    pub(crate) fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Limits the pool to `room` buffers, or to `least` if that is more.
    pub(crate) fn set_room(&mut self, room: u32) {
        self.room = room;
    }

    /// Handles the passing of time. `chunks` is the number of chunks that have come through since the session began.
    /// `may_shrink`: the line limits throughput, so the data on the way is what the line holds.
    pub(crate) fn note(&mut self, now: Duration, chunks: u64, may_shrink: bool) {
        let took = now.saturating_sub(self.began);
        if self.least == self.most || took < INTERVAL_MIN.max(self.round_trip) {
            return;
        }
        let passed = chunks.saturating_sub(self.chunks_at);
        (self.began, self.chunks_at) = (now, chunks);
        // A pool that limits throughput grows. Several times the data on the way are needed: the sockets hold that
        // amount once more, and if lanes are not equally fast, a receiver that writes in order holds what the faster
        // lanes have brought.
        self.on_the_way = passed as f64 * self.round_trip.as_secs_f64() / took.as_secs_f64();
        let wanted = f64::from(self.least) + TIMES_ON_THE_WAY * self.on_the_way;
        let wanted = (wanted as u32).min(self.most.min(self.room).max(self.least));
        if wanted > self.limit {
            self.limit = wanted;
        } else if may_shrink {
            self.limit -= (self.limit - wanted).div_ceil(SHRINK_PART);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that carries at most `capacity` in all and `window` on each lane in a round trip, in bytes. A new lane
    /// doubles its rate with each round trip.
    struct Line {
        capacity: f64,
        window: f64,
        round_trip: f64,
    }

    impl Line {
        fn fewest(&self, max: u16) -> u16 {
            let carries = |lanes: u16| (f64::from(lanes) * self.window / self.round_trip).min(self.capacity);
            (1..=max).find(|&lanes| carries(lanes) >= 0.95 * carries(max)).unwrap_or(max)
        }
    }

    /// Runs two minutes. Returns the rate from the 10th second on relative to the best, and the number of lanes at each
    /// step.
    fn run(
        line: &Line,
        growth: &mut LaneGrowth,
        noise: &mut impl FnMut() -> f64,
        change: Option<(f64, f64)>,
    ) -> (f64, Vec<u16>) {
        let (step, mut bytes) = (0.1, 0.0_f64);
        let (mut ages, mut lanes, mut late, mut best) = (vec![0.0_f64; 16], Vec::new(), 0.0, 0.0);
        for tick in 0..1200 {
            let now = f64::from(tick) * step;
            let capacity = match change {
                Some((at, factor)) if now >= at => line.capacity * factor,
                _ => line.capacity,
            };
            let active = usize::from(growth.lanes());
            let mut rate = 0.0;
            for (at, age) in ages.iter_mut().enumerate() {
                *age = if at < active { *age + step } else { 0.0 };
                if at < active {
                    rate += (14e3 * 2_f64.powf(*age / line.round_trip)).min(line.window) / line.round_trip;
                }
            }
            let carried = rate.min(capacity);
            bytes += carried * step * (1.0 + noise());
            let top = (16.0 * line.window / line.round_trip).min(capacity);
            if now >= 10.0 && change.is_none_or(|(at, _)| now < at || now >= at + 15.0) {
                (late, best) = (late + carried, best + top);
            }
            growth.note(Duration::from_secs_f64(now + step), bytes as u64, [true, rate > 1.1 * capacity], 0);
            lanes.push(growth.lanes());
        }
        (late / best, lanes)
    }

    fn random(seed: &mut u64) -> f64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// On a line of 64 kbit/s each lane more only delays the others.
    #[test]
    fn a_slow_line_gets_few_lanes() {
        let mut growth = LaneGrowth::new(6, 16, 2, Duration::from_millis(100), Duration::ZERO, 0).expect("long");
        for tick in 1..1200_u32 {
            growth.note(tick * Duration::from_millis(100), u64::from(tick) * 800, [true, true], 0);
        }
        assert_eq!(growth.lanes(), 2);
    }

    #[test]
    fn lanes_follow_the_line() {
        let first = std::env::var("RD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
        for case in 0..300 {
            let mut seed = first.wrapping_add(case);
            random(&mut seed);
            let round_trip = 0.005 * 120_f64.powf(random(&mut seed));
            let window = 1e6 * 12_f64.powf(random(&mut seed));
            let capacity = 2e6 * 500_f64.powf(random(&mut seed));
            let line = Line { capacity, window, round_trip };
            let told = format!(
                "RD_SEED={} {:.0} ms, {:.1} MB, {:.1} MB/s",
                first + case,
                round_trip * 1e3,
                window / 1e6,
                capacity / 1e6
            );
            let mut growth =
                LaneGrowth::new(2, 16, 2, Duration::from_secs_f64(round_trip), Duration::ZERO, 0).expect("long");
            let (part, lanes) = run(&line, &mut growth, &mut || 0.2 * (random(&mut seed) - 0.5), None);
            let fewest = line.fewest(16);
            // The rest is the cost of trials.
            assert!(part >= 0.9, "{told}: {part:.3} with {lanes:?}, fewest {fewest}");
            let mut late = lanes[600..].to_vec();
            late.sort_unstable();
            assert!(late[late.len() / 2] <= 2 * fewest.max(LEAST), "{told}: {lanes:?}, fewest {fewest}");
        }
    }

    #[test]
    fn a_line_that_changes_is_followed() {
        for (capacity, factor) in [(10e6, 10.0), (100e6, 0.1)] {
            let line = Line { capacity, window: 3e6, round_trip: 0.1 };
            let mut growth = LaneGrowth::new(2, 16, 2, Duration::from_millis(100), Duration::ZERO, 0).expect("long");
            let (part, lanes) = run(&line, &mut growth, &mut || 0.0, Some((40.0, factor)));
            assert!(part >= 0.9, "{capacity} times {factor}: {part:.3} with {lanes:?}");
        }
    }

    /// Each lane carries what a processor can, and all lanes together what the network or the memory can.
    #[test]
    fn lanes_on_a_short_line_follow_the_processors() {
        let round_trip = 0.000_1;
        for (each, capacity, processors) in [(2e9, 12e9, 16), (2e9, 12e9, 4), (2e9, 3e9, 16), (0.5e9, 1.25e9, 64)] {
            let line = Line { capacity, window: each * round_trip, round_trip };
            let new = LaneGrowth::new(2, 16, processors, Duration::from_secs_f64(round_trip), Duration::ZERO, 0);
            let (mut growth, mut seed) = (new.expect("processors left over"), 1);
            let (_, lanes) = run(&line, &mut growth, &mut || 0.6 * (random(&mut seed) - 0.5), None);
            let most = processors.min(16);
            let fewest = line.fewest(most).max(LEAST);
            assert!(lanes[20] >= fewest, "after 2 s: {lanes:?}, fewest {fewest}");
            assert!(lanes.iter().all(|&lanes| lanes <= most), "{lanes:?}");
            let mut late = lanes[600..].to_vec();
            late.sort_unstable();
            assert!((fewest..=2 * fewest).contains(&late[late.len() / 2]), "{lanes:?}, fewest {fewest}");
        }
    }

    #[test]
    fn a_queue_is_told_from_a_longer_route_and_from_jitter() {
        let queued = |milliseconds: &mut dyn FnMut(u32) -> f64| {
            let round_trip = |milliseconds: f64| Duration::from_secs_f64(milliseconds / 1e3);
            let mut trips = RoundTrips::new(round_trip(milliseconds(0)), Duration::ZERO);
            let at = |tick: u32| {
                trips.note(round_trip(milliseconds(tick)), tick * Duration::from_millis(100));
                trips.show_queues()
            };
            (0..2500).map(at).collect::<Vec<bool>>()
        };
        let longer = queued(&mut |tick| if tick < 655 { 20.0 } else { 50.0 });
        assert!(!longer[..655].contains(&true) && !longer[670..1790].contains(&false), "at first it may be a queue");
        assert!(!longer[1820..].contains(&true), "a longer route");
        let shorter = queued(&mut |tick| if tick < 655 { 50.0 } else { 20.0 });
        assert!(!shorter.contains(&true));
        // A router fills its queue in 8 s, loses a packet, and a part of the queue drains.
        let filling = queued(&mut |tick| 20.0 + if tick < 20 { 0.0 } else { f64::from(20 + tick % 80) });
        assert!(filling[30..1150].iter().all(|&is_queued| is_queued), "what fills is a queue");
        let mut seed = 1;
        let varying = queued(&mut |_| 20.0 * (1.0 + 0.6 * random(&mut seed)));
        let share = varying.iter().filter(|&&is_queued| is_queued).count();
        assert!(share < 120, "jitter for a queue in {share} of {} ticks", varying.len());
    }

    #[test]
    fn lanes_are_tried_on_a_route_that_has_become_longer_and_where_round_trips_vary() {
        for (capacity, is_longer) in [(200e6, true), (800e6, false)] {
            let (mut seed, mut bytes) = (1, 0.0);
            let mut trips = RoundTrips::new(Duration::from_millis(20), Duration::ZERO);
            let mut growth = LaneGrowth::new(2, 16, 2, Duration::from_millis(20), Duration::ZERO, 0).expect("long");
            for tick in 1..3000_u32 {
                let route = if is_longer && tick >= 100 { 0.05 } else { 0.02 };
                let measured = if is_longer { route } else { route * (1.0 + 0.6 * random(&mut seed)) };
                let now = tick * Duration::from_millis(100);
                trips.note(Duration::from_secs_f64(measured), now);
                // A lane carries 1 MB in a round trip.
                bytes += 0.1 * (f64::from(growth.lanes()) * 1e6 / route).min(capacity);
                growth.note(now, bytes as u64, [true, trips.show_queues()], 0);
            }
            assert!(growth.lanes() >= 8, "{} lanes; longer: {is_longer}", growth.lanes());
        }
    }

    #[test]
    fn lanes_stay_where_none_is_left_to_try_or_the_line_does_not_limit() {
        let new = |processors, milliseconds| {
            LaneGrowth::new(2, 16, processors, Duration::from_millis(milliseconds), Duration::ZERO, 0)
        };
        assert!(new(2, 1).is_none(), "two processors are busy with two lanes");
        assert!(LaneGrowth::new(16, 16, 64, Duration::from_secs(1), Duration::ZERO, 0).is_none());
        for mut growth in [new(2, 10).expect("long"), new(16, 0).expect("processors left over")] {
            for tick in 1..600_u32 {
                growth.note(tick * Duration::from_millis(100), u64::from(tick) << 20, [tick % 2 != 0, false], 0);
            }
            assert_eq!(growth.lanes(), 2, "a source that pauses says nothing of the line");
        }
    }

    #[test]
    fn the_pool_holds_what_is_on_the_way() {
        // Chunks of 1 MB on a line of 1 GB/s. Only the pool limits throughput.
        for (round_trip, least, most) in [(0.000_1, 32, 34), (0.1, 390, 440), (0.5, 900, 1024)] {
            let mut pool = PoolLimit::all(1024);
            pool.begin_with(32);
            pool.set_round_trip(Duration::from_secs_f64(round_trip));
            let (mut now, mut chunks) = (0.0, 0.0);
            while now < 30.0 {
                now += 0.1;
                chunks += 0.1 * (f64::from(pool.limit()) / round_trip).min(1000.0);
                pool.note(Duration::from_secs_f64(now), chunks as u64, true);
            }
            assert!((least..=most).contains(&pool.limit()), "{round_trip}: {}", pool.limit());
        }
        assert_eq!(PoolLimit::all(8).limit(), 8);
    }

    #[test]
    fn the_pool_shrinks_with_the_line() {
        // A line of 1 GB/s, then a tenth of that, a pause, and 1 GB/s again.
        for (is_sender, after) in [(true, 72), (false, 432)] {
            let mut pool = PoolLimit::all(1024);
            pool.begin_with(32);
            pool.set_round_trip(Duration::from_millis(100));
            let (mut chunks, mut at) = (0.0, Vec::new());
            for tick in 1..1200_u32 {
                let line = [1000.0, 100.0, 0.0, 1000.0][tick as usize / 300];
                chunks += 0.1 * (f64::from(pool.limit()) / 0.1).min(line);
                pool.note(tick * Duration::from_millis(100), chunks as u64, is_sender && line > 0.0);
                at.push(pool.limit());
            }
            assert!((at[298]..at[298] + 9).contains(&at[1198]), "{at:?}");
            assert!((after - 6..=after + 6).contains(&at[598]), "{at:?}");
            assert_eq!(at[598], at[898], "a pause says nothing of the line");
        }
    }

    /// Sessions do not take a host's memory twice: each may have an eighth of what is left.
    #[test]
    fn sessions_of_one_host_share_its_memory() {
        const FREE: u32 = 2048;
        let mut pools = vec![PoolLimit::all(1024); 64];
        let mut chunks = vec![0.0; pools.len()];
        for pool in &mut pools {
            pool.begin_with(8);
            pool.set_round_trip(Duration::from_millis(500));
        }
        for tick in 1..600_u32 {
            for at in 0..pools.len() {
                let taken: u32 = pools.iter().map(PoolLimit::limit).sum();
                assert!(taken < FREE, "{tick}: {taken}");
                let pool = &mut pools[at];
                pool.set_room((FREE - taken) / 8);
                chunks[at] += 0.1 * f64::from(pool.limit()) / 0.5;
                pool.note(tick * Duration::from_millis(100), chunks[at] as u64, true);
            }
        }
        let taken: Vec<u32> = pools.iter().map(PoolLimit::limit).collect();
        // All sessions want all buffers. Each has its part, and an eighth of the rest is about as much.
        assert!(taken.iter().all(|taken| (20..40).contains(taken)), "{taken:?}");
    }
}
