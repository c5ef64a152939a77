//! Connecting by one interface of several.

#![allow(unsafe_code, reason = "SO_BINDTODEVICE, which no crate has")]

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Connects to `peer` from the address `local` by its interface, whatever the routes say.
///
/// # Errors
///
/// What the system answered; ETIMEDOUT after `within`.
pub fn connect_from(interface: &str, local: IpAddr, peer: SocketAddr, within: Duration) -> Result<TcpStream, Errno> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Since Linux 5.7 everybody may; before, the routes decide, which they do right for networks that differ.
    bind_to_interface(&socket, interface);
    rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    match rustix::net::connect(&socket, &peer) {
        Err(Errno::INPROGRESS) => {
            let within = Timespec::try_from(within).map_err(|_| Errno::INVAL)?;
            if poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)], Some(&within))? == 0 {
                return Err(Errno::TIMEDOUT);
            }
            sockopt::socket_error(&socket)??;
        }
        other => other?,
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(TcpStream::from(socket))
}

fn bind_to_interface(socket: &OwnedFd, interface: &str) {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the option's value is the name's bytes, which
    // the call only reads.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_does_not_lead_there_is_not_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("bound");
        let within = Duration::from_secs(5);
        let connected = connect_from("lo", "127.0.0.1".parse().expect("one"), peer, within).expect("somebody listens");
        assert_eq!(connected.peer_addr().expect("connected"), peer);
        let elsewhere = connect_from("lo", "192.0.2.1".parse().expect("one"), peer, within);
        assert_eq!(elsewhere.err(), Some(Errno::ADDRNOTAVAIL));
    }
}
