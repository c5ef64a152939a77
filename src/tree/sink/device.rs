//! Block devices as destinations. A device is written to only if it was named itself, with `--sync --in-place`, and is
//! not in use.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

use super::Shared;
use super::directory::OpenDirectory;
use crate::fs::described;
use crate::tree::Fault;

/// Whether `stat` describes a device that is to be written to.
pub(super) fn is_target(shared: &Shared, directory: &OpenDirectory, stat: &Stat) -> bool {
    let options = &shared.options;
    let is_asked_for = options.sync && options.in_place && directory.is_top() && shared.root_name().is_some();
    is_asked_for && FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Opens the device of this name for reading and writing, if it is to be written to; otherwise `None`. `size` is the
/// number of bytes to come.
///
/// # Errors
///
/// Fails if the device is mounted, in use, or too small, or cannot be opened.
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
    // EXCL without CREATE fails for a device that is mounted, or that swap or another device uses.
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
        return Err(Fault::Detail("the device is smaller than the data"));
    }
    Ok(Some(device))
}
