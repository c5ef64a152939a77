//! Transports: what carries frames and chunks between two processes.
//!
//! A *lane* is one reliable connection of one transport. It deals in pool buffers and completions: the owner hands it
//! a [`Buffer`] to send or to receive into, and gets the same buffer back in a [`LaneEvent`]. A lane that is lost is
//! not repaired; the session replaces it by another with a new generation.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use minicbor::{Decode, Encode};
use rd_proto::frame::CONTROL_BYTES_MAX;
use rd_proto::session::LaneState;

pub mod bundle;
pub mod pool;
pub mod rdma;
pub mod relay;
pub mod spool;
pub mod tcp;
#[cfg(test)]
pub(crate) mod tests;

pub use pool::{Buffer, Pool};

/// Which medium a lane runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Medium {
    /// A TCP socket.
    #[n(0)]
    Tcp,
    /// A pair of RC queue pairs on a hardware adapter.
    #[n(1)]
    RdmaHardware,
    /// A pair of RC queue pairs on a software device (rxe, siw).
    #[n(2)]
    RdmaSoftware,
}

impl Medium {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::RdmaHardware => "rdma",
            Self::RdmaSoftware => "rdma-software",
        }
    }
}

/// Control frames that wait to be sent; one more takes the lane down. A new lane may be given at once all answers
/// that are on the way, and little beside.
pub const CONTROL_QUEUE_MAX: usize = 4 * rd_proto::session::ANSWERS_MAX;

/// What a lane reports to its owner, in the order in which it happened on that lane.
#[derive(Debug)]
pub enum LaneEvent {
    /// A control frame has arrived, still sealed: 1 to [`CONTROL_BYTES_MAX`] bytes.
    Control(Vec<u8>),
    /// A chunk has arrived in a buffer given to [`Lane::post_receive`]: the header in [`Buffer::header`], the payload
    /// in the first `wire_bytes` of the buffer. Nothing but the lengths has been checked: header and payload are as
    /// the peer sent them.
    Chunk {
        /// The buffer, now the owner's again.
        buffer: Buffer,
        /// Payload bytes that arrived.
        wire_bytes: u32,
        /// Whether it is genuine, where the lane's [`Inline`] has opened it.
        opened: Option<bool>,
    },
    /// The transport is done with a buffer given to [`Lane::send_chunk`]. That the peer has it is not implied.
    Sent(Buffer),
    /// A buffer given to [`Lane::send_chunk`] has not been sent, since its [`Inline`] could not prepare it without waiting.
    Unsent(Buffer),
    /// The lane has ended, by loss or by [`Lane::close`]. The last event of a lane: by now no thread, queue pair or
    /// device touches any of its buffers, and all that it still held are in `buffers`.
    Down {
        /// Why.
        reason: LaneError,
        /// Every buffer that had been posted or was being sent.
        buffers: Vec<Buffer>,
    },
}

/// What a lane's own threads do with chunks before they send and after they receive them, so that a chunk stays in one
/// processor's cache.
pub trait Inline: Send + Sync {
    /// Called with each chunk just before it is sent. False if it would have to wait: the chunk is reported as
    /// [`LaneEvent::Unsent`].
    fn prepare(&self, buffer: &mut Buffer) -> bool;
    /// Called with each chunk that has arrived, before that is reported. Whether it is genuine.
    fn open(&self, buffer: &mut Buffer) -> bool;
}

/// Where a lane reports. Called from the lane's own threads; must not block.
pub type Report = Arc<dyn Fn(LaneEvent) + Send + Sync>;

/// Why a lane ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Closed by its owner.
    #[error("closed here")]
    Closed,
    /// The peer closed it.
    #[error("closed by the peer")]
    PeerClosed,
    /// The operating system or the device reported an error.
    #[error("{what}: {error}")]
    Os {
        /// The call or completion that failed.
        what: &'static str,
        /// Its error.
        error: rustix::io::Errno,
    },
    /// The peer broke the framing: a length out of bounds, or a chunk without a receive posted for it.
    #[error("bad framing: {0}")]
    Framing(&'static str),
    /// The RDMA device failed or was removed.
    #[error("RDMA device {0} is gone")]
    DeviceGone(String),
    /// A work completion with an error.
    #[error("RDMA completion: {0}")]
    Completion(String),
}

