//! RDMA verbs, loaded at run time.
//!
//! A thin, owning layer over libibverbs and librdmacm, in the terms of the field. The libraries are loaded when first
//! needed. Without them, or without a device, [`EventChannel::new`] says why and nothing else happens.
//!
//! The crate has only what a connected pair of reliable queue pairs needs: SEND and RECV, memory with local write
//! access, an event channel and a completion channel that never block. No key to this process's memory ever leaves the
//! process.
//!
//! # Lifetimes
//!
//! librdmacm opens a device when the first identifier is bound to it, and frees the device at some time after the last
//! identifier has gone. So a [`Device`] holds an identifier bound to one of its addresses, and every object made on
//! that device holds the [`Device`]: queue pair → protection domain, completion queue → completion channel → device.
//! The fields of each structure are in the order in which they must be dropped.

#![allow(unsafe_code, reason = "two C libraries are called")]

mod cm;
mod device;
mod ffi;
mod library;
mod memory;
mod queue;

pub use cm::{ConnectParameters, Event, EventChannel, EventKind, Id, IdKey};
pub use device::{Device, DeviceAttr, InterfaceAddress, PortAttr, interface_addresses};
pub use library::LoadError;
pub use memory::{MemoryRegion, MessageRegion, ProtectionDomain, Segment};
pub use queue::{CompletionQueue, Depths, QueuePair, WorkCompletion};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Verbs are not available in this process.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A library call failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// Name of the function.
        call: &'static str,
        /// The errno of the call, positive.
        errno: i32,
    },
    /// An identifier is bound to another device than the memory of its queue pair.
    #[error("bound to another device")]
    OtherDevice,
}

impl Error {
    /// Returns the errno of the failed call, if a library call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::Load(_) | Self::OtherDevice => None,
        }
    }

    /// Returns the error of a call that has just failed and left its reason in `errno`.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::Call { call, errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }
}

/// Converts the result of a call that returns 0, or -1 with `errno` set, or (as some of libibverbs do) the errno
/// itself, which some providers negate. -1 with no errno set is EIO.
pub(crate) fn check(call: &'static str, answer: i32) -> Result<(), Error> {
    let errno = match answer {
        0 => return Ok(()),
        -1 => std::io::Error::last_os_error().raw_os_error().filter(|&errno| errno != 0).unwrap_or(libc::EIO),
        errno => errno.saturating_abs(),
    };
    Err(Error::Call { call, errno })
}

/// Makes reads of `fd` fail with EAGAIN instead of blocking.
pub(crate) fn set_nonblocking(fd: i32) -> Result<(), Error> {
    // SAFETY: fcntl on a descriptor touches no memory of this process.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(Error::last("fcntl"));
    }
    Ok(())
}
