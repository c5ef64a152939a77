//! What all rows are measured with: turns, medians, verdicts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use crate::place::Scratch;
pub use crate::process::{Memory, READY_LIMIT, Running, free_port, listens, wait_listening, wait_until};
use crate::record::{self, BUSY_MAX, Contest, Entry, Kind};

pub const GIB: u64 = 1 << 30;

/// Rounds and sizes of a run whose figures are for claims, and of one that shows that things work.
const RUNS_MIN: usize = 9;
const SIZE_MIB: u64 = 4096;
const QUICK_RUNS: usize = 2;
const QUICK_SIZE_MIB: u64 = 256;

/// Of what a program says of its failure, at most.
const REASON_LETTERS: usize = 160;

pub type Result<T> = std::result::Result<T, String>;

/// What one run gave.
pub struct Turn {
    /// In the contest's unit.
    pub value: f64,
    /// Seconds of processor time for each GB, of receiver and sender.
    pub cpu: Option<[f64; 2]>,
}

impl From<f64> for Turn {
    fn from(value: f64) -> Self {
        Turn { value, cpu: None }
    }
}

/// Takes turns with others.
pub struct Contestant<'a> {
    pub name: String,
    pub kind: Kind,
    /// As the report shows it.
    pub command: String,
    pub run: Box<dyn Fn() -> Result<Turn> + 'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(kind: Kind, name: &str, command: &str, run: impl Fn() -> Result<f64> + 'a) -> Self {
        let run = Box::new(move || run().map(Turn::from));
        Contestant { name: name.to_owned(), kind, command: command.to_owned(), run }
    }
}

/// One line of the table.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub target: String,
    pub measured: String,
    pub verdict: String,
}

impl Row {
    pub fn broken(name: &str, error: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: reason(error), verdict: "FAIL: not measured".into() }
    }

    /// `ours` against `theirs`, both rates, round by round.
    pub fn ratio(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        let ratio = Spread::of(&ratios);
        let mut verdict = verdict(ratio, target, ratio.median >= target);
        if ratio.contains(1.0) {
            verdict += "; difference not shown";
        }
        Row { name: name.into(), target: format!(">= {target:.2} x"), measured: format!("{ratio} x"), verdict }
    }

    /// `ours` at most `target` times `theirs`, both times, round by round.
    pub fn at_most(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        Row::limit(name, target, "x", &ratios)
    }

    /// `ours` at least `target` times as fast as `theirs`, both times, round by round.
    pub fn faster(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        Row::ratio(name, target, theirs, ours)
    }

    /// The median of `values` at least `least`.
    pub fn at_least(name: &str, least: f64, unit: &str, values: &[f64]) -> Self {
        let spread = Spread::of(values);
        Row {
            name: name.into(),
            target: format!(">= {least:.2} {unit}"),
            measured: format!("{spread} {unit}"),
            verdict: verdict(spread, least, spread.median >= least),
        }
    }

    /// The median of `values` at most `limit`.
    pub fn limit(name: &str, limit: f64, unit: &str, values: &[f64]) -> Self {
        let spread = Spread::of(values);
        Row {
            name: name.into(),
            target: format!("<= {limit:.2} {unit}"),
            measured: format!("{spread} {unit}"),
            verdict: verdict(spread, limit, spread.median <= limit),
        }
    }

    /// A figure without a target.
    pub fn for_the_record(mut self) -> Self {
        (self.target, self.verdict) = ("(no target)".into(), "for the record".into());
        self
    }

    /// A peer that is not here, or does not work here.
    pub fn absent(name: &str, why: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: why.into(), verdict: "NOT MEASURED".into() }
    }
}

/// Median and quartiles.
#[derive(Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let place = quantile * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Spread { low: at(0.25), median: at(0.5), high: at(0.75) }
    }

    fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.median, self.low, self.high)
    }
}

pub fn quick() -> bool {
    std::env::var_os("QUICK").is_some()
}

