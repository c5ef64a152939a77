//! What all commands that move data share: from an authenticated first lane to the end of the session.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::{Receiver, Sender};
use rd_proto::control::{Cause, Endpoint, Frame, IoFact, Offer, Policy, RdmaKind, Refusal, Role};
use rd_proto::handshake::{ControlChannel, Established, LaneId, SessionId, SessionSecret, connect_join};
use rd_proto::session::{Agreed, RDMA_LANE_FIRST};

use super::aside::Aside;
use super::options::ReportOptions;
use super::report::{Reporter, Terminal};
use super::words;
use crate::engine::link::{
    AUTHENTICATE_MAX, LinkError, authenticate, connect, exchange_offers, rng, send_last, tcp_lane,
};
use crate::engine::listen::Registry;
use crate::engine::pace::Pace;
use crate::engine::rdma;
use crate::engine::{Dialer, Event, Monitor, Summary, Transfer, Work, announce, run};
use crate::fault::{Exit, Failure, escaped, os, printable};
use crate::fs::plain_fact;
use crate::options::TransferOptions;
use crate::transport::rdma::{Adapters, RegisterError};
use crate::transport::{Buffer, Lane, Pool, Report, unmapped};

/// The smallest pool that RDMA is worth having with, in bytes.
const POOL_BYTES_MIN: u64 = 4 << 20;

