//! Block devices as destinations: only the one that was named itself, only with `--sync --in-place`, only while nobody else
//! uses it.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

use super::Shared;
use super::directory::OpenDirectory;
use crate::fs::described;
use crate::tree::Fault;

/// Whether what `stat` describes is a device that is to be written to.
pub(super) fn is_target(shared: &Shared, directory: &OpenDirectory, stat: &Stat) -> bool {
    let options = &shared.options;
    let is_asked_for = options.sync && options.in_place && directory.is_top() && shared.root_name().is_some();
    is_asked_for && FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Opens the device of that name to be read and written, if it is one that is to be written to. `size`: what is to
/// come, in bytes.
///
/// # Errors
///
/// It is mounted, in use, or too small; what opening answered.
pub(super) fn open(
    shared: &Shared,
    directory: &OpenDirectory,
    name: &[u8],
    size: u64,
) -> Result<Option<OwnedFd>, Fault> {
    let seen = statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW);
    if !seen.is_ok_and(|seen| is_target(shared, directory, &seen)) {
        return Ok(None);
    }
    // Without CREATE it is refused for a device that is mounted, or that another one, or swap, is made of.
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = openat(&directory.fd, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY => Fault::Explained(error, "it is mounted or in use"),
        error => error.into(),
    })?;
    let stat = described(&device)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(Errno::STALE.into());
    }
    if (stat.st_size as u64) < size {
        return Err(Fault::Detail("the device is smaller than what is to be written to it"));
    }
    Ok(Some(device))
}
