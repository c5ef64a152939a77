//! Destinations of `rdcp` when a command line names several hosts: what is refused before any host is contacted, the
//! file of failed hosts, and how many launchers are started at once. Also what is said of a single destination in which
//! nothing was deleted.

mod rig;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::Lab;
use rig::*;

fn ended(command: &mut Command) -> Ended {
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait()
}

#[test]
fn what_does_not_go_with_several_hosts_bothers_none() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("hosts", b"h1\nh2 slots=4\n");
    let several = "h[1-2]:x";
    for (arguments, words) in [
        (&["source", "h[2-1]:x"][..], "h[2-1]: a range must begin with its smaller number"),
        (&["source", "h[1-x]:x"], "numbers and ranges"),
        (&["source", "h[1-:x"], "not closed"),
        (&["source", "h[0-99999]:x"], "100000 hosts"),
        (&["h[1-2]:x", "copy"], "only DST and --to"),
        (&["source", several, "--to", "copy"], "--to copy: give HOST:PATH"),
        (&["source", several, "--to", "h2:y"], "two paths"),
        (&["source", "copy", "--to", "h1:x"], "which copy is not"),
        (&["source", "-", "--to", "h1:x"], "which - is not"),
        (&["-", several], "standard input (-) can be read only once"),
        (&["--sync", "--snapshot", "s", "source", several], "--snapshot"),
        (&["--sync", "--watch", "source", several], "--watch"),
        (&["--sync", "--files-from", "hosts", "source", several], "--files-from"),
        (&["--sync", "-R", "source", several], "-R copies to one host"),
        (&["--sync", "-n", "source", several], "-n compares with one host"),
        (&["--in-place", "source", several], "--in-place"),
        (&["-r", "--manifest", "m", "source", several], "manifest"),
        (&["--relay", "source", several], "--relay"),
        (&["--hosts", "hosts", "source", "x"], "line 2: h2 slots=4: only one host is allowed per line"),
        (&["--hosts", "none", "source", "x"], "--hosts none: No such file"),
        (&["--hosts", "hosts", "source", "h1:x"], "without HOST:"),
        (&["--hosts", "slurm", "source", "x"], "not in a Slurm allocation"),
        (&["--hosts", "-", "-", "x"], "both the list of --hosts and another input"),
        (&["--hosts-failed", "none/failed", "source", "h1:x"], "--hosts-failed none/failed"),
        (&["--launcher", "on %x", "source", "h1:x"], "not part of %h"),
        (&["--launcher", "slurm", "-P", "22", "source", "h1:x"], "are for ssh"),
    ] {
        // A second launcher would be refused.
        let mut command = match arguments[0] {
            "--launcher" => rdcp(),
            _ => lab.command(rdcp(), "rsh", AGENT),
        };
        let ended = ended(command.args(arguments).current_dir(lab.0.path()).env_remove("SLURM_JOB_NODELIST"));
        ended.expect(1).one_line("rdcp", &[words]);
    }
    assert!(lab.launches().is_empty() && !lab.join("x").exists());
}

/// A name with brackets that is not a list, and lists that name one host.
#[test]
fn one_host_is_a_copy_as_ever() {
    let lab = Lab::new();
    lab.0.file("source[1]", b"1");
    lab.0.file("hosts", b"# one\nu@h7\n");
    let run = |arguments: &[&str]| ended(lab.command(rdcp(), "rsh", AGENT).args(arguments)).expect(0).stderr.clone();
    run(&["source[1]", "dir[1]"]);
    assert_eq!(fs::read(lab.join("dir[1]")).expect("a copy"), b"1");
    assert!(lab.launches().is_empty());
    let to = |name: &str| lab.join(name).display().to_string();
    run(&["source[1]", &format!("gpu[08]:{}", to("a"))]);
    run(&["source[1]", &to("b"), "--hosts", "hosts"]);
    let said = run(&["source[1]", &format!("[fd00::1]:{}", to("c")), "--to", &format!("[fd00::1]:{}", to("c"))]);
    assert!(said.contains("1 duplicate target ignored"), "{said}");
    let hosts: Vec<String> = lab.launches().into_iter().map(|(_, host, _)| host).collect();
    assert_eq!(hosts, ["gpu08", "u@h7", "fd00::1"]);
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read(lab.join(name)).expect("a copy"), b"1");
    }
}

