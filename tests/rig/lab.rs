//! Simulates other hosts with a launcher that runs the agent on this host, and finds the processes left behind.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Scratch, same};

/// Environment variable, set to the laboratory's directory, that every process started by a
/// laboratory's command inherits.
pub const MARK: &str = "RD_LAB";

/// A scratch directory with a launcher that records each command it is given and the process that it becomes.
pub struct Lab(pub Scratch);

impl Lab {
    pub fn new() -> Self {
        let lab = Self(Scratch::new());
        fs::create_dir(lab.join("home")).expect("a directory");
        lab.script("rsh", "exec sh -c \"exec $2\"");
        lab
    }

    /// Makes a laboratory in which an ordinary user can work too.
    pub fn for_users() -> Self {
        let lab = Self::new();
        lab.0.file("noted", b"");
        for (name, mode) in [("", 0o777), ("noted", 0o666), ("home", 0o777)] {
            fs::set_permissions(lab.join(name), fs::Permissions::from_mode(mode)).expect("ours");
        }
        lab
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a launcher that runs this shell text. `$1` is the host, `$2` the command.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let noted = self.join("noted");
        let text =
            format!("#!/bin/sh\nprintf '%s|%s|%s|%s\\n' \"$$\" \"$1\" \"$2\" \"$#\" >>'{}'\n{body}\n", noted.display());
        let path = self.0.file(name, text.as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        path
    }

    /// Prepares a command that runs in this directory and reaches hosts through the launcher of this name.
    pub fn command(&self, mut command: Command, launcher: &str, agent: &str) -> Command {
        command.arg("--rsh").arg(self.join(launcher)).args(["--agent", agent]);
        command.current_dir(self.0.path()).env("HOME", self.join("home")).env(MARK, self.0.path());
        command.env("XDG_RUNTIME_DIR", self.join("home"));
        command
    }

    /// Returns HOST:PATH for a path in this directory.
    pub fn there(&self, host: &str, name: &str) -> OsString {
        let mut text = OsString::from(format!("{host}:"));
        text.push(self.join(name));
        text
    }

    /// Returns the process id, host and command of each launch.
    pub fn launches(&self) -> Vec<(u32, String, String)> {
        let text = fs::read_to_string(self.join("noted")).unwrap_or_default();
        text.lines()
            .map(|line| {
                let words: Vec<&str> = line.split('|').collect();
                assert_eq!((words.len(), words[3]), (4, "2"), "a host and a command: {line}");
                (words[0].parse().expect("a number"), words[1].to_owned(), words[2].to_owned())
            })
            .collect()
    }

    /// Waits until no launched process is left.
    #[track_caller]
    pub fn all_gone(&self, within: Duration) {
        self.all_gone_since(Instant::now(), within);
    }

    /// Like [`all_gone`](Self::all_gone), with a limit that counts from `start`.
    #[track_caller]
    pub fn all_gone_since(&self, start: Instant, within: Duration) {
        let launches = self.launches();
        assert!(!launches.is_empty(), "something was launched");
        none_since(start, within, || launches.iter().filter(|(pid, ..)| is_alive(*pid)).collect());
    }

    /// Returns the names that belong neither to the launcher nor to the test itself (`known`).
    pub fn made(&self, known: &[&str]) -> Vec<String> {
        let names = self.0.names().into_iter();
        names
            .filter(|name| !["home", "rsh", "noted"].contains(&name.as_str()) && !known.contains(&name.as_str()))
            .collect()
    }
}

pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie, for which no process has waited yet, counts as gone.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A process with a laboratory's mark: started there directly or indirectly, no matter how it was forked.
#[derive(Debug)]
pub struct Marked {
    pub pid: u32,
    /// Name of the program's file.
    pub program: String,
    /// Name of the process in the kernel. A copy that has not yet become another program has the name of the thread
    /// that made it.
    pub name: String,
    pub arguments: String,
}

/// Returns all processes with this mark.
pub fn marked(mark: &Path) -> Vec<Marked> {
    let wanted = format!("{MARK}={}", mark.display());
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
        // `environ` is empty for a process that has exited.
        file("environ")?.split(|&byte| byte == 0).find(|&variable| variable == wanted.as_bytes())?;
        let name = String::from_utf8_lossy(&file("comm")?).trim().to_owned();
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let program = program.file_name()?.to_string_lossy().into_owned();
        let arguments = String::from_utf8_lossy(&file("cmdline")?).replace('\0', " ").trim().to_owned();
        is_alive(pid).then_some(Marked { pid, program, name, arguments })
    })
    .collect()
}

/// Time that a test may lose between the end of the last process and its look for one.
const NOTICED: Duration = Duration::from_secs(1);

/// Waits until no process with this mark is left.
#[track_caller]
pub fn none_marked(mark: &Path, within: Duration) {
    none_since(Instant::now(), within, || marked(mark));
}

/// Waits until `look` finds no process that is left. The limit counts from `start`: a wait between for another process
/// ends only when nobody holds that process's standard error any more, and may have taken all of the time.
#[track_caller]
pub fn none_since<T: std::fmt::Debug>(start: Instant, within: Duration, look: impl Fn() -> Vec<T>) {
    loop {
        let looked = start.elapsed();
        let left = look();
        if left.is_empty() {
            assert!(looked < within + NOTICED, "all are gone, but only after {looked:?}; the limit is {within:?}");
            return;
        }
        assert!(start.elapsed() < within, "still there after {within:?}: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub fn holds(path: &Path, bytes: &[u8]) {
    same(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())), bytes);
}

/// A small mounted file system.
pub struct Small(PathBuf);

impl Small {
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir(at).expect("a directory");
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at).output();
        done.is_ok_and(|output| output.status.success()).then(|| Self(at.to_owned()))
    }

    pub fn resize(&self, size: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,size={size}")]).arg(&self.0).status();
        assert!(done.expect("mount").success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
