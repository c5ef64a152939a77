//! Rules that the compiler does not hold: which layer may name which, where `unsafe` may stand, what has no place here.
//!
//! `bin → cli, job, agent → {control, engine, measure} → {transport, tree, monitor} → fs → rd_proto`; see
//! `docs/ARCHITECTURE.md`. Each rule
//! is a function of a file's path and text, and has a test below with a planted violation that it must report.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the root package and how deep they lie: each may name deeper ones only.
const LAYERS: &[(&str, u32)] = &[
    ("bin", 0),
    ("cli", 1),
    ("job", 1),
    ("agent", 1),
    ("fault", 1),
    ("control", 2),
    ("engine", 2),
    ("measure", 2),
    ("transport", 3),
    ("monitor", 3),
    ("tree", 3),
    ("fs", 4),
    ("options", 5),
];

/// References within one layer that are meant, (from, to, why). A pair may stand here in one direction only.
const SIDEWAYS: &[(&str, &str, &str)] = &[];

/// What rd-proto may depend on: pure computation, no operating system.
const PROTO_DEPENDENCIES: &[&str] = &[
    "aws-lc-rs",
    "blake3",
    "chacha20poly1305",
    "curve25519-dalek",
    "hmac",
    "lz4_flex",
    "rand_core",
    "rapidhash",
    "sha2",
    "snow",
    "subtle",
    "thiserror",
    "twox-hash",
    "xxhash-rust",
    "zeroize",
    "zstd",
    "zstd-safe",
];

/// Paths that rd-proto may not name, and below them what it may: values are not I/O.
const PROTO_FORBIDDEN: &[&str] = &[
    "std::net",
    "std::fs",
    "std::thread",
    "std::process",
    "std::env",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
];
const PROTO_ALLOWED: &[&str] = &[
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::net::SocketAddr",
    "std::net::SocketAddrV4",
    "std::net::SocketAddrV6",
];

/// The files with `unsafe`, or directories that end with a slash.
const UNSAFE: &[&str] = &[
    "crates/rd-verbs/src/",
    "src/fs/close.rs",             // closing a descriptor and hearing of it
    "src/fs/standard.rs",          // looking at descriptors before the runtime does
    "src/fs/direct.rs",            // cachestat, which no crate has
    "src/engine/io.rs",            // what a ring reads into: that buffers outlive the work is proved there
    "src/transport/pool.rs",       // the mapping that buffers are made of
    "src/transport/tcp/unsent.rs", // TCP_NOTSENT_LOWAT, which no crate has
    "src/transport/rdma/lane.rs",  // posting buffers: that they outlive the work is proved there
    "src/cli/key.rs",              // overwriting KEY in argv; taking --key-fd
    "src/measure/disk.rs",         // requests of io_uring: that buffers outlive them is proved there
    "src/control/launch.rs",       // signals between fork and exec
    "src/control/names.rs",        // the C library's user database and patterns
];

const LINES_MAX: usize = 800;

/// A main calls its command and exits with its code.
const MAIN_LINES_MAX: usize = 10;

/// Names of modules that say nothing of what is in them.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helpers", "misc", "common"];

/// Absolute paths in the product: a machine's own, or a guess at where temporary files go (`TMPDIR` says).
const PATHS_IN_PRODUCT: &[&str] = &["\"/tmp", "\"/home/", "\"/root/"];
/// In any file: the directory of whoever works on the project. In pieces, so that this file has none.
const PATHS_ANYWHERE: &[&str] = &[concat!("/wo", "rk/"), concat!("/home/", "user"), concat!("C:", "\\Users")];

