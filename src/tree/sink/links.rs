//! Further names of what has come.

use std::os::fd::AsFd;
use std::sync::Arc;

use rd_proto::tree::OPEN_LINKS_MAX;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::directory::{OpenDirectory, find};
use super::{Names, Refused, TreeSink, entry};
use crate::options::TreeOptions;
use crate::tree::{FIRST_NAME_FAILED, Fault};

impl TreeSink {
    /// Makes a further name of what came under the path `first`, or has it made when that is whole.
    pub(super) fn link(&mut self, directory: &Arc<OpenDirectory>, name: &[u8], first: &[u8]) -> Result<(), Refused> {
        let Some(top) = self.levels.first().cloned().flatten() else { return Ok(()) };
        let mut first = first.to_vec();
        let end = end_of_root(&first);
        let was_asked_for = match &self.shared.names {
            Names::Any => true,
            Names::Only(_) => self.root.as_deref() == Some(&first[..end]),
            Names::Among(names) => names.contains(&first[..end]),
        };
        if !was_asked_for {
            return Err(Refused::Data("a hard link to a file of another tree"));
        }
        match self.shared.root_name() {
            Some(b".") => drop(first.drain(..(end + 1).min(first.len()))),
            Some(other) => drop(first.splice(..end, other.iter().copied())),
            None => {}
        }
        let path = top.path(&first);
        let waiting: usize = self.slots.values().map(|slot| slot.links).sum();
        let linked = if let Some(slot) = self.slots.values_mut().find(|slot| slot.path == path)
            && let Some(large) = &slot.large
        {
            if waiting < OPEN_LINKS_MAX {
                slot.links += 1;
                large.link_later(Arc::clone(directory), name);
                return Ok(());
            }
            Err(Errno::MLINK.into())
        } else {
            self.shared.wait_drained();
            if self.shared.has_failed(&path) {
                Err(Fault::Detail(FIRST_NAME_FAILED))
            } else {
                let TreeOptions { recursive, symlinks, specials, safe_links, .. } = self.shared.options;
                let wanted = |kind| match kind {
                    FileType::RegularFile => true,
                    // Each is judged by where it is.
                    FileType::Symlink => symlinks && recursive && !safe_links,
                    _ => specials && recursive,
                };
                let found = find(&top, &first, wanted);
                let is_left_out = self.shared.options.existing && matches!(found, Err(Errno::NOENT));
                if is_left_out {
                    self.skipped += 1;
                    return Ok(());
                }
                let linked = found.map_err(Fault::from);
                let is_renamed = self.shared.root_name().is_some_and(|root| root != b".");
                let told =
                    if is_renamed { first[(end_of_root(&first) + 1).min(first.len())..].to_vec() } else { first };
                linked.and_then(|found| entry::link_again(&self.shared, found.as_fd(), directory, name, told))
            }
        };
        self.shared.note_link(linked, directory, name);
        Ok(())
    }
}

/// The length of a path's first name.
fn end_of_root(path: &[u8]) -> usize {
    path.iter().position(|&byte| byte == b'/').unwrap_or(path.len())
}
