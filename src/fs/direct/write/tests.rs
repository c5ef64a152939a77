//! These tests use the disk on which they are built, because memory file systems have no way past their cache.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use rustix::fs::{Advice, fadvise};
use rustix::io::pread;

use super::*;
use crate::not_run::not_run;

const CHUNK: usize = 256 << 10;

/// Page-aligned memory, like a buffer of the pool.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(content: &[u8]) -> Self {
        let mut bytes = vec![0; content.len() + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        bytes[start..start + content.len()].copy_from_slice(content);
        Self(bytes, start)
    }

    fn bytes(&self) -> &[u8] {
        &self.0[self.1..self.1 + self.0.len() - ALIGNMENT]
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn file_in(directory: PathBuf) -> File {
    tempfile::tempfile_in(directory).expect("a file")
}

fn on_disk() -> File {
    file_in(Path::new(env!("CARGO_MANIFEST_DIR")).join("target"))
}

/// Writes `data` in chunks, the last chunk first, as lanes may deliver them. `from` is the position in the file.
fn write_all(file: &File, data: &[u8], from: u64, size: u64, writes: &Writes) -> Result<(), Errno> {
    let bypass = WriteBypass::default();
    data.chunks(CHUNK).enumerate().rev().try_for_each(|(number, chunk)| {
        bypass.write(file, Aligned::new(chunk).bytes(), from + (number * CHUNK) as u64, size, writes)
    })
}

fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("open").len() as usize + 1];
    let mut done = 0;
    while let count @ 1.. = pread(file, &mut bytes[done..], done as u64).expect("read") {
        done += count;
    }
    bytes.truncate(done);
    bytes
}

fn ways(writes: &Writes) -> (u64, u64) {
    let Written { direct_bytes, buffered_bytes } = writes.written();
    (direct_bytes, buffered_bytes)
}

#[test]
fn every_length_around_pages_and_chunks_comes_out_right() {
    let near = |length: usize| [length - 1, length, length + 1];
    let lengths = [[0, 1, 511], near(512), near(ALIGNMENT), near(WRITE_BYTES_MIN), near(CHUNK), near(3 * CHUNK)];
    for length in lengths.concat() {
        let (file, data) = (on_disk(), content(length));
        let writes = Writes::new(Some(0));
        write_all(&file, &data, 0, length as u64, &writes).expect("written");
        assert!(whole(&file) == data, "{length} bytes");
        let last = length % CHUNK;
        let buffered = if last < WRITE_BYTES_MIN { last } else { last % ALIGNMENT };
        assert_eq!(ways(&writes), ((length - buffered) as u64, buffered as u64), "{length} bytes");
    }
}

#[test]
fn what_is_written_past_the_cache_is_not_in_it() {
    let (file, data) = (on_disk(), content(4 * CHUNK));
    write_all(&file, &data, 0, data.len() as u64, &Writes::new(Some(0))).expect("written");
    let first = &mut [0; ALIGNMENT];
    let cached = rustix::io::preadv2(
        &file,
        &mut [std::io::IoSliceMut::new(first)],
        CHUNK as u64,
        rustix::io::ReadWriteFlags::NOWAIT,
    );
    assert_eq!(cached, Err(Errno::AGAIN));
}

#[test]
fn the_cache_gets_its_share_and_no_more() {
    let data = content(4 * CHUNK);
    let all = data.len() as u64;
    for (what, cache_bytes_max, size, expected) in [
        ("a file that fits", all, all, (0, all)),
        ("one that is a byte larger", all - 1, all, (all, 0)),
        ("nobody knows how large it will be", all / 2 - 1, 0, (all / 2, all / 2)),
        ("it is larger than was said", all / 2 - 1, 1, (all / 2, all / 2)),
        ("no limit", u64::MAX, u64::MAX, (0, all)),
    ] {
        let (file, writes) = (on_disk(), Writes::new(Some(cache_bytes_max)));
        write_all(&file, &data, 0, size, &writes).expect("written");
        assert_eq!(ways(&writes), expected, "{what}");
        assert!(whole(&file) == data, "{what}");
    }
    // The limit is that of a whole transfer, so that many files of moderate size get no more than one large file.
    let writes = Writes::new(Some(all + all / 2 - 1));
    for number in 0..3 {
        write_all(&on_disk(), &data, 0, all, &writes).expect("written");
        let buffered = (all * (number + 1)).min(all + all / 2);
        assert_eq!(ways(&writes), (all * (number + 1) - buffered, buffered), "after {number}");
    }
}

