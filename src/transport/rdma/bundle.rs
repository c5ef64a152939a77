//! A bundle over RDMA: reliable queue pairs between two devices, many on one completion queue, for measurements.
//!
//! Each queue pair is asked for with a token of its own, which both ends derive from a seed that came over the session's
//! sealed control frames, and which is accepted once: as the payload queue pair of a lane is.
//!
//! # Coming up
//!
//! The end that connects resolves and connects `BATCH` identifiers at a time ([`Bundle::grow`]), the other accepts
//! them ([`Gate::grow`]). When both have them all, the end that connected sends one short message on each, and the other
//! waits for it: on iWARP it may not send before.
//!
//! # Memory
//!
//! Two slots to receive into and one to send from, whatever the number of queue pairs: messages that come one behind the
//! other overwrite each other, as they do in perftest. In an echo only one is on its way at a time on each queue pair,
//! and the two slots take turns, so that with one queue pair each message is intact while it is sent back.

mod run;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rd_verbs::{
    CompletionQueue, Depths, Error as VerbsError, Event, EventChannel, EventKind, Id, IdKey, MessageRegion,
    ProtectionDomain, QueuePair,
};
use rustix::fd::AsFd;
use rustix::io::Errno;

use self::run::RdmaGroup;
use super::connection::{PORT_TRIES, ack_timeout_exponent, is_port_taken, parameters};
use super::devices::{Held, hold};
use super::listener::listening;
use super::request::Request;
use super::{ConnectError, Endpoint, RegisterError, Wake, sleep_on, until};
use crate::transport::bundle::Group;
use crate::transport::{LaneError, Medium};

/// Identifiers that are resolved and connected at a time.
const BATCH: usize = 32;

/// Connect requests that the kernel keeps until they are accepted.
const BACKLOG: u16 = 128;

/// Longest sleep while connections come up, so that a device that goes is noticed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes that are asked to be sent inline: what perftest's latency tests ask for.
const INLINE_BYTES: u32 = 220;

/// The least room in a send queue, so that not every message of an echo needs a completion.
const SENDS_MIN: u32 = 16;

/// Of so few connections each has a window of at least so many messages: a credit is a packet and its acknowledgement, and
/// for every eighth message of 64 KiB that is a hundredth of all packets. A sweep needs the completion queue for more.
const FEW: u32 = 16;
const WINDOW_MIN_OF_FEW: u32 = 128;

/// Receives beyond what the account needs: for the greeting.
const SPARE: u32 = 2;

const TOKEN_CONTEXT: &str = "rdma-pipe v1 measurement token";

/// What a bundle is made for.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Messages that one queue pair may have on their way.
    pub depth: u16,
    /// Queue pairs that there will be at most.
    pub connections_max: u32,
    /// Completion queues, each with a thread, that they are divided among.
    pub threads: u32,
    /// Completion queues are polled all the time instead of sleeping on their events.
    pub poll: bool,
}

/// Numbers that follow from the settings, the same at both ends.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Messages sent and not completed.
    depth: u32,
    /// Messages sent and not credited.
    window: u32,
    /// Messages that one credit stands for.
    credit: u32,
    receives: u32,
    sends: u32,
}

impl Account {
    /// `connections`: how many are asked for, which share a completion queue.
    fn new(depth: u16, connections: u32) -> Self {
        let depth = u32::from(depth);
        let window = if connections <= FEW { (2 * depth).max(WINDOW_MIN_OF_FEW) } else { 2 * depth };
        let credit = (window / 4).max(1);
        let credits = window / credit;
        // Even, so that the two slots keep taking turns.
        let receives = (window + credits + SPARE).next_multiple_of(2);
        Self { depth, window, credit, receives, sends: (depth + credits + SPARE).max(SENDS_MIN) }
    }

    /// Completions that one queue pair may have waiting.
    fn completions(&self) -> u32 {
        self.receives + self.sends
    }
}

