//! Block devices as destinations. A device is written to only if it was named itself, with `--sync --in-place`, and is
//! not in use.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use crate::fs::described;
use crate::fs::sink::IN_USE;
use crate::tree::Fault;

/// Whether `stat` describes a device that is to be written to.
pub(super) fn is_target(directory: &OpenDirectory, stat: &Stat) -> bool {
    let shared = &directory.shared;
    let options = &shared.options;
    // A single file that comes into a directory has a single name, too, and the device may happen to have that name.
    let is_named = options.generations.session.is_dst && shared.root_name().is_some();
    let is_asked_for = options.sync && options.in_place && directory.is_top() && is_named;
    is_asked_for && FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Opens the device of this name for reading and writing, if it is to be written to; otherwise `None`. `size` is the
/// number of bytes to come.
///
/// # Errors
///
/// Fails if the device is mounted, in use, or too small, or cannot be opened.
pub(super) fn open(directory: &OpenDirectory, name: &[u8], size: u64) -> Result<Option<OwnedFd>, Fault> {
    if !directory.stat(name).is_ok_and(|seen| is_target(directory, &seen)) {
        return Ok(None);
    }
    // EXCL without CREATE fails for a device that is mounted, or that swap or another device uses.
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = openat(&directory.fd, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY => Fault::Explained(error, IN_USE),
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

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::super::{Destination, Names, TreeSink};
    use super::*;
    use crate::options::TreeOptions;

    #[test]
    fn a_device_in_the_directory_that_was_named_is_not_written_to() {
        let scratch = tempfile::tempdir().expect("a directory");
        for is_dst in [true, false] {
            let mut options = TreeOptions { sync: true, in_place: true, ..TreeOptions::default() };
            options.generations.session.is_dst = is_dst;
            let destination = Destination::new(options, Names::Only(b"disk".to_vec()));
            let sink = TreeSink::new(scratch.path(), destination, Box::new(|_| {})).expect("a sink");
            let top = sink.levels[0].clone().expect("the top");
            let mut stat = fstat(&top.fd).expect("open");
            stat.st_mode = FileType::BlockDevice.as_raw_mode() | 0o600;
            assert_eq!(is_target(&top, &stat), is_dst);
        }
    }
}
