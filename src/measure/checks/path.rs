//! Checks of the path between two hosts.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use rd_proto::control::ERRNO_MAX;

use super::tcp::tcp;
use crate::fault::os_number;
use crate::measure::counters::{Counter, compare_counters};
use crate::measure::facts::{Address, Facts, Interface, Pci, RdmaAddress};
use crate::measure::finding::{Finding, Fix, Level, Outcome};
use crate::measure::probe::Attempt;
use crate::measure::words::{joined, link_rate, rate_words, time};
use crate::measure::{Path, Speed};
use crate::transport::{is_inner, leads_elsewhere};

/// An agent that takes longer is waiting for something, such as a name that does not resolve or an unused
/// authentication method.
const AGENT_SLOW_MICROS: u64 = 3_000_000;

/// Share of the link's capacity, in percent, below which something limits the transfer.
const RDMA_LOW_PERCENT: u64 = 70;
const TCP_LOW_PERCENT: u64 = 40;

/// Bytes of TCP and IPv4 headers around a packet's payload, and bytes that Ethernet adds to each packet on the wire.
const TCP_HEADER_BYTES: u64 = 20 + 20 + 12;
const ETHERNET_BYTES: u64 = 14 + 4 + 8 + 12;
/// The same for RDMA packets: BTH, ICRC, and the headers that carry them.
const RDMA_HEADER_BYTES: u64 = 12 + 4 + 20 + 8 + ETHERNET_BYTES;

/// Ports that are proposed if the user names none.
const PORTS: RangeInclusive<u16> = 47_000..=47_099;

/// Runs the checks of the path between two hosts, in the order in which their findings are reported. `ports`: those
/// that the user has named.
pub fn compare(path: &Path, ports: Option<&RangeInclusive<u16>>) -> Vec<Finding> {
    let mut findings =
        [agent(path), duplicates(path), subnets(path), route(path), mtus(path), reach(path, ports), bandwidth(path)]
            .concat();
    let counted = counters(path);
    findings.extend(tcp(path, &counted));
    findings.extend(counted);
    findings
}

fn counters(path: &Path) -> Vec<Finding> {
    let Some([here, there]) = &path.after else { return Vec::new() };
    let compared = |about, facts: &Facts, after: &[Counter]| {
        compare_counters(about, !facts.devices.is_empty(), &facts.counters, after)
    };
    let mut findings = compared("there", &path.there, there);
    if !path.is_one_machine {
        findings.extend(compared("here", &path.here, here));
    }
    findings
}

fn agent(path: &Path) -> Vec<Finding> {
    let (here, there) = (&path.here.program, &path.there.program);
    let after = time(path.agent_micros);
    let mut findings = vec![if path.agent_micros > AGENT_SLOW_MICROS {
        Finding::warning(
            "ssh",
            "agent-slow",
            format!("the agent answered after {after}"),
            "every copy takes that long to start, unless ssh asked for a password or about the host's key",
            Fix::advice(
                "ssh -v shows what it waits for: often UseDNS or GSSAPIAuthentication; set them to `no` in sshd_config",
            ),
        )
    } else {
        Finding::well("ssh", "agent", format!("the agent answered in {after}, rdma-pipe {there}"))
    }];
    if here != there {
        findings.push(Finding::warning(
            "versions",
            "versions",
            format!("rdma-pipe {here} here, {there} there"),
            "features that only one of them has cannot be used",
            Fix::advice("install the same release on both hosts"),
        ));
    }
    findings
}

fn up(facts: &Facts) -> impl Iterator<Item = &Interface> {
    facts.interfaces.iter().filter(|interface| interface.is_up && !is_inner(&interface.name))
}

