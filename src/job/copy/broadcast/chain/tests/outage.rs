//! Networks that are down for a while, and links that break now and then.

use super::*;

/// How long the user lets lost connections take to come back.
const RECONNECT: Duration = Duration::from_secs(30);

/// Returns a simulation in which no fault has happened, and a moment in which the stream flows.
fn flowing(seed: u64) -> (World, Duration) {
    let mut world = World::new(seed, 2 + (seed % 6) as usize, 600);
    world.chain.reconnect = RECONNECT;
    let begin = Duration::from_millis(500 + world.below(2000));
    (world, begin)
}

/// Returns the same of all kinds: a host that is passed over is served later, or has failed, and may take nothing for a
/// short or a long time.
fn flowing_in_any_way(seed: u64) -> (World, Duration) {
    let (mut world, begin) = flowing(seed);
    world.chain.lag = [Lag::Copied, Lag::Held][(seed / 6 % 2) as usize];
    world.chain.stall = [STALL, 12 * STALL][(seed / 12 % 2) as usize];
    (world, begin)
}

/// Returns how long a network is down that comes back in time.
fn a_while(world: &mut World) -> Duration {
    Duration::from_millis(13_000 + world.below(16_000))
}

/// If the network of the caller is down, no host is heard. All that is lost is the time.
#[test]
fn a_while_in_which_no_host_is_heard_has_nobody_blamed() {
    for seed in seeds(24) {
        let (mut world, begin) = flowing_in_any_way(seed);
        let end = begin + a_while(&mut world);
        world.run(|world| {
            let fault = (begin..end).contains(&world.now).then_some(Fault::CutOff);
            world.peers[1..].iter_mut().for_each(|peer| peer.fault = fault);
        });
        world.check(true);
        assert!(world.now > end && world.outs.is_empty(), "seed {seed}: {:?} {:?}", world.now, world.outs);
        assert_eq!(world.silences, [true, false], "seed {seed}");
    }
}

/// TCP tries again after pauses as long as the time before, so the hosts are heard again one after the other.
#[test]
fn hosts_that_come_back_one_by_one_are_all_waited_for() {
    for seed in seeds(24) {
        let (mut world, begin) = flowing_in_any_way(seed);
        let end = begin + a_while(&mut world);
        let mut ends: Vec<Duration> =
            (0..world.peers.len()).map(|_| end + Duration::from_millis(world.below(9000))).collect();
        // The first must be heard in time.
        ends[1] = end;
        world.run(|world| {
            let now = world.now;
            for (peer, &end) in world.peers.iter_mut().zip(&ends).skip(1) {
                peer.fault = (begin..end).contains(&now).then_some(Fault::CutOff);
            }
        });
        world.check(true);
        assert!(world.outs.is_empty(), "seed {seed}: {:?}", world.outs);
    }
}

/// Lets time pass, in tenths of a second. At each of these, the nodes that are heard report that they go on, and some
/// links break. Returns the nodes that were taken out.
fn outs_of(
    chain: &mut Chain,
    over: impl Iterator<Item = u64>,
    is_heard: impl Fn(Node, u64) -> bool,
    breaks: impl Fn(u64, &Link) -> bool,
) -> Vec<(Node, Why)> {
    let mut outs = go_on(chain, Duration::ZERO);
    for tenths in over {
        let now = Duration::from_millis(100 * tenths);
        for node in (0..chain.members.len()).filter(|&node| is_heard(node, tenths)) {
            let received = tenths + 8 * (chain.members.len() - 1 - node) as u64;
            let passed = received.saturating_sub(8);
            let state = BroadcastState { received, written: received, passed, ..BroadcastState::default() };
            chain.state(node, &state, now);
        }
        let broken = chain.links.iter().filter(|(_, link)| breaks(tenths, link)).map(|(id, _)| *id);
        for link in broken.collect::<Vec<_>>() {
            chain.link_over(link, LinkEnd::Broken, now);
        }
        chain.tick(now);
        outs.extend(go_on(chain, now));
    }
    outs
}

/// What hosts have found out during an outage is heard after it, one after the other. The next outage may follow soon.
#[test]
fn an_outage_soon_after_another_has_nobody_blamed() {
    for lag in [Lag::Copied, Lag::Held] {
        let mut chain = Chain::new(3, SPOOL, STALL, lag).reconnecting(RECONNECT);
        let is_heard = |_: Node, tenths: u64| !(100..200).contains(&tenths) && !(600..700).contains(&tenths);
        let breaks = |tenths: u64, link: &Link| match tenths {
            200 | 700 => link.from == SOURCE,
            205 | 705 => link.from == 1,
            _ => false,
        };
        assert_eq!(outs_of(&mut chain, 1..1000, is_heard, breaks), [], "{lag:?}");
    }
}

/// A host that is cut off while the caller is stopped is not waited for as after an outage.
#[test]
fn a_while_in_which_the_caller_was_stopped_is_no_outage() {
    let mut chain = Chain::new(4, SPOOL, STALL, Lag::Held).reconnecting(RECONNECT);
    let is_heard = |node: Node, tenths: u64| node != 2 || tenths < 50;
    let breaks = |tenths: u64, link: &Link| tenths == 201 && [link.from, link.to].contains(&2);
    let outs = outs_of(&mut chain, (1..50).chain(200..220), is_heard, breaks);
    assert_eq!(outs, [(2, Why::CutOff)]);
}

