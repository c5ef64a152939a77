//! `--find-moves`: finds regular files of the destination tree again, by size and time, if they come under other names.
//! The names are collected in one pass before anything is changed, into a bounded table. Files that do not fit into the
//! table are not found.
//!
//! # Invariants
//!
//! * A file is taken only after its contents are proven. It is linked if its old name is to be deleted and not kept in
//!   a backup, and if it has all the metadata that the new one is to have; a linked file is never changed. Otherwise it
//!   is copied.
//! * No file is left with two names that are two files at the source. If the old name stays, it gets a file of its own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex};

use nix::sys::resource::Resource;
use rd_proto::tree::{DEPTH_MAX, Metadata};
use rustix::fs::{AtFlags, FileType, Mode, Stat, fchmod, fstat, fsync, openat, statat};
use rustix::io::Errno;

use super::Shared;
use super::basis::open_regular;
use super::directory::OpenDirectory;
use super::elsewhere::{Elsewhere, copy_contents, open_below};
use super::shared::restore_directory_times;
use super::target::publish;
use crate::fs::metadata::{Object, open_up};
use crate::fs::source::change;
use crate::fs::{DIRECTORY, PARTIAL, close, is_temporary_name, name_beside, partial, plain_fact, sync_directory};
use crate::limits;
use crate::options::TreeOptions;
use crate::tree::Fault;
use crate::tree::metadata::{Current, Reader, Setter, parts};

/// Approximate maximum of memory for the files and directories of a tree, in bytes.
const INDEX_BYTES_MAX: usize = 64 << 20;

/// Approximate number of bytes that a directory takes besides its name, of which some are the allocator's.
const DIRECTORY_BYTES: usize = size_of::<(u32, Box<[u8]>)>() + 16;

/// Maximum number of files with the same size and time among which the best is chosen.
const CANDIDATES_MAX: usize = 1024;

/// With a window, maximum number of files with an earlier and with a later time among which the name is looked for.
const NAMES_MAX: usize = 1 << 15;

/// Part of the limit on open files that is available for held files: one in this many.
const HELD_PART: usize = 4;

/// States of a file's name: nothing is known of it; the source has it; or its file has got another name.
const FREE: u8 = 0;
const MET: u8 = 1;
const MOVED: u8 = 2;

/// The files of a tree.
pub(super) struct Moves {
    root: Arc<OwnedFd>,
    /// Path of the root with a slash at the end, for reports.
    root_path: Vec<u8>,
    /// Directories, each with the number of its parent; the root comes first.
    directories: Vec<(u32, Box<[u8]>)>,
    /// Sorted by size, time, name and directory.
    files: Vec<File>,
    names: Vec<u8>,
    states: Vec<AtomicU8>,
    /// For each old directory, the hash of the path of the directory into which its files have first been taken.
    claims: Mutex<HashMap<u32, u64>>,
    /// Number of files held open, and its maximum.
    held: AtomicUsize,
    held_max: usize,
    /// Whether some entries did not fit into the table.
    pub is_cut: bool,
}

/// A file that may have been moved.
pub(super) struct Moved {
    pub moves: Arc<Moves>,
    /// Index of the file in the table.
    pub at: usize,
    pub held: Option<Held>,
}

/// A file that is kept open until it is taken.
pub(super) struct Held {
    pub file: OwnedFd,
    moves: Arc<Moves>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.moves.held.fetch_sub(1, Relaxed);
    }
}

struct File {
    size: u64,
    seconds: i64,
    nanoseconds: u32,
    inode: u64,
    directory: u32,
    name: u32,
    name_bytes: u16,
    /// Whether the file has the device number of its tree. If not, it is only copied: it is mounted there, or it is on
    /// an overlayfs on which its inode number may change when it gets another name.
    is_linkable: bool,
}

impl File {
    fn key(&self) -> (u64, i64, u32) {
        (self.size, self.seconds, self.nanoseconds)
    }
}

/// A directory whose files have been found, and its subdirectories still to be entered, the next one last.
struct Level {
    directory: OwnedFd,
    number: u32,
    below: Vec<CString>,
}

