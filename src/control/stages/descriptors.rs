//! Descriptors for another process, and messages that carry them (unix(7), `SCM_RIGHTS`).

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Maximum number of descriptors in one message.
const MAX: usize = 4;

/// Opens /dev/null for reading and writing.
///
/// # Errors
///
/// The system's error.
pub fn null() -> std::io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from)
}

/// Sends bytes, at least one, together with at most [`MAX`] descriptors.
///
/// # Errors
///
/// The system's error; `E2BIG` if there are too many descriptors, `EMSGSIZE` if there are too many bytes.
pub fn send(socket: impl AsFd, bytes: &[u8], given: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(given)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message. Returns the number of bytes and the descriptors; nothing if the other end was closed without
/// sending.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let count = loop {
        let mut parts = [IoSliceMut::new(bytes)];
        match recvmsg(socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return (0, Vec::new()),
            Ok(received) => break received.bytes,
        }
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    (count, rights.flatten().collect())
}
