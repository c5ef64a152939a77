//! Reading, sealing and opening on the lanes' own threads.
//!
//! Where a machine has no more processors than lanes, handing a chunk from the thread that reads and seals it to the one
//! that sends it costs more than it gains: a switch between them, and the chunk's way from one processor's cache to the
//! other's. There a lane's own thread reads the part that it sends just before it does, and opens what it has received.
//!
//! Only what is in the page cache is read so: a lane that waits for a disk cannot send its control frames.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rd_proto::control::Path;
use rd_proto::session::{BufferId, Machine};

use super::work::{Job, Opener, Parts, Shared, header_of};
use super::{Engine, Half};
use crate::fs::source::Part;
use crate::options::Compress;
use crate::transport::{Buffer, Inline, Prepared};

/// What is known of a buffer that a lane's thread works on.
#[derive(Debug, Default)]
struct Slot {
    /// What is to be read into it, and whether that is to be encrypted.
    planned: Mutex<Option<(Part, bool)>>,
    /// See [`UNOPENED`] and the others.
    opened: AtomicU8,
}

/// Nobody has opened the chunk.
const UNOPENED: u8 = 0;

/// It has been opened.
const GENUINE: u8 = 1;

/// It could not be.
const DAMAGED: u8 = 2;

/// The work of one transfer that lanes do themselves.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot]>,
    /// For how long all lanes' threads together have been reading, and sealing, in nanoseconds.
    reading: AtomicU64,
    sealing: AtomicU64,
    /// Of chunks that have been read and sealed: told before they are sent, so before any acknowledgement can come.
    tags: Mutex<Vec<(BufferId, [u8; 16])>>,
}

impl Table {
    /// `None` where others than the lanes have the time for it: more processors than lanes.
    pub(super) fn new(buffers: u32, lanes: u16) -> Option<Arc<Self>> {
        let processors = crate::processors();
        (processors <= usize::from(lanes)).then(|| {
            let slots = (0..buffers).map(|_| Slot::default()).collect();
            let tags = Mutex::new(Vec::with_capacity(buffers as usize));
            Arc::new(Self { slots, reading: AtomicU64::new(0), sealing: AtomicU64::new(0), tags })
        })
    }

    /// Whether parts of the source can be planned.
    pub(super) fn may_plan(shared: &Shared) -> bool {
        matches!(shared.source, Some(Parts::File(_))) && shared.compress == Compress::Off && shared.pace.is_free()
    }

    /// Plans what is to be read into a buffer.
    pub(super) fn plan(&self, buffer: BufferId, part: Part, encrypt: bool) {
        *self.planned(buffer) = Some((part, encrypt));
    }

    /// What was planned for a buffer and has not been read; it is the caller's to read then.
    pub(super) fn take_plan(&self, buffer: BufferId) -> Option<(Part, bool)> {
        self.planned(buffer).take()
    }

    /// The tags of chunks that have been sealed since this was asked last.
    pub(super) fn take_tags(&self, into: &mut Vec<(BufferId, [u8; 16])>) {
        into.append(&mut self.tags.lock().expect("no panic with it locked"));
    }

