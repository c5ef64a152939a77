//! Lists of paths to copy: `--files-from`, and the arguments of `-R`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use minicbor::bytes::ByteVec;

use crate::fault::escaped;
use crate::job::plan::Spec;
use crate::options::read_bounded;
use crate::tree::{Only, is_itself};

/// Maximum number of bytes in a list, and what to do with a longer one.
const LIST_BYTES_MAX: u64 = 64 << 20;
const TOO_LONG: &str = "; with -r, list directories instead of what is in them, or split the list";

/// Returns the paths in a file, in the format of rsync: one per line, or each followed by a zero byte.
///
/// # Errors
///
/// Fails if the file cannot be read, or names an entry outside SRC.
pub fn read(file: &OsStr, ends_in_zeros: bool, recursive: bool) -> Result<Only, String> {
    let named = |reason: String| format!("--files-from {}: {reason}", escaped(file));
    let text = read_bounded(file, LIST_BYTES_MAX, TOO_LONG).map_err(named)?;
    let is_end = |&byte: &u8| if ends_in_zeros { byte == 0 } else { byte == b'\n' || byte == b'\r' };
    let lines = text.split(is_end).filter(|line| !line.is_empty() && !b"#;".contains(&line[0]));
    let checked = |line| checked(line).and_then(unmarked).map_err(named);
    let paths: Vec<ByteVec> = lines.map(checked).collect::<Result<_, _>>()?;
    Ok(Only { paths, recursive, ..Only::default() })
}

/// Takes a line as rsync does, which begins the path at the destination after `/./`. Refused if that leaves names out.
fn unmarked(path: ByteVec) -> Result<ByteVec, String> {
    let Some(mark) = path.windows(3).position(|three| three == b"/./") else { return Ok(path) };
    match (is_itself(&path[..mark]), &path[mark + 3..]) {
        (true, b"") => Ok(path),
        (true, behind) => Ok(behind.to_vec().into()),
        (false, _) => Err(format!(
            "{} contains /./; give what is before it as SRC, and list what is behind it",
            escaped(OsStr::from_bytes(&path))
        )),
    }
}

fn checked(path: &[u8]) -> Result<ByteVec, String> {
    if path.split(|&byte| byte == b'/').any(|name| name == b"..") {
        return Err(format!("{} contains .., which could lead out of SRC", escaped(OsStr::from_bytes(path))));
    }
    Ok(path.to_vec().into())
}

/// Returns the directory with which all sources begin, and their paths relative to it. The directory ends at `/./`;
/// the whole of a source without this mark is its path.
///
/// # Errors
///
/// Fails if the sources do not begin with the same directory, have `..` in their paths below it, or would have to be
/// expanded on another host.
pub fn relative(sources: &[Spec], recursive: bool) -> Result<(Spec, Only), String> {
    let mut base: Option<Spec> = None;
    let mut paths = Vec::new();
    for source in sources {
        let path = source.path().as_bytes();
        let mark = path.windows(3).position(|three| three == b"/./");
        if matches!(source, Spec::There(..)) {
            check_there(source, mark)?;
        }
        let (above, below) = match mark {
            Some(at) => (&path[..=at], &path[at + 3..]),
            None if path.starts_with(b"/") => (&b"/"[..], path),
            None => (&b"./"[..], path),
        };
        let above = OsString::from_vec(above.to_vec());
        let above = match source {
            Spec::There(host, _) => Spec::There(host.clone(), above),
            _ => Spec::Here(above),
        };
        if base.get_or_insert_with(|| above.clone()) != &above {
            return Err("-R: all SRC must have the same directory before /./".to_owned());
        }
        paths.push(checked(below).map_err(|reason| format!("-R: {reason}"))?);
    }
    base.map(|base| (base, Only { paths, recursive, ..Only::default() }))
        .ok_or_else(|| "-R: SRC is required".to_owned())
}

