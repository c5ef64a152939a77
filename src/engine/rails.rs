//! Additional routes to the other end. The listening end announces addresses, and the dialling end forms pairs from
//! them, for TCP and for RDMA. A pair serves RDMA if there is an RDMA device behind both of its addresses.
//!
//! The peer's announcement must not cause connections to arbitrary addresses. An address is tried only if it is on the
//! same network as an interface of this host, over that interface, and at the session's port. This host's own addresses
//! are never tried. No address is tried if the address on which the session began is not announced, because then an
//! address translator or a tunnel stands in between. Rails that share an interface at either end are left out, because
//! they would share its capacity.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use rd_proto::control::{Endpoint as Offered, RailAddress};

use crate::options::RailChoice;
use crate::transport::rdma::{Endpoint, InterfaceAddress, interface_addresses};
use crate::transport::{leads_elsewhere, rate_mbps, same_subnet, tcp, unmapped};

/// A rail whose link is slower than the first rail's by more than this factor adds next to nothing.
const SLOWER_MAX: u32 = 10;

/// A rail as the dialling end sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rail {
    /// Name of the interface of this host.
    pub(crate) interface: String,
    /// Address of this host.
    pub(crate) local: IpAddr,
    /// Address of the other end.
    pub(crate) peer: IpAddr,
}

impl std::fmt::Display for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} > {})", self.interface, self.local, self.peer)
    }
}

/// Returns the addresses of this host's interfaces. Those with labels are not on interfaces of their own.
pub(super) fn here() -> Vec<InterfaceAddress> {
    interface_addresses().unwrap_or_default().into_iter().map(InterfaceAddress::without_label).collect()
}

/// Returns the names that `--rails` accepts at this host: the interfaces that another host can reach.
pub(crate) fn names() -> Vec<String> {
    let here = here();
    let mut names: Vec<String> = Vec::new();
    for known in here.into_iter().filter(|known| is_usable(known.address)) {
        if !names.contains(&known.interface) {
            names.push(known.interface);
        }
    }
    names
}

/// Returns the addresses that the listening end announces: those of `here` that the choice allows, and the address on
/// which the session began. That address comes first, then one of each interface in turn. Empty if there is no second
/// interface, or if no second rail is wanted.
pub(super) fn tell(choice: &RailChoice, began_on: IpAddr, here: &[InterfaceAddress]) -> Vec<RailAddress> {
    let first = here.iter().find(|known| known.address == began_on).map(|known| &*known.interface);
    let has = |name: &str| here.iter().any(|known| known.interface == name);
    let is_told = |known: &&InterfaceAddress| {
        is_usable(known.address) && (Some(&*known.interface) == first || choice.allows(&known.interface, has))
    };
    let mut interfaces: Vec<&str> = Vec::new();
    let mut told: Vec<((bool, usize), RailAddress)> = Vec::new();
    for known in here.iter().filter(is_told) {
        let at = interfaces.iter().position(|&name| name == known.interface).unwrap_or_else(|| {
            interfaces.push(&known.interface);
            interfaces.len() - 1
        });
        let Ok(interface) = u8::try_from(at) else { break };
        let &InterfaceAddress { address, prefix_bits, .. } = known;
        let nth = told.iter().filter(|(_, earlier)| earlier.interface == interface).count();
        let address = RailAddress { interface, address, prefix_bits, rate_mbps: rate_mbps(&known.interface) };
        told.push(((address.address != began_on, nth), address));
    }
    if interfaces.len() < 2 || choice.most() < 2 {
        return Vec::new();
    }
    // A long list is cut (`ENDPOINTS_MAX`), and a peer that lacks the address on which the session began finds no rail.
    told.sort_by_key(|(order, _)| *order);
    told.into_iter().map(|(_, address)| address).collect()
}

