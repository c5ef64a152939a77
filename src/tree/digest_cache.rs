//! Digests of files that an earlier comparison has read (`--digest-cache`), so that the next one need not read them.
//!
//! A record is valid only for a file with the same size, time of last modification and time of last change of its
//! inode, in nanoseconds, as when it was read. A file that had changed within two seconds before is not recorded,
//! because it might change again without getting another time; on a file system whose times are another host's, within
//! a day before, because clocks differ. Nor is a file on a file system whose times the kernel does not keep
//! ([`TIMEKEEPERS`]). Data written through a shared mapping that was already dirty changes no time before it is written
//! back, on tmpfs never. The guide says so.
//!
//! # Format
//!
//! The head has 4096 bytes: [`MAGIC`], a key of 32 random bytes, and the checksum of both. [`BUCKETS`] buckets of 4096
//! bytes follow, most of them holes. Each bucket has [`SLOTS`] records of 48 bytes: the inode's number, a fingerprint
//! of everything that identifies the file, the digest, and a checksum. Files with neighbouring inode numbers share a
//! bucket. Fingerprints and checksums are the beginnings of BLAKE3 with the head's key.
//!
//! # Invariants
//!
//! * A record that is damaged, or that two processes have written at once, fails its checksum and is ignored.
//! * A process that uses the file holds a shared lock on it. A process that makes the file anew holds an exclusive
//!   lock. No process waits for a lock.
//! * Only the file's owner may write to it.
//! * A copy that uses the file neither sends, replaces nor deletes it, unless it is named as SRC.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake3::Hasher;
use rd_proto::control::IoFact;
use rd_proto::tree::answer::{self, BLOCK_BYTES_MIN};
use rd_proto::tree::blocks::block_bytes;
use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock, fstat, fstatfs, fstatvfs, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::fault::printable;
use crate::fs::accounts::own_home;
use crate::fs::{Identity, OwnerAccess, hash16, here, identity, is_regular, plain_fact, read_up_to};
use crate::options::TreeOptions;

/// First bytes of the file. The last number is the version of the format.
const MAGIC: &[u8; 24] = b"rdma-pipe digest cache 1";

/// Length of the part that all versions of the format have in common.
const MAGIC_COMMON: usize = 22;

const HEAD_BYTES: usize = 4096;
const HEAD_USED_BYTES: usize = MAGIC.len() + 32 + 16;

/// Number of buckets. Full buckets take 512 MiB and have 11 million records.
const BUCKETS: u64 = 1 << 17;

const BUCKET_BYTES: usize = 4096;
const SLOT_BYTES: usize = 48;
const SLOTS: usize = BUCKET_BYTES / SLOT_BYTES;

/// Number of inode numbers whose files share a bucket.
const INODES_PER_BUCKET: u64 = 64;

/// Number of buckets in memory.
const KEPT_BUCKETS: usize = 64;

/// A file that had changed less than this long before it was read is not recorded.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The same where times are another host's, whose clock may differ from this one's, also by a time zone.
const SETTLED_AFTER_REMOTE: Duration = Duration::from_secs(24 * 60 * 60);

/// The file systems of which that is true, among [`TIMEKEEPERS`]: NFS, Ceph and Lustre.
const REMOTE: [u32; 3] = [0x6969, 0x00c3_6400, 0x0bd0_0bd0];

/// File systems that give an inode another time with each change, by the numbers of statfs(2): ext2 to ext4, XFS,
/// Btrfs, F2FS, ZFS, bcachefs, tmpfs, overlays of these, NFS, Ceph and Lustre. A read-only image (squashfs, iso9660)
/// may have the times, numbers and device of another image. For FUSE it is not known.
const TIMEKEEPERS: [u32; 11] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x0102_1994,
    0x794c_7630,
    0x6969,
    0x00c3_6400,
    0x0bd0_0bd0,
];

/// Why an entry of the copy is not made where the cache is.
pub(super) const IS_CACHE: &str = "is the cache of digests that this copy uses; exclude it, or use another FILE";

