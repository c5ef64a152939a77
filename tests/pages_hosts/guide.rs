//! The guide: each page is typed from beginning to end on hosts made for it.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Instant;

use crate::page::{Step, Typed, command_of, shape, steps};
use crate::rig::{Ended, Process};
use crate::world::{World, host_of};

/// The pages, with the number of blocks on each that are not run.
const PAGES: [(&str, usize); 18] = [
    ("backups.md", 0),
    ("clusters.md", 0),
    ("coming-from.md", 1),
    ("completions.md", 0),
    ("containers.md", 1),
    ("firewalls.md", 1),
    ("first-copy.md", 0),
    ("measuring.md", 3),
    ("other-tools.md", 0),
    ("pipelines.md", 0),
    ("rdma.md", 2),
    ("scripts.md", 0),
    ("settings.md", 0),
    ("slurm.md", 2),
    ("streams.md", 4),
    ("synchronizing.md", 0),
    ("troubleshooting.md", 0),
    ("zfs.md", 0),
];

fn guide() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide")
}

/// `PAGE=zfs.md` plays only that page.
#[test]
#[ignore = "needs hosts: tests/run as root"]
fn every_command_line_of_the_guide_does_what_it_says() {
    let names = fs::read_dir(guide()).expect("the guide").map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
    names.sort();
    assert_eq!(names, PAGES.map(|(name, _)| name));
    let wanted = std::env::var("PAGE").ok();
    let is_wanted = |(name, _): &(&str, usize)| wanted.as_deref().is_none_or(|wanted| wanted == *name);
    let pages: Vec<(&str, usize)> = PAGES.into_iter().filter(is_wanted).collect();
    assert!(!pages.is_empty(), "no such page: {wanted:?}");
    let world = World::new();
    let mut failed = Vec::new();
    for (name, not_run) in pages {
        eprintln!("-- {name}");
        world.begin_anew();
        let began = Instant::now();
        if std::panic::catch_unwind(AssertUnwindSafe(|| play(&world, name, not_run))).is_err() {
            failed.push(name);
        }
        eprintln!("-- {name} took {:?}", began.elapsed());
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// A waiting receiver, and the line that the page shows for its sender, if any.
struct Waiting {
    process: Process,
    example: Option<String>,
}

fn play(world: &World, name: &str, not_run: usize) {
    let page = fs::read_to_string(guide().join(name)).expect("a page");
    let (mut waiting, mut skipped): (Option<Waiting>, usize) = (None, 0);
    for step in steps(&page) {
        let typed = match step {
            Step::Typed(typed) => typed,
            Step::NotRun(lines, why) => {
                eprintln!("not run: {lines:?}: {why}");
                skipped += 1;
                continue;
            }
        };
        let host =
            host_of(typed.host.as_deref().unwrap_or("here")).unwrap_or_else(|| panic!("no such host: {typed:?}"));
        let mut line = shortened(&typed.line);
        eprintln!("h{host}$ {line}");
        if line.starts_with("rdrecv ") || line.contains("| rdrecv ") {
            let process = world.start(host, &line);
            if let Some(port) = port_of(&line) {
                world.listens(host, port);
            } else {
                process.line_with("rdsend ");
            }
            let example = typed.printed.iter().find(|line| line.starts_with("rdsend ")).cloned();
            let before = waiting.replace(Waiting { process, example });
            assert!(before.is_none(), "a receiver waits already: {line}");
            continue;
        }
        let is_sender = line.starts_with("rdsend ") || line.contains("| rdsend ");
        if let Some(Waiting { process, example: Some(example) }) = &waiting {
            line = line.replace(example, &process.line_with("rdsend "));
        }
        let began = Instant::now();
        let (ended, output) = world.run(host, &line);
        eprintln!("    {:?}", began.elapsed());
        // Warnings are about the machine that this runs on, and have their own exit code.
        let is_well = ended.code == typed.exit || ended.code == 10 && line.starts_with("rddoctor");
        assert!(is_well, "{line}: exit code {}\n{output}{}", ended.code, ended.stderr);
        is_printed(&typed, &output, &ended);
        if is_sender {
            let mut receiver = waiting.take().unwrap_or_else(|| panic!("nobody waits for it: {line}"));
            receiver.process.wait().expect(0);
        }
    }
    assert!(waiting.is_none(), "nobody sent");
    assert_eq!(skipped, not_run, "{name}: blocks that are not run");
}

/// Checks that the lines under a command line are what it prints, on standard output or error, except for numbers.
#[track_caller]
fn is_printed(typed: &Typed, output: &str, ended: &Ended) {
    let got: Vec<String> = output.lines().chain(ended.stderr.lines()).map(shape).collect();
    for shown in typed.printed.iter().filter(|line| *line != "…") {
        let parts: Vec<String> = shown.split('…').map(shape).collect();
        let is_there = got.iter().any(|line| match &parts[..] {
            [whole] => line == whole,
            parts => parts.iter().all(|part| line.contains(part.as_str())),
        });
        assert!(is_there, "{}: {shown}\nis not in\n{}", typed.line, got.join("\n"));
    }
}

/// Returns the port in a receiver's line: the first word that is a number.
fn port_of(line: &str) -> Option<u16> {
    let (_, words) = line.split_once("rdrecv ")?;
    let mut words = command_of(words).split(['|', '>']).next()?.split(' ');
    while let Some(word) = words.next() {
        match word {
            "--key-file" | "--transport" | "--encrypt" | "--buffer" | "--bwlimit" => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => return word.parse().ok(),
        }
    }
    None
}

/// Shortens a list of more hosts than exist here: `gpu[01-64]` becomes `gpu[01-03]`.
fn shortened(line: &str) -> String {
    let mut short = String::new();
    for part in line.split_inclusive('[') {
        let list = part.split_once(']').and_then(|(list, rest)| Some((list.split_once('-')?, rest)));
        match list {
            Some(((first, last), rest)) if is_number(first) && is_number(last) && is_name(&short) => {
                let (from, to): (u32, u32) = (first.parse().expect("digits"), last.parse().expect("digits"));
                let (to, width) = (to.min(from + 2), first.len());
                short += &format!("{first}-{to:0width$}]{rest}");
            }
            _ => short += part,
        }
    }
    short
}

/// Whether the text ends in a name and a bracket, which distinguishes it from a shell pattern.
fn is_name(text: &str) -> bool {
    text.strip_suffix('[').is_some_and(|name| name.ends_with(|letter: char| letter.is_ascii_alphanumeric()))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
#[ignore = "runs beside those that need hosts"]
fn parts_of_lines() {
    assert_eq!(shortened("rdcp a 'gpu[01-64]:/x' n[1-8]:y"), "rdcp a 'gpu[01-03]:/x' n[1-3]:y");
    assert_eq!(shortened("tr [:lower:] [:upper:]; ls [0-9]*; b[1-2]:"), "tr [:lower:] [:upper:]; ls [0-9]*; b[1-2]:");
    assert_eq!(port_of("rdrecv --key-file k -v 7000 - >out"), Some(7000));
    assert_eq!(port_of("rdrecv >out"), None);
    assert_eq!(port_of("rdrecv 7000 | zfs receive x"), Some(7000));
}
