//! A hostile peer: `rdcp` copies from an agent that answers with names that were not asked for, and sends byte streams
//! that are not trees. Nothing outside the destination may change, and everything printed must be printable.
//!
//! The peer is this program too: as the launcher of `rdcp` it runs the real agent, and edits the messages between the
//! two. To send records of its choice, it has the agent send the bytes of a file over the real session where a tree was
//! asked for. On the wire the two look alike.

mod receiver;
#[path = "../rig/mod.rs"]
mod rig;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::BufReader;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use rd_proto::tree::{Metadata, Record, Special};
use rdma_pipe::control::channel::{Outbox, receive, skip_to_magic};
use rdma_pipe::control::frames::{Fault, Found, Job, Kind, MAGIC, Message, Report};
use rig::*;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};

/// Environment variables of the launcher that say what the peer does.
const RECORDS: &str = "RD_HOSTILE_RECORDS";
const NAMES: &str = "RD_HOSTILE_NAMES";
const KIND: &str = "RD_HOSTILE_KIND";
const SAYS: &str = "RD_HOSTILE_SAYS";

/// The peer sends far too many messages: during a copy ("copy"), or in answer to FIND ("found").
const FLOODS: &str = "RD_HOSTILE_FLOODS";

/// The peer claims to have sent everything, whatever happened. With "lost" it also kills its agent in the middle.
const CLAIMS: &str = "RD_HOSTILE_CLAIMS";

/// The peer is a receiver; the value names its lie.
const RECEIVER: &str = "RD_HOSTILE_RECEIVER";

fn main() -> ExitCode {
    if std::env::var_os("RD_HOSTILE").is_some() {
        return be_hostile();
    }
    rig::run_cases(CASES)
}

// --- the peer ----------------------------------------------------------------------------------------------------

