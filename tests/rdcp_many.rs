//! `rdcp` to several hosts: one tree, sent once, along a chain of them. Other hosts are this one, by a launcher that runs
//! the agent, each with a directory of its own.

mod rig;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::lab::*;
use rig::*;
use rustix::process::{Pid, Signal, kill_process};

impl Lab {
    fn start_many<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Process {
        let mut command = self.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// DST and `--to` for so many hosts, each with a directory of its own below this one.
    fn to(&self, hosts: usize) -> Vec<OsString> {
        let to = |host: usize| {
            fs::create_dir_all(self.join(&format!("h{host}"))).expect("a directory");
            let there = self.there(&format!("h{host}"), &format!("h{host}/copy"));
            if host == 1 { vec![there] } else { vec![OsString::from("--to"), there] }
        };
        (1..=hosts).flat_map(to).collect()
    }

    /// A tree with files of all kinds of sizes, links and directories.
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

/// A source on another host, and single files.
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

/// A host whose directory cannot be written to fails alone.
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

/// Agents that are killed in the middle: the others go on, and no half of a tree stands under its name.
#[test]
fn hosts_that_die_hold_nobody() {
    for dead in 1..=4 {
        let lab = Lab::new();
        lab.tree("src", 96 << 20);
        let mut arguments = vec!["-r".into(), "--bwlimit=40M".into(), lab.join("src").into_os_string()];
        arguments.extend(lab.to(4));
        let mut process = lab.start_many(&arguments);
        let until = Instant::now() + PATIENCE;
        let agent = loop {
            if let Some((agent, ..)) = lab.launches().into_iter().find(|(_, host, _)| *host == format!("h{dead}")) {
                break agent;
            }
            assert!(Instant::now() < until, "no agent: {}", process.stderr());
            std::thread::sleep(Duration::from_millis(10));
        };
        std::thread::sleep(Duration::from_millis(1200));
        kill_process(Pid::from_raw(agent as i32).expect("not 0"), Signal::KILL).expect("it runs");
        let ended = process.wait();
        ended.expect(8);
        assert!(ended.stderr.contains(&format!("h{dead}")), "{}", ended.stderr);
        for host in (1..=4).filter(|&host| host != dead) {
            lab.is_equal("src", &format!("h{host}/copy"));
        }
        assert!(!lab.join(&format!("h{dead}/copy")).exists());
    }
}

/// With --sync each host gets what it lacks, and a second run sends nothing.
#[test]
fn each_host_is_synchronized() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let sync = |lab: &Lab| {
        let mut arguments = vec!["--sync".into(), "--delete".into(), "-r".into(), "--json=report".into()];
        arguments.push(OsString::from(format!("{}/", lab.join("src").display())));
        arguments.extend(lab.to(3));
        lab.start_many(&arguments).wait().expect(0);
    };
    fs::create_dir_all(lab.join("h2/copy/old")).expect("directories");
    fs::write(lab.join("h2/copy/old/file"), b"of before").expect("a file");
    sync(&lab);
    (1..=3).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    fs::write(lab.join("src/small7"), b"other contents").expect("a file");
    fs::remove_file(lab.join("src/small9")).expect("it is there");
    sync(&lab);
    (1..=3).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}
