//! `rdcp --sync` beside rsync: what is there already is not sent. A script stands in ssh's place for both, so that the
//! time of a login is in neither.
//!
//! All contestants bring one destination up to date. Before each turn it is made old again, always in the same way.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::copy::{FILE_BYTES, FILES, Measure, on_the_wire};
use crate::harness::*;
use crate::place::Image;
use crate::record::Kind;
use crate::site::{Site, WatchedAgent, identical, remote};

pub const ROWS: [(&str, Measure); 7] = [
    ("sync-small", small),
    ("sync-delta", delta),
    ("sync-reflink", reflinked),
    ("sync-touched", touched),
    ("sync-appended", appended),
    ("sync-million", million),
    ("sync-renamed", renamed),
];

const OURS: &str = "rdcp --sync";
const THEIRS: &str = "rsync";

/// What a changed file is changed in, and how much of it.
const PIECE_BYTES: u64 = 64 << 10;
const CHANGED_IN: u64 = 100;

/// A source, its copy, and what stands in ssh's place.
struct Pair {
    launcher: PathBuf,
    from: PathBuf,
    to: PathBuf,
    /// More options of rdcp, and of rsync.
    more: [&'static [&'static str]; 2],
}

impl Pair {
    /// With the copy made.
    fn new(site: &Site, from: PathBuf) -> Result<Self> {
        Self::at(site, from, site.fresh()?)
    }

    fn at(site: &Site, from: PathBuf, to: PathBuf) -> Result<Self> {
        let launcher = site.script("launcher", "shift\nexec sh -c \"$*\"")?;
        let pair = Pair { launcher, from, to, more: [&[], &[]] };
        timed(Command::new("cp").arg("-a").args([&pair.from, &pair.to]))?;
        Ok(pair)
    }

    fn is_tree(&self) -> bool {
        self.from.is_dir()
    }

    /// `SRC/` of a tree: both programs take it for what is in it.
    fn source(&self) -> String {
        format!("{}{}", self.from.display(), if self.is_tree() { "/" } else { "" })
    }

    fn ours(&self, agent: Option<&WatchedAgent>) -> Command {
        let options = if self.is_tree() { &["--sync", "-r"][..] } else { &["--sync"] };
        let program = agent.map_or_else(crate::site::agent, |agent| agent.script.clone());
        let mut command = Command::new(bin_directory().join("rdcp"));
        command.arg("--agent").arg(program).args(options).args(self.more[0]);
        command.arg("--rsh").arg(&self.launcher).arg(self.source()).arg(remote(&self.to));
        command
    }

    fn theirs(&self) -> Command {
        let mut command = Command::new("rsync");
        let options = if self.is_tree() { &["-a"][..] } else { &["-a", "--no-whole-file"] };
        command.args(options).args(self.more[1]).arg("-e").arg(&self.launcher).arg(self.source()).arg(remote(&self.to));
        command
    }

    /// Both in turns. Each leaves the destination equal to the source, which is compared once: of a copy that was aged.
    fn contest(&self, row: &str, title: &str, rounds: usize, age: &dyn Fn() -> Result<()>) -> Result<Found> {
        let (wire, seen) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let turn = |name: &'static str, command: Command| -> Result<f64> {
            let mut command = command;
            age()?;
            let before = on_the_wire()?;
            let seconds = timed(&mut command)?;
            if name == OURS {
                wire.borrow_mut().push((on_the_wire()? - before) as f64);
            }
            if !seen.borrow().contains(&name) {
                identical(&self.from, &self.to)?;
                seen.borrow_mut().push(name);
            }
            Ok(seconds)
        };
        let options = if self.is_tree() { ["-r ", "-a"] } else { ["", "-a --no-whole-file"] };
        let [ours, theirs] = options;
        let [ours_more, theirs_more] =
            self.more.map(|more| more.iter().map(|option| format!("{option} ")).collect::<String>());
        let contestants = [
            Contestant::new(
                Kind::Ours,
                OURS,
                &format!("rdcp --sync {ours_more}{ours}{{from}} {{host}}:{{to}}"),
                || turn(OURS, self.ours(None)),
            ),
            Contestant::new(
                Kind::Peer,
                THEIRS,
                &format!("rsync {theirs_more}{theirs} {{from}} {{host}}:{{to}}"),
                || turn(THEIRS, self.theirs()),
            ),
        ];
        let found = contest(row, title, "s", &contestants, rounds)?;
        drop(contestants);
        // The first round does not count.
        Ok(Found { contest: found, wire: wire.into_inner().split_off(1) })
    }
}

