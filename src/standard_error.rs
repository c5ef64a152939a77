//! Writes to standard error, or to where events go, which may be a pipe that is not being read, or a terminal stopped by
//! ^S. A write waits for these, but not once a signal asks this process to end, because the waiting thread is the one
//! that would react to the signal.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signals;

/// Number of bytes written at a time. A pipe that is writable at all takes this many without blocking: `PIPE_BUF` of
/// pipe(7). A terminal may block in the middle of a piece, until the third signal.
const PIECE_BYTES: usize = 4096;

/// How often a waiting write checks whether a signal has come.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long after a signal a write waits for the reader to go on.
const LAST_MAX: Duration = Duration::from_millis(500);

/// Keeps the output of one thread in one piece. Not the standard library's own lock, because that waits without end.
static WRITING: Mutex<()> = Mutex::new(());

/// Writes all bytes. A line or two are written at once, because other processes may be writing to the same place.
pub(crate) fn write(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let _locked = loop {
        match WRITING.try_lock() {
            Err(TryLockError::WouldBlock) if is_over() => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY / 10),
            locked => break locked,
        }
    };
    // If standard error is closed, there is no reader.
    let _ = write_unless(rustix::stdio::stderr(), bytes, is_over);
}

/// Whether a signal asked this process to end so long ago that no reader is waited for any more.
pub(crate) fn is_over() -> bool {
    signals::since_end().is_some_and(|since| since >= LAST_MAX)
}

/// Writes all bytes, and waits for a reader.
///
/// # Errors
///
/// The system's error from writing; `EINTR` if `is_over` while nothing can be written.
pub(crate) fn write_unless(target: BorrowedFd<'_>, mut bytes: &[u8], is_over: impl Fn() -> bool) -> Result<(), Errno> {
    let look_every = Timespec::try_from(LOOK_EVERY).expect("a short time");
    let mut wait = Timespec::default();
    while !bytes.is_empty() {
        match poll(&mut [PollFd::new(&target, PollFlags::OUT)], Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => {
                if is_over() {
                    return Err(Errno::INTR);
                }
                wait = look_every;
                continue;
            }
            _ => {}
        }
        match rustix::io::write(target, &bytes[..bytes.len().min(PIECE_BYTES)]) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            // Another process that shares the target has filled it, or has made it non-blocking.
            Err(Errno::INTR | Errno::AGAIN) if !is_over() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pipe_that_is_read_gets_all_of_it() {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        let given = bytes.clone();
        let writing = std::thread::spawn(move || write_unless(OwnedFd::from(write).as_fd(), &given, || false));
        let mut got = Vec::new();
        read.read_to_end(&mut got).expect("it ends");
        assert!(got == bytes && writing.join().expect("no panic") == Ok(()));
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for_when_that_is_over() {
        let (_read, write) = std::io::pipe().expect("a pipe");
        let begin = Instant::now();
        let written = write_unless(write.as_fd(), &vec![0; 300_000], || begin.elapsed() > Duration::from_millis(100));
        assert_eq!(written, Err(Errno::INTR));
        assert!((Duration::from_millis(100)..Duration::from_secs(3)).contains(&begin.elapsed()));
    }

    #[test]
    fn a_pipe_that_is_closed_is_no_wait() {
        let (read, write) = std::io::pipe().expect("a pipe");
        drop(read);
        assert_eq!(write_unless(write.as_fd(), &[0; 9000], || false), Err(Errno::PIPE));
    }
}
