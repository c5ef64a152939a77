//! Who sends to whom in a broadcast, and what becomes of that when hosts or connections fail.
//!
//! A pure state machine: events go in, actions come out ([`Chain::poll`]), and the time is an argument. It decides alone;
//! hosts do not vote. Nodes are numbers: 0 is the source, the others are the hosts in the order of the chain.
//!
//! The stream goes from each node to the next one in the order. A node keeps what the next but one lacks, so when
//! one is taken out of the order, the node behind it goes on with the one before it from where it was. A node that is
//! taken out and is still heard gets its tree by an ordinary copy, from a node that is done.
//!
//! # What holds
//!
//! * A node sends to at most one node at a time and receives from at most one: a link begins only after those of the
//!   same ends are over, or are to end and replaced by it.
//! * A node is taken out once, and every node ends as done or failed.
//! * What nodes say of themselves is believed no further than the node before them and the length of the stream allow
//!   (`chain/claims.rs`).
//! * Nothing waits without a deadline: a link that carries nothing although there is something to send is given up after
//!   the time that the user allows, and a node that has only to end its own part is not believed for ever that it is at it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::control::frames::BroadcastState;

use copies::COPIES_AT_ONCE;
use pace::{Pace, SLOWER};

/// A node: 0 is the source.
pub(super) type Node = usize;

/// Names a link of the chain; none is used twice.
pub(super) type LinkId = u32;

/// The source.
pub(super) const SOURCE: Node = 0;

/// A tree that is always busier than this may be what the others wait for.
const BUSY_PERMILLE: u16 = 900;

/// Nodes say how far they are at least once a second: one that has not for so long may be gone.
const SILENT_MIN: Duration = Duration::from_secs(2);

/// What becomes of a node that is too slow for the others, or out of the chain with less than all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::job) enum Lag {
    /// Its tree is copied to it later.
    Copied,
    /// It has failed: a stream comes once.
    Dropped,
    /// One that is slow is waited for, however long; one that is out has failed.
    Held,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Have the stream sent from one node to the other.
    Connect { link: LinkId, from: Node, to: Node },
    /// Have both ends of a link end; [`Chain::link_over`] answers.
    Stop(LinkId),
    /// Tell a node whether another one is behind it.
    Next(Node, bool),
    /// Have a node make no more of its tree of the stream; [`Chain::tree_over`] answers.
    Leave(Node),
    /// Tell a node what the stream must have been.
    Prove(Node),
    /// Copy the tree from one node, which has it, to another; [`Chain::copy_over`] answers.
    Copy { from: Node, to: Node },
    /// Measure for a moment how fast the source can send to a node; [`Chain::probe_over`] answers.
    Probe(Node),
    /// A node is out of the chain, for this reason.
    Out(Node, Why),
    /// All nodes are done or have failed.
    End,
}

/// Why a node is out of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its agent is not heard any more.
    Lost,
    /// Its connections broke, or could not be made.
    CutOff,
    /// It took nothing for as long as the user allows.
    StoodStill,
    /// It was much slower than the others.
    Slow,
    /// The node before it no longer keeps what it lacks.
    TooFar,
    /// It could not go on, as it has said itself.
    Failed,
    /// Its disk has written nothing for long.
    DiskStill,
    /// It had only to end its own part, and has not.
    Endless,
    /// The source is lost, and no node before it has all.
    SourceLost,
    /// What it was given is not what the source has sent.
    Misled,
    /// It says what cannot be.
    Lied,
    /// It has passed on something else than what it says that it got.
    Forged,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// The receiving node has the end of the stream.
    Done,
    /// It was stopped, or broke, or its ends did not meet.
    Broken,
    /// What the receiving node lacks is no longer kept.
    NotKept,
    /// The sending node could not go on.
    FromFailed,
    /// The receiving node could not go on.
    ToFailed,
}

/// How an ordinary copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    /// The tree is there, and proven.
    Made,
    /// What came is not what the source has.
    Forged,
    /// The receiving node could not go on.
    ToFailed,
    /// Something else went wrong.
    Broken,
}

