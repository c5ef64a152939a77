//! Settings, which are defaults of options, from `~/.config/rdma-pipe/config.toml`, `/etc/rdma-pipe/config.toml` and
//! the environment.
//!
//! The definitions of the commands serve as the list of settings. A key is the long name of an option. Its value
//! becomes a word of the command line, which clap checks like any other word. So a setting can do nothing that a
//! command line could not. The command line is the strongest place, then the environment, the user's file, and the
//! system's file. A value set in a stronger place hides those in weaker ones. A setting that conflicts with stronger
//! ones, or lacks an option that it needs, is left out. So is a value that another command accepts, but not this one.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::ArgAction;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::words::split_login;
use super::{Arguments, definitions, wrong};
use crate::fault::{Exit, Failure, escaped};
use crate::fs::accounts::own_home;
use crate::job::targets::expand;
use crate::options::Rule;
use crate::tree::patterns::Patterns;

mod file;
mod shown;

use file::{Entry, HOST, Value};

/// Environment variable that names the only file to be read, or is [`NONE`].
const FILE_VARIABLE: &str = "RDMA_PIPE_CONFIG";

/// Value of [`FILE_VARIABLE`] with which no file is read.
const NONE: &str = "none";

/// Path of a file below the user's or the system's directory of settings.
const BELOW: &str = "rdma-pipe/config.toml";

/// The system's directory of settings.
const SYSTEM: &str = "/etc";

/// Environment variables that act as settings: the variable, its option, and the option's value if that is not the
/// variable's. The commands read these variables themselves; here the variables only take their rank among the
/// settings.
const VARIABLES: [(&str, &str, Option<&str>); 2] = [("RDCP_RSH", "rsh", None), ("NO_COLOR", "color", Some("never"))];

/// Options that no file may set, and the reason.
const REFUSED: [(&str, &[&str]); 4] = [
    (
        "options that delete belong on the command line, each time",
        &["delete", "delete-after", "delete-excluded", "force-empty", "remove-source-files"],
    ),
    ("options that write into existing files belong on the command line, each time", &["in-place", "append-verify"]),
    (
        "options that weaken a comparison belong on the command line, each time",
        &["modify-window", "size-only", "digest-cache"],
    ),
    (
        "it applies to a single command, so it belongs on the command line",
        &[
            "all",
            "backup",
            "check",
            "compare",
            "drill",
            "dry-run",
            "existing",
            "files-from",
            "fix-script",
            "from0",
            "help",
            "hosts",
            "hosts-failed",
            "ignore-existing",
            "join",
            "json",
            "json-fd",
            "key-fd",
            "key-file",
            "manifest",
            "manifest-b3sum",
            "max-size",
            "min-size",
            "negated",
            "read-without-sync",
            "no-target-directory",
            "once",
            "plot",
            "report",
            "show-config",
            "snapshot",
            "target-directory",
            "to",
            "trace",
            "version",
            "watch",
        ],
    ),
];

/// Values that no file may set, of options that it may set to other values.
const REFUSED_VALUES: [(&str, &str, &str); 1] =
    [("encrypt", "never", "options that weaken the check of received data belong on the command line, each time")];

/// Options that give rules about names. Of all rules, the first that matches decides.
const RULES: [&str; 4] = ["exclude", "include", "exclude-from", "include-from"];

/// The places from which settings come.
pub(super) struct Sources {
    /// The files, the strongest first.
    files: Vec<PathBuf>,
    /// Whether the user has named the files, so that they must exist.
    are_named: bool,
    /// Looks up a variable of the environment.
    variable: fn(&str) -> Option<OsString>,
}

impl Sources {
    /// Returns the sources of this process.
    pub(super) fn of_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let named = variable(FILE_VARIABLE);
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let files = match &named {
            Some(none) if none == NONE => Vec::new(),
            Some(file) => vec![PathBuf::from(file)],
            None => {
                let own = absolute("XDG_CONFIG_HOME").or_else(|| Some(PathBuf::from(own_home()?).join(".config")));
                let own = own.filter(|path| path.is_absolute());
                own.into_iter().chain([PathBuf::from(SYSTEM)]).map(|directory| directory.join(BELOW)).collect()
            }
        };
        Self { files, are_named: named.is_some(), variable }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// A line of a file.
    File(PathBuf, usize),
    /// A variable of the environment.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(formatter, "{}:{line}", escaped(path.as_os_str())),
            Self::Variable(name) => write!(formatter, "environment variable {name}"),
        }
    }
}

