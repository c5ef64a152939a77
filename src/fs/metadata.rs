//! Metadata of one entry, by a descriptor: owner, mode, times, and extended attributes, some of which are ACLs.
//!
//! Nothing here changes an entry by its name: between two calls another entry may take the name, while a descriptor
//! always refers to the same one.

#![allow(unsafe_code, reason = "fchmodat2, which rustix does not have")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rd_proto::tree::AclNames;
use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod,
    fgetxattr, fgetxattr_query, flistxattr, fremovexattr, fsetxattr, fstat, futimens, getxattr, listxattr, openat,
    removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use super::accounts::is_own_group;
use super::{may, named};
use crate::fault::errno_of;

/// The attribute with the access ACL of an entry.
pub(crate) const ACCESS_ACL: &[u8] = ACCESS_ACL_NAME.to_bytes();
pub(crate) const ACCESS_ACL_NAME: &CStr = c"system.posix_acl_access";

/// The attribute with the ACL that a directory gives to entries made in it.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The attributes that are ACLs.
pub(crate) const ACLS: [&[u8]; 2] = [ACCESS_ACL, DEFAULT_ACL];

/// Tags of the ACL entries that occur at most once, as the kernel numbers them.
const ACL_OWNER: u16 = 1;
const ACL_GROUP: u16 = 4;
const ACL_MASK: u16 = 0x10;
const ACL_OTHERS: u16 = 0x20;

/// The beginning of each ACL: its version.
const ACL_VERSION: [u8; 4] = 2_u32.to_le_bytes();

/// Number of the system call, which libc does not have for all machines.
const FCHMODAT2: libc::c_long = 452;

/// Maximum length in bytes of an attribute's value, and of the list of names (XATTR_SIZE_MAX, XATTR_LIST_MAX of Linux).
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;

/// Lets this process write into a directory of its user that was made read-only, perhaps by an earlier copy, so that
/// the copy can be run again. Returns whether the mode had to be changed.
pub(crate) fn open_up(directory: impl AsFd, stat: &Stat) -> Result<bool, Errno> {
    let user = rustix::process::geteuid();
    // Root does not need the permission bits, unless it lacks the capability: in a container, or on a server that maps
    // root to nobody.
    let may_all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    let needs_it = || !user.is_root() || may(&directory, ".", may_all) == Err(Errno::ACCESS);
    let is_closed = stat.st_uid == user.as_raw() && stat.st_mode & 0o700 != 0o700 && needs_it();
    if is_closed {
        fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))?;
    }
    Ok(is_closed)
}

