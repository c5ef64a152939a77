//! An agent on another host: its launcher, its channel, and what can go wrong before it answers.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::Sender;

use crate::control::channel::{ChannelError, Heeded, Outbox, receive, skip_to_magic};
use crate::control::frames::{Hello, MAJOR, MESSAGE_BYTES_MAX, MINOR, Message};
use crate::control::join::Joiner;
use crate::control::launch::{AGENT, HOLD_MAX, Launched, Launcher, Process, agent_command};
use crate::control::logs::{Asked, LogOfHost};
use crate::control::stages::{Warden, await_guards};
use crate::fault::{Exit, Failure, errno_of, escaped, os};
use crate::log::{self, Step};

mod bootstrap;

pub(crate) use bootstrap::{AgentChoice, Otherwise};
use bootstrap::{Own, Preface, Request};

/// What is received from the hosts of a copy or a pipeline.
pub(crate) enum Heard {
    /// A message of an end.
    Message(Message),
    /// An agent is no longer heard.
    Gone,
    /// An agent shows no sign of life, although its channel is open.
    Silent,
    /// An agent's channel is unusable, for this reason.
    Broken(Failure),
    /// A message of entries from this end has been taken, or could not be.
    EntriesTaken(u32, Result<(), Failure>),
    /// This process has received a signal.
    Signal(i32),
    /// Another command requests one more host.
    Join(Joiner),
}

/// Where reports about a host are posted, with the host's number.
pub(crate) type Post = Sender<(usize, Heard)>;

/// Maximum number of reports that wait. Beyond that, agents and writers of standard error have to wait as well.
const HEARD_MAX: usize = 64;

/// Maximum number of bytes that wait for an agent to take them: more than all connections of a few sessions through its
/// channel have in flight.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Posts a message of this host's own part. As with a pipe, a writer of standard error waits for its reader. Otherwise
/// a loud stage would fill the memory, and a signal would wait behind all of its output.
pub(crate) fn post_in_turn(post: &Post, host: usize, message: Message) {
    if matches!(message, Message::StageStderr { .. }) {
        await_turn(post);
    }
    let _ = post.send((host, Heard::Message(message)));
}

/// Longest pause before looking again whether it is the turn of a report. Many agents may be waiting.
const TURN_PAUSE_MAX: Duration = Duration::from_millis(50);

fn await_turn(post: &Post) {
    let mut pause = Duration::from_millis(1);
    while post.len() > HEARD_MAX && !post.is_disconnected() {
        std::thread::sleep(pause);
        pause = TURN_PAUSE_MAX.min(2 * pause);
    }
}

/// How long an agent may take to answer: as long as sshd lets a user type a password.
pub(super) const HELLO_MAX: Duration = Duration::from_secs(120);

/// How long a host counts among those that log in at once if nothing is heard of it.
const TURN_MAX: Duration = Duration::from_secs(5);

/// How often a host is logged in to that turns logins away because others log in at the same time, and how long the
/// first pause is. Each further one is twice as long. What comes from many hosts at once is spread over `SPREAD_MS` more.
const LOGINS_MAX: u32 = 4;
const LOGIN_PAUSE: Duration = Duration::from_secs(1);
const SPREAD_MS: u64 = 1000;

/// Exit codes of a launcher that was ended by a signal which this process may have received too: SIGHUP, SIGINT,
/// SIGQUIT, SIGTERM.
const SIGNALLED: [i32; 4] = [129, 130, 131, 143];

/// How long to wait for this process's own signal in that case.
pub(super) const SIGNAL_MAX: Duration = Duration::from_millis(100);

/// How often to check whether a launcher that is finishing has exited.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long a launcher that is finishing may take to end.
const EXIT_MAX: Duration = Duration::from_secs(1);

