//! Opening a session on its authenticated first lane: the offers, the pool, and dialling or listening for further
//! lanes.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use flume::{Receiver as Queue, Sender as Post};
use rd_proto::control::{self, Endpoint, Offer, Policy, RailAddress, RdmaKind, Refusal, Role};
use rd_proto::handshake::{ControlChannel, Established, LaneId, SessionId, SessionSecret, connect_join};
use rd_proto::session::{Agreed, RDMA_LANE_FIRST};
use rustix::io::Errno;

use super::link::{AUTHENTICATE_MAX, LinkError, authenticate, connect, connect_by, exchange_offers, rng, tcp_lane};
use super::listen::Registry;
use super::pace::Pace;
use super::rails::Rail;
use super::{Dialer, Event, Observer, Summary, Transfer, Work, announce, rails, rdma, run};
use crate::fs::direct::write::available_bytes;
use crate::options::{RailChoice, TransferOptions};
use crate::transport::rdma::{Adapters, CONNECTION_LOCKED_BYTES, RegisterError};
use crate::transport::{Buffer, Lane, Pool, Report, tcp, unmapped};

/// Minimum size of a pool in bytes that makes RDMA worthwhile.
const POOL_BYTES_MIN: u64 = 4 << 20;

/// Minimum amount of locked memory, in bytes, that is left for what lanes register beside the pool.
const MEMLOCK_MARGIN_BYTES: u64 = 1 << 20;

/// Both ends' offers, and the agreement that follows from them.
pub struct Agreement {
    /// What this end offered.
    pub ours: Offer,
    /// What the peer offered.
    pub theirs: Offer,
    /// The agreement.
    pub agreed: Agreed,
}

/// Why the two ends do not agree.
pub enum Disagreement {
    /// The offers were not exchanged.
    Link(LinkError),
    /// The offers are incompatible.
    Refused(Refusal, Box<[Offer; 2]>),
}

/// Exchanges offers on a session's first lane.
///
/// # Errors
///
/// [`Disagreement`].
pub fn agree(
    stream: &mut TcpStream,
    control: &mut ControlChannel,
    role: Role,
    size_bytes: Option<u64>,
    options: &TransferOptions,
) -> Result<Agreement, Disagreement> {
    let pace = Pace::new(options.bwlimit.filter(|_| role == Role::Sender));
    let is_local = stream.local_addr().and_then(|local| Ok(tcp::is_within_host(local, stream.peer_addr()?)));
    let ours = Offer {
        role,
        policy: options.transport.policy(),
        encrypt: options.encrypt(),
        peer_is_local: is_local.unwrap_or(false),
        lanes: options.lanes(),
        chunk_bytes: options.chunk_bytes(|wanted| pace.part_bytes(wanted)) as u32,
        reconnect_s: options.reconnect,
        size_bytes,
        rdma: if options.transport.policy() == Policy::Tcp { RdmaKind::None } else { rdma::available() },
        ticket: SessionId::random(&mut rng()).0,
        host: rustix::system::uname().nodename().to_bytes().to_vec(),
    };
    let theirs = exchange_offers(stream, control, &ours).map_err(Disagreement::Link)?;
    match Agreed::new(&ours, &theirs) {
        Ok(agreed) => Ok(Agreement { ours, theirs, agreed }),
        Err(refusal) => Err(Disagreement::Refused(refusal, Box::new([ours, theirs]))),
    }
}

/// Why a session cannot begin at this end.
pub enum OpenError {
    /// There is not enough memory for a pool of this size.
    Memory {
        /// Size of the pool in bytes.
        pool_bytes: u64,
        /// The system's error.
        error: Errno,
    },
    /// The system refuses a thread.
    Thread(std::io::Error),
    /// The first lane has broken.
    Lost(std::io::Error),
    /// The first lane could not be made.
    Lane(LinkError),
}

/// The limit on locked memory leaves RDMA less than was requested.
pub struct MemlockShortage {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Number of bytes of `pool_bytes` that RDMA uses; 0 if RDMA is not used.
    pub usable_bytes: u64,
    /// Requested size of the pool in bytes.
    pub pool_bytes: u64,
}

/// A session that is about to begin: its pool is mapped, and further lanes can be made.
pub struct Opened {
    agreed: Agreed,
    pool: Arc<Pool>,
    buffers: Vec<Buffer>,
    first: u32,
    dialer: Option<Arc<dyn Dialer>>,
    _listening: Option<rdma::Listening>,
    /// Set if the pool is smaller than requested, or is not used for RDMA.
    pub shortage: Option<MemlockShortage>,
}

