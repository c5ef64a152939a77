//! What all commands that move data share: from an authenticated first lane to the end of the session.

use std::ffi::OsStr;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flume::{Receiver, Sender};
use rd_proto::control::{Cause, Frame, IoFact, Offer, Policy, RdmaKind, Refusal, Role};
use rd_proto::handshake::Established;

use super::aside::Aside;
use super::options::ReportOptions;
use super::report::{Reporter, Terminal};
use super::words;
use crate::engine::link::send_last;
use crate::engine::listen::Registry;
use crate::engine::open::{Agreement, Disagreement, MemlockShortage, OpenError, agree, open};
use crate::engine::{Event, Monitor, Summary, Work, rdma};
use crate::fault::{Exit, Failure, escaped, os, printable};
use crate::fs::plain_fact;
use crate::options::TransferOptions;

/// What to do about a small limit on locked memory.
const MEMLOCK_ADVICE: &str =
    "to raise it, put the line `* - memlock unlimited` into /etc/security/limits.d/rdma.conf and log in again";

/// The first lane of a session, authenticated.
pub(crate) struct FirstLane {
    pub(crate) stream: TcpStream,
    pub(crate) established: Established,
    /// The other end, as a person would name it.
    pub(crate) peer_name: String,
    /// That is what the user calls it; else it is only an address, and its own name is added.
    pub(crate) is_named: bool,
}

/// One end of a session, and whom it tells.
pub(crate) struct Session<'a> {
    pub(crate) transfer: &'a TransferOptions,
    pub(crate) post: Sender<Event>,
    pub(crate) events: Receiver<Event>,
    pub(crate) teller: &'a dyn Teller,
    /// Signals to this process are to be the session's; else somebody posts them already.
    pub(crate) heeds_signals: bool,
    /// This end says what both know: where two ends have one reader, it would be said twice.
    pub(crate) tells_for_both: bool,
}

/// Told what a session has to say: a terminal here, or the caller of an agent.
pub(crate) trait Teller {
    /// A line for a person.
    fn say(&self, line: &str);
    /// Watches the transfer with `peer`, of `size_bytes` where that is known.
    fn monitor(&self, peer: &str, reconnect: Duration, size_bytes: Option<u64>) -> Box<dyn Monitor>;
}

/// Tells a person at this process's own terminal.
pub(crate) struct Console<'a> {
    pub(crate) name: &'static str,
    pub(crate) report: &'a ReportOptions,
    /// A progress bar would not get in the way of the data.
    pub(crate) may_draw: bool,
}

impl Teller for Console<'_> {
    fn say(&self, line: &str) {
        if !self.report.quiet {
            super::say(&format!("{}: {line}", self.name));
        }
    }

    fn monitor(&self, peer: &str, reconnect: Duration, size_bytes: Option<u64>) -> Box<dyn Monitor> {
        let terminal = || Terminal::new(self.name, peer, self.report, reconnect, size_bytes, self.may_draw);
        match Aside::start(terminal()) {
            Ok(aside) => Box::new(aside),
            Err(_) => Box::new(terminal()),
        }
    }
}

/// Why a session did not begin.
pub(crate) enum NotBegun {
    /// The peer, or the connection to it: a listener may wait for another.
    Peer(Failure),
    /// This end.
    Here(Failure),
}

/// Why there is nothing to move.
pub(crate) enum NoWork {
    /// The source or sink cannot be.
    Io(IoFact),
    /// This end was told to stop, by a signal.
    Stopped(u8),
}

impl From<IoFact> for NoWork {
    fn from(fact: IoFact) -> Self {
        Self::Io(fact)
    }
}

/// A session that has been.
pub(crate) struct Ended {
    pub(crate) summary: Summary,
    pub(crate) failure: Option<Failure>,
    /// What it came to, for a person, where that is more than a bandwidth.
    pub(crate) last_line: Option<String>,
}

