//! The contestants as data: how the receiver and the sender of each are started. Also peers from crates.io, which are
//! built here, in fixed versions.
//!
//! A command is a line for bash with `{names}` in it, so that the report shows exactly what was run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::field;
use crate::harness::*;
use crate::record::{Kind, root};

/// A program and its commands for moving data between two ends.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub kind: Kind,
    /// Command that is started first, and must listen at `{port}`; empty if the sender needs no receiver.
    pub receiver: String,
    pub sender: String,
    pub clock: Clock,
}

/// How the time is measured.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// From the sender's start until both ends have exited.
    Wall,
    /// By the contestant itself: bytes per second, from the sender's output.
    Own(fn(&str) -> Option<f64>),
}

/// A row of the table of peers: name, receiver, sender, clock.
type Line = (&'static str, &'static str, &'static str, Clock);

/// Peers that carry one stream from a file to /dev/null.
///
/// Each has the block size that serves it best. iperf3 reads no file and writes none: it sends one buffer again and
/// again, 128 KiB by default. It is measured by its own clock, which leaves out its start.
pub const STREAMS: [Line; 5] = [
    (
        "socat",
        "socat -u -b 1048576 TCP-LISTEN:{port},reuseaddr OPEN:/dev/null,wronly",
        "socat -u -b 1048576 OPEN:{file},rdonly TCP:127.0.0.1:{port}",
        Clock::Wall,
    ),
    (
        "mbuffer",
        "mbuffer -q -s 1M -m 64M -I {port} -o /dev/null",
        "mbuffer -q -s 1M -m 64M -i {file} -O 127.0.0.1:{port}",
        Clock::Wall,
    ),
    ("nc", "nc.openbsd -d -l 127.0.0.1 {port} > /dev/null", "nc.openbsd -N 127.0.0.1 {port} < {file}", Clock::Wall),
    ("iperf3", "iperf3 -s -1 -p {port}", "iperf3 -J -c 127.0.0.1 -p {port} -n {bytes}", Clock::Own(by_iperf3)),
    (
        "iperf3 -l 1M",
        "iperf3 -s -1 -p {port}",
        "iperf3 -J -l 1M -c 127.0.0.1 -p {port} -n {bytes}",
        Clock::Own(by_iperf3),
    ),
];

/// Those of them that read a file and write to a sink, as rdsend and rdrecv do.
pub const MOVERS: [&str; 3] = ["socat", "mbuffer", "nc"];

/// Peers that copy a file or a tree to `{host}`, which their ssh knows from `{config}`.
pub const COPIES: [Line; 3] = [
    ("scp -r", "", "scp -F {config} -q -r {from} {host}:{to}", Clock::Wall),
    ("rsync -a", "", "rsync -a -e 'ssh -F {config}' {from}{slash} {host}:{to}", Clock::Wall),
    // By default, rclone starts a process at the other end to hash each file, which takes minutes for many files.
    (
        "rclone copyto",
        "",
        "rclone copyto --config /dev/null --sftp-disable-hashcheck --sftp-host 127.0.0.1 --sftp-port {sshport} \
         --sftp-user {user} --sftp-key-file {key} {from} :sftp:{to}",
        Clock::Wall,
    ),
];

/// Peers that pack a tree into one stream.
pub const TARS: [Line; 3] = [
    (
        "tar | ssh tar",
        "",
        "tar cf - -C {from} . | ssh -F {config} {host} 'mkdir {to} && tar xf - -C {to}'",
        Clock::Wall,
    ),
    (
        "tar | socat (by ssh)",
        "",
        "ssh -F {config} {host} 'mkdir {to} && socat -u -b 131072 TCP-LISTEN:{port} - | tar xf - -C {to}' & \
         tar cf - -C {from} . | socat -u -b 131072 - TCP:127.0.0.1:{port},retry=5000,interval=0.002 && wait $!",
        Clock::Wall,
    ),
    // Possible only if the user has been logged in at the other host before, so the time includes no ssh.
    (
        "tar | socat (listening)",
        "mkdir {to} && socat -u -b 131072 TCP-LISTEN:{port} - | tar xf - -C {to}",
        "tar cf - -C {from} . | socat -u -b 131072 - TCP:127.0.0.1:{port}",
        Clock::Wall,
    ),
];

/// Returns `iperf3` over this many connections.
pub fn iperf3(connections: &str) -> Way {
    let send = format!("iperf3 -J -l 1M -P {connections} -c 127.0.0.1 -p {{port}} -n {{bytes}}");
    let name = format!("iperf3 -P {connections}");
    Way { clock: Clock::Own(by_iperf3), ..Way::new(Kind::Peer, &name, "iperf3 -s -1 -p {port}", &send) }
}

/// Returns the rate counted by the receiving end, from the JSON that `iperf3 -J` prints at its end.
fn by_iperf3(said: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(said).ok()?;
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

impl Way {
    pub fn new(kind: Kind, name: &str, receiver: &str, sender: &str) -> Self {
        let [name, receiver, sender] = [name, receiver, sender].map(str::to_owned);
        Way { name, kind, receiver, sender, clock: Clock::Wall }
    }

    pub fn peer(&(name, receiver, sender, clock): &Line) -> Self {
        Way { clock, ..Way::new(Kind::Peer, name, receiver, sender) }
    }

    /// Both commands, as a report shows them.
    pub fn command(&self) -> String {
        let parts = [&self.receiver, &self.sender].map(String::as_str);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
    }
}

/// Values of the names in commands, and the directory in which programs are looked for first.
#[derive(Clone, Default)]
pub struct Scene {
    names: Vec<(&'static str, String)>,
    path: Option<PathBuf>,
    out: Option<PathBuf>,
}

/// The cost of moving data once.
pub struct Moved {
    pub seconds: f64,
    /// Processor time of the receiver and the sender.
    pub cpu_s: [f64; 2],
}

impl Scene {
    pub fn with(&self, name: &'static str, value: impl ToString) -> Self {
        let mut scene = self.clone();
        scene.names.retain(|(known, _)| *known != name);
        scene.names.push((name, value.to_string()));
        scene
    }

    /// Sets the directory in which programs are looked for first.
    pub fn path(self, directory: PathBuf) -> Self {
        Scene { path: Some(directory), ..self }
    }

    /// Sets the file that `{out}` means. The file is removed before each run, because writing over
    /// existing pages costs less.
    pub fn out(&self, file: &Path) -> Self {
        Scene { out: Some(file.to_owned()), ..self.with("out", file.display()) }
    }

    /// Moves `bytes` bytes once.
    pub fn run(&self, way: &Way, bytes: u64) -> Result<Moved> {
        if let Some(out) = self.out.as_ref().filter(|out| out.exists()) {
            fs::remove_file(out).map_err(text)?;
        }
        let port = free_port()?;
        let scene = self.with("port", port).with("bytes", bytes);
        let receiver = if way.receiver.is_empty() {
            None
        } else {
            let receiver = Running::start(&mut scene.bash(&way.receiver))?;
            wait_listening(port)?;
            Some(receiver)
        };
        let start = Instant::now();
        let sender = Running::start_saying(&mut scene.bash(&way.sender))?.done()?;
        let receiver = receiver.map(Running::done).transpose()?;
        let end = receiver.as_ref().map_or(sender.at, |receiver| receiver.at.max(sender.at));
        let seconds = match way.clock {
            Clock::Wall => (end - start).as_secs_f64(),
            Clock::Own(rate) => bytes as f64 / rate(&sender.said).ok_or(format!("no rate in: {}", sender.said))?,
        };
        Ok(Moved { seconds, cpu_s: [receiver.map_or(0.0, |receiver| receiver.cpu_s), sender.cpu_s] })
    }

    /// Makes a contestant that moves `bytes` bytes in each turn: GB/s, with the processor time
    /// of both ends for each GB.
    pub fn stream<'a>(&self, way: Way, bytes: u64) -> Contestant<'a> {
        let scene = self.clone();
        let (name, kind, command) = (way.name.clone(), way.kind, way.command());
        let run = move || {
            let moved = scene.run(&way, bytes)?;
            let gigabytes = bytes as f64 / 1e9;
            Ok(Turn { value: gigabytes / moved.seconds, cpu: Some(moved.cpu_s.map(|seconds| seconds / gigabytes)) })
        };
        Contestant { name, kind, command, run: Box::new(run) }
    }

    fn bash(&self, line: &str) -> Command {
        let line =
            self.names.iter().fold(line.to_owned(), |line, (name, value)| line.replace(&format!("{{{name}}}"), value));
        let mut path: Vec<PathBuf> = self.path.iter().cloned().collect();
        path.extend([bin_directory(), root().join("build/peers/bin")]);
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", &line]).env("PATH", std::env::join_paths(path).unwrap_or_default());
        command
    }
}

/// A program and the package that contains it.
pub struct Package {
    pub program: &'static str,
    package: &'static str,
    version: &'static str,
    line: &'static str,
}

/// The peers from crates.io.
pub const PACKAGES: [Package; 2] = [
    Package {
        program: "syq",
        package: "syq",
        version: "0.7.1",
        line: "syq cp --preserve=permissions {from} --to {host} --as {to}",
    },
    Package { program: "rcp", package: "rcp-tools-rcp", version: "0.41.0", line: "rcp {from} {host}:{to}" },
];

/// Maximum time for building a peer, in seconds.
const BUILD_LIMIT: &str = "1800";

impl Package {
    /// Returns how to copy with this program, which is built below build/peers the first time.
    pub fn way(&self) -> Result<Way> {
        let peers = root().join("build/peers");
        let path = peers.join("bin").join(self.program);
        let wanted = format!("\"{} {} (", self.package, self.version);
        let known = fs::read_to_string(peers.join(".crates.toml")).unwrap_or_default();
        if !(known.contains(&wanted) && path.is_file()) {
            if quick() {
                return Err("not built yet, which takes longer than a quick run may".to_owned());
            }
            self.build(&peers)?;
        }
        let help = Command::new(&path).arg("--help").stdin(Stdio::null()).output().map_err(text)?;
        if !help.status.success() {
            return Err(format!("{} does not start", path.display()));
        }
        Ok(Way::new(Kind::Peer, self.program, "", self.line))
    }

    fn build(&self, root: &Path) -> Result<()> {
        println!("building {} {} from crates.io, once", self.package, self.version);
        let mut install = field::outside("timeout");
        install.args([BUILD_LIMIT, "cargo", "install", "--locked", "--force", "--quiet", "--root"]).arg(root);
        install.args([self.package, "--version", &format!("={}", self.version)]);
        // rcp's own repository sets this flag in a file that cargo ignores when it installs a package.
        install.env("CARGO_TARGET_DIR", root.join("target")).env("RUSTFLAGS", "--cfg tokio_unstable");
        let output = install.stdin(Stdio::null()).output().map_err(text)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().rfind(|line| line.contains("error")).unwrap_or("cargo install failed");
        Err(format!("{} {} cannot be built here: {}", self.package, self.version, why.trim()))
    }
}
