//! Manifests: what a tree consists of, as text that people can read and programs cannot misread.
//!
//! The first line is [`FIRST_LINE`], the last `end` and the number of entries, so that a file that was cut is noticed.
//! Between them is one line for each entry, with six fields separated by tabs:
//!
//! ```text
//! f 0644 1234 1700000000.123456789 BLAKE3 PATH
//! d 0755 - 1700000000.000000000 - PATH
//! l 0777 - 1700000000.000000000 TARGET PATH
//! ```
//!
//! The fields are: type (`f`ile, `d`irectory, `l`ink, `p` for FIFO, `s`ocket, `c`haracter and `b`lock device), mode,
//! size of a file, time of last modification, contents (`MAJOR:MINOR` for a device), path. Seconds are rounded down,
//! also before 1970. Paths are relative to the tree's directory, which itself is `.`. In paths and targets a backslash
//! and a newline are written as b3sum does, `\\` and `\n`. Other control characters, and bytes that are not UTF-8, are
//! written as `\r`, `\t`, `\x1b`.
//!
//! Entries are in the order of a walk: siblings sorted as bytes, a directory before its contents. So no entry comes
//! twice, and a tree can be compared with its manifest without holding either in memory.
//!
//! A manifest may come from any source, so every line must be exactly as [`Entry::write`] writes it.

use std::cmp::Ordering;
use std::io::{BufRead, Read as _};

use minicbor::{Decode, Encode};
use rd_proto::tree::{DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, is_name};
use rustix::fs::Stat;

pub mod digest;
pub mod write;

/// The first line, with the format's version.
pub const FIRST_LINE: &[u8] = b"rdcp manifest 1";

/// Maximum length of a line: each byte of path and target may take four bytes.
const LINE_BYTES_MAX: usize = 4 * ((DEPTH_MAX + 1) * (NAME_BYTES_MAX + 1) + PATH_BYTES_MAX) + 256;

