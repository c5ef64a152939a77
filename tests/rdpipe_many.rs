//! `rdpipe` to several hosts: one stream, sent once, along a chain of them. The other hosts are simulated by a launcher
//! that runs the agent on this host. The variable `AT` tells a command on which of them it runs.

mod rig;

use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdma_pipe::control::channel::{Outbox, receive};
use rdma_pipe::control::frames::{Fault, Hello, MAGIC, Message, Report};
use rig::lab::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// More bytes than a host buffers by itself.
const MANY_BYTES: usize = 72 << 20;

/// What a launcher does that tells the commands their host.
const AT: &str = "AT=$1\nexport AT\nexec sh -c \"exec $2\"";

fn lab() -> Lab {
    let lab = Lab::new();
    lab.script("at", AT);
    lab
}

impl Lab {
    /// Starts rdpipe. `DIR` in an argument stands for the scratch directory.
    fn start(&self, arguments: &[&str]) -> Process {
        self.start_by("at", arguments)
    }

    fn start_by(&self, launcher: &str, arguments: &[&str]) -> Process {
        let directory = self.0.path().display().to_string();
        let mut command = self.command(rdpipe(), launcher, AGENT);
        command.args(arguments.iter().map(|argument| argument.replace("DIR", &directory)));
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Plays the agent of a host that no other host can connect to: it can neither listen nor dial or, if it `lacks` a
    /// device, ends every hop for that reason. The launcher "cut" leads to it. Returns whether it was told to start its
    /// stage.
    fn cut_off(&self, host: &str, lacks: bool) -> JoinHandle<bool> {
        let directory = self.0.path().display();
        let play = format!("cat <'{directory}'/$1.answers & exec cat >'{directory}'/$1.asked");
        self.script("cut", &format!("if [ -p '{directory}'/$1.asked ]; then {play}; fi\n{AT}"));
        let [asked, answers] = ["asked", "answers"].map(|what| self.0.fifo(&format!("{host}.{what}")));
        std::thread::spawn(move || {
            let mut asked = BufReader::new(File::open(asked).expect("its launcher"));
            let answers = File::options().write(true).open(answers).expect("its launcher");
            let answers = Outbox::start(answers, MAGIC, None).expect("a thread");
            answers.send(Message::Hello(Hello::ours()));
            let ended = |exit: u8| {
                let fault = Some(Fault::plain(exit, "no such device"));
                Message::Ended(Box::new(Report { fault, ..Report::default() }))
            };
            let mut is_started = false;
            while let Ok(message) = receive(&mut asked) {
                is_started |= matches!(message, Message::StartStages);
                let Message::ForEnd { end, message } = message else { continue };
                let answer = match message.decode().expect("a message") {
                    Some(Message::Listen { .. }) if lacks => ended(3),
                    Some(Message::Listen { .. }) => Message::Failed(Fault::plain(3, "no such network")),
                    Some(Message::Dial { .. } | Message::DialTunnel) => {
                        Message::DialFailed("no such network".to_owned())
                    }
                    Some(Message::Signal(number)) => ended(128 + number),
                    _ => continue,
                };
                answers.send(answer.for_end(end).expect("short"));
            }
            is_started
        })
    }

    fn source(&self, bytes: usize) -> Vec<u8> {
        let bytes = noise(bytes);
        self.0.file("source", &bytes);
        bytes
    }

    #[track_caller]
    fn holds(&self, name: &str, bytes: &[u8]) {
        let there = fs::read(self.join(name)).unwrap_or_default();
        assert!(there == bytes, "{name}: {} of {} bytes, or others", there.len(), bytes.len());
    }

    /// Waits until a host's file has this many bytes.
    #[track_caller]
    fn await_bytes(&self, name: &str, bytes: u64, process: &Process) {
        let until = Instant::now() + PATIENCE;
        while !fs::metadata(self.join(name)).is_ok_and(|file| file.len() >= bytes) {
            assert!(Instant::now() < until, "nothing flows: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn agent(&self, host: &str) -> u32 {
        self.launches().into_iter().find(|(_, at, _)| at == host).expect("it was launched").0
    }
}

/// From the output of a command, a file and standard input; into commands and files.
#[test]
fn every_host_gets_every_byte() {
    let lab = lab();
    let bytes = lab.source(40 << 20);
    for (arguments, hosts) in [
        (&["src:cat DIR/source", "h[1-5]:cat >DIR/$AT"][..], 5),
        (&["src:< DIR/source", "h[1-2]:> DIR/$AT"], 2),
        (&["cat DIR/source", "mid:cat", "h[1-3]:cat >DIR/$AT"], 3),
        (&["src:cat DIR/source", "mid:tee DIR/teed", "h[1-2,3]:cat >DIR/$AT"], 3),
    ] {
        let ended = lab.start(arguments).wait();
        ended.expect(0);
        assert_eq!(ended.stderr, "", "{arguments:?}");
        for host in 1..=hosts {
            lab.holds(&format!("h{host}"), &bytes);
            fs::remove_file(lab.join(&format!("h{host}"))).expect("it is there");
        }
    }
    lab.holds("teed", &bytes);
    let mut command = lab.command(rdpipe(), "at", AGENT);
    command.arg(format!("h[1-3]:cat >{}/$AT", lab.0.path().display()));
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()));
    let fed = feed(process.stdin(), bytes.clone());
    process.wait().expect(0);
    fed.join().expect("no panic");
    (1..=3).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
    lab.all_gone(Duration::from_secs(5));
}

/// Output of the commands goes to standard error, with the names of the hosts. Reports name each host.
#[test]
fn what_they_say_is_told_apart() {
    let lab = lab();
    lab.source(3 << 20);
    let ended = lab.start(&["--json=DIR/report", "src:cat DIR/source", "h[1-3]:wc -c"]).wait();
    ended.expect(0);
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["h1: 3145728", "h2: 3145728", "h3: 3145728"]);
    let report = fs::read_to_string(lab.join("report")).expect("a report");
    let events: Vec<serde_json::Value> =
        report.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let done = events.iter().filter(|event| event["event"] == "host" && event["state"] == "done").count();
    assert_eq!(done, 3, "{report}");
    let end = events.last().expect("an end");
    let stages = end["stages"].as_array().expect("stages");
    assert!(stages[1..].iter().all(|stage| stage["bytes_in"] == 3_145_728), "{end}");
    assert_eq!(stages[0]["bytes_out"], 3_145_728, "{end}");
}

