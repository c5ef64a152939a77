//! Writes the manual pages and shell completions from the definitions that parse the command lines.
//!
//! `cargo run --example man` writes them below `docs/`. `tests/manual.rs` fails if the committed files differ.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use rdma_pipe::cli::agent::AgentArguments;
use rdma_pipe::cli::complete::{self, Shell};
use rdma_pipe::cli::doctor::DoctorArguments;
use rdma_pipe::cli::examples::{self, Example};
use rdma_pipe::cli::habits::LETTERS;
use rdma_pipe::cli::perf::PerfArguments;
use rdma_pipe::cli::rdcp::CopyArguments;
use rdma_pipe::cli::rdpipe::PipeArguments;
use rdma_pipe::cli::rdsh::ShellArguments;
use rdma_pipe::cli::recv::RecvArguments;
use rdma_pipe::cli::send::SendArguments;

/// The contents of a page in addition to the command's definition.
struct Page {
    command: Command,
    examples: &'static [Example],
    environment: Vec<&'static [Term]>,
    files: Vec<&'static [Term]>,
    /// Pages of other projects. The pages of this project all name each other.
    others: &'static [&'static str],
}

/// A name and its meaning.
type Term = (&'static str, &'static str);

const RSH: &[Term] = &[("RDCP_RSH", "The command that runs a program on a host, where there is no --rsh.")];

/// Environment variables of all commands for users.
const SETTINGS: &[Term] = &[
    (
        "RDMA_PIPE_CONFIG",
        "The only file of settings that is read, instead of those under FILES; \"none\" for none at all.",
    ),
    (
        "RDMA_PIPE_LOG",
        "How much of what happens at all hosts is logged: off, info, debug (as with -vv) or trace (-vvv, also each file). The \
         log goes to standard error, or is added to FILE with LEVEL:FILE, as in debug:rdcp.log. Lines have the time in UTC, \
         the host that tells, and what has happened, in order of time; clocks of other hosts are converted to this one's.",
    ),
    ("XDG_CONFIG_HOME", "The directory of the user's settings, instead of ~/.config."),
    ("HOME", "The user's home, ~ under FILES; else that of the system's accounts."),
    ("NO_COLOR", "Nothing is coloured if this is set and not empty, unless --color=always asks for it."),
    ("TERM", "On a terminal that is \"dumb\" nothing is coloured, and no bar is drawn."),
];

/// The files of settings.
const SETTINGS_FILES: &[Term] = &[
    (
        "~/.config/rdma-pipe/config.toml",
        "Defaults of options, in TOML: their long names are the keys, as in lanes = 4, quiet = true or exclude = [\".git\"]. \
         What stands in a section such as [host.\"gpu*\"] is for command lines that name such a host, and is stronger than \
         what stands before the sections; of several sections, the later one is. The command line is stronger than the \
         environment, that than this file, and this than the next. A setting that does not go with a stronger one is left \
         out; --show-config says so. An unknown key is an error. What deletes, writes in place or checks less cannot be set, \
         and a file that others could write is refused.",
    ),
    ("/etc/rdma-pipe/config.toml", "The same for all users of this host. No file is read on the other hosts."),
];

const KEY: &[Term] = &[(
    "RD_KEY",
    "KEY, where the command line has \"-\" or nothing in its place. It is not read where there is a KEY.",
)];

const PERF_KEY: &[Term] = &[("RD_KEY", "KEY, for HOST:PORT and for serve.")];

const TEMPORARY: &[Term] = &[(
    "TMPDIR",
    "Where what does not fit into memory is written, such as names of files with several links, and what a command is behind \
     with (--spool); /var/tmp where it is not set. Those files have no names, and go with the process.",
)];

const CACHE: &[Term] = &[("XDG_CACHE_HOME", "The directory of the user's caches, instead of ~/.cache.")];

const NODES: &[Term] =
    &[("SLURM_JOB_NODELIST, SLURM_NODELIST", "The nodes of an allocation of Slurm's, for --hosts slurm.")];

const COPY: &[Term] = &[
    ("SLURM_JOB_ID", "Set within an allocation of Slurm's: a copy to several of its nodes is started by srun."),
    ("XDG_RUNTIME_DIR", "Where the sockets for --join are, instead of /run/user/UID."),
];

const SSH_CONNECTION: &[Term] =
    &[("SSH_CONNECTION", "The address by which ssh has reached this host, which sshd sets: others may be told it.")];

/// Files on a host to which the agent is copied.
const AGENT_FILES: &[Term] = &[(
    "~/.cache/rdma-pipe/rdma-pipe-agent-HASH",
    "On other hosts: the agent that was copied there, where none of this version is installed. It may be removed at any \
     time.",
)];

