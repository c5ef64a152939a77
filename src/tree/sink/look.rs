//! Existing data of a large file: hashed by several threads at once, and answered to the sender in order.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

use rd_proto::tree::Answer;
use rd_proto::tree::answer::{DIGESTS_MAX, Digest};
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::TreeSink;
use super::entry::{Large, evict};
use super::jobs::Job;
use super::target::Way;
use crate::fs::{HASH_READ_BYTES, hash_range};
use crate::tree::digest_cache::OfBlocks;

/// Number of bytes hashed before the digests of their blocks go to the sender.
const ANSWER_DUE_BYTES: u64 = 8 << 20;

/// Progress of hashing a file.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The first part that no thread has taken.
    next: AtomicU64,
    parts: Mutex<Parts>,
    /// Outcome of dropping the cached data of a file that is written in place.
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
        let (block_bytes, (count, at_once)) = (self.block_bytes(), self.parts());
        let mut scratch = vec![0; HASH_READ_BYTES];
        loop {
            let part = self.look.next.fetch_add(1, Relaxed);
            let first = part * at_once;
            if first >= count {
                return;
            }
            let digests = (first..count.min(first + at_once)).map(|number| {
                let start = number * block_bytes;
                let length = block_bytes.min(self.size - start);
                self.look_at(number as usize, start, length, &mut scratch).unwrap_or_else(|error| {
                    self.fail_once(error);
                    None
                })
            });
            let digests = digests.collect();
            if self.shared.is_stopped.load(Relaxed) {
                return;
            }
            let mut parts = self.look.parts.lock().expect("no panics under it");
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
        self.look.parts.lock().expect("no panics under it").of_blocks.finish(self.size)
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
        // All of it before any of it is hashed: nothing is written before that, and to sync for each block would take
        // long.
        *self.look.evicted.get_or_init(|| evict(&self.partial.file, 0, 0))
    }

    fn look_at(&self, number: usize, start: u64, length: u64, scratch: &mut [u8]) -> Result<Digest, Errno> {
        if self.shared.is_stopped.load(Relaxed) || self.has_failed.load(Relaxed) {
            return Ok(None);
        }
        let file = &self.partial.file;
        if self.partial.is_adopted && seek(file, SeekFrom::Hole(start)).is_ok_and(|hole| hole >= start + length) {
            // Data that is kept counts as read back from the disk. The cache alone does not show that data could not be
            // written, once another process has been told of the failure.
            let options = &self.shared.options;
            let is_from_disk = options.reads_back() || options.syncs();
            let is_stored = !is_from_disk || evict(file, start, length).is_ok();
            if is_stored && let Ok(digest) = hash_range(file, start, length, scratch) {
                self.basis.iter().for_each(|basis| basis.note_stands(number));
                return Ok(Some(digest));
            }
        }
        self.evict_in_place()?;
        let check = |data: &[u8], position| self.check_copied(data, position);
        self.basis.as_ref().map_or(Ok(None), |basis| basis.digest(number, file, scratch, check))
    }
}
