//! One stream to the same stage on several hosts: the chain of their nodes, as a pipeline uses it.
//!
//! Nothing can be copied later, because there is nothing to copy from. So a host that leaves the chain has failed,
//! unless it has the whole stream.

use std::time::{Duration, Instant};

use super::chain::{Action, Chain, Node, SOURCE, Tree, Why};
use super::links::{self, Links};
use super::{OTHERS_GO_ON, SPOOL_BYTES};
use crate::control::frames::{Broadcast, BroadcastRole, BroadcastState, Fault, Message, Report};
use crate::fault::{Exit, escaped};
use crate::job::hop::Side;
use crate::job::progress::{HostShown, HostStanding};
use crate::job::{Job, Update};
use crate::options::TransferOptions;

pub(in crate::job) use super::chain::Lag;

/// How long the ends of hops may take to report what they moved, once no node takes any more of the stream.
const REPORTS_MAX: Duration = Duration::from_secs(1);

/// A host that gets the stream.
#[derive(Default)]
struct Branch {
    /// The number of its stage.
    stage: usize,
    name: String,
    state: BroadcastState,
    /// The final report of its node.
    report: Option<Report>,
    /// Why it is out of the chain, or gets no more of the stream.
    why: Option<Why>,
    /// Why the last hop to it could not be connected. `None` once one is.
    unmet: Option<String>,
    /// Whether its command has ended well; `None` while the command runs.
    ended: Option<bool>,
}

/// The state of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::job) enum Standing {
    Open,
    /// The node has had the whole stream, proven, or as much as its command has wanted.
    Done,
    /// The node will not have the whole stream: its fault, or the reason in words and its exit code.
    Failed(Result<Fault, (Exit, String)>),
}

/// All branches of a stream.
pub(in crate::job) struct Branches {
    chain: Chain,
    links: Links,
    stall: Duration,
    branches: Vec<Branch>,
    began: Instant,
    source_state: BroadcastState,
    source_report: Option<Report>,
    /// When the last node had ended.
    over_since: Option<Instant>,
    said: Vec<String>,
}

impl Branches {
    /// Begins the nodes of these stages, each on a different host that has been told of its stage, and that of the
    /// stream's source. `disk_bytes` is how much of the stream may wait on disk for each of the stages, in addition to
    /// memory.
    pub(in crate::job) fn begin(
        job: &mut Job,
        (source, role): (usize, BroadcastRole),
        stages: &[(usize, usize)],
        (lag, stall, disk_bytes): (Lag, Duration, u64),
        options: &TransferOptions,
    ) -> Self {
        let branch = |&(host, stage): &(usize, usize)| {
            let name = escaped(&job.hosts[host].name);
            Branch { stage, name, ..Branch::default() }
        };
        let branches = stages.iter().map(branch).collect();
        let mut begin = |host: usize, role: BroadcastRole, has_next: bool| {
            let begin = Broadcast { role, spool_bytes: SPOOL_BYTES, has_next };
            job.send(host, Message::BeginBroadcast(Box::new(begin)));
        };
        begin(source, role, true);
        for (at, &(host, stage)) in stages.iter().enumerate() {
            let role = BroadcastRole::Stage { stage: stage as u32, disk_bytes };
            begin(host, role, at + 1 < stages.len());
        }
        let hosts = std::iter::once(source).chain(stages.iter().map(|&(host, _)| host)).collect();
        let reconnect = Duration::from_secs(options.reconnect.into());
        Self {
            chain: Chain::new(stages.len() + 1, SPOOL_BYTES, stall, lag).reconnecting(reconnect),
            links: Links::of_pipeline(hosts, options),
            stall,
            branches,
            began: Instant::now(),
            source_state: BroadcastState::default(),
            source_report: None,
            over_since: None,
            said: Vec::new(),
        }
    }

