//! Runs one command on another host, between this process's standard input and output, as ssh does.
//!
//! The command is a pipeline of one stage with a hop at each side. It differs from a pipeline in what ends it: only the
//! command itself, or a lost connection. A failed command is waited for as any other, because its output may still be
//! on the way to a slow reader.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::time::Instant;

use super::copy::route;
use super::hop::Side;
use super::launching::Remote;
use super::pipeline::grammar;
use super::{EndOf, HERE, Job, LONG, LOOK_AGAIN, Setup, Update};
use crate::agent::LOGIN_SHELL;
use crate::control::frames::{self, Action, Input, Message, Output, StageReport};
use crate::control::stages::CANNOT_RUN;
use crate::fault::{Exit, Failure, escaped};
use crate::fs::source;
use crate::options::TransferOptions;

/// Upper bound for the length of the words in front of a command.
pub(crate) const LOGIN_SHELL_BYTES: usize = 256;

/// Number of the stage that runs the command.
const STAGE: u32 = 0;

/// What to run, and how.
pub(crate) struct Call<'a> {
    pub(crate) setup: Setup,
    pub(crate) host: OsString,
    pub(crate) command: Vec<u8>,
    /// Whether standard input is to be read. Otherwise the command gets /dev/null.
    pub(crate) has_input: bool,
    /// Whether standard output is to be written. Otherwise the command gets /dev/null.
    pub(crate) has_output: bool,
    pub(crate) transfer: &'a TransferOptions,
    /// Takes bytes that the command has written to its standard error.
    pub(crate) pass_on: fn(&[u8]),
    /// Takes a line for a person who wants to know how the command is run.
    pub(crate) remark: &'a dyn Fn(&str),
}

/// Outcome of a call.
pub(crate) enum Ran {
    /// The command has ended with this exit code.
    Ended(u8),
    /// The host was reached, but the command is left to ssh, for this reason. Nothing has been run, read or written.
    LeftToSsh(Failure),
}

/// Runs a command.
///
/// # Errors
///
/// Exit code 128+n for a signal to this process. Fails with any failure other than that of the command itself.
pub(crate) fn run(call: Call<'_>) -> Result<Ran, Failure> {
    let mut job = Job::new(call.setup.clone(), false)?;
    let host = job.host(&call.host)?;
    let launcher = call.setup.launcher_name();
    if let Err(failure) = job.greet() {
        // A signal ends the call, whatever an earlier login has come to.
        let is_signal = matches!(failure.exit, Exit::Signal(_));
        let is_reached = job.remote(host).is_some_and(|remote| remote.is_reached);
        return if is_reached && !is_signal { Ok(Ran::LeftToSsh(failure)) } else { Err(failure) };
    }
    // With its output elsewhere, a terminal would only change the bytes. In the background it would stop ssh.
    let is_typed = call.has_input
        && std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal()
        && !source::is_others_turn(std::io::stdin());
    if is_typed && job.remote(host).is_some_and(Remote::lacks_terminal) {
        return Ok(Ran::LeftToSsh(Exit::Connect.with("ssh's configuration asks for a terminal")));
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
    let (pass_on, remark) = (call.pass_on, call.remark);
    let mut command = Command { job, host, input, output, report: None, cut: None, pass_on, remark };
    let ended = command.attend();
    let has_run = matches!(ended, Ok(Ran::Ended(_)));
    if has_run {
        command.tell_routes(&launcher);
    }
    let is_over = has_run && command.input.is_none_or(|input| !command.job.is_heard(input));
    command.job.close((!is_over).then_some(libc::SIGTERM as u8));
    ended
}

/// A running command.
struct Command<'a> {
    job: Job,
    host: usize,
    /// The hops into the command and out of it.
    input: Option<usize>,
    output: Option<usize>,
    /// How the command ended.
    report: Option<StageReport>,
    /// Why the command's input was cut off before the command ended, which may have ended for that reason.
    cut: Option<Failure>,
    pass_on: fn(&[u8]),
    remark: &'a dyn Fn(&str),
}

