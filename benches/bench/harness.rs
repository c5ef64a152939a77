//! The methods that all rows share: turns, medians, verdicts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use crate::place::Scratch;
pub use crate::process::{Memory, READY_LIMIT, Running, free_port, listens, wait_listening, wait_until};
use crate::record::{self, BUSY_MAX, Contest, Entry, Kind};

pub const GIB: u64 = 1 << 30;

/// Rounds and sizes of a run with verdicts, of a full run, and of a quick run.
const RUNS: usize = 5;
const SIZE_MIB: u64 = 1024;
const FULL_RUNS: usize = 9;
const FULL_SIZE_MIB: u64 = 4096;
const QUICK_RUNS: usize = 2;
const QUICK_SIZE_MIB: u64 = 256;

/// If a target lies within the spread, this many rounds are added at a time, up to this multiple of the usual number.
const MORE_RUNS: usize = 2;
const MORE_MAX: usize = 3;

/// Maximum time for added rounds, in seconds: of one contest, and of a whole run of the suite.
const MORE_S: f64 = 40.0;
const MORE_S_OF_ALL: f64 = 150.0;

/// The factor by which these times are longer in a full run.
const MORE_WHEN_FULL: f64 = 6.0;

/// Maximum number of characters kept of a program's error message.
const REASON_LETTERS: usize = 160;

pub type Result<T> = std::result::Result<T, String>;

/// The result of one run.
pub struct Turn {
    /// The value, in the contest's unit.
    pub value: f64,
    /// Seconds of processor time for each GB, of the receiver and the sender.
    pub cpu: Option<[f64; 2]>,
}

impl From<f64> for Turn {
    fn from(value: f64) -> Self {
        Turn { value, cpu: None }
    }
}

/// A program that takes turns with others.
pub struct Contestant<'a> {
    pub name: String,
    pub kind: Kind,
    /// The command as shown in the report.
    pub command: String,
    pub run: Box<dyn Fn() -> Result<Turn> + 'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(kind: Kind, name: &str, command: &str, run: impl Fn() -> Result<f64> + 'a) -> Self {
        let run = Box::new(move || run().map(Turn::from));
        Contestant { name: name.to_owned(), kind, command: command.to_owned(), run }
    }
}

/// A line of the table.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub target: String,
    pub measured: String,
    pub verdict: String,
}

impl Row {
    pub fn broken(name: &str, error: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: reason(error), verdict: BROKEN.into() }
    }

    /// Judges the ratio of `ours` to `theirs`, both rates, round by round.
    pub fn ratio(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        let ratio = Spread::of(&ratios);
        let mut verdict = verdict(ratio, target, ratio.median >= target);
        if ratio.contains(1.0) {
            verdict += "; difference not shown";
        }
        Row { name: name.into(), target: format!(">= {target:.2} x"), measured: format!("{ratio} x"), verdict }
    }

    /// Judges whether `ours` is at most `target` times `theirs`, both times, round by round.
    pub fn at_most(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
        Row::limit(name, target, "x", &ratios)
    }

    /// Judges whether `ours` is at least `target` times as fast as `theirs`, both times, round by round.
    pub fn faster(name: &str, target: f64, ours: &[f64], theirs: &[f64]) -> Self {
        Row::ratio(name, target, theirs, ours)
    }

    /// Judges whether the median of `values` is at least `least`.
    pub fn at_least(name: &str, least: f64, unit: &str, values: &[f64]) -> Self {
        let spread = Spread::of(values);
        Row {
            name: name.into(),
            target: format!(">= {least:.2} {unit}"),
            measured: format!("{spread} {unit}"),
            verdict: verdict(spread, least, spread.median >= least),
        }
    }

    /// Judges whether the median of `values` is at most `limit`.
    pub fn limit(name: &str, limit: f64, unit: &str, values: &[f64]) -> Self {
        let spread = Spread::of(values);
        Row {
            name: name.into(),
            target: format!("<= {limit:.2} {unit}"),
            measured: format!("{spread} {unit}"),
            verdict: verdict(spread, limit, spread.median <= limit),
        }
    }

    /// Turns the row into a figure without a target. A row without a figure remains one that was not measured.
    pub fn for_the_record(mut self) -> Self {
        self.target = NO_TARGET.into();
        if ![BROKEN, NOT_MEASURED].contains(&self.verdict.as_str()) {
            self.verdict = "for the record".into();
        }
        self
    }

    /// Whether the row misses its target, or its measurement failed.
    pub fn has_failed(&self) -> bool {
        self.verdict.starts_with("FAIL")
    }

    /// Whether the target lies within the spread.
    pub fn is_open(&self) -> bool {
        self.verdict.starts_with(OPEN)
    }

    /// Whether the row has a target, and this machine cannot measure it.
    pub fn is_unmeasured(&self) -> bool {
        self.verdict == NOT_MEASURED && self.target != NO_TARGET
    }

    /// Sort key by importance, the most important lowest: failures first, then open verdicts.
    pub fn rank(&self) -> usize {
        let order = ["FAIL", OPEN, NOT_MEASURED, "PASS"];
        order.iter().position(|begin| self.verdict.starts_with(begin)).unwrap_or(order.len())
    }

    /// Makes the row of a peer that is missing here, or does not work here.
    pub fn absent(name: &str, why: &str) -> Self {
        Row { name: name.into(), target: "-".into(), measured: why.into(), verdict: NOT_MEASURED.into() }
    }
}

