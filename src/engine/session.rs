//! A session from its authenticated first lane to its end, and why it did not begin.

use std::ffi::OsStr;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use flume::{Receiver, Sender};
use rd_proto::control::{Cause, Frame, IoFact, Offer, Policy, RdmaKind, Refusal, Role};
use rd_proto::handshake::Established;
use rd_proto::session::Outcome;
use rustix::io::Errno;

use super::link::{LastWord, LinkError, send_last};
use super::listen::Registry;
use super::logged::{self, Detail, Logged};
use super::open::{Agreement, Disagreement, OpenError, agree, open};
use super::{Event, Observer, SessionEvent, Summary, Work};
use crate::fault::escaped;
use crate::fs::plain_fact;
use crate::log::{self, Step};
use crate::options::TransferOptions;

/// The first lane of a session, authenticated.
pub struct FirstLane {
    /// Its connection.
    pub stream: TcpStream,
    /// What its handshake has come to.
    pub established: Established,
    /// The other end, as a person would name it.
    pub peer_name: String,
    /// The user calls it that; else it is only an address, and its own name is added.
    pub is_named: bool,
}

/// One end of a session.
pub struct Session<'a> {
    /// What it does.
    pub role: Role,
    /// How much it sends, where that is known.
    pub size_bytes: Option<u64>,
    /// The sessions that the listening end serves; without it this end dials.
    pub listening: Option<&'a Arc<Mutex<Registry>>>,
    /// The options of this end.
    pub transfer: &'a TransferOptions,
    /// Where events for the session go, and come from.
    pub post: Sender<Event>,
    /// The other end of `post`.
    pub events: Receiver<Event>,
    /// Sees what happens.
    pub observer: Box<dyn Observer>,
    /// Signals to this process go to the session; else the caller posts them.
    pub takes_signals: bool,
    /// This end reports what both know: where both ends have one reader, it would be there twice.
    pub reports_for_both: bool,
}

/// Why a session did not begin. For a person, the commands make sentences of it.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// The link to the peer, or what the peer sent.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The offers of the two ends do not fit.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// RDMA is asked for, and this end, of that name, or the other has no device.
    #[error("no RDMA device")]
    NoDevice {
        /// The name of this host, if it is the one; else it is the peer.
        here: Option<String>,
    },
    /// What is to be sent cannot be read.
    #[error("cannot read the source")]
    Source(IoFact),
    /// What arrives cannot be written.
    #[error("cannot write the destination")]
    Destination(IoFact),
    /// This end was ended by a signal.
    #[error("ended by signal {0}")]
    Signal(u8),
    /// No memory for a pool of that size.
    #[error("no memory for a pool of {mib} MiB: {error}")]
    Memory {
        /// Its size.
        mib: u64,
        /// What the system answered.
        error: Errno,
    },
    /// The system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}

/// A session that did not begin.
#[derive(Debug)]
pub struct NotBegun {
    /// Why.
    pub obstacle: Obstacle,
    /// The other end, as a person would name it.
    pub peer: String,
    /// It is the peer, or the connection to it: a listener may wait for another.
    pub is_peers: bool,
    /// To be dropped after the failure has been reported: dropping it may take a second.
    pub last_word: Option<LastWord>,
}

/// Why there is nothing to move.
pub enum NoWork {
    /// The source or sink cannot be.
    Io(IoFact),
    /// This end was ended by a signal.
    Signal(u8),
}

impl From<IoFact> for NoWork {
    fn from(fact: IoFact) -> Self {
        Self::Io(fact)
    }
}

/// A session that has ended.
pub struct Ended {
    /// What it came to.
    pub summary: Summary,
    /// The other end, as a person would name it.
    pub peer: String,
}

