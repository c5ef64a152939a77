//! That nothing of a stage is left: a small process between it and us, which outlives the process that started both.
//!
//! The guard is the command's parent, and the one to which the system gives whatever in the command's offspring loses its
//! own (`PR_SET_CHILD_SUBREAPER`, prctl(2)). So all that a stage has started, whatever session, process group or
//! environment it has made itself, is the guard's offspring, and nothing is left when the guard has no child. It waits for
//! the end of its socket, which comes when its keeper closes it or dies, however that dies. Then it ends the stage:
//! SIGTERM, and after [`GRACE`] SIGKILL. Where the command has ended well before, what it has left running is first given
//! [`LINGER_MAX`]: as with `tee >(gzip >copy)`, it may have something to finish.
//!
//! Keeper and guard speak by messages: first comes the command, with its standard descriptors, then signals to be sent;
//! back come whether the command has been started, how it has ended, and on question whether it has left something that
//! is not done with what it was given.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, kill_process_group, set_child_subreaper,
    set_dumpable_behavior, wait,
};

use super::descriptors;
use crate::fs::{Identity, identity};
use crate::signals;

/// The argument that makes a program a guard.
pub const WORD: &str = "--guard";

/// How long what is asked to end may take.
const GRACE: Duration = Duration::from_secs(1);

/// How long after SIGKILL to search for what may have been started meanwhile, and how often.
const KILL_FOR: Duration = Duration::from_secs(1);
const KILL_EVERY: Duration = Duration::from_millis(20);

/// How long what a command has left running may go on when the pipeline is over. With [`GRACE`] and the time that an agent
/// takes to notice, nothing is left after five seconds.
pub const LINGER_MAX: Duration = Duration::from_secs(2);

/// As many bytes as a message between two processes may have by default.
const WORDS_BYTES_MAX: usize = 208 << 10;

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this exit code.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

/// What a guard tells its keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Started,
    /// The command cannot be run.
    Failed(Errno),
    Ended(End),
    /// Whether something is left that works on what the command has given it.
    Feeds(bool),
}

/// What a keeper sends to be told that, in place of a signal's number.
const QUESTION: i32 = 0;

impl Answer {
    fn encode(self) -> [u8; 5] {
        let (kind, value) = match self {
            Self::Started => (b's', 0),
            Self::Failed(error) => (b'f', error.raw_os_error()),
            Self::Ended(End::Exited(code)) => (b'e', code.into()),
            Self::Ended(End::Killed(signal)) => (b'k', signal.into()),
            Self::Feeds(feeds) => (b'w', feeds.into()),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [kind, a, b, c, d]
    }

    fn decode([kind, value @ ..]: [u8; 5]) -> Option<Self> {
        let value = i32::from_le_bytes(value);
        Some(match kind {
            b's' => Self::Started,
            b'f' => Self::Failed(Errno::from_raw_os_error(value)),
            b'e' => Self::Ended(End::Exited(value.try_into().ok()?)),
            b'k' => Self::Ended(End::Killed(value.try_into().ok()?)),
            b'w' => Self::Feeds(value != 0),
            _ => return None,
        })
    }
}

/// What a guard is to run.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program, and its arguments; together at most [`WORDS_BYTES_MAX`].
    pub words: &'a [OsString],
    /// Standard input, output and error.
    pub standard: [OwnedFd; 3],
    /// At a terminal, a command that asks for something there must be in the terminal's own process group, which is this
    /// process's. Else it is in one of its own.
    pub shares_group: bool,
}

/// A guard, held by its keeper. Dropping it ends what it guards.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    socket: Arc<OwnedFd>,
    /// The command has ended well; whatever is left needs nobody to wait for it.
    lingers: bool,
}

/// Where the command's exit is reported.
#[derive(Debug)]
pub struct Running(Arc<OwnedFd>);

