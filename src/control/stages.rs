//! The stages of a pipeline on one host: commands run by a shell, redirections opened by a shell, and `tee`.
//!
//! A stage is described first, and waits while its sessions attach to it. Nothing is run or opened until the stage is
//! started, after all connections have been made. From then on each stage has a thread, which ends with the stage.

mod descriptors;
mod guard;
mod redirection;
mod room;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::{Receiver, Sender, bounded};
use rd_proto::control::IoFact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::termios::tcgetpgrp;

use super::frames::{
    Action, Fault, Input, Message, Output, SHELL_WORDS_MAX, STAGES_MAX, STDERR_BYTES_MAX, Stage, StageReport,
};
use super::names::home_expanded;
use super::tunnel::Emit;
use crate::fault::Exit;
use crate::fs::{identity, io_fact, standard};
use crate::transport::relay::{RelayInput, RelayOutput, relay};
use guard::{End, Guard, LINGER_MAX, Launch, Running, WAKE_EVERY};
pub use guard::{Warden, Whole, await_all as await_guards};
pub use redirection::NO_FILE;
use redirection::{Call, Opening, Side};
pub use room::Share;

/// Exit code of a shell that cannot run a command.
pub const CANNOT_RUN: u8 = 127;

/// How often to check whether processes that a command has left running still work on its data.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Minimum time to wait, so that the rest of a time limit is not spent in many tiny waits.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(1);

/// The running program, whatever is at its path by now.
const OWN: &str = "/proc/self/exe";

/// Whether a command has been ended before its time. The end of its output is then not the end of its data.
pub type Cut = Arc<AtomicBool>;

/// What the session out of a stage reads.
pub enum Outlet {
    /// The pipe that a command writes to.
    Command(File, Cut),
    /// The file that a redirection has opened.
    File(File, PathBuf),
    /// The data that the session into the stage receives.
    Relay(RelayOutput),
}

/// What the session into a stage writes to.
pub enum Inlet {
    /// The pipe that a command reads, and what lets it end.
    Command(File, Whole),
    /// The file that a redirection has opened.
    File(File, PathBuf),
    /// A file, or why it cannot be opened, and in addition the session out of the stage.
    Tee(Result<File, IoFact>, PathBuf, RelayInput),
}

/// Receives the stage's file or failure when the stage is started.
type Hook<T> = Sender<Result<T, Fault>>;

/// The receiving end of a hook.
pub type Attachment<T> = Receiver<Result<T, Fault>>;

/// All stages on this host.
pub struct Stages {
    emit: Emit,
    /// Whether the stages run in an agent. The caller's own stages share the caller's standard error and its terminal.
    is_agent: bool,
    /// Whether standard error of the stages goes to the caller. Otherwise it is that of this process.
    tells_stderr: bool,
    held: HashMap<u32, Held>,
    /// Whether the ends of stages are no longer reported.
    is_silent: Arc<AtomicBool>,
}

struct Held {
    stage: Option<Stage>,
    inlet: Option<Hook<Inlet>>,
    outlet: Option<Hook<Outlet>>,
    cut: Cut,
    guard: Arc<Mutex<Option<Guard>>>,
}

impl Stages {
    /// Creates an empty set. `emit` takes the reports of stages. If standard error of the stages goes to the caller,
    /// `emit` may wait for its reader.
    pub fn new(emit: Emit, is_agent: bool, tells_stderr: bool) -> Self {
        Self { emit, is_agent, tells_stderr, held: HashMap::new(), is_silent: Arc::default() }
    }

    /// Takes a stage without starting it. A stage that an agent cannot have is answered with its end.
    pub fn take(&mut self, stage: Stage) {
        let standard = stage.input == Input::Standard || stage.output == Output::Standard;
        let number = stage.number;
        let fits = self.held.len() < STAGES_MAX
            && !self.held.contains_key(&number)
            && (1..=SHELL_WORDS_MAX).contains(&stage.shell.len())
            && !(standard && self.is_agent);
        if !fits {
            let fault = Some(Fault::plain(Exit::Protocol.code(), "invalid stage"));
            let report = StageReport { fault, ..StageReport::default() };
            return (self.emit)(Message::StageEnded { stage: number, report });
        }
        let held = Held { stage: Some(stage), inlet: None, outlet: None, cut: Arc::default(), guard: Arc::default() };
        self.held.insert(number, held);
    }

