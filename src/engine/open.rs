//! Opening a session on its authenticated first lane: the offers, the pool, and dialling or listening for further
//! lanes.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use flume::{Receiver as Queue, Sender as Post, TrySendError};
use rd_proto::control::{self, Endpoint, Offer, Policy, RailAddress, RdmaKind, Role};
use rd_proto::handshake::{ControlChannel, Established, LaneId, SessionId, SessionSecret, connect_join};
use rd_proto::session::{Agreed, LONG_LINE, RDMA_LANE_FIRST};
use rustix::io::Errno;

use super::link::{AUTHENTICATE_MAX, LinkError, authenticate, connect, connect_by, exchange_offers, rng, tcp_lane};
use super::listen::Registry;
use super::rails::Rail;
use super::session::Obstacle;
use super::{Dialer, Engine, Event, Observer, SessionEvent, Summary, Transfer, Work, announce, prepare, rails, rdma};
use crate::fs::direct::write::available_bytes;
use crate::options::{RailChoice, TransferOptions};
use crate::transport::rdma::{Adapters, CONNECTION_LOCKED_BYTES, RegisterError};
use crate::transport::{Buffer, Lane, Pool, Report, tcp, unmapped};

/// Minimum size of a pool in bytes that makes RDMA worthwhile.
const POOL_BYTES_MIN: u64 = 4 << 20;

/// Minimum amount of locked memory, in bytes, that is left for what lanes register beside the pool.
const MEMLOCK_MARGIN_BYTES: u64 = 1 << 20;

/// Sends this end's offer on a session's first lane, and waits for the peer's. Returns both, this end's first.
///
/// # Errors
///
/// As [`exchange_offers`].
pub fn offers(
    stream: &mut TcpStream,
    control: &mut ControlChannel,
    role: Role,
    size_bytes: Option<u64>,
    options: &TransferOptions,
) -> Result<[Offer; 2], LinkError> {
    let is_local = stream.local_addr().and_then(|local| Ok(tcp::is_within_host(local, stream.peer_addr()?)));
    let ours = Offer {
        role,
        policy: options.transport.policy(),
        encrypt: options.encrypt(),
        peer_is_local: is_local.unwrap_or(false),
        lanes: options.lanes(),
        chunk_bytes: options.chunk_bytes() as u32,
        reconnect_s: options.reconnect,
        size_bytes,
        rdma: offered(options.transport.policy(), tcp::round_trip_min(stream), rdma::available),
        ticket: SessionId::random(&mut rng()).0,
        host: rustix::system::uname().nodename().to_bytes().to_vec(),
    };
    let theirs = exchange_offers(stream, control, &ours)?;
    Ok([ours, theirs])
}

/// Returns which RDMA devices this end offers to a peer at this round trip. Over hundreds of kilometres adapters hardly
/// ever reach each other, and the transfer would wait until that is certain. So `auto`, which needs hardware, is offered
/// none. The peer's policy may be another, which goes by any device.
fn offered(policy: Policy, shortest: Option<Duration>, available: impl Fn() -> RdmaKind) -> RdmaKind {
    match policy {
        Policy::Tcp => RdmaKind::None,
        Policy::Auto if shortest.is_some_and(|shortest| shortest >= LONG_LINE) => available().min(RdmaKind::Software),
        _ => available(),
    }
}

/// A session that is about to begin: its pool is mapped, and further lanes can be made.
pub struct Opened {
    agreed: Agreed,
    pool: Arc<Pool>,
    buffers: Vec<Buffer>,
    first: u32,
    dialer: Option<Arc<dyn Dialer>>,
    _listening: Option<rdma::Listening>,
    /// Set if the limit on locked memory makes the pool smaller than requested, or keeps it from RDMA.
    pub shortage: Option<SessionEvent>,
}

