//! Directories: listing them, making their copies, and finishing those when all that is in them is done.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, fchmod, fstat, fsync, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::entry::{At, Entry, at_destination, at_source};
use super::place;
use super::work::{BATCH_ENTRIES, Engine, Job, Worker};
use super::{Failure, Item, Note, Paths, Problem, Side, working_directory};
use crate::fs::copy::metadata::{self, Attribute, Metadata, Present};
use crate::fs::metadata::{Object, has_default_acl, open_up, permitted, permitted_directory, remove_acls};
use crate::fs::{Identity, identity, is_temporary_name};

/// Directories that lie in each other.
const DEPTH_MAX: u32 = 4096;

/// The names that lead to a directory. It outlives the directory's descriptors where hard links may point there.
#[derive(Debug)]
pub(super) struct Node {
    parent: Option<Arc<Node>>,
    /// What leads there from the parent in the source, and in the destination.
    entry: Entry,
    depth: u32,
    /// Its name until it is published.
    temporary: Option<CString>,
    is_published: AtomicBool,
    /// Of the topmost: the destination's directory.
    base: Option<OwnedFd>,
}

impl Node {
    fn chain(&self) -> Vec<&Self> {
        let mut chain: Vec<&Self> = std::iter::successors(Some(self), |node| node.parent.as_deref()).collect();
        chain.reverse();
        chain
    }

    fn joined<'n>(&'n self, last: &'n Entry, name: impl Fn(&'n Entry) -> &'n CStr) -> PathBuf {
        let mut path = PathBuf::new();
        for entry in self.chain().into_iter().map(|node| &node.entry).chain([last]) {
            let name = name(entry).to_bytes();
            // What is merged into a directory is in that directory.
            if !name.is_empty() && (name != b"." || path.as_os_str().is_empty()) {
                path.push(OsStr::from_bytes(name));
            }
        }
        path
    }

    pub(super) fn source_of(&self, entry: &Entry) -> PathBuf {
        self.joined(entry, |entry| &entry.source)
    }

    pub(super) fn destination_of(&self, entry: &Entry) -> PathBuf {
        self.joined(entry, Entry::name)
    }

    /// The path below the item's own name: what patterns are held against.
    fn below_item(&self, entry: &Entry) -> PathBuf {
        let names = self.chain().into_iter().skip(2).map(|node| &node.entry).chain([entry]);
        names.map(|entry| OsStr::from_bytes(entry.source.to_bytes())).collect()
    }

    pub(super) fn paths<'n>(&'n self, entry: &'n Entry) -> EntryPaths<'n> {
        EntryPaths { node: self, entry }
    }

    /// Opens the directory in the destination, whether it has been published already or not.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        let chain = self.chain();
        let base = chain[0].base.as_ref().ok_or(Errno::NOENT)?;
        let mut here = base.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        for node in &chain[1..] {
            let mut name = node.entry.name();
            if let Some(temporary) = &node.temporary
                && !node.is_published.load(Ordering::Acquire)
            {
                name = temporary;
            }
            here = match place::open_directory(&here, name) {
                // It is being published at this moment.
                Err(Errno::NOENT) if name != node.entry.name() => place::open_directory(&here, node.entry.name())?,
                other => other?,
            };
        }
        Ok(here)
    }
}

/// The paths of an entry, for who asks.
pub(super) struct EntryPaths<'n> {
    node: &'n Node,
    entry: &'n Entry,
}

impl Paths for EntryPaths<'_> {
    fn source(&self) -> PathBuf {
        self.node.source_of(self.entry)
    }

    fn destination(&self) -> PathBuf {
        self.node.destination_of(self.entry)
    }
}

/// A directory that is being copied.
pub(super) struct Directory<'e> {
    engine: &'e Engine<'e>,
    pub(super) node: Arc<Node>,
    pub(super) source: OwnedFd,
    pub(super) destination: OwnedFd,
    /// Nobody else sees it: it, or one that it lies in, has no final name yet.
    pub(super) is_unseen: bool,
    /// The mode of one that was there and that we could not have written into.
    was_closed: Option<u32>,
    /// New files in it belong to us, and to our group.
    pub(super) is_ours: bool,
    /// New files in it inherit an ACL, and with it another mode than they were made with. Where ACLs are kept it has to go.
    pub(super) gives_acls: bool,
    /// Permissions that new files in it can get where modes are not kept.
    pub(super) permitted: u32,
    /// Device and inode of the topmost directory of this item's copy: it must not be met in the source.
    top: Option<Identity>,
    /// What is to be put on it in the end; `None` for the directory that an item is put into.
    finish: Option<Finish>,
    parent: Option<DirectoryRef<'e>>,
}