/// Returns the rails to an end that has announced these addresses, beginning with the rail on which the session began.
/// `first` holds the two addresses of that rail. Empty if there is only one rail.
pub(crate) fn find(choice: &RailChoice, first: [SocketAddr; 2], told: &[RailAddress]) -> Vec<Rail> {
    let [local, peer] = first.map(unmapped);
    if tcp::is_within_host(local, peer) {
        return Vec::new();
    }
    let here = here();
    pair(choice, [local.ip(), peer.ip()], &here, told, |own| Some(rate_mbps(&own.interface)))
}

/// Returns why [`find`] or [`pair_devices`] finds only one rail; `None` if both ends are on one host. `told`: what the
/// other end has announced, if it has.
pub(super) fn why_one(
    first: [SocketAddr; 2],
    choice: &RailChoice,
    told: Option<&[RailAddress]>,
) -> Option<&'static str> {
    let [local, peer] = first.map(unmapped);
    (!tcp::is_within_host(local, peer)).then(|| lacking(choice, [local.ip(), peer.ip()], &here(), told))
}

fn lacking(
    choice: &RailChoice,
    [local, peer]: [IpAddr; 2],
    here: &[InterfaceAddress],
    told: Option<&[RailAddress]>,
) -> &'static str {
    let Some(told) = told else { return "the other end has announced no other" };
    let first = here.iter().find(|own| own.address == local).map(|own| &*own.interface);
    if first.is_none() || !told.iter().any(|known| known.address == peer) {
        return "the ends have other addresses than this connection, as behind an address translator";
    }
    let has = |name: &str| here.iter().any(|own| own.interface == name);
    let is_other = |own: &InterfaceAddress| {
        is_usable(own.address) && Some(&*own.interface) != first && choice.allows(&own.interface, has)
    };
    if !here.iter().any(is_other) {
        "this end has no other that may be used"
    } else if pair(choice, [local, peer], here, told, |_| Some(0)).is_empty() {
        "the ends have no other subnet in common"
    } else {
        "no other that the ends have in common has an RDMA device at each"
    }
}

/// Does the same as [`find`] between RDMA devices of the same kind as the devices of the first pair.
pub(super) fn pair_devices(
    choice: &RailChoice,
    first: [IpAddr; 2],
    here: &[InterfaceAddress],
    told: &[RailAddress],
    local: &[Endpoint],
    remote: &[Offered],
) -> Vec<Rail> {
    let own = |address: IpAddr| local.iter().find(|endpoint| endpoint.address == address);
    let offered = |address: IpAddr| remote.iter().find(|offered| unmapped(offered.address).ip() == address);
    let (Some(own_first), Some(peer_first)) = (own(first[0]), offered(first[1])) else { return Vec::new() };
    // The rates in ADDRESSES are those of network interfaces; an adapter has a rate of its own.
    let told: Vec<RailAddress> = told
        .iter()
        .filter_map(|known| {
            let device = offered(known.address).filter(|device| device.hardware == peer_first.hardware)?;
            Some(RailAddress { rate_mbps: device.rate_mbps, ..*known })
        })
        .collect();
    let rate = |known: &InterfaceAddress| {
        own(known.address).filter(|device| device.medium == own_first.medium).map(|device| device.rate_mbps)
    };
    pair(choice, first, here, &told, rate)
}

/// Whether an address can be another route to a host. Multicast, broadcast and unspecified addresses cannot.
fn is_usable(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    leads_elsewhere(address) && !is_broadcast && !address.is_multicast() && !address.is_unspecified()
}

