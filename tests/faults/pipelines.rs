//! `rdpipe` through proxies, and while its processes and its stages' commands are killed, stopped and interrupted.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use crate::copies::{REFUSALS, command, disturb};
use crate::kills::{RECONNECT, Victim, code_of_command, codes, outcome, strike};
use crate::rig::*;
use crate::story::Story;
use crate::sweep::{Runs, sweep};

/// Number of bytes that flow. If they take longer than the delay of a signal, the signal hits all processes at work.
const BYTES: usize = 3 * CHUNK;

/// Stages, with `IN` for the file with the data and `OUT` for a file that receives it. The output at
/// the end is the same data.
const PIPELINES: &[&[&str]] = &[
    &["h1:cat IN", "h2:cat"],
    &["cat IN", "h1:cat", "h2:cat", "cat"],
    &["h1:< IN", "h2:sh -c 'cat'", "cat"],
    &["h1:cat", "h2:tee OUT", "h1:cat"],
    &["h1:< IN", "h2:> OUT"],
    &["h1:cat IN", "h2:cat >OUT"],
    &["cat", "h1:tee OUT", "cat"],
];

pub fn through_a_bad_network() {
    let (_scratch, input) = input();
    let runs = Runs { short: 24, long: 120, at_once: 5 };
    sweep("pipelines_through_a_bad_network", &runs, |story| {
        let pipeline = Pipeline::choose(story, &input);
        pipeline.through_a_bad_network(story);
        pipeline.again(story);
    });
}

pub fn signals_to_any_process() {
    let (_scratch, input) = input();
    let runs = Runs { short: 32, long: 160, at_once: 5 };
    sweep("pipelines_with_signals_to_any_process", &runs, |story| {
        let pipeline = Pipeline::choose(story, &input);
        pipeline.with_a_signal(story);
        pipeline.again(story);
    });
}

fn input() -> (Scratch, String) {
    let scratch = Scratch::new();
    let path = scratch.file("in", &noise(BYTES));
    (scratch, path.into_os_string().into_string().expect("UTF-8"))
}

struct Pipeline {
    stages: Vec<String>,
    /// The file to which the pipeline may write.
    out: PathBuf,
    bytes: Vec<u8>,
}

/// A running pipeline.
struct Running {
    process: Process,
    fed: JoinHandle<()>,
    output: JoinHandle<Vec<u8>>,
}

impl Pipeline {
    fn choose(story: &mut Story, input: &str) -> Self {
        let out = story.lab.join("out");
        let fill = |stage: &&str| stage.replace("IN", input).replace("OUT", out.to_str().expect("UTF-8"));
        let stages = story.pick(PIPELINES).iter().map(fill).collect();
        Self { stages, out, bytes: noise(BYTES) }
    }

    fn options(&self, story: &mut Story) -> [&'static str; 6] {
        let (encrypt, rate) = (story.pick(&["always", "never"]), story.pick(&["2M", "4M", "200M"]));
        ["--encrypt", encrypt, "--reconnect", RECONNECT, "--bwlimit", rate]
    }

    fn start(&self, story: &mut Story, mut pipeline: Command, options: &[&str]) -> Running {
        let _ = fs::remove_file(&self.out);
        pipeline.args(options).args(&self.stages).stdin(Stdio::piped());
        story.tell(format_args!("rdpipe {options:?} {:?}", self.stages));
        let mut process = Process::spawn(&mut pipeline);
        let fed = feed(process.stdin(), self.bytes.clone());
        let output = drain(process.stdout());
        Running { process, fed, output }
    }

    /// Waits for the pipeline to end. Its output and the file must be right, and complete if the exit code is 0.
    fn judge(&self, story: &mut Story, mut running: Running, codes: &[i32]) -> i32 {
        let ended = story.wait(&mut running.process);
        // Processes left by a killed caller may hold its output open.
        story.nobody_is_left();
        let output = running.output.join().expect("no panic");
        running.fed.join().expect("no panic");
        story.ended("rdpipe", &ended, codes);
        let written = fs::read(&self.out).ok();
        story.ensure(self.bytes.starts_with(&output), || format!("{} bytes that were never put in", output.len()));
        if let Some(written) = &written {
            // A redirection is written at offsets, so a missing chunk leaves a hole in the file.
            let is_ours = written.iter().zip(&self.bytes).all(|(there, byte)| there == byte || *there == 0);
            story.ensure(is_ours && written.len() <= BYTES, || "the file has what was never put in".to_owned());
        }
        let has = |part: &str| self.stages.iter().any(|stage| stage.contains(part));
        let goes_to_file = has("tee ") || has("> ") || has(">/");
        let comes_out = has("tee ") || !goes_to_file;
        if ended.code == 0 {
            let out = output.len();
            story.ensure(!comes_out || out == BYTES, || format!("exit 0, and {out} bytes came out"));
            let is_whole = written.as_deref() == Some(&self.bytes[..]);
            story.ensure(!goes_to_file || is_whole, || "exit 0, and the file is not what was put in".to_owned());
        }
        ended.code
    }

    fn through_a_bad_network(&self, story: &mut Story) {
        let mut pipeline = command(story, rdpipe());
        let log = disturb(story, &mut pipeline, BYTES as u64);
        let options = self.options(story);
        let running = self.start(story, pipeline, &options);
        let code = self.judge(story, running, &REFUSALS);
        story.tell_damage(&log);
        story.outcome = format!("rdpipe {code}");
    }

    fn with_a_signal(&self, story: &mut Story) {
        let (options, pipeline) = (self.options(story), command(story, rdpipe()));
        let mut running = self.start(story, pipeline, &options);
        let wanted = [Victim::Caller, Victim::Launcher, Victim::Agent, Victim::Guard, Victim::Command, Victim::Command];
        let within = story.pick(&[30, 150, 600, 1500]);
        let hit = strike(story, &mut running.process, &wanted, within);
        let mut allowed = codes(hit);
        match hit {
            Some((Victim::Command, blow)) => allowed = vec![0, code_of_command(blow)],
            // A guard's copy that is about to become the command.
            Some((Victim::Guard, blow)) => allowed.push(code_of_command(blow)),
            _ => {}
        }
        let code = self.judge(story, running, &allowed);
        story.outcome = outcome(hit, code);
    }

    /// Checks that the next pipeline is not kept from doing everything.
    fn again(&self, story: &mut Story) {
        story.tell("again, undisturbed:");
        let pipeline = command(story, rdpipe());
        let running = self.start(story, pipeline, &[]);
        self.judge(story, running, &[0]);
    }
}
