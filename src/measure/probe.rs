//! Probes: opens ports, over TCP and over rdma_cm, for another host to try, and tries the ports of another host.
//!
//! A probe sends its ticket on each TCP connection, and accepts an RDMA connection only with the ticket. So the
//! connecting end knows that it reached this probe, and not another program or another host with the same address. A
//! probe closes when it is dropped, or after [`OPEN_MAX`].

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flume::bounded;
use minicbor::{Decode, Decoder, Encode};
use rd_proto::control::Endpoint as Offered;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::facts::{Address, Facts, list};
use super::finding::Outcome;
use crate::transport::rdma::{self, Adapters, ConnectError, Endpoint, LaneRequest, Listener};
use crate::transport::{Medium, Pool, is_inner, leads_elsewhere, tcp};

/// Maximum time that a probe stays open.
pub const OPEN_MAX: Duration = Duration::from_secs(30);

/// Maximum time for an address to answer.
const CONNECT_MAX: Duration = Duration::from_millis(2500);

/// Maximum number of addresses that are tried, for TCP and for RDMA each.
const ATTEMPTS_MAX: usize = 8;

/// Maximum number of pairs of RDMA addresses that are tried.
const PAIRS_MAX: usize = 4;

/// Maximum number of hosts that may try one probe over RDMA at once, so that its listeners reject none of them.
pub const RDMA_HOSTS_MAX: usize = rdma::HALF_OPEN_MAX / PAIRS_MAX;

/// How often an open probe checks whether it was closed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long an accepted connection is kept, so that the other end can see that it is up.
const GREET_MAX: Duration = Duration::from_millis(500);

/// Size of the pool behind an RDMA probe. No data is moved, but a queue pair needs a pool.
const POOL_BUFFERS: u32 = 4;
const POOL_BUFFER_BYTES: usize = 64 << 10;

/// Length of a ticket, which identifies a probe.
pub const TICKET_BYTES: usize = 16;

/// Where a probe listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ProbeTargets {
    /// TCP port, on all addresses.
    #[n(0)]
    pub port: u16,
    /// RDMA addresses on which the probe listens.
    #[cbor(n(1), decode_with = "list::<_, _, ATTEMPTS_MAX>")]
    pub rdma: Vec<RdmaTarget>,
    /// The ticket that identifies the probe.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub ticket: [u8; TICKET_BYTES],
}

/// An address on which a probe listens over rdma_cm.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RdmaTarget {
    /// The IP address and its subnet.
    #[n(0)]
    pub address: Address,
    /// The port at this address.
    #[n(1)]
    pub port: u16,
    /// Whether the device is hardware.
    #[n(2)]
    pub is_hardware: bool,
    /// Rate of the device's port in Mbit/s.
    #[n(3)]
    pub rate_mbps: u32,
}

/// A request to try the addresses of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ProbeRequest {
    /// Addresses to try over TCP. Addresses in a subnet that both hosts share come first.
    #[cbor(n(0), decode_with = "list::<_, _, ATTEMPTS_MAX>")]
    pub tcp: Vec<Address>,
    /// Where the probe listens.
    #[n(1)]
    pub targets: ProbeTargets,
}

/// An attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Attempt {
    /// The address of the probe.
    #[n(0)]
    pub address: IpAddr,
    /// Whether the attempt used rdma_cm; otherwise it used TCP.
    #[n(1)]
    pub is_rdma: bool,
    /// Outcome of the attempt.
    #[n(2)]
    pub outcome: Outcome,
    /// Time until connected, or until the attempt failed, in microseconds.
    #[n(3)]
    pub micros: u64,
}

/// Decodes attempts that another host sent; `None` if the bytes are malformed.
pub fn decode_attempts(bytes: &[u8]) -> Option<Vec<Attempt>> {
    list::<_, _, { 2 * ATTEMPTS_MAX }>(&mut Decoder::new(bytes), &mut ()).ok()
}