/// A value for one option of a command.
#[derive(Clone, Debug)]
struct Setting {
    key: String,
    /// The words that set the value on a command line; none for a switch that is off, or an option that is not given.
    words: Vec<OsString>,
    origin: Origin,
    /// Number of the section of a file, or of the part before the sections, the strongest first.
    section: usize,
    /// Number among all settings, the strongest first.
    rank: usize,
}

/// A command line with the settings that apply to it.
pub(super) struct Settings {
    /// The words to be parsed, starting with the program's name.
    pub(super) words: Vec<OsString>,
    /// The words that the user has typed.
    typed: Vec<OsString>,
    taken: Vec<Setting>,
    /// Settings that do not apply, each with the reason.
    left_out: Vec<(Setting, String)>,
    files: Vec<(PathBuf, bool)>,
}

impl Settings {
    /// Returns the settings that apply to a command line, the first word of which is the program's name. `command` is
    /// its definition.
    ///
    /// # Errors
    ///
    /// Exit 1 if a file cannot be used; the message names the line.
    pub(super) fn new<T: Arguments>(
        command: &mut Command,
        words: Vec<OsString>,
        sources: &Sources,
    ) -> Result<Self, Failure> {
        let mut settings =
            Self { typed: words.clone(), words, taken: Vec::new(), left_out: Vec::new(), files: Vec::new() };
        // A command line that is wrong, or asks for help, needs no settings. One that only lacks an option may get it
        // from them.
        let given = match parse(command, &settings.words) {
            Ok((given, _)) if T::refused(&given).is_none() => given,
            _ => return Ok(settings),
        };
        // This comes before files are read, because reading a file may take long.
        T::conceal(&given);
        let usage = |line: String| Exit::Usage.with(line);
        let mut entries = Vec::new();
        for path in &sources.files {
            let is_of_home = !sources.are_named && *path != PathBuf::from(SYSTEM).join(BELOW);
            let read = file::read(path, is_of_home).map_err(usage)?;
            if read.is_none() && sources.are_named {
                let name = escaped(path.as_os_str());
                return Err(usage(format!(
                    "{FILE_VARIABLE} names {name}, which does not exist; create it, or unset the variable"
                )));
            }
            settings.files.push((path.clone(), read.is_some()));
            entries.extend(read.into_iter().flatten().map(|entry| (path.clone(), entry)));
        }
        let mut known = if entries.is_empty() { Vec::new() } else { definitions().into() };
        let name = |host: &OsString| OsString::from_vec(split_login(host.as_bytes()).1.to_vec());
        let named: Vec<OsString> = T::hosts(&given).iter().map(name).collect();
        let mut weaker = environment(command, sources.variable);
        let sections = entries.chunk_by(|(path, one), (other, next)| path == other && one.hosts == next.hosts);
        for (section, entries) in sections.enumerate() {
            for (path, entry) in entries {
                let origin = Origin::File(path.clone(), entry.line);
                let wrong = |reason: String| usage(format!("{origin}: {reason}"));
                let words = check(&mut known, entry).map_err(wrong)?;
                let is_meant = entry.hosts.as_deref().map_or(Ok(true), |hosts| are_meant(hosts, &named));
                if is_meant.map_err(wrong)? && option(command, &entry.key).is_some() {
                    weaker.push(Setting { key: entry.key.clone(), words, origin, section, rank: 0 });
                }
            }
        }
        weaker.iter_mut().enumerate().for_each(|(rank, setting)| setting.rank = rank);
        // Of each key, only the strongest setting is kept.
        let mut keys: BTreeSet<String> = command
            .get_arguments()
            .filter(|option| given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine))
            .filter_map(|option| option.get_long().map(str::to_owned))
            .collect();
        weaker.retain(|setting| keys.insert(setting.key.clone()));
        settings.take_needed::<T>(command, &mut weaker);
        settings.take::<T>(command, weaker);
        settings.words = settings.with(|setting| matches!(setting.origin, Origin::File(..)), None);
        Ok(settings)
    }

    /// Whether the value of a key comes from a file.
    pub(super) fn is_in_file(&self, key: &str) -> bool {
        self.taken.iter().any(|setting| setting.key == key && matches!(setting.origin, Origin::File(..)))
    }

    /// Returns the typed command line with the words of `other` and of the taken settings for which `may` holds.
    fn with(&self, may: impl Fn(&Setting) -> bool, other: Option<&Setting>) -> Vec<OsString> {
        let mut settings: Vec<&Setting> = self.taken.iter().filter(|setting| may(setting)).chain(other).collect();
        // Of options that override each other, clap obeys the last. So the strongest stands last, before the typed.
        settings.sort_by_key(|setting| Reverse(setting.rank));
        let (mut rules, defaults): (Vec<&Setting>, Vec<&Setting>) =
            settings.into_iter().partition(|setting| RULES.contains(&&*setting.key));
        // Of rules, the first that matches decides. So they follow the typed words, and the strongest section is the
        // first. In each section, they keep the order of its lines.
        rules.sort_by_key(|setting| setting.section);
        let (program, typed) = self.typed.split_at(self.typed.len().min(1));
        // Behind `--`, a rule would be a path.
        let end = typed.iter().position(|word| word == "--").unwrap_or(typed.len());
        let mut words = program.to_vec();
        words.extend(defaults.iter().flat_map(|setting| setting.words.iter().cloned()));
        words.extend_from_slice(&typed[..end]);
        words.extend(rules.iter().flat_map(|setting| setting.words.iter().cloned()));
        words.extend_from_slice(&typed[end..]);
        words
    }

    /// Takes the settings that typed options need. This comes before all others, because as long as a typed option
    /// lacks one, no command line can tell which settings go together.
    fn take_needed<T: Arguments>(&mut self, command: &mut Command, weaker: &mut Vec<Setting>) {
        while let Ok((_, lacks)) = parse(command, &self.with(|_| true, None))
            && !lacks.is_empty()
        {
            let helps = |setting: &Setting| match parse(command, &self.with(|_| true, Some(setting))) {
                Ok((given, left)) => {
                    left.len() < lacks.len()
                        && left.iter().all(|name| lacks.contains(name))
                        && T::refused(&given).or_else(|| T::idle(&given, &setting.key)).is_none()
                        && self.misread::<T>(command, &given, &setting.key).is_none()
                }
                Err(_) => false,
            };
            let Some(at) = weaker.iter().position(helps) else { return };
            self.taken.push(weaker.remove(at));
        }
    }

    /// Takes the settings that go with the command line and with the settings already taken. Repeats until none is
    /// taken, because a setting may need another that comes later.
    fn take<T: Arguments>(&mut self, command: &mut Command, mut weaker: Vec<Setting>) {
        loop {
            let count = weaker.len();
            self.left_out.clear();
            for setting in std::mem::take(&mut weaker) {
                match self.obstacle::<T>(command, &setting) {
                    None => self.taken.push(setting),
                    Some(reason) => {
                        self.left_out.push((setting.clone(), reason));
                        weaker.push(setting);
                    }
                }
            }
            if weaker.len() == count {
                return;
            }
        }
    }

    /// Returns why a setting does not go with the command line and the settings already taken.
    fn obstacle<T: Arguments>(&self, command: &mut Command, setting: &Setting) -> Option<String> {
        match parse(command, &self.with(|_| true, Some(setting))) {
            Ok((given, lacks)) if lacks.is_empty() => T::refused(&given)
                .or_else(|| T::idle(&given, &setting.key))
                .or_else(|| self.misread::<T>(command, &given, &setting.key))
                .or_else(|| silenced(&given, &setting.key))
                .or_else(|| overridden(command, &given, setting)),
            Ok((_, lacks)) => Some(format!("needs {}", lacks.join(", "))),
            Err(error) => Some(wrong::reason(&error)),
        }
    }

    /// Returns why a setting is not enough for typed options that need it, if others have been read as if there were no
    /// such setting. See [`Arguments::is_read_without`].
    fn misread<T: Arguments>(&self, command: &mut Command, given: &ArgMatches, key: &str) -> Option<String> {
        let name = format!("--{key}");
        let is_misread =
            T::is_read_without(given, key) && parse(command, &self.typed).is_ok_and(|(_, lacks)| lacks.contains(&name));
        is_misread.then(|| format!("other options were read as without {name}"))
    }
}

