//! Direct reads, many at once: through a kernel ring (io_uring), or by threads where no ring is available.
//!
//! A disk reaches its full rate only with a deep queue. So a worker that meets a range outside the page cache hands the
//! range over here with its buffer, and takes another job. A finished read comes back to the workers as a job. Nothing
//! is started before the first such range is met.
//!
//! # Invariants
//!
//! * The kernel writes only into buffers that are held in [`Flight`]. `Flight` gives a buffer out after its completion
//!   has been taken from the ring, and never frees a buffer before. A buffer keeps its pool alive, so the memory stays
//!   whatever ends meanwhile.
//! * The thread ends when all requesters have gone and no read is under way. A requester that ends need not wait for
//!   it.

#![allow(unsafe_code, reason = "what a ring reads into must outlive its completion: proved here")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use flume::{Receiver, Sender, TryRecvError, WeakSender, unbounded};
use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, pread, read, write};

use super::work::{Job, Parts, Shared};
use crate::fs::direct::Cold;
use crate::fs::ring;
use crate::fs::source::Part;
use crate::transport::Buffer;
use crate::tree::source::FileRange;

/// Number of reads under way at once. A pool of the default size has half as many buffers.
const DEPTH: usize = 64;

/// Number of threads that read where there is no ring: enough to keep most disks busy.
const THREADS: usize = 16;

/// How long to wait before asking a kernel that is short of memory again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Marks the ring's own request, which wakes the thread.
const WAKE: u64 = u64::MAX;

/// A range to be read directly.
#[derive(Debug)]
pub struct Request {
    /// Receives the data.
    pub buffer: Buffer,
    /// The range in the file.
    pub cold: Cold,
    /// The file or part to which the range belongs.
    pub place: Place,
    /// Whether the data is to be encrypted after the read.
    pub encrypt: bool,
}

/// The file to which a range belongs.
#[derive(Debug)]
pub enum Place {
    /// A single file; the range is this part.
    File(Part),
    /// A large file of a tree.
    Tree(FileRange),
}

/// Takes requests. The first request starts the thread that serves them.
pub struct DirectReads {
    jobs: WeakSender<Job>,
    may_use_ring: bool,
    queue: Mutex<Option<Queue>>,
}

struct Queue {
    requests: Sender<Request>,
    bell: Option<Arc<Bell>>,
}

/// Wakes a thread that waits for completions.
struct Bell {
    event: OwnedFd,
    /// Whether the thread waits, or is about to wait.
    is_awaited: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            // The counter of the event can be full only if the bell has been rung already.
            let _ = write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

impl DirectReads {
    /// Creates the queue without starting a thread. Finished reads are posted to `jobs` while another sender of it
    /// exists. Without `may_use_ring`, threads read even if the kernel provides a ring.
    pub fn new(jobs: WeakSender<Job>, may_use_ring: bool) -> Self {
        Self { jobs, may_use_ring, queue: Mutex::new(None) }
    }

    /// Requests the read of a range. `shared` belongs to the transfer whose source has the range.
    ///
    /// # Errors
    ///
    /// Returns the request itself if no thread can be started. The caller must then read the range in another way.
    pub fn submit(&self, request: Request, shared: &Arc<Shared>) -> Result<(), Box<Request>> {
        let mut queue = crate::locked(&self.queue);
        if queue.is_none() {
            *queue = self.start(shared).ok();
        }
        let Some(Queue { requests, bell }) = &*queue else { return Err(Box::new(request)) };
        requests.send(request).map_err(|refused| Box::new(refused.into_inner()))?;
        if let Some(bell) = bell {
            bell.ring();
        }
        Ok(())
    }

    fn start(&self, shared: &Arc<Shared>) -> std::io::Result<Queue> {
        let (requests, queue) = unbounded();
        let done = Done { jobs: self.jobs.clone(), shared: Arc::downgrade(shared) };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().filter(|_| self.may_use_ring);
        let bell = event.map(|event| Arc::new(Bell { event, is_awaited: AtomicBool::new(false) }));
        let its_bell = bell.clone();
        crate::spawn("direct", 128 << 10, move || {
            // The ring is made in this thread, because a ring may be bound to the thread that made it.
            match its_bell.and_then(|bell| Ring::new(bell).ok()) {
                Some(ring) => ring.run(&queue, &done),
                None => run_threads(&queue, &done),
            }
        })?;
        Ok(Queue { requests, bell })
    }
}

/// The destination of finished reads.
#[derive(Clone)]
struct Done {
    jobs: WeakSender<Job>,
    shared: Weak<Shared>,
}

impl Done {
    fn post(&self, request: Request, outcome: Result<usize, Errno>) {
        let (Some(jobs), Some(shared)) = (self.jobs.upgrade(), self.shared.upgrade()) else { return };
        // A worker that waits for the tree to have work must take this job instead. The arrival is counted before the
        // job is posted, because a worker subtracts it when it takes the job.
        if let (Place::Tree(_), Some(Parts::Tree(tree))) = (&request.place, &shared.source) {
            tree.note_arrival();
        }
        let _ = jobs.send(Job::Arrived(Box::new(request), outcome));
    }

