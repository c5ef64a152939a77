//! Listening on one endpoint: requests without the right ticket are rejected before anything is made for them.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rd_verbs::{Error as VerbsError, Event, EventChannel, EventKind, Id};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::connection::{ConnectError, is_port_taken};
use super::devices::{Registered, lock};
use super::request::{Request, same_secret};
use super::{Adapters, Connection, Endpoint, Hello, Wake, sleep_on};
use crate::transport::Medium;

/// Connections that may be coming up at once; further requests are rejected.
const HALF_OPEN_MAX: usize = 8;

/// A connection that has not come up by then is dropped.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

const BACKLOG: u16 = 16;

/// Ports of the system's choice that are tried: on iWARP one may be taken by a TCP listener that rdma_cm cannot see.
const EPHEMERAL_TRIES: usize = 8;

/// Longest sleep of the listening thread; it is woken before for all that matters.
const IDLE: Duration = Duration::from_secs(60);

/// Given each new connection and what it said of itself.
pub type OnIncoming = Box<dyn Fn(Connection, Hello) + Send + Sync>;

/// Listens on one endpoint until it is dropped or the device goes.
pub struct Listener {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    ended: AtomicBool,
    wake: Arc<Wake>,
    half_open: AtomicUsize,
    arrivals: Arc<Arrivals>,
    ticket: [u8; 16],
    on_incoming: OnIncoming,
}

