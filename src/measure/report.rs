//! The numbers of a measurement, and how they are written: tables with the columns of perftest, and JSON.
//!
//! MB is perftest's: 2²⁰ bytes. Latencies are half of a round trip, in microseconds.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The version of the JSON that is written, under `"rdperf"`.
pub const FORMAT: u32 = 1;

/// Bytes of a MiB.
pub const MIB: f64 = 1_048_576.0;

/// All that one command has measured. What was not measured is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub rdperf: u32,
    /// The program's version.
    pub version: String,
    /// The host that measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// When it ended, such as `2026-02-28T12:00:00Z`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub date: String,
    /// How the wire was measured, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Latency against message size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Latency>,
    /// Bandwidth against message size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bandwidth: Vec<Bandwidth>,
    /// Throughput against the number of connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connections>,
    /// Messages sent and compared as they came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping: Option<Ping>,
    /// Storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<Disk>,
    /// Memory copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    /// What limits a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Each network between the hosts, and all of them at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Rails>,
    /// An adapter's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
}

/// How the wire was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// This host's name.
    pub from: String,
    /// The other host, as the user calls it.
    pub to: String,
    /// `tcp`, `rdma` or `rdma-software`.
    pub medium: String,
    /// Device and addresses.
    pub route: String,
    /// `events` or `polling`: how messages were waited for.
    pub wait: String,
    /// Connections.
    pub connections: u32,
    /// Messages on their way on each of them, at most.
    pub depth: u32,
}

impl Wire {
    fn line(&self) -> String {
        let Self { from, to, route, connections, depth, wait, .. } = self;
        let several = if *connections == 1 { "" } else { "s" };
        format!("{from} > {to}: {route}, {connections} connection{several}, depth {depth}, {wait}")
    }
}

/// Half round trips of messages of one size, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes of each message.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// The shortest.
    pub min_us: f64,
    /// The one that came most often.
    pub typical_us: f64,
    /// Mean.
    pub average_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// Median: what perftest calls typical.
    pub p50_us: f64,
    /// 99 of 100 were shorter.
    pub p99_us: f64,
    /// 999 of 1000 were shorter.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub fn new(bytes: u64, histogram: &Histogram<u64>) -> Self {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        // Of several that came equally often, the one in the middle: of few round trips hardly any comes twice.
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
    /// Messages, of both directions.
    pub iterations: u64,
    /// The best tenth of the run, in MiB/s.
    pub peak_mib_s: f64,
    /// The whole run, in MiB/s.
    pub average_mib_s: f64,
    /// Millions of messages a second.
    pub rate_mpps: f64,
    /// Both ends sent; the numbers are the sums.
    #[serde(default)]
    pub bidirectional: bool,
}

/// One direction of a run, as both ends saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    /// Messages.
    pub messages: u64,
    /// From the first send to the last completion.
    pub sending: Duration,
    /// From the first arrival to the last.
    pub receiving: Duration,
    /// Peaks at the sender and the receiver, in bytes a second; 0 where there was none.
    pub peaks: (u64, u64),
}

impl Bandwidth {
    /// Of the directions that sent. In each, the end that took longer counts: a sender is done when its system has
    /// taken the last message, which over TCP is long before that has arrived.
    pub fn new(bytes: u64, directions: &[Direction]) -> Self {
        let mut row = Self { bytes, bidirectional: directions.len() > 1, ..Self::default() };
        for direction in directions {
            let per_second = |messages: u64, time: Duration| {
                if time.is_zero() { f64::INFINITY } else { messages as f64 / time.as_secs_f64() }
            };
            // The first message that arrived took no time that anybody knows.
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

    /// Adds what was carried at the same time elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.bytes = other.bytes;
        self.iterations += other.iterations;
        self.peak_mib_s += other.peak_mib_s;
        self.average_mib_s += other.average_mib_s;
        self.rate_mpps += other.rate_mpps;
        self.bidirectional |= other.bidirectional;
    }
}

/// Throughput with some number of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Connections.
    pub connections: u32,
    /// Round trips a second of 32 bytes each way, one on its way on each connection.
    pub operations_s: f64,
    /// The median round trip of those, in microseconds.
    pub operation_us: f64,
    /// One-way throughput of 64 KiB messages, in MiB/s.
    pub large_mib_s: f64,
}

