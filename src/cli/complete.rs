//! Completions. `rdma-pipe complete SHELL NAME LINE [TEXT]` prints what may stand at the cursor of a command line of
//! the command NAME. `rdma-pipe complete SHELL` prints the script that makes the shell ask.
//!
//! LINE is the line up to the cursor, as typed. TEXT is the end of its last word, which bash would replace. The first
//! line of an answer says whether the shell is to add names of local files. Each further line is a word, and after a
//! tab its meaning. Typed text is never run or expanded, and the user is never asked anything. The answer comes within
//! one second, or not at all.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::ArgAction;
use clap::{Arg, Command, CommandFactory, ValueHint};

use super::habits;
use super::hosts;
use super::rdcp;
use super::settings;
use super::wrong;
use super::{agent, definitions};
use crate::fault::{Exit, Failure, escaped};
use crate::job::plan::Spec;
use crate::job::targets::expand;

mod line;
mod remote;

pub use line::Shell;
use line::{Word, quoted, words};
#[cfg(any(test, feature = "fuzzing"))]
pub use remote::fuzz;

/// How long finding the answer may take.
const ANSWER_MAX: Duration = Duration::from_millis(900);

/// How long a person may wait in all, including the end of a process that did not answer.
const ALL_MAX: Duration = Duration::from_millis(980);

/// Identifiers of `rdcp` options that say how a host is reached. If the command line has them, they are also used to
/// ask the host for names.
const WAYS: [&str; 7] = ["rsh", "launcher", "port", "identity", "jump", "configuration", "option"];

/// Tasks of `rdperf` besides measuring the way to a host.
const TASKS: [&str; 4] = ["serve", "disk", "mem", "model"];

/// Names of option values that are files or directories.
const FILES: [&str; 4] = ["FILE", "DIR", "PATH", "COMMAND"];

/// Returns the script with which a shell completes a command.
pub fn script(shell: Shell, name: &str) -> String {
    let script = match shell {
        Shell::Bash => include_str!("complete/script.bash"),
        Shell::Zsh => include_str!("complete/script.zsh"),
        Shell::Fish => include_str!("complete/script.fish"),
    };
    script.replace("NAME", name).replace("FUNCTION", &name.replace('-', "_"))
}

fn commands() -> Vec<Command> {
    let mut commands: Vec<Command> = definitions().into_iter().chain([agent::AgentArguments::command()]).collect();
    // Adds --help and --version.
    commands.iter_mut().for_each(Command::build);
    commands
}

/// Runs `rdma-pipe complete`; `words` are those behind these two names.
pub(super) fn answer(words: &[OsString]) -> Result<(), Failure> {
    let usage = || Exit::Usage.with("usage: rdma-pipe complete SHELL [NAME LINE [TEXT]]; SHELL is bash, zsh or fish");
    let shell = match words.first().and_then(|word| word.to_str()) {
        Some("bash") => Shell::Bash,
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => return Err(usage()),
    };
    match words {
        [_] => {
            let scripts = commands().iter().map(|command| script(shell, command.get_name())).collect::<String>();
            super::print(&scripts)
        }
        [_, name, line, text @ ..] if text.len() <= 1 => {
            let until = Instant::now() + ANSWER_MAX;
            // Files of settings, the user's or those of ssh, may be on a file system that does not answer.
            std::thread::spawn(|| {
                std::thread::sleep(ALL_MAX);
                std::process::exit(i32::from(Exit::Connect.code()));
            });
            let text = text.first().and_then(|text| text.to_str()).unwrap_or_default();
            // A line that is not UTF-8 has local names, which the shell itself can complete.
            let found = line.to_str().map_or_else(Found::files, |line| found(shell, name, line, until));
            super::print(&found.shown(shell, text))
        }
        _ => Err(usage()),
    }
}

/// What may stand at the cursor.
#[derive(Debug, Default)]
struct Found {
    /// Whether names of local files may stand there too.
    files: bool,
    /// Whole words, each with its meaning.
    words: Vec<(String, String)>,
    /// The part of the word that has been typed.
    typed: Word,
}

impl Found {
    fn files() -> Self {
        Self { files: true, ..Self::default() }
    }

