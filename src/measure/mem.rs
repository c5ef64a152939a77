//! Measures how fast memory is copied with a given number of threads.

use std::time::{Duration, Instant};

use super::report::{MIB, Memory};

/// Size of the area that each thread copies from, and of the area that it copies to, in bytes: far larger than caches.
const AREA_BYTES: usize = 64 << 20;

/// Bytes of a single copy: the size of a chunk.
const COPY_BYTES: usize = 1 << 20;

/// Copies with 1, 2, 4, ... threads, and finally with `threads_max`, for `duration` each.
pub fn copies(threads_max: u32, duration: Duration) -> Vec<Memory> {
    let mut counts: Vec<u32> = (0..=5).map(|power| 1 << power).filter(|&count| count < threads_max).collect();
    counts.push(threads_max.max(1));
    let row = |threads| Memory { threads, mib_s: copies_with(threads, duration) / MIB };
    counts.into_iter().map(row).collect()
}

/// Copies with this many threads, each in its own memory, and returns the bytes copied per second. If the system allows
/// fewer threads, those copy.
pub fn copies_with(threads: u32, duration: Duration) -> f64 {
    let ((ready, is_ready), (go, wait)) = (flume::unbounded(), flume::bounded::<()>(0));
    std::thread::scope(|scope| {
        let copying: Vec<_> = (0..threads)
            .map_while(|_| {
                let (ready, wait) = (ready.clone(), wait.clone());
                let copy = move || {
                    // Written by this thread, so that the pages exist and lie near it.
                    let source = vec![1_u8; AREA_BYTES];
                    let mut target = vec![2_u8; AREA_BYTES];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_double_up_to_the_most() {
        let rows = copies(3, Duration::from_millis(5));
        assert_eq!(rows.iter().map(|row| row.threads).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(rows.iter().all(|row| row.mib_s > 50.0), "{rows:?}");
    }
}
