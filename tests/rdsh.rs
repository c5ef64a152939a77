//! `rdsh` with a command in place of ssh that runs its arguments on this host: input and output, endings, what is left
//! to ssh, and tools that use rdsh as their ssh. `tests/rdsh_hosts.rs` compares it with a real ssh.

mod rig;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time for all processes to end, after any kind of ending.
const GONE: Duration = Duration::from_secs(5);

impl Lab {
    /// Prepares rdsh with these arguments and with its input and output piped.
    fn rdsh_by<S: AsRef<OsStr>>(&self, launcher: &str, arguments: &[S]) -> Command {
        let mut command = self.command(rdsh(), launcher, AGENT);
        // No login: the shell is `sh`.
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).env_remove("SHELL");
        command
    }

    /// Prepares a shell's command line that runs on a terminal of its own, which script(1) makes.
    fn at_terminal(&self, line: &str) -> Command {
        let mut command = Command::new("script");
        command.args(["-qefc", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(self.0.path()).env("HOME", self.join("home")).env(MARK, self.0.path());
        command.env("XDG_RUNTIME_DIR", self.join("home")).env_remove("SHELL");
        command
    }

    fn await_file(&self, name: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.join(name).exists() {
            assert!(Instant::now() < until, "no {name}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        Process::spawn(&mut self.rdsh_by("rsh", arguments))
    }

    /// Runs a command that is fed with `input`. Returns how it ended, and its output.
    #[track_caller]
    fn call<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> (Ended, Vec<u8>) {
        finish(self.start(arguments), input)
    }

    /// Returns the command that another tool is to use as ssh.
    fn as_ssh(&self) -> String {
        format!("{PROGRAM} rdsh --rsh {} --agent {AGENT}", self.join("rsh").display())
    }

    /// Runs a tool in this directory.
    #[track_caller]
    fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.0.path()).env("HOME", self.join("home")).env(MARK, self.0.path());
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes");
        let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
        assert_eq!(said, "", "{program} {arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes a tree with everything that a tool could lose: small and large files, links, modes,
    /// empty files and directories.
    fn plant(&self, name: &str) {
        let top = self.join(name);
        for directory in ["a", "a/b", "empty"] {
            fs::create_dir_all(top.join(directory)).expect("a directory");
        }
        for number in 0..120 {
            fs::write(top.join(format!("a/{number}")), noise(number * 97)).expect("a file");
        }
        fs::write(top.join("a/b/large"), noise(6 * CHUNK + 5)).expect("a file");
        std::os::unix::fs::symlink("a/7", top.join("link")).expect("a link");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn input_output_error_and_exit_code() {
    let lab = Lab::new();
    let bytes = noise(5 * CHUNK + 3);
    for (command, input, code, output, error) in [
        ("cat", &bytes[..], 0, &bytes[..], ""),
        ("cat; echo away >&2; exit 3", b"here", 3, b"here", "away\n"),
        ("echo one; kill -9 $$", b"", 137, b"one\n", ""),
        ("exec 2>/dev/null; sh -c 'kill -TERM $$'; exit $?", b"", 143, b"", ""),
        ("wc -c", &bytes[..], 0, b"5242883\n", ""),
        ("exec >&-; wc -c >&2", b"12345", 0, b"", "5\n"),
        ("exec <&-; echo no input", b"12345", 0, b"no input\n", ""),
        ("printf 'a\\0b\\377'", b"", 0, b"a\0b\xff", ""),
        ("pwd; echo $0", b"", 0, format!("{}\nsh\n", lab.join("home").display()).as_bytes(), ""),
        ("exit 255", b"", 255, b"", ""),
    ] {
        let (ended, got) = lab.call(&["h", command], input);
        assert_eq!((ended.code, &*ended.stderr), (code, error), "{command}");
        same(&got, output);
    }
    // Words are joined by spaces, and the remote shell parses them again.
    let (ended, got) = lab.call(&["h", "echo", "a  b", "'c  d'", "--", "$((1+1))"], b"");
    assert_eq!((ended.expect(0).stderr.as_str(), text(&got).as_str()), ("", "a b c  d -- 2\n"));
    let (ended, _) = lab.call(&["h", "no-such-command-here"], b"");
    assert!(ended.expect(127).stderr.contains("not found"), "{}", ended.stderr);
    none_marked(lab.0.path(), GONE);
}

/// The login's own files may have set `SHELL` to another one. Where it is not set, there was no login.
#[test]
fn the_command_is_read_by_the_shell_of_the_user_database() {
    let user = rustix::process::geteuid().as_raw().to_string();
    let entry = Command::new("getent").args(["passwd", &user]).output().map_or(Vec::new(), |output| output.stdout);
    let entry = text(&entry);
    let Some(shell) = entry.trim_end().rsplit([':', '/']).next().filter(|shell| !shell.is_empty()) else {
        return not_run("the user has no entry with a shell");
    };
    let lab = Lab::new();
    for (told, shell) in [(Some("/bin/false"), shell), (None, "sh")] {
        let mut command = lab.rdsh_by("rsh", &["h", "echo $0"]);
        let (ended, got) = finish(Process::spawn(command.envs(told.map(|told| ("SHELL", told)))), b"");
        assert_eq!((ended.expect(0).stderr.as_str(), text(&got)), ("", format!("{shell}\n")));
    }
}

/// If part of a stream were sent only after a pause of a millisecond, no round trip would take less than two. Only the
/// fastest counts, because others may have waited for a processor.
#[test]
fn an_answer_is_not_held_back() {
    let lab = Lab::new();
    let mut process = lab.start(&["h", "cat"]);
    let (mut to, mut from) = (process.stdin(), process.stdout());
    let mut fastest = Duration::MAX;
    for number in 0..400_u32 {
        let began = Instant::now();
        let sent = number.to_le_bytes();
        to.write_all(&sent).expect("written");
        let mut got = [0; 4];
        from.read_exact(&mut got).expect("answered");
        assert_eq!(got, sent);
        fastest = fastest.min(began.elapsed());
    }
    drop(to);
    process.wait().expect(0);
    assert!(fastest < Duration::from_micros(1800), "{fastest:?}");
}

#[test]
fn what_nobody_reads_holds_nothing_up() {
    let lab = Lab::new();
    // Standard input stays open.
    let mut process = lab.start(&["h", "echo done; exit 4"]);
    let (stdin, output) = (process.stdin(), drain(process.stdout()));
    process.wait_for(Duration::from_secs(10)).expect(4);
    assert_eq!(text(&output.join().expect("no panic")), "done\n");
    drop(stdin);
    // Standard input is endless.
    let mut process = lab.start(&["h", "head -c 100000 | wc -c"]);
    let (mut stdin, output) = (process.stdin(), drain(process.stdout()));
    let fed = std::thread::spawn(move || while stdin.write_all(&[7; 65536]).is_ok() {});
    process.wait().expect(0);
    fed.join().expect("no panic");
    assert_eq!(text(&output.join().expect("no panic")), "100000\n");
    // Standard output is closed early.
    let mut process = lab.start(&["h", "yes"]);
    let _stdin = process.stdin();
    let mut some = [0; 4096];
    process.stdout().read_exact(&mut some).expect("some");
    assert_eq!(process.wait().expect(141).stderr, "");
    // Both are closed from the beginning.
    let closed = in_shell("exec \"$@\" <&- >&-", &lab.rdsh_by("rsh", &["h", "cat; echo x; exit 5"]));
    Process::spawn(&mut { closed }).wait().expect(5);
    let (ended, got) = lab.call(&["-n", "h", "wc -c"], b"not read");
    assert_eq!((ended.expect(0).stderr.as_str(), text(&got).as_str()), ("", "0\n"));
    none_marked(lab.0.path(), GONE);
}

/// What a failed command wrote before arrives in full, however slow the reader, as with ssh. It is more than a pipe
/// holds, and less than the minimum that is in transit when the output is not read. So the command has already ended.
#[test]
fn a_slow_reader_gets_all_of_it() {
    let lab = Lab::new();
    let mut process = lab.start(&["h", "head -c 3000000 /dev/zero; echo oh >&2; exit 3"]);
    process.line_with("oh");
    std::thread::sleep(Duration::from_millis(2500));
    let mut got = Vec::new();
    process.stdout().read_to_end(&mut got).expect("all of it");
    process.wait().expect(3);
    assert_eq!(got.len(), 3_000_000);
}

/// The agent is told in advance to end when everything has ended, because telling it afterwards would take another
/// exchange of messages. Here its input never ends.
#[test]
fn the_agent_ends_by_itself() {
    let lab = Lab::new();
    let (input, ended) = (lab.join("input"), lab.join("ended"));
    let [input, ended] = [&input, &ended].map(|path| path.display());
    let agent = format!("sh -c \"$2\" <{input} 3>&- 4<&-; echo $? >{ended}; kill $! 2>/dev/null");
    lab.script("held", &format!("mkfifo {input}; exec 3<>{input} 4<&0; cat <&4 >&3 & {agent}"));
    let (run, got) = finish(Process::spawn(&mut lab.rdsh_by("held", &["h", "cat; exit 3"])), b"bytes");
    assert_eq!((run.expect(3).stderr.as_str(), text(&got).as_str()), ("", "bytes"));
    assert_eq!(fs::read_to_string(lab.join("ended")).expect("it has ended"), "0\n");
    none_marked(lab.0.path(), GONE);
}

/// Through separate connections, and through the launcher's.
#[test]
fn both_ways_at_once() {
    let lab = Lab::new();
    for options in [&[][..], &["--relay"]] {
        let bytes = noise(48 * CHUNK);
        let arguments = [options, &["h", "cat"]].concat();
        let (ended, got) = lab.call(&arguments, &bytes);
        ended.expect(0);
        same(&got, &bytes);
    }
    none_marked(lab.0.path(), GONE);
}

#[test]
fn a_signal_ends_all_of_it() {
    let lab = Lab::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut process = lab.start(&["h", "echo on >&2; trap '' INT HUP; sleep 100 & sleep 100; wait"]);
        process.line_with("on");
        process.signal(signal);
        assert_eq!(process.wait_for(GONE).expect(code).stderr, "on\n");
        none_marked(lab.0.path(), GONE);
    }
}

/// rdsh waits for its standard error to be read, but a signal ends the wait.
#[test]
fn a_signal_does_not_wait_for_standard_error() {
    let pipeline = |lab: &Lab, stages: &[&str]| {
        let mut command = lab.command(rdpipe(), "rsh", AGENT);
        command.args(stages);
        command
    };
    // The commands mostly wait, so all run at once.
    let labs: [Lab; 6] = std::array::from_fn(|_| Lab::new());
    // Final messages and log lines wait as well.
    let last = pipeline(&labs[3], &["exit 3"]);
    let mut logged = pipeline(&labs[4], &["exec cat /dev/zero", "exec cat >/dev/null"]);
    logged.env("RDMA_PIPE_LOG", "trace");
    labs[5].script("noisy", "cat /dev/zero >&2 & exec sh -c \"exec $2\"");
    let commands = [
        (labs[0].rdsh_by("rsh", &["h", "exec cat /dev/zero >&2"]), 143),
        (pipeline(&labs[1], &["h:exec cat /dev/zero >&2"]), 143),
        (pipeline(&labs[2], &["exec cat /dev/zero", "h[1-2]:exec cat"]), 143),
        (last, 3),
        (logged, 143),
        (labs[5].rdsh_by("noisy", &["h", "exec sleep 100"]), 143),
    ];
    std::thread::scope(|scope| {
        for (lab, (command, code)) in labs.iter().zip(commands) {
            scope.spawn(move || is_ended_while_it_waits(lab, command, code));
        }
    });
}

/// Ends a command that waits for its standard error to be read.
#[track_caller]
fn is_ended_while_it_waits(lab: &Lab, mut command: Command, code: i32) {
    let (_unread, stderr) = full_pipe();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().expect("it starts");
    // Gives the command time to block on the full pipe.
    std::thread::sleep(Duration::from_secs(2));
    let begin = Instant::now();
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let ended = loop {
        match child.try_wait().expect("ours") {
            Some(ended) => break ended.code(),
            None if begin.elapsed() > GONE => {
                let _ = child.kill();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let _ = child.wait();
    assert_eq!(ended, Some(code), "{command:?} after {:?}", begin.elapsed());
    none_marked(lab.0.path(), GONE);
}

/// A key may be bound to another command, as by `command="…"` in authorized_keys.
#[test]
fn what_writes_much_and_is_no_agent_is_left_to_ssh() {
    let lab = Lab::new();
    lab.script("bound", "case $2 in *rdma-pipe-agent*) exec head -c 100000000 /dev/zero;; esac; shift; echo \"$*\"");
    let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("bound", &["h", "echo", "mine"])), b"");
    assert_eq!((ended.code, text(&got)), (0, "echo mine\n".to_owned()), "{}", ended.stderr);
    let mut copy = lab.command(rdcp(), "bound", AGENT);
    copy.arg("h:/etc/hostname").arg(lab.join("copy"));
    Process::spawn(copy.stdin(Stdio::null())).wait().expect(3).one_line("rdcp", &["h is not an rdma-pipe agent"]);
}

/// git-shell refuses other commands with 128, which is no signal's code.
#[test]
fn what_refuses_the_agent_is_left_to_ssh() {
    let lab = Lab::new();
    let refuse = "echo 'fatal: unrecognized command' >&2; exit 128";
    lab.script("bound", &format!("case $2 in *rdma-pipe-agent*) {refuse};; esac; shift; echo \"$*\""));
    let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("bound", &["h", "echo", "mine"])), b"");
    assert_eq!((ended.code, text(&got)), (0, "echo mine\n".to_owned()), "{}", ended.stderr);
    let mut copy = lab.command(rdcp(), "bound", AGENT);
    copy.arg("h:/etc/hostname").arg(lab.join("copy"));
    let ended = Process::spawn(copy.stdin(Stdio::null())).wait();
    ended.expect(3).one_line("rdcp", &["no agent answered on h: bound ended with exit code 128"]);
}

/// `StdinNull` in ssh's configuration ends the agent's input at once. A line that is lost then has not ended the agent.
#[test]
fn an_agent_without_input_is_left_to_ssh() {
    for (ends, code, output, launches) in [("exit $?", 0, "end\n", 2), ("exit 255", 255, "", 1)] {
        let lab = Lab::new();
        lab.script("null", &format!("sh -c \"$2\" </dev/null; case $2 in *rdma-pipe-agent*) {ends};; esac"));
        let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("null", &["h", "cat; echo end"])), b"data");
        assert_eq!((ended.code, text(&got), lab.launches().len()), (code, output.to_owned(), launches), "{ends}");
        none_marked(lab.0.path(), GONE);
    }
}

/// `RequestTTY` in ssh's configuration: ssh gives a terminal to a command that is run at one. It says that an agent gets
/// none.
#[test]
fn a_terminal_that_the_configuration_asks_for_is_left_to_ssh() {
    let lab = Lab::new();
    let says = "echo 'Pseudo-terminal will not be allocated because stdin is not a terminal.' >&2";
    let skip = "while [ $1 != h ]; do shift; done";
    lab.script("ssh", &format!("case $* in *rdma-pipe-agent*) {says};; esac; {skip}; exec sh -c \"$2\""));
    let rdsh = format!("{PROGRAM} rdsh --rsh {} --agent {AGENT} -v h tty", lab.join("ssh").display());
    let (ended, shown) = finish(Process::spawn(&mut lab.at_terminal(&rdsh)), b"");
    let shown = text(&shown);
    ended.expect(0);
    assert!(shown.contains("left to ") && shown.contains("asks for a terminal"), "{shown}");
    assert!(shown.contains("\n/dev/pts/") && !shown.contains("Pseudo-terminal"), "{shown}");
    // With the output elsewhere, a terminal would change its bytes, and in the background it would stop ssh.
    for line in [format!("{rdsh} >got; code=$?; cat got; exit $code"), format!("set -m; {rdsh} & wait $!")] {
        fs::remove_file(lab.join("noted")).expect("ours");
        let (ended, shown) = finish(Process::spawn(&mut lab.at_terminal(&line)), b"");
        let shown = text(&shown);
        ended.expect(1);
        assert!(shown.contains("not a tty\r\n") && !shown.contains("left to "), "{line}: {shown}");
        let noted = fs::read_to_string(lab.join("noted")).expect("the launcher's notes");
        assert_eq!(noted.matches('\n').count(), 1, "{line}: {noted}");
    }
    // ssh would give none either.
    let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("ssh", &["h", "tty"])), b"");
    assert_eq!((ended.expect(1).stderr.as_str(), text(&got).as_str()), ("", "not a tty\n"));
}

