//! Body of the fuzz target of control frames: no input may panic, and what decodes must survive encoding and decoding.

use super::*;

/// Decodes `bytes` as one frame in clear, as the channel has opened it.
pub fn control_frame(bytes: &[u8]) {
    let Ok(Some(frame)) = Frame::decode(bytes) else { return };
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert!(again.len() <= FRAME_BYTES_MAX);
    assert_eq!(Frame::decode(&again), Ok(Some(frame)));
}

/// The seeds that are checked in as corpus: target, name and bytes of each.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    samples()
        .into_iter()
        .map(|(name, frame)| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            ("control_frame", name, bytes)
        })
        .collect()
}

/// One frame of each kind, with every optional field.
pub(super) fn samples() -> Vec<(&'static str, Frame)> {
    let fact = IoFact { errno: 28, path: b"/out".to_vec(), detail: b"d".to_vec() };
    let endpoints = vec![
        Endpoint {
            hardware: true,
            address: "10.1.2.3:4660".parse().expect("an address"),
            prefix_bits: 24,
            rate_mbps: 100_000,
        },
        Endpoint {
            hardware: false,
            address: "[fd00::1]:1".parse().expect("an address"),
            prefix_bits: 64,
            rate_mbps: 0,
        },
    ];
    let known = |interface, address: &str, prefix_bits, rate_mbps| {
        let address = address.parse().expect("an address");
        RailAddress { interface, address, prefix_bits, rate_mbps }
    };
    let addresses = vec![known(0, "10.1.2.3", 24, 100_000), known(1, "fd00::1", 64, 0)];
    let lane = LaneId { index: 16, generation: 3 };
    vec![
        (
            "offer",
            Frame::Offer(Offer {
                role: Role::Receiver,
                policy: Policy::PreferRdma,
                encrypt: Encrypt::Always,
                peer_is_local: true,
                lanes: 4,
                chunk_bytes: 1 << 20,
                reconnect_s: 30,
                size_bytes: Some(0x0102_0304_0506_0708),
                rdma: RdmaKind::Hardware,
                ticket: *b"ticket-of-16-oct",
                host: b"host".to_vec(),
            }),
        ),
        ("refuse", Frame::Refuse(Refusal::Lane)),
        ("use", Frame::Use { path: Path::Rdma, turn: 2 }),
        ("endpoints", Frame::Endpoints { turn: 3, endpoints }),
        ("addresses", Frame::Addresses(addresses)),
        ("ack", Frame::Ack { credit_total: 77, window: 60, taken: SequenceSet::new(9, [10, 19].into_iter()) }),
        ("ping", Frame::Ping),
        ("pause", Frame::Pause),
        ("unwatched", Frame::Unwatched),
        ("retired", Frame::Retired),
        ("lane-lost", Frame::LaneLost(lane)),
        ("lane-gone", Frame::LaneGone { lane, have: SequenceSet::new(5, [6].into_iter()) }),
        ("answer", Frame::Answer { number: 6, bytes: vec![2, 3, 0, 0, 0, 0, 0, 0, 0] }),
        ("answered", Frame::Answered { number: 7 }),
        ("done", Frame::Done { chunks: 3, bytes: 2_000_000, digest: [0xd1; 32] }),
        ("finished", Frame::Finished { bytes: 2_000_000, failed: 3 }),
        ("bye", Frame::Bye),
        ("abort-signal", Frame::Abort(Cause::Signal(15))),
        ("abort-source", Frame::Abort(Cause::Source(fact.clone()))),
        ("abort-sink", Frame::Abort(Cause::Sink(fact))),
        ("abort-sink-closed", Frame::Abort(Cause::SinkClosed)),
        ("abort-integrity", Frame::Abort(Cause::Integrity)),
        ("abort-protocol", Frame::Abort(Cause::Protocol)),
        ("abort-no-rdma", Frame::Abort(Cause::NoRdma)),
    ]
}
