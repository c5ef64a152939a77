//! Exit codes, and the sentences that go with them.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::{Cause, ERRNO_MAX, IoFact, Refusal};
use rd_proto::handshake::{ControlError, HandshakeError};
use rd_proto::session::Outcome;
use rustix::io::Errno;

use crate::cli::json::At;
use crate::engine::link::LinkError;

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
    /// Whoever read our output has gone.
    SinkClosed,
    /// A command of a pipeline ended with this code.
    Stage(u8),
}

impl Exit {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::Authentication => 2,
            Self::Connect => 3,
            Self::LinkLost => 4,
            Self::Source => 5,
            Self::Destination => 6,
            Self::Integrity => 7,
            Self::Partial => 8,
            Self::Protocol => 9,
            Self::Warnings => 10,
            Self::Failures => 11,
            Self::Signal(number) => 128_u8.saturating_add(number),
            Self::SinkClosed => 141,
            Self::Stage(code) => code,
        }
    }

    /// All that [`Exit::name`] gives.
    pub const NAMES: [&str; 14] = [
        "usage",
        "authentication",
        "connect",
        "link-lost",
        "source",
        "destination",
        "integrity",
        "partial",
        "protocol",
        "warnings",
        "failures",
        "signal",
        "sink-closed",
        "stage",
    ];

    /// What it is called, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Authentication => "authentication",
            Self::Connect => "connect",
            Self::LinkLost => "link-lost",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Integrity => "integrity",
            Self::Partial => "partial",
            Self::Protocol => "protocol",
            Self::Warnings => "warnings",
            Self::Failures => "failures",
            Self::Signal(_) => "signal",
            Self::SinkClosed => "sink-closed",
            Self::Stage(_) => "stage",
        }
    }

    /// What a code of another process of ours means. A code that is none of ours is a protocol's failure.
    pub fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Usage,
            2 => Self::Authentication,
            3 => Self::Connect,
            4 => Self::LinkLost,
            5 => Self::Source,
            6 => Self::Destination,
            7 => Self::Integrity,
            8 => Self::Partial,
            10 => Self::Warnings,
            11 => Self::Failures,
            141 => Self::SinkClosed,
            129.. => Self::Signal(code - 128),
            _ => Self::Protocol,
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
    /// The file that it is about.
    pub site: Option<Box<Site>>,
}

/// Where something went wrong.
#[derive(Clone, Debug)]
pub struct Site {
    /// The file.
    pub at: At,
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

    /// The same, which is about this file. `host`: empty for this one.
    pub fn about(self, host: &OsStr, path: &[u8], errno: i32) -> Self {
        Self { site: Some(Box::new(Site { at: At::new(host, path), errno })), ..self }
    }

    /// A source that cannot be read, here.
    pub fn source(fact: &IoFact) -> Self {
        let failure = Self::new(Exit::Source, format!("cannot read {}", io_sentence(fact)));
        failure.about(OsStr::new(""), &fact.path, fact.errno)
    }

    /// A destination that cannot be written, here.
    pub fn destination(fact: &IoFact) -> Self {
        let failure = Self::new(Exit::Destination, format!("cannot write {}", io_sentence(fact)));
        failure.about(OsStr::new(""), &fact.path, fact.errno)
    }

    /// A peer that has authenticated, and with which no transfer came about.
    pub fn not_agreed(error: &LinkError, peer: &str) -> Self {
        match error {
            LinkError::Refused(refusal) => Self::refused(*refusal, peer),
            // It has proved KEY and its version: neither is what is wrong.
            LinkError::Control(ControlError::Forged) => Self::new(
                Exit::Integrity,
                format!(
                    "what {peer} sent was damaged on the way, or sealed with another KEY; try again, and if it stays so \
                     see what is between the hosts"
                ),
            ),
            LinkError::Handshake(_) | LinkError::Frame(_) | LinkError::Control(_) | LinkError::Unexpected => {
                Self::broken_protocol(peer, Some(&error.to_string()))
            }
            LinkError::Closed => Self::new(
                Exit::Connect,
                format!("{peer} closed the connection before the transfer began; see what it says, and try again"),
            ),
            LinkError::TimedOut => {
                Self::new(Exit::Connect, format!("{peer} has connected but says nothing more; try again"))
            }
            LinkError::Os { error, .. } => Self::new(
                Exit::Connect,
                format!("lost the link to {peer} before the transfer began: {}; try again", os(*error)),
            ),
            LinkError::Transport(reason) => Self::new(
                Exit::Connect,
                format!("lost the link to {peer} before the transfer began: {}; try again", words(reason)),
            ),
        }
    }

