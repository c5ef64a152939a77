//! Finds hosts of a broadcast that are one machine, that are near each other, or that are on slow links.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Copy, Run, Target, names_of};
use crate::control::endpoints::ENDPOINTS_MAX;
use crate::control::frames::Placed;
use crate::fault::{Exit, Failure};
use crate::transport::{leads_elsewhere, subnet};

impl Copy<'_> {
    /// Returns why a host cannot get its copy: another host would write to the same place. The two hosts are names of
    /// one machine, or containers on one machine that share a directory. Their copies would be in each other's way.
    pub(super) fn is_same_place(&self, run: &Run, at: usize, placed: &Placed) -> Option<Failure> {
        let host = run.targets[at].host?;
        let names = names_of(placed, &run.found);
        let is_same = |(at, other): &(usize, &Target)| {
            let (Some(there), Some(theirs)) = (other.host, &other.placed) else { return false };
            // A target that has failed may be added again, under any name.
            let is_one = !run.has_failed(*at) && there != host && placed.spot.is_some() && placed.spot == theirs.spot;
            is_one && self.job.is_one_kernel(there, host) && names_of(theirs, &run.found) == names
        };
        let first = run.targets.iter().enumerate().find(is_same)?.1.host?;
        let (one, other) = (self.label(first), self.label(host));
        let line = format!("{other} is the same machine as {one}, with the same destination; name only one of them");
        Some(Exit::Usage.with(line))
    }
}

/// A subnet: its address and its prefix length in bits.
type Network = (IpAddr, u8);

/// A link that is slower than another by more than this factor is much slower, and its host comes behind the others.
const MUCH_SLOWER: u64 = 2;

/// An address that a host announces: its subnet, the address itself, and the speed of its link.
type Told = (Network, IpAddr, u32);

/// Returns the order of the chain: as named by the user, except that hosts of one subnet are placed next to each other,
/// and hosts with much slower links come behind the others.
///
/// Each host is followed by the host that shares the smallest subnet with it. A subnet with a single host says nothing.
/// Neither does an address that several hosts have, such as that of a bridge for containers. What hosts announce
/// affects nothing except the order.
pub(super) fn in_order<'a>(hosts: impl Iterator<Item = (usize, &'a Placed)>) -> Vec<usize> {
    let (names, told): (Vec<usize>, Vec<Vec<Told>>) = hosts.map(|(host, placed)| (host, told(placed))).unzip();
    let told = without_common(told);
    let mut sizes: BTreeMap<Network, usize> = BTreeMap::new();
    for network in told.iter().flat_map(|told| told.iter().map(|it| it.0).collect::<BTreeSet<_>>()) {
        *sizes.entry(network).or_default() += 1;
    }
    // The sets begin with the smallest subnet.
    let shared = |told: &Vec<Told>| -> BTreeSet<(usize, Network)> {
        told.iter().map(|(network, ..)| (sizes[network], *network)).filter(|(size, _)| *size > 1).collect()
    };
    let networks: Vec<BTreeSet<(usize, Network)>> = told.iter().map(shared).collect();
    let rates: Vec<u32> = told.iter().zip(&networks).map(|(told, shared)| rate(told, shared)).collect();
    let ranks = ranks(&rates);
    let mut left: Vec<usize> = (0..names.len()).collect();
    let mut order: Vec<usize> = Vec::new();
    while !left.is_empty() {
        let distance = |host: usize| {
            let last = order.last().map(|&last| &networks[last]);
            let common = last.and_then(|last| networks[host].iter().find(|network| last.contains(network)));
            (ranks[host], common.map_or(usize::MAX, |(size, _)| *size))
        };
        // Takes the first of equally near hosts.
        let next = (0..left.len()).min_by_key(|&at| distance(left[at])).unwrap_or(0);
        order.push(left.remove(next));
    }
    order.into_iter().map(|host| names[host]).collect()
}

