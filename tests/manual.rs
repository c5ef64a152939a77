//! What is written of the program agrees with it: manual pages, completions, the README's tables, the bytes in
//! `docs/PROTOCOL.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use rd_proto::frame::{ChunkHeader, Compression};
use rdma_pipe::cmd::agent::AgentArguments;
use rdma_pipe::cmd::doctor::DoctorArguments;
use rdma_pipe::cmd::perf::PerfArguments;
use rdma_pipe::cmd::rdcp::CopyArguments;
use rdma_pipe::cmd::rdpipe;
use rdma_pipe::cmd::recv::RecvArguments;
use rdma_pipe::cmd::send::SendArguments;

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

fn commands() -> Vec<Command> {
    vec![
        SendArguments::command(),
        RecvArguments::command(),
        CopyArguments::command(),
        rdpipe::command(),
        DoctorArguments::command(),
        PerfArguments::command(),
        AgentArguments::command(),
    ]
}

/// The first cells of the rows of the README's tables that begin with a code span.
fn rows(readme: &str) -> impl Iterator<Item = (&str, &str)> {
    readme.lines().filter_map(|line| {
        let row = line.strip_prefix("| `")?;
        let (first, _) = row.split_once('`')?;
        Some((first, line))
    })
}

#[test]
fn the_readme_has_every_option_with_its_default_and_no_other() {
    let readme = document("README.md");
    let mut known = BTreeSet::new();
    for command in commands() {
        for option in command.get_arguments().filter(|option| !option.is_positional()) {
            // ssh's own options have its short forms alone.
            let name = match (option.get_long(), option.get_short()) {
                (Some(long), _) => {
                    known.insert(long.to_owned());
                    format!("--{long}")
                }
                (None, short) => format!("-{}", short.expect("one of the two")),
            };
            let names = |first: &str| first.split([' ', '[', '=', ',']).any(|word| word == name);
            let (_, row) = rows(&readme)
                .find(|(first, _)| names(first))
                .unwrap_or_else(|| panic!("README.md has no row for {name} of {}", command.get_name()));
            for default in defaults(option) {
                assert!(row.contains(&format!("`{default}`")), "README.md: {name} has the default {default}: {row}");
            }
        }
    }
    known.extend(["help".to_owned(), "version".to_owned()]);
    for (first, row) in rows(&readme) {
        for word in first.split([' ', '[', '=', ',']) {
            if let Some(long) = word.strip_prefix("--") {
                assert!(known.contains(long), "README.md: there is no --{long}: {row}");
            }
        }
    }
}

fn defaults(option: &Arg) -> Vec<String> {
    if !option.get_action().takes_values() {
        return Vec::new();
    }
    option.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
}

#[test]
fn the_readme_has_every_exit_code() {
    let readme = document("README.md");
    for command in commands() {
        let codes = command.get_after_help().expect("the exit codes").to_string();
        for entry in codes.strip_prefix("Exit codes: ").expect("how they begin").split("; ") {
            let (code, _) = entry.split_once(' ').expect("a code and its meaning");
            assert!(rows(&readme).any(|(first, _)| first == code), "README.md has no row for exit code {code}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The examples of a document, without the spaces that make them readable: lines of four blanks, a label, a colon, hex.
fn examples(text: &str) -> Vec<(String, String)> {
    let mut examples: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        let bytes: String = line.rsplit(':').next().unwrap_or_default().split_whitespace().collect();
        if bytes.is_empty() || !bytes.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        match (line.split_once(':'), examples.last_mut()) {
            (Some((label, _)), _) => examples.push((label.trim().to_owned(), bytes)),
            // The line before goes on.
            (None, Some((_, before))) => before.push_str(&bytes),
            (None, None) => {}
        }
    }
    examples
}

/// The corpus has one frame of each kind, and a test of rd-proto keeps it to what this version encodes.
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
    assert_eq!(ChunkHeader::decode(&bytes), Ok(header));
    let shown = examples(&document("docs/PROTOCOL.md"));
    assert!(shown.contains(&("chunk header".to_owned(), hex(&bytes))), "    chunk header: {}", hex(&bytes));
}
