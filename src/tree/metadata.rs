//! Metadata of entries: read for their records, and set on what is made of them, in the one order in which no step undoes
//! another.
//!
//! A change of owner clears setuid, setgid and capabilities, so it comes first. `user.` attributes want write permission,
//! and setting an ACL changes the mode, so the mode comes after them. Times come last.

use std::ffi::CStr;

use rd_proto::tree::{Extension, Extensions, Metadata, Record, Time, Xattrs};
use rustix::fs::{FileType, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::Fault;
use super::owners::Named;
use crate::fs::accounts::is_own_group;
use crate::fs::metadata::{
    ACCESS_ACL, ACCESS_ACL_NAME, ACLS, Object, XATTR_BYTES_MAX, remove_acls, remove_user_xattrs, without_acl,
};
use crate::options::{Chmod, TreeOptions};

/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;
const SET_GID: u32 = 0o2000;

/// An owner or group that is not known yet: no file has this one.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// What no record has room for.
const TOO_LARGE: &str =
    "has extended attributes of more than 128 KiB, too many to be copied; --no-xattrs leaves them out";

/// File capabilities: what set-user-ID root is, in parts.
const CAPABILITY: &[u8] = b"security.capability";

/// Reads the metadata of entries, changed as was asked for, and keeps its buffers.
#[derive(Default)]
pub(super) struct Reader {
    chmod: Chmod,
    named: Option<Named>,
    /// The list and a value of extended attributes.
    buffer: Vec<u8>,
    /// The extended attributes of an entry, encoded.
    xattrs: Vec<u8>,
    /// Its extensions, encoded.
    extensions: Vec<u8>,
}

impl Reader {
    /// # Errors
    ///
    /// What is wrong with `--chmod`.
    pub fn new(options: &TreeOptions) -> Result<Self, &'static str> {
        let chmod = match &options.chmod[..] {
            [] => Chmod::default(),
            changes => Chmod::parse(&changes.join(","), crate::fs::umask())?,
        };
        let named = (options.owner && !options.numeric_ids).then(Named::default);
        Ok(Self { chmod, named, buffer: Vec::new(), xattrs: Vec::new(), extensions: Vec::new() })
    }

    /// The metadata of an entry: one call where it has no attributes. Where they are not asked for, the mode is without
    /// what it says by an ACL that is not sent.
    pub fn read(&mut self, options: &TreeOptions, entry: Object<'_>, stat: &Stat) -> Result<Metadata<'_>, Fault> {
        self.xattrs.clear();
        self.extensions.clear();
        let mut mode = stat.st_mode & 0o7777;
        if options.xattrs {
            self.read_xattrs(entry)?;
        } else if mode & 0o070 != 0
            && FileType::from_raw_mode(stat.st_mode) != FileType::Symlink
            // As for the list of attributes: hardly any entry has one, and the kernel makes a buffer as large as ours.
            && entry.xattr(ACCESS_ACL_NAME, &mut [0]) == Err(Errno::RANGE)
        {
            self.buffer.resize(2 * XATTR_BYTES_MAX, 0);
            if let Ok(length) = entry.xattr(ACCESS_ACL_NAME, &mut self.buffer) {
                mode = without_acl(mode, &self.buffer[..length]);
            }
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Symlink {
            mode = self.chmod.applied(mode, kind == FileType::Directory);
        }
        if let Some(named) = &mut self.named {
            named.push(stat.st_uid, stat.st_gid, &mut self.extensions);
        }
        if options.remove_source_files && !options.dry_run && kind != FileType::Directory {
            let changed = (stat.st_ctime, stat.st_ctime_nsec as u32);
            Extensions::push(&mut self.extensions, Extension::Inode { number: stat.st_ino, changed }, true);
        }
        Ok(Metadata {
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            modified: Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 },
            accessed: Time { seconds: stat.st_atime, nanoseconds: stat.st_atime_nsec as u32 },
            xattrs: Xattrs::new(&self.xattrs),
            extensions: Extensions::new(&self.extensions),
        })
    }

    fn read_xattrs(&mut self, entry: Object<'_>) -> Result<(), Fault> {
        // Hardly any entry has attributes, and the kernel makes a buffer as large as ours for each call.
        // A name has more than the one byte; rustix answers 0 for no buffer. NOENT: there is no /proc to name it by; links and
        // FIFOs hardly ever have any.
        let has_none = |listed| matches!(listed, Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOENT));
        if has_none(entry.list_xattrs(&mut [0])) {
            return Ok(());
        }
        self.buffer.resize(2 * XATTR_BYTES_MAX, 0);
        let (names, value) = self.buffer.split_at_mut(XATTR_BYTES_MAX);
        let listed = entry.list_xattrs(names);
        let length = if has_none(listed) { 0 } else { listed? };
        for name in names[..length].split_inclusive(|&byte| byte == 0) {
            let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::INVAL)?;
            let length = match entry.xattr(name, value) {
                Ok(length) => length,
                // It is gone, or is listed for others to read.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                // Of a directory that may be entered and not read.
                Err(Errno::ACCESS) if matches!(entry, Object::Path(_)) => continue,
                Err(error) => return Err(error.into()),
            };
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

/// What an entry has before anything is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Permissions.
    pub mode: u32,
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
        let mode = stat.st_mode & 0o7777;
        Self { uid: stat.st_uid, gid: stat.st_gid, mode, is_directory, gets_acl, was_there }
    }
}

