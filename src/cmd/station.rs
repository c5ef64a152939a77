//! What one host does in a pipeline: its stages, and the ends of the sessions between them. An agent has one of these
//! behind its channel, and the caller one for what is on its own host.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::end::{AtHop, End};
use crate::control::frames::{Begin, Job, Message, STAGES_MAX};
use crate::control::stages::Stages;
use crate::control::tunnel::Emit;

/// Ends of sessions that one host has at most: each stage has two.
const ENDS_MAX: usize = 2 * STAGES_MAX;

/// How long sessions may take to tell their other ends that they are over.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The part of one host.
pub(super) struct Station {
    emit: Emit,
    is_agent: bool,
    stages: Stages,
    ends: HashMap<u32, End>,
}

impl Station {
    /// `emit` takes what this host says; `tell` what its stages tell, and may wait there for whoever reads it;
    /// standard error is among it or is this process's own.
    pub(super) fn new(emit: Emit, tell: Emit, is_agent: bool, tells_stderr: bool) -> Self {
        Self { emit, is_agent, stages: Stages::new(tell, is_agent, tells_stderr), ends: HashMap::new() }
    }

    /// Does what a message asks for; gives back one that is no pipeline's. Does not wait.
    pub(super) fn handle(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Stage(stage) => self.stages.take(*stage),
            Message::StartStages => self.stages.start(),
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
        let hop = match begin.job {
            Job::SendStage { stage } => self.stages.attach_outlet(stage).map(AtHop::Out),
            Job::ReceiveStage { stage } => self.stages.attach_inlet(stage).map(AtHop::In),
            _ => Some(AtHop::Standard),
        };
        let mut end = End::new(Arc::new(say), self.is_agent);
        end.begin(begin, hop);
        self.ends.insert(number, end);
    }

    /// A session lost its other end, and nothing else goes on: the caller may be out of reach as well.
    pub(super) fn has_lost_its_link(&self) -> bool {
        self.ends.values().any(End::has_lost_its_link)
    }

    /// Ends everything: sessions as by this signal, then the stages. Gives them the time that they need for that.
    pub(super) fn stop(&mut self, number: u8) {
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
    pub(super) fn finish(&mut self) {
        self.stages.end();
    }

    /// Whether a session has not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.ends.values().any(End::is_busy)
    }

    /// Has the sessions tell their other ends that this process is being stopped, and stops it.
    pub(super) fn suspend(&self) {
        for end in self.ends.values().filter(|end| end.is_busy()) {
            end.stop(libc::SIGTSTP as u8);
        }
    }
}
