//! Directories that a walk enters, and their names. Directories of one name are merged.

use std::os::fd::OwnedFd;

use rd_proto::tree::{Extension, NAME_BYTES_MAX};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::place::{Entered, Entry, Layer, Level, Place};
use super::selected::Scope;
use super::{REPLACED, Recorder, Seen, follow};
use crate::fs::{identity, partial};
use crate::tree::Fault;
use crate::tree::names::Names;

impl Recorder {
    /// Opens a directory, and returns whether it is open as a place only (O_PATH). That is so for a directory that may
    /// be entered but not read, if only listed entries of it are copied.
    pub(super) fn open_directory(
        &mut self,
        place: &Place,
        entry: &Entry<'_>,
        seen: Seen,
    ) -> Result<(OwnedFd, Stat, bool), Fault> {
        let was = seen.as_ref().map(|(_, stat)| identity(stat));
        match self.open(entry, FileType::Directory, seen, OFlags::DIRECTORY) {
            Err(Fault::System(Errno::ACCESS)) if self.only_leads(place, entry) => {
                let flags = OFlags::DIRECTORY | OFlags::PATH;
                let (directory, stat) = self.open(entry, FileType::Directory, None, flags)?;
                let is_same = was.is_none_or(|was| was == identity(&stat));
                if is_same { Ok((directory, stat, true)) } else { Err(REPLACED) }
            }
            opened => opened.map(|(directory, stat)| (directory, stat, false)),
        }
    }

    /// Whether only listed entries of a directory are copied.
    fn only_leads(&self, place: &Place, entry: &Entry<'_>) -> bool {
        let is_itself = |name: &[u8]| !entry.is_through() && self.lists(place, name, FileType::Directory).1;
        matches!(place.scope_of(entry.name, is_itself), Scope::Listed(..))
    }

    /// Returns an opened directory together with the directories that are merged with it.
    pub(super) fn enter(&mut self, place: &Place, entry: &Entry<'_>, directory: OwnedFd) -> Entered {
        let mut entered = Entered {
            layers: vec![Layer::new(directory, place.root_of(entry))],
            is_through: false,
            lacks_layer: false,
        };
        for other in place.others(entry) {
            let opened = self.open(&other, FileType::Directory, None, OFlags::DIRECTORY);
            let opened = opened.and_then(|(directory, stat)| {
                let is_loop = follow::is_loop(place, &other, &stat);
                if is_loop { Err(follow::IS_LOOP) } else { Ok(Layer::new(directory, place.root_of(&other))) }
            });
            match opened {
                Ok(layer) => entered.layers.push(layer),
                Err(fault) => {
                    entered.lacks_layer = true;
                    self.fail(fault.into_fact(&place.source_path(&other)));
                }
            }
        }
        entered
    }

    /// Returns what the receiver has to know of a directory that the user has named as a source, because nothing is to
    /// be deleted for a source whose disk is not mounted.
    pub(super) fn as_source(&mut self, place: &Place, entry: &Entry<'_>) -> Option<Extension<'static>> {
        if !self.options.delete && self.options.generations.snapshot.is_none() {
            return None;
        }
        if place.levels.len() > 1 {
            let (selected, level) = place.selected.as_ref().zip(place.levels.last())?;
            let is_listed = !selected.is_watched && selected.are_listed(&level.scope, entry.name).1;
            return is_listed.then_some(Extension::Source { lacks_one: false });
        }
        let others: Vec<_> = place.others(entry).collect();
        // Opened anew, because the walk reads its own descriptor from the beginning.
        let mut is_empty = |source: &Entry<'_>| {
            let opened = self.open(source, FileType::Directory, None, OFlags::DIRECTORY);
            opened.is_ok_and(|(directory, _)| partial::has_any(directory, |_| true) == Ok(false))
        };
        let lacks_one = !others.is_empty() && (is_empty(entry) || others.iter().any(is_empty));
        lacks_one.then_some(Extension::Source { lacks_one })
    }

    /// Reads the names in the directory entered last, which has been recorded.
    pub(super) fn list(&mut self, place: &Place, layers: Vec<Layer>) -> Level {
        let mut names = Names::default();
        let mut failures = Vec::new();
        for layer in &layers {
            let listed = partial::for_each_of_kind(&layer.directory, |name, kind| {
                if name.count_bytes() <= NAME_BYTES_MAX {
                    return names.push(kind, name);
                }
                failures.push((layer.root, name.to_bytes().to_vec(), Fault::System(Errno::NAMETOOLONG)));
                Ok(())
            });
            failures.extend(listed.err().map(|fault| (layer.root, Vec::new(), fault)));
        }
        let root = layers.first().map_or(0, |layer| layer.root);
        if let Err(fault) = names.sort() {
            failures.push((root, Vec::new(), fault));
        }
        let is_incomplete = !failures.is_empty();
        for (root, name, fault) in failures {
            let path = place.entered_path(root, &name);
            self.fail(fault.into_fact(&path));
        }
        Level { layers, names, is_incomplete, ..Level::default() }
    }
}
