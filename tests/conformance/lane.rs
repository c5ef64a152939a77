//! The guarantees of `Lane`, checked on a single pair of lanes.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rd_proto::frame::CONTROL_BYTES_MAX;
use rdma_pipe::transport::{Buffer, Lane, LaneError, LaneEvent, Report};

use crate::Case;
use crate::fabric::{Fabric, PATIENCE, Side};

pub const CASES: &[(&str, Case)] = &[
    ("control_frames_arrive_whole_and_in_order", control_frames_arrive_whole_and_in_order),
    ("chunks_of_every_size", chunks_of_every_size),
    ("control_passes_a_full_window", control_passes_a_full_window),
    ("credits_exhausted_both_ways", credits_exhausted_both_ways),
    ("close_reports_down_once_with_every_buffer", close_reports_down_once_with_every_buffer),
    ("last_frames_leave_before_the_close", last_frames_leave_before_the_close),
    ("death_of_the_peer_reports_down", death_of_the_peer_reports_down),
    ("calls_after_down_give_the_buffer_back", calls_after_down_give_the_buffer_back),
    ("overflow_of_control_frames_ends_the_lane", overflow_of_control_frames_ends_the_lane),
    ("last_heard_is_when_the_peer_spoke", last_heard_is_when_the_peer_spoke),
];

const CHUNK_BYTES: usize = 64 << 10;
const WINDOW: u32 = 16;

/// Number of control frames that may always wait; see `Lane::send_control`.
const CONTROL_QUEUE: usize = 128;

/// One end of a pair, with its events and buffers.
struct End {
    lane: Box<dyn Lane>,
    events: mpsc::Receiver<LaneEvent>,
    buffers: Vec<Buffer>,
    /// While this is locked, nothing more is taken from the lane.
    gate: Arc<Mutex<()>>,
    _side: Side,
}

fn pair(fabric: &Arc<dyn Fabric>) -> [End; 2] {
    let channel = || {
        let (sender, events) = mpsc::channel();
        let (sender, gate) = (Mutex::new(sender), Arc::new(Mutex::new(())));
        let opens = Arc::clone(&gate);
        let report: Report = Arc::new(move |event| {
            drop(opens.lock().expect("not poisoned"));
            let _ = sender.lock().expect("not poisoned").send(event);
        });
        (report, events, gate)
    };
    let ((one, one_events, one_gate), (other, other_events, other_gate)) = (channel(), channel());
    let (side, buffers) = Side::new(4 * WINDOW, CHUNK_BYTES);
    let (other_side, other_buffers) = Side::new(4 * WINDOW, CHUNK_BYTES);
    let [lane, other_lane] = fabric.connect([&side, &other_side], [one, other]);
    [
        End { lane, events: one_events, buffers, gate: one_gate, _side: side },
        End { lane: other_lane, events: other_events, buffers: other_buffers, gate: other_gate, _side: other_side },
    ]
}

impl End {
    fn next(&self) -> LaneEvent {
        self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("nothing from {}", self.lane.describe()))
    }

    fn control(&self) -> Vec<u8> {
        match self.next() {
            LaneEvent::Control(frame) => frame,
            other => panic!("expected a control frame, got {other:?}"),
        }
    }

    fn post(&mut self, count: u32) {
        for _ in 0..count {
            let buffer = self.buffers.pop().expect("enough buffers");
            self.lane.post_receive(buffer).expect("the lane is up");
        }
    }

    /// Sends a chunk that `check` recognizes by its number.
    fn send(&mut self, number: usize, bytes: usize) {
        let mut buffer = self.buffers.pop().expect("enough buffers");
        for (at, byte) in buffer.header_mut().iter_mut().enumerate() {
            *byte = (number + at) as u8;
        }
        // A transport may read the payload's length in the header, or use the argument.
        buffer.header_mut()[0] = b'C';
        buffer.header_mut()[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
        for (at, byte) in buffer.payload_mut()[..bytes].iter_mut().enumerate() {
            *byte = pattern(number, at);
        }
        self.lane.send_chunk(buffer, bytes as u32).expect("the lane is up");
    }

    /// Receives this many chunks, completions and control frames, in any order.
    fn take(&mut self, chunks: &mut Vec<(Buffer, u32)>, mut arriving: usize, mut sent: usize, mut controls: usize) {
        while arriving + sent + controls > 0 {
            match self.next() {
                LaneEvent::Chunk { buffer, wire_bytes, .. } => {
                    arriving = arriving.checked_sub(1).expect("a chunk too many");
                    chunks.push((buffer, wire_bytes));
                }
                LaneEvent::Unsent(_) => panic!("nothing was asked to be prepared"),
                LaneEvent::Sent(buffer) => {
                    sent = sent.checked_sub(1).expect("a completion too many");
                    self.buffers.push(buffer);
                }
                LaneEvent::Control(_) => controls = controls.checked_sub(1).expect("a frame too many"),
                LaneEvent::Down { reason, .. } => panic!("{} went down: {reason}", self.lane.describe()),
            }
        }
    }

    /// Waits for the end of the lane. Returns the reason, and the number of buffers that came
    /// with the end or before it.
    fn down(&self) -> (LaneError, usize) {
        let mut returned = 0;
        loop {
            match self.next() {
                LaneEvent::Down { reason, buffers } => return (reason, returned + buffers.len()),
                LaneEvent::Chunk { .. } | LaneEvent::Sent(_) | LaneEvent::Unsent(_) => returned += 1,
                LaneEvent::Control(_) => {}
            }
        }
    }

    fn says_nothing_more(&self) {
        match self.events.recv_timeout(Duration::from_millis(400)) {
            Ok(event) => panic!("{event:?} after the end"),
            Err(mpsc::RecvTimeoutError::Timeout | mpsc::RecvTimeoutError::Disconnected) => {}
        }
    }
}

