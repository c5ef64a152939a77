//! Chains of streams, where nothing is copied later.

use super::*;

const SPOOL: u64 = 32;
const STALL: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(200);

/// A chain whose links come up as soon as they are begun, with the actions that it has requested.
struct Rig {
    chain: Chain,
    now: Duration,
    asked: Vec<Action>,
    received: Vec<u64>,
}

impl Rig {
    fn new(hosts: usize, lag: Lag) -> Self {
        let chain = Chain::new(hosts + 1, SPOOL, STALL, lag);
        let mut rig = Self { chain, now: Duration::ZERO, asked: Vec::new(), received: vec![0; hosts + 1] };
        assert!(!rig.chain.is_connected());
        rig.act();
        assert!(rig.chain.is_connected());
        rig
    }

    fn act(&mut self) {
        while let Some(action) = self.chain.poll() {
            match action {
                Action::Connect { link, .. } => self.chain.link_up(link, self.now),
                Action::Stop(link) => self.chain.link_over(link, LinkEnd::Broken, self.now),
                Action::Copy { .. } => panic!("a stream comes once"),
                _ => {}
            }
            self.asked.push(action);
        }
    }

    /// Lets some time pass, in which nodes report how much they have received and written.
    fn pass(&mut self, over: Duration, states: &[(Node, u64, u64)]) {
        let until = self.now + over;
        while self.now < until {
            self.now += STEP;
            for &(node, received, _) in states {
                self.received[node] = received;
            }
            for &(node, received, written) in states {
                let busy_permille = if written < received { 1000 } else { 0 };
                let next = self.chain.order.iter().skip_while(|&&other| other != node).nth(1);
                let passed = next.map_or(0, |&next| self.received[next].min(received));
                let state = BroadcastState { received, written, passed, busy_permille, ..BroadcastState::default() };
                self.chain.state(node, &state, self.now);
            }
            self.chain.tick(self.now);
            self.act();
        }
    }

    fn outs(&self) -> Vec<(Node, Why)> {
        let out = |action: &Action| match *action {
            Action::Out(node, why) => Some((node, why)),
            _ => None,
        };
        self.asked.iter().filter_map(out).collect()
    }
}

const HELD_UP: [(Node, u64, u64); 4] = [(0, 96, 96), (1, 64, 64), (2, 32, 0), (3, 32, 32)];

/// Nodes before a node that takes nothing wait for it while it is heard. After that it is to blame, and they are not.
#[test]
fn one_that_is_slow_is_waited_for_as_long_as_it_is_heard() {
    let mut rig = Rig::new(3, Lag::Held);
    rig.pass(40 * STALL, &HELD_UP);
    assert!(rig.outs().is_empty(), "{:?}", rig.outs());
    let others: Vec<_> = HELD_UP.into_iter().filter(|(node, ..)| *node != 2).collect();
    rig.pass(STALL, &others);
    assert_eq!(rig.outs(), [(2, Why::StoodStill)]);
    assert_eq!((rig.chain.tree(2), rig.chain.tree(1), rig.chain.before(3)), (Tree::Failed, Tree::Open, Some(1)));
}

/// Two hosts in a row that say nothing any more are not the fault of the host before them.
#[test]
fn one_behind_which_two_have_gone_stays() {
    let mut rig = Rig::new(4, Lag::Held);
    let all = |received: u64| (0..=4).map(|node| (node, received, received)).collect::<Vec<_>>();
    let stuck = |received: u64, gone: &[Node]| {
        let left = (0..=4).filter(|node| !gone.contains(node));
        left.map(|node| (node, received + if node < 3 { 32 } else { 0 }, received)).collect::<Vec<_>>()
    };
    rig.pass(STEP, &all(64));
    rig.pass(STALL + STEP, &stuck(64, &[3]));
    assert_eq!(rig.outs(), [(3, Why::StoodStill)]);
    rig.pass(STEP, &all(128));
    rig.pass(STALL + STEP, &stuck(128, &[3, 4]));
    assert_eq!(rig.outs(), [(3, Why::StoodStill), (4, Why::StoodStill)]);
}

/// A link that carries nothing is not waited for unless a command is the cause.
#[test]
fn one_whose_command_waits_for_more_is_not_slow() {
    let mut rig = Rig::new(3, Lag::Held);
    rig.pass(2 * STALL, &[(0, 96, 96), (1, 64, 64), (2, 32, 32), (3, 32, 32)]);
    assert_eq!(rig.outs(), [(2, Why::StoodStill)]);
}

/// A source that is silent gives nothing, so nobody behind it stands still. Once it is back, the time begins anew.
#[test]
fn nobody_stands_still_behind_a_source_that_is_silent() {
    for lag in [Lag::Held, Lag::Dropped] {
        let mut rig = Rig::new(3, lag);
        let hosts = [(1, 64, 64), (2, 64, 64), (3, 64, 64)];
        let all = [&[(SOURCE, 96, 96)][..], &hosts].concat();
        rig.pass(Duration::from_secs(1), &all);
        rig.pass(2 * STALL, &hosts);
        rig.pass(STALL - STEP, &all);
        assert_eq!(rig.outs(), [], "{lag:?}");
        rig.pass(2 * STEP, &all);
        assert_eq!(rig.outs(), [(1, Why::StoodStill)], "{lag:?}");
    }
}

