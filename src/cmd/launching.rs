//! An agent on another host: its launcher, its channel, and what can go wrong before it answers.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use flume::{Receiver, Sender, bounded};
use rand_core::Rng as _;

use super::exit::{Exit, Failure, escaped, os};
use crate::control::channel::{ChannelError, Outbox, receive, skip_to_magic};
use crate::control::frames::{Hello, MAJOR, MESSAGE_BYTES_MAX, MINOR, Message, SessionKey};
use crate::control::launch::{AGENT, HOLD_MAX, Launched, Launcher, Process, agent_command};
use crate::control::stages::{Warden, own_program};
use crate::engine::link::rng;

/// What comes from the hosts of a copy or a pipeline.
pub(super) enum News {
    /// An end says something.
    Message(Message),
    /// An agent is not heard any more.
    Gone,
    /// Its channel is of no use any more, for this reason.
    Broken(Failure),
    /// A signal to this process.
    Signal(i32),
}

/// Where a host's news are posted, with its number.
pub(super) type Post = Sender<(usize, News)>;

/// News that may wait to be heard before an agent, and what is written to standard error, has to wait as well.
const NEWS_MAX: usize = 64;

/// Bytes that may wait for an agent to take them: more than all connections of a few sessions through its channel have
/// on their way.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Posts what this host's own part says; false if nobody hears it any more. As with a pipe, what writes to standard error
/// waits for its reader: a stage that is louder than that would fill the memory, and a signal would wait behind all of it.
pub(super) fn post_in_turn(post: &Post, host: usize, message: Message) -> bool {
    if matches!(message, Message::StageStderr { .. }) {
        await_turn(post);
    }
    post.send((host, News::Message(message))).is_ok()
}

fn await_turn(post: &Post) {
    while post.len() > NEWS_MAX && !post.is_disconnected() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How a host is spoken to.
pub(super) enum Voice<Own> {
    /// It is this one, and its part is in this process.
    Here(Own),
    There(Box<Remote>),
}

impl<Own> Voice<Own> {
    /// The agent, on another host.
    pub(super) fn agent(&mut self) -> Option<&mut Remote> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => Some(remote),
        }
    }

    /// Names the kernel that the host runs on; empty where that is not known.
    pub(super) fn kernel_id(&self) -> Vec<u8> {
        match self {
            Self::Here(_) => Hello::ours().kernel_id,
            Self::There(remote) => remote.kernel_id().to_vec(),
        }
    }
}

/// Whether two kernels with these names are one.
pub(super) fn is_same_kernel(one: &[u8], other: &[u8]) -> bool {
    !one.is_empty() && one == other
}

/// A key for one session.
pub(super) fn session_key() -> SessionKey {
    let mut key = SessionKey([0; 32]);
    rng().fill_bytes(&mut key.0);
    key
}

/// How long an agent may take to answer: as long as sshd lets a user type a password.
const HELLO_MAX: Duration = Duration::from_secs(120);

/// How long a launcher that is done may take to end.
const EXIT_MAX: Duration = Duration::from_secs(1);

/// How long copying the agent to another host may take.
const BOOTSTRAP_MAX: Duration = Duration::from_secs(120);

/// What the bootstrap's lines begin with, among what a login script may print.
const BOOTSTRAP_MARK: &str = "rdma-pipe-bootstrap ";

/// Bytes of such a line, and of what may come before it.
const BOOTSTRAP_LINES_MAX: u64 = 64 << 10;

/// An agent, or a launcher that is on its way to one. Dropping it ends the agent.
pub(super) struct Remote {
    host: OsString,
    agent: OsString,
    process: Process,
    outbox: Outbox,
    started: Instant,
    /// What the launcher writes to standard error is being passed on.
    released: bool,
    /// The launcher's exit code, if it ended before the agent answered.
    exit: Option<i32>,
    bootstrapped: bool,
    hello: Option<Hello>,
    /// Its launcher was told to ask the user for nothing.
    is_unasking: bool,
    side: usize,
    post: Post,
}