/// Maps the pool, and starts dialling or listening for further lanes. `listening` holds the sessions that the listening
/// end serves. Without it, this end dials. The first argument is the two addresses of the first lane, this end's first.
/// `ticket` is from the listening end's offer.
///
/// # Errors
///
/// Why the session cannot begin at this end. The peer waits on the first lane to be told.
pub fn open(
    [own, address]: [SocketAddr; 2],
    established: &Established,
    agreed: Agreed,
    ticket: [u8; 16],
    options: &TransferOptions,
    listening: Option<&Arc<Mutex<Registry>>>,
    post: &Post<Event>,
) -> Result<Opened, Obstacle> {
    // Finding out means reading many files. The answer matters only if the user has set no limit.
    let available = if options.shares_memory() { available_bytes(Path::new("/")) } else { None };
    let (mut opened, adapters) = map(agreed, options.buffers(agreed.chunk_bytes, available))?;
    let Established { session, secret, .. } = established;
    // The loop does not run yet. If the peer has filled its channel by further lanes, waiting for room would never end.
    let tell = |event| match post.try_send(event) {
        Err(TrySendError::Full(_)) => {
            let reason = "the peer has sent too much before this end was ready";
            Err(Obstacle::Link(LinkError::Transport(reason.to_owned())))
        }
        _ => Ok(()),
    };
    match (listening, adapters) {
        (None, adapters) => {
            let reached = unmapped(address).ip();
            let rdma = adapters
                .map(|adapters| rdma::Dialing::new(adapters, agreed.policy, ticket, *session, secret.clone(), reached));
            opened.dialer = Some(Arc::new(Dialing {
                own,
                address,
                session: *session,
                secret: secret.clone(),
                rdma,
                choices: [
                    // Data in clear stays on the network that the user chose.
                    match &options.rails {
                        RailChoice::Auto if !agreed.seal_tcp => RailChoice::Count(1),
                        choice => choice.clone(),
                    },
                    // RDMA finds its devices itself, whatever network the user named.
                    options.rails.clone(),
                ],
                rails: Default::default(),
                one_rail_told: OnceLock::new(),
            }));
        }
        (Some(registry), Some(adapters)) => {
            let service = rdma::Service {
                adapters,
                policy: agreed.policy,
                ports: options.port_range.clone(),
                ticket,
                session: *session,
                registry: Arc::clone(registry),
                post: post.clone(),
            };
            opened._listening = Some(service.start().map_err(Obstacle::Thread)?);
        }
        // The other end waits for a list of addresses to dial.
        (Some(_), None) => tell(Event::Endpoints(Vec::new()))?,
    }
    if listening.is_some()
        && let addresses = rails::tell(&options.rails, unmapped(own).ip(), &rails::here())
        && !addresses.is_empty()
    {
        tell(Event::Addresses(addresses))?;
    }
    Ok(opened)
}

impl Opened {
    /// Starts the threads of the session.
    ///
    /// # Errors
    ///
    /// [`Obstacle::Thread`]. The peer waits on the first lane to be told.
    pub fn prepare(
        self,
        secret: SessionSecret,
        work: Work,
        options: &TransferOptions,
        (post, events): (Post<Event>, Queue<Event>),
        observer: Box<dyn Observer>,
    ) -> Result<Prepared, Obstacle> {
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
        let engine = prepare(transfer, work).map_err(Obstacle::Thread)?;
        Ok(Prepared { engine, _listening })
    }
}

/// A session whose threads run, and that has no lane yet.
pub struct Prepared {
    engine: Engine,
    _listening: Option<rdma::Listening>,
}

impl Prepared {
    /// Turns the first connection into a lane, and runs the session to its end.
    ///
    /// # Errors
    ///
    /// The error of that lane. Anything that happens to the transfer itself is in the summary.
    pub fn run(self, stream: TcpStream, established: Established) -> Result<Summary, LinkError> {
        let Established { lane, control, .. } = established;
        if let Err(error) = announce(&self.engine.post, lane, |report| tcp_lane(stream, control, report)) {
            self.engine.give_up();
            return Err(error);
        }
        Ok(self.engine.run())
    }
}

