//! Directories of a tree that is being written: entered by descriptor, finished when the last of what is in them is.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rd_proto::tree::{Metadata, Time, Xattrs};
use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, fsync, mkdirat, openat};
use rustix::io::Errno;

use super::Shared;
use crate::fs::is_temporary_name;
use crate::fs::metadata::{Applied, Current, Object, has_default_acl, permitted, permitted_directory};

/// How a directory is opened: itself and no link.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of the destination.
///
/// Each file that is still to be written into it holds it. When the last of them lets go, and the walk has left it, it
/// gets its metadata: not earlier, since each new entry changes its time, and since its mode may forbid new entries.
/// So directories need no list of their own, and as many are open as the tree is deep and files are waiting.
pub(super) struct OpenDirectory {
    pub fd: OwnedFd,
    place: Arc<Place>,
    shared: Arc<Shared>,
    /// Entries made here get ACLs from it.
    pub gives_acl: bool,
    /// Permissions that files made here can get where modes are not kept.
    pub permitted: u32,
    /// Files get a partial name here: there are none without, or older ones are in the way of linking.
    pub wants_names: AtomicBool,
    /// Owner and group that a new file gets here: ours, or the directory's group, as its mode and the mount say.
    pub new_owner: OnceLock<(u32, u32)>,
    /// None for the top: it belongs to whoever named it.
    last: Option<Last>,
}

/// What a directory gets at the end.
struct Last {
    mode: Option<u32>,
    current: Current,
    metadata: OwnedMetadata,
}

/// The name of a directory, without its descriptor, so that long paths are not kept for each.
struct Place {
    parent: Option<Arc<Place>>,
    name: Vec<u8>,
}

/// [`Metadata`] that outlives its chunk.
pub(super) struct OwnedMetadata {
    mode: u32,
    uid: u32,
    gid: u32,
    modified: Time,
    accessed: Time,
    xattrs: Vec<u8>,
}

impl OwnedMetadata {
    pub fn new(metadata: &Metadata<'_>) -> Self {
        let mut xattrs = Vec::new();
        for (name, value) in metadata.xattrs.iter() {
            let _fits = Xattrs::push(&mut xattrs, name, value);
        }
        let &Metadata { mode, uid, gid, modified, accessed, .. } = metadata;
        Self { mode, uid, gid, modified, accessed, xattrs }
    }

    pub fn borrow(&self) -> Metadata<'_> {
        let &Self { mode, uid, gid, modified, accessed, ref xattrs } = self;
        Metadata { mode, uid, gid, modified, accessed, xattrs: Xattrs::new(xattrs) }
    }
}

impl OpenDirectory {
    /// The destination itself; its path comes from the user, links in it are followed.
    pub fn top(path: &[u8], shared: Arc<Shared>) -> Result<Self, Errno> {
        let fd = openat(rustix::fs::CWD, path, OPEN.difference(OFlags::NOFOLLOW), Mode::empty())?;
        Ok(Self::new(fd, Arc::new(Place { parent: None, name: path.to_vec() }), shared, None))
    }

    /// Makes a directory, or enters one that is there. Nothing but a real directory is entered: a link to one may lead
    /// anywhere.
    pub fn enter(parent: &Arc<Self>, name: &[u8], metadata: &Metadata<'_>) -> Result<Self, Errno> {
        let shared = &parent.shared;
        let is_new = match mkdirat(&parent.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let fd = openat(&parent.fd, name, OPEN, Mode::empty())?;
        let stat = fstat(&fd)?;
        let keep = shared.options.keep;
        let was_closed = !is_new && Self::open_up(&fd, &stat)?;
        let mode = if keep.mode {
            Some(shared.setter.mode(metadata, 0o777))
        } else if is_new {
            // A group that is handed down is so by a bit that mkdir has set.
            let permitted = permitted_directory(parent.permitted, shared.umask);
            Some(shared.setter.mode(metadata, permitted) & 0o777 | stat.st_mode & Mode::SGID.bits())
        } else {
            was_closed.then_some(stat.st_mode & 0o7777)
        };
        let current = Current::new(&stat, parent.gives_acl, !is_new);
        let last = Last { mode, current, metadata: OwnedMetadata::new(metadata) };
        let place = match name {
            // Merged into it.
            b"." => Arc::clone(&parent.place),
            _ => Arc::new(Place { parent: Some(Arc::clone(&parent.place)), name: name.to_vec() }),
        };
        Ok(Self::new(fd, place, Arc::clone(shared), Some(last)))
    }

    /// Lets us write into a directory of ours that was made read-only, by an earlier copy perhaps. Whether it needed that.
    fn open_up(fd: &OwnedFd, stat: &Stat) -> Result<bool, Errno> {
        let user = rustix::process::geteuid();
        let is_closed = !user.is_root() && stat.st_uid == user.as_raw() && stat.st_mode & 0o700 != 0o700;
        if is_closed {
            fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))?;
        }
        Ok(is_closed)
    }

    fn new(fd: OwnedFd, place: Arc<Place>, shared: Arc<Shared>, last: Option<Last>) -> Self {
        let gives_acl = has_default_acl(&fd);
        let permitted = if shared.options.keep.mode { 0o777 } else { permitted(&fd, gives_acl, shared.umask) };
        let (wants_names, new_owner) = (AtomicBool::new(false), OnceLock::new());
        Self { fd, place, shared, gives_acl, permitted, wants_names, new_owner, last }
    }

    /// The path of an entry in it, for reports.
    pub fn path(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.own_path();
        path.push(b'/');
        path.extend(name);
        path
    }

    fn own_path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut place = Some(&self.place);
        while let Some(here) = place {
            names.push(here.name.as_slice());
            place = here.parent.as_ref();
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The name that an entry gets here: its own, unless it is the root and is to have another.
    pub fn final_name<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        match (&self.last, &self.shared.rename_root) {
            (None, Some(other)) => other,
            _ => name,
        }
    }

    fn finish(&self) -> Result<(), Errno> {
        let options = &self.shared.options;
        let applied = self.last.as_ref().map_or_else(Applied::default, |last| {
            let opened = Object::Open(self.fd.as_fd());
            self.shared.setter.apply(opened, &last.metadata.borrow(), last.mode, last.current)
        });
        self.shared.note_unsupported(applied);
        if options.fsync {
            fsync(&self.fd)?;
        }
        applied.error.map_or(Ok(()), Err)
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        // After a failure it stays as it is, open to us, so that the copy can be run again.
        if !self.shared.is_stopped.load(Ordering::Acquire)
            && let Err(error) = self.finish()
        {
            self.shared.report(&self.own_path(), error);
        }
    }
}

/// What stands at `path` below the top, without following a link at any step; opened as a place only.
///
/// # Errors
///
/// What stopped the way; EINVAL if what is there is not of a `wanted` kind, or is a directory.
pub(super) fn find(top: &OpenDirectory, path: &[u8], wanted: impl Fn(FileType) -> bool) -> Result<OwnedFd, Errno> {
    let mut here: Option<OwnedFd> = None;
    let mut names = path.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        if is_temporary_name(name) {
            return Err(Errno::INVAL);
        }
        let mut flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECTORY, names.peek().is_some());
        let from = here.as_ref().map_or(top.fd.as_fd(), AsFd::as_fd);
        here = Some(openat(from, name, flags, Mode::empty())?);
    }
    let found = here.ok_or(Errno::NOENT)?;
    let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if kind != FileType::Directory && wanted(kind) { Ok(found) } else { Err(Errno::INVAL) }
}
