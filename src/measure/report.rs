//! The numbers of a measurement, written as tables with the columns of perftest, or as JSON.
//!
//! MB is used as in perftest: 2²⁰ bytes. Latencies are half of a round trip, in microseconds.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::fault::printable;

/// Version of the JSON format, written under `"rdperf"`.
pub const FORMAT: u32 = 1;

/// Bytes of a MiB.
pub const MIB: f64 = 1_048_576.0;

/// Everything that a command has measured. Parts that were not measured are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format: [`FORMAT`].
    pub rdperf: u32,
    /// Version of the program.
    pub version: String,
    /// The host that measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// When the measurement ended, such as `2026-02-28T12:00:00Z`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub date: String,
    /// How the wire was measured; `None` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Latency by message size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Latency>,
    /// Bandwidth by message size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bandwidth: Vec<Bandwidth>,
    /// Throughput by number of connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connections>,
    /// Messages that were sent and compared with their echo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping: Option<Ping>,
    /// Measurements of storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<Disk>,
    /// Measurements of memory copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    /// What limits a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Each network between the hosts, and all networks at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Rails>,
    /// Model of an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
}

/// How the wire was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// Name of this host.
    pub from: String,
    /// Name of the other host, as the user wrote it.
    pub to: String,
    /// The medium: `tcp`, `rdma` or `rdma-software`.
    pub medium: String,
    /// The device and the addresses.
    pub route: String,
    /// How messages were waited for: `events` or `polling`.
    pub wait: String,
    /// Number of connections.
    pub connections: u32,
    /// Maximum number of messages in flight on each connection.
    pub depth: u32,
}

impl Wire {
    fn line(&self) -> String {
        let Self { from, to, route, connections, depth, wait, .. } = self;
        let several = if *connections == 1 { "" } else { "s" };
        format!("{from} > {to}: {route}, {connections} connection{several}, depth {depth}, {wait}")
    }
}

/// Half of the round trip times of messages of one size, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes of each message.
    pub bytes: u64,
    /// Number of round trips.
    pub iterations: u64,
    /// Shortest time.
    pub min_us: f64,
    /// Most frequent time.
    pub typical_us: f64,
    /// Mean time.
    pub average_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// Median, which perftest calls typical.
    pub p50_us: f64,
    /// Time that 99 of 100 round trips stay below.
    pub p99_us: f64,
    /// Time that 999 of 1000 round trips stay below.
    pub p999_us: f64,
    /// Longest time.
    pub max_us: f64,
}

impl Latency {
    /// Makes a row from a histogram of nanoseconds.
    pub fn new(bytes: u64, histogram: &Histogram<u64>) -> Self {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        // Of several equally frequent times, the one nearest to the median. With few round trips, hardly any time
        // occurs twice.
        let median = histogram.value_at_quantile(0.5);
        let typical = histogram
            .iter_recorded()
            .min_by_key(|step| (Reverse(step.count_at_value()), step.value_iterated_to().abs_diff(median)));
        Self {
            bytes,
            iterations: histogram.len(),
            min_us: us(histogram.min()),
            typical_us: us(typical.map_or(0, |step| step.value_iterated_to())),
            average_us: histogram.mean() / 1000.0,
            deviation_us: histogram.stdev() / 1000.0,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }
}

/// Throughput of messages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes of each message.
    pub bytes: u64,
    /// Number of messages, in both directions together.
    pub iterations: u64,
    /// Rate of the best tenth of the run, in MiB/s.
    pub peak_mib_s: f64,
    /// Rate of the whole run, in MiB/s.
    pub average_mib_s: f64,
    /// Millions of messages per second.
    pub rate_mpps: f64,
    /// Whether both ends sent; then the numbers are sums.
    #[serde(default)]
    pub bidirectional: bool,
}

