//! `--report FILE.html`: a page with the same numbers as `--json`, even for a failed run, and without
//! references to other files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::Value;

use crate::rig::lab::Lab;
use crate::rig::*;

/// The contents of a page: all of its text, and its machine-readable numbers by class.
struct Page {
    text: String,
    numbers: BTreeMap<String, Vec<String>>,
}

impl Page {
    /// Reads a page with an XML parser.
    #[track_caller]
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for reference in ["://", "url(", "src=", "href=", "<script", "@import"] {
            assert!(!text.contains(reference), "{reference}");
        }
        let mut page = Self { text: String::new(), numbers: BTreeMap::new() };
        let mut reader = Reader::from_str(&text);
        loop {
            match reader.read_event().expect("well-formed") {
                Event::Eof => return page,
                Event::Text(text) => page.text += &text,
                Event::Start(start) if start.name().as_ref() == "data" => {
                    let value = |key: &str| {
                        let attribute = start.try_get_attribute(key).expect("well-formed").expect("it has one");
                        attribute.value.to_string()
                    };
                    page.numbers.entry(value("class")).or_default().push(value("value"));
                }
                _ => {}
            }
        }
    }

    #[track_caller]
    fn has(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.text.contains(part), "{part}: {}", self.text);
        }
    }

    #[track_caller]
    fn number(&self, class: &str, at: usize) -> f64 {
        self.numbers[class][at].parse().unwrap_or_else(|_| panic!("{class}: {:?}", self.numbers))
    }

    /// Checks the numbers of a transfer or hop.
    #[track_caller]
    fn equals(&self, at: usize, told: &Value) {
        for (class, key) in [("bytes", "bytes"), ("seconds", "seconds"), ("gb-per-s", "gb_per_s"), ("lanes", "lanes")] {
            assert_eq!(Some(self.number(class, at)), told[key].as_f64(), "{key}: {told}");
        }
        assert_eq!(self.numbers["transport"][at], told["transport"].as_str().expect("text"));
        assert_eq!(self.numbers["encrypted"][at], told["encrypted"].as_bool().expect("yes or no").to_string());
    }
}

fn run(mut command: Command, arguments: &[OsString]) -> Ended {
    Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

/// Returns the lines of a report.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a report");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[test]
fn a_copys_page_has_the_numbers_of_its_json() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/sub")).expect("directories");
    fs::write(lab.join("src/large"), noise(20 << 20)).expect("a file");
    (0..30).for_each(|number| fs::write(lab.join(&format!("src/sub/f{number}")), noise(number * 100)).expect("a file"));
    let mut arguments = words(&["-r", "--bwlimit=16M", "--json=told", "--report", "page.html", "src"]);
    arguments.push(lab.there("h1", "copy"));
    run(lab.command(rdcp(), "rsh", AGENT), &arguments).expect(0);
    let page = Page::read(&lab.join("page.html"));
    let told = lines(&lab.join("told"));
    page.equals(0, told.last().expect("a last line"));
    let copied = told.iter().find(|line| line["event"] == "copied").expect("it is told");
    assert_eq!(Some(page.number("entries", 0)), copied["entries"].as_f64());
    assert_eq!(page.number("exit", 0), 0.0);
    page.has(&[
        "h1",
        "Rate over time",
        "--bwlimit is the limit: raise it",
        "Nothing was lost",
        "digests of every byte",
    ]);
    assert_eq!(lab.made(&["src", "copy", "told", "page.html"]), Vec::<String>::new(), "nothing else is left");
}

#[test]
fn a_copy_that_fails_writes_one_too() {
    let lab = Lab::new();
    let name = "a<b>&\"\u{1b}[31m";
    fs::write(lab.join(name), noise(1000)).expect("a file");
    let mut arguments = words(&["--report=page.html", name]);
    arguments.push(lab.there("h1", "none/such"));
    let ended = run(lab.command(rdcp(), "rsh", AGENT), &arguments);
    let page = Page::read(&lab.join("page.html"));
    assert!(ended.code > 0 && page.number("exit", 0) == f64::from(ended.code), "{}", ended.stderr);
    page.has(&["none/such", "No data was transferred", "u{1b}"]);
    // If the host does not exist at all.
    let mut command = rdcp();
    command.current_dir(lab.0.path()).args(["--rsh", "false"]);
    let ended = run(command, &words(&["--report=lost.html", name, "h1:x"]));
    assert_eq!(Page::read(&lab.join("lost.html")).number("exit", 0), f64::from(ended.expect(3).code));
}

