//! Metadata onto an entry that is open: owner, extended attributes, mode and times, in the one order in which none of
//! them undoes another. [`Setter`] does so for trees that are received; local copies have calls and ACLs from here.
//!
//! A change of owner clears setuid, setgid and capabilities, so it comes first. `user.` attributes want write permission,
//! and setting an ACL changes the mode, so the mode comes after them. Times come last.
//!
//! Nothing here takes a name: a name may be given to something else between two calls, a descriptor may not.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rd_proto::tree::{Metadata, Time, Xattrs};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fchown,
    fgetxattr, fgetxattr_query, flistxattr, fremovexattr, fsetxattr, futimens, getxattr, listxattr, openat, setxattr,
    utimensat,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// The access ACL of an entry.
pub(super) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The ACL that a directory gives to what is made in it.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The attributes that are ACLs.
pub(super) const ACLS: [&[u8]; 2] = [ACCESS_ACL, DEFAULT_ACL];

/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;

/// File capabilities: what set-user-ID root is, in parts.
const CAPABILITY: &[u8] = b"security.capability";

/// Which metadata of the source the copy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Permission bits, setuid, setgid and sticky among them.
    pub mode: bool,
    /// Owner and group; only root may, for others it has no effect.
    pub owner: bool,
    /// Times of the last change and the last access.
    pub times: bool,
    /// Extended attributes and ACLs; those of `security.` and `trusted.` only by root.
    pub xattrs: bool,
    /// Symbolic links.
    pub symlinks: bool,
    /// FIFOs, sockets and, by root, devices.
    pub specials: bool,
}

impl Default for Keep {
    fn default() -> Self {
        Self { mode: true, owner: true, times: true, xattrs: true, symlinks: true, specials: true }
    }
}

/// An entry to read metadata of, or set it on, by a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Object<'a> {
    /// Opened for reading or writing.
    Open(BorrowedFd<'a>),
    /// Opened as a place only (`O_PATH | O_NOFOLLOW`), as links and special files must be.
    Path(BorrowedFd<'a>),
}

impl Object<'_> {
    /// Opens an entry of a directory without following it or waking what is behind it, for [`Object::Path`].
    pub(super) fn open_path(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    pub(super) fn list_xattrs(self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => flistxattr(fd, names),
            Self::Path(fd) => listxattr(itself(fd), names),
        }
    }

    pub(super) fn xattr(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => fgetxattr(fd, name, value),
            Self::Path(fd) => getxattr(itself(fd), name, value),
        }
    }

    pub(super) fn set_xattr(self, name: impl Arg, value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Path(fd) => setxattr(itself(fd), name, value, XattrFlags::empty()),
        }
    }

    pub(super) fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fchown(fd, uid, gid),
            Self::Path(fd) => chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Path(fd) => chmod(itself(fd), mode),
        }
    }

    pub(super) fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => futimens(fd, times),
            Self::Path(fd) => match utimensat(fd, c"", times, AtFlags::EMPTY_PATH) {
                // Kernels before 5.8 do not take it.
                Err(Errno::INVAL) => utimensat(CWD, itself(fd), times, AtFlags::empty()),
                done => done,
            },
        }
    }
}

/// Whether what is made in this directory gets an ACL from it.
pub(super) fn has_default_acl(directory: impl AsFd) -> bool {
    fgetxattr_query(directory, DEFAULT_ACL).is_ok_and(|bytes| bytes > 0)
}

/// Takes away the ACLs that an entry has, but those to be `kept`.
pub(super) fn remove_acls(entry: impl AsFd, kept: impl Fn(&[u8]) -> bool) {
    for name in ACLS.into_iter().filter(|name| !kept(name)) {
        // There is none, or the file system knows none.
        let _ = fremovexattr(entry.as_fd(), name);
    }
}

/// What an entry has before anything is set.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// It may have ACLs: from the directory it was made in, or from before if it was there.
    pub may_have_acls: bool,
}

impl Current {
    /// What `stat` tells.
    pub fn new(stat: &Stat, may_have_acls: bool) -> Self {
        Self { uid: stat.st_uid, gid: stat.st_gid, may_have_acls }
    }
}

/// What became of it: all is tried, whatever fails.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Applied {
    /// The first call that failed.
    pub error: Option<Errno>,
    /// The file system has no such extended attributes, or we may not set them although we are root.
    pub is_unsupported: bool,
}

/// Sets metadata, as far as it was asked for and we may.
#[derive(Clone, Copy, Debug)]
pub struct Setter {
    /// What is asked for.
    pub keep: Keep,
    is_root: bool,
}

impl Setter {
    /// One for this process, whose rights are asked for once.
    pub fn new(keep: Keep) -> Self {
        Self { keep, is_root: rustix::process::geteuid().is_root() }
    }

