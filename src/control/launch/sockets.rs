//! What the system tells of a launcher's sockets: where it is connected, and whether others share its connection.

use std::fs::DirEntry;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use rustix::io::Errno;
use rustix::net::{SocketType, getpeername, sockopt::socket_type};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Maximum number of bytes read from a table in `/proc/net`, which may be long on a busy host.
const TABLE_BYTES_MAX: u64 = 4 << 20;

/// A socket of a process: its descriptor there, and its number in `/proc`.
type Socket = (RawFd, String);

/// Returns the only address to which a process is connected by TCP.
pub(super) fn only_peer(process: Pid) -> Option<IpAddr> {
    let own = sockets_of(process).filter(|own| !own.is_empty())?;
    let found = peers_of(process, &own).unwrap_or_else(|| listed_peers(process, &own));
    let first = *found.first()?;
    found.iter().all(|other| *other == first).then_some(first)
}

/// Returns the addresses to which TCP sockets of a process are connected, which copies of the descriptors tell. `None`
/// if this is not allowed (ptrace(2)) or not known (before Linux 5.6), or if this process is under a filter of system
/// calls: many filters leave out what is for debuggers, and systemd's end the process for it.
fn peers_of(process: Pid, sockets: &[Socket]) -> Option<Vec<IpAddr>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find(|line| line.split_ascii_whitespace().eq(["Seccomp:", "0"]))?;
    let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let mut peers = Vec::new();
    for &(descriptor, _) in sockets {
        let socket = match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
            // The process has closed it since.
            Err(Errno::BADF) => continue,
            socket => socket.ok()?,
        };
        if socket_type(&socket) == Ok(SocketType::STREAM)
            && let Ok(Some(peer)) = getpeername(&socket)
            && let Ok(peer) = SocketAddr::try_from(peer)
        {
            peers.push(peer.ip().to_canonical());
        }
    }
    Some(peers)
}

/// Does the same by the tables of the network that the process uses. They take milliseconds even if they are short,
/// because the kernel looks through all of a hash table, whose size goes by the host's memory.
fn listed_peers(process: Pid, sockets: &[Socket]) -> Vec<IpAddr> {
    let tables = ["tcp", "tcp6"].map(|table| table_of(process, table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| connected(line, sockets)).collect()
}

/// Returns the peer's address from a line of `/proc/net/tcp`, if the line describes an established connection of one of
/// these sockets. For the format, see proc_net_tcp in the kernel's documentation. Addresses are words in this host's
/// byte order.
fn connected(line: &str, sockets: &[Socket]) -> Option<IpAddr> {
    const ESTABLISHED: &str = "01";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, other, ESTABLISHED, _, _, _, _, _, socket, ..] = fields[..] else { return None };
    let (address, _) = other.split_once(':').filter(|_| sockets.iter().any(|(_, own)| own == socket))?;
    let words = address.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
    address.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from)).ok().map(|address| address.to_canonical())
}

/// Reports whether a process carries sessions of other commands: it is an ssh whose connection they share because of
/// `ControlMaster`. Such an ssh ends with the last of these sessions, and is not to be ended before.
pub(in crate::control) fn carries_others(process: Pid) -> bool {
    let sockets = sockets_of(process).unwrap_or_default();
    // A table may be long.
    sockets.len() > 1 && table_of(process, "unix").is_some_and(|table| has_joined(&table, &sockets))
}

/// Reports whether one of these sockets is a connection accepted at another one of them, according to
/// `/proc/net/unix`. An accepted socket has the path of the one that listens.
fn has_joined(table: &str, sockets: &[Socket]) -> bool {
    const UNCONNECTED: &str = "01";
    const CONNECTED: &str = "03";
    let paths = |wanted: &'static str| {
        table.lines().filter_map(move |line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, _, _, _, _, state, socket, ref path @ ..] = fields[..] else { return None };
            let is_meant = state == wanted && !path.is_empty() && sockets.iter().any(|(_, own)| own == socket);
            is_meant.then(|| path.to_vec())
        })
    };
    let listening: Vec<_> = paths(UNCONNECTED).collect();
    paths(CONNECTED).any(|path| listening.contains(&path))
}

/// Returns a process's sockets.
fn sockets_of(process: Pid) -> Option<Vec<Socket>> {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).ok()?;
    let socket = |descriptor: DirEntry| {
        let link = std::fs::read_link(descriptor.path()).ok()?.into_os_string().into_string().ok()?;
        let number = link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some((descriptor.file_name().to_str()?.parse().ok()?, number))
    };
    Some(descriptors.filter_map(|descriptor| socket(descriptor.ok()?)).collect())
}

