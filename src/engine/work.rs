//! Worker threads: read, compress, seal, open and write chunks. They own no state of the session. Buffers come with a
//! job and go back with its result.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender, WeakSender, unbounded};
use rd_proto::compress::{Chooser, Compressor, Decompressor, Method};
use rd_proto::control::IoFact;
use rd_proto::frame::{ChunkHeader, Compression};
use rd_proto::record::PayloadKeys;
use rd_proto::session::BufferId;
use rustix::io::Errno;

use super::Event;
use super::account::Clock;
use super::io::{DirectReads, Place, Request};
use super::pace::Pace;
use super::spool;
use crate::fs::direct::{Cold, Tally};
use crate::fs::sink::{FileSink, StreamSink};
use crate::fs::source::{FileSource, Part, StreamSource};
use crate::options::Compress;
use crate::transport::Buffer;
use crate::transport::relay::{Empty, RelayOutput};
use crate::transport::spool::{Chunk, Gone, SpoolOutput};
use crate::tree::sink::Refused;
use crate::tree::source::{Next, TreeSource};

/// Maximum number of threads that seal and open. Further cores are better left to the source and the sink.
const WORKERS_MAX: usize = 8;

/// A job for a worker.
#[derive(Debug)]
pub enum Job {
    /// Read the next part of the file or tree into the buffer and seal it.
    Read(Buffer, bool),
    /// Read this planned part into the buffer and seal it.
    ReadPart(Buffer, Part, bool),
    /// Take the result of a direct read, and seal the data.
    Arrived(Box<Request>, Result<usize, Errno>),
    /// Seal the data that the stream's reader has read.
    Seal(Buffer, Part, bool),
    /// Encrypt a chunk that was sealed with a checksum.
    Encrypt(Buffer),
    /// Check and open an arrived chunk.
    Open(Buffer),
    /// Write an opened chunk to the file.
    Write(Buffer),
    /// Publish the file, all of which has been written.
    Commit,
}

/// A job for the thread of a sink that takes chunks in order.
pub enum SinkJob {
    /// Take this chunk.
    Take(Buffer),
    /// Publish what is not published yet, and report the result. All chunks have been taken.
    Commit,
}

/// A source that workers read.
pub enum Parts {
    /// One file.
    File(Box<FileSource>),
    /// A tree.
    Tree(Box<TreeSource>),
}

/// State shared by the workers of one transfer.
pub struct Shared {
    /// Protects the payload.
    pub keys: PayloadKeys,
    /// The file or tree to send.
    pub source: Option<Parts>,
    /// The file to write.
    pub sink: Option<FileSink>,
    /// What to compress.
    pub compress: Compress,
    /// Limits how fast the source is read.
    pub pace: Pace,
    /// Whether chunks are waiting for the peer, so that a part need not be sent before it is full.
    pub backlog: AtomicBool,
    /// Whether no lane is waiting for chunks, so that there is time to compress.
    pub is_line_busy: AtomicBool,
    /// Maximum number of bytes read into a buffer: the whole buffer, or less on a slow line.
    pub part_bytes: AtomicUsize,
    /// Time that threads compress, seal, open or decompress, for the report.
    pub busy: Clock,
    /// Time that threads read the source or wait for it.
    pub reading: Clock,
    /// Number of cold ranges that are being read directly.
    pub afloat: AtomicU32,
    /// How much of the source was read, and how.
    pub tally: Tally,
    /// Tags of chunks that lanes have read and sealed. A tag is pushed before its chunk is sent, so before any
    /// acknowledgement can come.
    pub(super) tags: Mutex<Vec<(BufferId, [u8; 16])>>,
    direct: OnceLock<DirectReads>,
    /// Whether the transfer has ended. A reader that still waits for its stream then gives up.
    pub over: AtomicBool,
    auto: Auto,
}

