//! Hosts that are late, and get their copies from a host that is done.

use std::os::unix::net::UnixListener;

use super::*;

/// A host that gets its copy late has the source's contents, also if an older file has the same length, or if a single
/// small file is all there is.
#[test]
fn a_late_copy_is_the_source() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    lab.script("late", "case $1 in h2) sleep 6 ;; esac\nexec sh -c \"exec $2\"");
    let small = lab.join("src/small9");
    let runs = [("tree", lab.join("src")), ("one", small.clone())].map(|(name, source)| {
        let at = |host: usize| lab.join(&format!("{name}{host}"));
        for host in 1..=2 {
            fs::create_dir_all(at(host).join("src/sub")).expect("directories");
        }
        for file in ["large", "sub/f3000001"] {
            let other: Vec<u8> = noise(lab.join("src").join(file).metadata().expect("there").len() as usize);
            fs::write(at(2).join("src").join(file), other.iter().rev().copied().collect::<Vec<_>>()).expect("a file");
        }
        let mut command = lab.command(rdcp(), "late", AGENT);
        let to = |host: usize| lab.there(&format!("h{host}"), &format!("{name}{host}/"));
        let command = command.arg("-r").arg(source).arg(to(1)).arg("--to").arg(to(2));
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
    });
    for mut run in runs {
        run.wait().expect(0);
    }
    (1..=2).for_each(|host| lab.is_equal("src", &format!("tree{host}/src")));
    for host in 1..=2 {
        assert_eq!(fs::read(lab.join(&format!("one{host}/small9"))).expect("there"), fs::read(&small).expect("there"));
    }
}

/// A copy that one host gives to another is the source's also if options have made something else of the tree.
#[test]
fn a_late_copy_is_proven_with_options_that_change_it() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    fs::set_permissions(lab.join("src/large"), fs::Permissions::from_mode(0o640)).expect("ours");
    // In one directory nothing is copied. The link leads to a directory only on the host that gives.
    fs::create_dir(lab.join("src/sockets")).expect("a directory");
    let _socket = UnixListener::bind(lab.join("src/sockets/1")).expect("a socket");
    symlink("../there", lab.join("src/out")).expect("a link");
    fs::create_dir_all(lab.join("h1/there")).expect("directories");
    lab.script("late", "case $1 in h2) sleep 6 ;; esac\nexec sh -c \"exec $2\"");
    let mut command = lab.command(rdcp(), "late", AGENT);
    command.args(["-rkm", "--no-specials", "--chmod=o=g,g=u", "src"]).args(lab.to(2));
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(0);
    assert!(!ended.stderr.contains("could not verify"), "{}", ended.stderr);
    lab.is_equal("h1/copy", "h2/copy");
    assert_eq!(fs::metadata(lab.join("h2/copy/large")).expect("there").mode() & 0o777, 0o664);
    assert!(lab.join("h2/copy/sockets").is_dir() && !lab.join("h2/copy/sub/empty").exists());
}

/// An entry that a late host cannot make is that host's own failure: nobody is called a forger for it. That host, and no
/// other one, is written down to be copied to again.
#[test]
fn an_entry_that_a_late_host_cannot_make_is_its_own_failure() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    lab.script("late", "case $1 in h2) sleep 6 ;; down) exit 255 ;; esac\nexec sh -c \"exec $2\"");
    for host in 1..=2 {
        fs::create_dir_all(lab.join(&format!("h{host}/src"))).expect("directories");
    }
    // In the way of a directory, and of a large and a small file.
    fs::write(lab.join("h2/src/sub"), "old").expect("a file");
    for name in ["large", "small1"] {
        fs::create_dir_all(lab.join(&format!("h2/src/{name}/full"))).expect("directories");
    }
    let mut command = lab.command(rdcp(), "late", AGENT);
    command.args(["-r", "--hosts-failed"]).arg(lab.join("failed")).arg(lab.join("src")).arg(lab.there("h1", "h1/"));
    for host in ["h2", "down"] {
        command.arg("--to").arg(lab.there(host, "h2/"));
    }
    let ended = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(8);
    for part in ["src/sub: ", "src/large: ", "src/small1: ", "1 of 3 hosts failed, 1 incomplete; 1 succeeded"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("does not match the source"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("another version"), "{}", ended.stderr);
    lab.is_equal("src", "h1/src");
    for name in ["small2", "small9"] {
        let [there, here] = ["h2/src", "src"].map(|at| fs::read(lab.join(at).join(name)).expect("a file"));
        assert_eq!(there, here);
    }
    let failed = fs::read_to_string(lab.join("failed")).expect("a list");
    let hosts: Vec<&str> = failed.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(hosts.len() == 2 && hosts.iter().all(|line| !line.starts_with("h1")), "{failed}");
}

