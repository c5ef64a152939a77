//! The caller's side of a pipeline: starts its hosts, has neighbours meet, starts the stages, and learns what came of it.
//!
//! Each host has a [`Station`]: the caller's own is in this process, any other behind an agent's channel. Both take the
//! same messages, and what they say comes through one queue. All hosts are started at once, and all hops of a part meet
//! at once; nothing here waits for one of them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, unbounded};
use minicbor::bytes::ByteVec;

use crate::agent::end;
use crate::agent::station::Station;
use crate::cli::json;
use crate::cli::options::ReportOptions;
use crate::cli::report::{Reporter, notice_line};
use crate::cli::stream::forward_signals;
use crate::control::frames::{self, Begin, Job, Message, StageReport};
use crate::control::launch::Launcher;
use crate::control::stages::CANNOT_RUN;
use crate::control::tunnel::Emit;
use crate::fault::{Exit, Failure, escaped};
use crate::job::copy::told;
use crate::job::launching::{
    AgentChoice, News, Post, Remote, Voice, greet, is_same_kernel, may_ask, post_in_turn, session_key,
};

pub(crate) mod grammar;
mod hop;
pub(crate) mod planned;
mod tell;
use crate::options::TransferOptions;

use grammar::{Part, Placed, Spec};
use hop::{Hop, Manner, Next, Which};
use tell::{Labelled, Screen, hop_line, limiter, quoted};

/// How often it is looked at the time.
const TICK: Duration = Duration::from_millis(50);

/// After a failure: how long the others may go on with no byte moving anywhere.
const REST_MAX: Duration = Duration::from_secs(2);

/// How long what was asked to end may take to do so.
const END_MAX: Duration = Duration::from_secs(1);

/// How long the second end of a hop may take to tell its outcome after the first.
const SECOND_MAX: Duration = Duration::from_secs(3);

/// The host that this process itself is.
const HERE: usize = 0;

/// What a shell's command answers when it was ended by SIGPIPE.
const SIGPIPE_CODE: i32 = 128 + libc::SIGPIPE;

/// What `tee` answers when it has not written all of its files.
const TEE_FAILED: u8 = 1;

/// What is to be run, and how.
pub(crate) struct Plan<'a> {
    pub(crate) specs: Vec<Spec>,
    pub(crate) parts: Vec<Part>,
    pub(crate) shell: Vec<ByteVec>,
    pub(crate) label: bool,
    pub(crate) launcher: Launcher,
    pub(crate) agent: AgentChoice,
    pub(crate) relay: bool,
    pub(crate) via: Option<OsString>,
    /// What the other hosts call this one.
    pub(crate) name: Option<String>,
    pub(crate) transfer: &'a TransferOptions,
    pub(crate) report: &'a ReportOptions,
    /// The pipeline's output would not get in the way of progress bars.
    pub(crate) may_draw: bool,
}

impl Plan<'_> {
    /// Whether lines of standard error are labelled.
    fn has_labels(&self) -> bool {
        self.label && self.specs.iter().any(|spec| spec.host != self.specs[0].host)
    }
}

/// A stage, as the caller knows it.
struct Stage {
    spec: Spec,
    host: usize,
    complaints: Labelled,
    /// It has been told of, and what it does may have begun.
    started: bool,
    end: Option<StageEnd>,
}

/// How a stage ended.
struct StageEnd {
    report: StageReport,
    /// We had asked it to end.
    asked: bool,
}

struct Host {
    /// As the launcher is given it; empty for this host.
    name: OsString,
    voice: Voice<Station>,
    gone: bool,
}

