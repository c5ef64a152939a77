//! Extended attributes of an entry, by directory and name: listxattrat(2) and getxattrat(2) of Linux 6.13.
//!
//! Older kernels take only paths. A thread that has a working directory of its own enters the directory for the call:
//! 1.1 us of processor time for a file, where listxattrat(2) takes 0.7, and a path through `/proc/self/fd` 2.3, which
//! is a third of the time needed to examine a file that has not changed. That path remains for containers whose filter
//! of system calls refuses unshare(2), and for a thread that cannot return to the working directory of the process.

#![allow(unsafe_code, reason = "system calls that rustix does not have")]

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, lgetxattr, llistxattr, openat};
use rustix::io::Errno;
use rustix::process::fchdir;

use super::metadata::by_path;
use crate::fault::errno_of;

/// Numbers of the system calls, the same on all machines of [`HAS_NUMBERS`].
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;

/// Whether this machine uses the common numbers for new system calls. Alpha, MIPS and x32 have others.
const HAS_NUMBERS: bool = cfg!(all(
    target_pointer_width = "64",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "powerpc64",
        target_arch = "s390x",
        target_arch = "loongarch64"
    )
));

/// Whether the calls are missing: their numbers are not known, or the kernel has answered that it lacks them.
static ARE_MISSING: AtomicBool = AtomicBool::new(!HAS_NUMBERS);

/// `struct xattr_args` of the kernel.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// Reads the names of the attributes, each followed by a zero byte, and returns their total length. Follows no link.
///
/// # Errors
///
/// The error number of the failed call; [`Errno::RANGE`] if the buffer is too small.
pub(super) fn list_xattrs(directory: BorrowedFd<'_>, name: &CStr, names: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the name is a C string, and the kernel writes at most `names.len()` bytes to `names`.
    let called = call(|| unsafe {
        libc::syscall(
            LISTXATTRAT,
            directory.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            names.as_mut_ptr(),
            names.len(),
        )
    });
    called.unwrap_or_else(|| below(directory, name, |path| llistxattr(path, names)))
}

/// Reads the value of an attribute and returns its length. Follows no link.
///
/// # Errors
///
/// As for [`list_xattrs`]; [`Errno::NODATA`] if there is no attribute of this name.
pub(super) fn xattr(
    directory: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let Ok(size) = u32::try_from(value.len()) else { return Err(Errno::INVAL) };
    let arguments = XattrArgs { value: value.as_mut_ptr().expose_provenance() as u64, size, flags: 0 };
    // SAFETY: the names are C strings, and the kernel writes at most `size` bytes to `value`.
    let called = call(|| unsafe {
        libc::syscall(
            GETXATTRAT,
            directory.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const arguments,
            size_of::<XattrArgs>(),
        )
    });
    called.unwrap_or_else(|| below(directory, name, |path| lgetxattr(path, attribute, value)))
}

/// Returns the result of a system call. `None` if the system lacks the call.
fn call(run: impl FnOnce() -> libc::c_long) -> Option<Result<usize, Errno>> {
    if ARE_MISSING.load(Ordering::Relaxed) {
        return None;
    }
    match run() {
        length @ 0.. => Some(Ok(length as usize)),
        _ => match errno_of(&std::io::Error::last_os_error()) {
            // System call filters of containers answer EPERM to calls that are newer than the filter.
            Errno::NOSYS | Errno::PERM => {
                ARE_MISSING.store(true, Ordering::Relaxed);
                None
            }
            error => Some(Err(error)),
        },
    }
}

thread_local! {
    /// Whether this thread may leave the working directory without moving other threads.
    static IS_ALONE: Cell<bool> = Cell::new(leave_others());

    /// Whether this thread could not return to that directory.
    static IS_AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Returns the working directory of this process, to which relative paths from users belong. The thread itself may be
/// elsewhere, see [`below`].
pub(crate) fn here() -> BorrowedFd<'static> {
    static HERE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    // No thread leaves the directory before this has opened it.
    let open = || openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
    HERE.get_or_init(open).as_ref().map_or(CWD, AsFd::as_fd)
}

fn leave_others() -> bool {
    let home = here();
    // SAFETY: the call takes no pointer. Besides the working directory it separates the root directory, which no thread
    // of this program changes, and the umask, which is as it has to be before a sink's threads start.
    let is_alone = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
    // Returning fails if another user, as whom this program was started, may search the directory, but this one may
    // not.
    is_alone && fchdir(home).is_ok()
}

