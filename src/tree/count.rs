//! Counts what a copy will come to, beside the copy, for somebody who watches it.
//!
//! It takes a fiftieth of one processor, at the lowest priority, and opens nothing but directories and files that may have
//! holes. It need not be exact: what cannot be read is left out, and what
//! changes meanwhile too. The copy's own walk corrects it in the end.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, openat, statat};
use rustix::time::{ClockId, clock_gettime};

use super::progress::{Amount, Progress};
use super::walk::{Options, Root, is_sparse};
use crate::fs::{Identity, identity, is_temporary_name};

/// Directories within each other; what lies deeper is not counted.
const DEPTH_MAX: usize = 512;

/// Files with several names that are remembered, so that each counts once.
const LINKED_MAX: usize = 1 << 18;

/// Entries between two reports of what was met, and between two pauses.
const REPORT_EVERY: u64 = 256;

/// It pauses for so many times as long as it has worked: on tmpfs it meets some 25,000 entries a second.
const PAUSE_TIMES: u32 = 49;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Directory entries are asked for in blocks of so many bytes.
const LISTING_BYTES: usize = 32 << 10;

/// The stack of a thread that counts, in bytes.
pub const STACK_BYTES: usize = 1 << 20;

/// Counts what lies below `roots`, until `is_over`.
pub fn count(roots: &[Root], options: &Options, progress: &Progress, is_over: &dyn Fn() -> bool) {
    // Of this thread alone, as Linux has it.
    let _ = rustix::process::setpriority_process(None, 19);
    let mut counting = Counting {
        options,
        progress,
        is_over,
        met: Amount::default(),
        linked: HashSet::new(),
        path: PathBuf::new(),
        listing: Vec::with_capacity(LISTING_BYTES),
        worked: worked(),
    };
    let is_whole = roots.iter().all(|root| counting.root(root));
    progress.counted(counting.met);
    if is_whole {
        progress.counted_all();
    }
}

struct Counting<'a> {
    options: &'a Options,
    progress: &'a Progress,
    is_over: &'a dyn Fn() -> bool,
    /// Not reported yet.
    met: Amount,
    linked: HashSet<Identity>,
    /// Of the entry at hand, as filters take it.
    path: PathBuf,
    listing: Vec<u8>,
    /// Until the last pause.
    worked: Duration,
}