    /// Returns an attachment that yields what the session into a stage must write to, once the stage is started. A
    /// command sees the end of its input only after [`Whole::tell`].
    pub fn attach_inlet(&mut self, stage: u32) -> Option<Attachment<Inlet>> {
        let held = self.held.get_mut(&stage).filter(|held| held.stage.is_some() && held.inlet.is_none())?;
        let (hook, attachment) = bounded(1);
        held.inlet = Some(hook);
        Some(attachment)
    }

    /// Returns an attachment that yields what the session out of a stage must read, once the stage is started.
    pub fn attach_outlet(&mut self, stage: u32) -> Option<Attachment<Outlet>> {
        let held = self.held.get_mut(&stage).filter(|held| held.stage.is_some() && held.outlet.is_none())?;
        let (hook, attachment) = bounded(1);
        held.outlet = Some(hook);
        Some(attachment)
    }

    /// Returns the number of stages that have been taken and not started, and the number of their ends of hops.
    pub fn waiting(&self) -> (usize, usize) {
        let waiting = self.held.values().filter_map(|held| held.stage.as_ref());
        waiting.fold((0, 0), |(stages, ends), stage| {
            let hops = [stage.input == Input::Hop, stage.output == Output::Hop];
            (stages + 1, ends + hops.into_iter().filter(|&is_hop| is_hop).count())
        })
    }

    /// Starts all stages that have been taken and not started.
    pub fn start(&mut self) {
        for (&number, held) in &mut self.held {
            let Some(stage) = held.stage.take() else { continue };
            let run = Run {
                emit: Arc::clone(&self.emit),
                is_agent: self.is_agent,
                tells_stderr: self.tells_stderr,
                inlet: held.inlet.take(),
                outlet: held.outlet.take(),
                left: None,
                cut: Arc::clone(&held.cut),
                is_silent: Arc::clone(&self.is_silent),
                guard: Arc::clone(&held.guard),
                stage,
            };
            let emit = Arc::clone(&self.emit);
            if let Err(error) = crate::spawn("stage", 256 << 10, move || run.run()) {
                let fault = Some(Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}")));
                let report = StageReport { fault, ..StageReport::default() };
                emit(Message::StageEnded { stage: number, report });
            }
        }
    }

    /// Ends a stage by sending a signal to it and to everything that it has started.
    pub fn signal(&self, stage: u32, signal: u8) {
        let Some(held) = self.held.get(&stage) else { return };
        let Some(signal) = Signal::from_named_raw(i32::from(signal)) else { return };
        held.cut.store(true, Ordering::Release);
        if let Some(guard) = &*crate::locked(&held.guard) {
            guard.signal(signal);
        }
    }

    /// From now on, the end of a stage is not reported: a stage that ends because its agent does has not failed. The
    /// caller notices that the agent goes.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::Release);
    }

    /// Ends everything. Processes that an ended stage has left running get a little time. This call does not wait for
    /// them.
    pub fn end(&mut self) {
        let guards: Vec<Guard> = self
            .held
            .drain()
            .inspect(|(_, held)| held.cut.store(true, Ordering::Release))
            .filter_map(|(_, held)| crate::locked(&held.guard).take())
            .collect();
        // The guards are dropped in parallel, because each takes some time.
        for guard in guards {
            let _ = std::thread::Builder::new().name("ending".to_owned()).spawn(move || drop(guard));
        }
    }
}

/// A stage being run.
struct Run {
    emit: Emit,
    is_agent: bool,
    tells_stderr: bool,
    stage: Stage,
    inlet: Option<Hook<Inlet>>,
    outlet: Option<Hook<Outlet>>,
    /// Standard error of a command that has ended. A process that the command has left running still has it open.
    left: Option<PipeReader>,
    cut: Cut,
    is_silent: Arc<AtomicBool>,
    guard: Arc<Mutex<Option<Guard>>>,
}

impl Run {
    fn run(mut self) {
        let began = Instant::now();
        let mut report = match self.act() {
            Ok(report) => report,
            Err(fault) => {
                // The sessions end as well, because they have nothing to move.
                if let Some(hook) = self.inlet.take() {
                    let _ = hook.send(Err(fault.clone()));
                }
                if let Some(hook) = self.outlet.take() {
                    let _ = hook.send(Err(fault.clone()));
                }
                StageReport { fault: Some(fault), ..StageReport::default() }
            }
        };
        report.micros = began.elapsed().as_micros() as u64;
        if !self.is_silent.load(Ordering::Acquire) {
            (self.emit)(Message::StageEnded { stage: self.stage.number, report });
        }
        if let Some(mut left) = self.left.take() {
            while self.pass_some_on(&mut left) {}
        }
    }

