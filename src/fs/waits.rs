//! Counts how often a thread has waited.

use nix::sys::resource::{Usage, UsageWho, getrusage};

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
    let told = |usage: Usage| ThreadWaits {
        slept: usage.voluntary_context_switches() as u64,
        blocks: usage.block_reads() as u64,
    };
    getrusage(UsageWho::RUSAGE_THREAD).map(told).unwrap_or_default()
}
