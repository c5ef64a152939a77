//! Messages between `rdcp` or `rdpipe` and their agents: patterns, messages that are too long or too many, and agents
//! whose caller is killed while they wait for the other end of a FIFO.

mod rig;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_pipe::control::frames::{Found, Hello, Kind, MAGIC, MESSAGE_BYTES_MAX, Message};
use rig::lab::*;
use rig::*;
use rustix::process::Signal;

/// Maximum time for all processes to end after one of them was killed.
const GONE: Duration = Duration::from_secs(5);

fn start(lab: &Lab, program: Command, launcher: &str, arguments: &[OsString]) -> Process {
    let mut command = lab.command(program, launcher, AGENT);
    Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()))
}

fn copy(lab: &Lab, arguments: &[OsString]) -> Ended {
    start(lab, rdcp(), "rsh", arguments).wait()
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

// --- patterns --------------------------------------------------------------------------------------------------------

#[test]
fn patterns_match_what_they_seem_to() {
    let lab = Lab::new();
    fs::create_dir(lab.join("tree")).expect("a directory");
    let names = [&b"#a#"[..], b"b", b"c1", b"cx", b"d ", b"\xff.o", b"\xfe", b"{x}"];
    for name in names {
        fs::write(lab.join("tree").join(OsStr::from_bytes(name)), b"").expect("a file");
    }
    let left = |excludes: &[&[u8]], from: OsString, to: OsString| {
        let mut arguments = words(&["-rT"]);
        for pattern in excludes {
            arguments.push(OsString::from_vec([b"--exclude=", *pattern].concat()));
        }
        arguments.extend([from, to]);
        copy(&lab, &arguments).expect(0);
        let made = fs::read_dir(lab.join("copy")).expect("a copy").flatten();
        let made: Vec<Vec<u8>> = made.map(|entry| entry.file_name().into_vec()).collect();
        fs::remove_dir_all(lab.join("copy")).expect("ours");
        let left = names.into_iter().filter(|name| !made.contains(&name.to_vec()));
        left.map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
    };
    let here = |name: &str| lab.join(name).into_os_string();
    let there = |name: &str| lab.there("h", name);
    for (from, to) in [(here("tree"), here("copy")), (here("tree"), there("copy")), (there("tree"), here("copy"))] {
        for (excludes, expected) in [
            (&[&b"#*#"[..]][..], &["#a#"][..]),
            (&[b"c[[:digit:]]"], &["c1"]),
            (&[b"d "], &["d "]),
            (&[b"*.o"], &["\\xff.o"]),
            (&[b"\xff*", b"\xfe"], &["\\xff.o", "\\xfe"]),
            (&[b"{x}"], &["{x}"]),
        ] {
            assert_eq!(left(excludes, from.clone(), to.clone()), expected, "{excludes:?}");
        }
    }
    lab.all_gone(SOON);
}

#[test]
fn patterns_that_could_never_match_are_refused() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    for (option, parts) in [
        ("--include=", &["--include ''", "contains no name"][..]),
        ("--exclude=", &["--exclude ''", "contains no name"]),
        ("--exclude=[[:nothing:]]", &["[[:nothing:]]", "class"]),
        ("--exclude=[abc", &["[abc", "unclosed ["]),
        ("--exclude=./a", &["./a", ". or .."]),
    ] {
        let ended = copy(&lab, &[option.into(), "source".into(), lab.there("h", "x")]);
        ended.expect(1).one_line("rdcp", parts).within(SOON);
    }
    assert!(lab.launches().is_empty(), "before anything is started");
}

// --- messages that are too long --------------------------------------------------------------------------------------

fn patterns(count: usize) -> Vec<OsString> {
    (0..count).map(|number| format!("--exclude={}{number:08}", "x".repeat(92)).into()).collect()
}

#[test]
fn more_patterns_than_fit_are_refused_at_the_start() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    for (from, to) in [("source".into(), lab.there("h", "x")), (lab.there("h", "source"), "x".into())] {
        let ended = copy(&lab, &[patterns(3000), vec![from, to]].concat());
        ended.expect(1).one_line("rdcp", &["--exclude", "KiB (limit: "]).within(SOON);
    }
    assert!(lab.launches().is_empty());
}

