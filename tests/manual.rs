//! Checks that the documentation agrees with the program: manual pages, completions, the README's tables, the
//! bytes in `docs/PROTOCOL.md`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use rd_proto::frame::{ChunkHeader, Compression};
use rdma_pipe::cli::agent::AgentArguments;
use rdma_pipe::cli::definitions;
use rdma_pipe::cli::examples;
use rdma_pipe::cli::habits;

#[path = "../examples/man.rs"]
mod man;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn manual_pages_and_completions_are_those_of_the_definitions() {
    for (name, content) in man::files() {
        let content = String::from_utf8(content).expect("text");
        assert!(document(&name) == content, "{name} is out of date; run: cargo run --example man");
    }
}

fn commands() -> impl Iterator<Item = Command> {
    definitions().into_iter().chain([AgentArguments::command()])
}

fn examples_of(name: &str) -> &'static [examples::Example] {
    match name {
        "rdcp" => examples::RDCP,
        "rdsend" => examples::RDSEND,
        "rdrecv" => examples::RDRECV,
        "rdpipe" => examples::RDPIPE,
        "rdsh" => examples::RDSH,
        "rdperf" => examples::RDPERF,
        "rddoctor" => examples::RDDOCTOR,
        "rdma-pipe-agent" => examples::AGENT,
        name => panic!("no examples of {name}"),
    }
}

#[test]
fn every_help_and_manual_page_has_examples_that_are_taken() {
    for mut command in commands() {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        let page = document(&format!("docs/man/{name}.1"));
        let examples = examples_of(&name);
        let (_, shown) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{name} --help: no examples"));
        assert!(shown.contains("Exit codes: "), "{name} --help: no exit codes");
        for (line, meaning) in examples {
            assert!(shown.contains(&format!("  {line}\n      {meaning}\n")), "{name} --help: {line}: {shown}");
            assert!(line.chars().count() <= 78 && meaning.chars().count() <= 74, "80 columns: {line}: {meaning}");
        }
        assert_eq!(page.matches("\n.SH EXAMPLES\n").count(), 1, "{name}.1");
        let page = format!("```sh\n{}\n```", examples.iter().map(|(line, _)| format!("{line}\n")).collect::<String>());
        let lines = lines_of_commands(&format!("\n{page}"));
        assert!(lines.len() >= examples.len(), "{name}: a command of ours in each");
        for (line, words) in lines {
            let taken = parsed(&words);
            assert!(taken.is_ok(), "{line}: {}", taken.unwrap_err());
        }
    }
}

/// Environment variables, and the programs that read them. An empty list stands for all programs but the agent.
const VARIABLES: &[(&str, &[&str])] = &[
    ("HOME", &["rdcp", "rdpipe", "rdsh", "rdsend", "rdrecv", "rdperf", "rddoctor", "rdma-pipe-agent"]),
    ("KUBERNETES_SERVICE_HOST", &["rddoctor", "rdma-pipe-agent"]),
    ("LANG", &[]),
    ("LC_ALL", &[]),
    ("LC_CTYPE", &[]),
    ("LOGNAME", &["rdma-pipe-agent"]),
    ("NO_COLOR", &[]),
    ("RDCP_RSH", &["rdcp", "rdpipe", "rdsh", "rdperf", "rddoctor"]),
    ("RDMA_PIPE_CONFIG", &[]),
    ("RDMA_PIPE_LOG", &[]),
    ("RD_KEY", &["rdsend", "rdrecv", "rdperf"]),
    ("PATH", &["rdcp", "rddoctor"]),
    ("SHELL", &["rdma-pipe-agent"]),
    ("SLURM_GPUS", &["rdpipe"]),
    ("SLURM_GPUS_PER_SOCKET", &["rdpipe"]),
    ("SLURM_HET_SIZE", &["rdcp", "rddoctor"]),
    ("SLURM_JOB_ID", &["rdcp", "rdpipe", "rdperf", "rddoctor"]),
    ("SLURM_JOB_NODELIST", &["rdcp", "rddoctor"]),
    ("SLURM_NODELIST", &["rdcp", "rddoctor"]),
    ("SSH_CONNECTION", &["rddoctor", "rdma-pipe-agent"]),
    ("TERM", &[]),
    ("TMPDIR", &["rdcp", "rdpipe", "rddoctor", "rdma-pipe-agent"]),
    ("XDG_CACHE_HOME", &["rdcp", "rdpipe", "rdsh", "rdperf", "rddoctor", "rdma-pipe-agent"]),
    ("XDG_CONFIG_HOME", &[]),
    ("XDG_RUNTIME_DIR", &["rdcp"]),
];