/// Median and quartiles of some values.
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

pub fn full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// Returns the value for a quick run, for `make bench`, or for `make bench-full`.
pub fn by_kind<T>(quickly: T, usual: T, fully: T) -> T {
    if quick() {
        quickly
    } else if full() {
        fully
    } else {
        usual
    }
}

fn asked<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

pub fn runs() -> usize {
    asked("RUNS").unwrap_or(by_kind(QUICK_RUNS, RUNS, FULL_RUNS))
}

/// Returns the size of large files and streams, in bytes.
pub fn size() -> u64 {
    asked("SIZE_MIB").unwrap_or(by_kind(QUICK_SIZE_MIB, SIZE_MIB, FULL_SIZE_MIB)) << 20
}

/// Returns a part of this size, but at least half a GiB if the size is as large. Measurements of
/// very short runs are poor.
pub fn part_of_size(parts: u64) -> u64 {
    (size() / parts).max(size().min(GIB / 2))
}

/// Returns how many seconds a command takes, which must succeed.
pub fn timed(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let ended = Running::start(command)?.done()?;
    Ok((ended.at - start).as_secs_f64())
}

/// Numbers of rounds. The first rounds may fill caches and are not counted.
#[derive(Clone, Copy)]
pub struct Rounds {
    first: usize,
    counted: usize,
}

impl From<usize> for Rounds {
    fn from(counted: usize) -> Self {
        Rounds { first: 1, counted }
    }
}

impl Rounds {
    /// Rounds that all count, for transfers over a line held to a rate, where caches do not matter.
    pub fn all(counted: usize) -> Self {
        Rounds { first: 0, counted }
    }
}

impl std::fmt::Display for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.first, self.counted) {
            (0, 1) => write!(f, "1 round"),
            (0, counted) => write!(f, "{counted} rounds"),
            (first, counted) => write!(f, "{first} + {counted} rounds"),
        }
    }
}

