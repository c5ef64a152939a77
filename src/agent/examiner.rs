//! What an end does for `rddoctor`: finds out what its host is like, opens ports to be tried, and tries those of another.

use std::sync::{Arc, Mutex};

use crate::control::frames::{Fault, Message};
use crate::control::tunnel::Emit;
use crate::measure::door::{self, Door, Sought};
use crate::measure::gather;

use crate::fault::Exit;

/// One end's examiner.
pub(crate) struct Examiner {
    emit: Emit,
    /// Open until the next one, or a session.
    door: Arc<Mutex<Option<Door>>>,
}

impl Examiner {
    /// `emit` takes its answers and must not wait.
    pub(crate) fn new(emit: Emit) -> Self {
        Self { emit, door: Arc::default() }
    }

    /// Closes what is open.
    pub(crate) fn rest(&self) {
        let door = self.door.lock().expect("no panic with it locked").take();
        drop(door);
    }

    /// Does what a message asks for; what takes long is done by a thread.
    pub(crate) fn handle(&self, message: Message) {
        match message {
            Message::Examine => self.work("examine", |emit| emit(Message::Examined(gather::here().encode()))),
            Message::OpenDoor { ports } => {
                self.rest();
                let door = Arc::clone(&self.door);
                // A device that has failed may keep whoever listens on it.
                self.work("door", move |emit| match Door::open(ports.map(|(first, last)| first..=last)) {
                    Ok(opened) => {
                        let sign = opened.sign.encode();
                        *door.lock().expect("no panic with it locked") = Some(opened);
                        emit(Message::DoorOpened(sign));
                    }
                    Err(reason) => emit(Message::Failed(Fault::plain(Exit::Connect.code(), reason))),
                });
            }
            Message::Knock(bytes) => self.work("knock", move |emit| {
                let knocks = Sought::decode(&bytes).map(|sought| door::knock(&sought)).unwrap_or_default();
                emit(Message::Knocked(door::encode_knocks(&knocks)));
            }),
            _ => {}
        }
    }

    fn work(&self, name: &str, work: impl FnOnce(&Emit) + Send + 'static) {
        let emit = Emit::clone(&self.emit);
        let run = move || work(&emit);
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            let detail = format!("cannot start a thread: {error}");
            (self.emit)(Message::Failed(Fault::plain(Exit::Connect.code(), detail)));
        }
    }
}
