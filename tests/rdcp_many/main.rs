//! `rdcp` to several hosts: one tree, sent once, along a chain of them. The other hosts are simulated by a launcher
//! that runs the agent on this host, each in its own directory.

#[path = "../rig/mod.rs"]
mod rig;

mod late;
mod proof;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::others::{NOBODY, as_user};
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

impl Lab {
    fn start_many<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        let mut command = self.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Returns DST and `--to` for this many hosts, each with its own directory below this one.
    fn to(&self, hosts: usize) -> Vec<OsString> {
        let to = |host: usize| {
            fs::create_dir_all(self.join(&format!("h{host}"))).expect("a directory");
            let there = self.there(&format!("h{host}"), &format!("h{host}/copy"));
            if host == 1 { vec![there] } else { vec![OsString::from("--to"), there] }
        };
        (1..=hosts).flat_map(to).collect()
    }

    /// Makes a tree with files of many sizes, links and directories.
    fn tree(&self, name: &str, large_bytes: usize) {
        let top = self.join(name);
        fs::create_dir_all(top.join("sub/empty")).expect("directories");
        for bytes in [0, 1, 4096, 100_000, 1 << 20, 3_000_001] {
            fs::write(top.join(format!("sub/f{bytes}")), noise(bytes)).expect("a file");
        }
        for number in 0..300 {
            fs::write(top.join(format!("small{number}")), noise(number * 7)).expect("a file");
        }
        fs::write(top.join("large"), noise(large_bytes)).expect("a file");
        fs::hard_link(top.join("small7"), top.join("sub/link")).expect("a link");
        symlink("../small8", top.join("sub/symlink")).expect("a link");
    }