/// In the background. A read would stop the job, or fail if no shell is left that could continue it.
#[test]
fn what_is_typed_for_another_job_is_not_read() {
    for begin in ["set -m; sh job &", "bash -c 'set -m; sh job &'"] {
        let lab = Lab::new();
        let await_file = |name: &str| format!("until [ -e {} ]; do sleep 0.02; done", lab.join(name).display());
        let run = format!(": >{}; {}; echo mine", lab.join("on").display(), await_file("typed"));
        lab.0.file("job", format!("{} h '{run}'; echo \"code $?\"; : >over\n", lab.as_ssh()).as_bytes());
        let read = "read -r line; echo \"got $line\"";
        let shell = format!("{begin}\n{}\n{read}\n{}\n", await_file("typed"), await_file("over"));
        lab.0.file("shell", shell.as_bytes());
        let mut process = Process::spawn(&mut lab.at_terminal("bash shell"));
        let (mut keyboard, screen) = (process.stdin(), drain(process.stdout()));
        lab.await_file("on");
        keyboard.write_all(b"for the shell\n").expect("a terminal");
        // A job that reads it has done so by then.
        std::thread::sleep(Duration::from_millis(500));
        lab.0.file("typed", b"");
        process.wait().expect(0);
        let shown = text(&screen.join().expect("no panic"));
        for part in ["mine\r\n", "code 0\r\n", "got for the shell\r\n"] {
            assert!(shown.contains(part), "{begin}: {shown}");
        }
        drop(keyboard);
        none_marked(lab.0.path(), GONE);
    }
}

