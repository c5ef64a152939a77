//! Listens on one endpoint. Requests without the right ticket are rejected before anything is made for them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flume::Sender;
use rd_verbs::{Error as VerbsError, Event, EventChannel, EventKind, Id};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::cm::is_port_taken;
use super::connection::ConnectError;
use super::devices::{Held, Registered, hold};
use super::request::{Request, same_secret};
use super::{Adapters, Connection, Endpoint, LaneRequest, Wake, sleep_on};
use crate::fault::errno_of;
use crate::log;
use crate::transport::Medium;

/// Maximum number of connections that are coming up at once. Further requests are rejected.
pub const HALF_OPEN_MAX: usize = 8;

/// How long a connection may take to come up before it is dropped.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connect requests that the kernel keeps until they are accepted.
const BACKLOG: u16 = 128;

/// How many ports of the system's choice are tried. On iWARP, a TCP listener that rdma_cm cannot see may hold a port.
const EPHEMERAL_TRIES: usize = 8;

/// Longest sleep of the listening thread. Every event that matters wakes it earlier.
const IDLE: Duration = Duration::from_secs(60);

/// Called with each new connection and its request.
pub type OnIncoming = Box<dyn Fn(Connection, LaneRequest) + Send + Sync>;

/// Listens on one endpoint until it is dropped or the device goes.
pub struct Listener {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the listener shares with its threads. It holds nothing of the device, whose objects belong to the threads.
struct Shared {
    stop: AtomicBool,
    wake: Arc<Wake>,
    arrivals: Arc<Arrivals>,
}

/// The additional state of a listener for lanes.
struct Lanes {
    registered: Arc<Registered>,
    half_open: AtomicUsize,
    ticket: [u8; 16],
    on_incoming: OnIncoming,
}

/// Starts listening on `local`, on a port of `ports`, or of the system's choice if `None`.
///
/// `on_incoming` is called for each connection that came with `ticket`, on a separate thread, so that it may block. At
/// most 8 connections are coming up at a time.
///
/// # Errors
///
/// EADDRINUSE or EACCES if no port is free, [`ConnectError::Register`] if the pool cannot be registered.
pub fn listen(
    adapters: &Adapters,
    local: &Endpoint,
    ports: Option<RangeInclusive<u16>>,
    ticket: [u8; 16],
    on_incoming: OnIncoming,
) -> Result<Listener, ConnectError> {
    let registered = adapters.on(local)?;
    let held = registered.held.clone();
    let lanes = Lanes { registered, half_open: AtomicUsize::new(0), ticket, on_incoming };
    Listener::start(held, local, ports.as_ref(), Arc::default(), Some(lanes))
}

/// Returns an identifier that listens at `address`, on a port of `ports`, or of the system's choice if `None`.
///
/// # Errors
///
/// Why listening failed; EADDRINUSE or EACCES if no port is free.
fn listening(
    events: &Arc<EventChannel>,
    address: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> Result<Id, VerbsError> {
    let candidates: Box<dyn Iterator<Item = u16>> = match ports {
        Some(ports) => Box::new(ports.clone()),
        None => Box::new(std::iter::repeat_n(0, EPHEMERAL_TRIES)),
    };
    // The first ports of the range may be privileged (EACCES), and later ones not.
    let is_privileged = |error: &VerbsError| error.errno() == Some(Errno::ACCESS.raw_os_error());
    let mut outcome = Err(VerbsError::Call { call: "rdma_bind_addr", errno: Errno::ADDRINUSE.raw_os_error() });
    for port in candidates {
        outcome = Id::new(events).and_then(|mut id| {
            id.bind(SocketAddr::new(address, port))?;
            id.listen(BACKLOG)?;
            Ok(id)
        });
        if !outcome.as_ref().is_err_and(|error| is_port_taken(error) || port < 1024 && is_privileged(error)) {
            break;
        }
    }
    outcome
}

impl Listener {
    fn start(
        held: Held,
        local: &Endpoint,
        ports: Option<&RangeInclusive<u16>>,
        arrivals: Arc<Arrivals>,
        lanes: Option<Lanes>,
    ) -> Result<Self, ConnectError> {
        let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
        held.subscribe(&wake);
        let events = EventChannel::new()?;
        let id = listening(&events, local.address, ports)?;
        let address = id.local_address().ok_or(ConnectError::Os(Errno::ADDRNOTAVAIL))?;
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), wake, arrivals });
        let lanes = lanes.map(Arc::new);
        let service = Service { _id: id, events, held, medium: local.medium, lanes, shared: Arc::clone(&shared) };
        let thread = crate::spawn("rd-rdma-listen", 2 << 20, move || service.run())
            .map_err(|error| ConnectError::Os(errno_of(&error)))?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Listens on `local` for single queue pairs that `arrivals` expects.
    ///
    /// # Errors
    ///
    /// As for [`listen`].
    pub(super) fn for_queue_pairs(
        local: &Endpoint,
        ports: Option<&RangeInclusive<u16>>,
        arrivals: &Arc<Arrivals>,
    ) -> Result<Self, ConnectError> {
        Self::start(hold(local.address)?, local, ports, Arc::clone(arrivals), None)
    }

