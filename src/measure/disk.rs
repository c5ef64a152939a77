//! Measures storage: IOPS, bandwidth and latency for several block sizes and depths. The page cache is bypassed where
//! the file system allows.
//!
//! An existing file is only read. In a directory, a file of this process is written. The file has no name, or loses its
//! name right after creation, so nothing remains however this process ends.

#![allow(unsafe_code, reason = "what a ring reads into must outlive its completion: proved here")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use io_uring::{IoUring, opcode, types};
use rd_proto::control::IoFact;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::report::{Disk, MIB};
use crate::fault::errno_of;
use crate::fs::{ring, std_fact, unlinked};
use crate::transport::bundle::{fill_pattern, latency_histogram};
use crate::transport::{Buffer, Pool};

/// Size of the file that is made in a directory, in bytes: larger than a drive's own cache, and quick enough to write.
const FILE_BYTES: u64 = 1 << 30;

/// Smallest size of that file that is worth measuring, in bytes.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// The file takes at most the free space divided by this.
const FREE_PART: u64 = 10;

/// Larger blocks are accessed in order, smaller blocks at random.
const RANDOM_BYTES_MAX: usize = 64 << 10;

/// How long filling the file may take after the first [`FILE_BYTES_MIN`] bytes.
const FILL_MAX: Duration = Duration::from_secs(3);

/// Stack of a thread that accesses blocks, in bytes. The blocks are elsewhere.
const STACK_BYTES: usize = 256 << 10;

/// Block sizes in bytes, and numbers of blocks in flight.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Duration for each block size and depth.
    pub duration: Duration,
    /// Measures only this block size, in bytes, rounded down to a multiple of 4 KiB.
    pub bytes: Option<usize>,
    /// Measures only this depth.
    pub depth: Option<u32>,
}

/// Whether to read or to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads.
    Read,
    /// Writes, to a file of this process.
    Write,
}

