//! Which words are hosts and which commands, the examples of the original utility, and invalid pipelines.

use std::os::unix::fs::PermissionsExt;

use super::*;

// --- the examples of the original's manual, with cat for zfs and another stage for ffmpeg ----------------------------

#[test]
fn one_command_elsewhere() {
    let lab = Lab::new();
    let bytes = noise(3 * CHUNK + 5);
    lab.pipe_with(&["other_host:wc -c"], &bytes).quietly_gives(&format!("{}\n", bytes.len()));
    lab.0.file("myfile", &bytes);
    let here = Command::new("sha1sum").stdin(fs::File::open(lab.join("myfile")).expect("it")).output();
    let here = String::from_utf8(here.expect("sha1sum").stdout).expect("text");
    lab.pipe_with(&["other_host:sha1sum"], &bytes).quietly_gives(&here);
    lab.pipe_with(&["other_host:> mycopy"], &bytes).quietly_gives("");
    holds(&lab.join("home/mycopy"), &bytes);
    fs::remove_file(lab.join("home/mycopy")).expect("it is there");
    let counted = lab.pipe_with(&["other_host:tee mycopy | wc -c; echo done"], &bytes);
    counted.quietly_gives(&format!("{}\ndone\n", bytes.len()));
    holds(&lab.join("home/mycopy"), &bytes);
    assert_eq!(lab.hosts(), ["other_host"; 4]);
    lab.deserted(GONE);
}

#[test]
fn from_another_host_into_a_pipe_of_the_shell() {
    let lab = Lab::new();
    let bytes = noise(CHUNK + 5);
    lab.0.file("home/snapshot", &bytes);
    let rdpipe = lab.rdpipe_by("rsh");
    let line = "\"$@\" | cat | cat > received";
    let mut command = in_shell(line, &rdpipe);
    command.arg("backup@fileserver:cat snapshot").current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    run(&mut command).quietly_gives("");
    holds(&lab.join("received"), &bytes);
    assert_eq!(lab.hosts(), ["backup@fileserver"], "the user is the launcher's business");
    lab.deserted(GONE);
}

#[test]
fn four_hosts_each_of_which_takes_a_copy() {
    let lab = Lab::new();
    let bytes = noise(2 * CHUNK + 77);
    lab.0.file("home/snap", &bytes);
    let ran = lab.pipe(&[
        "--shell",
        "bash",
        "fs1:cat snap",
        "fs2:tee >(cat > on_fs2)",
        "backup:tee >(cat > on_backup)",
        "logs:tee >(sha1sum >> snap_sha1) | wc -c >> snap_sizes; echo done",
    ]);
    ran.quietly_gives("done\n");
    // rdpipe does not wait for processes that bash starts in this way, but they must be able to
    // finish what they were given.
    lab.deserted(GONE);
    holds(&lab.join("home/on_fs2"), &bytes);
    holds(&lab.join("home/on_backup"), &bytes);
    assert_eq!(lab.text_of("home/snap_sizes"), format!("{}\n", bytes.len()));
    assert!(lab.text_of("home/snap_sha1").ends_with("  -\n"));
    assert_eq!(lab.hosts(), ["backup", "fs1", "fs2", "logs"]);
}

#[test]
fn what_a_stage_leaves_behind_may_finish_its_work() {
    let lab = Lab::new();
    // The process works for a second after its stage has ended. Of the stage's pipes it holds
    // only the one to its input.
    let late = "h1:tee >(sh -c 'cat; sleep 1; echo and more' > late 2>/dev/null)";
    lab.pipe_with(&["--shell", "bash", late, "h2:cat"], b"to be kept ").gives(b"to be kept ");
    lab.deserted(GONE);
    assert_eq!(lab.text_of("home/late"), "to be kept and more\n");
}

