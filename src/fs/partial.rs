//! Files and directories under partial names: created or resumed, locked, and accessible to this user alone.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RawDir, RenameFlags, Stat, flock, fstat, mkdirat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use super::accounts::shown_user;
use super::metadata::Object;
use super::{DIRECTORY, PLACE, identity, is_regular};

/// Maximum number of attempts at a name that another process makes at the same moment.
pub(crate) const TRIES_MAX: usize = 3;

/// Maximum depth of the directories left by a killed run. Deeper ones are not removed.
const REMOVE_DEPTH_MAX: usize = 1024;

/// Number of bytes of directory entries read at once.
pub(crate) const LISTING_BYTES: usize = 32 << 10;

/// How long to wait before the next attempt at a name that another transfer holds.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The lock that a copy has on what it writes to. No copy waits for it in the kernel.
const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

/// Explanation of EBUSY for a partial name.
pub(crate) const HELD: &str = "another copy is writing to it";

/// Explanation of ESTALE from [`publish`].
pub(crate) const REPLACED: &str = "its temporary name is gone or belongs to another file; run it again";

/// Explanation for an entry under a partial name that is kept because nothing tells whether a copy is writing to it.
const NO_LOCKS: &str = "this file system has no locks, and it was modified a moment ago; \
                        if no copy is running, try again in a minute or remove it";

/// Explanation for a directory that is kept because it may be anybody's.
const NOT_MADE: &str = "nothing shows that a copy has made it; rename or remove it";

/// How many seconds an entry must be left untouched before it is taken for a killed copy's.
const QUIET_SECONDS: i64 = if cfg!(test) { 2 } else { 60 };

/// Why no file or directory could be opened under a partial name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub error: Errno,
    /// Whether the entry under the partial name is in the way and cannot be removed.
    pub is_in_the_way: bool,
    /// Explanation of the error; may be empty.
    pub why: String,
}

impl From<Errno> for Blocked {
    fn from(error: Errno) -> Self {
        Self { error, is_in_the_way: false, why: String::new() }
    }
}

impl Blocked {
    /// Explains an error that is due to the entry under this name.
    fn by(directory: impl AsFd, name: impl Arg, error: Errno) -> Self {
        if error == Errno::BUSY {
            return error.into();
        }
        let why = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            _ if error == Errno::NOLCK => NO_LOCKS.to_owned(),
            Ok(found) if found.st_uid != rustix::process::geteuid().as_raw() => {
                let user = shown_user(found.st_uid).unwrap_or_else(|| found.st_uid.to_string());
                format!("it belongs to {user}; have it removed if no copy is writing to it")
            }
            _ if error == Errno::NOTEMPTY => NOT_MADE.to_owned(),
            _ => String::new(),
        };
        let error = if error == Errno::NOLCK { Errno::BUSY } else { error };
        Self { error, is_in_the_way: true, why }
    }
}

/// Repeats an attempt while another transfer holds a partial name. A transfer that was just killed releases the name
/// within seconds.
pub(crate) fn patiently<T>(
    until: Instant,
    is_over: impl Fn() -> bool,
    attempt: impl Fn() -> Result<T, Blocked>,
) -> Result<T, Blocked> {
    loop {
        match attempt() {
            Err(blocked) if blocked == Errno::BUSY.into() && Instant::now() < until && !is_over() => {
                std::thread::sleep(TRY_AGAIN);
            }
            done => return done,
        }
    }
}

