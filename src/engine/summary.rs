//! What a transfer tells while it runs and at its end.

use rd_proto::session::{Counters, Notice, Outcome};

use super::account::{View, Waits};
use crate::fs::direct::write::Written;
use crate::transport::Medium;
use crate::tree::sink::Report as TreeReport;
use crate::tree::walk::Sent;

/// Called with what happens during a transfer, from the loop; must not block.
pub trait Monitor {
    /// Something a person may want to know; `reason` is why the last lane went or could not be made.
    fn notice(&mut self, notice: Notice, reason: Option<&str>);
    /// A lane is there.
    fn lane_up(&mut self, medium: Medium, description: &str);
    /// How far it has come, and where the time went; at most every [`rd_proto::session::TICK`].
    fn progress(&mut self, counters: &Counters, waits: &Waits);
}

/// What a transfer came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How it ended.
    pub outcome: Outcome,
    /// Why the last lane was lost or not made, or what the peer did that it must not. Not escaped: the caller does that.
    pub reason: Option<String>,
    /// Its counters.
    pub counters: Counters,
    /// From the first lane that could carry payload to the end, in seconds.
    pub seconds: f64,
    /// Where the time went.
    pub waits: Waits,
    /// Which end says so.
    pub view: View,
    /// The media that payload went by, in order of first use.
    pub media: Vec<Medium>,
    /// The most lanes that carried payload at once.
    pub lanes: usize,
    /// All payload was encrypted.
    pub encrypted: bool,
    /// How files were read.
    pub read: Read,
    /// How files were written.
    pub written: Written,
    /// What was read of a tree.
    pub sent_tree: Option<Sent>,
    /// What became of a tree that was received.
    pub received_tree: Option<TreeReport>,
}

/// How much of files was read in which way. Nothing where the source was a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Past the page cache.
    pub direct_bytes: u64,
    /// From or through it.
    pub cached_bytes: u64,
}