fn pattern(number: usize, at: usize) -> u8 {
    (at.wrapping_mul(131) >> 3) as u8 ^ (number as u8).wrapping_mul(59)
}

fn check(buffer: &Buffer, number: usize, bytes: usize) {
    let header = buffer.header();
    assert_eq!(header[8..], std::array::from_fn::<u8, 40, _>(|at| (number + at + 8) as u8), "header of {number}");
    assert!(
        (0..bytes).all(|at| buffer.payload()[at] == pattern(number, at)),
        "payload of chunk {number}, {bytes} bytes"
    );
}

fn control_frames_arrive_whole_and_in_order(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    let sizes = [1, 2, 3, 15, 16, 17, 255, 256, 1023, 1024, 2000, 4000, CONTROL_BYTES_MAX - 1, CONTROL_BYTES_MAX];
    for round in 0..6_usize {
        let frames: Vec<Vec<u8>> =
            (0..CONTROL_QUEUE / 2).map(|at| vec![(round + at) as u8; sizes[(round * 5 + at) % sizes.len()]]).collect();
        for frame in &frames {
            one.lane.send_control(frame);
            other.lane.send_control(frame);
        }
        for frame in &frames {
            assert!(one.control() == *frame, "frame of {} bytes, round {round}", frame.len());
            assert!(other.control() == *frame, "frame of {} bytes, round {round}", frame.len());
        }
    }
}

fn chunks_of_every_size(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    for (number, bytes) in [0, 1, 47, 48, 4095, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, 0, 1].into_iter().enumerate() {
        one.post(1);
        other.post(1);
        one.send(number, bytes);
        other.send(number + 100, bytes);
        for (end, number) in [(&mut one, number + 100), (&mut other, number)] {
            let mut chunks = Vec::new();
            end.take(&mut chunks, 1, 1, 0);
            let (buffer, wire_bytes) = chunks.pop().expect("taken");
            assert_eq!(wire_bytes as usize, bytes);
            check(&buffer, number, bytes);
            end.buffers.push(buffer);
        }
    }
}

fn control_passes_a_full_window(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    let mut chunks = Vec::new();
    for round in 0..3 {
        other.post(WINDOW);
        for number in 0..WINDOW as usize {
            one.send(round + number, CHUNK_BYTES);
        }
        // The receiver posts nothing more, as if its sink stood still. Control frames pass in
        // both directions all the same.
        other.take(&mut chunks, WINDOW as usize, 0, 0);
        one.take(&mut Vec::new(), 0, WINDOW as usize, 0);
        for at in 0..CONTROL_QUEUE as u8 / 2 {
            one.lane.send_control(&[at; 100]);
            other.lane.send_control(&[at; 100]);
        }
        for at in 0..CONTROL_QUEUE as u8 / 2 {
            assert_eq!(one.control(), [at; 100]);
            assert_eq!(other.control(), [at; 100]);
        }
        for (number, (buffer, wire_bytes)) in chunks.drain(..).enumerate() {
            check(&buffer, round + number, wire_bytes as usize);
            other.buffers.push(buffer);
        }
    }
}

