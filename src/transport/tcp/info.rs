//! What the kernel has measured about a connection.

#![allow(unsafe_code, reason = "TCP_INFO, which only libc has")]

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rd_proto::session::LaneState;

/// Returns what the kernel tells of a connection (tcp(7)), and how many bytes of it.
fn info(socket: &TcpStream) -> Option<(libc::tcp_info, usize)> {
    // SAFETY: a structure of numbers, for which all zeros are a valid value.
    let mut info = unsafe { std::mem::zeroed::<libc::tcp_info>() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the call writes at most `length` bytes of
    // `info`.
    let failed = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    (failed == 0).then_some((info, length as usize))
}

/// Returns the state of a connection; `None` if the kernel does not tell.
pub(super) fn state(socket: &TcpStream) -> Option<LaneState> {
    let (info, length) = info(socket)?;
    // A kernel too old to count these bytes returns a shorter structure. Then there is no count.
    let is_counted = length >= std::mem::offset_of!(libc::tcp_info, tcpi_segs_out);
    (info.tcpi_rtt > 0).then(|| LaneState {
        round_trip: Some(Duration::from_micros(info.tcpi_rtt.into())),
        is_unanswered: info.tcpi_unacked > 0,
        moved_bytes: is_counted.then(|| info.tcpi_bytes_acked.wrapping_add(info.tcpi_bytes_received)),
    })
}

/// Returns the shortest round trip of a connection so far; `None` before Linux 4.9.
pub fn round_trip_min(socket: &TcpStream) -> Option<Duration> {
    let (info, length) = info(socket)?;
    let is_there = length >= std::mem::offset_of!(libc::tcp_info, tcpi_data_segs_in);
    // As long as nothing was measured, it is the largest number.
    (is_there && ![0, u32::MAX].contains(&info.tcpi_min_rtt)).then(|| Duration::from_micros(info.tcpi_min_rtt.into()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn loopback_is_near_and_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (mut far, _) = listener.accept().expect("a connection");
        let before = state(&near).expect("measured with the handshake");
        assert!(round_trip_min(&near).expect("since Linux 4.9") <= before.round_trip.expect("measured"));
        assert!(before.round_trip < Some(Duration::from_secs(1)), "{before:?}");
        near.write_all(&[1; 5000]).expect("sent");
        far.read_exact(&mut [0; 5000]).expect("received");
        far.write_all(&[1; 700]).expect("sent");
        near.read_exact(&mut [0; 700]).expect("received");
        let after = state(&near).expect("measured");
        let moved = after.moved_bytes.expect("since Linux 4.1") - before.moved_bytes.expect("since Linux 4.1");
        assert!((5700..=5702).contains(&moved) && !after.is_unanswered, "{moved} {after:?}");
    }
}
