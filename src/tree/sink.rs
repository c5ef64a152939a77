//! Receives a tree: takes records and ranges, and makes entries below one directory.
//!
//! The sender is assumed to be hostile. One thread decodes records, checks their order, and makes directories; the
//! sink's own threads make all other entries. An entry gets its name when it is complete. A directory gets its metadata
//! when everything in it is done.
//!
//! # Invariants
//!
//! * Nothing outside the destination changes. Every call takes the descriptor of a directory and a single name, and
//!   follows no link; metadata is set through descriptors. So it does not matter how other processes rename entries
//!   meanwhile.
//! * A final name stands either for what was there before or for the complete new entry (except with `--in-place`). A
//!   directory at the top that did not exist is filled under a partial name, which an earlier transfer may have left.
//!   It gets its final name when everything that comes into it is done.
//! * The number of open files is bounded: the directories of one path, the directories of waiting jobs and hard links,
//!   and 256 large files.

mod asked;
mod backup;
mod basis;
mod delete;
mod destination;
mod device;
mod directory;
mod elsewhere;
mod entry;
mod failures;
mod folding;
mod held;
mod implied;
mod itemize;
mod jobs;
mod judge;
mod large;
mod links;
mod look;
mod manifest;
mod moves;
mod prove;
mod rehearse;
mod report;
mod shared;
mod snapshot;
mod target;
#[cfg(test)]
mod tests;
mod unfinished;
mod unset;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::{Sender, bounded};
use minicbor::{Decode, Encode};
use rd_proto::control::IoFact;
use rd_proto::tree::{Answer, Order, Record, TreeError, Verdict, is_name};
use rustix::io::Errno;

use super::ahead::Ahead;
use super::digest_cache::DigestCache;
use super::metadata::Setter;
use super::owners::Owners;
use super::patterns::Patterns;
use super::progress::Amount;
use super::stats::TreeFigures;
use super::walk::INLINE_BYTES_MAX;
use super::{Fault, SOURCE_IS_EMPTY};
use crate::fs::direct::write::Writes;
use crate::fs::partial;
use crate::fs::{OwnerAccess, io_fact, plain_fact};
use backup::Backup;
use basis::Compared;
pub use destination::{Destination, Names};
use directory::OpenDirectory;
use entry::Large;
use held::Held;
pub use jobs::Local;
use jobs::{Batch, Job, work};
use judge::Wanted;
use large::Slot;
use prove::Proving;
pub use report::Report;
use shared::{Counts, Shared};
use snapshot::Snapshot;
pub use unset::Lacking;

/// Maximum number of writing threads. More threads would only wait for each other in the file system.
const THREADS_MAX: usize = 8;

/// Number of jobs that may wait, for each thread.
const JOBS_PER_THREAD: usize = 4;

/// Maximum number of large files that are not published yet: files still being read by the sender, and files with
/// chunks in flight.
const SLOTS_MAX: usize = 256;

/// Size, in bytes, of the blocks in which a partial file without holes left by a killed transfer is compared. An
/// incomplete block is sent again.
const BLOCK_BYTES: u64 = 16 << 20;

/// How long to wait for a name that another transfer holds. A killed transfer releases its names within seconds.
const HELD_MAX: Duration = Duration::from_secs(6);

/// Reason why the transfer cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The peer's records do not form a tree.
    #[error("{0}")]
    Tree(#[from] TreeError),
    /// The peer's data does not match its records.
    #[error("{0}")]
    Data(&'static str),
    /// The tree is not the expected one.
    #[error("data does not match the source")]
    Forged,
    /// A failure that every further entry would meet as well, such as a full disk.
    #[error("{0:?}")]
    Io(IoFact),
}

/// Passes an answer to the sender; may be called from any thread. The call may block until there is room for the
/// answer, but not after the session has ended.
pub type SendAnswer = Box<dyn Fn(Answer) + Send + Sync>;

/// In which state a cancelled copy leaves the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum KeptState {
    /// Under a partial name.
    #[default]
    #[n(0)]
    Begun,
    /// The same, and an earlier copy had left data there, too, which this one may not have reached.
    #[n(1)]
    Resumed,
    /// Under the final name, which is incomplete: `--in-place`.
    #[n(2)]
    InPlace,
}