type Findings = Vec<String>;

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree: Vec<(String, String)> = files(root)
        .into_iter()
        .filter_map(|file| {
            let name = file.strip_prefix(root).expect("below the root").to_str().expect("names in UTF-8").to_owned();
            Some((name, fs::read_to_string(&file).ok()?)) // what is not text is not ours to read
        })
        .collect();
    let sources: Vec<&(String, String)> = tree.iter().filter(|(name, _)| name.ends_with(".rs")).collect();
    assert!(sources.len() > 10, "the walk has missed the sources: {}", sources.len());

    let test_modules: Vec<String> = sources.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let mut findings = Findings::new();
    for (name, text) in &tree {
        findings.extend(foreign_paths(name, text));
        if name.ends_with(".rs") {
            findings.extend(check_source(name, text, is_product(name, &test_modules)));
        }
        if name.ends_with("Cargo.toml") {
            findings.extend(check_manifest(name, text));
        }
    }
    let lib = fs::read_to_string(root.join("crates/rd-proto/src/lib.rs")).expect("rd-proto's lib.rs");
    findings.extend(forbids_unsafe(&lib));
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Every file of the project, without what builds and tools leave behind.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let entry = entry.expect("a readable entry");
        let name = entry.file_name();
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() {
            if !["target", "build", ".git", "corpus", "artifacts"].iter().any(|skipped| name == *skipped) {
                found.extend(files(&entry.path()));
            }
        } else if kind.is_file() && name != "Cargo.lock" && name != ".git" {
            found.push(entry.path());
        }
    }
    found
}

fn check_source(name: &str, text: &str, product: bool) -> Findings {
    let code = code_only(text);
    let shipped = if product { without_tests(&code) } else { String::new() };
    [
        layer_rule(name, &shipped),
        verbs_rule(name, &shipped),
        proto_rule(name, &shipped),
        unsafe_rule(name, &code),
        names_rule(name, &code),
        length_rule(name, text),
        main_rule(name, &code),
        if product { product_paths(name, text) } else { Findings::new() },
    ]
    .concat()
}

/// Whether a file is part of what is shipped: a source of a package that is not declared for tests alone.
fn is_product(name: &str, test_modules: &[String]) -> bool {
    let in_source = name.starts_with("src/") || (name.starts_with("crates/") && name.contains("/src/"));
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let for_tests = test_modules
        .iter()
        .any(|module| stem.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    in_source && !for_tests
}

/// The files, without `.rs` or `/mod.rs`, that one declares as `#[cfg(test)] mod name;`.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let code = code_only(text);
    let shipped = without_tests(&code);
    let parent = match name.rsplit_once('/') {
        Some((directory, "lib.rs" | "main.rs" | "mod.rs")) => directory,
        _ => name.strip_suffix(".rs").unwrap_or(name),
    };
    let declared = |code: &str| {
        let words: Vec<_> = tokens(code).into_iter().map(|(_, token)| token).collect();
        let found = words.windows(3).filter(|three| three[0] == "mod" && three[2] == ";");
        found.map(|three| format!("{parent}/{}", three[1])).collect::<Vec<_>>()
    };
    let kept = declared(&shipped);
    declared(&code).into_iter().filter(|module| !kept.contains(module)).collect()
}

/// Layers: a module names deeper ones only, and a main names `cli` alone.
fn layer_rule(name: &str, shipped: &str) -> Findings {
    let Some(module) = module_of(name) else { return Findings::new() };
    let Some(own) = module.first() else { return Findings::new() }; // lib.rs only declares
    let Some(depth) = depth_of(own) else {
        return vec![format!("{name}: module `{own}` has no layer; give it one in tests/tidy.rs")];
    };
    let mut findings = Findings::new();
    for (line, path) in paths(shipped) {
        let Some(target) = resolve(&module, &path) else { continue };
        // What was one layer is being parted; its parts still name each other.
        let is_upper = |module: &str| ["cli", "job", "agent", "fault"].contains(&module);
        if target == *own || is_upper(own) && is_upper(&target) {
            continue;
        }
        let Some(deep) = depth_of(&target) else { continue }; // an item, or a foreign crate
        let meant = SIDEWAYS.iter().any(|(from, to, _)| from == own && *to == target);
        if own == "bin" && target != "cli" || deep <= depth && !meant {
            findings.push(format!("{name}:{line}: `{own}` may not name `{target}`"));
        }
    }
    findings.dedup(); // one for each line
    findings
}

