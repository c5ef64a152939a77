//! The other end of a measurement, started by ssh or another launcher.

use std::ffi::OsStr;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rd_proto::control::RailAddress;
use rd_proto::handshake::{Established, Key};

use super::{HERE, Job, Setup, session_key};
use crate::control::endpoints;
use crate::control::frames::{Message, Storage};
use crate::engine::reach::reach_best;
use crate::fault::{Exit, Failure, escaped};

/// How long the agent may take to begin listening.
const LISTEN_MAX: Duration = Duration::from_secs(15);

/// How long to try the agent's endpoints.
const REACH_MAX: Duration = Duration::from_secs(5);

/// How much longer than requested measuring storage may take, because a file is written first.
const STORAGE_EXTRA: Duration = Duration::from_secs(120);

/// A connection to the agent for one measurement.
pub(crate) struct Reached {
    /// The connection.
    pub(crate) stream: TcpStream,
    /// The result of the handshake.
    pub(crate) established: Established,
    /// The addresses of the agent's host.
    pub(crate) addresses: Vec<RailAddress>,
}

/// An agent that measures with this process. Dropping this ends the agent.
pub(crate) struct Launched {
    job: Job,
    host: usize,
    ports: Option<(u16, u16)>,
}

impl Launched {
    /// Starts the agent on `host`. `ports` are the first and last port on which it may listen.
    ///
    /// # Errors
    ///
    /// Fails if the agent could not be started or does not answer.
    pub(crate) fn start(setup: Setup, host: &OsStr, ports: Option<(u16, u16)>) -> Result<Self, Failure> {
        // A signal just ends this process, and the agent with it: nothing is left half done.
        let mut job = Job::without_signals(setup, false);
        let host = job.host(host)?;
        job.greet()?;
        Ok(Self { job, host, ports })
    }

    /// Returns the host's name for the user.
    pub(crate) fn label(&self) -> String {
        self.job.hosts[self.host].label()
    }

    /// Has the agent listen for one measurement, and connects to it. There may be several at a time.
    ///
    /// # Errors
    ///
    /// Exit 3 if none of its addresses can be reached.
    pub(crate) fn reach(&mut self) -> Result<Reached, Failure> {
        let (key, via) = (session_key(), self.job.setup.via.clone());
        let question = Message::Measure { key: key.clone(), ports: self.ports, via: via.clone() };
        let Message::Listening(endpoints) = self.job.ask(self.host, question, LISTEN_MAX)? else {
            return Err(self.job.unexpected(self.host));
        };
        let told = endpoints::ways(&endpoints);
        let endpoints = self.job.with_translated(self.host, endpoints);
        let (endpoints, via) = endpoints::offered(endpoints, &via, self.job.is_one_kernel(HERE, self.host));
        let label = self.label();
        let refused = |reason: &str| {
            let by = if self.job.setup.via.is_empty() { "" } else { " with --via" };
            Exit::Connect.with(format!("no connection to {label}{by}: {}", escaped(OsStr::new(reason))))
        };
        let (addresses, why) = match endpoints::ranked(&endpoints, &via) {
            Ok(ranked) => (ranked, None),
            Err(why) => match endpoints::foreign(&endpoints, &via) {
                Some(foreign) => (vec![foreign], Some(why)),
                None => return Err(refused(&why)),
            },
        };
        let key = Key::from_random(key.0);
        let reached = reach_best(&addresses, &key, [Instant::now() + REACH_MAX; 2]);
        let (stream, established) = reached.map_err(|error| match why {
            Some(why) => refused(&format!("{why}; {}: {error}", addresses[0])),
            None => Exit::Connect.with(format!(
                "cannot reach a port of {label}: {error}; open one and name it with --port-range, or run rdperf \
                     serve at the reachable end"
            )),
        })?;
        Ok(Reached { stream, established, addresses: told })
    }

    /// Has the agent measure storage.
    ///
    /// # Errors
    ///
    /// Exit 5 or 6 if the storage cannot be read or written.
    pub(crate) fn storage(&mut self, path: &OsStr, writes: bool, duration: Duration) -> Result<Storage, Failure> {
        let micros = duration.as_micros() as u64;
        let asked = Message::MeasureStorage { path: path.as_bytes().to_vec(), writes, micros };
        match self.job.ask(self.host, asked, duration + STORAGE_EXTRA)? {
            Message::Storage(storage) => Ok(storage),
            _ => Err(self.job.unexpected(self.host)),
        }
    }
}
