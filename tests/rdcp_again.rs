//! Existing destinations: a plain copy over an earlier one, `--stats`, and `--digest-cache`, by command line and
//! between hosts, with a launcher that runs the agent on this host.

mod rig;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use rig::lab::*;
use rig::*;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// To another host, from another host, between two.
const WAYS: [(&str, &str); 3] = [("", "h1:"), ("h1:", ""), ("h1:", "h2:")];

fn noise(path: &Path, bytes: usize) {
    let mut data = vec![0; bytes];
    blake3::Hasher::new().update(path.as_os_str().as_encoded_bytes()).finalize_xof().fill(&mut data);
    fs::write(path, data).expect("a file");
}

/// Runs a copy and returns what it prints.
#[track_caller]
fn run(lab: &Lab, options: &[&str], (from, to): (&str, &str), destination: &str) -> String {
    let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.env("XDG_CACHE_HOME", lab.join("caches"));
    command.args(options).args([path(from, "source/"), path(to, destination)]);
    let output = lab.join("printed");
    command.stdin(Stdio::null()).stdout(File::create(&output).expect("a file")).stderr(Stdio::piped());
    Process::spawn(&mut command).wait().expect(0);
    fs::read_to_string(output).expect("text")
}

/// Runs rdcp and returns how it ends.
fn ended(lab: &Lab, arguments: &[&str]) -> Ended {
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

/// Returns a number of `--stats`.
#[track_caller]
fn number(stats: &str, name: &str) -> u64 {
    let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("no {name} in {stats}"));
    line.split(' ').next().unwrap_or_default().replace(',', "").parse().expect("a number")
}

fn plant(lab: &Lab) {
    fs::create_dir_all(lab.join("source/below")).expect("directories");
    for (name, bytes) in [("small", 3000), ("block", 4096), ("below/record", 100_000), ("below/large", 3 << 20)] {
        noise(&lab.join("source").join(name), bytes);
    }
}

#[test]
fn a_plain_copy_sends_only_what_is_not_there() {
    for way in WAYS {
        let lab = Lab::new();
        plant(&lab);
        let copy = |options: &[&str]| run(&lab, &[&["-r", "-T", "--stats"], options].concat(), way, "copy");
        let first = copy(&[]);
        assert_eq!(number(&first, "Literal data"), 3000 + 4096 + 100_000 + (3 << 20), "{way:?}");
        // Answers would take a byte for each new directory, and one for each verdict. Here nothing is asked at all.
        let answers = if way.0.is_empty() { "Total bytes received" } else { "Total bytes sent" };
        if way.0.is_empty() != way.1.is_empty() {
            assert_eq!(number(&first, answers), 0, "{way:?}");
        }
        let again = copy(&[]);
        assert_eq!(number(&again, "Literal data"), 3000, "{way:?}");
        assert_eq!(number(&again, "Number of regular files transferred"), 1, "{way:?}");
        // The same time and size, but different contents.
        for side in ["source", "copy"] {
            let file = File::options().write(true).open(lab.join(side).join("below/record")).expect("ours");
            if side == "source" {
                file.write_all_at(b"other", 5000).expect("written");
            }
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("ours");
        }
        assert_eq!(number(&copy(&[]), "Literal data"), 3000 + 100_000, "{way:?}");
        holds(&lab.join("copy/below/record"), &fs::read(lab.join("source/below/record")).expect("it"));
        // Files to be read back from the disk, or to get the time of the copy, are sent.
        for option in ["--verify=disk", "--fsync", "--no-times", "--in-place"] {
            let all = 3000 + 4096 + 100_000 + (3 << 20);
            assert_eq!(number(&copy(&[option]), "Literal data"), all, "{way:?} {option}");
        }
    }
}

