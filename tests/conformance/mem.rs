//! Memory lanes: both ends are in one process.
//!
//! One courier thread for each pair carries everything by the clock. Frames and chunks are delayed, and control frames
//! overtake chunks. Losses and damage come from [`crate::script`], as over every transport.
//!
//! # Invariants
//!
//! * Only the courier reports, so nothing follows a lane's `Down`.
//! * A chunk for which no receive is posted ends the lane at its destination, as on every transport.
//! * [`Lane::last_heard`] advances when anything from the peer arrives.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rd_proto::frame::CONTROL_BYTES_MAX;

use rdma_pipe::transport::{Buffer, CONTROL_QUEUE_MAX, Lane, LaneError, LaneEvent, Medium, Report};

/// How long a closing end tries to send its last control frames.
const CLOSE_WAIT: Duration = Duration::from_millis(300);

/// How long the courier waits before it looks again, even if nothing is due.
const IDLE: Duration = Duration::from_secs(1);

/// Delays between the two ends.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Delay of everything that is sent.
    pub all: Duration,
    /// Additional delay of chunks. Control frames overtake them, as on separate queue pairs.
    pub chunks: Duration,
}

/// One end of a pair.
pub struct MemLane {
    shared: Arc<Shared>,
    end: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    ends: [End; 2],
    delays: Delays,
}

struct End {
    report: Report,
    control: VecDeque<(Instant, Vec<u8>)>,
    chunks: VecDeque<(Instant, Buffer, u32)>,
    posted: VecDeque<Buffer>,
    closing_until: Option<Instant>,
    down_at: Option<(Instant, LaneError)>,
    reported_down: bool,
    heard: Instant,
}

/// Makes a pair of lanes that are each other's peer. Each end reports to its own function.
///
/// # Errors
///
/// The system's error if the courier's thread cannot be started.
pub fn pair(reports: [Report; 2], delays: Delays) -> std::io::Result<(MemLane, MemLane)> {
    let now = Instant::now();
    let ends = reports.map(|report| End {
        report,
        control: VecDeque::new(),
        chunks: VecDeque::new(),
        posted: VecDeque::new(),
        closing_until: None,
        down_at: None,
        reported_down: false,
        heard: now,
    });
    let shared = Arc::new(Shared { state: Mutex::new(State { ends, delays }), work: Condvar::new() });
    let courier = Arc::clone(&shared);
    std::thread::Builder::new().name("mem-courier".to_owned()).spawn(move || courier.carry())?;
    let lane = |end| MemLane { shared: Arc::clone(&shared), end };
    Ok((lane(0), lane(1)))
}

impl Lane for MemLane {
    fn medium(&self) -> Medium {
        // Different from TCP, because sessions change between the two.
        Medium::RdmaSoftware
    }

    fn describe(&self) -> String {
        format!("memory, end {}", self.end)
    }

    fn send_control(&mut self, sealed: &[u8]) {
        debug_assert!(!sealed.is_empty() && sealed.len() <= CONTROL_BYTES_MAX);
        let mut state = self.shared.lock();
        let due = Instant::now() + state.delays.all;
        let end = &mut state.ends[self.end];
        if end.control.len() == CONTROL_QUEUE_MAX {
            end.fail(LaneError::Framing("the peer does not read its control frames"));
        } else if end.closing_until.is_none() {
            end.control.push_back((due, sealed.to_vec()));
        }
        drop(state);
        self.shared.work.notify_all();
    }

    fn has_control_waiting(&self) -> bool {
        !self.shared.lock().ends[self.end].control.is_empty()
    }

    fn send_chunk(&mut self, buffer: Buffer, wire_bytes: u32) -> Result<(), Buffer> {
        let mut state = self.shared.lock();
        let due = Instant::now() + state.delays.all + state.delays.chunks;
        let end = &mut state.ends[self.end];
        if end.reported_down {
            return Err(buffer);
        }
        end.chunks.push_back((due, buffer, wire_bytes));
        drop(state);
        self.shared.work.notify_all();
        Ok(())
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        let mut state = self.shared.lock();
        let end = &mut state.ends[self.end];
        if end.reported_down {
            return Err(buffer);
        }
        end.posted.push_back(buffer);
        Ok(())
    }

    fn close(&mut self) {
        let mut state = self.shared.lock();
        let end = &mut state.ends[self.end];
        end.closing_until.get_or_insert_with(|| Instant::now() + CLOSE_WAIT);
        drop(state);
        self.shared.work.notify_all();
    }

    fn last_heard(&self) -> Instant {
        self.shared.lock().ends[self.end].heard
    }
}

impl Drop for MemLane {
    fn drop(&mut self) {
        self.close();
    }
}

