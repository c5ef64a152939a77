//! Messages of a broadcast, which sends one stream to many hosts: what the caller and the hosts say to each other.
//!
//! Every host has one *node* for a broadcast. The source's node reads a tree once and makes one stream of it. Any other
//! node takes the stream from the host before it, keeps a bounded part of it, makes its own tree from it, and passes it
//! to the host behind. The hops between nodes are ordinary sessions ([`super::Job::SendBroadcast`],
//! [`super::Job::ReceiveBroadcast`]); a node outlives its hops.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::TreeProgress;
use crate::options::TreeOptions;
use crate::tree::Root;
use crate::tree::proof::TreeProof;

/// Maximum part of the stream that a node may be asked to keep, in bytes.
pub const SPOOL_BYTES_MAX: u64 = 1 << 30;

/// Request to begin a node.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Broadcast {
    /// What the node does with the stream.
    #[n(0)]
    pub role: BroadcastRole,
    /// How much of the stream the node keeps for the host behind it and for its own tree, in bytes.
    #[n(1)]
    pub spool_bytes: u64,
    /// Whether another host is behind this one. If not, the node keeps nothing for such a host.
    #[n(2)]
    pub has_next: bool,
}

/// What a node does with the stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum BroadcastRole {
    /// Makes the stream from a tree.
    #[n(0)]
    Source {
        /// The files and trees to read.
        #[n(0)]
        roots: Vec<Root>,
        /// Options of the copy.
        #[n(1)]
        settings: TreeOptions,
    },
    /// Makes a tree from the stream.
    #[n(1)]
    Copy {
        /// The directory that receives the tree.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// The names that may be created there, as in [`super::Job::ReceiveTree`].
        #[n(1)]
        names: Vec<ByteVec>,
        /// Options of the copy.
        #[n(2)]
        settings: TreeOptions,
    },
    /// Makes the stream from the output of a pipeline's stage.
    #[n(2)]
    SourceStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Makes the stream from standard input. Never asked of an agent.
    #[n(3)]
    SourceStandard,
    /// Passes the stream to a stage of a pipeline, whose input ends once the stream is proven.
    #[n(4)]
    Stage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
        /// How many bytes the stage may fall behind beyond those kept in memory; they are kept on disk.
        #[n(1)]
        disk_bytes: u64,
    },
}

impl BroadcastRole {
    /// Whether this node makes the stream.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::SourceStage { .. } | Self::SourceStandard)
    }
}

/// Progress of a node, sent a few times a second and whenever something changes. Counts are bytes of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BroadcastState {
    /// The node has received everything before this position.
    #[n(0)]
    pub received: u64,
    /// The node's own tree has taken everything before this position.
    #[n(1)]
    pub written: u64,
    /// The host behind the node has received everything before this position.
    #[n(2)]
    pub passed: u64,
    /// Whether the node has received the end of the stream.
    #[n(3)]
    pub has_all: bool,
    /// Whether the node's own tree was too slow for the others and takes no more of the stream.
    #[n(4)]
    pub is_behind: bool,
    /// Progress of the node's own tree, or of the source's tree.
    #[n(5)]
    pub tree: Option<TreeProgress>,
    /// For how much of the time since the last state the node's own tree was busy, in thousandths. A tree that is
    /// always much busier than the others holds them up.
    #[n(6)]
    pub busy_permille: u16,
}

/// Proof of the whole stream: its length in bytes, its BLAKE3 digest, and what the tree is that it was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BroadcastProof {
    /// Length of the stream in bytes.
    #[n(0)]
    pub bytes: u64,
    /// BLAKE3 digest of the stream.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub digest: [u8; 32],
    /// What every copy of the tree must be; `None` if that is not known.
    #[n(2)]
    pub tree: Option<TreeProof>,
}
