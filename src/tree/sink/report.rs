//! The outcome of receiving a tree.

use rd_proto::control::IoFact;

use super::Lacking;
use crate::fs::direct::write::Written;
use crate::tree::progress::Amount;
use crate::tree::stats::{Stats, TreeFigures};

/// The outcome of receiving a tree.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of regular files published.
    pub files: u64,
    /// Number of directories made or entered.
    pub directories: u64,
    /// Number of links, FIFOs, sockets and devices made.
    pub others: u64,
    /// Number of bytes written into files that were published.
    pub bytes: u64,
    /// How data was written, including data of files that were not published.
    pub written: Written,
    /// Whether the tree is not the expected one.
    pub is_other: bool,
    /// Whether this host does not keep all of the metadata that the source has sent, so that a copy of the tree would
    /// not be what the source has sent.
    pub has_less_metadata: bool,
    /// Number of entries not tried, because their directory had failed or they were not asked for.
    pub skipped: u64,
    /// Number of entries that, according to the sender, were not sent or not intact.
    pub unsent: u64,
    /// Number of entries that failed, or whose metadata could not be set completely.
    pub failed: u64,
    /// The first of these failures. Their paths begin with the destination's path.
    pub failures: Vec<IoFact>,
    /// The first entry of each kind that lacks nothing but some metadata.
    pub lacking: Vec<Lacking>,
    /// What `--max-delete` has kept. This counts as one failure.
    pub spared: Option<IoFact>,
    /// Earlier generations that cannot be used.
    pub without: Vec<IoFact>,
    /// Number of entries that existed already.
    pub same: u64,
    /// Numbers for `--stats`.
    pub stats: Stats,
    /// Number of entries deleted.
    pub deleted: u64,
    /// Number of files that were not sent, because they existed under other names.
    pub moved: u64,
    /// Number of entries whose extended attributes the file system could not keep.
    pub without_xattrs: u64,
    /// Whether everything published is on stable storage, and not only with the kernel.
    pub is_synced: bool,
    /// Whether everything published has also been read back from there.
    pub is_read_back: bool,
}

impl Report {
    /// What the receiver of a tree knows.
    pub fn figures(&self) -> TreeFigures {
        let &Self { directories, bytes, same, deleted, moved, failed, unsent, stats, .. } = self;
        let &Self { is_synced, is_read_back, is_other, has_less_metadata, .. } = self;
        let amount = Amount { entries: self.files + directories + self.others + same, directories, bytes };
        let flags = TreeFigures { is_synced, is_read_back, is_other, has_less_metadata, ..TreeFigures::default() };
        TreeFigures { amount, same, deleted, moved, failed, failed_there: unsent, stats, ..flags }
    }
}
