//! The existing file under the name of a large file that is to come. Blocks that the sender finds equal are taken from
//! it.
//!
//! The new file is made beside the old one. If the file system supports it, the new file starts as a clone of the old
//! one, to which no other process can write: its blocks are hashed and stay in place. Otherwise blocks are copied. As
//! long as no difference is known, copying might be wasted work, so it is put off until the sender has sent data. From
//! then on each block is copied in the pass that hashes it. Blocks hashed earlier are copied at the end, and their
//! digests are checked on the way. With `--in-place` the old file itself is written to.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread;

use rd_proto::tree::answer::Digest;
use rd_proto::tree::blocks::block_bytes;
use rd_proto::tree::{Metadata, Time};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, Stat, fallocate, fstat, ioctl_ficlone, statat};
use rustix::io::Errno;

use super::THREADS_MAX;
use super::elsewhere::Elsewhere;
use super::judge::HAS_CHANGED;
use crate::fs::direct::ALIGNMENT;
use crate::fs::holes::{self, PAGE_BYTES, data_in, hash_of_zeros, is_hole};
use crate::fs::source::change;
use crate::fs::{HASH_READ_BYTES, described, hash16, identity, is_regular, open_quietly, read_up_to, write_at};
use crate::tree::Fault;

/// Number of bytes that a thread copies at a time, and that justify one more thread.
const FILL_BYTES: u64 = 16 << 20;

/// Maximum number of blocks of all open files, and number of blocks that a file may have beyond that. Each block takes
/// 17 bytes here, if there is an older file, and at the sender, and 16 more while its file is filled. The limit is
/// needed because the sender announces a file's length before any data comes.
const OPEN_BLOCKS_MAX: u64 = 4 << 20;
const FEW_BLOCKS: u64 = 1 << 10;

/// Opens the existing entry for reading, if it is a regular file that this process may read.
pub(super) fn open_regular(directory: BorrowedFd<'_>, name: &[u8]) -> Option<(OwnedFd, Stat)> {
    // The type is checked before opening, because opening a device can have side effects.
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().filter(is_regular)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open_quietly(directory, name, flags).ok()?;
    let stat = fstat(&file).ok().filter(is_regular)?;
    Some((file, stat))
}

/// Whether the existing file has the size and time of the file to come. Then it most likely is that file, and an
/// earlier transfer was interrupted after finishing it.
pub(super) fn seems_finished(stat: &Stat, metadata: &Metadata<'_>, size: u64) -> bool {
    let modified = (stat.st_mtime, stat.st_mtime_nsec as u32);
    let expected = (metadata.modified.seconds, metadata.modified.nanoseconds);
    stat.st_size as u64 == size && modified == expected
}

/// The blocks of a file. They count among those of all open files as long as this exists.
#[derive(Debug)]
pub(super) struct OpenBlocks {
    /// Bytes in each block except the last.
    pub bytes: u64,
    count: u64,
    /// Number of blocks of all open files, including this one.
    all: Arc<AtomicU64>,
}

impl OpenBlocks {
    /// Divides a file of `size` bytes. Blocks have at least `wanted` bytes, and more if all open files together have
    /// many blocks.
    pub fn new(size: u64, wanted: u64, all: &Arc<AtomicU64>) -> Self {
        let room = OPEN_BLOCKS_MAX.saturating_sub(all.load(Relaxed));
        let bytes = block_bytes(size, wanted.max(size.div_ceil((room / 4).max(FEW_BLOCKS))));
        let count = size.div_ceil(bytes);
        all.fetch_add(count, Relaxed);
        Self { bytes, count, all: Arc::clone(all) }
    }
}

impl Drop for OpenBlocks {
    fn drop(&mut self) {
        self.all.fetch_sub(self.count, Relaxed);
    }
}

/// The existing file with which a large file is compared.
pub(super) enum Compared {
    /// The file under the same name.
    Named,
    Elsewhere(Box<Elsewhere>),
}

