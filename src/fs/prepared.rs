//! A file that is made, without its name, before there is anything to write to it, so that making it cannot fail in the
//! end. The file gets its name when it is complete. A command that is killed leaves any older file as it was.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::partial::{self, remove_named};
use super::sink::set_mode;
use super::{PARTIAL, directory_of, name_beside, umask};

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

impl Prepared {
    /// Makes a file that will take the place of `path`. If `path` is a symbolic link, the link stays and its target is
    /// replaced.
    ///
    /// # Errors
    ///
    /// Fails if no file can be made there, or if `path` is a link that leads nowhere.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = match path.canonicalize() {
            // The file would take the place of the link.
            Err(error) if path.is_symlink() => return Err(error),
            Err(_) => path.to_owned(),
            Ok(path) => path,
        };
        let name = path.file_name().filter(|_| !path.exists() || path.is_file());
        let name = name.ok_or_else(|| io::Error::other("not a regular file"))?;
        let directory = File::open(directory_of(&path))?;
        let beside = name_beside(name.as_bytes(), PARTIAL);
        let (file, _) =
            partial::patiently(Instant::now() + HELD_MAX, || false, || partial::open(&directory, &beside, false))
                .map_err(|blocked| io::Error::from(blocked.error))?;
        let mode = path.metadata().ok().map(|found| found.mode() & 0o777);
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
    use crate::fs::close::tests::where_calls_fail;

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
