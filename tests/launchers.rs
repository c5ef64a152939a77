//! Requirements on every launcher, checked for each that is installed: ssh, another command in its place, a
//! template, `mpirun`, and `srun` within a real Slurm cluster. Also shows what `clush` and `pdsh` cannot do, which
//! is why they are not launchers.
//!
//! `tests/run` runs these as root within `tests/testbed/slurm`. Elsewhere the Slurm cases are not run, nor are cases
//! whose program is missing. They are listed as ignored, with the reason in their names.

mod rig;

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rdma_pipe::control::channel::{Outbox, receive, skip_to_magic};
use rdma_pipe::control::frames::{Hello, Message};
use rdma_pipe::control::launch::{Launched, Launcher, agent_command};
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time for an answer that is delayed only by the launcher.
const ANSWER: Duration = Duration::from_secs(20);

/// A launcher under test.
struct Kind {
    name: &'static str,
    /// Programs without which the launcher is skipped.
    needs: &'static [&'static str],
    /// Environment variable that is set where the services that it needs are running.
    variable: Option<&'static str>,
    launcher: fn() -> Launcher,
    host: fn() -> String,
}

const KINDS: &[Kind] = &[
    Kind { name: "ssh", needs: &["/usr/sbin/sshd", "ssh"], variable: None, launcher: ssh, host: local },
    Kind {
        name: "ssh-for-logins",
        needs: &["/usr/sbin/sshd", "ssh"],
        variable: None,
        launcher: ssh_for_logins,
        host: local,
    },
    Kind { name: "rsh", needs: &[], variable: None, launcher: rsh, host: local },
    Kind { name: "template", needs: &[], variable: None, launcher: template, host: local },
    Kind { name: "mpirun", needs: &["mpirun"], variable: None, launcher: mpirun, host: local },
    Kind { name: "slurm", needs: &["srun"], variable: Some("RD_SLURM_NODES"), launcher: slurm, host: node },
];

type Case = fn(&Kind) -> Result<(), Failed>;

