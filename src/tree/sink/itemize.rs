//! Reports entries to the caller: how each differs from what was there, determined before anything of it is changed.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::AsFd;

use rd_proto::tree::{Answer, Metadata, Xattrs};
use rustix::fs::{FileType, Stat, readlinkat};

use super::Shared;
use super::directory::OpenDirectory;
use super::judge::is_same_time;
use crate::fs::is_directory;
use crate::fs::metadata::{ACCESS_ACL, ACLS, Object};
use crate::tree::entries::{Change, Effect, Entry, FileKind, differs};
use crate::tree::metadata::{self, Reader, Rights};

pub(super) use crate::tree::stats::kind;

/// Target of a symbolic link that stays.
pub(super) fn target(directory: &OpenDirectory, name: &[u8], kind: FileKind) -> Option<Vec<u8>> {
    let read = || readlinkat(&directory.fd, name, Vec::new()).ok();
    if kind == FileKind::Symlink { read().map(CString::into_bytes) } else { None }
}

/// Returns the bits of [`differs`] whose property is not the same.
pub(super) fn bits<const N: usize>(is_same: [(u16, bool); N]) -> u16 {
    is_same.into_iter().filter(|(_, is_same)| !is_same).fold(0, |bits, (bit, _)| bits | bit)
}

/// Returns how the metadata of an entry, which `stat` describes, differ from the metadata it is to have: bits of
/// [`differs`].
pub(super) fn differing(
    shared: &Shared,
    entry: Object<'_>,
    stat: &Stat,
    described: &Metadata<'_>,
    mode: Option<u32>,
) -> u16 {
    let options = &shared.options;
    // If times are compared with a window, the clock may be that coarse: a time within the window could not be set any
    // better.
    let is_directory = is_directory(stat);
    let keeps_time = options.keeps_times(is_directory);
    let has_time = !keeps_time || is_same_time(options, stat, described);
    let owner = shared.setter.owner(options, described, (stat.st_uid, stat.st_gid));
    let rights = shared.setter.rights(options, described, owner, is_directory);
    rights.note_less(described, mode);
    // Where no ACL can be set, the group gets nothing of what the ACL would have given it.
    let lacks_acl = options.xattrs
        && rights.may_set(ACCESS_ACL)
        && described.xattrs.iter().any(|(name, _)| name == ACCESS_ACL)
        && shared.setter.is_impossible(entry, stat.st_dev, ACCESS_ACL);
    let permitted = if lacks_acl { 0o7707 } else { 0o7777 };
    let bits = bits([
        (differs::TIME, has_time),
        (differs::OWNER, stat.st_uid == owner.0),
        (differs::GROUP, stat.st_gid == owner.1),
        (differs::MODE, mode.is_none_or(|mode| rights.mode(mode) & permitted == stat.st_mode & 0o7777)),
    ]);
    if options.xattrs { bits | differing_xattrs(shared, entry, stat, described.xattrs, rights) } else { bits }
}

/// Compares extended attributes. Attributes that are neither set nor removed do not count, nor do those that this run
/// could not set: they would differ for ever.
fn differing_xattrs(shared: &Shared, entry: Object<'_>, stat: &Stat, described: Xattrs<'_>, rights: Rights<'_>) -> u16 {
    let mut reader = Reader::default();
    let Ok(there) = reader.read(&shared.options, entry, stat) else { return differs::XATTRS };
    unequal(there.xattrs, described, rights, |name| shared.setter.is_impossible(entry, stat.st_dev, name))
}

/// Compares extended attributes that are there with those described.
fn unequal(there: Xattrs<'_>, described: Xattrs<'_>, rights: Rights<'_>, is_impossible: impl Fn(&[u8]) -> bool) -> u16 {
    // The order does not matter, because each name occurs once.
    let (have, named): (BTreeMap<_, _>, _) = (there.iter().collect(), metadata::names(described));
    let are_same = |are_acls: bool| {
        let is_one = |name: &[u8]| ACLS.contains(&name) == are_acls;
        let mut wanted = described.iter().filter(|(name, _)| is_one(name) && rights.may_set(name));
        let mut extra = have.keys().filter(|name| is_one(name) && rights.may_remove(name));
        wanted.all(|(name, value)| have.get(name) == Some(&value) || is_impossible(name))
            && extra.all(|name| named.contains(name) && rights.may_keep(name))
    };
    bits([(differs::ACL, are_same(true)), (differs::XATTRS, are_same(false))])
}

