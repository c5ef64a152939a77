//! How often a thread has waited.

#![allow(unsafe_code, reason = "getrusage of a thread, which rustix has not")]

use std::mem::MaybeUninit;

/// What the calling thread has waited for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadWaits {
    /// How often it has slept in the kernel, for a disk, a server or another thread.
    pub slept: u64,
    /// What it has had read from block devices, in blocks of 512 bytes; 0 where the kernel does not count that.
    pub blocks: u64,
}

/// What the calling thread has waited for so far.
pub fn waits_of_thread() -> ThreadWaits {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills a structure of that type, or leaves it as it is: all zero, which is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    ThreadWaits { slept: usage.ru_nvcsw as u64, blocks: usage.ru_inblock as u64 }
}
