//! A session that has no reconnect window, at the end that accepts its lanes.

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const TCP: LaneId = LaneId { index: 0, generation: 0 };
const RDMA: LaneId = LaneId { index: RDMA_LANE_FIRST, generation: 0 };

/// Returns an end whose payload goes by RDMA, and that would end at once without a lane for payload.
fn by_rdma(policy: Policy) -> Receiver {
    let mut agreed = pair(|ours, _| ours.policy = policy).expect("agreed");
    agreed.reconnect = Duration::ZERO;
    let mut receiver = Receiver::new(agreed, false, 8, Layout::Stream, 1);
    for lane in [TCP, RDMA] {
        receiver.handle_lane_up(lane, Duration::ZERO);
    }
    for lane in [TCP, RDMA] {
        let told = Frame::Use { path: Path::Rdma, turn: 1 };
        receiver.handle_frame(lane, told, Duration::ZERO).expect("allowed");
    }
    receiver
}

fn ends(receiver: &mut Receiver, now: Duration) -> bool {
    receiver.handle_timeout(now);
    receiver.advance(now);
    std::iter::from_fn(|| receiver.poll_action()).any(|action| matches!(action, Action::End(Outcome::LinkLost { .. })))
}

#[test]
fn the_switch_to_tcp_is_waited_for_while_the_peer_is_heard() {
    let mut receiver = by_rdma(Policy::PreferRdma);
    receiver.handle_lane_down(RDMA, MS(100));
    assert!(!ends(&mut receiver, MS(100)) && !ends(&mut receiver, MS(1500)));
    receiver.handle_frame(TCP, Frame::Use { path: Path::Tcp, turn: 2 }, MS(1600)).expect("allowed");
    for now in (2000..20_000).step_by(1000).map(MS) {
        receiver.handle_heard(TCP, now);
        assert!(!ends(&mut receiver, now), "{now:?}");
    }
    // There is nothing left to switch to.
    receiver.handle_lane_down(TCP, MS(20_000));
    assert!(ends(&mut receiver, MS(20_000)));
}

#[test]
fn no_switch_is_waited_for_that_cannot_come() {
    let mut silent = by_rdma(Policy::PreferRdma);
    assert!(!ends(&mut silent, MS(2500)));
    silent.handle_heard(RDMA, MS(2500));
    silent.handle_lane_down(RDMA, MS(2600));
    assert!(ends(&mut silent, MS(2600)), "the peer is not heard by TCP");
    let mut alone = by_rdma(Policy::Rdma);
    alone.handle_lane_down(RDMA, MS(100));
    assert!(ends(&mut alone, MS(100)), "TCP may carry no payload");
    let mut late = by_rdma(Policy::PreferRdma);
    late.handle_lane_down(RDMA, MS(100));
    let ended = (1..50).map(|n| MS(100 * n)).find(|now| {
        late.handle_heard(TCP, *now);
        ends(&mut late, *now)
    });
    assert!(ended.is_some_and(|ended| ended >= MS(2000) && ended < MS(2500)), "{ended:?}");
}
