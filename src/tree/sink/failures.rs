//! Entries that could not be made. They are counted, reported, and remembered, so that nothing is linked to them.

use std::collections::HashSet;
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

/// Maximum number of failed entries that are remembered, so that no hard link is made to an older entry in their place.
const FAILED_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Failures {
    fatal: Option<IoFact>,
    pub(super) first: First,
    /// Entries that lack only some metadata. They count as failures, too.
    pub(super) lacking: AllLacking,
    pub(super) count: u64,
    /// Hashes of the paths of entries that were not published. The hash has a key of this process, so that the sender
    /// cannot find two paths that collide.
    failed: HashSet<u64>,
    hasher: RandomState,
}

/// Meaning of EBUSY where no lock was asked for.
const IS_MOUNTED: &str =
    "it is a mount point (--in-place can write to a mounted file), or another copy is writing to it";

impl Shared {
    pub(super) fn check(&self) -> Result<(), Refused> {
        if !self.is_stopped.load(Acquire) {
            return Ok(());
        }
        let fatal = self.failures().fatal.clone();
        Err(fatal.map_or(Refused::Data("the copy of the tree was aborted"), Refused::Io))
    }

    pub(super) fn failures(&self) -> std::sync::MutexGuard<'_, Failures> {
        self.failures.lock().expect("no panics under it")
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
        let mut failures = self.failures();
        // Also marks the entry's directory, as a path that ends with a slash.
        let directory = &path[..path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)];
        for path in [path, directory] {
            if failures.failed.len() < FAILED_MAX {
                let hash = failures.hasher.hash_one(path);
                failures.failed.insert(hash);
            }
        }
    }

    /// Whether an entry in this directory has failed, or so many have failed that it is not known.
    pub(super) fn has_failed_in(&self, directory: &[u8]) -> bool {
        let path = [directory, if directory.ends_with(b"/") { b"" } else { b"/" }].concat();
        let failures = self.failures();
        failures.failed.len() == FAILED_MAX || failures.failed.contains(&failures.hasher.hash_one(&path[..]))
    }

    /// Whether this entry, or a directory on the way to it, has failed, or so many have failed that it is not known.
    pub(super) fn has_failed(&self, path: &[u8]) -> bool {
        let failures = self.failures();
        failures.failed.len() == FAILED_MAX
            || !failures.failed.is_empty()
                && (1..=path.len())
                    .filter(|&end| path.get(end).is_none_or(|&byte| byte == b'/'))
                    .any(|end| failures.failed.contains(&failures.hasher.hash_one(&path[..end])))
    }

    pub(super) fn report(&self, path: &[u8], fault: impl Into<Fault>) {
        let fault = fault.into();
        let is_fatal = fault.errno().is_some_and(stops_everything);
        let fact = fault.into_fact(OsStr::from_bytes(path));
        let mut failures = self.failures();
        if is_fatal {
            failures.fatal.get_or_insert(fact);
            self.is_stopped.store(true, Release);
            return;
        }
        failures.count += 1;
        failures.first.keep(fact);
    }
}
