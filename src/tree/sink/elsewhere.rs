//! A basis elsewhere: a file on the receiving host, under another name, that most likely is the file to come. If it
//! proves to be the same, the file is not sent: the new name becomes a hard link to it, or it is copied within the
//! host.
//!
//! # Invariants
//!
//! * A file is linked only if it has all the metadata that the new entry is to have. It is never changed.
//! * The file is reached by descriptors, from a directory that the user has named or that is written to. No link is
//!   followed, not even a link in DST on the way to that directory.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rd_proto::tree::{Metadata, Verdict};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, ioctl_ficlone, openat, statat};
use rustix::io::Errno;

use super::Shared;
use super::basis::open_regular;
use super::directory::OpenDirectory;
use super::entry;
use super::itemize::differing;
use super::judge::{HAS_CHANGED, is_same_time, sync_kept};
use super::links::link;
use super::moves::Moved;
use super::rehearse::Becomes;
use super::snapshot::Snapshot;
use super::target::Partial;
use super::unfinished::{is_looked_for, is_marked_in};
use crate::fs::copy::{CopyError, copy_range};
use crate::fs::holes::data_from;
use crate::fs::metadata::{Object, lacks_proc};
use crate::fs::{HASH_READ_BYTES, Identity, PLACE, close, evict, hash_range, identity, io_fact, is_regular};
use crate::options::{LATEST, TreeOptions};
use crate::tree::contents::Medium;
use crate::tree::entries::{Effect, FileKind};
use crate::tree::walk::INLINE_BYTES_MAX;
use crate::tree::{Fault, metadata};

/// Maximum number of attempts to copy a file that changes meanwhile.
const TRIES: u32 = 3;

/// Explains `ENODATA` for a file that cannot be copied within the host. Its contents can be sent.
pub(super) const UNREADABLE: &str = "cannot read the older copy of it at the destination";

/// A file that may be the file to come.
pub(super) struct Elsewhere {
    directory: Arc<OwnedFd>,
    /// Path of the file, relative to `directory`.
    path: Vec<u8>,
    /// Metadata of the file when it was found.
    stat: Stat,
    /// Set if the file was found in the tree that is written to.
    moved: Option<Moved>,
    /// Digest that the sender has been given.
    digest: Option<[u8; 16]>,
}

/// Opens the last generations of a `snapshot`, and the directories of `--link-dest`, relative to DST. Directories that
/// cannot be opened are reported, each once. `above` is the directory in which a missing `top` would be made; `top` may
/// be missing in a dry run.
pub(super) fn open_generations(
    top: &OpenDirectory,
    above: Option<&OwnedFd>,
    snapshot: Option<&Snapshot>,
) -> Vec<Arc<OwnedFd>> {
    let (shared, top) = (&top.shared, &top.fd);
    let generations = &shared.options.generations;
    let root = shared.root_name().filter(|_| generations.session.is_dst);
    let root = root.map(|name| openat(top, name, PLACE, Mode::empty()));
    let dst = match &root {
        Some(root) => root.as_ref().ok().and_then(|root| fstat(root).ok()),
        None => fstat(top).ok(),
    };
    let dst = dst.as_ref().map(identity);
    let open = |path: &[u8]| {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let from = match &root {
            _ if path.starts_with(b"/") => return open_way(openat(CWD, "/", PLACE, Mode::empty())?, false, names, dst),
            Some(Ok(root)) => root.as_fd(),
            // DST is still to be made in the open directory.
            Some(Err(_)) => return open_beside(top, names, dst),
            None => match above {
                Some(above) => return open_beside(above, names, dst),
                None => top.as_fd(),
            },
        };
        open_way(openat(from, ".", PLACE, Mode::empty())?, true, names, dst)
    };
    let mut opened = Vec::new();
    match snapshot.map(Snapshot::latest) {
        Some(Ok(latest)) => opened.extend(latest.map(Arc::new)),
        Some(Err(fault)) => shared.remark(fault.into_fact(OsStr::from_bytes(LATEST))),
        None => {}
    }
    opened.extend(snapshot.and_then(Snapshot::last_marked).map(Arc::new));
    for path in &generations.link_dest {
        match open(path) {
            Ok(directory) => opened.push(Arc::new(directory)),
            Err(error) => shared.remark(io_fact(OsStr::from_bytes(path), error)),
        }
    }
    opened
}

