//! Where an end can be reached, and which of these places the other end tries first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::RailAddress;

use super::frames::Endpoint;
use crate::transport::rdma::{InterfaceAddress, interface_addresses};
use crate::transport::{is_inner, rate_mbps, same_subnet};

/// Endpoints that an end tells, and tries, at most.
pub const ENDPOINTS_MAX: usize = 32;

/// Interfaces, or addresses, that a message lists at most.
const LISTED_MAX: usize = 8;

impl Endpoint {
    /// Its address, if the bytes are one, without what is not its subnet's.
    pub fn subnet(&self) -> Option<IpAddr> {
        Some(match self.socket_address()?.ip() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(self.prefix_bits.into())).unwrap_or(0);
                Ipv4Addr::from(u32::from(v4) & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.prefix_bits.into())).unwrap_or(0);
                Ipv6Addr::from(u128::from(v6) & mask).into()
            }
        })
    }

    /// Its address, if the bytes are one.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        let ip = match self.address.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(&self.address[..]).ok()?),
            16 => IpAddr::from(<[u8; 16]>::try_from(&self.address[..]).ok()?),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.port))
    }

    fn new(address: IpAddr, port: u16, prefix_bits: u8, rate_mbps: u32, is_via: bool) -> Self {
        Self { address: octets(address), port, prefix_bits, rate_mbps, is_via, interface: None }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Where this host can be reached at `port`: every address of an interface that is up, with its link's speed. Of more than
/// [`ENDPOINTS_MAX`], those that `via` names and `first` are kept, and those of networks within the host are left out first.
/// `via`: an address or an interface's name; what it names is marked. `first`: an address at which it has been reached.
pub fn own(port: u16, via: &[u8], first: Option<IpAddr>) -> Vec<Endpoint> {
    let mut all = interface_addresses().unwrap_or_default();
    // Stable: else they stay in the system's order.
    all.sort_by_key(|known| (!names(via, known), Some(known.address) != first, is_inner(&known.interface)));
    let number = |known: &InterfaceAddress| all.iter().position(|other| other.interface == known.interface);
    let told = all.iter().map(|known| Endpoint {
        interface: number(known).and_then(|number| u8::try_from(number).ok()),
        ..Endpoint::new(known.address, port, known.prefix_bits, rate_mbps(&known.interface), names(via, known))
    });
    told.take(ENDPOINTS_MAX).collect()
}

/// Those that are addresses of an interface, as ways to their host.
pub fn ways(told: &[Endpoint]) -> Vec<RailAddress> {
    let way = |endpoint: &Endpoint| {
        let &Endpoint { prefix_bits, rate_mbps, interface, .. } = endpoint;
        Some(RailAddress { interface: interface?, address: endpoint.socket_address()?.ip(), prefix_bits, rate_mbps })
    };
    told.iter().take(ENDPOINTS_MAX).filter_map(way).collect()
}

/// This host's loopback addresses, for an end on the same kernel.
pub fn loopback(port: u16) -> [Endpoint; 2] {
    let local = |address| Endpoint::new(address, port, 0, 0, false);
    [local(Ipv4Addr::LOCALHOST.into()), local(Ipv6Addr::LOCALHOST.into())]
}

/// An address that the user has given.
pub fn given(address: SocketAddr) -> Endpoint {
    Endpoint::new(address.ip(), address.port(), 0, 0, true)
}

fn names(via: &[u8], known: &InterfaceAddress) -> bool {
    known.interface.as_bytes() == via || std::str::from_utf8(via).is_ok_and(|via| via.parse() == Ok(known.address))
}

/// What an end is to try of the endpoints that the other has told, and what restricts it in doing so: where they are what
/// `via` names at the other, that has been heeded.
pub fn offered(mut told: Vec<Endpoint>, via: &[u8], is_one_kernel: bool) -> (Vec<Endpoint>, Vec<u8>) {
    told.truncate(ENDPOINTS_MAX);
    if told.iter().any(|endpoint| endpoint.is_via) {
        told.retain(|endpoint| endpoint.is_via);
        return (told, Vec::new());
    }
    if via.is_empty()
        && is_one_kernel
        && let Some(port) = told.first().map(|endpoint| endpoint.port)
    {
        told.extend(loopback(port));
    }
    (told, via.to_vec())
}

/// The offered endpoints in the order in which they are to be tried: those on a subnet of ours first, then by the speed
/// of the slower link. With `via`, only those on a subnet of what it names here.
///
/// # Errors
///
/// Why there is none to try.
pub fn ranked(offered: &[Endpoint], via: &[u8]) -> Result<Vec<SocketAddr>, String> {
    let here = interface_addresses().unwrap_or_default();
    let ranked = rank(offered, &here, via, rate_mbps);
    if ranked.is_empty() { Err(why_none(offered, &here, via)) } else { Ok(ranked) }
}

/// `via` at the port of the other end, if it is an address and none of this host's. The other end may be reached by it although
/// it does not have it: a published port of a container, a network whose addresses are translated.
pub fn foreign(offered: &[Endpoint], via: &[u8]) -> Option<SocketAddr> {
    let address = std::str::from_utf8(via).ok()?.parse::<IpAddr>().ok()?.to_canonical();
    // What is reached by loopback would be taken for this host, and not be encrypted.
    let is_here = address.is_loopback()
        || address.is_unspecified()
        || interface_addresses().unwrap_or_default().iter().any(|own| own.address == address);
    if is_here {
        return None;
    }
    Some(SocketAddr::new(address, offered.first()?.port))
}

/// What to try of the endpoints of a host to which ssh got at `reached_at`: that as well, if it is a public address and none of
/// the host's own. Then somebody translates it.
pub fn with_translated(mut offered: Vec<Endpoint>, reached_at: Option<IpAddr>) -> Vec<Endpoint> {
    let is_own =
        |address: &IpAddr| offered.iter().any(|told| told.socket_address().is_some_and(|it| it.ip() == *address));
    let translated = reached_at.filter(is_public).filter(|address| !is_own(address));
    if let Some((address, port)) = translated.zip(offered.first().map(|endpoint| endpoint.port)) {
        offered.truncate(ENDPOINTS_MAX - 1);
        offered.push(Endpoint::new(address, port, 0, 0, false));
    }
    offered
}

/// Not one of those that anybody may use: RFC 1918, RFC 6598 (what providers translate from), RFC 4193, and links' own.
pub fn is_public(address: &IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            !(v4.is_private() || is_shared || v4.is_link_local() || v4.is_loopback() || v4.is_unspecified())
        }
        IpAddr::V6(v6) => {
            !(v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_loopback() || v6.is_unspecified())
        }
    }
}

