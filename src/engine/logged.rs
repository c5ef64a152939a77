//! The log of a session: what happens to its lanes and why, what the transfer waits for, and how the session ends.

use std::time::{Duration, Instant};

use rd_proto::control::{Path, Policy, RdmaKind, Role};
use rd_proto::handshake::LaneId;
use rd_proto::session::{Agreed, Counters, Notice, Outcome};

use super::account::{Wait, Waits};
use super::session::NotBegun;
use super::summary::{Figures, Observer, SessionEvent, Summary};
use crate::log::{self, Level, Step};

/// How often the rate and its limit are compared with those logged last.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Factor by which a rate must have changed to be logged again.
const CHANGE: f64 = 2.0;

/// Observer that logs what happens in a session, and passes it on to another observer.
pub(super) struct Logged {
    inner: Box<dyn Observer>,
    about: String,
    is_sender: bool,
    /// Steps that have begun. Each step begins only once.
    steps: Vec<Step>,
    looked: Instant,
    bytes: u64,
    waits: Waits,
    /// The rate and what limited it, as logged last.
    logged: Option<(f64, Wait)>,
}

/// Returns the name of a session with `peer` in the log.
pub(super) fn about(role: Role, peer: &str) -> String {
    match role {
        Role::Sender => format!("to {peer}"),
        Role::Receiver => format!("from {peer}"),
    }
}

impl Logged {
    /// Puts a log in front of an observer, if a log is asked for.
    pub(super) fn before(about: &str, role: Role, inner: Box<dyn Observer>) -> Box<dyn Observer> {
        if !log::is_on(Level::Debug) {
            return inner;
        }
        let (about, is_sender) = (about.to_owned(), role == Role::Sender);
        let (steps, bytes, waits, logged) = Default::default();
        Box::new(Self { inner, about, is_sender, steps, looked: Instant::now(), bytes, waits, logged })
    }

    fn say(&self, text: impl FnOnce() -> String) {
        log::debug(&self.about, text);
    }

    fn begin(&mut self, step: Step) {
        self.steps.push(step);
        let text = match (step, self.is_sender) {
            (Step::Verify, true) => "all data was accepted; the receiver has the digest",
            (Step::Verify, false) => "all data has arrived; comparing the digests",
            (Step::Connect, _) => "exchanging offers",
            (Step::Transfer, _) => "starting the transfer",
            (Step::Publish, _) => "publishing",
            (step, _) => step.name(),
        };
        log::begin(step, &self.about, || text.to_owned());
    }

    fn end(&self, step: Step) {
        let text = match step {
            Step::Connect => "both ends are ready",
            Step::Verify => "the digests match",
            Step::Publish => "published",
            step => step.name(),
        };
        log::end(step, &self.about, || text.to_owned());
    }

    fn notice(&self, notice: Notice, reason: Option<&str>) {
        let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        self.say(|| match notice {
            Notice::FellBack => format!("cannot use RDMA, switching to TCP{because}"),
            Notice::BackOnRdma => "switching back to RDMA".to_owned(),
            Notice::LinkLost => format!("lost the link, no lane left{because}"),
            Notice::LinkRestored => "the link is restored".to_owned(),
            Notice::LaneLost(lane) => format!("lost lane {}{because}", name(lane)),
            Notice::RailLeft(path, rail) => format!("{}rail {rail} failed{because}", of_path(path)),
            Notice::RailSlow(path, rail) => format!("{}rail {rail} carries too little{because}", of_path(path)),
            Notice::RailBack(path, rail) => format!("{}rail {rail} is back{because}", of_path(path)),
        });
    }

    /// Logs the rate and what limits it, if either has changed.
    fn look(&mut self, counters: Counters, waits: Waits) {
        let passed = self.looked.elapsed();
        if passed < LOOK_EVERY {
            return;
        }
        let rate = counters.bytes.saturating_sub(self.bytes) as f64 / passed.as_secs_f64();
        let lately = waits.since(self.waits);
        (self.looked, self.bytes, self.waits) = (Instant::now(), counters.bytes, waits);
        let Some(limiter) = lately.limiter() else { return };
        let what = limiter.what;
        let has_changed = self.logged.is_none_or(|(before, of)| {
            of != what || (rate > 0.0) != (before > 0.0) || rate > CHANGE * before || rate * CHANGE < before
        });
        if !has_changed {
            return;
        }
        self.logged = Some((rate, what));
        let name = if what == Wait::Limit { "--bwlimit" } else { what.name() };
        let share = limiter.share * 100.0;
        self.say(|| match rate > 0.0 {
            true => format!("{:.1} MB/s, limited by {name} for {share:.0} % of the time", rate / 1e6),
            false => format!("stalled, waiting for {name}"),
        });
    }
}

