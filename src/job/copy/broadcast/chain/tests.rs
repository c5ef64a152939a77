//! The chain in a world of nodes that die, are cut off, stand still and are slow, at random moments.

use proptest::test_runner::{RngAlgorithm, TestRng};
use rand_core::Rng as _;

use super::*;

const SPOOL: u64 = 32;
const STALL: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);
/// Longer than any simulation can take.
const TOO_LONG: Duration = Duration::from_secs(200);

/// Returns this many seeds, and fifty times as many in a long run of the tests.
fn seeds(count: u64) -> std::ops::Range<u64> {
    0..count * if std::env::var_os("RD_LONG").is_some() { 50 } else { 1 }
}

/// What is wrong with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The node is gone, and the end of its agent is noticed.
    Killed,
    /// Nothing reaches the node any more, and nothing reports that.
    CutOff,
    /// The node is there, but takes and gives nothing.
    Stopped,
    /// The node's own tree cannot be made.
    Full,
}

#[derive(Default)]
struct Peer {
    fault: Option<Fault>,
    received: u64,
    kept_from: u64,
    next: Option<Node>,
    has_next: bool,
    may_leave: bool,
    is_proven: bool,
    is_told: bool,
    /// Number of units that the node takes in a step.
    rate: u64,
    /// Whether it has joined, so that it takes no part in the stream and reports nothing.
    is_joined: bool,
    /// If set, the node is hostile: what it says of itself, and what it gives, is made up.
    lie: Option<Lie>,
}

/// What a hostile node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// It claims to have more than it has.
    More(u64),
    /// It claims to have everything.
    All,
    /// It claims to have more than there is.
    Impossible,
    /// It claims to have, and to have passed on, less than it has.
    Less,
    /// It claims to have passed on nothing.
    Keeps,
    /// It claims to have more than it has, until this time.
    Early(u64, Duration),
    /// It claims to have nothing, and to have passed on nothing, until this time.
    Late(Duration),
    /// It claims to have, and to have passed on, less than it has, in leaps.
    Leaps,
    /// It claims to have passed on more than it has.
    Passes(u64),
    /// It claims to have passed on now more and now less.
    Falls,
    /// It claims something different each time.
    Wild,
    /// It takes no more, and claims to have one unit more every so many seconds.
    Creeps(u64),
    /// It gives nothing more, and claims to have passed on one unit more every so many seconds.
    Starves(u64),
}

impl Lie {
    /// Returns the false report. `dice` is a random number.
    fn told(self, state: &BroadcastState, length: u64, now: Duration, dice: u64) -> BroadcastState {
        let state = state.clone();
        let BroadcastState { received, passed, .. } = state;
        match self {
            Self::More(by) => BroadcastState { received: (received + by).min(length), ..state },
            Self::All => BroadcastState { received: length, has_all: true, ..state },
            Self::Impossible => BroadcastState { received: u64::MAX, passed: u64::MAX, ..state },
            Self::Less => BroadcastState { received: received / 3, passed: passed / 4, has_all: false, ..state },
            Self::Keeps => BroadcastState { passed: 0, ..state },
            Self::Early(by, until) if now < until => Self::More(by).told(&state, length, now, dice),
            Self::Late(until) if now < until => BroadcastState { received: 0, passed: 0, has_all: false, ..state },
            Self::Early(..) | Self::Late(_) => state,
            Self::Leaps => BroadcastState { received: received / 64 * 64, passed: passed / 64 * 64, ..state },
            Self::Passes(by) => BroadcastState { passed: passed.saturating_add(by), ..state },
            Self::Falls => BroadcastState { passed: if dice.is_multiple_of(2) { passed / 2 } else { passed }, ..state },
            Self::Wild => {
                let one_of = |amount: u64, dice: u64| match dice % 6 {
                    0 => 0,
                    1 => amount / 2,
                    2 => amount,
                    3 => amount + 20,
                    4 => amount + 300,
                    _ => u64::MAX,
                };
                let has_all = dice.is_multiple_of(101);
                BroadcastState {
                    received: one_of(received, dice / 7),
                    passed: one_of(passed, dice / 59),
                    has_all,
                    ..state
                }
            }
            Self::Creeps(seconds) => BroadcastState { received: received + now.as_secs() / seconds, ..state },
            Self::Starves(seconds) => BroadcastState { passed: passed + now.as_secs() / seconds, ..state },
        }
    }
}

