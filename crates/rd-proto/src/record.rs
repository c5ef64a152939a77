//! Protection of chunks: AES-256-GCM, or a checksum, over the header's covered bytes and the payload.
//!
//! A chunk is sealed once, and sent again as it is after a lane was lost. The payload's keys belong to the transfer, not to
//! a lane, so that relays can pass on what they cannot open anew, and a replayed chunk needs no second sealing.
//!
//! # Keys and nonces
//!
//! * A [`PayloadSecret`] belongs to one transfer in one direction. Two transfers never share one: their sequences would
//!   repeat nonces.
//! * Each [`EPOCH_CHUNKS`] chunks (64 GiB of full ones) have a key of their own, derived from the secret and the epoch.
//! * The nonce is the chunk's sequence; a sequence is never used for different bytes.
//! * The first [`CHUNK_HEADER_COVERED_BYTES`] of the header are associated data: kind, flags, lengths, item, sequence,
//!   position. A chunk that was moved, resized or made final does not open.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};
use zeroize::Zeroizing;

use crate::frame::{CHUNK_HEADER_COVERED_BYTES, ChunkHeader, TAG_BYTES};
use crate::handshake::SessionSecret;

/// Chunks under one key, as a power of two.
const EPOCH_SHIFT: u32 = 16;

/// Chunks under one key.
pub const EPOCH_CHUNKS: u64 = 1 << EPOCH_SHIFT;

const SECRET_CONTEXT: &str = "rdma-pipe v1 payload secret";
const KEY_CONTEXT: &str = "rdma-pipe v1 payload key";

/// What protects the payload of one transfer. Whoever has it can read and make the transfer's chunks. Wiped when dropped.
#[derive(Clone)]
pub struct PayloadSecret(Zeroizing<[u8; 32]>);

impl PayloadSecret {
    /// The secret of a session's transfer number `transfer`. Where both ends send, each direction has a number of its own.
    pub fn derive(session: &SessionSecret, transfer: u64) -> Self {
        Self(session.derive(SECRET_CONTEXT, &[&transfer.to_le_bytes()]))
    }

    /// A secret that was handed over, as to the relays of a fan-out.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, to hand over on an authenticated control channel.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        self.0.clone()
    }
}

impl fmt::Debug for PayloadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadSecret(redacted)")
    }
}

/// Which chunks a transfer may have. Both ends agree on it inside the authenticated session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Sealed chunks only. Without this, who can change bytes on the way could replace a sealed chunk by one of his own
    /// with a checksum.
    SealedOnly,
    /// Sealed ones and ones with a checksum, which anybody can make.
    Checksummed,
}

/// Seals and opens the chunks of one transfer. Shared by any number of threads.
pub struct PayloadKeys {
    secret: PayloadSecret,
    accept: Accept,
}

/// Why a chunk was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Payload or covered header were changed, or come from another transfer.
    #[error("chunk {sequence} does not authenticate")]
    Forged {
        /// The sequence that its header states.
        sequence: u64,
    },
    /// Payload or covered header were damaged.
    #[error("chunk {sequence} fails its checksum")]
    Damaged {
        /// The sequence that its header states.
        sequence: u64,
    },
    /// A chunk without encryption in a transfer that has it.
    #[error("chunk {sequence} is not encrypted")]
    NotSealed {
        /// The sequence that its header states.
        sequence: u64,
    },
    /// The payload is not as long as the header states.
    #[error("chunk {sequence} has {payload_bytes} bytes for {wire_bytes}")]
    Length {
        /// The sequence that its header states.
        sequence: u64,
        /// Bytes that the header states.
        wire_bytes: u32,
        /// Bytes that are there.
        payload_bytes: usize,
    },
}

impl PayloadKeys {
    /// The keys of the transfer that `secret` protects.
    pub fn new(secret: PayloadSecret, accept: Accept) -> Self {
        Self { secret, accept }
    }

