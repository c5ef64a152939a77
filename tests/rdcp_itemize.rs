//! `rdcp --itemize-changes`: what is printed when, and slow readers. `tests/sync_oracle/itemize.rs` compares the
//! lines with those of rsync.

mod rig;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use rig::lab::*;
use rig::*;
use rustix::process::Signal;

/// More lines than pipes, messages and the stream's window hold together.
const FILES: usize = 6000;

/// Hosts of source and destination: within this host, to another, from another, between two.
const WAYS: [(&str, &str); 4] = [("", ""), ("", "h1:"), ("h1:", ""), ("h1:", "h2:")];

/// Makes a tree of many files with long names.
fn wide() -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.join("source")).expect("a directory");
    for number in 0..FILES {
        fs::write(lab.join("source").join(format!("{number:0200}")), b"x").expect("a file");
    }
    lab
}

fn to_copy(lab: &Lab, (from, to): (&str, &str), name: &str) -> Command {
    let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync"]).arg(path(from, "source/")).arg(path(to, name)).stdin(Stdio::null());
    command
}

fn itemized(lab: &Lab, way: (&str, &str), name: &str) -> Command {
    let mut command = to_copy(lab, way, name);
    command.arg("--itemize-changes").stdout(Stdio::piped());
    command
}

/// Hard links that have not changed are not counted as copied either, not even by a dry run.
#[test]
fn further_names_that_are_as_they_were_are_not_copied() {
    let lab = Lab::new();
    fs::create_dir(lab.join("source")).expect("a directory");
    fs::write(lab.join("source/a"), b"x").expect("a file");
    fs::hard_link(lab.join("source/a"), lab.join("source/b")).expect("a link");
    for way in WAYS {
        let name = format!("copy{}{}", way.0.len(), way.1.len());
        Process::spawn(&mut itemized(&lab, way, &name)).wait().expect(0);
        for options in [&["-v"][..], &["-v", "-n"]] {
            let ended = Process::spawn(itemized(&lab, way, &name).args(options)).wait();
            let line = ended.expect(0).stderr.lines().last().expect("a line").to_owned();
            assert!(line.contains("2 files compared") && line.contains(": none "), "{way:?}: {line}");
        }
    }
}

/// The copy waits for its reader, for longer than an end may take to report its outcome, and then goes on.
#[test]
fn a_reader_may_take_its_time() {
    let lab = wide();
    let check = &|(number, way): (usize, (&str, &str))| {
        let name = format!("copy{number}");
        let mut process = Process::spawn(&mut itemized(&lab, way, &name));
        std::thread::sleep(Duration::from_millis(4500));
        assert!(process.is_running(), "{way:?}: {}", process.stderr());
        let lines: Vec<String> = BufReader::new(process.stdout()).lines().map(|line| line.expect("text")).collect();
        process.wait().expect(0);
        let letter = if way.1.is_empty() { '>' } else { '<' };
        assert_eq!(lines.iter().filter(|line| line.starts_with(&format!("{letter}f+++++++++ 0"))).count(), FILES);
        assert_eq!(lines.len(), FILES + 1, "and the directory");
        // Unchanged files are not listed.
        let mut again = Process::spawn(&mut itemized(&lab, way, &name));
        let mut text = String::new();
        again.stdout().read_to_string(&mut text).expect("text");
        again.wait().expect(0);
        assert_eq!(text, "");
    };
    std::thread::scope(|scope| {
        for one in WAYS.into_iter().enumerate() {
            scope.spawn(move || check(one));
        }
    });
}

/// A signal takes effect even if the output is not read, and closing the output ends the copy.
#[test]
fn nobody_waits_for_a_reader_that_is_not_wanted() {
    let lab = wide();
    for (number, way) in WAYS.into_iter().enumerate() {
        let mut process = Process::spawn(&mut itemized(&lab, way, &format!("stopped{number}")));
        std::thread::sleep(Duration::from_secs(1));
        process.signal(Signal::INT);
        process.wait().expect(130).within(Duration::from_secs(4));
        let mut process = Process::spawn(&mut itemized(&lab, way, &format!("closed{number}")));
        let mut output = process.stdout();
        output.read_exact(&mut [0; 100]).expect("some of it");
        drop(output);
        process.wait().expect(141).within(SOON);
    }
    lab.all_gone(SOON);
}

