//! Cost against size: the time of a stream of 1 KiB, of 16 GiB, and of sizes in between; and whether any cost
//! grows faster than the data.

use std::fs::OpenOptions;

use crate::harness::*;
use crate::peers::{STREAMS, Way};
use crate::record::{self, Contest, Entry};
use crate::streams::{ours, scene};

/// Sizes, each at least four times the one before.
const SIZES: [u64; 10] =
    [1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20, 128 << 20, 512 << 20, 2 * GIB, 4 * GIB, 16 * GIB];

/// From this size on the start is small beside the rest, so that the remaining cost is per byte.
const LARGE: u64 = 32 << 20;

/// A size with a target, and the factor for its number of rounds.
const SHORT: u64 = 32 << 20;
const SHORT_TIMES: usize = 3;

/// From this size on a stream takes enough processor time for a clock of 10 ms to measure it well.
const COUNTED: u64 = 512 << 20;

/// The largest file that is also written: source and copy are both in memory.
const COPIED_MAX: u64 = 4 * GIB;

/// For twice the data, the cost may grow at most by two to the power of this.
const SLOPE_MAX: f64 = 1.05;

/// Number of rounds of long measurements.
const ROUNDS_FEW: usize = 3;

const PLAIN: &str = "rdsend plain, to /dev/null";
const ENCRYPTED: &str = "rdsend encrypted, to /dev/null";
const FILE: &str = "rdsend plain, to a file";

pub fn rows() -> Result<Vec<Row>> {
    // Up to four times the size of streams, if memory holds the source and the copy.
    let mut largest = (4 * size()).min(SIZES[SIZES.len() - 1]);
    while Scratch::with_room(largest + largest.min(COPIED_MAX) + GIB / 4).is_err() && largest > LARGE {
        largest /= 4;
    }
    let scratch = Scratch::with_room(largest + largest.min(COPIED_MAX) + GIB / 4)?;
    let input = scratch.random_file(largest)?;
    let scene = scene(&input).out(&scratch.0.join("out"));
    println!("\n1 KiB to {:.2} GiB of memory through TCP over loopback; 1 + {} rounds", gib(largest), runs());
    let mut all = Contest {
        row: "sizes".into(),
        place: "here".into(),
        title: "Time against size, through TCP over loopback".into(),
        unit: "s".into(),
        across: Some("bytes".into()),
        busy: busy(),
        entries: Vec::new(),
        absent: Vec::new(),
    };
    // From the largest size down, by shortening a single file.
    for bytes in SIZES.into_iter().rev().filter(|bytes| *bytes <= largest) {
        OpenOptions::new().write(true).open(&input).and_then(|file| file.set_len(bytes)).map_err(text)?;
        let mut ways = vec![ours(PLAIN, "--encrypt never", ""), ours(ENCRYPTED, "--encrypt always", "")];
        if bytes <= COPIED_MAX {
            ways.push(Way {
                receiver: "rdrecv --transport tcp {port} {secret} {out}".into(),
                ..ours(FILE, "--encrypt never", "")
            });
        }
        ways.extend(STREAMS.iter().map(Way::peer).filter(|way| way.name == "socat"));
        let contestants: Vec<Contestant<'_>> = ways.into_iter().map(|way| scene.stream(way, bytes)).collect();
        let rounds = match bytes {
            _ if bytes > GIB => runs().min(ROUNDS_FEW),
            // Short, and has a target.
            SHORT => runs() * SHORT_TIMES,
            _ => runs(),
        };
        let (entries, absent) = turns(&contestants, rounds)?;
        println!("  {bytes} bytes");
        for mut entry in entries {
            entry.at = Some(bytes as f64);
            entry.values.iter_mut().for_each(|rate| *rate = bytes as f64 / 1e9 / *rate);
            entry.print("s");
            all.entries.push(entry);
        }
        all.absent.extend(absent.into_iter().map(|(name, why)| (name, format!("at {bytes} bytes: {why}"))));
    }
    record::add(&all);
    let mut rows = vec![short(&all)];
    for name in [PLAIN, ENCRYPTED, FILE] {
        let of: Vec<&Entry> = all.entries.iter().filter(|entry| entry.name == name).collect();
        let time = |entry: &Entry| entry.values.clone();
        let processors = |entry: &Entry| {
            entry.cpu_of_both().into_iter().map(|per_gb| per_gb * entry.at.unwrap_or(0.0) / 1e9).collect()
        };
        rows.push(slope(&format!("sizes: time, {name}"), &of, LARGE as f64, time));
        rows.push(slope(&format!("sizes: processors, {name}"), &of, COUNTED as f64, processors));
        rows.push(line(&format!("sizes: time of {name}"), &of));
    }
    Ok(rows)
}

