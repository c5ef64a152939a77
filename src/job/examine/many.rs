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

use super::{EXAMINE_MAX, Examiner, NoWay, Tried, speed};
use crate::control::frames::Message;
use crate::fault::{Exit, Failure};
use crate::job::launching::Heard;
use crate::job::{HERE, Job, LOOK_AGAIN, STOP_MAX, Setup, Update};
use crate::measure::matrix::{Matrix, Measured, round, rounds, sampled};
use crate::measure::{self, Facts, Path, Speed, probe};
use crate::options::TransferOptions;

/// Number of hosts whose ports are tried at once. Firewalls that drop packets hold all of them for seconds, and each
/// takes up to a dozen connections and threads of this host.
const PORTS_AT_ONCE: usize = 16;

/// How long ports may be tried, for all hosts together: the larger of this and of the time for each host times their
/// number. A host takes less than that, or seconds if a firewall drops packets.
const PORTS_MAX: Duration = Duration::from_secs(60);
const PORTS_EACH: Duration = Duration::from_millis(100);

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
    many.try_ports(PORTS_MAX.max(PORTS_EACH * hosts.len() as u32), tell)?;
    let hosts = hosts.iter().map(|host| crate::fault::escaped(host)).collect();
    let mut matrix = Matrix { hosts, ..Matrix::default() };
    if let Some(lasting) = lasting {
        many.measure(&mut matrix, lasting, within, transfer, tell)?;
        many.ask_counters()?;
    }
    Ok(Surveyed { hosts: many.found, matrix })
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
    fn ask_all(&mut self, question: &Message) -> Result<HashMap<usize, Message>, Failure> {
        let asked: Vec<usize> = self.there().into_iter().map(|(_, number)| number).collect();
        self.ask(&asked, question)
    }

    /// Asks these hosts the same question, and waits for the answers.
    fn ask(&mut self, asked: &[usize], question: &Message) -> Result<HashMap<usize, Message>, Failure> {
        asked.iter().for_each(|&number| self.job().send(number, question.clone()));
        self.answers(asked)
    }

    /// Waits for an answer of each of these hosts. A host that does not answer in time has failed, and one that speaks
    /// unasked, which could keep this from ending.
    fn answers(&mut self, asked: &[usize]) -> Result<HashMap<usize, Message>, Failure> {
        let mut answers = HashMap::new();
        let deadline = Instant::now() + EXAMINE_MAX;
        while asked.iter().any(|number| !answers.contains_key(number) && !self.examiner.job.hosts[*number].gone) {
            match self.job().next(deadline) {
                Some(Update::Host(from, message)) if asked.contains(&from) && !answers.contains_key(&from) => {
                    answers.insert(from, message);
                }
                Some(Update::Host(from, _)) => {
                    let failure = self.examiner.job.unexpected(from);
                    self.fail(from, failure);
                }
                Some(update) => self.note(update)?,
                None => break,
            }
        }
        for &number in asked.iter().filter(|number| !answers.contains_key(*number)) {
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
        let mut answers = self.ask_all(&Message::Examine)?;
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

    /// Tries ports of each host, and of this host. After `within`, no more hosts are tried.
    fn try_ports(&mut self, within: Duration, tell: &mut dyn FnMut(Step)) -> Result<(), Failure> {
        // All hosts of a group try one probe of this host, and memory that this host locks for each of them is limited.
        let has_rdma = |&(at, _): &(usize, usize)| {
            let found = self.found[at].as_ref();
            found.is_ok_and(|path| !path.here.rdma.is_empty() && !path.there.rdma.is_empty())
        };
        let (with_rdma, others): (Vec<_>, Vec<_>) = self.there().into_iter().partition(has_rdma);
        let all = with_rdma.len() + others.len();
        let (mut done, began) = (0, Instant::now());
        // Groups that take less time for each host come first.
        for hosts in others.chunks(PORTS_AT_ONCE).chain(with_rdma.chunks(probe::RDMA_HOSTS_MAX)) {
            tell(Step::Ports { done, all });
            done += hosts.len();
            if began.elapsed() >= within {
                for &(at, _) in hosts {
                    if let Ok(path) = &mut self.found[at] {
                        path.is_untried = true;
                    }
                }
                continue;
            }
            self.try_ports_there(hosts)?;
            self.try_ports_here(hosts)?;
        }
        Ok(())
    }

    /// Has these hosts open probes, and tries all of them at once.
    fn try_ports_there(&mut self, hosts: &[(usize, usize)]) -> Result<(), Failure> {
        let open = self.examiner.open_probe();
        let is_there = |&&(at, _): &&(usize, usize)| self.found[at].is_ok();
        let numbers: Vec<usize> = hosts.iter().filter(is_there).map(|&(_, number)| number).collect();
        let mut opened = self.ask(&numbers, &open)?;
        let mut tried = Vec::new();
        for &(at, number) in hosts {
            let Some(answer) = opened.remove(&number) else { continue };
            let Ok(path) = &mut self.found[at] else { continue };
            match self.examiner.opened(number, answer) {
                Ok(Ok(targets)) => {
                    let request = self.examiner.request([HERE, number], path, targets);
                    let post = self.examiner.job.post.clone();
                    // Posted as if the host itself had answered: answers of this host would not say which host they
                    // are about.
                    let run = move || {
                        let attempts = measure::encode(&probe::try_all(&request));
                        let _ = post.send((number, Heard::Message(Message::Probed(attempts))));
                    };
                    match crate::spawn("probe", 2 << 20, run) {
                        Ok(_) => tried.push((at, number)),
                        Err(error) => path.to_there = Some(Err(format!("cannot start a thread: {error}"))),
                    }
                }
                Ok(Err(reason)) => path.to_there = Some(Err(reason)),
                Err(failure) => self.fail(number, failure),
            }
        }
        self.take_attempts(&tried, |path| &mut path.to_there)
    }

    /// Opens a probe on this host, and has all of these hosts try it at once.
    fn try_ports_here(&mut self, hosts: &[(usize, usize)]) -> Result<(), Failure> {
        let open = self.examiner.open_probe();
        let opened = match self.ask(&[HERE], &open)?.remove(&HERE) {
            Some(answer) => self.examiner.opened(HERE, answer)?,
            None => Err(format!("none was open after {} s", EXAMINE_MAX.as_secs())),
        };
        let mut tried = Vec::new();
        for &(at, number) in hosts {
            let Ok(path) = &mut self.found[at] else { continue };
            match &opened {
                Ok(targets) => {
                    let request = self.examiner.request([number, HERE], path, targets.clone());
                    self.examiner.job.send(number, Message::Probe(measure::encode(&request)));
                    tried.push((at, number));
                }
                Err(reason) => path.to_here = Some(Err(reason.clone())),
            }
        }
        self.take_attempts(&tried, |path| &mut path.to_here)
    }

    /// Waits for what the attempts for these hosts have come to, and puts it in its `place`.
    fn take_attempts(
        &mut self,
        hosts: &[(usize, usize)],
        place: fn(&mut Path) -> &mut Option<Tried>,
    ) -> Result<(), Failure> {
        let numbers: Vec<usize> = hosts.iter().map(|&(_, number)| number).collect();
        let mut answers = self.answers(&numbers)?;
        for &(at, number) in hosts {
            let Some(answer) = answers.remove(&number) else { continue };
            match (self.examiner.attempts(number, answer), &mut self.found[at]) {
                (Ok(tried), Ok(path)) => *place(path) = Some(tried),
                (Err(failure), _) => self.fail(number, failure),
                (Ok(_), Err(_)) => {}
            }
        }
        Ok(())
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
        let answers = self.ask_all(&Message::Examine)?;
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::control::frames::Hello;
    use crate::job::tests::job;
    use crate::measure::finding::Outcome;
    use crate::measure::probe::{ProbeTargets, TICKET_BYTES};
    use crate::measure::recorded::facts;

    fn survey_of<const N: usize>(names: [&str; N]) -> Many {
        let mut job = job();
        job.fails_alone = true;
        let numbers = names.map(|name| job.host(OsStr::new(name)).expect("a host")).to_vec();
        let found = names.iter().map(|_| Ok(Path { is_one_machine: true, ..Path::default() })).collect();
        Many { examiner: Examiner { job, ports: None }, numbers, found }
    }

    /// These hosts answer only once all of them have been tried. In turn, those whose firewalls drop packets would
    /// take 5 s each.
    #[test]
    fn ports_of_several_hosts_are_tried_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let targets = ProbeTargets { port, ticket: [7; TICKET_BYTES], ..ProbeTargets::default() };
        let mut many = survey_of(["n1", "n2", "n3"]);
        let hosts = many.there();
        for &(_, number) in &hosts {
            let opened = Message::ProbeOpened(measure::encode(&targets));
            for message in [Message::Hello(Hello::ours()), opened] {
                assert!(many.job().post.send((number, Heard::Message(message))).is_ok());
            }
        }
        let count = hosts.len();
        let answering = std::thread::spawn(move || {
            let tried: Vec<TcpStream> =
                listener.incoming().take(count).map(|stream| stream.expect("a connection")).collect();
            tried.into_iter().for_each(|mut stream| stream.write_all(&targets.ticket).expect("a reader"));
        });
        many.try_ports_there(&hosts).expect("no signal");
        for found in &many.found {
            let tried = found.as_ref().ok().and_then(|path| path.to_there.clone()).expect("it was tried");
            let outcomes: Vec<Outcome> = tried.expect("a port").into_iter().map(|attempt| attempt.outcome).collect();
            assert_eq!(outcomes, [Outcome::Connected]);
        }
        answering.join().expect("no panic");
    }

    /// More hosts with RDMA at once would be rejected, or find no memory to lock, and seem not to be reached.
    #[test]
    fn hosts_with_rdma_are_tried_two_at_a_time_and_none_when_time_is_up() {
        let mut many = survey_of(["n1", "n2", "n3", "n4"]);
        for path in many.found.iter_mut().take(3).flatten() {
            (path.here, path.there) = (facts("connectx"), facts("connectx"));
        }
        let mut steps = Vec::new();
        many.try_ports(Duration::ZERO, &mut |step| steps.push(step)).expect("no signal");
        assert_eq!(steps, [0, 1, 3].map(|done| Step::Ports { done, all: 4 }));
        assert!(many.found.iter().all(|found| found.as_ref().is_ok_and(|path| path.is_untried)));
    }

    #[test]
    fn a_host_that_answers_twice_fails_alone() {
        let mut many = survey_of(["loud", "asked"]);
        let [loud, asked] = [many.numbers[0], many.numbers[1]];
        for host in [loud, loud, asked] {
            many.job().updates.push_back(Update::Host(host, Message::Watched));
        }
        assert!(many.answers(&[loud, asked]).expect("no signal").contains_key(&asked));
        assert_eq!(many.found[0].as_ref().err().map(|no_way| no_way.failure.exit), Some(Exit::Protocol));
        assert!(many.found[1].is_ok());
    }
}
