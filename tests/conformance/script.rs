//! Scripted faults of a session's lanes, the same over every transport.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rd_proto::handshake::LaneId;
use rdma_pipe::transport::{Buffer, Lane, LaneEvent, Medium, Report};

/// A fault that happens once, and where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A lane with number `index` or above is lost when the `chunk`th chunk is sent on it, counted from 0.
    Lose { index: u16, chunk: u64 },
    /// From that chunk on, nothing passes on the lane, and neither end is told.
    Silence { index: u16, chunk: u64 },
    /// That chunk arrives damaged.
    Damage { index: u16, chunk: u64 },
    /// The first control frame with this many sealed bytes is lost together with its lane.
    LoseFrame { bytes: usize },
}

/// The script of a session, and what was observed.
#[derive(Debug, Default)]
pub struct Script {
    pub fault: Option<Fault>,
    /// Number of RDMA dials that fail after the first has succeeded.
    pub failing_rdma_dials: AtomicU64,
    /// Whether all further dials fail.
    pub unreachable: AtomicBool,
    fired: AtomicBool,
    counted: Mutex<HashMap<LaneId, u64>>,
    /// Sequence numbers of chunks, in order of arrival.
    pub arrivals: Mutex<Vec<u64>>,
    /// Whether payload crossed unencrypted.
    pub seen_plain: AtomicBool,
    /// Bytes to look for in payload.
    pub needle: Vec<u8>,
}