struct Wire {
    from: Node,
    to: Node,
    is_up: bool,
    since: Duration,
    stopping: bool,
}

/// The nodes, and the connections between them.
struct World {
    seed: u64,
    rng: TestRng,
    chain: Chain,
    now: Duration,
    length: u64,
    peers: Vec<Peer>,
    wires: BTreeMap<LinkId, Wire>,
    copies: Vec<(Node, Node, Duration)>,
    sent_by_source: u64,
    /// When the source reports what the stream was.
    proof_at: Duration,
    is_proof_told: bool,
    outs: Vec<(Node, Why)>,
    silences: Vec<bool>,
    is_ended: bool,
}

impl World {
    fn new(seed: u64, hosts: usize, length: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let received = |node: usize| if node == SOURCE { length } else { 0 };
        let peer = |node: usize| Peer { received: received(node), has_next: node < hosts, rate: 8, ..Peer::default() };
        Self {
            seed,
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
            chain: Chain::new(hosts + 1, SPOOL, STALL, Lag::Copied),
            now: Duration::ZERO,
            length,
            peers: (0..=hosts).map(peer).collect(),
            wires: BTreeMap::new(),
            copies: Vec::new(),
            sent_by_source: 0,
            proof_at: Duration::ZERO,
            is_proof_told: false,
            outs: Vec::new(),
            silences: Vec::new(),
            is_ended: false,
        }
    }

