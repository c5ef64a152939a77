//! Tests of the handshake as a whole.

use proptest::prelude::*;

use super::test_support::{hex, rng};
use super::*;

const SESSION: SessionId = SessionId(*b"session-name-16b");
const LANE: LaneId = LaneId { index: 3, generation: 0x0102_0304 };

fn key(text: &str) -> Key {
    Key::new(text).expect("not empty")
}

fn nothing(_: SessionId) -> Option<SessionSecret> {
    None
}

fn secret(fill: u8) -> SessionSecret {
    SessionSecret(Zeroizing::new([fill; 32]))
}

/// All messages of one handshake, and what both ends established.
struct Recorded {
    hello: Vec<u8>,
    reply: Vec<u8>,
    confirm: Vec<u8>,
    connector: Established,
    listener: Established,
}

fn first(seed: u64) -> Recorded {
    let mut rng = rng(seed);
    let key = key("correct horse");
    let (connecting, hello) = connect_first(&key, SESSION, &mut rng);
    let (listening, reply) = listen(&key, nothing, &hello, &mut rng).expect("a hello of ours");
    assert!(listening.is_first());
    let (connector, confirm) = connecting.finish(&reply).expect("the same key");
    let listener = listening.finish(&confirm).expect("the same key");
    Recorded { hello, reply, confirm, connector, listener }
}

fn join(seed: u64) -> Recorded {
    let mut rng = rng(seed);
    let (connecting, hello) = connect_join(&secret(7), SESSION, LANE, &mut rng);
    let lookup = |session| (session == SESSION).then(|| secret(7));
    let (listening, reply) = listen(&key("unused"), lookup, &hello, &mut rng).expect("a hello of ours");
    assert!(!listening.is_first());
    assert_eq!((listening.hello.session, listening.lane()), (SESSION, LANE));
    let (connector, confirm) = connecting.finish(&reply).expect("the same secret");
    let listener = listening.finish(&confirm).expect("the same secret");
    Recorded { hello, reply, confirm, connector, listener }
}

#[test]
fn both_ends_agree() {
    for mut recorded in [first(1), join(1)] {
        let (a, b) = (&mut recorded.connector, &mut recorded.listener);
        assert_eq!((a.session, a.lane, a.peer, a.token), (b.session, b.lane, b.peer, b.token));
        assert_eq!(a.secret.0, b.secret.0);
        assert_eq!(a.peer, VERSION);
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        for round in 0..5_u8 {
            for len in [0, 1, 100, CONTROL_PLAIN_BYTES_MAX] {
                let frame = vec![round; len];
                a.control.seal(&frame, &mut sealed).expect("open channel");
                b.control.open(&sealed, &mut plain).expect("the next frame");
                assert_eq!(plain, frame);
                b.control.seal(&frame, &mut sealed).expect("open channel");
                a.control.open(&sealed, &mut plain).expect("the next frame");
                assert_eq!(plain, frame);
            }
        }
    }
}

#[test]
fn sessions_and_lanes_have_keys_of_their_own() {
    let (one, two) = (first(1).connector, first(2).connector);
    assert_ne!(one.secret.0, two.secret.0);
    assert_ne!(one.token, two.token);
    let (one, two) = (join(1).connector, join(2).connector);
    assert_eq!(one.secret.0, two.secret.0);
    assert_ne!(one.token, two.token);
    assert_ne!(secret(7).join_psk(SESSION, LANE), secret(7).join_psk(SESSION, LaneId { index: 4, ..LANE }));
    assert_ne!(secret(7).join_psk(SESSION, LANE), secret(7).join_psk(SESSION, LaneId { generation: 5, ..LANE }));
    assert_ne!(secret(7).join_psk(SESSION, LANE), secret(7).join_psk(SessionId([0; 16]), LANE));
}