/// Maps a pool, and also returns the adapters that have registered it. Without RDMA the pool has as many buffers as a
/// long line may need (`most`), because unused pages cost nothing. If RDMA is to be tried, the pool has `wanted` buffers
/// and is registered. If the limit on locked memory requires it, the pool is made smaller; if too little would be left,
/// nothing is registered.
fn map(agreed: Agreed, [wanted, most]: [u32; 2]) -> Result<(Opened, Option<Arc<Adapters>>), Obstacle> {
    let buffer_bytes = NonZeroUsize::new(agreed.chunk_bytes).expect("at least a page");
    let bytes = |count: u32| u64::from(count) * agreed.chunk_bytes as u64;
    let opened = |(pool, buffers), first, shortage| Opened {
        agreed,
        pool,
        buffers,
        first,
        dialer: None,
        _listening: None,
        shortage,
    };
    let (mut count, mut tries_rdma, mut shortage) = (wanted, agreed.try_rdma, None);
    loop {
        let larger = if tries_rdma { None } else { Pool::new(most, buffer_bytes).ok() };
        let mapped = larger.map_or_else(|| Pool::new(count, buffer_bytes), Ok);
        let mapped = mapped.map_err(|error| Obstacle::Memory { mib: bytes(count) >> 20, error })?;
        if !tries_rdma {
            return Ok((opened(mapped, count, shortage), None));
        }
        let adapters = Arc::new(Adapters::new(Arc::clone(&mapped.0)));
        let registered = rdma::candidates(agreed.policy).unwrap_or_default().iter().try_for_each(|endpoint| {
            match adapters.register(endpoint) {
                // Lanes over this endpoint will fail, and other endpoints will be tried.
                Err(RegisterError::DeviceGone(_) | RegisterError::Verbs(_)) | Ok(()) => Ok(()),
                Err(RegisterError::MemoryLock { limit_bytes, .. }) => Err(limit_bytes),
            }
        });
        let Err(limit_bytes) = registered else {
            return Ok((opened(mapped, count, shortage), Some(adapters)));
        };
        // Lanes register some memory of their own. Fewer lanes are better than no pool.
        let lanes_bytes = u64::from(agreed.rdma_lanes) * CONNECTION_LOCKED_BYTES as u64;
        let lanes_bytes = lanes_bytes.min(limit_bytes.saturating_sub(POOL_BYTES_MIN)).max(MEMLOCK_MARGIN_BYTES);
        let room = limit_bytes.saturating_sub(lanes_bytes) / agreed.chunk_bytes as u64;
        count = if room < u64::from(count) { room as u32 } else { count / 2 };
        tries_rdma = count >= 2 && bytes(count) >= POOL_BYTES_MIN;
        if !tries_rdma {
            count = wanted;
        }
        let pool_mib = tries_rdma.then(|| [count, wanted].map(|count| bytes(count) >> 20));
        shortage = Some(SessionEvent::LockedMemory { limit_bytes, pool_mib });
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
    /// Which rails to use, indexed by path.
    choices: [RailChoice; 2],
    /// All rails of each path, if it has several.
    rails: [OnceLock<Vec<Rail>>; 2],
    /// Set once it has been told why there is only one rail.
    one_rail_told: OnceLock<()>,
}

impl Dialing {
    fn rail(&self, path: control::Path, number: u8) -> Option<&Rail> {
        self.rails[path as usize].get()?.get(usize::from(number))
    }
}

/// Connects over the rail with this number. Rail 0 leads to the address that the session began on, which may still be
/// reached when this host's own address or interface has changed; then the routes decide, as without rails.
fn connect_over(
    rail: Option<&Rail>,
    number: u8,
    address: SocketAddr,
    deadline: Instant,
) -> Result<TcpStream, LinkError> {
    match rail.map(|rail| connect_by(rail, address.port(), deadline)) {
        Some(Err(error)) if number == 0 && may_be_ours(&error) => connect(address, deadline),
        Some(connected) => connected,
        None => connect(address, deadline),
    }
}

/// Whether a failure to connect from an address of this host may not occur from another.
fn may_be_ours(error: &LinkError) -> bool {
    match error {
        LinkError::Os { error, .. } => {
            [Errno::ADDRNOTAVAIL, Errno::NODEV, Errno::NETUNREACH, Errno::HOSTUNREACH].contains(error)
        }
        _ => *error == LinkError::TimedOut,
    }
}

impl Dialer for Dialing {
    fn dial(&self, lane: LaneId, rail: u8, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        if lane.index >= RDMA_LANE_FIRST {
            let none = || LinkError::Transport("too little locked memory".to_owned());
            return self.rdma.as_ref().ok_or_else(none)?.dial(lane, self.rail(control::Path::Rdma, rail), report);
        }
        let deadline = Instant::now() + AUTHENTICATE_MAX;
        let mut stream = connect_over(self.rail(control::Path::Tcp, rail), rail, self.address, deadline)?;
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
        let (choice, known) = (&self.choices[path as usize], &self.rails[path as usize]);
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

    fn why_one_rail(&self, path: control::Path, addresses: Option<&[RailAddress]>) -> Option<&'static str> {
        let choice = &self.choices[path as usize];
        if *choice == RailChoice::Auto || choice.most() < 2 || self.one_rail_told.set(()).is_err() {
            return None;
        }
        if self.rails[path as usize].get().is_some() {
            return Some("--lanes allows only one connection");
        }
        rails::why_one([self.own, self.address], choice, addresses)
    }

    fn rail_name(&self, path: control::Path, rail: u8) -> Option<String> {
        Some(self.rail(path, rail)?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rd_proto::handshake::{self, Key, connect_first};

    use super::*;

    #[test]
    fn a_full_channel_does_not_hold_up_the_opening() {
        let (post, _events) = flume::bounded(1);
        post.send(Event::Cut).expect("room");
        let registry = Arc::new(Mutex::new(Registry::new(post.clone())));
        let key = Key::from_random([7; 32]);
        let (state, hello) = connect_first(&key, SessionId::random(&mut rng()), &mut rng());
        let (listening, reply) = handshake::listen(&key, |_| None, &hello, &mut rng()).expect("ours");
        let (_, confirm) = state.finish(&reply).expect("the same key");
        let established = listening.finish(&confirm).expect("the same key");
        let agreed = Agreed {
            policy: Policy::Tcp,
            try_rdma: false,
            seal_tcp: true,
            seal_rdma: false,
            tcp_lanes: 1,
            tcp_lanes_max: 2,
            rdma_lanes: 1,
            chunk_bytes: 64 << 10,
            reconnect: Duration::ZERO,
        };
        let ends = [SocketAddr::from(([127, 0, 0, 1], 1)); 2];
        let (tell, told) = flume::bounded(1);
        std::thread::spawn(move || {
            let options = TransferOptions::default();
            let opened = open(ends, &established, agreed, [0; 16], &options, Some(&registry), &post);
            tell.send(opened.err())
        });
        let obstacle = told.recv_timeout(Duration::from_secs(20)).expect("it waits for nothing");
        assert!(matches!(obstacle, Some(Obstacle::Link(LinkError::Transport(_)))), "{obstacle:?}");
    }

    #[test]
    fn adapters_that_are_far_apart_are_tried_only_if_the_user_asks_for_them() {
        use RdmaKind::{Hardware, None as Nothing, Software};
        for (policy, micros, available, expected) in [
            (Policy::Auto, Some(5000), Hardware, Software),
            (Policy::Auto, Some(4999), Hardware, Hardware),
            (Policy::Auto, None, Hardware, Hardware),
            (Policy::Auto, Some(50_000), Nothing, Nothing),
            (Policy::PreferRdma, Some(50_000), Hardware, Hardware),
            (Policy::Rdma, Some(50_000), Hardware, Hardware),
            (Policy::Tcp, Some(50), Hardware, Nothing),
        ] {
            let offered = offered(policy, micros.map(Duration::from_micros), || available);
            assert_eq!(offered, expected, "{policy:?} {micros:?} {available:?}");
        }
    }

    #[test]
    fn the_first_rail_is_not_bound_to_an_address_that_this_host_has_lost() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let rail =
            Rail { interface: "lo".to_owned(), local: "192.0.2.1".parse().expect("an address"), peer: address.ip() };
        let connect = |number| connect_over(Some(&rail), number, address, Instant::now() + AUTHENTICATE_MAX);
        assert_eq!(connect(0).expect("the routes lead there").peer_addr().expect("connected"), address);
        let other = connect(1).expect_err("another rail leads over its own interface only");
        assert_eq!(other, LinkError::Os { what: "connect", error: Errno::ADDRNOTAVAIL });
    }
}
