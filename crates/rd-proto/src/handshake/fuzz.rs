//! Bodies of the fuzz targets of the handshake and the control channel. No input may panic, and none may authenticate.
//!
//! Randomness here is a counter, so that an input always has the same effect and a recorded exchange can be a seed.

use std::convert::Infallible;

use rand_core::{TryCryptoRng, TryRng};

use super::*;

/// A counter in place of randomness: the bytes 0, 1, 2, …
struct Counter(u8);

impl TryRng for Counter {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for byte in bytes {
            *byte = self.0;
            self.0 = self.0.wrapping_add(1);
        }
        Ok(())
    }
}

impl TryCryptoRng for Counter {}

/// Name of the session in every fuzzed exchange.
const SESSION: SessionId = SessionId(*b"session-of-fuzz!");

const LANE: LaneId = LaneId { index: 1, generation: 2 };

fn key() -> Key {
    Key::new(*b"key").expect("not empty")
}

fn secret() -> SessionSecret {
    SessionSecret(Zeroizing::new([7; 32]))
}

/// Passes `reply` as a listener's answer to a connector of a first lane and to a connector of a further lane.
pub fn connector(reply: &[u8]) {
    let (first, _) = connect_first(&key(), SESSION, &mut Counter(0));
    let (join, _) = connect_join(&secret(), SESSION, LANE, &mut Counter(0));
    for connecting in [first, join] {
        if let Ok((established, confirm)) = connecting.finish(reply) {
            // Only a peer with the key can make such an answer, as in the seeds of the corpus.
            assert_eq!(established.session, SESSION);
            assert_eq!(confirm.len(), CONFIRM_BYTES);
        }
    }
}

/// Passes a connector's hello to a listener, then the bytes after [`HELLO_BYTES`] as its confirmation.
pub fn listener(messages: &[u8]) {
    let (hello, confirm) = messages.split_at(messages.len().min(HELLO_BYTES));
    let lookup = |session| (session == SESSION).then(secret);
    match listen(&key(), lookup, hello, &mut Counter(100)) {
        Ok((listening, reply)) => {
            assert!(reply.len() <= HANDSHAKE_BYTES_MAX);
            if let Ok(established) = listening.finish(confirm) {
                assert_eq!(established.peer.major, VERSION.major);
            }
        }
        Err(refused) => {
            let is_version = matches!(refused.error, HandshakeError::VersionMismatch { .. });
            assert_eq!(refused.answer.is_some(), is_version);
        }
    }
}

/// Opens sealed frames, each preceded by its length as one byte.
pub fn control_channel(mut frames: &[u8]) {
    let mut channel = exchange().0.control;
    let mut plain = Vec::new();
    let mut failed = false;
    while let Some((&bytes, rest)) = frames.split_first() {
        let (frame, rest) = rest.split_at(rest.len().min(usize::from(bytes)));
        frames = rest;
        let opened = channel.open(frame, &mut plain);
        assert!(!failed || opened == Err(ControlError::Closed));
        failed |= opened.is_err();
        assert!(plain.len() <= CONTROL_PLAIN_BYTES_MAX);
    }
}

/// Runs the exchange that the seeds record. Returns both ends and all messages.
fn exchange() -> (Established, Established, [Vec<u8>; 3]) {
    let (connecting, hello) = connect_first(&key(), SESSION, &mut Counter(0));
    let (listening, reply) = listen(&key(), |_| None, &hello, &mut Counter(100)).expect("a hello of ours");
    let (connector, confirm) = connecting.finish(&reply).expect("the same key");
    let listener = listening.finish(&confirm).expect("the same key");
    (connector, listener, [hello, reply, confirm])
}

/// The seeds that are checked in as corpus: target, name and bytes of each.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (_, mut listener, [hello, reply, confirm]) = exchange();
    let (connecting, join_hello) = connect_join(&secret(), SESSION, LANE, &mut Counter(0));
    let (_, join_reply) = listen(&key(), |_| Some(secret()), &join_hello, &mut Counter(100)).expect("ours");
    let (_, join_confirm) = connecting.finish(&join_reply).expect("the same secret");
    let mut version = preface(KIND_VERSION).to_vec();
    version[8..10].copy_from_slice(&(VERSION.major + 1).to_le_bytes());
    let mut frames = Vec::new();
    for plain in [&b""[..], b"a control frame"] {
        let mut sealed = Vec::new();
        listener.control.seal(plain, &mut sealed).expect("open channel");
        frames.push(sealed.len() as u8);
        frames.extend(sealed);
    }
    vec![
        ("handshake_connector", "first", reply),
        ("handshake_connector", "join", join_reply),
        ("handshake_connector", "version", version.clone()),
        ("handshake_listener", "first", [hello, confirm].concat()),
        ("handshake_listener", "join", [join_hello, join_confirm].concat()),
        ("handshake_listener", "version", version),
        ("control_channel", "two-frames", frames),
    ]
}
