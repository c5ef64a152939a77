//! How much of its memory a session keeps after a burst.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::rig::*;

/// More bytes than both buffers and the sockets between them hold.
const BURST_BYTES: usize = 100 << 20;

/// Waits until the process's anonymous memory, in MiB, is right.
#[track_caller]
fn wait_until(process: &Process, what: &str, is_right: impl Fn(u64) -> bool) {
    let start = Instant::now();
    loop {
        let mib = process.status_kib("RssAnon:") >> 10;
        if is_right(mib) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {mib} MiB");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_a_burst_has_needed_goes_back_while_nothing_comes() {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let mut send = start_send::<&str>(&[], port, None);
    let (mut input, mut output) = (send.stdin(), recv.stdout());
    let writer = std::thread::spawn(move || {
        input.write_all(&vec![1; BURST_BYTES]).expect("taken");
        input
    });
    // The output is not read yet.
    wait_until(&send, "the sender's buffer fills", |mib| mib >= 16);
    wait_until(&recv, "the receiver's buffer fills", |mib| mib >= 16);
    std::io::copy(&mut output.by_ref().take(BURST_BYTES as u64), &mut std::io::sink()).expect("all of it");
    let input = writer.join().expect("written");
    wait_until(&send, "the sender keeps its buffer", |mib| mib < 12);
    wait_until(&recv, "the receiver keeps its buffer", |mib| mib < 12);
    drop(input);
    send.wait().expect(0);
    recv.wait().expect(0);
}