/// One direction of a run, as measured at both ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    /// Number of messages.
    pub messages: u64,
    /// Time from the first send to the last completion.
    pub sending: Duration,
    /// Time from the first arrival to the last.
    pub receiving: Duration,
    /// Peak rates at the sender and at the receiver, in bytes per second; 0 if there was no peak.
    pub peaks: (u64, u64),
}

impl Bandwidth {
    /// Makes a row from the directions in which data was sent. In each direction, the end that took longer counts. A
    /// sender is done when its system has accepted the last message; over TCP that is long before the message has
    /// arrived.
    pub fn new(bytes: u64, directions: &[Direction]) -> Self {
        let mut row = Self { bytes, bidirectional: directions.len() > 1, ..Self::default() };
        for direction in directions {
            let per_second = |messages: u64, time: Duration| {
                if time.is_zero() { f64::INFINITY } else { messages as f64 / time.as_secs_f64() }
            };
            // The time of the first arrived message is unknown, so that message is not counted.
            let arrived = per_second(direction.messages.saturating_sub(1), direction.receiving);
            let rate = per_second(direction.messages, direction.sending).min(arrived);
            let rate = if rate.is_finite() { rate } else { 0.0 };
            let peak = match direction.peaks {
                (0, peak) | (peak, 0) => peak,
                (sender, receiver) => sender.min(receiver),
            };
            let average = rate * bytes as f64 / MIB;
            row.iterations += direction.messages;
            row.rate_mpps += rate / 1e6;
            row.average_mib_s += average;
            row.peak_mib_s += average.max(peak as f64 / MIB);
        }
        row
    }

    /// Adds what was carried elsewhere at the same time.
    pub fn add(&mut self, other: &Self) {
        self.bytes = other.bytes;
        self.iterations += other.iterations;
        self.peak_mib_s += other.peak_mib_s;
        self.average_mib_s += other.average_mib_s;
        self.rate_mpps += other.rate_mpps;
        self.bidirectional |= other.bidirectional;
    }
}

/// Throughput with a given number of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Number of connections.
    pub connections: u32,
    /// Round trips per second with messages of 32 bytes, one in flight on each connection.
    pub operations_s: f64,
    /// Median time of these round trips in microseconds.
    pub operation_us: f64,
    /// One-way throughput of 64 KiB messages, in MiB/s.
    pub large_mib_s: f64,
}

/// Messages that were sent and compared with their echo.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ping {
    /// Latency of the messages; if there were several sizes, of the largest messages.
    pub latency: Latency,
    /// Latency of the smaller messages, by size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smaller: Vec<Latency>,
    /// Number of messages, of all sizes, that came back with different contents.
    pub damaged: u64,
}

impl Ping {
    /// Adds what was measured with larger messages.
    pub fn add(&mut self, latency: Latency, damaged: u64) {
        self.smaller.push(std::mem::replace(&mut self.latency, latency));
        self.damaged += damaged;
    }

    /// Returns the latencies, by size.
    pub fn rows(&self) -> impl Iterator<Item = &Latency> {
        self.smaller.iter().chain([&self.latency])
    }
}

/// Reading or writing storage, with one block size and one depth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// The file, device or directory.
    pub path: String,
    /// The action: `read` or `write`.
    pub action: String,
    /// Whether the page cache was bypassed (O_DIRECT).
    pub direct: bool,
    /// Whether offsets were random; otherwise blocks followed each other.
    pub random: bool,
    /// Bytes of each block.
    pub bytes: u64,
    /// Number of blocks in flight.
    pub depth: u32,
    /// Blocks per second.
    pub iops: f64,
    /// Throughput in MiB/s.
    pub mib_s: f64,
    /// Median time of a block in microseconds.
    pub p50_us: f64,
    /// Time in microseconds that 99 of 100 blocks stay below.
    pub p99_us: f64,
}

/// Throughput of memory copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Number of threads, each copying its own memory.
    pub threads: u32,
    /// Data copied per second by all threads together, in MiB/s. Each byte is read once and written once.
    pub mib_s: f64,
}

