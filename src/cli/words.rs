//! Sentences about links and measurements, and words for waits. Agents need none of these; the sentences that agents
//! use about sessions are in `agent/words.rs`.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;

use rd_proto::handshake::HandshakeError;

use crate::agent::end::no_port;
use crate::agent::words::{not_agreed, refused};
use crate::engine::link::LinkError;
use crate::engine::listen::GUESSES_MAX;
use crate::engine::perf::PerfError;
use crate::engine::rails::names;
use crate::engine::{View, Wait};
use crate::fault::{Exit, Failure, errno_of, escaped, os, printable};
use crate::fs::sink::NO_TEXT;
use crate::options::RailChoice;
use crate::transport::rdma::ConnectError;

/// Replaces a failure by advice if data that is no text came for standard output, a terminal.
pub(crate) fn unshown(failure: Failure) -> Failure {
    let line = "not writing binary data to a terminal: redirect standard output; to write it anyway, append `| cat`";
    let is_it = failure.message.as_ref().is_some_and(|message| message.contains(NO_TEXT));
    if is_it { Exit::Usage.with(line) } else { failure }
}

/// Splits a host into `USER@` and the rest.
pub(super) fn split_login(host: &[u8]) -> (&[u8], &[u8]) {
    host.split_at(host.iter().rposition(|&byte| byte == b'@').map_or(0, |at| at + 1))
}

/// Returns the failure for a link to `peer` that could not be made. `program` is what should run there.
pub(crate) fn unreached(error: &LinkError, peer: &str, program: &str) -> Failure {
    match error {
        LinkError::Handshake(HandshakeError::WrongKey) => Exit::Authentication.with(format!(
            "{peer} has a different KEY, or its answer was damaged in transit; give both ends the same KEY"
        )),
        LinkError::Handshake(HandshakeError::VersionMismatch { ours, theirs }) => Exit::Protocol.with(format!(
            "{peer} speaks protocol version {theirs}, this program {ours}; install the same release at both ends, \
                 and restart {program} if it was started before"
        )),
        LinkError::Handshake(_) | LinkError::Frame(_) | LinkError::Control(_) | LinkError::Unexpected => {
            Exit::Protocol.with(format!("{peer} does not speak rdma-pipe's protocol; check HOST and PORT"))
        }
        LinkError::Refused(refusal) => refused(*refusal, peer),
        LinkError::Os { error, .. } => Exit::Connect.with(format!(
            "cannot reach {peer}: {}; check that {program} runs there and that the port is open",
            os(*error)
        )),
        LinkError::TimedOut => {
            Exit::Connect.with(format!("cannot reach {peer}: no answer; check the address and that the port is open"))
        }
        LinkError::Closed => Exit::Connect.with(format!(
            "{peer} closed the connection before it was established; it may be overloaded or have exited; try again"
        )),
        LinkError::Transport(reason) => Exit::Connect.with(format!("cannot reach {peer}: {}", printable(reason))),
    }
}

/// Refuses `--rails` if it names interfaces that this host does not have. With `of_either_end`, some may be the other
/// host's.
pub(crate) fn check_rails(rails: &RailChoice, of_either_end: bool) -> Result<(), Failure> {
    let given = rails.names();
    if given.is_empty() {
        return Ok(());
    }
    let here = names();
    let lacking: Vec<&str> = given.iter().filter(|name| !here.contains(name)).map(|name| &**name).collect();
    if lacking.is_empty() || of_either_end && lacking.len() < given.len() {
        return Ok(());
    }
    let has = if here.is_empty() { "none".to_owned() } else { here.join(", ") };
    let lacking = printable(&lacking.join(", "));
    Err(Exit::Usage.with(format!("--rails: this host has no interface {lacking} that others can reach; it has {has}")))
}

/// Returns the failure for a port that cannot be listened on. If `port` is 0, any of `ports` was tried.
pub(crate) fn not_listening(error: &std::io::Error, port: u16, ports: Option<&RangeInclusive<u16>>) -> Failure {
    let errno = os(errno_of(error));
    let line = match (port, ports) {
        (0, Some(ports)) => no_port(ports, &errno),
        _ => format!("cannot listen on port {port}: {errno}; choose another PORT, or 0"),
    };
    Exit::Connect.with(line)
}

/// Returns the failure for a listener that others have tried to guess the key of.
pub(crate) fn too_many_guesses() -> Failure {
    let line = format!("{GUESSES_MAX} connections with a wrong KEY; someone may be guessing it; use a generated one");
    Exit::Authentication.with(line)
}

