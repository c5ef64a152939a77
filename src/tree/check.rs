//! Compares a directory with a manifest, without the tree that it was copied from.
//!
//! One thread walks the directory beside the manifest, in the manifest's order. So neither is held in memory, except
//! for the names of the directories on the way. The thread opens files by the descriptors of their directories, and
//! follows no link. Other threads read and hash.

use std::cmp::Ordering::{Equal, Less};
use std::ffi::{CStr, CString, OsStr};
use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use flume::{Sender, bounded};
use minicbor::{Decode, Encode};
use rd_proto::control::IoFact;
use rd_proto::tree::DEPTH_MAX;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, major, minor, readlinkat, statat};
use rustix::io::Errno;

use super::Fault;
use super::ahead::{Ahead, ENTRIES_OF_DIRECTORY, HandedOut, Pace};
pub use super::contents::Medium;
use super::contents::{self, Job};
use super::manifest::{Entry, Kind, ManifestError, Reader, order};
use super::names::Names;
use super::walk::INLINE_BYTES_MAX;
use crate::fs::partial::for_each_of_kind;
use crate::fs::{here, io_fact, is_regular, open_quietly, plain_fact};

/// How an entry differs from its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Aspect {
    /// The entry does not exist.
    #[n(0)]
    Missing,
    /// The entry exists, but neither it nor its contents are in the manifest.
    #[n(1)]
    Extra,
    /// The entry is of another kind, such as a directory.
    #[n(2)]
    Type,
    /// The permissions.
    #[n(3)]
    Mode,
    /// The size.
    #[n(4)]
    Size,
    /// The time of last modification.
    #[n(5)]
    Time,
    /// The target of a symbolic link.
    #[n(6)]
    Target,
    /// The numbers of a device.
    #[n(7)]
    Device,
    /// The contents of a file that had the right size when it was opened.
    #[n(8)]
    Contents,
}

impl Aspect {
    /// Returns the aspect's name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Type => "type",
            Self::Mode => "mode",
            Self::Size => "size",
            Self::Time => "mtime",
            Self::Target => "target",
            Self::Device => "device",
            Self::Contents => "contents",
        }
    }
}

/// Maximum number of aspects in which one entry may differ at once.
pub const ASPECTS_MAX: usize = 9;

/// What has been found about one entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Finding {
    /// The entry differs.
    #[n(0)]
    Differs {
        /// Path from the directory on; empty for the directory itself.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// Aspects in which the entry differs.
        #[n(1)]
        aspects: Vec<Aspect>,
    },
    /// The entry could not be compared.
    #[n(1)]
    Unreadable {
        /// Path, as above.
        #[cbor(n(0), with = "minicbor::bytes")]
        path: Vec<u8>,
        /// Error number.
        #[n(1)]
        errno: i32,
    },
}

/// Totals of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of entries in the manifest.
    pub entries: u64,
    /// Number of entries that differ, are missing or extra.
    pub differing: u64,
    /// Number of entries that could not be compared.
    pub unreadable: u64,
    /// Bytes of contents that were read.
    pub bytes: u64,
}

/// Why nothing was compared, or not everything.
#[derive(Debug)]
pub enum CheckError {
    /// The manifest is not valid, or cannot be read.
    Manifest(ManifestError),
    /// The directory cannot be read.
    Directory(IoFact),
}

impl From<ManifestError> for CheckError {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error)
    }
}

/// Receives findings, from any thread.
pub type Tell<'a> = &'a (dyn Fn(Finding) + Sync);

/// Compares the contents of `directory` with a manifest, until `stop` is set.
///
/// # Errors
///
/// [`CheckError`]. Findings before the error have been reported.
pub fn check(
    manifest: impl BufRead,
    directory: &Path,
    medium: Medium,
    stop: &AtomicBool,
    tell: Tell<'_>,
) -> Result<Checked, CheckError> {
    crate::fs::raise_open_files();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = open_quietly(here(), directory, flags)
        .map_err(|error| CheckError::Directory(io_fact(directory.as_os_str(), error)))?;
    let threads = contents::threads(medium);
    let checker = Checker::new(directory, medium, stop, tell);
    let (jobs, queue) = bounded(4 * threads);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (checker, queue) = (&checker, queue.clone());
            let is_stopped = || checker.is_stopped();
            // Reading from the disk itself waits for it, whether the tree is cold or not.
            let ahead = (medium == Medium::Cache).then_some(&checker.ahead);
            let read = move || {
                contents::work(&queue, ahead, is_stopped, |entry, file, found| checker.take(&entry, file, found));
            };
            match std::thread::Builder::new().name("check".to_owned()).spawn_scoped(scope, read) {
                Ok(_) => {}
                // Fewer threads are enough.
                Err(_) if number > 0 => break,
                Err(error) => {
                    let reason = format!("cannot start a thread to read with: {error}");
                    return Err(CheckError::Directory(plain_fact(directory.as_os_str(), &reason)));
                }
            }
        }
        drop(queue);
        let walked = checker.walk(manifest, top, &jobs);
        checker.has_failed.store(walked.is_err(), Relaxed);
        drop(jobs);
        walked
    })?;
    Ok(checker.totals.into_inner().expect("no panics under it"))
}