/// An entry whose metadata is read or set by a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Object<'a> {
    /// A descriptor opened for reading or writing.
    Open(BorrowedFd<'a>),
    /// A descriptor opened as a place only (`O_PATH | O_NOFOLLOW`), as links and special files must be.
    Path(BorrowedFd<'a>),
    /// The entry with this name in a directory. Only for reading, because another entry may take the name meanwhile.
    /// Saves opening the entry.
    Named(BorrowedFd<'a>, &'a CStr),
}

impl<'a> Object<'a> {
    /// Wraps an open descriptor. `is_place`: whether it was opened as a place only.
    pub(crate) fn opened(fd: &'a OwnedFd, is_place: bool) -> Self {
        if is_place { Self::Path(fd.as_fd()) } else { Self::Open(fd.as_fd()) }
    }
}

impl Object<'_> {
    pub(crate) fn list_xattrs(self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => flistxattr(fd, names),
            Self::Path(fd) => by_path(fd, |path| listxattr(path, names)),
            Self::Named(directory, name) => named::list_xattrs(directory, name, names),
        }
    }

    pub(crate) fn xattr(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => fgetxattr(fd, name, value),
            Self::Path(fd) => by_path(fd, |path| getxattr(path, name, value)),
            Self::Named(directory, of) => named::xattr(directory, of, name, value),
        }
    }

    pub(crate) fn set_xattr(self, name: impl Arg, value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Path(fd) => by_path(fd, |path| setxattr(path, name, value, XattrFlags::empty())),
            Self::Named(..) => Err(Errno::BADF),
        }
    }

    fn remove_xattr(self, name: impl Arg) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => fremovexattr(fd, name),
            Self::Path(fd) => by_path(fd, |path| removexattr(path, name)),
            Self::Named(..) => Err(Errno::BADF),
        }
    }

    pub(crate) fn set_owner(self, uid: u32, gid: u32) -> Result<(), Errno> {
        // To chown(2), -1 means "leave unchanged"; no file has this number.
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::INVAL);
        }
        let (Self::Open(fd) | Self::Path(fd)) = self else { return Err(Errno::BADF) };
        chownat(fd, c"", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)
    }

    pub(crate) fn set_mode(self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Path(fd) => match fchmodat2(fd, mode) {
                // Kernels before 6.6 lack this call, and system call filters older than the call refuse it.
                Err(Errno::NOSYS | Errno::PERM) => by_path(fd, |path| chmod(path, mode)),
                done => done,
            },
            Self::Named(..) => Err(Errno::BADF),
        }
    }

    pub(crate) fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Self::Open(fd) => futimens(fd, times),
            Self::Path(fd) => match utimensat(fd, c"", times, AtFlags::EMPTY_PATH) {
                // Kernels before 5.8 do not support this flag.
                Err(Errno::INVAL) => by_path(fd, |path| utimensat(CWD, path, times, AtFlags::empty())),
                done => done,
            },
            Self::Named(..) => Err(Errno::BADF),
        }
    }
}

/// Reports whether entries made in this directory inherit an ACL.
pub(crate) fn has_default_acl(directory: impl AsFd) -> bool {
    fgetxattr_query(directory, DEFAULT_ACL).is_ok_and(|bytes| bytes > 0)
}

/// Returns the permission bits that a new file can get in this directory if modes are not copied: those of the default
/// ACL, or, without one, those that the umask leaves.
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

/// Reduces the bits of [`permitted`] to those of a new directory. As with cp, group and others get the right to write
/// only if the umask leaves it, even if there is a default ACL.
pub(crate) fn permitted_directory(permitted: u32, umask: u32) -> u32 {
    permitted & !(umask & 0o022)
}

/// Returns the permissions in an ACL entry that occurs at most once. An ACL is its version, followed for each entry by
/// tag, permissions (u16 each) and number.
fn acl_entry(acl: &[u8], tag: u16) -> Option<u32> {
    let mut entries = acl.get(4..)?.chunks_exact(8);
    entries.find(|entry| entry[..2] == tag.to_le_bytes()).map(|entry| u32::from(entry[2] & 7))
}

/// Returns the mode of a copy that does not get its source's ACL. The group bits of a mode with an ACL are the ACL's
/// mask; the copy's group gets what the ACL gave to the group.
pub(crate) fn without_acl(mode: u32, acl: &[u8]) -> u32 {
    mode & (!0o070 | acl_entry(acl, ACL_GROUP).unwrap_or(0) << 3)
}

/// Gives an access ACL the permissions of a `mode`, as chmod(2) does: the group's go to the mask, if there is one.
pub(crate) fn set_acl_mode(acl: &mut [u8], mode: u32) {
    let group = if acl_entry(acl, ACL_MASK).is_some() { ACL_MASK } else { ACL_GROUP };
    for entry in acl.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
        let shift = match u16::from_le_bytes([entry[0], entry[1]]) {
            ACL_OWNER => 6,
            ACL_OTHERS => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        entry[2] = entry[2] & !7 | (mode >> shift & 7) as u8;
    }
}

/// Returns the entries of an ACL; none if it is not one.
pub(crate) fn acl_entries(acl: &[u8]) -> &[[u8; 8]] {
    match acl.strip_prefix(&ACL_VERSION).unwrap_or_default().as_chunks() {
        (entries, []) => entries,
        _ => &[],
    }
}

