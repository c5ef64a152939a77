//! Pairs of many hosts: decides which pairs are measured at once, and judges pairs and hosts by the rates.
//!
//! The rounds form a round-robin tournament: each host is in at most one pair of a round, so no host is measured with
//! two others at once. Rates are compared with the median, which a few bad pairs do not move. A fault that most pairs
//! of a host share is reported once, for that host.

use std::collections::BTreeSet;

use super::Speed;
use super::finding::{Finding, Fix};
use super::words::{joined, rate_words};

/// A pair below this share of the median, in percent, is slow.
const SLOW_PERCENT: u64 = 70;

/// A pair counts as slow only if its distance below the median is at least this many percent of the median distance of
/// the pairs above the median. Where rates vary anyway, a low rate is nothing special. For a normal distribution, 148
/// is one standard deviation.
const DEVIATIONS_PERCENT: u64 = 450;

/// If at least this share of a host's pairs is bad, in percent, the host is blamed.
const HOST_PERCENT: usize = 60;

/// How to give hosts a connection of their own.
const CONNECT: &str = "open a port in the firewalls between them and name it with --port-range; run rddoctor on \
    one of them to see what blocks it";

fn rate(mbps: u64) -> String {
    rate_words(mbps as f64 * 125e3)
}

fn others(count: usize) -> String {
    if count == 1 { "1 other host".to_owned() } else { format!("{count} other hosts") }
}

/// Returns how many rounds it takes until every pair of this many hosts has been measured.
pub fn rounds(hosts: usize) -> usize {
    if hosts < 2 { 0 } else { hosts + hosts % 2 - 1 }
}

/// Returns the pairs of a round. No host is in two of them.
pub fn round(hosts: usize, round: usize) -> Vec<(usize, usize)> {
    let others = rounds(hosts);
    let turned = (1..others.div_ceil(2)).map(|at| ((round + at) % others, (round + others - at) % others));
    // The last host keeps its place. If the number of hosts is odd, one host is left out.
    let all = std::iter::once((round % others.max(1), others)).chain(turned);
    all.filter(|&(one, other)| one.max(other) < hosts && one != other).collect()
}

/// Returns which of `all` rounds to measure if there is time for only `at_most`: they are spread as evenly as possible.
pub fn sampled(all: usize, at_most: usize) -> Vec<usize> {
    let count = all.min(at_most);
    (0..count).map(|at| at * all / count).collect()
}

/// Measurement of one direction of a pair.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host.
    pub to: usize,
    /// The measured speed, or why it could not be measured.
    pub speed: Result<Speed, String>,
}

impl Measured {
    /// The rate in Mbit/s; `None` if it says nothing about the network between the hosts.
    pub fn mbps(&self) -> Option<u64> {
        self.speed.as_ref().ok().filter(|speed| !speed.is_tunneled).map(Speed::mbps)
    }
}

/// Measurements between several hosts.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// Names of the hosts, for display.
    pub hosts: Vec<String>,
    /// The measured pairs.
    pub pairs: Vec<Measured>,
    /// Number of rounds that were measured.
    pub rounds: usize,
    /// Number of rounds with every pair; see [`rounds`].
    pub rounds_all: usize,
}

/// What is wrong with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The pair is slower than most.
    Slow,
    /// The pair has only the launcher's connection.
    Tunneled,
    /// Nothing could be sent.
    Unmeasured,
}

/// Sorts a list and returns its median; 0 for an empty list.
fn median(numbers: &mut [u64]) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

impl Matrix {
    fn rates(&self) -> Vec<u64> {
        self.pairs.iter().filter_map(Measured::mbps).collect()
    }

    /// Returns the median and the rate below which a pair is slow, both in Mbit/s.
    fn bounds(&self) -> (u64, u64) {
        let mut rates = self.rates();
        let middle = median(&mut rates);
        // The rates above the median show how much rates vary anyway, because up to half of all pairs may be slow.
        let mut away: Vec<u64> = rates.iter().filter_map(|rate| rate.checked_sub(middle)).collect();
        let spread = median(&mut away) * DEVIATIONS_PERCENT / 100;
        (middle, (middle * SLOW_PERCENT / 100).min(middle.saturating_sub(spread)))
    }

    /// Returns what is wrong with each pair, in the order of `pairs`.
    pub fn faults(&self) -> Vec<Option<Fault>> {
        let (_, slow) = self.bounds();
        let fault = |pair: &Measured| match (&pair.speed, pair.mbps()) {
            (Err(_), _) => Some(Fault::Unmeasured),
            (Ok(_), None) => Some(Fault::Tunneled),
            (Ok(_), Some(mbps)) => (mbps < slow).then_some(Fault::Slow),
        };
        self.pairs.iter().map(fault).collect()
    }