struct Found {
    contest: crate::record::Contest,
    /// What rdcp's runs have sent over the loopback interface, in both directions.
    wire: Vec<f64>,
}

impl Found {
    fn at_most(&self, name: &str, target: f64) -> Row {
        self.contest
            .compare(name, [OURS, THEIRS], |ours, rsync| Row::at_most(name, target, &ours.values, &rsync.values))
    }

    fn faster(&self, name: &str, target: f64) -> Row {
        self.contest.compare(name, [OURS, THEIRS], |ours, rsync| Row::faster(name, target, &ours.values, &rsync.values))
    }

    /// What went over the wire, in parts of what the file has.
    fn sent(&self, name: &str, limit: f64, of: u64) -> Row {
        let percent: Vec<f64> = self.wire.iter().map(|bytes| bytes * 100.0 / of as f64).collect();
        Row::limit(name, limit, "%", &percent)
    }
}

fn small() -> Result<Vec<Row>> {
    let files = if quick() { FILES / 10 } else { FILES };
    let site = Site::start(4 * files * FILE_BYTES, 4 * files)?;
    let pair = Pair::new(&site, site.tree("tree", files, files / 200, FILE_BYTES)?)?;
    let title = format!("{files} files of {FILE_BYTES} bytes, unchanged");
    let found = pair.contest("sync-small", &title, runs(), &|| Ok(()))?;
    Ok(vec![found.at_most("sync-small: rdcp --sync / rsync -a", 0.8)])
}

fn renamed() -> Result<Vec<Row>> {
    const MIB_MAX: f64 = 1.0;
    let files = if quick() { FILES / 10 } else { 10_000 };
    let site = Site::start(4 * files * FILE_BYTES, 4 * files)?;
    let mut pair = Pair::new(&site, site.tree("tree", files, files / 100, FILE_BYTES)?)?;
    pair.more = [&["--find-moves", "--delete"], &["--delete"]];
    let age = || {
        for entry in std::fs::read_dir(&pair.to).map_err(text)? {
            let path = entry.map_err(text)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            std::fs::rename(&path, path.with_file_name(format!("old-{name}"))).map_err(text)?;
        }
        Ok(())
    };
    let title = format!("{files} files of {FILE_BYTES} bytes, every top directory renamed");
    let found = pair.contest("sync-renamed", &title, runs(), &age)?;
    let mib: Vec<f64> = found.wire.iter().map(|bytes| bytes / f64::from(1 << 20)).collect();
    Ok(vec![
        found.at_most("sync-renamed: rdcp --sync / rsync -a", 1.0),
        Row::limit("sync-renamed: on the wire", MIB_MAX, "MiB", &mib),
    ])
}

fn million() -> Result<Vec<Row>> {
    const FILES: u64 = 1_000_000;
    const ROUNDS: usize = 3;
    const MIB_MAX: f64 = 128.0;
    let site = Site::start(1 << 30, 2 * FILES + 5000)?;
    let pair = Pair::new(&site, site.tree("tree", FILES, 1000, 0)?)?;
    let found = pair.contest("sync-million", "1 000 000 empty files, unchanged", ROUNDS, &|| Ok(()))?;
    let agent = site.watched_agent()?;
    let caller = Running::start(&mut pair.ours(Some(&agent)))?;
    let (memory, of_agent) = (Memory::watch(&[caller.id]), Memory::watch(&[agent.id()?]));
    caller.success()?;
    let ([caller], [agent]) = (memory.highest(), of_agent.highest());
    if caller < 1.0 || agent < 1.0 {
        return Err("the memory of an end was not seen".to_owned());
    }
    let mut rows = vec![found.at_most("sync-million: rdcp --sync / rsync -a", 0.6)];
    rows.extend([("caller", caller), ("agent", agent)].map(|(end, mib)| Row {
        name: format!("sync-million: {end}"),
        target: format!("< {MIB_MAX} MiB"),
        measured: format!("{mib:.1} MiB"),
        verdict: fact(mib < MIB_MAX),
    }));
    Ok(rows)
}

