//! Authentication of a lane, before anything else crosses the lane.
//!
//! The handshake has three messages. Each has at most [`HANDSHAKE_BYTES_MAX`] bytes and arrives whole:
//!
//! ```text
//! connector                                                     listener
//!     hello: version, lane, CPace share or nonce       ────▶
//!                                                      ◀────    version, CPace share; Noise message 1 (psk, e)
//!     Noise message 2 (e, ee)                          ────▶
//! ```
//!
//! The first lane of a session runs CPace with KEY, and the result is the pre-shared key of `NNpsk0`. Further and
//! replacement lanes derive that key from the session's secret and the lane's name. The *listener* is the Noise
//! initiator, so it proves the key first, and a connector with another key recognizes the mismatch as such. The Noise
//! prologue contains all clear bytes of both ends, so none of them can be changed unnoticed. `docs/PROTOCOL.md`
//! specifies every byte.
//!
//! This module does no I/O. A transport without message boundaries puts the length of each message in front, as
//! [`LENGTH_PREFIX_BYTES`] bytes, little-endian, and refuses a message over [`HANDSHAKE_BYTES_MAX`] without reading it.
//!
//! # Guesses
//!
//! Because the listener proves the key first, its answer lets the peer test one key, whether or not a third message
//! follows. So when the caller *sends* an answer to a first lane, it counts a guess, unless [`Key::is_generated`]
//! holds. The caller takes the guess back when [`Listening::finish`] succeeds.
//!
//! # Replays
//!
//! A recorded hello gets a fresh answer, to which the recorded third message does not fit. The caller accepts each
//! ([`SessionId`], [`LaneId`]) once. It marks the pair as used only when [`Listening::finish`] has succeeded, because a
//! hello alone proves nothing.
//!
//! # Randomness
//!
//! Randomness is passed in: any [`CryptoRng`], used only during the call.

mod channel;
mod cpace;
mod key;
mod noise;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;

use std::fmt;

use minicbor::{Decode, Encode};
pub use rand_core::CryptoRng;
use snow::HandshakeState;
use zeroize::{Zeroize as _, Zeroizing};

pub use self::channel::{CONTROL_PLAIN_BYTES_MAX, ControlChannel, ControlError};
pub use self::key::{GENERATED_KEY_CHARS, Key};

/// Maximum length of an accepted handshake message, in bytes. This version's messages are shorter; the rest is for
/// hellos of other versions.
pub const HANDSHAKE_BYTES_MAX: usize = 512;

/// Length of the little-endian length in front of each message, on a transport without message boundaries.
pub const LENGTH_PREFIX_BYTES: usize = 2;

/// Length of a connector's hello, in bytes.
pub const HELLO_BYTES: usize = PREFACE_BYTES + 56;

/// Length of a listener's answer to a first lane, in bytes.
pub const FIRST_REPLY_BYTES: usize = PREFACE_BYTES + cpace::SHARE_BYTES + noise::MESSAGE_BYTES;

/// Length of a listener's answer to a further or replacement lane, in bytes.
pub const JOIN_REPLY_BYTES: usize = PREFACE_BYTES + noise::MESSAGE_BYTES;

/// Length of the connector's second message, the confirmation, in bytes.
pub const CONFIRM_BYTES: usize = noise::MESSAGE_BYTES;

/// Length of the beginning that hello and answer have in every version, in bytes: magic, version, kind.
pub const PREFACE_BYTES: usize = 16;

/// First bytes of hello and answer in every version.
pub const MAGIC: [u8; 8] = *b"rdmapipe";

/// Version of the protocol that this program speaks.
pub const VERSION: Version = Version { major: 2, minor: 0 };

const KIND_FIRST: u8 = 1;
const KIND_JOIN: u8 = 2;
const KIND_FIRST_REPLY: u8 = 3;
const KIND_JOIN_REPLY: u8 = 4;
const KIND_VERSION: u8 = 5;

/// Names of the two ends for CPace, initiator first (section 10.1.1 of the draft), so that an answer never passes for a
/// hello.
const CHANNEL: &[&[u8]] = &[b"rdma-pipe connector", b"rdma-pipe listener"];

