//! Metadata onto an entry that is open: owner, extended attributes, mode and times, in the one order in which none of
//! them undoes another. [`Setter`] does so for trees that are received; local copies have calls and ACLs from here.
//!
//! A change of owner clears setuid, setgid and capabilities, so it comes first. `user.` attributes want write permission,
//! and setting an ACL changes the mode, so the mode comes after them. Times come last.
//!
//! Nothing here takes a name: a name may be given to something else between two calls, a descriptor may not.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rd_proto::tree::{Metadata, Time, Xattrs};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod,
    fchown, fgetxattr, fgetxattr_query, flistxattr, fremovexattr, fsetxattr, futimens, getxattr, listxattr, openat,
    removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// The access ACL of an entry.
pub(crate) const ACCESS_ACL: &[u8] = ACCESS_ACL_NAME.to_bytes();
pub(crate) const ACCESS_ACL_NAME: &CStr = c"system.posix_acl_access";

/// The ACL that a directory gives to what is made in it.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The attributes that are ACLs.
pub(crate) const ACLS: [&[u8]; 2] = [ACCESS_ACL, DEFAULT_ACL];

/// Entries of an ACL of which there is one at most, as the kernel numbers them.
const ACL_OWNER: u16 = 1;
const ACL_GROUP: u16 = 4;
const ACL_MASK: u16 = 0x10;
const ACL_OTHERS: u16 = 0x20;

/// The longest value of an attribute, and the longest list of names, in bytes (XATTR_SIZE_MAX, XATTR_LIST_MAX of Linux).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Lets this process write into a directory of its user's that was made read-only, by an earlier copy perhaps: the copy
/// can then be run again. Whether it needed that.
pub(crate) fn open_up(directory: impl AsFd, stat: &Stat) -> Result<bool, Errno> {
    let user = rustix::process::geteuid();
    let is_closed = !user.is_root() && stat.st_uid == user.as_raw() && stat.st_mode & 0o700 != 0o700;
    if is_closed {
        fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))?;
    }
    Ok(is_closed)
}

/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;
const SET_GID: u32 = 0o2000;

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
    /// Extended attributes, those of `security.` and `trusted.` only by root; and ACLs, if the mode is kept as well, of
    /// which they are a part.
    pub xattrs: bool,
    /// Symbolic links.
    pub symlinks: bool,
    /// FIFOs, sockets and, by root, devices.
    pub specials: bool,
}

impl Keep {
    fn acls(self) -> bool {
        self.mode && self.xattrs
    }
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
    pub(crate) fn list_xattrs(self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => flistxattr(fd, names),
            Self::Path(fd) => listxattr(itself(fd), names),
        }
    }

    pub(crate) fn xattr(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => fgetxattr(fd, name, value),
            Self::Path(fd) => getxattr(itself(fd), name, value),
        }
    }

    pub(crate) fn set_xattr(self, name: impl Arg, value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Path(fd) => setxattr(itself(fd), name, value, XattrFlags::empty()),
        }
    }

    fn remove_xattr(self, name: impl Arg) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fremovexattr(fd, name),
            Self::Path(fd) => removexattr(itself(fd), name),
        }
    }

    pub(crate) fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fchown(fd, uid, gid),
            Self::Path(fd) => chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    pub(crate) fn set_mode(self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Path(fd) => chmod(itself(fd), mode),
        }
    }

    pub(crate) fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
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
pub(crate) fn has_default_acl(directory: impl AsFd) -> bool {
    fgetxattr_query(directory, DEFAULT_ACL).is_ok_and(|bytes| bytes > 0)
}

/// The permission bits that a new file can get in this directory where modes are not copied: those of the default ACL, or
/// where there is none those that the umask leaves.
pub(crate) fn permitted(directory: impl AsFd, gives_acl: bool, umask: u32) -> u32 {
    if !gives_acl {
        return 0o777 & !umask;
    }
    let mut acl = vec![0; XATTR_BYTES_MAX];
    let length = fgetxattr(directory, DEFAULT_ACL, &mut acl[..]).unwrap_or(0);
    let entry = |tag| acl_entry(&acl[..length], tag).unwrap_or(0);
    let group = acl_entry(&acl[..length], ACL_MASK).unwrap_or_else(|| entry(ACL_GROUP));
    entry(ACL_OWNER) << 6 | group << 3 | entry(ACL_OTHERS)
}

