//! Many hosts for `rddoctor`: each is examined, then pairs of hosts are measured in rounds. A round has as many pairs
//! as possible without any host in two of them.
//!
//! # Invariants
//!
//! * A host that cannot be reached, or is lost, fails alone: the failure is reported for that host, and the others go
//!   on.
//! * Every wait has a deadline, and rounds that would exceed the requested time are left out.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::{EXAMINE_MAX, Examiner, NoWay, speed};
use crate::control::frames::Message;
use crate::fault::{Exit, Failure};
use crate::job::{HERE, Job, LOOK_AGAIN, STOP_MAX, Setup, Update};
use crate::measure::matrix::{Matrix, Measured, round, rounds, sampled};
use crate::measure::{Facts, Path, Speed};
use crate::options::TransferOptions;

/// How long ports may be tried, for all hosts together. A host takes milliseconds, or seconds if a firewall drops
/// packets.
const PORTS_MAX: Duration = Duration::from_secs(60);

/// How much longer than the measurement a pair may take: to connect in one way and in the other, and to take what was
/// sent.
const PAIR_EXTRA: Duration = Duration::from_secs(40);

/// How long a pair takes besides the measurement if all is well.
const PAIR_SETUP: Duration = Duration::from_millis(300);

/// Progress of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Number of hosts that have answered or failed.
    Hosts { done: usize, all: usize },
    /// Number of hosts whose ports have been tried.
    Ports { done: usize, all: usize },
    /// Number of rounds measured, and how long the rest will take.
    Rounds { done: usize, all: usize, left: Duration },
}

/// Results of a survey.
pub(crate) struct Surveyed {
    /// Result for each host.
    pub(crate) hosts: Vec<Result<Path, NoWay>>,
    pub(crate) matrix: Matrix,
    /// Number of hosts whose ports were not tried, because others took too long.
    pub(crate) untried: usize,
}

/// Examines all hosts. `lasting`: how long to measure each direction of a pair; `None`: not at all. `within`: how long
/// all pairs together may take; `here`: the facts about this host; `tell` is called with the progress.
///
/// # Errors
///
/// Exit code 128+n for a signal meanwhile; 3 if signals cannot be handled.
pub(crate) fn survey(
    setup: Setup,
    hosts: &[OsString],
    lasting: Option<Duration>,
    within: Duration,
    transfer: &TransferOptions,
    here: &Facts,
    tell: &mut dyn FnMut(Step),
) -> Result<Surveyed, Failure> {
    let mut job = Job::new(setup, false)?;
    job.fails_alone = true;
    let examiner = Examiner { job, ports: transfer.port_range.clone() };
    let mut many = Many { examiner, numbers: Vec::new(), found: Vec::new() };
    many.arrive(hosts, tell)?;
    many.ask_facts(here)?;
    let untried = many.try_ports(tell)?;
    let hosts = hosts.iter().map(|host| crate::fault::escaped(host)).collect();
    let mut matrix = Matrix { hosts, ..Matrix::default() };
    if let Some(lasting) = lasting {
        many.measure(&mut matrix, lasting, within, transfer, tell)?;
        many.ask_counters()?;
    }
    Ok(Surveyed { hosts: many.found, matrix, untried })
}

struct Many {
    examiner: Examiner,
    /// Number of each host, in the order in which the hosts were named.
    numbers: Vec<usize>,
    found: Vec<Result<Path, NoWay>>,
}

impl Many {
    fn job(&mut self) -> &mut Job {
        &mut self.examiner.job
    }

    /// Returns the hosts that are still there: index in the list of hosts, and number.
    fn there(&self) -> Vec<(usize, usize)> {
        let is_there = |&(at, number): &(usize, usize)| self.found[at].is_ok() && !self.examiner.job.hosts[number].gone;
        self.numbers.iter().copied().enumerate().filter(is_there).collect()
    }

    fn fail(&mut self, number: usize, failure: Failure) {
        let Some(at) = self.numbers.iter().position(|known| *known == number) else { return };
        let lacks_agent = self.examiner.job.remote(number).is_some_and(|remote| remote.lacks_agent);
        if self.found[at].is_ok() {
            self.found[at] = Err(NoWay { failure, lacks_agent });
        }
        // Later messages of the host are of no use.
        self.job().hosts[number].gone = true;
    }