/// Hosts that stay silent have failed, but not before the time that the user allows.
#[test]
fn hosts_that_are_not_heard_for_too_long_are_given_up() {
    for seed in seeds(6) {
        let (mut world, begin) = flowing(seed);
        world.run(|world| {
            if world.now >= begin {
                world.peers[1..].iter_mut().for_each(|peer| peer.fault = Some(Fault::CutOff));
            }
        });
        let (hosts, took) = (world.peers.len() - 1, world.now - begin);
        assert!((1..=hosts).all(|node| world.chain.tree(node) == Tree::Failed), "seed {seed}: {:?}", world.outs);
        assert!((RECONNECT..RECONNECT + 3 * STALL).contains(&took), "seed {seed}: {took:?}");
    }
}

/// One host that is not heard is not waited for, neither while others are heard nor once these are done.
#[test]
fn one_that_is_gone_is_not_taken_for_a_network_that_is_down() {
    for seed in seeds(12) {
        let (mut world, begin) = flowing(seed);
        let gone = 1 + world.below(world.peers.len() as u64 - 1) as usize;
        world.run(|world| {
            if world.now >= begin {
                world.peers[gone].fault = Some(Fault::CutOff);
            }
        });
        world.check(true);
        assert!(world.now < RECONNECT, "seed {seed}: {:?} {:?}", world.now, world.outs);
    }
}

/// Hosts that are done go on reporting. If these fall silent as well, the network is rather down. If their agents are
/// gone, that is not known.
#[test]
fn the_last_host_is_waited_for_if_those_that_are_done_fall_silent_with_it() {
    for (is_heard, is_lost) in [(true, false), (false, true), (false, false)] {
        let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied).reconnecting(RECONNECT);
        let whole = BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() };
        chain.proof(100, true);
        (0..3).for_each(|node| chain.state(node, &whole, Duration::ZERO));
        chain.tree_over(1, true);
        if is_lost {
            chain.lost(1);
        }
        let ended = (1..60).find(|&second| {
            let now = Duration::from_secs(second);
            chain.state(SOURCE, &whole, now);
            if is_heard {
                chain.state(1, &whole, now);
            }
            chain.tick(now);
            chain.has_ended()
        });
        let is_waited_for = !is_heard && !is_lost;
        let expected = if is_waited_for { 30..45 } else { 5..20 };
        assert!(ended.is_some_and(|second| expected.contains(&second)), "{is_heard} {is_lost}: {ended:?} {chain:?}");
        assert_eq!((chain.tree(1), chain.tree(2)), (Tree::Done, Tree::Failed), "{is_heard} {is_lost}");
    }
}

/// If a host alone could give a copy, and is silent, it is not waited for like a source.
#[test]
fn one_that_could_give_a_copy_is_waited_for_like_any_other() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied).reconnecting(RECONNECT);
    let whole = BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() };
    chain.proof(100, true);
    (0..2).for_each(|node| chain.state(node, &whole, Duration::ZERO));
    chain.tree_over(1, true);
    let last = *chain.links.iter().find(|(_, link)| link.to == 2).expect("it was begun").0;
    chain.link_over(last, LinkEnd::NotKept, Duration::ZERO);
    chain.lost(SOURCE);
    let ended = (1..60).find(|&second| {
        let now = Duration::from_secs(second);
        chain.state(2, &BroadcastState::default(), now);
        chain.tick(now);
        if second == 4 {
            chain.tree_over(2, false);
        }
        chain.has_ended()
    });
    assert!(ended.is_some_and(|second| second < 20), "{ended:?} {chain:?}");
    assert_eq!((chain.tree(1), chain.tree(2)), (Tree::Done, Tree::Failed));
}

/// The same holds for the source alone.
#[test]
fn a_source_that_is_not_heard_for_a_while_has_nobody_blamed() {
    for seed in seeds(24) {
        let (mut world, begin) = flowing(seed);
        let end = begin + a_while(&mut world);
        world.run(|world| {
            let is_stopped = (begin..end).contains(&world.now);
            world.peers[SOURCE].fault = is_stopped.then_some(Fault::Stopped);
        });
        world.check(true);
        assert!(world.now > end && world.outs.is_empty(), "seed {seed}: {:?} {:?}", world.now, world.outs);
    }
}

/// If a link breaks again soon, the node behind it is passed over. A link that has held for a minute is mended each
/// time.
#[test]
fn a_link_that_breaks_now_and_then_is_mended_each_time() {
    for (holds_s, expected) in [(30, &[(1, Why::CutOff)][..]), (61, &[])] {
        let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
        let mut outs = go_on(&mut chain, Duration::ZERO);
        for tenths in 1..(3 * holds_s + 5) * 10 {
            let now = Duration::from_millis(100 * tenths);
            for (node, more) in [(SOURCE, 16), (1, 8), (2, 0)] {
                let received = tenths + more;
                let passed = received.saturating_sub(8);
                let state = BroadcastState { received, written: received, passed, ..BroadcastState::default() };
                chain.state(node, &state, now);
            }
            if tenths % (10 * holds_s) == 0 {
                let first = *chain.links.iter().find(|(_, link)| link.from == SOURCE).expect("it is up").0;
                chain.link_over(first, LinkEnd::Broken, now);
            }
            chain.tick(now);
            outs.extend(go_on(&mut chain, now));
        }
        assert_eq!(outs, expected, "{holds_s} s");
    }
}