fn why_none(offered: &[Endpoint], here: &[InterfaceAddress], via: &[u8]) -> String {
    let name = String::from_utf8_lossy(via);
    if via.is_empty() {
        "the other end has no address".to_owned()
    } else if here.iter().any(|own| names(via, own)) {
        format!("no address of the other end is on a network of {name}")
    } else {
        let addresses = offered.iter().filter_map(|endpoint| Some(endpoint.socket_address()?.ip().to_string()));
        let there = sample(addresses.collect());
        let here = format!("{} has {}", own_name(), listed(here));
        format!("neither end has an interface or an address {name}; {here}; the other end has {there}")
    }
}

/// What this host calls itself.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Interfaces with their addresses, for a person: `e0 (10.9.0.1, fd00:9::1), e1 (10.8.0.1)`.
fn listed(here: &[InterfaceAddress]) -> String {
    let mut interfaces: Vec<(&str, Vec<String>)> = Vec::new();
    for known in here {
        let address = known.address.to_string();
        match interfaces.iter_mut().find(|(name, _)| *name == known.interface) {
            Some((_, addresses)) => addresses.push(address),
            None => interfaces.push((&known.interface, vec![address])),
        }
    }
    sample(interfaces.into_iter().map(|(name, addresses)| format!("{name} ({})", addresses.join(", "))).collect())
}

