//! Places in the destination: temporary names, taking over what a killed run left, publishing.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, ftruncate, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

/// How often a temporary name is taken over from a run that was killed. More often than once means that another run is
/// busy with it.
const TAKEOVERS_MAX: u32 = 3;

use super::Problem;
use crate::fs::partial::{self, make_way};
pub(super) use crate::fs::partial::{LISTING_BYTES, open_directory, publish_directory, remove_contents};
use crate::fs::{PARTIAL, WHOLE, identity, name_beside};

/// The name under which `name` is made.
pub(super) fn temporary(name: &CStr) -> CString {
    CString::new(name_beside(name.to_bytes(), PARTIAL)).expect("no zero in it")
}

/// The name under which a link or special file is made that is to replace something. Nothing half made ever has it.
fn temporary_whole(name: &CStr) -> CString {
    CString::new(name_beside(name.to_bytes(), WHOLE)).expect("no zero in it")
}

/// Makes a file of mode 0600 under a temporary name and locks it, so that another run leaves it alone.
pub(super) fn create_temporary(directory: impl AsFd, temporary: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TAKEOVERS_MAX {
        match openat(&directory, temporary, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                lock(directory.as_fd(), temporary, &file)?;
                return Ok(file);
            }
            Err(Errno::EXIST) => make_way(directory.as_fd(), temporary)?,
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY)
}

/// Makes a directory of mode 0700 under a temporary name and locks it.
pub(super) fn create_temporary_directory(directory: impl AsFd, temporary: &CStr) -> Result<OwnedFd, Errno> {
    for _ in 0..TAKEOVERS_MAX {
        match mkdirat(&directory, temporary, Mode::RWXU) {
            Ok(()) => {
                let made = open_directory(&directory, temporary).map_err(|_| Errno::BUSY)?;
                lock(directory.as_fd(), temporary, &made)?;
                return Ok(made);
            }
            Err(Errno::EXIST) => make_way(directory.as_fd(), temporary)?,
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY)
}

/// Locks what has just been made, and makes sure that nobody took it for abandoned in between.
fn lock(directory: BorrowedFd<'_>, name: &CStr, made: &OwnedFd) -> Result<(), Errno> {
    match flock(made, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(Errno::BUSY),
        // A file system without locks: nobody can take the name over from us then, see `make_way`.
        Err(_) => return Ok(()),
    }
    if partial::is_named(directory, name, made) { Ok(()) } else { Err(Errno::BUSY) }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) file: OwnedFd,
    naming: Naming,
    /// The file that is replaced, or written into.
    pub(super) old: Option<Stat>,
    /// The mode that it has, if that may be the final one.
    pub(super) made_mode: Option<u32>,
}

#[derive(Debug)]
enum Naming {
    /// Under its final name, in a directory that is not published yet; or there before.
    Final {
        is_ours: bool,
    },
    Temporary(CString),
}

impl Output {
    /// Makes a file under its final name, in a directory that nobody else sees. `mode` may be its final one.
    pub(super) fn unseen(directory: impl AsFd, name: &CStr, mode: u32, umask: u32) -> Result<Self, Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = mode & 0o777;
        let file = openat(directory, name, flags, Mode::from_raw_mode(mode))?;
        Ok(Self { file, naming: Naming::Final { is_ours: true }, old: None, made_mode: Some(mode & !umask) })
    }

    /// Makes a file beside its final name.
    pub(super) fn beside(directory: impl AsFd, name: &CStr, old: Option<Stat>) -> Result<Self, Errno> {
        let temporary = temporary(name);
        let file = create_temporary(directory, &temporary)?;
        Ok(Self { file, naming: Naming::Temporary(temporary), old, made_mode: None })
    }

    /// Opens the file that is there, or makes it, to write into it as it stands: if it is not the source, which may be seen
    /// in two places, nor has other names.
    pub(super) fn in_place(
        directory: impl AsFd,
        name: &CStr,
        old: Option<Stat>,
        source: &Stat,
    ) -> Result<Self, Problem> {
        let make = if old.is_none() { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        let flags = make | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::EXIST.into());
        }
        if identity(&stat) == identity(source) {
            return Err(Problem::SameFile);
        }
        if stat.st_nlink > 1 {
            return Err(Problem::OtherNames);
        }
        ftruncate(&file, 0)?;
        Ok(Self { file, naming: Naming::Final { is_ours: old.is_none() }, old, made_mode: None })
    }

    /// Gives the file its name.
    pub(super) fn publish(self, directory: impl AsFd, name: &CStr) -> Result<(), Errno> {
        match &self.naming {
            Naming::Final { .. } => Ok(()),
            Naming::Temporary(temporary) if !partial::is_named(&directory, &**temporary, &self.file) => {
                Err(Errno::STALE)
            }
            Naming::Temporary(temporary) => renameat(&directory, temporary, &directory, name).inspect_err(|_| {
                let _ = unlinkat(&directory, temporary, AtFlags::empty());
            }),
        }
    }

    /// Removes what has been written, unless it was there before.
    pub(super) fn discard(self, directory: impl AsFd, name: &CStr) {
        let _ = match &self.naming {
            Naming::Final { is_ours: false } => Ok(()),
            Naming::Final { is_ours: true } => unlinkat(directory, name, AtFlags::empty()),
            // Another's by now, where locks say nothing to it.
            Naming::Temporary(temporary) if !partial::is_named(&directory, &**temporary, &self.file) => Ok(()),
            Naming::Temporary(temporary) => unlinkat(directory, temporary, AtFlags::empty()),
        };
    }
}

/// Makes an object that comes whole (a link, a FIFO) by `make`, which gets the name to make it under; replaces what is
/// there, unless that is a directory.
pub(super) fn replace(
    directory: BorrowedFd<'_>,
    name: &CStr,
    make: impl Fn(&CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    match make(name) {
        Err(Errno::EXIST) => {}
        other => return other,
    }
    let temporary = temporary_whole(name);
    for _ in 0..TAKEOVERS_MAX {
        match make(&temporary) {
            Err(Errno::EXIST) => make_way(directory, &temporary)?,
            Err(error) => return Err(error),
            Ok(()) => {
                let renamed = renameat(directory, &temporary, directory, name);
                // Where both names are one file already, rename does nothing and leaves both.
                let _ = unlinkat(directory, &temporary, AtFlags::empty());
                return renamed;
            }
        }
    }
    Err(Errno::BUSY)
}