struct Checker<'a> {
    directory: &'a Path,
    medium: Medium,
    stop: &'a AtomicBool,
    tell: Tell<'a>,
    totals: Mutex<Checked>,
    has_failed: AtomicBool,
    /// Reads ahead if the tree is cold. Contents that are read from the disk itself are left to the threads that do so.
    ahead: Ahead,
}

/// A directory that is being walked.
struct Level {
    directory: Arc<OwnedFd>,
    names: Names,
    /// Number of names that have been passed, and what has been handed out.
    passed: usize,
    handed_out: HandedOut,
    /// Length of the directory's path.
    path_bytes: usize,
}

impl<'a> Checker<'a> {
    fn new(directory: &'a Path, medium: Medium, stop: &'a AtomicBool, tell: Tell<'a>) -> Self {
        let (totals, has_failed) = Default::default();
        let ahead = Ahead::new(INLINE_BYTES_MAX, false);
        Self { directory, medium, stop, tell, totals, has_failed, ahead }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed) || self.has_failed.load(Relaxed)
    }

    fn differs(&self, path: &[u8], aspects: Vec<Aspect>) {
        if !aspects.is_empty() {
            crate::locked(&self.totals).differing += 1;
            (self.tell)(Finding::Differs { path: path.to_vec(), aspects });
        }
    }

    fn fail(&self, path: &[u8], error: Errno) {
        crate::locked(&self.totals).unreadable += 1;
        (self.tell)(Finding::Unreadable { path: path.to_vec(), errno: error.raw_os_error() });
    }

    /// Walks the directory and the manifest side by side.
    fn walk(&self, manifest: impl BufRead, top: OwnedFd, jobs: &Sender<Job<Entry>>) -> Result<(), CheckError> {
        let mut manifest = Reader::new(manifest)?;
        let next = |manifest: &mut Reader<_>| -> Result<Option<Entry>, ManifestError> {
            let entry = manifest.next()?;
            crate::locked(&self.totals).entries += u64::from(entry.is_some());
            Ok(entry)
        };
        let mut expected = next(&mut manifest)?;
        if let Some(entry) = expected.take_if(|entry| entry.path.is_empty()) {
            let stat = fstat(&top).map_err(|error| self.unlisted(b"", error.into()))?;
            self.differs(b"", aspects(&entry, &stat));
            expected = next(&mut manifest)?;
        }
        let mut path = Vec::new();
        let mut levels = vec![self.list(top, &path, None).map_err(|error| self.unlisted(&path, error))?];
        while let Some(level) = levels.last_mut() {
            if self.is_stopped() {
                return Ok(());
            }
            path.truncate(level.path_bytes);
            let Some((_, name)) = level.names.current() else {
                levels.pop();
                continue;
            };
            let name: CString = name.into();
            if self.ahead.is_on() {
                let how = (self.medium == Medium::Cache, ENTRIES_OF_DIRECTORY);
                let names = (&level.names, level.passed);
                self.ahead.look(&level.directory, names, &mut level.handed_out, how, |_, _| false);
            }
            level.names.advance().map_err(|error| self.unlisted(&path, error))?;
            level.passed += 1;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name.to_bytes());
            while let Some(entry) = expected.take_if(|entry| order(&entry.path, &path) == Less) {
                self.differs(&entry.path, vec![Aspect::Missing]);
                expected = next(&mut manifest)?;
            }
            let Some(entry) = expected.take_if(|entry| order(&entry.path, &path) == Equal) else {
                self.differs(&path, vec![Aspect::Extra]);
                continue;
            };
            expected = next(&mut manifest)?;
            let unread = match self.compare(level, &name, entry, jobs) {
                Ok(Some(entered)) if levels.len() > DEPTH_MAX => {
                    drop(entered);
                    Some(Errno::NAMETOOLONG)
                }
                Ok(Some(entered)) => match self.list(entered, &path, levels.last()) {
                    Ok(level) => {
                        levels.push(level);
                        None
                    }
                    // There is no room for its names, which says nothing about the directory.
                    Err(fault @ Fault::Explained(..)) => return Err(self.unlisted(&path, fault)),
                    Err(fault) => Some(fault.errno().unwrap_or(Errno::IO)),
                },
                Ok(None) => None,
                // The entry existed a moment ago.
                Err(Errno::NOENT) => {
                    self.differs(&path, vec![Aspect::Missing]);
                    None
                }
                Err(error) => Some(error),
            };
            if let Some(error) = unread {
                self.fail(&path, error);
                // It is not known whether the entries below are missing.
                path.push(b'/');
                while expected.take_if(|entry| entry.path.starts_with(&path)).is_some() {
                    expected = next(&mut manifest)?;
                }
            }
        }
        while let Some(entry) = expected {
            self.differs(&entry.path, vec![Aspect::Missing]);
            expected = next(&mut manifest)?;
        }
        Ok(())
    }

    fn unlisted(&self, path: &[u8], fault: Fault) -> CheckError {
        CheckError::Directory(fault.into_fact(self.directory.join(OsStr::from_bytes(path)).as_os_str()))
    }

    /// Lists a directory. `above` is the directory that contains it, whose last passed entry it is.
    fn list(&self, directory: OwnedFd, path: &[u8], above: Option<&Level>) -> Result<Level, Fault> {
        let mut names = Names::default();
        for_each_of_kind(&directory, |name, kind| names.push(kind, name))?;
        names.sort()?;
        let handed =
            above.map(|above| HandedOut::of_entered(&above.handed_out, above.passed - 1, &names, ENTRIES_OF_DIRECTORY));
        let (directory, handed_out) = (Arc::new(directory), handed.unwrap_or_default());
        Ok(Level { directory, names, passed: 0, handed_out, path_bytes: path.len() })
    }

    /// Compares an entry, or queues its contents to be read. Returns the entry if it is a directory, to be walked.
    fn compare(
        &self,
        level: &Level,
        name: &CStr,
        entry: Entry,
        jobs: &Sender<Job<Entry>>,
    ) -> Result<Option<OwnedFd>, Errno> {
        let mut pace = Pace::begin();
        let stat = statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut aspects = aspects(&entry, &stat);
        if aspects.first() == Some(&Aspect::Type) {
            self.differs(&entry.path, aspects);
            return Ok(None);
        }
        let open = |flags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            open_quietly(&level.directory, name, flags)
        };
        let mut entered = None;
        match entry.kind {
            Kind::Directory => {
                // Reported even if the directory cannot be opened.
                self.differs(&entry.path, std::mem::take(&mut aspects));
                entered = Some(open(OFlags::DIRECTORY)?);
            }
            Kind::Symlink(target) => {
                let found = readlinkat(&level.directory, name, Vec::new())?;
                if found.to_bytes() != target {
                    aspects.push(Aspect::Target);
                }
            }
            // A file of another length differs anyway.
            Kind::File { size, .. } if stat.st_size as u64 == size => {
                let file = open(OFlags::empty())?;
                // A device or a FIFO may have taken its place.
                if !is_regular(&fstat(&file)?) {
                    return Err(Errno::STALE);
                }
                // Measured before this thread waits for the threads that read.
                self.ahead.passed(&mut pace);
                contents::read(jobs, file, size, self.medium, entry);
                return Ok(None);
            }
            _ => {}
        }
        self.differs(&entry.path, aspects);
        Ok(entered)
    }

    /// Compares a file that has been read with its line, or reports why it could not be read. Its inode is compared
    /// only now: a file that was written to meanwhile has another time, which tells it from a damaged one.
    fn take(&self, entry: &Entry, file: &OwnedFd, found: Result<blake3::Hash, Errno>) {
        let Kind::File { size, digest } = entry.kind else { return };
        let stat = match fstat(file) {
            Ok(stat) => stat,
            Err(error) => return self.fail(&entry.path, error),
        };
        let mut differs = aspects(entry, &stat);
        match found {
            Ok(found) => {
                crate::locked(&self.totals).bytes += size;
                if *found.as_bytes() != digest {
                    differs.push(Aspect::Contents);
                }
            }
            // It has become shorter. A disk that cannot read a sector may give the same error.
            Err(Errno::NODATA) if (stat.st_size as u64) < size => {}
            Err(error) => return self.fail(&entry.path, error),
        }
        self.differs(&entry.path, differs);
    }
}

/// Returns how an entry differs from its line, as far as its inode tells. If the type differs, returns only the type.
fn aspects(entry: &Entry, stat: &Stat) -> Vec<Aspect> {
    let kind = match entry.kind {
        Kind::File { .. } => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Character(..) => FileType::CharacterDevice,
        Kind::Block(..) => FileType::BlockDevice,
    };
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return vec![Aspect::Type];
    }
    let device = (major(stat.st_rdev), minor(stat.st_rdev));
    let differs = [
        // The mode of a link means nothing.
        (kind != FileType::Symlink && stat.st_mode & 0o7777 != entry.mode, Aspect::Mode),
        ((stat.st_mtime, stat.st_mtime_nsec as u32) != entry.modified, Aspect::Time),
        (matches!(entry.kind, Kind::File { size, .. } if size != stat.st_size as u64), Aspect::Size),
        (
            matches!(entry.kind, Kind::Character(major, minor) | Kind::Block(major, minor) if (major, minor) != device),
            Aspect::Device,
        ),
    ];
    differs.into_iter().filter(|(differs, _)| *differs).map(|(_, aspect)| aspect).collect()
}

#[cfg(test)]
mod tests;
