//! TCP connections through the control channel, for hosts of which only the launcher's port can be reached.
//!
//! The connecting end listens on loopback. For each connection accepted there it opens a connection at the other end,
//! which connects to its own listener. Inside runs an ordinary lane of a session, with authentication between the ends.
//! So a stranger who finds the port on loopback gets no further than at any listener.
//!
//! # Flow control
//!
//! Each direction of each connection may have [`WINDOW_BYTES`] in flight. Credit is returned as the socket at the other
//! end takes bytes. So everything that waits anywhere is bounded. A caller that passes messages on between two agents
//! counts the bytes in flight ([`Passage`]). Otherwise an agent that ignores its credit would make the other one seem
//! too slow.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use flume::{Receiver, Sender, unbounded};

use super::frames::Message;

/// Maximum number of bytes of one connection in flight in one direction.
pub const WINDOW_BYTES: u32 = 2 << 20;

/// Maximum number of bytes in one message.
pub const DATA_BYTES_MAX: usize = 64 << 10;

/// Maximum number of connections at a time. A session has fewer lanes.
const CONNECTIONS_MAX: usize = 64;

/// How long connecting to this host's own listener may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Maximum number of messages of one connection in flight in one direction. Messages with fewer bytes than a lane sends
/// would take more memory than their contents.
const MESSAGES_MAX: u32 = 32 << 10;

/// Maximum number of connections that a caller knows, including ended ones that still have bytes in flight.
const KNOWN_MAX: usize = 4096;

/// How long to wait if a connection cannot be accepted, for example because descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Takes messages for the other end.
pub type Emit = Arc<dyn Fn(Message) + Send + Sync>;

/// One end of the connections through a channel.
pub struct Tunnel {
    emit: Emit,
    state: Mutex<State>,
    next_id: AtomicU32,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The port of this host's listener to which connections from the other end lead.
    target: Option<u16>,
    /// The socket that listens on loopback.
    listener: Option<Arc<TcpListener>>,
    connections: HashMap<u32, Connection>,
}

/// The state of one connection. It is removed when both directions have ended.
struct Connection {
    inbound: Option<Sender<Vec<u8>>>,
    credit: Arc<Credit>,
    /// Number of bytes that have come in and not been written yet.
    waiting_bytes: u32,
    reading: bool,
}

/// Number of bytes that may still be sent.
struct Credit {
    bytes: Mutex<u32>,
    more: Condvar,
}

impl Tunnel {
    /// Creates an end. `emit` takes messages for the other end, and must not wait for this end.
    pub fn new(emit: Emit) -> Arc<Self> {
        Arc::new(Self { emit, state: Mutex::default(), next_id: AtomicU32::new(0), is_closed: AtomicBool::new(false) })
    }

    /// Lets the other end connect to this port of this host.
    pub fn serve(&self, port: u16) {
        crate::locked(&self.state).target = Some(port);
    }

