//! Connection management that connections from one device share: identifiers, their events, and when a
//! completion queue is worth polling.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rd_verbs::{
    CompletionQueue, ConnectParameters, Error as VerbsError, EventChannel, EventKind, Id, IdKey, QueuePair,
};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::devices::Held;
use super::request::Request;
use super::{ConnectError, Wake, sleep_on, until};
use crate::transport::{LaneError, Medium};

/// Number of retries of an unacknowledged message. The session's heartbeat notices a dead path first.
const RETRY_COUNT: u8 = 7;

/// Number of retries of a message that found no receive posted. Credits rule that out, so few are needed. Endless
/// retries (7) would only hide a broken peer.
const RNR_RETRY_COUNT: u8 = 3;

/// How long an adapter waits for an acknowledgement: 4.096 µs × 2^16 = 0.27 s.
const ACK_TIMEOUT_EXPONENT: u8 = 16;

/// The same for software devices: 4.096 µs × 2^19 = 2.1 s. They lose nothing, but their acknowledgements
/// wait for a processor like everything else. With half a second, rxe was seen to send the same packets
/// again several times a second.
const ACK_TIMEOUT_EXPONENT_SOFTWARE: u8 = 19;

/// How many local ports are tried if each is found to be taken.
const PORT_TRIES: u32 = 5;

/// Longest sleep while waiting for events, so that the removal of a device is noticed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The connection manager's side of one connection, or of several that come up together.
pub(super) struct Cm {
    pub(super) events: Arc<EventChannel>,
    pub(super) held: Held,
    pub(super) medium: Medium,
    /// Woken when the device goes, and by the owner.
    pub(super) wake: Arc<Wake>,
    /// Events that have not been awaited yet.
    seen: HashSet<(IdKey, EventKind)>,
}

impl Cm {
    pub(super) fn new(held: Held, medium: Medium) -> Result<Self, ConnectError> {
        let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
        held.subscribe(&wake);
        Ok(Self { events: EventChannel::new()?, held, medium, wake, seen: HashSet::new() })
    }

