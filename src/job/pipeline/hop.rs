//! One session between two stages: how its ends meet, and what they tell of it.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use crate::control::endpoints;
use crate::control::frames::{Endpoint, Fault, Message, Report};
use crate::engine::Waits;
use crate::engine::reach::resolve;
use crate::fault::{Exit, escaped};

/// How long an end may take to listen, or to try all endpoints of the other.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// One of a hop's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    From,
    To,
}

impl Which {
    pub(super) fn other(self) -> Self {
        match self {
            Self::From => Self::To,
            Self::To => Self::From,
        }
    }
}

/// How far the ends have come with meeting each other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// This end was asked to listen.
    Listening(Which),
    /// This end listens, and the other was asked to connect.
    Dialing(Which),
    /// The other end than this one was asked to connect through the channels.
    Tunneling(Which),
    Met,
    Failed,
}

/// What all hops have in common.
pub(super) struct Manner {
    pub(super) via: Vec<u8>,
    pub(super) relay: bool,
    /// What the other hosts call this one, where the user says so.
    pub(super) name: Option<String>,
    /// The launcher's name, for messages.
    pub(super) launcher: String,
}

/// A session between two stages, or between a stage and the caller.
pub(super) struct Hop {
    /// The hosts' numbers, from and to.
    pub(super) hosts: [usize; 2],
    /// The stages, from and to; `None` is the caller's standard input or output.
    pub(super) stages: [Option<usize>; 2],
    /// For a person.
    pub(super) names: [String; 2],
    state: State,
    reversed: bool,
    /// The end that could listen, first.
    listened: Option<Which>,
    is_one_kernel: bool,
    /// The end that is here, where its address is given.
    named: Option<Which>,
    reason: String,
    deadline: Instant,
    pub(super) tunneled: bool,
    /// Which ends have agreed with the other, and which are ready to begin.
    agreed: [bool; 2],
    ready: [bool; 2],
    pub(super) bytes: u64,
    /// Where its sender says that the time went.
    pub(super) waits: Waits,
    pub(super) reports: [Option<Report>; 2],
    /// When the first of the reports came.
    pub(super) told: Option<Instant>,
}

/// What is to be done next for a hop.
#[derive(Debug, Default)]
pub(super) struct Next {
    pub(super) send: Option<(Which, Message)>,
    pub(super) say: Option<String>,
    /// The two ends cannot be brought together.
    pub(super) failure: Option<String>,
}

impl Hop {
    pub(super) fn new(
        hosts: [usize; 2],
        stages: [Option<usize>; 2],
        names: [String; 2],
        here: usize,
        is_one_kernel: bool,
        manner: &Manner,
    ) -> Self {
        let end_here = match hosts {
            [from, _] if from == here => Some(Which::From),
            [_, to] if to == here => Some(Which::To),
            _ => None,
        };
        let named = end_here.filter(|_| manner.name.is_some() && hosts[0] != hosts[1]);
        // A remote end listens: the firewall of whoever sits in front of a terminal is the likelier one to be shut.
        let listener = named.unwrap_or(if end_here == Some(Which::To) { Which::From } else { Which::To });
        Self {
            hosts,
            stages,
            names,
            state: State::Listening(listener),
            reversed: false,
            listened: None,
            is_one_kernel,
            named,
            reason: String::new(),
            deadline: Instant::now() + CONNECT_MAX,
            tunneled: false,
            agreed: [false; 2],
            ready: [false; 2],
            bytes: 0,
            waits: Waits::default(),
            reports: [None, None],
            told: None,
        }
    }

    /// The host of one end.
    pub(super) fn host(&self, which: Which) -> usize {
        self.hosts[which as usize]
    }

    /// For a person.
    pub(super) fn label(&self) -> String {
        format!("{} -> {}", self.names[0], self.names[1])
    }

    pub(super) fn has_met(&self) -> bool {
        self.state == State::Met
    }

    /// Its stages may be started.
    pub(super) fn has_agreed(&self) -> bool {
        self.has_met() && self.agreed == [true; 2]
    }

    /// An end is ready to begin: true when both are.
    pub(super) fn note_ready(&mut self, which: Which) -> bool {
        self.ready[which as usize] = true;
        self.has_begun()
    }

    /// Both ends have been told to begin.
    pub(super) fn has_begun(&self) -> bool {
        self.ready == [true; 2]
    }

    /// An end has agreed with the other.
    pub(super) fn note_agreed(&mut self, which: Which) {
        self.agreed[which as usize] = true;
    }

    /// Both ends have told how it ended.
    pub(super) fn is_over(&self) -> bool {
        self.reports.iter().all(Option::is_some)
    }

    /// Whoever took its data has gone, and wanted no more.
    pub(super) fn was_closed(&self) -> bool {
        let mut faults = self.reports.iter().flatten().filter_map(|report| report.fault.as_ref());
        faults.any(|fault| Exit::from_code(fault.exit) == Exit::SinkClosed)
    }