/// Messages that were sent and compared as they came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ping {
    /// Their latency.
    pub latency: Latency,
    /// Those that came back with other contents.
    pub damaged: u64,
}

/// Reading or writing storage with blocks of one size and so many on their way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// What was read or written.
    pub path: String,
    /// `read` or `write`.
    pub action: String,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// At random offsets, else one behind the other.
    pub random: bool,
    /// Bytes of each block.
    pub bytes: u64,
    /// Blocks on their way.
    pub depth: u32,
    /// Blocks a second.
    pub iops: f64,
    /// Throughput in MiB/s.
    pub mib_s: f64,
    /// The median time of one block, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 were faster.
    pub p99_us: f64,
}

/// Copying memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Threads that copy, each its own memory.
    pub threads: u32,
    /// Bytes copied a second, all threads together, in MiB/s: each byte is read once and written once.
    pub mib_s: f64,
}

/// One of the things that a copy passes through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// `source`, `memory`, `wire` or `sink`.
    pub name: String,
    /// What it is: a path, a route.
    pub what: String,
    /// Its throughput, in MiB/s.
    pub mib_s: f64,
    /// Operations a second of one of those that are under way at a time.
    pub operations_s: f64,
    /// Bytes of each operation.
    pub bytes: u64,
    /// How many are under way at a time.
    pub parallel: u32,
}

/// What a copy passes through, and which of it is the slowest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// In the order in which data passes.
    pub stages: Vec<Stage>,
    /// The name of the slowest.
    pub limit: String,
    /// A sentence that says so.
    pub sentence: String,
}

/// What one network carries, or all of them at once, with messages of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// The network, for a person: an interface of this host, and the addresses of both ends.
    pub name: String,
    /// The interface; `None` for all at once, and where there is one network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// `tcp`, `rdma` or `rdma-software`; empty for all at once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub medium: String,
    /// Bytes of each message.
    pub bytes: u64,
    /// In MiB/s.
    pub average_mib_s: f64,
    /// Millions of messages a second.
    pub rate_mpps: f64,
    /// Why it could not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Way {
    /// One that could not be used.
    pub fn failed(name: String, interface: Option<&str>, bytes: u64, reason: String) -> Self {
        let interface = interface.map(str::to_owned);
        Self { name, interface, bytes, failed: Some(reason), ..Self::default() }
    }

    /// Of what was measured.
    pub fn new(name: String, medium: &str, interface: Option<&str>, carried: &Bandwidth) -> Self {
        let &Bandwidth { bytes, average_mib_s, rate_mpps, .. } = carried;
        let (medium, interface) = (medium.to_owned(), interface.map(str::to_owned));
        Self { name, interface, medium, bytes, average_mib_s, rate_mpps, failed: None }
    }
}

/// Each network between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rails {
    /// For each size of messages, each network by itself, then all at once.
    pub ways: Vec<Way>,
    /// What all carry at once, in times of the best one: of the last size. `None` where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// A sentence that says so.
    pub sentence: String,
}

/// A curve of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The model's constants, and where they come from.
    pub constants: Vec<(String, f64, String)>,
    /// Connections, and for each the throughput in Mops: plain, grouped, state at the client.
    pub curve: Vec<(u32, f64, f64, f64)>,
    /// Connections at the peak of plain RC.
    pub peak_connections: u32,
    /// The same, in Mops.
    pub peak_mops: f64,
    /// Answers to what was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
}

impl Report {
    /// An empty report of this version.
    pub fn new() -> Self {
        Self { rdperf: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned(), ..Self::default() }
    }

