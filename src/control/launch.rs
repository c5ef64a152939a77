//! The launcher: ssh, srun, or another command that runs the agent on a host.
//!
//! The launcher's command line never contains a path, a key or any other argument of the copy. Those travel as messages
//! on the agent's standard input. A launcher that may ask for a password on the terminal stays in this process group.
//!
//! The launcher's standard error is held back until the agent answers, so that a failure to start can be reported in
//! one line with the launcher's own reason. From then on it is passed on as it comes. After [`HOLD_MAX`] the launcher
//! may be asking a question. Then everything is passed on except lines that explain a failure. The stream's end is
//! never waited for, because with ssh's ControlPersist a background process keeps it open.

#![allow(unsafe_code, reason = "signals and limits between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Signal, kill_process, pidfd_open, setrlimit};

use crate::fault::{escaped, is_unprintable};
use crate::fs::OPEN_FILES;
use crate::standard_error;

mod kinds;
mod sockets;

use kinds::{Kind, SRUN, SRUN_NOT_OURS, TOTAL_VARIABLES, template_words, words_of};
pub(super) use sockets::carries_others;
use sockets::only_peer;

/// Name of the program that runs on the other host unless another one is given.
pub const AGENT: &str = "rdma-pipe-agent";

/// How long the launcher's standard error is held back: it may be a banner, or a reason that belongs in the failure's
/// line.
pub const HOLD_MAX: Duration = Duration::from_millis(700);

/// How long a launcher may take to end after SIGTERM.
const TERM_MAX: Duration = Duration::from_millis(200);

/// Maximum number of bytes of standard error that are held back.
const HELD_BYTES_MAX: usize = 16 << 10;

/// What a launcher's own line explains about its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Explains {
    /// Why the launcher fails.
    Cause,
    /// Nothing. The line reports what the launcher has done, or a failure that only follows from the failure of the
    /// command that was to connect it (ssh's ProxyJump).
    Nothing,
}

/// A way to start a program on a host with its three standard streams connected to this process.
///
/// Every launcher must meet the following requirements, which `tests/launchers.rs` checks. It carries bytes of any
/// value both ways as they are written, without waiting for a full line or buffer. It passes the end of its input on to
/// the program. It keeps standard error separate. It exits with the program's exit code, or with 255 if the connection
/// failed. If the launcher is killed, a program on the host that reads its input ends soon afterwards.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The command and its first arguments, or a template of all words.
    words: Vec<OsString>,
    kind: Kind,
    /// How many seconds sessions wait for a lost link. A host that is silent is not given up before, unless the user's
    /// own options of ssh say so.
    pub patience_s: u32,
}

impl Launcher {
    /// Creates a launcher from `command`, which is split into words as a shell would split it, including quotes.
    /// `options` go between the command and the host.
    ///
    /// # Errors
    ///
    /// A sentence for the user if a quote is not closed or there is no word.
    pub fn new(command: &OsStr, options: Vec<OsString>) -> Result<Self, String> {
        Ok(Self { words: words_of(command)?, kind: Kind::Shell { options, is_bare: false }, patience_s: 0 })
    }

    /// Does the same for a launcher that starts only agents. A terminal, a command and forwardings in ssh's
    /// configuration are ignored.
    ///
    /// # Errors
    ///
    /// As [`Launcher::new`].
    pub fn bare(command: &OsStr, options: Vec<OsString>) -> Result<Self, String> {
        Ok(Self { words: words_of(command)?, kind: Kind::Shell { options, is_bare: true }, patience_s: 0 })
    }

    /// Creates a launcher that uses `srun` within a Slurm allocation.
    pub fn slurm() -> Self {
        Self { words: SRUN.map(OsString::from).into(), kind: Kind::Slurm, patience_s: 0 }
    }

    /// Creates a launcher from a command in which `%h` stands for the host and `%c` for the command to run there.
    /// Without `%c`, the command is appended.
    ///
    /// # Errors
    ///
    /// A sentence for the user if the template is not valid.
    pub fn template(template: &OsStr) -> Result<Self, String> {
        Ok(Self { words: template_words(template)?, kind: Kind::Template, patience_s: 0 })
    }

