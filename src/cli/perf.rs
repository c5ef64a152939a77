//! `rdperf`: measures the wire between two hosts, and the storage and memory of this host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, Parser};
use rustix::io::Errno;

use super::options::{KeyOptions, parse_port};
use super::rdcp::HostOptions;
use super::words::split_login;
use super::{Arguments, print};
use crate::engine::perf::frames::{CONNECTIONS_MAX, DEPTH_MAX, Load, MESSAGE_BYTES_MAX, Run};
use crate::fault::{Exit, Failure, escaped, os};
use crate::fs;
use crate::job::plan::Spec;
use crate::job::targets::is_list;
use crate::measure::plot;
use crate::measure::report::Report;
use crate::options::{Transport, parse_bytes, parse_ports};
use crate::transport::bundle::Settings;

mod limits;
mod local;
mod output;
mod rails;
pub(crate) mod serve;
mod uses;
mod wire;

/// Powers of two that are the message lengths of `--all`: 2 bytes to 8 MiB, as in perftest.
const ALL: std::ops::RangeInclusive<u32> = 1..=23;

/// Default number of messages in flight on each connection, as in perftest.
const DEPTH_DEFAULT: u16 = 128;

/// Maximum time of a run with a fixed number of messages, as the help says, unless `--duration` allows more.
const COUNTED_MAX: Duration = Duration::from_secs(60);

/// Measure the network between two hosts, and local storage and memory
///
/// `rdperf HOST` starts the other end through ssh; `rdperf HOST:PORT` connects to an `rdperf serve` there, with the KEY
/// that it prints. MODE is bw (bandwidth), lat (latency), ping (latency, comparing every message that comes back), qps
/// (throughput by number of connections), rails (each network that both hosts share, separately and all at once) or
/// limits (what limits a copy to HOST, or HOST:PATH); without MODE, latency and bandwidth. `rdperf disk PATH` measures
/// a file, or the file system of a directory, without changing any file; `rdperf mem` measures memory; `rdperf model`
/// plots how an adapter's cache limits many connections. MB means MiB, as in perftest; latency is half of a round trip.
#[derive(Parser, Debug)]
#[command(
    name = "rdperf",
    version,
    args_override_self = true,
    override_usage = "rdperf [OPTIONS] HOST[:PORT] [bw|lat|ping|qps|rails|limits]\n       rdperf [OPTIONS] serve [PORT]\n       \
        rdperf [OPTIONS] disk PATH\n       rdperf [OPTIONS] mem|model",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDPERF, EXIT_CODES),
    // Refused with every task.
    mut_arg("relay", |option| option.hide(true))
)]
pub struct PerfArguments {
    /// What to measure
    #[arg(value_name = "HOST [MODE]", num_args = 0..=2)]
    positionals: Vec<OsString>,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    output: OutputOptions,
    /// Source for limits: a file, or a directory in which a temporary file is created
    #[arg(long, value_name = "PATH", default_value = ".")]
    source: PathBuf,
    #[command(flatten)]
    pub(crate) serve: ServeOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    key: KeyOptions,
    #[command(flatten)]
    pub(crate) hosts: HostOptions,
}

/// Options for the load.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Load")]
struct LoadOptions {
    /// All message lengths, 2 B to 8 MiB
    #[arg(long, conflicts_with = "size")]
    all: bool,
    /// Size of each message, 1 to 8M [default: 2 for latency, 64K for bandwidth, 64 for ping; 4K, 64K and 1M for disk]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u32>,
    /// Messages per length, in at most 60 seconds, or --duration if that is longer [default for ping: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    iterations: Option<u64>,
    /// Seconds per message length, number of connections, block size or depth
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    duration: Duration,
    /// Connections: queue pairs, or TCP streams; with qps, the maximum [default: 1; with rails, 2 per network; with
    /// limits, 2 on TCP; with qps, what the devices allow, at most 4096 (TCP: 1024)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    qp: Option<u32>,
    /// Messages in flight per connection, or storage blocks in flight [default: 128; with qps 1; with disk 1, 8 and 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(DEPTH_MAX)))]
    depth: Option<u16>,
    /// Both ends send at once; report the sums
    #[arg(long)]
    bidirectional: bool,
    /// The other end sends
    #[arg(long, conflicts_with = "bidirectional")]
    reverse: bool,
    /// Busy-poll for messages at both ends, instead of sleeping until one arrives
    #[arg(long)]
    poll: bool,
    /// Transport for the messages
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    transport: Transport,
}