/// Whatever ends first, the command does not see the end of its input before it is ended itself.
#[test]
fn no_command_takes_a_part_for_the_whole() {
    use Signal as S;
    for (is_agent, signal) in
        [(false, S::INT), (false, S::TERM), (false, S::HUP), (false, S::KILL), (true, S::TERM), (true, S::KILL)]
    {
        let lab = Lab::new();
        let part = lab.join("part");
        let command = format!("cd {} && cat >part && mv part final", lab.0.path().display());
        let mut command = lab.rdsh_by("rsh", &["h", &command]);
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()));
        let mut input = process.stdin();
        input.write_all(&noise(1_000_000)).expect("a pipe");
        let until = Instant::now() + PATIENCE;
        while fs::metadata(&part).map_or(0, |part| part.len()) < 1_000_000 {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_agent {
            kill_process(Pid::from_raw(lab.launches()[0].0 as i32).expect("not 0"), signal).expect("an agent");
        } else {
            process.signal(signal);
        }
        process.wait();
        none_marked(lab.0.path(), GONE);
        assert!(!lab.join("final").exists(), "{is_agent} {signal:?}");
    }
}

#[test]
fn a_lost_line_is_255() {
    let lab = Lab::new();
    let mut process = lab.start(&["h", "echo on >&2; exec sleep 100"]);
    process.line_with("on");
    let (pid, ..) = lab.launches()[0];
    kill_process(Pid::from_raw(pid as i32).expect("not 0"), Signal::KILL).expect("ours");
    let ended = process.wait();
    assert_eq!(ended.expect(255).stderr.lines().count(), 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("rdsh: lost the agent on h"), "{}", ended.stderr);
    none_marked(lab.0.path(), GONE);
    // The host cannot be reached: ssh's reason, in one line.
    lab.script("away", "echo 'no route to host' >&2; exit 255");
    let ended = Process::spawn(&mut lab.rdsh_by("away", &["h", "true"])).wait();
    ended.expect(255).one_line("rdsh", &["cannot reach h", "no route to host"]);
    let bait = lab.join("bait");
    let option = format!("-oProxyCommand=touch {}", bait.display());
    let ended = Process::spawn(&mut lab.rdsh_by("rsh", &["--no-bootstrap", "--", &option, "true"])).wait();
    ended.expect(255).one_line("rdsh", &["-oProxyCommand", "cannot begin with a dash"]);
    // Without a host, the command would run here.
    for arguments in [&["", "true"][..], &["user@", "true"], &["-p", "22", "", "true"], &["-t", "", "true"]] {
        let (ended, _) = lab.call(&[&["--no-bootstrap"][..], arguments].concat(), b"");
        ended.expect(255).one_line("rdsh", &["HOST is empty"]);
    }
    let (ended, _) = lab.call(&["h[1-2]", "true"], b"");
    ended.expect(255).one_line("rdsh", &["h[1-2]: rdsh takes one host"]);
    for (arguments, part) in [(&["--no-such"][..], "unknown option --no-such"), (&[], "HOST is required")] {
        let ended = Process::spawn(&mut lab.rdsh_by("rsh", arguments)).wait();
        assert!(ended.expect(255).stderr.starts_with("rdsh: ") && ended.stderr.contains(part), "{}", ended.stderr);
    }
}