    /// Whether the transfer has ended.
    fn is_over(&self) -> bool {
        self.shared.strong_count() == 0
    }
}

fn run_threads(queue: &Receiver<Request>, done: &Done) {
    for _ in 1..THREADS {
        let (queue, done) = (queue.clone(), done.clone());
        let run = move || read_each(&queue, &done);
        // A single thread is enough to continue.
        let _ = crate::spawn("direct", 64 << 10, run);
    }
    read_each(queue, done);
}

fn read_each(queue: &Receiver<Request>, done: &Done) {
    while let Ok(mut request) = queue.recv() {
        if done.is_over() {
            continue;
        }
        let Request { buffer, cold, .. } = &mut request;
        let outcome = loop {
            match pread(&cold.file, cold.hole(buffer.payload_mut()), cold.hole_offset()) {
                Err(Errno::INTR) => {}
                outcome => break outcome,
            }
        };
        done.post(request, outcome);
    }
}

/// The requests that the kernel is working on.
struct Flight {
    places: [Option<Request>; DEPTH],
    count: usize,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Requests are left only after a panic. The kernel may still write to their buffers, so that memory is leaked.
        for request in self.places.iter_mut().filter_map(Option::take) {
            std::mem::forget(request);
        }
    }
}

struct Ring {
    // Declared before `flight`, so dropped first: completions cannot be taken without the ring.
    ring: IoUring,
    flight: Flight,
    bell: Arc<Bell>,
    /// Whether a poll request for the bell is pending.
    is_armed: bool,
}

impl Ring {
    /// Creates a ring and checks that it works. Must be called by the thread that uses the ring.
    fn new(bell: Arc<Bell>) -> std::io::Result<Self> {
        let entries = (DEPTH * 2) as u32;
        let mut ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        ring::check(&mut ring, &[opcode::Read::CODE, opcode::PollAdd::CODE])?;
        let flight = Flight { places: [const { None }; DEPTH], count: 0 };
        Ok(Self { ring, flight, bell, is_armed: false })
    }

    fn run(mut self, queue: &Receiver<Request>, done: &Done) {
        let mut is_ended = false;
        while !is_ended || self.flight.count > 0 {
            while !is_ended && self.flight.count < DEPTH {
                let request = match self.flight.count {
                    0 => queue.recv().map_err(|_| TryRecvError::Disconnected),
                    _ => queue.try_recv(),
                };
                match request {
                    Ok(_) if done.is_over() => {}
                    Ok(request) => self.start(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => is_ended = true,
                }
            }
            if self.flight.count > 0 {
                self.wait(queue);
                self.reap(done);
            }
        }
    }

    /// Prepares a read. The next wait submits it.
    fn start(&mut self, request: Request) {
        let free = self.flight.places.iter().position(Option::is_none).expect("fewer than DEPTH are under way");
        let request = self.flight.places[free].insert(request);
        let offset = request.cold.hole_offset();
        let file = types::Fd(request.cold.file.as_raw_fd());
        let hole = request.cold.hole(request.buffer.payload_mut());
        let read = opcode::Read::new(file, hole.as_mut_ptr(), hole.len() as u32).offset(offset).build();
        self.flight.count += 1;
        // SAFETY: the bytes belong to a buffer that stays in `flight`, untouched, until this request's completion has
        // been taken; so does the descriptor. A slot's address does not change when its `Buffer` moves.
        let pushed = unsafe { self.ring.submission().push(&read.user_data(free as u64)) };
        pushed.expect("room for twice DEPTH");
    }

    /// Submits the prepared requests, and waits until a read has finished or another request has come.
    fn wait(&mut self, queue: &Receiver<Request>) {
        if !self.is_armed {
            let event = types::Fd(self.bell.event.as_fd().as_raw_fd());
            let poll = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(WAKE);
            // SAFETY: the request refers to no memory, and its descriptor lives as long as the ring.
            unsafe { self.ring.submission().push(&poll) }.expect("room for twice DEPTH");
            self.is_armed = true;
        }
        self.bell.is_awaited.store(true, Ordering::SeqCst);
        // The sender of a request posts it before reading the flag, so at least one side sees what the other has done.
        let has_more = !queue.is_empty() && self.flight.count < DEPTH;
        let waited = self.ring.submit_and_wait(usize::from(!has_more));
        self.bell.is_awaited.store(false, Ordering::SeqCst);
        match waited.as_ref().map_err(Errno::from_io_error) {
            Ok(_) | Err(Some(Errno::INTR | Errno::BUSY)) => {}
            Err(Some(Errno::AGAIN | Errno::NOMEM)) => std::thread::sleep(RETRY_PAUSE),
            Err(_) => panic!("the ring is ours and was made to be used so: {waited:?}"),
        }
    }

    fn reap(&mut self, done: &Done) {
        while let Some(entry) = { self.ring.completion().next() } {
            if entry.user_data() == WAKE {
                self.is_armed = false;
                let _ = read(&self.bell.event, &mut [0; 8]);
                continue;
            }
            let Some(request) = self.flight.places[entry.user_data() as usize].take() else { continue };
            self.flight.count -= 1;
            let outcome = usize::try_from(entry.result());
            done.post(request, outcome.map_err(|_| Errno::from_raw_os_error(-entry.result())));
        }
    }
}

#[cfg(test)]
mod tests;