/// Measures `path`. A file or a device is read. In a directory, a file of this process is written and read.
///
/// # Errors
///
/// The path and the system's error, with the action that failed: reading (`Action::Read`) or writing.
pub fn measure(path: &Path, settings: Settings, mut each: impl FnMut(&Disk)) -> Result<Vec<Disk>, (Action, IoFact)> {
    let mut subject = Subject::open(path)?;
    let sizes = settings.bytes.map_or(SIZES.to_vec(), |bytes| vec![bytes]);
    let depths = settings.depth.map_or(DEPTHS.to_vec(), |depth| vec![depth]);
    let mut rows = Vec::new();
    let actions = if subject.is_ours { &[Action::Write, Action::Read][..] } else { &[Action::Read][..] };
    for &action in actions {
        for &bytes in &sizes {
            for &depth in &depths {
                let row = subject.point(action, bytes, depth, settings.duration).map_err(|fact| (action, fact))?;
                each(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Measures storage as a copy uses it: blocks of 1 MiB, 8 in flight.
///
/// # Errors
///
/// Fails as [`measure`] does; `ENOTDIR` if `path` is to be written and is not a directory.
pub fn throughput(path: &Path, action: Action, duration: Duration) -> Result<Disk, (Action, IoFact)> {
    let mut subject = Subject::open(path)?;
    if action == Action::Write && !subject.is_ours {
        let fact = std_fact(path.as_os_str(), &Errno::NOTDIR.into());
        return Err((action, fact));
    }
    subject.point(action, 1 << 20, 8, duration).map_err(|fact| (action, fact))
}

/// The file or device that is measured.
struct Subject {
    file: File,
    name: std::ffi::OsString,
    length: u64,
    direct: bool,
    /// Whether the file was made by this process.
    is_ours: bool,
}

impl Subject {
    fn open(path: &Path) -> Result<Self, (Action, IoFact)> {
        let name = path.as_os_str().to_owned();
        let reading = |error: &std::io::Error| (Action::Read, std_fact(&name, error));
        let metadata = path.metadata().map_err(|error| reading(&error))?;
        if metadata.is_dir() {
            return Self::make(path);
        }
        let known = metadata.is_file() || metadata.file_type().is_block_device();
        if !known {
            return Err(reading(&Errno::INVAL.into()));
        }
        let (file, direct) = open_direct(path, OFlags::RDONLY).map_err(|errno| reading(&errno.into()))?;
        let length = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|errno| reading(&errno.into()))?;
        if length < SIZES[0] as u64 {
            let mut fact = reading(&Errno::INVAL.into());
            (fact.1.errno, fact.1.detail) = (0, b"is shorter than a block; give a larger file".to_vec());
            return Err(fact);
        }
        Ok(Self { file, name, length, direct, is_ours: false })
    }

    /// Makes a file in a directory.
    fn make(directory: &Path) -> Result<Self, (Action, IoFact)> {
        let name = directory.as_os_str().to_owned();
        let writing = |errno: Errno| (Action::Write, std_fact(&name, &errno.into()));
        let space = rustix::fs::statvfs(directory).map_err(writing)?;
        let free = space.f_bavail.saturating_mul(space.f_frsize) / FREE_PART;
        let length = FILE_BYTES.min(free) & !((1 << 20) - 1);
        if length < FILE_BYTES_MIN {
            return Err(writing(Errno::NOSPC));
        }
        let opened = open_direct(directory, OFlags::RDWR | OFlags::TMPFILE);
        let (file, direct) = opened.or_else(|_| make_unnamed(directory)).map_err(writing)?;
        let mut subject = Self { file, name: name.clone(), length, direct, is_ours: true };
        subject.fill().map_err(writing)?;
        Ok(subject)
    }

    fn point(&mut self, action: Action, bytes: usize, depth: u32, duration: Duration) -> Result<Disk, IoFact> {
        let failed = |errno: Errno| std_fact(&self.name, &errno.into());
        let bytes = bytes.min(usize::try_from(self.length).unwrap_or(usize::MAX)) & !(SIZES[0] - 1);
        let blocks = (self.length / bytes as u64).max(1);
        let random = bytes <= RANDOM_BYTES_MAX;
        if !self.direct && action == Action::Read {
            // As close to a cold cache as possible.
            let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let (_pool, buffers) = Pool::new(depth, NonZeroUsize::new(bytes).expect("a block")).map_err(failed)?;
        let mut load = Load { action, bytes, blocks, random, number: 0, state: 0x9e37_79b9_7f4a_7c15 };
        let tally = match usable_ring(depth) {
            Some(ring) => by_ring(&self.file, ring, buffers, &mut load, duration),
            None => by_threads(&self.file, buffers, &load, duration),
        }
        .map_err(failed)?;
        let seconds = tally.time.as_secs_f64().max(1e-9);
        let us = |quantile| tally.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Disk {
            path: self.name.to_string_lossy().into_owned(),
            action: if action == Action::Read { "read" } else { "write" }.to_owned(),
            direct: self.direct,
            random,
            bytes: bytes as u64,
            depth,
            iops: tally.done as f64 / seconds,
            mib_s: (tally.done * bytes as u64) as f64 / seconds / MIB,
            p50_us: us(0.5),
            p99_us: us(0.99),
        })
    }

    /// Fills the file once. Without that, reads of unwritten blocks would not reach the drive, and writes would extend
    /// the file. A slow drive gets a shorter file.
    fn fill(&mut self) -> Result<(), Errno> {
        let (_pool, mut buffers) = Pool::new(1, NonZeroUsize::new(1 << 20).expect("not 0"))?;
        let mut block = buffers.pop().expect("one");
        // Not zeros, which some storage does not write.
        fill_pattern(block.payload_mut(), 1, 1);
        let (start, mut written) = (Instant::now(), 0);
        while written < self.length && (written < FILE_BYTES_MIN || start.elapsed() < FILL_MAX) {
            let done = self.file.write_at(block.payload(), written);
            written += done.map_err(|error| errno_of(&error))? as u64;
        }
        self.length = written;
        Ok(())
    }
}

/// Opens a file with O_DIRECT if possible, otherwise through the page cache.
fn open_direct(path: &Path, flags: OFlags) -> Result<(File, bool), Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        Ok(fd) => Ok((fd.into(), true)),
        Err(Errno::INVAL) => rustix::fs::open(path, flags, mode).map(|fd| (fd.into(), false)),
        Err(errno) => Err(errno),
    }
}

/// Makes a file that loses its name right away, and opens it as [`open_direct`] does.
fn make_unnamed(directory: &Path) -> Result<(File, bool), Errno> {
    // Without O_DIRECT: a file system that does not support it creates the file before it says so.
    let file = unlinked(directory).map_err(|error| errno_of(&error))?;
    let again = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok(open_direct(&again, OFlags::RDWR).unwrap_or((file, false)))
}

/// The next access: its kind, size and position.
#[derive(Clone)]
struct Load {
    action: Action,
    bytes: usize,
    blocks: u64,
    random: bool,
    number: u64,
    state: u64,
}

impl Load {
    fn next_offset(&mut self) -> u64 {
        self.number += 1;
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let block = if self.random { self.state % self.blocks } else { (self.number - 1) % self.blocks };
        block * self.bytes as u64
    }
}

struct Tally {
    done: u64,
    time: Duration,
    histogram: Histogram<u64>,
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(1 << 40)).expect("it grows");
}

/// Makes a ring. `None` if there is none that reads and writes: containers may forbid io_uring or its use, and old
/// kernels do not have it or lack these requests.
fn usable_ring(entries: u32) -> Option<IoUring> {
    let mut ring = IoUring::new(entries).ok()?;
    ring::check(&mut ring, &[opcode::Read::CODE, opcode::Write::CODE]).ok()?;
    Some(ring)
}

/// Keeps one block in flight for each buffer, with io_uring.
fn by_ring(
    file: &File,
    mut ring: IoUring,
    mut buffers: Vec<Buffer>,
    load: &mut Load,
    duration: Duration,
) -> Result<Tally, Errno> {
    let fd = types::Fd(file.as_raw_fd());
    let raw = |error: std::io::Error| errno_of(&error);
    let mut began: Vec<Instant> = vec![Instant::now(); buffers.len()];
    let mut histogram = latency_histogram();
    let mut free: Vec<usize> = (0..buffers.len()).collect();
    let mut failure = None;
    let start = Instant::now();
    let (mut done, mut last) = (0, start);
    loop {
        while failure.is_none() && start.elapsed() < duration {
            let Some(at) = free.pop() else { break };
            let (address, bytes, offset) =
                (buffers[at].payload_mut().as_mut_ptr(), load.bytes as u32, load.next_offset());
            let entry = match load.action {
                Action::Read => opcode::Read::new(fd, address, bytes).offset(offset).build(),
                Action::Write => opcode::Write::new(fd, address, bytes).offset(offset).build(),
            };
            began[at] = Instant::now();
            // SAFETY: `file` and `buffers` live until this function returns, and it does not return while the kernel
            // has a request: each buffer is either in `free` or in one request. The ring has as many entries as there
            // are buffers.
            unsafe { ring.submission().push(&entry.user_data(at as u64)) }.expect("room for each buffer");
        }
        // After a failure, nothing waits for requests that the kernel has not taken: it might never take them.
        let untaken = if failure.is_some() { ring.submission().len() } else { 0 };
        if free.len() + untaken == buffers.len() {
            break;
        }
        // A drive that never answers blocks this process, as it would block any process that reads from it.
        match ring.submit_and_wait(1).map_err(raw) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
            Err(errno) => failure = failure.or(Some(errno)),
        }
        last = Instant::now();
        for completion in ring.completion() {
            let at = completion.user_data() as usize;
            free.push(at);
            if completion.result() < 0 {
                failure = failure.or(Some(Errno::from_raw_os_error(-completion.result())));
            } else {
                done += 1;
                record(&mut histogram, last - began[at]);
            }
        }
    }
    match failure {
        Some(errno) => Err(errno),
        None => Ok(Tally { done, time: last - start, histogram }),
    }
}

