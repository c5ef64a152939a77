//! `rdcp`: what must hold of it, against cp, ssh alone and its peers. The remote host is this one, by an sshd of our own.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::*;
use crate::peers::PEERS;
use crate::sshd::{HOST, Sshd};

const FILES: u64 = 20_000;
const FILE_BYTES: u64 = 4096;
const DIRECTORIES: u64 = 200;

/// Rounds of what takes long.
const ROUNDS_FEW: usize = 3;

type Measure = fn() -> Result<Vec<Row>>;

/// What `ONLY` calls the rows, and what measures them.
pub const ROWS: [(&str, Measure); 6] = [
    ("copy-small", small),
    ("copy-big", big),
    ("copy-byte", byte),
    ("copy-local", local),
    ("copy-memory", memory),
    ("copy-resume", resume),
];

// --- rows ------------------------------------------------------------------------------------------------------------

fn small() -> Result<Vec<Row>> {
    let site = Site::start(8 * FILES * FILE_BYTES, 8 * FILES)?;
    let tree = site.tree("tree", FILES, FILES / DIRECTORIES, FILE_BYTES)?;
    let rounds = runs();
    println!(
        "\n{FILES} files of {FILE_BYTES} bytes in {DIRECTORIES} directories, to a remote host; 1 + {rounds} rounds"
    );
    println!("rdcp: {}", site.lanes(&["-r"], &tree)?);
    let cp = "cp -a, then ssh host true";
    let mut copies = vec![
        site.copy("rdcp -r", |site, to| timed(site.rdcp(&["-r"]).arg(&tree).arg(remote(to)))),
        site.copy(cp, |site, to| Ok(timed(Command::new("cp").arg("-a").args([&tree, to]))? + site.nothing()?)),
    ];
    let mut peers = vec![
        site.copy("scp -r", |site, to| timed(site.ssh.client("scp").args(["-q", "-r"]).arg(&tree).arg(remote(to)))),
        site.copy("rsync -a", |site, to| timed(&mut site.rsync(&format!("{}/", tree.display()), to))),
        site.copy("tar | ssh tar", |site, to| timed(&mut site.tar_ssh(&tree, to))),
        site.copy("tar | socat (by ssh)", |site, to| timed(&mut site.tar_socat(&tree, to)?)),
        site.copy("tar | socat (listening)", |site, to| site.tar_listening(&tree, to)),
    ];
    let (found, mut rows) = site.peers("copy-small: over", &tree);
    peers.extend(found);
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    copies.append(&mut peers);
    let times = contest(&copies, &tree, rounds)?;
    let ours = times.of("rdcp -r");
    rows.insert(0, Row::at_most("copy-small: rdcp / (cp -a + ssh)", 1.15, ours, times.of(cp)));
    for (place, name) in names.into_iter().enumerate() {
        rows.insert(1 + place, Row::faster(&format!("copy-small: over {name}"), 1.0, ours, times.of(name)));
    }
    Ok(rows)
}

fn big() -> Result<Vec<Row>> {
    let bytes = size();
    let site = Site::start(2 * bytes, 0)?;
    let file = site.scratch.random_file(bytes)?;
    let rounds = runs();
    println!("\n1 file of {:.2} GiB, to a remote host; 1 + {rounds} rounds", gib(bytes));
    for encrypt in ["never", "always"] {
        println!("rdcp --encrypt {encrypt}: {}", site.lanes(&["--encrypt", encrypt], &file)?);
    }
    let rdcp = |encrypt: &'static str| {
        let file = file.clone();
        move |site: &Site, to: &Path| timed(site.rdcp(&["--encrypt", encrypt]).arg(&file).arg(remote(to)))
    };
    let (peers, mut rows) = site.peers("copy-big: encrypted over", &file);
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    let mut copies = vec![
        site.copy("rdcp --encrypt never", rdcp("never")),
        site.copy("rdcp --encrypt always", rdcp("always")),
        site.copy("cp", |_, to| timed(Command::new("cp").args([&file, to]))),
        site.copy("scp", |site, to| timed(site.ssh.client("scp").arg("-q").arg(&file).arg(remote(to)))),
        site.copy("rsync", |site, to| timed(&mut site.rsync(&file.display().to_string(), to))),
    ];
    copies.extend(peers);
    let times = contest(&copies, &file, rounds)?;
    let encrypted = times.of("rdcp --encrypt always");
    rows.extend(
        names
            .into_iter()
            .map(|name| Row::faster(&format!("copy-big: encrypted over {name}"), 1.0, encrypted, times.of(name))),
    );
    let mut all = vec![
        Row::at_most("copy-big: plain / cp", 1.5, times.of("rdcp --encrypt never"), times.of("cp")),
        Row::at_most("copy-big: encrypted / cp", 2.0, encrypted, times.of("cp")),
        Row::faster("copy-big: encrypted over scp", 2.0, encrypted, times.of("scp")),
        Row::faster("copy-big: encrypted over rsync", 2.0, encrypted, times.of("rsync")),
    ];
    all.append(&mut rows);
    Ok(all)
}

