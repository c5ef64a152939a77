//! Starts hosts in turn, and follows each of them until its agent has introduced itself or has failed. Nothing here
//! blocks except the functions that wait for agents.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};

use super::launching::{AgentChoice, HELLO_MAX, Heard, NotBegun, Remote, SIGNAL_MAX};
use super::{Job, LONG, Setup, Update};
use crate::control::frames::Message;
use crate::fault::{Exit, Failure};
use crate::signals;

/// Number of hosts that need no more open files than any process may have.
const HOSTS_FEW: usize = 64;

/// How often late hosts are looked for; after how long a host is named as late; and how many hosts are named.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LATE_AFTER: Duration = Duration::from_secs(5);
const NAMED_MAX: usize = 8;

/// How long to wait for a signal to this process once a host is lost.
const SIGNAL_GRACE: Duration = Duration::from_millis(20);

/// How long after such a wait, or another lost host, there is no further wait.
const SIGNAL_AGAIN: Duration = Duration::from_secs(1);

impl Job {
    /// Whether one more host may log in now.
    pub(super) fn may_start(&self) -> bool {
        self.remotes().filter(|(_, remote)| remote.takes_turn()).count() < self.setup.parallel
    }

    pub(super) fn remotes(&self) -> impl Iterator<Item = (usize, &Remote)> {
        (0..self.hosts.len()).filter_map(|host| Some((host, self.remote(host)?)))
    }

    fn first(&self, is_it: fn(&Remote) -> bool) -> Option<usize> {
        self.remotes().find(|(_, remote)| is_it(remote)).map(|(host, _)| host)
    }

    fn remote_mut(&mut self, host: usize) -> Option<&mut Remote> {
        self.hosts[host].remote.as_mut()
    }

    /// Starts the hosts whose turn it is, in the order in which they were named, and one of the hosts that have to ask
    /// the user for something.
    fn start_some(&mut self) {
        if self.hosts.len() > HOSTS_FEW {
            // Each host takes its pipes.
            crate::fs::raise_open_files();
        }
        let launcher = self.setup.launcher.clone();
        while self.may_start()
            && let Some(host) = self.first(Remote::is_waiting)
        {
            let started = self.remote_mut(host).map_or(Ok(()), |remote| remote.start(&launcher));
            self.give_up_if(host, started);
        }
        while !self.is_any_asking()
            && let Some(host) = self.first(Remote::waits_to_ask)
        {
            let started = self.remote_mut(host).map_or(Ok(()), |remote| remote.ask(&launcher));
            self.give_up_if(host, started);
        }
    }

    /// Whether the user may be asked for something to reach a host.
    pub(super) fn is_any_asking(&self) -> bool {
        self.remotes().any(|(_, remote)| remote.is_asking())
    }

    /// Returns how long ago the launcher of a host was started. `None` for a host that waits for its turn, or to ask
    /// for something.
    pub(super) fn started_ago(&self, host: usize) -> Option<Duration> {
        self.remote(host)?.started_ago()
    }

    /// Whether an arriving host has been silent for `limit`. A host for which the user is being asked for something is
    /// not silent.
    pub(super) fn is_silent_for(&self, host: usize, limit: Duration) -> bool {
        let remote = self.remote(host).filter(|remote| !remote.is_asking());
        remote.and_then(Remote::unheard_for).is_some_and(|silent| silent >= limit)
    }

    /// Names those of these hosts that have been silent for long. While the user is asked for a password, no host is
    /// late, however long that takes, and a line next to the prompt would be in its way.
    pub(super) fn not_answered(&self, hosts: impl IntoIterator<Item = usize>) -> Option<String> {
        let is_late = |host: &usize| self.is_silent_for(*host, LATE_AFTER);
        let names: Vec<String> = hosts.into_iter().filter(is_late).map(|host| self.hosts[host].label()).collect();
        if names.is_empty() || self.is_any_asking() || is_echo_off() {
            return None;
        }
        let (shown, more) = (&names[..names.len().min(NAMED_MAX)], names.len().saturating_sub(NAMED_MAX));
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let have = if names.len() == 1 { "has" } else { "have" };
        Some(format!("{}{more} {have} not answered yet", shown.join(", ")))
    }