    fn words(words: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { words: words.into_iter().collect(), ..Self::default() }
    }

    /// Returns the text of the answer. `text` is what bash would replace.
    fn shown(mut self, shell: Shell, text: &str) -> String {
        if shell == Shell::Bash && self.files && !self.words.is_empty() {
            // Bash itself cannot add names of files to a list of words.
            let typed = &self.typed.value;
            let at = typed.find('=').filter(|_| typed.starts_with("--")).map_or(0, |at| at + 1);
            let (front, prefix) = typed.split_at(at);
            let names = local_names(prefix).into_iter().map(as_path);
            self.words.extend(names.map(|name| (format!("{front}{name}"), String::new())));
            self.files = false;
        }
        // A name that contains a line end or an escape sequence must be typed by hand.
        self.words.retain(|(word, _)| escaped(OsStr::new(word)) == *word);
        self.words.sort();
        let mut shown = String::from(if self.files { "files\n" } else { "none\n" });
        for (word, about) in &self.words {
            let written = match shell {
                Shell::Bash => for_bash(word, &self.typed.raw, text),
                Shell::Zsh | Shell::Fish => Some(word.clone()),
            };
            let Some(written) = written else { continue };
            shown.push_str(&written);
            if shell != Shell::Bash && !about.is_empty() {
                shown.push('\t');
                shown.push_str(about);
            }
            shown.push('\n');
        }
        shown
    }
}

/// Returns what bash must write in place of `text`, the end of what is typed, so that the whole word becomes `word`.
/// `None` if `word` does not begin with the rest of what is typed.
fn for_bash(word: &str, typed: &str, text: &str) -> Option<String> {
    let head = typed.strip_suffix(text).unwrap_or_default();
    let stays = words(head, Shell::Bash).pop().unwrap_or_default();
    quoted(word.strip_prefix(&stays.value)?, stays.quote, head.is_empty())
}

/// Returns the names in the current directory that begin with `prefix`. Names of directories end in a slash.
fn local_names(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(".").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_shown = name.starts_with(prefix) && (prefix.starts_with('.') || !name.starts_with('.'));
        let slash = || if Path::new(&name).is_dir() { "/" } else { "" };
        is_shown.then(|| format!("{name}{}", slash()))
    });
    names.collect()
}

/// Returns a local name as it must be written: `./NAME` if it would otherwise be read as a host or an option.
fn as_path(name: String) -> String {
    if name.contains(':') || name.starts_with('-') { format!("./{name}") } else { name }
}

/// Returns the text of a word as the shell will pass it: an unquoted `~/` stands for the home directory.
fn with_home(word: Word) -> String {
    match std::env::var("HOME") {
        Ok(home) if word.raw.starts_with("~/") => format!("{home}{}", &word.value[1..]),
        _ => word.value,
    }
}

/// Returns what may stand at the end of the line.
fn found(shell: Shell, name: &OsStr, line: &str, until: Instant) -> Found {
    let mut line = words(line, shell);
    let typed = line.pop().unwrap_or_default();
    let commands = commands();
    let command = commands.iter().find(|command| name == command.get_name());
    let (Some(command), false) = (command, typed.is_open || typed.is_shells) else { return Found::files() };
    // The command name may follow sudo or env, and their arguments.
    let is_it = |word: &Word| Path::new(&word.value).file_name() == Some(name);
    let start = line.iter().position(is_it).map_or(0, |at| at + 1);
    let before = line.split_off(start.min(line.len()));
    // A redirection such as `2>&1` is no word for ssh, and runs nothing; `<(COMMAND)` is an argument.
    let is_plain = |raw: &str| !raw.contains(['$', '`', '(', ')', ';', '|']) && !raw.ends_with('&');
    let runs = |word: &Word| word.is_open && !(word.is_shells && is_plain(&word.raw));
    let is_open = before.iter().any(runs);
    let before = before.into_iter().filter(|word| !word.is_shells).map(with_home).collect();
    let given = Given { is_open, ..Given::of(command, before) };
    let found = given.found(command, &typed.value, until);
    Found { typed, ..found }
}

