//! Protection of chunks: AES-256-GCM, or a checksum, over the header's covered bytes and the payload.
//!
//! A chunk is sealed once and, if its lane is lost, sent again unchanged. The keys of the payload belong to the
//! transfer, not to a lane. So relays can pass on chunks that they cannot open, and a replayed chunk need not be sealed
//! again.
//!
//! # Keys and nonces
//!
//! * A [`PayloadSecret`] belongs to one transfer in one direction. Two transfers never share a secret, because their
//!   sequences would repeat nonces.
//! * Each epoch of [`EPOCH_CHUNKS`] chunks (64 GiB if all are full) has its own key, derived from the secret and the
//!   epoch.
//! * The nonce is the chunk's sequence. A sequence is never used for different bytes.
//! * The first [`CHUNK_HEADER_COVERED_BYTES`] of the header are associated data: kind, flags, lengths, item, sequence,
//!   position. A chunk that was moved, resized or made final does not open.
//!
//! # The checksum
//!
//! The checksum has 128 bits and is made of rapidhash V3, which is as fast as memory with plain 64-bit multiplications.
//! It needs no vector unit, so it stays cheap on machines without one and under emulation. Its constants are derived
//! from the transfer's secret, so that no content can be crafted to weaken it. Damage is missed with a probability of
//! 2⁻⁶⁴. The checksum does not authenticate.

mod cipher;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use zeroize::Zeroizing;

use crate::frame::{CHUNK_HEADER_COVERED_BYTES, ChunkHeader, TAG_BYTES};
use crate::handshake::{SessionSecret, derive};
use cipher::Cipher;

/// Number of chunks under one key, as a power of two.
const EPOCH_SHIFT: u32 = 16;

/// Number of chunks under one key.
pub const EPOCH_CHUNKS: u64 = 1 << EPOCH_SHIFT;

const SECRET_CONTEXT: &str = "rdma-pipe v1 payload secret";
const KEY_CONTEXT: &str = "rdma-pipe v1 payload key";
const CHECKSUM_CONTEXT: &str = "rdma-pipe v1 payload checksum";

/// The secret that protects the payload of one transfer: its holder can read and make chunks. Wiped when dropped.
#[derive(Clone)]
pub struct PayloadSecret(Zeroizing<[u8; 32]>);

impl PayloadSecret {
    /// Derives the secret of transfer number `transfer` of a session. If both ends send, each direction has its own
    /// number.
    pub fn derive(session: &SessionSecret, transfer: u64) -> Self {
        Self(session.derive(SECRET_CONTEXT, &[&transfer.to_le_bytes()]))
    }

    /// Takes a known secret, for tests and measurements.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

/// Which chunks a transfer may contain. Both ends agree on this inside the authenticated session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Sealed chunks only. Otherwise an attacker on the path could replace a sealed chunk by a forged one with a
    /// checksum.
    SealedOnly,
    /// Sealed chunks, and chunks with a checksum, which anybody can make.
    Checksummed,
}

/// Seals and opens the chunks of one transfer. Any number of threads may share it.
pub struct PayloadKeys {
    secret: PayloadSecret,
    checksum: Checksum,
    accept: Accept,
}

impl PayloadKeys {
    /// Creates the keys of the transfer that `secret` protects.
    pub fn new(secret: PayloadSecret, accept: Accept) -> Self {
        let checksum = Checksum::new(&secret);
        Self { secret, checksum, accept }
    }

    /// Protects a chunk: encrypts `payload` in place if `header.sealed`, and writes the tag into the header.
    ///
    /// All other fields of the header must already be final. Sealing other bytes under the same `header.sequence` would
    /// reveal both.
    ///
    /// # Panics
    ///
    /// If `payload` is not `header.wire_bytes` long, or if the header is not `sealed` although [`Accept::SealedOnly`]
    /// is agreed. Both are bugs of this program; the second would send in clear what must be encrypted.
    pub fn seal(&self, header: &mut ChunkHeader, payload: &mut [u8]) {
        self.protect(header, payload, None);
    }

