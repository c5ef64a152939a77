//! Disks and copies that stand still: nodes with such disks, one or several, are not waited for without end, and
//! neither are others because of them.

use super::*;

/// Has nodes report for some time how much they have written of the 100 units that all have. Returns the copies begun.
fn pass(chain: &mut Chain, over: std::ops::Range<u64>, written: &[(Node, u64)]) -> Vec<(Node, Node)> {
    let mut copies = Vec::new();
    for at in (over.start * 1000..over.end * 1000).step_by(200) {
        let now = Duration::from_millis(at);
        for &(node, written) in written {
            let state = BroadcastState { received: 100, written, has_all: true, ..BroadcastState::default() };
            chain.state(node, &state, now);
        }
        chain.tick(now);
        while let Some(action) = chain.poll() {
            if let Action::Copy { from, to } = action {
                copies.push((from, to));
                chain.copy_over(from, to, CopyEnd::Made);
            }
        }
    }
    copies
}

/// Returns a chain whose stream is proven. Its nodes still have to finish their trees.
fn proven(nodes: usize) -> Chain {
    let mut chain = Chain::new(nodes, SPOOL, STALL, Lag::Copied);
    chain.proof(100, true);
    chain
}

/// The state of a node that has written the whole stream.
fn whole() -> BroadcastState {
    BroadcastState { received: 100, written: 100, has_all: true, ..BroadcastState::default() }
}

/// Two nodes are done, and this many more are expected.
fn with_two_done(late: usize) -> Chain {
    let mut chain = proven(3);
    chain.expect(late);
    for node in 0..3 {
        chain.state(node, &whole(), Duration::ZERO);
    }
    chain.tree_over(1, true);
    chain.tree_over(2, true);
    chain
}

/// They hold up no other node for good, neither a single one nor several, as on a server that hangs.
#[test]
fn disks_that_stand_still_are_given_up() {
    for still in [&[(2, 40)][..], &[(2, 40), (3, 0)]] {
        let mut chain = proven(2 + still.len());
        chain.tree_over(1, true);
        let written = [&[(SOURCE, 0), (1, 100)][..], still].concat();
        pass(&mut chain, 0..30, &written);
        assert!(still.iter().all(|(node, _)| chain.tree(*node) == Tree::Open), "{still:?}");
        pass(&mut chain, 30..60, &written);
        assert!(chain.has_ended() && chain.tree(1) == Tree::Done, "{still:?}");
        assert!(still.iter().all(|(node, _)| chain.tree(*node) == Tree::Failed), "{still:?}");
    }
}

/// The source gives a copy as soon as the chain no longer needs it, and not only when all other nodes are done.
#[test]
fn a_disk_that_stands_still_keeps_no_copy_from_another() {
    for written in [40, 100] {
        let mut chain = proven(3);
        // A node fed by the source alone would be blamed.
        chain.members[1].fed_by.insert(2);
        chain.misled(1);
        let states = [(SOURCE, 0), (2, written)];
        assert_eq!(pass(&mut chain, 0..30, &states), []);
        assert_eq!(pass(&mut chain, 30..60, &states), [(SOURCE, 1)], "{written}");
        assert_eq!(chain.tree(1), Tree::Done);
        // A node that has taken everything may take as long as its disk needs to finish it.
        assert_eq!(chain.tree(2), if written == 100 { Tree::Open } else { Tree::Failed });
    }
}

/// Neither does a disk that is reported now and then to have written one byte more.
#[test]
fn a_disk_that_is_said_to_write_keeps_no_copy_from_another_for_ever() {
    let mut chain = proven(3);
    chain.misled(1);
    let crawled = (0..300).find(|second| {
        let said = [(SOURCE, 0), (2, 40 + second / 20)];
        pass(&mut chain, *second..second + 1, &said) == [(SOURCE, 1)]
    });
    let most = 30 * 8 + 30;
    assert!(crawled.is_some_and(|second| (30..=most).contains(&second)), "{crawled:?} s");
    assert_eq!(chain.tree(1), Tree::Done);
}

/// A slow node is waited for if no other node is at work.
#[test]
fn a_disk_that_is_slow_is_not_given_up() {
    let mut chain = proven(3);
    chain.tree_over(1, true);
    // At most one spool can have been taken and not written.
    for second in 0..600 {
        pass(&mut chain, second..second + 1, &[(SOURCE, 0), (1, 100), (2, 68 + second / 20)]);
        assert_eq!(chain.tree(2), Tree::Open, "{second} s");
    }
}

