//! An end that is stopped for a while.

use super::*;
use crate::session::lanes::HEARD_MAX;

#[test]
fn what_was_sent_before_a_pause_and_comes_behind_it_does_not_end_it() {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut sender = Sender::new(agreed, true, 8);
    let lanes = [LaneId { index: 0, generation: 0 }, LaneId { index: 1, generation: 1 }];
    let second = Duration::from_secs(1);
    let closed = |sender: &mut Sender, now| {
        sender.handle_timeout(now);
        sender.advance(now);
        std::iter::from_fn(|| sender.poll_action()).filter(|action| matches!(action, Action::Close(_))).count()
    };
    sender.handle_lane_up(lanes[0], second);
    assert_eq!(closed(&mut sender, second), 0);
    sender.handle_lane_up(lanes[1], second);
    let frame = |sender: &mut Sender, lane: usize, frame| {
        sender.handle_frame(lanes[lane], frame, second).expect("in its place");
    };
    frame(&mut sender, 0, Frame::Pause);
    frame(&mut sender, 1, Frame::Ping);
    let mut now = second;
    while now < 4 * HEARD_MAX {
        now += second;
        assert_eq!(closed(&mut sender, now), 0, "{now:?}");
    }
    // The peer continues, and says so on all lanes.
    let now = now + second;
    sender.handle_frame(lanes[0], Frame::Ping, now).expect("in its place");
    assert_eq!(closed(&mut sender, now + HEARD_MAX / 2), 0, "heard just now");
    assert_eq!(closed(&mut sender, now + HEARD_MAX), 2, "both are silent again");
}