/// The words before the cursor.
#[derive(Default)]
struct Given<'a> {
    /// Options with their values, if they have any.
    options: Vec<(&'a Arg, Option<String>)>,
    /// Arguments that are not options.
    positionals: Vec<String>,
    /// The option whose value comes next.
    pending: Option<&'a Arg>,
    /// Whether no more options may come: after `--`, or within a command that `rdsh` runs.
    is_over: bool,
    /// Whether a word contains something that only the shell can evaluate, so that its text is not known.
    is_open: bool,
}

impl<'a> Given<'a> {
    fn of(command: &'a Command, words: Vec<String>) -> Self {
        let words = match command.get_name() {
            // The line may be typed as for scp or rsync.
            "rdcp" => {
                let exists = |name: &OsStr| Path::new(name).symlink_metadata().is_ok();
                let translated = habits::translate(words.iter().map(OsString::from), command, exists);
                let translated = translated.ok().filter(|done| !done.words.is_empty());
                let text = |word: OsString| word.into_string().unwrap_or_default();
                translated.map_or(words, |done| done.words.into_iter().map(text).collect())
            }
            _ => words,
        };
        let mut given = Self::default();
        for word in words {
            given.add(command, word);
        }
        given
    }

    fn add(&mut self, command: &'a Command, word: String) {
        if let Some(option) = self.pending.take() {
            self.options.push((option, Some(word)));
        } else if self.is_over || word == "-" || !word.starts_with('-') {
            self.positionals.push(word);
            // Arguments after the host of `rdsh` are the command to run.
            self.is_over |= command.get_positionals().any(|arg| arg.is_trailing_var_arg_set());
        } else if word == "--" {
            self.is_over = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (long, value) = long.split_once('=').map_or((long, None), |(long, value)| (long, Some(value)));
            let option = command.get_arguments().find(|arg| arg.get_long() == Some(long));
            match option {
                Some(option) if value.is_none() && wrong::takes_word(option) => self.pending = Some(option),
                Some(option) => self.options.push((option, value.map(str::to_owned))),
                None => {}
            }
        } else {
            for (at, letter) in word.char_indices().skip(1) {
                let Some(option) = command.get_arguments().find(|arg| arg.get_short() == Some(letter)) else {
                    continue;
                };
                if !wrong::takes_word(option) {
                    self.options.push((option, None));
                    continue;
                }
                match &word[at + letter.len_utf8()..] {
                    "" => self.pending = Some(option),
                    value => self.options.push((option, Some(value.to_owned()))),
                }
                break;
            }
        }
    }

    fn found(&self, command: &Command, typed: &str, until: Instant) -> Found {
        if let Some(option) = self.pending {
            return self.value(option, typed, "", until);
        }
        if !self.is_over && typed.starts_with('-') {
            return match typed.strip_prefix("--").and_then(|long| long.split_once('=')) {
                Some((long, value)) => match command.get_arguments().find(|arg| arg.get_long() == Some(long)) {
                    Some(option) => self.value(option, value, &format!("--{long}="), until),
                    None => Found::default(),
                },
                None => self.option(command, typed),
            };
        }
        let place = self.positionals.len();
        match (command.get_name(), place) {
            ("rdcp", _) => self.path(typed, "", until, true),
            ("rdpipe", _) => Found { files: true, ..self.host(typed, "", ":") },
            ("rdsh" | "rddoctor" | "rdsend", 0) => self.host(typed, "", ""),
            ("rdperf", 0) => {
                let mut found = self.host(typed, "", "");
                found.words.extend(starting(typed, "", TASKS.into_iter().map(|task| (task, ""))));
                found
            }
            ("rdperf", 1) if self.positionals[0] == "disk" => Found::files(),
            ("rdperf", 1) if !TASKS.contains(&&*self.positionals[0]) => {
                let modes = [
                    ("bw", "Bandwidth"),
                    ("lat", "Latency"),
                    ("ping", "Latency, every message compared"),
                    ("qps", "Throughput by number of connections"),
                    ("rails", "Each network separately, and all at once"),
                    ("limits", "What limits a copy to HOST"),
                ];
                Found::words(starting(typed, "", modes.into_iter()))
            }
            // A port cannot be completed.
            ("rdsend", 1) | ("rdrecv", 0) | ("rddoctor" | "rdperf" | "rdma-pipe-agent", _) => Found::default(),
            _ => Found::files(),
        }
    }

