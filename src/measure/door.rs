//! Doors: ports that are opened to be tried, over TCP and over rdma_cm, and trying those of another host.
//!
//! A door tells a connection that comes over TCP its ticket, and takes one over RDMA only with it: so that whoever knocks
//! knows that it was this door that opened, and not another program or another host of the same address. It closes when
//! it is dropped, and after [`OPEN_MAX`].

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flume::bounded;
use minicbor::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::facts::{Address, Facts};
use super::finding::Outcome;
use crate::transport::rdma::{self, Adapters, ConnectError, Endpoint, Hello, Listener, RemoteEndpoint};
use crate::transport::{Medium, Pool};

/// How long a door stays open at most.
pub const OPEN_MAX: Duration = Duration::from_secs(30);

/// How long one address may take to answer.
const KNOCK_MAX: Duration = Duration::from_millis(2500);

/// Addresses that are tried at most, of either kind.
const KNOCKS_MAX: usize = 8;

/// Pairs of RDMA addresses that are tried at most.
const PAIRS_MAX: usize = 4;

/// How often an open door looks whether it is to be closed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long a connection that was let in is kept, for the other end to see that it is up.
const GREET_MAX: Duration = Duration::from_millis(500);

/// The pool behind a door for RDMA: nothing is moved, but a queue pair needs one.
const POOL_BUFFERS: u32 = 4;
const POOL_BUFFER_BYTES: usize = 64 << 10;

/// What shows that a door is the right one.
pub const TICKET_BYTES: usize = 16;

/// Where a door is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sign {
    /// Its TCP port, on all addresses.
    #[n(0)]
    pub port: u16,
    /// Where it listens over rdma_cm.
    #[n(1)]
    pub rdma: Vec<RdmaDoor>,
    /// What shows that it is this one.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub ticket: [u8; TICKET_BYTES],
}

/// An address at which a door listens over rdma_cm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RdmaDoor {
    /// The address.
    #[n(0)]
    pub address: Address,
    /// Its port.
    #[n(1)]
    pub port: u16,
    /// The device is hardware.
    #[n(2)]
    pub is_hardware: bool,
    /// The rate of its port in Mbit/s.
    #[n(3)]
    pub rate_mbps: u32,
}

/// Doors to try.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sought {
    /// Addresses to try over TCP; those that the two hosts have a subnet in common for come first.
    #[n(0)]
    pub tcp: Vec<Address>,
    /// The door.
    #[n(1)]
    pub sign: Sign,
}

/// What came of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knock {
    /// Where to.
    pub address: IpAddr,
    /// Over rdma_cm, else over TCP.
    pub is_rdma: bool,
    /// What came of it.
    pub outcome: Outcome,
    /// How long that took, in microseconds.
    pub micros: u64,
}

/// A [`Knock`] as it travels: 0 connected, 1 refused, 2 silent, 3 unreachable, 4 no RDMA, 5 other.
#[derive(Clone, Debug, Default, Encode, Decode)]
struct Told {
    #[n(0)]
    address: Address,
    #[n(1)]
    is_rdma: bool,
    #[n(2)]
    outcome: u8,
    #[n(3)]
    errno: i32,
    #[n(4)]
    reason: String,
    #[n(5)]
    micros: u64,
}

/// Knocks as they travel.
pub fn encode_knocks(knocks: &[Knock]) -> Vec<u8> {
    let told = knocks.iter().map(|knock| {
        let (outcome, errno, reason) = match &knock.outcome {
            Outcome::Connected => (0, 0, ""),
            Outcome::Refused => (1, 0, ""),
            Outcome::Silent => (2, 0, ""),
            Outcome::Unreachable(errno) => (3, *errno, ""),
            Outcome::NoRdma(reason) => (4, 0, reason.as_str()),
            Outcome::Other(reason) => (5, 0, reason.as_str()),
        };
        let (address, is_rdma, micros) = (Address::new(knock.address, 0), knock.is_rdma, knock.micros);
        Told { address, is_rdma, outcome, errno, reason: reason.to_owned(), micros }
    });
    minicbor::to_vec(told.collect::<Vec<_>>()).expect("a vector takes everything")
}

