//! A bundle over RDMA: reliable queue pairs between two devices, many on one completion queue, for measurements.
//!
//! Each queue pair is requested with its own token. Both ends derive the tokens from a seed that came over the
//! session's sealed control frames. A token is accepted once, as for the payload queue pair of a lane.
//!
//! # Coming up
//!
//! The connecting end resolves and connects `BATCH` identifiers at a time ([`Bundle::grow`]), and the other end accepts
//! them ([`BundleListener::grow`]). When both ends have all queue pairs, the connecting end sends one short message on
//! each, and the other end waits for it: on iWARP the accepting end may not send before.
//!
//! # Memory
//!
//! There are two slots to receive into and one to send from, whatever the number of queue pairs. Messages in sequence
//! overwrite each other, as they do in perftest. In an echo only one message is on its way at a time on each queue
//! pair, and the two slots take turns, so that with one queue pair each message is intact while it is sent back.

mod run;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flume::{Receiver, bounded};
use rd_verbs::{CompletionQueue, Error as VerbsError, EventKind, Id, MessageRegion, ProtectionDomain, QueuePair};
use rustix::fd::AsFd;
use rustix::io::Errno;

use self::run::RdmaGroup;
use super::cm::{Cm, parameters, within};
use super::devices::{Held, hold};
use super::listener::{Arrivals, Expected, Listener};
use super::request::Request;
use super::{ConnectError, Endpoint, RegisterError, Wake, sleep_on, until};
use crate::transport::Medium;
use crate::transport::bundle::{Group, Settings};

/// Number of identifiers that are resolved and connected at a time.
const BATCH: u32 = 32;

/// Longest sleep while connections come up, so that the removal of a device is noticed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Minimum length of a send queue, so that not every message of an echo needs a completion.
const SENDS_MIN: u32 = 16;

/// Up to [`FEW`] connections have a window of at least [`WINDOW_MIN_OF_FEW`] messages each. A credit costs a packet and
/// its acknowledgement; one for every eighth message of 64 KiB would be a hundredth of all packets. A sweep needs the
/// completion queue's room for more connections.
const FEW: u32 = 16;
const WINDOW_MIN_OF_FEW: u32 = 128;

/// Number of receives beyond those that the flow control needs: for the greeting.
const SPARE: u32 = 2;

const TOKEN_CONTEXT: &str = "rdma-pipe v1 measurement token";

/// Limits that follow from the settings, the same at both ends.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Maximum number of messages sent and not completed.
    depth: u32,
    /// Maximum number of messages sent and not credited.
    window: u32,
    /// Number of messages that one credit stands for.
    credit: u32,
    receives: u32,
    sends: u32,
}

impl Account {
    /// `connections`: number of connections requested, which share a completion queue.
    fn new(depth: u16, connections: u32) -> Self {
        let depth = u32::from(depth);
        let window = if connections <= FEW { (2 * depth).max(WINDOW_MIN_OF_FEW) } else { 2 * depth };
        let credit = (window / 4).max(1);
        let credits = window / credit;
        // An even number, so that the two slots keep taking turns.
        let receives = (window + credits + SPARE).next_multiple_of(2);
        Self { depth, window, credit, receives, sends: (depth + credits + SPARE).max(SENDS_MIN) }
    }

    /// Maximum number of completions that one queue pair may have waiting.
    fn completions(&self) -> u32 {
        self.receives + self.sends
    }
}

/// Returns how many queue pairs of this depth a device can have on one completion queue, if `wanted` are requested.
///
/// # Errors
///
/// Fails if the device cannot be opened or queried.
pub fn connections_limit(endpoint: &Endpoint, depth: u16, wanted: u32) -> Result<u32, ConnectError> {
    let attributes = hold(endpoint.address)?.device.attributes()?;
    Ok((attributes.max_cqe / Account::new(depth, wanted).completions()).min(attributes.max_qp))
}

/// The queue pairs on one device, at either end.
struct QueuePairs {
    /// Declared first, because it must be dropped before the objects that its queue pairs are made of.
    group: RdmaGroup,
    cm: Cm,
}

