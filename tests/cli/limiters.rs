//! Which part limits a transfer: each part in turn is made the bottleneck, and both ends account for their time. The
//! slow part is far slower than any other part on a busy machine, so it is waited for nearly all of the time.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::rig::lab::Lab;
use crate::rig::*;

/// Number of bytes that a slow part takes at once, and how long it then waits: at most 6.5 MB/s.
const PIECE: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Minimum share of the time for which the bottleneck is waited for.
const MOST: f64 = 0.7;

/// Writes slowly in a separate thread.
fn trickle(mut pipe: impl Write + Send + 'static, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for piece in bytes.chunks(PIECE) {
            pipe.write_all(piece).expect("somebody reads");
            std::thread::sleep(PAUSE);
        }
    })
}

/// Reads slowly in a separate thread.
fn sip(mut pipe: ChildStdout) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
        while let Ok(count @ 1..) = pipe.read(&mut piece) {
            bytes.extend(&piece[..count]);
            std::thread::sleep(PAUSE);
        }
        bytes
    })
}

/// The report of an end.
struct Told(serde_json::Value);

impl Told {
    fn of(ended: &Ended) -> Self {
        // rdcp prints reports of its progress before the final one.
        let line = ended.expect(0).stderr.lines().rfind(|line| line.starts_with('{')).expect("a report");
        let told = Self(serde_json::from_str(line).expect("JSON"));
        let (seconds, all) = (told.0["seconds"].as_f64().expect("a number"), told.total());
        assert!(all > 0.9 * seconds && all < seconds + 2.0, "all of {seconds} s is accounted for: {}", told.0);
        told
    }

    fn total(&self) -> f64 {
        self.0["wait_seconds"].as_object().expect("times").values().filter_map(|seconds| seconds.as_f64()).sum()
    }

    /// Returns the share of these waits in the total time.
    fn share(&self, names: &[&str]) -> f64 {
        names.iter().map(|name| self.0["wait_seconds"][name].as_f64().expect("a number")).sum::<f64>() / self.total()
    }

    /// Checks that this part is named, and was waited for most of the time. The stated maximum rate
    /// must follow from its share.
    #[track_caller]
    fn names(&self, name: &str) {
        let limiter = &self.0["limiter"];
        assert_eq!(limiter["name"], name, "{}", self.0);
        let share = limiter["share"].as_f64().expect("a number");
        assert!((share - self.share(&[name])).abs() < 0.01, "{}", self.0);
        assert!((MOST..=1.0).contains(&share), "{share} of {}", self.0);
        let bytes = self.0["bytes"].as_f64().expect("a number");
        let ceiling = limiter["ceiling_gb_per_s"].as_f64().expect("a number");
        let expected = bytes / 1e9 / (share * self.total());
        assert!((ceiling - expected).abs() < 0.02 * expected + 1e-5, "{ceiling} for {expected}: {}", self.0);
    }
}

/// Sends `input` as a stream at full speed, and returns the reports of both ends.
#[track_caller]
fn stream(send_options: &[&str], recv_options: &[&str], bytes_per_second: Option<u64>, input: Vec<u8>) -> [Told; 2] {
    let (mut recv, port) = start_recv(&[&["--json-fd=2"], recv_options].concat(), None);
    let output = drain(recv.stdout());
    let proxy = proxy::Proxy::start(port, proxy::Plan { bytes_per_second, ..proxy::Plan::default() });
    let port = if bytes_per_second.is_some() { proxy.port() } else { port };
    let mut send = start_send(&[&["--json-fd=2"], send_options].concat(), port, None);
    feed(send.stdin(), input.clone());
    let told = [Told::of(&send.wait()), Told::of(&recv.wait())];
    same(&output.join().expect("no panic"), &input);
    told
}

#[test]
fn a_slow_source() {
    let input = noise(8 << 20);
    let (mut recv, port) = start_recv(&["--json-fd=2", "-v"], None);
    let output = drain(recv.stdout());
    let mut send = start_send(&["--json-fd=2", "-v"], port, None);
    let fed = trickle(send.stdin(), input.clone());
    let (send, recv) = (send.wait(), recv.wait());
    fed.join().expect("no panic");
    same(&output.join().expect("no panic"), &input);
    let [sender, receiver] = [Told::of(&send), Told::of(&recv)];
    sender.names("source");
    // The receiver cannot know why nothing arrives.
    receiver.names("wire");
    assert!(receiver.share(&["sink", "cpu"]) < 0.2, "{}", receiver.0);
    assert!(send.stderr.contains("\nlimited by the source, for "), "{}", send.stderr);
    assert!(recv.stderr.contains("\nlimited by the sender or the wire, for "), "{}", recv.stderr);
}

#[test]
fn a_slow_sink() {
    let input = noise(12 << 20);
    let (mut recv, port) = start_recv(&["--json-fd=2", "-v", "--buffer", "2M"], None);
    let output = sip(recv.stdout());
    let mut send = start_send(&["--json-fd=2", "--buffer", "2M"], port, None);
    feed(send.stdin(), input.clone());
    let (send, recv) = (send.wait(), recv.wait());
    same(&output.join().expect("no panic"), &input);
    let [sender, receiver] = [Told::of(&send), Told::of(&recv)];
    receiver.names("sink");
    assert!(recv.stderr.contains("\nlimited by the sink, for "), "{}", recv.stderr);
    assert!(sender.share(&["credits", "wire"]) > MOST, "it waits for the other end: {}", sender.0);
}

