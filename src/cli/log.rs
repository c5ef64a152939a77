//! The log of a run, for `-vv`, `-vvv` and `RDMA_PIPE_LOG`: the lines of all its hosts in one place, in order of time.
//! `--trace` draws the same entries.
//!
//! A line is held for a moment, because an earlier line of another host may still be on its way. Text from other hosts
//! is escaped here and nowhere else. A slow reader of the log delays nothing: lines that do not fit are left out, and
//! counted.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::fault::{Exit, Failure, escaped, printable};
use crate::log::{self, Entry, Level};

/// The environment variable that asks for a log.
pub(crate) const VARIABLE: &str = "RDMA_PIPE_LOG";

/// How long a line waits for earlier lines of other hosts.
const HOLD: Duration = Duration::from_millis(250);

/// Maximum number of lines waiting to be written.
const HELD_MAX: usize = 20_000;

/// Maximum number of entries kept for a trace.
const KEPT_MAX: usize = 50_000;

/// How long a command that ends waits for the reader of its log.
const LAST_MAX: Duration = Duration::from_secs(1);

/// How far the system's clock may be from the log's before the times of lines follow it: it was set, or the host slept.
const APART_MAX: Duration = Duration::from_secs(1);

/// Where the log is written.
enum Out {
    StandardError,
    File(File),
}

/// The log of this process.
struct Book {
    state: Mutex<State>,
    changed: Condvar,
    own_host: String,
}

#[derive(Default)]
struct State {
    /// Entries waiting to be written, by time and then by the order in which they came.
    held: BTreeMap<(u64, u64), Entry>,
    came: u64,
    left_out: u64,
    /// Time of the line written last.
    written: u64,
    /// The level up to which entries are written.
    writes: Option<Level>,
    /// Whether the log is written to standard error, where the command's own messages appear too.
    is_seen: bool,
    keeps: bool,
    kept: Vec<Entry>,
    kept_left_out: u64,
    is_closing: bool,
    is_over: bool,
}

static BOOK: Mutex<Option<Arc<Book>>> = Mutex::new(None);

/// The file to which the log is written, if any.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Returns the file to which the log is written, if any.
pub(crate) fn file() -> Option<&'static PathBuf> {
    FILE.get()
}

/// The entries that a run has logged, for its trace.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) entries: Vec<Entry>,
    pub(crate) left_out: u64,
}

/// The level and the file requested by [`VARIABLE`].
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    level: Level,
    file: Option<OsString>,
}

/// Parses `LEVEL` or `LEVEL:FILE`; `None` for `off`.
fn asked(value: &OsStr) -> Result<Option<Asked>, String> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = value.as_bytes();
    let colon = bytes.iter().position(|&byte| byte == b':');
    let (level, file) = (&bytes[..colon.unwrap_or(bytes.len())], colon.map(|at| OsStr::from_bytes(&bytes[at + 1..])));
    let level = match level {
        b"" | b"off" if file.is_none() => return Ok(None),
        b"info" => Level::Info,
        b"debug" => Level::Debug,
        b"trace" => Level::Trace,
        _ => {
            return Err(format!(
                "{VARIABLE}={}: expected off, or info, debug or trace, optionally with :FILE",
                escaped(value)
            ));
        }
    };
    match file {
        Some(file) if file.is_empty() => Err(format!("{VARIABLE}={}: no file name after the colon", escaped(value))),
        file => Ok(Some(Asked { level, file: file.map(OsStr::to_owned) })),
    }
}

/// Begins a log if the environment asks for one.
///
/// # Errors
///
/// Exit 1 if the value is not valid, or its file cannot be opened.
pub(crate) fn start_by_environment(command: &str) -> Result<(), Failure> {
    let usage = |line: String| Exit::Usage.with(line);
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let Some(Asked { level, file }) = asked(&value).map_err(usage)? else { return Ok(()) };
    let out = match file {
        None => Out::StandardError,
        Some(file) => {
            let mut options = File::options();
            let opened = options.create(true).append(true).mode(0o600).open(Path::new(&file));
            let opened = opened.map_err(|error| {
                let reason = printable(&error.to_string());
                usage(format!("{VARIABLE}: cannot write {}: {reason}", escaped(&file)))
            })?;
            let _ = FILE.set(file.into());
            Out::File(opened)
        }
    };
    start(command, Some(level), Some(out));
    Ok(())
}