    /// Protects a chunk as [`PayloadKeys::seal`] does, but takes the plain bytes from `plain`, which stays unchanged.
    /// `payload` has the same length.
    ///
    /// # Panics
    ///
    /// As [`PayloadKeys::seal`], and if the lengths differ.
    pub fn seal_from(&self, header: &mut ChunkHeader, plain: &[u8], payload: &mut [u8]) {
        self.protect(header, payload, Some(plain));
    }

    /// Protects the bytes in `plain`, or those in `payload` if `plain` is `None`.
    fn protect(&self, header: &mut ChunkHeader, payload: &mut [u8], plain: Option<&[u8]>) {
        assert_eq!(header.wire_bytes as usize, payload.len(), "the header states the payload's length");
        assert!(header.sealed || self.accept == Accept::Checksummed, "this transfer is encrypted");
        let covered = covered(header);
        header.tag = if header.sealed {
            let (cipher, nonce) = (self.cipher(header.sequence), nonce(header.sequence));
            match plain {
                Some(plain) => cipher.seal_from(&nonce, &covered, plain, payload),
                None => cipher.seal(&nonce, &covered, payload),
            }
        } else {
            if let Some(plain) = plain {
                payload.copy_from_slice(plain);
            }
            self.checksum.of(&covered, payload)
        };
    }

    /// Checks a chunk from a peer, and decrypts `payload` in place if the chunk is sealed. Returns whether the chunk is
    /// genuine; if not, `payload` may hold anything and must not be used.
    #[must_use]
    pub fn open(&self, header: &ChunkHeader, payload: &mut [u8]) -> bool {
        let (sequence, covered) = (header.sequence, covered(header));
        header.wire_bytes as usize == payload.len()
            && match (header.sealed, self.accept) {
                (true, _) => self.cipher(sequence).open(&nonce(sequence), &covered, &header.tag, payload),
                (false, Accept::Checksummed) => self.checksum.of(&covered, payload) == header.tag,
                (false, Accept::SealedOnly) => false,
            }
    }

    /// Derives the key of a chunk's epoch anew for each chunk, which costs about 1 % of sealing 1 MiB and needs no
    /// lock.
    fn cipher(&self, sequence: u64) -> Cipher {
        let epoch = sequence >> EPOCH_SHIFT;
        let key = derive(KEY_CONTEXT, &[&*self.secret.0, &epoch.to_le_bytes()]);
        Cipher::new(&key)
    }
}

fn covered(header: &ChunkHeader) -> [u8; CHUNK_HEADER_COVERED_BYTES] {
    header.encode()[..CHUNK_HEADER_COVERED_BYTES].try_into().expect("a part of the header")
}

fn nonce(sequence: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

/// The checksum of one transfer's chunks.
struct Checksum {
    low: RapidSecrets,
    high: RapidSecrets,
}

impl Checksum {
    fn new(secret: &PayloadSecret) -> Self {
        let seeds = derive(CHECKSUM_CONTEXT, &[&*secret.0]);
        let seed = |at: usize| u64::from_le_bytes(seeds[at..at + 8].try_into().expect("8 bytes"));
        Self { low: RapidSecrets::seed(seed(0)), high: RapidSecrets::seed(seed(8)) }
    }

    /// Hashes each half of the payload by itself, which takes one pass, then the header and both results, twice.
    fn of(&self, covered: &[u8; CHUNK_HEADER_COVERED_BYTES], payload: &[u8]) -> [u8; TAG_BYTES] {
        let (front, back) = payload.split_at(payload.len() / 2);
        let mut summary = [0; CHUNK_HEADER_COVERED_BYTES + 16];
        summary[..CHUNK_HEADER_COVERED_BYTES].copy_from_slice(covered);
        let halves = &mut summary[CHUNK_HEADER_COVERED_BYTES..];
        halves[..8].copy_from_slice(&rapidhash_v3_seeded(front, &self.low).to_le_bytes());
        halves[8..].copy_from_slice(&rapidhash_v3_seeded(back, &self.high).to_le_bytes());
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&rapidhash_v3_seeded(&summary, &self.low).to_le_bytes());
        tag[8..].copy_from_slice(&rapidhash_v3_seeded(&summary, &self.high).to_le_bytes());
        tag
    }
}