/// Callback that takes the paths that a transfer leaves for the next one to resume after giving up, and the number of
/// bytes in them that need not be sent again, and the state that they are in.
pub type Kept = Box<dyn Fn(&[Vec<u8>], u64, KeptState) + Send>;

/// A chunk, or any other buffer that holds the bytes of records or of a range.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The receiving end of a tree. Dropping it discards everything that is not published.
pub struct TreeSink {
    shared: Arc<Shared>,
    order: Order,
    /// Directories that have been entered, the top first; `None` for a directory below one that failed.
    levels: Vec<Option<Arc<OpenDirectory>>>,
    /// Name of the single root at the sender, if the root is renamed.
    root: Option<Vec<u8>>,
    slots: BTreeMap<u32, Slot>,
    /// Number of directories, and of listed files, whose records have arrived.
    directory_records: u64,
    listed: u64,
    /// The listed file whose contents come next.
    wanted: Option<Wanted>,
    unsent: u64,
    directories: u64,
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    tell_kept: Option<Kept>,
    snapshot: Option<Snapshot>,
    /// Entries held back until the end, if the tree must be proven first.
    held: Option<Held>,
    /// What the tree must be, if that is known; and whether it has turned out to be a different one.
    proving: Option<Proving>,
    is_other: bool,
    _access: OwnerAccess,
}

impl TreeSink {
    /// Returns a sink whose entries appear in `directory`, which must exist. Creates threads only, no entries.
    ///
    /// # Errors
    ///
    /// The directory's path and the error number; EINVAL if the name in [`Names::Only`] is not a valid name.
    pub fn new(directory: &Path, destination: impl Into<Destination>, answer: SendAnswer) -> Result<Self, IoFact> {
        let destination = destination.into();
        // Files to be compared are hashed on all processors, while one more thread writes.
        let enough = crate::processors().max(2) + usize::from(destination.options.lists());
        Self::with(directory, destination, answer, enough.min(THREADS_MAX), BLOCK_BYTES)
    }

