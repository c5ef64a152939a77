//! Files and trees: what was found, where it comes to lie, and how it is copied.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rd_proto::tree::{NAME_BYTES_MAX, PATH_BYTES_MAX};

use super::{Endpoint, MESSAGE_BYTES_MAX};
use crate::tree::progress::Amount;

/// Sources in one [`super::Message::Found`]: with the longest paths they fit a message.
pub const FOUND_MAX: usize = 32;
const _: () = assert!(FOUND_MAX * (PATH_BYTES_MAX + NAME_BYTES_MAX + 64) < MESSAGE_BYTES_MAX);

/// Bytes that the patterns of --exclude and --include may take in a message: half of it, so that paths fit beside them.
pub const RULES_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// Bytes in a message for each pattern, beside its own.
pub const RULE_OVERHEAD_BYTES: usize = 8;

/// What a name in a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Kind {
    /// A regular file.
    #[n(0)]
    File,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symbolic link that is to be copied as such.
    #[n(2)]
    Symlink,
    /// Anything else.
    #[n(3)]
    Other,
    /// A block device.
    #[n(4)]
    Block,
}

/// One source.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Found {
    /// Where it is on its host.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Its name at the destination; empty where its contents are meant (`dir/.`).
    #[cbor(n(1), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// What it is.
    #[n(2)]
    pub kind: Kind,
    /// Its size in bytes.
    #[n(3)]
    pub size_bytes: u64,
    /// Its device number.
    #[n(4)]
    pub device: u64,
    /// Its inode number.
    #[n(5)]
    pub inode: u64,
}

/// Asks where at the destination things will come to lie.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Place {
    /// DST as it was given.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// DST must be a directory: `-t`, or several sources.
    #[n(1)]
    pub directory: bool,
    /// DST is the name itself, never a directory to copy into: `-T`.
    #[n(2)]
    pub exact: bool,
    /// What will be copied.
    #[n(3)]
    pub sources: Vec<Found>,
    /// Source and destination are on one kernel, so that device and inode numbers can be compared.
    #[n(4)]
    pub same_kernel: bool,
    /// It is a generation (`--snapshot`) in a directory of them, which is made where that is missing.
    #[n(5)]
    pub is_generation: bool,
    /// All directories above DST are made where they are missing: `--mkpath`.
    #[n(6)]
    pub makes_path: bool,
    /// What is copied of the only source with everything in it, on the same kernel (`-R`, `--files-from`): DST may be in that
    /// source, but in none of these.
    #[n(7)]
    pub listed: Vec<ByteVec>,
}

/// The answer to [`Place`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Placed {
    /// The directory in which things will come to lie.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub directory: Vec<u8>,
    /// The name of the only source there; without it each source keeps its own.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub as_name: Option<Vec<u8>>,
    /// It is a device or a FIFO that is there, to be written as it is.
    #[n(2)]
    pub is_special: bool,
    /// It is a block device.
    #[n(3)]
    pub is_block: bool,
    /// One of the directories that are copied is there, with something in it.
    #[n(4)]
    pub is_there: bool,
    /// Which directory that is, whatever it is called.
    #[n(5)]
    pub spot: Option<Spot>,
    /// The host's addresses; the ports say nothing.
    #[n(6)]
    pub addresses: Vec<Endpoint>,
    /// Of one that is not there a copy that was cut has left something under its partial name.
    #[n(7)]
    pub has_left: bool,
    /// DST is missing, and the only source becomes it instead of coming into it.
    #[n(8)]
    pub is_missing: bool,
}

/// A directory of one machine, by whatever name it was found. It need not be there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Spot {
    /// The device of the directory, or of the nearest one above it that is there.
    #[n(0)]
    pub device: u64,
    /// Its inode.
    #[n(1)]
    pub inode: u64,
    /// The way from there, where it is not there.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub rest: Vec<u8>,
}

/// The most bytes of a name in [`TreeProgress`].
pub const PROGRESS_NAME_BYTES_MAX: usize = 256;

/// How far an end of a tree's session, or a copy on one host, has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TreeProgress {
    /// What stands at the destination, as far as this end makes it.
    #[n(0)]
    pub done: Amount,
    /// Data that was not sent, since an earlier copy had left it at the destination.
    #[n(1)]
    pub kept_bytes: u64,
    /// What there is to copy, as far as this end has seen it; its data, of a tree of which something is there already, is what is
    /// known to be sent.
    #[n(2)]
    pub found: Amount,
    /// It has seen all of it.
    #[n(3)]
    pub has_found_all: bool,
    /// The end of the path of an entry that it is at; empty where it has none.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// More than `found` may turn out to be sent, although all entries have been seen.
    #[n(5)]
    pub may_send_more: bool,
}

/// Bytes of a manifest in one [`super::Message::Manifest`].
pub const MANIFEST_PIECE_BYTES: usize = 64 << 10;
/// Such messages that may be on their way.
pub const MANIFEST_WINDOW: u32 = 4;

/// The most bytes of a path in [`Kept`].
pub const KEPT_PATH_BYTES_MAX: usize = 4096;

/// What is left of a copy that was given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Kept {
    /// The first of the paths.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// How many more there are.
    #[n(1)]
    pub others: u64,
    /// Data that need not be sent again.
    #[n(2)]
    pub bytes: u64,
}
