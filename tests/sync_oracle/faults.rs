//! Failures during synchronization, and what must be kept in spite of them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};

use crate::copies::{Way, limited};
use crate::lines::by_rdcp;
use crate::modes::BASE;
use crate::rig::lab::{Lab, marked};
use crate::rig::{AGENT, Ended, Process, Random, noise, not_run, rdcp};
use crate::snapshot::{Finding, differences, snapshot};
use crate::tree::USER;

/// Hosts of source and destination.
pub const WAYS: [(&str, &str); 3] = [("", ""), ("", "h1:"), ("h1:", "")];

/// Number of runs in `make test`, and in the long run.
const KILLS: [u64; 2] = [12, 120];

/// Returns `rdcp --sync -r` of a laboratory's `src/` onto its `dst`.
pub fn command(lab: &Lab, (from, to): (&str, &str), options: &[&str]) -> Command {
    let at = |host: &str, name: &str| {
        let mut text = OsString::from(host);
        text.push(lab.join(name));
        text
    };
    let mut source = at(from, "src");
    source.push("/");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--sync", "-r", "-q", "--encrypt", "never"]).args(options).args([source, at(to, "dst")]);
    command
}

fn run(lab: &Lab, way: (&str, &str), options: &[&str], is_users: bool) -> Ended {
    limited(&command(lab, way, options), lab.0.path(), is_users, 0o022, Stdio::null())
}

fn plant(lab: &Lab, files: &[&str]) {
    for file in files {
        let path = lab.join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(path, file.as_bytes()).expect("room");
    }
}

#[track_caller]
fn are_there(lab: &Lab, files: &[&str]) {
    for file in files {
        assert!(fs::symlink_metadata(lab.join(file)).is_ok(), "{file} has gone");
    }
}

/// A directory whose source could not be listed loses no entries; other directories do.
#[test]
fn nothing_is_deleted_where_the_source_cannot_be_read() {
    for way in WAYS {
        let lab = Lab::for_users();
        plant(&lab, &["src/closed/file", "src/open/file", "dst/closed/file", "dst/closed/extra", "dst/open/extra"]);
        // An ordinary user makes the copy, and already owns both.
        if rustix::process::geteuid().is_root() {
            let mut chown = Command::new("chown");
            chown.arg("-R").arg(USER.to_string()).args(["src", "dst"].map(|it| lab.join(it)));
            assert!(chown.status().expect("chown").success());
        }
        fs::set_permissions(lab.join("src/closed"), fs::Permissions::from_mode(0o0)).expect("ours");
        let ended = run(&lab, way, &["--delete"], true);
        ended.expect(8);
        assert!(ended.stderr.contains("src/closed"), "{}", ended.stderr);
        for closed in ["src/closed", "dst/closed"] {
            let _ = fs::set_permissions(lab.join(closed), fs::Permissions::from_mode(0o755));
        }
        are_there(&lab, &["dst/closed/file", "dst/closed/extra", "dst/open/file"]);
        assert!(!lab.join("dst/open/extra").exists(), "{way:?}: what could be read whole is done");
    }
}

/// A missing source deletes nothing. Neither does an empty source, unless that is asked for.
#[test]
fn a_missing_or_empty_source_deletes_nothing() {
    for way in WAYS {
        let lab = Lab::new();
        plant(&lab, &["dst/a", "dst/d/b"]);
        run(&lab, way, &["--delete"], false).expect(5);
        are_there(&lab, &["dst/a", "dst/d/b"]);
        fs::create_dir(lab.join("src")).expect("a directory");
        let ended = run(&lab, way, &["--delete"], false);
        assert!(ended.code != 0 && ended.stderr.contains("--force-empty"), "{way:?}: {ended:?}");
        assert!(!ended.stderr.contains("not copied in full"), "{way:?}: {ended:?}");
        assert!(!ended.stderr.contains("leave out"), "{way:?}: {ended:?}");
        plant(&lab, &["src/excluded"]);
        let ended = run(&lab, way, &["--delete", "--exclude=excluded"], false);
        assert!(ended.code != 0 && ended.stderr.contains("leave out all of it"), "{way:?}: {ended:?}");
        assert!(!ended.stderr.contains("not copied in full"), "{way:?}: {ended:?}");
        are_there(&lab, &["dst/a", "dst/d/b"]);
        fs::remove_file(lab.join("src/excluded")).expect("ours");
        run(&lab, way, &["--delete", "--force-empty"], false).expect(0);
        assert_eq!(fs::read_dir(lab.join("dst")).expect("it stays").count(), 0);
    }
}

