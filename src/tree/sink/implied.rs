//! `--no-implied-dirs`: directories that only lead to what is listed. What stands in DST is left as it is, also a link in
//! place of one, as long as it leads to a directory within DST; what is missing is made, and gets nothing of the source's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rd_proto::tree::{Extension, Metadata};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Shared;
use super::directory::OpenDirectory;
use crate::fs::{DIRECTORY, open_quietly};
use crate::tree::Fault;

/// How often a path is opened again, of which something was renamed meanwhile.
const TRIES: u32 = 16;

impl Shared {
    /// Whether a directory only leads to others. The sender's word alone is not enough: links are followed for it.
    pub(super) fn is_implied(&self, described: &Metadata<'_>) -> bool {
        self.options.no_implied_dirs && described.extensions.iter().any(|one| one == Extension::Implied)
    }
}

/// The root of the tree, beneath which links may lead.
pub(super) struct TreeRoot {
    directory: OwnedFd,
    /// How many names lead to it.
    depth: usize,
}

/// That of a directory that was `entered`.
pub(super) fn root(entered: &OpenDirectory, parent: &OpenDirectory) -> Result<Option<Arc<TreeRoot>>, Errno> {
    if !parent.is_top() || !parent.shared.options.no_implied_dirs {
        return Ok(parent.root.clone());
    }
    let directory = entered.fd.try_clone().map_err(|_| Errno::MFILE)?;
    Ok(Some(Arc::new(TreeRoot { directory, depth: entered.names().len() })))
}

impl OpenDirectory {
    /// A directory that only leads to others, or the one that a link in its place leads to.
    pub(super) fn open_implied(&self, name: &[u8]) -> Result<OwnedFd, Fault> {
        match (open_quietly(&self.fd, name, DIRECTORY), &self.root) {
            // Either is the answer for a link.
            (Err(Errno::LOOP | Errno::NOTDIR), Some(root)) => {
                let mut names = self.names();
                names.push(name);
                let path = names[root.depth..].join(&b'/');
                match open_beneath(&root.directory, &path, DIRECTORY.difference(OFlags::NOFOLLOW)) {
                    Err(Errno::XDEV) => {
                        Err(Fault::Detail("is a link that leads out of DST, or has an absolute target"))
                    }
                    opened => Ok(opened?),
                }
            }
            (opened, _) => Ok(opened?),
        }
    }
}

/// Opens a path, with links in it followed as long as none is absolute or leads out of the directory.
pub(super) fn open_beneath(directory: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let open = || openat2(directory, path, flags, Mode::empty(), ResolveFlags::BENEATH);
    let mut opened = open();
    for _ in 0..TRIES {
        match opened {
            Err(Errno::AGAIN) => opened = open(),
            _ => break,
        }
    }
    opened
}
