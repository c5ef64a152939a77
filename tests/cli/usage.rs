//! Invalid input: reported in one line, before anything is made or any peer is contacted.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::rig::others::{NOBODY, as_user};
use crate::rig::*;

pub fn ended(command: &mut Command) -> Ended {
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

#[test]
fn a_port_that_is_none() {
    for port in ["70000", "65536", "", "1.5", "7 "] {
        ended(rdrecv().args([port, KEY])).expect(1).one_line("rdrecv", &["PORT", port]);
        ended(rdsend().args(["127.0.0.1", port, KEY])).expect(1).one_line("rdsend", &["PORT", port]);
    }
    // In this place, KEY would be printed, and logged.
    for key in ["abc", "0x50", "c2VjcmV0/a+b=="] {
        for (name, mut command) in [("rdrecv", rdrecv()), ("rdsend", rdsend())] {
            command.args((name == "rdsend").then_some("127.0.0.1")).arg(key);
            let told = ended(command.env("RDMA_PIPE_LOG", "trace"));
            assert!(!told.expect(1).stderr.contains(key), "{}", told.stderr);
            let part = format!("{name}: PORT must be a number from 0 to 65535; the word in its place is not shown");
            assert!(told.stderr.contains(&part), "{}", told.stderr);
        }
    }
}

#[test]
fn a_negative_port() {
    let receiver = ended(rdrecv().args(["-1", KEY]));
    let sender = ended(rdsend().args(["127.0.0.1", "-1", KEY]));
    for ended in [receiver, sender] {
        assert!(ended.expect(1).stderr.contains("-1"), "{}", ended.stderr);
    }
}

#[test]
fn port_0_at_the_sender() {
    ended(rdsend().args(["127.0.0.1", "0", KEY])).expect(1).one_line("rdsend", &["PORT 0"]);
}

#[test]
fn an_empty_key() {
    let scratch = Scratch::new();
    let empty = scratch.file("empty", b"\n");
    let target = scratch.join("target");
    ended(rdrecv().args(["0", ""]).arg(&target)).expect(1).one_line("rdrecv", &["KEY", "empty"]);
    ended(rdsend().args(["127.0.0.1", "9", ""])).expect(1).one_line("rdsend", &["KEY", "empty"]);
    ended(rdsend().args(["127.0.0.1", "9", "-"]).env("RD_KEY", "")).expect(1).one_line("rdsend", &["KEY", "empty"]);
    ended(rdrecv().arg("0").arg("--key-file").arg(&empty)).expect(1).one_line("rdrecv", &["KEY", "empty"]);
    ended(rdrecv().arg("0").arg("--key-file").arg(scratch.join("none"))).expect(1).one_line("rdrecv", &["none"]);
    ended(rdrecv().arg("0").args(["--key-fd", "99"])).expect(1).one_line("rdrecv", &["99"]);
    assert_eq!(scratch.names(), ["empty"]);
}

#[test]
fn a_key_file_that_others_can_read() {
    let scratch = Scratch::new();
    let key = scratch.file("the key", b"k\n");
    let missing = scratch.join("missing");
    for (mode, options, is_told) in
        [(0o600, &[][..], false), (0o640, &[], false), (0o604, &[], true), (0o644, &["-q"], false)]
    {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let mut command = rdsend();
        command.args(options).args(["127.0.0.1", "9", "--key-file"]).arg(&key).arg(&missing);
        let told = ended(&mut command).expect(5).stderr.clone();
        let line = format!("rdsend: --key-file {0} can be read by others; type: chmod 600 '{0}'", key.display());
        assert_eq!(told.lines().any(|told| told == line), is_told, "{mode:o} {options:?}: {told}");
    }
}

#[test]
fn words_as_other_programs_take_them() {
    ended(rdrecv().arg("out.raw")).expect(1).one_line("rdrecv", &["PORT must be", "; into a file: rdrecv 0 - FILE"]);
    ended(rdsend().args(["me@h1", "7000"])).expect(1).one_line("rdsend", &["me@h1: HOST takes no USER@"]);
    let told = ended(rdsend().arg("h1"));
    assert!(told.expect(1).stderr.starts_with("rdsend: PORT is missing"), "{}", told.stderr);
    for (mut command, word) in [
        (rdcp(), "-progress"),
        (rdcp(), "-sync"),
        (rdcp(), "-perms"),
        (rdrecv(), "-verbose"),
        (rdsend(), "-help"),
        (rdpipe(), "-no-label"),
        (rdperf(), "-via"),
    ] {
        let name = command.get_args().next().and_then(|name| name.to_str()).expect("its name").to_owned();
        let part = format!("{word}: did you mean -{word}? see --help");
        ended(command.args([word, "a", "h1:b"])).expect(1).one_line(&name, &[&part]);
    }
    ended(rdcp().args(["-rsync", "a/", "h1:b"])).expect(1).one_line("rdcp", &["did you mean -r --sync?"]);
    ended(rdcp().args(["-r", "a", "--to", "gpu2"])).expect(1).one_line("rdcp", &["--to gpu2: give HOST:PATH, such as"]);
    ended(rdpipe().arg("n1,n2:cat")).expect(1).one_line("rdpipe", &["for several hosts, write 'n[1,2]:COMMAND'"]);
}

#[test]
fn a_file_without_a_name() {
    // Refused before the receiver listens, because otherwise a sender that has connected would be told.
    ended(rdrecv().args(["0", KEY, ""])).expect(1).one_line("rdrecv", &["FILE is empty"]);
    ended(rdsend().args(["127.0.0.1", "9", KEY, ""])).expect(1).one_line("rdsend", &["FILE is empty"]);
}

#[test]
fn a_size_that_is_one_too_large() {
    // 2^64 bytes.
    let ended = ended(rdrecv().args(["0", KEY, "--buffer", "17179869184G"]));
    ended.expect(1).one_line("rdrecv", &["--buffer 17179869184G: out of range"]);
}

#[test]
fn no_key_and_no_terminal_to_ask_at() {
    // setsid: without a controlling terminal, /dev/tty cannot be opened.
    let mut command = rdsend();
    command.args(["127.0.0.1", "9"]);
    ended(&mut in_shell("exec setsid -w \"$@\"", &command)).expect(1).one_line("rdsend", &["KEY"]);
}

#[test]
fn rails_by_interfaces_that_this_host_does_not_have() {
    let near = ["--rails", "eth-none"];
    let cases = [
        ("rdsend", rdsend(), &["127.0.0.1", "9", KEY][..]),
        ("rdrecv", rdrecv(), &["0", KEY]),
        ("rdcp", rdcp(), &["--rsh", "false", "/dev/null", "h1:x"]),
        ("rdpipe", rdpipe(), &["--rsh", "false", "h1:true", "cat"]),
    ];
    for (program, mut command, arguments) in cases {
        ended(command.args(near).args(arguments)).expect(1).one_line(program, &["--rails", "eth-none", "it has"]);
    }
    // This host is neither end. The interfaces of the ends are their own.
    let between_others = ended(rdcp().args(near).args(["--rsh", "false", "h1:x", "h2:x"])).expect(3).stderr.clone();
    assert!(!between_others.contains("--rails"), "{between_others}");
}

#[test]
fn options_that_are_none() {
    let table: [&[&str]; 12] = [
        &["--no-such-option"],
        &["--encrypt", "sometimes"],
        &["--compress", "gzip"],
        &["--transport", "pigeon"],
        &["--lanes", "0"],
        &["--lanes", "many"],
        &["--chunk", "4095"],
        &["--chunk", "2M"],
        &["--buffer", "0"],
        &["--bwlimit", "fast"],
        &["--port-range", "9-1"],
        &["--reconnect", "soon"],
    ];
    for options in table {
        for (mut command, positionals) in [(rdsend(), &["127.0.0.1", "9", KEY][..]), (rdrecv(), &["0", KEY])] {
            let ended = ended(command.args(positionals).args(options));
            assert!(ended.expect(1).stderr.contains(options[0]), "{} names {}", ended.stderr, options[0]);
        }
    }
    ended(rdsend().args(["-v", "-q", "--connect-timeout", "0", "127.0.0.1", "9", KEY]))
        .expect(3)
        .one_line("rdsend", &["127.0.0.1"]);
}

#[test]
fn what_may_be_given_only_once() {
    for (mut command, name, words) in [
        (rdcp(), "rdcp", &["--hosts", "a", "--hosts", "b", "x", "y"][..]),
        (rdcp(), "rdcp", &["-t", "a", "-t", "b", "x"]),
        (rdcp(), "rdcp", &["--sync", "--files-from", "a", "--files-from=b", "x", "y"]),
        (rdsend(), "rdsend", &["--key-file", "a", "--key-file", "b", "127.0.0.1", "9"]),
    ] {
        ended(command.args(words)).expect(1).one_line(name, &["may be given only once; see --help"]);
    }
}

/// `- PATTERN` in the forms of rsync, and patterns that begin with a hyphen.
#[test]
fn rules_that_begin_with_a_hyphen() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("tree")).expect("a directory");
    for name in ["a.o", "b.c", "-x"] {
        scratch.file(&format!("tree/{name}"), b"x");
    }
    for (options, expected) in [
        (&["--sync", "-f", "- *.o"][..], &["-x", "b.c"][..]),
        (&["--sync", "-f- *.o"], &["-x", "b.c"]),
        (&["--sync", "--filter=- *.o"], &["-x", "b.c"]),
        (&["--sync", "-f", "exclude *.o"], &["-x", "b.c"]),
        (&["--exclude", "- *.o"], &["-x", "b.c"]),
        (&["--exclude", "-x"], &["a.o", "b.c"]),
        (&["--include", "-x", "--exclude", "*"], &["-x"]),
    ] {
        let copy = scratch.join("copy");
        let mut command = rdcp();
        ended(command.arg("-r").args(options).arg(scratch.join("tree").join("")).arg(&copy)).expect(0);
        let mut names: Vec<_> =
            std::fs::read_dir(&copy).expect("a copy").map(|entry| entry.expect("read").file_name()).collect();
        names.sort();
        assert_eq!(names, expected, "{options:?}");
        std::fs::remove_dir_all(copy).expect("ours");
    }
    ended(rdcp().args(["a", "- *.o", "b"])).expect(1).one_line("rdcp", &["unknown option '- *.o'; see --help"]);
    // Another option is not taken as a value.
    ended(rdcp().args(["a", "b", "--exclude", "--dry-run"])).expect(1).one_line("rdcp", &["--exclude needs a value"]);
}