/// The same holds for events.
#[test]
fn no_signal_waits_for_a_reader_of_events() {
    let lab = wide();
    for (number, way) in WAYS.into_iter().enumerate() {
        let (_unread, full) = full_pipe();
        let mut command = to_copy(&lab, way, &format!("stopped{number}"));
        let mut process = Process::spawn(command.arg("--json").stdout(full));
        std::thread::sleep(Duration::from_secs(1));
        assert!(process.is_running(), "it waits for the reader: {}", process.stderr());
        process.signal(Signal::TERM);
        process.wait().expect(143).within(Duration::from_secs(4));
    }
    lab.all_gone(SOON);
}

/// Each name of a file is listed once, together with the name that was sent.
#[test]
fn names_of_one_file() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        let source = lab.join("source");
        fs::create_dir_all(source.join("below")).expect("directories");
        fs::write(source.join("a"), b"1").expect("a file");
        for name in ["below/b", "c"] {
            fs::hard_link(source.join("a"), source.join(name)).expect("a link");
        }
        let lines = |name: &str| {
            let mut process = Process::spawn(&mut itemized(&lab, (from, to), name));
            let lines: Vec<String> = BufReader::new(process.stdout()).lines().map(|line| line.expect("text")).collect();
            process.wait().expect(0);
            lines.into_iter().map(|line| line.replacen('<', ">", 1)).collect::<Vec<_>>()
        };
        let mut first = lines("copy");
        first.sort_unstable();
        let expected =
            [">f+++++++++ a", "cd+++++++++ ./", "cd+++++++++ below/", "hf+++++++++ below/b => a", "hf+++++++++ c => a"];
        assert_eq!(first, expected, "{from} {to}");
        // A changed file is listed under every name.
        fs::write(source.join("a"), b"22").expect("a file");
        let mut second = lines("copy");
        second.sort_unstable();
        assert_eq!(second, [">f.st...... a", "hf.st...... below/b => a", "hf.st...... c => a"], "{from} {to}");
    }
}

/// `-n` with a generation lists what the run after it lists and does.
#[test]
fn a_generation_is_foreseen() {
    for (from, to) in WAYS {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("source/below")).expect("directories");
        for name in ["same", "touched", "changed", "below/same", "gone"] {
            fs::write(lab.join("source").join(name), vec![b'1'; 200_000]).expect("a file");
        }
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let run = |options: &[&str], destination: &str| {
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            command.args(["-r", "--sync", "--itemize-changes"]).args(options);
            command.args([path(from, "source/"), path(to, destination)]);
            let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
            let mut text = String::new();
            process.stdout().read_to_string(&mut text).expect("text");
            process.wait().expect(0);
            let mut lines: Vec<String> = text.lines().map(|line| line.replacen('<', ">", 1)).collect();
            lines.sort_unstable();
            lines
        };
        let first = run(&["-n", "--snapshot=one"], "all");
        assert!(!lab.join("all").exists());
        assert_eq!(run(&["--snapshot=one"], "all"), first, "{from} {to}");
        fs::write(lab.join("source/changed"), vec![b'2'; 200_000]).expect("a file");
        fs::remove_file(lab.join("source/gone")).expect("it");
        let set = |name: &str, mode| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(lab.join("source").join(name), fs::Permissions::from_mode(mode)).expect("ours");
        };
        set("touched", 0o640);
        for (number, checksum) in [&[][..], &["--checksum"]].into_iter().enumerate() {
            let generation = format!("--snapshot=two{number}");
            let foreseen = run(&[checksum, &["-n", &generation]].concat(), "all");
            assert!(!lab.join(&format!("all/two{number}")).exists());
            assert!(
                foreseen.iter().any(|line| line.starts_with("cf") && line.ends_with("touched")) || number > 0,
                "{foreseen:?}"
            );
            assert_eq!(run(&[checksum, &[&generation]].concat(), "all"), foreseen, "{from} {to} {checksum:?}");
            let link = format!("--link-dest=../all/two{number}");
            let foreseen = run(&[checksum, &["-n", &link]].concat(), &format!("linked{number}"));
            assert!(!lab.join(&format!("linked{number}")).exists());
            assert_eq!(run(&[checksum, &[&link]].concat(), &format!("linked{number}")), foreseen, "{from} {to}");
        }
    }
}

