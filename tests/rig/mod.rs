//! Runs the commands for tests: processes that are killed when their test ends, scratch
//! directories, reproducible bytes.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

pub mod examples;
pub mod holder;
pub mod hosts;
pub mod lab;
pub mod network;
mod not_run;
pub mod others;
pub mod proxy;
pub mod seeds;

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use not_run::{not_run, partly_run};

/// Session key that a user might choose.
pub const KEY: &str = "correct horse";

/// Maximum time that any step of a test without its own limit may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time for both ends to exit after a failure or a signal.
pub const SOON: Duration = Duration::from_secs(2);

/// Payload of one chunk at the default buffer size.
pub const CHUNK: usize = 1 << 20;

/// The program that contains all commands, called as `rdma-pipe rdcp ...` when no link with a command's name exists.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-pipe");

/// Returns a full pipe that is not read.
pub fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_setfl};
    let (read, mut write) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&write, OFlags::NONBLOCK).expect("a flag");
    while write.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&write, OFlags::empty()).expect("a flag");
    (read, write)
}

pub fn rdsend() -> Command {
    command("rdsend")
}

pub fn rdrecv() -> Command {
    command("rdrecv")
}

pub fn rdcp() -> Command {
    let mut command = command("rdcp");
    command.env_remove("RDCP_RSH");
    command
}

pub fn rdpipe() -> Command {
    let mut command = command("rdpipe");
    command.env_remove("RDCP_RSH");
    command
}

pub fn rdsh() -> Command {
    let mut command = command("rdsh");
    command.env_remove("RDCP_RSH");
    command
}

pub fn rdperf() -> Command {
    let mut command = command("rdperf");
    command.env_remove("RDCP_RSH");
    command
}

/// The agent's program, for `--agent`.
pub const AGENT: &str = env!("CARGO_BIN_EXE_rdma-pipe-agent");

fn command(name: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(name).env_remove("RD_KEY").env("RDMA_PIPE_CONFIG", "none");
    command
}

/// Returns a shell command that runs `line`, in which `"$@"` stands for the wrapped program and its arguments.
pub fn in_shell(line: &str, wrapped: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh"]).arg(wrapped.get_program()).args(wrapped.get_args());
    for (name, value) in wrapped.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Runs the cases of a test binary with its own `main`. It needs one because its tests also start it as a program.
pub fn run_cases(cases: &[(&'static str, fn())]) -> std::process::ExitCode {
    let trials = cases.iter().map(|&(name, case)| {
        libtest_mimic::Trial::test(name, move || {
            not_run::in_case(name);
            case();
            Ok(())
        })
    });
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials.collect()).exit_code()
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code as a shell shows it: 128+n for a signal.
    pub code: i32,
    pub stderr: String,
    /// Time from the start of the wait to the end of the process.
    pub after: Duration,
    /// When the process ended. The wait may have taken longer, because other processes held its standard error.
    pub at: Instant,
}

impl Ended {
    /// Parses the report of `--json`, which is one line of standard error.
    pub fn report(&self) -> serde_json::Value {
        let line = self.stderr.lines().find(|line| line.starts_with('{'));
        let line = line.unwrap_or_else(|| panic!("no report in {:?}", self.stderr));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }

    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "exit code; stderr: {}", self.stderr);
        self
    }

    /// Asserts that standard error has exactly one line, that it begins with the program's name, and
    /// that it contains all `parts`.
    #[track_caller]
    pub fn one_line(&self, program: &str, parts: &[&str]) -> &Self {
        let lines: Vec<&str> =
            self.stderr.lines().filter(|line| !line.starts_with("rdrecv: waiting on port")).collect();
        assert_eq!(lines.len(), 1, "one line on stderr: {:?}", self.stderr);
        assert!(lines[0].starts_with(&format!("{program}: ")), "{:?} names {program}", lines[0]);
        for part in parts {
            assert!(lines[0].contains(part), "{:?} has {part:?}", lines[0]);
        }
        self
    }

    #[track_caller]
    pub fn within(&self, limit: Duration) -> &Self {
        assert!(self.after <= limit, "took {:?}, not {limit:?}; stderr: {}", self.after, self.stderr);
        self
    }
}