    /// Waits until this many bytes of a host's copy are on the disk.
    #[track_caller]
    fn await_bytes(&self, host: usize, bytes: u64, process: &mut Process) {
        let until = Instant::now() + PATIENCE;
        while disk_bytes_below(&self.join(&format!("h{host}"))) < bytes {
            assert!(process.is_running() && Instant::now() < until, "nothing comes to h{host}: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn agent(&self, host: usize) -> Pid {
        let host = format!("h{host}");
        let (agent, ..) = self.launches().into_iter().find(|(_, at, _)| *at == host).expect("it was started");
        Pid::from_raw(agent as i32).expect("not 0")
    }

    #[track_caller]
    fn is_equal(&self, name: &str, copy: &str) {
        let mut diff = Command::new("diff");
        let told = diff.args(["-r", "--no-dereference"]).arg(self.join(name)).arg(self.join(copy)).output();
        let told = told.expect("diff");
        assert!(told.status.success(), "{copy}: {}", String::from_utf8_lossy(&told.stdout));
        let listed = |top: &Path| {
            let mut find = Command::new("find");
            find.current_dir(top).args([".", "-printf", "%P|%y|%l|%m|%n|%T@\\n"]);
            let text = String::from_utf8_lossy(&find.output().expect("find").stdout).into_owned();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(listed(&self.join(name)), listed(&self.join(copy)), "{copy}");
    }
}

/// Each launcher keeps running for a while after its agent has ended.
#[test]
fn launchers_end_side_by_side() {
    const HOSTS: usize = 8;
    let lab = Lab::new();
    lab.script("slow", "sh -c \"exec $2\"; sleep 0.9");
    let source = lab.0.file("source", b"1");
    for source in [source, lab.join("missing")] {
        let start = Instant::now();
        let mut command = lab.command(rdcp(), "slow", AGENT);
        let mut process = Process::spawn(command.arg(&source).args(lab.to(HOSTS)).stdin(Stdio::null()));
        process.wait().expect(if source.ends_with("missing") { 5 } else { 0 });
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < 0.7 * HOSTS as f64, "{seconds} s: one after the other");
    }
}

#[test]
fn a_tree_comes_to_all_hosts() {
    for hosts in [2, 5] {
        let lab = Lab::new();
        lab.tree("src", 20 << 20);
        let mut arguments = vec!["-r".into(), lab.join("src").into_os_string()];
        arguments.extend(lab.to(hosts));
        lab.start_many(&arguments).wait().expect(0);
        for host in 1..=hosts {
            lab.is_equal("src", &format!("h{host}/copy"));
        }
    }
}

/// The source may be on another host, or a single file.
#[test]
fn sources_are_anywhere_and_of_any_kind() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let mut arguments = vec!["-r".into(), lab.there("h9", "src")];
    arguments.extend(lab.to(3));
    lab.start_many(&arguments).wait().expect(0);
    (1..=3).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    let lab = Lab::new();
    fs::write(lab.join("file"), noise(5 << 20)).expect("a file");
    let mut arguments = vec![lab.join("file").into_os_string()];
    arguments.extend(lab.to(3));
    lab.start_many(&arguments).wait().expect(0);
    for host in 1..=3 {
        assert!(fs::read(lab.join(&format!("h{host}/copy"))).expect("a copy") == noise(5 << 20));
    }
}

/// If a host's directory cannot be written to, only that host fails.
#[test]
fn one_that_cannot_take_it_is_named_and_the_others_have_it() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let mut arguments = vec!["-r".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(3));
    arguments.extend(["--to".into(), lab.there("h4", "none/such/directory")]);
    let ended = lab.start_many(&arguments).wait();
    ended.expect(8);
    assert!(ended.stderr.contains("h4") && ended.stderr.contains("mkdir -p"), "{}", ended.stderr);
    (1..=3).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// The reason is the line that a copy to this host alone would print.
#[test]
fn hosts_that_nothing_leads_to_are_told_why() {
    let lab = Lab::new();
    lab.tree("src", 1 << 10);
    let failed = lab.join("failed");
    let mut arguments = vec!["-r".into(), "--via=nosuch0".into(), lab.join("src").into_os_string()];
    arguments.extend(["--hosts-failed".into(), failed.clone().into_os_string()]);
    arguments.extend(lab.to(2));
    let ended = lab.start_many(&arguments).wait();
    ended.expect(3);
    for text in [ended.stderr.clone(), fs::read_to_string(failed).expect("hosts")] {
        let reason = "neither end has an interface or an address nosuch0";
        assert_eq!(text.matches(reason).count(), 2, "{text}");
        assert!(!text.contains("signal"), "{text}");
    }
}

/// If an agent is killed in the middle, the other hosts go on, and no incomplete tree has its final name.
#[test]
fn hosts_that_die_hold_nobody() {
    for dead in 1..=4 {
        let lab = Lab::new();
        lab.tree("src", 96 << 20);
        let mut arguments = vec!["-r".into(), "--bwlimit=40M".into(), lab.join("src").into_os_string()];
        arguments.extend(lab.to(4));
        let mut process = lab.start_many(&arguments);
        lab.await_bytes(dead, 24 << 20, &mut process);
        kill_process(lab.agent(dead), Signal::KILL).expect("it runs");
        let ended = process.wait();
        ended.expect(8);
        assert!(ended.stderr.contains(&format!("h{dead}")), "{}", ended.stderr);
        for host in (1..=4).filter(|&host| host != dead) {
            lab.is_equal("src", &format!("h{host}/copy"));
        }
        assert!(!lab.join(&format!("h{dead}/copy")).exists());
    }
}

/// With --sync each host gets what it lacks, and a run that finds no changes sends nothing.
#[test]
fn each_host_is_synchronized() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let sync = |lab: &Lab| {
        let mut arguments = vec!["--sync".into(), "--delete".into(), "-r".into(), "--json=report".into()];
        arguments.extend(["--bwlimit=40M".into(), OsString::from(format!("{}/", lab.join("src").display()))]);
        arguments.extend(lab.to(6));
        lab.start_many(&arguments).wait().expect(0);
        let text = fs::read_to_string(lab.join("report")).expect("a report");
        assert!(!text.contains(r#""state":"receiving""#), "there is no stream: {text}");
        let end: serde_json::Value = serde_json::from_str(text.lines().last().expect("an end")).expect("JSON");
        assert_eq!((&end["event"], &end["exit"]), (&"end".into(), &0.into()), "{text}");
        end["bytes"].as_u64().expect("a number")
    };
    fs::create_dir_all(lab.join("h2/copy/old")).expect("directories");
    fs::write(lab.join("h2/copy/old/file"), b"of before").expect("a file");
    let all = sync(&lab);
    let report = fs::read_to_string(lab.join("report")).expect("a report");
    assert!(report.matches(r#""state":"behind""#).count() >= 2, "four are copied to at once: {report}");
    (1..=6).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    fs::write(lab.join("src/small7"), b"other contents").expect("a file");
    fs::remove_file(lab.join("src/small9")).expect("it is there");
    let changed = sync(&lab);
    (1..=6).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    let same = sync(&lab);
    assert!(all > 5 << 20 && changed > 0 && same == 0, "{all}, {changed} and {same} bytes");
    (1..=6).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// A host on which nothing could be made has failed, as with a single host.
#[test]
fn a_host_on_which_nothing_was_copied_has_failed() {
    let is_root = rustix::process::geteuid().is_root();
    for (closed, code, said) in [(3, 6, "all 3 hosts failed"), (1, 8, "1 of 3 hosts failed; 2 succeeded")] {
        let lab = Lab::for_users();
        lab.tree("src", 1 << 20);
        let options = ["-rv", "--json=report", "--hosts-failed=failed", "src"].map(OsString::from);
        let arguments = [&options[..], &lab.to(3)].concat();
        for host in 1..=3 {
            let mode = if host <= closed { 0o555 } else { 0o777 };
            let directory = lab.join(&format!("h{host}"));
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("ours");
        }
        let line = if is_root { as_user(NOBODY, lab.0.path()) } else { "exec \"$@\"".to_owned() };
        let mut command = in_shell(&line, lab.command(rdcp(), "rsh", AGENT).args(&arguments));
        command.current_dir(lab.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = Process::spawn(&mut command).wait();
        ended.expect(code);
        assert!(ended.stderr.contains(said) && !ended.stderr.contains("not copied in full"), "{}", ended.stderr);
        assert_eq!(ended.stderr.contains(" to 2 of 3 hosts, "), closed == 1, "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("verified"), closed == 1, "{}", ended.stderr);
        let failed = fs::read_to_string(lab.join("failed")).expect("a list");
        let causes = failed.lines().filter(|line| line.starts_with('#') && line.contains("errno 13")).count();
        assert_eq!(causes, closed, "{failed}");
        let report = fs::read_to_string(lab.join("report")).expect("a report");
        for (state, hosts) in [("failed", closed), ("done", 3 - closed)] {
            let state = format!(r#""state":"{state}""#);
            assert_eq!(report.lines().filter(|line| line.contains(&state)).count(), hosts, "{state}: {report}");
        }
        (closed + 1..=3).for_each(|host| assert!(lab.join(&format!("h{host}/copy/large")).exists()));
    }
}

/// A second reason is set apart from the first.
#[test]
fn a_file_in_the_way_of_a_directory_is_named() {
    let lab = Lab::new();
    lab.tree("src", 1000);
    fs::create_dir(lab.join("h1")).expect("a directory");
    lab.0.file("h1/src", b"old");
    let arguments = ["-r".into(), lab.join("src").into_os_string(), lab.there("h1", "h1/")];
    let line = "/h1/src: Not a directory (errno 20); cannot be replaced by a directory";
    lab.start_many::<OsString>(&arguments).wait().expect(6).one_line("rdcp", &["cannot write h1:/", line]);
}

/// Only the hosts know whether they have the user and the group of `--chown`.
#[test]
fn a_host_without_the_new_owner_is_named() {
    let lab = Lab::new();
    lab.tree("src", 1000);
    for (hosts, chown, said) in [
        (1, "--chown=no-such-user", "h1 has no user no-such-user (--chown)"),
        (2, "--chown=:no-such-group", "h2 has no group no-such-group (--chown)"),
    ] {
        let options = ["-r".into(), chown.into(), lab.join("src").into_os_string()];
        let ended = lab.start_many(&[&options[..], &lab.to(hosts)].concat()).wait();
        ended.expect(6);
        assert!(ended.stderr.contains(&format!("rdcp: {said}\n")), "{}", ended.stderr);
    }
}

/// A host on which the source itself stands where its copy would is no failure, as it is none with one host. A source
/// that is missing is counted as one entry.
#[test]
fn the_source_among_the_hosts_and_a_missing_source() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    ["h1", "h2"].iter().for_each(|host| fs::create_dir_all(lab.join(host)).expect("directories"));
    let (here, there) = (lab.there("h1", ""), lab.there("h2", "h2/"));
    let itself = ["-r".into(), lab.join("src").into(), here, "--to".into(), there.clone()];
    let mut run = lab.start_many::<OsString>(&itself);
    let ended = run.wait();
    ended.expect(0);
    assert!(ended.stderr.contains("are the same file; left unchanged"), "{}", ended.stderr);
    lab.is_equal("src", "h2/src");
    // Sources on another host, which is one of the destinations.
    for (at_h1, said) in [(lab.there("h1", ""), 1), (lab.there("h1", "h1/"), 0)] {
        let destinations = [at_h1, "--to".into(), lab.there("h2", "h2/")];
        let ended =
            lab.start_many::<OsString>(&[&["-r".into(), lab.there("h1", "src")], &destinations[..]].concat()).wait();
        ended.expect(0);
        assert_eq!(ended.stderr.matches("are the same file; left unchanged").count(), said, "{}", ended.stderr);
        lab.is_equal("src", "h2/src");
    }
    lab.is_equal("src", "h1/src");
    let sources = [lab.join("src/small1"), lab.join("nosuch")].map(OsString::from);
    let failed = lab.join("failed");
    fs::write(&failed, "h1\n").expect("a file");
    let rest = [lab.there("h1", "h1/"), "--to".into(), there, "--hosts-failed".into(), failed.clone().into()];
    let ended = lab.start_many::<OsString>(&[&sources[..], &rest].concat()).wait();
    ended.expect(8);
    assert!(ended.stderr.contains("1 entry not copied in full; the others were copied"), "{}", ended.stderr);
    // No host has failed, so none is to be copied to again.
    assert!(!failed.exists(), "{:?}", fs::read_to_string(&failed));
}

/// The only host hangs. The host that the copy waits for is named once, and not with --quiet.
#[test]
fn a_host_that_does_not_answer_is_named() {
    let lab = Lab::new();
    lab.tree("src", 1000);
    lab.script("late", "sleep 13\nexit 255");
    let runs = ["--verbose", "--quiet"].map(|how| {
        let mut command = lab.command(rdcp(), "late", AGENT);
        let command = command.args([how, "-r"]).arg(lab.join("src")).arg("h1:/nowhere");
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
    });
    for (mut run, count) in runs.into_iter().zip([1, 0]) {
        let ended = run.wait();
        ended.expect(3);
        let said = "h1 has not answered yet; giving up on a host after 120 s";
        assert_eq!(ended.stderr.matches(said).count(), count, "{}", ended.stderr);
    }
}

/// A host that another command adds gets its copy. That command reports the outcome too.
#[test]
fn hosts_are_added_while_it_runs() {
    let lab = Lab::new();
    lab.tree("src", 24 << 20);
    lab.script("rsh", "case $1 in h7) echo 'h7: no route to host' >&2; exit 255 ;; esac\nexec sh -c \"exec $2\"");
    let mut arguments = vec!["-rv".into(), "--bwlimit=10M".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(2));
    let mut process = lab.start_many(&arguments);
    let job = job_of(&process);
    let add = |target: OsString| {
        let mut command = lab.joining(&job);
        Process::spawn(command.arg(target).stdin(Stdio::null()).stdout(Stdio::null()))
    };
    fs::create_dir(lab.join("h5")).expect("a directory");
    let (mut added, mut unreached) = (add(lab.there("h5", "h5/copy")), add("h7:/x".into()));
    // Without a path, the first host's path is used.
    let again = add("h1".into()).wait();
    again.expect(1);
    assert!(again.stderr.contains("h1 is already one of its hosts"), "{}", again.stderr);
    let unreached = unreached.wait();
    unreached.expect(3);
    assert!(unreached.stderr.contains("h7: no route to host"), "{}", unreached.stderr);
    added.wait().expect(0);
    lab.is_equal("src", "h5/copy");
    // A host that never began is the business of the command that has added it.
    let ended = process.wait();
    ended.expect(0);
    for said in ["adding h5", "added h5", "h7 was not added: ", " to 3 hosts"] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    [1, 2].iter().for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    let gone = add("h6:/x".into()).wait();
    gone.expect(3);
    assert!(gone.stderr.contains("no copy with this name is running here"), "{}", gone.stderr);
}

/// A command that adds a host hears the outcome even while all other hosts are still late.
#[test]
fn a_host_is_added_before_the_others_have_come() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let go = lab.join("go");
    let wait = format!("while ! [ -e '{}' ]; do sleep 0.1; done", go.display());
    let late = format!("case $1 in h7) echo 'h7: no route to host' >&2; exit 255 ;; esac\n{wait}");
    lab.script("rsh", &format!("{late}\nexec sh -c \"exec $2\""));
    let mut arguments = vec!["-rv".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(2));
    let mut process = lab.start_many(&arguments);
    let added = lab.join_job(&job_of(&process), "h7:/x".into());
    fs::write(&go, b"").expect("a file");
    added.expect(3);
    assert!(added.stderr.contains("h7: no route to host"), "{}", added.stderr);
    process.wait().expect(0);
    [1, 2].iter().for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// A host that is added where the source itself stands is done, also if its agent is lost later.
#[test]
fn a_host_that_has_the_source_itself_is_added() {
    let lab = Lab::new();
    lab.tree("src", 48 << 20);
    let mut arguments = vec!["-rv".into(), "--bwlimit=10M".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(2));
    let mut process = lab.start_many(&arguments);
    lab.join_job(&job_of(&process), lab.there("h3", "")).expect(0);
    kill_process(lab.agent(3), Signal::KILL).expect("it runs");
    let ended = process.wait();
    ended.expect(0);
    assert!(ended.stderr.contains("are the same file; left unchanged"), "{}", ended.stderr);
    [1, 2].iter().for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// A host that has joined has no part in the stream, so after ^C nothing of it is waited for.
#[test]
fn a_host_that_has_joined_does_not_delay_an_interrupt() {
    let took = || {
        let lab = Lab::new();
        lab.tree("src", 64 << 20);
        let mut arguments = vec!["-rv".into(), "--bwlimit=4M".into(), lab.join("src").into_os_string()];
        arguments.extend(lab.to(2));
        let mut process = lab.start_many(&arguments);
        fs::create_dir(lab.join("h5")).expect("a directory");
        let mut command = lab.joining(&job_of(&process));
        command.arg(lab.there("h5", "h5/copy"));
        let mut added = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        process.line_with("added h5");
        std::thread::sleep(Duration::from_millis(1500));
        process.signal(Signal::INT);
        let ended = process.wait();
        ended.expect(130);
        added.wait().expect(4);
        ended.after
    };
    // On a busy machine other things may take long.
    assert!((0..3).any(|_| took() < Duration::from_millis(2300)), "it waits for a host without a node");
}

/// Returns the name of a running job.
fn job_of(process: &Process) -> String {
    let line = process.line_with("adds a host");
    line.split("--join ").nth(1).and_then(|rest| rest.split(' ').next()).expect("its name").to_owned()
}

impl Lab {
    /// Prepares a command that adds a host. The copy itself knows how hosts are reached.
    fn joining(&self, job: &str) -> Command {
        let (mut command, copying) = (rdcp(), self.command(rdcp(), "rsh", AGENT));
        command.envs(copying.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.0.path()).args(["--join", job]);
        command
    }

    fn join_job(&self, job: &str, target: OsString) -> Ended {
        let mut command = self.joining(job);
        command.arg(target).stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut command).wait()
    }
}

/// A failed host may be added again until it succeeds, whether its agent still runs or not. Its earlier
/// failures then no longer count.
#[test]
fn a_host_that_failed_is_added_again() {
    let lab = Lab::new();
    lab.tree("src", 48 << 20);
    let mut arguments = vec!["-rv".into(), "--bwlimit=8M".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(3));
    // The copy cannot be made there. The agent reports that, and keeps running.
    fs::write(lab.join("h4"), "in the way").expect("a file");
    arguments.extend(["--to".into(), lab.there("h4", "h4/copy")]);
    let process = lab.start_many(&arguments);
    let job = job_of(&process);
    // Until the host has failed, it counts as one of the job's hosts.
    let until = Instant::now() + PATIENCE;
    let again = loop {
        let again = lab.join_job(&job, lab.there("h4", "h4/copy"));
        if !again.stderr.contains("already") || Instant::now() > until {
            break again;
        }
    };
    again.expect(6);
    // A host whose agent is gone.
    while !lab.join("h3/copy").exists() && fs::read_dir(lab.join("h3")).expect("made").next().is_none() {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(lab.agent(3), Signal::KILL).expect("it runs");
    process.line_with("lost h3");
    fs::remove_file(lab.join("h4")).expect("ours");
    fs::create_dir(lab.join("h4")).expect("a directory");
    std::thread::scope(|scope| {
        for host in ["h3", "h4"] {
            let (lab, job) = (&lab, &job);
            scope.spawn(move || {
                lab.join_job(job, lab.there(host, &format!("{host}/copy"))).expect(0);
            });
        }
    });
    let mut process = process;
    process.wait().expect(0);
    (1..=4).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// Entries that the source could not read are missing on every host, even on one that got its copy from
/// another host. --join says so.
#[test]
fn a_host_that_is_added_hears_what_the_source_could_not_read() {
    let lab = Lab::new();
    lab.tree("src", 24 << 20);
    for host in 1..=3 {
        fs::create_dir(lab.join(&format!("h{host}"))).expect("a directory");
    }
    // A file that not even root may read.
    let unreadable = OsString::from("/proc/sys/vm/compact_memory");
    let arguments = [
        "-rv".into(),
        "--bwlimit=10M".into(),
        unreadable,
        lab.join("src").into_os_string(),
        lab.there("h1", "h1"),
        "--to".into(),
        lab.there("h2", "h2"),
    ];
    let mut process = lab.start_many(&arguments);
    let added = lab.join_job(&job_of(&process), lab.there("h3", "h3"));
    added.expect(8);
    assert!(added.stderr.contains("h3: 1 entry not copied in full"), "{}", added.stderr);
    let ended = process.wait();
    ended.expect(8);
    assert!(ended.stderr.contains("compact_memory"), "{}", ended.stderr);
    (1..=3).for_each(|host| lab.is_equal("src", &format!("h{host}/src")));
}

/// Data that a host later passes on is verified against the source. Altered data is rejected,
/// and comes from the source.
#[test]
fn a_host_that_gives_something_else_is_found_out() {
    let lab = Lab::new();
    lab.with_altered_copy().expect(0);
    lab.is_equal("src", "h2/copy");
}

/// In a directory that had entries before, altered data may have left some, so the host counts as failed.
#[test]
fn a_host_that_may_hold_altered_data_has_failed() {
    let lab = Lab::new();
    fs::create_dir_all(lab.join("h2/copy/src")).expect("directories");
    fs::write(lab.join("h2/copy/src/own"), b"of before").expect("a file");
    let ended = lab.with_altered_copy();
    ended.expect(8);
    for said in ["h2 has all of the source, but was first sent altered data", "1 of 2 hosts failed; 1 succeeded"] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    fs::remove_file(lab.join("h2/copy/src/own")).expect("it has stayed");
    let [there, here] = ["h2/copy/src/small8", "src/small8"].map(|name| fs::read(lab.join(name)).expect("a file"));
    assert_eq!(there, here);
}

impl Lab {
    /// Copies a tree to two hosts, of which the second is stopped and so gets its copy from the first later, where it
    /// has been altered.
    fn with_altered_copy(&self) -> Ended {
        self.tree("src", 64 << 20);
        let mut arguments = vec!["-r".into(), "--bwlimit=40M".into(), "--stall=1".into()];
        arguments.push(self.join("src").into_os_string());
        arguments.extend(self.to(2));
        let mut process = self.start_many(&arguments);
        // So much that h1 has the rest before h2 has been silent for long enough to be given up.
        self.await_bytes(2, 32 << 20, &mut process);
        let agent = self.agent(2);
        kill_process(agent, Signal::STOP).expect("it runs");
        let until = Instant::now() + PATIENCE;
        let forged = self.join("h1/copy/small8");
        while !forged.exists() {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        let modified = fs::metadata(&forged).and_then(|found| found.modified()).expect("there");
        fs::write(&forged, noise(57).iter().rev().copied().collect::<Vec<u8>>()).expect("ours");
        fs::File::open(&forged).and_then(|file| file.set_modified(modified)).expect("ours");
        // Waits until h2 is passed over. Otherwise h2 would get the rest of the stream, which is not altered.
        while !process.stderr().contains("h2 ") {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(agent, Signal::CONT).expect("it runs");
        let ended = process.wait();
        assert!(ended.stderr.contains("could not verify the data from"), "{}", ended.stderr);
        ended
    }
}

/// Two names of one machine with the same destination: one of them is refused, with a line that says so.
#[test]
fn one_place_is_written_to_once() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    fs::create_dir_all(lab.join("both/below")).expect("directories");
    symlink(lab.join("both"), lab.join("link")).expect("a link");
    let mut arguments = vec!["-r".into(), lab.join("src").into_os_string(), lab.there("h1", "both/copy")];
    arguments.extend(["--to".into(), lab.there("h2", "link/below/../copy")]);
    arguments.extend(["--to".into(), lab.there("h3", "both/other")]);
    let ended = lab.start_many(&arguments).wait();
    ended.expect(8);
    // Depends on which host answers first.
    let said = ["h2 is the same machine as h1", "h1 is the same machine as h2"];
    assert!(said.iter().any(|said| ended.stderr.contains(said)), "{}", ended.stderr);
    ["both/copy", "both/other"].iter().for_each(|copy| lab.is_equal("src", copy));
}

/// The copy says how much has arrived, and what to type, which leads to the same place and uses that. Of a large file
/// only whole blocks of 16 MiB are used. Once both hosts together have more than the tree, the source has less to send
/// with --sync, and not before. It knows how long the stream is once the hosts lack no more than its spool of 32 MiB.
#[test]
fn an_interrupted_copy_says_how_it_goes_on() {
    let lab = Lab::new();
    lab.tree("src", 80 << 20);
    is_interrupted_and_goes_on(&lab, "12M", 60 << 20, "copy");
    let lab = Lab::new();
    lab.many_files_and_directories();
    is_interrupted_and_goes_on(&lab, "3M", 9 << 20, "copy/src");
    let lab = Lab::new();
    lab.tree("src", 80 << 20);
    let (_, said) = lab.interrupted("16M", 20 << 20, "src");
    let anew = " kept in total; run the same command again, because with --sync -T the source may have more to send\n";
    assert!(said.ends_with(anew), "{said}");
    // SRC/ has gone into DST, which it would become with --sync.
    let lab = Lab::new();
    lab.many_files_and_directories();
    let (_, said) = lab.interrupted("4M", 4 << 20, "src/");
    assert!(said.ends_with(" kept in total\n"), "{said}");
}

/// Hosts that do not answer may have kept all that has come.
#[test]
fn what_silent_hosts_may_have_kept_is_not_denied() {
    let lab = Lab::new();
    lab.tree("src", 80 << 20);
    let mut arguments = vec![OsString::from("-r"), "--bwlimit=8M".into(), "src".into()];
    arguments.extend(lab.to(2));
    let mut process = lab.start_many(&arguments);
    (1..=2).for_each(|host| lab.await_bytes(host, 4 << 20, &mut process));
    let agents = [1, 2].map(|host| lab.agent(host));
    agents.iter().for_each(|&agent| kill_process(agent, Signal::STOP).expect("it runs"));
    process.signal(Signal::INT);
    let ended = process.wait();
    // Their launchers may have ended them.
    agents.iter().for_each(|&agent| _ = kill_process(agent, Signal::KILL));
    let said = "rdcp: interrupted; 0 of 2 hosts are complete; not all hosts answered; \
                run the same command again, because with --sync -T the source may have more to send\n";
    assert!(ended.code == 130 && ended.stderr.ends_with(said), "{}", ended.stderr);
}

impl Lab {
    /// Makes a tree of small files, and DST on two hosts.
    fn many_files_and_directories(&self) {
        fs::create_dir_all(self.join("src/sub")).expect("directories");
        for number in 0..2000 {
            fs::write(self.join(&format!("src/sub/{number}")), noise(8 << 10)).expect("a file");
        }
        (1..=2).for_each(|host| fs::create_dir_all(self.join(&format!("h{host}/copy"))).expect("directories"));
    }

    /// Interrupts a copy of `typed` to two hosts once this many bytes have arrived. Returns its arguments, of which the
    /// second limits the rate, and what it says.
    #[track_caller]
    fn interrupted(&self, rate: &str, bytes: u64, typed: &str) -> (Vec<OsString>, String) {
        let mut arguments = vec!["-r".into(), format!("--bwlimit={rate}").into(), typed.into()];
        arguments.extend(self.to(2));
        let mut process = self.start_many(&arguments);
        let has_some = |host: usize| {
            let names = fs::read_dir(self.join(&format!("h{host}"))).expect("a directory");
            names.flatten().any(|name| disk_bytes_below(&name.path()) > bytes)
        };
        let until = Instant::now() + PATIENCE;
        while !(has_some(1) && has_some(2)) {
            assert!(Instant::now() < until, "nothing comes: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(20));
        }
        process.signal(Signal::INT);
        let ended = process.wait();
        ended.expect(130).one_line("rdcp", &["interrupted; 0 of 2 hosts are complete; "]);
        (arguments, ended.stderr)
    }
}

/// Copies `src`, which becomes `copy` on each host.
#[track_caller]
fn is_interrupted_and_goes_on(lab: &Lab, rate: &str, bytes: u64, copy: &str) {
    let (mut arguments, said) = lab.interrupted(rate, bytes, "src");
    let again = said.trim_end().strip_suffix(" to resume").expect("how to resume");
    let (_, options) = again.split_once(" kept in total, run again with ").expect("how to resume");
    arguments[1] = "-v".into();
    arguments.extend(options.split(' ').map(OsString::from));
    let ended = lab.start_many(&arguments).wait();
    ended.expect(0);
    assert!(ended.stderr.contains("adds a host"), "{}", ended.stderr);
    for host in [1, 2] {
        let copy = format!("h{host}/{copy}");
        lab.is_equal("src", &copy);
        let names = fs::read_dir(lab.join(&copy).parent().expect("a directory")).expect("a directory").count();
        assert_eq!(names, 1, "what was kept has become the copy");
    }
}
