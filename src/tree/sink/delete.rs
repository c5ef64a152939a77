//! What stands in a directory of the destination and not in that of the source.
//!
//! Each entry is found and removed relative to the descriptor of its directory, and no link is followed: names may be
//! exchanged meanwhile, and nothing outside is touched. A file system that is mounted below is not entered.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rd_proto::control::IoFact;
use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{AtFlags, FileType, Mode, Stat, fchmod, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::backup::Backup;
use super::directory::OpenDirectory;
use super::implied::open_beneath;
use super::{Counts, Shared, itemize, unfinished};
use crate::fault::errno_of;
use crate::fs::metadata::{open_up, restore_times};
use crate::fs::{
    DIRECTORY, Identity, PLACE, identity, is_temporary_name, open_quietly, partial, plain_fact, sync_directory,
    unlinked_anywhere,
};
use crate::tree::Fault;
use crate::tree::entries::{Change, Effect, Entry, FileKind};
use crate::tree::names::Names;

/// The names of a directory that have not been met in the walk.
pub(super) struct Extraneous {
    /// Those that the walk may still come to.
    left: Names,
    found: Names,
    /// Whether the walk has met any entry.
    pub has_met: bool,
    /// Whether there was a name of ours, that a transfer which was killed may have left.
    pub has_leftovers: bool,
    /// Why not all of them are known.
    failure: Option<Fault>,
}

impl Extraneous {
    /// All that is in the directory.
    pub fn of(directory: impl AsFd) -> Result<Self, Fault> {
        let (mut left, mut has_leftovers) = (Names::default(), false);
        partial::for_each(directory, |name| {
            // Ours: of another transfer, or removed by the one that comes to it.
            if is_temporary_name(name.to_bytes()) {
                has_leftovers = true;
            } else {
                left.push(FileType::Unknown, name)?;
            }
            Ok::<_, Fault>(())
        })?;
        left.sort()?;
        Ok(Self { left, found: Names::default(), has_met: false, has_leftovers, failure: None })
    }

    /// The walk has come to a name; those before it will not come any more.
    pub fn meet(&mut self, name: &[u8]) {
        self.has_met = true;
        let met = self.pass(|left| left <= name, name);
        self.failure = self.failure.take().or(met.err());
    }

    /// Notes those that come first for as long as they are `wanted`, all but one.
    fn pass(&mut self, wanted: impl Fn(&[u8]) -> bool, but: &[u8]) -> Result<(), Fault> {
        while let Some((kind, name)) = self.left.current().filter(|(_, name)| wanted(name.to_bytes())) {
            if name.to_bytes() != but {
                self.found.push(kind, name)?;
            }
            self.left.advance()?;
        }
        Ok(())
    }

    /// All names that have not come, to be read once.
    ///
    /// # Errors
    ///
    /// What kept from knowing them.
    pub fn take(&mut self) -> Result<Names, Fault> {
        self.failure.clone().map_or(Ok(()), Err)?;
        self.pass(|_| true, b"")?;
        let mut found = std::mem::take(&mut self.found);
        found.sort()?;
        Ok(found)
    }
}

/// Removes entries of one tree.
pub(super) struct Remover<'a> {
    pub shared: &'a Shared,
    /// Nothing on another device is entered.
    pub device: u64,
    /// The entry itself makes room for another of its name: nothing excludes it, and the caller is not told of it.
    pub is_room: bool,
}

/// A directory that is being removed.
struct Level {
    directory: OwnedFd,
    /// As it was found.
    stat: Stat,
    /// What is in it, from the entry on that is being removed.
    names: Names,
    /// The length of its path.
    path_bytes: usize,
    has_leftovers: bool,
    /// All that was in it has gone.
    is_empty: bool,
    outcome: Result<(), Fault>,
}

impl Level {
    /// What became of the entry that was being removed; the next one's turn comes.
    fn note(&mut self, gone: Result<bool, Fault>) {
        let next = self.names.advance();
        if next.is_err() {
            self.names = Names::default();
        }
        let outcome = gone.map(|is_gone| self.is_empty &= is_gone).and(next);
        let so_far = std::mem::replace(&mut self.outcome, Ok(()));
        self.outcome = so_far.and(outcome);
    }
}

/// What has become of an entry at first.
enum Met {
    /// It is gone, or stays.
    Gone(bool),
    /// It is a directory, and what is in it comes first.
    Directory(Box<Level>),
}