#[test]
fn a_receiver_without_room() {
    let input = noise(12 << 20);
    let (mut recv, port) = start_recv(&["--json-fd=2", "--buffer", "512K"], None);
    let output = sip(recv.stdout());
    let mut send = start_send(&["--json-fd=2", "-v", "--buffer", "32M"], port, None);
    feed(send.stdin(), input.clone());
    let send = send.wait();
    Told::of(&recv.wait()).names("sink");
    same(&output.join().expect("no panic"), &input);
    Told::of(&send).names("credits");
    assert!(send.stderr.contains("\nlimited by the receiver, for "), "{}", send.stderr);
}

#[test]
fn a_slow_wire() {
    for told in stream(&["--buffer", "4M"], &[], Some(6 << 20), noise(12 << 20)) {
        told.names("wire");
    }
}

#[test]
fn a_lane_that_reads_and_seals_itself() {
    let scratch = Scratch::new();
    let input = noise(64 << 20);
    let source = scratch.file("source", &input);
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let mut command = rdsend();
    command
        .args(["--json-fd=2", "--encrypt", "always", "--compress", "off", "127.0.0.1", &port.to_string(), KEY])
        .arg(source);
    // The lanes and everything else share one processor.
    let mut command = in_shell("exec taskset -c 0 \"$@\"", &command);
    let sender = Told::of(&Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait());
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
    for name in ["source", "cpu"] {
        // On a busy machine the other end takes most of the time.
        assert!(sender.share(&[name]) > 0.0, "{name}: {}", sender.0);
    }
}

#[test]
fn a_rate_limit() {
    let [sender, receiver] = stream(&["--bwlimit", "6M"], &[], None, noise(12 << 20));
    sender.names("limit");
    receiver.names("wire");
}

#[test]
fn a_rate_limit_on_a_file() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(12 << 20));
    let (mut recv, port) = start_recv(&["--json-fd=2"], Some(&scratch.join("target")));
    let send = start_send(&["--json-fd=2", "--bwlimit", "6M"], port, Some(&source)).wait();
    Told::of(&send).names("limit");
    Told::of(&recv.wait()).names("wire");
}

/// Returns short words in random order: compressible, but in the way that takes a compressor longest.
fn words(length: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    let mut word = || {
        let length = 2 + random.below(6);
        (0..length).map(|_| b'a' + random.below(26) as u8).chain([b' ']).collect::<Vec<u8>>()
    };
    let known: Vec<Vec<u8>> = (0..4000).map(|_| word()).collect();
    let mut words = Vec::with_capacity(length + 8);
    while words.len() < length {
        words.extend(&known[random.below(4000) as usize]);
    }
    words.truncate(length);
    words
}

#[test]
fn slow_processors() {
    let scratch = Scratch::new();
    // Even on a fast processor this takes longer than the half second from which the line is written.
    let source = scratch.file("source", &words(8 << 20).repeat(48));
    let (mut recv, port) = start_recv(&["--json-fd=2"], Some(Path::new("/dev/null")));
    let mut command = rdsend();
    command.args(["--json-fd=2", "-v", "--compress", "zstd", "--lanes", "1", "127.0.0.1", &port.to_string(), KEY]);
    // A single processor for everything: the first allowed one.
    let line = "cpu=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/self/status); \
        exec taskset -c \"$cpu\" \"$@\"";
    let mut slow = in_shell(line, command.arg(&source));
    let send = Process::spawn(slow.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    let sender = Told::of(&send);
    sender.names("cpu");
    assert!(send.stderr.contains("\nlimited by the sender's processors, for "), "{}", send.stderr);
    let receiver = Told::of(&recv.wait());
    assert!(receiver.share(&["wire"]) > 0.4 && receiver.share(&["sink"]) < 0.2, "{}", receiver.0);
}

/// rdcp has the knowledge of both ends. The sender alone would report that it waits for the receiver.
#[test]
fn a_copy_names_the_end_that_is_slow() {
    let lab = Lab::new();
    lab.0.file("source", &noise(12 << 20));
    let fifo = lab.0.fifo("fifo");
    let rdcp = |arguments: &[&str]| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["--json-fd=2", "-v", "--buffer", "2M"]).args(arguments);
        Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    };
    let mut to_slow = rdcp(&["source", &format!("h:{}", fifo.display())]);
    let slow = std::thread::spawn(move || {
        let mut reader = std::fs::File::open(fifo).expect("the FIFO");
        let mut piece = vec![0; PIECE];
        while reader.read(&mut piece).is_ok_and(|count| count > 0) {
            std::thread::sleep(PAUSE);
        }
    });
    let ended = to_slow.wait();
    slow.join().expect("no panic");
    Told::of(&ended).names("sink");
    assert!(ended.stderr.contains("limited by the sink, for "), "{}", ended.stderr);

    let mut from_slow = rdcp(&["-", &format!("h:{}", lab.join("target").display())]);
    trickle(from_slow.stdin(), noise(8 << 20));
    Told::of(&from_slow.wait()).names("source");
}

#[test]
fn progress_tells_what_limits_now() {
    // A line every five seconds if there is no terminal.
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let mut send = start_send(&["--progress", "--bwlimit", "2M"], port, None);
    let input = noise(11 << 20);
    let fed = feed(send.stdin(), input.clone());
    let line = send.line_with("B/s");
    assert!(line.contains("B/s (--bwlimit ") && line.contains(" %)"), "{line}");
    fed.join().expect("no panic");
    let ended = send.wait();
    ended.expect(0);
    assert!(ended.stderr.lines().last().is_some_and(|last| last.contains("verified")), "{}", ended.stderr);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
}