const NO_MODE: &str = "has an invalid mode";
const NO_TIME: &str = "has an invalid time";

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Kind {
    /// A regular file.
    #[n(0)]
    File {
        /// Size in bytes.
        #[n(0)]
        size: u64,
        /// BLAKE3 of its contents.
        #[cbor(n(1), with = "minicbor::bytes")]
        digest: [u8; 32],
    },
    /// A directory.
    #[n(1)]
    Directory,
    /// A symbolic link with its target.
    #[n(2)]
    Symlink(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// A FIFO.
    #[n(3)]
    Fifo,
    /// A socket.
    #[n(4)]
    Socket,
    /// A character device: major and minor number.
    #[n(5)]
    Character(#[n(0)] u32, #[n(1)] u32),
    /// A block device.
    #[n(6)]
    Block(#[n(0)] u32, #[n(1)] u32),
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// Path from the tree's directory on; empty for the directory itself.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Permission bits.
    #[n(1)]
    pub mode: u32,
    /// Time of last modification, in seconds and nanoseconds.
    #[n(2)]
    pub modified: (i64, u32),
    /// Kind of the entry.
    #[n(3)]
    pub kind: Kind,
}

/// Why a file is not a valid manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The first line is not that of a manifest.
    #[error("the first line is not 'rdcp manifest 1'")]
    NoManifest,
    /// The last line is missing.
    #[error("truncated after line {0}, the 'end' line is missing")]
    Cut(u64),
    /// A line is not valid.
    #[error("line {0} {1}")]
    Line(u64, &'static str),
}

/// Compares paths in the order of entries: name by name.
pub fn order(one: &[u8], other: &[u8]) -> Ordering {
    // No name has a zero byte, so the contents of a directory come before a later name that begins with the directory's
    // name.
    key(one).cmp(key(other))
}

/// Returns bytes by which paths sort as [`order`] compares them.
fn key(path: &[u8]) -> impl Iterator<Item = u8> {
    path.iter().map(|&byte| if byte == b'/' { 0 } else { byte })
}

impl Entry {
    /// Creates an entry from `stat`; `kind` adds the rest.
    pub fn new(path: Vec<u8>, stat: &Stat, kind: Kind) -> Self {
        let modified = (stat.st_mtime, stat.st_mtime_nsec as u32);
        Self { path, mode: stat.st_mode & 0o7777, modified, kind }
    }

    /// Appends the entry's line, including the newline.
    pub fn write(&self, line: &mut Vec<u8>) {
        let device = |(major, minor): (u32, u32)| format!("{major}:{minor}").into_bytes();
        let (letter, size, contents) = match &self.kind {
            Kind::File { size, digest } => {
                let hex = blake3::Hash::from_bytes(*digest).to_hex();
                ('f', size.to_string(), hex.as_bytes().to_vec())
            }
            Kind::Directory => ('d', "-".to_owned(), b"-".to_vec()),
            Kind::Symlink(target) => ('l', "-".to_owned(), escape(target)),
            Kind::Fifo => ('p', "-".to_owned(), b"-".to_vec()),
            Kind::Socket => ('s', "-".to_owned(), b"-".to_vec()),
            Kind::Character(major, minor) => ('c', "-".to_owned(), device((*major, *minor))),
            Kind::Block(major, minor) => ('b', "-".to_owned(), device((*major, *minor))),
        };
        let (seconds, nanoseconds) = self.modified;
        line.extend(format!("{letter}\t{:04o}\t{size}\t{seconds}.{nanoseconds:09}\t", self.mode).into_bytes());
        line.extend(contents);
        line.push(b'\t');
        if self.path.is_empty() {
            line.push(b'.');
        }
        line.extend(escape(&self.path));
        line.push(b'\n');
    }

    /// Checks an entry that may come from any source.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the entry is not valid.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut names = 0;
        let mut is_path = || self.path.split(|&byte| byte == b'/').inspect(|_| names += 1).all(is_name);
        if !self.path.is_empty() && !is_path() || names > DEPTH_MAX + 1 {
            return Err("has an invalid path, or one that leads out of the tree");
        }
        if let Kind::Symlink(target) = &self.kind
            && (target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0))
        {
            return Err("has an invalid link target");
        }
        match (self.mode, self.modified.1) {
            (..=0o7777, ..1_000_000_000) => Ok(()),
            (..=0o7777, _) => Err(NO_TIME),
            _ => Err(NO_MODE),
        }
    }

    /// Returns the bytes of the entry's names.
    pub fn names_bytes(&self) -> usize {
        let target = if let Kind::Symlink(target) = &self.kind { target.len() } else { 0 };
        self.path.len() + target
    }

    /// Parses a line without its newline.
    ///
    /// # Errors
    ///
    /// Fails with what is wrong with the line.
    pub fn parse(line: &[u8]) -> Result<Self, &'static str> {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b'\t').collect();
        let [letter, mode, size, modified, contents, path] = fields[..] else { return Err("does not have six fields") };
        let text = |field| std::str::from_utf8(field).map_err(|_| "has an invalid number");
        let number = |field| text(field)?.parse::<u64>().map_err(|_| "has an invalid number");
        let device = || -> Result<(u32, u32), &'static str> {
            let (major, minor) = text(contents)?.split_once(':').ok_or("has invalid device numbers")?;
            let parse = |part: &str| part.parse().map_err(|_| "has invalid device numbers");
            Ok((parse(major)?, parse(minor)?))
        };
        let kind = match letter {
            b"f" => {
                let digest = blake3::Hash::from_hex(contents).map_err(|_| "has an invalid digest")?;
                Kind::File { size: number(size)?, digest: *digest.as_bytes() }
            }
            b"d" => Kind::Directory,
            b"l" => Kind::Symlink(unescape(contents).ok_or("has a link target that is not properly escaped")?),
            b"p" => Kind::Fifo,
            b"s" => Kind::Socket,
            b"c" => device().map(|(major, minor)| Kind::Character(major, minor))?,
            b"b" => device().map(|(major, minor)| Kind::Block(major, minor))?,
            _ => return Err("has an unknown type"),
        };
        let mode = u32::from_str_radix(text(mode)?, 8).map_err(|_| NO_MODE)?;
        let (seconds, nanoseconds) = text(modified)?.split_once('.').ok_or(NO_TIME)?;
        let seconds = seconds.parse().map_err(|_| NO_TIME)?;
        let nanoseconds = nanoseconds.parse().map_err(|_| NO_TIME)?;
        let path =
            if path == b"." { Vec::new() } else { unescape(path).ok_or("has a path that is not properly escaped")? };
        let entry = Self { path, mode, modified: (seconds, nanoseconds), kind };
        entry.check()?;
        let mut again = Vec::with_capacity(line.len() + 1);
        entry.write(&mut again);
        // Each entry has exactly one form, so none can be there twice, and a line has nothing that was not read.
        if again.strip_suffix(b"\n") == Some(line) { Ok(entry) } else { Err("is not in canonical form") }
    }
}

