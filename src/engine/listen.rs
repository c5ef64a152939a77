//! The listening end: keeps strangers cheap, and hands peers on once they have authenticated.
//!
//! One thread polls the listening socket and at most [`HALF_OPEN_MAX`] peers that have not authenticated. Each of them
//! has [`AUTHENTICATE_MAX`] in all. A peer for which there is no room evicts the oldest one. So garbage, silence and
//! wrong keys cost a few kilobytes each, and the true peer gets in between them. Strangers are reported only while no
//! session is served, and the thread never waits to report them. Between the first lane and the start of the engine's
//! loop no events are taken, and strangers must not fill the queue.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::Sender as Post;
use rd_proto::control::{Frame, Refusal};
use rd_proto::handshake::{
    self, Established, HANDSHAKE_BYTES_MAX, HandshakeError, Key, LENGTH_PREFIX_BYTES, LaneId, Listening, SessionId,
    SessionSecret,
};
use rd_proto::session::{LANES_MAX, RDMA_LANE_FIRST};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::link::{AUTHENTICATE_MAX, rng, send_frame, tcp_lane, with_length};
use super::{Event, announce};
use crate::transport::tcp;

/// Maximum number of peers that are connected without having authenticated.
pub const HALF_OPEN_MAX: usize = 64;

/// Number of wrong guesses after which a listener whose key was chosen by a person gives up.
pub const GUESSES_MAX: u32 = 100;

/// How long to wait before accepting again if descriptors or memory have run out. Peers that are connected wait, too.
const LACK_PAUSE: Duration = Duration::from_millis(50);

/// Length in bytes of the largest message that a peer sends before it has authenticated, including the length prefix.
const MESSAGE_BYTES: usize = LENGTH_PREFIX_BYTES + HANDSHAKE_BYTES_MAX;

/// A report of the listener.
#[derive(Debug)]
pub enum Incoming {
    /// The first lane of a session, which from now on is the session served.
    First(TcpStream, Box<Established>),
    /// A further connection of the session served, if the listener was told to make no lanes.
    Further(TcpStream, Box<Established>),
    /// A peer that was answered and did not prove the key.
    Stranger(SocketAddr),
    /// This process has no free descriptor for a connection, and holds no stranger's connection whose end would free
    /// one. Reported once; the listener keeps trying.
    NoDescriptor,
    /// Too many peers have failed to prove the key. The listener has ended, unless a session is served.
    TooManyGuesses,
}

/// Which session is served, which of its lanes have been used, and where its events go.
///
/// A channel serves one session. A new lane gets the channel of its own session. Remaining parts of an earlier session
/// report to a channel without a reader.
#[derive(Debug)]
pub struct Registry {
    post: Post<Event>,
    session: Option<(SessionId, SessionSecret)>,
    used: [Option<u32>; LANES_MAX],
    is_closed: bool,
}

impl Registry {
    /// Creates a registry that serves no session yet. `post` is the channel of the next session, and of events until
    /// then.
    pub fn new(post: Post<Event>) -> Self {
        Self { post, session: None, used: [None; LANES_MAX], is_closed: false }
    }

    /// Returns the secret of the session served, if it has this name.
    pub fn secret(&self, session: SessionId) -> Option<SessionSecret> {
        self.session.as_ref().filter(|(id, _)| *id == session).map(|(_, secret)| secret.clone())
    }

    /// Starts serving a session. Returns false if a session is served already, or if the registry is closed.
    pub fn begin(&mut self, established: &Established) -> bool {
        if self.session.is_some() || self.is_closed {
            return false;
        }
        self.used = [None; LANES_MAX];
        self.used[0] = Some(0);
        self.session = Some((established.session, established.secret.clone()));
        true
    }

    /// Closes the registry, so that no further session is served. Returns false if a session is being served, which
    /// then continues.
    pub fn close(&mut self) -> bool {
        self.is_closed = self.session.is_none();
        self.is_closed
    }

    /// Stops serving a session. The next first lane begins a session, with `post` as its channel.
    pub fn clear(&mut self, post: Post<Event>) {
        *self = Self::new(post);
    }

    /// Marks a lane of a session as used, and returns where its events go. `None` if that session is not (or no longer)
    /// served, or if this generation of the lane or a later one has been used before.
    pub fn accept(&mut self, session: SessionId, lane: LaneId) -> Option<Post<Event>> {
        self.session.as_ref().filter(|(served, _)| *served == session)?;
        let used = self.used.get_mut(usize::from(lane.index))?;
        if used.is_some_and(|used| lane.generation <= used) {
            return None;
        }
        *used = Some(lane.generation);
        Some(self.post.clone())
    }

