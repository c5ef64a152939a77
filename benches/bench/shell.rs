//! `rdsh` instead of ssh in tools that move their data through ssh. Each tool is compared with itself over ssh, and
//! over a bare pipe to the same command on this host. The pipe is used after a login by ssh, so that both times include
//! a login and differ only by the path of the data. Data is encrypted, as ssh's is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;
use crate::record::{Contest, Kind, root};
use crate::site::{Copy, Site, agent, executable, judged_of};
use crate::sshd::HOST;

const FILES: u64 = 64;

/// The way through a pipe.
const PIPE: &str = "ssh host true, then a pipe";

/// The ratio to be reached: a tool over a bare pipe may be faster by this much.
const OF_A_PIPE: f64 = 0.85;

/// Programs to use instead of ssh.
struct Ways {
    rdsh: PathBuf,
    ssh: PathBuf,
    /// A login, then the command on this host.
    pipe: PathBuf,
}

impl Ways {
    fn new(site: &Site) -> Result<Self> {
        let config = site.ssh.config();
        let ssh = site.scratch.0.join("bin/ssh");
        let rdsh = bin_directory().join("rdma-pipe");
        let [config, agent, rdsh] = [&config, &agent(), &rdsh].map(|path| path.display().to_string());
        Ok(Self {
            rdsh: site.script(
                "rdsh",
                &format!("exec '{rdsh}' rdsh -F '{config}' --agent '{agent}' --encrypt always \"$@\""),
            )?,
            pipe: site
                .script("pipe", &format!("'{}' {HOST} true </dev/null && shift && exec sh -c \"$*\"", ssh.display()))?,
            ssh,
        })
    }

    /// Returns a contestant for each of the three ways, which measures a copy that way.
    fn copies<'a>(
        &'a self,
        site: &'a Site,
        tool: &str,
        run: impl Fn(&Path, &Path) -> Result<f64> + Clone + 'a,
    ) -> Vec<Copy<'a>> {
        let by = |kind, name: &str, way: &'a PathBuf| {
            let run = run.clone();
            site.copy(kind, name, &tool.replace("{rsh}", name), move |_, to| run(way, to))
        };
        vec![by(Kind::Ours, "rdsh", &self.rdsh), by(Kind::Peer, "ssh", &self.ssh), by(Kind::Limit, PIPE, &self.pipe)]
    }
}

/// A tree, and the ways to copy it.
struct Bed {
    ways: Ways,
    tree: PathBuf,
    bytes: u64,
    /// Description of the tree, for a title.
    what: String,
    site: Site,
}

impl Bed {
    fn new() -> Result<Self> {
        let bytes = part_of_size(2);
        let site = Site::start(3 * bytes, 10_000)?;
        let ways = Ways::new(&site)?;
        let tree = site.tree("tree", FILES, FILES / 4, bytes / FILES)?;
        Ok(Self { ways, tree, bytes, what: format!("{FILES} files, {:.2} GiB", gib(bytes)), site })
    }
}

pub fn rows() -> Result<Vec<Row>> {
    let Bed { site, ways, tree, what, .. } = Bed::new()?;
    let from = tree.display().to_string();
    let mut rows = Vec::new();

    let tar = |rsh: &Path, to: &Path| {
        let (rsh, to) = (rsh.display(), to.display());
        let line = format!("tar -cf - -C {from} . | {rsh} {HOST} 'mkdir {to} && tar -xf - -C {to}'");
        timed(Command::new("bash").args(["-o", "pipefail", "-c", &line]))
    };
    let tool = "tar -cf - -C {from} . | {rsh} {host} 'mkdir {to} && tar -xf - -C {to}'";
    let title = format!("tar through a pipe, {what}");
    rows.extend(judged_of("rdsh", &title, &ways.copies(&site, tool, tar), &tree, |found| {
        vec![over_ssh(found, "tar", 3.0)]
    })?);

    let rsync = |rsh: &Path, to: &Path| {
        timed(
            Command::new("rsync")
                .args(["-a", "-e"])
                .arg(rsh)
                .arg(format!("{from}/"))
                .arg(format!("{HOST}:{}", to.display())),
        )
    };
    let tool = "rsync -a -e {rsh} {from}/ {host}:{to}";
    let title = format!("rsync -a, {what}");
    rows.extend(judged_of("rdsh", &title, &ways.copies(&site, tool, rsync), &tree, |found| {
        vec![over_a_pipe(found, "rsync"), over_ssh(found, "rsync", 1.0)]
    })?);
    Ok(rows)
}

/// Measures the tools that take longer.
pub fn tools() -> Result<Vec<Row>> {
    let Bed { site, ways, tree, bytes, what } = Bed::new()?;

    // The result is a repository. borg itself makes sure that it is correct.
    let home = site.scratch.0.join("borg");
    let borg = |rsh: &Path, to: &Path, words: &[&str]| {
        let mut command = Command::new("borg");
        command.args(words).current_dir(&tree).env("BORG_REPO", format!("ssh://{HOST}{}", to.display()));
        command
            .env("BORG_RSH", rsh)
            .env("BORG_BASE_DIR", &home)
            .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        timed(&mut command)
    };
    let repository = site.scratch.0.join("repository");
    let contestants: Vec<Contestant<'_>> =
        [(Kind::Ours, "rdsh", &ways.rdsh), (Kind::Peer, "ssh", &ways.ssh), (Kind::Limit, PIPE, &ways.pipe)]
            .into_iter()
            .map(|(kind, name, rsh)| {
                let (borg, repository, ways) = (&borg, &repository, &ways);
                let shown = "borg create --compression none ::one .".to_owned() + &format!(" over {name}");
                Contestant::new(kind, name, &shown, move || {
                    let _ = std::fs::remove_dir_all(repository);
                    borg(&ways.pipe, repository, &["init", "-e", "none"])?;
                    borg(rsh, repository, &["create", "--compression", "none", "::one", "."])
                })
            })
            .collect();
    let title = format!("borg create, {what}");
    let mut rows = judged("rdsh-tools", &title, "s", &contestants, runs(), |found| {
        vec![over_a_pipe(found, "borg"), over_ssh(found, "borg", 1.0)]
    })?;
    rows.extend(syncoid(&site, &ways, bytes)?);
    Ok(rows)
}

