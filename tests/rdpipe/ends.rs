//! Signals and killed processes: all other processes end too, and no other pipeline is disturbed.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use rdma_pipe::control::channel::{receive, skip_to_magic};
use rdma_pipe::control::frames::Message;
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::rig::others::{NOBODY, as_user};

/// Stages that never end by themselves, with child processes that do not either. Their first output
/// shows that all of them run.
const STAGES: &[&[&str]] = &[
    &["h1:sh -c 'sleep 1000 & sleep 1000' & yes", "h2:cat"],
    &["yes", "h1:sh -c 'sleep 1000 & exec cat'", "h2:cat", "h1:cat"],
    &[
        "h1:yes; sleep 1000",
        "tee >(cat >/dev/null; sleep 1000)",
        "h2:sh -c 'trap \"\" TERM; sleep 1000 & cat; sleep 1000'",
    ],
    &["h1:< /dev/zero", "h2:cat", "sh -c 'cat; sleep 1000'"],
];

/// Starts an endless pipeline, and waits until some output has arrived.
#[track_caller]
fn endless(lab: &Lab, stages: &[&str]) -> (Process, Reader) {
    let mut command = lab.rdpipe_by("rsh");
    command.args(["--shell", "bash", "--bwlimit", "30M"]).args(stages);
    let mut process = Process::spawn(&mut command);
    let mut output = process.stdout();
    let begun = output.read_exact(&mut [0; 100_000]);
    begun.unwrap_or_else(|error| panic!("nothing flows: {error}: {}", process.stderr()));
    (process, Reader { _thread: drain(output) })
}

/// Keeps reading the output.
struct Reader {
    _thread: std::thread::JoinHandle<Vec<u8>>,
}

#[test]
fn signals_to_the_caller_end_all() {
    for stages in STAGES {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let lab = Lab::new();
            let (mut process, _output) = endless(&lab, stages);
            let many = marked(lab.0.path());
            assert!(many.len() > 4, "{many:?}");
            let start = Instant::now();
            process.signal(signal);
            let ended = process.wait_for(GONE);
            assert_eq!(ended.code, code, "{stages:?}: {}", ended.stderr);
            lab.deserted_since(start, GONE);
        }
    }
}

/// A shell ends a loop only if the command in it was killed by SIGINT. The report is written before.
#[test]
fn a_command_that_is_interrupted_is_killed_by_the_signal() {
    use std::io::BufRead as _;
    use std::os::unix::process::ExitStatusExt as _;
    let lab = Lab::new();
    lab.0.file("source", &noise(24 * CHUNK));
    let waits = "echo began >&2; exec sleep 100";
    let mut pipe = lab.command(rdpipe(), "rsh", AGENT);
    pipe.args(["--json=report", &format!("h:{waits}")]);
    let mut shell = lab.command(rdsh(), "rsh", AGENT);
    shell.args(["h", waits]);
    let mut copy = lab.command(rdcp(), "rsh", AGENT);
    copy.args(["-v", "--bwlimit=1M", "--json=report", "source", "h1:one", "--to", "h2:two"]);
    for (mut command, sign, reports) in [(pipe, "began", true), (shell, "began", false), (copy, "adds a host", true)] {
        let _ = fs::remove_file(lab.join("report"));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut lines = std::io::BufReader::new(child.stderr.take().expect("piped")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains(sign))), "{command:?}");
        kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
        let status = child.wait().expect("ours");
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{command:?}: {status}");
        let report = fs::read_to_string(lab.join("report")).unwrap_or_default();
        assert_eq!(report.contains(r#""exit":130"#), reports, "{command:?}: {report}");
        lab.deserted(GONE);
    }
}

#[test]
fn a_killed_caller_leaves_nothing() {
    for stages in STAGES {
        let lab = Lab::new();
        let (mut process, _output) = endless(&lab, stages);
        let start = Instant::now();
        process.signal(Signal::KILL);
        process.wait();
        lab.deserted_since(start, GONE);
    }
}