    /// Returns identifiers for `count` connections from `local` to `remote`, with address and route resolved.
    pub(super) fn resolve(
        &mut self,
        count: usize,
        local: IpAddr,
        remote: SocketAddr,
        deadline: Instant,
    ) -> Result<Vec<Id>, ConnectError> {
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let mut id = Id::new(&self.events)?;
            self.set_ack_timeout(&mut id);
            id.resolve_address(SocketAddr::new(local, 0), remote, until(deadline))?;
            ids.push(id);
        }
        let keys = ids.iter().map(Id::key).collect::<Vec<_>>();
        self.await_all(keys.clone(), EventKind::AddressResolved, "resolving the address", deadline)?;
        if !ids.iter().all(|id| self.held.device.has(id)) {
            return Err(VerbsError::OtherDevice.into());
        }
        for id in &mut ids {
            id.resolve_route(until(deadline))?;
        }
        self.await_all(keys, EventKind::RouteResolved, "resolving the route", deadline)?;
        Ok(ids)
    }

    /// Makes a queue pair from `id` with `make`, and asks the peer to connect to it. If `id` has been given a port that
    /// is taken, a new identifier is used instead. Ends in [`EventKind::Established`].
    ///
    /// iWARP shares its ports with TCP, but the connection manager picks a port without knowing of
    /// the sockets that hold it.
    pub(super) fn connect(
        &mut self,
        mut id: Id,
        (local, remote): (IpAddr, SocketAddr),
        request: &Request,
        deadline: Instant,
        make: impl Fn(Id) -> Result<QueuePair, VerbsError>,
    ) -> Result<QueuePair, ConnectError> {
        let private_data = request.encode();
        let mut tries = 1..PORT_TRIES;
        loop {
            let queue_pair = make(id)?;
            match queue_pair.id().connect(&parameters(&private_data)) {
                Err(error) if is_port_taken(&error) && tries.next().is_some() => {
                    drop(queue_pair);
                    id = self.resolve(1, local, remote, deadline)?.remove(0);
                }
                outcome => return Ok(outcome.map(|()| queue_pair)?),
            }
        }
    }

    /// Returns device and medium in readable form.
    pub(super) fn describe(&self) -> String {
        let kind = if self.medium == Medium::RdmaHardware { "hardware" } else { "software" };
        let name = if self.held.device.is_iwarp() { "iWARP" } else { "RDMA" };
        format!("{name} over {} ({kind})", self.held.device.name())
    }

    /// Takes over the identifier of a connect request, whose events arrive here from now on.
    pub(super) fn adopt(&self, mut id: Id) -> Result<Id, VerbsError> {
        id.migrate(&self.events)?;
        self.set_ack_timeout(&mut id);
        Ok(id)
    }

    fn set_ack_timeout(&self, id: &mut Id) {
        let is_software = self.medium == Medium::RdmaSoftware;
        // iWARP has no such option, because its timeouts are TCP's.
        let _ = id.set_ack_timeout(if is_software { ACK_TIMEOUT_EXPONENT_SOFTWARE } else { ACK_TIMEOUT_EXPONENT });
    }

    /// Waits for an event of the `wanted` kind on each of `keys`. Other events are kept until they are awaited.
    pub(super) fn await_all(
        &mut self,
        mut keys: Vec<IdKey>,
        wanted: EventKind,
        what: &'static str,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        loop {
            self.held.check()?;
            self.take_events(what)?;
            keys.retain(|&key| !self.seen.remove(&(key, wanted)));
            if keys.is_empty() {
                return Ok(());
            }
            if until(deadline).is_zero() {
                return Err(ConnectError::Timeout(what));
            }
            sleep_on([self.events.as_fd(), self.wake.as_fd()], until(deadline).min(LOOK_AGAIN));
            self.wake.clear();
        }
    }

    /// Reads the events that have arrived. If one connection ends, the call fails for all of them.
    pub(super) fn take_events(&mut self, what: &'static str) -> Result<(), ConnectError> {
        while let Some(event) = self.events.next_event()? {
            match event.kind {
                EventKind::Failed => return Err(ConnectError::Unreachable { what, status: event.status }),
                EventKind::Rejected => return Err(ConnectError::Rejected(event.status)),
                EventKind::Disconnected => return Err(LaneError::PeerClosed.into()),
                EventKind::DeviceRemoval => {
                    self.held.report_gone();
                    self.held.check()?;
                }
                kind => drop(self.seen.insert((event.id, kind))),
            }
        }
        Ok(())
    }
}

pub(super) fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters { private_data, retry_count: RETRY_COUNT, rnr_retry_count: RNR_RETRY_COUNT }
}

pub(super) fn is_port_taken(error: &VerbsError) -> bool {
    error.errno() == Some(Errno::ADDRINUSE.raw_os_error())
}

/// Fails if a device cannot do what is wanted of it.
pub(super) fn within(what: &'static str, most: u32, wanted: u32) -> Result<(), ConnectError> {
    if wanted > most { Err(ConnectError::Limit { what, most, wanted }) } else { Ok(()) }
}

/// A completion queue, and whether it has been asked for an event.
pub(super) struct Completions {
    pub(super) queue: Arc<CompletionQueue>,
    is_armed: bool,
}

impl Completions {
    pub(super) fn new(queue: &Arc<CompletionQueue>) -> Self {
        Self { queue: Arc::clone(queue), is_armed: false }
    }

    /// Whether it is time to sleep on the queue's channel. The first call only asks for an event: completions before
    /// that cause no event, so the queue must be polled once more.
    pub(super) fn may_sleep(&mut self) -> Result<bool, LaneError> {
        if self.is_armed {
            return Ok(true);
        }
        self.queue.request_notification()?;
        self.is_armed = true;
        Ok(false)
    }

    /// Takes the event that has made the channel readable. Returns whether there was one.
    pub(super) fn take_event(&mut self) -> Result<bool, LaneError> {
        let taken = self.queue.take_event()?;
        self.is_armed &= !taken;
        Ok(taken)
    }
}
