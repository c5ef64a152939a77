//! These tests use the disk on which they are built, because memory file systems have no way past their cache.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use super::*;

const CHUNK: usize = 64 << 10;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Makes a file that is on the disk and, unless something holds its pages, not in the page cache.
fn cold_file(data: &[u8]) -> File {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let mut file = tempfile::tempfile_in(beside).expect("a file");
    file.write_all(data).expect("written");
    evict(&file);
    file
}

fn evict(file: &File) {
    file.sync_all().expect("synced");
    fadvise(file, 0, None, Advice::DontNeed).expect("evicted");
}

/// Page-aligned memory, like a buffer of the pool.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = vec![0xee; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self(bytes, start)
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.len() - ALIGNMENT;
        &mut self.0[self.1..self.1 + length]
    }
}

/// Reads `length` bytes from `offset` on. `direct` replaces the result of the direct read, if given.
fn read(
    bypass: &Bypass,
    file: &File,
    (offset, length): (u64, usize),
    direct: Option<Result<usize, Errno>>,
    tally: &Tally,
) -> Result<Vec<u8>, IoFact> {
    let mut target = Aligned::new(CHUNK);
    let name = OsStr::new("f");
    if let Some(cold) = bypass.read(file, name, offset, target.bytes(), length, tally)? {
        let done = rustix::io::pread(&cold.file, cold.hole(target.bytes()), cold.hole_offset());
        bypass.finish(file, name, &cold, direct.unwrap_or(done), target.bytes(), tally)?;
    }
    Ok(target.bytes()[..length].to_vec())
}

fn direct_and_cached(tally: &Tally) -> (u64, u64) {
    (tally.direct_bytes.load(Ordering::Relaxed), tally.cached_bytes.load(Ordering::Relaxed))
}

#[test]
fn a_cold_file_is_read_directly_and_stays_cold() {
    for length in [1, ALIGNMENT - 1, ALIGNMENT, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 4097] {
        let data = content(length);
        let file = cold_file(&data);
        let (bypass, tally) = (Bypass::default(), Tally::default());
        for offset in (0..length).step_by(CHUNK) {
            let end = length.min(offset + CHUNK);
            let got = read(&bypass, &file, (offset as u64, end - offset), None, &tally).expect("read");
            assert!(got == data[offset..end], "{length} bytes, from {offset} on");
        }
        assert_eq!(direct_and_cached(&tally), (length as u64, 0), "{length} bytes");
        assert_eq!(cached_pages(&file, 0, length as u64), Ok(0), "{length} bytes");
    }
}

#[test]
fn what_is_cached_is_copied() {
    let data = content(4 * CHUNK);
    let file = cold_file(&data);
    let mut warm = vec![0; CHUNK];
    fadvise(&file, 0, None, Advice::Random).expect("no reading ahead");
    read_at(&file, OsStr::new("f"), CHUNK as u64, &mut warm).expect("read");
    let (bypass, tally) = (Bypass::default(), Tally::default());
    for (number, counts) in [(1, (0, CHUNK)), (0, (CHUNK, CHUNK)), (1, (CHUNK, 2 * CHUNK)), (3, (2 * CHUNK, 2 * CHUNK))]
    {
        let offset = number * CHUNK;
        // The state after a cold range. In the other state, the examination itself brings the range into the cache.
        bypass.is_warm.store(false, Ordering::Relaxed);
        assert!(
            read(&bypass, &file, (offset as u64, CHUNK), None, &tally) == Ok(data[offset..offset + CHUNK].to_vec())
        );
        assert_eq!(direct_and_cached(&tally), (counts.0 as u64, counts.1 as u64), "range {number}");
    }
    // A file that was just written is cached, and never opened for reads past the cache.
    let mut written = cold_file(&[]);
    written.write_all(&data).expect("written");
    let (bypass, tally) = (Bypass::default(), Tally::default());
    for offset in (0..data.len()).step_by(CHUNK) {
        assert!(read(&bypass, &written, (offset as u64, CHUNK), None, &tally).is_ok());
    }
    assert_eq!(direct_and_cached(&tally), (0, data.len() as u64));
    assert!(bypass.direct.get().is_none());
}

