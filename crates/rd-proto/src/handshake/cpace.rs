//! CPace with ristretto255 and SHA-512, after draft-irtf-cfrg-cpace-21.
//!
//! Two parties that share a short key agree on a strong key. Each run of the protocol lets an attacker try one key, and
//! a recording of a run lets an attacker try none. This module implements only the initiator-responder setting (section
//! 6.3, `transcript_ir`) of the suite CPACE-RISTR255-SHA512 (section 8.3). The tests below check it against the draft's
//! vectors (appendix B.3).

use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::Identity as _;
use rand_core::CryptoRng;
use sha2::{Digest as _, Sha512};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

/// Length of a public share, Ya or Yb, in bytes: an encoded ristretto255 element (RFC 9496).
pub(super) const SHARE_BYTES: usize = 32;

/// Length of the intermediate session key, in bytes.
pub(super) const ISK_BYTES: usize = 64;

/// G.DSI of section 8.3.
const DSI: &[u8] = b"CPaceRistretto255";

/// G.DSI || b"_ISK" of section 7.2.
const DSI_ISK: &[u8] = b"CPaceRistretto255_ISK";

/// H.s_in_bytes of SHA-512: the length of its input block.
const HASH_BLOCK_BYTES: usize = 128;

/// Bits of the highest scalar byte that lie within G.group_size_bits (252).
const SCALAR_TOP_MASK: u8 = 0x0f;

/// The peer's share is not a group element, or leads to the neutral element. The run must then end (section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidShare;

/// ISK, the intermediate session key: equal at both parties if and only if PRS, CI, sid and the transcript agree.
pub(super) type Isk = Zeroizing<[u8; ISK_BYTES]>;

/// Which of the two shares in a transcript belongs to this party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Party A, which sends first.
    Initiator,
    /// Party B.
    Responder,
}

/// One party's run, from sending its own share to receiving the peer's. A run is used once.
#[derive(ZeroizeOnDrop)]
pub(super) struct Run {
    scalar: Scalar,
    share: [u8; SHARE_BYTES],
    #[zeroize(skip)]
    role: Role,
}

impl Run {
    /// Starts a run for the password `prs`, the channel identifier `ci` and the session `sid`.
    pub(super) fn start(role: Role, prs: &[u8], ci: &[u8], sid: &[u8], rng: &mut impl CryptoRng) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *bytes);
        Self::with_scalar(role, &calculate_generator(prs, ci, sid), scalar_from_random(&bytes))
    }

    fn with_scalar(role: Role, generator: &RistrettoPoint, scalar: Scalar) -> Self {
        let share = (scalar * generator).compress().to_bytes();
        Self { scalar, share, role }
    }

    /// Returns the public share of this party.
    pub(super) fn share(&self) -> &[u8; SHARE_BYTES] {
        &self.share
    }

    /// Ends the run with the peer's share.
    ///
    /// `ad_initiator` and `ad_responder` are ADa and ADb, which must be the same at both parties.
    ///
    /// # Errors
    ///
    /// [`InvalidShare`] where the draft says "MUST abort if K = G.I".
    pub(super) fn finish(
        self,
        sid: &[u8],
        peer_share: &[u8; SHARE_BYTES],
        ad_initiator: &[u8],
        ad_responder: &[u8],
    ) -> Result<Isk, InvalidShare> {
        let shared = Zeroizing::new(scalar_mult_vfy(&self.scalar, peer_share));
        if bool::from(shared.ct_eq(&RistrettoPoint::identity().compress().to_bytes())) {
            return Err(InvalidShare);
        }
        let (share_a, share_b) = match self.role {
            Role::Initiator => (&self.share, peer_share),
            Role::Responder => (peer_share, &self.share),
        };
        let mut input = Zeroizing::new(lv_cat(&[DSI_ISK, sid, &*shared]));
        input.extend_from_slice(&transcript_ir(share_a, ad_initiator, share_b, ad_responder));
        Ok(Zeroizing::new(Sha512::digest(&*input).into()))
    }
}