    /// Returns the launcher's program, as it was given.
    pub fn program(&self) -> &OsStr {
        &self.words[0]
    }

    /// Returns the launcher's own name, for messages.
    pub fn name(&self) -> &OsStr {
        let program = self.program();
        std::path::Path::new(program).file_name().unwrap_or(program)
    }

    /// Returns the command line that runs `command` on `host`, for display: possible secrets are left out.
    pub fn shown(&self, host: &OsStr, command: &OsStr) -> String {
        // Only ssh's arguments are known. With other programs any word may be a password, as in `sshpass -p`.
        if !self.is_ssh() {
            return format!("{} …", escaped(self.program()));
        }
        let words = self.words(host, command);
        let options = 1..words.len().saturating_sub(2);
        let shown = words.iter().enumerate().map(|(at, word)| match options.contains(&at) {
            true => escaped(&without_secret(word)),
            false => escaped(word),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// Starts `command` on `host`.
    ///
    /// # Errors
    ///
    /// The system's error from starting the launcher.
    pub fn start(&self, host: &OsStr, command: &OsStr) -> std::io::Result<Launched> {
        let words = self.words(host, command);
        let mut command_line = Command::new(&words[0]);
        let is_in = |names: &[&str]| {
            matches!(self.kind, Kind::Slurm) && names.iter().any(|name| std::env::var_os(name).is_some())
        };
        // A step has what its job has of GPUs and other devices, unless the job has asked for a total that one node
        // lacks: then none.
        command_line.args(is_in(&TOTAL_VARIABLES).then_some("--gres=none"));
        // A step that asks for memory, as by DefMemPerCPU, would have to wait for the share of another, in spite of
        // --overlap. Outside a job, the variables are the person's request.
        if is_in(&["SLURM_JOB_ID"]) {
            command_line.arg("--mem=0").env_remove("SLURM_MEM_PER_CPU").env_remove("SLURM_MEM_PER_NODE");
        }
        command_line.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // srun never asks on the terminal. It need not be in the terminal's foreground, and an interrupt from the
        // terminal is not meant for it.
        if matches!(self.kind, Kind::Slurm) {
            command_line.process_group(0);
            for name in SRUN_NOT_OURS {
                command_line.env_remove(name);
            }
        }
        // The keys that interrupt and quit are meant for this process, which has the agents finish and report what is
        // left. An ssh that they ended would be gone by then.
        // SAFETY: the call takes no memory.
        let ignore = |signal| match unsafe { libc::signal(signal, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        };
        let between = move || {
            // A program may take long, or fail, where it may open a million files.
            if let Some(&limits) = OPEN_FILES.get() {
                let _ = setrlimit(Resource::Nofile, limits);
            }
            ignore(libc::SIGINT).and_then(|()| ignore(libc::SIGQUIT))
        };
        // SAFETY: between fork and exec only signal(2) is called, which is allowed there (signal-safety(7)), and the
        // system call of setrlimit(2). The limits are read without a lock.
        unsafe { command_line.pre_exec(between) };
        launched(command_line.spawn()?, |stderr| Complaints::collect(stderr, self.clone()))
    }
}

/// Takes over a launcher that has been started. If its standard error cannot be collected, the launcher is ended.
fn launched(
    mut child: Child,
    collect: impl FnOnce(ChildStderr) -> std::io::Result<Complaints>,
) -> std::io::Result<Launched> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three are piped") };
    match collect(stderr) {
        Ok(complaints) => Ok(Launched { stdin, stdout, process: Process { child, complaints, is_asked: false } }),
        Err(error) => {
            kill(&mut child);
            Err(error)
        }
    }
}

/// Kills a launcher and waits for its end. One that belongs to another user, as with sudo, cannot be killed: it ends
/// when its input does.
fn kill(child: &mut Child) {
    if child.kill().is_ok() {
        let _ = child.wait();
    }
}

/// Returns an option of ssh without its value if the value may contain a secret: it is a command or a variable, as with
/// `ProxyCommand` and `SetEnv`, or the name suggests it.
fn without_secret(option: &OsStr) -> OsString {
    const SECRETS: [&str; 7] = ["command", "setenv", "pass", "secret", "token", "key", "auth"];
    let text = option.to_string_lossy();
    let lower = text.to_ascii_lowercase();
    let Some(named) = SECRETS.iter().filter_map(|name| lower.find(name)).min() else { return option.to_owned() };
    // ssh takes `NAME=VALUE`, `NAME VALUE`, and a name in double quotes.
    match text[named..].find(|letter: char| "=\"".contains(letter) || letter.is_whitespace()) {
        Some(end) => format!("{}=…", &text[..named + end]).into(),
        None => option.to_owned(),
    }
}

/// Returns the command line for an agent at `path`. The shell of the other host interprets it, so characters that are
/// special to a shell are quoted. A leading `~/` is left to that shell.
pub fn agent_command(path: &OsStr) -> OsString {
    let bytes = path.as_bytes();
    let (home, rest) = bytes.split_at(if bytes.starts_with(b"~/") { 2 } else { 0 });
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./+,:@%".contains(byte);
    if rest.iter().all(plain) {
        return path.to_owned();
    }
    let rest = rest.split(|&byte| byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
    OsString::from_vec([home, b"'", &rest[..], b"'"].concat())
}

/// A running launcher.
pub struct Launched {
    /// The agent's standard input.
    pub stdin: ChildStdin,
    /// The agent's standard output.
    pub stdout: ChildStdout,
    /// The launcher's process.
    pub process: Process,
}

/// The launcher's process. Dropping this ends it, unless other commands share its connection.
pub struct Process {
    child: Child,
    complaints: Complaints,
    /// Whether the process has been asked to end.
    is_asked: bool,
}

/// Waits until a process has ended, for `limit` at most. Fails before Linux 5.3.
pub(super) fn await_end(process: Pid, limit: Duration) -> Result<(), Errno> {
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).map(drop)
}

impl Process {
    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the only address to which the process itself is connected by TCP. `None` if another process makes the
    /// connection, as with a jump host or a master connection, or if `/proc` does not show it.
    pub fn connected_to(&self) -> Option<IpAddr> {
        only_peer(Pid::from_child(&self.child))
    }

    /// Waits for the process to end, for `limit` at most. Returns its exit code, or 128 + n if signal n ended it.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let deadline = Instant::now() + limit;
        let mut is_awaited = false;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // Once only: while somebody traces a process that has ended, its status is not there yet.
            if std::mem::replace(&mut is_awaited, true) || await_end(Pid::from_child(&self.child), left).is_err() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Ends all these processes, except those whose connections other commands share. They get `limit` to end by
    /// themselves, and then SIGTERM. Dropping them later does not wait again.
    pub fn end_all(mut processes: Vec<&mut Self>, limit: Duration) {
        processes.retain(|process| !process.is_asked);
        Self::wait_all(&mut processes, limit);
        processes.retain_mut(|process| {
            process.is_asked = true;
            let id = Pid::from_child(&process.child);
            let is_ended = matches!(process.child.try_wait(), Ok(None)) && !carries_others(id);
            if is_ended {
                // A process that asks for a password must be able to turn the terminal's echo on again.
                let _ = kill_process(id, Signal::TERM);
            }
            is_ended
        });
        Self::wait_all(&mut processes, TERM_MAX);
    }

    fn wait_all(processes: &mut [&mut Self], limit: Duration) {
        let deadline = Instant::now() + limit;
        for process in processes {
            process.wait(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Records that the process may be asking a question. From now on its standard error is passed on, except lines
    /// that explain a failure.
    pub fn let_ask(&self) {
        self.complaints.pass_on(Passes::Questions);
    }

    /// Reports whether ssh's configuration asks for a terminal, which it has not got, by what was passed on.
    pub fn lacks_terminal(&self) -> bool {
        crate::locked(&self.complaints.0).lacks_terminal
    }

    /// Passes on its standard error from now on.
    pub fn release(&self) {
        self.complaints.pass_on(Passes::All);
    }

    /// Reports whether its standard error has ended, so that all of its output has come.
    pub fn has_said_all(&self) -> bool {
        crate::locked(&self.complaints.0).is_over
    }

    /// Reports whether, by its output that has not been passed on, a server or a jump host has closed ssh's connection
    /// at once, which may have had too many others.
    pub fn is_turned_away(&self) -> bool {
        let held = crate::locked(&self.complaints.0);
        held.launcher.is_turned_away(&String::from_utf8_lossy(&held.bytes))
    }

    /// Returns the reason from its output that has not been passed on: the last line that explains something.
    pub fn last_complaint(&self) -> Option<String> {
        self.complaints.take_last_line()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        Self::end_all(vec![self], Duration::ZERO);
        if !carries_others(Pid::from_child(&self.child)) {
            kill(&mut self.child);
        }
    }
}

/// A launcher's standard error, which is held back at first.
struct Complaints(Arc<Mutex<Held>>);

struct Held {
    bytes: Vec<u8>,
    passes: Passes,
    is_over: bool,
    lacks_terminal: bool,
    launcher: Launcher,
}

/// What part of standard error is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Nothing,
    Questions,
    All,
}

impl Complaints {
    fn collect(mut stream: ChildStderr, launcher: Launcher) -> std::io::Result<Self> {
        let (bytes, passes) = (Vec::new(), Passes::Nothing);
        let held = Arc::new(Mutex::new(Held { bytes, passes, is_over: false, lacks_terminal: false, launcher }));
        let into = Arc::clone(&held);
        crate::spawn("launcher", 64 << 10, move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                let mut held = crate::locked(&into);
                held.bytes.extend(&piece[..count]);
                if held.bytes.len() > HELD_BYTES_MAX {
                    held.passes = Passes::All;
                }
                let passed = held.take_passed();
                drop(held);
                standard_error::write(&passed);
            }
            crate::locked(&into).is_over = true;
        })?;
        Ok(Self(held))
    }

    fn pass_on(&self, passes: Passes) {
        let mut held = crate::locked(&self.0);
        held.passes = passes;
        let passed = held.take_passed();
        // The lock is released first, because writing may have to wait for a reader.
        drop(held);
        standard_error::write(&passed);
    }

    fn take_last_line(&self) -> Option<String> {
        let mut held = crate::locked(&self.0);
        let bytes = std::mem::take(&mut held.bytes);
        let text = String::from_utf8_lossy(&bytes);
        let is_word = |line: &&str| line.contains(char::is_alphanumeric) && !held.launcher.is_noise(line);
        let mut lines = text.lines().rev().map(str::trim).filter(is_word).peekable();
        let last = lines.peek().copied();
        let cause = lines.find(|line| held.launcher.explains(line) != Some(Explains::Nothing)).or(last)?;
        Some(held.launcher.reason_of(cause, &text).unwrap_or_else(|| cause.to_owned()))
    }
}

impl Held {
    fn take_passed(&mut self) -> Vec<u8> {
        if self.passes == Passes::Nothing {
            return Vec::new();
        }
        let (mut passed, mut kept) = (Vec::new(), Vec::new());
        for line in self.bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = std::str::from_utf8(line).unwrap_or_default().trim_end();
            self.lacks_terminal |= self.launcher.lacks_terminal(text);
            if self.passes == Passes::Questions && self.launcher.explains(text).is_some() {
                kept.extend(line);
            } else if !self.launcher.is_noise(text) {
                let (line, part) = line.split_at(line.len() - unfinished(line));
                passed.extend(harmless(line));
                // The rest of this character comes with the next piece.
                kept.extend(part);
            }
        }
        self.bytes = kept;
        passed
    }
}

/// Returns how many bytes at the end are an incomplete UTF-8 character.
fn unfinished(text: &[u8]) -> usize {
    let rest = text.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_begun = std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
    if is_begun { rest.len() } else { 0 }
}

/// Returns text without terminal control sequences and marks that change its direction. The launcher also passes on
/// what the host writes to standard error.
fn harmless(text: &[u8]) -> Vec<u8> {
    let mut harmless = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_unprintable(character) && !"\n\r\t".contains(character) {
                harmless.extend(character.escape_default().to_string().bytes());
            } else {
                harmless.extend(character.encode_utf8(&mut [0; 4]).bytes());
            }
        }
        // The text has another encoding. In most encodings, bytes from 0xa0 are letters, and the bytes below are
        // controls.
        let letters = chunk.invalid().iter().map(|&byte| if byte < 0xa0 { b'?' } else { byte });
        harmless.extend(letters);
    }
    harmless
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::Resource::RLIMIT_NOFILE;
    use rustix::process::Rlimit;

    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn nothing_that_a_host_says_commands_a_terminal() {
        let said = b"caf\xc3\xa9\t50 %\r\n\x1b]0;title\x07\x1b[2J\xc2\x9b1m \xe9\x9b\xe2\x80\xaex\n";
        let told = b"caf\xc3\xa9\t50 %\r\n\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{9b}1m \xe9?\\u{202e}x\n";
        assert_eq!(harmless(said), told);
        for (text, bytes) in [
            (&b"a\xe2\x80"[..], 2),
            (b"\xe2\x80\x93\xe2", 1),
            (b"\xe2\x80\x93", 0),
            (b"\xe9", 1),
            (b"\x80", 0),
            (b"", 0),
        ] {
            assert_eq!(unfinished(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn ssh_is_to_notice_a_host_that_is_cut_off() {
        use std::io::Read;
        let scratch = tempfile::tempdir().expect("a directory");
        for name in ["ssh", "rsh"] {
            std::os::unix::fs::symlink("/bin/echo", scratch.path().join(name)).expect("a link");
        }
        // Not before sessions give up a lost link.
        for (name, patience_s, expected) in [
            ("ssh", 0, "-v -o ServerAliveInterval=15 -o ServerAliveCountMax=3 h a"),
            ("ssh", 30, "-v -o ServerAliveInterval=15 -o ServerAliveCountMax=3 h a"),
            ("ssh", 300, "-v -o ServerAliveInterval=15 -o ServerAliveCountMax=21 h a"),
            ("rsh", 300, "-v h a"),
        ] {
            let launcher = Launcher::new(scratch.path().join(name).as_os_str(), vec!["-v".into()]).expect("words");
            let launcher = Launcher { patience_s, ..launcher };
            let mut launched = launcher.start(OsStr::new("h"), OsStr::new("a")).expect("echo");
            let mut said = String::new();
            launched.stdout.read_to_string(&mut said).expect("its words");
            assert_eq!(said.trim_end(), expected);
        }
    }

    #[test]
    fn a_launcher_may_open_as_many_files_as_this_process_at_first() {
        crate::fs::raise_open_files();
        let (former, (_, most)) = (OPEN_FILES.get().expect("raised"), crate::limits::both(RLIMIT_NOFILE));
        // Where the limit was as high as possible already, it is another one now.
        let now = Rlimit { current: most.map(|most| most - 1), maximum: most };
        setrlimit(Resource::Nofile, now).expect("no more than allowed");
        let launcher = Launcher::new(OsStr::new("sh -c 'ulimit -n'"), Vec::new()).expect("words");
        let mut launched = launcher.start(OsStr::new("h"), OsStr::new("agent")).expect("sh");
        let mut said = String::new();
        launched.stdout.read_to_string(&mut said).expect("its words");
        assert_eq!(said.trim_end(), former.current.map_or("unlimited".to_owned(), |files| files.to_string()));
    }

    #[test]
    fn a_command_line_is_shown_without_secrets() {
        let of = |launcher: Launcher| launcher.shown(OsStr::new("h"), OsStr::new("agent"));
        let shown = |command: &str, options: &[&str]| {
            let options = options.iter().map(OsString::from).collect();
            of(Launcher::new(OsStr::new(command), options).expect("words"))
        };
        for (command, expected) in [
            ("sshpass -p hunter2 ssh -v", "sshpass …"),
            ("sshpass -p hunter2 /opt/myssh", "sshpass …"),
            ("env MY_TOKEN=hunter2 rsh", "env …"),
            ("/opt/plink -pw hunter2", "/opt/plink …"),
        ] {
            assert_eq!(shown(command, &[]), expected);
        }
        let template = "kubectl --token hunter2 exec -i %h -- sh -c %c";
        assert_eq!(of(Launcher::template(OsStr::new(template)).expect("a template")), "kubectl …");
        assert_eq!(of(Launcher::template(OsStr::new("ssh -o ProxyCommand=x %h")).expect("a template")), "ssh …");
        assert!(shown("ssh", &["-p", "22", "-i", "k\u{1b}"]).starts_with("ssh -p 22 -i k\\u{1b} -o ServerAlive"));
        assert!(
            shown("/usr/bin/ssh -x", &["-o", "UserKnownHostsFile=/x"]).contains("/ssh -x -o UserKnownHostsFile=/x -o")
        );
        assert!(shown("ssh", &["-v"]).ends_with(" h agent"));
        for (option, expected) in [
            ("ProxyCommand=sshpass -p hunter2 ssh g nc %h %p", "ProxyCommand=…"),
            ("proxycommand sshpass -p hunter2 --x=y", "proxycommand=…"),
            ("-oProxyCommand=sshpass -p hunter2", "-oProxyCommand=…"),
            ("-vo \"ProxyCommand\" sshpass -p hunter2", "-vo \"ProxyCommand=…"),
            ("KnownHostsCommand=curl -H hunter2", "KnownHostsCommand=…"),
            ("SetEnv=A=hunter2", "SetEnv=…"),
        ] {
            assert!(
                shown("ssh", &["-o", option]).starts_with(&format!("ssh -o {expected} -o ServerAlive")),
                "{option}"
            );
        }
    }

    #[test]
    fn a_path_to_the_agent_is_one_word() {
        for (path, command) in [
            ("rdma-pipe-agent", "rdma-pipe-agent"),
            ("~/bin/agent", "~/bin/agent"),
            ("/a b/$(c)", "'/a b/$(c)'"),
            ("~/it's", "~/'it'\\''s'"),
        ] {
            assert_eq!(agent_command(OsStr::new(path)), command);
        }
    }

    #[test]
    fn a_launcher_whose_complaints_cannot_be_collected_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("sleep");
        let id = Pid::from_child(&child);
        let refused = launched(child, |_| Err(std::io::Error::from(rustix::io::Errno::AGAIN)));
        assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
        let is_there = rustix::process::test_kill_process(id);
        assert_eq!(is_there, Err(rustix::io::Errno::SRCH), "it neither runs nor is a zombie");
    }

    #[test]
    fn a_launcher_that_cannot_be_killed_is_not_waited_for() {
        let calls = [libc::SYS_kill, libc::SYS_pidfd_send_signal];
        // Both end with their input, which ends after the launcher has been given up.
        for is_collected in [false, true] {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().expect("cat");
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let begun = where_calls_fail(&calls, libc::EPERM, || {
                    let collect = |stderr| match is_collected {
                        true => Complaints::collect(stderr, Launcher::slurm()),
                        false => Err(std::io::Error::from(Errno::AGAIN)),
                    };
                    launched(child, collect).map(|Launched { stdin, process, .. }| {
                        drop(process);
                        stdin
                    })
                });
                assert_eq!(begun.is_ok(), is_collected);
                tell.send(())
            });
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(()), "{is_collected}");
        }
    }

