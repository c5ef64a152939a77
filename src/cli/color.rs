//! Colours, for people at a terminal. Everything that a colour says is said in words as well.
//!
//! Red, yellow and cyan also differ in brightness, so that no meaning rests on red against green alone.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU8, Ordering};

use clap::{ColorChoice, ValueEnum};
use console::Style;

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The choice made by [`set`], as an index into the list of values.
static CHOSEN: AtomicU8 = AtomicU8::new(When::Auto as u8);

/// Obeys the last `--color` among a command's words. Called before the words are parsed, so that errors in them are
/// coloured as well.
pub(crate) fn set(words: &[OsString]) {
    let mut when = When::Auto;
    let mut words = words.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--").peekable();
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.peek().copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        when = value.and_then(|value| When::from_str(value, false).ok()).unwrap_or(when);
    }
    obey(when);
}

/// Obeys the `--color` of a command line that has been parsed, in which further words may be those of a command to run.
pub(crate) fn obey(when: When) {
    CHOSEN.store(when as u8, Ordering::Relaxed);
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_plain = is_set("NO_COLOR") || is_dumb();
    let is_coloured = |is_terminal: bool| match when {
        When::Auto => is_terminal && !is_plain,
        When::Always => true,
        When::Never => false,
    };
    console::set_colors_enabled(is_coloured(std::io::stdout().is_terminal()));
    console::set_colors_enabled_stderr(is_coloured(std::io::stderr().is_terminal()));
}

/// Whether the terminal supports neither colours nor redrawing a line.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|kind| kind == "dumb")
}

/// Returns how clap is to colour the help.
pub(crate) fn of_help() -> ColorChoice {
    match When::value_variants().get(usize::from(CHOSEN.load(Ordering::Relaxed))) {
        Some(When::Always) => ColorChoice::Always,
        Some(When::Never) => ColorChoice::Never,
        Some(When::Auto) | None => ColorChoice::Auto,
    }
}

/// Returns the coloured beginning of an error line for standard error.
pub(crate) fn error(text: &str) -> String {
    Style::new().for_stderr().red().bold().apply_to(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_decides() {
        let chosen = |words: &[&str]| {
            set(&words.iter().map(OsString::from).collect::<Vec<_>>());
            of_help()
        };
        for (words, choice) in [
            (&["rdcp", "a", "b"][..], ColorChoice::Auto),
            (&["rdcp", "--color", "always", "a"], ColorChoice::Always),
            (&["rdcp", "--color=always", "--color=never"], ColorChoice::Never),
            (&["rdcp", "--color=purple"], ColorChoice::Auto),
            (&["rdcp", "--color"], ColorChoice::Auto),
            (&["rdcp", "--", "--color=always"], ColorChoice::Auto),
            (&["rdcp", "--colorful=always"], ColorChoice::Auto),
        ] {
            assert_eq!(chosen(words), choice, "{words:?}");
        }
    }
}
