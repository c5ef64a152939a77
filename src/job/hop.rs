//! A hop: one session between two ends, how they meet, and what they report.
//!
//! One end listens and the other connects. If that fails, the roles are exchanged; if that fails too, the session goes
//! through the channels of both agents.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use super::{HERE, Setup};
use crate::control::endpoints;
use crate::control::frames::{Endpoint, Fault, Message, Report};
use crate::control::tunnel::Passage;
use crate::engine::reach::resolve;
use crate::engine::{Figures, View, Waits};
use crate::fault::{Exit, escaped};

/// How long an end may take to listen, or to try all endpoints of the other end.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// One of the two ends of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    From,
    To,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::From => Self::To,
            Self::To => Self::From,
        }
    }
}

/// How far the ends have come in meeting each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    /// This end was asked to listen.
    Listening(Side),
    /// This end listens, and the other was asked to connect.
    Dialing(Side),
    /// The end other than this one was asked to connect through the channels.
    Tunneling(Side),
    #[default]
    Met,
    Failed,
}

/// A session between two ends, or a copy within a host, which has only one end.
#[derive(Default)]
pub(crate) struct Hop {
    /// Numbers of the hosts, from and to.
    pub(crate) hosts: [usize; 2],
    /// Names of the hosts for a person.
    pub(crate) names: [String; 2],
    /// The stages at the two ends, if the hop is part of a pipeline. `None` is the caller's standard input or output.
    pub(crate) stages: [Option<usize>; 2],
    /// Numbers of the ends in messages.
    pub(crate) ends: [u32; 2],
    /// Whether there is no end [`Side::To`].
    is_within: bool,
    /// Whether the ends say AGREED and READY and wait for GO, because the hop is part of a pipeline.
    pub(crate) waits_for_go: bool,
    state: State,
    reversed: bool,
    /// The end that listens. It goes on listening until it is asked to connect.
    listened: Option<Side>,
    is_one_kernel: bool,
    /// The end on the caller's host, if the user gave that host's address.
    named: Option<Side>,
    reason: String,
    /// The deadline for the next step, once there is one.
    deadline: Option<Instant>,
    pub(crate) tunneled: bool,
    /// Messages of the ends that are in flight through the channels.
    pub(crate) passage: Passage,
    /// Whether each end has agreed with the other, and whether each is ready to begin.
    agreed: [bool; 2],
    ready: [bool; 2],
    pub(crate) bytes: u64,
    /// Where the time went, as reported by the sender.
    pub(crate) waits: Waits,
    pub(crate) reports: [Option<Report>; 2],
    /// Whether the ends have been told to end.
    pub(crate) is_stopping: bool,
    /// When the first report came, or when entries last came or were taken after that.
    pub(crate) ended_since: Option<Instant>,
    /// The end that sent the first report.
    ended_first: Option<Side>,
    /// Whether the sending end removes what it has sent before it reports its end.
    pub(crate) removes: bool,
    /// Name of the only source, which is prefixed to all paths that the ends report. Empty if the source's contents are
    /// copied.
    pub(crate) root: Option<Vec<u8>>,
    /// Number of messages of entries from each end that have not been taken.
    pub(crate) untaken: [u32; 2],
}

/// The next step of a hop.
#[derive(Debug, Default)]
pub(crate) struct Next {
    pub(crate) send: Option<(Side, Message)>,
    pub(crate) say: Option<String>,
    /// Why the two ends cannot be brought together.
    pub(crate) failure: Option<String>,
}

impl Hop {
    /// Makes a hop between two ends.
    pub(crate) fn new(
        hosts: [usize; 2],
        names: [String; 2],
        ends: [u32; 2],
        is_one_kernel: bool,
        setup: &Setup,
    ) -> Self {
        let end_here = match hosts {
            [HERE, _] => Some(Side::From),
            [_, HERE] => Some(Side::To),
            _ => None,
        };
        let named = end_here.filter(|_| setup.name.is_some() && hosts[0] != hosts[1]);
        // A remote end listens, because the firewall of the user's own machine is more likely to be closed.
        let listener = named.unwrap_or(if end_here == Some(Side::To) { Side::From } else { Side::To });
        Self { hosts, names, ends, state: State::Listening(listener), is_one_kernel, named, ..Self::default() }
    }

    /// Makes the hop of a copy within a host, which has only one end.
    pub(crate) fn within(host: usize, name: String, end: u32) -> Self {
        Self { hosts: [host; 2], names: [name.clone(), name], ends: [end; 2], is_within: true, ..Self::default() }
    }