/// Returns tag and number if an ACL entry names a user or group.
pub(crate) fn named_by(entry: &[u8; 8]) -> Option<(u8, u32)> {
    let &[tag, 0, _, _, ref number @ ..] = entry else { return None };
    [AclNames::USER, AclNames::GROUP].contains(&tag).then_some((tag, u32::from_le_bytes(*number)))
}

/// Returns an ACL in which the users and groups that it names have the numbers that `own` returns for their tags and
/// numbers. `None` if this is no ACL, or if it would name one of them twice.
pub(crate) fn renumbered(acl: &[u8], own: impl Fn((u8, u32)) -> u32) -> Option<Vec<u8>> {
    let mut entries = acl_entries(acl).to_vec();
    for entry in &mut entries {
        if let Some(named) = named_by(entry) {
            entry[4..].copy_from_slice(&own(named).to_le_bytes());
        }
    }
    // As setfacl(1) writes them. ACLs are compared as bytes.
    for of_a_tag in entries.chunk_by_mut(|one, next| one[..2] == next[..2]) {
        of_a_tag.sort_by_key(named_by);
    }
    let is_twice = entries.windows(2).any(|pair| named_by(&pair[0]).is_some_and(|one| named_by(&pair[1]) == Some(one)));
    (!entries.is_empty() && !is_twice).then(|| [&ACL_VERSION[..], entries.as_flattened()].concat())
}

/// Lets a `new` file keep metadata of the `old` file that it replaces: the owner, if `gets_owner` is set and this
/// process may set it, and the access ACL. Returns the part of the old mode that the new file can be given.
pub(crate) fn succeed(
    new: impl AsFd,
    owner: &mut (u32, u32),
    directory: impl AsFd,
    name: impl Arg,
    old: &Stat,
    gets_owner: bool,
) -> u32 {
    let old_owner = (old.st_uid, old.st_gid);
    // Only root may give files away. Another user's new file stays that user's own, as with cp, and
    // must not run as the old owner or group.
    if gets_owner && *owner != old_owner && Object::Open(new.as_fd()).set_owner(old.st_uid, old.st_gid).is_ok() {
        *owner = old_owner;
    }
    let mode = old.st_mode & if *owner == old_owner { 0o7777 } else { 0o1777 };
    keep_acl(new, directory, name, mode)
}

/// Copies the access ACL, if there is one, from the file that a new file replaces. Returns the part of `mode` that the
/// new file can be given.
fn keep_acl(new: impl AsFd, directory: impl AsFd, name: impl Arg, mode: u32) -> u32 {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(old) = openat(directory, name, flags, Mode::empty()) else { return mode & !0o070 };
    let mut acl = vec![0; XATTR_BYTES_MAX];
    match Object::Path(old.as_fd()).xattr(ACCESS_ACL_NAME, &mut acl) {
        Ok(length) => match Object::Open(new.as_fd()).set_xattr(ACCESS_ACL_NAME, &acl[..length]) {
            Ok(()) => mode,
            Err(_) => without_acl(mode, &acl[..length]),
        },
        // The old file has no ACL, so the new file must not keep an ACL from the directory either.
        Err(_) => {
            let _ = fremovexattr(new, ACCESS_ACL);
            mode
        }
    }
}

/// Removes the ACLs of an entry, except those for which `kept` returns true.
pub(crate) fn remove_acls(entry: Object<'_>, kept: impl Fn(&[u8]) -> bool) {
    for name in ACLS.into_iter().filter(|name| !kept(name)) {
        // Fails if there is no such ACL, or if the file system has no ACLs.
        let _ = entry.remove_xattr(name);
    }
}

