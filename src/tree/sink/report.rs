//! The outcome of receiving a tree.

use rd_proto::control::IoFact;

use super::Lacking;
use crate::fs::direct::write::Written;
use crate::tree::stats::TreeFigures;

/// The outcome of receiving a tree.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What the receiver of a tree knows. Its bytes were written into files that were published. Entries whose metadata
    /// could not be set completely count as failed.
    pub figures: TreeFigures,
    /// Number of regular files published.
    pub files: u64,
    /// Number of links, FIFOs, sockets and devices made.
    pub others: u64,
    /// How data was written, including data of files that were not published.
    pub written: Written,
    /// The first failures. Their paths begin with the destination's path.
    pub failures: Vec<IoFact>,
    /// The first entry of each kind that lacks nothing but some metadata.
    pub lacking: Vec<Lacking>,
    /// What `--max-delete` has kept. This counts as one failure.
    pub spared: Option<IoFact>,
    /// Earlier generations that cannot be used.
    pub without: Vec<IoFact>,
    /// Number of entries whose extended attributes the file system could not keep.
    pub without_xattrs: u64,
}