/// `prepend_len(data)` (section 6.3), appended to `out`: the length as LEB128, then the bytes.
pub(super) fn prepend_len(data: &[u8], out: &mut Vec<u8>) {
    let mut length = data.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(data);
}

/// `lv_cat(a0, a1, …)` (section 6.3).
pub(super) fn lv_cat(strings: &[&[u8]]) -> Vec<u8> {
    // Reserve room for the longest possible lengths: a growing vector would leave secret bytes behind.
    let mut out = Vec::with_capacity(strings.iter().map(|string| string.len() + 10).sum());
    for string in strings {
        prepend_len(string, &mut out);
    }
    out
}

fn transcript_ir(share_a: &[u8], ad_a: &[u8], share_b: &[u8], ad_b: &[u8]) -> Vec<u8> {
    lv_cat(&[share_a, ad_a, share_b, ad_b])
}

/// `generator_string` (section 8.1): padded so that DSI and PRS fill at least the first block of the hash.
fn generator_string(prs: &[u8], ci: &[u8], sid: &[u8]) -> Zeroizing<Vec<u8>> {
    let prefix_bytes = Zeroizing::new(lv_cat(&[DSI, prs])).len();
    let padding = [0; HASH_BLOCK_BYTES];
    let padding_bytes = (HASH_BLOCK_BYTES - 1).saturating_sub(prefix_bytes);
    Zeroizing::new(lv_cat(&[DSI, prs, &padding[..padding_bytes], ci, sid]))
}

/// `G.calculate_generator` (section 8.3).
fn calculate_generator(prs: &[u8], ci: &[u8], sid: &[u8]) -> RistrettoPoint {
    let mut hash: [u8; 64] = Sha512::digest(&*generator_string(prs, ci, sid)).into();
    let generator = RistrettoPoint::from_uniform_bytes(&hash);
    hash.zeroize();
    generator
}

/// `G.sample_scalar` as section 8.3 recommends it: 252 random bits, hence always below the group order.
fn scalar_from_random(bytes: &[u8; 32]) -> Scalar {
    let mut bytes = Zeroizing::new(*bytes);
    bytes[31] &= SCALAR_TOP_MASK;
    Scalar::from_bytes_mod_order(*bytes)
}

/// `G.scalar_mult_vfy` (section 8.3). Returns the encoding of the neutral element if `share` does not decode.
fn scalar_mult_vfy(scalar: &Scalar, share: &[u8; SHARE_BYTES]) -> [u8; SHARE_BYTES] {
    match CompressedRistretto(*share).decompress() {
        Some(point) => (scalar * point).compress().to_bytes(),
        None => RistrettoPoint::identity().compress().to_bytes(),
    }
}

#[cfg(test)]
mod tests {
    //! The vectors are those of draft-irtf-cfrg-cpace-21: appendix B.3, and appendix A for the string functions.

    use super::*;
    use crate::handshake::test_support::hex;

    const PRS: &[u8] = b"Password";
    const CI: &[u8] = b"\x0bA_initiator\x0bB_responder";
    const SCALAR_A: &str = "da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08";
    const SCALAR_B: &str = "d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d";
    const SHARE_A: &str = "d6bac480f2c386c394efc7c47adb9925dcd2630b64f240c50f8d0eec482b9157";
    const SHARE_B: &str = "3ea7e0b19560d7c0b0f5734f63b955286dfa8232b5ebe63324e2d9e7433f7258";

    fn sid() -> Vec<u8> {
        hex("7e4b4791d6a8ef019b936c79fb7f2c57")
    }

    fn bytes32(text: &str) -> [u8; 32] {
        hex(text).try_into().expect("32 bytes")
    }

    fn run(role: Role, scalar: &str) -> Run {
        let scalar = scalar_from_random(&bytes32(scalar));
        Run::with_scalar(role, &calculate_generator(PRS, CI, &sid()), scalar)
    }