struct Finish {
    metadata: Metadata,
    attributes: Vec<Attribute>,
    mode: Option<u32>,
}

/// Keeps a directory unfinished. The last one that is dropped finishes the directory, then perhaps its parent.
pub(super) struct DirectoryRef<'e>(Option<Arc<Directory<'e>>>);

impl Clone for DirectoryRef<'_> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<'e> std::ops::Deref for DirectoryRef<'e> {
    type Target = Directory<'e>;

    fn deref(&self) -> &Directory<'e> {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl Drop for DirectoryRef<'_> {
    fn drop(&mut self) {
        // A loop and not a recursion: trees may be deep.
        let mut next = self.0.take();
        while let Some(mut directory) = next.and_then(Arc::into_inner) {
            directory.finish();
            next = directory.parent.take().and_then(|mut parent| parent.0.take());
        }
    }
}

impl Directory<'_> {
    fn finish(&mut self) {
        let engine = self.engine;
        if engine.is_stopped() {
            // It may lack something: a new one does not appear, and one that was there does not get the time of a whole one.
            return self.discard();
        }
        if let Err(errno) = self.try_finish() {
            self.discard();
            let path = self.node.joined(&Entry::new(c"".to_owned()), Entry::name);
            engine.failed(Failure { side: Side::Destination, path, problem: Problem::Os(errno) });
        }
    }

    /// Removes a tree that has no name yet; closes one again that was there.
    fn discard(&self) {
        if let Some(mode) = self.was_closed {
            let _ = fchmod(&self.destination, Mode::from_raw_mode(mode));
        }
        if let (Some(temporary), Some(parent)) = (&self.node.temporary, &self.parent) {
            let _ = place::remove_contents(&self.destination);
            let _ = unlinkat(&parent.destination, temporary, AtFlags::REMOVEDIR);
        }
    }

    fn try_finish(&mut self) -> Result<(), Errno> {
        let options = self.engine.options;
        let fsync_self = || if options.fsync { fsync(&self.destination) } else { Ok(()) };
        let Some(finish) = &self.finish else { return fsync_self() };
        let parent = self.parent.as_ref().ok_or(Errno::NOENT)?;
        let object = Object::Open(self.destination.as_fd());
        let present = Present { was_there: !self.is_unseen, ..Present::default() };
        let applied = metadata::apply(
            object,
            FileType::Directory,
            &finish.metadata,
            finish.mode,
            &finish.attributes,
            &options.preserve,
            present,
        );
        match &applied {
            Ok(lost) => {
                for lost in lost {
                    self.engine.note(parent, &self.node.entry, Note::Lost(&lost.what, lost.errno));
                }
            }
            // Not ours to change: it was there before, and what is in it has been copied nevertheless.
            Err(errno) if !self.is_unseen => {
                self.engine.note(parent, &self.node.entry, Note::Lost(metadata::MODE_AND_TIMES, *errno));
            }
            Err(errno) => return Err(*errno),
        }
        fsync_self()?;
        if let Some(temporary) = &self.node.temporary {
            place::publish_directory(parent.destination.as_fd(), temporary, self.node.entry.name())?;
            self.node.is_published.store(true, Ordering::Release);
        }
        self.engine.totals.directories.fetch_add(1, Ordering::Relaxed);
        self.engine.events.copied(FileType::Directory, &parent.node.paths(&self.node.entry));
        Ok(())
    }
}

/// A directory whose subdirectories have not all been entered.
pub(super) struct Pending<'e> {
    pub(super) directory: DirectoryRef<'e>,
    pub(super) below: Vec<Entry>,
}