/// Parses a command line, also if options on it need others that are missing. Returns the missing ones as well.
fn parse(command: &mut Command, words: &[OsString]) -> Result<(ArgMatches, Vec<String>), clap::Error> {
    let error = match command.try_get_matches_from_mut(words) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => error,
        parsed => return Ok((parsed?, Vec::new())),
    };
    let lacks = wrong::lacks(&error);
    // clap looks for missing options last, so nothing else is wrong.
    let given = command.clone().ignore_errors(true).try_get_matches_from_mut(words)?;
    Ok((given, lacks))
}

/// Returns the hosts for which the files have sections. Patterns are left out, because they name no host, and so are
/// files that cannot be used.
pub(super) fn hosts() -> Vec<OsString> {
    let files = Sources::of_process().files;
    let entries = files.iter().filter_map(|path| file::read(path, true).ok().flatten()).flatten();
    let sections = entries.filter_map(|entry| entry.hosts).filter(|hosts| !hosts.contains(['*', '?']));
    sections.flat_map(|hosts| expand(OsStr::new(&hosts)).unwrap_or_default()).collect()
}

/// Returns why `quiet`, or what it silences, is ignored. Of settings, the stronger counts. Typed, `quiet` does.
fn silenced(given: &ArgMatches, key: &str) -> Option<String> {
    let is_given = |option: &&&str| {
        given.try_contains_id(option).unwrap_or(false) && given.value_source(option) == Some(ValueSource::CommandLine)
    };
    let others: &[&str] = match key {
        "quiet" => &["verbose", "progress"],
        "verbose" | "progress" => &["quiet"],
        _ => &[],
    };
    others.iter().find(is_given).map(|option| format!("--{option} is given or set"))
}

