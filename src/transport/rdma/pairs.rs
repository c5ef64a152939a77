//! Which local addresses to try with which of the peer's addresses.

use std::cmp::Reverse;
use std::net::IpAddr;

use rd_proto::control::Endpoint as Offered;

use super::Endpoint;
use crate::transport::{Medium, same_subnet};

/// Returns every pair of a local and a remote endpoint that could connect, best first.
///
/// The order is: pairs in one subnet before pairs that need a router; then hardware at both ends before software; then
/// the faster pair, by its slower end, with an unknown rate slowest; then the pair whose remote address TCP has
/// `reached`. Equal pairs keep the order given. IPv4 and IPv6 never pair.
pub fn pairs<'a>(
    local: &'a [Endpoint],
    remote: &'a [Offered],
    reached: Option<IpAddr>,
) -> Vec<(&'a Endpoint, &'a Offered)> {
    let mut pairs: Vec<_> = local
        .iter()
        .flat_map(|local| remote.iter().map(move |remote| (local, remote)))
        .filter(|(local, remote)| local.address.is_ipv4() == remote.address.is_ipv4())
        .collect();
    pairs.sort_by_key(|(local, remote)| {
        let bits = local.prefix_bits.min(remote.prefix_bits);
        let routed = !same_subnet(local.address, remote.address.ip(), bits);
        let software = local.medium != Medium::RdmaHardware || !remote.hardware;
        let is_other = Some(remote.address.ip()) != reached;
        (routed, software, Reverse(local.rate_mbps.min(remote.rate_mbps)), is_other)
    });
    pairs
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn local(device: &str, medium: Medium, address: &str, rate_mbps: u32) -> Endpoint {
        Endpoint {
            device: device.to_owned(),
            medium,
            address: address.parse().expect("an address"),
            prefix_bits: if address.contains(':') { 64 } else { 24 },
            rate_mbps,
            mtu_bytes: 0,
            mtu_max_bytes: 0,
            is_iwarp: false,
        }
    }

    fn remote(medium: Medium, address: &str, rate_mbps: u32) -> Offered {
        let address: SocketAddr = address.parse().expect("an address");
        let prefix_bits = if address.is_ipv4() { 24 } else { 64 };
        Offered { hardware: medium == Medium::RdmaHardware, address, prefix_bits, rate_mbps }
    }

    fn order(local: &[Endpoint], remote: &[Offered]) -> Vec<String> {
        pairs(local, remote, "10.5.0.2".parse().ok())
            .iter()
            .map(|(local, remote)| format!("{} {}", local.device, remote.address))
            .collect()
    }

    #[test]
    fn subnet_then_hardware_then_rate() {
        use Medium::{RdmaHardware, RdmaSoftware};
        let ours = [
            local("rxe0", RdmaSoftware, "10.9.0.1", 10_000),
            local("slow0", RdmaHardware, "10.8.0.1", 10_000),
            local("fast0", RdmaHardware, "10.7.0.1", 100_000),
        ];
        let theirs = [
            remote(RdmaHardware, "10.9.0.2:1", 10_000),
            remote(RdmaHardware, "10.8.0.2:1", 100_000),
            remote(RdmaHardware, "10.7.0.2:1", 100_000),
        ];
        let order = order(&ours, &theirs);
        assert_eq!(order[..3], ["fast0 10.7.0.2:1", "slow0 10.8.0.2:1", "rxe0 10.9.0.2:1"]);
        // Through a router: hardware first, the faster pair first, and the software device last of all.
        assert_eq!(order[3], "fast0 10.8.0.2:1");
        assert!(order[7..].iter().all(|pair| pair.starts_with("rxe0")), "{order:?}");
    }

    #[test]
    fn of_equals_the_one_that_was_reached() {
        let ours = ["10.4.0.1", "10.5.0.1"].map(|address| local(address, Medium::RdmaHardware, address, 100_000));
        let mut theirs = ["10.4.0.2:1", "10.5.0.2:1"].map(|address| remote(Medium::RdmaHardware, address, 100_000));
        assert_eq!(order(&ours, &theirs)[0], "10.5.0.1 10.5.0.2:1");
        theirs[1].rate_mbps = 10_000;
        assert_eq!(order(&ours, &theirs)[0], "10.4.0.1 10.4.0.2:1", "a faster one comes first");
    }

    #[test]
    fn families_never_pair_and_unknown_rates_come_last() {
        use Medium::RdmaHardware;
        let ours = [local("a", RdmaHardware, "fd00:9::1", 0), local("b", RdmaHardware, "fd00:9::2", 25_000)];
        let theirs = [remote(RdmaHardware, "10.9.0.2:1", 25_000), remote(RdmaHardware, "[fd00:9::3]:7", 25_000)];
        assert_eq!(order(&ours, &theirs), ["b [fd00:9::3]:7", "a [fd00:9::3]:7"]);
        assert!(pairs(&ours, &[], None).is_empty());
    }

    #[test]
    fn a_prefix_of_any_length_is_compared() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(same_subnet(address("10.0.0.1"), address("11.0.0.1"), 0));
        assert!(same_subnet(address("10.0.0.1"), address("10.0.0.1"), 32));
        assert!(!same_subnet(address("10.0.0.1"), address("10.0.0.0"), 32));
        assert!(same_subnet(address("fd00::1"), address("fd00::1"), 255));
        assert!(!same_subnet(address("fd00::1"), address("10.0.0.1"), 0));
    }
}