impl QueuePairs {
    fn new(held: Held, medium: Medium, settings: Settings, account: Account) -> Result<Self, ConnectError> {
        let cm = Cm::new(held, medium)?;
        let device = &cm.held.device;
        let attributes = device.attributes()?;
        let entries = account.completions().saturating_mul(settings.connections_max);
        within("outstanding receives", attributes.max_qp_wr, account.receives.max(account.sends))?;
        within("completions", attributes.max_cqe, entries)?;
        within("queue pairs", attributes.max_qp, settings.connections_max)?;
        within("bytes in one message", device.port()?.max_message_bytes, settings.message_bytes_max)?;
        let domain = ProtectionDomain::new(device)?;
        let slot_bytes = (settings.message_bytes_max as usize).max(run::CREDIT_BYTES).next_multiple_of(64);
        let region = MessageRegion::new(&domain, run::SLOTS, slot_bytes)
            .map_err(|error| RegisterError::registering(error, run::SLOTS as usize * slot_bytes))?;
        let queue = CompletionQueue::new(device, entries)?;
        let group = RdmaGroup::new(&queue, region, domain, &cm.held, account, settings);
        Ok(Self { group, cm })
    }

    /// Waits until the new queue pairs are established, and adds them in their order.
    fn establish(&mut self, new: Vec<QueuePair>, what: &'static str, deadline: Instant) -> Result<(), ConnectError> {
        let keys = new.iter().map(|queue_pair| queue_pair.id().key()).collect();
        self.cm.await_all(keys, EventKind::Established, what, deadline)?;
        new.into_iter().for_each(|queue_pair| self.group.add(queue_pair));
        Ok(())
    }

    fn connections(&self) -> u32 {
        self.group.connections() as u32
    }
}

/// Returns the token of one queue pair.
fn token(seed: &[u8; 16], index: u32) -> [u8; 16] {
    let derived = blake3::derive_key(TOKEN_CONTEXT, &[&seed[..], &index.to_le_bytes()].concat());
    derived[..16].try_into().expect("half of it")
}

/// The connecting end of a bundle.
pub struct Bundle {
    pairs: QueuePairs,
    seed: [u8; 16],
    local: IpAddr,
    remote: SocketAddr,
}

impl Bundle {
    /// Prepares to connect from `local` to `remote`, with tokens derived from `seed`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Limit`] if the device cannot do what the settings require.
    pub fn new(local: &Endpoint, remote: SocketAddr, seed: [u8; 16], settings: Settings) -> Result<Self, ConnectError> {
        let account = Account::new(settings.depth, settings.connections_max);
        let pairs = QueuePairs::new(hold(local.address)?, local.medium, settings, account)?;
        Ok(Self { pairs, seed, local: local.address, remote })
    }

    /// Connects until there are `connections` connections.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] if `deadline` passes; otherwise why a queue pair did not come up. Queue
    /// pairs that are up are kept.
    pub fn grow(&mut self, connections: u32, deadline: Instant) -> Result<(), ConnectError> {
        let ends = (self.local, self.remote);
        while self.connections() < connections {
            let first = self.connections();
            let count = (connections - first).min(BATCH);
            let ids = self.pairs.cm.resolve(count as usize, self.local, self.remote, deadline)?;
            let mut new = Vec::with_capacity(count as usize);
            for (index, id) in (first..).zip(ids) {
                let request = Request::Payload(token(&self.seed, index));
                let pairs = &mut self.pairs;
                let make = |id| pairs.group.queue_pair(id);
                let queue_pair = pairs.cm.connect(id, ends, &request, deadline, make)?;
                // Posted only now, because receives of a queue pair that was given up would complete. The other end is
                // silent until it has been greeted.
                pairs.group.post_receives(&queue_pair, index)?;
                new.push(queue_pair);
            }
            self.pairs.establish(new, "waiting for the peer to accept", deadline)?;
        }
        Ok(())
    }

    /// Sends the first message on each new connection. To be called once the other end has all connections.
    ///
    /// # Errors
    ///
    /// Why a connection was lost.
    pub fn greet(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        self.pairs.group.greet(deadline)
    }

    /// Returns all connections as one group.
    pub fn group(&mut self) -> &mut dyn Group {
        &mut self.pairs.group
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> u32 {
        self.pairs.connections()
    }

    /// Returns the medium.
    pub fn medium(&self) -> Medium {
        self.pairs.cm.medium
    }

    /// Returns the device and addresses in readable form.
    pub fn describe(&self) -> String {
        format!("{}, {} > {}", self.pairs.cm.describe(), self.local, self.remote.ip())
    }
}

/// The accepting end of a bundle. Listens at every given address until the first request determines the device.
pub struct BundleListener {
    pairs: Option<QueuePairs>,
    listeners: Vec<(Listener, Endpoint)>,
    arrivals: Arc<Arrivals>,
    /// Connections to come, in their order: as many as the other end may request before this end
    /// learns that it wants more.
    expected: VecDeque<(Receiver<Id>, Expected)>,
    wake: Arc<Wake>,
    seed: [u8; 16],
    settings: Settings,
}

impl BundleListener {
    /// Listens at each of `endpoints`, on a port of `ports`, or of the system's choice if `None`.
    ///
    /// # Errors
    ///
    /// Why listening failed, if it failed at every endpoint.
    pub fn new(
        endpoints: &[Endpoint],
        ports: Option<&RangeInclusive<u16>>,
        seed: [u8; 16],
        settings: Settings,
    ) -> Result<Self, ConnectError> {
        let arrivals = Arc::default();
        let mut listeners = Vec::new();
        let mut failure = ConnectError::Os(Errno::ADDRNOTAVAIL);
        for endpoint in endpoints {
            match Listener::for_queue_pairs(endpoint, ports, &arrivals) {
                Ok(listener) => listeners.push((listener, endpoint.clone())),
                Err(error) => failure = error,
            }
        }
        if listeners.is_empty() {
            return Err(failure);
        }
        let wake = Arc::new(Wake::new().map_err(ConnectError::Os)?);
        let mut gate = Self { pairs: None, listeners, arrivals, expected: VecDeque::new(), wake, seed, settings };
        (0..BATCH).for_each(|index| gate.expect(index));
        Ok(gate)
    }