/// Queue pairs that a device can have on one completion queue, at this depth, where `wanted` are asked for.
///
/// # Errors
///
/// The device cannot be opened or asked.
pub fn connections_limit(endpoint: &Endpoint, depth: u16, wanted: u32, threads: u32) -> Result<u32, ConnectError> {
    let attributes = hold(endpoint.address)?.device.attributes()?;
    Ok((attributes.max_cqe / Account::new(depth, wanted).completions()).saturating_mul(threads).min(attributes.max_qp))
}

/// One end's part of a bundle, on one device.
struct Station {
    settings: Settings,
    account: Account,
    medium: Medium,
    queues: Vec<Arc<CompletionQueue>>,
    region: Arc<MessageRegion>,
    domain: Arc<ProtectionDomain>,
    wake: Arc<Wake>,
    held: Held,
}

impl Station {
    fn new(held: Held, medium: Medium, settings: Settings, account: Account) -> Result<Self, ConnectError> {
        let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
        held.subscribe(&wake);
        let attributes = held.device.attributes()?;
        let limit = |what, most: u32, wanted: u32| {
            if wanted > most { Err(ConnectError::Limit { what, most, wanted }) } else { Ok(()) }
        };
        let threads = settings.threads.clamp(1, settings.connections_max);
        let entries = account.completions().saturating_mul(settings.connections_max.div_ceil(threads));
        limit("outstanding receives", attributes.max_qp_wr, account.receives.max(account.sends))?;
        limit("completions", attributes.max_cqe, entries)?;
        limit("queue pairs", attributes.max_qp, settings.connections_max)?;
        limit("bytes in one message", held.device.port()?.max_message_bytes, settings.message_bytes_max)?;
        let domain = ProtectionDomain::new(&held.device)?;
        let slot_bytes = (settings.message_bytes_max as usize).max(run::CREDIT_BYTES).next_multiple_of(64);
        let region = MessageRegion::new(&domain, run::SLOTS, slot_bytes)
            .map_err(|error| RegisterError::registering(error, run::SLOTS as usize * slot_bytes))?;
        let queues = (0..threads).map(|_| CompletionQueue::new(&held.device, entries)).collect::<Result<_, _>>()?;
        Ok(Self { settings, account, medium, queues, region: Arc::new(region), domain, wake, held })
    }

    fn groups(&self) -> Vec<RdmaGroup> {
        self.queues.iter().map(|queue| RdmaGroup::new(self, queue)).collect()
    }

    /// Makes the queue pair of connection `index` on `id`.
    fn queue_pair(&self, id: Id, index: u32) -> Result<QueuePair, VerbsError> {
        let depths = Depths {
            sends: self.account.sends,
            receives: self.account.receives,
            segments: 1,
            inline_bytes: INLINE_BYTES.min(self.settings.message_bytes_max.max(run::CREDIT_BYTES as u32)),
        };
        let queue = &self.queues[index as usize % self.queues.len()];
        QueuePair::new(id, &self.domain, queue, &self.region, depths)
    }

    /// Posts all receives of connection `index`: before its first message may come.
    fn post_receives(&self, queue_pair: &QueuePair, index: u32) -> Result<(), VerbsError> {
        let place = index / self.queues.len() as u32;
        for number in 0..self.account.receives {
            let slot = number % run::RECEIVE_SLOTS;
            queue_pair.receive_message(run::Work::Receive { place, slot }.encode(), slot)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), LaneError> {
        if self.held.is_gone() { Err(LaneError::DeviceGone(self.held.device.name())) } else { Ok(()) }
    }
}

/// The token of one queue pair.
fn token(seed: &[u8; 16], index: u32) -> [u8; 16] {
    let derived = blake3::derive_key(TOKEN_CONTEXT, &[&seed[..], &index.to_le_bytes()].concat());
    derived[..16].try_into().expect("half of it")
}

/// Whether a connection lives on after an event.
fn check_event(event: &Event, what: &'static str) -> Result<(), ConnectError> {
    match event.kind {
        EventKind::AddressError | EventKind::RouteError | EventKind::Unreachable | EventKind::ConnectError => {
            Err(ConnectError::Unreachable { what, status: event.status })
        }
        EventKind::Rejected => Err(ConnectError::Rejected(event.status)),
        EventKind::Disconnected => Err(LaneError::PeerClosed.into()),
        _ => Ok(()),
    }
}

/// The connecting end of a bundle.
pub struct Bundle {
    /// Before what their queue pairs are made of.
    groups: Vec<RdmaGroup>,
    station: Station,
    events: Arc<EventChannel>,
    /// Events that nobody has waited for yet.
    seen: HashSet<(IdKey, EventKind)>,
    seed: [u8; 16],
    local: IpAddr,
    remote: SocketAddr,
    connections: u32,
}

impl Bundle {
    /// Prepares to connect from `local` to `remote`, where tokens are derived from `seed`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Limit`] where the device cannot do what the settings ask for.
    pub fn new(local: &Endpoint, remote: SocketAddr, seed: [u8; 16], settings: Settings) -> Result<Self, ConnectError> {
        let account = Account::new(settings.depth, settings.connections_max);
        let station = Station::new(hold(local.address)?, local.medium, settings, account)?;
        let groups = station.groups();
        let events = EventChannel::new()?;
        let local = local.address;
        let seen = HashSet::new();
        Ok(Self { groups, station, events, seen, seed, local, remote, connections: 0 })
    }

