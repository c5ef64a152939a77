//! `--remove-source-files`: sent entries are listed, and removed once the receiver has confirmed all of them.
//!
//! At the end of a session the receiver says how many entries have failed, not which. So nothing is removed unless none
//! has failed. A later run without failures finds most entries at the destination, and removes them then. Entries that
//! the walk itself failed to send are not listed.
//!
//! An entry is removed relative to the descriptor of its directory, to which no link below SRC leads. Its inode, size
//! and times of change must still be those that were sent. This is checked just before, because no system call does
//! both, and with the file server, because a client of NFS knows changes by others only after up to a minute. The list
//! is a file without a name, so that memory does not grow with the tree.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;

use minicbor::{Decode, Encode};
use rustix::fs::{
    AtFlags, Mode, OFlags, Stat, Statx, StatxFlags, StatxTimestamp, fstat, makedev, openat, statat, statx, unlinkat,
};
use rustix::io::Errno;

use super::place::{Entry, Place};
use super::{Recorder, Walk};
use crate::fs::table::Table;
use crate::fs::{
    Identity, PLACE, append, descend, here, identity, io_fact, is_regular, plain_fact, std_fact, take_next,
    unlinked_anywhere,
};
use crate::options::TreeOptions;
use crate::tree::first::First;

/// Why an entry stays, for messages.
const HAS_CHANGED: &str = "it has changed since it was sent";
const IS_ELSEWHERE: &str = "it is reached through a symbolic link, or its directory was moved";

/// Identity, size and times of an entry when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Was {
    #[n(0)]
    inode: Identity,
    #[n(1)]
    size: i64,
    #[n(2)]
    modified: (i64, i64),
    #[n(3)]
    changed: (i64, i64),
    /// Number of its names.
    #[n(4)]
    names: u32,
}

impl From<&Stat> for Was {
    fn from(stat: &Stat) -> Self {
        Self {
            inode: identity(stat),
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
            names: stat.st_nlink as u32,
        }
    }
}

impl From<&Statx> for Was {
    fn from(stat: &Statx) -> Self {
        let time = |time: &StatxTimestamp| (time.tv_sec, i64::from(time.tv_nsec));
        Self {
            inode: (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino),
            size: stat.stx_size as i64,
            modified: time(&stat.stx_mtime),
            changed: time(&stat.stx_ctime),
            names: stat.stx_nlink,
        }
    }
}

impl Was {
    /// Whether an entry is still the same. `changed` is its time of change, if the removal of another name has changed
    /// that.
    fn is(&self, now: &Self, changed: Option<(i64, i64)>) -> bool {
        let changed = changed.unwrap_or(self.changed);
        (now.inode, now.size, now.modified, now.changed) == (self.inode, self.size, self.modified, changed)
    }
}

/// Path of an entry, and where SRC ends in it.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Whereabouts {
    #[cbor(n(0), with = "minicbor::bytes")]
    path: Vec<u8>,
    /// Offset of what is below SRC, or of the name of SRC if SRC is not a directory.
    #[n(1)]
    below: usize,
}

impl Whereabouts {
    /// Splits a path whose first `root_bytes` bytes are SRC. `None` means that all of it is SRC, which is not a
    /// directory.
    pub fn new(path: OsString, root_bytes: Option<usize>) -> Self {
        let path = path.into_vec();
        let above = || path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let below = root_bytes.unwrap_or_else(above);
        Self { path, below }
    }
}

/// The list while it is written.
#[derive(Debug)]
pub struct Log {
    file: BufWriter<File>,
    failure: Option<io::Error>,
}

impl Log {
    /// Returns a list if the options ask for one.
    ///
    /// # Errors
    ///
    /// Fails if no temporary file can be made.
    pub fn asked(options: &TreeOptions) -> io::Result<Option<Self>> {
        let is_asked = options.remove_source_files && !options.dry_run;
        let made = is_asked.then(|| Ok(Self { file: BufWriter::new(unlinked_anywhere()?), failure: None }));
        made.transpose()
    }

    fn add(&mut self, at: &Whereabouts, seen: &Was) {
        if self.failure.is_none() {
            self.failure = append(&mut self.file, (at, seen)).err();
        }
    }

    fn finish(self) -> Spent {
        let Self { file, failure } = self;
        Spent { file: failure.map_or_else(|| file.into_inner().map_err(io::IntoInnerError::into_error), Err) }
    }
}

/// The finished list.
#[derive(Debug)]
pub struct Spent {
    file: io::Result<File>,
}

/// Result of removing the listed entries.
#[derive(Debug, Default)]
pub struct Removed {
    /// Number of entries removed.
    pub entries: u64,
    /// Number of entries that are still there.
    pub failed: u64,
    /// The first failures, and their reasons.
    pub failures: First,
}

