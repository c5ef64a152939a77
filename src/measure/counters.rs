//! Counters of a host's adapters and of its TCP. They are read before and after a measurement. The difference shows
//! whether packets were lost, a link is damaged, or senders were held back.

use minicbor::{Decode, Encode};

use super::facts::plain;
use super::finding::{Finding, Fix};
use super::root::Root;

/// Maximum number of counters of a host: some 20 of each kind for a few ports.
pub const COUNTERS_MAX: usize = 512;

/// Maximum number of counters that a finding names, because many ports may each have some.
const COUNTERS_SHOWN: usize = 4;

/// Maximum number of ports that are read.
const PORTS_MAX: usize = 32;

/// Share of TCP segments, in percent, that even a good network may lose.
const TCP_LOSS_PERCENT: u64 = 1;

/// Minimum number of segments for a meaningful share.
const TCP_SEGMENTS_MIN: u64 = 1000;

/// Name that TCP's counters of a whole host have in [`Counter::of`].
const TCP: &str = "tcp";

/// Name of an entry that says that ethtool has reported an interface's counters. Those of 0 are left out, so otherwise
/// a counter that was 0 could not be told from one that was not read.
const READ: &str = "ethtool";

/// Counters of packets that this host was too slow to take from its adapter.
const RING: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_out_of_buffer"];

/// A counter's value so far. Counters that are 0 are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counter {
    /// What the counter belongs to: a port such as `mlx5_0/1`, an interface, or `tcp`.
    #[cbor(n(0), decode_with = "plain")]
    pub of: String,
    /// Name of the counter in the kernel or in ethtool.
    #[cbor(n(1), decode_with = "plain")]
    pub name: String,
    /// Value of the counter.
    #[n(2)]
    pub count: u64,
}

/// What it means that a counter grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A cable, a transceiver or a port is bad.
    Link,
    /// Packets were lost or sent again.
    Loss,
    /// Senders were held back, so that nothing was lost.
    Congestion,
}

const LINK: &[&str] = &[
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "rx_icrc_encapsulated",
    "carrier_down_count",
    "rx_crc_errors",
    "rx_frame_errors",
    "tx_carrier_errors",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "rx_crc_errors_phy",
    "link_down_events_phy",
];

const LOSS: &[&str] = &[
    "port_xmit_discards",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "req_transport_retries_exceeded",
    "roce_adp_retrans",
    "roce_slow_restart",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "tcpRetransSegs",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "rx_missed_errors",
    "rx_fifo_errors",
    "rx_discards_phy",
    "tx_discards_phy",
    "rx_out_of_buffer",
];

const CONGESTION: &[&str] = &[
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "np_ecn_marked_roce_packets",
    "rx_ecn_marked_pkts",
    "cnpSent",
    "cnpHandled",
    "RxECNMrkd",
    "port_xmit_wait",
    "rx_pause",
    "tx_pause",
    "rx_pause_ctrl_phy",
    "tx_pause_ctrl_phy",
    "rx_flow_control_xoff",
    "tx_flow_control_xoff",
];

fn kind(name: &str) -> Option<Kind> {
    // Such a counter exists for each of eight priorities.
    let of_priority =
        name.split_once("_prio").map_or("", |(_, rest)| rest.trim_start_matches(|it: char| it.is_ascii_digit()));
    match of_priority {
        "_pause" => return Some(Kind::Congestion),
        "_discards" => return Some(Kind::Loss),
        _ => {}
    }
    let of = [(LINK, Kind::Link), (LOSS, Kind::Loss), (CONGESTION, Kind::Congestion)];
    of.into_iter().find(|(names, _)| names.contains(&name)).map(|(_, kind)| kind)
}

