//! Copies one tree to several hosts, through a chain of hosts that the source feeds once.
//!
//! On each host, a node handles the stream (`agent::broadcast`). [`Chain`] decides which host sends to which, and what
//! happens when hosts fail. This module starts the hosts and asks them about their destinations, begins and ends hops
//! as the chain decides, and puts the results of all hosts together.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Copy, entries, is_undeleted, names_of, root_of};
use crate::control::frames::{Broadcast, BroadcastRole, BroadcastState, Fault, Found, Kind, Message, Placed, Report};
use crate::control::join::Joiner;
use crate::engine::{Figures, View};
use crate::fault::{Exit, Failure, escaped};
use crate::fs::direct::write::Written;
use crate::job::arrivals::some_failed;
use crate::job::event::{self, Event};
use crate::job::failures::line_of;
use crate::job::hop::Side;
use crate::job::plan::Spec;
use crate::job::progress::{Copied, Ended, HostEnded, HostShown, HostStanding};
use crate::job::{HERE, Job, Round, STOP_MAX, Update};
use crate::options::TreeOptions;
use crate::tree::Root;
use crate::tree::stats::TreeFigures;

pub(in crate::job) mod branches;
mod chain;
mod copying;
mod interrupted;
mod joining;
mod links;
mod neighbours;

use chain::{Action, Chain, Node, SOURCE, Tree, Why};
use copying::{Going, may_be_copied};
use joining::Placing;
use links::Links;

/// Number of bytes of the stream that each node keeps.
const SPOOL_BYTES: u64 = 32 << 20;

/// End of the message that reports a host as lost for good.
const OTHERS_GO_ON: &str = "the others continue without it";

/// What is said of a host on which something was not deleted, and nothing else failed.
const NOT_DELETED: &str = "not everything that the source lacks was deleted";

/// How often the chain checks the time.
const TICK: Duration = Duration::from_millis(100);

/// A host that is to get the tree.
#[derive(Default)]
struct Target {
    spec: Spec,
    host: Option<usize>,
    placing: Option<Placing>,
    placed: Option<Placed>,
    state: BroadcastState,
    /// Report of the host's node, or of an ordinary copy to the host.
    report: Option<Report>,
    /// Number of entries that the sender of an ordinary copy to this host could not send.
    unsent: u64,
    /// Number of failures there that only kept something from being deleted.
    undeleted: u64,
    /// Why the first entry could not be made on the host, as reported to the user.
    first_unmade: Option<Failure>,
    failure: Option<Failure>,
    /// Host from which the tree is copied to this host by an ordinary copy.
    from: Option<usize>,
    /// Why the host is no longer in the chain.
    why: Option<Why>,
    /// Why this host and another could not connect. `None` once a hop to this host is connected.
    unmet: Option<String>,
    /// Whether entries of a host that has altered the data may be left in the destination.
    may_hold_forged: bool,
    done_after: Option<Duration>,
    /// Command that requested this host, and receives the outcome.
    joiner: Option<Joiner>,
    /// Whether another command requested this host, in place of no host of this copy.
    is_extra: bool,
    /// Whether the host was added again, as another target, after this one failed.
    is_replaced: bool,
}

/// State of a broadcast.
struct Run {
    targets: Vec<Target>,
    /// Targets of nodes 1 and above.
    nodes: Vec<usize>,
    /// Targets as they are shown, in the order in which they began to count: see [`joining::update_rows`].
    rows: Vec<usize>,
    /// How many of them take part in the stream. The others have joined.
    streaming: usize,
    chain: Chain,
    has_begun: bool,
    /// When the commands that requested hosts were last told the state of these hosts.
    told_joiners: Instant,
    /// Shortest time that any host took from its start until its destination was known.
    quickest: Option<Duration>,
    source: usize,
    found: Vec<(usize, Found)>,
    settings: TreeOptions,
    began: Instant,
    source_state: BroadcastState,
    source_report: Option<Report>,
    source_failure: Option<Failure>,
    links: Links,
    /// Ordinary copies, by their hops.
    copies: HashMap<usize, Going>,
    /// Bytes that each host has reported to keep of a tree that was given up.
    kept: HashMap<usize, u64>,
}