impl Command<'_> {
    /// Runs the command to its end.
    fn attend(&mut self) -> Result<Ran, Failure> {
        let mut is_started = false;
        loop {
            let mut hops = self.input.iter().chain(&self.output);
            if !is_started && hops.all(|&hop| self.job.hops[hop].has_agreed()) {
                is_started = true;
                self.job.send(self.host, Message::StartStages);
                // The command begins at once. Data that is here by then, and above all credits, need not cross the line
                // later.
                for (hop, side) in
                    self.input.map(|hop| (hop, Side::From)).into_iter().chain(self.output.map(|hop| (hop, Side::To)))
                {
                    self.job.send_end(hop, side, &Message::Go);
                }
                // An agent that ends by itself saves an exchange of messages. Data that goes through the channel needs
                // the agent for longer.
                if !self.job.hops.iter().any(|hop| hop.tunneled) {
                    self.job.send(self.host, Message::EndWhenDone);
                }
            }
            if let Some(report) = self.report.as_ref().filter(|report| report.fault.is_some()) {
                return self.code(report).map(Ran::Ended);
            }
            // Checked before the command's own outcome, because not all of its output may have arrived.
            if let Some(failure) = self.broken() {
                return Err(failure);
            }
            if let Some(report) = self.report.as_ref().filter(|_| self.has_all()) {
                return self.cut.clone().map_or_else(|| self.code(report).map(Ran::Ended), Err);
            }
            let is_ending = self.job.hops.iter().any(|hop| hop.ended_since.is_some());
            let wait = if is_ending { LOOK_AGAIN } else { LONG };
            if let Some(update) = self.job.next(Instant::now() + wait) {
                // Such as with StdinNull in ssh's configuration, by which the agent's input ends at once.
                let is_gone = matches!(update, Update::Gone(host, None) if host == self.host);
                if is_gone && !is_started && self.job.hosts[self.host].remote.as_mut().is_some_and(Remote::has_left) {
                    return Ok(Ran::LeftToSsh(self.job.lost(self.host)));
                }
                self.heed(update)?;
            }
        }
    }

    fn heed(&mut self, update: Update) -> Result<(), Failure> {
        match update {
            Update::Host(host, Message::StageStderr { bytes, .. }) if host == self.host => {
                (self.pass_on)(&bytes);
            }
            Update::Host(host, Message::StageEnded { report, .. }) if host == self.host => {
                if self.report.is_none() {
                    self.cut = self.input.and_then(|hop| self.cut(hop));
                }
                self.report.get_or_insert(report);
            }
            Update::End(hop, _, Message::Say(line)) => {
                let (label, line) = (self.job.hops[hop].label(), escaped(OsStr::new(&line)));
                (self.remark)(&format!("{label}: {line}"));
            }
            Update::Say(line) => (self.remark)(&line),
            // The agent has reported everything. Output that is still to come arrives by the lanes, as long as they
            // live.
            Update::Gone(_, None) if self.report.is_some() => {
                self.output.iter().for_each(|&hop| self.job.send_end(hop, Side::To, &Message::OtherLost));
            }
            update => self.job.check(update)?,
        }
        Ok(())
    }

    /// Reports the way that the data took, for each direction in which there was data.
    fn tell_routes(&mut self, launcher: &str) {
        for hop in self.output.into_iter().chain(self.input).map(|hop| &self.job.hops[hop]) {
            let report =
                hop.report(Side::To).or(hop.report(Side::From)).filter(|report| !report.figures.media.is_empty());
            if let Some(report) = report {
                let route = route(report, hop.tunneled.then_some(launcher));
                (self.remark)(&format!("{}: {route}", hop.label()));
            }
        }
    }

    /// Whether all of the command's standard output has arrived, or its reader does not want the rest.
    fn has_all(&self) -> bool {
        self.output.is_none_or(|hop| self.job.is_settled(hop) || self.job.hops[hop].was_closed())
    }

    /// Returns why a connection has failed. A reader may close it at any time. Input that the command has not read when
    /// it ends does not matter.
    fn broken(&self) -> Option<Failure> {
        let input = self.input.filter(|_| self.report.is_none());
        input.into_iter().chain(self.output).find_map(|hop| self.failed(hop).filter(|_| self.job.is_settled(hop)))
    }

    /// Returns why the input was cut off, if it was. An agent that is ended reports that before it ends the command.
    fn cut(&self, hop: usize) -> Option<Failure> {
        self.failed(hop).filter(|_| self.job.hops[hop].report(Side::To).is_some_and(|report| report.fault.is_some()))
    }

    /// Returns why a session has failed. A reader that has gone away is not a failure.
    fn failed(&self, hop: usize) -> Option<Failure> {
        let (host, fault) = self.job.hops[hop].first_fault()?;
        let is_closed = Exit::from_code(fault.exit) == Exit::SinkClosed;
        (!is_closed).then(|| self.job.failure(host, fault))
    }

    fn code(&self, report: &StageReport) -> Result<u8, Failure> {
        if let Some(fault) = &report.fault {
            let mut failure = self.job.failure(self.host, fault);
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