/// Processor time that this thread has taken.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Counting<'_> {
    /// False once it is over.
    fn root(&mut self, root: &Root) -> bool {
        let Ok(path) = CString::new(root.path.as_os_str().as_bytes()) else { return true };
        let flags = if self.options.follow_roots { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let Ok(stat) = statat(CWD, &path, flags) else { return true };
        let kind = FileType::from_raw_mode(stat.st_mode);
        self.path = PathBuf::from(&root.name);
        self.entry(CWD, &path, kind, Some(stat), 0)
    }

    fn entry(&mut self, at: BorrowedFd<'_>, name: &CStr, kind: FileType, stat: Option<Stat>, depth: usize) -> bool {
        if let Some(filter) = &self.options.filter
            && !filter(&self.path, kind == FileType::Directory)
        {
            return true;
        }
        let is_directory = kind == FileType::Directory;
        let bytes = match kind {
            FileType::Directory if !self.options.recursive => return true,
            FileType::Symlink if !self.options.symlinks => return true,
            FileType::RegularFile => {
                let stat = stat.or_else(|| statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok());
                stat.map_or(0, |stat| self.data_bytes(at, name, &stat))
            }
            FileType::Directory | FileType::Symlink => 0,
            _ if !self.options.specials => return true,
            _ => 0,
        };
        self.met = self.met.plus(Amount { entries: 1, directories: is_directory.into(), bytes });
        if self.met.entries >= REPORT_EVERY {
            self.progress.counted(std::mem::take(&mut self.met));
            std::thread::sleep((worked().saturating_sub(self.worked) * PAUSE_TIMES).min(PAUSE_MAX));
            self.worked = worked();
            if (self.is_over)() {
                return false;
            }
        }
        if !is_directory || depth == DEPTH_MAX {
            return true;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // A root may be a link that a slash follows.
        let flags = if depth == 0 { flags - OFlags::NOFOLLOW } else { flags };
        let Ok(directory) = openat(at, name, flags, Mode::empty()) else { return true };
        self.directory(&directory, depth + 1)
    }

    fn directory(&mut self, directory: &OwnedFd, depth: usize) -> bool {
        let mut below = Vec::new();
        let mut listing = std::mem::take(&mut self.listing);
        let mut entries = RawDir::new(directory, listing.spare_capacity_mut());
        let mut goes_on = true;
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || is_temporary_name(name.to_bytes()) {
                continue;
            }
            match entry.file_type() {
                FileType::Directory => below.push(name.to_owned()),
                FileType::Unknown => {
                    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
                    match stat.map(|stat| (stat, FileType::from_raw_mode(stat.st_mode))) {
                        Some((_, FileType::Directory)) => below.push(name.to_owned()),
                        Some((stat, kind)) => goes_on = self.child(directory, name, kind, Some(stat), depth),
                        None => {}
                    }
                }
                kind => goes_on = self.child(directory, name, kind, None, depth),
            }
            if !goes_on {
                break;
            }
        }
        self.listing = listing;
        goes_on && below.iter().all(|name| self.child(directory, name, FileType::Directory, None, depth))
    }

    fn child(&mut self, directory: &OwnedFd, name: &CStr, kind: FileType, stat: Option<Stat>, depth: usize) -> bool {
        // Only filters want to know.
        if self.options.filter.is_some() {
            self.path.push(OsStr::from_bytes(name.to_bytes()));
        }
        let goes_on = self.entry(directory.as_fd(), name, kind, stat, depth);
        if self.options.filter.is_some() {
            self.path.pop();
        }
        goes_on
    }

    /// The data of a file that will be copied.
    fn data_bytes(&mut self, at: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> u64 {
        let (size, blocks) = (stat.st_size as u64, (stat.st_blocks as u64).saturating_mul(512));
        let is_further_name = self.options.hard_links
            && stat.st_nlink > 1
            && self.linked.len() < LINKED_MAX
            && !self.linked.insert(identity(stat));
        if is_further_name {
            return 0;
        }
        if !self.options.sparse || blocks >= size {
            return size;
        }
        // Few blocks may also mean a file system that compresses.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let has_holes = openat(at, name, flags, Mode::empty()).and_then(|file| is_sparse(&file, stat));
        if has_holes == Ok(true) { blocks } else { size }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Counted in a thread of its own, since its priority is lowered.
    fn counted(roots: &[Root], options: Options, is_over: bool) -> Progress {
        let progress = Progress::default();
        let counting = &progress;
        std::thread::scope(|scope| {
            scope.spawn(move || count(roots, &options, counting, &|| is_over)).join().expect("no panic");
        });
        progress
    }

    #[test]
    fn all_that_a_copy_would_make_is_counted() {
        let scratch = tempfile::tempdir().expect("a directory");
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("deep/deeper")).expect("directories");
        for (name, bytes) in [("a", 10), ("deep/b", 200), ("deep/deeper/c", 3000), ("deep/left.o", 40_000)] {
            fs::write(top.join(name), vec![1; bytes]).expect("a file");
        }
        fs::hard_link(top.join("a"), top.join("deep/again")).expect("a link");
        symlink("nowhere", top.join("link")).expect("a link");
        let roots = [Root { path: top.clone(), name: "name".into() }];
        let counted = |options: Options| counted(&roots, options, false).total();
        let all = || Options { hard_links: true, symlinks: true, recursive: true, sparse: true, ..Options::default() };
        let met = |entries, directories, bytes| (Amount { entries, directories, bytes }, true);
        assert_eq!(counted(all()), met(9, 3, 43_210));
        assert_eq!(counted(Options { hard_links: false, ..all() }), met(9, 3, 43_220));
        assert_eq!(counted(Options { symlinks: false, ..all() }), met(8, 3, 43_210));
        let filter: super::super::walk::Filter = Box::new(|path, _| {
            assert!(path.starts_with("name"), "{path:?}");
            path.extension().is_none_or(|extension| extension != "o")
        });
        assert_eq!(counted(Options { filter: Some(filter), ..all() }), met(8, 3, 3210));
    }

    #[test]
    fn it_ends_when_the_copy_does() {
        let scratch = tempfile::tempdir().expect("a directory");
        for number in 0..2 * REPORT_EVERY {
            fs::write(scratch.path().join(number.to_string()), "x").expect("a file");
        }
        let roots = [Root { path: scratch.path().into(), name: "name".into() }];
        let progress = counted(&roots, Options { recursive: true, ..Options::default() }, true);
        let (met, is_all) = progress.total();
        assert!(!is_all && met.entries < 2 * REPORT_EVERY, "{met:?}");
    }
}
