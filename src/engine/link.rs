//! Making lanes: connecting, accepting, authenticating, and exchanging offers on a session's first lane.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rand_core::UnwrapErr;
use rd_proto::control::{CONTROL_SEAL_BYTES, Frame, FrameError, Offer, Refusal};
use rd_proto::frame::CONTROL_BYTES_MAX;
use rd_proto::handshake::{
    Connecting, ControlChannel, ControlError, Established, HANDSHAKE_BYTES_MAX, HandshakeError, LENGTH_PREFIX_BYTES,
};
use rustix::io::Errno;

use super::rails::Rail;
use crate::fault::{errno_of, os};
use crate::transport::tcp::{TcpLane, connect_from, control_record};
use crate::transport::{Lane, Report};

/// Maximum time that a peer may take from connecting to having authenticated.
pub const AUTHENTICATE_MAX: Duration = Duration::from_secs(5);

/// Maximum time that the exchange of offers may take.
pub const OFFER_MAX: Duration = Duration::from_secs(5);

/// Maximum time that an end which gives up waits for its last frame to be read.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// Maximum time that one connection attempt to one address may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Returns the system's random number generator, for keys and names.
pub fn rng() -> UnwrapErr<getrandom::SysRng> {
    UnwrapErr(getrandom::SysRng)
}

/// Why a lane could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("{what}: {}", os(*.error))]
    Os {
        /// The call.
        what: &'static str,
        /// The error of the call.
        error: Errno,
    },
    /// The peer did not answer in time.
    #[error("the peer does not answer")]
    TimedOut,
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Authentication failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer has authenticated but refuses to serve this end.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// A control frame could not be opened.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A control frame could not be decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame came that was not due.
    #[error("unexpected frame")]
    Unexpected,
    /// The transport cannot be used.
    #[error("{0}")]
    Transport(String),
}

impl LinkError {
    pub(crate) fn os(what: &'static str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => Self::TimedOut,
            std::io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Os { what, error: errno_of(error) },
        }
    }
}

/// Connects to one address.
///
/// # Errors
///
/// [`LinkError::Os`] or [`LinkError::TimedOut`], by `deadline` at the latest.
pub fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpStream, LinkError> {
    let stream =
        TcpStream::connect_timeout(&address, left(deadline)?).map_err(|error| LinkError::os("connect", &error))?;
    // On a local port without a listener, a connection may end up connected to itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(LinkError::Os { what: "connect", error: Errno::CONNREFUSED });
    }
    Ok(stream)
}

/// Connects to one address over a rail.
///
/// # Errors
///
/// As [`connect`].
pub(super) fn connect_by(rail: &Rail, port: u16, deadline: Instant) -> Result<TcpStream, LinkError> {
    let peer = SocketAddr::new(rail.peer, port);
    connect_from(&rail.interface, rail.local, peer, left(deadline)?).map_err(|error| LinkError::os("connect", &error))
}

/// Returns the time left for connecting.
fn left(deadline: Instant) -> Result<Duration, LinkError> {
    let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_MAX);
    if left.is_zero() { Err(LinkError::TimedOut) } else { Ok(left) }
}

/// Runs the connector's side of a handshake.
///
/// # Errors
///
/// Any [`LinkError`] except those of exchanging offers, by `deadline` at the latest.
pub fn authenticate(
    stream: &mut TcpStream,
    (state, hello): (Connecting, Vec<u8>),
    deadline: Instant,
) -> Result<Established, LinkError> {
    write_message(stream, &hello)?;
    let reply = read_message(stream, deadline)?;
    let (established, confirm) = state.finish(&reply)?;
    write_message(stream, &confirm)?;
    Ok(established)
}

/// Returns a handshake message in the form in which it crosses a byte stream: behind its length.
pub fn with_length(message: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(LENGTH_PREFIX_BYTES + message.len());
    framed.extend((message.len() as u16).to_le_bytes());
    framed.extend(message);
    framed
}

fn write_message(stream: &mut TcpStream, message: &[u8]) -> Result<(), LinkError> {
    stream.write_all(&with_length(message)).map_err(|error| LinkError::os("send", &error))
}

fn read_message(stream: &mut TcpStream, deadline: Instant) -> Result<Vec<u8>, LinkError> {
    let mut length = [0; LENGTH_PREFIX_BYTES];
    read_exact(stream, &mut length, deadline)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > HANDSHAKE_BYTES_MAX {
        return Err(HandshakeError::NotOurs.into());
    }
    let mut message = vec![0; length];
    read_exact(stream, &mut message, deadline)?;
    Ok(message)
}

