//! What can be observed of a session while it runs and when it ends.

use std::sync::Arc;
use std::time::Duration;

use minicbor::{Decode, Encode};
use rd_proto::control::Path;
use rd_proto::handshake::LaneId;
use rd_proto::session::{Counters, Notice, Outcome};

use super::account::{View, Waits};
use crate::fs::direct::write::Written;
use crate::log::Step;
use crate::transport::Medium;
use crate::tree::sink::Report as TreeReport;
use crate::tree::walk::{Sent, Spent};

/// Observes what happens during a session. Called from the session's loop, so it must not block.
pub trait Observer: Send {
    /// Called for each event.
    fn observe(&mut self, event: SessionEvent);
}

/// What happens during a session.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// RDMA is preferred but a host has no device, so TCP is used.
    NoDevice {
        /// The host; `None` for this host.
        host: Option<String>,
    },
    /// The limit on locked memory leaves RDMA a smaller pool, or none.
    LockedMemory {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Size of the pool that is used and of the pool that was wanted, in MiB; `None` if RDMA is not used.
        pool_mib: Option<[u64; 2]>,
    },
    /// There is one rail although more were asked for, and why.
    OneRail(&'static str),
    /// Both ends have agreed on how to transfer.
    Begun {
        /// The other end, as the user would call it.
        peer: String,
        /// How long the ends try to restore a lost link.
        reconnect: Duration,
        /// Size of what will be transferred, if known.
        size_bytes: Option<u64>,
    },
    /// A change among the session's lanes, and why the last lane went down or could not be made.
    Notice(Notice, Option<String>),
    /// A lane is up, with its description of itself.
    LaneUp(LaneId, Medium, String),
    /// Progress of the session, and where the time went; at most every [`rd_proto::session::TICK`].
    Progress(Counters, Waits),
    /// A lane is being dialled. Only the log reports this and the events below.
    Dialing(LaneId),
    /// A lane could not be made.
    DialFailed(LaneId, String),
    /// A rail of a path has been found: its number and name.
    Rail(Path, u8, String),
    /// A step of the session begins.
    StepBegins(Step),
    /// A step of the session ends.
    StepEnds(Step),
}

/// Round-trip time of the line, and the buffers and rails used for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Line {
    /// Shortest round-trip time that the system has measured on a TCP lane, in microseconds.
    #[n(0)]
    pub round_trip_us: Option<u64>,
    /// Part of the pool that could be in use at once, in bytes.
    #[n(1)]
    pub buffer_bytes: u64,
    /// Maximum number of address pairs that lanes of one medium used at once.
    #[n(2)]
    pub rails: usize,
}

/// What a transfer has moved, and where its time went. An agent sends this, so the numbers may have any value.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Figures {
    /// Counters of the session.
    #[n(0)]
    pub counters: Counters,
    /// Time from the first lane that could carry payload to the end, in seconds.
    #[cbor(n(1), with = "super::account::micros")]
    pub seconds: f64,
    /// Where the time went.
    #[n(2)]
    pub waits: Waits,
    /// Which end has measured the times.
    #[cbor(skip)]
    pub view: View,
    /// Media that carried payload, in order of first use.
    #[n(3)]
    pub media: Vec<Medium>,
    /// Maximum number of lanes of one medium that were up at once while payload was carried.
    #[n(4)]
    pub lanes: usize,
    /// Round-trip time of the line, and the buffers and rails used for it.
    #[n(5)]
    pub line: Line,
    /// Whether all payload was encrypted.
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
    /// Adds the figures of a later transfer.
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

    /// Returns the names of the media, as used in reports.
    pub fn transport(&self) -> String {
        self.media.iter().map(|medium| medium.name()).collect::<Vec<_>>().join("+")
    }
}

/// Result of a transfer.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How the transfer ended.
    pub outcome: Outcome,
    /// Why the last lane was lost or could not be made, or what the peer did although it must not. Not escaped: the
    /// caller does that.
    pub reason: Option<String>,
    /// What the transfer has moved.
    pub figures: Figures,
    /// What was read of a tree that was sent.
    pub sent_tree: Option<Sent>,
    /// Entries to remove now that they are at the other end, with `--remove-source-files`.
    pub spent: Option<Arc<Spent>>,
    /// What became of a tree that was received.
    pub received_tree: Option<TreeReport>,
    /// Whether the received tree is not what it must be.
    pub is_forged: bool,
}

/// Bytes of files that were read, by how they were read. All 0 if the source was a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Read {
    /// Bytes read past the page cache.
    #[n(0)]
    pub direct_bytes: u64,
    /// Bytes read from or through the page cache.
    #[n(1)]
    pub cached_bytes: u64,
}
