//! Measures the wire between two hosts: the asking end ([`Driver`]) and the answering end ([`answer`]).
//!
//! The first connection is a session's first lane, authenticated like any other. It carries only sealed frames of
//! [`frames`]. The measured messages cross connections made for the measurement, a
//! [`bundle`](crate::transport::bundle): further TCP connections of the session, or RDMA queue pairs.
//!
//! In a run, one thread for each group of connections sends and receives. The calling thread waits for these threads
//! and for the other end, which may fail or vanish meanwhile.

use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rd_proto::control::{Endpoint as Offered, Frame as TransferFrame, Policy, Refusal, TEXT_BYTES_MAX};
use rd_proto::handshake::{ControlChannel, ControlError, Established, LaneId, SessionId, SessionSecret, connect_join};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use self::frames::{CONNECTIONS_MAX, Frame, Load, Run, Seen};
use super::link::{AUTHENTICATE_MAX, LinkError, authenticate, connect, connect_by, rng, send_last, send_plain};
use super::rails::Rail;
use super::rdma::{LISTENS_NOWHERE, NO_COMMON_VERSION, candidates};
use crate::fault::{Exit, errno_of, printable};
use crate::options::Transport;
use crate::transport::bundle::tcp::TcpGroup;
use crate::transport::bundle::{Assignment, Flow, Group, Measured, NO_THREAD, Progress, STACK_BYTES, Settings, Task};
use crate::transport::rdma::bundle::{Bundle, BundleListener, connections_limit};
use crate::transport::rdma::{ConnectError, pairs};
use crate::transport::{LaneError, Medium, tcp, unmapped};

pub mod frames;

/// How long the other end may take to answer a request.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long connections may take to come up: in all, and in addition for each connection.
const GROW_MAX: Duration = Duration::from_secs(5);
const GROW_EACH_MAX: Duration = Duration::from_millis(50);

/// Maximum time to try a pair of RDMA addresses.
const PAIR_MAX: Duration = Duration::from_millis(1500);

/// How long the answering end waits for the next request.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long an end continues after its sending time is over, so that data in flight can arrive.
const REST_MAX: Duration = Duration::from_secs(20);

/// Longest sleep during a run. Threads and frames wake the waiting thread earlier.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long to wait for the other end's reason when a connection has broken.
const REASON_MAX: Duration = Duration::from_millis(100);

/// Memory that the answering end may use for messages in one direction, over all its TCP connections, in bytes.
const MESSAGES_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of bytes that a receive call asks for if messages are shorter, and the maximum for all connections
/// together.
const RECEIVE_BYTES_MAX: usize = 256 << 10;
const RECEIVE_BYTES_TOGETHER: usize = 64 << 20;

/// Maximum number of TCP connections, because each one has a thread.
pub const TCP_CONNECTIONS_MAX: u32 = 4096;

/// Why a measurement ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PerfError {
    /// The connection that carries frames failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A measured connection failed.
    #[error(transparent)]
    Lane(LaneError),
    /// RDMA connections could not be made.
    #[error(transparent)]
    Rdma(#[from] ConnectError),
    /// The other end gave up.
    #[error("exit {exit}: {reason:?}")]
    Peer {
        /// Exit code that the failure leads to.
        exit: u8,
        /// Reason in the other end's words. Escape the text before printing it.
        reason: Vec<u8>,
    },
    /// The other end asked for more than is available.
    #[error("at most {most} {what} at a time")]
    TooMany {
        /// The resource.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// The system refused a call.
    #[error("{what}: {error}")]
    Os {
        /// The call that failed.
        what: &'static str,
        /// The error number.
        error: Errno,
    },
}

impl From<LaneError> for PerfError {
    fn from(error: LaneError) -> Self {
        match error {
            LaneError::Os { what: what @ NO_THREAD, error } => Self::Os { what, error },
            lost => Self::Lane(lost),
        }
    }
}

impl PerfError {
    /// Returns the exit code that the error leads to.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Link(LinkError::Os { what: "send" | "receive", .. } | LinkError::TimedOut | LinkError::Closed)
            | Self::Rdma(ConnectError::Lost(_))
            | Self::Lane(_) => Exit::LinkLost,
            Self::Link(LinkError::Os { .. } | LinkError::Transport(_) | LinkError::Refused(_))
            | Self::Rdma(_)
            | Self::TooMany { .. }
            | Self::Os { .. } => Exit::Connect,
            Self::Link(LinkError::Control(ControlError::Forged)) => Exit::Integrity,
            Self::Link(
                LinkError::Unexpected | LinkError::Frame(_) | LinkError::Handshake(_) | LinkError::Control(_),
            ) => Exit::Protocol,
            Self::Peer { exit, .. } => Exit::from_code(*exit),
        }
    }

    fn os(what: &'static str, error: &std::io::Error) -> Self {
        Self::Os { what, error: errno_of(error) }
    }
}

