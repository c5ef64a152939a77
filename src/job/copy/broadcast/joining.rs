//! Hosts that join a broadcast. Each host is asked about its destination when it arrives. Late hosts do not hold up the
//! others.
//!
//! The chain consists of the hosts that have arrived when it begins. Any other host joins when it arrives, and gets an
//! ordinary copy from a host that is done.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::chain::{Chain, Lag};
use super::{Copy, Run, SPOOL_BYTES, Target, neighbours};
use crate::control::frames::{Fault, Message, Placed};
use crate::control::join::{JoinListener, JoinOutcome, JoinState, Joiner, STATE_EVERY};
use crate::fault::{Exit, Failure, escaped};
use crate::job::copy::placing::{batch, is_same_file};
use crate::job::copy::{ANSWER_MAX, entries};
use crate::job::event::{self, Event};
use crate::job::failures::line_of;
use crate::job::plan::Spec;
use crate::job::progress::{HostStanding, size_words};
use crate::job::targets::{HOSTS_MAX, is_list};

/// How long after its start a host is no longer waited for; twice the time of the quickest host, if that is longer. A
/// login takes this long with a slow name server or a home directory on a busy network disk. The times of similar hosts
/// differ by less than half.
const LATE_AFTER: Duration = Duration::from_secs(5);

/// How long after its start a host is no longer waited for even if it is still taking the agent.
const SENDING_MAX: Duration = Duration::from_secs(120);

/// How long to wait for a silent host when all others are done.
const LATE_MAX: Duration = Duration::from_secs(30);

/// A question to a host about its destination. The host has not answered yet.
pub(super) struct Placing {
    /// Index of the first source that the host has not been asked about.
    until: usize,
    /// When it was asked.
    asked: Instant,
    /// The host's answer to the earlier questions.
    placed: Option<Placed>,
}

