//! AES-256-GCM (NIST SP 800-38D), from the library with the best code for this processor.
//!
//! Both libraries compute the same. `aws-lc-rs` is faster with AVX-512, and on ARM. It has no code for processors whose
//! AES instructions take 256 bits at once but that lack AVX-512, such as AMD's Zen 3 and Intel's desktop processors.
//! `ring` has such code, and is twice as fast there.

use aws_lc_rs::aead as aws;
#[cfg(target_arch = "x86_64")]
use ring::aead as ring;

use crate::frame::TAG_BYTES;

/// An AES-256-GCM key of one of the two libraries, ready for use.
#[allow(clippy::large_enum_variant, reason = "it is made for one chunk, and not moved")]
pub(super) enum Cipher {
    Aws(aws::LessSafeKey),
    #[cfg(target_arch = "x86_64")]
    Ring(ring::LessSafeKey),
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if has_wide_aes_alone() {
            return Self::ring(key);
        }
        Self::aws(key)
    }

    fn aws(key: &[u8; 32]) -> Self {
        Self::Aws(aws::LessSafeKey::new(aws::UnboundKey::new(&aws::AES_256_GCM, key).expect("AES-256 takes 32 bytes")))
    }

    #[cfg(target_arch = "x86_64")]
    fn ring(key: &[u8; 32]) -> Self {
        Self::Ring(ring::LessSafeKey::new(
            ring::UnboundKey::new(&ring::AES_256_GCM, key).expect("AES-256 takes 32 bytes"),
        ))
    }

    /// Encrypts in place and returns the tag. The caller never uses a nonce for different bytes.
    ///
    /// # Panics
    ///
    /// If the message is longer than 64 GiB.
    pub(super) fn seal(&self, nonce: &[u8; 12], covered: &[u8], message: &mut [u8]) -> [u8; TAG_BYTES] {
        match self {
            Self::Aws(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(*nonce);
                let tag = key.seal_in_place_separate_tag(nonce, aws::Aad::from(covered), message);
                tag.expect("a chunk is far below AES-GCM's limit").as_ref().try_into().expect("16 bytes")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(*nonce);
                let tag = key.seal_in_place_separate_tag(nonce, ring::Aad::from(covered), message);
                tag.expect("a chunk is far below AES-GCM's limit").as_ref().try_into().expect("16 bytes")
            }
        }
    }

    /// Encrypts `message` into `sealed`, which has the same length, and returns the tag.
    ///
    /// # Panics
    ///
    /// As [`Cipher::seal`], and if the lengths differ.
    pub(super) fn seal_from(
        &self,
        nonce: &[u8; 12],
        covered: &[u8],
        message: &[u8],
        sealed: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        match self {
            Self::Aws(key) => {
                let (nonce, mut tag) = (aws::Nonce::assume_unique_for_key(*nonce), [0; TAG_BYTES]);
                let covered = aws::Aad::from(covered);
                let done = key.seal_out_of_place_scatter(nonce, covered, message, sealed, &[], &mut tag);
                done.expect("a chunk is far below AES-GCM's limit");
                tag
            }
            // `ring` encrypts in place only.
            #[cfg(target_arch = "x86_64")]
            Self::Ring(_) => {
                sealed.copy_from_slice(message);
                self.seal(nonce, covered, sealed)
            }
        }
    }

    /// Decrypts in place. Returns false if message, covered bytes or tag are not what was sealed; the message is then
    /// garbage.
    pub(super) fn open(&self, nonce: &[u8; 12], covered: &[u8], tag: &[u8; TAG_BYTES], message: &mut [u8]) -> bool {
        match self {
            Self::Aws(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(*nonce);
                key.open_in_place_separate_tag(nonce, aws::Aad::from(covered), tag, message).is_ok()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(*nonce);
                let tag = ring::Tag::from(*tag);
                key.open_in_place_separate_tag(nonce, ring::Aad::from(covered), tag, message, 0..).is_ok()
            }
        }
    }
}

/// Returns whether the processor has VAES but not the AVX-512 with which `aws-lc-rs` would use it.
#[cfg(target_arch = "x86_64")]
fn has_wide_aes_alone() -> bool {
    use std::arch::is_x86_feature_detected as has;

    let has_wide_aes = has!("vaes") && has!("vpclmulqdq") && has!("avx2");
    let has_avx512 = has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq");
    has_wide_aes && !has_avx512
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ends on different processors seal to the same bytes, and open each other's chunks.
        #[test]
        fn both_libraries_seal_alike(
            key: [u8; 32],
            nonce: [u8; 12],
            covered in proptest::collection::vec(any::<u8>(), 0..80),
            message in proptest::collection::vec(any::<u8>(), 0..5000),
            changed: prop::sample::Index,
        ) {
            let ciphers = [Cipher::aws(&key), Cipher::ring(&key)];
            let [of_aws, of_ring] = ciphers.each_ref().map(|cipher| {
                let mut sealed = message.clone();
                let tag = cipher.seal(&nonce, &covered, &mut sealed);
                (sealed, tag)
            });
            prop_assert_eq!(&of_aws, &of_ring);
            for cipher in &ciphers {
                let mut sealed = vec![7; message.len()];
                let tag = cipher.seal_from(&nonce, &covered, &message, &mut sealed);
                prop_assert_eq!(&(sealed, tag), &of_aws);
            }
            for cipher in &ciphers {
                let (mut sealed, tag) = of_aws.clone();
                prop_assert!(cipher.open(&nonce, &covered, &tag, &mut sealed));
                prop_assert_eq!(&sealed, &message);
                let (mut sealed, mut tag) = of_aws.clone();
                match changed.index(sealed.len() + TAG_BYTES) {
                    at if at < sealed.len() => sealed[at] ^= 1,
                    at => tag[at - sealed.len()] ^= 1,
                }
                prop_assert!(!cipher.open(&nonce, &covered, &tag, &mut sealed));
            }
        }
    }
}
