//! Control frames: everything that crosses a lane besides chunks.
//!
//! Each frame travels sealed by its lane's own keys (see [`crate::handshake`]), one frame a message, so a frame needs
//! no length of its own. The first byte is its type; bit 7 of it says that a receiver must understand the frame. An
//! unknown type without that bit is skipped, with it the session ends as a protocol error. Integers are
//! little-endian.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod measure;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::CONTROL_BYTES_MAX;
use crate::handshake::{CONTROL_PLAIN_BYTES_MAX, LaneId};
use crate::reader::{ReadError, Reader};

/// Sequences that may lie between the lowest chunk not yet taken and the highest one sent. Bounds the bitmap of an
/// acknowledgement and the rings of both state machines.
pub const SPAN_MAX: usize = 8192;

/// RDMA endpoints, or addresses, that one frame may name.
pub const ENDPOINTS_MAX: usize = 32;

/// Bytes of a host name or path carried in a frame; longer ones are cut at the front.
pub const TEXT_BYTES_MAX: usize = 1024;

/// The highest error number that Linux has: `MAX_ERRNO` of its include/linux/err.h.
pub const ERRNO_MAX: i32 = 4095;

/// Bytes that sealing adds to a control frame.
pub const CONTROL_SEAL_BYTES: usize = CONTROL_BYTES_MAX - FRAME_BYTES_MAX;

/// The largest control frame in clear, in bytes.
pub const FRAME_BYTES_MAX: usize = CONTROL_PLAIN_BYTES_MAX;

/// The longest answer, in bytes: its frame has a kind, a number and a length beside it.
pub const ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX - 11;

const MUST_UNDERSTAND: u8 = 0x80;

/// Which way the payload of a session flows, seen from the end that says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end sends chunks.
    Sender = 0,
    /// This end receives them.
    Receiver = 1,
}

/// Which transports may carry payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Hardware RDMA where both ends reach each other by it, else TCP.
    #[default]
    Auto = 0,
    /// RDMA and nothing else.
    Rdma = 1,
    /// RDMA, software devices included, else TCP.
    PreferRdma = 2,
    /// TCP and nothing else.
    Tcp = 3,
}

/// Whether payload is to be encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encrypt {
    /// On TCP unless the peer's address is one of our own; not on RDMA.
    #[default]
    Auto = 0,
    /// On every transport.
    Always = 1,
    /// On none.
    Never = 2,
}

/// The transport that payload takes now.
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

/// The best RDMA device of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RdmaKind {
    /// It has none, or will not use it.
    #[default]
    None = 0,
    /// A software device: rxe or siw.
    Software = 1,
    /// An adapter.
    Hardware = 2,
}

/// One RDMA address that a listener can be reached at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A hardware adapter, not rxe or siw.
    pub hardware: bool,
    /// Address and port of the RDMA listener.
    pub address: SocketAddr,
    /// Bits of the network prefix.
    pub prefix_bits: u8,
    /// Rate of the port, in Mb/s; 0 where unknown.
    pub rate_mbps: u32,
}

/// One TCP address of the end that listens, which it does there at the port that the session began at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailAddress {
    /// Numbers its interface: all addresses of one are one way there.
    pub interface: u8,
    /// The address.
    pub address: IpAddr,
    /// Bits of the network prefix.
    pub prefix_bits: u8,
    /// Rate of the interface, in Mb/s; 0 where unknown.
    pub rate_mbps: u32,
}

/// What one end brings to the session; both send theirs first on lane 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which way payload flows.
    pub role: Role,
    /// `--transport`.
    pub policy: Policy,
    /// `--encrypt`.
    pub encrypt: Encrypt,
    /// The peer's address, as seen from here, is an address of this host.
    pub peer_is_local: bool,
    /// Lanes asked for; 0 leaves it to the other end or the default.
    pub lanes: u8,
    /// Largest chunk payload wanted, in bytes.
    pub chunk_bytes: u32,
    /// `--reconnect`, in seconds.
    pub reconnect_s: u32,
    /// Bytes that will be sent, where the sender knows.
    pub size_bytes: Option<u64>,
    /// The best RDMA device of this end.
    pub rdma: RdmaKind,
    /// Names the session to RDMA listeners, in clear: it only keeps strangers from costing queue pairs.
    pub ticket: [u8; 16],
    /// This host's name, for the other end's messages.
    pub host: Vec<u8>,
}

