//! The commands: arguments in, sentences and exit codes out.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::job::event as json;

pub mod agent;
mod check;
pub mod color;
pub mod complete;
pub mod doctor;
pub mod examples;
pub mod habits;
mod hosts;
pub mod key;
mod listed;
pub(crate) mod log;
pub mod options;
pub mod perf;
pub mod rdcp;
pub mod rdpipe;
pub mod rdsh;
pub mod recv;
pub mod report;
pub mod send;
mod settings;
mod short_help;
mod uses;
mod watch;
mod words;
mod wrong;

use settings::{Settings, Sources};

use crate::fault::{self, Exit, Failure};
use crate::job::launching::dismiss_helpers;
use crate::signals;
use crate::transport::pool::one_arena_if_limited;

/// A command: the name under which it is installed, its main function, and what it does.
type Entry = (&'static str, fn(Vec<OsString>) -> ExitCode, &'static str);

const COMMANDS: [Entry; 7] = [
    ("rdcp", rdcp::main, "copy files and trees between hosts"),
    ("rdsend", send::main, "send a stream or a file to a waiting rdrecv"),
    ("rdrecv", recv::main, "wait for rdsend and receive from it"),
    ("rdpipe", rdpipe::main, "run commands on hosts and stream the output of each to the next"),
    ("rdsh", rdsh::main, "run a command on a host as ssh does, with fast input and output"),
    ("rdperf", perf::main, "measure the wire, disks and memory"),
    ("rddoctor", doctor::main, "find out why RDMA does not work or is slow"),
];

/// Returns the definitions of all commands' arguments.
pub fn definitions() -> [clap::Command; COMMANDS.len()] {
    use clap::CommandFactory;
    [
        rdcp::CopyArguments::command(),
        send::SendArguments::command(),
        recv::RecvArguments::command(),
        rdpipe::PipeArguments::command(),
        rdsh::ShellArguments::command(),
        perf::PerfArguments::command(),
        doctor::DoctorArguments::command(),
    ]
}

/// Whether this process is `rdsh`, which fails with ssh's exit code.
static IS_SHELL: AtomicBool = AtomicBool::new(false);

/// Makes a panic end the process in every build, so that no thread waits for one that has panicked.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // If the system has no threads left, the function that starts threads of a scope panics.
        if let Some(error) = panic.payload().downcast_ref::<String>().and_then(|said| said.strip_prefix(NO_THREAD)) {
            complain("rdma-pipe", &no_thread(error));
            let code = if IS_SHELL.load(Ordering::Relaxed) { rdsh::SSH_FAILED } else { Exit::Connect.code() };
            std::process::exit(i32::from(code));
        }
        report(panic);
        std::process::abort();
    }));
}

/// The standard library's message when a scope cannot start a thread, up to the error in its `Debug` form.
const NO_THREAD: &str = "failed to spawn thread: ";