/// Stands between the caller and a real agent, and edits their messages.
fn be_hostile() -> ExitCode {
    if let Ok(name) = std::env::var(RECEIVER) {
        return receiver::be_receiver(&name);
    }
    let mut agent = Command::new(AGENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the agent");
    let to_agent = Outbox::start(agent.stdin.take().expect("piped"), b"", None).expect("a thread");
    let to_caller = Outbox::start(std::io::stdout(), MAGIC, None).expect("a thread");
    let mut from_agent = BufReader::new(agent.stdout.take().expect("piped"));
    let answers = to_caller.clone();
    let (claims, pid) = (std::env::var(CLAIMS).ok(), Pid::from_child(&agent));
    std::thread::spawn(move || {
        skip_to_magic(&mut from_agent).expect("the agent");
        while let Ok(message) = receive(&mut from_agent) {
            let (end, message) = of_end(message);
            match (message, claims.as_deref()) {
                (Message::Progress { .. }, Some("lost")) => {
                    kill_process(pid, Signal::KILL).expect("the agent");
                    let mut report = Report::default();
                    (report.figures.counters.bytes, report.tree.amount.entries) = (1, 1);
                    answers.send(for_end(end, Message::Ended(Box::new(report))));
                    return;
                }
                (Message::Ended(report), Some(_)) => {
                    answers.send(for_end(end, Message::Ended(Box::new(Report { fault: None, ..*report }))));
                }
                (other, _) => answers.send(for_end(end, other)),
            }
        }
        answers.flush(Duration::from_secs(2));
        std::process::exit(0);
    });
    let mut from_caller = BufReader::new(std::io::stdin());
    while let Ok(message) = receive(&mut from_caller) {
        let (end, message) = of_end(message);
        match message {
            Message::Find { patterns, links } => match std::env::var_os(NAMES) {
                Some(_) if std::env::var(FLOODS).is_ok_and(|what| what == "found") => loop {
                    to_caller.send(Message::Found(Vec::new()));
                    std::thread::sleep(Duration::from_millis(100));
                },
                Some(names) => answer(&to_caller, &names),
                None => to_agent.send(Message::Find { patterns, links }),
            },
            Message::Begin(mut begin) => {
                if let (Job::SendTree { .. }, Some(path)) = (&begin.job, std::env::var_os(RECORDS)) {
                    begin.job = Job::SendFile { path: path.into_vec() };
                }
                if let Ok(text) = std::env::var(SAYS) {
                    to_caller.send(for_end(end, Message::Say(text)));
                }
                if std::env::var_os(FLOODS).is_some() {
                    let fault = |number| Fault { path: format!("f{number}").into_bytes(), ..Fault::plain(5, "lost") };
                    for number in 0..2000 {
                        to_caller.send(for_end(end, Message::Say(format!("line {number}"))));
                        let faults = vec![Fault { what: "cannot read".to_owned(), ..fault(number) }];
                        to_caller.send(for_end(end, Message::EntriesFailed(faults)));
                    }
                }
                to_agent.send(for_end(end, Message::Begin(begin)));
            }
            other => to_agent.send(for_end(end, other)),
        }
    }
    to_agent.close();
    let _ = agent.wait();
    ExitCode::SUCCESS
}

/// Returns a message, and the end of a session that it is for or of.
fn of_end(message: Message) -> (Option<u32>, Message) {
    match message {
        Message::ForEnd { end, message } => (Some(end), message.decode().expect("a message").expect("a known one")),
        other => (None, other),
    }
}

fn for_end(end: Option<u32>, message: Message) -> Message {
    match end {
        Some(end) => message.for_end(end).expect("short"),
        None => message,
    }
}

/// Reports as found a source for each line of `names`.
fn answer(to_caller: &Outbox, names: &OsStr) {
    let kind = match std::env::var(KIND).as_deref() {
        Ok("directory") => Kind::Directory,
        Ok("other") => Kind::Other,
        _ => Kind::File,
    };
    let found = names.as_bytes().split(|&byte| byte == b'\n').map(|name| {
        let path = std::env::var_os(RECORDS).expect("bytes to send").into_vec();
        Found { path, name: name.to_vec(), kind, size_bytes: u64::MAX, device: 0, inode: 0 }
    });
    to_caller.send(Message::Found(found.collect()));
    to_caller.send(Message::FoundAll);
}

// --- the tests ---------------------------------------------------------------------------------------------------

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("the_peer_can_send_a_tree", the_peer_can_send_a_tree),
    ("records_that_are_no_walk", records_that_are_no_walk),
    ("names_that_lead_elsewhere", names_that_lead_elsewhere),
    ("through_a_link_that_it_made", through_a_link_that_it_made),
    ("through_a_link_that_was_there", through_a_link_that_was_there),
    ("through_links_that_come_and_go", through_links_that_come_and_go),
    ("lengths_that_are_lies", lengths_that_are_lies),
    ("names_that_were_not_asked_for", names_that_were_not_asked_for),
    ("no_more_than_a_file_without_r", no_more_than_a_file_without_r),
    ("what_is_printed_is_printable", what_is_printed_is_printable),
    ("more_than_anybody_would_read", more_than_anybody_would_read),
    ("a_sender_that_claims_success", a_sender_that_claims_success),
    ("the_receiver_can_be_honest", receiver::the_receiver_can_be_honest),
    ("a_receiver_that_lies_about_what_it_has", receiver::a_receiver_that_lies_about_what_it_has),
    ("a_receiver_that_lies_about_what_was_there", receiver::a_receiver_that_lies_about_what_was_there),
];

/// A directory `dst`, and entries beside it that must stay as they are.
struct Lab {
    scratch: Scratch,
    before: BTreeMap<OsString, String>,
}

