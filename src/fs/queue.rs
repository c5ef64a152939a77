//! A queue of bytes in a file without a name. A slow consumer falls behind by at most the capacity of the queue.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::resource::Resource;
use rd_proto::control::IoFact;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::{plain_fact, std_fact, temporary_directory, unlinked_anywhere};
use crate::limits;

/// How often a waiting thread checks whether it still should wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why nothing was put in or taken out.
#[derive(Debug)]
pub(crate) enum Unqueued {
    /// The bytes are no longer wanted.
    Over,
    Io(IoFact),
}

/// A bounded queue. One thread puts bytes in, another takes them out.
pub(crate) struct DiskQueue {
    file: File,
    bytes_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Offsets in the stream of all bytes that ever went through. In the file they wrap around at its end.
#[derive(Default)]
struct State {
    start: u64,
    end: u64,
    has_ended: bool,
}

impl DiskQueue {
    /// Makes a queue that holds up to `bytes_max` bytes. The file system reserves the space at once if it can.
    ///
    /// # Errors
    ///
    /// The error number of the failed call.
    pub(crate) fn new(bytes_max: u64) -> Result<Self, IoFact> {
        let file = unlinked_anywhere().map_err(|error| {
            let detail = b"cannot make a file for --spool; set TMPDIR to another directory".to_vec();
            IoFact { detail, ..std_fact(temporary_directory().as_os_str(), &error) }
        })?;
        match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, bytes_max)) {
            // A filter of system calls that is older than this one says that it is not permitted.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {}
            Err(error) => {
                let is_limited = limits::soft(Resource::RLIMIT_FSIZE).is_some_and(|most| bytes_max > most);
                let detail = match error {
                    Errno::FBIG if is_limited => {
                        "--spool is more than the file size limit (ulimit -f); raise it, or spool less"
                    }
                    _ => "not enough space for --spool; set TMPDIR to a directory with more, or spool less",
                };
                return Err(IoFact {
                    errno: error.raw_os_error(),
                    ..plain_fact(temporary_directory().as_os_str(), detail)
                });
            }
        }
        Ok(Self { file, bytes_max: bytes_max.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Puts in all of `bytes`. Waits for room as long as `goes_on` returns true.
    ///
    /// # Errors
    ///
    /// [`Unqueued`].
    pub(crate) fn put(&self, mut bytes: &[u8], goes_on: impl Fn() -> bool) -> Result<(), Unqueued> {
        while !bytes.is_empty() {
            let state = self.wait_until(|state| state.end - state.start < self.bytes_max, &goes_on)?;
            let (at, room) = (state.end, self.bytes_max - (state.end - state.start));
            drop(state);
            let length = self.within(at, room.min(bytes.len() as u64));
            self.file.write_all_at(&bytes[..length], at % self.bytes_max).map_err(|error| failed(&error))?;
            bytes = &bytes[length..];
            crate::locked(&self.state).end += length as u64;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Marks the end: no more bytes are put in.
    pub(crate) fn end(&self) {
        crate::locked(&self.state).has_ended = true;
        self.changed.notify_all();
    }

    /// Takes out the next bytes; none at the end. Waits for bytes as long as `goes_on` returns true.
    ///
    /// # Errors
    ///
    /// [`Unqueued`].
    pub(crate) fn take(&self, buffer: &mut [u8], goes_on: impl Fn() -> bool) -> Result<usize, Unqueued> {
        let state = self.wait_until(|state| state.end > state.start || state.has_ended, &goes_on)?;
        let (at, there) = (state.start, state.end - state.start);
        drop(state);
        let length = self.within(at, there.min(buffer.len() as u64));
        self.file.read_exact_at(&mut buffer[..length], at % self.bytes_max).map_err(|error| failed(&error))?;
        crate::locked(&self.state).start += length as u64;
        self.changed.notify_all();
        Ok(length)
    }

    /// Returns how many of `bytes` bytes from offset `at` on lie in the file without a break.
    fn within(&self, at: u64, bytes: u64) -> usize {
        bytes.min(self.bytes_max - at % self.bytes_max) as usize
    }

    fn wait_until(
        &self,
        is_so: impl Fn(&State) -> bool,
        goes_on: &impl Fn() -> bool,
    ) -> Result<MutexGuard<'_, State>, Unqueued> {
        let mut state = crate::locked(&self.state);
        loop {
            if !goes_on() {
                return Err(Unqueued::Over);
            }
            if is_so(&state) {
                return Ok(state);
            }
            state = self.changed.wait_timeout(state, LOOK_EVERY).expect("no panics under it").0;
        }
    }
}

fn failed(error: &std::io::Error) -> Unqueued {
    Unqueued::Io(std_fact(temporary_directory().as_os_str(), error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Whatever the lengths of the pieces, and however often the queue wraps around.
    #[test]
    fn what_goes_in_comes_out_in_order() {
        for bytes_max in [1, 7, 4096, 100_003] {
            let queue = DiskQueue::new(bytes_max).expect("a file");
            let data: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect();
            let data = &data[..data.len().min(bytes_max as usize * 2000)];
            let mut out = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (number, piece) in data.chunks(1021).enumerate() {
                        queue.put(&piece[..piece.len().min(number)], || true).expect("room");
                        queue.put(&piece[piece.len().min(number)..], || true).expect("room");
                    }
                    queue.end();
                });
                let mut buffer = [0; 777];
                loop {
                    match queue.take(&mut buffer, || true).expect("more") {
                        0 => break,
                        length => out.extend_from_slice(&buffer[..length]),
                    }
                }
            });
            assert!(out == data, "{bytes_max}: {} of {}", out.len(), data.len());
        }
    }

    #[test]
    fn nobody_waits_for_what_nobody_wants() {
        let queue = DiskQueue::new(4).expect("a file");
        let is_over = AtomicBool::new(false);
        let goes_on = || !is_over.swap(true, Ordering::Relaxed);
        assert!(matches!(queue.put(b"12345", goes_on), Err(Unqueued::Over)));
        let mut buffer = [0; 9];
        assert!(matches!(queue.take(&mut buffer, || true), Ok(4)));
        assert!(matches!(queue.take(&mut buffer, || false), Err(Unqueued::Over)));
        queue.end();
        assert!(matches!(queue.take(&mut buffer, || true), Ok(0)));
    }

    #[test]
    fn space_that_nobody_may_reserve_is_used_without() {
        use crate::fs::close::tests::where_calls_fail;

        let is_made = || DiskQueue::new(4096).is_ok();
        assert!(where_calls_fail(&[libc::SYS_fallocate], libc::EPERM, is_made));
        assert!(!where_calls_fail(&[libc::SYS_fallocate], libc::ENOSPC, is_made));
    }

    #[test]
    fn a_disk_that_cannot_hold_it_says_so_at_once() {
        let fact = match DiskQueue::new(1 << 62) {
            Err(fact) => fact,
            Ok(_) => panic!("there is no such disk"),
        };
        assert!(fact.errno != 0 && String::from_utf8_lossy(&fact.detail).contains("--spool"), "{fact:?}");
    }
}
