//! A TCP proxy between the two ends, for tests. It counts, records, slows, damages and cuts the bytes that pass.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Direction: `Up` from the end that connects (rdsend) to the end that listens, `Down` back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up = 0,
    Down = 1,
}

/// Place in the traffic at which damage is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub way: Way,
    /// Which connection, counted from 0 in order of arrival; `None` means every connection.
    pub connection: Option<usize>,
    /// Offset within that direction of the connection, in bytes.
    pub offset: u64,
}

/// What is done to the bytes at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Flips this bit of the byte.
    Flip(u8),
    /// Drops this many bytes.
    Drop(usize),
    /// Sends this many bytes twice.
    Duplicate(usize),
    /// Swaps this many bytes with as many after them.
    Swap(usize),
    /// Ends the connection in order (FIN).
    Truncate,
    /// Resets the connection (RST).
    Reset,
    /// Delays everything that follows in this direction.
    Delay(Duration),
    /// Replaces the byte by this value.
    Set(u8),
}

/// What a proxy does to the connections.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Damage, each done once for every connection that it fits.
    pub damage: Vec<(Spot, Damage)>,
    /// Byte counts in ascending order. All connections are reset (RST) when their total upwards passes each of these.
    pub resets_at: Vec<u64>,
    /// Whether all bytes are kept.
    pub record: bool,
    /// Rate upwards, for all connections together.
    pub bytes_per_second: Option<u64>,
    /// Minimum time that all bytes spend in the proxy, in either direction. Little is under way at a time.
    pub delay: Option<Duration>,
    /// Length in bytes of the stretches upwards, in each of which one bit is flipped.
    pub flip_every: Option<u64>,
    /// Whether the first cut by damage also resets all other connections and makes the proxy refuse new ones.
    pub gone_with_a_cut: bool,
    /// File that gets a line for each damage done.
    pub log: Option<PathBuf>,
}

struct Connection {
    sockets: [TcpStream; 2],
    forwarded: [AtomicU64; 2],
    recorded: [Mutex<Vec<u8>>; 2],
    /// Whether the connection has been reset.
    reset: AtomicBool,
}

struct Shared {
    plan: Plan,
    connections: Mutex<Vec<Arc<Connection>>>,
    total_up: AtomicU64,
    resets_done: Mutex<usize>,
    damages_done: AtomicUsize,
    stopped: AtomicBool,
    stalled: AtomicBool,
    refusing: AtomicBool,
    due: Mutex<Option<Instant>>,
}

/// A running proxy. Its connections end when it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on loopback and forwards every connection to `target` there.
    pub fn start(target: u16, plan: Plan) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        listener.set_nonblocking(true).expect("a socket");
        if plan.bytes_per_second.is_some() {
            // A slow line sends on at once what it has taken. It must not buffer much.
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 16 << 10).expect("a socket");
        }
        let shared = Arc::new(Shared {
            plan,
            connections: Mutex::new(Vec::new()),
            total_up: AtomicU64::new(0),
            resets_done: Mutex::new(0),
            damages_done: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            due: Mutex::new(None),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener, target));
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of bytes forwarded over all connections.
    pub fn forwarded(&self, way: Way) -> u64 {
        self.forwarded_by_connection(way).iter().sum()
    }

    pub fn forwarded_by_connection(&self, way: Way) -> Vec<u64> {
        let connections = self.shared.connections.lock().expect("no panic");
        connections.iter().map(|connection| connection.forwarded[way as usize].load(Ordering::SeqCst)).collect()
    }

    /// Returns the bytes that each connection carried.
    pub fn recorded(&self, way: Way) -> Vec<Vec<u8>> {
        let connections = self.shared.connections.lock().expect("no panic");
        connections
            .iter()
            .map(|connection| connection.recorded[way as usize].lock().expect("no panic").clone())
            .collect()
    }

    /// Returns how many times all connections were reset.
    pub fn resets(&self) -> usize {
        *self.shared.resets_done.lock().expect("no panic")
    }

    /// Returns how many times damage of the plan was done. Bytes at its places need not have passed.
    pub fn damages(&self) -> usize {
        self.shared.damages_done.load(Ordering::SeqCst)
    }

    /// Stops forwarding without informing either end, or resumes it.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Resets new connections at once, or accepts them again.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
    }

    /// Resets all connections now.
    pub fn reset_all(&self) {
        *self.shared.resets_done.lock().expect("no panic") += 1;
        self.shared.reset_connections();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.reset_connections();
    }
}

