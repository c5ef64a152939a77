//! Metadata of files: what is read at the source, and how it is put on a copy, in the order that keeps all of it.
//!
//! Everything works on descriptors, so that a name that is swapped meanwhile changes nothing. Objects that cannot be
//! opened without a side effect (symbolic links, FIFOs, devices) are held by `O_PATH` descriptors.
//!
//! # Order
//!
//! Owner, attributes, mode, times: changing the owner drops set-user-ID bits and capabilities; an ACL changes the mode's
//! group bits, and setting the mode gives the ACL the same mask again; everything but the times changes them.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, getxattr, listxattr, openat, setxattr, utimensat,
};
use rustix::io::Errno;

/// The longest list of attribute names, and the longest value, that Linux has.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Tried first: most objects have few or no attributes.
const ATTRIBUTE_BYTES: usize = 512;

const ACL_ACCESS: &CStr = c"system.posix_acl_access";
const ACL_DEFAULT: &CStr = c"system.posix_acl_default";

/// Which properties a copy keeps. What is off is as for a new file, or left out where it is a kind of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preserve {
    /// Permission bits. Off: the source's, without those of the umask; a file that is replaced keeps its own.
    pub mode: bool,
    /// Times of last access and modification, in nanoseconds.
    pub times: bool,
    /// Owner and group. Only root can give files away; the group is kept where that is allowed.
    pub owner: bool,
    /// Extended attributes other than ACLs.
    pub xattrs: bool,
    /// POSIX ACLs, also default ones.
    pub acls: bool,
    /// Symbolic links. Off: left out.
    pub symlinks: bool,
    /// Several names of one file. Off: each becomes a file of its own.
    pub hard_links: bool,
    /// Holes. Off: they are written as zeroes.
    pub sparse: bool,
    /// FIFOs, sockets and devices. Off: left out.
    pub specials: bool,
}

impl Preserve {
    /// Everything, as `cp -a`.
    pub const ALL: Self = Self {
        mode: true,
        times: true,
        owner: true,
        xattrs: true,
        acls: true,
        symlinks: true,
        hard_links: true,
        sparse: true,
        specials: true,
    };
}

impl Default for Preserve {
    fn default() -> Self {
        Self::ALL
    }
}

/// What `stat` says of an object, as far as a copy gets it.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// Permission bits, with set-user-ID, set-group-ID and sticky: at most 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of last access.
    pub accessed: Timespec,
    /// Time of last modification.
    pub modified: Timespec,
}

impl From<&Stat> for Metadata {
    fn from(stat: &Stat) -> Self {
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
        }
    }
}

impl Metadata {
    fn timestamps(&self) -> Timestamps {
        Timestamps { last_access: self.accessed, last_modification: self.modified }
    }
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its name with the namespace.
    pub name: CString,
    /// Its value, at most 64 KiB.
    pub value: Vec<u8>,
}

/// A property that the destination did not take: its file system has no such thing, or we may not set it. The copy
/// stands nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// `owner`, or the attribute's name.
    pub what: CString,
    /// Why.
    pub errno: Errno,
}

/// An object, by a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Object<'a> {
    /// Open for reading or writing.
    Open(BorrowedFd<'a>),
    /// Opened with `O_PATH | O_NOFOLLOW`.
    Path(BorrowedFd<'a>),
}

impl<'a> Object<'a> {
    /// Opens an entry of a directory without following it or waking what is behind it, for [`Object::of_path`].
    ///
    /// # Errors
    ///
    /// The error number.
    pub fn open_path(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// The object that a descriptor of [`Object::open_path`] holds.
    pub fn of_path(fd: &'a OwnedFd) -> Self {
        Self::Path(fd.as_fd())
    }

    /// A name of the object behind an `O_PATH` descriptor; the kernel follows it to that object and no further.
    fn proc_path(fd: BorrowedFd<'_>) -> String {
        let mut path = String::with_capacity(24);
        let _ = write!(path, "/proc/self/fd/{}", fd.as_raw_fd());
        path
    }

    fn list(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => flistxattr(fd, names),
            Self::Path(fd) => listxattr(Self::proc_path(*fd), names),
        }
    }

    fn value(&self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => fgetxattr(fd, name, value),
            Self::Path(fd) => getxattr(Self::proc_path(*fd), name, value),
        }
    }

    fn set(&self, attribute: &Attribute) -> Result<(), Errno> {
        let flags = XattrFlags::empty();
        match self {
            Self::Open(fd) => fsetxattr(fd, &*attribute.name, &attribute.value, flags),
            Self::Path(fd) => setxattr(Self::proc_path(*fd), &*attribute.name, &attribute.value, flags),
        }
    }

    fn change_owner(&self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fchown(fd, uid, gid),
            Self::Path(fd) => chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn change_mode(&self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Path(fd) => chmod(Self::proc_path(*fd), mode),
        }
    }

    fn change_times(&self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => futimens(fd, times),
            Self::Path(fd) => utimensat(fd, c"", times, AtFlags::EMPTY_PATH),
        }
    }
}

