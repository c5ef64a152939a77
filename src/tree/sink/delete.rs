//! What stands in a directory of the destination and not in that of the source.
//!
//! Each entry is found and removed relative to the descriptor of its directory, and no link is followed: names may be
//! exchanged meanwhile, and nothing outside is touched. A file system that is mounted below is not entered.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::{Shared, itemize};
use crate::fs::{is_temporary_name, partial};
use crate::tree::entries::{Change, Effect, Entry, FileKind};
use crate::tree::names::Names;

/// The names of a directory that have not been met in the walk.
pub(super) struct Extraneous {
    /// Those that the walk may still come to.
    left: Names,
    found: Names,
    /// Whether the walk has met any entry.
    pub has_met: bool,
    /// Why not all of them are known.
    failure: Option<Errno>,
}

impl Extraneous {
    /// All that is in the directory.
    pub fn of(directory: impl AsFd) -> Result<Self, Errno> {
        let mut left = Names::default();
        partial::for_each(directory, |name| {
            // Ours: of another transfer, or removed by the one that comes to it.
            if !is_temporary_name(name.to_bytes()) {
                left.push(FileType::Unknown, name)?;
            }
            Ok(())
        })?;
        left.sort()?;
        Ok(Self { left, found: Names::default(), has_met: false, failure: None })
    }

    /// The walk has come to a name; those before it will not come any more.
    pub fn meet(&mut self, name: &[u8]) {
        self.has_met = true;
        let met = self.pass(|left| left <= name, name);
        self.failure = self.failure.or(met.err());
    }

    /// Notes those that come first for as long as they are `wanted`, all but one.
    fn pass(&mut self, wanted: impl Fn(&[u8]) -> bool, but: &[u8]) -> Result<(), Errno> {
        while let Some((kind, name)) = self.left.current().filter(|(_, name)| wanted(name.to_bytes())) {
            if name.to_bytes() != but {
                self.found.push(kind, name)?;
            }
            self.left.advance()?;
        }
        Ok(())
    }

    /// All names that have not come, to be read once.
    ///
    /// # Errors
    ///
    /// What kept from knowing them.
    pub fn take(&mut self) -> Result<Names, Errno> {
        self.failure.map_or(Ok(()), Err)?;
        self.pass(|_| true, b"")?;
        let mut found = std::mem::take(&mut self.found);
        found.sort()?;
        Ok(found)
    }
}

/// Removes entries of one tree.
pub(super) struct Remover<'a> {
    pub shared: &'a Shared,
    /// Nothing on another device is entered.
    pub device: u64,
    /// What the caller is told in front of paths below the root.
    pub root: Vec<u8>,
    /// The entry itself makes room for another of its name, and is not told of.
    pub is_room: bool,
}

impl Remover<'_> {
    /// Removes an entry with all in it, but for what is excluded. `path` is that of the entry below its root, as patterns
    /// take it. Whether it is gone.
    ///
    /// # Errors
    ///
    /// What could not be removed, of the first.
    pub fn remove(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], depth: usize) -> Result<bool, Errno> {
        let shared = self.shared;
        let stat = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(true),
            stat => stat?,
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let is_excluded = !shared.options.delete_excluded && shared.patterns.leave_out(path, is_directory);
        if is_excluded || is_temporary_name(name.to_bytes()) || shared.is_stopped.load(Acquire) {
            return Ok(false);
        }
        if !is_directory {
            let kind = itemize::kind(FileType::from_raw_mode(stat.st_mode));
            return Ok(self.unlink(at, name, AtFlags::empty())? && self.tell(path, kind, depth));
        }
        if stat.st_dev != self.device {
            return Err(Errno::BUSY);
        }
        if depth == DEPTH_MAX {
            return Err(Errno::LOOP);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(at, name, flags, Mode::empty())?;
        if is_other(&fstat(&directory)?, &stat) {
            return Err(Errno::STALE);
        }
        let (mut is_empty, mut outcome) = (true, Ok(()));
        let mut names = Extraneous::of(&directory)?.take()?;
        while let Some((_, below)) = names.current() {
            let path = [path, b"/", below.to_bytes()].concat();
            match self.remove(directory.as_fd(), below, &path, depth + 1) {
                Ok(is_gone) => is_empty &= is_gone,
                Err(error) => outcome = outcome.and(Err(error)),
            }
            names.advance()?;
        }
        outcome?;
        let is_gone = is_empty && self.unlink(at, name, AtFlags::REMOVEDIR)?;
        Ok(is_gone && self.tell(path, FileKind::Directory, depth))
    }

    /// Tells the caller that an entry is gone, which it is.
    fn tell(&self, path: &[u8], kind: FileKind, depth: usize) -> bool {
        if let Some(entries) = &self.shared.entries
            && !(self.is_room && depth == 0)
        {
            let (path, effect) = ([&self.root, path].concat(), Effect::Deleted);
            entries.tell(Entry::Changed(Change { path, effect, kind, differs: None, leads_to: None }));
        }
        true
    }

    fn unlink(&self, at: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<bool, Errno> {
        let shared = self.shared;
        let most = shared.options.max_delete.unwrap_or(u64::MAX);
        if shared.deleted.fetch_update(Relaxed, Relaxed, |deleted| (deleted < most).then_some(deleted + 1)).is_err() {
            shared.spared.fetch_add(1, Relaxed);
            return Ok(false);
        }
        match unlinkat(at, name, flags) {
            Ok(()) => return Ok(true),
            // A transfer that was killed has left a name of ours in it.
            Err(Errno::NOTEMPTY | Errno::EXIST) if flags == AtFlags::REMOVEDIR => {}
            Err(Errno::NOENT) => return Ok(true),
            Err(error) => {
                shared.deleted.fetch_sub(1, Relaxed);
                return Err(error);
            }
        }
        shared.deleted.fetch_sub(1, Relaxed);
        Ok(false)
    }
}

fn is_other(one: &Stat, other: &Stat) -> bool {
    crate::fs::identity(one) != crate::fs::identity(other)
}
