//! RDMA lanes: which devices are used, dialling lanes, and listening for lanes.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender as Post, TryRecvError, bounded};
use rd_proto::control::{Endpoint as Offered, Policy, RailAddress, RdmaKind};
use rd_proto::handshake::{ControlChannel, LaneId, SessionId, SessionSecret, connect_join, listen};
use rd_proto::handshake::{HandshakeError, Key};
use rd_proto::session::RDMA_LANE_FIRST;
use std::net::{IpAddr, SocketAddr};

use super::link::{AUTHENTICATE_MAX, LinkError, rng};
use super::listen::Registry;
use super::rails::{self, Rail};
use super::{Event, announce};
use crate::log;
use crate::options::RailChoice;
use crate::transport::rdma::{self, Adapters, Connection, Endpoint, LaneRequest, Listener, LoadError};
use crate::transport::{Lane, Medium, Report, unmapped};

/// Maximum time for bringing up one RDMA lane. The kernel itself waits 104 s for a host without RDMA.
const DIAL_MAX: Duration = Duration::from_secs(4);

/// How long the other end may take to announce its endpoints under the policy `rdma`. It opens its sink first.
const TOLD_MAX: Duration = Duration::from_secs(9);

/// Maximum share of that time for one pair of addresses.
const PAIR_MAX: Duration = Duration::from_millis(1500);

/// How often a listening end checks for devices that have come or gone.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How long the devices may take to answer. Failed firmware never does. The other end waits longer for the offer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Why no pair of addresses can be tried.
pub const NO_COMMON_VERSION: &str = "the RDMA devices of the two ends have no addresses of the same IP version";

/// Why an end that is dialled by RDMA cannot be.
pub const LISTENS_NOWHERE: &str = "the other end listens on no RDMA address; run rddoctor there (ports, locked memory), \
                                   and see its --port-range";

type Answer = Result<Vec<Endpoint>, String>;

/// An answer that did not come in time. The thread that waits for it may hold locks.
static LATE: Mutex<Option<Receiver<Answer>>> = Mutex::new(None);

/// Returns every RDMA-capable address of this host. Takes some milliseconds, or 3 s if a device does not answer.
fn endpoints() -> Answer {
    let no_answer = || Err("the RDMA devices do not answer".to_owned());
    let late = || crate::locked(&LATE);
    let earlier = late().as_ref().map(|answer| answer.try_recv());
    match earlier {
        Some(Err(TryRecvError::Empty)) => return no_answer(),
        None | Some(Err(TryRecvError::Disconnected)) => {}
        Some(Ok(answer)) => {
            *late() = None;
            return answer;
        }
    }
    if let Some(lacking) = LoadError::of_kernel() {
        return Err(lacking.to_string());
    }
    let ask = || rdma::endpoints().map_err(|reason| reason.to_string());
    let (post, answer) = bounded(1);
    // A device that does not answer would block the caller.
    if crate::spawn("rdma-ask", 2 << 20, move || post.send(ask()).is_ok()).is_err() {
        return ask();
    }
    match answer.recv_timeout(ANSWER_MAX) {
        Ok(endpoints) => endpoints,
        Err(_) => {
            log::info(|| format!("the RDMA devices have not answered within {} s", ANSWER_MAX.as_secs()));
            *late() = Some(answer);
            no_answer()
        }
    }
}

/// Returns the best kind of RDMA device that this host has, as far as its devices answer.
pub fn available() -> RdmaKind {
    let kinds = endpoints().unwrap_or_default().into_iter().map(|endpoint| match endpoint.medium {
        Medium::RdmaHardware => RdmaKind::Hardware,
        _ => RdmaKind::Software,
    });
    kinds.max().unwrap_or(RdmaKind::None)
}

/// Returns the addresses whose devices the policy allows.
///
/// # Errors
///
/// Why there is no such address.
pub fn candidates(policy: Policy) -> Result<Vec<Endpoint>, LinkError> {
    let mut endpoints = endpoints().map_err(LinkError::Transport)?;
    if policy == Policy::Auto {
        endpoints.retain(|endpoint| endpoint.medium == Medium::RdmaHardware);
    }
    if endpoints.is_empty() {
        return Err(LinkError::Transport("only software RDMA devices, which --transport auto does not use".to_owned()));
    }
    Ok(endpoints)
}

/// Dials the RDMA lanes of one session.
pub struct Dialing {
    adapters: Arc<Adapters>,
    policy: Policy,
    ticket: [u8; 16],
    session: SessionId,
    secret: SessionSecret,
    reached: IpAddr,
    remote: Mutex<Option<Vec<Offered>>>,
    remote_known: Condvar,
    /// Number of the pair of addresses that the next attempt tries first.
    next_pair: AtomicUsize,
}