    /// Says where and when it was measured: now, on this host.
    pub fn sign(&mut self) {
        self.host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    }

    /// What was measured where, by what, and when, on one line; empty if the report does not say.
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

    /// One JSON object on one line, without its end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers")
    }

    /// Reads what [`Report::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// A sentence, if `text` is not a report, or one of another format.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let report: Self =
            serde_json::from_str(text).map_err(|error| format!("is not a report of rdperf --json: {error}"))?;
        if report.rdperf != FORMAT {
            return Err(format!("is a report of format {}, but this release reads format {FORMAT}", report.rdperf));
        }
        Ok(report)
    }

    /// Tables for a person.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(wire) = &self.wire {
            let line = wire.line();
            let line = if line.chars().count() > COLUMNS { line.replacen(", ", ",\n    ", 1) } else { line };
            let _ = writeln!(text, "{line}");
        }
        table(&mut text, LATENCY_HEADING, &LATENCY, &self.latency);
        let heading = if self.bandwidth.iter().any(|row| row.bidirectional) { "Both directions together" } else { "" };
        table(&mut text, heading, &BANDWIDTH, &self.bandwidth);
        table(&mut text, "", &CONNECTIONS, &self.connections);
        if let Some(ping) = &self.ping {
            table(&mut text, LATENCY_HEADING, &LATENCY, &[ping.latency]);
            let _ = writeln!(
                text,
                "{} of {} messages came back as they were sent",
                ping.latency.iterations - ping.damaged.min(ping.latency.iterations),
                ping.latency.iterations
            );
            return text;
        }
        let first = self.disk.first();
        let heading = first.map_or(String::new(), |row| {
            format!("{}{}", row.path, if row.direct { "" } else { ", through the page cache (no O_DIRECT here)" })
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
            for way in &rails.ways {
                let _ = way.failed.iter().try_for_each(|reason| writeln!(text, "{}: {reason}", way.name));
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

/// A column of a table: its name, and the cell of a row.
type Column<R> = (&'static str, fn(&R) -> String);

/// Perftest's columns. Its unit in every name would take more than the 80 columns of a terminal.
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
    ("BW[MB/sec]", |row| format!("{:.0}", row.mib_s)),
    ("each[ops/sec]", |row| format!("{:.1}", row.operations_s)),
    ("#bytes", |row| row.bytes.to_string()),
    ("parallel", |row| row.parallel.to_string()),
    ("what", |row| ending(&row.what, 24)),
];

const WAYS: [Column<Way>; 4] = [
    ("#bytes", |row| row.bytes.to_string()),
    ("BW average[MB/sec]", |row| match row.failed {
        None => format!("{:.2}", row.average_mib_s),
        Some(_) => "failed".to_owned(),
    }),
    ("by", |row| row.medium.clone()),
    ("network", |row| beginning(&row.name, 34)),
];

const CURVE: [Column<(u32, f64, f64, f64)>; 4] = [
    ("#connections", |row| row.0.to_string()),
    ("RC[Mops]", |row| format!("{:.2}", row.1)),
    ("grouped[Mops]", |row| format!("{:.2}", row.2)),
    ("state at client[Mops]", |row| format!("{:.2}", row.3)),
];

/// A time in microseconds with four digits at least, in as few columns as that takes.
fn time(us: f64) -> String {
    match us {
        us if us < 99.995 => format!("{us:.2}"),
        us if us < 999.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// The width of a terminal.
const COLUMNS: usize = 80;

/// At most so many characters: of a long path, as of a route, the end says most.
pub(super) fn ending(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let end: String = text.chars().skip(count + 1 - most).collect();
    format!("…{end}")
}

/// At most so many characters: of a network, its interface says most.
fn beginning(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Appends a table, after an empty line if something stands before it; nothing if there are no rows.
///
/// Columns are as wide as what is in them and left-aligned, as perftest's are; the gaps use the room that a terminal has.
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
            Report { ping: Some(Ping { latency, damaged: 1 }), ..base.clone() },
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