/// Describes everything below a directory except `dst` and the peer's records:
/// kind, mode, owner, times, inode, contents.
fn outside(top: &Path) -> BTreeMap<OsString, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let stat = fs::symlink_metadata(&path).expect("it is there");
        let contents = if stat.is_file() { fs::read(&path).expect("readable") } else { Vec::new() };
        let link = fs::read_link(&path).unwrap_or_default();
        // `dst` is itself an entry of the top directory, so the times of the top may change.
        let times = if path == top { (0, 0) } else { (stat.mtime(), stat.mtime_nsec()) };
        let text = format!(
            "{:o} {} {} {} {times:?} {link:?} {contents:?}",
            stat.mode(),
            stat.uid(),
            stat.ino(),
            if stat.is_file() { stat.nlink() } else { 0 }
        );
        all.insert(path.clone().into_os_string(), text);
        if stat.is_dir() {
            let entries = fs::read_dir(&path).expect("readable").map(|entry| entry.expect("an entry").path());
            waiting.extend(entries.filter(|path| *path != top.join("dst") && *path != top.join("records")));
        }
    }
    all
}

/// Whether a character neither moves a terminal's cursor nor changes the order in which text is shown.
fn is_printable(character: char) -> bool {
    let is_mark = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character == '\n' || !character.is_control() && !is_mark
}

impl Lab {
    fn new() -> Self {
        let scratch = Scratch::new();
        for directory in ["dst", "outside/below"] {
            fs::create_dir_all(scratch.join(directory)).expect("a directory");
        }
        scratch.file("outside/file", b"precious");
        scratch.file("outside/below/file", b"precious too");
        scratch.file("x", b"beside");
        scratch.file("records", b"");
        let before = outside(scratch.path());
        Self { scratch, before }
    }

    fn command(&self) -> Command {
        let mut command = rdcp();
        command.arg("--rsh").arg(std::env::current_exe().expect("this program"));
        command.env("RD_HOSTILE", "1").env(RECORDS, self.scratch.join("records"));
        command.current_dir(self.scratch.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Copies `evil:x`, for which the peer sends these bytes, into `dst`,
    /// and checks everything that must hold for any bytes.
    #[track_caller]
    fn copy(&self, records: &[u8], edit: impl FnOnce(&mut Command)) -> Ended {
        self.scratch.file("records", records);
        let mut command = self.command();
        edit(&mut command);
        let mut process = Process::spawn(&mut command);
        let ended = process.wait();
        let after = outside(self.scratch.path());
        for (path, was) in &self.before {
            assert!(after.get(path) == Some(was), "{path:?} was {was}, is {:?}; {}", after.get(path), ended.stderr);
        }
        assert_eq!(after.len(), self.before.len(), "made outside: {:?}", after.keys());
        let printed = String::from_utf8(process.stderr_bytes());
        let printed = printed.expect("a byte that is no UTF-8 may be a control character in another encoding");
        assert!(printed.chars().all(is_printable), "{printed:?}");
        ended
    }

    /// Copies `evil:x` into `dst` with `-r`.
    #[track_caller]
    fn tree(&self, records: &[u8]) -> Ended {
        self.copy(records, |command| {
            command.args(["-r", "evil:x", "dst"]).env(NAMES, "x").env(KIND, "directory");
        })
    }

    /// Checks that a tree of these records is refused as a breach of the protocol.
    #[track_caller]
    fn is_refused(&self, what: &str, records: &[u8]) {
        fs::remove_dir_all(self.scratch.join("dst")).expect("ours");
        fs::create_dir(self.scratch.join("dst")).expect("ours");
        let ended = self.tree(records);
        assert_eq!(ended.code, 9, "{what}: {}", ended.stderr);
        ended.one_line("rdcp", &["evil"]);
    }

    fn made(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.join("dst")).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

const OURS: Metadata<'static> = Metadata {
    mode: 0o755,
    modified: rd_proto::tree::Time { seconds: 1, nanoseconds: 0 },
    accessed: rd_proto::tree::Time { seconds: 1, nanoseconds: 0 },
    ..Metadata::ZERO
};

fn file(name: &[u8]) -> Record<'_> {
    Record::File { name, metadata: OURS, data: b"evil" }
}

fn directory(name: &[u8]) -> Record<'_> {
    Record::Directory { name, metadata: OURS }
}