/// How far a node's own tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// It is being made of the stream, or will be copied.
    Open,
    /// It is there, and proven.
    Done,
    /// It will never be.
    Failed,
}

#[derive(Clone, Debug)]
struct Member {
    /// Its agent is heard.
    is_heard: bool,
    is_out: bool,
    /// Its tree takes no more of the stream: it has to be copied.
    is_behind: bool,
    /// Nothing is made of the stream any more, so its tree may be copied.
    is_over: bool,
    tree: Tree,
    /// How much it has, and has passed on, as it says itself; and that this is all.
    said: u64,
    passed: u64,
    says_all: bool,
    /// The most that it may have, and what others bear out: see [`Chain::learn`].
    received: u64,
    sure: u64,
    has_all: bool,
    /// When it last got more, or a link to it came up; and how far it was then, by the word of both ends of the link, and by
    /// that of one.
    moved: Duration,
    reached: (u64, u64),
    /// When it last said how far it is.
    spoke: Duration,
    /// What its own tree has, when that last grew, and whether it lacks something that is there.
    written: u64,
    wrote: Duration,
    /// When that had last grown by much, and how much it was then.
    wrote_much: (Duration, u64),
    is_unwritten: bool,
    /// Since when nothing is left to it but to end its own part: it is out, or has all and its proof.
    last_since: Option<Duration>,
    /// How fast it takes the stream: by its own word, and by that of those before it.
    taken: Pace,
    given: Pace,
    /// Since when it has been much slower than others.
    slow_since: Option<Duration>,
    /// How much its own tree has to do, and since when that has been too much for it.
    busy_permille: u16,
    busy_since: Option<Duration>,
    /// It gives its tree to so many others.
    serves: u32,
    is_served: bool,
    copies: u32,
    /// It has a part in the stream, so it says how far it is.
    speaks: bool,
    /// Nodes from which it could not be copied.
    tried: Vec<Node>,
    /// It was given something else than what the source has: it believes the source alone.
    wants_source: bool,
    /// What it got of the stream was not the source's, or was.
    is_misled: bool,
    is_proof_met: bool,
    /// Who gave it the stream.
    fed_by: BTreeSet<Node>,
    has_next: bool,
    /// A link from it has been begun.
    has_fed: bool,
    is_proven: bool,
    /// Its tree is the source's and nothing else, so others may have it.
    may_serve: bool,
    /// It needs a copy, and there is nobody who could give it one now or later: since when.
    stranded: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    from: Node,
    to: Node,
    up_since: Option<Duration>,
    is_stopping: bool,
    /// Its beginning has never sent to anybody else.
    is_first: bool,
    /// It has never sent to this node before.
    is_new: bool,
}

/// Two nodes that lost each other.
#[derive(Clone, Copy, Debug)]
struct Broken {
    from: Node,
    to: Node,
    since: Duration,
}

impl Member {
    /// One of a chain, from the beginning on.
    fn new(now: Duration) -> Self {
        Self {
            is_heard: true,
            is_out: false,
            is_behind: false,
            is_over: false,
            tree: Tree::Open,
            said: 0,
            passed: 0,
            says_all: false,
            received: 0,
            sure: 0,
            has_all: false,
            moved: now,
            reached: (0, 0),
            spoke: now,
            written: 0,
            wrote: now,
            wrote_much: (now, 0),
            is_unwritten: false,
            last_since: None,
            taken: Pace::from(now),
            given: Pace::from(now),
            slow_since: None,
            busy_permille: 0,
            busy_since: None,
            serves: 0,
            is_served: false,
            copies: 0,
            speaks: true,
            tried: Vec::new(),
            wants_source: false,
            is_misled: false,
            is_proof_met: false,
            fed_by: BTreeSet::new(),
            has_next: true,
            has_fed: false,
            is_proven: false,
            may_serve: true,
            stranded: None,
        }
    }
}

