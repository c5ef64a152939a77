//! Targets for `rdcp`, compared with cp, ssh alone and its peers. The remote host is this machine
//! through a separate sshd.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::*;
use crate::place::{Image, Scratch};
use crate::process::{adopt, spent};
use crate::record::{Entry, Kind};
use crate::site::{Site, WatchedAgent, identical, is_counted, judged_of, remote, same_shape};

pub const FILES: u64 = 20_000;
pub const FILE_BYTES: u64 = 4096;
const DIRECTORIES: u64 = 200;

/// Number of rounds of long measurements.
const ROUNDS_FEW: usize = 3;

// --- rows ------------------------------------------------------------------------------------------------------------

pub fn small() -> Result<Vec<Row>> {
    let files = if quick() { FILES / 10 } else { FILES };
    let site = Site::start(8 * files * FILE_BYTES, 8 * files)?;
    let tree = site.tree("tree", files, FILES / DIRECTORIES, FILE_BYTES)?;
    let title =
        format!("{files} files of {FILE_BYTES} bytes, {} in a directory, to a remote host", FILES / DIRECTORIES);
    against_all(["copy-small"; 2], &title, &site, &tree, Some(1.15))
}

/// Measures `rdcp -r` of a tree and all other contestants. With a `bound`, rdcp must take at most that many times as
/// long as cp and an ssh login together, and less than each peer. Without a bound, figures are for the record.
fn against_all([row, label]: [&str; 2], title: &str, site: &Site, tree: &Path, bound: Option<f64>) -> Result<Vec<Row>> {
    const OURS: &str = "rdcp -r, encrypted";
    const OPTIONS: &[&str] = &["-r", "--encrypt", "always"];
    const BOUND: &str = "cp -a, then ssh host true";
    println!("\nrdcp: {}", site.lanes(OPTIONS, tree)?);
    let mut copies = vec![site.our_copy(OURS, OPTIONS, tree), site.bound(BOUND, tree)];
    let mut peers = site.peers(tree);
    // These two take ten seconds and more for this number of files, twenty times as long as rdcp.
    if bound.is_some() && !full() {
        peers.retain(|peer| !["scp -r", "rclone copyto"].contains(&peer.name.as_str()));
    }
    let names: Vec<String> = peers.iter().map(|peer| peer.name.clone()).collect();
    copies.extend(peers);
    let judged = |row: Row| if bound.is_some() { row } else { row.for_the_record() };
    judged_of(row, title, &copies, tree, |found| {
        let name = format!("{label}: rdcp / (cp -a + ssh)");
        let to_bound = found.compare(&name, [OURS, BOUND], |ours, theirs| {
            Row::at_most(&name, bound.unwrap_or(1.0), &ours.values, &theirs.values)
        });
        let over = names.iter().map(|peer| {
            let name = format!("{label}: over {peer}");
            let measure = |ours: &Entry, theirs: &Entry| Row::faster(&name, 1.0, &ours.values, &theirs.values);
            found.compare(&name, [OURS, peer], measure)
        });
        std::iter::once(to_bound).chain(over).map(judged).collect()
    })
}

