//! Control frames: everything that crosses a lane besides chunks.
//!
//! Each frame is sealed with its lane's own keys (see [`crate::handshake`]) and travels as one message, so a frame
//! needs no length of its own. The first byte is the frame's type, and its bit 7 means that a receiver must understand
//! the frame. A frame of an unknown type is skipped if bit 7 is clear; if it is set, the session ends with a protocol
//! error. Integers are little-endian.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::CONTROL_BYTES_MAX;
use crate::handshake::{CONTROL_PLAIN_BYTES_MAX, LaneId};
use crate::reader::{ReadError, Reader};

/// Maximum number of sequences between the lowest chunk not yet taken and the highest one sent. Bounds the bitmap of an
/// acknowledgement and the rings of both state machines.
pub const SPAN_MAX: usize = 8192;

/// Maximum number of RDMA endpoints, or of addresses, in one frame.
pub const ENDPOINTS_MAX: usize = 32;

/// Maximum length of a host name or path in a frame, in bytes. Longer texts are cut at the front.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Highest error number of Linux: `MAX_ERRNO` in its include/linux/err.h.
pub const ERRNO_MAX: i32 = 4095;

/// Number of bytes that sealing adds to a control frame.
pub const CONTROL_SEAL_BYTES: usize = CONTROL_BYTES_MAX - FRAME_BYTES_MAX;

/// Maximum length of a control frame in clear, in bytes.
pub const FRAME_BYTES_MAX: usize = CONTROL_PLAIN_BYTES_MAX;

/// Maximum length of an answer, in bytes. The frame of an answer also holds a kind, a number and a length.
pub const ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX - 11;

const MUST_UNDERSTAND: u8 = 0x80;

/// Direction in which the payload of a session flows, as seen from the end that sends the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end sends chunks.
    Sender = 0,
    /// This end receives chunks.
    Receiver = 1,
}

/// Which transports may carry payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Hardware RDMA if both ends reach each other by it, else TCP.
    #[default]
    Auto = 0,
    /// RDMA only.
    Rdma = 1,
    /// RDMA, including software devices, if possible, else TCP.
    PreferRdma = 2,
    /// TCP only.
    Tcp = 3,
}

/// Whether payload is to be encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encrypt {
    /// Encrypted on TCP, unless the peer's address belongs to this host; not encrypted on RDMA.
    #[default]
    Auto = 0,
    /// Encrypted on every transport.
    Always = 1,
    /// Encrypted on no transport.
    Never = 2,
}

/// The transport that carries payload at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
pub enum Path {
    /// TCP lanes.
    #[n(0)]
    Tcp = 0,
    /// RDMA lanes.
    #[n(1)]
    Rdma = 1,
}

/// Kind of the best RDMA device of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RdmaKind {
    /// The host has no device, or does not use it.
    #[default]
    None = 0,
    /// A software device: rxe or siw.
    Software = 1,
    /// A hardware adapter.
    Hardware = 2,
}

/// One RDMA address at which a listener can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the device is a hardware adapter, not rxe or siw.
    pub hardware: bool,
    /// Address and port of the RDMA listener.
    pub address: SocketAddr,
    /// Bits of the network prefix.
    pub prefix_bits: u8,
    /// Rate of the port, in Mb/s; 0 if unknown.
    pub rate_mbps: u32,
}

/// One TCP address of the listening end, which listens there at the port of the session's first connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailAddress {
    /// Number of the interface. All addresses of one interface lead by the same way.
    pub interface: u8,
    /// The address.
    pub address: IpAddr,
    /// Bits of the network prefix.
    pub prefix_bits: u8,
    /// Rate of the interface, in Mb/s; 0 if unknown.
    pub rate_mbps: u32,
}