/// If a host cannot write a tree, another host may have changed that tree. Only with the source's tree is it the host's
/// own fault.
#[test]
fn one_that_cannot_write_what_another_gives_gets_it_from_the_source() {
    for is_full in [false, true] {
        let mut chain = with_two_done(1);
        // It joins when the others are done.
        let late = chain.join(true);
        let mut given = Vec::new();
        while let Some(action) = chain.poll() {
            if let Action::Copy { from, to } = action {
                given.push(from);
                assert_eq!(to, late);
                let fails = from != SOURCE || is_full;
                chain.copy_over(from, to, if fails { CopyEnd::ToFailed } else { CopyEnd::Made });
            }
        }
        assert!(given.len() == 2 && given[0] != SOURCE && given[1] == SOURCE, "{given:?}");
        assert_eq!(chain.tree(late), if is_full { Tree::Failed } else { Tree::Done });
    }
}

/// After the caller was stopped for a while, no node and no disk is blamed for that time.
#[test]
fn a_while_in_which_the_caller_was_stopped_does_not_count() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
    chain.proof(100, true);
    chain.tree_over(1, true);
    let say = |chain: &mut Chain, now: Duration| {
        for (node, written) in [(SOURCE, 0), (1, 100), (2, 40)] {
            let state = BroadcastState { received: 100, written, has_all: true, ..BroadcastState::default() };
            chain.state(node, &state, now);
        }
        chain.tick(now);
    };
    (1..=20).for_each(|at| say(&mut chain, Duration::from_millis(200 * at)));
    (0..20).for_each(|at| say(&mut chain, Duration::from_secs(600) + Duration::from_millis(200 * at)));
    assert_eq!(chain.tree(2), Tree::Open);
}

/// A node that is told to leave just after taking the rest of the stream still completes its tree, and waits for the
/// proof.
#[test]
fn one_that_has_all_when_it_is_told_to_leave_is_proven() {
    let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
    let mut said = Vec::new();
    let mut act = |chain: &mut Chain| {
        while let Some(action) = chain.poll() {
            if let Action::Connect { link, .. } = action {
                chain.link_up(link, Duration::ZERO);
            }
            said.push(action);
        }
    };
    act(&mut chain);
    let state = |received| BroadcastState { received, written: received, ..BroadcastState::default() };
    chain.state(SOURCE, &state(100), Duration::ZERO);
    chain.state(1, &state(100), Duration::ZERO);
    chain.state(2, &state(90), Duration::ZERO);
    // The last piece is still in flight.
    let last = *chain.links.iter().find(|(_, link)| link.to == 2).expect("it was begun").0;
    chain.link_over(last, LinkEnd::NotKept, Duration::ZERO);
    act(&mut chain);
    chain.proof(100, true);
    act(&mut chain);
    (1..=2).for_each(|node| chain.tree_over(node, true));
    act(&mut chain);
    assert!(said.contains(&Action::Leave(2)), "{said:?}");
    assert!(said.contains(&Action::Prove(2)), "{said:?}");
    assert_eq!(said.last(), Some(&Action::End));
}

/// Lets time pass until copies are given up, and returns when that was, in seconds, and the nodes that were to get
/// them. Only the copies to the nodes of `moving` get further.
fn stuck_after(chain: &mut Chain, of_chain: usize, moving: &[Node]) -> (u64, Vec<Node>) {
    for second in 0..3600 {
        let now = Duration::from_secs(second);
        for node in 0..of_chain {
            chain.state(node, &whole(), now);
        }
        moving.iter().for_each(|&node| chain.copy_moved(node, now));
        chain.tick(now);
        let stuck: Vec<Node> = chain.stuck(now, Duration::ZERO).into_iter().map(|(node, _)| node).collect();
        if !stuck.is_empty() {
            return (second, stuck);
        }
    }
    panic!("no copy is given up: {chain:?}");
}

/// Returns a state without a chain in which the source gives four hosts their copies, and these many others wait.
fn copies_to(waiting: usize) -> Chain {
    let mut chain = Chain::of_copies(4 + waiting);
    for _ in 0..4 + waiting {
        chain.join(true);
    }
    let begun: Vec<Action> = std::iter::from_fn(|| chain.poll()).collect();
    assert_eq!(begun, [1, 2, 3, 4].map(|to| Action::Copy { from: SOURCE, to }));
    chain
}