/// Whether the host was reached is not known then. Plain ssh would log in again, and run the command there.
#[test]
fn a_line_that_is_lost_before_the_agent_answers_is_255() {
    let lab = Lab::new();
    let as_ssh = "shift; echo \"$*\"";
    lab.script("killed", &format!("case $2 in *rdma-pipe-agent*) kill -KILL $$;; esac; {as_ssh}"));
    lab.script("mute", &format!("case $2 in *rdma-pipe-agent*) exec sleep 30 >&-;; esac; {as_ssh}"));
    for (launcher, parts) in [
        ("killed", ["no agent answered on h, which was lost", "killed ended with exit code 137"]),
        ("mute", ["the program on h is not an rdma-pipe agent", "or was lost"]),
    ] {
        let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by(launcher, &["h", "echo", "mine"])), b"");
        ended.expect(255).one_line("rdsh", &parts);
        assert_eq!((text(&got), lab.launches().len()), (String::new(), 1), "{launcher}");
        fs::remove_file(lab.join("noted")).expect("ours");
    }
    none_marked(lab.0.path(), GONE);
}

/// The command has ended successfully, but not all of its output has arrived.
#[test]
fn an_agent_that_is_killed_behind_its_command_is_255() {
    let lab = Lab::new();
    let mut process = lab.start(&["--bwlimit=20k", "h", "head -c 60000 /dev/zero; echo on >&2"]);
    process.line_with("on");
    std::thread::sleep(Duration::from_millis(300));
    let agent = marked(lab.0.path()).into_iter().find(|process| process.name == "rdma-pipe-agent");
    kill_process(Pid::from_raw(agent.expect("it lives").pid as i32).expect("not 0"), Signal::KILL).expect("ours");
    let output = drain(process.stdout());
    let ended = process.wait_for(Duration::from_secs(10));
    assert!(ended.expect(255).stderr.contains("lost"), "{}", ended.stderr);
    assert!(output.join().expect("no panic").len() < 60_000);
    none_marked(lab.0.path(), GONE);
}

