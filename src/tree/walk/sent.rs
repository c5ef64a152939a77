//! Summary of what a walk has sent.

use rustix::fs::{FileType, Stat};

use crate::tree::first::First;
use crate::tree::stats::TreeFigures;

/// What a walk has sent so far.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// What the sender of a tree knows. Its entries are those with a record, and its data was sent. Entries that were
    /// not sent, or not intact, count as failed.
    pub figures: TreeFigures,
    /// The first failures of these entries.
    pub failures: First,
    /// The first entries that were to be removed from SRC and still exist. They count as failed.
    pub unremoved: First,
    /// The first leftovers of interrupted copies, which are skipped.
    pub leftovers: First,
    /// What could not be used, such as a cache of digests, and entries that have disappeared meanwhile.
    pub without: First,
}

impl Sent {
    /// Adds what was sent later.
    pub fn add(&mut self, later: Self) {
        self.figures = self.figures.plus(later.figures);
        self.failures.extend(later.failures);
        self.unremoved.extend(later.unremoved);
        self.leftovers.extend(later.leftovers);
        self.without.extend(later.without);
    }
}

/// Returns what a file or link adds to [`TreeFigures::size_bytes`].
pub(super) fn size_of(stat: &Stat) -> u64 {
    let has_size = matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink);
    if has_size { stat.st_size as u64 } else { 0 }
}
