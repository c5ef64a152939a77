//! The log of events, for `-vv`, `RDMA_PIPE_LOG` and `--trace`. No chunk is logged, so that logging holds up no data.
//! When no log is asked for, a line costs one load of an atomic number.
//!
//! A process has one log. A command writes its log, and an agent sends its log to its caller:
//! [`start`] sets the target.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Messages that the command prints anyway.
    Info = 1,
    /// What happens to sessions, and why.
    Debug = 2,
    /// What happens to each file, and why.
    Trace = 3,
}

impl Level {
    /// The level's name in a log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// Returns the level with this number, which may come from another host.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 | 1 => Self::Info,
            2 => Self::Debug,
            3.. => Self::Trace,
        }
    }
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An agent is started.
    Launch,
    /// The two ends of a session find each other.
    Meet,
    /// One end of a session, from its first lane to its end.
    Session,
    /// The two ends agree on the session.
    Connect,
    /// Data is transferred.
    Transfer,
    /// All data has arrived, and the receiver must confirm it.
    Verify,
    /// Received data gets its final place and name.
    Publish,
}

impl Step {
    /// All steps. The position of a step here is its number in messages.
    pub const ALL: [Self; 7] =
        [Self::Launch, Self::Meet, Self::Session, Self::Connect, Self::Transfer, Self::Verify, Self::Publish];

    /// The step's name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Meet => "meet",
            Self::Session => "session",
            Self::Connect => "connect",
            Self::Transfer => "transfer",
            Self::Verify => "verify",
            Self::Publish => "publish",
        }
    }
}

/// Whether an entry begins or ends a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Neither.
    Moment,
    /// A step begins.
    Begin(Step),
    /// A step ends.
    End(Step),
}

/// An entry of the log. Names of hosts and files in it are not escaped: escape them before printing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time of the event, as returned by [`now`].
    pub at: u64,
    /// The host that logged the event; `None` for this host.
    pub host: Option<String>,
    /// The lowest level at which the event is logged.
    pub level: Level,
    /// The session or host that the entry is about; may be empty.
    pub about: String,
    /// Whether a step begins or ends with the event.
    pub mark: Mark,
    /// Description of the event.
    pub text: String,
}

type Take = Arc<dyn Fn(Entry) + Send + Sync>;

static LEVEL: AtomicU8 = AtomicU8::new(0);
static TAKE: Mutex<Option<Take>> = Mutex::new(None);

/// From now on, passes every entry up to `level` to `take`, which must not block.
pub fn start(level: Level, take: impl Fn(Entry) + Send + Sync + 'static) {
    *crate::locked(&TAKE) = Some(Arc::new(take));
    LEVEL.store(level as u8, Ordering::Release);
}

/// Ends the log.
pub fn stop() {
    LEVEL.store(0, Ordering::Release);
    *crate::locked(&TAKE) = None;
}

/// Returns the level of the log; `None` if there is no log.
pub fn level() -> Option<Level> {
    Some(LEVEL.load(Ordering::Relaxed)).filter(|&number| number > 0).map(Level::from_number)
}

/// Whether entries of this level are logged.
pub fn is_on(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// The log's clock: microseconds since 1970 as [`system`] has them at the first call, and then as time passes. It never
/// goes back, even if the system's clock is changed, and stands still while the host sleeps.
pub fn now() -> u64 {
    static BEGAN: OnceLock<(Instant, u64)> = OnceLock::new();
    let (began, then) = BEGAN.get_or_init(|| (Instant::now(), system()));
    then + began.elapsed().as_micros() as u64
}

/// The system's clock: microseconds since 1970.
pub fn system() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Logs what happens to a session or a host, or to the whole run if `about` is empty.
pub fn debug(about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::Moment, text);
}

/// Logs what happens to a file.
pub fn trace(about: &str, text: impl FnOnce() -> String) {
    say(Level::Trace, about, Mark::Moment, text);
}

/// Logs a message that the command prints anyway.
pub fn info(text: impl FnOnce() -> String) {
    say(Level::Info, "", Mark::Moment, text);
}

/// Logs the beginning of a step of `about`.
pub fn begin(step: Step, about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::Begin(step), text);
}

/// Logs the end of a step of `about`.
pub fn end(step: Step, about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::End(step), text);
}

fn say(level: Level, about: &str, mark: Mark, text: impl FnOnce() -> String) {
    if !is_on(level) {
        return;
    }
    pass(Entry { at: now(), host: None, level, about: about.to_owned(), mark, text: text() });
}

/// Adds an entry, which may come from another host.
pub fn pass(entry: Entry) {
    let take = crate::locked(&TAKE).clone().filter(|_| is_on(entry.level));
    if let Some(take) = take {
        take(entry);
    }
}
