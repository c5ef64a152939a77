//! One run: its actions, its outcome, and its violations.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::rig::lab::{Lab, Marked, marked};
use crate::rig::{Ended, Process, Random};

/// Parts of lines that do not say how a session ended: notices about lanes during the session, and about what is left.
const NOTICES: [&str; 7] = [
    "; trying to reconnect for ",
    "; resuming",
    "waiting on port ",
    " data goes through ",
    "interrupted; ",
    "not finished; ",
    " more lines like these",
];

/// Beginning of the receiver's last line if no sender came. Before it, the receiver reports each sender that failed
/// before the transfer began.
const NOBODY_CAME: &str = "rdrecv: no sender ";

/// What the shell of a stage prints about a killed command.
const SHELLS_WORDS: [&str; 2] = ["Terminated", "Killed"];

/// Maximum length of standard error that a violation prints.
const STDERR_SHOWN: usize = 4000;

/// Maximum number of faults that a violation prints.
const DAMAGE_SHOWN: usize = 20;

/// Maximum time for a command to end on a busy machine: many times its own longest wait.
const DEADLINE: Duration = Duration::from_secs(150);

/// Maximum time for processes started by a command to end after it.
const GONE: Duration = Duration::from_secs(60);

pub struct Story {
    pub seed: u64,
    pub random: Random,
    pub lab: Lab,
    /// Whether anything was done to disturb the run.
    pub disturbed: bool,
    /// Short description of how the run ended, by which runs are counted.
    pub outcome: String,
    told: Vec<String>,
    violations: Vec<String>,
}

impl Story {
    pub fn new(seed: u64) -> Self {
        let (random, lab) = (Random::new(seed), Lab::new());
        let outcome = "no end".to_owned();
        Self { seed, random, lab, disturbed: false, outcome, told: Vec::new(), violations: Vec::new() }
    }

    /// Adds a line to the account of the run.
    pub fn tell(&mut self, what: impl Display) {
        self.told.push(what.to_string());
    }

    pub fn ensure(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }

    /// Records the violation that a check returns.
    pub fn check(&mut self, result: Result<(), String>) {
        self.violations.extend(result.err());
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize]
    }

    /// Adds the faults that the proxies have recorded in their log.
    pub fn tell_damage(&mut self, log: &Path) {
        let text = fs::read_to_string(log).unwrap_or_default();
        self.disturbed |= !text.is_empty();
        self.told.extend(text.lines().take(DAMAGE_SHOWN).map(|line| format!("done: {line}")));
        let more = text.lines().count().saturating_sub(DAMAGE_SHOWN);
        self.ensure(more < 1000, || format!("{more} faults more: connections without end"));
    }

    /// Checks that an end has one of these exit codes. Unless the code is 0 or stands for a signal, the end must have
    /// given the cause in one line of its own. Nothing in its output may look like a crash.
    pub fn ended(&mut self, program: &str, ended: &Ended, codes: &[i32]) {
        let Ended { code, stderr, after, .. } = ended;
        let shown: String = stderr.chars().take(STDERR_SHOWN).collect();
        self.tell(format_args!("{program}: exit {code} after {after:?}; it said:\n{shown}"));
        self.ensure(codes.contains(code), || format!("{program}: exit code {code} is none of {codes:?}"));
        for crash in ["panicked", "RUST_BACKTRACE", "Segmentation", "core dumped"] {
            self.ensure(!stderr.contains(crash), || format!("{program} crashed"));
        }
        let prefix = format!("{program}: ");
        let (own, foreign): (Vec<&str>, Vec<&str>) = stderr.lines().partition(|line| line.starts_with(&prefix));
        let foreign = foreign.into_iter().find(|line| !SHELLS_WORDS.iter().any(|words| line.ends_with(words)));
        self.ensure(foreign.is_none(), || format!("{program} did not say {foreign:?} as its own"));
        let causes = own.iter().filter(|line| !NOTICES.iter().any(|notice| line.contains(notice))).count();
        let most = if stderr.contains(NOBODY_CAME) { 3 } else { 1 };
        let allowed = if *code == 0 { 0..=0 } else { usize::from(*code < 128)..=most };
        self.ensure(allowed.contains(&causes), || format!("{program}: {causes} lines with the cause of exit {code}"));
    }

    /// Waits for a command to end. If time runs out, the state of all processes of the run is added to the account.
    pub fn wait(&mut self, process: &mut Process) -> Ended {
        let began = Instant::now();
        let until = began + DEADLINE;
        while process.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if process.is_running() {
            for process in marked(self.lab.0.path()) {
                let threads = fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten();
                let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
                let all: Vec<String> = threads
                    .map(|thread| {
                        format!("{} in {}", read(thread.path().join("comm")), read(thread.path().join("wchan")))
                    })
                    .collect();
                self.tell(format_args!("{} {}: {}", process.pid, process.arguments, all.join(", ")));
            }
        }
        let ended = process.wait_for(Duration::ZERO);
        Ended { after: began.elapsed(), ..ended }
    }

    /// Waits until no process of this run is left, and kills any that remain.
    pub fn nobody_is_left(&mut self) {
        let until = Instant::now() + GONE;
        let mut left = marked(self.lab.0.path());
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            left = marked(self.lab.0.path());
        }
        self.ensure(left.is_empty(), || format!("processes are left: {left:?}"));
        end(&left);
    }

    /// Returns the account if there were violations. The directory is kept then.
    pub fn close(self, panicked: Option<String>) -> Option<String> {
        end(&marked(self.lab.0.path()));
        let mut violations = self.violations;
        violations.extend(panicked);
        if violations.is_empty() {
            return None;
        }
        let (seed, kept) = (self.seed, self.lab.0.keep());
        let lines = violations.iter().map(|line| format!("VIOLATION: {line}"));
        let account: Vec<String> = lines.chain(self.told).collect();
        Some(format!("RD_SEED={seed}, kept: {}\n{}", kept.display(), account.join("\n")))
    }
}

fn end(processes: &[Marked]) {
    for process in processes {
        let pid = rustix::process::Pid::from_raw(process.pid as i32).expect("not 0");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