/// What could not be set, as bits.
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
    /// Bits of [`parts`].
    pub parts: u8,
    /// What the first call answered that failed.
    pub error: Errno,
    /// Whose the entry is.
    pub owner: u32,
}

/// What became of it: all is tried, whatever fails.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(super) struct Applied {
    pub unset: Option<Unset>,
    /// The file system has no such extended attributes.
    pub is_unsupported: bool,
}

impl Applied {
    /// Takes note of a call that was to set this part.
    pub fn note(&mut self, part: u8, set: Result<(), Errno>) {
        if let Err(error) = set {
            self.unset.get_or_insert(Unset { parts: 0, error, owner: UNKNOWN }).parts |= part;
        }
    }

    /// The same, of an entry of this owner.
    pub fn of(mut self, owner: u32) -> Self {
        if let Some(unset) = &mut self.unset {
            unset.owner = owner;
        }
        self
    }
}

/// The mode for a copy of what has this `metadata`; where modes are not kept, no more than is `permitted`.
pub(super) fn mode(options: &TreeOptions, metadata: &Metadata<'_>, permitted: u32) -> u32 {
    if options.acls() {
        return metadata.mode;
    }
    let acl = metadata.xattrs.iter().find(|(name, _)| *name == ACCESS_ACL);
    let mode = acl.map_or(metadata.mode, |(_, acl)| without_acl(metadata.mode, acl));
    if options.mode { mode } else { mode & permitted }
}

/// Sets metadata, as far as it was asked for and we may.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setter {
    /// Who sets it.
    user: u32,
    is_root: bool,
    /// What is set was read by this process, as this user.
    is_local: bool,
}

impl Setter {
    /// One for this process, whose rights are asked for once. `is_local`: what is set was read by this process.
    pub fn new(is_local: bool) -> Self {
        let user = rustix::process::geteuid();
        Self { user: user.as_raw(), is_root: user.is_root(), is_local }
    }

    /// Owner and group that an entry is to have which has these now: each the source's, or that of `--chown`, where it was
    /// asked for and we may, and stays else. Those who are not root give what is theirs to the groups that they are in.
    pub fn owner(self, options: &TreeOptions, metadata: &Metadata<'_>, current: (u32, u32)) -> (u32, u32) {
        let (user, group) =
            options.chown.as_deref().map_or(("", ""), |chown| chown.split_once(':').unwrap_or((chown, "")));
        let is_ours = || [self.user, UNKNOWN].contains(&current.0);
        let may_group = || self.is_root || is_ours() && is_own_group(metadata.gid);
        let uid = if self.is_root && (options.owner || !user.is_empty()) { metadata.uid } else { current.0 };
        let gid = if (options.owner || !group.is_empty()) && may_group() { metadata.gid } else { current.1 };
        (uid, gid)
    }