fn credits_exhausted_both_ways(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    for round in 0..4 {
        one.post(WINDOW);
        other.post(WINDOW);
        // As many chunks as the other end has posted, from both ends at once, with control frames in between.
        for number in 0..WINDOW as usize {
            one.send(round + number, CHUNK_BYTES);
            other.send(round + number, CHUNK_BYTES);
            one.lane.send_control(&[1; 40]);
            other.lane.send_control(&[2; 40]);
        }
        for end in [&mut one, &mut other] {
            let mut chunks = Vec::new();
            end.take(&mut chunks, WINDOW as usize, WINDOW as usize, WINDOW as usize);
            for (number, (buffer, wire_bytes)) in chunks.into_iter().enumerate() {
                check(&buffer, round + number, wire_bytes as usize);
                end.buffers.push(buffer);
            }
        }
    }
}

fn close_reports_down_once_with_every_buffer(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    one.post(5);
    other.post(3);
    for number in 0..3 {
        one.send(number, CHUNK_BYTES);
    }
    let asked = Instant::now();
    one.lane.close();
    one.lane.close();
    let (reason, returned) = one.down();
    assert_eq!(reason, LaneError::Closed);
    assert!(asked.elapsed() < PATIENCE / 4, "took {:?}", asked.elapsed());
    assert_eq!(returned, 5 + 3, "posted and sent, all are back");
    let (reason, returned) = other.down();
    assert_ne!(reason, LaneError::Closed, "it was not closed here");
    assert_eq!(returned, 3);
    one.says_nothing_more();
    other.says_nothing_more();
}

fn last_frames_leave_before_the_close(fabric: &Arc<dyn Fabric>) {
    let [mut one, other] = pair(fabric);
    for at in 0..8_u8 {
        one.lane.send_control(&[at; 200]);
    }
    one.lane.close();
    for at in 0..8_u8 {
        assert_eq!(other.control(), [at; 200]);
    }
    assert!(matches!(other.next(), LaneEvent::Down { .. }));
    assert_eq!(one.down().0, LaneError::Closed);
}

fn death_of_the_peer_reports_down(fabric: &Arc<dyn Fabric>) {
    let [mut one, other] = pair(fabric);
    one.post(2);
    drop(other.lane);
    let (reason, returned) = one.down();
    assert_ne!(reason, LaneError::Closed);
    assert_eq!(returned, 2);
    one.says_nothing_more();
}

fn calls_after_down_give_the_buffer_back(fabric: &Arc<dyn Fabric>) {
    let [mut one, mut other] = pair(fabric);
    one.lane.close();
    one.down();
    other.down();
    for end in [&mut one, &mut other] {
        let buffer = end.buffers.pop().expect("a buffer");
        let id = buffer.id();
        let buffer = end.lane.send_chunk(buffer, 1).expect_err("the lane is down");
        assert_eq!(buffer.id(), id);
        let buffer = end.lane.post_receive(buffer).expect_err("the lane is down");
        assert_eq!(buffer.id(), id);
        end.lane.send_control(&[1; 10]);
        end.lane.close();
        end.says_nothing_more();
    }
}

fn overflow_of_control_frames_ends_the_lane(fabric: &Arc<dyn Fabric>) {
    let [mut one, other] = pair(fabric);
    // The peer takes none of them, and the path between the two does not hold that many.
    let shut = other.gate.lock().expect("not poisoned");
    for _ in 0..64 << 20 >> 12 {
        one.lane.send_control(&[7; CONTROL_BYTES_MAX]);
    }
    drop(shut);
    let (reason, _) = one.down();
    assert!(matches!(reason, LaneError::Framing(_)), "{reason}");
}

fn last_heard_is_when_the_peer_spoke(fabric: &Arc<dyn Fabric>) {
    let [one, mut other] = pair(fabric);
    let before = Instant::now();
    other.lane.send_control(&[1; 10]);
    one.control();
    // Transports may count in whole milliseconds.
    let heard = one.lane.last_heard();
    assert!(heard + Duration::from_millis(2) >= before && heard <= Instant::now());
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(one.lane.last_heard(), heard, "a silent peer is not heard");
    other.lane.send_control(&[1; 10]);
    one.control();
    assert!(one.lane.last_heard() > heard + Duration::from_millis(100));
}