#[test]
fn as_many_patterns_as_fit_go_with_many_long_names() {
    let lab = Lab::new();
    fs::create_dir(lab.join("from")).expect("a directory");
    let names: Vec<String> = (0..500).map(|number| format!("{}{number:04}", "n".repeat(240))).collect();
    for name in &names {
        fs::write(lab.join("from").join(name), name).expect("a file");
    }
    for (number, (from, to)) in [("", "h:"), ("h:", ""), ("h:", "h:")].into_iter().enumerate() {
        let target = format!("to{number}");
        fs::create_dir(lab.join(&target)).expect("a directory");
        let mut arguments = patterns(1200);
        arguments.extend(names.iter().map(|name| format!("{from}{}", lab.join("from").join(name).display()).into()));
        arguments.push(format!("{to}{}", lab.join(&target).display()).into());
        copy(&lab, &arguments).expect(0);
        assert_eq!(fs::read_dir(lab.join(&target)).expect("a directory").count(), names.len(), "{from} {to}");
    }
    lab.all_gone(SOON);
}

#[test]
fn a_command_that_is_too_long_is_refused_at_the_start() {
    let lab = Lab::new();
    let long = "x".repeat(100 << 10);
    let arguments = words(&["--shell", &format!("sh -c {long}"), "h:true", &format!("h:echo {long}")]);
    let ended = start(&lab, rdpipe(), "rsh", &arguments).wait();
    ended.expect(1).one_line("rdpipe", &["stage 2", "201 KiB", "(limit: 192 KiB)", "script"]).within(SOON);
    assert!(lab.launches().is_empty());
}

/// Writes a file with an agent's first messages and the bytes that follow them.
fn said(lab: &Lab, name: &str, messages: &[Message], rest: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut bytes).expect("short"));
    lab.0.file(name, &[&bytes, rest].concat())
}

fn hello(lab: &Lab) -> PathBuf {
    let mut bytes = MAGIC.to_vec();
    Message::Hello(Hello { kernel_id: Vec::new(), ..Hello::ours() }).encode(&mut bytes).expect("short");
    lab.0.file("hello", &bytes)
}

fn too_long() -> Vec<u8> {
    [&(MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes()[..], &[0; 100]].concat()
}

#[test]
fn an_agent_whose_messages_are_too_long_is_left_at_once() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    let hello = hello(&lab);
    let long = said(&lab, "long", &[], &too_long());
    let garbage = said(&lab, "garbage", &[], b"\x03\0\0\0\xff\xff\xff");
    let magic = lab.0.file("magic", MAGIC);
    for (first, then) in [(&hello, &long), (&hello, &garbage), (&magic, &long)] {
        lab.script("evil", &format!("cat '{}' '{}'; exec sleep 100", first.display(), then.display()));
        let parts = &["agent on h ", "broke the protocol"];
        let ended = start(&lab, rdcp(), "evil", &["source".into(), "h:x".into()]).wait();
        ended.expect(9).one_line("rdcp", parts).within(SOON);
        let ended = start(&lab, rdpipe(), "evil", &words(&["h:true", "cat"])).wait();
        ended.expect(9).one_line("rdpipe", parts).within(2 * SOON);
    }
    lab.all_gone(GONE);
}

#[test]
fn a_caller_whose_messages_are_too_long_is_left_at_once() {
    use std::io::Write;
    let lab = Lab::new();
    let hello = fs::read(hello(&lab)).expect("it")[MAGIC.len()..].to_vec();
    for first in [&hello[..], b""] {
        let mut agent = Process::spawn(Command::new(AGENT).stdin(Stdio::piped()).stdout(Stdio::null()));
        let mut stdin = agent.stdin();
        stdin.write_all(&[first, &too_long()].concat()).expect("it reads");
        let ended = agent.wait();
        ended.expect(9).one_line("rdma-pipe-agent", &["the caller broke the protocol", "262145 bytes"]).within(SOON);
    }
}

/// Waits for a process to end, and returns its peak memory in KiB. Fails after `limit`.
#[track_caller]
fn peak_kib(process: &mut Process, limit: Duration) -> u64 {
    let start = Instant::now();
    let mut peak = 0;
    while process.is_running() {
        assert!(start.elapsed() < limit, "still running after {limit:?}, with {peak} KiB: {}", process.stderr());
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
        let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = field.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        peak = peak.max(kib);
        std::thread::sleep(Duration::from_millis(2));
    }
    peak
}

fn found(count: usize, path: usize) -> Message {
    let one =
        Found { path: vec![b'x'; path], name: b"x".to_vec(), kind: Kind::File, size_bytes: 0, device: 0, inode: 0 };
    Message::Found(vec![one; count])
}

