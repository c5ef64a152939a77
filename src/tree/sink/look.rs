//! Existing data of a large file: hashed by several threads at once, and answered to the sender in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

use rd_proto::tree::Answer;
use rd_proto::tree::answer::{BLOCK_BYTES_MIN, DIGESTS_MAX, Digest};
use rustix::fs::{SeekFrom, ftruncate, seek};
use rustix::io::Errno;

use super::TreeSink;
use super::basis::{OpenBlocks, SCRATCH_BYTES, clear};
use super::entry::{Large, last_page};
use super::jobs::Job;
use super::target::{Partial, Way};
use crate::fs::holes::{data_from, is_hole};
use crate::fs::{evict, hash_range};
use crate::tree::digest_cache::OfBlocks;

/// Number of bytes hashed before the digests of their blocks go to the sender.
const ANSWER_DUE_BYTES: u64 = 8 << 20;

/// The same of a sparse file: hashing a TiB of holes takes no time, but 131072 answers do.
const SPARSE_DUE_BYTES: u64 = 256 << 20;

/// What of a file is hashed, and how far that is.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Whether the partial file has data of an earlier transfer.
    has_left: bool,
    /// The blocks of the file; `None` if there is nothing to look at.
    pub blocks: Option<OpenBlocks>,
    /// The first part that no thread has taken.
    next: AtomicU64,
    parts: Mutex<Parts>,
    /// Outcome of writing out and dropping the cached data of the file.
    evicted: OnceLock<Result<(), Errno>>,
}

/// Parts that have been hashed but not answered, and the number of the part to be answered next.
#[derive(Debug, Default)]
struct Parts {
    hashed: BTreeMap<u64, Vec<Digest>>,
    next: u64,
    of_blocks: OfBlocks,
}

impl Look {
    pub fn new(has_left: bool, blocks: Option<OpenBlocks>) -> Self {
        Self { has_left, blocks, ..Self::default() }
    }
}

/// Whether an earlier transfer has left data of use in a partial file. If not, the file is made empty.
///
/// # Errors
///
/// Fails if it cannot be made empty: the data would stay where the source has holes.
pub(super) fn goes_on(partial: &Partial, is_sparse: bool, size: u64) -> Result<bool, Errno> {
    let has_left = partial.is_adopted && (!is_sparse || has_data_left(&partial.file, size));
    if partial.is_adopted && !has_left {
        ftruncate(&partial.file, 0)?;
    }
    Ok(has_left)
}

/// Whether the partial file of a sparse file has data, and the file system tells where. Some cannot, such as NFS before
/// version 4.2: the file has most of its length from the beginning, and all of that would be read to find what little
/// there is. Sets the length to `size` bytes, without the last page, which has always to come again.
pub(super) fn has_data_left(file: &OwnedFd, size: u64) -> bool {
    // Then there is a hole: where the last page was.
    let is_set = ftruncate(file, last_page(size)).and_then(|()| ftruncate(file, size));
    let (start, end) = data_from(file, 0, size);
    is_set.is_ok() && (1..size).contains(&(end - start))
}

impl TreeSink {
    /// Has threads hash what exists of a file. One thread is left to write data that arrives meanwhile.
    pub(super) fn have_looked(&self, large: &Arc<Large>, item: u32) {
        let lookers = large.lookers().min(self.threads.len().saturating_sub(1).max(1));
        (0..lookers).for_each(|_| self.hand_on(Job::Look(Arc::clone(large), item)));
    }
}

impl Large {
    pub(super) fn block_bytes(&self) -> u64 {
        self.look.blocks.as_ref().map_or(BLOCK_BYTES_MIN, |blocks| blocks.bytes)
    }

    /// Whether blocks left by an earlier copy may be made holes.
    pub(super) fn may_clear(&self) -> bool {
        self.is_sparse && self.look.has_left
    }

    /// Number of blocks of the file, and number of blocks in a part. Each part is one answer.
    fn parts(&self) -> (u64, u64) {
        let block_bytes = self.block_bytes();
        let due = if self.is_sparse { SPARSE_DUE_BYTES } else { ANSWER_DUE_BYTES };
        let at_once = (due / block_bytes).clamp(1, DIGESTS_MAX as u64);
        (self.size.div_ceil(block_bytes), at_once)
    }

    /// Number of threads that can hash at once.
    fn lookers(&self) -> usize {
        let (count, at_once) = self.parts();
        if self.look.blocks.is_some() { count.div_ceil(at_once).max(1) as usize } else { 1 }
    }

