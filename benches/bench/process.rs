//! Processes with a time limit, whose end, processor time and memory are known.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, set_child_subreaper, wait, waitid};

use crate::harness::{Result, text};

/// Maximum duration of a run. A process that takes longer is killed and fails the row.
pub const RUN_LIMIT: Duration = Duration::from_secs(300);
pub const READY_LIMIT: Duration = Duration::from_secs(30);

/// A process that is killed when it is no longer needed.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a process has ended.
pub struct Ended {
    pub code: i32,
    /// Standard error, and standard output if it was asked for.
    pub said: String,
    pub at: Instant,
    /// User and system time of the process and of the children that it has waited for.
    pub cpu_s: f64,
}

/// A process whose end a thread waits for, so that a limit applies and the time is exact.
pub struct Running {
    pub name: String,
    pub id: u32,
    ended: mpsc::Receiver<Result<Ended>>,
    limit: Duration,
}

impl Running {
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::start_with_input(command.stdin(Stdio::null()))
    }

    /// Starts the command with the standard input that it has been given. Standard output is /dev/null itself,
    /// which is a receiver's sink.
    pub fn start_with_input(command: &mut Command) -> Result<Self> {
        Self::spawn(command, false)
    }

    /// Starts the command, and keeps its standard output as well.
    pub fn start_saying(command: &mut Command) -> Result<Self> {
        Self::spawn(command.stdin(Stdio::null()), true)
    }

    fn spawn(command: &mut Command, says: bool) -> Result<Self> {
        // The environment is left out, because a report has no use for it.
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let name = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        // A file instead of a pipe, because a process left behind would hold a pipe open.
        let said = tempfile::tempfile().map_err(text)?;
        command.stdout(if says { Stdio::from(said.try_clone().map_err(text)?) } else { Stdio::null() });
        command.stderr(said.try_clone().map_err(text)?);
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let id = child.id();
        let (report, ended) = mpsc::channel();
        thread::spawn(move || {
            let _ = report.send(await_end(child, said));
        });
        Ok(Running { name, id, ended, limit: RUN_LIMIT })
    }

    /// Sets another limit, for a process that is known to hang.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub fn end(self) -> Result<Ended> {
        match self.ended.recv_timeout(self.limit) {
            Ok(ended) => ended.map_err(|error| format!("{}: {error}", self.name)),
            Err(_) => Err(format!("{}: has not ended in {} s", self.name, self.limit.as_secs())),
        }
    }

    /// Waits for the end, and fails unless the exit code is 0.
    pub fn done(self) -> Result<Ended> {
        let name = self.name.clone();
        match self.end()? {
            ended if ended.code == 0 => Ok(ended),
            ended => Err(format!("{name}: exit code {}: {}", ended.code, ended.said.trim())),
        }
    }

    pub fn success(self) -> Result<String> {
        self.done().map(|ended| ended.said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may still be running, and must not disturb the next measurement.
        if matches!(self.ended.try_recv(), Err(mpsc::TryRecvError::Empty)) {
            let _ = Command::new("kill").args(["-KILL", &self.id.to_string()]).stderr(Stdio::null()).status();
        }
    }
}

fn await_end(mut child: Child, mut said: File) -> Result<Ended> {
    // Waits before the process is reaped, because its times vanish then.
    let here = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), here).map_err(|error| error.to_string())?;
    let at = Instant::now();
    let times = times(child.id());
    let status = child.wait().map_err(text)?;
    let mut bytes = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut bytes)).map_err(text)?;
    let said = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ended { code: status.code().unwrap_or(-1), said, at, cpu_s: times?.whole() })
}

/// Processor time of a process, in seconds.
struct Times {
    own: f64,
    /// Processor time of children that have been waited for, and of their children.
    children: f64,
}

impl Times {
    fn whole(&self) -> f64 {
        self.own + self.children
    }
}

