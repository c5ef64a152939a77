//! Measures how fast memory is copied with a given number of threads.

use std::path::Path;
use std::time::{Duration, Instant};

use super::report::{MIB, Memory};
use crate::fs::direct::write::available_bytes;

/// Size of the area that each thread copies from, and of the area that it copies to, in bytes: far larger than caches.
const AREA_BYTES: usize = 64 << 20;

/// Smallest such area, in bytes. Less would be measured in caches.
const AREA_BYTES_MIN: usize = 16 << 20;

/// All areas together take at most the available memory divided by this.
const MEMORY_PART: u64 = 4;

/// Bytes of a single copy: the size of a chunk.
const COPY_BYTES: usize = 1 << 20;

/// Copies with 1, 2, 4, ... threads, and finally with `threads_max` or as many as have room in memory, for `duration`
/// each.
pub fn copies(threads_max: u32, duration: Duration) -> Vec<Memory> {
    // The same areas for all rows, so that they compare.
    let (threads_max, area_bytes) = room(threads_max, available_bytes(Path::new("/")));
    let mut counts: Vec<u32> = (0..=5).map(|power| 1 << power).filter(|&count| count < threads_max).collect();
    counts.push(threads_max);
    counts.into_iter().map(|threads| row(area_bytes, threads, duration)).collect()
}

/// Copies with this many threads, or as many as have room in memory, each in its own memory.
pub fn copies_with(threads: u32, duration: Duration) -> Memory {
    let (threads, area_bytes) = room(threads, available_bytes(Path::new("/")));
    row(area_bytes, threads, duration)
}

fn row(area_bytes: usize, threads: u32, duration: Duration) -> Memory {
    Memory { threads, mib_s: copies_between(area_bytes, threads, duration) / MIB }
}

/// Copies with this many threads, and returns the bytes copied per second. If the system allows fewer threads, those
/// copy.
fn copies_between(area_bytes: usize, threads: u32, duration: Duration) -> f64 {
    let ((ready, is_ready), (go, wait)) = (flume::unbounded(), flume::bounded::<()>(0));
    std::thread::scope(|scope| {
        let copying: Vec<_> = (0..threads)
            .map_while(|_| {
                let (ready, wait) = (ready.clone(), wait.clone());
                let copy = move || {
                    // Written by this thread, so that the pages exist and lie near it.
                    let source = vec![1_u8; area_bytes];
                    let mut target = vec![2_u8; area_bytes];
                    drop(ready);
                    let _ = wait.recv();
                    let start = Instant::now();
                    let mut bytes = 0_u64;
                    while start.elapsed() < duration {
                        for (to, from) in target.chunks_mut(COPY_BYTES).zip(source.chunks(COPY_BYTES)) {
                            to.copy_from_slice(std::hint::black_box(from));
                            bytes += to.len() as u64;
                        }
                        std::hint::black_box(&mut target);
                    }
                    bytes as f64 / start.elapsed().as_secs_f64()
                };
                std::thread::Builder::new().spawn_scoped(scope, copy).ok()
            })
            .collect();
        drop(ready);
        // Ends when each thread has dropped its sender.
        let _: Result<(), _> = is_ready.recv();
        drop(go);
        copying.into_iter().map(|thread| thread.join().expect("no panic in it")).sum()
    })
}

/// Returns how many threads, of this many, have room for two areas each, and the size of an area. One thread always
/// counts as having room.
fn room(threads: u32, available_bytes: Option<u64>) -> (u32, usize) {
    let part = available_bytes.unwrap_or(u64::MAX) / MEMORY_PART;
    let most = u32::try_from(part / (2 * AREA_BYTES_MIN as u64)).unwrap_or(u32::MAX);
    let threads = threads.min(most).max(1);
    let share = usize::try_from(part / (2 * u64::from(threads))).unwrap_or(usize::MAX);
    let bytes = share.clamp(AREA_BYTES_MIN, AREA_BYTES);
    (threads, bytes - bytes % COPY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_take_a_quarter_of_the_memory() {
        assert_eq!(room(8, None), (8, AREA_BYTES));
        assert_eq!(room(1, Some(1 << 40)), (1, AREA_BYTES));
        assert_eq!(room(64, Some(16 << 30)), (64, 32 << 20));
        assert_eq!(room(3, Some((1 << 30) + 12_345)), (3, 42 << 20), "whole copies");
        assert_eq!(room(64, Some(1 << 30)), (8, AREA_BYTES_MIN), "fewer threads rather than smaller areas");
        assert_eq!(room(64, Some(100 << 20)), (1, AREA_BYTES_MIN), "one at least");
    }

    #[test]
    fn threads_double_up_to_the_most() {
        let rows = copies(3, Duration::from_millis(5));
        let most = room(3, available_bytes(Path::new("/"))).0 as usize;
        assert_eq!(rows.iter().map(|row| row.threads).collect::<Vec<_>>(), [1, 2, 3][..most]);
        assert!(rows.iter().all(|row| row.mib_s > 50.0), "{rows:?}");
    }
}