/// `docs/PROTOCOL.md` shows these bytes.
#[test]
fn clear_bytes_are_the_documented_ones() {
    let recorded = first(1);
    assert_eq!(recorded.hello.len(), HELLO_BYTES);
    assert_eq!(
        recorded.hello[..40],
        hex("72646d6170697065 0200 0000 01 000000 73657373696f6e2d6e616d652d313662 0000 0000 00000000")[..]
    );
    assert_eq!(recorded.reply.len(), FIRST_REPLY_BYTES);
    assert_eq!(recorded.reply[..16], hex("72646d6170697065 0200 0000 03 000000")[..]);
    assert_eq!(recorded.confirm.len(), CONFIRM_BYTES);
    let recorded = join(1);
    assert_eq!(recorded.hello.len(), HELLO_BYTES);
    assert_eq!(
        recorded.hello[..40],
        hex("72646d6170697065 0200 0000 02 000000 73657373696f6e2d6e616d652d313662 0300 0000 04030201")[..]
    );
    assert_eq!(recorded.reply.len(), JOIN_REPLY_BYTES);
    assert_eq!(recorded.reply[..16], hex("72646d6170697065 0200 0000 04 000000")[..]);
    assert_eq!(recorded.confirm.len(), CONFIRM_BYTES);
    assert_eq!([HELLO_BYTES, FIRST_REPLY_BYTES, JOIN_REPLY_BYTES, CONFIRM_BYTES], [72, 96, 64, 48]);
}

/// Runs a handshake in which `damage` changes message number `at` on its way, and returns the errors of both ends.
/// Neither end may establish a lane with a peer that saw other bytes.
fn damaged(
    is_first: bool,
    at: usize,
    damage: &dyn Fn(&mut Vec<u8>),
) -> (Option<HandshakeError>, Option<HandshakeError>) {
    let (mut rng, key) = (rng(9), key("correct horse"));
    let (connecting, mut hello) = if is_first {
        connect_first(&key, SESSION, &mut rng)
    } else {
        connect_join(&secret(7), SESSION, LANE, &mut rng)
    };
    let lookup = |session| (session == SESSION).then(|| secret(7));
    if at == 0 {
        damage(&mut hello);
    }
    let (listening, mut reply) = match listen(&key, lookup, &hello, &mut rng) {
        Ok(listening) => listening,
        Err(refused) => return (None, Some(refused.error)),
    };
    if at == 1 {
        damage(&mut reply);
    }
    let (connector, mut confirm) = match connecting.finish(&reply) {
        Ok(established) => established,
        Err(error) => return (Some(error), None),
    };
    if at == 2 {
        damage(&mut confirm);
    }
    match listening.finish(&confirm) {
        Ok(listener) => panic!("established in spite of damage: {connector:?} {listener:?}"),
        Err(error) => (None, Some(error)),
    }
}

#[test]
fn no_bit_can_be_changed() {
    for is_first in [true, false] {
        let recorded = if is_first { first(9) } else { join(9) };
        for (at, message) in [&recorded.hello, &recorded.reply, &recorded.confirm].into_iter().enumerate() {
            for bit in 0..message.len() * 8 {
                let (connector, listener) = damaged(is_first, at, &|message| message[bit / 8] ^= 1 << (bit % 8));
                assert!(connector.is_some() || listener.is_some());
                if at == 1 {
                    // Only the listener can prove the key, so a changed answer never gets a confirmation.
                    assert!(connector.is_some(), "bit {bit} of the answer");
                }
            }
        }
    }
}

#[test]
fn messages_have_one_length() {
    for is_first in [true, false] {
        for at in 0..3 {
            for cut in 0..40 {
                let (connector, listener) =
                    damaged(is_first, at, &|message| message.truncate(message.len().saturating_sub(cut + 1)));
                assert!(connector.is_some() || listener.is_some());
            }
            for extra in [1, 16, 600, 70_000] {
                let (connector, listener) = damaged(is_first, at, &|message| message.resize(message.len() + extra, 0));
                assert_eq!(connector.or(listener), Some(HandshakeError::Malformed), "message {at} longer by {extra}");
            }
            let (connector, listener) = damaged(is_first, at, &|message| message.clear());
            assert!(connector.is_some() || listener.is_some());
        }
    }
}