fn byte() -> Result<Vec<Row>> {
    const MILLISECONDS_MAX: f64 = 60.0;
    let site = Site::start(1 << 20, 0)?;
    let file = site.scratch.random_file(1)?;
    let rounds = runs().max(21);
    println!("\n1 file of 1 byte, to a remote host; 1 + {rounds} rounds");
    println!("rdcp: {}", site.lanes(&[], &file)?);
    let rdcp = site.copy("rdcp", |site, to| timed(site.rdcp(&[]).arg(&file).arg(remote(to))));
    let contestants: [Contestant<'_>; 2] =
        [("rdcp".into(), Box::new(|| rdcp.run(&file))), ("ssh host true".into(), Box::new(|| site.nothing()))];
    let times = Times::of_rounds(&contestants, rounds)?;
    let more: Vec<f64> =
        times.of("rdcp").iter().zip(times.of("ssh host true")).map(|(our, their)| (our - their) * 1e3).collect();
    Ok(vec![Row::limit("copy-byte: beyond ssh host true", MILLISECONDS_MAX, "ms", &more)])
}

fn local() -> Result<Vec<Row>> {
    let bytes = size();
    let site = Site::start(2 * bytes + 4 * FILES * FILE_BYTES, 4 * FILES)?;
    let rounds = runs();
    let file = site.scratch.random_file(bytes)?;
    println!("\n1 file of {:.2} GiB, to another name here; 1 + {rounds} rounds", gib(bytes));
    let copies = [
        site.copy("rdcp", |site, to| timed(site.rdcp(&[]).args([&file, to]))),
        site.copy("cp", |_, to| timed(Command::new("cp").args([&file, to]))),
    ];
    let times = contest(&copies, &file, rounds)?;
    let one = Row::at_most("copy-local: 1 file, rdcp / cp", 1.0, times.of("rdcp"), times.of("cp"));
    let tree = site.tree("tree", FILES, FILES / DIRECTORIES, FILE_BYTES)?;
    println!("\n{FILES} files of {FILE_BYTES} bytes, to another name here; 1 + {rounds} rounds");
    let copies = [
        site.copy("rdcp -r", |site, to| timed(site.rdcp(&["-r"]).args([&tree, to]))),
        site.copy("cp -a", |_, to| timed(Command::new("cp").arg("-a").args([&tree, to]))),
    ];
    let times = contest(&copies, &tree, rounds)?;
    let many = Row::at_most("copy-local: many files, rdcp / cp", 0.9, times.of("rdcp -r"), times.of("cp -a"));
    Ok(vec![one, many])
}

fn memory() -> Result<Vec<Row>> {
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
        // A figure of nothing has not been measured: the process was gone before it was asked.
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
        verdict: verdict(mib < MIB_MAX),
    }));
    Ok(rows)
}

