//! The caller: starts the hosts of a command, connects their ends, has the work done, and learns the outcome.
//!
//! A [`Job`] is a graph of hosts and hops. The caller's own host is an [`Agent`] in this process; any other is an agent
//! behind a channel. Both take the same messages, and their answers come through one queue. What all commands have in
//! common is done here: starting, meeting, passing connections through the channels, ending. Everything that a command
//! must decide comes to it as an [`Update`].

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, unbounded};

use crate::agent::Agent;
use crate::control::channel::STATES_WAITING_MAX;
use crate::control::endpoints;
use crate::control::frames::{self, Begin, Endpoint, Hello, Message, SessionKey};
use crate::control::join::{JoinListener, Joiner};
use crate::control::launch::Launcher;
use crate::control::tunnel::Emit;
use crate::engine::Waits;
use crate::engine::link::rng;
use crate::fault::{Exit, Failure, escaped};
use crate::log::{self, Step};
use crate::options::{RailChoice, TransferOptions};
use crate::signals::Forwarding;

mod arrivals;
pub mod check;
pub mod copy;
pub mod entries;
pub mod event;
pub mod examine;
mod failures;
pub mod hop;
pub mod launching;
pub mod measure;
pub mod pipeline;
pub mod plan;
pub mod progress;
pub(crate) mod shell;
pub(crate) mod targets;
pub(crate) mod watch;

use entries::EntryQueue;
use event::Event;
pub(crate) use failures::name_at;
use hop::{Hop, Next, Side};
use launching::{AgentChoice, Heard, Post, Remote, post_in_turn};
use progress::HostShown;

/// The number of the host on which this process runs.
const HERE: usize = 0;

/// How long the second end of a session may take to report its outcome after the first.
const SECOND_MAX: Duration = Duration::from_secs(3);

/// The same for an end that lists entries, after the last message of entries.
const LISTING_MAX: Duration = Duration::from_secs(60);

/// How often to check for an end that has not reported its outcome.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Timeout for waits without a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// How long the ends of a session may take to end after a signal.
const STOP_MAX: Duration = Duration::from_millis(2500);

/// Receives what a job reports: as lines for a person, as events for a program.
pub(crate) trait Observer {
    /// Takes an event for `--json`.
    fn event(&mut self, event: &Event<'_>);
    /// Shows a line to the user, unless the user wants none.
    fn remark(&mut self, line: &str);
    /// Shows an error line.
    fn complain(&mut self, line: &str);
    /// Takes how many bytes an end of a hop has moved so far, and where its time went. An end may report any numbers.
    fn measured(&mut self, _hop: &Hop, _side: Side, _bytes: u64, _waits: Waits) {}
    /// Shows how far each of several hosts that get one stream has come, in bytes. The source has made `made` bytes so
    /// far; if `is_all`, that is the whole stream.
    fn show_hosts(&mut self, hosts: &[HostShown], made: u64, is_all: bool, elapsed: Duration);
    /// Ends the display of progress.
    fn finish(&mut self);
}

/// How other hosts are reached, according to the command line.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) launcher: Launcher,
    pub(crate) agent: AgentChoice,
    /// Maximum number of launchers started before one of them has reached its host.
    pub(crate) parallel: usize,
    /// Whether data goes through the channels.
    pub(crate) relay: bool,
    /// The interface or address over which data goes; empty for any.
    pub(crate) via: Vec<u8>,
    /// The name of this host for other hosts, if the user gives one.
    pub(crate) name: Option<String>,
    /// Whether launchers may ask the user for passwords at any time. With several on one terminal, their questions
    /// could not be told apart.
    pub(crate) may_ask: bool,
}

impl Setup {
    /// Returns the launcher's name for messages.
    pub(crate) fn launcher_name(&self) -> String {
        escaped(self.launcher.name())
    }
}

/// A host as the caller sees it.
struct Host {
    /// The host's name for the launcher; empty for this host.
    name: OsString,
    /// Its agent; `None` for this host.
    remote: Option<Remote>,
    /// Whether the host is no longer heard.
    gone: bool,
    /// Whether it was given up because it showed no sign of life.
    is_silent: bool,
}

