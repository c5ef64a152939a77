//! What a user sees of a copy: its progress, its result, what is kept when it is interrupted, and colours.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::lab::Lab;
use crate::rig::*;
use crate::terminal::{CLEAR, Session};

/// Number of files in a tree of two directories, and size of each in bytes.
const FILES: usize = 300;
const FILE_BYTES: usize = 60_000;

/// A rate at which the copy of the tree takes a second or two.
const RATE: &str = "8M";

fn plant(lab: &Lab) {
    fs::create_dir_all(lab.join("tree/sub")).expect("directories");
    let bytes = noise(FILE_BYTES);
    for number in 0..FILES {
        fs::write(lab.join(&format!("tree/sub/file-{number}.dat")), &bytes).expect("a file");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("of our own")
}

fn run(command: &mut Command) -> Ended {
    Process::spawn(command.stdin(Stdio::null())).wait()
}

/// Returns a path on a host, or on this one.
fn at(lab: &Lab, host: &str, name: &str) -> String {
    let path = lab.join(name);
    if host.is_empty() { text(&path).to_owned() } else { format!("{host}:{}", text(&path)) }
}

/// Returns the command line of a copy, for a shell.
fn line(lab: &Lab, before: &str, arguments: &str) -> String {
    line_of("rdcp", lab, before, arguments)
}

/// Returns the command line of any command, for a shell.
fn line_of(command: &str, lab: &Lab, before: &str, arguments: &str) -> String {
    let (rsh, home) = (lab.join("rsh"), lab.join("home"));
    format!(
        "{before} HOME='{}' exec {PROGRAM} {command} --rsh '{}' --agent {AGENT} {arguments}",
        text(&home),
        text(&rsh)
    )
}

/// Returns the lines that were drawn in place.
fn drawn(shown: &str) -> Vec<&str> {
    shown.split(CLEAR).filter_map(|drawn| drawn.strip_suffix('\r')).filter(|drawn| !drawn.is_empty()).collect()
}

/// Messages stand above the lines of the hops, which are drawn in place and removed at the end.
#[test]
fn hops_of_a_pipeline_are_a_line_each() {
    let lab = Lab::new();
    let stages = "h1:'head -c 16M /dev/zero' h2:'cat; echo said >&2' h3:'wc -c >&2'";
    let arguments = format!("--progress --bwlimit {RATE} {stages}");
    let (shown, ended) = Session::start(&line_of("rdpipe", &lab, "stty cols 40 rows 2;", &arguments)).end();
    ended.expect(0);
    let pairs: Vec<&str> = drawn(&shown).into_iter().filter_map(|drawn| drawn.strip_suffix("\u{1b}[1A")).collect();
    assert!(pairs.len() > 3, "{shown:?}");
    for (at, pair) in pairs.into_iter().enumerate() {
        let (first, second) = pair.split_once("\r\n").expect("as many as there are rows");
        let are = |one: &str, other: &str| first.starts_with(one) && second.starts_with(other);
        // A finished hop may make room for the last.
        let is_later = at > 3 && are("h2 -> h3: ", "h3 -> ");
        assert!(is_later || are("h1 -> h2: ", "h2 -> h3: "), "{pair:?}");
        assert!(first.len() < 40 && second.len() < 40, "{pair:?}");
    }
    let (_, end) = shown.rsplit_once(CLEAR).expect("the lines are taken away");
    let is_last = |line: &str| line.starts_with("h2 -> h3: 16 MiB in ") && line.ends_with("verified");
    let is_one = |line: &str| line.ends_with("said") || line.ends_with("16777216") || is_last(line);
    assert!(end.lines().all(is_one), "{end:?}");
}

/// The lines drawn by a pipeline are removed before the first byte of its output, and no output is removed with them.
#[test]
fn output_on_the_terminal_stays() {
    let lab = Lab::new();
    let stages = "h1:'head -c 8M /dev/zero | wc -c; sleep 1; printf wait; sleep 1; echo said >&2; printf end' h1:cat";
    let (shown, ended) = Session::start(&line_of("rdpipe", &lab, "stty cols 80;", stages)).end();
    ended.expect(0);
    let (_, after) = shown.split_once("8388608").expect("its output");
    assert!(["wait", "said", "end"].iter().all(|word| after.contains(word)) && !after.contains(CLEAR), "{shown:?}");
}

/// As for a receiver.
#[test]
fn what_is_no_text_is_not_put_out_on_a_terminal() {
    let lab = Lab::new();
    fs::write(lab.join("text"), "plain\x1b[m\n").expect("a file");
    fs::write(lab.join("binary"), "plain\0hidden").expect("a file");
    let pipe = |name: &str| format!("h1:'cat {}'", text(&lab.join(name)));
    for (command, [plain, binary]) in [
        ("rdcp", ["text", "binary"].map(|name| format!("{} -", at(&lab, "", name)))),
        ("rdcp", ["text", "binary"].map(|name| format!("{} -", at(&lab, "h1", name)))),
        ("rdpipe", ["text", "binary"].map(pipe)),
    ] {
        let show = |arguments: &str| Session::start(&line_of(command, &lab, "", &format!("-q {arguments}"))).end();
        let (shown, ended) = show(&plain);
        assert_eq!((ended.code, &*shown), (0, "plain\x1b[m\r\n"), "{plain}");
        let (shown, ended) = show(&binary);
        let said = shown.strip_prefix("plain\r\n").unwrap_or_else(|| panic!("{binary}: {shown:?}"));
        let is_one = said.contains("not writing binary data to a terminal") && said.lines().count() == 1;
        assert!(is_one && ended.code == 1, "{binary}: {said:?}");
        let (shown, ended) = show(&format!("{binary} | cat"));
        assert_eq!((ended.code, &*shown), (0, "plain\0hidden"), "{binary}");
    }
}

#[test]
fn a_tree_is_on_one_line_from_and_to_any_host() {
    for (from, to, columns) in [("", "h1", 80), ("h1", "", 40), ("h1", "h2", 80)] {
        let lab = Lab::new();
        plant(&lab);
        let arguments = format!("--bwlimit {RATE} -r {} {}", at(&lab, from, "tree"), at(&lab, to, "copy"));
        let (shown, ended) = Session::start(&line(&lab, &format!("stty cols {columns};"), &arguments)).end();
        ended.expect(0);
        let drawn = drawn(&shown);
        assert!(drawn.len() > 3, "{shown:?}");
        assert!(drawn.iter().all(|line| line.chars().count() < columns), "{columns}: {drawn:#?}");
        // The walk of the source runs ahead, and after a second everything has been counted.
        let grows = if columns == 80 { "+ files  " } else { "+ " };
        assert!(drawn.iter().any(|line| line.contains(grows) && !line.contains(" %  ")), "{drawn:#?}");
        let whole = if columns == 80 { format!("/{FILES} files  ") } else { format!("/{FILES} ") };
        let last = drawn.last().expect("some");
        assert!(last.contains(&whole) && last.contains("/17 MiB") && last.contains(" % "), "{last}");
        assert_eq!(columns == 80, drawn.iter().any(|line| line.contains("  sub/file-")), "{drawn:#?}");
        let (_, end) = shown.rsplit_once(CLEAR).expect("the line is taken away");
        assert!(end.starts_with("300 files, 17 MiB in ") && end.ends_with(" MB/s), verified\r\n"), "{end:?}");
    }
}

/// A stream that does not go to the terminal has a progress bar and a final line. Output on the terminal stands alone.
#[test]
fn what_goes_to_no_terminal_has_a_bar() {
    let lab = Lab::new();
    fs::write(lab.join("file"), noise(8 * CHUNK)).expect("a file");
    let file = lab.join("file");
    let pipe = |last: &str| {
        let stages = format!("--bwlimit {RATE} h1:'cat {}' h2:'{last}'", text(&file));
        let (shown, ended) = Session::start(&line_of("rdpipe", &lab, "", &stages)).end();
        ended.expect(0);
        shown
    };
    let shown = pipe("cat >/dev/null");
    assert!(shown.contains("8.0 MiB in ") && shown.ends_with(" MB/s), verified\r\n"), "{shown:?}");
    assert!(shown.contains("MB/s (--bwlimit"), "{shown:?}");
    // The output is complete, and nothing is drawn after it has begun.
    let shown = pipe("sha256sum");
    let (_, behind) = shown.split_once("  -\r\n").unwrap_or_else(|| panic!("{shown:?}"));
    assert!(!behind.contains("MB/s"), "{shown:?}");
    let arguments = format!("--bwlimit {RATE} {} - >{}", at(&lab, "h1", "file"), at(&lab, "", "copy"));
    let (shown, ended) = Session::start(&line(&lab, "", &arguments)).end();
    ended.expect(0);
    assert!(drawn(&shown).len() > 1 && shown.ends_with(" MB/s), verified\r\n"), "{shown:?}");
    let told = run(lab.command(rdcp(), "rsh", AGENT).arg(lab.there("h1", "file")).arg("-").stdout(Stdio::null()));
    assert_eq!(told.expect(0).stderr, "", "nobody was shown a bar");
}

#[test]
fn names_do_nothing_to_the_terminal() {
    let lab = Lab::new();
    fs::create_dir(lab.join("tree")).expect("a directory");
    for number in 0..FILES {
        fs::write(lab.join(&format!("tree/{number}\u{1b}[2J\u{7}\n\u{202e}x")), noise(FILE_BYTES)).expect("a file");
    }
    let arguments = format!("--bwlimit {RATE} -r {} {}", at(&lab, "h1", "tree"), at(&lab, "", "copy"));
    let (shown, ended) = Session::start(&line(&lab, "stty cols 120;", &arguments)).end();
    ended.expect(0);
    assert!(shown.contains("\\u{1b}[2J\\u{7}\\n\\u{202e}x"), "a name is shown: {shown:?}");
    assert!(!shown.replace(CLEAR, "").contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
}

/// The final line appears on a terminal, and elsewhere only if it is asked for.
#[test]
fn the_last_line_is_for_terminals() {
    let lab = Lab::new();
    fs::write(lab.join("file"), noise(3 * CHUNK)).expect("a file");
    let verified = |text: &str| text.matches("1 file, 3.0 MiB in 0.").count() + text.matches("Bandwidth").count();
    let seen = |options: &str, to: &str| {
        let arguments = format!("{options} {} {}", at(&lab, "", "file"), at(&lab, to, "copy"));
        let (shown, ended) = Session::start(&line(&lab, "", &arguments)).end();
        ended.expect(0);
        shown
    };
    let (there, here) = (seen("", "h1"), seen("", ""));
    assert!(verified(&there) == 1 && there.ends_with("/s), verified\r\n"), "{there:?}");
    assert!(verified(&here) == 1 && here.ends_with("/s)\r\n"), "within a host nothing is compared: {here:?}");
    assert_eq!(seen("-q", "h1"), "");
    assert_eq!(verified(&seen("-v", "h1")), 1);
    assert!(seen("--fsync", "h1").ends_with(", verified, on stable storage\r\n"));
    for (options, count) in [(&[][..], 0), (&["-v"], 1), (&["-q"], 0)] {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        let ended = run(command.args(options).arg("file").arg(lab.there("h1", "copy")));
        ended.expect(0);
        assert_eq!(verified(&ended.stderr), count, "{options:?}: {}", ended.stderr);
    }
}

#[test]
fn what_failed_is_in_the_last_line() {
    let lab = Lab::new();
    fs::write(lab.join("file"), "data").expect("a file");
    let arguments = format!("-t {} {} {}", at(&lab, "h1", "home"), at(&lab, "", "file"), at(&lab, "", "missing"));
    let (shown, ended) = Session::start(&line(&lab, "", &arguments)).end();
    ended.expect(8);
    assert!(shown.contains("1 file, 4 B in 0.") && shown.contains(", verified, 1 failed\r\n"), "{shown:?}");
    let (shown, ended) = Session::start(&line(&lab, "", "/nonexistent h1:")).end();
    ended.expect(5);
    assert!(!shown.contains("file, ") && shown.contains("cannot read /nonexistent"), "{shown:?}");
}

#[test]
fn what_an_interrupted_copy_keeps_is_said_and_resumed() {
    let lab = Lab::new();
    // As with ssh, the interrupt key reaches the processes that carry the channel, but not the agent.
    lab.script("carrier", "cat | setsid sh -c \"exec $2\" | cat");
    fs::write(lab.join("file"), noise(80 * CHUNK)).expect("a file");
    fs::write(lab.join("small"), noise(40 * CHUNK)).expect("a file");
    let interrupted = |name: &str| {
        let arguments = format!("--bwlimit 30M {} {}", at(&lab, "", name), at(&lab, "h1", "copy"));
        let mut session = Session::start(&line(&lab, "", &arguments).replace("/rsh'", "/carrier'"));
        session.until("/s ");
        std::thread::sleep(std::time::Duration::from_millis(700));
        session.type_in("\u{3}");
        let (shown, ended) = session.end();
        ended.expect(130);
        shown
    };
    let shown = interrupted("file");
    let kept = shown.split_once("rdcp: interrupted; ").and_then(|(_, rest)| rest.split_once(" MiB kept in h1:/"));
    let (bytes, rest) = kept.unwrap_or_else(|| panic!("{shown:?}"));
    let bytes: u64 = bytes.parse().unwrap_or_else(|_| panic!("{shown:?}"));
    assert!((16..80).contains(&bytes) && rest.ends_with(".rd-part, run again to resume\r\n"), "{shown:?}");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    let again = run(command.args(["-v", "file"]).arg(lab.there("h1", "copy")));
    again.expect(0);
    assert!(again.stderr.contains(" MiB already there"), "{}", again.stderr);
    let shown = interrupted("small");
    assert!(shown.ends_with("rdcp: interrupted; nothing kept to resume\r\n"), "{shown:?}");
}

/// ssh leaves echo on when it asks about a host key. A remark stands on a line of its own then; a log gets the plain line.
#[test]
fn a_remark_is_not_written_over_a_question() {
    let lab = Lab::new();
    fs::write(lab.join("file"), "data").expect("a file");
    lab.script("asking", "printf 'Continue (yes/no)? ' >/dev/tty; exec sleep 100");
    let line = line(&lab, "", &format!("{} h1:", at(&lab, "", "file"))).replace("/rsh'", "/asking'");
    let mut asked = Session::start(&line);
    let log = lab.join("log");
    let mut logged = Session::start(&format!("{line} 2>'{}'", text(&log)));
    asked.until("giving up on a host");
    let until = std::time::Instant::now() + PATIENCE;
    while !fs::read_to_string(&log).is_ok_and(|log| log.ends_with('\n')) && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for session in [&mut asked, &mut logged] {
        session.type_in("\u{3}");
    }
    let (shown, ended) = asked.end();
    ended.expect(130);
    let said = "Continue (yes/no)? \r\nrdcp: h1 has not answered yet, unless asking has asked something above; ";
    assert!(shown.starts_with(said), "{shown:?}");
    logged.end().1.expect(130);
    let said = "rdcp: h1 has not answered yet; giving up on a host after 120 s\n";
    assert_eq!(fs::read_to_string(&log).expect("a log"), said);
}

#[test]
fn errors_are_red_where_that_is_wanted() {
    const RED: &str = "\u{1b}[31m\u{1b}[1mrdcp:\u{1b}[0m cannot read /nonexistent: ";
    let seen = |before: &str, options: &str| {
        let line = format!("{before} {PROGRAM} rdcp {options} /nonexistent /tmp/copy");
        Session::start(&line).end().0
    };
    for (before, options, is_red) in [
        ("", "", true),
        ("NO_COLOR=1", "", false),
        ("NO_COLOR=", "", true),
        ("TERM=dumb", "", false),
        ("", "--color=never", false),
        ("NO_COLOR=1", "--color always", true),
    ] {
        let shown = seen(before, options);
        assert_eq!(shown.starts_with(RED), is_red, "{before} {options}: {shown:?}");
        assert_eq!(shown.contains('\u{1b}'), is_red, "{before} {options}: {shown:?}");
    }
    let piped = |option: &str| run(rdcp().args([option, "/nonexistent", "/tmp/copy"])).stderr;
    assert!(piped("--color=always").starts_with(RED) && !piped("--color=auto").contains('\u{1b}'));
    // Each command has the option, and it applies to clap's help too.
    for name in ["rdcp", "rdsend", "rdrecv", "rdpipe", "rdsh", "rdperf", "rddoctor"] {
        for (when, is_coloured) in [("always", true), ("never", false), ("auto", false)] {
            let mut command = Command::new(PROGRAM);
            let output = command.args([name, "--color", when, "--help"]).output().expect("it runs");
            assert_eq!(output.stdout.contains(&0x1b), is_coloured, "{name} --color {when}");
        }
    }
}

/// The total is known beforehand for files, after a walk for a tree, and never for a stream.
#[test]
fn progress_for_programs() {
    let lab = Lab::new();
    plant(&lab);
    let events = |arguments: &[std::ffi::OsString]| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        run(command.args(["--json=report", "--bwlimit", RATE]).args(arguments)).expect(0);
        let report = fs::read_to_string(lab.join("report")).expect("a report");
        let lines = report.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        lines.filter(|line| line["event"] == "progress").collect::<Vec<_>>()
    };
    let total = (FILES * FILE_BYTES) as u64;
    let tree = events(&["-r".into(), "tree".into(), lab.there("h1", "copy")]);
    let last = tree.last().expect("it takes seconds");
    let number = |name: &str| last[name].as_u64().unwrap_or_else(|| panic!("{name}: {last}"));
    assert!(number("entries") <= 302 && number("entries_total") <= 302 && number("bytes") <= total, "{last}");
    assert!(last["bytes_per_second"].as_f64().is_some_and(|rate| rate > 1e6), "{last}");
    assert!(last["totals_final"].is_boolean(), "{last}");
    fs::write(lab.join("file"), noise(16 * CHUNK)).expect("a file");
    let file = events(&["file".into(), lab.there("h1", "other")]);
    let first = file.first().expect("it takes seconds");
    assert!(first["bytes_total"] == 16 * CHUNK && first["totals_final"] == true, "{first}");
    assert!(first["entries_total"] == 1 && first["seconds_left"].is_u64(), "{first}");
}