/// Knocks as another host has told them; `None` if the bytes are none.
pub fn decode_knocks(bytes: &[u8]) -> Option<Vec<Knock>> {
    let told: Vec<Told> = minicbor::decode(bytes).ok()?;
    let knock = |told: Told| {
        let reason: String = told.reason.chars().take(super::facts::TEXT_BYTES_MAX).collect();
        let outcome = match told.outcome {
            0 => Outcome::Connected,
            1 => Outcome::Refused,
            2 => Outcome::Silent,
            3 => Outcome::Unreachable(told.errno),
            4 => Outcome::NoRdma(reason),
            _ => Outcome::Other(reason),
        };
        Some(Knock { address: told.address.ip()?, is_rdma: told.is_rdma, outcome, micros: told.micros })
    };
    Some(told.into_iter().take(2 * KNOCKS_MAX).filter_map(knock).collect())
}

impl Sign {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("a vector takes everything")
    }

    /// As another host has told it; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut sign: Self = minicbor::decode(bytes).ok()?;
        sign.rdma.truncate(KNOCKS_MAX);
        Some(sign)
    }
}

impl Sought {
    /// The door of `there`, to be tried from `here`.
    pub fn new(here: &Facts, there: &Facts, is_one_machine: bool, sign: Sign) -> Self {
        let mut tcp: Vec<(bool, u32, Address)> = Vec::new();
        let ours = || here.interfaces.iter().filter(|own| own.is_up).flat_map(|own| &own.addresses);
        for interface in there.interfaces.iter().filter(|one| one.is_up && !is_inner(&one.name)) {
            for address in &interface.addresses {
                let near = ours().any(|own| own.is_near(address));
                tcp.push((near, interface.rate_mbps, address.clone()));
            }
        }
        // Stable: a host tells its addresses in their own order.
        tcp.sort_by_key(|(near, rate, _)| std::cmp::Reverse((*near, *rate)));
        let mut tcp: Vec<Address> = tcp.into_iter().map(|(_, _, address)| address).take(KNOCKS_MAX).collect();
        if is_one_machine && tcp.is_empty() {
            tcp.push(Address::new(Ipv4Addr::LOCALHOST.into(), 8));
        }
        Self { tcp, sign }
    }

    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("a vector takes everything")
    }

    /// As another host asks for it; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut sought: Self = minicbor::decode(bytes).ok()?;
        sought.tcp.truncate(KNOCKS_MAX);
        sought.sign.rdma.truncate(KNOCKS_MAX);
        Some(sought)
    }
}

/// Interfaces to guests and containers on the same host, whose addresses are alike everywhere.
pub fn is_inner(interface: &str) -> bool {
    const INNER: [&str; 9] = ["docker", "virbr", "br-", "cni", "podman", "lxc", "flannel", "cali", "vnet"];
    INNER.iter().any(|prefix| interface.starts_with(prefix))
}

/// An open door.
pub struct Door {
    /// Where it is.
    pub sign: Sign,
    closed: Arc<AtomicBool>,
    _rdma: Vec<Listener>,
}