    /// Starts all hosts, and waits until each agent has introduced itself or failed.
    fn arrive(&mut self, hosts: &[OsString], tell: &mut dyn FnMut(Step)) -> Result<(), Failure> {
        for host in hosts {
            self.found.push(Ok(Path::default()));
            // If the launcher cannot be run, every host would fail.
            let number = self.job().host(host)?;
            self.numbers.push(number);
        }
        let mut done = 0;
        let mut failed = Vec::new();
        let all = hosts.len();
        tell(Step::Hosts { done, all });
        self.job().greet_telling(&mut |arrival| {
            done += 1;
            tell(Step::Hosts { done, all });
            failed.extend(arrival);
        })?;
        failed.into_iter().for_each(|(number, failure)| self.fail(number, failure));
        Ok(())
    }

    /// Asks all remaining hosts the same question, and waits for the answers.
    fn ask(&mut self, question: &Message) -> Result<HashMap<usize, Message>, Failure> {
        let asked: Vec<usize> = self.there().into_iter().map(|(_, number)| number).collect();
        asked.iter().for_each(|&number| self.job().send(number, question.clone()));
        let mut answers = HashMap::new();
        let deadline = Instant::now() + EXAMINE_MAX;
        while asked.iter().any(|number| !answers.contains_key(number) && !self.examiner.job.hosts[*number].gone) {
            match self.job().next(deadline) {
                Some(Update::Host(from, message)) => drop(answers.insert(from, message)),
                Some(update) => self.note(update)?,
                None => break,
            }
        }
        for number in asked.into_iter().filter(|number| !answers.contains_key(number)) {
            let (label, within) = (self.job().hosts[number].label(), EXAMINE_MAX.as_secs());
            self.fail(number, Exit::Connect.with(format!("{label} did not answer within {within} s")));
        }
        Ok(answers)
    }

    /// Handles an update that is not an answer.
    fn note(&mut self, update: Update) -> Result<(), Failure> {
        match update {
            Update::Gone(number, failure) => {
                let failure = failure.unwrap_or_else(|| self.examiner.job.lost(number));
                self.fail(number, failure);
                Ok(())
            }
            update => self.examiner.job.check(update),
        }
    }

    fn ask_facts(&mut self, here: &Facts) -> Result<(), Failure> {
        let mut answers = self.ask(&Message::Examine)?;
        for (at, number) in self.there() {
            let facts = match answers.remove(&number) {
                Some(Message::Examined(bytes)) => Facts::decode(&bytes),
                Some(Message::Failed(fault)) => {
                    let failure = self.job().failure(number, &fault);
                    self.fail(number, failure);
                    continue;
                }
                _ => None,
            };
            let Some(facts) = facts else {
                let failure = self.job().unexpected(number);
                self.fail(number, failure);
                continue;
            };
            let job = self.job();
            let agent_micros =
                job.remote(number).map_or(Duration::ZERO, |remote| remote.answered_after).as_micros() as u64;
            let is_one_machine = job.is_one_kernel(HERE, number);
            self.found[at] =
                Ok(Path { here: here.clone(), there: facts, is_one_machine, agent_micros, ..Path::default() });
        }
        Ok(())
    }

    /// Tries ports of each host, and of this host. Returns for how many hosts there was no time.
    fn try_ports(&mut self, tell: &mut dyn FnMut(Step)) -> Result<usize, Failure> {
        let deadline = Instant::now() + PORTS_MAX;
        let there = self.there();
        let all = there.len();
        for (done, (at, number)) in there.into_iter().enumerate() {
            tell(Step::Ports { done, all });
            if Instant::now() >= deadline {
                return Ok(all - done);
            }
            let Ok(path) = &self.found[at] else { continue };
            let (here, facts, is_one_machine) = (path.here.clone(), path.there.clone(), path.is_one_machine);
            let examiner = &mut self.examiner;
            let to_there = examiner.try_ports(HERE, number, &here, &facts, is_one_machine);
            let tried = to_there
                .and_then(|to_there| Ok((to_there, examiner.try_ports(number, HERE, &facts, &here, is_one_machine)?)));
            match (tried, &mut self.found[at]) {
                (Ok((to_there, to_here)), Ok(path)) => {
                    (path.to_there, path.to_here) = (Some(to_there), Some(to_here));
                }
                (Err(failure), _) if matches!(failure.exit, Exit::Signal(_)) => return Err(failure),
                (Err(failure), _) => self.fail(number, failure),
                (Ok(_), Err(_)) => {}
            }
        }
        Ok(0)
    }