impl Observer for Logged {
    fn observe(&mut self, event: SessionEvent) {
        match &event {
            SessionEvent::Notice(notice, reason) => self.notice(*notice, reason.as_deref()),
            SessionEvent::Progress(counters, waits) => self.look(*counters, *waits),
            SessionEvent::NoDevice { host } => {
                let host = host.as_deref().unwrap_or("this host");
                self.say(|| format!("no RDMA device on {host}; using TCP"));
            }
            SessionEvent::LockedMemory { limit_bytes, .. } => {
                self.say(|| format!("the limit on locked memory is {} KiB", limit_bytes >> 10));
            }
            SessionEvent::OneRail(why) => self.say(|| format!("no other rail: {why}")),
            SessionEvent::LaneUp(lane, _, description) => {
                self.say(|| format!("lane {} is up: {description}", name(*lane)));
            }
            // These are for the log alone: an observer may drop events that come too fast.
            SessionEvent::Dialing(lane) => return self.say(|| format!("dialing lane {}", name(*lane))),
            SessionEvent::DialFailed(lane, why) => {
                return self.say(|| format!("cannot open lane {}: {why}", name(*lane)));
            }
            SessionEvent::Rail(path, rail, text) => {
                return self.say(|| format!("{}rail {rail}: {text}", of_path(*path)));
            }
            // Frames that begin a step are repeated when lanes are lost.
            SessionEvent::StepBegins(step) if self.steps.contains(step) => return,
            SessionEvent::StepBegins(step) => return self.begin(*step),
            SessionEvent::StepEnds(step) => return self.end(*step),
            SessionEvent::Begun { .. } => {}
        }
        self.inner.observe(event);
    }
}

fn of_path(path: Path) -> &'static str {
    match path {
        Path::Tcp => "",
        Path::Rdma => "RDMA ",
    }
}

fn name(lane: LaneId) -> String {
    format!("{}.{}", lane.index, lane.generation)
}

/// Logs what the two ends have agreed on.
pub(super) fn agreed(about: &str, agreed: &Agreed, rdma: [RdmaKind; 2]) {
    log::debug(about, || {
        let Agreed { policy, try_rdma, seal_tcp, seal_rdma, tcp_lanes, rdma_lanes, chunk_bytes, reconnect, .. } =
            agreed;
        let chunk_kib = chunk_bytes >> 10;
        let devices = rdma.map(|kind| match kind {
            RdmaKind::None => "none",
            RdmaKind::Software => "software",
            RdmaKind::Hardware => "hardware",
        });
        let transport = match (try_rdma, policy) {
            (true, _) => format!("RDMA over {rdma_lanes} lanes, or else TCP over {tcp_lanes}"),
            (false, Policy::Tcp) => format!("TCP over {tcp_lanes} lanes, as requested"),
            (false, _) => format!("TCP over {tcp_lanes} lanes (RDMA here: {}, there: {})", devices[0], devices[1]),
        };
        let sealed = match (seal_tcp, seal_rdma) {
            (true, true) => "encrypted",
            (false, false) => "not encrypted",
            (true, false) => "encrypted over TCP only",
            (false, true) => "encrypted over RDMA only",
        };
        format!(
            "agreed: {transport}; {sealed}; chunks of {chunk_kib} KiB; {} s to restore a lost link",
            reconnect.as_secs()
        )
    });
}

/// Logs how a session ended.
pub(super) fn ended(about: &str, ended: Result<&Summary, &NotBegun>) {
    log::end(Step::Session, about, || match ended {
        Ok(Summary { outcome: Outcome::Done, figures: Figures { counters, seconds, .. }, .. }) => {
            format!("done: {} bytes in {seconds:.3} s, confirmed by the receiver", counters.bytes)
        }
        Ok(Summary { outcome, reason, .. }) => {
            let because = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let how = match outcome {
                Outcome::Done => "done",
                Outcome::LinkLost { .. } => "link lost",
                Outcome::NoRdma => "no RDMA connection",
                Outcome::Aborted(_) => "this end gave up",
                Outcome::PeerAborted(_) => "the other end gave up",
            };
            format!("failed: {how}{because}")
        }
        Err(NotBegun { obstacle, .. }) => format!("not started: {obstacle}"),
    });
}