    /// Handles updates about the chain. Returns all others, and the loss of a host.
    pub(in crate::job) fn take(&mut self, job: &mut Job, update: Update) -> Option<Update> {
        match update {
            Update::Host(host, message) => {
                return self.hear(host, message).map(|message| Update::Host(host, message));
            }
            Update::End(hop, ..) if job.hops[hop].is_of_chain() => {}
            Update::Ended(hop, _) if job.hops[hop].is_of_chain() => {
                // What the sending end has by itself lacks no other host.
                let to = job.hops[hop].host(Side::To);
                let is_unmet = |(host, fault): &(usize, &Fault)| {
                    Exit::from_code(fault.exit) == Exit::Connect && (*host == to || !fault.own)
                };
                if let Some((host, fault)) = job.hops[hop].first_fault().filter(is_unmet)
                    && let Some(reason) = job.failure(host, fault).message
                {
                    self.note_unmet(hop, reason);
                }
                links::end_failed(job, hop);
            }
            Update::Unmet(hop, reason) if job.hops[hop].is_of_chain() => {
                self.note_unmet(hop, reason);
                job.stop(hop, libc::SIGTERM as u8);
            }
            Update::Gone(host, failure) => {
                if let Some(node) = self.links.node_of(host) {
                    self.chain.lost(node);
                }
                return Some(Update::Gone(host, failure));
            }
            update => return Some(update),
        }
        None
    }

    /// Records why a hop could not be connected. If the chain is stopping the hop, that alone may be the reason.
    fn note_unmet(&mut self, hop: usize, reason: String) {
        let link = self.links.link(hop).filter(|&link| !self.chain.is_stopping(link));
        if let Some((_, to)) = link.and_then(|link| self.chain.ends(link)) {
            self.branches[to - 1].unmet = Some(reason);
        }
    }

    fn hear(&mut self, host: usize, message: Message) -> Option<Message> {
        let Some(node) = self.links.node_of(host) else { return Some(message) };
        match message {
            Message::BroadcastState(state) => {
                // A node falls behind only when told to, by the chain or because its command has ended, so its word is
                // not needed.
                let state = BroadcastState { is_behind: false, ..state };
                self.chain.state(node, &state, self.began.elapsed());
                match node {
                    SOURCE => self.source_state = state,
                    node => self.branches[node - 1].state = state,
                }
            }
            Message::BroadcastProof(proof) if node == SOURCE => {
                let proof = *self.links.proof.get_or_insert(proof);
                self.chain.proof(proof.bytes, false);
            }
            Message::BroadcastEnded(report) => {
                let fault = report.fault.as_ref();
                if node == SOURCE {
                    self.chain.tree_over(SOURCE, fault.is_none());
                    self.source_report.get_or_insert(*report);
                    return None;
                }
                let branch = &mut self.branches[node - 1];
                // Data that a command leaves unread was not wanted. The command's own end shows whether that was a
                // success.
                let is_closed = fault.is_some_and(|fault| Exit::from_code(fault.exit) == Exit::SinkClosed);
                let is_done = fault.is_none() || is_closed || branch.ended == Some(true);
                branch.report.get_or_insert(*report);
                self.chain.tree_over(node, is_done);
            }
            message => return Some(message),
        }
        None
    }

    /// Records that the command of a stage has ended, so that it takes no more of the stream.
    pub(in crate::job) fn stage_ended(&mut self, job: &mut Job, stage: usize, is_well: bool) {
        let Some(at) = self.branches.iter().position(|branch| branch.stage == stage) else { return };
        self.branches[at].ended.get_or_insert(is_well);
        if self.branches[at].report.is_none() {
            self.links.tell(job, at + 1, Message::BroadcastLeave);
        }
    }

    /// Carries out pending actions, and advances the time.
    pub(in crate::job) fn turn(&mut self, job: &mut Job) {
        if self.over_since.is_some() {
            return;
        }
        self.act(job);
        for node in self.links.reached(job, &self.chain) {
            self.branches[node - 1].unmet = None;
        }
        self.links.settle(job, &mut self.chain, self.began.elapsed());
        self.chain.tick(self.began.elapsed());
        self.act(job);
    }

    fn act(&mut self, job: &mut Job) {
        while let Some(action) = self.chain.poll() {
            if let Action::Leave(node) = action {
                self.branches[node - 1].why.get_or_insert(Why::Slow);
            }
            match self.links.act(job, action) {
                Some(Action::Out(node, why)) => self.note_out(job, node, why),
                Some(Action::Silence(within)) => self.said.push(links::silence(within)),
                Some(Action::End) => {
                    self.over_since.get_or_insert_with(Instant::now);
                    // No node wants any more of the stream. The command that makes the stream notices that at its next
                    // write.
                    if self.source_report.is_none() {
                        self.links.tell(job, SOURCE, Message::Signal(libc::SIGTERM as u8));
                    }
                }
                // A stream cannot be copied later.
                _ => {}
            }
        }
    }