impl Copy<'_> {
    /// Whether a chain can be begun with the hosts that have arrived.
    pub(super) fn may_begin(&self, run: &Run) -> bool {
        // With --sync there is no chain, so hosts cannot be late for it.
        let is_chain = !self.plan.tree.sync || self.plan.dry_run;
        let mut missing = run.targets.iter().filter(|target| target.is_open()).peekable();
        if !is_chain || missing.peek().is_none() {
            return true;
        }
        let Some(quickest) = run.quickest else { return false };
        let late_after = LATE_AFTER.max(quickest.saturating_mul(2));
        let is_any_there = run.targets.iter().any(|target| target.placed.is_some());
        // The user may take any time to enter a password.
        !self.plan.dry_run
            && is_any_there
            && !self.job.is_any_asking()
            && missing.all(|target| self.is_late(target, late_after))
    }

    /// Whether a host that has not answered about its destination is no longer waited for. The agent may be on its way
    /// to many hosts over one line, so a host that is still taking it is not late for a while.
    fn is_late(&self, target: &Target, after: Duration) -> bool {
        match (&target.placing, target.host) {
            (Some(placing), _) => placing.asked.elapsed() >= after,
            (None, Some(host)) => {
                let ago = self.job.started_ago(host);
                self.job.is_silent_for(host, after) || ago.is_some_and(|ago| ago >= after.max(SENDING_MAX))
            }
            (None, None) => true,
        }
    }

    /// Tells the user which hosts are waited for, if some have been silent for long. Returns whether it did.
    pub(super) fn say_late(&mut self, run: &Run) -> bool {
        let open = run.targets.iter().filter(|target| target.is_open());
        let late = self.job.not_answered(open.filter_map(|target| target.host));
        if let Some(late) = &late {
            self.say(&format!("{late}; with ssh, -o ConnectTimeout=SECONDS gives up sooner"));
        }
        late.is_some()
    }

    /// Begins the chain with the hosts that have arrived.
    pub(super) fn begin_chain(&mut self, run: &mut Run) {
        run.began = Instant::now();
        run.has_begun = true;
        let there = |is_there: bool| {
            let targets = run.targets.iter().enumerate();
            let these =
                targets.filter(move |(_, target)| if is_there { target.placed.is_some() } else { target.is_open() });
            these.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let (nodes, late) = (there(true), there(false));
        let placed = nodes.iter().filter_map(|&at| Some((at, run.targets[at].placed.as_ref()?)));
        let nodes = neighbours::in_order(placed);
        // With --sync, each host is compared with the source, and gets the data that it lacks.
        if self.plan.tree.sync {
            run.chain = Chain::of_copies(nodes.len() + late.len());
            nodes.into_iter().for_each(|at| self.join(run, at));
            // Lets the chain notice that it is over if no host is left.
            run.chain.expect(0);
            return;
        }
        for &at in &late {
            let label = escaped(run.targets[at].spec.host());
            self.say(&format!("{label} has not answered yet; the others start, and it gets its copy once it answers"));
        }
        let reconnect = Duration::from_secs(self.plan.transfer.reconnect.into());
        let chain = Chain::new(nodes.len() + 1, SPOOL_BYTES, self.plan.stall, Lag::Copied);
        run.chain = chain.reconnecting(reconnect);
        run.chain.expect(late.len());
        for (node, &at) in (1..).zip(&nodes) {
            if run.targets[at].placed.as_ref().is_some_and(|placed| placed.is_there) {
                run.chain.keep_to_itself(node);
            }
        }
        run.streaming = nodes.len();
        for at in nodes {
            self.say_added(&run.targets[at]);
            run.add_node(at);
        }
        self.begin_nodes(run);
    }

    /// Asks a host that has just arrived about its destination.
    pub(super) fn ask_arrived(&mut self, run: &mut Run, host: usize) {
        if let Some(at) = run.target_of(host) {
            self.ask_placing(run, at, 0, None);
        }
    }

    /// Asks a host about its destination for the sources from index `from` on. `placed`: the host's answer about the
    /// sources before.
    fn ask_placing(&mut self, run: &mut Run, at: usize, from: usize, placed: Option<Placed>) {
        let Some(host) = run.targets[at].host else { return };
        let some = &run.found[from..][..batch(&run.found[from..])];
        self.destination = run.targets[at].spec.clone();
        match self.place_question(host, some, self.are_several(&run.found)) {
            Ok(question) => {
                let (until, asked) = (from + some.len(), Instant::now());
                run.targets[at].placing = Some(Placing { until, asked, placed });
                self.job.send(host, Message::Place(question));
            }
            Err(failure) => self.fail_target(run, at, failure),
        }
    }

    /// Handles a host's answer about its destination.
    pub(super) fn hear_placing(&mut self, run: &mut Run, at: usize, answer: Message) {
        let target = &mut run.targets[at];
        let (Some(host), Some(Placing { until, placed, .. })) = (target.host, target.placing.take()) else { return };
        let several = self.are_several(&run.found);
        let is_itself =
            |fault: &Fault| is_same_file(fault) && run.found.len() == 1 && self.job.is_one_kernel(run.source, host);
        let outcome = match answer {
            Message::Failed(fault) if is_itself(&fault) => {
                // As in a copy to a single host: the data is already where it should be.
                let failure = self.unplaceable(host, &run.found, several, &fault);
                self.say(&format!("{}; left unchanged", failure.message.unwrap_or_default()));
                run.targets[at].done_after = Some(Duration::ZERO);
                if run.has_begun {
                    run.chain.will_not_join();
                }
                return;
            }
            Message::Failed(fault) => Err(self.unplaceable(host, &run.found[until - 1..until], several, &fault)),
            answer => self.placed(host, answer, several),
        };
        match outcome {
            Ok(answer) => {
                let is_there = answer.is_there || placed.is_some_and(|placed| placed.is_there);
                let placed = Placed { is_there, ..answer };
                if until < run.found.len() {
                    return self.ask_placing(run, at, until, Some(placed));
                }
                if let Some(failure) = self.is_same_place(run, at, &placed) {
                    return self.fail_target(run, at, failure);
                }
                run.targets[at].placed = Some(placed);
                if let Some(took) = self.job.started_ago(host) {
                    run.quickest = Some(run.quickest.map_or(took, |quickest| quickest.min(took)));
                }
                if run.has_begun {
                    self.join(run, at);
                }
            }
            Err(failure) => self.fail_target(run, at, failure),
        }
    }

    /// Adds a host that has arrived to the broadcast that has begun.
    fn join(&mut self, run: &mut Run, at: usize) {
        let is_new = run.targets[at].placed.as_ref().is_some_and(|placed| !placed.is_there);
        self.say_added(&run.targets[at]);
        run.add_node(at);
        let node = run.chain.join(is_new);
        debug_assert_eq!(node, run.nodes.len());
    }

    /// Lets other commands add hosts from now on. `None` if that is not possible.
    pub(super) fn begin_to_listen(&mut self) -> Option<JoinListener> {
        if self.plan.dry_run {
            return None;
        }
        match self.job.listen_for_joiners() {
            Ok(listener) => {
                let name = listener.name();
                // Without a user who watches, the line is not needed. Programs get the name from --json.
                if self.plan.verbose || self.observer.is_watched() {
                    self.say(&format!("job {name}; rdcp --join {name} HOST adds a host"));
                }
                self.observer.event(&Event::Job(event::Job { job: name.to_owned() }));
                Some(listener)
            }
            Err(reason) => {
                if self.plan.verbose || self.observer.is_watched() {
                    self.say(&format!("--join cannot add hosts: {reason}"));
                }
                None
            }
        }
    }

    /// Adds a host that another command has requested, or refuses the request.
    pub(super) fn add_target(&mut self, run: &mut Run, mut joiner: Joiner) {
        let path = self.plan.targets[0].path();
        let spec = added(OsStr::from_bytes(&joiner.request.target), path).and_then(|spec| {
            // The failure of a target that does not count is forgotten.
            let there = (0..run.targets.len()).filter(|&at| run.counts(at) || !run.has_failed(at));
            let there = there.map(|at| (&run.targets[at].spec, run.has_failed(at)));
            match run.targets.len() {
                _ if run.chain.has_ended() => Err("the copy has already ended".to_owned()),
                HOSTS_MAX.. => Err(format!("the copy already has {HOSTS_MAX} hosts, which is the limit")),
                _ => refusal(&spec, there).map_or(Ok(spec), Err),
            }
        });
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => {
                let outcome = Some(JoinOutcome { exit: Exit::Usage.code(), line: reason });
                return joiner.tell(&JoinState { bytes: 0, outcome });
            }
        };
        self.say(&format!("adding {}", escaped(spec.host())));
        let (mut is_again, mut is_extra) = (false, true);
        for at in 0..run.targets.len() {
            if run.targets[at].spec.host() == spec.host() {
                is_extra &= run.is_not_added(at);
                is_again |= run.targets[at].host.is_some();
                run.targets[at].is_replaced = true;
            }
        }
        let target = Target { joiner: Some(joiner), is_extra, ..self.start(&spec, run.source, is_again) };
        let is_open = target.is_open();
        self.say_not_added(&target);
        run.targets.push(target);
        if is_open && run.has_begun {
            run.chain.expect(1);
        }
    }

    /// Tells the commands that have requested hosts the state of these hosts, and finally the outcome, once.
    pub(super) fn tell_joiners(&mut self, run: &mut Run, is_over: bool) {
        let is_due = run.told_joiners.elapsed() >= STATE_EVERY;
        if is_due {
            run.told_joiners = Instant::now();
        }
        for at in 0..run.targets.len() {
            let Some(mut joiner) = run.targets[at].joiner.take() else { continue };
            let shown = run.shown(at);
            let has_come = matches!(shown.standing, HostStanding::Done | HostStanding::Failed) || is_over;
            if has_come || is_due {
                let outcome = has_come.then(|| run.outcome(at));
                joiner.tell(&JoinState { bytes: shown.received, outcome });
            }
            if !has_come {
                run.targets[at].joiner = Some(joiner);
            }
        }
    }

    /// Tells the user that a host which another command requested has begun.
    fn say_added(&mut self, target: &Target) {
        if target.joiner.is_some() {
            self.say(&format!("added {}", escaped(target.spec.host())));
        }
    }

    /// Tells the user why a host which another command requested has failed before it began.
    fn say_not_added(&mut self, target: &Target) {
        let why = target.failure.as_ref().and_then(|failure| failure.message.as_deref());
        if let Some(why) = why.filter(|_| target.is_extra) {
            self.say(&format!("{} was not added: {why}", escaped(target.spec.host())));
        }
    }

    /// Records the failure of a host that is not a node, and will not become one.
    pub(super) fn fail_target(&mut self, run: &mut Run, at: usize, failure: Failure) {
        let target = &mut run.targets[at];
        (target.placing, target.placed) = (None, None);
        // A host where the source itself stands is done, and no longer needed.
        if target.failure.is_none() && target.done_after.is_none() {
            target.failure = Some(failure);
            self.say_not_added(target);
            if run.has_begun {
                run.chain.will_not_join();
            }
        }
    }

    /// Gives up hosts that have not answered in time about their destinations.
    pub(super) fn give_up_placing(&mut self, run: &mut Run) {
        for at in 0..run.targets.len() {
            if run.targets[at].placing.as_ref().is_some_and(|placing| placing.asked.elapsed() >= ANSWER_MAX) {
                let (label, within) = (escaped(run.targets[at].spec.host()), ANSWER_MAX.as_secs());
                let line = format!("{label} did not answer within {within} s; try again");
                self.fail_target(run, at, Exit::Connect.with(line));
            }
        }
    }

    /// Gives up late hosts once no other host is waited for: those that stay silent, or all if no host can ever give
    /// them the tree.
    pub(super) fn give_up_late(&mut self, run: &mut Run) {
        if !run.chain.waits_for_joiners() {
            return;
        }
        for at in 0..run.targets.len() {
            let Some(host) = run.targets[at].host.filter(|_| run.targets[at].is_open()) else { continue };
            if run.chain.is_hopeless() {
                let failure = run.source_failure.clone().unwrap_or(Failure::silent(Exit::Partial));
                self.fail_target(run, at, failure);
            } else if self.job.is_silent_for(host, LATE_MAX) {
                let (label, seconds) = (self.label(host), LATE_MAX.as_secs());
                let line = format!("no agent answered on {label} within {seconds} s, and all other hosts are done");
                self.job.give_up_arriving(host, Exit::Connect.with(line));
            }
        }
    }
}