/// Whether launchers for so many hosts may ask the user for passwords as they like: several on one terminal would not be
/// told apart.
pub(super) fn may_ask(hosts: usize) -> bool {
    hosts < 2 || std::fs::File::open("/dev/tty").is_err()
}

/// Waits until every one of these agents has said who it is. Those whose launcher has to ask for something and was not
/// allowed to are started again, one after the other.
///
/// # Errors
///
/// Exit 3 for the first that cannot be started or reached, 9 for one of another protocol, 128+n for a signal meanwhile.
pub(super) fn greet<'a>(
    agents: impl Iterator<Item = &'a mut Remote>,
    news: &Receiver<(usize, News)>,
    launcher: &Launcher,
    bootstrap: bool,
) -> Result<(), Failure> {
    let waiting = agents.filter(|remote| remote.hello.is_none()).collect();
    for remote in greet_all(waiting, news, launcher, bootstrap)? {
        remote.start_again(launcher)?;
        greet_all(vec![remote], news, launcher, bootstrap)?;
    }
    Ok(())
}

/// Gives back those that would have to ask for something.
fn greet_all<'a>(
    mut waiting: Vec<&'a mut Remote>,
    news: &Receiver<(usize, News)>,
    launcher: &Launcher,
    bootstrap: bool,
) -> Result<Vec<&'a mut Remote>, Failure> {
    let mut unasked = Vec::new();
    while let Some(first) = waiting.iter().map(|remote| remote.hello_due()).min() {
        let from = |waiting: &Vec<&mut Remote>, side| waiting.iter().position(|remote| remote.side == side);
        match news.recv_deadline(first) {
            Ok((side, News::Message(Message::Hello(hello)))) => {
                let Some(at) = from(&waiting, side) else { continue };
                waiting[at].greeted(hello)?;
                waiting.swap_remove(at);
            }
            Ok((side, News::Gone)) => {
                let Some(at) = from(&waiting, side) else { continue };
                match waiting[at].not_begun(launcher) {
                    NotBegun::MustAsk => unasked.push(waiting.swap_remove(at)),
                    NotBegun::NoAgent(_) if bootstrap && !waiting[at].bootstrapped => {
                        waiting[at].bootstrap(launcher)?
                    }
                    NotBegun::NoAgent(failure) | NotBegun::Failed(failure) => return Err(failure),
                }
            }
            Ok((_, News::Broken(failure))) => return Err(failure),
            Ok((_, News::Signal(number))) if number != libc::SIGTSTP => {
                return Err(Failure::silent(Exit::Signal(number as u8)));
            }
            Ok(_) => {}
            Err(_) => {
                // The launcher asks for something, or is in trouble: the user is to see what it says.
                for remote in waiting.iter_mut().filter(|remote| remote.hello_due() <= Instant::now()) {
                    remote.late()?;
                }
            }
        }
    }
    Ok(unasked)
}

/// Why an agent has not begun.
enum NotBegun {
    /// The launcher has to ask for something, and was told not to.
    MustAsk,
    /// The launcher came to the host, and the agent is not there.
    NoAgent(Failure),
    Failed(Failure),
}

/// What ssh says where it would have asked.
const WOULD_ASK: [&str; 2] = ["Permission denied", "Host key verification failed"];

impl Remote {
    /// Starts the agent on a host. Its messages are posted as those of `side`. See [`may_ask`].
    ///
    /// # Errors
    ///
    /// Exit 3 if the launcher cannot be started.
    pub(super) fn start(
        launcher: &Launcher,
        host: &OsStr,
        agent: &OsStr,
        side: usize,
        post: Post,
        may_ask: bool,
    ) -> Result<Self, Failure> {
        let unasking = if may_ask { None } else { launcher.unasking() };
        let launched = launch(unasking.as_ref().unwrap_or(launcher), host, &agent_command(agent))?;
        let (process, outbox) = attend(launched, host, side, post.clone())?;
        Ok(Self {
            host: host.to_owned(),
            agent: agent.to_owned(),
            process,
            outbox,
            started: Instant::now(),
            released: false,
            exit: None,
            bootstrapped: false,
            hello: None,
            is_unasking: unasking.is_some(),
            side,
            post,
        })
    }

