//! Another host and the way there, for `rddoctor`: over the same channel as a copy, and with a session of its own kind.

use std::ffi::OsStr;
use std::time::Duration;

use super::{Copy, HERE};
use crate::cli::report::medium_name;
use crate::control::frames::{Job, Message};
use crate::engine::Summary;
use crate::fault::{Exit, Failure, escaped};
use crate::measure::door::{Knock, Sign, Sought, decode_knocks};
use crate::measure::{Facts, Path, Speed};

/// How long an end may take to tell what its host is like, or to try all ports.
const EXAMINE_MAX: Duration = Duration::from_secs(10);

/// What could not be examined.
pub(crate) struct NoWay {
    /// Why.
    pub(crate) failure: Failure,
    /// The launcher came to the host, and the agent is not there.
    pub(crate) lacks_agent: bool,
}

impl Copy<'_> {
    /// Examines the plan's destination, and the way there. `lasting`: for how long to measure the bandwidth, if at all.
    ///
    /// # Errors
    ///
    /// Why the host could not be asked. What fails later is part of what is returned.
    pub(crate) fn examine(&mut self, here: Facts, lasting: Option<Duration>) -> Result<Path, NoWay> {
        let there = self.agent().map_err(|failure| {
            let agent = self.sides.last_mut().and_then(|side| side.voice.agent());
            NoWay { lacks_agent: agent.is_some_and(|remote| remote.lacks_agent()), failure }
        })?;
        let agent = self.sides[there].voice.agent();
        let agent_micros = agent.map_or(0, |remote| remote.answered_after().as_micros() as u64);
        self.examine_from(there, here, agent_micros, lasting).map_err(|failure| NoWay { failure, lacks_agent: false })
    }

    fn agent(&mut self) -> Result<usize, Failure> {
        let destination = self.plan.destination.clone();
        let there = self.side_of(&destination)?;
        self.greet()?;
        Ok(there)
    }

    fn examine_from(
        &mut self,
        there: usize,
        here: Facts,
        agent_micros: u64,
        lasting: Option<Duration>,
    ) -> Result<Path, Failure> {
        self.send(there, Message::Examine);
        let facts = match self.answer(there, EXAMINE_MAX)? {
            Message::Examined(bytes) => Facts::decode(&bytes).ok_or_else(|| self.unexpected(there))?,
            Message::Failed(fault) => return Err(self.sides[there].failure(&fault)),
            _ => return Err(self.unexpected(there)),
        };
        let is_one_machine = self.same_kernel(HERE, there);
        let mut path = Path { here, there: facts, is_one_machine, agent_micros, ..Path::default() };
        path.to_there = Some(self.try_door(HERE, there, &path.here, &path.there, is_one_machine)?);
        path.to_here = Some(self.try_door(there, HERE, &path.there, &path.here, is_one_machine)?);
        if let Some(lasting) = lasting {
            path.speed = Some(self.measure(there, lasting)?);
        }
        Ok(path)
    }

    /// Has `to` open a door and `from` try it. The inner error is why there was none.
    fn try_door(
        &mut self,
        from: usize,
        to: usize,
        from_facts: &Facts,
        to_facts: &Facts,
        is_one_machine: bool,
    ) -> Result<Result<Vec<Knock>, String>, Failure> {
        let ports = self.plan.transfer.port_range.as_ref().map(|ports| (*ports.start(), *ports.end()));
        self.send(to, Message::OpenDoor { ports });
        let sign = match self.answer(to, EXAMINE_MAX)? {
            Message::DoorOpened(bytes) => Sign::decode(&bytes).ok_or_else(|| self.unexpected(to))?,
            Message::Failed(fault) => return Ok(Err(escaped(OsStr::new(&fault.detail)))),
            _ => return Err(self.unexpected(to)),
        };
        let sought = Sought::new(from_facts, to_facts, is_one_machine, sign);
        self.send(from, Message::Knock(sought.encode()));
        match self.answer(from, EXAMINE_MAX)? {
            Message::Knocked(bytes) => Ok(Ok(decode_knocks(&bytes).ok_or_else(|| self.unexpected(from))?)),
            Message::Failed(fault) => Ok(Err(escaped(OsStr::new(&fault.detail)))),
            _ => Err(self.unexpected(from)),
        }
    }

    /// Sends memory to nowhere, for so long.
    fn measure(&mut self, there: usize, lasting: Duration) -> Result<Result<Speed, String>, Failure> {
        let send = Job::SendMemory { millis: lasting.as_millis() as u32 };
        let outcome = self.session(HERE, send, there, Job::ReceiveFile { path: b"/dev/null".to_vec() });
        self.session = None;
        match outcome {
            Ok((summary, None)) => Ok(Ok(self.speed(&summary))),
            Ok((_, Some(failure))) | Err(failure) => match failure.exit {
                Exit::Signal(_) => Err(failure),
                _ => Ok(Err(failure.message.unwrap_or_else(|| "it was ended".to_owned()))),
            },
        }
    }

    fn speed(&self, summary: &Summary) -> Speed {
        Speed {
            bytes: summary.counters.bytes,
            micros: (summary.seconds * 1e6) as u64,
            medium: summary.media.last().map_or(String::new(), |&medium| medium_name(medium).to_owned()),
            limiter: summary.waits.limiter().map_or(String::new(), |limiter| limiter.what.name().to_owned()),
            is_tunneled: self.tunneled,
            is_encrypted: summary.encrypted,
        }
    }
}
