//! A pipeline: its stages on their hosts, a hop between each two neighbours, and the outcome.
//!
//! All hosts are started at once, and all hops of a part meet at once. Nothing here waits for a single host or hop.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;
use rd_proto::session::Notice;
use rustix::io::Errno;

use super::hop::{Hop, Side};
use super::{self as job, EndOf, HERE, Job, Round, Setup, Update};
use crate::control::frames::{self, Message, StageReport};
use crate::control::stages::{CANNOT_RUN, NO_FILE};
use crate::fault::{Exit, Failure, escaped, os};
use crate::job::progress::Streamed;
use crate::options::TransferOptions;

mod branching;
pub(crate) mod grammar;
pub(crate) mod planned;
pub(crate) mod report;

use super::copy::broadcast::branches::Branches;
pub(crate) use branching::Branching;
use grammar::{Part, Placed, Spec};
use report::{Labelled, quoted};

/// How often the clock is read.
const TICK: Duration = Duration::from_millis(50);

/// How long the other stages may go on after a failure while no byte moves anywhere.
const REST_MAX: Duration = Duration::from_secs(2);

/// How long they may go on if no byte has moved anywhere, or if a link was lost: a failure that is under way is still
/// told.
const IDLE_MAX: Duration = Duration::from_millis(300);

/// How long stages and hops that were asked to end may take to do so.
const END_MAX: Duration = Duration::from_secs(1);

/// Exit code of a shell whose command was ended by SIGPIPE.
const SIGPIPE_CODE: i32 = 128 + libc::SIGPIPE;

/// Exit code of `tee` if it has not written all of its files.
const TEE_FAILED: u8 = 1;

/// What to run, and how.
pub(crate) struct Plan<'a> {
    pub(crate) specs: Vec<Spec>,
    pub(crate) parts: Vec<Part>,
    pub(crate) shell: Vec<ByteVec>,
    pub(crate) label: bool,
    pub(crate) setup: Setup,
    pub(crate) transfer: &'a TransferOptions,
    /// Present if the last stage runs on several hosts.
    pub(crate) branching: Option<Branching>,
}

impl Plan<'_> {
    /// Whether lines of standard error are labelled.
    fn has_labels(&self) -> bool {
        self.label && self.specs.iter().any(|spec| spec.host != self.specs[0].host)
    }
}

/// Observes what becomes of a pipeline.
pub(crate) trait Observer: job::Observer {
    /// Passes on bytes that a stage has written to standard error.
    fn pass_on(&mut self, bytes: &[u8]);
    /// Reports a line about a hop. If many lines are alike, a few suffice.
    fn notice(&mut self, line: &str);
    /// Reports a change of a hop's lanes.
    fn lanes(&mut self, hop: &Hop, notice: Notice, reason: Option<&str>, reconnect_s: u64);
    /// Shows the progress of the hops.
    fn progress(&mut self, hops: &[Hop]);
}

/// Outcome of a pipeline.
pub(crate) struct Ran {
    pub(crate) stages: Vec<Stage>,
    pub(crate) hops: Vec<Hop>,
    /// What became of the stream, if it went to several hosts and at least one of them has it.
    pub(crate) streamed: Option<Streamed>,
    pub(crate) failure: Option<Failure>,
}

/// A stage, as the caller knows it.
#[derive(Default)]
pub(crate) struct Stage {
    spec: Spec,
    host: usize,
    complaints: Labelled,
    /// Whether the stage has been announced to its host, so that its action may have begun.
    started: bool,
    end: Option<StageEnd>,
    /// The failure of a stage that is one of several alike on other hosts, and failed alone.
    failure: Option<Failure>,
    /// When this stage alone was asked to end, and whether it was killed after that.
    ending_since: Option<Instant>,
    is_killed: bool,
    /// Bytes that the stage has received of a stream for several hosts.
    received: Option<u64>,
    /// Bytes that the stage has made of such a stream.
    sent: Option<u64>,
}

