//! Brings up a connection: first the control queue pair, for the handshake, then the payload queue pair,
//! when both ends have agreed.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flume::bounded;
use rd_proto::handshake::HANDSHAKE_BYTES_MAX;
use rd_verbs::{CompletionQueue, Depths, Error as VerbsError, EventKind, Id, MessageRegion, QueuePair, WorkCompletion};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::cm::{Cm, Completions, parameters, within};
use super::control::{self, ControlQueue, Message, SLOTS, Work};
use super::devices::Registered;
use super::lane;
use super::listener::Arrivals;
use super::request::Request;
use super::{Adapters, Endpoint, LaneRequest, RegisterError, failure, sleep_on, until};
use crate::fault::errno_of;
use crate::transport::{Lane, LaneError, Medium, Report};

/// How long the connecting end waits for an answer to its first message before it sends another one.
const ANNOUNCE_AGAIN: Duration = Duration::from_millis(50);

/// Maximum number of handshake messages that wait to be read.
const INBOX_MAX: usize = 64;

/// Describes a status of the connection manager: an error number if negative, otherwise the reason in
/// an InfiniBand REJ message.
fn words(status: i32) -> String {
    match status {
        ..0 => std::io::Error::from_raw_os_error(status.saturating_neg()).to_string(),
        8 => "nothing is listening there".to_owned(),
        28 => "connection not accepted".to_owned(),
        _ => format!("reason {status}"),
    }
}

/// Why a connection did not come up, or broke during its handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The deadline passed.
    #[error("timed out {0}")]
    Timeout(&'static str),
    /// The peer refused, or no program listens there.
    #[error("refused by the peer ({})", words(*.0))]
    Rejected(i32),
    /// The address or the route to it cannot be resolved from here, or no host answers there.
    #[error("{what}: {}", words(*.status))]
    Unreachable {
        /// The step that failed.
        what: &'static str,
        /// The kernel's status, usually a negative errno.
        status: i32,
    },
    /// The pool cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The device cannot do what the pool requires.
    #[error("the RDMA device allows {most} {what}; {wanted} are needed")]
    Limit {
        /// The limited resource.
        what: &'static str,
        /// The device's limit.
        most: u32,
        /// The amount that was wanted.
        wanted: u32,
    },
    /// The connection was up and then broke.
    #[error(transparent)]
    Lost(#[from] LaneError),
    /// A local verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system refused a thread or a descriptor.
    #[error("{0}")]
    Os(Errno),
}

/// Connects from `local` to a listener.
///
/// First registers the pool of `adapters` on the device of `local`, if that has not been done yet.
///
/// # Errors
///
/// [`ConnectError::Timeout`] if `deadline` passes, whatever the kernel is still waiting for. Its call, which may take
/// minutes, is left to a thread that cleans up afterwards.
pub fn connect(
    adapters: &Adapters,
    local: &Endpoint,
    remote: SocketAddr,
    hello: &LaneRequest,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let registered = adapters.on(local)?;
    let (local, request) = (local.clone(), Request::Control(*hello));
    by(deadline, move || dial(registered, &local, remote, &request, deadline))
}

/// Runs `bring_up` on a separate thread, because connecting on iWARP is a call that cannot be interrupted. A result
/// that comes after `deadline` is dropped.
fn by<T: Send + 'static>(
    deadline: Instant,
    bring_up: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (sender, receiver) = mpsc::channel();
    crate::spawn("rd-rdma-connect", 2 << 20, move || drop(sender.send(bring_up())))
        .map_err(|error| ConnectError::Os(errno_of(&error)))?;
    // Where possible, the thread itself observes the deadline. It gets a moment more, to report
    // what it was waiting for.
    let outcome = receiver.recv_timeout(until(deadline) + Duration::from_millis(50));
    outcome.unwrap_or(Err(ConnectError::Timeout("connecting")))
}

