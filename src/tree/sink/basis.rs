//! What stands under the name of a large file that is to come: blocks that the sender finds the same are taken from it.
//!
//! The new file is made beside the old one. Where the file system can, it begins as a clone of it, which nobody else can
//! write to: its blocks are hashed and stay where they are. Elsewhere blocks are copied. While nothing is known to differ,
//! that may be for nothing, so it waits until the sender has sent something; from then on each block is copied in the pass
//! that hashes it, and what was hashed before is copied at the end, and proven by its digest while it is. With
//! `--in-place` the old file is itself what is written.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use rd_proto::tree::answer::Digest;
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, ioctl_ficlone, statat};
use rustix::io::Errno;

use super::elsewhere::Elsewhere;
use crate::fs::holes::{self, hash_of_zeros, is_hole, is_zero};
use crate::fs::source::change;
use crate::fs::{HASH_READ_BYTES, described, hash16, identity, open_quietly, read_up_to, write_at};

/// Bytes that a thread takes at once to copy, and that are worth one more thread.
const FILL_BYTES: u64 = 16 << 20;

/// Blocks of all files that are open, each of which takes 17 bytes, and 16 more while the file is filled; and as many as a
/// file may have beyond that. The sender says how long a file will be, before any of it has come.
const OPEN_BLOCKS_MAX: u64 = 4 << 20;
const FEW_BLOCKS: u64 = 1 << 10;

/// Opens what stands under a name to be read, if it is a regular file that we may read.
pub(super) fn open_regular(directory: BorrowedFd<'_>, name: &[u8]) -> Option<(OwnedFd, Stat)> {
    let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Looked at first: opening a device may do something.
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().filter(is_regular)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open_quietly(directory, name, flags).ok()?;
    let stat = fstat(&file).ok().filter(is_regular)?;
    Some((file, stat))
}

/// What a large file is compared with.
pub(super) enum Compared {
    /// With what stands under its name.
    Named,
    Elsewhere(Box<Elsewhere>),
}

/// The older file. It is read, and written to only in place.
pub(super) struct Basis {
    file: OwnedFd,
    stat: Stat,
    elsewhere: Option<Box<Elsewhere>>,
    /// Bytes of the new file.
    size: u64,
    block_bytes: u64,
    /// The file that is written has all of it.
    is_in_target: bool,
    /// What is zero is left out, as a hole.
    keeps_holes: bool,
    /// The older file is sparse, or compressed by its file system.
    may_have_holes: bool,
    /// The new file is known to be another one.
    is_changed: AtomicBool,
    blocks: Mutex<Vec<Block>>,
    /// Those of all files, these among them.
    open_blocks: Arc<AtomicU64>,
}

/// What is known of a block of the new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Block {
    /// Nothing: its data is to come, unless it is a hole.
    #[default]
    Unknown,
    /// The sender has been given this digest of the old file's.
    Promised([u8; 16]),
    /// So it has, and what was hashed stands in the new file.
    Stands,
    /// Its data has come.
    Came,
}

impl Basis {
    /// Takes an open file, before the one that is written has its length. `size`: of the new file, in bytes. Its blocks have
    /// `wanted` bytes at least, and more where many files have many: `open_blocks` of them.
    pub fn new(
        (file, stat): (OwnedFd, Stat),
        elsewhere: Option<Box<Elsewhere>>,
        size: u64,
        wanted: u64,
        keeps_holes: bool,
        open_blocks: &Arc<AtomicU64>,
    ) -> Self {
        let is_changed = AtomicBool::new(stat.st_size as u64 != size);
        let room = OPEN_BLOCKS_MAX.saturating_sub(open_blocks.load(Relaxed));
        let block_bytes = block_bytes(size, wanted.max(size.div_ceil((room / 4).max(FEW_BLOCKS))));
        let count = size.div_ceil(block_bytes);
        open_blocks.fetch_add(count, Relaxed);
        let blocks = Mutex::new(vec![Block::Unknown; count as usize]);
        let (is_in_target, open_blocks) = (false, Arc::clone(open_blocks));
        let may_have_holes = holes::may_be_in(&stat);
        Self {
            file,
            stat,
            elsewhere,
            size,
            block_bytes,
            is_in_target,
            keeps_holes,
            may_have_holes,
            is_changed,
            blocks,
            open_blocks,
        }
    }