/// A file and its copy, which is aged by `age`, given the copy and the number of the turn.
fn of_a_file(row: &str, what: &str, age: impl Fn(&File, u64) -> Result<()>) -> Result<(Found, u64)> {
    let bytes = size();
    // A new file may be made beside the old.
    let site = Site::start(3 * bytes, 0)?;
    let pair = Pair::new(&site, site.scratch.random_file(bytes)?)?;
    Ok((of_a_pair(&pair, row, what, age)?, bytes))
}

fn of_a_pair(pair: &Pair, row: &str, what: &str, age: impl Fn(&File, u64) -> Result<()>) -> Result<Found> {
    let turns = RefCell::new(0_u64);
    let make_old = || {
        let copy = OpenOptions::new().write(true).open(&pair.to).map_err(text)?;
        *turns.borrow_mut() += 1;
        age(&copy, *turns.borrow())?;
        copy.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).map_err(text)
    };
    let title = format!("1 file of {:.2} GiB, {what}", gib(size()));
    pair.contest(row, &title, runs(), &make_old)
}

/// Another one of every hundred pieces in each turn, one in each of as many equal parts.
fn change_pieces(copy: &File, turn: u64) -> Result<()> {
    let (pieces, count) = (size() / PIECE_BYTES, size() / PIECE_BYTES / CHANGED_IN);
    for part in 0..count {
        let at = part * (pieces / count) + (turn * 37 + part * 11) % (pieces / count);
        copy.write_all_at(&turn.to_le_bytes().repeat(PIECE_BYTES as usize / 8), at * PIECE_BYTES).map_err(text)?;
    }
    Ok(())
}

fn delta() -> Result<Vec<Row>> {
    let (found, bytes) = of_a_file("sync-delta", "1 % of it changed in pieces of 64 KiB", change_pieces)?;
    Ok(vec![
        found.faster("sync-delta: over rsync --no-whole-file", 4.0),
        found.sent("sync-delta: on the wire", 1.5, bytes),
    ])
}

/// As `delta`, where the new file can share the old one's blocks; rsync's is written anew there as well.
fn reflinked() -> Result<Vec<Row>> {
    let bytes = size();
    // Beside the source, the old copy and a new one, and as much again for what the file system holds in memory.
    let site = Site::start(4 * bytes, 0)?;
    let image = Image::within(&site.scratch, 3 * bytes + (1 << 30))?;
    let pair = Pair::at(&site, site.scratch.random_file(bytes)?, image.path.join("copy"))?;
    let what = "1 % of it changed in pieces of 64 KiB, on XFS";
    let found = of_a_pair(&pair, "sync-reflink", what, change_pieces)?;
    Ok(vec![found.faster("sync-reflink: over rsync --no-whole-file", 4.0)])
}

fn touched() -> Result<Vec<Row>> {
    let (found, bytes) = of_a_file("sync-touched", "only its time changed", |_, _| Ok(()))?;
    Ok(vec![
        found.faster("sync-touched: over rsync --no-whole-file", 3.0),
        found.sent("sync-touched: on the wire", 0.1, bytes),
    ])
}

fn appended() -> Result<Vec<Row>> {
    let bytes = size();
    let (found, bytes) =
        of_a_file("sync-appended", "a fifth of it appended", |copy, _| copy.set_len(bytes / 5 * 4).map_err(text))?;
    Ok(vec![
        found.faster("sync-appended: over rsync --no-whole-file", 1.0),
        found.sent("sync-appended: on the wire", 20.5, bytes),
    ])
}
