//! Errors that a file system reports only when a file is closed.

#![allow(unsafe_code, reason = "a descriptor is closed and its error read")]

use std::os::fd::{AsFd, IntoRawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec, try_close};

/// Asks the file system for the result of everything written through a descriptor, which stays open. NFS, FUSE and
/// others write behind, and report a full disk or an exceeded quota only when a descriptor is closed (close(2),
/// "Dealing with error returns from close()"). On all other file systems the call does nothing.
///
/// # Errors
///
/// The error number returned by close(2), or by duplicating the descriptor.
pub fn settle(file: impl AsFd) -> Result<(), Errno> {
    let copy = fcntl_dupfd_cloexec(file, 0)?;
    // SAFETY: the descriptor was made here and no other code has its number. Linux releases the number whatever
    // close(2) returns, so the descriptor is closed exactly once.
    unsafe { try_close(copy.into_raw_fd()) }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use seccompiler::{
        SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
    };

    use super::*;
    use crate::fs::io_fact;
    use crate::fs::sink::{FileSink, StreamSink};

    /// Runs `run` in a thread in which close(2) fails with EDQUOT and leaves the descriptor open. The same holds in
    /// threads that `run` starts.
    pub fn where_closing_fails<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        where_calls_fail(&[libc::SYS_close], libc::EDQUOT, run)
    }

    /// Runs `run` in a thread in which these system calls do nothing and fail with this error, or with 0 succeed. The
    /// same holds in threads that `run` starts.
    pub fn where_calls_fail<T: Send>(calls: &[libc::c_long], error: i32, run: impl FnOnce() -> T + Send) -> T {
        let calls: BTreeMap<_, _> = calls.iter().map(|&call| (call, Vec::new())).collect();
        std::thread::scope(|scope| {
            let filtered = scope.spawn(move || {
                fail(calls, error);
                run()
            });
            filtered.join().expect("its end")
        })
    }

    /// From now on, a system call fails in this thread with this error if an argument has this value.
    pub fn fail_where(call: libc::c_long, (argument, value): (u8, u64), error: i32) {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
        let rule = SeccompRule::new(vec![condition.expect("a condition")]).expect("a rule");
        fail([(call, vec![rule])].into(), error);
    }

    fn fail(calls: BTreeMap<i64, Vec<SeccompRule>>, error: i32) {
        let fails = SeccompAction::Errno(error as u32);
        let arch = std::env::consts::ARCH.try_into().expect("a machine that filters are made for");
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, fails, arch).expect("a filter");
        let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
        apply_filter(&program).expect("filtered");
    }

    #[test]
    fn closing_is_asked_and_the_file_stays_open() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(settle(&file), Ok(()));
        assert_eq!(where_closing_fails(|| settle(&file)), Err(Errno::DQUOT));
        assert!(rustix::fs::fstat(&file).is_ok());
    }

    #[test]
    fn sinks_ask_before_they_answer_for_what_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        std::fs::write(&path, b"old").expect("written");
        let file = where_closing_fails(|| {
            let sink = FileSink::create(&path).expect("made");
            sink.write_at(b"never", 0).expect("written");
            sink.publish()
        });
        let stream = where_closing_fails(|| {
            let mut sink = StreamSink::open(&path).expect("open");
            sink.write_all(b"new").expect("written");
            sink.settle()
        });
        assert_eq!(
            (file, stream),
            (Err(io_fact(path.as_os_str(), Errno::DQUOT)), Err(io_fact(path.as_os_str(), Errno::DQUOT)))
        );
        assert_eq!(std::fs::read(&path).expect("there"), b"new", "written in place by the stream alone");
    }
}
