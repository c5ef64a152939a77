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

const RSH: &[Term] = &[("RDCP_RSH", "The command that runs programs on other hosts, unless --rsh is given.")];

/// Environment variables of all commands for users.
const SETTINGS: &[Term] = &[
    (
        "RDMA_PIPE_CONFIG",
        "The only settings file that is read, instead of those under FILES; with \"none\", no file is read.",
    ),
    (
        "RDMA_PIPE_LOG",
        "How much is logged of what happens at all hosts: off, info, debug (as with -vv) or trace (as with -vvv; also \
         each file). The log goes to standard error; LEVEL:FILE, such as debug:rdcp.log, appends it to FILE. Each line \
         has the time in UTC, the host and the event. Lines are in order of time; times of other hosts are converted \
         to this host's clock.",
    ),
    ("XDG_CONFIG_HOME", "The directory of the user's settings, instead of ~/.config."),
    ("HOME", "The user's home directory, ~ under FILES; by default that of the user database."),
    ("NO_COLOR", "If this is set and not empty, nothing is coloured unless --color=always is given."),
    ("TERM", "On a terminal that is \"dumb\", nothing is coloured and no progress bar is drawn."),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "The first that is set names the letters of the terminal. Progress bars are drawn in ASCII if it names \
         others than UTF-8, as de_DE.ISO-8859-1 does, or if LC_ALL or LC_CTYPE is C or POSIX.",
    ),
];

/// The files of settings.
const SETTINGS_FILES: &[Term] = &[
    (
        "~/.config/rdma-pipe/config.toml",
        "Defaults of options, in TOML. The keys are the long names of options, as in lanes = 4, quiet = true or \
         exclude = [\".git\"]. A section such as [host.\"gpu*\"] applies to command lines that name such a host. It \
         overrides the keys before the sections; of several sections, the last one counts. The command line overrides \
         the environment, the environment overrides this file, and this file overrides the next. A setting that \
         conflicts with a stronger one is ignored; --show-config says so. An unknown key is an error. Options that \
         delete, write in place or check less cannot be set. A file that other users could write is refused.",
    ),
    ("/etc/rdma-pipe/config.toml", "The same for all users of this host. No file is read on the other hosts."),
];

const KEY: &[Term] =
    &[("RD_KEY", "KEY, if the command line has \"-\" in its place or none. It is not read if KEY is given there.")];

const PERF_KEY: &[Term] = &[("RD_KEY", "KEY, for HOST:PORT and for serve.")];

/// Temporary files of trees.
const TREE_TEMPORARY: &[Term] = &[(
    "TMPDIR",
    "The directory for data that does not fit into memory, such as names of files with several links. The default is \
     /var/tmp, or /tmp if that cannot be written to. These files have no names, and vanish when the process ends.",
)];

/// Temporary files of streams.
const STREAM_TEMPORARY: &[Term] = &[(
    "TMPDIR",
    "The directory for data that a slow command has not yet read (--spool). The default is /var/tmp, or /tmp if that \
     cannot be written to. These files have no names, and vanish when the process ends.",
)];

/// Temporary files of both.
const TEMPORARY: &[Term] = &[(
    "TMPDIR",
    "The directory for data that does not fit into memory, such as names of files with several links, and data that a \
     slow command has not yet read (--spool). The default is /var/tmp, or /tmp if that cannot be written to. These \
     files have no names, and vanish when the process ends.",
)];

const DRILL_TEMPORARY: &[Term] =
    &[("TMPDIR", "The directory for the files of --drill, on both hosts. The default is /tmp.")];

const CACHE: &[Term] = &[("XDG_CACHE_HOME", "The directory of the user's caches, instead of ~/.cache.")];

/// The same for commands that keep nothing but an agent there.
const AGENT_CACHE: &[Term] =
    &[("XDG_CACHE_HOME", "On other hosts: the directory of the user's caches, instead of ~/.cache.")];

const NODES: &[Term] = &[(
    "SLURM_JOB_NODELIST, SLURM_NODELIST, SLURM_HET_SIZE, SLURM_JOB_NODELIST_HET_GROUP_N",
    "The nodes of a Slurm allocation, for --hosts slurm.",
)];

/// The variable by which programs notice that they run within an allocation.
const ALLOCATION: &[Term] = &[(
    "SLURM_JOB_ID, PATH",
    "Within a Slurm allocation, several of its nodes, or those of --hosts, are reached by srun instead of ssh, if srun is \
        in PATH.",
)];

const MEMORY: &[Term] =
    &[("SLURM_JOB_ID", "With --launcher slurm within a job, programs on its nodes share the memory of the job there.")];

const GPUS: &[Term] = &[(
    "SLURM_GPUS, SLURM_GPUS_PER_SOCKET",
    "With --launcher slurm: if one of these is set, commands on other nodes have none of the job's GPUs and other generic \
     resources.",
)];