/// An ssh that does not find the agent, and prints its arguments.
#[test]
fn ssh_does_the_rest() {
    let lab = Lab::new();
    let ssh = "case \"$*\" in *rdma-pipe-agent*) exit 127;; esac; printf '%s|' \"$@\"; cat; exit 9";
    lab.0.file("ssh", format!("#!/bin/sh\n{ssh}\n").as_bytes());
    fs::set_permissions(lab.join("ssh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    for (arguments, given) in [
        (&["-p", "22", "h", "-i", "key", "ls", "-l", "a  b"][..], "-p|22|-i|key|h|ls|-l|a  b|"),
        (&["-tt", "h", "top"], "-t|-t|h|top|"),
        (&["h"], "h|"),
        (&["-W", "h:1", "g"], "-W|h:1|g|"),
        (&["-s", "h", "sftp"], "-s|h|sftp|"),
        (&["-o", "RequestTTY=yes", "h", "top"], "-o|RequestTTY=yes|h|top|"),
        (&["h", "--", "-x", "a"], "h|--|-x|a|"),
        (&["-V"], "-V|"),
    ] {
        let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("ssh", arguments)), b"and input");
        assert_eq!((ended.code, &*ended.stderr, text(&got)), (9, "", format!("{given}and input")), "{arguments:?}");
    }
    // The first -v is for rdsh, as with the ssh that starts an agent.
    for (verbose, given) in [("-v", "-t|h|top|"), ("-vv", "-v|-t|h|top|")] {
        let (ended, got) = finish(Process::spawn(&mut lab.rdsh_by("ssh", &[verbose, "-t", "h", "top"])), b"");
        ended.expect(9).one_line("rdsh", &["left to", "ssh"]);
        assert_eq!(text(&got), given, "{verbose}");
    }
    let (ended, _) = finish(Process::spawn(&mut lab.rdsh_by("ssh", &["-v", "h", "top"])), b"");
    ended.expect(9).one_line("rdsh", &["left to", "has no"]);
    // Further words of the launcher may be a password.
    let mut command = rdsh();
    command.args(["-v", "--rsh", &format!("{} -o User=hunter2", lab.join("ssh").display()), "-t", "h", "top"]);
    command.current_dir(lab.0.path()).env("HOME", lab.join("home")).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = Process::spawn(&mut command).wait();
    let told = &ended.expect(9).one_line("rdsh", &["left to", "ssh"]).stderr;
    assert!(!told.contains("hunter2"), "{told}");
}