/// Maximum number of attempts to open the cache while another process may be making it.
const TRIES_MAX: u64 = 40;

/// The digest of a file's contents, as answers have it. For a large file, the digest of the digests of its blocks.
pub(super) type Digest = [u8; 16];

/// Why a file cannot be used as the cache.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("is not used: {}", printable(&.0.to_string()))]
    System(#[from] io::Error),
    #[error("is not used: it must be a regular file that you own, with one link, writable only by you")]
    Unsafe,
    #[error("is not used: it is not a digest cache; name another file")]
    Foreign,
    #[error("is not used: another copy is rebuilding it")]
    Busy,
}

impl From<Errno> for Unusable {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The digest that is kept for a large file: the digest of the digests of its blocks. Both ends know these once they
/// have compared them.
#[derive(Debug, Default)]
pub(super) struct OfBlocks {
    /// In a box, because a hasher is large and few files need one.
    hasher: Option<Box<Hasher>>,
    block_bytes: u64,
    blocks: u64,
    is_void: bool,
}

impl OfBlocks {
    /// Adds the digests of the next blocks.
    pub fn add(&mut self, block_bytes: u64, digests: &[answer::Digest]) {
        self.is_void |= self.blocks > 0 && self.block_bytes != block_bytes;
        (self.block_bytes, self.blocks) = (block_bytes, self.blocks + digests.len() as u64);
        for digest in digests {
            match digest {
                Some(digest) => _ = self.hasher.get_or_insert_default().update(digest),
                None => self.is_void = true,
            }
        }
    }

    /// Returns the digest of a file of `size` bytes, if these were all of its blocks and had the usual length.
    pub fn finish(&self, size: u64) -> Option<Digest> {
        let is_usual = self.block_bytes == block_bytes(size, BLOCK_BYTES_MIN);
        let is_all = !self.is_void && is_usual && self.blocks == size.div_ceil(self.block_bytes);
        self.hasher.as_ref().filter(|_| is_all).map(|hasher| hash16(&hasher.finalize()))
    }
}

/// An open cache.
#[derive(Debug)]
pub(super) struct DigestCache {
    file: File,
    identity: Identity,
    /// The only name of the file, in its directory.
    name: Vec<u8>,
    key: [u8; 32],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Buckets, each at the index that its number gives.
    buckets: Vec<Option<(u64, Box<[u8; BUCKET_BYTES]>)>>,
    /// Identities of file systems by device number, because the device number may change with the next boot, and how
    /// long after a change their files are recorded. `None` if the times of the file system tell nothing.
    systems: Vec<(u64, Option<(u64, Duration)>)>,
}

/// What identifies a file.
struct Known {
    inode: u64,
    bucket: u64,
    fingerprint: [u8; 16],
    settled_after: Duration,
}

/// Returns where the cache is unless a file is named: in the user's directory for caches.
pub(super) fn default_path() -> Option<PathBuf> {
    let told = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = told.or_else(|| Some(PathBuf::from(own_home()?).join(".cache")));
    caches.filter(|path| path.is_absolute()).map(|caches| caches.join("rdma-pipe/digests"))
}

impl DigestCache {
    /// Returns the cache that the options ask for, or why there is none, as a fact about its path.
    pub fn asked(options: &TreeOptions) -> (Option<Arc<Self>>, Option<IoFact>) {
        let Some(path) = options.digest_cache.as_ref().filter(|_| options.checksum) else { return (None, None) };
        match Self::open(Path::new(OsStr::from_bytes(path))) {
            Ok(cache) => (Some(Arc::new(cache)), None),
            Err((path, unusable)) => (None, Some(plain_fact(path.as_os_str(), &unusable.to_string()))),
        }
    }