impl Moves {
    /// Finds the files below a directory, except files that stay whatever the source has. `room`: about how many bytes
    /// of memory they may take.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be opened again.
    fn of(root: &OpenDirectory, mut room: usize) -> Result<Self, Errno> {
        let shared = &root.shared;
        let top = openat(&root.fd, ".", DIRECTORY, Mode::empty())?;
        let device = fstat(&top)?.st_dev;
        let mut moves = Self {
            root: Arc::new(openat(&root.fd, ".", DIRECTORY, Mode::empty())?),
            root_path: root.path(b""),
            directories: vec![(0, Box::default())],
            files: Vec::new(),
            names: Vec::new(),
            states: Vec::new(),
            claims: Mutex::default(),
            held: AtomicUsize::new(0),
            held_max: limits::soft(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |files| files as usize / HELD_PART),
            is_cut: false,
        };
        // Files in directories that cannot be read are not found.
        let below = moves.scan(shared, &top, 0, device, &mut room);
        let mut levels = vec![Level { directory: top, number: 0, below }];
        while !moves.is_cut
            && let Some(level) = levels.last_mut()
        {
            let Some(name) = level.below.pop() else {
                levels.pop();
                continue;
            };
            let opened = partial::open_directory(&level.directory, &name);
            let is_near = |opened: &OwnedFd| fstat(opened).is_ok_and(|stat| stat.st_dev == device);
            if let Ok(directory) = opened
                && is_near(&directory)
                && levels.len() < DEPTH_MAX
            {
                let above = levels.last().map_or(0, |level| level.number);
                let number = moves.directories.len() as u32;
                moves.directories.push((above, name.into_bytes().into()));
                let below = moves.scan(shared, &directory, number, device, &mut room);
                levels.push(Level { directory, number, below });
            }
        }
        let Self { files, names, states, .. } = &mut moves;
        files.sort_unstable_by(|one, other| {
            let name = |file: &File| &names[file.name as usize..][..usize::from(file.name_bytes)];
            let by_name = || name(one).cmp(name(other)).then(one.directory.cmp(&other.directory));
            one.key().cmp(&other.key()).then_with(by_name)
        });
        states.resize_with(files.len(), AtomicU8::default);
        Ok(moves)
    }

    /// Records the files of a directory. Returns the names of its subdirectories, the first one last. Their memory
    /// counts from now on, because many of them may wait to be entered.
    fn scan(
        &mut self,
        shared: &Shared,
        directory: &OwnedFd,
        number: u32,
        device: u64,
        room: &mut usize,
    ) -> Vec<CString> {
        let mut below = Vec::new();
        let path = self.path(number);
        let _ = partial::for_each(directory, |name| {
            shared.progress.note_work(1);
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_directory = kind == FileType::Directory;
            let stays = || {
                let path = [&path[..], b"/", name.to_bytes()].concat();
                let path = path.strip_prefix(b"/").unwrap_or(&path);
                !shared.patterns.is_empty() && shared.patterns.leave_out(path, is_directory)
            };
            // On overlayfs, a file may have another device number than the directory that it is in.
            let is_mounted = is_directory && stat.st_dev != device;
            if is_temporary_name(name.to_bytes()) || is_mounted || stays() {
                return Ok(());
            }
            let is_file = kind == FileType::RegularFile && stat.st_size > 0;
            if is_directory || is_file {
                let entry_bytes = if is_directory { DIRECTORY_BYTES } else { size_of::<File>() };
                let Some(rest) = room.checked_sub(entry_bytes + 1 + name.count_bytes()) else {
                    self.is_cut = true;
                    return Err(Errno::NOMEM);
                };
                *room = rest;
            }
            if is_directory {
                below.push(name.to_owned());
            } else if is_file {
                self.files.push(File {
                    size: stat.st_size as u64,
                    seconds: stat.st_mtime,
                    nanoseconds: stat.st_mtime_nsec as u32,
                    inode: stat.st_ino,
                    directory: number,
                    name: self.names.len() as u32,
                    name_bytes: name.count_bytes() as u16,
                    is_linkable: stat.st_dev == device,
                });
                self.names.extend(name.to_bytes());
            }
            if shared.is_stopped.load(Acquire) { Err(Errno::CANCELED) } else { Ok(()) }
        });
        below.sort_unstable_by(|one, other| other.cmp(one));
        below
    }

