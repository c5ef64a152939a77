//! `rdcp --check`: a copy compared with its manifest, from the page cache beside `b3sum`, and without
//! the page cache beside fio.

use std::fs;
use std::process::Command;
use std::thread;

use crate::cold;
use crate::harness::*;
use crate::record::Kind;

const FILES: u64 = 4;

const CACHED: &str = "rdcp --check=cached";
const PAST: &str = "rdcp --check";

pub fn rows() -> Result<Vec<Row>> {
    let mut rows = cached()?;
    rows.extend(past()?);
    Ok(rows)
}

fn cached() -> Result<Vec<Row>> {
    const NAME: &str = "check: cached, over b3sum";
    let bytes = size();
    let scratch = Scratch::with_room(2 * bytes + (64 << 20))?;
    let (source, copy, manifest) = (scratch.0.join("source"), scratch.0.join("copy"), scratch.0.join("manifest"));
    fs::create_dir(&source).map_err(text)?;
    for number in 0..FILES {
        fs::rename(scratch.random_file(bytes / FILES)?, source.join(format!("f{number}"))).map_err(text)?;
    }
    let rdcp = || Command::new(bin_directory().join("rdcp"));
    timed(rdcp().args(["-r", "--manifest"]).args([&manifest, &source, &copy]))?;
    let threads = thread::available_parallelism().map_or(1, usize::from).to_string();
    let rate = |command: &mut Command| Ok(bytes as f64 / 1e9 / timed(command)?);
    let all: Vec<_> = (0..FILES).map(|number| copy.join(format!("f{number}"))).collect();
    let b3sum = format!("b3sum --num-threads {threads}");
    let contestants = [
        Contestant::new(Kind::Ours, CACHED, "rdcp --check=cached {manifest} {copy}", || {
            rate(rdcp().arg(CACHED.trim_start_matches("rdcp ")).args([&manifest, &copy]))
        }),
        Contestant::new(Kind::Peer, "b3sum", &format!("{b3sum} {{files}}"), || {
            rate(Command::new("b3sum").args(["--num-threads", &threads]).args(&all))
        }),
    ];
    let title = format!("{FILES} files of {:.2} GiB in all, in memory, against their manifest", gib(bytes));
    judged("check", &title, "GB/s", &contestants, runs(), |found| {
        vec![found.compare(NAME, [CACHED, "b3sum"], |ours, b3sum| Row::ratio(NAME, 0.8, &ours.values, &b3sum.values))]
    })
}

fn past() -> Result<Vec<Row>> {
    const NAME: &str = "check: past the cache, over fio";
    const FIO: &str = "fio, direct, 1 MiB, depth 32";
    let bytes = size();
    let disk = Scratch::within(&bin_directory())?;
    let (directory, manifest) = (disk.0.join("copy"), disk.0.join("manifest"));
    fs::create_dir(&directory).map_err(text)?;
    let file = directory.join("input");
    cold::write(&file, bytes)?;
    // A manifest is made together with a copy, which is not measured.
    let other = disk.0.join("other");
    let rdcp = || Command::new(bin_directory().join("rdcp"));
    timed(rdcp().args(["-r", "--manifest"]).args([&manifest, &directory, &other]))?;
    fs::remove_dir_all(&other).map_err(text)?;
    cold::evict(&file)?;
    let contestants = [
        Contestant::new(Kind::Ours, PAST, "rdcp --check {manifest} {copy}", || {
            cold::evict(&file)?;
            Ok(bytes as f64 / 1e9 / timed(rdcp().arg("--check").args([&manifest, &directory]))?)
        }),
        Contestant::new(Kind::Limit, FIO, cold::FIO, || {
            cold::evict(&file)?;
            cold::fio(&file)
        }),
    ];
    let title = format!("1 file of {:.2} GiB on disk, not cached, against its manifest", gib(bytes));
    judged("check", &title, "GB/s", &contestants, runs(), |found| {
        vec![found.compare(NAME, [PAST, FIO], |ours, fio| Row::ratio(NAME, 0.9, &ours.values, &fio.values))]
    })
}
