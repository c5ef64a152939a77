//! Authentication of a lane, before anything else crosses it.
//!
//! Three messages, each at most [`HANDSHAKE_BYTES_MAX`] bytes, each arriving whole:
//!
//! ```text
//! connector                                                     listener
//!     hello: version, lane, CPace share or nonce       ────▶
//!                                                      ◀────    version, CPace share; Noise message 1 (psk, e)
//!     Noise message 2 (e, ee)                          ────▶
//! ```
//!
//! The first lane of a session runs CPace with KEY, and its result is the pre-shared key of `NNpsk0`; further and
//! replacement lanes derive that key from the session's secret and the lane's name. The *listener* is the Noise
//! initiator, so it proves the key first, and a connector with another key knows it as such. The Noise prologue holds every
//! clear byte of both ends, so nothing in them can be changed unnoticed. `docs/PROTOCOL.md` gives every byte.
//!
//! This module does no I/O. A transport without message boundaries puts each message's length in front, as
//! [`LENGTH_PREFIX_BYTES`] bytes, little-endian, and refuses one over [`HANDSHAKE_BYTES_MAX`] unread.
//!
//! # Guesses
//!
//! Since the listener proves the key first, its answer lets the peer test one key, whether or not a third message follows.
//! So the caller counts a guess against a key that [`Key::is_generated`] does not vouch for when it *sends* an answer to a
//! first lane, and takes it back when [`Listening::finish`] succeeds.
//!
//! # Replays
//!
//! A recorded hello gets a fresh answer, for which the recorded third message is worthless. The caller accepts each
//! ([`SessionId`], [`LaneId`]) once, and marks it used only when [`Listening::finish`] has succeeded: a hello alone proves
//! nothing.
//!
//! # Randomness
//!
//! It is passed in: any [`CryptoRng`], used while the call lasts.

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

pub use self::channel::{CONTROL_PLAIN_BYTES_MAX, ControlChannel, ControlError, ControlOpener, ControlSealer};
pub use self::key::{EmptyKey, GENERATED_KEY_CHARS, Key};

/// The largest handshake message that is accepted, in bytes. Ours are smaller; the room is for other versions' hellos.
pub const HANDSHAKE_BYTES_MAX: usize = 512;

/// Bytes of the little-endian length in front of each message, on a transport without message boundaries.
pub const LENGTH_PREFIX_BYTES: usize = 2;

/// Bytes of a connector's hello.
pub const HELLO_BYTES: usize = PREFACE_BYTES + 56;

/// Bytes of a listener's answer to a first lane.
pub const FIRST_REPLY_BYTES: usize = PREFACE_BYTES + cpace::SHARE_BYTES + noise::MESSAGE_BYTES;

/// Bytes of a listener's answer to a further or replacement lane.
pub const JOIN_REPLY_BYTES: usize = PREFACE_BYTES + noise::MESSAGE_BYTES;

/// Bytes of the connector's second message.
pub const CONFIRM_BYTES: usize = noise::MESSAGE_BYTES;

/// Bytes with which hello and answer begin, in every version: magic, version, kind.
pub const PREFACE_BYTES: usize = 16;

/// First bytes of hello and answer, in every version.
pub const MAGIC: [u8; 8] = *b"rdmapipe";

/// The version that this program speaks.
pub const VERSION: Version = Version { major: 2, minor: 0 };

const KIND_FIRST: u8 = 1;
const KIND_JOIN: u8 = 2;
const KIND_FIRST_REPLY: u8 = 3;
const KIND_JOIN_REPLY: u8 = 4;
const KIND_VERSION: u8 = 5;

/// Names the two ends for CPace, initiator first (section 10.1.1 of the draft): an answer never passes for a hello.
const CHANNEL: &[&[u8]] = &[b"rdma-pipe connector", b"rdma-pipe listener"];

const PROLOGUE: &[u8] = b"rdma-pipe lane, listener initiates";
const FIRST_PSK_CONTEXT: &str = "rdma-pipe v1 first lane psk";
const JOIN_PSK_CONTEXT: &str = "rdma-pipe v1 join lane psk";
const SESSION_CONTEXT: &str = "rdma-pipe v1 session secret";
const TOKEN_CONTEXT: &str = "rdma-pipe v1 lane token";

/// A protocol version. Equal majors understand each other; the smaller minor says what both know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes when old peers cannot follow.
    pub major: u16,
    /// Changes when something is added that an old peer may ignore.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Name of a session, drawn at random by the connector of its first lane. Not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A new session's name.
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
    /// Which of the session's lanes, from 0.
    #[n(0)]
    pub index: u16,
    /// How often the lane was replaced.
    #[n(1)]
    pub generation: u32,
}

impl LaneId {
    /// The first lane, which makes the session. It cannot be joined.
    pub const FIRST: Self = Self { index: 0, generation: 0 };
}

