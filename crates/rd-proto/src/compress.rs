//! Compression of one chunk's payload, before it is sealed and after it is opened.
//!
//! Each chunk is compressed by itself, so a replayed or reordered chunk still decompresses. A peer's payload never
//! decompresses to more than the announced bytes, at most [`CHUNK_BYTES_MAX`], and never decides how much is allocated.

use lz4::block;

use crate::frame::{CHUNK_BYTES_MAX, Compression};

mod choice;

pub use choice::Chooser;

/// How a payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd {
        /// Compression level. Level 1 is the fastest regular level; from level 7 on a chunk takes longer than it is
        /// worth.
        level: i32,
    },
}

impl Method {
    /// Returns the method as a chunk's header tells it, without the level, which the other end need not know.
    pub fn kind(self) -> Compression {
        match self {
            Method::Lz4 => Compression::Lz4,
            Method::Zstd { .. } => Compression::Zstd,
        }
    }
}

/// Compresses payloads. Each thread needs its own, which keeps some MiB of state from its first payload to the next.
#[derive(Default)]
pub struct Compressor {
    /// Zstandard compressor with its present level; `None` before its first use.
    zstd: Option<(zstd::bulk::Compressor<'static>, i32)>,
}

impl Compressor {
    /// Compresses `src`, at most [`CHUNK_BYTES_MAX`] bytes, into `dst` and returns the number of bytes written.
    ///
    /// `None` if the result would not be shorter than `src` or would not fit `dst`: the caller then sends `src` as it
    /// is. `dst` may have been written to.
    pub fn compress(&mut self, method: Method, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let room = dst.len().min(src.len().saturating_sub(1));
        if src.len() > CHUNK_BYTES_MAX || room == 0 {
            return None;
        }
        let dst = &mut dst[..room];
        match method {
            Method::Lz4 => block::compress_to_buffer(src, None, false, dst).ok(),
            Method::Zstd { level } => self.zstd(level)?.compress_to_buffer(src, dst).ok(),
        }
    }

    fn zstd(&mut self, level: i32) -> Option<&mut zstd::bulk::Compressor<'static>> {
        match &mut self.zstd {
            Some((zstd, known)) => {
                if *known != level {
                    zstd.set_compression_level(level).ok()?;
                    *known = level;
                }
            }
            none => *none = Some((zstd::bulk::Compressor::new(level).ok()?, level)),
        }
        self.zstd.as_mut().map(|(zstd, _)| zstd)
    }
}

/// Decompresses payloads. Each thread needs its own, which keeps about 100 KiB of state from its first payload to the
/// next.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Decompresses `src` into the first `plain_bytes` of `dst`, and writes nothing beyond them.
    ///
    /// `None` if `src` is not one whole block or frame of this `kind` that decompresses to exactly `plain_bytes`, or if
    /// `plain_bytes` exceeds [`CHUNK_BYTES_MAX`] or the length of `dst`. `dst` may have been written to.
    #[must_use]
    pub fn decompress(&mut self, kind: Compression, src: &[u8], dst: &mut [u8], plain_bytes: usize) -> Option<()> {
        let dst = dst.get_mut(..plain_bytes).filter(|dst| dst.len() <= CHUNK_BYTES_MAX)?;
        let written = match kind {
            Compression::None => {
                if src.len() == dst.len() {
                    dst.copy_from_slice(src);
                }
                src.len()
            }
            Compression::Lz4 => block::decompress_to_buffer(src, Some(i32::try_from(plain_bytes).ok()?), dst).ok()?,
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                self.zstd.as_mut()?.decompress_to_buffer(src, dst).ok()?
            }
        };
        (written == plain_bytes).then_some(())
    }
}

