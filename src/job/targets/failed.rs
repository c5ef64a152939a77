//! `--hosts-failed FILE`: the hosts on which a copy did not succeed, for `--hosts` of the next copy.
//!
//! The file is made without a name before anything is copied, so that making it cannot fail in the end. It gets its
//! name if a host has failed. If no host has failed, the file of an earlier copy is removed, because it would be taken
//! for this copy's. A command that is killed leaves an existing file as it was. A file that is no list of hosts is
//! refused, because it would be lost.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{line_of, read_line, without_comment};
use crate::fault::{Exit, Failure, escaped, printable};
use crate::fs::prepared::Prepared;
use crate::job::plan::Spec;

/// Maximum size of a list, in bytes: more than the longest names of so many hosts and paths take.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// The file, before it is known whether it will be needed.
pub(crate) struct FailedHosts(Prepared);

impl FailedHosts {
    /// Prepares the file. `sources`: what is copied.
    ///
    /// # Errors
    ///
    /// Exit 1 if no file can be made at this path, or if the file there is a source, or anything but a list of hosts:
    /// it would be replaced or removed.
    pub(crate) fn open(path: &Path, sources: &[Spec]) -> Result<Self, Failure> {
        let opened = check(path, sources).and_then(|()| Prepared::open(path));
        opened.map(Self).map_err(|error| cannot_write(Exit::Usage, path, &error))
    }

    /// Writes which of the targets have failed, and why. If none has, there will be no file.
    ///
    /// # Errors
    ///
    /// Exit 6 if the file cannot be written.
    pub(crate) fn finish(self, targets: &[Spec], failed: &[(&Spec, &str)]) -> Result<(), Failure> {
        let written = match failed {
            [] => self.0.remove_older(),
            failed => self.0.publish(&text(targets, failed)),
        };
        written.map_err(|error| cannot_write(Exit::Destination, self.0.path(), &error))
    }
}

/// Refuses a file that is not to be replaced or removed.
fn check(path: &Path, sources: &[Spec]) -> io::Result<()> {
    let found = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.is_file() {
        return Ok(());
    }
    let is_it = |other: Metadata| (other.dev(), other.ino()) == (found.dev(), found.ino());
    let is_found = |spec: &Spec| matches!(spec, Spec::Here(source) if Path::new(source).metadata().is_ok_and(is_it));
    if sources.iter().any(is_found) {
        return Err(io::Error::other("is also SRC; name another file"));
    }
    let mut text = Vec::new();
    File::open(path)?.take(LIST_BYTES_MAX + 1).read_to_end(&mut text)?;
    let is_short = text.len() as u64 <= LIST_BYTES_MAX;
    if is_short && text.split(|&byte| byte == b'\n').map(without_comment).all(is_of_list) {
        return Ok(());
    }
    Err(io::Error::other("exists, but is not a list of hosts, and would be replaced; name another file, or remove it"))
}

/// Whether a line without its comment is empty or names hosts. As for `--hosts`, nearly any word is a host, but
/// settings, data and programs are not taken for lists.
fn is_of_list(line: &[u8]) -> bool {
    let is_strange = |byte: &u8| byte.is_ascii_control() || b" \"'`{}()<>=,;".contains(byte);
    let is_plain =
        |target: &Spec| !target.host().as_bytes().iter().any(is_strange) && !target.path().as_bytes().starts_with(b" ");
    line.is_empty() || read_line(line, OsStr::new("")).is_ok_and(|targets| targets.iter().all(is_plain))
}

fn cannot_write(exit: Exit, path: &Path, error: &io::Error) -> Failure {
    let reason = printable(&error.to_string());
    exit.with(format!("--hosts-failed {}: {reason}", escaped(path.as_os_str())))
}

