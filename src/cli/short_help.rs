//! `-h`: what a command does, how it is used, and its usual options. `--help` and the manual have all options.

use clap::Command;

use super::examples::{self, Example};

/// Maximum number of examples shown.
const EXAMPLES_MAX: usize = 4;

/// Maximum number of columns of an example, including its meaning.
const COLUMNS_MAX: usize = 80;

/// The identifier of an option, and its meaning in a few words.
type Usual = (&'static str, &'static str);

/// Options of several commands.
const PORT: Usual = ("port", "SSH port");
const IDENTITY: Usual = ("identity", "SSH key");
const VIA: Usual = ("via", "Network to send the data over");
const RELAY: Usual = ("relay", "Send data through the SSH connection");
const TRANSPORT: Usual = ("transport", "auto, rdma, prefer-rdma or tcp");
const COMPRESS: Usual = ("compress", "off, auto, lz4 or zstd");
const ENCRYPT: Usual = ("encrypt", "auto, always or never");
const LIMIT: Usual = ("bwlimit", "Limit in bytes/s, such as 200M");
const RECONNECT: Usual = ("reconnect", "Seconds to wait for a lost connection");
const KEY_FILE: Usual = ("key_file", "Read KEY from the first line of FILE");
const PORTS: Usual = ("port_range", "Ports to listen on");
const VERBOSE: Usual = ("verbose", "Print the data's route and what limited it");
const QUIET: Usual = ("quiet", "Print only errors and warnings");
const PROGRESS: Usual = ("progress", "Show progress even without a terminal");
const JSON: Usual = ("json", "Report as JSON, to standard output or FILE");

/// The name of a command, its examples, its own usual options, and those that it shares with others.
type Page = (&'static str, &'static [Example], &'static [Usual], &'static [Usual]);

const USUAL: &[Page] = &[
    (
        "rdcp",
        examples::RDCP,
        &[
            ("recursive", "Copy directories"),
            ("sync", "Send only what differs; SRC/ as with rsync"),
            ("delete", "With --sync, delete what SRC does not have"),
            ("exclude", "Exclude what matches PATTERN"),
            ("dry_run", "Only print what would be done"),
            ("target_directory", "Copy into DIR"),
            ("to", "Also copy to HOST:PATH"),
            ("verify", "Read all data back from disk and compare"),
        ],
        &[PORT, IDENTITY, VIA, TRANSPORT, COMPRESS, LIMIT, VERBOSE, QUIET, JSON],
    ),
    (
        "rdpipe",
        examples::RDPIPE,
        &[
            ("dry_run", "Only print what would be run"),
            ("shell", "Shell to run COMMAND, instead of sh"),
            ("no_label", "Do not label standard error"),
            ("slow", "Wait for a slow host, or drop it"),
        ],
        &[PORT, IDENTITY, VIA, RELAY, TRANSPORT, COMPRESS, LIMIT, VERBOSE, QUIET, PROGRESS, JSON],
    ),
    (
        "rdsh",
        examples::RDSH,
        &[
            ("F", "SSH config file"),
            ("i", "SSH key"),
            ("J", "SSH jump host"),
            ("l", "User to log in as"),
            ("n", "Use /dev/null as standard input"),
            ("o", "SSH option, such as Compression=no"),
            ("p", "SSH port"),
            ("t", "Allocate a terminal: left to ssh"),
            ("v", "Print the route, and what is left to ssh"),
        ],
        &[VIA, RELAY, TRANSPORT, COMPRESS],
    ),
    (
        "rdsend",
        examples::RDSEND,
        &[("connect_timeout", "Seconds to keep trying to connect")],
        &[KEY_FILE, TRANSPORT, ENCRYPT, COMPRESS, RECONNECT, LIMIT, VERBOSE, QUIET, PROGRESS, JSON],
    ),
    (
        "rdrecv",
        examples::RDRECV,
        &[("wait", "Seconds to wait for a sender")],
        &[KEY_FILE, TRANSPORT, ENCRYPT, PORTS, RECONNECT, VERBOSE, QUIET, PROGRESS, JSON],
    ),
    (
        "rdperf",
        examples::RDPERF,
        &[
            ("all", "All message lengths, 2 B to 8 MiB"),
            ("size", "Size of each message"),
            ("duration", "Seconds per message length"),
            ("qp", "Connections: queue pairs, or TCP streams"),
            ("bidirectional", "Both ends send at once"),
            ("poll", "Busy-poll for messages"),
            ("plot", "Plot the results as SVG"),
            ("verbose", "Print events as they happen"),
        ],
        &[TRANSPORT, JSON, KEY_FILE, PORT, IDENTITY],
    ),
    (
        "rddoctor",
        examples::RDDOCTOR,
        &[
            ("hosts", "Check the hosts listed in FILE"),
            ("json", "Print the findings as one JSON object"),
            ("fix_script", "Print the fixes as a shell script"),
            ("drill", "Inject faults into test copies"),
            ("seconds", "Seconds to measure; 0 skips this"),
        ],
        &[TRANSPORT, PORTS, PORT, IDENTITY, VIA],
    ),
];

