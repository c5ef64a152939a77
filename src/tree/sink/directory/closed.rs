//! Directories that are there and that their mode keeps even us from opening, who own them: as an earlier transfer may have
//! made them, or their user. They are opened up, and have their mode again in the end.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fchmod, openat};
use rustix::io::Errno;

use super::OpenDirectory;
use crate::fs::{DIRECTORY, PLACE, partial};
use crate::tree::sink::rehearse;

/// A directory that was there, and its mode where that kept us from opening it.
pub(in crate::tree::sink) type Opened = (OwnedFd, Option<u32>);

impl OpenDirectory {
    /// The destination itself, and whether it is there; its path comes from the user, links in it are followed. In a dry run,
    /// it need not be.
    pub fn open_top(path: &Path, is_dry: bool) -> Result<(Opened, bool), Errno> {
        let open = |flags: OFlags| openat(CWD, path, flags.difference(OFlags::NOFOLLOW), Mode::empty());
        match open(DIRECTORY) {
            Err(Errno::NOENT) if is_dry => Ok(((rehearse::nowhere()?, None), false)),
            Err(Errno::ACCESS) if !is_dry => Ok((opened_up(&open(PLACE)?)?, true)),
            opened => Ok(((opened?, None), true)),
        }
    }

    /// Opens a directory in it.
    pub(super) fn open(&self, name: &[u8]) -> Result<Opened, Errno> {
        match openat(&self.fd, name, DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => opened_up(&openat(&self.fd, name, PLACE, Mode::empty())?),
            opened => Ok((opened?, None)),
        }
    }

    /// The mode that it had before it was opened up, if somebody is to give it that again and nobody has taken it.
    pub(super) fn take_closed(&self) -> Option<u32> {
        self.closed.lock().expect("no panics under it").take()
    }
}

/// Gives a directory that nothing becomes of the mode that it had.
pub(in crate::tree::sink) fn close_again((directory, mode): &Opened) {
    let _ = mode.map(|mode| fchmod(directory, Mode::from_raw_mode(mode)));
}

fn opened_up(place: &OwnedFd) -> Result<Opened, Errno> {
    let (directory, mode) = partial::open_own_closed(place)?;
    Ok((directory, Some(mode)))
}
