//! Decides which node sends to which in a broadcast, and how that changes when hosts or connections fail.
//!
//! A pure state machine: events go in, actions come out ([`Chain::poll`]), and the time is an argument. The chain
//! decides alone; hosts do not vote. Nodes are numbers: 0 is the source, the others are the hosts in the order of the
//! chain.
//!
//! The stream goes from each node to the next one in the order. A node keeps the part of the stream that the next node
//! but one lacks. So when a node is taken out of the order, the node behind it continues with the node before it. A
//! node that is taken out and still heard gets its tree by an ordinary copy from a node that is done.
//!
//! # What holds
//!
//! * A node sends to at most one node at a time, and receives from at most one. A link begins only after earlier links
//!   of the same ends are over, or are being stopped and replaced by it.
//! * A node is taken out once, and every node ends as done or failed.
//! * What nodes say of themselves is believed only as far as the node before them and the length of the stream allow
//!   (`chain/claims.rs`).
//! * Nothing waits without a deadline. A link that carries nothing even though there is something to send is given up
//!   after the time that the user allows. A node that only has to finish its own part gets a limited time for that.
//! * While nodes that have all fallen silent together are not back, none is blamed: the network between them and the
//!   caller is down. That time is limited, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::control::frames::BroadcastState;

use blame::AGAIN_AFTER;
use copies::COPIES_AT_ONCE;
use pace::{Pace, SLOWER};

/// A node: 0 is the source.
pub(super) type Node = usize;

/// Names a link of the chain. No number is used twice.
pub(super) type LinkId = u32;

/// The source.
pub(super) const SOURCE: Node = 0;

/// A node whose tree is always busier than this may be holding up the others.
const BUSY_PERMILLE: u16 = 900;

/// Minimum time of silence after which a node may be gone. Nodes report their progress at least once a second.
const SILENT_MIN: Duration = Duration::from_secs(2);

/// How long this process may take from one look at the time to the next. If it took longer, it was stopped.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What happens to a node that is too slow for the others, or that leaves the chain without the whole stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::job) enum Lag {
    /// The node's tree is copied to it later.
    #[default]
    Copied,
    /// The node has failed, because a stream comes only once.
    Dropped,
    /// A slow node is waited for without limit. A node that leaves the chain has failed.
    Held,
}

/// An action for the caller of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Have one node send the stream to the other.
    Connect { link: LinkId, from: Node, to: Node },
    /// Have both ends of a link end; [`Chain::link_over`] answers.
    Stop(LinkId),
    /// Tell a node whether there is a node behind it.
    Next(Node, bool),
    /// Have a node stop making its tree from the stream; [`Chain::tree_over`] answers.
    Leave(Node),
    /// Tell a node what the stream must have been.
    Prove(Node),
    /// Copy the tree from a node that has it to another; [`Chain::copy_over`] answers.
    Copy { from: Node, to: Node },
    /// Measure for a moment how fast the source can send to a node; [`Chain::probe_over`] answers.
    Probe(Node),
    /// A node has left the chain, for this reason.
    Out(Node, Why),
    /// No node is heard any more, and they are waited for this long; `None`: they are heard again.
    Silence(Option<Duration>),
    /// All nodes are done or have failed.
    End,
}

/// Why a node is out of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its agent is no longer heard.
    Lost,
    /// Its connections broke, or could not be made.
    CutOff,
    /// It has taken nothing for as long as the user allows.
    StoodStill,
    /// It was much slower than the others.
    Slow,
    /// The node before it no longer keeps the part that it lacks.
    TooFar,
    /// It has reported itself that it cannot go on.
    Failed,
    /// Its disk has written nothing for a long time.
    DiskStill,
    /// It only had to finish its own part, and has not.
    Endless,
    /// The source is lost, and no node before this one has the whole stream.
    SourceLost,
    /// It needs a copy, and neither the source nor any other node can give it.
    NoGiver,
    /// The data that it got is not what the source has sent.
    Misled,
    /// Its reports cannot be true.
    Lied,
    /// It has passed on data that differs from what it says it got.
    Forged,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// The receiving node has the end of the stream.
    Done,
    /// The link was stopped, or broke, or its ends did not meet.
    Broken,
    /// The part that the receiving node lacks is no longer kept.
    NotKept,
    /// The sending node could not go on.
    FromFailed,
    /// The receiving node could not go on.
    ToFailed,
    /// The receiving node has never said where it wants the stream to start.
    ToSilent,
}