    /// Protects a chunk: encrypts `payload` in place if `header.sealed`, and writes the tag into the header.
    ///
    /// All other fields of the header are final before. The same `header.sequence` with other bytes would betray both.
    ///
    /// # Panics
    ///
    /// If `payload` is not `header.wire_bytes` long, or the header is not `sealed` where [`Accept::SealedOnly`] is agreed:
    /// both are our bugs, and the second would send in clear what was to be encrypted.
    pub fn seal(&self, header: &mut ChunkHeader, payload: &mut [u8]) {
        assert_eq!(header.wire_bytes as usize, payload.len(), "the header states the payload's length");
        assert!(header.sealed || self.accept == Accept::Checksummed, "this transfer is encrypted");
        let covered = covered(header);
        header.tag = if header.sealed {
            let tag = self
                .key(header.sequence)
                .seal_in_place_separate_tag(nonce(header.sequence), Aad::from(covered), payload)
                .expect("a chunk is far below AES-GCM's limit");
            tag.as_ref().try_into().expect("16 bytes")
        } else {
            checksum(&covered, payload)
        };
    }

    /// Checks a chunk from a peer, and decrypts `payload` in place if it is sealed.
    ///
    /// # Errors
    ///
    /// [`RecordError`]; `payload` may then hold anything and must not be used.
    pub fn open(&self, header: &ChunkHeader, payload: &mut [u8]) -> Result<(), RecordError> {
        let sequence = header.sequence;
        if header.wire_bytes as usize != payload.len() {
            let (wire_bytes, payload_bytes) = (header.wire_bytes, payload.len());
            return Err(RecordError::Length { sequence, wire_bytes, payload_bytes });
        }
        let covered = covered(header);
        match (header.sealed, self.accept) {
            (true, _) => self
                .key(sequence)
                .open_in_place_separate_tag(nonce(sequence), Aad::from(covered), &header.tag, payload)
                .map(|_| ())
                .map_err(|_| RecordError::Forged { sequence }),
            (false, Accept::Checksummed) if checksum(&covered, payload) == header.tag => Ok(()),
            (false, Accept::Checksummed) => Err(RecordError::Damaged { sequence }),
            (false, Accept::SealedOnly) => Err(RecordError::NotSealed { sequence }),
        }
    }

    /// The key of a chunk's epoch. Derived for each chunk: that costs about a hundredth of sealing 1 MiB, and no lock.
    fn key(&self, sequence: u64) -> LessSafeKey {
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hasher.update(&*self.secret.0);
        hasher.update(&(sequence >> EPOCH_SHIFT).to_le_bytes());
        let key = Zeroizing::new(*hasher.finalize().as_bytes());
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("AES-256 takes 32 bytes"))
    }
}

impl fmt::Debug for PayloadKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadKeys").field("accept", &self.accept).finish_non_exhaustive()
    }
}

fn covered(header: &ChunkHeader) -> [u8; CHUNK_HEADER_COVERED_BYTES] {
    header.encode()[..CHUNK_HEADER_COVERED_BYTES].try_into().expect("a part of the header")
}

fn nonce(sequence: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&sequence.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// XXH3-128 of the payload, seeded with XXH3-64 of the covered header.
fn checksum(covered: &[u8; CHUNK_HEADER_COVERED_BYTES], payload: &[u8]) -> [u8; TAG_BYTES] {
    xxh3_128_with_seed(payload, xxh3_64(covered)).to_le_bytes()
}

/// BLAKE3 over the tags of all chunks of a transfer, in the order of their sequence: what the end of a transfer proves.
#[derive(Clone, Default)]
pub struct TransferDigest {
    hasher: blake3::Hasher,
    count: u64,
}

impl TransferDigest {
    /// The digest of no chunks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the tag of the next chunk.
    pub fn push(&mut self, tag: &[u8; TAG_BYTES]) {
        self.hasher.update(tag);
        self.count += 1;
    }

    /// How many chunks were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The digest of all tags so far; more may follow.
    pub fn finish(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for TransferDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferDigest").field("count", &self.count).finish_non_exhaustive()
    }
}