    /// Tells the sender what the file already holds: a digest for each complete block. The sender compares the digests
    /// it has received meanwhile. Called by each of the threads that do this.
    pub fn look(&self, item: u32) {
        if self.look.blocks.is_none() {
            return self.shared.answer(Answer::nothing(item));
        }
        if self.look.has_left && self.shared.options.syncs() {
            let _ = self.evict_once();
        }
        let (block_bytes, (count, at_once)) = (self.block_bytes(), self.parts());
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            let part = self.look.next.fetch_add(1, Relaxed);
            let first = part * at_once;
            if first >= count {
                return;
            }
            let blocks = first as usize..count.min(first + at_once) as usize;
            let digests = self.look_at_part(blocks, &mut scratch);
            if self.shared.is_stopped.load(Relaxed) {
                return;
            }
            let mut parts = crate::locked(&self.look.parts);
            parts.hashed.insert(part, digests);
            // Answers are sent with the lock held, because they must go out in order.
            while let Some(digests) = {
                let next = parts.next;
                parts.hashed.remove(&next)
            } {
                parts.next += 1;
                if self.shared.cache.is_some() {
                    parts.of_blocks.add(block_bytes, &digests);
                }
                let is_last = parts.next * at_once >= count;
                self.shared.answer(Answer::Blocks { item, block_bytes, is_last, digests });
            }
        }
    }

    /// Digest that the cache keeps of a file that has turned out to be the same.
    pub fn of_blocks(&self) -> Option<[u8; 16]> {
        crate::locked(&self.look.parts).of_blocks.finish(self.size)
    }

    /// Makes the data of a file that is written in place come from the disk, if what stays is to be stable. After a
    /// failed write the pages stay, and count as clean once a process has been told of the failure, so the cache alone
    /// would show data that the disk lacks. A device always promises that its data could be written.
    ///
    /// # Errors
    ///
    /// Fails if the data cannot be written or dropped. Sending it again would not help: holes of the source are not
    /// sent without a digest, and data is not appended where the cache has it.
    fn evict_in_place(&self) -> Result<(), Errno> {
        let is_from_disk = match self.partial.way {
            Way::InPlace { .. } => self.shared.options.syncs(),
            Way::Device => true,
            Way::Nameless | Way::Named(_) | Way::Unseen => false,
        };
        if !is_from_disk {
            return Ok(());
        }
        self.evict_once()
    }

    /// Writes out and drops the cached data of the whole file, before any of it is hashed, written or told. A sync for
    /// each block would take long, and would take the error of data that has come meanwhile.
    fn evict_once(&self) -> Result<(), Errno> {
        *self.look.evicted.get_or_init(|| evict(&self.partial.file, 0, 0))
    }

    fn look_at_part(&self, blocks: Range<usize>, scratch: &mut [u8]) -> Vec<Digest> {
        let at_once = match &self.basis {
            Some(basis) if !self.look.has_left => basis.blocks_at_once(),
            _ => 1,
        };
        let mut digests = Vec::with_capacity(blocks.len());
        for first in blocks.clone().step_by(at_once) {
            let some = first..blocks.end.min(first + at_once);
            let length = some.len();
            digests.extend(self.look_at(some, scratch).unwrap_or_else(|error| {
                self.fail_once(error);
                vec![None; length]
            }));
        }
        digests
    }

    /// Returns the digests of some blocks, which are read at once.
    fn look_at(&self, numbers: Range<usize>, scratch: &mut [u8]) -> Result<Vec<Digest>, Errno> {
        if self.shared.is_stopped.load(Relaxed) || self.has_failed.load(Relaxed) {
            return Ok(vec![None; numbers.len()]);
        }
        if self.look.has_left
            && let Some(digest) = self.look_at_adopted(numbers.start, scratch)?
        {
            return Ok(vec![Some(digest)]);
        }
        self.evict_in_place()?;
        let Some(basis) = &self.basis else { return Ok(vec![None; numbers.len()]) };
        let write = |piece: &[u8], position| self.write_older(basis, piece, position);
        basis.digests(numbers, &self.partial.file, scratch, &write)
    }

    /// Returns the digest of a block that an earlier transfer has left; `None` if it is not whole, or not on the disk
    /// where it must be. A block of a sparse file is whole if it has any data. Otherwise all of it becomes a hole: the
    /// sender leaves out holes of a block without a digest, and data would stay where they are.
    ///
    /// # Errors
    ///
    /// Fails if data that must not stay cannot be cleared.
    fn look_at_adopted(&self, number: usize, scratch: &mut [u8]) -> Result<Digest, Errno> {
        let (file, start) = (&self.partial.file, number as u64 * self.block_bytes());
        let length = self.block_bytes().min(self.size - start);
        // Data that is kept counts as read back from the disk. The cache alone does not show that data could not be
        // written, once another process has been told of the failure.
        let is_stable = !self.shared.options.syncs() || self.evict_once().is_ok();
        if self.is_sparse && is_stable && is_hole(file, start, length) {
            return Ok(None);
        }
        let is_whole = || self.is_sparse || seek(file, SeekFrom::Hole(start)).is_ok_and(|hole| hole >= start + length);
        let digest = if is_stable && is_whole() { hash_range(file, start, length, scratch).ok() } else { None };
        if digest.is_some() {
            self.basis.iter().for_each(|basis| basis.note_stands(number));
        } else if self.is_sparse {
            // The last page is not there.
            clear(file, start..last_page(self.size).min(start + length), scratch)?;
        }
        Ok(digest)
    }
}
