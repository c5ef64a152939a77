//! `rdcp --watch`: a change at the source is soon at the destination, until rdcp is ended.

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::others::{NOBODY, as_user};
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time for a change to arrive, on a busy machine.
const ARRIVED: Duration = Duration::from_secs(20);

#[track_caller]
fn until(what: &str, process: &mut Process, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(process.is_running(), "{what}: it has ended: {}", process.stderr());
        assert!(start.elapsed() < ARRIVED, "{what}: not within {ARRIVED:?}: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn holds(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Whether the source and the destination are on other hosts.
const WITHIN: [bool; 2] = [false, false];
const PUSH: [bool; 2] = [false, true];
const PULL: [bool; 2] = [true, false];

fn start(lab: &Lab, to: &Path, way: [bool; 2]) -> Process {
    start_with(&[], lab, to, way)
}

fn start_with(options: &[&str], lab: &Lab, to: &Path, [is_source_there, is_remote]: [bool; 2]) -> Process {
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--delete", "--watch", "-v"]).args(options);
    match is_source_there {
        true => command.arg(lab.there("source", "from/")),
        false => command.arg("from/"),
    };
    match is_remote {
        true => command.arg(lab.there("h", "to")),
        false => command.arg(to),
    };
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Returns how often it has said that it waits for changes, which it does after each copy.
fn waits(process: &Process) -> usize {
    process.stderr().matches("waiting for changes").count()
}

/// Waits until it waits for changes again. `before`: how often it had said so before its last copy.
#[track_caller]
fn await_waiting(process: &Process, before: usize) {
    let start = Instant::now();
    while waits(process) <= before {
        assert!(start.elapsed() < ARRIVED, "it does not wait again within {ARRIVED:?}: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn threads_and_files(process: &Process) -> [usize; 2] {
    ["task", "fd"].map(|what| fs::read_dir(format!("/proc/{}/{what}", process.pid())).map_or(0, Iterator::count))
}

fn lab() -> Lab {
    let lab = Lab::new();
    let down = lab.join("down");
    lab.script("rsh", &format!("[ -e '{}' ] && exit 255\nexec sh -c \"exec $2\"", down.display()));
    fs::create_dir(lab.join("from")).expect("a directory");
    fs::write(lab.join("from/first"), "one").expect("a file");
    lab
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Starts it as another user, who owns SRC. Only root can do that.
fn start_as_nobody(lab: &Lab) -> Process {
    let from = lab.join("from");
    Command::new("chown").args(["-R", &NOBODY.to_string()]).arg(&from).status().expect("coreutils");
    set_mode(lab.0.path(), 0o777);
    let mut command = rdcp();
    command.args(["-r", "--sync", "--watch"]).args([from.join(""), lab.join("to")]);
    let mut command = in_shell(&as_user(NOBODY, lab.0.path()), &command);
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// As without `--watch`: the directory is named, the others are copied, and changes in them arrive. Once it can be
/// read, it is watched like the others.
#[test]
fn a_directory_that_may_not_be_read_keeps_nothing_else_from_being_watched() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = lab();
    for path in ["from/a/b", "from/closed/below", "from/z/open"] {
        fs::create_dir_all(lab.join(path)).expect("directories");
    }
    fs::write(lab.join("from/closed/file"), "inside").expect("a file");
    let (from, to) = (lab.join("from"), lab.join("to"));
    set_mode(&from.join("closed"), 0o0);
    let mut process = start_as_nobody(&lab);
    until("the first copy", &mut process, || holds(&to.join("first"), "one") && to.join("z/open").exists());
    for (path, text) in [("a/b/new", "before it"), ("z/open/new", "behind it")] {
        fs::write(from.join(path), text).expect("root");
        until(path, &mut process, || holds(&to.join(path), text));
    }
    process.line_with("from/closed");
    set_mode(&from.join("closed"), 0o755);
    until("what can be read now", &mut process, || holds(&to.join("closed/file"), "inside"));
    for path in ["closed/later", "closed/below/later"] {
        std::thread::sleep(Duration::from_millis(500));
        fs::write(from.join(path), "watched").expect("root");
        until(path, &mut process, || holds(&to.join(path), "watched"));
    }
    process.signal(Signal::TERM);
    process.wait().expect(143);
}

#[test]
fn a_new_directory_that_may_not_be_read_is_watched_once_it_may() {
    const BESIDE: [&str; 4] = ["b", "c", "y", "z"];
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    let mut process = start_as_nobody(&lab);
    until("the first copy", &mut process, || holds(&to.join("first"), "one"));
    for name in BESIDE.into_iter().chain(["closed"]) {
        fs::create_dir_all(lab.join("new").join(name)).expect("directories");
    }
    fs::write(lab.join("new/closed/file"), "inside").expect("a file");
    set_mode(&lab.join("new/closed"), 0o0);
    fs::rename(lab.join("new"), from.join("new")).expect("renamed");
    until("what is beside it", &mut process, || BESIDE.iter().all(|name| to.join("new").join(name).exists()));
    std::thread::sleep(Duration::from_millis(500));
    for name in BESIDE {
        let path = Path::new("new").join(name).join("later");
        fs::write(from.join(&path), "beside").expect("root");
        until(name, &mut process, || holds(&to.join(&path), "beside"));
    }
    set_mode(&from.join("new/closed"), 0o755);
    until("what can be read now", &mut process, || holds(&to.join("new/closed/file"), "inside"));
    std::thread::sleep(Duration::from_millis(500));
    fs::write(from.join("new/closed/later"), "watched").expect("root");
    until("a file in it", &mut process, || holds(&to.join("new/closed/later"), "watched"));
    // Directories that are closed only for a moment, before or after the library tries to watch them.
    for pause in [0, 1, 100, 400] {
        let name = format!("briefly{pause}");
        let (ours, theirs) = (from.join(&name), to.join(&name));
        fs::create_dir(&ours).expect("root");
        set_mode(&ours, 0o0);
        std::thread::sleep(Duration::from_millis(pause));
        set_mode(&ours, 0o755);
        until(&name, &mut process, || theirs.exists());
        std::thread::sleep(Duration::from_millis(500));
        fs::write(ours.join("later"), "watched").expect("root");
        until(&name, &mut process, || holds(&theirs.join("later"), "watched"));
    }
    process.signal(Signal::TERM);
    process.wait().expect(143);
}

#[test]
fn changes_arrive_until_it_is_ended() {
    for way in [WITHIN, PUSH, PULL, [true, true]] {
        let lab = lab();
        let (from, to) = (lab.join("from"), lab.join("to"));
        let mut process = start(&lab, &to, way);
        until("the first copy", &mut process, || holds(&to.join("first"), "one"));
        process.line_with("waiting for changes");
        let at_first = threads_and_files(&process);
        fs::write(from.join("first"), "other").expect("a file");
        until("a change", &mut process, || holds(&to.join("first"), "other"));
        // Entries in a directory that did not exist when the watch began.
        fs::create_dir_all(from.join("a/b/c")).expect("directories");
        fs::write(from.join("a/b/c/file"), "below").expect("a file");
        until("new directories", &mut process, || holds(&to.join("a/b/c/file"), "below"));
        std::thread::sleep(Duration::from_millis(500));
        fs::write(from.join("a/b/c/later"), "watched as well").expect("a file");
        until("a file in them", &mut process, || holds(&to.join("a/b/c/later"), "watched as well"));
        // Directories without changes are not examined, and nothing is deleted in them.
        fs::write(to.join("a/b/c/only there"), "left until all is looked at").expect("a file");
        fs::write(from.join("a/beside"), "beside").expect("a file");
        until("a file above them", &mut process, || holds(&to.join("a/beside"), "beside"));
        assert!(to.join("a/b/c/only there").exists());
        fs::rename(from.join("a/b"), from.join("moved")).expect("renamed");
        until("a move", &mut process, || holds(&to.join("moved/c/file"), "below") && !to.join("a/b").exists());
        std::thread::sleep(Duration::from_millis(500));
        fs::write(from.join("moved/c/file"), "changed there").expect("a file");
        until("a file in it", &mut process, || holds(&to.join("moved/c/file"), "changed there"));
        fs::remove_file(from.join("first")).expect("removed");
        until("a deletion", &mut process, || !to.join("first").exists());
        // After these copies rdcp has no more threads and files than after the first.
        let is_as_at_first = || threads_and_files(&process).iter().zip(at_first).all(|(now, first)| *now <= first);
        let start = Instant::now();
        while !is_as_at_first() {
            let now = threads_and_files(&process);
            assert!(start.elapsed() < ARRIVED, "{way:?}: threads and files: {at_first:?}, then {now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        // rdcp can be stopped and continued while it waits.
        std::thread::sleep(Duration::from_millis(500));
        process.signal(Signal::TSTP);
        let stopped = Instant::now();
        while process.state() != 'T' {
            assert!(stopped.elapsed() < ARRIVED, "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(from.join("second"), "two").expect("a file");
        process.signal(Signal::CONT);
        until("what changed meanwhile", &mut process, || holds(&to.join("second"), "two"));
        std::thread::sleep(Duration::from_millis(500));
        process.signal(Signal::INT);
        process.wait().expect(130);
    }
}

/// The first copy may take hours.
#[test]
fn what_changes_during_the_first_copy_is_copied() {
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    // If it were missing, nothing could be seen of it before all of it has come.
    fs::create_dir(&to).expect("a directory");
    let large = noise(8 << 20);
    fs::write(from.join("large"), &large).expect("a file");
    let mut process = start_with(&["--bwlimit", "4M"], &lab, &to, PUSH);
    until("what comes first", &mut process, || holds(&to.join("first"), "one"));
    fs::write(from.join("first"), "other").expect("a file");
    until("what has changed since", &mut process, || holds(&to.join("first"), "other"));
    same(&fs::read(to.join("large")).expect("it"), &large);
    process.signal(Signal::TERM);
    process.wait().expect(143);
}

#[test]
fn copies_through_the_launcher_leave_no_threads_and_files() {
    for way in [PUSH, PULL] {
        let lab = lab();
        let (from, to) = (lab.join("from"), lab.join("to"));
        let mut process = start_with(&["--relay"], &lab, &to, way);
        until("the first copy", &mut process, || holds(&to.join("first"), "one"));
        process.line_with("waiting for changes");
        std::thread::sleep(Duration::from_millis(500));
        let at_first = threads_and_files(&process);
        for text in ["two", "three", "four", "five", "six"] {
            fs::write(from.join("first"), text).expect("a file");
            until(text, &mut process, || holds(&to.join("first"), text));
        }
        let start = Instant::now();
        loop {
            let now = threads_and_files(&process);
            if now.iter().zip(at_first).all(|(now, first)| *now <= first) {
                break;
            }
            assert!(start.elapsed() < ARRIVED, "{way:?}: threads and files: {at_first:?}, then {now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        process.signal(Signal::TERM);
        process.wait().expect(143);
    }
}

#[test]
fn a_host_that_is_lost_is_waited_for() {
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    // A host that has never answered is not waited for.
    fs::write(lab.join("down"), "").expect("a file");
    start(&lab, &to, PUSH).wait().expect(3);
    fs::remove_file(lab.join("down")).expect("removed");
    let mut process = start(&lab, &to, PUSH);
    until("the first copy", &mut process, || holds(&to.join("first"), "one"));
    process.line_with("waiting for changes");
    fs::write(lab.join("down"), "").expect("a file");
    fs::write(from.join("second"), "two").expect("a file");
    process.line_with("trying again in 2 s");
    assert!(!to.join("second").exists());
    fs::remove_file(lab.join("down")).expect("removed");
    until("what changed meanwhile", &mut process, || holds(&to.join("second"), "two"));
    process.signal(Signal::TERM);
    process.wait().expect(143);
    lab.all_gone(ARRIVED);
}

/// Returns how many directories a process watches, each counted once for each watch.
fn watched(process: &Process) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", process.pid())).expect("a process").flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum()
}

/// The user's limit may leave no room for a second watch.
#[test]
fn while_the_other_host_is_lost_the_source_is_not_watched_twice() {
    const DIRECTORIES: usize = 5000;
    let lab = lab();
    for number in 0..DIRECTORIES {
        fs::create_dir(lab.join("from").join(number.to_string())).expect("a directory");
    }
    let to = lab.join("to");
    let mut process = start(&lab, &to, PUSH);
    process.line_with("waiting for changes");
    fs::write(lab.join("down"), "").expect("a file");
    fs::write(lab.join("from/first"), "two").expect("a file");
    let (start, mut most) = (Instant::now(), 0);
    while !process.stderr().contains("trying again in 5 s") {
        assert!(start.elapsed() < ARRIVED, "{}", process.stderr());
        most = most.max(watched(&process));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((DIRECTORIES..DIRECTORIES * 3 / 2).contains(&most), "{most} watches of {DIRECTORIES} directories");
    fs::remove_file(lab.join("down")).expect("removed");
    until("what changed meanwhile", &mut process, || holds(&to.join("first"), "two"));
    fs::write(lab.join("from/7/later"), "later").expect("a file");
    until("a change after that", &mut process, || holds(&to.join("7/later"), "later"));
    process.signal(Signal::TERM);
    process.wait().expect(143);
}

#[test]
fn a_source_that_is_lost_is_waited_for_and_then_looked_at_as_a_whole() {
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    let mut process = start(&lab, &to, PULL);
    until("the first copy", &mut process, || holds(&to.join("first"), "one"));
    process.line_with("waiting for changes");
    fs::write(lab.join("down"), "").expect("a file");
    let (watching, ..) = lab.launches().remove(0);
    kill_process(Pid::from_raw(watching as i32).expect("a process"), Signal::KILL).expect("ours");
    process.line_with("trying again in 2 s");
    let before = waits(&process);
    // These changes are not reported by any watch.
    fs::create_dir(from.join("a")).expect("a directory");
    fs::write(from.join("a/second"), "two").expect("a file");
    fs::remove_file(lab.join("down")).expect("removed");
    until("what changed meanwhile", &mut process, || holds(&to.join("a/second"), "two"));
    await_waiting(&process, before);
    fs::write(from.join("a/third"), "three").expect("a file");
    until("a change after that", &mut process, || holds(&to.join("a/third"), "three"));
    process.signal(Signal::TERM);
    process.wait().expect(143);
    lab.all_gone(ARRIVED);
}

#[test]
fn a_link_that_comes_to_lead_elsewhere_is_followed() {
    let lab = lab();
    let (to, other) = (lab.join("to"), lab.join("other"));
    fs::rename(lab.join("from"), lab.join("real")).expect("renamed");
    std::os::unix::fs::symlink("real", lab.join("from")).expect("a link");
    let mut process = start(&lab, &to, WITHIN);
    until("the first copy", &mut process, || holds(&to.join("first"), "one"));
    process.line_with("waiting for changes");
    fs::create_dir(&other).expect("a directory");
    fs::write(other.join("second"), "two").expect("a file");
    std::os::unix::fs::symlink("other", lab.join("new")).expect("a link");
    fs::rename(lab.join("new"), lab.join("from")).expect("renamed");
    until("what it leads to now", &mut process, || holds(&to.join("second"), "two") && !to.join("first").exists());
    std::thread::sleep(Duration::from_millis(500));
    fs::write(other.join("second"), "changed there").expect("a file");
    until("a change there", &mut process, || holds(&to.join("second"), "changed there"));
}

/// An entry that takes a directory's place brings nothing from outside SRC.
#[test]
fn a_link_in_place_of_a_directory_is_copied_as_a_link() {
    for way in [WITHIN, PUSH] {
        let lab = lab();
        let (from, to, out) = (lab.join("from"), lab.join("to"), lab.join("out"));
        fs::create_dir_all(from.join("d/sub")).expect("directories");
        fs::create_dir_all(out.join("sub")).expect("directories");
        fs::write(from.join("d/sub/file"), "inside").expect("a file");
        fs::write(out.join("sub/secret"), "outside").expect("a file");
        let mut process = start(&lab, &to, way);
        until("the first copy", &mut process, || holds(&to.join("d/sub/file"), "inside"));
        process.line_with("waiting for changes");
        fs::remove_dir_all(from.join("d")).expect("removed");
        std::os::unix::fs::symlink(&out, from.join("d")).expect("a link");
        fs::write(from.join("first"), "then").expect("a file");
        until("what changed beside it", &mut process, || holds(&to.join("first"), "then"));
        until("the link", &mut process, || fs::read_link(to.join("d")).is_ok_and(|target| target == out));
        // Neither the removal of the link nor entries below it are reported as errors.
        fs::remove_file(from.join("d")).expect("removed");
        until("that it is gone", &mut process, || to.join("d").symlink_metadata().is_err());
        process.signal(Signal::INT);
        let ended = process.wait();
        assert!(!ended.expect(130).stderr.contains("cannot read"), "{}", ended.stderr);
    }
}

/// As in a script: only failures are printed.
#[test]
fn without_a_terminal_nothing_is_said() {
    let lab = lab();
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--watch", "from/", "to"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::spawn(&mut command);
    for text in ["one", "two"] {
        fs::write(lab.join("from/first"), text).expect("a file");
        until(text, &mut process, || holds(&lab.join("to/first"), text));
    }
    // The second change was made after the first had arrived.
    assert_eq!(process.stderr(), "");
}

#[test]
fn a_remark_is_not_repeated_with_every_copy() {
    let lab = lab();
    fs::write(lab.join("from/.0123456789abcdef0123456789abcdef.rd-part"), "left").expect("a file");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--watch", "from/", "to"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::spawn(&mut command);
    for text in ["one", "two", "three"] {
        fs::write(lab.join("from/first"), text).expect("a file");
        until(text, &mut process, || holds(&lab.join("to/first"), text));
    }
    let said = process.stderr();
    assert_eq!(said.matches("rd-part").count(), 1, "{said}");
}

#[test]
fn what_cannot_be_watched_is_said_at_once() {
    let lab = lab();
    let run = |words: &[&str]| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(words).stdin(Stdio::null()).stdout(Stdio::null())).wait()
    };
    run(&["-r", "--sync", "--watch", "h:missing/", "to"])
        .expect(5)
        .one_line("rdcp", &["cannot watch h:", "missing", "errno 2"]);
    run(&["-r", "--sync", "--watch", "missing/", "to"])
        .expect(5)
        .one_line("rdcp", &["cannot watch", "missing", "errno 2"]);
    run(&["-r", "--sync", "--watch", "-", "to"]).expect(1).one_line("rdcp", &["--watch", "standard input"]);
    assert!(!lab.join("to").exists());
}

#[test]
fn room_at_the_destination_is_waited_for() {
    for way in [WITHIN, PUSH] {
        let lab = lab();
        let (from, to) = (lab.join("from"), lab.join("to"));
        let Some(small) = Small::mount(&to, "4m") else {
            assert!(!rustix::process::geteuid().is_root(), "root may mount");
            return not_run("a small file system cannot be mounted here");
        };
        let mut process = start(&lab, &to, way);
        process.line_with("waiting for changes");
        let large = noise(6 << 20);
        fs::write(from.join("large"), &large).expect("a file");
        process.line_with("trying again in 2 s");
        let said = process.stderr();
        assert_eq!(said.matches("errno 28").count(), 1, "{way:?}: {said}");
        // The host reports this change during the pause, and no other before it is asked again.
        fs::write(from.join("first"), "in the pause").expect("a file");
        small.resize("40m");
        until("the large file", &mut process, || fs::read(to.join("large")).is_ok_and(|bytes| bytes == large));
        until("what changed in the pause", &mut process, || holds(&to.join("first"), "in the pause"));
        fs::write(from.join("second"), "two").expect("a file");
        until("a change after that", &mut process, || holds(&to.join("second"), "two"));
        process.signal(Signal::TERM);
        process.wait().expect(143);
        if way == PUSH {
            lab.all_gone(ARRIVED);
        }
    }
}

#[test]
fn a_failure_that_the_copy_has_reported_is_not_followed_by_an_empty_line() {
    let lab = lab();
    for name in ["empty", "to"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    fs::write(lab.join("to/only there"), "kept").expect("a file");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--delete", "--watch", "-v", "empty/", "to"]);
    let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    process.line_with("waiting for changes");
    let said = process.stderr();
    assert!(said.contains("was not emptied"), "{said}");
    assert!(said.lines().all(|line| line.trim_end() != "rdcp:"), "{said}");
}

/// A copy waits here before it has a queue for signals, because another command writes the same report.
#[test]
fn a_signal_that_comes_before_a_copy_ends_that_copy() {
    let lab = lab();
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--report", "report.html", "-", "other"]);
    let mut other = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()));
    let partial = lab.join(&name_beside("report.html", "rd-part"));
    until("the other report", &mut other, || partial.exists());
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--watch", "--report", "report.html", "from/", "to"]);
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let tasks = format!("/proc/{}/task", process.pid());
    let name_of = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let hears = || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().any(|task| name_of(task) == "signals\n"));
    until("signals to be handled", &mut process, hears);
    std::thread::sleep(Duration::from_millis(500));
    process.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    drop(other.stdin());
    other.wait().expect(0);
    process.wait().expect(143);
    assert!(!lab.join("to").exists(), "a copy was made after the signal");
}

/// As when it is removed and made anew.
#[test]
fn a_source_that_is_missing_for_a_while_is_waited_for() {
    for way in [WITHIN, PULL] {
        let lab = lab();
        let (from, to, elsewhere) = (lab.join("from"), lab.join("to"), lab.join("elsewhere"));
        let mut process = start(&lab, &to, way);
        process.line_with("waiting for changes");
        fs::rename(&from, &elsewhere).expect("renamed");
        process.line_with("trying again in 2 s");
        assert!(holds(&to.join("first"), "one"), "nothing is deleted");
        assert_eq!(process.stderr().matches("cannot watch").count(), 1, "{}", process.stderr());
        let before = waits(&process);
        fs::rename(elsewhere.join("first"), elsewhere.join("second")).expect("renamed");
        fs::rename(&elsewhere, &from).expect("renamed");
        until("all of it", &mut process, || holds(&to.join("second"), "one") && !to.join("first").exists());
        await_waiting(&process, before);
        fs::write(from.join("third"), "three").expect("a file");
        until("a change after that", &mut process, || holds(&to.join("third"), "three"));
        process.signal(Signal::TERM);
        process.wait().expect(143);
        if way == PULL {
            lab.all_gone(ARRIVED);
        }
    }
}

#[test]
fn other_file_systems_are_not_watched_on_request() {
    for way in [WITHIN, PULL] {
        let lab = lab();
        let (from, to) = (lab.join("from"), lab.join("to"));
        let Some(_small) = Small::mount(&from.join("small"), "4m") else {
            assert!(!rustix::process::geteuid().is_root(), "root may mount");
            return not_run("a small file system cannot be mounted here");
        };
        let mut process = start_with(&["--one-file-system"], &lab, &to, way);
        until("the first copy", &mut process, || holds(&to.join("first"), "one"));
        process.line_with("waiting for changes");
        let before = waits(&process);
        fs::write(from.join("small/file"), "on another file system").expect("a file");
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(waits(&process), before, "{way:?}: {}", process.stderr());
        fs::write(from.join("first"), "two").expect("a file");
        until("a change beside it", &mut process, || holds(&to.join("first"), "two"));
        assert!(!to.join("small/file").exists(), "{way:?}");
        process.signal(Signal::TERM);
        process.wait().expect(143);
    }
}

/// A copy may write where it reads: the file that its output goes to, and the cache of digests.
#[test]
fn what_a_copy_writes_itself_does_not_start_the_next_one() {
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    fs::create_dir(from.join("logs")).expect("a directory");
    let log = fs::File::create(from.join("logs/log")).expect("a file");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "-c", "--digest-cache", "--watch", "-v", "from/", "to"]);
    command.env("XDG_CACHE_HOME", from.join("cache")).stdin(Stdio::null()).stdout(log);
    let mut process = Process::spawn(&mut command);
    process.line_with("waiting for changes");
    // The directory of the cache is new, and is copied once.
    until("the cache", &mut process, || to.join("cache/rdma-pipe").exists());
    await_waiting(&process, 1);
    let before = waits(&process);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(waits(&process), before, "{}", process.stderr());
    assert!(from.join("cache/rdma-pipe/digests").exists(), "it is written to");
    assert!(!to.join("cache/rdma-pipe/digests").exists(), "it is not copied");
    fs::write(from.join("first"), "other").expect("a file");
    until("a change", &mut process, || holds(&to.join("first"), "other"));
    until("the names of what was copied", &mut process, || {
        fs::metadata(to.join("logs/log")).is_ok_and(|log| log.len() > 0)
    });
}

#[test]
fn a_digest_cache_that_is_named_does_not_start_the_next_copy() {
    let lab = lab();
    let cache = lab.join("from/digests");
    let option = format!("--digest-cache={}", cache.display());
    let process = start_with(&["-c", &option], &lab, &lab.join("to"), WITHIN);
    process.line_with("waiting for changes");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(waits(&process), 1, "{}", process.stderr());
    assert!(cache.exists(), "it is written to");
}

#[test]
fn what_is_excluded_is_not_watched() {
    const EXCLUDED: usize = 100;
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    for number in 0..EXCLUDED {
        fs::create_dir_all(from.join("modules").join(number.to_string())).expect("directories");
    }
    let mut process = start_with(&["--exclude", "modules/"], &lab, &to, WITHIN);
    process.line_with("waiting for changes");
    let count = watched(&process);
    assert!(count < EXCLUDED, "{count} directories");
    fs::rename(from.join("modules"), from.join("mine")).expect("renamed");
    until("a name that is not excluded", &mut process, || to.join("mine/7").exists());
    fs::write(from.join("mine/7/later"), "later").expect("a file");
    until("a change there", &mut process, || holds(&to.join("mine/7/later"), "later"));
}

/// And not the directory where its path begins, which may be `/`.
#[test]
fn with_relative_paths_only_what_is_named_is_watched() {
    const BESIDE: usize = 100;
    for way in [WITHIN, PULL] {
        let lab = lab();
        let to = lab.join("to");
        for number in 0..BESIDE {
            fs::create_dir_all(lab.join("beside").join(number.to_string())).expect("directories");
        }
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--sync", "-R", "--watch", "-v"]);
        let lacks_one = way == PULL;
        match lacks_one {
            true => command.args(["./from", "./later"].map(|name| lab.there("source", name))),
            false => command.arg("from"),
        };
        let mut process = Process::spawn(command.arg("to").stdin(Stdio::null()).stdout(Stdio::null()));
        process.line_with("waiting for changes");
        assert!(holds(&to.join("from/first"), "one"), "{way:?}: {}", process.stderr());
        if !lacks_one {
            let count = watched(&process);
            assert!(count < BESIDE, "{count} directories");
        }
        fs::write(lab.join("from/first"), "two").expect("a file");
        until("a change", &mut process, || holds(&to.join("from/first"), "two"));
        if lacks_one {
            // All of the directory that it is missing in is watched.
            fs::create_dir(lab.join("later")).expect("a directory");
            fs::write(lab.join("later/file"), "new").expect("a file");
            until("a path that has come", &mut process, || holds(&to.join("later/file"), "new"));
            fs::write(lab.join("later/file"), "other").expect("a file");
            until("a change there", &mut process, || holds(&to.join("later/file"), "other"));
        }
        process.signal(Signal::TERM);
        process.wait().expect(143);
    }
}

/// Otherwise it would do so with each change of another.
#[test]
fn an_entry_that_always_fails_is_no_reason_to_compare_everything() {
    let lab = lab();
    let (from, to) = (lab.join("from"), lab.join("to"));
    fs::create_dir(from.join("a")).expect("a directory");
    // A mark is never copied.
    fs::write(from.join(name_beside("first", "rd-half")), "").expect("a mark");
    let mut process = start(&lab, &to, WITHIN);
    process.line_with("waiting for changes");
    assert!(process.stderr().contains("was not copied in full"), "{}", process.stderr());
    fs::write(to.join("a/only there"), "left until all is looked at").expect("a file");
    let before = waits(&process);
    fs::write(from.join("first"), "two").expect("a file");
    until("a change", &mut process, || holds(&to.join("first"), "two"));
    await_waiting(&process, before);
    assert!(to.join("a/only there").exists());
}

#[test]
fn a_failure_is_not_repeated_with_every_copy() {
    let lab = lab();
    fs::write(lab.join("from").join(name_beside("first", "rd-half")), "").expect("a mark");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["-r", "--sync", "--watch", "from/", "to"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::spawn(&mut command);
    for text in ["one", "two", "three"] {
        fs::write(lab.join("from/first"), text).expect("a file");
        until(text, &mut process, || holds(&lab.join("to/first"), text));
    }
    let said = process.stderr();
    for part in ["rd-half", "was not copied in full"] {
        assert_eq!(said.matches(part).count(), 1, "{said}");
    }
}

/// Each directory that is read would be an event.
#[test]
fn a_comparison_of_more_directories_than_the_queue_has_room_for_does_not_start_the_next_one() {
    let lab = lab();
    let room = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
    let directories = room.trim().parse::<usize>().expect("a number").min(20_000) + 1000;
    for number in 0..directories {
        fs::create_dir(lab.join("from").join(number.to_string())).expect("a directory");
    }
    let to = lab.join("to");
    let mut process = start(&lab, &to, WITHIN);
    process.line_with("waiting for changes");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(waits(&process), 1, "{}", process.stderr());
    fs::write(lab.join("from/7/new"), "new").expect("a file");
    until("a change", &mut process, || holds(&to.join("7/new"), "new"));
}

/// As in a directory, where the others are copied meanwhile.
#[test]
fn a_single_file_that_cannot_be_read_is_tried_again_with_its_next_change() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to become another user");
    }
    let lab = lab();
    let (from, to) = (lab.join("from/first"), lab.join("to"));
    Command::new("chown").args(["-R", &NOBODY.to_string()]).arg(lab.join("from")).status().expect("coreutils");
    set_mode(lab.0.path(), 0o777);
    let mut command = rdcp();
    command.args(["--sync", "--watch", "-v"]).args([&from, &to]);
    let mut command = in_shell(&as_user(NOBODY, lab.0.path()), &command);
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    process.line_with("waiting for changes");
    set_mode(&from, 0o0);
    fs::write(&from, "two").expect("root");
    process.line_with("errno 13");
    set_mode(&from, 0o644);
    until("the file", &mut process, || holds(&to, "two"));
}
