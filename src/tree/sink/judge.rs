//! Compares listed files with existing ones. A file that is the same is left, except for its metadata.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use rd_proto::tree::answer::{BLOCK_BYTES_MIN, VERDICTS_BYTES_MAX};
use rd_proto::tree::blocks::block_bytes;
use rd_proto::tree::{
    Answer, LISTED_DIRECTORIES_MAX, LISTED_MAX, Metadata, PATH_BYTES_MAX, Record, Special, Time, Verdict, Xattrs,
};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, fsync, makedev, openat, readlinkat_raw, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::basis::{Compared, open_regular};
use super::device;
use super::directory::OpenDirectory;
use super::elsewhere::{self, Elsewhere, UNREADABLE};
use super::itemize::{self, differing};
use super::rehearse::Becomes;
use super::{Refused, Shared, TreeSink, unfinished};
use crate::fs::metadata::Object;
use crate::fs::source::change;
use crate::fs::{HASH_READ_BYTES, described, evict, hash_range, identity, is_regular};
use crate::options::TreeOptions;
use crate::tree::Fault;
use crate::tree::ahead::Pace;
use crate::tree::contents::Medium;
use crate::tree::digest_cache::OfBlocks;
use crate::tree::entries::Effect;
use crate::tree::metadata::{self, Current, OwnedMetadata};
use crate::tree::walk::INLINE_BYTES_MAX;

/// A listed file whose contents are to come, or that is the same as an existing file.
pub(super) struct Wanted {
    pub directory: Arc<OpenDirectory>,
    /// Name at the sender.
    pub name: Vec<u8>,
    metadata: OwnedMetadata,
    size: u64,
    /// Whether its blocks are compared with those of the existing file.
    is_compared: bool,
    /// The existing file, if it has another name.
    elsewhere: Option<Box<Elsewhere>>,
    /// What the sender has been told of the existing file under the same name.
    told: Option<Box<Told>>,
}

/// A file whose digest the sender has been told.
struct Told {
    /// Metadata of the file before it was read.
    stat: Stat,
    /// For a large file, the digest of the digests of its blocks.
    digest: [u8; 16],
}

/// Explains `ESTALE` for a file that was written to after it was read.
pub(super) const HAS_CHANGED: &str = "the destination changed while it was compared; run it again";

/// How long after its last change a kept file may not be on the disk yet. Linux writes data out within about a minute.
const RECENT_SECONDS: u64 = 300;

/// Listed files that are wanted, by number.
#[derive(Default)]
pub(super) struct AllWanted {
    files: BTreeMap<u64, Wanted>,
    /// Number of wanted files in each directory. A directory is open until its files are settled.
    directories: BTreeMap<usize, usize>,
}

impl AllWanted {
    fn insert(&mut self, number: u64, wanted: Wanted) {
        *self.directories.entry(Arc::as_ptr(&wanted.directory) as usize).or_default() += 1;
        self.files.insert(number, wanted);
    }

    fn remove(&mut self, number: u64) -> Option<Wanted> {
        let wanted = self.files.remove(&number)?;
        let directory = Arc::as_ptr(&wanted.directory) as usize;
        if let Some(count) = self.directories.get_mut(&directory) {
            *count -= 1;
            if *count == 0 {
                self.directories.remove(&directory);
            }
        }
        Some(wanted)
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether more files or directories are open than a sender that waits for answers would allow.
    fn is_too_much(&self) -> bool {
        self.files.len() > LISTED_MAX || self.directories.len() > LISTED_DIRECTORIES_MAX
    }
}

impl TreeSink {
    /// Returns the number of a listed file whose record has arrived.
    pub(super) fn next_listed(&mut self) -> Result<u64, Refused> {
        if !self.shared.options.lists() {
            return Err(Refused::Data("a file without its contents, though they were requested"));
        }
        if crate::locked(&self.shared.wanted).is_too_much() {
            return Err(Refused::Data("too many files without their contents"));
        }
        self.listed += 1;
        Ok(self.listed - 1)
    }

