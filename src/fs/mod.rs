//! Files: where the bytes of a stream come from and go to.

pub mod copy;
pub mod metadata;
pub mod sink;
pub mod source;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::IoFact;
use rustix::io::Errno;

/// An I/O failure as facts.
pub fn io_fact(path: &OsStr, error: Errno) -> IoFact {
    IoFact { errno: error.raw_os_error(), path: path.as_bytes().to_vec(), detail: Vec::new() }
}

/// A failure that has no error number.
pub fn plain_fact(path: &OsStr, detail: &str) -> IoFact {
    IoFact { errno: 0, path: path.as_bytes().to_vec(), detail: detail.as_bytes().to_vec() }
}
