//! Examines another host and the way there for `rddoctor`, over the same kind of channel and session as a copy.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::hop::Hop;
use super::launching::Remote;
use super::{HERE, Job, STOP_MAX, Setup};
use crate::control::endpoints;
use crate::control::frames::{self, Message};
use crate::fault::{Exit, Failure, escaped};
use crate::measure::probe::{Attempt, ProbeRequest, ProbeTargets, decode_attempts};
use crate::measure::{self, Facts, Path, Speed, gather};
use crate::options::TransferOptions;

pub(crate) mod drill;
pub(crate) mod many;

/// How long an end may take to report facts about its host, or to try all ports.
const EXAMINE_MAX: Duration = Duration::from_secs(10);

/// Outcome of trying ports; an error says why none was opened.
type Tried = Result<Vec<Attempt>, String>;

/// Why a host could not be examined.
pub(crate) struct NoWay {
    /// The failure to report.
    pub(crate) failure: Failure,
    /// Whether the launcher reached the host but found no agent there.
    pub(crate) lacks_agent: bool,
}

/// Examines another host and the way there. `here`: the facts about this host; `lasting`: how long to measure the
/// bandwidth; `None`: not at all.
///
/// # Errors
///
/// Fails with the reason if the host could not be asked. Later failures are part of the returned value.
pub(crate) fn examine_host(
    setup: Setup,
    host: &OsStr,
    lasting: Option<Duration>,
    transfer: &TransferOptions,
    here: Facts,
) -> Result<Path, NoWay> {
    let unexamined = |failure| NoWay { failure, lacks_agent: false };
    let mut job = Job::new(setup, false).map_err(unexamined)?;
    let there = job.host(host).map_err(unexamined)?;
    if let Err(failure) = job.greet() {
        return Err(NoWay { lacks_agent: job.remote(there).is_some_and(|remote| remote.lacks_agent), failure });
    }
    let answered_after = job.remote(there).map_or(Duration::ZERO, |remote| remote.answered_after);
    let mut examiner = Examiner { job, ports: transfer.port_range.clone() };
    let path = examiner.examine(there, here, answered_after);
    path.and_then(|mut path| {
        if let Some(lasting) = lasting {
            path.speed = Some(examiner.measure(there, lasting, transfer)?);
            let counted = examiner.facts(there)?.counters;
            path.after = Some([gather::here().counters, counted]);
        }
        Ok(path)
    })
    .map_err(unexamined)
}

impl Job {
    /// Begins to measure the rate from memory on one host to `/dev/null` on another. Returns the number of the session.
    pub(in crate::job) fn begin_measuring(
        &mut self,
        hosts: [usize; 2],
        lasting: Duration,
        options: &TransferOptions,
    ) -> usize {
        let send = frames::Job::SendMemory { millis: lasting.as_millis() as u32 };
        let receive = frames::Job::ReceiveFile { path: b"/dev/null".to_vec() };
        self.session(hosts, [send, receive], options)
    }
}

struct Examiner {
    job: Job,
    ports: Option<RangeInclusive<u16>>,
}

impl Examiner {
    fn examine(&mut self, there: usize, here: Facts, answered_after: Duration) -> Result<Path, Failure> {
        let facts = self.facts(there)?;
        let is_one_machine = self.job.is_one_kernel(HERE, there);
        let mut path = Path {
            here,
            there: facts,
            is_one_machine,
            agent_micros: answered_after.as_micros() as u64,
            ..Path::default()
        };
        path.to_there = Some(self.try_ports([HERE, there], &path)?);
        path.to_here = Some(self.try_ports([there, HERE], &path)?);
        Ok(path)
    }

    /// Asks a host for its facts.
    fn facts(&mut self, there: usize) -> Result<Facts, Failure> {
        match self.job.ask(there, Message::Examine, EXAMINE_MAX)? {
            Message::Examined(bytes) => Facts::decode(&bytes).ok_or_else(|| self.job.unexpected(there)),
            _ => Err(self.job.unexpected(there)),
        }
    }

    /// Has the second host open a probe, and the first try it. One of them is this host.
    fn try_ports(&mut self, [from, to]: [usize; 2], path: &Path) -> Result<Tried, Failure> {
        let open = self.open_probe();
        self.job.send(to, open);
        let answer = self.job.answer(to, EXAMINE_MAX)?;
        let targets = match self.opened(to, answer)? {
            Ok(targets) => targets,
            Err(reason) => return Ok(Err(reason)),
        };
        let request = self.request([from, to], path, targets);
        self.job.send(from, Message::Probe(measure::encode(&request)));
        let answer = self.job.answer(from, EXAMINE_MAX)?;
        self.attempts(from, answer)
    }