/// Calls `run` with a path to a name in an open directory.
fn below<T>(directory: BorrowedFd<'_>, name: &CStr, run: impl FnOnce(&CStr) -> Result<T, Errno>) -> Result<T, Errno> {
    if IS_ALONE.get() && (!IS_AWAY.get() || fchdir(here()).is_ok()) {
        IS_AWAY.set(false);
        fchdir(directory)?;
        let result = run(name);
        // The permission is checked anew each time, and a network file system may be out of reach. Then the thread
        // stays, and tries again at the next call.
        IS_AWAY.set(fchdir(here()).is_err());
        return result;
    }
    by_path(directory, |path| {
        let path = [path.as_bytes(), b"/", name.to_bytes()].concat();
        run(&CString::new(path).map_err(|_| Errno::INVAL)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::{fail_where, where_calls_fail};
    use crate::fs::identity;
    use crate::not_run::not_run;

    /// The results are equal with and without these calls, for a file, for a link (not followed) and for a missing
    /// entry.
    #[test]
    fn both_ways_say_the_same() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = std::fs::File::open(scratch.path()).expect("there");
        let file = scratch.path().join("file");
        std::fs::write(&file, "").expect("written");
        if let Err(error) = rustix::fs::setxattr(&file, c"user.colour", b"blue", rustix::fs::XattrFlags::empty()) {
            assert_eq!(error, Errno::OPNOTSUPP);
            return not_run(format_args!("{} has no attributes", scratch.path().display()));
        }
        std::os::unix::fs::symlink("file", scratch.path().join("link")).expect("linked");
        let ask = |name: &CStr, bytes: usize| {
            let mut names = vec![0; bytes];
            let listed = list_xattrs(directory.as_fd(), name, &mut names);
            // A host's policy may add attributes of its own.
            let listed = listed.map(|length| String::from_utf8_lossy(&names[..length]).contains("user.colour\0"));
            let mut value = vec![0; bytes];
            let read = xattr(directory.as_fd(), name, c"user.colour", &mut value);
            (listed, read.map(|length| (length, value)))
        };
        let all = || [c"file", c"link", c"none"].map(|name| [1, 100].map(|bytes| ask(name, bytes)));
        let with = all();
        assert_eq!(with[0][0], (Err(Errno::RANGE), Err(Errno::RANGE)));
        assert_eq!(with[0][1].0, Ok(true));
        assert_eq!(with[1][1].0, Ok(false), "not what the link leads to");
        assert_eq!(with[2][1].0, Err(Errno::NOENT));
        let before = std::env::current_dir().expect("a directory");
        for (error, others) in [(libc::ENOSYS, &[][..]), (libc::EPERM, &[]), (libc::EPERM, &[libc::SYS_unshare])] {
            ARE_MISSING.store(!HAS_NUMBERS, Ordering::Relaxed);
            let without = where_calls_fail(&[&[LISTXATTRAT, GETXATTRAT], others].concat(), error, || {
                let (all, is_alone) = (all(), IS_ALONE.get());
                assert_eq!(is_alone, others.is_empty());
                assert_eq!(std::env::current_dir().expect("a directory"), before);
                all
            });
            assert!(ARE_MISSING.swap(!HAS_NUMBERS, Ordering::Relaxed));
            assert_eq!(with, without);
        }
    }

    /// The working directory may be closed to this process while the thread is in another one, as by chmod(1), or on a
    /// server that is out of reach.
    #[test]
    fn a_thread_that_cannot_return_goes_on_and_relative_paths_lead_where_they_did() {
        let scratch = tempfile::tempdir().expect("a directory");
        std::fs::write(scratch.path().join("file"), "").expect("written");
        let directory = std::fs::File::open(scratch.path()).expect("there");
        let before = identity(&rustix::fs::stat(".").expect("a directory"));
        let run = || {
            if !IS_ALONE.get() {
                return false;
            }
            fail_where(libc::SYS_fchdir, (0, here().as_raw_fd() as u64), libc::EACCES);
            for is_away in [false, true, true] {
                assert_eq!(IS_AWAY.get(), is_away);
                let found = below(directory.as_fd(), c"file", |path| Ok(rustix::fs::lstat(path)?.st_size));
                assert_eq!(found, Ok(0));
                let led_to = rustix::fs::statat(here(), ".", rustix::fs::AtFlags::empty()).expect("a relative path");
                assert_eq!(identity(&led_to), before);
            }
            true
        };
        if !std::thread::scope(|scope| scope.spawn(run).join()).expect("the thread goes on") {
            not_run("unshare(2) is refused");
        }
    }
}