/// Begins the log that the command line asks for. `-vv` writes to standard error, unless the environment names another
/// place. With `--trace`, entries are also kept.
pub(crate) fn start_by_options(command: &str, verbose: u8, keeps: bool) {
    let level = match verbose {
        0 | 1 => None,
        2 => Some(Level::Debug),
        3.. => Some(Level::Trace),
    };
    let is_there = crate::locked(&BOOK).is_some();
    if !is_there && (level.is_some() || keeps) {
        start(command, level, level.map(|_| Out::StandardError));
    }
    if let Some(book) = book() {
        let mut state = crate::locked(&book.state);
        state.keeps |= keeps;
        state.writes = state.writes.max(level);
        let most = state.writes.max(keeps.then_some(Level::Debug));
        drop(state);
        take_up_to(&book, most);
    }
}

/// Begins a log. `out`: `None` if it is only kept.
fn start(command: &str, writes: Option<Level>, out: Option<Out>) {
    let own_host = escaped(OsStr::new(&*rustix::system::uname().nodename().to_string_lossy()));
    let is_seen = matches!(out, Some(Out::StandardError));
    let state = Mutex::new(State { writes, is_seen, ..State::default() });
    let book = Arc::new(Book { state, changed: Condvar::new(), own_host });
    *crate::locked(&BOOK) = Some(Arc::clone(&book));
    take_up_to(&book, writes);
    if let Some(out) = out {
        let writing = Arc::clone(&book);
        // If no thread can be started, there is no log, but everything else works.
        let _ = crate::spawn("log", 256 << 10, move || writing.write(out, log::system));
    }
    let version = env!("CARGO_PKG_VERSION");
    let heading = || {
        let date = date(log::now());
        format!("{command} {version}; {date}; times are UTC, those of other hosts converted to this host's clock")
    };
    // What is logged as information is left out where the command prints it anyway.
    if is_seen { log::debug("", heading) } else { log::info(heading) }
}

fn take_up_to(book: &Arc<Book>, level: Option<Level>) {
    let Some(level) = level else { return };
    let book = Arc::clone(book);
    log::start(level, move |entry| book.take(entry));
}

fn book() -> Option<Arc<Book>> {
    crate::locked(&BOOK).clone()
}

/// Whether lines of the log go to standard error. If so, nothing else can be drawn there.
pub(crate) fn is_on_standard_error() -> bool {
    book().is_some_and(|book| crate::locked(&book.state).is_seen)
}

/// Takes the entries logged so far, for a trace.
pub(crate) fn kept() -> Kept {
    let Some(book) = book() else { return Kept::default() };
    let mut state = crate::locked(&book.state);
    Kept { entries: std::mem::take(&mut state.kept), left_out: std::mem::take(&mut state.kept_left_out) }
}

/// Writes the lines still held, and ends the log.
pub(crate) fn finish() {
    log::stop();
    let Some(book) = crate::locked(&BOOK).take() else { return };
    let mut state = crate::locked(&book.state);
    state.is_closing = true;
    book.changed.notify_all();
    let until = Instant::now() + LAST_MAX;
    while state.writes.is_some() && !state.is_over && Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        state = book.changed.wait_timeout(state, left).expect("no panic with it locked").0;
    }
}

impl Book {
    fn take(&self, entry: Entry) {
        let mut state = crate::locked(&self.state);
        state.came += 1;
        if state.keeps && entry.level <= Level::Debug {
            if state.kept.len() < KEPT_MAX { state.kept.push(entry.clone()) } else { state.kept_left_out += 1 }
        }
        let is_said = state.is_seen && entry.level == Level::Info;
        if !is_said && state.writes.is_some_and(|most| entry.level <= most) {
            if state.held.len() >= HELD_MAX {
                state.left_out += 1;
                return;
            }
            // An entry that comes too late is written when it comes.
            let key = (entry.at.max(state.written), state.came);
            state.held.insert(key, entry);
        }
    }

    /// Writes lines that have been held for long enough, until the log is closed. Their times follow the clock `system`,
    /// and a line with the date stands before the first of another day.
    fn write(&self, mut out: Out, system: impl Fn() -> u64) {
        let (mut ahead, mut day) = (0, None);
        loop {
            let mut state = crate::locked(&self.state);
            let is_closing = state.is_closing;
            let until = if is_closing { u64::MAX } else { log::now().saturating_sub(HOLD.as_micros() as u64) };
            let rest = state.held.split_off(&(until, u64::MAX));
            let due = std::mem::replace(&mut state.held, rest);
            let left_out = std::mem::take(&mut state.left_out);
            state.written = due.last_key_value().map_or(state.written, |((at, _), _)| *at);
            drop(state);
            let differs = system() as i64 - log::now() as i64;
            if differs.abs_diff(ahead) > APART_MAX.as_micros() as u64 {
                ahead = differs;
            }
            let mut text = String::new();
            for ((at, _), entry) in &due {
                let at = at.saturating_add_signed(ahead);
                let date = date(at);
                if day.as_ref().is_some_and(|day| *day != date) {
                    text += &format!("--- {date} ---\n");
                }
                day = Some(date);
                text += &line(at, &self.own_host, entry);
            }
            if left_out > 0 {
                text += &format!("({left_out} lines dropped here: they came faster than they could be written)\n");
            }
            // A log that cannot be written must not stop the command that it describes.
            match &mut out {
                Out::StandardError => crate::standard_error::write(text.as_bytes()),
                Out::File(file) => drop(file.write_all(text.as_bytes())),
            }
            let mut state = crate::locked(&self.state);
            if is_closing {
                state.is_over = true;
                self.changed.notify_all();
                return;
            }
            if !state.is_closing {
                drop(self.changed.wait_timeout(state, HOLD / 4));
            }
        }
    }
}

