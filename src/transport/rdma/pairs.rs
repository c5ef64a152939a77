//! Which of our addresses to try with which of the peer's.

use std::net::{IpAddr, SocketAddr};

use super::Endpoint;
use crate::transport::Medium;

/// An address at which the peer listens for RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// Hardware or software.
    pub medium: Medium,
    /// Address and port.
    pub address: SocketAddr,
    /// Leading bits of the address that name its subnet.
    pub prefix_bits: u8,
    /// Rate of its port in megabits per second; 0 if unknown.
    pub rate_mbps: u32,
}

/// Every pair of a local and a remote endpoint that could connect, the best first.
///
/// A pair in one subnet comes before one that needs a router, then hardware at both ends before software, then the
/// faster (by its slower end; an unknown rate is the slowest). Otherwise the order given is kept. IPv4 and IPv6 never
/// pair.
pub fn pairs(local: &[Endpoint], remote: &[RemoteEndpoint]) -> Vec<(Endpoint, RemoteEndpoint)> {
    let mut pairs: Vec<_> = local
        .iter()
        .flat_map(|local| remote.iter().map(move |remote| (local, remote)))
        .filter(|(local, remote)| local.address.is_ipv4() == remote.address.is_ipv4())
        .collect();
    pairs.sort_by_key(|(local, remote)| {
        let bits = local.prefix_bits.min(remote.prefix_bits);
        let routed = !same_subnet(local.address, remote.address.ip(), bits);
        let software = local.medium != Medium::RdmaHardware || remote.medium != Medium::RdmaHardware;
        let rate_mbps = local.rate_mbps.min(remote.rate_mbps);
        (routed, software, std::cmp::Reverse(rate_mbps))
    });
    pairs.into_iter().map(|(local, remote)| (local.clone(), remote.clone())).collect()
}

/// Whether the leading `bits` of two addresses of one family agree.
fn same_subnet(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (u32::from(one) ^ u32::from(other)).leading_zeros() >= u32::from(bits.min(32))
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (u128::from(one) ^ u128::from(other)).leading_zeros() >= u32::from(bits.min(128))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(device: &str, medium: Medium, address: &str, rate_mbps: u32) -> Endpoint {
        Endpoint {
            device: device.to_owned(),
            medium,
            address: address.parse().expect("an address"),
            prefix_bits: if address.contains(':') { 64 } else { 24 },
            rate_mbps,
        }
    }

    fn remote(medium: Medium, address: &str, rate_mbps: u32) -> RemoteEndpoint {
        let address: SocketAddr = address.parse().expect("an address");
        RemoteEndpoint { medium, address, prefix_bits: if address.is_ipv4() { 24 } else { 64 }, rate_mbps }
    }

    fn order(local: &[Endpoint], remote: &[RemoteEndpoint]) -> Vec<String> {
        pairs(local, remote).iter().map(|(local, remote)| format!("{} {}", local.device, remote.address)).collect()
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
        // Through a router: hardware first, faster first, and the software device last of all.
        assert_eq!(order[3], "fast0 10.8.0.2:1");
        assert!(order[7..].iter().all(|pair| pair.starts_with("rxe0")), "{order:?}");
    }

    #[test]
    fn families_never_pair_and_unknown_rates_come_last() {
        use Medium::RdmaHardware;
        let ours = [local("a", RdmaHardware, "fd00:9::1", 0), local("b", RdmaHardware, "fd00:9::2", 25_000)];
        let theirs = [remote(RdmaHardware, "10.9.0.2:1", 25_000), remote(RdmaHardware, "[fd00:9::3]:7", 25_000)];
        assert_eq!(order(&ours, &theirs), ["b [fd00:9::3]:7", "a [fd00:9::3]:7"]);
        assert!(pairs(&ours, &[]).is_empty());
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