/// The state machine.
#[derive(Debug)]
pub(super) struct Chain {
    members: Vec<Member>,
    order: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    begun: LinkId,
    broken: Vec<Broken>,
    /// How often two have met again.
    again: BTreeMap<(Node, Node), u32>,
    /// Bytes of the stream that a node keeps.
    spool_bytes: u64,
    stall: Duration,
    lag: Lag,
    /// Copies that one node gives at once.
    serves_max: u32,
    /// The heads of the chain whose rates have been compared with that of another link from the source.
    probed: BTreeSet<Node>,
    /// Since when the first link has been what holds all up.
    head_slow_since: Option<Duration>,
    has_proof: bool,
    /// So many hosts may yet join.
    expected: usize,
    /// The length of the stream, once the source has told it, and whether copies that others give can be proven.
    length: Option<u64>,
    is_provable: bool,
    /// Nodes behind which another one has stood still.
    stilled: BTreeSet<Node>,
    ticked: Duration,
    actions: VecDeque<Action>,
    has_ended: bool,
}

impl Chain {
    /// `nodes`: the source among them. `stall`: how long a node may take nothing.
    pub(super) fn new(nodes: usize, spool_bytes: u64, stall: Duration, now: Duration) -> Self {
        let mut chain = Self::at_rest(nodes, spool_bytes, stall, now);
        chain.settle();
        chain
    }

    /// One whose stream cannot be had again.
    pub(super) fn of_stream(nodes: usize, spool_bytes: u64, stall: Duration, lag: Lag, now: Duration) -> Self {
        let mut chain = Self { lag, ..Self::at_rest(nodes, spool_bytes, stall, now) };
        chain.settle();
        chain
    }

    /// One that has not begun anything.
    fn at_rest(nodes: usize, spool_bytes: u64, stall: Duration, now: Duration) -> Self {
        let mut chain = Self {
            members: vec![Member::new(now); nodes],
            order: (0..nodes).collect(),
            links: BTreeMap::new(),
            begun: 0,
            broken: Vec::new(),
            again: BTreeMap::new(),
            spool_bytes,
            stall,
            lag: Lag::Copied,
            serves_max: 1,
            probed: BTreeSet::new(),
            head_slow_since: None,
            has_proof: false,
            expected: 0,
            length: None,
            is_provable: false,
            stilled: BTreeSet::new(),
            ticked: now,
            actions: VecDeque::new(),
            has_ended: false,
        };
        if let Some(last) = chain.members.last_mut() {
            last.has_next = false;
        }
        chain
    }

    /// No chain: each host that joins gets an ordinary copy from the source, a few at a time. So many are expected.
    pub(super) fn of_copies(expected: usize, now: Duration) -> Self {
        let mut chain = Self { serves_max: COPIES_AT_ONCE, expected, ..Self::at_rest(1, 0, Duration::MAX, now) };
        chain.members[SOURCE].tree = Tree::Done;
        chain
    }

    /// What stands at this node is not only the source's.
    pub(super) fn keep_to_itself(&mut self, node: Node) {
        self.members[node].may_serve = false;
    }

    /// The next thing to be done.
    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The node that gives a node the stream; `None` for one that is in the chain no more.
    pub(super) fn before(&self, node: Node) -> Option<Node> {
        self.order.windows(2).find(|two| two[1] == node).map(|two| two[0])
    }

    pub(super) fn tree(&self, node: Node) -> Tree {
        self.members[node].tree
    }

    /// So many more hosts may join; there is no end before they have, or will not.
    pub(super) fn expect(&mut self, hosts: usize) {
        self.expected += hosts;
        self.settle();
    }

    /// One that was expected will not join.
    pub(super) fn will_not_join(&mut self) {
        self.expected = self.expected.saturating_sub(1);
        self.settle();
    }

    /// Nobody can have all of what could not be read.
    pub(super) fn is_hopeless(&self) -> bool {
        self.members[SOURCE].tree == Tree::Failed && !self.has_proof
    }

    /// All is done, and nobody can join any more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Nobody is waited for but hosts that may yet join.
    pub(super) fn waits_for_joiners(&self) -> bool {
        self.expected > 0 && self.members[1..].iter().all(|member| member.tree != Tree::Open)
    }