#[test]
fn a_host_that_failed_is_written_down_and_taken_again() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("hosts", b"h1\n");
    lab.script("lost", "echo no route >&2; exit 255");
    let to = lab.join("copy").display().to_string();
    let run = |launcher: &str, hosts: &str| {
        let arguments = ["source", &to, "--hosts", hosts, "--hosts-failed", "failed"];
        ended(lab.command(rdcp(), launcher, AGENT).args(arguments))
    };
    run("lost", "hosts").expect(3);
    let failed = fs::read_to_string(lab.join("failed")).expect("the file");
    assert!(failed.starts_with("# cannot reach h1 by lost: no route\nh1\n"), "{failed}");
    run("rsh", "failed").expect(0);
    assert!(lab.join("copy").exists() && !lab.join("failed").exists(), "none failed");
}

/// The line names DST, not the directory in which DST is. What was not deleted does not count as an entry that was not
/// copied.
#[test]
fn a_destination_where_nothing_was_deleted_is_named() {
    for host in ["", "h:"] {
        let lab = Lab::new();
        for name in ["src/k", "dst/k"] {
            fs::create_dir_all(lab.join(name)).expect("directories");
        }
        // A link to itself cannot be copied.
        std::os::unix::fs::symlink("b", lab.join("src/b")).expect("a link");
        lab.0.file("dst/b", b"q");
        lab.0.file("dst/k/old", b"1");
        let to = format!("{host}{}/", lab.join("dst").display());
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        let ended = ended(command.args(["-q", "--sync", "-r", "--delete-after", "src/", &to]));
        let lines = &ended.expect(8).stderr;
        assert!(lines.contains("/dst was not pruned: nothing was deleted"), "{host}: {lines}");
        assert!(lines.contains("1 entry was not copied"), "{host}: {lines}");
        assert!(lab.join("dst/k/old").exists(), "{host}");
    }
}

/// The other launchers wait until one has reached its host.
#[test]
fn so_many_launchers_at_once() {
    let lab = Lab::new();
    fs::create_dir(lab.join("into")).expect("a directory");
    let (log, go) = (lab.join("log"), lab.join("go"));
    // If the test has failed, its directory is gone, and nothing is waited for.
    let wait = format!("while [ -e '{}' ] && ! [ -e '{}' ]; do sleep 0.05; done", log.display(), go.display());
    lab.script("slow", &format!("echo begins >>'{0}'; {wait}; echo up >>'{0}'; exec sh -c \"exec $2\"", log.display()));
    let begun = || fs::read_to_string(&log).unwrap_or_default().matches("begins").count();
    let mut sources = Vec::new();
    for host in 1..=4 {
        lab.0.file(&format!("source{host}"), b"1");
        sources.push(lab.there(&format!("h{host}"), &format!("source{host}")));
    }
    for (parallel, most) in [("1", 1), ("3", 3), ("32", 4)] {
        for file in [&log, &go] {
            let _ = fs::remove_file(file);
        }
        let mut command = lab.command(rdcp(), "slow", AGENT);
        command.args(["--parallel", parallel]).args(&sources).arg("into").stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let until = Instant::now() + PATIENCE;
        while begun() < most {
            assert!(process.is_running() && Instant::now() < until, "--parallel {parallel}: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        // Time for another to begin.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(begun(), most, "--parallel {parallel}");
        lab.0.file("go", b"");
        process.wait().expect(0);
        // Nor do more begin later, when some have reached their hosts.
        let (mut now, mut peak) = (0_usize, 0);
        for line in fs::read_to_string(&log).expect("the log").lines() {
            match line {
                "begins" => now += 1,
                _ => now -= 1,
            }
            peak = peak.max(now);
        }
        assert_eq!((peak, now), (most, 0), "--parallel {parallel}");
    }
    ended(lab.command(rdcp(), "slow", AGENT).args(["--parallel", "0", "source1", "h1:x"])).expect(1);
}