    fn broken_protocol(peer: &str, reason: Option<&str>) -> Self {
        let reason = reason.map(|reason| format!(" ({})", words(reason))).unwrap_or_default();
        Self::new(Exit::Protocol, format!("{peer} broke the protocol{reason}; install the same release at both ends"))
    }

    /// A link that could not be made to `peer`, where `program` should be.
    pub fn unreached(error: &LinkError, peer: &str, program: &str) -> Self {
        match error {
            LinkError::Handshake(HandshakeError::WrongKey) => Self::new(
                Exit::Authentication,
                format!("{peer} has another KEY, or its answer was damaged on the way; give both ends the same KEY"),
            ),
            LinkError::Handshake(HandshakeError::VersionMismatch { ours, theirs }) => Self::new(
                Exit::Protocol,
                format!(
                    "{peer} speaks version {theirs} of the protocol, this program {ours}; install the same release"
                ),
            ),
            LinkError::Handshake(_) | LinkError::Frame(_) | LinkError::Control(_) | LinkError::Unexpected => {
                Self::new(Exit::Protocol, format!("{peer} does not speak rdma-pipe's protocol; check HOST and PORT"))
            }
            LinkError::Refused(refusal) => Self::refused(*refusal, peer),
            LinkError::Os { error, .. } => Self::new(
                Exit::Connect,
                format!(
                    "cannot reach {peer}: {}; check that {program} runs there and that the port is open",
                    os(*error)
                ),
            ),
            LinkError::TimedOut => Self::new(
                Exit::Connect,
                format!("cannot reach {peer}: no answer; check the address and that the port is open"),
            ),
            LinkError::Closed => Self::new(
                Exit::Connect,
                format!("{peer} closed the connection before it was made; it may be overrun or have ended: try again"),
            ),
            LinkError::Transport(reason) => Self::new(Exit::Connect, format!("cannot reach {peer}: {}", words(reason))),
        }
    }

    /// A peer that does not serve us, or that we do not serve.
    pub fn refused(refusal: Refusal, peer: &str) -> Self {
        let message = match refusal {
            Refusal::Busy => format!("{peer} is busy with another sender; try again when it has finished"),
            Refusal::Role => format!("{peer} wants to do the same as this end; one must send, the other receive"),
            Refusal::Transport => {
                format!("no transport that this host and {peer} both allow and have; see --transport")
            }
            Refusal::Encrypt => format!("{peer} and this end disagree on --encrypt: one says always, the other never"),
            Refusal::Lane | Refusal::Offer => {
                format!("{peer} does not accept this end's offer; check that rdrecv runs there, of the same release")
            }
        };
        Self::new(Exit::Connect, message)
    }

    /// How a session ended; `None` if well. `reason`: what the engine knows beyond that.
    pub fn outcome(outcome: &Outcome, reason: Option<&str>, peer: &str) -> Option<Self> {
        let told = || reason.map(|reason| format!(": {}", words(reason))).unwrap_or_default();
        let failure = match outcome {
            Outcome::Done => return None,
            Outcome::LinkLost { unanswered: true } => Self::new(
                Exit::LinkLost,
                format!(
                    "lost the link to {peer} before its answer: all was sent, the outcome is unknown; \
                     running it again is safe"
                ),
            ),
            Outcome::LinkLost { unanswered: false } => Self::new(
                Exit::LinkLost,
                format!("lost the link to {peer} and could not reconnect{} (--reconnect sets for how long)", told()),
            ),
            Outcome::NoRdma => Self::new(
                Exit::Connect,
                format!("no RDMA connection to {peer}{}; rddoctor tells more, --transport auto would use TCP", told()),
            ),
            Outcome::Aborted(cause) => match cause {
                Cause::Signal(number) => Self::silent(Exit::Signal(*number)),
                Cause::Source(fact) => Self::source(fact),
                Cause::Sink(fact) => Self::destination(fact),
                Cause::SinkClosed => Self::silent(Exit::SinkClosed),
                Cause::Integrity => Self::new(
                    Exit::Integrity,
                    format!(
                        "what came from {peer} does not match its checksums, again and again: the network, an adapter or \
                         memory damages it; rdperf ping shows whether it still does"
                    ),
                ),
                Cause::Protocol => Self::broken_protocol(peer, reason),
                // Has an outcome of its own.
                Cause::NoRdma => return Self::outcome(&Outcome::NoRdma, reason, peer),
            },
            Outcome::PeerAborted(cause) => match cause {
                Cause::Signal(number) => Self::new(Exit::LinkLost, format!("{peer} was ended by signal {number}")),
                Cause::Source(fact) | Cause::Sink(fact) if fact.path.is_empty() => {
                    Self::new(Exit::Connect, format!("{peer} gave up{}", io_sentence(fact)))
                }
                Cause::Source(fact) => Self::new(Exit::Source, format!("{peer} cannot read {}", io_sentence(fact)))
                    .about(OsStr::new(peer), &fact.path, fact.errno),
                Cause::Sink(fact) => Self::new(Exit::Destination, format!("{peer} cannot write {}", io_sentence(fact)))
                    .about(OsStr::new(peer), &fact.path, fact.errno),
                Cause::SinkClosed => Self::silent(Exit::SinkClosed),
                Cause::Integrity => Self::new(
                    Exit::Integrity,
                    format!(
                        "what reached {peer} does not match its checksums, again and again: the network, an adapter or \
                         memory damages it; rdperf ping shows whether it still does"
                    ),
                ),
                Cause::Protocol => Self::new(
                    Exit::Protocol,
                    format!("{peer} says that this end broke the protocol; install the same release at both ends"),
                ),
                Cause::NoRdma => return Self::outcome(&Outcome::NoRdma, None, peer),
            },
        };
        Some(failure)
    }
}