/// A loop reads its list on, whichever of its hosts have an agent.
#[test]
fn ssh_leaves_the_callers_file_where_it_stands() {
    let lab = Lab::new();
    lab.script("bound", "case $2 in *rdma-pipe-agent*) exit 127;; esac; cat >\"$1.got\"");
    lab.0.file("list", b"h1\nh2\nh3\n");
    let line = "while read -r host; do echo \"$host\"; \"$@\" \"$host\" true || exit; done <list";
    let mut command = in_shell(line, &lab.rdsh_by::<&str>("bound", &[]));
    command.current_dir(lab.0.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let (ended, visited) = finish(Process::spawn(&mut command), b"");
    ended.expect(0);
    assert_eq!(text(&visited), "h1\nh2\nh3\n");
    let got = ["h1.got", "h2.got", "h3.got"].map(|name| text(&fs::read(lab.join(name)).expect("it ran")));
    assert_eq!(got, ["h2\nh3\n", "h3\n", ""], "what follows in the list, as from ssh");
}

/// As a log does. ssh does not mind either.
#[test]
fn input_may_grow_while_it_is_read() {
    const BYTES: u64 = 64 << 20;
    let lab = Lab::new();
    let (log, go) = (lab.join("log"), lab.join("go"));
    let writer = fs::File::create(&log).expect("a file");
    writer.set_len(BYTES).expect("some");
    let command = format!("echo on >&2; until [ -e '{}' ]; do sleep 0.02; done; wc -c", go.display());
    let mut command = lab.rdsh_by("rsh", &["--buffer", "1M", "h", &command]);
    let mut process = Process::spawn(command.stdin(fs::File::open(&log).expect("there")));
    process.line_with("on");
    writer.set_len(BYTES + 5).expect("more");
    fs::write(&go, "").expect("room");
    let output = drain(process.stdout());
    process.wait().expect(0);
    assert_eq!(text(&output.join().expect("no panic")), format!("{BYTES}\n"));
}

/// The first `-v` is for rdsh. ssh gets them from the second on.
#[test]
fn the_way_is_told() {
    let lab = Lab::new();
    let words = lab.join("words");
    lab.script(
        "ssh",
        &format!("echo \"$*\" >'{}'\nwhile [ $1 != h ]; do shift; done\nexec sh -c \"$2\"", words.display()),
    );
    for (verbose, given) in [("-v", 0), ("-vv", 1)] {
        let mut command = lab.rdsh_by("ssh", &[verbose, "h", "head -c 2M /dev/zero"]);
        let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
        ended.expect(0).one_line("rdsh", &["h -> ", "tcp ", " lanes, ", "encrypted"]);
        let words = fs::read_to_string(&words).expect("its words");
        assert_eq!(words.split(' ').filter(|word| *word == "-v").count(), given, "{words}");
    }
}

/// Otherwise ssh would give up the host, and with it the agent, although the sessions still wait for their link.
#[test]
fn ssh_waits_as_long_as_the_sessions() {
    let lab = Lab::new();
    let words = lab.join("words");
    let keep = format!("echo \"$*\" >'{}'", words.display());
    lab.script("ssh", &format!("{keep}\nwhile [ $1 != h ]; do shift; done\nexec sh -c \"$2\""));
    let copied = ["h:/etc/hostname", "copy"];
    for (program, arguments) in [(rdsh(), &["h", "true"][..]), (rdpipe(), &["h:true"]), (rdcp(), &copied)] {
        let mut command = lab.command(program, "ssh", AGENT);
        command.args(["--reconnect", "300"]).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut command).wait().expect(0);
        let words = fs::read_to_string(&words).expect("its words");
        assert!(words.contains("ServerAliveInterval=15 -o ServerAliveCountMax=21 "), "{arguments:?}: {words}");
    }
}