/// Nothing of a stream is kept, so a resume is not promised on behalf of a host that does not answer.
#[test]
fn what_a_silent_host_may_have_kept_depends_on_the_source() {
    for (source, advice) in [("/dev/zero", "to start over"), ("file", "to resume from what they may have kept")] {
        let lab = Lab::new();
        noise(&lab.join("file"), 40 << 20);
        let to = format!("h1:{}", lab.join("copy").display());
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["--bwlimit=1M", source, &to]);
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let until = Instant::now() + PATIENCE;
        while partials(lab.0.path()).is_empty() {
            assert!(Instant::now() < until && process.is_running(), "{source}: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        let agent = Pid::from_raw(lab.launches().last().expect("an agent").0 as i32).expect("not 0");
        kill_process(agent, Signal::STOP).expect("an agent");
        process.signal(Signal::INT);
        let ended = process.wait();
        // Its launcher may have ended it.
        let _ = kill_process(agent, Signal::KILL);
        let said = format!("rdcp: interrupted; not all hosts answered; run again {advice}\n");
        assert_eq!((ended.code, &*ended.stderr), (130, &*said), "{source}");
    }
}

/// The path is named as it would be typed.
#[test]
fn what_an_interrupted_copy_has_left_is_passed_over_and_named() {
    for way in [("", ""), WAYS[0], WAYS[1], WAYS[2]] {
        let lab = Lab::new();
        fs::create_dir(lab.join("source")).expect("a directory");
        let left = format!("source/{}", name_beside("file", "rd-part"));
        noise(&lab.join(&left), 1);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let ended = ended(&lab, &["-r", &path(way.0, "source"), &path(way.1, "copy")]);
        let said = format!("rdcp: skipped {}, left by an interrupted copy\n", path(way.0, &left));
        assert_eq!((ended.code, ended.stderr), (0, said), "{way:?}");
    }
}

/// Whether a copy is making this partial tree, which it keeps locked.
fn is_held(tree: &Path) -> bool {
    let tree = File::open(tree).expect("it is there");
    flock(&tree, FlockOperation::NonBlockingLockShared) == Err(Errno::AGAIN)
}

/// A new tree is made under a partial name. Files that were complete in it when the copy was interrupted are not sent
/// again, not even by a plain copy. Entries that are no longer in the source, or have another kind there, are removed.
/// A line says how much is kept.
#[test]
fn a_tree_that_was_cut_is_gone_on_with() {
    for (way, options) in [(WAYS[0], &["-r"][..]), (WAYS[1], &["-r"]), (WAYS[2], &["-r"]), (WAYS[0], &["-r", "--sync"])]
    {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("source/sub")).expect("directories");
        let name = |number: usize| format!("{}{number:03}", ["", "sub/f"][number % 2]);
        for number in 0..200 {
            noise(&lab.join("source").join(name(number)), 100_000);
        }
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let start = |limit: &str| {
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            command.args(options).args(["-T", limit]).args([path(way.0, "source/"), path(way.1, "copy")]);
            Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
        };
        let mut process = start("--bwlimit=8M");
        let partial = || {
            let names = fs::read_dir(lab.0.path()).expect("it").flatten().map(|entry| entry.path());
            // Its lock is a file of such a name.
            names.into_iter().find(|path| path.is_dir() && path.extension().is_some_and(|it| it == "rd-part"))
        };
        let has_come =
            |count: usize| partial().and_then(|at| fs::read_dir(at).ok()).is_some_and(|at| at.count() > count);
        let until = Instant::now() + PATIENCE;
        while !has_come(40) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        process.signal(Signal::INT);
        let ended = process.wait();
        ended.expect(130);
        lab.all_gone(PATIENCE);
        let partial = partial().expect("it is kept");
        let named = partial.file_name().expect("a name").to_string_lossy().into_owned();
        let kept = ended.stderr.lines().find(|line| line.contains(&named)).expect("it is said").to_owned();
        assert!(kept.contains("MiB kept in") && kept.contains("run again to resume"), "{kept}");
        // Interrupted again, before it has got as far: what the first run left is not called useless.
        let mut process = start("--bwlimit=1M");
        let until = Instant::now() + PATIENCE;
        while !is_held(&partial) {
            assert!(Instant::now() < until && process.is_running(), "{way:?}: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        process.signal(Signal::INT);
        let again = process.wait();
        again.expect(130);
        let is_told = again.stderr.contains("kept in") && again.stderr.contains("run again to resume");
        assert!(is_told && !again.stderr.contains("start over"), "{way:?}: {}", again.stderr);
        // A file becomes a directory and the other way round, one is removed, and one changes.
        let there: Vec<String> = (0..200).map(name).filter(|name| partial.join(name).is_file()).collect();
        let [to_directory, gone, changed] = [0, 1, 2].map(|at| lab.join("source").join(&there[at]));
        let time = fs::metadata(&changed).and_then(|it| it.modified()).expect("there");
        noise(&lab.join("source/new"), 100_000);
        fs::rename(lab.join("source/new"), &changed).expect("ours");
        if !options.contains(&"--sync") {
            File::options().write(true).open(&changed).and_then(|it| it.set_modified(time)).expect("ours");
        }
        fs::remove_file(&gone).expect("ours");
        fs::remove_file(&to_directory).expect("ours");
        fs::create_dir(&to_directory).expect("a directory");
        noise(&to_directory.join("below"), 5000);
        let to_file = lab.join("source/sub");
        fs::create_dir(partial.join("sub2")).expect("a directory");
        fs::write(partial.join("sub2/stale"), "stale").expect("a file");
        noise(&to_file.with_file_name("sub2"), 5000);
        let stats = run(&lab, &[options, &["-T", "--stats"]].concat(), way, "copy");
        let literal = number(&stats, "Literal data");
        assert!(literal <= 20_000_000 - (there.len() as u64 - 4) * 100_000 + 10_000, "{way:?}: {literal} of {there:?}");
        let mut diff = std::process::Command::new("diff");
        let told = diff.arg("-r").args([lab.join("source"), lab.join("copy")]).output().expect("diff");
        assert!(told.status.success(), "{way:?}: {}", String::from_utf8_lossy(&told.stdout));
        assert!(!partial.exists());
    }
}

/// A file that is written in place is broken under its final name, and named.
#[test]
fn an_interrupted_copy_in_place_names_what_is_incomplete() {
    for (from, to) in [("", "h:"), ("h:", "")] {
        let lab = Lab::new();
        noise(&lab.join("source"), 6 << 20);
        let [source, new] =
            [(from, "source"), (to, "new")].map(|(host, name)| format!("{host}{}", lab.join(name).display()));
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["--in-place", "--bwlimit=2M", &source, &new]);
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let has_come = || fs::metadata(lab.join("new")).is_ok_and(|new| new.blocks() > 0);
        let until = Instant::now() + PATIENCE;
        while !has_come() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        process.signal(Signal::INT);
        let said = ["interrupted; ", "new is incomplete (written in place), run again"];
        process.wait().expect(130).one_line("rdcp", &said);
        ended(&lab, &["--in-place", &source, &new]).expect(0);
        assert!(fs::read(lab.join("new")).expect("it") == fs::read(lab.join("source")).expect("it"));
    }
}

#[test]
fn numbers_are_written_as_asked() {
    let lab = Lab::new();
    plant(&lab);
    let copy =
        |options: &[&str]| run(&lab, &[&["-r", "--sync", "-c", "--stats"], options].concat(), ("", "h:"), "copy");
    assert!(copy(&["-n"]).contains("\nTotal file size: 3,252,824 bytes\n"));
    let text = copy(&["--human-readable"]);
    assert!(
        text.contains("\nTotal file size: 3.25M bytes\n") && text.contains("\nLiteral data: 3.25M bytes\n"),
        "{text}"
    );
    let text = copy(&["--no-human-readable"]);
    assert!(text.contains("\nTotal file size: 3252824 bytes\n") && text.contains("  speedup is "), "{text}");
    assert_eq!(copy(&["-q"]), "");
    let within = run(&lab, &["-r", "--sync", "--stats"], ("", ""), "other");
    assert!(within.contains("\nTotal bytes sent: 0\n") && within.ends_with("\ntotal size is 3,252,824\n"), "{within}");
    // A program reads the report, so nothing else is printed.
    let report = copy(&["--json"]);
    assert!(report.lines().all(|line| line.starts_with('{')), "{report}");
}

/// Copies are right whatever happens to the cache. Tests beside the cache's source show that it is used at all.
#[test]
fn a_cache_does_no_harm() {
    for way in [("", ""), ("", "h:"), ("h:", "")] {
        let lab = Lab::new();
        plant(&lab);
        let manifest = lab.join("list").into_os_string().into_string().expect("text");
        let cache = lab.join("caches/rdma-pipe/digests");
        run(&lab, &["-r", "-T", "--manifest", &manifest], way, "copy");
        std::thread::sleep(Duration::from_millis(2100));
        let options = ["-r", "--sync", "-c", "--digest-cache", "--stats"];
        let before = fs::metadata(lab.join("copy/below/large")).expect("it");
        assert_eq!(number(&run(&lab, &options, way, "copy"), "Literal data"), 0, "{way:?}");
        let shown = fs::metadata(&cache).expect("it is made");
        assert_eq!(shown.mode() & 0o777, 0o600);
        // Agents are run only from directories that other users may not enter.
        assert_eq!(fs::metadata(lab.join("caches/rdma-pipe")).expect("made").mode() & 0o777, 0o700);
        let after = fs::metadata(lab.join("copy/below/large")).expect("it");
        assert_eq!((before.ctime(), before.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
        assert_eq!(number(&run(&lab, &options, way, "copy"), "Literal data"), 0, "{way:?}");
        // A damaged cache is ignored, and the copy is as usual.
        let file = File::options().write(true).open(&cache).expect("ours");
        let length = file.metadata().expect("it").len();
        let mut at = 4096;
        let bytes = fs::read(&cache).expect("it");
        while at < length {
            if bytes[at as usize..at as usize + 4096].iter().any(|&byte| byte != 0) {
                file.write_all_at(&vec![0x5a; 4096], at).expect("written");
            }
            at += 4096;
        }
        let changed = lab.join("copy/below/record");
        let stat = fs::metadata(&changed).expect("it");
        let other = File::options().write(true).open(&changed).expect("ours");
        other.write_all_at(b"rot", 70_000).expect("written");
        other.set_modified(stat.modified().expect("a time")).expect("ours");
        let checked = Process::spawn(
            rdcp()
                .args(["--check=cached", &manifest])
                .arg(lab.join("copy"))
                .env("XDG_CACHE_HOME", lab.join("caches"))
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        )
        .wait();
        checked.expect(7);
        assert_eq!(number(&run(&lab, &options, way, "copy"), "Literal data"), 100_000, "{way:?}");
        holds(&changed, &fs::read(lab.join("source/below/record")).expect("it"));
        // A cache that other users may write to is not used, which is reported. The copy goes on.
        fs::set_permissions(&cache, std::os::unix::fs::PermissionsExt::from_mode(0o622)).expect("ours");
        assert_eq!(number(&run(&lab, &options, way, "copy"), "Literal data"), 0, "{way:?}");
    }
}

/// A complete generation does not change any more, even when `latest` leads to a later one.
#[test]
fn an_older_generation_is_not_copied_into_again() {
    for way in [("", ""), WAYS[0], WAYS[1], WAYS[2]] {
        let lab = Lab::new();
        plant(&lab);
        for name in ["Mon", "Tue"] {
            run(&lab, &["--sync", "-r", "--snapshot", name], way, "generations");
        }
        noise(&lab.join("source/new"), 100);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        for (source, name) in [("source/", "Mon"), ("source", "Mon"), ("source/", "Tue")] {
            let (source, to) = (path(way.0, source), path(way.1, "generations"));
            let said = format!("cannot change {to}/{name}: it is ");
            ended(&lab, &["--sync", "-r", "--snapshot", name, &source, &to])
                .expect(1)
                .one_line("rdcp", &[&said, "complete", "choose another NAME"]);
        }
        assert!(!lab.join("generations/Mon/new").exists() && !lab.join("generations/Mon/source").exists());
        assert_eq!(fs::read_link(lab.join("generations/latest")).expect("a link"), Path::new("Tue"));
    }
}

/// A generation with failed entries has its name and can be used. The next run makes it equal to the current source, so
/// that it agrees with its manifest.
#[test]
fn a_generation_with_failed_entries_is_gone_on_with() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1], WAYS[2]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let manifest = path("", "manifest");
        let copy = || {
            let options = ["--sync", "-r", "--snapshot", "Mon", "--manifest", &manifest];
            let paths = [path(from, "source"), path(from, "late"), path(to, "generations")];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
        };
        copy().expect(8);
        assert!(lab.join("generations/Mon/source/small").exists() && !lab.join("generations/latest").exists());
        fs::remove_file(lab.join("source/small")).expect("it");
        fs::remove_dir_all(lab.join("source/below")).expect("it");
        noise(&lab.join("source/below"), 10);
        fs::create_dir(lab.join("late")).expect("a directory");
        copy().expect(0);
        assert!(!lab.join("generations/Mon/source/small").exists());
        assert_eq!(fs::read_link(lab.join("generations/latest")).expect("a link"), Path::new("Mon"));
        ended(&lab, &["--check", &manifest, &path(to, "generations/Mon")]).expect(0);
        copy().expect(1).one_line("rdcp", &["Mon", "complete"]);
    }
}