/// A set of chunk sequences: all below `below`, and those whose bit is set from there on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceSet {
    /// Every sequence under this one is in the set; this one is not.
    pub below: u64,
    /// Bit `i % 8` of byte `i / 8` stands for sequence `below + i`. At most [`SPAN_MAX`] bits, no trailing zero byte.
    pub bits: Vec<u8>,
}

impl SequenceSet {
    /// The members at or above `below`.
    pub fn above(&self) -> impl Iterator<Item = u64> + '_ {
        self.bits.iter().enumerate().flat_map(move |(byte, &bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| self.below + byte as u64 * 8 + bit)
        })
    }

    /// Builds a set from what is above `below`, ascending or not.
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

/// Why an end gave up, as told to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal with this number.
    Signal(u8),
    /// The source could not be read.
    Source(IoFact),
    /// The sink could not be written or published.
    Sink(IoFact),
    /// The reader of the receiver's standard output has closed it.
    SinkClosed,
    /// Data arrived that its tag does not cover, more often than chance explains.
    Integrity,
    /// The other end broke the protocol.
    Protocol,
    /// RDMA is all that is allowed, and no RDMA lane could be made.
    NoRdma,
}

/// An I/O failure as facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFact {
    /// The system's error number on the host where it happened, at most [`ERRNO_MAX`]; 0 where the failure has none.
    pub errno: i32,
    /// What was being read or written; bytes, at most [`TEXT_BYTES_MAX`].
    pub path: Vec<u8>,
    /// What went wrong where there is no error number, in a few words; otherwise empty.
    pub detail: Vec<u8>,
}

/// Why a peer that has authenticated is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another session is being served.
    Busy = 0,
    /// Both ends want to send, or both to receive.
    Role = 1,
    /// The transports that the two ends allow have none in common.
    Transport = 2,
    /// One end insists on encryption, the other on none.
    Encrypt = 3,
    /// The session is not known here, or this generation of a lane has been used.
    Lane = 4,
    /// Offers out of bounds.
    Offer = 5,
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First on lane 0, from both ends.
    Offer(Offer),
    /// Instead of an offer: this peer is not served.
    Refuse(Refusal),
    /// Says which transport payload takes from now on; from the connecting end, on every lane.
    Use {
        /// The transport.
        path: Path,
        /// Counts the changes, so that of two such frames that overtake each other on two lanes the later one stands.
        turn: u32,
    },
    /// Where RDMA lanes may be dialled, from now on. From the listening end, whenever it changes.
    Endpoints {
        /// Counts the changes from 1, so that of two such frames that overtake each other on two lanes the later one stands.
        turn: u32,
        /// All of them.
        endpoints: Vec<Endpoint>,
    },
    /// The addresses of the end that listens, so that the other may find more ways there.
    Addresses(Vec<RailAddress>),
    /// Credits of this lane, and what has been taken in the whole session. Both are totals: repeating changes nothing.
    Ack {
        /// Receives posted on this lane in this generation since it came up.
        credit_total: u64,
        /// How far beyond the lowest chunk not yet taken the sender may go, in chunks: all that the receiver could
        /// have to hold until that one comes.
        window: u32,
        /// Chunks that every sink has.
        taken: SequenceSet,
    },
    /// Shows life.
    Ping,
    /// This end is about to be stopped (^Z): no sign of life is due until its next frame.
    Pause,
    /// This end's caller is out of reach. Where that is so of both ends, the session is no longer wanted.
    Unwatched,
    /// From the connecting end, on a lane that is to carry no more payload: what is on it is still sent, then it is closed.
    Retired,
    /// The sender has lost this lane.
    LaneLost(LaneId),
    /// The receiver has released this lane; chunks not in `have` never arrived and may be sent again.
    LaneGone {
        /// The lane.
        lane: LaneId,
        /// Chunks that arrived whole, whether taken or still waiting to be.
        have: SequenceSet,
    },
    /// What the receiver of a tree says to the sender.
    Answer {
        /// Counts the answers from 0.
        number: u64,
        /// A [`crate::tree::Answer`]; at most [`ANSWER_BYTES_MAX`] bytes.
        bytes: Vec<u8>,
    },
    /// The sender has these answers.
    Answered {
        /// All below this number.
        number: u64,
    },
    /// All chunks have been taken; this is what they must add up to.
    Done {
        /// Number of chunks.
        chunks: u64,
        /// Number of plain bytes.
        bytes: u64,
        /// BLAKE3 over all tags in order.
        digest: [u8; 32],
    },
    /// The receiver agrees, and has published.
    Finished {
        /// Plain bytes written.
        bytes: u64,
        /// Entries of a tree that could not be made.
        failed: u64,
    },
    /// The last frame of a session: nothing more will come, and no answer is due.
    Bye,
    /// This end has given up.
    Abort(Cause),
}

