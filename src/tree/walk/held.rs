//! Directories that are made only if something else comes into them, or into a directory in them: `--prune-empty-dirs`.
//!
//! The record of such a directory is held back until the first that is no directory's follows. What is held is at the end of
//! the way from the top to where the walk is.

use super::place::{Level, Place};
use super::{Recorder, Step, Walk};
use rustix::fs::FileType;

/// The record of a directory that has not been sent.
pub struct Held {
    pub record: Vec<u8>,
    /// It only leads to what is listed.
    pub is_implied: bool,
}

impl Place {
    /// Writes the records that are held, as many as there is room for: their bytes, how many they are, and whether these
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

    /// The levels that are held.
    fn first_held(&self) -> &[Level] {
        let count = self.levels.iter().rev().take_while(|level| level.held.is_some()).count();
        &self.levels[self.levels.len() - count..]
    }
}

impl Recorder {
    /// Whether directories of the last level are held. What the copy is the contents of is there in any case.
    pub(super) fn holds(&self, place: &Place) -> bool {
        let is_kept = self.options.contents || self.options.keeps_root;
        self.options.prune_empty_dirs && (place.levels.len() > 1 || !is_kept)
    }
}

impl Walk {
    /// The first records that are held, so many, have been sent.
    pub(super) fn release(&mut self, count: usize) {
        let start = self.place.levels.len() - self.place.first_held().len();
        for level in &mut self.place.levels[start..start + count] {
            let Some(held) = level.held.take() else { continue };
            level.number = Some(self.recorder.directories);
            self.recorder.directories += 1;
            self.recorder.count_sent(FileType::Directory, !held.is_implied);
        }
    }

    /// Leaves a directory of which nothing was sent, if that is so.
    pub(super) fn leave_held(&mut self) -> Option<Step> {
        let level = self.place.levels.pop_if(|level| level.held.is_some())?;
        // What is not known to be gone from it is kept with it.
        let above = self.place.levels.last_mut().expect("the top is never left");
        above.is_incomplete |= level.is_incomplete;
        Some(Step::Passed)
    }
}