    /// Returns the options that begin with `typed`, do not conflict with given options, and may be given once more.
    fn option(&self, command: &Command, typed: &str) -> Found {
        let is_given = |arg: &Arg| self.options.iter().any(|(given, _)| given.get_id() == arg.get_id());
        let may_come = |arg: &&Arg| {
            let may_repeat = matches!(arg.get_action(), ArgAction::Append | ArgAction::Count);
            // It is enough that one of the two options declares the conflict.
            let conflicts = |one: &Arg, other: &Arg| {
                command.get_arg_conflicts_with(one).iter().any(|excluded| excluded.get_id() == other.get_id())
            };
            let is_excluded = self
                .options
                .iter()
                .any(|(given, _)| given.get_id() != arg.get_id() && (conflicts(given, arg) || conflicts(arg, given)));
            !arg.is_positional() && !arg.is_hide_set() && (may_repeat || !is_given(arg)) && !is_excluded
        };
        let written = |arg: &Arg| {
            let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
            // Each description gets a single line.
            let about = about.split(';').next().unwrap_or_default().to_owned();
            let long = arg.get_long().map(|long| format!("--{long}"));
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            let forms = if typed == "-" { vec![long, short] } else { vec![long.or(short)] };
            forms.into_iter().flatten().map(move |form| (form, about.clone()))
        };
        let all = command.get_arguments().filter(may_come).flat_map(written);
        Found::words(all.filter(|(form, _)| form.starts_with(typed)))
    }

    /// Returns possible values of an option. `front` is the part of the word before the value.
    fn value(&self, option: &Arg, typed: &str, front: &str, until: Instant) -> Found {
        let values = option.get_possible_values();
        if !values.is_empty() {
            let named = values.iter().filter(|value| !value.is_hide_set());
            let named = named.map(|value| {
                (format!("{front}{}", value.get_name()), value.get_help().map(ToString::to_string).unwrap_or_default())
            });
            return Found::words(
                named.filter(|(word, _)| word.strip_prefix(front).is_some_and(|it| it.starts_with(typed))),
            );
        }
        match option.get_id().as_str() {
            "to" => return self.path(typed, front, until, false),
            "target_directory" => return self.path(typed, front, until, true),
            "jump" | "J" => return self.host(typed, front, ""),
            _ => {}
        }
        let names = option.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().flat_map(|name| name.split('|')).collect();
        let is_path = [ValueHint::AnyPath, ValueHint::FilePath, ValueHint::DirPath].contains(&option.get_value_hint());
        let is_word = |name: &&str| name.chars().all(|letter| letter.is_ascii_lowercase());
        let literal = names.iter().copied().filter(is_word).map(|name| (name, ""));
        let is_file = |name: &&str| FILES.iter().any(|file| name == file || name.starts_with("FILE."));
        Found { files: is_path || names.iter().any(is_file), ..Found::words(starting(typed, front, literal)) }
    }

    /// Returns hosts, each followed by `behind`.
    fn host(&self, typed: &str, front: &str, behind: &str) -> Found {
        let (user, name) = typed.rsplit_once('@').map_or(("", typed), |(user, name)| (&typed[..=user.len()], name));
        if typed.contains(['/', ':']) && !name.starts_with('[') {
            return Found::default();
        }
        let configuration = self.ways("configuration").next().map(PathBuf::from);
        let mut hosts = hosts::of_ssh(configuration.as_deref());
        hosts.extend(settings::hosts().into_iter().filter_map(|host| host.into_string().ok()));
        // A host that contains colons is an address, which needs brackets if another colon follows.
        let written = |host: String| if host.contains(':') && !behind.is_empty() { format!("[{host}]") } else { host };
        let hosts: BTreeSet<String> = hosts.into_iter().map(written).filter(|host| host.starts_with(name)).collect();
        Found::words(hosts.into_iter().map(|host| (format!("{front}{user}{host}{behind}"), String::new())))
    }

