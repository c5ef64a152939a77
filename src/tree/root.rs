//! What is sent: files and trees, each under a name.

use std::collections::VecDeque;
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
    /// Only these of a directory are sent.
    #[n(2)]
    pub only: Option<Only>,
}

/// Paths below a directory that are to be copied, and nothing else of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Only {
    /// Relative to it; a directory that ends in a slash is copied with its entries.
    #[n(0)]
    pub paths: Vec<ByteVec>,
    /// Directories are copied with everything in them.
    #[n(1)]
    pub recursive: bool,
    /// They are where a watch has seen something change: one that has gone is no failure, one that is a link by now is copied
    /// as a link, and what a pattern leaves out nothing below it brings back.
    #[n(2)]
    pub is_watched: bool,
}

impl Only {
    /// The same in parts of so many bytes, each of paths that lie beside each other.
    pub fn batches(&self, bytes_max: usize) -> VecDeque<Self> {
        let mut paths: Vec<&ByteVec> = self.paths.iter().collect();
        paths.sort_by(|one, other| one.split(|&byte| byte == b'/').cmp(other.split(|&byte| byte == b'/')));
        let (mut batches, mut bytes) = (VecDeque::new(), bytes_max);
        for path in paths {
            bytes += path.len() + 8;
            if bytes > bytes_max {
                batches.push_back(Self { paths: Vec::new(), ..*self });
                bytes = path.len() + 8;
            }
            batches.back_mut().expect("it was added").paths.push(path.clone());
        }
        batches
    }

    /// Whether the directory itself is one of them.
    pub fn is_root(&self) -> bool {
        self.paths.iter().any(|path| path.split(|&byte| byte == b'/').all(|name| [&b""[..], b"."].contains(&name)))
    }
}

impl Root {
    /// What is at `path`, under a name.
    pub fn new(path: impl AsRef<OsStr>, name: impl AsRef<OsStr>) -> Self {
        let bytes = |text: &OsStr| ByteVec::from(text.as_bytes().to_vec());
        Self { path: bytes(path.as_ref()), name: bytes(name.as_ref()), only: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}