/// The older file. It is only read, except when a file is written in place.
pub(super) struct Basis {
    file: OwnedFd,
    /// Metadata of the file when it was opened; in place, when it was opened for writing.
    pub stat: Stat,
    elsewhere: Option<Box<Elsewhere>>,
    /// Length of the new file in bytes.
    size: u64,
    /// Bytes in each block except the last.
    block_bytes: u64,
    /// Whether the file being written already has all of the older file's data, so that none of it is written there.
    pub is_in_target: bool,
    /// Length of that file in bytes before it gets the length of the new file. Beyond it are zeros.
    target_bytes: u64,
    /// Whether blocks that cannot be read may be cleared there, because they are sent.
    may_clear: bool,
    /// Whether the new file may have holes, and zeros are left out as such.
    pub keeps_holes: bool,
    /// Whether the older file is sparse, or compressed by its file system.
    may_have_holes: bool,
    /// Whether the new file is known to differ from the older one.
    is_changed: AtomicBool,
    blocks: Mutex<Vec<Block>>,
}

/// Writes a piece of the older file to the new one, at a position.
type Write<'a> = &'a (dyn Fn(&[u8], u64) -> Result<(), Errno> + Sync);

/// What is known of a block of the new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Block {
    /// Nothing: its data will come, unless the block is a hole.
    #[default]
    Unknown,
    /// The sender has been given this digest of the old file's block.
    Promised([u8; 16]),
    /// The sender has its digest, and the new file has the data that was hashed.
    Stands,
    /// Its data has arrived.
    Came,
}

impl Basis {
    /// Takes an open file, before the file being written is set to its length. `size` is the length of the new file,
    /// and `block_bytes` that of its blocks, in bytes.
    pub fn new(
        (file, stat): (OwnedFd, Stat),
        elsewhere: Option<Box<Elsewhere>>,
        size: u64,
        block_bytes: u64,
        keeps_holes: bool,
    ) -> Self {
        Self {
            file,
            stat,
            elsewhere,
            size,
            block_bytes,
            is_in_target: false,
            target_bytes: 0,
            may_clear: false,
            keeps_holes,
            may_have_holes: holes::may_be_in(&stat),
            is_changed: AtomicBool::new(stat.st_size as u64 != size),
            blocks: Mutex::new(vec![Block::Unknown; size.div_ceil(block_bytes) as usize]),
        }
    }

