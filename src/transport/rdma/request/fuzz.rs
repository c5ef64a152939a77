//! Body of the fuzz target. It also runs as a test over the corpus.

use super::*;

/// Decodes the private data of a connect request. A valid request equals its own encoding, except for padding.
pub fn request(bytes: &[u8]) {
    let Some(request) = Request::decode(bytes) else { return };
    let encoded = request.encode();
    assert_eq!(encoded, bytes[..REQUEST_BYTES]);
    assert_eq!(Request::decode(&encoded), Some(request));
}

/// The checked-in corpus: target, name and bytes of each seed.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let hello = LaneRequest { ticket: *b"ticket-of-16-oct", index: 0x0102, generation: 0x0304_0506 };
    let padded = [&Request::Payload(*b"token-of-16-octs").encode()[..], &[0; 16]].concat();
    vec![
        ("transport_rdma_request", "control", Request::Control(hello).encode().to_vec()),
        ("transport_rdma_request", "payload-padded", padded),
    ]
}
