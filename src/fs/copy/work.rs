//! Who does what: the threads of a copy, and what they hand to each other.
//!
//! A thread works depth first on what it has and hands over a part only while another has nothing to do. So what waits
//! is never more than a few jobs for each thread, whatever the tree's size.
//!
//! # Invariants
//!
//! * The copy is over when no job waits and no thread works; both are counted under one lock.
//! * A large file stays in `large` while it has ranges that nobody has taken. Whoever leaves it last publishes it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use rustix::io::Errno;

use super::entry::Entry;
use super::file::Large;
use super::links::Links;
use super::tree::{Directory, DirectoryRef, Pending};
use super::{Events, Failure, Item, Note, Options, Problem, Side, Stop, Totals};

/// Bytes read and written at once. Twice that fits the second-level cache; larger is slower on tmpfs.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

/// Entries of a directory that are handed over together.
pub(super) const BATCH_ENTRIES: usize = 32;

/// A part of the work.
pub(super) enum Job<'e> {
    Item(Item),
    Directory(DirectoryRef<'e>, Entry),
    Entries(DirectoryRef<'e>, Vec<Entry>),
}

struct Queue<'e> {
    jobs: Vec<Job<'e>>,
    large: Vec<Arc<Large<'e>>>,
    working: usize,
    waiting: usize,
}

/// What the whole copy knows.
pub(super) struct Engine<'e> {
    pub(super) options: &'e Options<'e>,
    pub(super) events: &'e dyn Events,
    pub(super) umask: u32,
    /// User and group that new files get where nothing else says so.
    pub(super) us: (u32, u32),
    pub(super) threads: usize,
    pub(super) totals: Totals,
    /// The destination has turned out not to share blocks with the source.
    pub(super) cannot_clone: AtomicBool,
    stop: AtomicBool,
    outcome: Mutex<(Option<Failure>, Option<Stop>)>,
}

/// The threads' common account. It lets go of all directories before the [`Engine`] goes, which they report to.
pub(super) struct Crew<'e> {
    engine: &'e Engine<'e>,
    pub(super) links: Links<'e>,
    queue: Mutex<Queue<'e>>,
    ready: Condvar,
    /// Threads with nothing to do, less jobs that wait.
    hungry: AtomicUsize,
}

impl<'e> Engine<'e> {
    pub(super) fn new(options: &'e Options<'e>, events: &'e dyn Events, threads: usize) -> Self {
        Self {
            options,
            events,
            umask: crate::fs::umask(),
            us: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            threads,
            totals: Totals::default(),
            cannot_clone: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            outcome: Mutex::new((None, None)),
        }
    }

    pub(super) fn outcome(&self) -> (Option<Failure>, Option<Stop>) {
        let mut outcome = self.outcome.lock().expect("no thread panics with it locked");
        if outcome.1.is_none() && self.stop.load(Ordering::Relaxed) {
            outcome.1 = Some(Stop::Cancelled);
        }
        outcome.clone()
    }

    /// Whether the copy is to end. Asked between entries, and between pieces of a file.
    pub(super) fn is_stopped(&self) -> bool {
        if self.options.cancel.load(Ordering::Relaxed) {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self, failure: Failure) {
        self.totals.failed.fetch_add(1, Ordering::Relaxed);
        self.events.failed(&failure);
        let mut outcome = self.outcome.lock().expect("no thread panics with it locked");
        if failure.is_fatal() && outcome.1.is_none() {
            outcome.1 = Some(Stop::Fatal(failure.clone()));
            self.stop.store(true, Ordering::Relaxed);
        }
        outcome.0.get_or_insert(failure);
    }

    pub(super) fn fail(&self, directory: &Directory<'e>, entry: &Entry, failed: (Side, Problem)) {
        let (side, problem) = failed;
        if problem == Problem::Os(Errno::CANCELED) && self.is_stopped() {
            // It was not tried to its end. That the copy was stopped is told once.
            return;
        }
        let path = match side {
            Side::Source => directory.node.source_of(entry),
            Side::Destination => directory.node.destination_of(entry),
        };
        self.failed(Failure { side, path, problem });
    }

    /// Bytes of a file have been copied.
    pub(super) fn count(&self, bytes: u64) {
        if bytes > 0 {
            self.totals.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.events.progress(bytes);
        }
    }

    pub(super) fn note(&self, directory: &Directory<'e>, entry: &Entry, note: Note<'_>) {
        self.events.note(note, &directory.node.paths(entry));
    }
}

impl<'e> Crew<'e> {
    pub(super) fn new(engine: &'e Engine<'e>) -> Self {
        Self {
            engine,
            links: Links::default(),
            queue: Mutex::new(Queue { jobs: Vec::new(), large: Vec::new(), working: 0, waiting: 0 }),
            ready: Condvar::new(),
            hungry: AtomicUsize::new(0),
        }
    }

