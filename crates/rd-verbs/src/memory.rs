//! Protection domains and registered memory.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::device::Device;
use crate::{Error, ffi};

/// A protection domain. A queue pair can use only the memory of its own domain.
pub struct ProtectionDomain {
    raw: NonNull<ffi::Pd>,
    /// Dropped after the domain, which is on it.
    device: Arc<Device>,
}

// SAFETY: used through libibverbs, whose calls are thread-safe.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a domain.
    ///
    /// # Errors
    ///
    /// The error of `ibv_alloc_pd`.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open as long as the device.
        let raw = unsafe { (device.api().ibv_alloc_pd)(device.context().as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { raw, device: Arc::clone(device) }))
    }

    /// Returns the device that the domain is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut ffi::Pd {
        self.raw.as_ptr()
    }

    /// Registers `length` bytes at `start` for the device to read and write locally. `owner` should be the object that
    /// keeps the memory mapped; it is held until the memory is deregistered.
    ///
    /// The function is safe because the device does not touch the memory until an address within it is posted.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if RLIMIT_MEMLOCK is too small; `EFAULT` if the memory is not mapped.
    pub fn register(
        self: &Arc<Self>,
        start: NonNull<u8>,
        length: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: the kernel checks and pins the range; registering alone changes nothing in it.
        let raw = unsafe {
            (self.device.api().ibv_reg_mr)(
                self.raw.as_ptr(),
                start.as_ptr().cast::<c_void>(),
                length,
                ffi::ACCESS_LOCAL_WRITE,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        Ok(MemoryRegion { raw, domain: Arc::clone(self), _owner: owner })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every region and queue pair in the domain holds an `Arc` of it, so that none is left.
        let answer = unsafe { (self.device.api().ibv_dealloc_pd)(self.raw.as_ptr()) };
        // Any other error means that the device has gone, and its objects with it.
        debug_assert_ne!(answer, libc::EBUSY, "a protection domain was still in use");
    }
}

/// A region of registered memory.
pub struct MemoryRegion {
    raw: NonNull<ffi::Mr>,
    /// Dropped after the region, which is in it.
    domain: Arc<ProtectionDomain>,
    /// Dropped last: the memory itself.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the fields are only read, and deregistering is thread-safe.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Returns the key by which a local work request names this memory. The key gives the peer no access.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// Returns the domain that the region is in.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region is deregistered once.
        let answer = unsafe { (self.domain.device().api().ibv_dereg_mr)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a memory region was still in use");
    }
}

/// One entry of a scatter-gather list, `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// [`MemoryRegion::local_key`] of the region that contains the segment.
    pub local_key: u32,
}

/// Maps memory that child processes do not inherit and core dumps leave out. After a fork, a child would get the pages
/// and the parent copies, which the device does not know.
///
/// # Errors
///
/// The error of mmap or madvise.
fn private_memory(length: usize) -> std::io::Result<MmapRaw> {
    let memory = MmapRaw::from(MmapMut::map_anon(length)?);
    memory.advise(Advice::DontFork)?;
    memory.advise(Advice::DontDump)?;
    Ok(memory)
}

/// A region with memory of its own, divided into slots of equal size, for small messages.
///
/// Bytes are copied in and out, so that there is never a reference to memory that the device may be writing.
pub struct MessageRegion {
    region: MemoryRegion,
    /// The mapping, which the region owns as well.
    memory: Arc<MmapRaw>,
    slot_bytes: usize,
    slots: u32,
}

impl MessageRegion {
    /// Maps and registers `slots` slots of `slot_bytes` each.
    ///
    /// # Errors
    ///
    /// The error of mmap, or of registering.
    pub fn new(domain: &Arc<ProtectionDomain>, slots: u32, slot_bytes: usize) -> Result<Self, Error> {
        let length = slots as usize * slot_bytes;
        let memory = private_memory(length)
            .map_err(|error| Error::Call { call: "mmap", errno: error.raw_os_error().unwrap_or(0) })?;
        let memory = Arc::new(memory);
        let start = NonNull::new(memory.as_mut_ptr()).expect("a mapping is not at 0");
        let region = domain.register(start, length, Arc::clone(&memory) as _)?;
        Ok(Self { region, memory, slot_bytes, slots })
    }

    /// Returns the length of a slot, in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Copies `parts`, one after another, to the start of a slot. Returns their total length in bytes.
    ///
    /// # Panics
    ///
    /// If there is no such slot, or the parts do not fit.
    pub fn write(&self, slot: u32, parts: &[&[u8]]) -> u32 {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        assert!(slot < self.slots && total <= self.slot_bytes, "a message fits its slot");
        let mut at = slot as usize * self.slot_bytes;
        for part in parts {
            // SAFETY: within the mapping, by the assertion. `part` lies outside, because no reference points into the
            // mapping.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.memory.as_mut_ptr().add(at), part.len()) };
            at += part.len();
        }
        total as u32
    }

    /// Copies `length` bytes of a slot from offset `from` on, or as many as the slot has.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn read(&self, slot: u32, from: usize, length: usize) -> Vec<u8> {
        assert!(slot < self.slots, "no such slot");
        let from = from.min(self.slot_bytes);
        let mut bytes = vec![0; length.min(self.slot_bytes - from)];
        let at = slot as usize * self.slot_bytes + from;
        // SAFETY: within the mapping, by the assertion and the minima. The vector lies outside.
        unsafe { ptr::copy_nonoverlapping(self.memory.as_mut_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Returns the first `length` bytes of a slot as a segment for a work request.
    ///
    /// # Panics
    ///
    /// If there is no such slot, or the slot is shorter.
    pub(crate) fn segment(&self, slot: u32, length: u32) -> Segment {
        assert!(slot < self.slots && length as usize <= self.slot_bytes, "a message fits its slot");
        let address = self.memory.as_mut_ptr() as u64 + u64::from(slot) * self.slot_bytes as u64;
        Segment { address, length, local_key: self.region.local_key() }
    }
}
