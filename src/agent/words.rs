//! Sentences about sessions and their files: what happened, to which file or host, why, and what to do.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::{Cause, IoFact, Refusal};
use rd_proto::handshake::ControlError;
use rd_proto::session::{Notice, Outcome};

use crate::engine::SessionEvent;
use crate::engine::link::LinkError;
use crate::engine::session::{NotBegun, Obstacle};
use crate::fault::{Exit, Failure, escaped, os, os_number, printable, shown_path};

/// Advice for a small limit on locked memory.
const MEMLOCK_ADVICE: &str =
    "to raise it, add the line `* - memlock unlimited` to /etc/security/limits.d/zz-rdma-pipe.conf and log in again";

/// Part of the line of a sender that has lost the link after everything was sent, so that it does not know the outcome.
pub(crate) const UNANSWERED: &str = "before its answer";

/// Returns a session's remark as a line.
pub(crate) fn remark(event: &SessionEvent) -> Option<String> {
    match event {
        SessionEvent::NoDevice { host } => {
            let host = host.as_deref().unwrap_or("this host");
            Some(format!("no RDMA device on {host}; using TCP"))
        }
        SessionEvent::LockedMemory { pool_mib: Some([used, wanted]), .. } => {
            Some(format!("the limit on locked memory lets RDMA use {used} MiB of {wanted} MiB; {MEMLOCK_ADVICE}"))
        }
        SessionEvent::LockedMemory { limit_bytes, pool_mib: None } => {
            let kib = limit_bytes >> 10;
            Some(format!("the limit on locked memory ({kib} KiB) is too small for RDMA; {MEMLOCK_ADVICE}"))
        }
        SessionEvent::OneRail(why) => Some(format!("--rails: only one network is used, because {why}")),
        _ => None,
    }
}

/// Returns a line about the lanes to `peer`. `peer` is `None` if it is not to be named.
pub(crate) fn notice(notice: Notice, reason: Option<&str>, peer: Option<&str>) -> String {
    let because = reason.map(|reason| format!(" ({})", printable(reason))).unwrap_or_default();
    let to = peer.map(|peer| format!(" to {peer}")).unwrap_or_default();
    match notice {
        Notice::FellBack => format!("cannot use RDMA{because}; continuing over TCP"),
        Notice::BackOnRdma => "RDMA is back; using it again".to_owned(),
        Notice::LinkLost => format!("lost the link{to}{because}"),
        Notice::LinkRestored => format!("reconnected{to}; resuming"),
        Notice::RailLeft(..) => {
            format!("one of several networks stopped answering{because}; continuing over the others")
        }
        Notice::RailSlow(..) => format!("one of several networks became too slow{because}; continuing over the others"),
        Notice::RailBack(..) => format!("a network is back{because}; using it again"),
        Notice::LaneLost(lane) => format!("lost connection {}.{}{because}", lane.index, lane.generation),
    }
}

/// Returns the failure of a session that did not begin.
pub(crate) fn not_begun(not_begun: &NotBegun) -> Failure {
    let NotBegun { obstacle, peer, .. } = not_begun;
    match obstacle {
        Obstacle::Link(error) => not_agreed(error, peer),
        Obstacle::Refused(refusal) => refused(*refusal, peer),
        Obstacle::NoDevice { here: Some(host) } => no_device(&format!("this host ({host})")),
        Obstacle::NoDevice { here: None } => no_device(peer),
        Obstacle::Source(fact) => source(fact),
        Obstacle::Destination(fact) => destination(fact),
        Obstacle::Signal(number) => Failure::silent(Exit::Signal(*number)),
        Obstacle::Memory { .. } => Exit::Connect.with(format!("{}; see --buffer", printable(&obstacle.to_string()))),
        Obstacle::Thread(_) => {
            Exit::Connect.with(format!("{}; raise the limit (ulimit -u)", printable(&obstacle.to_string())))
        }
        Obstacle::Signals(_) => Exit::Connect.with(printable(&obstacle.to_string())),
    }
}