/// Escapes a name for a line.
fn escape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let hex = |out: &mut Vec<u8>, bytes: &[u8]| {
        bytes.iter().for_each(|byte| out.extend(format!("\\x{byte:02x}").into_bytes()));
    };
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).as_bytes();
            match character {
                '\\' => out.extend(b"\\\\"),
                '\n' => out.extend(b"\\n"),
                '\r' => out.extend(b"\\r"),
                '\t' => out.extend(b"\\t"),
                control if control.is_control() => hex(&mut out, bytes),
                _ => out.extend(bytes),
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

/// Reads a name that was escaped; `None` if the text is not a valid escaped name.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let mut digit = || (bytes.next()? as char).to_digit(16);
                    (digit()? * 16 + digit()?) as u8
                }
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(out)
}

/// Reads a manifest entry by entry.
pub struct Reader<R> {
    stream: R,
    line: Vec<u8>,
    number: u64,
    entries: u64,
    last: Option<Vec<u8>>,
    is_over: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NoManifest`], or the error of reading.
    pub fn new(stream: R) -> Result<Self, ManifestError> {
        let mut reader = Self { stream, line: Vec::new(), number: 0, entries: 0, last: None, is_over: false };
        match reader.next_line() {
            Ok(true) if reader.line == FIRST_LINE => Ok(reader),
            Err(error @ ManifestError::Io(_)) => Err(error),
            _ => Err(ManifestError::NoManifest),
        }
    }

    /// Returns the next entry; `None` after the last, when the whole file has been found to be valid.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]. After that nothing more can be read.
    #[allow(clippy::should_implement_trait, reason = "an iterator may be asked again after an error")]
    pub fn next(&mut self) -> Result<Option<Entry>, ManifestError> {
        if self.is_over {
            return Ok(None);
        }
        if !self.next_line()? {
            return Err(ManifestError::Cut(self.number));
        }
        let number = self.number;
        let wrong = |what| ManifestError::Line(number, what);
        if self.line.starts_with(b"end ") {
            if self.line != format!("end {}", self.entries).as_bytes() {
                return Err(wrong("does not give the number of entries before it"));
            }
            if self.next_line()? {
                return Err(ManifestError::Line(self.number, "comes after the 'end' line"));
            }
            self.is_over = true;
            return Ok(None);
        }
        let entry = Entry::parse(&self.line).map_err(wrong)?;
        if self.last.as_ref().is_some_and(|last| order(last, &entry.path) != Ordering::Less) {
            return Err(wrong("is out of order"));
        }
        self.entries += 1;
        self.last = Some(entry.path.clone());
        Ok(Some(entry))
    }

    /// Reads the next line. Returns false at the end. A line that was cut is an error.
    fn next_line(&mut self) -> Result<bool, ManifestError> {
        self.line.clear();
        let read = (&mut self.stream).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(false);
        }
        if self.line.pop() != Some(b'\n') {
            let is_long = read > LINE_BYTES_MAX;
            let long = ManifestError::Line(self.number + 1, "is too long");
            return Err(if is_long { long } else { ManifestError::Cut(self.number) });
        }
        self.number += 1;
        Ok(true)
    }
}

/// The body of the fuzz target, and its seeds.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::{Entry, FIRST_LINE, Kind, Reader, order};

    /// Reads a manifest. The entries that can be read are in order, lead nowhere else, and are written as they were.
    pub fn manifest(bytes: &[u8]) {
        let Ok(mut reader) = Reader::new(bytes) else { return };
        let mut again = [FIRST_LINE, b"\n"].concat();
        let mut last: Option<Entry> = None;
        let mut count = 0;
        while let Ok(next) = reader.next() {
            let Some(entry) = next else {
                again.extend(format!("end {count}\n").into_bytes());
                assert!(again == bytes, "a manifest has one form");
                return;
            };
            entry.write(&mut again);
            assert!(last.is_none_or(|last| order(&last.path, &entry.path).is_lt()));
            assert!(!entry.path.starts_with(b"/") && !entry.path.split(|&byte| byte == b'/').any(|name| name == b".."));
            last = Some(entry);
            count += 1;
        }
    }

    /// One entry of each kind.
    pub fn sample() -> Vec<Entry> {
        let entry = |path: &[u8], mode, modified, kind| Entry { path: path.to_vec(), mode, modified, kind };
        vec![
            entry(b"", 0o755, (1_700_000_000, 1), Kind::Directory),
            entry(b"a", 0o1777, (-5, 999_999_999), Kind::Directory),
            entry(b"a/\xff\\ \n\x1b", 0o644, (0, 0), Kind::File { size: 3, digest: *blake3::hash(b"abc").as_bytes() }),
            entry(b"a.b", 0o777, (9, 8), Kind::Symlink(b"../\tx".to_vec())),
            entry(b"dev", 0o600, (9, 8), Kind::Block(8, 1)),
            entry(b"tty", 0o600, (9, 8), Kind::Character(5, 0)),
            entry(b"\xc4\x8d", 0o600, (9, 8), Kind::Fifo),
        ]
    }

    /// Returns the bytes of a manifest.
    pub fn written(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = [FIRST_LINE, b"\n"].concat();
        entries.iter().for_each(|entry| entry.write(&mut bytes));
        bytes.extend(format!("end {}\n", entries.len()).into_bytes());
        bytes
    }

    /// Returns the seeds: target, name, bytes.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        vec![
            ("tree_manifest", "all", written(&sample())),
            ("tree_manifest", "nothing", written(&[])),
            ("tree_manifest", "elsewhere", b"rdcp manifest 1\nd\t0755\t-\t0.000000000\t-\ta/../b\nend 1\n".to_vec()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::fuzz::{sample, written};
    use super::*;
    use crate::transport::tests::runner::{self, Body};

    const TARGETS: &[(&str, Body)] = &[("tree_manifest", super::fuzz::manifest)];

    #[test]
    fn every_target_has_a_body_and_a_corpus() {
        runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| name == "tree_manifest");
    }

    #[test]
    fn corpus_holds_what_this_version_makes() {
        runner::corpus_holds(&super::fuzz::seeds(), |_| true);
    }

    #[test]
    fn bodies_survive_the_corpus() {
        runner::bodies_survive_the_corpus(TARGETS);
    }

    fn read(bytes: &[u8]) -> Result<Vec<Entry>, String> {
        let mut reader = Reader::new(bytes).map_err(|error| error.to_string())?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.next().map_err(|error| error.to_string())? {
            entries.push(entry);
        }
        Ok(entries)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&written(&sample())), Ok(sample()));
    }

    #[test]
    fn a_file_that_was_cut_is_noticed_at_every_byte() {
        let whole = written(&sample());
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn lines_that_are_none_are_named() {
        let file = |path: &str| format!("d\t0755\t-\t0.000000000\t-\t{path}");
        for (lines, reason) in [
            (vec![file("../a")], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file("/a")], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file("a//b")], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file("a/./b")], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file(&"n".repeat(256))], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file(&"n/".repeat(600)) + "n"], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file("a\\x00b")], "line 2 has an invalid path, or one that leads out of the tree"),
            (vec![file("a"), file("a")], "line 3 is out of order"),
            (vec![file("b"), file("a")], "line 3 is out of order"),
            (vec![file("a.b"), file("a/b")], "line 3 is out of order"),
            (vec![file("\\x61")], "line 2 is not in canonical form"),
            (vec![file("a").replace("0755", "00755")], "line 2 is not in canonical form"),
            (vec![file("a").replace("0755", "17777")], "line 2 has an invalid mode"),
            (vec![file("a").replace("\t-\t", "\t7\t")], "line 2 is not in canonical form"),
            (vec!["f".to_owned()], "line 2 does not have six fields"),
            (vec!["n".repeat(LINE_BYTES_MAX + 9)], "line 2 is too long"),
        ] {
            let text = format!("rdcp manifest 1\n{}\nend {}\n", lines.join("\n"), lines.len());
            assert_eq!(read(text.as_bytes()), Err(reason.to_owned()), "{lines:?}");
        }
        for (text, reason) in [
            ("rdcp manifest 2\nend 0\n", "the first line is not 'rdcp manifest 1'"),
            ("rdcp manifest 1\nend 1\n", "line 2 does not give the number of entries before it"),
            ("rdcp manifest 1\nend 0\nend 0\n", "line 3 comes after the 'end' line"),
        ] {
            assert_eq!(read(text.as_bytes()), Err(reason.to_owned()));
        }
    }
}
