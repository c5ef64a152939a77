//! Standard input and output as this process was given them.
//!
//! Where one of them is closed, Rust's runtime opens /dev/null in its place before `main`: what is sent would be nothing,
//! and what is received would be lost, and both would succeed.

#![allow(unsafe_code, reason = "descriptors are checked before the runtime does")]

use std::fs::File;
use std::io::{IsTerminal, Result};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rd_proto::control::IoFact;
use rustix::fs::fstat;
use rustix::io::Errno;

use super::text::Text;
use super::{Identity, identity, std_fact};

/// Of the descriptors that were closed when this process began, a bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The C library calls it before it calls what becomes `main`, and so before the runtime has a look.
#[used]
// SAFETY: the section is an array of functions that the C library calls with (argc, argv, envp); one that takes none of
// them may be called so, and this one allocates nothing and needs nothing of the runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..=1 {
        // SAFETY: asking for the flags of a number that is no descriptor does nothing but fail.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// A duplicate of standard input.
///
/// # Errors
///
/// EBADF where it was closed when this process began, and what duplicating a descriptor may fail with.
pub fn input() -> Result<File> {
    duplicate(0, std::io::stdin().as_fd())
}

/// A duplicate of standard output.
///
/// # Errors
///
/// As [`input`].
pub fn output() -> Result<File> {
    duplicate(1, std::io::stdout().as_fd())
}

/// What standard input is called.
pub const INPUT: &str = "standard input";

/// What standard output is called.
pub const OUTPUT: &str = "standard output";

/// As [`input`].
///
/// # Errors
///
/// Its name and the error number.
pub fn named_input() -> std::result::Result<File, IoFact> {
    input().map_err(|error| std_fact(INPUT.as_ref(), &error))
}

/// As [`output`].
///
/// # Errors
///
/// Its name and the error number.
pub fn named_output() -> std::result::Result<File, IoFact> {
    output().map_err(|error| std_fact(OUTPUT.as_ref(), &error))
}

/// A duplicate of a descriptor that this process was given, by its number.
///
/// # Errors
///
/// EBADF where it is none, or one that this process opened itself; and as [`input`].
pub fn given(number: RawFd) -> Result<File> {
    if !is_given(number) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is open, as has been seen, and was handed to this process, which closes none of those.
    duplicate(number, unsafe { BorrowedFd::borrow_raw(number) })
}

/// Whether a number is that of an open descriptor which this process did not open itself.
pub fn is_given(number: RawFd) -> bool {
    // SAFETY: asking for the flags of a number that is no descriptor does nothing but fail.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // Those of this process are closed on execution.
    flags != -1 && flags & libc::FD_CLOEXEC == 0
}

/// Whether an open file is the null device.
pub fn is_null(file: impl AsFd) -> bool {
    let (Ok(here), Ok(null)) = (fstat(file), rustix::fs::stat("/dev/null")) else { return true };
    identity(&here) == identity(&null)
        || here.st_rdev == null.st_rdev && null.st_rdev != 0 && here.st_mode == null.st_mode
}

/// Device and number of what [`take`] has taken.
static TAKEN: OnceLock<[Identity; 2]> = OnceLock::new();

/// Takes standard input and output away from their numbers, where /dev/null is from now on: neither a program that is
/// started nor a name such as /dev/stdout comes to them any more.
///
/// # Errors
///
/// As [`input`].
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

/// Whether an open file is what [`take`] has taken: their new numbers have names, too (/dev/fd/3), and so may a FIFO.
pub fn is_taken(file: impl AsFd) -> bool {
    let Some(taken) = TAKEN.get() else { return false };
    fstat(file).is_ok_and(|stat| taken.contains(&identity(&stat)))
}

/// Whether a session has written to standard output, and what to do before it does.
struct Begun {
    has_begun: bool,
    before: Option<Box<dyn FnOnce() + Send>>,
}

static BEGUN: Mutex<Begun> = Mutex::new(Begun { has_begun: false, before: None });

/// Standard output to which no session writes its first byte as long as this is there.
pub struct Unwritten(MutexGuard<'static, Begun>);

impl Unwritten {
    /// `None` once a session has written there.
    pub fn hold() -> Option<Self> {
        let begun = BEGUN.lock().expect("no panic with it locked");
        (!begun.has_begun).then_some(Self(begun))
    }

    /// Sets what to do before the first byte, such as clearing progress that is drawn on the same terminal.
    pub fn before_first_byte(&mut self, before: impl FnOnce() + Send + 'static) {
        self.0.before = Some(Box::new(before));
    }
}

/// What may be written to standard output: anything, only what commands no terminal, or any text.
static GUARD: AtomicU8 = AtomicU8::new(0);

/// Where standard output is a terminal, has sessions write only text there. `has_commands`: what was asked for may know of
/// the terminal and colour it.
pub fn guard_terminal(has_commands: bool) {
    let guard = if std::io::stdout().is_terminal() { 1 + u8::from(has_commands) } else { 0 };
    GUARD.store(guard, Ordering::Relaxed);
}

/// What to look through what is written to standard output with.
pub(super) fn guard() -> Option<Text> {
    match GUARD.load(Ordering::Relaxed) {
        0 => None,
        1 => Some(Text::default()),
        _ => Some(Text::with_commands()),
    }
}

/// A session is about to write to standard output.
pub(super) fn begin_output() {
    let mut begun = BEGUN.lock().expect("no panic with it locked");
    begun.has_begun = true;
    if let Some(before) = begun.before.take() {
        before();
    }
}

fn duplicate(number: RawFd, descriptor: BorrowedFd<'_>) -> Result<File> {
    if number <= 1 && CLOSED.load(Ordering::Relaxed) & 1 << number != 0 {
        return Err(Errno::BADF.into());
    }
    Ok(descriptor.try_clone_to_owned()?.into())
}