/// Starts a guard's process, with its own arguments behind [`WORD`].
fn spawn(word: &str, stdin: Stdio) -> std::io::Result<Child> {
    let mut command = Command::new(super::own_program()?);
    command.arg(WORD).arg(word).process_group(0);
    command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Guard {
    /// Has a guard run a command.
    ///
    /// # Errors
    ///
    /// The outer one: no guard could be started. The inner one: the command cannot be run.
    pub fn start(launch: Launch<'_>) -> std::io::Result<Result<(Self, Running), Errno>> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let group = if launch.shares_group { getpgrp().as_raw_nonzero().to_string() } else { OWN_GROUP.to_owned() };
        let child = spawn(&group, theirs.into())?;
        let socket = Arc::new(ours);
        let running = Running(Arc::clone(&socket));
        let guard = Self { child, socket, lingers: false };
        let [stdin, stdout, stderr] = &launch.standard;
        // Not among the guard's arguments, which everybody on the host can read.
        let words = launch.words.join(OsStr::new("\0"));
        descriptors::send(&running.0, words.as_bytes(), &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        // The pipes' other ends are to be the command's alone.
        drop(launch);
        match running.hear() {
            Some(Answer::Started) => Ok(Ok((guard, running))),
            Some(Answer::Failed(error)) => Ok(Err(error)),
            _ => Err(std::io::Error::other("the guard has ended")),
        }
    }

    /// Sends a signal to all of the stage.
    pub fn signal(&self, signal: Signal) {
        let _ = send(&self.socket, &signal.as_raw().to_le_bytes(), SendFlags::NOSIGNAL);
    }

    /// The command has ended well: what it has left running is given some time when the guard is dropped.
    pub fn ended(&mut self) {
        self.lingers = true;
    }
}

impl Running {
    fn hear(&self) -> Option<Answer> {
        let mut message = [0; 5];
        loop {
            match recv(&self.0, &mut message[..], RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Ok((5, _)) => return Answer::decode(message),
                _ => return None,
            }
        }
    }

    /// Waits for the command; `None` if the guard has been ended before.
    pub fn wait(&self) -> Option<End> {
        match self.hear()? {
            Answer::Ended(end) => Some(end),
            Answer::Started | Answer::Failed(_) | Answer::Feeds(_) => None,
        }
    }

    /// Whether the command, which has ended, has left something running that works on what it was given by it: whose
    /// standard input is a pipe that nobody writes to any more.
    pub fn feeds(&self) -> bool {
        let is_sent = send(&self.0, &QUESTION.to_le_bytes(), SendFlags::NOSIGNAL).is_ok();
        is_sent && matches!(self.hear(), Some(Answer::Feeds(true)))
    }
}

impl AsFd for Running {
    /// Readable when there is something to report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread that waits for the command still has it open.
        let _ = shutdown(&self.socket, Shutdown::Write);
        if self.lingers {
            return;
        }
        let until = Instant::now() + GRACE + KILL_FOR;
        // The stage is to be gone when its keeper says so.
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) if status.success() => return,
                _ => break,
            }
        }
        // Somebody has killed the guard. What the stage has not taken elsewhere is in its group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}

/// A guard of single processes, such as launchers, which must stay in the group of a terminal. Those that are left when
/// this process ends, or the warden is dropped, are ended.
#[derive(Debug)]
pub struct Warden {
    /// Its end is what the warden waits for. Nobody waits for the warden: it outlives the process that started it.
    stdin: ChildStdin,
}

/// The argument of a guard whose command is to be in the group that the guard leads.
const OWN_GROUP: &str = "group";

/// The argument of a guard that is a warden.
const WARDEN: &str = "processes";

impl Warden {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn start() -> std::io::Result<Self> {
        let mut child = spawn(WARDEN, Stdio::piped())?;
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

/// Sends a signal to all of this process's offspring; behind SIGTERM SIGCONT, since who is stopped would not hear it.
fn signal_offspring(signal: Signal) {
    for child in offspring() {
        let _ = kill_process(child, signal);
        if signal == Signal::TERM {
            let _ = kill_process(child, Signal::CONT);
        }
    }
}

/// All of this process's offspring, parents before their children.
fn offspring() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut children: HashMap<i32, Vec<Pid>> = HashMap::new();
    for process in numbers.filter_map(Pid::from_raw) {
        if let Some(parent) = stat(process).and_then(|fields| fields.get(1)?.parse().ok()) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&getpid().as_raw_nonzero().get()).unwrap_or_default();
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        found.extend(children.remove(&parent.as_raw_nonzero().get()).unwrap_or_default());
        at += 1;
    }
    found
}