/// Files with names of hosts that a user may mean.
const SSH_FILES: &[Term] = &[(
    "~/.ssh/config, ~/.ssh/known_hosts, /etc/ssh/ssh_config, /etc/ssh/ssh_known_hosts",
    "Names of hosts, for completions, and to tell a host whose colon is missing from a file; all else in them is for ssh.",
)];

const PARTIAL_FILES: &[Term] = &[(
    ".HASH.rd-part",
    "Beside its place, a file or directory that is not yet whole; what is left of one that was interrupted is resumed from \
     when the command is run again, and may be removed.",
)];

const RECEIVED_FILES: &[Term] =
    &[(".HASH.rd-part", "Beside FILE, what has come of it while it is not whole; it goes with an rdrecv that ends.")];

const COPY_FILES: &[Term] = &[
    (".HASH.rd-link", "Beside its place, a link or an old file for as long as one takes the place of the other."),
    (
        ".HASH.rd-half",
        "Beside a file, for as long as that is written in place (--in-place, --append-verify) and is not whole. Left by a copy that \
         was killed, it has the next one compare the file's contents, whatever its size and time are, and goes with that.",
    ),
    ("~/.cache/rdma-pipe/digests", "At both ends: what --digest-cache keeps."),
    (
        "/run/user/UID/rdma-pipe/JOB.sock",
        "The socket of a copy to several hosts that runs, for --join; without a directory for sockets \
         /tmp/rdma-pipe-UID/JOB.sock.",
    ),
    ("/etc/hosts", "Names of hosts, to tell one whose colon is missing from a file."),
];

const STANDING_FILES: &[Term] =
    &[("rdrecv@.service", "A unit of systemd's for a receiver that stands; its comments say what to put where.")];

/// Results of `SRC/` and `SRC` with `--sync`, as two pictures of the same width.
const TREES: &[&str] = &[
    "rdcp --sync -r SRC/ DST      rdcp --sync -r SRC DST",
    "",
    "SRC            DST           SRC            DST",
    "|-- a    -->   |-- a         |-- a    -->   `-- SRC",
    "`-- b/         `-- b/        `-- b/             |-- a",
    "    `-- c          `-- c         `-- c          `-- b/",
    "                                                    `-- c",
];

/// Text about `--sync` in addition to its options.
const SYNC: &[&str] = &[
    "With --sync the tree at DST becomes that of SRC, and what is there is not sent. SRC/ is what is in the directory, SRC the \
     directory itself; either makes the same tree at the first run, when DST is missing, and at every later one:",
    "So rdcp --sync -r ingest-server:/videos/ ./videos/ makes ./videos/a of /videos/a, and rdcp --sync -r ingest-server:/videos \
     ./videos/ makes ./videos/videos/a, both times that it is run. (Without --sync, -r works as cp -a does: a DST that is missing \
     becomes the copy itself, and one that is there gets it inside.)",
    "Several SRC/ of one host are merged, as with rsync, and so are several SRC of one name: DST gets what any of them has, and of \
     what more than one has that of the first; a directory comes before what is none. With --delete, nothing is copied if one of \
     them is missing, since what came from it would be deleted.",
    "Files are compared by size and time of last modification, with --checksum by contents; what differs in metadata alone is \
     changed alone. Only --delete deletes what SRC does not have. -n says first what would be done, in the letters of \
     rsync's -i: YXcstpoguax, where Y is < sent, > received, c made, h linked, . changed in metadata alone; X is f, d, L, D or S; \
     and the others say what differs: contents, size, time, permissions, owner, group, ACL, attributes (u is never printed). A new entry has + in \
     their places, and what is deleted is *deleting. Names have \\#ooo for each byte that is no part of a printable character.",
];

/// Differences between `rdcp -r` and `cp -a`. Each has its place in `tests/oracle/differences.rs`, which
/// allows no other difference.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "Missing directories",
        "The last directory of DST is made where it is missing and sources are to come into it: of several sources, with -t, and \
         of one that is no directory where DST ends in a slash. rsync does so, too; cp fails.",
    ),
    (
        "What is replaced",
        "What is there already is replaced by the new entry when that is whole, as with cp -a --remove-destination: within a \
         directory nothing is written through links, into FIFOs, or into a file that has other names. What cannot be \
         replaced stays. Only where DST itself is a link to a file, FIFO or device is a file written to that.",
    ),
    (
        "Attributes of directories that are there",
        "A directory that is there gets its source's extended attributes and no others; cp leaves those that the source \
         does not have.",
    ),
    (
        "Modes of directories",
        "Directories get exactly the mode of their source; with cp they may keep set-ID and sticky bits that they had, or get \
         those of the directory that they are in.",
    ),
    (
        "Set-ID files of ordinary users",
        "Nobody but root gets set-user-ID and set-group-ID files from another host: the sender would choose what others run \
         with the user's rights.",
    ),
    (
        "Read-only directories",
        "Entries are copied into a directory that is there and belongs to the user although its mode forbids it, so that a \
         copy can be run again; with cp that fails.",
    ),
    (
        "Links onto what they lead to",
        "A symbolic link is not put in the place of what it would lead to: it would lead to itself, and the data would be \
         lost. The entry fails.",
    ),
    (
        "Hard links to what cannot be made",
        "Where the first name of a file cannot be made, its other names fail as well: its data is copied once.",
    ),
    (
        "Two sources of one name",
        "Where two sources would become the same entry, nothing is copied; cp takes the first, or merges directories.",
    ),
    (
        "A source onto itself",
        "A source that is its own destination by way of another host's name is left as it is, and has not failed, as with scp. \
         Within a host it fails, as with cp.",
    ),
    ("A directory into itself", "Nothing of it is copied; cp begins, and fails when it meets its own copy."),
    (
        "Temporary names",
        "Entries named .HASH.rd-part, .HASH.rd-link and .HASH.rd-half, which interrupted copies leave, are reported and not copied.",
    ),
];