/// The connection that carries frames.
pub struct Link {
    stream: TcpStream,
    channel: ControlChannel,
    bytes: Vec<u8>,
}

impl Link {
    /// Makes a link from an authenticated first lane.
    ///
    /// # Errors
    ///
    /// The system's error when the socket's options are set.
    pub fn new(stream: TcpStream, channel: ControlChannel) -> Result<Self, PerfError> {
        let tuned = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(ANSWER_MAX)));
        tuned.map_err(|error| PerfError::os("socket", &error))?;
        Ok(Self { stream, channel, bytes: Vec::new() })
    }

    fn send(&mut self, frame: &Frame) -> Result<(), LinkError> {
        send_plain(&mut self.stream, &mut self.channel, &frame.encode())
    }

    /// Returns the next frame. Fails at `deadline`, or if the other end reports a failure.
    fn receive(&mut self, deadline: Instant) -> Result<Frame, PerfError> {
        loop {
            match self.take()? {
                Some(Frame::Failed { exit, reason }) => return Err(PerfError::Peer { exit, reason }),
                Some(frame) => return Ok(frame),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::TimedOut.into());
            }
            self.wait(None, left);
        }
    }

    /// Waits until input arrives or `bell` rings, for at most `limit`.
    fn wait(&self, bell: Option<&OwnedFd>, limit: Duration) {
        let limit = Timespec::try_from(limit).expect("not for ages");
        let mut list = vec![PollFd::new(&self.stream, PollFlags::IN)];
        list.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        // An error (EINTR) is a spurious wake-up.
        let _ = poll(&mut list, Some(&limit));
    }

    /// Whether there is input: a frame, or the end of the connection.
    fn has_input(&self) -> bool {
        let mut list = [PollFd::new(&self.stream, PollFlags::IN)];
        !self.bytes.is_empty() || poll(&mut list, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Takes the next frame if it has arrived completely.
    fn take(&mut self) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(record) = tcp::next_record(&self.bytes, 0).map_err(|_| LinkError::Unexpected)? {
                let (taken, mut plain) = (record.bytes(), Vec::new());
                let tcp::Record::Control(sealed) = record else { return Err(LinkError::Unexpected) };
                self.channel.open(sealed, &mut plain)?;
                self.bytes.drain(..taken);
                return Frame::decode(&plain).map(Some).map_err(|error| match TransferFrame::decode(&plain) {
                    // A busy listener refuses every connection.
                    Ok(Some(TransferFrame::Refuse(refusal))) => LinkError::Refused(refusal),
                    _ => error.into(),
                });
            }
            let mut piece = [0; 4096];
            match recv(&self.stream, &mut piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(LinkError::Closed),
                Ok((count, _)) => self.bytes.extend(&piece[..count]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(LinkError::Os { what: "receive", error }),
            }
        }
    }
}

/// Returns the maximum number of connections that this host can have with this depth.
pub fn connections_max(policy: Policy, depth: u16) -> u32 {
    let devices = if policy == Policy::Tcp { Vec::new() } else { candidates(policy).unwrap_or_default() };
    let limits = devices.iter().filter_map(|endpoint| connections_limit(endpoint, depth, u32::MAX).ok());
    limits.min().unwrap_or(TCP_CONNECTIONS_MAX).clamp(1, CONNECTIONS_MAX)
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Measurements at this end.
    pub here: Measured,
    /// What the other end saw.
    pub there: Seen,
}

