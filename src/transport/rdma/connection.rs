//! Bringing up a connection: the control queue pair first, for the handshake; the payload queue pair when both ends
//! have agreed.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rd_proto::handshake::HANDSHAKE_BYTES_MAX;
use rd_verbs::{
    CompletionQueue, ConnectParameters, Depths, Error as VerbsError, Event, EventChannel, EventKind, Id, IdKey,
    MessageRegion, QueuePair, WorkCompletion,
};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::control::{self, ControlQueue, Message, SLOTS, Work};
use super::devices::Registered;
use super::lane::{self, Parts};
use super::listener::Arrivals;
use super::request::Request;
use super::{Adapters, Endpoint, Hello, RegisterError, Unavailable, Wake, sleep_on, until};
use crate::transport::{Lane, LaneError, Medium, Report};

/// Retries of a message that is not acknowledged. The session's heartbeat notices a dead path first.
const RETRY_COUNT: u8 = 7;

/// How long an adapter waits for an acknowledgement: 4.096 µs × 2^16 = 0.27 s.
const ACK_TIMEOUT_EXPONENT: u8 = 16;

/// The same for software devices: 4.096 µs × 2^19 = 2.1 s. They lose nothing, but their acknowledgements wait for a
/// processor as everything else does; with half a second rxe was seen to send the same packets again several times a
/// second.
const ACK_TIMEOUT_EXPONENT_SOFTWARE: u8 = 19;

pub(super) fn ack_timeout_exponent(medium: Medium) -> u8 {
    if medium == Medium::RdmaSoftware { ACK_TIMEOUT_EXPONENT_SOFTWARE } else { ACK_TIMEOUT_EXPONENT }
}

/// Retries of a message that found no receive posted. Credits rule that out, so that few are needed and endless ones
/// (7) would only hide a broken peer.
const RNR_RETRY_COUNT: u8 = 3;

/// How long the end that connected waits for an answer to its first message before it sends another.
const ANNOUNCE_AGAIN: Duration = Duration::from_millis(50);

/// Handshake messages that may wait to be read.
const INBOX_MAX: usize = 64;

/// Ports to connect from that are tried, where each is found to be taken.
pub(super) const PORT_TRIES: u32 = 5;

/// The words for a status of the connection manager: an error number below 0, or the reason in an InfiniBand REJ message,
/// above it.
fn words(status: i32) -> String {
    match status {
        ..0 => std::io::Error::from_raw_os_error(status.saturating_neg()).to_string(),
        8 => "nobody listens there".to_owned(),
        28 => "it does not want this connection".to_owned(),
        _ => format!("reason {status}"),
    }
}

/// Why a connection did not come up, or broke during its handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The deadline passed.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The peer refused, or nobody listens there.
    #[error("refused by the peer ({})", words(*.0))]
    Rejected(i32),
    /// The address or the route to it cannot be resolved from here, or nothing answers there.
    #[error("{what}: {}", words(*.status))]
    Unreachable {
        /// The step.
        what: &'static str,
        /// The kernel's status, mostly a negative errno.
        status: i32,
    },
    /// This host has no RDMA.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The pool cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The device cannot do what the pool needs.
    #[error("the RDMA device allows {most} {what}, {wanted} are needed")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The device's limit.
        most: u32,
        /// What was wanted.
        wanted: u32,
    },
    /// The connection was up and broke.
    #[error(transparent)]
    Lost(#[from] LaneError),
    /// A call failed here.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system refused a thread or a descriptor.
    #[error("{0}")]
    Os(Errno),
}