#[test]
fn where_the_kernel_does_not_tell_a_page_is_tried() {
    let data = content(4 * CHUNK);
    let (bypass, tally) = (Bypass { is_untold: AtomicBool::new(true), ..Bypass::default() }, Tally::default());
    // Backwards, because at the beginning of a file the kernel reads ahead, whatever is requested.
    let offsets = [3 * CHUNK, 2 * CHUNK, CHUNK].map(|offset| offset as u64);
    let file = cold_file(&data);
    for (tried, offset) in (1..).zip(offsets) {
        // The result depends on the disk: a fast one has delivered the page before it is found missing.
        bypass.is_cold(&file, offset, CHUNK);
        assert_eq!(cached_pages(&file, offset, ALIGNMENT as u64), Ok(1), "the page at {offset}");
        assert_eq!(cached_pages(&file, 0, data.len() as u64), Ok(tried), "pages after {offset}");
    }
    let file = cold_file(&data);
    for offset in offsets {
        let expected = &data[offset as usize..][..CHUNK];
        assert!(read(&bypass, &file, (offset, CHUNK), None, &tally).is_ok_and(|got| got == expected));
    }
    let (direct, cached) = direct_and_cached(&tally);
    assert_eq!(direct + cached, 3 * CHUNK as u64);
}

#[test]
fn what_cannot_be_read_directly_comes_through_the_cache() {
    let data = content(2 * CHUNK);
    for refusal in [Errno::INVAL, Errno::OPNOTSUPP, Errno::AGAIN, Errno::NOMEM, Errno::PERM] {
        let file = cold_file(&data);
        let (bypass, tally) = (Bypass::default(), Tally::default());
        assert!(read(&bypass, &file, (0, CHUNK), Some(Err(refusal)), &tally) == Ok(data[..CHUNK].to_vec()));
        assert_eq!(direct_and_cached(&tally), (0, CHUNK as u64));
        let is_closed = bypass.is_closed.load(Ordering::Relaxed);
        assert_eq!(is_closed, matches!(refusal, Errno::INVAL | Errno::OPNOTSUPP), "{refusal}");
    }
    // A short read.
    let file = cold_file(&data);
    let (bypass, tally) = (Bypass::default(), Tally::default());
    assert!(read(&bypass, &file, (0, CHUNK), Some(Ok(8192)), &tally) == Ok(data[..CHUNK].to_vec()));
    assert_eq!(direct_and_cached(&tally), (8192, CHUNK as u64 - 8192));
    // An unaligned offset.
    let file = cold_file(&data);
    let (bypass, tally) = (Bypass::default(), Tally::default());
    assert!(read(&bypass, &file, (1, CHUNK), None, &tally) == Ok(data[1..=CHUNK].to_vec()));
    assert_eq!(direct_and_cached(&tally), (0, CHUNK as u64));
    // A bypass that is closed from the beginning.
    let file = cold_file(&data);
    let bypass = Bypass { is_closed: AtomicBool::new(true), ..Bypass::default() };
    assert!(read(&bypass, &file, (0, CHUNK), None, &tally) == Ok(data[..CHUNK].to_vec()));
    assert_eq!(direct_and_cached(&tally), (0, 2 * CHUNK as u64));
}

#[test]
fn a_hole_is_zeros() {
    let mut file = cold_file(&[]);
    file.set_len(2 * CHUNK as u64).expect("a hole");
    file.seek(SeekFrom::Start(CHUNK as u64)).expect("a position in the file");
    file.write_all(b"end").expect("written");
    evict(&file);
    let tally = Tally::default();
    assert!(read(&Bypass::default(), &file, (0, CHUNK), None, &tally) == Ok(vec![0; CHUNK]));
    assert_eq!(direct_and_cached(&tally), (CHUNK as u64, 0));
}

#[test]
fn a_file_that_shrank_is_noticed_and_one_that_grew_gives_what_was_asked_for() {
    let data = content(CHUNK);
    for length in [0, 1, ALIGNMENT, CHUNK - 1] {
        let file = cold_file(&data[..length]);
        let fact = read(&Bypass::default(), &file, (0, CHUNK), None, &Tally::default()).expect_err("shorter");
        assert_eq!((fact.errno, fact.detail.as_slice()), (0, b"shrank while it was read".as_slice()), "{length}");
    }
    let file = cold_file(&data);
    assert!(read(&Bypass::default(), &file, (0, 5000), None, &Tally::default()) == Ok(data[..5000].to_vec()));
}