    /// Returns the host of one end.
    pub(crate) fn host(&self, side: Side) -> usize {
        self.hosts[side as usize]
    }

    /// Returns the hop's name for a person.
    pub(crate) fn label(&self) -> String {
        format!("{} -> {}", self.names[0], self.names[1])
    }

    pub(crate) fn has_met(&self) -> bool {
        self.state == State::Met
    }

    /// Whether the stages at the ends may be started.
    pub(crate) fn has_agreed(&self) -> bool {
        self.has_met() && self.agreed == [true; 2]
    }

    /// Whether the hop belongs to a chain. Besides a chain, a pipeline has hops of its own, and only those wait for GO.
    pub(crate) fn is_of_chain(&self) -> bool {
        !self.waits_for_go
    }

    /// Records that an end is ready to begin. Returns false if the end has said so before.
    pub(crate) fn note_ready(&mut self, side: Side) -> bool {
        !std::mem::replace(&mut self.ready[side as usize], true)
    }

    /// Whether both ends have been told to begin.
    pub(crate) fn has_begun(&self) -> bool {
        self.ready == [true; 2]
    }

    /// Records that an end has agreed with the other.
    pub(crate) fn note_agreed(&mut self, side: Side) {
        self.agreed[side as usize] = true;
    }

    /// Whether all ends have reported their outcome.
    pub(crate) fn is_over(&self) -> bool {
        self.sides().iter().all(|&side| self.report(side).is_some())
    }

