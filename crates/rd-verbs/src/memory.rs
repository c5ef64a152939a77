//! Protection domains and registered memory.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::device::Device;
use crate::{Error, ffi};

/// A protection domain: memory and queue pairs of one domain go together.
pub struct ProtectionDomain {
    raw: NonNull<ffi::Pd>,
    /// After the domain, which is on it.
    device: Arc<Device>,
}

// SAFETY: used through libibverbs, whose calls are thread-safe.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates one.
    ///
    /// # Errors
    ///
    /// What `ibv_alloc_pd` left.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open as long as the device.
        let raw = unsafe { (device.api().ibv_alloc_pd)(device.context().as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { raw, device: Arc::clone(device) }))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut ffi::Pd {
        self.raw.as_ptr()
    }

    /// Registers `length` bytes at `start` for the device to read and write locally. `owner` is kept until they are
    /// deregistered; it should be what keeps the memory mapped.
    ///
    /// Safe, since nothing happens to the memory until an address within it is posted.
    ///
    /// # Errors
    ///
    /// ENOMEM where RLIMIT_MEMLOCK is too small; EFAULT if the memory is not mapped.
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
        // SAFETY: every region and queue pair in it holds an `Arc` of it, so none is left.
        let answer = unsafe { (self.device.api().ibv_dealloc_pd)(self.raw.as_ptr()) };
        // Any other error is from a device that has gone, and its objects with it.
        debug_assert_ne!(answer, libc::EBUSY, "a protection domain was still in use");
    }
}

/// Registered memory.
pub struct MemoryRegion {
    raw: NonNull<ffi::Mr>,
    /// After the region, which is in it.
    domain: Arc<ProtectionDomain>,
    /// Last: the memory itself.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: its fields are read only, and deregistering is thread-safe.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key that a local work request names this memory by. It gives the peer nothing.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The domain it is in.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: deregistered once.
        let answer = unsafe { (self.domain.device().api().ibv_dereg_mr)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a memory region was still in use");
    }
}

/// One entry of a scatter-gather list.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// [`MemoryRegion::local_key`] of the region it lies in.
    pub local_key: u32,
}

/// Memory that children do not inherit and core dumps leave out. After a fork a child would get the pages and the parent
/// copies, which the device does not know.
///
/// # Errors
///
/// What mmap or madvise answered.
fn private_memory(length: usize) -> std::io::Result<MmapRaw> {
    let memory = MmapRaw::from(MmapMut::map_anon(length)?);
    memory.advise(Advice::DontFork)?;
    memory.advise(Advice::DontDump)?;
    Ok(memory)
}

/// Registered memory of its own, in slots of equal size, for small messages.
///
/// Bytes go in and out by copy, so that there is never a reference to memory that the device may be writing.
pub struct MessageRegion {
    region: MemoryRegion,
    /// Owned by the region as well.
    memory: Arc<MmapRaw>,
    slot_bytes: usize,
    slots: u32,
}

impl MessageRegion {
    /// Maps and registers `slots` slots of `slot_bytes` each.
    ///
    /// # Errors
    ///
    /// What mmap or registering answered.
    pub fn new(domain: &Arc<ProtectionDomain>, slots: u32, slot_bytes: usize) -> Result<Self, Error> {
        let length = slots as usize * slot_bytes;
        let memory = private_memory(length)
            .map_err(|error| Error::Call { call: "mmap", errno: error.raw_os_error().unwrap_or(0) })?;
        let memory = Arc::new(memory);
        let start = NonNull::new(memory.as_mut_ptr()).expect("a mapping is not at 0");
        let region = domain.register(start, length, Arc::clone(&memory) as _)?;
        Ok(Self { region, memory, slot_bytes, slots })
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Copies `parts`, one after the other, to the start of a slot. Returns their length in bytes.
    ///
    /// # Panics
    ///
    /// If there is no such slot, or they do not fit.
    pub fn write(&self, slot: u32, parts: &[&[u8]]) -> u32 {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        assert!(slot < self.slots && total <= self.slot_bytes, "a message fits its slot");
        let mut at = slot as usize * self.slot_bytes;
        for part in parts {
            // SAFETY: within the mapping, by the assertion; `part` is elsewhere, as nothing refers into the mapping.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.memory.as_mut_ptr().add(at), part.len()) };
            at += part.len();
        }
        total as u32
    }

    /// Copies `length` bytes of a slot from offset `from`, or as many as it has.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn read(&self, slot: u32, from: usize, length: usize) -> Vec<u8> {
        assert!(slot < self.slots, "no such slot");
        let from = from.min(self.slot_bytes);
        let mut bytes = vec![0; length.min(self.slot_bytes - from)];
        let at = slot as usize * self.slot_bytes + from;
        // SAFETY: within the mapping, by the assertion and the minima; the vector is elsewhere.
        unsafe { ptr::copy_nonoverlapping(self.memory.as_mut_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// The first `length` bytes of a slot, as a work request names them.
    ///
    /// # Panics
    ///
    /// If there is no such slot, or it is shorter.
    pub(crate) fn segment(&self, slot: u32, length: u32) -> Segment {
        assert!(slot < self.slots && length as usize <= self.slot_bytes, "a message fits its slot");
        let address = self.memory.as_mut_ptr() as u64 + u64::from(slot) * self.slot_bytes as u64;
        Segment { address, length, local_key: self.region.local_key() }
    }
}