/// The words of a command that runs on a host are not options of `rdsh`.
#[test]
fn colours_are_chosen_by_our_own_words() {
    for (words, is_coloured) in [
        (&["--color=always", "a,b", "ls"][..], true),
        (&["a,b", "ls", "--color=always"], false),
        (&["--color=always", "a,b", "ls", "--color=never"], true),
    ] {
        let told = ended(rdsh().args(words));
        assert!(told.expect(255).stderr.contains("rdsh takes one host"), "{}", told.stderr);
        assert_eq!(told.stderr.contains('\u{1b}'), is_coloured, "{words:?}: {}", told.stderr);
    }
}

#[test]
fn lists_that_cannot_be_read() {
    let scratch = Scratch::new();
    for option in ["--exclude-from", "--include-from"] {
        let mut command = rdcp();
        let told = ended(command.args(["-r", option, "/no\u{1b}where", "a", "b"]));
        let expected = format!("rdcp: {option} /no\\x1bwhere: No such file or directory (errno 2)\n");
        assert_eq!(told.expect(1).stderr, expected);
        let mut command = rdcp();
        let told = ended(command.args(["-r", option]).arg(scratch.path()).args(["a", "b"]));
        told.expect(1).one_line("rdcp", &[&format!("{option} /"), ": Is a directory (errno 21)"]);
    }
}