    #[test]
    fn the_end_of_a_launcher_is_awaited_also_where_it_can_only_be_asked_for() {
        let launcher = Launcher::new(OsStr::new("sh -c 'read line; exit 7'"), Vec::new()).expect("words");
        for is_old in [false, true] {
            let Launched { stdin, stdout: _stdout, mut process } =
                launcher.start(OsStr::new("h"), OsStr::new("agent")).expect("sh");
            let mut wait = |limit| match is_old {
                true => where_calls_fail(&[libc::SYS_pidfd_open], libc::ENOSYS, || process.wait(limit)),
                false => process.wait(limit),
            };
            let (since, limit) = (Instant::now(), Duration::from_millis(30));
            assert_eq!(wait(limit), None);
            assert!(since.elapsed() >= limit);
            drop(stdin);
            assert_eq!(wait(Duration::from_secs(20)), Some(7));
        }
    }

    #[test]
    fn what_a_launcher_says_as_it_fails_is_at_hand() {
        let launcher =
            Launcher::new(OsStr::new("sh -c 'echo banner >&2; echo no such host >&2; exit 255' x"), Vec::new())
                .expect("words");
        let mut launched = launcher.start(OsStr::new("h"), OsStr::new("agent")).expect("sh");
        assert_eq!(launched.process.wait(Duration::from_secs(20)), Some(255));
        assert_eq!(launched.process.wait(Duration::from_secs(20)), Some(255), "for good");
        let until = Instant::now() + Duration::from_secs(20);
        let mut said = None;
        while said.is_none() && Instant::now() < until {
            said = launched.process.last_complaint();
        }
        assert_eq!(said.as_deref(), Some("no such host"));
    }