impl Dialing {
    /// Creates the dialler. `ticket` is from the listening end's offer. `reached` is the address of the first lane's
    /// other end.
    pub fn new(
        adapters: Arc<Adapters>,
        policy: Policy,
        ticket: [u8; 16],
        session: SessionId,
        secret: SessionSecret,
        reached: IpAddr,
    ) -> Self {
        let (remote, remote_known, next_pair) = Default::default();
        Self { adapters, policy, ticket, session, secret, reached, remote, remote_known, next_pair }
    }

    /// Records the RDMA listeners that the peer has now.
    pub fn handle_endpoints(&self, offered: &[Offered]) {
        *crate::locked(&self.remote) = Some(offered.to_vec());
        self.remote_known.notify_all();
    }

    /// Returns the rails beside the first lane, whose two addresses are `first`.
    pub(super) fn find_rails(&self, choice: &RailChoice, first: [IpAddr; 2], told: &[RailAddress]) -> Vec<Rail> {
        let local = candidates(self.policy).unwrap_or_default();
        let remote = crate::locked(&self.remote).clone().unwrap_or_default();
        rails::pair_devices(choice, first, &rails::here(), told, &local, &remote)
    }

    /// Tries the pair of addresses of a rail. Without a rail, tries all pairs of addresses, best first. If there is no
    /// time for all, the next attempt begins with the rest.
    ///
    /// # Errors
    ///
    /// Why the last pair failed. Takes some seconds at most.
    pub(super) fn dial(
        &self,
        lane: LaneId,
        rail: Option<&Rail>,
        report: Report,
    ) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        let local = candidates(self.policy)?;
        let remote = {
            let known = crate::locked(&self.remote);
            let patience = if self.policy == Policy::Rdma { TOLD_MAX } else { DIAL_MAX };
            let waited = self.remote_known.wait_timeout_while(known, patience, |remote| remote.is_none());
            let told = waited.expect("no panic with it locked").0.clone();
            told.ok_or_else(|| {
                LinkError::Transport("the other end did not report its RDMA devices in time".to_owned())
            })?
        };
        let deadline = Instant::now() + DIAL_MAX;
        let mut failure = LinkError::Transport(match rail {
            Some(rail) => format!("{rail} does not connect two RDMA devices"),
            None if remote.is_empty() => LISTENS_NOWHERE.to_owned(),
            None => NO_COMMON_VERSION.to_owned(),
        });
        let mut pairs = rdma::pairs(&local, &remote, Some(self.reached));
        if let Some(rail) = rail {
            pairs.retain(|(local, remote)| [local.address, unmapped(remote.address).ip()] == [rail.local, rail.peer]);
        }
        let (first, count) = (self.next_pair.load(Ordering::Relaxed), pairs.len());
        pairs.rotate_left(first.checked_rem(count).unwrap_or(0));
        let mut tried = 0;
        for (local, remote) in pairs {
            let pair_deadline = deadline.min(Instant::now() + PAIR_MAX);
            match self.dial_pair(lane, local, remote.address, pair_deadline, Arc::clone(&report)) {
                Ok(made) => {
                    self.next_pair.store(0, Ordering::Relaxed);
                    return Ok(made);
                }
                Err(error) => {
                    let (device, from, to) = (&local.device, local.address, unmapped(remote.address));
                    failure = LinkError::Transport(format!("{device} {from} > {to}: {error}"));
                }
            }
            tried += 1;
            if Instant::now() >= deadline {
                break;
            }
        }
        self.next_pair.store(pair_after(first, tried, count), Ordering::Relaxed);
        Err(failure)
    }

    fn dial_pair(
        &self,
        lane: LaneId,
        local: &Endpoint,
        remote: SocketAddr,
        deadline: Instant,
        report: Report,
    ) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
        let hello = LaneRequest { ticket: self.ticket, index: lane.index, generation: lane.generation };
        let broken = |error: rdma::ConnectError| LinkError::Transport(error.to_string());
        let mut connection = rdma::connect(&self.adapters, local, remote, &hello, deadline).map_err(broken)?;
        let (state, hello) = connect_join(&self.secret, self.session, lane, &mut rng());
        connection.send(&hello).map_err(broken)?;
        let reply = connection.receive(deadline).map_err(broken)?;
        let (established, confirm) = state.finish(&reply)?;
        connection.send(&confirm).map_err(broken)?;
        let made = connection.into_lane(established.token, deadline, report).map_err(broken)?;
        Ok((made, established.control))
    }
}

/// Returns the pair of addresses with which the next attempt begins, after one that began with `first` and failed with
/// `tried` of `count` pairs. The best pair if all have failed.
fn pair_after(first: usize, tried: usize, count: usize) -> usize {
    if tried < count { (first + tried) % count } else { 0 }
}

/// Listens for RDMA lanes, while it lives, at every address whose device the policy allows. Reports the addresses to
/// the engine.
pub struct Listening {
    _stop: Post<()>,
}