fn link<'a>(name: &'a [u8], target: &'a [u8]) -> Record<'a> {
    Record::Symlink { name, metadata: OURS, target }
}

const LEAVE: Record<'static> = Record::Leave;
const END: Record<'static> = Record::End { failures: 0 };

fn encoded(records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        let at = bytes.len();
        bytes.resize(at + record.encoded_bytes(), 0);
        record.encode(&mut bytes[at..]).expect("room");
    }
    bytes
}

/// Encodes records, and then replaces each `before` with `after`, which has the same length.
fn edited(records: &[Record<'_>], before: &[u8], after: &[u8]) -> Vec<u8> {
    let mut bytes = encoded(records);
    assert_eq!(before.len(), after.len());
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(before)).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + after.len()].copy_from_slice(after);
    }
    bytes
}

/// Basis of the other tests: records that form a walk arrive as a tree.
fn the_peer_can_send_a_tree() {
    let lab = Lab::new();
    lab.tree(&encoded(&[directory(b"x"), file(b"a"), link(b"b", b"../../x"), LEAVE, END])).expect(0);
    assert_eq!(fs::read(lab.scratch.join("dst/x/a")).expect("it arrived"), b"evil");
    assert_eq!(fs::read_link(lab.scratch.join("dst/x/b")).expect("it arrived"), Path::new("../../x"));
}

fn records_that_are_no_walk() {
    let lab = Lab::new();
    let special = |name| Record::Special { name, metadata: OURS, kind: Special::Fifo, device: (0, 0) };
    for (what, records) in [
        ("a name twice", vec![directory(b"x"), file(b"a"), file(b"a"), LEAVE, END]),
        (
            "a directory, then a link of its name",
            vec![directory(b"x"), directory(b"a"), LEAVE, link(b"a", b"/"), LEAVE, END],
        ),
        ("siblings that do not ascend", vec![directory(b"x"), file(b"b"), special(b"a"), LEAVE, END]),
        ("a second root", vec![file(b"x"), file(b"y"), END]),
        ("out of the top", vec![directory(b"x"), LEAVE, LEAVE, file(b"y"), END]),
        ("more after the end", vec![file(b"x"), END, file(b"y")]),
        ("no end", vec![file(b"x")]),
        ("a directory that is not left", vec![directory(b"x"), END]),
        (
            "a hard link to what comes later",
            vec![directory(b"x"), Record::HardLink { name: b"a", first: b"x/b" }, file(b"b"), LEAVE, END],
        ),
        (
            "a hard link out of the tree",
            vec![directory(b"x"), Record::HardLink { name: b"a", first: b"outside/file" }, LEAVE, END],
        ),
    ] {
        lab.is_refused(what, &encoded(&records));
    }
    lab.is_refused("no record at all", &[0xff; 40]);
    let depth = vec![directory(b"x"); 600];
    lab.is_refused("deeper than any tree", &encoded(&depth));
}

fn names_that_lead_elsewhere() {
    let lab = Lab::new();
    for (what, name) in [("up", &b"../x"[..]), ("up and down", b"a/../"), ("absolute", b"/tmp"), ("a zero", b"a\0bc")] {
        let plain = vec![b'q'; name.len()];
        for records in [
            vec![file(&plain), END],
            vec![directory(&plain), file(b"a"), LEAVE, END],
            vec![directory(b"x"), file(&plain), LEAVE, END],
            vec![directory(b"x"), link(&plain, b"/"), LEAVE, END],
        ] {
            lab.is_refused(what, &edited(&records, &plain, name));
        }
    }
    for name in [&b".."[..], b"."] {
        let plain = vec![b'q'; name.len()];
        let records = [directory(b"x"), directory(&plain), file(b"evil"), LEAVE, LEAVE, END];
        // The byte with the name's length is included, so that nothing else is replaced.
        let with_length = |name: &[u8]| [&[name.len() as u8], name].concat();
        lab.is_refused("a dot name", &edited(&records, &with_length(&plain), &with_length(name)));
    }
    let first =
        [directory(b"x"), file(b"a"), Record::HardLink { name: b"b", first: b"x/qq/qq/outside/file" }, LEAVE, END];
    lab.is_refused("a hard link by dots", &edited(&first, b"x/qq/qq/", b"x/../../"));
}

