//! Frames of a measurement, which the two ends of `rdperf` exchange.
//!
//! On the first lane of a measuring session, they replace all other control frames from the first frame on, and are
//! sealed in the same way. The end that connected asks; the other end answers. The measured messages cross separate
//! connections without framing, because both ends know their length. `docs/PROTOCOL.md` describes the exchange.
//!
//! Every number is checked against a limit here. This also limits what an end allocates and how long it waits.

use minicbor::{Decode, Decoder, Encode};
use rd_proto::control::{Frame as TransferFrame, FrameError, TEXT_BYTES_MAX};

use crate::options::Transport;
use crate::transport::bundle::Settings;

/// Maximum number of connections of a measurement.
pub const CONNECTIONS_MAX: u32 = 1 << 16;

/// Maximum size of a message in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 8 << 20;

/// Maximum number of messages in flight on a connection.
pub const DEPTH_MAX: u16 = 1024;

/// Maximum number of messages in a run.
const MESSAGES_MAX: u64 = 1 << 40;

/// Maximum duration of a run in microseconds: an hour.
const DURATION_US_MAX: u64 = 3_600_000_000;

/// First byte of each of these frames. No frame of a transfer begins with it, so neither kind can be mistaken for the
/// other.
const KIND: u8 = 0xc0;

/// The load that the connections carry in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Load {
    /// On each connection, the asking end sends a message, the other end returns it unchanged, and so on.
    #[n(0)]
    Echo,
    /// Messages follow each other, with as many in flight as the depth allows.
    #[n(1)]
    Stream,
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Run {
    /// The load on the connections.
    #[n(0)]
    pub load: Load,
    /// Whether the asking end sends. Always true for an echo.
    #[n(1)]
    pub forward: bool,
    /// Whether the answering end sends. Always false for an echo.
    #[n(2)]
    pub backward: bool,
    /// Size of each message in bytes.
    #[n(3)]
    pub message_bytes: u32,
    /// Number of messages that each sending end sends over all connections; 0 for as many as possible.
    #[n(4)]
    pub messages: u64,
    /// Maximum time that an end sends, in microseconds.
    #[n(5)]
    pub duration_us: u64,
}

/// What an end saw of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Seen {
    /// Number of messages sent.
    #[n(0)]
    pub sent: u64,
    /// Number of messages received.
    #[n(1)]
    pub received: u64,
    /// Time from the first send to the completion of the last, in nanoseconds; 0 if nothing was sent.
    #[n(2)]
    pub sending_ns: u64,
    /// Time from the first received message to the last, in nanoseconds; 0 if fewer than two were received.
    #[n(3)]
    pub receiving_ns: u64,
    /// Bytes per second sent in the best part of the run; 0 if the run was too short to be divided.
    #[n(4)]
    pub sending_peak: u64,
    /// The same for received bytes.
    #[n(5)]
    pub receiving_peak: u64,
}