/// `PATH: what went wrong (error N)`.
pub(crate) fn io_sentence(fact: &IoFact) -> String {
    let mut sentence = shown_path(&fact.path);
    if fact.errno != 0 {
        let _ = write!(sentence, ": {}", os_number(fact.errno));
    }
    if !fact.detail.is_empty() {
        // "FILE: changed while it was read" reads better with a colon as well.
        let _ = write!(sentence, ": {}", escaped(OsStr::from_bytes(&fact.detail)));
    }
    sentence
}

/// The system's words for an error number that another end has told, which may be none.
pub fn os_number(errno: i32) -> String {
    match errno {
        1..=ERRNO_MAX => os(Errno::from_raw_os_error(errno)),
        _ => format!("unknown error {errno}"),
    }
}

/// The system's words for an error, with its number.
pub fn os(error: Errno) -> String {
    words(&std::io::Error::from(error).to_string())
}

/// A library's words as they may be printed.
pub(crate) fn words(reason: &str) -> String {
    escaped(OsStr::new(reason)).replace("(os error ", "(errno ")
}

/// A path as it may be printed: as [`escaped`], with single slashes.
pub fn shown_path(path: &[u8]) -> String {
    let mut text = path.to_vec();
    text.dedup_by(|next, before| (*next, *before) == (b'/', b'/'));
    escaped(OsStr::from_bytes(&text))
}

/// A name as it may be printed on a terminal: control characters and bytes that are no UTF-8 are escaped.
pub fn escaped(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
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
    fn what_is_damaged_is_not_called_another_release() {
        let sealed = Failure::not_agreed(&LinkError::Control(ControlError::Forged), "h");
        let hello = Failure::unreached(&LinkError::Handshake(HandshakeError::WrongKey), "h", "rdrecv");
        assert_eq!((sealed.exit.code(), hello.exit.code()), (7, 2));
        for failure in [sealed, hello] {
            let line = failure.message.expect("a line");
            assert!(line.contains("damaged on the way") && line.contains("another KEY"), "{line}");
            assert!(!line.contains("release"), "{line}");
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
            assert!(Exit::NAMES.contains(&exit.name()), "{exit:?}");
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

    #[test]
    fn what_the_other_end_lacks_itself_is_no_fault_of_a_file() {
        let fact = |path: &str| IoFact { path: path.into(), errno: 0, detail: b"cannot start a thread".to_vec() };
        for cause in [Cause::Source, Cause::Sink] {
            let told = |path| Failure::outcome(&Outcome::PeerAborted(cause(fact(path))), None, "h").expect("a failure");
            let failure = told("");
            assert_eq!(failure.exit, Exit::Connect);
            assert_eq!(failure.message.as_deref(), Some("h gave up: cannot start a thread"));
            assert!([Exit::Source, Exit::Destination].contains(&told("f").exit));
        }
    }

    #[test]
    fn a_signal_ends_the_other_end_as_a_lost_link() {
        let here = Failure::outcome(&Outcome::Aborted(Cause::Signal(2)), None, "h").expect("a failure");
        let there = Failure::outcome(&Outcome::PeerAborted(Cause::Signal(2)), None, "h").expect("a failure");
        assert_eq!((here.exit.code(), there.exit.code()), (130, 4));
    }
}
