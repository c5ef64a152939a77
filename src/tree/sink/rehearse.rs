//! `--dry-run`: the same comparisons find what would be made, changed and deleted. The results are reported and
//! counted, but nothing is touched. The sender sends no contents.
//!
//! A directory that would be made is a [`Phantom`](OpenDirectory::is_phantom): it has no entries.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::Metadata;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::directory::{OpenDirectory, find};
use super::itemize::{self, Coming, bits};
use super::links::is_left_as_newer;
use super::{Shared, partial};
use crate::fs::{DIRECTORY, Identity, PLACE, identity, is_directory, open_quietly};
use crate::tree::entries::{Effect, FileKind, differs};
use crate::tree::metadata::{self, UNKNOWN};
use crate::tree::{FIRST_NAME_FAILED, Fault};

/// Maximum number of entries remembered because hard links to them may come. Links to other entries are compared with
/// what exists now.
const PLANNED_MAX: usize = 1 << 16;

/// Properties that an entry has, or would have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub kind: FileKind,
    size: Option<u64>,
    pub modified: (i64, u32),
    mode: Option<u32>,
    /// Owner and group, if they would differ from those it would be made with.
    owner: (Option<u32>, Option<u32>),
    becomes: Becomes,
}

/// What a name would refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    /// A new file.
    New,
    /// The existing entry, with other metadata.
    Kept,
    /// A file elsewhere on this host, of which it would be a further name.
    Linked(Identity),
}

/// Entries that would change, by path.
#[derive(Debug, Default)]
pub(super) struct AllPlanned(HashMap<Vec<u8>, Planned>);

/// Returns a descriptor to stand for a directory that does not exist.
pub(super) fn nowhere() -> Result<OwnedFd, Errno> {
    openat(CWD, "/", PLACE, Mode::empty())
}

impl OpenDirectory {
    /// Describes the entry of this name.
    pub fn stat(&self, name: &[u8]) -> Result<Stat, Errno> {
        if self.is_phantom { Err(Errno::NOENT) } else { statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) }
    }

    /// Opens the directory that [`Self::enter`] would enter; `None` if it would be made.
    pub(super) fn rehearse_entering(&self, name: &[u8], is_implied: bool) -> Result<Option<OwnedFd>, Fault> {
        let options = &self.shared.options;
        if name == b"." {
            return if self.is_phantom { Ok(None) } else { Ok(Some(open_quietly(&self.fd, ".", DIRECTORY)?)) };
        }
        let old = match self.stat(name) {
            Err(Errno::NOENT) => return Ok(None),
            old => old?,
        };
        if is_implied {
            return Ok(Some(self.open_implied(name)?));
        }
        let is_replaced = !self.is_top() && options.sync && !options.ignore_existing;
        if !is_directory(&old) && is_replaced {
            return Ok(None);
        }
        Ok(Some(open_quietly(&self.fd, name, DIRECTORY)?))
    }
}

/// Whether a directory is empty.
pub(super) fn is_empty(directory: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    Ok(!partial::has_any(open_quietly(directory, name, DIRECTORY)?, |_| true)?)
}

impl OpenDirectory {
    /// Records that a file would be sent.
    pub(super) fn rehearse_file(&self, name: &[u8], described: &Metadata<'_>, size: u64) {
        let shared = &self.shared;
        let coming = Coming { kind: FileType::RegularFile, metadata: described, size: Some(size) };
        let differs = self.compare(name, &coming);
        shared.made(&shared.counts.files);
        shared.counts.bytes.fetch_add(size, Relaxed);
        crate::locked(&shared.stats).note_transferred(size, 0);
        shared.progress.wrote(size);
        self.tell(name, (Effect::Transferred, FileKind::Regular), differs, || None);
        self.plan(name, FileKind::Regular, described, Some(size), Becomes::New);
    }

