//! The meaning of a path from a command line on this host: `~`, `~user` and patterns. The agent expands them because no
//! shell does. Names are bytes.

#![allow(unsafe_code, reason = "the C library's patterns")]

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rd_proto::control::IoFact;
use rd_proto::tree::is_name;
use rustix::io::Errno;

use crate::fault::errno_of;
use crate::fs::{accounts, plain_fact, std_fact};

/// Maximum number of names that a pattern may match, together with the failures to look for them.
pub const MATCHES_MAX: usize = 1 << 20;

/// Maximum number of failures that are reported for one pattern.
const FAILURES_MAX: usize = 1 << 10;

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
/// takes away the special meaning of the next character; users of scp write it before a blank. As in a shell, a pattern
/// that ends in a slash matches only directories, and the paths returned end in a slash too.
///
/// Names that cannot be looked for are left out; [`search`] tells which.
pub fn expanded(pattern: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(pattern, |path| found.push(path));
    if found.is_empty() { vec![home_expanded(pattern)] } else { found }
}

/// Passes the paths that [`expanded`] returns to `take`, each as soon as it is found. Returns why other paths that
/// match may be missing: a directory that cannot be read, or too many names. If nothing was found for such a reason, no
/// path is passed.
pub fn search(pattern: &[u8], take: impl FnMut(PathBuf)) -> Vec<IoFact> {
    search_up_to(pattern, MATCHES_MAX - FAILURES_MAX, take)
}

fn search_up_to(pattern: &[u8], names_max: usize, mut take: impl FnMut(PathBuf)) -> Vec<IoFact> {
    let path = home_expanded(pattern);
    let bytes = path.as_os_str().as_bytes();
    if std::fs::symlink_metadata(&path).is_ok() || !is_pattern(bytes) && !bytes.contains(&b'\\') {
        take(path);
        return Vec::new();
    }
    let start = if bytes.starts_with(b"/") { PathBuf::from("/") } else { PathBuf::new() };
    let components: Vec<&[u8]> = bytes.split(|&byte| byte == b'/').filter(|component| !component.is_empty()).collect();
    let has_slash = bytes.ends_with(b"/");
    let mut search = Search { names_max, failures: Vec::new() };
    // For each number of matched components, the names that are still to be handled. What is below a name is handled
    // before the next name, so that the first matches do not wait until all directories have been read.
    let mut levels = vec![vec![start].into_iter()];
    let mut counts = vec![0; components.len() + 1];
    let (mut is_any, mut is_cut) = (false, false);
    while let Some(level) = levels.last_mut() {
        let Some(found) = level.next() else {
            levels.pop();
            continue;
        };
        let depth = levels.len() - 1;
        counts[depth] += 1;
        if counts[depth] > names_max {
            is_cut = true;
            break;
        }
        if let Some(component) = components.get(depth) {
            levels.push(search.matches(&found, component, depth + 1 == components.len()).into_iter());
        } else if !has_slash || search.is_directory(&found) {
            is_any = true;
            take(if has_slash { found.join("") } else { found });
        }
    }
    let mut failures = search.failures;
    if is_cut {
        failures.truncate(FAILURES_MAX - 1);
        let detail = format!("more than {names_max} names to look at; use a pattern that matches fewer");
        failures.push(plain_fact(path.as_os_str(), &detail));
    }
    if !is_any && failures.is_empty() {
        take(path);
    }
    failures
}

/// Reports whether a path may be a pattern.
pub fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"*?[".contains(byte))
}

/// A search for what a pattern matches.
struct Search {
    names_max: usize,
    /// Why names may be missing.
    failures: Vec<IoFact>,
}

impl Search {
    /// Returns the names in a directory that match one component of a pattern, sorted; of more than `names_max` names,
    /// one more than that. `is_last` tells whether this is the last component.
    fn matches(&mut self, directory: &Path, component: &[u8], is_last: bool) -> Vec<PathBuf> {
        if !is_pattern(component) {
            let path = directory.join(OsStr::from_bytes(&unescaped(component)));
            return match std::fs::symlink_metadata(&path) {
                Ok(_) => vec![path],
                Err(error) => {
                    self.note(&path, &error, false);
                    Vec::new()
                }
            };
        }
        let Ok(pattern) = CString::new(component) else { return Vec::new() };
        let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let mut names = match std::fs::read_dir(listed) {
            Ok(entries) => self.fitting(listed, &pattern, entries.map(|entry| entry.map(|entry| entry.file_name()))),
            Err(error) => {
                self.note(listed, &error, is_last);
                return Vec::new();
            }
        };
        names.sort();
        names.into_iter().map(|name| directory.join(name)).collect()
    }