impl<'e> Worker<'e, '_> {
    pub(super) fn copy_item(&mut self, item: &Item) {
        if self.engine.is_stopped() {
            return;
        }
        let fail = |side, path: &Path, problem| {
            self.engine.failed(Failure { side, path: path.to_owned(), problem });
        };
        let name = item.name.as_bytes();
        let (Ok(source), Ok(name)) = (CString::new(item.source.as_os_str().as_bytes()), CString::new(name)) else {
            return fail(Side::Source, &item.source, Problem::Os(Errno::INVAL));
        };
        if name.is_empty() || name == c".." || name.as_bytes().contains(&b'/') {
            return fail(Side::Destination, &item.directory.join(&item.name), Problem::Os(Errno::INVAL));
        }
        if item.source.file_name().is_some_and(|name| is_temporary_name(name.as_bytes())) {
            return fail(Side::Source, &item.source, Problem::Leftover);
        }
        if is_temporary_name(name.as_bytes()) {
            return fail(Side::Destination, &item.directory.join(&item.name), Problem::Temporary);
        }
        let open = || -> Result<_, Errno> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let destination = openat(CWD, &item.directory, flags, Mode::empty())?;
            let base = openat(&destination, c".", flags, Mode::empty())?;
            Ok((destination, base, working_directory()?))
        };
        let (destination, base, working) = match open() {
            Ok(opened) => opened,
            Err(errno) => return fail(Side::Destination, &item.directory, Problem::Os(errno)),
        };
        let directory = CString::new(item.directory.as_os_str().as_bytes()).expect("it has been opened");
        let gives_acls = has_default_acl(&destination);
        let permitted = permitted(&destination, gives_acls, self.engine.umask);
        let root = DirectoryRef(Some(Arc::new(Directory {
            engine: self.engine,
            node: Arc::new(Node {
                parent: None,
                entry: Entry { source: c"".to_owned(), name: Some(directory), kind: FileType::Directory },
                depth: 0,
                temporary: None,
                is_published: AtomicBool::new(true),
                base: Some(base),
            }),
            source: working,
            destination,
            is_unseen: false,
            was_closed: None,
            is_ours: false,
            gives_acls,
            permitted,
            top: None,
            finish: None,
            parent: None,
        })));
        let entry = Entry { source, name: Some(name), kind: FileType::Unknown };
        let stat = match statat(&root.source, &*entry.source, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => return self.engine.fail(&root, &entry, at_source(errno)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if !self.engine.options.recursive => {
                self.engine.fail(&root, &entry, (Side::Source, Problem::Directory));
            }
            FileType::Directory => match lies_in(&root.destination, &stat) {
                Ok(false) => self.copy_directory(&root, &entry),
                Ok(true) => self.engine.fail(&root, &entry, (Side::Source, Problem::IntoItself)),
                Err(errno) => self.engine.fail(&root, &entry, at_destination(errno)),
            },
            kind => self.copy_entry(&root, Entry { kind, ..entry }),
        }
    }

    /// Makes the copy of a directory and of what is in it but for the subdirectories, which are pending then.
    pub(super) fn copy_directory(&mut self, parent: &DirectoryRef<'e>, entry: &Entry) {
        if self.engine.is_stopped() {
            return;
        }
        let directory = match self.open(parent, entry) {
            Ok(directory) => directory,
            Err(failed) => return self.engine.fail(parent, entry, failed),
        };
        match self.list(&directory) {
            Ok(below) if below.is_empty() => {}
            Ok(below) => self.pending.push(Pending { directory, below }),
            Err(errno) => self.engine.fail(parent, entry, at_source(errno)),
        }
    }

    fn open(&self, parent: &DirectoryRef<'e>, entry: &Entry) -> Result<DirectoryRef<'e>, (Side, Problem)> {
        let engine = self.engine;
        let depth = parent.node.depth + 1;
        if depth > DEPTH_MAX {
            return Err((Side::Source, Problem::TooDeep));
        }
        let source = place::open_directory(&parent.source, &entry.source).source()?;
        let stat = fstat(&source).source()?;
        if parent.top == Some(identity(&stat)) {
            return Err((Side::Source, Problem::IntoItself));
        }
        let attributes = metadata::read_attributes(Object::Open(source.as_fd()), &engine.options.preserve).source()?;
        let name = entry.name();
        let mut temporary = None;
        let mut is_new = true;
        let destination = if parent.is_unseen {
            mkdirat(&parent.destination, name, Mode::RWXU).destination()?;
            place::open_directory(&parent.destination, name).destination()?
        } else {
            match place::open_directory(&parent.destination, name) {
                Ok(present) => {
                    is_new = false;
                    present
                }
                Err(Errno::NOENT) => {
                    let beside = place::temporary(name);
                    let made = place::create_temporary_directory(&parent.destination, &beside).destination()?;
                    temporary = Some(beside);
                    made
                }
                Err(errno) => return Err(at_destination(errno)),
            }
        };
        let made = fstat(&destination).destination()?;
        if identity(&made) == identity(&stat) {
            return Err((Side::Source, Problem::SameFile));
        }
        let was_closed = !is_new && open_up(&destination, &made).destination()?;
        let was_closed = was_closed.then_some(made.st_mode & 0o7777);
        let preserve = &engine.options.preserve;
        let gives_acls = if !is_new {
            has_default_acl(&destination)
        } else if parent.gives_acls && preserve.acls {
            remove_acls(Object::Open(destination.as_fd()), |_| false);
            false
        } else {
            parent.gives_acls
        };
        let source_mode = metadata::source_mode(Object::Open(source.as_fd()), stat.st_mode & 0o7777, preserve);
        let mode = match (preserve.mode, is_new) {
            (true, _) => Some(source_mode),
            (false, true) => {
                let permitted = permitted_directory(parent.permitted, engine.umask);
                Some(source_mode & permitted | made.st_mode & Mode::SGID.bits())
            }
            (false, false) => was_closed,
        };
        let permitted = if preserve.mode { 0o777 } else { permitted(&destination, gives_acls, engine.umask) };
        Ok(DirectoryRef(Some(Arc::new(Directory {
            engine,
            node: Arc::new(Node {
                parent: Some(Arc::clone(&parent.node)),
                entry: entry.clone(),
                depth,
                temporary,
                is_published: AtomicBool::new(false),
                base: None,
            }),
            source,
            is_unseen: is_new,
            was_closed,
            is_ours: is_new && (made.st_uid, made.st_gid) == engine.us,
            gives_acls,
            permitted,
            top: parent.top.or(Some(identity(&made))),
            destination,
            finish: Some(Finish { metadata: Metadata::from(&stat), attributes, mode }),
            parent: Some(parent.clone()),
        }))))
    }

    /// Copies what is in a directory; returns its subdirectories.
    fn list(&mut self, directory: &DirectoryRef<'e>) -> Result<Vec<Entry>, Errno> {
        let mut below = Vec::new();
        let mut batch = Vec::new();
        let mut space = Vec::with_capacity(place::LISTING_BYTES);
        let mut entries = RawDir::new(directory.source.as_fd(), space.spare_capacity_mut());
        while let Some(found) = entries.next() {
            if self.engine.is_stopped() {
                return Ok(Vec::new());
            }
            let found = found?;
            if matches!(found.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let mut entry = Entry { source: found.file_name().to_owned(), name: None, kind: found.file_type() };
            if entry.kind == FileType::Unknown
                && let Ok(stat) = statat(&directory.source, &*entry.source, AtFlags::SYMLINK_NOFOLLOW)
            {
                entry.kind = FileType::from_raw_mode(stat.st_mode);
            }
            if self.is_left_out(directory, &entry) {
                continue;
            }
            if is_temporary_name(entry.source.to_bytes()) {
                self.engine.note(directory, &entry, Note::Leftover);
                continue;
            }
            if entry.kind == FileType::Directory {
                below.push(entry);
                continue;
            }
            // Only while somebody waits for it is it worth being handed over.
            if batch.is_empty() && !self.crew.is_hungry() {
                self.copy_entry(directory, entry);
                continue;
            }
            batch.push(entry);
            if batch.len() == BATCH_ENTRIES {
                self.crew.hand_over(Job::Entries(directory.clone(), std::mem::take(&mut batch)));
            }
        }
        for entry in batch {
            self.copy_entry(directory, entry);
        }
        Ok(below)
    }

    fn is_left_out(&self, directory: &Directory<'e>, entry: &Entry) -> bool {
        let patterns = &self.engine.options.leave_out;
        if patterns.is_empty() {
            return false;
        }
        let path = directory.node.below_item(entry);
        let is_left_out = patterns.leave_out(path.as_os_str().as_bytes(), entry.kind == FileType::Directory);
        if is_left_out {
            self.engine.note(directory, entry, Note::LeftOut);
        }
        is_left_out
    }
}

/// Whether a directory is, or lies somewhere in, the one that `outer` describes.
fn lies_in(directory: &OwnedFd, outer: &Stat) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = openat(directory, c".", flags, Mode::empty())?;
    let mut stat = fstat(&here)?;
    loop {
        if identity(&stat) == identity(outer) {
            return Ok(true);
        }
        here = openat(&here, c"..", flags, Mode::empty())?;
        let above = fstat(&here)?;
        if identity(&above) == identity(&stat) {
            return Ok(false);
        }
        stat = above;
    }
}
