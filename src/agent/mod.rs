//! The remote half: what a host does on request. The caller runs the same code in its own process for its own host, so
//! that caller and agent behave alike wherever they run.

use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;
use rd_proto::session::TCP_LANES_DEFAULT;

use crate::control::frames::{Begin, BroadcastRole, FAULTS_MAX, FOUND_MAX, Fault, Found, Job, Message, STAGES_MAX};
use crate::control::stages::{Share, Stages};
use crate::control::tunnel::Emit;
use crate::engine::work;
use crate::fault::{Exit, printable};
use crate::fs::accounts;
use crate::options::Followed;

mod broadcast;
mod check;
pub mod end;
mod examiner;
pub mod measure;
pub mod place;
pub mod serve;
mod tree;
mod watch;
pub mod words;

use broadcast::Node;
use end::{End, Moves, ended_with};
use examiner::OpenProbe;
use tree::Ahead;
use watch::Watching;

/// Maximum number of ends of sessions on one host. Each stage of a pipeline has two.
const ENDS_MAX: usize = 2 * STAGES_MAX;

/// How long sessions may take to end after a signal, and to tell their other ends.
const STOP_MAX: Duration = Duration::from_secs(2);

/// How long an agent whose session has lost its other end stays without a word from its caller, and how long if it has
/// a node of a broadcast, which a caller that is back may still want.
const LOST_MAX: Duration = Duration::from_secs(3);
const ALONE_MAX: Duration = Duration::from_secs(60);

/// How long a search keeps back what it has found.
const FOUND_EVERY: Duration = Duration::from_secs(1);

/// The words by which a stage asks for the login's own shell, as sshd starts it. The last stands for the shell's path.
/// If the agent can find out that path, it puts it there, and [`START_SHELL`] in place of the third word. If the shell
/// can be found by its bare name, it is started by that name, which it then prints in front of its error messages.
///
/// Agents of other releases know these words: do not change them within a major version.
pub(crate) const LOGIN_SHELL: [&str; 4] = [
    "sh",
    "-c",
    "s=$0; [ \"$s\" = sh ] && s=${SHELL:-sh}; \
     [ \"$(command -v \"${s##*/}\")\" -ef \"$s\" ] && s=${s##*/}; exec \"$s\" \"$@\"",
    "sh",
];

/// What an agent that knows the shell's path runs in place of the third of these words: the same without a variable,
/// because the login may have exported one of that name for its commands.
const START_SHELL: &str =
    "[ \"$(command -v \"${0##*/}\")\" -ef \"$0\" ] && exec \"${0##*/}\" \"$@\"; exec \"$0\" \"$@\"";

/// Called by any thread. Must not wait.
pub(crate) type Ended = Arc<dyn Fn() + Send + Sync>;

/// Does slow work in a thread of its own. `emit` takes its answer, or why there is no thread.
fn in_thread(name: &str, emit: &Emit, work: impl FnOnce(&Emit) + Send + 'static) {
    let own = Arc::clone(emit);
    if let Err(error) = crate::spawn(name, 2 << 20, move || work(&own)) {
        emit(Message::Failed(Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}"))));
    }
}

/// Searches for sources, and reports meanwhile what it finds and what is missing.
fn find(patterns: &[ByteVec], links: Followed, expand: bool, emit: &Emit) {
    let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| &pattern[..]).collect();
    let (mut found, mut missing, mut last) = (Vec::new(), Vec::new(), Instant::now());
    let tell = |found: &mut Vec<Found>, missing: &mut Vec<Fault>| {
        tree::tell(missing.drain(..), emit);
        if !found.is_empty() {
            emit(Message::Found(std::mem::take(found)));
        }
    };
    place::find(&patterns, links, expand, |one| {
        match one {
            Ok(one) => found.push(one),
            Err(fact) => missing.push(Fault::unreadable(&fact)),
        }
        if found.len() == FOUND_MAX || missing.len() == FAULTS_MAX || last.elapsed() >= FOUND_EVERY {
            tell(&mut found, &mut missing);
            last = Instant::now();
        }
    });
    tell(&mut found, &mut missing);
    emit(Message::FoundAll);
}