#[test]
fn what_it_cannot_be_with() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    let run = |arguments: &[&str]| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped())).wait()
    };
    run(&["--itemize-changes", "--json", "source", "copy"]).expect(1).one_line("rdcp", &["--json=FILE"]);
    run(&["--itemize-changes", "source", "-"])
        .expect(1)
        .one_line("rdcp", &["--itemize-changes is for files and trees"]);
    assert!(lab.made(&["source"]).is_empty());
}

/// The summary of a dry run claims nothing that was not done.
#[test]
fn a_dry_run_says_what_it_is() {
    let lab = Lab::new();
    fs::create_dir(lab.join("source")).expect("a directory");
    fs::write(lab.join("source/a"), b"12345").expect("a file");
    for (from, to) in WAYS {
        let mut command = itemized(&lab, (from, to), "copy");
        let mut process = Process::spawn(command.args(["-n", "-v", "--fsync"]));
        let mut text = String::new();
        process.stdout().read_to_string(&mut text).expect("text");
        let stderr = process.wait().expect(0).stderr.clone();
        assert!(
            stderr.contains("dry run: 1 file compared in") && stderr.contains("1 would be copied (5 B)"),
            "{stderr}"
        );
        let claims = ["verified", "stable storage"];
        assert!(!claims.iter().any(|claim| stderr.contains(claim)), "{stderr}");
        assert_eq!(text.lines().count(), 2, "{text}");
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--sync", "-n"]).args([path(from, "source"), path(from, "none"), path(to, "copy")]);
        let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
        let stderr = &ended.expect(8).stderr;
        assert!(stderr.ends_with("rdcp: 1 entry would not be copied; nothing was changed\n"), "{stderr}");
    }
    assert!(lab.made(&["source"]).is_empty());
}

/// A renamed file is listed under its new name, in a dry run too.
#[test]
fn what_was_moved_has_a_line() {
    let lab = Lab::new();
    for (from, to) in WAYS {
        for name in ["source", "copy"] {
            let _ = fs::remove_dir_all(lab.join(name));
            fs::create_dir_all(lab.join(name)).expect("a directory");
        }
        for (size, name) in [(9000, "small"), (2 << 20, "large")] {
            fs::write(lab.join("source").join(name), noise(size)).expect("room");
        }
        let copied = Command::new("cp").args(["-a", "source/.", "copy"]).current_dir(lab.0.path()).status();
        assert!(copied.expect("coreutils").success());
        for name in ["small", "large"] {
            fs::rename(lab.join("source").join(name), lab.join("source").join(format!("new-{name}"))).expect("there");
        }
        for option in ["-n", "-v"] {
            let mut command = itemized(&lab, (from, to), "copy");
            let mut process = Process::spawn(command.args(["--find-moves", "--delete", option]));
            let mut text = String::new();
            process.stdout().read_to_string(&mut text).expect("text");
            process.wait().expect(0);
            let mut lines: Vec<&str> = text.lines().filter(|line| !line.ends_with("./")).collect();
            lines.sort_unstable();
            let expected = ["*deleting   large", "*deleting   small", "cf          new-large", "cf          new-small"];
            assert_eq!(lines, expected, "{from} {to} {option}");
        }
    }
}