/// BLAKE3 over the tags of all chunks of a transfer, in the order of their sequence. Proves the transfer at its end.
#[derive(Clone, Debug, Default)]
pub struct TransferDigest(blake3::Hasher);

impl TransferDigest {
    /// Adds the tag of the next chunk.
    pub fn push(&mut self, tag: &[u8; TAG_BYTES]) {
        self.0.update(tag);
    }

    /// Returns the digest of all tags so far. More tags may follow.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Bodies of the fuzz targets, which also run as tests over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::*;
    use crate::frame::{CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, Compression};

    /// Decodes a chunk header. A header that decodes is within its bounds and encodes to the same bytes.
    pub fn chunk_header(bytes: &[u8]) {
        let Some(bytes) = bytes.first_chunk::<CHUNK_HEADER_BYTES>() else { return };
        if let Some(header) = ChunkHeader::decode(bytes) {
            assert!(header.wire_bytes <= header.plain_bytes && header.plain_bytes as usize <= CHUNK_BYTES_MAX);
            assert!(header.position.checked_add(header.plain_bytes.into()).is_some());
            assert_eq!(header.encode(), *bytes);
        }
    }

    /// Opens a chunk, which is a header and the payload behind it, in both modes.
    pub fn record_open(bytes: &[u8]) {
        let Some((bytes, payload)) = bytes.split_first_chunk::<CHUNK_HEADER_BYTES>() else { return };
        let Some(header) = ChunkHeader::decode(bytes) else { return };
        for accept in [Accept::SealedOnly, Accept::Checksummed] {
            let mut payload = payload.to_vec();
            let opened = keys(accept).open(&header, &mut payload);
            assert!(!opened || payload.len() == header.wire_bytes as usize);
            assert!(!opened || header.sealed || accept == Accept::Checksummed);
        }
    }

