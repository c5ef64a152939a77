//! That nothing of a stage is left: a small process beside it, which outlives whoever started both.
//!
//! The guard leads the process group that the stage's command is started in, so the group's number stays the stage's for
//! as long as there is anything to end. It waits for the end of its standard input, which comes when its keeper closes
//! it or dies, however that dies. Then it ends the group: SIGTERM, and after [`GRACE`] SIGKILL. Where the command has
//! ended well before, what it has left running is first given [`LINGER_MAX`]: as with `tee >(gzip >copy)`, it may
//! have something to finish.
//!
//! At a terminal, a command that asks for something there must be in the terminal's own process group. Such a stage is
//! known by a mark in its environment instead.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

/// The word by which a program is told to be a guard.
pub const WORD: &str = "--guard";

/// The variable with the mark of a stage that shares the caller's process group.
const MARK: &str = "RDMA_PIPE_STAGE";

/// How long what is asked to end may take.
const GRACE: Duration = Duration::from_secs(1);

/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long what a command has left running may go on when the pipeline is over. With [`GRACE`] and the time that an agent
/// takes to notice, nothing is left after five seconds.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// What tells a guard that the command has ended well.
const ENDED: u8 = b'e';

/// A guard, held by its keeper. Dropping it ends what it guards.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    stdin: Option<ChildStdin>,
    scope: Scope,
    /// The command has ended; whatever is left needs nobody to wait for it.
    lingers: bool,
}

/// Which processes are a stage's.
#[derive(Clone, Debug)]
enum Scope {
    Group(Pid),
    Marked(String),
}

impl Guard {
    /// Starts a guard: `program` is one of ours. With a mark, what is guarded is known by that.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn start(program: &Path, mark: Option<String>) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .arg(WORD)
            .args(&mark)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let scope = match mark {
            Some(mark) => Scope::Marked(mark),
            None => Scope::Group(Pid::from_child(&child)),
        };
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, scope, lingers: false })
    }

    /// Makes a command, which has not been started, part of what is guarded.
    pub fn guards(&self, command: &mut Command) {
        match &self.scope {
            Scope::Group(group) => command.process_group(group.as_raw_nonzero().get()),
            Scope::Marked(mark) => command.env(MARK, mark),
        };
    }

    /// Sends a signal to all of the stage.
    pub fn signal(&self, signal: Signal) {
        self.scope.signal(signal);
    }

    /// The command has ended well: what it has left running is given some time when the guard is dropped.
    pub fn ended(&mut self) {
        use std::io::Write;
        self.lingers = true;
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(&[ENDED]);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.lingers {
            return;
        }
        let until = Instant::now() + GRACE + GRACE / 2;
        // The stage is to be gone when its keeper says so.
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A guard of single processes, such as launchers, which must stay in the group of a terminal. Those that are left when
/// this process ends, or the warden is dropped, are ended.
#[derive(Debug)]
pub struct Warden {
    /// Its end is what the warden waits for. Nobody waits for the warden: it outlives whoever started it.
    stdin: ChildStdin,
}

/// The word by which a guard is told that it is a warden.
const WARDEN: &str = "processes";

impl Warden {
    /// Starts one: `program` is one of ours.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn start(program: &Path) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .args([WORD, WARDEN])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let stdin = child.stdin.take().expect("a pipe was asked for");
        Ok(Self { stdin })
    }

    /// Watches over one more process.
    pub fn watch(&mut self, process: u32) {
        use std::io::Write;
        let _ = self.stdin.write_all(format!("{process}\n").as_bytes());
    }
}

/// When a process began, in ticks since the system did: with its number, that names it for good.
fn began(process: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// A warden's own process: the numbers of processes, a line each.
fn ward() {
    let mut known: Vec<(Pid, u64)> = Vec::new();
    for line in std::io::stdin().lines() {
        let Some(process) = line.ok().and_then(|line| Pid::from_raw(line.parse().ok()?)) else { break };
        known.extend(began(process).map(|began| (process, began)));
    }
    for (signal, then) in [(Signal::TERM, GRACE), (Signal::KILL, Duration::ZERO)] {
        known.retain(|&(process, since)| began(process) == Some(since));
        for &(process, _) in &known {
            let _ = kill_process(process, signal);
        }
        if !known.is_empty() {
            std::thread::sleep(then);
        }
    }
}

impl Scope {
    fn signal(&self, signal: Signal) {
        match self {
            Self::Group(group) => drop(kill_process_group(*group, signal)),
            Self::Marked(_) => {
                for process in self.members() {
                    let _ = kill_process(process, signal);
                }
            }
        }
    }

    /// The processes that are left, without this one.
    fn members(&self) -> Vec<Pid> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let processes = numbers.filter_map(Pid::from_raw).filter(|&process| process != getpid());
        processes.filter(|&process| self.has(process)).collect()
    }

    fn has(&self, process: Pid) -> bool {
        let path = |name: &str| format!("/proc/{}/{name}", process.as_raw_nonzero());
        match self {
            Self::Group(group) => {
                let stat = std::fs::read_to_string(path("stat")).unwrap_or_default();
                // Behind the name, which may have anything in it: state, parent, group.
                let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
                let is_alive = fields.next().is_some_and(|state| !matches!(state, "Z" | "X" | ""));
                is_alive && fields.nth(1).and_then(|group| group.parse().ok()) == Some(group.as_raw_nonzero().get())
            }
            Self::Marked(mark) => {
                let environment = std::fs::read(path("environ")).unwrap_or_default();
                let wanted = format!("{MARK}={mark}");
                environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
            }
        }
    }
}

/// The guard's own process, from its first argument on.
pub fn main(mark: Option<&OsStr>) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU] {
        // What reaches the group is meant for the others.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    if mark.is_some_and(|mark| mark == WARDEN) {
        return ward();
    }
    let mut told = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut told);
    let scope = match mark.and_then(OsStr::to_str) {
        Some(mark) => Scope::Marked(mark.to_owned()),
        None => Scope::Group(getpgrp()),
    };
    let all_gone_within = |limit: Duration| {
        let until = Instant::now() + limit;
        loop {
            if scope.members().is_empty() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    };
    if all_gone_within(if told.contains(&ENDED) { LINGER_MAX } else { Duration::ZERO }) {
        return;
    }
    scope.signal(Signal::TERM);
    // One that is stopped would not hear it.
    scope.signal(Signal::CONT);
    if !all_gone_within(GRACE) {
        scope.signal(Signal::KILL);
    }
}
