//! A session over which nothing goes for a while.

use super::*;

#[test]
fn heartbeats_are_no_reason_for_more_lanes() {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut receiver = Receiver::new(agreed, true, 8, Layout::Stream, 1);
    let round_trip = Duration::from_millis(20);
    receiver.handle_lane_up(FIRST, Duration::ZERO);
    let mut lanes = vec![(FIRST, 0)];
    for tick in 1..600_u32 {
        let now = tick * TICK;
        receiver.handle_round_trip(round_trip, now);
        for &(lane, since) in &lanes {
            // A PING in each direction a second.
            let moved_bytes = Some(u64::from(84 * (tick - since) / 10));
            let state = LaneState { round_trip: Some(round_trip), is_unanswered: false, moved_bytes };
            receiver.handle_lane_state(lane, state, now);
            receiver.handle_heard(lane, now);
        }
        receiver.handle_timeout(now);
        receiver.advance(now);
        while let Some(action) = receiver.poll_action() {
            if let Action::Dial(lane) = action {
                receiver.handle_lane_up(lane, now);
                lanes.push((lane, tick));
            }
        }
        assert_eq!(receiver.core_ref().lanes.tcp_lanes(), 4, "{now:?}");
    }
    assert_eq!(lanes.len(), 4);
}