#[test]
fn from_a_file_through_a_command_to_a_file() {
    let lab = Lab::new();
    lab.0.file("home/textfile", b"some text\n");
    lab.pipe(&["fs1:< textfile", "CAPS:tr [:lower:] [:upper:]", "fs2:> TEXTFILE"]).quietly_gives("");
    assert_eq!(lab.text_of("home/TEXTFILE"), "SOME TEXT\n");
    let bytes = noise(2 * CHUNK);
    lab.0.file("home/file1", &bytes);
    lab.pipe(&["host:< file1", "host2:> file2"]).quietly_gives("");
    holds(&lab.join("home/file2"), &bytes);
    // Without spaces, and to /dev/null.
    let ran = lab.pipe(&["-v", "host1:<file1", "host2:>/dev/null"]);
    assert!(ran.gives(b"").ended.stderr.contains("host1 -> host2: "), "{}", ran.ended.stderr);
    lab.deserted(GONE);
}

#[test]
fn words_through_two_hosts() {
    let lab = Lab::new();
    lab.pipe_with(&["host1:tr [:lower:] [:upper:]", "host2:rev"], b"hello\n").quietly_gives("OLLEH\n");
    // From this host to another: `zfs send` to `zfs recv`.
    lab.0.file("snapshot", b"all of it");
    lab.pipe(&["cat snapshot", "backup:cat > received"]).quietly_gives("");
    assert_eq!(lab.text_of("home/received"), "all of it");
    // Between two other hosts: no output here.
    lab.pipe(&["backup@fileserver:cat received", "backup_server:cat > again"]).quietly_gives("");
    assert_eq!(lab.text_of("home/again"), "all of it");
    // The stream comes from a program that makes frames.
    let frames = "head -c 3110400 /dev/zero | tr '\\0' y";
    let mut maker = Command::new("sh");
    let frames = maker.args(["-c", frames]).output().expect("sh").stdout;
    lab.pipe_with(&["playback_host:wc -c; printf played"], &frames).quietly_gives("3110400\nplayed");
    lab.deserted(GONE);
}

// --- hosts -----------------------------------------------------------------------------------------------------------

#[test]
fn a_host_twice_and_three_times() {
    let lab = Lab::new();
    let bytes = noise(CHUNK + 1);
    // The original has a single port for all, and fails.
    lab.pipe_with(&["h:tr a b", "h:tr b c"], b"aaa\n").quietly_gives("ccc\n");
    lab.pipe_with(&["h:cat", "h:cat", "h:cat"], &bytes).quietly_gives_bytes(&bytes);
    lab.pipe_with(&["h:cat", "other:cat", "h:cat", "other:cat", "h:wc -c"], &bytes)
        .quietly_gives(&format!("{}\n", bytes.len()));
    // A requested port is the first of several.
    let port = free_port().to_string();
    lab.pipe_with(&["-p", &port, "h:cat", "h:cat", "other:cat", "h:cat"], &bytes).quietly_gives_bytes(&bytes);
    lab.deserted(GONE);
}

#[test]
fn without_a_host_it_runs_here() {
    let lab = Lab::new();
    lab.0.file("here", b"1:one\n2:two\n");
    lab.0.file("home/there", b"there\n");
    // A name before a colon is not a host if it contains characters that no host name has.
    lab.pipe(&["cat here", "awk -F: '{ print $2 }'"]).quietly_gives("one\ntwo\n");
    lab.pipe_with(&["./no/host:x 2>/dev/null; cat here"], b"").quietly_gives("1:one\n2:two\n");
    assert!(lab.launches().is_empty(), "no host was called up");
    // Local commands run in rdpipe's directory, the others in the login's home.
    lab.pipe(&["h:cat there", "cat; cat here"]).quietly_gives("there\n1:one\n2:two\n");
    lab.pipe(&["cat here", "h:cat - there", "sed s/^/x/"]).quietly_gives("x1:one\nx2:two\nxthere\n");
    lab.pipe(&["h:pwd -P", "cat; pwd -P"]).quietly_gives(&format!(
        "{}\n{}\n",
        fs::canonicalize(lab.join("home")).expect("it").display(),
        fs::canonicalize(lab.0.path()).expect("it").display()
    ));
    lab.deserted(GONE);
}