const CASES: &[(&str, Case)] = &[
    ("an_agent_greets", an_agent_greets),
    ("each_byte_comes_as_it_is_written", each_byte_comes_as_it_is_written),
    ("much_of_any_bytes_both_ways", much_of_any_bytes_both_ways),
    ("standard_error_is_apart", standard_error_is_apart),
    ("the_exit_code_is_the_programs", the_exit_code_is_the_programs),
    ("the_end_of_input_ends_it", the_end_of_input_ends_it),
    ("killed_it_leaves_nothing", killed_it_leaves_nothing),
    ("words_that_a_shell_would_change", words_that_a_shell_would_change),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for kind in KINDS {
        let missing = kind.missing();
        for &(name, case) in CASES {
            let name = match &missing {
                None => format!("{}::{name}", kind.name),
                Some(reason) => format!("{}::{name} ({reason})", kind.name),
            };
            trials.push(Trial::test(name, move || case(kind)).with_ignored_flag(missing.is_some()));
        }
    }
    for (program, name, case) in [
        ("clush", "clush::waits_for_whole_lines", clush_waits_for_whole_lines as fn() -> Result<(), Failed>),
        ("pdsh", "pdsh::has_no_input", pdsh_has_no_input),
        ("/usr/sbin/sshd", "ssh::completes_paths_and_asks_nothing", ssh_completes_paths_and_asks_nothing),
    ] {
        let is_missing = !is_installed(program);
        let name = if is_missing { format!("{name} ({program} is not installed)") } else { name.to_owned() };
        trials.push(Trial::test(name, case).with_ignored_flag(is_missing));
    }
    for (name, case) in [
        ("slurm::copies_within_an_allocation", copies_within_an_allocation as fn() -> Result<(), Failed>),
        ("slurm::a_tree_to_every_node_of_the_allocation", a_tree_to_every_node_of_the_allocation),
        ("slurm::a_cancelled_job_leaves_nothing", a_cancelled_job_leaves_nothing),
        ("slurm::lines_of_the_guide", lines_of_the_guide),
    ] {
        let is_missing = std::env::var_os("RD_SLURM_NODES").is_none();
        let name = if is_missing { format!("{name} (needs tests/testbed/slurm)") } else { name.to_owned() };
        trials.push(Trial::test(name, case).with_ignored_flag(is_missing));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A static is never dropped.
    if let Ok(mut sshd) = SSHD.lock() {
        sshd.take();
    }
    conclusion.exit_code()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Path::new(program).is_absolute() && Path::new(program).exists()
        || std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl Kind {
    fn missing(&self) -> Option<String> {
        if let Some(program) = self.needs.iter().find(|program| !is_installed(program)) {
            return Some(format!("{program} is not installed"));
        }
        let is_there = self.variable.is_none_or(|variable| std::env::var_os(variable).is_some());
        (!is_there).then(|| "needs tests/testbed/slurm".to_owned())
    }

    fn start(&self, command: &str) -> Launched {
        let host = (self.host)();
        (self.launcher)().start(host.as_ref(), command.as_ref()).expect("a launcher that is installed")
    }

    /// Starts a program that runs this shell text, at a path that needs no quoting.
    fn script(&self, scratch: &Scratch, body: &str) -> Launched {
        let path = scratch.file("script", format!("#!/bin/sh\n{body}\n").as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        self.start(path.to_str().expect("UTF-8"))
    }
}

fn local() -> String {
    "127.0.0.1".to_owned()
}

/// A node other than the one on which srun runs.
fn node() -> String {
    "h2".to_owned()
}

static SSHD: Mutex<Option<Arc<Sshd>>> = Mutex::new(None);

/// An sshd on this host, shared by all cases.
struct Sshd {
    scratch: Scratch,
    port: u16,
    _server: Process,
}

fn sshd() -> Arc<Sshd> {
    let mut sshd = SSHD.lock().expect("it has started before");
    let started = sshd.get_or_insert_with(|| {
        let scratch = Scratch::new();
        if fs::create_dir_all("/run/sshd").is_err() {
            assert_ne!(rustix::process::getuid().as_raw(), 0, "root can make it");
        }
        for name in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let path = |name: &str| scratch.join(name).display().to_string();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nPidFile none\nPrintMotd no\n",
            path("host_key"),
            path("user_key.pub"),
        );
        scratch.file("sshd_config", server.as_bytes());
        let client = format!(
            "Host *\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile /dev/null\n  \
             StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes\n",
            path("user_key")
        );
        scratch.file("ssh_config", client.as_bytes());
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &path("sshd_config")]).stdin(Stdio::null()).stdout(Stdio::null());
        let server = Process::spawn(&mut command);
        server.line_with("listening on");
        Arc::new(Sshd { scratch, port, _server: server })
    });
    Arc::clone(started)
}

fn ssh() -> Launcher {
    let options = ["-F".into(), sshd().scratch.join("ssh_config").into_os_string()];
    Launcher::new("ssh".as_ref(), options.to_vec()).expect("words")
}

/// ssh with a configuration for logins: it requests a terminal, and its port forwarding cannot be set up a second time.
fn ssh_for_logins() -> Launcher {
    let sshd = sshd();
    let plain = fs::read_to_string(sshd.scratch.join("ssh_config")).expect("its configuration");
    let logins = format!(
        "{plain}  RequestTTY force\n  LocalForward 127.0.0.1:{} 127.0.0.1:1\n  ExitOnForwardFailure yes\n",
        sshd.port
    );
    let path = sshd.scratch.file("ssh_config_for_logins", logins.as_bytes());
    Launcher::bare("ssh".as_ref(), vec!["-F".into(), path.into_os_string()]).expect("words")
}

fn rsh() -> Launcher {
    Launcher::new("sh -c 'exec sh -c \"$1\"'".as_ref(), Vec::new()).expect("words")
}

fn template() -> Launcher {
    Launcher::template("env RD_HOST_IS=%h sh -c %c".as_ref()).expect("words")
}

fn mpirun() -> Launcher {
    let root = if rustix::process::getuid().is_root() { "--allow-run-as-root " } else { "" };
    Launcher::template(format!("mpirun -q {root}-n 1 --host %h sh -c %c").as_ref()).expect("words")
}

fn slurm() -> Launcher {
    Launcher::slurm()
}

