//! The pool: the fixed set of page-aligned buffers that a transfer uses, in one mapping.
//!
//! The mapping holds all payloads first, then a header slot for each. A single mapping lets RDMA register it once per
//! protection domain. Children do not inherit it (MADV_DONTFORK), which verbs require as well: a page copied on fork
//! would no longer be the page that the device uses. It stays out of core dumps (MADV_DONTDUMP).
//!
//! A [`Buffer`] is the right to use one slot. It is not `Clone`, so its holder has exclusive use of those bytes.
//!
//! A page takes memory only once it has been written to. A buffer that has not been written to for a while
//! gives its pages back ([`Buffer::give_back_if_idle`]), so that memory needed for one burst or one longer
//! line is not kept to the end.
//!
//! Two buffers may exchange the memory of their payloads ([`Buffer::exchange`]), so that data that arrived
//! in one can be kept without a copy. This is not done where RDMA may be used, because the device knows
//! each buffer by its address.

#![allow(unsafe_code, reason = "the mapping that buffers are made of")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use nix::sys::resource::Resource;
use rd_proto::frame::CHUNK_HEADER_BYTES;
use rustix::io::Errno;

use crate::limits;

/// Bytes from one header slot to the next: a cache line, so that two slots never share one.
const HEADER_STRIDE: usize = 64;

const _: () = assert!(CHUNK_HEADER_BYTES <= HEADER_STRIDE);

