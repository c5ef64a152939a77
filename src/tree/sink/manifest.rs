//! Lists the destination's entries for a manifest: each as it exists there, with the digest of its contents.
//!
//! The thread that has a file's data at hand hashes it. Files that stay as they were, and further names, are read by
//! separate threads, because ranges of a large file can be read side by side.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use blake3::Hash;
use flume::{Sender, bounded};
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, major, minor, readlinkat, statat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use super::{Shared, TreeSink};
use crate::fs::{identity, open_quietly};
use crate::tree::Fault;
use crate::tree::contents::{self, Job, Medium};
use crate::tree::entries::{self, EntryStream};
use crate::tree::manifest::{Entry, Kind};
use crate::tree::proof::Contents;

/// Stack size of a thread, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Collects and sends the entries of a manifest.
pub(super) struct Manifest {
    /// Where the entries are reported to the caller, if anywhere.
    entries: Option<Arc<EntryStream>>,
    /// Sum of the contents of all files, if the tree must be proven.
    pub contents: Option<Contents>,
    /// Whether a tree with another proof is refused.
    is_bound: bool,
    reading: Mutex<Option<Reading>>,
}

/// Threads that read files, and their queue.
struct Reading {
    jobs: Sender<Job<Unread>>,
    threads: Vec<JoinHandle<()>>,
}

/// A file that must be read for its digest.
struct Unread {
    /// Path for failures.
    path: Vec<u8>,
    /// Path in the manifest.
    tree_path: Vec<u8>,
    /// Whether this is another name of a file.
    is_link: bool,
    stat: Stat,
}

impl TreeSink {
    /// Has the manifest's entries sent to the caller, if it wants them. Must be called before the first record comes,
    /// and also if the tree must be proven.
    pub fn list_to(&mut self, entries: &Arc<EntryStream>) {
        let contents = self.proving.is_some().then(Contents::default);
        let entries = self.shared.options.manifest.then(|| Arc::clone(entries));
        if entries.is_some() || contents.is_some() {
            let is_bound = self.is_bound();
            let manifest = Manifest { entries, contents, is_bound, reading: Mutex::default() };
            let _ = self.shared.manifest.set(manifest);
        }
    }
}

impl Shared {
    /// Whether a manifest is made.
    pub fn makes_manifest(&self) -> bool {
        self.manifest.get().is_some()
    }

    /// Whether the tree must have a certain proof.
    pub fn is_bound(&self) -> bool {
        self.manifest.get().is_some_and(|manifest| manifest.is_bound)
    }

    /// Waits until all files have been read, or their digests are no longer wanted.
    pub fn finish_manifest(&self) {
        let reading = self.manifest.get().and_then(|manifest| crate::locked(&manifest.reading).take());
        if let Some(Reading { jobs, threads }) = reading {
            drop(jobs);
            for thread in threads {
                let outcome = thread.join();
                debug_assert!(outcome.is_ok(), "a thread has panicked");
            }
        }
    }

    fn take_contents(&self, unread: Unread, file: &OwnedFd, found: Result<Hash, Errno>) {
        let Unread { path, tree_path, is_link, stat } = unread;
        // The inode's change time says nothing, because making a further name changes it.
        let state = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        let digest = found.and_then(|digest| match state(&fstat(file)?) == state(&stat) {
            true => Ok(digest),
            false => Err(Errno::STALE),
        });
        match (digest, self.manifest.get()) {
            (Ok(digest), Some(manifest)) => {
                let kind = Kind::File { size: stat.st_size as u64, digest: *digest.as_bytes() };
                if !is_link {
                    manifest.sum(self.without_root(&tree_path), &kind);
                }
                manifest.send(Entry::new(tree_path, &stat, kind));
            }
            (Err(error), _) => self.report_unread(&path, Fault::Explained(error, UNREAD), is_link),
            _ => {}
        }
    }
}

/// The step that failed, to which the reason is added.
const UNREAD: &str = "cannot read it for its digest";

impl Manifest {
    fn send(&self, entry: Entry) {
        if let Some(entries) = &self.entries {
            entries.tell(entries::Entry::Listed(entry));
        }
    }

    fn sum(&self, path: &[u8], kind: &Kind) {
        if let (Some(contents), Kind::File { size, digest }) = (&self.contents, kind) {
            contents.add(path, *size, digest);
        }
    }

