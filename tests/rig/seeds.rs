//! Runs many numbered cases, several at a time.

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Random;

/// Whether this is the long run, `make test-long`.
pub fn is_long() -> bool {
    std::env::var_os("RD_LONG").is_some()
}

/// Returns the seeds of a run. RD_SEED is one seed, or a range such as 7-19. Otherwise the seeds are `short`,
/// which never change, so that a failure there was caused by a change of the code. The long run takes `long`
/// seeds from a random one on.
pub fn seeds(name: &str, short: Range<u64>, long: u64) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("RD_SEED is a number, or two with a - between them");
    let seeds = match std::env::var("RD_SEED") {
        Ok(text) => {
            let (first, last) = text.split_once('-').unwrap_or((&text, &text));
            number(first)..number(last) + 1
        }
        Err(_) if is_long() => {
            let first = Random::system().below(1 << 32);
            first..first + long
        }
        Err(_) => short,
    };
    eprintln!("{name}: RD_SEED={}-{}", seeds.start, seeds.end - 1);
    seeds
}

/// Runs `check` for each number, several at a time, and prints the differences that it returns. Returns the number
/// of cases with differences.
pub fn each(numbers: Range<u64>, check: impl Fn(u64) -> Vec<String> + Sync) -> u64 {
    let next = AtomicU64::new(numbers.start);
    let wrong = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).clamp(2, 8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    let lines = check(number);
                    if !lines.is_empty() {
                        wrong.fetch_add(1, Ordering::Relaxed);
                        // Printed at once and past the test harness, so that an interrupted run
                        // has reported its findings.
                        let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
                    }
                }
            });
        }
    });
    wrong.into_inner()
}