/// Quotes a text as a single word for a POSIX shell.
pub(crate) fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the failure with which a measurement with `peer` ended.
pub(crate) fn measured(error: &PerfError, peer: &str) -> Failure {
    let line = match error {
        PerfError::Link(LinkError::Os { what: what @ ("send" | "receive"), error }) => {
            format!("lost the link to {peer}: {what}: {}", os(*error))
        }
        PerfError::Link(LinkError::TimedOut) => format!("lost the link to {peer}: it stopped answering"),
        PerfError::Link(LinkError::Closed) => format!("lost the link to {peer}: it closed the connection"),
        PerfError::Link(LinkError::Os { error, .. }) => {
            format!("cannot reach {peer}: {}; check that rdperf serve runs there and that the port is open", os(*error))
        }
        PerfError::Link(LinkError::Unexpected | LinkError::Frame(_)) => {
            format!("{peer} does not speak rdperf's protocol; check that it is rdperf serve")
        }
        PerfError::Link(LinkError::Transport(reason)) => {
            format!("no RDMA connection to {peer}: {}; leave out --transport rdma to measure TCP", printable(reason))
        }
        PerfError::Link(error) => return not_agreed(error, peer),
        PerfError::Lane(error) | PerfError::Rdma(ConnectError::Lost(error)) => {
            format!("lost a connection to {peer}: {}", printable(&error.to_string()))
        }
        PerfError::Rdma(error) => format!("no RDMA connection to {peer}: {}", printable(&error.to_string())),
        PerfError::Peer { reason, .. } => format!("{peer} gave up: {}", escaped(OsStr::from_bytes(reason))),
        PerfError::TooMany { what, most } => format!("at most {most} {what} can be measured at a time"),
        PerfError::Os { what, error } => format!("{what}: {}", os(*error)),
    };
    error.exit().with(line)
}

/// Returns words for a wait, as precisely as the end or ends in view can know it.
pub(crate) fn waited_for(wait: Wait, view: View) -> &'static str {
    match (wait, view) {
        (Wait::Source, _) => "the source",
        (Wait::Cpu, View::Sender) => "the sender's processors",
        (Wait::Cpu, View::Receiver) => "the receiver's processors",
        (Wait::Cpu, View::Both) => "processors",
        (Wait::Credits, _) => "the receiver",
        (Wait::Wire, View::Sender) => "the wire or the receiver",
        (Wait::Wire, View::Receiver) => "the sender or the wire",
        (Wait::Wire, View::Both) => "the wire",
        (Wait::Sink, _) => "the sink",
        (Wait::Limit, _) => "--bwlimit",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rd_proto::handshake::ControlError;

    use super::*;
    use crate::engine::Waits;
    use crate::transport::LaneError;

    #[test]
    fn what_is_damaged_is_not_called_another_release() {
        let sealed = not_agreed(&LinkError::Control(ControlError::Forged), "h");
        let hello = unreached(&LinkError::Handshake(HandshakeError::WrongKey), "h", "rdrecv");
        assert_eq!((sealed.exit.code(), hello.exit.code()), (7, 2));
        for failure in [sealed, hello] {
            let line = failure.message.expect("a line");
            assert!(line.contains("damaged in transit") && line.contains("a different KEY"), "{line}");
            assert!(!line.contains("release"), "{line}");
        }
    }

    /// A receiver that waits goes on as the program that was started.
    #[test]
    fn after_an_upgrade_the_receiver_is_to_be_restarted() {
        let [theirs, ours] = [1, 2].map(|major| rd_proto::handshake::Version { major, minor: 0 });
        let error = LinkError::Handshake(HandshakeError::VersionMismatch { ours, theirs });
        let line = unreached(&error, "h", "rdrecv").message.expect("a line");
        assert!(line.contains("restart rdrecv") && line.contains("same release"), "{line}");
    }

    #[test]
    fn ports_in_use_are_named_as_they_were_typed() {
        let error = std::io::Error::from_raw_os_error(libc::EADDRINUSE);
        for (ports, typed) in [(7000..=7000, "7000"), (7000..=7001, "7000-7001")] {
            let line = not_listening(&error, 0, Some(&ports)).message.expect("a line");
            let why = "Address already in use (errno 98); choose other ports";
            assert_eq!(line, format!("cannot listen on a port of --port-range {typed}: {why}"));
        }
    }

    #[test]
    fn every_wait_has_its_words() {
        for view in [View::Sender, View::Receiver, View::Both] {
            let words: BTreeSet<_> =
                Waits::default().named().into_iter().map(|(wait, _)| waited_for(wait, view)).collect();
            assert_eq!(words.len(), 6);
        }
    }

    #[test]
    fn a_measurement_ends_with_the_code_of_its_sentence() {
        let forged = LinkError::Control(ControlError::Forged);
        for link in [forged, LinkError::Unexpected, LinkError::Refused(rd_proto::control::Refusal::Busy)] {
            assert_eq!(PerfError::from(link.clone()).exit(), not_agreed(&link, "h").exit, "{link}");
        }
        let lost = measured(&PerfError::Rdma(ConnectError::Lost(LaneError::PeerClosed)), "h");
        assert_eq!((lost.exit, lost.message.is_some_and(|line| line.starts_with("lost "))), (Exit::LinkLost, true));
        let peer = PerfError::Peer { exit: 6, reason: b"full\n".to_vec() };
        let failure = measured(&peer, "h");
        assert_eq!((failure.exit.code(), failure.message.as_deref()), (6, Some("h gave up: full\\n")));
    }
}