/// What one end brings to the session. Both ends send their offer as the first frame on lane 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Direction in which payload flows.
    pub role: Role,
    /// Value of `--transport`.
    pub policy: Policy,
    /// Value of `--encrypt`.
    pub encrypt: Encrypt,
    /// Whether the peer's address, as seen from this end, is an address of this host.
    pub peer_is_local: bool,
    /// Number of lanes asked for; 0 leaves the number to the other end or to the default.
    pub lanes: u8,
    /// Maximum chunk payload that this end wants, in bytes.
    pub chunk_bytes: u32,
    /// Value of `--reconnect`, in seconds.
    pub reconnect_s: u32,
    /// Number of bytes that will be sent, if the sender knows.
    pub size_bytes: Option<u64>,
    /// Kind of the best RDMA device of this end.
    pub rdma: RdmaKind,
    /// Identifies the session to RDMA listeners, in clear. The ticket only prevents strangers from using up queue
    /// pairs.
    pub ticket: [u8; 16],
    /// Name of this host, for the messages of the other end.
    pub host: Vec<u8>,
}

/// A set of chunk sequences: all sequences below `below`, and of the others those whose bit is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceSet {
    /// Lowest sequence that is not known to be in the set; all lower sequences are in the set.
    pub below: u64,
    /// Bit `i % 8` of byte `i / 8` stands for sequence `below + i`. At most [`SPAN_MAX`] bits, no trailing zero byte.
    pub bits: Vec<u8>,
}

impl SequenceSet {
    /// Returns the members of the set that have bits, which are at or above `below`.
    pub fn above(&self) -> impl Iterator<Item = u64> + '_ {
        self.bits.iter().enumerate().flat_map(move |(byte, &bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| self.below + byte as u64 * 8 + bit)
        })
    }

    /// Builds a set from `below` and the members at or above `below`, in any order.
    pub fn new(below: u64, above: impl Iterator<Item = u64>) -> Self {
        let mut bits = Vec::new();
        for sequence in above {
            let at = usize::try_from(sequence - below).expect("within the span");
            assert!(at < SPAN_MAX);
            if bits.len() <= at / 8 {
                bits.resize(at / 8 + 1, 0);
            }
            bits[at / 8] |= 1 << (at % 8);
        }
        Self { below, bits }
    }
}

/// Why an end gave up, as told to the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal of this number ended the process.
    Signal(u8),
    /// The source could not be read.
    Source(IoFact),
    /// The sink could not be written or published.
    Sink(IoFact),
    /// The reader of the receiver's standard output has closed it.
    SinkClosed,
    /// Data did not pass its tag more often than chance explains.
    Integrity,
    /// The other end broke the protocol.
    Protocol,
    /// Only RDMA is allowed, and no RDMA lane could be made.
    NoRdma,
}

/// An I/O failure as facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFact {
    /// Error number of the system on the host where the failure happened, at most [`ERRNO_MAX`]; 0 if there is none.
    pub errno: i32,
    /// Path or name of what was being read or written, as bytes; at most [`TEXT_BYTES_MAX`].
    pub path: Vec<u8>,
    /// What went wrong, in a few words, if there is no error number; otherwise empty.
    pub detail: Vec<u8>,
}