    /// Returns where the older file is, unless it has the name of the new file.
    pub fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_deref()
    }

    /// Makes `target`, a new file of this process, a clone of the older file if the file system supports that. In
    /// place, `target` is the old file itself.
    ///
    /// # Errors
    ///
    /// `ESTALE` if, in place, another file has taken the name of the old one.
    pub fn begin(&mut self, target: &OwnedFd, in_place: bool, is_local: bool) -> Result<(), Fault> {
        if !in_place {
            self.is_in_target = ioctl_ficlone(target, &self.file).is_ok();
            // Within a host the target may become a clone of the source, into which nothing is copied afterwards.
            self.may_clear = self.is_in_target && !is_local;
        }
        let now = described(target)?;
        // The older file may have grown between its opening and its cloning.
        self.target_bytes = now.st_size as u64;
        if !in_place {
            return Ok(());
        }
        if identity(&now) != identity(&self.stat) {
            return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
        }
        // Nothing has been read yet. Opening a write-protected file for writing has given it a later ctime.
        (self.stat, self.is_in_target) = (now, true);
        Ok(())
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Start and length of a block of the new file.
    fn block(&self, number: usize) -> (u64, u64) {
        let start = number as u64 * self.block_bytes;
        (start, self.block_bytes.min(self.size - start))
    }

    /// Number of blocks that are read and written at once.
    pub fn blocks_at_once(&self) -> usize {
        let may_have_holes = self.may_have_holes || self.keeps_holes;
        if may_have_holes { 1 } else { (HASH_READ_BYTES as u64 / self.block_bytes).max(1) as usize }
    }

    /// Returns the digests of consecutive blocks for the sender, at most [`Basis::blocks_at_once`]; `None` for a block
    /// that cannot be read, that the older file does not have, or that it has only a part of, unless that part is in
    /// `target`. `write` is called with each piece that is to be written to `target`.
    ///
    /// # Errors
    ///
    /// Fails if writing fails, or if data that is to stay in place cannot be read.
    pub fn digests(
        &self,
        numbers: Range<usize>,
        target: &OwnedFd,
        scratch: &mut [u8],
        write: Write<'_>,
    ) -> Result<Vec<Digest>, Errno> {
        let is_there = |&number: &usize| match self.block(number) {
            // All other blocks are sent, except what is a hole at the source. The sender would compare them in vain.
            (start, _) if self.is_in_target => start < self.target_bytes,
            (start, length) => start + length <= self.stat.st_size as u64,
        };
        let there = numbers.start..numbers.start + numbers.clone().take_while(is_there).count();
        if self.is_in_target {
            let mut digests = self.hash(target.as_fd(), there.clone(), None, scratch)?;
            for (number, digest) in there.zip(&digests) {
                match digest {
                    Some(_) => self.note(number, Block::Stands),
                    // The block is sent, except what is a hole at the source.
                    None if self.may_clear => {
                        // The whole of it: to clear a part of a page, the file system would have to read it.
                        let start = self.block(number).0;
                        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        fallocate(target, flags, start, self.block_bytes).map_err(|error| match error {
                            Errno::NOSPC | Errno::DQUOT | Errno::ROFS => error,
                            _ => Errno::NODATA,
                        })?;
                    }
                    None => return Err(Errno::NODATA),
                }
            }
            digests.resize(numbers.len(), None);
            return Ok(digests);
        }
        let copy = self.is_changed.load(Relaxed).then_some((target, write));
        let mut digests = self.hash(self.file(), there.clone(), copy, scratch)?;
        for (number, digest) in there.zip(&digests) {
            if let Some(digest) = *digest {
                self.note(number, if copy.is_some() { Block::Stands } else { Block::Promised(digest) });
            }
        }
        digests.resize(numbers.len(), None);
        Ok(digests)
    }

    fn note(&self, number: usize, block: Block) {
        let known = &mut crate::locked(&self.blocks)[number];
        // A sender that does not wait for digests may have sent the block already.
        if *known == Block::Unknown {
            *known = block;
        }
    }

    /// Records that data which an earlier transfer left for this block has been hashed.
    pub fn note_stands(&self, number: usize) {
        self.is_changed.store(true, Relaxed);
        self.note(number, Block::Stands);
    }

    /// Hashes consecutive blocks of a file, and writes them if there is where to; `None` for a block that cannot be read.
    fn hash(
        &self,
        file: BorrowedFd<'_>,
        numbers: Range<usize>,
        copy: Option<(&OwnedFd, Write<'_>)>,
        scratch: &mut [u8],
    ) -> Result<Vec<Digest>, Errno> {
        let scratch = aligned(scratch);
        if numbers.len() > 1 {
            let start = self.block(numbers.start).0;
            let end = (numbers.end as u64 * self.block_bytes).min(self.size);
            let part = &mut scratch[..(end - start) as usize];
            if read_up_to(file, part, start) == Ok(part.len()) {
                let hash = |block| Some(hash16(&blake3::hash(block)));
                let digests = part.chunks(self.block_bytes as usize).map(hash).collect();
                copy.map_or(Ok(()), |(_, write)| write(part, start))?;
                return Ok(digests);
            }
        }
        numbers.map(|number| self.hash_one(file, self.block(number), copy, scratch)).collect()
    }

    /// Hashes a block of a file, and writes it if there is where to. `None` if the block cannot be read: then the
    /// target has none of it, as far as it may have holes.
    fn hash_one(
        &self,
        file: BorrowedFd<'_>,
        (start, length): (u64, u64),
        copy: Option<(&OwnedFd, Write<'_>)>,
        scratch: &mut [u8],
    ) -> Result<Digest, Errno> {
        // When a sparse file is written, its holes are left out.
        if self.may_have_holes && (copy.is_none() || self.keeps_holes) && is_hole(file, start, length) {
            return Ok(Some(hash_of_zeros(length)));
        }
        let (mut hasher, mut at) = (blake3::Hasher::new(), start);
        while at < start + length {
            let wanted = scratch.len().min((start + length - at) as usize);
            let part = &mut scratch[..wanted];
            if read_up_to(file, part, at) != Ok(wanted) {
                // The sender sends no holes of a block without a digest, so the old data must not stay where they are.
                if let Some((target, _)) = copy
                    && self.keeps_holes
                {
                    clear(target, start..at, scratch)?;
                }
                return Ok(None);
            }
            hasher.update(part);
            copy.map_or(Ok(()), |(_, write)| write(part, at))?;
            at += wanted as u64;
        }
        Ok(Some(hash16(&hasher.finalize())))
    }

    /// Returns the parts of a piece of the older file that are written. If the new file may have holes, zeros are left
    /// out. If the older file has holes, each page of zeros is, because a hole may be one page; otherwise only a piece
    /// that is all zeros. Holes are looked for in the data, which has been hashed, because the older file may change.
    pub fn runs(&self, piece: &[u8]) -> Vec<Range<usize>> {
        let unit_bytes = if self.may_have_holes { PAGE_BYTES } else { piece.len() };
        if self.keeps_holes { data_in(piece, unit_bytes).collect() } else { std::iter::once(0..piece.len()).collect() }
    }

    /// Records that data for this range, in bytes, has arrived.
    pub fn note_came(&self, position: u64, length: u64) {
        self.is_changed.store(true, Relaxed);
        let blocks = position / self.block_bytes..(position + length).div_ceil(self.block_bytes);
        crate::locked(&self.blocks)[blocks.start as usize..blocks.end as usize].fill(Block::Came);
    }

    /// Whether the older file was the new file when it was read: the sender has all digests and has sent nothing.
    fn is_told(&self) -> bool {
        let is_told = |block: &Block| match block {
            Block::Promised(_) => true,
            Block::Stands => self.is_in_target,
            Block::Unknown | Block::Came => false,
        };
        self.stat.st_size as u64 == self.size && crate::locked(&self.blocks).iter().all(is_told)
    }

    /// Whether the older file is the new file, and still has its name. A file found elsewhere is checked when it is
    /// linked.
    pub fn is_all(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let stays = || {
            let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let open = described(&self.file);
            named.is_ok_and(|named| identity(&named) == identity(&self.stat))
                && open.is_ok_and(|open| change(&self.stat, &open).is_none())
        };
        self.is_told() && (self.elsewhere.is_some() || stays())
    }

    /// Whether `target` is the older file itself, nothing had to be written there, and another process has written to it
    /// since it was opened. A later ctime alone shows only that rights or attributes were set. If the file has other
    /// names, this copy may be setting its time under one of them; and another copy may have given it the same contents
    /// and `modified`, the time of the source.
    fn is_rewritten(&self, target: &Stat, modified: Time) -> bool {
        let written = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec as u32);
        let expected = [written(&self.stat), (self.stat.st_size, modified.seconds, modified.nanoseconds)];
        let is_itself = identity(target) == identity(&self.stat) && is_regular(target) && self.stat.st_nlink == 1;
        is_itself && self.is_told() && !expected.contains(&written(target))
    }

    /// Copies the blocks that have neither arrived nor been copied, and checks their digests on the way. `modified` is the
    /// time of the source.
    ///
    /// # Errors
    ///
    /// `ESTALE` if a block no longer has the digest that the sender was given, because the file has changed meanwhile,
    /// or if a block of a file without holes is known neither from the sender nor from the old file. Otherwise the error
    /// of `write`.
    pub fn fill(&self, target: &OwnedFd, modified: Time, write: Write<'_>) -> Result<(), Fault> {
        if self.is_rewritten(&described(target)?, modified) {
            return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
        }
        // They stay: whether the older file is the new one may be asked again.
        let blocks = crate::locked(&self.blocks).clone();
        let promised = |number: &usize| matches!(blocks[*number], Block::Promised(_));
        let missing: Vec<_> = (0..blocks.len()).filter(promised).collect();
        if !self.keeps_holes && blocks.contains(&Block::Unknown) {
            return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
        }
        let at_once = (FILL_BYTES / self.block_bytes).max(1) as usize;
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), Fault> {
            let mut scratch = vec![0; SCRATCH_BYTES];
            while let Some(some) = missing.chunks(at_once).nth(next.fetch_add(1, Relaxed)) {
                let runs = some.chunk_by(|one, next| one + 1 == *next);
                for run in runs.flat_map(|run| run.chunks(self.blocks_at_once())) {
                    let numbers = run[0]..run[0] + run.len();
                    let digests = self.hash(self.file(), numbers, Some((target, write)), &mut scratch)?;
                    let is_same =
                        |(&number, digest): (&usize, Digest)| digest.map(Block::Promised) == Some(blocks[number]);
                    if !run.iter().zip(digests).all(is_same) {
                        return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
                    }
                }
            }
            Ok(())
        };
        let threads = missing.len().div_ceil(at_once).min(crate::processors()).min(THREADS_MAX);
        thread::scope(|scope| {
            // If no more threads can be started, the current one does all the work.
            let start = |_| thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).map_while(start).collect();
            let own = work();
            others.into_iter().fold(own, |outcome, other| outcome.and(other.join().expect("it does not panic")))
        })
    }
}