impl ProbeRequest {
    /// Makes a request to try the probe of `there` from `here`.
    pub fn new(here: &Facts, there: &Facts, is_one_machine: bool, targets: ProbeTargets) -> Self {
        let mut tcp: Vec<(bool, u32, Address)> = Vec::new();
        let ours = || here.interfaces.iter().filter(|own| own.is_up).flat_map(|own| &own.addresses);
        for interface in there.interfaces.iter().filter(|one| one.is_up && !is_inner(&one.name)) {
            // A connection to an address that `here` has as well does not leave that host.
            let is_another = |address: &&Address| is_one_machine || here.interface_of(address.ip).is_none();
            for address in interface.addresses.iter().filter(is_another) {
                let near = ours().any(|own| own.shares_subnet(address));
                tcp.push((near, interface.rate_mbps, address.clone()));
            }
        }
        // A link-local address is often that of a network within the host, such as that of its management controller.
        // So it is tried only if the host has no other addresses.
        if tcp.iter().any(|(.., address)| leads_elsewhere(address.ip)) {
            tcp.retain(|(.., address)| leads_elsewhere(address.ip));
        }
        // The sort is stable, so equal addresses stay in the host's own order.
        tcp.sort_by_key(|(near, rate, _)| std::cmp::Reverse((*near, *rate)));
        let mut tcp: Vec<Address> = tcp.into_iter().map(|(_, _, address)| address).take(ATTEMPTS_MAX).collect();
        if is_one_machine && tcp.is_empty() {
            tcp.push(Address { ip: Ipv4Addr::LOCALHOST.into(), prefix_bits: 8 });
        }
        Self { tcp, targets }
    }

    /// Adds an address at which the host has been reached, unless the address is already listed.
    pub fn also(&mut self, address: IpAddr) {
        if self.tcp.iter().all(|known| known.ip != address) {
            self.tcp.truncate(ATTEMPTS_MAX - 1);
            self.tcp.push(Address { ip: address, prefix_bits: 0 });
        }
    }
}

/// An open probe.
pub struct Probe {
    /// Where the probe listens.
    pub targets: ProbeTargets,
    closed: Arc<AtomicBool>,
    _rdma: Vec<Listener>,
}