    /// Whether the cursor of the terminal that lines are written to may stand behind a question of a launcher. ssh
    /// leaves echo on when it asks about a host key, so nothing shows that it asks. srun never asks.
    fn may_stand_behind_a_question(&self) -> bool {
        let Setup { launcher, may_ask, .. } = &self.setup;
        (*may_ask || launcher.unasking().is_none()) && launcher.name() != "srun" && std::io::stderr().is_terminal()
    }

    /// What a remark about late hosts begins with, and says besides, so that it is not written over such a question.
    fn around_a_question(&self) -> [String; 2] {
        match self.may_stand_behind_a_question() {
            true => ["\n".to_owned(), format!(", unless {} has asked something above", self.setup.launcher_name())],
            false => Default::default(),
        }
    }

    fn give_up_if(&mut self, host: usize, outcome: Result<(), Failure>) {
        if let Err(failure) = outcome {
            self.give_up_arriving(host, failure);
        }
    }

    /// Gives up waiting for an arriving host.
    pub(super) fn give_up_arriving(&mut self, host: usize, failure: Failure) {
        self.remote_mut(host).into_iter().for_each(Remote::give_up);
        self.lose(host, Some(failure));
    }

    /// Handles what an arriving host has sent.
    pub(super) fn hear_arriving(&mut self, host: usize, heard: Heard) {
        let Some(remote) = self.remote_mut(host) else { return };
        match heard {
            Heard::Message(Message::Hello(hello)) => {
                remote.greeted(hello);
                self.updates.push_back(Update::Arrived(host));
            }
            Heard::Gone | Heard::Silent => {
                remote.falls_silent();
                self.see_to(host);
            }
            Heard::Broken(failure) => self.give_up_arriving(host, failure),
            Heard::Message(_) | Heard::EntriesTaken(..) | Heard::Signal(_) | Heard::Join(_) => {}
        }
        self.start_some();
    }

    /// Returns when arriving hosts have to be looked at again.
    pub(super) fn arrivals_due(&self) -> Option<Instant> {
        let due = self.remotes().filter_map(|(_, remote)| remote.due()).min();
        let waits = self.remotes().any(|(_, remote)| remote.is_waiting());
        let turns = self.remotes().filter(|(_, remote)| waits && remote.takes_turn());
        // A host whose pause is over may have to wait for its turn as well.
        let (now, may_start) = (Instant::now(), self.may_start());
        let may_begin = |remote: &Remote| if remote.waits_to_ask() { !self.is_any_asking() } else { may_start };
        let pauses = self
            .remotes()
            .filter_map(|(_, remote)| remote.pause_ends().filter(|&ends| ends > now || may_begin(remote)));
        turns.filter_map(|(_, remote)| remote.turn_ends()).chain(pauses).chain(due).min()
    }

    pub(super) fn see_to_arrivals(&mut self) {
        let now = Instant::now();
        let due: Vec<usize> = self
            .remotes()
            .filter(|(_, remote)| remote.due().is_some_and(|due| due <= now))
            .map(|(host, _)| host)
            .collect();
        due.into_iter().for_each(|host| self.see_to(host));
        self.start_some();
    }

    /// Handles a host that has fallen silent, or was not heard from in time.
    fn see_to(&mut self, host: usize) {
        let launcher = self.setup.launcher.clone();
        let now = Instant::now();
        let is_alone = self.remotes().count() < 2;
        let Some(remote) = self.remote_mut(host) else { return };
        let outcome = match remote.why_silent(&launcher) {
            Some(NotBegun::MustAsk) => Ok(()),
            Some(NotBegun::NoUse(failure)) => remote.pass_installed(&launcher, failure),
            // A single login is not one of too many.
            Some(NotBegun::TurnedAway(failure)) if !is_alone => remote.pause(failure),
            Some(NotBegun::TurnedAway(failure) | NotBegun::Failed(failure)) => Err(failure),
            // The launcher asks for something, or is in trouble, so the user should see what it prints.
            None if remote.due().is_some_and(|due| due <= now) => remote.late(),
            None => Ok(()),
        };
        self.give_up_if(host, outcome);
    }

