//! Frames of a measurement: what the two ends of `rdperf` say to each other.
//!
//! They take the place of all other control frames on the first lane of a session that measures, from its first frame
//! on, and are sealed like those. The end that connected asks, the other answers. What is measured crosses connections
//! of its own, without any framing: messages of a length that both ends know. `docs/PROTOCOL.md` has the exchange.
//!
//! Every number is bounded here, so that what it makes an end allocate or wait for is, too.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

use super::{Endpoint, FrameError, Policy, decode_endpoints, decode_text, encode_endpoints, encode_text};
use crate::reader::Reader;

/// Connections of one measurement.
pub const CONNECTIONS_MAX: u32 = 1 << 16;

/// Bytes of one message.
pub const MESSAGE_BYTES_MAX: u32 = 8 << 20;

/// Messages that one connection may have on their way.
pub const DEPTH_MAX: u16 = 1024;

/// Messages of one run.
pub const MESSAGES_MAX: u64 = 1 << 40;

/// The longest run, in microseconds: an hour.
pub const DURATION_US_MAX: u64 = 3_600_000_000;

/// What the connections of a run carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The end that asks sends one message on each connection, the other sends it back as it came, and so on.
    Echo = 0,
    /// Messages one behind the other, as many on their way as the depth allows.
    Stream = 1,
}

/// One run of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// What crosses the connections.
    pub load: Load,
    /// The end that asks sends. Always so in an echo.
    pub forward: bool,
    /// The other end sends. Never so in an echo.
    pub backward: bool,
    /// Bytes of each message.
    pub message_bytes: u32,
    /// Messages that each sending end sends, over all connections; 0 for as many as it can.
    pub messages: u64,
    /// How long an end sends at most, in microseconds.
    pub duration_us: u64,
}

/// What one end saw of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// From the first send to the completion of the last, in nanoseconds; 0 if there was none.
    pub sending_ns: u64,
    /// From the first message received to the last, in nanoseconds; 0 if there were fewer than two.
    pub receiving_ns: u64,
    /// Bytes a second sent in the best part of the run; 0 if it was too short to have parts.
    pub sending_peak: u64,
    /// The same, received.
    pub receiving_peak: u64,
}

/// One frame of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Asks for connections. The first frame.
    Open {
        /// By which transport.
        policy: Policy,
        /// How many there will be at most, up to [`CONNECTIONS_MAX`].
        connections_max: u32,
        /// Bytes of the largest message, up to [`MESSAGE_BYTES_MAX`].
        message_bytes_max: u32,
        /// Messages on their way on each connection, up to [`DEPTH_MAX`].
        depth: u16,
        /// The answering end is to look for messages all the time instead of sleeping until one comes.
        poll: bool,
    },
    /// Connections may be made.
    Opened {
        /// What the tokens of RDMA connections are derived from.
        seed: [u8; 16],
        /// Where RDMA connections are accepted; none where TCP is what is left.
        endpoints: Vec<Endpoint>,
        /// The host's name.
        host: Vec<u8>,
    },
    /// There will be so many connections from now on: the end that asks makes those that are not there yet.
    Grow {
        /// All connections, more than before.
        connections: u32,
        /// They are RDMA's, else TCP's. The same in every such frame, but for a first one that came to nothing.
        rdma: bool,
    },
    /// They are all there.
    Grown {
        /// All connections.
        connections: u32,
    },
    /// Asks for a run.
    Run(Run),
    /// The answering end is ready for it, and sends if it is to.
    Go,
    /// This end has sent all its messages; from both ends, once in each run.
    Done {
        /// How many.
        messages: u64,
    },
    /// What this end saw, after it has received all that the other has sent. From the answering end.
    Seen(Seen),
    /// This end gives up.
    Failed {
        /// The exit code that it leads to.
        exit: u8,
        /// Why, for a person.
        reason: Vec<u8>,
    },
    /// The measurement is over.
    Close,
}

