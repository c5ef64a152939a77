//! The lane: two connected queue pairs, one completion queue, and the thread that polls it.
//!
//! The owner's thread posts work. The lane thread handles completions, connection events and the end of the
//! lane, and it alone reports.
//!
//! # Invariants
//!
//! * A posted buffer is in `Shared::slots`, under its number, and nowhere else.
//! * The queue pairs are destroyed before a buffer posted on them is given back without its completion.
//! * No verbs object outlives the lane thread. Once that thread has reported `Down`, the device may go.

#![allow(unsafe_code, reason = "what is posted must outlive its completion: proved here")]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rd_proto::frame::CHUNK_HEADER_BYTES;
use rd_proto::session::LaneState;
use rd_verbs::{QueuePair, Segment, WorkCompletion};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::connection::Kit;
use super::control::{ControlQueue, Message, Work};
use super::devices::Registered;
use super::{ConnectError, Wake, errno, failure, sleep_on};
use crate::fault::errno_of;
use crate::transport::{Buffer, Lane, LaneError, LaneEvent, Medium, Report, unmapped};

/// Maximum number of completions taken at once.
const BATCH: usize = 32;

/// Longest sleep of the lane thread. Every event that matters wakes it earlier.
const IDLE: Duration = Duration::from_secs(1);

/// How long `close` waits for control frames to be sent.
const CLOSE_FLUSH: Duration = Duration::from_millis(100);

/// How long a disconnected queue pair may take to return its work requests, both before and after it is
/// moved to its error state.
const DRAIN: Duration = Duration::from_millis(50);

struct Shared {
    medium: Medium,
    description: String,
    payload: RwLock<Payload>,
    control: Mutex<ControlQueue>,
    /// The addresses of this end and of the other.
    way: Option<[IpAddr; 2]>,
    /// For each buffer number: the posted buffer, and the number of payload bytes posted.
    slots: Vec<Mutex<Option<(Buffer, u32)>>>,
    /// Number of chunks that are being sent.
    sending: AtomicUsize,
    /// Number of bytes of chunks that have been sent or received.
    moved_bytes: AtomicU64,
    /// Number of work requests of the payload queue pair that have not completed.
    posted: AtomicUsize,
    wake: Arc<Wake>,
    closing: AtomicBool,
    /// Why the lane must end, as found on the owner's thread.
    failure: Mutex<Option<LaneError>>,
    started: Instant,
    /// Time when the peer was last heard, in microseconds after `started`.
    last_heard_us: AtomicU64,
}

enum Payload {
    Open {
        queue_pair: QueuePair,
        registered: Arc<Registered>,
    },
    /// The lane is ending. Buffers are kept for its last event.
    Ending,
    /// The last event has been reported.
    Reported,
}

/// Makes a lane from a connection's two queue pairs. `frames` are control frames that have already arrived, and
/// `greeting_posted` tells whether the greeting has still to complete.
pub(super) fn start(
    control: ControlQueue,
    payload: QueuePair,
    kit: Kit,
    frames: VecDeque<Vec<u8>>,
    greeting_posted: bool,
    report: Report,
) -> Result<Box<dyn Lane>, Errno> {
    let ends = [payload.id().local_address(), payload.id().peer_address()];
    let way = ends[0].zip(ends[1]).map(|(here, there)| [here, there].map(|end| unmapped(end).ip()));
    let [here, there] = ends.map(|end| end.map_or_else(|| "?".to_owned(), |end| end.to_string()));
    let description = format!("{}, {here} → {there}", kit.cm.describe());
    let shared = Arc::new(Shared {
        medium: kit.cm.medium,
        description,
        way,
        sending: AtomicUsize::new(0),
        moved_bytes: AtomicU64::new(0),
        slots: (0..kit.registered.pool.count()).map(|_| Mutex::new(None)).collect(),
        payload: RwLock::new(Payload::Open { queue_pair: payload, registered: Arc::clone(&kit.registered) }),
        control: Mutex::new(control),
        posted: AtomicUsize::new(usize::from(greeting_posted)),
        wake: Arc::clone(&kit.cm.wake),
        closing: AtomicBool::new(false),
        failure: Mutex::new(None),
        started: Instant::now(),
        last_heard_us: AtomicU64::new(0),
    });
    let poller = Poller { shared: Arc::clone(&shared), kit, report, closing_since: None };
    crate::spawn("rd-rdma-lane", 2 << 20, move || poller.run(frames)).map_err(|error| errno_of(&error))?;
    Ok(Box::new(RdmaLane { shared }))
}