#[test]
fn a_page_that_cannot_be_written_or_would_be_copied_is_refused_at_first() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("src/sub")).expect("directories");
    fs::create_dir_all(lab.join("there")).expect("a directory");
    fs::write(lab.join("src/file"), noise(10)).expect("a file");
    for (file, part) in [
        ("none/page.html", "No such file"),
        ("src", "not a regular file"),
        ("-", "FILE.html"),
        ("src/page.html", "is copied"),
        ("src/sub/page.html", "is copied"),
    ] {
        let mut arguments = words(&["-r", "--report", file, "src"]);
        arguments.push(lab.there("h1", "copy"));
        let ended = run(lab.command(rdcp(), "rsh", AGENT), &arguments);
        ended.expect(1).one_line("rdcp", &[part]);
        assert!(!lab.join("copy").exists(), "{file}");
    }
    // The page may be beside the copy, but not in it.
    let arguments = words(&["-r", "--report", "there/page.html", "src", "there"]);
    run(lab.command(rdcp(), "rsh", AGENT), &arguments).expect(0);
    Page::read(&lab.join("there/page.html")).has(&["within the host", "nothing was compared"]);
    let arguments = words(&["-r", "--report", "there/src/page.html", "src", "there"]);
    run(lab.command(rdcp(), "rsh", AGENT), &arguments).expect(1).one_line("rdcp", &["is copied"]);
}

#[test]
fn a_pipelines_page_has_each_hop_and_stage() {
    let lab = Lab::new();
    let arguments =
        words(&["--json=told", "--report=page.html", "h1:head -c 9000000 /dev/zero", "h2:cat", "h3:cat >out"]);
    run(lab.command(rdpipe(), "rsh", AGENT), &arguments).expect(0);
    let page = Page::read(&lab.join("page.html"));
    let told = lines(&lab.join("told")).pop().expect("a last line");
    for at in 0..2 {
        page.equals(at, &told["hops"][at]);
    }
    page.has(&["head -c 9000000 /dev/zero", "h2", "3 stages done"]);
    let arguments = words(&["--report=page.html", "h1:echo x", "h2:cat; exit 3"]);
    run(lab.command(rdpipe(), "rsh", AGENT), &arguments).expect(3);
    let page = Page::read(&lab.join("page.html"));
    page.has(&["ended with exit code 3", "exit code 3"]);
    assert_eq!(page.number("exit", 0), 3.0);
}

#[test]
fn both_ends_of_a_stream_can_have_one() {
    let scratch = Scratch::new();
    let pages = ["sent.html", "received.html"].map(|name| scratch.join(name));
    let option = |page: &Path| format!("--report={}", page.display());
    let input = scratch.file("in", &noise(5 << 20));
    let (mut recv, port) = start_recv(&["--json-fd=2", &option(&pages[1])], Some(&scratch.join("out")));
    let mut send = start_send(&["--json-fd=2", &option(&pages[0])], port, Some(&input));
    for (ended, page) in [send.wait(), recv.wait()].iter().zip(&pages) {
        let page = Page::read(page);
        page.equals(0, &ended.expect(0).report());
        page.has(&["Rate over time", "this host", "verified"]);
    }
}

/// The end that writes a file tells of it.
#[test]
fn the_log_of_everything_has_each_file_once() {
    let lab = Lab::new();
    fs::create_dir(lab.join("src")).expect("a directory");
    (0..3).for_each(|number| fs::write(lab.join(&format!("src/f{number}")), noise(100)).expect("a file"));
    let mut arguments = words(&["-r", "-vvv", "src"]);
    arguments.push(lab.there("h1", "copy"));
    let ended = run(lab.command(rdcp(), "rsh", AGENT), &arguments);
    let logged = ended.expect(0).stderr.lines().filter(|line| line.contains(" h1  trace  "));
    let mut logged: Vec<&str> =
        logged.filter_map(|line| line.split_once("  published ")?.1.rsplit('/').next()).collect();
    logged.sort_unstable();
    assert_eq!(logged, ["f0", "f1", "f2"], "{}", ended.stderr);
}

#[test]
fn several_hosts_have_a_row_each() {
    let lab = Lab::new();
    fs::create_dir(lab.join("src")).expect("a directory");
    fs::write(lab.join("src/large"), noise(8 << 20)).expect("a file");
    let mut arguments = words(&["-r", "--bwlimit=16M", "--json=told", "--report=page.html", "src"]);
    for host in ["h1", "h2", "h3"] {
        fs::create_dir(lab.join(host)).expect("a directory");
        let there = lab.there(host, &format!("{host}/copy"));
        arguments.extend(if host == "h1" { vec![there] } else { vec!["--to".into(), there] });
    }
    arguments.extend(["--to".into(), lab.there("h4", "none/such/copy")]);
    run(lab.command(rdcp(), "rsh", AGENT), &arguments).expect(8);
    let page = Page::read(&lab.join("page.html"));
    page.equals(0, lines(&lab.join("told")).last().expect("a last line"));
    page.has(&[
        "3 of 4",
        "done at ",
        "failed at ",
        "h4",
        "Hosts that held others up",
        "1 of 4 hosts failed",
        "--hosts-failed",
    ]);
}