    /// Like [`Self::new`], with the given number of writing threads. Large files are compared with existing ones in
    /// blocks of `block_bytes`, or in larger blocks if a file would have too many.
    fn with(
        directory: &Path,
        destination: Destination,
        answer: SendAnswer,
        threads: usize,
        block_bytes: u64,
    ) -> Result<Self, IoFact> {
        let Destination { options, names, progress, entries, is_local, awaits_proof, expected } = destination;
        let proving = expected.map(|expected| Proving::new(expected, &options, matches!(names, Names::Only(_))));
        if let Names::Only(name) = &names
            && !is_name(name)
            && name != b"."
        {
            return Err(io_fact(OsStr::from_bytes(name), Errno::INVAL));
        }
        let patterns = Patterns::new(&options.rules.0)
            .map_err(|(rule, reason)| plain_fact(OsStr::from_bytes(&rule.pattern), reason))?;
        crate::fs::raise_open_files();
        let access = OwnerAccess::grant();
        let owners = Owners::new(&options).map_err(|reason| plain_fact(directory.as_os_str(), reason))?;
        let opened = OpenDirectory::open_top(directory, options.dry_run);
        let (top, is_there) = opened.map_err(|error| io_fact(directory.as_os_str(), error))?;
        if is_there && directory::is_removed(&top.0) {
            return Err(io_fact(directory.as_os_str(), Errno::NOENT));
        }
        let backup = if is_there { Backup::new(top.0.as_fd(), &names, &options) } else { Ok(None) };
        let backup = backup.inspect_err(|_| directory::close_again(&top))?;
        let (cache, without) = DigestCache::asked(&options);
        let shared = Arc::new(Shared {
            backup,
            deferred: Mutex::default(),
            owners,
            setter: Setter::new(is_local),
            umask: if options.mode { 0 } else { crate::fs::umask() },
            writes: Writes::new(None),
            ahead: Ahead::new(INLINE_BYTES_MAX, options.xattrs),
            options,
            names,
            block_bytes,
            open_blocks: Arc::default(),
            progress,
            entries,
            is_local,
            awaits_proof,
            answer,
            is_stopped: Arc::default(),
            is_trusted: AtomicBool::new(true),
            can_link_nameless: AtomicBool::new(true),
            cache,
            counts: Counts::default(),
            stats: Mutex::default(),
            moves: Mutex::default(),
            patterns,
            wanted: Mutex::default(),
            manifest: OnceLock::new(),
            failures: Mutex::default(),
            planned: Mutex::default(),
            without: Mutex::new(without.into_iter().collect()),
            kept: Mutex::default(),
            incomplete: Mutex::default(),
            held_until: Instant::now() + HELD_MAX,
            pending: Mutex::default(),
            drained: Condvar::new(),
        });
        let mut top = OpenDirectory::top(top, directory.as_os_str().as_bytes(), Arc::clone(&shared));
        top.is_phantom = !is_there;
        // The destination may be missing only in a dry run.
        let above = if is_there { None } else { OpenDirectory::open_above(directory) };
        let snapshot = match (is_there, &above) {
            // The directory of generations is missing, too.
            (false, None) => None,
            _ => Snapshot::open(&top, above.as_ref())?,
        };
        top.alternates = elsewhere::open_generations(&top, above.as_ref(), snapshot.as_ref());
        let (jobs, queue) = bounded(threads * JOBS_PER_THREAD);
        let mut sink = Self {
            shared,
            order: Order::new(),
            levels: vec![Some(Arc::new(top))],
            root: None,
            slots: BTreeMap::new(),
            directory_records: 0,
            listed: 0,
            wanted: None,
            unsent: 0,
            directories: 0,
            jobs: Some(jobs),
            threads: Vec::new(),
            tell_kept: None,
            snapshot,
            held: (awaits_proof || proving.is_some()).then(Held::default),
            proving,
            is_other: false,
            _access: access,
        };
        for _ in 0..threads {
            let (shared, queue) = (Arc::clone(&sink.shared), queue.clone());
            match crate::spawn("tree-write", 256 << 10, move || work(&shared, &queue)) {
                Ok(thread) => sink.threads.push(thread),
                // Fewer threads are enough.
                Err(_) if !sink.threads.is_empty() => break,
                Err(error) => {
                    let reason = format!("cannot start a thread to write with: {error}");
                    return Err(plain_fact(directory.as_os_str(), &reason));
                }
            }
        }
        Ok(sink)
    }

    /// Takes the next records (`item` 0), in the order of the stream, or data at `position` of a large file whose
    /// record has arrived before. Returns when the chunk has been handed on, and blocks while too many jobs are
    /// waiting. The chunk is dropped when the kernel has all of it.
    ///
    /// # Errors
    ///
    /// [`Refused`], possibly because of a failure with an earlier chunk. After an error only [`TreeSink::discard`]
    /// makes sense.
    pub fn push(&mut self, item: u32, position: u64, chunk: Bytes) -> Result<(), Refused> {
        self.shared.check()?;
        let taken = if item == 0 { self.take_records(&chunk) } else { self.take_range(item, position, chunk) };
        taken.inspect_err(|refused| {
            let is_kept_to = matches!(refused, Refused::Io(_));
            self.shared.is_trusted.fetch_and(is_kept_to, Relaxed);
        })
    }