/// Opens and locks a file of this partial name in a directory. Returns the file and whether it was there already.
///
/// With `may_adopt`, a file that a killed transfer has left is kept if it is a regular file of this user with no other
/// name and mode 0600. Any other entry under the name is removed and never written to, because it may be another name
/// of some file.
///
/// # Errors
///
/// `EBUSY` if another process is writing to the file, else the error number of the failed call.
pub(crate) fn open(directory: impl AsFd, name: &str, may_adopt: bool) -> Result<(OwnedFd, bool), Blocked> {
    let fd = directory.as_fd();
    for _ in 0..TRIES_MAX {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match openat(fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                // Another transfer that found the file before it was locked has locked or removed it. Without locks in
                // the file system no transfer does so, because a file that is there already is left alone below.
                let lock = flock(&file, EXCLUSIVE);
                if lock == Err(Errno::AGAIN) || fstat(&file)?.st_nlink == 0 {
                    return Err(Errno::BUSY.into());
                }
                return Ok((file, false));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // Opened for writing, because otherwise it cannot be locked over NFS.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(fd, name, flags, Mode::empty()) {
            Ok(left) => {
                lock(fd, &left, EXCLUSIVE).map_err(|error| Blocked::by(fd, name, error))?;
                if is_named(fd, name, &left) {
                    let here = fstat(&left)?;
                    let ours = is_regular(&here)
                        && here.st_nlink == 1
                        && here.st_uid == rustix::process::geteuid().as_raw()
                        && here.st_mode & 0o7777 == 0o600;
                    if may_adopt && ours {
                        return Ok((left, true));
                    }
                    unlinkat(fd, name, AtFlags::empty()).map_err(|error| Blocked::by(fd, name, error))?;
                }
            }
            // The name has gone meanwhile.
            Err(Errno::NOENT) => {}
            Err(error) => match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if is_regular(&found) && error != Errno::ACCESS => return Err(Blocked::by(fd, name, error)),
                // A directory, a link, a socket, or a file that may not be written to.
                Ok(_) => clear(fd, name.as_bytes())?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    Err(Errno::BUSY.into())
}

/// A directory under its partial name, locked.
#[derive(Debug)]
pub(crate) struct PartialTree {
    pub fd: OwnedFd,
    /// Whether an earlier transfer has left the directory.
    pub was_left: bool,
    pub lock: TreeLock,
}

/// The lock of a directory under its partial name for transfers on other hosts: an empty file beside the directory,
/// locked as long as this exists. A lock of the directory itself does not leave this host: NFS, SMB and FUSE pass on
/// locks of regular files only.
#[derive(Debug)]
pub(crate) struct TreeLock {
    directory: OwnedFd,
    name: String,
    /// `None` if the file cannot be made. Then the lock of the directory has to do.
    file: Option<OwnedFd>,
}

impl TreeLock {
    /// # Errors
    ///
    /// `EBUSY` if another process holds the lock.
    fn take(directory: BorrowedFd<'_>, tree: &[u8]) -> Result<Self, Blocked> {
        let (name, place) = (lock_of(tree), openat(directory, c".", PLACE, Mode::empty())?);
        let file = match open_mark(directory, &name) {
            Err(blocked) if blocked == Errno::BUSY.into() => return Err(blocked),
            opened => opened.ok().map(|(file, _)| file),
        };
        Ok(Self { directory: place, name, file })
    }
}

impl Drop for TreeLock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            remove_named(&self.directory, &*self.name, file);
        }
    }
}

/// Name of the file that is locked for a directory under this partial name. The partial name differs between users, so
/// that theirs do.
fn lock_of(tree: &[u8]) -> String {
    super::name_of(0, tree, super::PARTIAL)
}

