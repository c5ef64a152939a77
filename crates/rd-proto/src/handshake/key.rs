//! KEY, the key that both users know.

use std::fmt;

use rand_core::CryptoRng;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// Number of random bits in a generated key.
const RANDOM_BITS: usize = 128;

/// Number of check bits in a generated key, chosen so that random and check bits fill whole characters.
const CHECK_BITS: usize = 22;

/// Number of characters of a printed generated key, with five bits in each.
pub const GENERATED_KEY_CHARS: usize = (RANDOM_BITS + CHECK_BITS) / 5;

/// The base32 alphabet of RFC 4648, section 6, in lower case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Key derivation context of the check bits.
const CHECK_CONTEXT: &str = "rdma-pipe v1 generated key check";

/// The key given to both ends, as bytes. Never shown, and wiped when dropped.
///
/// # Generated keys
///
/// A generated key is [`GENERATED_KEY_CHARS`] (30) characters of `a–z2–7`, most significant bit first: 128 random bits,
/// then 22 check bits. The check bits are the first 22 bits of the BLAKE3 hash of the 16 random bytes (key derivation
/// mode, context `rdma-pipe v1 generated key check`). The protocol uses the characters as they are, so a typed key and
/// a pasted key are the same. The check bits only distinguish a generated key, which cannot be guessed, from a key
/// chosen by a person, for which the listener counts guesses. Of the chosen keys of exactly this form, one in 2²²
/// passes for a generated key by accident.
#[derive(Clone)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
    unguessable: bool,
}

impl Key {
    /// Takes the key that a user gave: any bytes. `None` if there are none.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = Zeroizing::new(bytes.into());
        let unguessable = has_check_bits(&bytes);
        (!bytes.is_empty()).then_some(Self { bytes, unguessable })
    }

    /// Takes 256 random bits as a key, which a controller hands to both agents. The key counts as generated.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self { bytes: Zeroizing::new(bytes.to_vec()), unguessable: true }
    }

    /// Generates a key of 128 random bits. Returns the key and the text to print.
    pub fn generate(rng: &mut impl CryptoRng) -> (Self, String) {
        let mut random = Zeroizing::new([0; RANDOM_BITS / 8]);
        rng.fill_bytes(&mut *random);
        let text = encode(&random);
        (Self { bytes: Zeroizing::new(text.clone().into_bytes()), unguessable: true }, text)
    }

    /// Returns whether the key was generated at random by this program, so that guesses need not be counted.
    pub fn is_generated(&self) -> bool {
        self.unguessable
    }

    /// Returns the bytes of the key, for the key exchange.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// Returns the random and check bits in the high [`RANDOM_BITS`] + [`CHECK_BITS`] bits; the remaining bits are zero.
fn with_check_bits(random: &[u8; RANDOM_BITS / 8]) -> Zeroizing<[u8; 19]> {
    let check = blake3::derive_key(CHECK_CONTEXT, random);
    let mut bits = Zeroizing::new([0; 19]);
    bits[..16].copy_from_slice(random);
    bits[16..].copy_from_slice(&check[..3]);
    bits[18] &= 0xfc; // 22 of the 24 bits
    bits
}

fn encode(random: &[u8; RANDOM_BITS / 8]) -> String {
    let bits = with_check_bits(random);
    let bit = |at: usize| bits[at / 8] >> (7 - at % 8) & 1;
    (0..GENERATED_KEY_CHARS)
        .map(|at| (at * 5..at * 5 + 5).fold(0, |index, at| index << 1 | bit(at)))
        .map(|index| char::from(ALPHABET[usize::from(index)]))
        .collect()
}

fn has_check_bits(text: &[u8]) -> bool {
    if text.len() != GENERATED_KEY_CHARS {
        return false;
    }
    let mut bits = Zeroizing::new([0_u8; 19]);
    for (at, char) in text.iter().enumerate() {
        let Some(index) = ALPHABET.iter().position(|letter| letter == char) else { return false };
        for bit in 0..5 {
            let to = at * 5 + bit;
            bits[to / 8] |= ((index >> (4 - bit)) as u8 & 1) << (7 - to % 8);
        }
    }
    let mut random: [u8; RANDOM_BITS / 8] = bits[..16].try_into().expect("16 bytes");
    let expected = with_check_bits(&random);
    random.zeroize();
    bool::from(expected[..].ct_eq(&bits[..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::test_support::rng;

    #[test]
    fn empty_keys_are_refused() {
        assert!(Key::new(Vec::new()).is_none());
        assert!(!Key::new(b"x".to_vec()).expect("one byte").is_generated());
    }

    #[test]
    fn generated_keys_are_known_as_such() {
        let mut rng = rng(1);
        for _ in 0..200 {
            let (key, text) = Key::generate(&mut rng);
            assert!(key.is_generated());
            assert_eq!(text.len(), GENERATED_KEY_CHARS);
            assert!(text.bytes().all(|char| ALPHABET.contains(&char)), "{text}");
            assert_eq!(key.as_bytes(), text.as_bytes());
            assert!(Key::new(text.clone()).expect("not empty").is_generated());
            assert!(!Key::new(text.to_uppercase()).expect("not empty").is_generated());
            assert!(!Key::new(&text.as_bytes()[1..]).expect("not empty").is_generated());
        }
    }

    #[test]
    fn another_character_is_another_kind_of_key() {
        let (_, text) = Key::generate(&mut rng(2));
        let mut accepted = 0;
        for at in 0..text.len() {
            for letter in ALPHABET {
                let mut other = text.clone().into_bytes();
                other[at] = *letter;
                accepted += u32::from(Key::new(other).expect("not empty").is_generated());
            }
        }
        assert_eq!(accepted, 30, "only the key itself, once for each place");
    }

    #[test]
    fn the_printed_form_is_fixed() {
        assert_eq!(encode(&[0; 16]).len(), 30);
        assert!(encode(&[0; 16]).starts_with("aaaaaaaaaaaaaaaaaaaaaaaaa"));
        assert!(encode(&[0xff; 16]).starts_with("7777777777777777777777777"));
    }

    #[test]
    fn debug_shows_nothing() {
        let key = Key::new(b"hunter2".to_vec()).expect("not empty");
        assert_eq!(format!("{key:?}"), "Key(redacted)");
    }
}
