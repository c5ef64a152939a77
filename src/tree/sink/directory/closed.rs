//! Existing directories whose mode keeps even their owner, this user, from opening them. An earlier transfer or the
//! user may have made them so. They are opened up, and their mode is restored in the end.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fchmod, fstat, openat};
use rustix::io::Errno;

use super::OpenDirectory;
use crate::fs::{DIRECTORY, PLACE, here, partial};
use crate::tree::sink::rehearse;

/// An existing directory, and its former mode if that mode kept this process from opening it.
pub(in crate::tree::sink) type Opened = (OwnedFd, Option<u32>);

impl OpenDirectory {
    /// Opens the destination itself, and tells whether it exists. Its path comes from the user, so links in it are
    /// followed. In a dry run it may be missing.
    pub fn open_top(path: &Path, is_dry: bool) -> Result<(Opened, bool), Errno> {
        let open = |flags: OFlags| openat(here(), path, flags.difference(OFlags::NOFOLLOW), Mode::empty());
        match open(DIRECTORY) {
            Err(Errno::NOENT) if is_dry => Ok(((rehearse::nowhere()?, None), false)),
            Err(Errno::ACCESS) if !is_dry => Ok((opened_up(&open(PLACE)?)?, true)),
            opened => Ok(((opened?, None), true)),
        }
    }

    /// Opens a directory in this one.
    pub(super) fn open(&self, name: &[u8]) -> Result<Opened, Errno> {
        match openat(&self.fd, name, DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => opened_up(&openat(&self.fd, name, PLACE, Mode::empty())?),
            opened => Ok((opened?, None)),
        }
    }

    /// Takes the mode that the directory had before it was opened up. `None` if the mode need not be restored, or has
    /// already been taken.
    pub(super) fn take_closed(&self) -> Option<u32> {
        crate::locked(&self.closed).take()
    }
}

/// Whether a directory that is open has been removed, as a working directory may have been. No entry can be made in it.
/// Some file systems report no links of any directory, but a removed one cannot be listed either.
pub(in crate::tree::sink) fn is_removed(directory: &OwnedFd) -> bool {
    fstat(directory).is_ok_and(|stat| stat.st_nlink == 0) && partial::has_any(directory, |_| true) == Err(Errno::NOENT)
}

/// Restores the mode of a directory that is not used after all.
pub(in crate::tree::sink) fn close_again((directory, mode): &Opened) {
    let _ = mode.map(|mode| fchmod(directory, Mode::from_raw_mode(mode)));
}

fn opened_up(place: &OwnedFd) -> Result<Opened, Errno> {
    let (directory, mode) = partial::open_own_closed(place)?;
    Ok((directory, Some(mode)))
}