fn depth_of(module: &str) -> Option<u32> {
    LAYERS.iter().find(|(layer, _)| *layer == module).map(|(_, depth)| *depth)
}

/// The module path of a file of the root package: `src/transport/tcp.rs` is `[transport, tcp]`.
fn module_of(name: &str) -> Option<Vec<String>> {
    let inside = name.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    Some(module)
}

/// The top-level module of the root package that a path leads to, if it starts from the package.
fn resolve(module: &[String], path: &[String]) -> Option<String> {
    let first = path.first()?.as_str();
    match first {
        "crate" | "rdma_pipe" => path.get(1).cloned(),
        "self" => module.first().cloned(),
        "super" => {
            let ups = path.iter().take_while(|segment| *segment == "super").count();
            let kept = module.len().checked_sub(ups)?;
            module.get(..kept)?.first().or(path.get(ups)).cloned()
        }
        _ => None,
    }
}

/// Only `transport::rdma` knows that verbs exist.
fn verbs_rule(name: &str, shipped: &str) -> Findings {
    let at_home = name == "src/transport/rdma.rs" || name.starts_with("src/transport/rdma/");
    if !name.starts_with("src/") || at_home {
        return Findings::new();
    }
    words(shipped)
        .filter(|(_, word)| word == "rd_verbs")
        .map(|(line, _)| format!("{name}:{line}: only transport/rdma may name `rd_verbs`"))
        .collect()
}

/// rd-proto has no sockets, files, threads or clock.
fn proto_rule(name: &str, shipped: &str) -> Findings {
    if !name.starts_with("crates/rd-proto/src/") {
        return Findings::new();
    }
    let below = |path: &str, top: &&&str| path == **top || path.starts_with(&format!("{top}::"));
    let mut findings = Findings::new();
    for (line, path) in paths(shipped) {
        let path = path.join("::").replacen("core::", "std::", 1);
        let forbidden = PROTO_FORBIDDEN.iter().any(|top| below(&path, &top))
            // A whole module under another name, or all that is in one, hides what is named below it.
            || ["std", "std::*", "std::time", "std::time::*"].contains(&path.as_str());
        if forbidden && !PROTO_ALLOWED.iter().any(|top| below(&path, &top)) {
            findings.push(format!("{name}:{line}: rd-proto is pure and may not name `{path}`"));
        }
    }
    findings
}

fn forbids_unsafe(lib: &str) -> Findings {
    if code_only(lib).contains("#![forbid(unsafe_code)]") {
        return Findings::new();
    }
    vec!["crates/rd-proto/src/lib.rs: does not forbid unsafe code".to_owned()]
}

fn unsafe_rule(name: &str, code: &str) -> Findings {
    if UNSAFE.iter().any(|home| *home == name || home.ends_with('/') && name.starts_with(home)) {
        return Findings::new();
    }
    words(code)
        .filter(|(_, word)| word == "unsafe")
        .map(|(line, _)| format!("{name}:{line}: `unsafe` outside of the files that tests/tidy.rs lists"))
        .collect()
}

