//! State that the threads of a sink share.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use rd_proto::control::IoFact;
use rd_proto::tree::RESUME_BYTES_MIN;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::backup::Backup;
use super::delete::Deferred;
use super::directory::OpenDirectory;
use super::failures::Failures;
use super::judge::AllWanted;
use super::rehearse::AllPlanned;
use super::{Names, SendAnswer, manifest, moves};
use crate::fs::direct::write::Writes;
use crate::fs::metadata::restore_times;
use crate::fs::partial::{self, Blocked};
use crate::options::TreeOptions;
use crate::tree::Fault;
use crate::tree::ahead::Ahead;
use crate::tree::digest_cache::DigestCache;
use crate::tree::entries::EntryStream;
use crate::tree::metadata::Setter;
use crate::tree::owners::Owners;
use crate::tree::patterns::Patterns;
use crate::tree::progress::Progress;
use crate::tree::stats::Stats;
use crate::tree::walk::COMPARED_BYTES_MIN;

/// State that the threads of a sink share.
pub(super) struct Shared {
    pub(super) options: TreeOptions,
    pub(super) names: Names,
    pub(super) block_bytes: u64,
    /// Number of blocks of all large files that are compared.
    pub(super) open_blocks: Arc<AtomicU64>,
    pub(super) progress: Arc<Progress>,
    pub(super) entries: Option<Arc<EntryStream>>,
    pub(super) is_local: bool,
    pub(super) awaits_proof: bool,
    pub(super) answer: SendAnswer,
    pub(super) setter: Setter,
    pub(super) owners: Owners,
    /// Permission bits that new entries do not get if modes are not kept.
    pub(super) umask: u32,
    /// Whether nothing more is to be made, after a failure that stops everything or because the sink was told to stop.
    pub(super) is_stopped: Arc<AtomicBool>,
    /// Whether the sender has kept to the protocol, so that its data may be resumed.
    pub(super) is_trusted: AtomicBool,
    pub(super) can_link_nameless: AtomicBool,
    /// Reads existing files ahead, if they are compared and not in memory.
    pub(super) ahead: Ahead,
    pub(super) cache: Option<Arc<DigestCache>>,
    pub(super) writes: Writes,
    pub(super) counts: Counts,
    pub(super) stats: Mutex<Stats>,
    pub(super) moves: Mutex<Vec<Arc<moves::Moves>>>,
    /// Entries that are not deleted.
    pub(super) patterns: Patterns,
    pub(super) backup: Option<Backup>,
    /// Entries to be deleted at the end, with `--delete-after`.
    pub(super) deferred: Mutex<Deferred>,
    pub(super) wanted: Mutex<AllWanted>,
    pub(super) manifest: OnceLock<manifest::Manifest>,
    pub(super) failures: Mutex<Failures>,
    /// In a dry run, entries that would change.
    pub(super) planned: Mutex<AllPlanned>,
    /// Earlier generations that cannot be used.
    pub(super) without: Mutex<Vec<IoFact>>,
    /// Paths of entries that stay without a final name.
    pub(super) kept: Mutex<Vec<Vec<u8>>>,
    /// Paths of files that were being written in place as the transfer was given up.
    pub(super) incomplete: Mutex<Vec<Vec<u8>>>,
    /// Until when to wait for names that another transfer holds.
    pub(super) held_until: Instant,
    pub(super) pending: Mutex<usize>,
    pub(super) drained: Condvar,
}

