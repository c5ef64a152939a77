//! TCP lanes: one socket, with one thread that writes straight from pool buffers and one that reads straight into them.
//!
//! On the wire a chunk is its 48-byte header and its payload. A control frame is `F`, the number of chunks before it
//! (one byte), its length (two bytes, little-endian) and its sealed bytes. A control frame goes out ahead of waiting
//! chunks, but never in the middle of a chunk.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use rd_proto::frame::{CHUNK_HEADER_BYTES, CONTROL_BYTES_MAX};
use rd_proto::session::LaneState;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg};

pub use self::from::connect_from;
pub use self::info::round_trip_min;
pub use self::listen::listen;
use self::records::{RECORD_BYTES_MAX, set_chunks};
pub(crate) use self::records::{Record, control_record, next_record};
use self::unsent::Speed;
use super::{Buffer, CONTROL_QUEUE_MAX, Inline, Lane, LaneError, LaneEvent, Medium, Report};

mod from;
mod info;
mod listen;
mod records;
mod unsent;
#[cfg(any(test, feature = "fuzzing"))]
pub use records::fuzz;

/// Size of the buffer in which records begin and control frames land. Payload bytes that land there are copied out.
const STAGING_BYTES: usize = RECORD_BYTES_MAX + CHUNK_HEADER_BYTES;

/// How often a blocked write checks whether the lane is to end.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a closing lane waits for its last frames to be sent and for the peer to close as well.
const CLOSE_WAIT: Duration = Duration::from_millis(300);

/// How many bytes of an incomplete record must arrive for the peer to count as heard. A lane of 103 bytes a second
/// brings them within the session's limit of 5 s. If bytes were lost on the way, only heartbeats arrive to fill the
/// gap: a PING is a record of 21 bytes, sent once a second, which makes 105 bytes within that limit. An idle end sends
/// no other frame regularly.
const PART_HEARD_BYTES: usize = 512;

/// Silence after which the kernel probes the peer, and the time between probes. Only a stopped peer (^Z) is silent for
/// longer than the session's heartbeat.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Number of unanswered probes after which the kernel gives the connection up.
const KEEPALIVE_PROBES: u32 = 3;

/// Congestion control for connections within a host, where there is no network to be fair to. Reno does not pace, and
/// every kernel has it and allows it to every user. BBR, if it is the system's choice, times each packet, which over
/// loopback costs a third of the rate. Between hosts, the system's choice applies.
const WITHIN_HOST_CONGESTION: &str = "reno";

/// A lane over one TCP socket.
pub struct TcpLane {
    shared: Arc<Shared>,
    description: String,
    way: Option<[IpAddr; 2]>,
}

struct Shared {
    socket: TcpStream,
    state: Mutex<State>,
    /// Signalled when there is something to write, or the lane is to end.
    work: Condvar,
    born: Instant,
    /// Milliseconds after `born` when bytes last arrived.
    heard_ms: AtomicU64,
    report: Report,
    inline: OnceLock<Arc<dyn Inline>>,
}

struct State {
    control: VecDeque<Vec<u8>>,
    /// Whether a frame taken from `control` is being written.
    is_writing_control: bool,
    chunks: VecDeque<(Buffer, u32)>,
    posted: Vec<Buffer>,
    closing: Option<Instant>,
    failure: Option<LaneError>,
    threads: u32,
    reported_down: bool,
}

impl TcpLane {
    /// Makes a lane from a connected, authenticated socket in blocking mode.
    ///
    /// # Errors
    ///
    /// The system's error from setting the socket options or from starting the threads.
    pub fn start(socket: TcpStream, report: Report) -> std::io::Result<Self> {
        tune(&socket)?;
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        let ends = [socket.local_addr(), socket.peer_addr()].map(|end| end.ok().map(super::unmapped));
        let way = ends[0].zip(ends[1]).map(|(local, peer)| [local.ip(), peer.ip()]);
        let [local, peer] = ends.map(|end| end.map_or_else(|| "?".to_owned(), |end| end.to_string()));
        let description = format!("tcp {local} > {peer}");
        let shared = Arc::new(Shared {
            socket,
            state: Mutex::new(State {
                control: VecDeque::with_capacity(CONTROL_QUEUE_MAX),
                is_writing_control: false,
                chunks: VecDeque::new(),
                posted: Vec::new(),
                closing: None,
                failure: None,
                threads: 2,
                reported_down: false,
            }),
            work: Condvar::new(),
            born: Instant::now(),
            heard_ms: AtomicU64::new(0),
            report,
            inline: OnceLock::new(),
        });
        let (writer, reader) = (Arc::clone(&shared), Arc::clone(&shared));
        crate::spawn("tcp-send", 128 << 10, move || writer.end(writer.write_loop()))?;
        if let Err(error) = crate::spawn("tcp-recv", 128 << 10, move || reader.end(reader.read_loop())) {
            let mut state = crate::locked(&shared.state);
            state.threads -= 1;
            state.failure = Some(LaneError::Closed);
            drop(state);
            shared.work.notify_all();
            return Err(error);
        }
        Ok(Self { shared, description, way })
    }
}

