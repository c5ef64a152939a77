//! Words for measurements between several hosts, and for counters of ports during these measurements.

use super::{Words, advise, joined, well};
use crate::cli::report::rate_words;
use crate::measure::What;
use crate::measure::counters::Counter;

/// Maximum number of counters that are named, because many ports may each have some.
const COUNTERS_SHOWN: usize = 4;

fn rate(mbps: u64) -> String {
    rate_words(mbps as f64 * 125e3)
}

fn medium(name: &str) -> &str {
    match name {
        "rdma" => "RDMA",
        "rdma-software" => "RDMA in software",
        "tcp" => "TCP",
        other => other,
    }
}

/// Lists counters, such as "mlx5_0/1 symbol_error +7, ...".
fn counts(counters: &[Counter]) -> String {
    let mut told: Vec<String> = counters
        .iter()
        .take(COUNTERS_SHOWN)
        .map(|counter| format!("{} {} +{}", counter.of, counter.name, counter.count))
        .collect();
    if counters.len() > COUNTERS_SHOWN {
        told.push(format!("and {} more", counters.len() - COUNTERS_SHOWN));
    }
    told.join(", ")
}

fn others(count: usize) -> String {
    if count == 1 { "1 other host".to_owned() } else { format!("{count} other hosts") }
}

pub(super) fn counter_words(what: &What) -> Option<Words> {
    Some(match what {
        What::NothingLost { again: 0, .. } => well("counters", "no losses during the measurement"),
        What::NothingLost { sent, again } => {
            let again = format!("TCP retransmitted {again} of {sent} segments");
            well("counters", format!("no errors during the measurement; {again}"))
        }
        What::HeldBack(counters) => {
            well("held-back", format!("flow or congestion control slowed the senders: {}", counts(counters)))
        }
        What::LinkErrors(counters) => advise(
            "link-errors",
            counts(counters),
            "a cable, transceiver or port corrupts data or loses its link",
            "clean, reseat or replace the cable and the transceivers at both ends; then try another switch port",
        ),
        What::PacketsLost(counters) => advise(
            "packets-lost",
            counts(counters),
            "packets were lost or late, and retransmitted; every loss makes RDMA far slower",
            "make the path lossless: set up PFC or ECN alike on both hosts' adapters and all switches between them",
        ),
        What::SegmentsLost { sent, again } => advise(
            "segments-lost",
            format!("TCP retransmitted {again} of {sent} segments"),
            "the network, or a host's own queues, drop packets that arrive too fast",
            "look for a slow or half-duplex port on the path: ethtool INTERFACE; for its errors: ethtool -S INTERFACE",
        ),
        _ => return None,
    })
}

pub(super) fn drill_words(what: &What) -> Option<Words> {
    let What::Drill { done, seen, is_survived } = what else { return None };
    let found = format!("{done}: {seen}");
    Some(if *is_survived {
        well("drill-survived", found)
    } else {
        advise(
            "drill-failed",
            found,
            "the fault was not detected, or not survived",
            "run it again; if it fails again, report it with the output of rddoctor --drill --json",
        )
    })
}

pub(super) fn pair_words(what: &What, about: &str) -> Option<Words> {
    const CONNECT: &str = "open a port in the firewalls between them and name it with --port-range; run rddoctor on \
        one of them to see what blocks it";
    Some(match what {
        What::Rates { pairs, least, median, most, media } => {
            let media: Vec<&str> = media.iter().map(|name| medium(name)).collect();
            let span = format!("from {} to {}", rate(*least), rate(*most));
            well("rates", format!("{pairs} measured: median {}, {span}, {}", rate(*median), media.join(" and ")))
        }
        What::RoundsLeftOut { rounds, all } => well(
            "rounds-left-out",
            format!("{rounds} of {all} measured, limited by --within: each host with at most {rounds} others"),
        ),
        What::HostSlow { sends, receives, median, with } => {
            let way =
                |name: &str, mbps: &Option<u64>| mbps.map_or(String::new(), |mbps| format!("{name} {}", rate(mbps)));
            let ways = joined([way("sends", sends), way("receives", receives)], ", ");
            advise(
                "host-slow",
                format!("{ways}; median of all pairs {}; slow with {}", rate(*median), others(*with)),
                "what these pairs have in common is this host, its cable or its switch port",
                format!("check this host first: rddoctor {about}; what else runs on it; ethtool INTERFACE there"),
            )
        }
        What::PairSlow { mbps, median, limiter } => {
            let limiter = match limiter.as_str() {
                "cpu" => ", limited by processors",
                "credits" | "sink" => ", limited by the receiver",
                "wire" => ", limited by the network",
                _ => "",
            };
            advise(
                "pair-slow",
                format!("{}{limiter}; median of all pairs {}", rate(*mbps), rate(*median)),
                "both hosts are fast with the other hosts, so the path between these two is slow",
                "check what only these two share: a link between switches, a route, a rate limit",
            )
        }
        What::HostTunneled { with } if about.is_empty() => advise(
            "hosts-not-reached",
            format!("most of {with} hosts cannot connect to each other"),
            "data between them goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::HostTunneled { with } => advise(
            "host-not-reached",
            format!("no connection to {}", others(*with)),
            "a firewall or a missing route; data goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::PairTunneled => advise(
            "pair-not-reached",
            "no connection in either direction",
            "a firewall or a missing route; data goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::HostUnmeasured { with, reason } if about.is_empty() => advise(
            "hosts-unmeasured",
            format!("most of {with} hosts could not be measured: {reason}"),
            "copies between them would fail the same way",
            "see the checks above",
        ),
        What::HostUnmeasured { with, reason } => advise(
            "host-unmeasured",
            format!("could not be measured with {}: {reason}", others(*with)),
            "copies would fail the same way",
            format!("check this host first: rddoctor {about}"),
        ),
        What::PairUnmeasured { reason } => advise(
            "pair-unmeasured",
            format!("could not be measured: {reason}"),
            "a copy would fail the same way",
            "see the checks above; or run rddoctor on one of the two with the other as HOST",
        ),
        _ => return None,
    })
}