    /// Returns the findings about the rates, the pairs and the hosts.
    pub fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut rates = self.rates();
        let middle = median(&mut rates);
        if let (Some(&least), Some(&most)) = (rates.first(), rates.last()) {
            let mut media: Vec<&str> = Vec::new();
            for speed in self.pairs.iter().filter_map(|pair| pair.speed.as_ref().ok()) {
                let medium = match speed.medium.as_str() {
                    "rdma" => "RDMA",
                    "rdma-software" => "RDMA in software",
                    "tcp" => "TCP",
                    other => other,
                };
                if !media.contains(&medium) {
                    media.push(medium);
                }
            }
            let (count, span) = (rates.len(), format!("from {} to {}", rate(least), rate(most)));
            let found = format!("{count} measured: median {}, {span}, {}", rate(middle), media.join(" and "));
            findings.push(Finding::well("rates", "rates", found));
        }
        if self.rounds < self.rounds_all {
            let (rounds, all) = (self.rounds, self.rounds_all);
            let found =
                format!("{rounds} of {all} measured, limited by --within: each host with at most {rounds} others");
            findings.push(Finding::well("rounds", "rounds-left-out", found));
        }
        let faults = self.faults();
        for fault in [Fault::Unmeasured, Fault::Tunneled, Fault::Slow] {
            let bad: BTreeSet<usize> = (0..self.pairs.len()).filter(|&at| faults[at] == Some(fault)).collect();
            findings.extend(self.blame(fault, bad));
        }
        findings
    }

    /// Reports faults that most pairs of a host share once, for that host, and the remaining faults for each pair.
    fn blame(&self, fault: Fault, mut bad: BTreeSet<usize>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut blamed: Vec<usize> = Vec::new();
        if fault != Fault::Slow && bad.len() > 2 && bad.len() * 100 >= self.pairs.len() * HOST_PERCENT {
            // The cause is not a host, but the network between the hosts.
            let its: Vec<usize> = bad.into_iter().collect();
            let hosts: BTreeSet<usize> = its.iter().flat_map(|&at| [self.pairs[at].from, self.pairs[at].to]).collect();
            return vec![self.of_network(fault, hosts.len(), &its)];
        }
        while let Some((host, with)) = self.worst(&bad, &blamed) {
            blamed.push(host);
            let is_its = |at: &usize| [self.pairs[*at].from, self.pairs[*at].to].contains(&host);
            let its: Vec<usize> = bad.iter().copied().filter(is_its).collect();
            bad.retain(|at| !is_its(at));
            findings.push(self.of_host(fault, host, with, &its));
        }
        findings.extend(bad.into_iter().map(|at| self.of_pair(fault, &self.pairs[at])));
        findings
    }

    /// Returns the host with the most bad pairs, and with how many other hosts its pairs are bad. Only hosts whose
    /// pairs are mostly bad in at least one direction are considered. Pairs with hosts that have been blamed already do
    /// not count.
    fn worst(&self, bad: &BTreeSet<usize>, blamed: &[usize]) -> Option<(usize, usize)> {
        let count = self.hosts.len();
        // For each host: the pairs in which the host sends, and those in which it receives; all pairs, then the bad
        // pairs.
        let mut pairs = vec![[[0_usize; 2]; 2]; count];
        let mut with: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
        for (at, pair) in
            self.pairs.iter().enumerate().filter(|(_, it)| !blamed.contains(&it.from) && !blamed.contains(&it.to))
        {
            for (side, host, other) in [(0, pair.from, pair.to), (1, pair.to, pair.from)] {
                pairs[host][side][0] += 1;
                if bad.contains(&at) {
                    pairs[host][side][1] += 1;
                    with[host].insert(other);
                }
            }
        }
        // A single bad pair is not enough to blame a host.
        let is_bad = |[all, bad]: &[usize; 2]| *bad >= 2 && bad * 100 >= all * HOST_PERCENT;
        let candidates = (0..count).filter(|&host| pairs[host].iter().any(is_bad));
        let worst = candidates.max_by_key(|&host| (pairs[host][0][1] + pairs[host][1][1], std::cmp::Reverse(host)))?;
        Some((worst, with[worst].len()))
    }

    /// Returns why the first of these pairs that could not be measured was not.
    fn reason(&self, its: &[usize]) -> &str {
        its.iter().find_map(|&at| self.pairs[at].speed.as_ref().err()).map_or("", String::as_str)
    }

    /// Returns the finding about a fault of most pairs. `hosts`: the number of hosts that have it.
    fn of_network(&self, fault: Fault, hosts: usize, its: &[usize]) -> Finding {
        if fault == Fault::Tunneled {
            let found = format!("most of {hosts} hosts cannot connect to each other");
            let why = "data between them goes through ssh and this host, slowly";
            return Finding::failure("host", "hosts-not-reached", found, why, Fix::advice(CONNECT));
        }
        let found = format!("most of {hosts} hosts could not be measured: {}", self.reason(its));
        let why = "copies between them would fail the same way";
        Finding::failure("host", "hosts-unmeasured", found, why, Fix::advice("see the checks above"))
    }

    fn of_host(&self, fault: Fault, host: usize, with: usize, its: &[usize]) -> Finding {
        let (name, with) = (&self.hosts[host], others(with));
        let finding = match fault {
            Fault::Slow => {
                let of = |way: &str, is_it: fn(&Measured, usize) -> bool| {
                    let bad = its.iter().filter(|&&at| is_it(&self.pairs[at], host)).count();
                    let all = || self.pairs.iter().filter(|pair| is_it(pair, host));
                    let mut rates: Vec<u64> = all().filter_map(Measured::mbps).collect();
                    let is_slow = bad * 100 >= all().count() * HOST_PERCENT && bad > 0;
                    if is_slow { format!("{way} {}", rate(median(&mut rates))) } else { String::new() }
                };
                let ways = [of("sends", |pair, host| pair.from == host), of("receives", |pair, host| pair.to == host)];
                let (ways, usual) = (joined(ways, ", "), rate(self.bounds().0));
                Finding::warning(
                    "host",
                    "host-slow",
                    format!("{ways}; median of all pairs {usual}; slow with {with}"),
                    "what these pairs have in common is this host, its cable or its switch port",
                    Fix::advice(format!(
                        "check this host first: rddoctor {name}; what else runs on it; ethtool INTERFACE there"
                    )),
                )
            }
            Fault::Tunneled => Finding::failure(
                "host",
                "host-not-reached",
                format!("no connection to {with}"),
                "a firewall or a missing route; data goes through ssh and this host, slowly",
                Fix::advice(CONNECT),
            ),
            Fault::Unmeasured => Finding::failure(
                "host",
                "host-unmeasured",
                format!("could not be measured with {with}: {}", self.reason(its)),
                "copies would fail the same way",
                Fix::advice(format!("check this host first: rddoctor {name}")),
            ),
        };
        finding.about(name)
    }

    fn of_pair(&self, fault: Fault, pair: &Measured) -> Finding {
        let finding = match (fault, &pair.speed) {
            (_, Err(reason)) => Finding::failure(
                "pair",
                "pair-unmeasured",
                format!("could not be measured: {reason}"),
                "a copy would fail the same way",
                Fix::advice("see the checks above; or run rddoctor on one of the two with the other as HOST"),
            ),
            (Fault::Slow, Ok(speed)) => {
                let limiter = match speed.limiter.as_str() {
                    "cpu" => ", limited by processors",
                    "credits" | "sink" => ", limited by the receiver",
                    "wire" => ", limited by the network",
                    _ => "",
                };
                Finding::warning(
                    "pair",
                    "pair-slow",
                    format!("{}{limiter}; median of all pairs {}", rate(speed.mbps()), rate(self.bounds().0)),
                    "both hosts are fast with the other hosts, so the path between these two is slow",
                    Fix::advice("check what only these two share: a link between switches, a route, a rate limit"),
                )
            }
            (_, Ok(_)) => Finding::failure(
                "pair",
                "pair-not-reached",
                "no connection in either direction",
                "a firewall or a missing route; data goes through ssh and this host, slowly",
                Fix::advice(CONNECT),
            ),
        };
        finding.about(format!("{} -> {}", self.hosts[pair.from], self.hosts[pair.to]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::finding::Level;

    #[test]
    fn every_pair_meets_once_and_no_host_twice_in_a_round() {
        for hosts in 0..=33 {
            let mut met = BTreeSet::new();
            for at in 0..rounds(hosts) {
                let pairs = round(hosts, at);
                assert_eq!(pairs.len(), hosts / 2, "{hosts} hosts");
                let mut busy = BTreeSet::new();
                for (one, other) in pairs {
                    assert!(busy.insert(one) && busy.insert(other), "{hosts} hosts, round {at}");
                    assert!(met.insert((one.min(other), one.max(other))), "{hosts} hosts, round {at}");
                }
            }
            assert_eq!(met.len(), hosts * hosts.saturating_sub(1) / 2, "{hosts} hosts");
        }
    }

    #[test]
    fn rounds_are_left_out_evenly() {
        assert_eq!(sampled(7, 100), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(sampled(10, 4), [0, 2, 5, 7]);
        assert_eq!(sampled(0, 4), [0_usize; 0]);
        assert_eq!(sampled(1023, 130).len(), 130);
    }

    /// All pairs of `hosts` hosts, each as fast as `rate` says in Mbit/s; 0 means tunneled, 1 means not measured.
    fn matrix(hosts: usize, rate: impl Fn(usize, usize) -> u64) -> Matrix {
        let measured = |from: usize, to: usize| {
            let mbps = rate(from, to);
            let speed =
                Speed { bytes: mbps * 125_000, micros: 1_000_000, medium: "tcp".to_owned(), ..Speed::default() };
            let speed = match mbps {
                0 => Ok(Speed { is_tunneled: true, bytes: 125_000, ..speed }),
                1 => Err("no way".to_owned()),
                _ => Ok(speed),
            };
            Measured { from, to, speed }
        };
        let pairs = (0..hosts).flat_map(|from| (0..hosts).filter(move |to| *to != from).map(move |to| (from, to)));
        Matrix {
            hosts: (0..hosts).map(|host| format!("n{host}")).collect(),
            pairs: pairs.map(|(from, to)| measured(from, to)).collect(),
            rounds: rounds(hosts),
            rounds_all: rounds(hosts),
        }
    }

    fn told(matrix: &Matrix) -> Vec<String> {
        let bad = matrix.examine().into_iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| format!("{} {}: {}", finding.about, finding.code, finding.found)).collect()
    }

    /// A rate with some noise that is the same in every run.
    fn about(mbps: u64, from: usize, to: usize) -> u64 {
        mbps + (from * 31 + to * 17) as u64 % 11 * mbps / 200
    }

    #[test]
    fn equal_hosts_are_well() {
        assert_eq!(told(&matrix(8, |from, to| about(10_000, from, to))), [""; 0]);
        // Rates that vary as on a busy machine.
        let unsteady = matrix(8, |from, to| 2_000 + (from * 7919 + to * 104_729) as u64 % 8_000);
        assert_eq!(told(&unsteady), [""; 0]);
        assert_eq!(told(&matrix(2, |_, _| 100)), [""; 0]);
    }

    #[test]
    fn a_slow_pair_is_named() {
        for hosts in [4, 8, 64] {
            let one = matrix(hosts, |from, to| if (from, to) == (2, 3) { 200 } else { about(1_000, from, to) });
            let told = told(&one);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with("n2 -> n3 pair-slow: 25 MB/s; median of all pairs 12"), "{told:?}");
        }
    }

    #[test]
    fn what_slow_pairs_have_in_common_is_named() {
        for hosts in [4, 8, 64] {
            let slow = |host: usize, mbps| {
                matrix(hosts, move |from, to| if from == host || to == host { mbps } else { about(1_000, from, to) })
            };
            let found = told(&slow(3, 200));
            assert_eq!(found.len(), 1, "{found:?}");
            let with = hosts - 1;
            assert!(found[0].starts_with("n3 host-slow: sends 25 MB/s, receives 25 MB/s; median"), "{found:?}");
            assert!(found[0].ends_with(&format!("slow with {with} other hosts")), "{found:?}");
            // One direction only; then two hosts.
            let found = told(&matrix(hosts, |from, to| if from == 1 { 300 } else { about(1_000, from, to) }));
            assert!(found.len() == 1 && found[0].starts_with("n1 host-slow: sends 38 MB/s; median"), "{found:?}");
        }
        let two =
            matrix(
                16,
                |from, to| {
                    if [4, 9].iter().any(|it| *it == from || *it == to) { 250 } else { about(1_000, from, to) }
                },
            );
        let found = told(&two);
        assert!(
            found.len() == 2 && found[0].starts_with("n4 host-slow") && found[1].starts_with("n9 host-slow"),
            "{found:?}"
        );
    }

    #[test]
    fn connections_that_are_not_made() {
        let cut = |bad: u64| matrix(8, move |from, to| if from == 5 || to == 5 { bad } else { about(1_000, from, to) });
        assert_eq!(told(&cut(0)), ["n5 host-not-reached: no connection to 7 other hosts"]);
        assert_eq!(told(&cut(1)), ["n5 host-unmeasured: could not be measured with 7 other hosts: no way"]);
        let pair = matrix(8, |from, to| if (from, to) == (1, 2) { 1 } else { 1_000 });
        assert_eq!(told(&pair), ["n1 -> n2 pair-unmeasured: could not be measured: no way"]);
        // If hardly any two hosts have a connection, that is reported once.
        let none = " hosts-not-reached: most of 4 hosts cannot connect to each other";
        assert_eq!(told(&matrix(4, |_, _| 0)), [none]);
    }
}
