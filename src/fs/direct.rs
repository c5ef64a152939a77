//! Reading without the page cache: which ranges of a file are to be had from it by copy, and the way past it for the
//! others.
//!
//! While a file turns out to be cached, its ranges are copied by reads that may not wait, at one system call each: they
//! say when the cache has no more. They also make the kernel fetch what it has not, so once that has happened (and at the
//! beginning) the kernel is asked first: by cachestat (Linux 6.5, of files that one owns or may write), else by reading
//! the first page of the range, which brings in no more than that page. What is cold is read by O_DIRECT, so that a large
//! transfer neither pushes other people's pages out nor is slowed by the cache's own work. This module decides;
//! `engine/io.rs` has the queue.
//!
//! Writing past the cache is in [`mod@write`].
//!
//! A file that cannot be read so (its file system, an offset that is not aligned, no /proc) is read by `pread`.

#![allow(unsafe_code, reason = "cachestat, which no crate has")]

use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rd_proto::control::IoFact;
use rustix::fs::{Mode, OFlags, fstat, fstatfs, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::source::read_at;
use super::{identity, read_up_to};
use crate::fault::errno_of;

pub mod write;

/// Offsets, lengths and addresses of direct reads are multiples of this: the page, of which a device's block is a part.
/// Where a file system wants more, its refusal makes the file one that is read through the cache.
pub const ALIGNMENT: usize = 4096;

/// How a file's ranges are read. One for each open file; shared by all threads that read it.
#[derive(Debug, Default)]
pub struct Bypass {
    /// The same file, opened once more with O_DIRECT when the first cold range is met.
    direct: OnceLock<Option<Arc<OwnedFd>>>,
    /// The kernel does not tell what is cached, or direct reads do not work: everything is read through the cache.
    is_closed: AtomicBool,
    /// The last range that was looked at was cached.
    is_warm: AtomicBool,
    /// The kernel does not say how much of a range is cached.
    is_untold: AtomicBool,
    /// It says by reads that may not wait whether a page is cached; asked when it matters.
    has_quick_reads: OnceLock<bool>,
    /// Its file system has nothing but the page cache; asked when it matters.
    is_in_memory: OnceLock<bool>,
}

/// Bytes that were read, by the way that they came. Running totals.
#[derive(Debug, Default)]
pub struct Tally {
    /// Past the page cache.
    pub direct_bytes: AtomicU64,
    /// From or through it.
    pub cached_bytes: AtomicU64,
}

/// A range of which the page cache has the beginning, or nothing.
#[derive(Clone, Debug)]
pub struct Cold {
    /// Open with O_DIRECT.
    pub file: Arc<OwnedFd>,
    /// Offset in the file where the range begins.
    pub offset: u64,
    /// Bytes of it that are in the target already; a multiple of [`ALIGNMENT`].
    pub done: usize,
    /// Bytes of it in all.
    pub length: usize,
}

impl Cold {
    /// The part of the target that a direct read fills. It reaches beyond the range's end, up to the next multiple of
    /// [`ALIGNMENT`]: a file's last block is read as a whole.
    pub fn hole<'a>(&self, target: &'a mut [u8]) -> &'a mut [u8] {
        &mut target[self.done..self.length.next_multiple_of(ALIGNMENT)]
    }

    /// The offset in the file of what [`Cold::hole`] is read from.
    pub fn hole_offset(&self) -> u64 {
        self.offset + self.done as u64
    }
}

impl Bypass {
    /// Reads everything through the page cache.
    pub fn closed() -> Self {
        Self { is_closed: AtomicBool::new(true), ..Self::default() }
    }

    /// Fills the first `length` bytes of `target` from `offset` on, or as many as the page cache has; the rest is then to
    /// be read as the answer says, and [`Bypass::finish`] told of it.
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
            match preadv2(&file, room, offset + done as u64, ReadWriteFlags::NOWAIT) {
                // Shorter than it was: said below.
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_warm.store(false, Ordering::Relaxed);
                    if let Some(cold) = self.cold(&file, offset, done, length) {
                        tally.cached_bytes.fetch_add(cold.done as u64, Ordering::Relaxed);
                        return Ok(Some(cold));
                    }
                    break;
                }
                // Any other refusal is met again, and told, by the read that waits.
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

