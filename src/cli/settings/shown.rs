//! `--show-config`: shows every setting of a command as it would be used, and where it comes from. The output is valid
//! TOML.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::ErrorKind;

use clap::builder::ArgAction;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::{REFUSED, Settings};
use crate::fault::{escaped, is_unprintable};

/// Column in which the origins begin, unless a value is longer.
const COLUMN: usize = 40;

impl Settings {
    /// Returns the text that shows all settings.
    pub(in crate::cli) fn shown(&self, command: &mut Command) -> String {
        let mut text = String::new();
        for (path, is_there) in &self.files {
            let is_denied = || path.metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
            let state = match is_there {
                true => "",
                false if is_denied() => ", which this user may not look up",
                false => ", which does not exist",
            };
            let _ = writeln!(text, "# {}{state}", escaped(path.as_os_str()));
        }
        if self.files.is_empty() {
            text.push_str("# no settings file is read\n");
        }
        let Ok(matches) = command.try_get_matches_from_mut(self.with(|_| true, None)) else { return text };
        for option in command.get_arguments() {
            let Some(key) = option.get_long() else { continue };
            let source = matches.value_source(option.get_id().as_str());
            let setting = self.taken.iter().find(|setting| setting.key == key);
            let may_be_set = !REFUSED.iter().any(|(_, keys)| keys.contains(&key));
            if option.is_hide_set() || !may_be_set && (source != Some(ValueSource::CommandLine) || key == "show-config")
            {
                continue;
            }
            let origin = match (setting, source) {
                (Some(setting), _) => setting.origin.to_string(),
                (None, Some(ValueSource::CommandLine)) => "command line".to_owned(),
                (None, _) => "default".to_owned(),
            };
            line(&mut text, &value(option, key, &matches), &origin);
            for (setting, reason) in self.left_out.iter().filter(|(setting, _)| setting.key == key) {
                let words: Vec<_> = setting.words.iter().map(|word| escaped(word)).collect();
                line(&mut text, &format!("# {}", words.join(" ")), &format!("{}, ignored: {reason}", setting.origin));
            }
        }
        text
    }
}

fn line(text: &mut String, value: &str, origin: &str) {
    let _ = writeln!(text, "{value:COLUMN$} # {origin}");
}

/// Returns `key = value`, or a comment if the option has no value.
fn value(option: &Arg, key: &str, matches: &ArgMatches) -> String {
    let id = option.get_id().as_str();
    let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
    match option.get_action() {
        ArgAction::Count => format!("{key} = {}", matches.get_count(id)),
        action if !action.takes_values() => format!("{key} = {is_given}"),
        action => {
            let values: Vec<String> = matches.get_raw(id).into_iter().flatten().map(quoted).collect();
            match (action, &values[..]) {
                (ArgAction::Append, [_, ..]) => format!("{key} = [{}]", values.join(", ")),
                (_, [one]) => format!("{key} = {one}"),
                _ => format!("# {key} is not set"),
            }
        }
    }
}

/// Formats a value as TOML.
pub(super) fn quoted(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    if text.parse::<u32>().is_ok_and(|number| number.to_string() == text) {
        return text.into_owned();
    }
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if is_unprintable(letter) => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
