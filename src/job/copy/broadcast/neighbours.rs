//! Which hosts of a broadcast are one machine, and which are near each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Copy, Run, Target, names_of};
use crate::control::frames::Placed;
use crate::fault::{Exit, Failure};

impl Copy<'_> {
    /// Why a host cannot get its copy: another one would write to the same place. They are two names of one machine, or two of
    /// its containers that share a directory; their copies would be in each other's way.
    pub(super) fn is_same_place(&self, run: &Run, at: usize, placed: &Placed) -> Option<Failure> {
        let host = run.targets[at].host?;
        let names = names_of(placed, &run.found);
        let is_same = |other: &&Target| {
            let (Some(there), Some(theirs)) = (other.host, &other.placed) else { return false };
            let is_one = there != host && placed.spot.is_some() && placed.spot == theirs.spot;
            is_one && self.job.is_one_kernel(there, host) && names_of(theirs, &run.found) == names
        };
        let first = run.targets.iter().find(is_same)?.host?;
        let (one, other) = (self.label(first), self.label(host));
        let line = format!("{other} is the same machine as {one}, with the same place: name it once");
        Some(Failure::new(Exit::Usage, line))
    }
}

type Network = (IpAddr, u8);

/// Puts hosts that are in the same networks beside each other: each group where its first host was named. A network that
/// one host alone is in says nothing.
pub(super) fn near_each_other<'a>(hosts: impl Iterator<Item = (usize, &'a Placed)>) -> Vec<usize> {
    let hosts: Vec<(usize, BTreeSet<Network>)> = hosts.map(|(host, placed)| (host, networks(placed))).collect();
    let mut count: BTreeMap<Network, usize> = BTreeMap::new();
    for network in hosts.iter().flat_map(|(_, networks)| networks) {
        *count.entry(*network).or_default() += 1;
    }
    let mut groups: Vec<(BTreeSet<Network>, Vec<usize>)> = Vec::new();
    for (host, mut networks) in hosts {
        networks.retain(|network| count[network] > 1);
        match groups.iter_mut().find(|(others, _)| *others == networks) {
            Some((_, group)) => group.push(host),
            None => groups.push((networks, vec![host])),
        }
    }
    groups.into_iter().flat_map(|(_, group)| group).collect()
}

fn networks(placed: &Placed) -> BTreeSet<Network> {
    let is_own = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    };
    let networks = placed.addresses.iter().filter_map(|address| Some((address.subnet()?, address.prefix_bits)));
    networks.filter(|(address, _)| !is_own(*address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frames::Endpoint;

    fn placed(addresses: &[([u8; 4], u8)]) -> Placed {
        let endpoint = |&(address, prefix_bits): &([u8; 4], u8)| Endpoint {
            address: address.to_vec(),
            port: 0,
            prefix_bits,
            rate_mbps: 0,
            is_via: false,
        };
        Placed { addresses: addresses.iter().map(endpoint).collect(), ..Placed::default() }
    }

    #[test]
    fn hosts_of_one_subnet_stand_together() {
        let hosts = [
            placed(&[([10, 0, 1, 7], 24), ([127, 0, 0, 1], 8)]),
            placed(&[([10, 0, 2, 7], 24), ([10, 8, 0, 1], 16)]),
            placed(&[([10, 0, 1, 9], 24)]),
            placed(&[]),
            placed(&[([10, 0, 2, 1], 24)]),
            placed(&[([10, 0, 1, 7], 200), ([10, 0, 1, 8], 0)]),
        ];
        assert_eq!(near_each_other(hosts.iter().enumerate()), [0, 2, 1, 4, 3, 5]);
    }
}
