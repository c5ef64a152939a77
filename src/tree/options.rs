//! What of a tree is copied, and how it is written: one value from the command line, through the messages, to the walk
//! and the sink.

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

/// A pattern that excludes entries, or includes them again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Rule {
    /// As a line of a `.gitignore`.
    #[n(0)]
    pub pattern: ByteVec,
    /// What matches is not left out.
    #[n(1)]
    pub is_include: bool,
}

/// What of a tree is copied, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Options {
    /// Directories and what is in them; as a root they are refused otherwise, and a symbolic link as root is followed.
    #[n(0)]
    pub recursive: bool,
    /// Permission bits, setuid, setgid and sticky among them.
    #[n(1)]
    pub mode: bool,
    /// Owner and group; only root may, for others it has no effect.
    #[n(2)]
    pub owner: bool,
    /// Times of the last change and the last access.
    #[n(3)]
    pub times: bool,
    /// Extended attributes, those of `security.` and `trusted.` only by root; and ACLs, if the mode is kept as well, of
    /// which they are a part.
    #[n(4)]
    pub xattrs: bool,
    /// Hard links stay so; otherwise each is a file of its own.
    #[n(5)]
    pub hard_links: bool,
    /// Holes stay holes.
    #[n(6)]
    pub sparse: bool,
    /// FIFOs, sockets and, by root, devices.
    #[n(7)]
    pub specials: bool,
    /// Files are written where they stand. A file that stops in the middle is then a broken one.
    #[n(8)]
    pub in_place: bool,
    /// Each file is on stable storage before it is published, each directory after.
    #[n(9)]
    pub fsync: bool,
    /// What is left out; the last pattern that matches decides.
    #[n(10)]
    pub rules: Vec<Rule>,
    /// All data is read back from the disk and compared before its file is published; asks for `fsync` as well.
    #[n(11)]
    pub read_back: bool,
    /// Symbolic links.
    #[n(12)]
    pub symlinks: bool,
}

impl Default for Options {
    /// All of a tree, with all its metadata.
    fn default() -> Self {
        Self {
            recursive: true,
            mode: true,
            owner: true,
            times: true,
            xattrs: true,
            hard_links: true,
            sparse: true,
            specials: true,
            in_place: false,
            fsync: false,
            rules: Vec::new(),
            read_back: false,
            symlinks: true,
        }
    }
}

impl Options {
    /// ACLs are kept: they are a part of the mode.
    pub(super) fn acls(&self) -> bool {
        self.mode && self.xattrs
    }
}
