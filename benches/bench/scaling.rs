//! Gain of more lanes if there are processors for them: streams compared with iperf3 with as
//! many connections, and trees.

use std::thread;

use crate::copy::FILE_BYTES;
use crate::harness::*;
use crate::peers::iperf3;
use crate::site::{Site, judged_of};
use crate::streams::{ours, scene};

/// Both ends are on this machine, so with fewer processors a result for 4 lanes says nothing.
const PROCESSORS_MIN: usize = 8;

const LANES: [&str; 4] = ["1", "2", "4", "8"];

pub fn rows() -> Result<Vec<Row>> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors < PROCESSORS_MIN && !quick() {
        let why = format!("not measured: {processors} processors, where it takes {PROCESSORS_MIN}");
        return Ok(vec![Row::absent("scaling", &why).for_the_record()]);
    }
    let mut rows = streams()?;
    rows.extend(trees()?);
    Ok(rows)
}

fn streams() -> Result<Vec<Row>> {
    let bytes = 4 * size();
    let scratch = Scratch::with_room(bytes + (64 << 20))?;
    let input = scratch.random_file(bytes)?;
    let mut ways = Vec::new();
    for lanes in LANES {
        let options = format!("--lanes {lanes}");
        for (name, encrypt) in [("plain", "never"), ("encrypted", "always")] {
            ways.push(ours(&format!("{name}, lanes {lanes}"), &format!("{options} --encrypt {encrypt}"), &options));
        }
        ways.push(iperf3(lanes));
    }
    let contestants: Vec<Contestant<'_>> = ways.into_iter().map(|way| scene(&input).stream(way, bytes)).collect();
    let title = format!("{:.2} GiB over 1 to 8 TCP connections to /dev/null", gib(bytes));
    judged("scaling", &title, "GB/s", &contestants, runs(), |found| {
        let mut rows = Vec::new();
        for kind in ["plain", "encrypted"] {
            for lanes in &LANES[1..] {
                let name = format!("scaling: {kind}, {lanes} lanes / 1");
                let pair = [format!("{kind}, lanes {lanes}"), format!("{kind}, lanes 1")];
                let row = found.compare(&name, [&pair[0], &pair[1]], |more, one| {
                    Row::ratio(&name, 1.0, &more.values, &one.values)
                });
                rows.push(row.for_the_record());
            }
            for lanes in LANES {
                let name = format!("scaling: {kind}, {lanes} lanes / iperf3 -P {lanes}");
                let pair = [format!("{kind}, lanes {lanes}"), format!("iperf3 -P {lanes}")];
                let row = found.compare(&name, [&pair[0], &pair[1]], |ours, theirs| {
                    Row::ratio(&name, 1.0, &ours.values, &theirs.values)
                });
                rows.push(row.for_the_record());
            }
        }
        rows
    })
}

fn trees() -> Result<Vec<Row>> {
    const LARGE_FILES: u64 = 16;
    let (bytes, files) = (size(), if quick() { 2000 } else { 100_000 });
    let options = LANES.map(|lanes| ["-r", "--encrypt", "always", "--lanes", lanes]);
    let mut rows = Vec::new();
    for (what, count, each) in [("large", LARGE_FILES, bytes / LARGE_FILES), ("small", files, FILE_BYTES)] {
        let site = Site::start(3 * count * each, 3 * count)?;
        let tree = site.tree("tree", count, count / 8, each)?;
        let copies: Vec<_> = LANES
            .iter()
            .zip(&options)
            .map(|(lanes, options)| site.our_copy(&format!("{lanes} lanes"), options, &tree))
            .collect();
        let title = format!("{count} files of {each} bytes by 1 to 8 lanes, to a remote host");
        rows.extend(judged_of("scaling", &title, &copies, &tree, |found| {
            let over_one = |lanes: &&str| {
                let name = format!("scaling: {what} files, {lanes} lanes over 1");
                let row = found.compare(&name, [&format!("{lanes} lanes"), "1 lanes"], |more, one| {
                    Row::faster(&name, 1.0, &more.values, &one.values)
                });
                row.for_the_record()
            };
            LANES[1..].iter().map(over_one).collect()
        })?);
    }
    Ok(rows)
}
