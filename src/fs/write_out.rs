//! Early writing out: data that has to go to the disk before a file is published goes there while the file is written.
//!
//! With `--fsync`, and on a block device that a copy writes in place, that is all data. Without it, ext4
//! (`auto_da_alloc`, ext4(5)) and Btrfs give the cached data of a file to the disk when the file takes the name of
//! another. Left to the end, it takes as long as the disk does when nothing else is left to do: 0.4 s of 1.3 for 1 GiB
//! of which a hundredth had changed.

#![allow(unsafe_code, reason = "a system call without a safe binding is made")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::direct::write::is_cache_only;

/// Number of bytes after whose writing the next ones go to the disk.
const STEP_BYTES: u64 = 8 << 20;

/// File systems that write out a file when it replaces another one: ext4, Btrfs.
const WRITES_OUT: [u32; 2] = [0xef53, 0x9123_683e];

/// Errors that say nothing about the data, which stays in the cache: the call is not there, is not allowed, or was not
/// begun.
const NOT_OF_DATA: [Errno; 8] =
    [Errno::NOSYS, Errno::INVAL, Errno::SPIPE, Errno::PERM, Errno::OPNOTSUPP, Errno::INTR, Errno::AGAIN, Errno::NOMEM];

/// Counts what is written to one file. Shared by all threads that write to it.
#[derive(Debug)]
pub struct WriteOut {
    written_bytes: AtomicU64,
}

impl WriteOut {
    /// For a file on a file system of this `kind` (statfs(2)); `None` if nothing has to go to the disk before the file
    /// is published; 0 is a device. `replaces`: whether the file will take the name of another one. `is_synced`:
    /// whether it is synced.
    pub fn new(kind: u32, replaces: bool, is_synced: bool) -> Option<Self> {
        let is_needed = is_synced && !is_cache_only(kind) || replaces && WRITES_OUT.contains(&kind);
        is_needed.then(|| Self { written_bytes: AtomicU64::new(0) })
    }

    /// Notes that `bytes` have been written to `file`. Every 8 MiB the call begins to write out what the cache has of
    /// the file, and blocks while the disk's queue is full.
    ///
    /// # Errors
    ///
    /// The error number if the data cannot be written. It may be told only here: if ext4 finds no place for data of the
    /// cache, it drops the data, and a later sync has nothing left to fail with.
    pub fn note(&self, file: impl AsFd, bytes: usize) -> Result<(), Errno> {
        if !self.is_due(bytes as u64) {
            return Ok(());
        }
        // SAFETY: the descriptor is open, and the other arguments are numbers.
        let done = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(error) if done != 0 && !NOT_OF_DATA.contains(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn is_due(&self, bytes: u64) -> bool {
        let before = self.written_bytes.fetch_add(bytes, Relaxed);
        before / STEP_BYTES < (before + bytes) / STEP_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TMPFS_MAGIC;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn only_what_must_go_to_the_disk_goes_early() {
        const XFS: u32 = 0x5846_5342;
        let is_some = |kind, replaces, is_synced| WriteOut::new(kind, replaces, is_synced).is_some();
        assert!(WRITES_OUT.iter().all(|&kind| is_some(kind, true, false) && !is_some(kind, false, false)));
        assert!(is_some(XFS, false, true) && !is_some(XFS, true, false));
        assert!(!is_some(TMPFS_MAGIC, true, true));
    }

    #[test]
    fn an_error_of_writing_is_told_and_no_other() {
        let file = tempfile::tempfile().expect("a file");
        let note = || WriteOut::new(0, false, true).expect("some").note(&file, STEP_BYTES as usize);
        assert_eq!(note(), Ok(()));
        let call = [libc::SYS_sync_file_range];
        for error in [Errno::IO, Errno::NOSPC, Errno::STALE, Errno::from_raw_os_error(libc::EUCLEAN)] {
            assert_eq!(where_calls_fail(&call, error.raw_os_error(), note), Err(error));
        }
        for error in NOT_OF_DATA {
            assert_eq!(where_calls_fail(&call, error.raw_os_error(), note), Ok(()));
        }
    }

    #[test]
    fn one_write_in_each_step_is_due() {
        let write_out = WriteOut::new(WRITES_OUT[0], true, false).expect("some");
        let due = (0..100).filter(|_| write_out.is_due(1 << 20)).count();
        assert_eq!(due, 12);
        assert!(write_out.is_due(10 * STEP_BYTES), "steps passed at once are one");
        assert!(!write_out.is_due(0));
    }
}