/// Connects to a listener, from `local`.
///
/// The pool of `adapters` is registered on the device of `local` first, if that has not been done.
///
/// # Errors
///
/// [`ConnectError::Timeout`] when `deadline` passes, whatever the kernel is still waiting for: its call, which may take
/// minutes, is left to a thread that cleans up after it.
pub fn connect(
    adapters: &Adapters,
    local: &Endpoint,
    remote: SocketAddr,
    hello: &Hello,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let registered = adapters.on(local)?;
    let (local, request) = (local.clone(), Request::Control(*hello));
    by(deadline, move || {
        let mut tries = 1..PORT_TRIES;
        loop {
            match dial(Arc::clone(&registered), &local, remote, &request, deadline) {
                Err(ConnectError::Verbs(error)) if is_port_taken(&error) && tries.next().is_some() => {}
                outcome => return outcome,
            }
        }
    })
}

/// Runs what connects on a thread of its own, since iWARP's connecting is a call that nothing can stop. What comes after
/// `deadline` is dropped.
fn by<T: Send + 'static>(
    deadline: Instant,
    bring_up: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("rd-rdma-connect".to_owned())
        .spawn(move || drop(sender.send(bring_up())))
        .map_err(|error| ConnectError::Os(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
    // The thread keeps the deadline itself where it can; it gets a moment to say what it was waiting for.
    let outcome = receiver.recv_timeout(until(deadline) + Duration::from_millis(50));
    outcome.unwrap_or(Err(ConnectError::Timeout("connecting")))
}

/// iWARP's ports are TCP's, and the RDMA connection manager picks one without knowing of the sockets that hold it.
pub(super) fn is_port_taken(error: &VerbsError) -> bool {
    error.errno() == Some(Errno::ADDRINUSE.raw_os_error())
}

fn dial(
    registered: Arc<Registered>,
    local: &Endpoint,
    remote: SocketAddr,
    request: &Request,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let mut kit = Kit::new(registered, local.medium)?;
    let id = kit.resolve(local.address, remote, deadline)?;
    let control = ControlQueue::new(id, kit.registered.domain(), &kit.queue, &kit.region)?;
    if let Some(queue_pair) = control.queue_pair() {
        kit.connect(queue_pair, request, deadline)?;
    }
    let role = Role::Connecting { local: local.address, remote };
    let mut connection = Connection::new(control, kit, role);
    // On iWARP the end that connected must be the first to send. The siw driver overlooks what arrives in the moment
    // between its answer to the connect request and its taking over the socket, until more arrives.
    while !connection.heard {
        connection.control.announce()?;
        let again = deadline.min(Instant::now() + ANNOUNCE_AGAIN);
        loop {
            match connection.step("waiting for the peer's first message", again) {
                Ok(()) if connection.heard => break,
                Ok(()) => {}
                Err(ConnectError::Timeout(_)) if !until(deadline).is_zero() => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(connection)
}

/// What a connection is made of, beside its queue pairs.
pub(super) struct Kit {
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) region: Arc<MessageRegion>,
    pub(super) events: Arc<EventChannel>,
    pub(super) registered: Arc<Registered>,
    /// Woken when the device goes, and by the lane's owner.
    pub(super) wake: Arc<Wake>,
    pub(super) medium: Medium,
    /// Whether a notification of the completion queue is pending.
    pub(super) armed: bool,
}

impl Kit {
    pub(super) fn new(registered: Arc<Registered>, medium: Medium) -> Result<Self, ConnectError> {
        let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
        registered.held.subscribe(&wake);
        let attributes = registered.held.device.attributes()?;
        let limit = |what, most: u32, wanted: u32| {
            if wanted > most { Err(ConnectError::Limit { what, most, wanted }) } else { Ok(()) }
        };
        let buffers = registered.pool.count();
        limit("scatter-gather entries", attributes.max_sge, 2)?;
        limit("outstanding receives", attributes.max_qp_wr, payload_depths(buffers).receives.max(SLOTS))?;
        let entries = 2 * SLOTS + payload_depths(buffers).sends + payload_depths(buffers).receives;
        limit("completions", attributes.max_cqe, entries)?;
        let message_bytes = u32::try_from(registered.pool.buffer_bytes() + 64).unwrap_or(u32::MAX);
        limit("bytes in one message", registered.held.device.port()?.max_message_bytes, message_bytes)?;
        let queue = CompletionQueue::new(&registered.held.device, entries)?;
        let region = control::message_region(registered.domain())
            .map_err(|error| RegisterError::registering(error, control::CONNECTION_LOCKED_BYTES))?;
        let events = EventChannel::new()?;
        Ok(Self { queue, region, events, registered, wake, medium, armed: false })
    }

    fn device_gone(&self) -> LaneError {
        LaneError::DeviceGone(self.registered.held.device.name())
    }

    /// An identifier with address and route resolved.
    fn resolve(&mut self, local: IpAddr, remote: SocketAddr, deadline: Instant) -> Result<Id, ConnectError> {
        let mut id = Id::new(&self.events)?;
        // iWARP has no such option: its timeouts are TCP's.
        let _ = id.set_ack_timeout(ack_timeout_exponent(self.medium));
        id.resolve_address(SocketAddr::new(local, 0), remote, until(deadline))?;
        self.await_event(id.key(), EventKind::AddressResolved, "resolving the address", deadline)?;
        if !self.registered.held.device.has(&id) {
            return Err(ConnectError::Verbs(VerbsError::OtherDevice));
        }
        id.resolve_route(until(deadline))?;
        self.await_event(id.key(), EventKind::RouteResolved, "resolving the route", deadline)?;
        Ok(id)
    }

    fn connect(&self, queue_pair: &QueuePair, request: &Request, deadline: Instant) -> Result<(), ConnectError> {
        queue_pair.id().connect(&parameters(&request.encode()))?;
        self.await_event(queue_pair.id().key(), EventKind::Established, "waiting for the peer to accept", deadline)
    }

    /// Waits for an event of one identifier. Another one's end is an end, too.
    fn await_event(
        &self,
        id: IdKey,
        wanted: EventKind,
        what: &'static str,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        loop {
            if self.registered.held.is_gone() {
                return Err(self.device_gone().into());
            }
            while let Some(event) = self.events.next_event()? {
                if event.id == id && event.kind == wanted {
                    return Ok(());
                }
                self.check_event(&event, what)?;
            }
            if until(deadline).is_zero() {
                return Err(ConnectError::Timeout(what));
            }
            sleep_on([self.events.as_fd(), self.wake.as_fd()], until(deadline));
            self.wake.clear();
        }
    }

    /// Whether a connection lives on after an event.
    fn check_event(&self, event: &Event, what: &'static str) -> Result<(), ConnectError> {
        match event.kind {
            EventKind::AddressError | EventKind::RouteError | EventKind::Unreachable | EventKind::ConnectError => {
                Err(ConnectError::Unreachable { what, status: event.status })
            }
            EventKind::Rejected => Err(ConnectError::Rejected(event.status)),
            EventKind::Disconnected => Err(LaneError::PeerClosed.into()),
            EventKind::DeviceRemoval => {
                self.registered.held.report_gone();
                Err(self.device_gone().into())
            }
            _ => Ok(()),
        }
    }
}

/// Sends and receives of the payload queue pair: one of each for every buffer, and the greeting.
fn payload_depths(buffers: u32) -> Depths {
    Depths { sends: buffers + 1, receives: buffers + 1, segments: 2, inline_bytes: 0 }
}

pub(super) fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters { private_data, retry_count: RETRY_COUNT, rnr_retry_count: RNR_RETRY_COUNT }
}

/// How a connection's payload queue pair comes up.
enum Role {
    Connecting { local: IpAddr, remote: SocketAddr },
    Accepting { arrivals: Arc<Arrivals> },
}

/// A connection whose control queue pair is up, for the handshake.
///
/// Dropping it disconnects.
pub struct Connection {
    /// Before what it uses.
    control: ControlQueue,
    kit: Kit,
    role: Role,
    inbox: VecDeque<Vec<u8>>,
    /// How often the peer has said that it is ready.
    peer_ready: u8,
    greeted: bool,
    heard: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_address()).finish_non_exhaustive()
    }
}

