//! Failures: exit codes, the line that names the cause, the end of the other stages, and that nothing begins too soon.

use super::*;

/// A stage that would run for long.
const SLEEP: &str = "sleep 100";

// --- stages ----------------------------------------------------------------------------------------------------------

#[test]
fn the_exit_code_of_a_stage_is_ours() {
    let lab = Lab::new();
    for (stage, code, parts) in [
        ("h:exit 3", 3, &["h: ", "'exit 3'", "ended with exit code 3"][..]),
        ("h:cat; exit 255", 255, &["h: ", "ended with exit code 255"]),
        ("h:no-such-command-here", 127, &["h: ", "'no-such-command-here'", "exit code 127"]),
        ("h:/etc/passwd", 126, &["h: ", "exit code 126"]),
        ("h:kill -KILL $$", 137, &["h: ", "was killed by signal 9"]),
        ("h:kill -TERM $$", 143, &["h: ", "was killed by signal 15"]),
        ("exit 4", 4, &["localhost: ", "'exit 4'", "ended with exit code 4"]),
        ("kill -SEGV $$", 139, &["localhost: ", "was killed by signal 11"]),
        ("h:if", 2, &["h: ", "exit code 2"]),
    ] {
        lab.pipe_with(&[stage], b"some input").fails(code, parts).ended.within(FAILED);
    }
    lab.deserted(GONE);
}

#[test]
fn the_first_the_middle_and_the_last() {
    let lab = Lab::new();
    let bytes = noise(CHUNK + 1);
    for (stages, code, parts) in [
        (["h1:cat; exit 3", "h2:cat", "h3:cat"], 3, &["h1: ", "exit code 3"][..]),
        (["h1:cat", "h2:cat; exit 4", "h3:cat"], 4, &["h2: ", "exit code 4"]),
        (["h1:cat", "h2:cat", "h3:cat; exit 5"], 5, &["h3: ", "exit code 5"]),
        (["h1:cat", "h2:cat; kill -KILL $$", "h3:cat"], 137, &["h2: ", "signal 9"]),
        (["cat; exit 6", "h2:cat", "cat"], 6, &["localhost: ", "exit code 6"]),
    ] {
        // Output written before the failure arrives.
        let ran = lab.pipe_with(&stages, &bytes);
        ran.fails(code, parts).ended.within(FAILED);
        same(&ran.output, &bytes);
    }
    // The exit code is that of the last failed stage, and each failed stage is named.
    let ran = lab.pipe_with(&["h1:cat; exit 3", "h2:cat; exit 4", "h3:cat"], &bytes);
    ran.fails(4, &["h1: ", "exit code 3"]).fails(4, &["h2: ", "exit code 4"]);
    lab.deserted(GONE);
}

#[test]
fn the_others_end_soon() {
    let lab = Lab::new();
    let at = |host: &str, command: &str| format!("{host}:{command}");
    for (stages, code) in [
        ([at("h1", SLEEP), at("h2", "exit 3")], 3),
        ([at("h1", "exit 3"), at("h2", SLEEP)], 3),
        ([SLEEP.to_owned(), at("h2", "exit 3")], 3),
        ([at("h1", "exit 3"), SLEEP.to_owned()], 3),
        ([at("h1", "yes"), at("h2", "head -c 1000 >/dev/null; exit 3")], 3),
        ([at("h1", "trap '' TERM; sleep 100; sleep 100"), at("h2", "exit 3")], 3),
        ([at("h1", "exit 3"), at("h2", "trap '' TERM; cat; sleep 100; sleep 100")], 3),
        ([at("h1", "sleep 100 & sleep 100"), at("h1", "exit 3")], 3),
    ] {
        let ran = lab.pipe(&stages);
        ran.fails(code, &["ended with exit code 3"]).ended.within(FAILED);
        // Stages that rdpipe itself has ended have not failed.
        let ours = ran.ended.stderr.lines().filter(|line| line.starts_with("rdpipe: ")).count();
        assert_eq!(ours, 1, "{stages:?}: {}", ran.ended.stderr);
        lab.deserted(GONE);
    }
    let ran = lab.pipe(&[at("h1", SLEEP), at("h2", "exit 3"), at("h3", SLEEP), at("h4", "cat")]);
    ran.fails(3, &["h2: ", "exit code 3"]).ended.within(FAILED);
    lab.deserted(GONE);
}

