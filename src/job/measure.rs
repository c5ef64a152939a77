//! The other end, started by ssh or another launcher for one measurement.

use std::ffi::{OsStr, OsString};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use flume::{Receiver, unbounded};
use rd_proto::handshake::{Established, Key};

use crate::cli::perf::PerfArguments;
use crate::control::endpoints;
use crate::control::frames::{Fault, Hello, Message, Storage};
use crate::engine::reach::reach_best;
use crate::fault::{Exit, Failure, escaped, os_number};
use crate::job::launching::{News, Remote, greet, is_same_kernel, session_key};

/// How long the agent may take to listen.
const LISTEN_MAX: Duration = Duration::from_secs(15);

/// How long to try the agent's endpoints.
const REACH_MAX: Duration = Duration::from_secs(5);

/// How much longer than asked for measuring storage may take: a file is written first.
const STORAGE_EXTRA: Duration = Duration::from_secs(120);

/// An agent that answers. Dropping it ends it.
pub(crate) struct Launched {
    remote: Remote,
    news: Receiver<(usize, News)>,
    host: OsString,
    via: Vec<u8>,
    ports: Option<(u16, u16)>,
}

impl Launched {
    /// Starts the agent on `host`.
    pub(crate) fn start(arguments: &PerfArguments, host: &OsStr) -> Result<Self, Failure> {
        let hosts = &arguments.hosts;
        if hosts.relay {
            return Err(Failure::new(Exit::Usage, "--relay: what goes through ssh says nothing of the wire"));
        }
        let launcher = hosts.launcher()?;
        let (post, news) = unbounded();
        let mut remote = Remote::start(&launcher, host, &hosts.agent("rdperf", false, false), 0, post, true)?;
        greet([&mut remote].into_iter(), &news, &launcher)?;
        let ports = arguments.serve.port_range.as_ref().map(|ports| (*ports.start(), *ports.end()));
        let via = hosts.via.as_ref().map_or(Vec::new(), |via| via.as_bytes().to_vec());
        Ok(Self { remote, news, host: host.to_owned(), via, ports })
    }

    pub(crate) fn label(&self) -> String {
        escaped(&self.host)
    }

    /// Has the agent listen, and connects to it.
    pub(crate) fn reach(&self) -> Result<(TcpStream, Established), Failure> {
        let key = session_key();
        self.remote.send(Message::Measure { key: key.clone(), ports: self.ports, via: self.via.clone() });
        let Message::Listening(endpoints) = self.answer(LISTEN_MAX)? else { return Err(self.unexpected()) };
        let is_one_kernel = is_same_kernel(&Hello::ours().kernel_id, self.remote.kernel_id());
        let (endpoints, via) = endpoints::offered(endpoints, &self.via, is_one_kernel);
        let addresses = endpoints::ranked(&endpoints, &via).map_err(|reason| {
            let by = if self.via.is_empty() { "" } else { " by --via" };
            let label = self.label();
            Failure::new(Exit::Connect, format!("no connection to {label}{by}: {}", escaped(OsStr::new(&reason))))
        })?;
        let key = Key::from_random(key.0);
        reach_best(&addresses, &key, Instant::now() + REACH_MAX).map_err(|error| {
            let label = self.label();
            Failure::new(
                Exit::Connect,
                format!(
                    "cannot reach a port of {label}: {error}; open one and name it with --port-range, or run rdperf \
                     serve at the end that can be reached"
                ),
            )
        })
    }

    /// Has the agent measure storage.
    pub(crate) fn storage(&self, path: &OsStr, writes: bool, duration: Duration) -> Result<Storage, Failure> {
        let micros = duration.as_micros() as u64;
        self.remote.send(Message::MeasureStorage { path: path.as_bytes().to_vec(), writes, micros });
        match self.answer(duration + STORAGE_EXTRA)? {
            Message::Storage(storage) => Ok(storage),
            _ => Err(self.unexpected()),
        }
    }

    fn answer(&self, limit: Duration) -> Result<Message, Failure> {
        let deadline = Instant::now() + limit;
        let label = self.label();
        loop {
            match self.news.recv_deadline(deadline) {
                Ok((_, News::Message(Message::Failed(fault)))) => return Err(failed(&fault, &label)),
                Ok((_, News::Message(Message::Say(line)))) => {
                    crate::cli::say(&format!("rdperf: {label}: {}", escaped(OsStr::new(&line))));
                }
                Ok((_, News::Message(message))) => return Ok(message),
                Ok((_, News::Broken(failure))) => return Err(failure),
                Ok((_, News::Gone)) => {
                    return Err(Failure::new(
                        Exit::LinkLost,
                        format!("lost the agent on {label}: it ended, or its connection did"),
                    ));
                }
                Ok(_) => {}
                Err(_) => {
                    let within = limit.as_secs();
                    let message = format!("{label} does not answer within {within} s; try again");
                    return Err(Failure::new(Exit::Connect, message));
                }
            }
        }
    }

    fn unexpected(&self) -> Failure {
        Failure::new(Exit::Protocol, format!("the agent on {} does not keep to the protocol", self.label()))
    }
}

/// What went wrong there, for a person.
fn failed(fault: &Fault, label: &str) -> Failure {
    let detail = escaped(OsStr::new(&fault.detail));
    let mut line = format!("{label}: ");
    if fault.what.is_empty() {
        line += &detail;
    } else {
        line += &format!("{} {}", escaped(OsStr::new(&fault.what)), escaped(OsStr::from_bytes(&fault.path)));
        if fault.errno != 0 {
            line += &format!(": {}", os_number(fault.errno));
        }
        if !detail.is_empty() {
            line += &format!(": {detail}");
        }
    }
    Failure::new(Exit::from_code(fault.exit), line)
}
