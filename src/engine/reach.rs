//! Connecting to the best of several addresses that belong, or may belong, to the same peer.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use flume::{RecvTimeoutError, bounded};
use rd_proto::handshake::{Established, Key, SessionId, connect_first};

use super::link::{AUTHENTICATE_MAX, LinkError, authenticate, connect, rng};
use crate::fault::errno_of;
use crate::transport::tcp;

/// How much longer than a worse address a better address may take to connect.
const HEAD_START: Duration = Duration::from_millis(250);

/// How long one address may take to prove the key while there are others.
const PROOF_MAX: Duration = Duration::from_secs(1);

/// Returns the addresses of a host, looked up by name.
///
/// # Errors
///
/// Why there is none, in the resolver's words. If the resolver takes longer than `within`, the error says so. The
/// resolver cannot be stopped; its thread is then left behind.
pub fn resolve(name: &str, port: u16, within: Duration) -> Result<Vec<SocketAddr>, String> {
    let host = (name.to_owned(), port);
    look_up(within, move || host.to_socket_addrs().map(Iterator::collect))
}

fn look_up<T: Send + 'static>(
    within: Duration,
    ask: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let (post, found) = bounded(1);
    let run = move || drop(post.send(ask()));
    crate::spawn("resolve", 2 << 20, run).map_err(|error| error.to_string())?;
    match found.recv_timeout(within) {
        // Keeps only the resolver's words after the library's heading, such as "Name or service not known".
        Ok(found) => found.map_err(|error| error.to_string().rsplit(": ").next().unwrap_or_default().to_owned()),
        Err(_) => Err(format!("the resolver did not answer within {} s", within.as_secs())),
    }
}

/// Connects and authenticates a first lane.
///
/// # Errors
///
/// Any [`LinkError`] except those of exchanging offers, by `deadline` at the latest.
pub fn reach(address: SocketAddr, key: &Key, deadline: Instant) -> Result<(TcpStream, Established), LinkError> {
    prove(connect(address, deadline)?, key, deadline)
}

fn prove(mut stream: TcpStream, key: &Key, deadline: Instant) -> Result<(TcpStream, Established), LinkError> {
    tcp::tune(&stream).map_err(|error| LinkError::os("socket", &error))?;
    let hello = connect_first(key, SessionId::random(&mut rng()), &mut rng());
    let established = authenticate(&mut stream, hello, deadline.min(Instant::now() + AUTHENTICATE_MAX))?;
    Ok((stream, established))
}

