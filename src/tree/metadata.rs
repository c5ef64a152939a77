//! Metadata of entries: read for their records, and set on their copies in the one order in which no step undoes
//! another.
//!
//! A change of owner clears setuid, setgid and capabilities, so it comes first. `user.` attributes need write
//! permission, and setting an ACL changes the mode, so the mode comes after them. Times come last.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::{Extension, Extensions, Metadata, Record, Time, Xattrs};
use rustix::fs::{FileType, Stat, Timespec, Timestamps, fstat};
use rustix::io::Errno;

use super::Fault;
use super::owners::Named;
use crate::fs::accounts::is_own_group;
use crate::fs::is_directory;
use crate::fs::metadata::{
    ACCESS_ACL, ACCESS_ACL_NAME, ACLS, Object, XATTR_BYTES_MAX, change_xattr, remove_acls, remove_xattrs, set_acl_mode,
    without_acl,
};
use crate::options::{Chmod, TreeOptions};

/// Greatest part of a time below a second.
const NANOSECONDS_MAX: u32 = 999_999_999;

/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;
const SET_GID: u32 = 0o2000;

/// Stands for an owner or group that is not known yet. No file has this number.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Why extended attributes do not fit into a record.
const TOO_LARGE: &str = "has more than 128 KiB of extended attributes, too much to copy; use --no-xattrs to skip them";

/// Maximum number of attributes that are known to be impossible at the destination. Further ones count as differences.
const IMPOSSIBLE_MAX: usize = 64;

/// File capabilities: the rights of set-user-ID root, in parts.
const CAPABILITY: &[u8] = b"security.capability";

/// Reads the metadata of entries, with the requested changes, and keeps its buffers.
#[derive(Default)]
pub(super) struct Reader {
    chmod: Chmod,
    named: Option<Named>,
    /// Buffer for the list of extended attributes and for one value.
    buffer: Vec<u8>,
    /// Extended attributes of the entry, encoded.
    xattrs: Vec<u8>,
    /// Extensions of the entry, encoded.
    extensions: Vec<u8>,
}

/// Returns the extension by which the receiver recognizes the source itself. With `--remove-source-files` another host must
/// be able to compare it, so it has no device number, which differs between hosts. Otherwise only this host compares it, and
/// the device number tells the file from its copy in a snapshot, which has the same inode number and ctime.
pub fn inode(stat: &Stat, options: &TreeOptions) -> Extension<'static> {
    let device = if options.remove_source_files { 0 } else { stat.st_dev.rotate_left(32) };
    Extension::Inode { number: stat.st_ino ^ device, changed: (stat.st_ctime, stat.st_ctime_nsec as u32) }
}

