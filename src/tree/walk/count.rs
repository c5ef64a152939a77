//! Counts what a walk would send, in parallel with the copy.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, statat};

use super::contents::is_sparse;
use super::links::further_names;
use super::place::{Entered, Entry, Place};
use super::{Recorder, Walk, follow};
use crate::tree::Fault;
use crate::tree::progress::Amount;

impl Walk {
    /// Counts up to `entries_max` entries instead of sending them. Returns also whether these were the last. Opens only
    /// directories and files that may have holes. Entries that cannot be read are left out.
    pub fn count(&mut self, entries_max: u64) -> (Amount, bool) {
        let mut met = Amount::default();
        while met.entries < entries_max {
            let Some(entry) = self.recorder.entry(&self.place) else {
                if self.place.levels.len() == 1 {
                    return (met, true);
                }
                self.place.levels.pop();
                continue;
            };
            let (amount, entered) = self.recorder.count(&self.place, &entry).unwrap_or_default();
            let entered = entered.map(|(directory, is_through)| Entered {
                is_through,
                ..self.recorder.enter(&self.place, &entry, directory)
            });
            met = met.plus(amount);
            self.advance(entered, None);
        }
        (met, false)
    }
}

impl Recorder {
    /// Returns what an entry adds to a copy. For a directory, returns also its descriptor, and whether only what is
    /// listed below it is copied.
    fn count(&mut self, place: &Place, entry: &Entry<'_>) -> Result<(Amount, Option<(OwnedFd, bool)>), Fault> {
        let entry = &mut entry.clone();
        let Some((kind, seen)) = self.look(place, entry)? else { return Ok(Default::default()) };
        let (mut amount, mut entered) = (Amount { entries: 1, ..Amount::default() }, None);
        if kind == FileType::Directory {
            amount.directories = 1;
            let opened = self.open_directory(place, entry, seen).ok();
            let opened = opened.filter(|(_, stat, _)| !follow::is_loop(place, entry, stat));
            entered = opened.map(|(directory, ..)| (directory, entry.is_through()));
        } else if kind == FileType::RegularFile {
            let stat = match seen {
                Some((_, stat)) => stat,
                None => statat(entry.at, entry.path, AtFlags::SYMLINK_NOFOLLOW)?,
            };
            let is_copied = self.options.sizes.take(stat.st_size as u64);
            amount.bytes = if is_copied { self.data_bytes(entry, &stat)? } else { 0 };
        }
        Ok((amount, entered))
    }

    /// Returns the approximate amount of a file's data that will be copied.
    fn data_bytes(&mut self, entry: &Entry<'_>, stat: &Stat) -> Result<u64, Fault> {
        let (size, blocks) = (stat.st_size as u64, (stat.st_blocks as u64).saturating_mul(512));
        if let Some(inode) = self.inode(stat) {
            if self.links.first(inode, || further_names(entry, stat)).is_some() {
                if !entry.follow {
                    self.links.count(inode);
                }
                return Ok(0);
            }
            self.links.insert(inode, Vec::new(), further_names(entry, stat), 0);
        }
        let may_have_holes = self.options.sparse && blocks < size;
        let (file, _) = match may_have_holes {
            true => self.open(entry, FileType::RegularFile, None, OFlags::empty())?,
            false => return Ok(size),
        };
        Ok(if is_sparse(&file, stat) { blocks } else { size })
    }
}
