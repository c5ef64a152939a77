//! Progress on standard error: lines at the end of a terminal that are drawn again and again, or else lines now and then.
//!
//! Between two drawings the cursor waits at the beginning of the first line. A terminal that becomes narrower breaks lines
//! up and keeps the cursor where it was: at the beginning of what there is to be cleared.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use console::Term;
use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::line::cut_end;
use crate::cli::color;
use crate::cli::options::ReportOptions;

/// What takes no longer than this shows nothing at a terminal.
const DRAWN_AFTER: Duration = Duration::from_millis(400);

/// How often it is drawn anew.
const DRAWN_EVERY: Duration = Duration::from_millis(125);

/// Where progress is a line each: how often, and its width.
const LINE_EVERY: Duration = Duration::from_secs(5);
const LINE_COLUMNS: usize = 100;

/// Columns and rows of a terminal that does not tell.
const SIZE: (u16, u16) = (80, 24);

/// Something has been drawn on standard error, of which a process has one.
static WAS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether somebody at a terminal has been shown progress: what it came to is said there as well.
pub(crate) fn was_drawn() -> bool {
    WAS_DRAWN.load(Ordering::Relaxed)
}

/// How progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not at all.
    Off,
    /// Drawn anew.
    Drawn,
    /// A line now and then: asked for where there is no terminal.
    Lines,
}

/// Standard error: progress, and the lines of a command called `name`, which get out of each other's way.
pub(in crate::cli) struct ProgressArea {
    name: &'static str,
    kind: Kind,
    pub began: Instant,
    shown: Instant,
    term: Term,
    is_drawn: Arc<AtomicBool>,
}

impl ProgressArea {
    /// As the options ask for it. `may_draw`: nothing else writes to the terminal.
    pub fn new(name: &'static str, options: &ReportOptions, may_draw: bool) -> Self {
        // What cannot take a line away shows it as others do that are no terminals.
        let draws = std::io::stderr().is_terminal() && !color::is_dumb() && !crate::cli::log::is_on_standard_error();
        let kind = match (options.progress, draws) {
            (_, true) if !options.quiet && (may_draw || options.progress) => Kind::Drawn,
            (true, false) => Kind::Lines,
            _ => Kind::Off,
        };
        Self::of_kind(name, kind)
    }

    /// One that is drawn at a terminal, if `draws`, and nowhere else.
    pub fn at_terminal(name: &'static str, draws: bool) -> Self {
        Self::of_kind(name, if draws && std::io::stderr().is_terminal() { Kind::Drawn } else { Kind::Off })
    }

    fn of_kind(name: &'static str, kind: Kind) -> Self {
        let now = Instant::now();
        Self { name, kind, began: now, shown: now, term: Term::buffered_stderr(), is_drawn: Arc::default() }
    }

    /// Begins anew: what takes no time from now on is not shown.
    pub fn restart(&mut self) {
        self.began = Instant::now();
        self.shown = self.began;
    }

    /// Something is shown, or will be.
    pub fn is_on(&self) -> bool {
        self.kind != Kind::Off
    }

    /// It is drawn at a terminal, also while the command is in the background.
    pub fn is_drawn_anew(&self) -> bool {
        self.kind == Kind::Drawn
    }

    /// Somebody sees it drawn: a job in the background leaves the terminal to the one in front.
    pub fn is_watched(&self) -> bool {
        self.kind == Kind::Drawn && tcgetpgrp(std::io::stderr()).is_ok_and(|owner| owner == getpgrp())
    }

    /// Columns that there are for a line, at this moment.
    pub fn columns(&self) -> usize {
        if self.kind == Kind::Lines { LINE_COLUMNS } else { size().0 }
    }

    /// Says a line, beside what is drawn.
    pub fn say(&mut self, line: &str) {
        self.clear();
        crate::cli::say(&format!("{}: {line}", self.name));
    }

    /// Says the line of an error.
    pub fn complain(&mut self, line: &str) {
        self.clear();
        crate::cli::complain(self.name, line);
    }

    /// Shows how far it is, if that is due: lines that are made for so many columns.
    pub fn show(&mut self, lines: impl FnOnce(usize) -> Vec<String>) {
        let now = Instant::now();
        let is_due = match self.kind {
            Kind::Off => false,
            Kind::Lines => now - self.shown >= LINE_EVERY,
            Kind::Drawn => now - self.began >= DRAWN_AFTER && now - self.shown >= DRAWN_EVERY && self.is_watched(),
        };
        if is_due {
            self.shown = now;
            let lines = lines(self.columns());
            match self.kind {
                Kind::Lines => lines.iter().for_each(|line| self.say(line)),
                _ => self.draw(&lines),
            }
        }
    }

    /// Draws lines in place of those before, as many as there is room for. In one write: other processes may be writing
    /// there too.
    pub fn draw(&mut self, lines: &[String]) {
        if self.kind != Kind::Drawn {
            return;
        }
        // The line may be another program's, which asks for something there.
        if lines.is_empty() {
            return self.clear();
        }
        self.is_drawn.store(true, Ordering::Relaxed);
        WAS_DRAWN.store(true, Ordering::Relaxed);
        let (columns, rows) = size();
        let lines: Vec<String> = lines.iter().take(rows).map(|line| cut_end(line, columns.saturating_sub(1))).collect();
        // Where standard error is closed nobody is looking.
        let _ = self.term.clear_to_end_of_screen();
        let _ = self.term.write_str(&lines.join("\n"));
        let _ = self.term.move_cursor_up(lines.len().saturating_sub(1));
        let _ = self.term.write_str("\r");
        let _ = self.term.flush();
    }

    /// What takes away in another thread what is drawn: nothing may be drawn any more from then on.
    pub fn clearing(&self) -> impl FnOnce() + Send + 'static {
        let is_drawn = Arc::clone(&self.is_drawn);
        move || {
            if is_drawn.swap(false, Ordering::Relaxed) {
                let _ = Term::stderr().clear_to_end_of_screen();
            }
        }
    }

    /// Takes away what is drawn.
    pub fn clear(&mut self) {
        if self.is_drawn.swap(false, Ordering::Relaxed) {
            let _ = self.term.clear_to_end_of_screen();
            let _ = self.term.flush();
        }
    }
}

impl Drop for ProgressArea {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    let (columns, rows) = tcgetwinsize(std::io::stderr()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let known = |told, usual| usize::from(if told == 0 { usual } else { told });
    (known(columns, SIZE.0), known(rows, SIZE.1))
}
