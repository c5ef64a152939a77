//! Refuses options that have no meaning for the task of a command, because a user who gives an option expects it to
//! have an effect.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::fault::escaped;

/// Identifiers of the options that say how another host is reached and how its agent is started.
pub(super) const LAUNCHING: &[&str] = &[
    "rsh",
    "launcher",
    "parallel",
    "port",
    "identity",
    "jump",
    "configuration",
    "option",
    "agent",
    "no_bootstrap",
    "bootstrap",
];

/// Identifiers of the options that are words for ssh. Only the first has a long name, and so can be a setting.
const OF_SSH: [&str; 5] = ["port", "identity", "jump", "configuration", "option"];

/// Returns why a setting about ssh, or one that replaces ssh, has no effect beside stronger values. See
/// [`super::Arguments::idle`].
pub(super) fn idle_launching(given: &ArgMatches, key: &str) -> Option<String> {
    let launcher = given.get_one::<OsString>("launcher").filter(|launcher| *launcher != "ssh")?;
    let is_for_ssh = OF_SSH.iter().any(|id| given.contains_id(id));
    match key {
        "ssh-port" => Some(format!("it is for ssh, which --launcher {} replaces", escaped(launcher))),
        "launcher" if is_for_ssh => Some("-P, -i, -J, -F and -o are for ssh, which it replaces".to_owned()),
        _ => None,
    }
}

/// Options by their identifiers, the tasks for which they have a meaning, and these tasks in words.
pub(super) type Use<T> = (&'static [&'static str], fn(&T) -> bool, &'static str);

/// Returns what is wrong with a command line, if an option on it has no meaning for `task`. `name` is the task's name.
pub(super) fn refused<T>(
    uses: &[Use<T>],
    command: &Command,
    given: &ArgMatches,
    task: &T,
    name: &str,
) -> Option<String> {
    let unused = uses.iter().filter(|(_, is_for, _)| !is_for(task));
    let mut options = unused.flat_map(|(options, _, words)| options.iter().map(move |option| (option, words)));
    let (option, words) = options.find_map(|(id, words)| Some((typed(command, given, id)?, words)))?;
    Some(format!("{option} cannot be used with {name}; it is for {words}"))
}

/// Returns an option in the form in which it is typed, if it is on the command line.
pub(super) fn typed(command: &Command, given: &ArgMatches, id: &str) -> Option<String> {
    if given.value_source(id) != Some(ValueSource::CommandLine) {
        return None;
    }
    let option = command.get_arguments().find(|option| option.get_id() == id)?;
    let letter = option.get_short().map(|letter| format!("-{letter}"));
    option.get_long().map(|word| format!("--{word}")).or(letter)
}

/// Checks that each option of a command occurs in its table exactly once.
#[cfg(test)]
pub(super) fn hold_to<T>(uses: &[Use<T>], command: &Command) {
    let ids = command.get_arguments().filter(|option| !option.is_positional()).map(|option| option.get_id().as_str());
    let (mut ids, mut known) =
        (ids.collect::<Vec<_>>(), uses.iter().flat_map(|(options, ..)| options.iter().copied()).collect::<Vec<_>>());
    ids.sort_unstable();
    known.sort_unstable();
    assert_eq!(ids, known);
}
