//! A file that is made, without its name, before there is anything to write to it, so that making it cannot fail in the
//! end. The file gets its name when it is complete. A command that is killed leaves any older file as it was.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::partial::{self, remove_named};
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
    /// Fails if no file can be made there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
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
        file.set_permissions(Permissions::from_mode(self.mode.unwrap_or(0o666 & !umask())))?;
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
