//! What connections from one device share: identifiers and their events, and when a completion queue is worth polling.

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

/// Retries of a message that is not acknowledged. The session's heartbeat notices a dead path first.
const RETRY_COUNT: u8 = 7;

/// Retries of a message that found no receive posted. Credits rule that out, so that few are needed and endless ones
/// (7) would only hide a broken peer.
const RNR_RETRY_COUNT: u8 = 3;

/// How long an adapter waits for an acknowledgement: 4.096 µs × 2^16 = 0.27 s.
const ACK_TIMEOUT_EXPONENT: u8 = 16;

/// The same for software devices: 4.096 µs × 2^19 = 2.1 s. They lose nothing, but their acknowledgements wait for a
/// processor as everything else does; with half a second rxe was seen to send the same packets again several times a
/// second.
const ACK_TIMEOUT_EXPONENT_SOFTWARE: u8 = 19;

/// Ports to connect from that are tried, where each is found to be taken.
const PORT_TRIES: u32 = 5;

/// Longest sleep while events are awaited, so that a device that goes is noticed.
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

    /// An error if the device has gone.
    pub(super) fn check(&self) -> Result<(), LaneError> {
        if self.held.is_gone() { Err(LaneError::DeviceGone(self.held.device.name())) } else { Ok(()) }
    }

    /// Identifiers of `count` connections from `local` to `remote`, address and route resolved.
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

    /// Asks the peer to connect to the queue pair that `make` makes of `id`, or of a new identifier where `id` has been
    /// given a port that is taken. Ends in [`EventKind::Established`].
    ///
    /// iWARP's ports are TCP's, and the connection manager picks one without knowing of the sockets that hold it.
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

    /// Device and medium, for a person.
    pub(super) fn describe(&self) -> String {
        let kind = if self.medium == Medium::RdmaHardware { "hardware" } else { "software" };
        let name = if self.held.device.is_iwarp() { "iWARP" } else { "RDMA" };
        format!("{name} over {} ({kind})", self.held.device.name())
    }

    /// Takes over the identifier of a connect request, whose events come here from now on.
    pub(super) fn adopt(&self, mut id: Id) -> Result<Id, VerbsError> {
        id.migrate(&self.events)?;
        self.set_ack_timeout(&mut id);
        Ok(id)
    }

    fn set_ack_timeout(&self, id: &mut Id) {
        let is_software = self.medium == Medium::RdmaSoftware;
        // iWARP has no such option: its timeouts are TCP's.
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
            self.check()?;
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

    /// Reads the events that have come. One connection's end is an end for all.
    pub(super) fn take_events(&mut self, what: &'static str) -> Result<(), ConnectError> {
        while let Some(event) = self.events.next_event()? {
            match event.kind {
                EventKind::AddressError | EventKind::RouteError | EventKind::Unreachable | EventKind::ConnectError => {
                    return Err(ConnectError::Unreachable { what, status: event.status });
                }
                EventKind::Rejected => return Err(ConnectError::Rejected(event.status)),
                EventKind::Disconnected => return Err(LaneError::PeerClosed.into()),
                EventKind::DeviceRemoval => {
                    self.held.report_gone();
                    self.check()?;
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

/// An error if a device cannot do what is wanted of it.
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

    /// Whether it is time to sleep on the queue's channel. The first time this only asks for an event: what completed
    /// before that makes none, so that the queue is to be polled once more.
    pub(super) fn may_sleep(&mut self) -> Result<bool, LaneError> {
        if self.is_armed {
            return Ok(true);
        }
        self.queue.request_notification()?;
        self.is_armed = true;
        Ok(false)
    }

    /// Takes the event that has made the channel readable; whether there was one.
    pub(super) fn take_event(&mut self) -> Result<bool, LaneError> {
        let taken = self.queue.take_event()?;
        self.is_armed &= !taken;
        Ok(taken)
    }
}