    /// Reports whether a path leads to a directory.
    fn is_directory(&mut self, path: &Path) -> bool {
        match std::fs::metadata(path) {
            Ok(metadata) => metadata.is_dir(),
            Err(error) => {
                // It may be a link to a directory, and with merged sources what came from it would be deleted.
                self.note(path, &error, true);
                false
            }
        }
    }

    /// Returns those of a directory's names that fit a pattern; of more than `names_max`, one more than that.
    fn fitting(
        &mut self,
        directory: &Path,
        pattern: &CString,
        entries: impl Iterator<Item = std::io::Result<OsString>>,
    ) -> Vec<OsString> {
        let mut names = Vec::new();
        for entry in entries {
            match entry {
                Ok(name) => {
                    if CString::new(name.as_bytes()).is_ok_and(|name| fits(pattern, &name)) {
                        names.push(name);
                    }
                }
                Err(error) => self.note(directory, &error, true),
            }
            if names.len() > self.names_max {
                break;
            }
        }
        names
    }

    /// Notes a failure because of which names may be missing. As in a shell, what is not there is no failure, and
    /// neither is a directory on the way into which the user may not look.
    fn note(&mut self, path: &Path, error: &std::io::Error, is_denial_told: bool) {
        let is_told = match errno_of(error) {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => false,
            // The file system cannot have such a name, or the process below /proc has ended.
            Errno::INVAL | Errno::ILSEQ | Errno::SRCH => false,
            Errno::ACCESS => is_denial_told,
            _ => true,
        };
        if is_told && self.failures.len() < FAILURES_MAX {
            self.failures.push(std_fact(path.as_os_str(), error));
        }
    }
}

/// Returns the last component of a path, without trailing slashes. Empty for `/`, `.` and `..`, which stand for their
/// contents.
pub fn last_name(path: &[u8]) -> &[u8] {
    let last = without_slashes(path).rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if last == b"." || last == b".." { &[] } else { last }
}

/// Reports whether a path may match entries of several directories: a component before the last is a pattern.
pub fn is_below_pattern(path: &[u8]) -> bool {
    let trimmed = without_slashes(path);
    trimmed.iter().rposition(|&byte| byte == b'/').is_some_and(|slash| is_pattern(&trimmed[..slash]))
}

fn without_slashes(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&byte| byte != b'/').map_or(&[][..], |end| &path[..=end])
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

