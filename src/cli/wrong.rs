//! Describes a wrong command line in one line: what is wrong, and what would be right.
//!
//! clap's own text takes five lines. Its tips mislead: they suggest passing an unknown option as a file, or using an
//! option that only looks similar.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, Error};

use crate::fault::escaped;

/// Describes in one line why clap could not parse `words`.
pub(crate) fn line_of(error: &Error, definition: &mut Command, words: &[OsString]) -> String {
    match lacking(error, definition, words) {
        Some((option, lacks)) if lacks == ["--sync"] => {
            let name = option.split([' ', '=']).next().unwrap_or(&option);
            format!("{name} needs --sync: rdcp --sync -r {option} SRC/ DST")
        }
        Some((option, lacks)) => {
            let name = option.split(' ').next().unwrap_or(&option);
            format!("{name} needs {}; see --help", lacks.join(" and "))
        }
        None if error.kind() == ErrorKind::UnknownArgument => unknown(error, words),
        // The error comes from this package, for a file that cannot be read. --help has nothing about that.
        None if error.context().next().is_none() => reason(error),
        None => line(error),
    }
}

/// Describes an unknown option. clap names only a letter; a word with a space in it is shown as typed.
fn unknown(error: &Error, words: &[OsString]) -> String {
    let text = error.get(ContextKind::InvalidArg).map(texts).unwrap_or_default().concat();
    let is_it = |word: &&OsString| word.as_bytes().starts_with(text.as_bytes()) && word.as_bytes().contains(&b' ');
    let typed = words.iter().skip(1).find(is_it).filter(|_| text.starts_with('-'));
    let said = typed.map_or_else(|| line(error), |word| format!("unknown option '{}'; see --help", escaped(word)));
    match of_file(words) {
        Some(advice) => format!("{}; {advice}", said.trim_end_matches("; see --help")),
        None => said,
    }
}

/// Refuses a word with one hyphen that is the name of a long option: as letters, it would mean something else. `others`
/// are names that the command knows beside its options.
pub(super) fn single_dash(
    word: &OsStr,
    command: &Command,
    others: impl Iterator<Item = &'static str>,
) -> Option<String> {
    let name = word.to_str()?.strip_prefix('-')?.split('=').next()?;
    let is_own = command.get_arguments().filter_map(Arg::get_long).any(|long| long == name);
    let is_known = is_own || others.chain(["help", "version"]).any(|long| long == name);
    // A shorter name may well be letters.
    (name.len() > 2 && is_known).then(|| format!("-{name}: did you mean --{name}? see --help"))
}

/// Does the same with all words that may be options. Also refuses an option that may be given only once.
pub(super) fn misread(command: &Command, words: &[OsString]) -> Option<String> {
    let options = options_in(command, words);
    let single = options.iter().find_map(|word| single_dash(word, command, std::iter::empty()));
    single.or_else(|| repeated(command, &options))
}

/// Returns the words that are options, or letters of options, without the values that follow them.
fn options_in<'a>(command: &Command, words: &'a [OsString]) -> Vec<&'a OsStr> {
    // Behind the host of `rdsh` stands another command.
    let last = command.get_positionals().position(Arg::is_trailing_var_arg_set);
    let (mut options, mut positionals) = (Vec::new(), 0);
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word.len() > 1 && word.as_bytes().starts_with(b"-") {
            options.push(word.as_os_str());
            if takes_next(command, word) {
                words.next();
            }
        } else if last == Some(positionals) {
            break;
        } else {
            positionals += 1;
        }
    }
    options
}

/// Whether an option takes the next word as its value.
pub(super) fn takes_word(option: &Arg) -> bool {
    option.get_action().takes_values() && !option.is_require_equals_set()
}

/// Whether the word after an option, or after letters of options, is the value of the last.
pub(super) fn takes_next(command: &Command, word: &OsStr) -> bool {
    let Some(rest) = word.to_str().and_then(|word| word.strip_prefix('-')) else { return false };
    let mut valued = command.get_arguments().filter(|option| takes_word(option));
    if let Some(name) = rest.strip_prefix('-') {
        return valued.any(|option| option.get_long() == Some(name));
    }
    let letters: Vec<char> = valued.filter_map(Arg::get_short).collect();
    let has_value = |letter: char| letters.contains(&letter);
    // What follows such a letter in the same word is its value.
    rest.find(has_value).is_some_and(|at| rest[at..].chars().count() == 1)
}

