//! Metadata of files: what is read at the source, and how it is put on a copy, in the order that keeps all of it.
//!
//! Everything works on descriptors, so that a name that is swapped meanwhile changes nothing. Objects that cannot be
//! opened without a side effect (symbolic links, FIFOs, devices) are held by `O_PATH` descriptors.
//!
//! # Order
//!
//! Owner, attributes, mode, times: changing the owner drops set-user-ID bits and capabilities; an ACL changes the mode's
//! group bits, and setting the mode gives the ACL the same mask again; everything but the times changes them.
//!
//! The calls are those of [`crate::fs::metadata`]. What is done where one of them is refused is not: here it is what cp does
//! with files of this host; there, what another host's file may be given.

use rustix::fs::{FileType, Gid, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::{CStr, CString};

use crate::fs::metadata::{
    ACCESS_ACL, ACCESS_ACL_NAME, ACLS, Object, remove_acls, remove_user_xattrs, set_xattr, without_acl,
};

/// The longest list of attribute names, and the longest value, that Linux has.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Tried first: most objects have few or no attributes.
const ATTRIBUTE_BYTES: usize = 512;

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
    /// POSIX ACLs, also default ones. They are a part of the mode.
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
    /// [`OWNER`], or the attribute's name.
    pub what: CString,
    /// Why.
    pub errno: Errno,
}

/// What is lost where an owner or a group is refused.
pub const OWNER: &CStr = c"owner";

/// What is lost where attributes of an object that was there before cannot be removed.
pub const STALE: &CStr = c"attributes";

/// What is lost where a directory that was there before is not ours to change.
pub const MODE_AND_TIMES: &CStr = c"mode and times";

/// Whether a refusal to set the owner is one that cp tells: who is not root cannot give files away, and knows it.
pub fn is_owner_lost(errno: Errno) -> bool {
    !matches!(errno, Errno::PERM | Errno::INVAL) || rustix::process::geteuid().is_root()
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
    let names = match object.list_xattrs(&mut small) {
        Ok(count) => &small[..count],
        Err(Errno::RANGE) => {
            large.resize(ATTRIBUTE_BYTES_MAX, 0);
            let count = object.list_xattrs(&mut large)?;
            &large[..count]
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => &[],
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        let wanted = if ACLS.contains(&name.to_bytes()) { preserve.acls } else { preserve.xattrs };
        if !wanted {
            continue;
        }
        let mut value = vec![0; ATTRIBUTE_BYTES];
        let mut read = object.xattr(name, &mut value);
        if read == Err(Errno::RANGE) {
            value.resize(ATTRIBUTE_BYTES_MAX, 0);
            read = object.xattr(name, &mut value);
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

/// The mode for a copy of an object, before the umask is held against it: where ACLs are not kept, without what it says by
/// one.
pub fn source_mode(object: Object<'_>, mode: u32, preserve: &Preserve) -> u32 {
    if preserve.acls || mode & 0o070 == 0 {
        return mode;
    }
    let mut acl = vec![0; ATTRIBUTE_BYTES_MAX];
    object.xattr(ACCESS_ACL_NAME, &mut acl).map_or(mode, |length| without_acl(mode, &acl[..length]))
}

/// Takes away what an object has beyond its source: ACLs, where it may have some, and the user's attributes where it was
/// there before.
fn remove_others(object: Object<'_>, attributes: &[Attribute], preserve: &Preserve, present: Present) -> Option<Lost> {
    let of_source = |name: &[u8]| attributes.iter().any(|attribute| attribute.name.as_bytes() == name);
    if preserve.acls && (present.gets_acl || present.was_there) {
        remove_acls(object, of_source);
    }
    let removed = if preserve.xattrs && present.was_there { remove_user_xattrs(object, of_source) } else { Ok(()) };
    removed.err().map(|errno| Lost { what: STALE.to_owned(), errno })
}

/// What is known of an object before anything is put on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present {
    /// It was made in a directory that gives ACLs.
    pub gets_acl: bool,
    /// It was there before, and may have ACLs and attributes.
    pub was_there: bool,
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
            match object.set_owner(Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1))) {
                Ok(()) => is_kept = true,
                Err(errno) => {
                    // Who is not root may still be a member of the group; otherwise it is as with cp.
                    let _ = object.set_owner(None, Some(Gid::from_raw(owner.1)));
                    if is_owner_lost(errno) {
                        lost.push(Lost { what: OWNER.to_owned(), errno });
                    }
                }
            }
        }
        // Where modes are not kept, setgid of a directory is the destination's.
        if !is_kept && (preserve.mode || kind != FileType::Directory) {
            // They would lend somebody else's file our rights, or ours theirs.
            mode = mode.map(|mode| mode & !0o6000);
        }
    }
    lost.extend(remove_others(object, attributes, preserve, present));
    // ACLs last: they may take from a user the right to set the others.
    let is_acl = |attribute: &&Attribute| ACLS.contains(&attribute.name.to_bytes());
    for attribute in attributes.iter().filter(|it| !is_acl(it)).chain(attributes.iter().filter(is_acl)) {
        let may_open = mode.is_some() && kind != FileType::Symlink;
        if let Err(errno) = set_xattr(object, &*attribute.name, &attribute.value, may_open) {
            lost.push(Lost { what: attribute.name.clone(), errno });
            if attribute.name.to_bytes() == ACCESS_ACL {
                // With an ACL the group's permissions are its mask: without it they are more than was given to the group.
                mode = mode.map(|mode| mode & !0o070);
            }
        }
    }
    if let Some(mode) = mode
        && kind != FileType::Symlink
        && (present.mode != Some(mode) || !attributes.is_empty())
    {
        object.set_mode(mode)?;
    }
    if preserve.times {
        object.set_times(&metadata.timestamps())?;
    }
    Ok(lost)
}