/// Options for output.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
struct OutputOptions {
    /// Write one JSON object to FILE, or to standard output instead of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Plot the results as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also plot this report of --json; may be repeated. If nothing is measured, plot only these
    #[arg(long, value_name = "FILE", requires = "plot")]
    compare: Vec<PathBuf>,
    /// Print events as they happen
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    common: super::options::CommonOptions,
}

/// Options for `rdperf model`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Model")]
struct ModelOptions {
    /// Print how many queue pairs N clients may each use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    clients: Option<u32>,
    /// Cache memory of the adapter [default: 2M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    sram: Option<u64>,
    /// Share of the peak rate left at 3000 connections with 2M of cache memory
    #[arg(long, value_name = "SHARE", default_value_t = 0.7, value_parser = parse_share)]
    left: f64,
}

/// Options for `rdperf serve`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Serve")]
pub(crate) struct ServeOptions {
    /// Exit after one measurement
    #[arg(long)]
    once: bool,
    /// Ports that the listening end may use: for RDMA, and for TCP if no port is given
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    pub(crate) port_range: Option<std::ops::RangeInclusive<u16>>,
}

/// Exit codes, for the help text.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 usage error; 2 wrong KEY; 3 cannot connect, or busy; 4 link lost; \
    5 cannot read; 6 cannot write; 7 messages came back corrupted; 8 one of several networks failed; \
    9 protocol or version; 128+n ended by signal n; 141 standard output closed";

/// The task that a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Task {
    Serve(u16),
    Wire(Target, Mode),
    Limits(Target, OsString),
    Storage(OsString),
    Memory,
    Model,
    /// Only draws existing reports.
    Compare,
}

/// The other end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// An `rdperf serve` at this port.
    Server(OsString, u16),
    /// A host that is passed to the launcher.
    Launched(OsString),
}

/// What is measured on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Both,
    Bandwidth,
    Latency,
    Ping,
    Connections,
    Rails,
}

/// Words for the modes.
const MODES: [(&str, Mode); 5] = [
    ("bw", Mode::Bandwidth),
    ("lat", Mode::Latency),
    ("ping", Mode::Ping),
    ("qps", Mode::Connections),
    ("rails", Mode::Rails),
];

/// Runs the whole command; `words` begin with its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rdperf", || super::with_arguments(words, |arguments| perf(&arguments)))
}

impl Arguments for PerfArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        match asked(given) {
            Ok(Task::Wire(Target::Server(host, _) | Target::Launched(host), _)) => vec![host],
            Ok(Task::Limits(Target::Server(host, _) | Target::Launched(host), _)) => vec![host],
            _ => Vec::new(),
        }
    }

    fn refused(given: &ArgMatches) -> Option<String> {
        let task = asked(given).ok()?;
        super::uses::refused(uses::USES, &Self::command(), given, &task, &uses::name(&task))
    }

    fn idle(given: &ArgMatches, key: &str) -> Option<String> {
        super::uses::idle_launching(given, key)
    }
}

/// Returns the requested task, before the command line has been checked completely.
fn asked(given: &ArgMatches) -> Result<Task, Failure> {
    let words: Vec<OsString> = given.get_many("positionals").unwrap_or_default().cloned().collect();
    task(&words, given.contains_id("compare"))
}