impl Reader {
    /// # Errors
    ///
    /// Fails with what is wrong with `--chmod`.
    pub fn new(options: &TreeOptions) -> Result<Self, &'static str> {
        let chmod = match &options.chmod[..] {
            [] => Chmod::default(),
            changes => Chmod::parse(&changes.join(","), crate::fs::umask())?,
        };
        let has_names = (options.owner || options.acls()) && !options.numeric_ids;
        let named = has_names.then(Named::default);
        Ok(Self { chmod, named, buffer: Vec::new(), xattrs: Vec::new(), extensions: Vec::new() })
    }

    /// Reads the metadata of an entry, in one call if the entry has no attributes. If attributes are not wanted, the
    /// mode is without the permissions that it takes from an ACL, because the ACL is not sent.
    pub fn read(&mut self, options: &TreeOptions, entry: Object<'_>, stat: &Stat) -> Result<Metadata<'_>, Fault> {
        self.xattrs.clear();
        self.extensions.clear();
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut mode = stat.st_mode & 0o7777;
        if options.xattrs {
            let changed = Some(self.changed(mode, kind)).filter(|&changed| changed != mode);
            self.read_xattrs(entry, kind, changed)?;
        } else if mode & 0o070 != 0
            && kind != FileType::Symlink
            // As for the list of attributes: hardly any entry has an ACL, and the kernel allocates a buffer as large as
            // ours.
            && entry.xattr(ACCESS_ACL_NAME, &mut [0]) == Err(Errno::RANGE)
        {
            self.buffer.resize(2 * XATTR_BYTES_MAX, 0);
            if let Ok(length) = entry.xattr(ACCESS_ACL_NAME, &mut self.buffer) {
                mode = without_acl(mode, &self.buffer[..length]);
            }
        }
        mode = self.changed(mode, kind);
        if let Some(named) = self.named.as_mut().filter(|_| options.owner) {
            named.push(stat.st_uid, stat.st_gid, &mut self.extensions);
        }
        // Of regular files, only one that is sent with its contents is open: it may be written over itself. One that is
        // only listed may well be the same as its copy, and one with several names is never written in place.
        let is_file = kind == FileType::RegularFile && matches!(entry, Object::Open(_));
        let is_written = options.in_place && is_file && stat.st_nlink == 1;
        if (options.remove_source_files && kind != FileType::Directory || is_written) && !options.dry_run {
            Extensions::push(&mut self.extensions, inode(stat, options), true);
        }
        if let Some(named) = self.named.as_mut().filter(|_| options.acls()) {
            named.push_acls(Xattrs::new(&self.xattrs), &mut self.extensions);
        }
        Ok(Metadata {
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            modified: time(stat.st_mtime, stat.st_mtime_nsec as u32),
            accessed: time(stat.st_atime, stat.st_atime_nsec as u32),
            xattrs: Xattrs::new(&self.xattrs),
            extensions: Extensions::new(&self.extensions),
        })
    }

    /// Returns what `--chmod` makes of the mode of an entry.
    fn changed(&self, mode: u32, kind: FileType) -> u32 {
        if kind == FileType::Symlink { mode } else { self.chmod.applied(mode, kind == FileType::Directory) }
    }

    /// Reads the attributes. `changed`: the mode, if `--chmod` changes it; the access ACL then gets its permissions, too.
    /// With the source's, it would give more for a moment, and count as another ACL than the copy's.
    fn read_xattrs(&mut self, entry: Object<'_>, kind: FileType, changed: Option<u32>) -> Result<(), Fault> {
        // Hardly any entry has attributes, and the kernel allocates a buffer as large as ours for each call. So the
        // first call has one byte, which is too short for any name; without a buffer rustix answers 0. ENOENT means
        // that the entry has gone. ENOSYS means that there is no /proc by which to name the entry. Only root can give
        // attributes to a symbolic link, and hardly ever does.
        let is_link = kind == FileType::Symlink;
        let has_none = |listed: Result<usize, Errno>| {
            matches!(listed, Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOENT)) || is_link && listed == Err(Errno::NOSYS)
        };
        if has_none(entry.list_xattrs(&mut [0])) {
            return Ok(());
        }
        self.buffer.resize(2 * XATTR_BYTES_MAX, 0);
        let (names, value) = self.buffer.split_at_mut(XATTR_BYTES_MAX);
        let listed = entry.list_xattrs(names);
        let length = if has_none(listed) { 0 } else { listed? };
        for name in names[..length].split_inclusive(|&byte| byte == 0) {
            let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::INVAL)?;
            if !is_ever_set(name.to_bytes()) {
                continue;
            }
            let length = match entry.xattr(name, value) {
                Ok(length) => length,
                // The attribute has gone, or is listed although only others may read it.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                // A directory that may be entered but not read.
                Err(Errno::ACCESS) if matches!(entry, Object::Path(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(mode) = changed
                && name == ACCESS_ACL_NAME
            {
                set_acl_mode(&mut value[..length], mode);
            }
            if !Xattrs::push(&mut self.xattrs, name.to_bytes(), &value[..length]) {
                return Err(Fault::Detail(TOO_LARGE));
            }
        }
        Ok(())
    }
}

/// [`Metadata`] that outlives its chunk, encoded.
pub(super) struct OwnedMetadata(Vec<u8>);

impl OwnedMetadata {
    pub fn new(metadata: &Metadata<'_>) -> Self {
        let record = Record::Directory { name: b"-", metadata: *metadata };
        let mut bytes = vec![0; record.encoded_bytes()];
        record.encode(&mut bytes).expect("as long as it says");
        Self(bytes)
    }

    pub fn borrow(&self) -> Metadata<'_> {
        match Record::decode(&mut &self.0[..]) {
            Ok(Some(Record::Directory { metadata, .. })) => metadata,
            _ => unreachable!("as it was encoded"),
        }
    }
}