    /// Starts the agent again, by a launcher that may ask the user for something.
    fn start_again(&mut self, launcher: &Launcher) -> Result<(), Failure> {
        let launched = launch(launcher, &self.host, &agent_command(&self.agent))?;
        (self.process, self.outbox) = attend(launched, &self.host, self.side, self.post.clone())?;
        (self.started, self.released, self.exit, self.is_unasking) = (Instant::now(), false, None, false);
        Ok(())
    }

    /// Sends a message. One that cannot be sent is answered with news of that.
    pub(super) fn send(&self, message: Message) {
        let failure = if self.outbox.waiting_bytes() > WAITING_BYTES_MAX {
            Failure::new(Exit::LinkLost, format!("{} does not take what is sent to it", self.label()))
        } else if !self.outbox.try_send(message) {
            let (label, most) = (self.label(), MESSAGE_BYTES_MAX >> 10);
            let line = format!("what {label} is asked to do takes more than {most} KiB to say; ask for less at a time");
            Failure::new(Exit::Usage, line)
        } else {
            return;
        };
        let _ = self.post.send((self.side, News::Broken(failure)));
    }

    /// When something must have been heard.
    fn hello_due(&self) -> Instant {
        self.started + if self.released { HELLO_MAX } else { HOLD_MAX }
    }

    /// Nothing has been heard when it was due. The launcher may be asking for something, so it is given time.
    ///
    /// # Errors
    ///
    /// Exit 3 when that is used up.
    fn late(&mut self) -> Result<(), Failure> {
        if self.released {
            let seconds = HELLO_MAX.as_secs();
            return Err(Failure::new(Exit::Connect, format!("no agent answers on {} after {seconds} s", self.label())));
        }
        self.released = true;
        self.process.release();
        Ok(())
    }

    /// The agent has said who it is; it is told who we are.
    ///
    /// # Errors
    ///
    /// Exit 9 where the two do not understand each other.
    fn greeted(&mut self, hello: Hello) -> Result<(), Failure> {
        self.process.release();
        if hello.major != MAJOR {
            let theirs = escaped(OsStr::new(&hello.program));
            return Err(Failure::new(
                Exit::Protocol,
                format!(
                    "{} has rdma-pipe {theirs} (control protocol {}.{}), this host {} ({MAJOR}.{MINOR}), and the two do \
                     not understand each other; install the same release, or choose another with --agent",
                    self.label(),
                    hello.major,
                    hello.minor,
                    env!("CARGO_PKG_VERSION"),
                ),
            ));
        }
        self.outbox.send(Message::Hello(Hello::ours()));
        self.hello = Some(hello);
        Ok(())
    }

    /// Names the kernel that the agent runs on; empty where that is not known.
    pub(super) fn kernel_id(&self) -> &[u8] {
        self.hello.as_ref().map_or(&[], |hello| &hello.kernel_id)
    }

    /// Has the agent end as soon as it has done what it was told.
    pub(super) fn close(&self) {
        self.outbox.close();
    }