#[test]
fn a_colon_in_front_makes_it_run_here() {
    let lab = Lab::new();
    // Without the colon in front, this would be a host to contact.
    let name = lab.0.file("tool:x", b"#!/bin/sh\necho \"the tool $1\"\n");
    fs::set_permissions(name, fs::Permissions::from_mode(0o755)).expect("ours");
    let path = format!("{}:/usr/bin:/bin", lab.0.path().display());
    run(lab.rdpipe_by("rsh").env("PATH", path).arg(":tool:x y")).quietly_gives("the tool y\n");
    run(lab.rdpipe_by("rsh").arg(":printf a:b")).quietly_gives("a:b");
    assert!(lab.launches().is_empty(), "no host was called up");
    let ran = lab.pipe(&["tool:x"]);
    ran.ended.expect(127);
    assert_eq!(lab.hosts(), ["tool"], "without the colon it is a host");
    lab.deserted(GONE);
}

#[test]
fn hosts_have_users_and_addresses() {
    let lab = Lab::new();
    let stages = ["me@h1.example.org:cat", "[fd00:9::1]:cat", "root@[::1]:cat", "10.9.0.1:cat", "A-b_c.9:cat"];
    lab.pipe_with(&stages, b"through all").quietly_gives("through all");
    assert_eq!(lab.hosts(), ["10.9.0.1", "A-b_c.9", "fd00:9::1", "me@h1.example.org", "root@::1"]);
    for (_, _, command) in lab.launches() {
        assert_eq!(command, AGENT, "nothing of the pipeline is in the command");
    }
    // The first colon ends the host. Everything after it belongs to the command.
    lab.pipe(&["h:printf a:b:c"]).quietly_gives("a:b:c");
    lab.deserted(GONE);
}

#[test]
fn no_host_is_taken_for_an_option_of_the_launchers() {
    let lab = Lab::new();
    for stage in ["-oProxyCommand=touch pwned:cat", "-F:cat", "-l@h:cat"] {
        let ran = lab.pipe(&["--", stage]);
        assert_ne!(ran.ended.code, 0, "{stage}: {}", ran.ended.stderr);
    }
    for (_, host, _) in lab.launches() {
        assert!(!host.starts_with('-'), "{host}");
    }
    assert!(!lab.join("pwned").exists() && !lab.join("home/pwned").exists());
}

#[test]
fn the_environment_is_the_logins() {
    let lab = Lab::new();
    lab.script("login", "TOLD=there; export TOLD; exec sh -c \"exec $2\"");
    let mut command = lab.rdpipe_by("login");
    command.env("TOLD", "here").args(["printf '%s ' \"$TOLD\"", "h:cat; echo \"$TOLD\""]);
    run(&mut command).quietly_gives("here there\n");
}

#[test]
fn another_shell() {
    let lab = Lab::new();
    let array = "x=(a b); echo \"${x[1]}\"; cat";
    lab.pipe_with(&["--shell", "bash", &format!("h:{array}"), array], b"end\n").quietly_gives("b\nb\nend\n");
    // The shell's own arguments, as on a command line.
    lab.pipe(&["--shell", "bash -e", "h:echo one; false; echo two"]).fails(1, &["h: ", "exit code 1"]);
    lab.pipe(&["--shell", "no-such-shell", "h:cat"]).ended.expect(127);
    lab.deserted(GONE);
}

// --- standard input --------------------------------------------------------------------------------------------------

#[test]
fn a_terminal_is_not_read() {
    let lab = Lab::new();
    for stages in [&["h:cat; echo end"][..], &["cat; echo end"], &["h1:cat", "h2:cat; echo end"]] {
        let mut process = Process::spawn(at_terminal(&lab, stages, " > output 2> errors").stdout(Stdio::null()));
        // Nothing is typed, and the terminal stays open.
        let keyboard = process.stdin();
        process.wait_for(Duration::from_secs(20)).expect(0);
        drop(keyboard);
        assert_eq!((lab.text_of("output"), lab.text_of("errors")), ("end\n".to_owned(), String::new()), "{stages:?}");
    }
    lab.deserted(GONE);
}