impl Shared {
    /// Creates the shared state of a transfer's workers.
    pub fn new(keys: PayloadKeys, compress: Compress, pace: Pace) -> Self {
        Self {
            keys,
            source: None,
            sink: None,
            compress,
            pace,
            backlog: AtomicBool::new(false),
            is_line_busy: AtomicBool::new(false),
            part_bytes: AtomicUsize::new(usize::MAX),
            busy: Clock::default(),
            reading: Clock::default(),
            afloat: AtomicU32::new(0),
            tally: Tally::default(),
            tags: Mutex::default(),
            direct: OnceLock::new(),
            over: AtomicBool::new(false),
            auto: Auto { start: Instant::now(), chooser: Mutex::new(Chooser::new(workers())) },
        }
    }

    /// Returns how many bytes to read into a buffer now.
    fn part_bytes(&self) -> usize {
        self.pace.part_bytes(self.part_bytes.load(Ordering::Relaxed))
    }

    /// Returns how to compress the next chunk.
    pub(super) fn method(&self) -> Option<Method> {
        match self.compress {
            Compress::Off => None,
            Compress::Lz4 => Some(Method::Lz4),
            Compress::Zstd => Some(Method::Zstd { level: ZSTD_LEVEL }),
            Compress::Auto => crate::locked(&self.auto.chooser).choose(),
        }
    }

    /// Records that a chunk of this many bytes is ready for the line.
    pub(super) fn note_ready(&self, wire_bytes: usize) {
        if self.compress == Compress::Auto {
            let is_busy = self.is_line_busy.load(Ordering::Relaxed);
            crate::locked(&self.auto.chooser).note_ready(self.auto.start.elapsed(), wire_bytes, is_busy);
        }
    }

    /// Seals a piece of a broadcast's stream into a buffer. The stream itself stays unchanged.
    fn seal_chunk(&self, mut header: ChunkHeader, chunk: &Chunk, buffer: &mut Buffer) -> ChunkHeader {
        let Some(plain) = chunk.whole() else {
            chunk.copy_to(buffer.payload_mut());
            return self.seal(header, buffer);
        };
        self.busy.during(|| {
            self.keys.seal_from(&mut header, plain, &mut buffer.payload_mut()[..plain.len()]);
            *buffer.header_mut() = header.encode();
        });
        header
    }

    /// Seals the chunk in a buffer under this header, and stores the header with its tag in the buffer.
    pub(super) fn seal(&self, mut header: ChunkHeader, buffer: &mut Buffer) -> ChunkHeader {
        let wire_bytes = header.wire_bytes as usize;
        self.busy.during(|| {
            self.keys.seal(&mut header, &mut buffer.payload_mut()[..wire_bytes]);
            *buffer.header_mut() = header.encode();
        });
        header
    }

    /// Encrypts the chunk in a buffer, which was sealed with a checksum.
    fn encrypt(&self, buffer: &mut Buffer) -> ChunkHeader {
        let mut header = ChunkHeader::decode(buffer.header()).expect("we encoded it");
        header.sealed = true;
        self.seal(header, buffer)
    }
}

/// State of `--compress auto`.
struct Auto {
    start: Instant,
    chooser: Mutex<Chooser>,
}

/// Compression must save at least an eighth to be worth the other end's time.
const SHRINK_EIGHTHS_MAX: usize = 7;

/// Length of the beginning of a chunk that is tried first, to see whether the chunk shrinks.
const SAMPLE_BYTES: usize = 64 << 10;

/// Level of `--compress zstd`: the fastest regular level, because a link of 25 Gb/s is to be kept busy.
const ZSTD_LEVEL: i32 = 1;

/// Returns the maximum number of threads of one end of a session with this many TCP lanes: the loop, the workers, a
/// reader or writer, two threads for each lane, and some that bring up lanes.
pub fn threads_max(lanes: usize) -> usize {
    const OTHERS: usize = 6;
    workers() + 2 * lanes + OTHERS
}

fn workers() -> usize {
    crate::processors().clamp(2, WORKERS_MAX)
}