/// Returns the times that the kernel has added up for a process. Its clock ticks in hundredths of a second.
fn times(id: u32) -> Result<Times> {
    let path = format!("/proc/{id}/stat");
    let stat = fs::read_to_string(&path).map_err(text)?;
    // The third field follows the name, which may contain any character. utime, stime, cutime and
    // cstime are fields 14 to 17.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    let sum = |places: [usize; 2]| -> Option<f64> {
        let ticks = places.map(|place| fields.get(place).and_then(|field| field.parse::<f64>().ok()));
        Some((ticks[0]? + ticks[1]?) / rustix::param::clock_ticks_per_second() as f64)
    };
    let (own, children) = sum([11, 12]).zip(sum([13, 14])).ok_or(format!("no times in {path}"))?;
    Ok(Times { own, children })
}

/// While this value lives, processes whose parents have ended become children of this program.
pub struct Adopting;

pub fn adopt() -> Result<Adopting> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| error.to_string())?;
    Ok(Adopting)
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let _ = set_child_subreaper(None);
    }
}

/// Returns the seconds of processor time for each GB that the processes of `run` take. These are the times that the
/// kernel has added up for this program's children, including adopted ones, for whose end this waits, and the times of
/// `server`, which runs on, and of its children.
pub fn spent(server: Option<u32>, bytes: u64, run: impl Fn() -> Result<()>) -> Result<f64> {
    let all = || -> Result<f64> {
        let of_server = server.map(times).transpose()?.map_or(0.0, |times| times.whole());
        Ok(times(std::process::id())?.children + of_server)
    };
    let before = all()?;
    run()?;
    wait_until("processes that are left over to end", || {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let mut left = children(std::process::id());
        left.retain(|child| Some(*child) != server);
        left.is_empty() && server.is_none_or(is_childless)
    })?;
    Ok((all()? - before) / (bytes as f64 / 1e9))
}

/// Returns the same for `server` and its children alone.
pub fn spent_by(server: u32, bytes: u64, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = times(server)?.whole();
    run()?;
    wait_until("the server's processes to end", || is_childless(server))?;
    Ok((times(server)?.whole() - before) / (bytes as f64 / 1e9))
}

fn is_childless(id: u32) -> bool {
    children(id).is_empty()
}

fn children(id: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

/// The highest resident memory of some processes, read until they have ended.
pub struct Memory(thread::JoinHandle<Vec<f64>>);

impl Memory {
    pub fn watch(ids: &[u32]) -> Self {
        let paths: Vec<String> = ids.iter().map(|id| format!("/proc/{id}/status")).collect();
        Memory(thread::spawn(move || {
            let mut highest = vec![0.0; paths.len()];
            let start = Instant::now();
            loop {
                let mut alive = false;
                for (path, highest) in paths.iter().zip(&mut highest) {
                    let status = fs::read_to_string(path).unwrap_or_default();
                    let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
                    if let Some(kib) = field.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()) {
                        *highest = kib / 1024.0;
                        alive = true;
                    }
                }
                if !alive || start.elapsed() > RUN_LIMIT {
                    return highest;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }))
    }

    pub fn highest<const N: usize>(self) -> [f64; N] {
        let highest = self.0.join().unwrap_or_default();
        std::array::from_fn(|index| highest.get(index).copied().unwrap_or(0.0))
    }
}

pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    listener.local_addr().map(|address| address.port()).map_err(text)
}

pub fn wait_listening(port: u16) -> Result<()> {
    wait_until(&format!("port {port} to listen"), || {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .any(|path| listens(&fs::read_to_string(path).unwrap_or_default(), port))
    })
}

pub fn wait_until(what: &str, holds: impl FnMut() -> bool) -> Result<()> {
    wait_within(what, READY_LIMIT, holds)
}

pub fn wait_within(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return Err(format!("waited {} s for {what}", limit.as_secs()));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether a table of /proc/net has a socket in state LISTEN (0A) on the port.
pub fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}
