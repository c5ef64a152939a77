//! What stands in a directory of the destination and not in that of the source.
//!
//! Each entry is found and removed relative to the descriptor of its directory, and no link is followed: names may be
//! exchanged meanwhile, and nothing outside is touched. A file system that is mounted below is not entered.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::Shared;
use crate::fs::{is_temporary_name, partial};

/// The names of a directory that have not been met in the walk.
pub(super) struct Extraneous {
    /// Sorted, the next to be met last.
    left: Vec<CString>,
    found: Vec<CString>,
    /// Whether the walk has met any entry.
    pub has_met: bool,
}

impl Extraneous {
    /// All that is in the directory.
    pub fn of(directory: impl AsFd) -> Result<Self, Errno> {
        let mut left = Vec::new();
        partial::for_each(directory, |name| {
            // Ours: of another transfer, or removed by the one that comes to it.
            if !is_temporary_name(name.to_bytes()) {
                left.push(name.to_owned());
            }
            Ok(())
        })?;
        left.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Self { left, found: Vec::new(), has_met: false })
    }

    /// The walk has come to a name; those before it will not come any more.
    pub fn meet(&mut self, name: &[u8]) {
        self.has_met = true;
        while let Some(last) = self.left.pop_if(|last| last.to_bytes() <= name) {
            if last.to_bytes() != name {
                self.found.push(last);
            }
        }
    }

    /// All names that have not come.
    pub fn take(&mut self) -> Vec<CString> {
        self.found.append(&mut self.left);
        std::mem::take(&mut self.found)
    }
}

/// Removes entries of one tree.
pub(super) struct Remover<'a> {
    pub shared: &'a Shared,
    /// Nothing on another device is entered.
    pub device: u64,
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
            return self.unlink(at, name, AtFlags::empty());
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
        for below in Extraneous::of(&directory)?.take() {
            let path = [path, b"/", below.to_bytes()].concat();
            match self.remove(directory.as_fd(), &below, &path, depth + 1) {
                Ok(is_gone) => is_empty &= is_gone,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome?;
        if is_empty { self.unlink(at, name, AtFlags::REMOVEDIR) } else { Ok(false) }
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
