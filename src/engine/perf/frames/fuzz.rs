//! Fuzz body for the frames of a measurement: no input may cause a panic, and a decoded frame survives encoding.

use rd_proto::control::{Endpoint, FRAME_BYTES_MAX};

use super::*;

/// Decodes a frame in clear text, as the channel opens it.
pub fn measure_frame(bytes: &[u8]) {
    let Ok(frame) = Frame::decode(bytes) else { return };
    let again = frame.encode();
    assert!(again.len() <= FRAME_BYTES_MAX);
    assert_eq!(Frame::decode(&again), Ok(frame));
}

/// Returns a frame of each kind.
pub fn samples() -> [(&'static str, Frame); 10] {
    let endpoint = Endpoint {
        hardware: false,
        address: "10.1.2.3:4660".parse().expect("an address"),
        prefix_bits: 24,
        rate_mbps: 10_000,
    };
    let mut endpoints = Vec::new();
    TransferFrame::Endpoints { turn: 0, endpoints: vec![endpoint] }.encode(&mut endpoints);
    let settings = Settings { connections_max: 16, message_bytes_max: 8 << 20, depth: 128, poll: false };
    let run = Run {
        load: Load::Stream,
        forward: true,
        backward: true,
        message_bytes: 65_536,
        messages: 0,
        duration_us: 1_000_000,
    };
    let seen = Seen { sent: 1, received: 2, sending_ns: 3, receiving_ns: 4, sending_peak: 5, receiving_peak: 6 };
    [
        ("open", Frame::Open(Transport::Auto, settings)),
        ("opened", Frame::Opened { seed: *b"seed of 16 octet", endpoints, host: b"host".to_vec() }),
        ("grow", Frame::Grow { connections: 8, rdma: true }),
        ("grown", Frame::Grown(8)),
        ("run", Frame::Run(run)),
        ("go", Frame::Go),
        ("done", Frame::Done(1000)),
        ("seen", Frame::Seen(seen)),
        ("failed", Frame::Failed { exit: 3, reason: b"no RDMA device".to_vec() }),
        ("close", Frame::Close),
    ]
}
