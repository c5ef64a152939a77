//! The transports under test, and how each makes a pair of lanes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdma_pipe::transport::rdma::{self, Adapters, LaneRequest};
use rdma_pipe::transport::tcp::TcpLane;
use rdma_pipe::transport::{Buffer, Lane, Pool, Report};

use crate::mem::{self, Delays};

/// Maximum time for anything that should happen at once. Emulated machines are slow.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The pool of one end, and the adapters that use it.
pub struct Side {
    pub pool: Arc<Pool>,
    adapters: Adapters,
}

impl Side {
    /// Makes a pool of `count` buffers, and returns all of them.
    pub fn new(count: u32, chunk_bytes: usize) -> (Self, Vec<Buffer>) {
        let (pool, buffers) = Pool::new(count, NonZeroUsize::new(chunk_bytes).expect("not 0")).expect("a pool");
        (Self { adapters: Adapters::new(Arc::clone(&pool)), pool }, buffers)
    }
}

/// The two ends of one connection.
pub type Ends = [Box<dyn Lane>; 2];

/// A transport under test.
pub trait Fabric: Send + Sync {
    /// Returns the name used in the names of tests.
    fn name(&self) -> &'static str;

    /// Whether the transport can be used on this machine.
    fn is_here(&self) -> bool;

    /// Connects the two sides. The first one dials.
    fn connect(&self, sides: [&Side; 2], reports: [Report; 2]) -> Ends;

    /// Returns another transport, to change to and from.
    fn other(&self) -> Arc<dyn Fabric>;
}

/// Two ends in this process. Lanes differ in their delays, and their control frames overtake chunks.
pub struct Mem;

impl Fabric for Mem {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn is_here(&self) -> bool {
        true
    }

    fn connect(&self, _sides: [&Side; 2], reports: [Report; 2]) -> Ends {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let delays = Delays { all: Duration::from_micros(50), chunks: Duration::from_micros(700 * (nth % 4)) };
        let (first, second) = mem::pair(reports, delays).expect("a thread");
        [Box::new(first), Box::new(second)]
    }

    fn other(&self) -> Arc<dyn Fabric> {
        Arc::new(Tcp)
    }
}

/// Sockets on loopback.
pub struct Tcp;

impl Fabric for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn is_here(&self) -> bool {
        true
    }

    fn connect(&self, _sides: [&Side; 2], [first, second]: [Report; 2]) -> Ends {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let dialled = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (accepted, _) = listener.accept().expect("accepts");
        let lane = |socket, report| Box::new(TcpLane::start(socket, report).expect("a lane"));
        [lane(dialled, first), lane(accepted, second)]
    }

    fn other(&self) -> Arc<dyn Fabric> {
        Arc::new(Mem)
    }
}

/// Queue pairs on the testbed's device.
pub struct Rdma;

const TICKET: [u8; 16] = *b"conformance tick";

impl Fabric for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn is_here(&self) -> bool {
        std::env::var_os("RD_TESTBED").is_some_and(|kind| kind == "rxe" || kind == "siw")
    }

    fn connect(&self, sides: [&Side; 2], [first, second]: [Report; 2]) -> Ends {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let token = u128::from(MADE.fetch_add(1, Ordering::Relaxed)).to_le_bytes();
        let deadline = Instant::now() + PATIENCE;
        let mut endpoints = rdma::endpoints().expect("RDMA").into_iter();
        let endpoint = endpoints.find(|endpoint| endpoint.address.is_ipv4()).expect("an IPv4 endpoint");
        let (sender, incoming) = mpsc::channel();
        let sender = Mutex::new(sender);
        let on_incoming = Box::new(move |connection, _| {
            let _ = sender.lock().expect("not poisoned").send(connection);
        });
        let listener = rdma::listen(&sides[1].adapters, &endpoint, None, TICKET, on_incoming).expect("listens");
        let remote = SocketAddr::new(endpoint.address, listener.port());
        let hello = LaneRequest { ticket: TICKET, index: 16, generation: 1 };
        let dialled = rdma::connect(&sides[0].adapters, &endpoint, remote, &hello, deadline).expect("connects");
        let accepted = incoming.recv_timeout(PATIENCE).expect("an incoming connection");
        let accepting = std::thread::spawn(move || accepted.into_lane(token, deadline, second).expect("a lane"));
        let dialled = dialled.into_lane(token, deadline, first).expect("a lane");
        [dialled, accepting.join().expect("no panic")]
    }

    fn other(&self) -> Arc<dyn Fabric> {
        Arc::new(Tcp)
    }
}