    /// Returns completions of `HOST:PATH`; if `local`, names of local files too.
    fn path(&self, typed: &str, front: &str, until: Instant, local: bool) -> Found {
        match Spec::parse(OsStr::new(typed)) {
            Ok(Spec::There(host, path)) => {
                let path = path.to_string_lossy();
                Found::words(self.remote(typed, front, &host, &path, until).unwrap_or_default())
            }
            // The word is invalid already.
            Err(_) if typed.contains(':') => Found::default(),
            _ => Found { files: local, ..self.host(typed, front, ":") },
        }
    }

    /// Returns completions of a path on a host; `None` if the host cannot be asked or does not answer.
    fn remote(
        &self,
        typed: &str,
        front: &str,
        host: &OsStr,
        path: &str,
        until: Instant,
    ) -> Option<Vec<(String, String)>> {
        // ssh would be given another option, host or program than is typed.
        if self.is_open {
            return None;
        }
        // Of a list of hosts, only the first is asked.
        let host = expand(host).ok()?.into_iter().next()?;
        let written = host.to_str().filter(|host| escaped(OsStr::new(host)) == **host)?;
        let at = path.rfind('/').map_or(0, |at| at + 1);
        let (directory, prefix) = path.split_at(at);
        // The home of a user, whose name is not complete yet.
        if directory.is_empty() && prefix.starts_with('~') {
            return Some(if prefix == "~" { vec![(format!("{front}{typed}/"), String::new())] } else { Vec::new() });
        }
        let mut line = vec![OsString::from("rdcp")];
        for way in WAYS {
            let command = rdcp::CopyArguments::command();
            let option = command.get_arguments().find(|arg| arg.get_id() == way)?;
            let name = match (option.get_long(), option.get_short()) {
                (Some(long), _) => format!("--{long}="),
                (None, Some(short)) => format!("-{short}"),
                (None, None) => continue,
            };
            line.extend(self.ways(way).map(|value| OsString::from(format!("{name}{value}"))));
        }
        // The host is named as in a copy, so that the settings for this host apply.
        let place = if written.contains(':') {
            let (user, name) =
                written.rsplit_once('@').map_or(("", written), |(user, name)| (&written[..=user.len()], name));
            format!("{user}[{name}]:x")
        } else {
            format!("{written}:x")
        };
        line.extend([OsString::from("--"), place.into(), "y".into()]);
        let launcher = rdcp::unasking_launcher(line)?;
        let names = remote::names(&launcher, &host, directory, prefix, until)?;
        let front = format!("{front}{}", &typed[..typed.len() - prefix.len()]);
        let word =
            |(name, is_directory)| (format!("{front}{name}{}", if is_directory { "/" } else { "" }), String::new());
        Some(names.into_iter().map(word).collect())
    }

    /// Returns the given values of an option.
    fn ways(&self, id: &str) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(option, _)| option.get_id() == id).filter_map(|(_, value)| value.as_deref())
    }
}