/// The first few of a list, and how many more there are.
fn sample(mut list: Vec<String>) -> String {
    let more = list.len().saturating_sub(LISTED_MAX);
    list.truncate(LISTED_MAX);
    list.extend((more > 0).then(|| format!("{more} more")));
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

fn rank(
    offered: &[Endpoint],
    here: &[InterfaceAddress],
    via: &[u8],
    rate_mbps: impl Fn(&str) -> u32,
) -> Vec<SocketAddr> {
    let mut found: Vec<(bool, u32, SocketAddr)> = Vec::new();
    for endpoint in offered.iter().take(ENDPOINTS_MAX) {
        let Some(address) = endpoint.socket_address() else { continue };
        let near = here.iter().filter(|own| (via.is_empty() || names(via, own)) && shares_subnet(own, endpoint));
        let near = near.map(|own| rate_mbps(&own.interface)).max();
        if near.is_none() && !via.is_empty() {
            continue;
        }
        let rate = near.map_or(endpoint.rate_mbps, |ours| ours.min(endpoint.rate_mbps));
        found.push((near.is_some(), rate, address));
    }
    // Stable: ends tell their addresses in their own order.
    found.sort_by_key(|&(near, rate, _)| std::cmp::Reverse((near, rate)));
    found.into_iter().map(|(_, _, address)| address).collect()
}

fn shares_subnet(own: &InterfaceAddress, endpoint: &Endpoint) -> bool {
    let bits_max = if own.address.is_ipv4() { 32 } else { 128 };
    // One address alone is no network: several hosts may have it.
    own.prefix_bits == endpoint.prefix_bits
        && own.prefix_bits < bits_max
        && endpoint.socket_address().is_some_and(|other| same_subnet(own.address, other.ip(), own.prefix_bits))
}

/// The address by which ssh was reached here, as sshd says it.
pub fn ssh_address() -> Option<IpAddr> {
    let connection = std::env::var_os("SSH_CONNECTION")?;
    std::str::from_utf8(connection.as_bytes()).ok()?.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(interface: &str, address: &str, prefix_bits: u8) -> InterfaceAddress {
        InterfaceAddress { interface: interface.to_owned(), address: address.parse().expect("an address"), prefix_bits }
    }

    fn offered(address: &str, prefix_bits: u8, rate_mbps: u32) -> Endpoint {
        Endpoint::new(address.parse().expect("an address"), 7000, prefix_bits, rate_mbps, false)
    }

    #[test]
    fn near_and_fast_comes_first() {
        let ours = [here("eth0", "10.1.0.1", 16), here("ib0", "192.168.7.1", 24), here("ib0", "fd00::1", 64)];
        let rates = |name: &str| if name == "ib0" { 100_000 } else { 1000 };
        let theirs = [
            offered("172.16.0.2", 24, 400_000), // fast, but not on a network of ours
            offered("10.1.2.2", 16, 25_000),
            offered("192.168.7.2", 24, 56_000),
            offered("fd00::2", 64, 200_000),
            Endpoint { address: vec![1, 2, 3], ..offered("10.0.0.1", 8, 1) },
        ];
        let order: Vec<String> = rank(&theirs, &ours, b"", rates).iter().map(|it| it.ip().to_string()).collect();
        assert_eq!(order, ["fd00::2", "192.168.7.2", "10.1.2.2", "172.16.0.2"]);
        let only: Vec<String> = rank(&theirs, &ours, b"eth0", rates).iter().map(|it| it.ip().to_string()).collect();
        assert_eq!(only, ["10.1.2.2"]);
        assert_eq!(rank(&theirs, &ours, b"192.168.7.1", rates).len(), 1);
        assert!(rank(&theirs, &ours, b"eth9", rates).is_empty());
    }

    #[test]
    fn what_leaves_nothing_to_try_is_told() {
        let ours = [here("eth0", "10.1.0.1", 16)];
        assert_eq!(why_none(&[], &ours, b""), "the other end has no address");
        assert_eq!(why_none(&[], &ours, b"10.1.0.1"), "no address of the other end is on a network of 10.1.0.1");
        let ours = [here("eth0", "10.1.0.1", 16), here("ib0", "10.2.0.1", 16), here("eth0", "fd00::1", 64)];
        let theirs = [offered("10.1.2.2", 16, 1)];
        let expected = format!(
            "neither end has an interface or an address eth9; {} has eth0 (10.1.0.1, fd00::1), ib0 (10.2.0.1); the other end \
             has 10.1.2.2",
            own_name()
        );
        assert_eq!(why_none(&theirs, &ours, b"eth9"), expected);
        assert!(why_none(&[], &[], b"eth9").contains("has none; the other end has none"));
        let many: Vec<_> = (0..20).map(|number| here(&format!("e{number}"), "10.1.0.1", 16)).collect();
        assert!(listed(&many).ends_with("e7 (10.1.0.1), 12 more"));
        assert!(ranked(&[], b"no-such-interface").is_err_and(|why| why.starts_with("neither end has")));
        assert_eq!(foreign(&theirs, b"192.0.2.7"), Some("192.0.2.7:7000".parse().expect("an address")));
        for here in [&b"127.0.0.1"[..], b"::1", b"0.0.0.0", b"::ffff:127.0.0.1"] {
            assert!(foreign(&theirs, here).is_none());
        }
        assert!(foreign(&theirs, b"e0").is_none() && foreign(&[], b"192.0.2.7").is_none());
    }

    #[test]
    fn a_host_behind_a_translator_is_tried_where_ssh_got_there_too() {
        let theirs = [offered("172.31.9.2", 20, 1), offered("100.100.1.2", 32, 1), offered("2001:db8::2", 64, 1)];
        let tried = |theirs: &[Endpoint], reached_at: &str| {
            let tried = with_translated(theirs.to_vec(), reached_at.parse().ok());
            let (tried, via) = super::offered(tried, b"", false);
            assert!(via.is_empty());
            tried.iter().filter_map(Endpoint::socket_address).map(|at| at.to_string()).collect::<Vec<_>>()
        };
        let own = ["172.31.9.2:7000", "100.100.1.2:7000", "[2001:db8::2]:7000"];
        assert_eq!(tried(&theirs, "192.0.2.7"), [&own[..], &["192.0.2.7:7000"]].concat());
        for other in
            ["10.1.2.3", "127.0.0.1", "100.64.0.1", "fd00::1", "::1", "::ffff:192.168.1.1", "2001:db8::2", "none"]
        {
            assert_eq!(tried(&theirs, other), own, "{other}");
        }
        assert!(tried(&[], "192.0.2.7").is_empty());
        let many = vec![theirs[0].clone(); ENDPOINTS_MAX];
        assert!(tried(&many, "192.0.2.7").contains(&"192.0.2.7:7000".to_owned()));
    }

    #[test]
    fn via_at_the_other_end_is_heeded_once() {
        let told = vec![offered("10.1.2.2", 16, 1), Endpoint { is_via: true, ..offered("192.168.7.2", 24, 1) }];
        let (tried, via) = super::offered(told.clone(), b"ib0", true);
        assert_eq!((tried.as_slice(), via.as_slice()), (&told[1..], &b""[..]));
        let (tried, via) = super::offered(told[..1].to_vec(), b"ib0", true);
        assert_eq!((tried.as_slice(), via.as_slice()), (&told[..1], &b"ib0"[..]), "our own end is restricted");
    }

    #[test]
    fn one_kernel_has_loopback_and_nobody_more_than_the_most() {
        let told = vec![offered("10.1.2.2", 16, 1); ENDPOINTS_MAX + 1];
        assert_eq!(super::offered(told.clone(), b"", false).0, told[1..]);
        let (tried, _) = super::offered(told, b"", true);
        assert_eq!(tried[ENDPOINTS_MAX..], loopback(7000));
        assert!(super::offered(Vec::new(), b"", true).0.is_empty(), "without a port there is nothing to try");
    }

    #[test]
    fn a_prefix_that_is_too_long_matches_nothing() {
        let own = here("x", "10.0.0.1", 200);
        assert!(!shares_subnet(&own, &offered("10.0.0.1", 200, 1)));
    }

    #[test]
    fn an_address_that_both_hosts_have_is_no_network() {
        let ours = [here("eth0", "10.1.0.1", 16), here("lo", "10.9.9.9", 32)];
        let theirs = [offered("10.9.9.9", 32, 0), offered("10.1.0.2", 16, 0)];
        let order: Vec<String> = rank(&theirs, &ours, b"", |_| 0).iter().map(|it| it.ip().to_string()).collect();
        assert_eq!(order, ["10.1.0.2", "10.9.9.9"]);
    }
}
