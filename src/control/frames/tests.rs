use super::*;

fn samples() -> Vec<Message> {
    let found = Found {
        path: b"/a/\xff\n".to_vec(),
        name: b"-x$(y)".to_vec(),
        kind: Kind::Directory,
        size_bytes: 1 << 40,
        device: 3,
        inode: u64::MAX,
    };
    let fault = Fault::io(6, "cannot write", &IoFact { errno: 28, path: b"/x".to_vec(), detail: b"d".to_vec() });
    let settings = Settings {
        transport: 1,
        encrypt: 2,
        compress: 3,
        lanes: Some(4),
        buffer_bytes: 32 << 20,
        ports: Some((7000, 7009)),
        reconnect_s: 30,
        bwlimit: None,
    };
    vec![
        Message::Hello(Hello::ours()),
        Message::Find { patterns: vec![b"*.\xfe".to_vec().into()], links: true },
        Message::Found(vec![found.clone()]),
        Message::FoundAll,
        Message::Place(Place {
            path: Vec::new(),
            directory: true,
            exact: false,
            sources: vec![found],
            same_kernel: true,
        }),
        Message::Placed(Placed { directory: b".".to_vec(), as_name: Some(b"n".to_vec()), is_special: true }),
        Message::Placed(Placed { directory: b".".to_vec(), as_name: None, is_special: false }),
        Message::Failed(fault.clone()),
        Message::Begin(Box::new(Begin {
            key: SessionKey([7; 32]),
            job: Job::ReceiveFile { path: b"/to".to_vec() },
            settings,
            caller_is_peer: true,
            peer: b"h1".to_vec(),
        })),
        Message::Listen { via: b"ib0".to_vec() },
        Message::Listening(vec![Endpoint {
            address: vec![10, 0, 0, 1],
            port: 7000,
            prefix_bits: 24,
            rate_mbps: 100_000,
            is_via: true,
        }]),
        Message::Dial { endpoints: Vec::new(), via: Vec::new() },
        Message::DialTunnel,
        Message::Ended(Box::new(Report { fault: Some(fault), bytes: 9, ..Report::default() })),
        Message::Notice { code: 1, index: 16, generation: 3, reason: None },
        Message::TunnelData { id: 1, bytes: vec![0; 100] },
        Message::Measure { key: SessionKey([9; 32]), ports: Some((7000, 7009)), via: b"ib0".to_vec() },
        Message::MeasureStorage { path: b"/srv".to_vec(), writes: true, micros: 1_000_000 },
        Message::Storage(Storage { micro_iops: 1_234_500_000, bytes: 1 << 20, depth: 8, direct: true }),
    ]
}

#[test]
fn messages_come_out_as_they_went_in() {
    for message in samples() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).expect("short");
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().expect("a length");
        assert_eq!(decode_length(*length), Ok(rest.len()));
        assert_eq!(Message::decode(rest), Ok(Some(message)));
        for cut in 0..rest.len() {
            assert!(Message::decode(&rest[..cut]).is_err(), "cut at {cut}");
        }
    }
}

#[test]
fn damaged_messages_do_no_harm() {
    for message in samples() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).expect("short");
        for at in LENGTH_BYTES..bytes.len() {
            for value in [0, 0x18, 0x5b, 0x7f, 0x9f, 0xbf, 0xff, bytes[at].wrapping_add(1)] {
                let mut damaged = bytes[LENGTH_BYTES..].to_vec();
                damaged[at - LENGTH_BYTES] = value;
                fuzz_message(&damaged);
            }
        }
    }
}

#[test]
fn a_length_that_is_not_there_allocates_nothing() {
    // An array, then a byte string, of 2⁶⁰ elements each.
    for claim in [0x9b, 0x5b] {
        let mut bytes = vec![0x82, 0x02, 0x81, claim];
        bytes.extend((1_u64 << 60).to_be_bytes());
        assert_eq!(Message::decode(&bytes), Err(MessageError::Malformed));
    }
}

#[test]
fn what_is_optional_is_skipped_and_what_is_not_is_refused() {
    let unknown = |number: u16| [&[0x82, 0x19][..], &number.to_be_bytes(), &[0x81, 0x01]].concat();
    assert_eq!(Message::decode(&unknown(1000)), Ok(None));
    assert_eq!(Message::decode(&unknown(999)), Err(MessageError::Malformed));
}

#[test]
fn hello_is_read_although_it_has_grown() {
    // [0, [[2, 5, "9.1", "L", "m", "c", h'', h'', "more"]]]
    let bytes = b"\x82\x00\x81\x89\x02\x05\x639.1\x61L\x61m\x61c\x40\x40\x64more";
    let Ok(Some(Message::Hello(hello))) = Message::decode(bytes) else { panic!("no hello") };
    assert_eq!((hello.major, hello.minor, hello.program.as_str()), (2, 5, "9.1"));
}

#[test]
fn too_long_is_refused_at_both_ends() {
    let mut out = b"before".to_vec();
    let long = Message::TunnelData { id: 0, bytes: vec![0; MESSAGE_BYTES_MAX] };
    assert!(matches!(long.encode(&mut out), Err(MessageError::TooLong(_))));
    assert_eq!(out, b"before");
    assert!(decode_length(u32::MAX.to_le_bytes()).is_err());
}

#[test]
fn keys_are_not_shown() {
    assert!(!format!("{:?}", samples()[8]).contains("7, 7"));
}

#[test]
fn golden_bytes() {
    let mut bytes = Vec::new();
    Message::Signal(2).encode(&mut bytes).expect("short");
    assert_eq!(bytes, b"\x04\0\0\0\x82\x12\x81\x02");
}
