//! What is sent: files and trees, each under a name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// A file or tree to send.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Root {
    /// Where it is.
    #[n(0)]
    pub path: ByteVec,
    /// Its name at the destination.
    #[n(1)]
    pub name: ByteVec,
}

impl Root {
    /// What is at `path`, under a name.
    pub fn new(path: impl AsRef<OsStr>, name: impl AsRef<OsStr>) -> Self {
        let bytes = |text: &OsStr| ByteVec::from(text.as_bytes().to_vec());
        Self { path: bytes(path.as_ref()), name: bytes(name.as_ref()) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}
