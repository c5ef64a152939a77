//! Many cases by their numbers, several at a time.

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Random;

/// Whether `make test-long` runs this.
pub fn is_long() -> bool {
    std::env::var_os("RD_LONG").is_some()
}

/// The seeds of a run. RD_SEED is one, or the first and the last of some: 7-19. Else `short`, which are always the same, so
/// that what fails there has been broken by a change; in the long run `long`, from a random one on.
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

/// Runs `check` for each number, several at a time, and prints what is wrong; how many of them that is.
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
                        // At once, and past the harness: a run that is cut has reported what it has found.
                        let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
                    }
                }
            });
        }
    });
    wrong.into_inner()
}