/// Starts the workers. They end when the sender of jobs is dropped.
///
/// # Errors
///
/// The system's error if a thread cannot be started.
pub fn start(shared: &Arc<Shared>, events: &Sender<Event>) -> std::io::Result<Sender<Job>> {
    let (jobs, queue) = unbounded();
    shared.direct.get_or_init(|| DirectReads::new(jobs.downgrade(), true));
    for _ in 0..workers() {
        let mut worker = Worker {
            shared: Arc::clone(shared),
            queue: queue.clone(),
            jobs: jobs.downgrade(),
            events: events.clone(),
            compressor: Compressor::default(),
            opener: Opener::default(),
            scratch: Vec::new(),
        };
        crate::spawn("worker", 256 << 10, move || worker.run())?;
    }
    Ok(jobs)
}

/// Has a worker encrypt a chunk that was sealed with a checksum. Under a rate limit, encrypts the chunk here and returns
/// it: the workers wait for the limit, and have more reads to wait for, while the receiver may need this chunk first.
pub fn encrypt(shared: &Shared, jobs: &Sender<Job>, mut buffer: Buffer) -> Option<(Buffer, ChunkHeader)> {
    if !shared.pace.is_free() {
        let header = shared.encrypt(&mut buffer);
        return Some((buffer, header));
    }
    if let Some(Parts::Tree(tree)) = &shared.source {
        // Workers that wait for the tree to have work may be waiting for the answer to the records in this chunk.
        tree.note_arrival();
    }
    let _ = jobs.send(Job::Encrypt(buffer));
    None
}

struct Worker {
    shared: Arc<Shared>,
    queue: Receiver<Job>,
    /// Puts a job back into the queue.
    jobs: WeakSender<Job>,
    events: Sender<Event>,
    compressor: Compressor,
    opener: Opener,
    /// Holds one chunk while it is compressed.
    scratch: Vec<u8>,
}

/// Checks, decrypts and decompresses chunks.
#[derive(Default)]
pub(super) struct Opener {
    decompressor: Decompressor,
    /// Holds one chunk while it is decompressed.
    scratch: Vec<u8>,
}

impl Opener {
    /// Opens a chunk, and returns whether it is genuine. If so, its payload is the data that was read at the other end.
    pub(super) fn open(&mut self, shared: &Shared, buffer: &mut Buffer) -> bool {
        shared.busy.during(|| self.try_open(shared, buffer))
    }

    fn try_open(&mut self, shared: &Shared, buffer: &mut Buffer) -> bool {
        let Some(header) = ChunkHeader::decode(buffer.header()) else { return false };
        let wire_bytes = header.wire_bytes as usize;
        let Some(payload) = buffer.payload_mut().get_mut(..wire_bytes) else { return false };
        if !shared.keys.open(&header, payload) {
            return false;
        }
        if header.compression == Compression::None {
            return true;
        }
        let plain_bytes = header.plain_bytes as usize;
        if plain_bytes > buffer.payload().len() {
            return false;
        }
        // Moves the compressed bytes, because they are fewer than the plain ones.
        self.scratch.clear();
        self.scratch.extend_from_slice(&buffer.payload()[..wire_bytes]);
        self.decompressor.decompress(header.compression, &self.scratch, buffer.payload_mut(), plain_bytes).is_some()
    }
}

impl Worker {
    fn run(&mut self) {
        while let Ok(job) = self.queue.recv() {
            let event = match job {
                Job::Read(buffer, encrypt) => self.read(buffer, encrypt),
                Job::ReadPart(buffer, part, encrypt) => self.read_part(buffer, part, encrypt),
                Job::Arrived(request, outcome) => self.arrived(*request, outcome),
                Job::Seal(buffer, part, encrypt) => Some(self.seal(buffer, &part, encrypt)),
                Job::Encrypt(buffer) => Some(self.encrypt(buffer)),
                Job::Open(buffer) => Some(self.open(buffer)),
                Job::Write(buffer) => Some(self.write(buffer)),
                Job::Commit => Some(self.commit()),
            };
            if let Some(event) = event
                && self.events.send(event).is_err()
            {
                return;
            }
        }
    }