    /// Opens the cache, and makes it if it is missing. An empty `path` means the usual place.
    ///
    /// # Errors
    ///
    /// Fails with the path of the cache and the reason why it is not used. The file is then left as it is.
    pub fn open(path: &Path) -> Result<Self, (PathBuf, Unusable)> {
        let (is_default, _access) = (path.as_os_str().is_empty(), OwnerAccess::grant());
        let none = || (PathBuf::from("~/.cache/rdma-pipe/digests"), Errno::NOENT.into());
        let path = if is_default { default_path().ok_or_else(none)? } else { path.to_owned() };
        let mut unmade = None;
        if let (true, Some(above)) = (is_default, path.parent()) {
            // Agents are kept there too, and do not run from a directory that others may enter.
            unmade = DirBuilder::new().recursive(true).mode(0o700).create(above).err();
        }
        let mut tries = 0;
        loop {
            match Self::open_at(&path) {
                // Two processes that find the cache missing block each other.
                Err(Unusable::Busy) if tries < TRIES_MAX => {
                    tries += 1;
                    let jitter = u64::from(std::process::id()) * tries % 16;
                    std::thread::sleep(Duration::from_millis(5 + jitter));
                }
                // If its directory could not be made, that is why the cache is missing.
                opened => return opened.map_err(|unusable| (path, unmade.map_or(unusable, Unusable::from))),
            }
        }
    }

    fn open_at(path: &Path) -> Result<Self, Unusable> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(here(), path, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = fstat(&file)?;
        let may_others_write = stat.st_mode & (Mode::WGRP | Mode::WOTH).bits() != 0;
        if !is_regular(&stat) || may_others_write || stat.st_uid != geteuid().as_raw() || stat.st_nlink != 1 {
            return Err(Unusable::Unsafe);
        }
        let file = File::from(file);
        let lock = |operation| match flock(&file, operation) {
            Err(Errno::WOULDBLOCK) => Err(Unusable::Busy),
            locked => Ok(locked?),
        };
        lock(FlockOperation::NonBlockingLockShared)?;
        let mut key = read_head(&file)?;
        if key.is_none() {
            lock(FlockOperation::NonBlockingLockExclusive)?;
            // Another process may have made the cache meanwhile.
            key = read_head(&file)?;
            if key.is_none() {
                key = Some(make(&file)?);
            }
            lock(FlockOperation::NonBlockingLockShared)?;
        }
        let buckets = std::iter::repeat_with(|| None).take(KEPT_BUCKETS).collect();
        let state = Mutex::new(State { buckets, ..State::default() });
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        Ok(Self { file, identity: identity(&stat), name, key: key.ok_or(Unusable::Busy)?, state })
    }

    /// Whether an entry is the cache itself. Only an entry that has its name is looked at, by `stat`.
    pub fn is_at(&self, name: &[u8], stat: impl FnOnce() -> Result<Stat, Errno>) -> bool {
        name == self.name && stat().is_ok_and(|stat| identity(&stat) == self.identity)
    }

    /// Returns the digest of a file with this metadata. `at` is the file or its directory. If it is on another file
    /// system, it says nothing about that of the file, for which there is then no digest unless the file system is
    /// known already.
    pub fn get(&self, at: impl AsFd, stat: &Stat) -> Option<Digest> {
        let mut state = crate::locked(&self.state);
        let known = self.known(&mut state, at, stat)?;
        let bucket = self.bucket(&mut state, known.bucket)?;
        let mut slots = bucket.chunks_exact(SLOT_BYTES);
        let slot = slots.find(|slot| slot[..8] == known.inode.to_le_bytes() && slot[8..24] == known.fingerprint)?;
        (self.checksum(&slot[..40]) == slot[40..]).then(|| slot[24..40].try_into().expect("16 bytes"))
    }