/// A frame of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Frame {
    /// Asks for connections, with the transport and the settings. Always the first frame.
    #[n(0)]
    Open(#[n(0)] Transport, #[n(1)] Settings),
    /// The other end may now make connections.
    #[n(1)]
    Opened {
        /// Seed from which the tokens of RDMA connections are derived.
        #[cbor(n(0), with = "minicbor::bytes")]
        seed: [u8; 16],
        /// Addresses that accept RDMA connections, as a transfer's ENDPOINTS; empty if only TCP is possible.
        #[cbor(n(1), with = "minicbor::bytes")]
        endpoints: Vec<u8>,
        /// Name of the answering host.
        #[cbor(n(2), with = "minicbor::bytes")]
        host: Vec<u8>,
    },
    /// Announces a larger number of connections. The asking end makes those that are missing.
    #[n(2)]
    Grow {
        /// Total number of connections.
        #[n(0)]
        connections: u32,
        /// Whether the connections use RDMA; otherwise TCP. The value is the same in all such frames, except a first
        /// one that failed.
        #[n(1)]
        rdma: bool,
    },
    /// This many connections have been made.
    #[n(3)]
    Grown(#[n(0)] u32),
    /// Asks for a run.
    #[n(4)]
    Run(#[n(0)] Run),
    /// The answering end is ready for the run. If it is to send, it begins.
    #[n(5)]
    Go,
    /// This end has sent all its messages; their number. Each end sends this frame once in each run.
    #[n(6)]
    Done(#[n(0)] u64),
    /// What the answering end saw, sent after it has received everything from the asking end.
    #[n(7)]
    Seen(#[n(0)] Seen),
    /// This end has given up.
    #[n(8)]
    Failed {
        /// Exit code that the failure leads to.
        #[n(0)]
        exit: u8,
        /// Reason for the failure, for display.
        #[cbor(n(1), with = "minicbor::bytes")]
        reason: Vec<u8>,
    },
    /// The measurement is over.
    #[n(9)]
    Close,
}

impl Frame {
    /// Encodes the frame for sealing. The result has at most [`rd_proto::control::FRAME_BYTES_MAX`] bytes, because all
    /// fields are limited.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![KIND];
        minicbor::encode(self, &mut bytes).expect("a vector takes everything");
        bytes
    }

    /// Decodes a frame from the peer.
    ///
    /// # Errors
    ///
    /// [`FrameError`], also for an unknown frame: no frame of a measurement may be skipped.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let [KIND, rest @ ..] = bytes else { return Err(FrameError::Value("frame kind")) };
        let mut decoder = Decoder::new(rest);
        match decoder.decode() {
            Ok(frame) if decoder.position() == rest.len() && Self::is_within_bounds(&frame) => Ok(frame),
            _ => Err(FrameError::Value("measurement frame")),
        }
    }

    fn is_within_bounds(&self) -> bool {
        let is_count = |connections| (1..=CONNECTIONS_MAX).contains(connections);
        let is_length = |bytes| (1..=MESSAGE_BYTES_MAX).contains(bytes);
        match self {
            Self::Open(_, Settings { message_bytes_max, depth, connections_max, .. }) => {
                is_length(message_bytes_max) && (1..=DEPTH_MAX).contains(depth) && is_count(connections_max)
            }
            Self::Opened { endpoints, host, .. } => {
                matches!(TransferFrame::decode(endpoints), Ok(Some(TransferFrame::Endpoints { .. })))
                    && host.len() <= TEXT_BYTES_MAX
            }
            Self::Grow { connections, .. } | Self::Grown(connections) => is_count(connections),
            Self::Run(Run { load, forward, backward, message_bytes, messages, duration_us }) => {
                (*forward || *backward)
                    && (*load == Load::Stream || !backward)
                    && is_length(message_bytes)
                    && *messages <= MESSAGES_MAX
                    && (1..=DURATION_US_MAX).contains(duration_us)
            }
            Self::Done(messages) => *messages <= MESSAGES_MAX,
            Self::Failed { reason, .. } => reason.len() <= TEXT_BYTES_MAX,
            Self::Go | Self::Seen(_) | Self::Close => true,
        }
    }
}

/// Body of the fuzz target, which also runs as a test over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use super::fuzz::samples;
    use super::*;
    use crate::transport::tests::runner::{self, Body};

    const TARGETS: &[(&str, Body)] = &[("measure_frame", fuzz::measure_frame)];

    #[test]
    fn the_target_has_a_body_and_a_corpus() {
        runner::every_target_has_a_body_and_a_corpus(TARGETS, |name| name == "measure_frame");
    }

    #[test]
    fn corpus_holds_what_this_version_makes() {
        let seeds: Vec<_> = samples().map(|(name, frame)| ("measure_frame", name, frame.encode())).into();
        runner::corpus_holds(&seeds, |_| true);
    }

    #[test]
    fn bodies_survive_the_corpus() {
        runner::bodies_survive_the_corpus(TARGETS);
    }

    const SETTINGS: Settings = Settings { message_bytes_max: 8 << 20, depth: 128, connections_max: 0x0102, poll: true };
    const RUN: Run = Run {
        load: Load::Stream,
        forward: true,
        backward: false,
        message_bytes: 2,
        messages: 1000,
        duration_us: 1_000_000,
    };

    #[test]
    fn frames_have_these_bytes() {
        let open = Frame::Open(Transport::PreferRdma, SETTINGS);
        assert_eq!(open.encode(), b"\xc0\x82\0\x82\x02\x84\x1a\0\x80\0\0\x18\x80\x19\x01\x02\xf5");
        let run = b"\xc0\x82\x04\x81\x86\x01\xf5\xf4\x02\x19\x03\xe8\x1a\0\x0f\x42\x40";
        assert_eq!(Frame::Run(RUN).encode(), run);
        assert_eq!(Frame::Done(3).encode(), b"\xc0\x82\x06\x81\x03");
        assert_eq!(Frame::Failed { exit: 3, reason: b"no".to_vec() }.encode(), b"\xc0\x82\x08\x82\x03\x42no");
    }

    #[test]
    fn fields_beyond_their_bounds_are_refused() {
        let is_taken = |frame: Frame| Frame::decode(&frame.encode()) == Ok(frame);
        let open = |settings| is_taken(Frame::Open(Transport::Auto, settings));
        for (most, is_taken) in [(0, false), (1, true), (CONNECTIONS_MAX, true), (CONNECTIONS_MAX + 1, false)] {
            assert_eq!(open(Settings { connections_max: most, ..SETTINGS }), is_taken, "{most}");
        }
        for (bytes, is_taken) in [(0, false), (1, true), (MESSAGE_BYTES_MAX, true), (MESSAGE_BYTES_MAX + 1, false)] {
            assert_eq!(open(Settings { message_bytes_max: bytes, ..SETTINGS }), is_taken, "{bytes}");
        }
        for (depth, is_taken) in [(0, false), (1, true), (DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
            assert_eq!(open(Settings { depth, ..SETTINGS }), is_taken, "{depth}");
        }
        for (connections, expected) in [(0, false), (1, true), (CONNECTIONS_MAX, true), (CONNECTIONS_MAX + 1, false)] {
            assert_eq!(is_taken(Frame::Grown(connections)), expected, "{connections}");
            assert_eq!(is_taken(Frame::Grow { connections, rdma: true }), expected, "{connections}");
        }
        let run = |run| is_taken(Frame::Run(run));
        use Load::{Echo, Stream};
        for (load, forward, backward, expected) in [
            (Stream, false, false, false),
            (Stream, true, false, true),
            (Stream, false, true, true),
            (Stream, true, true, true),
            (Echo, true, false, true),
            (Echo, false, false, false),
            (Echo, false, true, false),
            (Echo, true, true, false),
        ] {
            assert_eq!(run(Run { load, forward, backward, ..RUN }), expected, "{load:?} {forward} {backward}");
        }
        for (duration_us, expected) in [(0, false), (1, true), (DURATION_US_MAX, true), (DURATION_US_MAX + 1, false)] {
            assert_eq!(run(Run { duration_us, ..RUN }), expected, "{duration_us}");
        }
        for (message_bytes, expected) in [(0, false), (MESSAGE_BYTES_MAX, true), (MESSAGE_BYTES_MAX + 1, false)] {
            assert_eq!(run(Run { message_bytes, ..RUN }), expected, "{message_bytes}");
        }
        for (messages, expected) in [(0, true), (MESSAGES_MAX, true), (MESSAGES_MAX + 1, false)] {
            assert_eq!(run(Run { messages, ..RUN }), expected, "{messages}");
            assert_eq!(is_taken(Frame::Done(messages)), expected, "{messages}");
        }
        for (bytes, expected) in [(TEXT_BYTES_MAX, true), (TEXT_BYTES_MAX + 1, false)] {
            let mut none = Vec::new();
            TransferFrame::Endpoints { turn: 0, endpoints: Vec::new() }.encode(&mut none);
            let opened = |endpoints| Frame::Opened { seed: [1; 16], endpoints, host: vec![b'h'; bytes] };
            assert_eq!(is_taken(opened(none)), expected);
            assert!(!is_taken(opened(b"no endpoints".to_vec())));
            assert_eq!(is_taken(Frame::Failed { exit: 1, reason: vec![b'r'; bytes] }), expected);
        }
        for bytes in
            [&b""[..], b"\xc0", b"\xc0\x82\x05\x80\0", b"\x82\x05\x80", b"\xc0\x82\x0a\x80", b"\xc1\x82\x05\x80"]
        {
            assert!(Frame::decode(bytes).is_err(), "{bytes:02x?}");
        }
        assert_eq!(Frame::decode(b"\xc0\x82\x05\x80"), Ok(Frame::Go));
    }

    /// Includes frames of a measurement in the format used before CBOR.
    #[test]
    fn frames_of_a_transfer_are_none() {
        let transfers = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/control_frame");
        let mut frames: Vec<Vec<u8>> = std::fs::read_dir(transfers)
            .expect("a corpus")
            .map(|entry| std::fs::read(entry.expect("readable").path()).expect("readable"))
            .collect();
        assert!(frames.len() > 10, "{}", frames.len());
        frames.push(b"\xc0\x02\x02\x01\0\0\0\0\x80\0\x80\0\x01".to_vec());
        frames.push(b"\xc5".to_vec());
        for frame in frames {
            assert!(Frame::decode(&frame).is_err(), "{frame:02x?}");
        }
        for (name, frame) in samples() {
            assert!(TransferFrame::decode(&frame.encode()).is_err(), "{name}");
        }
    }
}