    /// Reads the next part and seals it. `None` if it is read elsewhere.
    fn read(&mut self, mut buffer: Buffer, encrypt: bool) -> Option<Event> {
        let shared = Arc::clone(&self.shared);
        let source = match shared.source.as_ref().expect("reads are asked of sources in parts") {
            Parts::File(source) => source,
            Parts::Tree(source) => {
                let next =
                    shared.reading.during(|| source.next(buffer.payload_mut(), shared.part_bytes(), &shared.tally));
                return self.take_next(buffer, next, encrypt);
            }
        };
        match source.next_part(shared.part_bytes()) {
            Some(part) => self.read_part(buffer, part, encrypt),
            None => Some(Event::Unfilled(buffer)),
        }
    }

    /// Handles what a tree has provided for a buffer.
    fn take_next(&mut self, buffer: Buffer, next: Next, encrypt: bool) -> Option<Event> {
        match next {
            Next::Part(part) => Some(self.pace_and_seal(buffer, &part, encrypt)),
            Next::Cold(range, cold) => self.defer(buffer, cold, Place::Tree(range), encrypt),
            // The job goes behind the work that has arrived, which is in the queue or about to be.
            Next::Later => {
                let _ = self.jobs.upgrade()?.send(Job::Read(buffer, encrypt));
                None
            }
            Next::Copy(_) => unreachable!("of a copy within a host"),
            Next::Ended => Some(Event::Unfilled(buffer)),
        }
    }

    /// Reads this part and seals it. `None` if it is read elsewhere.
    fn read_part(&mut self, mut buffer: Buffer, part: Part, encrypt: bool) -> Option<Event> {
        let shared = Arc::clone(&self.shared);
        let source = match shared.source.as_ref().expect("parts are planned of a source in parts") {
            Parts::File(source) => source,
            Parts::Tree(source) => {
                source.note_taken();
                let read = || source.read_planned(&part, buffer.payload_mut(), &shared.tally);
                let next = shared.reading.during(read);
                return self.take_next(buffer, next, encrypt);
            }
        };
        match shared.reading.during(|| source.read(&part, buffer.payload_mut(), &shared.tally)) {
            Ok(None) => Some(self.take_part(source, buffer, &part, encrypt)),
            Ok(Some(cold)) => self.defer(buffer, cold, Place::File(part), encrypt),
            Err(fact) => Some(Event::SourceFailed(buffer, fact)),
        }
    }

    /// Has a cold range read directly, and tells the session that its buffer waits for the device.
    fn defer(&mut self, buffer: Buffer, cold: Cold, place: Place, encrypt: bool) -> Option<Event> {
        let shared = Arc::clone(&self.shared);
        // Must be sent before the read can be finished.
        self.events.send(Event::Queued(buffer.id())).ok()?;
        let direct = shared.direct.get().expect("there before any worker");
        shared.afloat.fetch_add(1, Ordering::Relaxed);
        let refused = direct.submit(Request { buffer, cold, place, encrypt }, &shared).err()?;
        if let (Place::Tree(_), Some(Parts::Tree(tree))) = (&refused.place, &shared.source) {
            tree.note_arrival();
        }
        self.arrived(*refused, Err(Errno::AGAIN))
    }

    /// Takes the result of a direct read, and seals the data. `None` if the buffer is being filled again.
    fn arrived(&mut self, request: Request, outcome: Result<usize, Errno>) -> Option<Event> {
        let Request { mut buffer, cold, place, encrypt } = request;
        let shared = Arc::clone(&self.shared);
        shared.afloat.fetch_sub(1, Ordering::Relaxed);
        let (target, tally) = (buffer.payload_mut(), &shared.tally);
        match (place, shared.source.as_ref().expect("it was read")) {
            (Place::File(part), Parts::File(source)) => match source.finish(&cold, outcome, target, tally) {
                Ok(()) => Some(self.take_part(source, buffer, &part, encrypt)),
                Err(fact) => Some(Event::SourceFailed(buffer, fact)),
            },
            (Place::Tree(range), Parts::Tree(source)) => match source.settle(&range, &cold, outcome, target, tally) {
                Some(part) => Some(self.pace_and_seal(buffer, &part, encrypt)),
                None => self.read(buffer, encrypt),
            },
            _ => unreachable!("a transfer has one source"),
        }
    }