/// The last line says how many hosts have the stream. With -v, each hop has its line.
#[test]
fn the_outcome_and_each_hop_are_told() {
    let lab = lab();
    lab.source(8 << 20);
    let last = |ended: &Ended| ended.stderr.lines().last().unwrap_or_default().to_owned();
    // Reports of the hops come in any order, and some come late.
    for _ in 0..5 {
        let ended = lab.start(&["-v", "src:cat DIR/source", "h[1-3]:cat >/dev/null"]).wait();
        ended.expect(0);
        for hop in ["src -> h1", "h1 -> h2", "h2 -> h3"] {
            let line = format!("rdpipe: {hop}: 8.0 MiB, ");
            assert_eq!(ended.stderr.matches(&line).count(), 1, "{hop}: {}", ended.stderr);
        }
        let last = last(&ended);
        assert!(last.starts_with("8.0 MiB to 3 hosts in ") && last.ends_with("/s), verified"), "{}", ended.stderr);
    }
    // This host has the name that it has in every pipeline. Lines of progress are followed by the outcome.
    let ended = lab.start(&["-v", "cat DIR/source", "h[1-2]:cat >/dev/null"]).wait();
    ended.expect(0);
    assert!(ended.stderr.contains("rdpipe: localhost -> h1: ") && !ended.stderr.contains("this host"), "{ended:?}");
    for (target, line) in [("h[1-2]", "8.0 MiB to 2 hosts in "), ("h1", "localhost -> h1: 8.0 MiB in ")] {
        let ended = lab.start(&["--progress", "cat DIR/source", &format!("{target}:cat >/dev/null")]).wait();
        ended.expect(0);
        assert!(last(&ended).starts_with(line), "{target}: {}", ended.stderr);
    }
    let ended = lab.start(&["-v", "src:cat DIR/source", "h[1-3]:cat >/dev/null; [ $AT != h2 ] || exit 3"]).wait();
    ended.expect(8);
    assert!(ended.stderr.contains("8.0 MiB to 2 of 3 hosts in "), "{}", ended.stderr);
    // Commands that want less than all of it do not verify it.
    let ended = lab.start(&["-v", "src:yes", "h[1-2]:head -c 100 >/dev/null"]).wait();
    ended.expect(0);
    assert!(last(&ended).contains(" to 2 hosts in ") && !last(&ended).contains("verified"), "{}", ended.stderr);
}

