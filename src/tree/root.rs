//! Files and trees that are sent, each under a name.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// A file or tree to send.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Root {
    /// Path at the source.
    #[n(0)]
    pub path: ByteVec,
    /// Name at the destination.
    #[n(1)]
    pub name: ByteVec,
    /// If set, only these paths below the directory are sent.
    #[n(2)]
    pub only: Option<Only>,
}

/// Paths below a directory to which a copy is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Only {
    /// Paths relative to the directory. A directory whose path ends in a slash is copied with its entries.
    #[n(0)]
    pub paths: Vec<ByteVec>,
    /// Whether directories are copied with everything in them.
    #[n(1)]
    pub recursive: bool,
    /// Whether the paths are those where a watch has seen a change. A path that has gone is then no failure. A path
    /// that is a link by now is copied as a link. If a pattern leaves out a directory, listed paths below it are left
    /// out as well.
    #[n(2)]
    pub is_watched: bool,
}

impl Only {
    /// Splits the paths into batches of at most `bytes_max` bytes. Each batch has paths that are neighbours in the
    /// tree.
    pub fn batches(&self, bytes_max: usize) -> VecDeque<Self> {
        let mut paths: Vec<&ByteVec> = self.paths.iter().collect();
        paths.sort_by(|one, other| one.split(|&byte| byte == b'/').cmp(other.split(|&byte| byte == b'/')));
        paths.dedup();
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

    /// Whether the directory itself is one of the paths.
    pub fn is_root(&self) -> bool {
        self.paths.iter().any(|path| is_itself(path))
    }
}

/// Whether a path leads to the directory that it is relative to.
pub fn is_itself(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').all(|name| [&b""[..], b"."].contains(&name))
}

impl Root {
    /// Creates a root that sends what is at `path` as `name`.
    pub fn new(path: impl AsRef<OsStr>, name: impl AsRef<OsStr>) -> Self {
        let bytes = |text: &OsStr| ByteVec::from(text.as_bytes().to_vec());
        Self { path: bytes(path.as_ref()), name: bytes(name.as_ref()), only: None }
    }

    /// Returns the path at the source.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}