/// Returns those words that begin with `typed`.
fn starting<'a>(
    typed: &'a str,
    front: &'a str,
    words: impl Iterator<Item = (&'a str, &'a str)>,
) -> impl Iterator<Item = (String, String)> {
    words
        .filter(move |(word, _)| word.starts_with(typed))
        .map(move |(word, about)| (format!("{front}{word}"), about.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of an answer for which no host has to be asked.
    fn answered(name: &str, line: &str) -> (bool, Vec<String>) {
        let found = found(Shell::Fish, OsStr::new(name), line, Instant::now());
        (found.files, found.words.into_iter().map(|(word, _)| word).collect())
    }

    fn values(words: &[&str]) -> (bool, Vec<String>) {
        (false, words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn options_and_their_values() {
        assert_eq!(answered("rdcp", "rdcp --transp"), values(&["--transport"]));
        assert_eq!(answered("rdcp", "sudo /usr/bin/rdcp --transp"), values(&["--transport"]));
        assert_eq!(answered("rdcp", "rdcp --transport pre"), values(&["prefer-rdma"]));
        assert_eq!(answered("rdcp", "rdcp --transport=pre"), values(&["--transport=prefer-rdma"]));
        // The option takes its value only after an equals sign.
        assert_eq!(answered("rdcp", "rdcp --verif"), values(&["--verify"]));
        assert_eq!(answered("rdcp", "rdcp --check=d"), values(&["--check=disk"]));
        assert_eq!(answered("rdcp", "rdcp --launcher sl"), (true, vec!["slurm".to_owned()]));
        assert_eq!(answered("rdcp", "rdcp --lanes "), values(&[]));
        assert_eq!(answered("rdcp", "rdcp --hosts x"), (true, Vec::new()));
        assert_eq!(answered("rdcp", "rdcp --vers"), values(&["--version"]));
        assert_eq!(answered("rdma-pipe-agent", "rdma-pipe-agent --vers"), values(&["--version"]));
        // Already given; in conflict with a given option; hidden; repeatable.
        assert_eq!(answered("rdcp", "rdcp --transport tcp --transp"), values(&[]));
        assert_eq!(answered("rdcp", "rdcp -n --watc"), values(&[]));
        assert_eq!(answered("rdcp", "rdcp --negat"), values(&[]));
        assert_eq!(answered("rdcp", "rdcp --exclude x --exclude"), values(&["--exclude", "--exclude-from"]));
        // Options as users of rsync type them.
        assert_eq!(answered("rdcp", "rdcp -avz --transport t"), values(&["tcp"]));
        // After `--`, and after the host of `rdsh`, there are no more options.
        assert!(answered("rdcp", "rdcp -- --tr").1.is_empty());
        assert_eq!(answered("rdsh", "rdsh host ls --tr"), (true, Vec::new()));
        assert_eq!(answered("rdperf", "rdperf ser"), values(&["serve"]));
        assert_eq!(answered("rdperf", "rdperf host li"), values(&["limits"]));
        assert_eq!(answered("rdperf", "rdperf disk li"), (true, Vec::new()));
        assert_eq!(answered("rdperf", "rdperf serve "), values(&[]));
        assert_eq!(answered("none", "none --tr"), (true, Vec::new()));
    }

    #[test]
    fn nothing_is_asked_where_it_is_not_known_what() {
        for word in ["$(x):a", "`x`:a", "\"$x:a", "a:$b", "x;y:a"] {
            assert_eq!(answered("rdcp", &format!("rdcp {word}")), (true, Vec::new()), "{word}");
        }
        for word in ["-x:a", ":a", "@h:a", "a::b", "s3://x/y", "fe80::1:/x"] {
            assert_eq!(answered("rdcp", &format!("rdcp -- {word}")), values(&[]), "{word}");
        }
        // These launchers cannot be told not to ask the user anything.
        for way in ["--rsh 'ssh -v'", "--rsh other", "--launcher slurm", "--launcher 'x %h'"] {
            assert_eq!(answered("rdcp", &format!("rdcp {way} host:a")), values(&[]), "{way}");
        }
        assert!(
            answered("rdcp", "rdcp ./a:b").0 && answered("rdcp", "rdcp a/b:c").0 && answered("rdcp", "rdcp a >h:b").0
        );
    }

    #[test]
    fn bash_is_given_what_it_replaces() {
        for (word, typed, text, expected) in [
            ("h:a b", "h:a", "a", Some("a\\ b")),
            ("h:a b", "'h:a", "h:a", Some("h:a b")),
            ("h:a'b", "'h:a", "h:a", Some("h:a'\\''b")),
            ("h:a b/c", "h:a\\ b/", "/", Some("/c")),
            ("--x=y", "--x=", "", Some("y")),
            ("u@h:", "u@h", "h", Some("h:")),
            ("[x]:y", "[x]:", "", Some("y")),
            ("[x]", "[", "[", Some("\\[x\\]")),
            // The candidate does not begin with what is typed.
            ("h:a", "g:a", "a", None),
        ] {
            assert_eq!(for_bash(word, typed, text).as_deref(), expected, "{word} {typed} {text}");
        }
    }

    #[test]
    fn names_that_would_reach_the_terminal_are_left_out() {
        let words = ["a", "b\u{1b}[2J", "c\nd", "e\u{9b}1m", "f\tg", "ü"].map(|word| (word.to_owned(), String::new()));
        assert_eq!(Found::words(words).shown(Shell::Zsh, ""), "none\na\nü\n");
    }
}