    fn name(&self, file: &File) -> &[u8] {
        &self.names[file.name as usize..][..usize::from(file.name_bytes)]
    }

    /// Path of a directory, relative to the root.
    fn path(&self, mut number: u32) -> Vec<u8> {
        let mut names = Vec::new();
        while number > 0 {
            let (above, name) = &self.directories[number as usize];
            names.push(&name[..]);
            number = *above;
        }
        names.reverse();
        names.join(&b'/')
    }

    fn path_of(&self, file: &File) -> Vec<u8> {
        let directory = self.path(file.directory);
        if directory.is_empty() { self.name(file).to_vec() } else { [&directory, self.name(file)].join(&b'/') }
    }

    /// Returns the range of files with this key and name, and true. If no file has the name, returns all files with the
    /// key, and false.
    fn of_name(&self, key: (u64, i64, u32), name: &[u8]) -> (std::ops::Range<usize>, bool) {
        let start = self.files.partition_point(|file| file.key() < key);
        let end = start + self.files[start..].partition_point(|file| file.key() == key);
        let group = &self.files[start..end];
        let first = start + group.partition_point(|file| self.name(file) < name);
        let last = start + group.partition_point(|file| self.name(file) <= name);
        if first < last { (first..last, true) } else { (start..end, false) }
    }

    /// Returns files that may be the one with this key and name: those with the key or, if there are none, those whose
    /// times differ from it by at most `window` seconds; and of these only those with the name, if there are any.
    fn candidates(&self, key: (u64, i64, u32), name: &[u8], window: i64) -> Vec<usize> {
        let (exact, _) = self.of_name(key, name);
        if !exact.is_empty() || window == 0 {
            return exact.take(CANDIDATES_MAX).collect();
        }
        let (size, seconds, _) = key;
        let (earliest, latest) = (seconds.saturating_sub(window), seconds.saturating_add(window));
        let start = self.files.partition_point(|file| file.key() < (size, earliest, 0));
        let end = self.files.partition_point(|file| file.key() <= (size, latest, u32::MAX));
        // The empty range stands where the key would.
        let nearest = |count: usize| start.max(exact.start.saturating_sub(count))..end.min(exact.start + count);
        let has_name = |at: &usize| self.name(&self.files[*at]) == name;
        let named: Vec<usize> = nearest(NAMES_MAX).filter(has_name).take(CANDIDATES_MAX).collect();
        if named.is_empty() { nearest(CANDIDATES_MAX / 2).collect() } else { named }
    }

    /// Finds the file that most likely is the file to come: of the same size and time, and among several, of the same
    /// name, from the directory from which others came, and, if times are compared with a window, of the nearest time.
    pub fn find(
        self: &Arc<Self>,
        directory: &OpenDirectory,
        name: &[u8],
        described: &Metadata<'_>,
        size: u64,
    ) -> Option<Elsewhere> {
        let modified = described.modified;
        let window = i64::from(directory.shared.options.modify_window);
        let candidates = self.candidates((size, modified.seconds, modified.nanoseconds), name, window);
        let time = |seconds: i64, nanoseconds: u32| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        let wanted = time(modified.seconds, modified.nanoseconds);
        let above = directory.path(b"");
        let mut hasher = DefaultHasher::new();
        above.hash(&mut hasher);
        let own = hasher.finish();
        let own_name = above.strip_suffix(b"/").and_then(|path| path.rsplit(|&byte| byte == b'/').next());
        let mut claims = crate::locked(&self.claims);
        let at = candidates.into_iter().max_by_key(|&at| {
            let File { directory: number, seconds, nanoseconds, .. } = self.files[at];
            let claim = claims.get(&number);
            let is_same_directory = Some(&self.directories[number as usize].1[..]) == own_name;
            let is_free = self.states[at].load(Relaxed) == FREE;
            let off = Reverse(time(seconds, nanoseconds).abs_diff(wanted));
            (claim == Some(&own), is_free, is_same_directory, claim.is_none(), off, Reverse(at))
        })?;
        claims.entry(self.files[at].directory).or_insert(own);
        drop(claims);
        let file = &self.files[at];
        let path = self.path_of(file);
        let (above, last) = open_below(&self.root, &path).ok()?;
        let (opened, stat) = open_regular(above.as_fd(), &last)?;
        let key = (stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec as u32);
        let held = self.hold(opened);
        let moved = Moved { moves: Arc::clone(self), at, held };
        (stat.st_ino == file.inode && key == file.key()).then(|| Elsewhere::moved(&self.root, path, stat, moved))
    }