/// Returns pairs of interfaces in one subnet, with the address of the second interface. Link-local addresses count only
/// if there are no others: any host may have them on a network of its own, such as that of its management controller.
fn near(path: &Path) -> Vec<(&Interface, &Interface, &Address)> {
    let of_kind = |is_wanted: fn(&Address) -> bool| {
        let pairs = up(&path.here).flat_map(|ours| {
            up(&path.there).filter_map(move |theirs| {
                let shared = |address: &&Address| {
                    is_wanted(address) && ours.addresses.iter().any(|own| own.shares_subnet(address))
                };
                Some((ours, theirs, theirs.addresses.iter().find(shared)?))
            })
        });
        pairs.collect::<Vec<_>>()
    };
    let usual = of_kind(|address| leads_elsewhere(address.ip));
    if usual.is_empty() { of_kind(|_| true) } else { usual }
}

fn duplicates(path: &Path) -> Vec<Finding> {
    if path.is_one_machine {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for ours in up(&path.here) {
        for theirs in up(&path.there) {
            // A link-local address may be the same on every host.
            let is_twice =
                |own: &&Address| leads_elsewhere(own.ip) && theirs.addresses.iter().any(|it| it.ip == own.ip);
            for address in ours.addresses.iter().filter(is_twice) {
                let ip = address.ip;
                findings.push(Finding::failure(
                    "addresses",
                    "address-twice",
                    format!("both {} here and {} there have {ip}", ours.name, theirs.name),
                    "packets to it reach either of the two hosts, or neither",
                    Fix::advice(format!(
                        "give one of the two another address: ip address del {ip}/BITS dev INTERFACE, ip address add"
                    )),
                ));
            }
        }
    }
    findings
}

fn subnets(path: &Path) -> Vec<Finding> {
    let (here, there) = (&path.here.rdma, &path.there.rdma);
    if here.is_empty() != there.is_empty() {
        let without = if here.is_empty() { &path.here.host } else { &path.there.host };
        let found = format!("{without} has no RDMA; data goes over TCP");
        return vec![Finding::well("subnets", "rdma-one-sided", found)];
    }
    let shared = here.iter().any(|ours| there.iter().any(|theirs| ours.address.shares_subnet(&theirs.address)));
    // A fabric of routers, in which each port has a subnet of its own, needs no shared one.
    let mut tried = [&path.to_there, &path.to_here].into_iter().flat_map(|tried| attempts(tried.as_ref()));
    let connects = tried.any(|attempt| attempt.is_rdma && is_connected(&attempt));
    if here.is_empty() || shared || connects || path.is_one_machine {
        return Vec::new();
    }
    let told = |all: &[RdmaAddress]| {
        let told = all.iter().map(|known| format!("{}/{}", known.address.ip, known.address.prefix_bits));
        told.collect::<Vec<_>>().join(", ")
    };
    vec![Finding::warning(
        "subnets",
        "subnet-missing",
        format!("RDMA addresses here: {}; there: {}", told(here), told(there)),
        "no two are in the same subnet, so data needs a router, which InfiniBand cannot have",
        Fix::advice(
            "give both ends of the fast network addresses in one subnet: ip address add ADDRESS/BITS dev INTERFACE",
        ),
    )]
}

/// Reports which interface ssh uses, and which interface the data would use.
fn route(path: &Path) -> Vec<Finding> {
    let Ok(ip) = path.there.ssh.parse() else { return Vec::new() };
    let Some(ssh) = path.there.interface_of(ip) else { return Vec::new() };
    let best = near(path).into_iter().max_by_key(|(ours, theirs, _)| ours.rate_mbps.min(theirs.rate_mbps));
    let Some((ours, theirs, _)) = best else { return Vec::new() };
    let rate = ours.rate_mbps.min(theirs.rate_mbps);
    let told = |interface: &Interface, rate_mbps: u32| joined([interface.name.clone(), link_rate(rate_mbps)], " ");
    let by_ssh = told(ssh, ssh.rate_mbps);
    // If both are equally fast, the interface that ssh uses is as good.
    let found = if rate > ssh.rate_mbps && theirs.name != ssh.name {
        format!("ssh uses {by_ssh}, the data {}", told(theirs, rate))
    } else {
        format!("ssh and the data use {by_ssh}")
    };
    vec![Finding::well("route", "route", found)]
}

fn mtus(path: &Path) -> Vec<Finding> {
    // An MTU of 0 is unknown.
    let differ = |ours: &Interface, theirs: &Interface| ours.mtu != theirs.mtu && ours.mtu > 0 && theirs.mtu > 0;
    let finding = |(ours, theirs, _): (&Interface, &Interface, &Address)| {
        let (less, more) = if ours.mtu < theirs.mtu { (ours, theirs) } else { (theirs, ours) };
        let found = format!("{} here has MTU {}, {} there has {}", ours.name, ours.mtu, theirs.name, theirs.mtu);
        // Ends of TCP agree on the smaller one, which is no problem unless the path carries even less. A queue pair of
        // RoCE uses the connecting end's, which the other interface may not take.
        let by_rdma = |facts: &Facts, interface: &Interface| {
            facts.rdma.iter().any(|own| interface.addresses.contains(&own.address))
        };
        let is_rdma = by_rdma(&path.here, ours) && by_rdma(&path.there, theirs);
        let works = match &path.speed {
            Some(Err(_)) => None,
            _ if !is_rdma => Some("both use the smaller one"),
            Some(Ok(speed)) if speed.medium == "rdma" => Some("RDMA works all the same"),
            _ => None,
        };
        if let Some(works) = works {
            return Finding::well("path mtu", "mtu-differs", format!("{found}: {works}"));
        }
        Finding::warning(
            "path mtu",
            "mtu-differs",
            found,
            "if the network between them does not carry the larger packets, these are lost, and connections stall",
            Fix::advice(format!(
                "set {} to MTU {} on the host where it is {}; use {} at both only if every switch and tunnel between \
                 them carries it",
                more.name, less.mtu, more.mtu, more.mtu
            )),
        )
    };
    near(path).into_iter().filter(|(ours, theirs, _)| differ(ours, theirs)).map(finding).collect()
}

/// Returns the attempts that were made; none if no port could be opened for them.
fn attempts(tried: Option<&Result<Vec<Attempt>, String>>) -> &[Attempt] {
    tried.and_then(|tried| tried.as_deref().ok()).unwrap_or_default()
}

fn is_connected(attempt: &&Attempt) -> bool {
    attempt.outcome == Outcome::Connected
}

fn reach(path: &Path, ports: Option<&RangeInclusive<u16>>) -> Vec<Finding> {
    if path.is_untried {
        return vec![Finding::warning(
            "port",
            "ports-untried",
            "no port was tried, because the ports of other hosts took too long",
            "connections were not tested and may fail",
            Fix::advice("run rddoctor for fewer hosts at once"),
        )];
    }
    let (there, back) = (attempts(path.to_there.as_ref()), attempts(path.to_here.as_ref()));
    let mut findings = Vec::new();
    findings.extend(reach_tcp(path, ports, there, back));
    for (check, tried) in [("port", &path.to_there), ("port back", &path.to_here)] {
        if let Some(Err(reason)) = tried {
            findings.push(Finding::warning(
                check,
                "probe-failed",
                format!("cannot open a port for the test: {reason}"),
                "connections were not tested and may fail",
                Fix::advice("choose free ports: --port-range FIRST-LAST"),
            ));
        }
    }
    if !path.here.rdma.is_empty() && !path.there.rdma.is_empty() {
        findings.extend(reach_rdma(path, there, back));
    }
    findings
}

fn reach_rdma(path: &Path, there: &[Attempt], back: &[Attempt]) -> Option<Finding> {
    let both: Vec<&Attempt> = there.iter().chain(back).filter(|attempt| attempt.is_rdma).collect();
    if let Some(attempt) = both.iter().copied().find(is_connected) {
        let found = format!("{} over rdma_cm in {}", attempt.address, time(attempt.micros));
        return Some(Finding::well("rdma port", "rdma-reached", found));
    }
    if both.is_empty() {
        return None;
    }
    let silent = both.iter().all(|attempt| matches!(attempt.outcome, Outcome::Silent | Outcome::Unreachable(_)));
    let why = if silent {
        "both hosts have RDMA, but packets do not arrive; data goes over TCP"
    } else {
        "both hosts have RDMA, but they cannot connect with it; data goes over TCP"
    };
    let is_roce = path.there.devices.iter().flat_map(|device| &device.ports).any(|port| port.is_roce());
    let fix = if is_roce {
        // RoCE v2 always uses this UDP port, whatever port rdma_cm reports.
        let_in(&path.there.firewall, &(4791..=4791), "udp")
    } else {
        Fix::advice(
            "try `rping -s` there and `rping -c -a ADDRESS` here; for iWARP, firewalls must allow its TCP ports",
        )
    };
    let finding = Finding::failure("rdma port", "rdma-not-reached", missed(&both), why, fix);
    let has_hardware = |facts: &Facts| facts.rdma.iter().any(|known| known.is_hardware);
    let is_hardware = has_hardware(&path.here) && has_hardware(&path.there);
    Some(Finding { level: if is_hardware { Level::Failure } else { Level::Warning }, ..finding })
}

fn reach_tcp(path: &Path, ports: Option<&RangeInclusive<u16>>, there: &[Attempt], back: &[Attempt]) -> Option<Finding> {
    let tcp: Vec<&Attempt> = there.iter().filter(|attempt| !attempt.is_rdma).collect();
    let (reached, mut failed): (Vec<&Attempt>, Vec<&Attempt>) = tcp.iter().copied().partition(is_connected);
    if let Some(best) = reached.first() {
        // If this host is not on a network, addresses on that network are expected to be unreachable.
        let near = near(path);
        let is_near = |ip: IpAddr| near.iter().any(|(_, theirs, _)| theirs.addresses.iter().any(|it| it.ip == ip));
        failed.retain(|attempt| is_near(attempt.address));
        let found = format!("{} over TCP in {}", best.address, time(best.micros));
        if failed.is_empty() {
            let all = if tcp.len() > 1 { format!(", the best of {} addresses", tcp.len()) } else { String::new() };
            return Some(Finding::well("port", "reached", format!("{found}{all}")));
        }
        return Some(Finding::warning(
            "port",
            "reached-some",
            format!("{found}; not reached: {}", missed(&failed)),
            format!("the data may take a slower network than necessary: {}", in_the_way(&failed)),
            Fix::advice("check the firewalls and addresses on that network; `ip route get ADDRESS` shows the route"),
        ));
    }
    if failed.is_empty() {
        return None;
    }
    let after_fix = match ports {
        Some(_) => String::new(),
        None => format!("; after the fix, use --port-range {}-{}", PORTS.start(), PORTS.end()),
    };
    let fix = let_in(&path.there.firewall, ports.unwrap_or(&PORTS), "tcp");
    let (obstacle, missed) = (in_the_way(&failed), missed(&failed));
    if back.iter().any(|attempt| !attempt.is_rdma && is_connected(&attempt)) {
        return Some(Finding::warning(
            "port",
            "reached-back",
            format!("from here to there: {missed}; the other direction works"),
            format!("{obstacle}; copies work, because the other end connects instead, but start later{after_fix}"),
            fix,
        ));
    }
    let why = format!("{obstacle}, in both directions; data goes through ssh, slowly{after_fix}");
    Some(Finding::failure("port", "not-reached", missed, why, fix))
}

/// Returns how to allow connections through this firewall. `protocol` is `tcp` or `udp`.
fn let_in(firewall: &str, ports: &RangeInclusive<u16>, protocol: &str) -> Fix {
    let (first, last) = (ports.start(), ports.end());
    let range = |by: &str| if first == last { first.to_string() } else { format!("{first}{by}{last}") };
    match firewall {
        "firewall-cmd" => Fix::command(format!(
            "firewall-cmd --permanent --add-port={}/{protocol} && firewall-cmd --reload",
            range("-")
        )),
        "ufw" => Fix::command(format!("ufw allow {}/{protocol}", range(":"))),
        "nft" => Fix::command(format!("nft insert rule inet filter input {protocol} dport {} accept", range("-"))),
        "iptables" => Fix::command(format!("iptables -I INPUT -p {protocol} --dport {} -j ACCEPT", range(":"))),
        _ => Fix::advice(format!("open {protocol} ports {} in the firewalls between the two hosts", range("-"))),
    }
}

/// Lists failed attempts, such as "10.0.0.2: refused; 10.1.0.2: no answer".
fn missed(failed: &[&Attempt]) -> String {
    let told = failed.iter().map(|attempt| {
        let outcome = match &attempt.outcome {
            Outcome::Connected => "connected".to_owned(),
            Outcome::Refused => "refused".to_owned(),
            Outcome::Silent => "no answer".to_owned(),
            Outcome::Unreachable(errno @ 1..=ERRNO_MAX) => os_number(*errno),
            Outcome::Unreachable(_) => "unreachable".to_owned(),
            Outcome::NoRdma(reason) | Outcome::Other(reason) => reason.clone(),
        };
        format!("{}: {outcome}", attempt.address)
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Returns the probable obstacle, judged by what the outcomes have in common.
fn in_the_way(failed: &[&Attempt]) -> &'static str {
    let all = |is: fn(&Outcome) -> bool| failed.iter().all(|attempt| is(&attempt.outcome));
    if all(|outcome| matches!(outcome, Outcome::Silent)) {
        "a firewall drops the packets"
    } else if all(|outcome| matches!(outcome, Outcome::Refused)) {
        "the port was open, so a firewall refuses connections"
    } else if all(|outcome| matches!(outcome, Outcome::Unreachable(_))) {
        "there is no route, or a firewall rejects the packets"
    } else {
        "a firewall or a missing route"
    }
}

fn bandwidth(path: &Path) -> Vec<Finding> {
    match &path.speed {
        None => Vec::new(),
        Some(Err(reason)) => vec![Finding::failure(
            "bandwidth",
            "bandwidth-failed",
            format!("could not be measured: {reason}"),
            "a copy would fail the same way",
            Fix::advice(
                "see the checks above; if `ping -M do -s SIZE HOST` works only up to some SIZE, large packets are lost; \
                 set the same MTU on all interfaces, switches and tunnels of the path (`ip link set INTERFACE mtu 1500`)",
            ),
        )],
        Some(Ok(speed)) => {
            let ceiling = ceiling_mbps(path, speed);
            let low = if speed.medium == "rdma" { RDMA_LOW_PERCENT } else { TCP_LOW_PERCENT };
            let found = bandwidth_words(speed, ceiling);
            // Several networks together may exceed the ceiling, which is that of one. The processors may be the limit.
            // The share then says nothing about the network, but the rate is just as low.
            if ceiling == 0 || speed.mbps() >= ceiling / 100 * low {
                return vec![Finding::well("bandwidth", "bandwidth", found)];
            }
            let advice = match speed.limiter.as_str() {
                "cpu" => {
                    let confined = [&path.here, &path.there].into_iter().filter_map(|facts| {
                        let Facts { host, processors, .. } = facts;
                        let usable = facts.confined_to()?;
                        Some(format!("give the container or job on {host} more than {usable} of {processors}; "))
                    });
                    format!(
                        "the processors are the limit; {}use a faster governor, RDMA, or, on a network that you \
                         trust, --encrypt never",
                        confined.collect::<String>()
                    )
                }
                "wire" | "credits" => {
                    "look for losses and congestion: ethtool -S INTERFACE, and flow control (PFC) on a RoCE network"
                        .to_owned()
                }
                "sink" => format!("the receiver is behind; see what else runs on {}", path.there.host),
                _ => "run rddoctor with a longer --seconds; other traffic or processes may have interfered".to_owned(),
            };
            let why = "the link can carry more";
            vec![Finding::warning("bandwidth", "bandwidth-low", found, why, Fix::advice(advice))]
        }
    }
}

/// Describes the bandwidth. `ceiling`: the most that one link allows, in Mbit/s; 0 if unknown.
fn bandwidth_words(speed: &Speed, ceiling: u64) -> String {
    let rate = rate_words(speed.bytes as f64 / speed.micros.max(1) as f64 * 1e6);
    let share = speed.mbps().saturating_mul(100).checked_div(ceiling);
    let links = if speed.rails > 1 { "one link's" } else { "the link's" };
    let of = share.map(|share| format!("{share} % of {links} {}", rate_words(ceiling as f64 * 1e6 / 8.0)));
    let limiter = match speed.limiter.as_str() {
        "source" => "limited by reading memory",
        "cpu" => "limited by processors",
        "credits" | "sink" => "limited by the receiver",
        "wire" => "limited by the network",
        _ => "",
    };
    let medium = match speed.medium.as_str() {
        "rdma" => "RDMA",
        "rdma-software" => "RDMA in software",
        "tcp" if speed.is_encrypted => "TCP, encrypted",
        "tcp" => "TCP",
        _ => "",
    };
    let through = if speed.is_tunneled { "through ssh" } else { "" };
    joined([rate, medium.to_owned(), through.to_owned(), of.unwrap_or_default(), limiter.to_owned()], ", ")
}

/// Returns the rate of the host's fastest adapter in Mbit/s, limited by the adapter's bus, and the adapter's MTU. A
/// slower adapter beside it does not limit the data.
fn best_adapter(facts: &Facts) -> Option<(u64, u64)> {
    let of = |known: &RdmaAddress| {
        let device = facts.devices.iter().find(|device| device.name == known.device);
        let bus = device.and_then(|device| device.pci.as_ref()).map(|pci| Pci::mbps(pci.speed, pci.width));
        let ports = device.into_iter().flat_map(|device| &device.ports);
        let mtu = ports.filter_map(|port| port.mtu).filter(|mtu| *mtu > 0).min().unwrap_or(4096);
        (u64::from(known.rate_mbps).min(bus.filter(|mbps| *mbps > 0).unwrap_or(u64::MAX)), u64::from(mtu))
    };
    facts.rdma.iter().filter(|known| known.is_hardware).map(of).max()
}

/// Returns what the slower end's fastest link or bus can carry as payload, in Mbit/s; 0 if no hardware reports a rate.
pub(super) fn ceiling_mbps(path: &Path, speed: &Speed) -> u64 {
    if path.is_one_machine || speed.is_tunneled {
        return 0;
    }
    if speed.medium == "rdma" {
        let (Some(here), Some(there)) = (best_adapter(&path.here), best_adapter(&path.there)) else { return 0 };
        let (rate, mtu) = (here.0.min(there.0), here.1.min(there.1));
        return rate * mtu / (mtu + RDMA_HEADER_BYTES);
    }
    if speed.medium != "tcp" {
        return 0;
    }
    let best = near(path).into_iter().max_by_key(|(ours, theirs, _)| ours.rate_mbps.min(theirs.rate_mbps));
    let Some((ours, theirs, _)) = best else { return 0 };
    let mtu = u64::from(ours.mtu.min(theirs.mtu)).max(576);
    u64::from(ours.rate_mbps.min(theirs.rate_mbps)) * (mtu - TCP_HEADER_BYTES) / (mtu + ETHERNET_BYTES)
}
