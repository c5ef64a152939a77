//! Finds the names on a host that begin with a prefix, by asking a shell there. Nothing has to be installed on the
//! host, and nothing is left behind.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::cli::words::single_quoted;
use crate::control::launch::{Launched, Launcher};

/// Marks the beginning of the answer, because a login may print something before it.
const MARK: &[u8] = b"rdma-pipe names\0";

/// Maximum number of bytes of an answer, including anything printed before it.
const BYTES_MAX: usize = 1 << 20;

/// How long the launcher may take to end by itself after answering, so that a shared connection is closed in order.
const END_MAX: Duration = Duration::from_millis(30);

/// Returns the names in `directory`, written as a user would, that begin with `prefix`, and whether each is a
/// directory. `None` if the host does not answer completely in time.
pub(super) fn names(
    launcher: &Launcher,
    host: &OsStr,
    directory: &str,
    prefix: &str,
    until: Instant,
) -> Option<Vec<(String, bool)>> {
    // Any login shell can run `sh`. The paths are sent to that shell alone, and appear in no command line.
    let Launched { mut stdin, mut stdout, mut process } = launcher.start(host, OsStr::new("sh")).ok()?;
    let script = script(directory, prefix);
    let (give, taken) = flume::bounded(1);
    // Neither writing nor reading may keep the caller waiting.
    std::thread::spawn(move || {
        // If the host does not read the script, it does not answer either.
        let _ = stdin.write_all(script.as_bytes());
        drop(stdin);
        let mut bytes = Vec::new();
        let mut piece = [0; 8192];
        while answer(&bytes).is_none() && bytes.len() < BYTES_MAX {
            match stdout.read(&mut piece) {
                Ok(count @ 1..) => bytes.extend(&piece[..count]),
                _ => break,
            }
        }
        let _ = give.send(bytes);
    });
    let bytes = taken.recv_deadline(until).ok()?;
    process.wait(END_MAX.min(until.saturating_duration_since(Instant::now())));
    named(&bytes, prefix)
}

/// Returns the names in an answer. Records that cannot be names with this prefix are dropped, because the host is not
/// trusted.
fn named(bytes: &[u8], prefix: &str) -> Option<Vec<(String, bool)>> {
    let records = answer(bytes)?.split(|&byte| byte == 0);
    let names = records.filter_map(|record| {
        let name = std::str::from_utf8(record).ok()?;
        let (name, is_directory) = name.strip_suffix('/').map_or((name, false), |name| (name, true));
        let is_one = name.starts_with(prefix) && !["", ".", ".."].contains(&name) && !name.contains('/');
        is_one.then(|| (name.to_owned(), is_directory))
    });
    Some(names.collect())
}

/// Returns the records of a complete answer, which ends with an empty record.
fn answer(bytes: &[u8]) -> Option<&[u8]> {
    let at = bytes.windows(MARK.len()).position(|bytes| bytes == MARK)?;
    // The end of the mark is included, because there may be no record.
    let records = &bytes[at + MARK.len() - 1..];
    let end = records.windows(2).position(|two| two == [0, 0])?;
    Some(&records[..end])
}

/// Returns a script that prints the names. The script waits for nothing. To tell whether a name is a directory it
/// follows links, as `cd` does.
fn script(directory: &str, prefix: &str) -> String {
    let (user, below) = directory.split_once('/').unwrap_or((directory, ""));
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let place = match user.strip_prefix('~') {
        // The part that the shell expands must not be quoted.
        Some(name) if name.chars().all(is_letter) => format!("{user}/{}", single_quoted(below)),
        _ if directory.starts_with('/') => single_quoted(directory),
        _ => single_quoted(&format!("./{directory}")),
    };
    let go = if directory.is_empty() { String::new() } else { format!("cd {place} >/dev/null 2>&1 && ") };
    let mark = String::from_utf8_lossy(&MARK[..MARK.len() - 1]);
    format!(
        "printf '{mark}\\000'; {go}for name in {}*; do \
         if [ -d \"$name\" ]; then printf '%s/\\000' \"$name\"; \
         elif [ -e \"$name\" ] || [ -L \"$name\" ]; then printf '%s\\000' \"$name\"; fi; \
         done 2>/dev/null; printf '\\000'; exit 0\n",
        if prefix.is_empty() { String::new() } else { single_quoted(prefix) }
    )
}

