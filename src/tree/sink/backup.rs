//! `--backup-dir` (DIR): keeps replaced and deleted entries under the same path in another directory.
//!
//! Before a new file takes the name of an old one, the old file is linked into DIR, so that it has a name at every
//! moment. A deleted entry is renamed into DIR. Links are followed only on the way to an absolute DIR, outside DST, and
//! only if they exist when the copy begins: such links belong to the user, as DST does.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use rd_proto::control::IoFact;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, linkat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::Names;
use super::shared::restore_directory_times;
use super::unfinished::have_same;
use crate::fs::{DIRECTORY, Identity, PLACE, WHOLE, again, descend, identity, is_regular, name_beside, sync_directory};
use crate::options::TreeOptions;
use crate::tree::Fault;

const IS_OTHER_SYSTEM: &str = "--backup-dir must be on the file system of DST, since older files are renamed into it";
const NO_BACKUP: &str = "cannot make its backup";
const IS_DIRECTORY_THERE: &str = "cannot make its backup: --backup-dir has a directory of an earlier copy \
                                  under this path; move it away, or use another --backup-dir";
const IS_NONE_THERE: &str = "cannot make its backup: --backup-dir has a file of an earlier copy \
                             where this path needs a directory; move it away, or use another --backup-dir";

/// The state of DIR.
pub(super) struct Backup {
    /// The directory that is DST, or that contains DST under this name.
    top: OwnedFd,
    name: Option<Vec<u8>>,
    syncs: bool,
    reached: Mutex<Reached>,
}

/// How far DIR has been opened. Components that exist at the start are opened at the start, before the sender can put
/// links in their place.
struct Reached {
    /// `None` if a relative DIR begins at a DST that does not exist yet.
    here: Option<OwnedFd>,
    /// Names still to be opened.
    rest: VecDeque<Vec<u8>>,
    /// Whether links are followed: only for an absolute DIR, at the start, and outside DST.
    follows: bool,
    is_new: bool,
    /// Whether making an entry in a directory of DST must preserve its time, which may be its final one already.
    keeps_times: bool,
    /// Whether the directory reached is DST, or lies in DST.
    is_inside: bool,
    /// Directories on the way to DIR, and DIR itself.
    way: Vec<Identity>,
    opened: Option<Arc<Opened>>,
}

/// DIR, once it exists.
struct Opened {
    directory: OwnedFd,
    destination: OwnedFd,
}