    /// Returns where to report events for the next session. `None` while a session is served.
    fn post_unserved(&self) -> Option<Post<Event>> {
        self.session.is_none().then(|| self.post.clone())
    }
}

/// What becomes of further connections of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    /// They become lanes.
    Lanes,
    /// They are reported as [`Incoming::Further`].
    Reported,
}

/// A listening socket and its thread. Dropping this ends both.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    registry: Arc<Mutex<Registry>>,
    stop: Arc<OwnedFd>,
}

impl Listener {
    /// Listens on `port` at all addresses, IPv4 and IPv6. Port 0 stands for any of `ports`, or for a port that the
    /// system chooses.
    ///
    /// # Errors
    ///
    /// The system's error; EADDRINUSE if no port of `ports` is free.
    pub fn start(
        port: u16,
        ports: Option<RangeInclusive<u16>>,
        key: Key,
        post: Post<Event>,
        further: Further,
    ) -> std::io::Result<Self> {
        let socket = tcp::listen(port, ports)?;
        let port = socket.local_addr()?.port();
        let registry = Arc::new(Mutex::new(Registry::new(post)));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut acceptor = Acceptor {
            socket,
            key,
            registry: Arc::clone(&registry),
            stop: Arc::clone(&stop),
            peers: VecDeque::with_capacity(HALF_OPEN_MAX),
            guesses: 0,
            further,
            has_told_no_descriptor: false,
        };
        crate::spawn("listen", 256 << 10, move || acceptor.run())?;
        Ok(Self { port, registry, stop })
    }

