//! Reads a file of settings, after checking that it can be trusted.

use std::cmp::Reverse;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use toml::de::{DeTable, DeValue};

use crate::fault::{errno_of, escaped, os};

/// Maximum number of bytes in a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Name of the table whose tables are the sections for hosts.
pub(super) const HOST: &str = "host";

/// Mode bits that allow the group or all others to write.
const OTHERS_WRITE: u32 = 0o022;

/// Mode bit of a directory in which users cannot remove or rename each other's entries.
const STICKY: u32 = 0o1000;

/// A line `key = value` in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The hosts of the entry's section; `None` if it is in no section and applies to all hosts.
    pub hosts: Option<String>,
    /// The text before the equals sign.
    pub key: String,
    /// The text after the equals sign.
    pub value: Value,
    /// Number of the line in the file, from 1 on.
    pub line: usize,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Switch(bool),
    /// The text of a string or a number.
    Text(String),
    List(Vec<String>),
}

/// Beginnings of the parser's messages for a text without quotes. If it begins with t, f, i or n, the parser expects
/// true, false, inf or nan.
const UNQUOTED: [&str; 3] = ["string values must be quoted", "invalid boolean", "invalid float"];

/// Beginning of the parser's message for a key, or the name of a section, that needs quotes.
const UNQUOTED_KEY: &str = "invalid unquoted key";

/// An error in a file: the line, and the reason.
type Wrong = (usize, String);

/// Returns the entries of a file, the strongest first: those in sections before the others, and later ones before
/// earlier ones. `None` if there is no such file. `is_of_home`: the file is in a home.
///
/// # Errors
///
/// One line that names the file.
pub(super) fn read(path: &Path, is_of_home: bool) -> Result<Option<Vec<Entry>>, String> {
    let name = escaped(path.as_os_str());
    let opened = open(path, is_of_home).map_err(|error| format!("cannot read {name}: {}", os(error)))?;
    let Some(file) = opened else { return Ok(None) };
    check_owner(path, &file)?;
    let mut bytes = Vec::new();
    let taken = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    taken.map_err(|error| format!("cannot read {name}: {}", os(errno_of(&error))))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} is larger than {} MiB", FILE_BYTES_MAX >> 20));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{name} is not valid UTF-8, which TOML requires"))?;
    parse(&text).map(Some).map_err(|(line, reason)| format!("{name}:{line}: {reason}"))
}

/// Opens a file. `None` if there is no file, or if it is in a home where this user may not look it up, because the home
/// of another user concerns that user alone.
fn open(path: &Path, is_of_home: bool) -> Result<Option<File>, Errno> {
    // Opening a FIFO must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::ACCESS) if is_of_home && matches!(rustix::fs::stat(path), Err(Errno::ACCESS)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses a file that another user could have written, because settings name programs to be run.
fn check_owner(path: &Path, file: &File) -> Result<(), String> {
    let name = escaped(path.as_os_str());
    let failed = |error: std::io::Error| format!("cannot examine {name}: {}", os(errno_of(&error)));
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{name} is not a regular file"));
    }
    check(path, &name, (found.uid(), found.mode()), false)?;
    // Checks the directory of the path, and the directory to which a link leads.
    let real = path.canonicalize().map_err(failed)?;
    for directory in [path, &real].iter().filter_map(|path| path.parent()) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let found = directory.metadata().map_err(failed)?;
        check(directory, &name, (found.uid(), found.mode()), true)?;
    }
    Ok(())
}

/// Checks the owner and the mode of `path`, which is the file, or if `is_directory` the file's directory. The advice
/// never makes a file trusted that the user has not read: the other user may have written it.
fn check(path: &Path, file: &str, (owner, mode): (u32, u32), is_directory: bool) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    let place = if is_directory { " is in a directory that" } else { "" };
    let typed = escaped(path.as_os_str());
    let typed = shell_words::quote(&typed);
    if ![own, 0].contains(&owner) {
        return Err(format!(
            "{file}{place} belongs to user {owner}, who could change it; ignore it with RDMA_PIPE_CONFIG=none, or write \
             your settings to a file in a directory of your own and set RDMA_PIPE_CONFIG to its path"
        ));
    }
    if mode & OTHERS_WRITE != 0 && !(is_directory && mode & STICKY != 0) {
        let may = if is_directory { "others can write to" } else { "can be written by others" };
        return Err(format!(
            "{file}{place} {may}; read the file, which they may have changed, then type: chmod go-w {typed}"
        ));
    }
    Ok(())
}

