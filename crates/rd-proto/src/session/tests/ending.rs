//! What an end still says and does once it knows how the session ends.

use super::*;

/// Lets the machine work at this time, and returns its actions.
fn actions(machine: &mut impl Machine, now: Duration) -> Vec<Action> {
    machine.handle_timeout(now);
    machine.advance(now);
    std::iter::from_fn(|| machine.poll_action()).collect()
}

#[test]
fn a_link_that_is_lost_once_all_is_published_is_not_reported() {
    for is_published in [false, true] {
        let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
        let mut receiver = Receiver::new(agreed, false, 8, Layout::Stream, 1);
        receiver.handle_lane_up(FIRST, Duration::ZERO);
        if is_published {
            receiver.handle_committed(0, TICK);
        }
        receiver.handle_lane_down(FIRST, TICK);
        let told: Vec<Action> = (2..20)
            .flat_map(|tick| actions(&mut receiver, tick * TICK))
            .filter(|action| matches!(action, Action::Notice(_) | Action::End(_)))
            .collect();
        let lost = [Action::Notice(Notice::LinkLost)];
        assert_eq!(told, lost[usize::from(is_published)..], "published: {is_published}");
    }
}

/// The end of a loss that was reported is reported too.
#[test]
fn a_link_that_returns_after_the_data_is_published() {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    let mut receiver = Receiver::new(agreed, false, 8, Layout::Stream, 1);
    receiver.handle_lane_up(FIRST, Duration::ZERO);
    receiver.handle_lane_down(FIRST, TICK);
    let mut told: Vec<Action> = (2..20).flat_map(|tick| actions(&mut receiver, tick * TICK)).collect();
    receiver.handle_committed(0, 20 * TICK);
    receiver.handle_lane_up(LaneId { index: 0, generation: 1 }, 21 * TICK);
    told.extend(actions(&mut receiver, 22 * TICK));
    told.retain(|action| matches!(action, Action::Notice(_) | Action::End(_)));
    assert_eq!(told, [Notice::LinkLost, Notice::LinkRestored].map(Action::Notice));
}

/// Returns an end that has found, at the first tick, that there is no RDMA, on which its policy insists. Lane 0 has just
/// been lost.
fn without_rdma() -> Sender {
    let agreed = pair(|ours, _| ours.policy = Policy::Rdma).expect("agreed");
    let mut sender = Sender::new(agreed, true, 8);
    sender.handle_lane_up(FIRST, Duration::ZERO);
    let dialled = actions(&mut sender, TICK);
    sender.handle_lane_down(FIRST, TICK);
    for action in dialled {
        if let Action::Dial(lane) = action {
            sender.handle_dial_failed(lane, TICK);
        }
    }
    sender
}

fn is_end(action: &Action) -> bool {
    matches!(action, Action::End(_))
}

#[test]
fn the_lack_of_rdma_is_told_on_a_lane_that_comes_up() {
    let mut sender = without_rdma();
    let is_told = |action: &Action| matches!(action, Action::Send(_, Frame::Abort(Cause::NoRdma)));
    let done = actions(&mut sender, 2 * TICK);
    assert!(!done.iter().any(|action| is_told(action) || is_end(action)), "{done:?}");
    let again = LaneId { index: 0, generation: 1 };
    sender.handle_lane_up(again, 3 * TICK);
    let done = actions(&mut sender, 3 * TICK);
    assert!(done.iter().any(is_told) && !done.iter().any(is_end), "{done:?}");
    sender.handle_frame(again, Frame::Bye, 4 * TICK).expect("in its place");
    assert_eq!(actions(&mut sender, 4 * TICK).pop(), Some(Action::End(Outcome::NoRdma)));
}

#[test]
fn the_lack_of_rdma_ends_the_session_if_no_lane_comes_up() {
    let mut sender = without_rdma();
    let early = actions(&mut sender, ABORT_WAIT);
    assert!(!early.iter().any(is_end), "{early:?}");
    assert_eq!(actions(&mut sender, TICK + ABORT_WAIT).pop(), Some(Action::End(Outcome::NoRdma)));
}