/// Reads the attributes that `preserve` asks for.
///
/// # Errors
///
/// The error number. A file system without attributes has none, and one that goes while it is read is left out.
pub fn read_attributes(object: Object<'_>, preserve: &Preserve) -> Result<Vec<Attribute>, Errno> {
    if !preserve.xattrs && !preserve.acls {
        return Ok(Vec::new());
    }
    let mut small = [0; ATTRIBUTE_BYTES];
    let mut large = Vec::new();
    let names = match object.list(&mut small) {
        Ok(count) => &small[..count],
        Err(Errno::RANGE) => {
            large.resize(ATTRIBUTE_BYTES_MAX, 0);
            let count = object.list(&mut large)?;
            &large[..count]
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => &[],
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        let wanted = if is_acl(name) { preserve.acls } else { preserve.xattrs };
        if !wanted {
            continue;
        }
        let mut value = vec![0; ATTRIBUTE_BYTES];
        let mut read = object.value(name, &mut value);
        if read == Err(Errno::RANGE) {
            value.resize(ATTRIBUTE_BYTES_MAX, 0);
            read = object.value(name, &mut value);
        }
        match read {
            Ok(count) => {
                value.truncate(count);
                attributes.push(Attribute { name: name.to_owned(), value });
            }
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(attributes)
}

fn is_acl(name: &CStr) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Whether what is made in this directory inherits an ACL.
pub fn has_default_acl(directory: impl AsFd) -> bool {
    fgetxattr(directory, ACL_DEFAULT, &mut [0; ATTRIBUTE_BYTES][..]).is_ok_and(|bytes| bytes > 0)
}

/// Takes away the ACLs that an object has, so that its mode alone says who may what.
pub fn remove_acls(object: impl AsFd) {
    for name in [ACL_ACCESS, ACL_DEFAULT] {
        // There is none, or the file system knows none.
        let _ = fremovexattr(object.as_fd(), name);
    }
}

/// Takes away those ACLs that are not among `attributes`: what an object that was there before has beyond its source.
pub fn remove_other_acls(object: impl AsFd, attributes: &[Attribute]) {
    for name in [ACL_ACCESS, ACL_DEFAULT] {
        if !attributes.iter().any(|attribute| *attribute.name == *name) {
            let _ = fremovexattr(object.as_fd(), name);
        }
    }
}

/// What an object that has just been made has of itself, so that calls that would change nothing can be left out.
#[derive(Clone, Copy, Debug)]
pub struct Present {
    /// Its owner and group; `None`: not known.
    pub owner: Option<(u32, u32)>,
    /// Its permission bits; `None`: not known.
    pub mode: Option<u32>,
}

/// Puts metadata and attributes on an object, in the order that keeps all of it. `mode` is the one to set (`None`: leave
/// it), without set-ID bits if the owner could not be kept. Returns what the destination did not take.
///
/// # Errors
///
/// The error number, if the mode or the times could not be set.
pub fn apply(
    object: Object<'_>,
    kind: FileType,
    metadata: &Metadata,
    mode: Option<u32>,
    attributes: &[Attribute],
    preserve: &Preserve,
    present: Present,
) -> Result<Vec<Lost>, Errno> {
    let mut lost = Vec::new();
    let mut mode = mode;
    let owner = (metadata.uid, metadata.gid);
    if present.owner != Some(owner) {
        let mut is_kept = false;
        if preserve.owner {
            match object.change_owner(Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1))) {
                Ok(()) => is_kept = true,
                Err(errno) => {
                    // Who is not root may still be a member of the group; otherwise it is as with cp.
                    let _ = object.change_owner(None, Some(Gid::from_raw(owner.1)));
                    if errno != Errno::PERM || rustix::process::geteuid().is_root() {
                        lost.push(Lost { what: c"owner".to_owned(), errno });
                    }
                }
            }
        }
        if !is_kept && kind != FileType::Directory {
            // They would lend somebody else's file our rights, or ours theirs.
            mode = mode.map(|mode| mode & !0o6000);
        }
    }
    for attribute in attributes {
        if let Err(errno) = object.set(attribute) {
            lost.push(Lost { what: attribute.name.clone(), errno });
        }
    }
    if let Some(mode) = mode
        && kind != FileType::Symlink
        && (present.mode != Some(mode) || !attributes.is_empty())
    {
        object.change_mode(mode)?;
    }
    if preserve.times {
        object.change_times(&metadata.timestamps())?;
    }
    Ok(lost)
}

/// The mode of a new object where modes are not kept: the source's without the bits of the umask.
pub fn masked(mode: u32, umask: u32) -> u32 {
    mode & 0o777 & !umask
}
