//! Removes, completes or compares what an earlier transfer has left in a directory.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rd_proto::tree::{RESUME_BYTES_MIN, Record};
use rustix::fs::{AtFlags, FileType, statat, unlinkat};
use rustix::io::Errno;

use super::super::Fault;
use super::super::unfinished::{self, is_marker};
use super::{OpenDirectory, remove};
use crate::fs::partial;
use crate::fs::{PARTIAL, is_directory, is_regular, is_temporary_name, name_beside};

impl OpenDirectory {
    /// Clears the place for an entry, in a directory that an earlier transfer has left. Returns whether the entry is a
    /// directory that was left as well, and is now completed. A file that was left is replaced or resumed like any
    /// other.
    pub fn make_way(&self, entry: &Record<'_>) -> bool {
        if self.is_resumed {
            self.clear_other_kind(entry);
            return false;
        }
        let (Some(left), Some(name)) = (&self.left, entry.name()) else { return false };
        let mut left = left.lock().expect("no panics under it");
        if matches!(entry, Record::Large { .. }) {
            left.remove(name_beside(name, PARTIAL).as_bytes());
        }
        let is_directory = matches!(entry, Record::Directory { .. });
        match left.remove(name) {
            Some(was_directory) if was_directory != is_directory => {
                // If this fails, making the entry fails as well, and that is reported.
                let _ = remove(&self.fd, name);
                false
            }
            was_directory => was_directory == Some(true),
        }
    }

    /// In a resumed directory, removes a directory where another kind of entry is to be made, or the other way round.
    fn clear_other_kind(&self, entry: &Record<'_>) {
        let stat = entry.name().and_then(|name| Some((name, self.stat(name).ok()?)));
        if let Some((name, stat)) = stat
            && is_directory(&stat) != matches!(entry, Record::Directory { .. })
        {
            let _ = remove(&self.fd, name);
        }
    }

    /// Deletes temporary names that a killed transfer has left for entries that have not come any more; an entry that
    /// has come has taken over its own.
    pub(super) fn delete_leftovers(&self) {
        unfinished::delete_leftovers(self.fd.as_fd());
    }

    /// Removes entries that an earlier transfer has left and this one has not reached.
    pub(super) fn clear(&self) -> Result<(), Fault> {
        let Some(extraneous) = self.extraneous.as_ref().filter(|_| self.is_resumed) else { return Ok(()) };
        // The generation may have the only copy of what cannot be read any more. It stays unfinished.
        if self.is_incomplete() && self.shared.options.generations.snapshot.is_some() {
            return Ok(());
        }
        let names = extraneous.lock().expect("no panics under it").take()?;
        let mut names = self.without_those_that_came(names)?;
        while let Some((_, name)) = names.current() {
            partial::remove(&self.fd, name)?;
            names.advance()?;
        }
        // No other process writes into this directory, and nothing in it is unfinished any more.
        unfinished::remove_stale(self.fd.as_fd())?;
        let is_leftover = |name: &CStr| is_temporary_name(name.to_bytes()) && !is_marker(name.to_bytes());
        partial::for_each(&self.fd, |name| if is_leftover(name) { partial::remove(&self.fd, name) } else { Ok(()) })?;
        Ok(())
    }
}

/// Maximum number of entries whose names are kept, in a directory that an earlier transfer has left.
const LEFT_MAX: usize = 4096;

/// Whether the name is that of a file with a part of its data, which grows with them.
fn is_partial(name: &CStr) -> bool {
    is_temporary_name(name.to_bytes()) && name.to_bytes().ends_with(PARTIAL.as_bytes())
}

/// Removes entries that are not worth resuming from a directory that an earlier transfer has left. Returns the entries
/// that stay, by name, at most [`LEFT_MAX`]: directories, and files so large that resuming may save sending them again.
pub(super) fn sweep(fd: &OwnedFd) -> Result<BTreeMap<Vec<u8>, bool>, Errno> {
    let mut left = BTreeMap::new();
    partial::for_each(fd, |name| {
        let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // A marker counts as long as its file exists.
        if is_marker(name.to_bytes()) && is_regular(&stat) {
            return Ok(());
        }
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            _ if left.len() == LEFT_MAX => return partial::remove(fd, name),
            FileType::Directory => true,
            FileType::RegularFile if stat.st_size as u64 >= RESUME_BYTES_MIN || is_partial(name) => false,
            _ => return unlinkat(fd, name, AtFlags::empty()),
        };
        left.insert(name.to_bytes().to_vec(), is_directory);
        Ok(())
    })?;
    Ok(left)
}