    /// Returns a flag that, once set, makes the sink's current call end early. Only [`TreeSink::discard`] makes sense
    /// after that.
    pub fn stopper(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.is_stopped)
    }

    /// Checks whether the sink can go on.
    ///
    /// # Errors
    ///
    /// The failure that has stopped everything.
    pub fn check(&self) -> Result<(), Refused> {
        self.shared.check()
    }

    /// Waits until everything is written, finishes the directories, and syncs if the options ask for that.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the tree is not complete, or if a failure has stopped everything.
    pub fn finish(&mut self) -> Result<Report, Refused> {
        self.shared.check()?;
        if !self.order.is_ended() {
            return Err(Refused::Data("the tree is incomplete"));
        }
        if !self.slots.is_empty() {
            return Err(Refused::Data("data of a large file is missing"));
        }
        self.shared.wait_drained();
        self.prove()?;
        if let Some(mut held) = self.held.take()
            && let Some(job) = held.job.take()
        {
            self.hand_on(job);
            self.shared.wait_drained();
        }
        if self.wanted.is_some() || !crate::locked(&self.shared.wanted).is_empty() {
            return Err(Refused::Data("a listed file without its contents"));
        }
        self.stop_threads();
        let top = self.levels.first().cloned().flatten();
        self.levels.clear();
        self.shared.finish_manifest();
        if let Some(manifest) = self.shared.manifest.get() {
            manifest.flush();
        }
        self.shared.check()?;
        top.iter().for_each(|top| top.delete_deferred(self.unsent));
        self.shared.separate_moved();
        let top_path = top.as_ref().map_or_else(Vec::new, |top| top.root_path());
        // This finishes and syncs the destination itself, which may fail like any step before.
        drop(top);
        self.shared.entries.iter().for_each(|entries| entries.flush());
        self.shared.check()?;
        let shared = &self.shared;
        self.switch();
        shared.check()?;
        let mut failures = crate::locked(&shared.failures);
        let spared = shared.spared_fact(&top_path);
        failures.count += u64::from(spared.is_some());
        let (files, others) = (shared.counts.files.load(Relaxed), shared.counts.others.load(Relaxed));
        let (same, bytes) = (shared.counts.same.load(Relaxed), shared.counts.bytes.load(Relaxed));
        let entries = files + self.directories + others + same;
        let figures = TreeFigures {
            amount: Amount { entries, directories: self.directories, bytes },
            same,
            deleted: shared.counts.deleted.load(Relaxed),
            moved: shared.counts.moved.load(Relaxed),
            failed: failures.count,
            failed_there: self.unsent,
            stats: *crate::locked(&shared.stats),
            is_synced: shared.options.syncs(),
            is_read_back: shared.options.reads_back(),
            is_other: self.is_other,
            has_less_metadata: shared.setter.has_less() || shared.owners.lacks_names(shared.setter.is_root()),
            ..TreeFigures::default()
        };
        Ok(Report {
            figures,
            files,
            others,
            written: shared.writes.written(),
            spared,
            failures: std::mem::take(&mut failures.first).into_iter().collect(),
            lacking: std::mem::take(&mut failures.lacking).into_values().collect(),
            without: std::mem::take(&mut *crate::locked(&shared.without)),
            without_xattrs: shared.counts.without_xattrs.load(Relaxed),
        })
    }

    fn take_records(&mut self, chunk: &Bytes) -> Result<(), Refused> {
        let bytes = (**chunk).as_ref();
        let (mut rest, mut batch) = (bytes, Batch::default());
        loop {
            let (offset, mut acls) = (bytes.len() - rest.len(), Vec::new());
            let Some(mut record) = Record::decode(&mut rest)? else { break };
            if let (Some(proving), None) = (&mut self.proving, &self.wanted) {
                proving.outline.take(&record);
            }
            self.shared.owners.localize(&mut record, &mut acls);
            self.order.check(&record)?;
            let brings = matches!(record, Record::File { .. } | Record::Large { .. });
            if brings && self.shared.options.dry_run {
                return Err(Refused::Data("contents in a dry run"));
            }
            let wanted = self.wanted.take();
            if wanted.is_none() {
                self.check_asked(&record)?;
            }
            let is_listed = matches!(record, Record::Listed { .. });
            let number = if is_listed { self.next_listed()? } else { 0 };
            let directory = match &wanted {
                Some(wanted) if Some(&wanted.name[..]) != record.name() => {
                    return Err(Refused::Data("contents of a file that was not requested"));
                }
                Some(wanted) => {
                    self.check_as_listed(wanted, &record)?;
                    Some(Arc::clone(&wanted.directory))
                }
                None => self.levels.last().cloned().flatten(),
            };
            if let (Some(directory), Some(name), None) = (&directory, record.name(), &wanted) {
                directory.meet(name, !matches!(record, Record::Vanished { .. }));
            }
            match record {
                Record::Leave => drop(self.levels.pop()),
                Record::Wanted { number } => self.wanted = Some(self.take_wanted(number)?),
                Record::Same { number } => {
                    let wanted = self.take_wanted(number)?;
                    self.hand_on(Job::Keep(wanted));
                }
                Record::Differs { number } => self.rehearse_wanted(number)?,
                Record::Gone { number } => self.give_up(number)?,
                Record::Vanished { name } => directory.iter().for_each(|directory| {
                    // An entry that has come may have this name, too, by another spelling.
                    if wanted.is_some() || !directory.has_come_otherwise(name) {
                        directory.pass_vanished(name);
                    }
                }),
                Record::Incomplete => directory.iter().for_each(|directory| directory.note_incomplete()),
                Record::Closed { item, data_bytes, is_intact } => self.close(item, data_bytes, is_intact)?,
                Record::End { failures } => self.unsent = failures,
                entry => match directory.filter(|at| {
                    self.may_be_made(at, &entry) && (wanted.is_some() || self.admits(at, &entry, chunk, &mut batch))
                }) {
                    None => self.skip(&entry, number, wanted.and_then(Wanted::compared).is_some())?,
                    Some(directory) => {
                        if is_listed && !batch.list(number) {
                            self.hand_on(Job::Make(Arc::clone(chunk), std::mem::take(&mut batch)));
                            batch.list(number);
                        }
                        let was_left = directory.make_way(&entry) || self.was_left(&directory, &entry);
                        // An earlier entry of this batch may be the file that a hard link names.
                        let is_last = matches!(entry, Record::HardLink { .. })
                            || self.is_for_threads(&entry)
                                && batch.add(&directory, offset, bytes.len() - rest.len() - offset);
                        if is_last {
                            self.hand_on(Job::Make(Arc::clone(chunk), std::mem::take(&mut batch)));
                        }
                        self.take_entry(&directory, &entry, was_left, wanted.and_then(Wanted::compared))?;
                    }
                },
            }
        }
        let job = Job::Make(Arc::clone(chunk), batch);
        let is_all = self.directory_records == 0 && matches!(self.shared.names, Names::Only(_));
        let job = match &mut self.held {
            Some(held) if is_all => held.hold_job(job),
            _ => Some(job),
        };
        job.into_iter().for_each(|job| self.hand_on(job));
        Ok(())
    }

    /// Takes an entry that cannot be made from its record alone.
    fn take_entry(
        &mut self,
        directory: &Arc<OpenDirectory>,
        entry: &Record<'_>,
        was_left: bool,
        compared: Option<Compared>,
    ) -> Result<(), Refused> {
        let shared = &self.shared;
        let failed = |path: &[u8], fault| shared.fail(path, fault);
        match *entry {
            Record::Directory { name, metadata } => {
                let (name, number) = (directory.final_name(name), self.directory_records);
                self.directory_records += 1;
                if shared.options.existing && !directory.has(name) {
                    self.levels.push(None);
                    return Ok(());
                }
                let entered = OpenDirectory::enter(directory, name, &metadata, was_left);
                let entered = entered.map_err(|fault| failed(&directory.path(name), fault)).ok();
                // The sender infers this for directories below a fresh one.
                if entered.as_ref().is_some_and(|entered| entered.is_fresh) && !directory.is_fresh {
                    shared.answer(Answer::Fresh { directory: number });
                }
                let entered = entered.map(Arc::new);
                if let Some(entered) = &entered {
                    self.directories += 1;
                    shared.progress.made(true);
                    if let (1, Some(held)) = (self.levels.len(), &mut self.held) {
                        held.hold_directory(entered);
                    }
                }
                self.levels.push(entered);
            }
            Record::Large { name: sent_name, metadata, item, size, is_sparse } => {
                let name = directory.final_name(sent_name);
                let path = directory.path(name);
                let awaits_have = compared.is_some() || Record::awaits_have(size);
                let may_resume = awaits_have && (compared.is_some() || !shared.is_local);
                let length = (size, is_sparse);
                let large = Large::create(directory, name, &metadata, length, may_resume, compared);
                let large = large.map_err(|fault| failed(&path, fault)).map(Arc::new);
                if let (1, Some(held), Ok(large)) = (self.levels.len(), &mut self.held, &large) {
                    held.hold_file(large);
                }
                // In a broadcast everything comes, whatever exists here.
                match &large {
                    Ok(large) if may_resume && !shared.awaits_proof => self.have_looked(large, item),
                    _ if awaits_have => shared.answer(Answer::nothing(item)),
                    _ => {}
                }
                let large = large.map_err(|()| self.unkept(sent_name, size));
                self.add_slot(item, size, large, path)?;
            }
            Record::HardLink { name, first } => self.link(directory, name, first)?,
            _ => {}
        }
        Ok(())
    }

    /// Skips an entry that has failed, or whose directory has. `is_compared`: the sender waits for digests.
    fn skip(&mut self, entry: &Record<'_>, number: u64, is_compared: bool) -> Result<(), Refused> {
        match *entry {
            Record::Directory { .. } => {
                self.directory_records += 1;
                self.levels.push(None);
            }
            // The sender then sends the contents under a further name of the file, if the destination has that name.
            Record::Listed { .. } if self.shared.options.existing => {
                self.shared.answer_verdicts(number, vec![Verdict::Left]);
            }
            Record::Listed { .. } => self.shared.answer_verdicts(number, vec![Verdict::Same]),
            Record::Large { name, item, size, .. } => {
                if is_compared || Record::awaits_have(size) {
                    self.shared.answer(Answer::nothing(item));
                }
                self.add_slot(item, size, Err(self.unkept(name, size)), Vec::new())?;
            }
            Record::File { name, data, .. } => self.sum_skipped(name, data),
            _ => {}
        }
        Ok(())
    }

    fn hand_on(&self, job: Job) {
        if matches!(&job, Job::Make(_, batch) if batch.offsets.is_empty()) {
            return;
        }
        *crate::locked(&self.shared.pending) += 1;
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        assert!(matches!(sent, Some(Ok(()))), "the threads live as long as the sink takes chunks");
    }

    /// Gives up: removes everything without a final name, except trees and large files that the next transfer can
    /// resume. Published entries are kept.
    pub fn discard(&mut self) {
        self.shared.is_stopped.store(true, Release);
        self.stop_threads();
        self.slots.clear();
        self.held = None;
        self.wanted = None;
        crate::locked(&self.shared.wanted).clear();
        self.levels.clear();
        self.shared.finish_manifest();
        let take = |paths: &Mutex<Vec<Vec<u8>>>| std::mem::take(&mut *crate::locked(paths));
        let (kept, incomplete) = (take(&self.shared.kept), take(&self.shared.incomplete));
        if let Some(tell) = &self.tell_kept
            && !(kept.is_empty() && incomplete.is_empty())
        {
            let counts = &self.shared.counts;
            let (paths, state) = match counts.is_resumed.load(Relaxed) {
                _ if !incomplete.is_empty() => (&incomplete, KeptState::InPlace),
                true => (&kept, KeptState::Resumed),
                false => (&kept, KeptState::Begun),
            };
            tell(paths, counts.resumable_bytes.load(Relaxed), state);
        }
    }

    /// Gives up because the data received is not the expected data: none of it may be resumed.
    pub fn discard_forged(&mut self) {
        self.shared.is_trusted.store(false, Relaxed);
        self.discard();
    }

    /// Sets the function that hears what is kept when the transfer is given up.
    pub fn on_kept(&mut self, tell: Kept) {
        self.tell_kept = Some(tell);
    }

    fn stop_threads(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "a thread has panicked");
        }
    }
}

impl Drop for TreeSink {
    fn drop(&mut self) {
        self.discard();
    }
}