    /// Connects until there are this many.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] when `deadline` passes, and why else a queue pair did not come up. Those that are up
    /// stay.
    pub fn grow(&mut self, connections: u32, deadline: Instant) -> Result<(), ConnectError> {
        while self.connections < connections {
            let count = (connections - self.connections).min(BATCH as u32);
            let mut new = Vec::with_capacity(BATCH);
            for (index, id) in (self.connections..).zip(self.resolve(count, deadline)?) {
                new.push(self.dial(id, index, deadline)?);
            }
            let keys = new.iter().map(|queue_pair| queue_pair.id().key()).collect();
            self.await_all(keys, EventKind::Established, "waiting for the peer to accept", deadline)?;
            for queue_pair in new {
                let group = self.connections as usize % self.groups.len();
                self.groups[group].add(queue_pair);
                self.connections += 1;
            }
        }
        Ok(())
    }

    /// Identifiers of connections to the other end, address and route resolved.
    fn resolve(&mut self, count: u32, deadline: Instant) -> Result<Vec<Id>, ConnectError> {
        let mut ids = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let mut id = Id::new(&self.events)?;
            // iWARP has no such option: its timeouts are TCP's.
            let _ = id.set_ack_timeout(ack_timeout_exponent(self.station.medium));
            id.resolve_address(SocketAddr::new(self.local, 0), self.remote, until(deadline))?;
            ids.push(id);
        }
        let keys = ids.iter().map(Id::key).collect::<Vec<_>>();
        self.await_all(keys.clone(), EventKind::AddressResolved, "resolving the address", deadline)?;
        if !ids.iter().all(|id| self.station.held.device.has(id)) {
            return Err(VerbsError::OtherDevice.into());
        }
        for id in &mut ids {
            id.resolve_route(until(deadline))?;
        }
        self.await_all(keys, EventKind::RouteResolved, "resolving the route", deadline)?;
        Ok(ids)
    }

    /// Asks for connection `index` by `id`, or by another where `id` has been given a port that is taken.
    fn dial(&mut self, mut id: Id, index: u32, deadline: Instant) -> Result<QueuePair, ConnectError> {
        let request = Request::Payload(token(&self.seed, index)).encode();
        let mut tries = 1..PORT_TRIES;
        loop {
            let queue_pair = self.station.queue_pair(id, index)?;
            match queue_pair.id().connect(&parameters(&request)) {
                Err(error) if is_port_taken(&error) && tries.next().is_some() => {
                    drop(queue_pair);
                    id = self.resolve(1, deadline)?.remove(0);
                }
                outcome => {
                    outcome?;
                    // Not before: those of a queue pair that is given up would complete. The other end is silent until
                    // it has been greeted.
                    self.station.post_receives(&queue_pair, index)?;
                    return Ok(queue_pair);
                }
            }
        }
    }