#[test]
fn tar_through_it() {
    let lab = Lab::new();
    lab.plant("from");
    fs::create_dir(lab.join("to")).expect("a directory");
    let to = lab.join("to").display().to_string();
    lab.tool("sh", &["-c", &format!("tar -c -C from . | {} h tar -x -C {to}", lab.as_ssh())]);
    lab.tool("diff", &["-r", "--no-dereference", "from", "to"]);
    none_marked(lab.0.path(), GONE);
}

#[test]
fn rsync_both_ways() {
    let lab = Lab::new();
    lab.plant("from");
    let (there, back) = (lab.join("there").display().to_string(), lab.join("back").display().to_string());
    let ssh = lab.as_ssh();
    lab.tool("rsync", &["-a", "-e", &ssh, "from/", &format!("h:{there}/")]);
    lab.tool("rsync", &["-a", "-e", &ssh, &format!("h:{there}/"), &format!("{back}/")]);
    for copy in ["there", "back"] {
        lab.tool("diff", &["-r", "--no-dereference", "from", copy]);
        assert_eq!(lab.tool("rsync", &["-ani", "--delete", "from/", &format!("{copy}/")]), "", "times and modes, too");
    }
    // Again, with few differences.
    fs::write(lab.join("from/a/b/large"), noise(6 * CHUNK + 4)).expect("a file");
    lab.tool("rsync", &["-a", "--no-whole-file", "-e", &ssh, "from/", &format!("h:{there}/")]);
    lab.tool("diff", &["-r", "--no-dereference", "from", "there"]);
    none_marked(lab.0.path(), GONE);
}

