//! These tests use the disk that holds the build directory, because memory file systems cannot bypass their cache.

use std::ffi::OsStr;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use rd_proto::record::{Accept, PayloadKeys, PayloadSecret};
use rustix::fs::{Advice, fadvise};

use super::*;
use crate::engine::pace::Pace;
use crate::fs::source::Source;
use crate::options::Compress;
use crate::transport::Pool;

const CHUNK: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a transfer that sends a cold file of `length` bytes, and the contents of the file.
fn cold(length: usize) -> (Arc<Shared>, Vec<u8>) {
    let data: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let mut file = tempfile::tempfile_in(beside).expect("a file");
    file.write_all(&data).and_then(|()| file.sync_all()).expect("written");
    std::io::Seek::rewind(&mut file).expect("rewound");
    fadvise(&file, 0, None, Advice::DontNeed).expect("evicted");
    let keys = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed);
    let mut shared = Shared::new(keys, Compress::Off, Pace::new(None));
    let Ok(Source::File(file)) = Source::new(file, OsStr::new("f"), CHUNK) else { panic!("a file") };
    shared.source = Some(Parts::File(Box::new(file)));
    (Arc::new(shared), data)
}

/// Requests all of the file, which must be cold.
fn ask(shared: &Arc<Shared>, direct: &DirectReads, buffers: &mut Vec<Buffer>) {
    let Some(Parts::File(source)) = &shared.source else { unreachable!("made so") };
    while let Some(part) = source.next_part(CHUNK) {
        let mut buffer = buffers.pop().expect("one for each part");
        let cold = source.read(&part, buffer.payload_mut(), &shared.tally).expect("read").expect("cold");
        let request = Request { buffer, cold, place: Place::File(part), encrypt: false };
        direct.submit(request, shared).expect("a thread");
    }
}

#[test]
fn more_reads_than_are_done_at_once() {
    for ring in [true, false] {
        let parts = DEPTH * 3;
        let (shared, data) = cold(parts * CHUNK - 1000);
        let (_pool, mut buffers) = Pool::new(parts as u32, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
        let (jobs, queue) = unbounded();
        let direct = DirectReads::new(jobs.downgrade(), ring);
        ask(&shared, &direct, &mut buffers);
        let Some(Parts::File(source)) = &shared.source else { unreachable!("made so") };
        let mut seen = vec![false; parts];
        for _ in 0..parts {
            let Ok(Job::Arrived(mut request, outcome)) = queue.recv_timeout(LIMIT) else { panic!("not all arrived") };
            let Place::File(part) = request.place else { panic!("a part of the file") };
            let target = request.buffer.payload_mut();
            source.finish(&request.cold, outcome, target, &shared.tally).expect("read");
            let start = part.position as usize;
            assert!(target[..part.length] == data[start..start + part.length], "part {}", part.sequence);
            assert!(!std::mem::replace(&mut seen[part.sequence as usize], true), "part {} came twice", part.sequence);
        }
        let direct_bytes = shared.tally.direct_bytes.load(Ordering::Relaxed);
        assert_eq!(direct_bytes, data.len() as u64, "ring: {ring}");
    }
}

#[test]
fn who_ends_meanwhile_leaves_nothing_behind() {
    for ring in [true, false] {
        let (shared, _) = cold(64 * CHUNK);
        let (pool, mut buffers) = Pool::new(64, NonZeroUsize::new(CHUNK).expect("some")).expect("a pool");
        let (jobs, queue) = unbounded();
        let direct = DirectReads::new(jobs.downgrade(), ring);
        ask(&shared, &direct, &mut buffers);
        let left = Arc::downgrade(&pool);
        drop((jobs, queue, direct, shared, buffers, pool));
        let deadline = Instant::now() + LIMIT;
        while left.strong_count() > 0 {
            assert!(Instant::now() < deadline, "{ring}: the thread still holds {} buffers", left.strong_count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
