//! Words that change, or come late: nobody is slow for them.

use super::*;

/// A simulation in which one host lies, and its outcome. Every host that does not lie has the tree.
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

/// No other is passed over for what one says, however that changes.
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

/// One that stands still, or gives nothing, and says that something goes on: it does not hold the others for ever.
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

/// In the first seconds of a link one of its ends may say anything. That is no rate by which another is slow, also not once
/// the other end bears the amount out.
#[test]
fn a_rate_is_what_both_ends_bear_out() {
    // How much of 4000 the first host, and the source, say to have gone through the hop after a second.
    for (said, passed) in [(100, 100), (4000, 100), (100, 4000), (100, 0), (0, 100)] {
        let mut chain = Chain::new(3, SPOOL, STALL, Duration::ZERO);
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

/// While the caller is stopped words pile up, and come at once: nobody was that fast.
#[test]
fn words_that_have_waited_are_no_rate() {
    let mut chain = Chain::new(3, SPOOL, STALL, Duration::ZERO);
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
