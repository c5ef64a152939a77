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
        What::NothingLost { again: 0, .. } => well("counters", "nothing was lost while it was measured"),
        What::NothingLost { sent, again } => {
            let again = format!("TCP sent {again} of {sent} segments again");
            well("counters", format!("no errors while it was measured; {again}"))
        }
        What::HeldBack(counters) => {
            well("held-back", format!("senders were held back, so that nothing was lost: {}", counts(counters)))
        }
        What::LinkErrors(counters) => advise(
            "link-errors",
            counts(counters),
            "a cable, a transceiver or a port damages what it carries, or loses its link",
            "clean, reseat or replace the cable and the transceivers at both its ends; then try another port of the switch",
        ),
        What::PacketsLost(counters) => advise(
            "packets-lost",
            counts(counters),
            "packets were lost or came late, and were sent again: RDMA is far slower with every loss",
            "make the way lossless for it: PFC or ECN alike on both hosts' adapters and on all switches between them",
        ),
        What::SegmentsLost { sent, again } => advise(
            "segments-lost",
            format!("TCP sent {again} of {sent} segments again"),
            "the network, or a host's own queues, lose what comes faster than they carry",
            "look for a port of less speed, or half duplex, on the way: ethtool INTERFACE; for its errors: ethtool -S INTERFACE",
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
            "it was not noticed, or not survived, as it should have been",
            "run it again; if it fails again, report it with the output of rddoctor --drill --json",
        )
    })
}

pub(super) fn pair_words(what: &What, about: &str) -> Option<Words> {
    const CONNECT: &str = "open a port in the firewalls between them and name it with --port-range; rddoctor, run on one of them, \
        names what is in the way";
    Some(match what {
        What::Rates { pairs, least, median, most, media } => {
            let media: Vec<&str> = media.iter().map(|name| medium(name)).collect();
            let span = format!("from {} to {}", rate(*least), rate(*most));
            well("rates", format!("{pairs} measured: median {}, {span}, {}", rate(*median), media.join(" and ")))
        }
        What::RoundsLeftOut { rounds, all } => well(
            "rounds-left-out",
            format!(
                "{rounds} of {all} measured, for --within: every host with {rounds} others at most, and not with the rest"
            ),
        ),
        What::HostSlow { sends, receives, median, with } => {
            let way =
                |name: &str, mbps: &Option<u64>| mbps.map_or(String::new(), |mbps| format!("{name} {}", rate(mbps)));
            let ways = joined([way("sends", sends), way("receives", receives)], ", ");
            advise(
                "host-slow",
                format!("{ways}, the median of all is {}: slow with {}", rate(*median), others(*with)),
                "it is this host, its cable or its port of the switch that these pairs have in common",
                format!("look there first: rddoctor {about}; what else runs on it; ethtool INTERFACE there"),
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
                format!("{}, the median of all is {}{limiter}", rate(*mbps), rate(*median)),
                "both hosts are as fast as others with the rest: it is the way between these two",
                "look at what these two alone have between them: a link of the switches, a route, a limit",
            )
        }
        What::HostTunneled { with } if about.is_empty() => advise(
            "hosts-not-reached",
            format!("most of {with} hosts have no connection to each other"),
            "data between them goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::HostTunneled { with } => advise(
            "host-not-reached",
            format!("no connection with {}", others(*with)),
            "a firewall, or a route that is missing: data goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::PairTunneled => advise(
            "pair-not-reached",
            "no connection in either direction",
            "a firewall, or a route that is missing: data goes through ssh and this host, slowly",
            CONNECT,
        ),
        What::HostUnmeasured { with, reason } if about.is_empty() => advise(
            "hosts-unmeasured",
            format!("most of {with} hosts could not be measured: {reason}"),
            "copies between them would fail in the same way",
            "see the checks above",
        ),
        What::HostUnmeasured { with, reason } => advise(
            "host-unmeasured",
            format!("could not be measured with {}: {reason}", others(*with)),
            "copies would fail in the same way",
            format!("look there first: rddoctor {about}"),
        ),
        What::PairUnmeasured { reason } => advise(
            "pair-unmeasured",
            format!("could not be measured: {reason}"),
            "a copy would fail in the same way",
            "see the checks above; or run rddoctor on one of the two with the other as HOST",
        ),
        _ => return None,
    })
}
