//! Writing without the page cache: decides when the cache gains nothing from a transfer's data, and writes past it.
//!
//! Data written into the cache is copied once more, evicts other processes' pages, and is held back by the kernel as
//! soon as much of it waits for the disk. For a file of moderate size that is worth it: the writer is done at once, and
//! the next reader finds the data in the cache. So a transfer may put a share of the available memory into the cache.
//! Everything beyond that share goes past it: all of a file that is announced as larger, and whatever a transfer writes
//! when its share is used up.
//!
//! Threads that write past the cache wait for the disk, one write each; together they form the queue. Only whole pages
//! go past the cache. Unaligned data, such as a file's last bytes, goes through it. No page is written both ways at
//! once: ranges that arrive do not overlap, and a block of an older file has been written before its successor is asked
//! for.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minicbor::{Decode, Encode};
use nix::sys::resource::Resource;
use rustix::fs::{FileType, OFlags, fstat, fstatfs};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::param::page_size;

use super::{ALIGNMENT, reopen};
use crate::fs::{TMPFS_MAGIC, close, group_limits, write_at};
use crate::limits;

/// Divisor of the available memory that gives what one transfer may put into the page cache. The result is near the
/// share of dirty pages at which Linux begins to hold writers back.
const CACHE_SHARE: u64 = 8;

/// Minimum length of a direct write. If shorter writes are each waited for, a disk reaches only a small part of its
/// rate.
const WRITE_BYTES_MIN: usize = 64 << 10;

/// File systems that accept O_DIRECT but have nothing but the page cache: tmpfs, ramfs.
const CACHE_ONLY: [u32; 2] = [TMPFS_MAGIC, 0x8584_58f6];

/// How much of a transfer's data was written past the cache and through it. Shared by all threads that write for it.
#[derive(Debug)]
pub struct Writes {
    /// Maximum number of bytes to write through the cache if there is a way past it.
    cache_bytes_max: u64,
    direct_bytes: AtomicU64,
    buffered_bytes: AtomicU64,
}

/// How much was written to files, past the page cache and through it. Both are 0 if the sink was a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Written {
    /// Bytes written past the page cache.
    #[n(0)]
    pub direct_bytes: u64,
    /// Bytes written through the page cache.
    #[n(1)]
    pub buffered_bytes: u64,
}

impl Writes {
    /// Makes the counters of a transfer. `cache_bytes_max` is how much the page cache may get; if `None`, a share of
    /// the available memory.
    pub fn new(cache_bytes_max: Option<u64>) -> Self {
        Self {
            cache_bytes_max: cache_bytes_max.unwrap_or_else(|| {
                // If the kernel does not tell, there is no reason against the cache.
                available_bytes(Path::new("/")).map_or(u64::MAX, |bytes| bytes / CACHE_SHARE)
            }),
            direct_bytes: AtomicU64::new(0),
            buffered_bytes: AtomicU64::new(0),
        }
    }

    /// Reports whether a file of this size is written past the cache from its beginning.
    pub fn are_direct(&self, size: u64) -> bool {
        size.max(self.buffered_bytes.load(Ordering::Relaxed)) > self.cache_bytes_max
    }

