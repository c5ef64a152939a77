//! Limits how much data waits unsent in a socket.
//!
//! Data that the kernel has taken can be neither called back nor overtaken. The socket's buffer may hold megabytes,
//! which take many seconds on a slow line: a frame that says that this end gives up would arrive after all of them. So
//! the buffer is kept short (TCP_NOTSENT_LOWAT), unless the lane has proved fast: then a long buffer costs no time.

use std::net::TcpStream;
use std::time::Duration;

/// Maximum number of unsent bytes on a lane that is slow, or whose speed is not known yet.
const UNSENT_BYTES_MAX: u32 = 32 << 10;

/// Leaves the limit to the system, which has none unless `tcp_notsent_lowat` is set.
const SYSTEMS_OWN: u32 = 0;

/// Number of bytes that a lane must take within [`STRETCH`] to be fast: 8 MiB/s.
const STRETCH_BYTES: u64 = 4 << 20;

/// Maximum time spent writing before the lane is judged.
const STRETCH: Duration = Duration::from_millis(500);

/// How fast a lane has been recently.
#[derive(Debug)]
pub(super) struct Speed {
    bytes: u64,
    time: Duration,
    is_fast: bool,
}

impl Speed {
    /// Returns the speed of a new lane, whose unsent data is limited.
    pub(super) fn new(socket: &TcpStream) -> Self {
        limit_unsent(socket, UNSENT_BYTES_MAX);
        Self { bytes: 0, time: Duration::ZERO, is_fast: false }
    }

    /// Records that `bytes` bytes have been written in `time`.
    pub(super) fn note(&mut self, socket: &TcpStream, bytes: u32, time: Duration) {
        if let Some(is_fast) = self.judge(bytes, time) {
            limit_unsent(socket, if is_fast { SYSTEMS_OWN } else { UNSENT_BYTES_MAX });
        }
    }

    /// Returns whether the lane is fast; `None` if that has not changed.
    fn judge(&mut self, bytes: u32, time: Duration) -> Option<bool> {
        self.bytes += u64::from(bytes);
        self.time += time;
        let is_fast = match (self.bytes >= STRETCH_BYTES, self.time > STRETCH) {
            (_, true) => false,
            (true, false) => true,
            (false, false) => return None,
        };
        (self.bytes, self.time) = (0, Duration::ZERO);
        (std::mem::replace(&mut self.is_fast, is_fast) != is_fast).then_some(is_fast)
    }
}

/// Makes writes wait while more than `bytes` bytes are unsent. On systems without this option, writes do not wait.
fn limit_unsent(socket: &TcpStream, bytes: u32) {
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_fast_once_it_has_shown_it_and_until_it_stalls() {
        let mut speed = Speed { bytes: 0, time: Duration::ZERO, is_fast: false };
        let ms = Duration::from_millis;
        let mib = 1 << 20;
        // Data that buffers on the way take at once proves nothing.
        assert_eq!((speed.judge(mib, ms(0)), speed.judge(mib, ms(0))), (None, None));
        assert_eq!((speed.judge(mib, ms(300)), speed.judge(mib, ms(300))), (None, None), "3 MiB, and then 0.6 s: slow");
        assert_eq!([0; 4].map(|_| speed.judge(mib, ms(100))), [None, None, None, Some(true)]);
        assert_eq!([0; 8].map(|_| speed.judge(mib, ms(100))), [None; 8], "told once");
        assert_eq!(speed.judge(mib, ms(600)), Some(false));
        assert_eq!([0; 4].map(|_| speed.judge(mib, ms(200))), [None; 4], "5 MiB/s");
    }

    #[test]
    fn a_line_that_takes_nothing_is_given_little() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (far, _) = listener.accept().expect("a connection");
        let fill = |socket: &TcpStream| {
            socket.set_nonblocking(true).expect("a socket");
            let mut socket = socket;
            let mut count = 0;
            while let Ok(more) = std::io::Write::write(&mut socket, &[0; 1 << 16]) {
                count += more;
            }
            count
        };
        let without = fill(&far);
        let _speed = Speed::new(&near);
        let with = fill(&near);
        assert!(with + (1 << 20) < without, "{with} bytes with the limit, {without} without");
    }
}