/// State of an entry before its metadata is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Permissions.
    pub mode: u32,
    /// Whether the entry is a directory.
    pub is_directory: bool,
    /// Whether the entry was made in a directory that gives ACLs to its entries.
    pub gets_acl: bool,
    /// Whether the entry existed before, so that it may have ACLs and attributes.
    pub was_there: bool,
}

impl Current {
    /// Creates the state from `stat`.
    pub fn new(stat: &Stat, gets_acl: bool, was_there: bool) -> Self {
        let mode = stat.st_mode & 0o7777;
        Self { uid: stat.st_uid, gid: stat.st_gid, mode, is_directory: is_directory(stat), gets_acl, was_there }
    }
}

/// Parts of the metadata, as bits.
pub(super) mod parts {
    pub const OWNER: u8 = 1;
    pub const ACL: u8 = 2;
    pub const ATTRIBUTES: u8 = 4;
    pub const MODE: u8 = 8;
    pub const TIMES: u8 = 16;
}

/// Metadata that could not be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unset {
    /// Parts that could not be set, as bits of [`parts`].
    pub parts: u8,
    /// Error of the first call that failed.
    pub error: Errno,
    /// Owner of the entry.
    pub owner: u32,
}

/// Result of setting metadata. Every part is tried, whatever fails.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(super) struct Applied {
    pub unset: Option<Unset>,
    /// Whether the file system does not support some extended attributes.
    pub is_unsupported: bool,
}

impl Applied {
    /// Records the result of a call that was to set this part.
    pub fn note(&mut self, part: u8, set: Result<(), Errno>) {
        if let Err(error) = set {
            self.unset.get_or_insert(Unset { parts: 0, error, owner: UNKNOWN }).parts |= part;
        }
    }

    /// Records that the entry has this owner.
    pub fn of(mut self, owner: u32) -> Self {
        if let Some(unset) = &mut self.unset {
            unset.owner = owner;
        }
        self
    }
}

/// Returns the mode for a copy of an entry with this `metadata`. If modes are not kept, only `permitted` bits remain.
pub(super) fn mode(options: &TreeOptions, metadata: &Metadata<'_>, permitted: u32) -> u32 {
    if options.acls() {
        return metadata.mode;
    }
    let acl = metadata.xattrs.iter().find(|(name, _)| *name == ACCESS_ACL);
    let mode = acl.map_or(metadata.mode, |(_, acl)| without_acl(metadata.mode, acl));
    if options.mode { mode } else { mode & permitted }
}

/// Returns the names of attributes, to look them up in. An entry may have thousands.
pub(super) fn names(xattrs: Xattrs<'_>) -> BTreeSet<&[u8]> {
    xattrs.iter().map(|(name, _)| name).collect()
}

/// Sets metadata, as far as that was asked for and is permitted.
#[derive(Debug)]
pub(super) struct Setter {
    /// User that sets the metadata.
    user: u32,
    is_root: bool,
    /// Whether the metadata was read by this process, as the same user.
    is_local: bool,
    /// Attributes that cannot be set, by the number of the device.
    impossible: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Whether an entry got less metadata than its source has.
    has_less: AtomicBool,
}

impl Setter {
    /// Creates a setter for this process, whose rights are determined once. `is_local`: this process has read the
    /// metadata.
    pub fn new(is_local: bool) -> Self {
        let user = rustix::process::geteuid();
        let (impossible, has_less) = (Mutex::default(), AtomicBool::default());
        Self { user: user.as_raw(), is_root: user.is_root(), is_local, impossible, has_less }
    }

    /// Whether the process is root, which gives entries their owners.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Whether an entry got less metadata than its source has, apart from times, and from what only root can set if the
    /// process is not root. A copy of such an entry is not what the source has sent.
    pub fn has_less(&self) -> bool {
        self.has_less.load(Relaxed)
    }

    /// Whether an attribute, which an entry of this device lacks, can never be set there by this process, or is known to
    /// no file system of this kind.
    pub fn is_impossible(&self, entry: Object<'_>, device: u64, name: &[u8]) -> bool {
        // A file system that has such attributes answers ENODATA.
        let is_unknown = || CString::new(name).is_ok_and(|name| entry.xattr(&name, &mut [0]) == Err(Errno::OPNOTSUPP));
        let is_impossible = has(&crate::locked(&self.impossible), device, name) || is_unknown();
        self.has_less.fetch_or(is_impossible, Relaxed);
        is_impossible
    }