/// A process that is killed when its test ends, whether the test passes or panics.
pub struct Process {
    child: Child,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// The thread that reads standard error, and the name of that pipe.
    stderr_reader: Option<(JoinHandle<()>, PathBuf)>,
}

impl Process {
    /// Starts the process with its standard error captured.
    pub fn spawn(command: &mut Command) -> Self {
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut pipe = child.stderr.take().expect("piped");
        let name = pipe_name(&pipe);
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&stderr);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                into.lock().expect("no panic").extend(&bytes[..count]);
            }
        });
        Self { child, stderr, stderr_reader: Some((reader, name)) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("piped standard input")
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("piped standard output")
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr_bytes()).into_owned()
    }

    /// Returns standard error as raw bytes.
    pub fn stderr_bytes(&self) -> Vec<u8> {
        self.stderr.lock().expect("no panic").clone()
    }

    /// Waits until a complete line of standard error contains `part`, and returns that line.
    #[track_caller]
    pub fn line_with(&self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.stderr();
            let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
            if let Some(line) = whole.lines().find(|line| line.contains(part)) {
                return line.to_owned();
            }
            assert!(Instant::now() < until, "no {part:?} in {text:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the port that an rdrecv with PORT 0 reports on standard error.
    #[track_caller]
    pub fn port(&self) -> u16 {
        let line = self.line_with("waiting on port ");
        line.rsplit(' ').next().expect("a word").parse().expect("a port")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("not 0");
        rustix::process::kill_process(pid, signal).expect("a process of ours");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Returns a field of /proc/PID/status, in KiB.
    pub fn status_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a living process");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// Returns the process's state letter; T means stopped.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a child");
        stat.rsplit_once(") ").expect("a name").1.chars().next().expect("a state")
    }

    /// Waits until the process is stopped or, with `is_stopped` false, runs again.
    #[track_caller]
    pub fn await_stopped(&self, is_stopped: bool) {
        let until = Instant::now() + PATIENCE;
        while (self.state() == 'T') != is_stopped {
            assert!(Instant::now() < until, "its state is {}", self.state());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn wait(&mut self) -> Ended {
        self.wait_for(PATIENCE)
    }

    /// Waits for the process to exit, and for all others that hold its standard error to close it. Fails if the process
    /// has not exited after `limit`. The others get a busy machine's time: a test in which they must end sooner
    /// measures that from [`Ended::at`], or from the moment of its own at which their end began.
    #[track_caller]
    pub fn wait_for(&mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                let at = Instant::now();
                if let Some((reader, pipe)) = self.stderr_reader.take() {
                    read_whole(reader, &pipe, at + PATIENCE);
                }
                let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("one of the two");
                return Ended { code, stderr: self.stderr(), after: at - start, at };
            }
            if start.elapsed() > limit {
                panic!("still running after {limit:?}; stderr: {}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the name under which /proc lists a pipe, which is the same for both of its ends.
pub fn pipe_name(end: &impl AsRawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", end.as_raw_fd())).expect("an open pipe")
}

/// Returns the result of a thread that reads a pipe to its end. Fails at `until`, and names the processes that still
/// hold the pipe.
#[track_caller]
pub fn read_whole<T>(reader: JoinHandle<T>, pipe: &Path, until: Instant) -> T {
    while !reader.is_finished() {
        assert!(Instant::now() < until, "the output has not ended, because it is held by {:?}", holders(pipe));
        std::thread::sleep(Duration::from_millis(2));
    }
    reader.join().expect("no panic")
}

/// Returns the process ids and command lines of the other processes that have this pipe open.
fn holders(pipe: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|open| open == pipe)
    };
    let shown = |pid: u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!("{pid} {}", String::from_utf8_lossy(&words).replace('\0', " ").trim())
    };
    pids.filter(|&pid| pid != std::process::id()).filter(holds).map(shown).collect()
}

/// A directory that is removed when its test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir_all(root).expect("a directory for scratch directories");
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!("e2e-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Process ids recur, and a test that was killed has left its directory.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        path
    }

    /// Keeps the directory, so that a failure can be examined.
    pub fn keep(self) -> PathBuf {
        let path = self.0.clone();
        std::mem::forget(self);
        path
    }

    /// Returns the names in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the partial files in a directory and the bytes allocated to each. A file's size may be
/// set before its data arrives.
pub fn partials(directory: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".rd-part"));
    ours.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.blocks() * 512))).collect()
}