    /// Returns the port on which this listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the session served, for transports that accept lanes of their own.
    pub fn registry(&self) -> &Arc<Mutex<Registry>> {
        &self.registry
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

/// A peer that has not authenticated.
struct Peer {
    stream: TcpStream,
    deadline: Instant,
    bytes: [u8; MESSAGE_BYTES],
    have: usize,
    listening: Option<Listening>,
    answered: bool,
}

struct Acceptor {
    socket: TcpListener,
    key: Key,
    registry: Arc<Mutex<Registry>>,
    stop: Arc<OwnedFd>,
    peers: VecDeque<Peer>,
    guesses: u32,
    further: Further,
    has_told_no_descriptor: bool,
}

/// Result of handling a peer's bytes.
enum Progress {
    Waiting,
    Dropped,
    Established(Box<Established>),
}

impl Acceptor {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            let wait = self.peers.front().map(|peer| peer.deadline.saturating_duration_since(now));
            let wait = wait.map(|wait| Timespec::try_from(wait + Duration::from_millis(1)).expect("short"));
            let (stop, ready) = {
                let mut polled = Vec::with_capacity(HALF_OPEN_MAX + 2);
                polled.push(PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN));
                polled.push(PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN));
                polled
                    .extend(self.peers.iter().map(|peer| PollFd::from_borrowed_fd(peer.stream.as_fd(), PollFlags::IN)));
                let _ = poll(&mut polled, wait.as_ref());
                let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
                (ready[0], ready)
            };
            if stop {
                return;
            }
            let now = Instant::now();
            // Goes from the back, so that removing a peer does not move those still to be looked at.
            for at in (0..self.peers.len()).rev() {
                if ready[at + 2] {
                    match self.advance(at) {
                        Progress::Waiting => {}
                        Progress::Dropped => self.drop_peer(at),
                        Progress::Established(established) => {
                            let peer = self.peers.remove(at).expect("in range");
                            self.established(peer.stream, established);
                        }
                    }
                } else if self.peers[at].deadline <= now {
                    self.drop_peer(at);
                }
            }
            // A peer that has been answered may still prove that it has the key.
            let is_pending = |peer: &&Peer| peer.listening.as_ref().is_some_and(Listening::is_first);
            let pending = self.peers.iter().filter(is_pending).count() as u32;
            if self.guesses.saturating_sub(pending) >= GUESSES_MAX
                && crate::locked(&self.registry).post_unserved().is_some()
            {
                self.tell(Incoming::TooManyGuesses);
                return;
            }
            if ready[1] {
                self.accept(now);
            }
        }
    }

    fn drop_peer(&mut self, at: usize) {
        let Some(peer) = self.peers.remove(at) else { return };
        if peer.answered
            && let Ok(address) = peer.stream.peer_addr()
        {
            // A stranger for whom the channel has no room is not counted.
            let _ = crate::locked(&self.registry)
                .post_unserved()
                .map(|post| post.try_send(Event::Incoming(Incoming::Stranger(address))));
        }
    }

    fn accept(&mut self, now: Instant) {
        // Accepts only as many connections as fit in one round, because the peers already connected must get their turn
        // too.
        for _ in 0..HALF_OPEN_MAX {
            let stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Either the peer has closed already, or something has run out for the moment.
                Err(error) => {
                    let error = Errno::from_io_error(&error);
                    let is_out = error == Some(Errno::MFILE) && self.peers.is_empty();
                    if is_out && !std::mem::replace(&mut self.has_told_no_descriptor, true) {
                        self.tell(Incoming::NoDescriptor);
                    }
                    return std::thread::sleep(match error {
                        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => LACK_PAUSE,
                        _ => Duration::from_millis(1),
                    });
                }
            };
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            if self.peers.len() == HALF_OPEN_MAX {
                self.peers.pop_front();
            }
            let deadline = now + AUTHENTICATE_MAX;
            let bytes = [0; MESSAGE_BYTES];
            self.peers.push_back(Peer { stream, deadline, bytes, have: 0, listening: None, answered: false });
        }
    }

    fn advance(&mut self, at: usize) -> Progress {
        let peer = &mut self.peers[at];
        loop {
            let wanted = match peer.bytes[..peer.have].first_chunk::<LENGTH_PREFIX_BYTES>() {
                None => LENGTH_PREFIX_BYTES,
                Some(&length) => LENGTH_PREFIX_BYTES + usize::from(u16::from_le_bytes(length)),
            };
            if wanted > MESSAGE_BYTES {
                return Progress::Dropped;
            }
            if peer.have < wanted {
                match peer.stream.read(&mut peer.bytes[peer.have..wanted]) {
                    Ok(0) => return Progress::Dropped,
                    Ok(count) => peer.have += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waiting,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Progress::Dropped,
                }
                continue;
            }
            if wanted == LENGTH_PREFIX_BYTES {
                return Progress::Dropped;
            }
            let message = &peer.bytes[LENGTH_PREFIX_BYTES..wanted];
            peer.have = 0;
            if let Some(listening) = peer.listening.take() {
                let guessed = listening.is_first() && !self.key.is_generated();
                return match listening.finish(message) {
                    Ok(established) => {
                        self.guesses -= u32::from(guessed);
                        Progress::Established(Box::new(established))
                    }
                    Err(_) => Progress::Dropped,
                };
            }
            let registry = &self.registry;
            let lookup = |session| crate::locked(registry).secret(session);
            match handshake::listen(&self.key, lookup, message, &mut rng()) {
                Ok((listening, reply)) => {
                    if listening.is_first() && self.guesses >= GUESSES_MAX {
                        // The session served continues, and its lanes may be replaced. No other peer is answered.
                        return Progress::Dropped;
                    }
                    // The answer already lets the peer test one key, whether or not the peer confirms.
                    self.guesses += u32::from(listening.is_first() && !self.key.is_generated());
                    if peer.stream.write_all(&with_length(&reply)).is_err() {
                        return Progress::Dropped;
                    }
                    peer.answered = true;
                    peer.listening = Some(listening);
                }
                Err(refused) => {
                    if let Some(answer) = refused.answer {
                        let _ = peer.stream.write_all(&with_length(&answer));
                    }
                    debug_assert_ne!(refused.error, HandshakeError::WrongKey, "not known before the third message");
                    return Progress::Dropped;
                }
            }
        }
    }

    fn established(&mut self, mut stream: TcpStream, mut established: Box<Established>) {
        if stream.set_nonblocking(false).is_err() || stream.set_write_timeout(Some(AUTHENTICATE_MAX)).is_err() {
            return;
        }
        let mut registry = crate::locked(&self.registry);
        if established.lane == LaneId::FIRST {
            if registry.begin(&established) {
                drop(registry);
                self.tell(Incoming::First(stream, established));
            } else {
                drop(registry);
                let _ = send_frame(&mut stream, &mut established.control, &Frame::Refuse(Refusal::Busy));
            }
        } else if established.lane.index < RDMA_LANE_FIRST
            && let Some(post) = registry.accept(established.session, established.lane)
        {
            drop(registry);
            if self.further == Further::Reported {
                // If the session's events no longer have a reader, the session has ended.
                let _ = post.send(Event::Incoming(Incoming::Further(stream, established)));
                return;
            }
            // A lane that fails needs no action here, because the other end dials again.
            let _ = announce(&post, established.lane, |report| tcp_lane(stream, established.control, report));
        }
    }

    fn tell(&self, incoming: Incoming) {
        let post = crate::locked(&self.registry).post.clone();
        // If the events no longer have a reader, the process is about to end.
        let _ = post.send(Event::Incoming(incoming));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rd_proto::handshake::{connect_first, connect_join};

    use super::*;
    use crate::engine::channel;
    use crate::engine::link::authenticate;
    use crate::fs::close::tests::where_calls_fail;

    fn key(of: u8) -> Key {
        Key::from_random([of; 32])
    }

    fn connect(listener: &Listener) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, listener.port())).expect("somebody listens")
    }

    /// Connects with another key, is answered, and leaves.
    fn stranger(listener: &Listener) {
        let mut stream = connect(listener);
        let (_, hello) = connect_first(&key(9), SessionId::random(&mut rng()), &mut rng());
        stream.write_all(&with_length(&hello)).expect("sent");
        stream.read_exact(&mut [0; 98]).expect("an answer");
    }

    fn first(listener: &Listener) -> (TcpStream, Established) {
        let mut stream = connect(listener);
        let hello = connect_first(&key(1), SessionId::random(&mut rng()), &mut rng());
        let deadline = Instant::now() + AUTHENTICATE_MAX;
        let established = authenticate(&mut stream, hello, deadline).expect("the right key");
        (stream, established)
    }

    #[test]
    fn strangers_never_fill_what_nobody_reads() {
        let (post, events) = flume::bounded(3);
        let listener = Listener::start(0, None, key(1), post, Further::Lanes).expect("a port");
        for _ in 0..8 {
            stranger(&listener);
        }
        // Strangers beyond the channel's room are dropped. The right peer gets in as soon as there is room.
        let (_lane, _) = first(&listener);
        let mut strangers = 0;
        let wait = Duration::from_secs(10);
        while let Event::Incoming(Incoming::Stranger(_)) = events.recv_timeout(wait).expect("the first lane comes") {
            strangers += 1;
        }
        assert!((3..=8).contains(&strangers), "{strangers}");
        // From now on the queue has no reader until the session's loop runs.
        for _ in 0..8 {
            stranger(&listener);
        }
        assert!(events.recv_timeout(Duration::from_millis(100)).is_err(), "they are not told of any more");
    }

    #[test]
    fn without_descriptors_a_listener_does_not_spin() {
        let (post, _events) = channel();
        for error in [libc::EMFILE, libc::ENOBUFS] {
            let mut acceptor = Acceptor {
                socket: tcp::listen(0, None).expect("a port"),
                key: key(1),
                registry: Arc::new(Mutex::new(Registry::new(post.clone()))),
                stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event")),
                peers: VecDeque::new(),
                guesses: 0,
                further: Further::Lanes,
                has_told_no_descriptor: false,
            };
            let since = Instant::now();
            where_calls_fail(&[libc::SYS_accept4], error, || acceptor.accept(since));
            assert!(since.elapsed() >= LACK_PAUSE, "{error}: {:?}", since.elapsed());
        }
    }

    #[test]
    fn a_channel_serves_one_session() {
        let (post, events) = channel();
        let listener = Listener::start(0, None, key(1), post, Further::Reported).expect("a port");
        let wait = Duration::from_secs(10);
        let (_lane, established) = first(&listener);
        assert!(matches!(events.recv_timeout(wait), Ok(Event::Incoming(Incoming::First(..)))));
        let join = |generation| {
            let mut stream = connect(&listener);
            let lane = LaneId { index: 1, generation };
            let hello = connect_join(&established.secret, established.session, lane, &mut rng());
            let deadline = Instant::now() + AUTHENTICATE_MAX;
            authenticate(&mut stream, hello, deadline).map(|_| stream)
        };
        let _further = join(1).expect("it is served");
        assert!(matches!(events.recv_timeout(wait), Ok(Event::Incoming(Incoming::Further(..)))));
        let accept = |registry: &Mutex<Registry>, generation| {
            registry.lock().expect("no panic").accept(established.session, LaneId { index: 2, generation })
        };
        let old = accept(listener.registry(), 1).expect("it is served");
        let (post, fresh) = channel();
        listener.registry().lock().expect("no panic").clear(post);
        assert!(accept(listener.registry(), 2).is_none(), "a session that is over takes no lanes");
        assert!(join(2).is_err());
        // The rest of the old session reports to a channel without a reader.
        old.send(Event::Signal(1)).expect("still there");
        assert!(fresh.is_empty());
        let (_lane, _) = first(&listener);
        assert!(matches!(fresh.recv_timeout(wait), Ok(Event::Incoming(Incoming::First(..)))));
    }
}
