use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

const ENDPOINTS: &str = concat!(
    "02",
    "01 18 00000000000000000000ffff0a010203 3412 a0860100",
    "00 40 fd000000000000000000000000000001 0100 00000000",
);

/// Every frame as it crosses the wire, in clear. A change of these bytes breaks peers of other versions.
#[rustfmt::skip]
const GOLDEN: &[(&str, &[&str])] = &[
    ("offer", &["81 01 02 01 01 02 04 00001000 1e000000 01 0807060504030201 7469636b65742d6f662d31362d6f6374", "0400 686f7374"]),
    ("refuse", &["82 04"]),
    ("use", &["83 01 02000000"]),
    ("endpoints", &["04 03000000", ENDPOINTS]),
    ("addresses", &["05 02", "00 18 00000000000000000000ffff0a010203 a0860100", "01 40 fd000000000000000000000000000001 00000000"]),
    ("ack", &["90 4d00000000000000 3c000000 0900000000000000 0200 0204"]),
    ("ping", &["11"]),
    ("pause", &["92"]),
    ("unwatched", &["16"]),
    ("retired", &["18"]),
    ("lane-lost", &["93 1000 03000000"]),
    ("lane-gone", &["94 1000 03000000 0500000000000000 0100 02"]),
    ("answer", &["95 0600000000000000 0900 020300000000000000"]),
    ("answered", &["97 0700000000000000"]),
    ("done", &["a0 0300000000000000 80841e0000000000",
        "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"]),
    ("finished", &["a1 80841e0000000000 0300000000000000"]),
    ("bye", &["a2"]),
    ("abort-signal", &["a3 00 0f"]),
    ("abort-source", &["a3 01 1c000000 0400 2f6f7574 0100 64"]),
    ("abort-sink", &["a3 02 1c000000 0400 2f6f7574 0100 64"]),
    ("abort-sink-closed", &["a3 03"]),
    ("abort-integrity", &["a3 04"]),
    ("abort-protocol", &["a3 05"]),
    ("abort-no-rdma", &["a3 06"]),
];

#[test]
fn frames_have_these_bytes() {
    let samples = fuzz::samples();
    assert_eq!(samples.len(), GOLDEN.len());
    for ((name, frame), (golden_name, golden)) in samples.iter().zip(GOLDEN) {
        assert_eq!(name, golden_name);
        let golden = golden.concat().replace(' ', "");
        assert_eq!(hex(&encoded(frame)), golden, "{name}");
        let bytes: Vec<u8> = (0..golden.len() / 2)
            .map(|at| u8::from_str_radix(&golden[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect();
        assert_eq!(Frame::decode(&bytes).as_ref(), Ok(&Some(frame.clone())), "{name}");
    }
}

#[test]
fn frames_cut_short_or_too_long_are_refused() {
    for (name, frame) in fuzz::samples() {
        let mut bytes = encoded(&frame);
        for length in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..length]), Err(FrameError::Short), "{name} of {length}");
        }
        bytes.push(0);
        assert_eq!(Frame::decode(&bytes), Err(FrameError::Trailing), "{name}");
    }
}

#[test]
fn unknown_frames_are_skipped_unless_they_must_be_understood() {
    assert_eq!(Frame::decode(&[0x7f, 1, 2, 3]), Ok(None));
    assert_eq!(Frame::decode(&[0xff, 1, 2, 3]), Err(FrameError::Unknown(0xff)));
}

/// For each bounded field, a value out of bounds: sample, offset, byte, and the error that is reported.
const HOSTILE: &[(&str, usize, u8, &str)] = &[
    ("offer", 1, 2, "role"),
    ("offer", 2, 4, "policy"),
    ("offer", 3, 3, "encryption"),
    ("offer", 4, 2, "flag"),
    ("offer", 5, 3, "RDMA kind"),
    ("offer", 15, 2, "flag"),
    ("offer", 41, 0xff, "text length"),
    ("refuse", 1, 6, "refusal"),
    ("use", 1, 2, "path"),
    ("endpoints", 5, 33, "endpoint count"),
    ("endpoints", 6, 2, "flag"),
    ("endpoints", 7, 33, "prefix"),
    ("endpoints", 31, 129, "prefix"),
    ("addresses", 1, 33, "address count"),
    ("addresses", 3, 33, "prefix"),
    ("addresses", 25, 129, "prefix"),
    ("ack", 22, 5, "sequence set"),
    ("lane-lost", 1, 32, "lane"),
    ("lane-gone", 2, 1, "lane"),
    ("answer", 10, 16, "answer length"),
    ("abort-signal", 1, 7, "cause"),
    ("abort-sink", 3, 0x10, "errno"),
    ("abort-sink", 5, 0x80, "errno"),
    ("abort-sink", 7, 0xff, "text length"),
];

#[test]
fn fields_beyond_their_bounds_are_refused() {
    for &(name, at, value, field) in HOSTILE {
        let (_, frame) = fuzz::samples().into_iter().find(|(sample, _)| *sample == name).expect("a sample");
        let mut bytes = encoded(&frame);
        bytes[at] = value;
        assert_eq!(Frame::decode(&bytes), Err(FrameError::Value(field)), "{name} at {at}");
    }
    let set = SequenceSet { below: u64::MAX, bits: Vec::new() };
    let bytes = encoded(&Frame::Ack { credit_total: 0, window: 0, taken: set });
    assert_eq!(Frame::decode(&bytes), Err(FrameError::Value("sequence set")));
}