    /// Removes a listed file from the wanted ones and returns it.
    pub(super) fn take_wanted(&mut self, number: u64) -> Result<Wanted, Refused> {
        crate::locked(&self.shared.wanted).remove(number).ok_or(Refused::Data("contents that were not requested"))
    }

    /// In a dry run, takes note that a listed file differs in contents from the existing one.
    pub(super) fn rehearse_wanted(&mut self, number: u64) -> Result<(), Refused> {
        let Wanted { directory, name, metadata, size, .. } = self.take_wanted(number)?;
        if !self.shared.options.dry_run {
            return Err(Refused::Data("requested contents were left out"));
        }
        directory.rehearse_file(directory.final_name(&name), &metadata.borrow(), size);
        Ok(())
    }

    /// Takes note that the sender could not read a listed file. The sender has counted the failure.
    pub(super) fn give_up(&mut self, number: u64) -> Result<(), Refused> {
        let Wanted { directory, name, .. } = self.take_wanted(number)?;
        self.shared.mark_failed(&directory.path(directory.final_name(&name)));
        Ok(())
    }
}

/// Compares a listed file with the existing one, and remembers it if it is wanted. Does not send the verdict yet.
pub(super) fn judge(
    directory: &Arc<OpenDirectory>,
    number: u64,
    name: &[u8],
    described: &Metadata<'_>,
    size: u64,
) -> Verdict {
    let there = directory.final_name(name);
    let (shared, options) = (&directory.shared, &directory.shared.options);
    // A file from elsewhere never replaces a device.
    let is_device = options.in_place
        && directory.is_top()
        && directory.stat(there).is_ok_and(|old| device::is_target(directory, &old));
    let mut told = None;
    let judged = verdict(directory, there, described, size, &mut told).and_then(|verdict| match is_device {
        true => Ok((verdict, None)),
        false => elsewhere::look(directory, there, described, size, verdict),
    });
    let (verdict, elsewhere) = judged.unwrap_or_else(|fault| {
        shared.fail(&directory.path(there), fault);
        (Verdict::Same, None)
    });
    if options.dry_run && matches!(verdict, Verdict::Wanted | Verdict::Blocks) {
        directory.rehearse_file(there, described, size);
        return Verdict::Same;
    }
    if !verdict.is_settled() {
        // The digest of a large file is made of the digests of its blocks. The sender knows it only if it has cached
        // it, too.
        let is_known = matches!(verdict, Verdict::Digest(_)) && size > INLINE_BYTES_MAX as u64 && !options.dry_run;
        let (directory, is_compared) = (Arc::clone(directory), is_known || verdict == Verdict::Blocks);
        let metadata = OwnedMetadata::new(described);
        let elsewhere = elsewhere.map(Box::new);
        let wanted = Wanted { directory, name: name.to_vec(), metadata, size, is_compared, elsewhere, told };
        crate::locked(&shared.wanted).insert(number, wanted);
    }
    verdict
}

/// Returns the verdict on a listed file by what exists under its name. `told`: set if the verdict has a digest.
fn verdict(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    size: u64,
    told: &mut Option<Box<Told>>,
) -> Result<Verdict, Fault> {
    let (shared, options) = (&directory.shared, &directory.shared.options);
    if !options.sync {
        return Ok(plain_verdict(directory, name, size, told));
    }
    let is_left = !options.sizes.take(size);
    let old = match directory.stat(name) {
        Err(Errno::NOENT) if options.existing || is_left => return Ok(Verdict::Left),
        Err(Errno::NOENT) => return Ok(Verdict::Wanted),
        // It may be cut, or older than the source, and without the earlier transfer it would not be there.
        Ok(_) if is_left && directory.is_resumed => {
            unlinkat(&directory.fd, name, AtFlags::empty())?;
            return Ok(Verdict::Left);
        }
        old => old?,
    };
    let is_same_time = is_same_time(options, &old, described);
    let is_newer = is_newer(options, &old, (described.modified.seconds, described.modified.nanoseconds));
    // In a tree that has no name yet, a file of an earlier transfer may have been cut in the middle.
    let is_kept = (options.ignore_existing || options.update && is_newer) && !directory.is_resumed;
    // The size and time of a half-written file say nothing, so its contents are compared.
    let is_regular = is_regular(&old);
    let is_marked = is_regular && (is_kept || unfinished::is_looked_for(options, &old)) && directory.is_marked(name);
    if is_left || is_kept && !is_marked && (options.ignore_existing || is_regular) {
        directory.list(name, Medium::Disk);
        return Ok(Verdict::Left);
    }
    if device::is_target(directory, &old) {
        // Whatever its size: holes of the source are sent only where the device has something else.
        return Ok(Verdict::Blocks);
    }
    if !is_regular {
        directory.check_way(name, &old)?;
        return Ok(Verdict::Wanted);
    }
    let is_same = match directory.is_resumed {
        // A file that an earlier transfer has copied within the host may have its full length before its contents.
        true => {
            (old.st_mtime, old.st_mtime_nsec as u32) == (described.modified.seconds, described.modified.nanoseconds)
        }
        false => is_same_time || options.sizes.size_only,
    };
    if old.st_size as u64 == size && is_same && !options.checksum && !is_marked {
        return match keep_or_copy(directory, name, described, &old) {
            Ok(false) | Err(Fault::Explained(_, UNREADABLE)) => Ok(Verdict::Wanted),
            done => done.map(|_| Verdict::Same),
        };
    }
    if options.append_verify && old.st_size as u64 >= size && !is_marked && !directory.is_resumed {
        directory.list(name, Medium::Disk);
        return Ok(Verdict::Left);
    }
    let is_small = old.st_size as u64 == size && size <= INLINE_BYTES_MAX as u64;
    if is_marked && is_small && options.in_place && options.syncs() && !options.dry_run {
        // The page cache may hold what an earlier write has not brought to the disk, and the digest cache its digest.
        let opened = open_regular(directory.fd.as_fd(), name);
        if shared.cache.is_some() || opened.is_none_or(|(file, _)| evict(&file, 0, 0).is_err()) {
            return Ok(Verdict::Wanted);
        }
    }
    // Within a host, reading both files to compare them takes as long as copying.
    let is_likely_same = directory.is_resumed && (is_same_time || options.sizes.size_only);
    let may_compare =
        options.checksum || options.in_place || options.append_verify || is_likely_same || !shared.is_local;
    // In a dry run the sender tells only whether the whole file is the same.
    let is_large = size > INLINE_BYTES_MAX as u64 && !options.dry_run;
    let may_keep = may_keep(options, &old, described);
    // Of a large file that is not kept, a new one is made from the blocks that are the same.
    if !may_compare || !may_keep && (!is_large || options.in_place || shared.is_local) {
        return Ok(Verdict::Wanted);
    }
    if is_large {
        let cache = shared.cache.as_ref().filter(|_| may_keep && old.st_size as u64 == size);
        if let Some(digest) = cache.and_then(|cache| cache.get(&directory.fd, &old)) {
            return Ok(tell_digest(told, Some(Told { stat: old, digest })));
        }
        return Ok(if old.st_size > 0 { Verdict::Blocks } else { Verdict::Wanted });
    }
    if old.st_size as u64 != size {
        return Ok(Verdict::Wanted);
    }
    Ok(tell_digest(told, digest(directory, name, &old)))
}

/// Returns the verdict on a file with this digest, which is kept for the sender's reply. A file that could not be read
/// is wanted.
fn tell_digest(told: &mut Option<Box<Told>>, digest: Option<Told>) -> Verdict {
    *told = digest.map(Box::new);
    told.as_ref().map_or(Verdict::Wanted, |told| Verdict::Digest(told.digest))
}

/// Returns the verdict on a file that is copied over an existing one without `--sync`. The file is sent, unless its
/// digest proves that the existing one is the same. A file with other names is replaced by a new file.
fn plain_verdict(directory: &OpenDirectory, name: &[u8], size: u64, told: &mut Option<Box<Told>>) -> Verdict {
    let is_like = |old: &Stat| is_regular(old) && old.st_nlink == 1 && old.st_size as u64 == size;
    match directory.stat(name).ok().filter(is_like) {
        None => Verdict::Wanted,
        Some(_) if size > INLINE_BYTES_MAX as u64 => Verdict::Blocks,
        Some(old) => tell_digest(told, digest(directory, name, &old)),
    }
}

/// Returns the digest of the existing file that `old` describes; `None` if it cannot be read.
fn digest(directory: &OpenDirectory, name: &[u8], old: &Stat) -> Option<Told> {
    let shared = &directory.shared;
    let cache = shared.cache.as_ref().filter(|_| old.st_size as usize <= INLINE_BYTES_MAX);
    if let Some(digest) = cache.and_then(|cache| cache.get(&directory.fd, old)) {
        return Some(Told { stat: *old, digest });
    }
    let (began, mut pace) = (SystemTime::now(), Pace::begin());
    let (file, stat) = open_regular(directory.fd.as_fd(), name).filter(|(_, stat)| identity(stat) == identity(old))?;
    let size = stat.st_size as u64;
    let digest = hash_range(&file, 0, size, &mut vec![0; HASH_READ_BYTES.min(size.max(1) as usize)]);
    // Only waits for the disk count here. At other places threads wait for each other.
    shared.ahead.passed(&mut pace);
    let is_unchanged = || described(&file).is_ok_and(|now| change(&stat, &now).is_none());
    if let (Some(cache), Ok(digest)) = (cache, digest)
        && is_unchanged()
    {
        cache.put(began, &file, &stat, digest);
    }
    digest.ok().map(|digest| Told { stat, digest })
}

/// Returns the digest that the sender would have been told of a file of this size; `None` if it cannot be read.
fn digest_to_tell(shared: &Shared, file: &OwnedFd, size: u64) -> Option<[u8; 16]> {
    let mut scratch = vec![0; HASH_READ_BYTES.min(size.max(1) as usize)];
    // In a dry run the sender is told the digest of the contents.
    if size <= INLINE_BYTES_MAX as u64 || shared.options.dry_run {
        return hash_range(file, 0, size, &mut scratch).ok();
    }
    let block_bytes = block_bytes(size, BLOCK_BYTES_MIN);
    let mut all = OfBlocks::default();
    for start in (0..size).step_by(block_bytes as usize) {
        if shared.is_stopped.load(Relaxed) {
            return None;
        }
        let digest = hash_range(file, start, block_bytes.min(size - start), &mut scratch).ok()?;
        all.add(block_bytes, &[Some(digest)]);
    }
    all.finish(size)
}

impl Told {
    /// Returns the metadata of the file under this name if it still has the contents whose digest the sender was told.
    ///
    /// # Errors
    ///
    /// `ESTALE` if it has not, or if another file has taken the name.
    fn holds(&self, directory: &OpenDirectory, name: &[u8]) -> Result<Stat, Fault> {
        let is_same = |one: &Stat, other: &Stat| identity(one) == identity(other) && change(one, other).is_none();
        let named = directory.stat(name)?;
        if is_same(&self.stat, &named) {
            return Ok(named);
        }
        // If the file has other names in this tree, they may be getting their metadata at the same time. So the contents
        // are compared once more.
        let size = self.stat.st_size;
        let opened = open_regular(directory.fd.as_fd(), name)
            .filter(|(_, stat)| identity(stat) == identity(&self.stat) && stat.st_size == size)
            .filter(|(file, _)| digest_to_tell(&directory.shared, file, size as u64) == Some(self.digest))
            .filter(|(file, stat)| stat.st_nlink > 1 || fstat(file).is_ok_and(|now| is_same(stat, &now)));
        opened.map(|(_, stat)| stat).ok_or(Fault::Explained(Errno::STALE, HAS_CHANGED))
    }
}

/// Whether the existing entry has the modification time of the entry to come.
pub(super) fn is_same_time(options: &TreeOptions, old: &Stat, described: &Metadata<'_>) -> bool {
    is_time(options, old, (described.modified.seconds, described.modified.nanoseconds))
}

fn is_time(options: &TreeOptions, old: &Stat, modified: (i64, u32)) -> bool {
    match i64::from(options.modify_window) {
        0 => (old.st_mtime, old.st_mtime_nsec as u32) == modified,
        window => old.st_mtime.saturating_sub(modified.0).saturating_abs() <= window,
    }
}

/// Returns the metadata for an existing entry, which `old` describes. Its time is kept if it counts as the same.
pub(super) fn with_same_time<'a>(options: &TreeOptions, old: &Stat, described: &Metadata<'a>) -> Metadata<'a> {
    let modified = match is_same_time(options, old, described) {
        true => Time { seconds: old.st_mtime, nanoseconds: old.st_mtime_nsec as u32 },
        false => described.modified,
    };
    Metadata { modified, ..*described }
}

