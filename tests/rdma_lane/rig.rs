//! Pools, listeners and lanes over the testbed's device, with both ends in this process.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_pipe::transport::rdma::{
    Adapters, ConnectError, Connection, Endpoint, LaneRequest, Listener, connect, endpoints, listen,
};
use rdma_pipe::transport::{Buffer, Lane, LaneError, LaneEvent, Pool, Report};

pub const CHUNK_BYTES: usize = 1 << 20;
pub const TICKET: [u8; 16] = *b"sixteen byte tkt";
pub const TOKEN: [u8; 16] = *b"sixteen byte tok";
pub const HELLO: LaneRequest = LaneRequest { ticket: TICKET, index: 3, generation: 70_000 };

/// Maximum time for anything. Emulation is slow; whatever must be quick has its own limit.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the testbed's first IPv4 endpoint.
pub fn endpoint() -> Endpoint {
    endpoints().expect("RDMA").into_iter().find(|endpoint| endpoint.address.is_ipv4()).expect("an IPv4 endpoint")
}

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A pool with its adapters and buffers.
pub struct Side {
    pub adapters: Adapters,
    pub buffers: Vec<Buffer>,
}

impl Side {
    pub fn new(count: u32) -> Self {
        let (pool, buffers) = Pool::new(count, NonZeroUsize::new(CHUNK_BYTES).expect("not 0")).expect("a pool");
        Self { adapters: Adapters::new(pool), buffers }
    }
}

pub fn listener(side: &Side, endpoint: &Endpoint) -> (Listener, Receiver<(Connection, LaneRequest)>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let on_incoming = Box::new(move |connection, hello| {
        let _ = sender.lock().expect("not poisoned").send((connection, hello));
    });
    let listener = listen(&side.adapters, endpoint, None, TICKET, on_incoming).expect("listens");
    (listener, receiver)
}

pub fn remote(endpoint: &Endpoint, listener: &Listener) -> SocketAddr {
    SocketAddr::new(endpoint.address, listener.port())
}

/// One end of a lane.
pub struct End {
    pub lane: Box<dyn Lane>,
    pub events: Receiver<LaneEvent>,
}

impl End {
    pub fn next(&self) -> LaneEvent {
        self.within(PATIENCE)
    }

    pub fn within(&self, time: Duration) -> LaneEvent {
        self.events.recv_timeout(time).unwrap_or_else(|_| panic!("nothing from {} in {time:?}", self.lane.describe()))
    }

    pub fn control(&self) -> Vec<u8> {
        match self.next() {
            LaneEvent::Control(frame) => frame,
            other => panic!("expected a control frame, got {other:?}"),
        }
    }

    /// Waits for the last event. Earlier events are dropped, and the buffers in them are counted.
    pub fn down(&self, time: Duration) -> (LaneError, usize) {
        let deadline = Instant::now() + time;
        let mut came_back = 0;
        loop {
            match self.within(deadline.saturating_duration_since(Instant::now())) {
                LaneEvent::Down { reason, buffers } => return (reason, came_back + buffers.len()),
                LaneEvent::Chunk { .. } | LaneEvent::Sent(_) | LaneEvent::Unsent(_) => came_back += 1,
                LaneEvent::Control(_) => {}
            }
        }
    }
}

pub fn reporter() -> (Report, Receiver<LaneEvent>) {
    let (sender, events) = mpsc::channel();
    let sender = Mutex::new(sender);
    let report: Report = Arc::new(move |event| {
        let _ = sender.lock().expect("not poisoned").send(event);
    });
    (report, events)
}

pub fn into_end(connection: Connection) -> Result<End, ConnectError> {
    let (report, events) = reporter();
    Ok(End { lane: connection.into_lane(TOKEN, soon(), report)?, events })
}

/// Makes a lane with both ends here. Once it is up, the listener is no longer needed.
pub fn lane_pair(endpoint: &Endpoint, one: &Side, other: &Side) -> (End, End) {
    let (listener, incoming) = listener(other, endpoint);
    let connection = connect(&one.adapters, endpoint, remote(endpoint, &listener), &HELLO, soon()).expect("connects");
    let (accepted, _) = incoming.recv_timeout(PATIENCE).expect("an incoming connection");
    let accepting = std::thread::spawn(move || into_end(accepted));
    let connected = into_end(connection).expect("the connecting end's lane");
    (connected, accepting.join().expect("no panic").expect("the accepting end's lane"))
}

pub fn fill(buffer: &mut Buffer, seed: u8, bytes: usize) {
    buffer.header_mut().fill(seed);
    for (at, byte) in buffer.payload_mut()[..bytes].iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed;
    }
}

pub fn check(buffer: &Buffer, seed: u8, bytes: usize) {
    assert!(buffer.header().iter().all(|byte| *byte == seed), "header of {bytes} bytes");
    for (at, byte) in buffer.payload()[..bytes].iter().enumerate() {
        assert_eq!(*byte, (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed, "byte {at} of {bytes}");
    }
}