impl Connection {
    fn reset(&self) {
        if !self.reset.swap(true, Ordering::SeqCst) {
            for socket in &self.sockets {
                // The proxy's threads hold the socket too. Disconnecting it sends the RST at once even so.
                disconnect(socket);
            }
        }
    }
}

/// Makes closing this socket send RST.
fn reset_on_close(socket: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener, target: u16) {
        while !self.stopped.load(Ordering::SeqCst) {
            let near = match listener.accept() {
                Ok((near, _)) => near,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                Err(_) => return,
            };
            near.set_nonblocking(false).expect("a socket");
            if self.refusing.load(Ordering::SeqCst) {
                reset_on_close(&near);
                continue;
            }
            let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else {
                reset_on_close(&near);
                continue;
            };
            for socket in [&near, &far] {
                socket.set_nodelay(true).expect("a socket");
                socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
            }
            let connection = Arc::new(Connection {
                sockets: [near, far],
                forwarded: [AtomicU64::new(0), AtomicU64::new(0)],
                recorded: [Mutex::default(), Mutex::default()],
                reset: AtomicBool::new(false),
            });
            let number = {
                let mut connections = self.connections.lock().expect("no panic");
                connections.push(Arc::clone(&connection));
                connections.len() - 1
            };
            for way in [Way::Up, Way::Down] {
                let (shared, connection) = (Arc::clone(&self), Arc::clone(&connection));
                std::thread::spawn(move || shared.pump(&connection, number, way));
            }
        }
    }

    fn reset_connections(&self) {
        for connection in self.connections.lock().expect("no panic").iter() {
            connection.reset();
        }
    }

    fn note(&self, number: usize, way: Way, offset: u64, damage: Damage) {
        self.damages_done.fetch_add(1, Ordering::SeqCst);
        let Some(log) = &self.plan.log else { return };
        // When a run is over, its directory is already removed.
        let Ok(mut log) = OpenOptions::new().create(true).append(true).open(log) else { return };
        writeln!(log, "{way:?} on connection {number} at {offset}: {damage:?}").expect("a log");
    }

    fn wait(&self, duration: Duration) {
        let until = Instant::now() + duration;
        while Instant::now() < until && !self.stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pump(&self, connection: &Connection, number: usize, way: Way) {
        let (mut from, mut to) = match way {
            Way::Up => (&connection.sockets[0], &connection.sockets[1]),
            Way::Down => (&connection.sockets[1], &connection.sockets[0]),
        };
        let mut damage: Vec<(u64, Damage)> = self
            .plan
            .damage
            .iter()
            .filter_map(|&(spot, damage)| {
                let fits = spot.way == way && spot.connection.is_none_or(|wanted| wanted == number);
                fits.then_some((spot.offset, damage))
            })
            .collect();
        damage.sort_by_key(|&(offset, _)| offset);
        damage.reverse();
        let mut next_flip = self.plan.flip_every.filter(|_| way == Way::Up);
        let mut offset = 0;
        let mut buffer = vec![0; 64 << 10];
        loop {
            if self.stopped.load(Ordering::SeqCst) || connection.reset.load(Ordering::SeqCst) {
                return;
            }
            if self.stalled.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let mut count = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(_) => break,
            };
            while self.stalled.load(Ordering::SeqCst) && !self.stopped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // A change to a range needs all of the range.
            if let Some(&(at, what)) = damage.last() {
                let wanted = match what {
                    Damage::Drop(length) | Damage::Duplicate(length) => length,
                    Damage::Swap(length) => 2 * length,
                    _ => 1,
                };
                let end = (at + wanted as u64).saturating_sub(offset) as usize;
                while at >= offset && at < offset + count as u64 && count < end {
                    buffer.resize(buffer.len().max(end), 0);
                    match from.read(&mut buffer[count..end]) {
                        Ok(0) => break,
                        Ok(more) => count += more,
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                            // Later bytes may depend on those held back here, so nothing more comes for now.
                            break;
                        }
                        Err(_) => break,
                    }
                }
            }
            let mut bytes = buffer[..count].to_vec();
            let (mut truncated, mut cut) = (false, false);
            while let Some(&(at, what)) = damage.last() {
                if at >= offset + count as u64 || truncated || cut {
                    break;
                }
                damage.pop();
                // Earlier damage may have made the piece shorter.
                let (at, length) = ((at - offset) as usize, bytes.len());
                if at >= length {
                    continue;
                }
                self.note(number, way, offset + at as u64, what);
                match what {
                    Damage::Flip(bit) => bytes[at] ^= 1 << (bit & 7),
                    Damage::Set(value) => bytes[at] = value,
                    Damage::Drop(count) => drop(bytes.drain(at..(at + count).min(length))),
                    Damage::Duplicate(count) => {
                        let again = bytes[at..(at + count).min(length)].to_vec();
                        bytes.splice(at..at, again);
                    }
                    Damage::Swap(count) => {
                        let end = (at + 2 * count).min(length);
                        bytes[at..end].rotate_left(count.min(end - at));
                    }
                    Damage::Truncate | Damage::Reset => {
                        bytes.truncate(at);
                        truncated = what == Damage::Truncate;
                        cut = what == Damage::Reset;
                    }
                    Damage::Delay(duration) => self.wait(duration),
                }
            }
            if let Some(at) = next_flip.filter(|&at| at < offset + count as u64 && at >= offset) {
                bytes[(at - offset) as usize] ^= 0x10;
            }
            if way == Way::Up {
                bytes.truncate(self.before_the_reset());
            }
            offset += count as u64;
            if let (Some(every), Some(at)) = (self.plan.flip_every, &mut next_flip) {
                while *at < offset {
                    *at += every;
                }
            }
            if way == Way::Up {
                self.pace(bytes.len());
            }
            if let Some(delay) = self.plan.delay {
                std::thread::sleep(delay);
            }
            // Recorded before they are sent, so that a test that has seen the bytes arrive finds them here.
            if self.plan.record {
                connection.recorded[way as usize].lock().expect("no panic").extend(&bytes);
            }
            connection.forwarded[way as usize].fetch_add(bytes.len() as u64, Ordering::SeqCst);
            if write_whole(&mut to, &bytes).is_err() {
                break;
            }
            if way == Way::Up {
                let total = self.total_up.fetch_add(bytes.len() as u64, Ordering::SeqCst) + bytes.len() as u64;
                let due = {
                    let mut done = self.resets_done.lock().expect("no panic");
                    let due = self.plan.resets_at.get(*done).is_some_and(|&at| total >= at);
                    *done += usize::from(due);
                    due
                };
                if due {
                    self.reset_connections();
                    return;
                }
            }
            if (cut || truncated) && self.plan.gone_with_a_cut {
                self.refusing.store(true, Ordering::SeqCst);
                self.reset_connections();
                return;
            }
            if cut {
                connection.reset();
                return;
            }
            if truncated {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }

    /// Returns how many bytes may pass upwards before the next reset. If a source is slow for a moment, its chunks are
    /// shorter than the proxy's reads. A reset after such a read would not hit the middle of a chunk.
    fn before_the_reset(&self) -> usize {
        let done = *self.resets_done.lock().expect("no panic");
        let passed = self.total_up.load(Ordering::SeqCst);
        self.plan.resets_at.get(done).map_or(usize::MAX, |&at| at.saturating_sub(passed) as usize)
    }

    fn pace(&self, bytes: usize) {
        let Some(rate) = self.plan.bytes_per_second else { return };
        let until = {
            let mut due = self.due.lock().expect("no panic");
            let start = due.unwrap_or_else(Instant::now).max(Instant::now());
            *due = Some(start + Duration::from_secs_f64(bytes as f64 / rate as f64));
            start
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

fn write_whole(to: &mut &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)
}

/// Sends RST even though other threads are using the socket.
fn disconnect(socket: &TcpStream) {
    reset_on_close(socket);
    // connect() to AF_UNSPEC dissolves the association. If data is lost by that, an RST is sent (tcp(7):
    // TCP_NODELAY has no effect on this).
    let _ = rustix::net::connect_unspec(socket);
}