/// Body of the fuzz target. It also runs as a test over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::super::Found;
    use super::*;
    use crate::cli::complete::Shell;

    /// Checks that an answer puts only names on the terminal, each on its own line.
    pub fn answered(bytes: &[u8]) {
        let Some(names) = named(bytes, "") else { return };
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let found = Found::words(names.iter().map(|(name, _)| (format!("h:{name}"), String::new())));
            let shown = found.shown(shell, "");
            let mut lines = shown.lines();
            assert_eq!(lines.next(), Some("none"));
            assert!(!shown.replace('\n', "").contains(char::is_control));
            for line in lines {
                let is_one =
                    |words: Vec<String>| matches!(&words[..], [word] if names.iter().any(|it| word[2..] == it.0));
                let is_name = names.iter().any(|(name, _)| line.strip_prefix("h:") == Some(name));
                // An independent reader of the same rules.
                assert!(
                    if shell == Shell::Bash { shell_words::split(line).is_ok_and(is_one) } else { is_name },
                    "{line}"
                );
            }
        }
    }

    /// Returns the seeds of the corpus that is checked in: target, name and bytes.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        vec![
            ("complete_answer", "none", b"rdma-pipe names\0\0".to_vec()),
            ("complete_answer", "names", b"Welcome\nrdma-pipe names\0file\0directory/\0two  spaces\0\0".to_vec()),
            (
                "complete_answer",
                "hostile",
                b"rdma-pipe names\0../up\0a\nb\0\x1b]0;x\x07\0$(x)`'\"\\!~*\0\xff\0..\0\0".to_vec(),
            ),
            ("complete_answer", "half", b"rdma-pipe names\0file\0".to_vec()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::transport::tests::runner::{self, Body};

    /// The targets of `fuzz/` that begin with `complete_`, and their bodies.
    const TARGETS: &[(&str, Body)] = &[("complete_answer", fuzz::answered)];

    #[test]
    fn the_fuzz_target_has_a_corpus_that_its_body_survives() {
        runner::corpus_holds(&fuzz::seeds(), |_| true);
        runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| name.starts_with("complete_"));
        runner::bodies_survive_the_corpus(TARGETS);
    }

    /// Returns a launcher that runs the given command on this host, in the test's home, after a login that prints
    /// something.
    fn launcher(scratch: &std::path::Path, login: &str) -> Launcher {
        let path = scratch.join("rsh");
        fs::write(&path, format!("#!/bin/sh\n{login}\ncd {}/home && exec sh -c \"$2\"\n", scratch.display()))
            .expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        Launcher::new(path.as_os_str(), Vec::new()).expect("words")
    }

    fn asked(launcher: &Launcher, directory: &str, prefix: &str) -> Option<Vec<String>> {
        let until = Instant::now() + Duration::from_secs(20);
        let names = names(launcher, OsStr::new("h"), directory, prefix, until)?;
        let mut shown: Vec<_> = names.into_iter().map(|(name, is)| if is { name + "/" } else { name }).collect();
        shown.sort();
        Some(shown)
    }

    #[test]
    fn names_of_any_kind_and_nothing_is_run() {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = scratch.path().join("home");
        fs::create_dir_all(home.join("a 'b\"/$(touch x)`touch y`")).expect("made");
        for name in ["a*", "a\nb", "-n", ".hidden", "a;touch x"] {
            fs::write(home.join(name), "").expect("written");
        }
        symlink("a 'b\"", home.join("to")).expect("a link");
        symlink("nothing", home.join("dangling")).expect("a link");
        let launcher = launcher(scratch.path(), "echo Welcome");
        let is = |directory: &str, prefix: &str, expected: &[&str]| {
            assert_eq!(asked(&launcher, directory, prefix).expect("an answer"), expected, "{directory:?} {prefix:?}");
        };
        is("", "", &["-n", "a\nb", "a 'b\"/", "a*", "a;touch x", "dangling", "to/"]);
        is("", "a*", &["a*"]);
        is("", "-", &["-n"]);
        is("", ".h", &[".hidden"]);
        is("", ".", &[".hidden"]);
        is("", "a;touch x", &["a;touch x"]);
        is("", "$(touch x)", &[]);
        is("to/", "", &["$(touch x)`touch y`/"]);
        is("a 'b\"/", "$", &["$(touch x)`touch y`/"]);
        is(&format!("{}/", home.display()), "t", &["to/"]);
        is("missing/", "", &[]);
        is("~$(touch x)/", "", &[]);
        is("~no-such-user/", "", &[]);
        assert!(!home.join("x").exists() && !home.join("y").exists());
    }

    #[test]
    fn half_an_answer_is_none() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        assert_eq!(asked(&launcher(scratch.path(), "exit 1"), "", ""), None);
        let half = launcher(scratch.path(), "printf 'rdma-pipe names\\000name\\000'; exit 0");
        assert_eq!(asked(&half, "", ""), None);
        let silent = launcher(scratch.path(), "exec sleep 30");
        let begun = Instant::now();
        let until = begun + Duration::from_millis(100);
        assert_eq!(names(&silent, OsStr::new("h"), "", "", until), None);
        assert!(begun.elapsed() < Duration::from_secs(10));
        for (bytes, expected) in [
            (&b"hello rdma-pipe names\0\0"[..], Some(&b""[..])),
            (b"rdma-pipe names\0a\0b/\0\0", Some(b"\0a\0b/")),
            (b"rdma-pipe names\0", None),
            (b"a\0\0", None),
        ] {
            assert_eq!(answer(bytes), expected);
        }
    }
}
