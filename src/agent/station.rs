//! What one host does in a pipeline: its stages, and the ends of the sessions between them. An agent has one of these
//! behind its channel, and the caller one for what is on its own host.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rd_proto::session::TCP_LANES_DEFAULT;

use crate::agent::end::{AtHop, End, ended_with};
use crate::control::frames::{Begin, Fault, Job, Message, STAGES_MAX};
use crate::control::stages::{Share, Stages};
use crate::control::tunnel::Emit;
use crate::engine::work;
use crate::fault::Exit;

/// Ends of sessions that one host has at most: each stage has two.
const ENDS_MAX: usize = 2 * STAGES_MAX;

/// How long sessions may take to tell their other ends that they are over.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The part of one host.
pub(crate) struct Station {
    emit: Emit,
    is_agent: bool,
    stages: Stages,
    ends: HashMap<u32, End>,
    /// Why there is no room for what is being begun; `None` until that has been asked.
    refusal: Option<Option<String>>,
}

impl Station {
    /// `emit` takes what this host says; `tell` what its stages tell, and may wait there for whoever reads it;
    /// standard error is among it or is this process's own.
    pub(crate) fn new(emit: Emit, tell: Emit, is_agent: bool, tells_stderr: bool) -> Self {
        Self { emit, is_agent, stages: Stages::new(tell, is_agent, tells_stderr), ends: HashMap::new(), refusal: None }
    }

    /// Does what a message asks for; gives back one that is no pipeline's. Does not wait.
    pub(crate) fn handle(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Stage(stage) => self.stages.take(*stage),
            Message::StartStages => {
                self.refusal = None;
                self.stages.start();
            }
            Message::EndStage { stage, signal } => self.stages.signal(stage, signal),
            Message::ForEnd { end, message } => {
                if let Ok(Some(message)) = message.decode() {
                    self.handle_for(end, message);
                }
            }
            other => return Some(other),
        }
        None
    }

    fn handle_for(&mut self, number: u32, message: Message) {
        match message {
            Message::Begin(begin) => self.begin(number, *begin),
            message => {
                if let Some(end) = self.ends.get_mut(&number) {
                    end.handle(message);
                }
            }
        }
    }

    fn begin(&mut self, number: u32, begin: Begin) {
        if self.ends.len() >= ENDS_MAX {
            return;
        }
        let emit = Arc::clone(&self.emit);
        let say = move |message: Message| {
            // One that is too long does not exist; nobody would be helped by a panic.
            if let Ok(message) = message.for_end(number) {
                emit(message);
            }
        };
        if let Some(reason) = self.refusal(begin.options.lanes) {
            return say(ended_with(Fault::plain(Exit::Usage.code(), reason)));
        }
        let hop = match begin.job {
            Job::SendStage { stage } => self.stages.attach_outlet(stage).map(AtHop::Out),
            Job::ReceiveStage { stage } => self.stages.attach_inlet(stage).map(AtHop::In),
            _ => Some(AtHop::Standard),
        };
        let mut end = End::new(Arc::new(say), self.is_agent);
        end.begin(begin, hop);
        self.ends.insert(number, end);
    }

    /// Why this host has no room for the stages that wait, which are all of a part's by the time that the first session is
    /// begun.
    fn refusal(&mut self, lanes: Option<u8>) -> Option<String> {
        let (stages, ends) = self.stages.waiting();
        let threads = work::threads_max(usize::from(lanes.unwrap_or(TCP_LANES_DEFAULT)));
        self.refusal.get_or_insert_with(|| Share { stages, ends, threads }.is_too_much()).clone()
    }

    /// A session lost its other end, and nothing else goes on: the caller may be out of reach as well.
    pub(crate) fn has_lost_its_link(&self) -> bool {
        self.ends.values().any(End::has_lost_its_link)
    }

    /// Ends everything: sessions as by this signal, then the stages. Gives them the time that they need for that.
    pub(crate) fn stop(&mut self, number: u8) {
        for end in self.ends.values() {
            end.stop(number);
        }
        let deadline = Instant::now() + STOP_MAX;
        while self.ends.values().any(End::is_busy) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stages.end();
    }

    /// All is done. What stages have left running is given a little time.
    pub(crate) fn finish(&mut self) {
        self.stages.end();
    }

    /// Whether a session has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.ends.values().any(End::is_busy)
    }

    /// Has the sessions tell their other ends that this process is being stopped, and stops it.
    pub(crate) fn suspend(&self) {
        for end in self.ends.values().filter(|end| end.is_busy()) {
            end.stop(libc::SIGTSTP as u8);
        }
    }
}