impl Host {
    /// Returns the host's name for messages.
    fn label(&self) -> String {
        if self.name.is_empty() { "this host".to_owned() } else { escaped(&self.name) }
    }

    /// Returns the identifier of the kernel on which the host runs; empty if unknown.
    fn kernel_id(&self) -> Vec<u8> {
        self.remote.as_ref().map_or_else(|| Hello::ours().kernel_id, |remote| remote.kernel_id().to_vec())
    }
}

/// Something that a command must handle.
enum Update {
    /// A host has been reached and has sent its HELLO.
    Arrived(usize),
    /// A message of a host that belongs to no session.
    Host(usize, Message),
    /// A message of an end of a hop.
    End(usize, Side, Message),
    /// An end of a pipeline's hop has agreed with the other end.
    Agreed,
    /// An end of a hop has reported its outcome.
    Ended(usize, Side),
    /// A line for the user about a hop.
    Say(String),
    /// The ends of a hop cannot be connected, for this reason.
    Unmet(usize, String),
    /// A host is no longer heard, or could not be reached; with the reason if its channel is unusable.
    Gone(usize, Option<Failure>),
    /// This host has failed to process what ends have reported.
    Failed(Failure),
    /// This process has received a signal.
    Signal(i32),
    /// Another command requests one more host.
    Join(Joiner),
}

/// The task of one end of a hop.
struct EndOf {
    host: usize,
    /// The stage of a pipeline to which the end belongs.
    stage: Option<usize>,
    /// The end's name for messages at the other end.
    name: String,
    job: frames::Job,
}

/// Maximum number of updates handled between two looks at the time.
const UPDATES_MAX: usize = 1024;

/// The updates handled between two looks at the time: see [`Job::next_in`].
struct Round {
    now: Instant,
    /// Deadline for waiting for the next update.
    until: Instant,
    left: usize,
}

impl Round {
    /// Begins a round whose first update is waited for this long.
    fn within(limit: Duration) -> Self {
        let now = Instant::now();
        Self { now, until: now + limit, left: UPDATES_MAX }
    }
}

/// The hosts of a command and the hops between them.
pub(crate) struct Job {
    setup: Setup,
    /// This host's agent.
    agent: Agent,
    hosts: Vec<Host>,
    hops: Vec<Hop>,
    /// Ends by their numbers in messages: the hop, and the side of the hop.
    ends: HashMap<u32, (usize, Side)>,
    ends_begun: u32,
    post: Post,
    heard: Receiver<(usize, Heard)>,
    updates: VecDeque<Update>,
    /// Takes the entries that ends report, if they are asked to report any.
    entries: Option<EntryQueue>,
    /// Whether a host that cannot be reached or is lost leaves questions to other hosts unaffected.
    fails_alone: bool,
    /// Set while signals are handled.
    signals: Option<Forwarding>,
    /// Whether a signal to this process has been heard.
    is_signalled: bool,
    /// When a lost host was last taken for lost without a signal.
    awaited_signal: Option<Instant>,
    /// Damages data that goes through the channels, if a drill requests that.
    tamper: Option<examine::drill::Tamper>,
}

impl Job {
    /// Creates a job with only this host. For `tells_stderr`, see [`Agent::new`].
    ///
    /// # Errors
    ///
    /// Exit 3 if signals cannot be handled.
    fn new(setup: Setup, tells_stderr: bool) -> Result<Self, Failure> {
        let mut job = Self::without_signals(setup, tells_stderr);
        let post = job.post.clone();
        let signals = crate::signals::forward(false, move |signal| post.send((HERE, Heard::Signal(signal))).is_ok())
            .map_err(|error| Exit::Connect.with(format!("cannot handle signals: {error}")))?;
        job.signals = Some(signals);
        // It may have come while only an outer job took signals, as that of `--watch` does between two copies.
        if let Some(number) = crate::signals::last_asked() {
            let _ = job.post.send((HERE, Heard::Signal(number.into())));
        }
        Ok(job)
    }