#[test]
fn patterns_that_end_in_zero_bytes() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("a")).expect("a directory");
    for name in ["x", "y", "line\nend"] {
        scratch.file(&format!("a/{name}"), b"z");
    }
    scratch.file("list", b"x\0line\nend\0");
    let run = |options: &[&str], to| ended(rdcp().args(options).args(["-r", "a", to]).current_dir(scratch.path()));
    run(&["--exclude-from=list"], "b").expect(1).one_line("rdcp", &["--exclude-from list", "zero byte", "-0"]);
    scratch.file("lines", b"x\ny\n");
    // A file that has only lines is read as lines all the same.
    for (file, to, left) in [("list", "b", "y"), ("lines", "c", "line\nend")] {
        run(&["-0", "--exclude-from", file], to).expect(0);
        let names = std::fs::read_dir(scratch.join(to)).expect("a copy").map(|entry| entry.expect("read").file_name());
        assert_eq!(names.collect::<Vec<_>>(), [left]);
    }
}

/// Entries that only DST has would be deleted there, including files that were moved from SRC.
#[test]
fn what_is_moved_is_not_deleted_where_it_came_to() {
    for option in ["--delete", "--delete-after", "--delete-excluded"] {
        let told = ended(rdcp().args(["--sync", "-r", option, "--remove-source-files", "a/", "b"]));
        told.expect(1).one_line("rdcp", &[option, "--remove-source-files"]);
    }
}