const COPY: &[Term] = &[("XDG_RUNTIME_DIR", "The directory for the sockets of --join, instead of /run/user/UID.")];

const SSH_CONNECTION: &[Term] =
    &[("SSH_CONNECTION", "Set by sshd: the address at which ssh has reached this host. Other hosts may be told it.")];

const KUBERNETES: &[Term] = &[(
    "KUBERNETES_SERVICE_HOST",
    "If it is set, the host is taken for a container of Kubernetes, unless the kernel's own threads can be seen.",
)];

/// How the agent finds the shell for a command of rdsh.
const LOGIN: &[Term] = &[(
    "LOGNAME, SHELL",
    "If SHELL is set, this is a login, and a command of rdsh runs in the shell that the user database has for the user \
     (of several names of that user, LOGNAME's), or in SHELL if the user is not in it. Otherwise it runs in /bin/sh.",
)];

/// Files on a host to which the agent is copied.
const AGENT_FILES: &[Term] = &[(
    "~/.cache/rdma-pipe/rdma-pipe-agent-HASH",
    "On other hosts: the agent that was copied there because this version is not installed. It may be removed at any \
     time.",
)];

/// Files with names of hosts that a user may mean.
const SSH_FILES: &[Term] = &[(
    "~/.ssh/config, ~/.ssh/known_hosts, ~/.ssh/known_hosts2, /etc/ssh/ssh_config, /etc/ssh/ssh_known_hosts",
    "Only host names are read, also from files that the configurations include: for completion, and to recognise a \
     host typed without its colon. The rest is for ssh.",
)];

const PARTIAL_FILES: &[Term] = &[(
    ".HASH.rd-part",
    "An incomplete file or directory, beside its destination. If it is left by an interrupted copy between two hosts, \
     the same command, run again, resumes from it; a copy within one host, or to several without --sync, starts over. \
     It may be removed.",
)];

const RECEIVED_FILES: &[Term] =
    &[(".HASH.rd-part", "Beside FILE, the data received until FILE is complete. It is removed when rdrecv ends.")];

const COPY_FILES: &[Term] = &[
    (".HASH.rd-link", "Beside its destination, a link or an old file, only while one replaces the other."),
    (
        ".HASH.rd-half",
        "Beside a file that is being written in place (--in-place, --append-verify) and is not yet complete. If a \
         killed copy has left it, the next copy compares the file's contents, whatever its size and time are, and \
         removes it. Beside a generation of --snapshot, it marks one that is not yet complete: do not remove it, \
         because a generation without it counts as complete.",
    ),
    ("~/.cache/rdma-pipe/digests", "At both ends: the digests that --digest-cache keeps."),
    (
        "/run/user/UID/rdma-pipe/JOB.sock",
        "The socket of a running copy to several hosts, for --join. Without /run/user/UID, it is \
         rdma-pipe-UID/JOB.sock in TMPDIR, else in /tmp.",
    ),
    ("/etc/hosts", "Host names, to recognise a host typed without its colon."),
];

const STANDING_FILES: &[Term] =
    &[("rdrecv@.service", "A systemd unit for a receiver that always runs; its comments say how to set it up.")];

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
    "With --sync, the tree at DST becomes that of SRC, and data that is already there is not sent. SRC/ means the \
     contents of the directory, SRC the directory itself. Either makes the same tree at the first run, when DST is \
     missing, and at every later one:",
    "So rdcp --sync -r ingest-server:/videos/ ./videos/ makes ./videos/a from /videos/a, and rdcp --sync -r \
     ingest-server:/videos ./videos/ makes ./videos/videos/a, however often it is run. (Without --sync, -r works as cp \
     -a does: if DST is missing, it becomes the copy itself; if it exists, the copy is made in it.)",
    "Several SRC/ of one host are merged, as with rsync, and so are several SRC of the same name: DST gets every entry \
     that any of them has. If several have the same entry, the first one is copied, but a directory comes before other \
     types. With --delete, nothing is copied if one of them is missing, because what came from it would be deleted.",
    "Files are compared by size and modification time, with --checksum by contents. If only metadata differs, only \
     metadata is changed. Only --delete deletes entries that SRC does not have. -n shows what would be done, in the \
     letters of rsync's -i: YXcstpoguax. Y is < sent, > received, c created, h linked, . only metadata changed. X is \
     the type: f, d, L, D or S. The others say what differs: contents, size, time, permissions, owner, group, ACL, \
     attributes (u is never printed). A new entry has + in their places, and a deleted one *deleting. In names, each \
     byte that is not part of a printable character is \\#ooo.",
];