    fn without_signals(setup: Setup, tells_stderr: bool) -> Self {
        let (post, heard) = unbounded();
        let (said, queue) = (post.clone(), post.clone());
        let say: Emit = Arc::new(move |message| post_own(&said, message));
        let tell: Emit = Arc::new(move |message| post_in_turn(&queue, HERE, message));
        let agent = Agent::new(say, tell, Arc::new(|| {}), false, tells_stderr);
        let hosts = vec![Host { name: OsString::new(), remote: None, gone: false, is_silent: false }];
        let (hops, ends, updates) = Default::default();
        Self {
            setup,
            agent,
            hosts,
            hops,
            ends,
            ends_begun: 0,
            post,
            heard,
            updates,
            entries: None,
            fails_alone: false,
            signals: None,
            is_signalled: false,
            awaited_signal: None,
            tamper: None,
        }
    }

    /// Returns the number of a host. A new host is started unless too many are starting already. `name` is empty for
    /// this host.
    ///
    /// # Errors
    ///
    /// Exit 3 if its launcher cannot be started.
    fn host(&mut self, name: &OsStr) -> Result<usize, Failure> {
        match self.hosts.iter().position(|host| host.name == name && !host.gone) {
            Some(known) => Ok(known),
            None => self.host_anew(name),
        }
    }

    /// Does the same with a new agent, even if a host of this name is known.
    fn host_anew(&mut self, name: &OsStr) -> Result<usize, Failure> {
        let Setup { launcher, agent, may_ask, .. } = &self.setup;
        let number = self.hosts.len();
        let mut remote = Remote::new(launcher, name, agent, number, self.post.clone(), *may_ask);
        if self.may_start() {
            remote.start(launcher)?;
        }
        self.hosts.push(Host { name: name.to_owned(), remote: Some(remote), gone: false, is_silent: false });
        Ok(number)
    }

