//! The addresses at which an end can be reached, and the order in which the other end tries them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use rd_proto::control::RailAddress;

use super::frames::Endpoint;
use crate::transport::rdma::{InterfaceAddress, interface_addresses};
use crate::transport::{is_inner, rate_mbps, same_subnet};

/// Maximum number of endpoints that an end announces, and that an end tries.
pub const ENDPOINTS_MAX: usize = 32;

/// Maximum number of interfaces or addresses that a message lists.
const LISTED_MAX: usize = 8;

impl Endpoint {
    /// Returns the endpoint's address. `None` if the bytes are not an address.
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

/// Returns where this host can be reached at `port`: all addresses of interfaces that are up, with the speeds of their
/// links. `via` is an address or an interface's name; matching endpoints are marked. `first` is an address at which
/// this host has been reached. Of more than [`ENDPOINTS_MAX`] endpoints, those that match `via` or `first` are kept,
/// and those of networks within the host are left out first.
pub fn own(port: u16, via: &[u8], first: Option<IpAddr>) -> Vec<Endpoint> {
    let mut all = interface_addresses().unwrap_or_default();
    // The sort is stable; otherwise the addresses keep the system's order.
    all.sort_by_key(|known| (!names(via, known), Some(known.address) != first, is_inner(&known.interface)));
    let number = |known: &InterfaceAddress| all.iter().position(|other| other.interface == known.interface);
    let mut rate = rates();
    let told = all.iter().map(|known| Endpoint {
        interface: number(known).and_then(|number| u8::try_from(number).ok()),
        ..Endpoint::new(known.address, port, known.prefix_bits, rate(&known.interface), names(via, known))
    });
    told.take(ENDPOINTS_MAX).collect()
}

/// Returns a function that tells the speed of an interface's link in Mb/s. The driver is asked once for each.
fn rates() -> impl FnMut(&str) -> u32 {
    let mut known = HashMap::new();
    move |interface| *known.entry(interface.to_owned()).or_insert_with(|| rate_mbps(interface))
}

/// Returns the endpoints that are addresses of an interface, as rail addresses of their host.
pub fn ways(told: &[Endpoint]) -> Vec<RailAddress> {
    let way = |endpoint: &Endpoint| {
        let &Endpoint { prefix_bits, rate_mbps, interface, .. } = endpoint;
        Some(RailAddress { interface: interface?, address: endpoint.socket_address()?.ip(), prefix_bits, rate_mbps })
    };
    told.iter().take(ENDPOINTS_MAX).filter_map(way).collect()
}

/// Returns this host's loopback addresses, for an end on the same kernel.
pub fn loopback(port: u16) -> [Endpoint; 2] {
    let local = |address| Endpoint::new(address, port, 0, 0, false);
    [local(Ipv4Addr::LOCALHOST.into()), local(Ipv6Addr::LOCALHOST.into())]
}

/// Returns the endpoint of an address that the user has given.
pub fn given(address: SocketAddr) -> Endpoint {
    Endpoint::new(address.ip(), address.port(), 0, 0, true)
}

fn names(via: &[u8], known: &InterfaceAddress) -> bool {
    known.interface.as_bytes() == via || std::str::from_utf8(via).is_ok_and(|via| via.parse() == Ok(known.address))
}

/// Returns the endpoints that an end must try, out of those that the other end has announced, and the restriction for
/// trying them. If `via` names endpoints of the other end, only these are returned, and there is no further
/// restriction.
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

/// Returns the offered endpoints in the order in which to try them: those on a subnet of this host first, then by the
/// speed of the slower link. With `via`, only endpoints on a subnet of the interface or address that it names on this
/// host.
///
/// # Errors
///
/// Why there is no endpoint to try.
pub fn ranked(offered: &[Endpoint], via: &[u8]) -> Result<Vec<SocketAddr>, String> {
    let here = interface_addresses().unwrap_or_default();
    let ranked = rank(offered, &here, via, rates());
    if ranked.is_empty() { Err(why_none(offered, &here, via)) } else { Ok(ranked) }
}

/// Returns `via` with the port of the other end, if `via` is an address that this host does not have. The other end may
/// be reachable at this address without having it: at a published port of a container, or behind address translation.
pub fn foreign(offered: &[Endpoint], via: &[u8]) -> Option<SocketAddr> {
    let address = std::str::from_utf8(via).ok()?.parse::<IpAddr>().ok()?.to_canonical();
    // A connection over loopback would be taken for one within this host, and would not be encrypted.
    let is_here = address.is_loopback()
        || address.is_unspecified()
        || interface_addresses().unwrap_or_default().iter().any(|own| own.address == address);
    if is_here {
        return None;
    }
    Some(SocketAddr::new(address, offered.first()?.port))
}

/// Returns the endpoints to try for a host that ssh has reached at `reached_at`. That address is added if it is public
/// and not among the host's own, because then it is translated on the way.
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

/// Whether an address is outside the private ranges: RFC 1918, RFC 6598 (addresses that providers translate), RFC 4193,
/// and link-local ranges.
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
        format!("the other end has no address on a network of {name}")
    } else {
        let addresses = offered.iter().filter_map(|endpoint| Some(endpoint.socket_address()?.ip().to_string()));
        let there = sample(addresses.collect());
        let here = format!("{} has {}", own_name(), listed(here));
        format!("neither end has an interface or an address {name}; {here}; the other end has {there}")
    }
}

/// Returns this host's own name.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Lists interfaces with their addresses, for a message: `e0 (10.9.0.1, fd00:9::1), e1 (10.8.0.1)`.
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

/// Lists the first few items, and how many more there are.
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
    mut rate_mbps: impl FnMut(&str) -> u32,
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
    // The sort is stable, because ends announce their addresses in an order of their own.
    found.sort_by_key(|&(near, rate, _)| std::cmp::Reverse((near, rate)));
    found.into_iter().map(|(_, _, address)| address).collect()
}

fn shares_subnet(own: &InterfaceAddress, endpoint: &Endpoint) -> bool {
    let bits_max = if own.address.is_ipv4() { 32 } else { 128 };
    // A single address is not a network: several hosts may have it.
    own.prefix_bits == endpoint.prefix_bits
        && own.prefix_bits < bits_max
        && endpoint.socket_address().is_some_and(|other| same_subnet(own.address, other.ip(), own.prefix_bits))
}

/// Returns this host's address to which ssh has connected, as sshd reports it.
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
            offered("172.16.0.2", 24, 400_000), // fast, but not on a network of this host
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
        assert_eq!(why_none(&[], &ours, b"10.1.0.1"), "the other end has no address on a network of 10.1.0.1");
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