/// Opens and locks a directory of this partial name.
///
/// A directory is resumed if no other user can have changed anything in it: it belongs to this user and is closed to
/// others. Any other entry under the name is removed, except a directory that may be anybody's: see [`check_made`].
///
/// # Errors
///
/// As for [`open`].
pub(crate) fn open_tree(directory: impl AsFd, name: &str) -> Result<PartialTree, Blocked> {
    let (fd, name) = (directory.as_fd(), name.as_bytes());
    let tree_lock = TreeLock::take(fd, name)?;
    let mark = if is_shared(fd)? { Mode::SVTX } else { Mode::empty() };
    for _ in 0..TRIES_MAX {
        let made = match mkdirat(fd, name, Mode::RWXU | mark) {
            // Not every file system has the bit.
            Err(error) if error != Errno::EXIST && !mark.is_empty() => mkdirat(fd, name, Mode::RWXU),
            made => made,
        };
        let is_new = match made {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let found = match open_own(fd, name) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            // A file, from a copy of a file to the same name.
            Err(Errno::NOTDIR) => {
                clear(fd, name)?;
                continue;
            }
            // A directory. `clear` could not open it either, and would find this lock of the tree to be held.
            Err(error) => return Err(Blocked::by(fd, name, error)),
        };
        match lock(fd, &found, EXCLUSIVE) {
            Err(error) if error == Errno::BUSY || !is_new => return Err(Blocked::by(fd, name, error)),
            _ => {}
        }
        // The directory was published or removed before it was locked.
        if !is_named(fd, name, &found) {
            continue;
        }
        check_made(fd, &found).map_err(|error| Blocked::by(fd, name, error))?;
        if is_new || is_closed_to_others(&fstat(&found)?) {
            // It may have been empty.
            mark_tree(fd, &found);
            return Ok(PartialTree { fd: found, was_left: !is_new, lock: tree_lock });
        }
        // Emptied under this lock of the tree, which `clear` would find to be held.
        empty(fd, name, &found).map_err(|error| Blocked::by(fd, name, error))?;
    }
    Err(Errno::BUSY.into())
}

/// Opens and locks the empty file of this name in a directory. Returns the file and whether it was there already. A
/// missing file is made. The file may belong to any user, because nothing is ever written to it.
///
/// # Errors
///
/// `EBUSY` if another process holds the file, else the error number of the failed call.
pub(crate) fn open_mark(directory: impl AsFd, name: &str) -> Result<(OwnedFd, bool), Blocked> {
    let fd = directory.as_fd();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    for _ in 0..TRIES_MAX {
        let (file, was_there) = match openat(fd, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => match openat(fd, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                Err(error @ Errno::ROFS) => return Err(error.into()),
                Err(error @ Errno::ACCESS) => return Err(Blocked::by(fd, name, error)),
                // A directory, a link, or a socket.
                Err(error) => {
                    remove_other(fd, name, error)?;
                    continue;
                }
                file => (file?, true),
            },
            file => (file?, false),
        };
        // In a file system without locks no process can hold the file.
        if flock(&file, EXCLUSIVE) == Err(Errno::AGAIN) {
            return Err(Errno::BUSY.into());
        }
        match is_named(fd, name, &file) {
            true if is_regular(&fstat(&file)?) => {
                return Ok((file, was_there));
            }
            true => remove_other(fd, name, Errno::BUSY)?,
            // The process that held the file was done with it and has removed it.
            false => {}
        }
    }
    Err(Errno::BUSY.into())
}

/// Removes what is not a file from the name of a mark or lock; a directory only if it is empty, because no copy has made
/// it. `error`: why the entry was not opened.
fn remove_other(directory: BorrowedFd<'_>, name: &str, error: Errno) -> Result<(), Blocked> {
    let removed = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if is_regular(&found) => Err(error),
        Ok(found) if super::is_directory(&found) => unlinkat(directory, name, AtFlags::REMOVEDIR),
        Ok(_) => unlinkat(directory, name, AtFlags::empty()),
        Err(error) => Err(error),
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.map_err(|error| Blocked::by(directory, name, error)),
    }
}

