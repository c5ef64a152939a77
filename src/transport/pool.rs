//! The pool: the fixed set of page-aligned buffers that a transfer uses, in one mapping.
//!
//! The mapping holds all payloads first, then a header slot for each. It is one mapping so that RDMA registers it once
//! per protection domain, it is not inherited by children (MADV_DONTFORK, which verbs need as well: a copied page
//! would part the process from the device), and it stays out of core dumps (MADV_DONTDUMP).
//!
//! A [`Buffer`] is the right to use one slot: it is not `Clone`, so that its holder has those bytes to itself.

#![allow(unsafe_code, reason = "the mapping that buffers are made of")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rd_proto::frame::CHUNK_HEADER_BYTES;
use rustix::io::Errno;

/// Bytes from one header slot to the next: a cache line, so that two slots never share one.
const HEADER_STRIDE: usize = 64;

const _: () = assert!(CHUNK_HEADER_BYTES <= HEADER_STRIDE);

/// A fixed set of buffers in one mapping. Dropped with the last buffer and the last transport that uses it.
#[derive(Debug)]
pub struct Pool {
    memory: MmapRaw,
    buffer_bytes: usize,
    count: u32,
}

impl Pool {
    /// Maps a pool of `count` buffers of `buffer_bytes` (a multiple of the page size), and hands out all its buffers.
    ///
    /// # Errors
    ///
    /// What mmap or madvise answered.
    pub fn new(count: u32, buffer_bytes: NonZeroUsize) -> Result<(Arc<Self>, Vec<Buffer>), Errno> {
        let buffer_bytes = buffer_bytes.get();
        let slot_bytes = buffer_bytes.checked_add(HEADER_STRIDE).ok_or(Errno::NOMEM)?;
        let mapping_bytes = slot_bytes.checked_mul(count as usize).ok_or(Errno::NOMEM)?;
        let refused = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
        let memory =
            MmapRaw::from(MmapOptions::new().len(mapping_bytes).no_reserve_swap().map_anon().map_err(refused)?);
        for advice in [Advice::DontFork, Advice::DontDump] {
            memory.advise(advice).map_err(refused)?;
        }
        let pool = Arc::new(Self { memory, buffer_bytes, count });
        let buffers = (0..count).rev().map(|id| Buffer { pool: Arc::clone(&pool), id, is_unread: false }).collect();
        Ok((pool, buffers))
    }

    /// Number of buffers.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Payload bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Start and length of the whole mapping, payloads and headers: what RDMA registers.
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is not at 0"), self.memory.len())
    }

    fn payload_ptr(&self, id: u32) -> *mut u8 {
        // SAFETY: `id < count`, so the offset stays within the mapping.
        unsafe { self.memory.as_mut_ptr().add(id as usize * self.buffer_bytes) }
    }

    fn header_ptr(&self, id: u32) -> *mut u8 {
        let headers_at = self.count as usize * self.buffer_bytes;
        // SAFETY: `id < count`, so the offset stays within the mapping.
        unsafe { self.memory.as_mut_ptr().add(headers_at + id as usize * HEADER_STRIDE) }
    }
}

/// Exclusive use of one slot of a [`Pool`].
pub struct Buffer {
    pool: Arc<Pool>,
    id: u32,
    is_unread: bool,
}

impl Buffer {
    /// Its number within the pool, from 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the header says what the payload will be, and that has still to be read.
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// See [`Buffer::is_unread`].
    pub fn set_unread(&mut self, is_unread: bool) {
        self.is_unread = is_unread;
    }

    /// The whole payload area.
    pub fn payload(&self) -> &[u8] {
        // SAFETY: the slot is within the mapping, initialised (zero pages), and this handle is the only one to it.
        unsafe { std::slice::from_raw_parts(self.pool.payload_ptr(self.id), self.pool.buffer_bytes) }
    }

    /// The whole payload area, to write.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `payload`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pool.payload_ptr(self.id), self.pool.buffer_bytes) }
    }

    /// The encoded chunk header.
    pub fn header(&self) -> &[u8; CHUNK_HEADER_BYTES] {
        // SAFETY: the header slot is at least this long (asserted above) and belongs to this handle alone.
        unsafe { &*self.pool.header_ptr(self.id).cast::<[u8; CHUNK_HEADER_BYTES]>() }
    }

    /// Takes the header from where it landed: behind `payload_bytes` of payload, in the rest of the payload area and
    /// then in the header slot.
    pub fn move_header_from(&mut self, payload_bytes: usize) {
        let mut header = [0; CHUNK_HEADER_BYTES];
        let within = CHUNK_HEADER_BYTES.min(self.payload().len() - payload_bytes);
        header[..within].copy_from_slice(&self.payload()[payload_bytes..payload_bytes + within]);
        header[within..].copy_from_slice(&self.header()[..CHUNK_HEADER_BYTES - within]);
        *self.header_mut() = header;
    }

    /// The encoded chunk header, to write.
    pub fn header_mut(&mut self) -> &mut [u8; CHUNK_HEADER_BYTES] {
        // SAFETY: as in `header`; `&mut self` makes it exclusive.
        unsafe { &mut *self.pool.header_ptr(self.id).cast::<[u8; CHUNK_HEADER_BYTES]>() }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({})", self.id)
    }
}
