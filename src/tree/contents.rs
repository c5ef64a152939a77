//! Whole files that are read to be hashed, by several threads. Ranges of a large file are read in parallel.
//!
//! The data comes from the disk, unless the page cache is acceptable. It is read past the page cache if the file system
//! allows that, otherwise after the cached data has been written and dropped.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex};

use blake3::Hash;
use flume::{Receiver, Sender};
use memmap2::{Advice, MmapMut};
use rustix::fs::OFlags;
use rustix::io::{Errno, pread, retry_on_intr};

use super::ahead::{Ahead, Pace};
use super::manifest::digest::RangeDigest;
use crate::fs::direct::{ALIGNMENT, reopen};
use crate::fs::{evict, read_up_to};

/// Bytes of a large file that one thread reads at a time.
pub(super) const RANGE_BYTES: usize = 1 << 20;

/// Bytes of cached data that are hashed at a time, few enough to stay in the processor's cache.
const CACHED_BYTES: usize = 256 << 10;

/// Number of threads that wait for a disk: as many as most disks need to be busy.
const DISK_THREADS: usize = 16;

/// Where contents are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The disk.
    Disk,
    /// The page cache, for data that it has.
    Cache,
}

/// A file that is being read, and the purpose of reading it.
pub(super) struct Contents<T> {
    file: OwnedFd,
    /// The same file, opened to bypass the page cache.
    direct: Option<OwnedFd>,
    size: u64,
    digest: RangeDigest,
    /// Number of bytes that have not been read.
    left: AtomicU64,
    /// Taken when the outcome is known.
    purpose: Mutex<Option<T>>,
}

/// A range of a file, given by its first byte.
pub(super) type Job<T> = (Arc<Contents<T>>, u64);

/// Returns how many threads run [`work`].
pub(super) fn threads(medium: Medium) -> usize {
    match medium {
        Medium::Disk => crate::processors().max(DISK_THREADS),
        Medium::Cache => crate::processors(),
    }
}

/// Queues the first `size` bytes of a file to be read.
pub(super) fn read<T>(jobs: &Sender<Job<T>>, file: OwnedFd, size: u64, medium: Medium, purpose: T) {
    let direct = match medium {
        Medium::Disk if size > 0 => {
            let direct = reopen(&file, OFlags::RDONLY).ok();
            if direct.is_none() {
                let _ = evict(&file, 0, 0);
            }
            direct
        }
        _ => None,
    };
    let (digest, left, purpose) = (RangeDigest::new(size), AtomicU64::new(size), Mutex::new(Some(purpose)));
    let contents = Arc::new(Contents { file, direct, size, digest, left, purpose });
    let mut at = 0;
    loop {
        // The threads take jobs as long as there is a sender.
        let _ = jobs.send((Arc::clone(&contents), at));
        at += RANGE_BYTES as u64;
        if at >= size {
            return;
        }
    }
}

/// Reads and hashes until no sender of jobs is left. `done` is called with each file's purpose, the file, and its
/// digest or the reason why there is none. It is not called once `is_stopped`. Waits for a disk are reported to
/// `ahead`.
pub(super) fn work<T>(
    queue: &Receiver<Job<T>>,
    ahead: Option<&Ahead>,
    is_stopped: impl Fn() -> bool,
    done: impl Fn(T, &OwnedFd, Result<Hash, Errno>),
) {
    let mut buffer = MmapMut::map_anon(RANGE_BYTES);
    // If another thread forks during a direct read, the data may go to the child's copy of a page (open(2)).
    let _ = buffer.as_ref().map(|buffer| buffer.advise(Advice::DontFork));
    for (contents, at) in queue.iter() {
        if is_stopped() || !contents.is_wanted() {
            continue;
        }
        let pace = ahead.map(|ahead| (ahead, Pace::begin()));
        let outcome = match &mut buffer {
            Ok(buffer) => contents.take(buffer, at),
            Err(_) => Err(Errno::NOMEM),
        };
        if let Some((ahead, mut pace)) = pace {
            ahead.went_on(&mut pace);
        }
        if let Some(outcome) = outcome.transpose()
            && let Some(purpose) = crate::locked(&contents.purpose).take()
        {
            done(purpose, &contents.file, outcome);
        }
    }
}

impl<T> Contents<T> {
    /// Whether no range of the file has failed.
    fn is_wanted(&self) -> bool {
        crate::locked(&self.purpose).is_some()
    }

    /// Reads a range. The last range returns the file's digest.
    fn take(&self, buffer: &mut [u8], at: u64) -> Result<Option<Hash>, Errno> {
        let length = (self.size - at).min(RANGE_BYTES as u64) as usize;
        let whole = self.hash(buffer, at, length)?;
        if self.left.fetch_sub(length as u64, AcqRel) > length as u64 {
            return Ok(None);
        }
        // All ranges have been read. Only what there was no room to remember is read again.
        whole.map_or_else(|| self.digest.finish_from(&self.file, || false), Ok).map(Some)
    }

    /// Hashes a range. Returns the file's digest if the file is no longer than one range.
    fn hash(&self, buffer: &mut [u8], at: u64, length: usize) -> Result<Option<Hash>, Errno> {
        let is_whole = self.size <= RANGE_BYTES as u64;
        if let Some(direct) = &self.direct {
            match read_direct(direct, buffer, at, length) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => _ = evict(&self.file, 0, 0),
                read => {
                    read?;
                    let data = &buffer[..length];
                    return Ok(is_whole.then(|| blake3::hash(data)).or_else(|| {
                        self.digest.add(data, at);
                        None
                    }));
                }
            }
        }
        let mut hasher = blake3::Hasher::new();
        for start in (0..length).step_by(CACHED_BYTES) {
            let data = &mut buffer[..CACHED_BYTES.min(length - start)];
            if read_up_to(&self.file, data, at + start as u64)? < data.len() {
                return Err(Errno::NODATA);
            }
            match is_whole {
                true => drop(hasher.update(data)),
                false => self.digest.add(data, at + start as u64),
            }
        }
        Ok(is_whole.then(|| hasher.finalize()))
    }
}

/// Reads a range past the page cache. ENODATA if the file has become shorter.
fn read_direct(file: &OwnedFd, buffer: &mut [u8], at: u64, length: usize) -> Result<(), Errno> {
    let room = length.next_multiple_of(ALIGNMENT);
    let mut done = 0;
    while done < length {
        let count = retry_on_intr(|| pread(file, &mut buffer[done..room], at + done as u64))?;
        done += count;
        // A read that ends off alignment has reached the end of the file.
        if done < length && (count == 0 || !done.is_multiple_of(ALIGNMENT)) {
            return Err(Errno::NODATA);
        }
    }
    Ok(())
}
