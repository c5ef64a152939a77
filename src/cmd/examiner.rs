//! What an end does for `rddoctor`: finds out what its host is like, opens ports to be tried, and tries those of another.

use crate::control::frames::{Fault, Message};
use crate::control::tunnel::Emit;
use crate::measure::door::{self, Door, Sought};
use crate::measure::gather;

use super::exit::Exit;

/// One end's examiner.
pub(super) struct Examiner {
    emit: Emit,
    /// Open until the next one, or a session.
    door: Option<Box<Door>>,
}

impl Examiner {
    /// `emit` takes its answers and must not wait.
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit, door: None }
    }

    /// Closes what is open.
    pub(super) fn rest(&mut self) {
        self.door = None;
    }

    /// Does what a message asks for; what takes long is done by a thread.
    pub(super) fn handle(&mut self, message: Message) {
        match message {
            Message::Examine => self.work("examine", |emit| emit(Message::Examined(gather::here().encode()))),
            Message::OpenDoor { ports } => {
                self.door = None;
                let opened = Door::open(ports.map(|(first, last)| first..=last));
                (self.emit)(match &opened {
                    Ok(door) => Message::DoorOpened(door.sign.encode()),
                    Err(reason) => Message::Failed(Fault::plain(Exit::Connect.code(), reason.clone())),
                });
                self.door = opened.ok().map(Box::new);
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