impl Door {
    /// Opens one: on a TCP port of `ports` or else of the system's choice, and at every RDMA address.
    ///
    /// # Errors
    ///
    /// Why there is no TCP port. RDMA addresses at which nothing can listen are left out.
    pub fn open(ports: Option<RangeInclusive<u16>>) -> Result<Self, String> {
        let mut ticket = [0; TICKET_BYTES];
        getrandom::fill(&mut ticket).map_err(|error| error.to_string())?;
        let listener = listen(ports.clone()).map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        let serve = move || {
            let until = Instant::now() + OPEN_MAX;
            while !is_closed.load(Ordering::Relaxed) && Instant::now() < until {
                let wait = Timespec::try_from(LOOK_AGAIN).expect("short");
                let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&wait));
                if let Ok((mut stream, _)) = listener.accept() {
                    // It fits into any socket's buffer; whoever has gone already does not miss it.
                    let _ = stream.write_all(&ticket);
                }
            }
        };
        std::thread::Builder::new()
            .name("door".to_owned())
            .stack_size(64 << 10)
            .spawn(serve)
            .map_err(|error| error.to_string())?;
        let mut door = Self { sign: Sign { port, rdma: Vec::new(), ticket }, closed, _rdma: Vec::new() };
        door.open_rdma(ports);
        Ok(door)
    }

    fn open_rdma(&mut self, ports: Option<RangeInclusive<u16>>) {
        let Some(adapters) = adapters() else { return };
        for endpoint in rdma::endpoints().unwrap_or_default().into_iter().take(KNOCKS_MAX) {
            let greet = Box::new(|mut connection: rdma::Connection, _hello| {
                // Nothing comes; the other end lets go when it has seen that it is connected.
                drop(connection.receive(Instant::now() + GREET_MAX));
            });
            let Ok(listener) = rdma::listen(&adapters, &endpoint, ports.clone(), self.sign.ticket, greet) else {
                continue;
            };
            self.sign.rdma.push(RdmaDoor {
                address: Address::new(endpoint.address, endpoint.prefix_bits),
                port: listener.port(),
                is_hardware: endpoint.medium == Medium::RdmaHardware,
                rate_mbps: endpoint.rate_mbps,
            });
            self._rdma.push(listener);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn listen(ports: Option<RangeInclusive<u16>>) -> std::io::Result<TcpListener> {
    let mut failure = None;
    for port in ports.unwrap_or(0..=0) {
        let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
        match TcpListener::bind(&any[..]) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| Errno::ADDRINUSE.into()))
}

fn adapters() -> Option<Adapters> {
    let buffer = NonZeroUsize::new(POOL_BUFFER_BYTES).expect("not 0");
    let (pool, _buffers) = Pool::new(POOL_BUFFERS, buffer).ok()?;
    Some(Adapters::new(pool))
}

/// Tries a door: all its addresses at once, each for 2.5 s at most.
pub fn knock(sought: &Sought) -> Vec<Knock> {
    let sign = &sought.sign;
    let (post, outcomes) = bounded(KNOCKS_MAX + PAIRS_MAX);
    let mut asked = 0;
    let mut start = |place: usize, knock: Box<dyn FnOnce() -> Knock + Send>| {
        let post = post.clone();
        let run = move || drop(post.send((place, knock())));
        if std::thread::Builder::new().name("knock".to_owned()).stack_size(256 << 10).spawn(run).is_ok() {
            asked += 1;
        }
    };
    for (place, ip) in sought.tcp.iter().filter_map(Address::ip).enumerate() {
        let (address, ticket) = (SocketAddr::new(ip, sign.port), sign.ticket);
        start(place, Box::new(move || timed(ip, false, || knock_tcp(address, &ticket))));
    }
    let remote: Vec<RemoteEndpoint> = sign.rdma.iter().filter_map(remote_endpoint).collect();
    let local = if remote.is_empty() { Ok(Vec::new()) } else { rdma::endpoints() };
    match (local, adapters().map(Arc::new)) {
        (Ok(local), Some(adapters)) => {
            for (place, (own, other)) in rdma::pairs(&local, &remote).into_iter().take(PAIRS_MAX).enumerate() {
                let (ip, ticket, adapters) = (other.address.ip(), sign.ticket, Arc::clone(&adapters));
                let try_pair = move || timed(ip, true, || knock_rdma(&adapters, &own, other.address, ticket));
                start(KNOCKS_MAX + place, Box::new(try_pair));
            }
        }
        (Err(reason), _) => {
            let ip = remote[0].address.ip();
            start(KNOCKS_MAX, Box::new(move || timed(ip, true, || Outcome::NoRdma(reason.to_string()))));
        }
        (Ok(_), None) => {}
    }
    let deadline = Instant::now() + 2 * KNOCK_MAX;
    let mut knocks: Vec<(usize, Knock)> = Vec::new();
    while knocks.len() < asked {
        match outcomes.recv_deadline(deadline) {
            Ok(knock) => knocks.push(knock),
            Err(_) => break,
        }
    }
    knocks.sort_by_key(|(place, _)| *place);
    knocks.into_iter().map(|(_, knock)| knock).collect()
}

fn timed(address: IpAddr, is_rdma: bool, knock: impl FnOnce() -> Outcome) -> Knock {
    let started = Instant::now();
    let outcome = knock();
    Knock { address, is_rdma, outcome, micros: started.elapsed().as_micros() as u64 }
}

fn remote_endpoint(door: &RdmaDoor) -> Option<RemoteEndpoint> {
    Some(RemoteEndpoint {
        medium: if door.is_hardware { Medium::RdmaHardware } else { Medium::RdmaSoftware },
        address: SocketAddr::new(door.address.ip()?, door.port),
        prefix_bits: door.address.prefix_bits,
        rate_mbps: door.rate_mbps,
    })
}

fn knock_tcp(address: SocketAddr, ticket: &[u8; TICKET_BYTES]) -> Outcome {
    let mut stream = match TcpStream::connect_timeout(&address, KNOCK_MAX) {
        Ok(stream) => stream,
        Err(error) => return tcp_outcome(&error),
    };
    let mut told = [0; TICKET_BYTES];
    let read = stream.set_read_timeout(Some(KNOCK_MAX)).and_then(|()| stream.read_exact(&mut told));
    match read {
        Ok(()) if told == *ticket => Outcome::Connected,
        Ok(()) => Outcome::Other("another program answers there".to_owned()),
        Err(error) => Outcome::Other(format!("connected, but nothing comes through: {error}")),
    }
}

fn tcp_outcome(error: &std::io::Error) -> Outcome {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => Outcome::Refused,
        Some(Errno::TIMEDOUT) => Outcome::Silent,
        Some(errno) => Outcome::Unreachable(errno.raw_os_error()),
        None if error.kind() == std::io::ErrorKind::TimedOut => Outcome::Silent,
        None => Outcome::Other(error.to_string()),
    }
}