/// A stage that the data of a copy passes through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name of the stage: `source`, `memory`, `wire` or `sink`.
    pub name: String,
    /// What the stage consists of, such as a path or a route.
    pub what: String,
    /// Throughput in MiB/s.
    pub mib_s: f64,
    /// Operations per second of each of the `parallel` operations.
    pub operations_s: f64,
    /// Size of an operation in bytes.
    pub bytes: u64,
    /// Number of operations in flight at a time.
    pub parallel: u32,
}

impl Stage {
    /// Formats the throughput in MiB/s without the unit; slow stages get decimals.
    pub fn rate(&self) -> String {
        if self.mib_s < 9.995 { format!("{:.2}", self.mib_s) } else { format!("{:.0}", self.mib_s) }
    }
}

/// The stages of a copy, and the slowest of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The stages, in the order in which data passes through them.
    pub stages: Vec<Stage>,
    /// Name of the slowest stage.
    pub limit: String,
    /// A sentence that names the slowest stage.
    pub sentence: String,
}

/// What a network carries, or all networks at once, with messages of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// The network, for display: an interface of this host, and the addresses of both ends.
    pub name: String,
    /// The interface; `None` for all networks at once, and if there is only one network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The medium: `tcp`, `rdma` or `rdma-software`; empty for all networks at once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub medium: String,
    /// Bytes of each message.
    pub bytes: u64,
    /// Throughput in MiB/s.
    pub average_mib_s: f64,
    /// Millions of messages per second.
    pub rate_mpps: f64,
    /// Why the network could not be used; `None` if it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Way {
    /// Makes a row for a network that could not be used.
    pub fn failed(name: String, interface: Option<&str>, bytes: u64, reason: String) -> Self {
        let interface = interface.map(str::to_owned);
        Self { name, interface, bytes, failed: Some(reason), ..Self::default() }
    }

    /// Makes a row for a measured network.
    pub fn new(name: String, medium: &str, interface: Option<&str>, carried: &Bandwidth) -> Self {
        let &Bandwidth { bytes, average_mib_s, rate_mpps, .. } = carried;
        let (medium, interface) = (medium.to_owned(), interface.map(str::to_owned));
        Self { name, interface, medium, bytes, average_mib_s, rate_mpps, failed: None }
    }
}

/// The networks between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rails {
    /// For each message size: each network by itself, then all networks at once.
    pub ways: Vec<Way>,
    /// Throughput of all networks at once divided by that of the best network, for the last message size. `None` if
    /// there is only one network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// A sentence that summarizes the result.
    pub sentence: String,
}

/// A curve of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The model's constants, each with its origin.
    pub constants: Vec<(String, f64, String)>,
    /// Number of connections, with the throughput in Mops: plain, grouped, state at the client.
    pub curve: Vec<(u32, f64, f64, f64)>,
    /// Number of connections at the peak of plain RC.
    pub peak_connections: u32,
    /// Throughput at the peak of plain RC, in Mops.
    pub peak_mops: f64,
    /// Answers to the user's questions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
}

impl Report {
    /// Returns an empty report of this version.
    pub fn new() -> Self {
        Self { rdperf: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned(), ..Self::default() }
    }

    /// Records this host and the current time as place and time of the measurement.
    pub fn sign(&mut self) {
        self.host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    }

    /// Returns one line with what was measured, where, how and when; empty if the report does not say.
    pub fn heading(&self) -> String {
        let mut parts = Vec::new();
        match (&self.wire, self.disk.first()) {
            (Some(wire), _) => parts.push(wire.line()),
            (None, Some(disk)) => parts.push(format!("{}: {}", self.host, disk.path)),
            (None, None) => parts.push(self.host.clone()),
        }
        parts.push(self.date.replace('T', " ").replace('Z', " UTC"));
        parts.retain(|part| !part.is_empty());
        parts.join(", ")
    }

