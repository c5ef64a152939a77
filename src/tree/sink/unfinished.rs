//! The marker of a file that is written in place: an empty file beside it, `.HASH.rd-half`. The marker is made before
//! the first byte is written, and removed when the file has all its contents and metadata. A killed copy leaves it, so
//! that the next copy does not take a half-written file for a whole one because of its size, length or time.
//!
//! Appending (`--append-verify`) promises more: the existing data stays as it was if the copy fails, unless the copy is
//! killed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{AtFlags, FileType, Stat, ftruncate, statat, unlinkat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use crate::fs::metadata::restore_times;
use crate::fs::{
    HASH_READ_BYTES, PARTIAL, UNFINISHED, is_regular, is_temporary_name, name_beside, partial, read_up_to,
    sync_directory,
};
use crate::options::TreeOptions;
use crate::tree::Fault;

const NO_MARKER: &str = "cannot create the marker of an unfinished file beside it";

/// The marker of a file, held by this transfer.
#[derive(Debug)]
pub(super) struct Marker {
    file: OwnedFd,
    beside: String,
    /// Whether an earlier transfer has left the marker, because the file was not whole.
    pub was_there: bool,
}

impl Marker {
    /// Marks the file of this name, which may not exist yet. `None` if the marker cannot be made, but the next copy
    /// would notice a half-written file all the same.
    ///
    /// # Errors
    ///
    /// Fails if another copy is writing to the file, or if the marker is needed and cannot be made.
    pub fn make(directory: &OpenDirectory, name: &[u8]) -> Result<Option<Self>, Fault> {
        let (options, beside) = (&directory.shared.options, name_beside(name, UNFINISHED));
        let opened = directory.patiently(&beside, || partial::open_mark(&directory.fd, &beside));
        let (file, was_there) = match opened {
            Err(fault) if fault.errno() == Some(Errno::BUSY) => return Err(fault),
            // Another user's marker. Whether a copy holds it cannot be seen from here.
            Err(Fault::At(error @ Errno::ACCESS, path, why)) if !why.is_empty() => {
                return Err(Fault::At(error, path, why));
            }
            Err(Fault::System(error)) if believes(options) => return Err(Fault::Explained(error, NO_MARKER)),
            Err(fault) if believes(options) => return Err(fault),
            Err(_) => return Ok(None),
            Ok(opened) => opened,
        };
        if options.syncs() {
            sync_directory(&directory.fd)?;
        }
        if directory.has_past() {
            // What a killed copy has left of the file is not gone on with in place, and there may be no room for both.
            let _ = partial::make_way(directory.fd.as_fd(), name_beside(name, PARTIAL).as_bytes());
        }
        Ok(Some(Self { file, beside, was_there }))
    }

    /// Removes the marker, because the file is whole.
    pub fn remove(&self, directory: &OpenDirectory) {
        partial::remove_named(&directory.fd, &*self.beside, &self.file);
    }

    /// Removes a new marker, because the file is as it was before it was marked.
    pub fn take_back(&self, directory: &OpenDirectory) {
        if !self.was_there {
            self.remove(directory);
        }
    }
}

/// Whether an existing file may be left, or taken for the same, by less than its size and exact time.
fn believes(options: &TreeOptions) -> bool {
    options.update || options.ignore_existing || goes_by_less(options)
}

/// Whether a file is taken for the same by less than its size and exact time.
fn goes_by_less(options: &TreeOptions) -> bool {
    options.append_verify || options.sizes.size_only || options.modify_window > 0
}

/// Whether to check for a marker before a file counts as the same. That is needed if files are written in place, or
/// compared by less than their exact time, which files that are not whole hardly ever have. It is also needed if the
/// file may have that time by chance.
pub(super) fn is_looked_for(options: &TreeOptions, file: &Stat) -> bool {
    options.in_place || goes_by_less(options) || may_be_written_last(file)
}

/// Whether writing may be the last thing that happened to a file; a whole file was given its time after that. A source
/// that is written in the same tick of the clock has the same time as a half-written file, to the nanosecond. If times
/// are kept no more precisely, the same two seconds are enough.
fn may_be_written_last(file: &Stat) -> bool {
    let (modified, changed) = ((file.st_mtime, file.st_mtime_nsec), (file.st_ctime, file.st_ctime_nsec));
    modified == changed || modified.1 == 0 && modified.0.abs_diff(changed.0) <= 2
}

/// Whether the file of this name in a directory is marked.
pub(super) fn is_marked_in(directory: impl AsFd, name: &[u8]) -> bool {
    let found = statat(directory, name_beside(name, UNFINISHED), AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| is_regular(&found))
}

impl OpenDirectory {
    /// Whether a transfer has left the file of this name half-written, or is writing to it.
    pub fn is_marked(&self, name: &[u8]) -> bool {
        !self.is_phantom && is_marked_in(&self.fd, name)
    }