/// The asking end of a measurement.
pub struct Driver {
    /// Declared before `link`, so that these connections are closed first and the other end sees all connections close
    /// at about the same time.
    connections: Connections,
    link: Link,
    policy: Policy,
    settings: Settings,
    address: SocketAddr,
    session: SessionId,
    secret: SessionSecret,
    rail: Option<Rail>,
    fell_back: Option<ConnectError>,
}

enum Connections {
    Tcp(Vec<TcpGroup>),
    Rdma(Box<Bundle>),
}

impl Driver {
    /// Opens a measurement on an authenticated first lane, and makes one connection. With `rail`, all connections use
    /// that rail. Otherwise they use the first lane's network, or the best RDMA device.
    ///
    /// # Errors
    ///
    /// [`PerfError`]; with the policy `rdma`, why RDMA is not available.
    pub(crate) fn open(
        stream: TcpStream,
        established: Established,
        transport: Transport,
        settings: Settings,
        rail: Option<Rail>,
    ) -> Result<Self, PerfError> {
        let address = stream.peer_addr().map_err(|error| PerfError::os("connection", &error))?;
        let Established { session, secret, control, .. } = established;
        let mut link = Link::new(stream, control)?;
        link.send(&Frame::Open(transport, settings))?;
        let Frame::Opened { seed, endpoints, .. } = link.receive(Instant::now() + ANSWER_MAX)? else {
            return Err(LinkError::Unexpected.into());
        };
        let Ok(Some(TransferFrame::Endpoints { endpoints, .. })) = TransferFrame::decode(&endpoints) else {
            return Err(LinkError::Unexpected.into());
        };
        let policy = transport.policy();
        let connections = Connections::Tcp(Vec::new());
        let mut driver = Self { connections, link, policy, settings, address, session, secret, rail, fell_back: None };
        match driver.open_rdma(seed, &endpoints) {
            Ok(bundle) => driver.connections = Connections::Rdma(Box::new(bundle)),
            Err(error @ PerfError::Peer { .. }) => return Err(error),
            Err(error) if policy == Policy::Rdma => return Err(error),
            Err(error) => {
                if let PerfError::Rdma(error) = error {
                    driver.fell_back = Some(error);
                }
                driver.grow(1)?;
            }
        }
        Ok(driver)
    }

