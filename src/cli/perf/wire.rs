//! The asking end: `rdperf HOST`.

use std::ffi::OsStr;
use std::time::Duration;

use super::{Mode, PerfArguments, Target};
use crate::cli::report::area::ProgressArea;
use crate::cli::{key, send, words};
use crate::engine::link::rng;
use crate::engine::perf::frames::{Load, Run};
use crate::engine::perf::{self, Driver, Ran, peak_bytes};
use crate::fault::{Exit, Failure};
use crate::job::measure::{Launched, Reached};
use crate::measure::report::{Bandwidth, Connections, Direction, Latency, Ping, Report, Wire};
use crate::transport::Medium;
use crate::transport::bundle::Settings;

/// How long to retry connecting while no program listens.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Default lengths of messages in bytes.
const LATENCY_BYTES: u32 = 2;
pub(super) const BANDWIDTH_BYTES: u32 = 64 << 10;
const PING_BYTES: u32 = 64;

/// Default number of pings.
const PINGS: u64 = 10;

/// Sizes in bytes of the messages that are sent over many connections.
const OPERATION_BYTES: u32 = 32;
const LARGE_BYTES: u32 = 64 << 10;

/// Default limits on the connections to measure: queue pairs, which share a completion queue, and TCP connections.
const CONNECTIONS_MAX: u32 = 4096;
const TCP_CONNECTIONS_MAX: u32 = 1024;

/// An open measurement, with everything that must live as long.
pub(super) struct Session {
    pub(super) driver: Driver,
    pub(super) launched: Option<Launched>,
    peer: String,
}

/// Measures the wire. Returns what was measured even if the measurement ends with a failure.
pub(super) fn measure(
    arguments: &PerfArguments,
    target: &Target,
    mode: Mode,
) -> Result<(Report, Option<Failure>), Failure> {
    let load = &arguments.load;
    let sizes = |default| load.sizes(default);
    let (latency_sizes, bandwidth_sizes) = match mode {
        Mode::Both => (sizes(LATENCY_BYTES), sizes(BANDWIDTH_BYTES)),
        Mode::Latency => (sizes(LATENCY_BYTES), Vec::new()),
        Mode::Bandwidth => (Vec::new(), sizes(BANDWIDTH_BYTES)),
        Mode::Ping => (sizes(PING_BYTES), Vec::new()),
        Mode::Connections => return connections(arguments, target),
        Mode::Rails => return super::rails::measure(arguments, target),
    };
    let largest = latency_sizes.iter().chain(&bandwidth_sizes).copied().max().expect("at least one");
    let connections = if bandwidth_sizes.is_empty() { 1 } else { load.qp.unwrap_or(1) };
    let mut session = open(arguments, target, load.settings(connections, largest))?;
    let mut report = Report { wire: Some(session.wire(arguments, connections)), ..Report::new() };
    let outcome = runs(arguments, mode, &mut session, &latency_sizes, &bandwidth_sizes, &mut report);
    session.driver.close();
    if let Err(failure) = outcome {
        let has_none = report.latency.is_empty() && report.bandwidth.is_empty() && report.ping.is_none();
        return if has_none { Err(failure) } else { Ok((report, Some(failure))) };
    }
    let damaged = report.ping.as_ref().map_or(0, |ping| ping.damaged);
    let failure = (damaged > 0)
        .then(|| Exit::Integrity.with(format!("{damaged} messages came back corrupted from {}", session.peer)));
    Ok((report, failure))
}

fn runs(
    arguments: &PerfArguments,
    mode: Mode,
    session: &mut Session,
    latency_sizes: &[u32],
    bandwidth_sizes: &[u32],
    report: &mut Report,
) -> Result<(), Failure> {
    let load = &arguments.load;
    let steps = latency_sizes.len() + bandwidth_sizes.len();
    let mut progress = Progress::new(steps, arguments.output.verbose);
    for &message_bytes in latency_sizes {
        progress.step(&format!("latency of {message_bytes} bytes"));
        let echo = load.run(Load::Echo, message_bytes);
        if mode == Mode::Ping {
            let run = Run { messages: load.iterations.unwrap_or(PINGS), ..echo };
            let seed = rand_core::Rng::next_u64(&mut rng());
            let ran = session.run(run, Some(seed))?;
            progress.note(run, &ran);
            let (row, damaged) = (latency(message_bytes, &ran), ran.here.damaged);
            match &mut report.ping {
                Some(ping) => ping.add(row, damaged),
                none => *none = Some(Ping { latency: row, damaged, ..Ping::default() }),
            }
        } else {
            let ran = session.run(echo, None)?;
            progress.note(echo, &ran);
            report.latency.push(latency(message_bytes, &ran));
        }
    }
    if !bandwidth_sizes.is_empty() {
        session.grow(load.qp.unwrap_or(1))?;
    }
    for &message_bytes in bandwidth_sizes {
        progress.step(&format!("bandwidth of {message_bytes} bytes"));
        let run = load.run(Load::Stream, message_bytes);
        let ran = session.run(run, None)?;
        progress.note(run, &ran);
        report.bandwidth.push(bandwidth(run, &ran));
    }
    Ok(())
}

