//! Compression of one chunk's payload, before it is sealed and after it is opened.
//!
//! Each chunk stands alone, so that a replayed or reordered one still decompresses. What a peer sends never makes more than
//! the announced bytes, which are at most [`CHUNK_BYTES_MAX`], and never an allocation of its choosing.

use std::fmt;

use lz4_flex::block;

use crate::frame::{CHUNK_BYTES_MAX, Compression};

/// The level of Zstandard: the fastest of its regular ones, since a link of 25 Gb/s is to be kept busy.
const ZSTD_LEVEL: i32 = 1;

/// A payload that does not decompress to what its header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("payload does not decompress to {plain_bytes} bytes")]
pub struct DecompressError {
    /// What the header announced.
    pub plain_bytes: usize,
}

/// Compresses payloads; holds what it needs from one to the next, about 1 MiB. One for each thread.
#[derive(Default)]
pub struct Compressor {
    /// LZ4 wants room for the worst case, which the caller's buffer does not have.
    lz4_room: Vec<u8>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    /// A compressor that allocates on its first use of each kind.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses `src`, at most [`CHUNK_BYTES_MAX`] bytes, into `dst`; returns the bytes written.
    ///
    /// `None` if the result would not be shorter than `src`, or does not fit `dst`, or nothing is to be compressed
    /// ([`Compression::None`]): then send `src` as it is. `dst` may have been written to.
    pub fn compress(&mut self, kind: Compression, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let room = dst.len().min(src.len().saturating_sub(1));
        if src.len() > CHUNK_BYTES_MAX {
            return None;
        }
        let dst = &mut dst[..room];
        match kind {
            Compression::None => None,
            Compression::Lz4 => {
                self.lz4_room.resize(block::get_maximum_output_size(CHUNK_BYTES_MAX), 0);
                let written = block::compress_into(src, &mut self.lz4_room).ok()?;
                dst.get_mut(..written)?.copy_from_slice(&self.lz4_room[..written]);
                Some(written)
            }
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
                }
                self.zstd.as_mut()?.compress_to_buffer(src, dst).ok()
            }
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compressor")
    }
}

/// Decompresses payloads; holds what it needs from one to the next, about 100 KiB. One for each thread.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// A decompressor that allocates on its first use of each kind.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decompresses `src` into the first `plain_bytes` of `dst`, and writes nothing beyond them.
    ///
    /// # Errors
    ///
    /// [`DecompressError`] if `src` is not one whole block or frame of this `kind` that makes exactly `plain_bytes`, or if
    /// those are over [`CHUNK_BYTES_MAX`] or over `dst`. `dst` may have been written to.
    pub fn decompress(
        &mut self,
        kind: Compression,
        src: &[u8],
        dst: &mut [u8],
        plain_bytes: usize,
    ) -> Result<(), DecompressError> {
        let error = DecompressError { plain_bytes };
        let dst = dst.get_mut(..plain_bytes).filter(|dst| dst.len() <= CHUNK_BYTES_MAX).ok_or(error)?;
        let written = match kind {
            Compression::None => {
                if src.len() == dst.len() {
                    dst.copy_from_slice(src);
                }
                src.len()
            }
            Compression::Lz4 => block::decompress_into(src, dst).map_err(|_| error)?,
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                let zstd = self.zstd.as_mut().ok_or(error)?;
                zstd.decompress_to_buffer(src, dst).map_err(|_| error)?
            }
        };
        if written == plain_bytes { Ok(()) } else { Err(error) }
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decompressor")
    }
}