    /// Records the attributes that could not be set on an entry.
    fn note_lost(&self, object: Object<'_>, lost: &[(&[u8], Errno)], applied: Applied) {
        self.has_less.store(true, Relaxed);
        // An entry that refuses other changes as well, such as an immutable one, says nothing about the others.
        let (Object::Open(fd) | Object::Path(fd), None) = (object, applied.unset) else { return };
        let Ok(stat) = fstat(fd) else { return };
        let mut impossible = crate::locked(&self.impossible);
        for &(name, error) in lost {
            let is_new = is_passed_over(name, error) && !has(&impossible, stat.st_dev, name);
            if is_new && impossible.len() < IMPOSSIBLE_MAX {
                impossible.push((stat.st_dev, name.to_vec()));
            }
        }
    }

    /// Returns the owner and group that an entry with the `current` ones is to have. Each is the source's, or that of
    /// `--chown`, if that was asked for and is permitted; otherwise it stays. Users who are not root give their own
    /// entries to groups that they are in.
    pub fn owner(&self, options: &TreeOptions, metadata: &Metadata<'_>, current: (u32, u32)) -> (u32, u32) {
        let (user, group) =
            options.chown.as_deref().map_or(("", ""), |chown| chown.split_once(':').unwrap_or((chown, "")));
        let is_ours = || [self.user, UNKNOWN].contains(&current.0);
        let may_group = || self.is_root || is_ours() && is_own_group(metadata.gid);
        let uid = if self.is_root && (options.owner || !user.is_empty()) { metadata.uid } else { current.0 };
        let gid = if (options.owner || !group.is_empty()) && may_group() { metadata.gid } else { current.1 };
        (uid, gid)
    }

    /// Returns the rights that an entry gets with these options, once it has this owner and group.
    pub fn rights<'a>(
        &'a self,
        options: &'a TreeOptions,
        metadata: &Metadata<'_>,
        owner: (u32, u32),
        is_directory: bool,
    ) -> Rights<'a> {
        // A set-ID file runs with its owner's rights, which must not become those of another owner.
        let is_sources = options.owner && options.chown.is_none();
        let may_lend = options.mode && is_sources && owner == (metadata.uid, metadata.gid);
        Rights { options, setter: self, may_lend, is_directory, group: owner.1 }
    }

    /// Sets `metadata` as far as the `options` ask for it, and the permission bits `mode` (none on a symbolic link).
    ///
    /// Setuid and setgid of a file are left out if its owner or group is not the source's, or was not to be kept: they
    /// would lend another user's rights. The same goes for file capabilities. Users who are not root do not keep users,
    /// and keep only groups that they are in. If the sender happens to give a file to just that user, this is no reason
    /// to let the file run with the user's rights. The bits of a directory lend no rights, and stay. The group's
    /// permissions are left out if the source has an ACL that could not be set. They are then the mask of that ACL, and
    /// the group may have fewer permissions.
    pub fn apply(
        &self,
        options: &TreeOptions,
        object: Object<'_>,
        metadata: &Metadata<'_>,
        mode: Option<u32>,
        current: Current,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut owner = (current.uid, current.gid);
        let wanted = self.owner(options, metadata, owner);
        if owner != wanted {
            if let Some(mode) = mode.filter(|_| current.was_there) {
                // The new group must never have more permissions than in the end, which an ACL may define. The owner's
                // are still needed.
                let own = if current.is_directory { 0o700 } else { 0 };
                let _ = object.set_mode(current.mode & (mode | 0o7700) & !0o070 | own);
            }
            match object.set_owner(wanted.0, wanted.1) {
                Ok(()) => owner = wanted,
                // As in cp: users who are not root do not decide who is in which group.
                Err(Errno::PERM | Errno::INVAL) if !self.is_root => {}
                failed => applied.note(parts::OWNER, failed),
            }
        }
        let rights = self.rights(options, metadata, owner, current.is_directory);
        rights.note_less(metadata, mode);
        let mut lost = Vec::new();
        if options.xattrs {
            // Attributes that the source has as well are replaced in one step.
            let named = names(metadata.xattrs);
            let of_source = |kept: &[u8]| named.contains(kept) && rights.may_keep(kept);
            if options.acls() && (current.gets_acl || current.was_there) {
                let has_acl = || object.xattr(ACCESS_ACL_NAME, &mut [0]) == Err(Errno::RANGE);
                if current.was_there && !of_source(ACCESS_ACL) && has_acl() {
                    // Without the ACL, its mask would be the group's permissions until the mode is set.
                    let own = if current.is_directory { 0o700 } else { 0 };
                    let _ = object.set_mode(current.mode & 0o1707 | own);
                }
                remove_acls(object, of_source);
            }
            if current.was_there {
                let goes = |name: &[u8]| !ACLS.contains(&name) && rights.may_remove(name) && !of_source(name);
                applied.note(parts::ATTRIBUTES, remove_xattrs(object, goes));
            }
            lost = set_xattrs(object, metadata.xattrs, |name| rights.may_set(name), &mut applied);
        }
        if let Some(mode) = mode {
            let mut mode = rights.mode(mode);
            if lost.iter().any(|(name, _)| *name == ACCESS_ACL) {
                mode &= !0o070;
            }
            applied.note(parts::MODE, object.set_mode(mode));
        }
        if options.keeps_times(current.is_directory) {
            let times =
                Timestamps { last_access: timespec(metadata.accessed), last_modification: timespec(metadata.modified) };
            applied.note(parts::TIMES, object.set_times(&times));
        }
        if !lost.is_empty() {
            self.note_lost(object, &lost, applied);
        }
        applied.of(owner.0)
    }
}

