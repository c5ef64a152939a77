//! The cryptography behind `Noise_NNpsk0_25519_AESGCM_SHA256` (revision 34 of the Noise specification).
//!
//! `snow` runs the handshake. This module's resolver provides X25519 and SHA-256 from the crates that CPace uses
//! already, AES-GCM from the crate that seals chunks, and randomness that was passed in. So the program has one
//! implementation of each, and this crate needs no clock or system call.

use std::cell::Cell;
use std::sync::OnceLock;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use curve25519_dalek::montgomery::MontgomeryPoint;
use rand_core::CryptoRng;
use sha2::{Digest as _, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// Name of the only protocol spoken. Nothing is negotiated.
const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Length of each of the two handshake messages, in bytes: an X25519 key and the tag over an empty payload.
pub(super) const MESSAGE_BYTES: usize = 32 + TAG_BYTES;

/// Number of bytes that sealing adds to a message.
pub(super) const TAG_BYTES: usize = 16;

/// Role of this end in the Noise handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Initiator,
    Responder,
}

/// A private X25519 key for one handshake.
pub(super) type Ephemeral = Zeroizing<[u8; 32]>;

/// Draws the ephemeral key, which is all the randomness that one handshake needs.
pub(super) fn ephemeral(rng: &mut impl CryptoRng) -> Ephemeral {
    let mut ephemeral = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *ephemeral);
    ephemeral
}

/// Creates a handshake before its first message.
pub(super) fn start(role: Role, psk: &[u8; 32], prologue: &[u8], ephemeral: Ephemeral) -> HandshakeState {
    build(role, psk, prologue, ephemeral).expect("the resolver serves everything that the protocol's name asks for")
}

fn build(role: Role, psk: &[u8; 32], prologue: &[u8], ephemeral: Ephemeral) -> Result<HandshakeState, Error> {
    let params: NoiseParams = PROTOCOL.parse()?;
    let resolver = Resolver { ephemeral: Cell::new(Some(ephemeral)) };
    let builder = Builder::with_resolver(params, Box::new(resolver)).psk(0, psk)?.prologue(prologue)?;
    match role {
        Role::Initiator => builder.build_initiator(),
        Role::Responder => builder.build_responder(),
    }
}

struct Resolver {
    ephemeral: Cell<Option<Ephemeral>>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(OneDraw(self.ephemeral.take())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(X25519::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(HashSha256::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(Aes256Gcm::default()) as Box<dyn Cipher>)
    }
}

/// The only draw of randomness in NNpsk0: this end's ephemeral private key. A second draw fails instead of repeating
/// it.
struct OneDraw(Option<Ephemeral>);

impl Random for OneDraw {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        let bytes = self.0.take().filter(|bytes| bytes.len() == dest.len()).ok_or(Error::Rng)?;
        dest.copy_from_slice(&*bytes);
        Ok(())
    }
}

/// X25519 (RFC 7748).
#[derive(Default)]
struct X25519 {
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, privkey: &[u8]) {
        self.private.copy_from_slice(privkey);
        self.public = MontgomeryPoint::mul_base_clamped(*self.private).to_bytes();
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut private = Zeroizing::new([0; 32]);
        rng.try_fill_bytes(&mut *private)?;
        self.set(&*private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.private
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public: [u8; 32] = pubkey.get(..32).and_then(|bytes| bytes.try_into().ok()).ok_or(Error::Dh)?;
        let shared = Zeroizing::new(MontgomeryPoint(public).mul_clamped(*self.private).to_bytes());
        // RFC 7748, section 6.1: a point of small order gives zero for any private key.
        if bool::from(shared.ct_eq(&[0; 32])) {
            return Err(Error::Dh);
        }
        out[..32].copy_from_slice(&*shared);
        Ok(())
    }
}

/// SHA-256 (FIPS 180-4).
#[derive(Default)]
struct HashSha256(Sha256);

impl Hash for HashSha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// AES-256-GCM with the nonce of section 12 of the Noise specification: 32 zero bits, then the counter, big-endian.
#[derive(Default)]
struct Aes256Gcm {
    key: Zeroizing<[u8; 32]>,
    /// The expanded key, created for the second message under `key`. The handshake uses each key once, and a half-open
    /// peer should not occupy memory for it.
    expanded: OnceLock<LessSafeKey>,
}

