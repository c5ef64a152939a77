//! Copies ranges from file to file within one host.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{copy_file_range, fstatfs};
use rustix::io::{Errno, pread, retry_on_intr};

use super::write_at;

/// Maximum number of bytes that the kernel copies in one call, between two calls of `goes_on`.
const KERNEL_BYTES: usize = 8 << 20;

/// Number of bytes that this process reads and writes at once.
const SCRATCH_BYTES: usize = 128 << 10;

/// File systems whose server or driver can copy from file to file where the data is: NFS, CIFS and SMB, Ceph, FUSE. On
/// other file systems the kernel copies page by page, which takes longer than reading and writing (measured on tmpfs).
const COPYING_MAGICS: [u32; 5] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x6573_5546];

/// The end of a copy that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The source cannot be read. `ENODATA` if the source ends before the range does.
    Read(Errno),
    /// The destination cannot be written.
    Write(Errno),
}

/// Copies a range to the same position in another file. `goes_on` is called after each copied piece with its number of
/// bytes, and returns whether to continue.
///
/// # Errors
///
/// The end that failed, and the error number of the failed call.
pub(crate) fn copy_range(
    from: impl AsFd,
    to: impl AsFd,
    range: Range<u64>,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<(), CopyError> {
    let by_kernel = fstatfs(&to).is_ok_and(|system| COPYING_MAGICS.contains(&(system.f_type as u32)));
    let mut scratch = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let left = ((range.end - at) as usize).min(KERNEL_BYTES);
        let (mut read, mut written) = (at, at);
        let by_kernel = match by_kernel && scratch.is_empty() {
            true => retry_on_intr(|| copy_file_range(&from, Some(&mut read), &to, Some(&mut written), left)),
            false => Err(Errno::OPNOTSUPP),
        };
        let count = match by_kernel {
            Ok(count @ 1..) => count,
            // Some file systems return 0 although there is more data. An error does not tell which of the two files it
            // concerns, and may only mean that this pair of files cannot be copied this way.
            Ok(0) | Err(_) => {
                scratch.resize(SCRATCH_BYTES, 0);
                let part = &mut scratch[..left.min(SCRATCH_BYTES)];
                let count = retry_on_intr(|| pread(&from, &mut *part, at)).map_err(CopyError::Read)?;
                write_at(&to, &part[..count], at).map_err(CopyError::Write)?;
                count
            }
        };
        if count == 0 {
            return Err(CopyError::Read(Errno::NODATA));
        }
        at += count as u64;
        if !goes_on(count) {
            break;
        }
    }
    Ok(())
}
