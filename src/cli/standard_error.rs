//! Standard error, which may be a pipe that nobody reads, or a terminal that ^S has stopped. That is waited for, but not once a signal
//! asks this process to end: who waits is who would hear of the signal.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::signals;

/// A pipe that can be written to at all takes as much without waiting: `PIPE_BUF` of pipe(7).
const PIECE_BYTES: usize = 4096;

/// How often it is looked whether a signal has come.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How long after a signal somebody may take to read on.
const LAST_MAX: Duration = Duration::from_millis(500);

/// Writes all of it, at once if it is no more than a line or two: other processes may be writing there too.
pub(crate) fn write(bytes: &[u8]) {
    let stderr = std::io::stderr();
    write_unless(&mut stderr.lock(), bytes, || signals::since_end().is_some_and(|since| since >= LAST_MAX));
}

/// Until all is written, nobody can read it any more, or `is_over` while it cannot be written.
fn write_unless(target: &mut (impl Write + AsFd), bytes: &[u8], is_over: impl Fn() -> bool) {
    for piece in bytes.chunks(PIECE_BYTES) {
        let mut wait = Timespec::default();
        while let Ok(0) | Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(target, PollFlags::OUT)], Some(&wait)) {
            if is_over() {
                return;
            }
            wait = LOOK_EVERY;
        }
        // Where standard error is closed nobody is listening.
        if target.write_all(piece).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pipe_that_is_read_gets_all_of_it() {
        let (mut read, mut write) = std::io::pipe().expect("a pipe");
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        let given = bytes.clone();
        let writing = std::thread::spawn(move || write_unless(&mut write, &given, || false));
        let mut got = Vec::new();
        read.read_to_end(&mut got).expect("it ends");
        writing.join().expect("no panic");
        assert!(got == bytes);
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for_when_that_is_over() {
        let (_read, mut write) = std::io::pipe().expect("a pipe");
        let begin = Instant::now();
        write_unless(&mut write, &vec![0; 300_000], || begin.elapsed() > Duration::from_millis(100));
        assert!((Duration::from_millis(100)..Duration::from_secs(3)).contains(&begin.elapsed()));
    }

    #[test]
    fn a_pipe_that_is_closed_is_no_wait() {
        let (read, mut write) = std::io::pipe().expect("a pipe");
        drop(read);
        write_unless(&mut write, &[0; 9000], || false);
    }
}