/// Returns why a setting is ignored that a stronger one, or a typed option, overrides.
fn overridden(command: &Command, given: &ArgMatches, setting: &Setting) -> Option<String> {
    let id = option(command, &setting.key)?.get_id().as_str();
    let is_given = setting.words.is_empty() || given.value_source(id) == Some(ValueSource::CommandLine);
    (!is_given).then(|| "a stronger value overrides it".to_owned())
}

/// Whether a command line is refused because of another option, present or missing.
fn is_about_others(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::ArgumentConflict | ErrorKind::MissingRequiredArgument)
}

/// Returns the settings of the environment for options that a command has.
fn environment(command: &Command, variable: fn(&str) -> Option<OsString>) -> Vec<Setting> {
    let setting = |&(name, key, value): &(&'static str, &str, Option<&str>)| {
        option(command, key)?;
        let mut word = OsString::from(format!("--{key}="));
        let set = variable(name)?;
        word.push(value.map_or(&*set, OsStr::new));
        Some(Setting { key: key.to_owned(), words: vec![word], origin: Origin::Variable(name), section: 0, rank: 0 })
    };
    VARIABLES.iter().filter_map(setting).collect()
}

fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| option.get_long() == Some(key))
}

/// Returns the words of an entry, if a file may set its key and any command accepts its value. Commands with the same
/// option may accept different values.
fn check(known: &mut [Command], entry: &Entry) -> Result<Vec<OsString>, String> {
    let key = &*entry.key;
    if let Some((reason, _)) = REFUSED.iter().find(|(_, keys)| keys.contains(&key)) {
        return Err(format!("{key} cannot be set in a file: {reason}"));
    }
    let is_refused = |text: &str| REFUSED_VALUES.iter().find(|(of, value, _)| (*of, *value) == (key, text));
    if let Value::Text(text) = &entry.value
        && let Some((_, value, reason)) = is_refused(text)
    {
        return Err(format!("{key} cannot be set to {value} in a file: {reason}"));
    }
    let mut first = None;
    for command in known.iter_mut() {
        let Some(words) = option(command, key).map(|option| words_of(option, key, &entry.value)) else { continue };
        let accepted = words.and_then(|words| {
            let line = [OsString::from(command.get_name())].into_iter().chain(words.iter().cloned());
            match command.try_get_matches_from_mut(line) {
                Err(error) if !is_about_others(&error) => Err(wrong::reason(&error)),
                _ => Ok(words),
            }
        });
        match accepted {
            Ok(words) => return Ok(words),
            Err(reason) => first = first.or(Some(reason)),
        }
    }
    Err(first.unwrap_or_else(|| unknown(known, key)))
}