#[test]
fn a_killed_agent_leaves_nothing() {
    for stages in STAGES {
        let mut victim = 0;
        loop {
            let lab = Lab::new();
            let (mut process, _output) = endless(&lab, stages);
            let launches = lab.launches();
            let Some((pid, host, _)) = launches.get(victim) else { break };
            let start = Instant::now();
            kill(*pid, Signal::KILL);
            let ended = process.wait_for(GONE);
            assert_eq!(ended.code, 4, "{stages:?} without {host}: {}", ended.stderr);
            assert!(ended.stderr.lines().any(|line| line.starts_with("rdpipe: ") && line.contains(host.as_str())));
            lab.deserted_since(start, GONE);
            victim += 1;
        }
        assert!(victim > 1, "{stages:?} has several agents");
    }
}

#[test]
fn no_command_takes_a_part_for_the_whole() {
    let commits = "h2:cat >part && mv part final";
    let begins = "h1:head -c 1000000 /dev/zero; sleep 20";
    for (victim, signal) in [
        ("rdpipe", Signal::INT),
        ("rdpipe", Signal::TERM),
        ("rdpipe", Signal::KILL),
        ("h1", Signal::KILL),
        ("h1", Signal::TERM),
        ("h2", Signal::KILL),
        ("h2", Signal::TERM),
    ] {
        for stages in [&[begins, commits][..], &[begins, "h2:tee copy", "h3:cat >part && mv part final"], &[commits]] {
            let lab = Lab::new();
            let mut command = lab.rdpipe_by("rsh");
            let mut process = Process::spawn(command.args(stages).stdin(Stdio::piped()));
            let mut input = process.stdin();
            if stages.len() == 1 {
                std::io::Write::write_all(&mut input, &noise(1_000_000)).expect("a pipe");
            }
            let until = Instant::now() + PATIENCE;
            while fs::metadata(lab.join("home/part")).map_or(0, |part| part.len()) < 1_000_000 {
                assert!(Instant::now() < until, "{}", process.stderr());
                std::thread::sleep(Duration::from_millis(10));
            }
            match lab.launches().iter().find(|(_, host, _)| host == victim) {
                Some((pid, ..)) => kill(*pid, signal),
                // Where there is no h1, this ends it too.
                None => process.signal(signal),
            }
            let ended = process.wait_for(GONE + SOON);
            lab.deserted_since(ended.at, GONE);
            assert!(!lab.join("home/final").exists(), "{victim} {signal:?} {stages:?}");
            drop(input);
        }
    }
}

/// A stage that is ended because its input has failed does not end the input of the next stage.
#[test]
fn no_command_takes_what_an_ended_stage_has_written_for_the_whole() {
    for between in [&["h2:cat"][..], &["h2:tee copy"], &["h2:tee copy", "h3:cat"]] {
        let lab = Lab::new();
        let grows = lab.join("home/grows");
        fs::File::create(&grows).and_then(|file| file.set_len(8_000_000)).expect("a file");
        let mut command = lab.rdpipe_by("rsh");
        command.args(["--bwlimit", "1M", "h1:< grows"]).args(between);
        let mut process = Process::spawn(command.arg("h4:trap '' TERM; cat >part && mv part final"));
        let until = Instant::now() + PATIENCE;
        while fs::metadata(lab.join("home/part")).map_or(0, |part| part.len()) < 100_000 {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::File::options().append(true).open(&grows).and_then(|mut file| file.write_all(b"more")).expect("a file");
        let ended = process.wait_for(PATIENCE);
        ended.expect(5).one_line("rdpipe", &["grows", "changed size", "h4:", "was ended after 2 s without data"]);
        lab.deserted(GONE);
        assert!(!lab.join("home/final").exists(), "{between:?}");
    }
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("not 0"), signal).expect("an agent");
}

#[test]
fn an_agent_that_is_ended_by_hand() {
    for at in [0, 1] {
        let lab = Lab::new();
        let (mut process, _output) = endless(&lab, STAGES[0]);
        let start = Instant::now();
        kill(lab.launches()[at].0, Signal::TERM);
        let ended = process.wait_for(GONE);
        ended.expect(4);
        assert!(ended.stderr.contains("signal 15") || ended.stderr.contains("SIGTERM"), "{}", ended.stderr);
        lab.deserted_since(start, GONE);
    }
}

