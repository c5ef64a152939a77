//! What the system has measured of a connection.

#![allow(unsafe_code, reason = "TCP_INFO, which no crate has")]

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The smoothed round trip of a connection (tcpi_rtt; tcp(7)); `None` where the system does not tell.
pub(super) fn round_trip(socket: &TcpStream) -> Option<Duration> {
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the call writes at most `length` bytes of
    // `info`.
    let failed = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    (failed == 0 && info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_near() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let round_trip = round_trip(&near).expect("measured with the handshake");
        assert!(round_trip < Duration::from_secs(1), "{round_trip:?}");
    }
}
