//! The users and groups that this host knows: numbers, names, homes.

#![allow(unsafe_code, reason = "the C library's databases of users and groups")]

use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;

/// The longest entry: groups list their members.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The home of the user who runs this, as the database has it.
pub(crate) fn own_home() -> Option<OsString> {
    // SAFETY: all point to live memory of the stated length. The home is a C string in the buffer.
    look_up(
        |entry, buffer, found| unsafe {
            libc::getpwuid_r(libc::geteuid(), entry, buffer.as_mut_ptr().cast(), buffer.len(), found)
        },
        |entry: &libc::passwd| unsafe { text(entry.pw_dir) },
    )
    .map(OsString::from_vec)
}

/// The home of a user.
pub(crate) fn home_of(user: &[u8]) -> Option<OsString> {
    // SAFETY: as above.
    user_named(user, |entry| unsafe { text(entry.pw_dir) }).map(OsString::from_vec)
}

/// The number of a user.
pub(crate) fn user_number(name: &[u8]) -> Option<u32> {
    user_named(name, |entry| entry.pw_uid)
}

/// The name of a user.
pub(crate) fn user_name(number: u32) -> Option<Vec<u8>> {
    // SAFETY: as above.
    look_up(
        |entry, buffer, found| unsafe {
            libc::getpwuid_r(number, entry, buffer.as_mut_ptr().cast(), buffer.len(), found)
        },
        |entry: &libc::passwd| unsafe { text(entry.pw_name) },
    )
}

/// The number of a group.
pub(crate) fn group_number(name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: as above; the name is a C string.
    look_up(
        |entry, buffer, found| unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, buffer.as_mut_ptr().cast(), buffer.len(), found)
        },
        |entry: &libc::group| entry.gr_gid,
    )
}

/// The name of a group.
pub(crate) fn group_name(number: u32) -> Option<Vec<u8>> {
    // SAFETY: as above.
    look_up(
        |entry, buffer, found| unsafe {
            libc::getgrgid_r(number, entry, buffer.as_mut_ptr().cast(), buffer.len(), found)
        },
        |entry: &libc::group| unsafe { text(entry.gr_name) },
    )
}

fn user_named<T>(name: &[u8], read: impl Fn(&libc::passwd) -> T) -> Option<T> {
    let name = CString::new(name).ok()?;
    // SAFETY: all point to live memory of the stated length; the name is a C string.
    look_up(
        |entry, buffer, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, buffer.as_mut_ptr().cast(), buffer.len(), found)
        },
        read,
    )
}

/// What `read` takes from the entry that `call` finds, while the buffer with its strings lives.
fn look_up<E, T>(call: impl Fn(*mut E, &mut [u8], *mut *mut E) -> c_int, read: impl Fn(&E) -> T) -> Option<T> {
    let mut buffer = vec![0; 4 << 10];
    loop {
        let (mut entry, mut found) = (MaybeUninit::<E>::uninit(), std::ptr::null_mut());
        match call(entry.as_mut_ptr(), &mut buffer, &raw mut found) {
            // SAFETY: it points to the entry, which the call has filled.
            0 if !found.is_null() => return Some(read(unsafe { &*found })),
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(4 * buffer.len(), 0),
            _ => return None,
        }
    }
}

/// # Safety
///
/// It points to a C string.
unsafe fn text(string: *const c_char) -> Vec<u8> {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(string) }.to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known() {
        assert_eq!(user_number(b"root"), Some(0));
        assert_eq!(user_name(0).as_deref(), Some(&b"root"[..]));
        assert_eq!(group_number(b"root"), Some(0));
        assert_eq!(group_name(0).as_deref(), Some(&b"root"[..]));
        assert_eq!((user_number(b"no such user"), user_name(u32::MAX - 7)), (None, None));
        assert_eq!(user_number(b"a\0b"), None);
    }
}
