//! The results of the suite: the table in the terminal, and under build/bench a record of each section of the pages
//! with every round of every contestant (rows/NAME.json), report.md and drawings.
//!
//! A run replaces the records of the rows that it measures and leaves the others, so that runs of some rows add up.
//! Each record states when and of what it was measured. Contests are noted here as they end, and are recorded with
//! their verdicts when the row is done, so that a stopped suite leaves the results that it had. The guest writes
//! separate records, which are added to these. Results of a quick run have a separate place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::field;
use crate::harness::*;
use crate::report;

/// Maximum share of the processors that other work may use. Beyond that, figures are worthless.
pub const BUSY_MAX: f64 = 0.1;

/// The results of one run for one section of the pages.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Record {
    pub section: String,
    /// The version and commit that were measured.
    pub version: String,
    pub began: String,
    /// The command that repeats the run.
    pub command: String,
    pub quick: bool,
    /// The congestion control of connections over loopback.
    pub control: String,
    /// Duration of the measurement.
    pub seconds: f64,
    /// The machine: a list of names and values.
    pub machine: Vec<(String, String)>,
    pub contests: Vec<Contest>,
    pub rows: Vec<Row>,
}

/// A run of the suite.
pub struct Run {
    /// The common beginning of the run's records.
    pub head: Record,
    pub records: Vec<Record>,
    /// When the current measurement began.
    since: Instant,
}

/// Contestants that took turns at the same work.
#[derive(Clone, Serialize, Deserialize)]
pub struct Contest {
    /// The row's name for `ONLY`.
    pub row: String,
    /// `here`, or the guest's device.
    pub place: String,
    pub title: String,
    pub unit: String,
    /// The quantity of [`Entry::at`].
    pub across: Option<String>,
    /// The share of the processors that other processes used just before.
    pub busy: f64,
    pub entries: Vec<Entry>,
    /// Contestants that could not take part, and why.
    pub absent: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Ours,
    Peer,
    /// Not a peer, but a bound for all contestants.
    Limit,
}

/// A contestant, with a value for each round.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub kind: Kind,
    /// The commands, with `{place-holders}`, receiver first.
    pub command: String,
    /// The contestant's position across a sweep.
    pub at: Option<f64>,
    pub values: Vec<f64>,
    /// Seconds of processor time for each GB, of the receiver and the sender; empty if not measured separately.
    pub cpu: Vec<[f64; 2]>,
}

static CONTESTS: Mutex<Vec<Contest>> = Mutex::new(Vec::new());

/// Notes a contest, which is recorded with the next row.
pub fn add(contest: &Contest) {
    CONTESTS.lock().expect("no panic").push(contest.clone());
}

impl Run {
    pub fn begin(command: String, quick: bool) -> Self {
        let commit = said("git", &["describe", "--always", "--dirty"]);
        let head = Record {
            version: format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
            began: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            command,
            quick,
            control: field::condition(),
            machine: machine(),
            ..Record::default()
        };
        Run { head, records: Vec::new(), since: Instant::now() }
    }

    /// Records the verdicts of a row, with the contests noted meanwhile.
    pub fn found(&mut self, rows: Vec<Row>) {
        let contests = std::mem::take(&mut *CONTESTS.lock().expect("no panic"));
        self.keep(contests, rows);
    }

    fn keep(&mut self, contests: Vec<Contest>, rows: Vec<Row>) {
        let mut changed: Vec<usize> = Vec::new();
        let mut place = |records: &mut Vec<Record>, section: &str| {
            let found = records.iter().position(|record| record.section == section);
            let at = found.unwrap_or_else(|| {
                records.push(Record { section: section.to_owned(), ..self.head.clone() });
                records.len() - 1
            });
            if !changed.contains(&at) {
                changed.push(at);
            }
            at
        };
        for contest in contests {
            let at = place(&mut self.records, &contest.row);
            self.records[at].contests.push(contest);
        }
        for row in rows {
            let at = place(&mut self.records, report::section_of(&row));
            self.records[at].rows.push(row);
        }
        if let Some(first) = changed.first() {
            self.records[*first].seconds += self.since.elapsed().as_secs_f64();
        }
        self.since = Instant::now();
        let written = changed.iter().try_for_each(|at| self.records[*at].write(&directory()));
        if let Err(error) = written.and_then(|()| report::write(&Record::read_all(&directory())?, &directory())) {
            eprintln!("bench: cannot write results: {error}");
        }
    }

    /// Adds the records that a guest has written into `directory`.
    pub fn merge(&mut self, directory: &Path, device: &str) -> Result<()> {
        for record in Record::read_all(directory)? {
            let contests = record.contests.into_iter();
            let contests = contests.map(|contest| Contest { place: device.to_owned(), ..contest }).collect();
            self.keep(contests, record.rows);
        }
        Ok(())
    }

    pub fn rows(&self) -> Vec<&Row> {
        self.records.iter().flat_map(|record| &record.rows).collect()
    }
}

/// Returns the directory of the records in a directory of results.
pub fn records_in(directory: &Path) -> PathBuf {
    directory.join("rows")
}