/// An agent, a launcher on its way to one, or a host whose turn has not come. Dropping this ends the agent.
pub(crate) struct Remote {
    host: OsString,
    choice: AgentChoice,
    /// Whether the agent installed on the host is not used.
    past_installed: bool,
    /// `None` if its launcher has not been started, or was ended.
    running: Option<Running>,
    is_given_up: bool,
    /// Whether the launcher's standard error is being passed on.
    released: bool,
    /// The launcher's exit code, if it ended before the agent answered.
    exit: Option<i32>,
    /// Whether the launcher has reached the host, but the agent is missing there and could not be sent.
    pub(super) lacks_agent: bool,
    /// Whether the launcher has reached the host, but what answers there, if anything, is not an agent.
    pub(super) is_reached: bool,
    /// Time from its start to its first message, without that of sending the agent.
    pub(super) answered_after: Duration,
    hello: Option<Hello>,
    /// Whether its launcher was told never to ask the user.
    is_unasking: bool,
    /// Whether it must be started again by a launcher that may ask, or has been.
    must_ask: bool,
    /// How often the host has turned a login away, and when the next one may begin.
    turned_away: u32,
    not_before: Option<Instant>,
    /// Set when nothing more will be heard of it.
    silent: Option<Silent>,
    side: usize,
    post: Post,
}

/// The state of an agent that will not be heard any more: since when, and when to look again for the reason.
struct Silent {
    since: Instant,
    look_at: Instant,
}

/// A launcher that was started.
struct Running {
    process: Process,
    outbox: Outbox,
    started: Instant,
    beginning: Arc<Beginning>,
    log: Asked,
}

/// The state of an agent that has not sent its HELLO.
struct Beginning {
    /// When the host last sent something, or took a part of the agent that is sent to it; in the future while it may
    /// still be taking the last part.
    heard: Mutex<Instant>,
    /// Why the agent will not begin.
    failed: Mutex<Option<NotBegun>>,
    /// What has come on the launcher's standard output before the agent.
    preface: Mutex<Preface>,
}

/// Reports whether launchers for this many hosts may ask the user for passwords at any time. The questions of several
/// launchers on one terminal could not be told apart.
pub(crate) fn may_ask(hosts: usize) -> bool {
    hosts < 2 || std::fs::File::open("/dev/tty").is_err()
}

/// Why an agent has not begun.
pub(super) enum NotBegun {
    /// The launcher must ask the user something, and was told not to.
    MustAsk,
    /// The launcher has reached the host, but the agent is missing or of another version.
    NoUse(Failure),
    /// The host, or a jump host, has turned the login away, and may take the next one.
    TurnedAway(Failure),
    Failed(Failure),
}

/// Exit code of ssh if the connection failed. A shell reports a command ended by a signal with a smaller code.
const SSH_FAILED: i32 = 255;

/// Smallest exit code that tells of a signal, as 128 and its number. The signal has ended the launcher, or, if the
/// launcher passes on the exit code of a shell, the agent. git-shell refuses the agent with 128.
const SIGNALLED_MIN: i32 = 129;

/// How long a launcher's last output may take to come once the launcher has ended.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// Messages of ssh in cases in which it would have asked the user.
const WOULD_ASK: [&str; 2] = ["Permission denied", "Host key verification failed"];

impl Remote {
    /// Creates an agent for a host without starting it. Its messages will be posted as those of `side`. For `may_ask`,
    /// see [`may_ask`].
    pub(crate) fn new(
        launcher: &Launcher,
        host: &OsStr,
        choice: &AgentChoice,
        side: usize,
        post: Post,
        may_ask: bool,
    ) -> Self {
        Self {
            host: host.to_owned(),
            choice: choice.clone(),
            past_installed: false,
            running: None,
            is_given_up: false,
            released: false,
            exit: None,
            lacks_agent: false,
            is_reached: false,
            answered_after: Duration::ZERO,
            hello: None,
            is_unasking: !may_ask && launcher.unasking().is_some(),
            must_ask: false,
            turned_away: 0,
            not_before: None,
            silent: None,
            side,
            post,
        }
    }