#[test]
fn a_file_whose_name_looks_like_an_option() {
    let scratch = Scratch::new();
    for (name, part) in [("-lead", "SRC and DST are required"), ("-Qfile", "unknown option -Q"), ("-K", "-K: ")] {
        scratch.file(name, b"x");
        let told = ended(rdcp().args([name, "h:"]).current_dir(scratch.path()));
        told.expect(1).one_line("rdcp", &[part, &format!("; for the file {name}, type ./{name}, or put it after --")]);
    }
}

/// An option whose value was forgotten takes SRC or DST.
#[test]
fn a_word_that_an_option_has_taken_is_named() {
    for (words, line) in [
        (&["--exclude", "data", "backup:"][..], "SRC and DST are required besides --exclude data"),
        (&["-t", "backup:"], "SRC is required besides -t backup:"),
        (&["--target-directory=backup:"], "SRC is required"),
        (&["--exclude=data", "backup:"], "SRC and DST are required"),
        (&["--timeout", "30", "data"], "SRC and DST are required"),
        (&["--rsh", "sshpass -p hunter2 ssh", "data"], "SRC and DST are required besides --rsh …"),
        (&["-aP", "data"], "SRC and DST are required"),
        (&["--compress", "data"], "SRC and DST are required"),
        (&["--sync", "-rt", "data"], "SRC and DST are required"),
        (&["--filter", "- *.o", "data"], "SRC and DST are required"),
    ] {
        let told = ended(rdcp().args(words));
        assert!(told.stderr.starts_with(&format!("rdcp: {line}; see --help\n")), "{words:?}: {}", told.stderr);
        told.expect(1);
    }
}

/// It would be written to a file that has the directory's name.
#[test]
fn standard_input_has_no_name_for_a_directory() {
    let scratch = Scratch::new();
    for directory in ["incoming", "h1:incoming"] {
        let told = ended(rdcp().args(["-t", directory, "-"]).current_dir(scratch.path()));
        told.expect(1).one_line("rdcp", &["standard input has no name", "name a file as DST"]);
    }
    assert!(scratch.names().is_empty());
}

#[test]
fn the_program_names_its_commands() {
    let run = |word| ended(Command::new(PROGRAM).arg(word));
    run("help").expect(0);
    run("rdcpp").expect(1).one_line("rdma-pipe", &["unknown command rdcpp; the commands are rdcp, ", "; see --help"]);
    // No word is broken where the terminal ends.
    let shown = |columns| {
        let mut command = Command::new(PROGRAM);
        let told = command.arg("-h").env("COLUMNS", columns).stdin(Stdio::null()).output().expect("the program");
        String::from_utf8(told.stdout).expect("UTF-8")
    };
    let (narrow, wide) = (shown("40"), shown("100"));
    assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    assert!(narrow.split_whitespace().eq(wide.split_whitespace()), "{narrow}\n{wide}");
    assert!(wide.contains("\n  rdsh      run a command on a host as ssh does, with fast input and output\n"), "{wide}");
}

