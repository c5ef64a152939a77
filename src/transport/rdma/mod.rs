//! The RDMA transport: reliable queue pairs over rdma_cm, on InfiniBand, RoCE and iWARP.
//!
//! A lane is two queue pairs. The *control* queue pair carries control frames and has receives of its own. The
//! *payload* queue pair carries chunks. Each chunk is one SEND of two segments (payload, header slot) and is received
//! into the same two, so that a payload lands page-aligned where its owner wants it. Only SEND and RECV are used, and
//! memory is registered for local writes only, so that no key to it ever leaves the process.
//!
//! Every message finds a posted receive; otherwise RoCE would need a retry, and iWARP would lose the connection. The
//! session above the lane credits payload. `control`, which counts receives below the lane, credits control messages.
//!
//! # Files
//!
//! * `devices`: the process's open devices, the thread that watches them, and the pool registered on them.
//! * `pairs`: which local addresses to try with which of the peer's addresses.
//! * `cm`: identifiers, their events, and completion queues. `request`: private data of a connect request.
//!   `control`: the control queue pair.
//! * `connection`, `listener`: bringing up a lane from the connecting and the accepting end. `lane`: the lane.
//! * `bundle`: many queue pairs on one completion queue, for measurements.
//!
//! # When a device goes
//!
//! The kernel does not finish removing a device while any process has it open. So one thread watches every device that
//! this process has opened. When a device goes, that thread calls all subscribers, which drop everything they have on
//! it. Once nothing is left, the device itself is closed. When the device is back, [`endpoints`] finds it again.

pub mod bundle;
mod cm;
mod connection;
mod control;
mod devices;
mod lane;
mod listener;
mod pairs;
mod request;

pub use connection::{ConnectError, Connection, connect};
pub use control::CONNECTION_LOCKED_BYTES;
pub use devices::{Adapters, Endpoint, RegisterError, Unavailable, endpoints};
pub use listener::{HALF_OPEN_MAX, Listener, listen};
pub use pairs::pairs;
pub use rd_verbs::{InterfaceAddress, LoadError, interface_addresses};
pub use request::LaneRequest;

/// Bodies of the fuzz targets. They also run as tests over the corpus.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    pub use super::control::fuzz::control_messages;
    pub use super::request::fuzz::request;

    /// The checked-in corpus: target, name and bytes of each seed.
    pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        [super::control::fuzz::seeds(), super::request::fuzz::seeds()].concat()
    }
}

use std::time::{Duration, Instant};

use rd_verbs::{Error as VerbsError, WorkCompletion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::LaneError;

/// An eventfd that wakes a thread sleeping in `poll`.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    fn new() -> Result<Self, Errno> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn wake(&self) {
        // Writing fails only if the counter is full, and then the thread is awake anyway.
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

/// Sleeps until one of `descriptors` is readable or `timeout` has passed. Returns which descriptors are readable.
fn sleep_on<const N: usize>(descriptors: [BorrowedFd<'_>; N], timeout: Duration) -> [bool; N] {
    let mut list = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    sleep(&mut list, timeout);
    list.map(|entry| !entry.revents().is_empty())
}

/// Sleeps until something happens on `list` or `timeout` has passed.
fn sleep(list: &mut [PollFd<'_>], timeout: Duration) {
    // An error (EINTR) is a spurious wake-up, which all callers allow.
    let _ = poll(list, Timespec::try_from(timeout).ok().as_ref());
}

/// Returns the time left until `deadline`.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Returns why a work request has not succeeded. A flushed one only says that the queue pair had ended before.
fn failure(completion: &WorkCompletion) -> LaneError {
    if completion.is_flushed() { LaneError::PeerClosed } else { LaneError::Completion(completion.reason()) }
}

/// Returns the error of this number, or EIO if a library or a peer gave a number that is none.
fn errno(number: i32) -> Errno {
    if (1..=4095).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// Converts a failed verbs call to the reason why a lane ended.
impl From<VerbsError> for LaneError {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Call { call, errno: number } => Self::Os { what: call, error: errno(number) },
            VerbsError::Load(_) | VerbsError::OtherDevice => Self::Os { what: "RDMA device", error: Errno::NODEV },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converting such a number directly would panic.
    #[test]
    fn numbers_that_are_no_errors_are_an_io_error() {
        assert_eq!([0, -5, 4096, i32::MIN, i32::MAX].map(errno), [Errno::IO; 5]);
        assert_eq!([1, 28, 110].map(errno), [Errno::PERM, Errno::NOSPC, Errno::TIMEDOUT]);
    }
}
