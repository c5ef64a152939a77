//! Rules for the source tree that neither Cargo nor clippy enforces: which folder of `src` may name which, how long a
//! file may be, and which names and paths are not allowed.
//!
//! Other rules are enforced elsewhere. `unsafe` is denied for the workspace (`Cargo.toml`): a file that needs it allows
//! it at its head, with the reason. rd-proto uses no sockets, files, threads or clock: `crates/rd-proto/clippy.toml`,
//! checked by `make check`.
//!
//! Sources are read line by line. A line that is not a comment names the folders that it contains; a file's tests may
//! name any folder. A folder must be named as `crate::folder`, and each `use` may name only one;
//! other forms are findings.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// For each folder (or file) of `src`, the folders that it may name. All of them are below it in this table, so there
/// is no cycle.
const ARROWS: &[(&str, &[&str])] = &[
    ("bin", &["cli"]),
    (
        "cli",
        &[
            "job",
            "agent",
            "control",
            "engine",
            "measure",
            "tree",
            "transport",
            "fs",
            "fault",
            "log",
            "options",
            "signals",
            "standard_error",
        ],
    ),
    (
        "job",
        &["agent", "control", "engine", "measure", "tree", "transport", "fs", "fault", "log", "options", "signals"],
    ),
    ("agent", &["control", "engine", "measure", "tree", "transport", "fs", "fault", "log", "options", "signals"]),
    (
        "control",
        &["engine", "tree", "transport", "fs", "fault", "limits", "log", "options", "signals", "standard_error"],
    ),
    ("engine", &["tree", "transport", "fs", "fault", "log", "options", "signals"]),
    ("measure", &["tree", "transport", "fs", "fault", "log", "options"]),
    ("tree", &["fs", "fault", "limits", "log", "options"]),
    ("transport", &["fault", "limits", "log", "options"]),
    ("fs", &["fault", "limits", "log", "options"]),
    ("fault", &[]),
    ("limits", &[]),
    ("log", &[]),
    ("options", &[]),
    ("standard_error", &["signals"]),
    ("signals", &[]),
];

/// The only folder that may name rd-verbs.
const VERBS_AT: &str = "src/transport/rdma/";

/// Dependencies that rd-proto may have: pure computation, no operating system.
const PROTO_DEPENDENCIES: &[&str] = &[
    "aws-lc-rs",
    "blake3",
    "curve25519-dalek",
    "lz4",
    "minicbor",
    "rand_core",
    "rapidhash",
    "ring",
    "sha2",
    "snow",
    "subtle",
    "thiserror",
    "zeroize",
    "zstd",
];

/// Maximum number of lines of a source; of a main, which calls its command and exits with the command's code; and of
/// pages that tend to grow.
const LINES_MAX: usize = 800;
const MAIN_LINES_MAX: usize = 12;
const PAGES_MAX: &[(&str, usize)] = &[("docs/ARCHITECTURE.md", 300), ("docs/PERFORMANCE.md", 100)];

/// Names of modules that say nothing about their contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helpers", "misc", "common"];

/// Absolute paths that are not allowed in the product: paths of one machine, or guesses at where temporary files go
/// (`TMPDIR` says that).
const PATHS_IN_PRODUCT: &[&str] = &["\"/tmp", "\"/home/", "\"/root/"];
/// Directories of a developer's machine, not allowed in any file.
/// Written in pieces, so that this file does not contain them.
const PATHS_ANYWHERE: &[&str] = &[concat!("/wo", "rk/"), concat!("/home/", "user"), concat!("C:", "\\Users")];

type Findings = Vec<String>;

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut findings = Findings::new();
    let mut sources = 0;
    for file in files(root) {
        let name = file.strip_prefix(root).expect("below the root").to_str().expect("names in UTF-8");
        let Ok(text) = fs::read_to_string(&file) else { continue }; // this test reads only text
        findings.extend(lines_with(name, &text, PATHS_ANYWHERE));
        findings.extend(length_rule(name, &text));
        if name.ends_with(".rs") {
            sources += 1;
            findings.extend(name_rule(name));
            findings.extend(product_rules(name, &text));
        }
    }
    assert!(sources > 100, "the walk has missed the sources: {sources}");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn pages_name_sources_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = files(root);
    let names = || files.iter().filter_map(|file| file.strip_prefix(root).ok()?.to_str());
    let mut count = 0;
    for page in names().filter(|name| name.ends_with(".md")) {
        for source in sources_named(&fs::read_to_string(root.join(page)).expect("a page")) {
            // A page names a source by the end of its path: `engine/io.rs`.
            assert!(names().any(|name| Path::new(name).ends_with(&source)), "{page}: there is no {source}");
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

/// Returns the texts between backquotes that are names of sources.
fn sources_named(page: &str) -> Vec<String> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.ends_with(".rs") && !text.contains([' ', '*', '\n'])).map(str::to_owned).collect()
}

