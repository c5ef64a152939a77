//! Progress of a copy of files: counted by the threads that copy, read by a thread that shows it.
//!
//! The copying threads add to counters and never wait. Reporting the name of an entry costs them a look at a flag. The
//! name is built only after it was asked for, a few times a second.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use minicbor::{Decode, Encode};

/// Number of entries, and the size of the data in their files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Amount {
    /// Number of files, directories, links and other entries.
    #[n(0)]
    pub entries: u64,
    /// Number of these entries that are directories.
    #[n(1)]
    pub directories: u64,
    /// Size of the data in bytes.
    #[n(2)]
    pub bytes: u64,
}

impl Amount {
    /// Returns the number of entries that are not directories.
    pub fn files(&self) -> u64 {
        self.entries.saturating_sub(self.directories)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            entries: self.entries.saturating_add(other.entries),
            directories: self.directories.saturating_add(other.directories),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns the larger of both, for each count separately.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            entries: self.entries.max(other.entries),
            directories: self.directories.max(other.directories),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// An [`Amount`] that several threads add to.
#[derive(Debug, Default)]
struct Counters {
    entries: AtomicU64,
    directories: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    fn add(&self, amount: Amount) {
        for (counter, part) in
            [(&self.entries, amount.entries), (&self.directories, amount.directories), (&self.bytes, amount.bytes)]
        {
            if part > 0 {
                counter.fetch_add(part, Relaxed);
            }
        }
    }

    fn get(&self) -> Amount {
        Amount {
            entries: self.entries.load(Relaxed),
            directories: self.directories.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

/// How far a copy has got.
#[derive(Debug, Default)]
pub struct Progress {
    done: Counters,
    kept_bytes: AtomicU64,
    work: AtomicU64,
    walked: Counters,
    has_walked_all: AtomicBool,
    counted: Counters,
    has_counted_all: AtomicBool,
    /// Whether something exists at the destination already, so that less is sent than there is.
    has_same: AtomicBool,
    has_settled_all: AtomicBool,
    wants_name: AtomicBool,
    name: Mutex<Vec<u8>>,
}

impl Progress {
    /// Records that an entry is complete at the destination.
    pub fn made(&self, is_directory: bool) {
        self.done.add(Amount { entries: 1, directories: is_directory.into(), bytes: 0 });
    }

    /// Records that data has been written.
    pub fn wrote(&self, bytes: u64) {
        self.done.bytes.fetch_add(bytes, Relaxed);
    }

    /// Sets how much data in all was not sent because it existed at the destination.
    pub fn set_kept(&self, bytes: u64) {
        self.kept_bytes.store(bytes, Relaxed);
    }

    /// Records work at the destination that is neither data nor an entry that is complete: entries deleted or looked at,
    /// bytes copied there from other files. What counts is that the sum grows for as long as it goes on.
    pub fn note_work(&self, amount: u64) {
        self.work.fetch_add(amount, Relaxed);
    }

    /// Records entries met by the copy's own walk. `is_all`: whether there are no more.
    pub fn walked(&self, amount: Amount, is_all: bool) {
        self.walked.add(amount);
        if is_all {
            self.has_walked_all.store(true, Relaxed);
        }
    }

    /// Records that the receiver already has an entry.
    pub fn note_same(&self) {
        self.has_same.store(true, Relaxed);
    }

    /// Records that it is known for all entries whether they are to be sent.
    pub fn settled_all(&self) {
        self.has_settled_all.store(true, Relaxed);
    }

    /// Records entries met by the thread that counts ahead of the copy. `is_all`: whether there are no more.
    pub fn counted(&self, amount: Amount, is_all: bool) {
        self.counted.add(amount);
        if is_all {
            self.has_counted_all.store(true, Relaxed);
        }
    }

    /// Records that an entry is being copied. Its path is built only if it was asked for.
    pub fn at(&self, path: impl FnOnce() -> Vec<u8>) {
        if self.wants_name.load(Relaxed) && self.wants_name.swap(false, Relaxed) {
            *crate::locked(&self.name) = path();
        }
    }

    /// Returns what is complete at the destination.
    pub fn so_far(&self) -> Amount {
        self.done.get()
    }

    /// Returns how much data was not sent because it existed at the destination.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Relaxed)
    }

    /// Returns how much work was recorded with [`Self::note_work`].
    pub fn work(&self) -> u64 {
        self.work.load(Relaxed)
    }

    /// Returns what there is to copy, as far as known, and whether these are all entries. If something exists at the
    /// destination already, the bytes are those known to be sent.
    pub fn total(&self) -> (Amount, bool) {
        // Read before the counters, which only grow.
        let (has_walked_all, has_counted_all) = (self.has_walked_all.load(Relaxed), self.has_counted_all.load(Relaxed));
        let (walked, counted) = (self.walked.get(), self.counted.get());
        let entries = if has_walked_all { walked } else { walked.max(counted) };
        let is_sent_known = self.has_settled_all.load(Relaxed) || self.has_same.load(Relaxed);
        let bytes = if is_sent_known { walked.bytes } else { walked.max(counted).bytes };
        (Amount { bytes, ..entries }, has_walked_all || has_counted_all)
    }

    /// Whether more may turn out to be sent than [`Self::total`] says.
    pub fn may_send_more(&self) -> bool {
        !self.has_settled_all.load(Relaxed) && (self.has_same.load(Relaxed) || !self.has_counted_all.load(Relaxed))
    }

    /// Returns an entry that a thread was copying after the last call, and asks for the next one.
    pub fn name(&self) -> Vec<u8> {
        let name = std::mem::take(&mut *crate::locked(&self.name));
        self.wants_name.store(true, Relaxed);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(entries: u64, directories: u64, bytes: u64) -> Amount {
        Amount { entries, directories, bytes }
    }

    #[test]
    fn the_total_grows_until_a_walk_has_met_all() {
        let progress = Progress::default();
        assert_eq!(progress.total(), (amount(0, 0, 0), false));
        progress.walked(amount(3, 1, 10), false);
        progress.counted(amount(2, 2, 20), false);
        assert_eq!(progress.total(), (amount(3, 2, 20), false));
        progress.counted(amount(5, 0, 30), true);
        assert_eq!(progress.total(), (amount(7, 2, 50), true));
        // What the copy's own walk has met is what is copied.
        progress.walked(amount(3, 0, 10), true);
        progress.settled_all();
        assert_eq!(progress.total(), (amount(6, 1, 20), true));
    }

    /// If a tree is compared, little of it may be sent. How much is unknown before the last verdict.
    #[test]
    fn what_is_there_already_is_not_to_be_sent() {
        let progress = Progress::default();
        progress.counted(amount(100, 2, 5000), true);
        progress.walked(amount(10, 1, 0), false);
        assert_eq!((progress.total(), progress.may_send_more()), ((amount(100, 2, 5000), true), false), "a first copy");
        progress.note_same();
        assert_eq!((progress.total(), progress.may_send_more()), ((amount(100, 2, 0), true), true));
        progress.walked(amount(90, 1, 0), true);
        assert!(progress.may_send_more(), "verdicts are missing");
        progress.walked(amount(0, 0, 70), true);
        progress.settled_all();
        assert_eq!((progress.total(), progress.may_send_more()), ((amount(100, 2, 70), true), false));
    }

    #[test]
    fn a_name_is_made_once_for_each_time_that_it_is_asked_for() {
        let progress = Progress::default();
        progress.at(|| unreachable!("nobody has asked"));
        assert_eq!(progress.name(), b"");
        progress.at(|| b"a".to_vec());
        progress.at(|| unreachable!("it has been told"));
        assert_eq!(progress.name(), b"a");
        progress.at(|| b"b".to_vec());
        assert_eq!(progress.name(), b"b");
    }

    #[test]
    fn files_are_what_is_no_directory() {
        progress_adds_up();
        assert_eq!(amount(5, 2, 0).files(), 3);
        assert_eq!(amount(1, u64::MAX, 0).files(), 0, "as another host tells it");
    }

    fn progress_adds_up() {
        let progress = Progress::default();
        progress.made(true);
        progress.made(false);
        progress.wrote(7);
        progress.made(false);
        progress.wrote(3);
        assert_eq!(progress.so_far(), amount(3, 1, 10));
    }
}