impl Record {
    /// Returns all records in a directory of results, in the order of the pages.
    pub fn read_all(directory: &Path) -> Result<Vec<Self>> {
        let directory = records_in(directory);
        let at = |path: &Path, error: String| format!("{}: {error}", path.display());
        let mut records: Vec<Record> = Vec::new();
        for entry in fs::read_dir(&directory).map_err(|error| at(&directory, text(error)))? {
            let path = entry.map_err(text)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let json = fs::read(&path).map_err(|error| at(&path, text(error)))?;
                records.push(serde_json::from_slice(&json).map_err(|error| at(&path, error.to_string()))?);
            }
        }
        records.sort_by_key(|record| (report::place_of(&record.section), record.section.clone()));
        Ok(records)
    }

    fn write(&self, directory: &Path) -> Result<()> {
        let directory = records_in(directory);
        fs::create_dir_all(&directory).map_err(text)?;
        let json = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        // Renamed into place, so that a reader sees a whole record even if the suite is stopped now.
        let part = directory.join(format!("{}.part", self.section));
        fs::write(&part, json)
            .and_then(|()| fs::rename(&part, directory.join(format!("{}.json", self.section))))
            .map_err(text)
    }
}

impl Contest {
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Applies `measure` to the entries of two contestants. If one of them is missing, returns a row that tells why.
    pub fn compare(&self, row: &str, [ours, theirs]: [&str; 2], measure: impl Fn(&Entry, &Entry) -> Row) -> Row {
        match (self.entry(ours), self.entry(theirs)) {
            (Some(ours), Some(theirs)) => measure(ours, theirs),
            (found, _) => self.missing(row, if found.is_some() { theirs } else { ours }),
        }
    }

    pub fn missing(&self, row: &str, name: &str) -> Row {
        let why = self.absent.iter().find(|(absent, _)| absent == name).map_or("was not asked for", |(_, why)| why);
        Row::absent(row, &format!("{name}: {why}"))
    }

    /// Returns the entry among `names` with the highest median.
    pub fn highest(&self, names: &[&str]) -> Option<&Entry> {
        let median = |entry: &&Entry| Spread::of(&entry.values).median;
        names.iter().filter_map(|name| self.entry(name)).max_by(|one, other| median(one).total_cmp(&median(other)))
    }
}

impl Entry {
    /// Returns the processor time of both ends together, round by round.
    pub fn cpu_of_both(&self) -> Vec<f64> {
        self.cpu.iter().map(|ends| ends[0] + ends[1]).collect()
    }
}

/// Returns the directory of results. The guest leaves its results where its host finds them.
pub fn directory() -> PathBuf {
    let usual = || root().join(if quick() { "build/bench/quick" } else { "build/bench" });
    std::env::var_os("GUEST_OUT").map_or_else(usual, PathBuf::from)
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the share of the processors in use. To be called while nothing of the suite runs.
pub fn busy() -> f64 {
    let ticks = || -> Option<(f64, f64)> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let all: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
        Some((all.iter().take(8).sum(), all.get(3)? + all.get(4)?))
    };
    let before = ticks();
    thread::sleep(Duration::from_millis(500));
    match before.zip(ticks()) {
        Some((before, after)) if after.0 > before.0 => 1.0 - (after.1 - before.1) / (after.0 - before.0),
        _ => 0.0,
    }
}

fn machine() -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |file: &str, name: &str| {
        let lines = file.lines().find_map(|line| line.strip_prefix(name));
        lines.unwrap_or("?").trim_matches([' ', '\t', ':']).to_owned()
    };
    let cpu = read("/proc/cpuinfo");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let gib = memory.split(' ').next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / f64::from(1 << 20);
    let cache = |index: u32| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).trim().to_owned();
    let clean = |text: String| text.lines().next().unwrap_or("").trim().to_owned();
    let mut facts = vec![
        (
            "processors",
            format!("{} of {}", thread::available_parallelism().map_or(0, usize::from), field(&cpu, "model name")),
        ),
        ("caches of one", format!("L1d {}, L2 {}, L3 {}", cache(0), cache(2), cache(3))),
        ("virtualisation", clean(said("systemd-detect-virt", &[]))),
        ("memory", format!("{gib:.1} GiB")),
        ("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
        ("TCP congestion control here", read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned()),
        ("distribution", field(&read("/etc/os-release"), "PRETTY_NAME=").replace('"', "")),
        (
            "file system of build/",
            said("df", &["--output=fstype,source", &root().display().to_string()])
                .lines()
                .last()
                .unwrap_or("?")
                .to_owned(),
        ),
    ];
    for (name, program, arguments) in [
        ("socat", "socat", &["-V"][..]),
        ("mbuffer", "mbuffer", &["--version"]),
        ("nc", "dpkg-query", &["-W", "-f", "${Package} ${Version}", "netcat-openbsd"]),
        ("iperf3", "iperf3", &["--version"]),
        ("rsync", "rsync", &["--version"]),
        ("rclone", "rclone", &["--version"]),
        ("lz4", "dpkg-query", &["-W", "-f", "${Version}", "lz4"]),
        ("ssh", "ssh", &["-V"]),
        ("perftest", "dpkg-query", &["-W", "-f", "${Version}", "perftest"]),
    ] {
        let output = said(program, arguments);
        let line = output.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())).unwrap_or("not here");
        facts.push((name, line.trim().to_owned()));
    }
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the output of a program.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
