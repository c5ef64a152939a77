//! What a spool keeps: segments of the stream, and chunks of it that are to be sent.

use std::sync::Arc;

use rd_proto::broadcast::PAGE_BYTES;

use crate::transport::Buffer;

/// Bytes of one segment at most: a chunk's.
pub const SEGMENT_BYTES: usize = 1 << 20;

/// The memory that a segment gets is a multiple of this. Chunks are short on a slow line: if they took much more than they hold, a
/// spool would be full with much less than its bytes, and who is only waiting for another would be taken for slow.
const ROOM_STEP: usize = 16 << 10;

/// Some of the stream, which never changes.
#[derive(Debug)]
pub(super) struct Segment {
    pub start: u64,
    pub memory: Memory,
}

/// What a segment is in. Bytes begin at a page, so that they can be written from where they are.
#[derive(Debug)]
pub(super) enum Memory {
    /// A segment that takes as much room as one of full length, in a buffer: so many bytes of it.
    Whole(Buffer, usize),
    /// Any other: behind so many bytes that are not used.
    Part { bytes: Vec<u8>, skip: usize },
}

impl Memory {
    pub fn copy_of(bytes: &[u8], spare: Option<Buffer>) -> Self {
        if let Some(mut buffer) = spare {
            buffer.payload_mut()[..bytes.len()].copy_from_slice(bytes);
            return Self::Whole(buffer, bytes.len());
        }
        let mut memory: Vec<u8> = Vec::with_capacity(room_for(bytes.len()) + PAGE_BYTES as usize);
        let skip = memory.as_ptr().align_offset(PAGE_BYTES as usize);
        memory.resize(skip, 0);
        memory.extend_from_slice(bytes);
        Self::Part { bytes: memory, skip }
    }

    pub fn data(&self) -> &[u8] {
        match self {
            Self::Whole(buffer, length) => &buffer.payload()[..*length],
            Self::Part { bytes, skip } => &bytes[*skip..],
        }
    }
}

impl Segment {
    pub fn data(&self) -> &[u8] {
        self.memory.data()
    }

    pub fn end(&self) -> u64 {
        self.start + self.data().len() as u64
    }

    /// What it takes of the spool, in bytes.
    pub fn room(&self) -> usize {
        room_for(self.data().len())
    }
}

/// The memory for so many bytes.
pub(super) fn room_for(bytes: usize) -> usize {
    bytes.next_multiple_of(ROOM_STEP)
}

/// Some of the stream that is to be sent: at least one byte.
#[derive(Debug)]
pub struct Chunk {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) at: u64,
    pub(super) end: u64,
}

impl Chunk {
    /// Bytes of it.
    pub fn length(&self) -> usize {
        (self.end - self.at) as usize
    }

    /// The bytes, where they lie in one piece.
    pub fn whole(&self) -> Option<&[u8]> {
        self.pieces().next().filter(|piece| piece.len() == self.length())
    }

    /// Copies it to the beginning of `target`.
    pub fn copy_to(&self, target: &mut [u8]) {
        let mut rest = target;
        for piece in self.pieces() {
            rest.split_off_mut(..piece.len()).expect("room for all of it").copy_from_slice(piece);
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.segments.iter().map(|segment| {
            let (from, to) = (self.at.max(segment.start), self.end.min(segment.end()));
            &segment.data()[(from - segment.start) as usize..(to - segment.start) as usize]
        })
    }
}