/// Files by their names in the pages, and the programs that read or write them. An empty list means the same as above.
const FILES: &[(&str, &[&str])] = &[
    ("~/.config/rdma-pipe/config.toml", &[]),
    ("/etc/rdma-pipe/config.toml", &[]),
    (".HASH.rd-part", &["rdcp", "rdrecv", "rdma-pipe-agent"]),
    (".HASH.rd-link", &["rdcp", "rdma-pipe-agent"]),
    (".HASH.rd-half", &["rdcp", "rdma-pipe-agent"]),
    ("~/.cache/rdma-pipe/digests", &["rdcp", "rdma-pipe-agent"]),
    ("~/.cache/rdma-pipe/rdma-pipe-agent-HASH", &["rdcp", "rdpipe", "rdsh", "rdperf", "rddoctor", "rdma-pipe-agent"]),
    ("/run/user/UID/rdma-pipe/JOB", &["rdcp"]),
    ("~/.ssh/config, ~/.ssh/known_hosts", &["rdcp", "rdpipe", "rdsh", "rdperf", "rddoctor"]),
    ("/etc/hosts", &["rdcp"]),
];

/// Returns a section of a page, without roff markup.
fn section(name: &str, heading: &str) -> String {
    let page = document(&format!("docs/man/{name}.1"));
    let heading = if heading.contains(' ') { format!("\n.SH \"{heading}\"\n") } else { format!("\n.SH {heading}\n") };
    let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("{name}.1: no section {heading:?}"));
    assert!(!rest.contains(&heading), "{name}.1: twice {heading:?}");
    let section = rest.split("\n.SH ").next().unwrap_or_default();
    section.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-").replace("\\&", "")
}

#[test]
fn every_page_has_what_one_looks_for_and_names_what_the_program_reads() {
    for command in commands() {
        let name = command.get_name();
        for heading in ["EXIT STATUS", "FILES", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"] {
            assert!(
                section(name, heading).contains("(1)") || section(name, heading).contains(".TP"),
                "{name}.1: {heading}"
            );
        }
        for other in commands().filter(|other| other.get_name() != name) {
            assert!(section(name, "SEE ALSO").contains(&format!("{}(1)", other.get_name())), "{name}.1");
        }
        let reads = |who: &[&str]| if who.is_empty() { name != "rdma-pipe-agent" } else { who.contains(&name) };
        for (heading, known) in [("ENVIRONMENT", VARIABLES), ("FILES", FILES)] {
            let section = section(name, heading);
            // Only the terms: a variable's description may mention another variable.
            let terms: Vec<&str> = section.split(".TP\n").filter_map(|term| term.lines().next()).collect();
            for (what, who) in known {
                let is_named = terms
                    .iter()
                    .any(|term| *term == *what || term.split(", ").any(|term| term == *what) || term.starts_with(what));
                assert_eq!(is_named, reads(who), "{name}.1: {heading}: {what}: {terms:?}");
            }
        }
    }
}

/// Returns the texts of all source files of the program in and below a folder, without tests.
fn sources(folder: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "simulation");
        if path.is_dir() && !is_test {
            texts.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            let text = fs::read_to_string(&path).expect("text");
            texts.push(text.split("#[cfg(test)]").next().unwrap_or_default().to_owned());
        }
    }
    texts
}

#[test]
fn no_variable_is_read_that_no_page_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "crates/rd-proto/src", "crates/rd-verbs/src"];
    let mut found = std::collections::BTreeSet::new();
    for text in folders.iter().flat_map(|folder| sources(&root.join(folder))) {
        // Finds quoted names on lines that read the environment or that mark a name as a variable's.
        let asks = ["env::var", "absolute(\"", "variable(\"", "VARIABLE", "is_set(\""];
        for line in text.lines().filter(|line| asks.iter().any(|ask| line.contains(ask))) {
            let names = line.split('"').skip(1).step_by(2);
            let is_name =
                |name: &&str| name.len() > 3 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            found.extend(names.filter(is_name).map(str::to_owned));
        }
    }
    let known: std::collections::BTreeSet<String> = VARIABLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, known, "VARIABLES here, and the tables in examples/man.rs, have those that the code reads");
}