#[test]
fn too_few_and_too_many_arguments() {
    let scratch = Scratch::new();
    let key = scratch.file("key", b"k");
    assert!(ended(&mut rdsend()).expect(1).stderr.contains("HOST"));
    assert!(ended(rdsend().arg("127.0.0.1")).expect(1).stderr.contains("PORT"));
    ended(rdsend().args(["127.0.0.1", "9", KEY, "a", "b"])).expect(1);
    ended(rdrecv().args(["0", KEY, "a", "b"])).expect(1);
    ended(rdrecv().args(["0", "a", "b"]).arg("--key-file").arg(&key)).expect(1);
}

#[test]
fn help_and_version() {
    for mut command in [rdsend(), rdrecv()] {
        let mut help = Process::spawn(command.arg("--help").stdin(Stdio::null()).stdout(Stdio::piped()));
        let text = String::from_utf8(drain(help.stdout()).join().expect("no panic")).expect("UTF-8");
        help.wait().expect(0);
        for part in ["--reconnect", "--encrypt", "--compress", "--lanes", "--buffer", "--key-file", "Exit codes"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    let mut version = Process::spawn(rdsend().arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()));
    let text = String::from_utf8(drain(version.stdout()).join().expect("no panic")).expect("UTF-8");
    version.wait().expect(0);
    assert_eq!(text.trim(), concat!("rdsend ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_host() {
    let ended = ended(rdsend().args(["no-such-host.invalid", "9", KEY]));
    ended.expect(3).one_line("rdsend", &["unknown host", "no-such-host.invalid"]);
}

#[test]
fn a_port_in_use() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("[::]:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let ended = ended(rdrecv().args([&port, KEY]).arg(scratch.join("target")));
    ended.expect(3).one_line("rdrecv", &[&port, "in use", "errno 98"]).within(SOON);
    assert!(scratch.names().is_empty());
}

#[test]
fn a_destination_that_cannot_be_written() {
    let scratch = Scratch::new();
    let directory = scratch.join("directory");
    std::fs::create_dir(&directory).expect("made");
    let table = [
        (directory.clone(), "errno 21"),
        (directory.join("missing").join("target"), "errno 2)"),
        (scratch.file("file", b"").join("below"), "errno 20"),
    ];
    for (target, errno) in table {
        let name = target.to_string_lossy().into_owned();
        let shown = if errno == "errno 2)" { "missing" } else { &name };
        ended(rdrecv().args(["0", KEY]).arg(&target)).expect(6).one_line("rdrecv", &[shown, errno]).within(SOON);
    }
    let link = scratch.join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("a link");
    let advice = format!("; {} is a link that leads nowhere: remove it, or name its target", link.display());
    for target in [link.clone(), link.join("below"), link.join("far/below")] {
        let told = ended(rdrecv().args(["0", KEY]).arg(target));
        told.expect(6).one_line("rdrecv", &["errno 2)", &advice]).within(SOON);
        assert!(!told.stderr.contains("mkdir"), "{}", told.stderr);
    }
    assert_eq!(scratch.names(), ["directory", "file", "link"]);
    assert!(std::fs::read_dir(&directory).expect("there").next().is_none(), "nothing was made");
}

/// Each copy writes to the log, so it would start another.
#[test]
fn a_log_in_a_watched_source() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("tree")).expect("a directory");
    let mut command = rdcp();
    command.args(["-r", "--sync", "--watch", "tree", "copy"]).current_dir(scratch.path());
    let told = ended(command.env("RDMA_PIPE_LOG", "debug:tree/log"));
    told.expect(1).one_line("rdcp", &["--watch: tree/log is in SRC"]);
    let mut command = rdcp();
    command.args(["-r", "--json=log", "tree", "copy"]).current_dir(scratch.path());
    let told = ended(command.env("RDMA_PIPE_LOG", "debug:log"));
    told.expect(1).one_line("rdcp", &["--json log is also the log (RDMA_PIPE_LOG)"]);
}

/// Callers of ssh know no other code for a failure of ssh itself.
#[test]
fn a_log_that_rdsh_cannot_begin() {
    let told = ended(rdsh().args(["h", "true"]).env("RDMA_PIPE_LOG", "bad"));
    told.expect(255).one_line("rdsh", &["RDMA_PIPE_LOG=bad: expected off"]);
}

#[test]
fn a_source_that_cannot_be_read() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing");
    for (source, errno) in [(scratch.path().to_owned(), "errno 21"), (missing, "errno 2)")] {
        let ended = ended(rdsend().args(["127.0.0.1", "9", KEY]).arg(&source));
        ended.expect(5).one_line("rdsend", &[&source.to_string_lossy(), errno]).within(SOON);
    }
    let directory = std::fs::File::open(scratch.path()).expect("readable");
    let mut command = rdsend();
    let mut send = Process::spawn(command.args(["127.0.0.1", "9", KEY]).stdin(directory).stdout(Stdio::null()));
    send.wait_for(PATIENCE).expect(5).one_line("rdsend", &["standard input", "errno 21"]);
}

