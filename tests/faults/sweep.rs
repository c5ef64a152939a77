//! Many runs, several at a time, each with its own seed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::rig::Random;
use crate::story::Story;

/// Number of violations after which a sweep gives up.
const TOLD_MAX: usize = 3;

/// Minimum number of runs for which the distribution of outcomes is checked.
const COUNTED_MIN: u64 = 20;

/// Number of runs in `make test`, and in `make test-long`.
pub struct Runs {
    pub short: u64,
    pub long: u64,
    /// Number of concurrent runs. Most of a run is waiting.
    pub at_once: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Makes all runs. Fails with the accounts of the runs that went wrong. Also fails if too few runs were disturbed or
/// too few ended well, because the sweep would then show nothing.
pub fn sweep(name: &str, runs: &Runs, one: impl Fn(&mut Story) + Sync) {
    let repeated = number("RD_SEED");
    let usual = if std::env::var_os("RD_LONG").is_some() { runs.long } else { runs.short };
    let count = number("RD_RUNS").unwrap_or(if repeated.is_some() { 1 } else { usual });
    let first = repeated.unwrap_or_else(|| Random::system().below(1_000_000_000));
    eprintln!("{name}: {count} runs from RD_SEED={first}");
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let (accounts, outcomes) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, u64>::new()));
    let (disturbed, well) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..runs.at_once.min(count) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || accounts.lock().expect("no panic").len() >= TOLD_MAX {
                        return;
                    }
                    let mut story = Story::new(first + number);
                    let ran = catch_unwind(AssertUnwindSafe(|| one(&mut story)));
                    let panicked = ran.err().map(|payload| {
                        let text = payload.downcast_ref::<String>().map(String::as_str);
                        text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
                    });
                    *outcomes.lock().expect("no panic").entry(story.outcome.clone()).or_default() += 1;
                    disturbed.fetch_add(u64::from(story.disturbed), Ordering::Relaxed);
                    well.fetch_add(u64::from(story.outcome.ends_with(" 0")), Ordering::Relaxed);
                    if let Some(account) = story.close(panicked) {
                        eprintln!("{name}: {account}");
                        accounts.lock().expect("no panic").push(account);
                    }
                }
            });
        }
    });
    let (disturbed, well) = (disturbed.into_inner(), well.into_inner());
    let outcomes: Vec<String> = outcomes
        .into_inner()
        .expect("no panic")
        .into_iter()
        .map(|(outcome, runs)| format!("{runs} × {outcome}"))
        .collect();
    eprintln!(
        "{name}: {count} runs in {:.0} s, {disturbed} disturbed, {well} went well: {}",
        began.elapsed().as_secs_f64(),
        outcomes.join(", ")
    );
    let accounts = accounts.into_inner().expect("no panic");
    assert!(accounts.is_empty(), "{} violations:\n{}", accounts.len(), accounts.join("\n\n"));
    if count >= COUNTED_MIN {
        assert!(disturbed >= count / 2, "only {disturbed} of {count} runs were disturbed");
        assert!((count / 10..count).contains(&well), "{well} of {count} runs went well");
    }
}