/// Body of the fuzz target, which a test also runs over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    use super::*;

    /// Decompresses an input that consists of the kind (one byte), the announced length (three bytes) and the payload.
    pub fn decompress(bytes: &[u8]) {
        let Some(([kind, length @ ..], src)) = bytes.split_first_chunk::<4>() else { return };
        let kind = match kind % 3 {
            0 => Compression::None,
            1 => Compression::Lz4,
            _ => Compression::Zstd,
        };
        let plain_bytes = usize::from(length[0]) | usize::from(length[1]) << 8 | usize::from(length[2]) << 16;
        const GUARD_BYTES: usize = 64;
        let mut dst = vec![0xa5; plain_bytes.min(CHUNK_BYTES_MAX) + GUARD_BYTES];
        let decompressed = Decompressor::default().decompress(kind, src, &mut dst, plain_bytes);
        assert!(decompressed.is_none() || plain_bytes <= CHUNK_BYTES_MAX);
        let guard = &dst[plain_bytes.min(CHUNK_BYTES_MAX)..];
        assert!(guard.iter().all(|byte| *byte == 0xa5), "written beyond the announced length");
    }

    /// The seeds that are checked in as corpus: target, name and bytes of each.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let plain = b"abcabcabcabcabcabcabcabcabcabcabcabc, and once more: abcabcabcabcabcabcabcabc".repeat(3);
        let mut seeds = Vec::new();
        for (name, code, method) in [("lz4", 1, Method::Lz4), ("zstd", 2, Method::Zstd { level: 1 })] {
            let mut dst = vec![0; plain.len()];
            let bytes = Compressor::default().compress(method, &plain, &mut dst).expect("it repeats");
            seeds.push(("decompress", name, [&[code, plain.len() as u8, 0, 0], &dst[..bytes]].concat()));
        }
        seeds.push(("decompress", "none", [&[0, plain.len() as u8, 0, 0], &plain[..]].concat()));
        seeds
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const METHODS: [Method; 4] =
        [Method::Lz4, Method::Zstd { level: 1 }, Method::Zstd { level: 3 }, Method::Zstd { level: 6 }];

    fn text(bytes: usize) -> Vec<u8> {
        b"The quick brown fox jumps over the lazy dog. ".iter().copied().cycle().take(bytes).collect()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        blake3::Hasher::new().finalize_xof().fill_to(bytes)
    }

    trait FillTo {
        fn fill_to(self, bytes: usize) -> Vec<u8>;
    }

    impl FillTo for blake3::OutputReader {
        fn fill_to(mut self, bytes: usize) -> Vec<u8> {
            let mut out = vec![0; bytes];
            self.fill(&mut out);
            out
        }
    }

    #[test]
    fn payloads_come_back() {
        let (mut compressor, mut decompressor) = (Compressor::default(), Decompressor::default());
        for method in METHODS {
            for bytes in [100, 1000, 65_536, CHUNK_BYTES_MAX - 1, CHUNK_BYTES_MAX] {
                let plain = text(bytes);
                let mut wire = vec![0; CHUNK_BYTES_MAX];
                let wire_bytes = compressor.compress(method, &plain, &mut wire).expect("it repeats");
                assert!(wire_bytes < bytes);
                let mut back = vec![0; CHUNK_BYTES_MAX];
                decompressor.decompress(method.kind(), &wire[..wire_bytes], &mut back, bytes).expect("as announced");
                assert_eq!(back[..bytes], plain[..]);
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_left() {
        let mut compressor = Compressor::default();
        for method in METHODS {
            let mut wire = vec![0; 2 * CHUNK_BYTES_MAX];
            assert_eq!(compressor.compress(method, &noise(CHUNK_BYTES_MAX), &mut wire), None);
            assert_eq!(compressor.compress(method, &noise(1000), &mut wire), None);
            assert_eq!(compressor.compress(method, b"", &mut wire), None);
            assert_eq!(compressor.compress(method, b"x", &mut wire), None);
            assert_eq!(compressor.compress(method, &text(100_000), &mut wire[..10]), None);
            assert_eq!(compressor.compress(method, &text(CHUNK_BYTES_MAX + 1), &mut wire), None);
            // The compressor remains usable after each failure.
            assert!(compressor.compress(method, &text(100_000), &mut wire).is_some());
        }
    }

    #[test]
    fn the_announced_length_holds() {
        let (mut compressor, mut decompressor) = (Compressor::default(), Decompressor::default());
        for method in METHODS {
            let plain = text(5000);
            let mut wire = vec![0; 5000];
            let wire_bytes = compressor.compress(method, &plain, &mut wire).expect("it repeats");
            let wire = &wire[..wire_bytes];
            let mut back = vec![0xa5; CHUNK_BYTES_MAX + 10];
            for plain_bytes in [0, 1, 4999, 5001, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, usize::MAX] {
                let result = decompressor.decompress(method.kind(), wire, &mut back, plain_bytes);
                assert_eq!(result, None, "{method:?}, {plain_bytes} bytes");
                assert!(back[plain_bytes.clamp(5000, CHUNK_BYTES_MAX)..].iter().all(|byte| *byte == 0xa5));
            }
            assert!(decompressor.decompress(method.kind(), wire, &mut back[..4999], 5000).is_none());
            for cut in 1..wire.len() {
                assert!(
                    decompressor.decompress(method.kind(), &wire[..cut], &mut back, 5000).is_none(),
                    "{method:?} at {cut}"
                );
            }
            decompressor.decompress(method.kind(), wire, &mut back, 5000).expect("it goes on after each of these");
        }
        let mut back = [0; 8];
        assert!(decompressor.decompress(Compression::None, b"1234", &mut back, 5).is_none());
        assert!(decompressor.decompress(Compression::None, b"12345", &mut back, 4).is_none());
        decompressor.decompress(Compression::None, b"12345", &mut back, 5).expect("equal");
        assert_eq!(&back[..5], b"12345");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 4..400), kind in 0..3_u8) {
            fuzz::decompress(&bytes);
            bytes[0] = kind;
            bytes[3] = 0;
            fuzz::decompress(&bytes);
        }

        #[test]
        fn damaged_payloads_are_survived(at: proptest::sample::Index, with in 1..=255_u8, seed in 0..3_usize) {
            let (_, _, mut bytes) = fuzz::seeds().swap_remove(seed);
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            fuzz::decompress(&bytes);
        }

        #[test]
        fn any_payload_comes_back(
            words in proptest::collection::vec(0..4_u32, 0..3000),
            at in 0..METHODS.len(),
        ) {
            let plain: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let method = METHODS[at];
            let mut wire = vec![0; plain.len()];
            if let Some(bytes) = Compressor::default().compress(method, &plain, &mut wire) {
                let mut back = vec![0; plain.len()];
                Decompressor::default().decompress(method.kind(), &wire[..bytes], &mut back, plain.len()).expect("as announced");
                prop_assert_eq!(back, plain);
            }
        }
    }
}