/// The command ends because its agent does, which is no failure of the command.
#[test]
fn an_agent_that_is_ended_by_hand_after_its_sessions() {
    let lab = Lab::new();
    let stages = ["h1:echo x", "h2:cat; exec >/dev/null; touch done; sleep 1000"];
    let mut process = Process::spawn(lab.rdpipe_by("rsh").args(stages));
    let until = Instant::now() + PATIENCE;
    while !lab.join("home/done").exists() {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The hop's end has been reported.
    std::thread::sleep(Duration::from_millis(500));
    kill(lab.launches().iter().find(|(_, host, _)| host == "h2").expect("an agent").0, Signal::TERM);
    process.wait_for(GONE).expect(4).one_line("rdpipe", &["lost the agent on h2"]);
    lab.deserted(GONE);
}

/// The agent's signal ends both ends of the hop before either hears of the other, and no command is left to fail.
#[test]
fn one_agent_with_both_ends_of_a_hop_that_is_ended_by_hand() {
    let lab = Lab::new();
    fs::write(lab.join("home/source"), noise(16 << 20)).expect("a file");
    let mut process = Process::spawn(lab.rdpipe_by("rsh").args(["--bwlimit", "1M", "h:< source", "h:> target"]));
    let until = Instant::now() + PATIENCE;
    while fs::metadata(lab.join("home/target")).map_or(0, |target| target.len()) == 0 {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Both redirections have been reported as done.
    std::thread::sleep(Duration::from_millis(500));
    kill(lab.launches()[0].0, Signal::TERM);
    let ended = process.wait_for(GONE);
    ended.expect(4).one_line("rdpipe", &["h was ended by signal 15 (SIGTERM)"]);
    lab.deserted(GONE);
}

/// An agent that is stopped for good after all data has passed is given up. A command that is silent for longer is not,
/// and agents are not if the caller itself was stopped for longer.
#[test]
fn an_agent_that_shows_no_sign_of_life_is_given_up() {
    const MINUTES: Duration = Duration::from_secs(150);
    let labs = [Lab::new(), Lab::new(), Lab::new()];
    let stages: [&[&str]; 3] = [
        &["h1:echo x", "h2:cat; exec >/dev/null; touch done; sleep 1000"],
        &["h1:sleep 75; echo x", "h2:cat"],
        &["h1:sleep 75; echo x", "h2:> late"],
    ];
    let start = |(lab, stages): (&Lab, &&[&str])| Process::spawn(lab.rdpipe_by("rsh").args(*stages));
    let mut processes: Vec<Process> = labs.iter().zip(&stages).map(start).collect();
    let until = Instant::now() + PATIENCE;
    while !labs[0].join("home/done").exists() || labs.iter().any(|lab| marked(lab.0.path()).len() < 4) {
        assert!(Instant::now() < until, "{}", processes[0].stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The hop's end has been reported.
    std::thread::sleep(Duration::from_secs(1));
    kill(labs[0].launches().iter().find(|(_, host, _)| host == "h2").expect("an agent").0, Signal::STOP);
    processes[2].signal(Signal::STOP);
    let ended = processes[0].wait_for(MINUTES);
    ended.expect(4).one_line("rdpipe", &["lost the agent on h2", "no sign of life"]);
    std::thread::sleep(Duration::from_secs(10));
    processes[2].signal(Signal::CONT);
    for (process, lab) in processes[1..].iter_mut().zip(&labs[1..]) {
        process.wait_for(MINUTES).expect(0);
        lab.deserted(GONE);
    }
    labs[0].deserted(GONE);
}

/// Signals have ended both ends of the hop before the agent is known to be gone, or the launcher stays.
#[test]
fn an_agent_that_is_ended_while_its_hop_is_made() {
    for stays in [1, 100] {
        let lab = Lab::new();
        let at = lab.0.path().display();
        // h1's agent gets the caller's first messages at once, and the others after h2's agent has ended.
        let waits = format!("while [ -d '{at}' ] && ! [ -e '{at}/go' ]; do sleep 0.1; done");
        let late = format!("(dd bs=64k count=1 2>/dev/null; {waits}; exec cat) | exec sh -c \"exec $2\"");
        let copies = format!("mkfifo '{at}/out'; tee '{at}/said' <'{at}/out' & exec 3<&0");
        let agent = format!("sh -c \"exec $2\" <&3 >'{at}/out' & echo $! >'{at}/agent'; wait $!");
        let ended = format!("{copies}; {agent}; exec sleep {stays}");
        lab.script("odd", &format!("if [ \"$1\" = h1 ]; then {late}; else {ended}; fi"));
        let mut process = Process::spawn(lab.rdpipe_by("odd").args(["h1:echo x", "h2:cat"]));
        let until = Instant::now() + PATIENCE;
        while !fs::read(lab.join("said")).is_ok_and(|said| has_listened(&said)) {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        // The hop to this host has probably been made too.
        std::thread::sleep(Duration::from_millis(500));
        let agent: u32 = lab.text_of("agent").trim().parse().expect("a process id");
        kill(agent, Signal::TERM);
        while is_alive(agent) {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        lab.0.file("go", b"");
        let ended = process.wait_for(GONE + SOON);
        ended.expect(4).one_line("rdpipe", &["h2"]);
        // Depends on which event is noticed first.
        let said = ["lost the agent on h2", "h2 was ended by signal 15"];
        assert!(said.iter().any(|said| ended.stderr.contains(said)), "{}", ended.stderr);
        lab.deserted_since(ended.at, GONE);
    }
}

/// Whether an agent that has said this has had an end of a session listen.
fn has_listened(mut said: &[u8]) -> bool {
    let has_begun = skip_to_magic(&mut said).is_ok();
    let mut messages = std::iter::from_fn(|| receive(&mut said).ok());
    has_begun
        && messages.any(|message| {
            let Message::ForEnd { message, .. } = message else { return false };
            matches!(message.decode(), Ok(Some(Message::Listening(_))))
        })
}

#[test]
fn a_signal_while_hosts_are_called_up() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, 137)] {
        let lab = Lab::new();
        lab.script("late", "[ \"$1\" = h1 ] || sleep 3; exec sh -c \"exec $2\"");
        let mut command = lab.rdpipe_by("late");
        let mut process = Process::spawn(command.args(["h1:touch begun; yes", "h2:cat", "touch begun; cat"]));
        let until = Instant::now() + PATIENCE;
        while lab.launches().len() < 2 {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        let start = Instant::now();
        process.signal(signal);
        assert_eq!(process.wait_for(SOON).code, code, "{}", process.stderr());
        lab.deserted_since(start, GONE);
        assert!(!lab.join("begun").exists() && !lab.join("home/begun").exists());
    }
}

#[test]
fn a_signal_to_one_pipeline_leaves_the_other_alone() {
    let lab = Lab::new();
    let bytes = noise(8 * CHUNK);
    let stages = ["--bwlimit", "4M", "h1:cat", "h2:cat"];
    let (one, other) = (Lab::new(), lab);
    let mut process = other.start(&stages);
    let fed = feed(process.stdin(), bytes.clone());
    let output = drain(process.stdout());
    let (mut victim, _output) = endless(&one, &["h1:yes", "h2:cat"]);
    victim.signal(Signal::KILL);
    let ended = victim.wait();
    one.deserted_since(ended.at, GONE);
    process.wait().expect(0);
    fed.join().expect("no panic");
    same(&output.join().expect("no panic"), &bytes);
    other.deserted(GONE);
}

#[test]
fn a_pipeline_that_has_ended_leaves_nothing() {
    let lab = Lab::new();
    // Like an accidental background process.
    let ran = lab.pipe(&["h1:sleep 1000 >/dev/null 2>&1 & echo one", "h2:sleep 1000 >/dev/null 2>&1 & cat"]);
    assert_eq!(ran.text(), "one\n");
    lab.deserted_since(ran.ended.at, GONE);
    // Like a real daemon, and like a process that hides its origin.
    let hidden = format!("h2:setsid env -i {MARK}=${MARK} sleep 1000 >/dev/null 2>&1 & cat");
    let ran = lab.pipe(&["h1:setsid sleep 1000 >/dev/null 2>&1 & echo one", &hidden]);
    assert_eq!(ran.text(), "one\n");
    lab.deserted_since(ran.ended.at, GONE);
}

/// A background process holds standard error. rdpipe waits two seconds for that, and cuts nothing off meanwhile.
#[test]
fn what_is_left_in_the_background_is_not_waited_for() {
    let lab = Lab::new();
    for stages in [
        &["h1:sleep 1000 >/dev/null & echo one"][..],
        &["h1:echo one", "h2:(sleep 1; echo late >&2; exec sleep 1000) >/dev/null & cat"],
        &["h1:setsid sleep 1000 | cat >/dev/null & echo one", "h2:cat"],
        &["h1:echo one", "sleep 1000 >/dev/null & cat"],
    ] {
        let ran = lab.pipe(stages);
        assert_eq!((ran.ended.code, ran.text().as_str()), (0, "one\n"), "{stages:?}: {}", ran.ended.stderr);
        ran.ended.within(Duration::from_secs(5));
        assert_eq!(ran.ended.stderr.contains("late"), stages.len() == 2 && stages[1].contains("late"), "{stages:?}");
        lab.deserted_since(ran.ended.at, GONE);
    }
}

/// A process that bash starts by `>( )` may finish its work, however long that takes, and so may
/// the rest of the pipeline.
#[test]
fn what_works_on_what_it_was_given_is_waited_for() {
    let lab = Lab::new();
    let slow = "h1:tee >(sh -c 'cat; sleep 3; echo and more' | sh -c 'cat; sleep 2; echo and even more' > late)";
    lab.pipe_with(&["--shell", "bash", slow, "h2:cat"], b"to be kept ").gives(b"to be kept ");
    assert_eq!(lab.text_of("home/late"), "to be kept and more\nand even more\n");
    lab.deserted(GONE);
}

#[test]
fn what_has_left_its_session_ends_with_a_killed_agent() {
    let lab = Lab::new();
    let hidden = format!("setsid --fork env -i {MARK}=${MARK} sh -c 'trap \"\" TERM; sleep 1000'");
    let stages = [&*format!("h1:setsid sleep 1000 & {hidden}; cat /dev/zero"), "h2:cat"];
    let (mut process, _output) = endless(&lab, &stages);
    let launches = lab.launches();
    let start = Instant::now();
    kill(launches[0].0, Signal::KILL);
    process.wait_for(GONE);
    lab.deserted_since(start, GONE);
}

/// Guards are continued, and the pipeline ends as if nothing had been.
#[test]
fn a_stopped_guard_holds_nothing() {
    let lab = Lab::new();
    let mut process = Process::spawn(lab.rdpipe_by("rsh").args(["h1:touch begun; sleep 2; echo x", "h2:cat"]));
    let until = Instant::now() + PATIENCE;
    while !lab.join("home/begun").exists() {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    let found = marked(lab.0.path()).into_iter().filter(|it| it.arguments.ends_with("--guard group"));
    let guards: Vec<u32> = found.map(|guard| guard.pid).collect();
    assert_eq!(guards.len(), 2);
    for guard in guards {
        kill(guard, Signal::STOP);
    }
    process.wait_for(GONE + SOON).expect(0);
    lab.deserted(GONE);
}

#[test]
fn a_killed_guard_ends_the_pipeline() {
    let lab = Lab::new();
    let (mut process, _output) = endless(&lab, &["h1:sleep 1000 & cat /dev/zero", "h2:cat"]);
    let guards = marked(lab.0.path()).into_iter().filter(|it| it.arguments.ends_with("--guard group"));
    let start = Instant::now();
    kill(guards.map(|guard| guard.pid).min().expect("a guard"), Signal::KILL);
    let ended = process.wait_for(GONE);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(ended.stderr.contains("the guard process of the command was killed"), "{}", ended.stderr);
    lab.deserted_since(start, GONE);
}

#[test]
fn what_is_left_on_this_host_is_ended_too() {
    let lab = Lab::new();
    let ran = lab.pipe(&["h1:echo one", "sleep 1000 >/dev/null 2>&1 & cat"]);
    assert_eq!(ran.text(), "one\n");
    lab.deserted_since(ran.ended.at, GONE);
}

#[test]
fn a_stopped_caller_goes_on() {
    let lab = Lab::new();
    let bytes = noise(4 * CHUNK);
    let mut process = lab.start(&["--bwlimit", "4M", "h1:cat", "h2:cat"]);
    let fed = feed(process.stdin(), bytes.clone());
    let output = drain(process.stdout());
    std::thread::sleep(Duration::from_millis(600));
    process.signal(Signal::TSTP);
    std::thread::sleep(Duration::from_secs(7));
    assert!(process.is_running(), "{}", process.stderr());
    process.signal(Signal::CONT);
    process.wait().expect(0);
    fed.join().expect("no panic");
    same(&output.join().expect("no panic"), &bytes);
    lab.deserted(GONE);
}

/// A stage that writes more to standard error than is read must neither keep a signal from being noticed nor
/// fill the memory meanwhile.
#[test]
fn a_signal_is_heard_through_a_flood_of_standard_error() {
    for stage in ["h:yes >&2", "yes >&2"] {
        let lab = Lab::new();
        let mut command = lab.rdpipe_by("rsh");
        command.args([stage, "other:sleep 1000"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("ours");
        let mut stderr = child.stderr.take().expect("piped");
        let (begun, has_begun) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 16 << 10];
            while let Ok(1..) = stderr.read(&mut bytes) {
                let _ = begun.send(());
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        has_begun.recv_timeout(PATIENCE).expect("it is loud");
        // Enough time for output to pile up if it is not held back.
        std::thread::sleep(Duration::from_secs(1));
        kill(child.id(), Signal::TERM);
        let until = Instant::now() + FAILED;
        let status = loop {
            match child.try_wait().expect("ours") {
                Some(status) => break Some(status),
                None if Instant::now() > until => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let code = status.map(|status| status.code());
        if code.is_none() {
            child.kill().expect("ours");
        }
        child.wait().expect("ours");
        reader.join().expect("no panic");
        assert_eq!(code, Some(Some(143)), "{stage}");
        lab.deserted(GONE);
    }
}

#[test]
fn what_was_ignored_at_the_start_is_ignored_by_its_commands() {
    let lab = Lab::new();
    let mut command = lab.rdpipe_by("rsh");
    command.args(["kill -HUP $$; kill -INT $$; echo on", "cat"]).stdin(Stdio::null());
    // As nohup does, and a script in the background.
    run(in_shell("trap '' HUP INT; exec \"$@\"", &command).current_dir(lab.0.path()).stdout(Stdio::piped()))
        .quietly_gives("on\n");
    run(&mut command).fails(129, &["signal 1 (SIGHUP)"]);
    lab.deserted(GONE);
}

#[test]
fn its_program_may_be_replaced_meanwhile() {
    let lab = Lab::new();
    let (program, [one, two]) = (lab.join("program"), ["one", "two"].map(|name| lab.join(name)));
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        partly_run("needs root, for a process of another user");
    }
    fs::set_permissions(lab.0.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    // For an ordinary user, /proc does not show the program of a process whose memory is protected.
    for (is_replaced, is_other) in [(false, false), (true, false), (true, true)] {
        if is_other && !is_root {
            continue;
        }
        fs::copy(PROGRAM, &program).expect("room");
        let mut command = Command::new(&program);
        command.arg("rdpipe").arg(":sleep 1; echo one").arg(format!(":> {}", one.display()));
        command.arg(":echo two").arg(format!(":> {}", two.display()));
        command.env("RDMA_PIPE_CONFIG", "none").stdin(Stdio::null()).stdout(Stdio::piped());
        if is_other {
            command = in_shell(&as_user(NOBODY, lab.0.path()), &command);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let _ = (fs::remove_file(&one), fs::remove_file(&two));
        }
        let process = Process::spawn(&mut command);
        std::thread::sleep(Duration::from_millis(500));
        fs::remove_file(&program).expect("there");
        if is_replaced {
            fs::copy("/bin/false", &program).expect("room");
        }
        finish(process, PATIENCE).quietly_gives("");
        assert_eq!((lab.text_of("one"), lab.text_of("two")), ("one\n".to_owned(), "two\n".to_owned()));
        let _ = fs::remove_file(&program);
    }
    lab.deserted(GONE);
}
