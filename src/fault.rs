//! What went wrong, with its exit code, and names and errors as they may be printed.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::ERRNO_MAX;
use rustix::io::Errno;

/// How a command can end. The numbers are part of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The arguments make no sense.
    Usage,
    /// The keys differ.
    Authentication,
    /// The other end cannot be reached, is busy, or allows no transport that we allow.
    Connect,
    /// The link was lost for longer than the reconnect window, or the other end was ended by a signal.
    LinkLost,
    /// The source could not be read.
    Source,
    /// The destination could not be written.
    Destination,
    /// What arrived is not what was sent.
    Integrity,
    /// Some files of several failed.
    Partial,
    /// The other end speaks another protocol, or another version of this one.
    Protocol,
    /// `rddoctor` has warnings.
    Warnings,
    /// `rddoctor` has found failures.
    Failures,
    /// Ended by this signal.
    Signal(u8),
    /// The reader of our output has closed it.
    SinkClosed,
    /// A command of a pipeline ended with this code.
    Stage(u8),
}

/// The codes, and what they are called for programs. Those of signals and stages are as many as there are of them.
const EXITS: [(Exit, u8, &str); 12] = [
    (Exit::Usage, 1, "usage"),
    (Exit::Authentication, 2, "authentication"),
    (Exit::Connect, 3, "connect"),
    (Exit::LinkLost, 4, "link-lost"),
    (Exit::Source, 5, "source"),
    (Exit::Destination, 6, "destination"),
    (Exit::Integrity, 7, "integrity"),
    (Exit::Partial, 8, "partial"),
    (Exit::Protocol, 9, "protocol"),
    (Exit::Warnings, 10, "warnings"),
    (Exit::Failures, 11, "failures"),
    (Exit::SinkClosed, 141, "sink-closed"),
];
const SIGNAL: &str = "signal";
const STAGE: &str = "stage";

impl Exit {
    /// The code and the name.
    fn both(self) -> (u8, &'static str) {
        match self {
            Self::Signal(number) => (128_u8.saturating_add(number), SIGNAL),
            Self::Stage(code) => (code, STAGE),
            other => {
                EXITS.iter().find(|(exit, ..)| *exit == other).map_or((9, "protocol"), |&(_, code, name)| (code, name))
            }
        }
    }

    /// The process's exit code.
    pub fn code(self) -> u8 {
        self.both().0
    }

    /// What it is called, for programs.
    pub fn name(self) -> &'static str {
        self.both().1
    }

    /// All that [`Exit::name`] gives.
    pub fn names() -> Vec<&'static str> {
        EXITS.iter().map(|(.., name)| *name).chain([SIGNAL, STAGE]).collect()
    }

    /// What a code of another process of ours means. A code that is none of ours is a protocol's failure.
    pub fn from_code(code: u8) -> Self {
        match EXITS.iter().find(|(_, known, _)| *known == code) {
            Some((exit, ..)) => *exit,
            None if code > 128 => Self::Signal(code - 128),
            None => Self::Protocol,
        }
    }
}

/// A command that has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// How it ends.
    pub exit: Exit,
    /// One line for a person; `None` where nothing needs to be said.
    pub message: Option<String>,
    /// The file or host that it is about.
    pub site: Option<Box<Site>>,
}

/// Where something went wrong.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its host; empty for this one.
    pub host: OsString,
    /// The file; empty where it is about the host.
    pub path: Vec<u8>,
    /// The system's error number; 0 where there is none.
    pub errno: i32,
}

impl Failure {
    /// A failure with its line.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()), site: None }
    }

    /// A failure that needs no line.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, message: None, site: None }
    }

    /// The same, which is about this host where it is about none of its files. `host`: empty for this one.
    pub fn on(self, host: &OsStr) -> Self {
        if self.site.is_some() || host.is_empty() { self } else { self.about(host, b"", 0) }
    }

    /// The same, which is about this file. `host`: empty for this one.
    pub fn about(self, host: &OsStr, path: &[u8], errno: i32) -> Self {
        Self { site: Some(Box::new(Site { host: host.to_owned(), path: path.to_vec(), errno })), ..self }
    }
}

/// The system's words for an error number that another end has told, which may be none.
pub fn os_number(errno: i32) -> String {
    match errno {
        1..=ERRNO_MAX => os(Errno::from_raw_os_error(errno)),
        _ => format!("unknown error {errno}"),
    }
}

/// The number of an error; of one that the system has not made, EIO.
pub fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The system's words for an error, with its number.
pub fn os(error: Errno) -> String {
    printable(&std::io::Error::from(error).to_string())
}

/// A library's message as it may be printed.
pub(crate) fn printable(reason: &str) -> String {
    escaped(OsStr::new(reason)).replace("(os error ", "(errno ")
}

/// A path as it may be printed: as [`escaped`], with single slashes.
pub fn shown_path(path: &[u8]) -> String {
    let mut text = path.to_vec();
    text.dedup_by(|next, before| (*next, *before) == (b'/', b'/'));
    escaped(OsStr::from_bytes(&text))
}

/// A name as it may be printed on a terminal: control characters, marks that turn what follows around, and bytes that are no UTF-8
/// are escaped.
pub fn escaped(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            let is_mark = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if is_mark || character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_that_another_end_tells_may_be_none() {
        assert_eq!(os_number(libc::ENOSPC), "No space left on device (errno 28)");
        for hostile in [i32::MIN, -5000, -1, 4096, i32::MAX] {
            assert_eq!(os_number(hostile), format!("unknown error {hostile}"));
        }
    }

    #[test]
    fn codes_are_the_documented_ones() {
        let table = [
            (Exit::Usage, 1),
            (Exit::Authentication, 2),
            (Exit::Connect, 3),
            (Exit::LinkLost, 4),
            (Exit::Source, 5),
            (Exit::Destination, 6),
            (Exit::Integrity, 7),
            (Exit::Partial, 8),
            (Exit::Protocol, 9),
            (Exit::Warnings, 10),
            (Exit::Failures, 11),
            (Exit::Signal(2), 130),
            (Exit::Signal(15), 143),
            (Exit::SinkClosed, 141),
        ];
        for (exit, code) in table {
            assert_eq!(exit.code(), code, "{exit:?}");
            assert_eq!(Exit::from_code(code), exit, "{code}");
            assert!(Exit::names().contains(&exit.name()), "{exit:?}");
        }
    }

    #[test]
    fn paths_are_printed_with_single_slashes() {
        assert_eq!(shown_path(b"//a///b//"), "/a/b/");
        assert_eq!(shown_path(b"a/./b\n"), "a/./b\\n");
    }

    #[test]
    fn names_are_printed_without_their_escapes() {
        assert_eq!(escaped(OsStr::from_bytes(b"a\x1b[31mb\n\xff\xc3\xa9")), "a\\u{1b}[31mb\\n\\xff\u{e9}");
    }
}
