//! RDMA verbs, loaded at run time.
//!
//! A thin, owning layer over libibverbs and librdmacm, in the names of the field. The libraries are loaded when first
//! needed: without them, or without a device, [`EventChannel::new`] says why and nothing else happens.
//!
//! Only what a connected pair of reliable queue pairs needs is here: SEND and RECV, memory with local write access, an
//! event channel and a completion channel that never block. No key to our memory ever leaves the process.
//!
//! # What keeps what alive
//!
//! librdmacm opens a device when the first identifier is bound to it, and frees it when it sees fit after the last one
//! has gone. So a [`Device`] is an identifier bound to one of its addresses, and everything made on that device holds
//! it: queue pair → protection domain, completion queue → completion channel → device. Within each structure the
//! fields stand in the order in which they must be dropped.

#![allow(unsafe_code, reason = "two C libraries are called")]

mod cm;
mod device;
mod ffi;
mod library;
mod memory;
mod queue;

pub use cm::{ConnectParameters, Event, EventChannel, EventKind, Id, IdKey};
pub use device::{AsyncEvent, Device, DeviceAttr, InterfaceAddress, PortAttr, interface_addresses};
pub use library::LoadError;
pub use memory::{MemoryRegion, MessageRegion, ProtectionDomain, Segment};
pub use queue::{CompletionChannel, CompletionQueue, Depths, QueuePair, WorkCompletion};

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no verbs in this process.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A library call failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// The function.
        call: &'static str,
        /// The errno it left, positive.
        errno: i32,
    },
    /// An identifier is bound to another device than its queue pair's memory.
    #[error("bound to another device")]
    OtherDevice,
}

impl Error {
    /// The errno of the failed call, if it was one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::Load(_) | Self::OtherDevice => None,
        }
    }

    /// The error of a call that has just failed and left its reason in `errno`.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::Call { call, errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }
}

/// The outcome of a call that answers 0, or -1 with `errno` set, or (as some of libibverbs do) the errno itself.
pub(crate) fn check(call: &'static str, answer: i32) -> Result<(), Error> {
    match answer {
        0 => Ok(()),
        errno if errno > 0 => Err(Error::Call { call, errno }),
        _ => Err(Error::last(call)),
    }
}

/// Makes reads of `fd` answer EAGAIN instead of blocking.
pub(crate) fn set_nonblocking(fd: i32) -> Result<(), Error> {
    // SAFETY: fcntl on a descriptor touches no memory of ours.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(Error::last("fcntl"));
    }
    Ok(())
}
