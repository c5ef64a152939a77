//! What `--compress auto` chooses: for each chunk whether it is compressed, and by which method.
//!
//! A line takes so many bytes in a second, threads compress so many. Compressed by one method, data moves at
//! `min(line × ratio, threads × speed)`. The method that makes this highest is taken; none, if that gains little over the
//! line alone. So a fast line gets data as it is, and a slow one the strongest method that keeps it busy: the more
//! processor time the line leaves, the more of it is spent, as `zstd --adapt` does.
//!
//! How fast the methods are beside each other, and how well they compress, is known beforehand; two numbers are measured,
//! one for this machine and one for this data.

use std::time::Duration;

use super::Method;

/// A method with its speed, in bytes a second of one thread on a common processor and on text, and what it saves beside
/// LZ4: `(ratio − 1)` in parts of LZ4's.
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

/// What a method must gain over the one before it, to be worth its time at both ends.
const GAIN_MIN: f64 = 1.05;

/// How much of the threads' time is compression's: they seal as well, and a line that waits for them is worse than one
/// that is a little less filled.
const SHARE: f64 = 0.7;

/// How long the line is watched for one measurement, and of how many chunks at least, unless that takes longer than
/// [`WATCH_MAX`].
const WATCH: Duration = Duration::from_millis(50);
const WATCH_CHUNKS: u32 = 4;
const WATCH_MAX: Duration = Duration::from_millis(500);

/// A line is known once it has carried no more than this in parts of what it carried before: at the beginning buffers are
/// touched for the first time and windows grow, and a fast line that was taken for a slow one gets compressed chunks.
const SETTLED: f64 = 1.25;

/// Or this long after it was first measured: one whose sender has no more than a few chunks at a time is seldom seen to be busy
/// all the time, and is taken for faster and slower by turns.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// A line that is what others wait for hardly ever waits: for one chunk, or one in so many, while it is measured; and not
/// for most of them, where there is to be compression at all.
const BUSY_PARTS: u32 = 8;
const BUSY_MIN: f64 = 0.25;

/// The weight of one measurement of the line, of whether it was busy, and of one chunk.
const LINE_WEIGHT: f64 = 0.3;
const BUSY_WEIGHT: f64 = 0.0625;
const CHUNK_WEIGHT: f64 = 0.125;

/// Chunks that are passed over after one that did not shrink, at first and at most; each time twice as many.
const SKIP_MIN: u32 = 4;
const SKIP_MAX: u32 = 64;

/// Chooses for one transfer. Times are since any one moment; they do not go back.
#[derive(Debug)]
pub struct Chooser {
    threads: f64,
    /// Bytes a second that the line has taken lately, while it was what others waited for; 0 before that is known.
    line: f64,
    /// When it was first known.
    known_since: Option<Duration>,
    /// It does not become faster any more.
    is_settled: bool,
    /// In how many parts of one it was that lately.
    busy: f64,
    watch: Watch,
    /// What LZ4 makes of this data: plain bytes in parts of compressed ones.
    ratio: f64,
    /// How fast this machine is, in parts of [`Known::speed`]; 0 before that is known.
    machine: f64,
    skip: u32,
    next_skip: u32,
}

/// Of the line, for one measurement.
#[derive(Debug, Default)]
struct Watch {
    since: Duration,
    bytes: u64,
    chunks: u32,
    /// Of these.
    busy: u32,
}

impl Chooser {
    /// With so many threads that compress.
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

    /// How to compress the next chunk; `None`: not at all, as where the line waits for chunks, or it is not known yet how
    /// fast it is.
    pub fn choose(&self) -> Option<Method> {
        if self.busy < BUSY_MIN || !self.is_settled || self.skip > 0 {
            return None;
        }
        // One chunk is the price of knowing.
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

    /// A chunk of so many bytes is ready for the line. `is_busy`: the line has others to carry.
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
        // A line that waited now and then carries more than this.
        if was_busy || self.line > 0.0 && rate > self.line {
            let was = self.line;
            let weight = if self.is_settled { LINE_WEIGHT } else { 1.0 };
            self.line += (rate - self.line) * weight;
            self.is_settled |= was > 0.0 && rate < was * SETTLED;
            self.known_since.get_or_insert(now);
        }
        self.is_settled |= self.known_since.is_some_and(|since| now.saturating_sub(since) >= SETTLED_AFTER);
    }

    /// A chunk was compressed by `method` in this time.
    pub fn note_compressed(&mut self, method: Method, plain_bytes: usize, wire_bytes: usize, took: Duration) {
        let Some(known) = LADDER.iter().find(|known| known.method == method) else { return };
        let ratio = 1.0 + (plain_bytes as f64 / wire_bytes.max(1) as f64 - 1.0) / known.gain;
        let machine = plain_bytes as f64 / took.as_secs_f64().max(1e-6) / known.speed;
        let weight = if self.machine == 0.0 { 1.0 } else { CHUNK_WEIGHT };
        self.ratio += (ratio.max(1.0) - self.ratio) * weight;
        self.machine += (machine - self.machine) * weight;
        self.next_skip = SKIP_MIN;
    }

    /// A chunk does not shrink: some of those that follow are not tried.
    pub fn note_incompressible(&mut self) {
        self.skip = self.next_skip;
        self.next_skip = (2 * self.next_skip).min(SKIP_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1 << 20;

    /// A line of so many bytes a second and `threads` of a machine `speed` times the usual, for data that LZ4 makes so many
    /// times smaller: how many plain bytes go in a second, and how the last chunk was compressed.
    struct Run {
        line: f64,
        threads: usize,
        speed: f64,
        ratio: f64,
    }

    impl Run {
        /// Chunks are compressed by one thread after the other and wait in a pool of 32 for the line. What counts is the
        /// second half: the pool is full then.
        fn run(&self) -> (f64, Option<Method>) {
            let seconds = 10.0_f64.max(200.0 * CHUNK as f64 / self.line);
            let mut chooser = Chooser::new(self.threads);
            let mut threads = vec![0.0_f64; self.threads];
            // When each chunk of the pool has gone.
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
        // MB/s for so many milliseconds each, of a line that is all that others wait for.
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
        // Four chunks each: MB/s, and how many of them have found the line busy.
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
        // Until something does.
        chooser.note_compressed(Method::Lz4, CHUNK, CHUNK / 2, Duration::from_millis(2));
        assert_eq!(chooser.next_skip, SKIP_MIN);
    }
}
