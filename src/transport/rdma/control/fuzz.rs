//! Body of the fuzz target. It also runs as a test over the corpus.

use super::*;

/// Receives two control messages at an end that has sent ten. The first byte of the input is the
/// length of the first message.
pub fn control_messages(bytes: &[u8]) {
    let Some((&first_bytes, rest)) = bytes.split_first() else { return };
    let (first, second) = rest.split_at(rest.len().min(usize::from(first_bytes)));
    let mut flow = Flow { sent: 10, ..Flow::default() };
    for message in [first, second] {
        let front = &message[..message.len().min(PREFIX_BYTES)];
        let Ok(prefix) = Prefix::decode(front, message.len()) else { return };
        assert_eq!(prefix.encode(), front);
        assert!(message.len() <= SLOT_BYTES && (message.len() > PREFIX_BYTES) == (prefix.kind == KIND_FRAME));
        let before = flow;
        match flow.arrived(prefix.total) {
            Some(()) => assert!(flow.outstanding() <= before.outstanding()),
            None => assert_eq!(flow.outstanding(), before.outstanding()),
        }
    }
}

/// The checked-in corpus: target, name and bytes of each seed.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let message = |total, kind, body: &[u8]| [&Prefix { total, kind }.encode()[..], body].concat();
    let pair = |first: Vec<u8>, second: Vec<u8>| [&[first.len() as u8][..], &first, &second].concat();
    let announcement = message(10, KIND_ANNOUNCEMENT, &[]);
    vec![
        ("transport_rdma_control", "frames", pair(message(3, KIND_FRAME, b"one"), message(9, KIND_FRAME, b"two"))),
        ("transport_rdma_control", "ready", pair(message(0, KIND_READY, &[]), announcement)),
    ]
}