fn perf(arguments: &PerfArguments) -> Result<(), Failure> {
    super::key::conceal(None);
    let output = &arguments.output;
    if let Some(path) = &output.plot
        && !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"))
    {
        let name = escaped(path.as_os_str());
        return Err(Exit::Usage.with(format!("--plot {name}: plots are SVG, so the name must end in .svg")));
    }
    // Reports are read before anything is measured, so that an unreadable file is found early.
    let others = output.compare.iter().map(|path| read_report(path)).collect::<Result<Vec<_>, _>>()?;
    let task = task(&arguments.positionals, !others.is_empty())?;
    output::check(output)?;
    fs::raise_open_files();
    let (mut report, failure) = match task {
        Task::Serve(port) => return serve::serve(arguments, port),
        Task::Wire(target, mode) => wire::measure(arguments, &target, mode)?,
        Task::Limits(target, path) => (limits::measure(arguments, &target, &path)?, None),
        Task::Storage(path) => (local::storage(arguments, &path)?, None),
        Task::Memory => (local::memory(arguments), None),
        Task::Model => (local::model(arguments), None),
        Task::Compare => (Report::new(), None),
    };
    if report != Report::new() && report.model.is_none() {
        report.sign();
    }
    // The figures are printed first, so that they are not lost if the chart cannot be drawn.
    let told = if report == Report::new() { Ok(()) } else { tell(output, &report) };
    let drawn = output.plot.as_ref().map_or(Ok(()), |path| draw(path, &report, &others, &output.compare));
    failure.map_or(Ok(()), Err).and(told).and(drawn)
}

fn task(words: &[OsString], compares: bool) -> Result<Task, Failure> {
    let wrong = |message: &str| Err(super::usage(&PerfArguments::command(), message));
    let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    match (&texts[..], words) {
        ([], _) if compares => Ok(Task::Compare),
        ([], _) => wrong("HOST is required, or one of serve, disk, mem, model"),
        (["serve"], _) => Ok(Task::Serve(0)),
        (["serve", _], [_, port]) => Ok(Task::Serve(parse_port(port).map_err(|message| Exit::Usage.with(message))?)),
        (["disk", _], [_, path]) => Ok(Task::Storage(path.clone())),
        (["disk"], _) => Err(Exit::Usage.with("disk needs a PATH: rdperf disk PATH")),
        (["mem"], _) => Ok(Task::Memory),
        (["model"], _) => Ok(Task::Model),
        ([_], [host]) => Ok(Task::Wire(target(host)?, Mode::Both)),
        // Other tools take the mode first, so both orders are accepted.
        ([first, second], [one, other]) => match (*first, *second) {
            (_, "limits") => limited(one),
            ("limits", _) => limited(other),
            _ => match (mode(first), mode(second)) {
                (_, Some(mode)) => Ok(Task::Wire(target(one)?, mode)),
                (Some(mode), None) => Ok(Task::Wire(target(other)?, mode)),
                (None, None) => {
                    let message =
                        format!("unknown mode {}; the modes are bw, lat, ping, qps, rails and limits", escaped(other));
                    Err(Exit::Usage.with(message))
                }
            },
        },
        _ => wrong("too many arguments"),
    }
}

/// Parses `HOST`, `HOST:PORT` or `HOST:PATH`.
fn limited(word: &OsStr) -> Result<Task, Failure> {
    if let Ok(server @ Target::Server(..)) = target(word) {
        return Ok(Task::Limits(server, OsString::new()));
    }
    match Spec::parse(word).map_err(|reason| Exit::Usage.with(reason))? {
        Spec::There(host, path) => {
            check_single(&host, word)?;
            Ok(Task::Limits(Target::Launched(host), path))
        }
        _ => Ok(Task::Limits(target(word)?, OsString::new())),
    }
}

fn mode(word: &str) -> Option<Mode> {
    MODES.iter().find(|(known, _)| *known == word).map(|(_, mode)| *mode)
}