/// A redirection that is ended while its file is being opened has not failed: another stage has.
#[test]
fn a_file_that_is_still_being_opened_explains_nothing() {
    let lab = Lab::new();
    lab.0.fifo("home/fifo");
    for (stages, parts) in [
        (&["h1:echo data; exit 3", "h2:cat", "h3:> fifo"][..], &["h1: ", "exit code 3; h3: '> fifo' was ended"][..]),
        (&["h1:exit 3", "h2:cat", "h3:> fifo"], &["h1: ", "exit code 3; h3: '> fifo' was ended"]),
        (&["h1:< fifo", "h2:cat", "h3:exit 3"], &["h3: ", "exit code 3"]),
        (&["h1:< fifo", "h[2-3]:exit 3"], &["all 2 hosts failed"]),
        (&["h1:echo data; exit 3", "h[2-3]:> fifo"], &["h2: ", "'> fifo' was ended after 2 s without data"]),
    ] {
        let ran = lab.pipe(stages);
        ran.fails(3, parts).ended.within(FAILED);
        assert!(!ran.ended.stderr.contains("opened no file"), "{stages:?}: {}", ran.ended.stderr);
        lab.deserted(GONE);
    }
}

#[test]
fn what_still_flows_is_not_cut_off() {
    let lab = Lab::new();
    // The stage that fails ends at once. The other stages' data takes longer than the 2 s.
    let bytes = noise(3 * CHUNK);
    let slowly = "h2:for i in 1 2 3 4 5 6; do head -c 524288; sleep 0.7; done";
    let ran = lab.pipe_with(&["h1:cat; exit 3", slowly, "h3:cat"], &bytes);
    ran.fails(3, &["h1: ", "exit code 3"]);
    same(&ran.output, &bytes);
    lab.deserted(GONE);
}

#[test]
fn who_has_enough_may_go() {
    let lab = Lab::new();
    for stages in [
        &["h1:yes", "h2:head -c 10"][..],
        &["h1:cat /dev/zero", "h2:cat", "h3:cat", "h4:tr '\\0' y | head -c 10"],
        &["yes", "h2:head -c 10"],
        &["h1:yes", "head -c 10"],
        &["yes", "head -c 10"],
        &["h:yes | head -c 10"],
        &["h1:< /dev/zero", "h2:head -c 10 | tr '\\0' y"],
        &["h1:yes", "h2:tee /dev/null", "h2:head -c 10"],
    ] {
        let ran = lab.pipe(stages);
        assert_eq!((ran.ended.code, ran.ended.stderr.as_str()), (0, ""), "{stages:?}");
        assert_eq!(ran.output.len(), 10, "{stages:?}");
        ran.ended.within(FAILED);
    }
    // rdpipe's own input may be endless too.
    let mut command = lab.rdpipe_by("rsh");
    command.args(["h:head -c 10"]).stdin(fs::File::open("/dev/zero").expect("it"));
    run(&mut command).gives(&[0; 10]).ended.within(FAILED);
    // Into a file: the wanted bytes are there.
    lab.pipe(&["h1:yes", "h2:head -c 10", "h3:> ten"]).quietly_gives("");
    assert_eq!(lab.text_of("home/ten").len(), 10);
    lab.deserted(GONE);
}

#[test]
fn our_own_output_is_closed() {
    let lab = Lab::new();
    for stages in [&["h1:yes", "h2:cat"][..], &["h:< /dev/zero"], &["yes"]] {
        let mut process = lab.start(stages);
        let mut output = process.stdout();
        std::io::Read::read_exact(&mut output, &mut [0; 1000]).expect("some of it");
        drop(output);
        let ended = process.wait_for(FAILED);
        assert_eq!((ended.code, ended.stderr.as_str()), (141, ""), "{stages:?}");
        lab.deserted(GONE);
    }
}

#[test]
fn a_part_that_fails_is_the_last() {
    let lab = Lab::new();
    lab.0.file("home/in", b"in");
    for first in ["h1:exit 3", "h1:< in"] {
        let end = if first.ends_with("in") { "h2:cat >/dev/null; exit 3" } else { "h2:cat" };
        let ran = lab.pipe(&[first, end, "h3:> begun", "h1:< in", "h2:touch begun_too; cat"]);
        ran.fails(3, &["ended with exit code 3"]).ended.within(FAILED);
        same(&ran.output, b"");
    }
    let names = |name: &str| lab.join(&format!("home/{name}")).exists();
    assert!(!names("begun_too"), "the part behind the failed one");
    lab.deserted(GONE);
}