    fn expect(&mut self, index: u32) {
        let (post, came) = bounded(1);
        let expected = self.arrivals.expect(token(&self.seed, index), post, Arc::clone(&self.wake));
        self.expected.push_back((came, expected));
    }

    /// Returns the endpoints listened at, and the port of each.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Endpoint, u16)> {
        self.listeners.iter().map(|(listener, endpoint)| (endpoint, listener.port()))
    }

    /// Accepts until there are `connections` connections, or until `interrupted` is true because the other end
    /// has something else to say.
    ///
    /// # Errors
    ///
    /// As for [`Bundle::grow`]; [`ConnectError::Timeout`] also on interruption.
    pub fn grow(
        &mut self,
        connections: u32,
        deadline: Instant,
        interrupted: impl Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let what = "waiting for connections";
        let (first, most) = self
            .pairs
            .as_ref()
            .map_or((0, u32::MAX), |pairs| (pairs.connections(), pairs.group.settings.connections_max));
        within("queue pairs", most, connections)?;
        let mut accepted = Vec::new();
        for index in first..connections {
            let id = loop {
                if let Ok(id) = self.expected[0].0.try_recv() {
                    break id;
                }
                if let Some(pairs) = &self.pairs {
                    pairs.cm.held.check()?;
                }
                if until(deadline).is_zero() || interrupted() {
                    return Err(ConnectError::Timeout(what));
                }
                sleep_on([self.wake.as_fd()], LOOK_AGAIN);
                self.wake.clear();
            };
            self.expected.pop_front();
            self.expect(index + BATCH);
            accepted.push(self.accept(id, index)?);
        }
        let Some(pairs) = &mut self.pairs else { return Ok(()) };
        pairs.establish(accepted, what, deadline)
    }

    fn accept(&mut self, id: Id, index: u32) -> Result<QueuePair, ConnectError> {
        if self.pairs.is_none() {
            let mut known =
                self.listeners.iter().filter_map(|(_, endpoint)| Some((endpoint, hold(endpoint.address).ok()?)));
            let (endpoint, held) = known.find(|(_, held)| held.device.has(&id)).ok_or(VerbsError::OtherDevice)?;
            // Allows for as many connections as there may be, which may be more than will come. If that exceeds the
            // device's limit, the limit applies, and is reported when it is reached.
            let Settings { depth, connections_max: wanted, .. } = self.settings;
            let connections_max = wanted.min(connections_limit(endpoint, depth, wanted)?);
            let settings = Settings { connections_max, ..self.settings };
            // Computed as at the other end, which knows nothing of this limit.
            let account = Account::new(depth, wanted);
            self.pairs = Some(QueuePairs::new(held, endpoint.medium, settings, account)?);
        }
        let pairs = self.pairs.as_ref().expect("just made");
        let queue_pair = pairs.group.queue_pair(pairs.cm.adopt(id)?)?;
        pairs.group.post_receives(&queue_pair, index)?;
        queue_pair.id().accept(&parameters(&[]))?;
        Ok(queue_pair)
    }

    /// Waits for the first message on each new connection.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Timeout`] if `deadline` passes; otherwise why a connection was lost.
    pub fn await_greetings(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        self.pairs.iter_mut().try_for_each(|pairs| pairs.group.await_greetings(deadline))
    }

    /// Returns all connections as one group; `None` if there are none yet.
    pub fn group(&mut self) -> Option<&mut dyn Group> {
        self.pairs.as_mut().map(|pairs| &mut pairs.group as &mut dyn Group)
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
            // The other end's messages, and credits for all of this end's messages.
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