fn resume() -> Result<Vec<Row>> {
    const AGAIN_MAX: u64 = 64 << 20;
    let bytes = size();
    let site = Site::start(2 * bytes, 0)?;
    let file = site.scratch.random_file(bytes)?;
    let agent = site.watched_agent()?;
    println!("\n1 file of {:.2} GiB, to a remote host, killed after three quarters, then run again", gib(bytes));
    println!("bytes by the loopback interface's own counter, so with those of all else here; {ROUNDS_FEW} rounds");
    let way = site.lanes(&[], &file)?;
    println!("rdcp: {way}");
    if way.contains("through ssh") {
        return Err("the data goes through ssh, and over the loopback interface several times".to_owned());
    }
    let mut again = Vec::new();
    for _ in 0..ROUNDS_FEW {
        let (to, there) = killed(&site, &agent, &file, bytes)?;
        let before = on_the_wire()?;
        let mut rdcp = site.rdcp(&[]);
        Running::start(rdcp.arg(&file).arg(remote(&to)))?.success()?;
        let sent = on_the_wire()? - before;
        identical(&file, &to)?;
        let twice = sent.saturating_sub(bytes - there);
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
        verdict: verdict(worst <= AGAIN_MAX),
    }])
}

/// A copy that was killed when three quarters had arrived: where it was to be, and how much of it is there.
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
            continue; // it was faster than we
        }
        let there = arrived(&directory);
        if there < bytes / 2 {
            return Err(format!("{:.1} MiB were left of three quarters of {:.1}", mib(there), mib(bytes)));
        }
        return Ok((to, there));
    }
    Err(format!("in {TRIES} tries, none was killed before it had ended"))
}

/// What partial files in a directory hold: blocks, for their length says nothing.
fn arrived(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let partials = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".rd-part"));
    partials.filter_map(|entry| entry.metadata().ok()).map(|partial| partial.blocks() * 512).sum()
}

