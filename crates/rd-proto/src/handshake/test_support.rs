//! Helpers shared by the tests of this crate.

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;

/// Decodes a hexadecimal string. Spaces are skipped.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A reproducible source of randomness.
pub(crate) fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// Returns a session secret of known bytes.
pub(crate) fn session_secret(fill: u8) -> super::SessionSecret {
    super::SessionSecret(zeroize::Zeroizing::new([fill; 32]))
}
