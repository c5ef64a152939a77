//! One file or stream: where bytes come from and go to. Trees are in `tree`.

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
pub(crate) mod ring;
pub mod sink;
pub(crate) mod sort;
pub mod source;
pub mod standard;
pub(crate) mod table;
mod text;
pub(crate) mod waits;
pub(crate) mod write_out;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use minicbor::{Decode, Encode};
use nix::sys::resource::Resource;
use rd_proto::control::IoFact;
use rustix::fs::{
    Access, Advice, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Stat, accessat, fadvise, fdatasync, fstat, openat,
    seek, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::process::{self, Rlimit, setrlimit};

pub(crate) use self::named::here;
use crate::fault::errno_of;
use crate::limits;

/// Describes an I/O failure as facts.
pub fn io_fact(path: &OsStr, error: Errno) -> IoFact {
    let is_of_proc = error == Errno::NOSYS && metadata::lacks_proc();
    let detail = if is_of_proc { "/proc is not mounted" } else { "" };
    IoFact { errno: error.raw_os_error(), path: path.as_bytes().to_vec(), detail: detail.into() }
}

/// Describes a failure without an error number.
pub fn plain_fact(path: &OsStr, detail: &str) -> IoFact {
    IoFact { errno: 0, path: path.as_bytes().to_vec(), detail: detail.as_bytes().to_vec() }
}

/// Describes a failure reported by the standard library.
pub fn std_fact(path: &OsStr, error: &std::io::Error) -> IoFact {
    io_fact(path, errno_of(error))
}

/// `f_type` of tmpfs.
pub(crate) const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Returns what fstat(2) reports about a file; for a block device, also its length.
pub(crate) fn described(file: impl AsFd) -> Result<Stat, Errno> {
    let mut stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        stat.st_size = seek(&file, SeekFrom::End(0))? as i64;
    }
    Ok(stat)
}

/// Whether `stat` describes a regular file.
pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Whether `stat` describes a directory.
pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Checks whether this process has this kind of access to a path, which is relative to `at`.
pub(crate) fn may<P: rustix::path::Arg + Copy>(at: impl AsFd, path: P, access: Access) -> Result<(), Errno> {
    match accessat(&at, path, access, AtFlags::EACCESS) {
        // Rules of containers that are older than the call with flags refuse it.
        Err(Errno::PERM) => accessat(&at, path, access, AtFlags::empty()),
        answered => answered,
    }
}

/// Returns the absolute path without links. A trailing slash is left out first: for it, the C library calls faccessat2,
/// which rules of containers that are older refuse.
pub(crate) fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    path.components().collect::<PathBuf>().canonicalize()
}

/// Opens a directory or file for reading, without changing its access time if this process is allowed to do so.
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

/// Flags to open a directory, but no link: `DIRECTORY` to list it and reach its entries, `PLACE` as a place only.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(crate) const PLACE: OFlags = DIRECTORY.union(OFlags::PATH);

/// Device and inode number, which distinguish a file from all others that exist at the same time.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Opens a directory once more, so that no other reader's position in the listing is moved.
pub(crate) fn again(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    openat(directory, ".", DIRECTORY, Mode::empty())
}

/// Opens the directory to which the names of a path lead from another directory. No link is followed.
pub(crate) fn descend(from: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut here = openat(from, ".", flags, Mode::empty())?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        here = openat(&here, name, flags, Mode::empty())?;
    }
    Ok(here)
}

/// Reports whether file systems of this kind (statfs(2)) make a write wait until another write to the same file is
/// done: ext4, XFS, Btrfs, tmpfs. For each range, a second thread would burn its processor, or sleep and be woken.
pub(crate) fn is_serial(kind: u32) -> bool {
    [0xef53, 0x5846_5342, 0x9123_683e, TMPFS_MAGIC].contains(&kind)
}

