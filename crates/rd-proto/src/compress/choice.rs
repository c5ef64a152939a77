//! The choice of `--compress auto`: whether each chunk is compressed, and by which method.
//!
//! A line carries some number of bytes a second, and threads compress some number of bytes a second. Compressed by one
//! method, data moves at `min(line × ratio, threads × speed)`. The method with the highest rate is chosen, or none if
//! the gain over the line alone is small. So a fast line gets data uncompressed, and a slow line gets the strongest
//! method that keeps the line busy: the more processor time the line leaves, the more of it is spent, as `zstd --adapt`
//! does.
//!
//! The relative speeds and ratios of the methods are known beforehand. Two numbers are measured: the speed of this
//! machine and the compressibility of this data.

use std::time::Duration;

use super::Method;

/// A method with its speed and its gain. The speed is that of one thread on a common processor, in bytes of text a
/// second. The gain is `ratio − 1`, relative to that of LZ4.
struct Known {
    method: Method,
    speed: f64,
    gain: f64,
}

const LADDER: [Known; 4] = [
    Known { method: Method::Lz4, speed: 700e6, gain: 1.0 },
    Known { method: Method::Zstd { level: 1 }, speed: 420e6, gain: 1.5 },
    Known { method: Method::Zstd { level: 3 }, speed: 250e6, gain: 1.7 },
    Known { method: Method::Zstd { level: 6 }, speed: 90e6, gain: 1.9 },
];

/// Minimum gain, as a factor, of a method over the best weaker one, or over no compression. Less is not worth the time
/// that compression takes at both ends.
const GAIN_MIN: f64 = 1.05;

/// Share of the threads' time that is left to compression. The threads seal as well, and a line that waits for them is
/// worse than a line that is slightly less compressed.
const SHARE: f64 = 0.7;

/// How long the line is watched for one measurement, and for how many chunks at least, unless these take longer than
/// [`WATCH_MAX`].
const WATCH: Duration = Duration::from_millis(50);
const WATCH_CHUNKS: u32 = 4;
const WATCH_MAX: Duration = Duration::from_millis(500);

/// Maximum growth, as a factor, between two measurements of a line whose rate counts as known. At the beginning buffers
/// are touched for the first time and windows grow; a fast line that was taken for a slow one would get compressed
/// chunks.
const SETTLED: f64 = 1.25;

/// How long after its first measurement a line counts as known in any case. If the sender never has more than a few
/// chunks at a time, its line is seldom busy all the time, and appears faster and slower by turns.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// A line counts as the bottleneck of one measurement if at most one chunk, or one in `BUSY_PARTS`, found it idle. For
/// compression at all, at least the share `BUSY_MIN` of recent chunks must have found the line busy.
const BUSY_PARTS: u32 = 8;
const BUSY_MIN: f64 = 0.25;

/// Weights in the moving averages: of one measurement of the line, of one chunk that found the line busy or idle, and
/// of one compressed chunk.
const LINE_WEIGHT: f64 = 0.3;
const BUSY_WEIGHT: f64 = 0.0625;
const CHUNK_WEIGHT: f64 = 0.125;

/// Number of chunks not tried after a chunk that did not shrink: the first number and the maximum. It doubles each
/// time.
const SKIP_MIN: u32 = 4;
const SKIP_MAX: u32 = 64;

/// Chooses methods for one transfer. Times count from any fixed moment and never go back.
#[derive(Debug)]
pub struct Chooser {
    threads: f64,
    /// Recent rate of the line in bytes a second, measured while the line was the bottleneck; 0 before the first
    /// measurement.
    line: f64,
    /// When the rate of the line was first measured.
    known_since: Option<Duration>,
    /// Whether the rate of the line is known well enough: its growth at the beginning is over.
    is_settled: bool,
    /// Share of recent chunks that found the line busy, from 0 to 1.
    busy: f64,
    watch: Watch,
    /// Ratio of LZ4 for this data: plain bytes divided by compressed bytes.
    ratio: f64,
    /// Speed of this machine relative to [`Known::speed`]; 0 before the first compressed chunk.
    machine: f64,
    skip: u32,
    next_skip: u32,
}

/// The present measurement of the line.
#[derive(Debug, Default)]
struct Watch {
    since: Duration,
    bytes: u64,
    chunks: u32,
    /// Number of these chunks that found the line busy.
    busy: u32,
}

impl Chooser {
    /// Creates a chooser for this number of threads that compress.
    pub fn new(threads: usize) -> Self {
        let threads = threads as f64;
        Self {
            threads,
            line: 0.0,
            known_since: None,
            is_settled: false,
            busy: 0.0,
            watch: Watch::default(),
            ratio: 2.0,
            machine: 0.0,
            skip: 0,
            next_skip: SKIP_MIN,
        }
    }