/// Why an authenticated peer is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The listener is serving another session.
    Busy = 0,
    /// Both ends want to send, or both to receive.
    Role = 1,
    /// No transport is allowed by both ends.
    Transport = 2,
    /// One end requires encryption, the other forbids it.
    Encrypt = 3,
    /// The session is unknown to the listener, or this generation of a lane has been used.
    Lane = 4,
    /// An offer is out of bounds.
    Offer = 5,
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The offer of an end: the first frame on lane 0, from both ends.
    Offer(Offer),
    /// Refuses to serve the peer. Sent instead of an offer.
    Refuse(Refusal),
    /// Says which transport carries payload from now on. Sent by the connecting end, on every lane.
    Use {
        /// The transport.
        path: Path,
        /// Counts the changes. If two such frames overtake each other on two lanes, the later turn counts.
        turn: u32,
    },
    /// Where RDMA lanes may be dialled from now on. Sent by the listening end whenever the list changes.
    Endpoints {
        /// Counts the changes from 1. If two such frames overtake each other on two lanes, the later turn counts.
        turn: u32,
        /// All endpoints of the listening end.
        endpoints: Vec<Endpoint>,
    },
    /// Addresses of the listening end, with which the other end may find more ways to it.
    Addresses(Vec<RailAddress>),
    /// Credits of this lane, and the chunks taken in the whole session. Both are totals, so a repeated frame changes
    /// nothing.
    Ack {
        /// Number of receives posted on this lane since this generation came up.
        credit_total: u64,
        /// How many chunks beyond the lowest one not yet taken the sender may send. The receiver may have to hold all
        /// of them until the lowest one arrives.
        window: u32,
        /// Chunks that every sink has taken.
        taken: SequenceSet,
    },
    /// Shows that this end is alive.
    Ping,
    /// This end's process is about to be stopped (^Z): no sign of life is due until its next frame.
    Pause,
    /// This end's caller is out of reach. If that is true of both ends, the session is no longer wanted.
    Unwatched,
    /// This lane is to carry no more payload: the chunks on it are still delivered, then it is closed. Sent by the
    /// connecting end.
    Retired,
    /// The sender has lost this lane.
    LaneLost(LaneId),
    /// The receiver has released this lane. Chunks not in `have` never arrived and may be sent again.
    LaneGone {
        /// The lane.
        lane: LaneId,
        /// Chunks that arrived whole, whether they have been taken or not.
        have: SequenceSet,
    },
    /// An answer of the receiver of a tree or of a broadcast to the sender.
    Answer {
        /// Number of the answer, counted from 0.
        number: u64,
        /// A [`crate::tree::Answer`] or an encoded offset of [`crate::broadcast`]; at most [`ANSWER_BYTES_MAX`] bytes.
        bytes: Vec<u8>,
    },
    /// Acknowledges answers.
    Answered {
        /// The sender has all answers below this number.
        number: u64,
    },
    /// All chunks have been taken. The fields say what the chunks must add up to.
    Done {
        /// Number of chunks.
        chunks: u64,
        /// Number of plain bytes.
        bytes: u64,
        /// BLAKE3 over the tags of all chunks, in the order of their sequence.
        digest: [u8; 32],
    },
    /// The receiver agrees with [`Frame::Done`] and has published its output.
    Finished {
        /// Number of plain bytes written.
        bytes: u64,
        /// Number of entries of a tree that could not be made.
        failed: u64,
    },
    /// The last frame of a session: no more frames follow, and no answer is due.
    Bye,
    /// This end has given up.
    Abort(Cause),
}

/// Why a control frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame ends before its fields do.
    #[error("frame cut short")]
    Short,
    /// Bytes are left over after the last field.
    #[error("frame with trailing bytes")]
    Trailing,
    /// A field holds a value out of its bounds.
    #[error("invalid {0}")]
    Value(&'static str),
    /// The frame has an unknown type that must be understood.
    #[error("unknown frame type {0:#04x}")]
    Unknown(u8),
}

impl From<ReadError> for FrameError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Short => Self::Short,
            ReadError::Flag => Self::Value("flag"),
        }
    }
}

mod kind {
    use super::MUST_UNDERSTAND;
    pub const OFFER: u8 = 0x01 | MUST_UNDERSTAND;
    pub const REFUSE: u8 = 0x02 | MUST_UNDERSTAND;
    pub const USE: u8 = 0x03 | MUST_UNDERSTAND;
    pub const ENDPOINTS: u8 = 0x04;
    pub const ADDRESSES: u8 = 0x05;
    pub const ACK: u8 = 0x10 | MUST_UNDERSTAND;
    pub const PING: u8 = 0x11;
    pub const PAUSE: u8 = 0x12 | MUST_UNDERSTAND;
    pub const UNWATCHED: u8 = 0x16;
    pub const RETIRED: u8 = 0x18;
    pub const LANE_LOST: u8 = 0x13 | MUST_UNDERSTAND;
    pub const LANE_GONE: u8 = 0x14 | MUST_UNDERSTAND;
    pub const ANSWER: u8 = 0x15 | MUST_UNDERSTAND;
    pub const ANSWERED: u8 = 0x17 | MUST_UNDERSTAND;
    pub const DONE: u8 = 0x20 | MUST_UNDERSTAND;
    pub const FINISHED: u8 = 0x21 | MUST_UNDERSTAND;
    pub const BYE: u8 = 0x22 | MUST_UNDERSTAND;
    pub const ABORT: u8 = 0x23 | MUST_UNDERSTAND;
}