    /// Where it is, if not under the name of the new file.
    pub fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_deref()
    }

    /// Has `target` begin as a clone, where the file system can: it is new and ours. In place it is the old file itself.
    pub fn begin(&mut self, target: &OwnedFd, in_place: bool) -> Result<(), Errno> {
        self.is_in_target = match in_place {
            true => identity(&fstat(target)?) == identity(&self.stat),
            false => ioctl_ficlone(target, &self.file).is_ok(),
        };
        if self.is_in_target || !in_place { Ok(()) } else { Err(Errno::STALE) }
    }

    /// As it was when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Whether the new file is to have holes.
    pub fn keeps_holes(&self) -> bool {
        self.keeps_holes
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().expect("no panics under it")
    }

    /// Where a block of the new file begins, and its length.
    fn block(&self, number: usize) -> (u64, u64) {
        let start = number as u64 * self.block_bytes;
        (start, self.block_bytes.min(self.size - start))
    }

    /// Bytes of each block but the last.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The digest of a block, for the sender; none if the file ends before that does. `check_stored` is given what is
    /// written to `target`.
    ///
    /// # Errors
    ///
    /// What writing answered, or reading of what is to stay.
    pub fn digest(
        &self,
        number: usize,
        target: &OwnedFd,
        scratch: &mut [u8],
        check_stored: impl Fn(&[u8], u64) -> Result<(), Errno>,
    ) -> Result<Digest, Errno> {
        let (start, length) = self.block(number);
        let digest = if self.is_in_target {
            Some(self.read(target.as_fd(), None, (start, length), scratch, check_stored)?.ok_or(Errno::NODATA)?)
        } else if start + length <= self.stat.st_size as u64 {
            let copy = self.is_changed.load(Relaxed).then_some(target);
            let digest = self.read(self.file(), copy, (start, length), scratch, check_stored)?;
            if copy.is_none()
                && let Some(digest) = digest
            {
                self.note(number, Block::Promised(digest));
                return Ok(Some(digest));
            }
            digest
        } else {
            None
        };
        if digest.is_some() {
            self.note(number, Block::Stands);
        }
        Ok(digest)
    }

    fn note(&self, number: usize, block: Block) {
        let known = &mut self.blocks()[number];
        // A sender that has not waited has sent it.
        if *known == Block::Unknown {
            *known = block;
        }
    }

    /// What an earlier transfer has left of this block has been hashed.
    pub fn note_stands(&self, number: usize) {
        self.is_changed.store(true, Relaxed);
        self.note(number, Block::Stands);
    }

    /// Hashes a block of a file, and writes it to a `target`; none where it cannot be read.
    fn read(
        &self,
        file: BorrowedFd<'_>,
        target: Option<&OwnedFd>,
        (start, length): (u64, u64),
        scratch: &mut [u8],
        check_stored: impl Fn(&[u8], u64) -> Result<(), Errno>,
    ) -> Result<Digest, Errno> {
        // Of a sparse file that is to be written holes are left out.
        if self.may_have_holes && (target.is_none() || self.keeps_holes) && is_hole(file, start, length) {
            return Ok(Some(hash_of_zeros(length)));
        }
        let (mut hasher, mut at) = (blake3::Hasher::new(), start);
        while at < start + length {
            let wanted = scratch.len().min((start + length - at) as usize);
            let part = &mut scratch[..wanted];
            if read_up_to(file, part, at) != Ok(wanted) {
                return Ok(None);
            }
            hasher.update(part);
            if let Some(target) = target
                && !(self.keeps_holes && is_zero(part))
            {
                write_at(target, part, at)?;
                check_stored(part, at)?;
            }
            at += wanted as u64;
        }
        Ok(Some(hash16(&hasher.finalize())))
    }

    /// Data has come for `position`, in bytes.
    pub fn note_came(&self, position: u64, length: u64) {
        self.is_changed.store(true, Relaxed);
        let blocks = position / self.block_bytes..(position + length).div_ceil(self.block_bytes);
        self.blocks()[blocks.start as usize..blocks.end as usize].fill(Block::Came);
    }

    /// Whether it is the new file: the sender has all its digests and has sent nothing, and it still has its name. One
    /// elsewhere is looked at when it is linked.
    pub fn is_all(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let is_told = |block: &Block| match block {
            Block::Promised(_) => true,
            Block::Stands => self.is_in_target,
            Block::Unknown | Block::Came => false,
        };
        let stays = || {
            let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let open = described(&self.file);
            named.is_ok_and(|named| identity(&named) == identity(&self.stat))
                && open.is_ok_and(|open| change(&self.stat, &open).is_none())
        };
        self.stat.st_size as u64 == self.size
            && self.blocks().iter().all(is_told)
            && (self.elsewhere.is_some() || stays())
    }

    /// Copies the blocks that have neither come nor been copied, and proves each while it does.
    ///
    /// # Errors
    ///
    /// STALE if one has not the digest that the sender was given: the file has changed meanwhile. What writing and
    /// `check_stored` answered.
    pub fn fill(
        &self,
        target: &OwnedFd,
        check_stored: impl Fn(&[u8], u64) -> Result<(), Errno> + Sync,
    ) -> Result<(), Errno> {
        let blocks = std::mem::take(&mut *self.blocks());
        let missing: Vec<_> =
            blocks.iter().enumerate().filter(|(_, block)| matches!(block, Block::Promised(_))).collect();
        if !self.keeps_holes && blocks.contains(&Block::Unknown) {
            return Err(Errno::STALE);
        }
        let at_once = (FILL_BYTES / self.block_bytes).max(1) as usize;
        let next = AtomicUsize::new(0);
        let work = || {
            let mut scratch = vec![0; HASH_READ_BYTES];
            while let Some(some) = missing.chunks(at_once).nth(next.fetch_add(1, Relaxed)) {
                for &(number, &block) in some {
                    let digest =
                        self.read(self.file(), Some(target), self.block(number), &mut scratch, &check_stored)?;
                    if digest.map(Block::Promised) != Some(block) {
                        return Err(Errno::STALE);
                    }
                }
            }
            Ok(())
        };
        let threads = missing.len().div_ceil(at_once).min(crate::processors());
        thread::scope(|scope| {
            // Where no more can be had, this one does it all.
            let others: Vec<_> =
                (1..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
            let own = work();
            others.into_iter().fold(own, |outcome, other| outcome.and(other.join().expect("it does not panic")))
        })
    }
}