const PROLOGUE: &[u8] = b"rdma-pipe lane, listener initiates";
const FIRST_PSK_CONTEXT: &str = "rdma-pipe v1 first lane psk";
const JOIN_PSK_CONTEXT: &str = "rdma-pipe v1 join lane psk";
const SESSION_CONTEXT: &str = "rdma-pipe v1 session secret";
const TOKEN_CONTEXT: &str = "rdma-pipe v1 lane token";

/// A protocol version. Two ends with the same major understand each other; the smaller minor says what both know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes if old peers cannot follow.
    pub major: u16,
    /// Changes if something is added that an old peer may ignore.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Name of a session, drawn at random by the connector of the session's first lane. Not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// Draws the name of a new session.
    pub fn random(rng: &mut impl CryptoRng) -> Self {
        let mut bytes = [0; 16];
        rng.fill_bytes(&mut bytes);
        Self(bytes)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// Name of a lane within its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct LaneId {
    /// Place of the lane in the session, from 0.
    #[n(0)]
    pub index: u16,
    /// How often the lane at this place was replaced.
    #[n(1)]
    pub generation: u32,
}

impl LaneId {
    /// The first lane, which creates the session. It cannot be joined.
    pub const FIRST: Self = Self { index: 0, generation: 0 };
}

/// The secret of a session, known to its two ends only. Every later key is derived from it. Wiped when dropped.
#[derive(Clone)]
pub struct SessionSecret(Zeroizing<[u8; 32]>);

impl SessionSecret {
    /// Derives 32 bytes for one purpose: BLAKE3's key derivation over the secret and `parts`, which have fixed lengths.
    pub(crate) fn derive(&self, context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut hashed = vec![&self.0[..]];
        hashed.extend_from_slice(parts);
        derive(context, &hashed)
    }

    fn join_psk(&self, session: SessionId, lane: LaneId) -> Zeroizing<[u8; 32]> {
        let (index, generation) = (lane.index.to_le_bytes(), lane.generation.to_le_bytes());
        self.derive(JOIN_PSK_CONTEXT, &[&session.0, &index, &generation])
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(redacted)")
    }
}

/// Why a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer speaks another protocol.
    #[error("the peer does not speak rdma-pipe's protocol")]
    NotOurs,
    /// The peer speaks another major version. This is not authenticated: nothing can be before the versions agree.
    #[error("protocol version {theirs} at the peer, {ours} here")]
    VersionMismatch {
        /// Version of this program.
        ours: Version,
        /// Version that the peer claims to speak.
        theirs: Version,
    },
    /// The message has a length, kind or reserved field that this version does not define.
    #[error("malformed handshake message")]
    Malformed,
    /// The peer's public share is invalid. No honest peer sends such a share.
    #[error("invalid public share")]
    InvalidShare,
    /// The peer holds another key or session secret, or bytes were changed on the way. The two cannot be told apart.
    #[error("the keys differ")]
    WrongKey,
    /// The hello names a session that the listener does not know.
    #[error("unknown session")]
    UnknownSession,
}

/// A refused hello.
#[derive(Debug)]
pub struct Refused {
    /// Why the hello was refused.
    pub error: HandshakeError,
    /// Message to send before closing. Only a peer of another major gets one, with the listener's version; every other
    /// hello is refused silently.
    pub answer: Option<Vec<u8>>,
}

impl From<HandshakeError> for Refused {
    fn from(error: HandshakeError) -> Self {
        Self { error, answer: None }
    }
}

/// State of a connector that has made its hello and waits for the answer.
pub struct Connecting {
    hello: Hello,
    how: ConnectHow,
    ephemeral: noise::Ephemeral,
}

enum ConnectHow {
    First(cpace::Run),
    Join(SessionSecret),
}

/// State of a listener that has made its answer and waits for the connector's confirmation. Takes less than 1 KiB in
/// all.
///
/// Holds the inputs of the Noise state instead of the state, which is larger and which `snow` does not wipe.
pub struct Listening {
    hello: Hello,
    peer: Version,
    proof: Proof,
    ephemeral: noise::Ephemeral,
    reply_clear: Vec<u8>,
}

/// Secret that the peer must prove to know.
enum Proof {
    First(cpace::Isk),
    Join(SessionSecret),
}

impl Proof {
    fn psk(&self, hello: &Hello) -> Zeroizing<[u8; 32]> {
        match self {
            Self::First(isk) => derive(FIRST_PSK_CONTEXT, &[&isk[..]]),
            Self::Join(secret) => secret.join_psk(hello.session, hello.lane),
        }
    }
}