    /// The launcher has ended, or what it runs is no agent.
    fn not_begun(&mut self, launcher: &Launcher) -> NotBegun {
        self.exit = self.process.wait(EXIT_MAX);
        // The last words may still be in the pipe.
        let until = Instant::now() + Duration::from_millis(50);
        let mut complaint = self.process.last_complaint();
        while complaint.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            complaint = self.process.last_complaint();
        }
        let would_ask = complaint.as_ref().is_some_and(|line| WOULD_ASK.iter().any(|words| line.contains(words)));
        if self.is_unasking && would_ask {
            return NotBegun::MustAsk;
        }
        let (label, launcher) = (self.label(), escaped(launcher.name()));
        let because = complaint.map(|line| format!(": {}", escaped(OsStr::new(&line)))).unwrap_or_default();
        let message = match self.exit {
            Some(126 | 127) => format!(
                "{label} has no {}; install rdma-pipe there, name the program with --agent, or add --bootstrap to copy it",
                escaped(&self.agent)
            ),
            Some(255) => format!("cannot reach {label} by {launcher}{because}"),
            Some(code) => format!("no agent answers on {label}: {launcher} ended with exit code {code}{because}"),
            None => format!("what answers on {label} is no rdma-pipe agent{because}"),
        };
        let failure = Failure::new(Exit::Connect, message);
        if self.lacks_agent() { NotBegun::NoAgent(failure) } else { NotBegun::Failed(failure) }
    }

    /// The launcher came to the host, and the agent is not there.
    pub(super) fn lacks_agent(&self) -> bool {
        matches!(self.exit, Some(126 | 127))
    }

    /// Copies this program's own agent to the host, into a directory named by its hash, and starts it there.
    ///
    /// # Errors
    ///
    /// Exit 3 if the host is another kind of system, or the copy fails.
    fn bootstrap(&mut self, launcher: &Launcher) -> Result<(), Failure> {
        let label = self.label();
        let failed =
            |reason: String| Failure::new(Exit::Connect, format!("cannot copy the agent to {label}: {reason}"));
        let own = std::env::current_exe().map(|path| path.with_file_name(AGENT));
        let program = own.and_then(std::fs::read).map_err(|error| failed(format!("{AGENT} here: {error}")))?;
        let hash = blake3::hash(&program).to_hex();
        let hash = &hash[..32];
        let mut launched = launch(launcher, &self.host, OsStr::new(&upload_command(hash, program.len())))?;
        let (done, outcome) = bounded(1);
        let (stdin, stdout) = (launched.stdin, launched.stdout);
        std::thread::Builder::new()
            .name("bootstrap".to_owned())
            .spawn(move || drop(done.send(upload(&program, stdin, stdout))))
            .map_err(|error| failed(error.to_string()))?;
        match outcome.recv_timeout(BOOTSTRAP_MAX) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                launched.process.wait(EXIT_MAX);
                let complaint =
                    launched.process.last_complaint().map(|line| format!(" ({})", escaped(OsStr::new(&line))));
                return Err(failed(format!("{reason}{}", complaint.unwrap_or_default())));
            }
            Err(_) => return Err(failed("it takes too long".to_owned())),
        }
        self.agent = OsString::from(format!("{}/{AGENT}", cache_directory(hash)));
        let command = format!("sh -c 'exec \"{}/{AGENT}\"'", cache_directory(hash));
        let launched = launch(launcher, &self.host, OsStr::new(&command))?;
        (self.process, self.outbox) = attend(launched, &self.host, self.side, self.post.clone())?;
        (self.started, self.released, self.exit, self.bootstrapped) = (Instant::now(), false, None, true);
        Ok(())
    }

    fn label(&self) -> String {
        escaped(&self.host)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The agent ends as its standard input does, and the launcher with it.
        self.outbox.close();
        self.process.wait(EXIT_MAX);
    }
}

/// Ends our launchers where we are killed: cut off from its host, one would wait for the network's own time-outs.
static WARDEN: Mutex<Option<Warden>> = Mutex::new(None);