/// Returns the addresses that a host announces, except those that other hosts cannot reach.
fn told(placed: &Placed) -> Vec<Told> {
    let told = placed.addresses.iter().take(ENDPOINTS_MAX).filter_map(|endpoint| {
        let address = endpoint.socket_address()?.ip();
        let network = (subnet(address, endpoint.prefix_bits), endpoint.prefix_bits);
        Some((network, address, endpoint.rate_mbps))
    });
    told.filter(|(_, address, _)| leads_elsewhere(*address)).collect()
}

/// Leaves out addresses that several hosts have.
fn without_common(mut told: Vec<Vec<Told>>) -> Vec<Vec<Told>> {
    let mut holders: BTreeMap<IpAddr, BTreeSet<usize>> = BTreeMap::new();
    for (host, told) in told.iter().enumerate() {
        for (_, address, _) in told {
            holders.entry(*address).or_default().insert(host);
        }
    }
    told.iter_mut().for_each(|told| told.retain(|(_, address, _)| holders[address].len() == 1));
    told
}

/// Returns the speed of the link by which others reach a host, preferably in a network with other hosts. 0 if unknown.
fn rate(told: &[Told], shared: &BTreeSet<(usize, Network)>) -> u32 {
    let is_shared = |network: &Network| shared.iter().any(|(_, other)| other == network);
    let there = told.iter().filter(|(network, ..)| shared.is_empty() || is_shared(network));
    there.map(|(.., rate)| *rate).max().unwrap_or(0)
}