fn names_rule(name: &str, code: &str) -> Findings {
    let stem = name.rsplit('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
    let mut findings: Findings = stem
        .filter(|part| EMPTY_NAMES.contains(part))
        .map(|part| format!("{name}: `{part}` says nothing of what is in it"))
        .collect();
    let all: Vec<_> = words(code).collect();
    for pair in all.windows(2) {
        if pair[0].1 == "mod" && EMPTY_NAMES.contains(&pair[1].1.as_str()) {
            findings.push(format!("{name}:{}: module `{}` says nothing of what is in it", pair[1].0, pair[1].1));
        }
    }
    findings
}

fn length_rule(name: &str, text: &str) -> Findings {
    let lines = text.lines().count();
    if lines <= LINES_MAX {
        return Findings::new();
    }
    vec![format!("{name}: {lines} lines, more than {LINES_MAX}")]
}

fn main_rule(name: &str, code: &str) -> Findings {
    if !name.starts_with("src/bin/") {
        return Findings::new();
    }
    let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
    if lines <= MAIN_LINES_MAX {
        return Findings::new();
    }
    vec![format!("{name}: {lines} lines of code in a main, more than {MAIN_LINES_MAX}")]
}

fn product_paths(name: &str, text: &str) -> Findings {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    found_lines(name, &text[..end], PATHS_IN_PRODUCT)
}

fn foreign_paths(name: &str, text: &str) -> Findings {
    found_lines(name, text, PATHS_ANYWHERE)
}

fn found_lines(name: &str, text: &str, patterns: &[&str]) -> Findings {
    let mut findings = Findings::new();
    for (index, line) in text.lines().enumerate() {
        for pattern in patterns.iter().filter(|pattern| line.contains(**pattern)) {
            findings.push(format!("{name}:{}: `{pattern}` has no place here", index + 1));
        }
    }
    findings
}

/// Cargo.toml: what each package may depend on.
fn check_manifest(name: &str, text: &str) -> Findings {
    let mut findings = Findings::new();
    for (line, section, dependency) in dependencies(text) {
        let allowed = match name {
            "crates/rd-proto/Cargo.toml" => {
                section.starts_with("dev-") || PROTO_DEPENDENCIES.contains(&dependency.as_str())
            }
            "crates/rd-verbs/Cargo.toml" => !["rd-proto", "rdma-pipe"].contains(&dependency.as_str()),
            _ => true,
        };
        if !allowed {
            findings.push(format!("{name}:{line}: may not depend on `{dependency}`"));
        }
    }
    findings
}

/// (line, section, package) of every dependency of a manifest. Enough of TOML for manifests as they are written here.
fn dependencies(text: &str) -> Vec<(usize, String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // [target.'cfg(…)'.dependencies] and [dependencies.name] are the other two forms.
            section = header.rsplit_once("'.").map_or(header, |(_, last)| last).to_owned();
            if let Some((kind, package)) = section.split_once('.')
                && kind.ends_with("dependencies")
            {
                found.push((index + 1, kind.to_owned(), package.to_owned()));
            }
        } else if section.ends_with("dependencies")
            && let Some((key, value)) = line.split_once('=')
        {
            let key = key.trim().split('.').next().unwrap_or_default().trim_matches('"');
            // `alias = { package = "name" }` depends on the name.
            let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            found.push((index + 1, section.clone(), renamed.unwrap_or(key).to_owned()));
        }
    }
    found
}

// --- a little of the language ----------------------------------------------------------------------------------------

/// The text with comments and the contents of literals blanked; every line keeps its number.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            for byte in &mut code[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            at = end;
        } else if is_word(bytes[at]) {
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1; // a whole word, so that the r of `for"` begins no raw string
            }
        } else {
            at += 1;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Where the comment or literal that begins at `at` ends; `at` itself if none begins there.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        let (mut depth, mut i) = (0_usize, 0);
        while i < rest.len() {
            if rest[i..].starts_with(b"/*") {
                depth += 1;
                i += 2;
            } else if rest[i..].starts_with(b"*/") {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return at + i;
                }
            } else {
                i += 1;
            }
        }
        return bytes.len();
    }
    let prefix = rest.iter().take_while(|byte| b"bcr".contains(*byte)).count().min(2);
    let raw = rest[..prefix].contains(&b'r');
    let hashes = if raw { rest[prefix..].iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    let open = prefix + hashes;
    match rest.get(open) {
        Some(b'"') if raw => {
            let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let body = &rest[open + 1..];
            let length = body.windows(close.len()).position(|window| window == close);
            at + open + 1 + length.map_or(body.len(), |length| length + close.len())
        }
        Some(b'"') => at + quoted_length(rest, open, b'"'),
        // 'x' or '\…' is a character; 'x without a closing quote is a lifetime.
        Some(b'\'') if prefix == 0 || rest[0] == b'b' => {
            let body = &rest[open + 1..];
            let width = std::str::from_utf8(&body[..body.len().min(4)])
                .or_else(|error| std::str::from_utf8(&body[..error.valid_up_to()]))
                .ok()
                .and_then(|text| text.chars().next())
                .map_or(1, char::len_utf8);
            if body.first() == Some(&b'\\') || body.get(width) == Some(&b'\'') {
                at + quoted_length(rest, open, b'\'')
            } else {
                at
            }
        }
        _ => at,
    }
}