/// Restores the times of a directory in which entries were made or deleted after it had got its times. The times of
/// another user's directory cannot be set, so they stay as they are.
pub(super) fn restore_directory_times(directory: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    match restore_times(directory, stat) {
        Err(Errno::PERM) => Ok(()),
        restored => restored,
    }
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) files: AtomicU64,
    pub(super) others: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Number of entries that existed already.
    pub(super) same: AtomicU64,
    /// Number of files that were found under other names.
    pub(super) moved: AtomicU64,
    /// Number of entries deleted, and of entries that `--max-delete` has kept.
    pub(super) deleted: AtomicU64,
    pub(super) spared: AtomicU64,
    pub(super) without_xattrs: AtomicU64,
    /// Bytes that the next transfer need not send, because they stay, or will stay if this transfer is given up.
    pub(super) resumable_bytes: AtomicU64,
    /// Whether a tree that an earlier transfer left is resumed.
    pub(super) is_resumed: AtomicBool,
}

impl Shared {
    /// Name that the single entry at the top gets instead of its own.
    pub(super) fn root_name(&self) -> Option<&[u8]> {
        match &self.names {
            Names::Only(name) => Some(name),
            _ => None,
        }
    }

    /// Whether there is a single entry at the top, and it is not the destination itself.
    pub(super) fn has_named_root(&self) -> bool {
        self.root_name().is_some_and(|name| name != b".")
    }

    /// Leaves the name of a single root, which may differ between hosts, out of a path below the top.
    pub(super) fn without_root<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match path.iter().position(|&byte| byte == b'/') {
            _ if !self.has_named_root() => path,
            Some(slash) => &path[slash + 1..],
            None => b"",
        }
    }

    pub(super) fn remark(&self, without: IoFact) {
        crate::locked(&self.without).push(without);
    }

    pub(super) fn keep(&self, path: Vec<u8>) {
        crate::locked(&self.kept).push(path);
    }

    /// Counts an entry, not a directory, that now stands where it should.
    pub(super) fn made(&self, count: &AtomicU64) {
        count.fetch_add(1, Relaxed);
        self.progress.made(false);
    }

    pub(super) fn wait_drained(&self) {
        let pending = crate::locked(&self.pending);
        drop(self.drained.wait_while(pending, |pending| *pending > 0).expect("no panics under it"));
    }
}

impl OpenDirectory {
    /// Records that a file in a directory without a name is whole. It counts as resumable if the next copy looks at it
    /// before it is sent. After a copy that awaits proof, the next copy is to use `--sync`.
    pub(super) fn note_whole(&self, size: u64) {
        let shared = &self.shared;
        let is_synced = shared.options.sync || shared.awaits_proof;
        let is_compared = || size >= RESUME_BYTES_MIN || shared.options.may_compare() && size >= COMPARED_BYTES_MIN;
        if self.is_unseen && (is_synced || !shared.is_local && is_compared()) {
            shared.counts.resumable_bytes.fetch_add(size, Relaxed);
        }
    }

    /// Whether the entry of this name is the cache of digests.
    pub(super) fn is_cache(&self, name: &[u8]) -> bool {
        self.shared.cache.as_ref().is_some_and(|cache| cache.is_at(name, || self.stat(name)))
    }

    /// Tries again as long as another transfer holds the partial name `beside`.
    pub(super) fn patiently<T>(&self, beside: &str, attempt: impl Fn() -> Result<T, Blocked>) -> Result<T, Fault> {
        let is_stopped = || self.shared.is_stopped.load(Acquire);
        let opened = partial::patiently(self.shared.held_until, is_stopped, attempt);
        opened.map_err(|Blocked { error, is_in_the_way, why }| match is_in_the_way {
            true => Fault::At(error, self.path(beside.as_bytes()), why),
            false if error == Errno::BUSY => Fault::Explained(error, partial::HELD),
            false => error.into(),
        })
    }

    /// Counts and lists a further name of a file that has been made, or stays as it is.
    pub(super) fn note_link(&self, is_same: Result<bool, Fault>, name: &[u8]) {
        let shared = &self.shared;
        match is_same {
            Ok(is_same) => {
                self.list_link(name);
                shared.made(if is_same { &shared.counts.same } else { &shared.counts.others });
            }
            Err(fault) => shared.fail(&self.path(name), fault),
        }
    }
}