pub fn runs() -> usize {
    let default = if quick() { QUICK_RUNS } else { RUNS_MIN };
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// What large files and streams hold.
pub fn size() -> u64 {
    let default = if quick() { QUICK_SIZE_MIB } else { SIZE_MIB };
    std::env::var("SIZE_MIB").ok().and_then(|size| size.parse().ok()).unwrap_or(default) << 20
}

/// The seconds that a command takes, which must succeed.
pub fn timed(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let ended = Running::start(command)?.done()?;
    Ok((ended.at - start).as_secs_f64())
}

/// Runs contestants in turns at what `title` says, prints their figures and records them.
pub fn contest(row: &str, title: &str, unit: &str, contestants: &[Contestant<'_>], rounds: usize) -> Result<Contest> {
    println!("\n{title}; 1 + {rounds} rounds");
    let busy = busy();
    let (entries, absent) = turns(contestants, rounds)?;
    for entry in &entries {
        entry.print(unit);
    }
    let contest = Contest {
        row: row.into(),
        place: "here".into(),
        title: title.into(),
        unit: unit.into(),
        across: None,
        busy,
        entries,
        absent,
    };
    record::add(&contest);
    Ok(contest)
}

/// The share of the processors that others have, with a warning if it is large.
pub fn busy() -> f64 {
    let busy = record::busy();
    if busy > BUSY_MAX {
        println!("WARNING: others have {:.0} % of this machine: what follows is worth that much less", busy * 100.0);
    }
    busy
}

type Turns = (Vec<Entry>, Vec<(String, String)>);

/// A round that does not count, then `rounds` that do. A peer that fails in any is left out, and reported with the reason;
/// no other contestant may fail.
pub fn turns(contestants: &[Contestant<'_>], rounds: usize) -> Result<Turns> {
    let begin = |contestant: &Contestant<'_>| {
        let Contestant { name, kind, command, .. } = contestant;
        let (name, command) = (name.clone(), command.clone());
        Ok(Entry { name, kind: *kind, command, at: None, values: Vec::new(), cpu: Vec::new() })
    };
    let mut entries: Vec<Result<Entry>> = contestants.iter().map(begin).collect();
    for round in 0..=rounds {
        // Each round begins with another one, so that nobody always comes behind the same.
        for turn in 0..contestants.len() {
            let at = (turn + round) % contestants.len();
            let (contestant, slot) = (&contestants[at], &mut entries[at]);
            let Ok(entry) = slot else { continue };
            let start = Instant::now();
            let turn = (contestant.run)();
            if std::env::var_os("RD_BENCH_VERBOSE").is_some() {
                println!("    round {round}: {}, {:.1} s", contestant.name, start.elapsed().as_secs_f64());
            }
            match turn {
                Ok(_) if round == 0 => {}
                Ok(turn) => {
                    entry.values.push(turn.value);
                    entry.cpu.extend(turn.cpu);
                }
                Err(error) if contestant.kind == Kind::Ours => return Err(format!("{}: {error}", contestant.name)),
                Err(error) => {
                    let why = reason(&error);
                    println!("    {:<42} NOT MEASURED: {why}", contestant.name);
                    *slot = Err(why);
                }
            }
        }
    }
    let (mut taken, mut absent) = (Vec::new(), Vec::new());
    for (contestant, entry) in contestants.iter().zip(entries) {
        match entry {
            Ok(entry) => taken.push(entry),
            Err(why) => absent.push((contestant.name.clone(), why)),
        }
    }
    Ok((taken, absent))
}

/// The last line that a program prints, which is why it failed; without the path of the project on this machine.
fn reason(error: &str) -> String {
    let last = error.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").trim();
    last.replace(&record::root().display().to_string(), ".").chars().take(REASON_LETTERS).collect()
}

impl Entry {
    pub fn print(&self, unit: &str) {
        print!("    {:<42} {} {unit}", self.name, Spread::of(&self.values));
        if self.cpu.is_empty() {
            println!();
        } else {
            let ends = [0, 1].map(|end| self.cpu.iter().map(|ends| ends[end]).collect::<Vec<f64>>());
            let [receiver, sender] = ends.map(|values| Spread::of(&values).median);
            println!(", processors {receiver:.3} + {sender:.3} s/GB");
        }
    }
}

/// Whether a median meets its target, where the spread allows a verdict.
fn verdict(spread: Spread, target: f64, holds: bool) -> String {
    match (spread.contains(target), holds) {
        (true, _) => "NOT SHOWN: target within the spread",
        (false, true) => "PASS",
        (false, false) => "FAIL",
    }
    .into()
}

/// Whether something holds that is counted, not measured.
pub fn fact(holds: bool) -> String {
    if holds { "PASS".into() } else { "FAIL".into() }
}

pub fn bin_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os("RD_BENCH_BIN") {
        return directory.into();
    }
    // target/release/deps/bench-… → target/release
    let myself = std::env::current_exe().unwrap_or_default();
    myself.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned()
}

pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

pub fn text(error: io::Error) -> String {
    error.to_string()
}