/// Above all types of [`super::Frame`], so that neither passes for the other.
mod kind {
    pub const OPEN: u8 = 0xc0;
    pub const OPENED: u8 = 0xc1;
    pub const GROW: u8 = 0xc2;
    pub const GROWN: u8 = 0xc3;
    pub const RUN: u8 = 0xc4;
    pub const GO: u8 = 0xc5;
    pub const DONE: u8 = 0xc6;
    pub const SEEN: u8 = 0xc7;
    pub const FAILED: u8 = 0xc8;
    pub const CLOSE: u8 = 0xc9;
}

impl Frame {
    /// Appends the frame to `out`: at most [`super::FRAME_BYTES_MAX`] bytes, by the limits of its fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Open { policy, connections_max, message_bytes_max, depth, poll } => {
                out.extend([kind::OPEN, *policy as u8]);
                out.extend(connections_max.to_le_bytes());
                out.extend(message_bytes_max.to_le_bytes());
                out.extend(depth.to_le_bytes());
                out.push(u8::from(*poll));
            }
            Self::Opened { seed, endpoints, host } => {
                out.push(kind::OPENED);
                out.extend(seed);
                encode_endpoints(endpoints, out);
                encode_text(host, out);
            }
            Self::Grow { connections, rdma } => {
                out.push(kind::GROW);
                out.extend(connections.to_le_bytes());
                out.push(u8::from(*rdma));
            }
            Self::Grown { connections } => {
                out.push(kind::GROWN);
                out.extend(connections.to_le_bytes());
            }
            Self::Run(run) => {
                out.extend([kind::RUN, run.load as u8, u8::from(run.forward), u8::from(run.backward)]);
                out.extend(run.message_bytes.to_le_bytes());
                out.extend(run.messages.to_le_bytes());
                out.extend(run.duration_us.to_le_bytes());
            }
            Self::Go => out.push(kind::GO),
            Self::Done { messages } => {
                out.push(kind::DONE);
                out.extend(messages.to_le_bytes());
            }
            Self::Seen(seen) => {
                out.push(kind::SEEN);
                for number in [seen.sent, seen.received, seen.sending_ns, seen.receiving_ns] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(seen.sending_peak.to_le_bytes());
                out.extend(seen.receiving_peak.to_le_bytes());
            }
            Self::Failed { exit, reason } => {
                out.extend([kind::FAILED, *exit]);
                encode_text(reason, out);
            }
            Self::Close => out.push(kind::CLOSE),
        }
    }

    /// Reads a frame from a peer.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: there is no frame of a measurement that may be skipped.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader { rest: bytes };
        let frame = match reader.u8()? {
            kind::OPEN => Self::Open {
                policy: Policy::decode(reader.u8()?)?,
                connections_max: within(reader.u32()?, 1, CONNECTIONS_MAX, "number of connections")?,
                message_bytes_max: within(reader.u32()?, 1, MESSAGE_BYTES_MAX, "message length")?,
                depth: within(reader.u16()?, 1, DEPTH_MAX, "depth")?,
                poll: reader.bool()?,
            },
            kind::OPENED => Self::Opened {
                seed: reader.array()?,
                endpoints: decode_endpoints(&mut reader)?,
                host: decode_text(&mut reader)?,
            },
            kind::GROW => Self::Grow {
                connections: within(reader.u32()?, 1, CONNECTIONS_MAX, "number of connections")?,
                rdma: reader.bool()?,
            },
            kind::GROWN => {
                Self::Grown { connections: within(reader.u32()?, 1, CONNECTIONS_MAX, "number of connections")? }
            }
            kind::RUN => Self::Run(Run::decode(&mut reader)?),
            kind::GO => Self::Go,
            kind::DONE => Self::Done { messages: within(reader.u64()?, 0, MESSAGES_MAX, "number of messages")? },
            kind::SEEN => Self::Seen(Seen {
                sent: reader.u64()?,
                received: reader.u64()?,
                sending_ns: reader.u64()?,
                receiving_ns: reader.u64()?,
                sending_peak: reader.u64()?,
                receiving_peak: reader.u64()?,
            }),
            kind::FAILED => Self::Failed { exit: reader.u8()?, reason: decode_text(&mut reader)? },
            kind::CLOSE => Self::Close,
            unknown => return Err(FrameError::Unknown(unknown)),
        };
        if reader.rest.is_empty() { Ok(frame) } else { Err(FrameError::Trailing) }
    }
}