/// Sets the options of a connection that carries lanes: no delay for small frames, probes for a silent peer, and
/// no pacing within a host.
pub fn tune(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    // Some kernels lack these options, and some system-call filters refuse them. A session notices a
    // silent peer without them.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    // If the connection has broken, its addresses can no longer be read. The lane reports that as it reports any break.
    if let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr())
        && is_within_host(local, peer)
    {
        let _ = sockopt::set_tcp_congestion(socket, WITHIN_HOST_CONGESTION);
    }
    Ok(())
}

/// Whether a connection between these two addresses stays within the host. If so, the system gives both ends the same
/// address, or loopback addresses. (Trying to bind an address would not tell: `ip_nonlocal_bind` allows any.)
pub fn is_within_host(local: SocketAddr, peer: SocketAddr) -> bool {
    let (local, peer) = (super::unmapped(local).ip(), super::unmapped(peer).ip());
    local == peer || peer.is_loopback()
}

impl Lane for TcpLane {
    fn medium(&self) -> Medium {
        Medium::Tcp
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn send_control(&mut self, sealed: &[u8]) {
        debug_assert!(!sealed.is_empty() && sealed.len() <= CONTROL_BYTES_MAX);
        let mut state = crate::locked(&self.shared.state);
        if state.control.len() == CONTROL_QUEUE_MAX {
            self.shared.fail(state, LaneError::Framing("the peer does not read its control frames"));
            return;
        }
        state.control.push_back(control_record(sealed));
        drop(state);
        self.shared.work.notify_one();
    }

    fn has_control_waiting(&self) -> bool {
        let state = crate::locked(&self.shared.state);
        state.is_writing_control || !state.control.is_empty()
    }

    fn send_chunk(&mut self, buffer: Buffer, wire_bytes: u32) -> Result<(), Buffer> {
        let mut state = crate::locked(&self.shared.state);
        if state.reported_down {
            return Err(buffer);
        }
        state.chunks.push_back((buffer, wire_bytes));
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        let mut state = crate::locked(&self.shared.state);
        if state.reported_down {
            return Err(buffer);
        }
        state.posted.push(buffer);
        Ok(())
    }

    fn give_back_idle(&mut self, buffers: &Range<u32>) {
        let mut state = crate::locked(&self.shared.state);
        for buffer in state.posted.iter_mut().filter(|buffer| buffers.contains(&buffer.id())) {
            buffer.give_back_if_idle();
        }
    }

    fn work_inline(&mut self, inline: Arc<dyn Inline>) -> bool {
        self.shared.inline.set(inline).is_ok()
    }

    fn close(&mut self) {
        let mut state = crate::locked(&self.shared.state);
        if state.closing.is_none() {
            state.closing = Some(Instant::now() + CLOSE_WAIT);
            drop(state);
            self.shared.work.notify_all();
        }
    }

    fn last_heard(&self) -> Instant {
        self.shared.born + Duration::from_millis(self.shared.heard_ms.load(Ordering::Relaxed))
    }

    fn state(&self) -> Option<LaneState> {
        info::state(&self.shared.socket)
    }

    fn way(&self) -> Option<[IpAddr; 2]> {
        self.way
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        self.close();
    }
}

enum Work {
    Control(Vec<u8>),
    Chunk(Buffer, u32),
    /// Nothing more will be sent.
    Finish,
}

impl Shared {
    /// Makes both threads end: no read or write stays blocked on a socket that has been shut down.
    fn fail(&self, mut state: MutexGuard<'_, State>, reason: LaneError) {
        let reason = if state.closing.is_some() { LaneError::Closed } else { reason };
        state.failure.get_or_insert(reason);
        drop(state);
        let _ = self.socket.shutdown(Shutdown::Both);
        self.work.notify_all();
    }

    /// Records that a thread of the lane has ended. The last thread reports `Down`.
    fn end(&self, reason: LaneError) {
        self.fail(crate::locked(&self.state), reason);
        let mut state = crate::locked(&self.state);
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        state.reported_down = true;
        let mut buffers: Vec<Buffer> = state.posted.drain(..).collect();
        buffers.extend(state.chunks.drain(..).map(|(buffer, _)| buffer));
        let reason = state.failure.clone().unwrap_or(LaneError::Closed);
        drop(state);
        (self.report)(LaneEvent::Down { reason, buffers });
    }