/// A folder of tests is one program: a file that its main does not name is never compiled.
#[test]
fn no_file_of_tests_is_left_out() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (mut findings, mut count) = (Findings::new(), 0);
    for folder in fs::read_dir(tests).expect("a readable directory").map(|entry| entry.expect("an entry").path()) {
        let mains = ["main.rs", "mod.rs"].map(|name| fs::read_to_string(folder.join(name)));
        let Some(main) = mains.into_iter().find_map(Result::ok) else { continue };
        let files = files(&folder);
        count += files.len();
        findings.extend(left_out_rule(folder.to_str().expect("names in UTF-8"), &main, &files));
    }
    assert!(count > 60, "the walk has missed the tests: {count}");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// The rows of the benchmark suite are those that its page lists, in the same order.
#[test]
fn rows_of_the_benches_are_described() {
    let read = |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a file");
    let table = read("benches/bench/main.rs");
    let (_, table) = table.split_once("\nconst ROWS: ").expect("a table");
    let (table, _) = table.split_once("\n];").expect("its end");
    let measured: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("    (\"")?.split('"').next()).collect();
    let page = read("docs/performance/method.md");
    let (_, page) = page.split_once("\n| `ONLY=` |").expect("a table");
    let (page, _) = page.split_once("\n\n").expect("its end");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let described: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`')).collect();
    assert_eq!(measured, described);
}

#[test]
fn arrows_lead_downwards() {
    for (at, (folder, below)) in ARROWS.iter().enumerate() {
        for named in *below {
            let place = ARROWS.iter().position(|(folder, _)| folder == named).expect("a folder of the table");
            assert!(place > at, "{folder} → {named} leads upwards");
        }
    }
}

#[test]
fn packages_depend_on_what_they_may() {
    let packages = packages();
    for name in &packages["rd-proto"].shipped {
        assert!(PROTO_DEPENDENCIES.contains(&name.as_str()), "rd-proto may not depend on {name}");
    }
    for name in &packages["rd-verbs"].shipped {
        assert!(!packages.contains_key(name), "rd-verbs may not depend on {name}");
    }
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/rd-proto/src/lib.rs"));
    assert!(lib.expect("rd-proto").lines().any(|line| line == "#![forbid(unsafe_code)]"), "rd-proto allows unsafe");
}

#[test]
fn architecture_says_why_each_dependency_is_there() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ARCHITECTURE.md")).expect("a page");
    let (_, table) = page.split_once("## Dependencies").expect("a table of dependencies");
    let named: String = table.lines().filter_map(|line| line.split('|').nth(1)).collect();
    let packages = packages();
    let all = packages.values().flat_map(|package| package.shipped.iter().chain(&package.of_tests));
    for name in all.filter(|name| !packages.contains_key(*name)) {
        assert!(named.contains(&format!("`{name}`")), "docs/ARCHITECTURE.md does not say why {name} is there");
    }
}

/// Dependencies of a package of the workspace.
#[derive(Default)]
struct Dependencies {
    shipped: Vec<String>,
    of_tests: Vec<String>,
}

fn packages() -> BTreeMap<String, Dependencies> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("cargo's JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let mut packages: BTreeMap<String, Dependencies> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let entry = packages.entry(text(&package["name"])).or_default();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let kind = if dependency["kind"].is_null() { &mut entry.shipped } else { &mut entry.of_tests };
            kind.push(text(&dependency["name"]));
        }
    }
    packages
}

/// Returns every file of the project, except for those that builds and tools leave behind.
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

/// Applies the rules for code that is shipped.
fn product_rules(name: &str, text: &str) -> Findings {
    let parts: Vec<&str> = name.trim_end_matches(".rs").split('/').collect();
    let for_tests = ["tests", "fuzz", "corpus", "simulation", "test_support"];
    if !parts.contains(&"src") || parts.iter().any(|part| for_tests.contains(part)) {
        return Findings::new();
    }
    let shipped = &text[..text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len())];
    [
        lines_with(name, shipped, PATHS_IN_PRODUCT),
        arrows_rule(name, &parts, shipped),
        verbs_rule(name, shipped),
        fence_rule(name, shipped),
    ]
    .concat()
}

/// Examples in the documentation are not run (`doctest = false`), so none may look like one.
fn fence_rule(name: &str, shipped: &str) -> Findings {
    let fences = shipped.lines().enumerate().filter_map(|(index, line)| {
        let text = line.trim_start();
        let text = text.strip_prefix("//!").or_else(|| text.strip_prefix("///"))?;
        Some((index + 1, text.trim_start().strip_prefix("```")?))
    });
    let opening = fences.step_by(2).filter(|(_, language)| *language != "text");
    opening.map(|(line, language)| format!("{name}:{line}: ```{language} would be an example; use ```text")).collect()
}