    fn note_out(&mut self, job: &Job, node: Node, why: Why) {
        if node == SOURCE {
            let label = job.hosts[self.links.hosts[SOURCE]].label();
            return self.said.push(format!("lost {label}, the source of the stream"));
        }
        let branch = &mut self.branches[node - 1];
        branch.why.get_or_insert(why);
        let reason = match why {
            // The reason is reported at the end.
            Why::CutOff if branch.unmet.is_some() => Some(format!("cannot connect {}", branch.name)),
            why => links::passed_over(why, &branch.name, self.stall),
        };
        let Some(reason) = reason else { return };
        let then = if branch.state.has_all && why != Why::Lost { "it already has all data" } else { OTHERS_GO_ON };
        self.said.push(format!("{reason}; {then}"));
    }

    /// Takes the messages for the user.
    pub(in crate::job) fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// Reports whether all nodes that can be reached are connected, so that the stream may begin.
    pub(in crate::job) fn are_connected(&self) -> bool {
        self.chain.is_connected()
    }

    /// Reports whether no node takes any more of the stream.
    pub(in crate::job) fn are_over(&self) -> bool {
        self.over_since.is_some()
    }

    /// Reports whether the hops have also reported what they moved, or are no longer waited for. Hops of a stream that
    /// was not wanted to its end may never report anything.
    pub(in crate::job) fn have_reported(&self, job: &Job) -> bool {
        let is_due = |since: Instant| since.elapsed() >= REPORTS_MAX;
        self.links.proof.is_none() || self.over_since.is_some_and(is_due) || self.links.are_over(job)
    }

    /// Returns the length of the stream as far as it was made, and how long the hosts took to get it.
    pub(in crate::job) fn came_to(&self) -> (u64, Duration) {
        let ended = self.over_since.unwrap_or_else(Instant::now);
        // The proof comes before the source's last state.
        let bytes = self.links.proof.map_or(self.source_state.received, |proof| proof.bytes);
        (bytes, ended.saturating_duration_since(self.began))
    }

    /// Whether the branch of a stage has taken the whole stream and found it to be what the source has sent.
    pub(in crate::job) fn is_proven(&self, stage: usize) -> bool {
        let branch = self.branches.iter().find(|branch| branch.stage == stage);
        branch.and_then(|branch| branch.report.as_ref()).is_some_and(|report| report.fault.is_none())
    }

    /// Returns a measure of progress: the bytes of the source and of all branches together, and those that the commands
    /// have been given, perhaps from queues on disk. A stream that moves is not given up.
    pub(in crate::job) fn bytes(&self) -> u64 {
        let given = |state: &BroadcastState| state.tree.as_ref().map_or(0, |tree| tree.done.bytes);
        let moved = self.branches.iter().flat_map(|branch| [branch.state.written, given(&branch.state)]);
        moved.fold(self.source_state.received, u64::saturating_add)
    }

    /// Returns the host where the stream is made.
    pub(in crate::job) fn source(&self) -> usize {
        self.links.hosts[SOURCE]
    }

    /// Whether the source's node has read the stream to its end.
    pub(in crate::job) fn have_all_of_source(&self) -> bool {
        self.source_state.has_all && self.source_report.as_ref().is_some_and(|report| report.fault.is_none())
    }

    /// Returns the fault of the source's node, if it has failed.
    pub(in crate::job) fn source_fault(&self) -> Option<&Fault> {
        self.source_report.as_ref()?.fault.as_ref()
    }

    /// Returns how much the branch of a stage has received.
    pub(in crate::job) fn received(&self, stage: usize) -> Option<u64> {
        self.branches.iter().find(|branch| branch.stage == stage).map(|branch| branch.state.received)
    }