    /// Seals a part of a file that has just been read, unless the file has changed in the meantime.
    fn take_part(&mut self, source: &FileSource, buffer: Buffer, part: &Part, encrypt: bool) -> Event {
        // Checked before the part is passed on: either all parts are of one state of the file, or nothing is published.
        match source.note_read(part.length) {
            Ok(()) => self.pace_and_seal(buffer, part, encrypt),
            Err(fact) => Event::SourceFailed(buffer, fact),
        }
    }

    /// Waits until the rate limit allows the data that has just been read, then seals it. The wait cannot come before
    /// the read, because finished direct reads are in the queue behind other reads.
    fn pace_and_seal(&mut self, buffer: Buffer, part: &Part, encrypt: bool) -> Event {
        self.shared.pace.wait(part.length);
        self.seal(buffer, part, encrypt)
    }

    fn seal(&mut self, mut buffer: Buffer, part: &Part, encrypt: bool) -> Event {
        let shared = Arc::clone(&self.shared);
        let header = shared.busy.during(|| {
            let (compression, wire_bytes) = self.compress(&mut buffer, part.length);
            let header = ChunkHeader { compression, wire_bytes: wire_bytes as u32, ..header_of(part, encrypt) };
            shared.seal(header, &mut buffer)
        });
        Event::Sealed(buffer, header)
    }

    /// Compresses the payload, which has this length. Returns its new form and its number of bytes.
    fn compress(&mut self, buffer: &mut Buffer, length: usize) -> (Compression, usize) {
        let shrunk = self.shared.method().and_then(|method| self.shrink(buffer, length, method));
        let (kind, wire_bytes) = shrunk.unwrap_or((Compression::None, length));
        self.shared.note_ready(wire_bytes);
        (kind, wire_bytes)
    }

    fn shrink(&mut self, buffer: &mut Buffer, length: usize, method: Method) -> Option<(Compression, usize)> {
        let is_auto = self.shared.compress == Compress::Auto;
        self.scratch.resize(length, 0);
        let payload = &buffer.payload()[..length];
        if is_auto && length > 2 * SAMPLE_BYTES {
            let sample = self.compressor.compress(Method::Lz4, &payload[..SAMPLE_BYTES], &mut self.scratch);
            if sample.is_none_or(|sample| sample > SAMPLE_BYTES / 8 * SHRINK_EIGHTHS_MAX) {
                crate::locked(&self.shared.auto.chooser).note_incompressible();
                return None;
            }
        }
        let start = Instant::now();
        let written = self.compressor.compress(method, payload, &mut self.scratch);
        if is_auto {
            let is_worth_it = |written: &usize| *written <= length / 8 * SHRINK_EIGHTHS_MAX;
            match written.filter(is_worth_it) {
                Some(written) => {
                    crate::locked(&self.shared.auto.chooser).note_compressed(method, length, written, start.elapsed())
                }
                None => crate::locked(&self.shared.auto.chooser).note_incompressible(),
            }
        }
        let written = written?;
        buffer.payload_mut()[..written].copy_from_slice(&self.scratch[..written]);
        Some((method.kind(), written))
    }

    fn encrypt(&mut self, mut buffer: Buffer) -> Event {
        if let Some(Parts::Tree(tree)) = &self.shared.source {
            tree.note_taken();
        }
        let header = self.shared.encrypt(&mut buffer);
        Event::Sealed(buffer, header)
    }

    fn open(&mut self, mut buffer: Buffer) -> Event {
        let genuine = self.opener.open(&self.shared, &mut buffer);
        Event::Opened(buffer, genuine)
    }