impl Stage {
    /// Whether the shell of a redirection was still opening the file when the caller asked it to end.
    fn was_cut_opening(&self) -> bool {
        let is_cut = |fault: &frames::Fault| fault.errno == 0 && fault.detail == NO_FILE;
        self.end.as_ref().is_some_and(|end| end.asked && end.report.fault.as_ref().is_some_and(is_cut))
    }
}

/// How a stage ended.
struct StageEnd {
    report: StageReport,
    /// Whether the caller had asked the stage to end.
    asked: bool,
}

/// A running pipeline.
pub(crate) struct Pipeline<'a> {
    plan: &'a Plan<'a>,
    job: Job,
    observer: &'a mut dyn Observer,
    stages: Vec<Stage>,
    /// The chain of the last stages, if they are the same on several hosts.
    branches: Option<Branches>,
    /// Bytes that the chain had moved when it was last looked at.
    bytes_of_branches: u64,
    /// When something failed, or when the last byte moved since then.
    failing_since: Option<Instant>,
    /// When the stages were asked to end after a failure, and whether they were killed.
    asked: Option<Instant>,
    killed: bool,
    /// Whether the stages were asked to end before `REST_MAX` had passed without data.
    ended_early: bool,
    /// The failure that ends the whole pipeline, if it is not a stage's failure.
    fatal: Option<Failure>,
    /// Whether `fatal` was reported by an end that only lost the other end, which may know the true reason.
    is_from_other_end: bool,
    /// The hop whose receiver has reported `fatal`, if `fatal` is a lost link.
    lost_hop: Option<usize>,
    signal: Option<u8>,
}

impl<'a> Pipeline<'a> {
    /// # Errors
    ///
    /// Exit code 3 if signals cannot be handled.
    pub(crate) fn new(plan: &'a Plan<'a>, observer: &'a mut dyn Observer) -> Result<Self, Failure> {
        // At a terminal, a command on the caller's host should see that it writes to a terminal.
        let labels = plan.has_labels() && !std::io::stderr().is_terminal();
        Ok(Self {
            plan,
            job: Job::new(plan.setup.clone(), labels)?,
            observer,
            stages: Vec::new(),
            branches: None,
            bytes_of_branches: 0,
            failing_since: None,
            asked: None,
            killed: false,
            ended_early: false,
            fatal: None,
            is_from_other_end: false,
            lost_hop: None,
            signal: None,
        })
    }

    /// Runs the pipeline. The failure in the result is the one that the caller's command ends with.
    pub(crate) fn run(mut self) -> Ran {
        let ran = self.run_parts();
        self.observer.finish();
        for stage in &mut self.stages {
            let rest = stage.complaints.rest();
            self.observer.pass_on(&rest);
        }
        let failure = ran.err().or_else(|| self.judge());
        let streamed = self.streamed();
        self.job.close(failure.is_some().then(|| self.signal.unwrap_or(libc::SIGTERM as u8)));
        Ran { stages: self.stages, hops: std::mem::take(&mut self.job.hops), streamed, failure }
    }

    fn run_parts(&mut self) -> Result<(), Failure> {
        self.start_hosts()?;
        for part in &self.plan.parts {
            let hops = self.begin(part);
            let is_there = |number: &usize| self.stages[*number].failure.is_none();
            let stages: Vec<usize> = part.stages.iter().map(|stage| stage.number).filter(is_there).collect();
            self.attend(&stages, &hops);
            if self.has_failed() {
                break;
            }
        }
        Ok(())
    }

    fn start_hosts(&mut self) -> Result<(), Failure> {
        let has_labels = self.plan.has_labels();
        for spec in &self.plan.specs {
            let host = self.job.host(&spec.host)?;
            let complaints = Labelled::new(has_labels.then(|| spec.label()));
            self.stages.push(Stage { spec: spec.clone(), host, complaints, ..Stage::default() });
        }
        match self.plan.branching {
            None => self.job.greet(),
            Some(branching) => self.greet_branches(branching),
        }
    }

