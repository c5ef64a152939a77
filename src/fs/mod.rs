//! One file or stream: where bytes come from and go to. Trees of them are in `tree`.

pub(crate) mod accounts;
pub(crate) mod close;
pub(crate) mod copy;
pub mod direct;
pub(crate) mod holes;
pub mod metadata;
mod named;
pub(crate) mod partial;
pub(crate) mod prepared;
pub(crate) mod queue;
pub mod sink;
pub(crate) mod sort;
pub mod source;
pub mod standard;
pub(crate) mod table;
mod text;
pub(crate) mod waits;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rd_proto::control::IoFact;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, seek, unlinkat};
use rustix::io::{Errno, pread, pwrite};

use crate::fault::errno_of;

/// An I/O failure as facts.
pub fn io_fact(path: &OsStr, error: Errno) -> IoFact {
    IoFact { errno: error.raw_os_error(), path: path.as_bytes().to_vec(), detail: Vec::new() }
}

/// A failure that has no error number.
pub fn plain_fact(path: &OsStr, detail: &str) -> IoFact {
    IoFact { errno: 0, path: path.as_bytes().to_vec(), detail: detail.as_bytes().to_vec() }
}

/// A failure that the standard library reports.
pub fn std_fact(path: &OsStr, error: &std::io::Error) -> IoFact {
    io_fact(path, errno_of(error))
}

/// `f_type` of tmpfs.
pub(crate) const TMPFS_MAGIC: u32 = 0x0102_1994;

/// What fstat(2) says of a file; of a block device also its length.
pub(crate) fn described(file: impl AsFd) -> Result<Stat, Errno> {
    let mut stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        stat.st_size = seek(&file, SeekFrom::End(0))? as i64;
    }
    Ok(stat)
}

/// Opens a directory or file to be read, without changing the time at which it was last read where we may.
pub(crate) fn open_quietly<P: rustix::path::Arg + Copy>(
    at: impl AsFd,
    name: P,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    match openat(&at, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => openat(&at, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// How a directory is opened, and no link: to list it and reach what is in it; and as a place only.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(crate) const PLACE: OFlags = DIRECTORY.union(OFlags::PATH);

/// What tells a file from all others that are there at the same time: its device and number.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Whether in file systems of this kind (statfs(2)) a write waits until another one to the same file is done: ext4, XFS,
/// Btrfs, tmpfs. A second thread would burn its processor, or sleep and be woken, for each range.
pub(crate) fn is_serial(kind: u32) -> bool {
    [0xef53, 0x5846_5342, 0x9123_683e, TMPFS_MAGIC].contains(&kind)
}

/// Ends the name of what may not be whole. It is locked as long as somebody writes to it.
pub(crate) const PARTIAL: &str = "rd-part";

/// Ends the name of what is whole already and only waits to be renamed over an older entry.
pub(crate) const WHOLE: &str = "rd-link";

/// Ends the name of the empty file that says of another one that it is written in place, and not whole. It is locked as long
/// as somebody writes to that.
pub(crate) const UNFINISHED: &str = "rd-half";

/// Digits of the hash in such names.
const HASH_DIGITS: usize = 32;

/// Why nothing gets a temporary name for good.
pub(crate) const IS_TEMPORARY: &str = "has a name that is kept for unfinished copies: choose another one";

/// The name under which `name` is made: hashed, so that it is never too long. Each user makes it under another one, since what
/// one has left in a directory of several, another may neither go on with nor remove; what marks the file counts for all.
pub(crate) fn name_beside(name: &[u8], ending: &str) -> String {
    name_of(rustix::process::geteuid().as_raw(), name, ending)
}

fn name_of(user: u32, name: &[u8], ending: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name);
    if user != 0 && ending != UNFINISHED {
        // In no name is a slash.
        hasher.update(format!("/{user}").as_bytes());
    }
    format!(".{}.{ending}", &hasher.finalize().to_hex()[..HASH_DIGITS])
}

/// Makes the entries of a directory durable. Where that can be asked of files alone (CIFS, some FUSE file systems), the file
/// system cares for them itself.
///
/// # Errors
///
/// What the system answered.
pub(crate) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match rustix::fs::fsync(directory) {
        Err(Errno::INVAL | Errno::BADF) => Ok(()),
        synced => synced,
    }
}

/// Whether a name is of those that [`name_beside`] makes. What stands under it may be renamed or removed by a copy at any
/// moment, so it is never sent, and nothing that is received gets it.
pub(crate) fn is_temporary_name(name: &[u8]) -> bool {
    let parts = name.strip_prefix(b".").and_then(|rest| rest.split_at_checked(HASH_DIGITS));
    parts.is_some_and(|(hash, ending)| {
        hash.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            && [PARTIAL, WHOLE, UNFINISHED].iter().any(|known| ending.strip_prefix(b".") == Some(known.as_bytes()))
    })
}

/// The directory that a file is in.
pub(crate) fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name in this directory, for what memory should not hold.
///
/// # Errors
///
/// What the system answered.
pub(crate) fn unlinked(directory: &Path) -> std::io::Result<File> {
    let fd = openat(CWD, directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(&fd, ".", flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        file => return Ok(File::from(file?)),
    }
    let name = name_beside(&getrandom::u64().map_err(std::io::Error::other)?.to_le_bytes(), PARTIAL);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&fd, &*name, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(&fd, &*name, AtFlags::empty())?;
    Ok(File::from(file))
}

/// The same where temporary files are: in `TMPDIR`, or where such files may be large.
pub(crate) fn unlinked_anywhere() -> std::io::Result<File> {
    let temporary = std::env::temp_dir();
    if std::env::var_os("TMPDIR").is_some() {
        return unlinked(&temporary);
    }
    unlinked(Path::new("/var/tmp")).or_else(|_| unlinked(&temporary))
}

/// The process's umask. Read from the kernel's account where there is one, since setting it to read it would be noticed
/// by other threads.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or_else(|| {
        let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.bits()
    })
}