impl Frame {
    /// Appends the encoded frame to `out`. The limits of the fields keep the frame within [`FRAME_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        match self {
            Self::Offer(offer) => {
                out.push(kind::OFFER);
                offer.encode(out);
            }
            Self::Refuse(refusal) => out.extend([kind::REFUSE, *refusal as u8]),
            Self::Use { path, turn } => {
                out.extend([kind::USE, *path as u8]);
                out.extend(turn.to_le_bytes());
            }
            Self::Endpoints { turn, endpoints } => {
                out.push(kind::ENDPOINTS);
                out.extend(turn.to_le_bytes());
                encode_endpoints(endpoints, out);
            }
            Self::Addresses(addresses) => {
                out.push(kind::ADDRESSES);
                encode_addresses(addresses, out);
            }
            Self::Ack { credit_total, window, taken } => {
                out.push(kind::ACK);
                out.extend(credit_total.to_le_bytes());
                out.extend(window.to_le_bytes());
                taken.encode(out);
            }
            Self::Ping => out.push(kind::PING),
            Self::Pause => out.push(kind::PAUSE),
            Self::Unwatched => out.push(kind::UNWATCHED),
            Self::Retired => out.push(kind::RETIRED),
            Self::LaneLost(lane) => {
                out.push(kind::LANE_LOST);
                lane.encode(out);
            }
            Self::LaneGone { lane, have } => {
                out.push(kind::LANE_GONE);
                lane.encode(out);
                have.encode(out);
            }
            Self::Answer { number, bytes } => {
                out.push(kind::ANSWER);
                out.extend(number.to_le_bytes());
                out.extend((bytes.len() as u16).to_le_bytes());
                out.extend(bytes);
            }
            Self::Answered { number } => {
                out.push(kind::ANSWERED);
                out.extend(number.to_le_bytes());
            }
            Self::Done { chunks, bytes, digest } => {
                out.push(kind::DONE);
                out.extend(chunks.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                out.extend(digest);
            }
            Self::Finished { bytes, failed } => {
                out.push(kind::FINISHED);
                out.extend(bytes.to_le_bytes());
                out.extend(failed.to_le_bytes());
            }
            Self::Bye => out.push(kind::BYE),
            Self::Abort(cause) => {
                out.push(kind::ABORT);
                cause.encode(out);
            }
        }
        debug_assert!(out.len() - start <= FRAME_BYTES_MAX);
    }

    /// Decodes a frame from a peer. `None` if the frame has an unknown type that may be skipped.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the frame is cut short, has bytes left over, holds a value out of bounds, or has an unknown
    /// type that must be understood. Lengths are checked before anything is allocated for them.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let mut reader = Reader { rest: bytes };
        let frame = match reader.u8()? {
            kind::OFFER => Self::Offer(Offer::decode(&mut reader)?),
            kind::REFUSE => {
                use Refusal::{Busy, Encrypt, Lane, Offer, Role, Transport};
                Self::Refuse(one_of(&mut reader, &[Busy, Role, Transport, Encrypt, Lane, Offer], "refusal")?)
            }
            kind::USE => {
                Self::Use { path: one_of(&mut reader, &[Path::Tcp, Path::Rdma], "path")?, turn: reader.u32()? }
            }
            kind::ENDPOINTS => Self::Endpoints { turn: reader.u32()?, endpoints: decode_endpoints(&mut reader)? },
            kind::ADDRESSES => Self::Addresses(decode_addresses(&mut reader)?),
            kind::ACK => {
                let (credit_total, window) = (reader.u64()?, reader.u32()?);
                Self::Ack { credit_total, window, taken: SequenceSet::decode(&mut reader)? }
            }
            kind::PING => Self::Ping,
            kind::PAUSE => Self::Pause,
            kind::UNWATCHED => Self::Unwatched,
            kind::RETIRED => Self::Retired,
            kind::LANE_LOST => Self::LaneLost(LaneId::decode(&mut reader)?),
            kind::LANE_GONE => {
                Self::LaneGone { lane: LaneId::decode(&mut reader)?, have: SequenceSet::decode(&mut reader)? }
            }
            kind::ANSWER => {
                let (number, length) = (reader.u64()?, usize::from(reader.u16()?));
                if length > ANSWER_BYTES_MAX {
                    return Err(FrameError::Value("answer length"));
                }
                Self::Answer { number, bytes: reader.bytes(length)?.to_vec() }
            }
            kind::ANSWERED => Self::Answered { number: reader.u64()? },
            kind::DONE => Self::Done { chunks: reader.u64()?, bytes: reader.u64()?, digest: reader.array()? },
            kind::FINISHED => Self::Finished { bytes: reader.u64()?, failed: reader.u64()? },
            kind::BYE => Self::Bye,
            kind::ABORT => Self::Abort(Cause::decode(&mut reader)?),
            unknown if unknown & MUST_UNDERSTAND != 0 => return Err(FrameError::Unknown(unknown)),
            _ => return Ok(None),
        };
        if reader.rest.is_empty() { Ok(Some(frame)) } else { Err(FrameError::Trailing) }
    }
}