    /// Returns the ends of the hop.
    pub(crate) fn sides(&self) -> &'static [Side] {
        if self.is_within { &[Side::From] } else { &[Side::From, Side::To] }
    }

    pub(crate) fn report(&self, side: Side) -> Option<&Report> {
        self.reports[side as usize].as_ref()
    }

    /// Returns the sender's report, or else the receiver's.
    pub(crate) fn told(&self) -> Option<&Report> {
        self.report(Side::From).or(self.report(Side::To))
    }

    /// Returns what the hop has moved, according to the sender's report, or else the receiver's. How files were
    /// written, and the receiver's waits, are added from the receiver's report.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let [sent, received] = &self.reports;
        let mut figures = self.told()?.moved();
        if let Some(received) = received {
            figures.written = received.figures.written;
            if sent.is_some() {
                figures.waits = figures.waits.joined(received.figures.waits);
            }
        }
        if self.is_over() {
            figures.view = View::Both;
        }
        Some(figures)
    }

    /// Records that a message of entries from this end has been taken. The end may have waited for that before it could
    /// report its outcome.
    pub(crate) fn note_taken(&mut self, side: Side) {
        let untaken = &mut self.untaken[side as usize];
        *untaken = untaken.saturating_sub(1);
        self.ended_since = self.ended_since.map(|_| Instant::now());
    }

    /// Records an end's report of its outcome. Returns true if the other end has to be stopped as well: it may not have
    /// met this end, and would wait.
    pub(crate) fn note_ended(&mut self, side: Side, report: Report) -> bool {
        let fault = report.fault.as_ref();
        let wakes = fault.is_some_and(|fault| fault.own || self.waits_for_go) && !self.has_begun();
        self.bytes = self.bytes.max(report.figures.counters.bytes);
        self.ended_since.get_or_insert_with(Instant::now);
        self.ended_first.get_or_insert(side);
        // Each end has its own channel, so this report may arrive before the other end's message that they have met.
        if !self.has_met() {
            self.state = if report.figures.counters.bytes > 0 { State::Met } else { State::Failed };
        }
        self.reports[side as usize].get_or_insert(report);
        wakes && !self.is_stopping && !self.is_over()
    }

    /// Returns what went wrong, if anything, and on which host. A failure of one end outweighs success reported by the
    /// other. A fault that an end has found itself outweighs one that the end has learned from the other. If both ends
    /// were ended by signals, the first counts, because it may have caused the second. If both have lost the link, the
    /// sender knows better why: whether lanes came up again, and lost all that was sent.
    pub(crate) fn first_fault(&self) -> Option<(usize, &Fault)> {
        let fault_of = |side: Side| Some((self.host(side), self.report(side)?.fault.as_ref()?));
        let mut faults = self.sides().iter().filter_map(|&side| fault_of(side));
        let first = || {
            let first = self.ended_first.and_then(fault_of)?;
            let is_loss = |(_, fault): &(usize, &Fault)| Exit::from_code(fault.exit) == Exit::LinkLost;
            let senders = fault_of(Side::From).filter(is_loss).filter(|_| is_loss(&first));
            senders.or(Some(first))
        };
        faults
            .find(|(_, fault)| fault.own && fault.exit < 128)
            .or_else(first)
            .or_else(|| self.sides().iter().find_map(|&side| fault_of(side)))
    }

    /// Whether a signal has ended each end.
    pub(crate) fn was_ended_by_signals(&self) -> bool {
        let is_signal = |fault: &Fault| fault.own && matches!(Exit::from_code(fault.exit), Exit::Signal(_));
        let fault_of = |side: Side| self.report(side).and_then(|report| report.fault.as_ref());
        self.sides().iter().all(|&side| fault_of(side).is_some_and(is_signal))
    }

    /// Whether the reader of the hop's data has closed it.
    pub(crate) fn was_closed(&self) -> bool {
        let mut faults = self.reports.iter().flatten().filter_map(|report| report.fault.as_ref());
        faults.any(|fault| Exit::from_code(fault.exit) == Exit::SinkClosed)
    }

    /// Whether the reader of the hop's data has closed it and the writer wrote on.
    pub(crate) fn was_left(&self) -> bool {
        let fault = self.report(Side::From).and_then(|report| report.fault.as_ref());
        fault.is_some_and(|fault| Exit::from_code(fault.exit) == Exit::SinkClosed)
    }

    /// Returns the deadline for the next step of meeting. `None` if nothing more is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let has_come_far = if self.waits_for_go { self.has_agreed() } else { self.has_met() };
        self.deadline.filter(|_| self.state != State::Failed && !has_come_far)
    }

    /// Returns the first step, once both ends have been begun.
    pub(crate) fn begin(&mut self, setup: &Setup) -> Next {
        self.deadline = Some(Instant::now() + CONNECT_MAX);
        let State::Listening(listener) = self.state else { return Next::default() };
        Next { send: Some((listener, Message::Listen { via: setup.via.clone() })), ..Next::default() }
    }

    /// Returns what an end itself could not read or write.
    pub(crate) fn own_fault(&self, side: Side) -> Option<&Fault> {
        let exit = if side == Side::From { Exit::Source } else { Exit::Destination };
        let fault = self.report(side)?.fault.as_ref()?;
        (fault.own && Exit::from_code(fault.exit) == exit).then_some(fault)
    }

    /// Handles an end's message about meeting the other.
    pub(crate) fn handle(&mut self, side: Side, message: Message, setup: &Setup) -> Next {
        match (&self.state, message) {
            (State::Listening(listener), Message::Listening(endpoints)) if *listener == side => {
                self.listened = Some(side);
                if setup.relay {
                    return self.tunnel(setup);
                }
                match self.offered(endpoints, setup) {
                    Ok((endpoints, via)) => {
                        self.state = State::Dialing(side);
                        self.deadline = Some(Instant::now() + CONNECT_MAX);
                        Next { send: Some((side.other(), Message::Dial { endpoints, via })), ..Next::default() }
                    }
                    Err(reason) => self.fail(reason),
                }
            }
            (State::Listening(listener), Message::Failed(fault)) if *listener == side => {
                self.reason = format!("{}: {}", self.names[side as usize], escaped(OsStr::new(&fault.detail)));
                self.again(side, setup)
            }
            (State::Dialing(listener), Message::Dialed) if *listener == side.other() => self.meet(),
            (State::Dialing(listener), Message::DialFailed(why)) if *listener == side.other() => {
                self.reason = escaped(OsStr::new(&why));
                let listener = *listener;
                self.again(listener, setup)
            }
            (State::Tunneling(listener), Message::Dialed) if *listener == side.other() => self.meet(),
            (State::Tunneling(listener), Message::DialFailed(why)) if *listener == side.other() => {
                let why = escaped(OsStr::new(&why));
                self.fail(format!("cannot connect through {}: {why}", setup.launcher_name()))
            }
            _ => Next::default(),
        }
    }

    /// Fails because a step took too long.
    pub(crate) fn late(&mut self, setup: &Setup) -> Next {
        let listener = match self.state {
            State::Listening(side) | State::Dialing(side) | State::Tunneling(side) => side,
            State::Met | State::Failed => Side::To,
        };
        let [one, other] = [listener.other(), listener].map(|side| &self.names[side as usize]);
        let within = CONNECT_MAX.as_secs();
        if self.tunneled || setup.relay {
            let launcher = setup.launcher_name();
            let reason = format!("no connection from {one} to {other} through {launcher} within {within} s; try again");
            return self.fail(reason);
        }
        self.fail(format!(
            "no connection from {one} to {other} within {within} s; run rddoctor to see which ports are reachable, or \
             use --relay"
        ))
    }

    fn meet(&mut self) -> Next {
        self.state = State::Met;
        self.deadline = Some(Instant::now() + CONNECT_MAX);
        Next::default()
    }

    fn fail(&mut self, reason: String) -> Next {
        self.state = State::Failed;
        Next { failure: Some(reason), ..Next::default() }
    }

    /// Tries the other way round, and after that through the channels.
    fn again(&mut self, listener: Side, setup: &Setup) -> Next {
        if !self.reversed {
            self.reversed = true;
            self.state = State::Listening(listener.other());
            return self.begin(setup);
        }
        if !setup.via.is_empty() {
            let reason = format!("no connection with --via: {}", self.reason);
            return self.fail(reason);
        }
        self.tunnel(setup)
    }

    fn tunnel(&mut self, setup: &Setup) -> Next {
        let Some(listener) = self.listened else {
            let reason = self.reason.clone();
            return self.fail(reason);
        };
        let say = (!setup.relay).then(|| {
            format!(
                "{} and {} cannot reach each other's ports ({}); data goes through {}, which is slower",
                self.names[0],
                self.names[1],
                self.reason,
                setup.launcher_name()
            )
        });
        self.tunneled = true;
        self.state = State::Tunneling(listener);
        self.deadline = Some(Instant::now() + CONNECT_MAX);
        Next { send: Some((listener.other(), Message::DialTunnel)), say, failure: None }
    }

    /// Returns the endpoints to try, and what restricts the end that tries them.
    fn offered(&self, endpoints: Vec<Endpoint>, setup: &Setup) -> Result<(Vec<Endpoint>, Vec<u8>), String> {
        let port = endpoints.first().map(|endpoint| endpoint.port);
        if let (State::Listening(listener), Some(name), Some(port)) = (&self.state, &setup.name, port)
            && self.named == Some(*listener)
        {
            let found = resolve(name, port, CONNECT_MAX);
            let found = found.map_err(|reason| format!("unknown host {}: {reason}", escaped(OsStr::new(name))))?;
            return Ok((found.into_iter().map(endpoints::given).collect(), Vec::new()));
        }
        Ok(endpoints::offered(endpoints, &setup.via, self.is_one_kernel))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::control::launch::Launcher;
    use crate::job::launching::{AgentChoice, Otherwise};

    fn setup(relay: bool, via: &[u8]) -> Setup {
        Setup {
            launcher: Launcher::new(OsStr::new("rsh"), Vec::new()).expect("a command"),
            agent: AgentChoice { command: "rdcp", program: "agent".into(), otherwise: Otherwise::Fail, remark: None },
            parallel: 32,
            relay,
            via: via.to_vec(),
            name: None,
            may_ask: false,
        }
    }

    fn hop(hosts: [usize; 2], setup: &Setup) -> Hop {
        let names = ["this host", "h1", "h2", "h3"];
        Hop::new(hosts, hosts.map(|host| names[host].to_owned()), [0, 1], false, setup)
    }

    fn sent(next: &Next) -> Option<(Side, &Message)> {
        next.send.as_ref().map(|(side, message)| (*side, message))
    }

    fn listening() -> Message {
        Message::Listening(vec![endpoints::given(([10, 0, 0, 1], 7000).into())])
    }

    #[test]
    fn two_that_do_not_meet_are_named() {
        for (hosts, words) in [
            ([1, 3], "from h1 to h3"),
            ([2, 3], "from h2 to h3"),
            ([0, 2], "from this host to h2"),
            ([2, 0], "from this host to h2"),
        ] {
            let setup = setup(false, b"");
            let mut hop = hop(hosts, &setup);
            hop.begin(&setup);
            let failure = hop.late(&setup).failure.expect("it is late");
            assert!(failure.contains(words) && failure.contains("use --relay"), "{failure}");
            assert!(hop.due().is_none());
        }
    }

    #[test]
    fn a_relay_that_takes_too_long_is_not_advised() {
        let setup = setup(true, b"");
        for is_listening in [false, true] {
            let mut hop = hop([0, 1], &setup);
            hop.begin(&setup);
            if is_listening {
                hop.handle(Side::To, listening(), &setup);
            }
            let failure = hop.late(&setup).failure.expect("it is late");
            assert!(failure.contains("from this host to h1 through rsh within 15 s"), "{failure}");
            assert!(!failure.contains("--relay"), "{failure}");
        }
    }

    /// One end listens, then the other, then the channels are used. Late messages are ignored.
    #[test]
    fn all_ways_are_tried_in_turn() {
        let setup = setup(false, b"");
        let mut hop = hop([1, 2], &setup);
        assert!(matches!(sent(&hop.begin(&setup)), Some((Side::To, Message::Listen { .. }))));
        assert!(hop.handle(Side::From, listening(), &setup).send.is_none(), "was not asked");
        assert!(matches!(sent(&hop.handle(Side::To, listening(), &setup)), Some((Side::From, Message::Dial { .. }))));
        let failed = || Message::DialFailed("refused".to_owned());
        assert!(matches!(sent(&hop.handle(Side::From, failed(), &setup)), Some((Side::From, Message::Listen { .. }))));
        assert!(matches!(sent(&hop.handle(Side::From, listening(), &setup)), Some((Side::To, Message::Dial { .. }))));
        assert!(hop.handle(Side::From, Message::Dialed, &setup).send.is_none() && !hop.has_met());
        let next = hop.handle(Side::To, failed(), &setup);
        // The end that was asked to connect last no longer listens.
        assert!(matches!(sent(&next), Some((Side::To, Message::DialTunnel))));
        assert!(next.say.is_some_and(|line| line.contains("h1 and h2") && line.contains("refused")));
        hop.handle(Side::To, Message::Dialed, &setup);
        assert!(hop.has_met() && hop.tunneled && hop.due().is_none());
    }

    #[test]
    fn what_the_user_asks_for_is_not_passed_by() {
        let relayed = setup(true, b"");
        let mut hop_relayed = hop([0, 1], &relayed);
        hop_relayed.begin(&relayed);
        let next = hop_relayed.handle(Side::To, listening(), &relayed);
        assert!(matches!(sent(&next), Some((Side::From, Message::DialTunnel))) && next.say.is_none());
        let by = setup(false, b"ib0");
        let mut hop_by = hop([0, 1], &by);
        hop_by.begin(&by);
        for side in [Side::To, Side::From] {
            let fault = Fault::plain(3, "no port");
            let next = hop_by.handle(side, Message::Failed(fault), &by);
            let failure = (side == Side::From).then_some("no connection with --via: this host: no port");
            assert_eq!(next.failure.as_deref(), failure, "not through the channels");
        }
    }

    /// An end that fails before it has met the other ends the meeting, and the other end is stopped. A stopped end, or
    /// an end that only repeats the other's fault, stops no other end.
    #[test]
    fn an_end_that_fails_first_wakes_the_other() {
        let setup = setup(false, b"");
        let report = |own: bool| Report { fault: Some(Fault { own, ..Fault::plain(5, "gone") }), ..Report::default() };
        for (own, is_stopping, wakes) in [(true, false, true), (false, false, false), (true, true, false)] {
            let mut hop = hop([1, 2], &setup);
            hop.begin(&setup);
            hop.is_stopping = is_stopping;
            assert_eq!(hop.note_ended(Side::From, report(own)), wakes);
            assert!(hop.due().is_none() && !hop.is_over());
            assert!(!hop.note_ended(Side::To, report(true)) && hop.is_over());
            assert!(hop.own_fault(Side::From).is_some() == own && hop.own_fault(Side::To).is_none());
        }
    }

    /// The end on this host is stopped by SIGTERM as soon as the other end has ended, by whatever signal.
    #[test]
    fn of_two_that_signals_ended_the_first_is_why() {
        let setup = setup(false, b"");
        let report = |number: u8| Report { fault: Some(Fault::plain(128 + number, "")), ..Report::default() };
        for first in [Side::From, Side::To] {
            let mut hop = hop([0, 1], &setup);
            hop.begin(&setup);
            hop.note_ended(first, report(2));
            assert!(!hop.was_ended_by_signals(), "the other end may still say more");
            hop.note_ended(first.other(), report(15));
            let (host, fault) = hop.first_fault().expect("both failed");
            assert_eq!((host, fault.exit), (hop.host(first), 130));
            assert!(hop.was_ended_by_signals());
        }
        // A fault that is not a signal outweighs any signal.
        let mut hop = hop([0, 1], &setup);
        hop.note_ended(Side::From, report(15));
        hop.note_ended(
            Side::To,
            Report { fault: Some(Fault { own: true, ..Fault::plain(5, "gone") }), ..Report::default() },
        );
        assert_eq!(hop.first_fault().map(|(host, fault)| (host, fault.exit)), Some((1, 5)));
        assert!(!hop.was_ended_by_signals());
    }
}