/// What the loopback interface of our network namespace has sent.
fn on_the_wire() -> Result<u64> {
    let path = "/proc/self/net/dev";
    let table = fs::read_to_string(path).map_err(text)?;
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    let sent = counts.and_then(|counts| counts.split_whitespace().nth(8)?.parse().ok());
    sent.ok_or(format!("no lo in {path}"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

// --- copies in turns -------------------------------------------------------------------------------------------------

/// Makes one and says how many seconds it took.
type Make<'a> = Box<dyn Fn(&Site, &Path) -> Result<f64> + 'a>;

/// One way to make a copy, at a place that is empty before.
struct Copy<'a> {
    name: &'a str,
    site: &'a Site,
    make: Make<'a>,
    compared: Cell<bool>,
}

impl Copy<'_> {
    /// The seconds that it took. The first copy is compared with its source, of others the shape is.
    fn run(&self, source: &Path) -> Result<f64> {
        let to = self.site.fresh()?;
        let seconds = (self.make)(self.site, &to)?;
        if self.compared.replace(true) {
            same_shape(source, &to)?
        } else {
            identical(source, &to)?
        }
        Ok(seconds)
    }
}

/// The seconds of each contestant in each round.
struct Times(Vec<(String, Vec<f64>)>);

impl Times {
    fn of_rounds(contestants: &[Contestant<'_>], rounds: usize) -> Result<Self> {
        let times = alternate(contestants, rounds)?;
        for ((name, _), times) in contestants.iter().zip(&times) {
            println!("    {name:<42} {} s", Spread::of(times));
        }
        Ok(Times(contestants.iter().map(|(name, _)| name.clone()).zip(times).collect()))
    }

    fn of(&self, name: &str) -> &[f64] {
        self.0.iter().find(|(of, _)| of == name).map_or(&[], |(_, times)| times)
    }
}

fn contest(copies: &[Copy<'_>], source: &Path, rounds: usize) -> Result<Times> {
    let contestants: Vec<Contestant<'_>> = copies
        .iter()
        .map(|copy| -> Contestant<'_> { (copy.name.to_owned(), Box::new(move || copy.run(source))) })
        .collect();
    Times::of_rounds(&contestants, rounds)
}

fn identical(source: &Path, copy: &Path) -> Result<()> {
    timed(Command::new("diff").args(["-rq", "--no-dereference"]).args([source, copy])).map(|_| ())
}

fn same_shape(source: &Path, copy: &Path) -> Result<()> {
    let (wanted, found) = (shape(source)?, shape(copy)?);
    if wanted == found { Ok(()) } else { Err(format!("copied {found:?} of {wanted:?} (entries, bytes)")) }
}

/// How many entries, and bytes in files.
fn shape(path: &Path) -> Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).map_err(text)?;
    if !metadata.is_dir() {
        return Ok((1, metadata.len()));
    }
    let mut sum = (1, 0);
    for entry in fs::read_dir(path).map_err(text)? {
        let (entries, bytes) = shape(&entry.map_err(text)?.path())?;
        sum = (sum.0 + entries, sum.1 + bytes);
    }
    Ok(sum)
}

// --- the host --------------------------------------------------------------------------------------------------------

/// A place in memory with an sshd.
struct Site {
    // Ends before its directory goes.
    ssh: Sshd,
    scratch: Scratch,
}

/// An agent whose process is known: a script, and the file where it says which it is.
struct WatchedAgent {
    script: PathBuf,
    said: PathBuf,
}

impl WatchedAgent {
    /// The process that runs it now, once.
    fn id(&self) -> Result<u32> {
        wait_until("the agent to start", || self.said.exists())?;
        let id = fs::read_to_string(&self.said).map_err(text)?;
        fs::remove_file(&self.said).map_err(text)?;
        id.trim().parse().map_err(|_| format!("no process: {id}"))
    }
}

impl Site {
    fn start(bytes: u64, files: u64) -> Result<Self> {
        let scratch = Scratch::with_room_for(bytes + (64 << 20), files)?;
        let site = Site { ssh: Sshd::start(&scratch.0)?, scratch };
        site.script("ssh", &format!("exec {} -F '{}' \"$@\"", which("ssh")?.display(), site.ssh.config().display()))?;
        Ok(site)
    }

    fn script(&self, name: &str, text_of: &str) -> Result<PathBuf> {
        let directory = self.scratch.0.join("bin");
        fs::create_dir_all(&directory).map_err(text)?;
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text_of}\n")).map_err(text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(text)?;
        Ok(path)
    }

    fn watched_agent(&self) -> Result<WatchedAgent> {
        let said = self.scratch.0.join("agent-id");
        let (name, agent) = (said.display(), agent());
        let script = format!("echo $$ >'{name}.new' && mv '{name}.new' '{name}'\nexec '{}' \"$@\"", agent.display());
        Ok(WatchedAgent { script: self.script("agent", &script)?, said })
    }

    /// `count` files of `bytes` bytes each, so many in each directory.
    fn tree(&self, name: &str, count: u64, in_each: u64, bytes: u64) -> Result<PathBuf> {
        let tree = self.scratch.0.join(name);
        let content = self.scratch.random_file(bytes.max(1)).and_then(|path| fs::read(path).map_err(text))?;
        for directory in 0..count / in_each {
            let directory = tree.join(format!("d{directory:04}"));
            fs::create_dir_all(&directory).map_err(text)?;
            for file in 0..in_each {
                let path = directory.join(format!("f{file:04}"));
                if bytes == 0 { File::create(path).map(drop) } else { fs::write(path, &content) }.map_err(text)?;
            }
        }
        Ok(tree)
    }

    fn copy<'a>(&'a self, name: &'a str, make: impl Fn(&Site, &Path) -> Result<f64> + 'a) -> Copy<'a> {
        Copy { name, site: self, make: Box::new(make), compared: Cell::new(false) }
    }

    /// Where copies go, with nothing there.
    fn fresh(&self) -> Result<PathBuf> {
        let path = self.scratch.0.join("copied");
        match fs::symlink_metadata(&path) {
            Err(_) => {}
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path).map_err(text)?,
            Ok(_) => fs::remove_file(&path).map_err(text)?,
        }
        Ok(path)
    }

    fn rdcp(&self, options: &[&str]) -> Command {
        self.rdcp_by(&agent(), options)
    }

    fn rdcp_by(&self, agent: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(bin_directory().join("rdcp"));
        command.arg("-F").arg(self.ssh.config()).arg("--agent").arg(agent).args(options);
        command
    }

    /// Which way rdcp takes, in its own words, when it copies what is measured: a copy of a byte is over before it has all
    /// its lanes.
    fn lanes(&self, options: &[&str], source: &Path) -> Result<String> {
        let said = Running::start(self.rdcp(options).arg("-v").arg(source).arg(remote(&self.fresh()?)))?.success()?;
        let line = said.lines().find_map(|line| line.split_once("data: "));
        Ok(line.map_or("did not say which way the data went", |(_, way)| way).to_owned())
    }

    /// ssh, and nothing else.
    fn nothing(&self) -> Result<f64> {
        timed(self.ssh.client("ssh").args([HOST, "true"]))
    }

    fn rsync(&self, from: &str, to: &Path) -> Command {
        let mut command = Command::new("rsync");
        command.args(["-a", "-e", &format!("ssh -F {}", self.ssh.config().display()), from, &remote(to)]);
        command
    }

    fn tar_ssh(&self, tree: &Path, to: &Path) -> Command {
        let config = self.ssh.config();
        let (tree, to, config) = (tree.display(), to.display(), config.display());
        bash(format!("tar cf - -C {tree} . | ssh -F {config} {HOST} 'mkdir {to} && tar xf - -C {to}'"))
    }

    fn tar_socat(&self, tree: &Path, to: &Path) -> Result<Command> {
        let (port, config) = (free_port()?, self.ssh.config());
        let (tree, to, config) = (tree.display(), to.display(), config.display());
        let socat = "socat -u -b 131072";
        Ok(bash(format!(
            "ssh -F {config} {HOST} 'mkdir {to} && {socat} TCP-LISTEN:{port} - | tar xf - -C {to}' & \
             tar cf - -C {tree} . | {socat} - TCP:127.0.0.1:{port},retry=5000,interval=0.002 && wait $!"
        )))
    }

    /// As nobody can without having been at the other host before: no time for ssh in it.
    fn tar_listening(&self, tree: &Path, to: &Path) -> Result<f64> {
        let port = free_port()?;
        let (tree, to) = (tree.display(), to.display());
        let socat = "socat -u -b 131072";
        let mut receiver = bash(format!("mkdir {to} && {socat} TCP-LISTEN:{port} - | tar xf - -C {to}"));
        let receiver = Running::start(&mut receiver)?;
        wait_listening(port)?;
        let start = Instant::now();
        timed(&mut bash(format!("tar cf - -C {tree} . | {socat} - TCP:127.0.0.1:{port}")))?;
        receiver.success()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The peers from crates.io, each of which has made a copy of `from`; for those that could not, a row that says why.
    fn peers<'a>(&'a self, row: &str, from: &Path) -> (Vec<Copy<'a>>, Vec<Row>) {
        let (mut copies, mut rows) = (Vec::new(), Vec::new());
        for peer in &PEERS {
            let tried = peer.installed().and_then(|path| {
                let source = from.to_owned();
                let copy = self.copy(peer.program, move |site, to| {
                    timed(Command::new(&path).env("PATH", site.path_of_peers()).arg(&source).arg(remote(to)))
                });
                copy.run(from).map(|_| copy)
            });
            match tried {
                Ok(copy) => copies.push(copy),
                Err(why) => rows.push(Row::absent(&format!("{row} {}", peer.program), &why)),
            }
        }
        (copies, rows)
    }

    /// Where peers find an ssh that knows the host.
    fn path_of_peers(&self) -> std::ffi::OsString {
        let mut path = self.scratch.0.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }
}

fn agent() -> PathBuf {
    bin_directory().join("rdma-pipe-agent")
}

fn remote(path: &Path) -> String {
    format!("{HOST}:{}", path.display())
}

fn bash(script: String) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", &script]);
    command
}

fn which(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    found.ok_or(format!("no {program} on the PATH"))
}