/// Why a control frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It ends before its fields do.
    #[error("frame cut short")]
    Short,
    /// Bytes are left over after its last field.
    #[error("frame with trailing bytes")]
    Trailing,
    /// A field holds a value out of its bounds.
    #[error("bad {0}")]
    Value(&'static str),
    /// A type that must be understood and is not.
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
    /// Appends the frame to `out`: at most [`FRAME_BYTES_MAX`] bytes, by the limits of its fields.
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

    /// Reads a frame from a peer. `None` is a frame of an unknown type that may be skipped.
    ///
    /// # Errors
    ///
    /// [`FrameError`]; nothing beyond the frame's own bytes is allocated before its lengths have been checked.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let mut reader = Reader { rest: bytes };
        let frame = match reader.u8()? {
            kind::OFFER => Self::Offer(Offer::decode(&mut reader)?),
            kind::REFUSE => Self::Refuse(match reader.u8()? {
                0 => Refusal::Busy,
                1 => Refusal::Role,
                2 => Refusal::Transport,
                3 => Refusal::Encrypt,
                4 => Refusal::Lane,
                5 => Refusal::Offer,
                _ => return Err(FrameError::Value("refusal")),
            }),
            kind::USE => {
                let path = match reader.u8()? {
                    0 => Path::Tcp,
                    1 => Path::Rdma,
                    _ => return Err(FrameError::Value("path")),
                };
                Self::Use { path, turn: reader.u32()? }
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

impl Policy {
    fn decode(byte: u8) -> Result<Self, FrameError> {
        match byte {
            0 => Ok(Self::Auto),
            1 => Ok(Self::Rdma),
            2 => Ok(Self::PreferRdma),
            3 => Ok(Self::Tcp),
            _ => Err(FrameError::Value("policy")),
        }
    }
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
            role: match reader.u8()? {
                0 => Role::Sender,
                1 => Role::Receiver,
                _ => return Err(FrameError::Value("role")),
            },
            policy: Policy::decode(reader.u8()?)?,
            encrypt: match reader.u8()? {
                0 => Encrypt::Auto,
                1 => Encrypt::Always,
                2 => Encrypt::Never,
                _ => return Err(FrameError::Value("encryption")),
            },
            peer_is_local: reader.bool()?,
            rdma: match reader.u8()? {
                0 => RdmaKind::None,
                1 => RdmaKind::Software,
                2 => RdmaKind::Hardware,
                _ => return Err(FrameError::Value("RDMA kind")),
            },
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

/// An address of a network with a prefix of so many bits.
fn decode_ip(reader: &mut Reader<'_>, prefix_bits: u8) -> Result<IpAddr, FrameError> {
    let v6 = Ipv6Addr::from(reader.array::<16>()?);
    let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), |v4: Ipv4Addr| IpAddr::V4(v4));
    if prefix_bits > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(FrameError::Value("prefix"));
    }
    Ok(ip)
}

/// The first [`ENDPOINTS_MAX`] of a list, behind their number.
fn encode_list<T>(list: &[T], out: &mut Vec<u8>, each: impl Fn(&T, &mut Vec<u8>)) {
    let kept = &list[..list.len().min(ENDPOINTS_MAX)];
    out.push(kept.len() as u8);
    kept.iter().for_each(|one| each(one, out));
}

/// `what`: the number, if it is too high.
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
