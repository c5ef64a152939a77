//! Shows progress on standard error: as lines at the end of a terminal that are redrawn, or otherwise as a line from
//! time to time.
//!
//! Between two drawings the cursor stays at the beginning of the first line. If a terminal becomes narrower, it breaks
//! lines up and keeps the cursor in place, which is the beginning of the area to be cleared.

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

/// A run shorter than this shows no progress at a terminal.
const DRAWN_AFTER: Duration = Duration::from_millis(400);

/// How often progress is redrawn.
const DRAWN_EVERY: Duration = Duration::from_millis(125);

/// How often progress is shown as a line.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Width in columns of such a line.
const LINE_COLUMNS: usize = 100;

/// Columns and rows assumed for a terminal that does not report its size.
const SIZE: (u16, u16) = (80, 24);

/// Whether anything has been drawn on standard error, of which a process has only one.
static WAS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether progress has been drawn at a terminal. If so, the result is shown there as well.
pub(crate) fn was_drawn() -> bool {
    WAS_DRAWN.load(Ordering::Relaxed)
}

/// How progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Not shown.
    Off,
    /// Redrawn in place.
    Drawn,
    /// A line from time to time, if progress is asked for without a terminal.
    Lines,
}

/// Standard error, shared by progress and the lines of the command `name`, so that neither overwrites the other.
pub(in crate::cli) struct ProgressArea {
    name: &'static str,
    kind: Kind,
    pub began: Instant,
    shown: Instant,
    term: Term,
    is_drawn: Arc<AtomicBool>,
}

impl ProgressArea {
    /// Shows progress as the options ask. `may_draw` says that nothing else writes to the terminal.
    pub fn new(name: &'static str, options: &ReportOptions, may_draw: bool) -> Self {
        let kind = match (options.progress, can_draw()) {
            (_, true) if !options.quiet && (may_draw || options.progress) => Kind::Drawn,
            (true, false) => Kind::Lines,
            _ => Kind::Off,
        };
        Self::of_kind(name, kind)
    }

    /// Returns an area that is drawn if `draws` is set and standard error is a terminal, and is not shown otherwise.
    pub fn at_terminal(name: &'static str, draws: bool) -> Self {
        Self::of_kind(name, if draws && can_draw() { Kind::Drawn } else { Kind::Off })
    }

    fn of_kind(name: &'static str, kind: Kind) -> Self {
        let now = Instant::now();
        Self { name, kind, began: now, shown: now, term: Term::buffered_stderr(), is_drawn: Arc::default() }
    }

    /// Starts measuring time anew. Work that ends soon after this is not shown.
    pub fn restart(&mut self) {
        self.began = Instant::now();
        self.shown = self.began;
    }

    /// Whether progress is shown, or will be.
    pub fn is_on(&self) -> bool {
        self.kind != Kind::Off
    }

    /// Whether progress is redrawn at a terminal, even if the command is in the background.
    pub fn is_drawn_anew(&self) -> bool {
        self.kind == Kind::Drawn
    }

    /// Whether drawn progress is visible. A job in the background leaves the terminal to the one in the foreground.
    pub fn is_watched(&self) -> bool {
        self.kind == Kind::Drawn && tcgetpgrp(std::io::stderr()).is_ok_and(|owner| owner == getpgrp())
    }

    /// Returns the current number of columns for a line.
    pub fn columns(&self) -> usize {
        if self.kind == Kind::Lines { LINE_COLUMNS } else { size().0 }
    }

    /// Prints a line without disturbing the drawn progress.
    pub fn say(&mut self, line: &str) {
        self.clear();
        crate::cli::say(&format!("{}: {line}", self.name));
    }

    /// Prints an error as a line.
    pub fn complain(&mut self, line: &str) {
        self.clear();
        crate::cli::complain(self.name, line);
    }

    /// Shows progress if an update is due. `lines` makes the lines for a number of columns.
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

    /// Draws lines in place of the previous ones, as many as fit, if they are visible. They are written in one piece,
    /// because other processes may be writing there too.
    pub fn draw(&mut self, lines: &[String]) {
        if self.kind != Kind::Drawn {
            return;
        }
        // The line may belong to another program, such as one that asks the user something.
        if lines.is_empty() {
            return self.clear();
        }
        if !self.is_watched() {
            return;
        }
        self.is_drawn.store(true, Ordering::Relaxed);
        WAS_DRAWN.store(true, Ordering::Relaxed);
        let (columns, rows) = size();
        let lines: Vec<String> = lines.iter().take(rows).map(|line| cut_end(line, columns.saturating_sub(1))).collect();
        // If standard error is closed, there is no reader, so errors do not matter.
        let _ = self.term.clear_to_end_of_screen();
        let _ = self.term.write_str(&lines.join("\n"));
        let _ = self.term.move_cursor_up(lines.len().saturating_sub(1));
        let _ = self.term.write_str("\r");
        let _ = self.term.flush();
    }

    /// Returns a function that clears the drawing from another thread. Nothing may be drawn after that.
    pub fn clearing(&self) -> impl FnOnce() + Send + 'static {
        let is_drawn = Arc::clone(&self.is_drawn);
        move || {
            if is_drawn.swap(false, Ordering::Relaxed) {
                let _ = Term::stderr().clear_to_end_of_screen();
            }
        }
    }

    /// Clears the drawing.
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

/// Whether lines can be drawn on standard error. A terminal on which lines cannot be removed is treated as no terminal.
fn can_draw() -> bool {
    std::io::stderr().is_terminal() && !color::is_dumb() && !crate::cli::log::is_on_standard_error()
}

/// Returns the columns and rows of the terminal.
fn size() -> (usize, usize) {
    let (columns, rows) = tcgetwinsize(std::io::stderr()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let known = |told, usual| usize::from(if told == 0 { usual } else { told });
    (known(columns, SIZE.0), known(rows, SIZE.1))
}
