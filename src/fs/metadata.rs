//! Metadata onto an entry that is open: owner, extended attributes, mode and times, in the one order in which none of
//! them undoes another.
//!
//! A change of owner clears setuid, setgid and capabilities, so it comes first. `user.` attributes want write permission,
//! and setting an ACL changes the mode, so the mode comes after them. Times come last.
//!
//! Nothing here takes a name: a name may be given to something else between two calls, a descriptor may not.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rd_proto::tree::{Metadata, Time, Xattrs};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fremovexattr, fsetxattr, futimens, setxattr, utimensat,
};
use rustix::io::Errno;

/// The access ACL of an entry.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The ACL that a directory gives to what is made in it.
pub(super) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;

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
    /// FIFOs, sockets and, by root, devices.
    pub specials: bool,
}

impl Default for Keep {
    fn default() -> Self {
        Self { mode: true, owner: true, times: true, xattrs: true, specials: true }
    }
}

/// An entry to set metadata on.
#[derive(Clone, Copy, Debug)]
pub enum Handle<'a> {
    /// Opened for reading or writing.
    Open(BorrowedFd<'a>),
    /// Opened as a place only (`O_PATH`), as links and special files must be.
    Path(BorrowedFd<'a>),
}

/// What an entry has before anything is set.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// It may have got ACLs from the directory it was made in.
    pub inherits_acl: bool,
}

impl Current {
    /// What `stat` tells.
    pub fn new(stat: &Stat, inherits_acl: bool) -> Self {
        Self { uid: stat.st_uid, gid: stat.st_gid, inherits_acl }
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
    /// they would lend somebody else's rights. The group's permissions are left out where the source has an ACL that could not be set: they
    /// are that ACL's mask then, and the group may have less.
    pub fn apply(self, handle: Handle<'_>, metadata: &Metadata<'_>, mode: Option<u32>, current: Current) -> Applied {
        let Self { keep, is_root } = self;
        let mut applied = Applied::default();
        let mut owner = (current.uid, current.gid);
        if keep.owner && is_root && owner != (metadata.uid, metadata.gid) {
            match set_owner(handle, metadata) {
                Ok(()) => owner = (metadata.uid, metadata.gid),
                Err(error) => applied.error = Some(error),
            }
        }
        let mut lost_acl = false;
        if keep.xattrs {
            if current.inherits_acl
                && let Handle::Open(fd) = handle
            {
                // It may have none: then there is nothing to remove.
                let _ = fremovexattr(fd, ACCESS_ACL);
                let _ = fremovexattr(fd, DEFAULT_ACL);
            }
            lost_acl = set_xattrs(handle, metadata.xattrs, is_root, &mut applied);
        } else {
            lost_acl |= metadata.xattrs.iter().any(|(name, _)| name == ACCESS_ACL);
        }
        if let Some(mut mode) = mode {
            if keep.mode && (!keep.owner || owner != (metadata.uid, metadata.gid)) {
                mode &= !SET_IDS;
            }
            if lost_acl {
                mode &= !0o070;
            }
            let done = match handle {
                Handle::Open(fd) => fchmod(fd, Mode::from_raw_mode(mode)),
                Handle::Path(fd) => chmodat(CWD, itself(fd), Mode::from_raw_mode(mode), AtFlags::empty()),
            };
            applied.error = applied.error.or(done.err());
        }
        if keep.times {
            let times =
                Timestamps { last_access: timespec(metadata.accessed), last_modification: timespec(metadata.modified) };
            let done = match handle {
                Handle::Open(fd) => futimens(fd, &times),
                Handle::Path(fd) => match utimensat(fd, "", &times, AtFlags::EMPTY_PATH) {
                    // Kernels before 5.8 do not take it.
                    Err(Errno::INVAL) => utimensat(CWD, itself(fd), &times, AtFlags::empty()),
                    done => done,
                },
            };
            applied.error = applied.error.or(done.err());
        }
        applied
    }
}

fn set_owner(handle: Handle<'_>, metadata: &Metadata<'_>) -> Result<(), Errno> {
    // The number -1 means "leave it"; no file has it.
    if metadata.uid == u32::MAX || metadata.gid == u32::MAX {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (Some(Uid::from_raw(metadata.uid)), Some(Gid::from_raw(metadata.gid)));
    match handle {
        Handle::Open(fd) => fchown(fd, uid, gid),
        Handle::Path(fd) => chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH),
    }
}

/// Whether an access ACL was not set.
fn set_xattrs(handle: Handle<'_>, xattrs: Xattrs<'_>, is_root: bool, applied: &mut Applied) -> bool {
    let mut lost_acl = false;
    for (name, value) in xattrs.iter() {
        let is_acl = name == ACCESS_ACL || name == DEFAULT_ACL;
        let is_privileged = name.starts_with(b"security.") || name.starts_with(b"trusted.");
        // Other names of `system.` are no attributes but doors into a file system (CIFS, NFS).
        if !(is_acl || name.starts_with(b"user.") || is_privileged && is_root) {
            continue;
        }
        let done = match handle {
            Handle::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Handle::Path(fd) => setxattr(itself(fd), name, value, XattrFlags::empty()),
        };
        if let Err(error) = done {
            lost_acl |= name == ACCESS_ACL;
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
