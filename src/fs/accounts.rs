//! Users and groups known to this host: numbers, names, home directories.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use nix::unistd::{Group, User, geteuid};

/// Returns the home directory of the user who runs this process: `HOME` if set and not empty, else the user database's
/// entry.
pub(crate) fn own_home() -> Option<OsString> {
    let told = std::env::var_os("HOME").filter(|home| !home.is_empty());
    told.or_else(|| Some(User::from_uid(geteuid()).ok()??.dir.into_os_string()))
}

/// Returns the login shell of the user who runs this process, as sshd finds it, or `/bin/sh` if there was no login. The
/// login's own files may have set `SHELL` to another one.
pub(crate) fn own_shell() -> Option<OsString> {
    // sshd has set it. Without it, this is no login, as with `docker exec`, and the account need not have a shell. A
    // `sh` that is bash would take the account's nevertheless.
    if std::env::var_os("SHELL").is_none() {
        return Some("/bin/sh".into());
    }
    // Several logins may share a number.
    let named = std::env::var_os("LOGNAME").and_then(|name| user_named(name.as_bytes()));
    let user = named.filter(|user| user.uid == geteuid()).or_else(|| User::from_uid(geteuid()).ok()?)?;
    let is_named = !user.shell.as_os_str().is_empty();
    Some(if is_named { user.shell.into_os_string() } else { "/bin/sh".into() })
}

/// Reports whether this process may give a file of its user to a group, which it may if it is a member of the group.
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

/// Reports whether a group is mapped in this user namespace. All unmapped groups have the same number there, which no
/// file can be given. Each line of /proc/self/gid_map has three numbers: the first id inside the namespace, the first
/// id outside, and the count.
fn is_mapped(map: &str, group: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first + count).contains(&group.into()))
    })
}

/// Returns the home directory of a user.
pub(crate) fn home_of(user: &[u8]) -> Option<OsString> {
    user_named(user).map(|user| user.dir.into_os_string())
}

/// Returns the number of a user.
pub(crate) fn user_number(name: &[u8]) -> Option<u32> {
    user_named(name).map(|user| user.uid.as_raw())
}

/// Returns the name of a user, for messages.
pub(crate) fn shown_user(number: u32) -> Option<String> {
    Some(String::from_utf8_lossy(&user_name(number)?).into_owned())
}

/// Returns the name of a user.
pub(crate) fn user_name(number: u32) -> Option<Vec<u8>> {
    whole(User::from_uid(number.into()).ok()??.name)
}

/// Returns the number of a group.
pub(crate) fn group_number(name: &[u8]) -> Option<u32> {
    Some(Group::from_name(str::from_utf8(name).ok()?).ok()??.gid.as_raw())
}

/// Returns the name of a group.
pub(crate) fn group_name(number: u32) -> Option<Vec<u8>> {
    whole(Group::from_gid(number.into()).ok()??.name)
}

fn user_named(name: &[u8]) -> Option<User> {
    User::from_name(str::from_utf8(name).ok()?).ok()?
}

/// Returns the bytes of a name. `None` if the name is not UTF-8, because its bytes have then been replaced.
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