    /// Fills `target` from `offset` on if that takes no waiting for a device; false if it does, or fails.
    pub fn read_cached(&self, file: impl AsFd, offset: u64, target: &mut [u8], tally: &Tally) -> bool {
        let is_open = !self.is_closed.load(Ordering::Relaxed) && !self.is_warm.load(Ordering::Relaxed);
        if is_open && self.is_cold(&file, offset, target.len()) {
            return false;
        }
        let length = target.len();
        let is_read = match preadv2(&file, &mut [IoSliceMut::new(target)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => count == length,
            // A file system that cannot tell: where there is nothing but the page cache nothing waits.
            Err(Errno::OPNOTSUPP) if self.is_in_memory(&file) => {
                read_up_to(&file, target, offset).is_ok_and(|count| count == length)
            }
            Err(_) => false,
        };
        self.is_warm.store(is_read, Ordering::Relaxed);
        tally.cached_bytes.fetch_add(if is_read { length as u64 } else { 0 }, Ordering::Relaxed);
        is_read
    }

    /// The file system has nothing but the page cache.
    fn is_in_memory(&self, file: impl AsFd) -> bool {
        *self.is_in_memory.get_or_init(|| fstatfs(file).is_ok_and(|system| write::is_cache_only(system.f_type as u32)))
    }

    /// Whether reads that may not wait are possible. They are not on overlayfs, of which cachestat says that nothing is cached,
    /// since the pages are those of the file system below it.
    fn has_quick_reads(&self, file: impl AsFd) -> bool {
        /// Behind the end of any file, so that nothing is fetched.
        const NOWHERE: u64 = i64::MAX as u64 - ALIGNMENT as u64;
        *self.has_quick_reads.get_or_init(|| {
            let one = &mut [0];
            preadv2(file, &mut [IoSliceMut::new(one)], NOWHERE, ReadWriteFlags::NOWAIT) != Err(Errno::OPNOTSUPP)
        })
    }

    /// Whether any of a range is not in the page cache, without having it brought there.
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

    /// How to read what is cold; `None` if it must be through the page cache.
    fn cold(&self, file: impl AsFd, offset: u64, done: usize, length: usize) -> Option<Cold> {
        let file = self.direct.get_or_init(|| reopen(file, OFlags::RDONLY).ok().map(Arc::new));
        let Some(file) = file else {
            self.is_closed.store(true, Ordering::Relaxed);
            return None;
        };
        Some(Cold { file: Arc::clone(file), offset, done: done / ALIGNMENT * ALIGNMENT, length })
    }

    /// Ends the read of a cold range: `outcome` is what the direct read answered. What it has not read, for whatever
    /// reason, is read through the page cache, whose word is the last.
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

/// Pages of a range that are in the page cache.
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
    /// The same number everywhere.
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut stat) = (Range { offset, length }, Stat::default());
    let (range_at, stat_at) = (&raw const range, &raw mut stat);
    // SAFETY: the kernel reads one structure and writes the other, both of the layout that it documents and alive
    // meanwhile; a kernel that has no such call answers ENOSYS.
    let answer = unsafe { libc::syscall(SYS_CACHESTAT, file.as_fd().as_raw_fd(), range_at, stat_at, 0) };
    if answer == 0 { Ok(stat.cached) } else { Err(errno_of(&std::io::Error::last_os_error())) }
}

/// The same file, open to be read or written directly. By its descriptor, so it is the same one whatever has become of its
/// name.
pub(crate) fn reopen(file: impl AsFd, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let direct = open(path, access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
    let (ours, theirs) = (fstat(&direct)?, fstat(file)?);
    // Whatever is mounted on /proc.
    if identity(&ours) == identity(&theirs) { Ok(direct) } else { Err(Errno::STALE) }
}

#[cfg(test)]
mod tests;