/// The state of one host.
pub(crate) struct Agent {
    emit: Emit,
    is_remote: bool,
    stages: Stages,
    ahead: Ahead,
    ends: HashMap<u32, End>,
    node: Option<Node>,
    probe: OpenProbe,
    watching: Option<Watching>,
    /// Called each time a stage or a session has reported its end.
    ended: Ended,
    /// Number of stages and sessions that have been begun or accepted. Each of them reports its end.
    begun: usize,
    /// Why there is no room for the stages that are being begun. `None` until the room has been checked.
    refusal: Option<Option<String>>,
}

impl Agent {
    /// Creates an agent. `emit` takes the host's messages and must not wait. `tell` takes the messages of its stages,
    /// including their standard error, and may wait for a reader. `ended` is called after each stage or session has
    /// reported its end. With `tells_stderr`, standard error of stages goes to `tell`, otherwise to that of this
    /// process. A remote agent expands `~` and patterns, as the caller's shell does for its own host, and has no
    /// standard input and output to move.
    pub(crate) fn new(emit: Emit, tell: Emit, ended: Ended, is_remote: bool, tells_stderr: bool) -> Self {
        let after = Arc::clone(&ended);
        let tell: Emit = Arc::new(move |message| {
            let is_end = matches!(message, Message::StageEnded { .. });
            tell(message);
            if is_end {
                after();
            }
        });
        let stages = Stages::new(tell, is_remote, tells_stderr);
        let (ahead, ends, node, probe, refusal) = Default::default();
        Self { emit, is_remote, stages, ahead, ends, node, probe, watching: None, ended, begun: 0, refusal }
    }

    /// Handles a message. Does not wait: long operations are done by a thread, and their answers come later.
    pub(crate) fn handle(&mut self, message: Message) {
        match message {
            Message::ForEnd { end, message } => match message.decode() {
                Ok(Some(Message::Begin(begin))) => self.begin(end, *begin),
                Ok(Some(message)) => {
                    if let Some(end) = self.ends.get_mut(&end) {
                        end.handle(message);
                    }
                }
                Ok(None) | Err(_) => {}
            },
            Message::Find { patterns, links } => {
                let expand = self.is_remote;
                let work = move |emit: &Emit| find(&patterns, links, expand, emit);
                // An agent must be able to end in the middle of a search. On the caller's own host only the paths of
                // the command line are looked at, which may take any time.
                if self.is_remote { in_thread("find", &self.emit, work) } else { work(&self.emit) }
            }
            Message::Place(asked) => {
                self.say(place::place(&asked, self.is_remote).map_or_else(Message::Failed, Message::Placed));
            }
            Message::Sources(part) => {
                let taken = self.ahead.take(part);
                self.say(taken.map_or_else(Message::Failed, |()| Message::SourcesTaken));
            }
            Message::Examine | Message::OpenProbe { .. } | Message::Probe(_) => {
                examiner::handle(message, &self.emit, &self.probe);
            }
            Message::Measure { key, ports, via } => {
                let listening = measure::listen(&key, ports, |port| end::reachable(port, &via, self.is_remote));
                self.say(listening.map_or_else(Message::Failed, Message::Listening));
            }
            Message::MeasureStorage { path, writes, micros } => {
                measure::measure_storage(path, writes, micros, &self.emit);
            }
            Message::Watch(asked) => match Watching::begin(asked, self.is_remote, &self.emit) {
                Ok(watching) => self.watching = Some(watching),
                Err(error) => {
                    let words = format!("cannot start to watch: {}", printable(&error.to_string()));
                    (self.emit)(Message::Failed(Fault::plain(Exit::Source.code(), words)));
                }
            },
            Message::TellChanges => self.watching.iter().for_each(Watching::ask),
            Message::Stage(mut stage) => {
                self.begun += 1;
                if stage.shell.iter().map(|word| &word[..]).eq(LOGIN_SHELL.map(str::as_bytes))
                    && let Some(shell) = accounts::own_shell()
                {
                    stage.shell.truncate(2);
                    stage.shell.extend([START_SHELL.as_bytes().to_vec(), shell.into_vec()].map(ByteVec::from));
                }
                self.stages.take(*stage);
            }
            Message::StartStages => {
                self.refusal = None;
                self.stages.start();
            }
            Message::EndStage { stage, signal } => self.stages.signal(stage, signal),
            Message::BeginBroadcast(broadcast) => {
                // The threads and memory of an earlier broadcast are released first.
                self.node = None;
                let moves = match broadcast.role {
                    BroadcastRole::SourceStage { stage } => self.stages.attach_outlet(stage).map(Moves::Output),
                    BroadcastRole::Stage { stage, .. } => self.stages.attach_inlet(stage).map(Moves::Input),
                    BroadcastRole::SourceStandard if self.is_remote => None,
                    _ => Some(Moves::Named),
                };
                self.node = Some(Node::begin(Arc::clone(&self.emit), *broadcast, moves));
            }
            Message::Signal(number) => self.stop_node(number),
            message => self.node.iter_mut().for_each(|node| node.handle(&message)),
        }
    }

