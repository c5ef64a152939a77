//! That nothing of a stage is left: a small process beside it, which outlives whoever started both.
//!
//! A stage's processes are known by a mark in their environment, also those that have left its session with `setsid`, and
//! by the process group that the command is started in, also those that have cleared their environment. The guard leads
//! that group, so its number stays the stage's for as long as there is anything to end. It waits for the end of its
//! standard input, which comes when its keeper closes it or dies, however that dies. Then it ends the stage: SIGTERM, and
//! after [`GRACE`] SIGKILL. Where the command has ended well before, what it has left running is first given
//! [`LINGER_MAX`]: as with `tee >(gzip >copy)`, it may have something to finish.
//!
//! At a terminal, a command that asks for something there must be in the terminal's own process group. Of such a stage
//! there is only the mark.

use std::ffi::OsString;
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

/// The variable with a stage's mark.
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
struct Scope {
    mark: String,
    /// `None` if the stage shares the caller's.
    group: Option<Pid>,
}

/// Starts a guard's process, with what it is to be told behind [`WORD`].
fn spawn<'a>(program: &Path, words: impl IntoIterator<Item = &'a str>) -> std::io::Result<Child> {
    Command::new(program)
        .arg(WORD)
        .args(words)
        // Where a pipeline is part of another one's stage, the guards of both must not end each other.
        .env_remove(MARK)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

impl Guard {
    /// Starts a guard of this process's stage of that number: `program` is one of ours. `has_group`: what it guards is to
    /// be in a process group of its own.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn start(program: &Path, stage: u32, has_group: bool) -> std::io::Result<Self> {
        // A container's processes may be seen from outside of it, where another process has the same number.
        let began = began(getpid()).unwrap_or_default();
        let mark = format!("{}.{began}.{stage}", getpid().as_raw_nonzero());
        let words = std::iter::once(mark.as_str()).chain(has_group.then_some(GROUP));
        let mut child = spawn(program, words)?;
        let scope = Scope { mark, group: has_group.then(|| Pid::from_child(&child)) };
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, scope, lingers: false })
    }

    /// Makes a command, which has not been started, part of what is guarded.
    pub fn guards(&self, command: &mut Command) {
        command.env(MARK, &self.scope.mark);
        if let Some(group) = self.scope.group {
            command.process_group(group.as_raw_nonzero().get());
        }
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

/// The word by which a guard is told that it leads the stage's process group.
const GROUP: &str = "group";

/// The word by which a guard is told that it is a warden.
const WARDEN: &str = "processes";

impl Warden {
    /// Starts one: `program` is one of ours.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn start(program: &Path) -> std::io::Result<Self> {
        let mut child = spawn(program, [WARDEN])?;
        let stdin = child.stdin.take().expect("a pipe was asked for");
        Ok(Self { stdin })
    }

    /// Watches over one more process.
    pub fn watch(&mut self, process: u32) {
        use std::io::Write;
        let _ = self.stdin.write_all(format!("{process}\n").as_bytes());
    }
}

/// What /proc/PID/stat says behind the process's name, which may have anything in it: state, parent, group and more.
fn stat(process: Pid) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// When a process began, in ticks since the system did: with its number, that names it for good.
fn began(process: Pid) -> Option<u64> {
    stat(process)?.get(19)?.parse().ok()
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
        for process in self.members().into_iter().filter(|&process| !self.is_in_group(process)) {
            let _ = kill_process(process, signal);
        }
        // The last, since the guard is in it.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// The processes that are left, without this one.
    fn members(&self) -> Vec<Pid> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let processes = numbers.filter_map(Pid::from_raw).filter(|&process| process != getpid());
        processes.filter(|&process| self.is_in_group(process) || self.is_marked(process)).collect()
    }

    fn is_in_group(&self, process: Pid) -> bool {
        let Some(group) = self.group else { return false };
        let fields = stat(process).unwrap_or_default();
        let [state, _, its, ..] = &fields[..] else { return false };
        !matches!(state.as_str(), "Z" | "X" | "") && its.parse() == Ok(group.as_raw_nonzero().get())
    }

    fn is_marked(&self, process: Pid) -> bool {
        let environment = std::fs::read(format!("/proc/{}/environ", process.as_raw_nonzero())).unwrap_or_default();
        let wanted = format!("{MARK}={}", self.mark);
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    }
}

/// The guard's own process: `arguments` are those behind [`WORD`].
pub fn main(arguments: &[OsString]) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU] {
        // What reaches the group is meant for the others.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let Some(mark) = arguments.first().and_then(|mark| mark.to_str()) else { return };
    if mark == WARDEN {
        return ward();
    }
    let mut told = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut told);
    let has_group = arguments.get(1).is_some_and(|word| word == GROUP);
    let scope = Scope { mark: mark.to_owned(), group: has_group.then(getpgrp) };
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