    /// Makes the first RDMA connection over the best pair of addresses that works.
    fn open_rdma(&mut self, seed: [u8; 16], endpoints: &[Offered]) -> Result<Bundle, PerfError> {
        if self.policy == Policy::Tcp {
            return Err(LinkError::Transport("not requested".to_owned()).into());
        }
        let of_this_host = |error| LinkError::Transport(format!("this host: {error}"));
        let mut local = candidates(self.policy).map_err(of_this_host)?;
        let mut endpoints = endpoints.to_vec();
        if let Some(rail) = &self.rail {
            local.retain(|own| own.address == rail.local);
            endpoints.retain(|offered| unmapped(offered.address).ip() == rail.peer);
            if local.is_empty() || endpoints.is_empty() {
                return Err(LinkError::Transport(format!("{rail} does not connect two RDMA devices")).into());
            }
        }
        if endpoints.is_empty() {
            return Err(LinkError::Transport(LISTENS_NOWHERE.to_owned()).into());
        }
        let pairs = pairs(&local, &endpoints, Some(unmapped(self.address).ip()));
        if pairs.is_empty() {
            return Err(LinkError::Transport(NO_COMMON_VERSION.to_owned()).into());
        }
        self.link.send(&Frame::Grow { connections: 1, rdma: true })?;
        let deadline = Instant::now() + GROW_MAX;
        let mut failure = PerfError::Rdma(ConnectError::Timeout("connecting"));
        for (local, remote) in pairs {
            let attempt = Bundle::new(local, remote.address, seed, self.settings).and_then(|mut bundle| {
                bundle.grow(1, deadline.min(Instant::now() + PAIR_MAX))?;
                Ok(bundle)
            });
            match attempt {
                Ok(mut bundle) => {
                    self.await_grown(1, deadline)?;
                    bundle.greet(deadline)?;
                    return Ok(bundle);
                }
                Err(error) => failure = error.into(),
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        // The other end may know the reason better, and reports it at once.
        if let Some(Frame::Failed { exit, reason }) = self.link.take()? {
            return Err(PerfError::Peer { exit, reason });
        }
        Err(failure)
    }

    fn await_grown(&mut self, wanted: u32, deadline: Instant) -> Result<(), PerfError> {
        match self.link.receive(deadline)? {
            Frame::Grown(connections) if connections == wanted => Ok(()),
            _ => Err(LinkError::Unexpected.into()),
        }
    }

    /// Makes connections until there are this many. Does nothing if there are enough already.
    ///
    /// # Errors
    ///
    /// [`PerfError`]; the measurement cannot continue then.
    pub fn grow(&mut self, connections: u32) -> Result<(), PerfError> {
        if connections <= self.connections() {
            return Ok(());
        }
        let deadline = Instant::now() + GROW_MAX + GROW_EACH_MAX * connections;
        let rdma = matches!(self.connections, Connections::Rdma(_));
        self.link.send(&Frame::Grow { connections, rdma })?;
        let grown = match &mut self.connections {
            Connections::Rdma(bundle) => bundle.grow(connections, deadline).map_err(PerfError::from),
            Connections::Tcp(groups) => (groups.len() as u32..connections).try_for_each(|number| {
                let mut stream = match &self.rail {
                    Some(rail) => connect_by(rail, self.address.port(), deadline)?,
                    None => connect(self.address, deadline)?,
                };
                // The listener accepts each generation of a lane once, and no earlier generation afterwards.
                let lane = LaneId { index: 1, generation: number + 1 };
                let hello = connect_join(&self.secret, self.session, lane, &mut rng());
                authenticate(&mut stream, hello, deadline.min(Instant::now() + AUTHENTICATE_MAX))?;
                groups
                    .push(TcpGroup::new(stream, self.settings.poll).map_err(|error| PerfError::os("socket", &error))?);
                Ok(())
            }),
        };
        if let Err(error) = grown {
            return Err(match self.link.take() {
                Ok(Some(Frame::Failed { exit, reason })) => PerfError::Peer { exit, reason },
                // The other end is gone: no limit keeps more connections from being made.
                Err(lost) => lost.into(),
                Ok(_) => error,
            });
        }
        self.await_grown(connections, deadline)?;
        if let Connections::Rdma(bundle) = &mut self.connections {
            bundle.greet(deadline)?;
        }
        Ok(())
    }

    /// Number of connections.
    pub fn connections(&self) -> u32 {
        match &self.connections {
            Connections::Tcp(groups) => groups.len() as u32,
            Connections::Rdma(bundle) => bundle.connections(),
        }
    }

    /// The medium of the measured connections.
    pub fn medium(&self) -> Medium {
        match &self.connections {
            Connections::Tcp(_) => Medium::Tcp,
            Connections::Rdma(bundle) => bundle.medium(),
        }
    }

    /// Describes what is measured, for display: medium, device and addresses.
    pub fn describe(&self) -> String {
        match &self.connections {
            Connections::Tcp(_) => {
                format!("TCP to {}", self.rail.as_ref().map_or(unmapped(self.address).ip(), |rail| rail.peer))
            }
            Connections::Rdma(bundle) => bundle.describe(),
        }
    }

    /// Why TCP is measured although both ends have RDMA; otherwise `None`.
    pub fn fell_back(&self) -> Option<&ConnectError> {
        self.fell_back.as_ref()
    }

    /// Runs a load over all connections. With `verify`, the messages of an echo hold data made from that seed, and are
    /// compared when they come back. Otherwise the contents of messages do not matter.
    ///
    /// # Errors
    ///
    /// [`PerfError`]; the measurement cannot continue then.
    pub fn run(&mut self, run: Run, verify: Option<u64>) -> Result<Ran, PerfError> {
        self.link.send(&Frame::Run(run))?;
        match self.link.receive(Instant::now() + ANSWER_MAX)? {
            Frame::Go => {}
            _ => return Err(LinkError::Unexpected.into()),
        }
        let part = match run.load {
            Load::Echo => Task::Ask,
            Load::Stream => Task::Stream { sends: run.forward, receives: run.backward },
        };
        let mut groups = self.connections.groups();
        let (here, there) = go(&mut groups, part, run, verify, &mut self.link, true, |_| Ok(()))?;
        Ok(Ran { here, there: there.expect("waited for") })
    }

    /// Ends the measurement.
    pub fn close(mut self) {
        // If the other end is gone, it has ended as well.
        let _ = self.link.send(&Frame::Close);
    }
}

impl Connections {
    fn groups(&mut self) -> Vec<&mut dyn Group> {
        match self {
            Self::Tcp(groups) => groups.iter_mut().map(|group| group as &mut dyn Group).collect(),
            Self::Rdma(bundle) => vec![bundle.group()],
        }
    }
}

/// Runs the groups, and handles frames from the other end meanwhile. `begun` is called when all threads run. Returns
/// the result at this end, and also that of the other end if this end `asks`.
fn go(
    groups: &mut [&mut dyn Group],
    part: Task,
    run: Run,
    verify: Option<u64>,
    link: &mut Link,
    asks: bool,
    begun: impl FnOnce(&mut Link) -> Result<(), LinkError>,
) -> Result<(Measured, Option<Seen>), PerfError> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| PerfError::Os { what: "eventfd", error })?;
    let ring = || {
        let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
    };
    let progress = Progress::default();
    let count = groups.len();
    let connections: u64 = groups.iter().map(|group| group.connections() as u64).sum();
    let (sent, senders, running) = (AtomicU64::new(0), AtomicUsize::new(count), AtomicUsize::new(count));
    let failure: Mutex<Option<LaneError>> = Mutex::new(None);
    let tell_sent = |messages: u64| {
        sent.fetch_add(messages, Ordering::AcqRel);
        if senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            ring();
        }
    };
    let duration = Duration::from_micros(run.duration_us);
    let start = Instant::now();
    let deadline = start + duration + 2 * REST_MAX;
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(count);
        let mut before = 0;
        for group in groups.iter_mut() {
            let part_of = |connections_before: u64| {
                u128::from(run.messages) * u128::from(connections_before) / u128::from(connections.max(1))
            };
            let share = part_of(before + group.connections() as u64) - part_of(before);
            before += group.connections() as u64;
            let plan = Assignment {
                part,
                start,
                message_bytes: run.message_bytes as usize,
                messages: if run.messages == 0 { u64::MAX } else { share as u64 },
                receive_bytes: RECEIVE_BYTES_MAX.min(RECEIVE_BYTES_TOGETHER / count),
                duration,
                limit: REST_MAX,
                verify,
            };
            let (progress, tell_sent, ring, running, failure) = (&progress, &tell_sent, &ring, &running, &failure);
            let body = move || {
                let outcome = group.run(&plan, progress, tell_sent);
                if let Err(error) = &outcome {
                    crate::locked(failure).get_or_insert(error.clone());
                }
                running.fetch_sub(1, Ordering::AcqRel);
                ring();
                outcome
            };
            let builder = std::thread::Builder::new().name("perf".to_owned()).stack_size(STACK_BYTES);
            match builder.spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    progress.stop();
                    return Err(PerfError::os(NO_THREAD, &error));
                }
            }
        }
        let watched = begun(link).map_err(PerfError::from).and_then(|()| {
            let mut told = false;
            let mut seen = None;
            loop {
                if let Some(error) = crate::locked(&failure).clone() {
                    return Err(error.into());
                }
                if !told && senders.load(Ordering::Acquire) == 0 {
                    link.send(&Frame::Done(sent.load(Ordering::Acquire)))?;
                    told = true;
                }
                while let Some(frame) = link.take()? {
                    match frame {
                        Frame::Done(messages) => progress.expect(messages),
                        Frame::Seen(there) if asks => seen = Some(there),
                        Frame::Failed { exit, reason } => return Err(PerfError::Peer { exit, reason }),
                        _ => return Err(LinkError::Unexpected.into()),
                    }
                }
                if told && running.load(Ordering::Acquire) == 0 && (seen.is_some() || !asks) {
                    return Ok(seen);
                }
                if Instant::now() >= deadline {
                    return Err(LinkError::TimedOut.into());
                }
                link.wait(Some(&bell), LOOK_AGAIN);
                let _ = rustix::io::read(&bell, &mut [0; 8]);
            }
        });
        if watched.is_err() {
            progress.stop();
        }
        let mut all = Measured::default();
        for thread in threads {
            if let Ok(outcome) = thread.join().expect("no panic in it") {
                all.add(outcome);
            }
        }
        // The other end usually knows better why a connection broke.
        match watched {
            Err(error @ PerfError::Lane(_)) => Err(match link.receive(Instant::now() + REASON_MAX) {
                Err(told @ PerfError::Peer { .. }) => told,
                _ => error,
            }),
            watched => watched.map(|seen| (all, seen)),
        }
    })
}