    /// Sends the first message on each new connection. To be called once the other end has them all.
    ///
    /// # Errors
    ///
    /// Why one was lost.
    pub fn greet(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        for group in &mut self.groups {
            group.greet(deadline)?;
        }
        Ok(())
    }

    /// The groups, each for a thread.
    pub fn groups(&mut self) -> impl Iterator<Item = &mut dyn Group> {
        self.groups.iter_mut().map(|group| group as &mut dyn Group)
    }

    /// How many there are.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// The medium.
    pub fn medium(&self) -> Medium {
        self.station.medium
    }

    /// Device and addresses, for a person.
    pub fn describe(&self) -> String {
        let device = &self.station.held.device;
        let kind = if self.station.medium == Medium::RdmaHardware { "hardware" } else { "software" };
        let name = if device.is_iwarp() { "iWARP" } else { "RDMA" };
        format!("{name} over {} ({kind}), {} > {}", device.name(), self.local, self.remote.ip())
    }

    /// Waits for an event of the `wanted` kind on each of `keys`. Other events are kept until they are asked for.
    fn await_all(
        &mut self,
        mut keys: Vec<IdKey>,
        wanted: EventKind,
        what: &'static str,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        loop {
            self.station.check()?;
            while let Some(event) = self.events.next_event()? {
                check_event(&event, what)?;
                self.seen.insert((event.id, event.kind));
            }
            keys.retain(|&key| !self.seen.remove(&(key, wanted)));
            if keys.is_empty() {
                return Ok(());
            }
            if until(deadline).is_zero() {
                return Err(ConnectError::Timeout(what));
            }
            sleep_on([self.events.as_fd(), self.station.wake.as_fd()], until(deadline).min(LOOK_AGAIN));
        }
    }
}

/// The accepting end of a bundle: listens at every address that counts, until the first request says which device it
/// is to be.
pub struct Gate {
    groups: Vec<RdmaGroup>,
    station: Option<Station>,
    listeners: Vec<(Id, Endpoint, Held)>,
    events: Arc<EventChannel>,
    seed: [u8; 16],
    settings: Settings,
    tokens: HashMap<[u8; 16], u32>,
    connections: u32,
}

impl Gate {
    /// Listens at each of `endpoints`, on a port of `ports` or else of the system's choice.
    ///
    /// # Errors
    ///
    /// Why it listens at none of them.
    pub fn new(
        endpoints: &[Endpoint],
        ports: Option<&RangeInclusive<u16>>,
        seed: [u8; 16],
        settings: Settings,
    ) -> Result<Self, ConnectError> {
        let events = EventChannel::new()?;
        let mut listeners = Vec::new();
        let mut failure = ConnectError::Os(Errno::ADDRNOTAVAIL);
        for endpoint in endpoints {
            let held = hold(endpoint.address)?;
            match listening(&events, endpoint.address, ports, BACKLOG) {
                Ok(id) => listeners.push((id, endpoint.clone(), held)),
                Err(error) => failure = error.into(),
            }
        }
        if listeners.is_empty() {
            return Err(failure);
        }
        let (groups, tokens) = (Vec::new(), HashMap::new());
        Ok(Self { groups, station: None, listeners, events, seed, settings, tokens, connections: 0 })
    }

    /// Where it listens.
    pub fn endpoints(&self) -> Vec<(Endpoint, SocketAddr)> {
        let known = self.listeners.iter();
        known.filter_map(|(id, endpoint, _)| Some((endpoint.clone(), id.local_address()?))).collect()
    }