/// Returns lines of code with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().starts_with("//"))
}

fn arrows_rule(name: &str, parts: &[&str], shipped: &str) -> Findings {
    let ["src", own, inner @ ..] = parts else { return Findings::new() };
    if *own == "lib" {
        return Findings::new(); // it only declares modules
    }
    let Some((_, below)) = ARROWS.iter().find(|(folder, _)| folder == own) else {
        return vec![format!("{name}: `{own}` is not in ARROWS of tests/tidy.rs")];
    };
    let depth = 1 + inner.iter().filter(|part| **part != "mod").count();
    let mut findings = Findings::new();
    for (number, line) in code(shipped) {
        let mut finding = |what: &str| findings.push(format!("{name}:{number}: {what}"));
        for path in line.split("crate::").skip(1).chain(line.split("rdma_pipe::").skip(1)) {
            let end = path.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(path.len());
            let named = &path[..end];
            let known = ARROWS.iter().any(|(folder, _)| *folder == named);
            if path.starts_with('{') {
                finding("name one folder in a `use`");
            } else if known && named != *own && !below.contains(&named) {
                finding(&format!("`{own}` may not name `{named}`"));
            }
        }
        if line.contains(&"super::".repeat(depth)) {
            finding("`super` leads out of its folder: name it as `crate::…`");
        }
    }
    findings
}

fn verbs_rule(name: &str, shipped: &str) -> Findings {
    if !name.starts_with("src/") || name.starts_with(VERBS_AT) {
        return Findings::new();
    }
    let named = code(shipped).filter(|(_, line)| line.contains("rd_verbs"));
    named.map(|(number, _)| format!("{name}:{number}: only {VERBS_AT} may name `rd_verbs`")).collect()
}

fn name_rule(name: &str) -> Findings {
    let parts = name.trim_end_matches(".rs").split('/').filter(|part| EMPTY_NAMES.contains(part));
    parts.map(|part| format!("{name}: `{part}` says nothing of what is in it")).collect()
}

fn length_rule(name: &str, text: &str) -> Findings {
    let page = PAGES_MAX.iter().find(|(page, _)| *page == name).map(|(_, most)| *most);
    let most = match page {
        Some(most) => most,
        None if name.starts_with("src/bin/") => MAIN_LINES_MAX,
        None if name.ends_with(".rs") => LINES_MAX,
        None => return Findings::new(),
    };
    let lines = text.lines().count();
    if lines > most { vec![format!("{name}: {lines} lines, more than {most}")] } else { Findings::new() }
}