#[test]
fn a_wrong_key_is_known_at_the_connector() {
    let mut rng = rng(3);
    for wrong in ["correct horsf", "correct hors", "correct horse ", "x"] {
        let (connecting, hello) = connect_first(&key(wrong), SESSION, &mut rng);
        let (_, reply) = listen(&key("correct horse"), nothing, &hello, &mut rng).expect("well formed");
        assert_eq!(connecting.finish(&reply).expect_err("another key"), HandshakeError::WrongKey);
    }
}

#[test]
fn a_connector_without_the_key_cannot_confirm() {
    let mut rng = rng(3);
    let (_, hello) = connect_first(&key("guess"), SESSION, &mut rng);
    let recorded = first(4);
    for confirm in [recorded.confirm.clone(), recorded.reply[48..].to_vec(), vec![9; CONFIRM_BYTES]] {
        let (listening, _) = listen(&key("correct horse"), nothing, &hello, &mut rng).expect("well formed");
        assert_eq!(listening.finish(&confirm).expect_err("not the key"), HandshakeError::WrongKey);
    }
}

#[test]
fn a_lane_is_joined_with_its_own_secret_and_name() {
    let mut rng = rng(5);
    let (connecting, hello) = connect_join(&secret(8), SESSION, LANE, &mut rng);
    let (_, reply) = listen(&key("k"), |_| Some(secret(7)), &hello, &mut rng).expect("well formed");
    assert_eq!(connecting.finish(&reply).expect_err("another secret"), HandshakeError::WrongKey);

    let (_, hello) = connect_join(&secret(7), SESSION, LANE, &mut rng);
    let refused = listen(&key("k"), nothing, &hello, &mut rng).expect_err("no such session");
    assert_eq!(refused.error, HandshakeError::UnknownSession);
    assert_eq!(refused.answer, None);

    // An answer to one generation does not fit the next generation, nor another attempt at the same.
    let lookup = |_| Some(secret(7));
    let (_, reply) = listen(&key("k"), lookup, &hello, &mut rng).expect("well formed");
    for lane in [LANE, LaneId { generation: LANE.generation + 1, ..LANE }, LaneId { index: 9, ..LANE }] {
        let (connecting, _) = connect_join(&secret(7), SESSION, lane, &mut rng);
        assert_eq!(connecting.finish(&reply).expect_err("an old answer"), HandshakeError::WrongKey);
    }

    // The name of the first lane cannot be joined, even with the session's secret.
    let (_, mut hello) = connect_join(&secret(7), SESSION, LANE, &mut rng);
    hello[32..40].fill(0);
    let refused = listen(&key("k"), lookup, &hello, &mut rng).expect_err("not a further lane");
    assert_eq!(refused.error, HandshakeError::Malformed);
}

#[test]
fn recorded_messages_are_worthless_to_a_new_listener() {
    for recorded in [first(6), join(6)] {
        let mut rng = rng(7);
        let lookup = |_| Some(secret(7));
        let (listening, reply) = listen(&key("correct horse"), lookup, &recorded.hello, &mut rng).expect("well formed");
        assert_ne!(reply, recorded.reply);
        assert_eq!(listening.finish(&recorded.confirm).expect_err("a replay"), HandshakeError::WrongKey);
    }
}

#[test]
fn recorded_answers_are_worthless_to_a_new_connector() {
    let (connecting, _) = connect_first(&key("correct horse"), SESSION, &mut rng(60));
    assert_eq!(connecting.finish(&first(6).reply).expect_err("a replay"), HandshakeError::WrongKey);
    let (connecting, _) = connect_join(&secret(7), SESSION, LANE, &mut rng(60));
    assert_eq!(connecting.finish(&join(6).reply).expect_err("a replay"), HandshakeError::WrongKey);
}

#[test]
fn a_connector_cannot_be_its_own_listener() {
    let (connecting, hello) = connect_first(&key("k"), SESSION, &mut rng(1));
    assert_eq!(connecting.finish(&hello).expect_err("reflected"), HandshakeError::Malformed);
}