/// Even if entries fail every night, each generation is linked to the one before.
#[test]
fn a_generation_is_linked_to_one_with_failed_entries() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let copy = |name: &str| {
            let paths = [path(from, "source"), path(from, "late"), path(to, "generations")];
            let options = ["--sync", "-r", "--snapshot", name];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
        };
        let inode = |name: &str, file: &str| {
            fs::metadata(lab.join(&format!("generations/{name}/source/{file}"))).expect("a file").ino()
        };
        copy("Mon").expect(8);
        copy("Tue").expect(8);
        noise(&lab.join("source/new"), 100);
        copy("Wed").expect(8);
        fs::create_dir(lab.join("late")).expect("a directory");
        copy("Thu").expect(0);
        copy("Fri").expect(0);
        for file in ["small", "below/large"] {
            ["Tue", "Wed", "Thu", "Fri"]
                .iter()
                .for_each(|name| assert_eq!(inode(name, file), inode("Mon", file), "{name}"));
        }
        ["Thu", "Fri"].iter().for_each(|name| assert_eq!(inode(name, "new"), inode("Wed", "new"), "{name}"));
        assert_eq!(fs::read_link(lab.join("generations/latest")).expect("a link"), Path::new("Fri"));
    }
}

/// Its user has removed the generation to which `latest` leads, and makes it again. What fails is gone on with.
#[test]
fn a_generation_that_is_made_again_is_no_complete_one() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let copy = || {
            let paths = [path(from, "source"), path(from, "late"), path(to, "generations")];
            let options = ["--sync", "-r", "-q", "--snapshot", "Mon"];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
        };
        fs::create_dir(lab.join("late")).expect("a directory");
        copy().expect(0);
        fs::remove_dir_all(lab.join("generations/Mon")).expect("it");
        fs::remove_dir(lab.join("late")).expect("it");
        let told = copy();
        assert!(told.expect(8).stderr.contains("latest led to this generation"), "{}", told.stderr);
        assert!(lab.join("generations/Mon/source/small").exists() && !lab.join("generations/latest").exists());
        fs::create_dir(lab.join("late")).expect("a directory");
        copy().expect(0);
        assert_eq!(fs::read_link(lab.join("generations/latest")).expect("a link"), Path::new("Mon"));
    }
}