    pub(super) fn run(&self, items: &[Item]) {
        // Taken from the end, so that the first comes first.
        self.lock().jobs.extend(items.iter().rev().cloned().map(Job::Item));
        std::thread::scope(|scope| {
            for index in 1..self.engine.threads {
                let made = std::thread::Builder::new().name(format!("copy-{index}"));
                // With fewer threads it takes longer, and that is all.
                let _ = made.spawn_scoped(scope, || Worker::new(self).work());
            }
            Worker::new(self).work();
        });
    }

    fn lock(&self) -> MutexGuard<'_, Queue<'e>> {
        self.queue.lock().expect("no thread panics with the queue locked")
    }

    /// Whether a thread has nothing to do. A guess: it may have changed by the time that a job is there.
    pub(super) fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed) > 0
    }

    pub(super) fn hand_over(&self, job: Job<'e>) {
        let mut queue = self.lock();
        queue.jobs.push(job);
        self.account(&queue);
        drop(queue);
        self.ready.notify_one();
    }

    fn account(&self, queue: &Queue<'e>) {
        self.hungry.store(queue.waiting.saturating_sub(queue.jobs.len()), Ordering::Relaxed);
    }

    /// Lets all threads take ranges of a file.
    pub(super) fn share(&self, large: &Arc<Large<'e>>) {
        self.lock().large.push(Arc::clone(large));
        self.ready.notify_all();
    }

    /// No ranges of a file are left to take.
    pub(super) fn unshare(&self, large: &Arc<Large<'e>>) {
        self.lock().large.retain(|other| !Arc::ptr_eq(other, large));
    }
}

/// One thread.
pub(super) struct Worker<'e, 'c> {
    pub(super) engine: &'e Engine<'e>,
    pub(super) crew: &'c Crew<'e>,
    pub(super) buffer: Vec<u8>,
    /// Directories that have been listed, with those below them that have not been entered. The last is the deepest.
    pub(super) pending: Vec<Pending<'e>>,
}

enum Found<'e> {
    Job(Job<'e>),
    Large(Arc<Large<'e>>),
}

impl<'e, 'c> Worker<'e, 'c> {
    fn new(crew: &'c Crew<'e>) -> Self {
        // One byte more than is asked for at a time, to see a file that has grown.
        Self { engine: crew.engine, crew, buffer: vec![0; BUFFER_BYTES + 1], pending: Vec::new() }
    }

    fn work(&mut self) {
        while let Some(found) = self.next() {
            match found {
                Found::Large(large) => large.copy_ranges(self),
                Found::Job(Job::Item(item)) => self.copy_item(&item),
                Found::Job(Job::Directory(parent, entry)) => self.copy_directory(&parent, &entry),
                Found::Job(Job::Entries(parent, entries)) => {
                    for entry in entries {
                        if self.engine.is_stopped() {
                            break;
                        }
                        self.copy_entry(&parent, entry);
                    }
                }
            }
            self.work_off();
            self.leave();
        }
    }

    /// Enters the directories that are pending, the deepest first, and gives the ones nearest to the top away.
    fn work_off(&mut self) {
        while let Some(last) = self.pending.last_mut() {
            if self.engine.is_stopped() {
                self.pending.clear();
                return;
            }
            let (parent, Some(entry)) = (last.directory.clone(), last.below.pop()) else {
                self.pending.pop();
                continue;
            };
            if last.below.is_empty() {
                // Before it is entered, so that a deep chain of directories is not held twice.
                self.pending.pop();
            }
            self.copy_directory(&parent, &entry);
            drop(parent);
            while self.crew.is_hungry()
                && let Some(first) = self.pending.iter_mut().find(|pending| !pending.below.is_empty())
                && let Some(entry) = first.below.pop()
            {
                self.crew.hand_over(Job::Directory(first.directory.clone(), entry));
            }
        }
    }

    fn next(&mut self) -> Option<Found<'e>> {
        let crew = self.crew;
        let mut queue = crew.lock();
        loop {
            let found = match queue.large.first() {
                Some(large) => Some(Found::Large(Arc::clone(large))),
                None => queue.jobs.pop().map(Found::Job),
            };
            if found.is_some() || queue.working == 0 {
                queue.working += usize::from(found.is_some());
                crew.account(&queue);
                return found;
            }
            queue.waiting += 1;
            crew.account(&queue);
            queue = crew.ready.wait(queue).expect("no thread panics with the queue locked");
            queue.waiting -= 1;
        }
    }

    fn leave(&mut self) {
        let mut queue = self.crew.lock();
        queue.working -= 1;
        if queue.working == 0 {
            drop(queue);
            self.crew.ready.notify_all();
        }
    }
}
