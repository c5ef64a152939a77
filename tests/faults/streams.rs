//! `rdsend` to `rdrecv` through a proxy.

use std::fs;
use std::process::Stdio;

use crate::plan;
use crate::rig::lab::MARK;
use crate::rig::proxy::{Proxy, Way};
use crate::rig::*;
use crate::story::Story;
use crate::sweep::{Runs, sweep};

/// Exit codes with which an end may blame the network: handshake, connection, link, data, control frames.
const REFUSALS: [i32; 6] = [0, 2, 3, 4, 7, 9];

pub fn through_a_bad_network() {
    sweep("streams_through_a_bad_network", &Runs { short: 60, long: 360, at_once: 6 }, one);
}

fn size(story: &mut Story) -> usize {
    let most = story.pick(&[1, 2, 5000, CHUNK, 3 * CHUNK, 8 * CHUNK]) as u64;
    let size = story.random.below(most) as usize;
    // Sizes at the edge of a chunk too.
    if story.random.below(6) == 0 { size - size % CHUNK } else { size }
}

/// Destination of the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Stdout,
    NewFile,
    OldFile,
}

fn one(story: &mut Story) {
    let bytes = size(story);
    let target = story.pick(&[Target::Stdout, Target::NewFile, Target::OldFile]);
    let from_file = story.pick(&[true, false]);
    let encrypt = story.pick(&["always", "never"]);
    let lanes = story.pick(&["1", "2", "3"]);
    let compress = story.pick(&["off", "off", "lz4", "zstd"]);
    let chunk = story.pick(&["1M", "64K", "4K"]);
    let reconnect = story.pick(&["0", "2", "3", "4"]);
    let input = if story.pick(&[true, false]) { noise(bytes) } else { text(bytes) };
    story.tell(format_args!(
        "{bytes} bytes to {target:?}, from a file: {from_file}, --encrypt {encrypt} --lanes {lanes} --compress {compress} \
         --chunk {chunk} --reconnect {reconnect}"
    ));
    let directory = story.lab.join("there");
    fs::create_dir(&directory).expect("a directory");
    let (file, old) = (directory.join("target"), b"what was there before".to_vec());
    if target == Target::OldFile {
        fs::write(&file, &old).expect("ours");
    }
    let log = story.lab.join("log");
    let network = plan::network(&mut story.random, bytes as u64, Way::Up, log.clone());
    story.tell(format_args!("{network:?}"));

    let mark = story.lab.0.path().to_owned();
    let options = ["--encrypt", encrypt, "--lanes", lanes, "--chunk", chunk, "--reconnect", reconnect];
    let mut command = rdrecv();
    command.args(options).args(["--wait", "8", "0", KEY]).env(MARK, &mark);
    if target != Target::Stdout {
        command.arg(&file);
    }
    let mut recv = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(recv.stdout());
    let proxy = Proxy::start(recv.port(), network);
    let mut command = rdsend();
    command.args(options).args(["--compress", compress, "--connect-timeout", "4"]).env(MARK, &mark);
    command.args(["127.0.0.1", &proxy.port().to_string(), KEY]).stdin(Stdio::piped()).stdout(Stdio::null());
    if from_file {
        command.arg(story.lab.0.file("source", &input));
    }
    let mut send = Process::spawn(&mut command);
    let fed = (!from_file).then(|| feed(send.stdin(), input.clone()));
    let sent = story.wait(&mut send);
    let received = story.wait(&mut recv);
    drop(proxy);
    let output = output.join().expect("no panic");
    if let Some(fed) = fed {
        fed.join().expect("no panic");
    }

    story.outcome = format!("{} {}", sent.code, received.code);
    story.tell_damage(&log);
    story.ended("rdsend", &sent, &REFUSALS);
    story.ended("rdrecv", &received, &REFUSALS);
    story.nobody_is_left();
    // A sender that loses the link after its last message does not know the outcome, and says so. The receiver's last
    // answer may be lost with the link, or damaged on every connection.
    let unknown = sent.code == 4 && sent.stderr.contains("the outcome is unknown")
        || sent.code == 7 && ["data from", "failed its checksums"].iter().all(|part| sent.stderr.contains(part));
    story.ensure(sent.code != 0 || received.code == 0, || "the sender knows better than the receiver".to_owned());
    story.ensure(received.code != 0 || sent.code == 0 || unknown, || "all has arrived, says the receiver".to_owned());
    // On a very busy machine the sender may come too late.
    let excused = story.disturbed || sent.code == 3;
    story.ensure(sent.code == 0 || excused, || "it failed though nothing was done to it".to_owned());
    let there = match target {
        Target::Stdout => {
            let prefix = &input[..output.len().min(input.len())];
            story.ensure(output == prefix, || format!("{} bytes came out that were not sent", output.len()));
            Some(output)
        }
        _ => {
            story.ensure(output.is_empty(), || "standard output of a copy to a file".to_owned());
            fs::read(&file).ok()
        }
    };
    if received.code == 0 {
        story.ensure(there == Some(input), || "rdrecv said 0, and not all is there".to_owned());
    } else if target != Target::Stdout {
        let before = (target == Target::OldFile).then_some(old);
        story.ensure(there == before, || "the file is not what it was before a failure".to_owned());
    }
    let names: Vec<_> = fs::read_dir(&directory).expect("ours").flatten().map(|entry| entry.file_name()).collect();
    story.ensure(names.iter().all(|name| name == "target"), || format!("left: {names:?}"));
}