impl Remover<'_> {
    /// As [`Self::remove`], for an entry of this path below the top; reports what cannot be removed. Whether anything is
    /// likely to have gone.
    pub fn delete(&self, at: BorrowedFd<'_>, name: &CStr, top: &[u8], path: &[u8]) -> bool {
        let deleted = self.remove(at, name, self.shared.below_destination(path));
        let fault = match deleted {
            Ok(is_gone) => return is_gone,
            Err(Fault::System(error)) => Fault::Explained(error, "it is to be deleted"),
            Err(fault) => fault,
        };
        self.shared.report(&[top, path].concat(), fault);
        true
    }

    /// Removes an entry with all in it, but for what is excluded. `path` is that of the entry from DST on, as patterns
    /// take it. Whether it is gone. However deep it is, it takes no more of a thread's stack.
    ///
    /// # Errors
    ///
    /// What could not be removed, of the first.
    pub fn remove(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Result<bool, Fault> {
        let (mut path, mut levels) = (path.to_vec(), Vec::<Level>::new());
        let mut met = self.meet(at, name, &path, 0);
        loop {
            let gone = match met {
                Ok(Met::Directory(level)) => {
                    levels.push(*level);
                    None
                }
                Ok(Met::Gone(is_gone)) => Some(Ok(is_gone)),
                Err(fault) => Some(Err(fault)),
            };
            if let Some(gone) = gone {
                let Some(level) = levels.last_mut() else { return gone };
                level.note(gone);
                path.truncate(level.path_bytes);
            }
            let depth = levels.len();
            let level = levels.last_mut().expect("it has been entered");
            met = if let Some((_, below)) = level.names.current() {
                path.push(b'/');
                path.extend_from_slice(below.to_bytes());
                self.meet(level.directory.as_fd(), below, &path, depth)
            } else {
                let level = levels.pop().expect("it has been entered");
                let (at, name) = match levels.last() {
                    Some(above) => (above.directory.as_fd(), above.names.current().map_or(name, |(_, name)| name)),
                    None => (at, name),
                };
                self.leave(at, name, &path, level, depth - 1).map(Met::Gone)
            };
        }
    }

    /// Removes an entry, or enters a directory.
    fn meet(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], depth: usize) -> Result<Met, Fault> {
        let shared = self.shared;
        let stat = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Met::Gone(true)),
            stat => stat?,
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let counts_as_any = shared.options.delete_excluded || self.is_room && depth == 0;
        let is_excluded = !counts_as_any && shared.patterns.leave_out(path, is_directory);
        if is_excluded || is_temporary_name(name.to_bytes()) || shared.is_stopped.load(Acquire) {
            return Ok(Met::Gone(false));
        }
        if !is_directory {
            let kind = itemize::kind(FileType::from_raw_mode(stat.st_mode));
            let is_gone = self.unlink(at, name, path, AtFlags::empty())? && self.tell(path, kind, depth);
            return Ok(Met::Gone(is_gone));
        }
        if let Some(backup) = &shared.backup
            && backup.is_in(&stat)?
        {
            return Ok(Met::Gone(false));
        }
        if stat.st_dev != self.device {
            return Err(Errno::BUSY.into());
        }
        if depth == DEPTH_MAX {
            return Err(Fault::Detail("is nested too deeply to be deleted"));
        }
        let directory = self.open(at, name, &stat)?;
        // As an earlier copy may have made it: its owner can empty it all the same.
        let _ = if shared.options.dry_run { Ok(false) } else { open_up(&directory, &stat) };
        let extraneous = Extraneous::of(&directory).and_then(|mut all| Ok((all.has_leftovers, all.take()?)));
        let (has_leftovers, names) = extraneous.inspect_err(|_| self.restore_mode(&directory, &stat))?;
        let (path_bytes, is_empty, outcome) = (path.len(), true, Ok(()));
        let level = Level { directory, stat, names, path_bytes, has_leftovers, is_empty, outcome };
        Ok(Met::Directory(Box::new(level)))
    }

    /// Removes a directory in which all has been removed that was to be.
    fn leave(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], level: Level, depth: usize) -> Result<bool, Fault> {
        let (shared, directory) = (self.shared, &level.directory);
        let remove = || {
            level.outcome?;
            if level.is_empty && level.has_leftovers && !shared.options.dry_run {
                let _ = unfinished::remove_stale(directory.as_fd());
            }
            shared.backup.as_ref().map_or(Ok(()), |backup| backup.sync(path))?;
            let is_gone = level.is_empty && self.unlink(at, name, path, AtFlags::REMOVEDIR)?;
            Ok(is_gone && self.tell(path, FileKind::Directory, depth))
        };
        let removed = remove();
        if !matches!(removed, Ok(true)) {
            self.restore_mode(directory, &level.stat);
        }
        removed
    }

    /// What stays has the mode that it had.
    fn restore_mode(&self, directory: &OwnedFd, stat: &Stat) {
        let has_other_mode = || fstat(directory).is_ok_and(|now| now.st_mode != stat.st_mode);
        if !self.shared.options.dry_run && has_other_mode() {
            let _ = fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777));
        }
    }

    /// Opens a directory that is to be removed. One that its owner may not read is opened up.
    fn open(&self, at: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<OwnedFd, Errno> {
        let is_it = |opened: &OwnedFd| match fstat(opened) {
            Ok(here) if identity(&here) != identity(stat) => Err(Errno::STALE),
            here => here.map(drop),
        };
        let directory = match open_quietly(at, name, DIRECTORY) {
            Err(Errno::ACCESS) if !self.shared.options.dry_run => {
                let place = openat(at, name, PLACE, Mode::empty())?;
                is_it(&place)?;
                partial::open_closed(&place, Mode::from_raw_mode(stat.st_mode & 0o7777))?
            }
            opened => opened?,
        };
        is_it(&directory)?;
        Ok(directory)
    }

    /// Tells the caller that an entry is gone, which it is, and counts it.
    fn tell(&self, path: &[u8], kind: FileKind, depth: usize) -> bool {
        if self.is_room && depth == 0 {
            return true;
        }
        if self.shared.options.stats {
            self.shared.stats().note(Effect::Deleted, kind, false);
        }
        if let Some(entries) = &self.shared.entries {
            // A single root's name is not told.
            let is_below = self.shared.root_name().is_some_and(|name| name != b".") && !self.shared.options.contents;
            let start = if is_below { path.iter().position(|&byte| byte == b'/').map_or(0, |at| at + 1) } else { 0 };
            let (path, effect) = (path[start..].to_vec(), Effect::Deleted);
            entries.tell(Entry::Changed(Change { path, effect, kind, differs: None, leads_to: None }));
        }
        true
    }

    fn unlink(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], flags: AtFlags) -> Result<bool, Fault> {
        let (shared, Counts { deleted, spared, .. }) = (self.shared, &self.shared.counts);
        let most = shared.options.max_delete.unwrap_or(u64::MAX);
        if deleted.fetch_update(Relaxed, Relaxed, |deleted| (deleted < most).then_some(deleted + 1)).is_err() {
            spared.fetch_add(1, Relaxed);
            return Ok(false);
        }
        if shared.options.dry_run {
            return Ok(true);
        }
        let removed = match &shared.backup {
            Some(backup) if flags.is_empty() => backup.keep_deleted(at, name.to_bytes(), path),
            _ => unlinkat(at, name, flags).map_err(Fault::from),
        };
        match removed {
            Ok(()) | Err(Fault::System(Errno::NOENT)) => return Ok(true),
            // A transfer that was killed has left a name of ours in it.
            Err(Fault::System(Errno::NOTEMPTY | Errno::EXIST)) if flags == AtFlags::REMOVEDIR => {}
            Err(error) => {
                deleted.fetch_sub(1, Relaxed);
                return Err(error);
            }
        }
        deleted.fetch_sub(1, Relaxed);
        Ok(false)
    }
}