    /// Records the digest of a file that was read from the time `began` on. The file had this metadata then and still
    /// has it. Failures to write the cache are ignored.
    pub fn put(&self, began: SystemTime, at: impl AsFd, stat: &Stat, digest: Digest) {
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = u64::try_from(stat.st_ctime).map(|seconds| Duration::new(seconds, stat.st_ctime_nsec as u32));
        let mut state = crate::locked(&self.state);
        let Some(known) = self.known(&mut state, at, stat) else { return };
        if !changed.is_ok_and(|changed| began.checked_sub(changed).is_some_and(|ago| ago >= known.settled_after)) {
            return;
        }
        let Some(bucket) = self.bucket(&mut state, known.bucket) else { return };
        let inodes = bucket.chunks_exact(SLOT_BYTES).map(|slot| &slot[..8]);
        let own = inodes.clone().position(|inode| inode == known.inode.to_le_bytes());
        let free = || inodes.clone().position(|inode| inode == [0; 8]);
        let other = || usize::from(known.fingerprint[0]) % SLOTS;
        let start = own.or_else(free).unwrap_or_else(other) * SLOT_BYTES;
        let slot = &mut bucket[start..start + SLOT_BYTES];
        slot[..8].copy_from_slice(&known.inode.to_le_bytes());
        slot[8..24].copy_from_slice(&known.fingerprint);
        slot[24..40].copy_from_slice(&digest);
        let checksum = self.checksum(&slot[..40]);
        slot[40..].copy_from_slice(&checksum);
        let at = HEAD_BYTES as u64 + known.bucket * BUCKET_BYTES as u64 + start as u64;
        let _ = self.file.write_all_at(slot, at);
    }

    fn checksum(&self, bytes: &[u8]) -> [u8; 8] {
        blake3::keyed_hash(&self.key, bytes).as_bytes()[..8].try_into().expect("of 32")
    }

    fn known(&self, state: &mut State, at: impl AsFd, stat: &Stat) -> Option<Known> {
        // Inode number 0 marks a free slot.
        if stat.st_ino == 0 {
            return None;
        }
        let (system, settled_after) = match state.systems.iter().find(|(device, _)| *device == stat.st_dev) {
            Some((_, system)) => *system,
            None => {
                // A link that was followed may lead to another file system, and a source that is a file is opened from
                // the working directory.
                if fstat(&at).ok()?.st_dev != stat.st_dev {
                    return None;
                }
                let kind = fstatfs(&at).map_or(0, |system| system.f_type as u32);
                let named = fstatvfs(&at).map_or(0, |system| system.f_fsid);
                let settled_after = if REMOTE.contains(&kind) { SETTLED_AFTER_REMOTE } else { SETTLED_AFTER };
                let known = (if named == 0 { stat.st_dev } else { named }, settled_after);
                let system = TIMEKEEPERS.contains(&kind).then_some(known);
                // A tree spans few file systems.
                state.systems.truncate(KEPT_BUCKETS);
                state.systems.insert(0, (stat.st_dev, system));
                system
            }
        }?;
        let mut hasher = Hasher::new_keyed(&self.key);
        let numbers = [
            system,
            stat.st_ino,
            stat.st_size as u64,
            stat.st_mtime as u64,
            u64::from(stat.st_mtime_nsec as u32),
            stat.st_ctime as u64,
            u64::from(stat.st_ctime_nsec as u32),
        ];
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        let fingerprint = hash16(&hasher.finalize());
        let of_system = blake3::keyed_hash(&self.key, &system.to_le_bytes());
        let offset = u64::from_le_bytes(of_system.as_bytes()[..8].try_into().expect("of 32"));
        let bucket = offset.wrapping_add(stat.st_ino / INODES_PER_BUCKET) % BUCKETS;
        Some(Known { inode: stat.st_ino, bucket, fingerprint, settled_after })
    }

    /// Returns a bucket from memory or from the file. The bucket is empty if the file ends before it.
    fn bucket<'a>(&self, state: &'a mut State, number: u64) -> Option<&'a mut [u8; BUCKET_BYTES]> {
        let place = &mut state.buckets[number as usize % KEPT_BUCKETS];
        if !matches!(place, Some((kept, _)) if *kept == number) {
            let mut bytes = Box::new([0; BUCKET_BYTES]);
            let at = HEAD_BYTES as u64 + number * BUCKET_BYTES as u64;
            read_up_to(&self.file, &mut *bytes, at).ok()?;
            *place = Some((number, bytes));
        }
        place.as_mut().map(|(_, bytes)| &mut **bytes)
    }
}