/// Names the last option of a command line that has taken a word as its value, with that word, if both were `typed` so;
/// empty if there is none.
pub(super) fn besides(command: &Command, words: &[OsString], typed: &[OsString]) -> String {
    let (mut words, mut taken) = (words.iter(), String::new());
    while let Some(word) = words.next() {
        if takes_next(command, word)
            && let Some(value) = words.next()
            && typed.windows(2).any(|two| two[0] == *word && two[1] == *value)
        {
            // The value of such an option may contain a password.
            let is_secret = ["--rsh", "--launcher", "-o"].iter().any(|option| word == option);
            let value = if is_secret { "…".to_owned() } else { escaped(value) };
            taken = format!(" besides {} {value}", escaped(word));
        }
    }
    taken
}

/// Options of which the last must not silently replace the others, because hosts, networks or files would be left out.
const ONCE: [&str; 16] = [
    "backup-dir",
    "chown",
    "files-from",
    "hosts",
    "hosts-failed",
    "join",
    "jump",
    "key-fd",
    "key-file",
    "manifest",
    "manifest-b3sum",
    "report",
    "snapshot",
    "target-directory",
    "trace",
    "via",
];

/// Refuses such an option if it is given more than once.
fn repeated(command: &Command, options: &[&OsStr]) -> Option<String> {
    command.get_arguments().find_map(|option| {
        // -J has no long name.
        let name = option.get_long().unwrap_or(option.get_id().as_str());
        let is_single = matches!(option.get_action(), ArgAction::Set) && ONCE.contains(&name);
        let long = option.get_long().filter(|_| is_single).map(|name| format!("--{name}"));
        let short = option.get_short().filter(|_| is_single).map(|letter| format!("-{letter}"));
        let is_it = |word: &OsStr| {
            let rest = long.as_ref().and_then(|long| word.as_bytes().strip_prefix(long.as_bytes()));
            let is_long = rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'=');
            is_long || short.as_ref().is_some_and(|short| word.as_bytes().starts_with(short.as_bytes()))
        };
        let is_repeated = options.iter().filter(|word| is_it(word)).count() > 1;
        let name = long.as_ref().or(short.as_ref()).filter(|_| is_repeated)?;
        Some(format!("{name} may be given only once; see --help"))
    })
}

/// Returns advice on how to type the name of a file that looks like an option.
pub(super) fn of_file(words: &[OsString]) -> Option<String> {
    let is_file = |word: &&OsString| {
        word.len() > 1 && word.as_bytes().starts_with(b"-") && std::path::Path::new(word).symlink_metadata().is_ok()
    };
    let word = escaped(words.iter().skip(1).take_while(|word| *word != "--").find(is_file)?);
    Some(format!("for the file {word}, type ./{word}, or put it after --"))
}

/// Returns the option of `words` that needs missing options, and these. clap names only the missing ones.
fn lacking(error: &Error, definition: &mut Command, words: &[OsString]) -> Option<(String, Vec<String>)> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let are_options = !missing.is_empty() && missing.iter().all(|lacks| lacks.starts_with("--"));
    if error.kind() != ErrorKind::MissingRequiredArgument || !are_options {
        return None;
    }
    let mut all = words.to_vec();
    let names: Vec<&str> = missing.iter().map(|lacks| split(lacks).0).collect();
    for (lacks, name) in missing.iter().zip(&names) {
        // Every option accepts this value.
        all.insert(1, if name == lacks { name.into() } else { format!("{name}=1").into() });
    }
    let given = definition.try_get_matches_from_mut(&all).ok()?;
    let options: Vec<_> = definition.get_arguments().filter(|option| !option.is_positional()).cloned().collect();
    let program = words.first()?;
    options.into_iter().find_map(|option| {
        let is_missing = |word: &str| names.iter().any(|name| name.strip_prefix("--") == Some(word));
        let (id, word) = (option.get_id().as_str(), option.get_long().filter(|word| !is_missing(word))?);
        if given.value_source(id) != Some(ValueSource::CommandLine) {
            return None;
        }
        let takes = option.get_action().takes_values();
        let value = given.get_raw(id).filter(|_| takes).and_then(|mut values| values.next());
        let mut alone = OsString::from(format!("--{word}"));
        if let Some(value) = value {
            alone.push("=");
            alone.push(value);
        }
        let needs = definition.try_get_matches_from_mut([program, &alone]).err()?;
        let Some(ContextValue::Strings(needed)) = needs.get(ContextKind::InvalidArg) else { return None };
        let is_needed = |name: &&str| needed.iter().any(|needed| split(needed).0 == *name);
        if needs.kind() != ErrorKind::MissingRequiredArgument || !names.iter().all(is_needed) {
            return None;
        }
        let of = option.get_value_names().and_then(|names| names.first()).filter(|_| takes);
        Some((of.map_or(format!("--{word}"), |of| format!("--{word} {of}")), lacks(error)))
    })
}