/// The rights that a copy gets of its source's. Copies are compared by the same rules by which they are set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights<'a> {
    options: &'a TreeOptions,
    setter: &'a Setter,
    /// Whether the copy may run with its owner's rights.
    may_lend: bool,
    is_directory: bool,
    /// Group of the entry.
    group: u32,
}

impl Rights<'_> {
    /// Returns the mode that is set if this one is wanted.
    pub fn mode(self, mode: u32) -> u32 {
        let &Setter { is_root, is_local, .. } = self.setter;
        if !self.options.mode {
            return mode;
        }
        if self.is_directory {
            // The kernel silently drops setgid if the group is not one of the user's, as with rsync.
            let keeps_group = mode & SET_GID == 0 || is_root || is_own_group(self.group);
            return if keeps_group { mode } else { mode & !SET_GID };
        }
        if self.may_lend && (is_root || is_local) { mode } else { mode & !SET_IDS }
    }

    /// Whether an extended attribute is set if the source has it.
    pub fn may_set(self, name: &[u8]) -> bool {
        match () {
            () if ACLS.contains(&name) => self.options.acls(),
            () if is_privileged(name) => self.setter.is_root && (self.may_lend || name != CAPABILITY),
            () => is_users(name),
        }
    }

    /// Whether an extended attribute that was there may stay until the source's takes its place. File capabilities go like
    /// setuid if they may not be set: the source may have fewer of them by now.
    pub fn may_keep(self, name: &[u8]) -> bool {
        self.may_set(name) || !self.options.mode
    }

    /// Whether an extended attribute that was there is removed if the source does not have it. File capabilities are
    /// removed, because they may have been revoked at the source. Others that only root may set have a meaning that a
    /// copy must not remove.
    pub fn may_remove(self, name: &[u8]) -> bool {
        is_users(name) || name == CAPABILITY && self.setter.is_root || ACLS.contains(&name) && self.options.acls()
    }

    /// Records whether these rights give the copy less than its source has. `mode`: the permission bits to be set.
    pub fn note_less(self, metadata: &Metadata<'_>, mode: Option<u32>) {
        let lacks_bits = mode.is_some_and(|mode| self.mode(mode) != mode);
        // Nothing that only root can set is expected of others.
        let is_expected = |name: &[u8]| if is_privileged(name) { self.setter.is_root } else { is_ever_set(name) };
        let is_lost = |name: &[u8]| is_expected(name) && !self.may_set(name);
        if lacks_bits || self.options.xattrs && metadata.xattrs.iter().any(|(name, _)| is_lost(name)) {
            self.setter.has_less.store(true, Relaxed);
        }
    }
}

fn has(attributes: &[(u64, Vec<u8>)], device: u64, name: &[u8]) -> bool {
    attributes.iter().any(|(on, other)| *on == device && other == name)
}

