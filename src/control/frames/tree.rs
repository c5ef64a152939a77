//! Messages about files and trees: which sources were found, where they are placed, and how far a copy has come.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rd_proto::tree::{NAME_BYTES_MAX, PATH_BYTES_MAX};

use super::{Endpoint, MESSAGE_BYTES_MAX};
use crate::tree::Root;
use crate::tree::progress::Amount;
use crate::tree::sink::KeptState;

/// Maximum number of sources in one [`super::Message::Found`]. With the longest paths they still fit in a message.
pub const FOUND_MAX: usize = 32;
const _: () = assert!(FOUND_MAX * (PATH_BYTES_MAX + NAME_BYTES_MAX + 64) < MESSAGE_BYTES_MAX);

/// Maximum size of all patterns of --exclude and --include in a message, in bytes:
/// half a message, so that paths fit too.
pub const RULES_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// Bytes that each pattern takes in a message in addition to its own.
pub const RULE_OVERHEAD_BYTES: usize = 8;

/// Type of a file-system entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Kind {
    /// A regular file.
    #[n(0)]
    File,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symbolic link to be copied as a link.
    #[n(2)]
    Symlink,
    /// Anything else.
    #[n(3)]
    Other,
    /// A block device.
    #[n(4)]
    Block,
}

/// A source.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Found {
    /// Path of the source on its host.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Name of the source at the destination; empty if its contents are to be copied (`dir/.`).
    #[cbor(n(1), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// Type of the source.
    #[n(2)]
    pub kind: Kind,
    /// Size of the source in bytes.
    #[n(3)]
    pub size_bytes: u64,
    /// Device number of the source.
    #[n(4)]
    pub device: u64,
    /// Inode number of the source.
    #[n(5)]
    pub inode: u64,
}

/// Maximum size of the sources and names that a host takes before a BEGIN, as [`Sources::bytes`] counts them. A list
/// has 64 MiB at most, but a path counts more than its own bytes, because it takes more memory.
pub const SOURCES_BYTES_MAX: usize = 128 << 20;

/// Sources of a session, and their names at the destination. A sending end needs no names, a receiving end no sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sources {
    /// The files and trees to send or copy.
    #[n(0)]
    pub roots: Vec<Root>,
    /// The names, as in [`super::Job::ReceiveTree`].
    #[n(1)]
    pub names: Vec<ByteVec>,
}

impl Sources {
    /// Returns how many bytes of a message they take at most.
    pub fn bytes(&self) -> usize {
        self.roots.iter().map(root_bytes).chain(self.names.iter().map(path_bytes)).sum()
    }

    /// Splits them into parts of at most `bytes_max` bytes, unless a single path is longer.
    pub fn parts(self, bytes_max: usize) -> impl Iterator<Item = Self> {
        let roots = self.roots.into_iter().flat_map(|root| {
            let Some(only) = &root.only else { return vec![root] };
            let lists = only.batches(bytes_max / 2).into_iter();
            lists.map(|only| Root { path: root.path.clone(), name: root.name.clone(), only: Some(only) }).collect()
        });
        let (roots, names) = (split(roots, bytes_max, root_bytes), split(self.names, bytes_max, path_bytes));
        let roots = roots.into_iter().map(|roots| Self { roots, names: Vec::new() });
        roots.chain(names.into_iter().map(|names| Self { roots: Vec::new(), names }))
    }

    /// Adds the next part. Parts of a list become one list.
    pub fn add(&mut self, part: Self) {
        for mut root in part.roots {
            if let Some(last) = self.roots.last_mut()
                && (&last.path, &last.name) == (&root.path, &root.name)
                && let (Some(list), Some(more)) = (&mut last.only, &mut root.only)
            {
                list.paths.append(&mut more.paths);
            } else {
                self.roots.push(root);
            }
        }
        self.names.extend(part.names);
    }
}

fn root_bytes(root: &Root) -> usize {
    let listed: usize = root.only.iter().flat_map(|only| &only.paths).map(path_bytes).sum();
    root.path.len() + root.name.len() + 64 + listed
}

fn path_bytes(path: &ByteVec) -> usize {
    path.len() + 8
}

/// Splits items into parts of at most `bytes_max` bytes, or of a single item.
fn split<T>(items: impl IntoIterator<Item = T>, bytes_max: usize, bytes_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut parts, mut bytes) = (Vec::<Vec<T>>::new(), 0);
    for item in items {
        bytes += bytes_of(&item);
        match parts.last_mut() {
            Some(part) if bytes <= bytes_max => part.push(item),
            _ => {
                bytes = bytes_of(&item);
                parts.push(vec![item]);
            }
        }
    }
    parts
}