/// A copy that gets no further, as to a file system that hangs, is given up after a long time, also if others wait for
/// its giver. A copy that goes on may take any time.
#[test]
fn a_copy_that_gets_no_further_is_given_up() {
    for waiting in [1, 0] {
        let mut chain = copies_to(waiting);
        assert_eq!(stuck_after(&mut chain, 0, &[1, 2, 3]), (30 * 60 + 1, vec![4]));
        chain.copy_over(SOURCE, 4, CopyEnd::Stuck);
        assert_eq!(chain.tree(4), Tree::Failed);
        let next = chain.poll();
        assert_eq!(next, (waiting > 0).then_some(Action::Copy { from: SOURCE, to: 5 }));
        // While the ends reconnect, a copy stands still for a good reason.
        let now = Duration::from_secs(3000);
        assert_eq!(chain.stuck(now, now), []);
    }
    assert_eq!(stuck_after(&mut copies_to(1), 0, &[]), (30 * 60 + 1, vec![1, 2, 3, 4]));
    // Nor does the time count in which the caller was stopped.
    let (mut chain, woken) = (copies_to(0), Duration::from_secs(3000));
    chain.tick(woken);
    assert_eq!(chain.stuck(woken, Duration::ZERO), []);
}

/// After a chain, a copy is given up soon if others wait for its giver. A copy for which nobody waits gets more time.
#[test]
fn a_copy_after_a_chain_that_gets_no_further_is_given_up() {
    for late in [2, 3] {
        let mut chain = proven(2);
        chain.expect(late);
        for node in 0..2 {
            chain.state(node, &whole(), Duration::ZERO);
        }
        chain.tree_over(1, true);
        for _ in 0..late {
            chain.join(true);
        }
        let copies: Vec<Action> =
            std::iter::from_fn(|| chain.poll()).filter(|action| matches!(action, Action::Copy { .. })).collect();
        assert_eq!(copies, [Action::Copy { from: 1, to: 2 }, Action::Copy { from: SOURCE, to: 3 }]);
        let second = if late == 3 { 5 * 60 + 1 } else { 30 * 60 + 1 };
        assert_eq!(stuck_after(&mut chain, 2, &[]), (second, vec![2, 3]));
        // Another host may have been the reason, so this is not yet the end for the second.
        chain.copy_over(1, 2, CopyEnd::Stuck);
        chain.copy_over(SOURCE, 3, CopyEnd::Stuck);
        assert_eq!((chain.tree(2), chain.tree(3)), (Tree::Open, Tree::Failed));
    }
}

/// A host may itself hang if a copy that it gave got stuck. So it gives the next one only if no other host can.
#[test]
fn one_whose_copy_got_stuck_comes_after_others() {
    let mut chain = with_two_done(4);
    let begun = |chain: &mut Chain| {
        let copy = |action: Action| match action {
            Action::Copy { from, to } => Some((from, to)),
            _ => None,
        };
        std::iter::from_fn(|| chain.poll()).filter_map(copy).collect::<Vec<_>>()
    };
    chain.join(false);
    assert_eq!(begun(&mut chain), [(2, 3)]);
    chain.copy_over(2, 3, CopyEnd::Stuck);
    assert_eq!(begun(&mut chain), [(SOURCE, 3)]);
    chain.copy_over(SOURCE, 3, CopyEnd::Made);
    for _ in 0..3 {
        chain.join(false);
    }
    assert_eq!(begun(&mut chain), [(1, 4), (SOURCE, 5), (2, 6)]);
    // After two such copies the host waits, even if all others are busy.
    chain.copy_over(2, 6, CopyEnd::Stuck);
    chain.join(false);
    assert_eq!(begun(&mut chain), []);
    chain.copy_over(1, 4, CopyEnd::Made);
    assert_eq!(begun(&mut chain), [(1, 7)]);
}