#[test]
fn versions_are_named_to_both_ends() {
    let theirs = Version { major: 1, minor: 9 };
    let mut rng = rng(1);
    let (connecting, mut hello) = connect_first(&key("k"), SESSION, &mut rng);
    hello[8..12].copy_from_slice(&[1, 0, 9, 0]);
    // A hello of another major may differ after the preface.
    for hello in [&hello[..], &hello[..PREFACE_BYTES], &[&hello[..16], &[0xff; 400]].concat()] {
        let refused = listen(&key("k"), nothing, hello, &mut rng).expect_err("another major");
        assert_eq!(refused.error, HandshakeError::VersionMismatch { ours: VERSION, theirs });
        let answer = refused.answer.expect("our version");
        assert_eq!(answer, hex("72646d6170697065 0200 0000 05 000000"));
    }
    let answer = hex("72646d6170697065 0100 0900 05 000000");
    let error = connecting.finish(&answer).expect_err("another major");
    assert_eq!(error, HandshakeError::VersionMismatch { ours: VERSION, theirs });
    assert_eq!(error.to_string(), "protocol version 1.9 at the peer, 2.0 here");
}

#[test]
fn a_minor_version_is_understood_but_not_forged() {
    // Both ends authenticate the hello as sent, so a later minor in it is no forgery.
    let mut rng = rng(1);
    let run = cpace::Run::start(cpace::Role::Initiator, b"k", &channel(), &SESSION.0, &mut rng);
    let mut hello = Hello::new(SESSION, LaneId::FIRST, run.share());
    hello.bytes[10] = 4;
    let (connecting, hello) = connecting(hello, ConnectHow::First(run), &mut rng);
    let (listening, reply) = listen(&key("k"), nothing, &hello, &mut rng).expect("the same major");
    let (connector, confirm) = connecting.finish(&reply).expect("the same major");
    let listener = listening.finish(&confirm).expect("the same major");
    assert_eq!(listener.peer, Version { minor: 4, ..VERSION });
    assert_eq!(connector.peer, VERSION);
}

#[test]
fn other_protocols_get_no_word() {
    for hello in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.2p1\r\n", b"rdmapipe", &[0; 512]] {
        let refused = listen(&key("k"), nothing, hello, &mut rng(1)).expect_err("not ours");
        assert_eq!((refused.error, refused.answer), (HandshakeError::NotOurs, None));
    }
}

#[test]
fn shares_outside_the_group_end_the_run() {
    let (connecting, mut hello) = connect_first(&key("k"), SESSION, &mut rng(1));
    let (_, mut reply) = listen(&key("k"), nothing, &hello, &mut rng(2)).expect("well formed");
    reply[PREFACE_BYTES..][..32].fill(0);
    assert_eq!(connecting.finish(&reply).expect_err("neutral"), HandshakeError::InvalidShare);
    for fill in [0, 0xff] {
        hello[FRESH_AT..].fill(fill);
        let refused = listen(&key("k"), nothing, &hello, &mut rng(2)).expect_err("no share");
        assert_eq!((refused.error, refused.answer), (HandshakeError::InvalidShare, None));
    }
}

#[test]
fn a_half_open_peer_costs_less_than_a_kibibyte() {
    let bytes = size_of::<Listening>() + FIRST_REPLY_BYTES;
    assert!(bytes < 1024, "{bytes} bytes");
}

#[test]
fn secrets_are_not_shown() {
    let recorded = first(1);
    let secret: String = recorded.connector.secret.0.iter().map(|byte| format!("{byte}, ")).collect();
    let shown = format!("{:?}", recorded.connector);
    assert!(shown.contains("SessionSecret(redacted)") && !shown.contains(&secret[..20]), "{shown}");
}