impl Target {
    /// Whether it is still unknown if this host can be copied to.
    fn is_open(&self) -> bool {
        self.placed.is_none() && self.failure.is_none() && self.done_after.is_none()
    }
}

/// Parses the HOST or HOST:PATH that another command requests. Without PATH, `path` is used.
fn added(text: &OsStr, path: &OsStr) -> Result<Spec, String> {
    let whole = match Spec::parse(text)? {
        Spec::Here(host) if !host.as_bytes().contains(&b'/') => Spec::parse(&[&host, path].join(OsStr::new(":")))?,
        spec => spec,
    };
    match whole {
        Spec::There(..) if is_list(whole.host()) => Err(format!("{}: name one host at a time", escaped(text))),
        Spec::There(..) => Ok(whole),
        _ => Err(format!("{}: give HOST or HOST:PATH", escaped(text))),
    }
}

/// Returns why a host cannot be added to a copy with these targets. `bool`: whether the target has failed.
fn refusal<'a>(spec: &Spec, mut there: impl Iterator<Item = (&'a Spec, bool)>) -> Option<String> {
    there.find_map(|(other, has_failed)| {
        let is_refused = other.host() == spec.host() && !(has_failed && other.path() == spec.path());
        // The copy has one outcome for each host, so success with another path would hide the failure.
        let how = || match has_failed {
            true => format!(", with another destination; to try again, add {}", other.typed()),
            false => String::new(),
        };
        is_refused.then(|| format!("{} is already one of its hosts{}", escaped(spec.host()), how()))
    })
}

