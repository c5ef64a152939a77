//! A file that is on the disk and not in the page cache: `rdsend` compared with fio's direct reads with a deep queue.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Advice, fadvise};

use crate::harness::*;
use crate::record::Kind;
use crate::streams::{self, pipe};

pub const FIO: &str = "fio --name=cold --rw=read --direct=1 --bs=1M --iodepth=32 --ioengine=libaio --filename={file}";

pub fn rows() -> Result<Vec<Row>> {
    const NAME: &str = "cold: a file on disk against fio";
    let bytes = size();
    let disk = Scratch::within(&bin_directory())?;
    let input = disk.0.join("input");
    write(&input, bytes)?;
    // Otherwise, writing the file back would be taken for other processes' work.
    evict(&input)?;
    let ours = || {
        evict(&input)?;
        let run = pipe(&["--encrypt", "never"], &input)?;
        let seconds = run.reported("seconds").ok_or("rdsend reported no time")?;
        let direct = run.reported("read_direct_bytes").unwrap_or_default();
        let is_direct = direct == bytes as f64 && cached(&input)? == 0;
        is_direct.then_some(bytes as f64 / seconds / 1e9).ok_or("it was not all read past the page cache".into())
    };
    let theirs = || {
        evict(&input)?;
        fio(&input)
    };
    let contestants = [
        Contestant::new(Kind::Ours, "rdsend FILE, plain", &streams::ours("", "--encrypt never", "").command(), ours),
        Contestant::new(Kind::Limit, "fio, direct, 1 MiB, depth 32", FIO, theirs),
    ];
    let title = format!("{:.2} GiB on disk, not cached, through TCP over loopback to /dev/null", gib(bytes));
    judged("cold", &title, "GB/s", &contestants, runs(), |found| {
        vec![found.compare(NAME, ["rdsend FILE, plain", "fio, direct, 1 MiB, depth 32"], |ours, fio| {
            Row::ratio(NAME, 0.95, &ours.values, &fio.values)
        })]
    })
}

/// Writes a file of real blocks, because a hole would be read without the disk.
pub fn write(path: &Path, bytes: u64) -> Result<()> {
    let scratch = Scratch::with_room(64 << 20)?;
    let block = std::fs::read(scratch.random_file(32 << 20)?).map_err(text)?;
    let mut file = File::create(path).map_err(text)?;
    for _ in 0..bytes.div_ceil(block.len() as u64) {
        std::io::Write::write_all(&mut file, &block).map_err(text)?;
    }
    file.set_len(bytes).map_err(text)
}

pub fn evict(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(text)?;
    file.sync_all().map_err(text)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| error.to_string())?;
    match cached(path)? {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes stay in the page cache")),
    }
}

fn cached(path: &Path) -> Result<u64> {
    let output = Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path).output().map_err(text)?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| "fincore gave no number".to_owned())
}

/// Returns fio's rate by its own clock, which leaves out the start, as `seconds` of rdsend does.
pub fn fio(path: &Path) -> Result<f64> {
    let mut fio = Command::new("fio");
    fio.args(["--name=cold", "--rw=read", "--direct=1", "--bs=1M", "--iodepth=32", "--ioengine=libaio", "--minimal"]);
    fio.arg(format!("--filename={}", path.display()));
    let output = fio.output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // Field 7 of terse version 3: KiB per second.
    let rate = said.split(';').nth(6).and_then(|rate| rate.parse::<f64>().ok());
    rate.map(|kib| kib * 1024.0 / 1e9).ok_or_else(|| format!("fio: {said}{}", String::from_utf8_lossy(&output.stderr)))
}