#[test]
fn files_that_permissions_keep_closed() {
    let scratch = Scratch::new();
    let closed = scratch.file("closed", b"secret");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).expect("ours");
    let locked = scratch.join("locked");
    std::fs::create_dir(&locked).expect("made");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).expect("ours");
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    // Root may read and write all of these files, so the commands run as another user.
    let as_nobody = |command: &Command| {
        if rustix::process::geteuid().is_root() {
            in_shell(&as_user(NOBODY, scratch.path()), command)
        } else {
            in_shell("exec \"$@\"", command)
        }
    };
    let mut send = rdsend();
    send.args(["127.0.0.1", "9", KEY]).arg(&closed);
    ended(&mut as_nobody(&send)).expect(5).one_line("rdsend", &["closed", "errno 13"]);
    for target in [closed.clone(), locked.join("new")] {
        let mut recv = rdrecv();
        recv.args(["0", KEY]).arg(&target);
        ended(&mut as_nobody(&recv)).expect(6).one_line("rdrecv", &["errno 13"]);
    }
    assert!(std::fs::read_dir(&locked).expect("there").next().is_none());
    assert_eq!(scratch.names(), ["closed", "locked"]);
    // A file of another user that may be replaced does not run as that user afterwards.
    if rustix::process::geteuid().is_root() {
        let shared = scratch.join("shared");
        std::fs::create_dir(&shared).expect("made");
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).expect("ours");
        let program = scratch.file("shared/program", b"old");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o6777)).expect("ours");
        let mut recv = rdrecv();
        recv.args(["-v", "0", KEY]).arg(&program);
        let mut recv = Process::spawn(as_nobody(&recv).stdin(Stdio::null()).stdout(Stdio::null()));
        let line = recv.line_with("waiting on port ");
        let port = line.rsplit(' ').next().expect("a port");
        let mut send = rdsend();
        send.args(["127.0.0.1", port, KEY]).arg(&closed);
        ended(&mut send).expect(0);
        recv.wait().expect(0);
        let mode = std::fs::metadata(&program).expect("there").permissions().mode();
        assert_eq!((std::fs::read(&program).expect("there"), mode & 0o7777), (b"secret".to_vec(), 0o777));
    }
}

#[test]
fn a_closed_standard_stream_is_neither_empty_nor_a_place_to_write() {
    let scratch = Scratch::new();
    let target = scratch.file("target", b"as it was");
    let mut command = rdrecv();
    command.args(["0", KEY]);
    let mut receiver = Process::spawn(in_shell("exec \"$@\" >&-", &command).stdin(Stdio::null()).stdout(Stdio::null()));
    receiver.wait().expect(6).within(SOON).one_line("rdrecv", &["standard output", "errno 9"]);

    let mut command = rdrecv();
    command.args(["0", KEY]).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
    let receiver = Process::spawn(&mut command);
    let mut command = rdsend();
    command.args(["127.0.0.1", &receiver.port().to_string(), KEY]);
    let mut sender = Process::spawn(in_shell("exec \"$@\" <&-", &command).stdout(Stdio::null()));
    sender.wait().expect(5).within(SOON).one_line("rdsend", &["standard input", "errno 9"]);
    for file in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let mut command = rdsend();
        command.args(["127.0.0.1", "9", KEY, file]);
        ended(&mut in_shell("exec \"$@\" <&-", &command)).expect(5).one_line("rdsend", &[file, "errno 9"]);
    }
    assert_eq!(std::fs::read(&target).expect("untouched"), b"as it was");

    // The report would be lost with all else that is written there.
    let mut command = rdpipe();
    command.args(["--json-fd=2", "true"]);
    ended(&mut in_shell("exec \"$@\" 2>&-", &command)).expect(1);
}