    /// Returns the state of a stage's branch.
    pub(in crate::job) fn standing(&self, stage: usize) -> Standing {
        let Some(at) = self.branches.iter().position(|branch| branch.stage == stage) else { return Standing::Open };
        let branch = &self.branches[at];
        let fault = branch.report.as_ref().and_then(|report| report.fault.as_ref());
        match self.chain.tree(at + 1) {
            Tree::Open => Standing::Open,
            Tree::Done => Standing::Done,
            Tree::Failed => Standing::Failed(match (branch.why, fault) {
                (None, Some(fault)) => Ok(fault.clone()),
                _ => Err(self.why_failed(branch)),
            }),
        }
    }

    /// Returns the exit code and the reason of a branch that has failed and has not reported why.
    fn why_failed(&self, branch: &Branch) -> (Exit, String) {
        let stall = self.stall.as_secs();
        if let (Some(Why::CutOff), Some(unmet)) = (branch.why, &branch.unmet) {
            return (Exit::Connect, unmet.clone());
        }
        let reason = match branch.why {
            Some(Why::Lost) => "its agent was lost before it finished".to_owned(),
            Some(Why::CutOff) => "its neighbours cannot reach it".to_owned(),
            Some(Why::StoodStill) => format!("accepted no data for {stall} s and was dropped (--stall)"),
            Some(Why::Slow) => format!("was slower than most others for {stall} s and was dropped (--slow=drop)"),
            Some(Why::TooFar) => "two hosts were lost at once, and no other host has the data it needs".to_owned(),
            Some(Why::SourceLost) => "the source of the stream was lost, and no host has all of it".to_owned(),
            Some(Why::Lied) => "reports impossible values; not trusting it".to_owned(),
            Some(Why::Failed | Why::DiskStill | Why::Endless | Why::NoGiver | Why::Misled | Why::Forged) => {
                "its agent could not continue".to_owned()
            }
            None => "the stream did not reach its end".to_owned(),
        };
        (Exit::LinkLost, reason)
    }

    /// Ends all nodes.
    pub(in crate::job) fn stop(&self, job: &mut Job, number: u8) {
        for node in 0..=self.branches.len() {
            self.links.tell(job, node, Message::Signal(number));
        }
    }

    /// Returns the state of each host, how much the source has made and whether that is all, and the time since the
    /// beginning. `has_failed` tells whether the command of a stage has failed.
    pub(in crate::job) fn shown(&self, has_failed: impl Fn(usize) -> bool) -> (Vec<HostShown>, u64, bool, Duration) {
        let shown = self.branches.iter().enumerate().map(|(at, branch)| HostShown {
            host: branch.name.clone(),
            standing: match self.chain.tree(at + 1) {
                Tree::Failed => HostStanding::Failed,
                _ if has_failed(branch.stage) => HostStanding::Failed,
                Tree::Done => HostStanding::Done,
                Tree::Open if branch.state.has_all => HostStanding::Finishing,
                Tree::Open => HostStanding::Receiving,
            },
            received: branch.state.received,
            written: branch.state.written,
            before: self.chain.before(at + 1).and_then(|before| before.checked_sub(1)),
        });
        let BroadcastState { received, has_all, .. } = self.source_state;
        (shown.collect(), received, has_all, self.began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frames::TreeProgress;
    use crate::job::HERE;
    use crate::tree::progress::Amount;

    /// A command may read from its queue on disk long after its node has taken the whole stream.
    #[test]
    fn a_queue_on_disk_that_is_read_moves_the_stream() {
        let stall = Duration::from_secs(5);
        let mut branches = Branches {
            chain: Chain::new(2, SPOOL_BYTES, stall, Lag::Held),
            links: Links::of_pipeline(vec![HERE, HERE + 1], &TransferOptions::default()),
            stall,
            branches: vec![Branch::default()],
            began: Instant::now(),
            source_state: BroadcastState::default(),
            source_report: None,
            over_since: None,
            said: Vec::new(),
        };
        let mut bytes_when = |given: u64| {
            let done = Amount { bytes: given, ..Amount::default() };
            let tree = Some(TreeProgress { done, ..TreeProgress::default() });
            let whole = BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() };
            let state = BroadcastState { tree, ..whole };
            assert_eq!(branches.hear(HERE + 1, Message::BroadcastState(state)), None);
            branches.bytes()
        };
        assert!(bytes_when(10) < bytes_when(20));
    }
}