    /// Listens on loopback. A connection made there comes out at the other end's listener.
    ///
    /// # Errors
    ///
    /// The system's error, or that this end is closed.
    pub fn listen(self: &Arc<Self>) -> std::io::Result<SocketAddr> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let address = listener.local_addr()?;
        {
            let mut state = crate::locked(&self.state);
            if self.is_closed() {
                return Err(ErrorKind::NotConnected.into());
            }
            state.listener = Some(Arc::clone(&listener));
        }
        let tunnel = Arc::clone(self);
        let spawned = crate::spawn("tunnel", 128 << 10, move || {
            for stream in listener.incoming() {
                match stream {
                    _ if tunnel.is_closed() => break,
                    // Every process on this host can connect, so no more connections are accepted than there may be
                    // lanes.
                    Ok(_) if crate::locked(&tunnel.state).connections.len() >= CONNECTIONS_MAX => {}
                    Ok(stream) => {
                        let id = tunnel.next_id.fetch_add(1, Ordering::Relaxed);
                        tunnel.begin(id, stream, Some(Message::TunnelOpen(id)));
                    }
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        });
        spawned.inspect_err(|_| crate::locked(&self.state).listener = None)?;
        Ok(address)
    }

    /// Handles a message of the other end; messages of other kinds are ignored. Does not wait.
    pub fn handle(self: &Arc<Self>, message: Message) {
        match message {
            Message::TunnelOpen(id) => self.open(id),
            Message::TunnelData { id, bytes } => {
                let mut state = crate::locked(&self.state);
                let Some(connection) = state.connections.get_mut(&id) else { return };
                connection.waiting_bytes = connection.waiting_bytes.saturating_add(bytes.len() as u32);
                if connection.waiting_bytes > WINDOW_BYTES {
                    // The peer has sent more than was granted, so it is not this program. This connection ends; the
                    // session makes another.
                    connection.inbound = None;
                } else if let Some(inbound) = &connection.inbound {
                    let _ = inbound.send(bytes);
                }
            }
            Message::TunnelCredit { id, bytes } => {
                let credit = crate::locked(&self.state).connections.get(&id).map(|it| Arc::clone(&it.credit));
                let Some(credit) = credit else { return };
                let mut left = crate::locked(&credit.bytes);
                *left = left.saturating_add(bytes).min(WINDOW_BYTES);
                credit.more.notify_one();
            }
            Message::TunnelClose(id) => {
                if let Some(connection) = crate::locked(&self.state).connections.get_mut(&id) {
                    connection.inbound = None;
                }
            }
            _ => {}
        }
    }

    fn open(self: &Arc<Self>, id: u32) {
        let target = {
            let state = crate::locked(&self.state);
            state.target.filter(|_| state.connections.len() < CONNECTIONS_MAX && !state.connections.contains_key(&id))
        };
        let address = target.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        // Connecting over loopback succeeds or fails at once.
        match address.map(|address| TcpStream::connect_timeout(&address, CONNECT_MAX)) {
            Some(Ok(stream)) => self.begin(id, stream, None),
            _ => (self.emit)(Message::TunnelClose(id)),
        }
    }

    /// Starts the threads of a connection. `first` is sent before any other message of the connection, but only after
    /// the connection has been recorded here: an answer, such as a CLOSE, may come at once and would otherwise be lost.
    fn begin(self: &Arc<Self>, id: u32, stream: TcpStream, first: Option<Message>) {
        let _ = stream.set_nodelay(true);
        let (inbound, queue) = unbounded();
        let credit = Arc::new(Credit { bytes: Mutex::new(WINDOW_BYTES), more: Condvar::new() });
        let connection =
            Connection { inbound: Some(inbound), credit: Arc::clone(&credit), waiting_bytes: 0, reading: true };
        let Ok(output) = stream.try_clone() else {
            // If the other end does not know of the connection yet, there is nothing to close.
            if first.is_none() {
                (self.emit)(Message::TunnelClose(id));
            }
            return;
        };
        {
            let mut state = crate::locked(&self.state);
            if self.is_closed() {
                return;
            }
            state.connections.insert(id, connection);
        }
        first.into_iter().for_each(|first| (self.emit)(first));
        let (reading, writing) = (Arc::clone(self), Arc::clone(self));
        // The thread that writes ends with the connection's record. One that reads would go on alone.
        let write = crate::spawn("tunnel-write", 192 << 10, move || writing.write(id, output, &queue));
        let read = || crate::spawn("tunnel-read", 192 << 10, move || reading.read(id, stream, &credit));
        if write.and_then(|_| read()).is_err() {
            crate::locked(&self.state).connections.remove(&id);
            (self.emit)(Message::TunnelClose(id));
        }
    }

    /// Moves bytes from the socket to the other end.
    fn read(&self, id: u32, mut stream: TcpStream, credit: &Credit) {
        let mut piece = vec![0; DATA_BYTES_MAX];
        loop {
            let most = {
                let left = crate::locked(&credit.bytes);
                let has_none = |left: &mut u32| *left == 0 && !self.is_closed();
                let left = credit.more.wait_while(left, has_none).expect("no panic with it locked");
                piece.len().min(*left as usize)
            };
            // This end was closed while it had no credit.
            if most == 0 {
                break;
            }
            match stream.read(&mut piece[..most]) {
                Ok(count @ 1..) => {
                    *crate::locked(&credit.bytes) -= count as u32;
                    (self.emit)(Message::TunnelData { id, bytes: piece[..count].to_vec() });
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        (self.emit)(Message::TunnelClose(id));
        let mut state = crate::locked(&self.state);
        if let Some(connection) = state.connections.get_mut(&id) {
            connection.reading = false;
            if connection.inbound.is_none() {
                state.connections.remove(&id);
            }
        }
    }

    /// Moves bytes from the other end to the socket.
    fn write(&self, id: u32, mut stream: TcpStream, queue: &Receiver<Vec<u8>>) {
        let (mut broken, mut was_answered) = (false, false);
        while let Ok(bytes) = queue.recv() {
            was_answered = true;
            if !broken && stream.write_all(&bytes).is_err() {
                // The reading thread ends too and sends a CLOSE. Until the other end has received that, its bytes are
                // dropped.
                broken = true;
                let _ = stream.shutdown(Shutdown::Both);
            }
            if let Some(connection) = crate::locked(&self.state).connections.get_mut(&id) {
                connection.waiting_bytes = connection.waiting_bytes.saturating_sub(bytes.len() as u32);
            }
            (self.emit)(Message::TunnelCredit { id, bytes: bytes.len() as u32 });
        }
        // A connection that was closed without any data belongs to a stranger, who might stay for ever.
        let _ = stream.shutdown(if was_answered { Shutdown::Write } else { Shutdown::Both });
        let mut state = crate::locked(&self.state);
        if state.connections.get(&id).is_some_and(|connection| !connection.reading) {
            state.connections.remove(&id);
        }
    }

    /// Ends all connections and stops listening, because the session is over, or the caller is gone and passes nothing
    /// on any more. This end's lanes are down then.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut state = crate::locked(&self.state);
        if let Some(listener) = state.listener.take() {
            // On Linux this also ends a wait for a connection.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
        for connection in state.connections.values_mut() {
            connection.inbound = None;
            // Held, because a thread that has just checked and is about to wait would miss the notification.
            let _left = crate::locked(&connection.credit.bytes);
            connection.credit.more.notify_all();
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// The messages in flight between two ends through a caller's channels.
#[derive(Default)]
pub struct Passage {
    connections: HashMap<u32, Passed>,
}

/// The bytes and messages of one connection in flight, from each end.
#[derive(Default)]
struct Passed {
    bytes: [u32; 2],
    messages: [u32; 2],
    has_closed: [bool; 2],
}

/// How to handle a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Pass the message on to the other end.
    On,
    /// Drop the message, because its connection does not exist.
    Dropped,
    /// Do not open this connection; the requesting end gets a CLOSE.
    Refused(u32),
    /// End this connection; both ends get a CLOSE.
    Ended(u32),
    /// The sending end has exceeded its credit, or has returned more credit than it was sent bytes.
    Overrun,
}

impl Passage {
    /// Counts a message from one end, 0 or 1, to the other.
    pub fn pass(&mut self, from: usize, message: &Message) -> Passing {
        let to = 1 - from;
        match message {
            Message::TunnelOpen(id) if self.connections.contains_key(id) => Passing::Dropped,
            Message::TunnelOpen(id) if !self.has_room() => Passing::Refused(*id),
            Message::TunnelOpen(id) => {
                self.connections.insert(*id, Passed::default());
                Passing::On
            }
            Message::TunnelData { id, bytes } => {
                let Some(passed) = self.connections.get_mut(id).filter(|passed| !passed.has_closed[from]) else {
                    return Passing::Dropped;
                };
                passed.bytes[from] = passed.bytes[from].saturating_add(bytes.len() as u32);
                passed.messages[from] += 1;
                if passed.bytes[from] > WINDOW_BYTES {
                    return Passing::Overrun;
                }
                passed.has_closed[from] = passed.messages[from] > MESSAGES_MAX;
                if passed.has_closed[from] { Passing::Ended(*id) } else { Passing::On }
            }
            Message::TunnelCredit { id, bytes } => {
                let passed = self.connections.get_mut(id).filter(|passed| passed.messages[to] > 0);
                let Some(passed) = passed else { return Passing::Dropped };
                // With more, the other end would send more than is allowed here.
                let Some(left) = passed.bytes[to].checked_sub(*bytes) else { return Passing::Overrun };
                passed.messages[to] -= 1;
                passed.bytes[to] = left;
                self.forget_if_over(*id);
                Passing::On
            }
            Message::TunnelClose(id) => {
                let Some(passed) = self.connections.get_mut(id).filter(|passed| !passed.has_closed[from]) else {
                    return Passing::Dropped;
                };
                passed.has_closed[from] = true;
                self.forget_if_over(*id);
                Passing::On
            }
            _ => Passing::On,
        }
    }

    /// Whether one more connection may be opened. Bytes that ended connections still have in flight take up room as
    /// well.
    fn has_room(&self) -> bool {
        let over = |passed: &&Passed| passed.has_closed == [true; 2];
        let left: u64 = self.connections.values().filter(over).map(|it| u64::from(it.bytes[0].max(it.bytes[1]))).sum();
        let open = self.connections.values().filter(|passed| !over(passed)).count() as u64;
        self.connections.len() < KNOWN_MAX && open + left / u64::from(WINDOW_BYTES) < CONNECTIONS_MAX as u64
    }

    fn forget_if_over(&mut self, id: u32) {
        if self.connections.get(&id).is_some_and(|it| it.has_closed == [true; 2] && it.bytes == [0; 2]) {
            self.connections.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two ends with a queue in each direction, as a channel has.
    fn pair() -> (Arc<Tunnel>, Arc<Tunnel>) {
        let link = |to: Receiver<Message>, end: &Arc<Tunnel>| {
            let end = Arc::clone(end);
            std::thread::spawn(move || to.iter().for_each(|message| end.handle(message)));
        };
        let (to_b, from_a) = unbounded();
        let (to_a, from_b) = unbounded();
        let a = Tunnel::new(Arc::new(move |message| drop(to_b.send(message))));
        let b = Tunnel::new(Arc::new(move |message| drop(to_a.send(message))));
        link(from_a, &b);
        link(from_b, &a);
        (a, b)
    }

    #[test]
    fn bytes_go_both_ways_and_each_way_ends_by_itself() {
        let (a, b) = pair();
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        b.serve(server.local_addr().expect("bound").port());
        let mut client = TcpStream::connect(a.listen().expect("a port")).expect("loopback");
        let (mut served, _) = server.accept().expect("a connection");
        let sent: Vec<u8> = (0..3 * WINDOW_BYTES).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let mut writer = client.try_clone().expect("a descriptor");
        let feeding = std::thread::spawn(move || {
            writer.write_all(&sent).expect("taken");
            writer.shutdown(Shutdown::Write).expect("open");
        });
        let mut got = Vec::new();
        served.read_to_end(&mut got).expect("to its end");
        assert!(got == expected, "{} bytes for {}", got.len(), expected.len());
        feeding.join().expect("no panic");
        served.write_all(b"and back").expect("still open");
        drop(served);
        let mut back = Vec::new();
        client.read_to_end(&mut back).expect("to its end");
        assert_eq!(back, b"and back");
        drop(client);
        let settled = |end: &Tunnel| crate::locked(&end.state).connections.is_empty();
        for _ in 0..500 {
            if settled(&a) && settled(&b) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("connections are left");
    }

    /// The other end never answers, and the process that has connected stays.
    #[test]
    fn an_end_that_is_closed_leaves_no_thread() {
        let tunnel = Tunnel::new(Arc::new(|_: Message| {}));
        let address = tunnel.listen().expect("a port");
        let mut client = TcpStream::connect(address).expect("loopback");
        client.write_all(&vec![0; WINDOW_BYTES as usize]).expect("taken");
        let within = |what: &str, is_so: &dyn Fn() -> bool| {
            let is_in_time = (0..2000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                is_so()
            });
            assert!(is_in_time, "{what}");
        };
        let has_no_credit = || {
            let state = crate::locked(&tunnel.state);
            state.connections.get(&0).is_some_and(|it| *crate::locked(&it.credit.bytes) == 0)
        };
        within("all is sent", &has_no_credit);
        tunnel.close();
        assert!(tunnel.listen().is_err());
        let left = Arc::downgrade(&tunnel);
        drop(tunnel);
        // Each of its threads holds the end.
        within("the threads end", &|| left.upgrade().is_none());
        drop(client);
    }

    #[test]
    fn what_nobody_serves_is_closed() {
        let (a, _b) = pair();
        let mut client = TcpStream::connect(a.listen().expect("a port")).expect("loopback");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        assert_eq!(client.read(&mut [0]).expect("closed in order"), 0);
    }

    /// The other end closes the connection before the call that has opened it returns.
    #[test]
    fn an_answer_that_comes_at_once_is_heard() {
        let end: Arc<Mutex<Option<Arc<Tunnel>>>> = Arc::default();
        let itself = Arc::clone(&end);
        let tunnel = Tunnel::new(Arc::new(move |message| {
            let tunnel = crate::locked(&itself).clone().expect("set below");
            if let Message::TunnelOpen(id) = message {
                tunnel.handle(Message::TunnelData { id, bytes: b"bye".to_vec() });
                tunnel.handle(Message::TunnelClose(id));
            }
        }));
        *crate::locked(&end) = Some(Arc::clone(&tunnel));
        let mut client = TcpStream::connect(tunnel.listen().expect("a port")).expect("loopback");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("to its end");
        assert_eq!(got, b"bye");
    }

    #[test]
    fn a_flood_past_the_window_ends_the_connection() {
        let (to, messages) = unbounded();
        let end = Tunnel::new(Arc::new(move |message| drop(to.send(message))));
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        end.serve(server.local_addr().expect("bound").port());
        end.handle(Message::TunnelOpen(7));
        let (served, _) = server.accept().expect("a connection");
        // Nothing reads the socket, so what it does not take keeps waiting.
        for _ in 0..4096 {
            end.handle(Message::TunnelData { id: 7, bytes: vec![0; DATA_BYTES_MAX] });
        }
        assert!(crate::locked(&end.state).connections[&7].inbound.is_none(), "ended");
        drop((served, messages));
    }

    fn data(id: u32, bytes: usize) -> Message {
        Message::TunnelData { id, bytes: vec![0; bytes] }
    }

    /// Data beyond the credit is its sender's fault. Whatever honest ends do is never a fault.
    #[test]
    fn a_caller_finds_who_sends_without_credit() {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut passage = Passage::default();
            assert_eq!(passage.pass(from, &data(7, 1)), Passing::Dropped, "it was not opened");
            assert_eq!(passage.pass(from, &Message::TunnelOpen(7)), Passing::On);
            for _ in 0..100 {
                for _ in 0..WINDOW_BYTES as usize / DATA_BYTES_MAX {
                    assert_eq!(passage.pass(from, &data(7, DATA_BYTES_MAX)), Passing::On);
                }
                for _ in 0..WINDOW_BYTES as usize / DATA_BYTES_MAX {
                    let credit = Message::TunnelCredit { id: 7, bytes: DATA_BYTES_MAX as u32 };
                    assert_eq!(passage.pass(to, &credit), Passing::On);
                }
            }
            let credit = Message::TunnelCredit { id: 7, bytes: 1 };
            assert_eq!(passage.pass(to, &credit), Passing::Dropped, "nothing is on its way");
            assert_eq!(passage.pass(from, &data(7, WINDOW_BYTES as usize)), Passing::On);
            assert_eq!(passage.pass(from, &data(7, 1)), Passing::Overrun);
        }
    }

    #[test]
    fn a_caller_finds_who_returns_too_much_credit() {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut passage = Passage::default();
            let credit = |bytes| Message::TunnelCredit { id: 7, bytes };
            assert_eq!(passage.pass(from, &Message::TunnelOpen(7)), Passing::On);
            for _ in 0..2 {
                assert_eq!(passage.pass(from, &data(7, DATA_BYTES_MAX)), Passing::On);
            }
            assert_eq!(passage.pass(to, &credit(DATA_BYTES_MAX as u32)), Passing::On);
            assert_eq!(passage.pass(to, &credit(DATA_BYTES_MAX as u32 + 1)), Passing::Overrun);
        }
    }

    /// What waits for one end stays bounded also with many connections or many tiny messages.
    #[test]
    fn a_caller_bounds_what_waits_for_an_end() {
        let mut passage = Passage::default();
        let mut windows = 0;
        for id in 0..1000 {
            passage.pass(0, &Message::TunnelOpen(id));
            windows += usize::from(passage.pass(0, &data(id, WINDOW_BYTES as usize)) == Passing::On);
            // The other end has closed the connection, and the data is still in flight.
            passage.pass(0, &Message::TunnelClose(id));
            passage.pass(1, &Message::TunnelClose(id));
        }
        assert_eq!(windows, CONNECTIONS_MAX);
        assert_eq!(passage.pass(0, &Message::TunnelOpen(1000)), Passing::Refused(1000));

        let mut passage = Passage::default();
        passage.pass(0, &Message::TunnelOpen(1));
        let passed = (0..1_000_000).map(|_| passage.pass(0, &data(1, 1)));
        let passed: Vec<Passing> = passed.filter(|passing| *passing != Passing::Dropped).collect();
        assert!(passed.len() == MESSAGES_MAX as usize + 1 && passed.last() == Some(&Passing::Ended(1)));

        // A connection that has ended and has no bytes in flight makes room for another.
        let mut passage = Passage::default();
        for id in 0..10_000 {
            assert_eq!(passage.pass(0, &Message::TunnelOpen(id)), Passing::On);
            assert_eq!(passage.pass(0, &data(id, 9)), Passing::On);
            assert_eq!(passage.pass(0, &Message::TunnelClose(id)), Passing::On);
            assert_eq!(passage.pass(1, &Message::TunnelClose(id)), Passing::On);
            assert_eq!(passage.pass(1, &Message::TunnelCredit { id, bytes: 9 }), Passing::On);
        }
    }
}