/// How an ordinary copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    /// The tree has been made and proven.
    Made,
    /// The data that came is not what the source has.
    Forged,
    /// The receiving node could not go on.
    ToFailed,
    /// It was stopped because it got no further. The disk of either node may hang.
    Stuck,
    /// Something else went wrong.
    Broken,
}

/// The state of a node's own tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tree {
    /// It is being made from the stream, or will be copied.
    #[default]
    Open,
    /// It is complete and proven.
    Done,
    /// It will never be complete.
    Failed,
}

#[derive(Clone, Debug, Default)]
struct Member {
    /// Whether its agent is heard.
    is_heard: bool,
    is_out: bool,
    /// Whether its tree takes no more of the stream and has to be copied.
    is_behind: bool,
    /// Whether the node has stopped making its tree from the stream, so that the tree may be copied.
    is_over: bool,
    tree: Tree,
    /// How much it says to have, how much it says to have passed on, and whether it says that this is all.
    said: u64,
    passed: u64,
    says_all: bool,
    /// The most that it may have, and how much of that other nodes confirm: see [`Chain::learn`].
    received: u64,
    sure: u64,
    has_all: bool,
    /// Whether a link to it has carried everything, by the word of both ends.
    is_fed: bool,
    /// When it last got more, or a link to it came up. `reached` is how far it was then, by the word of both ends of
    /// the link, and by the word of one end.
    moved: Duration,
    reached: (u64, u64),
    /// When it last reported its progress.
    spoke: Duration,
    /// How much its own tree has, when that last grew, and (`is_unwritten`) whether data that has come is still to be
    /// written.
    written: u64,
    wrote: Duration,
    /// When `written` had last grown by much, and its value then.
    wrote_much: (Duration, u64),
    is_unwritten: bool,
    /// Since when it only has to finish its own part: it is out, or has the whole stream and its proof.
    last_since: Option<Duration>,
    /// How fast it takes the stream: by its own word, and by the word of the nodes before it.
    taken: Pace,
    given: Pace,
    /// Since when it has been much slower than others.
    slow_since: Option<Duration>,
    /// How busy its own tree is, and since when that has been too busy.
    busy_permille: u16,
    busy_since: Option<Duration>,
    /// Number of nodes to which it is giving its tree.
    serves: u32,
    /// Number of copies from it that got stuck.
    stuck: u32,
    is_served: bool,
    /// The node that gives the copy to it, and when that copy last got further.
    giver: Node,
    copied: Duration,
    copies: u32,
    /// Whether it takes part in the stream, and so reports its progress.
    speaks: bool,
    /// Nodes from which copying to it has failed.
    tried: Vec<Node>,
    /// Whether it accepts only the source, because it was given data that differs from the source's.
    wants_source: bool,
    /// Whether the stream that it got differed from the source's, and whether it matched.
    is_misled: bool,
    is_proof_met: bool,
    /// The nodes that have given it the stream.
    fed_by: BTreeSet<Node>,
    has_next: bool,
    /// Whether a link from it has been begun.
    has_fed: bool,
    is_proven: bool,
    /// Whether its tree has nothing except what the source has, so that it may be given to others.
    may_serve: bool,
    /// Since when it has needed a copy that no node can give now or later.
    stranded: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    from: Node,
    to: Node,
    up_since: Option<Duration>,
    is_stopping: bool,
    /// Whether its sending node has never sent to another node.
    is_first: bool,
    /// Whether its sending node has never sent to this node before.
    is_new: bool,
}

/// Two nodes that have lost each other.
#[derive(Clone, Copy, Debug)]
struct Broken {
    from: Node,
    to: Node,
    since: Duration,
}