/// Whether a process reads from a pipe that nobody writes to any more, and that is not its stage's own input.
fn is_fed(process: Pid, input: Option<Identity>) -> bool {
    let path = format!("/proc/{}/fd/0", process.as_raw_nonzero());
    match rustix::fs::stat(&path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Fifo => return false,
        Ok(found) if Some(identity(&found)) == input => return false,
        Ok(_) => {}
        // Somebody else's by now, as with sudo: what is lost by waiting is less.
        Err(Errno::ACCESS | Errno::PERM) => return true,
        Err(_) => return false,
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(pipe) = rustix::fs::open(&path, flags, Mode::empty()) else { return false };
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Takes the ends of all children there will be. Says of the command's how it was, and whether that was well; `gone` is
/// closed when there is none left.
fn reap(command: Pid, ended_well: &AtomicBool, gone: Sender<()>) {
    loop {
        match wait(WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            Err(_) => return drop(gone),
            Ok(None) => {}
            Ok(Some((process, status))) if process == command => {
                let byte = |value: Option<i32>| value.and_then(|value| u8::try_from(value).ok());
                let end = byte(status.exit_status()).map(End::Exited);
                let end = end.or(byte(status.terminating_signal()).map(End::Killed));
                ended_well.store(end == Some(End::Exited(0)), Ordering::Release);
                if let Some(end) = end {
                    tell(Answer::Ended(end));
                }
            }
            Ok(Some(_)) => {}
        }
    }
}

fn tell(answer: Answer) {
    // A keeper that has gone needs to know nothing.
    let _ = send(std::io::stdin(), &answer.encode(), SendFlags::NOSIGNAL);
}

/// The guard's own process: `arguments` are those behind [`WORD`].
pub fn main(arguments: &[OsString]) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
    // What was ignored when the pipeline was started stays so for its commands, as under nohup; a handler would be lost as they
    // are run.
    let handled = signals::not_ignored([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU].to_vec());
    for signal in handled {
        // What reaches the group is meant for the others.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    match arguments {
        [word] if word == WARDEN => ward(),
        [group] => guard(group),
        _ => {}
    }
}

fn guard(group: &OsStr) {
    let mut words = vec![0; WORDS_BYTES_MAX];
    let (count, standard) = descriptors::receive(std::io::stdin(), &mut words);
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(standard) else { return };
    let mut words = words[..count].split(|&byte| byte == 0).map(OsStr::from_bytes);
    let input = fstat(&stdin).as_ref().map(identity).ok();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(stdin).stdout(stdout).stderr(stderr);
    if group != OWN_GROUP {
        let Some(group) = group.to_str().and_then(|group| group.parse().ok()) else { return };
        command.process_group(group);
    }
    // It holds no key, and by its /proc/PID/exe a redirection finds this program again when that has been replaced.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    // A system without that leaves only what stays with its parents; Linux has had it since 3.4.
    let _ = set_child_subreaper(Some(getpid()));
    let child = match command.spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => return tell(Answer::Failed(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))),
    };
    drop(command);
    tell(Answer::Started);
    let ended_well = Arc::new(AtomicBool::new(false));
    let (is_left, gone) = channel();
    let how = Arc::clone(&ended_well);
    let reaper = move || reap(child, &how, is_left);
    if std::thread::Builder::new().stack_size(64 << 10).spawn(reaper).is_err() {
        return signal_offspring(Signal::KILL);
    }
    serve(input);
    let is_gone = |gone: &Receiver<()>, limit| gone.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected);
    if is_gone(&gone, if ended_well.load(Ordering::Acquire) { LINGER_MAX } else { Duration::ZERO }) {
        return;
    }
    signal_offspring(Signal::TERM);
    if is_gone(&gone, GRACE) {
        return;
    }
    let until = Instant::now() + KILL_FOR;
    while Instant::now() < until {
        signal_offspring(Signal::KILL);
        if is_gone(&gone, KILL_EVERY) {
            return;
        }
    }
}

/// Sends on the signals that the keeper sends, and answers its questions, until it is gone.
fn serve(input: Option<Identity>) {
    let mut number = [0; 4];
    loop {
        match recv(std::io::stdin(), &mut number[..], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((4, _)) if number == QUESTION.to_le_bytes() => {
                tell(Answer::Feeds(offspring().into_iter().any(|process| is_fed(process, input))));
            }
            Ok((4, _)) => {
                let Some(signal) = Signal::from_named_raw(i32::from_le_bytes(number)) else { continue };
                signal_offspring(signal);
            }
            _ => return,
        }
    }
}