fn latency(message_bytes: u32, ran: &Ran) -> Latency {
    ran.here.latency.as_ref().map_or_else(Latency::default, |histogram| Latency::new(message_bytes.into(), histogram))
}

pub(super) fn bandwidth(run: Run, ran: &Ran) -> Bandwidth {
    let Ran { here, there } = ran;
    let mut directions = Vec::with_capacity(2);
    if run.forward {
        directions.push(Direction {
            messages: here.sent.messages,
            sending: here.sent.time(),
            receiving: Duration::from_nanos(there.receiving_ns),
            peaks: (peak_bytes(&here.sent, run.message_bytes), there.receiving_peak),
        });
    }
    if run.backward {
        directions.push(Direction {
            messages: here.received.messages,
            sending: Duration::from_nanos(there.sending_ns),
            receiving: here.received.time(),
            peaks: (there.sending_peak, peak_bytes(&here.received, run.message_bytes)),
        });
    }
    Bandwidth::new(run.message_bytes.into(), &directions)
}

/// Measures throughput for increasing numbers of connections.
fn connections(arguments: &PerfArguments, target: &Target) -> Result<(Report, Option<Failure>), Failure> {
    let load = &arguments.load;
    let depth = load.depth.unwrap_or(1);
    let most = load.qp.unwrap_or_else(|| perf::connections_max(load.transport.policy(), depth).min(CONNECTIONS_MAX));
    let settings = Settings { depth, ..load.settings(most, LARGE_BYTES) };
    let mut session = open(arguments, target, settings)?;
    let is_tcp = session.driver.medium() == Medium::Tcp;
    let most = if is_tcp && load.qp.is_none() { most.min(TCP_CONNECTIONS_MAX) } else { most };
    let mut report = Report::new();
    let mut counts: Vec<u32> = (0..32).map(|power| 1 << power).take_while(|&count| count < most).collect();
    counts.push(most);
    let mut progress = Progress::new(counts.len(), arguments.output.verbose);
    let run = load.run(Load::Echo, OPERATION_BYTES);
    let mut ended = None;
    for count in counts {
        progress.step(&format!("{count} connections"));
        let measured = session.grow(count).and_then(|()| {
            let small = session.run(run, None)?;
            progress.note(run, &small);
            let stream = Run { load: Load::Stream, message_bytes: LARGE_BYTES, ..run };
            let large = session.run(stream, None)?;
            progress.note(stream, &large);
            Ok((small, bandwidth(stream, &large)))
        });
        match measured {
            Ok((small, large)) => report.connections.push(Connections {
                connections: count,
                operations_s: per_second(&small),
                operation_us: 2.0 * latency(OPERATION_BYTES, &small).p50_us,
                large_mib_s: large.average_mib_s,
            }),
            // A limit of the device, the memory or the system ends the sweep. That is reported, but is not a failure.
            Err(failure) if !report.connections.is_empty() && failure.exit == Exit::Connect => {
                drop(progress);
                let reason = failure.message.unwrap_or_default();
                crate::cli::say(&format!("rdperf: stopped before {count} connections: {reason}"));
                break;
            }
            // After any other failure, the results so far are reported.
            Err(failure) if !report.connections.is_empty() => {
                ended = Some(failure);
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    let reached = report.connections.last().map_or(0, |row| row.connections);
    report.wire = Some(Wire { depth: depth.into(), ..session.wire(arguments, reached) });
    session.driver.close();
    Ok((report, ended))
}

/// Returns the round trips per second.
fn per_second(ran: &Ran) -> f64 {
    let sent = &ran.here.sent;
    let seconds = sent.time().as_secs_f64();
    if seconds > 0.0 { sent.messages as f64 / seconds } else { 0.0 }
}

impl Session {
    pub(super) fn run(&mut self, run: Run, verify: Option<u64>) -> Result<Ran, Failure> {
        self.driver.run(run, verify).map_err(|error| words::measured(&error, &self.peer))
    }

    pub(super) fn grow(&mut self, connections: u32) -> Result<(), Failure> {
        self.driver.grow(connections).map_err(|error| words::measured(&error, &self.peer))
    }

    pub(super) fn wire(&self, arguments: &PerfArguments, connections: u32) -> Wire {
        described(arguments, &self.peer, self.driver.medium().name(), self.driver.describe(), connections)
    }
}

/// Describes how the wire was measured, for a report.
pub(super) fn described(arguments: &PerfArguments, to: &str, medium: &str, route: String, connections: u32) -> Wire {
    Wire {
        from: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        to: to.to_owned(),
        medium: medium.to_owned(),
        route,
        wait: if arguments.load.poll { "polling" } else { "events" }.to_owned(),
        connections,
        depth: arguments.load.depth().into(),
    }
}

/// Starts an agent on the other host.
pub(super) fn launch(arguments: &PerfArguments, host: &OsStr) -> Result<Launched, Failure> {
    let ports = arguments.serve.port_range.as_ref().map(|ports| (*ports.start(), *ports.end()));
    Launched::start(arguments.hosts.setup("rdperf", [host], false, false)?, host, ports)
}

/// Reaches the other end and opens a measurement.
pub(super) fn open(arguments: &PerfArguments, target: &Target, settings: Settings) -> Result<Session, Failure> {
    let (stream, established, peer, launched) = match target {
        Target::Server(host, port) => {
            let key = match key::given(None, &arguments.key)? {
                Some(key) => key,
                None => key::ask(false)?,
            };
            key::warn_of_readers("rdperf", &arguments.key, false);
            let first = send::reach(host, *port, &key, CONNECT_MAX, "rdperf serve")?;
            (first.stream, first.established, first.peer_name, None)
        }
        Target::Launched(host) => {
            let mut launched = launch(arguments, host)?;
            let Reached { stream, established, .. } = launched.reach()?;
            (stream, established, launched.label(), Some(launched))
        }
    };
    let driver = Driver::open(stream, established, arguments.load.transport, settings, None)
        .map_err(|error| words::measured(&error, &peer))?;
    if let Some(error) = driver.fell_back() {
        crate::cli::say(&format!("rdperf: cannot use RDMA ({error}); measuring TCP"));
    }
    if arguments.output.verbose {
        crate::cli::say(&format!("rdperf: {}", driver.describe()));
    }
    Ok(Session { driver, launched, peer })
}

/// Shows the progress of a sweep on a terminal.
pub(super) struct Progress {
    steps: usize,
    done: usize,
    area: ProgressArea,
}

impl Progress {
    pub(super) fn new(steps: usize, verbose: bool) -> Self {
        Self { steps, done: 0, area: ProgressArea::at_terminal("rdperf", steps > 1 && !verbose) }
    }

    pub(super) fn step(&mut self, what: &str) {
        self.done += 1;
        self.area.draw(&[format!("{what} ({} of {})", self.done, self.steps)]);
    }

    /// Says so if the time ran out before the messages of `--iterations` were sent.
    pub(super) fn note(&mut self, run: Run, ran: &Ran) {
        let here = &ran.here;
        // An echo's messages include those that warm it up; as many are reported as are in its histogram.
        let timed = here.latency.as_ref().filter(|_| run.load == Load::Echo);
        let forward = run.forward.then(|| timed.map_or(here.sent.messages, |histogram| histogram.len()));
        let backward = run.backward.then_some(here.received.messages);
        let line = forward.into_iter().chain(backward).min().and_then(|sent| shortfall(run, sent));
        line.into_iter().for_each(|line| self.area.say(&line));
    }
}

/// Returns a sentence if a sending end has `sent` fewer messages than it should.
fn shortfall(run: Run, sent: u64) -> Option<String> {
    let Run { messages, message_bytes, duration_us, .. } = run;
    let seconds = Duration::from_micros(duration_us).as_secs_f64();
    (sent < messages).then(|| {
        let several = if message_bytes == 1 { "" } else { "s" };
        format!(
            "stopped after {seconds} s with {sent} of {messages} messages of {message_bytes} byte{several}; \
             --duration SECONDS allows more time"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_messages_are_said() {
        let run = Run {
            load: Load::Echo,
            forward: true,
            backward: false,
            message_bytes: 64,
            messages: 500,
            duration_us: 60_000_000,
        };
        let line = "stopped after 60 s with 499 of 500 messages of 64 bytes; --duration SECONDS allows more time";
        assert_eq!(shortfall(run, 499).as_deref(), Some(line));
        assert_eq!(shortfall(run, 500), None);
        assert_eq!(shortfall(Run { messages: 0, ..run }, 7), None, "no number was asked for");
    }
}