/// Returns the failure for `--transport rdma` without a device. `lacking` is the host without a device, as named to the
/// user.
pub(crate) fn no_device(lacking: &str) -> Failure {
    let message = format!(
        "--transport rdma, but {lacking} has no RDMA device that answers, is up and has an address; \
         run rddoctor for details"
    );
    Exit::Connect.with(message)
}

/// Returns the failure for a source of this host that cannot be read.
pub(crate) fn source(fact: &IoFact) -> Failure {
    let failure = Exit::Source.with(format!("cannot read {}", io_sentence(fact)));
    failure.about(OsStr::new(""), &fact.path, fact.errno)
}

/// Returns the failure for a destination of this host that cannot be written.
pub(crate) fn destination(fact: &IoFact) -> Failure {
    let failure = Exit::Destination.with(format!("cannot write {}", io_sentence(fact)));
    failure.about(OsStr::new(""), &fact.path, fact.errno)
}

/// Returns the failure for a peer that has authenticated, but with which no transfer could begin.
pub(crate) fn not_agreed(error: &LinkError, peer: &str) -> Failure {
    let lost = |reason: String| {
        let line = format!("lost the link to {peer} before the transfer began: {reason}; try again");
        Exit::Connect.with(line)
    };
    match error {
        LinkError::Refused(refusal) => refused(*refusal, peer),
        // The peer has proved KEY and its version, so neither is the cause.
        LinkError::Control(ControlError::Forged) => Exit::Integrity.with(format!(
            "data from {peer} was damaged in transit, or encrypted with a different KEY; try again, and if it recurs, \
                 check what is between the hosts"
        )),
        LinkError::Handshake(_) | LinkError::Frame(_) | LinkError::Control(_) | LinkError::Unexpected => {
            broken_protocol(peer, Some(&error.to_string()))
        }
        LinkError::Closed => Exit::Connect
            .with(format!("{peer} closed the connection before the transfer began; see its messages, and try again")),
        LinkError::TimedOut => Exit::Connect.with(format!("{peer} connected, but sends nothing more; try again")),
        LinkError::Os { error, .. } => lost(os(*error)),
        LinkError::Transport(reason) => lost(printable(reason)),
    }
}

fn broken_protocol(peer: &str, reason: Option<&str>) -> Failure {
    let reason = reason.map(|reason| format!(" ({})", printable(reason))).unwrap_or_default();
    Exit::Protocol.with(format!("{peer} broke the protocol{reason}; install the same release at both ends"))
}

/// Returns the failure if the peer refuses to serve this end, or this end the peer.
pub(crate) fn refused(refusal: Refusal, peer: &str) -> Failure {
    let message = match refusal {
        Refusal::Busy => format!("{peer} is busy with another sender; try again when it has finished"),
        Refusal::Role => format!("{peer} has the same role as this end; one must send, the other receive"),
        Refusal::Transport => {
            format!("this host and {peer} have no transport in common; see --transport")
        }
        Refusal::Encrypt => format!("{peer} and this end disagree on --encrypt: one says always, the other never"),
        Refusal::Lane | Refusal::Offer => {
            format!("{peer} rejected this end's offer; check that rdrecv of the same release runs there")
        }
    };
    Exit::Connect.with(message)
}