/// Starts listening on `local`, on a port of `ports` or else of the system's choice.
///
/// `on_incoming` is called for each connection that came with `ticket`, on a thread of its own, so that it may block.
/// At most 8 connections are coming up at a time.
///
/// # Errors
///
/// EADDRINUSE if no port is free, [`ConnectError::Register`] if the pool cannot be registered.
pub fn listen(
    adapters: &Adapters,
    local: &Endpoint,
    ports: Option<RangeInclusive<u16>>,
    ticket: [u8; 16],
    on_incoming: OnIncoming,
) -> Result<Listener, ConnectError> {
    let registered = adapters.on(local)?;
    let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
    registered.held.subscribe(&wake);
    let events = EventChannel::new()?;
    let id = listening(&events, local.address, ports.as_ref(), BACKLOG)?;
    let address = id.local_address().ok_or(ConnectError::Os(Errno::ADDRNOTAVAIL))?;
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        wake,
        half_open: AtomicUsize::new(0),
        arrivals: Arc::default(),
        ticket,
        on_incoming,
    });
    let service = Service { _id: id, events, registered, medium: local.medium, shared: Arc::clone(&shared) };
    let thread = std::thread::Builder::new()
        .name("rd-rdma-listen".to_owned())
        .spawn(move || service.run())
        .map_err(|error| ConnectError::Os(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
    Ok(Listener { address, shared, thread: Some(thread) })
}

/// An identifier that listens at `address`, on a port of `ports` or else of the system's choice. `backlog`: connect requests
/// that the kernel keeps until they are accepted.
///
/// # Errors
///
/// Why it does not; EADDRINUSE if no port is free.
pub(super) fn listening(
    events: &Arc<EventChannel>,
    address: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
    backlog: u16,
) -> Result<Id, VerbsError> {
    let candidates: Box<dyn Iterator<Item = u16>> = match ports {
        Some(ports) => Box::new(ports.clone()),
        None => Box::new(std::iter::repeat_n(0, EPHEMERAL_TRIES)),
    };
    let mut outcome = Err(VerbsError::Call { call: "rdma_bind_addr", errno: Errno::ADDRINUSE.raw_os_error() });
    for port in candidates {
        outcome = Id::new(events).and_then(|mut id| {
            id.bind(SocketAddr::new(address, port))?;
            id.listen(backlog)?;
            Ok(id)
        });
        if !outcome.as_ref().is_err_and(is_port_taken) {
            break;
        }
    }
    outcome
}

impl Listener {
    /// The port it listens on: rdma_cm's port space, which on iWARP is TCP's.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Whether it still listens; not once its device has gone.
    pub fn is_listening(&self) -> bool {
        !self.shared.ended.load(Ordering::Acquire)
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

/// What the listening thread owns.
struct Service {
    /// Before its channel and device.
    _id: Id,
    events: Arc<EventChannel>,
    registered: Arc<Registered>,
    medium: Medium,
    shared: Arc<Shared>,
}

impl Service {
    fn run(self) {
        let shared = Arc::clone(&self.shared);
        while !shared.stop.load(Ordering::Acquire) && !self.registered.held.is_gone() {
            match self.events.next_event() {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => {
                    sleep_on([self.events.as_fd(), shared.wake.as_fd()], IDLE);
                    shared.wake.clear();
                }
                // Reading an event failed for one connection's sake; do not spin if it stays so.
                Err(_) => {
                    sleep_on([shared.wake.as_fd()], Duration::from_millis(10));
                }
            }
        }
        shared.ended.store(true, Ordering::Release);
    }

    fn handle(&self, event: Event) {
        if event.kind == EventKind::DeviceRemoval {
            self.registered.held.report_gone();
        }
        let Some(id) = event.incoming else { return };
        match Request::decode(&event.private_data) {
            Some(Request::Control(hello)) if same_secret(&hello.ticket, &self.shared.ticket) => {
                self.accept(id, hello);
            }
            Some(Request::Payload(token)) => self.shared.arrivals.deliver(&token, id),
            _ => id.reject(),
        }
    }

    fn accept(&self, id: Id, hello: Hello) {
        if !self.registered.held.device.has(&id) {
            return id.reject();
        }
        let place = HalfOpen(Arc::clone(&self.shared));
        if self.shared.half_open.fetch_add(1, Ordering::AcqRel) >= HALF_OPEN_MAX {
            return id.reject();
        }
        let registered = Arc::clone(&self.registered);
        let medium = self.medium;
        // If no thread can be had, the request is dropped with the closure, and so rejected.
        let _ = std::thread::Builder::new().name("rd-rdma-accept".to_owned()).spawn(move || {
            let shared = Arc::clone(&place.0);
            let deadline = Instant::now() + HALF_OPEN_TIMEOUT;
            let accepted = Connection::accept(registered, medium, id, Arc::clone(&shared.arrivals), deadline);
            if let Ok(connection) = accepted
                && !shared.stop.load(Ordering::Acquire)
            {
                // Its place is taken until it has authenticated: the ticket travels in clear.
                (shared.on_incoming)(connection, hello);
            }
            drop(place);
        });
    }
}

/// One of the places for connections that are coming up.
struct HalfOpen(Arc<Shared>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.half_open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections that wait for the request of their payload queue pair, by token.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<Vec<Waiting>>);

struct Waiting {
    token: [u8; 16],
    id: Option<Id>,
    wake: Arc<Wake>,
}

impl Arrivals {
    /// From now on a request with `token` is kept for the caller, who is woken. One request; further ones are rejected.
    pub(super) fn expect(self: &Arc<Self>, token: [u8; 16], wake: Arc<Wake>) -> Arrival {
        lock(&self.0).push(Waiting { token, id: None, wake });
        Arrival { arrivals: Arc::clone(self), token }
    }

    fn deliver(&self, token: &[u8; 16], id: Id) {
        let mut waiting = lock(&self.0);
        match waiting.iter_mut().find(|waiting| same_secret(&waiting.token, token) && waiting.id.is_none()) {
            Some(waiting) => {
                waiting.id = Some(id);
                waiting.wake.wake();
            }
            None => {
                drop(waiting);
                id.reject();
            }
        }
    }
}

/// A payload queue pair's request to come. Dropping it ends the waiting.
pub(super) struct Arrival {
    arrivals: Arc<Arrivals>,
    token: [u8; 16],
}

impl Arrival {
    /// The request, if it has come. Its token is spent then.
    pub(super) fn take(&mut self) -> Option<Id> {
        let mut waiting = lock(&self.arrivals.0);
        let at = waiting.iter().position(|waiting| waiting.id.is_some() && same_secret(&waiting.token, &self.token))?;
        waiting.swap_remove(at).id
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // What has come too late is dropped with it, after the lock.
        let mut waiting = lock(&self.arrivals.0);
        let at = waiting.iter().position(|waiting| same_secret(&waiting.token, &self.token));
        let left = at.map(|at| waiting.swap_remove(at));
        drop(waiting);
        drop(left);
    }
}