fn quoted_length(rest: &[u8], open: usize, quote: u8) -> usize {
    let mut i = open + 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Code without the items under `#[cfg(test)]` (or `cfg(any(test, …))`), which may reach anywhere.
fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    while let Some(start) = ["#[cfg(test)]", "#[cfg(any(test"].iter().filter_map(|attribute| kept.find(attribute)).min()
    {
        let rest = &kept[start..];
        let brace = rest.find('{').unwrap_or(rest.len());
        let semicolon = rest.find(';').unwrap_or(rest.len());
        let mut end = (semicolon + 1).min(rest.len());
        if brace < semicolon {
            let mut depth = 0_usize;
            end = rest.len();
            for (index, byte) in rest.bytes().enumerate().skip(brace) {
                match byte {
                    b'{' => depth += 1,
                    b'}' => depth -= 1,
                    _ => continue,
                }
                if depth == 0 {
                    end = index + 1;
                    break;
                }
            }
        }
        let blank: String = rest[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(start..start + end, &blank);
    }
    kept
}

/// The words of code, each with its line.
fn words(code: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    tokens(code).into_iter().filter(|(_, token)| token.bytes().all(is_word))
}

/// Words and single signs; `::` is one.
fn tokens(code: &str) -> Vec<(usize, String)> {
    let bytes = code.as_bytes();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < bytes.len() {
        let start = at;
        if bytes[at] == b'\n' {
            line += 1;
        }
        at += 1;
        if is_word(bytes[start]) {
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
        } else if bytes[start..].starts_with(b"::") {
            at += 1;
        } else if !bytes[start].is_ascii_graphic() {
            continue;
        }
        found.push((line, code[start..at].to_owned()));
    }
    found
}

/// Every path of the code with its line: those of `use` trees, spelled out, and those in expressions and types.
fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].1 == "use" {
            at = use_tree(&tokens, at + 1, &[], &mut found);
        } else if tokens[at].1.bytes().all(is_word) {
            let (line, mut path) = (tokens[at].0, vec![tokens[at].1.clone()]);
            at += 1;
            while at + 1 < tokens.len() && tokens[at].1 == "::" && tokens[at + 1].1.bytes().all(is_word) {
                path.push(tokens[at + 1].1.clone());
                at += 2;
            }
            if path.len() > 1 {
                found.push((line, path));
            }
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one branch of a `use` tree from `at`; returns where it ends.
fn use_tree(
    tokens: &[(usize, String)],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.0);
    while let Some((_, token)) = tokens.get(at) {
        match token.as_str() {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.1 != "}") {
                    at = use_tree(tokens, at, &path, found);
                    match tokens.get(at).map(|token| token.1.as_str()) {
                        Some(",") => at += 1,
                        Some("}") => {}
                        _ => return at, // no `use` tree after all, as in `impl Trait + use<'a> {`
                    }
                }
                return at + 1;
            }
            "<" if path.is_empty() => return at, // `impl Trait + use<'a>` captures; it names no path
            "as" => at += 2,
            "self" if !path.is_empty() => at += 1, // `a::{self}` is `a`
            "," | "}" | ";" => break,
            word => {
                path.push(word.to_owned());
                at += 1;
            }
        }
    }
    found.push((line, path));
    at
}

// --- each rule catches what it is for --------------------------------------------------------------------------------

#[cfg(test)]
mod planted {
    use super::*;

