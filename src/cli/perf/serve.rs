//! The end that answers: `rdperf serve`, and an agent that `rdperf HOST` has started.

use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::time::Duration;

use flume::Receiver;
use rd_proto::handshake::Established;
use rustix::io::Errno;

use super::super::words;
use super::PerfArguments;
use crate::cli::key;
use crate::cli::recv::own_address;
use crate::engine::link::LinkError;
use crate::engine::listen::{GUESSES_MAX, Incoming, Listener};
use crate::engine::perf::{Answering, Link, PerfError, answer};
use crate::engine::{Event, channel};
use crate::fault::{Exit, Failure, escaped, os};
use crate::transport::unmapped;

pub(super) fn serve(arguments: &PerfArguments, port: u16) -> Result<(), Failure> {
    let (key, generated) = match key::given(None, &arguments.key)? {
        Some(key) => (key, None),
        None => {
            let (key, text) = key::generate();
            (key, Some(text))
        }
    };
    let (post, mut events) = channel();
    let ports = arguments.serve.port_range.clone();
    let listener = Listener::start_without_lanes(port, ports.clone(), key, post).map_err(|error| {
        let errno = os(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let message = match (port, &ports) {
            (0, Some(ports)) => {
                format!("cannot listen on a port of --port-range {}-{}: {errno}", ports.start(), ports.end())
            }
            _ => format!("cannot listen on port {port}: {errno}; choose another PORT, or 0"),
        };
        Failure::new(Exit::Connect, message)
    })?;
    match &generated {
        Some(text) => crate::cli::say(&format!("RD_KEY={text} rdperf {}:{}", own_address(), listener.port())),
        None => crate::cli::say(&format!("rdperf: waiting on port {}", listener.port())),
    }
    let verbose = arguments.output.verbose;
    loop {
        // Without end: it is a server, which a signal ends.
        let Ok(event) = events.recv() else { return Ok(()) };
        match event {
            Event::Incoming(Incoming::First(stream, established)) => {
                let peer = stream.peer_addr().map_or("?".to_owned(), |peer| unmapped(peer).ip().to_string());
                if verbose {
                    crate::cli::say(&format!("rdperf: {peer} measures"));
                }
                let outcome = session(&events, stream, *established, ports.as_ref());
                if let Err(error) = &outcome {
                    let failure = failure(error, &peer);
                    crate::cli::complain("rdperf", &failure.message.unwrap_or_default());
                }
                if arguments.serve.once {
                    return outcome.map_err(|error| Failure::silent(failure(&error, &peer).exit));
                }
                let (post, fresh) = channel();
                // Connections of the session that has ended go with its channel.
                events = fresh;
                listener.registry().lock().expect("no panic with it locked").clear(post);
            }
            Event::Incoming(Incoming::TooManyGuesses) => {
                return Err(Failure::new(
                    Exit::Authentication,
                    format!(
                        "{GUESSES_MAX} connections with a wrong KEY: somebody may be guessing it; use a generated one"
                    ),
                ));
            }
            Event::Incoming(Incoming::Stranger(address)) if verbose => {
                crate::cli::say(&format!("rdperf: {} has another KEY", unmapped(address).ip()));
            }
            _ => {}
        }
    }
}

/// Answers the measurement of a peer that has authenticated.
pub(crate) fn session(
    events: &Receiver<Event>,
    stream: TcpStream,
    established: Established,
    ports: Option<&RangeInclusive<u16>>,
) -> Result<(), PerfError> {
    let further = |limit: Duration| match events.recv_timeout(limit) {
        Ok(Event::Incoming(Incoming::Further(stream, _))) => Some(stream),
        _ => None,
    };
    let explain = |error: &PerfError| {
        let failure = failure(error, "the end that asked");
        (failure.exit.code(), failure.message.unwrap_or_default())
    };
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let answering = Answering { further: &further, ports, explain: &explain, host: &host };
    answer(Link::new(stream, established.control)?, &answering)
}

/// What a measurement with `peer` ended with.
pub(crate) fn failure(error: &PerfError, peer: &str) -> Failure {
    match error {
        PerfError::Link(LinkError::Os { what: what @ ("send" | "receive"), error }) => {
            Failure::new(Exit::LinkLost, format!("lost the link to {peer}: {what}: {}", os(*error)))
        }
        PerfError::Link(LinkError::TimedOut) => {
            Failure::new(Exit::LinkLost, format!("lost the link to {peer}: no answer any more"))
        }
        PerfError::Link(LinkError::Os { error, .. }) => Failure::new(
            Exit::Connect,
            format!(
                "cannot reach {peer}: {}; check that rdperf serve runs there and that the port is open",
                os(*error)
            ),
        ),
        PerfError::Link(LinkError::Unexpected | LinkError::Frame(_)) => {
            Failure::new(Exit::Protocol, format!("{peer} does not measure; check that it is an rdperf serve"))
        }
        PerfError::Link(LinkError::Closed) => {
            Failure::new(Exit::LinkLost, format!("lost the link to {peer}: it closed the connection"))
        }
        PerfError::Link(LinkError::Transport(reason)) => Failure::new(
            Exit::Connect,
            format!("no RDMA connection to {peer}: {reason}; without --transport rdma, TCP is measured"),
        ),
        PerfError::Link(error) => words::not_agreed(error, peer),
        PerfError::Lane(error) => Failure::new(Exit::LinkLost, format!("lost a connection to {peer}: {error}")),
        PerfError::Rdma(error) => Failure::new(Exit::Connect, format!("no RDMA connection to {peer}: {error}")),
        PerfError::Peer { exit, reason } => {
            use std::os::unix::ffi::OsStrExt;
            let reason = escaped(std::ffi::OsStr::from_bytes(reason));
            Failure::new(Exit::from_code(*exit), format!("{peer} gave up: {reason}"))
        }
        PerfError::TooMany { what, most } => {
            Failure::new(Exit::Connect, format!("no more than {most} {what} can be measured at a time"))
        }
        PerfError::Os { what, error } => Failure::new(Exit::Connect, format!("{what}: {}", os(*error))),
    }
}