/// Neither does an empty one of several sources, be they listed or merged: its disk may not be mounted.
#[test]
fn an_empty_source_among_others_deletes_nothing() {
    let cases: [(&[&str], &[&str], &str); 7] = [
        (&["-R"], &["src/./disk"], "dst/"),
        (&["-R"], &["src/./disk/"], "dst/"),
        (&["-R"], &["src/./disk", "src/./other"], "dst/"),
        (&["-R"], &["src/./", "src/./disk"], "dst/"),
        (&["--files-from=list"], &["src/"], "dst/"),
        (&[], &["src/disk/", "src/other/"], "dst/disk/"),
        (&[], &["src/disk", "more/disk"], "dst/"),
    ];
    for ((options, sources, to), way) in
        cases.iter().flat_map(|case| [Way::Within, Way::Push, Way::Pull].map(|way| (case, way)))
    {
        for deleting in ["--delete", "--delete-after"] {
            let lab = Lab::new();
            plant(&lab, &["src/other/f", "more/disk/f", "dst/disk/1", "dst/disk/d/2"]);
            fs::create_dir(lab.join("src/disk")).expect("a directory");
            fs::write(lab.join("list"), "disk\nother/f\n").expect("a file");
            let sources: Vec<String> = sources.iter().map(|&source| source.to_owned()).collect();
            let run = |more: &[&str]| by_rdcp(&lab, way, &[&[deleting], *options, more].concat(), &sources, to);
            for more in [&["-n"][..], &[]] {
                let ended = run(more);
                let said = ["was not emptied: ", "is empty (not mounted?)"].map(|words| ended.stderr.contains(words));
                assert!(ended.code == 8 && said == [true; 2], "{options:?} {sources:?} {way:?}: {ended:?}");
                assert!(!ended.stderr.contains("not copied in full"), "{options:?} {sources:?} {way:?}: {ended:?}");
                are_there(&lab, &["dst/disk/1", "dst/disk/d/2"]);
            }
            run(&["--force-empty"]).expect(0);
            let is_gone = ["1", "d"].map(|name| !lab.join("dst/disk").join(name).exists());
            assert_eq!(is_gone, [true; 2], "{options:?} {sources:?} {way:?}");
        }
    }
}

/// Neither does what takes the place of a directory, which may have come from the empty one.
#[test]
fn no_directory_gives_way_if_it_may_have_come_from_an_empty_source() {
    for way in [Way::Within, Way::Push, Way::Pull] {
        let lab = Lab::new();
        plant(&lab, &["src/a/d", "src/a/none", "dst/d/precious", "dst/link/precious"]);
        symlink("d", lab.join("src/a/link")).expect("a link");
        for name in ["src/b", "dst/none"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        let sources = ["src/a/", "src/b/"].map(str::to_owned);
        let run = |more: &[&str]| by_rdcp(&lab, way, &[&["--delete"], more].concat(), &sources, "dst/");
        for more in [&["-n"][..], &[]] {
            let ended = run(more);
            let said = ["is empty (not mounted?)", "--force-empty"].map(|words| ended.stderr.contains(words));
            assert!(ended.code == 8 && said == [true; 2], "{way:?}: {ended:?}");
            are_there(&lab, &["dst/d/precious", "dst/link/precious"]);
        }
        assert!(lab.join("dst/none").is_file(), "{way:?}: nothing is lost by an empty directory");
        run(&["--force-empty"]).expect(0);
        assert!(lab.join("dst/d").is_file() && lab.join("dst/link").is_symlink(), "{way:?}");
    }
}

/// What is on another file system is passed over. What DST has there stays, and nothing beside it.
#[test]
fn a_mount_point_keeps_nothing_beside_it() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount a small file system");
    }
    for (way, more) in WAYS.iter().flat_map(|&way| [&[][..], &["-m"]].map(|more| (way, more))) {
        let lab = Lab::new();
        plant(&lab, &["src/f", "dst/m/keep", "dst/z"]);
        let _small = Small::mount(&lab.join("src/m"), "1m");
        plant(&lab, &["src/m/x"]);
        run(&lab, way, &[&["-x", "--delete"], more].concat(), false).expect(0);
        are_there(&lab, &["dst/f", "dst/m/keep"]);
        assert!(!lab.join("dst/z").exists() && !lab.join("dst/m/x").exists(), "{way:?} {more:?}");
    }
}

/// Nor is anything deleted on another file system at DST, which is no failure, as with rsync. Without `-x` it is one.
#[test]
fn a_file_system_at_the_destination_is_not_deleted() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount a small file system");
    }
    for (way, code) in WAYS.iter().flat_map(|&way| [(way, 0), (way, 8)]) {
        let lab = Lab::new();
        plant(&lab, &["src/f", "dst/d/z"]);
        let _small = ["dst/m", "dst/d/m"].map(|at| Small::mount(&lab.join(at), "1m"));
        plant(&lab, &["dst/m/keep", "dst/d/m/keep"]);
        run(&lab, way, if code == 0 { &["-x", "--delete"] } else { &["--delete"] }, false).expect(code);
        are_there(&lab, &["dst/f", "dst/m/keep", "dst/d/m/keep"]);
        assert!(!lab.join("dst/d/z").exists(), "{way:?}");
    }
}