/// Returns for each host how many kinds of links are much faster than its own. A link of unknown speed does not count
/// as slow.
fn ranks(rates: &[u32]) -> Vec<usize> {
    let mut sorted: Vec<u32> = rates.iter().copied().filter(|&rate| rate > 0).collect();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    let mut fastest: Vec<u32> = Vec::new();
    for rate in sorted {
        if fastest.last().is_none_or(|&last| u64::from(rate) * MUCH_SLOWER < u64::from(last)) {
            fastest.push(rate);
        }
    }
    let rank = |rate: &u32| fastest.iter().rposition(|fastest| rate <= fastest).filter(|_| *rate > 0).unwrap_or(0);
    rates.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use proptest::test_runner::{RngAlgorithm, TestRng};
    use rand_core::Rng as _;

    use super::*;
    use crate::control::frames::Endpoint;

    fn endpoint(address: [u8; 4], prefix_bits: u8, rate_mbps: u32) -> Endpoint {
        Endpoint { address: address.to_vec(), port: 0, prefix_bits, rate_mbps, is_via: false, interface: None }
    }

    fn placed(addresses: &[([u8; 4], u8, u32)]) -> Placed {
        let addresses = addresses.iter().map(|&(address, bits, rate)| endpoint(address, bits, rate));
        Placed { addresses: addresses.collect(), ..Placed::default() }
    }

    fn order(hosts: &[Placed]) -> Vec<usize> {
        in_order(hosts.iter().enumerate())
    }

    #[test]
    fn hosts_of_one_subnet_stand_together() {
        let hosts = [
            placed(&[([10, 0, 1, 7], 24, 0), ([127, 0, 0, 1], 8, 0)]),
            placed(&[([10, 0, 2, 7], 24, 0), ([10, 8, 0, 1], 16, 0)]),
            placed(&[([10, 0, 1, 9], 24, 0)]),
            placed(&[]),
            placed(&[([10, 0, 2, 1], 24, 0)]),
            placed(&[([10, 0, 9, 7], 200, 0), ([10, 0, 1, 8], 0, 0)]),
        ];
        assert_eq!(order(&hosts), [0, 2, 1, 4, 3, 5]);
    }

    /// All hosts are in one network, and in a smaller one for each rack. Some have a bridge for containers as well.
    #[test]
    fn the_smallest_network_counts() {
        let host = |number: u8| {
            let (rack, bridge) = (number % 3, ([172, 17, 0, 1], 16, 10_000));
            let mut addresses = vec![([10, 0, 0, 10 + number], 16, 1000), ([10, 1, rack, 10 + number], 24, 25_000)];
            addresses.extend(number.is_multiple_of(2).then_some(bridge));
            placed(&addresses)
        };
        let hosts: Vec<Placed> = (0..9).map(host).collect();
        assert_eq!(order(&hosts), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
    }

    #[test]
    fn those_on_slow_links_come_last() {
        let link = |number: u8, rate: u32| placed(&[([10, 0, 0, number], 24, rate), ([172, 17, 0, 1], 16, 40_000)]);
        // The speed of the third host's link is unknown.
        let hosts: Vec<Placed> = [1000, 25_000, 0, 10_000, 20_000, 1000, 25_000, 100]
            .into_iter()
            .enumerate()
            .map(|(at, rate)| link(at as u8, rate))
            .collect();
        assert_eq!(order(&hosts), [1, 2, 4, 6, 3, 0, 5, 7]);
        // A fast link into a network without other hosts does not help.
        let hosts = [
            placed(&[([10, 0, 0, 1], 24, 1000), ([10, 9, 0, 1], 24, 100_000)]),
            placed(&[([10, 0, 0, 2], 24, 25_000)]),
            placed(&[([10, 0, 0, 3], 24, 25_000)]),
        ];
        assert_eq!(order(&hosts), [1, 2, 0]);
    }

    /// Racks of random sizes with links of random speeds. Hosts of each speed rank are together, within that each rack,
    /// and within each rack the hosts are in the order named.
    #[test]
    fn random_sets_are_in_order() {
        for seed in 0..300_u64 {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
            let mut below = |bound: u64| rng.next_u64() % bound;
            let (count, racks) = (1 + below(40), 1 + below(6));
            let speeds = [1000, 1000, 10_000, 25_000, 100_000, 0];
            let all: Vec<(usize, u32)> =
                (0..count).map(|_| (below(racks) as usize, speeds[below(6) as usize])).collect();
            let host = |(at, &(rack, rate)): (usize, &(usize, u32))| {
                placed(&[([127, 0, 0, 1], 8, 0), ([10, rack as u8, 0, at as u8], 24, rate)])
            };
            let hosts: Vec<Placed> = all.iter().enumerate().map(host).collect();
            let order = order(&hosts);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..all.len()), "seed {seed}: {order:?}");
            // Checks the resulting order, not how it was reached.
            let ranks = ranks(&all.iter().map(|(_, rate)| *rate).collect::<Vec<_>>());
            assert!(order.is_sorted_by_key(|&host| ranks[host]), "seed {seed}: {order:?} of {all:?}");
            for (at, &host) in order.iter().enumerate() {
                let is_like = |&other: &usize| (ranks[other], all[other].0) == (ranks[host], all[host].0);
                let like: Vec<usize> = order[at..].iter().copied().take_while(is_like).collect();
                let rest = order[at + like.len()..].iter().copied().filter(is_like).count();
                assert!(rest == 0 && like.is_sorted(), "seed {seed}: {order:?} of {all:?}");
            }
        }
    }

    /// Whatever hosts announce, each is in the chain once, and hosts that announce nothing keep the order named.
    #[test]
    fn what_hosts_make_up_only_moves_them() {
        for seed in 0..300_u64 {
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
            let mut below = |bound: u64| rng.next_u64() % bound;
            let mut hosts: Vec<Placed> = Vec::new();
            for _ in 0..1 + below(12) {
                let mut addresses = Vec::new();
                for _ in 0..below(70) {
                    let bytes = [4, 16, 0, 3][below(4) as usize];
                    let address = (0..bytes).map(|_| below(3) as u8).collect();
                    let (prefix_bits, rate_mbps) = (below(256) as u8, [0, 1, u32::MAX][below(3) as usize]);
                    addresses.push(Endpoint { address, prefix_bits, rate_mbps, ..endpoint([0; 4], 0, 0) });
                }
                hosts.push(Placed { addresses, ..Placed::default() });
            }
            hosts.extend([Placed::default(), Placed::default()]);
            let order = order(&hosts);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..hosts.len()), "seed {seed}: {order:?}");
            let silent: Vec<usize> = order.into_iter().filter(|&host| hosts[host].addresses.is_empty()).collect();
            assert!(silent.is_sorted(), "seed {seed}: {silent:?}");
        }
        assert_eq!(order(&vec![Placed::default(); 5]), [0, 1, 2, 3, 4]);
    }
}