/// All of them are on a disk that is not mounted. The generation keeps what an interrupted run has brought.
#[test]
fn empty_sources_that_are_merged_do_not_empty_a_generation() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let copy = |option: &str| {
            let paths = [path(from, "source/"), path(from, "late/"), path(to, "generations")];
            let options = ["--sync", "-r", option, "--snapshot=Mon"];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
        };
        fs::create_dir_all(lab.join("generations/Mon")).expect("directories");
        noise(&lab.join("generations/Mon/small"), 3000);
        fs::write(lab.join("generations").join(name_beside("Mon", "rd-half")), "").expect("a mark");
        fs::rename(lab.join("source"), lab.join("unmounted")).expect("ours");
        for name in ["source", "late"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        copy("-v").expect(8);
        assert!(lab.join("generations/Mon/small").exists() && !lab.join("generations/latest").exists());
        copy("--force-empty").expect(0);
        assert_eq!(fs::read_dir(lab.join("generations/Mon")).expect("it").count(), 0);
    }
}

/// A generation that an interrupted run has left, into which a source and an empty one are copied.
fn merge_into_unfinished(lab: &Lab, (from, to): (&str, &str), option: &str) -> Ended {
    let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
    let paths = [path(from, "source/"), path(from, "late/"), path(to, "generations")];
    if !lab.join("late").exists() {
        fs::create_dir(lab.join("late")).expect("a directory");
        fs::write(lab.join("generations").join(name_beside("Mon", "rd-half")), "").expect("a mark");
    }
    let options = ["--sync", "-r", option, "--snapshot=Mon"];
    ended(lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
}

/// Neither does a file that would take the place of a directory, which may have come from the empty source.
#[test]
fn no_directory_of_a_generation_gives_way_if_it_may_have_come_from_an_empty_source() {
    for way in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        fs::create_dir_all(lab.join("generations/Mon/small")).expect("directories");
        noise(&lab.join("generations/Mon/small/precious"), 100);
        let ended = merge_into_unfinished(&lab, way, "-v");
        let said = ended.stderr.contains("one of the merged SRC is empty") && ended.stderr.contains("--force-empty");
        assert!(ended.code == 8 && said, "{way:?}: {ended:?}");
        assert!(lab.join("generations/Mon/small/precious").exists() && !lab.join("generations/latest").exists());
        merge_into_unfinished(&lab, way, "--force-empty").expect(0);
        holds(&lab.join("generations/Mon/small"), &fs::read(lab.join("source/small")).expect("it"));
    }
}