/// An entry that is to come.
pub(super) struct Coming<'a> {
    pub kind: FileType,
    pub metadata: &'a Metadata<'a>,
    /// Size of a file; `None` for other kinds.
    pub size: Option<u64>,
}

impl Shared {
    /// Answers the sender, and counts the bytes of the answer if the options ask for that.
    pub(super) fn answer(&self, answer: Answer) {
        if self.options.stats {
            crate::locked(&self.stats).answered_bytes += answer.encode().len() as u64;
        }
        (self.answer)(answer);
    }

    /// Whether the outcome for each entry is reported or counted.
    pub(super) fn is_told(&self) -> bool {
        self.options.stats || self.entries.is_some()
    }
}

impl OpenDirectory {
    /// Returns how an entry that is to come differs from the existing entry of its name. `None` if there is no entry of
    /// its kind, or if the result is neither reported nor counted.
    pub(super) fn compare(&self, name: &[u8], coming: &Coming<'_>) -> Option<u16> {
        let (shared, options) = (&self.shared, &self.shared.options);
        if !shared.is_told() {
            return None;
        }
        let old = self.stat(name).ok()?;
        if kind(FileType::from_raw_mode(old.st_mode)) != kind(coming.kind) {
            return None;
        }
        let path = CString::new(name).ok()?;
        let mode = options.mode && coming.kind != FileType::Symlink;
        let mode = mode.then(|| metadata::mode(options, coming.metadata, 0o777));
        let of_metadata = differing(shared, Object::Named(self.fd.as_fd(), &path), &old, coming.metadata, mode);
        let others = bits([
            (differs::SIZE, coming.size.is_none_or(|size| size == old.st_size as u64)),
            (differs::CONTENTS, coming.kind == FileType::RegularFile && !options.checksum),
        ]);
        Some(of_metadata | others)
    }

    /// Reports an entry to the caller, or counts it, or both, as the options ask for.
    pub(super) fn tell(
        &self,
        name: &[u8],
        (effect, kind): (Effect, FileKind),
        differs: Option<u16>,
        leads_to: impl FnOnce() -> Option<Vec<u8>>,
    ) {
        if self.shared.options.stats {
            crate::locked(&self.shared.stats).note(effect, kind, differs.is_none());
        }
        let Some(entries) = &self.shared.entries else { return };
        let (path, leads_to) = (self.told_path(name), leads_to());
        entries.tell(Entry::Changed(Change { path, effect, kind, differs, leads_to }));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::options::TreeOptions;
    use crate::tree::metadata::Setter;

    /// A sender may describe thousands for each entry, and another user may have set as many.
    #[test]
    fn attributes_are_compared_without_searching_all_for_each() {
        let (mut there, mut described) = (Vec::new(), Vec::new());
        for number in 0..8000 {
            assert!(Xattrs::push(&mut there, format!("user.{number}").as_bytes(), b"1"));
            assert!(Xattrs::push(&mut described, format!("user.{}", 7999 - number).as_bytes(), b"1"));
        }
        let (options, setter) = (TreeOptions::default(), Setter::new(false));
        let rights = setter.rights(&options, &Metadata::ZERO, (0, 0), false);
        let compare = |there: &[u8]| unequal(Xattrs::new(there), Xattrs::new(&described), rights, |_| false);
        let timed = || {
            let began = Instant::now();
            assert_eq!(compare(&there), 0);
            began.elapsed()
        };
        let fastest = (0..5).map(|_| timed()).min().expect("five times");
        assert!(fastest < Duration::from_millis(100), "{fastest:?}");
        let last = there.len() - 1;
        assert_eq!(compare(&[&there[..last], b"2"].concat()), differs::XATTRS, "another value");
        assert!(Xattrs::push(&mut there, b"user.more", b""));
        assert_eq!(compare(&there), differs::XATTRS, "one more");
        assert_eq!(compare(b""), differs::XATTRS, "none");
    }
}