impl Copy<'_> {
    /// Makes the copies.
    ///
    /// # Errors
    ///
    /// Fails if no copy could be begun. Exit code 128+n for a signal. Failures of single hosts are in the result.
    pub(super) fn broadcast(&mut self) -> Result<Ended, Failure> {
        let sources: Vec<usize> = self.plan.sources.iter().map(|spec| self.host_of(spec)).collect::<Result<_, _>>()?;
        let source = sources[0];
        if sources.iter().any(|&host| host != source) {
            return Err(Exit::Usage.with("to copy to several hosts, all sources must be on one host"));
        }
        self.job.fails_alone = true;
        let targets: Vec<Target> = self.plan.targets.iter().map(|spec| self.start(spec, source, false)).collect();
        self.job.greet_one(source)?;
        let found = self.find(&sources)?;
        self.check_reports(&found, HERE, None)?;
        if let Some((_, found)) =
            found.iter().find(|(from, found)| self.is_read(found) || self.is_standard(*from, found))
        {
            let name = self.name(source, &found.path);
            let line = format!("{name} is not a file or directory; only those can be copied to several hosts");
            return Err(Exit::Usage.with(line));
        }
        self.check_request(source, &found)?;
        self.observer.begin();
        let contents = matches!(&found[..], [(_, found)] if self.is_root(found));
        let mut run = Run {
            chain: Chain::of_copies(targets.len()),
            targets,
            nodes: Vec::new(),
            rows: Vec::new(),
            streaming: 0,
            has_begun: false,
            told_joiners: Instant::now(),
            quickest: None,
            source,
            found,
            settings: TreeOptions { contents, ..self.plan.tree.clone() },
            began: Instant::now(),
            source_state: BroadcastState::default(),
            source_report: None,
            source_failure: None,
            links: Links::new(vec![source], self.plan.transfer),
            copies: HashMap::new(),
            kept: HashMap::new(),
        };
        let listener = self.begin_to_listen();
        let mut has_said = false;
        while !self.may_begin(&run) {
            self.take_updates(&mut run)?;
            self.tell_joiners(&mut run, false);
            has_said = has_said || self.say_late(&run);
        }
        if self.plan.dry_run {
            return self.tell_broadcast(&run.found, &run.targets);
        }
        self.watch(&sources, HERE);
        let ended = self.run_broadcast(&mut run);
        drop(listener);
        self.observer.finish();
        ended.map(|()| self.came_to_broadcast(run))
    }

    /// Starts a host. A host that cannot be started fails alone. `is_again`: whether the host has failed and is being
    /// added again. Its old agent may still be running and passing the stream on, so the job treats the new agent as
    /// another host. The same holds for the host with the sources.
    fn start(&mut self, spec: &Spec, source: usize, is_again: bool) -> Target {
        let is_sources = self.job.hosts[source].name == spec.host();
        let host = if is_again || is_sources { self.job.host_anew(spec.host()) } else { self.host_of(spec) };
        let (host, failure) = match host {
            Ok(host) => (Some(host), None),
            Err(failure) => (None, Some(failure)),
        };
        Target { spec: spec.clone(), host, failure, ..Target::default() }
    }

    fn tell_broadcast(&mut self, found: &[(usize, Found)], targets: &[Target]) -> Result<Ended, Failure> {
        let mut failure = (self.left_out > 0).then_some(Failure::silent(Exit::Partial));
        for target in targets {
            match (&target.placed, target.host) {
                (Some(placed), Some(host)) => self.tell_plan(found, host, Some(placed)),
                // The source itself stands there, which has been reported.
                _ if target.done_after.is_some() => {}
                _ => {
                    if let Some(failed) = &target.failure {
                        self.tell_failed(failed);
                    }
                    failure = Some(Failure::silent(Exit::Partial));
                }
            }
        }
        Ok(Ended { figures: std::mem::take(&mut self.total), failure, copied: None, hosts: Vec::new() })
    }

    fn run_broadcast(&mut self, run: &mut Run) -> Result<(), Failure> {
        self.begin_chain(run);
        let mut ticked = None::<Instant>;
        loop {
            let mut is_over = false;
            while let Some(action) = run.chain.poll() {
                match run.links.act(&mut self.job, action) {
                    Some(Action::Copy { from, to }) => self.copy_node(run, from, to),
                    Some(Action::Out(node, why)) => self.note_out(run, node, why),
                    Some(Action::Silence(within)) => self.say(&links::silence(within)),
                    Some(Action::End) => is_over = true,
                    _ => {}
                }
            }
            self.tell_joiners(run, is_over);
            if is_over {
                self.show_hosts(run);
                return Ok(());
            }
            self.take_updates(run)?;
            run.forget_unmet(&self.job);
            run.links.settle(&self.job, &mut run.chain, run.began.elapsed());
            self.settle_copies(run);
            self.give_up_late(run);
            // Many hosts report so often that there is no time for this after each report.
            if ticked.is_none_or(|ticked| ticked.elapsed() >= TICK) {
                ticked = Some(Instant::now());
                run.chain.tick(run.began.elapsed());
                self.stop_stuck(run);
                self.show_hosts(run);
            }
        }
    }

    /// Handles all pending updates before time limits are checked, so that the time this takes does not count as
    /// silence of hosts.
    fn take_updates(&mut self, run: &mut Run) -> Result<(), Failure> {
        let mut round = Round::within(TICK);
        while let Some(update) = self.job.next_in(&mut round) {
            self.take(run, update)?;
        }
        self.give_up_placing(run);
        Ok(())
    }

    fn begin_nodes(&mut self, run: &Run) {
        let (spool_bytes, settings) = (SPOOL_BYTES, &run.settings);
        let role = BroadcastRole::Source { roots: roots_of(&run.found), settings: settings.clone() };
        let begin = Broadcast { role, spool_bytes, has_next: !run.nodes.is_empty() };
        self.job.send(run.source, Message::BeginBroadcast(Box::new(begin)));
        for (at, &target) in run.nodes.iter().enumerate() {
            let Target { host: Some(host), placed: Some(placed), .. } = &run.targets[target] else { continue };
            let (directory, names) = (placed.directory.clone(), names_of(placed, &run.found));
            let role = BroadcastRole::Copy { directory, names, settings: settings.clone() };
            let begin = Broadcast { role, spool_bytes, has_next: at + 1 < run.nodes.len() };
            self.job.send(*host, Message::BeginBroadcast(Box::new(begin)));
        }
    }

    fn note_out(&mut self, run: &mut Run, node: Node, why: Why) {
        let label = self.label(run.links.hosts[node]);
        if node == SOURCE {
            self.say(&format!("lost {label}, which has the sources"));
            return;
        }
        let at = run.nodes[node - 1];
        run.targets[at].why = Some(why);
        let has_all = run.targets[at].state.has_all;
        let reason = match why {
            Why::Misled => format!("data sent to {label} does not match the source"),
            Why::Lied | Why::Forged => {
                let line = match why {
                    Why::Lied => "reports impossible values; not trusting it",
                    _ => "passed on altered data; not trusting it",
                };
                run.targets[at].failure = Some(Exit::Integrity.with(format!("{label} {line}")));
                return;
            }
            why => match links::passed_over(why, &label, self.plan.stall) {
                Some(reason) => reason,
                None => return,
            },
        };
        let giver = if run.chain.may_get_from_others(node) { "one of them" } else { "the source" };
        let later = format!("the others continue, and it gets its copy from {giver}");
        let then = match why {
            Why::Lost => OTHERS_GO_ON.to_owned(),
            Why::Misled => "it gets its copy from the source".to_owned(),
            _ if has_all => "it already has all data".to_owned(),
            Why::CutOff | Why::StoodStill => format!("{later} once it answers"),
            _ => later,
        };
        self.say(&format!("{reason}; {then}"));
    }

    /// Handles an update.
    fn take(&mut self, run: &mut Run, update: Update) -> Result<(), Failure> {
        match update {
            Update::Arrived(host) => self.ask_arrived(run, host),
            Update::Host(host, message) => match run.is_asked(host) {
                Some(at) => self.hear_placing(run, at, message),
                None => self.hear_node(run, host, message),
            },
            Update::End(hop, side, Message::Progress { bytes, waits, tree }) => {
                if !run.links.is_probe(hop) {
                    self.observer.measured(&self.job.hops[hop], side, bytes, waits);
                }
                run.note_copied(hop, side, bytes, tree);
            }
            Update::End(hop, side, Message::EntriesFailed(faults)) if run.copies.contains_key(&hop) => {
                let host = self.job.hops[hop].host(side);
                if side == Side::To {
                    self.note_unmade(run, host, &faults);
                }
                self.tell_failures(host, &faults);
            }
            Update::End(hop, side, Message::Say(line)) if run.copies.contains_key(&hop) => {
                let host = self.job.hops[hop].host(side);
                self.say_for(host, &line);
            }
            Update::End(..) | Update::Agreed => {}
            Update::Say(line) => self.say(&line),
            Update::Ended(hop, _) => links::end_failed(&mut self.job, hop),
            Update::Unmet(hop, reason) => {
                let nodes = run.links.link(hop).and_then(|link| run.chain.ends(link));
                let nodes = nodes.or(run.copies.get(&hop).map(Going::nodes));
                for node in nodes.into_iter().flat_map(|(from, to)| [from, to]).filter(|&node| node != SOURCE) {
                    run.target_mut(node).unmet = Some(reason.clone());
                }
                self.stop_hop(run, hop);
            }
            Update::Gone(host, failure) => {
                // Hosts that fail with the source have no better reason than why its channel cannot be used.
                if let Some(failure) = failure.as_ref().filter(|_| host == run.source) {
                    run.source_failure.get_or_insert_with(|| failure.clone());
                }
                let failure = failure.unwrap_or_else(|| self.job.lost(host));
                if host == run.source && !run.has_begun {
                    return Err(failure);
                }
                self.stop_copies_of(run, host);
                if let Some(node) = run.links.node_of(host) {
                    // If the node is done, its tree has been proven, and the host is no longer needed.
                    if node != SOURCE && run.chain.tree(node) != Tree::Done {
                        run.target_mut(node).failure.get_or_insert(failure);
                    }
                    run.chain.lost(node);
                } else if let Some(at) = run.target_of(host) {
                    self.fail_target(run, at, failure);
                }
            }
            Update::Join(joiner) => self.add_target(run, joiner),
            Update::Failed(failure) => return Err(failure),
            Update::Signal(libc::SIGTSTP) => self.job.suspend(),
            Update::Signal(number) => {
                let (kept_bytes, have_answered) = self.stop_nodes(run, number as u8);
                self.tell_interrupted(run, kept_bytes, have_answered);
                return Err(Failure::silent(Exit::Signal(number as u8)));
            }
        }
        Ok(())
    }

    /// Handles a message from a node.
    fn hear_node(&mut self, run: &mut Run, host: usize, message: Message) {
        let Some(node) = run.links.node_of(host) else { return };
        let now = run.began.elapsed();
        match message {
            Message::BroadcastState(state) => {
                run.chain.state(node, &state, now);
                match node {
                    SOURCE => run.source_state = state,
                    node => run.target_mut(node).state = state,
                }
            }
            Message::BroadcastProof(proof) if node == SOURCE => {
                let proof = *run.links.proof.get_or_insert(proof);
                run.chain.proof(proof.bytes, proof.tree.is_some());
            }
            Message::BroadcastEnded(report) => {
                let fault = report.fault.clone();
                // Before others may get their copies from it.
                if node != SOURCE && !may_be_copied(&report.tree) {
                    run.chain.keep_to_itself(node);
                }
                match &fault {
                    Some(fault) if node != SOURCE && fault.is_misled() => {
                        run.target_mut(node).note_forged();
                        run.chain.misled(node);
                    }
                    fault => run.chain.tree_over(node, fault.is_none()),
                }
                if node == SOURCE {
                    run.source_failure = fault.map(|fault| self.failure(host, &fault));
                    run.source_report = Some(*report);
                    return;
                }
                let failure = fault.map(|fault| self.failure(host, &fault));
                let is_failed = run.chain.tree(node) == Tree::Failed;
                let target = run.target_mut(node);
                match failure {
                    None => target.done_after = Some(now),
                    // A node that is behind gets its copy later.
                    Some(failure) if is_failed => drop(target.failure.get_or_insert(failure)),
                    Some(_) => {}
                }
                target.report = Some(*report);
            }
            Message::EntriesFailed(faults) => {
                self.note_unmade(run, host, &faults);
                self.tell_failures(host, &faults);
            }
            Message::Say(line) => self.say_for(host, &line),
            Message::Kept(kept) => {
                run.kept.insert(host, kept.bytes);
            }
            _ => {}
        }
    }

    /// Records why the first entry could not be made on a host, and how much could not be deleted there.
    fn note_unmade(&self, run: &mut Run, host: usize, faults: &[Fault]) {
        if let (Some(node @ 1..), Some(fault)) = (run.links.node_of(host), faults.first()) {
            let target = run.target_mut(node);
            target.undeleted += faults.iter().filter(|fault| is_undeleted(fault)).count() as u64;
            target.first_unmade.get_or_insert_with(|| self.failure(host, fault));
        }
    }

    /// Ends all nodes and copies, and waits for a limited time until they have ended. Returns the number of bytes that
    /// are kept on all hosts together, and whether all hosts have answered.
    fn stop_nodes(&mut self, run: &Run, number: u8) -> (u64, bool) {
        for hop in run.links.hops().chain(run.copies.keys().copied()) {
            self.job.stop(hop, number);
        }
        for node in 0..=run.nodes.len() {
            run.links.tell(&mut self.job, node, Message::Signal(number));
        }
        let is_open = |node: &Node| !self.job.hosts[run.links.hosts[*node]].gone && run.target(*node).report.is_none();
        let open = (1..=run.streaming).filter(is_open);
        let mut left: HashSet<usize> = open.map(|node| run.links.hosts[node]).collect();
        let (mut kept, mut is_lost, deadline) = (run.kept.clone(), false, Instant::now() + STOP_MAX);
        // A host that keeps sending messages without ending is waited for no longer than a silent host.
        while Instant::now() < deadline && (!left.is_empty() || run.copies.keys().any(|&hop| self.job.is_heard(hop))) {
            match self.job.next(deadline) {
                Some(Update::Host(host, Message::BroadcastEnded(_))) => {
                    left.remove(&host);
                }
                Some(Update::Gone(host, _)) => is_lost |= left.remove(&host),
                Some(Update::Host(host, Message::Kept(said))) => {
                    kept.insert(host, said.bytes);
                }
                Some(Update::End(hop, side, Message::Kept(said))) => {
                    kept.insert(self.job.hops[hop].host(side), said.bytes);
                }
                Some(Update::Signal(again)) if again != libc::SIGTSTP => break,
                Some(_) => {}
                None => break,
            }
        }
        let have_answered = left.is_empty() && !is_lost && run.copies.keys().all(|&hop| self.job.hops[hop].is_over());
        // A host that had to begin anew may have the whole tree by now.
        let lacks = |host: &usize| run.links.node_of(*host).is_some_and(|node| run.target(node).done_after.is_none());
        (kept.into_iter().filter(|(host, _)| lacks(host)).map(|(_, bytes)| bytes).sum(), have_answered)
    }

    fn show_hosts(&mut self, run: &mut Run) {
        let counting: Vec<usize> = (0..run.targets.len()).filter(|&at| run.counts(at)).collect();
        joining::update_rows(&mut run.rows, &run.targets, &counting);
        let place = |at: usize| run.rows.iter().position(|&row| row == at);
        let shown = |&at: &usize| {
            let shown = run.shown(at);
            HostShown { before: shown.before.and_then(place), ..shown }
        };
        let shown: Vec<HostShown> = run.rows.iter().map(shown).collect();
        self.observer.show_hosts(&shown, run.source_state.received, run.source_state.has_all, run.began.elapsed());
    }

    /// Reports the outcome for each host, and returns the outcome of the whole broadcast.
    fn came_to_broadcast(&mut self, run: Run) -> Ended {
        let counted: Vec<bool> = (0..run.targets.len()).map(|at| run.counts(at)).collect();
        let versions: Vec<Option<Failure>> = (0..run.targets.len()).map(|at| run.other_version(at)).collect();
        if run.may_differ() {
            let label = self.label(run.source);
            self.say(&format!("{label}: the data changed during the copy; the hosts may have different versions"));
        }
        let Run { targets, began, source, source_report, source_failure, .. } = run;
        let mut hosts = Vec::new();
        let (mut failed_hosts, mut incomplete, mut first) = (0, 0, None);
        let mut tree = TreeFigures { is_synced: true, is_read_back: true, ..TreeFigures::default() };
        let (mut written, mut unsent, mut undeleted) = (Written::default(), 0_u64, 0_u64);
        let has_any = targets.iter().any(Target::is_complete);
        let all = targets.into_iter().zip(versions).zip(counted);
        for ((target, other_version), _) in all.filter(|(_, is_counted)| *is_counted) {
            if let Some(failure) = target.unmade() {
                failed_hosts += 1;
                first.get_or_insert(failure.exit);
                // What a host could not make has been reported as it came.
                if target.first_unmade.is_none() {
                    self.tell_failed(&failure);
                }
                hosts.push(HostEnded { spec: target.spec, failure: Some(failure) });
                continue;
            }
            let not_deleted = target.undeleted();
            let Target { spec, failure, report, unsent: not_sent, done_after, why, unmet, .. } = target;
            let failure = failure.or(other_version);
            if failure.is_some() || done_after.is_none() {
                failed_hosts += 1;
                let label = escaped(spec.host());
                let own =
                    failure.as_ref().and_then(|failure| failure.message.as_ref()).map(|line| line_of(&label, line));
                let of_source = source_failure.clone().filter(|_| !has_own_reason(why));
                let failure = failure.or(of_source).unwrap_or_else(|| {
                    let line = why_failed(why, has_any);
                    match unmet {
                        Some(unmet) => Exit::Connect.with(format!("{line} ({unmet})")),
                        None => Exit::LinkLost.with(line),
                    }
                });
                first.get_or_insert(failure.exit);
                let line =
                    own.unwrap_or_else(|| format!("{label}: {}", failure.message.as_deref().unwrap_or_default()));
                self.tell_failed(&Failure { message: Some(line), ..failure.clone() });
                hosts.push(HostEnded { spec, failure: Some(failure) });
                continue;
            }
            let mut failure = None;
            // The same entries are missing on all hosts, so they count once.
            unsent = unsent.max(not_sent);
            if let Some(report) = report {
                unsent = unsent.max(report.tree.failed_there);
                let made = &report.tree;
                tree.amount = tree.amount.max(made.amount);
                tree.same = tree.same.max(made.same);
                tree.deleted = tree.deleted.max(made.deleted);
                tree.moved = tree.moved.max(made.moved);
                tree.is_synced &= made.is_synced;
                tree.is_read_back &= made.is_read_back;
                let other = report.figures.written;
                if other.direct_bytes + other.buffered_bytes > written.direct_bytes + written.buffered_bytes {
                    written = other;
                }
                self.failed = self.failed.saturating_add(report.tree.failed);
                if report.tree.failed > 0 {
                    self.first_failed.get_or_insert(Exit::Partial);
                    let line = match report.tree.failed - not_deleted {
                        0 => NOT_DELETED.to_owned(),
                        failed => format!("{} not copied in full", entries(failed)),
                    };
                    failure = Some(Exit::Partial.with(line));
                    undeleted = undeleted.saturating_add(not_deleted);
                    incomplete += 1;
                }
            }
            hosts.push(HostEnded { spec, failure });
        }
        let unsent = source_report.as_ref().map_or(unsent, |report| unsent.max(report.tree.failed));
        if unsent > 0 {
            self.failed = self.failed.saturating_add(unsent);
            self.first_failed.get_or_insert(Exit::Partial);
        }
        let seconds = began.elapsed().as_secs_f64();
        let of_source = source_report.unwrap_or_default();
        let mut figures = self.figures_of_hops(source);
        (figures.seconds, figures.counters.bytes) = (seconds, tree.amount.bytes);
        (figures.read, figures.written) = (of_source.figures.read, written);
        let count = hosts.len();
        let unmade = self.failed.saturating_add(self.left_out);
        let has_made = failed_hosts < count && tree.amount.entries > 0;
        if has_made {
            // With --sync, each host got an ordinary copy, and its sender reports the size.
            let sent = self.job.hops.iter().filter_map(|hop| hop.report(Side::From)).map(|sent| sent.tree.size_bytes);
            tree.size_bytes = sent.max().unwrap_or(0).max(of_source.tree.size_bytes);
            tree.kept_bytes = of_source.tree.kept_bytes;
            tree.failed = unmade;
            self.observer.event(&Event::Copied(event::Copied::new(self.label(source), &tree, false)));
        }
        let failure = match failed_hosts {
            0 if unmade == 0 => None,
            // What was not deleted has been reported.
            0 if unmade == undeleted => Some(Failure::silent(Exit::Partial)),
            0 => {
                let lacking = entries(unmade.saturating_sub(undeleted));
                Some(Exit::Partial.with(format!("{lacking} not copied in full; the others were copied")))
            }
            failed if failed == count => Some(first.unwrap_or(Exit::Partial).with(format!("all {count} hosts failed"))),
            failed => Some(some_failed(failed, incomplete, count)),
        };
        let copied = (failed_hosts < count).then(|| Copied {
            tree: TreeFigures {
                amount: tree.amount,
                failed: unmade,
                is_synced: tree.is_synced && has_made,
                is_read_back: tree.is_read_back && has_made,
                ..TreeFigures::default()
            },
            seconds,
            is_verified: true,
            hosts: Some((count - failed_hosts, count)),
            ..Copied::default()
        });
        Ended { figures, failure, copied, hosts }
    }

    /// Returns the media and lanes of all hops. All other figures are those of the hops from the source.
    fn figures_of_hops(&self, source: usize) -> Figures {
        let (mut all, mut is_clear) = (Figures::default(), false);
        for hop in &self.job.hops {
            let Some(told) = hop.figures() else { continue };
            is_clear |= !told.encrypted && !told.media.is_empty();
            all.add(&match hop.hosts[0] == source {
                true => told,
                false => Figures { media: told.media, lanes: told.lanes, ..Figures::default() },
            });
        }
        (all.encrypted, all.view) = (!is_clear && !all.media.is_empty(), View::Both);
        all
    }

    /// Whether the root of the copy is the contents of this source instead of the source itself, as with rsync's
    /// `SRC/`.
    pub(super) fn is_root(&self, found: &Found) -> bool {
        found.kind == Kind::Directory && (found.path.ends_with(b"/") || found.name.is_empty() || self.plan.exact)
    }
}

