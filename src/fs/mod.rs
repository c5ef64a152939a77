//! Files: where the bytes of a stream come from and go to.

pub mod copy;
pub mod metadata;
pub mod sink;
pub mod source;
pub mod tree_sink;
pub mod tree_source;
pub mod walk;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::IoFact;
use rustix::io::{Errno, pread};

/// An I/O failure as facts.
pub fn io_fact(path: &OsStr, error: Errno) -> IoFact {
    IoFact { errno: error.raw_os_error(), path: path.as_bytes().to_vec(), detail: Vec::new() }
}

/// A failure that has no error number.
pub fn plain_fact(path: &OsStr, detail: &str) -> IoFact {
    IoFact { errno: 0, path: path.as_bytes().to_vec(), detail: detail.as_bytes().to_vec() }
}

/// Bytes read at once to hash a file.
const HASH_READ_BYTES: usize = 256 << 10;

/// The beginning of the BLAKE3 of a range of a file, for both ends of a transfer to compare.
///
/// # Errors
///
/// What reading answered; ENODATA if the file ends before.
fn hash_range(file: impl AsFd, start: u64, length: u64, scratch: &mut [u8]) -> Result<[u8; 16], Errno> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < length {
        let wanted = scratch.len().min((length - done) as usize);
        match pread(&file, &mut scratch[..wanted], start + done) {
            Ok(0) => return Err(Errno::NODATA),
            Ok(count) => {
                hasher.update(&scratch[..count]);
                done += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher.finalize().as_bytes()[..16].try_into().expect("of 32"))
}