/// Reads this many bytes within the time allowed for an answer.
fn read_within(pipe: &mut (impl Read + Send), count: usize) -> Result<Vec<u8>, Failed> {
    std::thread::scope(|scope| {
        let (give, taken) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let mut bytes = vec![0; count];
            let read = pipe.read_exact(&mut bytes);
            let _ = give.send(read.map(|()| bytes));
        });
        match taken.recv_timeout(ANSWER) {
            Ok(read) => Ok(read?),
            // The reader would keep the scope open.
            Err(_) => {
                eprintln!("{count} bytes have not come within {ANSWER:?}");
                std::process::abort()
            }
        }
    })
}

fn an_agent_greets(kind: &Kind) -> Result<(), Failed> {
    let command = agent_command(AGENT.as_ref());
    let Launched { stdin, stdout, mut process } = kind.start(command.to_str().expect("UTF-8"));
    let outbox = Outbox::start(stdin, b"", None)?;
    let mut stdout = BufReader::new(stdout);
    skip_to_magic(&mut stdout)?;
    let hello = receive(&mut stdout)?;
    assert!(matches!(hello, Message::Hello(_)), "{hello:?}");
    outbox.send(Message::Hello(Hello::ours()));
    outbox.close();
    assert_eq!(process.wait(ANSWER), Some(0));
    Ok(())
}

fn each_byte_comes_as_it_is_written(kind: &Kind) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let Launched { mut stdin, mut stdout, mut process } = kind.script(&scratch, "exec cat");
    for byte in (0..=255_u8).rev() {
        stdin.write_all(&[byte])?;
        assert_eq!(read_within(&mut stdout, 1)?, [byte]);
    }
    drop(stdin);
    assert_eq!(process.wait(ANSWER), Some(0));
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest)?;
    assert_eq!(rest, b"");
    Ok(())
}

fn much_of_any_bytes_both_ways(kind: &Kind) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let Launched { mut stdin, mut stdout, mut process } = kind.script(&scratch, "exec cat");
    let bytes = noise(4 << 20);
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    same(&read_within(&mut stdout, bytes.len())?, &bytes);
    writer.join().expect("no panic")?;
    assert_eq!(process.wait(ANSWER), Some(0));
    Ok(())
}

fn standard_error_is_apart(kind: &Kind) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let Launched { stdin, mut stdout, mut process } = kind.script(&scratch, "echo words >&2; echo out; cat");
    assert_eq!(read_within(&mut stdout, 4)?, b"out\n");
    let until = Instant::now() + ANSWER;
    let mut said = None;
    while said.is_none() && Instant::now() < until {
        said = process.last_complaint();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(said.as_deref(), Some("words"));
    drop(stdin);
    assert_eq!(process.wait(ANSWER), Some(0));
    Ok(())
}

fn the_exit_code_is_the_programs(kind: &Kind) -> Result<(), Failed> {
    for code in [0, 7, 127] {
        let scratch = Scratch::new();
        let mut launched = kind.script(&scratch, &format!("exit {code}"));
        assert_eq!(launched.process.wait(ANSWER), Some(code));
    }
    Ok(())
}

fn the_end_of_input_ends_it(kind: &Kind) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let Launched { stdin, mut stdout, mut process } = kind.script(&scratch, "echo up; cat; exit 3");
    assert_eq!(read_within(&mut stdout, 3)?, b"up\n");
    drop(stdin);
    assert_eq!(process.wait(ANSWER), Some(3));
    Ok(())
}

