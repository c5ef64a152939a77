//! A last stage that runs on several hosts, each of which gets the whole stream. A host that fails does not end the
//! others.

use std::time::{Duration, Instant};

use super::{END_MAX, Pipeline, REST_MAX, grammar, quoted};
use crate::control::frames::{BroadcastRole, Fault, Message};
use crate::fault::{Exit, Failure};
use crate::job::HERE;
use crate::job::arrivals::some_failed;
use crate::job::copy::broadcast::branches::{Branches, Lag, Standing};
use crate::job::event::{self, Event};
use crate::job::failures::line_of;
use crate::job::progress::Streamed;

/// Options of a stream that goes to several hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branching {
    /// The first of the stages that are the same on several hosts. All later stages belong to them.
    pub(crate) first: usize,
    /// Whether a host that holds the others up is dropped instead of waited for.
    pub(crate) drops_slow: bool,
    /// How long a host may take nothing.
    pub(crate) stall: Duration,
    /// How many bytes may wait for each host on its disk.
    pub(crate) disk_bytes: u64,
    /// How long a host may be silent before its agent answers.
    pub(crate) connect_max: Duration,
}

impl Pipeline<'_> {
    pub(super) fn is_branch(&self, number: usize) -> bool {
        self.plan.branching.as_ref().is_some_and(|branching| number >= branching.first)
    }

    /// Waits for all agents. A host that has only one of these stages fails alone, and does not hold up the others for
    /// long. The others do wait for it a while, because nothing can be copied to it later.
    ///
    /// # Errors
    ///
    /// As [`crate::job::Job::greet`], for any other host.
    pub(super) fn greet_branches(&mut self, branching: Branching) -> Result<(), Failure> {
        let alone: Vec<usize> = (0..self.job.hosts.len()).filter(|&host| self.is_of_branch(host)).collect();
        let Self { job, observer, .. } = self;
        let failed = job.greet_each_within(&alone, branching.connect_max, &mut |line| observer.remark(line))?;
        for (host, failure) in failed {
            if !self.is_of_branch(host) {
                return Err(failure);
            }
            for stage in self.stages[branching.first..].iter_mut().filter(|stage| stage.host == host) {
                stage.failure = Some(failure.clone());
            }
        }
        Ok(())
    }

    /// Reports whether a host has one of these stages and no other stage.
    pub(super) fn is_of_branch(&self, host: usize) -> bool {
        let mut stages = self.stages.iter().enumerate().filter(|(_, stage)| stage.host == host).peekable();
        stages.peek().is_some() && stages.all(|(number, _)| self.is_branch(number))
    }

    /// Begins the chain. The hosts have been told of their stages. `feed`: the stage whose output is the stream; `None`
    /// for standard input.
    pub(super) fn begin_branches(&mut self, feed: Option<usize>) {
        let plan = self.plan;
        let Some(Branching { first, drops_slow, stall, disk_bytes, .. }) = plan.branching else { return };
        let source = match feed {
            None => (HERE, BroadcastRole::SourceStandard),
            Some(stage) => (self.stages[stage].host, BroadcastRole::SourceStage { stage: stage as u32 }),
        };
        let branches = self.stages.iter().enumerate().skip(first).filter(|(_, stage)| stage.failure.is_none());
        let branches: Vec<(usize, usize)> = branches.map(|(number, stage)| (stage.host, number)).collect();
        if branches.is_empty() {
            // Each stage has its own failure, which is reported.
            self.failing_since.get_or_insert_with(Instant::now);
            return;
        }
        let lag = if drops_slow { Lag::Dropped } else { Lag::Held };
        self.branches =
            Some(Branches::begin(&mut self.job, source, &branches, (lag, stall, disk_bytes), plan.transfer));
    }

    /// Does what the chain requires, and ends commands that will not get the whole stream.
    pub(super) fn attend_branches(&mut self) {
        let Some(branches) = &mut self.branches else { return };
        branches.turn(&mut self.job);
        let bytes = branches.bytes();
        // When the pipeline is being ended, hops break, which the user need not be told.
        let is_ended = self.signal.is_some() || self.fatal.is_some();
        for line in branches.said().into_iter().filter(|_| !is_ended) {
            self.observer.remark(&line);
        }
        let has_failed = |number: usize| {
            let report = self.stages[number].end.as_ref().map(|end| &end.report);
            report.is_some_and(|report| report.fault.is_some() || report.code != Some(0))
        };
        let (shown, made, is_all, elapsed) = branches.shown(has_failed);
        self.observer.show_hosts(&shown, made, is_all, elapsed);
        let has_moved = std::mem::replace(&mut self.bytes_of_branches, bytes) != bytes;
        if let Some(feeder) = self.plan.branching.and_then(|branching| branching.first.checked_sub(1)) {
            self.stages[feeder].sent = Some(branches.came_to().0);
        }
        let mut open = 0;
        for number in 0..self.stages.len() {
            let Some(received) = branches.received(number) else { continue };
            let stage = &mut self.stages[number];
            stage.received = Some(received);
            if !matches!(branches.standing(number), Standing::Failed(_)) {
                open += 1;
                continue;
            }
            if !stage.started || stage.end.is_some() || self.job.hosts[stage.host].gone {
                continue;
            }
            let signal = match stage.ending_since {
                None => libc::SIGTERM,
                Some(since) if !stage.is_killed && since.elapsed() > END_MAX => libc::SIGKILL,
                Some(_) => continue,
            };
            stage.ending_since.get_or_insert_with(Instant::now);
            stage.is_killed = signal == libc::SIGKILL;
            self.job.send(stage.host, Message::EndStage { stage: number as u32, signal: signal as u8 });
        }
        if has_moved {
            self.moved();
        }
        if open == 0 {
            // No host is left to take the stream.
            self.failing_since.get_or_insert_with(Instant::now);
        }
    }

    /// Reports whether the host of one of these stages will not get the whole stream.
    pub(super) fn is_failed_branch(&self, number: usize) -> bool {
        let standing = self.branches.as_ref().map(|branches| branches.standing(number));
        matches!(standing, Some(Standing::Failed(_)))
    }

    /// Reports whether a stage was asked to end, and then killed, and still has not reported its end.
    pub(super) fn is_given_up(&self, number: usize) -> bool {
        self.stages[number].ending_since.is_some_and(|since| since.elapsed() > 2 * END_MAX)
    }

    pub(super) fn branch_ended(&mut self, number: usize, is_well: bool) {
        // A redirection ends as soon as it is opened; its node writes to the opened file.
        if self.stages[number].spec.is_run()
            && let Some(branches) = &mut self.branches
        {
            branches.stage_ended(&mut self.job, number, is_well);
        }
    }

    /// Handles the loss of a host that has only one of these stages.
    pub(super) fn lose_branch(&mut self, host: usize, failure: Option<Failure>) {
        let failure = failure.unwrap_or_else(|| self.job.lost(host));
        let is_open = |number: usize| {
            let branches = self.branches.as_ref();
            branches.is_some_and(|branches| branches.standing(number) != Standing::Done)
        };
        for number in 0..self.stages.len() {
            let is_waited_for = self.stages[number].end.is_none() || is_open(number);
            if self.stages[number].host == host && is_waited_for {
                self.stages[number].failure.get_or_insert(failure.clone());
            }
        }
    }

    /// Returns the failure of the stage as a whole. Hosts that have failed are reported here. `is_explained`: another
    /// stage has failed, so that hosts of which all were ended for that are no failure of their own.
    pub(super) fn judge_branches(&mut self, is_explained: bool) -> Option<Failure> {
        let first = self.plan.branching.as_ref()?.first;
        let count = self.stages.len() - first;
        if let Some(failure) = self.source_failure() {
            return Some(failure);
        }
        let failures: Vec<Failure> =
            (first..self.stages.len()).filter_map(|number| self.branch_failure(number)).collect();
        for failure in &failures {
            self.observer.event(&Event::Failed(event::Failed::new(failure)));
            self.observer.complain(failure.message.as_deref().unwrap_or_default());
        }
        let was_ended = |number: usize| self.stages[number].end.as_ref().is_some_and(|end| end.asked);
        let is_consequence = is_explained
            && (first..self.stages.len()).all(|number| was_ended(number) || self.branch_failure(number).is_none());
        match failures.len() {
            0 => None,
            _ if is_consequence => None,
            failed if failed == count => {
                let line = format!("all {count} hosts failed");
                Some(failures[0].exit.with(line))
            }
            failed => Some(some_failed(failed, 0, count)),
        }
    }

    /// Returns the failure to read the stream, if its source is no command.
    fn source_failure(&self) -> Option<Failure> {
        let branches = self.branches.as_ref()?;
        let is_unread = |fault: &&Fault| fault.own && Exit::from_code(fault.exit) == Exit::Source;
        let fault = branches.source_fault().filter(is_unread)?;
        Some(self.job.failure(branches.source(), fault))
    }

    /// Returns what became of the stream. `None` if it went to a single host, if it failed as a whole, or if no host
    /// has it.
    pub(super) fn streamed(&self) -> Option<Streamed> {
        let (branches, first) = (self.branches.as_ref()?, self.plan.branching.as_ref()?.first);
        let has_failed = self.signal.is_some()
            || self.fatal.is_some()
            || self.source_failure().is_some()
            || (0..first).any(|number| self.stage_failure(number, &self.stages[number]).is_some());
        let has_it = |number: &usize| self.branch_failure(*number).is_none();
        let done: Vec<usize> = (first..self.stages.len()).filter(has_it).collect();
        if has_failed || done.is_empty() {
            return None;
        }
        let (bytes, took) = branches.came_to();
        Some(Streamed {
            bytes,
            hosts: Some((done.len(), self.stages.len() - first)),
            seconds: took.as_secs_f64(),
            is_verified: done.iter().all(|&number| branches.is_proven(number)),
        })
    }

    /// Returns why the branch of a stage has failed, with its host.
    fn branch_failure(&self, number: usize) -> Option<Failure> {
        let stage = &self.stages[number];
        let label = grammar::label(&stage.spec.host);
        let named = |failure: Failure| {
            let line = line_of(&label, failure.message.as_deref().unwrap_or("failed"));
            Failure { message: Some(line), ..failure }
        };
        if let Some(failure) = &stage.failure {
            return Some(named(failure.clone()));
        }
        let standing = self.branches.as_ref().map(|branches| branches.standing(number));
        let was_ended = stage.end.as_ref().filter(|end| end.asked);
        let cut = || {
            let line = format!("{} was ended after {} s without data", quoted(&stage.spec.text), REST_MAX.as_secs());
            named(Exit::Partial.with(line))
        };
        let was_ended_alone = |asked: Instant| stage.ending_since.is_some_and(|since| since < asked);
        if stage.was_cut_opening() && self.asked.is_some_and(|asked| !was_ended_alone(asked)) {
            return Some(cut());
        }
        // What it said of its end is a consequence of that.
        let is_dropped = was_ended.is_some() && matches!(standing, Some(Standing::Failed(_)));
        if let Some(failure) = self.stage_failure(number, stage).filter(|_| !is_dropped) {
            return Some(named(failure));
        }
        match standing? {
            Standing::Done if was_ended.is_some_and(|end| end.report.code != Some(0)) => Some(cut()),
            Standing::Done if stage.end.is_some() => None,
            Standing::Failed(Ok(fault)) => Some(named(self.job.failure(stage.host, &fault))),
            Standing::Failed(Err((exit, reason))) => Some(named(exit.with(reason))),
            Standing::Done | Standing::Open => {
                Some(named(Exit::LinkLost.with("had not finished when the pipeline ended".to_owned())))
            }
        }
    }
}