/// Read as empty, a list of what is not to be deleted would protect nothing.
#[test]
fn a_closed_standard_input_is_no_empty_list() {
    let scratch = Scratch::new();
    for name in ["from", "to"] {
        std::fs::create_dir(scratch.join(name)).expect("a directory");
    }
    for name in ["from/private", "from/public", "to/kept"] {
        scratch.file(name, b"x");
    }
    let run = |line: &str, options: &[&str]| {
        let mut command = rdcp();
        command.args(["--sync", "-r"]).args(options).args([scratch.join("from/"), scratch.join("to/")]);
        Process::spawn(in_shell(line, &command).stdin(Stdio::null()).stdout(Stdio::null())).wait()
    };
    for options in [
        &["--delete", "--exclude-from", "-"][..],
        &["--delete", "--include-from=/dev/stdin"],
        &["--files-from=-"],
        &["--hosts", "-"],
    ] {
        let told = run("exec \"$@\" <&-", options);
        told.expect(5).one_line("rdcp", &["cannot read standard input: Bad file descriptor (errno 9)"]);
    }
    // Of two lists, the second would be empty.
    for options in [
        ["--exclude-from=-", "--files-from=-"],
        ["--exclude-from=-", "--exclude-from=-"],
        ["--exclude-from=/dev/stdin", "--files-from=-"],
    ] {
        let told = run("printf 'kept\\nprivate\\n' | \"$@\"", &options);
        told.expect(1).one_line("rdcp", &["standard input (-) can be only one of the lists"]);
    }
    assert!(scratch.join("to/kept").exists() && !scratch.join("to/public").exists());
    run("printf 'kept\\nprivate\\n' | \"$@\"", &["--delete", "--exclude-from=-"]).expect(0);
    let names = ["kept", "private", "public"].map(|name| scratch.join("to").join(name).exists());
    assert_eq!(names, [true, false, true]);
}

#[test]
fn a_descriptor_of_our_own_is_no_key() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"a line that is no key\n");
    let mut command = rdsend();
    command.args(["127.0.0.1", "9", "--key-fd", "3", "--json=/dev/full"]).arg(&source);
    ended(&mut command).expect(1).one_line("rdsend", &["--key-fd 3"]);
}

#[test]
fn a_report_that_cannot_be_written_hides_no_failure() {
    let scratch = Scratch::new();
    let target = scratch.join("none/target");
    ended(rdrecv().args(["--json=/dev/full", "0", KEY]).arg(&target)).expect(6).one_line("rdrecv", &["none"]);

    // After a successful transfer the unwritable report is itself a failure.
    let target = scratch.join("target");
    let mut command = rdrecv();
    command.args(["--json=/dev/full", "0", KEY]).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
    let mut receiver = Process::spawn(&mut command);
    let port = receiver.port().to_string();
    ended(rdsend().args(["127.0.0.1", &port, KEY]).arg(scratch.file("source", b"all"))).expect(0);
    let line = receiver.wait().expect(6).stderr.lines().last().unwrap_or_default().to_owned();
    assert!(line.contains("/dev/full") && line.contains("errno 28"), "{line}");
    assert_eq!(std::fs::read(&target).expect("there"), b"all");
}

