//! `rdcp --sync` compared with rsync: data that exists at the destination is not sent. A script replaces ssh for both,
//! so that neither time includes a login.
//!
//! All contestants bring one destination up to date. Before each turn it is made old again, always in the same way.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::copy::{FILE_BYTES, FILES, on_the_wire};
use crate::harness::*;
use crate::place::Image;
use crate::record::{Contest, Kind};
use crate::site::{Site, WatchedAgent, data_route, identical, is_counted, remote};

const OURS: &str = "rdcp --sync";
const THEIRS: &str = "rsync";

/// Sizes of the pieces in which a changed file differs, and of how many pieces one is changed.
const PIECE_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4 << 10;
const CHANGED_IN: u64 = 100;

/// The least that a connection without any data puts on the wire: its three first packets, with their headers.
const CONNECTION_BYTES: u64 = 3 * 54;

/// A source, its copy, and the program used instead of ssh.
struct Pair {
    launcher: PathBuf,
    from: PathBuf,
    to: PathBuf,
    /// Additional options of rdcp, and of rsync.
    more: [&'static [&'static str]; 2],
}

impl Pair {
    /// Makes a pair, including the copy.
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

    /// Returns the source; for a tree `SRC/`, which means the contents of SRC to both programs.
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

    /// Runs both programs in turns. Each must leave the destination equal to the source, which is checked
    /// once, with an aged copy.
    fn contest(
        &self,
        row: &str,
        title: &str,
        rounds: usize,
        age: &dyn Fn() -> Result<()>,
        judge: &dyn Fn(&Found<'_>) -> Vec<Row>,
    ) -> Result<Vec<Row>> {
        let (wire, seen) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let route = RefCell::new(String::new());
        let turn = |name: &'static str, mut command: Command| -> Result<f64> {
            age()?;
            // The first round does not count, and so can say which way the data goes.
            let says_route = name == OURS && wire.borrow().is_empty();
            let (before, start) = (on_the_wire()?, Instant::now());
            let ended = Running::start(command.args(says_route.then_some("-v")))?.done()?;
            if says_route {
                route.replace(data_route(&ended.said).to_owned());
                println!("    rdcp: {}", route.borrow());
            }
            if name == OURS {
                wire.borrow_mut().push((on_the_wire()? - before) as f64);
            }
            if !seen.borrow().contains(&name) {
                identical(&self.from, &self.to)?;
                seen.borrow_mut().push(name);
            }
            Ok((ended.at - start).as_secs_f64())
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
        judged(row, title, "s", &contestants, rounds, |contest| {
            // The first round does not count.
            let wire = wire.borrow().iter().copied().skip(1).collect();
            judge(&Found { contest, route: &route.borrow(), wire })
        })
    }
}

struct Found<'a> {
    contest: &'a Contest,
    /// Which way the data goes, in rdcp's own words.
    route: &'a str,
    /// Bytes that each run of rdcp sent over the loopback interface, in both directions.
    wire: Vec<f64>,
}

impl Found<'_> {
    fn at_most(&self, name: &str, target: f64) -> Row {
        self.contest
            .compare(name, [OURS, THEIRS], |ours, rsync| Row::at_most(name, target, &ours.values, &rsync.values))
    }

    fn faster(&self, name: &str, target: f64) -> Row {
        self.contest.compare(name, [OURS, THEIRS], |ours, rsync| Row::faster(name, target, &ours.values, &rsync.values))
    }

    /// Judges the bytes sent over the wire, of which there must be `least`, in percent of the file's size.
    fn sent(&self, name: &str, limit: f64, least: u64) -> Row {
        self.on_the_wire(name, least, |wire| {
            let percent: Vec<f64> = wire.iter().map(|bytes| bytes * 100.0 / size() as f64).collect();
            Row::limit(name, limit, "%", &percent)
        })
    }

    /// Applies `measure` to the bytes sent over the wire. Few bytes are good, so a counter that missed them must not
    /// count as a measurement.
    fn on_the_wire(&self, name: &str, least: u64, measure: impl Fn(&[f64]) -> Row) -> Row {
        if !is_counted(self.route) {
            let why = format!("the loopback interface does not count data that goes this way: {}", self.route);
            return Row::broken(name, &why);
        }
        match self.wire.iter().find(|bytes| **bytes < least as f64) {
            Some(bytes) => {
                let why = format!("the loopback interface counted {bytes} bytes in a run that sent at least {least}");
                Row::broken(name, &why)
            }
            None => measure(&self.wire),
        }
    }
}

