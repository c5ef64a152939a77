//! Connects through a given interface.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Connects to `peer` from the address `local` through its interface, regardless of the routes.
///
/// # Errors
///
/// The system's error; a timeout after `within`, which must not be 0.
pub fn connect_from(interface: &str, local: IpAddr, peer: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None)?;
    // Since Linux 5.7 every user may bind to a device. On older kernels the routes decide, which is
    // right if the networks differ.
    let _ = socket.bind_device(Some(interface.as_bytes()));
    socket.bind(&SocketAddr::new(local, 0).into())?;
    socket.connect_timeout(&peer.into(), within)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_interface_that_does_not_lead_there_is_not_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("bound");
        let within = Duration::from_secs(5);
        let connected = connect_from("lo", "127.0.0.1".parse().expect("one"), peer, within).expect("somebody listens");
        assert_eq!(connected.peer_addr().expect("connected"), peer);
        let elsewhere = connect_from("lo", "192.0.2.1".parse().expect("one"), peer, within);
        let errno = elsewhere.err().and_then(|error| Errno::from_io_error(&error));
        assert_eq!(errno, Some(Errno::ADDRNOTAVAIL));
    }
}