/// Runs a command's transfer and tells how it went, also where no session began. `carries_data`: standard output is where
/// the data goes.
pub(crate) fn reported(
    options: &ReportOptions,
    carries_data: bool,
    transfer: impl FnOnce(&Reporter<'_>) -> Result<Ended, Failure>,
) -> Result<(), Failure> {
    let reporter = Reporter::open(options, carries_data)?;
    let (summary, failure, last_line) = match transfer(&reporter) {
        Ok(Ended { summary, failure, last_line }) => (Some(summary), failure, last_line),
        Err(failure) => (None, Some(failure), None),
    };
    let told = reporter.finish(summary.as_ref(), failure.as_ref(), last_line.as_deref());
    // What went wrong with the transfer matters more than that it could not be reported.
    failure.map_or(told, Err)
}

impl Session<'_> {
    /// Exchanges offers, then runs the session to its end. `listening`: the sessions that the listening end serves;
    /// without it this end dials. `make_work` is given the agreed chunk size; it may take as long as the other end's.
    pub(crate) fn run(
        &self,
        mut first: FirstLane,
        role: Role,
        size_bytes: Option<u64>,
        listening: Option<&Arc<Mutex<Registry>>>,
        make_work: impl FnOnce(usize) -> Result<Work, NoWork>,
    ) -> Result<Ended, NotBegun> {
        let FirstLane { stream, established, .. } = &mut first;
        let agreement = match agree(stream, &mut established.control, role, size_bytes, self.transfer) {
            Ok(agreement) => agreement,
            Err(Disagreement::Link(error)) => {
                return Err(NotBegun::Peer(words::not_agreed(&error, &first.peer_name)));
            }
            Err(Disagreement::Refused(refusal, offers)) => {
                let [ours, theirs] = *offers;
                let peer = first.peer(&theirs, listening.is_some());
                let lacking = lacks_rdma(&ours, &theirs, &peer).filter(|_| refusal == Refusal::Transport);
                return Err(NotBegun::Peer(lacking.unwrap_or_else(|| words::refused(refusal, &peer))));
            }
        };
        let Agreement { ours, theirs, agreed } = &agreement;
        let peer = first.peer(theirs, listening.is_some());
        if agreed.policy == Policy::PreferRdma && !agreed.try_rdma && self.tells_for_both {
            let lacking = if ours.rdma == RdmaKind::None { "this host" } else { peer.as_str() };
            self.teller.say(&format!("no RDMA device at {lacking}; using TCP"));
        }
        // From here on there is something to clean up and a peer to tell, and no session of this process comes after this one.
        if self.heeds_signals {
            let post = self.post.clone();
            crate::signals::forward(false, move |signal| post.send(Event::Signal(signal)).is_ok()).map_err(
                |error| {
                    let failure = Failure::new(
                        Exit::Connect,
                        format!("cannot handle signals: {}", printable(&error.to_string())),
                    );
                    give_up(&mut first, role, failure)
                },
            )?;
        }
        let mut work = make_work(agreed.chunk_bytes).map_err(|no_work| {
            let (failure, cause) = match (no_work, role) {
                (NoWork::Io(fact), Role::Sender) => (words::source(&fact), Cause::Source(fact)),
                (NoWork::Io(fact), Role::Receiver) => (words::destination(&fact), Cause::Sink(fact)),
                (NoWork::Stopped(number), _) => (Failure::silent(Exit::Signal(number)), Cause::Signal(number)),
            };
            abort(&mut first, failure, cause)
        })?;
        if let (Work::ReceiveFile(sink), Some(size_bytes)) = (&mut work, theirs.size_bytes) {
            sink.announce(size_bytes);
        }
        let (reconnect, size_bytes) = (agreed.reconnect, size_bytes.or(theirs.size_bytes));
        let opened = open(&first.stream, &first.established, agreement, self.transfer, listening, &self.post);
        let opened = opened.map_err(|error| match error {
            error @ OpenError::Lost(_) => NotBegun::Peer(not_opened(&error, &peer)),
            error => give_up(&mut first, role, not_opened(&error, &peer)),
        })?;
        if let Some(shortage) = &opened.shortage {
            self.teller.say(&shortage_words(shortage));
        }
        let FirstLane { stream, established, .. } = first;
        let monitor = self.teller.monitor(&peer, reconnect, size_bytes);
        let channel = (self.post.clone(), self.events.clone());
        let summary = opened
            .run(stream, established, work, self.transfer, channel, monitor)
            .map_err(|error| NotBegun::Here(not_opened(&error, &peer)))?;
        let failure = words::outcome(&summary.outcome, summary.reason.as_deref(), &peer);
        Ok(Ended { summary, failure, last_line: None })
    }
}