fn pages() -> Vec<Page> {
    vec![
        Page {
            command: CopyArguments::command(),
            examples: examples::RDCP,
            environment: vec![RSH, NODES, COPY, CACHE, TEMPORARY, SETTINGS],
            files: vec![SETTINGS_FILES, PARTIAL_FILES, COPY_FILES, AGENT_FILES, SSH_FILES],
            others: &["cp", "rsync", "scp", "ssh"],
        },
        Page {
            command: PipeArguments::command(),
            examples: examples::RDPIPE,
            environment: vec![RSH, TEMPORARY, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ssh"],
        },
        Page {
            command: ShellArguments::command(),
            examples: examples::RDSH,
            environment: vec![RSH, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ssh"],
        },
        Page {
            command: DoctorArguments::command(),
            examples: examples::RDDOCTOR,
            environment: vec![RSH, NODES, SSH_CONNECTION, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ibv_devinfo", "ssh"],
        },
        Page {
            command: AgentArguments::command(),
            examples: examples::AGENT,
            environment: vec![
                &[("HOME", "Where relative paths start; else that of the system's accounts.")],
                CACHE,
                TEMPORARY,
                SSH_CONNECTION,
            ],
            files: vec![PARTIAL_FILES, COPY_FILES.split_at(3).0, AGENT_FILES],
            others: &["ssh"],
        },
        Page {
            command: PerfArguments::command(),
            examples: examples::RDPERF,
            environment: vec![PERF_KEY, RSH, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ib_send_bw", "ssh"],
        },
        Page {
            command: SendArguments::command(),
            examples: examples::RDSEND,
            environment: vec![KEY, SETTINGS],
            files: vec![SETTINGS_FILES],
            others: &[],
        },
        Page {
            command: RecvArguments::command(),
            examples: examples::RDRECV,
            environment: vec![KEY, SETTINGS],
            files: vec![SETTINGS_FILES, RECEIVED_FILES, STANDING_FILES],
            others: &["systemd.unit"],
        },
    ]
}

/// Every generated file: its path below the root of the project, and its content.
pub fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for page in pages() {
        let name = page.command.get_name().to_owned();
        files.push((format!("docs/man/{name}.1"), manual(&page).expect("writing to memory")));
        for (shell, file) in [
            (Shell::Bash, format!("{name}.bash")),
            (Shell::Fish, format!("{name}.fish")),
            (Shell::Zsh, format!("_{name}")),
        ] {
            files.push((format!("docs/completions/{file}"), complete::script(shell, &name).into_bytes()));
        }
    }
    files.push(("docs/report.schema.json".to_owned(), rdma_pipe::cli::json::schema().into_bytes()));
    files
}

fn manual(page: &Page) -> io::Result<Vec<u8>> {
    let man = Man::new(page.command.clone()).date("").manual("rdma-pipe");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    let options = arguments_first(&String::from_utf8(options).expect("text"));
    // FILES is the heading for the program's own files, in every page.
    let options = options.replace("\n.SH FILES\n", "\n.SH \"WHAT IS COPIED\"\n");
    text.extend(options.into_bytes());
    let mut roff = Roff::new();
    if page.command.get_name() == "rdcp" {
        roff.control("SH", ["SYNCHRONIZING"]);
        let [first, rest @ ..] = SYNC else { unreachable!("it has a first paragraph") };
        roff.text([roman(*first)]);
        roff.control("PP", []);
        roff.control("nf", []);
        for line in TREES {
            roff.text([roman(*line)]);
        }
        roff.control("fi", []);
        for paragraph in rest {
            roff.control("PP", []);
            roff.text([roman(*paragraph)]);
        }
        roff.control("SH", ["LETTERS OF SCP AND RSYNC"]);
        roff.text([roman(
            "What hands are used to type is accepted, where rdcp can do it. -P and -l take the next word as a number only \
             if it is all digits and no file has that name; -o takes it only with a \"=\" in it. scp://[USER@]HOST[:PORT][/PATH] \
             is accepted too.",
        )]);
        for letter in LETTERS {
            let there = [("scp", letter.scp), ("rsync", letter.rsync)];
            let there: Vec<_> = there.iter().filter(|(_, what)| !what.is_empty()).collect();
            let there: Vec<_> = there.iter().map(|(program, what)| format!("{program}: {what}")).collect();
            let option = page.command.get_arguments().find(|option| option.get_short() == Some(letter.letter));
            let heading = option.and_then(clap::Arg::get_help_heading).unwrap_or("Options").to_uppercase();
            let heading = if heading == "FILES" { "WHAT IS COPIED" } else { &heading };
            let meaning = letter.meaning().replace("see OPTIONS", &format!("see {heading}"));
            define(&mut roff, &format!("-{}", letter.letter), &format!("{meaning}. ({})", there.join("; ")));
        }
    }
    roff.control("SH", ["EXIT STATUS"]);
    let codes = page.command.get_after_help().expect("the exit codes").to_string();
    for entry in codes.strip_prefix("Exit codes: ").expect("how the exit codes begin").split("; ") {
        let (code, meaning) = entry.split_once(' ').expect("a code and its meaning");
        define(&mut roff, code, &sentence(page.command.get_name(), code, meaning));
    }
    if page.command.get_name() == "rdcp" {
        roff.control("SH", ["DIFFERENCES FROM CP"]);
        for (heading, meaning) in DIFFERENCES {
            define(&mut roff, heading, meaning);
        }
    }
    for (heading, terms) in [("FILES", &page.files), ("ENVIRONMENT", &page.environment)] {
        roff.control("SH", [heading]);
        for (name, meaning) in terms.iter().copied().flatten() {
            define(&mut roff, name, meaning);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for (line, meaning) in page.examples {
        define(&mut roff, line, meaning);
    }
    roff.control("SH", ["SEE ALSO"]);
    let ours = ["rdcp", "rdpipe", "rdsh", "rdsend", "rdrecv", "rdperf", "rddoctor", "rdma-pipe-agent"];
    let ours = ours.iter().copied().filter(|name| *name != page.command.get_name());
    let section = |name: &str| if name.contains('.') { "(5)" } else { "(1)" };
    let mut words = Vec::new();
    for name in ours.chain(page.others.iter().copied()) {
        words.extend((!words.is_empty()).then(|| roman(", ")));
        words.extend([bold(name), roman(section(name))]);
    }
    roff.text(words);
    roff.to_writer(&mut text)?;
    Ok(text)
}

/// Returns the meaning of an exit code: for commands that copy or stream, in the words of the
/// guide; for others, unchanged.
fn sentence(command: &str, code: &str, meaning: &str) -> String {
    const GUIDE: &str = include_str!("../docs/guide/scripts.md");
    let mut rows = GUIDE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let row = rows.find(|(known, _)| ["rdcp", "rdsend", "rdrecv"].contains(&command) && *known == code);
    let Some((_, words)) = row else { return meaning.to_owned() };
    let words = words.trim_end_matches(" |").replace('`', "");
    let words = words.split("; for rdperf").next().unwrap_or(&words);
    let agent = if meaning.contains("agent") { "; a host without an agent that could be started" } else { "" };
    let words = if command == "rdcp" { words } else { words.split("; for a copy by").next().unwrap_or(words) };
    format!("{words}{agent}")
}

/// Puts arguments that are not options first in the section of options, in the order of a command line.
fn arguments_first(options: &str) -> String {
    let (heading, rest) = options.split_once("\n.TP\n").expect("an option");
    let (own, others) = rest.split_once("\n.SH ").map_or((rest, ""), |(own, others)| (own, others));
    let (arguments, own): (Vec<&str>, Vec<&str>) =
        own.split("\n.TP\n").partition(|entry| !entry.starts_with("\\fB\\-"));
    let entries: String = arguments.iter().chain(&own).map(|entry| format!("\n.TP\n{}", entry.trim_end())).collect();
    let others = if others.is_empty() { "\n".to_owned() } else { format!("\n.SH {others}") };
    format!("{heading}{entries}{others}")
}

fn define(roff: &mut Roff, term: &str, meaning: &str) {
    roff.control("TP", []);
    roff.text([bold(term)]);
    roff.text([Inline::from(meaning)]);
}

#[allow(dead_code, reason = "tests/manual.rs includes this file for `files` alone")]
fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in files() {
        let path = root.join(&name);
        fs::create_dir_all(path.parent().expect("below the root"))?;
        fs::write(path, content)?;
        println!("{name}");
    }
    Ok(())
}