struct RdmaLane {
    shared: Arc<Shared>,
}

impl Lane for RdmaLane {
    fn medium(&self) -> Medium {
        self.shared.medium
    }

    fn describe(&self) -> String {
        self.shared.description.clone()
    }

    fn send_control(&mut self, sealed: &[u8]) {
        let outcome = crate::locked(&self.shared.control).send_frame(sealed);
        if let Err(error) = outcome {
            self.shared.fail(error);
        }
    }

    fn has_control_waiting(&self) -> bool {
        crate::locked(&self.shared.control).has_frames_waiting()
    }

    fn send_chunk(&mut self, buffer: Buffer, wire_bytes: u32) -> Result<(), Buffer> {
        assert!(wire_bytes as usize <= buffer.payload().len(), "a chunk fits its buffer");
        self.shared.post(buffer, Work::ChunkSend, wire_bytes)
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        let room = buffer.payload().len() as u32;
        self.shared.post(buffer, Work::ChunkReceive, room)
    }

    fn close(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    fn last_heard(&self) -> Instant {
        self.shared.started + Duration::from_micros(self.shared.last_heard_us.load(Ordering::Relaxed))
    }

    fn state(&self) -> Option<LaneState> {
        Some(LaneState {
            round_trip: None,
            is_unanswered: self.shared.sending.load(Ordering::Relaxed) > 0,
            moved_bytes: Some(self.shared.moved_bytes.load(Ordering::Relaxed)),
        })
    }

    fn way(&self) -> Option<[IpAddr; 2]> {
        self.shared.way
    }
}

impl Drop for RdmaLane {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Posts a buffer: the first `payload_bytes` of its payload, then its header slot. If the lane is ending, its last
    /// event gives the buffer back. Once that event has been reported, this call gives the buffer back.
    fn post(&self, mut buffer: Buffer, work: fn(u32) -> Work, payload_bytes: u32) -> Result<(), Buffer> {
        // Locked until the buffer has been posted, so that the lane thread does not collect the buffers in between.
        let payload = self.payload.read().unwrap_or_else(PoisonError::into_inner);
        if matches!(*payload, Payload::Reported) {
            return Err(buffer);
        }
        let number = buffer.id();
        let (header_at, payload_at) =
            (buffer.header_mut().as_mut_ptr() as u64, buffer.payload_mut().as_mut_ptr() as u64);
        *crate::locked(&self.slots[number as usize]) = Some((buffer, payload_bytes));
        let Payload::Open { queue_pair, registered } = &*payload else { return Ok(()) };
        let local_key = registered.local_key();
        let (start, bytes) = registered.pool.mapping();
        let pool = start.as_ptr() as u64..start.as_ptr() as u64 + bytes as u64;
        assert!(pool.contains(&header_at) && pool.contains(&payload_at), "a buffer of the pool that is registered");
        let segments = [
            Segment { address: payload_at, length: payload_bytes, local_key },
            Segment { address: header_at, length: CHUNK_HEADER_BYTES as u32, local_key },
        ];
        // Some adapters take a segment of length 0 to mean 2 GiB.
        let segments = if payload_bytes == 0 { &segments[1..] } else { &segments[..] };
        self.posted.fetch_add(1, Ordering::AcqRel);
        let work = work(number);
        if matches!(work, Work::ChunkSend(_)) {
            self.sending.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match work {
            // SAFETY: the buffer is the only handle to these bytes. It stays in `slots` until the lane thread has
            // polled this completion or dropped the queue pair. The pool stays mapped by `registered`.
            Work::ChunkSend(_) => unsafe { queue_pair.send(work.encode(), segments) },
            // SAFETY: as above.
            _ => unsafe { queue_pair.receive(work.encode(), segments) },
        };
        if let Err(error) = outcome {
            self.note_done();
            self.fail(error.into());
        }
        Ok(())
    }

    /// Counts a work request that has completed or was refused. When a connection ends, a device may report
    /// both for the same request, so this may count too many. Then the lane is ending, and no buffer is given
    /// back because of the count.
    fn note_done(&self) {
        let _ = self.posted.fetch_update(Ordering::AcqRel, Ordering::Acquire, |posted| posted.checked_sub(1));
    }

    /// A separate function, so that its lock is not held while the buffer is reported, because the owner
    /// may post it again at once.
    fn take_buffer(&self, number: u32) -> Option<(Buffer, u32)> {
        crate::locked(&self.slots[number as usize]).take()
    }

    /// Makes the lane thread end the lane. The first reason counts.
    fn fail(&self, error: LaneError) {
        crate::locked(&self.failure).get_or_insert(error);
        self.wake.wake();
    }
}

/// State owned by the lane thread.
struct Poller {
    shared: Arc<Shared>,
    kit: Kit,
    report: Report,
    closing_since: Option<Instant>,
}

impl Poller {
    fn run(mut self, frames: VecDeque<Vec<u8>>) {
        for frame in frames {
            (self.report)(LaneEvent::Control(frame));
        }
        let reason = self.serve();
        self.end(reason);
    }