    /// Ends the node and its hops.
    fn stop_node(&self, number: u8) {
        if let Some(node) = &self.node {
            // The hops are ended first, so that they report why they end.
            self.ends.values().filter(|end| end.is_of_broadcast).for_each(|end| end.stop(number));
            node.stop(number);
        }
    }

    fn say(&self, message: Message) {
        (self.emit)(message);
    }

    fn begin(&mut self, number: u32, mut begin: Begin) {
        std::mem::take(&mut self.ahead).give(&mut begin.job);
        examiner::close(&self.probe);
        self.ends.retain(|_, end| end.is_busy());
        if self.ends.len() >= ENDS_MAX {
            return;
        }
        self.begun += 1;
        let (emit, ended) = (Arc::clone(&self.emit), Arc::clone(&self.ended));
        let say = move |message: Message| {
            let is_end = matches!(message, Message::Ended(_));
            // A message that is too long is dropped, because a panic would be of no use.
            if let Ok(message) = message.for_end(number) {
                emit(message);
            }
            if is_end {
                ended();
            }
        };
        if begin.waits
            && let Some(reason) = self.refusal(begin.options.lanes)
        {
            return say(ended_with(Fault::plain(Exit::Usage.code(), reason)));
        }
        let moves = match begin.job {
            Job::SendStage { stage } => self.stages.attach_outlet(stage).map(Moves::Output),
            Job::ReceiveStage { stage } => self.stages.attach_inlet(stage).map(Moves::Input),
            Job::SendBroadcast | Job::ReceiveBroadcast => {
                let puts_in = matches!(begin.job, Job::ReceiveBroadcast);
                self.node.as_ref().and_then(|node| node.spool(puts_in)).map(Moves::Stream)
            }
            _ => Some(Moves::Named),
        };
        self.ends.insert(number, End::begin(Arc::new(say), self.is_remote, begin, moves));
    }

    /// Returns why this host has no room for the waiting stages. By the time the first session is begun, all stages of
    /// this host's part have come.
    fn refusal(&mut self, lanes: Option<u8>) -> Option<String> {
        let (stages, ends) = self.stages.waiting();
        let threads = work::threads_max(usize::from(lanes.unwrap_or(TCP_LANES_DEFAULT)));
        self.refusal.get_or_insert_with(|| Share { stages, ends, threads }.is_too_much()).clone()
    }

    /// Notes a word from the caller: whatever link was lost, the caller is not out of reach.
    pub(crate) fn note_caller(&mut self) {
        self.ends.values().for_each(End::forget_loss);
    }