#[test]
fn a_synopsis_is_what_a_person_types_and_not_a_list_of_all_options() {
    for command in commands() {
        let name = command.get_name();
        let page = document(&format!("docs/man/{name}.1"));
        let (_, synopsis) = page.split_once("\n.SH SYNOPSIS\n").expect("a synopsis");
        let (synopsis, _) = synopsis.split_once("\n.ie ").expect("its end");
        for line in synopsis.lines().filter(|line| *line != ".br") {
            assert!(line.starts_with(&format!("\\fB{}\\fR", name.replace('-', "\\-"))), "{line}");
            assert!(line.len() <= 90 && line.matches("\\-\\-").count() == 0, "{line}");
        }
    }
}

/// Returns the first cells of table rows that begin with a code span.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0))
}

#[test]
fn the_guide_has_every_exit_code() {
    let guide = document("docs/guide/scripts.md");
    for command in commands() {
        let codes = command.get_after_help().expect("the exit codes").to_string();
        for entry in codes.strip_prefix("Exit codes: ").expect("how they begin").split("; ") {
            let (code, _) = entry.split_once(' ').expect("a code and its meaning");
            assert!(rows(&guide).any(|first| first == code), "docs/guide/scripts.md has no row for exit code {code}");
        }
    }
}

/// Returns the pages written for users.
fn pages() -> Vec<String> {
    let mut pages = pages_in("docs/guide");
    pages.extend(["README.md", "CONTRIBUTING.md"].map(str::to_owned));
    pages
}

fn pages_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).expect("a directory of pages");
    let names = entries.map(|entry| entry.expect("readable").file_name().to_str().expect("text").to_owned());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{directory}/{name}")).collect()
}

/// Splits a line into the commands of a shell pipe.
fn parts_of(line: &str) -> Vec<&str> {
    let mut quoted = None;
    line.split(|letter| {
        match quoted {
            Some(quote) if quote == letter => quoted = None,
            None if "'\"".contains(letter) => quoted = Some(letter),
            _ => {}
        }
        quoted.is_none() && letter == '|'
    })
    .map(str::trim)
    .collect()
}

/// Returns the lines of a page's shell blocks that begin with one of this project's commands, with their words.
fn lines_of_commands(page: &str) -> Vec<(String, Vec<String>)> {
    let names = ["rdcp", "rdsend", "rdrecv", "rdpipe", "rdsh", "rdperf", "rddoctor"];
    let mut found = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let Some((language, lines)) =
            block.split_once('\n').filter(|(language, _)| ["sh", "console"].contains(language))
        else {
            continue;
        };
        for line in lines.replace("\\\n", " ").lines() {
            let typed = match language {
                "console" => line.split_once("$ ").map(|(_, typed)| typed),
                _ => Some(line),
            };
            // The parts of a shell pipe that are commands of this project, without redirections and comments.
            for part in parts_of(typed.unwrap_or_default()) {
                let part = part.split(" #").next().unwrap_or_default();
                let Ok(words) = shell_words::split(part) else { continue };
                let is_redirection = |word: &String| word.starts_with(['<', '>']) && word.len() > 1;
                let words: Vec<String> =
                    words.into_iter().filter(|word| !is_redirection(word) || word.contains(' ')).collect();
                if words.first().is_some_and(|word| names.contains(&word.as_str())) {
                    found.push((line.to_owned(), words));
                }
            }
        }
    }
    found
}

/// Parses a command line that begins with the command's name, without running anything.
fn parsed(words: &[String]) -> Result<(), String> {
    let command = commands().into_iter().find(|command| command.get_name() == words[0]).expect("one of ours");
    let rest: Vec<OsString> = words[1..].iter().map(OsString::from).collect();
    let rest = if words[0] == "rdcp" { habits::translate(rest, &command, |_| false)?.words } else { rest };
    let words = std::iter::once(OsString::from(&words[0])).chain(rest);
    command.try_get_matches_from(words).map(|_| ()).map_err(|error| error.to_string())
}