/// An authenticated lane.
#[derive(Debug)]
pub struct Established {
    /// Name of the session.
    pub session: SessionId,
    /// Name of the lane.
    pub lane: LaneId,
    /// Version of the peer, whose major equals this program's.
    pub peer: Version,
    /// Secret of the session: new for a first lane, the session's existing secret for every other lane.
    pub secret: SessionSecret,
    /// Seals and opens this lane's control frames.
    pub control: ControlChannel,
    /// Token of this lane in this generation, known to both ends only, which binds a payload queue pair to the lane. It
    /// opens nothing, so it may be sent in clear.
    pub token: [u8; 16],
}

/// Makes the hello of a session's first lane, keyed by the KEY that both users know.
pub fn connect_first(key: &Key, session: SessionId, rng: &mut impl CryptoRng) -> (Connecting, Vec<u8>) {
    let run = cpace::Run::start(cpace::Role::Initiator, key.as_bytes(), &channel(), &session.0, rng);
    let hello = Hello::new(session, LaneId::FIRST, run.share());
    connecting(hello, ConnectHow::First(run), rng)
}

/// Makes the hello of a further or replacement lane. The caller uses each `lane` of a session once, and raises the
/// generation after a failure.
pub fn connect_join(
    secret: &SessionSecret,
    session: SessionId,
    lane: LaneId,
    rng: &mut impl CryptoRng,
) -> (Connecting, Vec<u8>) {
    let mut fresh = [0; 32];
    rng.fill_bytes(&mut fresh);
    let hello = Hello::new(session, lane, &fresh);
    connecting(hello, ConnectHow::Join(secret.clone()), rng)
}

fn connecting(hello: Hello, how: ConnectHow, rng: &mut impl CryptoRng) -> (Connecting, Vec<u8>) {
    let message = hello.bytes.to_vec();
    (Connecting { hello, how, ephemeral: noise::ephemeral(rng) }, message)
}

impl Connecting {
    /// Checks the listener's answer. Returns the lane and the confirmation to send.
    ///
    /// # Errors
    ///
    /// * [`HandshakeError::WrongKey`] if the listener did not prove the connector's key.
    /// * [`HandshakeError::VersionMismatch`] if the listener speaks another major version.
    /// * [`HandshakeError::NotOurs`], [`HandshakeError::Malformed`] or [`HandshakeError::InvalidShare`] if no listener
    ///   of this version sends such an answer.
    pub fn finish(self, reply: &[u8]) -> Result<(Established, Vec<u8>), HandshakeError> {
        let (peer, kind) = decode_preface(reply)?;
        let Self { hello, how, ephemeral } = self;
        let (proof, clear_bytes) = match how {
            ConnectHow::First(run) => {
                if kind != KIND_FIRST_REPLY || reply.len() != FIRST_REPLY_BYTES {
                    return Err(HandshakeError::Malformed);
                }
                let clear_bytes = PREFACE_BYTES + cpace::SHARE_BYTES;
                let share = reply[PREFACE_BYTES..clear_bytes].try_into().expect("a share's length");
                let isk = hello.finish_cpace(run, share, &reply[..PREFACE_BYTES])?;
                (Proof::First(isk), clear_bytes)
            }
            ConnectHow::Join(secret) => {
                if kind != KIND_JOIN_REPLY || reply.len() != JOIN_REPLY_BYTES {
                    return Err(HandshakeError::Malformed);
                }
                (Proof::Join(secret), PREFACE_BYTES)
            }
        };
        let (clear, sealed) = reply.split_at(clear_bytes);
        let mut noise = noise::start(noise::Role::Responder, &proof.psk(&hello), &hello.prologue(clear), ephemeral);
        noise.read_message(sealed, &mut []).map_err(noise_error)?;
        let mut confirm = vec![0; CONFIRM_BYTES];
        noise.write_message(&[], &mut confirm).map_err(noise_error)?;
        Ok((established(&hello, peer, proof, noise), confirm))
    }
}

