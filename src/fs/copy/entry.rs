//! One entry that is not a directory: what it is, whether it is a further name of a file copied already, and those kinds
//! of entries that have no content.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid, chownat, fstat, linkat, mknodat, openat, readlinkat,
    statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::links::{Claim, Original};
use super::place;
use super::tree::{Directory, DirectoryRef};
use super::work::Worker;
use super::{Note, Problem, Side};
use crate::fs::copy::metadata::{self, Metadata, Present};
use crate::fs::metadata::Object;
use crate::fs::{Identity, identity, leads_to};

/// An entry of a directory that is being copied.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its name in the source's directory; of an item, its path.
    pub(super) source: CString,
    /// Its name in the destination, if that is another.
    pub(super) name: Option<CString>,
    /// What it was when its directory was listed; it may be something else by now.
    pub(super) kind: FileType,
}

impl Entry {
    pub(super) fn new(source: CString) -> Self {
        Self { source, name: None, kind: FileType::Unknown }
    }

    /// Its name in the destination.
    pub(super) fn name(&self) -> &CStr {
        self.name.as_deref().unwrap_or(&self.source)
    }
}

/// Says on which side an error happened.
pub(super) trait At<T> {
    fn source(self) -> Result<T, (Side, Problem)>;
    fn destination(self) -> Result<T, (Side, Problem)>;
}

impl<T> At<T> for Result<T, Errno> {
    fn source(self) -> Result<T, (Side, Problem)> {
        self.map_err(at_source)
    }

    fn destination(self) -> Result<T, (Side, Problem)> {
        self.map_err(at_destination)
    }
}

pub(super) fn at_source(errno: Errno) -> (Side, Problem) {
    (Side::Source, Problem::Os(errno))
}

pub(super) fn at_destination(errno: Errno) -> (Side, Problem) {
    (Side::Destination, Problem::Os(errno))
}

