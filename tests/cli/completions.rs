//! Completions in real shells: a line with a TAB in it is typed, and the resulting arguments of the command are
//! checked. The ssh here runs on this host what sshd would run, by a shell in the home.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::rig::*;
use crate::terminal::Session;

/// A line with TABs, and the resulting arguments.
type Case = (&'static str, &'static [&'static str]);

/// Lines that are typed in all three shells.
const CASES: &[Case] = &[
    // Hosts.
    ("rdcp nea\tx", &["near:x"]),
    ("rdcp incl\tx", &["included:x"]),
    ("rdcp see\tx", &["seen:x"]),
    ("rdcp sett\tx", &["settled:x"]),
    ("rdcp user@nea\tx", &["user@near:x"]),
    ("rdcp gone\t", &["gone"]),
    ("rdcp -J nea\t", &["-J", "near"]),
    ("rdsh nea\t", &["near"]),
    ("rdpipe nea\tx", &["near:x"]),
    ("rddoctor nea\t", &["near"]),
    ("rdperf nea\tla\t", &["near", "lat"]),
    // Paths on hosts.
    ("rdcp near:t/dire\tx", &["near:t/directory/x"]),
    ("rdcp near:t/fil\tx", &["near:t/file", "x"]),
    ("rdcp near:~/t/fil\tx", &["near:~/t/file", "x"]),
    ("rdcp user@near:t/fil\tx", &["user@near:t/file", "x"]),
    ("rdcp near:t/two\tx", &["near:t/two  spaces", "x"]),
    ("rdcp near:t/di\\ r/in\tx", &["near:t/di r/inner", "x"]),
    ("rdcp near:t/co\tx", &["near:t/co:lon=x@y", "x"]),
    ("rdcp near:t/co:\tx", &["near:t/co:lon=x@y", "x"]),
    ("rdcp near:t/ü\tx", &["near:t/ünï世", "x"]),
    ("rdcp near:t/br\tx", &["near:t/br[1]{2}(3)", "x"]),
    ("rdcp near:t/quo\tx", &["near:t/quo'te\"s`", "x"]),
    ("rdcp near:t/bac\tx", &["near:t/back\\slash", "x"]),
    ("rdcp near:t/sta\tx", &["near:t/star*?", "x"]),
    ("rdcp near:t/run\tx", &["near:t/run$(touch hacked);&|<>", "x"]),
    ("rdcp near:t/.hi\tx", &["near:t/.hidden", "x"]),
    ("rdcp near:t/lin\tx", &["near:t/link/x"]),
    ("rdcp \"near:t/run\tx", &["near:t/run$(touch hacked);&|<>", "x"]),
    ("rdcp 'gpu[01-08]:t/fil\tx", &["gpu[01-08]:t/file", "x"]),
    ("rdcp --to near:t/fil\tx", &["--to", "near:t/file", "x"]),
    ("rdcp --to=near:t/fil\tx", &["--to=near:t/file", "x"]),
    ("rdcp -r -P 22 a near:t/fil\tx", &["-r", "-P", "22", "a", "near:t/file", "x"]),
    // Names with control characters, and names that do not exist.
    ("rdcp near:t/esc\tx", &["near:t/escx"]),
    ("rdcp near:t/new\tx", &["near:t/newx"]),
    ("rdcp near:t/none\tx", &["near:t/nonex"]),
    // Local files are not offered for a host that fails.
    ("rdcp broken:loc\tx", &["broken:locx"]),
    // Options and their values.
    ("rdcp --encr\talw\tx", &["--encrypt", "always", "x"]),
    ("rdcp --encrypt=alw\tx", &["--encrypt=always", "x"]),
    ("rdcp --no-boot\tx", &["--no-bootstrap", "x"]),
    ("rdcp --boot\tx", &["--bootstrap", "x"]),
    // Hidden options are not completed.
    ("rdcp --nega\tx", &["--negax"]),
    // Local files.
    ("rdcp loc\tx", &["local file", "x"]),
    ("rdcp ./loc\tx", &["./local file", "x"]),
    ("rdcp --manifest loc\tx", &["--manifest", "local file", "x"]),
    ("rdcp --manifest=loc\tx", &["--manifest=local file", "x"]),
    ("rdcp --manifest=./loc\tx", &["--manifest=./local file", "x"]),
    ("rdrecv 1 k loc\tx", &["1", "k", "local file", "x"]),
];

/// Line that begins completions in zsh.
const COMPINIT: &str = "autoload -U compinit; compinit -u -D; PS1='$ '";

/// Makes a home with hosts, files, and programs that record their arguments.
fn prepare() -> Scratch {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.join(name);
    for directory in ["bin", "work", "home/.ssh", "home/.config/rdma-pipe", "home/.config/fish/completions"] {
        fs::create_dir_all(at(directory)).expect("made");
    }
    let write = |name: &str, text: &str| fs::write(at(name), text).expect("written");
    write("home/.ssh/config", "Include more*\nHost near broken *.far gpu??\n");
    write("home/.ssh/more.conf", "Host included\n");
    write(
        "home/.ssh/known_hosts",
        "seen ssh-ed25519 AAAA\n|1|gone= ssh-ed25519 AAAA\n@revoked gone ssh-ed25519 AAAA\n",
    );
    write("home/.config/rdma-pipe/config.toml", "[host.settled]\nquiet = true\n");
    write("work/local file", "");
    let program = |name: &str, text: &str| {
        write(&format!("bin/{name}"), &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(at(&format!("bin/{name}")), fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    for name in ["rdcp", "rdrecv", "rdpipe", "rdsh", "rdperf", "rddoctor"] {
        program(name, "for word; do printf '%s\\0' \"$word\"; done >\"$TOLD.new\"; mv \"$TOLD.new\" \"$TOLD\"");
        let completions = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/completions");
        let link = at(&format!("home/.config/fish/completions/{name}.fish"));
        symlink(completions.join(format!("{name}.fish")), link).expect("a link");
    }
    symlink(PROGRAM, at("bin/rdma-pipe")).expect("a link");
    // Records what is asked of which host, and whether ssh could ask the user something.
    program(
        "ssh",
        "printf '%s\\n' \"$*\" >>\"$HOME/asked\"\n\
         while [ $# -gt 2 ]; do shift; done\n\
         [ \"$1\" != broken ] || exit 255\n\
         echo Welcome; cd && exec sh -c \"$2\"",
    );
    fs::create_dir_all(at("home/t/directory")).expect("made");
    fs::create_dir_all(at("home/t/di r")).expect("made");
    symlink("directory", at("home/t/link")).expect("a link");
    let names =
        ["di r/inner", "file", "two  spaces", "co:lon=x@y", "ünï世", "br[1]{2}(3)", "quo'te\"s`", "back\\slash"];
    let hostile = ["star*?", "run$(touch hacked);&|<>", ".hidden", "esc\u{1b}]0;HOSTILE\u{7}", "new\nline"];
    for name in names.iter().chain(&hostile) {
        fs::write(at("home/t").join(name), "").expect("written");
    }
    scratch
}

/// Starts a shell with the project's completions, at its prompt.
fn shell(scratch: &Scratch, shell: &str) -> Session {
    let completions = format!("{}/docs/completions", env!("CARGO_MANIFEST_DIR"));
    let prepare = match shell {
        "bash" => format!("for f in {completions}/*.bash; do . $f; done"),
        "zsh" => format!("fpath=({completions} $fpath); {COMPINIT}"),
        _ => "true".to_owned(),
    };
    shell_after(scratch, shell, &prepare)
}

/// Starts a shell that has run a line, at its prompt.
fn shell_after(scratch: &Scratch, shell: &str, prepare: &str) -> Session {
    let start = match shell {
        "bash" => "bash --norc --noprofile -i",
        "zsh" => "zsh -f -i",
        _ => "fish -i",
    };
    let at = |name: &str| scratch.join(name).display().to_string();
    let line = format!(
        "cd {} && exec env -i HOME={} TOLD={} PATH={}:/usr/bin:/bin TERM=xterm LC_ALL=C.UTF-8 {start}",
        at("work"),
        at("home"),
        at("told"),
        at("bin")
    );
    let mut session = Session::start(&line);
    let sum = if shell == "fish" { "(math 40 + 2)" } else { "$((40 + 2))" };
    session.type_in(&format!("{prepare}; echo is-{sum}\n"));
    session.until("is-42");
    session
}

/// Returns the arguments that the command was given.
fn told(scratch: &Scratch, limit: Duration) -> Option<Vec<String>> {
    let until = Instant::now() + limit;
    loop {
        if let Ok(bytes) = fs::read(scratch.join("told")) {
            fs::remove_file(scratch.join("told")).expect("removed");
            let words = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            let mut words: Vec<String> = words.collect();
            words.pop();
            return Some(words);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Types a line, and checks what the command is given.
#[track_caller]
fn is_completed(session: &mut Session, scratch: &Scratch, name: &str, (line, expected): &Case) {
    // On a busy machine a host may be given up after the second that a user waits, so each line is tried several times.
    let mut last = None;
    let is_well = (0..4).any(|_| {
        session.type_in(&format!("{line}\n"));
        last = told(scratch, Duration::from_secs(10));
        last.as_deref().is_some_and(|words| words == *expected)
    });
    assert!(is_well, "{name}: {line:?}: {last:?}, not {expected:?}");
}

fn in_shell(name: &str, others: &[Case]) {
    let scratch = prepare();
    let mut session = shell(&scratch, name);
    for case in CASES.iter().chain(others) {
        is_completed(&mut session, &scratch, name, case);
    }
    // Lists are shown without anything that a name could do to the terminal, and nothing that is typed or read is run.
    session.type_in("rdcp near:t/\t\t\u{15}rdcp -oProxyCommand=x:t/\t\u{15}");
    if name != "zsh" {
        // In zsh a TAB first expands whatever can be expanded, for any command.
        session.type_in("rdcp $(touch hacked):t/\t\u{15}rdcp \"`touch hacked`:t/\t\u{15}");
    }
    session.type_in("exit\n");
    let (text, ended) = session.end();
    ended.expect(0);
    assert!(text.contains("directory") && !text.contains("]0;HOSTILE"), "{name}: {text:?}");
    for place in ["work", "home", "home/t"] {
        assert!(!scratch.join(place).join("hacked").exists(), "{name}: {place}");
    }
    let asked = fs::read_to_string(scratch.join("home/asked")).expect("what ssh was asked");
    for line in asked.lines() {
        assert!(line.starts_with("-o BatchMode=yes ") && line.ends_with(" sh"), "{name}: {line}");
        assert!(!line.contains("ProxyCommand") && !line.contains("hacked"), "{name}: {line}");
    }
    assert!(asked.lines().any(|line| line.contains(" -p 22 ")) && asked.contains(" gpu01 sh\n"), "{name}: {asked}");
}

#[test]
fn in_bash() {
    in_shell(
        "bash",
        &[
            ("rdcp 'near:t/dire\tx", &["near:t/directory/x"]),
            ("rdcp 'near:t/quo\tx", &["near:t/quo'te\"s`", "x"]),
            ("rdcp 'near:t/two\tx", &["near:t/two  spaces", "x"]),
            ("rdcp near:t/br[\tx", &["near:t/br[1]{2}(3)", "x"]),
            ("rdcp gpu[01-08]:t/fil\tx", &["gpu[01-08]:t/file", "x"]),
            ("RDCP_RSH=ssh rdcp near:t/fil\tx", &["near:t/file", "x"]),
        ],
    );
}

#[test]
fn in_zsh() {
    in_shell(
        "zsh",
        &[
            ("rdcp 'near:t/dire\tx'", &["near:t/directory/x"]),
            ("rdcp gpu[01-08]:t/fil\tx", &["gpu[01-08]:t/file", "x"]),
            ("rdcp 'near:t/two\tx", &["near:t/two  spaces", "x"]),
        ],
    );
}

#[test]
fn in_fish() {
    in_shell(
        "fish",
        &[("rdcp 'near:t/dire\tx'", &["near:t/directory/x"]), ("rdcp 'near:t/two\tx", &["near:t/two  spaces", "x"])],
    );
}

/// Where no package has installed the scripts, a line in a start file of the shell is enough.
#[test]
fn the_lines_of_the_guide() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/completions.md");
    let page = fs::read_to_string(page).expect("the page");
    for (name, line, before) in [
        ("bash", "source <(rdma-pipe complete bash)", "true"),
        ("zsh", "source <(rdma-pipe complete zsh)", COMPINIT),
        ("fish", "rdma-pipe complete fish | source", "true"),
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line}");
        let scratch = prepare();
        fs::remove_dir_all(scratch.join("home/.config/fish/completions")).expect("removed");
        let mut session = shell_after(&scratch, name, &format!("{before}; {line}"));
        let cases: [Case; 2] = [("rdcp nea\tx", &["near:x"]), ("rdsh nea\t", &["near"])];
        cases.iter().for_each(|case| is_completed(&mut session, &scratch, name, case));
        session.type_in("exit\n");
        session.end().1.expect(0);
    }
}

#[test]
fn an_answer_comes_within_a_second_or_not_at_all() {
    let scratch = prepare();
    let silent = scratch.join("bin/ssh");
    fs::write(&silent, "#!/bin/sh\nexec sleep 60\n").expect("written");
    let mut command = Command::new(PROGRAM);
    command.args(["complete", "fish", "rdcp", "rdcp near:t/"]).env("HOME", scratch.join("home"));
    command.env("PATH", format!("{}:/usr/bin:/bin", scratch.join("bin").display()));
    let begun = Instant::now();
    let output = command.output().expect("it runs");
    // In addition to the second, a busy machine needs time to start the program.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(output.stdout == b"none\n" || output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Returns what the program itself answers to a line of rdcp. `text` is what bash would replace.
fn answer(scratch: &Scratch, line: impl AsRef<OsStr>, text: &str) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(["complete", "bash", "rdcp"]).arg(line).arg(text).current_dir(scratch.join("work"));
    command.env("HOME", scratch.join("home")).env_remove("RDCP_RSH");
    command.env("PATH", format!("{}:/usr/bin:/bin", scratch.join("bin").display()));
    String::from_utf8(command.output().expect("it runs").stdout).expect("text")
}

#[test]
fn a_host_is_asked_only_as_the_shell_would_have_it_asked() {
    let scratch = prepare();
    let asked = scratch.join("home/asked");
    for before in
        ["-o \"ProxyCommand=$HOME/bin/px %h\"", "-J $GATE", "-F `x`", "-r $x", "a 2>\"$x\"", "$(x)", "-F <(x) a"]
    {
        assert_eq!(answer(&scratch, format!("rdcp {before} near:t/fil"), "t/fil"), "none\n", "{before}");
        assert!(!asked.exists(), "{before}");
    }
    let home = scratch.join("home").display().to_string();
    for (before, given) in [
        ("-o 'LogLevel=$x'", "-o LogLevel=$x".to_owned()),
        ("-F ~/config", format!("-F {home}/config")),
        ("-F '~/config'", "-F ~/config".to_owned()),
        ("-F \\~/config", "-F ~/config".to_owned()),
        ("-F plain 2>&1 a", "-F plain".to_owned()),
    ] {
        // On a busy machine the answer may come too late.
        let is_asked = (0..4).any(|_| {
            answer(&scratch, format!("rdcp {before} near:t/fil"), "t/fil");
            fs::read_to_string(&asked).is_ok_and(|asked| asked.contains(&format!(" {given} ")))
        });
        assert!(is_asked, "{before}: {:?}", fs::read_to_string(&asked));
        fs::remove_file(&asked).expect("it was asked");
    }
}

#[test]
fn local_names_that_are_not_hosts() {
    let scratch = prepare();
    fs::write(scratch.join("work/nearby:x"), "").expect("written");
    assert_eq!(answer(&scratch, "rdcp nea", "nea"), "none\n./nearby:x\nnear:\n");
    assert_eq!(answer(&scratch, OsStr::from_bytes(b"rdcp \xff lo"), "lo"), "files\n");
}