/// Returns the number of bytes of a tree on the disk. A file may have its length before its contents.
pub fn disk_bytes_below(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else {
        return std::fs::symlink_metadata(path).map_or(0, |file| file.blocks() * 512);
    };
    entries.flatten().map(|entry| disk_bytes_below(&entry.path())).sum()
}

/// Returns the temporary name under which this user's copies make an entry (`rd-part`,
/// `rd-link`) or mark it (`rd-half`).
pub fn name_beside(name: &str, ending: &str) -> String {
    let user = rustix::process::geteuid();
    let own = if user.is_root() || ending == "rd-half" { String::new() } else { format!("/{}", user.as_raw()) };
    format!(".{}.{ending}", &blake3::hash(format!("{name}{own}").as_bytes()).to_hex()[..32])
}

/// A xorshift generator. Equal seeds give equal bytes, and the bytes do not compress.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Seeds from `RD_SEED`, or else from the system, and prints the seed so that a failure can be reproduced.
    pub fn printed(test: &str) -> Self {
        let seed = match std::env::var("RD_SEED") {
            Ok(seed) => seed.parse().expect("RD_SEED is a number"),
            Err(_) => u64::from(std::process::id()) << 20 ^ clock_nanos(),
        };
        eprintln!("{test}: RD_SEED={seed}");
        Self::new(seed)
    }

    /// Seeds from the system.
    pub fn system() -> Self {
        Self::new(u64::from(std::process::id()) << 20 ^ clock_nanos())
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}

fn clock_nanos() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Returns bytes that do not compress.
pub fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(length as u64 + 1).fill(&mut bytes);
    bytes
}

/// Returns bytes that compress well.
pub fn text(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 64);
    let mut line = 0;
    while bytes.len() < length {
        let _ = writeln!(bytes, "line {line}: all work and no play makes a dull stream");
        line += 1;
    }
    bytes.truncate(length);
    bytes
}

/// Asserts that both are equal, without printing megabytes.
#[track_caller]
pub fn same(got: &[u8], sent: &[u8]) {
    let different = got.iter().zip(sent).position(|(a, b)| a != b);
    assert!(
        got.len() == sent.len() && different.is_none(),
        "{} bytes for {}, first difference at {different:?}",
        got.len(),
        sent.len()
    );
}

/// Returns a port that was free a moment ago, for tests that must name a port before any process listens on it. It is
/// below the ephemeral ports, because the kernel could give one of those to another process meanwhile.
pub fn free_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("proc");
    let first: u64 = range.split_whitespace().next().expect("two ports").parse().expect("a port");
    let mut random = Random::system();
    // Where that range begins early, it is one of them all the same.
    let mut any = || if first > 12_000 { (10_000 + random.below(first - 10_000)) as u16 } else { 0 };
    let listener = (0..100).find_map(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, any())).ok());
    listener.expect("a port").local_addr().expect("bound").port()
}