impl Probe {
    /// Opens a probe on a TCP port and at every RDMA address. The TCP port is taken from `ports`; without `ports`, the
    /// system chooses.
    ///
    /// # Errors
    ///
    /// Why no TCP port could be opened. RDMA addresses on which listening fails are left out.
    pub fn open(ports: Option<RangeInclusive<u16>>) -> Result<Self, String> {
        let mut ticket = [0; TICKET_BYTES];
        getrandom::fill(&mut ticket).map_err(|error| error.to_string())?;
        let listener = tcp::listen(0, ports.clone()).map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        let serve = move || {
            let until = Instant::now() + OPEN_MAX;
            while !is_closed.load(Ordering::Relaxed) && Instant::now() < until {
                let wait = Timespec::try_from(LOOK_AGAIN).expect("short");
                let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&wait));
                if let Ok((mut stream, _)) = listener.accept() {
                    // The ticket fits into any socket's buffer. A peer that has already gone does not need it.
                    let _ = stream.write_all(&ticket);
                }
            }
        };
        crate::spawn("probe", 64 << 10, serve).map_err(|error| error.to_string())?;
        let mut probe = Self { targets: ProbeTargets { port, rdma: Vec::new(), ticket }, closed, _rdma: Vec::new() };
        probe.open_rdma(ports);
        Ok(probe)
    }

    fn open_rdma(&mut self, ports: Option<RangeInclusive<u16>>) {
        let Some(adapters) = adapters() else { return };
        for endpoint in rdma::endpoints().unwrap_or_default().into_iter().take(ATTEMPTS_MAX) {
            let greet = Box::new(|mut connection: rdma::Connection, _hello| {
                // No data is sent; the other end closes as soon as it is connected.
                drop(connection.receive(Instant::now() + GREET_MAX));
            });
            let Ok(listener) = rdma::listen(&adapters, &endpoint, ports.clone(), self.targets.ticket, greet) else {
                continue;
            };
            self.targets.rdma.push(RdmaTarget {
                address: Address { ip: endpoint.address, prefix_bits: endpoint.prefix_bits },
                port: listener.port(),
                is_hardware: endpoint.medium == Medium::RdmaHardware,
                rate_mbps: endpoint.rate_mbps,
            });
            self._rdma.push(listener);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn adapters() -> Option<Adapters> {
    let buffer = NonZeroUsize::new(POOL_BUFFER_BYTES).expect("not 0");
    let (pool, _buffers) = Pool::new(POOL_BUFFERS, buffer).ok()?;
    Some(Adapters::new(pool))
}

/// Tries all addresses of a probe at once, each for at most 2.5 s.
pub fn try_all(request: &ProbeRequest) -> Vec<Attempt> {
    let targets = &request.targets;
    let (post, outcomes) = bounded(ATTEMPTS_MAX + PAIRS_MAX);
    let mut asked = 0;
    let mut start = |place: usize, attempt: Box<dyn FnOnce() -> Attempt + Send>| {
        let post = post.clone();
        let run = move || drop(post.send((place, attempt())));
        if crate::spawn("probe", 256 << 10, run).is_ok() {
            asked += 1;
        }
    };
    for (place, ip) in request.tcp.iter().map(|address| address.ip).enumerate() {
        let (address, ticket) = (SocketAddr::new(ip, targets.port), targets.ticket);
        start(place, Box::new(move || connect_tcp(address, &ticket)));
    }
    let remote: Vec<Offered> = targets.rdma.iter().map(remote_endpoint).collect();
    let local = if remote.is_empty() { Ok(Vec::new()) } else { rdma::endpoints() };
    match (local, adapters().map(Arc::new)) {
        (Ok(local), Some(adapters)) => {
            for (place, (own, other)) in rdma::pairs(&local, &remote, None).into_iter().take(PAIRS_MAX).enumerate() {
                let (own, address, ticket, adapters) =
                    (own.clone(), other.address, targets.ticket, Arc::clone(&adapters));
                let try_pair = move || timed(address.ip(), true, || connect_rdma(&adapters, &own, address, ticket));
                start(ATTEMPTS_MAX + place, Box::new(try_pair));
            }
        }
        (Err(reason), _) => {
            let ip = remote[0].address.ip();
            start(ATTEMPTS_MAX, Box::new(move || timed(ip, true, || Outcome::NoRdma(reason.to_string()))));
        }
        (Ok(_), None) => {}
    }
    let deadline = Instant::now() + 2 * CONNECT_MAX;
    let mut attempts: Vec<(usize, Attempt)> = Vec::new();
    while attempts.len() < asked {
        match outcomes.recv_deadline(deadline) {
            Ok(attempt) => attempts.push(attempt),
            Err(_) => break,
        }
    }
    attempts.sort_by_key(|(place, _)| *place);
    attempts.into_iter().map(|(_, attempt)| attempt).collect()
}

fn timed(address: IpAddr, is_rdma: bool, attempt: impl FnOnce() -> Outcome) -> Attempt {
    let started = Instant::now();
    let outcome = attempt();
    Attempt { address, is_rdma, outcome, micros: started.elapsed().as_micros() as u64 }
}

fn remote_endpoint(probe: &RdmaTarget) -> Offered {
    Offered {
        hardware: probe.is_hardware,
        address: SocketAddr::new(probe.address.ip, probe.port),
        prefix_bits: probe.address.prefix_bits,
        rate_mbps: probe.rate_mbps,
    }
}

fn connect_tcp(address: SocketAddr, ticket: &[u8; TICKET_BYTES]) -> Attempt {
    let mut connected = None;
    // Connecting takes one round trip. The ticket takes another, and the time of the other end's program.
    let attempt = timed(address.ip(), false, || match TcpStream::connect_timeout(&address, CONNECT_MAX) {
        Ok(stream) => {
            connected = Some(stream);
            Outcome::Connected
        }
        Err(error) => tcp_outcome(&error),
    });
    let Some(mut stream) = connected else { return attempt };
    let mut told = [0; TICKET_BYTES];
    let read = stream.set_read_timeout(Some(CONNECT_MAX)).and_then(|()| stream.read_exact(&mut told));
    let outcome = match read {
        Ok(()) if told == *ticket => Outcome::Connected,
        Ok(()) => Outcome::Other("another program answered".to_owned()),
        Err(error) => Outcome::Other(format!("connected, but received no data: {error}")),
    };
    Attempt { outcome, ..attempt }
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

fn connect_rdma(adapters: &Adapters, own: &Endpoint, other: SocketAddr, ticket: [u8; TICKET_BYTES]) -> Outcome {
    let hello = LaneRequest { ticket, index: 0, generation: 0 };
    match rdma::connect(adapters, own, other, &hello, Instant::now() + CONNECT_MAX) {
        Ok(_) => Outcome::Connected,
        Err(ConnectError::Timeout(_)) => Outcome::Silent,
        Err(ConnectError::Rejected(_)) => Outcome::Refused,
        Err(ConnectError::Unreachable { status, .. }) => Outcome::Unreachable(status.saturating_abs()),
        Err(error @ ConnectError::Register(_)) => Outcome::NoRdma(error.to_string()),
        Err(error) => Outcome::Other(error.to_string()),
    }
}

/// Body of the fuzz target: probes and attempts from another host stay within their limits, and never cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_probes(bytes: &[u8]) {
    use super::{decode, encode};
    if let Some(targets) = decode::<ProbeTargets>(bytes) {
        assert!(targets.rdma.len() <= ATTEMPTS_MAX);
        assert_eq!(decode(&encode(&targets)), Some(targets));
    }
    if let Some(request) = decode::<ProbeRequest>(bytes) {
        assert!(request.tcp.len() <= ATTEMPTS_MAX && request.targets.rdma.len() <= ATTEMPTS_MAX);
        assert_eq!(decode(&encode(&request)), Some(request));
    }
    if let Some(attempts) = decode_attempts(bytes) {
        assert!(attempts.len() <= 2 * ATTEMPTS_MAX);
        assert_eq!(decode_attempts(&encode(&attempts)), Some(attempts));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::super::encode;
    use super::super::facts::Interface;
    use super::*;
    use crate::fs::close::tests::fail_where;

    fn request(address: IpAddr, targets: &ProbeTargets) -> ProbeRequest {
        ProbeRequest { tcp: vec![Address { ip: address, prefix_bits: 8 }], targets: targets.clone() }
    }

    #[test]
    fn an_open_probe_a_closed_one_and_another() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let probe = Probe::open(None).expect("a port");
        let attempts = try_all(&request(here, &probe.targets));
        assert_eq!(attempts.len(), 1);
        assert_eq!((&attempts[0].outcome, attempts[0].address), (&Outcome::Connected, here));
        let another = ProbeTargets { ticket: [7; TICKET_BYTES], ..probe.targets.clone() };
        assert!(matches!(try_all(&request(here, &another))[0].outcome, Outcome::Other(_)));
        let targets = probe.targets.clone();
        drop(probe);
        let until = Instant::now() + Duration::from_secs(20);
        while try_all(&request(here, &targets))[0].outcome != Outcome::Refused {
            assert!(Instant::now() < until, "a probe that was dropped is still open");
        }
    }

    #[test]
    fn the_ticket_does_not_count_as_connecting() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let targets = ProbeTargets { port, ticket: [7; TICKET_BYTES], ..ProbeTargets::default() };
        let late = Duration::from_millis(500);
        let attempts = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                std::thread::sleep(late);
                stream.write_all(&targets.ticket).expect("taken");
            });
            let attempts = try_all(&request(Ipv4Addr::LOCALHOST.into(), &targets));
            // The thread waits for a connection in any case.
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
            attempts
        });
        assert_eq!(attempts[0].outcome, Outcome::Connected);
        assert!(attempts[0].micros < late.as_micros() as u64, "{attempts:?}");
    }

    #[test]
    fn a_port_accepts_ipv4_whatever_the_default_of_the_system() {
        // With net.ipv6.bindv6only, the default is IPv6 alone. A socket that accepts no other setting is not used.
        let refused = || {
            fail_where(libc::SYS_setsockopt, (1, libc::IPPROTO_IPV6 as u64), libc::EPERM);
            tcp::listen(0, None).and_then(|listener| listener.local_addr())
        };
        let address = std::thread::spawn(refused).join().expect("its end").expect("a port");
        assert!(address.is_ipv4(), "{address}");
    }

    #[test]
    fn ports_of_a_range() {
        let probe = Probe::open(Some(45_000..=45_999)).expect("one of a thousand");
        assert!((45_000..=45_999).contains(&probe.targets.port));
        let taken = probe.targets.port;
        assert!(Probe::open(Some(taken..=taken)).is_err());
    }

    #[test]
    fn nobody_answers() {
        // An address reserved for documentation. Packets to it are dropped or refused, have no route, or reach a proxy
        // that has no route either.
        let targets = ProbeTargets { port: 9, ..ProbeTargets::default() };
        let attempts = try_all(&request(Ipv4Addr::new(198, 51, 100, 1).into(), &targets));
        assert!(attempts[0].outcome != Outcome::Connected && attempts[0].micros < 6_000_000, "{attempts:?}");
    }

    #[test]
    fn attempts_survive_the_way() {
        let outcomes = [
            Outcome::Connected,
            Outcome::Refused,
            Outcome::Silent,
            Outcome::Unreachable(113),
            Outcome::NoRdma("no device".to_owned()),
            Outcome::Other("what".to_owned()),
        ];
        let attempts: Vec<Attempt> = outcomes
            .into_iter()
            .map(|outcome| Attempt { address: Ipv6Addr::LOCALHOST.into(), is_rdma: true, outcome, micros: 7 })
            .collect();
        assert_eq!(decode_attempts(&encode(&attempts)), Some(attempts));
        assert_eq!(decode_attempts(b"\x01"), None);
        // An attempt in an older encoding, which had a separate type on the wire: refused, not misread.
        assert_eq!(decode_attempts(b"\x81\x86\x82\x44\x0a\x09\0\x02\0\xf5\x03\x18\x71\x60\x19\x05\xdc"), None);
    }

    fn interface(name: &str, rate_mbps: u32, address: &str) -> Interface {
        Interface {
            name: name.to_owned(),
            is_up: true,
            rate_mbps,
            addresses: vec![Address { ip: address.parse().expect("an address"), prefix_bits: 24 }],
            ..Interface::default()
        }
    }

    fn host(interfaces: Vec<Interface>) -> Facts {
        Facts { interfaces, ..Facts::default() }
    }

    /// Returns the addresses that are tried over TCP, in their order.
    fn tried(here: &Facts, there: &Facts, is_one_machine: bool) -> Vec<String> {
        let request = ProbeRequest::new(here, there, is_one_machine, ProbeTargets::default());
        request.tcp.iter().map(|address| address.ip.to_string()).collect()
    }

    #[test]
    fn near_and_fast_is_tried_first_and_bridges_are_not() {
        let here = host(vec![interface("e0", 1000, "10.1.0.1"), interface("ib0", 100_000, "10.2.0.1")]);
        let there = host(vec![
            interface("far", 400_000, "10.3.0.2"),
            interface("e0", 1000, "10.1.0.2"),
            interface("docker0", 0, "172.17.0.1"),
            interface("ib0", 100_000, "10.2.0.2"),
        ]);
        assert_eq!(tried(&here, &there, false), ["10.2.0.2", "10.1.0.2", "10.3.0.2"]);
    }

    #[test]
    fn addresses_that_do_not_lead_to_the_other_host_are_not_tried() {
        let bmc = |address: &str| interface("idrac", 100, address);
        let here =
            host(vec![interface("e0", 1000, "10.1.0.1"), bmc("169.254.0.2"), interface("docker0", 0, "172.17.0.1")]);
        let there =
            host(vec![bmc("169.254.0.3"), interface("e1", 1000, "172.17.0.1"), interface("e0", 1000, "10.1.0.2")]);
        assert_eq!(tried(&here, &there, false), ["10.1.0.2"]);
        assert_eq!(tried(&here, &here, true), ["10.1.0.1"], "a machine that asks itself");
        // Two hosts on one cable, with no other network.
        let there = host(vec![bmc("169.254.0.3"), bmc("169.254.0.2")]);
        assert_eq!(tried(&here, &there, false), ["169.254.0.3"]);
    }
}
