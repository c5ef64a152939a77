//! Faults that come to a session's lanes by script, the same over every transport.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rd_proto::handshake::LaneId;
use rdma_pipe::transport::{Buffer, Lane, LaneEvent, Medium, Report};

/// What goes wrong, where, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The lane is lost with the `chunk`th chunk that is sent on a lane of place `index` or above, counted from 0.
    Lose { index: u16, chunk: u64 },
    /// From that chunk on, nothing passes on that lane, and neither end is told.
    Silence { index: u16, chunk: u64 },
    /// That chunk arrives damaged.
    Damage { index: u16, chunk: u64 },
    /// The first control frame of this many bytes, sealed, is lost together with its lane.
    LoseFrame { bytes: usize },
}

/// A session's script, and what was seen of it.
#[derive(Debug, Default)]
pub struct Script {
    pub fault: Option<Fault>,
    /// Dials that fail, of RDMA's places: this many after the first has succeeded.
    pub failing_rdma_dials: AtomicU64,
    /// No dial succeeds any more.
    pub unreachable: AtomicBool,
    fired: AtomicBool,
    counted: AtomicU64,
    /// Sequences as they arrived.
    pub arrivals: Mutex<Vec<u64>>,
    /// Payload crossed as it was read.
    pub seen_plain: AtomicBool,
    /// What to look for in payload.
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
        let due = id.index >= index && self.counted.fetch_add(1, Ordering::SeqCst) == chunk;
        (due && !self.fired.swap(true, Ordering::SeqCst)).then_some(fault)
    }
}

/// What both ends of a scripted connection know.
#[derive(Debug, Default)]
pub struct Wire {
    silent_since: Mutex<Option<Instant>>,
    /// Sequence of the chunk that is to arrive damaged.
    damage: Mutex<Option<u64>>,
}

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
}

/// What a lane reports, with what the script takes out of it.
pub fn report(to: Report, script: Arc<Script>, wire: Arc<Wire>) -> Report {
    // What arrived on a silent wire has not: its buffers go back when the lane does.
    let withheld = Mutex::new(Vec::new());
    Arc::new(move |event| match event {
        LaneEvent::Control(_) if wire.is_silent() => {}
        LaneEvent::Chunk { buffer, .. } if wire.is_silent() => withheld.lock().expect("not poisoned").push(buffer),
        LaneEvent::Chunk { mut buffer, wire_bytes } => {
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
            to(LaneEvent::Chunk { buffer, wire_bytes });
        }
        LaneEvent::Down { reason, mut buffers } => {
            buffers.append(&mut withheld.lock().expect("not poisoned"));
            to(LaneEvent::Down { reason, buffers });
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
            // It is given to a lane that closes: it comes back with the lane's end, not acknowledged.
            Some(Fault::Lose { .. }) => self.inner.close(),
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
        self.inner.post_receive(buffer)
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn last_heard(&self) -> Instant {
        let heard = self.inner.last_heard();
        // On a silent wire the last sign of life is what came before.
        self.wire.silent_since.lock().expect("not poisoned").map_or(heard, |since| heard.min(since))
    }
}

/// Waits until `holds`, at most that long.
pub fn wait_for(what: &str, at_most: Duration, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + at_most;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {at_most:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