/// Reads the counters from the files below `root`.
pub(super) fn read(root: &Root) -> Vec<Counter> {
    let mut counters = Vec::new();
    let mut add = |of: &str, directory: &str| {
        for name in root.names(directory).into_iter().filter(|name| kind(name).is_some()) {
            let count = root.number(&format!("{directory}/{name}")).unwrap_or(0);
            counters.push(Counter { of: of.to_owned(), name, count });
        }
    };
    for device in root.names("sys/class/infiniband").iter().take(PORTS_MAX) {
        for port in root.names(&format!("sys/class/infiniband/{device}/ports")).iter().take(PORTS_MAX) {
            for directory in ["counters", "hw_counters"] {
                add(&format!("{device}/{port}"), &format!("sys/class/infiniband/{device}/ports/{port}/{directory}"));
            }
        }
    }
    for interface in hardware(root) {
        let directory = format!("sys/class/net/{interface}");
        add(&interface, &format!("{directory}/statistics"));
        add(&interface, &directory);
    }
    counters.extend(tcp(&root.text("proc/net/snmp").unwrap_or_default()));
    counters.retain(|counter| counter.count > 0);
    counters
}

/// Returns the interfaces that have a device.
pub(super) fn hardware(root: &Root) -> Vec<String> {
    let is_hardware = |name: &String| root.has(&format!("sys/class/net/{name}/device"));
    root.names("sys/class/net").into_iter().filter(is_hardware).take(PORTS_MAX).collect()
}

/// Parses the numbers of TCP segments sent and sent again, from a line of names and a line of numbers.
fn tcp(snmp: &str) -> Vec<Counter> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return Vec::new() };
    let wanted = names.split(' ').zip(numbers.split(' ')).filter(|(name, _)| ["OutSegs", "RetransSegs"].contains(name));
    let counter = |(name, number): (&str, &str)| {
        Some(Counter { of: TCP.to_owned(), name: name.to_owned(), count: number.parse().ok()? })
    };
    wanted.filter_map(counter).collect()
}

/// Adds counters from the output of `ethtool -S`: pauses by priority, errors of the physical layer, and repetitions of
/// known counters, which are skipped.
pub(super) fn add_ethtool(counters: &mut Vec<Counter>, interface: &str, text: &str) {
    if !text.is_empty() {
        counters.push(Counter { of: interface.to_owned(), name: READ.to_owned(), count: 1 });
    }
    let lines = text.lines().filter_map(|line| line.trim().split_once(": "));
    for (name, number) in lines.filter(|(name, _)| kind(name).is_some()) {
        let count = number.trim().parse().unwrap_or(0);
        if count > 0 && !counters.iter().any(|known| known.of == interface && known.name == name) {
            counters.push(Counter { of: interface.to_owned(), name: name.to_owned(), count });
        }
    }
}

/// Returns what was counted between two readings. A counter that went back, because its driver was reloaded, counts as
/// unchanged, and so does one that only the second reading had time for.
fn since(before: &[Counter], after: &[Counter]) -> Vec<Counter> {
    let earlier = |counter: &Counter| before.iter().find(|one| one.of == counter.of && one.name == counter.name);
    let read_at = |counters: &[Counter], of: &str| counters.iter().position(|one| one.of == of && one.name == READ);
    // Those of the kernel come first, and are read both times.
    let is_known = |(at, counter): &(usize, &Counter)| {
        let is_kernels = || read_at(after, &counter.of).is_none_or(|read| *at < read);
        earlier(counter).is_some() || read_at(before, &counter.of).is_some() || is_kernels()
    };
    let grown = after.iter().enumerate().filter(is_known).map(|(_, counter)| {
        let count = counter.count.saturating_sub(earlier(counter).map_or(0, |earlier| earlier.count));
        Counter { count, ..counter.clone() }
    });
    grown.filter(|counter| counter.count > 0).collect()
}