/// The commands accept every command line in the pages. Other tests check that these do what the pages say.
#[test]
fn command_lines_of_the_pages_are_taken() {
    let mut count = 0;
    for name in pages() {
        for (line, words) in lines_of_commands(&document(&name)) {
            let taken = parsed(&words);
            assert!(taken.is_ok(), "{name}: {line}: {}", taken.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 25, "the lines are found: {count}");
}

/// README's recording is on the first screen, complete in itself, and shows README's first command.
#[test]
fn readme_begins_with_a_recorded_terminal() {
    let page = document("README.md");
    let first_screen: Vec<&str> = page.lines().take(24).collect();
    let file = "docs/terminal.svg";
    assert!(first_screen.iter().any(|line| line.starts_with("![") && line.ends_with(&format!("]({file})"))), "{file}");
    let drawing = document(file);
    assert!(drawing.len() < 100 << 10, "{} bytes", drawing.len());
    for outside in ["<script", "href", "url(", "@import", "<image", "<foreignObject", "<!ENTITY"] {
        assert!(!drawing.contains(outside), "{outside} in {file}");
    }
    let typed = page.lines().find(|line| line.starts_with("rdcp -r ")).expect("a tree is copied");
    let typed = typed.split(" #").next().expect("one").trim_end();
    assert!(drawing.contains(&format!(">$ {typed}</text>")), "{file} shows {typed}; make it anew: make record");
    // The progress bar at some time, and the last line.
    assert!(drawing.contains(" % ") && drawing.contains(" files  ") && drawing.contains(", verified</text>"), "{file}");
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for name in pages().into_iter().chain(["docs", "docs/notes", "docs/performance"].into_iter().flat_map(pages_in)) {
        let page = document(&name);
        for link in page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { root.join(&name) } else { root.join(&name).parent().expect("one").join(path) };
            assert!(target.exists(), "{name}: {link}");
            let text = if anchor.is_empty() { String::new() } else { fs::read_to_string(&target).expect("a page") };
            let slug = |line: &str| {
                let kept = line.trim_start_matches('#').trim().to_lowercase();
                kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
            };
            let has = anchor.is_empty() || text.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
            assert!(has, "{name}: no heading for {link}");
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

/// `make book` takes the pages that docs/SUMMARY.md names, and nothing outside docs.
#[test]
fn the_book_has_every_page_and_no_link_out_of_it() {
    let summary = document("docs/SUMMARY.md");
    let mut pages: Vec<String> =
        ["docs", "docs/guide", "docs/notes", "docs/performance"].into_iter().flat_map(pages_in).collect();
    pages.retain(|name| name != "docs/SUMMARY.md");
    for name in &pages {
        let page = document(name);
        let title = page.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a title");
        let entry = format!("- [{title}]({})", name.strip_prefix("docs/").expect("it is there"));
        let count = summary.lines().filter(|line| line.trim_start() == entry).count();
        assert_eq!(count, 1, "docs/SUMMARY.md: one line {entry}");
        let outside = "../".repeat(name.matches('/').count());
        assert!(!page.contains(&format!("]({outside}")), "{name} has a link out of the book");
    }
    assert_eq!(summary.matches("](").count(), pages.len(), "docs/SUMMARY.md names what there is");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a document's examples, without spaces for readability: lines of four blanks, a label, a colon, hex digits.
fn examples(text: &str) -> Vec<(String, String)> {
    let mut examples: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        let bytes: String = line.rsplit(':').next().unwrap_or_default().split_whitespace().collect();
        if bytes.is_empty() || !bytes.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        match (line.split_once(':'), examples.last_mut()) {
            (Some((label, _)), _) => examples.push((label.trim().to_owned(), bytes)),
            // Continues the previous line.
            (None, Some((_, before))) => before.push_str(&bytes),
            (None, None) => {}
        }
    }
    examples
}

/// The corpus has one frame of each kind. A test of rd-proto checks that it is what this version encodes.
#[test]
fn the_protocol_shows_the_bytes_of_every_frame() {
    let shown = examples(&document("docs/PROTOCOL.md"));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/control_frame");
    let (mut seen, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(&corpus).expect("the corpus of control frames") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.len() == 40 {
            continue; // found by the fuzzer, named by its hash
        }
        let bytes = hex(&fs::read(&path).expect("readable"));
        seen += 1;
        if !shown.contains(&(name.clone(), bytes.clone())) {
            missing.push(format!("    {name}: {bytes}"));
        }
    }
    assert!(seen >= 13, "one frame of each type, not {seen}");
    assert!(missing.is_empty(), "docs/PROTOCOL.md lacks:\n{}", missing.join("\n"));
}

#[test]
fn the_protocol_shows_the_bytes_of_a_chunk_header() {
    let header = ChunkHeader {
        is_final: true,
        sealed: true,
        compression: Compression::Lz4,
        wire_bytes: 600_000,
        plain_bytes: 1 << 20,
        item: 0,
        sequence: 65_541,
        position: 65_541 << 20,
        tag: *b"16 bytes of tag.",
    };
    let bytes = header.encode();
    assert_eq!(ChunkHeader::decode(&bytes), Some(header));
    let shown = examples(&document("docs/PROTOCOL.md"));
    assert!(shown.contains(&("chunk header".to_owned(), hex(&bytes))), "    chunk header: {}", hex(&bytes));
}