/// Maps the pool, and starts dialling or listening for further lanes. `listening` holds the sessions that the listening
/// end serves. Without it, this end dials.
///
/// # Errors
///
/// [`OpenError`]. The peer waits on the first lane to be told.
pub fn open(
    stream: &TcpStream,
    established: &Established,
    agreement: Agreement,
    options: &TransferOptions,
    listening: Option<&Arc<Mutex<Registry>>>,
    post: &Post<Event>,
) -> Result<Opened, OpenError> {
    let Agreement { ours, theirs, agreed } = agreement;
    let Mapped { pool, buffers, first, adapters, shortage } =
        map(&agreed, options.buffers(agreed.chunk_bytes, available_bytes(Path::new("/"))))?;
    let Established { session, secret, .. } = established;
    let mut opened = Opened { agreed, pool, buffers, first, dialer: None, _listening: None, shortage };
    match (listening, adapters) {
        (None, adapters) => {
            let own = stream.local_addr().map_err(OpenError::Lost)?;
            let address = stream.peer_addr().map_err(OpenError::Lost)?;
            let reached = unmapped(address).ip();
            let rdma = adapters.map(|adapters| {
                rdma::Dialing::new(adapters, agreed.policy, theirs.ticket, *session, secret.clone(), reached)
            });
            opened.dialer = Some(Arc::new(Dialing {
                own,
                address,
                session: *session,
                secret: secret.clone(),
                rdma,
                rails: [
                    // Data in clear stays on the network that the user chose.
                    PathRails::new(match &options.rails {
                        RailChoice::Auto if !agreed.seal_tcp => RailChoice::Count(1),
                        choice => choice.clone(),
                    }),
                    // RDMA finds its devices itself, whatever network the user named.
                    PathRails::new(options.rails.clone()),
                ],
            }));
        }
        (Some(registry), Some(adapters)) => {
            let service = rdma::Service {
                adapters,
                policy: agreed.policy,
                ports: options.port_range.clone(),
                ticket: ours.ticket,
                session: *session,
                registry: Arc::clone(registry),
                post: post.clone(),
            };
            opened._listening = Some(service.start().map_err(OpenError::Thread)?);
        }
        // The other end waits for a list of addresses to dial.
        (Some(_), None) => drop(post.send(Event::Endpoints(Vec::new()))),
    }
    if listening.is_some()
        && let addresses = rails::own(&options.rails, stream.local_addr().map_err(OpenError::Lost)?)
        && !addresses.is_empty()
    {
        let _ = post.send(Event::Addresses(addresses));
    }
    Ok(opened)
}

impl Opened {
    /// Turns the first connection into a lane, and runs the session to its end.
    ///
    /// # Errors
    ///
    /// [`OpenError::Lane`] and [`OpenError::Thread`]. Anything that happens to the transfer itself is in the summary.
    pub fn run(
        self,
        stream: TcpStream,
        established: Established,
        work: Work,
        options: &TransferOptions,
        (post, events): (Post<Event>, Queue<Event>),
        observer: Box<dyn Observer>,
    ) -> Result<Summary, OpenError> {
        let Established { lane, secret, control, .. } = established;
        announce(&post, lane, |report| tcp_lane(stream, control, report)).map_err(OpenError::Lane)?;
        let Self { agreed, pool, buffers, first, dialer, _listening, .. } = self;
        let (compress, bwlimit) = (options.compress, options.bwlimit);
        let shares_memory = options.shares_memory();
        let transfer = Transfer {
            agreed,
            secret,
            buffers,
            first,
            shares_memory,
            pool,
            dialer,
            events,
            post,
            compress,
            bwlimit,
            observer,
        };
        run(transfer, work).map_err(OpenError::Thread)
    }
}

/// A pool, its buffers, and the adapters that have registered it.
struct Mapped {
    pool: Arc<Pool>,
    buffers: Vec<Buffer>,
    /// Number of buffers that may be used at first.
    first: u32,
    adapters: Option<Arc<Adapters>>,
    shortage: Option<MemlockShortage>,
}