/// Returns the line for this error.
fn no_thread(error: &str) -> String {
    let code = error.split_once("code: ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    let error = code.map_or_else(|| error.to_owned(), fault::os_number);
    let why = match code {
        Some(libc::EAGAIN) => ": the process limit is reached (ulimit -u, or pids.max of the control group)",
        _ => "",
    };
    format!("cannot start a thread: {error}{why}")
}

/// Does what every program of the package must do first.
fn begin() {
    abort_on_panic();
    // This also concerns helpers, because they hold what is given to a command.
    key::conceal_memory();
    one_arena_if_limited();
    signals::hear_of_children();
    signals::outlive_long_files();
}

/// Runs the whole program: the command by whose name it was called, or `rdma-pipe COMMAND ARGUMENT...`.
pub fn main() -> ExitCode {
    begin();
    if let Some(code) = helper() {
        return code;
    }
    signals::end_first();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    color::set(&words);
    let command = |name: &OsStr| COMMANDS.iter().find(|(known, ..)| name == *known);
    let called = words.first().and_then(|word| command(Path::new(word).file_name()?));
    if let Some((_, main, _)) = called {
        return main(words);
    }
    if let Some((_, main, _)) = words.get(1).and_then(|word| command(word)) {
        words.remove(0);
        return main(words);
    }
    run("rdma-pipe", || match words.get(1) {
        Some(word) if word == "--version" || word == "-V" => {
            print(concat!("rdma-pipe ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        Some(word) if word == "--help" || word == "-h" || word == "help" => print(&overview()),
        // Called by the completion scripts of shells, and to print those scripts.
        Some(word) if word == "complete" => complete::answer(&words[2..]),
        Some(word) => {
            let names = COMMANDS.map(|(name, ..)| name).join(", ");
            let message = format!("unknown command {}; the commands are {names}; see --help", fault::escaped(word));
            Err(Exit::Usage.with(message))
        }
        None => Err(Exit::Usage.with(format!("COMMAND is required\n{}", overview().trim_end()))),
    })
}

fn overview() -> String {
    clap::Command::new("rdma-pipe")
        .about("Commands, also installed under their own names:")
        .after_help("rdma-pipe complete bash|zsh|fish prints the script with which a shell completes all of them")
        .subcommands(COMMANDS.map(|(name, _, about)| clap::Command::new(name).about(about)))
        .disable_help_subcommand(true)
        .help_template("Usage: rdma-pipe COMMAND [ARGUMENT]...\n\n{about-with-newline}{subcommands}{after-help}")
        .render_help()
        .to_string()
}

/// Runs a command, prints its failure, if any, as one line, and returns the exit code.
pub fn run(name: &str, command: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    if let Some(code) = helper() {
        return code;
    }
    let is_shell = name == rdsh::NAME;
    IS_SHELL.store(is_shell, Ordering::Relaxed);
    // An agent's log goes to its caller, and answering a shell is not a run.
    let has_log = ![agent::NAME, "rdma-pipe"].contains(&name);
    let begun = if has_log { log::start_by_environment(name) } else { Ok(()) };
    let ended = begun.and_then(|()| command());
    let ended = if is_shell { ended.map_err(rdsh::as_ssh) } else { ended };
    let message = ended.as_ref().err().and_then(|failure| failure.message.as_ref());
    message.iter().for_each(|message| crate::log::info(|| (*message).clone()));
    log::finish();
    message.iter().for_each(|message| complain(name, message));
    dismiss_helpers();
    let Err(failure) = ended else { return ExitCode::SUCCESS };
    // An agent was not started by the user's shell.
    if let (Exit::Signal(number), true) = (failure.exit, name != agent::NAME) {
        signals::end_by(number);
    }
    ExitCode::from(failure.exit.code())
}

/// If this process was started as a helper of another process of the package, does its work; `None` if it is a command.
fn helper() -> Option<ExitCode> {
    let done = crate::control::stages::helper()?;
    Some(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes one line to standard error in a single write, because other processes may be writing there too.
pub(crate) fn say(line: &str) {
    crate::standard_error::write(format!("{line}\n").as_bytes());
}

/// Writes an error to standard error as one line. `name` is the command's name.
pub(crate) fn complain(name: &str, line: &str) {
    say(&format!("{} {line}", color::error(&format!("{name}:"))));
}

/// The arguments of a command.
trait Arguments: clap::CommandFactory + clap::FromArgMatches {
    /// Returns the hosts that a command line names. Settings for these hosts apply to the command.
    fn hosts(given: &clap::ArgMatches) -> Vec<OsString>;

    /// Overwrites KEY where the system shows the command line.
    fn conceal(_: &clap::ArgMatches) {}

    /// Returns what is wrong with a command line that can be parsed, such as options that do not go with its task.
    fn refused(_: &clap::ArgMatches) -> Option<String> {
        None
    }

    /// Whether words have been read with another meaning than they have with a setting of this key. The setting is then
    /// not enough for typed options that need it: in `rdcp -r -t SRC DST --delete`, `-t` is meant as rsync's.
    fn is_read_without(_: &clap::ArgMatches, _key: &str) -> bool {
        false
    }

    /// Returns why a setting with this key has no effect for this command line, although the same option, if typed,
    /// would be refused or accepted.
    fn idle(_: &clap::ArgMatches, _key: &str) -> Option<String> {
        None
    }

    /// Notes which values come from files of settings, where it matters that the user has not typed them. `is_set` says
    /// so of an option's long name.
    fn note_set(&mut self, _is_set: &dyn Fn(&str) -> bool) {}

    /// Explains an error of clap if the command knows the cause better.
    fn explain(_: &clap::Error) -> Option<Failure> {
        None
    }
}

/// Runs a command with its words and the settings that apply to them, or prints what `--help`, `--version` or
/// `--show-config` asks for.
fn with_arguments<T: Arguments>(
    words: Vec<OsString>,
    command: impl FnOnce(T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut definition = T::command().color(color::of_help());
    if let Some(line) = wrong::misread(&definition, &words) {
        return Err(Exit::Usage.with(line));
    }
    let settings = Settings::new::<T>(&mut definition, words, &Sources::of_process())?;
    color::set(&settings.words);
    let parsed = definition.try_get_matches_from_mut(&settings.words);
    if let Some(&when) = parsed.as_ref().ok().and_then(|given| given.get_one::<color::When>("color")) {
        color::obey(when);
    }
    if let Some(line) = parsed.as_ref().ok().and_then(T::refused) {
        return Err(Exit::Usage.with(line));
    }
    if parsed.as_ref().is_ok_and(|matches| matches.get_flag("show_config")) {
        return print(&settings.shown(&mut definition));
    }
    parsed.as_ref().map_or(Ok(()), check_lists)?;
    let arguments = parsed.and_then(|matches| T::from_arg_matches(&matches));
    match arguments.map_err(|error| error.format(&mut definition)) {
        Ok(mut arguments) => {
            arguments.note_set(&|key| settings.is_in_file(key));
            command(arguments)
        }
        Err(error) if error.use_stderr() => Err(T::explain(&error)
            .unwrap_or_else(|| Exit::Usage.with(wrong::line_of(&error, &mut definition, &settings.words)))),
        Err(error) if error.render().to_string() == definition.render_help().to_string() => {
            let mut short = short_help::shortened(T::command().color(color::of_help()));
            short
                .try_get_matches_from_mut([definition.get_name(), "-h"])
                .map_or_else(|error| asked_for(&error), |_| Ok(()))
        }
        Err(error) => asked_for(&error),
    }
}

/// Identifiers of the options that name a list to be read, which may be standard input.
const LISTS: [&str; 4] = ["files_from", "hosts", "exclude-from", "include-from"];

/// Refuses a list from standard input if that was closed when this process began, or has another list. Either list
/// would be read as empty, and with `--delete` no pattern would protect anything.
fn check_lists(given: &clap::ArgMatches) -> Result<(), Failure> {
    use crate::fs::standard;
    let files = |id| given.try_get_many::<OsString>(id).ok().flatten().into_iter().flatten();
    let lists: Vec<&OsString> = LISTS.into_iter().flat_map(files).collect();
    let readers = lists.iter().filter(|file| **file == "-" || standard::is_input(file)).count();
    if readers > 1 {
        let line = "standard input (-) can be only one of the lists; give files for the others";
        return Err(Exit::Usage.with(line));
    }
    if readers == 1 {
        standard::named_input().map_err(|fact| crate::agent::words::source(&fact))?;
    }
    Ok(())
}

/// Writes to standard output.
///
/// # Errors
///
/// Exit 6 if it cannot be written; exit 141 without a message if its reader has closed it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use crate::fs::standard;
    printed(standard::output().and_then(|output| standard::write_all(output, text.as_bytes())))
}

/// Turns a failed write to standard output into the command's failure.
fn printed(written: std::io::Result<()>) -> Result<(), Failure> {
    use std::io::ErrorKind;
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::SinkClosed),
        _ => Exit::Destination.with(format!("cannot write standard output: {}", fault::printable(&error.to_string()))),
    })
}

/// Returns the failure for a wrong command line: a sentence, and the usage.
fn usage(command: &clap::Command, message: &str) -> Failure {
    let usage = command.clone().render_usage();
    Exit::Usage.with(format!("{message}; see --help\n{usage}"))
}

/// Prints the text that clap made for `--help` or `--version`.
fn asked_for(text: &clap::Error) -> Result<(), Failure> {
    use std::io::Write;
    // clap's own handle knows whether the terminal shows colours. The handle is flushed, because it holds back an
    // unfinished line.
    printed(crate::fs::standard::output().and_then(|_| text.print()).and_then(|()| std::io::stdout().flush()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_is_explained() {
        for (errno, expected) in [
            (libc::EAGAIN, "Resource temporarily unavailable (errno 11): the process limit"),
            (libc::ENOMEM, "Cannot allocate memory (errno 12)"),
            (libc::EPERM, "Operation not permitted (errno 1)"),
        ] {
            let error = std::io::Error::from_raw_os_error(errno);
            let line = no_thread(&format!("{error:?}"));
            assert!(line.starts_with(&format!("cannot start a thread: {expected}")), "{line}");
            assert_eq!(line.contains("ulimit"), errno == libc::EAGAIN, "{line}");
        }
        assert_eq!(no_thread("other"), "cannot start a thread: other");
    }
}
