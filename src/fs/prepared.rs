//! A file that is made, without its name, before there is anything to write to it, so that making it cannot fail in the
//! end. The file gets its name when it is complete. A command that is killed leaves any older file as it was.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, lstat, openat, unlinkat};
use rustix::io::Errno;

use super::partial::{self, remove_named};
use super::sink::set_mode;
use super::{PARTIAL, directory_of, identity, name_beside, umask};

/// How long to wait for another process that writes to the same file.
const HELD_MAX: Duration = Duration::from_secs(6);

/// An output file before it has its name.
pub(crate) struct Prepared {
    path: PathBuf,
    directory: File,
    beside: String,
    file: OwnedFd,
    /// Mode of the file to be replaced. `None` if there is none.
    mode: Option<u32>,
}

/// Returns the path of what a link leads to. The system decides whether it follows the link: not if another user has
/// put it into a sticky directory (fs.protected_symlinks). readlink(2), by which the path is found, does not ask that.
///
/// # Errors
///
/// Fails if the link leads nowhere, is not followed, or is exchanged meanwhile.
pub(crate) fn followed(link: &Path) -> io::Result<PathBuf> {
    let target = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let path = link.canonicalize()?;
    match identity(&lstat(&path)?) == identity(&fstat(target)?) {
        true => Ok(path),
        false => Err(Errno::STALE.into()),
    }
}

impl Prepared {
    /// Makes a file that will take the place of `path`. If `path` is a symbolic link, the link stays and its target is
    /// replaced.
    ///
    /// # Errors
    ///
    /// Fails if no file can be made there, or if `path` is a link that leads nowhere, or that the system does not
    /// follow.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.is_symlink() { followed(path)? } else { path.to_owned() };
        let found = path.symlink_metadata().ok();
        let name = path.file_name().filter(|_| found.as_ref().is_none_or(Metadata::is_file));
        let name = name.ok_or_else(|| io::Error::other("not a regular file"))?;
        let directory = File::open(directory_of(&path))?;
        let beside = name_beside(name.as_bytes(), PARTIAL);
        let (file, _) =
            partial::patiently(Instant::now() + HELD_MAX, || false, || partial::open(&directory, &beside, false))
                .map_err(|blocked| io::Error::from(blocked.error))?;
        let mode = found.map(|found| found.mode() & 0o777);
        Ok(Self { path, directory, beside, file, mode })
    }

    /// Returns a handle to write to the file before it is published.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor is left.
    pub(crate) fn file(&self) -> io::Result<File> {
        Ok(File::from(self.file.try_clone()?))
    }

    /// Returns the path that the file will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `rest`, then gives the file its name and the mode of the file that it replaces.
    ///
    /// # Errors
    ///
    /// The error of the system call that failed.
    pub(crate) fn publish(&self, rest: &[u8]) -> io::Result<()> {
        let mut file = self.file()?;
        file.write_all(rest)?;
        set_mode(&file, self.mode.unwrap_or(0o666 & !umask()))?;
        file.sync_all()?;
        partial::publish(&self.directory, &*self.beside, &self.file, self.path.file_name().unwrap_or_default())?;
        Ok(())
    }

    /// Removes the file whose place this one was to take, if there is one.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub(crate) fn remove_older(&self) -> io::Result<()> {
        match unlinkat(&self.directory, self.path.file_name().unwrap_or_default(), AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // Has no effect on a published file, because that has another name.
        remove_named(&self.directory, &*self.beside, &self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fs::close::tests::{fail_where, where_calls_fail};

    #[test]
    fn a_link_is_never_replaced() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [link, target] = ["link", "target"].map(|name| scratch.path().join(name));
        symlink("target", &link).expect("a link");
        let refused = Prepared::open(&link).map(drop).expect_err("it leads nowhere");
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        std::fs::write(&target, "old").expect("a file");
        Prepared::open(&link).and_then(|file| file.publish(b"new")).expect("written");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&target).expect("there"), b"new");
    }

    /// With fs.protected_symlinks the system refuses to follow a link of another user in a sticky directory, and tells
    /// where it leads nevertheless.
    #[test]
    fn a_link_that_the_system_does_not_follow_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [link, target] = ["link", "target"].map(|name| scratch.path().join(name));
        std::fs::write(&target, "old").expect("a file");
        symlink(&target, &link).expect("a link");
        let open = || {
            let following = OFlags::PATH | OFlags::CLOEXEC | OFlags::LARGEFILE;
            fail_where(libc::SYS_openat, (2, u64::from(following.bits())), libc::EACCES);
            Prepared::open(&link).and_then(|file| file.publish(b"new"))
        };
        let opened = std::thread::scope(|scope| scope.spawn(open).join().expect("its end"));
        assert_eq!(opened.expect_err("not followed").kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read(&target).expect("there"), b"old");
        assert_eq!(scratch.path().read_dir().expect("its entries").count(), 2);
    }

    #[test]
    fn a_file_is_published_where_modes_cannot_be_set() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let publish = || Prepared::open(&path).and_then(|file| file.publish(b"data"));
        assert!(where_calls_fail(&[libc::SYS_fchmod], libc::EIO, publish).is_err());
        assert!(where_calls_fail(&[libc::SYS_fchmod], libc::EPERM, publish).is_ok());
        assert_eq!(std::fs::read(&path).expect("there"), b"data");
    }
}
