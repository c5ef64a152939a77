//! Files under a partial name: made anew, locked, and ours alone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Times that a name is tried again when another process makes it at the same moment.
pub(super) const TRIES_MAX: usize = 3;

/// Opens a file of this partial name in a directory, locked, and tells whether it was there.
///
/// With `may_adopt`, what a killed transfer has left is kept: a regular file of ours with no other name and mode 0600.
/// Anything else that stands under the name is removed, never written to: it may be another name of some file.
///
/// # Errors
///
/// EBUSY if another process writes to it, else what the system answered.
pub(super) fn open(directory: impl AsFd, name: &str, may_adopt: bool) -> Result<(OwnedFd, bool), Errno> {
    let fd = directory.as_fd();
    for _ in 0..TRIES_MAX {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match openat(fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                // Another transfer that found it before it was locked has removed it.
                // A file system without locks has nobody who could: what is there already is left alone below.
                let lock = flock(&file, FlockOperation::NonBlockingLockExclusive);
                if lock == Err(Errno::AGAIN) || fstat(&file)?.st_nlink == 0 {
                    return Err(Errno::BUSY);
                }
                return Ok((file, false));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        // For writing, since over NFS only then it can be locked.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(fd, name, flags, Mode::empty()) {
            Ok(left) => {
                flock(&left, FlockOperation::NonBlockingLockExclusive).map_err(|_| Errno::BUSY)?;
                if is_named(fd, name, &left) {
                    let here = fstat(&left)?;
                    let ours = FileType::from_raw_mode(here.st_mode) == FileType::RegularFile
                        && here.st_nlink == 1
                        && here.st_uid == rustix::process::geteuid().as_raw()
                        && here.st_mode & 0o7777 == 0o600;
                    if may_adopt && ours {
                        return Ok((left, true));
                    }
                    unlinkat(fd, name, AtFlags::empty())?;
                }
            }
            // Gone meanwhile.
            Err(Errno::NOENT) => {}
            Err(error) => match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Another user's transfer may be writing to it: that cannot be seen from here.
                Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile => {
                    return Err(if error == Errno::ACCESS { Errno::BUSY } else { error });
                }
                // A link, a socket: not of a transfer.
                Ok(_) => unlinkat(fd, name, AtFlags::empty())?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            },
        }
    }
    Err(Errno::BUSY)
}

/// Whether what stands under a partial name is this file still. Where a lock says nothing to another host, or a name is
/// taken away, it may be another transfer's, and is neither to be published nor removed.
pub(super) fn is_named(directory: impl AsFd, name: impl Arg, file: impl AsFd) -> bool {
    let (here, named) = (fstat(file), statat(directory, name, AtFlags::SYMLINK_NOFOLLOW));
    matches!((here, named), (Ok(here), Ok(named)) if (here.st_dev, here.st_ino) == (named.st_dev, named.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn directory(path: &Path) -> OwnedFd {
        openat(rustix::fs::CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("a directory")
    }

    #[test]
    fn what_is_not_ours_alone_is_removed_and_not_written_to() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (other, name) = (scratch.path().join("other"), scratch.path().join("name"));
        let private = |path: &Path| {
            fs::write(path, "precious").expect("a file");
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
        };
        private(&other);
        let make: [(&str, &dyn Fn()); 5] = [
            ("another name of a file", &|| fs::hard_link(&other, &name).expect("a link")),
            ("a link", &|| symlink(&other, &name).expect("a link")),
            ("a link that leads nowhere", &|| symlink("nowhere", &name).expect("a link")),
            ("a file that others may read", &|| fs::write(&name, "x").expect("a file")),
            ("a FIFO", &|| {
                let mode = Mode::RUSR | Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, &name, FileType::Fifo, mode, 0).expect("a FIFO");
            }),
        ];
        for may_adopt in [false, true] {
            for (what, make) in make {
                make();
                let (file, was_there) = open(directory(scratch.path()), "name", may_adopt).expect(what);
                let stat = fstat(&file).expect("open");
                assert!(!was_there && stat.st_nlink == 1 && stat.st_size == 0, "{what}");
                assert_eq!(stat.st_mode, 0o100_600, "{what}");
                assert_eq!(
                    open(directory(scratch.path()), "name", may_adopt).expect_err("locked"),
                    Errno::BUSY,
                    "{what}"
                );
                assert_eq!(fs::read(&other).expect("untouched"), b"precious", "{what}");
                fs::remove_file(&name).expect("made");
            }
        }
        let (mine, _) = open(directory(scratch.path()), "name", false).expect("made");
        let is_mine = || is_named(directory(scratch.path()), "name", &mine);
        assert!(is_mine());
        fs::remove_file(&name).expect("made");
        assert!(!is_mine());
        private(&name);
        assert!(!is_mine(), "another's");
        assert!(open(directory(scratch.path()), "name", true).expect("left behind").1);
        assert!(!open(directory(scratch.path()), "name", false).expect("made anew").1);
        assert!(fs::read(&name).expect("made").is_empty());
    }
}