/// Returns the words of a command line that give an option this value.
fn words_of(option: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let with = |text: &String| OsString::from(format!("--{key}={text}"));
    let switch = || OsString::from(format!("--{key}"));
    let action = option.get_action();
    let may_be_bare = !action.takes_values() || option.get_num_args().is_some_and(|count| count.min_values() == 0);
    match (value, action) {
        (Value::Switch(is_on), _) if may_be_bare => Ok(is_on.then(switch).into_iter().collect()),
        // The value of a weaker place does not count then. Where there is a default, `false` could be meant as a value.
        (Value::Switch(false), _) if option.get_default_values().is_empty() => Ok(Vec::new()),
        (Value::Switch(_), _) => Err(format!("{key} takes a value, in quotes unless it is a number")),
        (Value::Text(text), ArgAction::Count) => {
            let count: u8 = text.parse().map_err(|_| format!("{key} takes a small number"))?;
            Ok(vec![switch(); count.into()])
        }
        (Value::List(texts), ArgAction::Append) => Ok(texts.iter().map(with).collect()),
        (Value::List(_), _) => Err(format!("{key} does not take a list")),
        (Value::Text(text), action) if action.takes_values() => Ok(vec![with(text)]),
        (Value::Text(_), _) => Err(format!("{key} must be true or false")),
    }
}

/// Returns the message for an unknown key. The nearest key that may be set is named if it was probably meant. A letter
/// means the option that it stands for on a command line.
fn unknown(known: &[Command], key: &str) -> String {
    let said = format!("unknown setting {}", escaped(key.as_ref()));
    let options = || known.iter().flat_map(Command::get_arguments);
    let has_letter = |option: &&Arg| option.get_short().is_some_and(|letter| key.chars().eq([letter]));
    let may_be_set = |key: &&str| !REFUSED.iter().any(|(_, keys)| keys.contains(key));
    if options().any(|option| has_letter(&option)) {
        let longs = || options().filter(has_letter).filter_map(Arg::get_long);
        // rdsh has all letters of ssh.
        let mut of_ssh = known.iter().filter(|command| command.get_name() == "rdsh").flat_map(Command::get_arguments);
        return match longs().find(may_be_set) {
            Some(long) => format!("{said}; did you mean {long}?"),
            None if longs().next().is_none() && of_ssh.any(|option| has_letter(&option)) => {
                format!("{said}; options of ssh that are only a letter belong in ~/.ssh/config")
            }
            None => said,
        };
    }
    let keys = options().filter_map(Arg::get_long).filter(may_be_set);
    let nearest = keys.chain([HOST]).min_by_key(|other| strsim::osa_distance(key, other)).unwrap_or_default();
    let is_near = strsim::osa_distance(key, nearest) <= (key.len() / 3).max(1);
    if is_near { format!("{said}; did you mean {nearest}?") } else { said }
}

/// Whether a section is for one of these hosts. The section's name is a list, as on the command line, of patterns with
/// `*` and `?`.
fn are_meant(section: &str, hosts: &[OsString]) -> Result<bool, String> {
    // Advice is about command lines, where a name with a colon may also be that of a file.
    let without_advice = |reason: String| reason.split("; ").next().unwrap_or_default().to_owned();
    let patterns = expand(OsStr::new(section)).map_err(without_advice)?;
    Ok(patterns.iter().any(|pattern| hosts.iter().any(|host| fits(pattern.as_bytes(), host.as_bytes()))))
}

/// Whether a pattern matches a host. Case makes no difference in names of hosts.
fn fits(pattern: &[u8], host: &[u8]) -> bool {
    let rules = [Rule { pattern: pattern.to_ascii_lowercase().into(), is_include: false }];
    let leaves_out = |patterns: Patterns| patterns.leave_out(&host.to_ascii_lowercase(), false);
    // Addresses have lost their brackets, which mean a list in a section's name. Equality covers names that mean
    // something else as a pattern, such as one that ends in a slash.
    pattern.eq_ignore_ascii_case(host) || Patterns::new(&rules).is_ok_and(leaves_out)
}

#[cfg(test)]
mod tests;
