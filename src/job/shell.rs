//! One command on another host, between this process's standard input and output, as ssh runs one.
//!
//! It is a pipeline of one stage with a hop at each side, and differs from one in what ends it: nothing but the command
//! does, and a connection that is lost. One that fails is waited for as any other, since what it has written may still be on
//! its way to a reader that takes its time.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use super::copy::route;
use super::hop::Side;
use super::pipeline::grammar;
use super::{EndOf, HERE, Job, LOOK_AGAIN, Setup, Update, told};
use crate::control::frames::{self, Action, Input, Message, Output, StageReport};
use crate::control::stages::CANNOT_RUN;
use crate::fault::{Exit, Failure, escaped};
use crate::options::TransferOptions;

/// The login's own shell reads the command, as with sshd: these words have it do so. Where it is found by its bare name, it is
/// called by that, which it puts in front of what it complains of.
const LOGIN_SHELL: [&str; 4] = [
    "sh",
    "-c",
    "s=${SHELL:-sh}; [ \"$(command -v \"${s##*/}\")\" -ef \"$s\" ] && s=${s##*/}; exec \"$s\" \"$@\"",
    "sh",
];

/// More than the length of the words that stand before a command.
pub(crate) const LOGIN_SHELL_BYTES: usize = 256;

/// The number of the stage that the command is.
const STAGE: u32 = 0;

/// What is to be run, and how.
pub(crate) struct Call<'a> {
    pub(crate) setup: Setup,
    pub(crate) host: OsString,
    pub(crate) command: Vec<u8>,
    /// Standard input is there to be read; else the command has /dev/null.
    pub(crate) has_input: bool,
    /// The same of standard output.
    pub(crate) has_output: bool,
    pub(crate) transfer: &'a TransferOptions,
}

/// Who is told what becomes of it.
pub(crate) trait Observer {
    /// What the command has written to its standard error.
    fn pass_on(&mut self, bytes: &[u8]);
    /// A line for a person who wants to know how it is done.
    fn remark(&mut self, line: &str);
}

/// What became of it.
pub(crate) enum Ran {
    /// The command has ended with this exit code.
    Ended(u8),
    /// The host is there and an agent is not, for this reason. Nothing has been run, read or written.
    NoAgent(Failure),
}

/// Runs a command.
///
/// # Errors
///
/// 128+n for a signal to this process, and what went wrong but for the command itself.
pub(crate) fn run(call: Call<'_>, observer: &mut dyn Observer) -> Result<Ran, Failure> {
    let mut job = Job::new(call.setup.clone(), false)?;
    let host = job.host(&call.host)?;
    let launcher = call.setup.launcher_name();
    if let Err(failure) = job.greet() {
        let is_reached = job.remote(host).is_some_and(|remote| remote.is_reached());
        return if is_reached { Ok(Ran::NoAgent(failure)) } else { Err(failure) };
    }
    let stage = frames::Stage {
        number: STAGE,
        action: Action::Run { command: call.command },
        input: if call.has_input { Input::Hop } else { Input::Nothing },
        output: if call.has_output { Output::Hop } else { Output::Nothing },
        shell: LOGIN_SHELL.map(|word| word.as_bytes().to_vec().into()).into(),
    };
    job.send(host, Message::Stage(Box::new(stage)));
    let end = |host: usize, name: &OsStr, job| EndOf { host, stage: None, name: grammar::label(name), job };
    let here = |job| end(HERE, OsStr::new(""), job);
    let there = |job| end(host, &call.host, job);
    let [send, receive] = [frames::Job::SendStage { stage: STAGE }, frames::Job::ReceiveStage { stage: STAGE }];
    let input =
        call.has_input.then(|| job.connect(here(frames::Job::SendStandard), there(receive), call.transfer, true));
    let output =
        call.has_output.then(|| job.connect(there(send), here(frames::Job::ReceiveStandard), call.transfer, true));
    let mut command = Command { job, host, input, output, report: None, cut: None, observer };
    let ended = command.attend();
    if ended.is_ok() {
        command.tell_routes(&launcher);
    }
    let is_over = ended.is_ok() && command.input.is_none_or(|input| !command.job.is_heard(input));
    command.job.close((!is_over).then_some(libc::SIGTERM as u8));
    ended.map(Ran::Ended)
}

/// A command that is being run.
struct Command<'a> {
    job: Job,
    host: usize,
    /// The hops into it and out of it.
    input: Option<usize>,
    output: Option<usize>,
    /// How it ended.
    report: Option<StageReport>,
    /// Why its input was cut off before it ended: it may have taken that for the end of it.
    cut: Option<Failure>,
    observer: &'a mut dyn Observer,
}