/// A host whose command fails is named, and the other hosts get everything.
#[test]
fn a_command_that_fails_fails_alone() {
    for at in 1..=3 {
        let lab = lab();
        let bytes = lab.source(20 << 20);
        for (command, line) in [
            ("cat >DIR/$AT; [ $AT != hN ] || exit 3", "'cat >DIR/$AT; [ $AT != hN ] || exit 3' ended with exit code 3"),
            ("[ $AT != hN ] || exit 3; cat >DIR/$AT", "ended with exit code 3"),
        ] {
            let named =
                |text: &str| text.replace("hN", &format!("h{at}")).replace("DIR", &lab.0.path().display().to_string());
            let ended = lab.start(&["src:cat DIR/source", &format!("h[1-3]:{}", named(command))]).wait();
            ended.expect(8);
            assert!(
                ended.stderr.contains(&format!("h{at}: ")) && ended.stderr.contains(&named(line)),
                "{}",
                ended.stderr
            );
            assert!(ended.stderr.contains("1 of 3 hosts failed; 2 succeeded"), "{}", ended.stderr);
            (1..=3).filter(|&host| host != at).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
        }
    }
    let lab = lab();
    lab.source(1 << 20);
    let ended = lab.start(&["src:cat DIR/source", "h[1-3]:cat >/dev/null; exit 3"]).wait();
    ended.expect(3);
    assert!(ended.stderr.contains("all 3 hosts failed"), "{}", ended.stderr);
    let ended = lab.start(&["src:cat DIR/source; exit 7", "h[1-2]:cat >/dev/null"]).wait();
    ended.expect(7);
}

/// If an agent is killed in the middle, the other hosts go on from where they were.
#[test]
fn a_host_that_dies_ends_no_other() {
    for dead in 1..=4 {
        let lab = lab();
        let bytes = lab.source(48 << 20);
        let mut process = lab.start(&["--bwlimit=30M", "src:cat DIR/source", "h[1-4]:cat >DIR/$AT"]);
        lab.await_bytes(&format!("h{dead}"), 8 << 20, &process);
        kill_process(Pid::from_raw(lab.agent(&format!("h{dead}")) as i32).expect("not 0"), Signal::KILL)
            .expect("it runs");
        let ended = process.wait();
        ended.expect(8);
        assert!(ended.stderr.contains(&format!("h{dead}: ")), "{}", ended.stderr);
        (1..=4).filter(|&host| host != dead).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
        none_marked(lab.0.path(), Duration::from_secs(5));
    }
}

/// A slow login is waited for, with a notice. A login that never ends is waited for no longer than the user allows.
#[test]
fn one_that_never_answers_is_given_up() {
    let lab = lab();
    let bytes = lab.source(1 << 20);
    lab.script("late", &format!("case $1 in h2) sleep 6 ;; h3) exec sleep 600 ;; esac\n{AT}"));
    let directory = lab.0.path().display().to_string();
    let mut command = lab.command(rdpipe(), "late", AGENT);
    command.args([
        "--connect-timeout=8",
        &format!("src:cat {directory}/source"),
        &format!("h[1-4]:cat >{directory}/$AT"),
    ]);
    let began = Instant::now();
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(8);
    for said in [
        "h2, h3 have not answered yet; giving up on a host after 8 s (--connect-timeout)",
        "no agent answered on h3 within 8 s (--connect-timeout)",
        "1 of 4 hosts failed; 3 succeeded",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}: {}", began.elapsed(), ended.stderr);
    [1, 2, 4].iter().for_each(|host| lab.holds(&format!("h{host}"), &bytes));
    assert!(!lab.join("h3").exists());
}

/// The limit on open files is raised for the pipes of many launchers, and not for what runs here.
#[test]
fn a_command_here_keeps_its_limit_on_open_files() {
    let lab = lab();
    lab.script("few", &format!("case $1 in h1|h2) ;; *) exit 1 ;; esac\n{AT}"));
    let mut command = lab.command(rdpipe(), "few", AGENT);
    command.args(["ulimit -n", &format!("h[1-65]:cat >'{}'/$AT", lab.0.path().display())]);
    let mut limited = in_shell("ulimit -S -n 1000; exec \"$@\"", &command);
    limited.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = Process::spawn(&mut limited).wait();
    ended.expect(8);
    assert!(ended.stderr.contains("63 of 65 hosts failed; 2 succeeded"), "{}", ended.stderr);
    ["h1", "h2"].iter().for_each(|host| lab.holds(host, b"1000\n"));
}