#[test]
fn one_that_is_slow_is_dropped_where_that_is_asked_for() {
    let mut rig = Rig::new(3, Lag::Dropped);
    rig.pass(STALL - 2 * STEP, &HELD_UP);
    assert!(rig.outs().is_empty(), "{:?}", rig.outs());
    rig.pass(4 * STEP, &HELD_UP);
    assert_eq!(rig.outs(), [(2, Why::StoodStill)]);
    assert!(rig.asked.contains(&Action::Leave(2)) && rig.chain.tree(2) == Tree::Failed);
}

/// Returns what nodes report in a second in which all go on, and one is always busy.
fn one_busy(second: u64) -> [(Node, u64, u64); 4] {
    let at = |bytes: u64| second * 4 + bytes;
    [(0, at(12), at(12)), (1, at(10), at(10)), (2, at(9), at(1)), (3, at(8), at(8))]
}

/// A node that takes something, but always less than the others could, is left behind after the same time. It still
/// passes the stream on.
#[test]
fn one_that_is_always_busy_is_dropped() {
    for (lag, is_dropped) in [(Lag::Dropped, true), (Lag::Held, false)] {
        let mut rig = Rig::new(3, lag);
        for second in 0..12 {
            rig.pass(Duration::from_secs(1), &one_busy(second));
        }
        assert_eq!(rig.asked.contains(&Action::Leave(2)), is_dropped);
        assert_eq!((rig.chain.tree(2) == Tree::Failed, rig.chain.before(3)), (is_dropped, Some(2)));
        assert_eq!(rig.outs(), [], "{lag:?}");
    }
}

/// A time in which no node is heard does not count. A node that alone has fallen silent is passed over for that.
#[test]
fn one_that_is_not_heard_is_not_busy() {
    let (second, silent) = (Duration::from_secs(1), Duration::from_secs(20));
    let mut rig = Rig::new(3, Lag::Dropped);
    rig.chain.reconnect = Duration::from_secs(30);
    rig.pass(second, &one_busy(0));
    rig.pass(silent, &[]);
    (1..3).for_each(|at| rig.pass(second, &one_busy(at)));
    assert!(!rig.asked.contains(&Action::Leave(2)), "{:?}", rig.asked);
    assert_eq!(rig.outs(), []);

    let mut rig = Rig::new(3, Lag::Dropped);
    (0..2).for_each(|at| rig.pass(second, &one_busy(at)));
    let others: Vec<_> = one_busy(1).into_iter().filter(|(node, ..)| *node != 2).collect();
    rig.pass(18 * STEP, &others);
    assert!(!rig.asked.contains(&Action::Leave(2)) && rig.outs().is_empty(), "{:?}", rig.asked);
    rig.pass(STALL, &others);
    assert_eq!(rig.outs(), [(2, Why::StoodStill)]);
}

/// Nodes with slow trees do not keep each other, unless at least half of the others are as slow as they are.
#[test]
fn several_that_are_always_busy_are_dropped() {
    for (busy, are_dropped) in [(&[2, 4][..], true), (&[2, 3, 4], false), (&[1, 2, 3, 4, 5], false)] {
        let mut rig = Rig::new(5, Lag::Dropped);
        for second in 0..14 {
            let state = |node: Node| {
                let received = second * 4 + 14 - node as u64;
                (node, received, if busy.contains(&node) { received - 8 } else { received })
            };
            rig.pass(Duration::from_secs(1), &[0, 1, 2, 3, 4, 5].map(state));
        }
        for &node in busy {
            let is_dropped = rig.asked.contains(&Action::Leave(node)) && rig.chain.tree(node) == Tree::Failed;
            assert_eq!(is_dropped, are_dropped, "{node} of {busy:?}");
        }
        assert!((1..=5).all(|node| busy.contains(&node) || rig.chain.tree(node) == Tree::Open), "{busy:?}");
        assert_eq!(rig.outs(), [], "{busy:?}");
    }
}

/// All nodes end: those that have the whole stream as done, a node lost before as failed. Then nothing is waited for.
#[test]
fn a_stream_ends_with_the_last_of_its_hosts() {
    for lag in [Lag::Held, Lag::Dropped] {
        let mut rig = Rig::new(3, lag);
        rig.pass(STEP, &HELD_UP);
        rig.chain.lost(1);
        rig.act();
        assert_eq!((rig.chain.tree(1), rig.chain.before(2)), (Tree::Failed, Some(SOURCE)));
        rig.chain.proof(100, false);
        for node in [SOURCE, 2, 3] {
            let state = BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() };
            rig.chain.state(node, &state, rig.now);
        }
        rig.act();
        assert!(rig.asked.contains(&Action::Prove(2)) && rig.asked.contains(&Action::Prove(3)));
        rig.chain.tree_over(2, true);
        rig.chain.tree_over(3, false);
        rig.act();
        assert_eq!((rig.chain.tree(2), rig.chain.tree(3)), (Tree::Done, Tree::Failed));
        assert_eq!(rig.asked.last(), Some(&Action::End));
    }
}

/// A short stream has gone to a host completely before the next host is connected. That link is over, and not waited
/// for.
#[test]
fn a_link_that_is_over_before_the_others_are_up() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Held);
    let asked: Vec<Action> = std::iter::from_fn(|| chain.poll()).collect();
    let links = asked.iter().filter_map(|action| match action {
        Action::Connect { link, .. } => Some(*link),
        _ => None,
    });
    let [first, second] = links.collect::<Vec<_>>()[..] else { panic!("two links: {asked:?}") };
    chain.link_up(first, STEP);
    chain.link_over(first, LinkEnd::Done, STEP);
    assert!(!chain.is_connected());
    chain.link_up(second, STEP);
    assert!(chain.is_connected());
}