    /// Returns the method for the next chunk. `None` if the chunk should not be compressed, for example because the
    /// line waits for chunks or its rate is not known yet.
    pub fn choose(&self) -> Option<Method> {
        if self.busy < BUSY_MIN || !self.is_settled || self.skip > 0 {
            return None;
        }
        // The speed of this machine is unknown, and one compressed chunk is the price of measuring it.
        if self.machine == 0.0 {
            return Some(Method::Lz4);
        }
        let (mut method, mut best) = (None, self.line);
        for known in &LADDER {
            let ratio = 1.0 + (self.ratio - 1.0) * known.gain;
            let speed = SHARE * self.threads * known.speed * self.machine;
            let rate = speed.min(self.line * ratio);
            if rate > best * GAIN_MIN {
                (method, best) = (Some(known.method), rate);
            }
        }
        method
    }

    /// Records that a chunk of `wire_bytes` is ready for the line. `is_busy`: the line still has other chunks to carry.
    pub fn note_ready(&mut self, now: Duration, wire_bytes: usize, is_busy: bool) {
        self.skip = self.skip.saturating_sub(1);
        self.busy += (f64::from(u8::from(is_busy)) - self.busy) * BUSY_WEIGHT;
        self.watch.bytes += wire_bytes as u64;
        self.watch.chunks += 1;
        self.watch.busy += u32::from(is_busy);
        let took = now.saturating_sub(self.watch.since);
        if took < WATCH || took < WATCH_MAX && self.watch.chunks < WATCH_CHUNKS {
            return;
        }
        let rate = self.watch.bytes as f64 / took.as_secs_f64();
        let waited = self.watch.chunks - self.watch.busy;
        let was_busy = waited <= (self.watch.chunks / BUSY_PARTS).max(1);
        self.watch = Watch { since: now, ..Watch::default() };
        // A line that was idle now and then can carry more than the measured rate, so the measurement only raises the
        // estimate.
        if was_busy || self.line > 0.0 && rate > self.line {
            let was = self.line;
            let weight = if self.is_settled { LINE_WEIGHT } else { 1.0 };
            self.line += (rate - self.line) * weight;
            self.is_settled |= was > 0.0 && rate < was * SETTLED;
            self.known_since.get_or_insert(now);
        }
        self.is_settled |= self.known_since.is_some_and(|since| now.saturating_sub(since) >= SETTLED_AFTER);
    }

    /// Records that `method` compressed a chunk in the time `took`.
    pub fn note_compressed(&mut self, method: Method, plain_bytes: usize, wire_bytes: usize, took: Duration) {
        let Some(known) = LADDER.iter().find(|known| known.method == method) else { return };
        let ratio = 1.0 + (plain_bytes as f64 / wire_bytes.max(1) as f64 - 1.0) / known.gain;
        let machine = plain_bytes as f64 / took.as_secs_f64().max(1e-6) / known.speed;
        let weight = if self.machine == 0.0 { 1.0 } else { CHUNK_WEIGHT };
        self.ratio += (ratio.max(1.0) - self.ratio) * weight;
        self.machine += (machine - self.machine) * weight;
        self.next_skip = SKIP_MIN;
    }