impl<'e> Worker<'e, '_> {
    /// Copies one entry that is not a directory, and says so if that fails.
    pub(super) fn copy_entry(&mut self, directory: &DirectoryRef<'e>, entry: Entry) {
        if let Err(failed) = self.try_copy_entry(directory, &entry) {
            self.engine.fail(directory, &entry, failed);
        }
    }

    fn try_copy_entry(&mut self, directory: &DirectoryRef<'e>, entry: &Entry) -> Result<(), (Side, Problem)> {
        if entry.kind == FileType::RegularFile {
            // Not blocking, in case it has become a FIFO.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match openat(&directory.source, &*entry.source, flags, Mode::empty()) {
                Ok(file) => {
                    let stat = fstat(&file).source()?;
                    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                        return self.copy_once(directory, entry, &stat, |worker, id| {
                            worker.copy_file(directory, entry, file, &stat, id)
                        });
                    }
                }
                Err(Errno::LOOP | Errno::NXIO) => {}
                Err(errno) => return Err(at_source(errno)),
            }
        }
        let stat = statat(&directory.source, &*entry.source, AtFlags::SYMLINK_NOFOLLOW).source()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let preserve = &self.engine.options.preserve;
        match kind {
            // It has taken the place of what was listed.
            FileType::RegularFile | FileType::Directory | FileType::Unknown => Err((Side::Source, Problem::Changed)),
            FileType::Symlink if !preserve.symlinks => self.leave_out(directory, entry),
            FileType::Symlink => self.copy_once(directory, entry, &stat, |worker, id| {
                worker.copy_symlink(directory, entry, &stat)?;
                worker.finished(directory, entry, kind, id);
                Ok(())
            }),
            _ if !preserve.specials => self.leave_out(directory, entry),
            _ => self.copy_once(directory, entry, &stat, |worker, id| {
                worker.copy_special(directory, entry, &stat, kind)?;
                worker.finished(directory, entry, kind, id);
                Ok(())
            }),
        }
    }

    fn leave_out(&self, directory: &Directory<'e>, entry: &Entry) -> Result<(), (Side, Problem)> {
        self.engine.note(directory, entry, Note::LeftOut);
        Ok(())
    }

    /// Makes a hard link if another name of the file has been copied, waits for it if it is being copied, and copies
    /// otherwise. `copy` gets what it has to hand to [`Worker::finished`].
    fn copy_once(
        &mut self,
        directory: &DirectoryRef<'e>,
        entry: &Entry,
        stat: &Stat,
        copy: impl FnOnce(&mut Self, Option<Identity>) -> Result<(), (Side, Problem)>,
    ) -> Result<(), (Side, Problem)> {
        if stat.st_nlink < 2 || !self.engine.options.preserve.hard_links {
            return copy(self, None);
        }
        let id = identity(stat);
        #[allow(clippy::unnecessary_cast)] // its type differs between architectures
        let names = stat.st_nlink as u64;
        match self.crew.links.claim(id, names, directory, entry) {
            Claim::Copy => {}
            Claim::Waits => return Ok(()),
            Claim::Link(original) => match self.link(directory, entry, stat, &original) {
                Ok(()) => return Ok(()),
                // One file cannot have so many names there, or not in these places: a copy of its own.
                Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::NOENT) => return copy(self, None),
                Err(errno) => return Err(at_destination(errno)),
            },
        }
        copy(self, Some(id)).inspect_err(|_| self.settle(id, None))
    }

    /// An entry has been copied. `id` is what [`Worker::copy_once`] gave.
    pub(super) fn finished(
        &mut self,
        directory: &DirectoryRef<'e>,
        entry: &Entry,
        kind: FileType,
        id: Option<Identity>,
    ) {
        let totals = &self.engine.totals;
        let counter = if kind == FileType::RegularFile { &totals.files } else { &totals.others };
        counter.fetch_add(1, Ordering::Relaxed);
        self.engine.events.copied(kind, &directory.node.paths(entry));
        if let Some(id) = id {
            let name = entry.name().to_owned();
            self.settle(id, Some(Original { node: Arc::clone(&directory.node), name }));
        }
    }

    /// A file with several names has been copied, or could not be: its other names, as far as they have been met, are
    /// linked to the copy or copied in their turn.
    pub(super) fn settle(&mut self, id: Identity, original: Option<Original>) {
        for (directory, entry) in self.crew.links.settle(id, original) {
            if !self.engine.is_stopped() {
                self.copy_entry(&directory, entry);
            }
        }
    }

    fn link(&self, directory: &DirectoryRef<'e>, entry: &Entry, stat: &Stat, original: &Original) -> Result<(), Errno> {
        let elsewhere;
        let from = if Arc::ptr_eq(&original.node, &directory.node) {
            &directory.destination
        } else {
            elsewhere = original.node.open()?;
            &elsewhere
        };
        let destination = &directory.destination;
        place::replace(destination.as_fd(), entry.name(), |name| {
            linkat(from, &*original.name, destination, name, AtFlags::empty())
        })?;
        self.engine.totals.hard_links.fetch_add(1, Ordering::Relaxed);
        self.engine.events.copied(FileType::from_raw_mode(stat.st_mode), &directory.node.paths(entry));
        Ok(())
    }

    /// Looks at what is in the destination already. A directory is never replaced by something else, nor is the source.
    pub(super) fn look(
        &self,
        directory: &Directory<'e>,
        entry: &Entry,
        source: &Stat,
    ) -> Result<Option<Stat>, (Side, Problem)> {
        if directory.is_unseen {
            return Ok(None);
        }
        match statat(&directory.destination, entry.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(old) if FileType::from_raw_mode(old.st_mode) == FileType::Directory => Err(at_destination(Errno::ISDIR)),
            Ok(old) if identity(&old) == identity(source) => Err((Side::Source, Problem::SameFile)),
            Ok(old) => Ok(Some(old)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(at_destination(errno)),
        }
    }

    fn copy_symlink(&self, directory: &Directory<'e>, entry: &Entry, stat: &Stat) -> Result<(), (Side, Problem)> {
        let old = self.look(directory, entry, stat)?;
        let target = readlinkat(&directory.source, &*entry.source, Vec::new()).source()?;
        let destination = directory.destination.as_fd();
        if old.is_some_and(|old| leads_to(destination, &*target, &old)) {
            return Err((Side::Source, Problem::SameFile));
        }
        place::replace(destination, entry.name(), |name| symlinkat(&*target, destination, name)).destination()?;
        self.dress(directory, entry, stat, FileType::Symlink)
    }

    fn copy_special(
        &self,
        directory: &Directory<'e>,
        entry: &Entry,
        stat: &Stat,
        kind: FileType,
    ) -> Result<(), (Side, Problem)> {
        self.look(directory, entry, stat)?;
        let destination = directory.destination.as_fd();
        let mode = Mode::RUSR | Mode::WUSR;
        place::replace(destination, entry.name(), |name| mknodat(destination, name, kind, mode, stat.st_rdev))
            .destination()?;
        self.dress(directory, entry, stat, kind)
    }

    /// Puts metadata on what has no content.
    fn dress(
        &self,
        directory: &Directory<'e>,
        entry: &Entry,
        stat: &Stat,
        kind: FileType,
    ) -> Result<(), (Side, Problem)> {
        let engine = self.engine;
        let preserve = &engine.options.preserve;
        let metadata = Metadata::from(stat);
        let opened = |parent: &OwnedFd, name: &CStr| Object::open_path(parent.as_fd(), name);
        let mut attributes = Vec::new();
        if preserve.xattrs || preserve.acls {
            let source = opened(&directory.source, &entry.source).source()?;
            attributes = metadata::read_attributes(Object::Path(source.as_fd()), preserve).source()?;
        }
        if kind == FileType::Symlink && attributes.is_empty() && directory.is_unseen {
            // What nearly every symbolic link needs, without opening it: nobody can have swapped it here.
            let (name, flags) = (entry.name(), AtFlags::SYMLINK_NOFOLLOW);
            let owner = (stat.st_uid, stat.st_gid);
            if preserve.owner && !(directory.is_ours && owner == engine.us) {
                let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
                if let Err(errno) = chownat(&directory.destination, name, Some(uid), Some(gid), flags)
                    && metadata::is_owner_lost(errno)
                {
                    engine.note(directory, entry, Note::Lost(metadata::OWNER, errno));
                }
            }
            if preserve.times {
                let times = Timestamps { last_access: metadata.accessed, last_modification: metadata.modified };
                utimensat(&directory.destination, name, &times, flags).destination()?;
            }
            return Ok(());
        }
        let made = opened(&directory.destination, entry.name()).destination()?;
        // It may have been swapped since it was made.
        let now = fstat(&made).destination()?;
        if FileType::from_raw_mode(now.st_mode) != kind {
            return Err(at_destination(Errno::STALE));
        }
        let mut mode = metadata.mode;
        if kind != FileType::Symlink && !preserve.acls {
            let source = opened(&directory.source, &entry.source).source()?;
            mode = metadata::source_mode(Object::Path(source.as_fd()), mode, preserve);
        }
        let mode = if preserve.mode { mode } else { mode & directory.permitted };
        let gets_acl = kind != FileType::Symlink && directory.gives_acls;
        let present = Present { owner: Some((now.st_uid, now.st_gid)), mode: None, gets_acl, was_there: false };
        let lost =
            metadata::apply(Object::Path(made.as_fd()), kind, &metadata, Some(mode), &attributes, preserve, present)
                .destination()?;
        for lost in lost {
            engine.note(directory, entry, Note::Lost(&lost.what, lost.errno));
        }
        Ok(())
    }
}