/// Returns the entries of a text in the order of [`read`].
fn parse(text: &str) -> Result<Vec<Entry>, Wrong> {
    let line = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let reason = match error.message().lines().next().unwrap_or("invalid TOML") {
            said if UNQUOTED.iter().any(|begin| said.starts_with(begin)) => {
                "a value that is not a number, true or false must be in quotes"
            }
            said if said.starts_with(UNQUOTED_KEY) => {
                let typed = text.lines().nth(line(offset) - 1).unwrap_or_default();
                match typed.trim_start().starts_with("[host.") {
                    true => "a pattern of hosts must be in quotes, as in [host.\"gpu*\"]",
                    false => "keys consist of letters, digits, - and _",
                }
            }
            said => said,
        };
        (line(offset), reason.to_owned())
    })?;
    let mut entries = Vec::new();
    let mut add = |hosts: Option<&str>, table: &DeTable<'_>| -> Result<(), Wrong> {
        // The table of sections is not a key outside of sections.
        for (key, value) in table.iter().filter(|(key, _)| hosts.is_some() || key.get_ref() != HOST) {
            let at = key.span().start;
            let key = key.get_ref().to_string();
            let value = read_value(&key, value.get_ref()).map_err(|reason| (line(at), reason))?;
            entries.push((at, Entry { hosts: hosts.map(str::to_owned), key, value, line: line(at) }));
        }
        Ok(())
    };
    for (name, sections) in table.get_ref().iter().filter(|(name, _)| name.get_ref() == HOST) {
        let DeValue::Table(sections) = sections.get_ref() else {
            return Err((line(name.span().start), format!("{HOST} must be a section, such as [{HOST}.\"PATTERN\"]")));
        };
        for (hosts, section) in sections.iter() {
            let DeValue::Table(section) = section.get_ref() else {
                let reason = format!("settings for certain hosts belong in a section, such as [{HOST}.\"gpu*\"]");
                return Err((line(hosts.span().start), reason));
            };
            if let Some((_, host)) = hosts.get_ref().rsplit_once('@') {
                let reason = format!("a section for hosts has no USER@; write [{HOST}.\"{host}\"]");
                return Err((line(hosts.span().start), reason));
            }
            // An address has several colons.
            if let Some((host, rest)) = hosts.get_ref().split_once(':')
                && (rest.is_empty() || rest.starts_with('/'))
            {
                let reason = format!("a section for hosts has no colon; write [{HOST}.\"{host}\"]");
                return Err((line(hosts.span().start), reason));
            }
            // It would match no host. Commas in brackets are part of one list.
            let mut depth = 0_usize;
            let is_between = |letter: char| {
                match letter {
                    '[' => depth += 1,
                    ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                letter.is_whitespace() || letter == ',' && depth == 0
            };
            if hosts.get_ref().is_empty() || hosts.get_ref().contains(is_between) {
                let reason =
                    format!("a section has one pattern of hosts, such as [{HOST}.\"gpu[1-4]\"]; write one for each");
                return Err((line(hosts.span().start), reason));
            }
            add(Some(hosts.get_ref()), section)?;
        }
    }
    add(None, table.get_ref())?;
    entries.sort_by_key(|(at, entry)| (entry.hosts.is_none(), Reverse(*at)));
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn read_value(key: &str, value: &DeValue<'_>) -> Result<Value, String> {
    let text = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    };
    match value {
        DeValue::Boolean(is_on) => Ok(Value::Switch(*is_on)),
        DeValue::Table(_) => Err(format!("unknown section {key}; sections are for hosts: [{HOST}.\"PATTERN\"]")),
        DeValue::Array(values) => {
            let texts: Option<Vec<String>> = values.iter().map(|value| text(value.get_ref())).collect();
            texts.map(Value::List).ok_or_else(|| format!("{key}: a list may contain only strings and numbers"))
        }
        value => text(value).map(Value::Text).ok_or_else(|| format!("{key}: no setting takes a date")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sections_come_first_and_what_is_later_before_what_is_earlier() {
        let text = "lanes = 3\n[host.\"gpu*\"]\nlanes = 4\nquiet = true\n[host.a]\nexclude = ['x', 2]\n";
        let entries = parse(text).expect("a file");
        let shown: Vec<_> = entries.iter().map(|it| (it.hosts.as_deref(), &*it.key, it.line)).collect();
        let expected =
            [(Some("a"), "exclude", 6), (Some("gpu*"), "quiet", 4), (Some("gpu*"), "lanes", 3), (None, "lanes", 1)];
        assert_eq!(shown, expected);
        assert_eq!(entries[0].value, Value::List(vec!["x".to_owned(), "2".to_owned()]));
        assert_eq!(entries[1].value, Value::Switch(true));
        assert_eq!(entries[3].value, Value::Text("3".to_owned()));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, line, part) in [
            ("lanes = 3\nlanes = 4\n", 2, "duplicate"),
            ("lanes = \n", 1, ""),
            ("quiet = yes\n", 1, "true or false must be in quotes"),
            ("lanes = 3\nbwlimit = 200M\n", 2, "a value that is not a number,"),
            ("transport = tcp\n", 1, "true or false must be in quotes"),
            ("lanes = four\n", 1, "true or false must be in quotes"),
            ("via = ib0\n", 1, "true or false must be in quotes"),
            ("encrypt = never\n", 1, "true or false must be in quotes"),
            ("\n[host.gpu*]\nlanes = 1\n", 2, "a pattern of hosts must be in quotes, as in [host.\"gpu*\"]"),
            ("[host.a]\nla*es = 1\n", 2, "keys consist of letters, digits, - and _"),
            ("[host.\"h1:\"]\nlanes = 1\n", 1, "a section for hosts has no colon; write [host.\"h1\"]"),
            ("\n[hosts.a]\nlanes = 1\n", 2, "[host.\"PATTERN\"]"),
            ("host = 1\n", 1, "must be a section"),
            ("[host.\"u@h\"]\nlanes = 1\n", 1, "write [host.\"h\"]"),
            ("\n[host.\"nas,backup\"]\nlanes = 1\n", 2, "a section has one pattern of hosts"),
            ("[host.\"nas backup\"]\nlanes = 1\n", 1, "a section has one pattern of hosts"),
            ("[host.\"n[1,2],m\"]\nlanes = 1\n", 1, "a section has one pattern of hosts"),
            ("[host.\"\"]\nlanes = 1\n", 1, "a section has one pattern of hosts"),
            ("[host]\n\nlanes = 1\n", 3, "section"),
            ("x = 1979-05-27\n", 1, "date"),
            ("x = [[1]]\n", 1, "list"),
            ("[host.a.b]\nx = 1\n", 1, "section"),
        ] {
            let (at, reason) = parse(text).expect_err(text);
            assert!(at == line && reason.contains(part) && !reason.contains('\n'), "{text:?}: {at}: {reason}");
            assert_eq!(reason.contains("a pattern of hosts"), text.contains("[host.gpu*]"), "{text:?}: {reason}");
        }
        assert!(parse("[host.'n[1,3-4]m[1,2]']\nlanes = 1\n").is_ok(), "one pattern");
    }

    #[test]
    fn what_others_may_write_is_refused_with_what_to_type() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("it's");
        fs::create_dir(&directory).expect("made");
        let path = directory.join("config.toml");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        assert_eq!(read(&path, false), Ok(None));
        fs::write(&path, "lanes = 3\n").expect("written");
        for (file, above, typed) in [
            (0o644, 0o755, None),
            (0o664, 0o755, Some("config.toml")),
            (0o646, 0o755, Some("config.toml")),
            (0o600, 0o775, Some("it")),
            (0o600, 0o757, Some("it")),
            (0o600, 0o1777, None),
        ] {
            mode(&path, file);
            mode(&directory, above);
            let Some(typed) = typed else {
                assert!(read(&path, false).is_ok_and(|entries| entries.is_some()), "{file:o} {above:o}");
                continue;
            };
            let line = read(&path, false).expect_err("refused");
            let (before, command) = line.split_once(", then type: chmod go-w ").expect("what to type");
            assert!(before.contains("; read the file"), "{line}");
            let words = shell_words::split(command).expect("words");
            assert!(matches!(&words[..], [one] if Path::new(one).ends_with(typed) || one.ends_with("it's")), "{line}");
            assert!(line.starts_with(&*path.to_string_lossy()), "{line}");
        }
        mode(&directory, 0o755);
        // A link does not get around the check.
        let open = scratch.path().join("open");
        fs::create_dir(&open).expect("made");
        mode(&open, 0o777);
        fs::rename(&path, open.join("real")).expect("moved");
        std::os::unix::fs::symlink(open.join("real"), &path).expect("a link");
        assert!(read(&path, false).is_err_and(|line| line.contains("others can write to")));
        fs::remove_file(&path).expect("removed");
        assert!(read(&directory, false).is_err_and(|line| line.contains("regular")));
    }

    /// What the system's administrator has set must not be lost in silence.
    #[test]
    fn only_a_home_may_be_out_of_reach() {
        // Root may look up everything.
        if rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let mode = |mode| fs::set_permissions(scratch.path(), fs::Permissions::from_mode(mode)).expect("a mode");
        let path = scratch.path().join("config.toml");
        fs::write(&path, "lanes = 3\n").expect("written");
        mode(0);
        let read = [true, false].map(|is_of_home| read(&path, is_of_home));
        mode(0o700);
        let [of_home, of_system] = read;
        assert_eq!(of_home, Ok(None));
        assert!(of_system.is_err_and(|line| line.starts_with("cannot read ") && line.contains("ermission denied")));
    }

    #[test]
    fn nobody_is_told_to_take_over_what_another_user_has_written() {
        let other = rustix::process::geteuid().as_raw() + 1;
        for (path, is_directory, part) in [
            (
                "/x/config.toml",
                false,
                "or write your settings to a file in a directory of your own and set RDMA_PIPE_CONFIG to its path",
            ),
            ("/x", true, "or write your settings to a file in a directory of your own"),
        ] {
            let line = check(Path::new(path), "/x/config.toml", (other, 0o644), is_directory).expect_err(path);
            assert!(line.contains(&format!("belongs to user {other}")) && line.contains(part), "{line}");
            assert!(line.contains("RDMA_PIPE_CONFIG=none"), "{line}");
            assert!(!line.contains("chown") && !line.contains("chmod"), "{line}");
        }
    }
}