impl Shared {
    /// What `--max-delete` has kept, in the destination of this path.
    pub fn spared_fact(&self, path: &[u8]) -> Option<IoFact> {
        let spared = self.counts.spared.load(Relaxed);
        let entries = if spared == 1 { "entry" } else { "entries" };
        let detail = || format!("--max-delete keeps {spared} {entries}");
        (spared > 0).then(|| plain_fact(OsStr::from_bytes(path), &detail()))
    }

    /// A path below the top from DST on: the transfer's root, from which patterns count.
    pub fn below_destination<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let is_below = self.options.contents && self.root_name().is_some_and(|name| name != b".");
        let start =
            if is_below { path.iter().position(|&byte| byte == b'/').map_or(path.len(), |at| at + 1) } else { 0 };
        &path[start..]
    }

    /// Remembers what is to be deleted at the end.
    pub fn defer(&self, directory: &OwnedFd, path: &[u8], names: &mut Names) -> Result<(), Fault> {
        let mut deferred = self.deferred.lock().expect("no panics under it");
        deferred.push(directory, path, names).map_err(|error| fault_of(&error))
    }

    /// Deletes it, unless an entry has failed here, or `unsent` ones have at the sender, or a source before any was sent.
    pub fn delete_deferred(&self, top: &OpenDirectory, unsent: u64) {
        let deferred = self.deferred.lock().expect("no panics under it").0.take();
        let Some(file) = deferred else { return };
        self.backup.iter().for_each(Backup::keep_times);
        let delete = || {
            let mut file = BufReader::new(file.into_inner().map_err(|error| error.into_error())?);
            file.rewind()?;
            while delete_next(&mut file, self, top)? {}
            Ok(())
        };
        // Where it was not asked to be, it is only put off until all of this session has come.
        let is_last = self.options.generations.session.is_last || !self.options.delete_after;
        let has_all = is_last && unsent == 0 && self.failures().count == 0;
        let deleted = match !has_all {
            true => Err(Fault::Detail("nothing has been deleted, since not all was copied")),
            false => delete().map_err(|error: std::io::Error| fault_of(&error)),
        };
        if let Err(fault) = deleted {
            self.report(&top.path(b""), fault);
        }
    }
}

