//! Pools of different sizes at the two ends.

use super::*;

/// Number of chunks that are sent, more than any pool holds.
const CHUNKS: u64 = 600;

const RDMA: LaneId = LaneId { index: RDMA_LANE_FIRST, generation: 0 };

/// Sends chunks from a pool of `sent_from` buffers to one of `taken_into` by one lane, while no time passes. Returns
/// how many are taken when nothing more happens.
fn taken_at_once(policy: Policy, layout: Layout, sent_from: u32, taken_into: u32) -> u64 {
    let now = Duration::ZERO;
    let agreed = pair(|ours, _| ours.policy = policy).expect("agreed");
    let mut sender = Sender::new(agreed, true, sent_from);
    let mut receiver = Receiver::new(agreed, false, taken_into, layout, 1);
    for lane in [FIRST].into_iter().chain(agreed.try_rdma.then_some(RDMA)) {
        sender.handle_lane_up(lane, now);
        receiver.handle_lane_up(lane, now);
    }
    let (mut sequence, mut posted) = (0, VecDeque::new());
    let mut headers = vec![ChunkHeader::default(); sent_from as usize];
    loop {
        let mut is_over = true;
        sender.advance(now);
        while let Some(action) = sender.poll_action() {
            is_over = false;
            match action {
                Action::Send(lane, frame) => receiver.handle_frame(lane, frame, now).expect("in its place"),
                Action::Fill { buffer, .. } if sequence == CHUNKS => sender.handle_unfilled(buffer),
                Action::Fill { buffer, encrypt } => {
                    let header = ChunkHeader {
                        is_final: sequence + 1 == CHUNKS,
                        sealed: encrypt,
                        wire_bytes: 1,
                        plain_bytes: 1,
                        sequence,
                        position: sequence,
                        tag: [1; 16],
                        ..ChunkHeader::default()
                    };
                    sequence += 1;
                    headers[buffer as usize] = header;
                    sender.handle_sealed(buffer, &header);
                }
                Action::SendChunk(lane, buffer) => {
                    sender.handle_sent(lane, buffer, now);
                    let arrived = posted.pop_front().expect("no chunk without a credit");
                    receiver.handle_chunk(lane, arrived, Some(&headers[buffer as usize])).expect("in order");
                    receiver.handle_opened(arrived, true, now);
                }
                _ => {}
            }
        }
        receiver.advance(now);
        while let Some(action) = receiver.poll_action() {
            is_over = false;
            match action {
                Action::Send(lane, frame) => sender.handle_frame(lane, frame, now).expect("in its place"),
                Action::PostReceive(_, buffer) => posted.push_back(buffer),
                Action::Write(buffer) => receiver.handle_written(buffer, 0, now),
                _ => {}
            }
        }
        if is_over {
            return receiver.counters().chunks;
        }
    }
}

#[test]
fn no_sender_waits_for_a_delayed_acknowledgement() {
    for policy in [Policy::Tcp, Policy::PreferRdma] {
        for layout in [Layout::File, Layout::Stream] {
            for sent_from in [4, 5, 7, 32, 256] {
                for taken_into in [4, 7, 32, 128, 256] {
                    let taken = taken_at_once(policy, layout, sent_from, taken_into);
                    assert_eq!(taken, CHUNKS, "{policy:?}, {layout:?}, {sent_from} and {taken_into} buffers");
                }
            }
        }
    }
}

/// A sender that has been stopped reads nothing, while its adapter sends all that was posted. A lane on which too many
/// control frames wait ends.
#[test]
fn the_acknowledgements_of_a_whole_pool_are_few() {
    let now = Duration::ZERO;
    for buffers in [32, 191, 512, 4096] {
        let agreed = pair(|ours, _| ours.policy = Policy::PreferRdma).expect("agreed");
        let mut receiver = Receiver::new(agreed, false, buffers, Layout::Stream, 1);
        for lane in [FIRST, RDMA] {
            receiver.handle_lane_up(lane, now);
        }
        for lane in [FIRST, RDMA] {
            receiver.handle_frame(lane, Frame::Use { path: Path::Rdma, turn: 1 }, now).expect("allowed");
        }
        let (mut posted, mut acknowledgements) = (VecDeque::new(), 0);
        for sequence in 0..u64::from(buffers) {
            receiver.advance(now);
            while let Some(action) = receiver.poll_action() {
                match action {
                    Action::PostReceive(_, buffer) => posted.push_back(buffer),
                    Action::Write(buffer) => receiver.handle_written(buffer, 0, now),
                    Action::Send(_, Frame::Ack { .. }) => acknowledgements += 1,
                    _ => {}
                }
            }
            let arrived = posted.pop_front().expect("as many as there are buffers");
            let header =
                ChunkHeader { wire_bytes: 1, plain_bytes: 1, sequence, position: sequence, ..ChunkHeader::default() };
            receiver.handle_chunk(RDMA, arrived, Some(&header)).expect("in order");
            receiver.handle_opened(arrived, true, now);
        }
        assert!((2..=66).contains(&acknowledgements), "{buffers} buffers: {acknowledgements}");
    }
}