impl Target {
    /// Returns why nothing at all was copied to the host. `None` if something was, or if the copy failed as a whole.
    fn unmade(&self) -> Option<Failure> {
        let made = &self.report.as_ref()?.tree;
        let has_ended = self.failure.is_none() && self.done_after.is_some();
        let is_unmade = has_ended && made.failed > 0 && made.amount.entries == 0;
        let unnamed = || {
            let label = escaped(self.spec.host());
            Exit::Partial.with(format!("{label}: nothing was copied: {} failed", entries(made.failed)))
        };
        is_unmade.then(|| self.first_unmade.clone().unwrap_or_else(unnamed))
    }

    /// Returns how many of the failures in the host's report only kept something from being deleted.
    fn undeleted(&self) -> u64 {
        self.undeleted.min(self.report.as_ref().map_or(0, |report| report.tree.failed))
    }

    /// Whether the host has the copy, apart from single entries.
    fn is_complete(&self) -> bool {
        self.done_after.is_some() && self.unmade().is_none()
    }
}

impl Run {
    /// Whether a host counts for the outcome of this copy. A host that another command requested, and that never began,
    /// counts only for that command.
    fn counts(&self, at: usize) -> bool {
        !self.targets[at].is_replaced && !self.is_not_added(at)
    }

    fn is_not_added(&self, at: usize) -> bool {
        let target = &self.targets[at];
        target.is_extra && target.done_after.is_none() && !self.nodes.contains(&at)
    }

