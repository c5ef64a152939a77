//! Patterns for names: `--exclude`, `--include`, and files of patterns.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// A pattern that excludes entries, or includes them again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Rule {
    /// The pattern, in rsync's syntax.
    #[n(0)]
    pub pattern: ByteVec,
    /// Whether entries that match are included, instead of excluded.
    #[n(1)]
    pub is_include: bool,
}

/// The rules of `--exclude` and `--include`, also from files, in the order of the command line. The first rule that
/// matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Rules(#[n(0)] pub Vec<Rule>);

/// A command line option that gives rules.
struct RuleOption {
    name: &'static str,
    is_include: bool,
    is_file: bool,
    help: &'static str,
}

const RULE_OPTIONS: [RuleOption; 4] = [
    RuleOption {
        name: "exclude",
        is_include: false,
        is_file: false,
        help: "Exclude entries that match PATTERN, in rsync's syntax; the first matching pattern of all --exclude and \
            --include options decides; without --sync, each SRC itself is copied in any case",
    },
    RuleOption {
        name: "include",
        is_include: true,
        is_file: false,
        help: "Include entries that match PATTERN, despite a later --exclude",
    },
    RuleOption {
        name: "exclude-from",
        is_include: false,
        is_file: true,
        help: "Exclude what matches a line of FILE, or of standard input (-); lines that are empty or begin with # or ; are \
            ignored, lines that begin with \"+ \" include, and a line ! clears all patterns before it",
    },
    RuleOption {
        name: "include-from",
        is_include: true,
        is_file: true,
        help: "Include what matches a line of FILE, or of standard input (-); lines that begin with \"- \" exclude",
    },
];

/// Maximum size of a file of patterns, in bytes. The message in which rules are sent holds fewer.
const RULES_FILE_BYTES_MAX: u64 = 1 << 20;

impl Args for Rules {
    fn augment_args(command: Command) -> Command {
        RULE_OPTIONS.iter().fold(command, |command, option| {
            let parser = clap::value_parser!(OsString);
            command.arg(
                Arg::new(option.name)
                    .long(option.name)
                    .value_name(if option.is_file { "FILE" } else { "PATTERN" })
                    .action(ArgAction::Append)
                    .value_parser(parser)
                    .help(option.help),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut rules = Self::default();
        rules.update_from_arg_matches(matches)?;
        Ok(rules)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut all = Vec::new();
        for option in &RULE_OPTIONS {
            let places = matches.indices_of(option.name).into_iter().flatten();
            let values = matches.get_many::<OsString>(option.name).into_iter().flatten();
            all.extend(places.zip(values).map(|(place, value)| (place, option, value.clone())));
        }
        all.sort_by_key(|(place, ..)| *place);
        let end = if matches!(matches.try_get_one("from0"), Ok(Some(true))) { 0 } else { b'\n' };
        for (_, option, value) in all {
            if option.is_file {
                read_rules(&mut self.0, &value, option.is_include, end).map_err(|reason| {
                    let line = format!("--{} {}: {reason}\n", option.name, value.as_bytes().escape_ascii());
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, line)
                })?;
            } else {
                add_rule(&mut self.0, value.as_bytes(), option.is_include);
            }
        }
        Ok(())
    }
}

/// Adds the rules in a file, which is read as rsync reads one. `end` is the byte that ends each rule, unless the file
/// has only lines.
fn read_rules(rules: &mut Vec<Rule>, file: &OsStr, is_include: bool, end: u8) -> Result<(), String> {
    let text = read_bounded(file, RULES_FILE_BYTES_MAX, "; use fewer patterns, with more wildcards")?;
    if end != 0 && text.contains(&0) {
        return Err("zero byte in a pattern; use -0 if zero bytes end the patterns".to_owned());
    }
    // A file of lines beside -0, such as one that a settings file names. As a single pattern it would match nothing.
    let end = if text.contains(&0) || !text.contains(&b'\n') { end } else { b'\n' };
    add_lines_of_rules(rules, &text, is_include, end);
    Ok(())
}

/// Reads a file named on the command line, or standard input (`-`).
///
/// # Errors
///
/// Fails if the file cannot be read, or is longer than `bytes_max`; `advice` is what to do then.
pub(crate) fn read_bounded(file: &OsStr, bytes_max: u64, advice: &str) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = match file.as_bytes() {
        b"-" => std::io::stdin().take(bytes_max + 1).read_to_end(&mut text),
        _ => std::fs::File::open(file).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut text)),
    };
    // The wording of all other messages.
    read.map_err(|error| error.to_string().replace("(os error ", "(errno "))?;
    let is_whole = text.len() as u64 <= bytes_max;
    if is_whole { Ok(text) } else { Err(format!("larger than {} MiB{advice}", bytes_max >> 20)) }
}

fn add_lines_of_rules(rules: &mut Vec<Rule>, text: &[u8], is_include: bool, end: u8) {
    let is_end = |&byte: &u8| byte == end || end == b'\n' && byte == b'\r';
    let lines = text.split(is_end);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#") && !line.starts_with(b";"));
    lines.for_each(|line| add_rule(rules, line, is_include));
}

/// Adds one rule. As with rsync, the text may itself say what the rule does: `+ PATTERN` includes, `- PATTERN`
/// excludes, and `!` drops all rules so far.
fn add_rule(rules: &mut Vec<Rule>, text: &[u8], is_include: bool) {
    let (pattern, is_include) = match text {
        b"!" => return rules.clear(),
        [b'+', b' ', rest @ ..] => (rest, true),
        [b'-', b' ', rest @ ..] => (rest, false),
        text => (text, is_include),
    };
    rules.push(Rule { pattern: pattern.to_vec().into(), is_include });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_said_as_everywhere() {
        let said = read_bounded(OsStr::new("/nowhere/at/all"), 1, "").expect_err("not there");
        assert!(said.ends_with("(errno 2)"), "{said}");
    }

    #[test]
    fn lines_of_files_are_rules() {
        let text = b"dropped\n!\n# a comment\n; another\n\n*.o\n+ keep.o\n- /top\r\n#\n a\nlast";
        let shown = |is_include| -> Vec<(String, bool)> {
            let mut rules = Vec::new();
            add_lines_of_rules(&mut rules, text, is_include, b'\n');
            rules.into_iter().map(|rule| (rule.pattern.escape_ascii().to_string(), rule.is_include)).collect()
        };
        for own in [false, true] {
            let expected = [("*.o", own), ("keep.o", true), ("/top", false), (" a", own), ("last", own)];
            assert_eq!(shown(own), expected.map(|(text, is_include)| (text.to_owned(), is_include)));
        }
        let patterns = |text: &[u8], end| {
            let mut rules = Vec::new();
            add_lines_of_rules(&mut rules, text, false, end);
            rules.into_iter().map(|rule| rule.pattern.to_vec()).collect::<Vec<_>>()
        };
        // As with rsync, each of both bytes ends a line.
        assert_eq!(patterns(b"a\r#b\rc\r\r\nd\n\re", b'\n'), [b"a", b"c", b"d", b"e"]);
        // Patterns that end with a zero byte may contain line ends.
        assert_eq!(patterns(b"a\nb\r\0#\n\0\0c", 0), [&b"a\nb\r"[..], b"c"]);
    }
}