fn through_a_link_that_it_made() {
    let lab = Lab::new();
    let outside = lab.scratch.join("outside");
    let to = outside.as_os_str().as_bytes();
    // The link's own name cannot come twice, so the first copy makes the link and the next one uses it.
    lab.tree(&encoded(&[directory(b"x"), link(b"l", to), link(b"m", b"../../outside/file"), LEAVE, END])).expect(0);
    assert_eq!(fs::read_link(lab.scratch.join("dst/x/l")).expect("a link"), outside);
    let into = lab.tree(&encoded(&[directory(b"x"), directory(b"l"), file(b"file"), LEAVE, LEAVE, END]));
    into.expect(8);
    let over = lab.tree(&encoded(&[directory(b"x"), file(b"m"), LEAVE, END]));
    over.expect(0);
    assert!(fs::symlink_metadata(lab.scratch.join("dst/x/m")).expect("it").is_file(), "the link itself is replaced");
    // A hard link whose first name leads through the link.
    let hard =
        [directory(b"x"), directory(b"k"), LEAVE, Record::HardLink { name: b"z", first: b"x/l/file" }, LEAVE, END];
    let ended = lab.tree(&encoded(&hard));
    // This sender accepts no answers, and an answer may come in time: that a directory is new.
    assert!([8, 9].contains(&ended.code), "{}: {}", ended.code, ended.stderr);
    assert!(fs::symlink_metadata(lab.scratch.join("dst/x/z")).is_err());
    // In a single copy: a link, a hard link to the link itself, and a hard link through it.
    let hard = [
        directory(b"x"),
        link(b"p", to),
        Record::HardLink { name: b"q", first: b"x/p" },
        Record::HardLink { name: b"r", first: b"x/p/file" },
        LEAVE,
        END,
    ];
    let ended = lab.tree(&encoded(&hard));
    assert!([8, 9].contains(&ended.code), "{}: {}", ended.code, ended.stderr);
    assert!(fs::symlink_metadata(lab.scratch.join("dst/x/r")).is_err());
}

fn through_a_link_that_was_there() {
    let lab = Lab::new();
    symlink(lab.scratch.join("outside"), lab.scratch.join("dst/x")).expect("a link");
    let ended = lab.tree(&encoded(&[directory(b"x"), file(b"file"), directory(b"new"), LEAVE, LEAVE, END]));
    assert!([6, 8].contains(&ended.code), "{}: {}", ended.code, ended.stderr);
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Another process on the destination's host exchanges directories for links while the directories are being filled.
fn through_links_that_come_and_go() {
    const DIRECTORIES: usize = 40;
    const COPIES: usize = 12;
    let lab = Lab::new();
    let names: Vec<String> = (0..DIRECTORIES).map(|number| format!("d{number:02}")).collect();
    let mut records = vec![directory(b"x")];
    for name in &names {
        records.extend([directory(name.as_bytes()), directory(b"below"), file(b"file"), LEAVE]);
        records.extend([file(b"file"), link(b"link", b"/"), file(b"new"), LEAVE]);
    }
    records.extend([LEAVE, END]);
    let records = encoded(&records);
    lab.tree(&records).expect(0);
    let links = lab.scratch.join("dst/links");
    fs::create_dir(&links).expect("a directory");
    for name in &names {
        symlink(lab.scratch.join("outside"), links.join(name)).expect("a link");
    }
    let (copied, is_over) = (lab.scratch.join("dst/x"), AtomicBool::new(false));
    let exchanges = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                for name in &names {
                    // The copy may have just opened either entry, but both exist.
                    let flags = RenameFlags::EXCHANGE;
                    renameat_with(CWD, copied.join(name), CWD, links.join(name), flags).expect("both are there");
                    exchanges.fetch_add(1, Relaxed);
                }
            }
        });
        // Dropped however the copies end.
        let over = Over(&is_over);
        let codes: Vec<i32> = (0..COPIES).map(|_| lab.tree(&records).code).collect();
        drop(over);
        // A directory that is a link when its turn comes counts as failed.
        assert!(codes.iter().all(|code| [0, 8].contains(code)) && codes.contains(&8), "{codes:?}");
    });
    assert!(exchanges.into_inner() > COPIES * DIRECTORIES);
}

