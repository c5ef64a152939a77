//! What became of a tree that was received.

use rd_proto::control::IoFact;

use super::Lacking;
use crate::fs::direct::write::Written;
use crate::tree::progress::Amount;
use crate::tree::stats::{Stats, TreeFigures};

/// What became of a tree.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Regular files published.
    pub files: u64,
    /// Directories made or entered.
    pub directories: u64,
    /// Links, FIFOs, sockets and devices made.
    pub others: u64,
    /// Bytes of data written into files that were published.
    pub bytes: u64,
    /// How data was written, also that of files that were not published.
    pub written: Written,
    /// The tree is another one than was expected.
    pub is_other: bool,
    /// Entries not tried, since their directory had failed, or since they were not asked for.
    pub skipped: u64,
    /// Entries that were not sent, or not intact, as the sender says.
    pub unsent: u64,
    /// Entries that failed, or whose metadata could not be set in full.
    pub failed: u64,
    /// The first of those, with paths that begin with the destination's.
    pub failures: Vec<IoFact>,
    /// The first of each kind of which all is there but some metadata.
    pub lacking: Vec<Lacking>,
    /// What `--max-delete` has kept, which counts as one of those.
    pub spared: Option<IoFact>,
    /// Earlier generations that cannot be used.
    pub without: Vec<IoFact>,
    /// Entries that were there already.
    pub same: u64,
    /// What `--stats` tells.
    pub stats: Stats,
    /// Entries deleted.
    pub deleted: u64,
    /// Files that were not sent, since they were there under other names.
    pub moved: u64,
    /// Entries of which the file system could not keep extended attributes.
    pub without_xattrs: u64,
    /// All that was published is on stable storage, not with the kernel only.
    pub is_synced: bool,
    /// And has been read back from there.
    pub is_read_back: bool,
}

impl Report {
    /// What the receiver of a tree knows.
    pub fn figures(&self) -> TreeFigures {
        let &Self { directories, bytes, same, deleted, moved, failed, unsent, stats, .. } = self;
        let &Self { is_synced, is_read_back, is_other, .. } = self;
        let amount = Amount { entries: self.files + directories + self.others + same, directories, bytes };
        let flags = TreeFigures { is_synced, is_read_back, is_other, ..TreeFigures::default() };
        TreeFigures { amount, same, deleted, moved, failed, failed_there: unsent, stats, ..flags }
    }
}