    /// Records bytes that were written through the cache.
    pub fn note_buffered(&self, bytes: usize) {
        self.buffered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns how much has been written so far.
    pub fn written(&self) -> Written {
        Written {
            direct_bytes: self.direct_bytes.load(Ordering::Relaxed),
            buffered_bytes: self.buffered_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The way past the page cache into one open file; shared by all threads that write to it.
#[derive(Debug, Default)]
pub struct WriteBypass {
    /// A second descriptor of the file, opened with O_DIRECT when the first range is to be written past the cache.
    direct: OnceLock<Option<OwnedFd>>,
    /// Whether the file cannot be written past the cache.
    is_closed: AtomicBool,
}

impl WriteBypass {
    /// Writes all of `bytes` at a position of `file`. `size` is that of the file, or 0 if it is not known.
    ///
    /// # Errors
    ///
    /// The error number of the write that failed.
    pub fn write(&self, file: impl AsFd, bytes: &[u8], position: u64, size: u64, writes: &Writes) -> Result<(), Errno> {
        let is_aligned = position.is_multiple_of(ALIGNMENT as u64) && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        let mut done = 0;
        if bytes.len() >= WRITE_BYTES_MIN
            && is_aligned
            && writes.are_direct(size)
            && !self.is_closed.load(Ordering::Relaxed)
            && let Some(direct) = self.direct.get_or_init(|| open_direct(&file))
        {
            done = self.write_direct(direct, &bytes[..bytes.len() / ALIGNMENT * ALIGNMENT], position)?;
            writes.direct_bytes.fetch_add(done as u64, Ordering::Relaxed);
        }
        write_at(file, &bytes[done..], position + done as u64)?;
        writes.note_buffered(bytes.len() - done);
        Ok(())
    }

    /// Asks the file system, after the last write, for the result of all writes, past the cache and through it.
    ///
    /// # Errors
    ///
    /// The error number returned by close(2).
    pub fn settle(&self, file: impl AsFd) -> Result<(), Errno> {
        if let Some(Some(direct)) = self.direct.get() {
            close::settle(direct)?;
        }
        close::settle(file)
    }

    /// Writes whole pages past the cache, or as many as the file system accepts. Returns the number of bytes written.
    fn write_direct(&self, file: &OwnedFd, pages: &[u8], position: u64) -> Result<usize, Errno> {
        let mut done = 0;
        // After a write of less than a block, the rest can only go through the cache.
        while done < pages.len() && done.is_multiple_of(ALIGNMENT) {
            match retry_on_intr(|| pwrite(file, &pages[done..], position + done as u64)) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                // The file system requires another alignment, or has no direct writes after all.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.is_closed.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// Reports whether file systems of this kind (statfs(2)) have nothing but the page cache.
pub fn is_cache_only(kind: u32) -> bool {
    CACHE_ONLY.contains(&kind)
}

/// Opens the same file for direct writes. `None` if these are not possible, or the same as writes through the cache.
fn open_direct(file: impl AsFd) -> Option<OwnedFd> {
    // A device's descriptor tells the file system of its name, which often is tmpfs.
    let is_device = FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::BlockDevice;
    let has_disk = is_device || !is_cache_only(fstatfs(&file).ok()?.f_type as u32);
    has_disk.then(|| reopen(&file, OFlags::WRONLY).ok()).flatten()
}

/// Returns how much memory is available without swapping, as the kernel estimates it, but no more than this process's
/// control groups leave. `root` is the directory in which /proc and /sys are.
pub fn available_bytes(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let meminfo = read("proc/meminfo")?;
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1 << 10))
    };
    let mut least = bytes("MemAvailable:")?;
    // A limit above that, such as the one that stands for none in version 1, takes nothing away. What a group has taken
    // need not be read then, for which the kernel adds up the counts of all processors.
    let all = bytes("MemTotal:").unwrap_or(u64::MAX);
    for files in [["memory.max", "memory.limit_in_bytes"], ["memory.high"; 2]] {
        for (group, limit) in group_limits(root, "memory", files).into_iter().filter(|(_, limit)| *limit < all) {
            least = least.min(limit.saturating_sub(used_bytes(&group)));
        }
    }
    // Nor more than the limits on this process (`ulimit -v`) leave, given what it has taken of them: proc_pid_statm(5).
    let statm = read("proc/self/statm").unwrap_or_default();
    let pages: Vec<u64> = statm.split(' ').filter_map(|number| number.trim().parse().ok()).collect();
    for (resource, taken) in [(Resource::RLIMIT_AS, pages.first()), (Resource::RLIMIT_DATA, pages.get(5))] {
        if let (Some(limit), Some(taken)) = (limits::soft(resource), taken) {
            least = least.min(limit.saturating_sub(taken * page_size() as u64));
        }
    }
    Some(least)
}

/// Returns how much memory the processes of a control group have taken. Cached files are charged to the group as well,
/// but can be evicted and do not count: `active_file` and `inactive_file` of cgroup-v2.rst, with the prefix `total_` in
/// version 1.
fn used_bytes(group: &Path) -> u64 {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    let Some(usage) = read("memory.current").or_else(|| read("memory.usage_in_bytes")) else { return 0 };
    let stat = read("memory.stat").unwrap_or_default();
    let is_total = stat.lines().any(|line| line.starts_with("total_"));
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let name = if is_total { name.strip_prefix("total_")? } else { name };
        ["active_file", "inactive_file"].contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    });
    usage.trim().parse::<u64>().unwrap_or(0).saturating_sub(cached.sum())
}

#[cfg(test)]
mod tests;