/// Opens the directory to which `names` lead from a directory that is to be made in `above`. Only its siblings exist so
/// far.
fn open_beside<'a>(
    above: &OwnedFd,
    names: impl Iterator<Item = &'a [u8]>,
    dst: Option<Identity>,
) -> Result<OwnedFd, Errno> {
    let mut names = names.peekable();
    names.next_if_eq(&&b".."[..]).ok_or(Errno::NOENT)?;
    open_way(openat(above, ".", PLACE, Mode::empty())?, false, names, dst)
}

/// Opens the directory to which `names` lead from another one. Links beside or above DST are followed, because the user
/// has made them. Links in DST are not, because an earlier copy may have made them. `is_within`: whether the first
/// directory is DST.
fn open_way<'a>(
    from: OwnedFd,
    is_within: bool,
    names: impl Iterator<Item = &'a [u8]>,
    dst: Option<Identity>,
) -> Result<OwnedFd, Errno> {
    // Number of levels below DST; `None` outside DST.
    let (mut here, mut depth) = (from, is_within.then_some(0_usize));
    for name in names {
        let flags = if depth.is_some() { PLACE } else { PLACE.difference(OFlags::NOFOLLOW) };
        here = openat(&here, name, flags, Mode::empty())?;
        depth = match depth {
            Some(depth) if name == b".." => depth.checked_sub(1),
            Some(depth) => Some(depth + 1),
            None => (Some(identity(&fstat(&here)?)) == dst).then_some(0),
        };
    }
    Ok(here)
}

/// Opens the directories of this name in the directories that correspond to the parent.
pub(super) fn below(parents: &[Arc<OwnedFd>], name: &[u8]) -> Vec<Arc<OwnedFd>> {
    let opened = parents.iter().filter_map(|parent| openat(parent, name, PLACE, Mode::empty()).ok());
    opened.map(Arc::new).collect()
}

/// Looks elsewhere for a listed file that would be sent according to `verdict`. A file that matches by size and time is
/// taken at once. A file that must be proven, or that differs, is compared with the sender's.
///
/// With `--checksum`, an existing file that may be unchanged is compared instead: the sender compares only one file, and
/// one that is unchanged must not be replaced.
pub(super) fn look(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    size: u64,
    verdict: Verdict,
) -> Result<(Verdict, Option<Elsewhere>), Fault> {
    let options = &directory.shared.options;
    if verdict.is_settled() || options.in_place || !directory.looks_elsewhere() {
        return Ok((verdict, None));
    }
    let has_time = |stat: &Stat| options.sizes.size_only || is_same_time(options, stat, described);
    // If times are kept, a file with another time is most likely an older version. With `--backup-dir` that is not
    // relied on: if the file were replaced by its own contents, they would replace the backup of an older version.
    let may_be_unchanged = |own: &Stat| {
        own.st_size as u64 == size && (has_time(own) || !options.times || directory.shared.backup.is_some())
    };
    let is_compared = options.checksum && verdict != Verdict::Wanted;
    if is_compared && directory.stat(name).is_ok_and(|own| may_be_unchanged(&own)) {
        return Ok((verdict, None));
    }
    let found = directory.alternates.iter().filter_map(|alternate| Elsewhere::at(alternate, name.to_vec()));
    let mut found: Vec<Elsewhere> = found.collect();
    let is_like = |one: &Elsewhere| one.stat.st_size as u64 == size && has_time(&one.stat) && one.is_whole(options);
    if !options.checksum {
        for like in found.iter().filter(|one| is_like(one)) {
            if like.link(directory, name, described)? {
                return Ok((Verdict::Same, None));
            }
        }
        for like in found.iter().filter(|one| is_like(one)) {
            match like.take(directory, name, described) {
                Ok(false) | Err(Fault::Explained(_, UNREADABLE)) => {}
                taken => return taken.map(|_| (Verdict::Same, None)),
            }
        }
    }
    // If times say nothing, the file under the same name is more likely to be the right one.
    let may_have_moved = !options.checksum || verdict == Verdict::Wanted;
    let moves = directory.moves.as_ref().filter(|_| may_have_moved && !found.iter().any(is_like));
    if let Some(moved) = moves.and_then(|moves| moves.find(directory, name, described, size)) {
        found.insert(0, moved);
    }
    // In a dry run the sender tells only whether the whole file is the same.
    let is_large = size > INLINE_BYTES_MAX as u64 && !options.dry_run;
    match found.iter().position(is_like) {
        Some(like) if is_large => Ok((Verdict::Blocks, Some(found.swap_remove(like)))),
        Some(like) => {
            let digest = found[like].read_digest();
            Ok(digest.map_or((verdict, None), |digest| (Verdict::Digest(digest), Some(found.swap_remove(like)))))
        }
        // Within a host, comparing takes as long as copying.
        None if is_large && !directory.shared.is_local && verdict == Verdict::Wanted => {
            let basis = found.into_iter().find(|one| one.stat.st_size > 0);
            Ok(basis.map_or((verdict, None), |basis| (Verdict::Blocks, Some(basis))))
        }
        None => Ok((verdict, None)),
    }
}