/// What both ends of a session know and nobody else; every later key is derived from it. Wiped when dropped.
#[derive(Clone)]
pub struct SessionSecret(Zeroizing<[u8; 32]>);

impl SessionSecret {
    /// 32 bytes for one purpose: BLAKE3's key derivation over the secret and `parts`, which have fixed lengths.
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
    /// The peer speaks some other protocol.
    #[error("the peer does not speak rdma-pipe's protocol")]
    NotOurs,
    /// The peer speaks another major version. Not authenticated: nothing can be before versions agree.
    #[error("protocol version {theirs} at the peer, {ours} here")]
    VersionMismatch {
        /// What this program speaks.
        ours: Version,
        /// What the peer says it speaks.
        theirs: Version,
    },
    /// The message has another length, kind or reserved field than this version defines.
    #[error("malformed handshake message")]
    Malformed,
    /// A public share that no honest peer sends.
    #[error("invalid public share")]
    InvalidShare,
    /// The peer holds another key or session secret, or somebody changed bytes on the way: these cannot be told apart.
    #[error("the keys differ")]
    WrongKey,
    /// A lane for a session that the listener does not know.
    #[error("unknown session")]
    UnknownSession,
}

/// A hello that gets no lane.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: HandshakeError,
    /// What to send before closing: only ever the listener's version, to a peer of another major. Everything else is
    /// refused without a word.
    pub answer: Option<Vec<u8>>,
}

impl From<HandshakeError> for Refused {
    fn from(error: HandshakeError) -> Self {
        Self { error, answer: None }
    }
}

/// A connector that has made its hello and waits for the answer.
pub struct Connecting {
    hello: Hello,
    how: ConnectHow,
    ephemeral: noise::Ephemeral,
}

enum ConnectHow {
    First(cpace::Run),
    Join(SessionSecret),
}

/// A listener that has made its answer and waits for the connector's confirmation: below 1 KiB with all that it holds.
///
/// It keeps what the Noise state is made from rather than the state, which is larger and which `snow` does not wipe.
pub struct Listening {
    hello: Hello,
    peer: Version,
    proof: Proof,
    ephemeral: noise::Ephemeral,
    reply_clear: Vec<u8>,
}

/// What the peer is to prove.
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
    /// The session.
    pub session: SessionId,
    /// The lane.
    pub lane: LaneId,
    /// What the peer speaks; its major is ours.
    pub peer: Version,
    /// The session's secret: new with the first lane, the same with every other.
    pub secret: SessionSecret,
    /// Seals and opens this lane's control frames.
    pub control: ControlChannel,
    /// Names this lane in this generation, known to both ends alone: it binds a payload queue pair to the lane. It opens
    /// nothing, so it may be sent in clear.
    pub token: [u8; 16],
}

/// Makes the hello of a session's first lane, keyed by what the users know.
pub fn connect_first(key: &Key, session: SessionId, rng: &mut impl CryptoRng) -> (Connecting, Vec<u8>) {
    let run = cpace::Run::start(cpace::Role::Initiator, key.as_bytes(), &channel(), &session.0, rng);
    let hello = Hello::new(LaneKind::First, session, LaneId::FIRST, run.share());
    connecting(hello, ConnectHow::First(run), rng)
}

/// Makes the hello of a further or replacement lane. Each `lane` of a session is offered once; after a failure, with its
/// generation raised.
pub fn connect_join(
    secret: &SessionSecret,
    session: SessionId,
    lane: LaneId,
    rng: &mut impl CryptoRng,
) -> (Connecting, Vec<u8>) {
    let mut fresh = [0; 32];
    rng.fill_bytes(&mut fresh);
    let hello = Hello::new(LaneKind::Join, session, lane, &fresh);
    connecting(hello, ConnectHow::Join(secret.clone()), rng)
}

fn connecting(hello: Hello, how: ConnectHow, rng: &mut impl CryptoRng) -> (Connecting, Vec<u8>) {
    let message = hello.bytes.to_vec();
    (Connecting { hello, how, ephemeral: noise::ephemeral(rng) }, message)
}

impl Connecting {
    /// Checks the listener's answer; returns the lane and the message that confirms it.
    ///
    /// # Errors
    ///
    /// [`HandshakeError::WrongKey`] if the listener could not prove our key;
    /// [`HandshakeError::VersionMismatch`] if it answered with another major version; [`HandshakeError::NotOurs`],
    /// [`HandshakeError::Malformed`], [`HandshakeError::InvalidShare`] for what no listener of this version sends.
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

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("session", &self.hello.session).finish_non_exhaustive()
    }
}