    /// Handles completions and events until the lane must end. Returns the reason.
    fn serve(&mut self) -> LaneError {
        loop {
            let taken = match self.poll_batch() {
                Ok(taken) => taken,
                Err(reason) => return reason,
            };
            // Checked even while completions keep coming.
            if let Some(reason) = self.must_end() {
                return reason;
            }
            if taken > 0 {
                continue;
            }
            match self.kit.completions.may_sleep() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(reason) => return reason,
            }
            let timeout = match self.closing_since {
                Some(_) => Duration::from_millis(5),
                None => IDLE,
            };
            let queue = &self.kit.completions.queue;
            let descriptors = [queue.as_fd(), self.kit.cm.events.as_fd(), self.kit.cm.wake.as_fd()];
            let [completions, connection, woken] = sleep_on(descriptors, timeout);
            if woken {
                self.kit.cm.wake.clear();
            }
            if completions && let Err(reason) = self.kit.completions.take_event() {
                return reason;
            }
            if connection && let Err(error) = self.kit.cm.take_events("RDMA connection") {
                return ended_by(error);
            }
        }
    }

    /// Why the lane must end, if a flag says so. Makes no system call, because it is called after every batch.
    fn must_end(&mut self) -> Option<LaneError> {
        if let Err(reason) = self.kit.cm.held.check() {
            return Some(reason);
        }
        if let Some(reason) = crate::locked(&self.shared.failure).take() {
            return Some(reason);
        }
        if self.shared.closing.load(Ordering::Acquire) {
            let since = *self.closing_since.get_or_insert_with(Instant::now);
            if since.elapsed() > CLOSE_FLUSH || crate::locked(&self.shared.control).is_flushed() {
                return Some(LaneError::Closed);
            }
        }
        None
    }