fn left_out_rule(folder: &str, main: &str, files: &[PathBuf]) -> Findings {
    let named: Vec<&str> = code(main)
        .filter_map(|(_, line)| line.trim().trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let is_left_out = |file: &&PathBuf| {
        let module = file.strip_prefix(folder).ok().and_then(|name| name.to_str()?.strip_suffix(".rs"));
        module.is_some_and(|module| !["main", "mod"].contains(&module) && !named.contains(&module))
    };
    files.iter().filter(is_left_out).map(|file| format!("{}: no `mod` names it", file.display())).collect()
}

fn lines_with(name: &str, text: &str, patterns: &[&str]) -> Findings {
    let mut findings = Findings::new();
    for (index, line) in text.lines().enumerate() {
        for pattern in patterns.iter().filter(|pattern| line.contains(**pattern)) {
            findings.push(format!("{name}:{}: `{pattern}` has no place here", index + 1));
        }
    }
    findings
}

/// Each rule reports a planted violation.
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
    fn an_arrow_upwards() {
        one(
            &product_rules("src/transport/tcp.rs", "use crate::engine::Pump;"),
            ":1: `transport` may not name `engine`",
        );
        one(&product_rules("src/engine/mod.rs", "\nfn f() { crate::cli::exit() }"), ":2: `engine` may not name `cli`");
        one(&product_rules("src/fs/read.rs", "use crate::tree::walk::Walk;"), "`fs` may not name `tree`");
        one(&product_rules("src/engine/pump.rs", "use crate::control::Agent;"), "control");
        one(
            &product_rules("src/bin/rdsend.rs", "fn main() { rdma_pipe::engine::run() }"),
            "`bin` may not name `engine`",
        );
        one(&product_rules("src/fault.rs", "use crate::fs::Errno;"), "`fault` may not name `fs`");
        one(&product_rules("src/stray.rs", ""), "ARROWS");
        one(&product_rules("src/tree/walk.rs", "use crate::{engine, fs};"), "one folder");
        one(&product_rules("src/fs/mod.rs", "use super::transport::Pool;"), "`super`");
        one(&product_rules("src/fs/read.rs", "use super::super::transport::Pool;"), "`super`");
        none(&product_rules("src/engine/pump.rs", "use crate::transport::{Lane, Pool}; use super::Session;"));
        none(&product_rules("src/bin/rdsend.rs", "fn main() { rdma_pipe::cli::rdsend::main() }"));
        none(&product_rules("src/transport/tcp.rs", "    // use crate::engine::Pump;\nuse crate::processors;"));
        none(&product_rules("src/transport/tcp.rs", "#[cfg(test)]\nmod tests {\n    use crate::engine::Pump;\n}"));
        none(&product_rules("src/transport/tcp/tests.rs", "use crate::engine::Pump;"));
    }

    #[test]
    fn verbs_named_outside_of_their_transport() {
        one(&product_rules("src/engine/mod.rs", "use rd_verbs::Device;"), "rd_verbs");
        none(&product_rules("src/transport/rdma/lane.rs", "use rd_verbs::Device;"));
        none(&product_rules("src/engine/mod.rs", "/// rd_verbs"));
    }

    #[test]
    fn an_example_that_does_not_run() {
        one(&product_rules("src/fs/read.rs", "/// ```\n/// read();\n/// ```"), ":1:");
        one(&product_rules("src/fs/read.rs", "//! ```text\n//! a\n//! ```\n/// ```rust\n/// b\n/// ```"), ":4:");
        none(&product_rules("src/fs/read.rs", "    /// ```text\n    /// a b\n    /// ```\nlet s = \"```\";"));
    }

    #[test]
    fn a_source_on_a_page() {
        let page = "in `engine/io.rs` and `x`\n```sh\nls a.rs\n```\nand `tests/*.rs`, `fault.rs`";
        assert_eq!(sources_named(page), ["engine/io.rs", "fault.rs"]);
    }

    #[test]
    fn a_name_that_says_nothing() {
        one(&name_rule("src/engine/util.rs"), "util");
        one(&name_rule("src/helpers/mod.rs"), "helpers");
        none(&name_rule("src/engine/utility.rs"));
    }

    #[test]
    fn a_file_too_long() {
        one(&length_rule("src/engine/mod.rs", &"x\n".repeat(LINES_MAX + 1)), "801");
        one(&length_rule("tests/rdma_lane/main.rs", &"x\n".repeat(LINES_MAX + 1)), "801");
        one(&length_rule("src/bin/rdsend.rs", &"x\n".repeat(MAIN_LINES_MAX + 1)), "13");
        one(&length_rule("docs/ARCHITECTURE.md", &"x\n".repeat(301)), "301");
        none(&length_rule("docs/PROTOCOL.md", &"x\n".repeat(LINES_MAX + 1)));
        none(&length_rule("src/engine/mod.rs", &"x\n".repeat(LINES_MAX)));
    }

    #[test]
    fn a_file_that_is_left_out() {
        let files = ["t/main.rs", "t/one.rs", "t/two.rs", "t/plan.json"].map(PathBuf::from);
        one(&left_out_rule("t", "mod one;\n// mod two;\nmod twofold;", &files), "t/two.rs");
        none(&left_out_rule("t", "mod one;\n    pub mod two;", &files));
    }

    #[test]
    fn a_path_of_one_machine() {
        one(&product_rules("src/cli/mod.rs", "let p = \"/tmp/x\";"), "/tmp");
        one(&product_rules("crates/rd-proto/src/lib.rs", "let p = \"/root/x\";"), "/root");
        none(&product_rules("src/cli/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n let p = \"/tmp/x\";\n}"));
        one(&lines_with("docs/TESTING.md", concat!("see /wo", "rk/tree"), PATHS_ANYWHERE), ":1:");
        none(&lines_with("docs/TESTING.md", "see the /network/ and ./workspace/", PATHS_ANYWHERE));
    }
}
