//! What stands under the name of a large file that is wanted: blocks that the sender finds the same are taken from it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use rd_proto::tree::answer::{BLOCK_BYTES_MIN, Digest};
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::elsewhere::Elsewhere;
use crate::fs::source::change;
use crate::fs::{hash_range, identity, read_up_to, write_at};

/// Opens what stands under a name to be read, if it is a regular file that we may read.
pub(super) fn open_regular(directory: BorrowedFd<'_>, name: &[u8]) -> Option<(OwnedFd, Stat)> {
    let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Looked at first: opening a device may do something.
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok().filter(is_regular)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = openat(directory, name, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok().filter(is_regular)?;
    Some((file, stat))
}

/// What a large file is compared with.
pub(super) enum Compared {
    /// With what stands under its name.
    Named,
    Elsewhere(Elsewhere),
}

/// The older file. It is read, and never written to.
pub(super) struct Basis {
    file: OwnedFd,
    stat: Stat,
    elsewhere: Option<Elsewhere>,
    /// Of the new file.
    size: u64,
    block_bytes: u64,
    /// The digests that the sender has been given, from the first block on.
    promised: Mutex<Vec<Digest>>,
    /// The blocks of which data has come.
    came: Mutex<Vec<bool>>,
}

impl Basis {
    /// What stands under the name or elsewhere, if it is a regular file that we may read. `size`: of the new file, in
    /// bytes.
    pub fn open(compared: Compared, directory: BorrowedFd<'_>, name: &[u8], size: u64) -> Option<Self> {
        let (opened, elsewhere) = match compared {
            Compared::Named => (open_regular(directory, name), None),
            Compared::Elsewhere(elsewhere) => (elsewhere.open(), Some(elsewhere)),
        };
        let (file, stat) = opened?;
        let block_bytes = block_bytes(size, BLOCK_BYTES_MIN);
        let came = Mutex::new(vec![false; size.div_ceil(block_bytes) as usize]);
        Some(Self { file, stat, elsewhere, size, block_bytes, promised: Mutex::default(), came })
    }

    /// Where it is, if not under the name of the new file.
    pub fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// As it was when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn came(&self) -> MutexGuard<'_, Vec<bool>> {
        self.came.lock().expect("no panics under it")
    }

    fn promised(&self) -> MutexGuard<'_, Vec<Digest>> {
        self.promised.lock().expect("no panics under it")
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

    /// The digest of the next block, as it is answered to the sender; none if the file ends before that does.
    pub fn digest(&self, start: u64, length: u64, scratch: &mut [u8]) -> Digest {
        let is_there = start + length <= self.stat.st_size as u64;
        let digest = is_there.then(|| hash_range(&self.file, start, length, scratch).ok()).flatten();
        self.promised().push(digest);
        digest
    }

    /// Data has come for `position`, in bytes.
    pub fn note_came(&self, position: u64, length: u64) {
        let mut came = self.came();
        let blocks = position / self.block_bytes..(position + length).div_ceil(self.block_bytes);
        for number in blocks {
            came[number as usize] = true;
        }
    }

    /// Whether it is the new file: the sender has all its digests and has sent nothing, and it still has its name. One
    /// elsewhere is looked at when it is linked.
    pub fn is_all(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let is_told = self.promised().len() == self.came().len() && self.promised().iter().all(Option::is_some);
        let stays = || {
            let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let open = fstat(&self.file);
            named.is_ok_and(|named| identity(&named) == identity(&self.stat))
                && open.is_ok_and(|open| change(&self.stat, &open).is_none())
        };
        is_told
            && self.stat.st_size as u64 == self.size
            && !self.came().contains(&true)
            && (self.elsewhere.is_some() || stays())
    }

    /// Copies the blocks that have not come, and proves each while it does; `check_stored` is given each when it is written.
    ///
    /// # Errors
    ///
    /// STALE if one has not the digest that the sender was given: the file has changed meanwhile.
    pub fn fill(&self, target: &OwnedFd, check_stored: impl Fn(&[u8], u64) -> Result<(), Errno>) -> Result<(), Errno> {
        let (came, promised) = (std::mem::take(&mut *self.came()), std::mem::take(&mut *self.promised()));
        let mut bytes = Vec::new();
        for (number, _) in came.iter().enumerate().filter(|(_, came)| !**came) {
            let (start, length) = self.block(number);
            let promised = promised.get(number).copied().flatten();
            bytes.resize(length as usize, 0);
            let is_whole = read_up_to(&self.file, &mut bytes, start)? == bytes.len();
            if !is_whole || promised.is_none_or(|digest| blake3::hash(&bytes).as_bytes()[..digest.len()] != digest) {
                return Err(Errno::STALE);
            }
            write_at(target, &bytes, start)?;
            check_stored(&bytes, start)?;
        }
        Ok(())
    }
}