/// Returns the findings from two readings of the counters of the host `about`. `has_rdma`: whether the host has an RDMA
/// device.
pub fn compare_counters(about: &str, has_rdma: bool, before: &[Counter], after: &[Counter]) -> Vec<Finding> {
    let grown = since(before, after);
    let of_kind = |wanted: Kind| -> Vec<Counter> {
        grown.iter().filter(|counter| kind(&counter.name) == Some(wanted)).cloned().collect()
    };
    let of_tcp =
        |name: &str| grown.iter().find(|it| it.of == TCP && it.name == name).map_or(0, |counter| counter.count);
    let (sent, again) = (of_tcp("OutSegs"), of_tcp("RetransSegs"));
    let is_lossy = sent >= TCP_SEGMENTS_MIN && again > sent / 100 * TCP_LOSS_PERCENT;
    let mut findings = Vec::new();
    let (broken, lost, held) = (of_kind(Kind::Link), of_kind(Kind::Loss), of_kind(Kind::Congestion));
    if !broken.is_empty() {
        findings.push(Finding::warning(
            "counters",
            "link-errors",
            counts(&broken),
            "a cable, transceiver or port corrupts data or loses its link",
            Fix::advice(
                "clean, reseat or replace the cable and the transceivers at both ends; then try another switch port",
            ),
        ));
    }
    let (ring, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(|counter| RING.contains(&&*counter.name));
    if !ring.is_empty() {
        findings.push(Finding::warning(
            "counters",
            "ring-full",
            counts(&ring),
            "the host did not take packets as fast as they came, so some had to be sent again",
            Fix::advice(
                "ethtool -g INTERFACE shows the receive ring and its maximum, ethtool -G INTERFACE rx N sets it",
            ),
        ));
    }
    if !lost.is_empty() {
        let (why, advice) = if has_rdma {
            (
                "packets were lost or late, and retransmitted; every loss makes RDMA far slower",
                "make the path lossless: set up PFC or ECN alike on both hosts' adapters and all switches between them",
            )
        } else {
            (
                "packets were lost, and sent again",
                "look for the port that drops them: ethtool -S INTERFACE at both hosts, and the switch ports between",
            )
        };
        findings.push(Finding::warning("counters", "packets-lost", counts(&lost), why, Fix::advice(advice)));
    }
    let retransmitted = format!("TCP retransmitted {again} of {sent} segments");
    if is_lossy {
        findings.push(Finding::warning(
            "counters",
            "segments-lost",
            retransmitted.clone(),
            "the network, or a host's own queues, drop packets that arrive too fast",
            Fix::advice(
                "look for a slow or half-duplex port on the path: ethtool INTERFACE; for its errors: ethtool -S INTERFACE",
            ),
        ));
    }
    if !held.is_empty() {
        let found = format!("flow or congestion control slowed the senders: {}", counts(&held));
        findings.push(Finding::well("counters", "held-back", found));
    } else if findings.is_empty() {
        let found = match again {
            0 => "no losses during the measurement".to_owned(),
            _ => format!("no errors during the measurement; {retransmitted}"),
        };
        findings.push(Finding::well("counters", "counters", found));
    }
    findings.into_iter().map(|finding| finding.about(about)).collect()
}

/// Lists counters, such as "mlx5_0/1 symbol_error +7, ...".
fn counts(counters: &[Counter]) -> String {
    let shown = counters.iter().take(COUNTERS_SHOWN);
    let mut told: Vec<String> =
        shown.map(|counter| format!("{} {} +{}", counter.of, counter.name, counter.count)).collect();
    if counters.len() > COUNTERS_SHOWN {
        told.push(format!("and {} more", counters.len() - COUNTERS_SHOWN));
    }
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::finding::Level;
    use crate::measure::recorded::facts;

    fn counter(of: &str, name: &str, count: u64) -> Counter {
        Counter { of: of.to_owned(), name: name.to_owned(), count }
    }

    #[test]
    fn recorded_ports_before_and_after() {
        let (before, after) = (facts("counters-before").counters, facts("counters-after").counters);
        assert!(before.contains(&counter("mlx5_0/1", "np_cnp_sent", 40)), "{before:?}");
        assert!(!before.iter().any(|counter| counter.count == 0 || counter.name == "port_xmit_data"), "{before:?}");
        let found = compare_counters("n1", true, &before, &after);
        let told: Vec<(&str, &str)> = found.iter().map(|finding| (finding.code, finding.found.as_str())).collect();
        let expected = [
            ("link-errors", "mlx5_0/1 symbol_error +7, enp65s0f0np0 rx_crc_errors +1"),
            ("packets-lost", "mlx5_0/1 out_of_sequence +12, mlx5_0/1 local_ack_timeout_err +3"),
            ("segments-lost", "TCP retransmitted 1500 of 100000 segments"),
            ("held-back", "flow or congestion control slowed the senders: mlx5_0/1 np_cnp_sent +60"),
        ];
        assert_eq!(told, expected);
        let levels = [Level::Warning, Level::Warning, Level::Warning, Level::Ok];
        assert_eq!(found.iter().map(|finding| finding.level).collect::<Vec<_>>(), levels);
        let still = compare_counters("n1", true, &before, &before);
        assert_eq!(still.len(), 1);
        assert_eq!((still[0].level, still[0].found.as_str()), (Level::Ok, "no losses during the measurement"));
    }

    #[test]
    fn pauses_by_priority_are_ethtools() {
        let text = "NIC statistics:\n     rx_packets: 12\n     rx_prio3_pause: 9\n     tx_prio3_discards: 2\n     rx_prio0_bytes: 7\n     \
            rx_symbol_err_phy: 0\n     tx_pause: x\n";
        // Some drivers repeat the kernel's own counters.
        let text = format!("{text}     rx_crc_errors: 4\n");
        let mut counters = vec![counter("e1", "rx_prio3_pause", 1), counter("e0", "rx_crc_errors", 3)];
        let known = counters.clone();
        add_ethtool(&mut counters, "e0", &text);
        let new = [(READ, 1), ("rx_prio3_pause", 9), ("tx_prio3_discards", 2)]
            .map(|(name, count)| counter("e0", name, count));
        assert_eq!(counters, [&known[..], &new[..]].concat());
        // A driver without counters, or one that did not answer.
        add_ethtool(&mut counters, "e2", "");
        assert!(!counters.iter().any(|counter| counter.of == "e2"));
    }

    #[test]
    fn packets_that_a_host_without_rdma_loses() {
        let after = [counter("e0", "rx_missed_errors", 3), counter("e0", "rx_discards_phy", 2)];
        let found = compare_counters("n1", false, &[], &after);
        let told: Vec<(&str, &str)> = found.iter().map(|finding| (finding.code, finding.found.as_str())).collect();
        assert_eq!(told, [("ring-full", "e0 rx_missed_errors +3"), ("packets-lost", "e0 rx_discards_phy +2")]);
        let text = format!("{found:?}");
        assert!(!text.contains("PFC") && !text.contains("RDMA") && text.contains("ethtool -G"), "{text}");
    }

    #[test]
    fn a_counter_that_begins_anew_has_counted_nothing() {
        let (before, after) = ([counter("a", "out_of_sequence", 9)], [counter("a", "out_of_sequence", 2)]);
        assert_eq!(since(&before, &after), []);
        assert_eq!(since(&[], &after), after);
    }

    #[test]
    fn what_only_the_second_reading_had_time_for_has_not_grown() {
        let read = [counter("e0", "rx_crc_errors", 4), counter("e0", READ, 1), counter("e0", "rx_discards_phy", 9)];
        // The kernel's own counter was read both times. One of 0 is left out.
        assert_eq!(since(&[], &read), read[..1]);
        let grown = since(&[counter("e0", "rx_crc_errors", 3)], &read);
        assert_eq!(grown, [counter("e0", "rx_crc_errors", 1)]);
        let all = [read[0].clone(), read[2].clone()];
        assert_eq!(since(&[counter("e0", READ, 1)], &read), all);
    }
}