/// Differences between `rdcp -r` and `cp -a`. Each has its place in `tests/oracle/differences.rs`, which
/// allows no other difference.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "Missing directories",
        "If the last directory of DST is missing and sources are to be copied into it, it is created: with several \
         sources, with -t, and with a source that is not a directory if DST ends in a slash. rsync does so, too; cp \
         fails.",
    ),
    (
        "What is replaced",
        "A new entry replaces an existing one when it is complete, as with cp -a --remove-destination: within a \
         directory, nothing is written through links, into FIFOs, or into a file that has other names. An entry that \
         cannot be replaced is kept. Only for DST itself, a file replaces the file that a link leads to, or is written \
         to a FIFO or device.",
    ),
    (
        "Attributes of existing directories",
        "ACLs and user attributes that the source does not have are removed from an existing directory; cp keeps them.",
    ),
    (
        "Modes of directories",
        "Directories get exactly the mode of their source; with cp, they may keep set-ID and sticky bits, or inherit \
         those of their parent directory.",
    ),
    (
        "Set-ID files of ordinary users",
        "Only root gets set-user-ID and set-group-ID files from another host. Otherwise the sender would choose what \
         others run with the user's rights.",
    ),
    (
        "Read-only directories",
        "Entries are copied into an existing directory of the user even if its mode forbids it, so that a copy can be \
         run again; with cp, that fails.",
    ),
    (
        "Links onto their targets",
        "A symbolic link does not replace its own target, because it would lead to itself and the data would be lost. \
         The entry fails.",
    ),
    (
        "Hard links to files that cannot be created",
        "If the first name of a file cannot be created, its other names fail as well, because its data is copied once.",
    ),
    (
        "Two sources of the same name",
        "If two sources would become the same entry, nothing is copied; cp takes the first, or merges directories.",
    ),
    (
        "A source onto itself",
        "A source that is its own destination under another host's name is left unchanged and does not fail, as with \
         scp. Within a host it fails, as with cp.",
    ),
    ("A directory into itself", "Nothing of it is copied; cp begins, and fails when it meets its own copy."),
    (
        "Temporary names",
        "Entries named .HASH.rd-part, .HASH.rd-link or .HASH.rd-half, left by interrupted copies, are reported and not \
         copied.",
    ),
];

fn pages() -> Vec<Page> {
    vec![
        Page {
            command: CopyArguments::command(),
            examples: examples::RDCP,
            environment: vec![RSH, NODES, ALLOCATION, COPY, CACHE, TREE_TEMPORARY, SETTINGS],
            files: vec![SETTINGS_FILES, PARTIAL_FILES, COPY_FILES, AGENT_FILES, SSH_FILES],
            others: &["cp", "rsync", "scp", "ssh"],
        },
        Page {
            command: PipeArguments::command(),
            examples: examples::RDPIPE,
            environment: vec![RSH, GPUS, MEMORY, AGENT_CACHE, STREAM_TEMPORARY, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ssh"],
        },
        Page {
            command: ShellArguments::command(),
            examples: examples::RDSH,
            environment: vec![RSH, AGENT_CACHE, SETTINGS],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ssh"],
        },
        Page {
            command: DoctorArguments::command(),
            examples: examples::RDDOCTOR,
            environment: vec![
                RSH,
                NODES,
                ALLOCATION,
                SSH_CONNECTION,
                KUBERNETES,
                AGENT_CACHE,
                DRILL_TEMPORARY,
                SETTINGS,
            ],
            files: vec![SETTINGS_FILES, AGENT_FILES, SSH_FILES],
            others: &["ibv_devinfo", "ssh"],
        },
        Page {
            command: AgentArguments::command(),
            examples: examples::AGENT,
            environment: vec![
                &[("HOME", "Where relative paths start; by default the home directory of the user database.")],
                CACHE,
                TEMPORARY,
                SSH_CONNECTION,
                KUBERNETES,
                LOGIN,
            ],
            files: vec![PARTIAL_FILES, COPY_FILES.split_at(3).0, AGENT_FILES],
            others: &["ssh"],
        },
        Page {
            command: PerfArguments::command(),
            examples: examples::RDPERF,
            environment: vec![PERF_KEY, RSH, MEMORY, AGENT_CACHE, SETTINGS],
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
            "rdcp accepts the letters of scp and rsync if it can do what they mean. -P and -l take the next word as a \
             number only if it is all digits and no file has that name; -o takes it only if it contains \"=\". \
             scp://[USER@]HOST[:PORT][/PATH] is accepted too.",
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
        roff.text([roman(
            "rdcp -r works as cp -a does, except as follows. Without -r, a link, FIFO or device named as SRC is read, \
             as with cp and scp.",
        )]);
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
    let agent = if meaning.contains("agent") { "; no agent could be started on a host" } else { "" };
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