/// One of several sources may well be empty. What the others have left behind, and bring again, is not missing.
#[test]
fn a_leftover_that_is_taken_over_keeps_no_generation_from_being_finished() {
    for way in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        fs::create_dir_all(lab.join("generations/Mon/below")).expect("directories");
        let partial = lab.join("generations/Mon/below").join(name_beside("large", "rd-part"));
        fs::write(&partial, &fs::read(lab.join("source/below/large")).expect("it")[..1 << 20]).expect("a file");
        fs::set_permissions(&partial, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("ours");
        merge_into_unfinished(&lab, way, "-v").expect(0);
        assert!(!partial.exists() && lab.join("generations/Mon/below/large").exists(), "{way:?}");
        assert_eq!(fs::read_link(lab.join("generations/latest")).expect("a link"), Path::new("Mon"));
    }
}

/// The generation before has what came from a source that is empty now. What was empty before may stay so.
#[test]
fn latest_is_not_switched_to_what_lacks_one_of_several_merged_sources() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let copy = |name: &str, option: &str| {
            let paths = [path(from, "source/"), path(from, "late/"), path(to, "generations")];
            let options = ["--sync", "-r", option, "--snapshot", name];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat())
        };
        let latest = || fs::read_link(lab.join("generations/latest")).expect("a link").into_os_string();
        fs::create_dir(lab.join("late")).expect("a directory");
        copy("Sun", "-v").expect(0);
        copy("Mon", "-v").expect(0);
        fs::create_dir(lab.join("late/below")).expect("a directory");
        noise(&lab.join("late/below/extra"), 100);
        copy("Tue", "-v").expect(0);
        fs::rename(lab.join("late"), lab.join("unmounted")).expect("ours");
        fs::create_dir(lab.join("late")).expect("a directory");
        let ended = copy("Wed", "-v");
        let said = "latest/below was not emptied: one of the merged SRC is empty (not mounted?), and the generation";
        assert!(ended.code == 8 && ended.stderr.contains(said), "{from} {to}: {ended:?}");
        assert_eq!(latest(), "Tue");
        copy("Wed", "--force-empty").expect(0);
        assert_eq!(latest(), "Wed");
        fs::rename(lab.join("source"), lab.join("unmounted too")).expect("ours");
        fs::create_dir(lab.join("source")).expect("a directory");
        for option in ["-n", "-v"] {
            copy("Thu", option).expect(8);
            assert_eq!(latest(), "Wed");
        }
    }
}