/// Decodes one of `all`, which are numbered from 0. `what` names the field in the error.
fn one_of<T: Copy>(reader: &mut Reader<'_>, all: &[T], what: &'static str) -> Result<T, FrameError> {
    all.get(usize::from(reader.u8()?)).copied().ok_or(FrameError::Value(what))
}

impl Offer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.role as u8, self.policy as u8, self.encrypt as u8]);
        out.extend([u8::from(self.peer_is_local), self.rdma as u8, self.lanes]);
        out.extend(self.chunk_bytes.to_le_bytes());
        out.extend(self.reconnect_s.to_le_bytes());
        out.push(u8::from(self.size_bytes.is_some()));
        out.extend(self.size_bytes.unwrap_or(0).to_le_bytes());
        out.extend(self.ticket);
        encode_text(&self.host, out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            role: one_of(reader, &[Role::Sender, Role::Receiver], "role")?,
            policy: one_of(reader, &[Policy::Auto, Policy::Rdma, Policy::PreferRdma, Policy::Tcp], "policy")?,
            encrypt: one_of(reader, &[Encrypt::Auto, Encrypt::Always, Encrypt::Never], "encryption")?,
            peer_is_local: reader.bool()?,
            rdma: one_of(reader, &[RdmaKind::None, RdmaKind::Software, RdmaKind::Hardware], "RDMA kind")?,
            lanes: reader.u8()?,
            chunk_bytes: reader.u32()?,
            reconnect_s: reader.u32()?,
            size_bytes: {
                let known = reader.bool()?;
                let size = reader.u64()?;
                known.then_some(size)
            },
            ticket: reader.array()?,
            host: decode_text(reader)?,
        })
    }
}

impl LaneId {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.index.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let index = u16::from_le_bytes(reader.array()?);
        if usize::from(index) >= crate::session::LANES_MAX {
            return Err(FrameError::Value("lane"));
        }
        Ok(Self { index, generation: reader.u32()? })
    }
}

impl SequenceSet {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.below.to_le_bytes());
        out.extend((self.bits.len() as u16).to_le_bytes());
        out.extend(&self.bits);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let below = reader.u64()?;
        let bytes = usize::from(reader.u16()?);
        if bytes > SPAN_MAX / 8 || below.checked_add(SPAN_MAX as u64).is_none() {
            return Err(FrameError::Value("sequence set"));
        }
        Ok(Self { below, bits: reader.bytes(bytes)?.to_vec() })
    }
}

impl Cause {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Signal(number) => out.extend([0, *number]),
            Self::Source(fact) => {
                out.push(1);
                fact.encode(out);
            }
            Self::Sink(fact) => {
                out.push(2);
                fact.encode(out);
            }
            Self::SinkClosed => out.push(3),
            Self::Integrity => out.push(4),
            Self::Protocol => out.push(5),
            Self::NoRdma => out.push(6),
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(match reader.u8()? {
            0 => Self::Signal(reader.u8()?),
            1 => Self::Source(IoFact::decode(reader)?),
            2 => Self::Sink(IoFact::decode(reader)?),
            3 => Self::SinkClosed,
            4 => Self::Integrity,
            5 => Self::Protocol,
            6 => Self::NoRdma,
            _ => return Err(FrameError::Value("cause")),
        })
    }
}