/// At most this many entries are deleted. The rest stay, which is reported.
#[test]
fn no_more_is_deleted_than_is_allowed() {
    for way in WAYS {
        let lab = Lab::new();
        plant(&lab, &["src/kept", "dst/x1", "dst/x2", "dst/x3", "dst/x4"]);
        let ended = run(&lab, way, &["--delete", "--max-delete=2"], false);
        assert!(ended.code != 0, "{way:?}: it is not what was asked for: {}", ended.stderr);
        let left = fs::read_dir(lab.join("dst")).expect("it").count();
        assert_eq!(left, 3, "{way:?}: the new file and two of four");
    }
}

/// With `--existing`, a file that exists at the destination only under its second name is updated there,
/// wherever the first name would be.
#[test]
fn a_second_name_alone_is_brought_up_to_date() {
    for way in WAYS {
        let lab = Lab::new();
        plant(&lab, &["src/gone/first", "dst/second"]);
        for name in ["second", "third"] {
            fs::hard_link(lab.join("src/gone/first"), lab.join("src").join(name)).expect("linked");
        }
        run(&lab, way, &["--existing"], false).expect(0);
        assert_eq!(fs::read(lab.join("dst/second")).expect("it"), b"src/gone/first", "{way:?}");
        assert_eq!(fs::read_dir(lab.join("dst")).expect("it").count(), 1, "{way:?}");
    }
}

/// Mounts a small file system at `dst`, and unmounts it when dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: &Path, size: &str) -> Self {
        fs::create_dir(at).expect("a directory");
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at).status();
        assert!(status.expect("mount").success(), "root may mount");
        Self(at.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Nothing is deleted where an entry could not be written. The next run does the rest.
#[test]
fn a_full_disk_deletes_nothing_where_it_failed() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount a small file system");
    }
    for way in WAYS {
        let lab = Lab::new();
        let _small = Small::mount(&lab.join("dst"), "4m");
        plant(&lab, &["src/m/large", "src/a/new", "dst/m/extra", "dst/m/large", "dst/a/extra"]);
        fs::write(lab.join("src/m/large"), noise(6 << 20)).expect("room");
        let ended = run(&lab, way, &["--delete"], false);
        assert!([6, 8].contains(&ended.code), "{way:?}: {ended:?}");
        are_there(&lab, &["dst/m/extra", "dst/m/large"]);
        // Which of the two met the full disk depends on which was faster.
        let [new, extra] = ["dst/a/new", "dst/a/extra"].map(|path| lab.join(path).exists());
        assert!(new || extra, "{way:?}: deleted where something failed as well: {ended:?}");
        assert_eq!(fs::read(lab.join("dst/m/large")).expect("the old one"), b"dst/m/large", "old or new, whole");
        fs::write(lab.join("src/m/large"), noise(1 << 20)).expect("room");
        run(&lab, way, &["--delete"], false).expect(0);
        assert!(!lab.join("dst/m/extra").exists() && !lab.join("dst/a/extra").exists());
    }
}

/// The fatal error occurs while the sender waits for an answer, and not for room to send.
#[test]
fn a_disk_that_can_hold_no_more_files_ends_the_copy() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to mount a small file system");
    }
    for way in WAYS {
        let lab = Lab::new();
        let _small = Small::mount(&lab.join("dst"), "4m,nr_inodes=4");
        plant(&lab, &["src/compared", "dst/compared"]);
        for number in 0..20 {
            fs::create_dir(lab.join("src").join(format!("d{number}"))).expect("a directory");
        }
        let ended = run(&lab, way, &[], false);
        assert_eq!(ended.code, 6, "{way:?}: {ended:?}");
    }
}

