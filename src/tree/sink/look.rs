//! Existing data of a large file: hashed by several threads at once, and answered to the sender in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

use rd_proto::tree::Answer;
use rd_proto::tree::answer::{DIGESTS_MAX, Digest};
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::TreeSink;
use super::basis::SCRATCH_BYTES;
use super::entry::Large;
use super::jobs::Job;
use super::target::Way;
use crate::fs::{evict, hash_range};
use crate::tree::digest_cache::OfBlocks;

/// Number of bytes hashed before the digests of their blocks go to the sender.
const ANSWER_DUE_BYTES: u64 = 8 << 20;

/// Progress of hashing a file.
#[derive(Debug, Default)]
pub(super) struct Look {
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

impl TreeSink {
    /// Has threads hash what exists of a file. One thread is left to write data that arrives meanwhile.
    pub(super) fn have_looked(&self, large: &Arc<Large>, item: u32) {
        let lookers = large.lookers().min(self.threads.len().saturating_sub(1).max(1));
        (0..lookers).for_each(|_| self.hand_on(Job::Look(Arc::clone(large), item)));
    }
}

impl Large {
    fn block_bytes(&self) -> u64 {
        self.basis.as_ref().map_or_else(|| block_bytes(self.size, self.shared.block_bytes), |basis| basis.block_bytes)
    }

    /// Number of blocks of the file, and number of blocks in a part. Each part is one answer.
    fn parts(&self) -> (u64, u64) {
        let block_bytes = self.block_bytes();
        let at_once = (ANSWER_DUE_BYTES / block_bytes).clamp(1, DIGESTS_MAX as u64);
        (self.size.div_ceil(block_bytes), at_once)
    }

    /// Number of threads that can hash at once.
    fn lookers(&self) -> usize {
        let (count, at_once) = self.parts();
        if self.partial.is_adopted || self.basis.is_some() { count.div_ceil(at_once).max(1) as usize } else { 1 }
    }

    /// Tells the sender what the file already holds: a digest for each complete block. The sender compares the digests
    /// it has received meanwhile. Called by each of the threads that do this.
    pub fn look(&self, item: u32) {
        if !self.partial.is_adopted && self.basis.is_none() {
            return self.shared.answer(Answer::nothing(item));
        }
        if self.partial.is_adopted && self.shared.options.syncs() {
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
            Some(basis) if !self.partial.is_adopted => basis.blocks_at_once(),
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
        if self.partial.is_adopted
            && let Some(digest) = self.look_at_adopted(numbers.start, scratch)
        {
            return Ok(vec![Some(digest)]);
        }
        self.evict_in_place()?;
        let Some(basis) = &self.basis else { return Ok(vec![None; numbers.len()]) };
        let write = |piece: &[u8], position| self.write_older(basis, piece, position);
        basis.digests(numbers, &self.partial.file, scratch, &write)
    }

    /// Returns the digest of a block that an earlier transfer has left; `None` if it is not whole, or not on the disk
    /// where it must be.
    fn look_at_adopted(&self, number: usize, scratch: &mut [u8]) -> Digest {
        let (file, start) = (&self.partial.file, number as u64 * self.block_bytes());
        let length = self.block_bytes().min(self.size - start);
        if !seek(file, SeekFrom::Hole(start)).is_ok_and(|hole| hole >= start + length) {
            return None;
        }
        // Data that is kept counts as read back from the disk. The cache alone does not show that data could not be
        // written, once another process has been told of the failure.
        let options = &self.shared.options;
        if options.syncs() && self.evict_once().is_err() {
            return None;
        }
        let digest = hash_range(file, start, length, scratch).ok()?;
        self.basis.iter().for_each(|basis| basis.note_stands(number));
        Some(digest)
    }
}
