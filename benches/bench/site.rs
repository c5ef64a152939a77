//! A host to copy to, which is this machine through a separate sshd; ways to make copies there, and checks of a copy.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;
use crate::peers::{COPIES, PACKAGES, Scene, TARS, Way};
use crate::record::{Contest, Kind};
use crate::sshd::{HOST, Sshd};

// --- copies in turns -------------------------------------------------------------------------------------------------

/// Makes a copy, and returns the seconds that it took.
type Make<'a> = Box<dyn Fn(&Site, &Path) -> Result<f64> + 'a>;

/// A way to make a copy at a place that was empty before.
pub struct Copy<'a> {
    pub name: String,
    pub kind: Kind,
    pub command: String,
    site: &'a Site,
    make: Make<'a>,
    compared: Cell<bool>,
}

impl Copy<'_> {
    /// Makes a copy and returns the seconds that it took. The first copy is compared with its source. Only the shape of
    /// further copies is compared.
    pub fn run(&self, source: &Path) -> Result<f64> {
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

/// Makes copies of `source` in turns, measured in seconds, and judges them.
pub fn judged_of(
    row: &str,
    title: &str,
    copies: &[Copy<'_>],
    source: &Path,
    judge: impl Fn(&Contest) -> Vec<Row>,
) -> Result<Vec<Row>> {
    let contestants: Vec<Contestant<'_>> = copies
        .iter()
        .map(|copy| Contestant::new(copy.kind, &copy.name, &copy.command, move || copy.run(source)))
        .collect();
    judged(row, title, "s", &contestants, runs(), judge)
}

pub fn identical(source: &Path, copy: &Path) -> Result<()> {
    timed(Command::new("diff").args(["-rq", "--no-dereference"]).args([source, copy])).map(|_| ())
}

pub fn same_shape(source: &Path, copy: &Path) -> Result<()> {
    let (wanted, found) = (shape(source)?, shape(copy)?);
    if wanted == found { Ok(()) } else { Err(format!("copied {found:?} of {wanted:?} (entries, bytes)")) }
}

/// Returns the number of entries, and of bytes in files.
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
pub struct Site {
    // Declared first, so that sshd ends before its directory is removed.
    pub ssh: Sshd,
    pub scratch: Scratch,
}

/// An agent whose process is known: a script, and the file into which the script writes its process ID.
pub struct WatchedAgent {
    pub script: PathBuf,
    said: PathBuf,
}

impl WatchedAgent {
    /// Returns the ID of the process that runs the agent now. Can be called once for each start.
    pub fn id(&self) -> Result<u32> {
        wait_until("the agent to start", || self.said.exists())?;
        let id = fs::read_to_string(&self.said).map_err(text)?;
        fs::remove_file(&self.said).map_err(text)?;
        id.trim().parse().map_err(|_| format!("no process: {id}"))
    }
}

impl Site {
    pub fn start(bytes: u64, files: u64) -> Result<Self> {
        let scratch = Scratch::with_room_for(bytes + (64 << 20), files)?;
        let site = Site { ssh: Sshd::start(&scratch.0)?, scratch };
        site.script("ssh", &format!("exec {} -F '{}' \"$@\"", which("ssh")?.display(), site.ssh.config().display()))?;
        Ok(site)
    }

    /// Makes a program in the site's own directory.
    pub fn script(&self, name: &str, text_of: &str) -> Result<PathBuf> {
        let directory = self.scratch.0.join("bin");
        fs::create_dir_all(&directory).map_err(text)?;
        let path = directory.join(name);
        executable(&path, text_of)?;
        Ok(path)
    }

    pub fn watched_agent(&self) -> Result<WatchedAgent> {
        let said = self.scratch.0.join("agent-id");
        let (name, agent) = (said.display(), agent());
        let script = format!("echo $$ >'{name}.new' && mv '{name}.new' '{name}'\nexec '{}' \"$@\"", agent.display());
        Ok(WatchedAgent { script: self.script("agent", &script)?, said })
    }

    /// Makes a tree of `count` files of `bytes` bytes each, `in_each` files in each directory.
    pub fn tree(&self, name: &str, count: u64, in_each: u64, bytes: u64) -> Result<PathBuf> {
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

    pub fn copy<'a>(
        &'a self,
        kind: Kind,
        name: &str,
        command: &str,
        make: impl Fn(&Site, &Path) -> Result<f64> + 'a,
    ) -> Copy<'a> {
        let (name, command) = (name.to_owned(), command.to_owned());
        Copy { name, kind, command, site: self, make: Box::new(make), compared: Cell::new(false) }
    }

    /// Returns a copy of `from` by `rdcp` with options.
    pub fn our_copy<'a>(&'a self, name: &str, options: &'a [&'a str], from: &Path) -> Copy<'a> {
        let (from, command) = (from.to_owned(), ["rdcp", &options.join(" "), "{from} {host}:{to}"].join(" "));
        self.copy(Kind::Ours, name, &command, move |site, to| timed(site.rdcp(options).arg(&from).arg(remote(to))))
    }

    /// Returns the bound of a copy: cp, and the ssh login that every copy to another host includes.
    pub fn bound<'a>(&'a self, name: &str, from: &Path) -> Copy<'a> {
        let from = from.to_owned();
        self.copy(Kind::Limit, name, "cp -a {from} {to}; ssh -F {config} {host} true", move |site, to| {
            Ok(timed(Command::new("cp").arg("-a").args([from.as_path(), to]))? + site.nothing()?)
        })
    }

    /// Returns the destination of copies, after removing what is there.
    pub fn fresh(&self) -> Result<PathBuf> {
        let path = self.scratch.0.join("copied");
        match fs::symlink_metadata(&path) {
            Err(_) => {}
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path).map_err(text)?,
            Ok(_) => fs::remove_file(&path).map_err(text)?,
        }
        Ok(path)
    }

    pub fn rdcp(&self, options: &[&str]) -> Command {
        self.rdcp_by(&agent(), options)
    }

    pub fn rdcp_by(&self, agent: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(bin_directory().join("rdcp"));
        command.arg("-F").arg(self.ssh.config()).arg("--agent").arg(agent).args(options);
        command
    }

    /// Returns which way rdcp takes, in its own words, when it copies the measured source. A copy of one byte would end
    /// before all lanes are up.
    pub fn lanes(&self, options: &[&str], source: &Path) -> Result<String> {
        let said = Running::start(self.rdcp(options).arg("-v").arg(source).arg(remote(&self.fresh()?)))?.success()?;
        Ok(data_route(&said).to_owned())
    }

    /// Measures ssh with a command that does nothing.
    pub fn nothing(&self) -> Result<f64> {
        timed(self.ssh.client("ssh").args([HOST, "true"]))
    }

    /// Returns a copy of `from` by each peer. A peer that is not available tells why when its turn comes.
    pub fn peers<'a>(&'a self, from: &Path) -> Vec<Copy<'a>> {
        let is_tree = from.is_dir();
        let mut ways: Vec<(String, Result<Way>)> = COPIES
            .iter()
            .chain(TARS.iter().filter(|_| is_tree))
            .map(|line| (line.0.to_owned(), Ok(Way::peer(line))))
            .collect();
        ways.extend(PACKAGES.iter().map(|package| (package.program.to_owned(), package.way())));
        let scene = self.scene().with("from", from.display()).with("slash", if is_tree { "/" } else { "" });
        let make = |(name, way): (String, Result<Way>)| {
            let (scene, command) = (scene.clone(), way.as_ref().map(Way::command).unwrap_or_default());
            let make = move |_: &Site, to: &Path| {
                Ok(scene.with("to", to.display()).run(way.as_ref().map_err(Clone::clone)?, 0)?.seconds)
            };
            self.copy(Kind::Peer, &name, &command, make)
        };
        ways.into_iter().map(make).collect()
    }

    /// Returns a scene with an ssh on the path that knows the host, for peers without an option
    /// for ssh's configuration.
    pub fn scene(&self) -> Scene {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let ssh = &self.ssh;
        Scene::default()
            .with("config", ssh.config().display())
            .with("host", HOST)
            .with("sshport", ssh.port)
            .with("key", ssh.key().display())
            .with("user", user)
            .path(self.scratch.0.join("bin"))
    }
}

/// Makes a script.
pub fn executable(path: &Path, text_of: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text_of}\n")).map_err(text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(text)
}

/// Returns which way the data went, from what `rdcp -v` said.
pub fn data_route(said: &str) -> &str {
    let line = said.lines().find_map(|line| line.split_once("data: "));
    line.map_or("did not say which way the data went", |(_, route)| route)
}

/// Whether the loopback interface counts data that went this way once. Data through a launcher's pipe is not counted at
/// all, and data through ssh several times.
pub fn is_counted(route: &str) -> bool {
    route.starts_with("tcp ") && !route.contains(", through ")
}

/// Returns the path of the agent's program.
pub fn agent() -> PathBuf {
    bin_directory().join("rdma-pipe-agent")
}

pub fn remote(path: &Path) -> String {
    format!("{HOST}:{}", path.display())
}

fn which(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    found.ok_or(format!("no {program} on the PATH"))
}