/// Lets this process open as many files as it may. Deep trees, many large files at once and many connections take more
/// descriptors than the 1024 that most systems begin with.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // It may be there already, or a container's rules may forbid it; what takes more then fails where the limit is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The limits that control groups set to this process, with the directory of each group. `files`: what holds them in
/// version 2, and in version 1. `root`: where /proc and /sys are.
pub(crate) fn group_limits(root: &Path, controller: &str, files: [&str; 2]) -> Vec<(PathBuf, u64)> {
    let mut limits = Vec::new();
    // `0::/PATH` of version 2, `4:memory:/PATH` of version 1 (cgroups(7)). In a container the path may be that outside;
    // the limit is then found at the top.
    for line in std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let top = root.join("sys/fs/cgroup");
        let (top, file) = match controllers {
            "" => (top, files[0]),
            _ if controllers.split(',').any(|one| one == controller) => (top.join(controller), files[1]),
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let group = top.join(group);
            // "max" is no limit.
            let limit = std::fs::read_to_string(group.join(file)).unwrap_or_default().trim().parse();
            limits.extend(limit.ok().map(|limit| (group, limit)));
        }
    }
    limits
}

/// Writes all of `bytes` at a position.
///
/// # Errors
///
/// What writing answered.
pub(crate) fn write_at(file: impl AsFd, bytes: &[u8], position: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(&file, &bytes[done..], position + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills `target` from an offset on, or as far as the file goes; how much it was.
///
/// # Errors
///
/// What reading answered.
pub(crate) fn read_up_to(file: impl AsFd, target: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < target.len() {
        match pread(&file, &mut target[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Bytes read at once to hash a file.
pub(crate) const HASH_READ_BYTES: usize = 256 << 10;

/// The beginning of the BLAKE3 of a range of a file, for both ends of a transfer to compare.
///
/// # Errors
///
/// What reading answered; ENODATA if the file ends before.
pub(crate) fn hash_range(file: impl AsFd, start: u64, length: u64, scratch: &mut [u8]) -> Result<[u8; 16], Errno> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < length {
        let wanted = scratch.len().min((length - done) as usize);
        if read_up_to(&file, &mut scratch[..wanted], start + done)? < wanted {
            return Err(Errno::NODATA);
        }
        hasher.update(&scratch[..wanted]);
        done += wanted as u64;
    }
    Ok(hash16(&hasher.finalize()))
}

/// The beginning of a hash.
pub(crate) fn hash16(hash: &blake3::Hash) -> [u8; 16] {
    hash.as_bytes()[..16].try_into().expect("of 32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_make_files_under_names_of_their_own_and_mark_them_for_all() {
        for ending in [PARTIAL, WHOLE] {
            let names = [0, 1, 11, 1000].map(|user| name_of(user, b"a name", ending));
            let distinct: std::collections::BTreeSet<_> = names.iter().collect();
            assert!(distinct.len() == 4 && names.iter().all(|name| is_temporary_name(name.as_bytes())), "{names:?}");
        }
        assert_eq!(name_of(1, b"a name", UNFINISHED), name_of(0, b"a name", UNFINISHED));
    }

    #[test]
    fn temporary_names_are_known_and_no_others() {
        for ending in [PARTIAL, WHOLE, UNFINISHED] {
            let name = name_beside(b"a name", ending);
            assert!(is_temporary_name(name.as_bytes()), "{name}");
            for other in [&name[1..], &name[..name.len() - 1], &format!("{name}x"), &name.to_uppercase(), "."] {
                assert!(!is_temporary_name(other.as_bytes()), "{other}");
            }
        }
        for other in ["", ".rd-part", "a.rd-part", &format!(".{}.rd-file", "0".repeat(HASH_DIGITS))] {
            assert!(!is_temporary_name(other.as_bytes()), "{other}");
        }
    }
}
