//! Deletes entries of a destination directory that the source directory does not have.
//!
//! Each entry is found and removed relative to the descriptor of its directory, and no link is followed. So names may
//! be exchanged meanwhile, and nothing outside is touched. File systems mounted below are not entered.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use minicbor::bytes::{ByteSlice, ByteVec};
use rd_proto::control::IoFact;
use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{Access, AtFlags, FileType, Mode, Stat, fchmod, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::backup::Backup;
use super::directory::OpenDirectory;
use super::implied::open_beneath;
use super::shared::restore_directory_times;
use super::{Counts, Shared, itemize, unfinished};
use crate::fault::errno_of;
use crate::fs::metadata::open_up;
use crate::fs::{
    DIRECTORY, Identity, PLACE, append, descend, identity, is_directory, is_temporary_name, may, open_quietly, partial,
    plain_fact, sync_directory, take_next, temporary_directory, unlinked_anywhere,
};
use crate::tree::entries::{Change, Effect, Entry, FileKind};
use crate::tree::names::Names;
use crate::tree::{Fault, KEEPS_SPARED, NOT_PRUNED};

/// Why a directory stays from which every known entry has gone.
const IS_NOT_EMPTY: &str = "cannot delete it: another program uses or has just created something in it, or a copy has \
                            left .HASH.rd-part there that may be another user's; see ls -lAR, and run this again once \
                            that is gone";

/// Reasons why an entry stays, after its path.
const IS_EXCLUDED: &str = "is excluded; move that away, or use --delete-excluded";
const LEADS_TO_BACKUPS: &str = "leads to --backup-dir; use another directory for backups";
const IS_MOUNTED: &str = "is a mount point, or a subvolume; unmount or delete that";
const IS_STOPPED: &str = "was not deleted, because the copy was stopped";
const IS_USED: &str = "is the cache of digests that this copy uses; move that away, or name another file";

/// The names of a directory that the walk has not reached.
pub(super) struct Extraneous {
    /// Names that the walk may still reach.
    left: Names,
    found: Names,
    /// Whether there was a temporary name, which a killed transfer may have left.
    pub has_leftovers: bool,
    /// Why some of the names are not known.
    failure: Option<Fault>,
}

impl Extraneous {
    /// Takes all names in the directory.
    pub fn of(directory: impl AsFd) -> Result<Self, Fault> {
        let (mut left, mut has_leftovers) = (Names::default(), false);
        partial::for_each(directory, |name| {
            // A temporary name belongs to another transfer, or is removed by the transfer that needs the name.
            if is_temporary_name(name.to_bytes()) {
                has_leftovers = true;
            } else {
                left.push(FileType::Unknown, name)?;
            }
            Ok::<_, Fault>(())
        })?;
        left.sort()?;
        Ok(Self { left, found: Names::default(), has_leftovers, failure: None })
    }

    /// Records that the walk has reached a name. Names that sort before it will not come any more.
    pub fn meet(&mut self, name: &[u8]) {
        let met = self.pass(|left| left <= name, name);
        self.failure = self.failure.take().or(met.err());
    }

    /// Moves leading names for which `wanted` holds to the found ones. The name `but` is dropped instead.
    fn pass(&mut self, wanted: impl Fn(&[u8]) -> bool, but: &[u8]) -> Result<(), Fault> {
        while let Some((kind, name)) = self.left.current().filter(|(_, name)| wanted(name.to_bytes())) {
            if name.to_bytes() != but {
                self.found.push(kind, name)?;
            }
            self.left.advance()?;
        }
        Ok(())
    }

    /// Returns all names that have not come. They can be read only once.
    ///
    /// # Errors
    ///
    /// The failure that kept some names from being known.
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
    /// Device of the tree. Directories on other devices are not entered.
    pub device: u64,
    /// Whether the entry itself makes room for another of the same name. Then no pattern excludes it, and the caller is
    /// not told of its removal.
    pub is_room: bool,
    /// If set, nothing is removed. What would be removed is recorded here instead.
    pub trial: Option<&'a RefCell<Trial>>,
}

/// What a [`Remover`] would do.
#[derive(Default)]
pub(super) struct Trial {
    /// Number of entries that would be removed, if none would stay.
    pub count: u64,
    /// The first entry that would stay, and why: the rest of its path, after that of the entry that is to be removed.
    pub first_kept: Option<(Vec<u8>, Fault)>,
}

/// A directory that is being removed.
struct Level {
    directory: OwnedFd,
    /// Metadata of the directory when it was found.
    stat: Stat,
    /// Entries of the directory, from the one that is being removed on.
    names: Names,
    /// Length of the directory's path.
    path_bytes: usize,
    has_leftovers: bool,
    /// Whether all entries so far are gone.
    is_empty: bool,
    outcome: Result<(), Fault>,
}

impl Level {
    /// Records the outcome for the entry that was being removed, and goes on to the next.
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

/// Result of the first step on an entry.
enum Met {
    /// Whether the entry is gone; otherwise it stays.
    Gone(bool),
    /// The entry stays for this reason.
    Kept(&'static str),
    /// The entry is a directory, whose contents come first.
    Directory(Box<Level>),
}

impl Trial {
    fn note(&mut self, below: &[u8], met: &Result<Met, Fault>) {
        let why = match met {
            Ok(Met::Kept(why)) => Fault::Explained(Errno::NOTEMPTY, why),
            Ok(_) => return,
            Err(Fault::System(Errno::BUSY)) => Fault::Explained(Errno::BUSY, IS_MOUNTED),
            Err(Fault::System(error)) => Fault::Explained(*error, "cannot be deleted"),
            Err(fault) => fault.clone(),
        };
        self.first_kept.get_or_insert_with(|| (below.to_vec(), why));
    }
}

impl Remover<'_> {
    /// Like [`Self::remove`], for the entry at this path below the top, but reports a failure. Returns whether anything
    /// is likely to be gone.
    pub fn delete(&self, at: BorrowedFd<'_>, name: &CStr, top: &[u8], path: &[u8]) -> bool {
        let deleted = self.remove(at, name, self.shared.below_destination(path));
        let fault = match deleted {
            Ok(is_gone) => return is_gone,
            Err(Fault::System(error)) => Fault::Explained(error, "cannot delete it"),
            Err(fault) => fault,
        };
        self.shared.report(&[top, path].concat(), fault);
        true
    }

    /// Removes an entry and everything in it, except excluded entries. `path` is the entry's path from DST on, as
    /// patterns take it. Returns whether the entry is gone. The use of stack does not grow with the depth of the tree.
    ///
    /// # Errors
    ///
    /// The first failure to remove an entry.
    pub fn remove(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Result<bool, Fault> {
        let (start, mut path, mut levels) = (path.len(), path.to_vec(), Vec::<Level>::new());
        let mut met = self.meet(at, name, &path, 0);
        loop {
            if let Some(trial) = self.trial {
                trial.borrow_mut().note(&path[start..], &met);
            }
            let gone = match met {
                Ok(Met::Directory(level)) => {
                    levels.push(*level);
                    None
                }
                Ok(Met::Gone(is_gone)) => Some(Ok(is_gone)),
                Ok(Met::Kept(_)) => Some(Ok(false)),
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
        let is_directory = is_directory(&stat);
        let counts_as_any = shared.options.delete_excluded || self.is_room && depth == 0;
        if !counts_as_any && shared.patterns.leave_out(path, is_directory) {
            return Ok(Met::Kept(IS_EXCLUDED));
        }
        let is_decided = self.trial.is_some_and(|trial| trial.borrow().first_kept.is_some());
        if is_decided || is_temporary_name(name.to_bytes()) || shared.is_stopped.load(Acquire) {
            return Ok(Met::Kept(IS_STOPPED));
        }
        if shared.cache.as_ref().is_some_and(|cache| cache.is_at(name.to_bytes(), || Ok(stat))) {
            return Ok(Met::Kept(IS_USED));
        }
        if !is_directory {
            let kind = itemize::kind(FileType::from_raw_mode(stat.st_mode));
            let is_gone = self.unlink(at, name, path, AtFlags::empty())? && self.tell(path, kind, depth);
            return Ok(Met::Gone(is_gone));
        }
        if let Some(backup) = &shared.backup
            && backup.is_in(&stat)?
        {
            return Ok(Met::Kept(LEADS_TO_BACKUPS));
        }
        if stat.st_dev != self.device {
            // As with rsync, nothing is deleted where a copy with this option would not go.
            let is_beyond = shared.options.one_file_system;
            return if is_beyond { Ok(Met::Kept(IS_MOUNTED)) } else { Err(Errno::BUSY.into()) };
        }
        if depth == DEPTH_MAX {
            return Err(Fault::Detail("is nested too deeply to be deleted"));
        }
        let directory = self.open(at, name, &stat)?;
        // An earlier copy may have made the directory unwritable. Its owner can empty it all the same.
        let _ = if shared.options.dry_run { Ok(false) } else { open_up(&directory, &stat) };
        let extraneous = Extraneous::of(&directory).and_then(|mut all| {
            let names = all.take()?;
            // In a dry run, directories of this user have not been opened up.
            let may_be_closed = shared.options.dry_run && stat.st_uid == rustix::process::geteuid().as_raw();
            if self.trial.is_some() && !may_be_closed && names.current().is_some() {
                may(&directory, ".", Access::WRITE_OK | Access::EXEC_OK)?;
            }
            Ok((all.has_leftovers, names))
        });
        let (has_leftovers, names) = extraneous.inspect_err(|_| self.restore_mode(&directory, &stat))?;
        let (path_bytes, is_empty, outcome) = (path.len(), true, Ok(()));
        let level = Level { directory, stat, names, path_bytes, has_leftovers, is_empty, outcome };
        Ok(Met::Directory(Box::new(level)))
    }

    /// Removes a directory from which everything that had to go has been removed.
    fn leave(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], level: Level, depth: usize) -> Result<bool, Fault> {
        let (shared, directory) = (self.shared, &level.directory);
        let remove = || {
            level.outcome?;
            if self.trial.is_some() {
                return self.unlink(at, name, path, AtFlags::REMOVEDIR);
            }
            if level.is_empty && level.has_leftovers && !shared.options.dry_run {
                let _ = unfinished::remove_stale(directory.as_fd());
                unfinished::delete_leftovers(directory.as_fd());
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

    /// Restores the mode of a directory that stays.
    fn restore_mode(&self, directory: &OwnedFd, stat: &Stat) {
        let has_other_mode = || fstat(directory).is_ok_and(|now| now.st_mode != stat.st_mode);
        if !self.shared.options.dry_run && has_other_mode() {
            let _ = fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777));
        }
    }

    /// Opens a directory that is to be removed. A directory that its owner may not read is opened up.
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

    /// Counts a removed entry and tells the caller of it. Always returns true.
    fn tell(&self, path: &[u8], kind: FileKind, depth: usize) -> bool {
        if self.is_room && depth == 0 {
            return true;
        }
        if self.shared.options.stats {
            crate::locked(&self.shared.stats).note(Effect::Deleted, kind, false);
        }
        if let Some(entries) = &self.shared.entries {
            let path = if self.shared.options.contents { path } else { self.shared.without_root(path) };
            let (path, effect) = (path.to_vec(), Effect::Deleted);
            entries.tell(Entry::Changed(Change { path, effect, kind, differs: None, leads_to: None }));
        }
        true
    }

    /// Removes an entry, or in a trial only counts it. Returns whether it is gone.
    fn unlink(&self, at: BorrowedFd<'_>, name: &CStr, path: &[u8], flags: AtFlags) -> Result<bool, Fault> {
        let (shared, Counts { deleted, spared, .. }) = (self.shared, &self.shared.counts);
        if let Some(trial) = self.trial {
            trial.borrow_mut().count += 1;
            shared.progress.note_work(1);
            return Ok(false);
        }
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
        shared.progress.note_work(1);
        let fault = match removed {
            Ok(()) | Err(Fault::System(Errno::NOENT)) => return Ok(true),
            // A temporary name that a live transfer holds, or a name that NFS gives to a file that is deleted while it
            // is open.
            Err(Fault::System(Errno::NOTEMPTY | Errno::EXIST)) if flags == AtFlags::REMOVEDIR => {
                Fault::Explained(Errno::NOTEMPTY, IS_NOT_EMPTY)
            }
            Err(fault) => fault,
        };
        deleted.fetch_sub(1, Relaxed);
        Err(fault)
    }
}

impl Shared {
    /// Describes what `--max-delete` has kept in the destination with this path.
    pub fn spared_fact(&self, path: &[u8]) -> Option<IoFact> {
        let spared = self.counts.spared.load(Relaxed);
        let entries = if spared == 1 { "entry" } else { "entries" };
        let detail = || format!("{KEEPS_SPARED} {spared} {entries}");
        (spared > 0).then(|| plain_fact(OsStr::from_bytes(path), &detail()))
    }

    /// Turns a path below the top into one from DST on, that is, from the root of the transfer, to which patterns are
    /// relative.
    pub fn below_destination<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        if self.options.contents { self.without_root(path) } else { path }
    }
}

impl OpenDirectory {
    /// Remembers entries that are to be deleted at the end. Only the first failure is returned, because nothing is deleted
    /// after it.
    pub fn defer(&self, names: &mut Names) -> Result<(), Fault> {
        let mut deferred = crate::locked(&self.shared.deferred);
        if deferred.has_failed {
            return Ok(());
        }
        let pushed = deferred.push(&self.fd, &self.path_below_top(b""), names);
        deferred.has_failed = pushed.is_err();
        pushed.map_err(|error| fault_of(&error))
    }

    /// Deletes the remembered entries, unless an entry has failed here, or at the sender (`unsent`), or a source failed
    /// before any entry was sent.
    pub fn delete_deferred(&self, unsent: u64) {
        let shared = &self.shared;
        let deferred = crate::locked(&shared.deferred).file.take();
        let Some(file) = deferred else { return };
        shared.backup.iter().for_each(Backup::keep_times);
        let delete = || {
            let mut file = BufReader::new(file.into_inner().map_err(|error| error.into_error())?);
            file.rewind()?;
            while delete_next(&mut file, self)? {}
            Ok(())
        };
        // Without `--delete-after`, deleting is put off only until everything of this session has come.
        let is_last = shared.options.generations.session.is_last || !shared.options.delete_after;
        let has_all = is_last && unsent == 0 && crate::locked(&shared.failures).count == 0;
        let deleted = match !has_all {
            true => Err(Fault::Detail(NOT_PRUNED)),
            false => delete().map_err(|error: std::io::Error| fault_of(&error)),
        };
        if let Err(fault) = deleted {
            // The top is the parent of DST if the root itself becomes DST.
            shared.report(&self.root_path(), fault);
        }
    }
}

/// Entries to be deleted once everything has come (`--delete-after`), by directory, in an unlinked file.
#[derive(Default)]
pub(super) struct Deferred {
    file: Option<BufWriter<File>>,
    has_failed: bool,
}

impl Deferred {
    /// Adds the names in the directory at this path below the top.
    pub fn push(&mut self, directory: &OwnedFd, path: &[u8], names: &mut Names) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::new(unlinked_anywhere()?)),
        };
        append(file, (identity(&fstat(directory)?), <&ByteSlice>::from(path)))?;
        while let Some((_, name)) = names.current() {
            file.write_all(name.to_bytes_with_nul())?;
            names.advance().map_err(|fault| fault.errno().unwrap_or(Errno::IO))?;
        }
        // An empty name ends the list, because no real name is empty.
        file.write_all(&[0])
    }
}

fn fault_of(error: &std::io::Error) -> Fault {
    let path = temporary_directory().into_os_string().into_vec();
    let why = "the list of entries to delete is stored there; set TMPDIR to another directory";
    Fault::At(errno_of(error), path, why.to_owned())
}

/// Deletes the entries of the next directory in the file. Returns whether there was one.
fn delete_next(file: &mut BufReader<File>, top: &OpenDirectory) -> std::io::Result<bool> {
    let shared = &top.shared;
    let Some((expected, path)) = take_next::<(Identity, ByteVec)>(file)? else { return Ok(false) };
    let is_dry = shared.options.dry_run;
    let opened = reopen(top, &path, expected, is_dry);
    let was_closed = opened
        .as_ref()
        .is_ok_and(|(directory, stat, was_shut)| *was_shut || !is_dry && open_up(directory, stat) == Ok(true));
    let mut name = Vec::new();
    let mut has_changed = false;
    while file.read_until(0, &mut name)? > 1 {
        if let (Ok((directory, stat, _)), Ok(found)) = (&opened, CStr::from_bytes_with_nul(&name)) {
            let remover = Remover { shared, device: stat.st_dev, is_room: false, trial: None };
            let below = [&path[..], if path.is_empty() { b"" } else { b"/" }, found.to_bytes()].concat();
            has_changed |= remover.delete(directory.as_fd(), found, &top.top_path(), &below);
        }
        name.clear();
    }
    let restored = opened.and_then(|(directory, stat, _)| {
        if was_closed {
            fchmod(&directory, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        }
        if has_changed && !is_dry {
            restore_directory_times(&directory, &stat)?;
            if shared.options.syncs() {
                shared.backup.as_ref().map_or(Ok(()), |backup| backup.sync(shared.below_destination(&path)))?;
                sync_directory(&directory)?;
            }
        }
        Ok(())
    });
    if let Err(error) = restored {
        shared.report(&top.path(&path), Fault::Explained(error, "cannot delete extraneous entries in it"));
    }
    Ok(true)
}

/// Opens the directory that had this path below the top when the walk left it. A directory that its owner may not read
/// is opened up, which is reported; the caller restores its mode after deleting in it. In a dry run such a directory is
/// opened as a place only.
fn reopen(top: &OpenDirectory, path: &[u8], expected: Identity, is_dry: bool) -> Result<(OwnedFd, Stat, bool), Errno> {
    let place = match top.shared.options.no_implied_dirs && !path.is_empty() {
        true => open_beneath(&top.fd, path, PLACE)?,
        false => descend(&top.fd, path, PLACE)?,
    };
    let stat = fstat(&place)?;
    if identity(&stat) != expected {
        return Err(Errno::STALE);
    }
    match openat(&place, ".", DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) if is_dry => Ok((place, stat, false)),
        Err(Errno::ACCESS) => {
            Ok((partial::open_closed(&place, Mode::from_raw_mode(stat.st_mode & 0o7777))?, stat, true))
        }
        opened => Ok((opened?, stat, false)),
    }
}