    /// Starts the agent, or starts it again with a launcher that may ask the user now, or with another agent.
    ///
    /// # Errors
    ///
    /// Exit 3 if the launcher cannot be started.
    pub(crate) fn start(&mut self, launcher: &Launcher) -> Result<(), Failure> {
        // An earlier launcher ends first.
        self.running = None;
        let unasking = if self.is_unasking { launcher.unasking() } else { None };
        let launcher = unasking.as_ref().unwrap_or(launcher);
        let post = self.post.clone();
        self.running = Some(begin(launcher, &self.host, &self.choice, self.past_installed, self.side, post)?);
        (self.released, self.exit, self.silent) = (false, None, None);
        Ok(())
    }

    /// Reports whether it was given up before the agent had sent its HELLO.
    pub(super) fn is_unreached(&self) -> bool {
        self.hello.is_none() && self.is_given_up
    }

    /// Reports whether the agent has not sent its HELLO yet, but still may.
    pub(super) fn is_arriving(&self) -> bool {
        self.hello.is_none() && !self.is_given_up
    }

    /// Reports whether its launcher is still to be started.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_arriving() && self.running.is_none() && !self.must_ask && !self.is_paused()
    }

    fn is_paused(&self) -> bool {
        self.not_before.is_some_and(|at| at > Instant::now())
    }

    /// Returns when its launcher may be started again.
    pub(super) fn pause_ends(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.is_arriving() && self.running.is_none())
    }

    /// Has it started again after a pause, because the host has turned the login away.
    ///
    /// # Errors
    ///
    /// `failure` if that has been done often enough.
    pub(super) fn pause(&mut self, failure: Failure) -> Result<(), Failure> {
        self.turned_away += 1;
        if self.turned_away == LOGINS_MAX {
            let message = failure.message.map(|line| format!("{line}; too many logins at once? see --parallel"));
            return Err(Failure { message, ..failure });
        }
        let spread = Duration::from_millis(self.side as u64 * 97 % SPREAD_MS);
        self.not_before = Some(Instant::now() + LOGIN_PAUSE * (1 << (self.turned_away - 1)) + spread);
        (self.running, self.silent) = (None, None);
        Ok(())
    }

    /// Reports whether it counts among those that log in at once.
    pub(super) fn takes_turn(&self) -> bool {
        self.is_arriving() && self.turn_ends().is_some_and(|ends| ends > Instant::now())
    }

    /// Returns when it no longer counts among those that log in at once.
    pub(super) fn turn_ends(&self) -> Option<Instant> {
        self.running.as_ref().filter(|_| !self.must_ask).map(|running| running.begun() + TURN_MAX)
    }

    /// Reports whether its launcher must ask the user something, and waits for its turn.
    pub(super) fn waits_to_ask(&self) -> bool {
        self.is_arriving() && self.must_ask && self.running.is_none() && !self.is_paused()
    }

    /// Reports whether its launcher may be asking the user something.
    pub(super) fn is_asking(&self) -> bool {
        self.is_arriving() && self.must_ask && self.running.is_some()
    }

    /// Returns how long ago its launcher was started.
    pub(super) fn started_ago(&self) -> Option<Duration> {
        self.running.as_ref().map(|running| running.started.elapsed())
    }

    /// Grants an agent on its way the whole time once more, after this process was stopped for a time.
    pub(super) fn await_anew(&self, stopped: Duration) {
        if let Some(running) = &self.running {
            let mut heard = crate::locked(&running.beginning.heard);
            *heard = Instant::now().max(*heard + stopped);
        }
    }

    /// Returns how long nothing has been heard of it, if it is on its way.
    pub(super) fn unheard_for(&self) -> Option<Duration> {
        self.running.as_ref().filter(|_| self.is_arriving()).map(|running| running.begun().elapsed())
    }

    /// Starts it again. Its launcher may ask the user now.
    ///
    /// # Errors
    ///
    /// As [`Remote::start`].
    pub(super) fn ask(&mut self, launcher: &Launcher) -> Result<(), Failure> {
        self.is_unasking = false;
        self.start(launcher)
    }

    /// Stops waiting for it. What runs there ends by itself, except a launcher that waits for something.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
        self.close();
        if self.may_be_asking() {
            self.running = None;
        }
    }

    /// Reports whether its launcher may be waiting for the user, and would go on waiting.
    fn may_be_asking(&self) -> bool {
        self.released && self.hello.is_none() && !self.lacks_agent
    }

    /// Handles an installed agent that cannot be used: runs an agent that was sent to the host earlier, or sends the
    /// caller's own.
    ///
    /// # Errors
    ///
    /// `failure` if that is not allowed or has been done already; exit 3.
    pub(super) fn pass_installed(&mut self, launcher: &Launcher, failure: Failure) -> Result<(), Failure> {
        if self.past_installed || self.choice.otherwise == Otherwise::Fail {
            return Err(failure);
        }
        if let Err(reason) = Own::find() {
            let has_another = failure.exit == Exit::Protocol;
            return Err(if has_another { failure } else { self.choice.missing(&self.label(), &format!(": {reason}")) });
        }
        self.past_installed = true;
        self.start(launcher)
    }

    /// Sends a message. If it cannot be sent, that is posted as the host's failure.
    pub(crate) fn send(&self, message: Message) {
        // The failure of a host that was given up is known already.
        let Some(Running { outbox, .. }) = self.running.as_ref().filter(|_| !self.is_given_up) else { return };
        let failure = if outbox.waiting_bytes() > WAITING_BYTES_MAX {
            Exit::LinkLost.with(format!("{} does not read the messages sent to it", self.label()))
        } else if !outbox.try_send(message) {
            let (label, most) = (self.label(), MESSAGE_BYTES_MAX >> 10);
            let line = format!("the request to {label} exceeds {most} KiB; request less at a time");
            Exit::Usage.with(line)
        } else {
            return;
        };
        let _ = self.post.send((self.side, Heard::Broken(failure)));
    }

    /// Returns when an agent on its way needs attention again; `None` if it is not on its way or has not been started.
    pub(super) fn due(&self) -> Option<Instant> {
        let running = self.running.as_ref().filter(|_| self.is_arriving())?;
        let hello_due = || running.begun() + if self.released { HELLO_MAX } else { HOLD_MAX };
        Some(self.silent.as_ref().map_or_else(hello_due, |silent| silent.look_at))
    }

    /// Records that nothing more will be heard of an agent on its way.
    pub(super) fn falls_silent(&mut self) {
        let now = Instant::now();
        self.silent.get_or_insert(Silent { since: now, look_at: now });
    }

    /// Returns why an agent that has fallen silent has not begun. `None` while that is unknown, and for any other
    /// agent.
    pub(super) fn why_silent(&mut self, launcher: &Launcher) -> Option<NotBegun> {
        let silent = self.silent.as_mut()?;
        let Running { process, beginning, .. } = self.running.as_mut()?;
        let is_known = crate::locked(&beginning.failed).is_some();
        if !is_known && silent.since.elapsed() < EXIT_MAX {
            // The launcher's exit code tells why.
            silent.look_at = Instant::now() + LOOK_AGAIN;
            self.exit = self.exit.or_else(|| process.wait(Duration::ZERO));
            let code = self.exit?;
            // timeout(1) and terminals send a signal to the launcher as well, and its end may be noticed before this
            // process's signal.
            if SIGNALLED.contains(&code) && silent.since.elapsed() < SIGNAL_MAX {
                return None;
            }
        }
        let why = self.not_begun(launcher);
        if matches!(why, NotBegun::MustAsk) {
            (self.must_ask, self.running, self.silent) = (true, None, None);
        }
        Some(why)
    }

    /// Records that nothing has come by the time it was due. The launcher may be asking the user, so it gets more time.
    ///
    /// # Errors
    ///
    /// Exit 3 if that time is used up.
    pub(super) fn late(&mut self) -> Result<(), Failure> {
        if self.released {
            let seconds = HELLO_MAX.as_secs();
            return Err(Exit::Connect.with(format!("no agent answered on {} within {seconds} s", self.label())));
        }
        self.released = true;
        self.running.iter().for_each(|running| running.process.let_ask());
        Ok(())
    }

    /// Takes the agent's HELLO, and answers with this process's own.
    pub(super) fn greeted(&mut self, hello: Hello) {
        if let Some(running) = &self.running {
            running.process.release();
            let login = crate::locked(&running.beginning.preface).login;
            self.answered_after = login + running.begun().elapsed();
            running.outbox.send(Message::Hello(Hello::ours()));
            running.log.ask(&running.outbox);
            log::end(Step::Launch, &self.label(), || {
                let Hello { program, system, machine, host, .. } = &hello;
                let (host, after) = (escaped(OsStr::from_bytes(host)), self.answered_after.as_millis());
                format!("an agent answered after {after} ms: rdma-pipe {program}, {system} {machine}, host {host}")
            });
        }
        self.hello = Some(hello);
    }

    /// Returns the identifier of the kernel on which the agent runs; empty if unknown.
    pub(crate) fn kernel_id(&self) -> &[u8] {
        self.hello.as_ref().map_or(&[], |hello| &hello.kernel_id)
    }

    /// Returns the address at which the launcher itself has reached the host, if that can be found out.
    pub(crate) fn reached_at(&self) -> Option<IpAddr> {
        self.running.as_ref()?.process.connected_to()
    }

    /// Reports whether ssh's configuration asks for a terminal, and it has not got one.
    pub(super) fn lacks_terminal(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.process.lacks_terminal())
    }

    /// Reports whether an agent that is no longer heard has ended by itself: its launcher was not killed or cut off.
    pub(super) fn has_left(&mut self) -> bool {
        let code = self.running.as_mut().and_then(|running| running.process.wait(EXIT_MAX));
        code.is_some_and(|code| code < SIGNALLED_MIN)
    }

    /// Has the agent end as soon as it has done what was requested.
    pub(crate) fn close(&self) {
        self.running.iter().for_each(|running| running.outbox.close());
    }

    /// Returns why the agent has not begun: the launcher has ended, or what it runs is not an agent of this protocol.
    fn not_begun(&mut self, launcher: &Launcher) -> NotBegun {
        let (mut complaint, mut is_installed, mut is_turned_away) = (None, false, false);
        if let Some(Running { process, beginning, .. }) = &mut self.running {
            if let Some(failed) = crate::locked(&beginning.failed).take() {
                self.lacks_agent = matches!(failed, NotBegun::Failed(_));
                self.is_reached = true;
                return failed;
            }
            self.exit = self.exit.or_else(|| process.wait(Duration::ZERO));
            // A launcher that a signal has ended, or that has not ended, does not tell whether it has reached the host.
            self.is_reached = self.exit.is_some_and(|code| code < SIGNALLED_MIN);
            // The last output may still be in the pipe, which a background process may keep open.
            let until = Instant::now() + LAST_WORDS_MAX;
            while !process.has_said_all() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            // That line may be the reason, or a greeting.
            let mut preface = crate::locked(&beginning.preface);
            is_installed = preface.is_installed;
            let noise = || preface.noise.take().map(|line| format!("last output: {line}"));
            is_turned_away = self.exit == Some(SSH_FAILED) && process.is_turned_away();
            complaint = process.last_complaint().or_else(noise);
        }
        let would_ask = complaint.as_ref().is_some_and(|line| WOULD_ASK.iter().any(|words| line.contains(words)));
        if self.is_unasking && would_ask {
            return NotBegun::MustAsk;
        }
        let (label, launcher) = (self.label(), escaped(launcher.name()));
        let because = complaint.map(|line| format!(": {}", escaped(OsStr::new(&line)))).unwrap_or_default();
        let message = match self.exit {
            // The installed agent cannot be loaded there: it needs a newer glibc, or is for another kind of machine.
            // The code is that of the login shell unless the script has come to run it. An agent that was loaded but
            // could not start, as at a limit on processes, says so by its own code; another would not start either.
            Some(code)
                if matches!(code, 126 | 127)
                    || is_installed && code < SIGNALLED_MIN && code != i32::from(Exit::Connect.code()) =>
            {
                self.lacks_agent = true;
                return NotBegun::NoUse(self.choice.missing(&label, &because));
            }
            Some(SSH_FAILED) => format!("cannot reach {label} by {launcher}{because}"),
            Some(code) => {
                let is_lost = code >= SIGNALLED_MIN;
                let lost = if is_lost { ", which was lost" } else { "" };
                let ended = format!("{launcher} ended with exit code {code}{because}");
                let line = format!("no agent answered on {label}{lost}: {ended}");
                // The code is that of the login, unless a signal has ended ssh, or the agent was begun.
                match launcher == "ssh" && !is_lost && !is_installed {
                    true => {
                        let line = line.trim_end_matches('.');
                        format!("{line}; check that `ssh {label} true` works and prints nothing")
                    }
                    false => line,
                }
            }
            None => format!("the program on {label} is not an rdma-pipe agent, or was lost{because}"),
        };
        let failure = Exit::Connect.with(message);
        if is_turned_away { NotBegun::TurnedAway(failure) } else { NotBegun::Failed(failure) }
    }

    fn label(&self) -> String {
        escaped(&self.host)
    }
}