/// Suffix for the name of a file that may be incomplete. The file is locked as long as a process writes to it.
pub(crate) const PARTIAL: &str = "rd-part";

/// Suffix for the name of an entry that is complete and only waits to be renamed over an older entry.
pub(crate) const WHOLE: &str = "rd-link";

/// Suffix for the name of the empty file that marks another file as written in place and incomplete. The marker is
/// locked as long as a process writes to that file.
pub(crate) const UNFINISHED: &str = "rd-half";

/// Number of hash digits in such names.
const HASH_DIGITS: usize = 32;

/// Error message for a destination whose own name is a temporary one.
pub(crate) const IS_TEMPORARY: &str = "the name is reserved for unfinished copies; choose another";

/// Returns the temporary name under which `name` is made. It contains a hash instead of `name`, so that it is never too
/// long. It differs between users: in a shared directory, a user can neither resume nor remove what another user has
/// left. Only a marker's name ([`UNFINISHED`]) is the same for all users.
pub(crate) fn name_beside(name: &[u8], ending: &str) -> String {
    name_of(rustix::process::geteuid().as_raw(), name, ending)
}

fn name_of(user: u32, name: &[u8], ending: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name);
    if user != 0 && ending != UNFINISHED {
        // No name contains a slash.
        hasher.update(format!("/{user}").as_bytes());
    }
    format!(".{}.{ending}", &hasher.finalize().to_hex()[..HASH_DIGITS])
}

/// Makes the entries of a directory durable. File systems that can sync only files (CIFS, some FUSE file systems) take
/// care of directories themselves.
///
/// # Errors
///
/// The error number of fsync(2).
pub(crate) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match rustix::fs::fsync(directory) {
        Err(Errno::INVAL | Errno::BADF) => Ok(()),
        synced => synced,
    }
}

/// Reports whether a name is one of those that [`name_beside`] makes. A copy may rename or remove such an entry at any
/// moment. So entries with such names are never sent, and no received entry gets such a name.
pub(crate) fn is_temporary_name(name: &[u8]) -> bool {
    let parts = name.strip_prefix(b".").and_then(|rest| rest.split_at_checked(HASH_DIGITS));
    parts.is_some_and(|(hash, ending)| {
        hash.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            && [PARTIAL, WHOLE, UNFINISHED].iter().any(|known| ending.strip_prefix(b".") == Some(known.as_bytes()))
    })
}