    fn act(&mut self) -> Result<StageReport, Fault> {
        match self.stage.action.clone() {
            Action::Run { command } => self.command(vec![OsString::from_vec(command)]),
            Action::Read { redirection } => {
                let (file, path) = self.open(&redirection, Side::Input)?;
                self.let_out(Outlet::File(file, path))?;
                Ok(well())
            }
            Action::Write { redirection } => {
                let (file, path) = self.open(&redirection, Side::Output)?;
                // Without a session nothing is written: opening has created the file, or it is touched.
                if let Some(hook) = self.inlet.take() {
                    let _ = hook.send(Ok(Inlet::File(file, path)));
                } else if is_append(&redirection) {
                    touch(&file, &path)?;
                }
                Ok(well())
            }
            Action::Tee { path, append } => {
                let path = home_expanded(&path);
                let file = match open_plainly(&path, append) {
                    // The path may lead to a different file in each process, such as /dev/stdout, so tee must open its
                    // own.
                    Err(Errno::LOOP | Errno::NOSYS | Errno::PERM) => return self.command(tee_words(path, append)),
                    opened => opened.map_err(|error| io_fact(path.as_os_str(), error)),
                };
                let (input, output) = relay();
                self.let_out(Outlet::Relay(output))?;
                if let Some(hook) = self.inlet.take() {
                    let _ = hook.send(Ok(Inlet::Tee(file, path, input)));
                }
                Ok(well())
            }
        }
    }

    /// Hands the session out of this stage its source. If the output is to be dropped, reads and discards it.
    fn let_out(&mut self, outlet: Outlet) -> Result<(), Fault> {
        if let Some(hook) = self.outlet.take() {
            let _ = hook.send(Ok(outlet));
        } else if self.stage.output == Output::Dropped
            && let Outlet::File(mut file, _) | Outlet::Command(mut file, _) = outlet
        {
            let drop_all = move || drop(std::io::copy(&mut file, &mut std::io::sink()));
            std::thread::Builder::new().name("drop".to_owned()).spawn(drop_all).map_err(cannot_start)?;
        }
        Ok(())
    }

    fn open(&self, redirection: &[u8], side: Side) -> Result<(File, PathBuf), Fault> {
        let (opening, Call { words, standard }) = Opening::new(redirection, side).map_err(cannot_start)?;
        let running = self.start(words, standard, None)?;
        opening.finish(&running, redirection).map_err(|reason| {
            let (exit, what) = match side {
                Side::Input => (Exit::Source.code(), "cannot read"),
                Side::Output => (Exit::Destination.code(), "cannot write"),
            };
            let operator = redirection.iter().take_while(|byte| b"<>| \t".contains(byte)).count();
            let path = redirection[operator..].to_vec();
            // The shell's message names the file again: as it was typed, or as the shell has expanded it.
            let named = format!("{}: ", String::from_utf8_lossy(path.trim_ascii()));
            let (path, detail) = match reason.rsplit_once(&named) {
                Some((_, detail)) => (path, detail),
                None => file_of_shell(&reason).map_or((path, &*reason), |(file, detail)| (file.into(), detail)),
            };
            let (errno, detail) = errno_of_shell(detail).map_or((0, detail.to_owned()), |errno| (errno, String::new()));
            Fault { exit, what: what.to_owned(), path, errno, detail, own: true }
        })
    }

    /// Runs the shell under a guard, with these words after `-c`.
    fn start(&self, words: Vec<OsString>, standard: [OwnedFd; 3], held: Option<OwnedFd>) -> Result<Running, Fault> {
        let shell = self.stage.shell.iter().map(|word| OsString::from_vec(word.to_vec()));
        let words: Vec<OsString> = shell.chain(["-c".into()]).chain(words).collect();
        let shares_group = !self.is_agent && has_terminal();
        let started = Guard::start(Launch { words: &words, standard, held, shares_group })
            .map_err(|error| Fault::plain(Exit::Connect.code(), format!("cannot start a guard: {error}")))?;
        let (guard, running) =
            started.map_err(|error| fault(CANNOT_RUN, "cannot run", Path::new(&words[0]), &error.into()))?;
        let mut kept = crate::locked(&self.guard);
        // The request to end may have come before there was a guard.
        if self.cut.load(Ordering::Acquire) {
            guard.signal(Signal::TERM);
        }
        *kept = Some(guard);
        Ok(running)
    }