/// Runs the contestants in turns at the work that `title` describes. Prints and records their figures.
pub fn contest(
    row: &str,
    title: &str,
    unit: &str,
    contestants: &[Contestant<'_>],
    rounds: impl Into<Rounds>,
) -> Result<Contest> {
    played(row, title, unit, contestants, rounds.into(), &|_| Vec::new()).map(|(found, _)| found)
}

/// Like [`contest`], but returns the verdicts of `judge`. Adds rounds while a target lies within the spread.
pub fn judged(
    row: &str,
    title: &str,
    unit: &str,
    contestants: &[Contestant<'_>],
    rounds: impl Into<Rounds>,
    judge: impl Fn(&Contest) -> Vec<Row>,
) -> Result<Vec<Row>> {
    played(row, title, unit, contestants, rounds.into(), &judge).map(|(_, rows)| rows)
}

fn played(
    row: &str,
    title: &str,
    unit: &str,
    contestants: &[Contestant<'_>],
    rounds: Rounds,
    judge: &dyn Fn(&Contest) -> Vec<Row>,
) -> Result<(Contest, Vec<Row>)> {
    println!("\n{title}; {rounds}");
    let mut found = Contest {
        row: row.into(),
        place: "here".into(),
        title: title.into(),
        unit: unit.into(),
        across: None,
        busy: busy(),
        entries: Vec::new(),
        absent: Vec::new(),
    };
    let mut turns = Turns::new(contestants, rounds.first);
    let start = Instant::now();
    turns.play(rounds.first + rounds.counted)?;
    let seconds = start.elapsed().as_secs_f64() / (rounds.first + rounds.counted) as f64 * MORE_RUNS as f64;
    (found.entries, found.absent) = turns.found();
    let mut rows = judge(&found);
    let start = Instant::now();
    let mut more = 0;
    while rows.iter().any(Row::is_open)
        && rounds.counted + more + MORE_RUNS <= MORE_MAX * rounds.counted
        && may_take_longer(start.elapsed().as_secs_f64(), seconds)
    {
        turns.play(MORE_RUNS)?;
        more += MORE_RUNS;
        (found.entries, found.absent) = turns.found();
        rows = judge(&found);
    }
    if more > 0 {
        println!("  a target lay within the spread: {more} rounds more");
    }
    for entry in &found.entries {
        entry.print(unit);
    }
    record::add(&found);
    Ok((found, rows))
}

/// Whether a contest that has already taken `taken` seconds for added rounds may take `seconds` more. The time granted
/// is taken from that of other contests.
fn may_take_longer(taken: f64, seconds: f64) -> bool {
    static TAKEN_BY_ALL: Mutex<f64> = Mutex::new(0.0);
    if quick() || std::env::var_os("RUNS").is_some() {
        return false;
    }
    let times = if full() { MORE_WHEN_FULL } else { 1.0 };
    let mut by_all = TAKEN_BY_ALL.lock().expect("no panic");
    let may = taken + seconds <= MORE_S * times && *by_all + seconds <= MORE_S_OF_ALL * times;
    if may {
        *by_all += seconds;
    }
    may
}

/// Returns the share of the processors that other processes use, with a warning if the share is large.
pub fn busy() -> f64 {
    let busy = record::busy();
    if busy > BUSY_MAX {
        println!("WARNING: others have {:.0} % of this machine: what follows is worth that much less", busy * 100.0);
    }
    busy
}

/// The entries of contestants that took part, and the names of those that could not, with the reasons.
type Found = (Vec<Entry>, Vec<(String, String)>);

/// Runs a round that does not count, then `rounds` that do.
pub fn turns(contestants: &[Contestant<'_>], rounds: usize) -> Result<Found> {
    let mut turns = Turns::new(contestants, 1);
    turns.play(1 + rounds)?;
    Ok(turns.found())
}

/// Rounds, of which the first may not count. If one of ours fails in any round, the contest fails. Any other contestant
/// that fails is left out, and reported with the reason.
struct Turns<'a> {
    contestants: &'a [Contestant<'a>],
    slots: Vec<Result<Entry>>,
    /// Number of first rounds that do not count.
    first: usize,
    played: usize,
}

impl<'a> Turns<'a> {
    fn new(contestants: &'a [Contestant<'a>], first: usize) -> Self {
        let begin = |contestant: &Contestant<'_>| {
            let Contestant { name, kind, command, .. } = contestant;
            let (name, command) = (name.clone(), command.clone());
            Ok(Entry { name, kind: *kind, command, at: None, values: Vec::new(), cpu: Vec::new() })
        };
        Turns { contestants, slots: contestants.iter().map(begin).collect(), first, played: 0 }
    }

    fn play(&mut self, rounds: usize) -> Result<()> {
        for round in self.played..self.played + rounds {
            // Each round begins with another contestant, so that no contestant always follows the same one.
            for turn in 0..self.contestants.len() {
                self.turn(round, (turn + round) % self.contestants.len())?;
            }
        }
        self.played += rounds;
        Ok(())
    }

    fn turn(&mut self, round: usize, at: usize) -> Result<()> {
        let (contestant, slot) = (&self.contestants[at], &mut self.slots[at]);
        let Ok(entry) = slot else { return Ok(()) };
        let start = Instant::now();
        let turn = (contestant.run)();
        if std::env::var_os("RD_BENCH_VERBOSE").is_some() {
            println!("    round {round}: {}, {:.1} s", contestant.name, start.elapsed().as_secs_f64());
        }
        match turn {
            Ok(_) if round < self.first => {}
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
        Ok(())
    }

    fn found(&self) -> Found {
        let (mut taken, mut absent) = (Vec::new(), Vec::new());
        for (contestant, slot) in self.contestants.iter().zip(&self.slots) {
            match slot {
                Ok(entry) => taken.push(entry.clone()),
                Err(why) => absent.push((contestant.name.clone(), why.clone())),
            }
        }
        (taken, absent)
    }
}

/// Returns the last line that a program printed, which tells why it failed, without the path of the
/// project on this machine.
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

/// Beginning of a verdict that the spread leaves open.
const OPEN: &str = "NOT SHOWN";

/// Verdict of a row whose measurement failed.
const BROKEN: &str = "FAIL: not measured";

/// Target of a row for the record.
const NO_TARGET: &str = "(no target)";

/// Verdict of a row that this machine cannot measure.
pub const NOT_MEASURED: &str = "NOT MEASURED";

/// Returns whether a median meets its target, if the spread allows a verdict.
fn verdict(spread: Spread, target: f64, holds: bool) -> String {
    match (spread.contains(target), holds) {
        (true, _) => format!("{OPEN}: target within the spread"),
        (false, true) => "PASS".into(),
        (false, false) => "FAIL".into(),
    }
}

/// Returns how many milliseconds longer `ours` took than `other` in each round. Both are in seconds.
pub fn milliseconds_beyond(ours: &[f64], other: &[f64]) -> Vec<f64> {
    ours.iter().zip(other).map(|(ours, other)| (ours - other) * 1e3).collect()
}

/// Returns the verdict on a condition that is counted, not measured.
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