    fn write(&mut self, buffer: Buffer) -> Event {
        let header = ChunkHeader::decode(buffer.header()).expect("opened before");
        let sink = self.shared.sink.as_ref().expect("writes are asked of file sinks");
        match sink.write_at(&buffer.payload()[..header.plain_bytes as usize], header.position) {
            Ok(()) => Event::Written(buffer),
            Err(fact) => Event::SinkFailed(buffer, fact),
        }
    }

    fn commit(&self) -> Event {
        let sink = self.shared.sink.as_ref().expect("asked of file sinks");
        Event::Committed(sink.publish().map(|()| None).map_err(Refused::Io))
    }
}

/// Returns the header of an uncompressed part, without its tag.
pub(super) fn header_of(part: &Part, encrypt: bool) -> ChunkHeader {
    ChunkHeader {
        is_final: part.is_final,
        sealed: encrypt,
        compression: Compression::None,
        wire_bytes: part.length as u32,
        plain_bytes: part.length as u32,
        item: part.item,
        sequence: part.sequence,
        position: part.position,
        tag: [0; 16],
    }
}

/// How often an idle writer checks whether its stream still has a reader.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a reader must have been gone before that is a failure. The reader may have had all the data, while the
/// final chunk, which only marks the end, is still on its way.
const UNREAD_MAX: Duration = Duration::from_millis(600);

/// The source of a reader's bytes.
pub enum Feed {
    /// A stream.
    Stream(StreamSource),
    /// The receiver of another session.
    Relay(RelayOutput),
    /// The data of a broadcast that this host keeps.
    Spool(Arc<SpoolOutput>),
}

/// Fills an empty buffer; the flag tells whether its chunk is to be encrypted.
type Fill = Box<dyn FnMut(Buffer, bool) -> Option<Event> + Send>;

