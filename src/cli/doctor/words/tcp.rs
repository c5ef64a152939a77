//! Words for the kernel's settings of TCP.

use super::{Words, joined, rate, run, time, well};
use crate::measure::What;

/// Added to a fix, because a setting is lost at a restart unless a file has it.
const KEEP: &str = "# a file in /etc/sysctl.d keeps it";

pub(super) fn words(what: &What) -> Option<Words> {
    Some(match what {
        What::TcpWell { micros, connections, controls } => {
            let mut controls = controls.clone();
            controls.dedup();
            let carry = match connections {
                1 => "one connection fills the link".to_owned(),
                several => format!("{several} connections fill the link, opened as needed"),
            };
            well("tcp", joined([format!("round trip {}", time(*micros)), carry, controls.join(" and ")], ", "))
        }
        What::TcpWindowSmall { window, micros, mbps, connections, receive, send } => run(
            "tcp-window-small",
            format!(
                "a connection has at most {} in flight; at a round trip of {} it takes {connections} of them for {}",
                size(*window),
                time(*micros),
                rate(*mbps)
            ),
            "copies take seconds to open that many, or do not fill the link; programs with one connection never do",
            format!("sysctl -w net.ipv4.tcp_rmem='{}' net.ipv4.tcp_wmem='{}' {KEEP}", triple(receive), triple(send)),
        ),
        What::Congestion { control, micros, lost, has_bbr, qdisc } => {
            let seen = if *lost { ", and packets are lost" } else { "" };
            // bbr paces what is sent. fq does the pacing at less cost than the kernel's own timers.
            let fair = if qdisc == "fq" { "" } else { " net.core.default_qdisc=fq" };
            let load = if *has_bbr { "" } else { "modprobe tcp_bbr && " };
            run(
                "congestion-control",
                format!("{control} at a round trip of {}{seen}", time(*micros)),
                "it treats every loss as congestion, and recovers slowly",
                format!("{load}sysctl -w net.ipv4.tcp_congestion_control=bbr{fair} {KEEP}"),
            )
        }
        _ => return None,
    })
}

fn triple(sizes: &[u64; 3]) -> String {
    sizes.map(|size| size.to_string()).join(" ")
}

fn size(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
    }
}