/// Nothing is started on a host that no other host can connect to, and the user reads why. The others get everything.
#[test]
fn one_that_cannot_be_connected_starts_nothing() {
    for (lacks, reason) in [(false, "cannot connect through cut: no such network"), (true, "no such device")] {
        let lab = lab();
        let bytes = lab.source(1 << 20);
        let is_started = lab.cut_off("h3", lacks);
        let ended = lab.start_by("cut", &["--json=DIR/report", "src:cat DIR/source", "h[1-3]:> DIR/$AT"]).wait();
        ended.expect(8);
        for said in ["cannot connect h3; the others continue without it", "1 of 3 hosts failed; 2 succeeded"] {
            assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
        }
        let line = format!("h3: {reason}");
        assert_eq!(ended.stderr.lines().filter(|said| said.ends_with(&line)).count(), 1, "{line}: {}", ended.stderr);
        let report = fs::read_to_string(lab.join("report")).expect("a report");
        let mut events = report.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object"));
        let failed = events.find(|event| event["event"] == "failed").expect("a host failed");
        assert_eq!(failed["exit"], 3, "{report}");
        [1, 2].iter().for_each(|host| lab.holds(&format!("h{host}"), &bytes));
        assert!(!is_started.join().expect("no panic"), "h3 was told to start");
    }
    // If that is so for all of them, it is also the reason why the pipeline has failed.
    let lab = lab();
    let are_started = ["h3", "h4"].map(|host| lab.cut_off(host, true));
    let ended = lab.start_by("cut", &["src:touch DIR/begun", "h[3-4]:> DIR/$AT"]).wait();
    ended.expect(3);
    assert!(ended.stderr.contains("all 2 hosts failed"), "{}", ended.stderr);
    let is_any_started = are_started.into_iter().any(|is_started| is_started.join().expect("no panic"));
    assert!(!is_any_started && !lab.join("begun").exists());
}

/// A slow host either holds the others up or is dropped. The command of a dropped host must not mistake its
/// part for the whole stream.
#[test]
fn one_that_is_slow_is_waited_for_or_dropped() {
    let lab = lab();
    let bytes = lab.source(MANY_BYTES);
    for slow in [1, 3] {
        let command =
            |seconds: u32| format!("h[1-3]:[ $AT != h{slow} ] || sleep {seconds}; cat >DIR/$AT && : >DIR/$AT.end");
        let began = Instant::now();
        lab.start(&["--buffer=4M", "--stall=1", "src:cat DIR/source", &command(4)]).wait().expect(0);
        assert!(began.elapsed() >= Duration::from_secs(4));
        for host in 1..=3 {
            lab.holds(&format!("h{host}"), &bytes);
            fs::remove_file(lab.join(&format!("h{host}.end"))).expect("it has had all");
        }
        // On a busy machine any host may get no processor for some seconds.
        let ended =
            lab.start(&["--buffer=4M", "--slow=drop", "--stall=10", "src:cat DIR/source", &command(300)]).wait();
        ended.expect(8).within(Duration::from_secs(60));
        assert!(ended.stderr.contains(&format!("h{slow}: ")), "{}", ended.stderr);
        let is_dropped = |host: &i32| ended.stderr.contains(&format!("h{host}: "));
        (1..=3).filter(|host| !is_dropped(host)).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
        assert!(!lab.join(&format!("h{slow}.end")).exists(), "a part is not all");
    }
    none_marked(lab.0.path(), Duration::from_secs(5));
}

/// As to a single host, a file that is changed while it is read is not taken for one that was sent whole.
#[test]
fn a_source_that_changes_is_noticed() {
    let lab = lab();
    lab.source(MANY_BYTES);
    let commands = "h[1-2]:while ! [ -e DIR/go ]; do sleep 0.1; done; cat >DIR/$AT && : >DIR/$AT.end";
    let mut process = lab.start(&["--buffer=4M", "src:< DIR/source", commands]);
    std::thread::sleep(Duration::from_secs(1));
    File::options().append(true).open(lab.join("source")).and_then(|mut file| file.write_all(b"x")).expect("room");
    lab.0.file("go", b"");
    let ended = process.wait();
    ended.expect(5);
    assert!(
        ended.stderr.contains("src") && ended.stderr.contains("changed size while it was read"),
        "{}",
        ended.stderr
    );
    (1..=2).for_each(|host| assert!(!lab.join(&format!("h{host}.end")).exists(), "a part is not all"));
    none_marked(lab.0.path(), Duration::from_secs(5));
}