/// Connects to all `addresses` at once. Takes the first address in their order that connects by `connect_by` and proves
/// the key by `deadline`. Once some address has connected, better ones that are still pending get another quarter of a
/// second.
///
/// # Errors
///
/// Why the last address failed.
pub fn reach_best(
    addresses: &[SocketAddr],
    key: &Key,
    [connect_by, deadline]: [Instant; 2],
) -> Result<(TcpStream, Established), LinkError> {
    let (post, attempts) = bounded(addresses.len());
    let mut connected: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
    let mut pending: Vec<bool> = vec![true; addresses.len()];
    let mut failure = LinkError::TimedOut;
    for (rank, &address) in addresses.iter().enumerate() {
        let post = post.clone();
        let attempt = move || drop(post.send((rank, connect(address, connect_by))));
        if let Err(error) = crate::spawn("dial", 64 << 10, attempt) {
            // Another address may do.
            pending[rank] = false;
            failure = LinkError::Os { what: "thread", error: errno_of(&error) };
        }
    }
    drop(post);
    let mut since: Option<Instant> = None;
    loop {
        let best = connected.iter().position(Option::is_some);
        let in_head_start = since.is_some_and(|since| since.elapsed() < HEAD_START);
        if let Some(best) = best
            && (!in_head_start || !pending[..best].contains(&true))
        {
            let stream = connected[best].take().expect("just found");
            let has_others = pending.contains(&true) || connected.iter().any(Option::is_some);
            // An address that accepts and then stays silent must not use up the time of addresses that would answer.
            let limit = if has_others { deadline.min(Instant::now() + PROOF_MAX) } else { deadline };
            match prove(stream, key, limit) {
                Ok(proved) => return Ok(proved),
                Err(error) => failure = error,
            }
            continue;
        }
        if best.is_none() && !pending.contains(&true) {
            return Err(failure);
        }
        let wait = match since {
            Some(since) if best.is_some() => HEAD_START.saturating_sub(since.elapsed()),
            _ => connect_by.saturating_duration_since(Instant::now()),
        };
        match attempts.recv_timeout(wait) {
            Ok((rank, attempt)) => {
                pending[rank] = false;
                match attempt {
                    Ok(stream) => {
                        connected[rank] = Some(stream);
                        since.get_or_insert_with(Instant::now);
                    }
                    Err(error) => failure = error,
                }
            }
            Err(RecvTimeoutError::Timeout) if best.is_some() => {}
            Err(_) => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rustix::io::Errno;

    use super::*;
    use crate::engine::channel;
    use crate::engine::listen::{Further, Listener};
    use crate::fs::close::tests::where_calls_fail;

    fn key(byte: u8) -> Key {
        Key::from_random([byte; 32])
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn the_first_that_proves_the_key_is_taken() {
        let (post, _events) = channel();
        let stranger = Listener::start(0, None, key(1), post.clone(), Further::Lanes).expect("a port");
        let peer = Listener::start(0, None, key(2), post, Further::Lanes).expect("a port");
        let dead = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let refused = dead.local_addr().expect("bound");
        drop(dead);
        let at = |listener: &Listener| SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
        let addresses = [refused, at(&stranger), at(&peer)];
        let (stream, _) = reach_best(&addresses, &key(2), [soon(); 2]).expect("the third");
        assert_eq!(stream.peer_addr().expect("connected"), at(&peer));
        assert!(reach_best(&addresses[..2], &key(2), [soon(); 2]).is_err());
        assert!(reach_best(&[], &key(2), [soon(); 2]).is_err());
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_no_fault_of_the_peer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let reached = where_calls_fail(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN, || {
            reach_best(&[address; 2], &key(2), [soon(); 2]).err()
        });
        assert_eq!(reached, Some(LinkError::Os { what: "thread", error: Errno::AGAIN }));
    }

    #[test]
    fn a_peer_that_says_nothing_is_not_waited_for() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = silent.local_addr().expect("bound");
        let start = Instant::now();
        let within = Duration::from_millis(300);
        assert_eq!(reach(address, &key(2), start + within).err(), Some(LinkError::TimedOut));
        assert_eq!(reach_best(&[address], &key(2), [Instant::now() + within; 2]).err(), Some(LinkError::TimedOut));
        assert!(start.elapsed() < AUTHENTICATE_MAX / 2, "{:?}", start.elapsed());
    }

    #[test]
    fn a_resolver_that_hangs_is_not_waited_for() {
        let start = Instant::now();
        let found = look_up(Duration::from_secs(1), || {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        });
        assert_eq!(found, Err("the resolver did not answer within 1 s".to_owned()));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let found = look_up(Duration::from_secs(10), || Err::<(), _>(std::io::Error::other("failed to look up: why")));
        assert_eq!(found, Err("why".to_owned()));
        assert_eq!(resolve("127.0.0.1", 7, Duration::from_secs(10)), Ok(vec![([127, 0, 0, 1], 7).into()]));
    }

    #[test]
    fn an_address_that_does_not_answer_costs_a_moment() {
        let (post, _events) = channel();
        let peer = Listener::start(0, None, key(2), post, Further::Lanes).expect("a port");
        // This address is reserved for documentation: packets to it are dropped, refused, or unreachable.
        let addresses = [([192, 0, 2, 1], 9).into(), (Ipv4Addr::LOCALHOST, peer.port()).into()];
        let start = Instant::now();
        reach_best(&addresses, &key(2), [soon(); 2]).expect("the second");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