fn launch(launcher: &Launcher, host: &OsStr, command: &OsStr) -> Result<Launched, Failure> {
    let launched = launcher.start(host, command).map_err(|error| {
        let errno = os(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
        Failure::new(Exit::Connect, format!("cannot run {}: {errno}; see --rsh", escaped(launcher.program())))
    })?;
    let mut warden = WARDEN.lock().expect("no panic with it locked");
    if warden.is_none() {
        // Without one it all works as well.
        *warden = Warden::start(&own_program()).ok();
    }
    if let Some(warden) = &mut *warden {
        warden.watch(launched.process.id());
    }
    Ok(launched)
}

/// Reads what an agent says, in a thread of its own.
fn attend(launched: Launched, host: &OsStr, side: usize, post: Post) -> Result<(Process, Outbox), Failure> {
    let failed = |error: std::io::Error| Failure::new(Exit::Connect, format!("cannot start a thread: {error}"));
    let Launched { stdin, stdout, process } = launched;
    let outbox = Outbox::start(stdin, b"").map_err(failed)?;
    let label = escaped(host);
    let read = move || {
        let mut stdout = BufReader::with_capacity(128 << 10, stdout);
        let mut received = skip_to_magic(&mut stdout).and_then(|()| receive(&mut stdout));
        let error = loop {
            match received {
                Ok(message) => {
                    await_turn(&post);
                    if post.send((side, News::Message(message))).is_err() {
                        return;
                    }
                }
                Err(error) => break error,
            }
            received = receive(&mut stdout);
        };
        let news = match error {
            ChannelError::Message(error) => {
                let line = format!("the agent on {label} does not keep to the protocol: {error}");
                News::Broken(Failure::new(Exit::Protocol, line))
            }
            _ => News::Gone,
        };
        let _ = post.send((side, news));
    };
    std::thread::Builder::new().name("agent".to_owned()).stack_size(256 << 10).spawn(read).map_err(failed)?;
    Ok((process, outbox))
}

/// Where the agent with this hash is kept, for a shell.
fn cache_directory(hash: &str) -> String {
    format!("$HOME/.cache/rdma-pipe/{hash}")
}

/// The command that takes the agent on its standard input. Nothing in it but the hash and the length varies, and it has
/// no single quote, so that any login shell hands it to `sh` as it is.
fn upload_command(hash: &str, length: usize) -> String {
    let directory = cache_directory(hash);
    format!(
        "sh -c 'd=\"{directory}\"; if [ -x \"$d/{AGENT}\" ]; then echo {BOOTSTRAP_MARK}have; exit 0; fi; \
         l=other; getconf GNU_LIBC_VERSION >/dev/null 2>&1 && l=gnu; \
         echo \"{BOOTSTRAP_MARK}want $(uname -s) $(uname -m) $l\"; \
         umask 077; mkdir -p \"$d\" && cat >\"$d/.new.$$\" && [ $(wc -c <\"$d/.new.$$\") -eq {length} ] && \
         chmod 700 \"$d/.new.$$\" && mv \"$d/.new.$$\" \"$d/{AGENT}\" && echo {BOOTSTRAP_MARK}done; \
         rm -f \"$d/.new.$$\"; rmdir \"$d\" 2>/dev/null; :'"
    )
}

fn upload(program: &[u8], mut stdin: ChildStdin, stdout: ChildStdout) -> Result<(), String> {
    let mut lines = BufReader::new(stdout.take(BOOTSTRAP_LINES_MAX));
    let mut next = || -> Result<String, String> {
        loop {
            let mut line = Vec::new();
            match lines.read_until(b'\n', &mut line) {
                Ok(1..) => {}
                _ => return Err("the host does not answer".to_owned()),
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(answer) = line.trim_end().strip_prefix(BOOTSTRAP_MARK) {
                return Ok(answer.to_owned());
            }
        }
    };
    let answer = next()?;
    if answer == "have" {
        return Ok(());
    }
    let ours = Hello::ours();
    let theirs: Vec<&str> = answer.split(' ').collect();
    // A program linked with musl brings its library with it.
    let fits = matches!(theirs[..], ["want", system, machine, libc]
        if system == ours.system && machine == ours.machine && (libc == ours.libc || ours.libc == "musl"));
    if !fits {
        let theirs = escaped(OsStr::new(answer.trim_start_matches("want ")));
        return Err(format!("it is {theirs}, this host {} {} {}", ours.system, ours.machine, ours.libc));
    }
    stdin.write_all(program).map_err(|error| error.to_string())?;
    drop(stdin);
    if next()? == "done" { Ok(()) } else { Err("it was not taken".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upload_is_one_word_for_any_shell() {
        let command = upload_command(&"0".repeat(32), 7);
        let inner = command.strip_prefix("sh -c '").and_then(|rest| rest.strip_suffix('\'')).expect("quoted");
        assert!(!inner.contains('\''), "{inner}");
    }
}