#[test]
fn borg_through_it() {
    if Command::new("borg").arg("--version").stdout(Stdio::null()).status().is_err() {
        return not_run("borg is not installed");
    }
    let lab = Lab::new();
    lab.plant("from");
    let (ssh, repository) = (lab.as_ssh(), format!("ssh://h{}", lab.join("repository").display()));
    lab.tool("borg", &["--rsh", &ssh, "init", "-e", "none", &repository]);
    let archive = format!("{repository}::one");
    lab.tool("borg", &["--rsh", &ssh, "create", &archive, "from"]);
    fs::create_dir(lab.join("to")).expect("a directory");
    lab.tool("sh", &["-c", &format!("cd to && borg --rsh '{ssh}' extract {archive}")]);
    lab.tool("diff", &["-r", "--no-dereference", "from", "to/from"]);
    none_marked(lab.0.path(), GONE);
}

/// The first login finds no agent. The second one, which would bring it, may take long.
#[test]
fn a_signal_during_the_second_login_ends_the_call_and_runs_nothing() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let lab = Lab::new();
        let [tried, again] = ["tried", "again"].map(|name| lab.join(name));
        let script = "[ ! -e tried ] || { : >>again; exec sleep 100; }; : >tried; exit 127";
        let mut command = rdsh();
        command.arg("--rsh").arg(lab.script("slow", script)).args(["h", "true"]).env("HOME", lab.join("home"));
        command.env("XDG_RUNTIME_DIR", lab.join("home")).env(MARK, lab.0.path()).current_dir(lab.0.path());
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let start = Instant::now();
        while !again.exists() {
            assert!(process.is_running() && start.elapsed() < GONE, "{}: {}", tried.exists(), process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        process.signal(signal);
        process.wait().expect(code).within(2 * GONE);
        // A third login would have run the command.
        let notes = fs::read_to_string(lab.join("noted")).expect("the launcher's notes");
        assert_eq!(notes.matches('\n').count(), 2, "{notes}");
        none_marked(lab.0.path(), GONE);
    }
}

/// As at a prompt for a password.
#[test]
fn a_login_can_be_stopped_and_continued() {
    let lab = Lab::new();
    let go = lab.join("go");
    lab.script("waits", &format!("until [ -e '{}' ]; do sleep 0.05; done\nexec sh -c \"exec $2\"", go.display()));
    let process = Process::spawn(&mut lab.rdsh_by("waits", &["h", "echo it"]));
    let start = Instant::now();
    while lab.launches().is_empty() && start.elapsed() < GONE {
        std::thread::sleep(Duration::from_millis(10));
    }
    process.signal(Signal::TSTP);
    process.await_stopped(true);
    process.signal(Signal::CONT);
    fs::write(&go, "").expect("room");
    let (ended, output) = finish(process, b"");
    ended.expect(0);
    assert_eq!(output, b"it\n");
}