impl Running {
    /// Returns when the launcher was started, or when sending the agent last made progress, which may be in the future.
    fn begun(&self) -> Instant {
        self.started.max(*crate::locked(&self.beginning.heard))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        end_all(std::iter::once(self));
    }
}

/// Ends agents and their launchers in parallel.
pub(super) fn end_all<'a>(remotes: impl Iterator<Item = &'a mut Remote>) {
    let (mut asking, mut ending) = (Vec::new(), Vec::new());
    for remote in remotes {
        // The agent ends when its standard input ends, and the launcher ends with it.
        remote.close();
        let list = if remote.may_be_asking() { &mut asking } else { &mut ending };
        list.extend(remote.running.as_mut().map(|running| &mut running.process));
    }
    Process::end_all(asking, Duration::ZERO);
    Process::end_all(ending, EXIT_MAX);
}

/// Ends the launchers if this process is killed. A launcher that is cut off from its host would otherwise wait for the
/// network's own timeouts.
static WARDEN: Mutex<Option<Warden>> = Mutex::new(None);

/// Waits a moment until the helpers of this process have ended. All launchers must have ended.
pub(crate) fn dismiss_helpers() {
    drop(crate::locked(&WARDEN).take());
    await_guards();
}

fn launch(launcher: &Launcher, host: &OsStr, command: &OsStr) -> Result<Launched, Failure> {
    let launched = launcher.start(host, command).map_err(|error| {
        let errno = os(errno_of(&error));
        Exit::Connect.with(format!("cannot run {}: {errno}; see {}", escaped(launcher.program()), launcher.option()))
    })?;
    let mut warden = crate::locked(&WARDEN);
    if warden.is_none() {
        // Everything works without it, too.
        *warden = Warden::start().ok();
    }
    if let Some(warden) = &mut *warden {
        warden.watch(launched.process.id());
    }
    Ok(launched)
}