/// A time in which nodes that have all fallen silent together are waited for.
#[derive(Clone, Copy, Debug)]
struct Outage {
    /// When the last of them was heard, and until when they are waited for.
    since: Duration,
    until: Duration,
}

impl Member {
    /// A member that takes part in a chain from the beginning.
    fn of_chain() -> Self {
        Self { is_heard: true, speaks: true, has_next: true, may_serve: true, ..Self::default() }
    }
}

/// The state machine.
#[derive(Debug, Default)]
pub(super) struct Chain {
    members: Vec<Member>,
    order: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    begun: LinkId,
    broken: Vec<Broken>,
    /// Pairs of nodes that have been connected again.
    again: BTreeSet<(Node, Node)>,
    /// Number of bytes of the stream that a node keeps.
    spool_bytes: u64,
    stall: Duration,
    /// How long all nodes, or the source, may be silent before they are given up.
    reconnect: Duration,
    lag: Lag,
    /// Maximum number of copies that one node gives at once.
    serves_max: u32,
    /// Heads of the chain whose rates have been compared with the rate of another link from the source.
    probed: BTreeSet<Node>,
    /// Since when the first link has been holding up all nodes.
    head_slow_since: Option<Duration>,
    has_proof: bool,
    /// Number of hosts that may still join.
    expected: usize,
    /// The length of the stream, once the source has reported it. `is_provable` tells whether copies from other nodes
    /// can be proven.
    length: Option<u64>,
    is_provable: bool,
    /// Nodes behind which another node has stood still.
    stilled: BTreeSet<Node>,
    ticked: Duration,
    /// When a node other than the source last reported its progress.
    heard: Duration,
    outage: Option<Outage>,
    /// Until when links may break because of the last outage.
    forgiving_until: Duration,
    actions: VecDeque<Action>,
    has_ended: bool,
}

impl Chain {
    /// Creates a chain of `nodes` nodes, including the source. `stall` is how long a node may take nothing.
    pub(super) fn new(nodes: usize, spool_bytes: u64, stall: Duration, lag: Lag) -> Self {
        let mut members = vec![Member::of_chain(); nodes];
        if let Some(last) = members.last_mut() {
            last.has_next = false;
        }
        let order = (0..nodes).collect();
        let mut chain = Self { members, order, spool_bytes, stall, lag, serves_max: 1, ..Self::default() };
        chain.settle();
        chain
    }

    /// Creates a state without a chain: each host that joins gets an ordinary copy from the source, a few at a time.
    /// `expected` hosts will join.
    pub(super) fn of_copies(expected: usize) -> Self {
        let source = Member { tree: Tree::Done, has_next: false, ..Member::of_chain() };
        let (members, order) = (vec![source], vec![SOURCE]);
        Self { members, order, stall: Duration::MAX, serves_max: COPIES_AT_ONCE, expected, ..Self::default() }
    }

    /// Has the network waited for as long as this if no node is heard any more, or not the source.
    pub(super) fn reconnecting(self, within: Duration) -> Self {
        Self { reconnect: within, ..self }
    }

    /// Records that a node's tree has more or less than what the source has, so that it must not be given to others.
    pub(super) fn keep_to_itself(&mut self, node: Node) {
        self.members[node].may_serve = false;
    }

    /// Returns the next action.
    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the node that gives a node the stream; `None` if that node is no longer in the chain.
    pub(super) fn before(&self, node: Node) -> Option<Node> {
        self.order.windows(2).find(|two| two[1] == node).map(|two| two[0])
    }

    pub(super) fn tree(&self, node: Node) -> Tree {
        self.members[node].tree
    }

    /// Records that this many more hosts may join. The chain does not end before they have joined or will not join.
    pub(super) fn expect(&mut self, hosts: usize) {
        self.expected += hosts;
        self.settle();
    }

    /// Records that an expected host will not join.
    pub(super) fn will_not_join(&mut self) {
        self.expected = self.expected.saturating_sub(1);
        self.settle();
    }

    /// Reports whether no node can ever have the whole tree, because the source could not be read.
    pub(super) fn is_hopeless(&self) -> bool {
        self.members[SOURCE].tree == Tree::Failed && !self.has_proof
    }

