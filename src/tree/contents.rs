//! Whole files that are read to be hashed: by several threads, a large file's ranges side by side.
//!
//! What is read is what the disk has stored, unless the page cache will do: past the page cache where the file system
//! allows that, else after what the cache holds has been written and dropped.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex};

use blake3::Hash;
use flume::{Receiver, Sender};
use memmap2::MmapMut;
use rustix::fs::{Advice, OFlags, fadvise, fdatasync};
use rustix::io::{Errno, pread};

use super::ahead::{Ahead, Pace};
use super::manifest::digest::RangeDigest;
use crate::fs::direct::{ALIGNMENT, reopen};
use crate::fs::read_up_to;

/// What one thread reads at a time of a large file.
pub(super) const RANGE_BYTES: usize = 1 << 20;

/// What it hashes at a time of what is cached: it stays in the processor's cache.
const CACHED_BYTES: usize = 256 << 10;

/// Threads that wait for a disk: as many as most disks need to be busy.
const DISK_THREADS: usize = 16;

/// Where contents are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The disk.
    Disk,
    /// The page cache, where it has them.
    Cache,
}

/// A file that is being read, and what it is read for.
pub(super) struct Contents<T> {
    file: OwnedFd,
    /// The same, past the page cache.
    direct: Option<OwnedFd>,
    size: u64,
    digest: RangeDigest,
    /// Bytes that have not been read.
    left: AtomicU64,
    /// Taken when the outcome is known.
    purpose: Mutex<Option<T>>,
}

/// A range of a file, by its first byte.
pub(super) type Job<T> = (Arc<Contents<T>>, u64);

/// How many threads [`work`].
pub(super) fn threads(medium: Medium) -> usize {
    match medium {
        Medium::Disk => crate::processors().max(DISK_THREADS),
        Medium::Cache => crate::processors(),
    }
}

/// Has the first `size` bytes of a file read.
pub(super) fn read<T>(jobs: &Sender<Job<T>>, file: OwnedFd, size: u64, medium: Medium, purpose: T) {
    let direct = match medium {
        Medium::Disk if size > 0 => {
            let direct = reopen(&file, OFlags::RDONLY).ok();
            if direct.is_none() {
                evict(&file);
            }
            direct
        }
        _ => None,
    };
    let (digest, left, purpose) = (RangeDigest::new(size), AtomicU64::new(size), Mutex::new(Some(purpose)));
    let contents = Arc::new(Contents { file, direct, size, digest, left, purpose });
    let mut at = 0;
    loop {
        // The threads take jobs as long as there is one who gives them.
        let _ = jobs.send((Arc::clone(&contents), at));
        at += RANGE_BYTES as u64;
        if at >= size {
            return;
        }
    }
}

/// Reads and hashes until nobody gives more to do. `done` is called with what each file was read for, the file, and its
/// digest or why there is none; once `is_stopped`, it is not.
/// Waits for a disk are reported to `ahead`.
pub(super) fn work<T>(
    queue: &Receiver<Job<T>>,
    ahead: Option<&Ahead>,
    is_stopped: impl Fn() -> bool,
    done: impl Fn(T, &OwnedFd, Result<Hash, Errno>),
) {
    let mut buffer = MmapMut::map_anon(RANGE_BYTES);
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
            && let Some(purpose) = contents.purpose().take()
        {
            done(purpose, &contents.file, outcome);
        }
    }
}

impl<T> Contents<T> {
    fn purpose(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        self.purpose.lock().expect("no panics under it")
    }

    /// Nothing of it has failed.
    fn is_wanted(&self) -> bool {
        self.purpose().is_some()
    }

    /// Reads a range. The last one gives the file's digest.
    fn take(&self, buffer: &mut [u8], at: u64) -> Result<Option<Hash>, Errno> {
        let length = (self.size - at).min(RANGE_BYTES as u64) as usize;
        let whole = self.hash(buffer, at, length)?;
        if self.left.fetch_sub(length as u64, AcqRel) > length as u64 {
            return Ok(None);
        }
        let read = |target: &mut [u8], at: u64| match read_up_to(&self.file, target, at)? {
            count if count < target.len() => Err(Errno::NODATA),
            _ => Ok(()),
        };
        whole.map_or_else(|| self.digest.finish(read), Ok).map(Some)
    }

    /// Of a file that is no longer than one range the digest is known then.
    fn hash(&self, buffer: &mut [u8], at: u64, length: usize) -> Result<Option<Hash>, Errno> {
        let is_whole = self.size <= RANGE_BYTES as u64;
        if let Some(direct) = &self.direct {
            match read_direct(direct, buffer, at, length) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => evict(&self.file),
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

/// Has what is read next come from the disk, where that can be done.
fn evict(file: &OwnedFd) {
    let _ = fdatasync(file);
    let _ = fadvise(file, 0, None::<NonZeroU64>, Advice::DontNeed);
}

/// Reads a range past the page cache; ENODATA where the file has become shorter.
fn read_direct(file: &OwnedFd, buffer: &mut [u8], at: u64, length: usize) -> Result<(), Errno> {
    let room = length.next_multiple_of(ALIGNMENT);
    let mut done = 0;
    while done < length {
        match pread(file, &mut buffer[done..room], at + done as u64) {
            Err(Errno::INTR) => {}
            count => {
                let count = count?;
                done += count;
                // Behind the end of the file nothing is aligned.
                if done < length && (count == 0 || !done.is_multiple_of(ALIGNMENT)) {
                    return Err(Errno::NODATA);
                }
            }
        }
    }
    Ok(())
}
