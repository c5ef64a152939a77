//! Reading without the page cache: decides which ranges of a file are copied from the cache, and opens the way past the
//! cache for the others.
//!
//! As long as ranges of a file turn out to be cached, they are copied by reads that may not wait, one system call each.
//! Such a read also reports when the cache has no more data, but makes the kernel fetch the missing pages. So at the
//! beginning, and after a read that did not find everything, the kernel is asked first: by cachestat (Linux 6.5, for
//! files that the caller owns or may write), else by reading the first page of the range, which brings only that page
//! into the cache. Cold ranges are read with O_DIRECT, so that a large transfer neither evicts other processes' pages
//! nor is slowed by the cache's own work. This module decides; the queue of reads is in `engine/io.rs`.
//!
//! Writing past the cache is in [`mod@write`].
//!
//! A file for which direct reads do not work (because of its file system, an unaligned offset, or a missing /proc) is
//! read by `pread`.

#![allow(unsafe_code, reason = "cachestat, which no crate has")]

use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rd_proto::control::IoFact;
use rustix::fs::{CWD, OFlags, fstat, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};

use super::source::read_at;
use super::{identity, open_quietly, read_up_to};
use crate::fault::errno_of;

pub mod write;

/// Offsets, lengths and addresses of direct reads are multiples of this: the page size, which is a multiple of a
/// device's block size. A file system that requires more refuses the read, and the file is then read through the cache.
pub const ALIGNMENT: usize = 4096;

/// How a file's ranges are read. Each open file has one, shared by all threads that read the file.
#[derive(Debug, Default)]
pub struct Bypass {
    /// A second descriptor of the file, opened with O_DIRECT when the first cold range is met.
    direct: OnceLock<Option<Arc<OwnedFd>>>,
    /// Whether everything is read through the cache, because the kernel does not tell what is cached or because direct
    /// reads do not work.
    is_closed: AtomicBool,
    /// Whether the last range that was examined was cached.
    is_warm: AtomicBool,
    /// Whether the kernel does not tell how much of a range is cached.
    is_untold: AtomicBool,
    /// Whether reads that may not wait are supported, which tell whether a page is cached. Determined when first
    /// needed.
    has_quick_reads: OnceLock<bool>,
    /// Whether the file system has nothing but the page cache. Determined when first needed.
    is_in_memory: OnceLock<bool>,
}

/// Running totals of the bytes read, past the page cache and through it.
#[derive(Debug, Default)]
pub struct Tally {
    /// Bytes read past the page cache.
    pub direct_bytes: AtomicU64,
    /// Bytes read from or through the page cache.
    pub cached_bytes: AtomicU64,
}

/// A range of which the page cache has only the beginning, or nothing.
#[derive(Clone, Debug)]
pub struct Cold {
    /// The file, opened with O_DIRECT.
    pub file: Arc<OwnedFd>,
    /// Offset in the file at which the range begins.
    pub offset: u64,
    /// Number of bytes of the range that are in the target already; a multiple of [`ALIGNMENT`].
    pub done: usize,
    /// Length of the range in bytes.
    pub length: usize,
}

impl Cold {
    /// Returns the part of the target that a direct read fills. It extends beyond the range's end to the next multiple
    /// of [`ALIGNMENT`], because a file's last block is read as a whole.
    pub fn hole<'a>(&self, target: &'a mut [u8]) -> &'a mut [u8] {
        &mut target[self.done..self.length.next_multiple_of(ALIGNMENT)]
    }

    /// Returns the offset in the file from which [`Cold::hole`] is read.
    pub fn hole_offset(&self) -> u64 {
        self.offset + self.done as u64
    }
}

