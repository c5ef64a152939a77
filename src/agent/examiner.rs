//! Examines hosts for `rddoctor`: gathers facts about the agent's own host, opens ports for another host to try, and
//! tries the ports of another host.

use std::sync::{Arc, Mutex};

use super::in_thread;
use crate::control::frames::{Fault, Message};
use crate::control::tunnel::Emit;
use crate::measure::probe::{self, Probe};
use crate::measure::{self, gather};

use crate::fault::Exit;

/// The examiner of an agent.
pub(crate) struct Examiner {
    emit: Emit,
    /// The open probe. It is closed by the next probe or by a session.
    probe: Arc<Mutex<Option<Probe>>>,
}

impl Examiner {
    /// Makes an examiner. `emit` sends its answers and must not block.
    pub(crate) fn new(emit: Emit) -> Self {
        Self { emit, probe: Arc::default() }
    }

    /// Closes the open probe.
    pub(crate) fn rest(&self) {
        let probe = self.probe.lock().expect("no panic with it locked").take();
        drop(probe);
    }

    /// Handles a request. Slow work is done on a separate thread.
    pub(crate) fn handle(&self, message: Message) {
        let emit = &self.emit;
        match message {
            Message::Examine => in_thread("examine", emit, |emit| {
                emit(Message::Examined(measure::encode(&gather::here())));
            }),
            Message::OpenProbe { ports } => {
                self.rest();
                let probe = Arc::clone(&self.probe);
                // A failed device may block the thread that listens on it.
                in_thread("probe", emit, move |emit| match Probe::open(ports.map(|(first, last)| first..=last)) {
                    Ok(opened) => {
                        let targets = measure::encode(&opened.targets);
                        *probe.lock().expect("no panic with it locked") = Some(opened);
                        emit(Message::ProbeOpened(targets));
                    }
                    Err(reason) => emit(Message::Failed(Fault::plain(Exit::Connect.code(), reason))),
                });
            }
            Message::Probe(bytes) => in_thread("probe", emit, move |emit| {
                let attempts = measure::decode(&bytes).map(|request| probe::try_all(&request)).unwrap_or_default();
                emit(Message::Probed(measure::encode(&attempts)));
            }),
            _ => {}
        }
    }
}