    /// What is set on an entry with these options, once it has this owner and group.
    pub fn rights<'a>(
        self,
        options: &'a TreeOptions,
        metadata: &Metadata<'_>,
        owner: (u32, u32),
        is_directory: bool,
    ) -> Rights<'a> {
        // A set-ID file runs with its owner's rights: they are not to become another owner's.
        let is_sources = options.owner && options.chown.is_none();
        let may_lend = options.mode && is_sources && owner == (metadata.uid, metadata.gid);
        Rights { options, setter: self, may_lend, is_directory, group: owner.1 }
    }

    /// Sets `metadata` as far as the `options` ask for it, and the permission bits `mode` (none on a symbolic link).
    ///
    /// Setuid and setgid of a file are left out where owner or group are not the source's, or were not to be kept:
    /// they would lend somebody else's rights; and so are file capabilities. Those who are not root do not keep users, and
    /// only groups that they are in: that the sender gives a file to just them is no reason to have it run with their
    /// rights. A directory's lend none, and stay. The group's permissions are left out where the source has an ACL that
    /// could not be set: they are that ACL's mask then, and the group may have less.
    pub fn apply(
        self,
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
                // The new group is never to have more than in the end, which an ACL may say. What the owner may is still needed.
                let own = if current.is_directory { 0o700 } else { 0 };
                let _ = object.set_mode(current.mode & (mode | 0o7700) & !0o070 | own);
            }
            match object.set_owner(wanted.0, wanted.1) {
                Ok(()) => owner = wanted,
                // As cp has it: it is not for them to say who is in which group.
                Err(Errno::PERM | Errno::INVAL) if !self.is_root => {}
                failed => applied.note(parts::OWNER, failed),
            }
        }
        let rights = self.rights(options, metadata, owner, current.is_directory);
        let mut lost_acl = false;
        if options.xattrs {
            // Those that the source has as well are replaced in one step.
            let of_source = |kept: &[u8]| metadata.xattrs.iter().any(|(name, _)| name == kept);
            if options.acls() && (current.gets_acl || current.was_there) {
                remove_acls(object, of_source);
            }
            if current.was_there {
                applied.note(parts::ATTRIBUTES, remove_user_xattrs(object, of_source));
            }
            lost_acl = set_xattrs(object, metadata.xattrs, |name| rights.may_set(name), mode.is_some(), &mut applied);
        }
        if let Some(mode) = mode {
            let mut mode = rights.mode(mode);
            if lost_acl {
                mode &= !0o070;
            }
            applied.note(parts::MODE, object.set_mode(mode));
        }
        if options.keeps_times(current.is_directory) {
            let times =
                Timestamps { last_access: timespec(metadata.accessed), last_modification: timespec(metadata.modified) };
            applied.note(parts::TIMES, object.set_times(&times));
        }
        applied.of(owner.0)
    }
}

/// What of a source's rights its copy gets: as it is set, so it is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights<'a> {
    options: &'a TreeOptions,
    setter: Setter,
    /// It may run with its owner's rights.
    may_lend: bool,
    is_directory: bool,
    /// The group that the entry has.
    group: u32,
}

impl Rights<'_> {
    /// The mode that is set for this one.
    pub fn mode(self, mode: u32) -> u32 {
        let Setter { is_root, is_local, .. } = self.setter;
        if !self.options.mode {
            return mode;
        }
        if self.is_directory {
            // The kernel drops it without a word where the group is not one of the user's, as with rsync.
            let keeps_group = mode & SET_GID == 0 || is_root || is_own_group(self.group);
            return if keeps_group { mode } else { mode & !SET_GID };
        }
        if self.may_lend && (is_root || is_local) { mode } else { mode & !SET_IDS }
    }

    /// Whether an extended attribute is set where the source has it.
    pub fn may_set(self, name: &[u8]) -> bool {
        match () {
            () if ACLS.contains(&name) => self.options.acls(),
            // Other names of `system.` are no attributes but doors into a file system (CIFS, NFS).
            () if is_privileged(name) => self.setter.is_root && (self.may_lend || name != CAPABILITY),
            () => is_users(name),
        }
    }

    /// Whether an extended attribute that was there is taken away where the source does not have it.
    pub fn may_remove(self, name: &[u8]) -> bool {
        is_users(name) || ACLS.contains(&name) && self.options.acls()
    }
}

fn is_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Whether an access ACL was not set. `may_set`: whether an attribute may be.
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
        if !may_set(name) {
            continue;
        }
        if let Err(error) = set_xattr(object, name, value, may_open) {
            lost_acl |= name == ACCESS_ACL;
            if is_acl {
                // Nor is it to keep one that is not the source's.
                remove_acls(object, |other| other != name);
            }
            if error == Errno::OPNOTSUPP {
                applied.is_unsupported = true;
            } else if !(is_privileged(name) && error == Errno::PERM) {
                // Root of a container may set few of the privileged ones; cp ignores that, too.
                // No room for an attribute does not mean a full disk: ext4 says so of those longer than a block.
                let error = if error == Errno::NOSPC { Errno::TOOBIG } else { error };
                applied.note(if is_acl { parts::ACL } else { parts::ATTRIBUTES }, Err(error));
            }
        }
    }
    lost_acl
}

/// Sets an extended attribute. `user.` attributes want write permission, which a file of ours lacks where the default ACL
/// of its directory denies it to owners: with `may_open`, it gets that, and the caller sets the mode afterwards.
fn set_xattr(object: Object<'_>, name: &[u8], value: &[u8], may_open: bool) -> Result<(), Errno> {
    match object.set_xattr(name, value) {
        Err(Errno::ACCESS) if may_open => {
            object.set_mode(0o700)?;
            object.set_xattr(name, value)
        }
        done => done,
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}
