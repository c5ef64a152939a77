//! The contents of a spool: segments of the stream, and chunks of it that are about to be sent.

use std::sync::Arc;

use rd_proto::broadcast::PAGE_BYTES;

use crate::transport::Buffer;

/// Maximum number of bytes in a segment, which is also that of a chunk.
pub const SEGMENT_BYTES: usize = 1 << 20;

/// Memory is allotted to segments in multiples of this, in bytes. On a slow line chunks are short. If each took much
/// more memory than it holds, the spool would be full long before it held its number of bytes, and a host that only
/// waits for another would be judged slow.
const ROOM_STEP: usize = 16 << 10;

/// A part of the stream, which never changes.
#[derive(Debug)]
pub(super) struct Segment {
    pub start: u64,
    pub memory: Memory,
}

/// Memory of a segment. The data begins at a page boundary, so that it can be written from where it is.
#[derive(Debug)]
pub(super) enum Memory {
    /// A buffer and the number of bytes used in it, for a segment that takes as much room as one of full length.
    Whole(Buffer, usize),
    /// Memory of any other segment. The first `skip` bytes are not used.
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

    /// Number of bytes that the segment takes of the spool.
    pub fn room(&self) -> usize {
        room_for(self.data().len())
    }
}

/// Number of bytes of memory for a segment of `bytes` bytes.
pub(super) fn room_for(bytes: usize) -> usize {
    bytes.next_multiple_of(ROOM_STEP)
}

/// A part of the stream that is to be sent: at least one byte.
#[derive(Debug)]
pub struct Chunk {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) at: u64,
    pub(super) end: u64,
}

impl Chunk {
    /// Number of bytes in the chunk.
    pub fn length(&self) -> usize {
        (self.end - self.at) as usize
    }

    /// The bytes, if they lie in one piece.
    pub fn whole(&self) -> Option<&[u8]> {
        self.pieces().next().filter(|piece| piece.len() == self.length())
    }

    /// Copies the chunk to the beginning of `target`.
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