    /// Sets `metadata` as far as [`Setter::keep`] asks for it, and the permission bits `mode` (none on a symbolic link).
    ///
    /// Setuid and setgid of the source are left out where owner or group are not the source's, or were not to be kept:
    /// they would lend somebody else's rights; and so are file capabilities. The group's permissions are left out
    /// where the source has an ACL that could not be set: they are that ACL's mask then, and the group may have less.
    pub fn apply(self, object: Object<'_>, metadata: &Metadata<'_>, mode: Option<u32>, current: Current) -> Applied {
        let Self { keep, is_root } = self;
        let mut applied = Applied::default();
        let mut owner = (current.uid, current.gid);
        if keep.owner && is_root && owner != (metadata.uid, metadata.gid) {
            match set_owner(object, metadata) {
                Ok(()) => owner = (metadata.uid, metadata.gid),
                Err(error) => applied.error = Some(error),
            }
        }
        // What the file lends to whoever runs it, it lends in its owner's name: not in another's.
        let may_lend = keep.mode && keep.owner && owner == (metadata.uid, metadata.gid);
        let mut lost_acl = false;
        if keep.xattrs {
            if current.may_have_acls
                && let Object::Open(fd) = object
            {
                // Those that the source has as well are replaced in one step.
                remove_acls(fd, |kept| metadata.xattrs.iter().any(|(name, _)| name == kept));
            }
            lost_acl =
                set_xattrs(object, metadata.xattrs, |name| is_root && (may_lend || name != CAPABILITY), &mut applied);
        } else {
            lost_acl |= metadata.xattrs.iter().any(|(name, _)| name == ACCESS_ACL);
        }
        if let Some(mut mode) = mode {
            if keep.mode && !may_lend {
                mode &= !SET_IDS;
            }
            if lost_acl {
                mode &= !0o070;
            }
            applied.error = applied.error.or(object.set_mode(mode).err());
        }
        if keep.times {
            let times =
                Timestamps { last_access: timespec(metadata.accessed), last_modification: timespec(metadata.modified) };
            applied.error = applied.error.or(object.set_times(&times).err());
        }
        applied
    }
}

fn set_owner(object: Object<'_>, metadata: &Metadata<'_>) -> Result<(), Errno> {
    // The number -1 means "leave it"; no file has it.
    if metadata.uid == u32::MAX || metadata.gid == u32::MAX {
        return Err(Errno::INVAL);
    }
    object.set_owner(Some(Uid::from_raw(metadata.uid)), Some(Gid::from_raw(metadata.gid)))
}

/// Whether an access ACL was not set. `may_set`: whether a privileged attribute may be.
fn set_xattrs(object: Object<'_>, xattrs: Xattrs<'_>, may_set: impl Fn(&[u8]) -> bool, applied: &mut Applied) -> bool {
    let mut lost_acl = false;
    for (name, value) in xattrs.iter() {
        let is_acl = ACLS.contains(&name);
        let is_privileged = name.starts_with(b"security.") || name.starts_with(b"trusted.");
        // Other names of `system.` are no attributes but doors into a file system (CIFS, NFS).
        if !(is_acl || name.starts_with(b"user.") || is_privileged && may_set(name)) {
            continue;
        }
        if let Err(error) = object.set_xattr(name, value) {
            lost_acl |= name == ACCESS_ACL;
            if is_acl && let Object::Open(fd) = object {
                // Nor is it to keep one that is not the source's.
                remove_acls(fd, |other| other != name);
            }
            // Root of a container may set few of the privileged ones; cp ignores that, too.
            if error == Errno::OPNOTSUPP || is_privileged && error == Errno::PERM {
                applied.is_unsupported = true;
            } else {
                // No room for an attribute does not mean a full disk: ext4 says so of those longer than a block.
                let error = if error == Errno::NOSPC { Errno::TOOBIG } else { error };
                applied.error = applied.error.or(Some(error));
            }
        }
    }
    lost_acl
}

/// The name that leads to what a descriptor is open on, and nowhere else: for calls that take no descriptor.
pub(super) fn itself(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than a buffer for most attributes holds.
    #[test]
    fn a_long_default_acl_is_one() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = std::fs::File::open(scratch.path()).expect("there");
        assert!(!has_default_acl(&directory));
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7_u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let users = (1000..1100).map(|id| entry(2, id));
        let ends = [4, 0x10, 0x20].map(|tag| entry(tag, u32::MAX));
        let entries = [entry(1, u32::MAX)].into_iter().chain(users).chain(ends);
        let acl: Vec<u8> = [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries).flatten().collect();
        match Object::Open(directory.as_fd()).set_xattr(DEFAULT_ACL, &acl) {
            // The file system knows none, or none that long.
            Err(Errno::OPNOTSUPP | Errno::NOSPC) => return,
            done => done.expect("set"),
        }
        assert!(has_default_acl(&directory));
        remove_acls(&directory, |name| name == DEFAULT_ACL);
        assert!(has_default_acl(&directory), "kept");
        remove_acls(&directory, |_| false);
        assert!(!has_default_acl(&directory));
    }
}
