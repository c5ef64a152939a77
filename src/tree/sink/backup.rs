//! `--backup-dir`: what is replaced or deleted goes on under the same path in another directory.
//!
//! A file that is replaced gets a second name there before the new one takes the first, so at each moment it has one of
//! them. What is deleted is renamed. No link is followed but those on the way to an absolute DIR, outside DST, that are
//! there when the copy begins: they are the user's, as DST is.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use rd_proto::control::IoFact;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, linkat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::Names;
use crate::fs::metadata::restore_times;
use crate::fs::{DIRECTORY, Identity, PLACE, WHOLE, identity, name_beside, sync_directory};
use crate::options::TreeOptions;
use crate::tree::Fault;

const IS_OTHER_SYSTEM: &str =
    "--backup-dir has to be on the file system of DST, where an older file is renamed into it";
const NO_BACKUP: &str = "its backup cannot be made";
const IS_DIRECTORY_THERE: &str = "its backup cannot be made: under this path, --backup-dir has a directory of an earlier copy, \
                                  which stays; move that away, or name another --backup-dir";
const IS_NONE_THERE: &str = "its backup cannot be made: on the way to this path, --backup-dir has a file of an earlier copy, \
                             which stays; move that away, or name another --backup-dir";

/// Where DIR is, and what is kept there.
pub(super) struct Backup {
    /// The directory that DST is, or lies in under this name.
    top: OwnedFd,
    name: Option<Vec<u8>>,
    syncs: bool,
    reached: Mutex<Reached>,
}

/// How far DIR has been opened. What was there at the start is opened then, before the sender can put links in its place.
struct Reached {
    /// `None` where a relative DIR begins at a DST that is not there yet.
    here: Option<OwnedFd>,
    /// The names that are left.
    rest: VecDeque<Vec<u8>>,
    /// Links are followed: in an absolute DIR, at the start, and outside DST.
    follows: bool,
    is_new: bool,
    /// What is made in a directory of DST does not change its time: all in DST has the one that it is to have.
    keeps_times: bool,
    /// What has been reached is DST, or in it.
    is_inside: bool,
    /// The directories on the way, and DIR itself.
    way: Vec<Identity>,
    opened: Option<Arc<Opened>>,
}

/// DIR, once it is there.
struct Opened {
    directory: OwnedFd,
    destination: OwnedFd,
}

impl Reached {
    /// Opens what is left of DIR, below the start of a relative one. `make`: what is missing is made; else `None` is that.
    fn walk(&mut self, destination: Option<&Stat>, make: bool, syncs: bool) -> Result<Option<OwnedFd>, Fault> {
        while let (Some(here), Some(name)) = (&self.here, self.rest.front()) {
            let flags = if self.follows { DIRECTORY.difference(OFlags::NOFOLLOW) } else { DIRECTORY };
            let next = match openat(here, &name[..], flags, Mode::empty()) {
                Err(Errno::NOENT) if !make => return Ok(None),
                Err(Errno::NOENT) => {
                    let above = fstat(here)?;
                    mkdirat(here, &name[..], Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
                    self.is_new = true;
                    if self.keeps_times && self.is_inside {
                        restore_times(here, &above)?;
                    }
                    if syncs {
                        sync_directory(here)?;
                    }
                    openat(here, &name[..], DIRECTORY, Mode::empty())?
                }
                next => next?,
            };
            let reached = identity(&fstat(&next)?);
            let is_destination = destination.is_some_and(|stat| identity(stat) == reached);
            self.follows &= !is_destination;
            self.is_inside = is_destination || self.is_inside && name != b"..";
            self.way.push(reached);
            self.here = Some(next);
            self.rest.pop_front();
        }
        Ok(self.here.as_ref().map(again).transpose()?)
    }
}

impl Backup {
    /// That of a copy into `directory`, if it has one.
    ///
    /// # Errors
    ///
    /// DIR cannot be what is asked for. What is missing of it is made when it is needed.
    pub fn new(directory: BorrowedFd<'_>, names: &Names, options: &TreeOptions) -> Result<Option<Self>, IoFact> {
        let Some(path) = options.backup_dir.as_ref().map(|path| path.to_vec()) else { return Ok(None) };
        let fact = |fault: Fault| fault.into_fact(OsStr::from_bytes(&path));
        let top = again(directory).map_err(|error| fact(error.into()))?;
        let name = match names {
            Names::Only(name) if options.contents && name != b"." => Some(name.clone()),
            _ => None,
        };
        let is_absolute = path.starts_with(b"/");
        let root = is_absolute.then(|| openat(CWD, "/", DIRECTORY, Mode::empty())).transpose();
        let rest = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let reached = Reached {
            here: root.map_err(|error| fact(error.into()))?,
            rest: rest.map(<[u8]>::to_vec).collect(),
            follows: is_absolute,
            is_new: false,
            keeps_times: false,
            is_inside: !is_absolute,
            way: Vec::new(),
            opened: None,
        };
        let backup = Self { top, name, syncs: options.syncs(), reached: Mutex::new(reached) };
        backup.open(false).map_err(fact)?;
        Ok(Some(backup))
    }