/// Starts an agent, and a thread that reads its messages.
fn begin(
    launcher: &Launcher,
    host: &OsStr,
    choice: &AgentChoice,
    past_installed: bool,
    side: usize,
    post: Post,
) -> Result<Running, Failure> {
    // A launcher that is not known to hand the command to a shell first gets only the agent's name.
    let is_sought = past_installed || launcher.has_shell() && choice.program == AGENT;
    let request = match choice.otherwise {
        Otherwise::Cached | Otherwise::Send if is_sought => Some(Request::new(choice, host)),
        _ => None,
    };
    let command = request.as_ref().map(|request| request.script(past_installed));
    let label = escaped(host);
    log::begin(Step::Launch, &label, || {
        let shown = if command.is_some() { AGENT.as_ref() } else { &*choice.program };
        format!("runs {}", launcher.shown(host, shown))
    });
    let Launched { stdin, stdout, process } =
        launch(launcher, host, &command.unwrap_or_else(|| agent_command(&choice.program)))?;
    if request.is_some() {
        Own::prepare();
    }
    let failed = |error: std::io::Error| Exit::Connect.with(format!("cannot start a thread: {error}"));
    // Nothing else is written to this pipe before the agent has sent its HELLO.
    let upload = File::from(stdin.as_fd().try_clone_to_owned().map_err(failed)?);
    let outbox = Outbox::start(stdin, b"", None).map_err(failed)?;
    let heard = Mutex::new(Instant::now());
    let beginning = Arc::new(Beginning { heard, failed: Mutex::default(), preface: Mutex::default() });
    let shared = Arc::clone(&beginning);
    let asked = Asked::default();
    let mut log = LogOfHost::new(&label, asked.clone());
    let patience_s = launcher.patience_s;
    let read = move || {
        let give_up = |failed| {
            *crate::locked(&shared.failed) = Some(failed);
            let _ = post.send((side, Heard::Gone));
        };
        let mut stdout = BufReader::with_capacity(128 << 10, Heeded::new(stdout));
        let begun = match request {
            Some(request) => {
                let mut preface = Preface::default();
                let begun = request.serve(&mut stdout, upload, &shared.heard, &mut preface);
                *crate::locked(&shared.preface) = preface;
                match begun {
                    Ok(begun) => begun,
                    Err(failure) => return give_up(NotBegun::Failed(failure)),
                }
            }
            None => {
                drop(upload);
                skip_to_magic(&mut stdout)
            }
        };
        if let Err(ChannelError::NoMagic) = begun {
            let line = format!("the program on {label} is not an rdma-pipe agent: too much unexpected output");
            return give_up(NotBegun::Failed(Exit::Connect.with(line)));
        }
        let mut received = begun.and_then(|()| receive(&mut stdout));
        if let Ok(Message::Hello(hello)) = &received {
            if let Some(failure) = other_version(hello, &label) {
                return give_up(NotBegun::NoUse(failure));
            }
            stdout.get_mut().expect_beats(patience_s);
        }
        let error = loop {
            match received {
                Ok(Message::LogLine(line)) => log.take(*line),
                Ok(Message::StillHere) => {}
                Ok(message) => {
                    await_turn(&post);
                    if post.send((side, Heard::Message(message))).is_err() {
                        return;
                    }
                }
                Err(error) => break error,
            }
            received = receive(&mut stdout);
        };
        let last = match error {
            ChannelError::Message(error) => {
                let line = format!("the agent on {label} broke the protocol: {error}");
                Heard::Broken(Exit::Protocol.with(line))
            }
            ChannelError::Silent => Heard::Silent,
            _ => Heard::Gone,
        };
        let _ = post.send((side, last));
    };
    std::thread::Builder::new().name("agent".to_owned()).stack_size(256 << 10).spawn(read).map_err(failed)?;
    Ok(Running { process, outbox, started: Instant::now(), beginning, log: asked })
}

