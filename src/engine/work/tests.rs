use std::num::NonZeroUsize;

use rd_proto::record::{Accept, PayloadSecret};
use rd_proto::tree::{Metadata, RESUME_BYTES_MIN, Record};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::fs::sink::Tee;
use crate::fs::source::Source;
use crate::fs::{PARTIAL, name_beside, partial};
use crate::options::TreeOptions;
use crate::transport::Pool;
use crate::tree::Root;
use crate::tree::sink::TreeSink;

const CHUNK: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(20);

/// The receiver answers the records in the chunk, so the chunk must leave even though all workers wait for that answer.
#[test]
fn a_chunk_is_encrypted_while_all_workers_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("large");
    std::fs::File::create(&path).and_then(|file| file.set_len(RESUME_BYTES_MIN)).expect("a file");
    let root = Root::new(path, "large");
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let mut shared = Shared::new(keys, Compress::Off, Pace::new(None));
    let source =
        TreeSource::new(vec![root], CHUNK, TreeOptions { sparse: false, ..TreeOptions::default() }, Arc::default())
            .expect("a source");
    shared.source = Some(Parts::Tree(Box::new(source)));
    let shared = Arc::new(shared);
    let (events, told) = unbounded();
    let jobs = start(&shared, &events).expect("workers");
    let buffers = WORKERS_MAX as u32 + 1;
    let (_pool, buffers) = Pool::new(buffers, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
    for buffer in buffers {
        jobs.send(Job::Read(buffer, false)).expect("workers");
    }
    let Ok(Event::Sealed(records, header)) = told.recv_timeout(LIMIT) else { panic!("no records") };
    assert!(!header.sealed);
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "nothing else is known to be needed");
    assert!(encrypt(&shared, &jobs, records).is_none(), "a worker does it");
    let Ok(Event::Sealed(_, header)) = told.recv_timeout(LIMIT) else { panic!("it waits as well") };
    assert!(header.sealed);
    let Some(Parts::Tree(source)) = &shared.source else { unreachable!("made so") };
    source.cancel();
}

/// The file system may take long to answer, and the session's loop must not wait for that.
#[test]
fn a_worker_finds_that_a_file_has_changed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    std::fs::write(&path, [7; 2 * CHUNK]).expect("a file");
    let source = Source::new(Source::open(&path).expect("a file"), "file".as_ref(), CHUNK);
    let Ok(Source::File(source)) = source else { panic!("a file") };
    let longer = std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(3 * CHUNK as u64));
    longer.expect("it");
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let mut shared = Shared::new(keys, Compress::Off, Pace::new(None));
    shared.source = Some(Parts::File(Box::new(source)));
    let (events, told) = unbounded();
    let jobs = start(&Arc::new(shared), &events).expect("workers");
    let (_pool, buffers) = Pool::new(2, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
    for buffer in buffers {
        jobs.send(Job::Read(buffer, false)).expect("workers");
    }
    let (mut sealed, mut failed) = (0, 0);
    while sealed + failed < 2 {
        match told.recv_timeout(LIMIT) {
            Ok(Event::Sealed(..)) => sealed += 1,
            Ok(Event::SourceFailed(..)) => failed += 1,
            Ok(Event::Queued(_)) => {}
            _ => panic!("a part is neither sealed nor refused"),
        }
    }
    assert_eq!((sealed, failed), (1, 1), "the last part is refused");
}