    /// Opens DIR. `make`: it is made where it is missing; else, and where DST is, `None` is that.
    fn open(&self, make: bool) -> Result<Option<Arc<Opened>>, Fault> {
        let mut reached = self.reached.lock().expect("no panics under it");
        if reached.opened.is_some() {
            return Ok(reached.opened.clone());
        }
        let name = self.name.as_deref().unwrap_or(b".");
        let destination = match openat(&self.top, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !make => None,
            found => Some(found?),
        };
        let stat = destination.as_ref().map(fstat).transpose()?;
        if reached.here.is_none() {
            reached.here = destination.as_ref().map(again).transpose()?;
        }
        let found = reached.walk(stat.as_ref(), make, self.syncs);
        reached.follows = false;
        let found = found?;
        let (Some(destination), Some(stat), Some(here)) = (destination, stat, &reached.here) else { return Ok(None) };
        let here = fstat(here)?;
        if here.st_dev != stat.st_dev {
            return Err(Fault::Explained(Errno::XDEV, IS_OTHER_SYSTEM));
        }
        let Some(directory) = found else { return Ok(None) };
        if identity(&here) == identity(&stat) {
            return Err(Fault::Detail("--backup-dir is DST itself: name another directory"));
        }
        if reached.is_new {
            resemble(&directory, &stat);
        }
        reached.opened = Some(Arc::new(Opened { directory, destination }));
        Ok(reached.opened.clone())
    }

    /// All that is copied is done, the times of directories as well.
    pub fn keep_times(&self) {
        self.reached.lock().expect("no panics under it").keeps_times = true;
    }

    /// Whether a directory that is to be deleted is DIR, or leads to it.
    pub fn is_in(&self, stat: &Stat) -> Result<bool, Fault> {
        self.open(false)?;
        Ok(self.reached.lock().expect("no panics under it").way.contains(&identity(stat)))
    }

    /// Keeps an entry, which is no directory, before another takes its name. `path`: from DST on.
    pub fn keep_replaced(&self, at: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<(), Fault> {
        if matches!(statat(at, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
            return Ok(());
        }
        let (directory, last) = self.directory(path)?;
        match link(at, name, &directory, last) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // A file system, or a rule about other users' files, has no links for it: for a moment it has no name here.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => {
                renameat(at, name, &directory, last).map_err(no_backup)
            }
            Err(error) => Err(no_backup(error)),
        }
    }

    /// Takes away an entry, which is no directory. `path`: from DST on.
    pub fn keep_deleted(&self, at: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<(), Fault> {
        let (directory, last) = self.directory(path)?;
        renameat(at, name, &directory, last).map_err(no_backup)?;
        // Between two names of one file, rename succeeds and does nothing.
        let is_other_name = || -> Result<bool, Errno> {
            let [here, there] =
                [statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?, statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW)?];
            Ok(identity(&here) == identity(&there))
        };
        if is_other_name() == Ok(true) {
            unlinkat(at, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Makes durable what is kept of a directory of this path from DST on, before what is in DST.
    pub fn sync(&self, path: &[u8]) -> Result<(), Errno> {
        let Some(opened) = self.reached.lock().expect("no panics under it").opened.clone().filter(|_| self.syncs)
        else {
            return Ok(());
        };
        let mut here = again(&opened.directory)?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            here = match openat(&here, name, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                next => next?,
            };
        }
        sync_directory(&here)
    }

    /// The directory in DIR for an entry of this path, and the entry's name. Those that are missing get the owners and
    /// modes that they have in DST.
    fn directory<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Fault> {
        let opened = self.open(true).map_err(|fault| match fault {
            Fault::System(error) => Fault::Explained(error, "the directory of --backup-dir cannot be made"),
            fault => fault,
        })?;
        let opened = opened.ok_or(Errno::NOENT)?;
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (above, last) = slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
        let mut here = again(&opened.directory)?;
        let mut original = Some(again(&opened.destination)?);
        for name in above.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            original = original.and_then(|from| openat(from, name, PLACE, Mode::empty()).ok());
            let made = mkdirat(&here, name, Mode::RWXU);
            if !matches!(made, Ok(()) | Err(Errno::EXIST)) {
                made.map_err(no_backup)?;
            }
            if made.is_ok() && self.syncs {
                sync_directory(&here).map_err(no_backup)?;
            }
            // Not where an earlier copy has kept what was no directory then: that stays.
            here = openat(&here, name, DIRECTORY, Mode::empty()).map_err(no_backup)?;
            if made.is_ok()
                && let Some(stat) = original.as_ref().and_then(|original| fstat(original).ok())
            {
                resemble(&here, &stat);
            }
        }
        Ok((here, last))
    }
}

/// The same directory, open once more.
fn again(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    openat(directory, ".", DIRECTORY, Mode::empty())
}

fn no_backup(error: Errno) -> Fault {
    let reason = match error {
        Errno::ISDIR => IS_DIRECTORY_THERE,
        Errno::NOTDIR | Errno::LOOP => IS_NONE_THERE,
        _ => NO_BACKUP,
    };
    Fault::Explained(error, reason)
}

/// Gives a directory that was made the owner and mode of another, as far as that can be done.
fn resemble(directory: &OwnedFd, stat: &Stat) {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let has_group = fchown(directory, None, Some(group)).is_ok();
    let _ = fchown(directory, Some(user), None);
    // Another group is not given what this one may do.
    let mode = if has_group { stat.st_mode & 0o7777 } else { stat.st_mode & 0o1707 };
    let _ = fchmod(directory, Mode::from_raw_mode(mode | 0o700));
}

/// Gives an entry a second name. What an earlier copy has kept under that is replaced in one step.
fn link(at: BorrowedFd<'_>, name: &[u8], to: &OwnedFd, last: &[u8]) -> Result<(), Errno> {
    match linkat(at, name, to, last, AtFlags::empty()) {
        Err(Errno::EXIST) => {}
        done => return done,
    }
    let beside = name_beside(last, WHOLE);
    let _ = unlinkat(to, &*beside, AtFlags::empty());
    linkat(at, name, to, &*beside, AtFlags::empty())?;
    let renamed = renameat(to, &*beside, to, last);
    // It may be a name of the same file already: then rename has done nothing.
    let _ = unlinkat(to, &*beside, AtFlags::empty());
    renamed
}
