//! Telling a person without waiting for the terminal: one that is stopped by ^S, or whose reader is gone, must not hold up
//! the session, which has heartbeats to send and signals to heed.

use std::time::Duration;

use flume::{Receiver, Sender, bounded};
use rd_proto::session::{Counters, Notice};

use crate::engine::{Monitor, Waits};
use crate::transport::Medium;

/// What may wait to be told; what comes beyond that is not told.
const WAITING_MAX: usize = 64;

/// For how long the end waits for what is still to be told.
const LAST_MAX: Duration = Duration::from_millis(500);

/// A [`Monitor`] in front of another, which has a thread of its own.
pub(crate) struct Aside {
    lines: Option<Sender<Told>>,
    /// Closed when the thread has told everything and let go of its monitor.
    over: Receiver<()>,
}

enum Told {
    Notice(Notice, Option<String>),
    LaneUp(Medium, String),
    Progress(Counters, Waits),
}

impl Aside {
    /// # Errors
    ///
    /// No thread can be had.
    pub(crate) fn start(mut monitor: impl Monitor + Send + 'static) -> std::io::Result<Self> {
        let (lines, told) = bounded(WAITING_MAX);
        let (running, over) = bounded(0);
        let tell = move || {
            let _running: Sender<()> = running;
            for told in told {
                match told {
                    Told::Notice(notice, reason) => monitor.notice(notice, reason.as_deref()),
                    Told::LaneUp(medium, description) => monitor.lane_up(medium, &description),
                    Told::Progress(counters, waits) => monitor.progress(&counters, &waits),
                }
            }
            // Takes its bar away before anybody may go on.
            drop(monitor);
        };
        std::thread::Builder::new().name("terminal".to_owned()).stack_size(256 << 10).spawn(tell)?;
        Ok(Self { lines: Some(lines), over })
    }

    fn tell(&self, told: Told) {
        let _ = self.lines.as_ref().expect("until it is dropped").try_send(told);
    }
}

impl Monitor for Aside {
    fn notice(&mut self, notice: Notice, reason: Option<&str>) {
        self.tell(Told::Notice(notice, reason.map(str::to_owned)));
    }

    fn lane_up(&mut self, medium: Medium, description: &str) {
        self.tell(Told::LaneUp(medium, description.to_owned()));
    }

    fn progress(&mut self, counters: &Counters, waits: &Waits) {
        self.tell(Told::Progress(*counters, *waits));
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.over.recv_timeout(LAST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    /// Says what it is told, and how far it has come, once it may.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<u64>);

    impl Monitor for Slow {
        fn notice(&mut self, _: Notice, _: Option<&str>) {}
        fn lane_up(&mut self, _: Medium, _: &str) {}
        fn progress(&mut self, counters: &Counters, _: &Waits) {
            let _ = self.0.recv();
            let _ = self.1.send(counters.bytes);
        }
    }

    #[test]
    fn a_terminal_that_takes_nothing_holds_nobody_up() {
        let (go, may_go) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let mut aside = Aside::start(Slow(may_go, say)).expect("a thread");
        let start = Instant::now();
        for bytes in 0..1000 {
            aside.progress(&Counters { bytes, ..Counters::default() }, &Waits::default());
        }
        drop(aside);
        assert!(start.elapsed() < LAST_MAX + Duration::from_secs(2), "{:?}", start.elapsed());
        drop(go);
        let said: Vec<u64> = said.iter().collect();
        assert!(said.len() <= WAITING_MAX + 1 && said[0] == 0, "{said:?}");
    }

    #[test]
    fn what_was_told_is_out_when_it_is_over() {
        let (go, may_go) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let mut aside = Aside::start(Slow(may_go, say)).expect("a thread");
        drop(go);
        aside.progress(&Counters { bytes: 7, ..Counters::default() }, &Waits::default());
        drop(aside);
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [7]);
    }
}