/// Whether the existing entry was modified later than the entry to come.
pub(super) fn is_newer(options: &TreeOptions, old: &Stat, modified: (i64, u32)) -> bool {
    let seconds = old.st_mtime.saturating_sub(modified.0);
    let is_later = (seconds, old.st_mtime_nsec as u32) > (i64::from(options.modify_window), modified.1);
    is_later && !is_time(options, old, modified)
}

/// Whether an existing file with the contents to come is kept. A file with other names gets another time only if it was
/// to be compared by contents, because those names would get that time as well.
fn may_keep(options: &TreeOptions, old: &Stat, described: &Metadata<'_>) -> bool {
    options.checksum || old.st_nlink == 1 || is_same_time(options, old, described)
}

/// Like [`keep`], for a file that has been compared block by block.
pub(super) fn keep_compared(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    stat: &Stat,
) -> Result<bool, Fault> {
    let may_keep = may_keep(&directory.shared.options, stat, described);
    if may_keep { keep(directory, name, described, stat) } else { Ok(false) }
}

/// Sets the metadata of an entry that stays, and that `stat` describes, if they differ. Returns `false` if another
/// generation may share the entry: then nothing is done, and a new entry must be made.
pub(super) fn keep(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    stat: &Stat,
) -> Result<bool, Fault> {
    let (shared, options) = (&directory.shared, &directory.shared.options);
    let is_regular = is_regular(stat);
    if is_regular && directory.moves.as_ref().is_some_and(|moves| moves.meet(name, stat)) {
        return Ok(false);
    }
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let mode = (options.mode && !is_link).then(|| metadata::mode(options, described, 0o777));
    let path = CString::new(name).map_err(|_| Errno::INVAL)?;
    let named = Object::Named(directory.fd.as_fd(), &path);
    // A device keeps the metadata of its node.
    let is_device = device::is_target(directory, stat);
    let differs = if is_device { 0 } else { differing(shared, named, stat, described, mode) };
    if differs != 0 {
        if options.generations.share_files() && stat.st_nlink > 1 {
            return Ok(false);
        }
        let kind = itemize::kind(FileType::from_raw_mode(stat.st_mode));
        match options.dry_run {
            true => directory.plan(name, kind, described, None, Becomes::Kept),
            false => describe(directory, name, described, mode, stat)?,
        }
        directory.tell(name, (Effect::Kept, kind), Some(differs), || itemize::target(directory, name, kind));
    } else {
        sync_kept(directory, name, stat)?;
    }
    if is_regular {
        directory.note_whole(stat.st_size as u64);
    }
    directory.list(name, Medium::Disk);
    shared.made(&shared.counts.same);
    shared.progress.at(|| directory.tree_path(name));
    Ok(true)
}

