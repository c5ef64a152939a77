//! Shows what happens without waiting for the terminal. A terminal that is stopped by ^S, or whose reader is gone, must
//! not delay the session, which has heartbeats to send and signals to handle.

use std::time::Duration;

use flume::{Receiver, Sender, bounded};

use crate::engine::{Observer, SessionEvent};

/// Maximum number of events waiting to be shown; further events are dropped.
const WAITING_MAX: usize = 64;

/// How long the end of a command waits for events still to be shown.
const LAST_MAX: Duration = Duration::from_millis(500);

/// An [`Observer`] that passes events on to another observer in a separate thread.
pub(crate) struct NonBlocking {
    events: Option<Sender<SessionEvent>>,
    /// Closed when the thread has shown everything and dropped its observer.
    over: Receiver<()>,
}

impl NonBlocking {
    /// Puts a non-blocking observer in front of `observer`. If no thread can be started, nothing is shown.
    pub(crate) fn start(mut observer: impl Observer + 'static) -> Box<dyn Observer> {
        let (events, observed) = bounded(WAITING_MAX);
        let (running, over) = bounded(0);
        let show = move || {
            let _running: Sender<()> = running;
            observed.into_iter().for_each(|event| observer.observe(event));
            // Clears the progress bar before the caller may continue.
            drop(observer);
        };
        let _ = std::thread::Builder::new().name("terminal".to_owned()).stack_size(256 << 10).spawn(show);
        Box::new(Self { events: Some(events), over })
    }
}

impl Observer for NonBlocking {
    fn observe(&mut self, event: SessionEvent) {
        let _ = self.events.as_ref().expect("until it is dropped").try_send(event);
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        self.events = None;
        let _ = self.over.recv_timeout(LAST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use rd_proto::session::Counters;

    use super::*;
    use crate::engine::Waits;

    /// An observer that waits for permission, and then says how far it has come.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<u64>);

    impl Observer for Slow {
        fn observe(&mut self, event: SessionEvent) {
            let SessionEvent::Progress(counters, _) = event else { return };
            let _ = self.0.recv();
            let _ = self.1.send(counters.bytes);
        }
    }

    fn progress(bytes: u64) -> SessionEvent {
        SessionEvent::Progress(Counters { bytes, ..Counters::default() }, Waits::default())
    }

    #[test]
    fn a_terminal_that_takes_nothing_holds_nothing_up() {
        let (go, may_go) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let mut observer = NonBlocking::start(Slow(may_go, say));
        let start = Instant::now();
        (0..1000).for_each(|bytes| observer.observe(progress(bytes)));
        drop(observer);
        assert!(start.elapsed() < LAST_MAX + Duration::from_secs(2), "{:?}", start.elapsed());
        drop(go);
        let said: Vec<u64> = said.iter().collect();
        assert!(said.len() <= WAITING_MAX + 1 && said[0] == 0, "{said:?}");
    }

    #[test]
    fn what_happened_is_shown_when_it_is_over() {
        let (go, may_go) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let mut observer = NonBlocking::start(Slow(may_go, say));
        drop(go);
        observer.observe(progress(7));
        drop(observer);
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [7]);
    }
}