fn lengths_that_are_lies() {
    let lab = Lab::new();
    let large = |size| Record::Large { name: b"x", metadata: OURS, item: 1, size, is_sparse: false };
    let closed = |data_bytes| Record::Closed { item: 1, data_bytes, is_intact: true };
    lab.is_refused("more than announced", &encoded(&[large(10), closed(11), END]));
    lab.is_refused("never closed", &encoded(&[large(10), END]));
    lab.is_refused("announced and not sent", &encoded(&[large(10), closed(10), END]));
    lab.is_refused(
        "another's number",
        &encoded(&[large(10), Record::Closed { item: 2, data_bytes: 10, is_intact: true }, END]),
    );
    // The data's length extends beyond the chunk.
    let mut records = encoded(&[file(b"x"), END]);
    let at = records.windows(4).position(|four| four == b"evil").expect("its data");
    records[at - 4..at].copy_from_slice(&u32::MAX.to_le_bytes());
    lab.is_refused("longer than its chunk", &records);
    assert!(lab.made().is_empty(), "{:?}", lab.made());
}

/// The sources that an agent reports as found must match the ones asked for.
fn names_that_were_not_asked_for() {
    let lab = Lab::new();
    let one = encoded(&[file(b"x"), END]);
    for kind in ["file", "directory", "other"] {
        for (asked, names) in [
            ("evil:x", "../x"),
            ("evil:x", "../outside/file"),
            ("evil:x", "/etc/x"),
            ("evil:x", ".."),
            ("evil:x", ""),
            ("evil:x", ".bashrc"),
            ("evil:dir/x", "dir"),
            ("evil:dir/x", "x\ny"),
            ("evil:*.txt", "../x.txt"),
            ("evil:*.txt", "x"),
            ("evil:*.txt", ".x.txt"),
            ("evil:*.txt", "a.txt\n../../x.txt"),
            ("evil:[ab]/*", "x/../../outside/file"),
            ("evil:~/x", "y"),
            ("evil:~", "../x"),
            ("evil:x/.", "x"),
        ] {
            for recursive in [true, false] {
                let ended = lab.copy(&one, |command| {
                    command.args(recursive.then_some("-r")).args([asked, "dst"]).env(NAMES, names).env(KIND, kind);
                });
                assert_eq!(ended.code, 9, "{kind} {asked} {names:?}: {}", ended.stderr);
                ended.one_line("rdcp", &["evil"]);
                assert!(lab.made().is_empty(), "{kind} {asked} {names:?}: {:?}", lab.made());
            }
        }
    }
    // Matching names are accepted.
    for (asked, name) in [("evil:dir/x", "x"), ("evil:[xy]", "x"), ("evil:*/x/", "x"), ("evil:~", "x")] {
        let ended = lab.copy(&one, |command| {
            command.args(["-r", asked, "dst"]).env(NAMES, name);
        });
        ended.expect(0);
        fs::remove_file(lab.scratch.join("dst/x")).expect("it arrived");
    }
}