/// A source that changes before a late host gets its copy from it: the hosts have different versions, so that host has
/// failed.
#[test]
fn a_late_copy_of_a_source_that_has_changed_has_failed() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    let wait = format!("while ! [ -e '{}' ]; do sleep 0.1; done", lab.join("go").display());
    lab.script("late", &format!("case $1 in h2) {wait} ;; esac\nexec sh -c \"exec $2\""));
    // A host that had something there gives its copy to no other.
    for host in 1..=2 {
        fs::create_dir_all(lab.join(&format!("h{host}/copy/src/sub"))).expect("directories");
    }
    let mut command = lab.command(rdcp(), "late", AGENT);
    command.args(["-r", "--hosts-failed=failed", "--json=report", "src"]).args(lab.to(2));
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let until = Instant::now() + PATIENCE;
    // The last entry.
    while lab.join("h1/copy/src/sub/symlink").symlink_metadata().is_err() {
        assert!(process.is_running() && Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::write(lab.join("src/small8"), "another version").expect("a file");
    fs::write(lab.join("go"), "").expect("a file");
    let ended = process.wait();
    ended.expect(8);
    for said in ["h2 has another version than the others", "1 of 2 hosts failed; 1 succeeded"] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    assert_eq!(fs::read(lab.join("h2/copy/src/small8")).expect("a file"), b"another version");
    let failed = fs::read_to_string(lab.join("failed")).expect("a list");
    let hosts: Vec<&str> = failed.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(hosts.len() == 1 && hosts[0].starts_with("h2") && failed.contains("another version"), "{failed}");
    let report = fs::read_to_string(lab.join("report")).expect("a report");
    let told = |state: &str| report.contains(&format!(r#""host":"h2","state":"{state}""#));
    assert!(told("failed") && !told("done"), "{report}");
}

/// A host whose login takes long, and a host that hangs: the others do not wait for them, and
/// the late host gets its copy.
#[test]
fn hosts_that_are_late_hold_nobody() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    // h2 takes longer than any login is waited for; h3 hangs until its connection times out.
    let late = "case $1 in h2) sleep 8 ;; h3) sleep 9; echo 'h3: connection timed out' >&2; exit 255 ;; esac";
    lab.script("late", &format!("{late}\nexec sh -c \"exec $2\""));
    let mut arguments = vec!["-r".into(), "--json=report".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(4));
    let began = Instant::now();
    let mut command = lab.command(rdcp(), "late", AGENT);
    let mut process = Process::spawn(command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()));
    while ![1, 4].iter().all(|host| lab.join(&format!("h{host}/copy")).exists()) {
        assert!(began.elapsed() < Duration::from_secs(8), "they wait: {}", process.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = process.wait();
    ended.expect(8);
    for said in ["h2 has not answered yet", "h3: connection timed out", "1 of 4 hosts failed; 3 succeeded"] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    [1, 2, 4].iter().for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    assert!(!lab.join("h3/copy").exists());
    let report = fs::read_to_string(lab.join("report")).expect("a report");
    assert!(report.contains(r#""state":"starting""#), "{report}");
    // The outcome is reported as for a copy to one host, and the unreachable host is named.
    let events: Vec<serde_json::Value> = report.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of =
        |name: &str| events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    let (copied, failed, end) = (of("copied"), of("failed"), of("end"));
    assert!(copied["bytes"].as_u64() >= Some(1 << 20) && copied["level"] == "written", "{copied}");
    assert_eq!((failed["at"]["host"].as_str(), failed["at"]["path"].as_str()), (Some("h3"), Some("")), "{failed}");
    let waits = end["wait_seconds"].as_object().expect("times");
    assert!(waits.values().filter_map(serde_json::Value::as_f64).sum::<f64>() > 0.0, "{end}");
}

/// If no host answers for long, the hosts that everything waits for are named.
#[test]
fn hosts_that_are_all_late_are_named() {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    lab.script("late", "sleep 6\nexec sh -c \"exec $2\"");
    let mut arguments = vec!["-r".into(), lab.join("src").into_os_string()];
    arguments.extend(lab.to(2));
    let mut command = lab.command(rdcp(), "late", AGENT);
    let ended = Process::spawn(command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null())).wait();
    ended.expect(0);
    assert_eq!(ended.stderr.matches("h1, h2 have not answered yet; with ssh, -o").count(), 1, "{}", ended.stderr);
    [1, 2].iter().for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

/// If the host that gives a late host its copy dies, the late host gets the copy from the source at once. It does not
/// wait until the lost link could have come back.
#[test]
fn a_giver_that_dies_is_not_waited_for() {
    let lab = Lab::new();
    lab.tree("src", 32 << 20);
    lab.script("late", "case $1 in h2) sleep 6 ;; esac\nexec sh -c \"exec $2\"");
    let mut arguments = vec!["-r".into(), "--bwlimit=10M".into(), "--reconnect=90".into()];
    arguments.push(lab.join("src").into_os_string());
    arguments.extend(lab.to(2));
    let mut command = lab.command(rdcp(), "late", AGENT);
    let mut process = Process::spawn(command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()));
    lab.await_bytes(2, 4 << 20, &mut process);
    // It gives the copy, because it has everything by now.
    kill_process(lab.agent(1), Signal::KILL).expect("it runs");
    process.wait_for(Duration::from_secs(45)).expect(0);
    (1..=2).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
}

#[test]
fn the_time_of_logins_is_no_progress() {
    let lab = Lab::new();
    fs::write(lab.join("src"), b"short").expect("a file");
    lab.script("slow", "sleep 6\nexec sh -c \"exec $2\"");
    let runs = [None, Some("--sync")].map(|more| {
        let mut command = lab.command(rdcp(), "slow", AGENT);
        let to = (1..=2).flat_map(|host| {
            ["--to".into(), lab.there(&format!("h{host}"), &format!("into{}{host}", more.unwrap_or("")))]
        });
        command.args(["--progress", "src"]).args(more).args(to);
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
    });
    for mut run in runs {
        let ended = run.wait();
        ended.expect(0);
        assert!(!ended.stderr.contains("/2 hosts"), "{}", ended.stderr);
    }
}

/// The host with the sources is no longer needed once another host has everything, and can give it to a late host. A
/// host whose DST had entries before gives its tree to nobody, because it may have more than the source.
#[test]
fn the_source_may_go_once_a_host_has_everything() {
    std::thread::scope(|scope| {
        for is_new in [true, false] {
            scope.spawn(move || the_source_goes(is_new));
        }
    });
}

fn the_source_goes(is_new: bool) {
    let lab = Lab::new();
    lab.tree("src", 1 << 20);
    // The wait also ends if the test fails, because its directory then goes.
    let wait = format!("while [ -e '{0}/src' ] && ! [ -e '{0}/go' ]; do sleep 0.1; done", lab.0.path().display());
    lab.script("rsh", &format!("case $1 in h2) {wait} ;; esac\nexec sh -c \"exec $2\""));
    let mut arguments = vec!["-r".into(), "--json-fd=2".into(), lab.there("h9", "src")];
    arguments.extend(lab.to(2));
    if !is_new {
        fs::create_dir_all(lab.join("h1/copy/src")).expect("directories");
        fs::write(lab.join("h1/copy/src/own"), b"of before").expect("a file");
    }
    let mut process = lab.start_many(&arguments);
    process.line_with(r#""host":"h1","state":"done""#);
    kill_process(lab.agent(9), Signal::KILL).expect("it runs");
    process.line_with("lost h9, which has the sources");
    fs::write(lab.join("go"), b"").expect("a file");
    let ended = process.wait();
    if is_new {
        ended.expect(0);
        (1..=2).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
    } else {
        ended.expect(8);
        let why = "h2: the host with the sources no longer answers, and no other host can give it the rest";
        for said in [why, "1 of 2 hosts failed; 1 succeeded"] {
            assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
        }
        let [there, here] = ["h1/copy/src/large", "src/large"].map(|name| fs::read(lab.join(name)).expect("a file"));
        assert!(there == here && !lab.join("h2/copy").exists());
    }
}