    /// Records that a chunk does not shrink. Some of the following chunks are then not tried.
    pub fn note_incompressible(&mut self) {
        self.skip = self.next_skip;
        self.next_skip = (2 * self.next_skip).min(SKIP_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1 << 20;

    /// A simulation: a line of `line` bytes a second, and `threads` threads of a machine `speed` times as fast as the
    /// usual one. LZ4 makes the data `ratio` times smaller.
    struct Run {
        line: f64,
        threads: usize,
        speed: f64,
        ratio: f64,
    }

    impl Run {
        /// Returns the rate in plain bytes a second and the method of the last chunk. The threads compress chunks in
        /// turn, and the chunks wait for the line in a pool of 32. Only the second half of the time counts, when the
        /// pool is full.
        fn run(&self) -> (f64, Option<Method>) {
            let seconds = 10.0_f64.max(200.0 * CHUNK as f64 / self.line);
            let mut chooser = Chooser::new(self.threads);
            let mut threads = vec![0.0_f64; self.threads];
            // When each chunk of the pool has left.
            let mut pool = std::collections::VecDeque::from([0.0_f64; 32]);
            let (mut line, mut plain, mut last) = (0.0_f64, 0.0, None);
            loop {
                let (at, thread) =
                    (0..threads.len()).map(|at| (threads[at], at)).min_by(|a, b| a.0.total_cmp(&b.0)).expect("one");
                let now = at.max(pool.pop_front().expect("32"));
                if now > seconds {
                    return (plain / seconds * 2.0, last);
                }
                let is_busy = line > now;
                last = chooser.choose();
                let (wire, took) = match last {
                    None => (CHUNK as f64, CHUNK as f64 / 10e9),
                    Some(method) => {
                        let known = LADDER.iter().find(|known| known.method == method).expect("it is one");
                        let ratio = 1.0 + (self.ratio - 1.0) * known.gain;
                        (CHUNK as f64 / ratio, CHUNK as f64 / (known.speed * self.speed))
                    }
                };
                let ready = now + took;
                threads[thread] = ready;
                if let Some(method) = last {
                    chooser.note_compressed(method, CHUNK, wire as usize, Duration::from_secs_f64(took));
                }
                chooser.note_ready(Duration::from_secs_f64(ready), wire as usize, is_busy);
                line = line.max(ready) + wire / self.line;
                pool.push_back(line);
                if now > seconds / 2.0 {
                    plain += CHUNK as f64;
                }
            }
        }
    }

    #[test]
    fn a_slow_line_gets_the_strongest_method_and_a_fast_one_none() {
        let run = |line, threads| Run { line, threads, speed: 1.0, ratio: 2.0 }.run();
        assert_eq!(run(25e6, 2).1, Some(Method::Zstd { level: 6 }));
        assert!(matches!(run(125e6, 2).1, Some(Method::Zstd { level: 1..=3 })));
        assert_eq!(run(3e9, 2).1, None);
        assert_eq!(run(1.2e9, 8).1, Some(Method::Lz4));
    }

    #[test]
    fn data_goes_as_fast_as_by_the_best_of_all_methods_or_nearly_and_never_slower_than_as_it_is() {
        for line in [1e6, 12e6, 25e6, 125e6, 300e6, 1.2e9, 3e9, 12e9] {
            for threads in [1, 2, 8] {
                for speed in [0.3, 1.0, 2.0] {
                    for ratio in [1.0, 1.2, 2.0, 5.0] {
                        let (rate, _) = Run { line, threads, speed, ratio }.run();
                        let of = |known: &Known| {
                            let ratio = 1.0 + (ratio - 1.0) * known.gain;
                            (threads as f64 * known.speed * speed).min(line * ratio)
                        };
                        let best = LADDER.iter().map(of).fold(line.min(threads as f64 * 10e9), f64::max);
                        let plain = line.min(threads as f64 * 10e9);
                        assert!(rate > 0.6 * best, "{line:e} {threads} {speed} {ratio}: {rate:e} of {best:e}");
                        assert!(rate > 0.93 * plain, "{line:e} {threads} {speed} {ratio}: {rate:e}, plain {plain:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_fast_line_that_begins_slowly_is_not_taken_for_a_slow_one() {
        let mut chooser = Chooser::new(2);
        let mut now = Duration::ZERO;
        // Rates in MB/s of a line that is the bottleneck, for 60 ms each.
        for rate in [300.0, 900.0, 2000.0, 3000.0, 3000.0, 3000.0] {
            for _ in 0..(rate * 60e3 / CHUNK as f64) as u32 {
                assert!(rate == 3000.0 || chooser.choose().is_none(), "{rate} {now:?}");
                now += Duration::from_secs_f64(CHUNK as f64 / rate / 1e6);
                chooser.note_ready(now, CHUNK, true);
            }
        }
        assert_eq!(chooser.choose(), Some(Method::Lz4), "one chunk is the price of knowing");
        chooser.note_compressed(Method::Lz4, CHUNK, CHUNK / 2, Duration::from_secs_f64(CHUNK as f64 / 400e6));
        assert_eq!(chooser.choose(), None);
    }

    #[test]
    fn a_slow_line_that_waits_now_and_then_is_known_soon() {
        let mut chooser = Chooser::new(2);
        let mut now = Duration::ZERO;
        // Four chunks at each rate: MB/s, and how many of the four found the line busy.
        for (rate, busy) in [(8.8, 4), (7.6, 1), (8.4, 2), (13.9, 4), (6.8, 2)] {
            for chunk in 0..4 {
                now += Duration::from_secs_f64(CHUNK as f64 / rate / 1e6);
                chooser.note_ready(now, CHUNK, chunk < busy);
            }
            assert!(chooser.choose().is_some() == (now > Duration::from_millis(1200)), "{now:?}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_tried_less_and_less_often() {
        let mut chooser = Chooser::new(2);
        let mut tried = 0;
        for chunk in 0..2000_u32 {
            let now = Duration::from_millis(40) * chunk;
            if chooser.choose().is_some() {
                tried += 1;
                chooser.note_incompressible();
            }
            chooser.note_ready(now, CHUNK, true);
        }
        assert!((10..60).contains(&tried), "{tried}");
        // Until a chunk shrinks.
        chooser.note_compressed(Method::Lz4, CHUNK, CHUNK / 2, Duration::from_millis(2));
        assert_eq!(chooser.next_skip, SKIP_MIN);
    }
}