impl Spent {
    /// Removes all entries in the list.
    pub fn remove(&self) -> Removed {
        let mut removed = Removed::default();
        if let Err(error) = self.remove_each(&mut removed) {
            removed.failed += 1;
            removed.failures.keep(std_fact(OsStr::new("the rest of SRC"), &error));
        }
        removed
    }

    fn remove_each(&self, removed: &mut Removed) -> io::Result<()> {
        let mut file = self.file.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        file.rewind()?;
        let mut list = BufReader::new(file);
        let mut remover = Remover::default();
        while let Some((at, seen)) = take_next::<(Whereabouts, Was)>(&mut list)? {
            match remover.remove(&at, &seen) {
                Ok(()) => removed.entries += 1,
                // Another process has removed the entry.
                Err(Kept::Errno(Errno::NOENT)) => {}
                Err(kept) => {
                    removed.failed += 1;
                    let path = OsStr::from_bytes(&at.path);
                    removed.failures.keep(match kept {
                        Kept::Changed => plain_fact(path, HAS_CHANGED),
                        Kept::Errno(Errno::LOOP | Errno::NOTDIR) => plain_fact(path, IS_ELSEWHERE),
                        Kept::Errno(error) => io_fact(path, error),
                        Kept::Table(error) => std_fact(path, &error),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Why an entry stays.
enum Kept {
    Changed,
    Errno(Errno),
    Table(io::Error),
}

impl From<Errno> for Kept {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

impl From<io::Error> for Kept {
    fn from(error: io::Error) -> Self {
        Self::Table(error)
    }
}

/// Removes entries in the order of the list.
#[derive(Default)]
struct Remover {
    /// Directory of the last entry.
    directory: Option<(Vec<u8>, OwnedFd)>,
    /// Times of change of inodes after the removal of one of their names; empty if a time may still change.
    changed: Option<Table>,
}

impl Remover {
    fn remove(&mut self, at: &Whereabouts, seen: &Was) -> Result<(), Kept> {
        let cut = at.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = at.path.split_at(cut);
        let directory = match self.directory.take().filter(|(path, _)| path == above) {
            Some(known) => known,
            None => (above.to_vec(), open(above, at.below.min(cut))?),
        };
        let done = self.remove_from(directory.1.as_fd(), name, seen);
        self.directory = Some(directory);
        done
    }

    fn remove_from(&mut self, directory: impl AsFd, name: &[u8], seen: &Was) -> Result<(), Kept> {
        let known = self.changed.as_ref().filter(|_| seen.names > 1);
        let known = known.map(|changed| changed.get(seen.inode)).transpose()?.flatten();
        let now = match look(&directory, name) {
            // It was deleted at the file server, and another entry may have its name.
            Err(Errno::STALE) => return Err(Kept::Changed),
            now => now?,
        };
        if !seen.is(&now, known.as_deref().map(|known| minicbor::decode(known).unwrap_or(now.changed))) {
            return Err(Kept::Changed);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = (now.names > 1).then(|| openat(&directory, name, flags, Mode::empty())).transpose()?;
        unlinkat(&directory, name, AtFlags::empty())?;
        let Some(place) = place else {
            let changed = self.changed.as_mut().filter(|_| known.is_some());
            return Ok(changed.map_or(Ok(()), |changed| changed.remove(seen.inode))?);
        };
        // A client of NFS renames what is open, and removes it once it is closed, which changes the time again.
        let left = fstat(&place).map(|left| Was::from(&left)).ok().filter(|left| left.names < now.names);
        let time = left.and_then(|left| minicbor::to_vec(left.changed).ok()).unwrap_or_default();
        let changed = match &mut self.changed {
            Some(changed) => changed,
            none => none.insert(Table::new()?),
        };
        Ok(changed.set(seen.inode, &time)?)
    }
}

/// Asks the file system, or its server, what an entry is now.
fn look(directory: impl AsFd, name: &[u8]) -> Result<Was, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    match statx(&directory, name, flags, StatxFlags::BASIC_STATS) {
        // Kernels before 4.11 lack statx(2), and rules of containers that are older than the call refuse it.
        Err(Errno::NOSYS | Errno::PERM) => {}
        now => return Ok(Was::from(&now?)),
    }
    let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !is_regular(&stat) {
        return Ok(Was::from(&stat));
    }
    // A client of NFS also asks the server when a file is opened.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    Ok(Was::from(&fstat(file)?))
}

/// Opens the directory of an entry. Links are followed in the path given as SRC, and nowhere below.
fn open(path: &[u8], below: usize) -> Result<OwnedFd, Errno> {
    let (root, names) = path.split_at(below);
    let root = if root.is_empty() { b"." } else { root };
    let root = openat(here(), root, PLACE.difference(OFlags::NOFOLLOW), Mode::empty())?;
    descend(root, names, PLACE)
}

impl Walk {
    /// Returns the list of sent entries to remove, if that was asked for.
    pub fn take_spent(&mut self) -> Option<Spent> {
        self.recorder.spent.take().map(Log::finish)
    }
}

impl Recorder {
    /// Records that an entry, or a further name of one, has been sent. `item` is the number of its large file, if it is
    /// one.
    pub(super) fn spend(&mut self, at: impl FnOnce() -> Whereabouts, seen: Was, item: u32) {
        let Some(log) = &mut self.spent else { return };
        match self.open.get_mut(&item) {
            // Removed only if the file is sent whole.
            Some(open) => open.spent.push((at(), seen)),
            None => log.add(&at(), &seen),
        }
    }

    pub(super) fn spend_all(&mut self, spent: Vec<(Whereabouts, Was)>) {
        if let Some(log) = &mut self.spent {
            spent.iter().for_each(|(at, seen)| log.add(at, seen));
        }
    }
}

impl Place {
    /// Returns where an entry of the last level is.
    pub(super) fn whereabouts(&self, entry: &Entry<'_>) -> Whereabouts {
        let root = (self.levels.len() > 1).then(|| self.root_bytes(self.root_of(entry)));
        Whereabouts::new(self.source_path(entry), root)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, SystemTime};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::super::{Come, Finished, INLINE_BYTES_MAX, WalkState};
    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::tree::root::Root;

    const CHUNK_BYTES: usize = 8 * INLINE_BYTES_MAX;

    /// Walks over all of a tree. Only large files whose names end in `.ok` count as intact.
    fn walked(top: &Path) -> Spent {
        let options = TreeOptions { remove_source_files: true, ..TreeOptions::default() };
        let mut walk = Walk::new(vec![Root::new(top, "t")], CHUNK_BYTES, options).expect("a tree");
        let (mut target, mut finished) = (vec![0; CHUNK_BYTES], Vec::new());
        loop {
            let come = Come { finished, room: 1, ..Come::default() };
            let filled = walk.fill(&mut target, CHUNK_BYTES, come, &AtomicBool::new(false));
            let outcome = |path: &OsString| match path.as_bytes().ends_with(b".ok") {
                true => Ok(()),
                false => Err(plain_fact(path, "changed")),
            };
            let opened = filled.opened.into_iter();
            finished = opened.map(|it| Finished { item: it.item, data_bytes: 0, outcome: outcome(&it.path) }).collect();
            if filled.state == WalkState::Ended {
                return walk.take_spent().expect("asked for");
            }
        }
    }

    fn left(top: &Path) -> Vec<String> {
        let (mut all, mut todo) = (Vec::new(), vec![top.to_owned()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(&directory).expect("it") {
                let path = entry.expect("it").path();
                all.push(path.strip_prefix(top).expect("below").to_str().expect("UTF-8").to_owned());
                if path.symlink_metadata().expect("it").is_dir() {
                    todo.push(path);
                }
            }
        }
        all.sort();
        all
    }

    #[test]
    fn what_is_still_what_was_sent_is_removed_and_directories_stay() {
        remove_some(&|spent| spent.remove());
    }

    /// Runs `run` in a thread in which statx(2) gives this error.
    fn without_statx<T: Send>(error: i32, run: impl FnOnce() -> T + Send) -> T {
        // If its first call of all failed, rustix would take it for missing in all threads.
        let _ = statx(CWD, c"/", AtFlags::empty(), StatxFlags::BASIC_STATS);
        where_calls_fail(&[libc::SYS_statx], error, run)
    }

    #[test]
    fn what_is_still_what_was_sent_is_known_without_statx() {
        for error in [libc::ENOSYS, libc::EPERM] {
            remove_some(&|spent| without_statx(error, || spent.remove()));
        }
    }

    /// The answer of stat(2) may be up to a minute old on NFS, so the file server is asked.
    #[test]
    fn what_the_file_server_does_not_answer_for_stays() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("f"), "1").expect("a file");
        let spent = walked(scratch.path());
        let removed = without_statx(libc::EIO, || spent.remove());
        assert_eq!((removed.entries, removed.failed), (0, 1));
        let removed = without_statx(libc::ESTALE, || spent.remove());
        assert_eq!((removed.failed, &*removed.failures[0].detail), (1, HAS_CHANGED.as_bytes()));
        assert!(scratch.path().join("f").exists());
        assert_eq!(spent.remove().entries, 1);
    }

    /// A client of NFS renames a file that is open instead of removing it, and removes it when it is closed.
    #[test]
    fn a_name_that_goes_late_does_not_keep_the_others() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = |name| scratch.path().join(name);
        fs::write(path("first"), "1").expect("a file");
        fs::hard_link(path("first"), path("second")).expect("a link");
        let directory = openat(CWD, scratch.path(), PLACE, Mode::empty()).expect("it");
        let seen = look(&directory, b"first").expect("it");
        let mut remover = Remover { changed: Table::new().ok(), ..Remover::default() };
        let mut remove = |name: &[u8]| remover.remove_from(&directory, name, &seen).is_ok();
        assert!(where_calls_fail(&[libc::SYS_unlinkat], 0, || remove(b"first")));
        // A change within one tick of the kernel's clock would not be noticed.
        std::thread::sleep(Duration::from_millis(20));
        fs::remove_file(path("first")).expect("still there");
        assert!(remove(b"second") && !path("second").exists());
    }

    fn remove_some(remove: &dyn Fn(&Spent) -> Removed) {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = &scratch.path().join("top");
        for directory in ["d/e", "moved", "renamed"] {
            fs::create_dir_all(top.join(directory)).expect("directories");
        }
        let files = ["same", "d/e/same", "grown", "touched", "its rights", "replaced", "gone", "moved/f", "renamed/f"];
        files.iter().for_each(|name| fs::write(top.join(name), name).expect("a file"));
        for name in ["large.ok", "large"] {
            fs::write(top.join(name), vec![7; INLINE_BYTES_MAX + 1]).expect("a file");
            fs::hard_link(top.join(name), top.join(format!("z{name}"))).expect("a link");
        }
        for name in ["first", "written"] {
            fs::write(top.join(name), name).expect("a file");
            ["d/a", "z"].iter().for_each(|to| {
                fs::hard_link(top.join(name), top.join(format!("{to} {name}"))).expect("a link");
            });
        }
        symlink("same", top.join("link")).expect("a link");
        mknodat(CWD, top.join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        fs::write(top.join("other"), "replaced").expect("a file");

        // A change within one tick of the kernel's clock would not be noticed.
        std::thread::sleep(Duration::from_millis(20));
        let spent = walked(top);
        assert_eq!(left(top).len(), 26, "nothing is removed by the walk");
        fs::write(top.join("grown"), "longer than it was").expect("a file");
        fs::File::open(top.join("touched")).and_then(|file| file.set_modified(SystemTime::now())).expect("ours");
        fs::set_permissions(top.join("its rights"), fs::Permissions::from_mode(0o600)).expect("ours");
        fs::rename(top.join("other"), top.join("replaced")).expect("ours");
        fs::remove_file(top.join("gone")).expect("ours");
        fs::write(top.join("written"), "WRITTEN").expect("a file");
        // The file at the path is the one that was sent, but the path leads through a link.
        fs::rename(top.join("moved"), scratch.path().join("away")).expect("ours");
        symlink("../away", top.join("moved")).expect("a link");
        fs::rename(top.join("renamed"), scratch.path().join("renamed")).expect("ours");

        let removed = remove(&spent);
        let stays = ["d", "d/a written", "d/e", "grown", "its rights", "large", "moved", "replaced", "touched"];
        assert_eq!(left(top), [&stays[..], &["written", "z written", "zlarge"]].concat());
        let names: Vec<String> = removed.failures.iter().map(|fact| fact.path.escape_ascii().to_string()).collect();
        assert_eq!(removed.failed, 8, "{names:?}");
        assert!(scratch.path().join("away/f").exists() && scratch.path().join("renamed/f").exists());
        assert_eq!(removed.entries, 9, "same, same, large twice, first three times, link, fifo");
    }

    #[test]
    fn a_list_that_was_not_written_removes_nothing_more() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("f"), "1").expect("a file");
        let mut spent = walked(scratch.path());
        // Not open for reading.
        spent.file = Ok(fs::File::create(scratch.path().join("list")).expect("a file"));
        let removed = spent.remove();
        assert_eq!((removed.entries, removed.failed), (0, 1));
        spent.file = Err(io::ErrorKind::StorageFull.into());
        assert_eq!(spent.remove().failed, 1);
        assert!(scratch.path().join("f").exists());
    }

    #[test]
    fn a_file_that_is_the_source_itself_is_removed_from_its_directory() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("f"), "1").expect("a file");
        assert_eq!(walked(&scratch.path().join("f")).remove().entries, 1);
        assert_eq!(left(scratch.path()).len(), 0);
    }
}
