//! Runs a session from its authenticated first lane to its end, or reports why it did not begin.

use std::ffi::OsStr;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flume::{Receiver, SendTimeoutError, Sender};
use rd_proto::control::{Cause, Frame, IoFact, Offer, Policy, RdmaKind, Refusal, Role};
use rd_proto::handshake::Established;
use rd_proto::session::{Agreed, Outcome};
use rustix::io::Errno;

use super::close::NOTHING_LARGE;
use super::link::{LastWord, LinkError, send_last};
use super::listen::Registry;
use super::logged::{self, Logged};
use super::open::{offers, open};
use super::{Event, Observer, SessionEvent, Summary, Work};
use crate::fault::escaped;
use crate::fs::plain_fact;
use crate::log::{self, Step};
use crate::options::TransferOptions;

/// How long a signal, or another event from outside, waits for room in the event channel. The running loop takes events without a pause. Before the
/// loop runs, a peer may have filled the channel.
const ROOM_MAX: Duration = Duration::from_secs(1);

/// The authenticated first lane of a session.
pub struct FirstLane {
    /// The connection.
    pub stream: TcpStream,
    /// The result of the handshake.
    pub established: Established,
    /// The other end, as it is named to the user.
    pub peer_name: String,
    /// Whether the user gave that name. Otherwise the name is only an address, and the host name that the peer offers
    /// is added.
    pub is_named: bool,
}

/// One end of a session.
pub struct Session<'a> {
    /// Whether this end sends or receives.
    pub role: Role,
    /// Number of bytes that this end sends, if known.
    pub size_bytes: Option<u64>,
    /// The sessions that the listening end serves. Without it, this end dials.
    pub listening: Option<&'a Arc<Mutex<Registry>>>,
    /// The options of this end.
    pub transfer: &'a TransferOptions,
    /// Where to post events for the session.
    pub post: Sender<Event>,
    /// The receiving end of `post`.
    pub events: Receiver<Event>,
    /// Receives the events of the session.
    pub observer: Box<dyn Observer>,
    /// Whether the session takes the signals of this process. Otherwise the caller posts them as events.
    pub takes_signals: bool,
    /// Whether this end reports facts that both ends know. If both ends report to the same reader, such a fact would
    /// appear twice.
    pub reports_for_both: bool,
}

/// Why a session did not begin. The commands turn this into sentences for the user.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// The link to the peer failed, or the peer sent something invalid.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The offers of the two ends are incompatible.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// RDMA was requested, and one of the two ends has no device.
    #[error("no RDMA device")]
    NoDevice {
        /// The name of this host if it has no device; `None` if the peer has none.
        here: Option<String>,
    },
    /// The source cannot be read.
    #[error("cannot read the source")]
    Source(IoFact),
    /// The destination cannot be written.
    #[error("cannot write the destination")]
    Destination(IoFact),
    /// A signal ended this end.
    #[error("ended by signal {0}")]
    Signal(u8),
    /// There is not enough memory for a pool of this size.
    #[error("cannot allocate a pool of {mib} MiB: {error}")]
    Memory {
        /// Size of the pool in MiB.
        mib: u64,
        /// The system's error.
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
    /// Why it did not begin.
    pub obstacle: Obstacle,
    /// The other end, as it is named to the user.
    pub peer: String,
    /// Whether the peer, or the connection to it, is the cause. A listener may then wait for another peer.
    pub is_peers: bool,
    /// To be dropped after the failure has been reported, because dropping it may take a second.
    pub last_word: Option<LastWord>,
}

/// A session that has ended.
pub struct Ended {
    /// How the session ended.
    pub summary: Summary,
    /// The other end, as it is named to the user.
    pub peer: String,
}

