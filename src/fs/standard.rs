//! Standard input and output as this process was given them.
//!
//! If one of them, or standard error, is closed, Rust's runtime opens /dev/null in its place before `main`. Nothing
//! would then be sent, or everything received would be lost, and both would count as success.

#![allow(unsafe_code, reason = "descriptors are checked before the runtime does")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Result};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rd_proto::control::IoFact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};

use super::text::Text;
use super::{Identity, identity, std_fact};

/// Which descriptors were closed when this process began, one bit for each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the C library before `main`, and so before Rust's runtime examines the descriptors.
#[used]
// SAFETY: the section is an array of functions that the C library calls with (argc, argv, envp). A function that takes
// none of these may be called so. This function allocates nothing and needs nothing of the runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..=2 {
        // SAFETY: asking for the flags of a number that is no descriptor has no effect but an error.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Returns a duplicate of standard input.
///
/// # Errors
///
/// `EBADF` if standard input was closed when this process began, else the error of duplicating the descriptor.
pub fn input() -> Result<File> {
    duplicate(0, std::io::stdin().as_fd())
}

/// Returns a duplicate of standard output.
///
/// # Errors
///
/// As for [`input`].
pub fn output() -> Result<File> {
    duplicate(1, std::io::stdout().as_fd())
}

/// Writes all of `bytes`. Waits without limit for a reader that stands still.
///
/// # Errors
///
/// The system's error from writing.
pub(crate) fn write_all(file: impl AsFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match retry_on_intr(|| rustix::io::write(&file, bytes)) {
            Ok(0) => return Err(Errno::IO.into()),
            Ok(count) => bytes = &bytes[count..],
            // Another process shares this file and has made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&file, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reports whether no reader is left, which a pipe or socket tells by its other end.
pub fn is_unread(file: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&file, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // HUP alone: a socket whose reader had read everything before it closed its end.
    poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Name of standard input in messages.
pub const INPUT: &str = "standard input";

/// Name of standard output in messages.
pub const OUTPUT: &str = "standard output";

/// Returns a duplicate of standard input, as [`input`] does.
///
/// # Errors
///
/// The name and the error number.
pub fn named_input() -> std::result::Result<File, IoFact> {
    input().map_err(|error| std_fact(INPUT.as_ref(), &error))
}

/// Returns a duplicate of standard output, as [`output`] does.
///
/// # Errors
///
/// The name and the error number.
pub fn named_output() -> std::result::Result<File, IoFact> {
    output().map_err(|error| std_fact(OUTPUT.as_ref(), &error))
}

/// The descriptor that [`given`] has duplicated last, unless it is a standard stream; -1 for none.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Returns a duplicate of a descriptor that this process was given, by its number. Programs that are started from then
/// on do not inherit the descriptor, unless it is a standard stream: they could write to it, and its reader would not
/// see its end before theirs.
///
/// # Errors
///
/// `EBADF` if the number is no open descriptor, or one that this process opened itself; else as for [`input`].
pub fn given(number: RawFd) -> Result<File> {
    if !is_given(number) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the descriptor is open, as has been checked, and was given to this process, which closes no such
    // descriptor.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    if number > 2 {
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
        KEPT.store(number, Ordering::Relaxed);
    }
    duplicate(number, descriptor)
}

/// Reports whether a number is that of an open descriptor which this process did not open itself.
pub fn is_given(number: RawFd) -> bool {
    // SAFETY: asking for the flags of a number that is no descriptor has no effect but an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // Descriptors that this process opens are closed on exec.
    let is_own = flags & libc::FD_CLOEXEC != 0 && number != KEPT.load(Ordering::Relaxed);
    flags != -1 && !is_own && !was_closed(number)
}

/// Reports whether a path is another name of standard input.
pub fn is_input(path: &OsStr) -> bool {
    matches!(path.as_bytes(), b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0")
}

/// Reports whether a path is another name of standard output.
pub fn is_output(path: &OsStr) -> bool {
    matches!(path.as_bytes(), b"/dev/stdout" | b"/dev/fd/1" | b"/proc/self/fd/1")
}

/// Reports whether an open file is the null device.
pub fn is_null(file: impl AsFd) -> bool {
    let (Ok(here), Ok(null)) = (fstat(file), rustix::fs::stat("/dev/null")) else { return true };
    identity(&here) == identity(&null)
        || here.st_rdev == null.st_rdev && null.st_rdev != 0 && here.st_mode == null.st_mode
}

/// Device and inode number of both files that [`take`] has taken.
static TAKEN: OnceLock<[Identity; 2]> = OnceLock::new();

/// Takes standard input and output away from their descriptor numbers, which refer to /dev/null from then on. Neither a
/// program that is started nor a name such as /dev/stdout then reaches the taken files.
///
/// # Errors
///
/// As for [`input`].
pub fn take() -> Result<[File; 2]> {
    let both = [input()?, output()?];
    let mut numbers = [(0, 0); 2];
    for (number, file) in numbers.iter_mut().zip(&both) {
        *number = identity(&fstat(file)?);
    }
    TAKEN.get_or_init(|| numbers);
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(both)
}

/// Reports whether an open file is one that [`take`] has taken. A taken file can still be opened by a name: by that of
/// its new descriptor (/dev/fd/3), or by its own if it is a FIFO.
pub fn is_taken(file: impl AsFd) -> bool {
    let Some(taken) = TAKEN.get() else { return false };
    fstat(file).is_ok_and(|stat| taken.contains(&identity(&stat)))
}

/// Whether a session has written to standard output, and what to do before the first write.
struct Begun {
    has_begun: bool,
    before: Option<Box<dyn FnOnce() + Send>>,
}

static BEGUN: Mutex<Begun> = Mutex::new(Begun { has_begun: false, before: None });

/// While this exists, no session writes its first byte to standard output.
pub struct Unwritten(MutexGuard<'static, Begun>);

impl Unwritten {
    /// Makes sessions wait. `None` if a session has already written to standard output.
    pub fn hold() -> Option<Self> {
        let begun = crate::locked(&BEGUN);
        (!begun.has_begun).then_some(Self(begun))
    }

    /// Sets what to do before the first byte is written, such as clearing progress drawn on the same terminal.
    pub fn before_first_byte(&mut self, before: impl FnOnce() + Send + 'static) {
        self.0.before = Some(Box::new(before));
    }
}

/// What may be written to standard output: anything (0), text without commands to a terminal (1), or any text (2).
static GUARD: AtomicU8 = AtomicU8::new(0);

/// If standard output is a terminal, lets sessions write only text there. `has_commands`: whether the program that was
/// asked for may know of the terminal and use colours.
pub fn guard_terminal(has_commands: bool) {
    let guard = if std::io::stdout().is_terminal() { 1 + u8::from(has_commands) } else { 0 };
    GUARD.store(guard, Ordering::Relaxed);
}

/// Returns the check for data written to standard output; `None` if anything may be written.
pub(super) fn guard() -> Option<Text> {
    match GUARD.load(Ordering::Relaxed) {
        0 => None,
        1 => Some(Text::default()),
        _ => Some(Text::with_commands()),
    }
}

/// Must be called before a session writes to standard output.
pub(super) fn begin_output() {
    let mut begun = crate::locked(&BEGUN);
    begun.has_begun = true;
    if let Some(before) = begun.before.take() {
        before();
    }
}

fn duplicate(number: RawFd, descriptor: BorrowedFd<'_>) -> Result<File> {
    if was_closed(number) {
        return Err(Errno::BADF.into());
    }
    Ok(descriptor.try_clone_to_owned()?.into())
}

/// Reports whether a standard descriptor was closed when this process started.
pub(super) fn was_closed(number: RawFd) -> bool {
    (0..=2).contains(&number) && CLOSED.load(Ordering::Relaxed) & 1 << number != 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::io::fcntl_getfd;

    use super::*;

    /// `rdcp --watch` asks for the descriptor of its report at each copy.
    #[test]
    fn a_descriptor_is_given_more_than_once_and_not_passed_on() {
        let file = tempfile::tempfile().expect("a file");
        let number = file.as_raw_fd();
        assert_eq!(given(number).expect_err("its own").raw_os_error(), Some(libc::EBADF));
        fcntl_setfd(&file, FdFlags::empty()).expect("it is open");
        for _ in 0..2 {
            assert!(given(number).is_ok());
            assert_eq!(fcntl_getfd(&file), Ok(FdFlags::CLOEXEC));
        }
    }
}
