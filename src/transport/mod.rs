//! Transports, which carry frames and chunks between two processes.
//!
//! A *lane* is one reliable connection of one transport. It deals in pool buffers and completions: the owner gives the
//! lane a [`Buffer`] to send or to receive into, and gets the same buffer back in a [`LaneEvent`]. A lost lane is not
//! repaired; the session replaces it by another lane with a new generation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// Medium that a lane runs over.
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
    /// Returns the name of the medium in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::RdmaHardware => "rdma",
            Self::RdmaSoftware => "rdma-software",
        }
    }
}

/// Maximum number of control frames that wait to be sent; one more takes the lane down. A new lane may be given all
/// answers that are on the way at once, and little besides.
pub const CONTROL_QUEUE_MAX: usize = 4 * rd_proto::session::ANSWERS_MAX;

/// An event that a lane reports to its owner. Events of a lane are reported in the order in which they happened.
#[derive(Debug)]
pub enum LaneEvent {
    /// A control frame has arrived, still sealed: 1 to [`CONTROL_BYTES_MAX`] bytes.
    Control(Vec<u8>),
    /// A chunk has arrived in a buffer given to [`Lane::post_receive`]: the header in [`Buffer::header`], the payload
    /// in the first `wire_bytes` of the buffer. Nothing but the lengths has been checked: header and payload are as
    /// the peer sent them.
    Chunk {
        /// The buffer, which belongs to the owner again.
        buffer: Buffer,
        /// Number of payload bytes that arrived.
        wire_bytes: u32,
        /// Whether the chunk is genuine, if the lane's [`Inline`] has opened it.
        opened: Option<bool>,
    },
    /// The transport has finished with a buffer given to [`Lane::send_chunk`]. This does not imply that the peer has
    /// the chunk.
    Sent(Buffer),
    /// A buffer given to [`Lane::send_chunk`] has not been sent, because the lane's [`Inline`] could not prepare it
    /// without waiting.
    Unsent(Buffer),
    /// The lane has ended, by loss or by [`Lane::close`]. This is the lane's last event: by now no thread, queue pair
    /// or device touches any of its buffers, and all buffers that it still held are in `buffers`.
    Down {
        /// Why the lane ended.
        reason: LaneError,
        /// Every buffer that had been posted or was being sent.
        buffers: Vec<Buffer>,
    },
}

/// Work that a lane's own threads do on chunks before they send and after they receive them, so that a chunk stays in
/// the cache of one processor.
pub trait Inline: Send + Sync {
    /// Called with each chunk just before it is sent. Returns false if preparing the chunk would have to wait; the
    /// chunk is then reported as [`LaneEvent::Unsent`].
    fn prepare(&self, buffer: &mut Buffer) -> bool;
    /// Called with each chunk that has arrived, before the chunk is reported. Returns whether the chunk is genuine.
    fn open(&self, buffer: &mut Buffer) -> bool;
}

/// Callback to which a lane reports. Called from the lane's own threads; must not block.
pub type Report = Arc<dyn Fn(LaneEvent) + Send + Sync>;

/// Why a lane ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Closed by its owner.
    #[error("closed by this end")]
    Closed,
    /// Closed by the peer.
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
    #[error("framing error: {0}")]
    Framing(&'static str),
    /// The RDMA device failed or was removed.
    #[error("RDMA device {0} is gone")]
    DeviceGone(String),
    /// A work completion with an error.
    #[error("RDMA completion: {0}")]
    Completion(String),
}

/// A lane, as seen by its owner.
///
/// All calls return at once. No call reports a failure of the lane: a lane that fails reports [`LaneEvent::Down`].
/// Buffers given to the lane after that come back in that event or, if it has been reported already, from the call.
pub trait Lane: Send {
    /// Returns the medium, for policy and reports.
    fn medium(&self) -> Medium;

    /// Describes the lane for the user: addresses and device, on one line.
    fn describe(&self) -> String;

    /// Queues a control frame, at most [`CONTROL_BYTES_MAX`] bytes, already sealed. Control frames arrive whole and in
    /// order; they have no order relative to chunks. A lane holds at least [`CONTROL_QUEUE_MAX`] of them. If the peer
    /// takes none for so long that this overflows, the lane goes down.
    fn send_control(&mut self, sealed: &[u8]);

    /// Whether a control frame has not been sent yet. It may wait behind a chunk.
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

    /// Calls [`Buffer::give_back_if_idle`] on those of the posted buffers that have these numbers.
    fn give_back_idle(&mut self, _buffers: &Range<u32>) {}

    /// Has the lane's own threads work on chunks, from the next chunk on.
    /// Returns false if the lane has no threads for this.
    fn work_inline(&mut self, _inline: Arc<dyn Inline>) -> bool {
        false
    }

    /// Ends the lane. Control frames queued before are still sent if that takes at most some milliseconds. `Down` is
    /// reported within 1 s, from a thread of the lane. Calling this again does nothing.
    fn close(&mut self);

    /// Returns when the peer was last heard: a frame, a chunk, a completion that the peer caused, or enough bytes of a
    /// chunk that is arriving.
    fn last_heard(&self) -> Instant;

    /// Returns the state of the lane, if the system or the adapter measures it.
    fn state(&self) -> Option<LaneState> {
        None
    }

    /// Returns the addresses of this end and of the other. Lanes with the same addresses go the same way.
    fn way(&self) -> Option<[IpAddr; 2]> {
        None
    }
}

impl std::fmt::Debug for dyn Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

/// Returns the address as a person writes it: an IPv4 address that arrived on an IPv6 socket is IPv4 again.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, |v4| SocketAddr::new(IpAddr::V4(v4), address.port())),
        IpAddr::V4(_) => address,
    }
}

/// Whether an address of a host may be one by which other hosts reach it: not a loopback or link-local address.
pub fn leads_elsewhere(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_of_link && !address.is_loopback()
}

/// Returns the speed of an interface's link in Mb/s; 0 if unknown.
/// Virtual interfaces have no speed, or a meaningless one.
pub fn rate_mbps(interface: &str) -> u32 {
    let path = std::path::Path::new("/sys/class/net").join(interface).join("speed");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse::<i64>().ok().and_then(|rate| u32::try_from(rate).ok()).unwrap_or(0)
}

/// Whether an interface leads to guests or containers on the same host. Addresses of such interfaces are the same on
/// every host.
pub fn is_inner(interface: &str) -> bool {
    const INNER: [&str; 9] = ["docker", "virbr", "br-", "cni", "podman", "lxc", "flannel", "cali", "vnet"];
    INNER.iter().any(|prefix| interface.starts_with(prefix))
}

/// Whether the leading `bits` of two addresses are equal. Addresses of different families never match.
pub fn same_subnet(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    subnet(one, bits) == subnet(other, bits)
}

/// Returns the address of the subnet: the address without its host part.
pub fn subnet(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits.into())).unwrap_or(0);
            Ipv4Addr::from(u32::from(v4) & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits.into())).unwrap_or(0);
            Ipv6Addr::from(u128::from(v6) & mask).into()
        }
    }
}

const _: () = assert!(CONTROL_BYTES_MAX >= 4096, "an acknowledgement's bitmap must fit");