/// Starts a thread that reads a stream. Reading has a thread of its own because it may wait without end.
///
/// # Errors
///
/// The system's error if the thread cannot be started.
pub fn start_reader(feed: Feed, shared: Arc<Shared>, events: Sender<Event>) -> std::io::Result<Sender<(Buffer, bool)>> {
    let (empty, queue) = unbounded::<(Buffer, bool)>();
    let mut fill = reading(feed, shared);
    crate::spawn("read", 128 << 10, move || {
        while let Ok((buffer, encrypt)) = queue.recv() {
            let Some(event) = fill(buffer, encrypt) else { return };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(empty)
}

/// Returns the function that fills each empty buffer.
fn reading(feed: Feed, shared: Arc<Shared>) -> Fill {
    match feed {
        Feed::Stream(mut source) => Box::new(move |mut buffer, _| {
            let bytes_max = if source.has_messages() { usize::MAX } else { shared.part_bytes() };
            let length = buffer.payload().len().min(bytes_max);
            let target = &mut buffer.payload_mut()[..length];
            let part = shared.reading.during(|| source.next_part(target, &shared.backlog, &shared.over));
            Some(match part {
                Ok(Some(part)) if part.is_final && source.is_cut() => Event::Cut,
                Ok(Some(part)) => {
                    shared.pace.wait(part.length);
                    Event::Filled(buffer, part)
                }
                Ok(None) => Event::Unfilled(buffer),
                Err(fact) => Event::SourceFailed(buffer, fact),
            })
        }),
        Feed::Relay(relay) => in_turn(shared, move |buffer, _, shared| {
            let filled = shared.reading.during(|| relay.fill(buffer, shared.part_bytes(), &shared.over));
            filled.map(|(buffer, length)| (buffer, length, None)).map_err(|empty| match empty {
                Empty::Over => None,
                Empty::Cut => Some(Event::Cut),
            })
        }),
        Feed::Spool(output) => in_turn(shared, move |mut buffer, numbered, shared| {
            let bytes_max = shared.part_bytes().min(buffer.payload().len());
            let chunk = match shared.reading.during(|| spool::next(&output, bytes_max, &shared.over)) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok((buffer, 0, None)),
                Err(fact) => return Err(fact.map(|fact| Event::SourceFailed(buffer, fact))),
            };
            let length = chunk.length();
            let sealed = if shared.compress == Compress::Off {
                Some(shared.seal_chunk(numbered(length), &chunk, &mut buffer))
            } else {
                chunk.copy_to(buffer.payload_mut());
                None
            };
            match output.pass(chunk) {
                Ok(()) => Ok((buffer, length, sealed)),
                Err(Gone) => Err(spool::unless_over(&shared.over).map(|fact| Event::SourceFailed(buffer, fact))),
            }
        }),
    }
}

/// A buffer, the number of bytes of the stream in it, and its header if they have been sealed. An error is what to
/// report, if the session is not over anyway.
type Put = Result<(Buffer, usize, Option<ChunkHeader>), Option<Event>>;

/// Numbers the data that `fill` puts into each buffer, until there is no more. `fill` gets a function that makes the
/// header for a number of bytes.
fn in_turn(
    shared: Arc<Shared>,
    fill: impl Fn(Buffer, &dyn Fn(usize) -> ChunkHeader, &Shared) -> Put + Send + 'static,
) -> Fill {
    let mut next = Some(Part { item: 0, sequence: 0, position: 0, length: 0, is_final: false });
    Box::new(move |buffer, encrypt| {
        let Some(part) = &mut next else { return Some(Event::Unfilled(buffer)) };
        let filled = |length| Part { length, is_final: length == 0, ..*part };
        let (buffer, length, sealed) = match fill(buffer, &|length| header_of(&filled(length), encrypt), &shared) {
            Ok(filled) => filled,
            Err(event) => {
                next = None;
                return event;
            }
        };
        let filled = filled(length);
        part.sequence += 1;
        part.position += length as u64;
        if filled.is_final {
            next = None;
        }
        shared.pace.wait(length);
        Some(match sealed {
            Some(header) => Event::Sealed(buffer, header),
            None => Event::Filled(buffer, filled),
        })
    })
}

/// Starts a thread that opens a stream sink and writes to it. Writing has a thread of its own because it may block
/// without end.
///
/// # Errors
///
/// The system's error if the thread cannot be started.
pub fn start_writer(
    open: impl FnOnce() -> Result<StreamSink, IoFact> + Send + 'static,
    events: Sender<Event>,
) -> std::io::Result<Sender<SinkJob>> {
    let (jobs, queue) = unbounded();
    crate::spawn("write", 128 << 10, move || {
        let mut sink = open();
        let (mut unread_since, mut is_told) = (None, false);
        loop {
            let buffer = match queue.recv_timeout(LOOK_EVERY) {
                Ok(SinkJob::Take(buffer)) => buffer,
                Ok(SinkJob::Commit) => {
                    let settled = sink.as_mut().map_err(|fact| fact.clone()).and_then(StreamSink::settle);
                    let _ = events.send(Event::Committed(settled.map(|()| None).map_err(Refused::Io)));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    // A source may stay silent for ever, and without writing a closed reader would not be noticed.
                    if !is_told && sink.as_ref().is_ok_and(StreamSink::is_unread) {
                        // Reported once, and no reason to end. If the reader has had all the data, publishing is still
                        // to come.
                        is_told = unread_since.get_or_insert_with(Instant::now).elapsed() >= UNREAD_MAX;
                        if is_told {
                            let _ = events.send(Event::SinkGone);
                        }
                    }
                    continue;
                }
            };
            let header = ChunkHeader::decode(buffer.header()).expect("opened before");
            let written = match &mut sink {
                Ok(sink) => sink.write_all(&buffer.payload()[..header.plain_bytes as usize]),
                Err(fact) => Err(fact.clone()),
            };
            let event = match written {
                Ok(()) => Event::Written(buffer),
                Err(fact) => {
                    // Later data would be written in the wrong place.
                    sink = Err(fact.clone());
                    Event::SinkFailed(buffer, fact)
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(jobs)
}

#[cfg(test)]
mod tests;