#[test]
fn a_report_on_a_standard_error_that_is_full() {
    let scratch = Scratch::new();
    let target = scratch.join("target");
    let receiver = |options: &[&str]| {
        let mut command = rdrecv();
        command.args(options).args(["0", KEY]).arg(&target);
        command
    };
    // The receiver's port is in its first line, which would be lost. So the sender's standard error is full.
    let mut recv = Process::spawn(receiver(&[]).stdin(Stdio::null()).stdout(Stdio::null()));
    let mut send = rdsend();
    send.args(["--json-fd=2", "127.0.0.1", &recv.port().to_string(), KEY]).arg(scratch.file("source", b"all"));
    ended(&mut in_shell("exec \"$@\" 2>/dev/full", &send)).expect(6);
    recv.wait().expect(0);
    assert_eq!(std::fs::read(&target).expect("there"), b"all");
    let mut rdpipe = rdpipe();
    ended(&mut in_shell("exec \"$@\" 2>/dev/full", rdpipe.args(["--json-fd=2", "true"]))).expect(6);
    // A failure of the command itself takes precedence.
    ended(&mut in_shell("exec \"$@\" 2>/dev/full", rdpipe.arg("exit 3"))).expect(3);
}

#[test]
fn help_that_cannot_be_written() {
    for new in [rdsend, rdrecv, rdcp, rdpipe, rdperf] {
        for option in ["--help", "-h", "--version"] {
            let mut command = new();
            let name = command.get_args().next().and_then(|name| name.to_str()).expect("its name").to_owned();
            command.arg(option);
            for (how, errno) in [(">/dev/full", "errno 28"), (">&-", "errno 9")] {
                let full = in_shell(&format!("exec \"$@\" {how}"), &command);
                let ended = Process::spawn(&mut { full }).wait();
                ended.expect(6).one_line(&name, &["cannot write standard output", errno]);
            }
        }
    }
}

/// However few descriptors are allowed, each end exits and reports the reason.
#[test]
fn without_descriptors_nobody_waits() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"some bytes");
    let (mut copied, mut without) = (0, 0);
    for limit in 4..=14 {
        let target = scratch.join("target");
        let mut command = rdrecv();
        command.args(["--wait", "10", "0", KEY]).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
        let line = format!("ulimit -n {limit}; exec \"$@\"");
        let mut receiver = Process::spawn(in_shell(&line, &command).stdin(Stdio::null()).stdout(Stdio::null()));
        let port = receiver.line_with("rdrecv: ").rsplit(' ').next().expect("a word").to_owned();
        // Without a port, the line says to choose another PORT, or 0.
        if port.parse::<u16>().map_or(true, |port| port == 0) {
            receiver.wait().expect(3).one_line("rdrecv", &["errno 24"]);
            without += 1;
            continue;
        }
        let sent = ended(rdsend().args(["--connect-timeout", "1", "127.0.0.1", &port, KEY]).arg(&source));
        let ended = receiver.wait();
        assert_eq!(std::fs::remove_file(&target).is_ok(), ended.code == 0, "{limit}: {}", ended.stderr);
        if ended.within(SOON).code == 0 {
            copied += 1;
            sent.expect(0);
            continue;
        }
        without += 1;
        assert!(ended.stderr.contains("errno 24"), "{limit}: {}", ended.stderr);
        // The sender is told the reason, or has lost the link before.
        assert!([ended.code, 4].contains(&sent.code), "{limit}: {} for {}: {}", sent.code, ended.code, sent.stderr);
    }
    assert!(copied > 0 && without > 0, "{copied} went well, {without} had too few descriptors");
}

/// Under another name the program is the command of that name. Under its own name its first
/// argument is the command's name.
#[test]
fn one_program_under_several_names() {
    let scratch = Scratch::new();
    let link = scratch.join("rdcp");
    std::os::unix::fs::symlink(PROGRAM, &link).expect("a link");
    let said = |command: &mut Command| {
        let output = command.output().expect("started");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let version = format!("rdcp {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(said(Command::new(&link).arg("--version")), (Some(0), version.clone()));
    assert_eq!(said(Command::new(PROGRAM).args(["rdcp", "--version"])), (Some(0), version));
    let (code, help) = said(Command::new(PROGRAM).arg("--help"));
    assert!(code == Some(0) && help.contains("rdpipe"), "{help}");
    for wrong in [&["no-such-command"][..], &[]] {
        assert_eq!(said(Command::new(PROGRAM).args(wrong)).0, Some(1));
    }
}
