//! Makes further names (hard links) of entries that have come.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rd_proto::tree::OPEN_LINKS_MAX;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fstatfs, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::directory::{OpenDirectory, find};
use super::entry::make_beside;
use super::judge::is_newer;
use super::rehearse::Planned;
use super::target::publish;
use super::{Names, Refused, TreeSink};
use crate::fs::metadata::by_path;
use crate::fs::partial::REPLACED;
use crate::fs::{WHOLE, identity, is_regular, name_beside};
use crate::options::TreeOptions;
use crate::tree::entries::FileKind;
use crate::tree::{FIRST_NAME_FAILED, Fault};

/// Why a further name counts as failed: the newer file here stays, and the sender would remove the name at the source.
const IS_NEWER: &str = "is newer than the source and was kept, so its hard link at the source must not be removed";

impl TreeSink {
    /// Makes a further name of the entry that came under the path `first`, or puts it off until that entry is whole.
    pub(super) fn link(&mut self, directory: &Arc<OpenDirectory>, name: &[u8], first: &[u8]) -> Result<(), Refused> {
        let Some(top) = self.levels.first().cloned().flatten() else { return Ok(()) };
        let mut first = first.to_vec();
        let end = first.iter().position(|&byte| byte == b'/').unwrap_or(first.len());
        let was_asked_for = match &self.shared.names {
            #[cfg(test)]
            Names::Any => true,
            Names::Only(_) => self.root.as_deref() == Some(&first[..end]),
            Names::Among(names) => names.contains(&first[..end]),
        };
        if !was_asked_for {
            return Err(Refused::Data("a hard link to a file of another tree"));
        }
        match self.shared.root_name() {
            Some(b".") => drop(first.drain(..(end + 1).min(first.len()))),
            Some(other) => drop(first.splice(..end, other.iter().copied())),
            None => {}
        }
        let path = top.path(&first);
        let waiting: usize = self.slots.values().map(|slot| slot.links).sum();
        // A file held back has no name yet, also when all of its data has come: another file may have that name here.
        let put_off = self.held.as_mut().and_then(|held| held.link(&first, directory, name));
        let linked = if let Some(put_off) = put_off {
            let Err(fault) = put_off else { return Ok(()) };
            Err(fault)
        } else if let Some(slot) = self.slots.values_mut().find(|slot| slot.path == path)
            && let Some(large) = &slot.large
        {
            if waiting < OPEN_LINKS_MAX {
                slot.links += 1;
                large.link_later(Arc::clone(directory), name);
                return Ok(());
            }
            Err(Errno::MLINK.into())
        } else {
            self.shared.wait_drained();
            // The first name may be among what the workers have dropped. Another file can have this name here.
            if self.shared.is_stopped.load(Acquire) {
                return Ok(());
            }
            if self.shared.has_failed(&path) {
                Err(Fault::Detail(FIRST_NAME_FAILED))
            } else {
                let TreeOptions { recursive, symlinks, specials, safe_links, existing, ignore_existing, .. } =
                    self.shared.options;
                // If each entry is judged by its place or by what exists there, each comes with a record of its own,
                // not as a further name.
                let may_be_other = recursive && !existing && !ignore_existing;
                let wanted = |kind| match kind {
                    FileType::RegularFile => true,
                    FileType::Symlink => symlinks && may_be_other && !safe_links,
                    _ => specials && may_be_other,
                };
                let told = self.shared.without_root(&first).to_vec();
                if self.shared.options.dry_run {
                    let linked = directory.rehearse_link(&top, name, (&first, told), wanted);
                    directory.note_link(linked, name);
                    return Ok(());
                }
                let found = find(&top, &first, wanted);
                if self.shared.options.existing && matches!(found, Err(Errno::NOENT)) {
                    return Ok(());
                }
                let linked = found.map_err(Fault::from);
                linked.and_then(|found| link_again(found.as_fd(), directory, name, told))
            }
        };
        directory.note_link(linked, name);
        Ok(())
    }
}