impl End {
    fn fail(&mut self, reason: LaneError) {
        let reason = if self.closing_until.is_some() { LaneError::Closed } else { reason };
        self.down_at = Some((Instant::now(), reason));
    }
}

/// Next action of the courier.
enum Step {
    Report(Report, LaneEvent),
    /// A chunk has arrived. Its sender is informed too.
    Delivered {
        to: (Report, LaneEvent),
        from: (Report, LaneEvent),
    },
    /// The state has changed, so the courier looks again.
    Again,
    Wait(Instant),
    /// Both ends have been told that the lane is down.
    Over,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the pair locked")
    }

    fn carry(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.step(now) {
                Step::Again => {}
                Step::Over => return,
                Step::Wait(until) => {
                    let wait = until.saturating_duration_since(now);
                    state = self.work.wait_timeout(state, wait).expect("no thread panics with the pair locked").0;
                }
                // Reports are made without the lock, because the receiver of a report may call the lane.
                Step::Report(report, event) => {
                    drop(state);
                    report(event);
                    state = self.lock();
                }
                Step::Delivered { to, from } => {
                    drop(state);
                    (to.0)(to.1);
                    (from.0)(from.1);
                    state = self.lock();
                }
            }
        }
    }
}

impl State {
    fn step(&mut self, now: Instant) -> Step {
        if self.ends.iter().all(|end| end.reported_down) {
            return Step::Over;
        }
        let mut wake = now + IDLE;
        for from in 0..2 {
            match self.carry_from(from, now) {
                Step::Wait(until) => wake = wake.min(until),
                step => return step,
            }
        }
        for at in 0..2 {
            let end = &mut self.ends[at];
            if end.reported_down {
                continue;
            }
            if let (None, Some(until)) = (&end.down_at, end.closing_until) {
                if end.control.is_empty() || now >= until {
                    end.down_at = Some((now, LaneError::Closed));
                } else {
                    wake = wake.min(until);
                }
            }
            let end = &mut self.ends[at];
            match &end.down_at {
                Some((due, reason)) if *due <= now => {
                    let reason = reason.clone();
                    end.reported_down = true;
                    let mut buffers: Vec<Buffer> = end.posted.drain(..).collect();
                    buffers.extend(end.chunks.drain(..).map(|(_, buffer, _)| buffer));
                    end.control.clear();
                    let report = Arc::clone(&end.report);
                    let peer = &mut self.ends[1 - at];
                    // An end that goes down takes the lane with it, which the other end notices.
                    if peer.down_at.is_none() {
                        peer.down_at = Some((now + self.delays.all, LaneError::PeerClosed));
                    }
                    return Step::Report(report, LaneEvent::Down { reason, buffers });
                }
                Some((due, _)) => wake = wake.min(*due),
                None => {}
            }
        }
        Step::Wait(wake)
    }

    /// Delivers the next frame or chunk from one end, if one is due.
    fn carry_from(&mut self, from: usize, now: Instant) -> Step {
        let idle = Step::Wait(now + IDLE);
        let [first, second] = &mut self.ends;
        let (end, peer) = if from == 0 { (first, second) } else { (second, first) };
        if end.reported_down || peer.reported_down {
            return idle;
        }
        let chunk_due = end.chunks.front().filter(|_| end.closing_until.is_none()).map(|(due, ..)| *due);
        if let Some((due, _)) = end.control.front()
            && (*due <= now || chunk_due.is_none_or(|chunk_due| *due <= chunk_due))
        {
            if *due > now {
                return Step::Wait(*due);
            }
            let (_, frame) = end.control.pop_front().expect("just seen");
            peer.heard = now;
            return Step::Report(Arc::clone(&peer.report), LaneEvent::Control(frame));
        }
        match chunk_due {
            None => return idle,
            Some(due) if due > now => return Step::Wait(due),
            Some(_) => {}
        }
        let Some(mut target) = peer.posted.pop_front() else {
            peer.fail(LaneError::Framing("a chunk for which no receive was posted"));
            return Step::Again;
        };
        let (_, buffer, wire_bytes) = end.chunks.pop_front().expect("just seen");
        let bytes = wire_bytes as usize;
        if bytes > target.payload().len() {
            peer.posted.push_front(target);
            end.chunks.push_front((now, buffer, wire_bytes));
            peer.fail(LaneError::Framing("a chunk longer than agreed"));
            return Step::Again;
        }
        *target.header_mut() = *buffer.header();
        target.payload_mut()[..bytes].copy_from_slice(&buffer.payload()[..bytes]);
        peer.heard = now;
        end.heard = now;
        Step::Delivered {
            to: (Arc::clone(&peer.report), LaneEvent::Chunk { buffer: target, wire_bytes, opened: None }),
            from: (Arc::clone(&end.report), LaneEvent::Sent(buffer)),
        }
    }
}
