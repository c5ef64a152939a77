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

/// Everything that crosses the wire in one handshake, and the waiting states' ends.
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
    assert_eq!((listening.session(), listening.lane()), (SESSION, LANE));
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