pub fn small() -> Result<Vec<Row>> {
    let files = if quick() { FILES / 10 } else { FILES };
    let site = Site::start(4 * files * FILE_BYTES, 4 * files)?;
    let pair = Pair::new(&site, site.tree("tree", files, files / 200, FILE_BYTES)?)?;
    let title = format!("{files} files of {FILE_BYTES} bytes, unchanged");
    pair.contest("sync-small", &title, runs(), &|| Ok(()), &|found| {
        vec![found.at_most("sync-small: rdcp --sync / rsync -a", 0.8)]
    })
}

/// Measures the same tree through ssh itself, beyond the time of a login.
pub fn login() -> Result<Vec<Row>> {
    const ROUNDS: usize = 15;
    const MILLISECONDS_MAX: f64 = 120.0;
    const LOGIN: &str = "ssh host true";
    let files = if quick() { FILES / 10 } else { FILES };
    let site = Site::start(4 * files * FILE_BYTES, 4 * files)?;
    let pair = Pair::new(&site, site.tree("tree", files, files / 200, FILE_BYTES)?)?;
    let (from, to) = (pair.source(), remote(&pair.to));
    let ssh = site.scratch.0.join("bin/ssh");
    let contestants = [
        Contestant::new(Kind::Ours, OURS, "rdcp --sync -r {from}/ {host}:{to}", || {
            timed(site.rdcp(&["--sync", "-r"]).args([&from, &to]))
        }),
        Contestant::new(Kind::Peer, THEIRS, "rsync -a -e ssh {from}/ {host}:{to}", || {
            timed(Command::new("rsync").args(["-a", "-e"]).arg(&ssh).args([&from, &to]))
        }),
        Contestant::new(Kind::Limit, LOGIN, "ssh {host} true", || site.nothing()),
    ];
    let title = format!("{files} files of {FILE_BYTES} bytes, unchanged, by ssh");
    let rounds = if quick() { runs() } else { runs().max(ROUNDS) };
    let row = |found: &Contest, name: &str, who: &str| {
        found.compare(name, [who, LOGIN], |one, login| {
            Row::limit(name, MILLISECONDS_MAX, "ms", &milliseconds_beyond(&one.values, &login.values))
        })
    };
    judged("sync-login", &title, "s", &contestants, rounds, |found| {
        let theirs = row(found, "sync-login: rsync -a, beyond ssh host true", THEIRS).for_the_record();
        vec![row(found, "sync-login: rdcp --sync, beyond ssh host true", OURS), theirs]
    })
}

pub fn renamed() -> Result<Vec<Row>> {
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
    pair.contest("sync-renamed", &title, runs(), &age, &|found| {
        let name = "sync-renamed: on the wire";
        vec![
            found.at_most("sync-renamed: rdcp --sync / rsync -a", 1.0),
            found.on_the_wire(name, CONNECTION_BYTES, |wire| {
                let mib: Vec<f64> = wire.iter().map(|bytes| bytes / f64::from(1 << 20)).collect();
                Row::limit(name, MIB_MAX, "MiB", &mib)
            }),
        ]
    })
}

pub fn million() -> Result<Vec<Row>> {
    const FILES: u64 = 1_000_000;
    const ROUNDS: usize = 3;
    const MIB_MAX: f64 = 128.0;
    let site = Site::start(1 << 30, 2 * FILES + 5000)?;
    let pair = Pair::new(&site, site.tree("tree", FILES, 1000, 0)?)?;
    let mut rows = pair.contest("sync-million", "1 000 000 empty files, unchanged", ROUNDS, &|| Ok(()), &|found| {
        vec![found.at_most("sync-million: rdcp --sync / rsync -a", 0.6)]
    })?;
    let agent = site.watched_agent()?;
    let caller = Running::start(&mut pair.ours(Some(&agent)))?;
    let (memory, of_agent) = (Memory::watch(&[caller.id]), Memory::watch(&[agent.id()?]));
    caller.success()?;
    let ([caller], [agent]) = (memory.highest(), of_agent.highest());
    if caller < 1.0 || agent < 1.0 {
        return Err("the memory of an end was not seen".to_owned());
    }
    rows.extend([("caller", caller), ("agent", agent)].map(|(end, mib)| Row {
        name: format!("sync-million: {end}"),
        target: format!("< {MIB_MAX} MiB"),
        measured: format!("{mib:.1} MiB"),
        verdict: fact(mib < MIB_MAX),
    }));
    Ok(rows)
}