impl Script {
    pub fn of(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// Whether the fault is due with the next chunk on this lane.
    fn due(&self, id: LaneId) -> Option<Fault> {
        let fault = self.fault?;
        let (Fault::Lose { index, chunk } | Fault::Silence { index, chunk } | Fault::Damage { index, chunk }) = fault
        else {
            return None;
        };
        let mut counted = self.counted.lock().expect("not poisoned");
        let sent = counted.entry(id).or_default();
        *sent += 1;
        (id.index >= index && *sent == chunk + 1 && !self.fired.swap(true, Ordering::SeqCst)).then_some(fault)
    }
}

/// State shared by both ends of a scripted connection.
#[derive(Debug, Default)]
pub struct Wire {
    silent_since: Mutex<Option<Instant>>,
    /// Sequence number of the chunk that is to arrive damaged.
    damage: Mutex<Option<u64>>,
}

type Tell = Box<dyn FnOnce() + Send>;

/// State shared by one end of a scripted connection and its reports.
pub struct Ear {
    /// Buffers that are returned when the lane ends; `None` after that.
    withheld: Mutex<Option<Vec<Buffer>>>,
    /// Whether this end has closed the lane, and the report of an end that it cannot have noticed, which is made some
    /// time after it has closed the lane.
    unnoticed: Mutex<(bool, Option<Tell>)>,
}

impl Default for Ear {
    fn default() -> Self {
        Self { withheld: Mutex::new(Some(Vec::new())), unnoticed: Mutex::default() }
    }
}

/// How long a lane takes to close if the other end does not answer.
const CLOSE_TAKES: Duration = Duration::from_millis(50);

impl Wire {
    fn is_silent(&self) -> bool {
        self.silent_since.lock().expect("not poisoned").is_some()
    }
}

/// A lane that follows a script.
pub struct Scripted {
    pub inner: Box<dyn Lane>,
    pub id: LaneId,
    pub script: Arc<Script>,
    pub wire: Arc<Wire>,
    pub ear: Arc<Ear>,
    /// Whether chunks come to this end.
    pub receives: bool,
}

/// How much sooner the receiving end notices silence than the sending end.
const MISSED_SOONER: Duration = Duration::from_millis(400);

/// Returns a report function that forwards what a lane reports, except what the script takes out.
pub fn report(to: Report, script: Arc<Script>, wire: Arc<Wire>, ear: Arc<Ear>) -> Report {
    Arc::new(move |event| match event {
        LaneEvent::Control(_) if wire.is_silent() => {}
        // Chunks that arrive on a silent wire count as not arrived.
        LaneEvent::Chunk { buffer, .. } if wire.is_silent() => {
            ear.withheld.lock().expect("not poisoned").as_mut().expect("before the end").push(buffer);
        }
        LaneEvent::Chunk { mut buffer, wire_bytes, opened } => {
            let sequence = u64::from_le_bytes(buffer.header()[16..24].try_into().expect("8 bytes"));
            script.arrivals.lock().expect("not poisoned").push(sequence);
            let needle = &script.needle;
            if !needle.is_empty() && buffer.payload()[..wire_bytes as usize].windows(needle.len()).any(|w| w == needle)
            {
                script.seen_plain.store(true, Ordering::SeqCst);
            }
            let mut damage = wire.damage.lock().expect("not poisoned");
            if *damage == Some(sequence) {
                *damage = None;
                buffer.payload_mut()[wire_bytes as usize / 2] ^= 0x10;
            }
            drop(damage);
            to(LaneEvent::Chunk { buffer, wire_bytes, opened });
        }
        LaneEvent::Down { reason, mut buffers } => {
            buffers.append(&mut ear.withheld.lock().expect("not poisoned").take().expect("one end"));
            let mut unnoticed = ear.unnoticed.lock().expect("not poisoned");
            let down = LaneEvent::Down { reason, buffers };
            if wire.is_silent() && !unnoticed.0 {
                let to = Arc::clone(&to);
                unnoticed.1 = Some(Box::new(move || to(down)));
            } else {
                drop(unnoticed);
                to(down);
            }
        }
        other => to(other),
    })
}

impl Lane for Scripted {
    fn medium(&self) -> Medium {
        self.inner.medium()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn send_control(&mut self, sealed: &[u8]) {
        if self.script.fault == Some(Fault::LoseFrame { bytes: sealed.len() })
            && !self.script.fired.swap(true, Ordering::SeqCst)
        {
            return self.inner.close();
        }
        self.inner.send_control(sealed);
    }

    fn send_chunk(&mut self, buffer: Buffer, wire_bytes: u32) -> Result<(), Buffer> {
        match self.script.due(self.id) {
            Some(Fault::Lose { .. }) => {
                // The buffer is returned unsent when the lane ends.
                match self.ear.withheld.lock().expect("not poisoned").as_mut() {
                    Some(withheld) => withheld.push(buffer),
                    None => return Err(buffer),
                }
                self.inner.close();
                return Ok(());
            }
            Some(Fault::Silence { .. }) => {
                *self.wire.silent_since.lock().expect("not poisoned") = Some(Instant::now());
            }
            Some(Fault::Damage { .. }) => {
                let sequence = u64::from_le_bytes(buffer.header()[16..24].try_into().expect("8 bytes"));
                *self.wire.damage.lock().expect("not poisoned") = Some(sequence);
            }
            Some(Fault::LoseFrame { .. }) | None => {}
        }
        self.inner.send_chunk(buffer, wire_bytes)
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        self.receives = true;
        self.inner.post_receive(buffer)
    }

    fn close(&mut self) {
        let mut unnoticed = self.ear.unnoticed.lock().expect("not poisoned");
        unnoticed.0 = true;
        if let Some(tell) = unnoticed.1.take() {
            std::thread::spawn(move || {
                std::thread::sleep(CLOSE_TAKES);
                tell();
            });
        }
        drop(unnoticed);
        self.inner.close();
    }

    fn last_heard(&self) -> Instant {
        let heard = self.inner.last_heard();
        // On a silent wire the last sign of life came before the silence began.
        self.wire
            .silent_since
            .lock()
            .expect("not poisoned")
            .map_or(heard, |since| heard.min(if self.receives { since - MISSED_SOONER } else { since }))
    }
}

/// Waits until `holds` returns true, at most this long.
pub fn wait_for(what: &str, at_most: Duration, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + at_most;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {at_most:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