#[test]
fn an_agent_that_finds_without_end_costs_little_memory() {
    let lab = Lab::new();
    fs::create_dir(lab.join("dst")).expect("a directory");
    let hello = hello(&lab);
    let forever = |name: &str, messages: &[Message]| {
        let file = said(&lab, name, messages, b"");
        format!("cat '{}'; while cat '{}'; do :; done", hello.display(), file.display())
    };
    for path in [4000, 1] {
        lab.script("evil", &forever("found", &vec![found(32, path); 30]));
        let mut process = start(&lab, rdcp(), "evil", &words(&["evil:*", "dst"]));
        let peak = peak_kib(&mut process, PATIENCE);
        process.wait().expect(1).one_line("rdcp", &["evil", "64 MiB", "-r"]);
        assert!(peak < 200 << 10, "{peak} KiB");
    }
    // More entries in one message than any agent sends.
    let many = said(&lab, "many", &[found(20_000, 1)], b"");
    lab.script("evil", &format!("cat '{}' '{}'; exec sleep 100", hello.display(), many.display()));
    let ended = start(&lab, rdcp(), "evil", &words(&["evil:*", "dst"])).wait();
    ended.expect(9).one_line("rdcp", &["evil", "protocol"]).within(SOON);
    // While another host is being asked.
    let talks = forever("talk", &vec![Message::Listening(Vec::new()); 100]);
    let waits = format!("cat '{}'; exec sleep 100", hello.display());
    lab.script("evil", &format!("case $1 in evil) {talks} ;; *) {waits} ;; esac"));
    let mut process = start(&lab, rdcp(), "evil", &words(&["h:x", "evil:y", "dst"]));
    // Much less than the other host takes.
    let peak = peak_kib(&mut process, 4 * GONE);
    process.wait().expect(9).one_line("rdcp", &["evil", "protocol"]);
    assert!(peak < 100 << 10, "{peak} KiB");
    lab.all_gone(GONE);
}

// --- a FIFO without its other end ------------------------------------------------------------------------------------

/// Makes a launcher that, like ssh, does not become the agent itself. Killing it does not end the agent.
fn apart(lab: &Lab) {
    lab.script("apart", "sh -c \"exec $2\"\nexit $?");
}

/// Kills a command that waits for a FIFO's other end, and waits until none of its processes is left.
fn left_at_a_fifo(program: fn() -> Command, arguments: &[&str]) {
    let lab = Lab::new();
    apart(&lab);
    for directory in ["", "home/"] {
        lab.0.file(&format!("{directory}source"), b"some bytes");
        lab.0.fifo(&format!("{directory}fifo"));
    }
    // While the agents start, and when all of them wait.
    for pause in [300, 1500] {
        let mut process = start(&lab, program(), "apart", &words(arguments));
        std::thread::sleep(Duration::from_millis(pause));
        assert!(process.is_running(), "{arguments:?}: {}", process.stderr());
        process.signal(Signal::KILL);
        process.wait();
        none_marked(lab.0.path(), GONE);
    }
}

#[test]
fn nobody_is_left_at_a_fifo_when_the_caller_is_killed() {
    let copies: [&[&str]; 6] = [
        &["h1:fifo", "x"],
        &["h1:fifo", "h2:x"],
        &["fifo", "h1:x"],
        &["source", "h1:fifo"],
        &["h1:source", "h2:fifo"],
        &["h1:source", "h1:fifo"],
    ];
    let pipes: [&[&str]; 3] =
        [&["h1:< fifo", "h2:cat"], &["h1:cat source", "h2:> fifo"], &["h1:cat source", "h2:tee fifo", "h3:cat"]];
    std::thread::scope(|scope| {
        for arguments in copies {
            scope.spawn(|| left_at_a_fifo(rdcp, arguments));
        }
        for arguments in pipes {
            scope.spawn(|| left_at_a_fifo(rdpipe, arguments));
        }
    });
}

#[test]
fn a_fifo_is_read_to_its_end_whenever_its_writer_comes() {
    let lab = Lab::new();
    let fifo = lab.0.fifo("fifo");
    for (from, to) in [(lab.there("h", "fifo"), "x".into()), ("fifo".into(), lab.there("h", "x"))] {
        for pause in [0, 800] {
            let mut process = start(&lab, rdcp(), "rsh", &[OsString::from(&from), to.clone()]);
            std::thread::sleep(Duration::from_millis(pause));
            let bytes = noise(3 * CHUNK + 5);
            fs::write(&fifo, &bytes).expect("somebody reads it");
            process.wait().expect(0);
            holds(&lab.join("x"), &bytes);
        }
    }
    lab.all_gone(SOON);
}
