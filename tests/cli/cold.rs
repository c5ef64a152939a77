//! Files that are not in the page cache, on the disk that the tests are built on.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use crate::rig::*;

/// Writes the file to the disk and drops its pages from the cache.
fn evict(path: &Path) {
    let file = std::fs::File::open(path).expect("there");
    file.sync_all().expect("synced");
    fadvise(&file, 0, None, Advice::DontNeed).expect("evicted");
    assert_eq!(cached_bytes(path), 0, "nothing holds its pages");
}

/// Sends `source` (as an argument, or as standard input from an offset on) into a file. Returns what the sender
/// printed, and how many bytes it read directly and through the cache.
fn send(source: &Path, offset: Option<u64>, expected: &[u8]) -> (String, [u64; 2]) {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
    let mut command = rdsend();
    command.args(["-v", "--json-fd=2", "127.0.0.1", &port.to_string(), KEY]);
    match offset {
        None => drop(command.arg(source).stdin(Stdio::null())),
        Some(offset) => {
            let mut file = std::fs::File::open(source).expect("there");
            file.seek(SeekFrom::Start(offset)).expect("a position in the file");
            command.stdin(file);
        }
    }
    let mut sender = Process::spawn(command.stdout(Stdio::null()));
    let ended = sender.wait();
    ended.expect(0);
    recv.wait().expect(0);
    same(&std::fs::read(&target).expect("there"), expected);
    let report = ended.report();
    let counts = ["read_direct_bytes", "read_cached_bytes"].map(|key| report[key].as_u64().expect("a number"));
    (ended.stderr.clone(), counts)
}

#[test]
fn a_cold_file_is_read_past_the_cache() {
    let scratch = Scratch::new();
    for length in [1, 4096, (1 << 20) + 1, (40 << 20) + 12345] {
        let data = noise(length);
        let source = scratch.file("source", &data);
        evict(&source);
        let (said, counts) = send(&source, None, &data);
        assert_eq!(counts, [length as u64, 0], "{length} bytes");
        assert_eq!(cached_bytes(&source), 0, "{length} bytes: it stays cold");
        assert!(said.lines().any(|line| line.starts_with("read: ") && line.ends_with(" direct")), "{said}");
    }
}

#[test]
fn a_cached_file_is_copied_and_is_told_as_such() {
    let scratch = Scratch::new();
    let data = noise((8 << 20) + 1);
    let source = scratch.file("source", &data);
    let (said, counts) = send(&source, None, &data);
    assert_eq!(counts, [0, data.len() as u64]);
    assert!(said.lines().any(|line| line == "read: 8.0 MiB cached"), "{said}");
}

#[test]
fn standard_input_from_an_offset_on() {
    let scratch = Scratch::new();
    let data = noise(5 << 20);
    let source = scratch.file("source", &data);
    for (offset, is_direct) in [(4096, true), (1, false), (5000, false)] {
        evict(&source);
        let expected = &data[offset as usize..];
        let (_, counts) = send(&source, Some(offset), expected);
        let all = expected.len() as u64;
        assert_eq!(counts, if is_direct { [all, 0] } else { [0, all] }, "from {offset} on");
    }
}

#[test]
fn a_cold_file_that_is_sent_slowly_and_given_up() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(64 << 20));
    evict(&source);
    let (mut recv, port) = start_recv(&["-v"], Some(&scratch.join("target")));
    let mut send = start_send(&["-v", "--bwlimit", "8M"], port, Some(&source));
    recv.line_with("connection: ");
    send.line_with("connection: ");
    std::thread::sleep(std::time::Duration::from_millis(300));
    send.signal(rustix::process::Signal::INT);
    send.wait_for(std::time::Duration::from_secs(10)).expect(130);
    recv.wait().expect(4);
    assert_eq!(scratch.names(), ["source"], "nothing is published");
}

/// A device answers many reads at once. The limit spreads their data over time, and no read waits
/// for those issued with it.
#[test]
fn a_cold_file_is_sent_evenly_under_a_limit() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(12 << 20));
    evict(&source);
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut command = rdsend();
    command.args(["--bwlimit", "6M", "127.0.0.1", &port.to_string(), KEY]).arg(&source);
    let mut sender = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let mut output = recv.stdout();
    output.read_exact(&mut [0]).expect("the first of it");
    let start = Instant::now();
    drain(output).join().expect("no panic");
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds > 1.0, "all of it came within {seconds:.2} s, of 2");
    sender.wait().expect(0);
    recv.wait().expect(0);
}