/// As [`permitted`], for a directory: to its group and others cp gives the right to write only as the umask has it, also
/// where there is a default ACL.
pub(crate) fn permitted_directory(permitted: u32, umask: u32) -> u32 {
    permitted & !(umask & 0o022)
}

/// The permissions in an entry of an ACL of which there is one at most. An ACL is its version, then for each entry tag,
/// permissions (u16 each) and number.
fn acl_entry(acl: &[u8], tag: u16) -> Option<u32> {
    let mut entries = acl.get(4..)?.chunks_exact(8);
    entries.find(|entry| entry[..2] == tag.to_le_bytes()).map(|entry| u32::from(entry[2] & 7))
}

/// The mode of a copy that does not get this ACL of its source, whose mask the group's bits are: the group gets what it had.
pub(crate) fn without_acl(mode: u32, acl: &[u8]) -> u32 {
    mode & (!0o070 | acl_entry(acl, ACL_GROUP).unwrap_or(0) << 3)
}

/// Has a new file keep the access ACL of the file that it takes the place of, where that has one; returns what of its
/// `mode` can be given to the new one.
pub(crate) fn keep_acl(new: impl AsFd, directory: impl AsFd, name: impl Arg, mode: u32) -> u32 {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(old) = openat(directory, name, flags, Mode::empty()) else { return mode & !0o070 };
    let mut acl = vec![0; XATTR_BYTES_MAX];
    match Object::Path(old.as_fd()).xattr(ACCESS_ACL_NAME, &mut acl) {
        Ok(length) => match Object::Open(new.as_fd()).set_xattr(ACCESS_ACL_NAME, &acl[..length]) {
            Ok(()) => mode,
            Err(_) => without_acl(mode, &acl[..length]),
        },
        // Nor does it get one from the directory.
        Err(_) => {
            let _ = fremovexattr(new, ACCESS_ACL);
            mode
        }
    }
}

/// Takes away the ACLs that an entry has, but those to be `kept`.
pub(crate) fn remove_acls(entry: Object<'_>, kept: impl Fn(&[u8]) -> bool) {
    for name in ACLS.into_iter().filter(|name| !kept(name)) {
        // There is none, or the file system knows none.
        let _ = entry.remove_xattr(name);
    }
}

/// Takes away the attributes of the user that an entry has, but those to be `kept`. Others have a meaning that a copy is
/// not to take away.
///
/// # Errors
///
/// What the first that could not be removed answered.
pub(crate) fn remove_user_xattrs(entry: Object<'_>, kept: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let length = match entry.list_xattrs(&mut list) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        length => length?,
    };
    let names = list[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.") && !kept(name));
    let mut done = Ok(());
    for name in names {
        match entry.remove_xattr(name) {
            Err(Errno::NODATA) => {}
            removed => done = done.and(removed),
        }
    }
    done
}

/// What an entry has before anything is set.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// It is a directory.
    pub is_directory: bool,
    /// It was made in a directory that gives ACLs.
    pub gets_acl: bool,
    /// It was there before, and may have ACLs and attributes.
    pub was_there: bool,
}

impl Current {
    /// What `stat` tells.
    pub fn new(stat: &Stat, gets_acl: bool, was_there: bool) -> Self {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Self { uid: stat.st_uid, gid: stat.st_gid, is_directory, gets_acl, was_there }
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
    /// Who says what is to be set has read it as this user.
    is_local: bool,
}

impl Setter {
    /// One for this process, whose rights are asked for once. `is_local`: what is set was read by this process.
    pub fn new(keep: Keep, is_local: bool) -> Self {
        Self { keep, is_root: rustix::process::geteuid().is_root(), is_local }
    }

    /// The mode for a copy of what has this `metadata`; where modes are not kept, no more than is `permitted`.
    pub fn mode(self, metadata: &Metadata<'_>, permitted: u32) -> u32 {
        if self.keep.acls() {
            return metadata.mode;
        }
        let acl = metadata.xattrs.iter().find(|(name, _)| *name == ACCESS_ACL);
        let mode = acl.map_or(metadata.mode, |(_, acl)| without_acl(metadata.mode, acl));
        if self.keep.mode { mode } else { mode & permitted }
    }