    fn join(&mut self) -> Node {
        let node = self.chain.join(true);
        self.peers.push(Peer { is_told: true, rate: 8, is_joined: true, ..Peer::default() });
        node
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    fn is_well(&self, node: Node) -> bool {
        matches!(self.peers[node].fault, None | Some(Fault::Full))
    }

    fn spoil(&mut self, node: Node, fault: Fault) {
        self.peers[node].fault = Some(fault);
        if fault == Fault::Killed {
            self.chain.lost(node);
        }
        if fault == Fault::Full {
            self.peers[node].is_told = true;
            self.chain.tree_over(node, false);
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.chain.poll() {
            match action {
                Action::Connect { link, from, to } => {
                    let shares = |wire: &Wire| !wire.stopping && (wire.from == from || wire.to == to);
                    assert!(!self.wires.values().any(shares), "seed {}: two links at one end", self.seed);
                    self.wires.insert(link, Wire { from, to, is_up: false, since: self.now, stopping: false });
                }
                // The link may be over by now.
                Action::Stop(link) => self.wires.get_mut(&link).into_iter().for_each(|wire| wire.stopping = true),
                Action::Next(node, has_next) => self.peers[node].has_next = has_next,
                Action::Prove(node) => self.peers[node].is_proven = true,
                // A node that has everything ignores this.
                Action::Leave(node) => self.peers[node].may_leave |= self.peers[node].received < self.length,
                Action::Copy { from, to } => {
                    assert!(self.peers[from].received == self.length, "seed {}: {from} has it not", self.seed);
                    self.copies.push((from, to, self.now));
                }
                Action::Probe(node) => {
                    let steps = 1.0 / STEP.as_secs_f64();
                    let rate = self.peers[node].rate.min(self.peers[SOURCE].rate) as f64 / 2.0 * steps;
                    self.chain.probe_over(if self.is_well(node) { rate } else { 0.0 });
                }
                Action::Out(node, why) => self.outs.push((node, why)),
                Action::Silence(within) => self.silences.push(within.is_some()),
                Action::End => self.is_ended = true,
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let links: Vec<LinkId> = self.wires.keys().copied().collect();
        for id in links {
            let Wire { from, to, is_up, since, stopping } = self.wires[&id];
            let is_broken =
                [from, to].iter().any(|&node| matches!(self.peers[node].fault, Some(Fault::Killed | Fault::CutOff)));
            let age = self.now - since;
            let late = Duration::from_millis(100 + self.below(400));
            let end = if stopping && age > late || is_broken && age > STALL + late {
                Some(LinkEnd::Broken)
            } else if !is_up && !is_broken && age > late {
                let wire = self.wires.get_mut(&id).expect("it is there");
                (wire.is_up, wire.since) = (true, self.now);
                self.chain.link_up(id, self.now);
                (self.peers[to].received < self.peers[from].kept_from).then_some(LinkEnd::NotKept)
            } else {
                None
            };
            if let Some(end) = end {
                self.wires.remove(&id);
                self.chain.link_over(id, end, self.now);
                continue;
            }
            if is_up {
                // The job reports it whenever it looks.
                self.chain.link_up(id, self.now);
            }
            if is_up && !stopping && !is_broken && self.is_well(from) && self.is_well(to) {
                self.carry(id, from, to);
            }
        }
        self.report();
        self.copy();
        self.chain.tick(self.now);
        self.act();
    }

    fn carry(&mut self, id: LinkId, from: Node, to: Node) {
        self.peers[from].next = Some(to);
        let rate = self.peers[to].rate.min(self.peers[from].rate);
        let room = SPOOL - (self.peers[to].received - self.peers[to].kept_from);
        let there = self.peers[from].received - self.peers[to].received;
        let amount = there.min(room).min(1 + self.below(rate));
        let lies = [self.peers[from].lie, self.peers[to].lie];
        let is_held = matches!(lies, [Some(Lie::Starves(_)), _] | [_, Some(Lie::Creeps(_))]);
        if is_held && self.peers[to].received > 64 {
            return;
        }
        self.peers[to].received += amount;
        if from == SOURCE {
            self.sent_by_source += amount;
        }
        // The amount that the host behind it has, or that it has itself if it is the last.
        let mark = |peers: &[Peer], node: Node| match peers[node].next.filter(|_| peers[node].has_next) {
            Some(next) => peers[next].received.min(peers[node].received),
            None if peers[node].has_next => peers[node].kept_from,
            None => peers[node].received,
        };
        let mark_of_next = mark(&self.peers, to);
        let kept = &mut self.peers[from].kept_from;
        *kept = (*kept).max(mark_of_next);
        if !self.peers[to].has_next {
            self.peers[to].kept_from = self.peers[to].received;
        }
        if self.peers[to].received == self.length {
            self.wires.remove(&id);
            self.chain.link_over(id, LinkEnd::Done, self.now);
        }
    }

    /// Returns how much the node behind a node has.
    fn passed(&self, node: Node) -> u64 {
        self.peers[node].next.map_or(0, |next| self.peers[next].received)
    }

    /// Reports the progress of all nodes.
    fn report(&mut self) {
        for node in 1..self.peers.len() {
            if !self.is_well(node) || self.peers[node].is_joined {
                continue;
            }
            let (received, has_all) = (self.peers[node].received, self.peers[node].received == self.length);
            let passed = self.passed(node);
            let state = BroadcastState { received, written: received, passed, has_all, ..BroadcastState::default() };
            let state = match self.peers[node].lie {
                Some(lie @ (Lie::Falls | Lie::Wild)) => lie.told(&state, self.length, self.now, self.rng.next_u64()),
                Some(lie) => lie.told(&state, self.length, self.now, 0),
                None => state,
            };
            self.chain.state(node, &state, self.now);
            let peer = &mut self.peers[node];
            if !peer.is_told && (peer.is_proven && has_all || peer.may_leave) {
                peer.is_told = true;
                self.chain.tree_over(node, has_all && peer.is_proven);
            }
        }
        if self.is_well(SOURCE) {
            let (received, passed) = (self.length, self.passed(SOURCE));
            let state = BroadcastState { received, passed, has_all: true, ..BroadcastState::default() };
            self.chain.state(SOURCE, &state, self.now);
        }
    }

    fn copy(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        for (from, to, since) in copies {
            let are_well = self.is_well(from) && self.is_well(to);
            if self.now - since < Duration::from_secs(1) {
                self.copies.push((from, to, since));
            } else {
                if are_well {
                    self.peers[to].received = self.length;
                }
                let is_forged = self.peers[from].lie.is_some() && are_well;
                let end = match self.peers[to].fault {
                    Some(Fault::Full) => CopyEnd::ToFailed,
                    _ if is_forged => CopyEnd::Forged,
                    _ if are_well => CopyEnd::Made,
                    _ => CopyEnd::Broken,
                };
                self.chain.copy_over(from, to, end);
            }
        }
    }

    fn run(&mut self, mut each: impl FnMut(&mut Self)) {
        self.act();
        while !self.is_ended {
            assert!(self.now < TOO_LONG, "seed {}: {:?}", self.seed, self.chain);
            if !self.is_proof_told && self.now >= self.proof_at {
                self.is_proof_told = true;
                self.chain.proof(self.length, true);
                self.act();
            }
            each(self);
            self.step();
        }
    }

    /// Checks that every healthy node has the tree, and that no node counts as done without the whole tree.
    fn check(&self, is_source_well: bool) {
        for node in 1..self.peers.len() {
            let (tree, peer) = (self.chain.tree(node), &self.peers[node]);
            assert!(tree != Tree::Open, "seed {}: {node} is open", self.seed);
            if tree == Tree::Done {
                assert!(peer.received == self.length, "seed {}: {node} has not all", self.seed);
            } else if is_source_well {
                assert!(peer.fault.is_some(), "seed {}: {node} is well, and failed: {:?}", self.seed, self.chain);
            }
        }
    }
}

#[test]
fn without_faults_each_link_carries_all_once() {
    for hosts in [1, 2, 8, 200] {
        let mut world = World::new(hosts as u64, hosts, 400);
        world.run(|_| {});
        world.check(true);
        assert_eq!(world.sent_by_source, 400, "{hosts} hosts");
        assert!((1..=hosts).all(|node| world.chain.tree(node) == Tree::Done));
    }
}

#[test]
fn whatever_happens_to_some_the_others_get_it() {
    for seed in seeds(120) {
        let mut world = World::new(seed, 2 + (seed % 11) as usize, 200 + seed % 300);
        world.proof_at = Duration::from_millis(seed % 4 * world.below(3000));
        let hosts = world.peers.len() as u64 - 1;
        let mut faults: Vec<(Duration, Node, Fault)> = (0..1 + world.below(hosts.min(4)))
            .map(|_| {
                let fault = [Fault::Killed, Fault::CutOff, Fault::Stopped, Fault::Full][world.below(4) as usize];
                (Duration::from_millis(world.below(6000)), 1 + world.below(hosts) as usize, fault)
            })
            .collect();
        world.run(|world| {
            faults.retain(|&(at, node, fault)| {
                let is_due = at <= world.now;
                if is_due && world.peers[node].fault.is_none() {
                    world.spoil(node, fault);
                }
                !is_due
            });
        });
        world.check(true);
    }
}

#[test]
fn a_large_chain_heals() {
    for seed in seeds(1) {
        let hosts = 13 + World::new(seed, 1, 1).below(188);
        let mut world = World::new(seed, hosts as usize, 600);
        let mut dead = 0;
        world.run(|world| {
            if dead < 8 && world.below(5) == 0 {
                let node = 1 + world.below(hosts) as usize;
                if world.peers[node].fault.is_none() {
                    dead += 1;
                    world.spoil(node, if dead % 2 == 0 { Fault::Killed } else { Fault::CutOff });
                }
            }
        });
        world.check(true);
    }
}

/// What the first host has by then either is enough for the others, or is not, and then all of them report it.
#[test]
fn the_source_may_go_once_a_host_has_everything() {
    for seed in seeds(80) {
        let mut world = World::new(seed, 2 + (seed % 6) as usize, 200);
        let at = Duration::from_millis(world.below(5000));
        let mut had_all = None;
        world.run(|world| {
            if had_all.is_none() && world.now >= at {
                had_all = Some(world.peers[1..].iter().any(|peer| peer.received == world.length));
                world.spoil(SOURCE, Fault::Killed);
            }
        });
        world.check(false);
        if had_all == Some(true) {
            let failed: Vec<Node> =
                (1..world.peers.len()).filter(|&node| world.chain.tree(node) != Tree::Done).collect();
            assert!(failed.is_empty(), "seed {seed}: {failed:?}");
        }
    }
}

/// Begins and ends the connections that a chain wants, and returns the nodes that it has taken out.
fn go_on(chain: &mut Chain, now: Duration) -> Vec<(Node, Why)> {
    let mut outs = Vec::new();
    while let Some(action) = chain.poll() {
        match action {
            Action::Connect { link, .. } => chain.link_up(link, now),
            Action::Stop(link) => chain.link_over(link, LinkEnd::Broken, now),
            Action::Out(node, why) => outs.push((node, why)),
            _ => {}
        }
    }
    outs
}

/// A node that stands still holds up the nodes before it and behind it. They are not to blame, even if they continue
/// later than their neighbours.
#[test]
fn one_that_stands_still_is_blamed_alone() {
    let mut chain = Chain::new(6, SPOOL, STALL, Lag::Copied);
    let mut outs = Vec::new();
    let mut all = |chain: &mut Chain, now: Duration| outs.extend(go_on(chain, now));
    let ms = Duration::from_millis;
    let say = |chain: &mut Chain, node: Node, (received, passed): (u64, u64), now: Duration| {
        chain.state(node, &BroadcastState { received, written: received, passed, ..BroadcastState::default() }, now);
    };
    all(&mut chain, ms(0));
    for at in (200..=9000).step_by(200) {
        let now = ms(at);
        // The third node stops at 1 s. The nodes before it are soon full, and those behind it have all that there is.
        let full = (100 + at / 20).min(180);
        // It is passed over at 6 s. Then the fourth continues. The fifth, and those before them, are heard of later.
        let fourth = if at > 6400 { 140 } else { 100 };
        let second = if at > 6400 { fourth } else { 100 };
        let said = [(full + 64, full + 32), (full + 32, full), (full, second), (100, 100), (fourth, 100), (100, 0)];
        for (node, said) in said.into_iter().enumerate() {
            if node != 3 || at <= 1000 {
                say(&mut chain, node, said, now);
            }
        }
        chain.tick(now);
        all(&mut chain, now);
    }
    assert_eq!(outs, [(3, Why::StoodStill)]);
}

/// Whatever a host says of itself, no other host is passed over for it, and all others get the tree, even if the host
/// behind it lies as well.
#[test]
fn a_host_that_lies_harms_nobody() {
    for seed in seeds(72) {
        let hosts = 2 + (seed % 6) as usize;
        let mut world = World::new(seed, hosts, 600 + seed % 300);
        let lies = [Lie::More(20), Lie::More(300), Lie::All, Lie::Impossible, Lie::Less, Lie::Keeps];
        let liar = 1 + world.below(hosts as u64) as usize;
        world.peers[liar].lie = Some(lies[world.below(6) as usize]);
        world.peers[liar].rate = 1 + world.below(8);
        if seed % 3 == 0 {
            let other = 1 + liar % hosts;
            world.peers[other].lie = Some(lies[world.below(6) as usize]);
        }
        world.run(|_| {});
        for node in 1..=hosts {
            let is_hostile = world.peers[node].lie.is_some();
            let is_whole = world.chain.tree(node) == Tree::Done && world.peers[node].received == world.length;
            assert!(is_hostile || is_whole, "seed {seed}: {node} of {hosts}, {liar} lies: {:?}", world.chain);
            // Two hosts may both hold back what they have passed on, which could not be detected.
            let is_blamed = world.outs.iter().any(|(out, _)| *out == node) && seed % 3 != 0;
            let lie = world.peers[liar].lie;
            assert!(is_hostile || !is_blamed, "seed {seed}: {liar} of {hosts} lies: {lie:?}: {:?}", world.outs);
        }
    }
}

/// A node whose report cannot be true has failed, unless another node may be the cause.
#[test]
fn what_cannot_be_ends_a_host() {
    for (node, said, has_all) in [(1, 101, false), (1, 60, true), (2, 101, false), (2, 60, true)] {
        let mut chain = Chain::new(4, SPOOL, STALL, Lag::Copied);
        let mut outs = Vec::new();
        let mut all = |chain: &mut Chain| {
            while let Some(action) = chain.poll() {
                match action {
                    Action::Connect { link, .. } => chain.link_up(link, Duration::ZERO),
                    Action::Out(node, why) => outs.push((node, why)),
                    _ => {}
                }
            }
        };
        all(&mut chain);
        let state = |received, has_all| BroadcastState { received, has_all, ..BroadcastState::default() };
        chain.state(SOURCE, &state(100, true), Duration::ZERO);
        chain.state(node, &state(said, has_all), Duration::ZERO);
        chain.proof(100, true);
        all(&mut chain);
        // The second node may have been given that.
        if node == 2 {
            chain.tree_over(node, true);
            all(&mut chain);
        }
        assert_eq!(outs, [(node, Why::Lied)]);
        assert_eq!(chain.tree(node), Tree::Failed);
    }
}

/// A node that gets other data than the source has sent gets it from the source, and the node that has changed it
/// fails.
#[test]
fn who_changes_the_stream_is_found() {
    // Nodes that report a wrong stream, and the node that fails for it: the third, which changes the stream; the third,
    // which reports it although it has passed on the right stream; the first, to which the source itself has sent the
    // stream.
    for (misled, failed) in [(&[4, 5][..], 3), (&[3], 3), (&[1], 1)] {
        let mut chain = Chain::new(6, SPOOL, STALL, Lag::Copied);
        chain.proof(100, true);
        let (mut copied, mut is_ended) = (Vec::new(), false);
        let mut act = |chain: &mut Chain| {
            while let Some(action) = chain.poll() {
                match action {
                    Action::Connect { link, .. } => chain.link_up(link, Duration::ZERO),
                    Action::Copy { from, to } => {
                        copied.push((from, to));
                        chain.copy_over(from, to, CopyEnd::Made);
                    }
                    Action::End => is_ended = true,
                    _ => {}
                }
            }
        };
        act(&mut chain);
        for node in 0..6 {
            let state = BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() };
            chain.state(node, &state, Duration::ZERO);
        }
        for node in 1..6 {
            match misled.contains(&node) {
                true => chain.misled(node),
                false => chain.tree_over(node, true),
            }
            act(&mut chain);
        }
        assert!(is_ended);
        assert!(copied.iter().all(|(from, _)| *from == SOURCE), "{copied:?}");
        for node in 1..6 {
            assert_eq!(chain.tree(node) == Tree::Failed, node == failed, "{node} of {misled:?}");
        }
    }
}

/// A node that sends wrong data, and never reports that it has met the node behind it, does not get that node blamed.
/// Data over a link counts from its beginning, unless the receiver says that nothing came.
#[test]
fn who_never_says_that_it_sends_has_nobody_blamed() {
    for was_fed in [true, false] {
        let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
        let mut links = BTreeMap::new();
        let mut act = |chain: &mut Chain| {
            while let Some(action) = chain.poll() {
                match action {
                    Action::Connect { link, from, to } => {
                        links.insert((from, to), link);
                        if from == SOURCE {
                            chain.link_up(link, Duration::ZERO);
                        }
                    }
                    Action::Copy { from, to } => chain.copy_over(from, to, CopyEnd::Made),
                    _ => {}
                }
            }
            links.clone()
        };
        let links = act(&mut chain);
        chain.lost(1);
        if !was_fed {
            chain.fed_nothing(links[&(1, 2)]);
        }
        chain.link_over(links[&(1, 2)], LinkEnd::Broken, Duration::ZERO);
        chain.link_over(links[&(SOURCE, 1)], LinkEnd::Broken, Duration::ZERO);
        act(&mut chain);
        chain.proof(100, true);
        chain.tree_over(SOURCE, true);
        chain.misled(2);
        act(&mut chain);
        assert_eq!(chain.tree(2), if was_fed { Tree::Done } else { Tree::Failed });
    }
}

/// A slow node does not hold up the others, wherever it is, and gets the tree in the end.
#[test]
fn a_slow_host_is_served_later() {
    let others_took = |slow: Option<Node>| {
        let mut world = World::new(7, 8, 4000);
        if let Some(slow) = slow {
            world.peers[slow].rate = 1;
        }
        let mut took = Duration::ZERO;
        world.run(|world| {
            let is_done = |node: Node| world.peers[node].received == world.length;
            if !(1..=8).filter(|&node| Some(node) != slow).all(is_done) {
                took = world.now;
            }
        });
        world.check(true);
        took
    };
    let without = others_took(None);
    for at in 1..=8 {
        let took = others_took(Some(at));
        assert!(took < without.mul_f64(1.2) + 2 * blame::COMPARED_AFTER, "{at}: {took:?}, {without:?} without");
    }
}

#[test]
fn one_that_joins_gets_it_from_another() {
    let mut world = World::new(1, 4, 400);
    world.chain.expect(1);
    let mut joined = None;
    world.run(|world| {
        if joined.is_none() && world.peers[1].received > 300 {
            let node = world.join();
            joined = Some(node);
        }
    });
    world.check(true);
    assert_eq!(world.chain.tree(joined.expect("it has joined")), Tree::Done);
}

/// Hosts that are late or were added: a host that comes gets the tree, a host that does not come is not waited for, and
/// faults of others change nothing.
#[test]
fn late_ones_get_it_whatever_happens_to_others() {
    for seed in seeds(60) {
        let mut world = World::new(seed, 2 + (seed % 7) as usize, 200 + seed % 300);
        let hosts = world.peers.len() as u64 - 1;
        let late = 1 + world.below(5);
        world.chain.expect(late as usize);
        let mut coming: Vec<(Duration, bool)> =
            (0..late).map(|_| (Duration::from_millis(world.below(12_000)), world.below(4) > 0)).collect();
        let fault = [Fault::Killed, Fault::CutOff, Fault::Stopped][world.below(3) as usize];
        let (at, node) = (Duration::from_millis(world.below(6000)), 1 + world.below(hosts) as usize);
        world.run(|world| {
            if at <= world.now && world.peers[node].fault.is_none() {
                world.spoil(node, fault);
            }
            coming.retain(|&(at, comes)| {
                let is_due = at <= world.now;
                match comes {
                    true if is_due => drop(world.join()),
                    false if is_due => world.chain.will_not_join(),
                    _ => {}
                }
                !is_due
            });
        });
        assert!(coming.is_empty(), "seed {seed}: it ended before all had come");
        world.check(true);
    }
}

/// Without a chain, the source gives each host its copy. Failed copies are repeated, and every healthy host gets its
/// tree.
#[test]
fn copies_come_from_the_source_alone() {
    let mut chain = Chain::of_copies(20);
    (1..=20).for_each(|node| assert_eq!(chain.join(true), node));
    let (mut going, mut begun, mut is_ended) = (VecDeque::new(), 0, false);
    while !is_ended {
        while let Some(action) = chain.poll() {
            match action {
                Action::Copy { from, to } => {
                    assert_eq!(from, SOURCE);
                    begun += 1;
                    going.push_back(to);
                }
                Action::End => is_ended = true,
                other => panic!("{other:?}"),
            }
        }
        assert!(going.len() <= COPIES_AT_ONCE as usize);
        if let Some(to) = going.pop_front() {
            // The fifth host is broken, and the copy to the seventh fails once.
            let end = match to {
                5 => CopyEnd::ToFailed,
                7 if begun < 12 => CopyEnd::Broken,
                _ => CopyEnd::Made,
            };
            chain.copy_over(SOURCE, to, end);
        }
    }
    assert!((1..=20).all(|node| (chain.tree(node) == Tree::Done) == (node != 5)));
}

/// A source that cannot be read is not waited for, and no host is blamed for it.
#[test]
fn without_its_source_a_broadcast_ends() {
    let mut chain = Chain::new(4, SPOOL, STALL, Lag::Copied);
    chain.tree_over(SOURCE, false);
    assert!(std::iter::from_fn(|| chain.poll()).any(|action| action == Action::End));
    // The source falls silent, while the hosts do not.
    let mut chain = Chain::new(4, SPOOL, STALL, Lag::Copied);
    let (mut outs, mut is_ended) = (Vec::new(), false);
    for at in (200..=40_000).step_by(200) {
        let now = Duration::from_millis(at);
        for node in 1..4 {
            chain.state(node, &BroadcastState { received: 100, written: 100, ..BroadcastState::default() }, now);
        }
        chain.tick(now);
        while let Some(action) = chain.poll() {
            match action {
                Action::Connect { link, .. } => chain.link_up(link, now),
                Action::Stop(link) => chain.link_over(link, LinkEnd::Broken, now),
                Action::Leave(node) => chain.tree_over(node, false),
                Action::Out(node, why) => outs.push((node, why)),
                Action::End => is_ended = true,
                _ => {}
            }
        }
    }
    assert!(is_ended && outs.first() == Some(&(SOURCE, Why::Lost)), "{outs:?}");
    assert!(outs[1..].iter().all(|(_, why)| matches!(why, Why::SourceLost | Why::NoGiver)), "{outs:?}");
}

mod lies;
mod outage;
mod stuck;
