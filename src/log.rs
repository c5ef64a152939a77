//! What happens, for `-vv`, `RDMA_PIPE_LOG` and `--trace`. Nothing is logged for each chunk, so that logging holds up no data;
//! where no log is asked for, a line costs one load of an atomic number.
//!
//! A process has one log. A command writes it, an agent sends it to its caller: [`start`] says where.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What the command prints anyway.
    Info = 1,
    /// What becomes of sessions, and why.
    Debug = 2,
    /// The same of each file.
    Trace = 3,
}

impl Level {
    /// As a log names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// The level with this number, which may come from another host.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 | 1 => Self::Info,
            2 => Self::Debug,
            3.. => Self::Trace,
        }
    }
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An agent is started.
    Launch,
    /// The two ends of a session find each other.
    Meet,
    /// One end of a session, from its first lane to its end.
    Session,
    /// Both ends agree.
    Connect,
    /// Data moves.
    Transfer,
    /// All data is there, and the receiver is to answer for it.
    Verify,
    /// What has arrived gets its place and its name.
    Publish,
}

impl Step {
    /// All of them; their places here are their numbers in messages.
    pub const ALL: [Self; 7] =
        [Self::Launch, Self::Meet, Self::Session, Self::Connect, Self::Transfer, Self::Verify, Self::Publish];

    /// As a trace names it.
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

/// What an entry says of the steps of what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Moment,
    /// One begins.
    Begin(Step),
    /// One ends.
    End(Step),
}

/// One thing that has happened. Names of hosts and files are in it as they are: escape them before printing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, as [`now`] has it.
    pub at: u64,
    /// The host that says it; `None` for this one.
    pub host: Option<String>,
    /// From which level on it is logged.
    pub level: Level,
    /// The session or host that it is about; may be empty.
    pub about: String,
    /// Which step begins or ends with it.
    pub mark: Mark,
    /// What has happened.
    pub text: String,
}

type Take = Arc<dyn Fn(Entry) + Send + Sync>;

static LEVEL: AtomicU8 = AtomicU8::new(0);
static TAKE: Mutex<Option<Take>> = Mutex::new(None);

/// From now on everything up to `level` goes to `take`, which must not block.
pub fn start(level: Level, take: impl Fn(Entry) + Send + Sync + 'static) {
    *TAKE.lock().expect("no panic with it locked") = Some(Arc::new(take));
    LEVEL.store(level as u8, Ordering::Release);
}

/// Ends the log.
pub fn stop() {
    LEVEL.store(0, Ordering::Release);
    *TAKE.lock().expect("no panic with it locked") = None;
}

/// The level of the log; `None` where there is none.
pub fn level() -> Option<Level> {
    Some(LEVEL.load(Ordering::Relaxed)).filter(|&number| number > 0).map(Level::from_number)
}

/// Whether this level is logged.
pub fn is_on(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// This host's clock: microseconds since 1970. It never goes back, whatever is done to the system's.
pub fn now() -> u64 {
    static BEGAN: OnceLock<(Instant, u64)> = OnceLock::new();
    let micros = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let (began, then) = BEGAN.get_or_init(|| (Instant::now(), micros()));
    then + began.elapsed().as_micros() as u64
}

/// Logs what has become of a session, a host or the whole (`about` is empty).
pub fn debug(about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::Moment, text);
}

/// Logs what happens to a file.
pub fn trace(about: &str, text: impl FnOnce() -> String) {
    say(Level::Trace, about, Mark::Moment, text);
}

/// Logs what the command prints anyway.
pub fn info(text: impl FnOnce() -> String) {
    say(Level::Info, "", Mark::Moment, text);
}

/// A step of what it is about begins.
pub fn begin(step: Step, about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::Begin(step), text);
}

/// A step of what it is about ends.
pub fn end(step: Step, about: &str, text: impl FnOnce() -> String) {
    say(Level::Debug, about, Mark::End(step), text);
}

fn say(level: Level, about: &str, mark: Mark, text: impl FnOnce() -> String) {
    if !is_on(level) {
        return;
    }
    pass(Entry { at: now(), host: None, level, about: about.to_owned(), mark, text: text() });
}

/// Adds what another host has said.
pub fn pass(entry: Entry) {
    let take = TAKE.lock().expect("no panic with it locked").clone().filter(|_| is_on(entry.level));
    if let Some(take) = take {
        take(entry);
    }
}
