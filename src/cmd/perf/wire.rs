//! The end that asks: `rdperf HOST`.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::net::TcpStream;
use std::time::Duration;

use rd_proto::control::measure::{Load, Run};
use rd_proto::handshake::Established;

use super::serve::failure;
use super::{Mode, PerfArguments, Target};
use crate::cmd::exit::{Exit, Failure, escaped};
use crate::cmd::{key, send};
use crate::engine::link::rng;
use crate::engine::perf::{Asked, Driver, Ran, peak_bytes};
use crate::measure::report::{Bandwidth, Direction, Latency, Ping, Report, Wire};
use crate::transport::Medium;

/// How long to try to connect while nobody listens.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Length of messages where none is asked for.
const LATENCY_BYTES: u32 = 2;
const BANDWIDTH_BYTES: u32 = 64 << 10;
const PING_BYTES: u32 = 64;

/// Pings where no number is asked for.
const PINGS: u64 = 10;

/// An open measurement, and what must live as long.
struct Session {
    driver: Driver,
    peer: String,
}

/// Measures; gives what was measured also where it ends with a failure.
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
    };
    let largest = latency_sizes.iter().chain(&bandwidth_sizes).copied().max().expect("at least one");
    let connections = load.qp.unwrap_or(1);
    let asked = Asked {
        policy: load.policy(),
        connections_max: connections,
        message_bytes_max: largest,
        depth: load.depth,
        poll: load.poll,
        threads: 1,
    };
    let mut session = open(arguments, target, asked)?;
    let mut report = Report { wire: Some(session.wire(arguments, connections)), ..Report::new() };
    let outcome = runs(arguments, mode, &mut session, &latency_sizes, &bandwidth_sizes, &mut report);
    session.driver.close();
    outcome?;
    let damaged = report.ping.map_or(0, |ping| ping.damaged);
    let failure = (damaged > 0).then(|| {
        Failure::new(Exit::Integrity, format!("{damaged} messages came back from {} with other contents", session.peer))
    });
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
    let (duration, messages) = load.extent();
    let duration_us = duration.as_micros() as u64;
    let steps = latency_sizes.len() + bandwidth_sizes.len();
    let mut progress = Progress::new(steps, arguments.output.verbose);
    for &message_bytes in latency_sizes {
        progress.step("latency", message_bytes);
        let echo = Run { load: Load::Echo, forward: true, backward: false, message_bytes, messages, duration_us };
        if mode == Mode::Ping {
            let run = Run { messages: if messages == 0 { PINGS } else { messages }, ..echo };
            let seed = rand_core::Rng::next_u64(&mut rng());
            let ran = session.run(run, Some(seed))?;
            let row = latency(message_bytes, &ran);
            let before = report.ping.map_or(0, |ping| ping.damaged);
            report.ping = Some(Ping { latency: row, damaged: before + ran.here.damaged });
        } else {
            let ran = session.run(echo, None)?;
            report.latency.push(latency(message_bytes, &ran));
        }
    }
    if !bandwidth_sizes.is_empty() {
        session.grow(load.qp.unwrap_or(1))?;
    }
    for &message_bytes in bandwidth_sizes {
        progress.step("bandwidth", message_bytes);
        let (forward, backward) = (!load.reverse, load.reverse || load.bidirectional);
        let run = Run { load: Load::Stream, forward, backward, message_bytes, messages, duration_us };
        report.bandwidth.push(bandwidth(run, &session.run(run, None)?));
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

impl Session {
    fn run(&mut self, run: Run, verify: Option<u64>) -> Result<Ran, Failure> {
        self.driver.run(run, verify).map_err(|error| failure(&error, &self.peer))
    }

    fn grow(&mut self, connections: u32) -> Result<(), Failure> {
        self.driver.grow(connections).map_err(|error| failure(&error, &self.peer))
    }

    fn wire(&self, arguments: &PerfArguments, connections: u32) -> Wire {
        let medium = match self.driver.medium() {
            Medium::RdmaHardware => "rdma",
            Medium::RdmaSoftware => "rdma-software",
            Medium::Tcp | Medium::Memory => "tcp",
        };
        Wire {
            from: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            to: self.peer.clone(),
            medium: medium.to_owned(),
            route: self.driver.describe(),
            wait: if arguments.load.poll { "polling" } else { "events" }.to_owned(),
            connections,
            depth: arguments.load.depth.into(),
        }
    }
}

/// Reaches the other end and opens a measurement.
fn open(arguments: &PerfArguments, target: &Target, asked: Asked) -> Result<Session, Failure> {
    let (stream, established, peer) = reach(arguments, target)?;
    let driver = Driver::open(stream, established, asked).map_err(|error| failure(&error, &peer))?;
    if arguments.output.verbose {
        crate::cmd::say(&format!("rdperf: {}", driver.describe()));
    }
    Ok(Session { driver, peer })
}

fn reach(arguments: &PerfArguments, target: &Target) -> Result<(TcpStream, Established, String), Failure> {
    match target {
        Target::Server(host, port) => {
            let key = match key::given(None, &arguments.key)? {
                Some(key) => key,
                None => key::ask()?,
            };
            let first = send::reach(host, *port, &key, CONNECT_MAX, "rdperf serve")?;
            Ok((first.stream, first.established, first.peer_name))
        }
        Target::Launched(host) => {
            Err(Failure::new(Exit::Usage, format!("{} has no port of an rdperf serve", escaped(OsStr::new(host)))))
        }
    }
}

/// Shows on a terminal how far a sweep has come.
struct Progress {
    steps: usize,
    done: usize,
    draws: bool,
}

impl Progress {
    fn new(steps: usize, verbose: bool) -> Self {
        Self { steps, done: 0, draws: steps > 1 && (verbose || std::io::stderr().is_terminal()) }
    }

    fn step(&mut self, what: &str, message_bytes: u32) {
        self.done += 1;
        if self.draws {
            eprint!("\r\x1b[K{what} of {message_bytes} bytes ({} of {})", self.done, self.steps);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.draws {
            eprint!("\r\x1b[K");
        }
    }
}