    /// Returns the report as one JSON object on one line, without a line end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers")
    }

    /// Reads a report that [`Report::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// A sentence, if `text` is not a report, or is a report of another format.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let report: Self =
            serde_json::from_str(text).map_err(|error| format!("is not a report from rdperf --json: {error}"))?;
        if report.rdperf != FORMAT {
            return Err(format!("has report format {}, but this release reads format {FORMAT}", report.rdperf));
        }
        Ok(report)
    }

    /// Returns the report as tables for display.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(wire) = &self.wire {
            let line = printable(&wire.line());
            let line = if line.chars().count() > COLUMNS { line.replacen(", ", ",\n    ", 1) } else { line };
            let _ = writeln!(text, "{line}");
        }
        table(&mut text, LATENCY_HEADING, &LATENCY, &self.latency);
        let heading = if self.bandwidth.iter().any(|row| row.bidirectional) { "Both directions together" } else { "" };
        table(&mut text, heading, &BANDWIDTH, &self.bandwidth);
        table(&mut text, "", &CONNECTIONS, &self.connections);
        if let Some(ping) = &self.ping {
            let rows: Vec<Latency> = ping.rows().copied().collect();
            table(&mut text, LATENCY_HEADING, &LATENCY, &rows);
            let messages: u64 = rows.iter().map(|row| row.iterations).sum();
            let unchanged = messages.saturating_sub(ping.damaged);
            let _ = writeln!(text, "{unchanged} of {messages} messages came back unchanged");
            return text;
        }
        let first = self.disk.first();
        let heading = first.map_or(String::new(), |row| {
            printable(&row.path) + if row.direct { "" } else { ", through the page cache (no O_DIRECT here)" }
        });
        table(&mut text, &heading, &DISK, &self.disk);
        table(&mut text, "", &MEMORY, &self.memory);
        if let Some(limits) = &self.limits {
            table(&mut text, "", &STAGES, &limits.stages);
            let _ = writeln!(text, "\n{}", limits.sentence);
            return text;
        }
        if let Some(rails) = &self.rails {
            table(&mut text, "", &WAYS, &rails.ways);
            text.push('\n');
            for (name, reason) in rails.ways.iter().filter_map(|way| Some((&way.name, way.failed.as_ref()?))) {
                let _ = writeln!(text, "{}: {}", printable(name), printable(reason));
            }
            let _ = writeln!(text, "{}", rails.sentence);
            return text;
        }
        if let Some(model) = &self.model {
            table(&mut text, "", &CURVE, &model.curve);
            text.push('\n');
            for (name, value, origin) in &model.constants {
                let _ = writeln!(text, "{name:30}  {value:>8}  {origin}");
            }
            for answer in &model.answers {
                let _ = writeln!(text, "\n{answer}");
            }
        }
        text
    }
}