impl Session<'_> {
    /// Exchanges offers, then runs the session to its end. `make_work` gets the agreed chunk size. It may take as long
    /// as the other end's does. It fails with an obstacle of this end alone: the source, the destination, or a signal.
    ///
    /// # Errors
    ///
    /// Why the session did not begin.
    pub fn run(
        mut self,
        first: FirstLane,
        make_work: impl FnOnce(usize) -> Result<Work, Obstacle>,
    ) -> Result<Ended, NotBegun> {
        let about = logged::about(self.role, &first.peer_name);
        log::begin(Step::Session, &about, || "both ends are connected".to_owned());
        self.observer = Logged::before(&about, self.role, self.observer);
        let ended = self.run_as(&about, first, make_work);
        logged::ended(&about, ended.as_ref().map(|ended| &ended.summary));
        ended
    }

    /// Runs the session. `about` is its name in the log.
    fn run_as(
        mut self,
        about: &str,
        mut first: FirstLane,
        make_work: impl FnOnce(usize) -> Result<Work, Obstacle>,
    ) -> Result<Ended, NotBegun> {
        let (role, size_bytes, listening) = (self.role, self.size_bytes, self.listening);
        self.observer.observe(SessionEvent::StepBegins(Step::Connect));
        let theirs_is = |obstacle, peer| NotBegun { obstacle, peer, is_peers: true, last_word: None };
        let FirstLane { stream, established, .. } = &mut first;
        // Read before the connection can break: the system then no longer tells them, and redialling needs them.
        let ends = stream.local_addr().and_then(|own| Ok([own, stream.peer_addr()?]));
        let offers = offers(stream, &mut established.control, role, size_bytes, self.transfer);
        let [ours, theirs] = offers.map_err(|error| theirs_is(error.into(), first.peer_name.clone()))?;
        let peer = first.peer(&theirs, listening.is_some());
        let ends = ends.map_err(|error| theirs_is(LinkError::os("getpeername", &error).into(), peer.clone()))?;
        let agreed = Agreed::new(&ours, &theirs).map_err(|refusal| {
            let no_device = no_device(&ours, &theirs).filter(|_| refusal == Refusal::Transport);
            theirs_is(no_device.unwrap_or(Obstacle::Refused(refusal)), peer.clone())
        })?;
        logged::agreed(about, &agreed, [ours.rdma, theirs.rdma]);
        let ours_is = |(obstacle, last_word)| NotBegun { obstacle, peer: peer.clone(), is_peers: false, last_word };
        if agreed.policy == Policy::PreferRdma && !agreed.try_rdma && self.reports_for_both {
            let host = (ours.rdma != RdmaKind::None).then(|| peer.clone());
            self.observer.observe(SessionEvent::NoDevice { host });
        }
        // From here on there is something to clean up and a peer to tell, and this is the last session of this process.
        if self.takes_signals {
            let post = self.post.clone();
            crate::signals::forward(false, move |signal| post_soon(&post, Event::Signal(signal)))
                .map_err(|error| ours_is(give_up(&mut first, role, Obstacle::Signals(error))))?
                .keep();
        }
        let work = make_work(agreed.chunk_bytes);
        let mut work = work.map_err(|obstacle| ours_is(give_up(&mut first, role, obstacle)))?;
        if let (Work::ReceiveFile(sink), Some(size_bytes)) = (&mut work, theirs.size_bytes) {
            sink.announce(size_bytes);
        }
        let (reconnect, size_bytes) = (agreed.reconnect, size_bytes.or(theirs.size_bytes));
        let ticket = if listening.is_some() { ours.ticket } else { theirs.ticket };
        let opened = open(ends, &first.established, agreed, ticket, self.transfer, listening, &self.post);
        let mut opened = opened.map_err(|error| ours_is(give_up(&mut first, role, error)))?;
        if let Some(shortage) = opened.shortage.take() {
            self.observer.observe(shortage);
        }
        self.observer.observe(SessionEvent::Begun { peer: peer.clone(), reconnect, size_bytes });
        self.observer.observe(SessionEvent::StepEnds(Step::Connect));
        self.observer.observe(SessionEvent::StepBegins(Step::Transfer));
        let (secret, channel) = (first.established.secret.clone(), (self.post, self.events));
        let prepared = opened.prepare(secret, work, self.transfer, channel, self.observer);
        let prepared = prepared.map_err(|error| ours_is(give_up(&mut first, role, error)))?;
        let summary = prepared.run(first.stream, first.established);
        let mut summary = summary.map_err(|error| ours_is((error.into(), None)))?;
        if let (Outcome::LinkLost { unanswered: false }, seconds @ 1..) = (&summary.outcome, reconnect.as_secs()) {
            let silent = LinkError::TimedOut.to_string();
            summary.reason = Some(match summary.reason.filter(|reason| *reason != silent) {
                // Trying for longer would not help.
                Some(reason) if reason == NOTHING_LARGE => reason,
                Some(reason) => format!("{reason}; retried for {seconds} s (--reconnect)"),
                None => format!("no answer for {seconds} s (--reconnect)"),
            });
        }
        Ok(Ended { summary, peer })
    }
}

/// Posts an event from outside the session. Returns false once nothing takes events. If there is no room for too long,
/// the event is dropped: the thread that counts signals must not be held up.
pub(crate) fn post_soon(post: &Sender<Event>, event: Event) -> bool {
    !matches!(post.send_timeout(event, ROOM_MAX), Err(SendTimeoutError::Disconnected(_)))
}

