//! Examines hosts for `rddoctor`: gathers facts about the agent's own host, opens ports for another host to try, and
//! tries the ports of another host.

use std::sync::{Arc, Mutex};

use super::in_thread;
use crate::control::frames::{Fault, Message};
use crate::control::tunnel::Emit;
use crate::measure::probe::{self, Probe};
use crate::measure::{self, gather};

use crate::fault::Exit;

/// The open probe of an agent. It is closed by the next probe or by a session.
pub(super) type OpenProbe = Arc<Mutex<Option<Probe>>>;

/// Closes the open probe.
pub(super) fn close(open: &OpenProbe) {
    let probe = crate::locked(open).take();
    drop(probe);
}

/// Handles a request. Slow work is done on a separate thread. `emit` sends the answers and must not block.
pub(super) fn handle(message: Message, emit: &Emit, open: &OpenProbe) {
    match message {
        Message::Examine => in_thread("examine", emit, |emit| {
            emit(Message::Examined(measure::encode(&gather::here())));
        }),
        Message::OpenProbe { ports } => {
            close(open);
            let probe = Arc::clone(open);
            // A failed device may block the thread that listens on it.
            in_thread("probe", emit, move |emit| match Probe::open(ports.map(|(first, last)| first..=last)) {
                Ok(opened) => {
                    let targets = measure::encode(&opened.targets);
                    *crate::locked(&probe) = Some(opened);
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