    /// Accepts until there are this many, or until the other end is `interrupted`: it has something else to say.
    ///
    /// # Errors
    ///
    /// As [`Bundle::grow`]; [`ConnectError::Timeout`] also for the interruption.
    pub fn grow(
        &mut self,
        connections: u32,
        deadline: Instant,
        interrupted: impl Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let what = "waiting for connections";
        if let Some(most) = self.station.as_ref().map(|station| station.settings.connections_max)
            && connections > most
        {
            return Err(ConnectError::Limit { what: "queue pairs", most, wanted: connections });
        }
        self.tokens.extend((self.connections..connections).map(|index| (token(&self.seed, index), index)));
        let mut accepted: HashMap<u32, QueuePair> = HashMap::new();
        let mut pending = HashSet::new();
        let wanted = (connections - self.connections) as usize;
        while accepted.len() < wanted || !pending.is_empty() {
            if let Some(station) = &self.station {
                station.check()?;
            }
            if until(deadline).is_zero() || interrupted() {
                return Err(ConnectError::Timeout(what));
            }
            let Some(event) = self.events.next_event()? else {
                match &self.station {
                    Some(station) => sleep_on([self.events.as_fd(), station.wake.as_fd()], LOOK_AGAIN)[0],
                    None => sleep_on([self.events.as_fd()], LOOK_AGAIN)[0],
                };
                continue;
            };
            if event.kind == EventKind::Established {
                pending.remove(&event.id);
            } else if event.incoming.is_none() {
                check_event(&event, what)?;
            }
            let Some(id) = event.incoming else { continue };
            let Some(Request::Payload(token)) = Request::decode(&event.private_data) else {
                id.reject();
                continue;
            };
            let Some(index) = self.tokens.remove(&token) else {
                id.reject();
                continue;
            };
            let (key, queue_pair) = (id.key(), self.accept(id, index)?);
            pending.insert(key);
            accepted.insert(index, queue_pair);
        }
        for index in self.connections..connections {
            let queue_pair = accepted.remove(&index).expect("one for each token");
            let group = index as usize % self.groups.len();
            self.groups[group].add(queue_pair);
        }
        self.connections = connections;
        Ok(())
    }

    fn accept(&mut self, mut id: Id, index: u32) -> Result<QueuePair, ConnectError> {
        if self.station.is_none() {
            let known = self.listeners.iter().find(|(.., held)| held.device.has(&id));
            let (_, endpoint, held) = known.ok_or(VerbsError::OtherDevice)?;
            // As many as there may be, which may be more than will come: this device's own limit is met when it is.
            let Settings { depth, connections_max: wanted, threads, .. } = self.settings;
            let connections_max = wanted.min(connections_limit(endpoint, depth, wanted, threads)?);
            let settings = Settings { connections_max, ..self.settings };
            // As at the other end, which knows nothing of this limit.
            let account = Account::new(depth, wanted);
            let station = Station::new(held.clone(), endpoint.medium, settings, account)?;
            self.groups = station.groups();
            self.station = Some(station);
        }
        let station = self.station.as_ref().expect("just made");
        let _ = id.set_ack_timeout(ack_timeout_exponent(station.medium));
        let queue_pair = station.queue_pair(id, index)?;
        station.post_receives(&queue_pair, index)?;
        queue_pair.id().accept(&parameters(&[]))?;
        Ok(queue_pair)
    }

    /// Waits for the first message on each new connection.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] when `deadline` passes, and why a connection was lost.
    pub fn await_greetings(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        for group in &mut self.groups {
            group.await_greetings(deadline)?;
        }
        Ok(())
    }

    /// The groups, each for a thread.
    pub fn groups(&mut self) -> impl Iterator<Item = &mut dyn Group> {
        self.groups.iter_mut().map(|group| group as &mut dyn Group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_enough_for_all_that_may_be_on_its_way() {
        for (depth, connections) in (1..=1024).flat_map(|depth| [(depth, 1), (depth, FEW + 1)]) {
            let account = Account::new(depth, connections);
            assert_eq!(account.receives % run::RECEIVE_SLOTS, 0, "the slots take turns");
            // The other end's data, and credits for all of our own.
            let credits = account.window / account.credit;
            assert!(account.receives >= account.window + credits, "{account:?}");
            assert!(account.sends >= account.depth + credits && account.credit <= account.window, "{account:?}");
        }
    }

    #[test]
    fn tokens_differ() {
        assert_eq!(token(&[1; 16], 7), token(&[1; 16], 7));
        assert_ne!(token(&[1; 16], 7), token(&[1; 16], 8));
        assert_ne!(token(&[1; 16], 7), token(&[2; 16], 7));
    }
}
