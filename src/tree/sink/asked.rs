//! Decides which records a sender may send, and which of their entries are made.

use std::sync::Arc;

use rd_proto::tree::{Extension, Metadata, Record};

use super::directory::OpenDirectory;
use super::jobs::{Batch, Job};
use super::{Bytes, Names, Refused, Shared, TreeSink};
use crate::fs::{IS_TEMPORARY, is_temporary_name};
use crate::tree::digest_cache::IS_CACHE;
use crate::tree::metadata::inode;
use crate::tree::{Fault, IS_UNKNOWN, depth_of_link, leads_out};

/// Detail of the failure of an entry that would be copied onto itself.
const IS_ITSELF: &str = "is the source itself under another path; nothing is removed, and it is not overwritten";

/// Detail of the failure of an entry that an honest sender would have left out.
pub(super) const IS_LEFT_OUT: &str = "was sent although a pattern excludes it; it is not written";

/// Whether the existing entry is the source entry itself, which would be removed or overwritten. Within one host, a link
/// or a mount may lead to the source. Between two hosts, one file server may stand behind both, and only the inode number
/// and its time of change can tell. Files of cloned machines have these in common, so between hosts an entry is refused
/// only if the source would be removed.
fn is_itself(directory: &OpenDirectory, name: &[u8], described: Metadata<'_>) -> bool {
    let shared = &directory.shared;
    let is_asked = shared.is_local || shared.options.remove_source_files;
    let is_it = |named| directory.stat(name).is_ok_and(|there| inode(&there, &shared.options) == named);
    is_asked && described.extensions.iter().any(|named| matches!(named, Extension::Inode { .. }) && is_it(named))
}

impl TreeSink {
    /// Checks whether the sender sends only what was asked for.
    pub(super) fn check_asked(&mut self, record: &Record<'_>) -> Result<(), Refused> {
        if !self.shared.options.recursive
            && matches!(record, Record::Directory { .. } | Record::Symlink { .. } | Record::Special { .. })
        {
            return Err(Refused::Data("an entry that is not a file, though only files were requested"));
        }
        let (1, Some(name)) = (self.levels.len(), record.name()) else { return Ok(()) };
        match &self.shared.names {
            Names::Among(names) if !names.contains(name) => {
                Err(Refused::Data("a top-level entry that was not requested"))
            }
            Names::Only(_) if self.root.replace(name.to_vec()).is_some() => {
                Err(Refused::Data("a second top-level entry, though only one was announced"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the threads make this entry from its record alone.
    pub(super) fn is_for_threads(&self, entry: &Record<'_>) -> bool {
        match entry {
            Record::File { .. } | Record::Listed { .. } => true,
            Record::Symlink { target, .. } => self.shared.options.symlinks && !self.leads_out(target),
            Record::Special { .. } => self.shared.options.specials,
            _ => false,
        }
    }

    /// Whether `--safe-links` excludes a symbolic link with this target here.
    pub(super) fn leads_out(&self, target: &[u8]) -> bool {
        let shared = &self.shared;
        let is_renamed = || shared.root_name().is_some_and(|name| self.root.as_deref() != Some(name));
        let depth = || depth_of_link(&shared.options, self.levels.len(), is_renamed());
        shared.options.safe_links && leads_out(target, depth())
    }

    /// Whether the patterns exclude an entry that the sender has sent under this name. It has applied them to the same
    /// path, except to what leads to listed paths.
    fn is_left_out(&self, directory: &OpenDirectory, name: &[u8], is_directory: bool) -> bool {
        let Shared { options, patterns, is_local, .. } = &*self.shared;
        if patterns.is_empty() || *is_local || options.listed.is_some() {
            return false;
        }
        let excludes = |path: &[u8]| patterns.leave_out(path, is_directory);
        if directory.is_top() {
            return options.sync && !options.contents && excludes(name);
        }
        let path = directory.path_below_top(name);
        let (root, below) = match &self.root {
            // A single root may have another name here.
            Some(root) => (&root[..], self.shared.without_root(&path)),
            None => path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(0)),
        };
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let with_root = || excludes(&[root, b"/", below].concat());
        match options.contents {
            true => excludes(below),
            false if options.sync || self.root.is_some() => with_root(),
            // The sender knows which of several roots ends in a slash, and so is no part of the path.
            false => excludes(below) && with_root(),
        }
    }

    /// Whether the entry may be made. A temporary name is refused, because it would be in the way of unfinished copies.
    /// An unknown critical extension also forbids making the entry, and so does a pattern that the sender has ignored.
    pub(super) fn may_be_made(&self, directory: &OpenDirectory, entry: &Record<'_>) -> bool {
        let Some(sent_name) = entry.name() else { return true };
        let (name, is_directory) = (directory.final_name(sent_name), matches!(entry, Record::Directory { .. }));
        let is_unknown = |metadata: Metadata<'_>| metadata.extensions.unknown_critical().is_some();
        let reason = match is_temporary_name(name) {
            true => IS_TEMPORARY,
            false if entry.metadata().is_some_and(is_unknown) => IS_UNKNOWN,
            false if entry.metadata().is_some_and(|described| is_itself(directory, name, described)) => IS_ITSELF,
            false if self.is_left_out(directory, sent_name, is_directory) => IS_LEFT_OUT,
            false if directory.is_cache(name) => IS_CACHE,
            false => return true,
        };
        self.shared.fail(&directory.path(name), Fault::Detail(reason));
        false
    }

    /// Whether the destination can tell the entry's name from the names that have arrived in its directory. `batch`
    /// holds the latest of those entries.
    pub(super) fn admits(
        &self,
        directory: &OpenDirectory,
        entry: &Record<'_>,
        chunk: &Bytes,
        batch: &mut Batch,
    ) -> bool {
        let is_made = matches!(entry, Record::Directory { .. } | Record::Large { .. } | Record::HardLink { .. })
            || self.is_for_threads(entry);
        let Some(name) = entry.name().filter(|_| is_made).map(|name| directory.final_name(name)) else { return true };
        let settle = || {
            self.hand_on(Job::Make(Arc::clone(chunk), std::mem::take(batch)));
            self.shared.wait_drained();
        };
        let admitted = directory.admit(name, settle);
        admitted.map_err(|fault| self.shared.fail(&directory.path(name), fault)).is_ok()
    }
}