    /// Removes a marker that an earlier transfer has left, because the entry that has this name now is whole.
    /// `is_new`: it is another entry than was there before.
    pub fn clear_mark(&self, name: &[u8], is_new: bool) {
        if self.has_past() && !self.shared.options.dry_run {
            let beside = name_beside(name, UNFINISHED);
            // A marker that another transfer holds stays. If a marker cannot be removed, the file is compared once
            // more. Without locks nothing tells whether a marker that was just made is held. If it stayed, `-u` would
            // take what the user writes to this file later for half-written.
            match partial::make_way(self.fd.as_fd(), beside.as_bytes()) {
                Ok(()) | Err(Errno::BUSY) => {}
                // Another user's, who may be writing to the file.
                Err(Errno::ACCESS) if !is_new => {}
                Err(_) => drop(unlinkat(&self.fd, &beside, AtFlags::empty())),
            }
        }
    }
}

/// Whether a temporary name is the name of a marker.
pub(super) fn is_marker(name: &[u8]) -> bool {
    is_temporary_name(name) && name.ends_with(UNFINISHED.as_bytes())
}

/// Deletes temporary names that killed transfers have left in a directory, except those of markers. A name that another
/// transfer holds stays, and so does a name that cannot be removed: no entry is made or lost by it.
pub(super) fn delete_leftovers(directory: BorrowedFd<'_>) {
    let _ = partial::for_each(directory, |name| {
        if is_temporary_name(name.to_bytes()) && !is_marker(name.to_bytes()) {
            let _ = partial::make_way(directory, name.to_bytes());
        }
        Ok::<_, Errno>(())
    });
}

/// Removes markers in a directory if their files are gone, or have been replaced by a kind of entry that is never
/// written in place.
pub(super) fn remove_stale(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let others = [FileType::Directory, FileType::Symlink, FileType::Fifo, FileType::Socket];
    remove_marks(directory, |kind| others.contains(&kind))
}

/// Removes markers in a directory if their entries are gone, or are of a kind that `has_none`.
pub(super) fn remove_marks(directory: BorrowedFd<'_>, has_none: impl Fn(FileType) -> bool) -> Result<(), Errno> {
    let mut stale = BTreeSet::new();
    partial::for_each(directory, |name| {
        if is_marker(name.to_bytes()) {
            stale.insert(name.to_bytes().to_vec());
        }
        Ok::<_, Errno>(())
    })?;
    if stale.is_empty() {
        return Ok(());
    }
    let is_other = |name: &CStr| {
        let kind = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileType::from_raw_mode(stat.st_mode));
        kind.is_ok_and(&has_none)
    };
    partial::for_each(directory, |name: &CStr| {
        let marker = name_beside(name.to_bytes(), UNFINISHED);
        if stale.contains(marker.as_bytes()) && !is_other(name) {
            stale.remove(marker.as_bytes());
        }
        Ok::<_, Errno>(())
    })?;
    // A marker that another transfer holds stays, because that transfer will make the file.
    stale.iter().for_each(|marker| _ = partial::make_way(directory, marker));
    Ok(())
}

/// A file to which data is appended.
pub(super) struct Appended {
    /// Metadata of the file before appending.
    old: Stat,
    /// Whether existing data has been lost.
    is_changed: AtomicBool,
}

impl Appended {
    pub fn new(old: Stat) -> Self {
        Self { old, is_changed: AtomicBool::new(false) }
    }

    /// Returns how many of the bytes that come for a position exist already. The last block of the old file is sent as
    /// a whole, and its old part must not be written again. `compare` is given that number, and tells whether these
    /// bytes are equal.
    pub fn there(&self, position: u64, length: usize, compare: impl FnOnce(usize) -> bool) -> usize {
        let common = (self.old.st_size as u64).saturating_sub(position).min(length as u64) as usize;
        if common > 0 && !compare(common) {
            self.is_changed.store(true, Relaxed);
            return 0;
        }
        common
    }

    /// Restores the old length and times of the file. Returns whether the file is as it was.
    pub fn undo(&self, file: &OwnedFd) -> bool {
        !self.is_changed.load(Relaxed)
            && ftruncate(file, self.old.st_size as u64).is_ok()
            && restore_times(file, &self.old).is_ok()
    }
}

/// Whether a file has these bytes at a position.
pub(super) fn has_bytes(file: &OwnedFd, bytes: &[u8], position: u64) -> bool {
    let mut scratch = vec![0; HASH_READ_BYTES.min(bytes.len())];
    let mut parts = bytes.chunks(HASH_READ_BYTES).zip((position..).step_by(HASH_READ_BYTES));
    parts.all(|(part, at)| {
        let there = &mut scratch[..part.len()];
        read_up_to(file, there, at) == Ok(part.len()) && there == part
    })
}

/// Whether two files have the same bytes in a range.
pub(super) fn have_same(one: impl AsFd, other: &OwnedFd, position: u64, length: usize) -> bool {
    let mut scratch = vec![0; HASH_READ_BYTES.min(length)];
    (0..length).step_by(HASH_READ_BYTES).all(|start| {
        let (at, part) = (position + start as u64, HASH_READ_BYTES.min(length - start));
        let part = &mut scratch[..part];
        read_up_to(&one, part, at) == Ok(part.len()) && has_bytes(other, part, at)
    })
}
