//! Guards: small processes that ensure that nothing of a stage is left running. A guard stands between the command and
//! the process that started both, and outlives that process.
//!
//! The guard is the command's parent. The system also makes it the parent of every descendant of the command that loses
//! its own parent (`PR_SET_CHILD_SUBREAPER`, prctl(2)). So everything that a stage has started descends from the guard,
//! whatever session, process group or environment it has chosen. Nothing is left once the guard has no child. The guard
//! waits for the end of its socket, which comes when its keeper closes the socket or dies in any way. Then the guard
//! ends the stage: SIGTERM, and after [`GRACE`] SIGKILL. If the command has exited with 0, the processes that it has
//! left running first get [`LINGER_MAX`]: they may have something to finish, as with `tee >(gzip >copy)`.
//!
//! Keeper and guard exchange messages. The keeper first sends the command with its standard descriptors, and then
//! signals to pass on. The guard reports whether the command has been started and how it has ended. On request, it also
//! says whether the command has left processes that have not finished reading what the command gave them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use minicbor::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Signal, WaitOptions, getpgrp, getpid, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, prlimit, set_child_subreaper, set_dumpable_behavior, wait,
    waitpid,
};

use super::descriptors;
use crate::control::launch::{await_end, carries_others};
use crate::fs::{Identity, OPEN_FILES, identity};
use crate::signals;

/// Argument that makes the program run as a guard.
pub const WORD: &str = "--guard";

/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// How long after SIGKILL to search for processes started in the meantime, and how often.
const KILL_FOR: Duration = Duration::from_secs(1);
const KILL_EVERY: Duration = Duration::from_millis(20);

/// How often to continue a guard that has nothing to say: see [`Running::wake`].
pub const WAKE_EVERY: Duration = Duration::from_secs(1);

/// How long processes left by a command may run on when the pipeline is over. Together with [`GRACE`] and the time that
/// an agent takes to notice, nothing is left after five seconds.
pub const LINGER_MAX: Duration = Duration::from_secs(2);

/// How long a process that ends waits for its guards.
const LAST_MAX: Duration = Duration::from_millis(50);

