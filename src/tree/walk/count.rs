//! What a walk would send, counted beside the copy.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, statat};

use super::contents::is_sparse;
use super::links::further_names;
use super::place::{Entered, Entry, Place};
use super::{Recorder, Walk, follow};
use crate::tree::Fault;
use crate::tree::progress::Amount;

impl Walk {
    /// Counts the next entries, so many at most, instead of sending them, and whether these were the last. Opens nothing
    /// but directories and files that may have holes; what cannot be read is left out.
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
    /// What an entry adds to a copy. If it is a directory, with its descriptor, and whether only what is listed below it comes.
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

    /// The data of a file that will be copied, roughly.
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