    /// Keeps a file open until it is taken, because its name may be given to another file before. `None` if too many
    /// are open.
    fn hold(self: &Arc<Self>, file: OwnedFd) -> Option<Held> {
        let held = Held { file, moves: Arc::clone(self) };
        (self.held.fetch_add(1, Relaxed) < self.held_max).then_some(held)
    }

    /// Records that the source has a name of the tree, too. Returns whether its file has meanwhile got another name,
    /// which belongs to another file at the source.
    pub fn meet(&self, name: &[u8], stat: &Stat) -> bool {
        let key = (stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec as u32);
        let (range, is_named) = self.of_name(key, name);
        let at = range.filter(|_| is_named).find(|&at| self.files[at].inode == stat.st_ino);
        at.is_some_and(|at| self.states[at].swap(MET, Relaxed) == MOVED)
    }

    /// Marks a file as moved before it is linked to another name; only one of its names will stay. Returns whether it
    /// may be linked.
    pub fn begin(&self, at: usize) -> bool {
        self.files[at].is_linkable && self.states[at].compare_exchange(FREE, MOVED, Relaxed, Relaxed).is_ok()
    }

    /// Records that the file was not linked after all.
    pub fn give_up(&self, at: usize) {
        let _ = self.states[at].compare_exchange(MOVED, FREE, Relaxed, Relaxed);
    }

    /// Gives a file of its own to each old name that has stayed, although it was to be deleted.
    pub fn separate(&self, shared: &Shared) {
        // A dry run has linked nothing.
        if shared.options.dry_run {
            return;
        }
        let is_gone = |fault: &Fault| matches!(fault.errno(), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP));
        for (at, file) in self.files.iter().enumerate() {
            if self.states[at].load(Relaxed) == MOVED
                && let Err(fault) = self.separate_one(shared, file)
                && !is_gone(&fault)
            {
                shared.report(&[&self.root_path[..], &self.path_of(file)].concat(), fault);
            }
        }
    }

    fn separate_one(&self, shared: &Shared, file: &File) -> Result<(), Fault> {
        let (place, name) = open_below(&self.root, &self.path_of(file))?;
        let is_it = |stat: &Stat| stat.st_ino == file.inode && stat.st_nlink > 1;
        match statat(&place, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            // The directory has its final mode, which may deny access to its owner.
            Err(Errno::ACCESS) => {}
            Ok(stat) if is_it(&stat) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let before = fstat(&place)?;
        let (directory, was_shut) = match openat(&place, ".", DIRECTORY, Mode::empty()) {
            Err(Errno::ACCESS) => (partial::open_own_closed(&place)?.0, true),
            opened => (opened?, false),
        };
        let was_closed = open_up(&directory, &before) == Ok(true) || was_shut;
        let separate = || -> Result<bool, Fault> {
            let opened = open_regular(directory.as_fd(), &name).filter(|(_, stat)| is_it(stat));
            let Some((old, stat)) = opened else { return Ok(false) };
            let beside = name_beside(&name, PARTIAL);
            let (copy, _) = partial::open(&directory, &beside, false).map_err(|blocked| blocked.error)?;
            duplicate(shared, &old, &stat, &copy)
                .and_then(|()| match partial::is_named(&directory, &*name, &old) {
                    true => publish(&directory, &*beside, &copy, &*name),
                    false => Err(Errno::NOENT.into()),
                })
                .inspect_err(|_| partial::remove_named(&directory, &*beside, &copy))?;
            Ok(true)
        };
        let separated = separate();
        let mode = Mode::from_raw_mode(before.st_mode & 0o7777);
        let restored = if was_closed { fchmod(&directory, mode) } else { Ok(()) };
        let has_changed = separated?;
        restored?;
        if has_changed {
            restore_directory_times(&directory, &before)?;
            if shared.options.syncs() {
                sync_directory(&directory)?;
            }
        }
        Ok(())
    }
}