/// What a command here asks stays on the terminal until it is answered. Progress is drawn after that.
#[test]
fn a_question_is_not_drawn_over() {
    let lab = Lab::new();
    let asks = "printf 'Password: ' >/dev/tty; read answer </dev/tty; printf Thanks >/dev/tty; \
        head -c 100000 /dev/zero; sleep 6";
    for stages in [[asks, "h:cat >/dev/null"], [asks, "h[1-2]:cat >/dev/null"]] {
        let mut process = Process::spawn(at_terminal(&lab, &stages, "").stdout(Stdio::piped()));
        let (mut keyboard, mut screen) = (process.stdin(), process.stdout());
        let mut shown = Vec::new();
        while !shown.ends_with(b"Password: ") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut screen, &mut byte).expect("the question");
            shown.extend(byte);
        }
        // Longer than it takes until something is drawn.
        std::thread::sleep(Duration::from_millis(1500));
        std::io::Write::write_all(&mut keyboard, b"secret\n").expect("a terminal");
        let screen = drain(screen);
        process.wait_for(Duration::from_secs(20)).expect(0);
        drop(keyboard);
        let rest = String::from_utf8_lossy(&screen.join().expect("no panic")).into_owned();
        let (before, after) = rest.split_once("Thanks").expect("an answer");
        assert!(!before.contains('\x1b') && after.contains("\x1b[0J"), "{stages:?}: {rest:?}");
    }
    lab.deserted(GONE);
}