impl Session<'_> {
    /// Exchanges offers, then runs the session to its end. `make_work` is given the agreed chunk size; it may take as long
    /// as the other end's.
    ///
    /// # Errors
    ///
    /// Why it did not begin.
    pub fn run(
        mut self,
        first: FirstLane,
        make_work: impl FnOnce(usize) -> Result<Work, NoWork>,
    ) -> Result<Ended, NotBegun> {
        let about = logged::about(self.role, &first.peer_name);
        log::begin(Step::Session, &about, || "the ends have met".to_owned());
        self.observer = Logged::before(&about, self.role, self.observer);
        let ended = self.run_as(&about, first, make_work);
        logged::ended(&about, ended.as_ref().map(|ended| &ended.summary));
        ended
    }

    /// `about`: as the log names it.
    fn run_as(
        mut self,
        about: &str,
        mut first: FirstLane,
        make_work: impl FnOnce(usize) -> Result<Work, NoWork>,
    ) -> Result<Ended, NotBegun> {
        let (role, size_bytes, listening) = (self.role, self.size_bytes, self.listening);
        self.observer.observe(Detail::Begin(Step::Connect).into());
        let FirstLane { stream, established, .. } = &mut first;
        let agreement = match agree(stream, &mut established.control, role, size_bytes, self.transfer) {
            Ok(agreement) => agreement,
            Err(Disagreement::Link(error)) => {
                return Err(NotBegun {
                    obstacle: error.into(),
                    peer: first.peer_name,
                    is_peers: true,
                    last_word: None,
                });
            }
            Err(Disagreement::Refused(refusal, offers)) => {
                let [ours, theirs] = *offers;
                let no_device = no_device(&ours, &theirs).filter(|_| refusal == Refusal::Transport);
                let obstacle = no_device.unwrap_or(Obstacle::Refused(refusal));
                return Err(NotBegun {
                    obstacle,
                    peer: first.peer(&theirs, listening.is_some()),
                    is_peers: true,
                    last_word: None,
                });
            }
        };
        let Agreement { ours, theirs, agreed } = &agreement;
        let peer = first.peer(theirs, listening.is_some());
        let [buffers, _] = self.transfer.buffers(agreed.chunk_bytes, None);
        logged::agreed(about, agreed, buffers, [ours.rdma, theirs.rdma]);
        let ours_is = |(obstacle, last_word)| NotBegun { obstacle, peer: peer.clone(), is_peers: false, last_word };
        if agreed.policy == Policy::PreferRdma && !agreed.try_rdma && self.reports_for_both {
            let host = (ours.rdma != RdmaKind::None).then(|| peer.clone());
            self.observer.observe(SessionEvent::NoDevice { host });
        }
        // From here on there is something to clean up and a peer to tell, and no session of this process comes after this one.
        if self.takes_signals {
            let post = self.post.clone();
            crate::signals::forward(false, move |signal| post.send(Event::Signal(signal)).is_ok())
                .map_err(|error| ours_is(give_up(&mut first, role, Obstacle::Signals(error))))?
                .keep();
        }
        let mut work = make_work(agreed.chunk_bytes).map_err(|no_work| {
            let (obstacle, cause) = match (no_work, role) {
                (NoWork::Io(fact), Role::Sender) => (Obstacle::Source(fact.clone()), Cause::Source(fact)),
                (NoWork::Io(fact), Role::Receiver) => (Obstacle::Destination(fact.clone()), Cause::Sink(fact)),
                (NoWork::Signal(number), _) => (Obstacle::Signal(number), Cause::Signal(number)),
            };
            ours_is(abort(&mut first, obstacle, cause))
        })?;
        if let (Work::ReceiveFile(sink), Some(size_bytes)) = (&mut work, theirs.size_bytes) {
            sink.announce(size_bytes);
        }
        let (reconnect, size_bytes) = (agreed.reconnect, size_bytes.or(theirs.size_bytes));
        let opened = open(&first.stream, &first.established, agreement, self.transfer, listening, &self.post);
        let opened = opened.map_err(|error| match error {
            OpenError::Lost(_) => NotBegun { is_peers: true, ..ours_is((error.into(), None)) },
            error => ours_is(give_up(&mut first, role, error.into())),
        })?;
        if let Some(short) = &opened.shortage {
            let pool_mib = (short.usable_bytes > 0).then_some([short.usable_bytes >> 20, short.pool_bytes >> 20]);
            self.observer.observe(SessionEvent::LockedMemory { limit_bytes: short.limit_bytes, pool_mib });
        }
        self.observer.observe(SessionEvent::Begun { peer: peer.clone(), reconnect, size_bytes });
        self.observer.observe(Detail::End(Step::Connect).into());
        self.observer.observe(Detail::Begin(Step::Transfer).into());
        let FirstLane { stream, established, .. } = first;
        let channel = (self.post, self.events);
        let summary = opened.run(stream, established, work, self.transfer, channel, self.observer);
        let mut summary = summary.map_err(|error| ours_is((error.into(), None)))?;
        if let (Outcome::LinkLost { unanswered: false }, seconds @ 1..) = (&summary.outcome, reconnect.as_secs()) {
            let silent = LinkError::TimedOut.to_string();
            summary.reason = Some(match summary.reason.filter(|reason| *reason != silent) {
                Some(reason) => format!("{reason}; tried again for {seconds} s (--reconnect)"),
                None => format!("no answer for {seconds} s (--reconnect)"),
            });
        }
        Ok(Ended { summary, peer })
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

impl From<OpenError> for Obstacle {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Memory { pool_bytes, error } => Self::Memory { mib: pool_bytes >> 20, error },
            OpenError::Thread(error) => Self::Thread(error),
            OpenError::Lost(error) => Self::Link(LinkError::os("getpeername", &error)),
            OpenError::Lane(error) => Self::Link(error),
        }
    }
}

/// For the peer the session has begun: without a word it would wait for this end to come back.
fn abort(first: &mut FirstLane, obstacle: Obstacle, cause: Cause) -> (Obstacle, Option<LastWord>) {
    (obstacle, send_last(&mut first.stream, &mut first.established.control, &Frame::Abort(cause)))
}

/// The same, where it is not what is to be read or written that this end lacks: no path is named.
fn give_up(first: &mut FirstLane, role: Role, obstacle: Obstacle) -> (Obstacle, Option<LastWord>) {
    let fact = plain_fact("".as_ref(), &obstacle.to_string());
    let cause = match role {
        Role::Sender => Cause::Source(fact),
        Role::Receiver => Cause::Sink(fact),
    };
    abort(first, obstacle, cause)
}

/// RDMA is asked for, and one end has none.
fn no_device(ours: &Offer, theirs: &Offer) -> Option<Obstacle> {
    // By name: what an agent says is read elsewhere.
    let here = (ours.rdma == RdmaKind::None).then(|| escaped(OsStr::from_bytes(&ours.host)));
    let is_lacking =
        ours.rdma.min(theirs.rdma) == RdmaKind::None && ours.policy != Policy::Tcp && theirs.policy != Policy::Tcp;
    is_lacking.then_some(Obstacle::NoDevice { here })
}