    /// Waits until every agent has introduced itself.
    ///
    /// # Errors
    ///
    /// Exit code 128+n for a signal meanwhile; 3 for a host that cannot be started or reached, 9 for a host with
    /// another protocol.
    pub(super) fn greet(&mut self) -> Result<(), Failure> {
        let AgentChoice { command, mut remark, .. } = self.setup.agent;
        let mut look = |job: &mut Self| {
            let hosts = 0..job.hosts.len();
            if remark.is_some()
                && hosts.clone().any(|host| job.is_silent_for(host, 2 * LATE_AFTER))
                && let Some(late) = job.not_answered(hosts)
                && let Some(say) = remark.take()
            {
                let (seconds, [gap, unless]) = (HELLO_MAX.as_secs(), job.around_a_question());
                say(&format!("{gap}{command}: {late}{unless}; giving up on a host after {seconds} s"));
            }
        };
        self.greet_all(LOOK_EVERY, &mut look, &mut |arrival| arrival.map_or(Ok(()), |(_, failure)| Err(failure)))
    }

    /// Waits until every agent has introduced itself or failed. Returns the hosts that have failed. One of `hosts` that
    /// is silent for `limit` after its launcher was started is given up. `say` is called once, with the hosts that are
    /// late.
    ///
    /// # Errors
    ///
    /// Exit code 128+n for a signal meanwhile.
    pub(super) fn greet_each_within(
        &mut self,
        hosts: &[usize],
        limit: Duration,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<(usize, Failure)>, Failure> {
        let (mut failed, mut has_said) = (Vec::new(), false);
        let mut look = |job: &mut Self| {
            let seconds = limit.as_secs();
            let [gap, unless] = job.around_a_question();
            let is_late = || (0..job.hosts.len()).any(|host| job.is_silent_for(host, 2 * LATE_AFTER));
            if !has_said
                && (gap.is_empty() || is_late())
                && let Some(late) = job.not_answered(0..job.hosts.len())
            {
                has_said = true;
                // What `say` writes begins with the command's name.
                if let Some(line) = job.setup.agent.remark.filter(|_| !gap.is_empty()) {
                    line("");
                }
                say(&format!("{late}{unless}; giving up on a host after {seconds} s (--connect-timeout)"));
            }
            if job.is_any_asking() {
                return;
            }
            for &host in hosts {
                if job.is_silent_for(host, limit) {
                    let label = job.hosts[host].label();
                    let line = format!("no agent answered on {label} within {seconds} s (--connect-timeout)");
                    job.give_up_arriving(host, Exit::Connect.with(line));
                }
            }
        };
        self.greet_all(LOOK_EVERY, &mut look, &mut |arrival| {
            failed.extend(arrival);
            Ok(())
        })?;
        Ok(failed)
    }

    /// Waits until every agent has introduced itself or failed. `tell` is called for each: with nothing if the agent
    /// has arrived, or with the host and its failure.
    ///
    /// # Errors
    ///
    /// Exit code 128+n for a signal meanwhile.
    pub(super) fn greet_telling(&mut self, tell: &mut dyn FnMut(Option<(usize, Failure)>)) -> Result<(), Failure> {
        self.greet_all(LONG, &mut |_| {}, &mut |arrival| {
            tell(arrival);
            Ok(())
        })
    }

    /// Waits for all arriving hosts. `heard` is given the host that has failed, and why, or nothing if a host has
    /// arrived. `look` is called at least once in each period `every`.
    fn greet_all(
        &mut self,
        every: Duration,
        look: &mut dyn FnMut(&mut Self),
        heard: &mut dyn FnMut(Option<(usize, Failure)>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.start_some();
        loop {
            let is_any = self.remotes().any(|(_, remote)| remote.is_arriving());
            let update = if is_any { self.next(Instant::now() + every) } else { self.updates.pop_front() };
            look(self);
            match update {
                None if !is_any => return Ok(()),
                Some(Update::Gone(host, failure)) => {
                    heard(Some((host, failure.unwrap_or_else(|| self.lost(host)))))?;
                }
                Some(Update::Arrived(_)) => heard(None)?,
                Some(update) => self.check(update)?,
                None => {}
            }
        }
    }

    /// Waits until this agent has introduced itself. Updates about other hosts are left for later.
    ///
    /// # Errors
    ///
    /// As [`Job::greet`].
    pub(super) fn greet_one(&mut self, host: usize) -> Result<(), Failure> {
        self.start_some();
        while self.remote(host).is_some_and(Remote::is_arriving) || self.hosts[host].gone {
            self.setting_aside(
                host,
                |job, update| Some(update.map_or(Ok(()), |update| job.check(update))),
                Instant::now() + LONG,
            )?;
        }
        Ok(())
    }

    /// Returns `update`, unless it reports the loss of a host and a signal to this process is the cause. Then the
    /// signal is returned, and `update` stays queued. A closed terminal, Ctrl-\ or a job manager signals a whole
    /// process group: a launcher in that group may end, and its host be reported as lost, before this process has
    /// passed its own signal on.
    pub(super) fn after_signals(&mut self, update: Update) -> Update {
        if !matches!(update, Update::Gone(..)) || self.signals.is_none() || self.is_signalled {
            return update;
        }
        let now = Instant::now();
        // Of many hosts that are lost together only the first waits.
        let has_waited = self.awaited_signal.is_some_and(|when| now.duration_since(when) < SIGNAL_AGAIN);
        let (grace, deadline) = (now + SIGNAL_GRACE, now + SIGNAL_MAX);
        while signals::since_end().is_none() {
            if has_waited || Instant::now() >= grace {
                self.awaited_signal = Some(now);
                return update;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        while !self.is_signalled
            && let Ok((host, heard)) = self.heard.recv_deadline(deadline)
        {
            self.hear(host, heard);
        }
        match self.updates.iter().position(|update| matches!(update, Update::Signal(_))) {
            Some(at) => std::mem::replace(&mut self.updates[at], update),
            None => update,
        }
    }

    /// Takes updates until `take` returns a result. If each host fails alone, updates about other hosts are kept for
    /// later.
    pub(super) fn setting_aside<T>(
        &mut self,
        host: usize,
        mut take: impl FnMut(&mut Self, Option<Update>) -> Option<T>,
        deadline: Instant,
    ) -> T {
        let mut aside = VecDeque::new();
        let come = loop {
            match self.next(deadline) {
                Some(update @ (Update::Arrived(other) | Update::Gone(other, _)))
                    if self.fails_alone && other != host =>
                {
                    aside.push_back(update);
                }
                update => {
                    if let Some(come) = take(self, update) {
                        break come;
                    }
                }
            }
        };
        aside.append(&mut self.updates);
        self.updates = aside;
        come
    }
}

/// Whether the user may be typing something that the terminal, to which lines are written, does not show. A shell turns
/// echo off at its own prompt, too, but in the background nobody is asked.
fn is_echo_off() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok().filter(|_| std::io::stderr().is_terminal());
    let asked = terminal.filter(|terminal| tcgetpgrp(terminal).is_ok_and(|owner| owner == getpgrp()));
    let modes = asked.and_then(|terminal| tcgetattr(terminal).ok());
    modes.is_some_and(|modes| !modes.local_modes.contains(LocalModes::ECHO))
}

/// Returns the failure for a copy that failed on some of several hosts. On `incomplete` others some entries could not be
/// made; the rest have everything that was sent.
pub(super) fn some_failed(failed: usize, incomplete: usize, count: usize) -> Failure {
    let left = count - failed - incomplete;
    let lacking = if incomplete > 0 { format!(", {incomplete} incomplete") } else { String::new() };
    Exit::Partial.with(format!("{failed} of {count} hosts failed{lacking}; {left} succeeded"))
}