/// Reads that wait for a rate limit hold up all workers, and many more reads may be in the queue.
#[test]
fn under_a_limit_a_chunk_is_encrypted_at_once() {
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let shared = Shared::new(keys, Compress::Off, Pace::new(Some(1)));
    let (jobs, queue) = unbounded();
    let (_pool, buffers) = Pool::new(1, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
    let mut buffer = buffers.into_iter().next().expect("one");
    buffer.payload_mut()[..600].fill(7);
    let part = Part { item: 0, sequence: 0, position: 0, length: 600, is_final: false };
    shared.seal(header_of(&part, false), &mut buffer);
    let Some((mut buffer, header)) = encrypt(&shared, &jobs, buffer) else { panic!("left to the workers") };
    assert!(header.sealed && queue.is_empty() && buffer.payload()[..600] != [7; 600]);
    assert!(Opener::default().open(&shared, &mut buffer) && buffer.payload()[..600] == [7; 600]);
}

#[test]
fn under_a_low_limit_parts_are_short_and_records_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in 0..20 {
        let link = directory.path().join(number.to_string());
        std::os::unix::fs::symlink("x".repeat(1000), link).expect("a link");
    }
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let mut shared = Shared::new(keys, Compress::Off, Pace::new(Some(40_000)));
    assert_eq!(shared.part_bytes(), 4096);
    let root = Root::new(directory.path(), "tree");
    let source = TreeSource::new(vec![root], shared.part_bytes(), TreeOptions::default(), Arc::default());
    shared.source = Some(Parts::Tree(Box::new(source.expect("a source"))));
    let (events, told) = unbounded();
    let jobs = start(&Arc::new(shared), &events).expect("workers");
    let (_pool, buffers) = Pool::new(1, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
    jobs.send(Job::Read(buffers.into_iter().next().expect("one"), false)).expect("workers");
    let Ok(Event::Sealed(_, header)) = told.recv_timeout(LIMIT) else { panic!("no records") };
    assert!((4096..4096 + 1200).contains(&header.plain_bytes), "{header:?}");
}

/// On a slow line parts are shorter, but a message that does not fit would lose its end.
#[test]
fn a_message_has_the_whole_buffer() {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("sockets");
    assert_eq!(rustix::io::write(&ours, &[7; 600]), Ok(600));
    let Ok(Source::Stream(stream)) = Source::new(theirs.into(), "socket".as_ref(), CHUNK) else { panic!("a stream") };
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let shared = Arc::new(Shared::new(keys, Compress::Off, Pace::new(None)));
    shared.part_bytes.store(100, Ordering::Relaxed);
    let (_pool, buffers) = Pool::new(1, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
    let filled = reading(Feed::Stream(stream), shared)(buffers.into_iter().next().expect("one"), false);
    assert!(matches!(filled, Some(Event::Filled(_, Part { length: 600, .. }))));
}

/// Data behind a failed write would be in the wrong place, and would be passed on as if nothing were missing.
#[test]
fn nothing_is_written_behind_what_failed() {
    struct Refusing(Arc<AtomicU32>);

    impl Tee for Refusing {
        fn take(&mut self, _: &[u8]) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) > 0
        }

        fn end(&mut self) {}

        fn is_gone(&self) -> bool {
            false
        }
    }

    let taken = Arc::new(AtomicU32::new(0));
    let also = Refusing(Arc::clone(&taken));
    let null = std::fs::File::options().write(true).open("/dev/null").expect("a null device");
    let (events, told) = unbounded();
    let jobs = start_writer(move || Ok(StreamSink::new(null, "null".as_ref()).and(also)), events).expect("a writer");
    let (_pool, buffers) = Pool::new(3, NonZeroUsize::new(4096).expect("some")).expect("a pool");
    let part = Part { item: 0, sequence: 0, position: 0, length: 1, is_final: false };
    for mut buffer in buffers {
        *buffer.header_mut() = header_of(&part, false).encode();
        assert!(jobs.send(SinkJob::Take(buffer)).is_ok());
    }
    for _ in 0..3 {
        assert!(matches!(told.recv_timeout(LIMIT), Ok(Event::SinkFailed(..))));
    }
    assert_eq!(taken.load(Ordering::Relaxed), 1);
}

/// Chunks that wait for the sink of a tree when the session ends are neither written nor waited for.
#[test]
fn what_is_waiting_when_all_is_over_is_dropped() {
    for is_over in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let sink = TreeSink::new(directory.path(), TreeOptions::default(), Box::new(|_| {})).expect("a sink");
        let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
        let shared = Arc::new(Shared::new(keys, Compress::Off, Pace::new(None)));
        shared.over.store(is_over, Ordering::Relaxed);
        let (events, _told) = unbounded();
        let (jobs, running) = super::super::tree::start(sink, shared, events).expect("a thread");
        let (_pool, buffers) = Pool::new(1, NonZeroUsize::new(4096).expect("some")).expect("a pool");
        let mut buffer = buffers.into_iter().next().expect("one");
        let record = Record::File { name: b"made", metadata: Metadata { mode: 0o644, ..Metadata::ZERO }, data: b"x" };
        put(&mut buffer, &[record, Record::End { failures: 0 }]);
        assert!(jobs.send(SinkJob::Take(buffer)).is_ok() && jobs.send(SinkJob::Commit).is_ok());
        drop(jobs);
        running.thread.join().expect("no panic");
        assert_eq!(directory.path().join("made").exists(), !is_over);
    }
}

/// Another transfer has the name of the file that comes, and the sink would wait for it for 6 s.
#[test]
fn a_sink_that_waits_is_told_that_all_is_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let top = std::fs::File::open(directory.path()).expect("there");
    let _held = partial::open(&top, &name_beside(b"held", PARTIAL), false).expect("made");
    let sink = TreeSink::new(directory.path(), TreeOptions::default(), Box::new(|_| {})).expect("a sink");
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let shared = Arc::new(Shared::new(keys, Compress::Off, Pace::new(None)));
    let (events, _told) = unbounded();
    let (jobs, running) = super::super::tree::start(sink, shared, events).expect("a thread");
    let (_pool, buffers) = Pool::new(1, NonZeroUsize::new(4096).expect("some")).expect("a pool");
    let mut buffer = buffers.into_iter().next().expect("one");
    let metadata = Metadata { mode: 0o644, ..Metadata::ZERO };
    put(&mut buffer, &[Record::Large { name: b"held", metadata, item: 1, size: 1 << 20, is_sparse: false }]);
    assert!(jobs.send(SinkJob::Take(buffer)).is_ok());
    std::thread::sleep(Duration::from_millis(100));
    let told = Instant::now();
    let thread = running.stop();
    drop(jobs);
    thread.join().expect("no panic");
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
}

/// Puts a chunk of records into a buffer.
fn put(buffer: &mut Buffer, records: &[Record<'_>]) {
    let mut length = 0;
    for record in records {
        let bytes = record.encoded_bytes();
        record.encode(&mut buffer.payload_mut()[length..][..bytes]).expect("room");
        length += bytes;
    }
    let part = Part { item: 0, sequence: 0, position: 0, length, is_final: false };
    *buffer.header_mut() = header_of(&part, false).encode();
}