fn no_more_than_a_file_without_r() {
    let lab = Lab::new();
    let special = Record::Special { name: b"x", metadata: OURS, kind: Special::Fifo, device: (0, 0) };
    for records in
        [vec![link(b"x", b"/etc/passwd"), END], vec![directory(b"x"), file(b"a"), LEAVE, END], vec![special, END]]
    {
        let ended = lab.copy(&encoded(&records), |command| {
            command.args(["evil:x", "dst"]).env(NAMES, "x");
        });
        ended.expect(9).one_line("rdcp", &["evil"]);
        assert!(lab.made().is_empty(), "{:?}", lab.made());
    }
    lab.copy(&encoded(&[file(b"x"), END]), |command| {
        command.args(["evil:x", "dst"]).env(NAMES, "x");
    })
    .expect(0);
}

fn what_is_printed_is_printable() {
    let lab = Lab::new();
    // The last three characters are U+009B, as a single byte and in UTF-8, and U+202E.
    let name = b"\x1b]0;owned\x07\x1b[2J\r\x9b\xc2\x9b\xe2\x80\xae";
    // A non-empty directory stands where a file of that name is to go, so that the name is printed.
    fs::create_dir_all(lab.scratch.join("dst/x").join(OsStr::from_bytes(name)).join("y")).expect("a directory");
    let records = encoded(&[directory(b"x"), file(name), LEAVE, END]);
    let ended = lab.tree(&records);
    assert!(ended.expect(8).stderr.contains("owned"), "{}", ended.stderr);
    let ended = lab.copy(&records, |command| {
        command
            .args(["-v", "-r", "evil:x", "dst"])
            .env(NAMES, "x")
            .env(KIND, "directory")
            .env(SAYS, "said \x1b[31m\r\n\x07\u{9b}\u{202e}\u{2066} line");
    });
    assert!(ended.expect(8).stderr.contains("said "), "{}", ended.stderr);
}

/// Only a limited number of the peer's failures and lines is printed, followed by the number of those omitted. An empty
/// FOUND does not extend the time for the next one.
fn more_than_anybody_would_read() {
    let lab = Lab::new();
    let records = encoded(&[directory(b"x"), file(b"y"), LEAVE, END]);
    let ended = lab.copy(&records, |command| {
        command.args(["-r", "evil:x", "dst"]).env(NAMES, "x").env(KIND, "directory").env(FLOODS, "copy");
    });
    let count = |words: &str| ended.stderr.lines().filter(|line| line.contains(words)).count();
    assert_eq!((count("evil: line "), count("cannot read evil:f")), (300, 1000), "{}", ended.stderr);
    assert!(ended.stderr.contains("and 2700 more lines from evil, not shown"), "{}", ended.stderr);
    let ended = lab.copy(&records, |command| {
        command.args(["-r", "evil:x", "dst"]).env(NAMES, "x").env(FLOODS, "found");
    });
    assert!(ended.expect(9).stderr.contains("broke the protocol"), "{}", ended.stderr);
}

/// The sender's claims about the copy do not override what this host knows about it.
fn a_sender_that_claims_success() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(24 * CHUNK));
    let target = scratch.join("target");
    for (claims, to, code) in [("honest", &*target, 0), ("lost", &*target, 4), ("failed", Path::new("/dev/full"), 6)] {
        let _ = fs::remove_file(&target);
        let mut command = rdcp();
        command.arg("--rsh").arg(std::env::current_exe().expect("this program"));
        let mut from = OsString::from("evil:");
        from.push(&source);
        command.args(["--reconnect", "1", "--bwlimit", "16M"]).arg(from).arg(to);
        command.env("RD_HOSTILE", "1").env(CLAIMS, claims);
        let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
        assert_eq!(ended.code, code, "{claims}: {}", ended.stderr);
        assert_eq!(target.exists(), code == 0, "{claims}");
        if code == 0 {
            same(&fs::read(&target).expect("it"), &noise(24 * CHUNK));
        }
    }
}
