//! Reading, sealing and opening on the TCP lanes' own threads.
//!
//! Handing a chunk from the thread that reads and seals it to the thread that sends it costs a thread switch, and moves
//! the chunk from one processor's cache to another's. Together that is a sixth of both ends' processor time. So a
//! lane's own thread reads each part of a file just before sending it, and opens the chunks that it receives.
//!
//! A lane that waits for a disk cannot send its control frames. So lanes read only data that is in the page cache;
//! workers read the rest. Workers also walk trees, compress, keep to `--bwlimit`, and serve RDMA lanes, which have no
//! such threads. Of a tree, only ranges of large files are planned for lanes.
//!
//! For a buffer that is [unread](Buffer::is_unread), a part has been planned but not read. The buffer's header
//! describes the part, and lacks only the tag.

use std::sync::{Arc, Mutex};

use rd_proto::control::Path;
use rd_proto::frame::ChunkHeader;
use rd_proto::session::{BufferId, Machine};

use super::work::{Job, Opener, Parts, Shared, header_of};
use super::{Engine, Half};
use crate::fs::source::Part;
use crate::options::Compress;
use crate::transport::{Buffer, Inline};

/// Whether parts of the source can be planned for lanes to read.
pub(super) fn may_plan(shared: &Shared) -> bool {
    let may_be_plain = matches!(shared.compress, Compress::Off | Compress::Auto);
    shared.source.is_some() && may_be_plain && shared.pace.is_free()
}

/// The work of one lane's threads.
pub(super) struct LaneWork {
    shared: Arc<Shared>,
    opener: Mutex<Opener>,
}

impl LaneWork {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, opener: Mutex::default() }
    }
}

impl Inline for LaneWork {
    fn prepare(&self, buffer: &mut Buffer) -> bool {
        if !buffer.is_unread() {
            return true;
        }
        let source = self.shared.source.as_ref().expect("parts are planned of a source in parts");
        let (part, encrypt) = planned(buffer);
        let (target, tally) = (buffer.payload_mut(), &self.shared.tally);
        // If the file has changed, a worker reads the part again and reports the change.
        let read = || match source {
            Parts::File(file) => file.read_cached(&part, target, tally) && file.note_read(part.length).is_ok(),
            Parts::Tree(tree) => tree.read_cached(&part, target, tally),
        };
        if !self.shared.reading.during(read) {
            return false;
        }
        buffer.set_unread(false);
        let header = self.shared.seal(header_of(&part, encrypt), buffer);
        crate::locked(&self.shared.tags).push((buffer.id(), header.tag));
        true
    }

    fn open(&self, buffer: &mut Buffer) -> bool {
        crate::locked(&self.opener).open(&self.shared, buffer)
    }
}

/// Returns the part that has been planned for an unread buffer, and whether to encrypt the part.
fn planned(buffer: &Buffer) -> (Part, bool) {
    let header = ChunkHeader::decode(buffer.header()).expect("encoded when it was planned");
    let ChunkHeader { item, sequence, position, is_final, plain_bytes, .. } = header;
    (Part { item, sequence, position, length: plain_bytes as usize, is_final }, header.sealed)
}

/// The loop's share of the work.
impl Engine {
    /// Takes over the tags of chunks that lanes have sealed. Must be called before the loop handles any event that may
    /// acknowledge such a chunk.
    pub(super) fn collect_tags(&mut self) {
        let Half::Send { machine, .. } = &mut self.half else { return };
        for (id, tag) in crate::locked(&self.shared.tags).drain(..) {
            machine.handle_tag(id, tag);
        }
    }

    /// Plans the next part of the source for a buffer. Returns false if workers must read the part.
    pub(super) fn plan(&mut self, id: BufferId, encrypt: bool) -> bool {
        let (Half::Send { machine, .. }, Some(source)) = (&mut self.half, &self.shared.source) else { return false };
        // A part planned for an RDMA lane would have no thread to read it. The TCP lane that carries control frames
        // does not count.
        let is_tcp = machine.core_ref().path() == Some(Path::Tcp) && self.lanes.values().any(|live| live.is_inline);
        if !self.may_plan || !is_tcp || self.shared.method().is_some() {
            return false;
        }
        let part = match source {
            Parts::File(file) => file.next_part(machine.part_bytes()),
            // Everything else that the tree may have to do needs a worker.
            Parts::Tree(tree) => match tree.plan(machine.part_bytes()) {
                None => return false,
                some => some,
            },
        };
        let Some(part) = part else {
            machine.handle_unfilled(id);
            return true;
        };
        self.shared.note_ready(part.length);
        let header = header_of(&part, encrypt);
        if let Some(buffer) = &mut self.buffers[id as usize] {
            *buffer.header_mut() = header.encode();
            buffer.set_unread(true);
        }
        machine.handle_sealed(id, &header);
        true
    }

    /// Has a worker read the part that is planned for a buffer. Returns false if no part is planned.
    pub(super) fn read_planned(&mut self, id: BufferId, encrypt: bool) -> bool {
        if !self.buffers[id as usize].as_ref().is_some_and(Buffer::is_unread) {
            return false;
        }
        let buffer = self.take(id);
        let (part, planned) = planned(&buffer);
        if let Some(Parts::Tree(tree)) = &self.shared.source {
            // Workers that wait for the tree to have work may be waiting for this job.
            tree.note_arrival();
        }
        let _ = self.jobs.send(Job::ReadPart(buffer, part, encrypt || planned));
        true
    }
}