// --- files -----------------------------------------------------------------------------------------------------------

#[test]
fn files_that_cannot_be_opened() {
    let lab = Lab::new();
    lab.0.file("home/in", b"in");
    fs::create_dir(lab.join("home/dir")).expect("a directory");
    // If the shell cannot open the file, the reason is the shell's.
    for (stages, code, parts) in [
        (["h1:< missing", "h2:cat"], 5, &["h1", "missing: No such file or directory (errno 2)"][..]),
        (["h1:cat", "h2:< missing"], 5, &["h2", "missing", "o such file"]),
        // The shell names the file that it has made of this, and so do we.
        (["h1:< ~/missing", "h2:cat"], 5, &["cannot read h1:/", "/home/missing: No such file or directory (errno 2)"]),
        (["h1:< dir", "h2:cat"], 5, &["h1", "dir", "errno 21"]),
        (["h1:< in/x", "h2:cat"], 5, &["h1", "in/x"]),
        (["h1:cat in", "h2:> /no/such/dir/x"], 6, &["h2", "/no/such/dir/x", "nonexistent"]),
        (["h1:cat in", "h2:>> /no/such/dir/x"], 6, &["h2", "/no/such/dir/x", "nonexistent"]),
        (["h1:> no/dir", "h2:cat"], 6, &["h1", "no/dir"]),
        (["h1:cat in", "h2:> dir"], 6, &["h2", "dir: Is a directory (errno 21)"]),
        (["h1:cat in", "> /no/such/dir/x"], 6, &["/no/such/dir/x"]),
        (["h1:< in; cat in", "h2:cat"], 5, &["h1", "a command, after the operator"]),
        (["h1:cat in", "h2:> /dev/null && echo made"], 6, &["h2", "a command, after the operator"]),
        (["h1:cat in", "h2:> /dev/stderr"], 6, &["h2", "/dev/stderr", "cannot write to standard error"]),
        (["h1:cat in", "h2:>> /dev/fd/2"], 6, &["h2", "/dev/fd/2", "cannot write to standard error"]),
    ] {
        let ran = lab.pipe_with(&stages, b"some input");
        ran.fails(code, parts).ended.within(FAILED);
        assert_eq!(ran.ended.stderr.lines().count(), 1, "nothing but that: {}", ran.ended.stderr);
        assert_eq!(ran.text(), "");
    }
    // A file of this host without a session: the shell gives the reason.
    lab.pipe(&["h1:cat in", "< missing"]).fails(5, &["missing"]);
    lab.pipe(&["< missing"]).fails(5, &["missing"]);
    lab.pipe_with(&["> /no/such/dir/x"], b"some input").fails(6, &["/no/such/dir/x"]);
    lab.deserted(GONE);
}

#[test]
fn a_disk_that_is_full() {
    let lab = Lab::new();
    let bytes = noise(4 * CHUNK);
    lab.0.file("in", &bytes);
    for (stages, host) in [
        (["h1:cat", "h2:> /dev/full"], "h2"),
        (["< in", "h2:>> /dev/full"], "h2"),
        (["h1:> /dev/full", "h2:echo never"], "h1"),
    ] {
        let ran = lab.pipe_with(&stages, &bytes);
        ran.fails(6, &[host, "/dev/full", "errno 28"]).ended.within(FAILED);
        assert_eq!(ran.text(), "", "{stages:?}");
    }
    lab.pipe_with(&["h1:cat", "> /dev/full"], &bytes).fails(6, &["/dev/full", "errno 28"]);
    // From rdpipe's own standard input to a file of this host no session runs. The failure is the same.
    lab.pipe_with(&["> /dev/full"], &bytes).fails(6, &["/dev/full"]);
    lab.deserted(GONE);
}