    fn note_times(&self, reading: Duration, sealing: Duration) {
        for (sum, time) in [(&self.reading, reading), (&self.sealing, sealing)] {
            sum.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// For how long all lanes' threads together have been reading, and sealing, since this was asked last.
    pub(super) fn take_times(&self) -> (Duration, Duration) {
        let take = |time: &AtomicU64| Duration::from_nanos(time.swap(0, Ordering::Relaxed));
        (take(&self.reading), take(&self.sealing))
    }

    /// Whether a chunk that has arrived is genuine, if a lane has looked.
    pub(super) fn take_opened(&self, buffer: BufferId) -> Option<bool> {
        match self.slots[buffer as usize].opened.swap(UNOPENED, Ordering::Relaxed) {
            GENUINE => Some(true),
            DAMAGED => Some(false),
            _ => None,
        }
    }

    fn planned(&self, buffer: BufferId) -> std::sync::MutexGuard<'_, Option<(Part, bool)>> {
        self.slots[buffer as usize].planned.lock().expect("no panic with it locked")
    }
}

/// What the threads of one lane do.
pub(super) struct Lane {
    table: Arc<Table>,
    shared: Arc<Shared>,
    opener: Mutex<Opener>,
}

impl Lane {
    pub(super) fn new(table: Arc<Table>, shared: Arc<Shared>) -> Self {
        Self { table, shared, opener: Mutex::new(Opener::new()) }
    }
}

impl Inline for Lane {
    fn prepare(&self, buffer: &mut Buffer) -> Prepared {
        let id = buffer.id();
        let Some((part, encrypt)) = self.table.take_plan(id) else { return Prepared::Ready };
        let Some(Parts::File(source)) = &self.shared.source else { unreachable!("parts are planned of a file") };
        let start = Instant::now();
        // A source that turns out to have changed is the loop's to tell: a worker reads the part again and finds it so.
        if !source.read_cached(&part, buffer.payload_mut(), &self.shared.tally)
            || source.note_read(part.length).is_err()
        {
            self.table.plan(id, part, encrypt);
            return Prepared::WouldWait;
        }
        let read = Instant::now();
        let header = self.shared.seal(header_of(&part, encrypt), buffer);
        self.table.note_times(read - start, read.elapsed());
        self.table.tags.lock().expect("no panic with it locked").push((id, header.tag));
        Prepared::Ready
    }

    fn receive(&self, buffer: &mut Buffer) {
        let genuine = self.opener.lock().expect("no panic with it locked").open(&self.shared, buffer);
        let opened = if genuine { GENUINE } else { DAMAGED };
        self.table.slots[buffer.id() as usize].opened.store(opened, Ordering::Relaxed);
    }
}

/// What the loop does for it.
impl Engine {
    /// Takes in what lanes have sealed. To be done before anything that may be an acknowledgement of it.
    pub(super) fn collect_tags(&mut self) {
        let (Some(table), Half::Send { machine, .. }) = (&self.inline, &mut self.half) else { return };
        table.take_tags(&mut self.tags);
        for (id, tag) in self.tags.drain(..) {
            machine.handle_tag(id, tag);
        }
    }

    /// Plans the next part of the source for a buffer; false if workers are to read it.
    pub(super) fn plan(&mut self, buffer: BufferId, encrypt: bool) -> bool {
        let Some(table) = self.inline.as_ref().filter(|_| self.may_plan) else { return false };
        let (Half::Send { machine, .. }, Some(Parts::File(source))) = (&mut self.half, &self.shared.source) else {
            return false;
        };
        // Chunks that go by RDMA have no thread that could read them, though the lane of control frames is one of TCP.
        if machine.core_ref().path() != Some(Path::Tcp) || !self.lanes.values().any(|live| live.is_inline) {
            return false;
        }
        let Some(part) = source.next_part(machine.part_bytes()) else {
            machine.handle_unfilled(buffer);
            return true;
        };
        table.plan(buffer, part, encrypt);
        let header = header_of(&part, encrypt);
        if let Some(buffer) = &mut self.buffers[buffer as usize] {
            *buffer.header_mut() = header.encode();
        }
        machine.handle_sealed(buffer, &header);
        true
    }

    /// Has a worker read what was planned for a buffer; false if nothing is planned for it any more.
    pub(super) fn read_planned(&mut self, id: BufferId, encrypt: bool) -> bool {
        let Some((part, planned)) = self.inline.as_ref().and_then(|table| table.take_plan(id)) else { return false };
        self.rereads[id as usize] = true;
        let buffer = self.take(id);
        let _ = self.jobs.send(Job::ReadPart(buffer, part, encrypt || planned));
        true
    }
}