    /// The port listened on, in rdma_cm's port space, which on iWARP is TCP's.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Whether the listener still listens. It stops when its device goes.
    pub fn is_listening(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State owned by the listening thread.
struct Service {
    /// Declared first, because it must be dropped before its channel and device.
    _id: Id,
    events: Arc<EventChannel>,
    held: Held,
    medium: Medium,
    /// `None` if only single queue pairs are awaited, and no lanes.
    lanes: Option<Arc<Lanes>>,
    shared: Arc<Shared>,
}

impl Service {
    fn run(self) {
        let shared = Arc::clone(&self.shared);
        while !shared.stop.load(Ordering::Acquire) && !self.held.is_gone() {
            match self.events.next_event() {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => {
                    sleep_on([self.events.as_fd(), shared.wake.as_fd()], IDLE);
                    shared.wake.clear();
                }
                // Reading an event failed because of one connection. The sleep avoids a busy
                // loop if the error persists.
                Err(_) => {
                    sleep_on([shared.wake.as_fd()], Duration::from_millis(10));
                }
            }
        }
    }

    fn handle(&self, event: Event) {
        if event.kind == EventKind::DeviceRemoval {
            self.held.report_gone();
        }
        let Some(id) = event.incoming else { return };
        match (Request::decode(&event.private_data), &self.lanes) {
            (Some(Request::Control(hello)), Some(lanes)) if same_secret(&hello.ticket, &lanes.ticket) => {
                self.accept(id, hello, lanes);
            }
            (Some(Request::Payload(token)), _) => self.shared.arrivals.deliver(&token, id),
            _ => id.reject(),
        }
    }

    fn accept(&self, id: Id, hello: LaneRequest, lanes: &Arc<Lanes>) {
        if !self.held.device.has(&id) {
            return id.reject();
        }
        let place = HalfOpen(Arc::clone(lanes));
        if lanes.half_open.fetch_add(1, Ordering::AcqRel) >= HALF_OPEN_MAX {
            return id.reject();
        }
        let (medium, shared) = (self.medium, Arc::clone(&self.shared));
        // If no thread can be started, the request is dropped with the closure, which rejects it.
        let _ = crate::spawn("rd-rdma-accept", 2 << 20, move || {
            let deadline = Instant::now() + HALF_OPEN_TIMEOUT;
            let registered = Arc::clone(&place.0.registered);
            let accepted = Connection::accept(registered, medium, id, Arc::clone(&shared.arrivals), deadline);
            match accepted {
                // The place stays taken until the connection has authenticated, because the ticket travels in clear.
                Ok(connection) if !shared.stop.load(Ordering::Acquire) => (place.0.on_incoming)(connection, hello),
                Ok(_) => {}
                Err(error) => log::debug("", || format!("an RDMA connection did not come up: {error}")),
            }
            drop(place);
        });
    }
}

/// One of the [`HALF_OPEN_MAX`] places for connections that are coming up.
struct HalfOpen(Arc<Lanes>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.half_open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections that wait for the connect request of a queue pair, by the request's token.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<HashMap<[u8; 16], Awaiting>>);

struct Awaiting {
    post: Sender<Id>,
    wake: Arc<Wake>,
}

impl Arrivals {
    /// From now on, sends a request with `token` to `post` and wakes `wake`. This holds for one request;
    /// further ones are rejected.
    pub(super) fn expect(self: &Arc<Self>, token: [u8; 16], post: Sender<Id>, wake: Arc<Wake>) -> Expected {
        crate::locked(&self.0).insert(token, Awaiting { post, wake });
        Expected { arrivals: Arc::clone(self), token }
    }

    /// Passes a request to the connection that waits for it. A request with an unknown token is
    /// rejected when it is dropped.
    fn deliver(&self, token: &[u8; 16], id: Id) {
        let awaiting = crate::locked(&self.0).remove(token);
        if let Some(Awaiting { post, wake }) = awaiting
            && post.try_send(id).is_ok()
        {
            wake.wake();
        }
    }
}

/// A request that is expected. Dropping this ends the waiting.
pub(super) struct Expected {
    arrivals: Arc<Arrivals>,
    token: [u8; 16],
}

impl Drop for Expected {
    fn drop(&mut self) {
        crate::locked(&self.arrivals.0).remove(&self.token);
    }
}
