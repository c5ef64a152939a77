//! One line of a terminal that is drawn again and again.
//!
//! The cursor waits at the line's beginning. A terminal that becomes narrower breaks the line up and keeps the cursor
//! where it was: at the beginning of what there is to be cleared.

use std::sync::atomic::{AtomicBool, Ordering};

use console::Term;
use rustix::termios::tcgetwinsize;

/// The columns of a terminal that does not tell.
const COLUMNS: u16 = 80;

/// Something has been drawn on standard error, of which a process has one.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether somebody at a terminal has been shown progress: what it came to is said there as well.
pub(crate) fn was_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Something is drawn on standard error.
pub(crate) fn note_drawn() {
    DRAWN.store(true, Ordering::Relaxed);
}

/// The line below all others on standard error.
pub(in crate::cli) struct Screen {
    term: Term,
    is_drawn: bool,
}

impl Screen {
    pub(in crate::cli) fn new() -> Self {
        Self { term: Term::buffered_stderr(), is_drawn: false }
    }

    /// Columns of the terminal, at this moment.
    pub(in crate::cli) fn columns(&self) -> usize {
        let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
        if columns == 0 { COLUMNS.into() } else { columns.into() }
    }

    /// Draws the line in place of the one before it. In one write: other processes may be writing there too.
    pub(in crate::cli) fn draw(&mut self, line: &str) {
        self.is_drawn = true;
        note_drawn();
        // Where standard error is closed nobody is looking.
        let _ = self.term.clear_to_end_of_screen();
        let _ = self.term.write_str(line);
        let _ = self.term.write_str("\r");
        let _ = self.term.flush();
    }

    /// Takes the line away.
    pub(in crate::cli) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = self.term.clear_to_end_of_screen();
            let _ = self.term.flush();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}