/// Returns the command with an `-h` that shows only the usual options.
pub(super) fn shortened(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let Some((_, examples, own, shared)) = USUAL.iter().find(|(known, ..)| *known == name) else { return command };
    let columns = console::Term::stdout().size_checked().map_or(COLUMNS_MAX, |(_, columns)| columns.into());
    let template = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";
    command
        .mut_args(|option| match own.iter().chain(*shared).find(|(id, _)| option.get_id() == id) {
            Some((_, words)) => {
                let has_value = option.get_action().takes_values();
                let option = option.help(*words).help_heading(None::<&str>);
                if has_value { option.hide_default_value(true).hide_possible_values(true) } else { option }
            }
            None => option.hide_short_help(true),
        })
        .help_template(template)
        .before_help(shown(examples, columns))
        .after_help(format!("All options: {name} --help; man {name}"))
}

/// Formats examples, one per line. If the terminal has few columns, meanings that do not fit have their own lines.
fn shown(examples: &[Example], columns: usize) -> String {
    let line = |(line, meaning): &Example| {
        let with = format!("  {line}  # {}", meaning.trim_end_matches('.'));
        match with.chars().count() {
            count if count <= columns.min(COLUMNS_MAX) => with,
            _ if columns < COLUMNS_MAX => format!("{}\n      {meaning}", broken(line, columns)),
            _ => format!("  {line}"),
        }
    };
    let lines: Vec<String> = examples.iter().take(EXAMPLES_MAX).map(line).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// Breaks a command line that is longer than the terminal, as a shell continues one. A quoted word may not be broken.
fn broken(line: &str, columns: usize) -> String {
    let (mut text, mut used) = (" ".to_owned(), 1);
    for word in line.split(' ') {
        let count = word.chars().count();
        if used > 5 && used + count + 3 > columns && !line.contains('\'') {
            text += " \\\n     ";
            used = 5;
        }
        text = text + " " + word;
        used += 1 + count;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definitions;

    #[test]
    fn it_is_a_page_that_fits_a_terminal() {
        for definition in definitions() {
            let name = definition.get_name().to_owned();
            let (_, _, own, shared) = USUAL.iter().find(|(known, ..)| *known == name).expect("a row for each command");
            let usual: Vec<&Usual> = own.iter().chain(*shared).collect();
            for (id, _) in &usual {
                assert!(definition.get_arguments().any(|option| option.get_id() == id), "{name}: no option {id}");
            }
            let text = shortened(definition).render_help().to_string();
            assert!(text.lines().count() <= 40, "{name}: {} lines:\n{text}", text.lines().count());
            for line in text.lines() {
                assert!(line.chars().count() <= COLUMNS_MAX, "{name}: {line}");
            }
            let options = text.lines().filter(|line| line.trim_start().starts_with('-')).count();
            assert_eq!(options, usual.len() + 1 + usize::from(name != "rdsh"), "with --help and --version:\n{text}");
            assert!(text.contains("\nExamples:\n") && text.ends_with(&format!("man {name}\n")), "{text}");
        }
    }

    /// A wrapped meaning would look like a further example.
    #[test]
    fn meanings_have_their_own_lines_on_a_narrow_terminal() {
        let examples = [("rdcp -r data/ backup:/srv/", "A tree, to another host."), ("rdcp a b", "A file.")];
        let narrow = "Examples:\n  rdcp -r data/ backup:/srv/\n      A tree, to another host.\n  rdcp a b  # A file";
        assert_eq!(shown(&examples, 40), narrow);
        let wide = "Examples:\n  rdcp -r data/ backup:/srv/  # A tree, to another host\n  rdcp a b  # A file";
        assert_eq!(shown(&examples, 80), wide);
        let long = [("rdcp gpu1:/data/weights.bin gpu2:/data/", "Between two hosts.")];
        let broken = "  rdcp gpu1:/data/weights.bin \\\n      gpu2:/data/\n      Between two hosts.";
        assert_eq!(shown(&long, 40), format!("Examples:\n{broken}"));
    }
}
