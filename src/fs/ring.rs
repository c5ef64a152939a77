//! Checks a kernel ring (io_uring) before anything depends on it. Not every ring that can be made can be used.

#![allow(unsafe_code, reason = "a request is put into a ring")]

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

/// Checks that the kernel knows these kinds of requests (`CODE` in [`opcode`]), and that it takes requests at all. Must
/// be called by the thread that uses the ring, before the ring holds a request.
///
/// # Errors
///
/// The system's error, or `ENOSYS` if a kind is not known: reads and writes into plain buffers are younger (Linux 5.6)
/// than rings (5.1).
pub(crate) fn check(ring: &mut IoUring, codes: &[u8]) -> std::io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !codes.iter().all(|&code| probe.is_supported(code)) {
        return Err(Errno::NOSYS.into());
    }
    // A filter of system calls may allow making a ring but not using it.
    // SAFETY: the request refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()).map_err(|_| Errno::BUSY)? };
    ring.submit_and_wait(1)?;
    ring.completion().for_each(drop);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    #[test]
    fn a_ring_that_cannot_be_used_is_refused() {
        let is_right = |codes: &[u8]| IoUring::new(2).is_ok_and(|mut ring| check(&mut ring, codes).is_ok());
        // Containers may forbid rings.
        let Ok(mut ring) = IoUring::new(2) else { return };
        if check(&mut ring, &[opcode::Read::CODE]).is_err() {
            return;
        }
        assert!(ring.completion().is_empty(), "the caller sees only its own completions");
        assert!(!is_right(&[opcode::Read::CODE, u8::MAX]), "no kernel knows it");
        // Linux 5.1 to 5.5 cannot be asked.
        for (call, error) in [(libc::SYS_io_uring_register, libc::EINVAL), (libc::SYS_io_uring_enter, libc::EPERM)] {
            assert!(!where_calls_fail(&[call], error, || is_right(&[opcode::Read::CODE])), "{call}");
        }
    }
}