/// Locked memory left for what lanes register beside the pool, in bytes.
const MEMLOCK_MARGIN_BYTES: u64 = 1 << 20;

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
    /// This end's offer, for the peer at the other end of `stream`.
    fn offer(&self, role: Role, stream: &TcpStream, size_bytes: Option<u64>) -> Offer {
        let pace = Pace::new(self.transfer.bwlimit.filter(|_| role == Role::Sender));
        Offer {
            role,
            policy: self.transfer.policy(),
            encrypt: self.transfer.encrypt(),
            peer_is_local: is_to_this_host(stream),
            lanes: self.transfer.lanes(),
            chunk_bytes: self.transfer.chunk_bytes(|wanted| pace.part_bytes(wanted)) as u32,
            reconnect_s: self.transfer.reconnect,
            size_bytes,
            rdma: if self.transfer.policy() == Policy::Tcp { RdmaKind::None } else { rdma::available() },
            ticket: SessionId::random(&mut rng()).0,
            host: rustix::system::uname().nodename().to_bytes().to_vec(),
        }
    }

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
        let ours = self.offer(role, &first.stream, size_bytes);
        let theirs = exchange_offers(&mut first.stream, &mut first.established.control, &ours)
            .map_err(|error| NotBegun::Peer(words::not_agreed(&error, &first.peer_name)))?;
        // The end that was connected to knows only an address so far.
        let peer = match listening {
            Some(_) if !first.is_named && !theirs.host.is_empty() => {
                format!("{} ({})", escaped(OsStr::from_bytes(&theirs.host)), first.peer_name)
            }
            _ => first.peer_name.clone(),
        };
        let agreed = Agreed::new(&ours, &theirs).map_err(|refusal| {
            let failure = words::refused(refusal, &peer);
            NotBegun::Peer(
                lacks_rdma(&ours, &theirs, &peer).filter(|_| refusal == Refusal::Transport).unwrap_or(failure),
            )
        })?;
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
        let Mapped { pool, buffers, adapters } =
            self.pool(&agreed).map_err(|failure| give_up(&mut first, role, failure))?;
        let Established { session, lane, .. } = first.established;
        let secret = first.established.secret.clone();
        let mut dialer = None;
        let mut rdma_listening = None;
        match (listening, adapters) {
            (None, adapters) => {
                let address = first.stream.peer_addr().map_err(|error| {
                    NotBegun::Peer(Failure::new(Exit::Connect, format!("lost the connection to {peer}: {error}")))
                })?;
                let rdma = adapters.map(|adapters| {
                    rdma::Dialing::new(adapters, agreed.policy, theirs.ticket, session, secret.clone())
                });
                dialer = Some(Arc::new(Dialing { address, session, secret: secret.clone(), rdma }) as Arc<dyn Dialer>);
            }
            (Some(registry), Some(adapters)) => {
                let service = rdma::Service {
                    adapters,
                    policy: agreed.policy,
                    ports: self.transfer.port_range.clone(),
                    ticket: ours.ticket,
                    session,
                    registry: Arc::clone(registry),
                    post: self.post.clone(),
                };
                let started = service.start().map_err(|error| without_thread(&error));
                rdma_listening = Some(started.map_err(|failure| give_up(&mut first, role, failure))?);
            }
            // The other end waits to be told where to dial.
            (Some(_), None) => drop(self.post.send(Event::Endpoints(Vec::new()))),
        }
        let FirstLane { stream, established: Established { control, .. }, .. } = first;
        announce(&self.post, lane, |report| tcp_lane(stream, control, report))
            .map_err(|error| NotBegun::Here(words::not_agreed(&error, &peer)))?;
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
            compress: self.transfer.compress,
            bwlimit: self.transfer.bwlimit,
            monitor: self.teller.monitor(&peer, reconnect, size_bytes),
        };
        let summary = run(transfer, work).map_err(|error| NotBegun::Here(without_thread(&error)))?;
        drop(rdma_listening);
        let failure = words::outcome(&summary.outcome, summary.reason.as_deref(), &peer);
        Ok(Ended { summary, failure, last_line: None })
    }

    /// Maps the pool, and registers it where RDMA is to be tried: a smaller one where the limit on locked memory asks
    /// for that, none where too little would be left.
    fn pool(&self, agreed: &Agreed) -> Result<Mapped, Failure> {
        let wanted = self.transfer.buffers(agreed.chunk_bytes);
        if agreed.try_rdma
            && let Some(mapped) = self.registered_pool(agreed, wanted)?
        {
            return Ok(mapped);
        }
        let (pool, buffers) = map_pool(agreed, wanted)?;
        Ok(Mapped { pool, buffers, adapters: None })
    }

    fn registered_pool(&self, agreed: &Agreed, wanted: u32) -> Result<Option<Mapped>, Failure> {
        let mut count = wanted;
        loop {
            let (pool, buffers) = map_pool(agreed, count)?;
            let adapters = Arc::new(Adapters::new(Arc::clone(&pool)));
            let registered = rdma::candidates(agreed.policy).unwrap_or_default().iter().try_for_each(|endpoint| {
                match adapters.register(endpoint) {
                    // Its lanes will fail, and others be tried.
                    Err(RegisterError::DeviceGone(_) | RegisterError::Verbs(_)) | Ok(()) => Ok(()),
                    Err(RegisterError::MemoryLock { limit_bytes, .. }) => Err(limit_bytes),
                }
            });
            let Err(limit_bytes) = registered else {
                if count < wanted {
                    self.teller.say(&format!(
                        "the limit on locked memory lets RDMA use {} MiB of {} MiB; {MEMLOCK_ADVICE}",
                        pool_mib(count, agreed),
                        pool_mib(wanted, agreed)
                    ));
                }
                return Ok(Some(Mapped { pool, buffers, adapters: Some(adapters) }));
            };
            // Lanes register some memory of their own.
            let room = limit_bytes.saturating_sub(MEMLOCK_MARGIN_BYTES) / agreed.chunk_bytes as u64;
            count = if room < u64::from(count) { room as u32 } else { count / 2 };
            if count < 2 || u64::from(count) * (agreed.chunk_bytes as u64) < POOL_BYTES_MIN {
                self.teller.say(&format!(
                    "the limit on locked memory ({} KiB) is too small for RDMA; {MEMLOCK_ADVICE}",
                    limit_bytes >> 10
                ));
                return Ok(None);
            }
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

fn without_thread(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Connect, format!("cannot start a thread: {error}; raise the limit (ulimit -u)"))
}

/// A pool, its buffers, and what registered it.
struct Mapped {
    pool: Arc<Pool>,
    buffers: Vec<Buffer>,
    adapters: Option<Arc<Adapters>>,
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

fn map_pool(agreed: &Agreed, count: u32) -> Result<(Arc<Pool>, Vec<Buffer>), Failure> {
    let buffer_bytes = NonZeroUsize::new(agreed.chunk_bytes).expect("at least a page");
    Pool::new(count, buffer_bytes).map_err(|error| {
        let mib = pool_mib(count, agreed);
        Failure::new(Exit::Connect, format!("no memory for a pool of {mib} MiB: {}; see --buffer", os(error)))
    })
}

fn pool_mib(count: u32, agreed: &Agreed) -> u64 {
    (u64::from(count) * agreed.chunk_bytes as u64) >> 20
}

/// Dials the lanes of a session: TCP at the address that its first lane was made to, RDMA where the peer says.
struct Dialing {
    address: SocketAddr,
    session: SessionId,
    secret: SessionSecret,
    rdma: Option<rdma::Dialing>,
}

impl Dialer for Dialing {
    fn dial(&self, lane: LaneId, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        if lane.index >= RDMA_LANE_FIRST {
            let none = || LinkError::Transport("too little locked memory".to_owned());
            return self.rdma.as_ref().ok_or_else(none)?.dial(lane, report);
        }
        let deadline = Instant::now() + AUTHENTICATE_MAX;
        let mut stream = connect(self.address, deadline)?;
        let hello = connect_join(&self.secret, self.session, lane, &mut rng());
        let established = authenticate(&mut stream, hello, deadline)?;
        tcp_lane(stream, established.control, report)
    }

    fn handle_endpoints(&self, endpoints: &[Endpoint]) {
        if let Some(rdma) = &self.rdma {
            rdma.handle_endpoints(endpoints);
        }
    }
}

/// Whether the other end of a connection is this host: then the system gives both ends the same address, or a loopback
/// one. (Whether an address can be bound would not tell: `ip_nonlocal_bind` allows any.)
fn is_to_this_host(stream: &TcpStream) -> bool {
    let (Ok(here), Ok(there)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let (here, there) = (unmapped(here).ip(), unmapped(there).ip());
    here == there || (here.is_loopback() && there.is_loopback())
}