    /// Sets `metadata` as far as [`Setter::keep`] asks for it, and the permission bits `mode` (none on a symbolic link).
    ///
    /// Setuid and setgid of the source are left out where owner or group are not the source's, or were not to be kept:
    /// they would lend somebody else's rights; and so are file capabilities. Those who are not root do not keep owners:
    /// that the sender gives a file to just them is no reason to have it run with their rights, and only a directory's
    /// setgid, which lends none, stays. The group's permissions are left out where the source has an ACL that could not
    /// be set: they are that ACL's mask then, and the group may have less.
    pub fn apply(self, object: Object<'_>, metadata: &Metadata<'_>, mode: Option<u32>, current: Current) -> Applied {
        let Self { keep, is_root, is_local } = self;
        let mut applied = Applied::default();
        let mut owner = (current.uid, current.gid);
        if keep.owner && is_root && owner != (metadata.uid, metadata.gid) {
            match set_owner(object, metadata) {
                Ok(()) => owner = (metadata.uid, metadata.gid),
                Err(error) => applied.error = Some(error),
            }
        }
        // A set-ID file runs with its owner's rights: they are not to become another owner's.
        let may_lend = keep.mode && keep.owner && owner == (metadata.uid, metadata.gid);
        let mut lost_acl = false;
        if keep.xattrs {
            // Those that the source has as well are replaced in one step.
            let of_source = |kept: &[u8]| metadata.xattrs.iter().any(|(name, _)| name == kept);
            if keep.acls() && (current.gets_acl || current.was_there) {
                remove_acls(object, of_source);
            }
            if current.was_there {
                applied.error = applied.error.or(remove_user_xattrs(object, of_source).err());
            }
            let may_set = |name: &[u8]| match () {
                () if ACLS.contains(&name) => keep.acls(),
                () => !is_privileged(name) || is_root && (may_lend || name != CAPABILITY),
            };
            lost_acl = set_xattrs(object, metadata.xattrs, may_set, mode.is_some(), &mut applied);
        }
        if let Some(mut mode) = mode {
            if keep.mode {
                mode &= match (may_lend, is_root || is_local, current.is_directory) {
                    (true, true, _) => !0,
                    (true, false, true) => !(SET_IDS & !SET_GID),
                    _ => !SET_IDS,
                };
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

fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Whether an access ACL was not set. `may_set`: whether an attribute of those that can be set at all may be.
fn set_xattrs(
    object: Object<'_>,
    xattrs: Xattrs<'_>,
    may_set: impl Fn(&[u8]) -> bool,
    may_open: bool,
    applied: &mut Applied,
) -> bool {
    let mut lost_acl = false;
    // ACLs last: they may take from a user the right to set the others.
    let are_acls = |wanted: bool| xattrs.iter().filter(move |(name, _)| ACLS.contains(name) == wanted);
    for (name, value) in are_acls(false).chain(are_acls(true)) {
        let is_acl = ACLS.contains(&name);
        // Other names of `system.` are no attributes but doors into a file system (CIFS, NFS).
        if !(is_acl || name.starts_with(b"user.") || is_privileged(name)) || !may_set(name) {
            continue;
        }
        if let Err(error) = set_xattr(object, name, value, may_open) {
            lost_acl |= name == ACCESS_ACL;
            if is_acl {
                // Nor is it to keep one that is not the source's.
                remove_acls(object, |other| other != name);
            }
            // Root of a container may set few of the privileged ones; cp ignores that, too.
            if error == Errno::OPNOTSUPP || is_privileged(name) && error == Errno::PERM {
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

/// Sets an extended attribute. `user.` attributes want write permission, which a file of ours lacks where the default ACL
/// of its directory denies it to owners: with `may_open`, it gets that, and the caller sets the mode afterwards.
pub(crate) fn set_xattr<P: Arg + Copy>(object: Object<'_>, name: P, value: &[u8], may_open: bool) -> Result<(), Errno> {
    match object.set_xattr(name, value) {
        Err(Errno::ACCESS) if may_open => {
            object.set_mode(0o700)?;
            object.set_xattr(name, value)
        }
        done => done,
    }
}

/// The name that leads to what a descriptor is open on, and nowhere else: for calls that take no descriptor.
pub(crate) fn itself(fd: impl AsFd) -> String {
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
        let object = Object::Open(directory.as_fd());
        remove_acls(object, |name| name == DEFAULT_ACL);
        assert!(has_default_acl(&directory), "kept");
        assert_eq!(permitted(&directory, true, 0o777), 0o777);
        remove_acls(object, |_| false);
        assert!(!has_default_acl(&directory));
    }
}