/// Length of the memory in which blocks are hashed: [`HASH_READ_BYTES`] that are aligned for direct writes.
pub(super) const SCRATCH_BYTES: usize = HASH_READ_BYTES + ALIGNMENT;

/// Returns the aligned part of memory that has [`ALIGNMENT`] bytes more than are needed.
fn aligned(scratch: &mut [u8]) -> &mut [u8] {
    let length = scratch.len() - ALIGNMENT;
    let skipped = scratch.as_ptr().align_offset(ALIGNMENT);
    &mut scratch[skipped..][..length]
}

/// Makes a range of a new file zeros: a hole, if the file system supports that.
pub(super) fn clear(target: &OwnedFd, range: Range<u64>, scratch: &mut [u8]) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if range.is_empty() || fallocate(target, flags, range.start, range.end - range.start).is_ok() {
        return Ok(());
    }
    scratch.fill(0);
    let mut at = range.start;
    while at < range.end {
        let length = scratch.len().min((range.end - at) as usize);
        write_at(target, &scratch[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;
    use crate::fs::close::tests::{fail_where, where_calls_fail};

    /// When the source was modified.
    const SOME_TIME: Time = Time { seconds: 1, nanoseconds: 0 };

    /// A checksum of the file system shows that it is damaged. It would be so at each further copy. Within a host the
    /// source's blocks may already be in the target.
    #[test]
    fn between_hosts_a_block_of_a_clone_that_cannot_be_read_is_sent() {
        const BLOCK: usize = 64 << 10;
        for (in_place, is_local) in [(false, false), (false, true), (true, false)] {
            let is_cleared = !in_place && !is_local;
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&[7; 3 * BLOCK], 0).expect("written");
            let (old, target) = (OwnedFd::from(file.try_clone().expect("it")), OwnedFd::from(file));
            let stat = fstat(&old).expect("it");
            let mut basis = Basis::new((old, stat), None, 3 * BLOCK as u64, BLOCK as u64, true);
            // Not every file system makes clones.
            let begin = || basis.begin(&target, in_place, is_local);
            where_calls_fail(&[libc::SYS_ioctl], 0, begin).expect("as if it were a clone");
            assert!(basis.is_in_target);
            let write = |_: &[u8], _: u64| -> Result<(), Errno> { unreachable!("it is there") };
            let digest = |number| basis.digests(number..number + 1, &target, &mut vec![0; SCRATCH_BYTES], &write);
            let digests = thread::scope(|scope| {
                let filtered = scope.spawn(|| {
                    fail_where(libc::SYS_pread64, (3, BLOCK as u64), libc::EIO);
                    [0, 1, 2].map(digest)
                });
                filtered.join().expect("its end")
            });
            let same = Ok(vec![Some(hash16(&blake3::hash(&[7; BLOCK])))]);
            let unread = if is_cleared { Ok(vec![None]) } else { Err(Errno::NODATA) };
            assert_eq!(digests, [same.clone(), unread, same]);
            let mut there = vec![1; 3 * BLOCK];
            File::from(target.try_clone().expect("it")).read_exact_at(&mut there, 0).expect("read");
            let middle = if is_cleared { 0 } else { 7 };
            assert!(
                there == [[7; BLOCK], [middle; BLOCK], [7; BLOCK]].concat(),
                "in place {in_place}, within a host {is_local}"
            );
            assert_eq!(*crate::locked(&basis.blocks), [Block::Stands, Block::Unknown, Block::Stands]);
        }
    }

    /// A part of a page cannot be cleared without reading it, which would fail again. Nor is anything written there.
    #[test]
    fn of_a_clone_whole_blocks_are_cleared() {
        const BLOCK: u64 = 64 << 10;
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[7; BLOCK as usize + 100], 0).expect("written");
        let (old, target) = (OwnedFd::from(file.try_clone().expect("it")), OwnedFd::from(file));
        let stat = fstat(&old).expect("it");
        let mut basis = Basis::new((old, stat), None, BLOCK + 100, BLOCK, true);
        (basis.is_in_target, basis.target_bytes, basis.may_clear) = (true, BLOCK + 100, true);
        let write = |_: &[u8], _: u64| -> Result<(), Errno> { unreachable!("it is there") };
        let digest = |error: i32| {
            fail_where(libc::SYS_pread64, (3, BLOCK), libc::EIO);
            fail_where(libc::SYS_fallocate, (3, BLOCK), error);
            basis.digests(1..2, &target, &mut vec![0; SCRATCH_BYTES], &write)
        };
        let cleared = |error| thread::scope(|scope| scope.spawn(|| digest(error)).join().expect("its end"));
        assert_eq!(cleared(libc::EOPNOTSUPP), Err(Errno::NODATA), "a block to clear, of which the file has 100 bytes");
        for full in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
            assert_eq!(cleared(full.raw_os_error()), Err(full), "which the next files would meet, too");
        }
    }

    /// The old file becomes shorter while a block of it is copied. The source may have a hole there.
    #[test]
    fn of_a_block_that_cannot_be_read_to_its_end_nothing_stays_where_holes_come() {
        const BLOCK: usize = 64 << 10;
        const PIECE: usize = 4 << 10;
        for is_punched in [true, false] {
            let (old, new) = (tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file"));
            old.write_all_at(&[7; 3 * BLOCK], 0).expect("written");
            new.set_len(3 * BLOCK as u64).expect("a length");
            let (reader, target) = (OwnedFd::from(old.try_clone().expect("it")), OwnedFd::from(new));
            let stat = fstat(&reader).expect("it");
            let basis = Basis::new((reader, stat), None, 3 * BLOCK as u64, BLOCK as u64, true);
            // From then on blocks are copied as they are hashed.
            basis.note_came(0, BLOCK as u64);
            let write = |data: &[u8], at| write_at(&target, data, at);
            let digest = |number| {
                let digests = basis.digests(number..number + 1, &target, &mut [0; PIECE + ALIGNMENT], &write);
                digests.map(|digests| digests[0])
            };
            assert!(digest(1).expect("copied").is_some());
            old.set_len((2 * BLOCK + 3 * PIECE) as u64).expect("shorter");
            let last = || digest(2).expect("none of it is written");
            let found = match is_punched {
                true => last(),
                // As on a file system without holes.
                false => where_calls_fail(&[libc::SYS_fallocate], libc::EOPNOTSUPP, last),
            };
            assert_eq!(found, None);
            let (new, mut there) = (File::from(target), vec![1; 3 * BLOCK]);
            new.read_exact_at(&mut there, 0).expect("read");
            let expected = [[0; BLOCK], [7; BLOCK], [0; BLOCK]].concat();
            assert!(there == expected, "punched: {is_punched}");
        }
    }

    #[test]
    fn of_blocks_that_cannot_be_read_at_once_each_is_read_alone() {
        const BLOCK: usize = 64 << 10;
        let (old, new) = (tempfile::tempfile().expect("a file"), OwnedFd::from(tempfile::tempfile().expect("a file")));
        old.write_all_at(&[7; 4 * BLOCK], 0).expect("written");
        let reader = OwnedFd::from(old.try_clone().expect("it"));
        let stat = fstat(&reader).expect("it");
        let basis = Basis::new((reader, stat), None, 4 * BLOCK as u64, BLOCK as u64, false);
        let write = |data: &[u8], at| write_at(&new, data, at);
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut digests = || basis.digests(0..4, &new, &mut scratch, &write).expect("read");
        let same = Some(hash16(&blake3::hash(&[7; BLOCK])));
        assert_eq!(digests(), [same; 4]);
        assert_eq!(basis.fill(&new, SOME_TIME, &write), Ok(()));
        old.set_len(2 * BLOCK as u64 + 100).expect("shorter");
        assert_eq!(digests(), [same, same, None, None]);
        let changed = Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
        assert_eq!(basis.fill(&new, SOME_TIME, &write), changed, "blocks are gone");
        old.write_all_at(&[8; 3 * BLOCK], BLOCK as u64).expect("written");
        assert_eq!(basis.fill(&new, SOME_TIME, &write), changed, "blocks have changed");
        let gone = |_: &[u8], _: u64| -> Result<(), Errno> { Err(Errno::STALE) };
        assert_eq!(basis.fill(&new, SOME_TIME, &gone), Err(Fault::System(Errno::STALE)), "of the new file");
    }

    /// Opening a file that its owner may not write to changes its mode for a moment.
    #[test]
    fn a_file_in_place_is_all_if_nothing_has_changed_since_it_was_opened_for_writing() {
        const BLOCK: usize = 64 << 10;
        for is_changed in [false, true] {
            let scratch = tempfile::tempdir().expect("a directory");
            let (directory, path) = (File::open(scratch.path()).expect("there"), scratch.path().join("file"));
            std::fs::write(&path, [7; BLOCK]).expect("a file");
            let old = open_regular(directory.as_fd(), b"file").expect("there");
            let touch = |before: &Stat| {
                let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
                let file = File::open(&path).expect("there");
                // Until the clock of the file system has gone on.
                while changed(&fstat(&file).expect("it")) == changed(before) {
                    file.set_permissions(std::fs::Permissions::from_mode(0o444)).expect("ours");
                }
            };
            touch(&old.1);
            let target = OwnedFd::from(File::open(&path).expect("there"));
            let mut basis = Basis::new(old, None, BLOCK as u64, BLOCK as u64, false);
            basis.begin(&target, true, false).expect("the same file");
            if is_changed {
                touch(&basis.stat);
            }
            let write = |_: &[u8], _: u64| -> Result<(), Errno> { unreachable!("it is there") };
            basis.digests(0..1, &target, &mut vec![0; SCRATCH_BYTES], &write).expect("read");
            assert_eq!(basis.is_all(directory.as_fd(), b"file"), !is_changed);
            assert_eq!(basis.fill(&target, SOME_TIME, &write), Ok(()), "its data is what was read");
        }
    }

    /// Other names of the file may belong to this copy, which gives them the times of their sources.
    #[test]
    fn a_file_in_place_that_is_rewritten_after_it_was_read_is_not_all() {
        const BLOCK: usize = 64 << 10;
        for names in [1, 2] {
            let scratch = tempfile::tempdir().expect("a directory");
            let (directory, path) = (File::open(scratch.path()).expect("there"), scratch.path().join("file"));
            std::fs::write(&path, [7; BLOCK]).expect("a file");
            if names == 2 {
                std::fs::hard_link(&path, scratch.path().join("other")).expect("a link");
            }
            let old = open_regular(directory.as_fd(), b"file").expect("there");
            let target = OwnedFd::from(File::open(&path).expect("there"));
            let mut basis = Basis::new(old, None, BLOCK as u64, BLOCK as u64, false);
            basis.begin(&target, true, false).expect("the same file");
            let write = |_: &[u8], _: u64| -> Result<(), Errno> { unreachable!("it is there") };
            basis.digests(0..1, &target, &mut vec![0; SCRATCH_BYTES], &write).expect("read");
            // Whatever the clock of the file system says.
            File::open(&path).and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).expect("ours");
            assert!(!basis.is_all(directory.as_fd(), b"file"));
            let expected = if names == 1 { Err(Fault::Explained(Errno::STALE, HAS_CHANGED)) } else { Ok(()) };
            assert_eq!(basis.fill(&target, SOME_TIME, &write), expected, "{names}");
            let epoch = Time { seconds: 0, nanoseconds: 0 };
            assert_eq!(basis.fill(&target, epoch, &write), Ok(()), "another copy of the same source has set its time");
        }
    }

    /// It is all zeros there. The sender would read its own data twice, to compare it and to send it.
    #[test]
    fn what_is_longer_than_the_older_file_is_not_compared_in_the_target_either() {
        const BLOCK: usize = 64 << 10;
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[7; 2 * BLOCK + 100], 0).expect("written");
        let [old, target] = [(); 2].map(|()| OwnedFd::from(file.try_clone().expect("it")));
        let stat = fstat(&old).expect("it");
        let mut basis = Basis::new((old, stat), None, 6 * BLOCK as u64, BLOCK as u64, false);
        basis.begin(&target, true, false).expect("the same file");
        file.set_len(6 * BLOCK as u64).expect("longer");
        let write = |_: &[u8], _: u64| -> Result<(), Errno> { unreachable!("it is there") };
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut digests = |numbers| basis.digests(numbers, &target, &mut scratch, &write).expect("read");
        let found = [digests(0..4), digests(4..6)].concat();
        let hash = |block: &[u8]| Some(hash16(&blake3::hash(block)));
        let last = [&[7_u8; 100][..], &[0; BLOCK - 100]].concat();
        assert_eq!(found, [hash(&[7; BLOCK]), hash(&[7; BLOCK]), hash(&last), None, None, None]);
        basis.note_came(3 * BLOCK as u64, 3 * BLOCK as u64);
        assert_eq!(basis.fill(&target, SOME_TIME, &write), Ok(()));
    }

    /// The old file ends in the last block.
    #[test]
    fn blocks_that_are_read_at_once_are_promised_or_copied_as_each_alone() {
        const BLOCK: usize = 64 << 10;
        let data: Vec<u8> = (0..5 * BLOCK + 100).map(|at| (at / 1000) as u8).collect();
        for (is_changed, at_once) in [(false, 4), (true, 4), (false, 1), (true, 1)] {
            let (old, new) =
                (tempfile::tempfile().expect("a file"), OwnedFd::from(tempfile::tempfile().expect("a file")));
            old.write_all_at(&data, 0).expect("written");
            let old = OwnedFd::from(old);
            let stat = fstat(&old).expect("it");
            let basis = Basis::new((old, stat), None, 6 * BLOCK as u64, BLOCK as u64, false);
            basis.is_changed.store(is_changed, Relaxed);
            assert_eq!(basis.blocks_at_once(), 4);
            let write = |data: &[u8], at| write_at(&new, data, at);
            let mut scratch = vec![0; SCRATCH_BYTES];
            let mut digests = |numbers| basis.digests(numbers, &new, &mut scratch, &write).expect("read");
            let found: Vec<_> = (0..6).step_by(at_once).flat_map(|it| digests(it..6.min(it + at_once))).collect();
            let hash = |block: &[u8]| Some(hash16(&blake3::hash(block)));
            let expected: Vec<_> = data[..5 * BLOCK].chunks(BLOCK).map(hash).chain([None]).collect();
            assert_eq!(found, expected);
            basis.note_came(BLOCK as u64, BLOCK as u64);
            basis.note_came(5 * BLOCK as u64, BLOCK as u64);
            basis.fill(&new, SOME_TIME, &write).expect("filled");
            let mut there = vec![1; 5 * BLOCK];
            File::from(new).read_exact_at(&mut there, 0).expect("read");
            // A block that came is not written again.
            let came = if is_changed { &data[BLOCK..2 * BLOCK] } else { &[0; BLOCK] };
            let expected = [&data[..BLOCK], came, &data[2 * BLOCK..5 * BLOCK]].concat();
            assert!(there == expected, "{is_changed} {at_once}");
        }
    }

    /// A hostile sender announces that every file will be huge.
    #[test]
    fn blocks_of_all_open_files_are_bounded() {
        const BLOCK_BYTES: u64 = size_of::<Block>() as u64;
        const { assert!(BLOCK_BYTES == 17) };
        let open_blocks: Arc<AtomicU64> = Arc::default();
        for _ in 0..2 {
            let huge = |size: u64| OpenBlocks::new(size, 1 << 16, &open_blocks);
            let first = huge(1 << 40);
            assert_eq!((first.bytes, first.count), (1 << 20, 1 << 20), "one alone is not bounded");
            let mut all = vec![first];
            all.extend((1..super::super::SLOTS_MAX as u32).map(|number| huge(1 << (40 + number % 20))));
            let count: u64 = all.iter().map(|blocks| blocks.count).sum();
            assert_eq!(count, open_blocks.load(Relaxed));
            assert!(count * BLOCK_BYTES <= 76 << 20, "{count}");
            assert!(all.iter().all(|blocks| blocks.count > 0 && blocks.bytes.is_power_of_two()));
            let small = huge(8 << 20);
            assert_eq!(small.bytes, 1 << 16, "few blocks are as short as ever");
            drop((all, small));
            assert_eq!(open_blocks.load(Relaxed), 0);
        }
    }
}