/// Returns the key of an intact cache. `None` if the cache is to be made anew: it is empty, damaged, or of another
/// format.
fn read_head(file: &File) -> Result<Option<[u8; 32]>, Unusable> {
    let mut head = [0; HEAD_USED_BYTES];
    if read_up_to(file, &mut head, 0)? == 0 {
        return Ok(None);
    }
    if !head.starts_with(&MAGIC[..MAGIC_COMMON]) {
        return Err(Unusable::Foreign);
    }
    let (said, checksum) = head.split_at(HEAD_USED_BYTES - 16);
    let is_whole = head.starts_with(MAGIC) && hash16(&blake3::hash(said)) == *checksum;
    Ok(is_whole.then(|| said[MAGIC.len()..].try_into().expect("32 bytes")))
}

/// Makes the cache anew, without records.
fn make(file: &File) -> Result<[u8; 32], Unusable> {
    let mut head = [0; HEAD_BYTES];
    head[..MAGIC.len()].copy_from_slice(MAGIC);
    getrandom::fill(&mut head[MAGIC.len()..MAGIC.len() + 32]).map_err(io::Error::other)?;
    let said = HEAD_USED_BYTES - 16;
    let checksum = blake3::hash(&head[..said]);
    head[said..HEAD_USED_BYTES].copy_from_slice(&checksum.as_bytes()[..16]);
    file.set_len(0)?;
    file.write_all_at(&head, 0)?;
    file.set_len(HEAD_BYTES as u64 + BUCKETS * BUCKET_BYTES as u64)?;
    Ok(head[MAGIC.len()..said].try_into().expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::tree::sync_tests;
    use crate::tree::walk::INLINE_BYTES_MAX;

    fn stat() -> Stat {
        let mut stat = fstat(File::open("/").expect("it")).expect("it");
        (stat.st_ino, stat.st_size) = (1000, 7);
        (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec) = (5, 6, 1_000_000_000, 8);
        stat
    }

    fn at() -> File {
        File::open("/").expect("it")
    }

    #[test]
    fn a_record_is_of_one_state_of_one_file() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("cache");
        let (cache, file) = (DigestCache::open(&path).expect("made"), stat());
        assert_eq!(cache.get(at(), &file), None);
        cache.put(SystemTime::now(), at(), &file, [7; 16]);
        let again = DigestCache::open(&path).expect("two at once");
        for cache in [&cache, &again] {
            assert_eq!(cache.get(at(), &file), Some([7; 16]));
            for change in [
                |stat: &mut Stat| stat.st_ino += 1,
                |stat: &mut Stat| stat.st_size += 1,
                |stat: &mut Stat| stat.st_mtime += 1,
                |stat: &mut Stat| stat.st_mtime_nsec += 1,
                |stat: &mut Stat| stat.st_ctime += 1,
                |stat: &mut Stat| stat.st_ctime_nsec += 1,
            ] {
                let mut other = file;
                change(&mut other);
                assert_eq!(cache.get(at(), &other), None);
            }
        }
        let shown = fs::metadata(&path).expect("it");
        assert_eq!(shown.mode() & 0o777, 0o600);
        assert!(shown.blocks() <= 32, "{} blocks: it is sparse", shown.blocks());
        // A later state replaces the earlier one.
        let mut later = file;
        later.st_ctime += 1;
        cache.put(SystemTime::now(), at(), &later, [8; 16]);
        assert_eq!((cache.get(at(), &file), cache.get(at(), &later)), (None, Some([8; 16])));
    }

    #[test]
    fn what_may_change_without_a_trace_is_not_recorded() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (cache, file) = (DigestCache::open(&scratch.path().join("cache")).expect("made"), stat());
        let changed = UNIX_EPOCH + Duration::new(file.st_ctime as u64, file.st_ctime_nsec as u32);
        for (settled_after, system) in [(SETTLED_AFTER, None), (SETTLED_AFTER_REMOTE, Some(1))] {
            if let Some(system) = system {
                crate::locked(&cache.state).systems = vec![(file.st_dev, Some((system, settled_after)))];
            }
            for early in [Duration::ZERO, settled_after - Duration::from_nanos(1)] {
                cache.put(changed + early, at(), &file, [7; 16]);
                cache.put(changed - early, at(), &file, [7; 16]);
                assert_eq!(cache.get(at(), &file), None);
            }
            cache.put(changed + settled_after, at(), &file, [7; 16]);
            assert_eq!(cache.get(at(), &file), Some([7; 16]));
        }
    }

    #[test]
    fn what_is_elsewhere_does_not_tell_whether_times_are_kept() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (cache, file) = (DigestCache::open(&scratch.path().join("cache")).expect("made"), stat());
        let elsewhere = File::open("/proc").expect("it");
        let mut of_elsewhere = file;
        of_elsewhere.st_dev = fstat(&elsewhere).expect("it").st_dev;
        assert_ne!(of_elsewhere.st_dev, file.st_dev);
        // A file whose times may not be kept, in a directory where they are.
        cache.put(SystemTime::now(), at(), &of_elsewhere, [7; 16]);
        assert_eq!(cache.get(at(), &of_elsewhere), None);
        // And the reverse.
        assert_eq!(cache.get(&elsewhere, &file), None);
        cache.put(SystemTime::now(), at(), &file, [7; 16]);
        assert_eq!(cache.get(at(), &file), Some([7; 16]), "its own file system is asked");
        assert_eq!(cache.get(&elsewhere, &file), Some([7; 16]), "it is known by now");
    }

    /// Covers every byte of a record, and every length to which the file may be cut.
    #[test]
    fn what_is_damaged_is_ignored() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("cache");
        let file = stat();
        DigestCache::open(&path).expect("made").put(SystemTime::now(), at(), &file, [7; 16]);
        let known =
            |cache: &DigestCache| cache.known(&mut crate::locked(&cache.state), at(), &file).expect("it").bucket;
        let start = HEAD_BYTES as u64 + known(&DigestCache::open(&path).expect("it")) * BUCKET_BYTES as u64;
        let raw = File::options().read(true).write(true).open(&path).expect("ours");
        let get = || DigestCache::open(&path).expect("it").get(at(), &file);
        for offset in 0..SLOT_BYTES as u64 {
            let mut byte = [0];
            raw.read_exact_at(&mut byte, start + offset).expect("read");
            raw.write_all_at(&[byte[0] ^ 1], start + offset).expect("written");
            assert_eq!(get(), None, "byte {offset}");
            raw.write_all_at(&byte, start + offset).expect("written");
            assert_eq!(get(), Some([7; 16]));
        }
        let whole = raw.metadata().expect("it").len();
        for length in [whole - 1, start + SLOT_BYTES as u64, start + 47, start + 1, start] {
            raw.set_len(length).expect("cut");
            assert_eq!(get(), (length >= start + SLOT_BYTES as u64).then_some([7; 16]), "{length} bytes");
        }
        for length in (0..HEAD_USED_BYTES as u64).rev() {
            raw.set_len(length).expect("cut");
            match DigestCache::open(&path) {
                Ok(cache) => {
                    assert_eq!(cache.get(at(), &file), None);
                    cache.put(SystemTime::now(), at(), &file, [9; 16]);
                    assert_eq!(get(), Some([9; 16]), "it is made anew");
                }
                Err((_, unusable)) => {
                    assert!(matches!(unusable, Unusable::Foreign) && length < MAGIC_COMMON as u64, "{unusable:?}");
                    raw.set_len(0).expect("cut");
                }
            }
        }
        for offset in 0..HEAD_USED_BYTES as u64 {
            drop(DigestCache::open(&path).expect("it"));
            raw.write_all_at(&[0xff], offset).expect("written");
            let opened = DigestCache::open(&path);
            let is_foreign = matches!(opened, Err((_, Unusable::Foreign)));
            assert_eq!(is_foreign, offset < MAGIC_COMMON as u64, "byte {offset}");
            if is_foreign {
                raw.set_len(0).expect("cut");
            }
        }
    }

    #[test]
    fn files_of_others_and_other_files_are_left_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("letter"), "dear").expect("a file");
        fs::write(at("open"), "").expect("a file");
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o620)).expect("ours");
        symlink("letter", at("link")).expect("a link");
        fs::write(at("two"), "").expect("a file");
        fs::hard_link(at("two"), at("names")).expect("a link");
        for (name, expected) in [
            ("letter", "is not used: it is not a digest cache; name another file"),
            ("open", "is not used: it must be a regular file that you own, with one link, writable only by you"),
            ("two", "is not used: it must be a regular file that you own, with one link, writable only by you"),
        ] {
            let (path, unusable) = DigestCache::open(&at(name)).expect_err("refused");
            assert_eq!((path, unusable.to_string()), (at(name), expected.to_owned()));
        }
        assert!(DigestCache::open(&at("link")).is_err() && DigestCache::open(scratch.path()).is_err());
        assert_eq!(fs::read(at("letter")).expect("it"), b"dear");
        assert_eq!(fs::metadata(at("open")).expect("it").len(), 0);
    }

    /// The cache is made anew only if no process uses it.
    #[test]
    fn who_uses_it_keeps_it() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("cache");
        let (user, file) = (DigestCache::open(&path).expect("made"), stat());
        user.put(SystemTime::now(), at(), &file, [7; 16]);
        let raw = File::options().write(true).open(&path).expect("ours");
        raw.write_all_at(b"2", MAGIC.len() as u64 - 1).expect("another format");
        assert!(matches!(DigestCache::open(&path), Err((_, Unusable::Busy))));
        assert_eq!(user.get(at(), &file), Some([7; 16]));
        drop(user);
        assert_eq!(DigestCache::open(&path).expect("made anew").get(at(), &file), None);
    }

    #[test]
    fn a_full_bucket_takes_the_place_of_an_old_record() {
        let scratch = tempfile::tempdir().expect("a directory");
        let cache = DigestCache::open(&scratch.path().join("cache")).expect("made");
        // Inode numbers that all fall into one bucket, as with many file systems or after many rounds.
        let inode = |number: u64| {
            let mut stat = stat();
            stat.st_ino = 64 + number % 64 + number / 64 * 64 * BUCKETS;
            stat
        };
        for number in 0..500 {
            cache.put(SystemTime::now(), at(), &inode(number), [number as u8; 16]);
            assert_eq!(cache.get(at(), &inode(number)), Some([number as u8; 16]));
        }
        let kept = (0..500).filter(|&number| cache.get(at(), &inode(number)).is_some()).count();
        assert!((SLOTS / 2..=SLOTS).contains(&kept), "{kept}");
    }

    /// Returns the digest that is kept for data.
    fn digest_of(data: &[u8]) -> Digest {
        let short = |data: &[u8]| hash16(&blake3::hash(data));
        if data.len() <= INLINE_BYTES_MAX {
            return short(data);
        }
        let mut of_blocks = OfBlocks::default();
        let digests: Vec<_> = data.chunks(BLOCK_BYTES_MIN as usize).map(|block| Some(short(block))).collect();
        let (first, rest) = digests.split_at(digests.len() / 2);
        of_blocks.add(BLOCK_BYTES_MIN, first);
        assert_eq!(of_blocks.finish(data.len() as u64), None, "blocks are missing");
        of_blocks.add(BLOCK_BYTES_MIN, rest);
        of_blocks.finish(data.len() as u64).expect("all blocks")
    }

    /// Its contents change while they are read. It belongs to its host, and the copy goes on using it.
    #[test]
    fn it_is_neither_sent_nor_replaced_nor_deleted() {
        for is_local in [true, false] {
            let scratch = sync_tests::scratch();
            let at = |name: &str| scratch.path().join(name);
            ["from", "to"].into_iter().for_each(|name| fs::create_dir(at(name)).expect("a directory"));
            let copy = |cache: &str| {
                let path = at(cache).into_os_string().into_encoded_bytes();
                let digest_cache = Some(path.into());
                let options = TreeOptions { checksum: true, delete: true, digest_cache, ..sync_tests::sync() };
                sync_tests::copy(&at("from"), &at("to"), &options, is_local).1
            };
            fs::write(at("from/file"), "contents").expect("a file");
            fs::write(at("to/cache"), "another").expect("a file");
            fs::write(at("to/stale"), "").expect("a file");
            let report = copy("from/cache");
            assert_eq!(report.figures.failed, 0, "{is_local} {:?}", report.failures);
            assert!(at("from/cache").exists() && at("to/file").exists() && !at("to/stale").exists());
            assert_eq!(fs::read(at("to/cache")).expect("it"), b"another", "{is_local}");
            ["from/cache", "to/cache"].into_iter().for_each(|name| fs::remove_file(at(name)).expect("ours"));
            let report = copy("to/cache");
            assert_eq!(report.figures.failed, 0, "{is_local} {:?}", report.failures);
            let inode = || fs::metadata(at("to/cache")).expect("it is not deleted").ino();
            let before = inode();
            fs::write(at("from/cache"), "another").expect("a file");
            let report = copy("to/cache");
            let refused = report.failures.iter().filter(|fact| fact.detail == IS_CACHE.as_bytes()).count();
            assert_eq!((refused, inode()), (1, before), "{is_local} {:?}", report.failures);
        }
    }

    /// `-c` believes a cache with wrong digests, which shows that nothing is read. `--check` does not even open the
    /// cache.
    #[test]
    fn it_saves_reading_and_nobody_else_trusts_it() {
        let scratch = sync_tests::scratch();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir(at("from")).expect("a directory");
        for (name, bytes) in [("small", 5000), ("large", 300_000)] {
            let mut data = vec![0; bytes];
            sync_tests::Maker(3).fill(&mut data);
            fs::write(at("from").join(name), data).expect("a file");
        }
        let path = at("cache").into_os_string().into_encoded_bytes();
        let options = TreeOptions { checksum: true, digest_cache: Some(path.into()), ..sync_tests::sync() };
        sync_tests::copy(&at("from"), &at("to"), &options, false);
        for name in ["small", "large"] {
            let (path, time) = (at("to").join(name), fs::metadata(at("from").join(name)).expect("it").modified());
            let mut data = fs::read(&path).expect("it");
            data[100] ^= 1;
            fs::write(&path, data).expect("written");
            File::options().append(true).open(&path).expect("it").set_modified(time.expect("a time")).expect("ours");
        }
        std::thread::sleep(SETTLED_AFTER + Duration::from_millis(100));
        let put = |side: &str, name: &str, data: &[u8]| {
            let cache = DigestCache::open(&at("cache")).expect("it");
            let file = File::open(at(side).join(name)).expect("it");
            cache.put(SystemTime::now(), &file, &fstat(&file).expect("it"), digest_of(data));
        };
        let read = |side: &str, name: &str| fs::read(at(side).join(name)).expect("it");
        // The small file at the receiver's end, the large file at both ends.
        put("to", "small", &read("from", "small"));
        put("to", "large", &read("from", "large"));
        put("from", "large", &read("from", "large"));
        let copy =
            |options: &TreeOptions| sync_tests::copy(&at("from"), &at("to"), options, false).0.figures.amount.bytes;
        assert_eq!(copy(&options), 0);
        assert_ne!(read("to", "small"), read("from", "small"), "it was not read");
        let dry = TreeOptions { dry_run: true, ..options.clone() };
        let (_, report) = sync_tests::copy(&at("from"), &at("to"), &dry, false);
        assert_eq!((report.files, report.figures.same), (1, 1), "of a large file the contents are compared then");
        // The small file at the sender's end.
        put("to", "small", b"something else");
        assert_eq!(copy(&TreeOptions { dry_run: true, ..options.clone() }), 0);
        put("from", "small", b"something else");
        assert_eq!(copy(&options), 0);
        // Without the cache both files are sent.
        assert!(copy(&TreeOptions { digest_cache: None, ..options }) > 5000);
        assert_eq!(read("to", "small"), read("from", "small"));
        assert_eq!(read("to", "large"), read("from", "large"));
    }
}
