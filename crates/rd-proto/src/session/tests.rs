//! Tests of agreement between two offers, and of the state machines.

use std::collections::VecDeque;

use super::lanes::HEARD_MAX;
use super::*;
use crate::control::{Encrypt, Policy, RdmaKind, Role, SPAN_MAX, SequenceSet};
use crate::frame::ChunkHeader;

const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Rdma, Policy::PreferRdma, Policy::Tcp];
const ENCRYPTS: [Encrypt; 3] = [Encrypt::Auto, Encrypt::Always, Encrypt::Never];

mod count;
mod damage;
mod ending;
mod idle;
mod pause;
mod pools;
mod switch;
mod vain;

fn offer(role: Role) -> Offer {
    Offer {
        role,
        policy: Policy::Auto,
        encrypt: Encrypt::Auto,
        peer_is_local: false,
        lanes: 0,
        chunk_bytes: 1 << 20,
        reconnect_s: 30,
        size_bytes: None,
        rdma: RdmaKind::Hardware,
        ticket: [0; 16],
        host: Vec::new(),
    }
}

pub(super) fn pair(change: impl FnOnce(&mut Offer, &mut Offer)) -> Result<Agreed, Refusal> {
    let (mut ours, mut theirs) = (offer(Role::Sender), offer(Role::Receiver));
    change(&mut ours, &mut theirs);
    let agreed = Agreed::new(&ours, &theirs);
    assert_eq!(agreed, Agreed::new(&theirs, &ours), "both ends must come to the same");
    agreed
}

