//! What a user sees at a terminal. script(1) is the terminal, and its output is everything that was shown.

use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::rig::*;

/// Sequence that clears the cursor's line and the lines below it.
pub const CLEAR: &str = "\r\u{1b}[0J";

/// A shell's command line on a separate terminal.
pub struct Session {
    process: Process,
    keyboard: ChildStdin,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Session {
    pub fn start(line: &str) -> Self {
        let mut script = Command::new("script");
        script.args(["-qefc", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).env_remove("RD_KEY");
        // Independent of this machine's own terminal.
        script.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let mut process = Process::spawn(&mut script);
        let (keyboard, mut screen) = (process.stdin(), process.stdout());
        let (post, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let _ = post.send(bytes[..count].to_vec());
            }
        });
        Self { process, keyboard, shown, text: String::new() }
    }

    #[track_caller]
    pub fn until(&mut self, part: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.text.contains(part) {
            let left = until.saturating_duration_since(Instant::now());
            let bytes = self.shown.recv_timeout(left).unwrap_or_else(|_| panic!("no {part:?} in {:?}", self.text));
            self.text += &String::from_utf8_lossy(&bytes);
        }
    }

    pub fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Returns everything that was shown, and how the command ended.
    #[track_caller]
    pub fn end(mut self) -> (String, Ended) {
        let ended = self.process.wait();
        self.text += &String::from_utf8_lossy(&self.shown.iter().flatten().collect::<Vec<u8>>());
        (self.text, ended)
    }
}

/// Returns the command line of rdsend. Paths of scratch directories need no quotes.
fn line(options: &str, port: u16, rest: &str) -> String {
    format!("{PROGRAM} rdsend {options} 127.0.0.1 {port} {rest}")
}

fn source(scratch: &Scratch, bytes: &[u8]) -> String {
    let path = scratch.file("source", bytes);
    path.to_str().expect("of our own").to_owned()
}

fn receiver(scratch: &Scratch) -> (Process, u16) {
    start_recv(&[] as &[&str], Some(&scratch.join("copy")))
}

/// Starts a transfer at 8 MB/s.
fn slow(scratch: &Scratch, bytes: &[u8]) -> (Process, Session) {
    let (receiver, port) = receiver(scratch);
    let rest = format!("'{KEY}' {}", source(scratch, bytes));
    (receiver, Session::start(&line("--bwlimit 8M", port, &rest)))
}

#[test]
fn the_key_is_asked_for_and_not_shown() {
    let scratch = Scratch::new();
    let bytes = noise(CHUNK + 1);
    let (mut receiver, port) = receiver(&scratch);
    let mut session = Session::start(&line("-q", port, &format!("< {}", source(&scratch, &bytes))));
    session.until("KEY: ");
    session.type_in(&format!("{KEY}\n"));
    let (text, ended) = session.end();
    ended.expect(0);
    assert_eq!(text, "KEY: \r\n");
    receiver.wait().expect(0);
    same(&std::fs::read(scratch.join("copy")).expect("a copy"), &bytes);
}

#[test]
fn the_interrupt_key_ends_the_prompt() {
    let mut session = Session::start(&line("", 9, "< /dev/null"));
    session.until("KEY: ");
    session.type_in("half of a key\u{3}");
    let (text, ended) = session.end();
    ended.expect(130);
    assert_eq!(text, "KEY: \r\n");
}

/// ^Z at the prompt: the shell gets back a terminal that echoes input, and `fg` shows the prompt again.
#[test]
fn the_suspend_key_stops_the_prompt() {
    let scratch = Scratch::new();
    let bytes = noise(CHUNK + 1);
    let (mut receiver, port) = receiver(&scratch);
    let rdsend = line("-q", port, &format!("< {}", source(&scratch, &bytes)));
    let jobs = format!("set -m; {rdsend}; stty -a | grep -o -e '-*echo ' -e '-*isig'; echo stopped; fg");
    let mut session = Session::start(&format!("bash -c \"{jobs}\""));
    session.until("KEY: ");
    session.type_in("half of a key\u{1a}");
    session.until("stopped");
    // The next prompt may have arrived with it.
    let behind = session.text.find("stopped").expect("just seen");
    let later = session.text.split_off(behind);
    let shown = std::mem::replace(&mut session.text, later);
    assert!(!shown.contains("half") && !shown.contains("-echo") && !shown.contains("-isig"), "{shown}");
    assert!(shown.contains("echo ") && shown.contains("isig"), "{shown}");
    session.until("KEY: ");
    session.type_in(&format!("{KEY}\n"));
    let (text, ended) = session.end();
    ended.expect(0);
    assert!(!text.contains(KEY), "{text}");
    receiver.wait().expect(0);
    same(&std::fs::read(scratch.join("copy")).expect("a copy"), &bytes);
}

