//! Counts how often a thread has waited.

#![allow(unsafe_code, reason = "getrusage of a thread, which rustix has not")]

use std::mem::MaybeUninit;

/// What a thread has waited for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadWaits {
    /// Number of times that the thread has slept in the kernel, for a disk, a server or another thread.
    pub slept: u64,
    /// Data read from block devices for the thread, in blocks of 512 bytes; 0 if the kernel does not count that.
    pub blocks: u64,
}

/// Returns what the calling thread has waited for so far.
pub fn waits_of_thread() -> ThreadWaits {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills a structure of this type, or leaves it all zero, which is a valid value of the type.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    ThreadWaits { slept: usage.ru_nvcsw as u64, blocks: usage.ru_inblock as u64 }
}