/// The guards that this process has started.
static STARTED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Maximum size of a command's words in bytes: as many as fit by default in a message between two processes.
const WORDS_BYTES_MAX: usize = 208 << 10;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum End {
    /// Exited by itself, with this code.
    #[n(0)]
    Exited(#[n(0)] u8),
    /// Killed by this signal.
    #[n(1)]
    Killed(#[n(0)] u8),
}

/// A guard's message to its keeper. Both run the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
enum Answer {
    #[n(0)]
    Started,
    /// The command cannot be run, for the reason with this number.
    #[n(1)]
    Failed(#[n(0)] i32),
    #[n(2)]
    Ended(#[n(0)] End),
    /// Whether a remaining process still reads what the command has given it.
    #[n(3)]
    Feeds(#[n(0)] bool),
}

/// Sent by a keeper in place of a signal's number, to ask for [`Answer::Feeds`].
const QUESTION: i32 = 0;

/// Sent by a keeper in place of a signal's number: the input is whole, and may end.
const WHOLE: i32 = -1;

/// What a guard runs.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program and its arguments; together at most [`WORDS_BYTES_MAX`].
    pub words: &'a [OsString],
    /// Standard input, output and error.
    pub standard: [OwnedFd; 3],
    /// The writing end of standard input, if the command must not see the end of a part as the end of the whole: its
    /// input does not end before [`Whole::tell`], whatever becomes of the keeper.
    pub held: Option<OwnedFd>,
    /// Whether the command joins this process's group instead of getting its own. At a terminal, a command that asks
    /// the user for something must be in the terminal's own process group, which is that of this process.
    pub shares_group: bool,
}

/// A guard, held by its keeper. Dropping it ends the stage that it guards.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    socket: Arc<OwnedFd>,
    /// Whether the command has exited with 0. If so, the keeper need not wait for remaining processes.
    lingers: bool,
}

/// The keeper's view of a guard: the socket on which the command's end is reported.
#[derive(Debug)]
pub struct Running {
    socket: Arc<OwnedFd>,
    /// The guard's process; `None` on a system without such descriptors (Linux before 5.3).
    process: Option<OwnedFd>,
}

/// Starts a guard's process, with `word` behind [`WORD`].
fn spawn(word: &str, stdin: Stdio) -> std::io::Result<Child> {
    let mut command = Command::new(super::own_program()?);
    command.arg(WORD).arg(word).process_group(0);
    let child = command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    crate::locked(&STARTED).push(Pid::from_child(&child));
    // The guard has not been told yet what to run. A program may take long, or fail, where it may open a million files.
    if let Some(&limits) = OPEN_FILES.get() {
        let _ = prlimit(Some(Pid::from_child(&child)), Resource::Nofile, limits);
    }
    Ok(child)
}

/// Waits a moment for guards that are about to end. Otherwise process 1 would have to wait for them, which that of a
/// container possibly never does. Must be the last that this process does with guards.
pub fn await_all() {
    let (until, mut left) = (Instant::now() + LAST_MAX, std::mem::take(&mut *crate::locked(&STARTED)));
    let mut awaited = None;
    loop {
        left.retain(|&guard| matches!(waitpid(Some(guard), WaitOptions::NOHANG), Ok(None)));
        let rest = until.saturating_duration_since(Instant::now());
        let Some(&first) = left.first().filter(|_| !rest.is_zero()) else { return };
        // Once for each: while somebody traces a process that has ended, its status is not there yet.
        let is_waited = awaited.replace(first) != Some(first) && await_end(first, rest).is_ok();
        if !is_waited {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Guard {
    /// Starts a guard that runs a command.
    ///
    /// # Errors
    ///
    /// The outer error if no guard could be started, the inner error if the command cannot be run.
    pub fn start(launch: Launch<'_>) -> std::io::Result<Result<(Self, Running), Errno>> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let group = if launch.shares_group { getpgrp().as_raw_nonzero().to_string() } else { OWN_GROUP.to_owned() };
        let child = spawn(&group, theirs.into())?;
        let socket = Arc::new(ours);
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let running = Running { socket: Arc::clone(&socket), process };
        let guard = Self { child, socket, lingers: false };
        let [stdin, stdout, stderr] = &launch.standard;
        // Not passed as arguments of the guard, which every user of the host can read.
        let words = launch.words.join(OsStr::new("\0"));
        let standard = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let given: Vec<BorrowedFd<'_>> = standard.into_iter().chain(launch.held.as_ref().map(AsFd::as_fd)).collect();
        descriptors::send(&running.socket, words.as_bytes(), &given)?;
        // The command alone must hold these ends of the pipes.
        drop(launch);
        match running.hear() {
            Some(Answer::Started) => Ok(Ok((guard, running))),
            Some(Answer::Failed(error)) => Ok(Err(Errno::from_raw_os_error(error))),
            _ => Err(std::io::Error::other("the guard process exited")),
        }
    }

    /// Sends a signal to all processes of the stage.
    pub fn signal(&self, signal: Signal) {
        let _ = send(&self.socket, &signal.as_raw().to_le_bytes(), SendFlags::NOSIGNAL);
    }

    /// Records that the command has exited with 0: remaining processes get some time when the guard is dropped.
    pub fn ended(&mut self) {
        self.lingers = true;
    }
}

/// Lets the input of a command end that has been held: see `Launch::held`.
#[derive(Debug)]
pub struct Whole(Arc<OwnedFd>);

impl Whole {
    /// Tells the guard that the command has been given all of its input.
    pub fn tell(&self) {
        let _ = send(&self.0, &WHOLE.to_le_bytes(), SendFlags::NOSIGNAL);
    }
}

impl Running {
    /// Returns what lets the command's input end.
    pub fn whole(&self) -> Whole {
        Whole(Arc::clone(&self.socket))
    }

    /// Continues the guard if something has stopped it, since a stopped guard would hold its stage for ever. To stop a
    /// stage, one stops its command.
    pub fn wake(&self) {
        if let Some(process) = &self.process {
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }

    fn hear(&self) -> Option<Answer> {
        let every = Timespec::try_from(WAKE_EVERY).ok();
        // Longer than any answer.
        let mut message = [0; 16];
        loop {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], every.as_ref()) {
                Ok(0) => {
                    self.wake();
                    continue;
                }
                Err(Errno::INTR) => continue,
                _ => {}
            }
            match recv(&self.socket, &mut message[..], RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Ok((count, _)) => return minicbor::decode(&message[..count]).ok(),
                Err(_) => return None,
            }
        }
    }

    /// Waits for the command to end. Returns `None` if the guard ends first.
    pub fn wait(&self) -> Option<End> {
        match self.hear()? {
            Answer::Ended(end) => Some(end),
            Answer::Started | Answer::Failed(_) | Answer::Feeds(_) => None,
        }
    }

    /// Whether the command, which has ended, has left a process that still reads what the command gave it: its standard
    /// input is a pipe without writers.
    pub fn feeds(&self) -> bool {
        let is_sent = send(&self.socket, &QUESTION.to_le_bytes(), SendFlags::NOSIGNAL).is_ok();
        is_sent && matches!(self.hear(), Some(Answer::Feeds(true)))
    }
}

impl AsFd for Running {
    /// Readable when there is an answer to receive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Dropping the socket would not end the connection: the thread that waits for the command still has it open.
        let _ = shutdown(&self.socket, Shutdown::Write);
        if self.lingers {
            return;
        }
        let until = Instant::now() + GRACE + KILL_FOR;
        // When this function returns, the stage must be gone.
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) if status.success() => return,
                // It has ended, and [`await_all`] has noticed that first.
                Err(_) => return,
                _ => break,
            }
        }
        // The guard was killed. Processes that have not left its group are killed here.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}

/// A guard of individual processes, such as launchers, that must stay in the group of a terminal. When this process
/// ends or the warden is dropped, the warden ends those that are still running, except an ssh whose connection other
/// commands share.
#[derive(Debug)]
pub struct Warden {
    /// Pipe whose end makes the warden act. The warden outlives a process that is killed.
    stdin: ChildStdin,
}

/// Argument of a guard whose command joins the group that the guard leads.
const OWN_GROUP: &str = "group";

/// Argument of a guard that is a warden.
const WARDEN: &str = "processes";

impl Warden {
    /// Starts a warden.
    ///
    /// # Errors
    ///
    /// The system's error if the warden cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let mut child = spawn(WARDEN, Stdio::piped())?;
        let stdin = child.stdin.take().expect("a pipe was asked for");
        Ok(Self { stdin })
    }

    /// Adds a process to those watched.
    pub fn watch(&mut self, process: u32) {
        use std::io::Write;
        let _ = self.stdin.write_all(format!("{process}\n").as_bytes());
    }
}

/// Returns the fields of /proc/PID/stat behind the process's name, which may contain anything:
/// state, parent, group and more.
fn stat(process: Pid) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// Returns when a process started, in ticks since boot. Together with its number this identifies the process for good.
fn began(process: Pid) -> Option<u64> {
    stat(process)?.get(19)?.parse().ok()
}

/// Body of a warden: reads the numbers of processes, one per line, and ends those processes when its input ends.
fn ward() {
    let mut known: Vec<(Pid, u64)> = Vec::new();
    for line in std::io::stdin().lines() {
        let Some(process) = line.ok().and_then(|line| Pid::from_raw(line.parse().ok()?)) else { break };
        known.extend(began(process).map(|began| (process, began)));
    }
    for (signal, then) in [(Signal::TERM, GRACE), (Signal::KILL, Duration::ZERO)] {
        known.retain(|&(process, since)| began(process) == Some(since) && !carries_others(process));
        for &(process, _) in &known {
            let _ = kill_process(process, signal);
        }
        if !known.is_empty() {
            std::thread::sleep(then);
        }
    }
}

/// Sends a signal to all descendants of this process. SIGTERM is followed by SIGCONT, because a stopped process would
/// not react to it.
fn signal_offspring(signal: Signal) {
    for child in offspring() {
        let _ = kill_process(child, signal);
        if signal == Signal::TERM {
            let _ = kill_process(child, Signal::CONT);
        }
    }
}

/// Returns all descendants of this process, parents before their children.
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

/// Whether a process reads from a pipe without writers that is not the input of its stage.
fn is_fed(process: Pid, input: Option<Identity>) -> bool {
    let path = format!("/proc/{}/fd/0", process.as_raw_nonzero());
    match rustix::fs::stat(&path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Fifo => return false,
        Ok(found) if Some(identity(&found)) == input => return false,
        Ok(_) => {}
        // The process now belongs to another user, as with sudo. Waiting in vain costs less than not waiting.
        Err(Errno::ACCESS | Errno::PERM) => return true,
        Err(_) => return false,
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(pipe) = rustix::fs::open(&path, flags, Mode::empty()) else { return false };
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Reaps all children of this process. Reports how the command ended and stores in `ended_well` whether that was with
/// exit code 0. Drops `gone` when no child is left.
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
    let message = minicbor::to_vec(answer).expect("a vector takes everything");
    // A keeper that has gone does not need the answer.
    let _ = send(std::io::stdin(), &message, SendFlags::NOSIGNAL);
}

/// Runs the guard's process. `arguments` are those behind [`WORD`].
pub fn main(arguments: &[OsString]) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
    // Signals that were ignored when the pipeline was started stay ignored for its commands, as under nohup. A handler,
    // in contrast, is reset when a command is executed.
    let handled = signals::not_ignored([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU].to_vec());
    for signal in handled {
        // A signal to the whole group is meant for the other processes.
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
    let (count, mut standard) = descriptors::receive(std::io::stdin(), &mut words);
    let held = if standard.len() > 3 { standard.pop() } else { None };
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(standard) else { return };
    let mut words = words[..count].split(|&byte| byte == 0).map(OsStr::from_bytes);
    let input = fstat(&stdin).as_ref().map(identity).ok();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(stdin).stdout(stdout).stderr(stderr);
    if group != OWN_GROUP {
        let Some(group) = group.to_str().and_then(|group| group.parse().ok()) else { return };
        command.process_group(group);
    }
    // The guard holds no key. Through its /proc/PID/exe a redirection finds this program even
    // if the file has been replaced.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    // On a system without subreapers, orphans escape the guard; Linux has had them since 3.4.
    let _ = set_child_subreaper(Some(getpid()));
    let ended_well = Arc::new(AtomicBool::new(false));
    let gone = match begin(command, &ended_well) {
        Ok(gone) => gone,
        Err(error) => return tell(Answer::Failed(error.raw_os_error())),
    };
    // Held until no process is left that could take a part for the whole.
    let _held = serve(input, held);
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

/// Starts the thread that reaps, and then the command: without the thread, a command that has begun would have to be
/// killed. Returns what is disconnected once no process is left.
///
/// # Errors
///
/// Why the command cannot be run.
fn begin(mut command: Command, ended_well: &Arc<AtomicBool>) -> Result<Receiver<()>, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    let ((started, to_reap), (is_left, gone)) = (channel(), channel());
    let how = Arc::clone(ended_well);
    let reaper = move || {
        if let Ok(child) = to_reap.recv() {
            reap(child, &how, is_left);
        }
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(reaper).map_err(errno)?;
    let child = command.spawn().map_err(errno)?;
    drop(command);
    tell(Answer::Started);
    let _ = started.send(Pid::from_child(&child));
    Ok(gone)
}

/// Passes on signals from the keeper and answers its questions until the keeper is gone. Returns what is held still.
fn serve(input: Option<Identity>, mut held: Option<OwnedFd>) -> Option<OwnedFd> {
    let mut number = [0; 4];
    loop {
        match recv(std::io::stdin(), &mut number[..], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((4, _)) if number == QUESTION.to_le_bytes() => {
                tell(Answer::Feeds(offspring().into_iter().any(|process| is_fed(process, input))));
            }
            Ok((4, _)) if number == WHOLE.to_le_bytes() => held = None,
            Ok((4, _)) => {
                let Some(signal) = Signal::from_named_raw(i32::from_le_bytes(number)) else { continue };
                signal_offspring(signal);
            }
            _ => return held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn no_command_is_started_that_nothing_would_reap() {
        let begun = where_calls_fail(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN, || {
            // It cannot be started either, which would be noticed before any call.
            begin(Command::new("a\0b"), &Arc::default())
        });
        assert_eq!(begun.err(), Some(Errno::AGAIN));
    }

    #[test]
    fn the_ends_of_guards_are_awaited_also_where_they_can_only_be_asked_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let id = Pid::from_child(&child);
        // A thread that cannot sleep panics if it tries to.
        for calls in [&[libc::SYS_nanosleep, libc::SYS_clock_nanosleep][..], &[libc::SYS_pidfd_open]] {
            crate::locked(&STARTED).push(id);
            where_calls_fail(calls, libc::ENOSYS, await_all);
            assert!(matches!(child.try_wait(), Ok(None)), "it runs on");
        }
        drop(child.stdin.take());
        child.wait().expect("its end");
    }
}