/// Everything that a listening thread needs.
pub struct Service {
    /// The adapters with which the pool is registered.
    pub adapters: Arc<Adapters>,
    /// Determines which devices are used.
    pub policy: Policy,
    /// Ports to choose from.
    pub ports: Option<RangeInclusive<u16>>,
    /// The ticket without which a connection is ignored.
    pub ticket: [u8; 16],
    /// The session to which these lanes belong.
    pub session: SessionId,
    /// The session that is served. By the time a lane has authenticated, that may be a different session.
    pub registry: Arc<Mutex<Registry>>,
    /// Receives changes of the endpoints.
    pub post: Post<Event>,
}

impl Service {
    /// Starts the listening thread.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn start(self) -> std::io::Result<Listening> {
        let (stop, stopped) = bounded(0);
        crate::spawn("rdma-serve", 2 << 20, move || {
            let (mut listeners, mut failed) = (HashMap::new(), HashMap::new());
            let mut told = None;
            loop {
                let offered = self.refresh(&mut listeners, &mut failed);
                if told.as_ref() != Some(&offered) {
                    told = Some(offered.clone());
                    let _ = self.post.send(Event::Endpoints(offered));
                }
                if stopped.recv_timeout(LOOK_AGAIN) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Listening { _stop: stop })
    }

    /// Listens at each address where no listener is yet. `failed` holds the reasons that have been logged.
    fn refresh(
        &self,
        listeners: &mut HashMap<IpAddr, (Listener, Endpoint)>,
        failed: &mut HashMap<IpAddr, String>,
    ) -> Vec<Offered> {
        listeners.retain(|_, (listener, _)| listener.is_listening());
        for endpoint in candidates(self.policy).unwrap_or_default() {
            if listeners.contains_key(&endpoint.address) {
                continue;
            }
            let (session, registry) = (self.session, Arc::clone(&self.registry));
            let on_incoming = Box::new(move |connection, _hello| {
                // A connection that fails to authenticate just ends. The peer reports why.
                let _ = accept(connection, session, &registry);
            });
            let ports = self.ports.clone();
            match rdma::listen(&self.adapters, &endpoint, ports, self.ticket, on_incoming) {
                Ok(listener) => {
                    failed.remove(&endpoint.address);
                    listeners.insert(endpoint.address, (listener, endpoint));
                }
                Err(error) => {
                    // Each look tries again, so a reason is logged only when it changes.
                    let reason = error.to_string();
                    if failed.get(&endpoint.address) != Some(&reason) {
                        let Endpoint { device, address, .. } = &endpoint;
                        log::debug("", || format!("{device} {address}: cannot listen for RDMA lanes: {reason}"));
                        failed.insert(endpoint.address, reason);
                    }
                }
            }
        }
        let mut offered: Vec<Offered> =
            listeners.values().map(|(listener, endpoint)| endpoint.offered(listener.port())).collect();
        offered.sort_by_key(|endpoint| endpoint.address);
        offered
    }
}

fn accept(mut connection: Connection, served: SessionId, registry: &Mutex<Registry>) -> Result<(), LinkError> {
    let deadline = Instant::now() + AUTHENTICATE_MAX;
    let broken = |error: rdma::ConnectError| LinkError::Transport(error.to_string());
    let hello = connection.receive(deadline).map_err(broken)?;
    // The adapters hold the buffers of one session, which a lane of another session must not use.
    let secret = |session| crate::locked(registry).secret(session);
    let lookup = |session| if session == served { secret(session) } else { None };
    // Only further lanes come by RDMA. The session's secret authenticates them, so this key is never used.
    let no_key = Key::from_random([0; 32]);
    let (listening, reply) = listen(&no_key, lookup, &hello, &mut rng()).map_err(|refused| refused.error)?;
    if listening.is_first() || listening.lane().index < RDMA_LANE_FIRST {
        return Err(HandshakeError::Malformed.into());
    }
    connection.send(&reply).map_err(broken)?;
    let established = listening.finish(&connection.receive(deadline).map_err(broken)?)?;
    let accepted = crate::locked(registry).accept(established.session, established.lane);
    let post = accepted.ok_or(HandshakeError::UnknownSession)?;
    announce(&post, established.lane, |report| {
        let lane = connection.into_lane(established.token, deadline, report).map_err(broken)?;
        Ok((lane, established.control))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_is_left_out_for_lack_of_time() {
        let (mut first, mut tried) = (0, Vec::new());
        for _ in 0..2 {
            tried.extend((first..first + 3).map(|pair| pair % 5));
            first = pair_after(first, 3, 5);
        }
        assert_eq!(tried, [0, 1, 2, 3, 4, 0]);
        assert_eq!(pair_after(3, 5, 5), 0, "all have failed");
        assert_eq!(pair_after(4, 1, 2), 1, "there are fewer now");
        assert_eq!(pair_after(4, 0, 0), 0, "there is none now");
    }
}