impl Command<'_> {
    /// Runs it to its end, and gives its exit code.
    fn attend(&mut self) -> Result<u8, Failure> {
        let mut is_started = false;
        loop {
            let mut hops = self.input.iter().chain(&self.output);
            if !is_started && hops.all(|&hop| self.job.hops[hop].has_agreed()) {
                is_started = true;
                self.job.send(self.host, Message::StartStages);
                // The command begins at once, and what is here by then, credits above all, need not cross the line afterwards.
                for (hop, side) in
                    self.input.map(|hop| (hop, Side::From)).into_iter().chain(self.output.map(|hop| (hop, Side::To)))
                {
                    self.job.send_end(hop, side, &Message::Go);
                }
                // To end by itself saves an exchange of messages. What goes through the channel needs it for longer.
                if !self.job.hops.iter().any(|hop| hop.tunneled) {
                    self.job.send(self.host, Message::EndWhenDone);
                }
            }
            if let Some(report) = self.report.as_ref().filter(|report| report.fault.is_some()) {
                return self.code(report);
            }
            // Before how the command ended: what it has written may not all have come.
            if let Some(failure) = self.broken() {
                return Err(failure);
            }
            if let Some(report) = self.report.as_ref().filter(|_| self.has_all()) {
                return self.cut.clone().map_or_else(|| self.code(report), Err);
            }
            let is_ending = self.job.hops.iter().any(|hop| hop.ended_since.is_some());
            let wait = if is_ending { LOOK_AGAIN } else { Duration::from_secs(3600) };
            if let Some(update) = self.job.next(Instant::now() + wait) {
                self.heed(update)?;
            }
        }
    }

    fn heed(&mut self, update: Update) -> Result<(), Failure> {
        match update {
            Update::Host(host, Message::StageStderr { bytes, .. }) if host == self.host => {
                self.observer.pass_on(&bytes);
            }
            Update::Host(host, Message::StageEnded { report, .. }) if host == self.host => {
                if self.report.is_none() {
                    self.cut = self.input.and_then(|hop| self.cut(hop));
                }
                self.report.get_or_insert(report);
            }
            Update::End(hop, _, Message::Say(line)) => {
                let (label, line) = (self.job.hops[hop].label(), escaped(OsStr::new(&line)));
                self.observer.remark(&format!("{label}: {line}"));
            }
            Update::Say(line) => self.observer.remark(&line),
            // It has said all that it has to. What it may still have to send comes by the lanes, as long as they live.
            Update::Gone(_, None) if self.report.is_some() => {
                self.output.iter().for_each(|&hop| self.job.send_end(hop, Side::To, &Message::OtherLost));
            }
            update => self.job.check(update)?,
        }
        Ok(())
    }

    /// Tells the way that the data took, of each direction in which there was any.
    fn tell_routes(&mut self, launcher: &str) {
        for hop in self.output.into_iter().chain(self.input).map(|hop| &self.job.hops[hop]) {
            let report =
                hop.report(Side::To).or(hop.report(Side::From)).filter(|report| !report.figures.media.is_empty());
            if let Some(report) = report {
                let route = route(report, hop.tunneled.then_some(launcher));
                self.observer.remark(&format!("{}: {route}", hop.label()));
            }
        }
    }

    /// All that the command has written to standard output has come, or nobody wants the rest.
    fn has_all(&self) -> bool {
        self.output.is_none_or(|hop| self.job.is_settled(hop) || self.job.hops[hop].was_closed())
    }

    /// Why a connection has failed. Whoever reads it may close it at any time, and what the command has not read when it ends
    /// is nothing to anybody.
    fn broken(&self) -> Option<Failure> {
        let input = self.input.filter(|_| self.report.is_none());
        input.into_iter().chain(self.output).find_map(|hop| self.failed(hop).filter(|_| self.job.is_settled(hop)))
    }

    /// Why its input was cut off, if it was. To be asked when the command ends: the agent reports a session's end before it closes
    /// the pipe that the command reads.
    fn cut(&self, hop: usize) -> Option<Failure> {
        self.failed(hop).filter(|_| self.job.hops[hop].report(Side::To).is_some_and(|report| report.fault.is_some()))
    }

    /// Why a session has failed. That nobody reads its data any more is no failure.
    fn failed(&self, hop: usize) -> Option<Failure> {
        let (host, fault) = self.job.hops[hop].first_fault()?;
        let is_closed = Exit::from_code(fault.exit) == Exit::SinkClosed;
        (!is_closed).then(|| told(&self.job.hosts[host].name, fault))
    }

    fn code(&self, report: &StageReport) -> Result<u8, Failure> {
        if let Some(fault) = &report.fault {
            let mut failure = told(&self.job.hosts[self.host].name, fault);
            if fault.exit == CANNOT_RUN {
                failure.exit = Exit::Stage(CANNOT_RUN);
            }
            return Err(failure);
        }
        match (report.code, report.signal) {
            (Some(code), _) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Ok(128_u8.saturating_add(signal as u8)),
            (None, None) => Err(self.job.unexpected(self.host)),
        }
    }
}
