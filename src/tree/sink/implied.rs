//! `--no-implied-dirs`: directories that only lead to listed entries. What exists in DST is left as it is, even a link
//! in place of such a directory, as long as the link leads to a directory within DST. Missing directories are made, and
//! get no metadata of the source.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rd_proto::tree::{Extension, Metadata};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

use super::Shared;
use super::directory::OpenDirectory;
use crate::fs::{DIRECTORY, open_quietly};
use crate::tree::Fault;

/// How often a path is opened again if a part of it was renamed meanwhile.
const TRIES: u32 = 16;

/// Maximum number of links followed on a path; the same as the kernel's.
const LINKS_MAX: u32 = 40;

impl Shared {
    /// Whether a directory only leads to others. The sender's word alone is not enough, because links are followed for
    /// such directories.
    pub(super) fn is_implied(&self, described: &Metadata<'_>) -> bool {
        self.options.no_implied_dirs && described.extensions.iter().any(|one| one == Extension::Implied)
    }
}

/// The root of the tree, beneath which links may lead.
pub(super) struct TreeRoot {
    directory: OwnedFd,
    /// Number of names that lead to the root.
    depth: usize,
}

/// Returns the tree root of a directory that was `entered`.
pub(super) fn root(entered: &OpenDirectory, parent: &OpenDirectory) -> Result<Option<Arc<TreeRoot>>, Errno> {
    if !parent.is_top() || !parent.shared.options.no_implied_dirs {
        return Ok(parent.root.clone());
    }
    let directory = entered.fd.try_clone().map_err(|_| Errno::MFILE)?;
    Ok(Some(Arc::new(TreeRoot { directory, depth: entered.names().len() })))
}

impl OpenDirectory {
    /// Opens a directory that only leads to others, or the directory to which a link in its place leads.
    pub(super) fn open_implied(&self, name: &[u8]) -> Result<OwnedFd, Fault> {
        match (open_quietly(&self.fd, name, DIRECTORY), &self.root) {
            // The kernel may answer either for a link.
            (Err(Errno::LOOP | Errno::NOTDIR), Some(root)) => {
                let path = self.names_to(name)[root.depth..].join(&b'/');
                match open_beneath(&root.directory, &path, DIRECTORY.difference(OFlags::NOFOLLOW)) {
                    Err(Errno::XDEV) => {
                        Err(Fault::Detail("is a symbolic link that leads out of DST or has an absolute target"))
                    }
                    opened => Ok(opened?),
                }
            }
            (opened, _) => Ok(opened?),
        }
    }
}

/// Opens a path. Links in it are followed as long as none is absolute or leads out of the directory.
pub(super) fn open_beneath(directory: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let open = || openat2(directory, path, flags, Mode::empty(), ResolveFlags::BENEATH);
    let mut opened = open();
    for _ in 0..TRIES {
        match opened {
            Err(Errno::AGAIN) => opened = open(),
            // Kernels before 5.6 do not have this call, and some containers forbid it.
            Err(Errno::NOSYS | Errno::PERM) => return walk_beneath(directory, path, flags),
            _ => break,
        }
    }
    opened
}

/// Does the same name by name: reads each link and walks its target.
fn walk_beneath(top: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let split = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.rev().map(<[u8]>::to_vec).collect()
    };
    let (mut to_come, mut links) = (split(path), 0);
    // Directories that lead to the current one: `..` returns to the previous one, wherever that may have been moved to.
    let mut entered: Vec<OwnedFd> = Vec::new();
    while let Some(name) = to_come.pop() {
        if name == b".." {
            entered.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let here = entered.last().unwrap_or(top);
        let found = openat(here, &*name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let is_link = FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Symlink;
        let is_followed = !to_come.is_empty() || !flags.contains(OFlags::NOFOLLOW);
        if !(is_link && is_followed) {
            entered.push(found);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(&found, c"", Vec::new())?;
        if target.as_bytes().starts_with(b"/") {
            return Err(Errno::XDEV);
        }
        to_come.extend(split(target.as_bytes()));
    }
    match entered.pop() {
        Some(found) if flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY) => Ok(found),
        // This fails if the entry found is not a directory.
        found => openat(found.as_ref().unwrap_or(top), c".", flags, Mode::empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::fs::{PLACE, identity};

    /// Without the kernel's call the results are the same.
    #[test]
    fn paths_are_walked_as_the_kernel_walks_them() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("a/b/c")).expect("directories");
        fs::write(top.join("a/file"), "x").expect("a file");
        let links = [
            ("down", "a/b"),
            ("a/up", "../a/./b/"),
            ("a/b/two", "../up"),
            ("out", "../top"),
            ("a/out", "../../other"),
            ("there-and-back", "a/../../top/a"),
            ("absolute", "/"),
            ("itself", "itself"),
            ("nowhere", "a/none"),
            ("to-file", "a/file"),
        ];
        for (name, target) in links {
            symlink(target, top.join(name)).expect("a link");
        }
        let top = OwnedFd::from(fs::File::open(top).expect("there"));
        let mut found = 0;
        let paths = "a a/b/c down down/c a/up/c a/b/two/c a/b/../up out out/a a/out there-and-back absolute absolute/etc itself \
            itself/a nowhere nowhere/x to-file to-file/x a/file a/file/x a/none/x .. a/.. a/../.. down/..";
        for path in paths.split_whitespace() {
            for flags in [PLACE, DIRECTORY.difference(OFlags::NOFOLLOW), OFlags::PATH | OFlags::NOFOLLOW] {
                let open = || {
                    let opened = open_beneath(&top, path.as_bytes(), flags | OFlags::CLOEXEC);
                    opened.map(|opened| identity(&fstat(&opened).expect("open")))
                };
                let expected = open();
                found += u32::from(expected.is_ok());
                for error in [libc::ENOSYS, libc::EPERM] {
                    assert_eq!(where_calls_fail(&[libc::SYS_openat2], error, open), expected, "{path} {flags:?}");
                }
            }
        }
        assert!(found > 20, "{found}");
    }
}