/// Returns the failure of a session that has ended; `None` if it succeeded. `reason` is what else the engine knows.
pub(crate) fn outcome(outcome: &Outcome, reason: Option<&str>, peer: &str) -> Option<Failure> {
    let because = reason.map(|reason| format!(": {}", printable(reason))).unwrap_or_default();
    let damaged = |what: &str| {
        let line = format!(
            "data {what} failed its checksums repeatedly: the network, an adapter or memory damages it; \
             rdperf ping shows whether it still does"
        );
        Exit::Integrity.with(line)
    };
    let theirs = |exit: Exit, what: &str, fact: &IoFact| {
        exit.with(format!("{peer} {what} {}", io_sentence(fact))).about(OsStr::new(peer), &fact.path, fact.errno)
    };
    Some(match outcome {
        Outcome::Done => return None,
        Outcome::LinkLost { unanswered: true } => Exit::LinkLost.with(format!(
            "lost the link to {peer} {UNANSWERED}: all data was sent, but the outcome is unknown; look there before \
                 running it again"
        )),
        Outcome::LinkLost { unanswered: false } => Exit::LinkLost.with(format!("lost the link to {peer}{because}")),
        Outcome::NoRdma | Outcome::Aborted(Cause::NoRdma) | Outcome::PeerAborted(Cause::NoRdma) => {
            Exit::Connect.with(format!(
                "no RDMA connection to {peer}{because}; run rddoctor for details, or use TCP with --transport auto"
            ))
        }
        Outcome::Aborted(Cause::SinkClosed) | Outcome::PeerAborted(Cause::SinkClosed) => {
            Failure::silent(Exit::SinkClosed)
        }
        Outcome::Aborted(Cause::Signal(number)) => Failure::silent(Exit::Signal(*number)),
        Outcome::Aborted(Cause::Source(fact)) => source(fact),
        Outcome::Aborted(Cause::Sink(fact)) => destination(fact),
        Outcome::Aborted(Cause::Integrity) => damaged(&format!("from {peer}")),
        Outcome::Aborted(Cause::Protocol) => broken_protocol(peer, reason),
        Outcome::PeerAborted(Cause::Signal(number)) => Exit::LinkLost.with(format!("{peer} {}", ended_by(*number))),
        Outcome::PeerAborted(Cause::Source(fact) | Cause::Sink(fact)) if fact.path.is_empty() => {
            Exit::Connect.with(format!("{peer} gave up{}", io_sentence(fact)))
        }
        Outcome::PeerAborted(Cause::Source(fact)) => theirs(Exit::Source, "cannot read", fact),
        Outcome::PeerAborted(Cause::Sink(fact)) => theirs(Exit::Destination, "cannot write", fact),
        Outcome::PeerAborted(Cause::Integrity) => damaged(&format!("sent to {peer}")),
        Outcome::PeerAborted(Cause::Protocol) => Exit::Protocol
            .with(format!("{peer} says that this end broke the protocol; install the same release at both ends")),
    })
}

/// Describes how a signal has ended another end.
pub(crate) fn ended_by(number: u8) -> String {
    match signal_hook::low_level::signal_name(number.into()) {
        Some(name) if i32::from(number) == libc::SIGINT => format!("was interrupted ({name})"),
        Some(name) => format!("was ended by signal {number} ({name})"),
        None => format!("was ended by signal {number}"),
    }
}

/// Formats a fact: `PATH: what went wrong (error N)`.
fn io_sentence(fact: &IoFact) -> String {
    let mut sentence = shown_path(&fact.path);
    if fact.errno != 0 {
        let _ = write!(sentence, ": {}", os_number(fact.errno));
    }
    if !fact.detail.is_empty() {
        // A colon also suits details such as "FILE: changed while it was read".
        let _ = write!(sentence, ": {}", escaped(OsStr::from_bytes(&fact.detail)));
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_lacks_itself_is_no_fault_of_a_file() {
        let fact = |path: &str| IoFact { path: path.into(), errno: 0, detail: b"cannot start a thread".to_vec() };
        for cause in [Cause::Source, Cause::Sink] {
            let told = |path| outcome(&Outcome::PeerAborted(cause(fact(path))), None, "h").expect("a failure");
            let failure = told("");
            assert_eq!(failure.exit, Exit::Connect);
            assert_eq!(failure.message.as_deref(), Some("h gave up: cannot start a thread"));
            assert!([Exit::Source, Exit::Destination].contains(&told("f").exit));
        }
    }

    #[test]
    fn a_signal_ends_the_other_end_as_a_lost_link() {
        let here = outcome(&Outcome::Aborted(Cause::Signal(2)), None, "h").expect("a failure");
        let there = outcome(&Outcome::PeerAborted(Cause::Signal(2)), None, "h").expect("a failure");
        assert_eq!((here.exit.code(), there.exit.code()), (130, 4));
    }
}
