//! What a receiver takes for the cause when its lanes come up again and are lost again.

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Returns what a receiver says of lanes that come up in vain when it ends: its first lane is lost, and each later one
/// is heard once more after this many milliseconds. `None` if it does not end.
fn in_vain(heard_after: u64) -> Option<bool> {
    let mut agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    agreed.reconnect = Duration::from_secs(3);
    let mut receiver = Receiver::new(agreed, false, 8, Layout::Stream, 1);
    let (mut up, mut generation) = (false, 0);
    for now in (0..30_000).step_by(100) {
        let lane = LaneId { index: 0, generation };
        if !std::mem::replace(&mut up, true) {
            receiver.handle_lane_up(lane, MS(now));
            receiver.handle_heard(lane, MS(now + heard_after));
        }
        receiver.handle_timeout(MS(now));
        receiver.advance(MS(now));
        while let Some(action) = receiver.poll_action() {
            match action {
                Action::End(Outcome::LinkLost { .. }) => return Some(receiver.lanes_come_up_in_vain()),
                Action::Close(lost) if lost == lane => {
                    receiver.handle_lane_down(lane, MS(now));
                    (up, generation) = (false, generation + 1);
                }
                _ => {}
            }
        }
    }
    None
}

#[test]
fn a_receiver_whose_lanes_are_silent_from_the_first_second_knows_why() {
    assert_eq!(in_vain(0), Some(true));
    assert_eq!(in_vain(2000), Some(false), "the peer has spoken for a while, so this is a link that comes and goes");
    assert_eq!(in_vain(5000), None, "it lasts");
}
