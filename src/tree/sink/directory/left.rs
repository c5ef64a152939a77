//! What an earlier transfer has left in a directory: removed, completed, or compared.

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
use crate::fs::{PARTIAL, is_temporary_name, name_beside};

impl OpenDirectory {
    /// Clears the place for an entry, in a directory that an earlier transfer has left. Whether the entry is a directory
    /// that was left as well: then it is completed. A file that was is replaced, or resumed, as any other.
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
                // Where that fails, so does making the entry, which is reported.
                let _ = remove(&self.fd, name);
                false
            }
            was_directory => was_directory == Some(true),
        }
    }

    /// In a directory that is resumed: a directory stands where another kind of entry is to be now, or the other way round.
    fn clear_other_kind(&self, entry: &Record<'_>) {
        let stat = entry.name().and_then(|name| Some((name, self.stat(name).ok()?)));
        if let Some((name, stat)) = stat
            && (FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
                != matches!(entry, Record::Directory { .. })
        {
            let _ = remove(&self.fd, name);
        }
    }

    /// Deletes what a killed transfer has left of entries that did not come any more; one that came has taken it over. What
    /// another transfer holds stays, as does what cannot be removed: no entry is made or lost by it.
    pub(super) fn delete_leftovers(&self) {
        let _ = partial::for_each(&self.fd, |name| {
            if is_temporary_name(name.to_bytes()) && !is_marker(name.to_bytes()) {
                let _ = partial::make_way(self.fd.as_fd(), name);
            }
            Ok::<_, Errno>(())
        });
    }

    /// Removes what an earlier transfer has left, and this one has not come to.
    pub(super) fn clear(&self) -> Result<(), Fault> {
        let Some(extraneous) = self.extraneous.as_ref().filter(|_| self.is_resumed) else { return Ok(()) };
        let mut names = extraneous.lock().expect("no panics under it").take()?;
        while let Some((_, name)) = names.current() {
            partial::remove(&self.fd, name)?;
            names.advance()?;
        }
        // Nobody else writes into it, and nothing in it is unfinished any more.
        unfinished::remove_stale(self.fd.as_fd())?;
        let is_leftover = |name: &CStr| is_temporary_name(name.to_bytes()) && !is_marker(name.to_bytes());
        partial::for_each(&self.fd, |name| if is_leftover(name) { partial::remove(&self.fd, name) } else { Ok(()) })?;
        Ok(())
    }
}

/// Entries of a directory that an earlier transfer has left, of which the names are kept.
const LEFT_MAX: usize = 4096;

/// Removes from a directory that an earlier transfer has left what is not worth resuming. What stays, by name:
/// directories, and files that are so large that they may save being sent again, up to [`LEFT_MAX`] of them.
pub(super) fn sweep(fd: &OwnedFd) -> Result<BTreeMap<Vec<u8>, bool>, Errno> {
    let mut left = BTreeMap::new();
    partial::for_each(fd, |name| {
        let stat = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // It counts for as long as its file is there.
        if is_marker(name.to_bytes()) && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            return Ok(());
        }
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            _ if left.len() == LEFT_MAX => return partial::remove(fd, name),
            FileType::Directory => true,
            FileType::RegularFile if stat.st_size as u64 >= RESUME_BYTES_MIN => false,
            _ => return unlinkat(fd, name, AtFlags::empty()),
        };
        left.insert(name.to_bytes().to_vec(), is_directory);
        Ok(())
    })?;
    Ok(left)
}