/// Runs this without the privileges that let root read every directory.
#[cfg(test)]
pub(crate) fn without_privileges<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let privileged = move || {
        // The third version of the header, for the calling thread; no capabilities in three sets of two words each.
        let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        // SAFETY: both have the length that this version reads, and only this thread loses its capabilities.
        let outcome = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        assert_eq!(outcome, 0, "capset: {}", std::io::Error::last_os_error());
        run()
    };
    std::thread::scope(|scope| scope.spawn(privileged).join().expect("no panic"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    fn searched_up_to(pattern: &Path, names_max: usize) -> (Vec<PathBuf>, Vec<IoFact>) {
        let mut found = Vec::new();
        let failures = search_up_to(pattern.as_os_str().as_bytes(), names_max, |path| found.push(path));
        (found, failures)
    }

    #[test]
    fn patterns_are_bytes() {
        let scratch = Scratch::new("bytes", &[b"a.txt", b"b.txt", b"\xff.txt", b".hidden.txt", b"sub/c.txt"]);
        assert_eq!(scratch.expand(b"*.txt"), [&b"a.txt"[..], b"b.txt", b"\xff.txt"]);
        assert_eq!(scratch.expand(b"[ab].txt"), [b"a.txt", b"b.txt"]);
        assert_eq!(scratch.expand(b"*/?.txt"), [b"sub/c.txt"]);
        assert_eq!(scratch.expand(b".h*"), [b".hidden.txt"]);
        assert_eq!(scratch.expand(b"s*/"), [b"sub/"]);
        assert_eq!(scratch.expand(b"s\\ub/"), [b"sub/"]);
        assert_eq!(scratch.expand(b"*.none"), [b"*.none"]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_told() {
        let scratch = Scratch::new("unread", &[b"sub/c.txt"]);
        std::fs::create_dir_all(scratch.0.join("open/in")).expect("a directory");
        std::fs::write(scratch.0.join("open/d.txt"), b"").expect("a file");
        let set_mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(scratch.0.join("sub"), permissions).expect("ours");
        };
        let search = |pattern: &str| without_privileges(|| searched_up_to(&scratch.0.join(pattern), 9));
        set_mode(0o311);
        let found = ["sub/*", "sub/*/", "*/*.txt", "sub/*/x", "*/*/x", "sub/no*/*", "no/*", "open/d.txt/*"].map(search);
        set_mode(0o755);
        let path = |name: &str| scratch.0.join(name);
        let denied = std_fact(path("sub").as_os_str(), &std::io::Error::from(Errno::ACCESS));
        assert_eq!(found[0], (Vec::new(), vec![denied.clone()]));
        assert_eq!(found[1], (Vec::new(), vec![denied.clone()]));
        assert_eq!(found[2], (vec![path("open/d.txt")], vec![denied]));
        // As in a shell, nothing below a directory on the way that cannot be read matches.
        for (at, name) in ["sub/*/x", "*/*/x", "sub/no*/*", "no/*", "open/d.txt/*"].into_iter().enumerate() {
            assert_eq!(found[3 + at], (vec![path(name)], Vec::new()), "{name}");
        }
    }

    #[test]
    fn a_directory_that_is_read_in_part_is_told() {
        let pattern = CString::new("*.txt").expect("no NUL");
        let failed = |error: Errno| Err(std::io::Error::from(error));
        let named = |name: &str| Ok::<_, std::io::Error>(OsString::from(name));
        for error in [Errno::IO, Errno::STALE, Errno::ACCESS] {
            let mut search = Search { names_max: 9, failures: Vec::new() };
            let entries = [named("a.txt"), failed(error), named("b.txt"), named("c")];
            assert_eq!(search.fitting(Path::new("d"), &pattern, entries.into_iter()), ["a.txt", "b.txt"]);
            assert_eq!(search.failures, [std_fact(OsStr::new("d"), &std::io::Error::from(error))]);
        }
        let mut search = Search { names_max: 9, failures: Vec::new() };
        for (error, is_last) in [(Errno::ACCESS, false), (Errno::NOENT, true), (Errno::NOTDIR, true)] {
            search.note(Path::new("d"), &std::io::Error::from(error), is_last);
            assert!(search.failures.is_empty(), "{error}");
        }
        for _ in 0..=FAILURES_MAX {
            search.note(Path::new("d"), &std::io::Error::from(Errno::MFILE), false);
        }
        assert_eq!(search.failures.len(), FAILURES_MAX);
    }

    #[test]
    fn a_pattern_before_the_last_component_means_several_directories() {
        for path in ["*/x", "a[bc]/x/", "/h?/x//", "*/*"] {
            assert!(is_below_pattern(path.as_bytes()), "{path}");
        }
        for path in ["x", "*", "*/", "a/x*", "a/x*/", "/", ""] {
            assert!(!is_below_pattern(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn names_that_are_too_many_are_told() {
        let scratch = Scratch::new("many", &[b"a", b"b", b"c", b"sub/x"]);
        std::fs::create_dir(scratch.0.join("tub")).expect("a directory");
        let search = |pattern: &str, names_max| {
            let (found, failures) = searched_up_to(&scratch.0.join(pattern), names_max);
            let details = failures.into_iter().map(|fact| String::from_utf8(fact.detail).expect("words"));
            (found.len(), details.collect::<Vec<_>>())
        };
        assert_eq!(search("?", 3), (3, Vec::new()));
        let told =
            |names_max| vec![format!("more than {names_max} names to look at; use a pattern that matches fewer")];
        assert_eq!(search("?", 2), (2, told(2)));
        assert_eq!(search("?ub/x", 2), (1, Vec::new()));
        // Directories on the way count as well.
        let (_, failures) = search("?ub/x", 1);
        assert_eq!(failures, told(1));
    }

    /// A search of many directories may take minutes.
    #[test]
    fn matches_are_passed_on_before_the_next_directory_is_read() {
        let scratch = Scratch::new("early", &[b"sub/x"]);
        let later = scratch.0.join("tub/x");
        std::fs::create_dir(scratch.0.join("tub")).expect("a directory");
        std::fs::write(&later, b"").expect("a file");
        let mut found = Vec::new();
        let failures = search(scratch.0.join("*/x").as_os_str().as_bytes(), |path| {
            let _ = std::fs::remove_file(&later);
            found.push(path);
        });
        assert_eq!((found, failures), (vec![scratch.0.join("sub/x")], Vec::new()));
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