    fn write_loop(&self) -> LaneError {
        let mut chunks = 0_u8;
        let mut speed = Speed::new(&self.socket);
        loop {
            let outcome = match self.next_work() {
                Work::Control(mut record) => {
                    set_chunks(&mut record, chunks);
                    self.write_all(&record, &[])
                }
                Work::Chunk(mut buffer, wire_bytes) => {
                    if self.inline.get().is_some_and(|inline| !inline.prepare(&mut buffer)) {
                        (self.report)(LaneEvent::Unsent(buffer));
                        continue;
                    }
                    chunks = chunks.wrapping_add(1);
                    let start = Instant::now();
                    let written = self.write_all(buffer.header(), &buffer.payload()[..wire_bytes as usize]);
                    speed.note(&self.socket, wire_bytes, start.elapsed());
                    match written {
                        Ok(()) => (self.report)(LaneEvent::Sent(buffer)),
                        // Reported with the other buffers in `Down`.
                        Err(_) => crate::locked(&self.state).chunks.push_front((buffer, wire_bytes)),
                    }
                    written
                }
                Work::Finish => break,
            };
            if let Err(error) = outcome {
                return LaneError::Os { what: "send", error };
            }
        }
        // Before the socket is closed, lets the peer read to the end and close in its turn.
        let _ = self.socket.shutdown(Shutdown::Write);
        let mut state = crate::locked(&self.state);
        while let (Some(until), None) = (state.closing, &state.failure) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.threads < 2 {
                break;
            }
            state = self.work.wait_timeout(state, left).expect("no thread panics with the lane locked").0;
        }
        LaneError::Closed
    }

    fn next_work(&self) -> Work {
        let mut state = crate::locked(&self.state);
        state.is_writing_control = false;
        loop {
            if state.failure.is_some() {
                return Work::Finish;
            }
            if let Some(record) = state.control.pop_front() {
                state.is_writing_control = true;
                return Work::Control(record);
            }
            if state.closing.is_some() {
                return Work::Finish;
            }
            if let Some((buffer, wire_bytes)) = state.chunks.pop_front() {
                return Work::Chunk(buffer, wire_bytes);
            }
            state = self.work.wait(state).expect("no thread panics with the lane locked");
        }
    }