/// A column of a table: its name, and a function that returns the cell of a row.
type Column<R> = (&'static str, fn(&R) -> String);

/// Perftest's columns. The heading names the unit, because units in all column names would exceed the 80 columns of a
/// terminal.
const LATENCY_HEADING: &str = "Latency, half a round trip, in usec";
const LATENCY: [Column<Latency>; 10] = [
    ("#bytes", |row| row.bytes.to_string()),
    ("#iterations", |row| row.iterations.to_string()),
    ("t_min", |row| time(row.min_us)),
    ("t_typical", |row| time(row.typical_us)),
    ("t_avg", |row| time(row.average_us)),
    ("t_stdev", |row| time(row.deviation_us)),
    ("50%", |row| time(row.p50_us)),
    ("99%", |row| time(row.p99_us)),
    ("99.9%", |row| time(row.p999_us)),
    ("t_max", |row| time(row.max_us)),
];

const BANDWIDTH: [Column<Bandwidth>; 5] = [
    ("#bytes", |row| row.bytes.to_string()),
    ("#iterations", |row| row.iterations.to_string()),
    ("BW peak[MB/sec]", |row| format!("{:.2}", row.peak_mib_s)),
    ("BW average[MB/sec]", |row| format!("{:.2}", row.average_mib_s)),
    ("MsgRate[Mpps]", |row| format!("{:.6}", row.rate_mpps)),
];

const CONNECTIONS: [Column<Connections>; 4] = [
    ("#connections", |row| row.connections.to_string()),
    ("32 B ops/sec", |row| format!("{:.0}", row.operations_s)),
    ("50%[usec]", |row| format!("{:.2}", row.operation_us)),
    ("64 KiB BW[MB/sec]", |row| format!("{:.2}", row.large_mib_s)),
];

const DISK: [Column<Disk>; 8] = [
    ("", |row| row.action.clone()),
    ("", |row| if row.random { "random" } else { "in order" }.to_owned()),
    ("#bytes", |row| row.bytes.to_string()),
    ("depth", |row| row.depth.to_string()),
    ("IOPS", |row| format!("{:.0}", row.iops)),
    ("BW[MB/sec]", |row| format!("{:.2}", row.mib_s)),
    ("50%[usec]", |row| format!("{:.2}", row.p50_us)),
    ("99%[usec]", |row| format!("{:.2}", row.p99_us)),
];

const MEMORY: [Column<Memory>; 2] =
    [("threads", |row| row.threads.to_string()), ("copied[MB/sec]", |row| format!("{:.0}", row.mib_s))];

const STAGES: [Column<Stage>; 6] = [
    ("", |row| row.name.clone()),
    ("BW[MB/sec]", Stage::rate),
    ("each[ops/sec]", |row| format!("{:.1}", row.operations_s)),
    ("#bytes", |row| row.bytes.to_string()),
    ("parallel", |row| row.parallel.to_string()),
    ("what", |row| ending(&printable(&row.what), 24)),
];

const WAYS: [Column<Way>; 4] = [
    ("#bytes", |row| row.bytes.to_string()),
    ("BW average[MB/sec]", |row| match row.failed {
        None => format!("{:.2}", row.average_mib_s),
        Some(_) => "failed".to_owned(),
    }),
    ("by", |row| row.medium.clone()),
    ("network", |row| beginning(&printable(&row.name), 34)),
];

const CURVE: [Column<(u32, f64, f64, f64)>; 4] = [
    ("#connections", |row| row.0.to_string()),
    ("RC[Mops]", |row| format!("{:.2}", row.1)),
    ("grouped[Mops]", |row| format!("{:.2}", row.2)),
    ("state at client[Mops]", |row| format!("{:.2}", row.3)),
];

/// Formats a time in microseconds with at least three digits, in as few columns as possible.
fn time(us: f64) -> String {
    match us {
        us if us < 99.995 => format!("{us:.2}"),
        us if us < 999.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// Width of a terminal in columns.
const COLUMNS: usize = 80;

/// Shortens a text to at most `most` characters and keeps its end, which says most about a path or a route.
pub(super) fn ending(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let end: String = text.chars().skip(count + 1 - most).collect();
    format!("…{end}")
}

/// Shortens a text to at most `most` characters and keeps its beginning: a network's name begins with its interface.
fn beginning(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Appends a table, after an empty line if there is text already. Appends nothing if there are no rows.
///
/// Columns are as wide as their contents and left-aligned, as in perftest. The gaps use the remaining width of a
/// terminal.
fn table<R>(text: &mut String, heading: &str, columns: &[Column<R>], rows: &[R]) {
    if rows.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    if !heading.is_empty() {
        let _ = writeln!(text, "{heading}");
    }
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect()));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let free = COLUMNS.saturating_sub(widths.iter().sum::<usize>() + 1);
    let gap = (free / (widths.len() - 1).max(1)).clamp(1, 4);
    for line in &lines {
        let mut written = " ".to_owned();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(written, "{cell:width$}{:gap$}", "");
        }
        let _ = writeln!(text, "{}", written.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let latency = Latency {
            bytes: 2,
            iterations: 1000,
            min_us: 1.25,
            typical_us: 1.5,
            average_us: 1.6,
            deviation_us: 0.25,
            p50_us: 1.5,
            p99_us: 2.0,
            p999_us: 3.0,
            max_us: 10.0,
        };
        let wire = Wire {
            from: "here".to_owned(),
            to: "there".to_owned(),
            medium: "tcp".to_owned(),
            route: "TCP to 10.0.0.2".to_owned(),
            wait: "events".to_owned(),
            connections: 1,
            depth: 128,
        };
        let second = Duration::from_secs(1);
        let direction =
            Direction { messages: 16_000, sending: second, receiving: second / 2, peaks: (2000 << 20, 1500 << 20) };
        Report {
            wire: Some(wire),
            latency: vec![latency],
            bandwidth: vec![Bandwidth::new(65_536, &[direction])],
            ..Report::new()
        }
    }

    #[test]
    fn columns_are_perftests() {
        let text = report().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "here > there: TCP to 10.0.0.2, 1 connection, depth 128, events");
        assert_eq!(lines[2], LATENCY_HEADING);
        let head: Vec<&str> = lines[6].split("  ").map(str::trim).filter(|name| !name.is_empty()).collect();
        assert_eq!(head, ["#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"]);
        let row: Vec<&str> = lines[7].split_whitespace().collect();
        assert_eq!(row, ["65536", "16000", "1500.00", "1000.00", "0.016000"]);
        let latency: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(latency, ["2", "1000", "1.25", "1.50", "1.60", "0.25", "1.50", "2.00", "3.00", "10.00"]);
    }

    #[test]
    fn tables_fit_a_terminal_with_the_largest_numbers() {
        let us = 999_999.0;
        let latency = Latency {
            bytes: 8 << 20,
            iterations: 123_456_789,
            min_us: us,
            typical_us: us,
            average_us: us,
            deviation_us: us,
            p50_us: us,
            p99_us: us,
            p999_us: us,
            max_us: us,
        };
        let bandwidth = Bandwidth {
            bytes: 8 << 20,
            iterations: 123_456_789,
            peak_mib_s: 123_456.78,
            average_mib_s: 123_456.78,
            rate_mpps: 123.456_789,
            bidirectional: true,
        };
        let what = "a/very/long/path".repeat(9);
        let stage = Stage {
            name: "source".to_owned(),
            what: what.clone(),
            mib_s: 123_456.0,
            operations_s: 1_234_567.8,
            bytes: 8 << 20,
            parallel: 4096,
        };
        let disk = Disk {
            action: "write".to_owned(),
            bytes: 8 << 20,
            depth: 4096,
            iops: 12_345_678.0,
            mib_s: 123_456.78,
            p50_us: us,
            p99_us: us,
            ..Disk::default()
        };
        let wire = Wire { route: "RDMA ".to_owned() + &"x".repeat(60), ..report().wire.expect("it") };
        let base = Report { wire: Some(wire), disk: vec![disk], bandwidth: vec![bandwidth], ..Report::new() };
        let limits = Limits { stages: vec![stage], ..Limits::default() };
        let way = Way::new(what.clone(), "rdma-software", Some("e0"), &bandwidth);
        let rails = Rails { ways: vec![way], gain: None, sentence: "One.".to_owned() };
        let model = crate::measure::model::Adapter::with_left_at_3000(0.7).report(Some(64));
        for report in [
            Report { latency: vec![latency], limits: Some(limits), ..base.clone() },
            Report { ping: Some(Ping { latency, smaller: vec![latency], damaged: 1 }), ..base.clone() },
            Report { rails: Some(rails), ..base.clone() },
            Report { model: Some(model), ..base },
        ] {
            let text = report.to_text();
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > COLUMNS).collect();
            assert!(long.is_empty(), "{long:#?}");
        }
        assert_eq!(ending(&what, 5), "…path");
    }

    #[test]
    fn names_reach_a_terminal_in_printable_form() {
        let name = "a\u{1b}[31m\nb".to_owned();
        let wire = Wire { route: name.clone(), ..report().wire.expect("it") };
        let disk = vec![Disk { path: name.clone(), ..Disk::default() }];
        let rails = Some(Rails { ways: vec![Way::failed(name.clone(), None, 2, name)], ..Rails::default() });
        let text = Report { wire: Some(wire), disk, rails, ..Report::new() }.to_text();
        assert!(text.matches("a\\u{1b}[31m\\nb").count() == 5 && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn messages_of_all_sizes_are_shown_and_counted() {
        let row = |bytes| Latency { bytes, iterations: 10, ..Latency::default() };
        let mut ping = Ping { latency: row(2), damaged: 1, ..Ping::default() };
        let one = Report { ping: Some(ping.clone()), ..Report::new() };
        assert!(!one.to_json().contains("smaller"), "{}", one.to_json());
        ping.add(row(4), 0);
        ping.add(row(8), 2);
        let text = Report { ping: Some(ping), ..Report::new() }.to_text();
        let sizes: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(sizes, ["Latency,", "#bytes", "2", "4", "8", "27"], "{text}");
        assert!(text.ends_with("\n27 of 30 messages came back unchanged\n"), "{text}");
    }

    #[test]
    fn a_heading_says_what_was_measured_where_and_when() {
        let mut report = report();
        report.sign();
        let heading = report.heading();
        assert!(heading.starts_with("here > there: TCP to 10.0.0.2, 1 connection, "), "{heading}");
        assert!(heading.contains(", 20") && heading.ends_with(" UTC"), "{heading}");
        let disk = Disk { path: "/srv".to_owned(), ..Disk::default() };
        let storage = Report { host: "h1".to_owned(), disk: vec![disk], ..Report::new() };
        assert_eq!(storage.heading(), "h1: /srv");
        assert_eq!(Report::new().heading(), "");
    }

    #[test]
    fn json_comes_back_and_other_formats_do_not() {
        let text = report().to_json();
        assert!(!text.contains('\n') && text.starts_with("{\"rdperf\":1,"), "{text}");
        assert_eq!(Report::from_json(&text), Ok(report()));
        assert!(Report::from_json(&text.replace("\"rdperf\":1", "\"rdperf\":2")).is_err());
        assert!(Report::from_json("{}").is_err());
        assert!(Report::from_json("no").is_err());
    }

    #[test]
    fn the_slower_end_of_each_direction_counts() {
        let ms = Duration::from_millis;
        let quick = Direction { messages: 101, sending: ms(10), receiving: ms(100), peaks: (0, 0) };
        let row = Bandwidth::new(1 << 20, &[quick]);
        assert_eq!(row.average_mib_s.round(), 1000.0);
        assert_eq!(row.peak_mib_s, row.average_mib_s, "a run without parts has no better one");
        let both = Bandwidth::new(1 << 20, &[quick, quick]);
        assert_eq!((both.iterations, both.average_mib_s.round(), both.bidirectional), (202, 2000.0, true));
        let nothing = Direction::default();
        assert_eq!(Bandwidth::new(8, &[nothing]).average_mib_s, 0.0);
    }

    #[test]
    fn latencies_are_those_of_the_histogram() {
        let mut histogram = Histogram::new(3).expect("digits");
        for value in [1000, 1500, 1500, 1500, 9000] {
            histogram.record(value).expect("it grows");
        }
        let row = Latency::new(2, &histogram);
        assert_eq!((row.iterations, row.min_us, row.typical_us, row.p50_us), (5, 1.0, 1.5, 1.5));
        assert!((8.9..9.1).contains(&row.p999_us) && (8.9..9.1).contains(&row.max_us), "{row:?}");
    }
}