    #[test]
    fn of_what_ssh_says_as_it_fails_the_cause_is_at_hand_also_after_it_might_have_asked() {
        use std::io::Write;
        const CUT: &str = "kex_exchange_identification: Connection closed by remote host\r\n\
                           Connection closed by UNKNOWN port 65535\r\n";
        const ADDED: &str = "Warning: Permanently added 'gate' (ED25519) to the list of known hosts.\r\n";
        let scratch = tempfile::tempdir().expect("a directory");
        let program = scratch.path().join("ssh");
        std::fs::write(&program, "#!/bin/sh\ncat >&2\nexit 255\n").expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("ours");
        for (says, expected) in [
            (format!("ssh: connect to host gate port 22: No route to host\r\n{CUT}"), "No route to host"),
            (
                format!("{ADDED}channel 0: open failed: connect failed: refused\r\nstdio forwarding failed\r\n{CUT}"),
                "refused",
            ),
            ("Connection closed by 10.0.0.1 port 22\r\n".to_owned(), "closed by 10.0.0.1"),
            (format!("{ADDED}me@gate: Permission denied (publickey).\r\n{CUT}"), "me@gate: Permission denied"),
            (format!("{ADDED}{CUT}"), "Connection closed by UNKNOWN port 65535"),
            (format!("Host key verification failed.\r\n{CUT}"), "Host key verification failed."),
            (
                "No ED25519 host key is known for h and you have requested strict checking.\r\n\
                 Host key verification failed.\r\n"
                    .to_owned(),
                "No ED25519 host key is known for h",
            ),
            (
                "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n\
                 Offending ED25519 key in /etc/known:1\r\n  remove with:\r\n  ssh-keygen -f /etc/known -R h\r\n\
                 Host key for h has changed and you have requested strict checking.\r\n\
                 Host key verification failed.\r\n"
                    .to_owned(),
                "Host key for h has changed and you have requested strict checking",
            ),
        ] {
            for may_ask in [false, true] {
                let launcher = Launcher::new(program.as_os_str(), Vec::new()).expect("words");
                let mut launched = launcher.start(OsStr::new("h"), OsStr::new("agent")).expect("sh");
                if may_ask {
                    launched.process.let_ask();
                }
                launched.stdin.write_all(says.as_bytes()).expect("cat");
                drop(launched.stdin);
                assert_eq!(launched.process.wait(Duration::from_secs(20)), Some(255));
                let until = Instant::now() + Duration::from_secs(20);
                while !launched.process.has_said_all() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let said = launched.process.last_complaint().unwrap_or_default();
                assert!(said.contains(expected), "{may_ask}: {said}");
                let is_told_where = says.contains("Offending") && !may_ask;
                assert_eq!(said.contains("(Offending ED25519 key in /etc/known:1)"), is_told_where, "{said}");
            }
        }
    }
}