/// What is to be deleted once all has come (`--delete-after`), by directory, in an unlinked file.
#[derive(Default)]
pub(super) struct Deferred(Option<BufWriter<File>>);

/// The bytes of a directory's identity and of the length of its path.
const HEAD_BYTES: usize = 20;

impl Deferred {
    /// Adds what is in a directory of this path below the top.
    pub fn push(&mut self, directory: &OwnedFd, path: &[u8], names: &mut Names) -> std::io::Result<()> {
        let file = match &mut self.0 {
            Some(file) => file,
            none => none.insert(BufWriter::new(unlinked_anywhere()?)),
        };
        let (device, inode) = identity(&fstat(directory)?);
        file.write_all(&device.to_le_bytes())?;
        file.write_all(&inode.to_le_bytes())?;
        file.write_all(&(path.len() as u32).to_le_bytes())?;
        file.write_all(path)?;
        while let Some((_, name)) = names.current() {
            file.write_all(name.to_bytes_with_nul())?;
            names.advance().map_err(|fault| fault.errno().unwrap_or(Errno::IO))?;
        }
        // No name is empty.
        file.write_all(&[0])
    }
}

fn fault_of(error: &std::io::Error) -> Fault {
    Fault::Explained(errno_of(error), "what is to be deleted cannot be remembered in the temporary directory (TMPDIR)")
}

/// Deletes what is in the next directory of the file; whether there was one.
fn delete_next(file: &mut BufReader<File>, shared: &Shared, top: &OpenDirectory) -> std::io::Result<bool> {
    let mut head = [0; HEAD_BYTES];
    match file.read_exact(&mut head) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let expected = (number(0), number(8));
    let length = u32::from_le_bytes(head[16..].try_into().expect("four bytes"));
    let mut path = vec![0; length as usize];
    file.read_exact(&mut path)?;
    let is_dry = shared.options.dry_run;
    let opened = reopen(top, &path, expected, is_dry);
    let was_closed = opened.as_ref().is_ok_and(|(directory, stat)| !is_dry && open_up(directory, stat) == Ok(true));
    let mut name = Vec::new();
    let mut has_changed = false;
    while file.read_until(0, &mut name)? > 1 {
        if let (Ok((directory, stat)), Ok(found)) = (&opened, CStr::from_bytes_with_nul(&name)) {
            let remover = Remover { shared, device: stat.st_dev, is_room: false };
            let below = [&path[..], if path.is_empty() { b"" } else { b"/" }, found.to_bytes()].concat();
            has_changed |= remover.delete(directory.as_fd(), found, &top.top_path(), &below);
        }
        name.clear();
    }
    let restored = opened.and_then(|(directory, stat)| {
        if was_closed {
            fchmod(&directory, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        }
        if has_changed && !is_dry {
            restore_times(&directory, &stat)?;
            if shared.options.syncs() {
                shared.backup.as_ref().map_or(Ok(()), |backup| backup.sync(shared.below_destination(&path)))?;
                sync_directory(&directory)?;
            }
        }
        Ok(())
    });
    if let Err(error) = restored {
        shared.report(&top.path(&path), Fault::Explained(error, "what is to be deleted is in it"));
    }
    Ok(true)
}

/// The directory that had this path below the top when it was left. One that its owner may not read is opened up, and gets
/// its mode again from who deletes in it; in a dry run it is opened as a place only.
fn reopen(top: &OpenDirectory, path: &[u8], expected: Identity, is_dry: bool) -> Result<(OwnedFd, Stat), Errno> {
    let mut place = openat(&top.fd, ".", PLACE, Mode::empty())?;
    if top.shared.options.no_implied_dirs && !path.is_empty() {
        place = open_beneath(&top.fd, path, PLACE)?;
    } else {
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            place = openat(&place, name, PLACE, Mode::empty())?;
        }
    }
    let stat = fstat(&place)?;
    if identity(&stat) != expected {
        return Err(Errno::STALE);
    }
    match openat(&place, ".", DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) if is_dry => Ok((place, stat)),
        Err(Errno::ACCESS) => Ok((partial::open_closed(&place, Mode::from_raw_mode(stat.st_mode & 0o7777))?, stat)),
        opened => Ok((opened?, stat)),
    }
}
