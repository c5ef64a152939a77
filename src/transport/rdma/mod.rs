//! The RDMA transport: reliable queue pairs over rdma_cm, on InfiniBand, RoCE and iWARP.
//!
//! A lane is two queue pairs. The *control* queue pair carries control frames and has receives of its own; the
//! *payload* queue pair carries chunks, each one SEND of two segments (payload, header slot), received into the same
//! two, so that a payload lands page-aligned where its owner wants it. Only SEND and RECV are used and memory is
//! registered for local writes, so that no key to it ever leaves the process.
//!
//! No message ever finds no receive posted (which would cost a retry on RoCE and the connection on iWARP): payload is
//! credited by the session above, control messages by `control`, which counts receives below the lane.
//!
//! # Files
//!
//! * `devices`: the process's open devices, what watches them, and the pool registered on them.
//! * `pairs`: which of our addresses to try with which of the peer's.
//! * `path`: what an endpoint's packets can be.
//! * `cm`: identifiers, their events, and completion queues. `request`: what travels with a connect request. `control`: the control queue pair.
//! * `connection`, `listener`: bringing up a lane, from either side. `lane`: the lane.
//! * `bundle`: many queue pairs on one completion queue, for measurements.
//!
//! # When a device goes
//!
//! The kernel does not finish removing a device while anyone has it open. So one thread watches every device that this
//! process has opened. When one goes it calls all subscribers: they drop what they have on it, and once
//! nothing is left the device itself is closed. When it is back, [`endpoints`] finds it again.

pub mod bundle;
mod cm;
mod connection;
mod control;
mod devices;
mod lane;
mod listener;
mod pairs;
mod path;
mod request;

pub use connection::{ConnectError, Connection, connect};
pub use control::CONNECTION_LOCKED_BYTES;
pub use devices::{Adapters, Endpoint, RegisterError, Unavailable, endpoints};
pub use listener::{Listener, listen};
pub use pairs::pairs;
pub use path::{PortMtu, port_mtu};
pub use rd_verbs::{InterfaceAddress, interface_addresses};
pub use request::LaneRequest;

/// Bodies of the fuzz targets. They also run as tests over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    pub use super::control::fuzz::control_messages;
    pub use super::request::fuzz::request;

    /// The corpus that is checked in: target, name and bytes of each seed.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        [super::control::fuzz::seeds(), super::request::fuzz::seeds()].concat()
    }
}

use std::time::{Duration, Instant};

use rd_verbs::Error as VerbsError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::LaneError;

/// Something that a thread sleeping in `poll` can be woken by.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    fn new() -> Result<Self, Errno> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn wake(&self) {
        // It fails only when its counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `descriptors` is readable or `timeout` has passed. Returns which are readable.
fn sleep_on<const N: usize>(descriptors: [BorrowedFd<'_>; N], timeout: Duration) -> [bool; N] {
    let mut list = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    sleep(&mut list, timeout);
    list.map(|entry| !entry.revents().is_empty())
}

/// Sleeps until something happens on `list` or `timeout` has passed.
fn sleep(list: &mut [PollFd<'_>], timeout: Duration) {
    let timeout =
        Timespec { tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: timeout.subsec_nanos().into() };
    // An error (EINTR) is a wake-up for nothing, which all callers allow.
    let _ = poll(list, Some(&timeout));
}

/// What is left until `deadline`.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// A failed verbs call as the end of a lane.
impl From<VerbsError> for LaneError {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Call { call, errno } => Self::Os { what: call, error: Errno::from_raw_os_error(errno) },
            VerbsError::Load(_) | VerbsError::OtherDevice => Self::Os { what: "RDMA device", error: Errno::NODEV },
        }
    }
}
