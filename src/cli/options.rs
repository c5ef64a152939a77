//! Options that several commands share and that concern this process alone. Options for the ends of a session are in
//! [`crate::options`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};

use super::color::When;
use super::key;
use crate::fault::{Exit, Failure};

/// Options that all commands have.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct CommonOptions {
    /// When to use colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", help_heading = "Output")]
    pub color: When,
    /// Print the value of each option and where it comes from; do nothing else
    #[arg(long, help_heading = "Output")]
    pub show_config: bool,
}

/// Options for output and reports.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct ReportOptions {
    /// Print the route of the data, how files were read and written, what limited the transfer, and the bandwidth; -vv:
    /// also a log of events at both ends, with times; -vvv: also of each file
    #[arg(short, long = "verbose", id = "verbose", action = ArgAction::Count)]
    pub verbosity: u8,
    /// Print only errors and warnings, even with -v or --progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Show progress and what limits it: a bar on a terminal, which is the default there, else a line every 5 seconds
    #[arg(long)]
    pub progress: bool,
    /// Report as JSON, one object per line, to FILE, or to standard output if that carries no data
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Report as JSON to the open file descriptor FD
    #[arg(long, value_name = "FD", conflicts_with = "json", allow_negative_numbers = true)]
    pub json_fd: Option<i32>,
    /// Write a report to FILE.html: rate and limiting factor over time, events, and what to change; also if the
    /// transfer fails
    #[arg(long = "report", value_name = "FILE.html")]
    pub page: Option<PathBuf>,
    /// Write a trace to FILE, for ui.perfetto.dev: the steps of each host, rates and waits over time, and events; also
    /// if the transfer fails
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// `--color`, `--show-config`.
    #[command(flatten)]
    pub common: CommonOptions,
}

/// Options for reading KEY.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Key")]
pub struct KeyOptions {
    /// Read KEY from the first line of FILE instead of from the arguments
    #[arg(long, value_name = "FILE", conflicts_with = "key_fd")]
    pub key_file: Option<PathBuf>,
    /// Read KEY from the first line of the open file descriptor FD instead of from the arguments
    #[arg(long, value_name = "FD", allow_negative_numbers = true)]
    pub key_fd: Option<i32>,
}

impl KeyOptions {
    /// Whether KEY comes from a file or descriptor, so that it is not a positional argument.
    pub fn is_elsewhere(&self) -> bool {
        self.key_file.is_some() || self.key_fd.is_some()
    }
}

impl ReportOptions {
    /// Returns these options with `-q` taking precedence wherever it stands, as with scp and rsync.
    pub fn settled(self) -> Self {
        let verbosity = if self.quiet { 0 } else { self.verbosity };
        Self { verbosity, progress: self.progress && !self.quiet, ..self }
    }

    /// Settles the options, and begins the log that they ask for. `command` is the command's name.
    pub(crate) fn begun(self, command: &str) -> Self {
        let settled = self.settled();
        super::log::start_by_options(command, settled.verbosity, settled.trace.is_some());
        settled
    }

    /// Whether `--json` writes to standard output.
    pub(crate) fn is_json_on_output(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path == "-") || self.json_fd == Some(1)
    }

    /// Whether `-v` is given at least once.
    pub fn is_verbose(&self) -> bool {
        self.verbosity > 0
    }
}

/// Parses PORT, a positional argument.
///
/// # Errors
///
/// A sentence, if it is not a number from 0 to 65535.
pub fn parse_port(text: &OsString) -> Result<u16, String> {
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("PORT must be a number from 0 to 65535, not {:?}", crate::fault::escaped(text)))
}

/// Least length of a KEY that was made at random.
const KEY_BYTES_LIKELY: usize = 12;

/// Whether a word in PORT's place may be KEY: it is no port, and neither a short number nor the path of something that
/// exists or could be created. `next` is the word in KEY's place. Unless that is none or a port, only a long word counts.
pub(crate) fn may_be_key(word: &OsString, next: Option<&OsString>) -> bool {
    let text = word.to_string_lossy();
    let is_of_number = |letter: char| letter.is_ascii_digit() || "+-. ".contains(letter);
    let is_number = text.chars().all(is_of_number) && text.chars().filter(char::is_ascii_digit).count() <= 5;
    let path = Path::new(word);
    let is_named = |parent: &Path| !parent.as_os_str().is_empty() && parent != Path::new("/");
    let is_path =
        path.symlink_metadata().is_ok() || path.parent().is_some_and(|parent| is_named(parent) && parent.is_dir());
    let is_likely = text.len() >= KEY_BYTES_LIKELY || next.is_none_or(|next| parse_port(next).is_ok());
    is_likely && parse_port(word).is_err() && !is_number && !is_path
}