/// Sets the metadata of an entry that `stat` describes.
fn describe(
    directory: &OpenDirectory,
    name: &[u8],
    described: &Metadata<'_>,
    mode: Option<u32>,
    stat: &Stat,
) -> Result<(), Fault> {
    let (shared, options) = (&directory.shared, &directory.shared.options);
    let fd = openat(&directory.fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let opened = fstat(&fd)?;
    if identity(&opened) != identity(stat) {
        return Err(Fault::Explained(Errno::STALE, HAS_CHANGED));
    }
    let (entry, stat) = (Object::Path(fd.as_fd()), opened);
    let described = with_same_time(options, &stat, described);
    let is_synced = options.syncs() && is_regular(&stat);
    let open = || open_to_sync(directory, name);
    // The new mode may keep this user from reading the file, or else the old one does.
    let before = if is_synced { open().ok() } else { None };
    let applied = shared.setter.apply(options, entry, &described, mode, Current::new(&stat, false, true));
    shared.note(applied, || directory.path(name));
    if is_synced {
        sync(directory, before.map_or_else(open, Ok))?;
    }
    Ok(())
}

/// Makes a kept file durable if the options ask for that. An earlier run without them may have written it so recently
/// that the system has not written it out.
pub(super) fn sync_kept(directory: &OpenDirectory, name: &[u8], stat: &Stat) -> Result<(), Fault> {
    let options = &directory.shared.options;
    if options.syncs() && !options.dry_run && is_regular(stat) && is_recent(stat.st_ctime, SystemTime::now()) {
        sync(directory, open_to_sync(directory, name))?;
    }
    Ok(())
}

/// Whether a time of change in seconds is within five minutes of `now`. A server's clock may be ahead of this host's.
fn is_recent(changed: i64, now: SystemTime) -> bool {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (now as i64).abs_diff(changed) < RECENT_SECONDS
}

fn open_to_sync(directory: &OpenDirectory, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(&directory.fd, name, flags, Mode::empty())
}

/// Makes a file durable. If this user may not read it, its whole file system is written out.
fn sync(directory: &OpenDirectory, file: Result<OwnedFd, Errno>) -> Result<(), Errno> {
    match file {
        Err(Errno::ACCESS) => syncfs(&directory.fd),
        file => fsync(file?),
    }
}

/// Like [`keep`], for a regular file. If the file must not change, a new one is made from its contents. Returns `false`
/// if it cannot be opened, or if another file has taken the name: then they must be sent.
fn keep_or_copy(directory: &OpenDirectory, name: &[u8], described: &Metadata<'_>, stat: &Stat) -> Result<bool, Fault> {
    if keep(directory, name, described, stat)? {
        return Ok(true);
    }
    let opened = open_regular(directory.fd.as_fd(), name).filter(|(_, opened)| identity(opened) == identity(stat));
    let Some((file, stat)) = opened else { return Ok(false) };
    elsewhere::copy(directory, name, described, &file, &stat)?;
    Ok(true)
}

impl Wanted {
    /// Returns the file with which this one is compared block by block.
    pub fn compared(self) -> Option<Compared> {
        self.is_compared.then(|| self.elsewhere.map_or(Compared::Named, Compared::Elsewhere))
    }

    /// Whether the file has this metadata, apart from the time of the last access.
    pub fn is_as_listed(&self, came: &Metadata<'_>) -> bool {
        let listed = self.metadata.borrow();
        let of = |it: &Metadata<'_>| (it.mode, it.uid, it.gid, it.modified);
        of(&listed) == of(came) && in_order(listed.xattrs) == in_order(came.xattrs)
    }

    /// Returns the metadata of the existing file, which has turned out to be the same.
    fn there(&self, name: &[u8]) -> Result<Stat, Fault> {
        match &self.told {
            Some(told) => told.holds(&self.directory, name),
            None => Ok(self.directory.stat(name)?),
        }
    }

    /// Keeps the contents that exist here or elsewhere, and that have turned out to be the same.
    pub fn keep(self) {
        let (name, described) = (self.directory.final_name(&self.name), self.metadata.borrow());
        let kept = match &self.elsewhere {
            Some(elsewhere) => elsewhere.take(&self.directory, name, &described),
            None => self.there(name).and_then(|stat| keep_or_copy(&self.directory, name, &described, &stat)),
        };
        match kept {
            Ok(true) if self.elsewhere.is_none() => self.directory.clear_mark(name, false),
            Ok(true) => {}
            Ok(false) => {
                let fault = Fault::Explained(Errno::STALE, HAS_CHANGED);
                self.directory.shared.fail(&self.directory.path(name), fault);
            }
            Err(fault) => self.directory.shared.fail(&self.directory.path(name), fault),
        }
    }
}

/// Returns extended attributes in the order of their names. File systems list them in any order.
fn in_order(xattrs: Xattrs<'_>) -> Vec<(&[u8], &[u8])> {
    let mut all: Vec<_> = xattrs.iter().collect();
    all.sort_unstable();
    all
}

/// Whether a link or special file is left alone, because it exists already, or must not be made or replaced.
pub(super) fn is_there(directory: &OpenDirectory, name: &[u8], record: &Record<'_>) -> Result<bool, Fault> {
    let options = &directory.shared.options;
    if !options.sync {
        return Ok(false);
    }
    let old = match directory.stat(name) {
        Err(Errno::NOENT) => return Ok(options.existing),
        old => old?,
    };
    if options.ignore_existing && !directory.is_resumed {
        directory.list(name, Medium::Disk);
        return Ok(true);
    }
    if let Some(described) = record.metadata().filter(|_| is_the_same(directory, name, record, &old))
        && keep(directory, name, &described, &old)?
    {
        return Ok(true);
    }
    directory.check_way(name, &old)?;
    Ok(false)
}

fn is_the_same(directory: &OpenDirectory, name: &[u8], record: &Record<'_>, old: &Stat) -> bool {
    let kind_there = FileType::from_raw_mode(old.st_mode);
    match *record {
        Record::Symlink { target, .. } => {
            let mut leads_to = [0; PATH_BYTES_MAX + 1];
            kind_there == FileType::Symlink
                && readlinkat_raw(&directory.fd, name, &mut leads_to[..])
                    .is_ok_and(|length| &leads_to[..length] == target)
        }
        Record::Special { kind, device: (major, minor), .. } => match kind {
            Special::Fifo => kind_there == FileType::Fifo,
            Special::Socket => kind_there == FileType::Socket,
            Special::Character => kind_there == FileType::CharacterDevice && old.st_rdev == makedev(major, minor),
            Special::Block => kind_there == FileType::BlockDevice && old.st_rdev == makedev(major, minor),
        },
        _ => false,
    }
}

impl Shared {
    /// Sends the verdicts on files from the number `first` on, in as many answers as they need.
    pub(super) fn answer_verdicts(&self, mut first: u64, mut verdicts: Vec<Verdict>) {
        while !verdicts.is_empty() {
            let mut bytes = 0;
            let fit = verdicts.iter().take_while(|verdict| {
                bytes += verdict.encoded_bytes();
                bytes <= VERDICTS_BYTES_MAX
            });
            let rest = verdicts.split_off(fit.count());
            let count = verdicts.len() as u64;
            self.answer(Answer::Verdicts { first, verdicts });
            (first, verdicts) = (first + count, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::Destination;
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn a_kept_file_that_was_changed_lately_is_synced_too() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("f"), "contents").expect("a file");
        for (fsync, expected) in [(true, Err(Fault::System(Errno::IO))), (false, Ok(true))] {
            let options = TreeOptions { sync: true, fsync, ..TreeOptions::default() };
            let sink = TreeSink::new(scratch.path(), Destination::from(options), Box::new(|_| {})).expect("a sink");
            let top = sink.levels[0].clone().expect("the top");
            let stat = top.stat(b"f").expect("it");
            let modified = Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 };
            let (uid, gid, mode) = (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777);
            let described = Metadata { uid, gid, mode, modified, ..Metadata::ZERO };
            let named = Object::Named(top.fd.as_fd(), c"f");
            assert_eq!(differing(&top.shared, named, &stat, &described, Some(mode)), 0, "there is nothing to set");
            let kept = where_calls_fail(&[libc::SYS_fsync], libc::EIO, || keep(&top, b"f", &described, &stat));
            assert_eq!(kept, expected);
            assert_eq!(keep(&top, b"f", &described, &stat), Ok(true));
        }
    }

    #[test]
    fn what_is_recent_does_not_depend_on_whose_clock_is_ahead() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let is_at = |changed| is_recent(changed, now);
        assert!([1_000_000, 999_701, 1_000_299].into_iter().all(is_at));
        assert!(![999_700, 1_000_300, 0].into_iter().any(is_at));
    }
}