    /// Announces a part's stages to their hosts, and begins the part's hops. Returns the numbers of the hops.
    fn begin(&mut self, part: &Part) -> Vec<usize> {
        let is_there = |placed: &&Placed| self.stages[placed.number].failure.is_none();
        for Placed { number, action, input, output } in part.stages.iter().filter(is_there) {
            let stage = frames::Stage {
                number: *number as u32,
                action: action.clone(),
                input: *input,
                output: *output,
                shell: self.plan.shell.clone(),
            };
            self.job.send(self.stages[*number].host, Message::Stage(Box::new(stage)));
        }
        let options = self.plan.transfer;
        let end = |stage: Option<usize>, job: frames::Job| {
            let host = stage.map_or(HERE, |stage| self.stages[stage].host);
            EndOf { host, stage, name: grammar::label(&self.job.hosts[host].name), job }
        };
        let ends: Vec<[EndOf; 2]> = part
            .hops
            .iter()
            .map(|&(from, to)| {
                let send =
                    from.map_or(frames::Job::SendStandard, |stage| frames::Job::SendStage { stage: stage as u32 });
                let receive =
                    to.map_or(frames::Job::ReceiveStandard, |stage| frames::Job::ReceiveStage { stage: stage as u32 });
                [end(from, send), end(to, receive)]
            })
            .collect();
        let hops = ends.into_iter().map(|[from, to]| self.job.connect(from, to, options, true)).collect();
        if let Some(feed) = part.feed {
            self.begin_branches(feed);
        }
        hops
    }

    /// Records a failure that is not a stage's own. Only the first of them is reported.
    fn fail(&mut self, failure: Failure) {
        self.fatal.get_or_insert(failure);
        self.failing_since.get_or_insert_with(Instant::now);
    }

    fn has_failed(&self) -> bool {
        self.failing_since.is_some() || self.signal.is_some()
    }

    /// Waits until all that has been begun has ended.
    fn attend(&mut self, stages: &[usize], hops: &[usize]) {
        let mut running = false;
        loop {
            self.attend_branches();
            let are_met = hops.iter().all(|&at| self.job.hops[at].has_agreed())
                && self.branches.as_ref().is_none_or(Branches::are_connected);
            if !running && !self.has_failed() && are_met {
                running = true;
                self.start(stages);
            }
            let now = Instant::now();
            self.weigh_pipes(stages, hops);
            if running && self.is_over(stages, hops) && self.is_chain_over() {
                return;
            }
            if !running {
                self.miss(hops);
                // Nothing has been started, so there is nothing to wait for.
                if self.has_failed() {
                    return;
                }
            }
            self.urge(stages, hops, now);
            if self.killed && self.asked.is_some_and(|asked| now > asked + END_MAX + END_MAX) {
                return;
            }
            let mut round = Round::within(TICK);
            while let Some(update) = self.job.next_in(&mut round) {
                self.heed(update);
            }
            self.observer.progress(&self.job.hops);
        }
    }

    /// Fails if a hop was over before it began. A signal to its agent ended the hop, and the agent may say no more.
    fn miss(&mut self, hops: &[usize]) {
        let is_late = |hop: &Hop| hop.is_over() && hop.ended_since.is_some_and(|since| since.elapsed() > REST_MAX);
        let over = hops.iter().map(|&at| &self.job.hops[at]).find(|hop| is_late(hop));
        if let Some((host, _)) = over.and_then(Hop::first_fault)
            && !self.has_failed()
        {
            self.fail(self.job.lost(host));
        }
    }