impl FirstLane {
    /// Returns the name of the other end for the user. Before the offers, the end that was connected to
    /// (`is_listening`) knows only an address.
    fn peer(&self, theirs: &Offer, is_listening: bool) -> String {
        if is_listening && !self.is_named && !theirs.host.is_empty() {
            format!("{} ({})", escaped(OsStr::from_bytes(&theirs.host)), self.peer_name)
        } else {
            self.peer_name.clone()
        }
    }
}

/// Gives the session up. For the peer it has begun: without a message the peer would wait for this end to come back.
/// If the cause is neither the source nor the destination, no path is named.
fn give_up(first: &mut FirstLane, role: Role, obstacle: Obstacle) -> (Obstacle, Option<LastWord>) {
    let plain = || plain_fact("".as_ref(), &obstacle.to_string());
    let cause = match (&obstacle, role) {
        (Obstacle::Signal(number), _) => Cause::Signal(*number),
        (Obstacle::Source(fact), _) => Cause::Source(fact.clone()),
        (Obstacle::Destination(fact), _) => Cause::Sink(fact.clone()),
        (_, Role::Sender) => Cause::Source(plain()),
        (_, Role::Receiver) => Cause::Sink(plain()),
    };
    (obstacle, send_last(&mut first.stream, &mut first.established.control, &Frame::Abort(cause)))
}

/// Returns an obstacle if RDMA was requested and one end has no device.
fn no_device(ours: &Offer, theirs: &Offer) -> Option<Obstacle> {
    // This host is given by its name, because what an agent says is read on another host.
    let here = (ours.rdma == RdmaKind::None).then(|| escaped(OsStr::from_bytes(&ours.host)));
    let is_lacking =
        ours.rdma.min(theirs.rdma) == RdmaKind::None && ours.policy != Policy::Tcp && theirs.policy != Policy::Tcp;
    is_lacking.then_some(Obstacle::NoDevice { here })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rd_proto::handshake::{self, Key, SessionId, connect_first};

    use super::*;
    use crate::engine::channel;
    use crate::engine::link::{exchange_offers, rng};
    use crate::fs::close::tests::where_calls_fail;
    use crate::options::Transport;

    struct Quiet;

    impl Observer for Quiet {
        fn observe(&mut self, _: SessionEvent) {}
    }

    /// It would take the link for lost, and wait for this end to come back.
    #[test]
    fn a_peer_is_told_that_no_thread_can_be_started() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (mut theirs, _) = listener.accept().expect("a connection");
        let key = Key::from_random([7; 32]);
        let (state, hello) = connect_first(&key, SessionId::random(&mut rng()), &mut rng());
        let (listening, reply) = handshake::listen(&key, |_| None, &hello, &mut rng()).expect("ours");
        let (established, confirm) = state.finish(&reply).expect("the same key");
        let mut control = listening.finish(&confirm).expect("the same key").control;
        let transfer = &TransferOptions { transport: Transport::Tcp, ..TransferOptions::default() };
        std::thread::scope(|scope| {
            let peer = scope.spawn(move || {
                let offers = offers(&mut theirs, &mut control, Role::Sender, None, transfer);
                let [ours, _] = offers.expect("an offer");
                // Returns the error that fits what comes instead of a second offer.
                exchange_offers(&mut theirs, &mut control, &ours).err()
            });
            let begun = where_calls_fail(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN, || {
                let (post, events) = channel();
                let session = Session {
                    role: Role::Receiver,
                    size_bytes: None,
                    listening: None,
                    transfer,
                    post,
                    events,
                    observer: Box::new(Quiet),
                    takes_signals: false,
                    reports_for_both: false,
                };
                let first = FirstLane { stream, established, peer_name: "peer".to_owned(), is_named: true };
                let work = Work::ReceiveStream(Box::new(|| Err(plain_fact("".as_ref(), "no thread opens it"))));
                session.run(first, |_| Ok(work)).err().map(|it| it.obstacle)
            });
            assert!(matches!(begun, Some(Obstacle::Thread(_))), "{begun:?}");
            assert_eq!(peer.join().expect("no panic"), Some(LinkError::Unexpected), "a frame, but no offer");
        });
    }

    #[test]
    fn a_full_channel_does_not_hold_up_a_signal() {
        let (post, events) = flume::bounded(1);
        assert!(post_soon(&post, Event::Signal(libc::SIGINT)), "there is room");
        let (full, (tell, told)) = (post.clone(), flume::bounded(1));
        std::thread::spawn(move || tell.send(post_soon(&full, Event::Signal(libc::SIGINT))));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true), "the session is still there");
        drop(events);
        assert!(!post_soon(&post, Event::Signal(libc::SIGINT)), "nothing takes signals");
    }
}