/// A command that reads its input, as an agent does, ends soon after its launcher was killed, with or
/// without a chance to clean up.
fn killed_it_leaves_nothing(kind: &Kind) -> Result<(), Failed> {
    for how in [Signal::TERM, Signal::KILL] {
        let scratch = Scratch::new();
        let Launched { stdin, mut stdout, mut process } = kind.script(&scratch, "echo $$; exec cat");
        let mut number = String::new();
        loop {
            match read_within(&mut stdout, 1)?[0] {
                b'\n' => break,
                digit => number.push(digit.into()),
            }
        }
        let remote = PathBuf::from(format!("/proc/{number}"));
        assert!(remote.exists(), "hosts share one kernel here");
        kill_process(Pid::from_raw(process.id() as i32).expect("a process"), how)?;
        drop(stdin);
        let until = Instant::now() + ANSWER;
        while remote.exists() {
            // The process may be the launcher itself.
            process.wait(Duration::ZERO);
            assert!(Instant::now() < until, "{how:?}: process {number} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn words_that_a_shell_would_change(kind: &Kind) -> Result<(), Failed> {
    if !(kind.launcher)().has_shell() {
        return Ok(());
    }
    let mut launched = kind.start("printf '%s|' \"a  b\" 'c$d' \"$((1 + 2))\"; exit 4");
    assert_eq!(read_within(&mut launched.stdout, 11)?, b"a  b|c$d|3|");
    Ok(())
}

/// Runs a program whose input stays open. Returns its output once that is long enough, or after `limit`.
fn printed_of(mut command: Command, input: &[u8], enough: usize, limit: Duration) -> Vec<u8> {
    let mut child = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (post, printed) = std::sync::mpsc::channel();
    let mut output = child.stdout();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut piece) {
            let _ = post.send(piece[..count].to_vec());
        }
    });
    let mut stdin = child.stdin();
    let _ = stdin.write_all(input);
    let (until, mut seen) = (Instant::now() + limit, Vec::new());
    while seen.len() < enough
        && let Ok(piece) = printed.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        seen.extend(piece);
    }
    child.signal(Signal::KILL);
    child.wait();
    drop(stdin);
    reader.join().expect("no panic");
    seen
}

/// clush forwards whole lines. Bytes without a newline after them are held back, and the agent's messages have none.
fn clush_waits_for_whole_lines() -> Result<(), Failed> {
    let configuration = sshd().scratch.join("ssh_config");
    let clush = || {
        let mut command = Command::new("clush");
        // Python buffers its output into a pipe, which is another reason against clush.
        command.env("PYTHONUNBUFFERED", "1");
        command.args(["-N", "-w", "127.0.0.1", "-o"]).arg(format!("-F {}", configuration.display())).arg("cat");
        command
    };
    assert_eq!(printed_of(clush(), b"line\n", 5, PATIENCE), b"line\n", "it can reach the host");
    assert_eq!(printed_of(clush(), b"no line", 1, Duration::from_secs(5)), b"");
    Ok(())
}

fn pdsh_has_no_input() -> Result<(), Failed> {
    let sshd = sshd();
    let arguments = format!("-F {} -p {}", sshd.scratch.join("ssh_config").display(), sshd.port);
    let pdsh = |program: &str| {
        let mut command = Command::new("pdsh");
        command.args(["-N", "-R", "ssh", "-w", "127.0.0.1", program]).env("PDSH_SSH_ARGS_APPEND", &arguments);
        command
    };
    assert_eq!(printed_of(pdsh("echo up"), b"", 3, PATIENCE), b"up\n", "it can reach the host");
    assert_eq!(printed_of(pdsh("head -n 1"), b"line\n", 1, Duration::from_secs(5)), b"");
    Ok(())
}