/// Asks where at the destination copies would be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Place {
    /// DST as the user gave it.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Whether DST must be a directory: `-t`, or several sources.
    #[n(1)]
    pub directory: bool,
    /// Whether DST is the name of the copy itself, never a directory to copy into: `-T`.
    #[n(2)]
    pub exact: bool,
    /// The sources to be copied.
    #[n(3)]
    pub sources: Vec<Found>,
    /// Whether source and destination are on the same kernel, so that device and inode numbers can be compared.
    #[n(4)]
    pub same_kernel: bool,
    /// Whether DST is a generation (`--snapshot`) in a directory of generations, which is created if missing.
    #[n(5)]
    pub is_generation: bool,
    /// Whether all missing directories above DST are created: `--mkpath`.
    #[n(6)]
    pub makes_path: bool,
    /// Paths of the only source that are copied with everything below them, if it is on the same kernel (`-R`,
    /// `--files-from`). DST may be inside the source, but not inside any of these paths.
    #[n(7)]
    pub listed: Vec<ByteVec>,
    /// Whether mount points are not crossed (`-x`). Then DST may be inside a source if it is on another file system.
    #[cbor(n(8), default)]
    pub one_file_system: bool,
}

/// Answer to [`Place`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Placed {
    /// The directory in which copies will be placed.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub directory: Vec<u8>,
    /// Name of the only source in that directory; if `None`, each source keeps its own name.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub as_name: Option<Vec<u8>>,
    /// Whether DST is an existing device or FIFO, which is written to instead of being replaced.
    #[n(2)]
    pub is_special: bool,
    /// Whether DST is a block device.
    #[n(3)]
    pub is_block: bool,
    /// Whether the copy of one of the source directories already exists and is not empty.
    #[n(4)]
    pub is_there: bool,
    /// Identity of the directory in which copies will be placed, by whatever name it was found.
    #[n(5)]
    pub spot: Option<Spot>,
    /// Addresses of the host; their ports mean nothing.
    #[n(6)]
    pub addresses: Vec<Endpoint>,
    /// Whether an interrupted copy has left entries of a source directory under its partial name.
    #[n(7)]
    pub has_left: bool,
    /// Whether DST is missing, so that the only source becomes DST instead of being copied into it.
    #[n(8)]
    pub is_missing: bool,
}

/// Identity of a directory on one machine, whatever name it was found by. The directory need not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Spot {
    /// Device number of the directory, or of its nearest existing ancestor.
    #[n(0)]
    pub device: u64,
    /// Inode number of the same directory.
    #[n(1)]
    pub inode: u64,
    /// The path from there to the directory; empty if the directory exists.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub rest: Vec<u8>,
}

/// Maximum size of a name in [`TreeProgress`], in bytes.
pub const PROGRESS_NAME_BYTES_MAX: usize = 256;

/// Progress of one end of a tree's session, or of a copy within one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TreeProgress {
    /// What is complete at the destination, as far as this end writes it.
    #[n(0)]
    pub done: Amount,
    /// Data that was not sent because an earlier copy had left it at the destination.
    #[n(1)]
    pub kept_bytes: u64,
    /// What there is to copy, as far as this end has seen it. If part of the tree already exists, the data are only
    /// those known to be sent.
    #[n(2)]
    pub found: Amount,
    /// Whether this end has seen everything that there is to copy.
    #[n(3)]
    pub has_found_all: bool,
    /// End of the path of an entry being copied; empty if there is none.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// Whether more than `found` may still have to be sent, even though all entries have been seen.
    #[n(5)]
    pub may_send_more: bool,
    /// Work at the destination that is neither data nor an entry that is complete: names removed, entries looked at,
    /// bytes copied there from other files. It grows for as long as such work goes on.
    #[n(6)]
    pub work: u64,
}

/// Maximum number of bytes of a manifest in one [`super::Message::Manifest`].
pub const MANIFEST_PIECE_BYTES: usize = 64 << 10;
/// Maximum number of unanswered [`super::Message::Manifest`].
pub const MANIFEST_WINDOW: u32 = 4;

/// Maximum size of a path in [`Kept`], in bytes.
pub const KEPT_PATH_BYTES_MAX: usize = 4096;

/// What remains of a cancelled copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Kept {
    /// The first of the remaining paths.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Number of further paths.
    #[n(1)]
    pub others: u64,
    /// Bytes of data that need not be sent again.
    #[n(2)]
    pub bytes: u64,
    /// In which state it is.
    #[n(3)]
    pub state: KeptState,
}