impl Reached {
    /// Opens the remaining components of DIR; a relative DIR must already have its start. With `make`, missing
    /// directories are made; otherwise `None` if a directory is missing.
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
                        restore_directory_times(here, &above)?;
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
    /// Returns the backup for a copy into `directory`; `None` without `--backup-dir`. Missing parts of DIR are made
    /// when they are needed.
    ///
    /// # Errors
    ///
    /// Fails if DIR cannot be used as the backup directory.
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
            keeps_times: options.keeps_times(true),
            is_inside: !is_absolute,
            way: Vec::new(),
            opened: None,
        };
        let backup = Self { top, name, syncs: options.syncs(), reached: Mutex::new(reached) };
        backup.open(false).map_err(fact)?;
        Ok(Some(backup))
    }

    /// Opens DIR. With `make`, missing directories are made. Otherwise `None` if DIR or DST is missing.
    fn open(&self, make: bool) -> Result<Option<Arc<Opened>>, Fault> {
        let mut reached = crate::locked(&self.reached);
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
            return Err(Fault::Detail("--backup-dir is DST itself; use another directory"));
        }
        if reached.is_new {
            resemble(&directory, &stat);
        }
        reached.opened = Some(Arc::new(Opened { directory, destination }));
        Ok(reached.opened.clone())
    }

    /// Records that everything has been copied and all directories have their final times, which must be preserved from
    /// now on.
    pub fn keep_times(&self) {
        crate::locked(&self.reached).keeps_times = true;
    }

    /// Keeps directories from being made for DIR as long as what is returned lives: a directory of DST gets its time
    /// either before that, and keeps it, or afterwards.
    pub fn hold(&self) -> impl Sized + '_ {
        crate::locked(&self.reached)
    }

    /// Whether a directory that is about to be deleted is DIR, or lies on the way to it.
    pub fn is_in(&self, stat: &Stat) -> Result<bool, Fault> {
        self.open(false)?;
        Ok(crate::locked(&self.reached).way.contains(&identity(stat)))
    }

    /// Keeps an entry that is not a directory before another entry takes its name. `new`: that entry's temporary name.
    /// `path` begins at DST.
    pub fn keep_replaced(&self, at: BorrowedFd<'_>, name: &[u8], new: &str, path: &[u8]) -> Result<(), Fault> {
        if matches!(statat(at, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
            return Ok(());
        }
        // Another run has put the same file there since this one looked. Its backup of the older file must stay.
        if is_same(at, name, new).unwrap_or(false) {
            return Ok(());
        }
        let (directory, last) = self.directory(path)?;
        match link(at, name, &directory, last) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // The file system cannot link the entry (ENOSYS with FUSE), or a rule about other users' files forbids it.
            // So for a moment the entry has no name in DST.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                renameat(at, name, &directory, last).map_err(no_backup)
            }
            Err(error) => Err(no_backup(error)),
        }
    }

    /// Moves a deleted entry that is not a directory into the backup. `path` begins at DST.
    pub fn keep_deleted(&self, at: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<(), Fault> {
        let (directory, last) = self.directory(path)?;
        renameat(at, name, &directory, last).map_err(no_backup)?;
        // If both names belong to the same file, rename succeeds without doing anything.
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

    /// Makes the backup of the directory at `path` (from DST on) durable, before that directory in DST is synced.
    pub fn sync(&self, path: &[u8]) -> Result<(), Errno> {
        let Some(opened) = crate::locked(&self.reached).opened.clone().filter(|_| self.syncs) else { return Ok(()) };
        match descend(&opened.directory, path, DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            found => sync_directory(found?),
        }
    }

    /// Returns the directory in DIR for the entry at this path, and the entry's name. Missing directories are made with
    /// the owners and modes that they have in DST.
    fn directory<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Fault> {
        let opened = self.open(true).map_err(|fault| match fault {
            Fault::System(error) => Fault::Explained(error, "cannot create the --backup-dir directory"),
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
            // Fails if an earlier copy has kept an entry here that was not a directory; that entry stays.
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

fn no_backup(error: Errno) -> Fault {
    let reason = match error {
        Errno::ISDIR => IS_DIRECTORY_THERE,
        Errno::NOTDIR | Errno::LOOP => IS_NONE_THERE,
        _ => NO_BACKUP,
    };
    Fault::Explained(error, reason)
}

/// Gives a new directory the owner and mode of another one, as far as possible.
fn resemble(directory: &OwnedFd, stat: &Stat) {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let has_group = fchown(directory, None, Some(group)).is_ok();
    let _ = fchown(directory, Some(user), None);
    // If the group could not be set, another group must not get the permissions of the original one.
    let mode = if has_group { stat.st_mode & 0o7777 } else { stat.st_mode & 0o1707 };
    let _ = fchmod(directory, Mode::from_raw_mode(mode | 0o700));
}

/// Whether two names have the same file, or regular files with the same size, time and contents.
fn is_same(at: BorrowedFd<'_>, one: &[u8], other: &str) -> Result<bool, Errno> {
    let stat = |name: &[u8]| statat(at, name, AtFlags::SYMLINK_NOFOLLOW);
    let [old, new] = [stat(one)?, stat(other.as_bytes())?];
    if identity(&old) == identity(&new) {
        return Ok(true);
    }
    let which = |it: &Stat| (is_regular(it), it.st_size, it.st_mtime, it.st_mtime_nsec);
    if !is_regular(&old) || which(&old) != which(&new) {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |name: &[u8]| openat(at, name, flags, Mode::empty());
    Ok(have_same(open(one)?, &open(other.as_bytes())?, 0, old.st_size as usize))
}

/// Gives an entry a second name. An entry that an earlier copy has kept under that name is replaced in one step.
fn link(at: BorrowedFd<'_>, name: &[u8], to: &OwnedFd, last: &[u8]) -> Result<(), Errno> {
    match linkat(at, name, to, last, AtFlags::empty()) {
        Err(Errno::EXIST) => {}
        done => return done,
    }
    let beside = name_beside(last, WHOLE);
    let _ = unlinkat(to, &*beside, AtFlags::empty());
    linkat(at, name, to, &*beside, AtFlags::empty())?;
    let renamed = renameat(to, &*beside, to, last);
    // If both are names of the same file, rename has done nothing, and the temporary name still exists.
    let _ = unlinkat(to, &*beside, AtFlags::empty());
    renamed
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rd_proto::tree::{Metadata, Record};

    use super::super::TreeSink;
    use super::super::tests::chunk;
    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::options::{Generations, Session};

    /// As when a command is run again before its last run has ended.
    #[test]
    fn of_two_runs_that_bring_the_same_file_the_later_one_keeps_the_backup_of_the_first() {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |path: &str| scratch.path().join(path);
        fs::create_dir(at("dst")).expect("a directory");
        let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
        let run = || {
            let backup_dir = Some(b"../kept".to_vec().into());
            let options = TreeOptions { sync: true, owner: false, backup_dir, ..TreeOptions::default() };
            let mut sink = TreeSink::new(&at("dst"), options, Box::new(|_| {})).expect("a sink");
            sink.push(0, 0, chunk(&[Record::Listed { name: b"f", metadata, size: 3 }])).expect("taken");
            sink.shared.wait_drained();
            sink
        };
        // The second time, both bring a file of the same size and time, but with other contents.
        for (one, other, kept) in [(b"new", b"new", "old"), (b"NEW", b"new", "NEW")] {
            fs::write(at("dst/f"), "old").expect("a file");
            let runs = [run(), run()];
            for (mut sink, data) in runs.into_iter().zip([one, other]) {
                let file = Record::File { name: b"f", metadata, data };
                let records = [Record::Wanted { number: 0 }, file, Record::End { failures: 0 }];
                sink.push(0, 0, chunk(&records)).expect("taken");
                assert_eq!(sink.finish().expect("whole").figures.failed, 0);
            }
            assert_eq!(fs::read_to_string(at("dst/f")).expect("there"), "new");
            assert_eq!(fs::read_to_string(at("kept/f")).expect("kept"), kept);
        }
    }

    /// It can be written to, but its times cannot be set.
    #[test]
    fn what_is_deleted_at_the_end_in_a_directory_of_another_user_is_no_failure() {
        for backup_dir in [None, Some(&b".kept"[..])] {
            let scratch = tempfile::tempdir().expect("a directory");
            let at = |path: &str| scratch.path().join(path);
            fs::create_dir(at("d")).expect("a directory");
            fs::write(at("d/gone"), "gone").expect("a file");
            let session = Session { is_last: true, ..Session::default() };
            let options = TreeOptions {
                sync: true,
                delete: true,
                delete_after: true,
                force_empty: true,
                omit_dir_times: true,
                owner: false,
                mode: false,
                backup_dir: backup_dir.map(|path| path.to_vec().into()),
                generations: Generations { session, ..Generations::default() },
                ..TreeOptions::default()
            };
            let run = || {
                let mut sink = TreeSink::new(scratch.path(), options, Box::new(|_| {})).expect("a sink");
                let directory = Record::Directory { name: b"d", metadata: Metadata { mode: 0o755, ..Metadata::ZERO } };
                sink.push(0, 0, chunk(&[directory, Record::Leave, Record::End { failures: 0 }])).expect("taken");
                sink.finish().expect("whole")
            };
            let report = where_calls_fail(&[libc::SYS_utimensat], libc::EPERM, run);
            assert_eq!((report.figures.failed, report.figures.deleted), (0, 1), "{:?}", report.failures);
            assert!(!at("d/gone").exists());
            assert_eq!(at(".kept/d/gone").exists(), backup_dir.is_some());
        }
    }
}