    /// Reports whether everything is done and no host can join any more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reports whether only hosts that may still join are waited for.
    pub(super) fn waits_for_joiners(&self) -> bool {
        self.expected > 0 && self.members[1..].iter().all(|member| member.tree != Tree::Open)
    }

    /// Adds an expected host, which gets its tree by an ordinary copy. With `may_serve`, others may copy the tree from
    /// there.
    pub(super) fn join(&mut self, may_serve: bool) -> Node {
        self.expected = self.expected.saturating_sub(1);
        let may_serve = may_serve && self.serves_max == 1;
        let tree = if self.is_hopeless() { Tree::Failed } else { Tree::Open };
        let (is_heard, is_out, is_behind, is_over) = (true, true, true, true);
        self.members.push(Member { is_heard, is_out, is_behind, is_over, may_serve, tree, ..Member::default() });
        self.settle();
        self.members.len() - 1
    }

    /// Reports whether each node of the chain is connected with the node before it, or has all of it. If the stream is
    /// short, a link may be over before the others are up.
    pub(super) fn is_connected(&self) -> bool {
        let is_up = |two: &[Node]| self.link(two[0], two[1]).is_some_and(|link| link.up_since.is_some());
        self.order.windows(2).all(|two| is_up(two) || self.members[two[1]].has_all)
    }

    /// Records that the two ends of a link have met. May be called again.
    pub(super) fn link_up(&mut self, link: LinkId, now: Duration) {
        if let Some(link) = self.links.get_mut(&link).filter(|link| link.up_since.is_none()) {
            link.up_since = Some(now);
            let to = &mut self.members[link.to];
            to.moved = now;
            if !link.is_first {
                to.given.interrupt();
            }
        }
    }

    /// Records that nothing came over a link, as its receiving end says. Called before [`Chain::link_over`].
    pub(super) fn fed_nothing(&mut self, link: LinkId) {
        if let Some(&Link { from, to, is_new: true, .. }) = self.links.get(&link) {
            self.members[to].fed_by.remove(&from);
        }
    }

    /// Returns the nodes at the ends of a link.
    pub(super) fn ends(&self, link: LinkId) -> Option<(Node, Node)> {
        self.links.get(&link).map(|link| (link.from, link.to))
    }

