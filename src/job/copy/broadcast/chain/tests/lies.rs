//! Reports that change, or come late: no other node looks slow because of them.

use super::*;

/// Runs a simulation in which one host lies, and returns its outcome. Every host that does not lie must have the tree.
fn told(seed: u64, lie: Lie) -> (World, Node) {
    let hosts = 2 + (seed % 6) as usize;
    let mut world = World::new(seed, hosts, 600 + seed % 300);
    let liar = 1 + world.below(hosts as u64) as usize;
    world.peers[liar].lie = Some(lie);
    world.peers[liar].rate = 1 + world.below(8);
    world.run(|_| {});
    for node in (1..=hosts).filter(|&node| node != liar) {
        let is_whole = world.chain.tree(node) == Tree::Done && world.peers[node].received == world.length;
        assert!(is_whole, "seed {seed}: {node} of {hosts}, {liar} lies: {lie:?}: {:?}", world.chain);
    }
    (world, liar)
}

/// No other host is passed over because of what one host says, however that changes.
#[test]
fn words_alone_harm_nobody() {
    let second = Duration::from_secs(1);
    let lies = [
        Lie::Early(20, second),
        Lie::Early(300, second),
        Lie::Early(300, 2 * second),
        Lie::Late(second),
        Lie::Late(2 * second),
        Lie::Late(4 * second),
        Lie::Leaps,
        Lie::Passes(20),
        Lie::Passes(300),
        Lie::Passes(u64::MAX),
        Lie::Falls,
        Lie::Wild,
    ];
    for seed in seeds(72) {
        let lie = lies[(seed / 6) as usize % lies.len()];
        let (world, liar) = told(seed, lie);
        let is_blamed = world.outs.iter().any(|(out, _)| *out != liar);
        assert!(!is_blamed, "seed {seed}: {liar} lies: {lie:?}: {:?}", world.outs);
    }
}

/// A node that stands still, or gives nothing, and claims to go on, does not hold up the others for ever.
#[test]
fn words_hold_nobody_for_ever() {
    for seed in seeds(24) {
        for lie in [Lie::Creeps(1), Lie::Creeps(4), Lie::Starves(1), Lie::Starves(4)] {
            let (world, liar) = told(seed, lie);
            let limit = 20 * STALL;
            assert!(world.now < limit, "seed {seed}: {liar} lies: {lie:?}: {:?} {:?}", world.now, world.outs);
        }
    }
}

/// In the first seconds of a link, one of its ends may say anything. That gives no rate by which another node is slow,
/// even after the other end confirms the amount.
#[test]
fn a_rate_is_what_both_ends_bear_out() {
    // How much of 4000 the first host and the source report to have gone through the hop after a second.
    for (said, passed) in [(100, 100), (4000, 100), (100, 4000), (100, 0), (0, 100)] {
        let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
        while let Some(action) = chain.poll() {
            if let Action::Connect { link, .. } = action {
                chain.link_up(link, Duration::ZERO);
            }
        }
        for second in 1..=40 {
            let now = Duration::from_secs(second);
            let state = |received, passed| BroadcastState { received, passed, ..BroadcastState::default() };
            let at = |first| if second == 1 { first } else { 100 * second };
            chain.state(SOURCE, &state(4000, at(passed)), now);
            chain.state(1, &state(at(said), 0), now);
        }
        let peak = chain.members[1].peak();
        assert_eq!(peak, 100.0, "{said} {passed}");
    }
}

/// While the caller is stopped, reports pile up and then come at once. They show no node's real rate.
#[test]
fn words_that_have_waited_are_no_rate() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
    let say = |chain: &mut Chain, tenths: u64, now: Duration| {
        let state = |received, passed| BroadcastState { received, passed, ..BroadcastState::default() };
        chain.state(SOURCE, &state(100_000, 10 * tenths), now);
        chain.state(1, &state(10 * tenths, 0), now);
    };
    (1..=50).for_each(|tenths| say(&mut chain, tenths, Duration::from_millis(100 * tenths)));
    (51..=350).for_each(|tenths| say(&mut chain, tenths, Duration::from_millis(35_000 + tenths / 10)));
    (352..=400).for_each(|tenths| say(&mut chain, tenths, Duration::from_millis(100 * tenths)));
    let (rate, peak) = (chain.members[1].rate(), chain.members[1].peak());
    assert!((90.0..=110.0).contains(&rate) && (90.0..=110.0).contains(&peak), "{rate} {peak}");
}