/// Whether others may rename entries of a directory, and so may put anybody's directory under a temporary name.
fn is_shared(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = fstat(directory)?;
    let is_foreign = ![0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    Ok(is_foreign || stat.st_mode & 0o022 != 0 && stat.st_mode & Mode::SVTX.bits() == 0)
}

/// Checks that a directory under a temporary name is a copy's, or has nothing in it. Where others may rename entries, a
/// copy's is marked by the sticky bit until it gets its final mode. Only an entry's owner can set that bit.
///
/// # Errors
///
/// `ENOTEMPTY` if the directory may be anybody's.
fn check_made(parent: BorrowedFd<'_>, found: &OwnedFd) -> Result<(), Errno> {
    if fstat(found)?.st_mode & Mode::SVTX.bits() != 0 || !is_shared(parent)? {
        return Ok(());
    }
    if has_any(found, |_| true)? && keeps_modes(parent)? { Err(Errno::NOTEMPTY) } else { Ok(()) }
}

/// Whether the file system keeps modes. Elsewhere nothing keeps others out of any directory.
fn keeps_modes(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    with_probe(directory, |_, file| fstat(file).is_ok_and(|stat| stat.st_mode & 0o777 == 0o600))
}

/// Marks a copy's directory that has no mark, where others may rename entries, so that the next copy goes on with it.
fn mark_tree(parent: BorrowedFd<'_>, tree: &OwnedFd) {
    if let Ok(stat) = fstat(tree)
        && stat.st_mode & 0o1777 != 0o1700
        && is_shared(parent) == Ok(true)
    {
        let _ = rustix::fs::fchmod(tree, Mode::from_raw_mode(stat.st_mode & 0o6000 | 0o1700));
    }
}

/// Gives a copy's directory that could not be published the owner and mode with which it was made, so that the next copy
/// goes on with it. It may have its final ones.
pub(crate) fn take_back_tree(parent: impl AsFd, tree: &OwnedFd) {
    let (Ok(stat), user) = (fstat(tree), rustix::process::geteuid()) else { return };
    if stat.st_uid != user.as_raw() {
        let _ = rustix::fs::fchown(tree, Some(user), None);
    }
    if stat.st_mode & 0o777 != 0o700 {
        let _ = rustix::fs::fchmod(tree, Mode::from_raw_mode(stat.st_mode & 0o6000 | 0o700));
    }
    mark_tree(parent.as_fd(), tree);
}

/// Takes the mark from a copy's directory that still has the mode with which it was made.
pub(crate) fn unmark(tree: &OwnedFd) {
    if let Ok(stat) = fstat(tree)
        && stat.st_mode & 0o1777 == 0o1700
    {
        let _ = rustix::fs::fchmod(tree, Mode::from_raw_mode(stat.st_mode & 0o6777));
    }
}

fn is_closed_to_others(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0
}

/// Locks an entry that was found under a partial name in a directory.
///
/// # Errors
///
/// `EBUSY` if another process holds the entry. `ENOLCK` if the file system has no locks and the entry was touched
/// recently.
fn lock(directory: BorrowedFd<'_>, left: &OwnedFd, operation: FlockOperation) -> Result<(), Errno> {
    match flock(left, operation) {
        Err(Errno::AGAIN) => Err(Errno::BUSY),
        Err(Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP) => {
            let since = now(directory)?.saturating_sub(QUIET_SECONDS);
            if is_touched(left, since)? { Err(Errno::NOLCK) } else { Ok(()) }
        }
        locked => locked,
    }
}

/// Returns the time by the clock of the file system, which may be another host's.
fn now(directory: BorrowedFd<'_>) -> Result<i64, Errno> {
    Ok(with_probe(directory, |_, file| fstat(file))??.st_mtime)
}

/// Makes an empty file under a temporary name, from which `look` can learn about the file system, and removes it.
pub(crate) fn with_probe<T>(directory: BorrowedFd<'_>, look: impl FnOnce(&str, &OwnedFd) -> T) -> Result<T, Errno> {
    let random = getrandom::u64().map_err(|_| Errno::IO)?;
    let name = super::name_beside(&random.to_le_bytes(), super::PARTIAL);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, &*name, flags, Mode::RUSR | Mode::WUSR)?;
    let found = look(&name, &file);
    let _ = unlinkat(directory, &*name, AtFlags::empty());
    Ok(found)
}

