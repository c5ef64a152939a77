//! How often a thread has waited.

#![allow(unsafe_code, reason = "getrusage of a thread, which rustix has not")]

use std::mem::MaybeUninit;

/// How often the calling thread has slept in the kernel so far, for a disk, a server or another thread.
pub fn waits_of_thread() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills a structure of that type, or leaves it as it is: all zero, which is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw as u64
}
