//! One stream for many hosts: what the caller and the hosts of a broadcast say to each other.
//!
//! Every host has one *node* for a broadcast. The source's node reads a tree once and makes one stream of it. Any other
//! node takes the stream from the host before it, keeps a bounded part of it, makes its own tree of it, and gives it to the
//! host behind it. The hops between them are sessions like any other ([`super::Job::SendBroadcast`],
//! [`super::Job::ReceiveBroadcast`]); a node outlives them.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::TreeProgress;
use crate::options::TreeOptions;
use crate::tree::Root;
use crate::tree::proof::TreeProof;

/// The most that a node may be asked to keep of the stream, in bytes.
pub const SPOOL_BYTES_MAX: u64 = 1 << 30;

/// Begins a node.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Broadcast {
    /// What it does with the stream.
    #[n(0)]
    pub role: BroadcastRole,
    /// How much of the stream it keeps for the hosts behind it and for its own tree, in bytes.
    #[n(1)]
    pub spool_bytes: u64,
    /// Another host is behind it. Without one it keeps nothing for it.
    #[n(2)]
    pub has_next: bool,
}

/// What a node does with the stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum BroadcastRole {
    /// Makes it of a tree.
    #[n(0)]
    Source {
        /// What is read.
        #[n(0)]
        roots: Vec<Root>,
        /// How.
        #[n(1)]
        settings: TreeOptions,
    },
    /// Makes a tree of it.
    #[n(1)]
    Copy {
        /// Where it is to lie.
        #[cbor(n(0), with = "minicbor::bytes")]
        directory: Vec<u8>,
        /// The names that it gets there, as in [`super::Job::ReceiveTree`].
        #[n(1)]
        names: Vec<ByteVec>,
        /// How.
        #[n(2)]
        settings: TreeOptions,
    },
    /// Makes it of what a stage of a pipeline puts out.
    #[n(2)]
    SourceStage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
    },
    /// Makes it of standard input. Never asked of an agent.
    #[n(3)]
    SourceStandard,
    /// Gives it to a stage of a pipeline, which has its end once the stream is proven.
    #[n(4)]
    Stage {
        /// The stage's number.
        #[n(0)]
        stage: u32,
        /// Bytes that the stage may fall behind by beside those in memory: they are kept on disk.
        #[n(1)]
        disk_bytes: u64,
    },
}

impl BroadcastRole {
    /// It makes the stream.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::SourceStage { .. } | Self::SourceStandard)
    }
}

/// How far a node has come, some times a second and when something changes. Counts are bytes of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BroadcastState {
    /// It has all below.
    #[n(0)]
    pub received: u64,
    /// Its own tree has all below.
    #[n(1)]
    pub written: u64,
    /// The host behind it has all below.
    #[n(2)]
    pub passed: u64,
    /// It has the end of the stream.
    #[n(3)]
    pub has_all: bool,
    /// Its own tree was too slow for the others and takes no more of the stream.
    #[n(4)]
    pub is_behind: bool,
    /// Of its own tree, or of the source's.
    #[n(5)]
    pub tree: Option<TreeProgress>,
    /// For how much of the time since the last of these its own tree had something to do, in thousandths. A tree that has
    /// always much more to do than others holds them up.
    #[n(6)]
    pub busy_permille: u16,
}

/// What the whole stream is: its length in bytes, its BLAKE3 digest, and what the tree is that it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BroadcastProof {
    /// In bytes.
    #[n(0)]
    pub bytes: u64,
    /// BLAKE3.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub digest: [u8; 32],
    /// What every copy of the tree must be; none if that is not known.
    #[n(2)]
    pub tree: Option<TreeProof>,
}