/// Makes `copy`, a new file, the same as a file that is open for reading and described by `stat`.
///
/// # Errors
///
/// Fails if the old file changes meanwhile, or if metadata that this user may set cannot be set.
fn duplicate(shared: &Shared, old: &OwnedFd, stat: &Stat, copy: &OwnedFd) -> Result<(), Fault> {
    copy_contents(shared, old, copy, stat.st_size as u64)?;
    // The copy keeps all that the file at the old name has. The options of this run are for copies of the source.
    let options = TreeOptions::default();
    let mut reader = Reader::default();
    let metadata = reader.read(&options, Object::Open(old.as_fd()), stat)?;
    let current = Current::new(&fstat(copy)?, true, false);
    let (setter, mode) = (Setter::new(true), Some(metadata.mode));
    let applied = setter.apply(&options, Object::Open(copy.as_fd()), &metadata, mode, current);
    shared.note_unsupported(applied);
    // What this run would not set either is no reason to fail.
    let run = &shared.options;
    let asked = [
        (parts::OWNER, run.owner),
        (parts::ACL, run.acls()),
        (parts::ATTRIBUTES, run.xattrs),
        (parts::MODE, run.mode),
        (parts::TIMES, run.times),
    ];
    let asked = asked.into_iter().filter(|(_, is_asked)| *is_asked).fold(0, |all, (part, _)| all | part);
    if let Some(unset) = applied.unset.filter(|unset| unset.parts & asked != 0) {
        return Err(unset.error.into());
    }
    close::settle(copy)?;
    if shared.options.syncs() {
        fsync(copy)?;
    }
    change(stat, &fstat(old)?).map_or(Ok(()), |change| Err(Fault::Detail(change)))
}

impl OpenDirectory {
    /// Finds the files of the tree below this directory, which is to be written to.
    pub(super) fn find_files(&self) -> Result<Arc<Moves>, Errno> {
        let moves = Arc::new(Moves::of(self, INDEX_BYTES_MAX)?);
        if moves.is_cut {
            self.shared.remark(plain_fact(OsStr::from_bytes(&self.path(b"")), IS_CUT));
        }
        crate::locked(&self.shared.moves).push(Arc::clone(&moves));
        Ok(moves)
    }
}

impl Shared {
    /// Gives a file of its own to each old name of a moved file that has stayed.
    pub(super) fn separate_moved(&self) {
        let all = std::mem::take(&mut *crate::locked(&self.moves));
        all.iter().for_each(|moves| moves.separate(self));
    }
}