/// Adds the targets that have come to count to the rows in which hosts are shown. A row always shows the same host,
/// because what is recorded about hosts is kept by row. A host that was added again takes over its row.
pub(super) fn update_rows(rows: &mut Vec<usize>, targets: &[Target], counting: &[usize]) {
    for &at in counting {
        let is_its = |row: usize| targets[row].is_replaced && targets[row].spec.host() == targets[at].spec.host();
        match rows.iter().position(|&row| row == at || is_its(row)) {
            Some(row) => rows[row] = at,
            None => rows.push(at),
        }
    }
}

impl Run {
    /// Whether a target will never have its tree.
    pub(super) fn has_failed(&self, at: usize) -> bool {
        self.shown(at).standing == HostStanding::Failed
    }

    /// Makes a target, whose host has answered, the next node.
    fn add_node(&mut self, at: usize) {
        self.nodes.push(at);
        self.links.hosts.push(self.targets[at].host.expect("it has answered"));
    }

    /// Returns the outcome of a host, for the command that requested the host.
    fn outcome(&self, at: usize) -> JoinOutcome {
        let target = &self.targets[at];
        let label = escaped(target.spec.host());
        // Entries that the source could not read are missing on the host that gave the copy, too.
        let unread = self.source_report.as_ref().map_or(0, |report| report.tree.failed).max(target.unsent);
        let failed = target.report.as_ref().map_or(0, |report| report.tree.failed) + unread;
        let (unmade, other_version) = (target.unmade(), self.other_version(at));
        let failure = target.failure.as_ref().or(unmade.as_ref()).or(other_version.as_ref());
        match (failure, &target.report, target.done_after) {
            (None, Some(report), Some(_)) if failed == 0 => {
                let size = size_words(report.tree.amount.bytes);
                JoinOutcome {
                    exit: 0,
                    line: format!("{label}: {}, {size}, verified", entries(report.tree.amount.entries)),
                }
            }
            (None, Some(_), Some(_)) => {
                let line = match failed.saturating_sub(target.undeleted()) {
                    0 => format!("{label}: {}", super::NOT_DELETED),
                    failed => format!("{label}: {} not copied in full; the others were copied", entries(failed)),
                };
                JoinOutcome { exit: Exit::Partial.code(), line }
            }
            // Nothing had to be copied.
            (None, None, Some(_)) => JoinOutcome { exit: 0, line: format!("{label}: has the source; left unchanged") },
            (failure, ..) => {
                let of_source = self.source_failure.as_ref().filter(|_| !super::has_own_reason(target.why));
                let any = failure.or(of_source);
                let exit = any.map_or(Exit::LinkLost, |failure| failure.exit);
                let own = failure.and_then(|failure| failure.message.as_ref()).map(|line| line_of(&label, line));
                let line = own.unwrap_or_else(|| {
                    let line = any.and_then(|failure| failure.message.as_deref());
                    format!("{label}: {}", line.unwrap_or_else(|| super::why_failed(target.why, false)))
                });
                JoinOutcome { exit: exit.code(), line }
            }
        }
    }

