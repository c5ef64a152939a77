//! `rdsh`, in ssh's place in tools that move their data through it: against the same tool over ssh, and over a bare pipe to the
//! same command on this host. Login and pipe: what is compared with has a login of ssh's in its time as well, so that what is
//! left is the way of the data. Data is encrypted, as ssh's is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::copy::Measure;
use crate::harness::*;
use crate::record::{Contest, Kind};
use crate::site::{Copy, Site, agent, contest_of};
use crate::sshd::HOST;

/// What `ONLY` calls the rows, and what measures them.
pub const ROWS: [(&str, Measure); 1] = [("rdsh", rows)];

const FILES: u64 = 64;

/// A tool over a bare pipe may be so much faster.
const OF_A_PIPE: f64 = 0.85;

/// What stands in ssh's place.
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

    /// All three, each with what a copy by it takes.
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
        vec![
            by(Kind::Ours, "rdsh", &self.rdsh),
            by(Kind::Peer, "ssh", &self.ssh),
            by(Kind::Limit, "ssh host true, then a pipe", &self.pipe),
        ]
    }
}

fn rows() -> Result<Vec<Row>> {
    let bytes = size() / 2;
    let site = Site::start(3 * bytes, 10_000)?;
    let ways = Ways::new(&site)?;
    let tree = site.tree("tree", FILES, FILES / 4, bytes / FILES)?;
    let (from, what) = (tree.display().to_string(), format!("{FILES} files, {:.2} GiB", gib(bytes)));
    let mut rows = Vec::new();

    let tar = |rsh: &Path, to: &Path| {
        let (rsh, to) = (rsh.display(), to.display());
        let line = format!("tar -cf - -C {from} . | {rsh} {HOST} 'mkdir {to} && tar -xf - -C {to}'");
        timed(Command::new("bash").args(["-o", "pipefail", "-c", &line]))
    };
    let tool = "tar -cf - -C {from} . | {rsh} {host} 'mkdir {to} && tar -xf - -C {to}'";
    let found =
        contest_of("rdsh", &format!("tar through a pipe, {what}"), &ways.copies(&site, tool, tar), &tree, runs())?;
    rows.push(over_ssh(&found, "tar", 3.0));

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
    let found = contest_of("rdsh", &format!("rsync -a, {what}"), &ways.copies(&site, tool, rsync), &tree, runs())?;
    rows.extend([over_a_pipe(&found, "rsync"), over_ssh(&found, "rsync", 1.0)]);

    // What arrives is a repository, of which borg itself sees to it that it is right.
    let home = site.scratch.0.join("borg");
    let borg = |rsh: &Path, to: &Path, words: &[&str]| {
        let mut command = Command::new("borg");
        command.args(words).current_dir(&from).env("BORG_REPO", format!("ssh://{HOST}{}", to.display()));
        command
            .env("BORG_RSH", rsh)
            .env("BORG_BASE_DIR", &home)
            .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        timed(&mut command)
    };
    let repository = site.scratch.0.join("repository");
    let contestants: Vec<Contestant<'_>> = [
        (Kind::Ours, "rdsh", &ways.rdsh),
        (Kind::Peer, "ssh", &ways.ssh),
        (Kind::Limit, "ssh host true, then a pipe", &ways.pipe),
    ]
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
    let found = contest("rdsh", &format!("borg create, {what}"), "s", &contestants, runs())?;
    rows.extend([over_a_pipe(&found, "borg"), over_ssh(&found, "borg", 1.0)]);
    Ok(rows)
}

fn over_ssh(found: &Contest, tool: &str, target: f64) -> Row {
    let name = format!("rdsh: {tool}, over ssh");
    found.compare(&name, ["rdsh", "ssh"], |ours, ssh| Row::faster(&name, target, &ours.values, &ssh.values))
}

fn over_a_pipe(found: &Contest, tool: &str) -> Row {
    let name = format!("rdsh: {tool}, over a bare pipe");
    found.compare(&name, ["rdsh", "ssh host true, then a pipe"], |ours, pipe| {
        Row::faster(&name, OF_A_PIPE, &ours.values, &pipe.values)
    })
}
