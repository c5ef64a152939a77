//! Failures of commands with their exit codes, and names and errors in printable form.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::ERRNO_MAX;
use rustix::io::Errno;

/// How a command can end. The exit codes are part of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The arguments are invalid.
    Usage,
    /// The keys differ.
    Authentication,
    /// The other end cannot be reached, is busy, or allows no transport that this end allows.
    Connect,
    /// The link was lost for longer than the reconnect window, or the other end was ended by a signal.
    LinkLost,
    /// The source could not be read.
    Source,
    /// The destination could not be written.
    Destination,
    /// The received data differs from the data that was sent.
    Integrity,
    /// Some of several files failed.
    Partial,
    /// The other end speaks another protocol, or another version of this one.
    Protocol,
    /// `rddoctor` has warnings.
    Warnings,
    /// `rddoctor` has found failures.
    Failures,
    /// Ended by this signal.
    Signal(u8),
    /// The reader of the output has closed it.
    SinkClosed,
    /// A command of a pipeline ended with this code.
    Stage(u8),
}

/// The exit codes and their names for programs. Codes of signals and stages are not listed, because they vary.
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
    /// Makes a failure that ends so, with a line for the user.
    pub fn with(self, message: impl Into<String>) -> Failure {
        Failure { exit: self, message: Some(message.into()), site: None }
    }

    /// Returns the code and the name.
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

    /// Returns the name for programs.
    pub fn name(self) -> &'static str {
        self.both().1
    }

    /// Returns every name that [`Exit::name`] can return.
    pub fn names() -> Vec<&'static str> {
        EXITS.iter().map(|(.., name)| *name).chain([SIGNAL, STAGE]).collect()
    }

    /// Returns what an exit code of another rdma-pipe process means. An unknown code counts as a protocol failure.
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
    /// How the command ends.
    pub exit: Exit,
    /// One line for the user; `None` if nothing needs to be said.
    pub message: Option<String>,
    /// The file or host that the failure is about.
    pub site: Option<Box<Site>>,
}

/// Where something went wrong.
#[derive(Clone, Debug)]
pub struct Site {
    /// The host; empty for this host.
    pub host: OsString,
    /// The file; empty if the failure is about the host.
    pub path: Vec<u8>,
    /// The system's error number; 0 if there is none.
    pub errno: i32,
}

impl Failure {
    /// Makes a failure without a line for the user.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, message: None, site: None }
    }

    /// Sets the host that the failure is about, unless its site is already known. An empty `host`, which stands for
    /// this host, changes nothing.
    pub fn on(self, host: &OsStr) -> Self {
        if self.site.is_some() || host.is_empty() { self } else { self.about(host, b"", 0) }
    }

    /// Sets the file that the failure is about. `host`: empty for this host.
    pub fn about(self, host: &OsStr, path: &[u8], errno: i32) -> Self {
        Self { site: Some(Box::new(Site { host: host.to_owned(), path: path.to_vec(), errno })), ..self }
    }
}

/// Returns the system's words for an error number that another end has reported, which may not be a real one.
pub fn os_number(errno: i32) -> String {
    match errno {
        1..=ERRNO_MAX => os(Errno::from_raw_os_error(errno)),
        _ => format!("unknown error {errno}"),
    }
}

/// Returns the error number; EIO if the error does not come from the system.
pub fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Returns the system's words for an error, with its number.
pub fn os(error: Errno) -> String {
    printable(&std::io::Error::from(error).to_string())
}

/// Returns a library's message in printable form.
pub(crate) fn printable(reason: &str) -> String {
    escaped(OsStr::new(reason)).replace("(os error ", "(errno ")
}

/// Returns a path in printable form, as [`escaped`] does, with single slashes.
pub fn shown_path(path: &[u8]) -> String {
    let mut text = path.to_vec();
    text.dedup_by(|next, before| (*next, *before) == (b'/', b'/'));
    escaped(OsStr::from_bytes(&text))
}

/// Whether a character must not reach a terminal or a page unescaped: a control character, or a mark that changes the
/// direction of the text around it, so that a name reads as another one.
pub fn is_unprintable(character: char) -> bool {
    let is_mark =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_mark || character.is_control()
}

/// Returns a name as it may be printed on a terminal. Escapes control characters, marks that change the direction of
/// text, and bytes that are not UTF-8.
pub fn escaped(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_unprintable(character) {
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
        for mark in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            let name = format!("a{mark}b");
            assert_eq!(escaped(OsStr::new(&name)), format!("a{}b", mark.escape_default()));
        }
        // Letters of scripts that are written from right to left, and joiners, which some scripts need.
        assert_eq!(escaped(OsStr::new("\u{5d0}\u{627}\u{200c}\u{200d}")), "\u{5d0}\u{627}\u{200c}\u{200d}");
    }
}