/// A file that tee cannot write is reported as a failure at the end. The next stage gets all of the data.
#[test]
fn tee_passes_on_what_it_cannot_write() {
    let lab = Lab::new();
    fs::create_dir(lab.join("home/dir")).expect("a directory");
    let bytes = noise(4 * CHUNK);
    for (stage, errno) in [("tee /dev/full", 28), ("tee no/dir", 2), ("tee -a dir", 21), ("tee dir/in/none", 2)] {
        let ran = lab.pipe_with(&["h1:cat", &format!("h2:{stage}"), "h3:cat"], &bytes);
        let file = stage.rsplit(' ').next().expect("a word");
        ran.fails(1, &["h2", file, &format!("errno {errno}")]).ended.within(FAILED);
        assert_eq!(ran.ended.stderr.lines().count(), 1, "nothing but that: {}", ran.ended.stderr);
        same(&ran.output, &bytes);
    }
    lab.pipe_with(&["h1:tee no/dir", "h2:cat"], b"").fails(1, &["h1", "no/dir", "errno 2"]);
    lab.deserted(GONE);
}

#[test]
fn a_source_that_cannot_be_read() {
    let lab = Lab::new();
    // The beginning of a process's memory is not mapped. A user who may not open the file gets the same exit code.
    lab.pipe(&["h1:< /proc/1/mem", "h2:cat"]).fails(5, &["h1", "/proc/1/mem"]).ended.within(FAILED);
    lab.deserted(GONE);
}