    fn keys(accept: Accept) -> PayloadKeys {
        PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), accept)
    }

    /// The seeds that are checked in as corpus: target, name and bytes of each.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let mut seeds = Vec::new();
        for (name, sealed, compression) in [
            ("sealed", true, Compression::None),
            ("checksummed", false, Compression::None),
            ("compressed", true, Compression::Zstd),
        ] {
            let mut payload = b"payload of a chunk".to_vec();
            let mut header = ChunkHeader {
                sealed,
                compression,
                is_final: true,
                wire_bytes: 18,
                plain_bytes: if compression == Compression::None { 18 } else { 19 },
                item: 1,
                sequence: EPOCH_CHUNKS + 5,
                position: 1 << 40,
                ..Default::default()
            };
            keys(Accept::Checksummed).seal(&mut header, &mut payload);
            seeds.push(("chunk_header", name, header.encode().to_vec()));
            seeds.push(("record_open", name, [&header.encode()[..], &payload].concat()));
        }
        seeds
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{CHUNK_HEADER_BYTES, Compression};
    use crate::handshake::test_support::hex;

    fn keys() -> PayloadKeys {
        PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::Checksummed)
    }

    fn header(sealed: bool, sequence: u64, payload: &[u8]) -> ChunkHeader {
        let bytes = payload.len() as u32;
        ChunkHeader {
            sealed,
            sequence,
            wire_bytes: bytes,
            plain_bytes: bytes,
            position: sequence << 20,
            ..Default::default()
        }
    }

    fn sealed(sealed: bool, sequence: u64, plain: &[u8]) -> (ChunkHeader, Vec<u8>) {
        let (mut header, mut payload) = (header(sealed, sequence, plain), plain.to_vec());
        keys().seal(&mut header, &mut payload);
        (header, payload)
    }

    #[test]
    fn chunks_open_as_they_were() {
        for is_sealed in [true, false] {
            for bytes in [0, 1, 15, 16, 17, 31, 32, 33, 1000, 1 << 20] {
                let plain: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x5a).collect();
                let (header, mut payload) = sealed(is_sealed, 9, &plain);
                assert_eq!(payload == plain, !is_sealed || bytes == 0);
                assert!(keys().open(&header, &mut payload), "untouched");
                assert_eq!(payload, plain);
            }
        }
    }

    #[test]
    fn no_bit_can_be_changed() {
        let plain = b"a payload with an odd number of bytes in it";
        for is_sealed in [true, false] {
            let (header, payload) = sealed(is_sealed, 0x0001_0002, plain);
            let encoded = header.encode();
            for bit in 0..CHUNK_HEADER_BYTES * 8 {
                let mut other = encoded;
                other[bit / 8] ^= 1 << (bit % 8);
                // A header that does not decode never reaches this module.
                if let Some(other) = ChunkHeader::decode(&other) {
                    assert!(!keys().open(&other, &mut payload.clone()), "bit {bit} of the header");
                }
            }
            for bit in 0..payload.len() * 8 {
                let mut other = payload.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(!keys().open(&header, &mut other), "bit {bit} of the payload");
            }
            for other in [&payload[1..], &[&payload[..], &[0]].concat()] {
                // Even with the right tag.
                let (keys, covered, mut other) = (keys(), covered(&header), other.to_vec());
                let tag = match is_sealed {
                    true => keys.cipher(header.sequence).seal(&nonce(header.sequence), &covered, &mut other),
                    false => keys.checksum.of(&covered, &other),
                };
                assert!(!keys.open(&ChunkHeader { tag, ..header }, &mut other), "another length");
            }
        }
    }

    #[test]
    fn chunks_cannot_be_exchanged() {
        for is_sealed in [true, false] {
            let (one, payload_one) = sealed(is_sealed, 1, b"one of them");
            let (two, payload_two) = sealed(is_sealed, 2, b"the other!!");
            assert!(!keys().open(&one, &mut payload_two.clone()));
            assert!(!keys().open(&two, &mut payload_one.clone()));
            let renumbered = ChunkHeader { sequence: 2, ..one };
            assert!(!keys().open(&renumbered, &mut payload_one.clone()));
            let moved = ChunkHeader { position: 0, ..one };
            assert!(!keys().open(&moved, &mut payload_one.clone()));
            let last = ChunkHeader { is_final: true, ..one };
            assert!(!keys().open(&last, &mut payload_one.clone()));
            // The halves of a payload are hashed separately, so moving bytes between them is noticed.
            let (header, mut payload) = sealed(false, 1, b"front back!front.back!");
            payload.rotate_left(11);
            assert!(!keys().open(&header, &mut payload));
        }
    }

    #[test]
    fn encryption_cannot_be_stripped() {
        let (header, mut payload) = sealed(false, 1, b"in clear");
        let strict = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::SealedOnly);
        assert!(!strict.open(&header, &mut payload));
        assert!(keys().open(&header, &mut payload), "where it is agreed");
    }

    #[test]
    #[should_panic(expected = "this transfer is encrypted")]
    fn nothing_is_sent_in_clear_by_mistake() {
        let strict = PayloadKeys::new(PayloadSecret::from_bytes([7; 32]), Accept::SealedOnly);
        strict.seal(&mut header(false, 0, b"x"), &mut [b'x']);
    }

    #[test]
    fn each_epoch_has_its_key() {
        let body = |sequence| {
            let mut payload = vec![0; 64];
            let tag = keys().cipher(sequence).seal(&nonce(0), b"", &mut payload);
            (payload, tag)
        };
        assert_eq!(body(0), body(EPOCH_CHUNKS - 1));
        assert_ne!(body(EPOCH_CHUNKS - 1), body(EPOCH_CHUNKS));
        assert_eq!(body(EPOCH_CHUNKS), body(2 * EPOCH_CHUNKS - 1));
        for sequence in [0, EPOCH_CHUNKS - 1, EPOCH_CHUNKS, EPOCH_CHUNKS + 1, u64::MAX] {
            let mut header = ChunkHeader { sequence, ..header(true, 0, b"x") };
            let mut payload = *b"x";
            keys().seal(&mut header, &mut payload);
            assert!(keys().open(&header, &mut payload), "untouched");
            assert_eq!(payload, *b"x");
        }
    }

    #[test]
    fn transfers_have_secrets_of_their_own() {
        let session = crate::handshake::test_support::session_secret(1);
        let secret = |transfer| PayloadSecret::derive(&session, transfer).0;
        assert_eq!(secret(1), secret(1));
        assert_ne!(secret(1), secret(2));
        assert_ne!(secret(1), PayloadSecret::derive(&crate::handshake::test_support::session_secret(2), 1).0);
        for is_sealed in [true, false] {
            let (header, mut payload) = sealed(is_sealed, 1, b"payload");
            let other = PayloadKeys::new(PayloadSecret::from_bytes([8; 32]), Accept::Checksummed);
            assert!(!other.open(&header, &mut payload), "sealed {is_sealed}");
        }
    }

    /// `docs/PROTOCOL.md` shows these bytes: secret 32 × 07, sequence 65541.
    #[test]
    fn sealed_bytes_are_the_documented_ones() {
        let (header, payload) = sealed(true, EPOCH_CHUNKS + 5, b"payload");
        let (plain_header, _) = sealed(false, EPOCH_CHUNKS + 5, b"payload");
        let shown = [payload, header.tag.to_vec(), plain_header.tag.to_vec()];
        assert_eq!(shown, [hex(GOLDEN[0]), hex(GOLDEN[1]), hex(GOLDEN[2])], "{shown:02x?}");
    }

    const GOLDEN: [&str; 3] =
        ["3768d64e1a6849", "b111fb5dd1c6aef7bc9af91689152fac", "6e385319b7934017daa33b70b4293219"];

    #[test]
    fn the_digest_is_of_all_tags_in_order() {
        let digest = |tags: &[[u8; 16]]| {
            let mut digest = TransferDigest::default();
            tags.iter().for_each(|tag| digest.push(tag));
            digest.finish()
        };
        assert_eq!(digest(&[[1; 16], [2; 16]]), *blake3::hash(&[[1; 16], [2; 16]].concat()).as_bytes());
        assert_ne!(digest(&[[1; 16], [2; 16]]), digest(&[[2; 16], [1; 16]]));
        assert_ne!(digest(&[]), digest(&[[0; 16]]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn any_damage_is_noticed(
            plain in proptest::collection::vec(any::<u8>(), 1..5000),
            is_sealed: bool,
            sequence in 0..u64::MAX >> 20,
            at: proptest::sample::Index,
            with in 1..=255_u8,
        ) {
            let (header, mut payload) = sealed(is_sealed, sequence, &plain);
            let at = at.index(payload.len());
            payload[at] ^= with;
            prop_assert!(!keys().open(&header, &mut payload.clone()));
            payload[at] ^= with;
            prop_assert!(keys().open(&header, &mut payload));
            prop_assert_eq!(payload, plain);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), flags in 0..16_u8) {
            fuzz::chunk_header(&bytes);
            fuzz::record_open(&bytes);
            let mut header = header(false, 1, &bytes).encode();
            header[1] = flags;
            fuzz::record_open(&[&header[..], &bytes].concat());
        }
    }

    #[test]
    fn compressed_chunks_cover_their_lengths() {
        let mut payload = b"shorter".to_vec();
        let mut header = ChunkHeader {
            sealed: true,
            compression: Compression::Lz4,
            wire_bytes: 7,
            plain_bytes: 100,
            ..Default::default()
        };
        keys().seal(&mut header, &mut payload);
        let other = ChunkHeader { plain_bytes: 101, ..header };
        assert!(!keys().open(&other, &mut payload.clone()));
        let other = ChunkHeader { compression: Compression::Zstd, ..header };
        assert!(!keys().open(&other, &mut payload));
    }
}
