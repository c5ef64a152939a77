//! Statistics of a copy of a tree, counted in the same way as by `rsync --stats`.

use minicbor::{Decode, Encode};
use rustix::fs::FileType;

use super::entries::{Effect, FileKind};
use super::progress::Amount;

/// Number of entries of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Kinds {
    /// Regular files.
    #[n(0)]
    pub regular: u64,
    /// Directories.
    #[n(1)]
    pub directories: u64,
    /// Symbolic links.
    #[n(2)]
    pub symlinks: u64,
    /// Block and character devices.
    #[n(3)]
    pub devices: u64,
    /// FIFOs and sockets.
    #[n(4)]
    pub specials: u64,
}

impl Kinds {
    /// Returns the counts in the order in which rsync prints them.
    pub fn to_array(self) -> [u64; 5] {
        [self.regular, self.directories, self.symlinks, self.devices, self.specials]
    }

    /// Returns the sum of all counts. Counts that a peer has sent may have any value.
    pub fn total(self) -> u64 {
        self.to_array().into_iter().fold(0, u64::saturating_add)
    }

    /// Counts one more entry.
    pub fn add(&mut self, kind: FileKind) {
        let count = match kind {
            FileKind::Regular => &mut self.regular,
            FileKind::Directory => &mut self.directories,
            FileKind::Symlink => &mut self.symlinks,
            FileKind::Device => &mut self.devices,
            FileKind::Special => &mut self.specials,
        };
        *count = count.saturating_add(1);
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut sums = self.to_array();
        sums.iter_mut().zip(other.to_array()).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        let [regular, directories, symlinks, devices, specials] = sums;
        Self { regular, directories, symlinks, devices, specials }
    }
}

/// What an end knows about a copy. What only the other end knows is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Stats {
    /// Entries at the source, with each name of a file counted separately. Known to the sender.
    #[n(0)]
    pub found: Kinds,
    /// Entries that did not exist at the destination, or were of another kind. Like everything that follows, this is
    /// known to the receiver, if it is asked for.
    #[n(2)]
    pub created: Kinds,
    /// Deleted entries.
    #[n(3)]
    pub deleted: Kinds,
    /// Number of files whose contents were sent, in whole or in part.
    #[n(4)]
    pub transferred: u64,
    /// Size of these files in bytes.
    #[n(5)]
    pub transferred_bytes: u64,
    /// Data of these files that was sent, in bytes.
    #[n(6)]
    pub literal_bytes: u64,
    /// Size of the receiver's answers in bytes. Always known to the receiver.
    #[n(7)]
    pub answered_bytes: u64,
}

impl Stats {
    /// Returns the sum of both, which are of two ends or of two sessions one after the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            found: self.found.plus(other.found),
            created: self.created.plus(other.created),
            deleted: self.deleted.plus(other.deleted),
            transferred: self.transferred.saturating_add(other.transferred),
            transferred_bytes: self.transferred_bytes.saturating_add(other.transferred_bytes),
            literal_bytes: self.literal_bytes.saturating_add(other.literal_bytes),
            answered_bytes: self.answered_bytes.saturating_add(other.answered_bytes),
        }
    }

    /// Counts an entry of the destination. `is_new`: whether no entry of its kind existed there.
    pub fn note(&mut self, effect: Effect, kind: FileKind, is_new: bool) {
        match effect {
            Effect::Deleted => self.deleted.add(kind),
            Effect::Transferred | Effect::Made | Effect::Linked if is_new => self.created.add(kind),
            _ => {}
        }
    }

    /// Counts a file whose contents have been received.
    pub fn note_transferred(&mut self, size: u64, literal_bytes: u64) {
        self.transferred += 1;
        self.transferred_bytes = self.transferred_bytes.saturating_add(size);
        self.literal_bytes = self.literal_bytes.saturating_add(literal_bytes);
    }
}

/// What became of a tree, as one end knows it. An agent sends this, so the numbers may have any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TreeFigures {
    /// What is complete at the destination, as far as this end knows. Its data are counted as read or written.
    #[n(0)]
    pub amount: Amount,
    /// Data that was not sent because an earlier copy had left it at the destination.
    #[n(1)]
    pub kept_bytes: u64,
    /// Number of entries that existed already and were the same. Without `--sync`, these are files with the same
    /// contents.
    #[n(2)]
    pub same: u64,
    /// Number of deleted entries: `--delete`.
    #[n(3)]
    pub deleted: u64,
    /// Number of files that existed under other names: `--find-moves`.
    #[n(4)]
    pub moved: u64,
    /// Total size of all regular files and symbolic links that the sender met, including those of which nothing was
    /// sent. The size of a symbolic link is the length of its target. As with rsync, a file counts once for each name.
    #[n(5)]
    pub size_bytes: u64,
    /// Number of entries that this end could not read or write.
    #[n(6)]
    pub failed: u64,
    /// Number of entries with which the other end has failed, as reported to this end.
    #[n(7)]
    pub failed_there: u64,
    /// Statistics for `--stats`.
    #[n(8)]
    pub stats: Stats,
    /// Whether everything that was published is on stable storage.
    #[n(9)]
    pub is_synced: bool,
    /// Whether it has also been read back from there.
    #[n(10)]
    pub is_read_back: bool,
    /// Whether the tree is complete but not the expected one.
    #[n(11)]
    pub is_other: bool,
    /// Whether the receiving host does not keep all of the metadata that the source has sent.
    #[n(12)]
    pub has_less_metadata: bool,
}

impl TreeFigures {
    /// Returns what both ends know together. Only the receiver knows what it has made of the tree, and only the sender
    /// knows what was not sent.
    #[must_use]
    pub fn joined(self, receiver: Self) -> Self {
        Self {
            kept_bytes: self.kept_bytes,
            size_bytes: self.size_bytes,
            failed: self.failed.saturating_add(receiver.failed),
            failed_there: 0,
            stats: self.stats.plus(receiver.stats),
            ..receiver
        }
    }

    /// Returns the sum of two sessions that ran one after the other.
    #[must_use]
    pub fn plus(self, later: Self) -> Self {
        Self {
            amount: self.amount.plus(later.amount),
            kept_bytes: self.kept_bytes.saturating_add(later.kept_bytes),
            same: self.same.saturating_add(later.same),
            deleted: self.deleted.saturating_add(later.deleted),
            moved: self.moved.saturating_add(later.moved),
            is_synced: self.is_synced && later.is_synced,
            is_read_back: self.is_read_back && later.is_read_back,
            size_bytes: self.size_bytes.saturating_add(later.size_bytes),
            failed: self.failed.saturating_add(later.failed),
            failed_there: self.failed_there.saturating_add(later.failed_there),
            stats: self.stats.plus(later.stats),
            is_other: self.is_other || later.is_other,
            has_less_metadata: self.has_less_metadata || later.has_less_metadata,
        }
    }
}

/// Returns the kind of a file of this type.
pub fn kind(of: FileType) -> FileKind {
    match of {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice | FileType::CharacterDevice => FileKind::Device,
        FileType::Fifo | FileType::Socket => FileKind::Special,
        _ => FileKind::Regular,
    }
}