#[test]
fn the_largest_frames_fit() {
    let text = vec![b'x'; 5 * TEXT_BYTES_MAX];
    let fact = IoFact { errno: ERRNO_MAX, path: text.clone(), detail: text.clone() };
    let endpoint =
        Endpoint { hardware: true, address: "[fd00::1]:1".parse().expect("one"), prefix_bits: 128, rate_mbps: 0 };
    let mut offer = match fuzz::samples().swap_remove(0).1 {
        Frame::Offer(offer) => offer,
        other => panic!("{other:?}"),
    };
    offer.host = text;
    let all = SequenceSet::new(0, 0..SPAN_MAX as u64);
    let lane = LaneId { index: 0, generation: 0 };
    let frames = [
        Frame::Offer(offer),
        Frame::Endpoints { turn: 1, endpoints: vec![endpoint; 2 * ENDPOINTS_MAX] },
        Frame::Abort(Cause::Sink(fact)),
        Frame::Ack { credit_total: 0, window: 0, taken: all.clone() },
        Frame::LaneGone { lane, have: all },
        Frame::Answer { number: u64::MAX, bytes: vec![1; ANSWER_BYTES_MAX] },
    ];
    for frame in frames {
        let bytes = encoded(&frame);
        assert!(bytes.len() <= FRAME_BYTES_MAX);
        Frame::decode(&bytes).expect("what we send decodes").expect("known");
    }
}

#[test]
fn long_texts_keep_their_end() {
    let mut path = vec![b'a'; 10];
    path.extend(vec![b'b'; TEXT_BYTES_MAX]);
    let frame = Frame::Abort(Cause::Source(IoFact { errno: 5, path, detail: Vec::new() }));
    let Ok(Some(Frame::Abort(Cause::Source(fact)))) = Frame::decode(&encoded(&frame)) else { panic!("decodes") };
    assert_eq!(fact.path, vec![b'b'; TEXT_BYTES_MAX]);
}

proptest! {
    #[test]
    fn sets_come_back(
        below in 0..u64::MAX / 2,
        offsets in prop::collection::btree_set(0..SPAN_MAX as u64, 0..200),
    ) {
        let set = SequenceSet::new(below, offsets.iter().map(|offset| below + offset));
        let frame = Frame::Ack { credit_total: below, window: 7, taken: set.clone() };
        let Ok(Some(Frame::Ack { taken, .. })) = Frame::decode(&encoded(&frame)) else { panic!("an ack") };
        prop_assert_eq!(&taken, &set);
        prop_assert!(taken.above().eq(offsets.iter().map(|offset| below + offset)));
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::control_frame(&bytes);
    }

    #[test]
    fn any_bytes_of_a_known_kind_decode_or_are_refused(
        kind in prop::sample::select(vec![0x81, 0x82, 0x83, 0x04, 0x90, 0x93, 0x94, 0x95, 0x97, 0xa0, 0xa3_u8]),
        bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..200),
    ) {
        fuzz::control_frame(&[&[kind], &bytes[..]].concat());
    }

    #[test]
    fn offers_come_back(
        codes in (0..2_u8, 0..4_u8, 0..3_u8),
        flags in (any::<bool>(), 0..3_usize),
        numbers in any::<(u8, u32, u32)>(),
        size_bytes in any::<Option<u64>>(),
        host in prop::collection::vec(any::<u8>(), 0..TEXT_BYTES_MAX),
    ) {
        let offer = Offer {
            role: [Role::Sender, Role::Receiver][usize::from(codes.0)],
            policy: [Policy::Auto, Policy::Rdma, Policy::PreferRdma, Policy::Tcp][usize::from(codes.1)],
            encrypt: [Encrypt::Auto, Encrypt::Always, Encrypt::Never][usize::from(codes.2)],
            peer_is_local: flags.0,
            rdma: [RdmaKind::None, RdmaKind::Software, RdmaKind::Hardware][flags.1],
            lanes: numbers.0,
            chunk_bytes: numbers.1,
            reconnect_s: numbers.2,
            size_bytes,
            ticket: [numbers.0; 16],
            host,
        };
        let frame = Frame::Offer(offer);
        prop_assert_eq!(Frame::decode(&encoded(&frame)), Ok(Some(frame)));
    }

    #[test]
    fn endpoints_come_back(
        turn: u32,
        endpoints in prop::collection::vec(
            (any::<bool>(), any::<SocketAddr>(), 0..=32_u8, any::<u32>()), 0..=ENDPOINTS_MAX),
    ) {
        let endpoints = endpoints
            .into_iter()
            .map(|(hardware, address, prefix_bits, rate_mbps)| {
                // Flow label and scope are not encoded, and a mapped address is an IPv4 address.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                Endpoint { hardware, address, prefix_bits, rate_mbps }
            })
            .collect();
        let frame = Frame::Endpoints { turn, endpoints };
        prop_assert_eq!(Frame::decode(&encoded(&frame)), Ok(Some(frame)));
    }
}