/// Does the same with blocking calls, in one thread for each block.
fn by_threads(file: &File, buffers: Vec<Buffer>, load: &Load, duration: Duration) -> Result<Tally, Errno> {
    let start = Instant::now();
    let turn = AtomicU64::new(0);
    let outcomes: Vec<Result<Tally, Errno>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0_u64..)
            .zip(buffers)
            .map(|(number, mut buffer)| {
                let mut load = Load { state: load.state.wrapping_add(number << 32) | 1, ..load.clone() };
                let turn = &turn;
                let access = move || -> Result<Tally, Errno> {
                    let mut tally = Tally { done: 0, time: Duration::ZERO, histogram: latency_histogram() };
                    while start.elapsed() < duration {
                        load.number = turn.fetch_add(1, Ordering::Relaxed);
                        let (offset, began) = (load.next_offset(), Instant::now());
                        let done = match load.action {
                            Action::Read => file.read_at(buffer.payload_mut(), offset),
                            Action::Write => file.write_at(buffer.payload(), offset),
                        };
                        done.map_err(|error| errno_of(&error))?;
                        tally.done += 1;
                        record(&mut tally.histogram, began.elapsed());
                    }
                    Ok(tally)
                };
                std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, access)
            })
            .collect();
        let outcome = |started: std::io::Result<ScopedJoinHandle<'_, Result<Tally, Errno>>>| {
            started.map_err(|error| errno_of(&error))?.join().expect("no panic in it")
        };
        threads.into_iter().map(outcome).collect()
    });
    let mut all = Tally { done: 0, time: start.elapsed(), histogram: latency_histogram() };
    for outcome in outcomes {
        let tally = outcome?;
        all.done += tally.done;
        all.histogram.add(tally.histogram).expect("it grows");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::{fail_where, where_calls_fail};

    const QUICK: Settings = Settings { duration: Duration::from_millis(20), bytes: Some(4096), depth: Some(2) };

    #[test]
    fn a_directory_is_left_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let rows = measure(directory.path(), QUICK, |_| {}).expect("it can be written");
        assert_eq!(rows.iter().map(|row| row.action.as_str()).collect::<Vec<_>>(), ["write", "read"]);
        assert!(rows.iter().all(|row| row.iops > 1.0 && row.p50_us > 0.0 && row.bytes == 4096), "{rows:?}");
        assert_eq!(directory.path().read_dir().expect("readable").count(), 0);
    }

    #[test]
    fn a_file_loses_its_name_even_without_direct_access() {
        let places = [tempfile::tempdir().ok(), tempfile::tempdir_in("/dev/shm").ok()];
        for directory in places.into_iter().flatten() {
            let path = directory.path();
            // As on a file system without files that have had no name.
            let without = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE;
            let make = || {
                fail_where(libc::SYS_openat, (2, u64::from(without.bits())), libc::EOPNOTSUPP);
                make_unnamed(path)
            };
            let made = std::thread::scope(|scope| scope.spawn(make).join()).expect("its end");
            let (file, direct) = made.expect("it can be made");
            let flags = rustix::fs::fcntl_getfl(&file).expect("an open file");
            assert_eq!(flags.contains(OFlags::DIRECT), direct, "{}", path.display());
            assert_eq!(path.read_dir().expect("readable").count(), 0, "{}", path.display());
        }
    }

    #[test]
    fn a_file_is_only_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        std::fs::write(&path, &bytes).expect("writable");
        let rows = measure(&path, QUICK, |_| {}).expect("it can be read");
        assert_eq!(rows.iter().map(|row| row.action.as_str()).collect::<Vec<_>>(), ["read"]);
        assert!(std::fs::read(&path).expect("there") == bytes);
        let refused = throughput(&path, Action::Write, QUICK.duration).expect_err("a file is not written");
        assert_eq!(refused.0, Action::Write);
    }

    #[test]
    fn blocks_are_read_by_threads_where_there_is_no_ring() {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).expect("writable");
        let (_pool, buffers) = Pool::new(3, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let load = Load { action: Action::Read, bytes: 4096, blocks: 256, random: true, number: 0, state: 1 };
        let tally = by_threads(&file, buffers, &load, Duration::from_millis(300)).expect("readable");
        assert!(tally.done > 3 && tally.histogram.len() == tally.done);
    }

    #[test]
    fn threads_that_the_system_refuses_are_an_error() {
        let file = tempfile::tempfile().expect("a file");
        let (_pool, buffers) = Pool::new(2, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let load = Load { action: Action::Read, bytes: 4096, blocks: 1, random: true, number: 0, state: 1 };
        let failed = where_calls_fail(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN, || {
            by_threads(&file, buffers, &load, QUICK.duration).err()
        });
        assert_eq!(failed, Some(Errno::AGAIN));
    }

    #[test]
    fn a_ring_that_does_not_work_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).expect("writable");
        // As on Linux 5.1 to 5.5, and as with a filter that allows only making a ring.
        for (call, error) in [(libc::SYS_io_uring_register, libc::EINVAL), (libc::SYS_io_uring_enter, libc::EPERM)] {
            let (is_usable, rows) =
                where_calls_fail(&[call], error, || (usable_ring(2).is_some(), measure(&path, QUICK, |_| {})));
            assert!(!is_usable, "{call}");
            assert!(rows.is_ok_and(|rows| rows.len() == 1 && rows[0].iops > 1.0), "{call}");
        }
    }

    #[test]
    fn a_ring_that_stops_working_ends_the_measurement() {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).expect("writable");
        let (_pool, buffers) = Pool::new(2, NonZeroUsize::new(4096).expect("not 0")).expect("memory");
        let mut load = Load { action: Action::Read, bytes: 4096, blocks: 256, random: true, number: 0, state: 1 };
        let Some(ring) = usable_ring(2) else { return };
        let failed = where_calls_fail(&[libc::SYS_io_uring_enter], libc::EPERM, || {
            by_ring(&file, ring, buffers, &mut load, QUICK.duration).err()
        });
        assert_eq!(failed, Some(Errno::PERM));
    }

    #[test]
    fn offsets_stay_within_the_file() {
        let mut load = Load { action: Action::Read, bytes: 4096, blocks: 3, random: false, number: 0, state: 1 };
        let offsets: Vec<u64> = (0..4).map(|_| load.next_offset()).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0]);
        load.random = true;
        assert!((0..1000).all(|_| load.next_offset() <= 8192));
    }

    #[test]
    fn what_cannot_be_measured_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("missing");
        let (action, fact) = measure(&missing, QUICK, |_| {}).expect_err("it is not there");
        assert_eq!((action, fact.errno), (Action::Read, 2));
        let short = directory.path().join("short");
        std::fs::write(&short, b"x").expect("writable");
        assert!(measure(&short, QUICK, |_| {}).is_err());
        assert!(measure(Path::new("/dev/null"), QUICK, |_| {}).is_err());
    }
}