/// Measures the same tree with nothing of it in memory: on a disk, in a file system that has just been mounted.
pub fn cold() -> Result<Vec<Row>> {
    const OURS: &str = "rdcp -r, encrypted";
    let files = if quick() { FILES / 10 } else { FILES };
    let site = Site::start(8 * files * FILE_BYTES, 8 * files)?;
    let disk = Scratch::within(&bin_directory())?;
    let image = Image::within(&disk, 2 << 30, &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"])?;
    let tree = image.path.join("tree");
    timed(Command::new("cp").arg("-r").arg(site.tree("tree", files, FILES / DIRECTORIES, FILE_BYTES)?).arg(&tree))?;
    let ours = site.our_copy(OURS, &["-r", "--encrypt", "always"], &tree);
    let mut copies = vec![ours];
    copies.extend(
        site.peers(&tree).into_iter().filter(|peer| ["rsync -a", "tar | ssh tar"].contains(&peer.name.as_str())),
    );
    let names: Vec<String> = copies.iter().skip(1).map(|peer| peer.name.clone()).collect();
    let cooled = copies.iter().map(|copy| {
        let command = format!("umount, mount; then {}", copy.command);
        Contestant::new(copy.kind, &copy.name, &command, || image.cool().and_then(|()| copy.run(&tree)))
    });
    let title = format!("{files} files of {FILE_BYTES} bytes on a disk (ext4), not cached, to memory of a remote host");
    judged("copy-cold", &title, "s", &cooled.collect::<Vec<_>>(), runs(), |found| {
        let over = names.iter().map(|peer| {
            let name = format!("copy-cold: over {peer}");
            found.compare(&name, [OURS, peer], |ours, theirs| Row::faster(&name, 2.0, &ours.values, &theirs.values))
        });
        over.collect()
    })
}

/// Measures a few large files, and a real tree: C's headers, or the interpreter's library if it has more files. Links
/// and entries that are not files are left out, because not every peer copies them. So are empty directories.
pub fn trees() -> Result<Vec<Row>> {
    const LARGE_FILES: u64 = 8;
    let bytes = part_of_size(4);
    let mut rows = Vec::new();
    let site = Site::start(3 * bytes, 0)?;
    let tree = site.tree("large", LARGE_FILES, LARGE_FILES / 2, bytes / LARGE_FILES)?;
    let title = format!("{LARGE_FILES} files of {} MiB, to a remote host", (bytes / LARGE_FILES) >> 20);
    rows.extend(against_all(["trees", "trees: few large"], &title, &site, &tree, None)?);
    let site = Site::start(GIB, 100_000)?;
    let tree = site.scratch.0.join("mixed");
    let found = ["/usr/lib/python3", "/usr/include"].into_iter().find(|path| Path::new(path).is_dir());
    let from = found.ok_or("neither /usr/lib/python3 nor /usr/include is here")?;
    timed(Command::new("cp").args(["-r", from]).arg(&tree))?;
    timed(Command::new("find").arg(&tree).args(["!", "-type", "f", "!", "-type", "d", "-delete"]))?;
    timed(Command::new("find").arg(&tree).args(["-type", "d", "-empty", "-delete"]))?;
    rows.extend(against_all(["trees", "trees: mixed"], &format!("{from}, to a remote host"), &site, &tree, None)?);
    Ok(rows)
}

pub fn big() -> Result<Vec<Row>> {
    const ENCRYPTED: &str = "rdcp --encrypt always";
    const PLAIN: &str = "rdcp --encrypt never";
    let bytes = size();
    let site = Site::start(2 * bytes, 0)?;
    let file = site.scratch.random_file(bytes)?;
    for encrypt in ["never", "always"] {
        println!("\nrdcp --encrypt {encrypt}: {}", site.lanes(&["--encrypt", encrypt], &file)?);
    }
    let mut copies = vec![
        site.our_copy(PLAIN, &["--encrypt", "never"], &file),
        site.our_copy(ENCRYPTED, &["--encrypt", "always"], &file),
        site.copy(Kind::Limit, "cp", "cp {from} {to}", |_, to| timed(Command::new("cp").args([&file, to]))),
        site.copy(Kind::Ours, "rdcp, within this host", "rdcp {from} {to}", |site, to| {
            timed(site.rdcp(&[]).args([&file, to]))
        }),
    ];
    let mut peers = site.peers(&file);
    if !full() {
        peers.retain(|peer| peer.name != "rclone copyto");
    }
    let names: Vec<String> = peers.iter().map(|peer| peer.name.clone()).collect();
    copies.extend(peers);
    let title = format!("1 file of {:.2} GiB, to a remote host", gib(bytes));
    judged_of("copy-big", &title, &copies, &file, |found| {
        let at_most = |name: &str, target: f64, ours: &str| {
            found.compare(name, [ours, "cp"], |ours, cp| Row::at_most(name, target, &ours.values, &cp.values))
        };
        let mut rows =
            vec![at_most("copy-big: plain / cp", 1.5, PLAIN), at_most("copy-big: encrypted / cp", 2.0, ENCRYPTED)];
        rows.extend(names.iter().map(|peer| {
            let name = format!("copy-big: encrypted over {peer}");
            // All of these peers encrypt.
            let measure = |ours: &Entry, theirs: &Entry| Row::faster(&name, 2.0, &ours.values, &theirs.values);
            found.compare(&name, [ENCRYPTED, peer], measure)
        }));
        rows
    })
}

/// Measures processor time of all processes of a copy of one file, at both ends, including ssh and its server.
pub fn cpu() -> Result<Vec<Row>> {
    const ENCRYPTED: &str = "rdcp --encrypt always";
    let bytes = part_of_size(2);
    let site = Site::start(2 * bytes, 0)?;
    let file = site.scratch.random_file(bytes)?;
    let mut copies = vec![
        site.our_copy(ENCRYPTED, &["--encrypt", "always"], &file),
        site.our_copy("rdcp --encrypt never", &["--encrypt", "never"], &file),
    ];
    copies.push(site.copy(Kind::Limit, "cp", "cp {from} {to}", |_, to| timed(Command::new("cp").args([&file, to]))));
    copies.extend(site.peers(&file).into_iter().filter(|peer| ["syq", "scp -r"].contains(&peer.name.as_str())));
    let adopted = adopt()?;
    let contestants: Vec<Contestant<'_>> = copies
        .iter()
        .map(|copy| {
            let run = || spent(Some(site.ssh.id()), bytes, || copy.run(&file).map(drop));
            Contestant::new(copy.kind, &copy.name, &copy.command, run)
        })
        .collect();
    let title = format!("Processor time of both ends for each GB, 1 file of {:.2} GiB, to a remote host", gib(bytes));
    let name = "cpu: encrypted rdcp, both ends / syq";
    let rows = judged("cpu", &title, "s/GB", &contestants, runs(), |found| {
        vec![found.compare(name, [ENCRYPTED, "syq"], |ours, syq| Row::at_most(name, 0.62, &ours.values, &syq.values))]
    });
    drop(adopted);
    rows
}

pub fn byte() -> Result<Vec<Row>> {
    const MILLISECONDS_MAX: f64 = 60.0;
    let site = Site::start(1 << 20, 0)?;
    let file = site.scratch.random_file(1)?;
    let rounds = runs().max(21);
    println!("\nrdcp: {}", site.lanes(&[], &file)?);
    let rdcp = site.our_copy("rdcp", &[], &file);
    let contestants = [
        Contestant::new(Kind::Ours, "rdcp", "rdcp {from} {host}:{to}", || rdcp.run(&file)),
        Contestant::new(Kind::Limit, "ssh host true", "ssh -F {config} {host} true", || site.nothing()),
    ];
    let name = "copy-byte: beyond ssh host true";
    judged("copy-byte", "1 file of 1 byte, to a remote host", "s", &contestants, rounds, |found| {
        vec![found.compare(name, ["rdcp", "ssh host true"], |rdcp, ssh| {
            Row::limit(name, MILLISECONDS_MAX, "ms", &milliseconds_beyond(&rdcp.values, &ssh.values))
        })]
    })
}

pub fn local() -> Result<Vec<Row>> {
    let (bytes, files) = (size(), if quick() { FILES / 10 } else { FILES });
    let site = Site::start(2 * bytes + 4 * files * FILE_BYTES, 4 * files)?;
    let mut rows = Vec::new();
    // The tree is made from a file of the same name, so the tree is made first.
    let tree = site.tree("tree", files, FILES / DIRECTORIES, FILE_BYTES)?;
    let file = site.scratch.random_file(bytes)?;
    let one = format!("1 file of {:.2} GiB", gib(bytes));
    let many = format!("{files} files of {FILE_BYTES} bytes");
    for (name, target, title, ours, theirs, from) in [
        ("copy-local: 1 file, rdcp / cp", 1.0, one, "rdcp", "cp", &file),
        ("copy-local: many files, rdcp / cp", 0.9, many, "rdcp -r", "cp -a", &tree),
    ] {
        let options = |command: &str| command.split(' ').skip(1).map(str::to_owned).collect::<Vec<String>>();
        let copies = [
            site.copy(Kind::Ours, ours, &format!("{ours} {{from}} {{to}}"), |site, to| {
                timed(site.rdcp(&[]).args(options(ours)).args([from, to]))
            }),
            site.copy(Kind::Peer, theirs, &format!("{theirs} {{from}} {{to}}"), |_, to| {
                timed(Command::new("cp").args(options(theirs)).args([from, to]))
            }),
        ];
        rows.extend(judged_of("copy-local", &format!("{title}, to another name here"), &copies, from, |found| {
            vec![found.compare(name, [ours, theirs], |ours, cp| Row::at_most(name, target, &ours.values, &cp.values))]
        })?);
    }
    Ok(rows)
}

pub fn memory() -> Result<Vec<Row>> {
    const MIB_MAX: f64 = 192.0;
    const KEPT_LEAST: f64 = 0.7;
    const MANY: [u64; 2] = [100_000, 1_000_000];
    let most = MANY[1] + MANY[1] / 1000;
    let site = Site::start(1 << 30, MANY[0] + 2 * most + 1000)?;
    let trees = [site.tree("fewer", MANY[0], 1000, 0)?, site.tree("more", MANY[1], 1000, 0)?];
    println!("\nempty files, 1000 in a directory, to a remote host; 1 + {ROUNDS_FEW} rounds");
    println!("rdcp: {}", site.lanes(&["-r"], &trees[0])?);
    let agent = site.watched_agent()?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut highest = [0.0_f64; 2];
    let mut copy = |index: usize, pull: bool| {
        let to = site.fresh()?;
        let (from, to_name) = if pull {
            (remote(&trees[index]), to.display().to_string())
        } else {
            (trees[index].display().to_string(), remote(&to))
        };
        let mut rdcp = site.rdcp_by(&agent.script, &["-r"]);
        rdcp.args([&from, &to_name]);
        let start = Instant::now();
        let caller = Running::start(&mut rdcp)?;
        let memory = Memory::watch(&[caller.id]);
        let agent_memory = Memory::watch(&[agent.id()?]);
        caller.success()?;
        let seconds = start.elapsed().as_secs_f64();
        let ([caller_mib], [agent_mib]) = (memory.highest(), agent_memory.highest());
        // A value near zero is no measurement: the process ended before its memory was read.
        if caller_mib < 1.0 || agent_mib < 1.0 {
            return Err("the memory of an end was not seen".to_owned());
        }
        same_shape(&trees[index], &to)?;
        highest = [highest[0].max(caller_mib), highest[1].max(agent_mib)];
        Ok((MANY[index] as f64 / seconds, caller_mib, agent_mib))
    };
    for round in 0..=ROUNDS_FEW {
        for (index, rates) in rates.iter_mut().enumerate() {
            let (rate, caller, agent) = copy(index, false)?;
            println!(
                "    {:>9} files: {rate:>8.0} a second; highest VmHWM of caller {caller:.1} MiB, of agent {agent:.1} MiB",
                MANY[index]
            );
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let (rate, caller, agent) = copy(1, true)?;
    println!(
        "    {:>9} files from the remote host: {rate:.0} a second; caller {caller:.1} MiB, agent {agent:.1} MiB",
        MANY[1]
    );
    let mut rows = vec![Row::ratio("copy-memory: files/s, 1 M / 100 k", KEPT_LEAST, &rates[1], &rates[0])];
    rows.extend([("caller", highest[0]), ("agent", highest[1])].map(|(end, mib)| Row {
        name: format!("copy-memory: {end}"),
        target: format!("< {MIB_MAX} MiB"),
        measured: format!("{mib:.1} MiB, the most of all runs"),
        verdict: fact(mib < MIB_MAX),
    }));
    Ok(rows)
}

pub fn resume() -> Result<Vec<Row>> {
    const AGAIN_MAX: u64 = 64 << 20;
    let bytes = size();
    let site = Site::start(2 * bytes, 0)?;
    let file = site.scratch.random_file(bytes)?;
    let agent = site.watched_agent()?;
    println!("\n1 file of {:.2} GiB, to a remote host, killed after three quarters, then run again", gib(bytes));
    println!("bytes by the loopback interface's own counter, so with those of all else here; {ROUNDS_FEW} rounds");
    let way = site.lanes(&[], &file)?;
    println!("rdcp: {way}");
    if !is_counted(&way) {
        return Err(format!("the loopback interface does not count data that goes this way: {way}"));
    }
    let mut again = Vec::new();
    for _ in 0..ROUNDS_FEW {
        let (to, there) = killed(&site, &agent, &file, bytes)?;
        let before = on_the_wire()?;
        let mut rdcp = site.rdcp(&[]);
        Running::start(rdcp.arg(&file).arg(remote(&to)))?.success()?;
        let sent = on_the_wire()? - before;
        identical(&file, &to)?;
        let twice = sent.checked_sub(bytes - there).ok_or_else(|| {
            format!("the loopback interface counted {sent} bytes where {} were missing", bytes - there)
        })?;
        println!(
            "    {:.1} MiB were there, {:.1} MiB missing; the second run sent {:.1} MiB; identical",
            mib(there),
            mib(bytes - there),
            mib(sent)
        );
        again.push(twice);
    }
    let worst = again.into_iter().max().unwrap_or(u64::MAX);
    Ok(vec![Row {
        name: "copy-resume: sent beyond the missing".into(),
        target: format!("<= {} MiB", AGAIN_MAX >> 20),
        measured: format!("{:.1} MiB, the most of {ROUNDS_FEW} runs", mib(worst)),
        verdict: fact(worst <= AGAIN_MAX),
    }])
}

/// Makes a copy that is killed when three quarters have arrived. Returns its destination, and
/// how much of it has arrived.
fn killed(site: &Site, agent: &WatchedAgent, file: &Path, bytes: u64) -> Result<(PathBuf, u64)> {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let directory = site.fresh()?;
        fs::create_dir(&directory).map_err(text)?;
        let to = directory.join("copy");
        let mut rdcp = site.rdcp_by(&agent.script, &[]);
        rdcp.arg(file).arg(remote(&to));
        let run = Running::start(&mut rdcp)?;
        let agent_id = agent.id()?;
        wait_until("three quarters to arrive", || arrived(&directory) >= bytes / 4 * 3 || to.exists())?;
        let _ = Command::new("kill").args(["-KILL", &run.id.to_string()]).stderr(Stdio::null()).status();
        run.end()?;
        wait_until("the agent to end", || !Path::new(&format!("/proc/{agent_id}")).exists())?;
        if to.exists() {
            continue; // the copy ended before it was killed
        }
        let there = arrived(&directory);
        if there < bytes / 2 {
            return Err(format!("{:.1} MiB were left of three quarters of {:.1}", mib(there), mib(bytes)));
        }
        return Ok((to, there));
    }
    Err(format!("in {TRIES} tries, none was killed before it had ended"))
}

/// Returns how much partial files in a directory hold, in blocks, because their length says nothing.
fn arrived(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let partials = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".rd-part"));
    partials.filter_map(|entry| entry.metadata().ok()).map(|partial| partial.blocks() * 512).sum()
}

/// Returns the bytes that the loopback interface of this network namespace has sent.
pub fn on_the_wire() -> Result<u64> {
    let path = "/proc/self/net/dev";
    let table = fs::read_to_string(path).map_err(text)?;
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    let sent = counts.and_then(|counts| counts.split_whitespace().nth(8)?.parse().ok());
    sent.ok_or(format!("no lo in {path}"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