#[test]
fn control_frames_keep_their_order() {
    let sealed = |channel: &mut ControlChannel, plain: &[u8]| {
        let mut out = Vec::new();
        channel.seal(plain, &mut out).expect("open channel");
        out
    };
    type Attack = fn(&mut [Vec<u8>; 3]);
    let attacks: [Attack; 5] = [
        |frames| frames.swap(0, 1),
        |frames| frames[1] = frames[0].clone(),
        |frames| frames[0] = frames[1].clone(),
        |frames| frames[1].truncate(20),
        |frames| frames[1].push(0),
    ];
    for attack in attacks {
        let Recorded { mut connector, mut listener, .. } = first(1);
        let mut frames =
            [b"first frame", b"other frame", b"third frame"].map(|plain| sealed(&mut connector.control, plain));
        attack(&mut frames);
        let (mut out, mut opened) = (Vec::new(), Vec::new());
        for frame in &frames {
            opened.push(listener.control.open(frame, &mut out));
            if opened.last() != Some(&Ok(())) {
                assert!(out.is_empty());
            }
        }
        let bad = opened.iter().position(|result| *result == Err(ControlError::Forged)).expect("noticed");
        assert!(bad < 2);
        assert!(opened[bad + 1..].iter().all(|result| *result == Err(ControlError::Closed)), "{opened:?}");
        assert_eq!(listener.control.seal(b"x", &mut out), Err(ControlError::Closed));
    }
}

#[test]
fn no_bit_of_a_control_frame_can_be_changed() {
    let mut sealed = Vec::new();
    first(1).connector.control.seal(b"control frame", &mut sealed).expect("open channel");
    for bit in 0..sealed.len() * 8 {
        let mut frame = sealed.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let mut channel = first(1).listener.control;
        assert_eq!(channel.open(&frame, &mut Vec::new()), Err(ControlError::Forged));
        assert_eq!(channel.open(&sealed, &mut Vec::new()), Err(ControlError::Closed));
    }
    // The channel's own frame, sent back.
    let mut channel = first(1).connector.control;
    assert_eq!(channel.open(&sealed, &mut Vec::new()), Err(ControlError::Forged));
}

#[test]
fn control_frames_have_a_limit() {
    let Recorded { mut connector, mut listener, .. } = first(1);
    let mut out = Vec::new();
    let too_long = vec![0; CONTROL_PLAIN_BYTES_MAX + 1];
    assert_eq!(connector.control.seal(&too_long, &mut out), Err(ControlError::Length(too_long.len())));
    connector.control.seal(&too_long[1..], &mut out).expect("still open, and just short enough");
    assert_eq!(out.len(), crate::frame::CONTROL_BYTES_MAX);
    let mut plain = Vec::new();
    listener.control.open(&out, &mut plain).expect("the first frame");
    assert_eq!(listener.control.open(&[0; 15], &mut plain), Err(ControlError::Length(15)));
    assert_eq!(listener.control.seal(b"", &mut out), Err(ControlError::Closed), "one direction closes both");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_key_connects(bytes in proptest::collection::vec(any::<u8>(), 1..300), seed: u64) {
        let key = Key::new(bytes).expect("not empty");
        let mut rng = rng(seed);
        let (connecting, hello) = connect_first(&key, SessionId::random(&mut rng), &mut rng);
        let (listening, reply) = listen(&key, nothing, &hello, &mut rng).expect("a hello of ours");
        let (connector, confirm) = connecting.finish(&reply).expect("the same key");
        let listener = listening.finish(&confirm).expect("the same key");
        prop_assert_eq!(connector.token, listener.token);
    }

    #[test]
    fn other_keys_do_not(one in "[a-z0-9]{1,20}", other in "[a-z0-9]{1,20}", seed: u64) {
        prop_assume!(one != other);
        let mut rng = rng(seed);
        let (connecting, hello) = connect_first(&key(&one), SESSION, &mut rng);
        let (_, reply) = listen(&key(&other), nothing, &hello, &mut rng).expect("a hello of ours");
        prop_assert_eq!(connecting.finish(&reply).expect_err("another key"), HandshakeError::WrongKey);
    }

    #[test]
    fn any_bytes_are_survived(message in proptest::collection::vec(any::<u8>(), 0..600), kind in 1..6_u8) {
        fuzz::listener(&message);
        fuzz::connector(&message);
        let mut ours = preface(kind).to_vec();
        ours.extend_from_slice(&message);
        fuzz::listener(&ours);
        fuzz::connector(&ours);
        fuzz::control_channel(&message);
    }
}