    /// Returns how long this host goes on without a word from its caller, if a session has lost its other end: the
    /// caller may be out of reach as well, even if it was not that other end. `None` if no session has.
    pub(crate) fn silence_max(&self) -> Option<Duration> {
        if !self.ends.values().any(End::has_lost_its_link) {
            return None;
        }
        // Hops of a broadcast come and go, so a lost hop counts only while the node has no other session.
        match self.node {
            Some(_) => (!self.ends.values().any(End::is_busy)).then_some(ALONE_MAX),
            None => Some(LOST_MAX),
        }
    }

    /// Ends everything: the sessions as by this signal, then the stages. Waits a while until all have ended.
    pub(crate) fn stop(&mut self, number: u8) {
        self.stages.fall_silent();
        self.stop_node(number);
        self.stop_some(number, |_| true);
        self.stages.end();
    }

    fn stop_some(&self, number: u8, which: impl Fn(&End) -> bool) {
        let ends = || self.ends.values().filter(|end| which(end));
        ends().for_each(|end| end.stop(number));
        let deadline = Instant::now() + STOP_MAX;
        let is_node_busy = || self.node.as_ref().is_some_and(|node| node.is_stopping());
        while (ends().any(End::is_busy) || is_node_busy()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Handles the loss of the caller. Pipelines end, and so does a broadcast whose stream this host does not have
    /// completely. Copies find out by themselves whether they are still wanted. Returns the threads to wait for, and
    /// for how long. Meanwhile [`Agent::stop`] still ends the sessions.
    pub(crate) fn abandon(&mut self) -> Vec<(JoinHandle<()>, Option<Duration>)> {
        let is_complete = self.node.as_ref().is_none_or(Node::is_complete);
        if !is_complete {
            self.stop_node(libc::SIGHUP as u8);
        }
        self.stop_some(libc::SIGHUP as u8, |end| end.is_of_pipeline || end.is_of_broadcast && !is_complete);
        self.stages.end();
        let ends = self.ends.values_mut().filter(|end| !end.is_of_pipeline).filter_map(End::abandon);
        ends.chain(self.node.as_mut().and_then(Node::abandon)).collect()
    }

    /// Ends the stages after everything is done. Processes that they have left running get a little time.
    pub(crate) fn finish(&mut self) {
        // A session that has reported its end may still be about to let the input of its command end.
        let deadline = Instant::now() + STOP_MAX;
        while self.ends.values().any(End::is_ending) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stages.end();
    }

    /// Stops this process until it is continued. Sessions tell their other ends first.
    pub(crate) fn suspend(&self) {
        let mut sessions = self.ends.values().filter(|end| end.is_busy() && end.has_peer()).peekable();
        if sessions.peek().is_none() {
            crate::signals::stop_here();
        }
        sessions.for_each(|end| end.stop(libc::SIGTSTP as u8));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_search_reports_from_a_thread_of_its_own_while_it_goes_on() {
        let directory = std::env::temp_dir().join(format!("rd-agent-{}-search", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("a directory");
        let path = |number: usize| directory.join(format!("f{number:02}"));
        (0..=FOUND_MAX).for_each(|number| std::fs::write(path(number), b"").expect("a file"));
        let (post, said) = flume::unbounded();
        let last = path(FOUND_MAX);
        let emit: Emit = Arc::new(move |message| {
            // The search has not come to the last file yet.
            if matches!(message, Message::Found(_)) {
                let _ = std::fs::remove_file(&last);
            }
            let _ = post.send((std::thread::current().id(), message));
        });
        let mut agent = Agent::new(Arc::clone(&emit), emit, Arc::new(|| {}), true, true);
        let pattern = [directory.as_os_str().as_bytes(), b"/f*"].concat();
        agent.handle(Message::Find { patterns: vec![pattern.into()], links: Followed::default() });
        let (mut found, mut missing) = (0, 0);
        loop {
            let (thread, message) = said.recv_timeout(Duration::from_secs(30)).expect("an answer");
            assert_ne!(thread, std::thread::current().id());
            match message {
                Message::Found(some) => found += some.len(),
                Message::EntriesFailed(some) => missing += some.len(),
                Message::FoundAll => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((found, missing), (FOUND_MAX, 1));
        std::fs::remove_dir_all(&directory).expect("it");
    }
}