/// Reports whether a file, or a directory or anything in it, was touched after `since`. An entry that is finished has
/// the modification time of its source, but its time of last change (`ctime`) is recent all the same.
fn is_touched(left: &OwnedFd, since: i64) -> Result<bool, Errno> {
    let is_late = |stat: &Stat| stat.st_mtime.max(stat.st_ctime) > since;
    let stat = fstat(left)?;
    if is_late(&stat) || is_regular(&stat) {
        return Ok(is_late(&stat));
    }
    // Returns the names of a directory's subdirectories, which are still to be entered, and whether an entry was
    // touched.
    let look = |directory: &OwnedFd| {
        let (mut below, mut has_late) = (Vec::new(), false);
        for_each::<Errno>(directory, |name| {
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
            has_late |= is_late(&stat);
            if super::is_directory(&stat) {
                below.push(name.to_owned());
            }
            Ok(())
        })?;
        Ok::<_, Errno>((below, has_late))
    };
    let top = openat(left, ".", DIRECTORY, Mode::empty())?;
    let (mut levels, mut next) = (Vec::new(), Some(top));
    while let Some(directory) = next.take() {
        let (below, has_late) = look(&directory)?;
        if has_late || levels.len() > REMOVE_DEPTH_MAX {
            return Ok(true);
        }
        levels.push((below, directory));
        while let (None, Some((below, here))) = (&next, levels.last_mut()) {
            match below.pop() {
                Some(name) => next = open_directory(&*here, &name).ok(),
                None => drop(levels.pop()),
            }
        }
    }
    Ok(false)
}

/// Reports whether the entry under a partial name is still this file. If locks do not reach other hosts, or if the name
/// was removed, the entry may belong to another transfer, and must be neither published nor removed.
pub(crate) fn is_named(directory: impl AsFd, name: impl Arg, file: impl AsFd) -> bool {
    let (here, named) = (fstat(file), statat(directory, name, AtFlags::SYMLINK_NOFOLLOW));
    matches!((here, named), (Ok(here), Ok(named)) if identity(&here) == identity(&named))
}

/// Renames a finished file from its temporary name to its own, in one step.
///
/// # Errors
///
/// `ESTALE` if the entry under the temporary name is no longer this file.
pub(crate) fn publish(
    directory: impl AsFd,
    beside: impl Arg + Copy,
    file: impl AsFd,
    name: impl Arg,
) -> Result<(), Errno> {
    if !is_named(&directory, beside, file) {
        return Err(Errno::STALE);
    }
    renameat(&directory, beside, &directory, name)
}

/// Removes a name if it still belongs to this file.
pub(crate) fn remove_named(directory: impl AsFd, name: impl Arg + Copy, file: impl AsFd) {
    if is_named(&directory, name, file) {
        let _ = unlinkat(&directory, name, AtFlags::empty());
    }
}

/// Removes an entry as [`make_way`] does, for an entry that needs the name.
fn clear(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Blocked> {
    make_way(directory, name).map_err(|error| Blocked::by(directory, name, error))
}

/// Removes what a killed run left under a temporary name. `EBUSY` if a live run holds it, `ENOLCK` if a run may hold
/// it, `ENOTEMPTY` if it may be anybody's directory.
pub(crate) fn make_way(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    for _ in 0..TRIES_MAX {
        if has_made_way(directory, name)? {
            return Ok(());
        }
    }
    Err(Errno::BUSY)
}

/// Does the same. Returns false if another entry has taken the name meanwhile.
fn has_made_way(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(true),
        found => found?,
    };
    // False if a run that held the entry removed it before it was locked here: another run may have made its own since.
    let hold = |left: &OwnedFd, how| lock(directory, left, how).map(|()| is_named(directory, name, left));
    let removed = match FileType::from_raw_mode(found.st_mode) {
        // No copy has made it.
        FileType::Directory if name.ends_with(super::UNFINISHED.as_bytes()) => {
            unlinkat(directory, name, AtFlags::REMOVEDIR)
        }
        FileType::Directory => {
            let _lock = TreeLock::take(directory, name).map_err(|blocked| blocked.error)?;
            let left = open_own(directory, name)?;
            if !hold(&left, EXCLUSIVE)? {
                return Ok(false);
            }
            check_made(directory, &left)?;
            empty(directory, name, &left)
        }
        FileType::RegularFile => {
            let left = match open_to_lock(directory, name) {
                // If the run was killed just before publishing, the file may have a mode that forbids reading. Whether
                // another user's copy is alive cannot be seen from here.
                Err(Errno::ACCESS) if found.st_uid == rustix::process::geteuid().as_raw() => None,
                left => Some(left?),
            };
            let is_held = left.as_ref().map_or(Ok(true), |left| match hold(left, EXCLUSIVE) {
                // Over NFS, a file that may only be read can be locked only in this way. A copy that writes to it has
                // locked it exclusively.
                Err(Errno::BADF) => hold(left, FlockOperation::NonBlockingLockShared),
                held => held,
            });
            if !is_held? {
                return Ok(false);
            }
            // If it is locked exclusively, no copy takes the file over meanwhile.
            unlinkat(directory, name, AtFlags::empty())
        }
        // A link that was about to be renamed to its own name.
        _ => unlinkat(directory, name, AtFlags::empty()),
    };
    removed.map(|()| true)
}

