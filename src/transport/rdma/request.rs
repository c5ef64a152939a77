//! The private data of a connect request: at most 56 bytes, which some transports pad with zeros.

use subtle::ConstantTimeEq;

/// Length of a connect request's private data, in bytes.
pub(super) const REQUEST_BYTES: usize = 40;

const MAGIC: [u8; 4] = *b"rdpC";
const VERSION: u8 = 1;
const KIND_CONTROL: u8 = 1;
const KIND_PAYLOAD: u8 = 2;

/// The connect request of a connection's first queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LaneRequest {
    /// The secret that the listener told its peer over the bootstrap channel. A request without it is rejected unseen.
    pub ticket: [u8; 16],
    /// The session's lane that this connection is to become.
    pub index: u16,
    /// The generation of that lane.
    pub generation: u32,
}

impl std::fmt::Debug for LaneRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneRequest")
            .field("index", &self.index)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// A connect request for a connection's first or second queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Control(LaneRequest),
    /// The secret that both ends of the connection made of their handshake.
    Payload([u8; 16]),
}

impl Request {
    pub(super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6] = REQUEST_BYTES as u8;
        match self {
            Self::Control(hello) => {
                bytes[5] = KIND_CONTROL;
                bytes[8..24].copy_from_slice(&hello.ticket);
                bytes[24..26].copy_from_slice(&hello.index.to_le_bytes());
                bytes[28..32].copy_from_slice(&hello.generation.to_le_bytes());
            }
            Self::Payload(token) => {
                bytes[5] = KIND_PAYLOAD;
                bytes[8..24].copy_from_slice(token);
            }
        }
        bytes
    }

    /// Decodes a peer's request. `None` unless the bytes are exactly one request, followed only by zeros.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (request, padding) = bytes.split_at_checked(REQUEST_BYTES)?;
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let known = request[..4] == MAGIC && request[4] == VERSION && usize::from(request[6]) == REQUEST_BYTES;
        if !known || request[7] != 0 || !zero(padding) {
            return None;
        }
        let secret: [u8; 16] = request[8..24].try_into().ok()?;
        match request[5] {
            KIND_CONTROL if zero(&request[26..28]) && zero(&request[32..]) => Some(Self::Control(LaneRequest {
                ticket: secret,
                index: u16::from_le_bytes(request[24..26].try_into().ok()?),
                generation: u32::from_le_bytes(request[28..32].try_into().ok()?),
            })),
            KIND_PAYLOAD if zero(&request[24..]) => Some(Self::Payload(secret)),
            _ => None,
        }
    }
}

/// Whether two secrets are equal, in constant time.
pub(super) fn same_secret(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.ct_eq(other).into()
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: LaneRequest = LaneRequest { ticket: [0xA5; 16], index: 0x0102, generation: 0x0304_0506 };

    #[test]
    fn golden_bytes() {
        let mut control = [0; REQUEST_BYTES];
        control[..8].copy_from_slice(&[b'r', b'd', b'p', b'C', 1, 1, 40, 0]);
        control[8..24].fill(0xA5);
        control[24..26].copy_from_slice(&[2, 1]);
        control[28..32].copy_from_slice(&[6, 5, 4, 3]);
        assert_eq!(Request::Control(HELLO).encode(), control);
        let mut payload = [0; REQUEST_BYTES];
        payload[..8].copy_from_slice(&[b'r', b'd', b'p', b'C', 1, 2, 40, 0]);
        payload[8..24].fill(7);
        assert_eq!(Request::Payload([7; 16]).encode(), payload);
    }

    #[test]
    fn padding_is_ignored_and_nothing_else() {
        for request in [Request::Control(HELLO), Request::Payload([7; 16])] {
            let mut padded = [0; 56];
            padded[..REQUEST_BYTES].copy_from_slice(&request.encode());
            assert_eq!(Request::decode(&padded), Some(request));
            assert_eq!(Request::decode(&padded[..REQUEST_BYTES]), Some(request));
            for length in 0..REQUEST_BYTES {
                assert_eq!(Request::decode(&padded[..length]), None, "cut at {length}");
            }
            for at in REQUEST_BYTES..padded.len() {
                let mut wrong = padded;
                wrong[at] = 1;
                assert_eq!(Request::decode(&wrong), None, "byte {at}");
            }
        }
        assert_eq!(Request::decode(&[0; 56]), None);
    }

    #[test]
    fn every_bit_counts() {
        let bytes = Request::Control(HELLO).encode();
        for bit in 0..REQUEST_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Request::decode(&changed), Some(Request::Control(HELLO)), "bit {bit}");
        }
    }

    #[test]
    fn secrets_compare_and_stay_out_of_debug() {
        assert!(same_secret(&[3; 16], &[3; 16]));
        let mut other = [3; 16];
        other[15] ^= 0x80;
        assert!(!same_secret(&[3; 16], &other));
        assert!(!format!("{HELLO:?}").contains("165"), "a ticket is a secret");
    }
}