/// Parses `HOST`, `HOST:`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn target(word: &OsStr) -> Result<Target, Failure> {
    let usage = |message: String| Exit::Usage.with(message);
    let bytes = word.as_bytes();
    let bare = |host: &[u8]| -> Result<OsString, Failure> {
        let (login, host) = split_login(host);
        let host = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
        // Such a name would be an option of the launcher.
        if host.is_empty() || host.starts_with(b"-") || login.starts_with(b"-") {
            return Err(usage(format!("invalid HOST {:?}", escaped(word))));
        }
        check_single(OsStr::from_bytes(host), word)?;
        Ok(OsString::from_vec([login, host].concat()))
    };
    let colon = bytes.iter().rposition(|&byte| byte == b':').filter(|_| !bytes.ends_with(b"]"));
    let Some(colon) = colon else { return Ok(Target::Launched(bare(bytes)?)) };
    let (host, port) = (&bytes[..colon], OsStr::from_bytes(&bytes[colon + 1..]));
    let (login, address) = split_login(bytes);
    if split_login(host).1.contains(&b':') && !address.starts_with(b"[") {
        let [login, address] = [login, address].map(|part| escaped(OsStr::from_bytes(part)));
        return Err(usage(format!("an IPv6 address needs brackets: {login}[{address}]")));
    }
    match parse_port(&port.to_owned()) {
        // As rdcp writes a host.
        _ if port.is_empty() => Ok(Target::Launched(bare(host)?)),
        Ok(0) | Err(_) => {
            Err(usage(format!("invalid port {:?}; give the one that rdperf serve prints", escaped(port))))
        }
        Ok(port) => Ok(Target::Server(bare(host)?, port)),
    }
}

/// Refuses a list of hosts, which would be taken for the name of one. `word`: what was typed.
fn check_single(host: &OsStr, word: &OsStr) -> Result<(), Failure> {
    if !is_list(host) && !host.as_bytes().contains(&b',') {
        return Ok(());
    }
    let line = format!(
        "{} is a list of hosts, but rdperf measures with one; for all pairs of several hosts, use rddoctor 'h[1-2]' or \
         rddoctor --hosts FILE",
        escaped(word)
    );
    Err(Exit::Usage.with(line))
}

fn parse_size(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= MESSAGE_BYTES_MAX).ok_or_else(|| "at most 8M".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("give 0.001 to 3600".to_owned())
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.01..=1.0).contains(share)).ok_or_else(|| "give 0.01 to 1".to_owned())
}