fn knock_rdma(adapters: &Adapters, own: &Endpoint, other: SocketAddr, ticket: [u8; TICKET_BYTES]) -> Outcome {
    let hello = Hello { ticket, index: 0, generation: 0 };
    match rdma::connect(adapters, own, other, &hello, Instant::now() + KNOCK_MAX) {
        Ok(_) => Outcome::Connected,
        Err(ConnectError::Timeout(_)) => Outcome::Silent,
        Err(ConnectError::Rejected(_)) => Outcome::Refused,
        Err(ConnectError::Unreachable { status, .. }) => Outcome::Unreachable(status.saturating_abs()),
        Err(error @ (ConnectError::Unavailable(_) | ConnectError::Register(_))) => Outcome::NoRdma(error.to_string()),
        Err(error) => Outcome::Other(error.to_string()),
    }
}

/// Body of the fuzz target: what another host says of doors and knocks is bounded, and never panics.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_doors(bytes: &[u8]) {
    if let Some(sign) = Sign::decode(bytes) {
        assert!(sign.rdma.len() <= KNOCKS_MAX);
        assert_eq!(Sign::decode(&sign.encode()), Some(sign));
    }
    if let Some(sought) = Sought::decode(bytes) {
        assert!(sought.tcp.len() <= KNOCKS_MAX && sought.sign.rdma.len() <= KNOCKS_MAX);
        assert_eq!(Sought::decode(&sought.encode()), Some(sought));
    }
    if let Some(knocks) = decode_knocks(bytes) {
        assert!(knocks.len() <= 2 * KNOCKS_MAX);
        assert_eq!(decode_knocks(&encode_knocks(&knocks)), Some(knocks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sought(address: IpAddr, sign: &Sign) -> Sought {
        Sought { tcp: vec![Address::new(address, 8)], sign: sign.clone() }
    }

    #[test]
    fn an_open_door_a_closed_one_and_another() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let door = Door::open(None).expect("a port");
        let knocks = knock(&sought(here, &door.sign));
        assert_eq!(knocks.len(), 1);
        assert_eq!((&knocks[0].outcome, knocks[0].address), (&Outcome::Connected, here));
        let another = Sign { ticket: [7; TICKET_BYTES], ..door.sign.clone() };
        assert!(matches!(knock(&sought(here, &another))[0].outcome, Outcome::Other(_)));
        let sign = door.sign.clone();
        drop(door);
        let until = Instant::now() + Duration::from_secs(20);
        while knock(&sought(here, &sign))[0].outcome != Outcome::Refused {
            assert!(Instant::now() < until, "a door that was dropped is still open");
        }
    }

    #[test]
    fn ports_of_a_range() {
        let door = Door::open(Some(45_000..=45_999)).expect("one of a thousand");
        assert!((45_000..=45_999).contains(&door.sign.port));
        let taken = door.sign.port;
        assert!(Door::open(Some(taken..=taken)).is_err());
    }

    #[test]
    fn nobody_answers() {
        // Reserved for documentation: dropped, refused, without a way there, or taken by a proxy that has none either.
        let sign = Sign { port: 9, ..Sign::default() };
        let knocks = knock(&sought(Ipv4Addr::new(198, 51, 100, 1).into(), &sign));
        assert!(knocks[0].outcome != Outcome::Connected && knocks[0].micros < 6_000_000, "{knocks:?}");
    }

    #[test]
    fn knocks_survive_the_way() {
        let outcomes = [
            Outcome::Connected,
            Outcome::Refused,
            Outcome::Silent,
            Outcome::Unreachable(113),
            Outcome::NoRdma("no device".to_owned()),
            Outcome::Other("what".to_owned()),
        ];
        let knocks: Vec<Knock> = outcomes
            .into_iter()
            .map(|outcome| Knock { address: Ipv6Addr::LOCALHOST.into(), is_rdma: true, outcome, micros: 7 })
            .collect();
        assert_eq!(decode_knocks(&encode_knocks(&knocks)), Some(knocks));
        assert_eq!(decode_knocks(b"\x01"), None);
    }

    #[test]
    fn near_and_fast_is_tried_first_and_bridges_are_not() {
        let interface = |name: &str, rate_mbps, address: &str| super::super::facts::Interface {
            name: name.to_owned(),
            is_up: true,
            rate_mbps,
            addresses: vec![Address::new(address.parse().expect("an address"), 24)],
            ..Default::default()
        };
        let of = |interfaces: Vec<_>| Facts { interfaces, ..Facts::default() };
        let here = of(vec![interface("e0", 1000, "10.1.0.1"), interface("ib0", 100_000, "10.2.0.1")]);
        let there = of(vec![
            interface("far", 400_000, "10.3.0.2"),
            interface("e0", 1000, "10.1.0.2"),
            interface("docker0", 0, "172.17.0.1"),
            interface("ib0", 100_000, "10.2.0.2"),
        ]);
        let sought = Sought::new(&here, &there, false, Sign::default());
        let told: Vec<String> = sought.tcp.iter().map(|address| address.ip().expect("one").to_string()).collect();
        assert_eq!(told, ["10.2.0.2", "10.1.0.2", "10.3.0.2"]);
    }
}