    /// Takes a batch of completions and reports them. Returns how many there were.
    fn poll_batch(&mut self) -> Result<usize, LaneError> {
        let mut completions = [WorkCompletion::default(); BATCH];
        let taken = self.kit.completions.queue.poll(&mut completions)?;
        let mut outcome = Ok(taken);
        for completion in &completions[..taken] {
            // The whole batch is handled, even after a completion that ends the lane, because it has
            // been taken from the queue.
            let handled = self.complete(completion);
            if outcome.is_ok()
                && let Err(reason) = handled
            {
                outcome = Err(reason);
            }
        }
        outcome
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), LaneError> {
        let work = Work::of(completion);
        if !completion.is_success() {
            match work {
                Work::ControlReceive(_) | Work::ControlSend(_) => crate::locked(&self.shared.control).note_done(),
                // The buffer stays in its slot for the last event.
                _ => self.shared.note_done(),
            }
            // A flushed completion only says that the queue pair had ended before. That was the peer's doing, because
            // this end begins to end the lane by leaving this loop.
            return Err(failure(completion));
        }
        let is_receive = matches!(work, Work::ControlReceive(_) | Work::ChunkReceive(_));
        // A send completes when the peer's adapter has acknowledged it; on iWARP, when TCP has taken it.
        if is_receive || !self.kit.cm.held.device.is_iwarp() {
            let now = u64::try_from(self.shared.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.shared.last_heard_us.store(now, Ordering::Relaxed);
        }
        match work {
            Work::ControlReceive(_) | Work::ControlSend(_) => {
                let message = crate::locked(&self.shared.control).completed(completion)?;
                match message {
                    Some(Message::Frame(frame)) => (self.report)(LaneEvent::Control(frame)),
                    Some(Message::Ready) => return Err(LaneError::Framing("a second READY message")),
                    Some(Message::Announcement) | None => {}
                }
            }
            Work::ChunkSend(number) => {
                self.shared.note_done();
                self.shared.sending.fetch_sub(1, Ordering::Relaxed);
                if let Some((buffer, wire_bytes)) = self.shared.take_buffer(number) {
                    self.shared.moved_bytes.fetch_add(wire_bytes.into(), Ordering::Relaxed);
                    (self.report)(LaneEvent::Sent(buffer));
                }
            }
            Work::ChunkReceive(number) => {
                self.shared.note_done();
                let Some(wire_bytes) = completion.bytes().checked_sub(CHUNK_HEADER_BYTES as u32) else {
                    return Err(LaneError::Framing("a chunk shorter than its header"));
                };
                if let Some((mut buffer, _)) = self.shared.take_buffer(number) {
                    self.shared.moved_bytes.fetch_add(wire_bytes.into(), Ordering::Relaxed);
                    buffer.move_header_from(wire_bytes as usize);
                    (self.report)(LaneEvent::Chunk { buffer, wire_bytes, opened: None });
                }
            }
            Work::Greeting => self.shared.note_done(),
        }
        Ok(())
    }

    /// Ends the lane: disconnects, drains and destroys both queue pairs, then reports the last event.
    fn end(mut self, reason: LaneError) {
        let reason = match (reason, self.kit.cm.held.check()) {
            (LaneError::PeerClosed | LaneError::Completion(_) | LaneError::Os { .. }, Err(gone)) => gone,
            (LaneError::PeerClosed, _) if self.shared.closing.load(Ordering::Acquire) => LaneError::Closed,
            (reason, _) => reason,
        };
        let payload = {
            let mut payload = self.shared.payload.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *payload, Payload::Ending)
        };
        crate::locked(&self.shared.control).begin_end();
        // A device that is going is not waited for, because destroying the queue pairs also ends all work on them.
        let device_gone = matches!(reason, LaneError::DeviceGone(_));
        self.on_queue_pairs(&payload, |queue_pair| {
            // Disconnecting fails if the peer was first, which is just as good.
            let _ = queue_pair.id().disconnect();
        });
        if !self.drain(if device_gone { Duration::ZERO } else { DRAIN }) && !device_gone {
            self.on_queue_pairs(&payload, |queue_pair| {
                let _ = queue_pair.fail();
            });
            self.drain(DRAIN);
        }
        drop(payload);
        let control = crate::locked(&self.shared.control).take_queue_pair();
        drop(control);

        let Self { shared, kit, report, .. } = self;
        // Everything on the device is dropped before the event, after which the owner may wait for the device.
        drop(kit);
        let buffers = {
            let mut payload = shared.payload.write().unwrap_or_else(PoisonError::into_inner);
            *payload = Payload::Reported;
            shared.slots.iter().filter_map(|slot| crate::locked(slot).take()).map(|(buffer, _)| buffer).collect()
        };
        report(LaneEvent::Down { reason, buffers });
    }

    fn on_queue_pairs(&self, payload: &Payload, act: impl Fn(&QueuePair)) {
        if let Payload::Open { queue_pair, .. } = payload {
            act(queue_pair);
        }
        if let Some(queue_pair) = crate::locked(&self.shared.control).queue_pair() {
            act(queue_pair);
        }
    }

    /// Polls until all posted work has come back, or `time` has passed. Returns whether all has come back. Work that
    /// completed successfully before the end is still reported.
    fn drain(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            let outcome = self.poll_batch();
            let left = self.shared.posted.load(Ordering::Acquire) + crate::locked(&self.shared.control).posted();
            if left == 0 {
                return true;
            }
            if matches!(outcome, Ok(0)) {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            } else if matches!(outcome, Err(LaneError::Os { .. })) {
                return false;
            }
        }
    }
}

/// Converts the failure of a connection to the reason why its lane ended.
fn ended_by(error: ConnectError) -> LaneError {
    match error {
        ConnectError::Lost(reason) => reason,
        ConnectError::Verbs(error) => error.into(),
        ConnectError::Unreachable { what, status } => LaneError::Os { what, error: errno(status.saturating_abs()) },
        // A connection that is up can be rejected, too.
        _ => LaneError::PeerClosed,
    }
}
