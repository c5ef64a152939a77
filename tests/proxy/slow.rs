//! Slow or long lines: messages from one end reach the other in time, and a finished transfer remains finished.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::proxy::{Plan, Proxy, Way};
use crate::rig::*;

/// Maximum time for both ends to exit after a signal, over a line that is slow but not dead.
const HEARD_MAX: Duration = Duration::from_secs(3);

#[test]
fn a_signal_is_heard_over_a_slow_line() {
    for to_sender in [true, false] {
        let (mut recv, port) = start_recv::<&str>(&[], None);
        let mut output = recv.stdout();
        let proxy = Proxy::start(port, Plan { bytes_per_second: Some(500_000), ..Plan::default() });
        let mut send = start_send::<&str>(&[], proxy.port(), Some(Path::new("/dev/zero")));
        // From the sender the message arrives after all data that is in transit.
        let bytes = if to_sender { 3 << 20 } else { 1 << 20 };
        output.read_exact(&mut vec![0; bytes]).expect("data flows");
        let _output = drain(output);
        let (here, there) = if to_sender { (&mut send, &mut recv) } else { (&mut recv, &mut send) };
        let start = Instant::now();
        here.signal(Signal::INT);
        here.wait().expect(130);
        let ended = there.wait();
        assert!(ended.expect(4).stderr.contains("interrupted (SIGINT)"), "{}", ended.stderr);
        assert!(start.elapsed() < HEARD_MAX, "{:?}", start.elapsed());
    }
}

/// Returns the longest run of control frames after the first chunk, and the length of the longest chunk.
fn runs_of_frames(bytes: &[u8]) -> (usize, usize) {
    let length = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let mut at = 0;
    for _ in 0..2 {
        at += 2 + length(at);
    }
    let (mut run, mut longest_run, mut longest_chunk) = (None, 0, 0);
    while at + 48 < bytes.len() {
        if bytes[at] == b'F' {
            at += 4 + length(at + 2);
            run = run.map(|run| run + 1);
            longest_run = longest_run.max(run.unwrap_or(0));
        } else {
            assert_eq!(bytes[at], b'C', "a record begins at {at}");
            let chunk = u32::from_le_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]]) as usize;
            longest_chunk = longest_chunk.max(chunk);
            at += 48 + chunk;
            run = Some(0);
        }
    }
    (longest_run, longest_chunk)
}

#[test]
fn heartbeats_do_not_pile_up_behind_a_chunk() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let _output = drain(recv.stdout());
    // On this line the first chunk takes four seconds.
    let proxy = Proxy::start(port, Plan { bytes_per_second: Some(16 << 10), record: true, ..Plan::default() });
    let mut send = start_send(&["--lanes", "1"], proxy.port(), Some(Path::new("/dev/zero")));
    let until = Instant::now() + Duration::from_secs(9);
    while Instant::now() < until && proxy.forwarded(Way::Up) < 110 << 10 {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(send.is_running() && recv.is_running(), "{} {}", send.stderr(), recv.stderr());
    let recorded = proxy.recorded(Way::Up);
    assert_eq!(recorded.len(), 1, "the lane was not replaced: {} {}", send.stderr(), recv.stderr());
    let (run, chunk) = runs_of_frames(&recorded[0]);
    assert!(recorded[0].len() > 80 << 10, "{}", recorded[0].len());
    assert!(run <= 2 && chunk <= 64 << 10, "{run} frames after each other, chunks of {chunk}");
}

/// Delay in one direction. A question and its answer take twice as long.
const DELAY: Option<Duration> = Some(Duration::from_millis(300));

#[test]
fn a_reader_that_leaves_once_it_has_everything_is_no_failure() {
    let input = noise(100_000);
    let scratch = Scratch::new();
    let file = scratch.file("input", &input);
    for from_file in [true, false] {
        let (mut recv, port) = start_recv::<&str>(&[], None);
        let mut output = recv.stdout();
        let proxy = Proxy::start(port, Plan { delay: DELAY, ..Plan::default() });
        let mut send = start_send::<&str>(&[], proxy.port(), from_file.then_some(&file));
        if !from_file {
            feed(send.stdin(), input.clone());
        }
        let mut got = vec![0; input.len()];
        output.read_exact(&mut got).expect("all of it");
        // Before DONE has arrived, and long before FINISHED has.
        drop(output);
        recv.wait_for(Duration::from_secs(10)).expect(0);
        send.wait_for(Duration::from_secs(10)).expect(0);
        same(&got, &input);
    }
}

#[test]
fn a_reader_that_leaves_before_the_end_still_ends_both() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut output = recv.stdout();
    let proxy = Proxy::start(port, Plan { delay: DELAY, ..Plan::default() });
    let mut send = start_send::<&str>(&[], proxy.port(), None);
    let mut input = send.stdin();
    std::io::Write::write_all(&mut input, b"more will come").expect("a pipe");
    output.read_exact(&mut [0; 14]).expect("what there is");
    drop(output);
    recv.wait_for(Duration::from_secs(10)).expect(141);
    send.wait_for(Duration::from_secs(10)).expect(141);
}

#[test]
fn a_signal_after_publishing_takes_nothing_back() {
    let input = noise(100_000);
    for signal in [Signal::TERM, Signal::INT] {
        let scratch = Scratch::new();
        let (source, target) = (scratch.file("source", &input), scratch.join("target"));
        let (mut recv, port) = start_recv::<&str>(&[], Some(&target));
        let proxy = Proxy::start(port, Plan { delay: DELAY, ..Plan::default() });
        let mut send = start_send::<&str>(&[], proxy.port(), Some(&source));
        let until = Instant::now() + PATIENCE;
        while !target.exists() {
            assert!(Instant::now() < until, "{} {}", send.stderr(), recv.stderr());
            std::thread::sleep(Duration::from_millis(1));
        }
        // The answer is on its way to the sender, and BYE can arrive only after twice the delay.
        std::thread::sleep(Duration::from_millis(50));
        recv.signal(signal);
        let ended = recv.wait_for(SOON);
        assert_eq!((ended.expect(0).stderr.lines().count(), send.wait().code), (1, 0), "{}", ended.stderr);
        same(&std::fs::read(&target).expect("published"), &input);
        assert_eq!(scratch.names(), ["source", "target"]);
    }
}