/// What the answering end needs from its caller.
pub struct Answering<'a> {
    /// Returns the next TCP connection of this session; `None` if no connection comes within the given time.
    pub further: &'a dyn Fn(Duration) -> Option<TcpStream>,
    /// Ports to listen on for RDMA; `None` if the system chooses.
    pub ports: Option<&'a RangeInclusive<u16>>,
    /// This host's name.
    pub host: &'a [u8],
}

/// Answers requests until the other end closes the measurement.
///
/// # Errors
///
/// [`PerfError`]; the error has been reported to the other end.
pub fn answer(mut link: Link, answering: &Answering<'_>) -> Result<(), PerfError> {
    let outcome = Responder { answering, gate: None, streams: Vec::new(), asked: None }.serve(&mut link);
    match &outcome {
        Ok(()) | Err(PerfError::Peer { .. }) => {}
        // The peer wants to send a transfer, so it is refused as in a transfer.
        Err(PerfError::Link(LinkError::Frame(_))) => {
            drop(send_last(&mut link.stream, &mut link.channel, &TransferFrame::Refuse(Refusal::Offer)));
        }
        Err(error) => {
            let reason = printable(&error.to_string()).into_bytes();
            let reason = reason[reason.len().saturating_sub(TEXT_BYTES_MAX)..].to_vec();
            let _ = link.send(&Frame::Failed { exit: error.exit().code(), reason });
        }
    }
    outcome
}

