//! Summary of what a walk has sent.

use rustix::fs::{FileType, Stat};

use crate::tree::first::First;
use crate::tree::progress::Amount;
use crate::tree::stats::{Kinds, Stats, TreeFigures};

/// What a walk has sent so far.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Number of entries with a record: directories, files, links.
    pub entries: u64,
    /// Number of these entries that are directories.
    pub directories: u64,
    /// Data of files that was sent, in bytes.
    pub bytes: u64,
    /// Data that was not sent because the receiver had it, in bytes.
    pub kept_bytes: u64,
    /// Number of entries of each kind.
    pub found: Kinds,
    /// Size of all files and symbolic links, including those of which nothing was sent. As rsync does, it counts a file
    /// once for each of its names.
    pub size_bytes: u64,
    /// Number of entries that were not sent, or not intact.
    pub failed: u64,
    /// The first failures of these entries.
    pub failures: First,
    /// The first entries that were to be removed from SRC and still exist. They count as failed.
    pub unremoved: First,
    /// The first leftovers of interrupted copies, which are skipped.
    pub leftovers: First,
    /// What could not be used, such as a cache of digests, and why.
    pub without: First,
}

impl Sent {
    /// Returns what the sender of a tree knows.
    pub fn figures(&self) -> TreeFigures {
        let &Self { entries, directories, bytes, kept_bytes, size_bytes, failed, found, .. } = self;
        let (amount, stats) = (Amount { entries, directories, bytes }, Stats { found, ..Stats::default() });
        TreeFigures { amount, kept_bytes, size_bytes, failed, stats, ..TreeFigures::default() }
    }

    /// Adds what was sent later.
    pub fn add(&mut self, later: Self) {
        self.entries += later.entries;
        self.directories += later.directories;
        self.bytes += later.bytes;
        self.kept_bytes += later.kept_bytes;
        self.found = self.found.plus(later.found);
        self.size_bytes += later.size_bytes;
        self.failed += later.failed;
        self.failures.extend(later.failures);
        self.unremoved.extend(later.unremoved);
        self.leftovers.extend(later.leftovers);
        self.without.extend(later.without);
    }
}

/// Returns what a file or link adds to [`Sent::size_bytes`].
pub(super) fn size_of(stat: &Stat) -> u64 {
    let has_size = matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink);
    if has_size { stat.st_size as u64 } else { 0 }
}