/// If a host has space on disk, its temporary slowness does not hold others up, and its command
/// gets everything in the end.
#[test]
fn one_that_is_slow_falls_behind_on_its_disk() {
    let lab = lab();
    let bytes = lab.source(MANY_BYTES);
    let command = "h[1-3]:[ $AT != h2 ] || while ! [ -e DIR/go ]; do sleep 0.1; done; cat >DIR/$AT";
    let mut process =
        lab.start(&["--buffer=4M", "--slow=drop", "--stall=1", "--spool=100M", "src:cat DIR/source", command]);
    for host in ["h1", "h3"] {
        lab.await_bytes(host, bytes.len() as u64, &process);
    }
    // Longer than a slow host is waited for.
    std::thread::sleep(Duration::from_secs(3));
    assert!(process.is_running() && !lab.join("h2").exists(), "{}", process.stderr());
    lab.0.file("go", b"");
    process.wait().expect(0);
    (1..=3).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
    // The host is dropped when its share of the disk is full.
    fs::remove_file(lab.join("go")).expect("it is there");
    let ended =
        lab.start(&["--buffer=4M", "--slow=drop", "--stall=1", "--spool=1M", "src:cat DIR/source", command]).wait();
    ended.expect(8);
    assert!(ended.stderr.contains("h2: "), "{}", ended.stderr);
    // If there is no space, the run fails before anything flows, and says what to do.
    let ended = lab.start(&["--spool=4000000T", "src:cat DIR/source", "h[1-2]:cat >/dev/null"]).wait();
    ended.expect(6);
    assert!(ended.stderr.contains("--spool") && ended.stderr.contains("TMPDIR"), "{}", ended.stderr);
    // Another directory would not help against a limit on the size of files.
    lab.script("short", &format!("ulimit -f 65536\n{AT}"));
    let ended = lab.start_by("short", &["--spool=1G", "src:cat DIR/source", "h[1-2]:cat >/dev/null"]).wait();
    ended.expect(6);
    assert!(ended.stderr.contains("ulimit -f") && !ended.stderr.contains("TMPDIR"), "{}", ended.stderr);
    none_marked(lab.0.path(), Duration::from_secs(5));
}

/// What waits on disk for a command is still read if the command that made the stream has failed.
#[test]
fn a_queue_on_disk_outlives_a_failure() {
    let lab = lab();
    let bytes = lab.source(MANY_BYTES);
    // For some seconds nothing moves but what the commands read.
    let read = "for part in 1 2 3 4 5 6 7 8; do sleep 0.6; head -c 1000000; done; cat";
    let command = format!("h[1-2]:({read}) >DIR/$AT");
    let ended = lab.start(&["--buffer=4M", "--spool=100M", "src:cat DIR/source; exit 1", &command]).wait();
    ended.expect(1);
    (1..=2).for_each(|host| lab.holds(&format!("h{host}"), &bytes));
    none_marked(lab.0.path(), Duration::from_secs(5));
}

/// A block device on a file system that is full. Only the kernel's cache takes what is written.
struct FullDevice {
    at: PathBuf,
    name: String,
}

impl FullDevice {
    /// Makes the device. `None` if that is not possible here.
    fn new(lab: &Lab) -> Option<Self> {
        let mut device = Self { at: lab.join("full"), name: String::new() };
        fs::create_dir(&device.at).expect("a directory");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&device.at).status();
        mounted.ok().filter(|status| status.success())?;
        let image = device.at.join("image");
        File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("a hole");
        fs::write(device.at.join("rest"), noise(2 << 20)).expect_err("no space");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let made = made.ok().filter(|made| made.status.success())?;
        device.name = String::from_utf8(made.stdout).expect("text").trim().to_owned();
        Some(device)
    }
}

impl Drop for FullDevice {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = Command::new("losetup").args(["--detach", &self.name]).status();
        }
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// A device is asked at the end of the stream whether the data could be written.
#[test]
fn a_device_that_cannot_take_the_stream_has_failed() {
    let lab = lab();
    let Some(device) = FullDevice::new(&lab) else { return not_run("needs root, to make a device that is full") };
    let bytes = lab.source(1 << 20);
    std::os::unix::fs::symlink(&device.name, lab.join("h2")).expect("a link");
    for option in ["--stall=5", "--spool=4M"] {
        let ended = lab.start(&[option, "src:cat DIR/source", "h[1-2]:> DIR/$AT"]).wait();
        ended.expect(8);
        let is_named = |line: &str| ["h2:", "cannot write", &device.name].iter().all(|part| line.contains(part));
        assert!(ended.stderr.lines().any(is_named), "{option}: {}", ended.stderr);
        lab.holds("h1", &bytes);
    }
}

