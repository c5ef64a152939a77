//! Body of the fuzz target of a measurement's frames: no input may panic, and what decodes must survive encoding and
//! decoding.

use super::*;

/// Decodes `bytes` as one frame in clear, as the channel has opened it.
pub fn measure_frame(bytes: &[u8]) {
    let Ok(frame) = Frame::decode(bytes) else { return };
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert!(again.len() <= super::super::FRAME_BYTES_MAX);
    assert_eq!(Frame::decode(&again), Ok(frame));
}

/// The seeds that are checked in as corpus: target, name and bytes of each.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    samples()
        .into_iter()
        .map(|(name, frame)| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            ("measure_frame", name, bytes)
        })
        .collect()
}

/// One frame of each kind.
pub(super) fn samples() -> Vec<(&'static str, Frame)> {
    let endpoint = Endpoint {
        hardware: false,
        address: "10.1.2.3:4660".parse().expect("an address"),
        prefix_bits: 24,
        rate_mbps: 10_000,
    };
    vec![
        (
            "open",
            Frame::Open {
                policy: Policy::Auto,
                connections_max: 16,
                message_bytes_max: 8 << 20,
                depth: 128,
                poll: false,
            },
        ),
        ("opened", Frame::Opened { seed: *b"seed of 16 octet", endpoints: vec![endpoint], host: b"host".to_vec() }),
        ("grow", Frame::Grow { connections: 8, rdma: true }),
        ("grown", Frame::Grown { connections: 8 }),
        (
            "run",
            Frame::Run(Run {
                load: Load::Stream,
                forward: true,
                backward: true,
                message_bytes: 65_536,
                messages: 0,
                duration_us: 1_000_000,
            }),
        ),
        ("go", Frame::Go),
        ("done", Frame::Done { messages: 1000 }),
        (
            "seen",
            Frame::Seen(Seen {
                sent: 1,
                received: 2,
                sending_ns: 3,
                receiving_ns: 4,
                sending_peak: 5,
                receiving_peak: 6,
            }),
        ),
        ("failed", Frame::Failed { exit: 3, reason: b"no RDMA device".to_vec() }),
        ("close", Frame::Close),
    ]
}