/// Even if entries are not linked because of that, the copy itself has succeeded. It fills the disk all the same.
#[test]
fn a_quiet_copy_tells_that_it_links_nothing() {
    for way in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        plant(&lab);
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        let (source, copy) = (path(way.0, "source/"), path(way.1, "copy"));
        let said = ["none: No such file or directory (errno 2); nothing is linked to it"];
        ended(&lab, &["-q", "--sync", "-r", "--link-dest=../none", &source, &copy]).expect(0).one_line("rdcp", &said);
    }
}

/// Excluded entries are ignored, both among sources that share a name and where a link leads nowhere.
#[test]
fn what_is_left_out_is_in_nobodys_way() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        for name in ["one", "two/conf", "two/below/conf", "one/below", "dst"] {
            fs::create_dir_all(lab.join(name)).expect("directories");
        }
        for name in ["one/conf", "one/below/conf", "two/other"] {
            noise(&lab.join(name), 100);
        }
        for name in ["dst/conf", "dst/gone"] {
            noise(&lab.join(name), 50);
        }
        symlink("nowhere", lab.join("one/bad")).expect("a link");
        // What the link would lead to is unknown. In the other source the same name is a file.
        fs::create_dir(lab.join("one/t")).expect("a directory");
        fs::create_dir(lab.join("two/t")).expect("a directory");
        symlink("nowhere", lab.join("one/t/dangling")).expect("a link");
        noise(&lab.join("two/t/dangling"), 100);
        for (one, two) in [("one/", "two/"), ("two/", "one/")] {
            let options = ["--sync", "-r", "-L", "--delete", "--exclude=conf/", "--exclude=bad", "--exclude=dangling/"];
            let paths = [path(from, one), path(from, two), path(to, "dst")];
            ended(&lab, &[&options[..], &paths.each_ref().map(|path| &**path)].concat()).expect(0);
            for name in ["conf", "below/conf"] {
                let [copy, source] =
                    [format!("dst/{name}"), format!("one/{name}")].map(|name| fs::read(lab.join(&name)));
                assert_eq!(copy.expect("a file"), source.expect("a file"), "{one} {two} {name}");
            }
            assert!(lab.join("dst/other").exists() && !lab.join("dst/gone").exists());
            let dangling = ["dst", "two"].map(|top| fs::read(lab.join(top).join("t/dangling")).expect("a file"));
            assert_eq!(dangling[0], dangling[1], "{one} {two}");
        }
    }
}