fn dial(
    registered: Arc<Registered>,
    local: &Endpoint,
    remote: SocketAddr,
    request: &Request,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let mut kit = Kit::new(registered, local.medium)?;
    let control = kit.connect((local.address, remote), request, deadline, control::DEPTHS)?;
    // Only now: a queue pair that was given up because its port was taken would have flushed its receives into the
    // queue of completions that its successor uses. The peer sends nothing before it has been sent something.
    control::post_receives(&control)?;
    let control = ControlQueue::new(control);
    let role = Role::Connecting { local: local.address, remote };
    let mut connection = Connection::new(control, kit, role);
    // On iWARP the connecting end must be the first to send. The siw driver overlooks data that arrives after its
    // answer to the connect request and before it takes over the socket, until more data arrives.
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

/// The resources of a connection, except its queue pairs.
pub(super) struct Kit {
    pub(super) cm: Cm,
    pub(super) completions: Completions,
    region: Arc<MessageRegion>,
    pub(super) registered: Arc<Registered>,
}

impl Kit {
    fn new(registered: Arc<Registered>, medium: Medium) -> Result<Self, ConnectError> {
        let cm = Cm::new(registered.held.clone(), medium)?;
        let device = &cm.held.device;
        let attributes = device.attributes()?;
        let depths = payload_depths(registered.pool.count());
        let entries = 2 * SLOTS + depths.sends + depths.receives;
        within("scatter-gather entries", attributes.max_sge, 2)?;
        within("outstanding receives", attributes.max_qp_wr, depths.receives.max(SLOTS))?;
        within("completions", attributes.max_cqe, entries)?;
        let message_bytes = u32::try_from(registered.pool.buffer_bytes() + 64).unwrap_or(u32::MAX);
        within("bytes in one message", device.port()?.max_message_bytes, message_bytes)?;
        let completions = Completions::new(&CompletionQueue::new(device, entries)?);
        let region = control::message_region(registered.domain())
            .map_err(|error| RegisterError::registering(error, control::CONNECTION_LOCKED_BYTES))?;
        Ok(Self { cm, completions, region, registered })
    }

    /// Makes a queue pair from the identifier of a connect request.
    fn adopt(&self, id: Id, depths: Depths) -> Result<QueuePair, VerbsError> {
        let id = self.cm.adopt(id)?;
        QueuePair::new(id, self.registered.domain(), &self.completions.queue, &self.region, depths)
    }

    /// Makes a queue pair and connects it.
    fn connect(
        &mut self,
        ends @ (local, remote): (IpAddr, SocketAddr),
        request: &Request,
        deadline: Instant,
        depths: Depths,
    ) -> Result<QueuePair, ConnectError> {
        let Self { cm, completions, region, registered } = self;
        let id = cm.resolve(1, local, remote, deadline)?.remove(0);
        let make = |id| QueuePair::new(id, registered.domain(), &completions.queue, region, depths);
        let queue_pair = cm.connect(id, ends, request, deadline, make)?;
        let what = "waiting for the peer to accept";
        cm.await_all(vec![queue_pair.id().key()], EventKind::Established, what, deadline)?;
        Ok(queue_pair)
    }
}

/// Depths of the payload queue pair: one send and one receive for every buffer, and for the greeting.
fn payload_depths(buffers: u32) -> Depths {
    Depths { sends: buffers + 1, receives: buffers + 1, segments: 2, inline_bytes: 0 }
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
    /// Declared first, because it must be dropped before the resources that it uses.
    control: ControlQueue,
    kit: Kit,
    role: Role,
    inbox: VecDeque<Vec<u8>>,
    /// How many times the peer has said that it is ready.
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

    /// Accepts a request with the right ticket, and waits until the peer has been heard.
    pub(super) fn accept(
        registered: Arc<Registered>,
        medium: Medium,
        id: Id,
        arrivals: Arc<Arrivals>,
        deadline: Instant,
    ) -> Result<Self, ConnectError> {
        let kit = Kit::new(registered, medium)?;
        let control = kit.adopt(id, control::DEPTHS)?;
        control::post_receives(&control)?;
        control.id().accept(&parameters(&[]))?;
        let mut connection = Self::new(ControlQueue::new(control), kit, Role::Accepting { arrivals });
        // Nothing may be sent here before the connecting end has sent: it may have posted no receives, and on iWARP it
        // must be the first.
        while !connection.heard {
            connection.step("waiting for the peer's first message", deadline)?;
        }
        connection.control.announce()?;
        Ok(connection)
    }

    /// The peer's address, as known to the kernel.
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

    /// Returns the next handshake message, and waits for it.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] if `deadline` passes, [`ConnectError::Lost`] if the connection breaks.
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

    /// Handles what has happened, or sleeps until something happens.
    fn step(&mut self, what: &'static str, deadline: Instant) -> Result<(), ConnectError> {
        let mut completions = [WorkCompletion::default(); 16];
        let taken = self.kit.completions.queue.poll(&mut completions)?;
        for completion in &completions[..taken] {
            self.complete(completion)?;
        }
        if taken > 0 {
            // A peer may send without end what leads to nothing.
            return if until(deadline).is_zero() { Err(ConnectError::Timeout(what)) } else { Ok(()) };
        }
        self.kit.cm.held.check()?;
        self.kit.cm.take_events(what)?;
        if !self.kit.completions.may_sleep()? {
            return Ok(());
        }
        if until(deadline).is_zero() {
            return Err(ConnectError::Timeout(what));
        }
        let Kit { cm, completions, .. } = &mut self.kit;
        let descriptors = [completions.queue.as_fd(), cm.events.as_fd(), cm.wake.as_fd()];
        sleep_on(descriptors, until(deadline));
        cm.wake.clear();
        completions.take_event()?;
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), ConnectError> {
        if !completion.is_success() {
            return Err(failure(completion).into());
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

    /// Brings up the payload queue pair, and makes a lane of both queue pairs. `token` binds the payload queue pair to
    /// this connection: it is a secret that both ends made of their handshake, and it is accepted once. Both ends call
    /// this, with the same token.
    ///
    /// Control frames that have arrived by now are the first that `report` gets.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] if `deadline` passes, whatever the kernel is still waiting for, as in [`connect`];
    /// [`ConnectError::Lost`] if the connection breaks.
    pub fn into_lane(self, token: [u8; 16], deadline: Instant, report: Report) -> Result<Box<dyn Lane>, ConnectError> {
        match self.role {
            Role::Connecting { .. } => by(deadline, move || self.bring_up(token, deadline, report)),
            Role::Accepting { .. } => self.bring_up(token, deadline, report),
        }
    }

    fn bring_up(mut self, token: [u8; 16], deadline: Instant, report: Report) -> Result<Box<dyn Lane>, ConnectError> {
        let depths = payload_depths(self.kit.registered.pool.count());
        let payload = match &self.role {
            Role::Connecting { local, remote } => {
                let (local, remote) = (*local, *remote);
                self.await_ready(1, deadline)?;
                let request = Request::Payload(token);
                let payload = self.kit.connect((local, remote), &request, deadline, depths)?;
                self.await_ready(2, deadline)?;
                control::send_greeting(&payload)?;
                payload
            }
            Role::Accepting { arrivals } => {
                let arrivals = Arc::clone(arrivals);
                let (post, came) = bounded(1);
                let _expected = arrivals.expect(token, post, Arc::clone(&self.kit.cm.wake));
                self.control.send_ready()?;
                let id = loop {
                    if let Ok(id) = came.try_recv() {
                        break id;
                    }
                    self.step("waiting for the payload queue pair", deadline)?;
                };
                let payload = self.kit.adopt(id, depths)?;
                control::receive_greeting(&payload)?;
                payload.id().accept(&parameters(&[]))?;
                // By now siw has taken over the socket, and no longer overlooks a first message.
                self.kit.cm.await_all(vec![payload.id().key()], EventKind::Established, "accepting", deadline)?;
                self.control.send_ready()?;
                while !self.greeted {
                    self.step("waiting for the payload queue pair's first message", deadline)?;
                }
                payload
            }
        };
        // The greeting that the connecting end has posted completes some time later.
        let greeting_posted = !self.greeted && matches!(self.role, Role::Connecting { .. });
        lane::start(self.control, payload, self.kit, self.inbox, greeting_posted, report).map_err(ConnectError::Os)
    }

    fn await_ready(&mut self, times: u8, deadline: Instant) -> Result<(), ConnectError> {
        while self.peer_ready < times {
            self.step("waiting for the peer to be ready", deadline)?;
        }
        Ok(())
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
