//! What a manifest says of the destination: each entry as it stands there, with the digest of its contents.
//!
//! Who has a file's data at hand hashes that. What is left as it was, and what gets a further name, is read: by threads of
//! their own, since a large file's ranges can be read side by side.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use blake3::Hash;
use flume::{Sender, bounded};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, readlinkat, statat};
use rustix::io::Errno;

use super::directory::OpenDirectory;
use super::{Shared, TreeSink};
use crate::fs::identity;
use crate::tree::Fault;
use crate::tree::contents::{self, Job, Medium};
use crate::tree::entries::{self, EntryStream};
use crate::tree::manifest::{Entry, Kind};

/// Bytes of a thread's stack.
const STACK_BYTES: usize = 256 << 10;

/// The entries of a manifest, on their way.
pub(super) struct Manifest {
    entries: Arc<EntryStream>,
    reading: Mutex<Option<Reading>>,
}

/// Threads that read.
struct Reading {
    jobs: Sender<Job<Unread>>,
    threads: Vec<JoinHandle<()>>,
}

/// A file that is to be read.
struct Unread {
    /// For failures.
    path: Vec<u8>,
    /// In the manifest.
    tree_path: Vec<u8>,
    stat: Stat,
}

impl TreeSink {
    /// Has the caller get what a manifest says of each entry, if it wants that. Before the first record comes.
    pub fn list_to(&mut self, entries: &Arc<EntryStream>) {
        if self.shared.options.manifest {
            let manifest = Manifest { entries: Arc::clone(entries), reading: Mutex::default() };
            let _ = self.shared.manifest.set(manifest);
        }
    }
}

impl Shared {
    /// Whether a manifest is made.
    pub fn makes_manifest(&self) -> bool {
        self.manifest.get().is_some()
    }

    /// Waits until all has been read that is to be, or none of it is wanted any more.
    pub fn finish_manifest(&self) {
        let reading = self.manifest.get().and_then(|manifest| manifest.reading().take());
        if let Some(Reading { jobs, threads }) = reading {
            drop(jobs);
            for thread in threads {
                let outcome = thread.join();
                debug_assert!(outcome.is_ok(), "a thread has panicked");
            }
        }
    }

    fn take_contents(&self, unread: Unread, file: &OwnedFd, found: Result<Hash, Errno>) {
        let Unread { path, tree_path, stat } = unread;
        // The time of the last change of the inode says nothing: a further name is one.
        let state = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        let digest = found.and_then(|digest| match state(&fstat(file)?) == state(&stat) {
            true => Ok(digest),
            false => Err(Errno::STALE),
        });
        match (digest, self.manifest.get()) {
            (Ok(digest), Some(manifest)) => {
                let kind = Kind::File { size: stat.st_size as u64, digest: *digest.as_bytes() };
                manifest.send(Entry::new(tree_path, &stat, kind));
            }
            (Err(error), _) => self.report(&path, Fault::Explained(error, UNREAD)),
            _ => {}
        }
    }
}

/// What could not be done, beside why.
const UNREAD: &str = "it is to be read for the manifest";

impl Manifest {
    fn send(&self, entry: Entry) {
        self.entries.tell(entries::Entry::Listed(entry));
    }

    /// Waits until all is on its way.
    pub fn flush(&self) {
        self.entries.flush();
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.reading.lock().expect("no panics under it")
    }

    /// Where files to be read are given to; the threads are made with the first.
    fn jobs(&self, shared: &Arc<Shared>) -> Result<Sender<Job<Unread>>, Fault> {
        let mut reading = self.reading();
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
                contents::work(&queue, is_stopped, |unread, file, found| shared.take_contents(unread, file, found));
            };
            match std::thread::Builder::new().name("tree-read".to_owned()).stack_size(STACK_BYTES).spawn(read) {
                Ok(thread) => threads.push(thread),
                // Fewer do as well.
                Err(_) if !threads.is_empty() => break,
                Err(_) => return Err(Fault::Detail("no thread to read with")),
            }
        }
        *reading = Some(Reading { jobs: jobs.clone(), threads });
        Ok(jobs)
    }
}

impl OpenDirectory {
    /// Lists a file that has just got its name; `digest`: of what was written into it.
    pub fn list_file(&self, name: &[u8], file: impl AsFd, digest: Hash) {
        let Some(manifest) = self.shared.manifest.get() else { return };
        match fstat(file) {
            Ok(stat) => {
                let kind = Kind::File { size: stat.st_size as u64, digest: *digest.as_bytes() };
                manifest.send(Entry::new(self.manifest_path(name), &stat, kind));
            }
            Err(error) => self.shared.report(&self.path(name), error),
        }
    }

    /// Lists what stands under a name, if anything does. A file is read, from where `medium` says.
    pub fn list(&self, name: &[u8], medium: Medium) {
        if let Some(manifest) = self.shared.manifest.get()
            && let Err(fault) = self.try_list(manifest, name, medium)
        {
            self.shared.report(&self.path(name), fault);
        }
    }

    fn try_list(&self, manifest: &Manifest, name: &[u8], medium: Medium) -> Result<(), Fault> {
        let stat = match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let file = openat(&self.fd, name, flags, Mode::empty());
                let file = file.map_err(|error| Fault::Explained(error, UNREAD))?;
                if identity(&fstat(&file)?) != identity(&stat) {
                    return Err(Fault::Explained(Errno::STALE, UNREAD));
                }
                let unread = Unread { path: self.path(name), tree_path: self.manifest_path(name), stat };
                contents::read(&manifest.jobs(&self.shared)?, file, stat.st_size as u64, medium, unread);
                return Ok(());
            }
            // It lists itself when it is finished.
            FileType::Directory => return Ok(()),
            FileType::Symlink => Kind::Symlink(readlinkat(&self.fd, name, Vec::new())?.into_bytes()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::Character(device.0, device.1),
            FileType::BlockDevice => Kind::Block(device.0, device.1),
            FileType::Unknown => return Err(Errno::INVAL.into()),
        };
        manifest.send(Entry::new(self.manifest_path(name), &stat, kind));
        Ok(())
    }

    /// Lists the directory itself, which is finished.
    pub fn list_itself(&self) -> Result<(), Errno> {
        let Some(manifest) = self.shared.manifest.get() else { return Ok(()) };
        let path = self.names()[1..].join(&b'/');
        manifest.send(Entry::new(path, &fstat(&self.fd)?, Kind::Directory));
        Ok(())
    }

    fn manifest_path(&self, name: &[u8]) -> Vec<u8> {
        let mut names = self.names();
        names.push(name);
        names[1..].join(&b'/')
    }
}