    fn one(findings: &Findings, part: &str) {
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains(part), "{findings:?} does not say `{part}`");
    }

    fn none(findings: &Findings) {
        assert!(findings.is_empty(), "{findings:?}");
    }

    #[test]
    fn a_layer_reaching_upwards() {
        let rule = |name, text: &str| layer_rule(name, &without_tests(&code_only(text)));
        one(&rule("src/transport/tcp.rs", "use crate::engine::Pump;"), "`transport` may not name `engine`");
        one(&rule("src/transport/tcp.rs", "use crate::{transport::Lane, engine::{self, Pump}};"), "engine");
        one(&rule("src/engine/mod.rs", "fn f() { crate::cli::exit::Code::Done; }"), ":1: `engine` may not name `cli`");
        one(&rule("src/fs/read.rs", "\nuse super::super::transport::Pool;"), ":2: `fs` may not name `transport`");
        one(&rule("src/fs/read.rs", "use crate::tree::walk::Walk;"), ":1: `fs` may not name `tree`");
        one(&rule("src/engine/pump.rs", "use crate::control::Agent;"), "control");
        one(&rule("src/bin/rdsend.rs", "fn main() { rdma_pipe::engine::run() }"), "`bin` may not name `engine`");
        one(&rule("src/stray.rs", ""), "no layer");
        none(&rule(
            "src/engine/pump.rs",
            "use crate::transport::{Lane, Pool}; use super::Session; use rd_proto::frame;",
        ));
        none(&rule("src/engine/pump.rs", "fn f<'a>() -> impl Iterator + use<'a> { g() }"));
        none(&rule("src/bin/rdsend.rs", "fn main() { rdma_pipe::cli::rdsend::main() }"));
        none(&rule("src/transport/tcp.rs", "// use crate::engine::Pump;\nconst S: &str = \"crate::engine\";"));
        none(&rule("src/transport/tcp.rs", "#[cfg(test)]\nmod tests { use crate::engine::Pump; }"));
        one(&rule("src/transport/tcp.rs", "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::cli::X;"), ":3:");
    }

    #[test]
    fn verbs_named_outside_of_their_transport() {
        let rule = |name, text: &str| verbs_rule(name, &code_only(text));
        one(&rule("src/engine/mod.rs", "use rd_verbs::Device;"), "rd_verbs");
        one(&rule("src/transport/mod.rs", "fn f(d: &::rd_verbs::Device) {}"), "rd_verbs");
        none(&rule("src/transport/rdma/lane.rs", "use rd_verbs::Device;"));
        none(&rule("src/engine/mod.rs", "// rd_verbs\nlet x = \"rd_verbs\";"));
    }

    #[test]
    fn the_protocol_doing_io() {
        let rule = |text: &str| proto_rule("crates/rd-proto/src/session.rs", &without_tests(&code_only(text)));
        one(&rule("use std::net::TcpStream;"), "std::net::TcpStream");
        one(&rule("use std::{fmt, fs::File};"), "std::fs::File");
        one(&rule("fn f() { std::thread::sleep(d) }"), "std::thread");
        one(&rule("use std::time::{Duration, Instant};"), "std::time::Instant");
        one(&rule("fn now() -> std::time::SystemTime { todo!() }"), "SystemTime");
        one(&rule("use std::time as clock;"), "std::time");
        one(&rule("use std::net::*;"), "std::net");
        none(&rule("use std::net::{IpAddr, SocketAddr}; use std::time::Duration; use core::fmt;"));
        none(&rule("#[cfg(test)]\nmod tests { use std::fs; }"));
        one(&forbids_unsafe("//! #![forbid(unsafe_code)]\n"), "forbid");
        none(&forbids_unsafe("#![forbid(unsafe_code)]\n"));
    }

    #[test]
    fn unsafe_in_a_new_place() {
        let rule = |name, text: &str| unsafe_rule(name, &code_only(text));
        one(&rule("src/engine/mod.rs", "\n\nfn f() { unsafe { g() } }"), ":3:");
        one(&rule("tests/hosts.rs", "unsafe extern \"C\" {}"), "unsafe");
        none(&rule("src/transport/pool.rs", "unsafe { g() }"));
        none(&rule(
            "src/engine/mod.rs",
            "// unsafe\n/* /* */ unsafe */ let s = r#\"\"unsafe\"#; let c = '\"'; #[allow(unsafe_code)]",
        ));
    }

    #[test]
    fn a_name_that_says_nothing() {
        one(&names_rule("src/engine/util.rs", ""), "util");
        one(&names_rule("src/util/mod.rs", ""), "util");
        one(&names_rule("src/lib.rs", "pub mod utils;"), "utils");
        none(&names_rule("src/lib.rs", "let util = 1; mod utility;"));
    }

    #[test]
    fn a_file_or_a_main_too_long() {
        one(&length_rule("src/engine/mod.rs", &"x\n".repeat(LINES_MAX + 1)), "801");
        one(&length_rule("tests/rdma_lane/main.rs", &"x\n".repeat(LINES_MAX + 1)), "801");
        none(&length_rule("src/engine/mod.rs", &"x\n".repeat(LINES_MAX)));
        one(&main_rule("src/bin/rdsend.rs", &"x();\n".repeat(MAIN_LINES_MAX + 1)), "11");
        none(&main_rule("src/bin/rdsend.rs", &code_only(&"// why\n\n".repeat(40))));
    }

    #[test]
    fn a_path_of_one_machine() {
        one(&product_paths("src/cli/mod.rs", "let p = \"/tmp/x\";"), "/tmp");
        none(&product_paths("src/cli/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n let p = \"/tmp/x\";\n}"));
        one(&foreign_paths("docs/TESTING.md", concat!("see /wo", "rk/tree")), ":1:");
        none(&foreign_paths("docs/TESTING.md", "see the /network/ and ./workspace/"));
    }

    #[test]
    fn a_dependency_of_the_wrong_kind() {
        let proto = "crates/rd-proto/Cargo.toml";
        one(&check_manifest(proto, "[dependencies]\nrustix.workspace = true"), ":2: may not depend on `rustix`");
        one(&check_manifest(proto, "[dependencies.libc]\nversion = \"1\""), "libc");
        one(&check_manifest(proto, "[target.'cfg(unix)'.dependencies]\nlibc = \"1\""), "libc");
        one(&check_manifest(proto, "[dependencies]\nsnow = { package = \"tokio\", version = \"1\" }"), "tokio");
        none(&check_manifest(proto, "[dependencies]\nthiserror = \"2\" # fine\n[dev-dependencies]\nproptest = \"1\""));
        one(&check_manifest("crates/rd-verbs/Cargo.toml", "[dependencies]\nrd-proto.workspace = true"), "rd-proto");
    }

    #[test]
    fn what_is_part_of_the_product() {
        let lib = "pub mod frame;\n#[cfg(test)]\nmod corpus;\n#[cfg(any(test, fuzzing))]\npub mod fuzz;\nmod b;";
        let tests = test_modules("crates/rd-proto/src/lib.rs", lib);
        assert_eq!(tests, ["crates/rd-proto/src/corpus", "crates/rd-proto/src/fuzz"]);
        assert!(
            is_product("src/engine/mod.rs", &tests) && is_product("crates/rd-proto/src/corpus_of_words.rs", &tests)
        );
        assert!(!is_product("tests/hosts.rs", &tests) && !is_product("crates/rd-proto/src/corpus.rs", &tests));
        assert!(!is_product("crates/rd-proto/src/corpus/old.rs", &tests));
        assert_eq!(test_modules("src/engine/pump.rs", "#[cfg(test)]\nmod tests;"), ["src/engine/pump/tests"]);
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        let code = code_only("fn f<'a>(x: &'a str) -> char { '\\'' } // '\nlet c = 'é'; let b = b'\"'; unsafe");
        assert_eq!(words(&code).last(), Some((2, "unsafe".to_owned())));
        assert!(code.contains("fn f<'a>(x: &'a str) -> char {"), "{code}");
    }
}