#[test]
fn what_is_not_aligned_goes_through_the_cache_beside_what_is() {
    let data = content(2 * CHUNK + 77);
    for from in [1, 511, 512, ALIGNMENT as u64 - 1, ALIGNMENT as u64] {
        let (file, writes) = (on_disk(), Writes::new(Some(0)));
        write_all(&file, &data, from, 1 << 40, &writes).expect("written");
        let direct = if from.is_multiple_of(ALIGNMENT as u64) { 2 * CHUNK as u64 } else { 0 };
        assert_eq!(ways(&writes), (direct, data.len() as u64 - direct), "from {from} on");
        assert!(whole(&file)[from as usize..] == data, "from {from} on");
    }
    // Unaligned memory.
    let (file, writes) = (on_disk(), Writes::new(Some(0)));
    let aligned = Aligned::new(&data);
    WriteBypass::default().write(&file, &aligned.bytes()[1..], 0, 1 << 40, &writes).expect("written");
    assert_eq!(ways(&writes), (0, data.len() as u64 - 1));
    assert!(whole(&file) == data[1..]);
}

#[test]
fn pages_that_wait_in_the_cache_do_not_come_over_what_is_written_past_it() {
    let (file, old, new) = (on_disk(), vec![0xee; 2 * CHUNK], content(2 * CHUNK));
    write_at(&file, &old, 0).expect("written, and dirty");
    write_all(&file, &new, 0, 1 << 40, &Writes::new(Some(0))).expect("written");
    assert!(whole(&file) == new);
    file.sync_all().expect("synced");
    fadvise(&file, 0, None, Advice::DontNeed).expect("evicted");
    assert!(whole(&file) == new, "on the disk as well");
}

#[test]
fn a_file_system_without_a_disk_gets_it_through_the_cache() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return not_run("/dev/shm is missing") };
    if !fstatfs(File::open(memory.path()).expect("there")).is_ok_and(|fs| CACHE_ONLY.contains(&(fs.f_type as u32))) {
        return not_run("/dev/shm is no tmpfs here");
    }
    let (file, data, writes) = (file_in(memory.path().to_owned()), content(CHUNK + 5), Writes::new(Some(0)));
    write_all(&file, &data, 0, 1 << 40, &writes).expect("written");
    assert!(whole(&file) == data);
    assert_eq!(ways(&writes), (0, data.len() as u64));
}

#[test]
fn a_refusal_goes_through_the_cache_and_a_failure_is_told() {
    let data = Aligned::new(&content(CHUNK));
    let (file, writes, bypass) = (on_disk(), Writes::new(Some(0)), WriteBypass::default());
    // EINVAL, as from a file system that requires another alignment: only whole blocks may be written directly.
    let direct = bypass.direct.get_or_init(|| open_direct(&file)).as_ref().expect("a disk");
    assert_eq!(pwrite(direct, &data.bytes()[..511], 0), Err(Errno::INVAL));
    assert_eq!(bypass.write_direct(direct, &data.bytes()[1..=WRITE_BYTES_MIN], 1), Ok(0));
    bypass.write(&file, data.bytes(), 0, 1 << 40, &writes).expect("written");
    assert_eq!(ways(&writes), (0, CHUNK as u64), "once refused, always through the cache");
    // Every other error is reported, and not hidden by a second try.
    let full = WriteBypass::default();
    let device = OpenOptions::new().write(true).open("/dev/full").expect("there");
    full.direct.set(Some(device.into())).expect("nothing yet");
    assert_eq!(full.write(&file, data.bytes(), 0, 1 << 40, &writes), Err(Errno::NOSPC));
    assert_eq!(ways(&writes), (0, CHUNK as u64));
}

#[test]
fn memory_as_the_kernel_and_control_groups_tell_it() {
    let root = tempfile::tempdir().expect("a directory");
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
        fs::write(path, text).expect("a file");
    };
    let available = || available_bytes(root.path());
    assert_eq!(available(), None);
    put("proc/meminfo", "MemTotal:       1000 kB\nMemFree:   1 kB\n");
    assert_eq!(available(), None, "before Linux 3.14");
    put("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:      900 kB\n");
    assert_eq!(available(), Some(900 << 10));
    put("proc/self/cgroup", "4:memory:/a\n1:cpu:/\n0::/b/c\n");
    assert_eq!(available(), Some(900 << 10), "no limits");
    put("sys/fs/cgroup/b/c/memory.max", "max\n");
    put("sys/fs/cgroup/b/memory.max", "800000\n");
    assert_eq!(available(), Some(800_000), "that of a group above counts");
    put("sys/fs/cgroup/b/memory.current", "300000\n");
    assert_eq!(available(), Some(500_000), "what others have taken is not left");
    put("sys/fs/cgroup/b/memory.stat", "anon 90000\nfile 210000\ninactive_file 150000\nactive_file 50000\n");
    assert_eq!(available(), Some(700_000), "cached files make room");
    put("sys/fs/cgroup/b/memory.high", "750000\n");
    assert_eq!(available(), Some(650_000), "from here on the kernel slows it down");
    put("sys/fs/cgroup/b/memory.high", "max\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n");
    assert_eq!(available(), Some(600_000));
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 250000\ntotal_active_file 50000\n");
    assert_eq!(available(), Some(400_000));
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "9223372036854771711\n");
    assert_eq!(available(), Some(400_000), "no limit, so nothing is read");
}