/// Runs at a terminal, where a question would be shown.
fn ssh_completes_paths_and_asks_nothing() -> Result<(), Failed> {
    let sshd = sshd();
    let scratch = Scratch::new();
    scratch.file("file", b"");
    let shown = |options: &str| {
        let configuration = sshd.scratch.join("ssh_config");
        let line = format!("rdcp {options} -F {} 127.0.0.1:{}/", configuration.display(), scratch.path().display());
        let command = format!("RDMA_PIPE_CONFIG=none {PROGRAM} complete fish rdcp '{line}'");
        let output = Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
        String::from_utf8(output.expect("script").stdout).expect("UTF-8").replace('\r', "")
    };
    let found = format!("none\n127.0.0.1:{}/file\n", scratch.path().display());
    // On a busy machine a login takes longer than the second that a user waits. A connection
    // that already exists does not.
    let socket = scratch.join(".shared");
    let shared = format!("-o ControlPath={}", socket.display());
    let mut master = Command::new("ssh");
    master.arg("-F").arg(sshd.scratch.join("ssh_config")).args(["-o", &shared[3..], "-M", "-N", "127.0.0.1"]);
    let _master = Process::spawn(master.stdin(Stdio::null()).stdout(Stdio::null()));
    let until = Instant::now() + PATIENCE;
    while !socket.exists() {
        assert!(Instant::now() < until, "ssh shares its connection");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut last = String::new();
    let is_found = (0..20).any(|_| {
        last = shown(&shared);
        last == found
    });
    assert!(is_found, "{last}");
    for would_ask in ["StrictHostKeyChecking=ask", "PubkeyAuthentication=no"] {
        assert_eq!(shown(&format!("-o {would_ask} -o BatchMode=no")), "none\n", "{would_ask}");
    }
    Ok(())
}

/// Returns the output of a Slurm command, or of a command that Slurm runs.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("a program");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Reads a file from another node's own file system.
fn on_node(node: u32, path: &Path) -> Option<Vec<u8>> {
    let output = hosts::on(node, Command::new("cat").arg(path)).output().expect("the testbed");
    output.status.success().then_some(output.stdout)
}

fn node_directory() -> PathBuf {
    std::env::var_os("RD_NODE_DIR").expect("RD_NODE_DIR is not set: run tests/testbed/slurm with 4 ...").into()
}

/// Only the node's name is needed. Slurm provides identity and clean-up. A list of hosts may have a single one, as that
/// of the hosts that failed.
fn copies_within_an_allocation() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let bytes = noise(3 << 20);
    let source = scratch.file("source", &bytes);
    let list = scratch.file("list", b"h2\n").display().to_string();
    fs::set_permissions(scratch.file("ssh", b"#!/bin/sh\nexit 255\n"), fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", scratch.path().display(), std::env::var("PATH")?);
    for (name, how, host) in [("copy", ["--launcher", "slurm"], "h2:"), ("listed", ["--hosts", &*list], "")] {
        let to = node_directory().join(name);
        let mut command = Command::new("salloc");
        command.args(["-N2", "-w", "h1,h2", "-Q", PROGRAM, "rdcp", "--agent", AGENT]).args(how).env("PATH", &path);
        command.arg(&source).arg(format!("{host}{}", to.display())).env_remove("RDCP_RSH");
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
        same(&on_node(2, &to).expect("a copy"), &bytes);
        assert!(!to.exists(), "each node has its own");
    }
    network::all_gone(SOON);
    Ok(())
}

/// Slurm is detected automatically, as are the nodes. Each host's state and hop are reported. The agents take no part of
/// what a job asks for. srun neither writes what a person wants to see of the job, nor takes the environment away.
fn a_tree_to_every_node_of_the_allocation() -> Result<(), Failed> {
    let nodes: u32 = std::env::var("RD_SLURM_NODES")?.parse()?;
    a_tree_to_every_node("tree", &[], &[])?;
    let variables = ["env", "SLURM_DEBUG=1", "SLURM_LABELIO=1", "SLURM_EXPORT_ENV=NONE"];
    a_tree_to_every_node("gpus", &[&format!("--gpus={}", 2 * nodes)], &variables)?;
    // Another step has all memory that the job has asked for.
    let beside = "srun --quiet sleep 99 & until squeue -hs -j $SLURM_JOB_ID | grep -q sleep; do sleep 0.1; done; \
        \"$@\"; code=$?; kill $!; exit $code";
    a_tree_to_every_node("memory", &["--partition=memory", "--mem-per-cpu=500"], &["sh", "-c", beside, "sh"])?;
    // A command of a pipeline has the GPUs that the job has on its node.
    let mut command = Command::new("salloc");
    command.args(["-Q", "-N2", "-w", "h1,h2", "--gres=gpu:2", PROGRAM, "rdpipe"]);
    command.args(["--launcher", "slurm", "--agent", AGENT]);
    command.arg("h2:sh -c 'echo $SLURM_GPUS_ON_NODE'").arg("cat").env_remove("RDCP_RSH");
    let mut child = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let output = drain(child.stdout());
    child.wait().expect(0);
    assert_eq!(output.join().expect("no panic"), b"2\n");
    Ok(())
}

fn a_tree_to_every_node(name: &str, options: &[&str], before: &[&str]) -> Result<(), Failed> {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("tree"))?;
    for number in 0..20 {
        scratch.file(&format!("tree/{number}"), &noise(number * 50_000));
    }
    let (to, json) = (node_directory().join(name), scratch.join("json"));
    let nodes: u32 = std::env::var("RD_SLURM_NODES")?.parse()?;
    let mut command = Command::new("salloc");
    command.args(["-Q", "-N", &nodes.to_string()]).args(options).args(before);
    command.args([PROGRAM, "rdcp", "-r", "--hosts", "slurm", "--agent", AGENT]);
    command.arg(format!("--json={}", json.display())).arg(scratch.join("tree")).arg(&to).env_remove("RDCP_RSH");
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    for node in 1..=nodes {
        for number in 0..20 {
            let copy = on_node(node, &to.join(number.to_string())).expect("a copy");
            same(&copy, &fs::read(scratch.join(&format!("tree/{number}")))?);
        }
    }
    let text = fs::read_to_string(json)?;
    let events: Vec<serde_json::Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for node in 1..=nodes {
        let host = format!("h{node}");
        let mut of_host = events.iter().filter(|event| event["event"] == "host" && event["host"] == *host);
        assert!(of_host.any(|event| event["state"] == "done"), "{text}");
    }
    assert!(events.iter().any(|event| event["event"] == "host" && event["from"] == "h1"), "{text}");
    assert!(events.iter().any(|event| event["event"] == "hosts" && event["hosts"] == nodes), "{text}");
    network::all_gone(SOON);
    Ok(())
}