    /// Remembers what would become of an entry.
    pub(super) fn plan(
        &self,
        name: &[u8],
        kind: FileKind,
        described: &Metadata<'_>,
        size: Option<u64>,
        becomes: Becomes,
    ) {
        let Shared { options, setter, planned, .. } = &*self.shared;
        let mut planned = crate::locked(planned);
        if planned.0.len() < PLANNED_MAX {
            let modified = (described.modified.seconds, described.modified.nanoseconds);
            let owner = setter.owner(options, described, (UNKNOWN, UNKNOWN));
            let rights = setter.rights(options, described, owner, false);
            let mode = || rights.mode(metadata::mode(options, described, 0o777));
            let mode = (options.mode && kind != FileKind::Symlink).then(mode);
            let owner = (Some(owner.0).filter(|&uid| uid != UNKNOWN), Some(owner.1).filter(|&gid| gid != UNKNOWN));
            planned.0.insert(self.told_path(name), Planned { kind, size, modified, mode, owner, becomes });
        }
    }

    /// Records that a further name would be made of the entry at the path `first` below the top. Returns true if the
    /// name would stay as it is. `told` is that path, as it is reported.
    pub(super) fn rehearse_link(
        &self,
        top: &OpenDirectory,
        name: &[u8],
        (first, told): (&[u8], Vec<u8>),
        wanted: impl Fn(FileType) -> bool,
    ) -> Result<bool, Fault> {
        let Shared { options, planned, .. } = &*self.shared;
        let planned = crate::locked(planned).0.get(&told).copied();
        let found = if top.is_phantom { Err(Errno::NOENT) } else { find(top, first, wanted) };
        let found = found.and_then(|found| fstat(&found));
        let Some(planned) = planned.or_else(|| found.as_ref().ok().map(Planned::of)) else {
            return if options.existing { Ok(true) } else { Err(Fault::Detail(FIRST_NAME_FAILED)) };
        };
        let old = self.stat(name).ok();
        if old.is_none() && options.existing || old.is_some() && options.ignore_existing {
            return Ok(true);
        }
        if let Some(old) = &old {
            let first = match planned.becomes {
                Becomes::New => None,
                Becomes::Linked(file) => Some(file),
                Becomes::Kept => found.ok().map(|found| identity(&found)),
            };
            if first == Some(identity(old)) || is_left_as_newer(options, old, &planned) {
                return Ok(true);
            }
            self.clear_way(name, old)?;
        }
        self.tell_linked(name, &planned, old.as_ref(), told);
        Ok(false)
    }

    /// Reports an entry that has become another name of `first`, or would.
    pub(super) fn tell_linked(&self, name: &[u8], linked: &Planned, old: Option<&Stat>, first: Vec<u8>) {
        let differs = old.and_then(|old| linked.differing(old));
        self.tell(name, (Effect::Linked, linked.kind), differs, || Some(first));
    }
}

impl Planned {
    /// Describes the existing entry.
    pub(super) fn of(stat: &Stat) -> Self {
        let kind = itemize::kind(FileType::from_raw_mode(stat.st_mode));
        Self {
            kind,
            size: (kind == FileKind::Regular).then_some(stat.st_size as u64),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            mode: Some(stat.st_mode & 0o7777),
            owner: (Some(stat.st_uid), Some(stat.st_gid)),
            becomes: Becomes::Linked(identity(stat)),
        }
    }

    /// Returns how the entry would differ from the existing one; `None` if that is of another kind.
    fn differing(&self, old: &Stat) -> Option<u16> {
        if itemize::kind(FileType::from_raw_mode(old.st_mode)) != self.kind {
            return None;
        }
        Some(bits([
            (differs::SIZE, self.size.is_none_or(|size| size == old.st_size as u64)),
            (differs::TIME, self.modified == (old.st_mtime, old.st_mtime_nsec as u32)),
            (differs::MODE, self.mode.is_none_or(|mode| mode == old.st_mode & 0o7777)),
            (differs::OWNER, self.owner.0.is_none_or(|uid| uid == old.st_uid)),
            (differs::GROUP, self.owner.1.is_none_or(|gid| gid == old.st_gid)),
        ]))
    }
}