/// Judges a stream that ends before it has reached its full speed.
fn short(all: &Contest) -> Row {
    const TARGET: f64 = 1.2;
    let name = "sizes: 32 MiB, plain / socat";
    let values = |of: &str| {
        let found = all.entries.iter().find(|entry| entry.name == of && entry.at == Some(SHORT as f64));
        found.map(|entry| entry.values.as_slice())
    };
    match (values(PLAIN), values("socat")) {
        (Some(ours), Some(socat)) => Row::at_most(name, TARGET, ours, socat),
        _ => all.missing(name, "socat"),
    }
}

/// Judges the power of the size by which the cost grows, from a certain size on: 1 is linear.
pub fn slope(row: &str, entries: &[&Entry], from: f64, cost: impl Fn(&Entry) -> Vec<f64>) -> Row {
    let large: Vec<(f64, Vec<f64>)> =
        entries.iter().filter_map(|entry| entry.at.filter(|at| *at >= from).map(|at| (at, cost(entry)))).collect();
    let rounds = large.iter().map(|(_, costs)| costs.len()).min().unwrap_or(0);
    let of_round = |round: usize| -> f64 {
        let points: Vec<(f64, f64, f64)> =
            large.iter().map(|(at, costs)| (at.ln(), costs[round].max(f64::MIN_POSITIVE).ln(), 1.0)).collect();
        fit(&points).1
    };
    if large.len() < 3 || rounds == 0 {
        return Row::absent(row, "too few sizes");
    }
    Row::limit(row, SLOPE_MAX, "as power of the size", &(0..rounds).map(of_round).collect::<Vec<f64>>())
}

/// Returns what a stream costs before its first byte, and what each GB costs after that.
fn line(row: &str, entries: &[&Entry]) -> Row {
    let points: Vec<(f64, f64, f64)> = entries
        .iter()
        .filter_map(|entry| {
            let median = Spread::of(&entry.values).median;
            // The relative deviation counts: a millisecond is much at 1 KiB and nothing at 1 GiB.
            entry.at.map(|at| (at / 1e9, median, 1.0 / (median * median)))
        })
        .collect();
    if points.len() < 2 {
        return Row::absent(row, "too few sizes").for_the_record();
    }
    let (start, per_gb) = fit(&points);
    let measured = format!("{:.1} ms + {per_gb:.3} s/GB", start * 1e3);
    Row { name: row.into(), target: String::new(), measured, verdict: String::new() }.for_the_record()
}

/// Fits a straight line by least squares through weighted points. Returns its start and its slope.
fn fit(points: &[(f64, f64, f64)]) -> (f64, f64) {
    let weight: f64 = points.iter().map(|(_, _, weight)| weight).sum();
    let mean =
        |value: fn(&(f64, f64, f64)) -> f64| points.iter().map(|point| point.2 * value(point)).sum::<f64>() / weight;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let over: f64 = points.iter().map(|(at, value, weight)| weight * (at - x) * (value - y)).sum();
    let under: f64 = points.iter().map(|(at, _, weight)| weight * (at - x) * (at - x)).sum();
    let slope = over / under;
    (y - slope * x, slope)
}
