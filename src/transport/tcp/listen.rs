//! Listens on a port, or on one of a range.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Maximum number of connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens on `port` at all addresses, IPv4 and IPv6. Port 0 stands for the first free port of `ports`, or for a port
/// that the system chooses. Accepting does not block.
///
/// # Errors
///
/// The system's error; EADDRINUSE if no port of `ports` is free.
pub fn listen(port: u16, ports: Option<RangeInclusive<u16>>) -> std::io::Result<TcpListener> {
    let mut bound = Err(Errno::ADDRINUSE);
    for port in ports.filter(|_| port == 0).unwrap_or(port..=port) {
        bound = bind(port);
        // Ports below 1024 may be reserved for root.
        if !matches!(bound, Err(Errno::ADDRINUSE | Errno::ACCESS | Errno::PERM)) {
            break;
        }
    }
    let socket = bound?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds one socket for both address families, or for IPv4 alone if that is not possible.
fn bind(port: u16) -> Result<TcpListener, Errno> {
    let listen = |family, address: SocketAddr| -> Result<TcpListener, Errno> {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            // Whatever net.ipv6.bindv6only says.
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    match listen(AddressFamily::INET6, (Ipv6Addr::UNSPECIFIED, port).into()) {
        bound @ (Ok(_) | Err(Errno::ADDRINUSE | Errno::ACCESS)) => bound,
        Err(_) => listen(AddressFamily::INET, (Ipv4Addr::UNSPECIFIED, port).into()),
    }
}