impl Run {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let load = match reader.u8()? {
            0 => Load::Echo,
            1 => Load::Stream,
            _ => return Err(FrameError::Value("load")),
        };
        let (forward, backward) = (reader.bool()?, reader.bool()?);
        let known = match load {
            Load::Echo => forward && !backward,
            Load::Stream => forward || backward,
        };
        if !known {
            return Err(FrameError::Value("direction"));
        }
        Ok(Self {
            load,
            forward,
            backward,
            message_bytes: within(reader.u32()?, 1, MESSAGE_BYTES_MAX, "message length")?,
            messages: within(reader.u64()?, 0, MESSAGES_MAX, "number of messages")?,
            duration_us: within(reader.u64()?, 1, DURATION_US_MAX, "duration")?,
        })
    }
}

fn within<N: PartialOrd>(number: N, least: N, most: N, what: &'static str) -> Result<N, FrameError> {
    if (least..=most).contains(&number) { Ok(number) } else { Err(FrameError::Value(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }

    #[test]
    fn frames_have_these_bytes() {
        let open = Frame::Open {
            policy: Policy::PreferRdma,
            connections_max: 0x0102,
            message_bytes_max: 8 << 20,
            depth: 128,
            poll: true,
        };
        assert_eq!(encoded(&open), [0xc0, 2, 2, 1, 0, 0, 0, 0, 0x80, 0, 0x80, 0, 1]);
        let run = Run {
            load: Load::Stream,
            forward: true,
            backward: false,
            message_bytes: 2,
            messages: 1000,
            duration_us: 1_000_000,
        };
        let mut bytes = vec![0xc4, 1, 1, 0, 2, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0];
        bytes.extend([0x40, 0x42, 0x0f, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&Frame::Run(run)), bytes);
        assert_eq!(encoded(&Frame::Done { messages: 3 }), [0xc6, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&Frame::Failed { exit: 3, reason: b"no".to_vec() }), [0xc8, 3, 2, 0, b'n', b'o']);
    }

    #[test]
    fn fields_beyond_their_bounds_are_refused() {
        let value = |bytes: &[u8], what| assert_eq!(Frame::decode(bytes), Err(FrameError::Value(what)), "{bytes:02x?}");
        value(&[0xc0, 4, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], "policy");
        value(&[0xc0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], "number of connections");
        value(&[0xc0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0], "number of connections");
        value(&[0xc0, 0, 1, 0, 0, 0, 1, 0, 0x80, 0, 1, 0, 0], "message length");
        value(&[0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 4, 0], "depth");
        let run = |load, forward, backward, duration: u64| {
            let mut bytes = vec![0xc4, load, forward, backward, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(duration.to_le_bytes());
            bytes
        };
        value(&run(2, 1, 0, 1), "load");
        value(&run(1, 0, 0, 1), "direction");
        value(&run(0, 1, 1, 1), "direction");
        value(&run(0, 0, 1, 1), "direction");
        value(&run(1, 1, 0, 0), "duration");
        value(&run(1, 1, 0, DURATION_US_MAX + 1), "duration");
        assert!(Frame::decode(&run(1, 1, 1, DURATION_US_MAX)).is_ok());
        assert_eq!(Frame::decode(&[0xc5, 0]), Err(FrameError::Trailing));
        assert_eq!(Frame::decode(&[]), Err(FrameError::Short));
    }

    #[test]
    fn frames_of_a_transfer_are_none() {
        for (name, frame) in super::super::fuzz::samples() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert!(Frame::decode(&bytes).is_err(), "{name}");
        }
        for (name, frame) in fuzz::samples() {
            assert!(super::super::Frame::decode(&encoded(&frame)).is_err(), "{name}");
        }
    }
}