/// Makes all threads allocate from one arena if address space is limited (`ulimit -v`). The C library
/// reserves 64 MiB of addresses for each further arena, which the pool and stacks would lack. Must be called
/// before threads are started.
pub fn one_arena_if_limited() {
    if limits::soft(Resource::RLIMIT_AS).is_some() {
        // SAFETY: the call only sets a parameter of the allocator.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// A fixed set of buffers in one mapping. Dropped with the last buffer and the last transport that uses it.
#[derive(Debug)]
pub struct Pool {
    memory: MmapRaw,
    buffer_bytes: usize,
    count: u32,
    /// Whether no page has bytes of two buffers, so that one buffer's pages can be given back.
    has_pages_of_their_own: bool,
    /// Whether a device may use the pages.
    is_pinned: AtomicBool,
}

impl Pool {
    /// Maps a pool of `count` buffers of `buffer_bytes` each, and returns all its buffers. If `buffer_bytes` is
    /// not a multiple of this system's page size (4 to 64 KiB; the peer's may differ), no pages are given back
    /// before the whole pool is.
    ///
    /// # Errors
    ///
    /// The error of mmap or madvise.
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
        let has_pages_of_their_own = buffer_bytes.is_multiple_of(rustix::param::page_size());
        let is_pinned = AtomicBool::new(false);
        let pool = Arc::new(Self { memory, buffer_bytes, count, has_pages_of_their_own, is_pinned });
        let new = |id| {
            let payload = Payload { pool: Arc::clone(&pool), slot: id, pages: Pages::None };
            Buffer { pool: Arc::clone(&pool), id, is_unread: false, payload }
        };
        let buffers = (0..count).rev().map(new).collect();
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

    /// From now on, keeps all pages where they are, and each buffer with its memory, because a device will know them by
    /// address. Must be called before any exchange.
    pub fn pin(&self) {
        self.is_pinned.store(true, Ordering::Relaxed);
    }

    /// Start and length of the whole mapping, payloads and headers, which RDMA registers.
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is not at 0"), self.memory.len())
    }

    /// Whether the pages of one buffer may be given back.
    fn may_give_back(&self) -> bool {
        self.has_pages_of_their_own && !self.is_pinned.load(Ordering::Relaxed)
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

/// State of the memory behind a buffer's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// No memory: the payload has not been written to, or its pages have been given back.
    None,
    /// Written to since the last check whether it is idle.
    InUse,
    /// Not written to since the last check.
    Idle,
}

/// Exclusive use of the payload's memory in one slot of a pool.
struct Payload {
    pool: Arc<Pool>,
    slot: u32,
    pages: Pages,
}

impl Payload {
    /// Gives the pages back to the system. True if there were any, and the system has them now.
    fn give_back(&mut self) -> bool {
        if self.pages == Pages::None || !self.pool.may_give_back() {
            return false;
        }
        self.pages = Pages::None;
        let (start, length) = (self.slot as usize * self.pool.buffer_bytes, self.pool.buffer_bytes);
        // SAFETY: the range is this slot's payload, whole pages (`may_give_back`) within the mapping, and this handle
        // is the only one to it. Private anonymous memory reads as zeros afterwards, so it stays initialised.
        unsafe { self.pool.memory.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) }.is_ok()
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // The mapping may live on for long, if other parts of its memory have been exchanged.
        self.give_back();
    }
}

/// Exclusive use of one slot of a [`Pool`]: its header, and its own payload or that of another slot.
pub struct Buffer {
    pool: Arc<Pool>,
    id: u32,
    is_unread: bool,
    payload: Payload,
}

impl Buffer {
    /// Number of the buffer within the pool, from 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the header already describes a payload that has still to be read.
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Sets what [`Buffer::is_unread`] returns.
    pub fn set_unread(&mut self, is_unread: bool) {
        self.is_unread = is_unread;
    }

    /// The whole payload area.
    pub fn payload(&self) -> &[u8] {
        let Payload { pool, slot, .. } = &self.payload;
        // SAFETY: the slot is within the mapping, initialised (zero pages), and this handle is the only one to it.
        unsafe { std::slice::from_raw_parts(pool.payload_ptr(*slot), pool.buffer_bytes) }
    }

    /// The whole payload area, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let Payload { pool, slot, pages } = &mut self.payload;
        *pages = Pages::InUse;
        // SAFETY: as in `payload`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(pool.payload_ptr(*slot), pool.buffer_bytes) }
    }

    /// Exchanges the memory of the two payloads, with its contents. Does nothing and returns false if RDMA uses a pool,
    /// or if the payloads differ in length.
    pub fn exchange(&mut self, other: &mut Self) -> bool {
        let is_pinned = |buffer: &Self| buffer.payload.pool.is_pinned.load(Ordering::Relaxed);
        let is_possible = !is_pinned(self) && !is_pinned(other) && self.pool.buffer_bytes == other.pool.buffer_bytes;
        if is_possible {
            std::mem::swap(&mut self.payload, &mut other.payload);
        }
        is_possible
    }

    /// Gives the pages of the payload back to the system, which makes its bytes zero, unless RDMA uses the pool or its
    /// buffers share pages. True if there were any pages.
    pub fn give_back(&mut self) -> bool {
        self.payload.give_back()
    }

    /// Gives the pages of the payload back to the system, which makes its bytes zero, if the payload has not been
    /// written to since the last call. To be called at intervals for a buffer whose content is no longer needed. Does
    /// nothing if RDMA uses the pool or its buffers share pages. True if pages were given back.
    pub fn give_back_if_idle(&mut self) -> bool {
        match self.payload.pages {
            Pages::None => false,
            Pages::InUse => {
                self.payload.pages = Pages::Idle;
                false
            }
            Pages::Idle => self.give_back(),
        }
    }

    /// Whether the payload may have memory.
    #[cfg(test)]
    pub fn has_pages(&self) -> bool {
        self.payload.pages != Pages::None
    }

    /// The encoded chunk header.
    pub fn header(&self) -> &[u8; CHUNK_HEADER_BYTES] {
        // SAFETY: the header slot is at least this long (asserted above) and belongs to this handle alone.
        unsafe { &*self.pool.header_ptr(self.id).cast::<[u8; CHUNK_HEADER_BYTES]>() }
    }

    /// Moves the header to its slot from where it landed: behind `payload_bytes` of payload, in the rest of the payload
    /// area and then in the header slot.
    pub fn move_header_from(&mut self, payload_bytes: usize) {
        let mut header = [0; CHUNK_HEADER_BYTES];
        let within = CHUNK_HEADER_BYTES.min(self.payload().len() - payload_bytes);
        header[..within].copy_from_slice(&self.payload()[payload_bytes..payload_bytes + within]);
        header[within..].copy_from_slice(&self.header()[..CHUNK_HEADER_BYTES - within]);
        *self.header_mut() = header;
    }

    /// The encoded chunk header, for writing.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: usize = 16 << 10;

    /// Number of bytes of the mapping that have memory, from /proc/self/pagemap: 8 bytes for each page, whose last bit
    /// tells whether the page is present.
    fn resident(pool: &Pool) -> usize {
        const PAGE: usize = 4096;
        let (start, bytes) = pool.mapping();
        let mut entries = vec![0; bytes.div_ceil(PAGE) * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("Linux");
        pagemap.read_exact_at(&mut entries, (start.as_ptr().addr() / PAGE * 8) as u64).expect("its pages");
        entries.iter().skip(7).step_by(8).filter(|byte| **byte >> 7 == 1).count() * PAGE
    }

    #[test]
    fn pages_go_back_once_a_buffer_is_idle_and_come_again() {
        let (pool, mut buffers) = Pool::new(64, NonZeroUsize::new(BYTES).expect("some")).expect("a pool");
        assert!(buffers.iter_mut().all(|buffer| !buffer.give_back_if_idle()), "nothing was there");
        for buffer in &mut buffers {
            buffer.payload_mut().fill(7);
        }
        assert!(resident(&pool) >= 64 * BYTES);
        assert!(buffers.iter_mut().all(|buffer| !buffer.give_back_if_idle()), "just written to");
        buffers[5].payload_mut()[0] = 8;
        let given: Vec<u32> =
            buffers.iter_mut().filter_map(|buffer| buffer.give_back_if_idle().then_some(buffer.id())).collect();
        assert_eq!(given.len(), 63, "all but the one in use");
        assert!(!given.contains(&buffers[5].id()));
        assert!(resident(&pool) < 8 * BYTES, "{}", resident(&pool));
        assert_eq!(buffers[5].payload()[..2], [8, 7]);
        assert!(buffers[6].payload().iter().all(|byte| *byte == 0));
        buffers[6].payload_mut().fill(9);
        assert!(buffers[6].payload().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn memory_is_exchanged_with_what_is_in_it() {
        let new = || Pool::new(2, NonZeroUsize::new(BYTES).expect("some")).expect("a pool");
        let ((one_pool, mut one), (other_pool, mut other)) = (new(), new());
        one[0].payload_mut().fill(1);
        *one[0].header_mut() = [3; CHUNK_HEADER_BYTES];
        assert!(one[0].exchange(&mut other[1]));
        assert_eq!((one[0].payload()[0], other[1].payload()[BYTES - 1]), (0, 1));
        assert_eq!((one[0].header()[0], other[1].header()[0]), (3, 0), "the header stays");
        one[0].payload_mut().fill(2);
        assert_eq!(other[1].payload()[0], 1);
        assert!(resident(&one_pool) >= BYTES && resident(&other_pool) >= BYTES);
        // Exchanged memory is freed with the buffer that holds it.
        drop(other);
        assert_eq!(one[0].payload()[BYTES - 1], 2);
        assert!(resident(&one_pool) < BYTES, "but the header's page");
        drop((one, one_pool));
        assert!(resident(&other_pool) < BYTES);
    }

    #[test]
    fn memory_that_a_device_has_or_of_another_length_is_not_exchanged() {
        let new = |bytes| Pool::new(1, NonZeroUsize::new(bytes).expect("some")).expect("a pool");
        let ((pool, mut one), (_, mut like), (_, mut longer)) = (new(BYTES), new(BYTES), new(2 * BYTES));
        assert!(!one[0].exchange(&mut longer[0]) && !longer[0].exchange(&mut one[0]));
        pool.pin();
        assert!(!one[0].exchange(&mut like[0]) && !like[0].exchange(&mut one[0]));
    }

    #[test]
    fn buffers_that_share_a_page_keep_it() {
        // Chunks of 96 KiB do so on systems with pages of 64 KiB.
        let bytes = rustix::param::page_size() * 3 / 2;
        let (pool, mut buffers) = Pool::new(4, NonZeroUsize::new(bytes).expect("some")).expect("a pool");
        for buffer in &mut buffers {
            buffer.payload_mut().fill(7);
            *buffer.header_mut() = [3; CHUNK_HEADER_BYTES];
        }
        for at in [1, 2] {
            assert!(!buffers[at].give_back_if_idle() && !buffers[at].give_back_if_idle() && !buffers[at].give_back());
        }
        drop(buffers.drain(1..3));
        for buffer in &buffers {
            assert!(buffer.payload().iter().all(|byte| *byte == 7) && buffer.header().iter().all(|byte| *byte == 3));
        }
        assert_eq!(pool.count(), 4);
    }

    #[test]
    fn what_a_device_has_stays() {
        let (pool, mut buffers) = Pool::new(16, NonZeroUsize::new(BYTES).expect("some")).expect("a pool");
        pool.pin();
        for buffer in &mut buffers {
            buffer.payload_mut().fill(7);
            assert!(!buffer.give_back_if_idle() && !buffer.give_back_if_idle() && !buffer.give_back_if_idle());
            assert!(buffer.payload().iter().all(|byte| *byte == 7));
        }
    }
}