#[test]
fn our_own_output_that_cannot_be_written() {
    let lab = Lab::new();
    // The failure is noticed for one byte when everything has been sent, and for many bytes while
    // the command still writes.
    for bytes in [1, 4 * CHUNK] {
        let command = &*format!("h1:head -c {bytes} /dev/zero");
        let full = fs::File::options().write(true).open("/dev/full").expect("a full device");
        let mut rdpipe = lab.rdpipe_by("rsh");
        let ended = Process::spawn(rdpipe.args([command, "h2:cat"]).stdout(full)).wait_for(FAILED);
        assert_eq!(ended.code, 6, "{}", ended.stderr);
        assert!(ended.stderr.contains("standard output") && ended.stderr.contains("errno 28"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "nothing but that: {}", ended.stderr);
    }
    lab.deserted(GONE);
}

#[test]
fn our_own_input_that_cannot_be_read() {
    let lab = Lab::new();
    for stages in [["h1:cat", "h2:cat"], ["h1:> made", "h2:cat"]] {
        for input in ["/", "/proc/self/mem"] {
            let input = fs::File::open(input).expect("it opens");
            let ran = run(lab.rdpipe_by("rsh").args(stages).stdin(input));
            ran.fails(5, &["standard input"]).ended.within(FAILED);
            assert_eq!(ran.text(), "");
        }
    }
    lab.deserted(GONE);
}

#[test]
fn our_own_input_or_output_that_is_closed() {
    let lab = Lab::new();
    for (stages, how, code, name) in [
        (&["h1:cat", "h2:cat"][..], "<&-", 5, "standard input"),
        (&["h1:> made"], "<&-", 5, "standard input"),
        (&["cat"], "<&-", 5, "standard input"),
        (&["h1:echo x"], ">&-", 6, "standard output"),
        (&["echo x"], ">&-", 6, "standard output"),
    ] {
        let mut command = in_shell(&format!("exec \"$@\" {how}"), lab.rdpipe_by("rsh").args(stages));
        let ran = run(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        ran.fails(code, &[name, "errno 9"]).ended.within(FAILED);
        assert_eq!(ran.ended.stderr.lines().count(), 1, "nothing but that: {}", ran.ended.stderr);
    }
    assert!(!lab.join("home/made").exists());
    // If neither is used, neither is needed.
    lab.0.file("home/in", b"in");
    let mut command = in_shell("exec \"$@\" <&- >&-", lab.rdpipe_by("rsh").args(["h1:< in", "h2:cat", "h1:> out"]));
    run(command.stdin(Stdio::null()).stdout(Stdio::piped())).quietly_gives("");
    assert_eq!(lab.text_of("home/out"), "in");
    lab.deserted(GONE);
}

/// SIGPIPE excuses a writer only if its reader has gone; otherwise what comes after it has only a part.
#[test]
fn a_part_is_not_taken_for_the_whole() {
    let lab = Lab::new();
    for end in ["exit 141", "kill -PIPE $$"] {
        let writer = format!("h1:head -c 1000 /dev/zero; {end}");
        lab.pipe(&[&writer, "h2:> part"]).fails(141, &["h1"]).ended.within(FAILED);
        lab.pipe(&[&writer, "h2:cat", "h3:> part"]).fails(141, &["h1"]).ended.within(FAILED);
        lab.pipe(&[&writer, "h2:> part", "h3:< part", "h4:> next"]).fails(141, &["h1"]).ended.within(FAILED);
        // Nothing reads what the first part writes.
        lab.0.file("home/old", b"old");
        lab.pipe(&[&format!("h1:{end}"), "h3:< old", "h4:> next"]).fails(141, &["h1"]).ended.within(FAILED);
        assert!(!lab.join("home/next").exists());
    }
    // A file that takes only a part.
    lab.0.fifo("home/fifo");
    for stages in [&["h1:head -c 5000000 /dev/zero", "h2:> fifo"][..], &["h1:yes", "h2:tee fifo", "h3:cat >/dev/null"]]
    {
        let mut reader = std::process::Command::new("head");
        let reader = reader.args(["-c", "1000"]).arg(lab.join("home/fifo"));
        let mut reader = reader.stdout(std::process::Stdio::null()).spawn().expect("head");
        let ran = lab.pipe(stages);
        assert!([1, 6].contains(&ran.ended.code), "{stages:?}: {} {}", ran.ended.code, ran.ended.stderr);
        assert!(ran.ended.stderr.contains("fifo") && ran.ended.stderr.contains("errno 32"), "{}", ran.ended.stderr);
        reader.wait().expect("it ends");
    }
    lab.deserted(GONE);
}

/// As with `pipefail`, a reader that has ended excuses only a writer that goes on writing.
#[test]
fn a_failure_beside_a_reader_that_has_gone() {
    let lab = Lab::new();
    for reader in ["exec <&-; sleep 2", "exec <&-; echo done", "true"] {
        let reader = format!("h2:{reader}");
        lab.pipe(&["h1:sleep .5; exit 3", &reader]).fails(3, &["h1", "exit code 3"]).ended.within(FAILED);
        // A writer that goes on writing has been told by SIGPIPE.
        let ran = lab.pipe(&["h1:sleep .5; yes 2>/dev/null; exit 3", &reader]);
        ran.ended.expect(0).within(FAILED);
        lab.pipe(&["h1:sleep .5", &reader]).ended.expect(0);
    }
    // What works on something else gets its time.
    let ran = lab.pipe(&["h1:sleep 1.5; exit 3", "h2:exec <&-; sleep 2.5; touch done"]);
    ran.fails(3, &["h1", "exit code 3"]).ended.within(FAILED);
    assert!(lab.join("home/done").exists());
    lab.deserted(GONE);
}

/// Far more stages than the limits allow are refused before anything begins, in one line.
#[test]
fn more_stages_than_a_host_has_room_for() {
    let lab = Lab::new();
    for stage in ["h:cat", "cat"] {
        let stages = vec![stage; 1000];
        let mut command = in_shell("ulimit -n 2000; exec \"$@\"", lab.rdpipe_by("rsh").args(&stages));
        let ran = run(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        ran.fails(1, &["1000 stages", "open files", "ulimit -n"]);
        assert_eq!(ran.ended.stderr.lines().count(), 1, "nothing but that: {}", ran.ended.stderr);
        ran.ended.within(PATIENCE);
    }
    lab.deserted(GONE);
}

/// If a file cannot be opened, the command behind it is ended at once. It is not given an empty input, which it might
/// take for the whole.
#[test]
fn a_hop_that_never_begins_ends_at_once() {
    // A command that is left waiting is ended only after 2 s without data. A busy machine delays some runs by as much.
    const AT_ONCE: Duration = Duration::from_millis(1900);
    let lab = Lab::new();
    lab.0.file("home/in", b"in");
    for (stages, code) in
        [(["h1:< missing", "h2:cat >/dev/null; echo seen >seen"], 5), (["h1:cat in", "h2:> /no/such/dir/x"], 6)]
    {
        let is_at_once = |_: u32| {
            let ended = lab.pipe(&stages).fails(code, &[]).ended.clone();
            assert!(!ended.stderr.contains("without data"), "{}", ended.stderr);
            ended.after <= AT_ONCE
        };
        assert!((0..5).any(is_at_once), "{stages:?} never ended within {AT_ONCE:?}");
    }
    assert!(!lab.join("home/seen").exists());
    lab.deserted(GONE);
}

// --- hosts -----------------------------------------------------------------------------------------------------------

/// Whether a stage has begun, shown by a file that it makes and by one that a redirection would have truncated.
fn begun(lab: &Lab) -> bool {
    lab.join("home/begun").exists() || lab.join("begun").exists() || lab.text_of("home/old") != "old"
}

#[test]
fn a_host_that_cannot_be_reached() {
    let lab = Lab::new();
    let launcher = lab.patchy();
    lab.0.file("home/old", b"old");
    for stages in [
        &["away:cat"][..],
        &["h1:touch begun", "away:cat"],
        &["away:cat", "h2:> old"],
        &["h1:touch begun; cat", "away:cat", "h2:> old"],
        &["touch begun", "away:cat", "far:> old"],
        &["touch begun; cat", "h2:touch begun; cat", "far:touch begun; cat", "away:touch begun"],
    ] {
        let ran = run(lab.rdpipe_by(launcher).args(stages));
        ran.fails(3, &["away", "no route to away"]).ended.within(FAILED);
        assert_eq!(ran.ended.stderr.lines().count(), 1, "{}", ran.ended.stderr);
        assert!(!begun(&lab), "{stages:?}");
    }
    lab.deserted(GONE);
}

#[test]
fn a_host_without_an_agent() {
    let lab = Lab::new();
    let launcher = lab.patchy();
    lab.0.file("home/old", b"old");
    for stages in [&["bare:cat"][..], &["h1:touch begun", "bare:cat", "far:> old"]] {
        let ran = run(lab.rdpipe_by(launcher).args(stages));
        ran.fails(3, &["bare has no", "--agent"]).ended.within(FAILED);
        assert!(!begun(&lab), "{stages:?}");
    }
    let mut command = lab.command(rdpipe(), "rsh", "/nonexistent/agent");
    run(command.stdin(Stdio::null()).stdout(Stdio::piped()).arg("h:cat")).fails(3, &["h has no", "--agent"]);
    lab.deserted(GONE);
}

#[test]
fn nothing_begins_before_the_last_host_is_there() {
    let lab = Lab::new();
    let launcher = lab.patchy();
    lab.0.file("home/old", b"old");
    let mut command = lab.rdpipe_by(launcher);
    command.args(["h1:date +%s%N; cat", "far:cat", "h2:> old"]);
    let process = Process::spawn(&mut command);
    // While one host is still being started, here for a second, the file is unchanged.
    std::thread::sleep(Duration::from_millis(700));
    assert!(!begun(&lab));
    finish(process, PATIENCE).quietly_gives("");
    assert!(begun(&lab), "what shows a beginning shows it");
    lab.deserted(GONE);
}

#[test]
fn launchers_that_fail() {
    let lab = Lab::new();
    lab.script("fails", "echo odd >&2; exit 3");
    lab.script("babbles", "yes | head -c 200000; exec sleep 20");
    for (launcher, parts) in [
        ("fails", &["no agent", "h", "3", "odd"][..]),
        ("babbles", &["not an rdma-pipe agent"]),
        ("none", &["cannot run", "none: ", "errno 2", "--rsh"]),
    ] {
        run(lab.rdpipe_by(launcher).arg("h:cat")).fails(3, parts).ended.within(FAILED);
    }
    lab.deserted(GONE);
}

#[test]
fn no_way_to_each_other() {
    let lab = Lab::new();
    let ran = lab.pipe(&["--via", "no-such-interface", "h1:cat", "h2:cat"]);
    ran.fails(3, &["--via", "neither end has"]).ended.within(FAILED);
    lab.deserted(GONE);
}

#[test]
fn another_major_is_refused_by_name() {
    let lab = Lab::new();
    // The magic, then a HELLO of major 9, minor 7, program 9.9.
    let hello = r"\0rdma-pipe agent\0\n\027\0\0\0\202\0\201\211\011\007\1439.9\141L\141m\141c\100\100\144more";
    lab.script("newer", &format!("printf '{hello}'; cat >/dev/null"));
    run(lab.rdpipe_by("newer").arg("h:cat")).fails(9, &["h has rdma-pipe 9.9", "9.7"]).ended.within(FAILED);
    lab.deserted(GONE);
}

#[test]
fn a_shell_that_is_not_there() {
    let lab = Lab::new();
    for stage in ["h:cat", "h:< /etc/hostname"] {
        let ran = lab.pipe(&["--shell", "/no/such-shell -x", stage]);
        ran.fails(127, &["cannot run h:/no/such-shell", "errno 2"]).ended.within(FAILED);
    }
    lab.deserted(GONE);
}