/// Formats a line: `HH:MM:SS.mmm host  level  what`, and a line end.
fn line(at: u64, own_host: &str, entry: &Entry) -> String {
    let Entry { host, level, about, text, .. } = entry;
    let host = host.as_ref().map_or_else(|| own_host.to_owned(), |host| printable(host));
    let about = if about.is_empty() { String::new() } else { format!("{}: ", printable(about)) };
    format!("{} {host}  {:5}  {about}{}\n", time_of_day(at), level.name(), printable(text))
}

/// Formats a time, in microseconds since 1970.
fn time_of_day(micros: u64) -> String {
    let millis = micros / 1000;
    let (seconds, millis) = (millis / 1000, millis % 1000);
    format!("{:02}:{:02}:{:02}.{millis:03}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Formats the date of a time in microseconds since 1970.
fn date(micros: u64) -> String {
    let mut text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(micros)).to_string();
    text.truncate("YYYY-MM-DD".len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Mark;

    #[test]
    fn a_level_and_a_file_are_asked_for() {
        let of = |text: &str| asked(OsStr::new(text));
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("off"), Ok(None));
        assert_eq!(of("debug"), Ok(Some(Asked { level: Level::Debug, file: None })));
        assert_eq!(of("trace:a:b"), Ok(Some(Asked { level: Level::Trace, file: Some("a:b".into()) })));
        for wrong in ["loud", "debug:", "/tmp/x", "off:x", "DEBUG"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    fn entry(at: u64, text: &str) -> Entry {
        let (host, about) = (Some("h\x1b1".to_owned()), "to h2\r".to_owned());
        Entry { at, host, level: Level::Debug, about, mark: Mark::Moment, text: text.to_owned() }
    }

    fn book(writes: Level) -> Book {
        let state = State { writes: Some(writes), keeps: true, ..State::default() };
        Book { state: Mutex::new(state), changed: Condvar::new(), own_host: "here".to_owned() }
    }

    #[test]
    fn lines_are_in_order_of_time_and_without_control_characters() {
        let book = book(Level::Debug);
        for at in [3_000_000, 1_000_000, 2_000_000] {
            book.take(entry(at, &format!("at {at}\n\x1b[2J")));
        }
        crate::locked(&book.state).is_closing = true;
        let file = tempfile::NamedTempFile::new().expect("a file");
        book.write(Out::File(file.reopen().expect("the same")), log::now);
        let text = std::fs::read_to_string(file.path()).expect("lines");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "00:00:01.000 h\\u{1b}1  debug  to h2\\r: at 1000000\\n\\u{1b}[2J");
        assert!(lines[1].starts_with("00:00:02") && lines[2].starts_with("00:00:03") && lines.len() == 3, "{text}");
    }

    #[test]
    fn times_follow_the_clock_of_the_system_and_another_day_has_its_date() {
        const DAY: u64 = 86_400_000_000;
        let book = book(Level::Debug);
        for day in [1, 1, 3] {
            book.take(entry(day * DAY + 500_000, "x"));
        }
        crate::locked(&book.state).is_closing = true;
        let file = tempfile::NamedTempFile::new().expect("a file");
        // The host has slept for eight hours.
        book.write(Out::File(file.reopen().expect("the same")), || log::now() + DAY / 3);
        let text = std::fs::read_to_string(file.path()).expect("lines");
        let lines: Vec<&str> = text.lines().map(|line| &line[..8]).collect();
        assert_eq!(lines, ["08:00:00", "08:00:00", "--- 1970", "08:00:00"], "{text}");
        assert!(text.contains("\n--- 1970-01-04 ---\n"), "{text}");
    }

    #[test]
    fn what_is_held_and_kept_is_bounded_and_counted() {
        let book = book(Level::Trace);
        (0..KEPT_MAX as u64 + 5).for_each(|at| book.take(entry(at, "x")));
        let state = crate::locked(&book.state);
        assert_eq!((state.held.len(), state.left_out), (HELD_MAX, (KEPT_MAX - HELD_MAX) as u64 + 5));
        assert_eq!((state.kept.len(), state.kept_left_out), (KEPT_MAX, 5));
    }
}