/// Returns a command that runs rdpipe at a terminal. What is written to its input is typed there.
fn at_terminal(lab: &Lab, stages: &[&str], redirections: &str) -> Command {
    let mut arguments = lab.rdpipe_by("rsh");
    arguments.args(stages);
    let quoted: Vec<String> = arguments.get_args().map(|word| quoted(&word.to_string_lossy())).collect();
    let line = format!("{PROGRAM} {}{redirections}", quoted.join(" "));
    let mut script = Command::new("script");
    script.args(["-qefc", &line, "/dev/null"]).current_dir(lab.0.path()).env("HOME", lab.join("home"));
    script.env(MARK, lab.0.path()).env("TERM", "xterm-256color").stdin(Stdio::piped());
    script
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[test]
fn another_input_is_read_to_its_end() {
    let lab = Lab::new();
    for stages in [&["h:cat; echo end"][..], &["cat; echo end"], &["h1:cat", "h2:cat; echo end"]] {
        let mut process = lab.start(stages);
        let mut input = process.stdin();
        std::io::Write::write_all(&mut input, b"said\n").expect("a pipe");
        // Data that has arrived is passed on, and further data is waited for.
        let mut output = process.stdout();
        let mut said = [0; 5];
        std::io::Read::read_exact(&mut output, &mut said).expect("it comes through");
        assert_eq!(&said, b"said\n");
        std::thread::sleep(Duration::from_secs(1));
        assert!(process.is_running(), "{stages:?}: {}", process.stderr());
        drop(input);
        let rest = drain(output);
        process.wait().expect(0);
        assert_eq!(rest.join().expect("no panic"), b"end\n");
    }
    lab.deserted(GONE);
}

// --- usage -----------------------------------------------------------------------------------------------------------

#[test]
fn what_is_no_pipeline() {
    let lab = Lab::new();
    let cases: &[&[&str]] = &[
        &[],
        &["--no-such-option", "h:cat"],
        &["-p", "no-port", "h:cat"],
        &["-p", "70000", "h:cat"],
        &["-p"],
        &["--transport", "pigeon", "h:cat"],
        &["--lanes", "0", "h:cat"],
        &["--bwlimit", "much", "h:cat"],
        &["--relay", "--via", "lo", "h:cat"],
        &["h:"],
        &["no-such-command", "cat"],
        &["h:grep", "word"],
        &[""],
        &[":"],
        &["h:cat", "  "],
        &["h:<"],
        &["h:cat", "h2:>"],
        &["h:>> "],
        &["--shell", "", "h:cat"],
        &["--shell", "it's", "h:cat"],
        &["h:cat", "--rsh", "it's"],
    ];
    for arguments in cases {
        let ran = lab.pipe(arguments);
        assert_eq!(ran.ended.code, 1, "{arguments:?}: {}", ran.ended.stderr);
        // An unknown option is reported together with what was probably meant.
        assert!(ran.ended.stderr.starts_with("rdpipe: "), "{}", ran.ended.stderr);
        ran.ended.within(SOON);
        assert_eq!(ran.text(), "", "{arguments:?}");
    }
    assert!(lab.launches().is_empty(), "{:?}", lab.launches());
    assert!(lab.made(&[]).is_empty());
}

/// Obvious mistakes start nothing: a host without its colon, a command without its quotes.
#[test]
fn a_slip_is_told_with_what_was_meant() {
    let lab = Lab::new();
    for (arguments, meant) in [
        (&["h", "cat"][..], "did you mean h:'cat'?"),
        (&["h:zfs", "send", "pool/x"], "did you mean h:'zfs send pool/x'?"),
        (&["me@h", "cat"], "did you mean me@h:'cat'?"),
        (&["me@h", "h2:cat"], "me@h:COMMAND runs on it"),
        (&["h:", "cat"], "write h:'COMMAND'"),
    ] {
        lab.pipe(arguments).ended.expect(1).one_line("rdpipe", &[meant]).within(SOON);
    }
    assert!(lab.launches().is_empty(), "{:?}", lab.launches());
    // Commands built into the shell count as commands. A name marked as this host's is left to the shell.
    lab.pipe(&["true", "echo"]).ended.expect(0);
    lab.pipe(&[":no-such-command", "cat"]).ended.expect(127);
}

#[test]
fn help_and_version() {
    let lab = Lab::new();
    let usual: &[&str] = &["HOST", "--dry-run", "--shell", "--no-label", "All options: rdpipe --help"];
    let all: &[&str] = &["HOST", "--dry-run", "--shell", "--no-label", "--json-fd", "-H", "-p"];
    for (option, parts) in [("-h", usual), ("--help", all)] {
        let ran = lab.pipe(&[option]);
        ran.ended.expect(0);
        for part in parts {
            assert!(ran.text().contains(part), "{option} has {part}: {}", ran.text());
        }
    }
    for option in ["-V", "--version"] {
        lab.pipe(&[option]).gives(format!("rdpipe {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    }
}

#[test]
fn a_dry_run_tells_all_and_starts_nothing() {
    let lab = Lab::new();
    lab.0.file("home/old", b"old");
    let stages =
        ["-n", "fs1:< old", "touch made_here", "fs2:touch made_there; tee made_too", "fs1:> old", "fs3:cat > made"];
    for option in ["-n", "--dry-run"] {
        let mut stages = stages;
        stages[0] = option;
        let ran = lab.pipe_with(&stages, b"");
        ran.ended.expect(0).within(SOON);
        let told = ran.text() + &ran.ended.stderr;
        for part in ["fs1", "fs2", "fs3", "localhost", "< old", "touch made_here", "> old", "tee made_too"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        // Every connection: from the first host to here, out to the second, and back to the first. Then another part.
        for (from, to) in [("fs1", "localhost"), ("localhost", "fs2"), ("fs2", "fs1"), ("fs3", "localhost")] {
            let shown = told.lines().any(|line| {
                let (source, target) = line.split_once(" -> ").unwrap_or_default();
                source.contains(from) && target.starts_with(to)
            });
            assert!(shown, "{from} -> {to}: {told}");
        }
    }
    assert!(lab.launches().is_empty());
    assert!(lab.made(&[]).is_empty());
    assert_eq!(fs::read_dir(lab.join("home")).expect("it").count(), 1);
    holds(&lab.join("home/old"), b"old");
    // -q leaves only errors.
    lab.pipe(&["-nq", "fs1:cat old", "fs2:cat"]).quietly_gives("");
    // An invalid pipeline is refused in a dry run too.
    lab.pipe(&["-n", "h:<"]).ended.expect(1);
}
