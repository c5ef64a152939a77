//! What a copy of a tree comes to, counted as `rsync --stats` counts it.

use minicbor::{Decode, Encode};
use rustix::fs::FileType;

use super::entries::{Effect, FileKind};
use super::progress::Amount;

/// Entries by what they are.
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
    /// In the order in which rsync prints them.
    pub fn to_array(self) -> [u64; 5] {
        [self.regular, self.directories, self.symlinks, self.devices, self.specials]
    }

    /// All of them. Counts are any numbers, where a peer has told them.
    pub fn total(self) -> u64 {
        self.to_array().into_iter().fold(0, u64::saturating_add)
    }

    /// Counts one more.
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

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut sums = self.to_array();
        sums.iter_mut().zip(other.to_array()).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        let [regular, directories, symlinks, devices, specials] = sums;
        Self { regular, directories, symlinks, devices, specials }
    }
}

/// What an end knows of a copy; the other end's part is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Stats {
    /// Entries at the source, each name of a file for itself. Known to the sender.
    #[n(0)]
    pub found: Kinds,
    /// Entries that were not at the destination, or were of another kind. Known, as all that follows, to the receiver, where
    /// it is asked for.
    #[n(2)]
    pub created: Kinds,
    /// Entries deleted.
    #[n(3)]
    pub deleted: Kinds,
    /// Files whose contents were sent, whole or in part.
    #[n(4)]
    pub transferred: u64,
    /// The size of those, in bytes.
    #[n(5)]
    pub transferred_bytes: u64,
    /// Data of them that was sent, in bytes.
    #[n(6)]
    pub literal_bytes: u64,
    /// Bytes of what the receiver has answered. Known to it in any case.
    #[n(7)]
    pub answered_bytes: u64,
}

impl Stats {
    /// Both together: of two ends, or of one session after the other.
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

    /// Counts an entry of the destination. `is_new`: nothing of its kind was there.
    pub fn note(&mut self, effect: Effect, kind: FileKind, is_new: bool) {
        match effect {
            Effect::Deleted => self.deleted.add(kind),
            Effect::Transferred | Effect::Made | Effect::Linked if is_new => self.created.add(kind),
            _ => {}
        }
    }

    /// Counts a file whose contents have come.
    pub fn note_transferred(&mut self, size: u64, literal_bytes: u64) {
        self.transferred += 1;
        self.transferred_bytes = self.transferred_bytes.saturating_add(size);
        self.literal_bytes = self.literal_bytes.saturating_add(literal_bytes);
    }
}

/// What became of a tree, as one end knows it. An agent tells it so, as any numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TreeFigures {
    /// What stands at the destination, as far as this end knows; its data, as it was read or written.
    #[n(0)]
    pub amount: Amount,
    /// Data that was not sent, since an earlier copy had left it at the destination.
    #[n(1)]
    pub kept_bytes: u64,
    /// Entries that were there already, and the same: `--sync`.
    #[n(2)]
    pub same: u64,
    /// Entries deleted: `--delete`.
    #[n(3)]
    pub deleted: u64,
    /// Files that were there under other names: `--find-moves`.
    #[n(4)]
    pub moved: u64,
    /// Total size of all regular files and symbolic links that the sender met, including those of which nothing was
    /// sent. The size of a symbolic link is the length of its target.
    #[n(5)]
    pub size_bytes: u64,
    /// Entries that this end could not read or write.
    #[n(6)]
    pub failed: u64,
    /// Entries that the other end has failed with, as it has told this one.
    #[n(7)]
    pub failed_there: u64,
    /// What `--stats` tells.
    #[n(8)]
    pub stats: Stats,
    /// All that was published is on stable storage.
    #[n(9)]
    pub is_synced: bool,
    /// And has been read back from there.
    #[n(10)]
    pub is_read_back: bool,
    /// The tree is whole, and another one than was expected.
    #[n(11)]
    pub is_other: bool,
}

impl TreeFigures {
    /// What both ends know together. Only the receiver knows what it has made of the tree, only the sender what it did not send.
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

    /// Those of one session after the other.
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
        }
    }
}

/// What a kind of file is called.
pub fn kind(of: FileType) -> FileKind {
    match of {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice | FileType::CharacterDevice => FileKind::Device,
        FileType::Fifo | FileType::Socket => FileKind::Special,
        _ => FileKind::Regular,
    }
}