#[test]
fn a_bar_is_drawn_and_taken_away() {
    let scratch = Scratch::new();
    let (mut receiver, session) = slow(&scratch, &noise(8 * CHUNK));
    let (text, ended) = session.end();
    ended.expect(0);
    receiver.wait().expect(0);
    let percents: Vec<u32> = text
        .split(CLEAR)
        .filter_map(|drawn| drawn.split_once(" %")?.0.rsplit(|at: char| !at.is_ascii_digit()).next()?.parse().ok())
        .collect();
    assert!(percents.is_sorted() && percents.iter().any(|percent| (1..100).contains(percent)), "{percents:?}");
    assert!(text.contains("B/s (--bwlimit ") && text.contains("/8.0 MiB  "), "{text}");
    let last = text.rsplit(CLEAR).next().expect("the last line");
    assert!(last.starts_with("8.0 MiB in ") && last.ends_with(" MB/s), verified\r\n"), "the bar stays: {text}");
}

#[test]
fn a_terminal_that_is_stopped_holds_up_nothing() {
    let scratch = Scratch::new();
    let bytes = noise(64 * CHUNK);
    let (mut receiver, mut session) = slow(&scratch, &bytes);
    session.until("%");
    // ^S: 64 MiB take 8 s, which is longer than an end may be silent.
    session.type_in("\u{13}");
    let start = Instant::now();
    receiver.wait().expect(0);
    assert!(start.elapsed() > Duration::from_secs(6), "stopped too late");
    session.type_in("\u{11}");
    session.end().1.expect(0);
    same(&std::fs::read(scratch.join("copy")).expect("a copy"), &bytes);
}

/// Runs `rdrecv` on a terminal and sends it these bytes. Returns what was shown, and how receiver and sender ended.
fn shown_at_a_receiver(arguments: &str, bytes: &[u8]) -> (String, Ended, Ended) {
    let scratch = Scratch::new();
    let mut session = Session::start(&format!("{PROGRAM} rdrecv -q --color=never 0 '{KEY}' {arguments}"));
    session.until("waiting on port ");
    session.until("\n");
    let (before, waiting) = session.text.split_once("waiting on port ").expect("just seen");
    assert_eq!(before, "rdrecv: ");
    let port = waiting.trim().parse().expect("a port");
    session.text.clear();
    let mut send = Process::spawn(&mut start(&line("-q", port, &format!("'{KEY}' {}", source(&scratch, bytes)))));
    let sender = send.wait();
    let (text, ended) = session.end();
    (text, ended, sender)
}

fn start(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
    shell
}

#[test]
fn text_is_shown_at_a_receiver_and_nothing_else() {
    let text = "Hello RDMA!\n\tžluť\n";
    let (shown, ended, sender) = shown_at_a_receiver("", text.as_bytes());
    assert_eq!(shown, text.replace('\n', "\r\n"));
    ended.expect(0);
    sender.expect(0);
    for command in ["\0", "\u{1b}]0;title\u{7}", "\u{9b}2J"] {
        let (shown, ended, sender) = shown_at_a_receiver("", format!("plain{command}hidden").as_bytes());
        let (first, said) = shown.split_once("\r\n").expect("two lines");
        assert_eq!(first, "plain");
        assert!(
            said.starts_with("rdrecv: not writing binary data to a terminal") && said.matches("\r\n").count() == 1,
            "{said}"
        );
        ended.expect(1);
        sender.expect(6).one_line("rdsend", &["cannot write standard output", "terminal"]);
    }
    // The report has the same exit code.
    let scratch = Scratch::new();
    let report = scratch.join("report");
    let (_, ended, _) = shown_at_a_receiver(&format!("--json={}", report.display()), b"\0");
    ended.expect(1);
    let told: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("JSON");
    assert_eq!((told["exit"].as_u64(), told["failure"]["code"].as_str()), (Some(1), Some("usage")), "{told}");
    let bytes = b"plain\x07\x7f\x00all the same";
    let (shown, ended, sender) = shown_at_a_receiver("-", bytes);
    assert_eq!(shown.as_bytes(), bytes);
    ended.expect(0);
    sender.expect(0);
}