/// Changes an extended attribute. `user.` attributes need write permission, which the mode may deny even to the owner.
/// The owner then has it meanwhile, unless setgid would be lost: the kernel drops it where the group is not the user's.
///
/// # Errors
///
/// The error number of the change.
pub(crate) fn change_xattr(entry: Object<'_>, change: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match (change(), entry) {
        (Err(Errno::ACCESS), Object::Open(fd) | Object::Path(fd)) => {
            let stat = fstat(fd)?;
            let mode = stat.st_mode & 0o7777;
            if mode & Mode::SGID.bits() != 0 && !is_own_group(stat.st_gid) {
                return Err(Errno::ACCESS);
            }
            entry.set_mode(mode | 0o200).map_err(|_| Errno::ACCESS)?;
            let changed = change();
            entry.set_mode(mode)?;
            changed
        }
        (done, _) => done,
    }
}

/// Removes the extended attributes of an entry for which `goes` returns true.
///
/// # Errors
///
/// The error number of listing the attributes, or of the first removal that failed.
pub(crate) fn remove_xattrs(entry: Object<'_>, goes: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let length = match entry.list_xattrs(&mut list) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        length => length?,
    };
    let names = list[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty() && goes(name));
    let mut done = Ok(());
    for name in names {
        match change_xattr(entry, || entry.remove_xattr(name)) {
            Err(Errno::NODATA) => {}
            removed => done = done.and(removed),
        }
    }
    done
}

/// Restores the times of an entry to those in `stat`.
pub(crate) fn restore_times(entry: impl AsFd, stat: &Stat) -> Result<(), Errno> {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let last_access = time(stat.st_atime, stat.st_atime_nsec as _);
    let last_modification = time(stat.st_mtime, stat.st_mtime_nsec as _);
    futimens(entry, &Timestamps { last_access, last_modification })
}

/// Sets the mode of the file on which a descriptor is open as a place.
fn fchmodat2(fd: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    // SAFETY: the kernel only reads an empty string, which lives as long as the program.
    let answer = unsafe { libc::syscall(FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode.bits(), libc::AT_EMPTY_PATH) };
    if answer == 0 { Ok(()) } else { Err(errno_of(&std::io::Error::last_os_error())) }
}

/// Calls `run` with the path that leads to the file on which a descriptor is open, and to no other. For calls that take
/// no descriptor.
///
/// # Errors
///
/// The error of `run`, but `ENOSYS` if /proc is not mounted. `ENOENT` would mean that the file has gone.
pub(crate) fn by_path<T>(fd: impl AsFd, run: impl FnOnce(&str) -> Result<T, Errno>) -> Result<T, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    run(&path).map_err(|error| if error == Errno::NOENT && lacks_proc() { Errno::NOSYS } else { error })
}