/// Returns the directory that contains a file.
pub(crate) fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file without a name in this directory, for data that should not be held in memory.
///
/// # Errors
///
/// The error of the system call that failed.
pub(crate) fn unlinked(directory: &Path) -> std::io::Result<File> {
    let fd = openat(here(), directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
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

/// Returns the temporary directory: `TMPDIR` if set, else preferably /var/tmp, where files may be large.
pub(crate) fn temporary_directory() -> PathBuf {
    let large = Path::new("/var/tmp");
    let is_large = std::env::var_os("TMPDIR").is_none() && may(CWD, large, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    if is_large { large.to_owned() } else { std::env::temp_dir() }
}

/// Makes such a file in the temporary directory.
pub(crate) fn unlinked_anywhere() -> std::io::Result<File> {
    unlinked(&temporary_directory()).or_else(|error| unlinked(&std::env::temp_dir()).map_err(|_| error))
}

/// Appends a value to a file that only this process reads.
pub(crate) fn append(file: &mut impl Write, value: impl Encode<()>) -> io::Result<()> {
    let bytes = minicbor::to_vec(value).expect("a vector takes everything");
    file.write_all(&(bytes.len() as u32).to_le_bytes())?;
    file.write_all(&bytes)
}

/// Returns the next of these values; `None` at the end.
pub(crate) fn take_next<T: for<'b> Decode<'b, ()>>(file: &mut impl BufRead) -> io::Result<Option<T>> {
    if file.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    file.read_exact(&mut bytes)?;
    minicbor::decode(&bytes).map(Some).map_err(io::Error::other)
}

/// Returns the umask with which this process was started. It is read from /proc/self/status if possible, because
/// umask(2) can read the mask only by setting it, which other threads would notice.
pub(crate) fn umask() -> u32 {
    static STARTED_WITH: OnceLock<u32> = OnceLock::new();
    *STARTED_WITH.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or_else(|| {
            let mask = process::umask(Mode::from_raw_mode(0o077));
            process::umask(mask);
            mask.bits()
        })
    })
}

/// As long as this exists, the umask takes no rights from the owner of what this process makes, which is entered and
/// opened again by name. Final modes go by [`umask`]. Where the thread that drops it has a umask of its own, programs that
/// are started later get this one.
pub(crate) struct OwnerAccess(());

static OWNER_ACCESS: Mutex<usize> = Mutex::new(0);

impl OwnerAccess {
    pub(crate) fn grant() -> Self {
        let mut granted = crate::locked(&OWNER_ACCESS);
        *granted += 1;
        process::umask(Mode::from_raw_mode(umask() & 0o077));
        Self(())
    }
}

impl Drop for OwnerAccess {
    fn drop(&mut self) {
        let mut granted = crate::locked(&OWNER_ACCESS);
        *granted -= 1;
        if *granted == 0 {
            process::umask(Mode::from_raw_mode(umask()));
        }
    }
}

/// The limits on open files before [`raise_open_files`]. What this process runs for a user gets them.
pub(crate) static OPEN_FILES: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit on open files as far as possible. Deep trees, many large files at once and many
/// connections take more descriptors than the 1024 with which most systems begin.
pub(crate) fn raise_open_files() {
    let (soft, most) = limits::both(Resource::RLIMIT_NOFILE);
    OPEN_FILES.get_or_init(|| Rlimit { current: soft, maximum: most });
    // The limit may be that high already, or a container's rules may forbid this. Opening more files then fails at the
    // limit.
    let _ = setrlimit(process::Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// Returns the limits that control groups set for this process, with the directory of each group. `files` names the
/// file that holds a limit in version 2 and in version 1. `root` is the directory in which /proc and /sys are.
pub(crate) fn group_limits(root: &Path, controller: &str, files: [&str; 2]) -> Vec<(PathBuf, u64)> {
    let mut limits = Vec::new();
    // Lines are `0::/PATH` in version 2 and `4:memory:/PATH` in version 1 (cgroups(7)). In a container the path may be
    // the one outside; the limit is then found at the top.
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
            // "max" means no limit, and is not a number.
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
/// The error number of the write that failed.
pub(crate) fn write_at(file: impl AsFd, bytes: &[u8], position: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match retry_on_intr(|| pwrite(&file, &bytes[done..], position + done as u64))? {
            0 => return Err(Errno::IO),
            count => done += count,
        }
    }
    Ok(())
}

/// Writes cached data to the disk and drops the pages of this range, which goes to the end if `length` is 0. Pages are
/// dropped even if nothing can be synced, as on some read-only file systems.
pub(crate) fn evict(file: &OwnedFd, position: u64, length: u64) -> Result<(), Errno> {
    fdatasync(file).and(fadvise(file, position, NonZeroU64::new(length), Advice::DontNeed))
}

/// Fills `target` from an offset on, or as far as the file goes. Returns the number of bytes read.
///
/// # Errors
///
/// The error number of the read that failed.
pub(crate) fn read_up_to(file: impl AsFd, target: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < target.len() {
        match retry_on_intr(|| pread(&file, &mut target[done..], offset + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Number of bytes read at once to hash a file.
pub(crate) const HASH_READ_BYTES: usize = 256 << 10;

/// Returns the beginning of the BLAKE3 hash of a range of a file, for both ends of a transfer to compare.
///
/// # Errors
///
/// The error number of the read that failed; `ENODATA` if the file ends before the range does.
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

/// Returns the beginning of a hash.
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
