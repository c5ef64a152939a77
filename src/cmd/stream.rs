//! What `rdsend` and `rdrecv` share: from an authenticated first lane to the end of the session.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use rd_proto::control::{Offer, Role};
use rd_proto::handshake::{ControlChannel, Established, LaneId, SessionId, SessionSecret, connect_join};
use rd_proto::session::{Agreed, RDMA_LANE_FIRST};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::exit::{Exit, Failure};
use super::options::{ReportOptions, TransferOptions};
use super::report::{self, Terminal};
use crate::engine::link::{AUTHENTICATE_MAX, LinkError, authenticate, connect, exchange_offers, rng};
use crate::engine::pace::Pace;
use crate::engine::{Dialer, Event, Transfer, Work, announce, run};
use crate::transport::tcp::TcpLane;
use crate::transport::{Lane, Pool, Report, unmapped};

/// The first lane of a session, authenticated.
pub(super) struct FirstLane {
    pub(super) stream: TcpStream,
    pub(super) established: Established,
    /// The other end, as a person would name it.
    pub(super) peer_name: String,
}

/// What a stream command moves data between, and how it tells.
pub(super) struct Session<'a> {
    pub(super) name: &'static str,
    pub(super) transfer: &'a TransferOptions,
    pub(super) report: &'a ReportOptions,
    pub(super) post: Sender<Event>,
    pub(super) events: Receiver<Event>,
    /// A progress bar would not get in the way of the data.
    pub(super) may_draw: bool,
}

/// Why a session did not begin.
pub(super) enum NotBegun {
    /// The peer, or the connection to it: a listener may wait for another.
    Peer(Failure),
    /// This end.
    Here(Failure),
}

impl Session<'_> {
    /// This end's offer, for the peer at the other end of `stream`.
    fn offer(&self, role: Role, stream: &TcpStream, size_bytes: Option<u64>) -> Offer {
        let pace = Pace::new(self.transfer.bwlimit);
        Offer {
            role,
            policy: self.transfer.policy(),
            encrypt: self.transfer.encrypt(),
            peer_is_local: stream.peer_addr().is_ok_and(is_own_address),
            lanes: self.transfer.lanes(),
            chunk_bytes: self.transfer.chunk_bytes(|wanted| pace.part_bytes(wanted)) as u32,
            reconnect_s: self.transfer.reconnect,
            size_bytes,
            rdma: false,
            ticket: [0; 16],
            host: rustix::system::uname().nodename().to_bytes().to_vec(),
            endpoints: Vec::new(),
        }
    }

    /// Exchanges offers, then runs the session to its end. `make_work` is given the agreed chunk size.
    pub(super) fn run(
        &self,
        mut first: FirstLane,
        role: Role,
        size_bytes: Option<u64>,
        connector: bool,
        make_work: impl FnOnce(usize) -> Result<Work, Failure>,
    ) -> Result<Result<(), Failure>, NotBegun> {
        let peer = first.peer_name.clone();
        let ours = self.offer(role, &first.stream, size_bytes);
        let theirs = exchange_offers(&mut first.stream, &mut first.established.control, &ours)
            .map_err(|error| NotBegun::Peer(Failure::link(&error, &peer)))?;
        let agreed = Agreed::new(&ours, &theirs).map_err(|refusal| NotBegun::Peer(Failure::refused(refusal, &peer)))?;
        let here = |failure| NotBegun::Here(failure);
        let work = make_work(agreed.chunk_bytes).map_err(here)?;
        let system =
            |what: &str, error: std::io::Error| NotBegun::Here(Failure::new(Exit::Connect, format!("{what}: {error}")));
        let buffer_bytes = NonZeroUsize::new(agreed.chunk_bytes).expect("at least a page");
        let (pool, buffers) = Pool::new(self.transfer.buffers(agreed.chunk_bytes), buffer_bytes)
            .map_err(|error| system("no memory for --buffer", error.into()))?;
        let FirstLane { stream, established, .. } = first;
        let Established { session, lane, secret, control, .. } = established;
        let dialer = connector.then(|| -> Arc<dyn Dialer> {
            let address = stream.peer_addr().expect("a connected socket has a peer");
            Arc::new(TcpDialer { address, session, secret: secret.clone() })
        });
        forward_signals(self.post.clone()).map_err(|error| system("cannot handle signals", error))?;
        announce(&self.post, lane, |report| tcp_lane(stream, control, report))
            .map_err(|error| NotBegun::Here(Failure::link(&error, &peer)))?;
        let size_bytes = size_bytes.or(theirs.size_bytes);
        let reconnect = agreed.reconnect;
        let transfer = Transfer {
            agreed,
            secret,
            buffers,
            pool,
            dialer,
            events: self.events.clone(),
            post: self.post.clone(),
            compress: self.transfer.compress(),
            bwlimit: self.transfer.bwlimit,
            monitor: Box::new(Terminal::new(self.name, &peer, self.report, reconnect, size_bytes, self.may_draw)),
        };
        let summary = run(transfer, work).map_err(|error| system("cannot start a thread", error))?;
        let failure = Failure::outcome(&summary.outcome, &peer);
        if let Err(unreported) = report::finish(self.report, &summary, failure.as_ref()) {
            return Ok(Err(failure.unwrap_or(unreported)));
        }
        Ok(failure.map_or(Ok(()), Err))
    }
}

/// Dials the lanes of a session at the address that its first lane was made to.
struct TcpDialer {
    address: SocketAddr,
    session: SessionId,
    secret: SessionSecret,
}

impl Dialer for TcpDialer {
    fn dial(&self, lane: LaneId, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        if lane.index >= RDMA_LANE_FIRST {
            return Err(LinkError::Transport("no RDMA device".to_owned()));
        }
        let deadline = Instant::now() + AUTHENTICATE_MAX;
        let mut stream = connect(self.address, deadline)?;
        let hello = connect_join(&self.secret, self.session, lane, &mut rng());
        let established = authenticate(&mut stream, hello, deadline)?;
        tcp_lane(stream, established.control, report)
    }
}

fn tcp_lane(
    stream: TcpStream,
    control: ControlChannel,
    report: Report,
) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
    let lane = TcpLane::start(stream, report).map_err(|error| LinkError::os("lane", &error))?;
    Ok((Box::new(lane), control))
}

/// Turns the signals that end or stop a process into events, from now on.
fn forward_signals(post: Sender<Event>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGTSTP])?;
    std::thread::Builder::new().name("signals".to_owned()).stack_size(64 << 10).spawn(move || {
        for signal in signals.forever() {
            if post.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Whether an address is one of this host's own: only such an address can be bound.
fn is_own_address(address: SocketAddr) -> bool {
    let ip = unmapped(address).ip();
    ip.is_loopback() || UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}