/// One lane, seen from its owner.
///
/// All calls return at once. None of them answers a failure: a lane that fails reports [`LaneEvent::Down`], and
/// whatever is given to it after that comes back in that event or, if that has been reported already, from the call.
pub trait Lane: Send {
    /// The medium, for policy and reports.
    fn medium(&self) -> Medium;

    /// What a person would call this lane: addresses and device, on one line.
    fn describe(&self) -> String;

    /// Queues a control frame, at most [`CONTROL_BYTES_MAX`] bytes, already sealed. Control frames arrive whole and in
    /// order; they have no order relative to chunks. A lane holds at least [`CONTROL_QUEUE_MAX`] of them; when a peer
    /// takes none for so long that this overflows, the lane goes down.
    fn send_control(&mut self, sealed: &[u8]);

    /// Whether a control frame has still to be sent: it may wait behind a chunk.
    fn has_control_waiting(&self) -> bool {
        false
    }

    /// Sends the chunk in `buffer`: its encoded header as it stands in [`Buffer::header`], and the first `wire_bytes`
    /// of the payload. The owner must hold a credit of this lane: a receive that the peer has posted.
    ///
    /// # Errors
    ///
    /// Gives the buffer back if the lane is down and has already reported so.
    fn send_chunk(&mut self, buffer: Buffer, wire_bytes: u32) -> Result<(), Buffer>;

    /// Gives a buffer for one incoming chunk to land in. When this returns, the credit may be advertised to the peer.
    ///
    /// # Errors
    ///
    /// Gives the buffer back if the lane is down and has already reported so.
    fn post_receive(&mut self, buffer: Buffer) -> Result<(), Buffer>;

    /// Asks those of the posted buffers with these numbers whether they are idle: see [`Buffer::give_back_if_idle`].
    fn give_back_idle(&mut self, _buffers: &Range<u32>) {}

    /// Has the lane's own threads work on chunks, from the next one on; false if it has none to do so.
    fn work_inline(&mut self, _inline: Arc<dyn Inline>) -> bool {
        false
    }

    /// Ends the lane. Control frames queued before are still sent if that takes at most some milliseconds; `Down` is
    /// reported within 1 s, from a lane thread. Calling it again does nothing.
    fn close(&mut self);

    /// When the peer was last heard: a frame, a chunk, a completion that it caused, or enough bytes of a chunk that
    /// is on its way.
    fn last_heard(&self) -> Instant;

    /// How it does, where the system or the adapter measures it.
    fn state(&self) -> Option<LaneState> {
        None
    }

    /// The addresses of this end and of the other. Lanes that have the same go the same way.
    fn way(&self) -> Option<[IpAddr; 2]> {
        None
    }
}

impl std::fmt::Debug for dyn Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

/// The address as a person writes it: an IPv4 address that arrived on an IPv6 socket is IPv4 again.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, |v4| SocketAddr::new(IpAddr::V4(v4), address.port())),
        IpAddr::V4(_) => address,
    }
}

/// Whether an address of a host can be one that others reach it by: not if it is its own, or a link's.
pub fn leads_elsewhere(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_of_link && !address.is_loopback()
}

/// The link's speed in Mb/s. Virtual interfaces have none, or one that says nothing.
pub fn rate_mbps(interface: &str) -> u32 {
    let path = std::path::Path::new("/sys/class/net").join(interface).join("speed");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse::<i64>().ok().and_then(|rate| u32::try_from(rate).ok()).unwrap_or(0)
}

/// Interfaces to guests and containers on the same host, whose addresses are alike everywhere.
pub fn is_inner(interface: &str) -> bool {
    const INNER: [&str; 9] = ["docker", "virbr", "br-", "cni", "podman", "lxc", "flannel", "cali", "vnet"];
    INNER.iter().any(|prefix| interface.starts_with(prefix))
}

/// Whether the leading `bits` of two addresses agree. Addresses of two families never do.
pub fn same_subnet(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (u32::from(one) ^ u32::from(other)).leading_zeros() >= u32::from(bits.min(32))
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (u128::from(one) ^ u128::from(other)).leading_zeros() >= u32::from(bits.min(128))
        }
        _ => false,
    }
}

const _: () = assert!(CONTROL_BYTES_MAX >= 4096, "an acknowledgement's bitmap must fit");