/// Checks a connector's hello. Returns the waiting state and the answer to send.
///
/// `lookup` returns the secret of the session that the hello wants to join; it is not called for a first lane. A first
/// lane costs two scalar multiplications, any other lane one. No memory is held beyond the returned values.
///
/// # Errors
///
/// [`Refused`], with an answer only for a peer of another major version.
pub fn listen(
    key: &Key,
    lookup: impl FnOnce(SessionId) -> Option<SessionSecret>,
    hello: &[u8],
    rng: &mut impl CryptoRng,
) -> Result<(Listening, Vec<u8>), Refused> {
    let (peer, kind) = decode_preface(hello).map_err(|error| Refused {
        error,
        answer: matches!(error, HandshakeError::VersionMismatch { .. }).then(|| preface(KIND_VERSION).to_vec()),
    })?;
    let hello = Hello::decode(kind, hello)?;
    let mut reply = Vec::with_capacity(FIRST_REPLY_BYTES);
    let proof = if hello.lane == LaneId::FIRST {
        reply.extend_from_slice(&preface(KIND_FIRST_REPLY));
        let run = cpace::Run::start(cpace::Role::Responder, key.as_bytes(), &channel(), &hello.session.0, rng);
        let share = *run.share();
        let isk = hello.finish_cpace(run, hello.fresh(), &reply)?;
        reply.extend_from_slice(&share);
        Proof::First(isk)
    } else {
        reply.extend_from_slice(&preface(KIND_JOIN_REPLY));
        Proof::Join(lookup(hello.session).ok_or(HandshakeError::UnknownSession)?)
    };
    let listening = Listening { hello, peer, proof, ephemeral: noise::ephemeral(rng), reply_clear: reply.clone() };
    let (_, message) = listening.noise()?;
    reply.extend_from_slice(&message);
    Ok((listening, reply))
}

impl Listening {
    /// Checks the connector's confirmation.
    ///
    /// # Errors
    ///
    /// [`HandshakeError::WrongKey`] if the connector did not prove the key; [`HandshakeError::Malformed`] or
    /// [`HandshakeError::InvalidShare`] if no connector of this version sends such a confirmation.
    pub fn finish(self, confirm: &[u8]) -> Result<Established, HandshakeError> {
        if confirm.len() != CONFIRM_BYTES {
            return Err(HandshakeError::Malformed);
        }
        let (mut noise, _) = self.noise()?;
        noise.read_message(confirm, &mut []).map_err(noise_error)?;
        Ok(established(&self.hello, self.peer, self.proof, noise))
    }

    /// Returns the Noise state after the first message, and that message. Every call returns the same.
    fn noise(&self) -> Result<(HandshakeState, [u8; noise::MESSAGE_BYTES]), HandshakeError> {
        let psk = self.proof.psk(&self.hello);
        let prologue = self.hello.prologue(&self.reply_clear);
        let mut noise = noise::start(noise::Role::Initiator, &psk, &prologue, self.ephemeral.clone());
        let mut message = [0; noise::MESSAGE_BYTES];
        noise.write_message(&[], &mut message).map_err(noise_error)?;
        Ok((noise, message))
    }

    /// Returns the lane that the peer names, not yet authenticated.
    pub fn lane(&self) -> LaneId {
        self.hello.lane
    }

    /// Returns whether this is the first lane of a new session. If it is, the peer may be guessing KEY.
    pub fn is_first(&self) -> bool {
        matches!(self.proof, Proof::First(_))
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("session", &self.hello.session).finish_non_exhaustive()
    }
}

fn established(hello: &Hello, peer: Version, proof: Proof, noise: HandshakeState) -> Established {
    let hash: [u8; 32] = noise.get_handshake_hash()[..32].try_into().expect("SHA-256");
    let secret = match proof {
        Proof::First(isk) => SessionSecret(derive(SESSION_CONTEXT, &[&isk[..], &hash])),
        Proof::Join(secret) => secret,
    };
    let token = secret.derive(TOKEN_CONTEXT, &[&hash])[..16].try_into().expect("16 of 32 bytes");
    let noise = noise.into_stateless_transport_mode().expect("both messages have passed");
    let control = ControlChannel::new(noise);
    Established { session: hello.session, lane: hello.lane, peer, secret, control, token }
}

/// Returns the kind of the hello of a lane.
fn kind_of(lane: LaneId) -> u8 {
    if lane == LaneId::FIRST { KIND_FIRST } else { KIND_JOIN }
}

/// A connector's hello, decoded and as it crosses the wire.
struct Hello {
    bytes: [u8; HELLO_BYTES],
    session: SessionId,
    lane: LaneId,
}