impl FirstLane {
    /// The other end, for a person. The end that was connected to (`is_listening`) knows only an address before.
    fn peer(&self, theirs: &Offer, is_listening: bool) -> String {
        if is_listening && !self.is_named && !theirs.host.is_empty() {
            format!("{} ({})", escaped(OsStr::from_bytes(&theirs.host)), self.peer_name)
        } else {
            self.peer_name.clone()
        }
    }
}

/// For the peer the session has begun: without a word it would wait for this end to come back.
fn abort(first: &mut FirstLane, failure: Failure, cause: Cause) -> NotBegun {
    send_last(&mut first.stream, &mut first.established.control, &Frame::Abort(cause));
    NotBegun::Here(failure)
}

/// The same, where it is not what is to be read or written that this end lacks: no path is named.
fn give_up(first: &mut FirstLane, role: Role, failure: Failure) -> NotBegun {
    let fact = plain_fact("".as_ref(), failure.message.as_deref().unwrap_or_default());
    let cause = match role {
        Role::Sender => Cause::Source(fact),
        Role::Receiver => Cause::Sink(fact),
    };
    abort(first, failure, cause)
}

/// Why a session with `peer` cannot begin.
fn not_opened(error: &OpenError, peer: &str) -> Failure {
    match error {
        OpenError::Memory { pool_bytes, error } => {
            let mib = pool_bytes >> 20;
            Failure::new(Exit::Connect, format!("no memory for a pool of {mib} MiB: {}; see --buffer", os(*error)))
        }
        OpenError::Thread(error) => {
            Failure::new(Exit::Connect, format!("cannot start a thread: {error}; raise the limit (ulimit -u)"))
        }
        OpenError::Lost(error) => Failure::new(Exit::Connect, format!("lost the connection to {peer}: {error}")),
        OpenError::Lane(error) => words::not_agreed(error, peer),
    }
}

fn shortage_words(shortage: &MemlockShortage) -> String {
    let MemlockShortage { limit_bytes, usable_bytes, pool_bytes } = *shortage;
    match usable_bytes {
        0 => format!("the limit on locked memory ({} KiB) is too small for RDMA; {MEMLOCK_ADVICE}", limit_bytes >> 10),
        _ => format!(
            "the limit on locked memory lets RDMA use {} MiB of {} MiB; {MEMLOCK_ADVICE}",
            usable_bytes >> 20,
            pool_bytes >> 20
        ),
    }
}

/// RDMA is asked for, and one end has none.
fn lacks_rdma(ours: &Offer, theirs: &Offer, peer: &str) -> Option<Failure> {
    // By name: what an agent says is read elsewhere.
    let here = format!("this host ({})", escaped(OsStr::from_bytes(&ours.host)));
    let lacking = if ours.rdma == RdmaKind::None { here.as_str() } else { peer };
    let is_lacking =
        ours.rdma.min(theirs.rdma) == RdmaKind::None && ours.policy != Policy::Tcp && theirs.policy != Policy::Tcp;
    is_lacking.then(|| without_rdma(lacking))
}

/// Before anybody is bothered: what is asked for can be had at this end.
pub(crate) fn check_transport(transfer: &TransferOptions) -> Result<(), Failure> {
    let lacks = transfer.policy() == Policy::Rdma && rdma::available() == RdmaKind::None;
    if lacks { Err(without_rdma("this host")) } else { Ok(()) }
}

/// `--transport rdma` where there is none. `lacking`: the host, for a person.
fn without_rdma(lacking: &str) -> Failure {
    let message = format!("--transport rdma, but {lacking} has no RDMA device with an address; rddoctor tells more");
    Failure::new(Exit::Connect, message)
}