    /// Lets other commands of this user request more hosts, which come as updates. The listener that is returned has
    /// the job's name.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    fn listen_for_joiners(&self) -> Result<JoinListener, String> {
        use rand_core::Rng as _;
        let post = self.post.clone();
        JoinListener::start(rng().next_u32(), move |joiner| post.send((HERE, Heard::Join(joiner))).is_ok())
    }

    /// Returns the next update of a round. The first update is waited for, later ones are taken only if they are there,
    /// and up to a limit. An end or a host may send more than that, faster than it is handled, without end.
    fn next_in(&mut self, round: &mut Round) -> Option<Update> {
        round.left = round.left.checked_sub(1)?;
        self.next(std::mem::replace(&mut round.until, round.now))
    }

    /// Returns the agent on another host.
    fn remote(&self, host: usize) -> Option<&Remote> {
        self.hosts[host].remote.as_ref()
    }

    fn send(&mut self, host: usize, message: Message) {
        match &self.hosts[host].remote {
            None => self.agent.handle(message),
            Some(remote) => remote.send(message),
        }
    }

    fn send_end(&mut self, hop: usize, side: Side, message: &Message) {
        let host = self.hops[hop].host(side);
        match message.for_end(self.hops[hop].ends[side as usize]) {
            Ok(message) => self.send(host, message),
            Err(error) => {
                let failure = Exit::Usage.with(format!("the request is too large ({error})"));
                self.updates.push_back(Update::Gone(host, Some(failure)));
            }
        }
    }

    /// Reports whether two hosts are one machine.
    fn is_one_kernel(&self, one: usize, other: usize) -> bool {
        one == other || {
            let kernel_id = self.hosts[one].kernel_id();
            !kernel_id.is_empty() && kernel_id == self.hosts[other].kernel_id()
        }
    }

    /// Begins a session between two ends, has them connect, and returns its number. With `waits`, both ends report when
    /// they are ready, and then begin together.
    fn connect(&mut self, from: EndOf, to: EndOf, options: &TransferOptions, waits: bool) -> usize {
        let is_one_kernel = self.is_one_kernel(from.host, to.host);
        let (hosts, names) = ([from.host, to.host], [from.name.clone(), to.name.clone()]);
        let ends = [self.ends_begun, self.ends_begun + 1];
        let mut hop = Hop::new(hosts, names, ends, is_one_kernel, &self.setup);
        (hop.stages, hop.waits_for_go) = ([from.stage, to.stage], waits);
        let hop = self.add(hop);
        log::begin(Step::Meet, &self.hops[hop].label(), || "connecting the two ends".to_owned());
        let key = session_key();
        self.begin(hop, Side::From, from.job, &key, to.name, options);
        self.begin(hop, Side::To, to.job, &key, from.name, options);
        let next = self.hops[hop].begin(&self.setup);
        self.advance(hop, next);
        hop
    }

    /// Begins a session between two hosts that is not part of a pipeline: see [`Job::connect`].
    fn session(
        &mut self,
        [from, to]: [usize; 2],
        [send, receive]: [frames::Job; 2],
        options: &TransferOptions,
    ) -> usize {
        let end = |host: usize, job| EndOf { host, stage: None, name: self.hosts[host].label(), job };
        let (sender, receiver) = (end(from, send), end(to, receive));
        self.connect(sender, receiver, options, false)
    }

    /// Begins a copy within one host.
    fn copy_within(&mut self, host: usize, job: frames::Job, options: &TransferOptions) -> usize {
        let hop = self.add(Hop::within(host, self.hosts[host].label(), self.ends_begun));
        self.begin(hop, Side::From, job, &session_key(), String::new(), options);
        hop
    }

    /// Begins one end of a hop. `peer` is the name of the other end for messages.
    fn begin(
        &mut self,
        hop: usize,
        side: Side,
        job: frames::Job,
        key: &SessionKey,
        peer: String,
        options: &TransferOptions,
    ) {
        let mut options = options.clone();
        if !self.setup.via.is_empty() && options.rails == RailChoice::Auto {
            // The user has named the route for the data.
            options.rails = RailChoice::Count(1);
        }
        let begin = Begin {
            key: key.clone(),
            job,
            options,
            caller_is_peer: self.hops[hop].hosts.contains(&HERE),
            peer: peer.into_bytes(),
            waits: self.hops[hop].waits_for_go,
        };
        self.send_end(hop, side, &Message::Begin(Box::new(begin)));
    }

    fn add(&mut self, hop: Hop) -> usize {
        let number = self.hops.len();
        self.ends_begun += 2;
        self.ends.extend(hop.sides().iter().map(|&side| (hop.ends[side as usize], (number, side))));
        self.hops.push(hop);
        number
    }

    /// Forgets hops that are over. Later messages about them are ignored.
    fn forget_hops(&mut self) {
        self.hops.clear();
        self.ends.clear();
        self.updates.retain(|update| !matches!(update, Update::End(..) | Update::Ended(..) | Update::Unmet(..)));
    }

    fn advance(&mut self, hop: usize, next: Next) {
        self.updates.extend(next.say.map(Update::Say));
        if let Some((side, message)) = next.send {
            self.send_end(hop, side, &message);
        }
        self.updates.extend(next.failure.map(|reason| Update::Unmet(hop, reason)));
    }

    /// Returns the next update for the command; `None` if there is none by `deadline`.
    fn next(&mut self, deadline: Instant) -> Option<Update> {
        let mut unheeded = 0;
        loop {
            if let Some(update) = self.updates.pop_front() {
                return Some(self.after_signals(update));
            }
            // What has been received by then is handled first: a host is not late if its message only waits to be
            // handled.
            if self.heard.is_empty() && self.arrivals_due().is_some_and(|due| due <= Instant::now()) {
                self.see_to_arrivals();
                continue;
            }
            let due = self.hops.iter().filter_map(Hop::due).chain(self.arrivals_due()).min();
            let due = due.map_or(deadline, |due| due.min(deadline));
            match self.heard.recv_deadline(due) {
                Ok((host, heard)) => {
                    self.hear(host, heard);
                    // A host that is ignored but keeps talking must not keep time from passing.
                    unheeded += 1;
                    if unheeded < UPDATES_MAX || Instant::now() < due {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
            let now = Instant::now();
            for hop in 0..self.hops.len() {
                if self.hops[hop].due().is_some_and(|due| due <= now) {
                    let next = self.hops[hop].late(&self.setup);
                    self.advance(hop, next);
                }
            }
            if now >= deadline && self.updates.is_empty() {
                return None;
            }
        }
    }

    /// Returns the next update while a session goes on; `None` once [`Job::is_settled`].
    fn next_of(&mut self, hop: usize) -> Option<Update> {
        while !self.is_settled(hop) {
            let wait = if self.hops[hop].ended_since.is_some() { LOOK_AGAIN } else { LONG };
            if let Some(update) = self.next(Instant::now() + wait) {
                return Some(update);
            }
        }
        None
    }

    fn hear(&mut self, host: usize, heard: Heard) {
        if self.remote(host).is_some_and(|remote| remote.is_arriving()) {
            return self.hear_arriving(host, heard);
        }
        if self.remote(host).is_some_and(|remote| remote.is_unreached()) {
            // This was reported when the host was given up.
            return;
        }
        if host != HERE && self.hosts[host].gone && matches!(heard, Heard::Message(_)) {
            // The host was lost because of an earlier message, or because it does not take what is sent to it.
            return;
        }
        match heard {
            Heard::Message(Message::ForEnd { end, message }) => {
                let Some(&(hop, side)) = self.ends.get(&end) else { return };
                if self.hops[hop].host(side) != host {
                    return;
                }
                match message.decode() {
                    Ok(Some(message)) => self.hear_end(hop, side, message),
                    Ok(None) => {}
                    Err(_) => self.lose(host, Some(self.unexpected(host))),
                }
            }
            Heard::Message(message) => self.updates.push_back(Update::Host(host, message)),
            Heard::Gone => self.lose(host, None),
            Heard::Silent => {
                self.hosts[host].is_silent = true;
                self.lose(host, None);
            }
            Heard::Broken(failure) => self.lose(host, Some(failure)),
            Heard::EntriesTaken(end, taken) => self.note_entries_taken(end, taken),
            Heard::Signal(number) => {
                self.is_signalled = true;
                self.updates.push_back(Update::Signal(number));
            }
            Heard::Join(joiner) => self.updates.push_back(Update::Join(joiner)),
        }
    }

    /// Records that a host is no longer heard. `failure` is the reason if its channel is unusable.
    fn lose(&mut self, host: usize, failure: Option<Failure>) {
        self.hosts[host].gone = true;
        let failure = failure.map(|failure| failure.on(&self.hosts[host].name));
        self.updates.push_back(Update::Gone(host, failure));
    }

    fn hear_end(&mut self, hop: usize, side: Side, message: Message) {
        match message {
            message if message.is_tunnel() => {
                // An end without a tunnel must not fill the other end's channel.
                if self.hops[hop].tunneled && !self.hosts[self.hops[hop].host(side.other())].gone {
                    self.pass_on(hop, side, message);
                }
            }
            Message::Agreed => {
                self.hops[hop].note_agreed(side);
                self.updates.push_back(Update::Agreed);
            }
            // An end continues when both are ready. The caller's own end is ready first, so the other end then waits
            // for nothing.
            Message::Ready => {
                if self.hops[hop].note_ready(side) {
                    self.send_end(hop, side.other(), &Message::Go);
                }
            }
            Message::Listening(_) | Message::Failed(_) | Message::Dialed | Message::DialFailed(_) => {
                self.log_meeting(hop, side, &message);
                let message = match message {
                    Message::Listening(told) if self.hops[hop].host(side.other()) == HERE => {
                        Message::Listening(self.with_translated(self.hops[hop].host(side), told))
                    }
                    message => message,
                };
                let had_met = self.hops[hop].has_met();
                let next = self.hops[hop].handle(side, message, &self.setup);
                if self.hops[hop].has_met() && !had_met {
                    log::end(Step::Meet, &self.hops[hop].label(), || "the two ends are connected".to_owned());
                }
                self.advance(hop, next);
            }
            Message::Ended(report) => {
                if report.has_lost_link() && self.hops[hop].report(side).is_none() {
                    self.send(self.hops[hop].host(side), Message::StillHere);
                }
                let wakes = self.hops[hop].note_ended(side, *report);
                if wakes && !self.hosts[self.hops[hop].host(side.other())].gone {
                    self.send_end(hop, side.other(), &Message::Signal(libc::SIGTERM as u8));
                }
                self.updates.push_back(Update::Ended(hop, side));
            }
            Message::Entries(entries) => self.hear_entries(hop, side, entries),
            message => self.updates.push_back(Update::End(hop, side, message)),
        }
    }

    /// Logs how far two ends are with connecting.
    fn log_meeting(&self, hop: usize, side: Side, message: &Message) {
        let hop = &self.hops[hop];
        let [name, other] = [side, side.other()].map(|side| &hop.names[side as usize]);
        log::debug(&hop.label(), || match message {
            Message::Listening(endpoints) => {
                let addresses = endpoints.iter().filter_map(frames::Endpoint::socket_address);
                let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
                format!("{name} listens at {}", addresses.join(", "))
            }
            Message::Dialed => format!("{name} has connected to {other}"),
            Message::DialFailed(why) => format!("{name} cannot connect to {other}: {why}"),
            Message::Failed(fault) => format!("{name}: {}", fault.detail),
            _ => String::new(),
        });
    }

    /// Ends those ends of a session that have not ended yet, as by this signal.
    fn stop(&mut self, hop: usize, number: u8) {
        self.hops[hop].is_stopping = true;
        for &side in self.hops[hop].sides() {
            if self.hops[hop].report(side).is_none() && !self.hosts[self.hops[hop].host(side)].gone {
                self.send_end(hop, side, &Message::Signal(number));
            }
        }
    }

    /// Reports whether an end that is still heard has not reported its outcome.
    fn is_heard(&self, hop: usize) -> bool {
        let hop = &self.hops[hop];
        hop.sides().iter().any(|&side| hop.report(side).is_none() && !self.hosts[hop.host(side)].gone)
    }

    /// Reports whether everything that will ever be known of a session's outcome has come.
    fn is_settled(&self, hop: usize) -> bool {
        let hop = &self.hops[hop];
        if hop.untaken != [0; 2] && self.entries.is_some() {
            return false;
        }
        let mut missing = hop.sides().iter().filter(|&&side| hop.report(side).is_none()).peekable();
        if missing.peek().is_none() {
            return true;
        }
        let is_gone = |side: &Side| self.hosts[hop.host(*side)].gone;
        let Some(since) = hop.ended_since else { return missing.all(is_gone) };
        if missing.clone().all(is_gone) {
            return true;
        }
        // If this host has an end of its own, only that end can confirm success. The other end may lie, and at least
        // has not told this one.
        let is_ours_missing = missing.any(|side| hop.host(*side) == HERE);
        let has_failed = hop.reports.iter().flatten().any(|report| report.fault.is_some());
        let is_removing = hop.removes && hop.report(Side::From).is_none();
        // Its last entries may still be on their way, over a slow line.
        let is_listing = self.entries.is_some() && hop.report(Side::To).is_none() && !has_failed;
        let limit = if is_listing { LISTING_MAX } else { SECOND_MAX };
        since.elapsed() > limit && (!is_ours_missing && !is_removing || has_failed)
    }

    /// Asks a host a question, and waits for the answer.
    ///
    /// # Errors
    ///
    /// As [`Job::answer`], and the fault that the host answers with.
    fn ask(&mut self, host: usize, question: Message, limit: Duration) -> Result<Message, Failure> {
        self.send(host, question);
        match self.answer(host, limit)? {
            Message::Failed(fault) => Err(self.failure(host, &fault)),
            answer => Ok(answer),
        }
    }

    /// Waits for a host's answer to a question. Meanwhile nothing else goes on, except that other hosts arrive or fail
    /// to.
    ///
    /// # Errors
    ///
    /// Exit 3 if the host does not answer within `limit`, 4 if it is lost, 128+n for a signal to this process.
    fn answer(&mut self, host: usize, limit: Duration) -> Result<Message, Failure> {
        self.setting_aside(
            host,
            |job, update| match update {
                Some(Update::Host(from, message)) if from == host => Some(Ok(message)),
                // The host was given up and answers too late.
                Some(Update::Host(other, _)) if job.hosts[other].gone => None,
                Some(Update::Host(other, _)) if job.fails_alone => {
                    job.lose(other, Some(job.unexpected(other)));
                    None
                }
                Some(Update::Host(other, _)) => Some(Err(job.unexpected(other))),
                // This belongs to a session that is over.
                Some(Update::Unmet(..)) => None,
                Some(update) => job.check(update).err().map(Err),
                None => {
                    let (label, within) = (job.hosts[host].label(), limit.as_secs());
                    let line = format!("{label} did not answer within {within} s; try again");
                    Some(Err(Exit::Connect.with(line).on(&job.hosts[host].name)))
                }
            },
            Instant::now() + limit,
        )
    }

    /// Handles an update as most commands do: everything is ignored except what ends the command.
    ///
    /// # Errors
    ///
    /// Exit 3 if two ends cannot be connected, 4 for a lost host, 128+n for a signal to this process.
    fn check(&self, update: Update) -> Result<(), Failure> {
        match update {
            Update::Unmet(_, reason) => Err(Exit::Connect.with(reason)),
            Update::Gone(host, failure) => Err(failure.unwrap_or_else(|| self.lost(host))),
            Update::Failed(failure) => Err(failure),
            Update::Signal(libc::SIGTSTP) => {
                self.suspend();
                Ok(())
            }
            Update::Signal(number) => Err(Failure::silent(Exit::Signal(number as u8))),
            Update::Arrived(_)
            | Update::Host(..)
            | Update::End(..)
            | Update::Agreed
            | Update::Ended(..)
            | Update::Say(_)
            | Update::Join(_) => Ok(()),
        }
    }

    /// Returns the endpoints for this host to try, out of those that another host has announced.
    fn with_translated(&self, host: usize, told: Vec<Endpoint>) -> Vec<Endpoint> {
        // With `--via` or a relay, the user has chosen the route.
        let remote = self.remote(host).filter(|_| self.setup.via.is_empty() && !self.setup.relay);
        endpoints::with_translated(told, remote.and_then(Remote::reached_at))
    }

    /// Stops this process until it is continued, but sessions tell their other ends first, and do so later. Without a
    /// session, the time for which this process is stopped does not count for hosts that are on their way: most
    /// launchers are in the same process group, and stopped as well.
    fn suspend(&self) {
        let began = Instant::now();
        self.agent.suspend();
        let stopped = began.elapsed();
        self.remotes().for_each(|(_, remote)| remote.await_anew(stopped));
    }

    /// Lets all agents end in parallel by closing their channels. `number` is the signal that ends what still runs on
    /// this host, if anything is to be ended.
    fn close(&mut self, number: Option<u8>) {
        match number {
            None => self.agent.finish(),
            Some(number) => self.agent.stop(number),
        }
        self.end_hosts();
        self.hosts.truncate(1);
    }

    fn end_hosts(&mut self) {
        launching::end_all(self.hosts.iter_mut().filter_map(|host| host.remote.as_mut()));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A second signal is no longer caught, so that the user need not wait for the hosts.
        self.signals = None;
        self.end_hosts();
    }
}

/// Posts a message of this host's own ends. A state is left out while many reports wait, as in a channel.
fn post_own(post: &Post, message: Message) {
    if !message.is_passing() || post.len() < STATES_WAITING_MAX {
        let _ = post.send((HERE, Heard::Message(message)));
    }
}

/// Returns a key for one session.
fn session_key() -> SessionKey {
    use rand_core::Rng as _;
    let mut key = SessionKey([0; 32]);
    rng().fill_bytes(&mut key.0);
    key
}

#[cfg(test)]
mod tests;
