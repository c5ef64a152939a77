//! The meaning of a path from a command line on this host: `~`, `~user` and patterns. The agent expands them because no
//! shell does. Names are bytes.

#![allow(unsafe_code, reason = "the C library's patterns")]

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rd_proto::tree::is_name;

use crate::fs::accounts;

/// Maximum number of names that a pattern may match.
pub const MATCHES_MAX: usize = 1 << 20;

/// Replaces `~` or `~user` at the beginning of a path by that user's home directory. If there is no such user, the path
/// stays unchanged.
pub fn home_expanded(path: &[u8]) -> PathBuf {
    let as_it_is = || PathBuf::from(OsStr::from_bytes(path));
    let Some(rest) = path.strip_prefix(b"~") else { return as_it_is() };
    let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    let (user, below) = rest.split_at(end);
    let home = if user.is_empty() { accounts::own_home() } else { accounts::home_of(user) };
    match home {
        Some(home) => PathBuf::from(OsString::from_vec([home.as_bytes(), below].concat())),
        None => as_it_is(),
    }
}

/// Returns the paths that match `pattern`, sorted. A path that exists is returned as it is, whatever characters its
/// name has. So is a pattern that matches nothing, so that the missing file is reported under its own name. A backslash
/// takes away the special meaning of the next character; users of scp write it before a blank.
pub fn expanded(pattern: &[u8]) -> Vec<PathBuf> {
    let path = home_expanded(pattern);
    let bytes = path.as_os_str().as_bytes();
    if std::fs::symlink_metadata(&path).is_ok() || !is_pattern(bytes) && !bytes.contains(&b'\\') {
        return vec![path];
    }
    let start = if bytes.starts_with(b"/") { PathBuf::from("/") } else { PathBuf::new() };
    let mut found = vec![start];
    for component in bytes.split(|&byte| byte == b'/').filter(|component| !component.is_empty()) {
        found = found.iter().flat_map(|directory| matches(directory, component)).take(MATCHES_MAX).collect();
    }
    if bytes.ends_with(b"/") {
        found.retain(|path| path.is_dir());
    }
    if found.is_empty() { vec![path] } else { found }
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"*?[".contains(byte))
}

/// Returns the names in a directory that match one component of a pattern, sorted.
fn matches(directory: &Path, component: &[u8]) -> Vec<PathBuf> {
    if !is_pattern(component) {
        let path = directory.join(OsStr::from_bytes(&unescaped(component)));
        return if std::fs::symlink_metadata(&path).is_ok() { vec![path] } else { Vec::new() };
    }
    let Ok(pattern) = CString::new(component) else { return Vec::new() };
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let Ok(entries) = std::fs::read_dir(listed) else { return Vec::new() };
    let mut names: Vec<OsString> = entries
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| CString::new(name.as_bytes()).is_ok_and(|name| fits(&pattern, &name)))
        .take(MATCHES_MAX)
        .collect();
    names.sort();
    names.into_iter().map(|name| directory.join(name)).collect()
}

/// Returns the last component of a path, without trailing slashes. Empty for `/`, `.` and `..`, which stand for their
/// contents.
pub fn last_name(path: &[u8]) -> &[u8] {
    let trimmed = path.iter().rposition(|&byte| byte != b'/').map_or(&[][..], |end| &path[..=end]);
    let last = trimmed.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if last == b"." || last == b".." { &[] } else { last }
}

/// Reports whether an entry that matches `pattern` can have this name, which another host has sent. An empty name
/// stands for the contents of a directory.
pub fn may_be_named(pattern: &[u8], name: &[u8]) -> bool {
    if !name.is_empty() && !is_name(name) {
        return false;
    }
    // The pattern is a user's home, whose directory can have any name.
    if pattern.starts_with(b"~") && !pattern.iter().rev().skip_while(|&&byte| byte == b'/').any(|&byte| byte == b'/') {
        return true;
    }
    let last = last_name(pattern);
    if name == last {
        return true;
    }
    if name.is_empty() {
        return false;
    }
    let c_string = |bytes: &[u8]| CString::new(bytes);
    let matches =
        || is_pattern(last) && matches!((c_string(last), c_string(name)), (Ok(last), Ok(name)) if fits(&last, &name));
    matches() || name == unescaped(last)
}

fn fits(pattern: &CString, name: &CString) -> bool {
    // SAFETY: both are C strings.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_PERIOD) == 0 }
}