impl Elsewhere {
    /// Finds the regular file at this path below a directory.
    pub fn at(directory: &Arc<OwnedFd>, path: Vec<u8>) -> Option<Self> {
        let (above, name) = open_below(directory, &path).ok()?;
        let stat = statat(above, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        is_regular(&stat).then(|| Self { directory: Arc::clone(directory), path, stat, moved: None, digest: None })
    }

    /// Takes an open file at this path in the tree that is written to.
    pub fn moved(directory: &Arc<OwnedFd>, path: Vec<u8>, stat: Stat, moved: Moved) -> Self {
        Self { directory: Arc::clone(directory), path, stat, moved: Some(moved), digest: None }
    }

    /// Opens the file for reading, if it is still the file that was found, or has the contents whose digest the sender
    /// knows.
    pub fn open(&self) -> Option<(OwnedFd, Stat)> {
        let (file, stat) = match self.moved.as_ref().and_then(|moved| moved.held.as_ref()) {
            Some(held) => {
                let file = held.file.try_clone().ok()?;
                let stat = fstat(&file).ok()?;
                (file, stat)
            }
            None => {
                let (above, name) = open_below(&self.directory, &self.path).ok()?;
                open_regular(above.as_fd(), &name)?
            }
        };
        // The source may have the old name as well, and may have given it another time meanwhile.
        let is_it = is_same(&stat, &self.stat)
            || self.digest.is_some() && stat.st_size == self.stat.st_size && digest(&file, &stat) == self.digest;
        is_it.then_some((file, stat))
    }

    /// Whether no interrupted copy has left the file half-written. The marker is checked only if the time does not
    /// tell.
    fn is_whole(&self, options: &TreeOptions) -> bool {
        let is_told_by_time = self.moved.is_some() || !is_looked_for(options, &self.stat);
        is_told_by_time
            || open_below(&self.directory, &self.path).is_ok_and(|(above, name)| !is_marked_in(&*above, &name))
    }

    fn read_digest(&mut self) -> Option<[u8; 16]> {
        let (file, stat) = self.open()?;
        self.digest = digest(&file, &stat);
        self.digest
    }

    /// Gives this file, which has the contents to come, the new name, or copies it. Returns whether the file was still
    /// there.
    pub fn take(&self, directory: &OpenDirectory, name: &[u8], described: &Metadata<'_>) -> Result<bool, Fault> {
        if self.link(directory, name, described)? {
            return Ok(true);
        }
        for _ in 0..TRIES {
            let Some((file, stat)) = self.open() else { return Ok(false) };
            match copy(directory, name, described, &file, &stat) {
                // Another thread may have changed the time of the old name meanwhile, so the contents are proven once
                // more.
                Err(Fault::Explained(Errno::STALE, HAS_CHANGED)) => {}
                copied => {
                    copied?;
                    self.count(&directory.shared);
                    return Ok(true);
                }
            }
        }
        Err(Fault::Explained(Errno::STALE, HAS_CHANGED))
    }

    /// Makes the name a hard link to the file. `false` if that is not possible: the file has other metadata, is gone,
    /// is on another file system, or has too many names.
    pub fn link(&self, directory: &OpenDirectory, name: &[u8], described: &Metadata<'_>) -> Result<bool, Fault> {
        let (shared, options) = (&directory.shared, &directory.shared.options);
        // The old name is kept in the backup, which must not change together with the new name.
        if self.moved.is_some() && shared.backup.is_some() {
            return Ok(false);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = self.moved.as_ref().and_then(|moved| moved.held.as_ref());
        let named = match held {
            Some(_) => None,
            None => open_below(&self.directory, &self.path)
                .ok()
                .and_then(|(above, name)| Some((above, CString::new(name).ok()?))),
        };
        let opened = match (held, &named) {
            (Some(held), _) => held.file.try_clone().ok(),
            (None, Some((above, name))) => openat(above, name.as_c_str(), flags, Mode::empty()).ok(),
            (None, None) => None,
        };
        let Some(file) = opened else { return Ok(false) };
        let stat = fstat(&file)?;
        let mode = options.mode.then(|| metadata::mode(options, described, 0o777));
        // Without /proc, attributes cannot be read by a descriptor that is a place only.
        let there = match &named {
            Some((above, name)) => Object::Named(above.as_fd(), name),
            None => Object::Open(file.as_fd()),
        };
        // Another file may have taken the name meanwhile.
        let is_still_it = || match &named {
            Some((above, name)) => {
                statat(above, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|now| is_same(&now, &stat))
            }
            None => true,
        };
        if !is_same(&stat, &self.stat) || differing(shared, there, &stat, described, mode) != 0 || !is_still_it() {
            return Ok(false);
        }
        if let Some(Moved { moves, at, .. }) = &self.moved
            && (!options.delete || stat.st_nlink != 1 || !moves.begin(*at))
        {
            return Ok(false);
        }
        let linked = if options.dry_run { Ok(()) } else { link(file.as_fd(), directory, name) };
        if let (Some(Moved { moves, at, .. }), true) = (&self.moved, linked.is_err()) {
            moves.give_up(*at);
        }
        match linked {
            Ok(()) => {
                self.count(shared);
                sync_kept(directory, name, &stat)?;
            }
            Err(Fault::System(error)) if is_no_link(error) => return Ok(false),
            Err(fault) => return Err(fault),
        }
        if options.dry_run {
            let becomes = Becomes::Linked(identity(&stat));
            directory.plan(name, FileKind::Regular, described, Some(stat.st_size as u64), becomes);
        }
        directory.list(name, Medium::Disk);
        if self.moved.is_some() {
            directory.tell(name, (Effect::Made, FileKind::Regular), Some(0), || None);
        }
        shared.made(if self.moved.is_some() { &shared.counts.files } else { &shared.counts.same });
        shared.progress.at(|| directory.tree_path(name));
        Ok(true)
    }

    /// Counts the file as taken.
    pub fn count(&self, shared: &Shared) {
        shared.counts.moved.fetch_add(u64::from(self.moved.is_some()), Relaxed);
    }
}

/// Whether an error of link(2) means that the file gets no other name here, although it can be read. The last three
/// mean that it may not be linked: it belongs to another user, or the file system has no hard links (ENOSYS with FUSE).
fn is_no_link(error: Errno) -> bool {
    match error {
        // Without /proc a link may need it; to copy everything instead would fill the disk.
        Errno::NOSYS => !lacks_proc(),
        _ => matches!(error, Errno::MLINK | Errno::XDEV | Errno::NOENT | Errno::PERM | Errno::OPNOTSUPP),
    }
}

/// Opens the directory that contains the last name of a path, and returns it with that name. No link is followed.
pub(super) fn open_below(directory: &Arc<OwnedFd>, path: &[u8]) -> Result<(Arc<OwnedFd>, Vec<u8>), Errno> {
    let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    let last = names.pop().unwrap_or_default().to_vec();
    let mut here = Arc::clone(directory);
    for name in names {
        here = Arc::new(openat(&here, name, PLACE, Mode::empty())?);
    }
    Ok((here, last))
}

fn digest(file: &OwnedFd, stat: &Stat) -> Option<[u8; 16]> {
    let size = stat.st_size as u64;
    hash_range(file, 0, size, &mut vec![0; HASH_READ_BYTES.min(size.max(1) as usize)]).ok()
}

/// Whether both describe the same file, with unchanged contents.
fn is_same(one: &Stat, other: &Stat) -> bool {
    let contents = |stat: &Stat| (identity(stat), stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    contents(one) == contents(other)
}

/// Makes a new file with the contents of a file that is open for reading and described by `stat`.
///
/// # Errors
///
/// The error of the system; `ESTALE` if the file has changed meanwhile, `ENODATA` if it cannot be read.
pub(super) fn copy(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    from: &OwnedFd,
    stat: &Stat,
) -> Result<(), Fault> {
    let shared = &directory.shared;
    let mode = shared.options.mode.then(|| metadata::mode(&shared.options, described, 0o777));
    let differs = shared.is_told().then(|| differing(shared, Object::Open(from.as_fd()), stat, described, mode));
    if shared.options.dry_run {
        shared.made(&shared.counts.files);
        directory.tell(name, (Effect::Made, FileKind::Regular), differs, || None);
        directory.plan(name, FileKind::Regular, described, Some(stat.st_size as u64), Becomes::New);
        return Ok(());
    }
    let partial = Partial::create(directory, name, stat.st_size as u64)?;
    let make = || -> Result<(), Fault> {
        copy_contents(shared, from, &partial.file, stat.st_size as u64)?;
        if !is_same(&fstat(from)?, stat) {
            return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
        }
        Ok(close::settle(&partial.file)?)
    };
    make()
        .and_then(|()| partial.publish(directory, name, described))
        .inspect(|()| directory.tell(name, (Effect::Made, FileKind::Regular), differs, || None))
        .inspect(|()| directory.list(name, Medium::Cache))
        .inspect_err(|_| partial.remove(directory, name))
}

/// Shares the blocks if the file system supports that. Otherwise copies them, except holes.
///
/// # Errors
///
/// The error of the system; `ENODATA`, explained, if the old file cannot be read. EIO, which ends the whole copy, is for
/// what is written.
pub(super) fn copy_contents(shared: &Shared, from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Fault> {
    let has_holes = shared.options.sparse;
    if has_holes && ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let unread = || Fault::Explained(Errno::NODATA, UNREADABLE);
    let is_stopped = || shared.is_stopped.load(Acquire);
    let goes_on = |bytes: usize| {
        shared.progress.note_work(bytes as u64);
        !is_stopped()
    };
    let mut at = 0;
    while at < size {
        let (start, end) = if has_holes { data_from(from, at, size) } else { (at, size) };
        copy_range(from, to, start..end, goes_on).map_err(|error| match error {
            CopyError::Read(_) => unread(),
            CopyError::Write(error) => error.into(),
        })?;
        if is_stopped() {
            return Err(Errno::CANCELED.into());
        }
        at = end;
    }
    // Last, because a length may be durable long before the data.
    entry::reach_length(to, size)?;
    if shared.options.reads_back() {
        evict(to, 0, size)?;
        let mut scratch = vec![0; HASH_READ_BYTES.min(size.max(1) as usize)];
        let old = hash_range(from, 0, size, &mut scratch).map_err(|_| unread())?;
        if old != hash_range(to, 0, size, &mut scratch)? {
            return Err(Errno::IO.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::{Destination, TreeSink};
    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::options::Verify;

    /// After a power loss, a file that had its length before its data would be full of zeros.
    #[test]
    fn a_copy_gets_its_length_after_its_data() {
        const DATA: u64 = 64 << 10;
        let scratch = tempfile::tempdir().expect("a directory");
        let sink = TreeSink::new(scratch.path(), Destination::default(), Box::new(|_| {})).expect("a sink");
        let shared = &sink.shared;
        let file = || tempfile::tempfile().expect("a file");
        let from = file();
        from.write_all_at(&[7; DATA as usize], 0).expect("written");
        let (old, new) = (OwnedFd::from(from.try_clone().expect("it")), OwnedFd::from(file()));
        let copied = where_calls_fail(&[libc::SYS_ftruncate], libc::EIO, || copy_contents(shared, &old, &new, DATA));
        assert_eq!(copied, Ok(()), "it has its length from its data");
        from.set_len(1 << 20).expect("a hole at the end");
        // Not as a clone.
        let calls = [libc::SYS_ftruncate, libc::SYS_ioctl];
        let new = OwnedFd::from(file());
        let copied = where_calls_fail(&calls, libc::EOPNOTSUPP, || copy_contents(shared, &old, &new, 1 << 20));
        assert_eq!(copied, Ok(()), "it has its length from its last byte");
        assert_eq!(fstat(&new).expect("it").st_size, 1 << 20);
        assert_eq!(hash_range(&new, 0, 1 << 20, &mut [0; 4096]), hash_range(&old, 0, 1 << 20, &mut [0; 4096]));
        let new = OwnedFd::from(file());
        let set = where_calls_fail(&[libc::SYS_pwrite64], libc::EIO, || entry::reach_length(&new, 1 << 20));
        assert_eq!((set, fstat(&new).expect("it").st_size), (Ok(()), 1 << 20), "without data it takes no room");
    }

    /// EIO would end the whole copy.
    #[test]
    fn a_file_that_cannot_be_read_back_fails_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = TreeOptions { verify: Some(Verify::Disk), ..TreeOptions::default() };
        let sink = TreeSink::new(scratch.path(), Destination::from(options), Box::new(|_| {})).expect("a sink");
        let shared = &sink.shared;
        let [from, to] = [(), ()].map(|()| tempfile::tempfile().expect("a file"));
        from.write_all_at(&[7; 4096], 0).expect("written");
        let [from, to] = [from, to].map(OwnedFd::from);
        // What was cut off is no data to copy, like a hole. The blocks cannot be shared.
        let copied =
            |size| where_calls_fail(&[libc::SYS_ioctl], libc::EOPNOTSUPP, || copy_contents(shared, &from, &to, size));
        let cannot_read = Err(Fault::Explained(Errno::NODATA, UNREADABLE));
        assert_eq!((copied(4096), copied(8192)), (Ok(()), cannot_read.clone()));
        // Nor does an error of a read of the older file.
        let calls = [libc::SYS_ioctl, libc::SYS_pread64];
        let unread = where_calls_fail(&calls, libc::EIO, || copy_contents(shared, &from, &to, 4096));
        assert_eq!(unread, cannot_read);
        // Nor does another error of a read, here of data that came from elsewhere.
        let stored = |data: &[u8]| entry::check_stored(shared, &to, data, 0);
        assert_eq!((stored(&[7; 4096]), stored(&[8; 4096])), (Ok(()), Err(Errno::IO)));
        let unread = where_calls_fail(&[libc::SYS_pread64], libc::ESTALE, || stored(&[7; 4096]));
        assert_eq!(unread, Err(Errno::STALE));
    }
}