/// Tells a thread that the run is over, even if the run ends by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Between being listed and deleted, directories become links that lead outside, and directories again.
#[test]
fn deletion_follows_no_link() {
    const DIRECTORIES: usize = 30;
    const RUNS: usize = 10;
    let lab = Lab::new();
    plant(&lab, &["outside/precious", "outside/deep/precious", "src/kept"]);
    fs::create_dir_all(lab.join("links")).expect("a directory");
    let before = snapshot(&lab.join("outside"));
    let names: Vec<String> = (0..DIRECTORIES).map(|number| format!("d{number:02}")).collect();
    for (number, way) in (0..RUNS).zip(WAYS.iter().cycle()) {
        let _ = fs::remove_dir_all(lab.join("dst"));
        let _ = fs::remove_dir_all(lab.join("links"));
        fs::create_dir(lab.join("links")).expect("a directory");
        for name in &names {
            // Every other directory stays at the source. The rest are to be deleted with everything in them.
            if number % 2 == 0 {
                plant(&lab, &[&format!("src/{name}/kept")]);
            } else {
                let _ = fs::remove_dir_all(lab.join("src").join(name));
            }
            plant(&lab, &[&format!("dst/{name}/precious"), &format!("dst/{name}/deep/precious")]);
            symlink(lab.join("outside"), lab.join("links").join(name)).expect("a link");
        }
        let (is_over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for name in &names {
                        let (here, there) = (lab.join("dst").join(name), lab.join("links").join(name));
                        let done = renameat_with(CWD, here, CWD, there, RenameFlags::EXCHANGE);
                        exchanged.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                    }
                }
            });
            let before = exchanged.load(Ordering::Relaxed);
            let ended = run(&lab, *way, &["--delete"], false);
            assert!(exchanged.load(Ordering::Relaxed) > before, "{way:?}: nothing has changed meanwhile");
            // rdcp reports what it could not do. It must not touch anything outside.
            assert!([0, 6, 8].contains(&ended.code), "{ended:?}");
        });
        let found = differences(&before, &snapshot(&lab.join("outside")), &[]);
        let found: Vec<String> = found.iter().map(Finding::shown).collect();
        assert!(found.is_empty(), "{way:?}: outside of the destination:\n{}", found.join("\n"));
    }
}

/// Starts a copy, and kills either end within this many milliseconds. Returns whether the copy
/// was still running by then.
#[must_use]
pub fn kill_within(lab: &Lab, command: &mut Command, random: &mut Random, milliseconds: u64) -> bool {
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let of_agent = random.below(2) == 0;
    std::thread::sleep(Duration::from_millis(random.below(milliseconds)));
    // Finding the agent takes a while, in which a small copy ends.
    let agent = || marked(lab.0.path()).iter().find(|it| it.name == "rdma-pipe-agent").map(|agent| agent.pid);
    let victim = of_agent.then(agent).flatten().unwrap_or(process.pid());
    let was_running = process.is_running();
    let _ = kill_process(Pid::from_raw(victim as i32).expect("not 0"), Signal::KILL);
    process.wait();
    crate::rig::lab::none_marked(lab.0.path(), Duration::from_secs(60));
    was_running
}

/// Either end is killed at any moment. The next run ends with the same result as rsync without an interruption.
#[test]
fn killed_at_random_and_run_again() {
    let count = KILLS[usize::from(crate::rig::seeds::is_long())];
    let mut random = Random::printed("kills");
    for number in 0..count {
        let lab = Lab::new();
        for file in 0..200_u64 {
            let directory = file % 8;
            let name = format!("src/d{directory}/f{file}");
            plant(&lab, &[&name]);
            fs::write(lab.join(&name), noise((random.below(60_000)) as usize)).expect("room");
            if file % 3 == 0 {
                plant(&lab, &[&format!("dst/d{directory}/f{file}")]);
            }
            if file % 5 == 0 {
                plant(&lab, &[&format!("dst/d{directory}/extra{file}"), &format!("dst/gone{directory}/x{file}")]);
            }
        }
        let duplicate = |from: &str, to: &str| {
            let copied = Command::new("cp").arg("-a").arg(lab.join(from)).arg(lab.join(to)).status();
            assert!(copied.expect("cp").success());
        };
        duplicate("dst", "reference");
        duplicate("dst", "before");
        let mut rsync = Command::new("rsync");
        rsync.args(BASE).arg("--delete").arg(lab.join("src/.")).arg(lab.join("reference"));
        assert!(rsync.status().expect("rsync").success());
        let way = WAYS[number as usize % WAYS.len()];
        let mut milliseconds = if way == ("", "") { 40 } else { 150 };
        // If the copy had already ended, it starts anew and is killed sooner.
        while !kill_within(&lab, &mut command(&lab, way, &["--delete"]), &mut random, milliseconds) {
            assert!(milliseconds > 1, "run {number}, {way:?}: it ends at once");
            milliseconds /= 2;
            fs::remove_dir_all(lab.join("dst")).expect("ours");
            duplicate("before", "dst");
        }
        run(&lab, way, &["--delete"], false).expect(0);
        let found = differences(&snapshot(&lab.join("reference")), &snapshot(&lab.join("dst")), &[]);
        let found: Vec<String> = found.iter().map(Finding::shown).collect();
        assert!(found.is_empty(), "run {number}, {way:?}:\n{}", found.join("\n"));
    }
}
