//! The users and groups that this host knows: numbers, names, homes.

use std::ffi::OsString;
use std::sync::OnceLock;

use nix::unistd::{Group, User, geteuid};

/// The home of the user who runs this: `HOME`, else as the database has it.
pub(crate) fn own_home() -> Option<OsString> {
    let told = std::env::var_os("HOME").filter(|home| !home.is_empty());
    told.or_else(|| Some(User::from_uid(geteuid()).ok()??.dir.into_os_string()))
}

/// Whether this process may give what is its user's to a group: it is in that.
pub(crate) fn is_own_group(number: u32) -> bool {
    static GROUPS: OnceLock<Vec<u32>> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| {
        let others = rustix::process::getgroups().unwrap_or_default();
        let own = [rustix::process::getegid()];
        let map = std::fs::read_to_string("/proc/self/gid_map").ok();
        let is_one = |group: &u32| map.as_deref().is_none_or(|map| is_mapped(map, *group));
        own.iter().chain(&others).map(|group| group.as_raw()).filter(is_one).collect()
    });
    groups.contains(&number)
}

/// Whether a group is one of this user namespace: all others have one number there, which none can be given to. Lines of
/// /proc/self/gid_map: the first number, that outside, how many.
fn is_mapped(map: &str, group: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first + count).contains(&group.into()))
    })
}

/// The home of a user.
pub(crate) fn home_of(user: &[u8]) -> Option<OsString> {
    user_named(user).map(|user| user.dir.into_os_string())
}

/// The number of a user.
pub(crate) fn user_number(name: &[u8]) -> Option<u32> {
    user_named(name).map(|user| user.uid.as_raw())
}

/// The name of a user, for messages.
pub(crate) fn shown_user(number: u32) -> Option<String> {
    Some(String::from_utf8_lossy(&user_name(number)?).into_owned())
}

/// The name of a user.
pub(crate) fn user_name(number: u32) -> Option<Vec<u8>> {
    whole(User::from_uid(number.into()).ok()??.name)
}

/// The number of a group.
pub(crate) fn group_number(name: &[u8]) -> Option<u32> {
    Some(Group::from_name(str::from_utf8(name).ok()?).ok()??.gid.as_raw())
}

/// The name of a group.
pub(crate) fn group_name(number: u32) -> Option<Vec<u8>> {
    whole(Group::from_gid(number.into()).ok()??.name)
}

fn user_named(name: &[u8]) -> Option<User> {
    User::from_name(str::from_utf8(name).ok()?).ok()?
}

/// A name, unless it is none in UTF-8: something else stands for its bytes then.
fn whole(name: String) -> Option<Vec<u8>> {
    (!name.contains(char::REPLACEMENT_CHARACTER)).then(|| name.into_bytes())
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
        assert_eq!((user_number(b"a\0b"), user_number(b"\xff"), group_number(b"\xff")), (None, None, None));
    }
}