/// `syncoid` calls the `ssh` on its path, so each way has a directory in which that name is the way's program. The
/// tests' replacement of `zfs` is used at both ends, with datasets below the site's scratch directory.
fn syncoid(site: &Site, ways: &Ways, bytes: u64) -> Result<Vec<Row>> {
    const NAME: &str = "syncoid";
    let unpacked = root().join("build/sanoid/usr");
    let program = unpacked.join("sbin/syncoid");
    if !program.is_file() {
        return Ok(vec![Row::absent("rdsh: syncoid", "not under build/sanoid: run `make bench-deps`, as root")]);
    }
    let datasets = site.scratch.0.join("zfs");
    let zfs = root().join("tests/testbed/zfs");
    let there = site.ssh.programs();
    let stub = format!("export RD_ZFS='{}'\nexec '{}' \"$@\"", datasets.display(), zfs.display());
    executable(&there.join("zfs"), &stub)?;
    executable(&there.join("zpool"), "echo enabled")?;
    let run = |words: &[&str]| timed(Command::new(there.join("zfs")).args(words));
    run(&["create", "tank/home"])?;
    std::fs::rename(site.scratch.random_file(bytes)?, datasets.join("tank/home/data")).map_err(text)?;
    run(&["snapshot", "tank/home@monday"])?;

    // Parses the options that syncoid gives ssh. `-O` asks for the end of a connection that does not exist here.
    let pipe = format!(
        "login=\nwhile :; do case $1 in\n-M) login=1 && shift ;;\n-[SopicF]) shift 2 ;;\n-*) shift ;;\n*) break ;;\nesac; done\n\
         shift\n[ \"$1\" != -O ] || exit 0\n[ -z \"$login\" ] || '{}' {HOST} true </dev/null || exit\nexec sh -c \"$*\"",
        ways.ssh.display()
    );
    let rdsh = format!("exec '{}' --rsh '{}' \"$@\"", ways.rdsh.display(), ways.ssh.display());
    let ssh = format!("exec '{}' \"$@\"", ways.ssh.display());
    let mut paths = Vec::new();
    for (name, script) in [("by-rdsh", &rdsh), ("by-ssh", &ssh), ("by-pipe", &pipe)] {
        let directory = site.scratch.0.join(name);
        std::fs::create_dir(&directory).map_err(text)?;
        executable(&directory.join("ssh"), script)?;
        let rest = std::env::var("PATH").unwrap_or_default();
        paths.push(format!("{}:{}:{rest}", directory.display(), there.display()));
    }
    let sync = |path: &str| {
        let copied = datasets.join("tank/copy");
        let _ = std::fs::remove_dir_all(&copied);
        // Removes snapshots of the turn before, so that the turn starts again from the same state.
        for entry in std::fs::read_dir(datasets.join("tank/home")).map_err(text)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("@syncoid") {
                std::fs::remove_dir_all(entry.path()).map_err(text)?;
            }
        }
        let mut command = Command::new("perl");
        command.arg("-I").arg(unpacked.join("share/perl5")).arg(&program).env("PATH", path);
        command.args(["--quiet", "--compress=none", "--no-privilege-elevation", "tank/home"]);
        let seconds = timed(command.arg(format!("{HOST}:tank/copy")))?;
        let sizes = ["home", "copy"].map(|name| datasets.join(format!("tank/{name}/data")).metadata());
        match sizes {
            [Ok(source), Ok(copy)] if source.len() == copy.len() => Ok(seconds),
            _ => Err("syncoid has not made a whole copy".to_owned()),
        }
    };
    let shown = "syncoid --compress=none tank/home {host}:tank/copy";
    let kinds = [(Kind::Ours, "rdsh"), (Kind::Peer, "ssh"), (Kind::Limit, PIPE)];
    let contestants: Vec<Contestant<'_>> = kinds
        .into_iter()
        .zip(&paths)
        .map(|((kind, name), path)| Contestant::new(kind, name, &format!("{shown}, with {name} as ssh"), || sync(path)))
        .collect();
    let title = format!("syncoid, {:.2} GiB and what is new, by a program in zfs's place", gib(bytes));
    judged("rdsh-tools", &title, "s", &contestants, runs(), |found| {
        vec![over_a_pipe(found, NAME), over_ssh(found, NAME, 1.0)]
    })
}

fn over_ssh(found: &Contest, tool: &str, target: f64) -> Row {
    let name = format!("rdsh: {tool}, over ssh");
    found.compare(&name, ["rdsh", "ssh"], |ours, ssh| Row::faster(&name, target, &ours.values, &ssh.values))
}

fn over_a_pipe(found: &Contest, tool: &str) -> Row {
    let name = format!("rdsh: {tool}, over a bare pipe");
    found.compare(&name, ["rdsh", PIPE], |ours, pipe| Row::faster(&name, OF_A_PIPE, &ours.values, &pipe.values))
}
