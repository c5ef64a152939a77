//! `--prune-empty-dirs`: directories that are made only if something else comes into them or into a directory in them.
//!
//! The record of such a directory is held back until the first record of anything but a directory follows. Held
//! directories are at the end of the way from the top to the walk's position.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{AtFlags, FileType, fstat, statat};
use rustix::io::Errno;

use super::place::{Level, Place};
use super::{Recorder, Step, Walk};
use crate::fs::{DIRECTORY, is_temporary_name, open_quietly, partial};

/// The record of a directory that has not been sent.
pub struct Held {
    pub record: Vec<u8>,
    /// Whether the directory only leads to listed paths.
    pub is_implied: bool,
}

impl Place {
    /// Writes as many of the held records as there is room for. Returns their bytes, their number, and whether these
    /// are all.
    pub(super) fn write_held(&self, target: &mut [u8]) -> (usize, usize, bool) {
        let (mut length, mut count) = (0, 0);
        for Held { record, .. } in self.first_held().iter().filter_map(|level| level.held.as_ref()) {
            let Some(room) = target.get_mut(length..length + record.len()) else { return (length, count, false) };
            room.copy_from_slice(record);
            (length, count) = (length + record.len(), count + 1);
        }
        (length, count, true)
    }

    /// Returns the levels whose records are held.
    fn first_held(&self) -> &[Level] {
        let count = self.levels.iter().rev().take_while(|level| level.held.is_some()).count();
        &self.levels[self.levels.len() - count..]
    }
}

impl Recorder {
    /// Whether a directory of the last level is held. A root whose contents are copied exists in any case, and nothing
    /// comes into a directory that is not walked.
    pub(super) fn holds(&self, place: &Place, name: &[u8]) -> bool {
        let is_kept = self.options.contents || self.options.keeps_root;
        self.options.prune_empty_dirs && (place.levels.len() > 1 || !is_kept) && place.is_walked(name)
    }

    /// Whether a directory of the last level that is not walked would not be made if it were walked. Then it is not
    /// made now.
    pub(super) fn is_pruned(&self, place: &Place, name: &[u8], directory: &OwnedFd) -> bool {
        self.options.prune_empty_dirs && !place.is_walked(name) && !self.holds_files(place, name, directory)
    }

    /// Whether a directory contains anything for which it is made, or may do so. `path` is its path below the last
    /// level.
    fn holds_files(&self, place: &Place, path: &[u8], directory: &OwnedFd) -> bool {
        let device = |directory: &OwnedFd| fstat(directory).ok().map(|stat| stat.st_dev);
        let root = place.levels.get(1).and_then(|level| level.layers.first());
        let is_beyond = |directory: &OwnedFd| {
            self.options.one_file_system && root.is_some_and(|root| device(&root.directory) != device(directory))
        };
        let Ok(directory) = directory.try_clone() else { return true };
        // Not recursive, because the threads that walk have small stacks.
        let mut levels: Vec<(Vec<u8>, OwnedFd, Vec<CString>)> = Vec::new();
        let mut next = Some((path.to_vec(), directory));
        loop {
            match next.take() {
                // What the receiver has there stays, see [`Walk::leave_held`].
                Some((_, directory)) if is_beyond(&directory) && self.options.delete => return true,
                Some((path, directory)) if !is_beyond(&directory) => {
                    let Ok(below) = self.only_directories(place, &path, &directory) else { return true };
                    levels.push((path, directory, below));
                }
                _ => {}
            }
            let depth = levels.len();
            let Some((path, directory, below)) = levels.last_mut() else { return false };
            let Some(name) = below.pop() else {
                levels.pop();
                continue;
            };
            match open_quietly(directory.as_fd(), &name, DIRECTORY) {
                Ok(opened) if depth < DEPTH_MAX => next = Some(([path, &b"/"[..], name.to_bytes()].concat(), opened)),
                _ => return true,
            }
        }
    }

    /// Returns the directories in a directory, which is at this path below the last level.
    ///
    /// # Errors
    ///
    /// EEXIST if anything else in the directory is copied, or the reason why that is not known.
    fn only_directories(&self, place: &Place, path: &[u8], directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
        let options = &self.options;
        let follows = options.copy_links || options.copy_dirlinks || options.copy_unsafe_links;
        let mut directories = Vec::new();
        partial::for_each(directory, |name| {
            if is_temporary_name(name.to_bytes()) {
                return Ok(());
            }
            let kind = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(()),
                stat => FileType::from_raw_mode(stat?.st_mode),
            };
            let below = [path, b"/", name.to_bytes()].concat();
            if self.is_left_out(place, &below, kind) && !(follows && kind == FileType::Symlink) {
                return Ok(());
            }
            if kind != FileType::Directory {
                return Err(Errno::EXIST);
            }
            directories.push(name.to_owned());
            Ok(())
        })?;
        Ok(directories)
    }
}

impl Walk {
    /// Records that the first `count` held records have been sent.
    pub(super) fn release(&mut self, count: usize) {
        let start = self.place.levels.len() - self.place.first_held().len();
        for level in &mut self.place.levels[start..start + count] {
            let Some(held) = level.held.take() else { continue };
            level.number = Some(self.recorder.directories);
            self.recorder.directories += 1;
            self.recorder.count_sent(FileType::Directory, !held.is_implied);
        }
    }

    /// Leaves the last directory if nothing of it was sent. With `--delete`, its record is sent first if it is not known
    /// to be empty: what the receiver has in it stays, and only there.
    pub(super) fn leave_held(&mut self, target: &mut [u8]) -> Option<Step> {
        if let [_, .., above, level] = &self.place.levels[..]
            && level.held.is_some()
            && level.is_incomplete
            && !above.is_incomplete
            && self.recorder.options.delete
        {
            let (length, count, _) = self.place.write_held(target);
            self.release(count);
            return Some(if count > 0 { Step::Wrote(length) } else { Step::Full });
        }
        let level = self.place.levels.pop_if(|level| level.held.is_some())?;
        // Entries that are not known to be gone from it keep the directory above from being complete.
        let above = self.place.levels.last_mut().expect("the top is never left");
        above.is_incomplete |= level.is_incomplete;
        Some(Step::Passed)
    }
}