    /// The same, and the writer of its data wrote on.
    pub(super) fn was_left(&self) -> bool {
        let fault = self.reports[Which::From as usize].as_ref().and_then(|report| report.fault.as_ref());
        fault.is_some_and(|fault| Exit::from_code(fault.exit) == Exit::SinkClosed)
    }

    /// When it must have come further.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.state != State::Failed && !self.has_agreed()).then_some(self.deadline)
    }

    /// The first thing to be done, once both ends have been begun.
    pub(super) fn begin(&mut self, manner: &Manner) -> Next {
        self.deadline = Instant::now() + CONNECT_MAX;
        let State::Listening(listener) = self.state else { return Next::default() };
        Next { send: Some((listener, Message::Listen { via: manner.via.clone() })), ..Next::default() }
    }

    /// What an end could not read or could not write itself.
    pub(super) fn own_fault(&self, which: Which) -> Option<&Fault> {
        let exit = if which == Which::From { Exit::Source } else { Exit::Destination };
        let fault = self.reports[which as usize].as_ref()?.fault.as_ref()?;
        (fault.own && Exit::from_code(fault.exit) == exit).then_some(fault)
    }

    /// What an end has said of meeting the other.
    pub(super) fn handle(&mut self, which: Which, message: Message, manner: &Manner) -> Next {
        match (&self.state, message) {
            (State::Listening(listener), Message::Listening(endpoints)) if *listener == which => {
                self.listened.get_or_insert(which);
                if manner.relay {
                    return self.tunnel(manner);
                }
                match self.offered(endpoints, manner) {
                    Ok((endpoints, via)) => {
                        self.state = State::Dialing(which);
                        self.deadline = Instant::now() + CONNECT_MAX;
                        Next { send: Some((which.other(), Message::Dial { endpoints, via })), ..Next::default() }
                    }
                    Err(reason) => self.fail(reason),
                }
            }
            (State::Listening(listener), Message::Failed(fault)) if *listener == which => {
                self.reason = reason_of(&fault);
                self.again(which, manner)
            }
            (State::Dialing(listener), Message::Dialed) if *listener == which.other() => self.meet(),
            (State::Dialing(listener), Message::DialFailed(why)) if *listener == which.other() => {
                self.reason = escaped(OsStr::new(&why));
                let listener = *listener;
                self.again(listener, manner)
            }
            (State::Tunneling(listener), Message::Dialed) if *listener == which.other() => self.meet(),
            (State::Tunneling(listener), Message::DialFailed(why)) if *listener == which.other() => {
                let why = escaped(OsStr::new(&why));
                self.fail(format!("no connection through {}: {why}", manner.launcher))
            }
            _ => Next::default(),
        }
    }

    /// The time for a step is over.
    pub(super) fn late(&mut self) -> Next {
        self.fail("no connection within its time; rddoctor shows which ports can be reached, or use --relay".to_owned())
    }

    fn meet(&mut self) -> Next {
        self.state = State::Met;
        self.deadline = Instant::now() + CONNECT_MAX;
        Next::default()
    }

    fn fail(&mut self, reason: String) -> Next {
        self.state = State::Failed;
        Next { failure: Some(reason), ..Next::default() }
    }

    /// The other way round, and then through the channels.
    fn again(&mut self, listener: Which, manner: &Manner) -> Next {
        if !self.reversed {
            self.reversed = true;
            self.state = State::Listening(listener.other());
            return self.begin(manner);
        }
        if !manner.via.is_empty() {
            let reason = format!("no connection by --via: {}", self.reason);
            return self.fail(reason);
        }
        self.tunnel(manner)
    }

    fn tunnel(&mut self, manner: &Manner) -> Next {
        let Some(listener) = self.listened else {
            let reason = self.reason.clone();
            return self.fail(reason);
        };
        let say = (!manner.relay).then(|| {
            format!(
                "{} and {} cannot reach a port of each other ({}); their data goes through {}, slower",
                self.names[0], self.names[1], self.reason, manner.launcher
            )
        });
        self.tunneled = true;
        self.state = State::Tunneling(listener);
        self.deadline = Instant::now() + CONNECT_MAX;
        Next { send: Some((listener.other(), Message::DialTunnel)), say, failure: None }
    }

    /// The endpoints to try, and what restricts the end that tries them.
    fn offered(&self, endpoints: Vec<Endpoint>, manner: &Manner) -> Result<(Vec<Endpoint>, Vec<u8>), String> {
        let port = endpoints.first().map(|endpoint| endpoint.port);
        if let (State::Listening(listener), Some(name), Some(port)) = (&self.state, &manner.name, port)
            && self.named == Some(*listener)
        {
            let found = resolve(name, port, CONNECT_MAX);
            let found = found.map_err(|reason| format!("unknown host {}: {reason}", escaped(OsStr::new(name))))?;
            return Ok((found.into_iter().map(endpoints::given).collect(), Vec::new()));
        }
        Ok(endpoints::offered(endpoints, &manner.via, self.is_one_kernel))
    }
}

fn reason_of(fault: &Fault) -> String {
    escaped(OsStr::new(&fault.detail))
}