/// Forms the rails. `rate_mbps` returns the rate of an address of this host; `None` excludes the address.
fn pair(
    choice: &RailChoice,
    [local, peer]: [IpAddr; 2],
    here: &[InterfaceAddress],
    told: &[RailAddress],
    rate_mbps: impl Fn(&InterfaceAddress) -> Option<u32>,
) -> Vec<Rail> {
    let has = |name: &str| here.iter().any(|own| own.interface == name);
    let (Some(own_first), Some(peer_first)) = (
        here.iter().find(|own| own.address == local),
        // If the address is not announced, the other end is not where it seems to be.
        told.iter().find(|known| known.address == peer),
    ) else {
        return Vec::new();
    };
    let first_rate = rate_mbps(own_first).unwrap_or(0).min(peer_first.rate_mbps);
    let mut candidates: Vec<(u32, &InterfaceAddress, &RailAddress)> = Vec::new();
    for known in told.iter().filter(|known| is_usable(known.address)) {
        if known.interface == peer_first.interface || here.iter().any(|own| own.address == known.address) {
            continue;
        }
        for own in here.iter().filter(|own| choice.allows(&own.interface, has)) {
            let bits_max = if own.address.is_ipv4() { 32 } else { 128 };
            let is_near = own.prefix_bits == known.prefix_bits
                && own.prefix_bits < bits_max
                && same_subnet(own.address, known.address, own.prefix_bits);
            let Some(rate) = rate_mbps(own).map(|rate| rate.min(known.rate_mbps)) else { continue };
            // A link that is far too slow is not tried.
            let is_worth_it = *choice != RailChoice::Auto || rate == 0 || SLOWER_MAX * rate >= first_rate;
            if is_near && is_worth_it && is_usable(own.address) && own.interface != own_first.interface {
                candidates.push((rate, own, known));
            }
        }
    }
    // The sort is stable, because each end has its addresses in an order of its own.
    candidates.sort_by_key(|(rate, own, _)| (Reverse(*rate), own.address.is_ipv6()));
    let rail = |own: &InterfaceAddress, peer| Rail { interface: own.interface.clone(), local: own.address, peer };
    let mut rails = vec![rail(own_first, peer)];
    let mut used = vec![peer_first.interface];
    for (_, own, known) in candidates {
        let is_free = !used.contains(&known.interface) && rails.iter().all(|rail| rail.interface != own.interface);
        if is_free && rails.len() < usize::from(choice.most()) {
            used.push(known.interface);
            rails.push(rail(own, known.address));
        }
    }
    if rails.len() > 1 { rails } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Medium;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn own(interface: &str, address: &str, prefix_bits: u8) -> InterfaceAddress {
        InterfaceAddress { interface: interface.to_owned(), address: ip(address), prefix_bits }
    }

    fn told(interface: u8, address: &str, prefix_bits: u8) -> RailAddress {
        RailAddress { interface, address: ip(address), prefix_bits, rate_mbps: 1000 }
    }

    fn found(choice: &str, here: &[InterfaceAddress], told: &[RailAddress]) -> Vec<String> {
        let choice = RailChoice::parse(choice).expect("a choice");
        let rates = |own: &InterfaceAddress| {
            Some(match &*own.interface {
                "slow" => 100,
                "snail" => 10,
                _ => 1000,
            })
        };
        let rails = pair(&choice, [ip("10.1.0.1"), ip("10.1.0.2")], here, told, rates);
        rails.iter().map(|rail| format!("{} {}", rail.interface, rail.peer)).collect()
    }

    #[test]
    fn rails_have_no_interface_in_common() {
        let here = [
            own("e0", "10.1.0.1", 24),
            own("e0", "10.6.0.1", 24),
            own("slow", "10.4.0.1", 24),
            own("e1", "10.2.0.1", 24),
            own("e1", "fd00:3::1", 64),
            own("e2", "10.3.0.1", 24),
        ];
        let there = [
            told(0, "10.1.0.2", 24),
            told(1, "fd00:3::2", 64),
            told(1, "10.2.0.2", 24),
            told(2, "10.6.0.2", 24),
            told(3, "10.4.0.2", 24),
            told(4, "10.3.0.2", 24),
            told(4, "10.1.0.9", 24),
        ];
        let all = ["e0 10.1.0.2", "e1 10.2.0.2", "e2 10.3.0.2", "slow 10.4.0.2"];
        assert_eq!(found("auto", &here, &there), all);
        let snail = own("snail", "10.9.0.1", 24);
        let with_it = [told(0, "10.1.0.2", 24), told(5, "10.9.0.2", 24)];
        assert!(found("auto", &[here[0].clone(), snail.clone()], &with_it).is_empty(), "a link of a hundredth");
        assert_eq!(found("all", &[here[0].clone(), snail], &with_it).len(), 2);
        assert_eq!(found("3", &here, &there), all[..3]);
        assert!(found("1", &here, &there).is_empty());
        assert_eq!(found("e2,slow", &here, &there), [all[0], all[2], all[3]]);
        assert_eq!(found("ens9", &here, &there), all, "a name of the other end");
        assert!(found("all", &here[..2], &there).is_empty(), "one interface here");
        assert!(found("all", &here, &there[..1]).is_empty(), "one interface there");
    }

    #[test]
    fn a_lack_of_rails_has_a_reason() {
        let here = [own("e0", "10.1.0.1", 24), own("e1", "10.2.0.1", 24)];
        let first = told(0, "10.1.0.2", 24);
        let near = [first, told(1, "10.2.0.2", 24)];
        let far = [first, told(1, "10.3.0.2", 24)];
        let why = |choice: &str, here: &[InterfaceAddress], told: Option<&[RailAddress]>| {
            lacking(&RailChoice::parse(choice).expect("a choice"), [ip("10.1.0.1"), ip("10.1.0.2")], here, told)
        };
        assert!(why("all", &here, None).contains("announced"));
        assert!(why("2", &here, Some(&near[1..])).contains("translator"));
        assert!(why("all", &here[1..], Some(&near)).contains("translator"));
        assert!(why("all", &here[..1], Some(&near)).contains("this end has no other"));
        assert!(why("e0", &here, Some(&near)).contains("this end has no other"), "the other may not be used");
        assert!(why("all", &here, Some(&far)).contains("subnet"));
        assert!(why("all", &here, Some(&near)).contains("RDMA device"));
        let ends = [SocketAddr::from(([127, 0, 0, 1], 1)); 2];
        assert_eq!(why_one(ends, &RailChoice::All, None), None, "within a host no network is used");
    }

    #[test]
    fn rails_of_rdma_are_between_devices_of_the_kind_that_the_session_began_on() {
        use Medium::{RdmaHardware, RdmaSoftware};
        let device = |name: &str, medium, address: &str, rate_mbps| Endpoint {
            device: name.to_owned(),
            medium,
            address: ip(address),
            prefix_bits: 24,
            rate_mbps,
            mtu_bytes: 0,
            mtu_max_bytes: 0,
            is_iwarp: false,
        };
        let offered = |hardware, address: &str| Offered {
            hardware,
            address: address.parse().expect("an address"),
            prefix_bits: 24,
            rate_mbps: 100_000,
        };
        let here = ["10.1.0.1", "10.2.0.1", "10.3.0.1", "10.4.0.1"].into_iter().enumerate();
        let here: Vec<_> = here.map(|(at, address)| own(&format!("e{at}"), address, 24)).collect();
        let there = ["10.1.0.2", "10.2.0.2", "10.3.0.2", "10.4.0.2"].into_iter().zip(0..);
        let there: Vec<_> = there.map(|(address, at)| told(at, address, 24)).collect();
        // The third network has no device at the peer, and the fourth has a device of another kind here.
        let local = [
            device("a", RdmaHardware, "10.1.0.1", 100_000),
            device("b", RdmaHardware, "10.2.0.1", 100_000),
            device("c", RdmaHardware, "10.3.0.1", 100_000),
            device("d", RdmaSoftware, "10.4.0.1", 100_000),
        ];
        let remote = [offered(true, "10.1.0.2:5"), offered(true, "10.2.0.2:6"), offered(true, "10.4.0.2:8")];
        let found = |first: [&str; 2], local: &[Endpoint], remote: &[Offered]| {
            let rails = pair_devices(&RailChoice::All, first.map(ip), &here, &there, local, remote);
            rails.iter().map(|rail| format!("{} {}", rail.interface, rail.peer)).collect::<Vec<_>>()
        };
        assert_eq!(found(["10.1.0.1", "10.1.0.2"], &local, &remote), ["e0 10.1.0.2", "e1 10.2.0.2"]);
        assert_eq!(found(["10.2.0.1", "10.2.0.2"], &local, &remote), ["e1 10.2.0.2", "e0 10.1.0.2"]);
        let software = [offered(true, "10.1.0.2:5"), offered(false, "10.2.0.2:6")];
        assert!(found(["10.1.0.1", "10.1.0.2"], &local, &software).is_empty(), "another kind there");
        assert!(found(["10.1.0.1", "10.1.0.2"], &local[..1], &remote).is_empty(), "one device here");
        assert!(found(["10.1.0.1", "10.1.0.2"], &local, &remote[..1]).is_empty(), "one device there");
        assert!(found(["10.9.0.1", "10.9.0.2"], &local, &remote).is_empty(), "a device that is not known any more");
    }

    #[test]
    fn names_restrict_what_a_listener_tells() {
        let here = [own("e0", "10.1.0.1", 24), own("e1", "10.2.0.1", 24), own("e2", "10.3.0.1", 24)];
        let told = |choice: &str| {
            let choice = RailChoice::parse(choice).expect("a choice");
            let told = tell(&choice, ip("10.1.0.1"), &here);
            told.iter().map(|known| known.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(told("auto"), ["10.1.0.1", "10.2.0.1", "10.3.0.1"]);
        assert_eq!(told("e2"), ["10.1.0.1", "10.3.0.1"], "and the one that the session began on");
        assert_eq!(told("ens9"), told("auto"), "a name of the other end");
        assert!(told("e0").is_empty() && told("1").is_empty());
    }

    #[test]
    fn no_interface_is_missing_from_the_beginning_of_a_long_list() {
        let mut here: Vec<_> = (1..=40).map(|host| own("e0", &format!("10.1.0.{host}"), 24)).collect();
        here.extend([own("e1", "fd00:2::1", 64), own("e1", "10.2.0.1", 24), own("e2", "10.3.0.1", 24)]);
        let told = tell(&RailChoice::Auto, ip("10.2.0.1"), &here);
        assert_eq!(told.len(), here.len());
        let first: Vec<_> = told[..5].iter().map(|known| known.address.to_string()).collect();
        assert_eq!(first, ["10.2.0.1", "10.1.0.1", "fd00:2::1", "10.3.0.1", "10.1.0.2"]);
    }

    #[test]
    fn a_peer_has_nothing_connected_that_is_not_on_a_network_of_this_host() {
        let here = [own("e0", "10.1.0.1", 24), own("e1", "10.2.0.1", 24), own("wg0", "10.5.0.1", 32)];
        let first = told(0, "10.1.0.2", 24);
        for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1"] {
            assert!(found("all", &here, &[first, told(1, address, 24)]).is_empty(), "{address}");
        }
        for (address, prefix_bits) in [("192.168.1.1", 0), ("10.2.0.1", 24), ("10.2.0.9", 8), ("10.5.0.1", 32)] {
            let rails = found("all", &here, &[first, told(1, address, prefix_bits)]);
            assert!(rails.is_empty(), "{address}/{prefix_bits}: {rails:?}");
        }
        assert_eq!(found("all", &here, &[first, told(1, "10.2.0.9", 24)]).len(), 2);
        let translated = [told(0, "172.16.0.2", 24), told(1, "10.2.0.9", 24)];
        assert!(found("all", &here, &translated).is_empty(), "the address that was connected to is not its own");
    }
}