/// Checks a connector's hello; returns the waiting state and the answer to send.
///
/// `lookup` gives the secret of a session that the hello wants to join; it is not called for a first lane. Costs two
/// scalar multiplications for a first lane and one for another, and no memory beyond what is returned.
///
/// # Errors
///
/// [`Refused`], with an answer for a peer of another major version only.
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
    let proof = match hello.kind {
        LaneKind::First => {
            reply.extend_from_slice(&preface(KIND_FIRST_REPLY));
            let run = cpace::Run::start(cpace::Role::Responder, key.as_bytes(), &channel(), &hello.session.0, rng);
            let share = *run.share();
            let isk = hello.finish_cpace(run, hello.fresh(), &reply)?;
            reply.extend_from_slice(&share);
            Proof::First(isk)
        }
        LaneKind::Join => {
            reply.extend_from_slice(&preface(KIND_JOIN_REPLY));
            Proof::Join(lookup(hello.session).ok_or(HandshakeError::UnknownSession)?)
        }
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
    /// [`HandshakeError::InvalidShare`] for what no connector of this version sends.
    pub fn finish(self, confirm: &[u8]) -> Result<Established, HandshakeError> {
        if confirm.len() != CONFIRM_BYTES {
            return Err(HandshakeError::Malformed);
        }
        let (mut noise, _) = self.noise()?;
        noise.read_message(confirm, &mut []).map_err(noise_error)?;
        Ok(established(&self.hello, self.peer, self.proof, noise))
    }

    /// The Noise state after the first message, and that message: the same each time.
    fn noise(&self) -> Result<(HandshakeState, [u8; noise::MESSAGE_BYTES]), HandshakeError> {
        let psk = self.proof.psk(&self.hello);
        let prologue = self.hello.prologue(&self.reply_clear);
        let mut noise = noise::start(noise::Role::Initiator, &psk, &prologue, self.ephemeral.clone());
        let mut message = [0; noise::MESSAGE_BYTES];
        noise.write_message(&[], &mut message).map_err(noise_error)?;
        Ok((noise, message))
    }

    /// The session that the peer names, not authenticated yet.
    pub fn session(&self) -> SessionId {
        self.hello.session
    }

    /// The lane that the peer names, not authenticated yet.
    pub fn lane(&self) -> LaneId {
        self.hello.lane
    }

    /// Whether this is the first lane of a new session, so that KEY is what the peer may be guessing.
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneKind {
    First,
    Join,
}

/// A connector's hello, as it crosses the wire and decoded.
struct Hello {
    bytes: [u8; HELLO_BYTES],
    kind: LaneKind,
    session: SessionId,
    lane: LaneId,
}

/// Where a hello's fresh bytes begin: the CPace share, or random ones, so that an old answer to the same lane is worthless.
/// What stands before is CPace's associated data of the connector.
const FRESH_AT: usize = HELLO_BYTES - 32;

impl Hello {
    fn new(kind: LaneKind, session: SessionId, lane: LaneId, fresh: &[u8; 32]) -> Self {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..PREFACE_BYTES].copy_from_slice(&preface(match kind {
            LaneKind::First => KIND_FIRST,
            LaneKind::Join => KIND_JOIN,
        }));
        bytes[16..32].copy_from_slice(&session.0);
        bytes[32..34].copy_from_slice(&lane.index.to_le_bytes());
        bytes[36..40].copy_from_slice(&lane.generation.to_le_bytes());
        bytes[FRESH_AT..].copy_from_slice(fresh);
        Self { bytes, kind, session, lane }
    }

    /// Checks what follows the preface.
    fn decode(kind: u8, message: &[u8]) -> Result<Self, HandshakeError> {
        let bytes: [u8; HELLO_BYTES] = message.try_into().map_err(|_| HandshakeError::Malformed)?;
        let lane = LaneId {
            index: u16::from_le_bytes([bytes[32], bytes[33]]),
            generation: u32::from_le_bytes([bytes[36], bytes[37], bytes[38], bytes[39]]),
        };
        let kind = match kind {
            KIND_FIRST if lane == LaneId::FIRST => LaneKind::First,
            KIND_JOIN if lane != LaneId::FIRST => LaneKind::Join,
            _ => return Err(HandshakeError::Malformed),
        };
        if bytes[34..36] != [0, 0] {
            return Err(HandshakeError::Malformed);
        }
        let session = SessionId(bytes[16..32].try_into().expect("16 bytes"));
        Ok(Self { bytes, kind, session, lane })
    }

    fn fresh(&self) -> &[u8; 32] {
        self.bytes[FRESH_AT..].try_into().expect("32 bytes")
    }

    /// Both clear messages but for the shares are CPace's associated data, so a change of either changes the result.
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

/// Reads what every version's hello and answer begin with; returns the peer's version and the message's kind.
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

/// 32 bytes for one purpose: BLAKE3's key derivation over parts of fixed lengths.
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
        // Lengths were checked before, and the order of calls is fixed by the types.
        _ => HandshakeError::Malformed,
    }
}

/// Bodies of the fuzz targets. They also run as tests over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
