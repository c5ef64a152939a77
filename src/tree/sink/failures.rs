//! Entries that could not be made. They are counted, reported, and remembered, so that nothing is linked to them.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Acquire, Release};

use rd_proto::control::IoFact;
use rustix::io::Errno;

use super::Refused;
use super::shared::Shared;
use super::unset::AllLacking;
use crate::tree::first::First;
use crate::tree::{Fault, stops_everything};

/// Size in bits of the filter that remembers failed entries, so that no hard link is made to an older entry in their
/// place: 8 MiB. Once a million have failed, one other entry in 80 000 is taken for failed; in the next copy, that is
/// another one.
const MARKS_BITS: u64 = 1 << 26;

#[derive(Debug, Default)]
pub(super) struct Failures {
    fatal: Option<IoFact>,
    pub(super) first: First,
    /// Entries that lack only some metadata. They count as failures, too.
    pub(super) lacking: AllLacking,
    pub(super) count: u64,
    /// A Bloom filter with the paths of entries that were not published; empty as long as there are none. The hash has a
    /// key of this process, so that the sender cannot find two paths that collide.
    marks: Vec<u64>,
    hasher: RandomState,
}

impl Failures {
    fn mark(&mut self, path: &[u8]) {
        if self.marks.is_empty() {
            self.marks = vec![0; (MARKS_BITS / 64) as usize];
        }
        self.bits_of(path).into_iter().for_each(|bit| self.marks[bit / 64] |= 1 << (bit % 64));
    }

    fn is_marked(&self, path: &[u8]) -> bool {
        !self.marks.is_empty()
            && self.bits_of(path).into_iter().all(|bit| self.marks[bit / 64] & (1 << (bit % 64)) != 0)
    }

    fn bits_of(&self, path: &[u8]) -> [usize; 4] {
        let hash = self.hasher.hash_one(path);
        [0, 1, 2, 3].map(|nth| (hash.wrapping_add(((hash >> 32) | 1).wrapping_mul(nth)) % MARKS_BITS) as usize)
    }

    /// Whether this entry, or a directory on the way to it, has failed.
    fn has_failed(&self, path: &[u8]) -> bool {
        let is_end = |&end: &usize| path.get(end).is_none_or(|&byte| byte == b'/');
        !self.marks.is_empty() && (1..=path.len()).filter(is_end).any(|end| self.is_marked(&path[..end]))
    }
}

/// Meaning of EBUSY where no lock was asked for.
const IS_MOUNTED: &str =
    "it is a mount point (--in-place can write to a mounted file), or another copy is writing to it";

impl Shared {
    pub(super) fn check(&self) -> Result<(), Refused> {
        if !self.is_stopped.load(Acquire) {
            return Ok(());
        }
        let fatal = crate::locked(&self.failures).fatal.clone();
        Err(fatal.map_or(Refused::Data("the copy of the tree was aborted"), Refused::Io))
    }

    /// Records that an entry was not published.
    pub(super) fn fail(&self, path: &[u8], fault: impl Into<Fault>) {
        let fault = match fault.into() {
            Fault::System(Errno::BUSY) => Fault::Explained(Errno::BUSY, IS_MOUNTED),
            fault => fault,
        };
        self.mark_failed(path);
        self.report(path, fault);
    }

    pub(super) fn mark_failed(&self, path: &[u8]) {
        let mut failures = crate::locked(&self.failures);
        // Also marks the entry's directory, as a path that ends with a slash.
        let directory = &path[..path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)];
        for path in [path, directory] {
            failures.mark(path);
        }
    }

    /// Whether an entry in this directory has failed, or is taken for one that has.
    pub(super) fn has_failed_in(&self, directory: &[u8]) -> bool {
        let path = [directory, if directory.ends_with(b"/") { b"" } else { b"/" }].concat();
        crate::locked(&self.failures).is_marked(&path)
    }

    /// Whether this entry, or a directory on the way to it, has failed, or is taken for one that has.
    pub(super) fn has_failed(&self, path: &[u8]) -> bool {
        crate::locked(&self.failures).has_failed(path)
    }

    /// Records a failure to read an entry that exists here. Whatever the error is, others need not meet it. But a tree
    /// that must have a certain proof cannot be proven without it, and the sender must not look like a forger. A further
    /// name of a file (`is_link`) is not needed for the proof.
    pub(super) fn report_unread(&self, path: &[u8], fault: Fault, is_link: bool) {
        self.note_failure(path, fault, !is_link && self.is_bound());
    }

    pub(super) fn report(&self, path: &[u8], fault: impl Into<Fault>) {
        let fault = fault.into();
        let is_fatal = fault.errno().is_some_and(stops_everything);
        self.note_failure(path, fault, is_fatal);
    }

    fn note_failure(&self, path: &[u8], fault: Fault, is_fatal: bool) {
        // An entry that was given up because everything was is not why.
        if fault.errno() == Some(Errno::CANCELED) && self.is_stopped.load(Acquire) {
            return;
        }
        let fact = fault.into_fact(OsStr::from_bytes(path));
        let mut failures = crate::locked(&self.failures);
        if is_fatal {
            failures.fatal.get_or_insert(fact);
            self.is_stopped.store(true, Release);
            return;
        }
        failures.count += 1;
        failures.first.keep(fact);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_fail_no_others_are_taken_for_failed() {
        let mut failures = Failures::default();
        assert!(!failures.has_failed(b"top/file"));
        let path = |number: u32| format!("top/failed{number}").into_bytes();
        (0..200_000).for_each(|number| failures.mark(&path(number)));
        for number in 0..200_000 {
            let inside = [&path(number)[..], b"/inside"].concat();
            assert!(failures.has_failed(&path(number)) && failures.has_failed(&inside), "{number}");
        }
        assert!(
            !failures.has_failed(b"top/other") && !failures.has_failed(b"top/faile") && !failures.is_marked(b"top/")
        );
        let wrong = (0..200_000).filter(|number| failures.has_failed(format!("top/other{number}").as_bytes())).count();
        assert!(wrong < 5, "{wrong}");
    }
}
