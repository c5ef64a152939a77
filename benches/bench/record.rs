//! What has been measured, as it leaves the suite: the table in the terminal, and under build/bench results.json with
//! every round of every contestant, report.md and drawings.
//!
//! Contests are recorded here as they end, and verdicts when a row is done; so a suite that is stopped leaves what it
//! had. The guest writes a record of its own, which is added to this one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::*;
use crate::report;

/// More of the processors than this busy with other work, and figures are worth nothing.
pub const BUSY_MAX: f64 = 0.1;

/// All of one run of the suite.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Record {
    /// The version and commit that were measured.
    pub version: String,
    pub began: String,
    /// The command that repeats it.
    pub command: String,
    pub quick: bool,
    /// What it ran on: a name and a value each.
    pub machine: Vec<(String, String)>,
    pub contests: Vec<Contest>,
    pub rows: Vec<Row>,
}

/// Contestants that took turns at one thing.
#[derive(Clone, Serialize, Deserialize)]
pub struct Contest {
    /// What `ONLY` calls it.
    pub row: String,
    /// `here`, or the guest's device.
    pub place: String,
    pub title: String,
    pub unit: String,
    /// What [`Entry::at`] counts.
    pub across: Option<String>,
    /// The share of the processors that others had just before.
    pub busy: f64,
    pub entries: Vec<Entry>,
    /// Contestants that could not take part, and why.
    pub absent: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Ours,
    Peer,
    /// Not a peer: what bounds both.
    Limit,
}

/// One contestant, with a value for each round.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub kind: Kind,
    /// The commands, as `{place-holders}` have it, receiver first.
    pub command: String,
    /// Its place across a sweep.
    pub at: Option<f64>,
    pub values: Vec<f64>,
    /// Seconds of processor time for each GB, of receiver and sender; empty where they are not measured apart.
    pub cpu: Vec<[f64; 2]>,
}

static CONTESTS: Mutex<Vec<Contest>> = Mutex::new(Vec::new());

/// Records a contest.
pub fn add(contest: &Contest) {
    CONTESTS.lock().expect("no panic").push(contest.clone());
}

impl Record {
    pub fn begin(command: String, quick: bool) -> Self {
        let commit = said("git", &["describe", "--always", "--dirty"]);
        Record {
            version: format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
            began: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            command,
            quick,
            machine: machine(),
            ..Record::default()
        }
    }

    /// Adds what one row found, and writes all that there is.
    pub fn found(&mut self, rows: Vec<Row>) {
        self.contests.append(&mut CONTESTS.lock().expect("no panic"));
        self.rows.extend(rows);
        if let Err(error) = self.write(&directory()) {
            eprintln!("bench: cannot write results: {error}");
        }
    }

    /// Adds what a guest has written into `directory`.
    pub fn merge(&mut self, directory: &Path, device: &str) -> Result<()> {
        let guest = Record::read(directory)?;
        self.contests.extend(guest.contests.into_iter().map(|contest| Contest { place: device.to_owned(), ..contest }));
        self.found(guest.rows);
        Ok(())
    }

    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("results.json");
        let json = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_slice(&json).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).map_err(text)?;
        let json = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        // Renamed: a reader sees a whole one, also if the suite is stopped now.
        let part = directory.join("results.json.part");
        fs::write(&part, json).and_then(|()| fs::rename(&part, directory.join("results.json"))).map_err(text)?;
        report::write(self, directory)
    }
}

impl Contest {
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// `measure` of two contestants' rounds; where one of them is missing, a row that says why.
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

    /// The one of `names` with the highest median.
    pub fn highest(&self, names: &[&str]) -> Option<&Entry> {
        let median = |entry: &&Entry| Spread::of(&entry.values).median;
        names.iter().filter_map(|name| self.entry(name)).max_by(|one, other| median(one).total_cmp(&median(other)))
    }
}

impl Entry {
    /// Both ends' processor time together, round by round.
    pub fn cpu_of_both(&self) -> Vec<f64> {
        self.cpu.iter().map(|ends| ends[0] + ends[1]).collect()
    }
}

/// Where results go; the guest leaves them where its host finds them.
pub fn directory() -> PathBuf {
    std::env::var_os("GUEST_OUT").map_or_else(|| root().join("build/bench"), PathBuf::from)
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The share of the processors that is busy, now that nothing of ours runs.
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
        ("TCP congestion control", read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned()),
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
        ("ssh", "ssh", &["-V"]),
        ("perftest", "dpkg-query", &["-W", "-f", "${Version}", "perftest"]),
    ] {
        let output = said(program, arguments);
        let line = output.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())).unwrap_or("not here");
        facts.push((name, line.trim().to_owned()));
    }
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The output of a program.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
