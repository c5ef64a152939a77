//! What a walk has sent.

use rustix::fs::{FileType, Stat};

use crate::tree::first::First;
use crate::tree::progress::Amount;
use crate::tree::stats::{Kinds, Stats, TreeFigures};

/// What has been sent so far.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Entries with a record: directories, files, links.
    pub entries: u64,
    /// Those of them that are directories.
    pub directories: u64,
    /// Data of files, in bytes.
    pub bytes: u64,
    /// Data that was not sent since the receiver had it, in bytes.
    pub kept_bytes: u64,
    /// Those of `entries` of each kind.
    pub found: Kinds,
    /// The size of all files and of what links lead to, also of those of which nothing was sent; as rsync counts it, of each
    /// name of a file.
    pub size_bytes: u64,
    /// Entries that were not sent, or not intact.
    pub failed: u64,
    /// The first of those.
    pub failures: First,
    /// The first of what was to be removed from SRC and is still there; they count as failed.
    pub unremoved: First,
    /// The first of what interrupted copies left, which is skipped.
    pub leftovers: First,
    /// What is not used, and why.
    pub without: First,
}

impl Sent {
    /// What the sender of a tree knows.
    pub fn figures(&self) -> TreeFigures {
        let &Self { entries, directories, bytes, kept_bytes, size_bytes, failed, found, .. } = self;
        let (amount, stats) = (Amount { entries, directories, bytes }, Stats { found, ..Stats::default() });
        TreeFigures { amount, kept_bytes, size_bytes, failed, stats, ..TreeFigures::default() }
    }

    /// Adds what came later.
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

/// What a file or link counts for in [`Sent::size_bytes`].
pub(super) fn size_of(stat: &Stat) -> u64 {
    let has_size = matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink);
    if has_size { stat.st_size as u64 } else { 0 }
}