/// A node that is out, or says that it has everything, and only keeps reporting, is not waited for without end.
#[test]
fn one_that_talks_on_and_never_ends_is_given_up() {
    let state = |received, written, has_all| BroadcastState { received, written, has_all, ..BroadcastState::default() };
    type Words = fn(u64) -> (u64, u64, bool);
    let told: [(Words, u64); 6] = [
        (|_| (0, 0, false), 360),
        // It was out before it says that it has everything.
        (|second| if second < 20 { (0, 0, false) } else { (100, 100, true) }, 2000),
        (|_| (100, 100, true), 1900),
        (|second| (100, 100, second % 2 == 0), 1900),
        (|second| (100, (second / 20).min(99), true), 12_000),
        // Grows by just enough to count, starting from nothing.
        (|second| (100, (second / 10).min(99), second % 2 == 0), 12_000),
    ];
    for (at, (words, limit)) in told.into_iter().enumerate() {
        let mut chain = Chain::new(4, SPOOL, STALL, Lag::Copied);
        chain.proof(100, true);
        let mut given_up = None;
        for tenths in 0..10 * limit {
            let now = Duration::from_millis(100 * tenths);
            chain.state(SOURCE, &BroadcastState { passed: 100, ..state(100, 0, true) }, now);
            let (received, written, has_all) = words(tenths / 10);
            chain.state(2, &state(received, written, has_all), now);
            chain.tick(now);
            while let Some(action) = chain.poll() {
                match action {
                    Action::Connect { link, .. } => chain.link_up(link, now),
                    Action::Stop(link) => chain.link_over(link, LinkEnd::Broken, now),
                    Action::Leave(node) if node != 2 => chain.tree_over(node, false),
                    _ => {}
                }
            }
            for node in [1, 3] {
                chain.state(node, &state(100, 100, true), now);
                chain.tree_over(node, true);
            }
            if chain.has_ended() {
                given_up = Some(now);
                break;
            }
        }
        assert!(given_up.is_some_and(|after| after >= Duration::from_secs(30)), "{at}: {given_up:?} {chain:?}");
        assert!(chain.tree(2) == Tree::Failed && [1, 3].iter().all(|&node| chain.tree(node) == Tree::Done), "{at}");
    }
}

/// Written data has to reach a disk. The more data, the longer that may take.
#[test]
fn one_that_has_much_to_finish_is_waited_for() {
    let length = 3000 << 20;
    let mut chain = Chain::new(2, SPOOL, STALL, Lag::Copied);
    chain.proof(length, true);
    let ended = (0..6000).find(|&second| {
        let now = Duration::from_secs(second);
        for node in [SOURCE, 1] {
            let state =
                BroadcastState { received: length, written: length, has_all: true, ..BroadcastState::default() };
            chain.state(node, &state, now);
        }
        chain.tick(now);
        chain.has_ended()
    });
    assert!(ended.is_some_and(|second| (4800..4810).contains(&second)), "{ended:?}");
}

/// A node that has surely taken everything, and says that it has nothing, does not keep the node behind it waiting.
#[test]
fn one_that_has_taken_all_cannot_hide_that() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
    let (mut to_first, mut ended) = (None, None);
    for tenths in 0..1000 {
        let now = Duration::from_millis(100 * tenths);
        let all = BroadcastState { received: 100, passed: 100, has_all: true, ..BroadcastState::default() };
        chain.state(SOURCE, &all, now);
        (1..=2).for_each(|node| chain.state(node, &BroadcastState::default(), now));
        if tenths == 10 {
            chain.link_over(to_first.expect("it was begun"), LinkEnd::Done, now);
            chain.proof(100, true);
            chain.tree_over(SOURCE, true);
            chain.tree_over(1, true);
        }
        chain.tick(now);
        while let Some(action) = chain.poll() {
            match action {
                Action::Connect { link, from, .. } => {
                    if from == SOURCE {
                        to_first.get_or_insert(link);
                    }
                    chain.link_up(link, now);
                }
                Action::Stop(link) => chain.link_over(link, LinkEnd::Broken, now),
                Action::Leave(node) => chain.tree_over(node, false),
                Action::Copy { from, to } => chain.copy_over(from, to, CopyEnd::Made),
                _ => {}
            }
        }
        if chain.has_ended() {
            ended.get_or_insert(now);
        }
    }
    assert!(ended.is_some_and(|after| after <= Duration::from_secs(1) + 2 * STALL), "{ended:?} {chain:?}");
    assert!((1..=2).all(|node| chain.tree(node) == Tree::Done), "{chain:?}");
}