    fn measure(
        &mut self,
        matrix: &mut Matrix,
        lasting: Duration,
        within: Duration,
        transfer: &TransferOptions,
        tell: &mut dyn FnMut(Step),
    ) -> Result<(), Failure> {
        let there: Vec<usize> = self.there().into_iter().map(|(at, _)| at).collect();
        let each = 2 * (lasting + PAIR_SETUP);
        // At least one round is measured, because otherwise there would be nothing to report.
        let at_most = (within.as_micros() / each.as_micros()).max(1) as usize;
        let all = rounds(there.len());
        let begun = Instant::now();
        let chosen = sampled(all, at_most);
        for (done, &at) in chosen.iter().enumerate() {
            let left = each * (chosen.len() - done) as u32;
            // Rounds with pairs that are slow to connect take longer than estimated.
            if done > 0 && begun.elapsed() + each > within {
                break;
            }
            tell(Step::Rounds { done, all: chosen.len(), left });
            let pairs: Vec<(usize, usize)> =
                round(there.len(), at).into_iter().map(|(one, other)| (there[one], there[other])).collect();
            let turned: Vec<(usize, usize)> = pairs.iter().map(|&(one, other)| (other, one)).collect();
            for pairs in [pairs, turned] {
                self.measure_at_once(&mut matrix.pairs, pairs, lasting, transfer)?;
            }
            matrix.rounds = done + 1;
        }
        matrix.rounds_all = all;
        Ok(())
    }

    /// Measures the rate from the first host to the second of each pair, all pairs at once.
    fn measure_at_once(
        &mut self,
        measured: &mut Vec<Measured>,
        pairs: Vec<(usize, usize)>,
        lasting: Duration,
        transfer: &TransferOptions,
    ) -> Result<(), Failure> {
        let is_there: Vec<bool> = (0..self.numbers.len()).map(|at| self.found[at].is_ok()).collect();
        let mut begun = Vec::new();
        for (from, to) in pairs.into_iter().filter(|&(from, to)| is_there[from] && is_there[to]) {
            let numbers = [from, to].map(|at| self.numbers[at]);
            begun.push((from, to, self.job().begin_measuring(numbers, lasting, transfer)));
        }
        let mut unmet: HashMap<usize, String> = HashMap::new();
        let mut deadline = Instant::now() + lasting + PAIR_EXTRA;
        let mut is_stopping = false;
        loop {
            let open: Vec<usize> = begun
                .iter()
                .map(|(.., hop)| *hop)
                .filter(|&hop| !unmet.contains_key(&hop) && !self.job().is_settled(hop))
                .collect();
            let now = Instant::now();
            if open.is_empty() || is_stopping && now >= deadline {
                break;
            }
            if now >= deadline {
                open.iter().for_each(|&hop| self.job().stop(hop, libc::SIGTERM as u8));
                (is_stopping, deadline) = (true, now + STOP_MAX);
            }
            match self.job().next(deadline.min(now + LOOK_AGAIN)) {
                Some(Update::Unmet(hop, reason)) => {
                    unmet.insert(hop, reason);
                    self.job().stop(hop, libc::SIGTERM as u8);
                }
                Some(update) => self.note(update)?,
                None => {}
            }
        }
        for (from, to, hop) in begun {
            // An unfinished measurement with a lost host says nothing about the network.
            if self.found[from].is_ok() && self.found[to].is_ok() {
                let speed = match unmet.remove(&hop) {
                    Some(reason) => Err(reason),
                    None => self.outcome(hop, is_stopping),
                };
                measured.push(Measured { from, to, speed });
            }
        }
        self.job().forget_hops();
        Ok(())
    }

    fn outcome(&self, hop: usize, is_late: bool) -> Result<Speed, String> {
        let job = &self.examiner.job;
        if is_late && !job.is_settled(hop) {
            return Err(format!("still running {} s after it should have ended", PAIR_EXTRA.as_secs()));
        }
        if let Some((host, fault)) = job.hops[hop].first_fault() {
            return Err(job.failure(host, fault).message.unwrap_or_else(|| "the measurement was stopped".to_owned()));
        }
        speed(&job.hops[hop]).ok_or_else(|| "neither end reported a result".to_owned())
    }

    /// Asks for the counters after the measurement.
    fn ask_counters(&mut self) -> Result<(), Failure> {
        let answers = self.ask(&Message::Examine)?;
        for (at, number) in self.there() {
            let counted = match answers.get(&number) {
                Some(Message::Examined(bytes)) => Facts::decode(bytes).map(|facts| facts.counters),
                _ => None,
            };
            if let (Some(counted), Ok(path)) = (counted, &mut self.found[at]) {
                // This host took no part in the measurement.
                path.after = Some([path.here.counters.clone(), counted]);
            }
        }
        Ok(())
    }
}