/// Refuses a path on another host that would have to be expanded there, which a list is not. `mark`: place of `/./`,
/// before which `~` is expanded, but patterns might lead to several directories.
fn check_there(source: &Spec, mark: Option<usize>) -> Result<(), String> {
    let (typed, path) = (source.typed(), source.path().as_bytes());
    if path.starts_with(b"~") && mark.is_none() {
        let (home, below) = path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(path.len()));
        let marked = [home, b"/.", if below.is_empty() { b"/" } else { below }].concat();
        let marked = Spec::There(source.host().to_owned(), OsString::from_vec(marked)).typed();
        return Err(format!("-R: {typed}: the path of ~ is known only there; write {marked} to copy what is below it"));
    }
    let above = &path[..mark.unwrap_or(0)];
    let is_pattern = |(at, byte): (usize, &u8)| b"*?[".contains(byte) && (at == 0 || above[at - 1] != b'\\');
    if above.iter().enumerate().any(is_pattern) {
        return Err(format!("-R: {typed}: a pattern before /./ may mean several directories; name one"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_one_directory_are_paths_in_it() {
        let here = |path: &str| Spec::Here(path.into());
        let there = |path: &str| Spec::There("h".into(), path.into());
        for (sources, expected) in [
            (vec![here("a/b"), here("c/")], Some((here("./"), vec!["a/b", "c/"]))),
            (vec![here("/a/b")], Some((here("/"), vec!["/a/b"]))),
            (vec![there("/x/./a/b"), there("/x/./c")], Some((there("/x/"), vec!["a/b", "c"]))),
            (vec![here("/a"), here("b")], None),
            (vec![here("a"), there("a")], None),
            (vec![here("x/./../a")], None),
        ] {
            let found = relative(&sources, true).ok();
            let expected = expected.map(|(base, paths)| {
                (base, paths.into_iter().map(|path| ByteVec::from(path.as_bytes().to_vec())).collect::<Vec<_>>())
            });
            assert_eq!(found.map(|(base, only)| (base, only.paths)), expected, "{sources:?}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_with_advice() {
        let list = tempfile::NamedTempFile::new().expect("a file");
        list.as_file().set_len(LIST_BYTES_MAX + 1).expect("a length");
        let refused = read(list.path().as_os_str(), false, true).expect_err("too long");
        assert!(refused.contains(": larger than 64 MiB; with -r, list directories"), "{refused}");
    }

    #[test]
    fn a_line_has_no_other_beginning() {
        let taken = |line: &str| unmarked(line.as_bytes().to_vec().into()).ok();
        for line in ["a/b", "./a", "./", "././", "a/.", "a./b/.c"] {
            assert_eq!(taken(line), Some(line.as_bytes().to_vec().into()), "{line}");
        }
        for (line, rest) in [("././a", "a"), (".//./a/", "a/"), ("/./a/./b", "a/./b")] {
            assert_eq!(taken(line), Some(rest.as_bytes().to_vec().into()), "{line}");
        }
        assert!(["a/./b", "./a/./b", "a/./"].into_iter().all(|line| taken(line).is_none()));
    }

    #[test]
    fn what_another_host_would_have_to_expand_is_refused() {
        let there = |path: &str| relative(&[Spec::There("h".into(), path.into())], true);
        for (path, advice) in [
            ("a*/./b", "name one"),
            ("/x[1]/./b", "name one"),
            ("~/a/b", "write h:~/./a/b to"),
            ("~user/a", "write h:~user/./a to"),
            ("~", "write h:~/./ to"),
        ] {
            let refused = there(path).expect_err(path);
            assert!(refused.contains(advice), "{refused}");
        }
        for (path, base, below) in [
            (r"\[x]/./?", r"\[x]/", "?"),
            ("~/./a/b", "~/", "a/b"),
            (r"a\b", "./", r"a\b"),
            ("run[1]", "./", "run[1]"),
            ("/a/~", "/", "/a/~"),
        ] {
            let (found, only) = there(path).expect(path);
            assert_eq!((found, &only.paths[0][..]), (Spec::There("h".into(), base.into()), below.as_bytes()), "{path}");
        }
        let here = relative(&[Spec::Here("~/*".into())], true).expect("the shell has expanded it");
        assert_eq!(here.1.paths[0][..], b"~/*"[..]);
    }
}