/// Like `Read::read_exact`, with one deadline for the whole read.
fn read_exact(stream: &mut TcpStream, target: &mut [u8], deadline: Instant) -> Result<(), LinkError> {
    let mut done = 0;
    while done < target.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::TimedOut);
        }
        stream.set_read_timeout(Some(left)).map_err(|error| LinkError::os("receive", &error))?;
        match stream.read(&mut target[done..]) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(LinkError::os("receive", &error)),
        }
    }
    Ok(())
}

/// Sends one control frame on a socket that is not a lane yet.
///
/// # Errors
///
/// [`LinkError::Os`] and [`LinkError::Control`].
pub fn send_frame(stream: &mut TcpStream, control: &mut ControlChannel, frame: &Frame) -> Result<(), LinkError> {
    let mut plain = Vec::new();
    frame.encode(&mut plain);
    send_plain(stream, control, &plain)
}

/// Seals an encoded frame and sends it on a socket that is not a lane.
///
/// # Errors
///
/// [`LinkError::Os`] and [`LinkError::Control`].
pub fn send_plain(stream: &mut TcpStream, control: &mut ControlChannel, plain: &[u8]) -> Result<(), LinkError> {
    let mut sealed = Vec::new();
    control.seal(plain, &mut sealed)?;
    stream.write_all(&control_record(&sealed)).map_err(|error| LinkError::os("send", &error))
}

/// A connection over which the last frame has been sent. Closing a connection that has unread bytes would send a reset,
/// which may overtake that frame. So dropping this reads until the peer closes as well, for at most `LAST_WORD_MAX`.
#[derive(Debug)]
pub struct LastWord {
    stream: TcpStream,
    deadline: Instant,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        await_close(&mut self.stream, self.deadline);
    }
}

fn await_close(stream: &mut TcpStream, deadline: Instant) {
    while read_exact(stream, &mut [0; 1], deadline).is_ok() {}
}

/// Sends one control frame as the last frame. Waits here for the peer to close if the connection cannot be duplicated.
pub fn send_last(stream: &mut TcpStream, control: &mut ControlChannel, frame: &Frame) -> Option<LastWord> {
    send_frame(stream, control, frame).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let deadline = Instant::now() + LAST_WORD_MAX;
    let kept = stream.try_clone();
    if kept.is_err() {
        await_close(stream, deadline);
    }
    Some(LastWord { stream: kept.ok()?, deadline })
}

/// Turns an authenticated connection into a lane.
///
/// # Errors
///
/// [`LinkError::Os`].
pub fn tcp_lane(
    stream: TcpStream,
    control: ControlChannel,
    report: Report,
) -> Result<(Box<dyn Lane>, ControlChannel), LinkError> {
    let lane = TcpLane::start(stream, report).map_err(|error| LinkError::os("lane", &error))?;
    Ok((Box::new(lane), control))
}

/// Sends this end's offer and waits for the peer's.
///
/// # Errors
///
/// [`LinkError::Refused`] if the peer refuses to serve this end, another error if the exchange fails.
pub fn exchange_offers(stream: &mut TcpStream, control: &mut ControlChannel, ours: &Offer) -> Result<Offer, LinkError> {
    let deadline = Instant::now() + OFFER_MAX;
    send_frame(stream, control, &Frame::Offer(ours.clone()))?;
    let mut prefix = [0; 4];
    read_exact(stream, &mut prefix, deadline)?;
    let length = usize::from(u16::from_le_bytes([prefix[2], prefix[3]]));
    if prefix[..2] != *b"F\0" || !(CONTROL_SEAL_BYTES..=CONTROL_BYTES_MAX).contains(&length) {
        // The prefix of a sealed frame is in clear. No peer that has authenticated sends another prefix, so it is
        // forged.
        return Err(ControlError::Forged.into());
    }
    let (mut sealed, mut plain) = (vec![0; length], Vec::new());
    read_exact(stream, &mut sealed, deadline)?;
    control.open(&sealed, &mut plain)?;
    match Frame::decode(&plain)? {
        Some(Frame::Offer(theirs)) => Ok(theirs),
        Some(Frame::Refuse(refusal)) => Err(LinkError::Refused(refusal)),
        _ => Err(LinkError::Unexpected),
    }
}