/// If all receiving commands end early, the command that makes the stream is ended, as with a pipe.
#[test]
fn nobody_makes_what_nobody_wants() {
    let lab = lab();
    lab.start(&["src:yes", "h[1-3]:head -c 100 >DIR/$AT"]).wait().expect(0);
    (1..=3).for_each(|host| lab.holds(&format!("h{host}"), &b"y\n".repeat(50)));
    let ended = lab.start(&["src:yes", "h[1-2]:exit 4"]).wait();
    ended.expect(4);
    none_marked(lab.0.path(), Duration::from_secs(5));
}

/// `rdsend` names the command that sends to several hosts.
#[test]
fn rdsend_has_one_receiver() {
    let mut process = Process::spawn(rdsend().args(["n[1-4]", "7000", "k"]).stdin(Stdio::null()));
    process.wait().expect(1).one_line("rdsend", &["n[1-4] is a list", "rdpipe 'n[1-4]:> FILE' <FILE"]);
}

/// Impossible pipelines are refused before any host is started.
#[test]
fn a_list_is_the_last_stage_and_is_given_something() {
    for (arguments, part) in [
        (&["h[1-2]:cat", "h3:cat"][..], "only the last stage"),
        (&["h[1-2]:cat"], "no input; put a command before it"),
        (&["h1:cat", "h2:> DIR/f", "h[1-2]:cat"], "no input; put a command before it"),
        (&["h1:cat f", "h[1-2]:cat"], "h1 produces the stream"),
        (&["h3:cat f", "h[1-2]:< f"], "'<' begins a stream"),
        (&["h3:cat f", "h[1-9999]:cat"], "9999 hosts"),
    ] {
        let lab = lab();
        let ended = lab.start(arguments).wait();
        ended.expect(1).one_line("rdpipe", &[part]);
        assert!(lab.launches().is_empty());
    }
    // A list of one host stands for that host.
    let lab = lab();
    let bytes = lab.source(1 << 20);
    lab.start(&["src:cat DIR/source", "h[7]:cat >DIR/$AT"]).wait().expect(0);
    lab.holds("h7", &bytes);
}

/// Writes what it is given to a file, which gets its name only at the end of the stream.
const COMMITS: &str = "h[1-2]:cat >DIR/begun.$AT && mv DIR/begun.$AT DIR/final.$AT";

/// A command sees the end of the stream only if it has received all of it, whichever process is killed.
#[test]
fn no_command_takes_a_part_for_the_whole() {
    for is_agent in [false, true] {
        let lab = lab();
        let bytes = lab.source(1 << 20);
        let slow = "src:cat DIR/source; while ! [ -e DIR/go ]; do sleep 0.1; done; cat DIR/source";
        let mut process = lab.start(&["--stall=1", slow, COMMITS]);
        lab.await_bytes("begun.h1", 1 << 20, &process);
        lab.await_bytes("begun.h2", 1 << 20, &process);
        let victim = if is_agent { lab.agent("h1") } else { process.pid() };
        kill_process(Pid::from_raw(victim as i32).expect("a process"), Signal::KILL).expect("it runs");
        if is_agent {
            lab.0.file("go", b"");
        }
        let ended = process.wait();
        lab.all_gone(Duration::from_secs(8));
        assert!(!lab.join("final.h1").exists(), "{}", ended.stderr);
        assert!(is_agent || !lab.join("final.h2").exists(), "{}", ended.stderr);
        if is_agent {
            ended.expect(8);
            lab.holds("final.h2", &[&bytes[..], &bytes].concat());
        }
    }
}

/// Hosts whose commands are ended because the source has failed are named, and the exit code is the source's.
#[test]
fn commands_that_are_ended_after_a_failure_are_named() {
    let lab = lab();
    lab.source(1 << 20);
    let slow = "h[1-2]:cat >DIR/begun.$AT; sleep 20; mv DIR/begun.$AT DIR/final.$AT";
    let ended = lab.start(&["src:cat DIR/source; exit 5", slow]).wait();
    ended.expect(5);
    for host in ["h1: ", "h2: "] {
        let is_named = |line: &str| line.contains(host) && line.contains("was ended after 2 s without data");
        assert!(ended.stderr.lines().any(is_named), "{host}: {}", ended.stderr);
    }
    assert!(!lab.join("final.h1").exists() && !lab.join("final.h2").exists());
}