    /// Runs a command. `words` go after the shell's `-c`.
    fn command(&mut self, words: Vec<OsString>) -> Result<StageReport, Fault> {
        let mut into = None;
        let stdin = match self.stage.input {
            Input::Nothing => descriptors::null(),
            Input::Standard => standard::input().map(OwnedFd::from),
            Input::Hop => std::io::pipe().map(|(read, write)| {
                into = Some(File::from(OwnedFd::from(write)));
                read.into()
            }),
        };
        let mut complaints = None;
        let stderr = if self.tells_stderr {
            std::io::pipe().map(|(read, write)| {
                complaints = Some(read);
                write.into()
            })
        } else {
            std::io::stderr().as_fd().try_clone_to_owned()
        };
        let stderr: OwnedFd = stderr.map_err(cannot_start)?;
        let mut out = None;
        let stdout = match self.stage.output {
            Output::Error => stderr.try_clone(),
            Output::Nothing => descriptors::null(),
            Output::Standard => standard::output().map(OwnedFd::from),
            Output::Hop | Output::Dropped => std::io::pipe().map(|(read, write)| {
                out = Some(File::from(OwnedFd::from(read)));
                write.into()
            }),
        };
        let standard = [stdin.map_err(cannot_start)?, stdout.map_err(cannot_start)?, stderr];
        let held = into.as_ref().map(File::try_clone).transpose().map_err(cannot_start)?.map(OwnedFd::from);
        let running = self.start(words, standard, held)?;
        if let (Some(hook), Some(file)) = (self.inlet.take(), into) {
            let _ = hook.send(Ok(Inlet::Command(file, running.whole())));
        }
        if let Some(file) = out {
            self.let_out(Outlet::Command(file, Arc::clone(&self.cut)))?;
        }
        let end = match complaints {
            Some(complaints) => self.pass_on(complaints, &running),
            None => running.wait(),
        };
        if end == Some(End::Exited(0))
            && let Some(guard) = &mut *crate::locked(&self.guard)
        {
            guard.ended();
        }
        match end {
            Some(End::Exited(code)) => Ok(StageReport { code: Some(code.into()), ..StageReport::default() }),
            Some(End::Killed(signal)) => Ok(StageReport { signal: Some(signal.into()), ..StageReport::default() }),
            None => {
                self.cut.store(true, Ordering::Release);
                // Dropping the guard ends the command, which would otherwise go on moving bytes.
                drop(crate::locked(&self.guard).take());
                Err(Fault::plain(Exit::Connect.code(), "the guard process of the command was killed"))
            }
        }
    }

    /// Passes on the stage's standard error until the command and all processes that have it open have ended. After the
    /// command's end the others get [`LINGER_MAX`], and more time only while they work on data from the command, as in
    /// `tee >(gzip >copy)`. Returns how the command ended; `None` as soon as there is no guard.
    fn pass_on(&mut self, mut complaints: PipeReader, running: &Running) -> Option<End> {
        let (mut end, mut until) = (None, None::<Instant>);
        loop {
            let mut both = [PollFd::new(&complaints, PollFlags::IN), PollFd::new(running, PollFlags::IN)];
            let watched = if end.is_none() { &mut both[..] } else { &mut both[..1] };
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()).max(LOOK_AGAIN_MIN));
            if poll(watched, Timespec::try_from(limit.unwrap_or(WAKE_EVERY)).ok().as_ref()) == Ok(0) {
                running.wake();
            }
            let [has_spoken, has_ended] = both.map(|one| !one.revents().is_empty());
            if has_ended && end.is_none() {
                end = Some(running.wait()?);
                until = Some(Instant::now() + LINGER_MAX);
            }
            if has_spoken && !self.pass_some_on(&mut complaints) {
                return end.or_else(|| running.wait());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                if !running.feeds() {
                    self.left = Some(complaints);
                    return end;
                }
                until = Some(Instant::now() + LOOK_AGAIN);
            }
        }
    }

    /// Passes on what is there. Returns false at the end of the stream.
    fn pass_some_on(&self, complaints: &mut PipeReader) -> bool {
        let mut bytes = vec![0; STDERR_BYTES_MAX];
        match complaints.read(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => true,
            Ok(0) | Err(_) => false,
            Ok(count) => {
                bytes.truncate(count);
                (self.emit)(Message::StageStderr { stage: self.stage.number, bytes });
                true
            }
        }
    }
}