    /// Returns the target on a host that is not a node.
    pub(super) fn target_of(&self, host: usize) -> Option<usize> {
        (0..self.targets.len()).find(|at| self.targets[*at].host == Some(host) && !self.nodes.contains(at))
    }

    /// Returns the target on a host that is being asked about its destination.
    pub(super) fn is_asked(&self, host: usize) -> Option<usize> {
        self.target_of(host).filter(|&at| self.targets[at].placing.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_its_host() {
        let target = |host: &str| Target { spec: Spec::There(host.into(), "/x".into()), ..Target::default() };
        let (mut targets, mut rows) = (vec![target("h1"), target("h2")], Vec::new());
        update_rows(&mut rows, &targets, &[0, 1]);
        assert_eq!(rows, [0, 1]);
        // Of two hosts that are added, the second begins first. The first host has failed, and is added again twice.
        targets.extend([target("h3"), target("h4"), target("h1"), target("h1")]);
        update_rows(&mut rows, &targets, &[0, 1, 3]);
        [0, 4].iter().for_each(|&at| targets[at].is_replaced = true);
        update_rows(&mut rows, &targets, &[1, 2, 3, 5]);
        assert_eq!(rows, [5, 1, 3, 2]);
        update_rows(&mut rows, &targets, &[1, 2, 3, 5]);
        assert_eq!(rows, [5, 1, 3, 2]);
    }

    #[test]
    fn a_failed_host_is_added_again_only_with_its_own_destination() {
        let spec = |text: &str| Spec::parse(OsStr::new(text)).expect("a host");
        let (failed, other) = (spec("h3:/data"), spec("h4:/data"));
        let refused = |text: &str| refusal(&spec(text), [(&other, false), (&failed, true)].into_iter());
        assert_eq!(refused("h3:/data"), None);
        assert_eq!(refused("h5:/other"), None);
        let line = "h3 is already one of its hosts, with another destination; to try again, add h3:/data";
        assert_eq!(refused("h3:/scratch/data").as_deref(), Some(line));
        for taken in ["h4:/data", "h4:/other"] {
            assert_eq!(refused(taken).as_deref(), Some("h4 is already one of its hosts"));
        }
    }
}