/// Whether /proc is not mounted, as may be so in a chroot or a rescue system.
pub(crate) fn lacks_proc() -> bool {
    rustix::fs::stat("/proc/self").err() == Some(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, mknodat};

    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    /// Before Linux 6.6, and under system call filters that are older, the mode is set by a path in /proc.
    #[test]
    fn the_mode_of_a_place_is_set_by_any_kernel() {
        let scratch = tempfile::tempdir().expect("a directory");
        let fifo = scratch.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        let place = openat(CWD, &fifo, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).expect("there");
        let set = |mode| {
            Object::Path(place.as_fd()).set_mode(mode).expect("set");
            assert_eq!(fstat(&place).expect("open").st_mode & 0o7777, mode);
        };
        set(0o751);
        for (error, mode) in [(libc::ENOSYS, 0o640), (libc::EPERM, 0o604)] {
            where_calls_fail(&[FCHMODAT2], error, || set(mode));
        }
    }

    /// System call filters older than faccessat2 refuse this call with EPERM.
    #[test]
    fn rights_are_known_without_faccessat2() {
        let scratch = tempfile::tempdir().expect("a directory");
        let open = std::fs::File::open(scratch.path()).expect("there");
        where_calls_fail(&[libc::SYS_faccessat2], libc::EPERM, || {
            assert_eq!(may(&open, ".", Access::EXEC_OK), Ok(()));
            assert_eq!(may(&open, "missing", Access::EXEC_OK), Err(Errno::NOENT));
        });
    }

    #[test]
    fn an_acl_follows_a_mode_as_with_chmod() {
        let entry = |tag: u16, may: u16| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &[0xff; 4]].concat();
        let acl = |entries: &[(u16, u16)]| {
            let entries = entries.iter().flat_map(|&(tag, may)| entry(tag, may));
            2_u32.to_le_bytes().into_iter().chain(entries).collect::<Vec<u8>>()
        };
        let (user, mask) = (2, ACL_MASK);
        let mut with_mask = acl(&[(ACL_OWNER, 6), (user, 7), (ACL_GROUP, 5), (mask, 7), (ACL_OTHERS, 4)]);
        set_acl_mode(&mut with_mask, 0o740);
        assert_eq!(with_mask, acl(&[(ACL_OWNER, 7), (user, 7), (ACL_GROUP, 5), (mask, 4), (ACL_OTHERS, 0)]));
        let mut without = acl(&[(ACL_OWNER, 6), (ACL_GROUP, 5), (ACL_OTHERS, 4)]);
        set_acl_mode(&mut without, 0o4421);
        assert_eq!(without, acl(&[(ACL_OWNER, 4), (ACL_GROUP, 2), (ACL_OTHERS, 1)]));
        // Not an ACL.
        set_acl_mode(&mut [2, 0], 0o777);
    }

    #[test]
    fn acls_with_other_numbers_are_in_their_order() {
        const NONE: u32 = u32::MAX;
        let acl = |users: &[(u8, u32)], groups: &[(u8, u32)]| {
            let entry = |tag: u16, may, id: u32| [&tag.to_le_bytes()[..], &[may, 0], &id.to_le_bytes()].concat();
            let named = |tag, all: &[(u8, u32)]| all.iter().flat_map(|&(may, id)| entry(tag, may, id)).collect();
            let once = [ACL_OWNER, ACL_GROUP, ACL_MASK, ACL_OTHERS];
            let [owner, group, mask, others] = once.map(|tag| entry(tag, 6, NONE));
            [ACL_VERSION.to_vec(), owner, named(2, users), group, named(8, groups), mask, others].concat()
        };
        let there = acl(&[(4, 1), (6, 2)], &[(5, 1), (7, 9)]);
        let named: Vec<_> = acl_entries(&there).iter().filter_map(named_by).collect();
        assert_eq!(named, [(2, 1), (2, 2), (8, 1), (8, 9)]);
        assert_eq!(renumbered(&there, |(_, number)| number).as_ref(), Some(&there));
        let here = renumbered(&there, |named| match named {
            (AclNames::USER, 1) => 300,
            (AclNames::GROUP, 9) => 0,
            (_, number) => number,
        });
        assert_eq!(here, Some(acl(&[(6, 2), (4, 300)], &[(7, 0), (5, 1)])), "each has its permissions");
        // A user and a group may have the same number, but not two users.
        let swapped = renumbered(&there, |(tag, number)| if tag == AclNames::USER { 3 - number } else { number });
        assert_eq!(swapped, Some(acl(&[(6, 1), (4, 2)], &[(5, 1), (7, 9)])));
        assert_eq!(renumbered(&there, |(tag, number)| if tag == AclNames::USER { 7 } else { number }), None);
        let of_another_version = [&[3][..], &there[1..]].concat();
        for no_acl in [&b""[..], &there[..3], &there[..4], &there[..there.len() - 1], &of_another_version] {
            assert_eq!((renumbered(no_acl, |_| 1), acl_entries(no_acl).len()), (None, 0));
        }
    }

    /// The ACL is longer than a buffer that suffices for most attributes.
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
            // The file system does not support ACLs, or none of this length.
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
