//! Files: where the bytes of a stream come from and go to.

mod close;
pub mod copy;
pub mod direct;
pub mod first;
pub mod metadata;
mod partial;
pub mod sink;
pub mod source;
pub mod standard;
pub mod tree_sink;
pub mod tree_source;
pub mod walk;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::IoFact;
use rustix::fs::{AtFlags, FileType, Mode, Stat, statat};
use rustix::io::{Errno, pread, pwrite};

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
    io_fact(path, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Whether a failure to write is one that every further file would meet: the destination is full, over its quota,
/// read-only or broken.
fn stops_everything(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// `f_type` of tmpfs.
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Whether in file systems of this kind (statfs(2)) a write waits until another one to the same file is done: ext4, XFS,
/// Btrfs, tmpfs. A second thread would burn its processor, or sleep and be woken, for each range.
fn is_serial(kind: u32) -> bool {
    [0xef53, 0x5846_5342, 0x9123_683e, TMPFS_MAGIC].contains(&kind)
}

/// Whether a symbolic link in `directory` with this target leads to what `old` describes, itself no link: put in its
/// place it would lead to itself, and what was there be lost.
fn leads_to<P: rustix::path::Arg>(directory: BorrowedFd<'_>, target: P, old: &Stat) -> bool {
    FileType::from_raw_mode(old.st_mode) != FileType::Symlink
        && statat(directory, target, AtFlags::empty())
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (old.st_dev, old.st_ino))
}

/// Ends the name of what may not be whole. It is locked as long as somebody writes to it.
const PARTIAL: &str = "rd-part";

/// The name under which `name` is made: hashed, so that it is never too long.
fn name_beside(name: &[u8], ending: &str) -> String {
    format!(".{}.{ending}", &blake3::hash(name).to_hex()[..32])
}

/// The process's umask. Read from the kernel's account where there is one, since setting it to read it would be noticed
/// by other threads.
fn umask() -> u32 {
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

/// Writes all of `bytes` at a position.
///
/// # Errors
///
/// What writing answered.
fn write_at(file: impl AsFd, bytes: &[u8], position: u64) -> Result<(), Errno> {
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

/// Bytes read at once to hash a file.
const HASH_READ_BYTES: usize = 256 << 10;

/// The beginning of the BLAKE3 of a range of a file, for both ends of a transfer to compare.
///
/// # Errors
///
/// What reading answered; ENODATA if the file ends before.
fn hash_range(file: impl AsFd, start: u64, length: u64, scratch: &mut [u8]) -> Result<[u8; 16], Errno> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < length {
        let wanted = scratch.len().min((length - done) as usize);
        match pread(&file, &mut scratch[..wanted], start + done) {
            Ok(0) => return Err(Errno::NODATA),
            Ok(count) => {
                hasher.update(&scratch[..count]);
                done += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher.finalize().as_bytes()[..16].try_into().expect("of 32"))
}