    /// One that was expected joins: it gets its tree by an ordinary copy. `may_serve`: others may have it from there.
    pub(super) fn join(&mut self, may_serve: bool, now: Duration) -> Node {
        self.expected = self.expected.saturating_sub(1);
        let may_serve = may_serve && self.serves_max == 1;
        let tree = if self.is_hopeless() { Tree::Failed } else { Tree::Open };
        let (is_out, is_behind, is_over) = (true, true, true);
        let joined =
            Member { is_out, is_behind, is_over, has_next: false, speaks: false, may_serve, tree, ..Member::new(now) };
        self.members.push(joined);
        self.settle();
        self.members.len() - 1
    }

    /// Each node that is in the chain is connected with the one before it, or has all of a stream so short that the link between
    /// them is over before the others are up.
    pub(super) fn is_connected(&self) -> bool {
        let is_up = |two: &[Node]| self.link(two[0], two[1]).is_some_and(|link| link.up_since.is_some());
        self.order.windows(2).all(|two| is_up(two) || self.members[two[1]].has_all)
    }

    /// The two ends of a link have met. It may be said again.
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

    /// The receiving end of a link says that nothing came by it; said before [`Chain::link_over`].
    pub(super) fn fed_nothing(&mut self, link: LinkId) {
        if let Some(&Link { from, to, is_new: true, .. }) = self.links.get(&link) {
            self.members[to].fed_by.remove(&from);
        }
    }

    /// The nodes at the ends of a link.
    pub(super) fn ends(&self, link: LinkId) -> Option<(Node, Node)> {
        self.links.get(&link).map(|link| (link.from, link.to))
    }