    fn target(&self, node: Node) -> &Target {
        &self.targets[self.nodes[node - 1]]
    }

    fn target_mut(&mut self, node: Node) -> &mut Target {
        &mut self.targets[self.nodes[node - 1]]
    }

    /// Forgets why hosts could not be connected if they are now: what fails later fails for another reason.
    fn forget_unmet(&mut self, job: &Job) {
        let Self { links, chain, copies, nodes, targets, .. } = self;
        let copied = copies.iter().filter(|&(&hop, _)| links::is_up(job, hop)).map(|(_, copy)| copy.nodes().1);
        for node in links.reached(job, chain).chain(copied) {
            targets[nodes[node - 1]].unmet = None;
        }
    }

    fn shown(&self, at: usize) -> HostShown {
        let target = &self.targets[at];
        let node = self.nodes.iter().position(|&other| other == at).map(|at| at + 1);
        let tree = node.map(|node| self.chain.tree(node));
        let standing = match (tree, &target.failure) {
            (Some(Tree::Done), _) if target.unmade().is_some() || self.other_version(at).is_some() => {
                HostStanding::Failed
            }
            (Some(Tree::Done), _) => HostStanding::Done,
            (None, None) if target.done_after.is_some() => HostStanding::Done,
            (None, None) => HostStanding::Starting,
            (None | Some(Tree::Failed), _) => HostStanding::Failed,
            (Some(Tree::Open), _) if target.from.is_some() => HostStanding::Copying,
            (Some(Tree::Open), _) if target.why.is_some() || target.state.is_behind => HostStanding::Behind,
            // It takes no part in the stream.
            (Some(Tree::Open), _) if node.is_some_and(|node| node > self.streaming) => HostStanding::Behind,
            (Some(Tree::Open), _) if target.state.has_all => HostStanding::Finishing,
            (Some(Tree::Open), _) => HostStanding::Receiving,
        };
        HostShown {
            host: escaped(target.spec.host()),
            standing,
            // For a host that gets an ordinary copy, this is the progress of that copy.
            received: target.state.tree.as_ref().map_or(0, |tree| tree.done.bytes).max(target.state.received),
            written: target.state.written,
            before: node.and_then(|node| self.before(node, target)),
        }
    }

