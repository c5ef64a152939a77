//! Wire frames: the chunk header, which travels in clear beside its payload.
//!
//! All integers are little-endian. `docs/PROTOCOL.md` shows every frame byte by byte. Golden bytes in
//! `control/tests.rs`, and in `tests/manual.rs` of the root package, hold the page to the code.

/// Length of an encoded [`ChunkHeader`]. The length is fixed, so that header and payload are separate scatter-gather
/// entries.
pub const CHUNK_HEADER_BYTES: usize = 48;

/// Number of leading bytes of a chunk header that the tag covers, as associated data or as the prefix of the checksum.
pub const CHUNK_HEADER_COVERED_BYTES: usize = 32;

/// Length of a chunk's tag, which is an AEAD tag or a 128-bit checksum.
pub const TAG_BYTES: usize = 16;

/// Maximum payload of any chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a control frame as it crosses the wire, sealed, in bytes.
pub const CONTROL_BYTES_MAX: usize = 4096;

/// First byte of a chunk header.
const CHUNK_KIND: u8 = b'C';

const FLAG_FINAL: u8 = 1 << 0;
const FLAG_SEALED: u8 = 1 << 1;
const COMPRESSION_SHIFT: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_FINAL | FLAG_SEALED | 0b11 << COMPRESSION_SHIFT;

/// How a chunk's payload was compressed before it was sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// The payload is not compressed.
    #[default]
    None,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// The fixed header of a chunk: its place, its lengths and its tag.
///
/// A chunk is sealed once. If its lane is lost, the chunk is sent again byte for byte, so the header does not name a
/// lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Whether this is the last chunk of its stream.
    pub is_final: bool,
    /// Whether the payload is AES-256-GCM ciphertext and `tag` its authenticator; otherwise `tag` is a checksum.
    pub sealed: bool,
    /// How the payload was compressed.
    pub compression: Compression,
    /// Number of payload bytes that follow on the wire.
    pub wire_bytes: u32,
    /// Number of payload bytes once opened and decompressed.
    pub plain_bytes: u32,
    /// Entry of the transfer that the chunk belongs to; 0 for a stream.
    pub item: u32,
    /// Number of the chunk within the transfer, from 0. The sequence is also the AEAD nonce, so it is never used twice
    /// for different bytes.
    pub sequence: u64,
    /// Offset of the first plain byte within the item, in bytes.
    pub position: u64,
    /// AEAD tag or checksum over the first [`CHUNK_HEADER_COVERED_BYTES`] of the header and the payload.
    pub tag: [u8; TAG_BYTES],
}

impl ChunkHeader {
    /// Encodes the header as it crosses the wire.
    pub fn encode(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[0] = CHUNK_KIND;
        bytes[1] = (u8::from(self.is_final) * FLAG_FINAL)
            | (u8::from(self.sealed) * FLAG_SEALED)
            | ((self.compression as u8) << COMPRESSION_SHIFT);
        bytes[4..8].copy_from_slice(&self.wire_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.plain_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.item.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.position.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.tag);
        bytes
    }

    /// Decodes and checks a header from a peer. `None` if any field is out of its bounds.
    ///
    /// A decoded header satisfies `wire_bytes <= plain_bytes <=` [`CHUNK_BYTES_MAX`], both lengths are equal if the
    /// payload is not compressed, and `position` plus `plain_bytes` does not overflow.
    pub fn decode(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let flags = bytes[1];
        if bytes[0] != CHUNK_KIND || bytes[2..4] != [0, 0] || flags & !FLAGS_KNOWN != 0 {
            return None;
        }
        let compression = match flags >> COMPRESSION_SHIFT & 0b11 {
            0 => Compression::None,
            1 => Compression::Lz4,
            2 => Compression::Zstd,
            _ => return None,
        };
        let (wire_bytes, plain_bytes) = (u32_at(4), u32_at(8));
        let lengths_agree = match compression {
            Compression::None => wire_bytes == plain_bytes,
            Compression::Lz4 | Compression::Zstd => wire_bytes < plain_bytes,
        };
        let position = u64_at(24);
        position.checked_add(u64::from(plain_bytes))?;
        if plain_bytes as usize > CHUNK_BYTES_MAX || !lengths_agree {
            return None;
        }
        Some(Self {
            is_final: flags & FLAG_FINAL != 0,
            sealed: flags & FLAG_SEALED != 0,
            compression,
            wire_bytes,
            plain_bytes,
            item: u32_at(12),
            sequence: u64_at(16),
            position,
            tag: bytes[32..48].try_into().expect("16 bytes"),
        })
    }
}