fn a_cancelled_job_leaves_nothing() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(32 << 20));
    let to = node_directory().join("cancelled");
    let script = format!(
        "#!/bin/sh\nexec {PROGRAM} rdcp --agent {AGENT} --bwlimit 2M {} 'h[2-3]:{}'\n",
        source.display(),
        to.display()
    );
    let script = scratch.file("job", script.as_bytes());
    let log = scratch.join("log").display().to_string();
    let script = script.to_str().expect("UTF-8");
    let job = output("sbatch", &["--parsable", "-N3", "-w", "h1,h2,h3", "-o", &log, script]);
    let until = Instant::now() + PATIENCE;
    // Waits until some of it has arrived.
    loop {
        let names = hosts::on(3, Command::new("ls").arg("-A").arg(node_directory())).output()?.stdout;
        if String::from_utf8_lossy(&names).contains(".rd-part") {
            break;
        }
        assert!(Instant::now() < until, "nothing flows: {}", fs::read_to_string(&log).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(50));
    }
    output("scancel", &[job.trim()]);
    network::all_gone(network::GONE);
    for node in [2, 3] {
        assert_eq!(on_node(node, &to), None, "no half file under its name");
    }
    Ok(())
}

/// docs/guide/slurm.md as typed by a user, except that `/node` is a directory that each node here has for itself.
fn lines_of_the_guide() -> Result<(), Failed> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/slurm.md"))?;
    let node = node_directory();
    let page = page.replace(" /node", &format!(" {}", node.display()));
    let blocks: Vec<&str> = page
        .split("\n```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.split_once('\n'))
        .map(|(_, body)| body)
        .collect();
    let [line, submission, job] = blocks[..] else { panic!("three blocks: {blocks:?}") };
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("model"))?;
    scratch.file("model/weights", &noise(1 << 20));
    for (name, body) in
        [("rdcp", format!("exec {PROGRAM} rdcp --agent {AGENT} \"$@\"")), ("train", "ls -d \"$1\"".to_owned())]
    {
        let path = scratch.file(name, format!("#!/bin/sh\n{body}\n").as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    scratch.file("stage.sh", format!("{job}\n").as_bytes());
    let path = format!("{}:{}", scratch.path().display(), std::env::var("PATH")?);
    let typed = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(scratch.path()).env("PATH", &path).env_remove("RDCP_RSH");
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait().expect(0);
    };
    let nodes: u32 = std::env::var("RD_SLURM_NODES")?.parse()?;
    let copies = || (1..=nodes).filter(|&host| on_node(host, &node.join("model/weights")).is_some()).count();
    typed(&format!("exec salloc -Q -N {nodes} sh -c {}", shell_words::quote(line)));
    assert_eq!(copies(), nodes as usize);
    for host in 1..=nodes {
        assert!(hosts::on(host, Command::new("rm").arg("-r").arg(node.join("model"))).status()?.success());
    }
    assert_eq!((submission, copies()), ("sbatch stage.sh", 0));
    // The end of the job is waited for, so that its output can be read.
    typed("sbatch --wait --output=log stage.sh");
    let log = fs::read_to_string(scratch.join("log"))?;
    let trained = format!("{}/model", node.display());
    assert_eq!(log.lines().filter(|line| *line == trained).count(), nodes as usize, "{log}");
    assert_eq!(copies(), nodes as usize);
    network::all_gone(SOON);
    Ok(())
}