impl Bypass {
    /// Fills the first `length` bytes of `target` from `offset` on, or as many as the page cache has. If a [`Cold`] is
    /// returned, the caller reads the rest as it says, and passes the outcome to [`Bypass::finish`].
    ///
    /// # Errors
    ///
    /// The name and the error number; without a number if the file has become shorter.
    pub fn read(
        &self,
        file: impl AsFd,
        name: &OsStr,
        offset: u64,
        target: &mut [u8],
        length: usize,
        tally: &Tally,
    ) -> Result<Option<Cold>, IoFact> {
        let mut done = 0;
        let may_be_direct =
            offset.is_multiple_of(ALIGNMENT as u64) && length.next_multiple_of(ALIGNMENT) <= target.len();
        if may_be_direct
            && !self.is_closed.load(Ordering::Relaxed)
            && !self.is_warm.load(Ordering::Relaxed)
            && self.is_cold(&file, offset, length)
            && let Some(cold) = self.cold(&file, offset, 0, length)
        {
            return Ok(Some(cold));
        }
        while done < length && may_be_direct && !self.is_closed.load(Ordering::Relaxed) {
            let room = &mut [IoSliceMut::new(&mut target[done..length])];
            match retry_on_intr(|| preadv2(&file, room, offset + done as u64, ReadWriteFlags::NOWAIT)) {
                // The file has become shorter, which `read_at` reports below.
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::AGAIN) => {
                    self.is_warm.store(false, Ordering::Relaxed);
                    if let Some(cold) = self.cold(&file, offset, done, length) {
                        tally.cached_bytes.fetch_add(cold.done as u64, Ordering::Relaxed);
                        return Ok(Some(cold));
                    }
                    break;
                }
                // The read below, which waits, meets any other refusal again and reports it.
                Err(error) => {
                    self.is_closed.fetch_or(error == Errno::OPNOTSUPP || error == Errno::NOSYS, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.is_warm.fetch_or(done == length, Ordering::Relaxed);
        read_at(&file, name, offset + done as u64, &mut target[done..length])?;
        tally.cached_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(None)
    }

    /// Fills `target` from `offset` on if that takes no waiting for a device. Returns false if it does, or if the read
    /// fails.
    pub fn read_cached(&self, file: impl AsFd, offset: u64, target: &mut [u8], tally: &Tally) -> bool {
        let is_open = !self.is_closed.load(Ordering::Relaxed) && !self.is_warm.load(Ordering::Relaxed);
        if is_open && self.is_cold(&file, offset, target.len()) {
            return false;
        }
        let length = target.len();
        let is_read = match preadv2(&file, &mut [IoSliceMut::new(target)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => count == length,
            // The file system does not support such reads. If it has nothing but the page cache, no read waits.
            Err(Errno::OPNOTSUPP) if self.is_in_memory(&file) => {
                read_up_to(&file, target, offset).is_ok_and(|count| count == length)
            }
            Err(_) => false,
        };
        self.is_warm.store(is_read, Ordering::Relaxed);
        tally.cached_bytes.fetch_add(if is_read { length as u64 } else { 0 }, Ordering::Relaxed);
        is_read
    }

    /// Reports whether the file system has nothing but the page cache.
    fn is_in_memory(&self, file: impl AsFd) -> bool {
        *self.is_in_memory.get_or_init(|| fstatfs(file).is_ok_and(|system| write::is_cache_only(system.f_type as u32)))
    }

    /// Reports whether reads that may not wait are supported. They are not on overlayfs, for which cachestat reports
    /// that nothing is cached, because the pages belong to the file system below it.
    fn has_quick_reads(&self, file: impl AsFd) -> bool {
        /// An offset beyond the end of any file, so that nothing is fetched.
        const NOWHERE: u64 = i64::MAX as u64 - ALIGNMENT as u64;
        *self.has_quick_reads.get_or_init(|| {
            let one = &mut [0];
            preadv2(file, &mut [IoSliceMut::new(one)], NOWHERE, ReadWriteFlags::NOWAIT) != Err(Errno::OPNOTSUPP)
        })
    }

    /// Reports whether any part of a range is missing from the page cache, without having it fetched.
    fn is_cold(&self, file: impl AsFd, offset: u64, length: usize) -> bool {
        if !self.has_quick_reads(&file) {
            self.is_closed.store(true, Ordering::Relaxed);
            return false;
        }
        if !self.is_untold.load(Ordering::Relaxed) {
            match cached_pages(&file, offset, length as u64) {
                Ok(pages) => return pages < length.div_ceil(rustix::param::page_size()) as u64,
                Err(_) => self.is_untold.store(true, Ordering::Relaxed),
            }
        }
        let first = &mut [0; ALIGNMENT];
        preadv2(file, &mut [IoSliceMut::new(first)], offset, ReadWriteFlags::NOWAIT) == Err(Errno::AGAIN)
    }

    /// Returns how to read a cold range. `None` if it must be read through the page cache.
    fn cold(&self, file: impl AsFd, offset: u64, done: usize, length: usize) -> Option<Cold> {
        let file = self.direct.get_or_init(|| reopen(file, OFlags::RDONLY).ok().map(Arc::new));
        let Some(file) = file else {
            self.is_closed.store(true, Ordering::Relaxed);
            return None;
        };
        Some(Cold { file: Arc::clone(file), offset, done: done / ALIGNMENT * ALIGNMENT, length })
    }

    /// Finishes the read of a cold range; `outcome` is the result of the direct read. Bytes that the direct read did
    /// not deliver, for whatever reason, are read through the page cache, whose result is final.
    ///
    /// # Errors
    ///
    /// The name and the error number; without a number if the file has become shorter.
    pub fn finish(
        &self,
        file: impl AsFd,
        name: &OsStr,
        cold: &Cold,
        outcome: Result<usize, Errno>,
        target: &mut [u8],
        tally: &Tally,
    ) -> Result<(), IoFact> {
        if let Err(Errno::INVAL | Errno::OPNOTSUPP) = outcome {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        let read = outcome.unwrap_or(0).min(cold.length - cold.done);
        tally.direct_bytes.fetch_add(read as u64, Ordering::Relaxed);
        let done = cold.done + read;
        if done < cold.length {
            read_at(file, name, cold.offset + done as u64, &mut target[done..cold.length])?;
            tally.cached_bytes.fetch_add((cold.length - done) as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns the number of pages of a range that are in the page cache.
pub(crate) fn cached_pages(file: impl AsFd, offset: u64, length: u64) -> Result<u64, Errno> {
    /// `struct cachestat_range` and `struct cachestat` of linux/mman.h.
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    /// Number of the system call, the same on all architectures.
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut stat) = (Range { offset, length }, Stat::default());
    let (range_at, stat_at) = (&raw const range, &raw mut stat);
    // SAFETY: the kernel reads one structure and writes the other. Both have the layout that the kernel documents and
    // live throughout the call. A kernel without this system call returns ENOSYS.
    let answer = unsafe { libc::syscall(SYS_CACHESTAT, file.as_fd().as_raw_fd(), range_at, stat_at, 0) };
    if answer == 0 { Ok(stat.cached) } else { Err(errno_of(&std::io::Error::last_os_error())) }
}

/// Opens the same file again for direct reading or writing. The file is opened through its descriptor, so that it is
/// the same file whatever has become of its name.
pub(crate) fn reopen(file: impl AsFd, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let direct = open_quietly(CWD, &*path, access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY)?;
    let (ours, theirs) = (fstat(&direct)?, fstat(file)?);
    // Compared, because anything may be mounted on /proc.
    if identity(&ours) == identity(&theirs) { Ok(direct) } else { Err(Errno::STALE) }
}

#[cfg(test)]
mod tests;
