//! Checks how the kernel's TCP settings suit the line between two hosts.
//!
//! A connection carries at most its window in each round trip. The window is limited by the receiver's buffer
//! (`tcp_rmem`) and the sender's buffer (`tcp_wmem`), as described in tcp(7) and in the kernel's
//! Documentation/networking/ip-sysctl.rst.

use super::of_machine;
use super::path::ceiling_mbps;
use crate::measure::Path;
use crate::measure::facts::{Facts, TcpSettings};
use crate::measure::finding::{Finding, Fix, Outcome};
use crate::measure::probe::Attempt;
use crate::measure::words::{joined, link_rate, time};

/// A buffer is this many times as large as its window. The rest is for the kernel's own structures, with the default of
/// tcp_adv_win_scale.
const BUFFER_TO_WINDOW: u64 = 2;

/// Maximum number of connections for which TCP counts as well configured. A session opens connections until they fill
/// the line. With more than these that takes seconds, and programs with a single connection are left behind.
const CONNECTIONS_WELL: u64 = 4;

/// Round trip in microseconds below which TCP recovers from a lost packet before its method matters.
const LONG_MICROS: u64 = 10_000;

/// Largest buffer that is proposed, because each connection may hold this much memory.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// Checks TCP, given the findings about the counters of both hosts (`counted`). Reports nothing if the data does not go
/// by TCP between two hosts, or if a round trip or a rate was not measured.
pub(super) fn tcp(path: &Path, counted: &[Finding]) -> Vec<Finding> {
    let Some(Ok(speed)) = &path.speed else { return Vec::new() };
    if path.is_one_machine || speed.is_tunneled || speed.medium != "tcp" {
        return Vec::new();
    }
    let Some(round_trip) = round_trip_micros(path) else { return Vec::new() };
    // The link rate that hardware reports is higher than the measured rate if buffers have limited the measurement.
    let line_mbps = ceiling_mbps(path, speed).max(speed.mbps());
    let in_flight = line_mbps.saturating_mul(round_trip) / 8; // Mbit/s and microseconds make bits
    let hosts = [&path.here, &path.there];
    let known = || hosts.into_iter().filter_map(|host| Some((host, host.tcp.as_ref()?)));
    // Decided by whose facts they are: the other host may have, or claim, the same name.
    let of = |host: &Facts, finding: Finding| Finding { is_here: std::ptr::eq(host, &path.here), ..finding };
    let small = |(host, settings)| Some(of(host, window(host, settings, in_flight, line_mbps, round_trip)?));
    let mut findings: Vec<Finding> = known().filter_map(small).collect();
    let lost = counted.iter().any(|finding| finding.code == "segments-lost");
    if round_trip >= LONG_MICROS {
        let slow = |(host, settings)| Some(of(host, congestion(host, settings, round_trip, lost)?));
        findings.extend(known().filter_map(slow));
    }
    if findings.is_empty() && known().count() > 0 {
        let connections = known().map(|(_, settings)| in_flight.div_ceil(settings.window_bytes().max(1))).max();
        let carry = match connections.unwrap_or(1).max(1) {
            1 => "one connection fills the link".to_owned(),
            several => format!("{several} connections fill the link, opened as needed"),
        };
        let mut controls: Vec<&str> = known().map(|(_, settings)| settings.congestion.as_str()).collect();
        controls.dedup();
        let parts = [format!("round trip {}", time(round_trip)), carry, controls.join(" and ")];
        findings.push(Finding::well("tcp", "tcp", joined(parts, ", ")));
    }
    findings
}

impl TcpSettings {
    /// Maximum number of bytes in flight on a connection from or to this host.
    fn window_bytes(&self) -> u64 {
        self.receive[2].min(self.send[2]) / BUFFER_TO_WINDOW
    }
}

/// Returns the quickest answer to a connection attempt: a round trip between the kernels, without this program's own
/// time.
fn round_trip_micros(path: &Path) -> Option<u64> {
    let attempts: &[Attempt] = path.to_there.as_ref()?.as_ref().ok()?;
    let connected = attempts.iter().filter(|one| !one.is_rdma && one.outcome == Outcome::Connected);
    connected.map(|one| one.micros).min()
}

fn window(host: &Facts, settings: &TcpSettings, in_flight: u64, mbps: u64, micros: u64) -> Option<Finding> {
    let connections = in_flight.div_ceil(settings.window_bytes().max(1));
    if connections <= CONNECTIONS_WELL {
        return None;
    }
    // Twice as much as needed now, for a line that is faster at another time of day.
    let needed = (2 * BUFFER_TO_WINDOW).saturating_mul(in_flight).next_multiple_of(MIB).min(BUFFER_BYTES_MAX);
    let raised = |[least, usual, most]: [u64; 3]| format!("{least} {usual} {}", most.max(needed));
    let (receive, send) = (raised(settings.receive), raised(settings.send));
    let finding = Finding::warning(
        "tcp",
        "tcp-window-small",
        format!(
            "a connection has at most {} in flight; at a round trip of {} it takes {connections} of them for {}",
            size(settings.window_bytes()),
            time(micros),
            link_rate(mbps)
        ),
        "copies take seconds to open that many, or do not fill the link; programs with one connection never do",
        set(host, &format!("sysctl -w net.ipv4.tcp_rmem='{receive}' net.ipv4.tcp_wmem='{send}'")),
    );
    Some(finding.about(&host.host))
}

/// Returns a command that changes settings of TCP. They are lost at a restart unless a file has them.
fn set(host: &Facts, command: &str) -> Fix {
    let taken_over =
        if host.is_container { "; a container with a network of its own takes it over when it is started" } else { "" };
    of_machine(host, format!("{command} # a file in /etc/sysctl.d keeps it{taken_over}"))
}

fn size(bytes: u64) -> String {
    if bytes < MIB { format!("{} KiB", bytes >> 10) } else { format!("{:.1} MiB", bytes as f64 / MIB as f64) }
}

fn congestion(host: &Facts, settings: &TcpSettings, micros: u64, lost: bool) -> Option<Finding> {
    let control = settings.congestion.as_str();
    // After a single loss, reno needs minutes to fill a long line again. Continuing losses keep cubic slow.
    if control != "reno" && (control != "cubic" || !lost) {
        return None;
    }
    let seen = if lost { ", and packets are lost" } else { "" };
    // bbr paces what is sent. fq does the pacing at less cost than the kernel's own timers. Only the machine's own
    // network namespace has the setting.
    let fair = if matches!(&*settings.qdisc, "" | "fq") { "" } else { " net.core.default_qdisc=fq" };
    let has_bbr = settings.available.iter().any(|name| name == "bbr");
    let load = if has_bbr { "" } else { "modprobe tcp_bbr && " };
    let finding = Finding::warning(
        "tcp",
        "congestion-control",
        format!("{control} at a round trip of {}{seen}", time(micros)),
        "it treats every loss as congestion, and recovers slowly",
        set(host, &format!("{load}sysctl -w net.ipv4.tcp_congestion_control=bbr{fair}")),
    );
    Some(finding.about(&host.host))
}