/// Parses PORT. If it may be KEY, it is neither repeated nor left where others see it.
///
/// # Errors
///
/// As [`parse_port`].
pub(crate) fn parse_port_or_hide(word: &OsString, may_be_key: bool) -> Result<u16, String> {
    if !may_be_key {
        return parse_port(word);
    }
    key::conceal(Some(word));
    Err("PORT must be a number from 0 to 65535; the word in its place is not shown, because it may be KEY".to_owned())
}

/// Checks FILE, a positional argument.
///
/// # Errors
///
/// Exit 1 if the name is empty, as with `"$file"` in a script that never set the variable.
pub(crate) fn check_file(file: Option<&OsString>) -> Result<(), Failure> {
    match file {
        Some(path) if path.is_empty() => {
            Err(Exit::Usage.with("FILE is empty; name one, or leave it out for standard input or output"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::cli::definitions;
    use crate::cli::habits::{Here, LETTERS, Number};

    /// Letters and words that mean something else in one command than in the others.
    const EXCEPTIONS: &[(&str, &str, &str)] = &[
        ("rdpipe", "-p", "rdpipe's own from the beginning: the port that it listens on"),
        ("rdpipe", "-H", "rdpipe's own from the beginning: what the hosts next to this one call it"),
        ("rddoctor", "--json", "no data and nothing else goes to its standard output, so it takes no FILE"),
    ];

    /// A letter always stands for the same word, and a word always has the same letter and the same kind of value. No
    /// letter of another command is one that rdcp takes as a letter of scp or rsync.
    #[test]
    fn a_letter_or_word_means_the_same_in_all_commands() {
        let mut meanings: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut used = Vec::new();
        // The options of rdsh are those of ssh.
        for command in definitions().into_iter().filter(|command| command.get_name() != "rdsh") {
            let name = command.get_name();
            for option in command.get_arguments().filter(|option| !option.is_positional()) {
                let letter = option.get_short().map(|letter| format!("-{letter}"));
                let word = option.get_long().map(|word| format!("--{word}"));
                let takes = if option.get_action().takes_values() { option.get_value_names() } else { None };
                let meaning = format!("{letter:?} {word:?} {takes:?}");
                for form in letter.iter().chain(&word) {
                    if let Some(known) = EXCEPTIONS.iter().position(|(of, what, _)| (*of, *what) == (name, form)) {
                        used.push(known);
                        continue;
                    }
                    let (first, known) =
                        meanings.entry(form.clone()).or_insert_with(|| (name.to_owned(), meaning.clone()));
                    assert_eq!(*known, meaning, "{form} in {first} and in {name}");
                }
                let Some(letter) = option.get_short() else { continue };
                let known = LETTERS.iter().find(|known| known.letter == letter).map(|known| known.here);
                let is_own = matches!(known, Some(Here::Own | Here::OwnValue | Here::Number(Number::Port)));
                let is_exception = EXCEPTIONS.iter().any(|(of, what, _)| (*of, *what) == (name, &format!("-{letter}")));
                assert!(is_own || is_exception, "-{letter} of {name} is {known:?} in rdcp");
            }
        }
        used.sort_unstable();
        assert_eq!(used, (0..EXCEPTIONS.len()).collect::<Vec<_>>(), "each exception is one");
    }

    #[test]
    fn a_word_in_the_place_of_the_port_may_be_a_key() {
        for word in ["", "70000", "-1", "1.5", "7 ", "7000", "Cargo.toml", "./out", "/usr/x", "src/x.y"] {
            assert!(!super::may_be_key(&word.into(), None), "{word}");
        }
        for word in ["abc", "0x50", "out.raw", "123456", "/Zm9v+Q==", "Zm9v/YmFy"] {
            assert!(super::may_be_key(&word.into(), None), "{word}");
            assert!(super::may_be_key(&word.into(), Some(&"7000".into())), "{word}");
            assert!(!super::may_be_key(&word.into(), Some(&"a-key".into())), "{word}");
            assert!(super::may_be_key(&format!("{word}{word}{word}{word}").into(), Some(&"out.raw".into())), "{word}");
        }
    }

    #[test]
    fn quiet_counts_wherever_it_stands() {
        use clap::Parser;
        for line in ["rdcp -q -v --progress a b", "rdcp -v -v -v -q a b", "rdcp --progress -q a b"] {
            let arguments = crate::cli::rdcp::CopyArguments::try_parse_from(line.split(' ')).expect(line);
            let report = arguments.report.settled();
            assert_eq!((report.quiet, report.verbosity, report.progress), (true, 0, false), "{line}");
        }
    }
}