/// Returns a failure with exit 9 if the two versions do not understand each other.
fn other_version(hello: &Hello, label: &str) -> Option<Failure> {
    let Hello { major, minor, program, .. } = hello;
    (*major != MAJOR).then(|| {
        let (theirs, ours) = (escaped(OsStr::new(program)), env!("CARGO_PKG_VERSION"));
        Exit::Protocol.with(format!(
            "incompatible versions: {label} has rdma-pipe {theirs} (control protocol {major}.{minor}), this host \
                 {ours} ({MAJOR}.{MINOR}); install the same release, or choose another with --agent"
        ))
    })
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{UsageWho, getrusage};

    use super::*;

    #[test]
    fn who_waits_long_for_its_turn_looks_seldom() {
        let (post, heard) = flume::unbounded();
        (0..=HEARD_MAX).for_each(|side| post.send((side, Heard::Gone)).expect("room"));
        let waiting = std::thread::spawn(move || {
            let sleeps = || getrusage(UsageWho::RUSAGE_THREAD).expect("figures").voluntary_context_switches();
            let before = sleeps();
            await_turn(&post);
            sleeps() - before
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "nothing has been taken");
        drop(heard);
        let sleeps = waiting.join().expect("no panic");
        assert!(sleeps <= 30, "{sleeps} times");
    }
}