impl IoFact {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.errno.to_le_bytes());
        encode_text(&self.path, out);
        encode_text(&self.detail, out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let errno = match reader.u32()? as i32 {
            errno @ 0..=ERRNO_MAX => errno,
            _ => return Err(FrameError::Value("errno")),
        };
        Ok(Self { errno, path: decode_text(reader)?, detail: decode_text(reader)? })
    }
}

fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    let kept = &text[text.len().saturating_sub(TEXT_BYTES_MAX)..];
    out.extend((kept.len() as u16).to_le_bytes());
    out.extend(kept);
}

fn decode_text(reader: &mut Reader<'_>) -> Result<Vec<u8>, FrameError> {
    let bytes = usize::from(reader.u16()?);
    if bytes > TEXT_BYTES_MAX {
        return Err(FrameError::Value("text length"));
    }
    Ok(reader.bytes(bytes)?.to_vec())
}

fn encode_ip(address: IpAddr, out: &mut Vec<u8>) {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    out.extend(v6.octets());
}

/// Decodes an address. Fails if its network prefix of `prefix_bits` is longer than the address.
fn decode_ip(reader: &mut Reader<'_>, prefix_bits: u8) -> Result<IpAddr, FrameError> {
    let v6 = Ipv6Addr::from(reader.array::<16>()?);
    let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), |v4: Ipv4Addr| IpAddr::V4(v4));
    if prefix_bits > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(FrameError::Value("prefix"));
    }
    Ok(ip)
}

/// Appends the number of the list's elements, then the elements; at most the first [`ENDPOINTS_MAX`].
fn encode_list<T>(list: &[T], out: &mut Vec<u8>, each: impl Fn(&T, &mut Vec<u8>)) {
    let kept = &list[..list.len().min(ENDPOINTS_MAX)];
    out.push(kept.len() as u8);
    kept.iter().for_each(|one| each(one, out));
}

/// Decodes a list. `what` names the number of elements in the error if that number is too high.
fn decode_list<T>(
    reader: &mut Reader<'_>,
    what: &'static str,
    each: impl Fn(&mut Reader<'_>) -> Result<T, FrameError>,
) -> Result<Vec<T>, FrameError> {
    let count = usize::from(reader.u8()?);
    if count > ENDPOINTS_MAX {
        return Err(FrameError::Value(what));
    }
    (0..count).map(|_| each(reader)).collect()
}

fn encode_endpoints(endpoints: &[Endpoint], out: &mut Vec<u8>) {
    encode_list(endpoints, out, |endpoint, out| {
        out.extend([u8::from(endpoint.hardware), endpoint.prefix_bits]);
        encode_ip(endpoint.address.ip(), out);
        out.extend(endpoint.address.port().to_le_bytes());
        out.extend(endpoint.rate_mbps.to_le_bytes());
    });
}

fn decode_endpoints(reader: &mut Reader<'_>) -> Result<Vec<Endpoint>, FrameError> {
    decode_list(reader, "endpoint count", |reader| {
        let hardware = reader.bool()?;
        let prefix_bits = reader.u8()?;
        let ip = decode_ip(reader, prefix_bits)?;
        let address = SocketAddr::new(ip, reader.u16()?);
        Ok(Endpoint { hardware, address, prefix_bits, rate_mbps: reader.u32()? })
    })
}

fn encode_addresses(addresses: &[RailAddress], out: &mut Vec<u8>) {
    encode_list(addresses, out, |known, out| {
        out.extend([known.interface, known.prefix_bits]);
        encode_ip(known.address, out);
        out.extend(known.rate_mbps.to_le_bytes());
    });
}

fn decode_addresses(reader: &mut Reader<'_>) -> Result<Vec<RailAddress>, FrameError> {
    decode_list(reader, "address count", |reader| {
        let (interface, prefix_bits) = (reader.u8()?, reader.u8()?);
        let address = decode_ip(reader, prefix_bits)?;
        Ok(RailAddress { interface, address, prefix_bits, rate_mbps: reader.u32()? })
    })
}