/// Removes a directory that is locked, with everything in it.
fn empty(parent: BorrowedFd<'_>, name: &[u8], directory: &OwnedFd) -> Result<(), Errno> {
    remove_contents(directory)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Opens a file to lock it: for writing if possible, because otherwise it cannot be locked exclusively over NFS.
fn open_to_lock(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(directory, name, OFlags::RDWR | flags, Mode::empty()) {
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {
            openat(directory, name, OFlags::RDONLY | flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Opens a directory that is not a symbolic link, to list it and reach its entries.
pub(crate) fn open_directory(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        other => other,
    }
}

/// Opens a directory in the same way. If it belongs to this user, its mode may deny access: it may be the final one.
fn open_own(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_directory(parent, name) {
        Err(Errno::ACCESS) => {
            let place = openat(parent, name, PLACE, Mode::empty())?;
            // It may be anybody's, see [`check_made`]. Then its mode stays as it is.
            if fstat(&place)?.st_mode & Mode::SVTX.bits() == 0 && is_shared(parent)? {
                return Err(Errno::ACCESS);
            }
            Ok(open_own_closed(&place)?.0)
        }
        opened => opened,
    }
}

/// Opens a directory in the same way, to empty it. Its mode may deny access to its owner.
fn open_to_empty(parent: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    match open_directory(&parent, name) {
        Err(Errno::ACCESS) => open_closed(&openat(&parent, name, PLACE, Mode::empty())?, Mode::empty()),
        opened => opened,
    }
}

/// Opens a directory whose mode denies access to its owner. `place` is open on it as a place. The directory gets `mode`
/// and all permissions for the owner.
pub(crate) fn open_closed(place: &OwnedFd, mode: Mode) -> Result<OwnedFd, Errno> {
    Object::Path(place.as_fd()).set_mode((mode | Mode::RWXU).bits())?;
    openat(place, ".", DIRECTORY, Mode::empty())
}

/// Opens such a directory if it belongs to this user. Also returns its previous mode and its kind.
pub(crate) fn open_own_closed(place: &OwnedFd) -> Result<(OwnedFd, u32), Errno> {
    let stat = fstat(place)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    Ok((open_closed(place, Mode::from_raw_mode(stat.st_mode & 0o7777))?, stat.st_mode))
}

/// Removes an entry, and everything in it if it is a directory. Links are not followed.
pub(crate) fn remove(directory: impl AsFd, name: impl Arg + Copy) -> Result<(), Errno> {
    match unlinkat(&directory, name, AtFlags::empty()) {
        Err(error @ (Errno::ISDIR | Errno::PERM)) if was_directory(&directory, name, error) => {
            remove_contents(&open_to_empty(&directory, name)?)?;
            unlinkat(&directory, name, AtFlags::REMOVEDIR)
        }
        other => other,
    }
}

/// Reports whether unlink(2) gave this answer because the entry is a directory. POSIX has EPERM for directories, but a
/// file that may not be removed gives EPERM as well.
fn was_directory(parent: impl AsFd, name: impl Arg, answer: Errno) -> bool {
    answer == Errno::ISDIR
        || statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| super::is_directory(&stat))
}

/// Removes everything in a directory, working by descriptors.
pub(crate) fn remove_contents(directory: &OwnedFd) -> Result<(), Errno> {
    let directory = directory.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
    // No recursion, because threads that write trees have small stacks. The last name below each directory is that of
    // the directory being emptied.
    let mut levels = vec![(remove_files(&directory)?, directory)];
    while let Some((below, here)) = levels.last_mut() {
        let Some(name) = below.last() else {
            levels.pop();
            let Some((below, above)) = levels.last_mut() else { break };
            if let Some(emptied) = below.pop() {
                unlinkat(&*above, &emptied, AtFlags::REMOVEDIR)?;
            }
            continue;
        };
        let inner = open_to_empty(&*here, name)?;
        if levels.len() > REMOVE_DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        levels.push((remove_files(&inner)?, inner));
    }
    Ok(())
}

/// Removes all entries but directories, and returns the names of the directories.
fn remove_files(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    // A mode that was set already, such as 0555, would prevent removals. The mark of a copy's directory stays.
    let mark = fstat(directory).map_or(Mode::empty(), |stat| Mode::from_raw_mode(stat.st_mode) & Mode::SVTX);
    let _ = rustix::fs::fchmod(directory, Mode::RWXU | mark);
    let (mut below, mut failure) = (Vec::new(), None);
    for_each::<Errno>(directory, |name| {
        match unlinkat(directory, name, AtFlags::empty()) {
            Err(error @ (Errno::ISDIR | Errno::PERM)) if was_directory(directory, name, error) => {
                below.push(name.to_owned())
            }
            Ok(()) | Err(Errno::NOENT) => {}
            // An entry that may not be removed does not keep the others from being removed.
            Err(error) => failure = failure.or(Some(error)),
        }
        Ok(())
    })?;
    failure.map_or(Ok(below), Err)
}

/// Reports whether a directory has an entry whose name is wanted.
pub(crate) fn has_any(directory: impl AsFd, is_wanted: impl Fn(&CStr) -> bool) -> Result<bool, Errno> {
    match for_each(directory, |name| if is_wanted(name) { Err(Errno::EXIST) } else { Ok(()) }) {
        Err(Errno::EXIST) => Ok(true),
        looked => looked.map(|()| false),
    }
}

/// Calls `look` with each name in a directory.
pub(crate) fn for_each<E: From<Errno>>(
    directory: impl AsFd,
    mut look: impl FnMut(&CStr) -> Result<(), E>,
) -> Result<(), E> {
    for_each_of_kind(directory, |name, _| look(name))
}

/// Calls `look` with each name in a directory and its kind, which some file systems do not report.
pub(crate) fn for_each_of_kind<E: From<Errno>>(
    directory: impl AsFd,
    mut look: impl FnMut(&CStr, FileType) -> Result<(), E>,
) -> Result<(), E> {
    // The directory may have been listed before by the same descriptor, which is then at the end.
    rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0))?;
    let mut space = Vec::with_capacity(LISTING_BYTES);
    let mut entries = RawDir::new(directory, space.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry?,
        };
        let name = entry.file_name();
        if name != c"." && name != c".." {
            look(name, entry.file_type())?;
        }
    }
    Ok(())
}

/// Renames a finished directory to its name. Replaces nothing but an empty directory.
pub(crate) fn publish_directory(
    parent: BorrowedFd<'_>,
    temporary: impl Arg + Copy,
    name: impl Arg + Copy,
) -> Result<(), Errno> {
    match renameat_with(parent, temporary, parent, name, RenameFlags::NOREPLACE) {
        // EPERM: filters of system calls that are older than renameat2.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::EXIST) => renameat(parent, temporary, parent, name),
        other => other,
    }
}

#[cfg(test)]
mod tests;