    /// Returns the index of the target that sends a node the stream, or its copy.
    fn before(&self, node: Node, target: &Target) -> Option<usize> {
        if let Some(from) = target.from {
            return self.targets.iter().position(|target| target.host == Some(from));
        }
        self.chain.before(node).filter(|&before| before != SOURCE).map(|before| self.nodes[before - 1])
    }
}

/// Whether a host has failed by itself, whatever happened to the host with the sources.
fn has_own_reason(why: Option<Why>) -> bool {
    matches!(why, Some(Why::DiskStill | Why::Endless))
}

/// Returns why a host failed that has not reported the reason itself. `has_any`: whether another host has the whole
/// tree and could have given it.
fn why_failed(why: Option<Why>, has_any: bool) -> &'static str {
    match (why, has_any) {
        (Some(Why::DiskStill), _) => "its disk has written nothing for too long",
        (Some(Why::Endless), _) => "it took too long to finish",
        (Some(Why::NoGiver), true) => {
            "the host with the sources no longer answers, and no other host can give it the rest"
        }
        (Some(Why::SourceLost | Why::NoGiver), false) => {
            "the host with the sources is lost, and no other host has all data"
        }
        (_, true) => "it no longer answers: it is cut off, stopped, or down",
        (_, false) => "no remaining host has all the data it needs",
    }
}

fn roots_of(found: &[(usize, Found)]) -> Vec<Root> {
    found.iter().map(|(_, found)| root_of(found)).collect()
}

#[cfg(test)]
mod tests;
