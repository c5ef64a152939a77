//! What is seen of a session while it runs, and at its end.

use std::sync::Arc;
use std::time::Duration;

use minicbor::{Decode, Encode};
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Line {
    /// The shortest round trip that the system has measured on a TCP lane, in microseconds.
    #[n(0)]
    pub round_trip_us: Option<u64>,
    /// What of the pool could be in use at once, in bytes.
    #[n(1)]
    pub buffer_bytes: u64,
    /// The most pairs of addresses that its lanes of one medium went by at once.
    #[n(2)]
    pub rails: usize,
}

/// What a transfer has moved, and where its time went. An agent tells it so, as any numbers.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Figures {
    /// Its counters.
    #[n(0)]
    pub counters: Counters,
    /// From the first lane that could carry payload to the end, in seconds.
    #[cbor(n(1), with = "super::account::micros")]
    pub seconds: f64,
    /// Where the time went.
    #[n(2)]
    pub waits: Waits,
    /// Which end says so.
    #[cbor(skip)]
    pub view: View,
    /// The media that payload went by, in order of first use.
    #[n(3)]
    pub media: Vec<Medium>,
    /// Maximum number of lanes of one medium that were up at once while payload was carried.
    #[n(4)]
    pub lanes: usize,
    /// How far the other end is, and what that took.
    #[n(5)]
    pub line: Line,
    /// All payload was encrypted.
    #[n(6)]
    pub encrypted: bool,
    /// How files were read.
    #[n(7)]
    pub read: Read,
    /// How files were written.
    #[n(8)]
    pub written: Written,
}

impl Figures {
    /// Adds those of a transfer that came after.
    pub fn add(&mut self, later: &Self) {
        let (ours, theirs) = (&mut self.counters, &later.counters);
        for (sum, part) in [
            (&mut ours.bytes, theirs.bytes),
            (&mut ours.retries, theirs.retries),
            (&mut ours.replayed, theirs.replayed),
            (&mut ours.corrupt, theirs.corrupt),
            (&mut self.read.direct_bytes, later.read.direct_bytes),
            (&mut self.read.cached_bytes, later.read.cached_bytes),
            (&mut self.written.direct_bytes, later.written.direct_bytes),
            (&mut self.written.buffered_bytes, later.written.buffered_bytes),
        ] {
            *sum = sum.saturating_add(part);
        }
        self.seconds += later.seconds;
        self.waits = self.waits.plus(later.waits);
        self.view = later.view;
        self.encrypted = later.encrypted && (self.encrypted || self.media.is_empty());
        for medium in &later.media {
            if !self.media.contains(medium) {
                self.media.push(*medium);
            }
        }
        self.lanes = self.lanes.max(later.lanes);
        self.line = Line {
            round_trip_us: self.line.round_trip_us.max(later.line.round_trip_us),
            buffer_bytes: self.line.buffer_bytes.max(later.line.buffer_bytes),
            rails: self.line.rails.max(later.line.rails),
        };
    }

    /// The media, as reports name them.
    pub fn transport(&self) -> String {
        self.media.iter().map(|medium| medium.name()).collect::<Vec<_>>().join("+")
    }
}

/// What a transfer came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How it ended.
    pub outcome: Outcome,
    /// Why the last lane was lost or not made, or what the peer did that it must not. Not escaped: the caller does that.
    pub reason: Option<String>,
    /// What it has moved.
    pub figures: Figures,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Read {
    /// Past the page cache.
    #[n(0)]
    pub direct_bytes: u64,
    /// From or through it.
    #[n(1)]
    pub cached_bytes: u64,
}