fn is_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// Whether any receiver sets an attribute. Other names of `system.`, and those of file systems themselves, are not
/// attributes but entrances to a file system (CIFS, NFS, Lustre).
fn is_ever_set(name: &[u8]) -> bool {
    is_users(name) || is_privileged(name) || ACLS.contains(&name)
}

fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Whether an attribute that cannot be set for this reason is passed over, and does not count as a failure. Root of a
/// container may set few of the privileged attributes; cp ignores that, too.
fn is_passed_over(name: &[u8], error: Errno) -> bool {
    error == Errno::OPNOTSUPP || is_privileged(name) && error == Errno::PERM
}

/// Sets extended attributes for which `may_set` holds. Returns those that could not be set.
fn set_xattrs<'a>(
    object: Object<'_>,
    xattrs: Xattrs<'a>,
    may_set: impl Fn(&[u8]) -> bool,
    applied: &mut Applied,
) -> Vec<(&'a [u8], Errno)> {
    let mut lost = Vec::new();
    // ACLs come last, because they may take away the right to set the others.
    let are_acls = |wanted: bool| xattrs.iter().filter(move |(name, _)| ACLS.contains(name) == wanted);
    for (name, value) in are_acls(false).chain(are_acls(true)) {
        let is_acl = ACLS.contains(&name);
        if !may_set(name) {
            continue;
        }
        // A new file lacks write permission if the default ACL of its directory denies it to owners.
        if let Err(error) = change_xattr(object, || object.set_xattr(name, value)) {
            lost.push((name, error));
            if is_acl {
                // The entry must not keep an ACL that is not the source's.
                remove_acls(object, |other| other != name);
            }
            applied.is_unsupported |= error == Errno::OPNOTSUPP;
            if !is_passed_over(name, error) {
                // No room for an attribute does not mean a full disk: ext4 reports ENOSPC for attributes longer than a
                // block.
                let error = if error == Errno::NOSPC { Errno::TOOBIG } else { error };
                applied.note(if is_acl { parts::ACL } else { parts::ATTRIBUTES }, Err(error));
            }
        }
    }
    lost
}