/// A pipeline that is being run.
pub(crate) struct Pipeline<'a> {
    plan: &'a Plan<'a>,
    hosts: Vec<Host>,
    post: Post,
    news: Receiver<(usize, News)>,
    manner: Manner,
    screen: Screen,
    stages: Vec<Stage>,
    hops: Vec<Hop>,
    /// Ends of hops by number: the hop, and which of its ends.
    ends: HashMap<u32, (usize, Which)>,
    /// Something has failed: when, or when the last byte moved since.
    failing_since: Option<Instant>,
    /// What was done about it: asked to end, killed.
    asked: Option<Instant>,
    killed: bool,
    /// What ends the whole, where it is no stage's failure.
    fatal: Option<Failure>,
    /// That was told by an end that only lost the other one, which may know better.
    is_hearsay: bool,
    signal: Option<u8>,
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>) -> Result<Self, Failure> {
        let (post, news) = unbounded();
        let signals = post.clone();
        forward_signals(false, move |signal| signals.send((HERE, News::Signal(signal))).is_ok())
            .map_err(|error| Failure::new(Exit::Connect, format!("cannot handle signals: {error}")))?;
        let said = post.clone();
        let say: Emit = Arc::new(move |message| drop(said.send((HERE, News::Message(message)))));
        let queue = post.clone();
        let tell: Emit = Arc::new(move |message| {
            post_in_turn(&queue, HERE, message);
        });
        // At a terminal a command of ours is to see that it writes to one.
        let labels = plan.has_labels() && !std::io::stderr().is_terminal();
        let station = Station::new(say, tell, false, labels);
        let here = Host { name: OsString::new(), voice: Voice::Here(station), gone: false };
        let manner = Manner {
            via: plan.via.clone().map(std::os::unix::ffi::OsStringExt::into_vec).unwrap_or_default(),
            relay: plan.relay,
            name: plan.name.clone(),
            launcher: escaped(plan.launcher.name()),
        };
        Ok(Self {
            plan,
            hosts: vec![here],
            post,
            news,
            manner,
            screen: Screen::new(plan.report, plan.may_draw),
            stages: Vec::new(),
            hops: Vec::new(),
            ends: HashMap::new(),
            failing_since: None,
            asked: None,
            killed: false,
            fatal: None,
            is_hearsay: false,
            signal: None,
        })
    }

    /// Runs the pipeline and tells how it went.
    ///
    /// # Errors
    ///
    /// The failure that the command ends with.
    pub(crate) fn run(mut self, reporter: &Reporter<'_>) -> Result<(), Failure> {
        let ran = self.run_parts();
        self.screen.clear();
        for stage in &mut self.stages {
            let rest = stage.complaints.rest();
            self.screen.pass_on(&rest);
        }
        let failure = ran.err().or_else(|| self.judge());
        self.leave(failure.is_none());
        if self.plan.report.verbose && failure.is_none() {
            self.tell();
        }
        let told = reporter.end(json::End::Pipeline(tell::end(&self.stages, &self.hops, failure.as_ref())));
        // What went wrong matters more than that it could not be reported.
        failure.map_or(told, Err)
    }

    fn run_parts(&mut self) -> Result<(), Failure> {
        self.start_hosts()?;
        for part in &self.plan.parts {
            let hops = self.begin(part);
            let stages: Vec<usize> = part.stages.iter().map(|stage| stage.number).collect();
            self.attend(&stages, &hops);
            if self.has_failed() {
                break;
            }
        }
        Ok(())
    }

    fn start_hosts(&mut self) -> Result<(), Failure> {
        let several = self.plan.has_labels();
        let hosts: std::collections::BTreeSet<&OsStr> =
            self.plan.specs.iter().map(|spec| &*spec.host).filter(|host| !host.is_empty()).collect();
        let may_ask = may_ask(hosts.len());
        for spec in &self.plan.specs {
            let known = self.hosts.iter().position(|host| host.name == spec.host);
            let host = known.unwrap_or(self.hosts.len());
            if known.is_none() {
                let post = self.post.clone();
                let remote = Remote::start(&self.plan.launcher, &spec.host, &self.plan.agent, host, post, may_ask)?;
                let voice = Voice::There(Box::new(remote));
                self.hosts.push(Host { name: spec.host.clone(), voice, gone: false });
            }
            let complaints = Labelled::new(several.then(|| spec.label()));
            self.stages.push(Stage { spec: spec.clone(), host, complaints, started: false, end: None });
        }
        let agents = self.hosts.iter_mut().filter_map(|host| host.voice.agent());
        greet(agents, &self.news, &self.plan.launcher)
    }

    fn send(&mut self, host: usize, message: Message) {
        match &mut self.hosts[host].voice {
            Voice::Here(station) => drop(station.handle(message)),
            Voice::There(remote) => remote.send(message),
        }
    }

    fn send_end(&mut self, hop: usize, which: Which, message: &Message) {
        let host = self.hops[hop].host(which);
        match message.for_end(end_number(hop, which)) {
            Ok(message) => self.send(host, message),
            Err(error) => self.fail(Failure::new(Exit::Usage, format!("a command that is too long ({error})"))),
        }
    }

    /// Tells the hosts of a part's stages, and begins its hops, whose numbers it returns.
    fn begin(&mut self, part: &Part) -> Vec<usize> {
        for Placed { number, action, input, output } in &part.stages {
            let stage = frames::Stage {
                number: *number as u32,
                action: action.clone(),
                input: *input,
                output: *output,
                shell: self.plan.shell.clone(),
            };
            self.send(self.stages[*number].host, Message::Stage(Box::new(stage)));
        }
        let first = self.hops.len();
        for &(from, to) in &part.hops {
            let host = |stage: Option<usize>| stage.map_or(HERE, |stage| self.stages[stage].host);
            let name = |stage: Option<usize>| grammar::label(&self.hosts[host(stage)].name);
            let hosts = [host(from), host(to)];
            let kernel_id = |host: usize| self.hosts[host].voice.kernel_id();
            let is_one_kernel = hosts[0] == hosts[1] || is_same_kernel(&kernel_id(hosts[0]), &kernel_id(hosts[1]));
            let names = [name(from), name(to)];
            self.hops.push(Hop::new(hosts, [from, to], names, HERE, is_one_kernel, &self.manner));
        }
        for at in first..self.hops.len() {
            let key = session_key();
            let [from, to] = self.hops[at].stages;
            let send = from.map_or(Job::SendStandard, |stage| Job::SendStage { stage: stage as u32 });
            let receive = to.map_or(Job::ReceiveStandard, |stage| Job::ReceiveStage { stage: stage as u32 });
            for (which, job) in [(Which::From, send), (Which::To, receive)] {
                self.ends.insert(end_number(at, which), (at, which));
                let begin = Begin {
                    key: key.clone(),
                    job,
                    options: self.plan.transfer.clone(),
                    caller_is_peer: self.hops[at].hosts.contains(&HERE),
                    peer: self.hops[at].names[which.other() as usize].clone().into_bytes(),
                };
                self.send_end(at, which, &Message::Begin(Box::new(begin)));
            }
            let next = self.hops[at].begin(&self.manner);
            self.take_on(at, next);
        }
        (first..self.hops.len()).collect()
    }

    fn take_on(&mut self, hop: usize, next: Next) {
        if let Some(line) = next.say {
            self.screen.say(&line);
        }
        if let Some((which, message)) = next.send {
            self.send_end(hop, which, &message);
        }
        if let Some(reason) = next.failure {
            let label = self.hops[hop].label();
            self.fail(Failure::new(Exit::Connect, format!("cannot connect {label}: {reason}")));
        }
    }

    /// Something has gone wrong that is no stage's own failure: the first that does is what is told.
    fn fail(&mut self, failure: Failure) {
        self.fatal.get_or_insert(failure);
        self.failing_since.get_or_insert_with(Instant::now);
    }

    fn has_failed(&self) -> bool {
        self.failing_since.is_some() || self.signal.is_some()
    }

    /// Runs what has been begun to its end.
    fn attend(&mut self, stages: &[usize], hops: &[usize]) {
        let mut running = false;
        loop {
            if !running && self.fatal.is_none() && hops.iter().all(|&at| self.hops[at].has_agreed()) {
                running = true;
                self.start(stages);
            }
            let now = Instant::now();
            if running && self.is_over(stages, hops, now) {
                return;
            }
            // Nothing has been started: there is nothing to wait for either.
            if !running && self.has_failed() {
                return;
            }
            self.urge(stages, hops, now);
            if self.killed && self.asked.is_some_and(|asked| now > asked + END_MAX + END_MAX) {
                return;
            }
            match self.news.recv_timeout(TICK) {
                Ok((host, news)) => self.hear(host, news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
            // No more than wait now: a stage may write to standard error faster than that can be told, and without end.
            for _ in 0..self.news.len() {
                if let Ok((host, news)) = self.news.try_recv() {
                    self.hear(host, news);
                }
            }
            if !running {
                for &at in hops {
                    if self.hops[at].due().is_some_and(|due| Instant::now() > due) {
                        let next = self.hops[at].late();
                        self.take_on(at, next);
                    }
                }
            }
            self.screen.progress(&self.hops);
        }
    }

    fn start(&mut self, stages: &[usize]) {
        let mut hosts: Vec<usize> = stages.iter().map(|&stage| self.stages[stage].host).collect();
        for &stage in stages {
            self.stages[stage].started = true;
        }
        hosts.sort_unstable();
        hosts.dedup();
        for host in hosts {
            self.send(host, Message::StartStages);
        }
    }

    fn is_over(&self, stages: &[usize], hops: &[usize], now: Instant) -> bool {
        let is_ended = |&stage: &usize| self.stages[stage].end.is_some() || self.hosts[self.stages[stage].host].gone;
        let is_told = |&at: &usize| {
            let hop = &self.hops[at];
            let gone = |which| self.hosts[hop.host(which)].gone;
            let writer = hop.stages[Which::From as usize].and_then(|stage| self.stages[stage].end.as_ref());
            hop.is_over()
                || hop.was_closed() && writer.is_some()
                || hop.told.is_some_and(|told| now > told + SECOND_MAX)
                || gone(Which::From) && gone(Which::To)
                || hop.told.is_some() && (gone(Which::From) || gone(Which::To))
        };
        stages.iter().all(is_ended) && hops.iter().all(is_told)
    }

    /// After a failure, ends what does not end by itself.
    fn urge(&mut self, stages: &[usize], hops: &[usize], now: Instant) {
        let Some(since) = self.failing_since else { return };
        let patience = if self.fatal.is_some() || self.signal.is_some() { Duration::ZERO } else { REST_MAX };
        match self.asked {
            None if now > since + patience => {
                self.asked = Some(now);
                self.end_all(stages, hops, libc::SIGTERM as u8);
            }
            Some(asked) if !self.killed && now > asked + END_MAX => {
                self.killed = true;
                self.end_all(stages, hops, libc::SIGKILL as u8);
            }
            _ => {}
        }
    }

    fn end_all(&mut self, stages: &[usize], hops: &[usize], signal: u8) {
        for &number in stages {
            let stage = &self.stages[number];
            if stage.started && stage.end.is_none() {
                self.send(stage.host, Message::EndStage { stage: number as u32, signal });
            }
        }
        // A session tells its other end why; SIGKILL is nothing that it could tell of.
        let number = self.signal.unwrap_or(libc::SIGTERM as u8);
        for &at in hops {
            for which in [Which::From, Which::To] {
                if self.hops[at].reports[which as usize].is_none() && (self.fatal.is_some() || self.signal.is_some()) {
                    self.send_end(at, which, &Message::Signal(number));
                }
            }
        }
    }

    fn hear(&mut self, host: usize, news: News) {
        match news {
            News::Message(Message::ForEnd { end, message }) => self.hear_end(host, end, &message),
            News::Message(Message::StageStderr { stage, bytes }) => {
                let known = self.stages.get_mut(stage as usize).filter(|stage| stage.host == host);
                if let Some(stage) = known {
                    let ready = stage.complaints.add(&bytes);
                    self.screen.pass_on(&ready);
                }
            }
            News::Message(Message::StageEnded { stage, report }) => self.stage_ended(host, stage as usize, report),
            News::Message(_) => {}
            News::Gone => self.lose(host),
            News::Broken(failure) => {
                self.hosts[host].gone = true;
                self.fail(failure);
            }
            News::Signal(number) if number == libc::SIGTSTP => self.suspend(),
            News::Signal(number) => {
                if self.signal.is_some() {
                    // Asked twice: no more waiting.
                    self.killed = true;
                    self.asked = Instant::now().checked_sub(2 * END_MAX + TICK);
                }
                self.signal = Some(number as u8);
                self.failing_since = Some(Instant::now());
            }
        }
    }

    fn hear_end(&mut self, host: usize, end: u32, message: &frames::Inner) {
        let Some(&(at, which)) = self.ends.get(&end).filter(|(at, which)| self.hops[*at].host(*which) == host) else {
            return;
        };
        let message = match message.decode() {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(_) => {
                let label = grammar::label(&self.hosts[host].name);
                let line = format!("the agent on {label} does not keep to the protocol");
                return self.fail(Failure::new(Exit::Protocol, line));
            }
        };
        match message {
            message if message.is_tunnel() => self.send_end(at, which.other(), &message),
            Message::Ended(report) => self.hop_ended(at, which, *report),
            Message::Agreed => self.hops[at].note_agreed(which),
            Message::Ready => {
                if self.hops[at].note_ready(which) {
                    self.send_end(at, Which::From, &Message::Go);
                    self.send_end(at, Which::To, &Message::Go);
                }
            }
            Message::Progress { bytes, waits, .. } => {
                if which == Which::From {
                    self.hops[at].waits = end::waits(&waits);
                }
                if bytes > self.hops[at].bytes {
                    self.hops[at].bytes = bytes;
                    self.moved();
                }
            }
            Message::Say(line) => {
                let line = escaped(OsStr::new(&line));
                self.screen.notice(&format!("{}: {line}", self.hops[at].label()));
            }
            Message::Notice { code, index, generation, reason } if which == Which::From => {
                let reason = reason.map(|reason| escaped(OsStr::new(&reason)));
                let reconnect_s = u64::from(self.plan.transfer.reconnect);
                let peer = self.hops[at].names[1].clone();
                let line = end::notice(code, index, generation).and_then(|notice| {
                    notice_line(notice, reason.as_deref(), &peer, reconnect_s, self.plan.report.verbose)
                });
                if let Some(line) = line {
                    self.screen.notice(&format!("{}: {line}", self.hops[at].label()));
                }
            }
            message => {
                let next = self.hops[at].handle(which, message, &self.manner);
                self.take_on(at, next);
            }
        }
    }

    /// Bytes move: what has failed is given the time to drain.
    fn moved(&mut self) {
        if let (Some(since), None) = (&mut self.failing_since, &self.fatal) {
            *since = Instant::now();
        }
    }

    fn hop_ended(&mut self, at: usize, which: Which, report: frames::Report) {
        let hop = &mut self.hops[at];
        hop.bytes = hop.bytes.max(report.bytes);
        hop.told.get_or_insert_with(Instant::now);
        let fault = report.fault.clone();
        let had_met = hop.has_met();
        if hop.reports[which as usize].is_none() {
            hop.reports[which as usize] = Some(report);
        }
        let Some(fault) = fault else { return };
        // Without this end the hop never begins. Its other end waits for that, holding what a stage writes to or reads.
        if !self.hops[at].has_begun() && self.hops[at].reports[which.other() as usize].is_none() {
            self.send_end(at, which.other(), &Message::Signal(libc::SIGTERM as u8));
        }
        let exit = Exit::from_code(fault.exit);
        // Whoever read has ended, as may be; the command that wrote is told by SIGPIPE.
        if exit == Exit::SinkClosed || self.has_failed() {
            return;
        }
        // Each end has it from the other: both have found the same, such as that no transport is allowed that both have.
        let reports = &self.hops[at].reports;
        let nobodys = reports.iter().all(|report| {
            let fault = report.as_ref().and_then(|report| report.fault.as_ref());
            fault.is_some_and(|fault| !fault.own)
        });
        match exit {
            // What a redirection has opened is a stage's, and so is its failure. See `judge`.
            Exit::Source | Exit::Destination if fault.own => {
                self.failing_since.get_or_insert_with(Instant::now);
            }
            Exit::Source | Exit::Destination | Exit::Signal(_) if !nobodys => {}
            // The end that saw it tells; the other one has only lost it.
            _ if fault.own || nobodys || exit == Exit::LinkLost || !had_met => {
                let host = self.hosts[self.hops[at].host(which)].name.clone();
                let mut failure = told(&host, &fault);
                // What a host has no room for is no hop's failure.
                if exit != Exit::Usage {
                    let label = self.hops[at].label();
                    failure.message = failure.message.map(|line| format!("{label}: {line}"));
                }
                self.is_hearsay = !fault.own && !nobodys && exit != Exit::LinkLost;
                self.fail(failure);
            }
            _ => {}
        }
    }

    fn stage_ended(&mut self, host: usize, number: usize, report: StageReport) {
        let asked = self.asked.is_some() || self.signal.is_some();
        let Some(stage) = self.stages.get_mut(number).filter(|stage| stage.host == host && stage.end.is_none()) else {
            return;
        };
        let well = report.fault.is_none() && report.signal.is_none() && report.code == Some(0);
        let piped = report.signal == Some(libc::SIGPIPE) || report.code == Some(SIGPIPE_CODE);
        stage.end = Some(StageEnd { report, asked });
        let rest = stage.complaints.rest();
        self.screen.pass_on(&rest);
        let is_fine = well || (piped && number + 1 < self.stages.len()) || self.was_left(number);
        if !is_fine {
            self.failing_since.get_or_insert_with(Instant::now);
        }
    }

    /// The reader of the stage's output has gone without reading all of it, and the stage wrote on: what it makes of that is
    /// no failure.
    fn was_left(&self, number: usize) -> bool {
        let hop = self.hops.iter().find(|hop| hop.stages[0] == Some(number) && hop.stages[1].is_some());
        hop.is_some_and(Hop::was_left)
    }

    /// Whoever read our standard output, which the stage's output is, has gone.
    fn is_unread(&self, number: usize) -> bool {
        match self.hops.iter().find(|hop| hop.stages[0] == Some(number)) {
            Some(hop) => hop.stages[1].is_none() && hop.was_closed(),
            // It has it itself.
            None => !self.stages[number].spec.is_write(),
        }
    }

    /// An agent is not heard any more.
    fn lose(&mut self, host: usize) {
        self.hosts[host].gone = true;
        let waits = self.stages.iter().any(|stage| stage.host == host && stage.started && stage.end.is_none())
            || self.hops.iter().any(|hop| hop.hosts.contains(&host) && !hop.is_over());
        if waits && !self.has_failed() {
            let (label, launcher) = (grammar::label(&self.hosts[host].name), &self.manner.launcher);
            let line = format!("lost the agent on {label}: it ended, or {launcher} did");
            self.fail(Failure::new(Exit::LinkLost, line));
        }
    }

    fn suspend(&self) {
        match &self.hosts[HERE].voice {
            // A session tells its other end before it stops this process.
            Voice::Here(station) if station.is_busy() => station.suspend(),
            _ => crate::cli::stop_here(),
        }
    }

    /// Lets go of the hosts. Their agents end as their channels do, all at once.
    fn leave(&mut self, well: bool) {
        for host in &mut self.hosts {
            match &mut host.voice {
                Voice::Here(station) if well => station.finish(),
                Voice::Here(station) => station.stop(self.signal.unwrap_or(libc::SIGTERM as u8)),
                Voice::There(remote) => remote.close(),
            }
        }
        self.hosts.truncate(1);
    }

    /// The failure that the whole ends with. What stages have to say is said here, but for the last.
    fn judge(&self) -> Option<Failure> {
        if let Some(number) = self.signal {
            return Some(Failure::silent(Exit::Signal(number)));
        }
        let mut failures: Vec<Failure> = Vec::new();
        for (number, stage) in self.stages.iter().enumerate() {
            failures.extend(self.stage_failure(number, stage));
        }
        // What stops everything beats what a stage makes of it.
        let standard = self.standard_failure();
        let is_explained = standard.is_some() || !failures.is_empty();
        if let Some(fatal) = self.fatal.as_ref().filter(|_| !self.is_hearsay || !is_explained) {
            return Some(fatal.clone());
        }
        if standard.is_some() {
            return standard;
        }
        let Some(last) = failures.pop() else {
            // No command need have noticed.
            let unread = self.hops.iter().any(|hop| hop.stages[1].is_none() && hop.was_closed());
            return unread.then_some(Failure::silent(Exit::SinkClosed));
        };
        for line in failures.iter().filter_map(|failure| failure.message.as_deref()) {
            self.screen.say_always(line);
        }
        Some(last)
    }

    /// Our own standard input could not be read, or our own standard output not written: no stage's failure.
    fn standard_failure(&self) -> Option<Failure> {
        let ends = self.hops.iter().flat_map(|hop| [(hop, Which::From), (hop, Which::To)]);
        let mut faults = ends
            .filter(|(hop, which)| hop.stages[*which as usize].is_none())
            .filter_map(|(hop, which)| Some(told(&self.hosts[hop.host(which)].name, hop.own_fault(which)?)));
        faults.next_back()
    }

    fn stage_failure(&self, number: usize, stage: &Stage) -> Option<Failure> {
        let end = stage.end.as_ref()?;
        let name = format!("{}: {}", stage.spec.label(), quoted(&stage.spec.text));
        if let Some(fault) = &end.report.fault {
            let mut failure = told(&stage.spec.host, fault);
            if fault.exit == CANNOT_RUN {
                failure.exit = Exit::Stage(CANNOT_RUN);
            }
            return Some(failure);
        }
        let is_last = number + 1 == self.stages.len();
        // What a redirection opened: its session tells.
        let of_session = |which: Which| {
            let hop = self.hops.iter().find(|hop| hop.stages[which as usize] == Some(number))?;
            Some(told(&stage.spec.host, hop.own_fault(which)?))
        };
        let moved = of_session(Which::From).or_else(|| of_session(Which::To));
        if let Some(mut moved) = moved {
            if stage.spec.tee().is_some() {
                // As that ends, done by a session or by itself.
                moved.exit = Exit::Stage(TEE_FAILED);
            }
            return Some(moved);
        }
        if end.asked {
            return None;
        }
        match (end.report.code, end.report.signal) {
            (Some(0), _) => None,
            (Some(SIGPIPE_CODE), _) | (_, Some(libc::SIGPIPE)) if !is_last => None,
            (Some(SIGPIPE_CODE), _) | (_, Some(libc::SIGPIPE)) if self.is_unread(number) => {
                Some(Failure::silent(Exit::SinkClosed))
            }
            _ if self.was_left(number) => None,
            // One that is our own at both sides is opened by its shell, which has said why it cannot be.
            (Some(_), _) if stage.spec.is_read() => Some(Failure::new(Exit::Source, format!("cannot read {name}"))),
            (Some(_), _) if stage.spec.is_write() => {
                Some(Failure::new(Exit::Destination, format!("cannot write {name}")))
            }
            (Some(code), _) => {
                let exit = Exit::Stage(u8::try_from(code).unwrap_or(u8::MAX));
                Some(Failure::new(exit, format!("{name} ended with exit code {code}")))
            }
            (None, Some(signal)) => {
                let exit = Exit::Stage(128_u8.saturating_add(signal as u8));
                let named = signal_hook::low_level::signal_name(signal).map(|name| format!(" ({name})"));
                Some(Failure::new(exit, format!("{name} was killed by signal {signal}{}", named.unwrap_or_default())))
            }
            (None, None) => Some(Failure::new(Exit::Protocol, format!("{name} ended, and nobody says how"))),
        }
    }

    fn tell(&self) {
        for hop in &self.hops {
            if let Some(line) = hop_line(hop, &self.manner.launcher) {
                self.screen.say(&line);
            }
        }
        if let Some((name, share)) = limiter(&self.stages, &self.hops) {
            self.screen.say(&format!("limited by {name}, for {:.0} % of the time", share * 100.0));
        }
    }
}

/// The number of a hop's end, at every host.
fn end_number(hop: usize, which: Which) -> u32 {
    (2 * hop + which as usize) as u32
}
