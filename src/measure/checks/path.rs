//! Checks of the path between two hosts.

use std::net::IpAddr;

use super::tcp::tcp;
use crate::measure::counters::compare_counters;
use crate::measure::facts::{Address, Device, Facts, Interface, Pci};
use crate::measure::finding::{Finding, Level, Outcome, What};
use crate::measure::probe::Attempt;
use crate::measure::{Path, Speed};
use crate::transport::is_inner;

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

/// Runs the checks of the path between two hosts, in the order in which their findings are reported.
pub fn compare(path: &Path) -> Vec<Finding> {
    let checks: [fn(&Path) -> Vec<Finding>; 7] = [agent, duplicates, subnets, route, mtus, reach, bandwidth];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(path)).collect();
    let counted = counters(path);
    findings.extend(tcp(path, &counted));
    findings.extend(counted);
    findings
}

fn counters(path: &Path) -> Vec<Finding> {
    let Some([here, there]) = &path.after else { return Vec::new() };
    let mut findings = compare_counters("there", &path.there.counters, there);
    if !path.is_one_machine {
        findings.extend(compare_counters("here", &path.here.counters, here));
    }
    findings
}

fn agent(path: &Path) -> Vec<Finding> {
    let micros = path.agent_micros;
    let program = path.there.program.clone();
    let mut findings = vec![if micros > AGENT_SLOW_MICROS {
        Finding::new("ssh", Level::Warning, What::AgentSlow { micros })
    } else {
        Finding::new("ssh", Level::Ok, What::Agent { micros, program })
    }];
    if path.here.program != path.there.program {
        let what = What::Versions { here: path.here.program.clone(), there: path.there.program.clone() };
        findings.push(Finding::new("versions", Level::Warning, what));
    }
    findings
}

fn up(facts: &Facts) -> impl Iterator<Item = &Interface> {
    facts.interfaces.iter().filter(|interface| interface.is_up && !is_inner(&interface.name))
}

/// Returns pairs of interfaces in one subnet, with the address of the second interface.
fn near(path: &Path) -> impl Iterator<Item = (&Interface, &Interface, &Address)> {
    up(&path.here).flat_map(move |ours| {
        up(&path.there).filter_map(move |theirs| {
            let shared = |address: &&Address| ours.addresses.iter().any(|own| own.shares_subnet(address));
            Some((ours, theirs, theirs.addresses.iter().find(shared)?))
        })
    })
}

fn duplicates(path: &Path) -> Vec<Finding> {
    if path.is_one_machine {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for ours in up(&path.here) {
        for theirs in up(&path.there) {
            for address in ours.addresses.iter().filter(|own| theirs.addresses.iter().any(|it| it.ip == own.ip)) {
                let what = What::AddressTwice {
                    address: address.ip.to_string(),
                    here: ours.name.clone(),
                    there: theirs.name.clone(),
                };
                findings.push(Finding::new("addresses", Level::Failure, what));
            }
        }
    }
    findings
}

fn subnets(path: &Path) -> Vec<Finding> {
    let (here, there) = (&path.here.rdma, &path.there.rdma);
    let one = |level, what| vec![Finding::new("subnets", level, what)];
    if here.is_empty() != there.is_empty() {
        let without = if here.is_empty() { &path.here.host } else { &path.there.host };
        return one(Level::Ok, What::RdmaOneSided { without: without.clone() });
    }
    let shared = here.iter().any(|ours| there.iter().any(|theirs| ours.address.shares_subnet(&theirs.address)));
    if here.is_empty() || shared || path.is_one_machine {
        return Vec::new();
    }
    let told = |all: &[crate::measure::facts::RdmaAddress]| {
        all.iter().map(|known| format!("{}/{}", known.address.ip, known.address.prefix_bits)).collect()
    };
    one(Level::Warning, What::SubnetMissing { here: told(here), there: told(there) })
}

/// Reports which interface ssh uses, and which interface the data would use.
fn route(path: &Path) -> Vec<Finding> {
    let Ok(ip) = path.there.ssh.parse() else { return Vec::new() };
    let Some(ssh) = path.there.interface_of(ip) else { return Vec::new() };
    let best = near(path).max_by_key(|(ours, theirs, _)| ours.rate_mbps.min(theirs.rate_mbps));
    let Some((ours, theirs, _)) = best else { return Vec::new() };
    let rate = ours.rate_mbps.min(theirs.rate_mbps);
    // If both are equally fast, the interface that ssh uses is as good.
    let data = if rate > ssh.rate_mbps { (theirs.name.clone(), rate) } else { (ssh.name.clone(), ssh.rate_mbps) };
    let what = What::Route { ssh: (ssh.name.clone(), ssh.rate_mbps), data };
    vec![Finding::new("route", Level::Ok, what)]
}

fn mtus(path: &Path) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    // An MTU of 0 is unknown.
    let differ = |ours: &Interface, theirs: &Interface| ours.mtu != theirs.mtu && ours.mtu > 0 && theirs.mtu > 0;
    for (ours, theirs, _) in near(path).filter(|(ours, theirs, _)| differ(ours, theirs)) {
        let what = What::MtuDiffers { here: (ours.name.clone(), ours.mtu), there: (theirs.name.clone(), theirs.mtu) };
        findings.push(Finding::new("path mtu", Level::Warning, what));
    }
    findings
}