/// Why some moved files may not be found.
const IS_CUT: &str = "has too many files and directories for --find-moves; some moves may not be found";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    use super::super::TreeSink;
    use super::*;
    use crate::fs::close::tests::where_calls_fail;
    use crate::not_run::not_run;

    fn sink(top: &Path) -> TreeSink {
        let options = TreeOptions { sync: true, times: false, ..TreeOptions::default() };
        TreeSink::new(top, options, Box::new(|_| {})).expect("a sink")
    }

    fn found(sink: &TreeSink, room: usize) -> Moves {
        Moves::of(sink.levels[0].as_ref().expect("the top"), room).expect("it can be read")
    }

    #[test]
    fn directories_count_for_the_memory_before_they_are_entered_and_when_they_are() {
        const COUNT: usize = 40;
        let scratch = tempfile::tempdir().expect("a directory");
        let [wide, deep] = ["wide", "deep"].map(|name| scratch.path().join(name));
        fs::create_dir_all(deep.join(["x"; COUNT].join("/"))).expect("directories");
        for number in 0..COUNT {
            fs::create_dir_all(wide.join(format!("{number:02}"))).expect("directories");
        }
        for (top, name_bytes, found_max) in [(wide, 2, 1), (deep, 1, COUNT)] {
            let sink = sink(&top);
            let room = COUNT * (DIRECTORY_BYTES + 1 + name_bytes);
            let all = found(&sink, room);
            assert_eq!((all.directories.len(), all.is_cut), (1 + COUNT, false), "{}", top.display());
            let some = found(&sink, room - 1);
            assert_eq!((some.directories.len(), some.is_cut), (found_max, true), "{}", top.display());
        }
    }

    /// Its times cannot be set, but entries can be made in it.
    #[test]
    fn an_old_name_in_a_directory_of_another_user_gets_a_file_of_its_own() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [old, new] = ["old", "new"].map(|name| scratch.path().join(name));
        fs::write(&old, "contents").expect("a file");
        fs::hard_link(&old, &new).expect("a link");
        let sink = sink(scratch.path());
        let moves = found(&sink, INDEX_BYTES_MAX);
        let file = moves.files.iter().find(|file| moves.name(file) == b"old").expect("found");
        let separate = || moves.separate_one(&sink.shared, file);
        assert_eq!(where_calls_fail(&[libc::SYS_utimensat], libc::EPERM, separate), Ok(()));
        let inode = |path| fs::metadata(path).expect("there").ino();
        assert_ne!(inode(&old), inode(&new));
        assert_eq!(fs::read(&old).expect("there"), b"contents");
    }

    /// An overlayfs gives its directories a device number of its own, and a file perhaps that of its layer.
    #[test]
    fn a_file_with_another_device_number_is_found_but_not_linked() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("file"), "contents").expect("a file");
        fs::create_dir(scratch.path().join("mounted")).expect("a directory");
        let sink = sink(scratch.path());
        let mut moves = found(&sink, INDEX_BYTES_MAX);
        assert!(moves.begin(0));
        moves.give_up(0);
        moves.files.clear();
        let (top, mut room) = (Arc::clone(&moves.root), INDEX_BYTES_MAX);
        let other = fstat(&top).expect("open").st_dev + 1;
        assert!(moves.scan(&sink.shared, &top, 0, other, &mut room).is_empty(), "nothing is entered");
        assert_eq!(moves.files.iter().map(|file| moves.name(file)).collect::<Vec<_>>(), [b"file"]);
        assert!(!moves.begin(0));
    }

    /// Root needs no permission bits.
    #[test]
    fn a_closed_directory_is_opened_up_to_separate_names() {
        if rustix::process::geteuid().is_root() {
            let output = Command::new(std::env::current_exe().expect("a name"))
                .args(["--exact", "tree::sink::moves::tests::a_closed_directory_is_opened_up_to_separate_names"])
                .env_remove("RD_NOT_RUN")
                .current_dir("/")
                .uid(65534)
                .gid(65534)
                .output();
            return match output {
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stdout);
                    assert!(output.status.success() && text.contains("1 passed"), "{text}");
                }
                Err(error) if error.kind() == ErrorKind::PermissionDenied => not_run(error),
                Err(error) => panic!("{error}"),
            };
        }
        for mode in [0o555, 0o311, 0] {
            let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let [above, new] = ["above", "new"].map(|name| scratch.path().join(name));
            let old = above.join("old");
            fs::create_dir(&above).expect("a directory");
            fs::write(&old, "contents").expect("a file");
            fs::hard_link(&old, &new).expect("a link");
            let sink = sink(scratch.path());
            let moves = found(&sink, INDEX_BYTES_MAX);
            let at = moves.files.iter().position(|file| moves.name(file) == b"old").expect("found");
            assert!(moves.begin(at));
            let set_mode = |mode| fs::set_permissions(&above, fs::Permissions::from_mode(mode)).expect("ours");
            set_mode(mode);
            moves.separate(&sink.shared);
            assert_eq!(crate::locked(&sink.shared.failures).count, 0, "{mode:o}");
            assert_eq!(fs::metadata(&above).expect("there").mode() & 0o7777, mode);
            set_mode(0o755);
            let inode = |path| fs::metadata(path).expect("there").ino();
            assert_ne!(inode(&old), inode(&new), "{mode:o}");
        }
    }
}