impl Drop for Basis {
    fn drop(&mut self) {
        self.open_blocks.fetch_sub(self.size.div_ceil(self.block_bytes), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hostile sender says of each that it will be huge.
    #[test]
    fn blocks_of_all_open_files_are_bounded() {
        const BLOCK_BYTES: usize = size_of::<Block>();
        const { assert!(BLOCK_BYTES == 17) };
        let open_blocks = Arc::default();
        for _ in 0..2 {
            let huge = |size: u64| {
                let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
                let stat = fstat(&file).expect("it");
                Basis::new((file, stat), None, size, 1 << 16, false, &open_blocks)
            };
            let first = huge(1 << 40);
            assert_eq!((first.block_bytes, first.blocks().len()), (1 << 20, 1 << 20), "one alone is not bounded");
            let mut all = vec![first];
            all.extend((1..super::super::SLOTS_MAX as u32).map(|number| huge(1 << (40 + number % 20))));
            let count: usize = all.iter().map(|basis| basis.blocks().len()).sum();
            assert_eq!(count as u64, open_blocks.load(Relaxed));
            assert!(count * BLOCK_BYTES <= 76 << 20, "{count}");
            assert!(all.iter().all(|basis| !basis.blocks().is_empty() && basis.block_bytes.is_power_of_two()));
            let small = huge(8 << 20);
            assert_eq!(small.block_bytes, 1 << 16, "few blocks are as short as ever");
            drop((all, small));
            assert_eq!(open_blocks.load(Relaxed), 0);
        }
    }
}