    fn write_all(&self, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < head.len() + tail.len() {
            let rest =
                [IoSlice::new(&head[done.min(head.len())..]), IoSlice::new(&tail[done.saturating_sub(head.len())..])];
            let slices = if tail.is_empty() { &rest[..1] } else { &rest[..] };
            let sent = sendmsg(&self.socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
            match sent {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let state = crate::locked(&self.state);
                    if state.failure.is_some() || state.closing.is_some_and(|until| Instant::now() >= until) {
                        return Err(Errno::TIMEDOUT);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_loop(&self) -> LaneError {
        let mut staging = Staging { bytes: Box::new([0; STAGING_BYTES]), start: 0, end: 0 };
        // The chunk whose payload is arriving, the payload's length, and how much of it has arrived.
        let mut current: Option<(Buffer, usize, usize)> = None;
        let mut chunks = 0;
        // Bytes received since `PART_HEARD_BYTES` were last counted as a sign of life.
        let mut unheard = 0;
        loop {
            if let Err(error) = self.parse(&mut staging, &mut current, &mut chunks) {
                self.give_back(current);
                return error;
            }
            staging.make_room();
            let end = staging.end;
            let room = &mut staging.bytes[end..];
            let received = match &mut current {
                Some((buffer, wanted, have)) => {
                    let rest = &mut buffer.payload_mut()[*have..*wanted];
                    receive(&self.socket, &mut [IoSliceMut::new(rest), IoSliceMut::new(room)])
                }
                None => receive(&self.socket, &mut [IoSliceMut::new(room)]),
            };
            let mut count = match received {
                Ok(0) => {
                    self.give_back(current);
                    return LaneError::PeerClosed;
                }
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    self.give_back(current);
                    return LaneError::Os { what: "receive", error };
                }
            };
            unheard += count;
            if unheard >= PART_HEARD_BYTES {
                self.note_heard();
                unheard = 0;
            }
            if let Some((_, wanted, have)) = &mut current {
                let landed = count.min(*wanted - *have);
                *have += landed;
                count -= landed;
            }
            staging.end += count;
        }
    }

    fn give_back(&self, current: Option<(Buffer, usize, usize)>) {
        if let Some((buffer, ..)) = current {
            crate::locked(&self.state).posted.push(buffer);
        }
    }

    fn note_heard(&self) {
        self.heard_ms.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Parses all whole records that have been received. `chunks` counts the chunks of this connection.
    fn parse(
        &self,
        staging: &mut Staging,
        current: &mut Option<(Buffer, usize, usize)>,
        chunks: &mut u8,
    ) -> Result<(), LaneError> {
        loop {
            if let Some((buffer, wanted, have)) = current {
                let landed = staging.take_into(&mut buffer.payload_mut()[*have..*wanted]);
                *have += landed;
                if have < wanted {
                    return Ok(());
                }
                self.note_heard();
                let (mut buffer, wanted, _) = current.take().expect("just seen");
                let opened = self.inline.get().map(|inline| inline.open(&mut buffer));
                (self.report)(LaneEvent::Chunk { buffer, wire_bytes: wanted as u32, opened });
            }
            let Some(record) = next_record(staging.staged(), *chunks)? else { return Ok(()) };
            let record_bytes = record.bytes();
            match record {
                Record::Chunk { header, wire_bytes } => {
                    // Takes the buffer that was posted last, because it is the most likely to be still in the cache.
                    let mut buffer = crate::locked(&self.state)
                        .posted
                        .pop()
                        .ok_or(LaneError::Framing("a chunk for which no receive was posted"))?;
                    if wire_bytes > buffer.payload().len() {
                        self.give_back(Some((buffer, 0, 0)));
                        return Err(LaneError::Framing("a chunk longer than agreed"));
                    }
                    *buffer.header_mut() = *header;
                    *chunks = chunks.wrapping_add(1);
                    *current = Some((buffer, wire_bytes, 0));
                }
                Record::Control(sealed) => {
                    self.note_heard();
                    (self.report)(LaneEvent::Control(sealed.to_vec()));
                }
            }
            staging.start += record_bytes;
        }
    }
}

fn receive(socket: &TcpStream, slices: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    let message = recvmsg(socket.as_fd(), slices, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())?;
    Ok(message.bytes)
}

struct Staging {
    bytes: Box<[u8; STAGING_BYTES]>,
    start: usize,
    end: usize,
}

impl Staging {
    fn staged(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn take_into(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }

    fn make_room(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::num::NonZeroUsize;

    use super::*;
    use crate::transport::Pool;

    #[test]
    fn nothing_paces_within_a_host() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (far, _) = listener.accept().expect("a connection");
        for socket in [near, far] {
            tune(&socket).expect("options");
            assert_eq!(sockopt::tcp_congestion(&socket).expect("a name"), WITHIN_HOST_CONGESTION);
        }
    }

    #[test]
    fn a_broken_connection_can_still_be_tuned() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (far, _) = listener.accept().expect("a connection");
        near.write_all(b"x").expect("room for a byte");
        assert_eq!(far.peek(&mut [0; 1]).expect("the byte"), 1);
        // Closing a connection with unread data resets it.
        drop(far);
        near.read(&mut [0; 1]).expect_err("a reset");
        near.peer_addr().expect_err("no peer any more");
        tune(&near).expect("options");
    }

    #[test]
    fn a_slow_chunk_is_a_sign_of_life_and_heartbeats_in_its_gap_are_none() {
        const CHUNK_BYTES: usize = 64 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (far, _) = listener.accept().expect("a connection");
        let (_pool, mut buffers) = Pool::new(1, NonZeroUsize::new(CHUNK_BYTES).expect("not 0")).expect("memory");
        let mut lane = TcpLane::start(far, Arc::new(|_| {})).expect("threads");
        assert!(lane.post_receive(buffers.pop().expect("one")).is_ok());
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[0] = b'C';
        header[4..8].copy_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        near.write_all(&header).expect("sent");
        let never = lane.last_heard();
        // As many sealed PINGs as come within 5 s.
        for _ in 0..5 {
            near.write_all(&control_record(&[0; 17])).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(lane.last_heard(), never);
        near.write_all(&[0; 512]).expect("sent");
        let deadline = Instant::now() + Duration::from_secs(10);
        while lane.last_heard() == never {
            assert!(Instant::now() < deadline, "a lane of 103 bytes a second counts as silent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_leaves_the_host_is_the_systems_to_control() {
        let within = |local: &str, peer: &str| {
            is_within_host(local.parse().expect("an address"), peer.parse().expect("an address"))
        };
        assert!(within("127.0.0.1:1", "127.0.0.2:2"));
        assert!(within("10.9.0.1:1", "[::ffff:10.9.0.1]:2"));
        assert!(within("[fd00:9::1]:1", "[fd00:9::1]:2"));
        assert!(!within("10.9.0.1:1", "10.9.0.2:1"));
        assert!(!within("[fe80::1%1]:1", "[fe80::2%1]:1"));
    }
}