/// Opens the file that `tee` writes. Fails if its name leads to an open descriptor of this process: such a descriptor
/// means something else to `tee`, and may be the caller's channel.
fn open_plainly(path: &Path, append: bool) -> Result<File, Errno> {
    let how = if append { OFlags::APPEND } else { OFlags::TRUNC };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | how;
    let file = openat2(CWD, path, flags, Mode::from_raw_mode(0o666), ResolveFlags::NO_MAGICLINKS)?;
    if standard::is_taken(&file) { Err(Errno::BADF) } else { Ok(file.into()) }
}

/// Returns the words with which a shell runs `tee` itself.
fn tee_words(path: PathBuf, append: bool) -> Vec<OsString> {
    let command = if append { "exec tee -a -- \"$1\"" } else { "exec tee -- \"$1\"" };
    vec![command.into(), "tee".into(), path.into()]
}

fn well() -> StageReport {
    StageReport { code: Some(0), ..StageReport::default() }
}

fn cannot_start(error: std::io::Error) -> Fault {
    Fault::plain(Exit::Connect.code(), format!("cannot start: {error}"))
}

fn fault(exit: u8, what: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::io(exit, what, &crate::fs::std_fact(path.as_os_str(), error))
}

/// Returns the file and the reason in a shell's message about a file that it cannot open, such as
/// `rdpipe: 1: cannot open FILE: No such file` or `rdpipe: line 1: FILE: No such file or directory`.
fn file_of_shell(message: &str) -> Option<(&str, &str)> {
    let (line, rest) = message.strip_prefix(redirection::NAME)?.strip_prefix(": ")?.split_once(": ")?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = ["cannot open ", "cannot create "].iter().find_map(|what| rest.strip_prefix(what)).unwrap_or(rest);
    // Other messages have the same form, as that about an open quote. What the shell has made of `~` is an absolute path.
    let is_file = |file: &str| file.starts_with('/') && is_number(line.strip_prefix("line ").unwrap_or(line));
    rest.rsplit_once(": ").filter(|(file, _)| is_file(file))
}

/// Returns the error number for a shell's message about a file that it cannot open. With the number, the failure is
/// worded as everywhere else.
fn errno_of_shell(reason: &str) -> Option<i32> {
    match reason {
        // The first is from dash.
        "No such file" | "No such file or directory" => Some(libc::ENOENT),
        "Permission denied" => Some(libc::EACCES),
        "Is a directory" => Some(libc::EISDIR),
        _ => None,
    }
}

/// Whether the operator is `>>` instead of `>`.
fn is_append(redirection: &[u8]) -> bool {
    redirection.trim_ascii_start().starts_with(b">>")
}

/// Updates the time of an existing file, as `touch` does.
fn touch(file: &File, path: &Path) -> Result<(), Fault> {
    let now = std::time::SystemTime::now();
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_regular {
        return Ok(());
    }
    file.set_modified(now).map_err(|error| fault(Exit::Destination.code(), "cannot touch", path, &error))
}

/// Returns the path of this program, for starting it as a helper of this process. Its own path is used only while that
/// still leads to this program, and not to a newly installed one or to nothing.
///
/// # Errors
///
/// Fails if /proc is not mounted, and says so.
fn own_program() -> std::io::Result<PathBuf> {
    let which = |path: &Path| rustix::fs::stat(path).as_ref().map(identity).ok();
    let is_own = |path: &PathBuf| which(path).is_some_and(|found| Some(found) == which(Path::new(OWN)));
    let path = std::env::current_exe()?;
    Ok(if is_own(&path) { path } else { OWN.into() })
}

/// Whether there is a terminal on which a command could ask something. One of another namespace of process numbers
/// counts as none: this process has no number for its group there.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal).is_ok())
}

/// Acts as a helper for stages if the first argument asks for one; `None` if it does not.
pub fn helper() -> Option<bool> {
    let mut arguments = std::env::args_os().skip(1);
    let word = arguments.next()?;
    if word == guard::WORD {
        guard::main(&arguments.collect::<Vec<_>>());
        Some(true)
    } else if word == redirection::WORD {
        Some(redirection::main(&arguments.collect::<Vec<_>>()))
    } else {
        None
    }
}