    /// Waits until all entries have been sent on.
    pub fn flush(&self) {
        self.entries.iter().for_each(|entries| entries.flush());
    }

    /// Returns the queue for files to be read. The threads are started on first use.
    fn jobs(&self, shared: &Arc<Shared>) -> Result<Sender<Job<Unread>>, Fault> {
        let mut reading = crate::locked(&self.reading);
        if let Some(Reading { jobs, .. }) = &*reading {
            return Ok(jobs.clone());
        }
        let count = contents::threads(Medium::Disk);
        let (jobs, queue) = bounded(4 * count);
        let mut threads = Vec::new();
        for _ in 0..count {
            let (shared, queue) = (Arc::clone(shared), queue.clone());
            let read = move || {
                let is_stopped = || shared.is_stopped.load(Acquire);
                contents::work(&queue, None, is_stopped, |unread, file, found| {
                    shared.take_contents(unread, file, found)
                });
            };
            match std::thread::Builder::new().name("tree-read".to_owned()).stack_size(STACK_BYTES).spawn(read) {
                Ok(thread) => threads.push(thread),
                // Fewer threads are enough.
                Err(_) if !threads.is_empty() => break,
                Err(_) => return Err(Fault::Detail("cannot start a thread to read with")),
            }
        }
        *reading = Some(Reading { jobs: jobs.clone(), threads });
        Ok(jobs)
    }
}

impl OpenDirectory {
    /// Lists a file that has just got its name. `digest` is the digest of the data written into it.
    pub fn list_file(&self, name: &[u8], file: impl AsFd, digest: Hash) {
        let Some(manifest) = self.shared.manifest.get() else { return };
        match fstat(file) {
            Ok(stat) => {
                let kind = Kind::File { size: stat.st_size as u64, digest: *digest.as_bytes() };
                let path = self.path_below_top(name);
                manifest.sum(self.shared.without_root(&path), &kind);
                manifest.send(Entry::new(path, &stat, kind));
            }
            Err(error) if self.shared.is_bound() => self.shared.report_unread(&self.path(name), error.into(), false),
            Err(error) => self.shared.report(&self.path(name), error),
        }
    }

    /// Lists the entry of this name, if it exists. A file is read from `medium`.
    pub fn list(&self, name: &[u8], medium: Medium) {
        self.list_as(name, medium, false);
    }

    /// Lists a further name of an entry, which has been proven under its first name.
    pub fn list_link(&self, name: &[u8]) {
        self.list_as(name, Medium::Cache, true);
    }

    fn list_as(&self, name: &[u8], medium: Medium, is_link: bool) {
        if let Some(manifest) = self.shared.manifest.get().filter(|manifest| manifest.entries.is_some() || !is_link)
            && let Err(fault) = self.try_list(manifest, name, medium, is_link)
        {
            self.shared.report_unread(&self.path(name), fault, is_link);
        }
    }

    fn try_list(&self, manifest: &Manifest, name: &[u8], medium: Medium, is_link: bool) -> Result<(), Fault> {
        let stat = match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let file = open_quietly(&self.fd, name, flags);
                let file = file.map_err(|error| Fault::Explained(error, UNREAD))?;
                if identity(&fstat(&file)?) != identity(&stat) {
                    return Err(Fault::Explained(Errno::STALE, UNREAD));
                }
                let unread = Unread { path: self.path(name), tree_path: self.path_below_top(name), is_link, stat };
                contents::read(&manifest.jobs(&self.shared)?, file, stat.st_size as u64, medium, unread);
                return Ok(());
            }
            // A directory lists itself when it is finished.
            FileType::Directory => return Ok(()),
            FileType::Symlink => Kind::Symlink(readlinkat(&self.fd, name, Vec::new())?.into_bytes()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::Character(device.0, device.1),
            FileType::BlockDevice => Kind::Block(device.0, device.1),
            FileType::Unknown => return Err(Errno::INVAL.into()),
        };
        manifest.send(Entry::new(self.path_below_top(name), &stat, kind));
        Ok(())
    }

    /// Lists the directory itself, which is finished.
    pub fn list_itself(&self) -> Result<(), Errno> {
        let Some(manifest) = self.shared.manifest.get() else { return Ok(()) };
        manifest.send(Entry::new(self.path_below_top(b""), &fstat(&self.fd)?, Kind::Directory));
        Ok(())
    }
}