    #[test]
    fn strings_are_the_drafts() {
        let encoded = |data: &[u8]| {
            let mut out = Vec::new();
            prepend_len(data, &mut out);
            out
        };
        assert_eq!(encoded(b""), hex("00"));
        assert_eq!(encoded(b"1234"), hex("0431323334"));
        assert_eq!(encoded(&[7; 127])[..2], [0x7f, 7]);
        assert_eq!(encoded(&[7; 128])[..3], [0x80, 0x01, 7]);
        assert_eq!(lv_cat(&[b"1234", b"5", b"", b"678"]), hex("043132333401350003363738"));
    }

    #[test]
    fn generator_is_the_drafts() {
        let mut expected = hex("11435061636552697374726574746f3235350850617373776f726464");
        expected.resize(128, 0);
        expected.extend(hex("180b415f696e69746961746f720b425f726573706f6e646572"));
        expected.extend(hex("107e4b4791d6a8ef019b936c79fb7f2c57"));
        assert_eq!(expected.len(), 170);
        assert_eq!(*generator_string(PRS, CI, &sid()), expected);
        assert_eq!(
            calculate_generator(PRS, CI, &sid()).compress().to_bytes().to_vec(),
            hex("222b6b195fe84b1652badb6f6a3ae3d24341e7306967f0b8115b40d5698c7e56")
        );
    }

    #[test]
    fn exchange_is_the_drafts() {
        let (a, b) = (run(Role::Initiator, SCALAR_A), run(Role::Responder, SCALAR_B));
        assert_eq!(a.share().to_vec(), hex(SHARE_A));
        assert_eq!(b.share().to_vec(), hex(SHARE_B));
        let shared = "80b69a8a76457ab6a4d7f887a4bf6b55a2f80ac19c333f917a05fc9887c8b40f";
        assert_eq!(scalar_mult_vfy(&a.scalar, b.share()).to_vec(), hex(shared));
        assert_eq!(scalar_mult_vfy(&b.scalar, a.share()).to_vec(), hex(shared));
        assert_eq!(
            transcript_ir(a.share(), b"ADa", b.share(), b"ADb"),
            hex("20d6bac480f2c386c394efc7c47adb9925dcd2630b64f240c50f8d0e\
                 ec482b915703414461203ea7e0b19560d7c0b0f5734f63b955286dfa\
                 8232b5ebe63324e2d9e7433f725803414462")
        );
        let isk = hex("b69effbf61b51d56401c0f65601abe428de8206feaaf0e32198896dc\
                       ae7b35cd2b38950a39dfd5d4a79164614c2984f7daa460b588c1e80c\
                       3fa2068af7900447");
        let (share_a, share_b) = (*a.share(), *b.share());
        assert_eq!(a.finish(&sid(), &share_b, b"ADa", b"ADb").expect("valid share").to_vec(), isk);
        assert_eq!(b.finish(&sid(), &share_a, b"ADa", b"ADb").expect("valid share").to_vec(), isk);
    }

    #[test]
    fn scalar_multiplication_is_the_drafts() {
        let scalar = scalar_from_random(&bytes32("7cd0e075fa7955ba52c02759a6c90dbbfc10e6d40aea8d283e407d88cf538a05"));
        let share = bytes32("2c3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");
        let expected = bytes32("7c13645fe790a468f62c39beb7388e541d8405d1ade69d1778c5fe3e7f6b600e");
        assert_eq!(scalar_mult_vfy(&scalar, &share), expected);
        let invalid = bytes32("2b3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");
        assert_eq!(scalar_mult_vfy(&scalar, &invalid), [0; 32]);
        assert_eq!(scalar_mult_vfy(&scalar, &[0; 32]), [0; 32]);
        for share in [invalid, [0; 32]] {
            for role in [Role::Initiator, Role::Responder] {
                let result = run(role, SCALAR_A).finish(&sid(), &share, b"ADa", b"ADb");
                assert_eq!(result.expect_err("the draft says abort"), InvalidShare);
            }
        }
    }

    #[test]
    fn long_passwords_are_hashed_whole() {
        let (mut long, ci) = (vec![b'x'; 5000], b"");
        let generator = calculate_generator(&long, ci, b"sid");
        long[4999] = b'y';
        assert_ne!(generator.compress(), calculate_generator(&long, ci, b"sid").compress());
    }
}