/// Describes in one line what clap could not parse.
pub(crate) fn line(error: &Error) -> String {
    let said = reason(error);
    let mark = if said.ends_with('?') && said.contains("; did you mean ") { "" } else { ";" };
    format!("{said}{mark} see --help")
}

/// Returns the arguments that a command line lacks.
pub(super) fn lacks(error: &Error) -> Vec<String> {
    let names = error.get(ContextKind::InvalidArg).map(texts).unwrap_or_default();
    names.iter().map(|name| name.replace(['<', '>'], "")).collect()
}

/// Like `line`, but without advice.
pub(crate) fn reason(error: &Error) -> String {
    let text = |kind| error.get(kind).map(texts).unwrap_or_default();
    let option = text(ContextKind::InvalidArg);
    let value = escaped(OsStr::new(&text(ContextKind::InvalidValue).join(" ")));
    let name = option.first().map(String::as_str).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if name.starts_with('-') => {
            let name = escaped(OsStr::new(name));
            let similar = text(ContextKind::SuggestedArg).into_iter().find(|similar| is_slip(&name, similar));
            match similar {
                Some(similar) => format!("unknown option {name}; did you mean {similar}?"),
                None => match instead_of(error, &name) {
                    Some(instead) => format!("unknown option {name}; {instead}"),
                    None => format!("unknown option {name}"),
                },
            }
        }
        ErrorKind::UnknownArgument => format!("unexpected argument {}", escaped(OsStr::new(name))),
        // A flag that counts ends in dots here.
        ErrorKind::TooManyValues if name.starts_with('-') => format!("{} takes no value", name.trim_end_matches('.')),
        ErrorKind::TooManyValues => format!("too many arguments: {value}"),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if value.is_empty() && !name.is_empty() => {
            let wanted = text(ContextKind::ValidValue);
            match (split(name), wanted.is_empty()) {
                ((name, _), false) => format!("{name} needs {}", one_of(&wanted)),
                ((name, Some(of)), true) => format!("{name} needs a value: {of}"),
                ((name, None), true) => format!("{name} needs a value"),
            }
        }
        ErrorKind::InvalidValue => {
            format!("{} {value}: expected {}", split(name).0, one_of(&text(ContextKind::ValidValue)))
        }
        ErrorKind::ValueValidation if !name.is_empty() => {
            let reason = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{} {value}: {}", split(name).0, reworded(&reason))
        }
        ErrorKind::ArgumentConflict => {
            let prior = text(ContextKind::PriorArg);
            let prior: Vec<&str> = prior.iter().map(|prior| split(prior).0).collect();
            format!("{} cannot be used with {}", split(name).0, prior.join(" and "))
        }
        ErrorKind::MissingRequiredArgument => format!("missing: {}", lacks(error).join(", ")),
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
        _ => {
            let text = error.render().to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    }
}

/// Returns what replaces an option that users know from similar programs.
fn instead_of(error: &Error, option: &str) -> Option<&'static str> {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let is_of = |name: &str| usage.contains(name);
    match option {
        // These take a port that is not an option.
        _ if is_of("rdsend ") || is_of("rdrecv ") => of_nc(option),
        _ if is_of("rdperf ") => of_perftest(option),
        "-p" => Some("ssh's port is -P PORT"),
        _ if is_of("rdpipe ") && !option.starts_with("--") => Some("quote COMMAND and its options: HOST:'COMMAND -x'"),
        _ => None,
    }
}

/// Returns what replaces an option of perftest at `rdperf`.
fn of_perftest(option: &str) -> Option<&'static str> {
    let instead = match option {
        "-a" => "for all message lengths, use --all",
        "-b" => "to send both ways at once, use --bidirectional",
        "-d" => "to choose the network, use --via ADDRESS|INTERFACE",
        "-D" | "--seconds" => "for the time, use --duration SECONDS",
        "-n" => "for the number of messages, use --iterations N",
        "-p" => "the port of rdperf serve follows its host, HOST:PORT; ssh's port is -P PORT",
        "-q" => "for several connections, use --qp N",
        "-s" => "for the size of messages, use --size SIZE",
        _ => return None,
    };
    Some(instead)
}