/// Maps a pool. Without RDMA the pool has as many buffers as a long line may need (`most`), because unused pages cost
/// nothing. If RDMA is to be tried, the pool has `first` buffers and is registered. If the limit on locked memory
/// requires it, the pool is made smaller; if too little would be left, nothing is registered.
fn map(agreed: &Agreed, [first, most]: [u32; 2]) -> Result<Mapped, OpenError> {
    let buffer_bytes = NonZeroUsize::new(agreed.chunk_bytes).expect("at least a page");
    let bytes = |count: u32| u64::from(count) * agreed.chunk_bytes as u64;
    let mut shortage = None;
    if !agreed.try_rdma
        && let Ok((pool, buffers)) = Pool::new(most, buffer_bytes)
    {
        return Ok(Mapped { pool, buffers, first, adapters: None, shortage });
    }
    let (wanted, mut count) = (first, first);
    loop {
        let (pool, buffers) =
            Pool::new(count, buffer_bytes).map_err(|error| OpenError::Memory { pool_bytes: bytes(count), error })?;
        if !agreed.try_rdma || shortage.as_ref().is_some_and(|short: &MemlockShortage| short.usable_bytes == 0) {
            return Ok(Mapped { pool, buffers, first: count, adapters: None, shortage });
        }
        let adapters = Arc::new(Adapters::new(Arc::clone(&pool)));
        let registered = rdma::candidates(agreed.policy).unwrap_or_default().iter().try_for_each(|endpoint| {
            match adapters.register(endpoint) {
                // Lanes over this endpoint will fail, and other endpoints will be tried.
                Err(RegisterError::DeviceGone(_) | RegisterError::Verbs(_)) | Ok(()) => Ok(()),
                Err(RegisterError::MemoryLock { limit_bytes, .. }) => Err(limit_bytes),
            }
        });
        let Err(limit_bytes) = registered else {
            return Ok(Mapped { pool, buffers, first: count, adapters: Some(adapters), shortage });
        };
        // Lanes register some memory of their own. Fewer lanes are better than no pool.
        let lanes_bytes = u64::from(agreed.rdma_lanes) * CONNECTION_LOCKED_BYTES as u64;
        let lanes_bytes = lanes_bytes.min(limit_bytes.saturating_sub(POOL_BYTES_MIN)).max(MEMLOCK_MARGIN_BYTES);
        let room = limit_bytes.saturating_sub(lanes_bytes) / agreed.chunk_bytes as u64;
        count = if room < u64::from(count) { room as u32 } else { count / 2 };
        let mut usable_bytes = bytes(count);
        if count < 2 || usable_bytes < POOL_BYTES_MIN {
            (count, usable_bytes) = (wanted, 0);
        }
        shortage = Some(MemlockShortage { limit_bytes, usable_bytes, pool_bytes: bytes(wanted) });
    }
}

/// Dials the lanes of a session: TCP lanes to the address of the first lane, RDMA lanes to the addresses that the peer
/// announces. Both use other rails as well if there are any.
struct Dialing {
    own: SocketAddr,
    address: SocketAddr,
    session: SessionId,
    secret: SessionSecret,
    rdma: Option<rdma::Dialing>,
    /// Indexed by path.
    rails: [PathRails; 2],
}

/// The rails of one path.
struct PathRails {
    choice: RailChoice,
    /// All rails, if there are several.
    found: OnceLock<Vec<Rail>>,
}

impl PathRails {
    fn new(choice: RailChoice) -> Self {
        Self { choice, found: OnceLock::new() }
    }
}

impl Dialing {
    fn rail(&self, path: control::Path, number: u8) -> Option<&Rail> {
        self.rails[path as usize].found.get()?.get(usize::from(number))
    }
}

impl Dialer for Dialing {
    fn dial(&self, lane: LaneId, rail: u8, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        if lane.index >= RDMA_LANE_FIRST {
            let none = || LinkError::Transport("too little locked memory".to_owned());
            return self.rdma.as_ref().ok_or_else(none)?.dial(lane, self.rail(control::Path::Rdma, rail), report);
        }
        let deadline = Instant::now() + AUTHENTICATE_MAX;
        let mut stream = match self.rail(control::Path::Tcp, rail) {
            Some(rail) => connect_by(rail, self.address.port(), deadline)?,
            None => connect(self.address, deadline)?,
        };
        let hello = connect_join(&self.secret, self.session, lane, &mut rng());
        let established = authenticate(&mut stream, hello, deadline)?;
        tcp_lane(stream, established.control, report)
    }

    fn handle_endpoints(&self, endpoints: &[Endpoint]) {
        if let Some(rdma) = &self.rdma {
            rdma.handle_endpoints(endpoints);
        }
    }

    fn find_rails(&self, path: control::Path, first: [IpAddr; 2], addresses: &[RailAddress]) -> (u8, bool) {
        let PathRails { choice, found: known } = &self.rails[path as usize];
        let found = match (path, &self.rdma) {
            _ if choice.most() < 2 || known.get().is_some() => Vec::new(),
            (control::Path::Tcp, _) => rails::find(choice, [self.own, self.address], addresses),
            (control::Path::Rdma, Some(rdma)) => rdma.find_rails(choice, first, addresses),
            (control::Path::Rdma, None) => Vec::new(),
        };
        if found.len() > 1 {
            let _ = known.set(found);
        }
        (known.get().map_or(1, Vec::len) as u8, *choice != RailChoice::Auto)
    }

    fn rail_name(&self, path: control::Path, rail: u8) -> Option<String> {
        Some(self.rail(path, rail)?.to_string())
    }
}