/// Formats the failed targets: a comment with the cause, then the host, with its path if the targets differ in their
/// paths.
fn text(targets: &[Spec], failed: &[(&Spec, &str)]) -> Vec<u8> {
    let first = targets.first().map(Spec::path);
    let path = first.filter(|path| targets.iter().all(|target| target.path() == *path));
    let mut text = Vec::new();
    for (target, cause) in failed {
        let host = escaped(target.host());
        let cause = escaped(cause.as_ref());
        match line_of(target, path) {
            Some(line) => {
                text.extend(format!("# {cause}\n").into_bytes());
                text.extend(line);
            }
            None => text.extend(format!("# {host}, whose path cannot be written here: {cause}").into_bytes()),
        }
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    fn there(host: &str, path: &str) -> Spec {
        Spec::There(host.into(), path.into())
    }

    #[test]
    fn what_is_written_is_read_again_and_goes_when_nobody_failed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("failed");
        let names = || scratch.path().read_dir().expect("its entries").count();
        let targets = [there("u@a", "/x"), there("fd00::1", "/x"), there("b", "/x"), there("c", "/x")];
        FailedHosts::open(&path, &[]).expect("made").finish(&targets, &[]).expect("nothing to write");
        assert_eq!(names(), 0);
        let failed = [(&targets[0], "no route\nto it"), (&targets[1], "the disk is full")];
        FailedHosts::open(&path, &[]).expect("made").finish(&targets, &failed).expect("written");
        let text = std::fs::read(&path).expect("the file");
        assert_eq!(text.escape_ascii().to_string(), r"# no route\\nto it\nu@a\n# the disk is full\n[fd00::1]\n");
        assert_eq!(read(&text, "/x".as_ref()), Ok(targets[..2].to_vec()));
        // A file that is dropped without being finished changes nothing.
        drop(FailedHosts::open(&path, &[]).expect("made"));
        assert_eq!((std::fs::read(&path).expect("still there"), names()), (text, 1));
        FailedHosts::open(&path, &[]).expect("made").finish(&targets, &[]).expect("removed");
        assert_eq!(names(), 0);
    }

    #[test]
    fn paths_that_differ_are_written_down() {
        let targets =
            [there("a", "/x y"), there("fd00::1", "~/z"), there("c", "/a #b"), there("d", "7"), there("e", "")];
        let failed: Vec<_> = targets.iter().map(|target| (target, "lost")).collect();
        let text = text(&targets, &failed);
        let shown = text.escape_ascii().to_string();
        assert!(
            shown.contains("# c, whose path cannot be written here: lost") && shown.contains("# d, whose"),
            "{shown}"
        );
        assert_eq!(read(&text, "/other".as_ref()), Ok([&targets[..2], &targets[4..]].concat()));
    }

    #[test]
    fn what_is_no_list_of_hosts_is_left_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        let open = |text: &[u8], sources: &[Spec]| {
            std::fs::write(&path, text).expect("written");
            FailedHosts::open(&path, sources).map(drop).map_err(|failure| failure.exit)
        };
        for text in [&b""[..], b"# none\n", b"h1\nu@h2:/x y # lost\n", b"[fd00::1]:~\ngpu[1-8,12]", b"fd00::1\n"] {
            assert_eq!(open(text, &[]), Ok(()), "{}", text.escape_ascii());
        }
        for text in [&[0; 64][..], b"{\n  \"a\": 0.1\n}\n", b"a: 1.5\n", b"import os\n", b"a=b\n", &[b'x'; 2000]] {
            assert_eq!(open(text, &[]), Err(Exit::Usage), "{}", text.escape_ascii());
            assert_eq!(std::fs::read(&path).expect("as it was"), text);
        }
        let source = |path: &Path| [Spec::Here(path.into())];
        assert_eq!(open(b"h1\n", &source(&scratch.path().join("./file"))), Err(Exit::Usage));
        assert_eq!(open(b"h1\n", &source(scratch.path())), Ok(()));
    }

    /// As with a link of another user in a sticky directory, which the system does not follow.
    #[test]
    fn what_cannot_be_looked_at_is_left_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        std::fs::write(&path, "import os\n").expect("written");
        let open = || FailedHosts::open(&path, &[]).map(drop).map_err(|failure| failure.exit);
        let opened = where_calls_fail(&[libc::SYS_statx, libc::SYS_newfstatat], libc::EACCES, open);
        assert_eq!(opened, Err(Exit::Usage));
    }

    /// Others may rename a directory on the way.
    #[test]
    fn only_the_list_that_was_looked_at_is_removed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [given, moved] = ["given", "moved"].map(|name| scratch.path().join(name));
        std::fs::create_dir(&given).expect("a directory");
        std::fs::write(given.join("failed"), "h1\n").expect("written");
        let hosts = FailedHosts::open(&given.join("failed"), &[]).expect("made");
        std::fs::rename(&given, &moved).and_then(|()| std::fs::create_dir(&given)).expect("directories");
        std::fs::write(given.join("failed"), "another").expect("written");
        hosts.finish(&[], &[]).expect("removed");
        assert!(given.join("failed").exists() && !moved.join("failed").exists());
    }

    #[test]
    fn a_link_is_followed_and_what_is_no_file_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (path, link) = (scratch.path().join("failed"), scratch.path().join("link"));
        std::fs::write(&path, "old\n").expect("written");
        std::os::unix::fs::symlink("failed", &link).expect("a link");
        let targets = [there("a", "/x"), there("b", "/x")];
        FailedHosts::open(&link, &[]).expect("made").finish(&targets, &[(&targets[1], "lost")]).expect("written");
        assert!(link.is_symlink() && std::fs::read(&path).expect("the file") == b"# lost\nb\n");
        for none in ["/dev/null", "/", "/no/such/directory/file"] {
            let failure = FailedHosts::open(Path::new(none), &[]).err().expect("refused");
            assert_eq!(failure.exit, Exit::Usage, "{none}");
        }
    }
}
