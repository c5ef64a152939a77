//! What is seen of a session while it runs, and at its end.

use std::sync::Arc;
use std::time::Duration;

use rd_proto::handshake::LaneId;
use rd_proto::session::{Counters, Notice, Outcome};

use super::account::{View, Waits};
use super::logged::Detail;
use crate::fs::direct::write::Written;
use crate::transport::Medium;
use crate::tree::sink::Report as TreeReport;
use crate::tree::walk::{Sent, Spent};

/// Sees what happens during a session, from its loop; must not block.
pub trait Observer: Send {
    /// Something has happened.
    fn observe(&mut self, event: SessionEvent);
}

/// What happens during a session.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// RDMA is preferred, and a host has no device; TCP is used.
    NoDevice {
        /// `None` for this host.
        host: Option<String>,
    },
    /// The limit on locked memory leaves RDMA a smaller pool, or none.
    LockedMemory {
        /// The limit.
        limit_bytes: u64,
        /// The pool that is used, and that was wanted; `None` where RDMA is not used.
        pool_mib: Option<[u64; 2]>,
    },
    /// Both ends agree.
    Begun {
        /// The other end, as a person would name it.
        peer: String,
        /// For how long a lost link is tried for.
        reconnect: Duration,
        /// What will be transferred, where known.
        size_bytes: Option<u64>,
    },
    /// What has become of its lanes, and why the last one went or could not be made.
    Notice(Notice, Option<String>),
    /// A lane is there, which describes itself so.
    LaneUp(LaneId, Medium, String),
    /// How far it has come, and where the time went; at most every [`rd_proto::session::TICK`].
    Progress(Counters, Waits),
    /// What only the log tells of.
    Detail(Detail),
}

impl From<Detail> for SessionEvent {
    fn from(detail: Detail) -> Self {
        Self::Detail(detail)
    }
}

/// How far the other end is, and the buffer for what was on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The shortest round trip that the system has measured on a TCP lane.
    pub round_trip: Option<Duration>,
    /// What of the pool could be in use at once, in bytes.
    pub buffer_bytes: u64,
    /// The most pairs of addresses that its lanes of one medium went by at once.
    pub rails: usize,
}

impl Line {
    /// The one of two that is longer.
    pub fn or_longer(self, other: Self) -> Self {
        Self {
            round_trip: self.round_trip.max(other.round_trip),
            buffer_bytes: self.buffer_bytes.max(other.buffer_bytes),
            rails: self.rails.max(other.rails),
        }
    }
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
    /// How far the other end is, and what that took.
    pub line: Line,
    /// All payload was encrypted.
    pub encrypted: bool,
    /// How files were read.
    pub read: Read,
    /// How files were written.
    pub written: Written,
    /// What was read of a tree.
    pub sent_tree: Option<Sent>,
    /// What of it is to be removed now that it is at the other end, with `--remove-source-files`.
    pub spent: Option<Arc<Spent>>,
    /// What became of a tree that was received.
    pub received_tree: Option<TreeReport>,
    /// It is not what it must be.
    pub is_forged: bool,
}

/// How much of files was read in which way. Nothing where the source was a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Past the page cache.
    pub direct_bytes: u64,
    /// From or through it.
    pub cached_bytes: u64,
}