impl Connection {
    fn new(control: ControlQueue, kit: Kit, role: Role) -> Self {
        let (inbox, peer_ready, greeted, heard) = (VecDeque::new(), 0, false, false);
        Self { control, kit, role, inbox, peer_ready, greeted, heard }
    }

    /// Accepts a request whose ticket was right, and waits until the peer has been heard.
    pub(super) fn accept(
        registered: Arc<Registered>,
        medium: Medium,
        mut id: Id,
        arrivals: Arc<Arrivals>,
        deadline: Instant,
    ) -> Result<Self, ConnectError> {
        let kit = Kit::new(registered, medium)?;
        id.migrate(&kit.events)?;
        let _ = id.set_ack_timeout(ack_timeout_exponent(medium));
        let control = ControlQueue::new(id, kit.registered.domain(), &kit.queue, &kit.region)?;
        if let Some(queue_pair) = control.queue_pair() {
            queue_pair.id().accept(&parameters(&[]))?;
        }
        let mut connection = Self::new(control, kit, Role::Accepting { arrivals });
        // On iWARP nothing may be sent here before the end that connected has sent.
        while !connection.heard {
            connection.step("waiting for the peer's first message", deadline)?;
        }
        connection.control.announce()?;
        Ok(connection)
    }

    /// The peer's address, as the kernel has it.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.control.queue_pair().and_then(|queue_pair| queue_pair.id().peer_address())
    }

    /// Sends a handshake message of 1 to [`HANDSHAKE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Lost`] if the connection has broken.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ConnectError> {
        assert!((1..=HANDSHAKE_BYTES_MAX).contains(&message.len()), "a handshake message of allowed size");
        Ok(self.control.send_frame(message)?)
    }

    /// The next handshake message.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] when `deadline` passes, [`ConnectError::Lost`] when the connection breaks.
    pub fn receive(&mut self, deadline: Instant) -> Result<Vec<u8>, ConnectError> {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                if message.len() > HANDSHAKE_BYTES_MAX {
                    return Err(LaneError::Framing("handshake message too long").into());
                }
                return Ok(message);
            }
            self.step("waiting for a handshake message", deadline)?;
        }
    }

    /// Takes in what has happened, or sleeps until something has.
    fn step(&mut self, what: &'static str, deadline: Instant) -> Result<(), ConnectError> {
        let mut completions = [WorkCompletion::default(); 16];
        let taken = self.kit.queue.poll(&mut completions)?;
        for completion in &completions[..taken] {
            self.complete(completion)?;
        }
        if taken > 0 {
            return Ok(());
        }
        if self.kit.registered.held.is_gone() {
            return Err(self.kit.device_gone().into());
        }
        while let Some(event) = self.kit.events.next_event()? {
            self.kit.check_event(&event, what)?;
        }
        if !self.kit.armed {
            self.kit.queue.request_notification()?;
            self.kit.armed = true;
            return Ok(());
        }
        if until(deadline).is_zero() {
            return Err(ConnectError::Timeout(what));
        }
        let descriptors = [self.kit.queue.channel().as_fd(), self.kit.events.as_fd(), self.kit.wake.as_fd()];
        sleep_on(descriptors, until(deadline));
        self.kit.wake.clear();
        if self.kit.queue.take_event()? {
            self.kit.armed = false;
        }
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), ConnectError> {
        if !completion.is_success() {
            let closed = completion.is_flushed();
            let error = if closed { LaneError::PeerClosed } else { LaneError::Completion(completion.reason()) };
            return Err(error.into());
        }
        if Work::of(completion) == Work::Greeting {
            self.greeted = true;
            return Ok(());
        }
        match self.control.completed(completion)? {
            None => return Ok(()),
            Some(Message::Announcement) => {}
            Some(Message::Ready) => self.peer_ready = self.peer_ready.saturating_add(1),
            Some(Message::Frame(frame)) if self.inbox.len() < INBOX_MAX => self.inbox.push_back(frame),
            Some(Message::Frame(_)) => return Err(LaneError::Framing("too many messages at once").into()),
        }
        self.heard = true;
        Ok(())
    }

    /// Brings up the payload queue pair, bound to this connection by `token` (a secret that both ends made of their
    /// handshake, and that is accepted once), and makes a lane of both. Both ends call it, with the same token.
    ///
    /// Control frames that have arrived by now are the first that `report` gets.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] when `deadline` passes, whatever the kernel is still waiting for, as in [`connect`];
    /// [`ConnectError::Lost`] when the connection breaks.
    pub fn into_lane(self, token: [u8; 16], deadline: Instant, report: Report) -> Result<Box<dyn Lane>, ConnectError> {
        match self.role {
            Role::Connecting { .. } => by(deadline, move || self.bring_up(token, deadline, report)),
            Role::Accepting { .. } => self.bring_up(token, deadline, report),
        }
    }

    fn bring_up(mut self, token: [u8; 16], deadline: Instant, report: Report) -> Result<Box<dyn Lane>, ConnectError> {
        let payload = match &self.role {
            Role::Connecting { local, remote } => {
                let (local, remote) = (*local, *remote);
                self.await_ready(1, deadline)?;
                let id = self.kit.resolve(local, remote, deadline)?;
                let payload = self.payload_queue_pair(id)?;
                self.kit.connect(&payload, &Request::Payload(token), deadline)?;
                self.await_ready(2, deadline)?;
                control::send_greeting(&payload)?;
                payload
            }
            Role::Accepting { arrivals } => {
                let arrivals = Arc::clone(arrivals);
                let mut arrival = arrivals.expect(token, Arc::clone(&self.kit.wake));
                self.control.send_ready()?;
                let mut id = loop {
                    if let Some(id) = arrival.take() {
                        break id;
                    }
                    self.step("waiting for the payload queue pair", deadline)?;
                };
                id.migrate(&self.kit.events)?;
                let _ = id.set_ack_timeout(ack_timeout_exponent(self.kit.medium));
                let payload = self.payload_queue_pair(id)?;
                control::receive_greeting(&payload)?;
                payload.id().accept(&parameters(&[]))?;
                // By now siw has taken over the socket, and overlooks no first message.
                self.kit.await_event(payload.id().key(), EventKind::Established, "accepting", deadline)?;
                self.control.send_ready()?;
                while !self.greeted {
                    self.step("waiting for the payload queue pair's first message", deadline)?;
                }
                payload
            }
        };
        // The greeting of the end that connected completes some time later.
        let greeting_posted = !self.greeted && matches!(self.role, Role::Connecting { .. });
        let parts = Parts { control: self.control, payload, kit: self.kit, frames: self.inbox, greeting_posted };
        lane::start(parts, report).map_err(ConnectError::Os)
    }

    fn await_ready(&mut self, times: u8, deadline: Instant) -> Result<(), ConnectError> {
        while self.peer_ready < times {
            self.step("waiting for the peer to be ready", deadline)?;
        }
        Ok(())
    }

    fn payload_queue_pair(&self, id: Id) -> Result<QueuePair, VerbsError> {
        let depths = payload_depths(self.kit.registered.pool.count());
        QueuePair::new(id, self.kit.registered.domain(), &self.kit.queue, &self.kit.region, depths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_is_left_behind() {
        let start = Instant::now();
        let outcome = by(start + Duration::from_millis(50), || {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        });
        assert_eq!(outcome, Err(ConnectError::Timeout("connecting")));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(by(start + Duration::from_secs(60), || Ok(7)), Ok(7));
    }
}