/// Gives a complete file, open as `fd`, another name. An existing entry of that name is replaced atomically.
pub(super) fn link(fd: BorrowedFd<'_>, directory: &OpenDirectory, name: &[u8]) -> Result<(), Fault> {
    match link_new(fd, directory, name) {
        Err(Errno::EXIST) => directory.wants_names.store(true, Relaxed),
        Ok(()) => {
            directory.clear_mark(name, true);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    let beside = name_beside(name, WHOLE);
    make_beside(directory, &beside, || link_new(fd, directory, beside.as_bytes()))?;
    let name_it = || {
        let linked = openat(&directory.fd, &beside, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let kind = || fstatfs(&linked).map_or(0, |system| system.f_type as u32);
        if !is_same_file(&fstat(fd)?, &fstat(&linked)?, kind) {
            return Err(Fault::Explained(Errno::STALE, REPLACED));
        }
        // Only now, because the old entry may have to leave its name for this, and the link might have failed.
        directory.remove_replaced_directory(name)?;
        directory.keep_replaced(name, &beside)?;
        publish(&directory.fd, &*beside, &linked, name)
    };
    let done = name_it();
    // If both names belong to the same file, rename succeeds without doing anything, and the temporary name still
    // exists.
    let _ = unlinkat(&directory.fd, &beside, AtFlags::empty());
    done?;
    directory.clear_mark(name, true);
    Ok(())
}

/// Magic numbers of FUSE, CIFS and SMB 2 (statfs(2)), where each name of a file may have an inode number of its own.
const NUMBER_NAMES: [u32; 3] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42];

/// Whether the temporary entry `beside` is the file that was linked, and not an entry that another user with write
/// access to the directory has put in its place. On file systems where inode numbers may differ, the owner and all
/// other metadata must be the same: no other user can make a file with this owner.
fn is_same_file(first: &Stat, beside: &Stat, kind: impl FnOnce() -> u32) -> bool {
    let other = |stat: &Stat| {
        let modified = (stat.st_mtime, stat.st_mtime_nsec);
        (stat.st_dev, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size, modified, stat.st_rdev)
    };
    identity(first) == identity(beside) || other(first) == other(beside) && NUMBER_NAMES.contains(&kind())
}

/// Same as [`link`], unless the name already belongs to the file, or must be left alone. Returns true if the name was
/// left as it is. `first` is the path of the file, as reported to the caller.
pub(super) fn link_again(
    fd: BorrowedFd<'_>,
    directory: &OpenDirectory,
    name: &[u8],
    first: Vec<u8>,
) -> Result<bool, Fault> {
    let shared = &directory.shared;
    let told = if shared.is_told() { Some((fstat(fd)?, directory.stat(name).ok())) } else { None };
    if shared.options.sync {
        match directory.stat(name) {
            Err(Errno::NOENT) if shared.options.existing => return Ok(true),
            Ok(_) if shared.options.ignore_existing && !directory.is_resumed => return Ok(true),
            Ok(old) if identity(&old) == identity(&fstat(fd)?) => {
                // The file is to have both names, whether or not it was moved.
                let _ = directory.moves.as_ref().is_some_and(|moves| moves.meet(name, &old));
                return Ok(true);
            }
            Ok(old) if !directory.is_resumed && is_left_as_newer(&shared.options, &old, &Planned::of(&fstat(fd)?)) => {
                // The sender is asked to keep a file that is left here only if the sender has listed that file.
                let removes = shared.options.remove_source_files;
                return if removes { Err(Fault::Detail(IS_NEWER)) } else { Ok(true) };
            }
            Ok(old) => directory.check_way(name, &old)?,
            Err(_) => {}
        }
    }
    link(fd, directory, name)?;
    if let Some((linked, old)) = told {
        directory.tell_linked(name, &Planned::of(&linked), old.as_ref(), first);
    }
    Ok(false)
}

/// Whether `--update` keeps the entry that `old` describes, because that entry is newer than the file that is to get
/// its name.
pub(super) fn is_left_as_newer(options: &TreeOptions, old: &Stat, first: &Planned) -> bool {
    let are_files = first.kind == FileKind::Regular && is_regular(old);
    options.update && are_files && is_newer(options, old, first.modified)
}

/// Links by descriptor, so that no name can be exchanged on the way.
fn link_new(fd: BorrowedFd<'_>, directory: &OpenDirectory, name: &[u8]) -> Result<(), Errno> {
    if directory.shared.can_link_nameless.load(Relaxed) {
        match linkat(fd, "", &directory.fd, name, AtFlags::EMPTY_PATH) {
            // The kernel's answer to a caller that is not allowed to do this: before Linux 6.10, any user except root.
            Err(Errno::NOENT) => {}
            done => return done,
        }
    }
    by_path(fd, |path| linkat(CWD, path, &directory.fd, name, AtFlags::SYMLINK_FOLLOW))?;
    directory.shared.can_link_nameless.store(false, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_file_that_have_other_numbers_are_known_where_that_may_be() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let file = std::fs::File::create_new(scratch.path().join(name)).expect("made");
            std::io::Write::write_all(&mut &file, text.as_bytes()).expect("written");
            file.set_modified(std::time::UNIX_EPOCH).expect("ours");
            fstat(&file).expect("open")
        };
        let (first, like, other) = (file("first", "text"), file("like", "text"), file("other", "texts"));
        let mut owned = like;
        owned.st_uid += 1;
        for (kind, beside, is_same) in [
            (0xef53, &first, true),
            (0xef53, &like, false),
            (0x6573_5546, &like, true),
            (0x6573_5546, &other, false),
            (0xfe53_4d42, &like, true),
            (0xfe53_4d42, &owned, false),
        ] {
            assert_eq!(is_same_file(&first, beside, || kind), is_same, "{kind:x}");
        }
    }
}