/// Returns a time as it is sent. A damaged inode, or a server, may tell of more nanoseconds than a second has, for
/// which the receiver would refuse the whole tree.
fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time { seconds, nanoseconds: nanoseconds.min(NANOSECONDS_MAX) }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::fs::{XattrFlags, fsetxattr};

    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::not_run::not_run;

    #[test]
    fn a_time_that_cannot_be_is_sent_as_one_that_can() {
        let file = tempfile::tempfile().expect("a file");
        let mut stat = rustix::fs::fstat(&file).expect("it");
        (stat.st_mtime, stat.st_mtime_nsec) = (7, 1_000_000_000);
        (stat.st_atime, stat.st_atime_nsec) = (8, 4_294_967_295);
        let options = TreeOptions::default();
        let mut reader = Reader::new(&options).expect("no --chmod");
        let metadata = reader.read(&options, Object::Open(file.as_fd()), &stat).expect("read");
        // Decoded as by the receiver.
        let owned = OwnedMetadata::new(&metadata);
        let Metadata { modified, accessed, .. } = owned.borrow();
        let expected = [7, 8].map(|seconds| Time { seconds, nanoseconds: 999_999_999 });
        assert_eq!([modified, accessed], expected);
    }

    /// Before it is written in place, the receiver must be able to tell that it is its own copy.
    #[test]
    fn in_place_a_file_that_is_sent_names_its_inode() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let stat = fstat(&file).expect("it");
        for (in_place, is_sent) in [(true, true), (true, false), (false, true)] {
            let options = TreeOptions { in_place, ..TreeOptions::default() };
            let mut reader = Reader::new(&options).expect("no --chmod");
            let object =
                if is_sent { Object::Open(file.as_file().as_fd()) } else { Object::Path(file.as_file().as_fd()) };
            let metadata = reader.read(&options, object, &stat).expect("read");
            let is_named = metadata.extensions.iter().any(|extension| extension == inode(&stat, &options));
            assert_eq!(is_named, in_place && is_sent, "in place {in_place}, sent {is_sent}");
        }
    }

    #[test]
    fn an_entry_that_refuses_other_changes_says_nothing_about_the_attributes_of_others() {
        let file = tempfile::tempfile().expect("a file");
        let stat = fstat(&file).expect("it");
        let mut xattrs = Vec::new();
        assert!(Xattrs::push(&mut xattrs, b"user.test", b"1"));
        let metadata = Metadata { uid: stat.st_uid, gid: stat.st_gid, xattrs: Xattrs::new(&xattrs), ..Metadata::ZERO };
        let refuses_all = [libc::SYS_fsetxattr, libc::SYS_fchmod];
        for (calls, is_impossible) in [(&refuses_all[..1], true), (&refuses_all[..], false)] {
            let setter = Setter::new(false);
            let apply = || {
                let current = Current::new(&stat, false, false);
                setter.apply(&TreeOptions::default(), Object::Open(file.as_fd()), &metadata, Some(0o600), current)
            };
            let applied = where_calls_fail(calls, libc::EOPNOTSUPP, apply);
            assert_eq!((applied.is_unsupported, applied.unset.is_none()), (true, is_impossible));
            assert!(setter.has_less());
            let is_noted = |device, name: &[u8]| has(&crate::locked(&setter.impossible), device, name);
            assert_eq!(is_noted(stat.st_dev, b"user.test"), is_impossible);
            assert!(!is_noted(stat.st_dev, b"user.other") && !is_noted(stat.st_dev ^ 1, b"user.test"));
        }
    }

    /// Otherwise each run would set it again, and `-n` would list every entry.
    #[test]
    fn an_attribute_that_the_file_system_does_not_know_is_no_difference() {
        let file = tempfile::tempfile().expect("a file");
        let device = fstat(&file).expect("it").st_dev;
        for (error, is_impossible) in [(libc::EOPNOTSUPP, true), (libc::ENODATA, false)] {
            let setter = Setter::new(false);
            where_calls_fail(&[libc::SYS_fgetxattr], error, || {
                let object = Object::Open(file.as_fd());
                assert_eq!(setter.is_impossible(object, device, b"user.test"), is_impossible);
            });
            assert_eq!(setter.has_less(), is_impossible);
        }
    }

    /// Another user may have given a file thousands of attributes, which every run then sets and compares.
    #[test]
    fn attributes_take_little_more_time_than_the_system_takes_to_set_them() {
        let (file, mut xattrs) = (tempfile::tempfile_in("/dev/shm").expect("a file"), Vec::new());
        let began = Instant::now();
        for number in 0..6000 {
            let name = format!("user.{number:04}");
            assert!(Xattrs::push(&mut xattrs, name.as_bytes(), b""));
            if let Err(error) = fsetxattr(&file, &*name, b"", XattrFlags::empty()) {
                assert_eq!(error, Errno::OPNOTSUPP);
                return not_run("/dev/shm has no attributes");
            }
        }
        let set = began.elapsed();
        let stat = fstat(&file).expect("it");
        let metadata = Metadata { uid: stat.st_uid, gid: stat.st_gid, xattrs: Xattrs::new(&xattrs), ..Metadata::ZERO };
        let apply = || {
            let (began, current) = (Instant::now(), Current::new(&stat, false, true));
            let object = Object::Open(file.as_fd());
            let applied = Setter::new(false).apply(&TreeOptions::default(), object, &metadata, Some(0o600), current);
            assert!(applied.unset.is_none());
            began.elapsed()
        };
        let applied = (0..3).map(|_| apply()).min().expect("three times");
        assert!(applied < 2 * set + Duration::from_millis(50), "{applied:?}, set in {set:?}");
    }

    /// A hostile sender must not make the receiver use memory without limit.
    #[test]
    fn only_so_many_impossible_attributes_are_remembered() {
        let file = tempfile::tempfile().expect("a file");
        let device = fstat(&file).expect("it").st_dev;
        let setter = Setter::new(false);
        let names: Vec<String> = (0..=IMPOSSIBLE_MAX).map(|number| format!("user.{number}")).collect();
        for name in &names {
            let lost = [(name.as_bytes(), Errno::OPNOTSUPP)];
            setter.note_lost(Object::Open(file.as_fd()), &lost, Applied::default());
            setter.note_lost(Object::Open(file.as_fd()), &lost, Applied::default());
        }
        let noted = crate::locked(&setter.impossible);
        let known = names.iter().filter(|name| has(&noted, device, name.as_bytes())).count();
        assert_eq!(known, IMPOSSIBLE_MAX);
    }
}
