//! How many lanes a sender tries and keeps.

use super::*;

/// Returns the number of lanes of a sender that always has data for them, after `ticks` on a line. `tells`: the system
/// reports the moved bytes, while the receiver takes nothing.
fn lanes_with(processors: u16, tells: bool, round_trip: Duration, ticks: u32) -> u16 {
    let agreed = pair(|ours, _| ours.policy = Policy::Tcp).expect("agreed");
    // A pool that may grow.
    let mut sender = Sender::new(agreed, true, 1024);
    sender.begin_with_buffers(8);
    sender.handle_processors(processors);
    sender.handle_lane_up(FIRST, Duration::ZERO);
    let ack = Frame::Ack { credit_total: 8, window: 8, taken: SequenceSet::default() };
    sender.handle_frame(FIRST, ack, Duration::ZERO).expect("credit");
    let (mut bytes, mut sequence) = (0, 0);
    for tick in 1..ticks {
        let now = tick * Duration::from_millis(100);
        sender.handle_heard(FIRST, now);
        sender.handle_round_trip(round_trip, now);
        sender.advance(now);
        while let Some(action) = sender.poll_action() {
            if let Action::Fill { buffer, .. } = action {
                sender.handle_sealed(buffer, &ChunkHeader { sealed: true, sequence, ..ChunkHeader::default() });
                sequence += 1;
                sender.advance(now);
            }
        }
        // Each lane carries as much as every other.
        bytes += u64::from(sender.core_ref().lanes.tcp_lanes()) << 20;
        if tells {
            let state = LaneState { round_trip: Some(round_trip), is_unanswered: true, moved_bytes: Some(bytes) };
            sender.handle_lane_state(FIRST, state, now);
        } else {
            sender.core().counters.bytes = bytes;
        }
        sender.handle_timeout(now);
    }
    sender.core_ref().lanes.tcp_lanes()
}

#[test]
fn a_short_line_has_as_many_lanes_as_carry_more_and_processors_serve() {
    for tells in [false, true] {
        let lanes = |processors| lanes_with(processors, tells, Duration::from_micros(50), 30);
        assert_eq!([0, 2, 6, 64].map(lanes), [2, 2, 6, 16]);
    }
}

/// Chunks that lanes seal themselves never wait where the sender would see them.
#[test]
fn a_long_line_has_as_many_lanes_as_carry_more() {
    assert_eq!(lanes_with(2, true, Duration::from_millis(10), 300), 16);
}
