use minicbor::bytes::ByteVec;

use super::fuzz::samples;
use super::*;
use crate::engine::Figures;
use crate::transport::Medium;
use crate::tree::Only;
use crate::tree::progress::Amount;
use crate::tree::sink::KeptState;

#[test]
fn samples_have_every_kind_of_message() {
    let number = |message: Message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).expect("short");
        let mut decoder = Decoder::new(&bytes[LENGTH_BYTES..]);
        decoder.array().and_then(|_| decoder.u32()).expect("a number and its fields")
    };
    let mut known: Vec<u32> = samples().into_iter().map(|(_, message)| number(message)).collect();
    known.dedup();
    // An unknown kind is distinguished from a known kind with wrong fields.
    let is_kind = |number: &u32| {
        let mut bytes = Vec::new();
        minicbor::Encoder::new(&mut bytes)
            .array(2)
            .and_then(|e| e.u32(*number))
            .and_then(|e| e.array(0))
            .expect("room");
        !Decoder::new(&bytes).decode::<Message>().is_err_and(|error| error.is_unknown_variant())
    };
    assert_eq!(known, (0..2000).filter(is_kind).collect::<Vec<_>>());
}

#[test]
fn messages_come_out_as_they_went_in() {
    for (_, message) in samples() {
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
    for (_, message) in samples() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).expect("short");
        for at in LENGTH_BYTES..bytes.len() {
            for value in [0, 0x18, 0x5b, 0x7f, 0x9f, 0xbf, 0xff, bytes[at].wrapping_add(1)] {
                let mut damaged = bytes[LENGTH_BYTES..].to_vec();
                damaged[at - LENGTH_BYTES] = value;
                fuzz::message(&damaged);
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
    assert_eq!(Message::decode(&unknown(1999)), Ok(None));
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
fn lists_have_few_members() {
    let kind = Kind::File;
    let found = Found { path: Vec::new(), name: Vec::new(), kind, size_bytes: 0, device: 0, inode: 0 };
    let fault = Fault::plain(1, "");
    let endpoint =
        Endpoint { address: Vec::new(), port: 0, prefix_bits: 0, rate_mbps: 0, is_via: false, interface: None };
    let report = |count| Report {
        figures: Figures { media: vec![Medium::Tcp; count], ..Figures::default() },
        ..Report::default()
    };
    for (most, message) in [
        (FOUND_MAX, &(|count| Message::Found(vec![found.clone(); count])) as &dyn Fn(usize) -> Message),
        (FAULTS_MAX, &|count| Message::EntriesFailed(vec![fault.clone(); count])),
        (64, &|count| Message::Listening(vec![endpoint.clone(); count])),
        (PROGRESS_NAME_BYTES_MAX, &|count| {
            let tree = Some(TreeProgress { name: vec![b'n'; count], ..TreeProgress::default() });
            Message::Progress { bytes: 0, waits: Waits::default(), tree }
        }),
        (KEPT_PATH_BYTES_MAX, &|count| Message::Kept(Kept { path: vec![b'p'; count], ..Kept::default() })),
        (LOG_TEXT_BYTES_MAX, &|count| {
            Message::LogLine(Box::new(LogLine { text: "t".repeat(count), ..LogLine::default() }))
        }),
        (LOG_ABOUT_BYTES_MAX, &|count| {
            Message::LogLine(Box::new(LogLine { about: "a".repeat(count), ..LogLine::default() }))
        }),
        (64, &|count| Message::Ended(Box::new(report(count)))),
    ] {
        let decoded = |count| {
            let mut bytes = Vec::new();
            message(count).encode(&mut bytes).expect("short");
            Message::decode(&bytes[LENGTH_BYTES..])
        };
        assert_eq!(decoded(most), Ok(Some(message(most))));
        assert_eq!(decoded(most + 1), Err(MessageError::Malformed));
    }
}

/// A hostile agent may send any values. No sum of them is infinite, and no share is NaN.
#[test]
fn seconds_are_numbers_whatever_is_told() {
    let told = |seconds| {
        let waits = Waits { source: seconds, sink: seconds, ..Waits::default() };
        let mut bytes = Vec::new();
        Message::Progress { bytes: 0, waits, tree: None }.encode(&mut bytes).expect("short");
        let Ok(Some(Message::Progress { waits, .. })) = Message::decode(&bytes[LENGTH_BYTES..]) else { unreachable!() };
        waits
    };
    for seconds in [0.0, 0.000_001, 1.5, 86_400.25] {
        assert_eq!(told(seconds).sink, seconds);
    }
    for seconds in [f64::INFINITY, f64::MAX, 1e14] {
        let waits = told(seconds).plus(told(seconds));
        assert!((1e9..1e10).contains(&waits.total()), "{waits:?}");
        assert_eq!(waits.limiter().map(|limiter| limiter.share), Some(0.5));
    }
    assert_eq!(told(f64::NAN), Waits::default());
}

#[test]
fn options_that_no_command_line_can_say_are_refused() {
    let (_, message) = samples().into_iter().find(|(name, _)| *name == "begin-file").expect("a beginning");
    let Message::Begin(begin) = message else { unreachable!() };
    for (chunk, lanes, is_valid) in [(4096, Some(16), true), (4095, None, false), (4096, Some(0), false)] {
        let options = TransferOptions { chunk, lanes, ..begin.options.clone() };
        let mut bytes = Vec::new();
        Message::Begin(Box::new(Begin { options, ..(*begin).clone() })).encode(&mut bytes).expect("short");
        assert_eq!(Message::decode(&bytes[LENGTH_BYTES..]).is_ok(), is_valid, "{chunk} {lanes:?}");
    }
}

#[test]
fn a_message_has_no_depth() {
    let once = Message::FoundAll.for_end(1).expect("short");
    let Message::ForEnd { message, .. } = &once else { unreachable!() };
    assert_eq!(message.decode(), Ok(Some(Message::FoundAll)));
    let Message::ForEnd { message, .. } = once.for_end(1).expect("short") else { unreachable!() };
    assert_eq!(message.decode(), Err(MessageError::Malformed));
}

/// Each part fits, the order stays, and a list is one list again.
#[test]
fn sources_are_split_into_messages() {
    let name = |number: usize| ByteVec::from(format!("{number:050}").into_bytes());
    let root = |number: usize| Root { name: name(number), ..Root::new("/from", "") };
    let only = Only { paths: (0..5000).map(name).collect(), recursive: true, ..Only::default() };
    let list = Root { only: Some(only), ..Root::new("/from", "from") };
    for all in [
        Sources { roots: vec![list], names: vec![b"to".to_vec().into()] },
        Sources { roots: (0..3000).rev().map(root).collect(), names: (0..3000).rev().map(name).collect() },
    ] {
        let (mut again, mut count) = (Sources::default(), 0);
        for part in all.clone().parts(100 << 10) {
            let mut bytes = Vec::new();
            Message::Sources(part.clone()).encode(&mut bytes).expect("short");
            assert!(bytes.len() <= 100 << 10, "{}", bytes.len());
            again.add(part);
            count += 1;
        }
        assert!(again == all && count >= 4, "{count}");
    }
}

/// Paths in a manifest cannot lead outside, and every entry can be written.
#[test]
fn entries_that_cannot_be_are_refused() {
    use crate::tree::check::{ASPECTS_MAX, Aspect, Finding};
    use crate::tree::entries::Entry;
    use crate::tree::manifest::{self, Kind};
    let is_taken = |entry| {
        let mut bytes = Vec::new();
        Message::Entries(vec![entry]).encode(&mut bytes).expect("short");
        match Message::decode(&bytes[LENGTH_BYTES..]) {
            Ok(message) => message.is_some(),
            Err(error) => {
                assert_eq!(error, MessageError::Malformed);
                false
            }
        }
    };
    let listed = |path: &[u8], mode, nanoseconds, kind| {
        let entry = manifest::Entry { path: path.to_vec(), mode, modified: (0, nanoseconds), kind };
        is_taken(Entry::Listed(entry))
    };
    assert!(listed(b"", 0o755, 0, Kind::Directory) && listed(b"a/b", 0o7777, 999_999_999, Kind::Fifo));
    for path in [&b"/a"[..], b"../a", b"a/..", b"a//b", b"a/", b".", b"a\0"] {
        assert!(!listed(path, 0, 0, Kind::Directory), "{path:?}");
    }
    assert!(!listed(b"a", 0o10000, 0, Kind::Fifo) && !listed(b"a", 0, 1_000_000_000, Kind::Fifo));
    for (target, expected) in [(&b""[..], false), (b"a\0", false), (b"../../etc", true)] {
        assert_eq!(listed(b"a", 0, 0, Kind::Symlink(target.to_vec())), expected);
    }
    for (count, expected) in [(ASPECTS_MAX, true), (ASPECTS_MAX + 1, false)] {
        let differs = Finding::Differs { path: b"a".to_vec(), aspects: vec![Aspect::Mode; count] };
        assert_eq!(is_taken(Entry::Compared(differs)), expected);
    }
}

#[test]
fn keys_are_not_shown() {
    let (_, begin) = samples().into_iter().find(|(name, _)| *name == "begin-file").expect("a message with a key");
    assert!(format!("{begin:?}").contains("redacted") && !format!("{begin:?}").contains("7, 7"));
}

/// An installed agent of another build is used as it is if its major is the same.
#[test]
fn messages_change_only_with_the_version() {
    let mut bytes = Vec::new();
    samples().iter().for_each(|(_, message)| message.encode(&mut bytes).expect("short"));
    // If this differs, raise MAJOR; or MINOR, if all that is new is optional or has `default`, and may be ignored.
    let digest = "a9e5c290de1651d0bd935d4940043d597e5347d6988c463929d2cc9f836c5c82";
    assert_eq!((MAJOR, MINOR, blake3::hash(&bytes).to_hex().as_str()), (5, 0, digest));
}

#[test]
fn golden_bytes() {
    let mut bytes = Vec::new();
    Message::Signal(2).encode(&mut bytes).expect("short");
    assert_eq!(bytes, b"\x04\0\0\0\x82\x12\x81\x02");
    bytes.clear();
    let done = Amount { entries: 2, directories: 0, bytes: 5 };
    let tree = TreeProgress { done, name: b"a".to_vec(), ..TreeProgress::default() };
    Message::Progress { bytes: 9, waits: Waits::default(), tree: Some(tree) }.encode(&mut bytes).expect("short");
    assert_eq!(bytes, b"\x1a\0\0\0\x82\x0f\x83\x09\x86\0\0\0\0\0\0\x87\x83\x02\0\x05\0\x83\0\0\0\xf4\x41a\xf4\0");
    bytes.clear();
    Message::Count.encode(&mut bytes).expect("short");
    Message::Kept(Kept { path: b"/p".to_vec(), others: 1, bytes: 7, state: KeptState::InPlace })
        .encode(&mut bytes)
        .expect("short");
    assert_eq!(bytes, b"\x05\0\0\0\x82\x19\x03\xe9\x80\x0c\0\0\0\x82\x19\x03\xea\x81\x84\x42/p\x01\x07\x02");
}