/// Returns what replaces an option of nc or mbuffer at `rdsend` and `rdrecv`.
fn of_nc(letter: &str) -> Option<&'static str> {
    let instead = match letter {
        "-p" | "-P" => "PORT needs no option",
        "-l" | "-I" => "rdrecv PORT listens",
        "-O" => "rdsend HOST PORT sends",
        "-N" => "the end of the stream is always passed on",
        "-w" => "use rdsend --connect-timeout SECONDS, or rdrecv --wait SECONDS",
        "-k" => "rdrecv receives one stream; the systemd unit rdrecv@PORT waits for the next",
        "-m" => "for memory, use --buffer SIZE",
        "-s" => "for the block size, use --chunk SIZE",
        "-r" | "-R" => "to limit the rate, use rdsend --bwlimit RATE",
        _ => return None,
    };
    Some(instead)
}

fn texts(value: &ContextValue) -> Vec<String> {
    match value {
        ContextValue::String(text) => vec![text.clone()],
        ContextValue::Strings(texts) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Lists the values of which one is expected.
fn one_of(values: &[String]) -> String {
    format!("{}{}", if values.len() > 1 { "one of " } else { "" }, values.join(", "))
}

/// Splits `--via <ADDRESS>` or `--verify=<WHERE>` into the option's name and the name of its value.
fn split(option: &str) -> (&str, Option<&str>) {
    match option.split_once(['=', ' ', '[']) {
        Some((name, value)) if name.starts_with('-') => (name, Some(value.trim_matches(['<', '>', '[', ']', '=']))),
        _ => (option, None),
    }
}

/// Rewords a parser's reason for a user who typed a number.
fn reworded(reason: &str) -> String {
    if let Some((_, range)) = reason.split_once(" is not in ")
        && let Some((first, last)) = range.split_once("..=")
    {
        return format!("give {first} to {last}");
    }
    match reason {
        "invalid digit found in string" | "cannot parse integer from empty string" => "not a number".to_owned(),
        reason if reason.starts_with("number too ") => "out of range".to_owned(),
        reason => reason.to_owned(),
    }
}

/// Whether `typed` is probably a slip for `meant`: cut short, or with one wrong letter, or two in a long word.
fn is_slip(typed: &str, meant: &str) -> bool {
    let [typed, meant] = [typed, meant].map(|word| word.trim_start_matches('-'));
    let least = typed.len().min(meant.len());
    let is_cut = least >= 3 && (typed.starts_with(meant) || meant.starts_with(typed));
    is_cut || least >= 3 && strsim::osa_distance(typed, meant) <= if least >= 8 { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definitions;

    /// Returns the words of a command line, and the definition of its command.
    fn line(typed: &str) -> (Command, Vec<OsString>) {
        let words: Vec<OsString> = typed.split(' ').map(OsString::from).collect();
        let command = definitions().into_iter().find(|command| words[0] == command.get_name());
        (command.expect("one of ours"), words)
    }

    #[test]
    fn one_line_says_what_is_wrong() {
        for (typed, expected) in [
            ("rdcp -Q", "unknown option -Q; see --help"),
            ("rdcp --links", "unknown option --links; see --help"),
            ("rdcp --lane 3", "unknown option --lane; did you mean --lanes? see --help"),
            ("rdcp --in-plac", "unknown option --in-plac; did you mean --in-place? see --help"),
            ("rdcp --recrusive", "unknown option --recrusive; did you mean --recursive? see --help"),
            ("rdcp -?", "unknown option -?; see --help"),
            ("rdperf h -s 4096", "unknown option -s; for the size of messages, use --size SIZE; see --help"),
            ("rdperf h --seconds 3", "unknown option --seconds; for the time, use --duration SECONDS; see --help"),
            ("rdperf h -Z", "unknown option -Z; see --help"),
            ("rddoctor -p 22 h", "unknown option -p; ssh's port is -P PORT; see --help"),
            ("rdrecv -p 5000", "unknown option -p; PORT needs no option; see --help"),
            ("rdrecv -l 5000", "unknown option -l; rdrecv PORT listens; see --help"),
            (
                "rdsend -w 3 h 5000",
                "unknown option -w; use rdsend --connect-timeout SECONDS, or rdrecv --wait SECONDS; see --help",
            ),
            ("rdsend -Z h 5000", "unknown option -Z; see --help"),
            ("rdsh --agent a --via", "--via needs a value: ADDRESS|INTERFACE; see --help"),
            ("rdcp --recursive=yes a b", "--recursive takes no value; see --help"),
            ("rdcp --verbose=2 a b", "--verbose takes no value; see --help"),
            ("rdcp --help=foo", "--help takes no value; see --help"),
            ("rdsend a 1 k f g", "too many arguments: g; see --help"),
            ("rdcp a b --transport foo", "--transport foo: expected one of auto, rdma, prefer-rdma, tcp; see --help"),
            ("rdcp --verify=cached a b", "--verify cached: expected disk; see --help"),
            ("rdpipe h:ls -l", "unknown option -l; quote COMMAND and its options: HOST:'COMMAND -x'; see --help"),
            ("rdpipe h:ls --block-size", "unknown option --block-size; see --help"),
            ("rdcp a b --transport", "--transport needs one of auto, rdma, prefer-rdma, tcp; see --help"),
            ("rdcp a b --exclude", "--exclude needs a value: PATTERN; see --help"),
            ("rdcp a b --lanes 99", "--lanes 99: give 1 to 16; see --help"),
            ("rdcp a b --reconnect soon", "--reconnect soon: not a number; see --help"),
            ("rdcp a b --chunk 1", "--chunk 1: give 4K to 1M; see --help"),
            ("rdcp a b --relay --via x", "--relay cannot be used with --via; see --help"),
            ("rdcp --sync a b --backup-dir x --in-place", "--backup-dir cannot be used with --in-place; see --help"),
            (
                "rdcp --sync a b --backup-dir x --append-verify",
                "--backup-dir cannot be used with --append-verify; see --help",
            ),
            (
                "rdcp --sync a b --find-moves --append-verify",
                "--find-moves cannot be used with --append-verify; see --help",
            ),
            ("rdsend h 1 --json=x --json-fd 3", "--json cannot be used with --json-fd; see --help"),
            ("rdperf h --compare x", "--compare needs --plot FILE; see --help"),
            ("rdcp -b a b", "--backup needs --sync and --backup-dir DIR; see --help"),
            ("rdcp -r --delete a b", "--delete needs --sync: rdcp --sync -r --delete SRC/ DST"),
            ("rdcp --max-size 1M a b", "--max-size needs --sync: rdcp --sync -r --max-size SIZE SRC/ DST"),
            ("rdcp --watch -v a b", "--watch needs --sync: rdcp --sync -r --watch SRC/ DST"),
            ("rdcp --manifest m a b", "--manifest needs --recursive; see --help"),
            ("rdcp a b --shell", "unknown option --shell; see --help"),
        ] {
            let (mut command, words) = line(typed);
            let error = command.try_get_matches_from_mut(&words).expect_err(typed);
            assert_eq!(line_of(&error, &mut command, &words), expected, "{typed}");
        }
    }

    #[test]
    fn a_long_option_with_one_hyphen_is_not_read_as_letters() {
        for (typed, expected) in [
            ("rdcp -transport tcp a h:", Some("transport")),
            ("rdpipe -no-label h:ls", Some("no-label")),
            ("rdrecv 0 -port-range=1-2", Some("port-range")),
            ("rdsend -version", Some("version")),
            ("rddoctor h -help", Some("help")),
            ("rdsh -relay h ls", Some("relay")),
            ("rdsh h java -version", None),
            ("rdsh -l relay h ls", None),
            ("rdsh -l me -via ib0 ls", Some("via")),
            ("rdsh -4l me h -via ib0 ls", Some("via")),
            ("rdsh h -via ib0 ls", Some("via")),
            ("rdsh h ls -via ib0", None),
            ("rdsh -o -via h ls", None),
            ("rdperf -- -via", None),
            ("rdpipe -nv h:ls", None),
            ("rdperf h -qp 2", None),
            ("rdrecv -1", None),
        ] {
            let (command, words) = line(typed);
            let expected = expected.map(|name| format!("-{name}: did you mean --{name}? see --help"));
            assert_eq!(misread(&command, &words), expected, "{typed}");
        }
    }

    #[test]
    fn what_names_hosts_or_files_may_be_given_once() {
        for (typed, expected) in [
            ("rdcp --hosts a --hosts=b x y", Some("hosts")),
            ("rdcp -t a -t b x", Some("target-directory")),
            ("rdcp -t a --target-directory=b x", Some("target-directory")),
            ("rdcp --files-from a --files-from a x y", Some("files-from")),
            ("rdsend --key-file a --key-file b h 1", Some("key-file")),
            ("rddoctor --hosts a --hosts b", Some("hosts")),
            ("rdcp --hosts a --hosts-failed a x y", None),
            ("rdcp -t -t x", None),
            ("rdcp --via a --via b x y:", Some("via")),
            ("rdcp --manifest a --manifest=b x y:", Some("manifest")),
            ("rdsh -J a -J b h ls", None),
            ("rdpipe -J a -J b ls", Some("jump")),
            ("rdcp --to a:x --to b:x x y:", None),
            ("rdcp --hosts a x -- --hosts", None),
            ("rdsh h rdcp -t a -t b x", None),
        ] {
            let (command, words) = line(typed);
            let shown = |name| if name == "jump" { "-J".to_owned() } else { format!("--{name}") };
            let expected = expected.map(|name| format!("{} may be given only once; see --help", shown(name)));
            assert_eq!(misread(&command, &words), expected, "{typed}");
        }
    }

    /// What was given twice is given: of values, the last one counts.
    #[test]
    fn an_option_may_be_repeated() {
        for mut command in definitions() {
            let name = command.get_name().to_owned();
            let flags: Vec<Arg> = command
                .get_arguments()
                .filter(|option| !option.get_action().takes_values() && option.get_long().is_some())
                .cloned()
                .collect();
            for flag in flags.iter().filter(|flag| !matches!(flag.get_action(), ArgAction::Version)) {
                let word = format!("--{}", flag.get_long().unwrap_or_default());
                if let Err(error) = command.try_get_matches_from_mut([&name, &word, &word]) {
                    let is_lack = error.kind() == ErrorKind::MissingRequiredArgument;
                    assert!(is_lack, "{name} {word}: {}", reason(&error));
                }
            }
            let typed = ["--color", "never", "--color", "always"];
            let given = command.try_get_matches_from_mut([&*name].into_iter().chain(typed)).expect("values");
            assert_eq!(given.get_raw("color").expect("a value").collect::<Vec<_>>(), ["always"], "{name}");
        }
        let [mut copy, ..] = definitions();
        let line = "rdcp --exclude a -v --to h:x --exclude b -v --to i:x -o A=b -o C=d";
        let given = copy.try_get_matches_from_mut(line.split(' ')).expect("options that collect");
        assert_eq!(given.get_count("verbose"), 2);
        for id in ["exclude", "to", "option"] {
            assert_eq!(given.get_raw(id).map(|values| values.len()), Some(2), "{id}");
        }
    }

    #[test]
    fn the_option_that_lacks_another_is_named() {
        let mut command = definitions().into_iter().find(|command| command.get_name() == "rdcp").expect("one of ours");
        let words = ["rdcp", "--sync", "--files-from=l", "--manifest=m", "a", "b"].map(OsString::from);
        let error = command.try_get_matches_from_mut(&words).expect_err("no --recursive");
        assert_eq!(line_of(&error, &mut command, &words), "--manifest needs --recursive; see --help");
    }

    #[test]
    fn a_word_with_a_space_is_shown_whole() {
        let mut command = definitions().into_iter().find(|command| command.get_name() == "rdcp").expect("one of ours");
        let words = ["rdcp", "a", "- *.o", "b"].map(OsString::from);
        let error = command.try_get_matches_from_mut(&words).expect_err("no option");
        assert_eq!(line_of(&error, &mut command, &words), "unknown option '- *.o'; see --help");
    }

    #[test]
    fn words_that_only_look_alike_are_no_slips() {
        for (typed, meant) in [("--links", "--lanes"), ("--from", "--fsync"), ("-P", "--plot"), ("--stats", "--sram")] {
            assert!(!is_slip(typed, meant), "{typed} {meant}");
        }
        for (typed, meant) in [("--dryrun", "--dry-run"), ("--verb", "--verbose"), ("--vai", "--via")] {
            assert!(is_slip(typed, meant), "{typed} {meant}");
        }
    }
}