type Judge<'a> = &'a dyn Fn(&Found<'_>) -> Vec<Row>;

/// Measures a file and its copy. `age` makes the copy old, given the copy and the number of the turn.
fn of_a_file(row: &str, what: &str, age: impl Fn(&File, u64) -> Result<()>, judge: Judge<'_>) -> Result<Vec<Row>> {
    let bytes = size();
    // A new file may be made beside the old one.
    let site = Site::start(3 * bytes, 0)?;
    let pair = Pair::new(&site, site.scratch.random_file(bytes)?)?;
    of_a_pair(&pair, row, what, age, judge)
}

fn of_a_pair(
    pair: &Pair,
    row: &str,
    what: &str,
    age: impl Fn(&File, u64) -> Result<()>,
    judge: Judge<'_>,
) -> Result<Vec<Row>> {
    let turns = RefCell::new(0_u64);
    let make_old = || {
        let copy = OpenOptions::new().write(true).open(&pair.to).map_err(text)?;
        *turns.borrow_mut() += 1;
        age(&copy, *turns.borrow())?;
        copy.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).map_err(text)
    };
    let title = format!("1 file of {:.2} GiB, {what}", gib(size()));
    pair.contest(row, &title, runs(), &make_old, judge)
}

/// Returns how many pieces [`change_pieces`] changes.
fn changed_pieces(piece_bytes: u64) -> u64 {
    size() / piece_bytes / CHANGED_IN
}

/// Changes one piece of every hundred, a different one in each turn: one piece in each of equal parts of the file.
fn change_pieces(piece_bytes: u64) -> impl Fn(&File, u64) -> Result<()> {
    move |copy, turn| {
        let (pieces, count) = (size() / piece_bytes, changed_pieces(piece_bytes));
        for part in 0..count {
            let at = part * (pieces / count) + (turn * 37 + part * 11) % (pieces / count);
            copy.write_all_at(&turn.to_le_bytes().repeat(piece_bytes as usize / 8), at * piece_bytes).map_err(text)?;
        }
        Ok(())
    }
}

pub fn delta() -> Result<Vec<Row>> {
    let what = "1 % of it changed in pieces of 64 KiB";
    of_a_file("sync-delta", what, change_pieces(PIECE_BYTES), &|found| {
        vec![
            found.faster("sync-delta: over rsync --no-whole-file", 4.0),
            found.sent("sync-delta: on the wire", 1.5, changed_pieces(PIECE_BYTES) * PIECE_BYTES),
        ]
    })
}

/// Like `delta`, with changes in pages as of a database.
pub fn pages() -> Result<Vec<Row>> {
    of_a_file("sync-pages", "1 % of it changed in pages of 4 KiB", change_pieces(PAGE_BYTES), &|found| {
        let changed_bytes = changed_pieces(PAGE_BYTES) * PAGE_BYTES;
        vec![
            found.faster("sync-pages: over rsync --no-whole-file", 1.0).for_the_record(),
            found.sent("sync-pages: on the wire", 100.0, changed_bytes).for_the_record(),
        ]
    })
}

/// Like `delta`, on a file system where the new file can share blocks with the old one. rsync writes
/// its file anew here, too.
pub fn reflinked() -> Result<Vec<Row>> {
    let bytes = size();
    // Room for the source, the old copy, a new copy, and as much again for what the file system holds in memory.
    let site = Site::start(4 * bytes, 0)?;
    let image = Image::within(&site.scratch, 3 * bytes + (1 << 30), &["mkfs.xfs", "-q", "-m", "reflink=1"])?;
    let pair = Pair::at(&site, site.scratch.random_file(bytes)?, image.path.join("copy"))?;
    let what = "1 % of it changed in pieces of 64 KiB, on XFS";
    of_a_pair(&pair, "sync-reflink", what, change_pieces(PIECE_BYTES), &|found| {
        vec![found.faster("sync-reflink: over rsync --no-whole-file", 4.0)]
    })
}

pub fn touched() -> Result<Vec<Row>> {
    of_a_file("sync-touched", "only its time changed", |_, _| Ok(()), &|found| {
        vec![
            found.faster("sync-touched: over rsync --no-whole-file", 3.0),
            found.sent("sync-touched: on the wire", 0.1, CONNECTION_BYTES),
        ]
    })
}

pub fn appended() -> Result<Vec<Row>> {
    let there = size() / 5 * 4;
    let shorten = |copy: &File, _| copy.set_len(there).map_err(text);
    of_a_file("sync-appended", "a fifth of it appended", shorten, &|found| {
        vec![
            found.faster("sync-appended: over rsync --no-whole-file", 1.0),
            found.sent("sync-appended: on the wire", 20.5, size() - there),
        ]
    })
}