/// Starts an rdrecv with [`KEY`] on a port of its own choice, with its output piped.
#[track_caller]
pub fn start_recv<S: AsRef<OsStr>>(options: &[S], file: Option<&Path>) -> (Process, u16) {
    let mut command = rdrecv();
    command.args(options).args(["0", KEY]).args(file).stdin(Stdio::null()).stdout(Stdio::piped());
    let process = Process::spawn(&mut command);
    let port = process.port();
    (process, port)
}

/// Starts an rdsend with [`KEY`] to `port` on this host, with its input piped.
pub fn start_send<S: AsRef<OsStr>>(options: &[S], port: u16, file: Option<&Path>) -> Process {
    let mut command = rdsend();
    command.args(options).args(["127.0.0.1", &port.to_string(), KEY]).args(file);
    Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
}

/// Writes in a separate thread. The pipe closes when all bytes are written or the reader has closed it.
pub fn feed(mut pipe: ChildStdin, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || drop(pipe.write_all(&bytes)))
}

/// Writes all input to a process, and waits for its exit and for all of its output.
#[track_caller]
pub fn finish(mut process: Process, input: &[u8]) -> (Ended, Vec<u8>) {
    let fed = feed(process.stdin(), input.to_vec());
    let output = drain(process.stdout());
    let ended = process.wait();
    fed.join().expect("no panic");
    (ended, output.join().expect("no panic"))
}

/// Reads to the end of the pipe in a separate thread.
pub fn drain(mut pipe: ChildStdout) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Outcome of a complete transfer.
pub struct Transferred {
    pub send: Ended,
    pub recv: Ended,
    /// Bytes that rdrecv wrote to its standard output.
    pub output: Vec<u8>,
}

/// Sends `input` from end to end through pipes.
#[track_caller]
pub fn transfer(send_options: &[&str], recv_options: &[&str], input: &[u8]) -> Transferred {
    let (mut recv, port) = start_recv(recv_options, None);
    let output = drain(recv.stdout());
    let mut send = start_send(send_options, port, None);
    let fed = feed(send.stdin(), input.to_vec());
    let (send, recv) = (send.wait(), recv.wait());
    fed.join().expect("no panic");
    Transferred { send, recv, output: output.join().expect("no panic") }
}

impl Transferred {
    /// Asserts that both ends exited with 0 and that the bytes are right.
    #[track_caller]
    pub fn well(&self, input: &[u8]) -> &Self {
        self.send.expect(0);
        self.recv.expect(0);
        same(&self.output, input);
        self
    }
}

/// An endless stream. When it is returned, 1 MiB has come out of rdrecv, and further output is read as it comes.
pub struct Flowing {
    pub send: Process,
    pub recv: Process,
    output: JoinHandle<Vec<u8>>,
}

/// Starts an endless stream from /dev/zero, at a rate that a shared machine can sustain.
#[track_caller]
pub fn flowing(send_options: &[&str], recv_options: &[&str]) -> Flowing {
    let (mut recv, port) = start_recv(recv_options, None);
    let mut options = vec!["--bwlimit", "50M"];
    options.extend(send_options);
    let send = start_send(&options, port, Some(Path::new("/dev/zero")));
    let mut pipe = recv.stdout();
    pipe.read_exact(&mut vec![0; 1 << 20])
        .unwrap_or_else(|error| panic!("nothing flows: {error}; rdsend: {} rdrecv: {}", send.stderr(), recv.stderr()));
    Flowing { send, recv, output: drain(pipe) }
}

impl Flowing {
    /// Waits for both ends to exit.
    #[track_caller]
    pub fn wait(mut self) -> (Ended, Ended) {
        let start = Instant::now();
        let mut send = self.send.wait();
        send.after = start.elapsed();
        let mut recv = self.recv.wait();
        recv.after = start.elapsed();
        let output = self.output.join().expect("no panic");
        assert!(output.iter().all(|&byte| byte == 0), "what came before the end is right");
        (send, recv)
    }
}

/// Returns the number of the file's bytes that are in the page cache.
pub fn cached_bytes(path: &Path) -> u64 {
    let output = Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path).output().expect("util-linux");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}
