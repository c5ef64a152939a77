//! The agent's part of `rdperf HOST`.

use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError};
use rd_proto::handshake::{Established, Key};

use super::in_thread;
use crate::control::frames::{Endpoint, Fault, Message, SessionKey, Storage};
use crate::control::names;
use crate::control::tunnel::Emit;
use crate::engine::listen::{Further, Incoming, Listener};
use crate::engine::perf::{Answering, Link, PerfError, answer};
use crate::engine::{Event, channel};
use crate::fault::{Exit, errno_of, os};
use crate::measure::disk::{self, Action};

/// How long the caller may take to connect.
const FIRST_MAX: Duration = Duration::from_secs(30);

/// Maximum time for which storage is measured.
const STORAGE_MAX: Duration = Duration::from_secs(60);

/// Listens for one measurement, and answers it in a thread of its own. Returns where it listens.
pub(crate) fn listen(
    key: &SessionKey,
    ports: Option<(u16, u16)>,
    reachable: impl FnOnce(u16) -> Vec<Endpoint>,
) -> Result<Vec<Endpoint>, Fault> {
    let fault = |what: &str, error: &std::io::Error| {
        let errno = os(errno_of(error));
        Fault::plain(Exit::Connect.code(), format!("{what}: {errno}"))
    };
    crate::fs::raise_open_files();
    let (post, events) = channel();
    let ports = ports.map(|(first, last)| first..=last);
    let listener = Listener::start(0, ports.clone(), Key::from_random(key.0), post, Further::Reported)
        .map_err(|error| fault("cannot listen", &error))?;
    let port = listener.port();
    let answer = move || {
        // The listener lives until the measurement is over.
        let _listener = listener;
        let deadline = Instant::now() + FIRST_MAX;
        loop {
            match events.recv_deadline(deadline) {
                Ok(Event::Incoming(Incoming::First(stream, established))) => {
                    // If anything has gone wrong, the caller has been told.
                    let _ = session(&events, stream, *established, ports.as_ref());
                    return;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    crate::spawn("measure", 2 << 20, answer).map_err(|error| fault("cannot start a thread", &error))?;
    Ok(reachable(port))
}

/// Measures storage in a thread of its own, and sends the result.
pub(crate) fn measure_storage(path: Vec<u8>, writes: bool, micros: u64, emit: &Emit) {
    in_thread("storage", emit, move |emit| {
        // Relative paths start at the login's home, as in copies.
        let path = if path.is_empty() { PathBuf::from(".") } else { names::home_expanded(&path) };
        let action = if writes { Action::Write } else { Action::Read };
        let duration = Duration::from_micros(micros).min(STORAGE_MAX);
        emit(match disk::throughput(&path, action, duration) {
            Ok(row) => {
                let micro_iops = (row.iops * 1e6) as u64;
                Message::Storage(Storage { micro_iops, bytes: row.bytes, depth: row.depth, direct: row.direct })
            }
            Err((Action::Read, fact)) => Message::Failed(Fault::unreadable(&fact)),
            Err((Action::Write, fact)) => Message::Failed(Fault::unwritable(&fact)),
        });
    });
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
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let answering = Answering { further: &further, ports, host: &host };
    answer(Link::new(stream, established.control)?, &answering)
}
