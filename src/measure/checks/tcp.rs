//! Checks how the kernel's TCP settings suit the line between two hosts.
//!
//! A connection carries at most its window in each round trip. The window is limited by the receiver's buffer
//! (`tcp_rmem`) and the sender's buffer (`tcp_wmem`), as described in tcp(7) and in the kernel's
//! Documentation/networking/ip-sysctl.rst.

use super::path::ceiling_mbps;
use crate::measure::Path;
use crate::measure::facts::{Facts, TcpSettings};
use crate::measure::finding::{Finding, Level, Outcome, What};
use crate::measure::probe::Attempt;

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
    let mut findings: Vec<Finding> =
        known().flat_map(|(host, settings)| window(host, settings, in_flight, line_mbps, round_trip)).collect();
    let lost = counted.iter().any(|finding| matches!(finding.what, What::SegmentsLost { .. }));
    if round_trip >= LONG_MICROS {
        findings.extend(known().filter_map(|(host, settings)| congestion(host, settings, round_trip, lost)));
    }
    findings.iter_mut().for_each(|finding| finding.is_here = finding.about == path.here.host);
    if findings.is_empty() && known().count() > 0 {
        let connections = known().map(|(_, settings)| in_flight.div_ceil(settings.window_bytes().max(1))).max();
        let controls = known().map(|(_, settings)| settings.congestion.clone()).collect();
        let what = What::TcpWell { micros: round_trip, connections: connections.unwrap_or(1).max(1), controls };
        findings.push(Finding::new("tcp", Level::Ok, what));
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
    let raised = |[least, usual, most]: [u64; 3]| [least, usual, most.max(needed)];
    let what = What::TcpWindowSmall {
        window: settings.window_bytes(),
        micros,
        mbps,
        connections,
        receive: raised(settings.receive),
        send: raised(settings.send),
    };
    Some(Finding::about("tcp", &host.host, Level::Warning, what))
}

fn congestion(host: &Facts, settings: &TcpSettings, micros: u64, lost: bool) -> Option<Finding> {
    let control = settings.congestion.as_str();
    let has_bbr = settings.available.iter().any(|name| name == "bbr");
    // After a single loss, reno needs minutes to fill a long line again. Continuing losses keep cubic slow.
    if control != "reno" && (control != "cubic" || !lost) {
        return None;
    }
    let what = What::Congestion { control: control.to_owned(), micros, lost, has_bbr, qdisc: settings.qdisc.clone() };
    Some(Finding::about("tcp", &host.host, Level::Warning, what))
}