    /// Returns the question that has a host open a probe.
    fn open_probe(&self) -> Message {
        Message::OpenProbe { ports: self.ports.as_ref().map(|ports| (*ports.start(), *ports.end())) }
    }

    /// Returns where a host has opened its probe, or why it has none, by its answer.
    fn opened(&self, host: usize, answer: Message) -> Result<Result<ProbeTargets, String>, Failure> {
        match answer {
            Message::ProbeOpened(bytes) => Ok(Ok(measure::decode(&bytes).ok_or_else(|| self.job.unexpected(host))?)),
            Message::Failed(fault) => Ok(Err(escaped(OsStr::new(&fault.detail)))),
            _ => Err(self.job.unexpected(host)),
        }
    }

    /// Returns the request that has the first host try the probe of the second. One of them is this host.
    fn request(&self, [from, to]: [usize; 2], path: &Path, targets: ProbeTargets) -> ProbeRequest {
        let facts = |host: usize| if host == HERE { &path.here } else { &path.there };
        let mut request = ProbeRequest::new(facts(from), facts(to), path.is_one_machine, targets);
        if from == HERE
            && let Some(address) = self.job.remote(to).and_then(Remote::reached_at).filter(endpoints::is_public)
        {
            request.also(address);
        }
        request
    }

    /// Returns what a host's attempts came to, by its answer.
    fn attempts(&self, host: usize, answer: Message) -> Result<Tried, Failure> {
        match answer {
            Message::Probed(bytes) => Ok(Ok(decode_attempts(&bytes).ok_or_else(|| self.job.unexpected(host))?)),
            Message::Failed(fault) => Ok(Err(escaped(OsStr::new(&fault.detail)))),
            _ => Err(self.job.unexpected(host)),
        }
    }

    /// Measures the rate from here to there, for the given time.
    fn measure(
        &mut self,
        there: usize,
        lasting: Duration,
        transfer: &TransferOptions,
    ) -> Result<Result<Speed, String>, Failure> {
        let hop = self.job.begin_measuring([HERE, there], lasting, transfer);
        match self.outcome(hop) {
            Ok(speed) => Ok(Ok(speed)),
            Err(failure) => match failure.exit {
                Exit::Signal(_) => Err(failure),
                _ => Ok(Err(failure.message.unwrap_or_else(|| "the measurement was stopped".to_owned()))),
            },
        }
    }

    /// Waits until a session has ended. Returns its speed.
    fn outcome(&mut self, hop: usize) -> Result<Speed, Failure> {
        while let Some(update) = self.job.next_of(hop) {
            if let Err(failure) = self.job.check(update) {
                self.job.stop(hop, libc::SIGTERM as u8);
                let deadline = Instant::now() + STOP_MAX;
                while self.job.is_heard(hop) && self.job.next(deadline).is_some() {}
                return Err(failure);
            }
        }
        if let Some((host, fault)) = self.job.hops[hop].first_fault() {
            return Err(self.job.failure(host, fault));
        }
        Ok(speed(&self.job.hops[hop]).unwrap_or_default())
    }
}

/// Returns the speed of a session, according to both its ends. `None` if neither has reported its outcome.
fn speed(hop: &Hop) -> Option<Speed> {
    let figures = hop.figures()?;
    Some(Speed {
        bytes: figures.counters.bytes,
        micros: (figures.seconds * 1e6) as u64,
        medium: figures.media.last().map_or(String::new(), |medium| medium.name().to_owned()),
        rails: figures.line.rails,
        limiter: figures.waits.limiter().map_or(String::new(), |limiter| limiter.what.name().to_owned()),
        is_tunneled: hop.tunneled,
        is_encrypted: figures.encrypted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frames::Report;
    use crate::engine::{Figures, Waits};

    #[test]
    fn the_receiver_knows_why_the_sender_waits() {
        let report = |waits| Some(Report { figures: Figures { waits, ..Figures::default() }, ..Report::default() });
        let sent = report(Waits { wire: 2.0, ..Waits::default() });
        for (received, limiter) in [
            (None, "wire"),
            (report(Waits { wire: 2.0, ..Waits::default() }), "wire"),
            (report(Waits { cpu: 1.9, wire: 0.1, ..Waits::default() }), "cpu"),
        ] {
            let mut hop = Hop::default();
            hop.reports = [sent.clone(), received];
            assert_eq!(speed(&hop).expect("a report").limiter, limiter);
        }
        assert_eq!(speed(&Hop::default()), None);
    }
}