/// Reads a report written with `--json`.
fn read_report(path: &Path) -> Result<Report, Failure> {
    let name = escaped(path.as_os_str());
    let text = std::fs::read_to_string(path).map_err(|error| {
        let errno = os(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
        Exit::Source.with(format!("cannot read {name}: {errno}"))
    })?;
    Report::from_json(&text).map_err(|reason| Exit::Source.with(format!("{name} {reason}")))
}

/// Draws a report, and beside it other reports under the names of their files.
fn draw(path: &Path, report: &Report, others: &[Report], names: &[PathBuf]) -> Result<(), Failure> {
    let named = |path: &PathBuf| escaped(path.file_stem().unwrap_or(path.as_os_str()));
    let mut all: Vec<(String, &Report)> = Vec::new();
    if *report != Report::new() {
        all.push(("now".to_owned(), report));
    }
    all.extend(names.iter().map(named).zip(others));
    let Some(text) = plot::draw(&all) else {
        return Err(Exit::Usage.with("nothing to plot: nothing was measured, and the reports of --compare are empty"));
    };
    output::write(path, text.as_bytes())
}

impl LoadOptions {
    fn depth(&self) -> u16 {
        self.depth.unwrap_or(DEPTH_DEFAULT)
    }

    /// Returns the message lengths to measure; `default` if the user asks for none.
    fn sizes(&self, default: u32) -> Vec<u32> {
        match self.size {
            _ if self.all => ALL.map(|power| 1 << power).collect(),
            Some(size) => vec![size],
            None => vec![default],
        }
    }

    /// Returns the settings for connections that carry messages of up to this length.
    fn settings(&self, connections_max: u32, message_bytes_max: u32) -> Settings {
        Settings { connections_max, message_bytes_max, depth: self.depth(), poll: self.poll }
    }

    /// Returns a run of messages of one length. An echo always goes forward.
    fn run(&self, load: Load, message_bytes: u32) -> Run {
        let is_stream = load == Load::Stream;
        let duration = if self.iterations.is_some() { self.duration.max(COUNTED_MAX) } else { self.duration };
        Run {
            load,
            forward: !(is_stream && self.reverse),
            backward: is_stream && (self.reverse || self.bidirectional),
            message_bytes,
            // 0 means no fixed number.
            messages: self.iterations.unwrap_or(0),
            duration_us: duration.as_micros() as u64,
        }
    }
}

/// Prints or writes the report as requested. If the file of `--json` cannot be written, the tables are still printed.
fn tell(options: &OutputOptions, report: &Report) -> Result<(), Failure> {
    let line = || report.to_json() + "\n";
    match &options.json {
        None => print(&report.to_text()),
        Some(path) if path.as_os_str() == "-" => print(&line()),
        Some(path) => {
            let written = output::write(path, line().as_bytes());
            print(&report.to_text()).and(written)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_of(words: &[&str]) -> Result<Task, u8> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        task(&words, false).map_err(|failure| failure.exit.code())
    }

    #[test]
    fn a_port_means_a_server_and_a_host_alone_ssh() {
        let server = |host: &str, port| Target::Server(host.into(), port);
        let launched = |host: &str| Target::Launched(host.into());
        for (words, expected) in [
            (&["h:7000"][..], Task::Wire(server("h", 7000), Mode::Both)),
            (&["h"], Task::Wire(launched("h"), Mode::Both)),
            (&["user@h:", "bw"], Task::Wire(launched("user@h"), Mode::Bandwidth)),
            (&["[fd00::1]:", "lat"], Task::Wire(launched("fd00::1"), Mode::Latency)),
            (&["user@[fd00::1]", "lat"], Task::Wire(launched("user@fd00::1"), Mode::Latency)),
            (&["user@h", "lat"], Task::Wire(launched("user@h"), Mode::Latency)),
            (&["bw", "h"], Task::Wire(launched("h"), Mode::Bandwidth)),
            (&["[fd00::1]:7000", "ping"], Task::Wire(server("fd00::1", 7000), Mode::Ping)),
            (&["[fd00::1]", "bw"], Task::Wire(launched("fd00::1"), Mode::Bandwidth)),
            (&["serve"], Task::Serve(0)),
            (&["serve", "7000"], Task::Serve(7000)),
            (&["h", "qps"], Task::Wire(launched("h"), Mode::Connections)),
            (&["h:/srv", "limits"], Task::Limits(launched("h"), "/srv".into())),
            (&["limits", "h"], Task::Limits(launched("h"), "".into())),
            (&["h:7000", "limits"], Task::Limits(server("h", 7000), "".into())),
            (&["disk", "/srv"], Task::Storage("/srv".into())),
            (&["mem"], Task::Memory),
            (&["model"], Task::Model),
        ] {
            assert_eq!(task_of(words), Ok(expected), "{words:?}");
        }
        for words in [&[][..], &["h", "nothing"], &["-h"], &["h:0"], &["h:x"], &["fd00::1"], &["serve", "x"], &[":7"]] {
            assert_eq!(task_of(words), Err(1), "{words:?}");
        }
        for list in ["h[1-2]", "h1,h2", "me@h[1-2]", "h[1-2]:7000", "[h1,h2]"] {
            for words in [&[list][..], &[list, "lat"], &["bw", list], &[list, "limits"]] {
                assert_eq!(task_of(words), Err(1), "{words:?}");
            }
        }
        assert_eq!(task_of(&[":"]), Err(1));
        assert_eq!(task_of(&["h[1-2]:/x", "limits"]), Err(1));
        assert_eq!(task_of(&["h:/a[1],b", "limits"]), Ok(Task::Limits(launched("h"), "/a[1],b".into())));
    }

    #[test]
    fn what_every_task_refuses_is_not_in_the_help() {
        assert!(!PerfArguments::command().render_long_help().to_string().contains("--relay"));
    }

    #[test]
    fn lengths_and_times_have_bounds() {
        assert_eq!((parse_size("8M"), parse_size("1"), parse_size("2K")), (Ok(8 << 20), Ok(1), Ok(2048)));
        assert!(parse_size("8388609").is_err() && parse_size("0").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "NaN", "1e9", ""].iter().all(|text| parse_seconds(text).is_err()));
    }

    #[test]
    fn all_lengths_are_perftests() {
        let arguments = PerfArguments::try_parse_from(["rdperf", "--all", "h"]).expect("right");
        let sizes = arguments.load.sizes(2);
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
    }
}
