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

/// Copies with 1, 2, 4, ... threads, and finally with `threads_max`, for `duration` each.
pub fn copies(threads_max: u32, duration: Duration) -> Vec<Memory> {
    let mut counts: Vec<u32> = (0..=5).map(|power| 1 << power).filter(|&count| count < threads_max).collect();
    counts.push(threads_max.max(1));
    // The same for all rows, so that they compare.
    let area_bytes = area_bytes(threads_max, available_bytes(Path::new("/")));
    let row = |threads| Memory { threads, mib_s: copies_between(area_bytes, threads, duration) / MIB };
    counts.into_iter().map(row).collect()
}

/// Copies with this many threads, each in its own memory, and returns the bytes copied per second. If the system allows
/// fewer threads, those copy.
pub fn copies_with(threads: u32, duration: Duration) -> f64 {
    copies_between(area_bytes(threads, available_bytes(Path::new("/"))), threads, duration)
}

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

/// Returns the size of an area for this many threads, each with two areas.
fn area_bytes(threads: u32, available_bytes: Option<u64>) -> usize {
    let share = available_bytes.unwrap_or(u64::MAX) / MEMORY_PART / (2 * u64::from(threads.max(1)));
    let bytes = usize::try_from(share).unwrap_or(usize::MAX).clamp(AREA_BYTES_MIN, AREA_BYTES);
    bytes - bytes % COPY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_take_a_quarter_of_the_memory() {
        assert_eq!(area_bytes(8, None), AREA_BYTES);
        assert_eq!(area_bytes(1, Some(1 << 40)), AREA_BYTES);
        assert_eq!(area_bytes(64, Some(16 << 30)), 32 << 20);
        assert_eq!(area_bytes(3, Some((1 << 30) + 12_345)), 42 << 20, "whole copies");
        assert_eq!(area_bytes(64, Some(100 << 20)), AREA_BYTES_MIN);
    }

    #[test]
    fn threads_double_up_to_the_most() {
        let rows = copies(3, Duration::from_millis(5));
        assert_eq!(rows.iter().map(|row| row.threads).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(rows.iter().all(|row| row.mib_s > 50.0), "{rows:?}");
    }
}