/// Removes the backslashes that take away the special meaning of characters in a component.
fn unescaped(component: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(component.len());
    let mut rest = component.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(if byte == b'\\' { *rest.next().unwrap_or(&byte) } else { byte });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, files: &[&[u8]]) -> Self {
            let path = std::env::temp_dir().join(format!("rd-names-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(path.join("sub")).expect("a directory");
            for file in files {
                std::fs::write(path.join(OsStr::from_bytes(file)), b"").expect("a file");
            }
            Self(path)
        }

        fn expand(&self, pattern: &[u8]) -> Vec<Vec<u8>> {
            let base = self.0.as_os_str().as_bytes();
            let found = expanded(&[base, b"/", pattern].concat());
            found.iter().map(|path| path.as_os_str().as_bytes()[base.len() + 1..].to_vec()).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn patterns_are_bytes() {
        let scratch = Scratch::new("bytes", &[b"a.txt", b"b.txt", b"\xff.txt", b".hidden.txt", b"sub/c.txt"]);
        assert_eq!(scratch.expand(b"*.txt"), [&b"a.txt"[..], b"b.txt", b"\xff.txt"]);
        assert_eq!(scratch.expand(b"[ab].txt"), [b"a.txt", b"b.txt"]);
        assert_eq!(scratch.expand(b"*/?.txt"), [b"sub/c.txt"]);
        assert_eq!(scratch.expand(b".h*"), [b".hidden.txt"]);
        assert_eq!(scratch.expand(b"s*/"), [b"sub"]);
        assert_eq!(scratch.expand(b"*.none"), [b"*.none"]);
    }

    #[test]
    fn what_exists_stands_for_itself() {
        let scratch = Scratch::new("itself", &[b"*", b"[x]", b"a b$(c)\n", b"x"]);
        for name in [&b"*"[..], b"[x]", b"a b$(c)\n"] {
            assert_eq!(scratch.expand(name), [name]);
        }
    }

    #[test]
    fn a_backslash_is_taken_away_where_nothing_has_it_in_its_name() {
        let scratch = Scratch::new("escaped", &[b"b c", b"x\\y", b"*", b"other"]);
        assert_eq!(scratch.expand(b"b\\ c"), [b"b c"]);
        assert_eq!(scratch.expand(b"x\\y"), [b"x\\y"]);
        assert_eq!(scratch.expand(b"\\*"), [b"*"]);
        assert_eq!(scratch.expand(b"s\\ub/../b\\ c"), [b"sub/../b c"]);
        assert_eq!(scratch.expand(b"n\\one"), [b"n\\one"]);
    }

    #[test]
    fn only_names_that_were_asked_for() {
        for (pattern, name) in [
            (&b"dir/x"[..], &b"x"[..]),
            (b"x/", b"x"),
            (b"*.txt", b"a.txt"),
            (b"*.txt", b"*.txt"),
            (b"*/a\\b", b"ab"),
            (b"a\\ b", b"a b"),
            (b"[*]", b"*"),
            (b".*", b".x"),
            (b"~", b"root"),
            (b"~user/", b"home"),
            (b"~", b""),
            (b"~/x", b"x"),
            (b"", b""),
            (b"/", b""),
            (b"a/..", b""),
            (b"*/.", b""),
        ] {
            assert!(may_be_named(pattern, name), "{pattern:?} {name:?}");
        }
        for (pattern, name) in [
            (&b"x"[..], &b"y"[..]),
            (b"x", b""),
            (b"x", b"x/"),
            (b"x/y", b"x"),
            (b"x/.", b"x"),
            (b"*", b""),
            (b"*", b".."),
            (b"*", b"../x"),
            (b"*", b".x"),
            (b"*", b"a\0"),
            (b"*.txt", b"a.text"),
            (b"*/x", b"y"),
            (b"~", b"../x"),
            (b"~/x", b"y"),
            (b"~//x", b"y"),
        ] {
            assert!(!may_be_named(pattern, name), "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn homes() {
        let home = accounts::own_home().expect("somebody runs this");
        assert_eq!(home_expanded(b"~"), Path::new(&home));
        assert_eq!(home_expanded(b"~/x y"), Path::new(&home).join("x y"));
        assert_eq!(
            home_expanded(b"~root/x"),
            accounts::home_of(b"root").map(|root| Path::new(&root).join("x")).expect("root")
        );
        assert_eq!(home_expanded(b"~no-such-user/x"), Path::new("~no-such-user/x"));
        assert_eq!(home_expanded(b"./~"), Path::new("./~"));
    }
}