struct Responder<'a> {
    answering: &'a Answering<'a>,
    gate: Option<BundleListener>,
    streams: Vec<TcpGroup>,
    asked: Option<Settings>,
}

impl Responder<'_> {
    fn serve(&mut self, link: &mut Link) -> Result<(), PerfError> {
        loop {
            let frame = match link.receive(Instant::now() + IDLE_MAX) {
                Err(PerfError::Link(LinkError::Closed)) if self.asked.is_some() => return Ok(()),
                frame => frame?,
            };
            match (frame, self.asked) {
                (Frame::Open(transport, asked), None) => {
                    link.send(&self.open(transport.policy(), asked))?;
                    self.asked = Some(asked);
                }
                (Frame::Grow { connections, rdma }, Some(asked)) if connections <= asked.connections_max => {
                    match self.grow(connections, rdma, asked, link) {
                        // The other end has given up on RDMA and tries something else.
                        Err(PerfError::Rdma(ConnectError::Timeout(_))) if rdma && link.has_input() => {}
                        grown => grown?,
                    }
                }
                (Frame::Run(run), Some(asked)) if run.message_bytes <= asked.message_bytes_max => {
                    self.run(run, link)?;
                }
                (Frame::Close, _) => return Ok(()),
                _ => return Err(LinkError::Unexpected.into()),
            }
        }
    }

    fn open(&mut self, policy: Policy, settings: Settings) -> Frame {
        let seed = SessionId::random(&mut rng()).0;
        self.gate = match policy {
            Policy::Tcp => None,
            _ => candidates(policy)
                .ok()
                .and_then(|local| BundleListener::new(&local, self.answering.ports, seed, settings).ok()),
        };
        let listening = self.gate.iter().flat_map(BundleListener::endpoints);
        let listening = listening.map(|(endpoint, port)| endpoint.offered(port)).collect();
        let mut endpoints = Vec::new();
        TransferFrame::Endpoints { turn: 0, endpoints: listening }.encode(&mut endpoints);
        Frame::Opened { seed, endpoints, host: self.answering.host.to_vec() }
    }

    fn grow(&mut self, connections: u32, rdma: bool, asked: Settings, link: &mut Link) -> Result<(), PerfError> {
        let deadline = Instant::now() + GROW_MAX + GROW_EACH_MAX * connections;
        if rdma {
            // The connecting end gives up first, and then says what it tries next.
            let deadline = deadline + ANSWER_MAX;
            let gate = self.gate.as_mut().ok_or(LinkError::Unexpected)?;
            gate.grow(connections, deadline, || link.has_input())?;
            link.send(&Frame::Grown(connections))?;
            gate.await_greetings(deadline)?;
            return Ok(());
        }
        self.gate = None;
        if connections > TCP_CONNECTIONS_MAX {
            return Err(PerfError::TooMany { what: "TCP connections", most: TCP_CONNECTIONS_MAX.into() });
        }
        while (self.streams.len() as u32) < connections {
            if Instant::now() >= deadline || link.has_input() {
                return Err(LinkError::TimedOut.into());
            }
            let Some(stream) = (self.answering.further)(LOOK_AGAIN) else { continue };
            self.streams.push(TcpGroup::new(stream, asked.poll).map_err(|error| PerfError::os("socket", &error))?);
        }
        link.send(&Frame::Grown(connections))?;
        Ok(())
    }

    fn run(&mut self, run: Run, link: &mut Link) -> Result<(), PerfError> {
        let part = match run.load {
            Load::Echo => Task::Answer,
            Load::Stream => Task::Stream { sends: run.backward, receives: run.forward },
        };
        let mut groups: Vec<&mut dyn Group> = match &mut self.gate {
            Some(gate) => gate.group().into_iter().collect(),
            None => self.streams.iter_mut().map(|group| group as &mut dyn Group).collect(),
        };
        let bytes = groups.len() as u64 * u64::from(run.message_bytes);
        if groups.is_empty() {
            return Err(LinkError::Unexpected.into());
        }
        if bytes > MESSAGES_BYTES_MAX {
            let what = "bytes of messages (one per connection)";
            return Err(PerfError::TooMany { what, most: MESSAGES_BYTES_MAX });
        }
        let (outcome, _) = go(&mut groups, part, run, None, link, false, |link| link.send(&Frame::Go))?;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let seen = Seen {
            sent: outcome.sent.messages,
            received: outcome.received.messages,
            sending_ns: nanoseconds(outcome.sent.time()),
            receiving_ns: nanoseconds(outcome.received.time()),
            sending_peak: peak_bytes(&outcome.sent, run.message_bytes),
            receiving_peak: peak_bytes(&outcome.received, run.message_bytes),
        };
        link.send(&Frame::Seen(seen))?;
        Ok(())
    }
}

/// Returns the peak in bytes per second; 0 if there is no peak.
pub fn peak_bytes(flow: &Flow, message_bytes: u32) -> u64 {
    flow.peak().map_or(0, |messages| (messages * f64::from(message_bytes)) as u64)
}

const _: () = assert!(TCP_CONNECTIONS_MAX <= CONNECTIONS_MAX);