/// Without DST there is nothing there to which a link could lead.
#[test]
fn a_rehearsal_without_dst_looks_for_nothing_elsewhere() {
    for (from, to) in [("", ""), WAYS[0], WAYS[1]] {
        let lab = Lab::new();
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        fs::create_dir(lab.join("source")).expect("a directory");
        symlink("/tmp", lab.join("source/tmp")).expect("a link");
        let arguments = ["--sync", "-r", "-n", "--itemize-changes", &path(from, "source/"), &path(to, "new")];
        ended(&lab, &arguments).expect(0);
    }
}

/// Both copies found no DST, and each was to become it. Their contents do not get mixed.
#[test]
fn of_two_copies_to_a_new_name_the_later_one_comes_into_nothing() {
    for to in ["", "h1:"] {
        let lab = Lab::new();
        for name in ["one", "two"] {
            fs::create_dir(lab.join(name)).expect("a directory");
            noise(&lab.join(name).join("same"), 4 << 20);
        }
        let path = |host: &str, name: &str| format!("{host}{}", lab.join(name).display());
        // Within a host the rate cannot be limited.
        let begin = |options: &[&str], from: &str| {
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            command.args(options).args(["-r", &path("", from), &path(to, "new")]);
            Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
        };
        if to.is_empty() {
            let both = ["one", "two"].map(|from| begin(&[], from)).map(|mut process| process.wait().code);
            let whole = ["one", "two"].map(|name| lab.join(name).join("same")).map(|file| fs::read(file).expect("it"));
            // If one copy ended before the other began, the other is copied into it.
            let copy = fs::read(lab.join("new/same")).expect("a copy");
            let winner = whole.iter().position(|source| *source == copy).expect("one of them");
            assert!(both[winner] == 0 && [0, 6].contains(&both[1 - winner]), "{both:?}");
            assert_eq!(both[1 - winner] == 0, lab.join("new").join(["two", "one"][winner]).exists());
            continue;
        }
        let mut first = begin(&["--bwlimit", "2M"], "one");
        let until = Instant::now() + PATIENCE;
        while partials(lab.0.path()).is_empty() {
            assert!(first.is_running() && Instant::now() < until, "{}", first.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        begin(&[], "two")
            .wait()
            .expect(6)
            .one_line("rdcp", &["new was not there when this copy began, and another copy"]);
        first.wait().expect(0);
        assert_eq!(fs::read(lab.join("new/same")).expect("a copy"), fs::read(lab.join("one/same")).expect("it"));
        assert_eq!(fs::read_dir(lab.join("new")).expect("a directory").count(), 1);
    }
}

/// When the disk is full, the first name of two may not have been made. The file that has that name here is another.
#[test]
fn no_name_is_given_to_another_file_once_the_disk_is_full() {
    let lab = Lab::new();
    let Some(small) = Small::mount(&lab.join("small"), "40m") else {
        assert!(!rustix::process::geteuid().is_root(), "root may mount");
        return not_run("a small file system cannot be mounted here");
    };
    fs::create_dir(lab.join("src")).expect("a directory");
    for name in ["src/1b", "src/1a"] {
        lab.0.file(name, &rig::noise(3000 + usize::from(name.ends_with('a'))));
    }
    let copy = || {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(["--sync", "-r", "src/", "small/dst"]).stdout(Stdio::null())).wait()
    };
    copy().expect(0);
    for number in 1..=8 {
        lab.0.file(&format!("src/0{number}"), &rig::noise(60_000 + number));
    }
    fs::remove_file(lab.join("src/1a")).expect("ours");
    fs::hard_link(lab.join("src/1b"), lab.join("src/1a")).expect("a link");
    let kib = |path: &Path| rustix::fs::statvfs(path).map(|disk| (disk.f_blocks - disk.f_bfree) * disk.f_frsize / 1024);
    let used = kib(&lab.join("small")).expect("it");
    for free in (380..480).step_by(10) {
        small.resize(&format!("{}k", used + free));
        let ended = copy();
        assert!([0, 6, 8].contains(&ended.code), "{}", ended.stderr);
        let [ours, theirs] = ["src/1b", "small/dst/1b"].map(|name| fs::read(lab.join(name)).expect("it"));
        same(&theirs, &ours);
        small.resize("40m");
        for number in 1..=8 {
            let _ = fs::remove_file(lab.join(&format!("small/dst/0{number}")));
        }
        let _ = fs::remove_file(lab.join("small/dst/1a"));
        lab.0.file("small/dst/1a", b"another");
    }
}

/// What goes through the launcher's connection ends with it, so a second run is not in the way of the first.
#[test]
fn a_killed_caller_of_a_relayed_copy_is_missed_soon() {
    let lab = Lab::new();
    lab.0.file("source", &rig::noise(64 * CHUNK));
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--relay", "--bwlimit", "8M", "source"]).arg(lab.there("h", "target"));
    let mut process = Process::spawn(command.stdout(Stdio::null()));
    let until = Instant::now() + PATIENCE;
    while !partials(lab.0.path()).iter().any(|(_, bytes)| *bytes > 2 * CHUNK as u64) {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    process.signal(Signal::KILL);
    process.wait();
    lab.all_gone(Duration::from_secs(5));
}

/// More paths than one message holds: all of them come, with `--delete` too.
#[test]
fn a_generation_of_a_long_list_is_whole() {
    const LISTED: usize = 700;
    let name = |number: usize| format!("{number:0200}");
    for (host, options) in [("", &[][..]), ("h1:", &[]), ("h1:", &["--delete"])] {
        let lab = Lab::new();
        fs::create_dir(lab.join("from")).expect("a directory");
        fs::create_dir(lab.join("to")).expect("a directory");
        for number in 0..LISTED {
            fs::write(lab.join("from").join(name(number)), b"1").expect("a file");
        }
        let to = format!("{host}{}", lab.join("to").display());
        let listed = (0..LISTED).map(|number| format!("{}/./{}", lab.join("from").display(), name(number)));
        let words = ["-r", "--sync", "-R", "--snapshot=one"].map(str::to_owned).into_iter();
        let words = words.chain(options.iter().map(|&word| word.to_owned())).chain(listed).chain([to]);
        ended(&lab, &words.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
        assert_eq!(fs::read_dir(lab.join("to/one")).expect("it").count(), LISTED, "{host} {options:?}");
    }
}