#[test]
fn both_ends_agree_whatever_they_offer() {
    let mut seen = 0;
    for policies in POLICIES.iter().flat_map(|a| POLICIES.iter().map(move |b| (*a, *b))) {
        for encrypts in ENCRYPTS.iter().flat_map(|a| ENCRYPTS.iter().map(move |b| (*a, *b))) {
            for bits in 0..64_u32 {
                let bit = |at: u32| bits >> at & 1 == 1;
                // `pair` compares the two ends.
                let _ = pair(|ours, theirs| {
                    (ours.policy, theirs.policy) = policies;
                    (ours.encrypt, theirs.encrypt) = encrypts;
                    let kind = |at| if bit(at) { RdmaKind::Hardware } else { RdmaKind::Software };
                    (ours.rdma, theirs.rdma) = (kind(0), if bits < 32 { kind(1) } else { RdmaKind::None });
                    (ours.peer_is_local, theirs.peer_is_local) = (bit(2), bit(3));
                    (ours.lanes, theirs.lanes) = (if bit(4) { 3 } else { 0 }, if bit(5) { 200 } else { 0 });
                    (ours.chunk_bytes, theirs.reconnect_s) = (if bit(5) { 4096 } else { 65536 }, bits);
                });
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 16 * 9 * 64);
}

#[test]
fn policies_meet() {
    use Policy::{Auto, PreferRdma, Rdma, Tcp};
    let table = [
        (Auto, Auto, Ok(Auto)),
        (Auto, Rdma, Ok(Rdma)),
        (Auto, PreferRdma, Ok(PreferRdma)),
        (Auto, Tcp, Ok(Tcp)),
        (Rdma, Rdma, Ok(Rdma)),
        (Rdma, PreferRdma, Ok(Rdma)),
        (Rdma, Tcp, Err(Refusal::Transport)),
        (PreferRdma, PreferRdma, Ok(PreferRdma)),
        (PreferRdma, Tcp, Ok(Tcp)),
        (Tcp, Tcp, Ok(Tcp)),
    ];
    for (a, b, expected) in table {
        let met = pair(|ours, theirs| (ours.policy, theirs.policy) = (a, b)).map(|agreed| agreed.policy);
        assert_eq!(met, expected, "{a:?} and {b:?}");
    }
}

#[test]
fn rdma_needs_devices_that_the_policy_counts_at_both_ends() {
    use RdmaKind::{Hardware, None, Software};
    // The weaker of two devices, and whether each policy tries RDMA with it.
    let table = [
        (Hardware, [(Policy::Auto, true), (Policy::PreferRdma, true), (Policy::Rdma, true), (Policy::Tcp, false)]),
        (Software, [(Policy::Auto, false), (Policy::PreferRdma, true), (Policy::Rdma, true), (Policy::Tcp, false)]),
        (None, [(Policy::Auto, false), (Policy::PreferRdma, false), (Policy::Rdma, false), (Policy::Tcp, false)]),
    ];
    for (weaker, policies) in table {
        for (policy, tries) in policies {
            for kinds in [(weaker, Hardware), (Hardware, weaker)] {
                let met = pair(|ours, theirs| {
                    (ours.rdma, theirs.rdma) = kinds;
                    ours.policy = policy;
                });
                if policy == Policy::Rdma && !tries {
                    assert_eq!(met, Err(Refusal::Transport));
                } else {
                    assert_eq!(met.expect("a transport is left").try_rdma, tries, "{kinds:?} {policy:?}");
                }
            }
        }
    }
}

#[test]
fn payload_is_encrypted_where_it_must_be() {
    use Encrypt::{Always, Auto, Never};
    // The two wishes, whether both ends are on one host, and whether TCP and RDMA are encrypted.
    let table = [
        (Auto, Auto, false, Some((true, false))),
        (Auto, Auto, true, Some((false, false))),
        (Auto, Always, true, Some((true, true))),
        (Auto, Never, false, Some((false, false))),
        (Always, Always, false, Some((true, true))),
        (Never, Never, false, Some((false, false))),
        (Always, Never, false, None),
    ];
    for (a, b, local, expected) in table {
        let agreed = pair(|ours, theirs| {
            (ours.encrypt, theirs.encrypt) = (a, b);
            (ours.peer_is_local, theirs.peer_is_local) = (local, local);
        });
        assert_eq!(agreed.ok().map(|agreed| (agreed.seal(Path::Tcp), agreed.seal(Path::Rdma))), expected);
        if expected.is_none() {
            assert_eq!(agreed, Err(Refusal::Encrypt));
        }
    }
    // One end's claim that the peer is local is not enough.
    assert!(pair(|ours, _| ours.peer_is_local = true).expect("agreed").seal_tcp);
}

#[test]
fn sizes_are_the_smaller_of_two() {
    let agreed = pair(|ours, theirs| {
        (ours.chunk_bytes, theirs.chunk_bytes) = (1 << 16, 1 << 20);
        (ours.reconnect_s, theirs.reconnect_s) = (7, 0);
        (ours.lanes, theirs.lanes) = (255, 20);
    });
    let agreed = agreed.expect("agreed");
    assert_eq!(agreed.chunk_bytes, 1 << 16);
    assert_eq!(agreed.reconnect, Duration::ZERO);
    assert_eq!((agreed.tcp_lanes, agreed.rdma_lanes), (RDMA_LANE_FIRST, RDMA_LANE_FIRST));
    let default = pair(|_, _| ()).expect("agreed");
    assert_eq!((default.tcp_lanes, default.rdma_lanes), (2, 1));
    let one_asks = pair(|_, theirs| theirs.lanes = 5).expect("agreed");
    assert_eq!((one_asks.tcp_lanes, one_asks.rdma_lanes), (5, 5));
}

#[test]
fn offers_out_of_bounds_are_refused() {
    for bytes in [0, 4095, 4097, (1 << 20) + 4096, u32::MAX] {
        assert_eq!(pair(|ours, theirs| (ours.chunk_bytes, theirs.chunk_bytes) = (bytes, bytes)), Err(Refusal::Offer));
    }
    assert_eq!(pair(|ours, _| ours.role = Role::Receiver), Err(Refusal::Role));
    assert_eq!(pair(|_, theirs| theirs.role = Role::Sender), Err(Refusal::Role));
}

/// Returns an end that accepts lanes and tries RDMA, with lane 0 and the first RDMA lane up.
fn accepting() -> Receiver {
    let agreed = pair(|ours, _| ours.policy = Policy::PreferRdma).expect("agreed");
    let mut receiver = Receiver::new(agreed, false, 8, Layout::Stream, 1);
    for index in [0, RDMA_LANE_FIRST] {
        receiver.handle_lane_up(LaneId { index, generation: 0 }, Duration::ZERO);
    }
    receiver
}

/// Returns the lanes on which the next `advance` posts receives.
fn posted(receiver: &mut Receiver) -> Vec<u16> {
    receiver.advance(Duration::ZERO);
    let actions = std::iter::from_fn(|| receiver.poll_action());
    let mut lanes: Vec<u16> = actions
        .filter_map(|action| match action {
            Action::PostReceive(lane, _) => Some(lane.index),
            _ => None,
        })
        .collect();
    lanes.dedup();
    lanes
}

#[test]
fn a_use_that_was_overtaken_changes_nothing() {
    let (tcp, rdma) = (LaneId { index: 0, generation: 0 }, LaneId { index: RDMA_LANE_FIRST, generation: 0 });
    let told = |path, turn| Frame::Use { path, turn };
    let mut receiver = accepting();
    receiver.handle_frame(tcp, told(Path::Tcp, 2), Duration::ZERO).expect("allowed");
    receiver.handle_frame(rdma, told(Path::Rdma, 1), Duration::ZERO).expect("late, not wrong");
    assert_eq!(receiver.core_ref().path(), Some(Path::Tcp));
    assert_eq!(posted(&mut receiver), [0]);
    // The same turn cannot mean two paths.
    assert!(receiver.handle_frame(tcp, told(Path::Rdma, 2), Duration::ZERO).is_err());
}

#[test]
fn receives_are_posted_once_a_lane_is_known_to_carry_payload() {
    let rdma = LaneId { index: RDMA_LANE_FIRST, generation: 0 };
    let mut receiver = accepting();
    assert_eq!(posted(&mut receiver), [], "nobody has said which path to take");
    let told = Frame::Use { path: Path::Rdma, turn: 1 };
    receiver.handle_frame(LaneId { index: 0, generation: 0 }, told.clone(), Duration::ZERO).expect("allowed");
    assert_eq!(posted(&mut receiver), [], "not on this lane yet");
    receiver.handle_frame(rdma, told, Duration::ZERO).expect("allowed");
    assert_eq!(posted(&mut receiver), [RDMA_LANE_FIRST]);
}

#[test]
fn a_source_that_waits_for_a_device_gets_the_whole_pool() {
    const BUFFERS: u32 = 32;
    let agreed = pair(|ours, theirs| (ours.policy, theirs.policy) = (Policy::Tcp, Policy::Tcp)).expect("agreed");
    let mut sender = Sender::new(agreed, true, BUFFERS);
    sender.handle_lane_up(LaneId { index: 0, generation: 0 }, Duration::ZERO);
    let mut fills = || {
        sender.advance(Duration::from_millis(1));
        let mut filled = Vec::new();
        while let Some(action) = sender.poll_action() {
            if let Action::Fill { buffer, .. } = action {
                filled.push(buffer);
            }
        }
        for &buffer in filled.iter().take(1) {
            sender.handle_queued(buffer);
        }
        filled.len()
    };
    let few = fills();
    assert!(few > 0 && few < BUFFERS as usize / 2, "a few while nothing is known of the source: {few}");
    assert_eq!(fills(), BUFFERS as usize - few, "all others when one waits for a device");
}

#[test]
fn half_a_pool_is_read_ahead_of_a_device() {
    const BUFFERS: u32 = 32;
    let agreed = pair(|ours, theirs| (ours.policy, theirs.policy) = (Policy::PreferRdma, Policy::PreferRdma));
    let mut sender = Sender::new(agreed.expect("agreed"), true, BUFFERS);
    for index in [0, RDMA_LANE_FIRST] {
        sender.handle_lane_up(LaneId { index, generation: 0 }, Duration::ZERO);
    }
    assert_eq!(sender.core_ref().path(), Some(Path::Rdma));
    sender.advance(Duration::from_millis(1));
    let fills = std::iter::from_fn(|| sender.poll_action()).filter(|action| matches!(action, Action::Fill { .. }));
    assert_eq!(fills.count(), BUFFERS as usize / 2);
}

#[test]
fn a_session_ends_that_nobody_watches_at_either_end() {
    let now = Duration::ZERO;
    let lane = LaneId { index: 0, generation: 0 };
    let outcome = |receiver: &mut Receiver| {
        receiver.handle_frame(lane, Frame::Bye, now).expect("allowed");
        std::iter::from_fn(|| receiver.poll_action()).find_map(|action| match action {
            Action::End(outcome) => Some(outcome),
            _ => None,
        })
    };
    // Whichever end loses its caller first.
    for ours_first in [true, false] {
        let mut receiver = accepting();
        for is_ours in [ours_first, !ours_first] {
            assert_eq!(outcome(&mut receiver), None, "one end is watched still");
            if is_ours {
                receiver.handle_unwatched(now);
            } else {
                receiver.handle_frame(lane, Frame::Unwatched, now).expect("allowed");
            }
        }
        assert_eq!(outcome(&mut receiver), Some(Outcome::Aborted(Cause::Signal(1))));
    }
    // The frame goes out on all lanes, including one that comes up later.
    let mut receiver = accepting();
    receiver.handle_unwatched(now);
    receiver.handle_lane_up(LaneId { index: 1, generation: 0 }, now);
    let mut told: Vec<u16> = std::iter::from_fn(|| receiver.poll_action())
        .filter_map(|action| match action {
            Action::Send(lane, Frame::Unwatched) => Some(lane.index),
            _ => None,
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1, RDMA_LANE_FIRST]);
}

/// A path on which lanes come up but do not last.
#[test]
fn rdma_that_does_not_last_is_left_alone_for_a_while() {
    let agreed = pair(|ours, theirs| (ours.policy, theirs.policy) = (Policy::PreferRdma, Policy::PreferRdma));
    let mut sender = Sender::new(agreed.expect("agreed"), true, 8);
    let at = |millis: u64| Duration::from_millis(millis);
    let dials = |sender: &mut Sender, now| {
        sender.advance(now);
        let actions = std::iter::from_fn(|| sender.poll_action());
        actions.filter(|action| matches!(action, Action::Dial(lane) if lane.index >= RDMA_LANE_FIRST)).count()
    };
    sender.handle_lane_up(LaneId { index: 0, generation: 0 }, at(0));
    assert!(dials(&mut sender, at(0)) > 0);
    let times = [
        // The first loss may be an accident.
        (1, 100, 2_000, 2_100),
        (2, 2_200, 3_000, 12_200),
        (3, 12_300, 14_000, 32_300),
        (4, 32_400, 34_000, 72_400),
        // This time it has lasted.
        (5, 72_500, 110_000, 110_100),
        (6, 110_200, 111_000, 120_200),
    ];
    for (generation, up, down, again) in times {
        for index in 0..sender.core_ref().agreed().rdma_lanes {
            sender.handle_lane_up(LaneId { index: RDMA_LANE_FIRST + index, generation }, at(up));
        }
        assert_eq!(sender.core_ref().path(), Some(Path::Rdma));
        for index in 0..sender.core_ref().agreed().rdma_lanes {
            sender.handle_lane_down(LaneId { index: RDMA_LANE_FIRST + index, generation }, at(down));
        }
        assert_eq!(sender.core_ref().path(), Some(Path::Tcp));
        assert_eq!(dials(&mut sender, at(again - 1)), 0, "{down}");
        assert!(dials(&mut sender, at(again)) > 0, "{down}");
    }
}

#[test]
fn what_is_published_is_done_whatever_comes_later() {
    let (now, lane) = (Duration::ZERO, LaneId { index: 0, generation: 0 });
    let later: [fn(&mut Receiver, LaneId, Duration); 3] = [
        |receiver, _, now| receiver.abort(Cause::Signal(2), now),
        |receiver, lane, now| receiver.handle_frame(lane, Frame::Abort(Cause::Signal(15)), now).expect("allowed"),
        |receiver, lane, now| {
            receiver.handle_unwatched(now);
            receiver.handle_frame(lane, Frame::Unwatched, now).expect("allowed");
        },
    ];
    for (number, event) in later.into_iter().enumerate() {
        let mut receiver = accepting();
        receiver.handle_committed(0, now);
        event(&mut receiver, lane, now);
        receiver.handle_timeout(now + ABORT_WAIT);
        let mut actions: Vec<Action> = std::iter::from_fn(|| receiver.poll_action()).collect();
        assert_eq!(actions.pop(), Some(Action::End(Outcome::Done)), "{number}");
        let is_abort = |action: &Action| matches!(action, Action::Send(_, Frame::Abort(_)));
        assert!(!actions.iter().any(is_abort), "{number}: the sender is not told that it failed");
    }
}

/// Sends `count` chunks on one lane of `rate` bytes a second at that time; buffers on the way take the first `absorbed`
/// bytes at once. Returns the length of each chunk, and how long the lane needed for it.
fn sent_over(rate: impl Fn(Duration) -> f64, absorbed: usize, count: usize) -> Vec<(usize, Duration)> {
    sent_by(|sender| sender, rate, absorbed, count)
}

fn sent_by(
    kind: impl FnOnce(Sender) -> Sender,
    rate: impl Fn(Duration) -> f64,
    mut absorbed: usize,
    count: usize,
) -> Vec<(usize, Duration)> {
    let agreed = pair(|ours, theirs| (ours.policy, theirs.policy) = (Policy::Tcp, Policy::Tcp)).expect("agreed");
    let lane = LaneId { index: 0, generation: 0 };
    let mut sender = kind(Sender::new(agreed, true, 32));
    let acknowledge = |sender: &mut Sender, below, now| {
        let taken = SequenceSet::new(below, std::iter::empty());
        let ack = Frame::Ack { credit_total: 1 << 40, window: SPAN_MAX as u32, taken };
        sender.handle_frame(lane, ack, now).expect("allowed");
    };
    let (mut now, mut sequence, mut position) = (Duration::ZERO, 0, 0);
    sender.handle_lane_up(lane, now);
    acknowledge(&mut sender, 0, now);
    let (mut lengths, mut on_lane, mut sent) = ([0; 32], VecDeque::new(), Vec::new());
    while sent.len() < count {
        sender.advance(now);
        while let Some(action) = sender.poll_action() {
            match action {
                Action::Fill { buffer, .. } => {
                    let bytes = sender.part_bytes();
                    lengths[buffer as usize] = bytes;
                    let header = ChunkHeader {
                        is_final: false,
                        sealed: true,
                        compression: crate::frame::Compression::None,
                        wire_bytes: bytes as u32,
                        plain_bytes: bytes as u32,
                        item: 0,
                        sequence,
                        position,
                        tag: [1; 16],
                    };
                    (sequence, position) = (sequence + 1, position + bytes as u64);
                    sender.handle_sealed(buffer, &header);
                    sender.advance(now);
                }
                Action::SendChunk(_, buffer) => on_lane.push_back(buffer),
                _ => {}
            }
        }
        let buffer: BufferId = on_lane.pop_front().expect("the lane is given something");
        let bytes = lengths[buffer as usize];
        let at_once = bytes.min(absorbed);
        absorbed -= at_once;
        let took = Duration::from_secs_f64((bytes - at_once) as f64 / rate(now));
        now += took + Duration::from_micros(10);
        sender.handle_sent(lane, buffer, now);
        sent.push((bytes, took));
        acknowledge(&mut sender, sent.len() as u64, now);
    }
    sent
}

#[test]
fn no_chunk_is_longer_than_a_second_of_its_line() {
    let second = Duration::from_secs(1);
    for rate in [50e3, 250e3, 1e6, 4e6] {
        for absorbed in [0, 256 << 10] {
            let sent = sent_over(|_| rate, absorbed, 200);
            // The first chunks may take longer, before anything is known: they have 64 KiB.
            let longest = sent[if rate < 1e5 { 8 } else { 0 }..].iter().map(|(_, took)| *took).max();
            assert!(longest <= Some(second), "{rate} {absorbed}: {longest:?}");
            let (bytes, took) = sent[100];
            assert!(took >= second / 16, "no shorter than it must be: {rate} {absorbed}: {bytes} in {took:?}");
        }
    }
    // At 4 kB/s chunks have the minimum size, and so take a little longer.
    let sent = sent_over(|_| 4e3, 0, 20);
    assert!(sent[..6].iter().all(|(bytes, _)| *bytes <= 64 << 10), "{sent:?}");
    assert!(sent[6..].iter().all(|(bytes, _)| *bytes == CHUNK_BYTES_MIN), "{sent:?}");
}

#[test]
fn what_is_passed_on_from_host_to_host_is_short_on_a_slow_line() {
    for rate in [1e6, 2.5e6, 12e6] {
        let sent = sent_by(Sender::passed_on, |_| rate, 0, 100);
        let longest = sent[50..].iter().map(|(_, took)| *took).max().expect("some");
        assert!(longest <= Duration::from_millis(25) && longest > Duration::from_millis(8), "{rate}: {longest:?}");
    }
    let sent = sent_by(Sender::passed_on, |_| 250e6, 0, 64);
    assert!(sent[50..].iter().all(|(bytes, _)| *bytes == 1 << 20), "{sent:?}");
}

#[test]
fn a_fast_line_soon_gets_full_chunks() {
    for rate in [8e6, 100e6, 10e9] {
        let sent = sent_over(|_| rate, 0, 64);
        assert!(sent[50..].iter().all(|(bytes, _)| *bytes == 1 << 20), "{rate}: {sent:?}");
    }
}

#[test]
fn a_line_that_becomes_slow_gets_short_chunks_and_full_ones_when_it_is_fast_again() {
    let (slow, fast) = (Duration::from_secs(1), Duration::from_secs(60));
    let sent = sent_over(|now| if now < slow || now > fast { 100e6 } else { 250e3 }, 0, 900);
    let long = sent.iter().filter(|(_, took)| *took > Duration::from_secs(1)).count();
    assert!(long <= 8, "no more than had been read by then: {long}");
    let short = sent.iter().filter(|(_, took)| *took > Duration::from_millis(50) && *took <= CHUNK_TIME_MAX).count();
    assert!(short > 100, "{short}");
    assert_eq!(sent.last().map(|(bytes, _)| *bytes), Some(1 << 20));
}

/// Maximum time that a chunk should take, plus that of one more page.
const CHUNK_TIME_MAX: Duration = Duration::from_millis(275);

/// Returns when the machine ends, if a lane comes up each second, and is heard and lasts for `lasts`. `carries`: a
/// chunk comes through each time.
fn ends_after(machine: &mut impl Machine, lasts: Duration, carries: bool) -> Option<Duration> {
    ends_after_silence(machine, lasts, lasts, carries)
}

/// The same, but each lane is heard only for `heard` and then silent until it ends.
fn ends_after_silence(machine: &mut impl Machine, heard: Duration, lasts: Duration, carries: bool) -> Option<Duration> {
    let step = Duration::from_millis(250);
    let mut now = Duration::ZERO;
    for generation in 0..200 {
        let lane = LaneId { index: 0, generation };
        machine.handle_lane_up(lane, now);
        let (ends, next) = (now + lasts, now + lasts + Duration::from_secs(1));
        if carries {
            machine.core().lanes.carried();
        }
        while now < next {
            now += step;
            machine.handle_heard(lane, now.min(ends - lasts + heard));
            if now == ends {
                machine.handle_lane_down(lane, now);
            }
            machine.handle_timeout(now);
            machine.advance(now);
        }
        let lost = |action| matches!(action, Action::End(Outcome::LinkLost { .. }));
        if std::iter::from_fn(|| machine.poll_action()).any(lost) {
            return Some(now);
        }
    }
    None
}

#[test]
fn lanes_that_come_up_and_carry_nothing_do_not_keep_a_session() {
    let mut agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    agreed.reconnect = Duration::from_secs(20);
    let sender = || Sender::new(agreed, true, 8);
    let receiver = || Receiver::new(agreed, false, 8, Layout::Stream, 1);
    let (short, long) = (Duration::from_millis(500), HEARD_MAX + Duration::from_secs(1));
    for ended in [ends_after(&mut sender(), short, false), ends_after(&mut receiver(), short, false)] {
        let ended = ended.expect("given up");
        assert!(ended >= agreed.reconnect && ended < agreed.reconnect + Duration::from_secs(3), "{ended:?}");
    }
    // If a chunk comes through, or a lane lasts, the network is of some use.
    assert_eq!(ends_after(&mut sender(), short, true), None);
    assert_eq!(ends_after(&mut receiver(), short, true), None);
    assert_eq!(ends_after(&mut sender(), long, false), None);
    // A lane that is closed for its silence has not lasted.
    let (heard, silent) = (Duration::from_secs(1), Duration::from_secs(1) + HEARD_MAX);
    assert!(ends_after_silence(&mut sender(), heard, silent, false).is_some());
    assert!(ends_after_silence(&mut receiver(), heard, silent, false).is_some());
}

#[test]
fn a_line_that_only_seemed_long_has_its_lanes_back() {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut sender = Sender::new(agreed, true, 8);
    sender.handle_lane_up(FIRST, Duration::ZERO);
    sender.handle_round_trip(Duration::from_millis(90), TICK);
    sender.handle_timeout(TICK);
    assert_eq!(sender.core_ref().lanes.tcp_lanes(), 6);
    sender.handle_round_trip(Duration::from_micros(50), 2 * TICK);
    assert_eq!(sender.core_ref().lanes.tcp_lanes(), agreed.tcp_lanes);
    sender.handle_round_trip(Duration::from_millis(90), 3 * TICK);
    sender.handle_timeout(3 * TICK);
    assert_eq!(sender.core_ref().lanes.tcp_lanes(), agreed.tcp_lanes, "the shortest counts");
}

/// Returns when a sender ends whose lanes stay alive but each lose their chunk, and whether the sender knows that lanes
/// come up in vain. `carries`: another chunk comes through once.
fn ends_after_replays(carries: bool) -> Option<(Duration, bool)> {
    let mut agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    agreed.reconnect = Duration::from_secs(20);
    let mut sender = Sender::new(agreed, true, 8);
    let (life, mut now) = (HEARD_MAX + Duration::from_secs(1), Duration::ZERO);
    let (none, mut filled) = (SequenceSet::default(), false);
    for generation in 0..30 {
        let lane = LaneId { index: 0, generation };
        sender.handle_lane_up(lane, now);
        let ack = Frame::Ack { credit_total: 1, window: 8, taken: none.clone() };
        sender.handle_frame(lane, ack, now).expect("credit");
        if generation > 0 {
            let lost = LaneId { index: 0, generation: generation - 1 };
            sender.handle_frame(lane, Frame::LaneGone { lane: lost, have: none.clone() }, now).expect("it is gone");
        }
        let ends = now + life;
        while now < ends {
            now += TICK;
            sender.handle_heard(lane, now);
            sender.handle_timeout(now);
            sender.advance(now);
            while let Some(action) = sender.poll_action() {
                match action {
                    Action::Fill { buffer, .. } => {
                        let header = ChunkHeader { sealed: true, is_final: true, ..ChunkHeader::default() };
                        if std::mem::replace(&mut filled, true) {
                            sender.handle_unfilled(buffer);
                        } else {
                            sender.handle_sealed(buffer, &header);
                        }
                    }
                    Action::SendChunk(lane, buffer) => sender.handle_sent(lane, buffer, now),
                    Action::End(Outcome::LinkLost { .. }) => return Some((now, sender.lanes_come_up_in_vain())),
                    _ => {}
                }
            }
        }
        if carries {
            sender.core().lanes.carried();
        }
        sender.handle_lane_down(lane, now);
    }
    None
}

#[test]
fn a_chunk_that_every_lane_takes_with_it_ends_the_session() {
    let (ended, is_in_vain) = ends_after_replays(false).expect("given up");
    assert!(is_in_vain && ended > Duration::from_secs(20) && ended < Duration::from_secs(40), "{ended:?}");
    assert_eq!(ends_after_replays(true), None, "something comes through");
}

#[test]
fn of_two_lists_of_endpoints_the_later_one_stands() {
    let (now, lane) = (Duration::ZERO, LaneId { index: 0, generation: 0 });
    let list = |length| {
        let address = "10.0.0.1:4791".parse().expect("an address");
        vec![crate::control::Endpoint { hardware: false, address, prefix_bits: 24, rate_mbps: 0 }; length]
    };
    let told = |turn, length| Frame::Endpoints { turn, endpoints: list(length) };
    let agreed = pair(|_, _| {}).expect("agreed");
    let mut dialling = Sender::new(agreed, true, 8);
    dialling.handle_lane_up(lane, now);
    for (turn, length) in [(2, 2), (1, 1), (2, 2), (3, 0)] {
        dialling.handle_frame(lane, told(turn, length), now).expect("allowed");
    }
    let actions = std::iter::from_fn(|| dialling.poll_action());
    let lists: Vec<_> = actions.filter(|action| matches!(action, Action::Endpoints(_))).collect();
    assert_eq!(lists, [Action::Endpoints(list(2)), Action::Endpoints(list(0))]);
    assert_eq!(dialling.handle_frame(lane, told(3, 1), now), Err(Violation::Impossible("endpoints")));
    let mut listening = accepting();
    assert_eq!(listening.handle_frame(lane, told(1, 1), now), Err(Violation::Unexpected("ENDPOINTS")));
}

#[test]
fn addresses_are_told_on_each_tcp_lane_and_the_first_list_stands() {
    let (now, lane) = (Duration::ZERO, LaneId { index: 0, generation: 0 });
    let list = |last: u8| {
        let address = std::net::IpAddr::from([10, 0, 0, last]);
        vec![crate::control::RailAddress { interface: 0, address, prefix_bits: 24, rate_mbps: 0 }]
    };
    let mut listening = accepting();
    listening.handle_addresses(list(1), now);
    listening.handle_lane_up(LaneId { index: 1, generation: 1 }, now);
    let told = std::iter::from_fn(|| listening.poll_action())
        .filter(|action| matches!(action, Action::Send(_, Frame::Addresses(told)) if *told == list(1)));
    assert_eq!(told.count(), 2);
    assert_eq!(listening.handle_frame(lane, Frame::Addresses(list(1)), now), Err(Violation::Unexpected("ADDRESSES")));
    let mut dialling = Sender::new(pair(|_, _| {}).expect("agreed"), true, 8);
    dialling.handle_lane_up(lane, now);
    for last in [1, 2] {
        dialling.handle_frame(lane, Frame::Addresses(list(last)), now).expect("allowed");
    }
    let heard: Vec<_> =
        std::iter::from_fn(|| dialling.poll_action()).filter(|action| matches!(action, Action::Addresses(_))).collect();
    assert_eq!(heard, [Action::Addresses(list(1))]);
}

#[test]
fn a_chunk_is_taken_once_every_sink_has_it() {
    let (mut now, lane) = (Duration::ZERO, LaneId { index: 0, generation: 0 });
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut receiver = Receiver::new(agreed, false, 4, Layout::Stream, 2);
    receiver.handle_lane_up(lane, now);
    receiver.advance(now);
    let mut posted: VecDeque<BufferId> = VecDeque::new();
    // Returns what the sender was told by `now`: how many chunks are taken, and whether a buffer is free again.
    let mut told = |receiver: &mut Receiver, now| {
        receiver.handle_timeout(now);
        receiver.advance(now);
        let (mut taken, mut is_free) = (None, false);
        for action in std::iter::from_fn(|| receiver.poll_action()) {
            match action {
                Action::PostReceive(_, buffer) => {
                    posted.push_back(buffer);
                    is_free = true;
                }
                Action::Send(_, Frame::Ack { taken: set, .. }) => taken = Some(set.below),
                _ => {}
            }
        }
        (taken, is_free, posted.clone())
    };
    let (_, _, buffers) = told(&mut receiver, now);
    for (sequence, order) in [(0, [0, 1]), (1, [1, 0]), (2, [0, 0])] {
        let buffer = buffers[sequence as usize];
        let header = ChunkHeader {
            is_final: sequence == 2,
            sealed: true,
            wire_bytes: 1,
            plain_bytes: 1,
            sequence,
            position: sequence,
            ..ChunkHeader::default()
        };
        receiver.handle_chunk(lane, buffer, Some(&header)).expect("in order");
        receiver.handle_opened(buffer, true, now);
        told(&mut receiver, now);
        receiver.handle_written(buffer, order[0], now);
        now += Duration::from_millis(200);
        let (taken, is_free, _) = told(&mut receiver, now);
        assert!(taken.is_none_or(|taken| taken == sequence) && !is_free, "{sequence}: one sink lacks it");
        receiver.handle_written(buffer, order[1], now);
        now += Duration::from_millis(200);
        let (taken, is_free, _) = told(&mut receiver, now);
        let is_taken = sequence < 2;
        assert_eq!((taken == Some(sequence + 1), is_free), (is_taken, is_taken), "{sequence}: {taken:?}");
    }
    assert!(!receiver.has_taken_all(), "the second sink has never had the last");
}

/// Passes answers to a tree's sender on one lane. Returns the answers that the sender passes on.
fn taken(sender: &mut Sender, answers: &[(u64, u8)]) -> Result<Vec<Vec<u8>>, Violation> {
    for &(number, byte) in answers {
        sender.handle_frame(FIRST, Frame::Answer { number, bytes: vec![byte] }, Duration::ZERO)?;
    }
    sender.advance(Duration::ZERO);
    Ok(std::iter::from_fn(|| sender.poll_action())
        .filter_map(|action| if let Action::Answer(bytes) = action { Some(bytes) } else { None })
        .collect())
}

const FIRST: LaneId = LaneId { index: 0, generation: 0 };

#[test]
fn answers_are_handed_on_once_and_in_order_or_refused() {
    let sender = || {
        let mut sender = Sender::new(pair(|_, _| {}).expect("agreed"), true, 8).with_answers();
        sender.handle_lane_up(FIRST, Duration::ZERO);
        sender
    };
    let in_order = taken(&mut sender(), &[(1, 1), (2, 2), (0, 0), (0, 0), (1, 1), (3, 3)]);
    assert_eq!(in_order, Ok(vec![vec![0], vec![1], vec![2], vec![3]]));
    let impossible = Err(Violation::Impossible("ANSWER"));
    assert_eq!(taken(&mut sender(), &[(ANSWERS_MAX as u64 - 1, 1)]), Ok(Vec::new()));
    assert_eq!(taken(&mut sender(), &[(ANSWERS_MAX as u64, 1)]), impossible);
    assert_eq!(taken(&mut sender(), &[(u64::MAX, 1)]), impossible);
    assert_eq!(taken(&mut sender(), &[(1, 1), (1, 2)]), impossible);
    let mut of_a_stream = Sender::new(pair(|_, _| {}).expect("agreed"), true, 8);
    assert_eq!(taken(&mut of_a_stream, &[(0, 0)]), Err(Violation::Unexpected("ANSWER")));
}

#[test]
fn an_answer_that_the_sender_never_has_ends_the_session() {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut receiver = Receiver::new(agreed, false, 8, Layout::Tree, 1);
    let answered = |number| Frame::Answered { number };
    receiver.answer(vec![1]);
    assert!(receiver.handle_frame(FIRST, answered(1), Duration::ZERO).is_err(), "it has not been sent");
    receiver.handle_lane_up(FIRST, Duration::ZERO);
    let mut aborted_after = None;
    for tick in 1..=2 * (ANSWER_WAIT.as_millis() / TICK.as_millis() + 10) as u32 {
        let now = TICK * tick;
        if tick == 100 {
            receiver.handle_frame(FIRST, answered(0), now).expect("nothing new");
            assert!(receiver.handle_frame(FIRST, answered(2), now).is_err(), "not so many");
            receiver.handle_frame(FIRST, answered(1), now).expect("it has it");
            receiver.answer(vec![2]);
        }
        receiver.handle_heard(FIRST, now);
        receiver.handle_timeout(now);
        receiver.advance(now);
        while let Some(action) = receiver.poll_action() {
            if matches!(action, Action::Send(_, Frame::Abort(Cause::Protocol))) {
                aborted_after.get_or_insert(tick);
            }
        }
    }
    let least = 100 + (ANSWER_WAIT.as_millis() / TICK.as_millis()) as u32;
    assert!(aborted_after.is_some_and(|tick| (least..least + 5).contains(&tick)), "{aborted_after:?}");
}
