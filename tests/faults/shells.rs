//! `rdsh` through proxies, and while its processes and its command are killed, stopped and interrupted.

use std::process::Stdio;

use crate::copies::{command, disturb};
use crate::kills::{RECONNECT, Victim, code_of_command, codes, outcome, strike};
use crate::rig::*;
use crate::story::Story;
use crate::sweep::{Runs, sweep};

/// Number of bytes that flow: at the lowest rate, for three seconds.
const BYTES: usize = 3 * CHUNK;

/// Exit code of ssh, and so of rdsh, unless it is the command's own.
const FAILED: i32 = 255;

pub fn through_a_bad_network() {
    sweep("commands_through_a_bad_network", &Runs { short: 24, long: 120, at_once: 5 }, |story| one(story, true));
}

pub fn signals_to_any_process() {
    sweep("commands_with_signals_to_any_process", &Runs { short: 32, long: 160, at_once: 5 }, |story| {
        one(story, false)
    });
}

fn one(story: &mut Story, is_by_network: bool) {
    let bytes = noise(BYTES);
    let reads_input = story.pick(&[true, false]);
    let (encrypt, rate) = (story.pick(&["always", "never"]), story.pick(&["1M", "4M", "200M"]));
    let options = ["--encrypt", encrypt, "--reconnect", RECONNECT, "--bwlimit", rate];
    let run = match reads_input {
        true => "cat".to_owned(),
        false => format!("cat {}", story.lab.0.file("in", &bytes).display()),
    };
    let mut shell = command(story, rdsh());
    let log = is_by_network.then(|| disturb(story, &mut shell, BYTES as u64));
    shell.args(options).args(["h1", &run]).stdin(Stdio::piped());
    story.tell(format_args!("rdsh {options:?} h1 {run:?}"));
    let mut process = Process::spawn(&mut shell);
    let fed = feed(process.stdin(), if reads_input { bytes.clone() } else { Vec::new() });
    let output = drain(process.stdout());
    let hit = if is_by_network {
        None
    } else {
        let wanted = [Victim::Caller, Victim::Launcher, Victim::Agent, Victim::Agent, Victim::Guard, Victim::Command];
        let within = story.pick(&[30, 150, 600, 1500]);
        strike(story, &mut process, &wanted, within)
    };
    let ended = story.wait(&mut process);
    story.nobody_is_left();
    let output = output.join().expect("no panic");
    fed.join().expect("no panic");
    let mut allowed = match hit {
        Some((Victim::Caller, _)) | None => codes(hit),
        // The guard may be a copy that is about to become the command.
        Some((Victim::Command | Victim::Guard, blow)) => vec![0, code_of_command(blow)],
        Some(_) => vec![0],
    };
    allowed.push(FAILED);
    story.ended("rdsh", &ended, &allowed);
    story.ensure(bytes.starts_with(&output), || format!("{} bytes that were never put in", output.len()));
    let is_all = output.len() == BYTES;
    story.ensure(ended.code != 0 || is_all, || format!("exit 0, and {} bytes came out", output.len()));
    story.outcome = outcome(hit, ended.code);
    if let Some(log) = log {
        story.tell_damage(&log);
    }
}