/// Reads a table of sockets of the network that a process uses.
fn table_of(process: Pid, table: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{}/net/{table}", process.as_raw_nonzero())).ok()?;
    file.take(TABLE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    // A path may have any bytes.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command};

    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_connection_is_found_by_its_socket() {
        let sockets = [(3, "77".to_owned())];
        let words = |address: &[u8]| {
            let words = address.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
            words.map(|word| format!("{word:08X}")).collect::<String>()
        };
        let line = |address: &[u8], state: &str, socket: &str| {
            format!(
                "  3: 0100007F:9C40 {}:0016 {state} 00000000:00000000 02:000A 00000000 0 0 {socket} 2 0 20",
                words(address)
            )
        };
        let found = |line: &str| connected(line, &sockets).map(|address| address.to_string());
        let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().expect("an address").octets();
        assert_eq!(found(&line(&[192, 0, 2, 7], "01", "77")).as_deref(), Some("192.0.2.7"));
        assert_eq!(found(&line(&v6("2001:db8::7"), "01", "77")).as_deref(), Some("2001:db8::7"));
        assert_eq!(found(&line(&v6("::ffff:192.0.2.7"), "01", "77")).as_deref(), Some("192.0.2.7"));
        assert_eq!(found(&line(&[192, 0, 2, 7], "01", "78")), None, "another process's");
        assert_eq!(found(&line(&[192, 0, 2, 7], "02", "77")), None, "not made yet");
        for bad in ["", "  sl  local_address rem_address   st", "1 2 xyz:1 01 5 6 7 8 9 77", "1 2 3 01 5 6 7 8 9 77"] {
            assert_eq!(found(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_ssh_that_others_have_joined_is_known_by_its_sockets() {
        let sockets = ["77", "78"].map(|number| (3, number.to_owned()));
        let line = |state: &str, socket: &str, path: &str| {
            format!("00000000e66fc7eb: 00000003 00000000 00000000 0001 {state} {socket:>5} {path}\n")
        };
        let listens = line("01", "77", "/run/a b.XyZ");
        for (others, expected) in [
            (line("03", "78", "/run/a b.XyZ"), true),
            (line("03", "78", "/run/other"), false),
            (line("03", "78", ""), false),
            (line("03", "79", "/run/a b.XyZ"), false),
            (line("01", "78", "/run/a b.XyZ"), false),
            (String::new(), false),
        ] {
            assert_eq!(has_joined(&format!("Num RefCount\n{others}{listens}"), &sockets), expected, "{others}");
            assert!(!has_joined(&others, &sockets), "nobody can join it: {others}");
        }
    }

    #[test]
    fn where_a_process_is_connected_is_known_with_and_without_a_table() {
        let connected_to = |address: &str| {
            let listener = TcpListener::bind((address, 0)).expect("loopback");
            let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            // What has not been accepted is lost with the listener.
            let accepted = listener.accept().expect("accepted");
            (OwnedFd::from(stream), accepted)
        };
        let other = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        other.connect("127.0.0.9:9").expect("connected");
        let mut is_refused = false;
        for (addresses, expected) in
            [(["127.0.0.1", "127.0.0.1"], Some("127.0.0.1")), (["127.0.0.1", "127.0.0.2"], None)]
        {
            let [(stdin, _first), (stdout, _second)] = addresses.map(connected_to);
            let stderr = OwnedFd::from(other.try_clone().expect("a descriptor"));
            let mut command = Command::new("sleep");
            let child = command.arg("600").stdin(stdin).stdout(stdout).stderr(stderr).spawn().expect("sleep");
            let child = Sleeper(child);
            let id = Pid::from_child(&child.0);
            let known = || only_peer(id).map(|address| address.to_string());
            assert_eq!(known().as_deref(), expected);
            assert_eq!(where_calls_fail(&[libc::SYS_pidfd_getfd], libc::EPERM, known).as_deref(), expected);
            let own = sockets_of(id).expect("ours");
            assert_eq!(own.len(), 3);
            let addresses = addresses.map(|address| address.parse::<IpAddr>().expect("an address"));
            match peers_of(id, &own) {
                Some(mut peers) => {
                    peers.sort();
                    assert_eq!(peers, addresses);
                }
                None => is_refused = true,
            }
            let mut listed = listed_peers(id, &own);
            listed.sort();
            assert_eq!(listed, addresses);
        }
        if is_refused {
            crate::not_run::not_run("pidfd_getfd(2) is not allowed here");
        }
    }
}
