//! Instructions for each GB, of each end, without those of the kernel.
//!
//! `perf stat` counts them if the processor allows it, which many virtual machines do not. Otherwise callgrind counts
//! them. It emulates a processor, so it is slow and is given little data. It lacks some instructions (wide AES), so
//! that programs choose others. The start is left out by taking the difference between two sizes.

use std::path::Path;
use std::process::Command;

use crate::harness::*;
use crate::peers::{STREAMS, Scene, Way};
use crate::record::{self, Contest, Entry};
use crate::streams::{ours, scene};

struct Counter {
    name: &'static str,
    /// Prefix of a command, with `{counts}` as the file for the counts.
    before: &'static str,
    /// Reads the count from that file.
    read: fn(&str) -> Option<f64>,
    sizes: [u64; 2],
}

const PERF: Counter = Counter {
    name: "perf stat",
    before: "perf stat -x, -e instructions:u -o {counts} -- ",
    read: by_perf,
    sizes: [64 << 20, 1088 << 20],
};

const CALLGRIND: Counter = Counter {
    name: "callgrind",
    before: "valgrind -q --tool=callgrind --callgrind-out-file={counts} ",
    read: by_callgrind,
    sizes: [16 << 20, 80 << 20],
};

pub fn rows() -> Result<Vec<Row>> {
    let scratch = Scratch::with_room(2 * PERF.sizes[1])?;
    let counter = [PERF, CALLGRIND].into_iter().find(|counter| counter.works(&scratch.0));
    let Some(counter) = counter else {
        let why = "neither perf stat nor callgrind counts instructions here";
        return Ok(vec![Row::absent("instructions", why).for_the_record()]);
    };
    println!("\ninstructions for each byte, counted by {}, without the kernel's", counter.name);
    if counter.name != PERF.name {
        println!("perf stat cannot count instructions here");
    }
    let mut found = Contest {
        row: "instructions".into(),
        place: "here".into(),
        title: format!("Instructions for each byte of a stream, by {}", counter.name),
        unit: "instructions/byte".into(),
        across: None,
        busy: 0.0, // does not matter to a count
        entries: Vec::new(),
        absent: Vec::new(),
    };
    let mut ways = vec![ours("rdsend plain", "--encrypt never", ""), ours("rdsend encrypted", "--encrypt always", "")];
    ways.extend(STREAMS.iter().map(Way::peer).filter(|way| way.name == "socat"));
    for way in ways {
        for (end, counted) in ["receiver", "sender"].into_iter().zip(counter.count(&way, &scratch)?) {
            let name = format!("{}, {end}", way.name);
            println!("    {name:<42} {counted:.3}");
            let (kind, command) = (way.kind, way.command());
            found.entries.push(Entry { name, kind, command, at: None, values: vec![counted], cpu: Vec::new() });
        }
    }
    record::add(&found);
    let both = |name: &str| -> f64 {
        found.entries.iter().filter(|entry| entry.name.starts_with(name)).map(|entry| entry.values[0]).sum()
    };
    let row = |ours: &str| {
        let measured = format!("{:.3} for each byte; socat {:.3}", both(ours), both("socat"));
        let name = format!("instructions: {ours}, both ends");
        Row { name, target: String::new(), measured, verdict: String::new() }.for_the_record()
    };
    Ok(vec![row("rdsend plain"), row("rdsend encrypted")])
}

impl Counter {
    fn works(&self, directory: &Path) -> bool {
        let counts = directory.join("counts");
        let line = self.before.replace("{counts}", &counts.display().to_string()) + "true";
        let ran = Command::new("sh").args(["-c", &line]).output().is_ok_and(|output| output.status.success());
        ran && std::fs::read_to_string(counts).ok().and_then(|text| (self.read)(&text)).is_some_and(|count| count > 0.0)
    }

    /// Returns the instructions for each byte, of the receiver and the sender.
    fn count(&self, way: &Way, scratch: &Scratch) -> Result<[f64; 2]> {
        let mut counts = [[0.0; 2]; 2];
        for (bytes, counts) in self.sizes.into_iter().zip(&mut counts) {
            let scene: Scene = scene(&scratch.random_file(bytes)?);
            let files = ["receiver", "sender"].map(|end| scratch.0.join(end));
            let counted =
                |command: &str, file: &Path| self.before.replace("{counts}", &file.display().to_string()) + command;
            let (receiver, sender) = (counted(&way.receiver, &files[0]), counted(&way.sender, &files[1]));
            scene.run(&Way { receiver, sender, ..way.clone() }, bytes)?;
            for (file, count) in files.iter().zip(counts) {
                let text = std::fs::read_to_string(file).map_err(text)?;
                *count = (self.read)(&text).ok_or(format!("{}: no count for {}", self.name, way.name))?;
            }
        }
        let bytes = (self.sizes[1] - self.sizes[0]) as f64;
        Ok([0, 1].map(|end| (counts[1][end] - counts[0][end]) / bytes))
    }
}

fn by_perf(text: &str) -> Option<f64> {
    text.lines().find(|line| line.contains("instructions"))?.split(',').next()?.parse().ok()
}

fn by_callgrind(text: &str) -> Option<f64> {
    // If there are several threads, one line has the sum of all.
    text.lines()
        .find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}