impl Aes256Gcm {
    fn with_key<T>(&self, nonce: u64, use_key: impl FnOnce(&LessSafeKey) -> T) -> T {
        match nonce {
            0 => use_key(&expand(&self.key)),
            _ => use_key(self.expanded.get_or_init(|| expand(&self.key))),
        }
    }
}

/// Creates the cipher for a key of 32 bytes.
fn expand(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("AES-256 takes 32 bytes"))
}

fn nonce_bytes(nonce: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&nonce.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for Aes256Gcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.key.copy_from_slice(key);
        self.expanded = OnceLock::new();
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (body, tag_to) = out[..plaintext.len() + TAG_BYTES].split_at_mut(plaintext.len());
        body.copy_from_slice(plaintext);
        let tag = self
            .with_key(nonce, |key| key.seal_in_place_separate_tag(nonce_bytes(nonce), Aad::from(authtext), body))
            .expect("a message is far below AES-GCM's limit");
        tag_to.copy_from_slice(tag.as_ref());
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(&self, nonce: u64, authtext: &[u8], ciphertext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let plain_bytes = ciphertext.len().checked_sub(TAG_BYTES).ok_or(Error::Decrypt)?;
        let (body, tag) = ciphertext.split_at(plain_bytes);
        let out = out.get_mut(..plain_bytes).ok_or(Error::Decrypt)?;
        self.with_key(nonce, |key| key.open_separate_gather(nonce_bytes(nonce), Aad::from(authtext), body, tag, out))
            .map_err(|_| {
            out.zeroize();
            Error::Decrypt
        })?;
        Ok(plain_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::test_support::hex;

    /// The vector `Noise_NNpsk0_25519_AESGCM_SHA256` of cacophony, as included in `snow` 0.10.
    #[test]
    fn handshake_is_that_of_the_cacophony_vectors() {
        let bytes32 = |text: &str| -> [u8; 32] { hex(text).try_into().expect("32 bytes") };
        let psk = bytes32("54686973206973206d7920417573747269616e20706572737065637469766521");
        let prologue = hex("4a6f686e2047616c74");
        let ephemeral = |text: &str| Zeroizing::new(bytes32(text));
        let mut initiator = build(
            Role::Initiator,
            &psk,
            &prologue,
            ephemeral("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"),
        )
        .expect("known protocol");
        let mut responder = build(
            Role::Responder,
            &psk,
            &prologue,
            ephemeral("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"),
        )
        .expect("known protocol");
        let messages = [
            (
                "4c756477696720766f6e204d69736573",
                "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79447c37a89fc17813788d30df2d59501d6066f5f8\
                 aecc3406bbd9829f2d24a531b1",
            ),
            (
                "4d757272617920526f746862617264",
                "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088432f29d79368ef9de4e1ae7a362fb05bf0ad668e\
                 026bf5714554497b3a720461",
            ),
            ("462e20412e20486179656b", "7c01e898a6201f36aecee532e29cd0b7f8ffa29d3366ad0dce39a6"),
            ("4361726c204d656e676572", "a9ff535aace3db6a1da1a7fb00fe2de2622bb373abad9fb42c00e0"),
        ];
        let (mut wire, mut plain) = ([0; 128], [0; 128]);
        for (at, (payload, ciphertext)) in messages[..2].iter().enumerate() {
            let (from, to) = if at == 0 { (&mut initiator, &mut responder) } else { (&mut responder, &mut initiator) };
            let written = from.write_message(&hex(payload), &mut wire).expect("our turn");
            assert_eq!(wire[..written], hex(ciphertext)[..]);
            let read = to.read_message(&wire[..written], &mut plain).expect("the same keys");
            assert_eq!(plain[..read], hex(payload)[..]);
        }
        let hash = hex("9f3b1f9afd7767767b5b9d1069844a6154fdbdcc36dfb3e31c0fffc5c973d530");
        assert_eq!(initiator.get_handshake_hash(), hash);
        assert_eq!(responder.get_handshake_hash(), hash);
        let initiator = initiator.into_stateless_transport_mode().expect("finished");
        let responder = responder.into_stateless_transport_mode().expect("finished");
        for ((payload, ciphertext), (from, to)) in
            messages[2..].iter().zip([(&initiator, &responder), (&responder, &initiator)])
        {
            let written = from.write_message(0, &hex(payload), &mut wire).expect("fits");
            assert_eq!(wire[..written], hex(ciphertext)[..]);
            let read = to.read_message(0, &wire[..written], &mut plain).expect("the same keys");
            assert_eq!(plain[..read], hex(payload)[..]);
        }
    }
}