    /// Starts the stages of a part. A host on which all of them have failed is left out: its command would run, or its
    /// file be truncated, although it was never connected.
    fn start(&mut self, stages: &[usize]) {
        let is_wanted = |stage: &&usize| !self.is_failed_branch(**stage);
        let mut hosts: Vec<usize> = stages.iter().filter(is_wanted).map(|&stage| self.stages[stage].host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        for &stage in stages {
            // A host starts all of its stages at once.
            let stage = &mut self.stages[stage];
            stage.started = hosts.binary_search(&stage.host).is_ok();
        }
        for host in hosts {
            self.job.send(host, Message::StartStages);
        }
    }

    fn is_over(&self, stages: &[usize], hops: &[usize]) -> bool {
        let is_ended = |&stage: &usize| {
            let Stage { host, end, started, .. } = &self.stages[stage];
            let will_not_start = !started && self.is_failed_branch(stage);
            end.is_some() || self.job.hosts[*host].gone || self.is_given_up(stage) || will_not_start
        };
        let is_told = |&at: &usize| {
            let hop = &self.job.hops[at];
            let writer = hop.stages[Side::From as usize].and_then(|stage| self.stages[stage].end.as_ref());
            // That a file takes no more is a failure, which only its own end reports. See `unread_file`.
            let is_file = hop.stages[Side::To as usize].is_some_and(|stage| self.stages[stage].spec.is_to_file());
            self.job.is_settled(at) || hop.was_closed() && writer.is_some() && !is_file
        };
        stages.iter().all(is_ended) && hops.iter().all(is_told)
    }

    /// Whether the chain is over, if there is one. Unless the pipeline has failed, the reports of its hops are waited
    /// for.
    fn is_chain_over(&self) -> bool {
        let Some(branches) = &self.branches else { return true };
        branches.are_over() && (self.has_failed() || branches.have_reported(&self.job))
    }

    /// After a failure, ends the stages and hops that do not end by themselves.
    fn urge(&mut self, stages: &[usize], hops: &[usize], now: Instant) {
        let Some(since) = self.failing_since else { return };
        let is_idle = self.has_moved_nothing();
        // A lost link may be the effect of a failure at the other end, which is still to be reported: see `is_hearsay`.
        // If that is known, the stages have the usual time.
        let is_known = self.hops().any(|hop| [Side::From, Side::To].iter().any(|&side| hop.own_fault(side).is_some()));
        let is_short = is_idle || self.lost_hop.is_some() && !is_known;
        let wait = match self.fatal.is_some() && self.lost_hop.is_none() || self.signal.is_some() {
            true => Duration::ZERO,
            false if is_short => IDLE_MAX,
            false => REST_MAX,
        };
        match self.asked {
            None if now > since + wait => {
                self.asked = Some(now);
                self.ended_early = is_short;
                self.end_all(stages, hops, libc::SIGTERM as u8);
            }
            Some(asked) if !self.killed && now > asked + END_MAX => {
                self.killed = true;
                self.end_all(stages, hops, libc::SIGKILL as u8);
            }
            _ => {}
        }
    }

    /// Whether a stage of a chain waits for an input that has failed, and no stage has been given anything to work on.
    fn has_moved_nothing(&self) -> bool {
        let has_failed = |hop: &Hop| {
            let fault = hop.report(Side::To).and_then(|report| report.fault.as_ref());
            let is_input =
                |fault: &frames::Fault| fault.exit != CANNOT_RUN && Exit::from_code(fault.exit) != Exit::SinkClosed;
            fault.is_some_and(is_input) && hop.own_fault(Side::To).is_none()
        };
        self.branches.is_none() && self.hops().all(|hop| hop.bytes == 0) && self.hops().any(has_failed)
    }

    fn end_all(&mut self, stages: &[usize], hops: &[usize], signal: u8) {
        for &number in stages {
            let stage = &self.stages[number];
            if stage.started && stage.end.is_none() {
                self.job.send(stage.host, Message::EndStage { stage: number as u32, signal });
            }
        }
        // A session reports the signal that ended it to its other end; after SIGKILL it could not.
        let number = self.signal.unwrap_or(libc::SIGTERM as u8);
        if self.fatal.is_some() || self.signal.is_some() {
            hops.iter().for_each(|&hop| self.job.stop(hop, number));
        }
        if let Some(branches) = &self.branches {
            branches.stop(&mut self.job, number);
        }
    }

    fn heed(&mut self, update: Update) {
        let update = match &mut self.branches {
            Some(branches) => branches.take(&mut self.job, update),
            None => Some(update),
        };
        let Some(update) = update else { return };
        match update {
            Update::Host(host, Message::StageStderr { stage, bytes }) => {
                let known = self.stages.get_mut(stage as usize).filter(|stage| stage.host == host);
                if let Some(stage) = known {
                    let ready = stage.complaints.add(&bytes);
                    self.observer.pass_on(&ready);
                }
            }
            Update::Host(host, Message::StageEnded { stage, report }) => {
                self.stage_ended(host, stage as usize, report);
            }
            Update::Host(..) | Update::Agreed | Update::Arrived(_) | Update::Join(_) => {}
            Update::End(hop, side, message) => self.hear_end(hop, side, message),
            Update::Ended(hop, side) => self.hop_ended(hop, side),
            Update::Say(line) => self.observer.remark(&line),
            Update::Unmet(hop, reason) => {
                let label = self.job.hops[hop].label();
                self.fail(Exit::Connect.with(format!("cannot connect {label}: {reason}")));
            }
            Update::Gone(host, failure) if self.is_of_branch(host) => self.lose_branch(host, failure),
            Update::Gone(_, Some(failure)) | Update::Failed(failure) => self.fail(failure),
            Update::Gone(host, None) => self.lose(host),
            Update::Signal(number) if number == libc::SIGTSTP => self.job.suspend(),
            Update::Signal(number) => {
                if self.signal.is_some() {
                    // A second signal ends the wait.
                    self.killed = true;
                    self.asked = Instant::now().checked_sub(2 * END_MAX + TICK);
                }
                self.signal = Some(number as u8);
                self.failing_since = Some(Instant::now());
            }
        }
    }

    fn hear_end(&mut self, at: usize, side: Side, message: Message) {
        let hop = &mut self.job.hops[at];
        match message {
            Message::Progress { bytes, waits, .. } => {
                self.observer.measured(hop, side, bytes, waits);
                if side == Side::From {
                    hop.waits = waits;
                }
                if bytes > hop.bytes {
                    hop.bytes = bytes;
                    self.moved();
                }
            }
            Message::Say(line) => {
                let line = escaped(OsStr::new(&line));
                self.observer.notice(&format!("{}: {line}", hop.label()));
            }
            Message::Notice(notice, reason) if side == Side::From => {
                let reason = reason.map(|reason| escaped(OsStr::new(&reason)));
                self.observer.lanes(hop, notice, reason.as_deref(), self.plan.transfer.reconnect.into());
            }
            _ => {}
        }
    }

    /// Records that bytes move. After a failure, this gives the data time to drain.
    fn moved(&mut self) {
        if let (Some(since), None) = (&mut self.failing_since, &self.fatal) {
            *since = Instant::now();
        }
    }

    fn hop_ended(&mut self, at: usize, side: Side) {
        let hop = &self.job.hops[at];
        if let Some(report) = hop.report(side) {
            self.observer.measured(hop, side, report.figures.counters.bytes, report.figures.waits);
        }
        let Some(fault) = hop.report(side).and_then(|report| report.fault.clone()) else { return };
        let exit = Exit::from_code(fault.exit);
        // The reader may end early; the writing command then gets SIGPIPE.
        if exit == Exit::SinkClosed || self.has_failed() {
            return;
        }
        // The stage reports this itself, perhaps later.
        if fault.exit == CANNOT_RUN {
            self.failing_since.get_or_insert_with(Instant::now);
            return;
        }
        // If signals end both ends at once, neither reports the other's signal, and their commands may be over by then.
        if hop.was_ended_by_signals()
            && let Some((host, fault)) = hop.first_fault()
        {
            let failure = self.job.failure(host, fault);
            return self.fail(failure);
        }
        // Each end has the fault from the other: both have found the same, such as that they have no allowed transport
        // in common.
        let had_met = hop.has_met();
        let nobodys = hop.reports.iter().all(|report| {
            let fault = report.as_ref().and_then(|report| report.fault.as_ref());
            fault.is_some_and(|fault| !fault.own)
        });
        match exit {
            // A redirection belongs to a stage, and so does its failure. See `judge`.
            Exit::Source | Exit::Destination if fault.own => {
                self.failing_since.get_or_insert_with(Instant::now);
            }
            Exit::Source | Exit::Destination | Exit::Signal(_) if !nobodys => {}
            // The end that found the fault reports it; the other end has only lost its peer.
            _ if fault.own || nobodys || exit == Exit::LinkLost || !had_met => {
                let mut failure = self.job.failure(hop.host(side), &fault);
                // A host without room for a hop is not a failure of the hop.
                if exit != Exit::Usage {
                    let label = hop.label();
                    failure.message = failure.message.map(|line| format!("{label}: {line}"));
                }
                self.is_from_other_end = !fault.own && !nobodys && exit != Exit::LinkLost;
                self.lost_hop = (side == Side::To && exit == Exit::LinkLost).then_some(at);
                self.fail(failure);
            }
            _ => {}
        }
    }

    fn stage_ended(&mut self, host: usize, number: usize, report: StageReport) {
        let is_asked_alone = self.stages.get(number).is_some_and(|stage| stage.ending_since.is_some());
        let asked = self.asked.is_some() || self.signal.is_some() || is_asked_alone;
        let Some(stage) = self.stages.get_mut(number).filter(|stage| stage.host == host && stage.end.is_none()) else {
            return;
        };
        let well = report.fault.is_none() && report.signal.is_none() && report.code == Some(0);
        let piped = is_piped(&report);
        stage.end = Some(StageEnd { report, asked });
        let rest = stage.complaints.rest();
        self.observer.pass_on(&rest);
        if self.is_branch(number) {
            return self.branch_ended(number, well);
        }
        // A writer that a failed hop has ended may be reported before the hop's failure. See `weigh_pipe`.
        if !(well || piped || self.was_left(number)) {
            self.failing_since.get_or_insert_with(Instant::now);
        }
    }

    /// Counts stages as failed that ended by SIGPIPE, if no hop explains that: a stage whose reader has read all of it,
    /// and the last stage, once all of its outgoing hops are settled.
    fn weigh_pipes(&mut self, stages: &[usize], hops: &[usize]) {
        let last = self.stages.len() - 1;
        let is_unexplained = |&number: &usize| {
            let is_piped = self.stages[number].end.as_ref().is_some_and(|end| is_piped(&end.report));
            let mut outgoing = hops.iter().filter(|&&hop| self.job.hops[hop].stages[0] == Some(number));
            is_piped
                && !self.is_branch(number)
                && match number == last {
                    true => !self.was_left(number) && outgoing.all(|&hop| self.job.is_settled(hop)),
                    false => self.was_read_whole(number),
                }
        };
        if stages.iter().any(is_unexplained) {
            self.failing_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether all that the stage wrote was read. If it ended by SIGPIPE, that was not because its reader had gone. A
    /// stage whose output no other reads is not excused either.
    fn was_read_whole(&self, number: usize) -> bool {
        if self.is_branch(number + 1) {
            return self.branches.as_ref().is_some_and(Branches::have_all_of_source);
        }
        let hop = self.hops().find(|hop| hop.stages[0] == Some(number) && hop.stages[1].is_some());
        hop.is_none_or(|hop| hop.report(Side::From).is_some_and(|report| report.fault.is_none()))
    }

    /// Whether the reader of the stage's output ended without reading all of it, and the stage wrote on. The stage's
    /// exit code is then not a failure.
    fn was_left(&self, number: usize) -> bool {
        let hop = self.hops().find(|hop| hop.stages[0] == Some(number) && hop.stages[1].is_some());
        hop.is_some_and(Hop::was_left)
    }

    /// Returns the hops between stages, without those of a chain.
    fn hops(&self) -> impl DoubleEndedIterator<Item = &Hop> {
        self.job.hops.iter().filter(|hop| !hop.is_of_chain())
    }

    /// Whether the stage's output is the caller's standard output, and its reader has closed it.
    fn is_unread(&self, number: usize) -> bool {
        match self.hops().find(|hop| hop.stages[0] == Some(number)) {
            Some(hop) => hop.stages[1].is_none() && hop.was_closed(),
            // The stage writes to the caller's standard output directly.
            None => !self.stages[number].spec.is_write(),
        }
    }

    /// Handles the loss of an agent. A stage that the agent has not started will never start, even if its hops are
    /// over: the signal that ended the agent ended them too.
    fn lose(&mut self, host: usize) {
        let waits = self.stages.iter().any(|stage| stage.host == host && stage.end.is_none())
            || self.hops().any(|hop| hop.hosts.contains(&host) && !hop.is_over());
        if waits && !self.has_failed() {
            self.fail(self.job.lost(host));
        }
    }

    /// Returns the failure that the whole pipeline ends with. Failures of all other stages are reported here.
    fn judge(&mut self) -> Option<Failure> {
        if let Some(number) = self.signal {
            return Some(Failure::silent(Exit::Signal(number)));
        }
        let mut failures: Vec<Failure> = Vec::new();
        let first_branch = self.plan.branching.as_ref().map_or(self.stages.len(), |branching| branching.first);
        // Those that are the effect of another failure.
        let mut effects: Vec<Failure> = Vec::new();
        // The first stage behind a failed one.
        let mut behind = None;
        for (number, stage) in self.stages.iter().enumerate().take(first_branch) {
            let failure = self.stage_failure(number, stage);
            if stage.was_cut_opening() {
                effects.extend(failure);
                continue;
            }
            if failure.is_some() && !stage.end.as_ref().is_some_and(|end| end.asked) {
                behind.get_or_insert(number + 1);
            }
            failures.extend(failure);
        }
        // A failure that stops everything outweighs its effect on a stage.
        let standard = self.standard_failure();
        let is_explained = standard.is_some() || !failures.is_empty();
        if let Some(fatal) = self.fatal.as_ref().filter(|_| !self.is_hearsay() || !is_explained) {
            return Some(fatal.clone());
        }
        if let Some((side, mut failure)) = standard {
            if side == Side::From {
                self.tell_cut(&mut failure, 0);
            }
            return Some(failure);
        }
        let is_explained = !failures.is_empty();
        failures.extend(self.judge_branches(is_explained));
        if failures.is_empty() {
            failures = effects;
        }
        // A stage that is the source of the stream has failed both as a stage and as the source of all branches.
        failures.dedup_by(|one, before| one.message.is_some() && one.message == before.message);
        let Some(mut last) = failures.pop() else {
            // The commands need not have noticed.
            let unread = self.hops().any(|hop| hop.stages[1].is_none() && hop.was_closed());
            return unread.then_some(Failure::silent(Exit::SinkClosed));
        };
        for line in failures.iter().filter_map(|failure| failure.message.as_deref()) {
            self.observer.complain(line);
        }
        if let Some(behind) = behind {
            self.tell_cut(&mut last, behind);
        }
        Some(last)
    }

    /// Adds to a failure which stage, of those from number `behind` on, was still working on its input and was ended:
    /// the last of them.
    fn tell_cut(&self, failure: &mut Failure, behind: usize) {
        let is_asked = |stage: &Stage| stage.end.as_ref().is_some_and(|end| end.asked);
        let cut = self.stages.iter().skip(behind).rfind(|stage| is_asked(stage)).filter(|_| self.branches.is_none());
        let (Some(line), Some(Stage { spec, .. })) = (&mut failure.message, cut) else { return };
        *line += &format!("; {}: {} was ended", spec.label(), quoted(&spec.text));
        if !self.ended_early {
            *line += &format!(" after {} s without data", REST_MAX.as_secs());
        }
    }

    /// Whether `fatal` may be the effect of a stage's failure.
    fn is_hearsay(&self) -> bool {
        // The end before has been stopped, and has given no reason.
        let is_stopped = |at: usize| {
            let fault = self.job.hops[at].report(Side::From).and_then(|report| report.fault.as_ref());
            fault.is_some_and(|fault| fault.own && fault.exit >= 128)
        };
        self.is_from_other_end || self.lost_hop.is_some_and(is_stopped)
    }

    /// Returns the failure to read the caller's standard input or to write its standard output, which is no stage's
    /// failure.
    fn standard_failure(&self) -> Option<(Side, Failure)> {
        let ends = self.hops().flat_map(|hop| [(hop, Side::From), (hop, Side::To)]);
        let mut faults = ends
            .filter(|(hop, side)| hop.stages[*side as usize].is_none())
            .filter_map(|(hop, side)| Some((side, self.job.failure(hop.host(side), hop.own_fault(side)?))));
        faults.next_back()
    }

    /// Returns the failure of a redirection or a `tee` whose file took only a part, such as a FIFO whose reader has gone.
    fn unread_file(&self, number: usize, stage: &Stage) -> Option<Failure> {
        let is_file = stage.spec.is_to_file();
        let hop = self.hops().find(|hop| hop.stages[Side::To as usize] == Some(number)).filter(|_| is_file)?;
        let fault = hop.report(Side::To)?.fault.as_ref()?;
        let is_closed = fault.own && Exit::from_code(fault.exit) == Exit::SinkClosed && !self.was_left(number);
        let line = || {
            let name = format!("{}: {}", stage.spec.label(), quoted(&stage.spec.text));
            Exit::Destination.with(format!("cannot write {name}: {}", os(Errno::PIPE)))
        };
        is_closed.then(line)
    }

    fn stage_failure(&self, number: usize, stage: &Stage) -> Option<Failure> {
        let end = stage.end.as_ref()?;
        let name = format!("{}: {}", stage.spec.label(), quoted(&stage.spec.text));
        if let Some(fault) = &end.report.fault {
            let mut failure = self.job.failure(stage.host, fault);
            if fault.exit == CANNOT_RUN {
                failure.exit = Exit::Stage(CANNOT_RUN);
            }
            return Some(failure);
        }
        let is_last = number + 1 == self.stages.len() || self.is_branch(number);
        // The session reports a failure of a file that a redirection opened.
        let of_session = |side: Side| {
            let hop = self.hops().find(|hop| hop.stages[side as usize] == Some(number))?;
            Some(self.job.failure(stage.host, hop.own_fault(side)?))
        };
        let moved = of_session(Side::From).or_else(|| of_session(Side::To)).or_else(|| self.unread_file(number, stage));
        if let Some(mut moved) = moved {
            if stage.spec.tee().is_some() {
                // The exit code is that of `tee`, whether a session or `tee` itself has written the files.
                moved.exit = Exit::Stage(TEE_FAILED);
            }
            return Some(moved);
        }
        if end.asked {
            return None;
        }
        match (end.report.code, end.report.signal) {
            (Some(0), _) => None,
            (Some(SIGPIPE_CODE), _) | (_, Some(libc::SIGPIPE)) if !is_last && !self.was_read_whole(number) => None,
            (Some(SIGPIPE_CODE), _) | (_, Some(libc::SIGPIPE)) if is_last && self.is_unread(number) => {
                Some(Failure::silent(Exit::SinkClosed))
            }
            _ if self.was_left(number) => None,
            // A redirection on the caller's host at both sides is opened by its shell, which has said why it failed.
            (Some(_), _) if stage.spec.is_read() => Some(Exit::Source.with(format!("cannot read {name}"))),
            (Some(_), _) if stage.spec.is_write() => Some(Exit::Destination.with(format!("cannot write {name}"))),
            (Some(code), _) => {
                let exit = Exit::Stage(u8::try_from(code).unwrap_or(u8::MAX));
                Some(exit.with(format!("{name} ended with exit code {code}")))
            }
            (None, Some(signal)) => {
                let exit = Exit::Stage(128_u8.saturating_add(signal as u8));
                let named = signal_hook::low_level::signal_name(signal).map(|name| format!(" ({name})"));
                Some(exit.with(format!("{name} was killed by signal {signal}{}", named.unwrap_or_default())))
            }
            (None, None) => Some(Exit::Protocol.with(format!("{name} exited without reporting a status"))),
        }
    }
}

/// Whether the stage was ended by SIGPIPE, because its output had no reader, or its shell reported that.
fn is_piped(report: &StageReport) -> bool {
    report.signal == Some(libc::SIGPIPE) || report.code == Some(SIGPIPE_CODE)
}