fn reach(path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let empty = Vec::new();
    let attempts = |tried: &'_ Option<Result<Vec<Attempt>, String>>| match tried {
        Some(Ok(attempts)) => Some(attempts.clone()),
        Some(Err(_)) => Some(Vec::new()),
        None => None,
    };
    let (there, back) = (attempts(&path.to_there), attempts(&path.to_here));
    if let Some(there) = &there {
        findings.extend(reach_tcp(path, there, back.as_ref().unwrap_or(&empty)));
    }
    for (check, tried) in [("port", &path.to_there), ("port back", &path.to_here)] {
        if let Some(Err(reason)) = tried {
            findings.push(Finding::new(check, Level::Warning, What::ProbeFailed { reason: reason.clone() }));
        }
    }
    if path.here.rdma.is_empty() || path.there.rdma.is_empty() {
        return findings;
    }
    let both: Vec<&Attempt> = there.iter().chain(&back).flatten().filter(|attempt| attempt.is_rdma).collect();
    let hardware =
        path.here.rdma.iter().any(|known| known.is_hardware) && path.there.rdma.iter().any(|known| known.is_hardware);
    if let Some(attempt) = both.iter().find(|attempt| attempt.outcome == Outcome::Connected) {
        let what = What::RdmaReached { address: attempt.address.to_string(), micros: attempt.micros };
        findings.push(Finding::new("rdma port", Level::Ok, what));
    } else if !both.is_empty() {
        let is_roce = path.there.devices.iter().flat_map(|device| &device.ports).any(|port| port.is_roce());
        let what = What::RdmaNotReached {
            not: both.iter().map(|attempt| (attempt.address.to_string(), attempt.outcome.clone())).collect(),
            is_roce,
            firewall: path.there.firewall.clone(),
        };
        let level = if hardware { Level::Failure } else { Level::Warning };
        findings.push(Finding::new("rdma port", level, what));
    }
    findings
}

fn reach_tcp(path: &Path, there: &[Attempt], back: &[Attempt]) -> Option<Finding> {
    let tcp: Vec<&Attempt> = there.iter().filter(|attempt| !attempt.is_rdma).collect();
    let is_near = |ip: IpAddr| near(path).any(|(_, theirs, _)| theirs.addresses.iter().any(|it| it.ip == ip));
    let bad = |near_only: bool| -> Vec<(String, Outcome)> {
        let missed = tcp.iter().filter(|attempt| attempt.outcome != Outcome::Connected);
        let missed = missed.filter(|attempt| !near_only || is_near(attempt.address));
        missed.map(|attempt| (attempt.address.to_string(), attempt.outcome.clone())).collect()
    };
    let firewall = path.there.firewall.clone();
    if let Some(best) = tcp.iter().find(|attempt| attempt.outcome == Outcome::Connected) {
        // If this host is not on a network, addresses on that network are expected to be unreachable.
        let not = bad(true);
        let (address, micros) = (best.address.to_string(), best.micros);
        if not.is_empty() {
            let what = What::Reached { address, micros, addresses: tcp.len() };
            return Some(Finding::new("port", Level::Ok, what));
        }
        return Some(Finding::new("port", Level::Warning, What::ReachedSome { address, micros, not }));
    }
    if tcp.is_empty() {
        return None;
    }
    let not = bad(false);
    if back.iter().any(|attempt| !attempt.is_rdma && attempt.outcome == Outcome::Connected) {
        return Some(Finding::new("port", Level::Warning, What::ReachedBack { not, firewall }));
    }
    Some(Finding::new("port", Level::Failure, What::NotReached { not, firewall }))
}

fn bandwidth(path: &Path) -> Vec<Finding> {
    let one = |level, what| vec![Finding::new("bandwidth", level, what)];
    match &path.speed {
        None => Vec::new(),
        Some(Err(reason)) => one(Level::Failure, What::BandwidthFailed { reason: reason.clone() }),
        Some(Ok(speed)) => {
            let ceiling = ceiling_mbps(path, speed);
            let low = if speed.medium == "rdma" { RDMA_LOW_PERCENT } else { TCP_LOW_PERCENT };
            let speed = speed.clone();
            // The processors may be the limit. The share then says nothing about the network, but the rate is just as
            // low.
            if ceiling > 0 && speed.mbps() < ceiling / 100 * low {
                one(Level::Warning, What::BandwidthLow { speed, ceiling })
            } else {
                one(Level::Ok, What::Bandwidth { speed, ceiling })
            }
        }
    }
}

/// Returns what the slower end's link or bus can carry as payload, in Mbit/s; 0 if no hardware reports its rate.
pub(super) fn ceiling_mbps(path: &Path, speed: &Speed) -> u64 {
    if path.is_one_machine || speed.is_tunneled {
        return 0;
    }
    if speed.medium == "rdma" {
        let rate =
            |facts: &Facts| facts.rdma.iter().filter(|known| known.is_hardware).map(|known| known.rate_mbps).max();
        let (Some(here), Some(there)) = (rate(&path.here), rate(&path.there)) else { return 0 };
        let ports = || path.here.devices.iter().chain(&path.there.devices).flat_map(|device| &device.ports);
        let mtu = u64::from(ports().filter_map(|port| port.mtu).filter(|mtu| *mtu > 0).min().unwrap_or(4096));
        let bus =
            |device: &Device| device.pci.as_ref().map(|pci| Pci::mbps(pci.speed, pci.width)).filter(|mbps| *mbps > 0);
        let buses = path.here.devices.iter().chain(&path.there.devices).filter_map(bus);
        let rate = buses.fold(u64::from(here.min(there)), u64::min);
        return rate * mtu / (mtu + RDMA_HEADER_BYTES);
    }
    if speed.medium != "tcp" {
        return 0;
    }
    let best = near(path).max_by_key(|(ours, theirs, _)| ours.rate_mbps.min(theirs.rate_mbps));
    let Some((ours, theirs, _)) = best else { return 0 };
    let mtu = u64::from(ours.mtu.min(theirs.mtu)).max(576);
    u64::from(ours.rate_mbps.min(theirs.rate_mbps)) * (mtu - TCP_HEADER_BYTES) / (mtu + ETHERNET_BYTES)
}