    /// Reports whether a link is being stopped.
    pub(super) fn is_stopping(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.is_stopping)
    }

    /// Records that both ends of a link are over, or will never be heard of again.
    pub(super) fn link_over(&mut self, id: LinkId, end: LinkEnd, now: Duration) {
        let Some(Link { from, to, is_stopping, up_since, .. }) = self.links.remove(&id) else { return };
        match end {
            LinkEnd::Done => (self.members[to].has_all, self.members[to].is_fed) = (true, true),
            // Failures of a link that is being stopped say nothing about its nodes.
            _ if is_stopping => {}
            LinkEnd::NotKept => self.take_out(to, Why::TooFar),
            LinkEnd::ToFailed => self.take_out(to, Why::Failed),
            LinkEnd::ToSilent => self.take_out(to, Why::CutOff),
            LinkEnd::FromFailed => self.take_out(from, Why::Failed),
            LinkEnd::Broken => {
                if self.are_neighbours(from, to) {
                    self.broken.push(Broken { from, to, since: now });
                    // A link that has held for long breaks for another reason than the one before it.
                    if up_since.is_some_and(|since| now.saturating_sub(since) >= AGAIN_AFTER) {
                        self.again.remove(&(from, to));
                    }
                }
            }
        }
        self.judge(now);
        self.settle();
    }

    /// Records that a node's agent is no longer heard.
    pub(super) fn lost(&mut self, node: Node) {
        self.members[node].is_heard = false;
        self.take_out(node, Why::Lost);
        self.settle();
    }

    /// Takes a node's report of its progress.
    pub(super) fn state(&mut self, node: Node, state: &BroadcastState, now: Duration) {
        let &BroadcastState { received, written, passed, has_all, is_behind, busy_permille, .. } = state;
        let is_full = received.saturating_sub(written) >= self.spool_bytes / 4;
        if node != SOURCE {
            if let Some(outage) = &mut self.outage
                && outage.since == self.heard
            {
                // TCP tries again after pauses as long as the time before, so the nodes are heard again one by one.
                outage.until = now + now.saturating_sub(outage.since).min(self.reconnect);
            }
            self.heard = now;
        }
        let member = &mut self.members[node];
        member.spoke = now;
        // A node that has taken the whole stream still has to finish it, but never lacks data again.
        let had_all = has_all || member.says_all;
        if written > member.written || received == written && !had_all {
            member.wrote = now;
        }
        // If others wait for the node, reporting one byte more now and then is not enough. Data that it still has to
        // write is in its spool, so at most one spool.
        let least = member.wrote_much.1.max(received.max(member.said).saturating_sub(self.spool_bytes));
        if !had_all || written >= least.saturating_add((self.spool_bytes / 8).max(1)) {
            member.wrote_much = (now, written);
        }
        (member.written, member.is_unwritten) = (written, written < received);
        member.busy_permille = busy_permille;
        if busy_permille < BUSY_PERMILLE || !is_full {
            member.busy_since = None;
        } else {
            member.busy_since.get_or_insert(now);
        }
        let was = (member.has_all, member.is_behind, member.tree);
        if is_behind && !member.is_behind {
            self.fall_behind(node);
        }
        self.claim(node, (received, passed, has_all), now);
        let member = &self.members[node];
        if (member.has_all, member.is_behind, member.tree) != was {
            self.settle();
        }
    }

    /// Records that a node's own tree has been read or made, or that it has failed.
    pub(super) fn tree_over(&mut self, node: Node, is_made: bool) {
        if node == SOURCE && !is_made && !self.has_proof {
            // No node can have the whole tree, and a copy of it would get no further.
            self.members.iter_mut().filter(|member| member.tree == Tree::Open).for_each(|it| it.tree = Tree::Failed);
        }
        let member = &mut self.members[node];
        member.is_over = true;
        member.is_proof_met |= is_made && node != SOURCE && !member.is_behind;
        // A node that is behind gets a copy.
        if member.tree == Tree::Open && (is_made || !member.is_behind) {
            member.tree = if is_made { Tree::Done } else { Tree::Failed };
        }
        self.check(node);
        self.settle();
    }

    /// Records the length of the stream, as the source has reported it. With `is_provable`, copies of the tree can be
    /// proven as well.
    pub(super) fn proof(&mut self, length: u64, is_provable: bool) {
        (self.has_proof, self.length, self.is_provable) = (true, Some(length), is_provable);
        (1..self.members.len()).for_each(|node| self.check(node));
        self.settle();
    }

    /// Records that the source could send `rate` bytes a second to a node that is not the head of the chain.
    pub(super) fn probe_over(&mut self, rate: f64) {
        let Some(&head) = self.order.get(1) else { return };
        if self.probed.contains(&head) && self.members[head].rate() * SLOWER < rate {
            self.take_out(head, Why::Slow);
        }
        self.settle();
    }

    /// Advances the time; called some times a second.
    pub(super) fn tick(&mut self, now: Duration) {
        let slept = now.saturating_sub(self.ticked);
        let was_stopped = self.outage.is_none() && slept > (self.stall / 2).min(LOOK_MAX);
        if !was_stopped && self.is_cut_off(now) {
            if self.outage.is_none() {
                self.outage = Some(Outage { since: self.heard, until: self.heard + self.reconnect });
                self.actions.push_back(Action::Silence(Some(self.reconnect)));
            }
            return;
        }
        // If this process was stopped for a while, or there was an outage, no node is to blame for that time.
        if let Some(outage) = self.outage.take() {
            self.again.clear();
            self.forgiving_until = now + now.saturating_sub(outage.since).min(self.reconnect);
            // If none has come back, all are gone, and the limits of time hold.
            if self.heard > outage.since {
                self.actions.push_back(Action::Silence(None));
                self.skip(now.saturating_sub(outage.since), now);
                self.heard = now;
            }
        } else if was_stopped {
            self.skip(slept, now);
            self.heard = (self.heard + slept).min(now);
        }
        self.ticked = now;
        for at in 0..self.order.len() {
            self.learn(self.order[at], now);
        }
        self.judge(now);
        self.give_up(now);
        self.excuse(now);
        if let Some(node) = self.still(now) {
            // If another node behind the same node stood still before, the node that both had in common is to blame, but
            // not for a node that says nothing.
            let before = self.before(node).filter(|&before| before != SOURCE && !self.is_silent(node, now));
            let node = before.filter(|&before| !self.stilled.insert(before)).unwrap_or(node);
            self.take_out(node, Why::StoodStill);
            // The nodes before it may have been waiting for it, and those behind it for its data.
            for &node in &self.order {
                self.members[node].moved = now;
            }
        } else if self.lag == Lag::Held {
            // Slow nodes are waited for.
        } else if let Some(node) = self.slow(now) {
            self.take_out(node, Why::Slow);
        } else if let Some(node) = self.busy(now) {
            self.fall_behind(node);
            self.actions.push_back(Action::Leave(node));
        }
        if self.lag != Lag::Held {
            self.probe(now);
        }
        self.settle();
    }

    /// Whether a node has been silent for too long. Nodes of a chain report their progress some times a second.
    fn is_silent(&self, node: Node, now: Duration) -> bool {
        let member = &self.members[node];
        self.stall < Duration::MAX
            && member.speaks
            && now.saturating_sub(member.spoke) >= (self.stall / 2).max(SILENT_MIN)
    }

    fn are_neighbours(&self, from: Node, to: Node) -> bool {
        self.order.windows(2).any(|two| two == [from, to])
    }

    fn link(&self, from: Node, to: Node) -> Option<&Link> {
        self.links.values().find(|link| (link.from, link.to) == (from, to))
    }

    /// Returns how many bytes `from` surely has that `to`, which is behind it, lacks.
    fn lag(&self, from: Node, to: Node) -> u64 {
        self.members[from].sure.saturating_sub(self.members[to].received)
    }

    /// Fails a node for this reason, whether it is in the order or not.
    fn fail(&mut self, node: Node, why: Why) {
        if self.members[node].tree == Tree::Failed {
            return;
        }
        self.members[node].tree = Tree::Failed;
        if self.order.contains(&node) {
            self.take_out(node, why);
        } else {
            self.actions.push_back(Action::Out(node, why));
        }
    }

    /// Takes a node out of the order, once.
    fn take_out(&mut self, node: Node, why: Why) {
        let member = &mut self.members[node];
        if !member.is_heard && member.tree == Tree::Open {
            member.tree = Tree::Failed;
        }
        let Some(at) = self.order.iter().position(|&other| other == node) else { return };
        member.is_out = true;
        // A node that has the whole stream makes its tree from that. Any other node needs a copy.
        if !member.has_all {
            self.fall_behind(node);
        }
        self.order.remove(at);
        self.out(node, why);
        if at == 0 {
            self.behead();
        }
    }

    /// Records that a node's tree takes no more of the stream.
    fn fall_behind(&mut self, node: Node) {
        let member = &mut self.members[node];
        member.is_behind = true;
        if self.lag != Lag::Copied && member.tree == Tree::Open {
            member.tree = Tree::Failed;
        }
    }

    fn out(&mut self, node: Node, why: Why) {
        self.actions.push_back(Action::Out(node, why));
        let member = &self.members[node];
        if member.is_heard && !member.has_all && node != SOURCE {
            self.actions.push_back(Action::Leave(node));
        }
    }

    /// Handles the loss of the first node. Nodes that lack something get it from nodes that have the whole tree.
    fn behead(&mut self) {
        while let Some(&first) = self.order.first() {
            let member = &mut self.members[first];
            if member.has_all {
                break;
            }
            member.is_out = true;
            self.fall_behind(first);
            self.order.remove(0);
            self.out(first, Why::SourceLost);
        }
    }

    /// Derives actions from the new state.
    fn settle(&mut self) {
        if self.has_ended {
            return;
        }
        self.blame_forgers();
        self.stop_links();
        self.begin_links();
        self.say_next();
        self.prove();
        self.copy();
        self.end();
    }

    fn stop_links(&mut self) {
        let behind: BTreeMap<Node, Node> = self.order.windows(2).map(|two| (two[0], two[1])).collect();
        for (&id, link) in &mut self.links {
            let is_wanted = behind.get(&link.from) == Some(&link.to);
            if !is_wanted && !link.is_stopping {
                link.is_stopping = true;
                self.actions.push_back(Action::Stop(id));
            }
        }
    }

    fn begin_links(&mut self) {
        // A new link takes the place of a link that is being stopped, which may take long if its other end is not
        // heard.
        let busy = || self.links.values().filter(|link| !link.is_stopping);
        let sending: BTreeSet<Node> = busy().map(|link| link.from).collect();
        let receiving: BTreeSet<Node> = busy().map(|link| link.to).collect();
        for at in 1..self.order.len() {
            let (from, to) = (self.order[at - 1], self.order[at]);
            let is_busy = sending.contains(&from) || receiving.contains(&to);
            let is_suspect = self.broken.iter().any(|one| (one.from, one.to) == (from, to));
            if is_busy || is_suspect || self.members[to].has_all {
                continue;
            }
            let link = self.begun;
            self.begun += 1;
            let is_first = !std::mem::replace(&mut self.members[from].has_fed, true);
            // Counts from now on, because a hostile end may send without ever reporting that the two have met.
            let is_new = self.members[to].fed_by.insert(from);
            self.links.insert(link, Link { from, to, up_since: None, is_stopping: false, is_first, is_new });
            self.actions.push_back(Action::Connect { link, from, to });
        }
    }

    fn say_next(&mut self) {
        for (at, &node) in self.order.iter().enumerate() {
            let has_next = at + 1 < self.order.len();
            if self.members[node].has_next != has_next {
                self.members[node].has_next = has_next;
                self.actions.push_back(Action::Next(node, has_next));
            }
        }
        for node in 1..self.members.len() {
            let member = &mut self.members[node];
            if member.is_out && member.has_next && member.is_heard {
                member.has_next = false;
                self.actions.push_back(Action::Next(node, false));
            }
        }
    }

    fn prove(&mut self) {
        if !self.has_proof {
            return;
        }
        // A node that was told to leave may have taken the rest by then, and waits for the proof. If it has left, it
        // ignores this.
        let may_have_all = |member: &Member| self.lag == Lag::Copied && !member.is_over;
        for (node, member) in self.members.iter_mut().enumerate().skip(1) {
            if member.is_heard && !member.is_proven && (!member.is_behind || may_have_all(member)) {
                member.is_proven = true;
                self.actions.push_back(Action::Prove(node));
            }
        }
    }

    fn end(&mut self) {
        // Nodes to which no other node can give anything any more have failed.
        let can_give = |member: &Member| member.is_heard && member.tree != Tree::Failed;
        let is_source_there = self.members[SOURCE].is_heard;
        let gives = |member: &Member| can_give(member) && member.tree == Tree::Done && member.may_serve;
        let is_any_whole = self.is_provable && self.members[1..].iter().any(gives);
        let is_any_coming = self.order.iter().any(|&node| node != SOURCE && self.members[node].tree == Tree::Open);
        if !is_source_there && !is_any_whole && (!is_any_coming || !self.has_proof) {
            for node in 1..self.members.len() {
                let is_silent = self.is_silent(node, self.ticked);
                let member = &mut self.members[node];
                if member.tree == Tree::Open && (member.is_behind || !self.has_proof) {
                    member.tree = Tree::Failed;
                    // That it does not answer is the better reason, and is known already.
                    if member.is_behind && (member.is_over || !is_silent) {
                        self.actions.push_back(Action::Out(node, Why::NoGiver));
                    }
                }
            }
        }
        if self.expected == 0 && self.members[1..].iter().all(|member| member.tree != Tree::Open) {
            self.has_ended = true;
            self.actions.push_back(Action::End);
        }
    }
}

mod blame;
mod claims;
mod copies;
mod pace;

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