    /// A link is to end, whatever becomes of it.
    pub(super) fn is_stopping(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.is_stopping)
    }

    /// Both ends of a link are over, or will never be heard of again.
    pub(super) fn link_over(&mut self, id: LinkId, end: LinkEnd, now: Duration) {
        let Some(Link { from, to, is_stopping, .. }) = self.links.remove(&id) else { return };
        match end {
            LinkEnd::Done => self.members[to].has_all = true,
            // What ends of a link that is stopped have to say of that is about nobody.
            _ if is_stopping => {}
            LinkEnd::NotKept => self.take_out(to, Why::TooFar),
            LinkEnd::ToFailed => self.take_out(to, Why::Failed),
            LinkEnd::FromFailed => self.take_out(from, Why::Failed),
            LinkEnd::Broken => {
                if self.are_neighbours(from, to) {
                    self.broken.push(Broken { from, to, since: now });
                }
            }
        }
        self.judge(now);
        self.settle();
    }

    /// A node's agent is not heard any more.
    pub(super) fn lost(&mut self, node: Node) {
        self.members[node].is_heard = false;
        self.take_out(node, Why::Lost);
        self.settle();
    }

    /// How far a node has come.
    pub(super) fn state(&mut self, node: Node, state: &BroadcastState, now: Duration) {
        let &BroadcastState { received, written, passed, has_all, is_behind, busy_permille, .. } = state;
        let is_full = received.saturating_sub(written) >= self.spool_bytes / 4;
        let member = &mut self.members[node];
        member.spoke = now;
        // What has taken all is still to finish it. It does not lack anything again.
        let had_all = has_all || member.says_all;
        if written > member.written || received == written && !had_all {
            member.wrote = now;
        }
        // Where others wait for it, it is not enough to say a byte more now and then. What it lacks is in its spool, and no more.
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

    /// A node's own tree has been read or made, or cannot be.
    pub(super) fn tree_over(&mut self, node: Node, is_made: bool) {
        if node == SOURCE && !is_made && !self.has_proof {
            // Nobody can have all, and no copy of it would come further.
            self.members.iter_mut().filter(|member| member.tree == Tree::Open).for_each(|it| it.tree = Tree::Failed);
        }
        let member = &mut self.members[node];
        member.is_over = true;
        member.is_proof_met |= is_made && node != SOURCE && !member.is_behind;
        // What is behind is copied.
        if member.tree == Tree::Open && (is_made || !member.is_behind) {
            member.tree = if is_made { Tree::Done } else { Tree::Failed };
        }
        self.check(node);
        self.settle();
    }

    /// The source has said what the stream was: its length. `is_provable`: also what a copy of the tree must be.
    pub(super) fn proof(&mut self, length: u64, is_provable: bool) {
        (self.has_proof, self.length, self.is_provable) = (true, Some(length), is_provable);
        (1..self.members.len()).for_each(|node| self.check(node));
        self.settle();
    }

    /// The source could send so many bytes a second to a node that is not the head of the chain.
    pub(super) fn probe_over(&mut self, rate: f64) {
        let Some(&head) = self.order.get(1) else { return };
        if self.probed.contains(&head) && self.members[head].rate() * SLOWER < rate {
            self.take_out(head, Why::Slow);
        }
        self.settle();
    }

    /// Time has passed; called some times a second.
    pub(super) fn tick(&mut self, now: Duration) {
        // This process was stopped for a while: nobody else was to blame.
        let slept = now.saturating_sub(self.ticked);
        if slept > self.stall / 2 {
            for member in &mut self.members {
                member.moved += slept;
                member.spoke += slept;
                member.wrote += slept;
                member.wrote_much.0 += slept;
                member.last_since = member.last_since.map(|since| since + slept);
            }
        }
        self.ticked = now;
        for at in 0..self.order.len() {
            self.learn(self.order[at], now);
        }
        self.judge(now);
        self.give_up(now);
        self.excuse(now);
        if let Some(node) = self.still(now) {
            // Where the one behind it has gone for the same reason, it is what both had in common.
            let before = self.before(node).filter(|&before| before != SOURCE);
            let node = before.filter(|&before| !self.stilled.insert(before)).unwrap_or(node);
            self.take_out(node, Why::StoodStill);
            // Those before it may have been waiting for it, and those behind it for what it had.
            for &node in &self.order {
                self.members[node].moved = now;
            }
        } else if self.lag == Lag::Held {
            // Whoever is slow is waited for.
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

    /// Nodes of a chain say how far they are some times a second.
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

    /// Bytes that one node has for sure, and the other, which is behind it, lacks.
    fn lag(&self, from: Node, to: Node) -> u64 {
        self.members[from].sure.saturating_sub(self.members[to].received)
    }

    /// Takes a node out of the order, once.
    fn take_out(&mut self, node: Node, why: Why) {
        let member = &mut self.members[node];
        if !member.is_heard && member.tree == Tree::Open {
            member.tree = Tree::Failed;
        }
        let Some(at) = self.order.iter().position(|&other| other == node) else { return };
        member.is_out = true;
        // One that has all makes its tree of that; any other has to have it copied.
        if !member.has_all {
            self.fall_behind(node);
        }
        self.order.remove(at);
        self.out(node, why);
        if at == 0 {
            self.behead();
        }
    }

    /// A node's tree takes no more of the stream.
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

    /// The first of the chain is gone. Whoever lacks something gets it from those that have a whole tree.
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

    /// Makes actions of what has been learnt.
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
        // A node's new end takes the place of one that is to end, which may take long where the other side is not heard.
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
            // From now on: an end that is hostile may send and never say that the two have met.
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
        // One that was told to leave may have taken the rest by then, and waits for the proof; one that has left ignores it.
        let may_have_all = |member: &Member| self.lag == Lag::Copied && !member.is_over;
        for (node, member) in self.members.iter_mut().enumerate().skip(1) {
            if member.is_heard && !member.is_proven && (!member.is_behind || may_have_all(member)) {
                member.is_proven = true;
                self.actions.push_back(Action::Prove(node));
            }
        }
    }

    fn end(&mut self) {
        // Those that nobody can give anything any more.
        let can_give = |member: &Member| member.is_heard && member.tree != Tree::Failed;
        let is_source_there = self.members[SOURCE].is_heard;
        let gives = |member: &Member| can_give(member) && member.tree == Tree::Done && member.may_serve;
        let is_any_whole = self.is_provable && self.members[1..].iter().any(gives);
        let is_any_coming = self.order.iter().any(|&node| node != SOURCE && self.members[node].tree == Tree::Open);
        if !is_source_there && !is_any_whole && (!is_any_coming || !self.has_proof) {
            for member in &mut self.members[1..] {
                if member.tree == Tree::Open && (member.is_behind || !self.has_proof) {
                    member.tree = Tree::Failed;
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