/// Offset of a hello's fresh bytes: the CPace share or, for a further lane, random bytes, so that an old answer to the
/// same lane does not fit. The bytes before are CPace's associated data of the connector.
const FRESH_AT: usize = HELLO_BYTES - 32;

impl Hello {
    fn new(session: SessionId, lane: LaneId, fresh: &[u8; 32]) -> Self {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..PREFACE_BYTES].copy_from_slice(&preface(kind_of(lane)));
        bytes[16..32].copy_from_slice(&session.0);
        bytes[32..34].copy_from_slice(&lane.index.to_le_bytes());
        bytes[36..40].copy_from_slice(&lane.generation.to_le_bytes());
        bytes[FRESH_AT..].copy_from_slice(fresh);
        Self { bytes, session, lane }
    }

    /// Decodes a hello whose preface has been checked.
    fn decode(kind: u8, message: &[u8]) -> Result<Self, HandshakeError> {
        let bytes: [u8; HELLO_BYTES] = message.try_into().map_err(|_| HandshakeError::Malformed)?;
        let lane = LaneId {
            index: u16::from_le_bytes([bytes[32], bytes[33]]),
            generation: u32::from_le_bytes([bytes[36], bytes[37], bytes[38], bytes[39]]),
        };
        if kind != kind_of(lane) || bytes[34..36] != [0, 0] {
            return Err(HandshakeError::Malformed);
        }
        let session = SessionId(bytes[16..32].try_into().expect("16 bytes"));
        Ok(Self { bytes, session, lane })
    }

    fn fresh(&self) -> &[u8; 32] {
        self.bytes[FRESH_AT..].try_into().expect("32 bytes")
    }

    /// Finishes CPace. Except for the shares, the clear bytes of both messages are CPace's associated data, so a change
    /// of either message changes the result.
    fn finish_cpace(
        &self,
        run: cpace::Run,
        peer_share: &[u8; cpace::SHARE_BYTES],
        reply_preface: &[u8],
    ) -> Result<cpace::Isk, HandshakeError> {
        run.finish(&self.session.0, peer_share, &self.bytes[..FRESH_AT], reply_preface)
            .map_err(|cpace::InvalidShare| HandshakeError::InvalidShare)
    }

    fn prologue(&self, reply_clear: &[u8]) -> Vec<u8> {
        cpace::lv_cat(&[PROLOGUE, &self.bytes, reply_clear])
    }
}

fn preface(kind: u8) -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.major.to_le_bytes());
    bytes[10..12].copy_from_slice(&VERSION.minor.to_le_bytes());
    bytes[12] = kind;
    bytes
}

/// Checks the beginning that hello and answer have in every version. Returns the peer's version and the message's kind.
fn decode_preface(message: &[u8]) -> Result<(Version, u8), HandshakeError> {
    let Some(preface) = message.first_chunk::<PREFACE_BYTES>().filter(|preface| preface[..8] == MAGIC) else {
        return Err(HandshakeError::NotOurs);
    };
    if message.len() > HANDSHAKE_BYTES_MAX {
        return Err(HandshakeError::Malformed);
    }
    let theirs = Version {
        major: u16::from_le_bytes([preface[8], preface[9]]),
        minor: u16::from_le_bytes([preface[10], preface[11]]),
    };
    if theirs.major != VERSION.major {
        return Err(HandshakeError::VersionMismatch { ours: VERSION, theirs });
    }
    if preface[13..] != [0, 0, 0] {
        return Err(HandshakeError::Malformed);
    }
    Ok((theirs, preface[12]))
}

fn channel() -> Vec<u8> {
    cpace::lv_cat(CHANNEL)
}

/// Derives 32 bytes for one purpose: BLAKE3's key derivation over parts of fixed lengths.
pub(crate) fn derive(context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    let derived = Zeroizing::new(*hasher.finalize().as_bytes());
    hasher.zeroize();
    derived
}

fn noise_error(error: snow::Error) -> HandshakeError {
    match error {
        snow::Error::Decrypt => HandshakeError::WrongKey,
        snow::Error::Dh => HandshakeError::InvalidShare,
        // Lengths were checked before, and the types fix the order of calls.
        _ => HandshakeError::Malformed,
    }
}

/// Bodies of the fuzz targets, which also run as tests over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