/// A host whose disk hangs still answers. If it was passed over before that was found out, the disk is the reason all
/// the same, unless the host has fallen silent as well. But a disk may hang for some minutes, as while a server fails
/// over.
#[test]
fn a_disk_that_stands_still_is_the_reason_after_its_node_was_passed_over() {
    for is_silent in [false, true] {
        let mut chain = Chain::new(3, SPOOL, 4 * STALL, Lag::Copied);
        chain.proof(100, true);
        let mut outs = Vec::new();
        for at in 0..1550 {
            let now = Duration::from_millis(200 * at);
            assert!(is_silent || at > 1500 || chain.tree(2) == Tree::Open, "{now:?}");
            chain.state(SOURCE, &BroadcastState { passed: 100, ..whole() }, now);
            chain.state(1, &BroadcastState { passed: 72, ..whole() }, now);
            if !is_silent || at < 5 {
                chain.state(2, &BroadcastState { received: 72, written: 40, ..BroadcastState::default() }, now);
            }
            chain.tick(now);
            outs.extend(go_on(&mut chain, now));
        }
        let all = [(2, Why::StoodStill), (2, Why::DiskStill)];
        assert_eq!(outs, all[..if is_silent { 1 } else { 2 }]);
        assert_eq!(chain.tree(2), Tree::Failed);
    }
}

/// Of a tree that has more than the source's, nothing is given on, nor of one that cannot be proven.
#[test]
fn who_may_give_a_copy_is_known_before_it_is_begun() {
    for own in 0..=2 {
        let mut chain = Chain::new(4, SPOOL, STALL, Lag::Copied);
        [1, 3][..own].iter().for_each(|&node| chain.keep_to_itself(node));
        assert_eq!(chain.may_get_from_others(2), own < 2, "{own}");
        chain.proof(100, false);
        assert!(!chain.may_get_from_others(2), "{own}");
    }
}

/// If the source is lost or silent, and the only host that is done may not give its tree to others, that is the reason,
/// and not that the host which lacks something does not answer.
#[test]
fn one_to_which_no_node_can_give_a_copy_is_not_said_to_be_cut_off() {
    for is_lost in [true, false] {
        let mut chain = proven(3);
        chain.keep_to_itself(1);
        chain.state(SOURCE, &whole(), Duration::ZERO);
        chain.state(1, &whole(), Duration::ZERO);
        let last = *chain.links.iter().find(|(_, link)| link.to == 2).expect("it was begun").0;
        chain.link_over(last, LinkEnd::NotKept, Duration::ZERO);
        chain.tree_over(2, false);
        if is_lost {
            chain.lost(SOURCE);
        }
        for second in 1..=20 {
            let now = Duration::from_secs(second);
            chain.state(1, &whole(), now);
            chain.tick(now);
            if second == 4 {
                chain.tree_over(1, true);
            }
        }
        let out = |action: Action| match action {
            Action::Out(2, why) => Some(why),
            _ => None,
        };
        let outs: Vec<Why> = std::iter::from_fn(|| chain.poll()).filter_map(out).collect();
        assert_eq!(outs, [Why::TooFar, Why::NoGiver], "{is_lost}");
        assert_eq!(chain.tree(2), Tree::Failed);
    }
}

/// After the caller was stopped for a while, no copy is blamed for that time.
#[test]
fn a_while_in_which_the_caller_was_stopped_does_not_count_for_copies() {
    let mut chain = copies_to(1);
    chain.tick(Duration::from_secs(1));
    let now = Duration::from_secs(3600);
    chain.tick(now);
    assert_eq!(chain.stuck(now, Duration::ZERO), []);
}

/// A source that stops for a while, such as a frozen virtual machine, gives nothing. No host is blamed for that.
#[test]
fn a_source_that_stops_for_a_while_has_nobody_blamed() {
    for seed in seeds(24) {
        let mut world = World::new(seed, 2 + (seed % 6) as usize, 600);
        let begin = Duration::from_millis(500 + world.below(3000));
        let end = begin + Duration::from_millis(5000 + world.below(6500));
        world.run(|world| {
            let is_stopped = (begin..end).contains(&world.now);
            world.peers[SOURCE].fault = is_stopped.then_some(Fault::Stopped);
        });
        world.check(true);
        assert!(world.now > end && world.outs.is_empty(), "seed {seed}: {:?} {:?}", world.now, world.outs);
    }
}

/// A node that never says where it wants the stream to start is passed over, and not the node that would send to it.
#[test]
fn one_that_asks_for_nothing_is_passed_over() {
    for to in 1..=2 {
        let mut chain = Chain::new(3, SPOOL, STALL, Lag::Copied);
        let link = *chain.links.iter().find(|(_, link)| link.to == to).expect("it was begun").0;
        chain.link_over(link, LinkEnd::ToSilent, Duration::ZERO);
        let outs: Vec<_> = std::iter::from_fn(|| chain.poll()).filter(|one| matches!(one, Action::Out(..))).collect();
        assert_eq!(outs, [Action::Out(to, Why::CutOff)]);
    }
}
