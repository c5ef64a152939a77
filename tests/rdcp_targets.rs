//! Destinations of `rdcp` when a command line names several hosts: what is refused before any host is contacted, the
//! file of failed hosts, how launchers are chosen and how many are started at once, and how much is read at once. Also
//! what becomes of destinations in which something is not deleted, and what a slash after a pattern means.

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
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

/// Nodes of an allocation are reached by srun, unless an option for ssh is typed, or srun is missing, as in a container.
/// A setting for ssh does not say that ssh is to be used.
#[test]
fn an_option_for_ssh_chooses_ssh() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("settings", b"ssh-port = 2222\n");
    for program in ["ssh", "srun"] {
        lab.script(program, &format!(": >'{}'; exit 255", lab.join(&format!("by-{program}")).display()));
    }
    fs::create_dir(lab.join("container")).expect("a directory");
    fs::copy(lab.join("ssh"), lab.join("container/ssh")).expect("a copy");
    for (typed, settings, program) in [
        (&[][..], "none", "srun"),
        (&[], "settings", "srun"),
        (&[], "container", "ssh"),
        (&["-P", "22"], "none", "ssh"),
        (&["-P", "22"], "settings", "ssh"),
        (&["-o", "StrictHostKeyChecking=no"], "none", "ssh"),
        (&["-4"], "settings", "ssh"),
        (&["-i", "key"], "none", "ssh"),
    ] {
        let mut command = rdcp();
        command.args(typed).args(["source", "n[1-2]:copy"]).current_dir(lab.0.path());
        command.env("SLURM_JOB_ID", "1").env("SLURM_JOB_NODELIST", "n[1-2]");
        command.env("PATH", if settings == "container" { lab.join("container") } else { lab.join("") });
        command.env("HOME", lab.join("home")).env("XDG_RUNTIME_DIR", lab.join("home"));
        if settings == "settings" {
            command.env("RDMA_PIPE_CONFIG", lab.join(settings));
        }
        let ended = ended(&mut command);
        assert!(ended.code == 3, "{typed:?}: {}", ended.stderr);
        for known in ["ssh", "srun"] {
            let is_called = fs::remove_file(lab.join(&format!("by-{known}"))).is_ok();
            assert_eq!(is_called, known == program, "{typed:?} {settings}: {}", ended.stderr);
        }
    }
}

/// A list of hosts is one also if it has a single host, as that of the hosts that failed.
#[test]
fn a_list_of_a_single_node_is_reached_by_srun() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.0.file("list", b"n1\n");
    for program in ["ssh", "srun"] {
        lab.script(program, &format!(": >'{}'; exit 255", lab.join(&format!("by-{program}")).display()));
    }
    for (program, arguments) in [("rdcp", &["source", "copy"][..]), ("rddoctor", &["--seconds", "0"])] {
        let mut command = Command::new(PROGRAM);
        command.arg(program).args(["--hosts", "list"]).args(arguments).current_dir(lab.0.path());
        command.env_remove("RDCP_RSH").env_remove("RD_KEY").env("RDMA_PIPE_CONFIG", "none");
        command.env("SLURM_JOB_ID", "1").env("SLURM_JOB_NODELIST", "n[1-2]").env("PATH", lab.0.path());
        command.env("HOME", lab.join("home")).env("XDG_RUNTIME_DIR", lab.join("home"));
        let ended = ended(&mut command);
        let [ssh, srun] = ["ssh", "srun"].map(|known| fs::remove_file(lab.join(&format!("by-{known}"))).is_ok());
        assert!(srun && !ssh, "{program}: {}", ended.stderr);
    }
}

/// A heterogeneous job has a list of nodes for each component. The usual variable names those of the first alone, or
/// those of another job, which was submitted from this one and has inherited the lists.
#[test]
fn an_allocation_has_the_nodes_of_all_components() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.script("lost", &format!("echo \"$1\" >>'{}'; exit 255", lab.join("hosts").display()));
    let cases = "'n1,n[2-3]') printf 'n1\\nn2\\nn3\\n' ;; 'n[8-9]') printf 'n8\\nn9\\n' ;; *) exit 1 ;;";
    let program = format!("#!/bin/sh\ncase $3 in {cases} esac\n");
    fs::set_permissions(lab.0.file("scontrol", program.as_bytes()), fs::Permissions::from_mode(0o755)).expect("ours");
    for (own, second, code, hosts) in [
        (Some("n1"), Some("n[2-3]"), 3, &["n1", "n2", "n3"][..]),
        (None, Some("n[2-3]"), 3, &["n1", "n2", "n3"]),
        (Some("n[8-9]"), Some("n[2-3]"), 3, &["n8", "n9"]),
        (Some("n1"), None, 1, &[]),
    ] {
        let mut command = lab.command(rdcp(), "lost", AGENT);
        command.args(["--hosts", "slurm", "source", "copy"]).env("PATH", lab.0.path());
        command.env("SLURM_JOB_ID", "1").env("SLURM_HET_SIZE", "2").env("SLURM_JOB_NODELIST_HET_GROUP_0", "n1");
        for (name, list) in [("SLURM_JOB_NODELIST", own), ("SLURM_JOB_NODELIST_HET_GROUP_1", second)] {
            match list {
                Some(list) => command.env(name, list),
                None => command.env_remove(name),
            };
        }
        let ended = ended(&mut command);
        ended.expect(code);
        let text = fs::read_to_string(lab.join("hosts")).unwrap_or_default();
        let _ = fs::remove_file(lab.join("hosts"));
        let mut reached: Vec<&str> = text.lines().collect();
        reached.sort_unstable();
        assert_eq!(reached, hosts, "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("SLURM_JOB_NODELIST_HET_GROUP_1 is not set"), code == 1, "{}", ended.stderr);
    }
}

/// What a job has asked for, or a person wants to see of it, is not meant for an agent's srun, which would take it for
/// its own options.
#[test]
fn srun_is_given_nothing_of_what_the_job_asked_for() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    lab.script("srun", &format!("{{ export -p; printf '%s\\n' \"$@\"; }} >'{}'; exit 1", lab.join("given").display()));
    let mut command = rdcp();
    command.args(["--launcher", "slurm", "--agent", AGENT, "source", "n1:copy"]).current_dir(lab.0.path());
    command.env("PATH", lab.0.path()).env("HOME", lab.join("home")).env("SLURM_JOB_ID", "1");
    let unwanted = [
        "SLURM_GPUS",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GRES",
        "SLURM_MEM_PER_CPU",
        "SLURM_MEM_PER_NODE",
        "SLURM_EXPORT_ENV",
        "SLURM_DEBUG",
        "SLURM_LABELIO",
    ];
    command.env_remove("SLURM_GPUS").env_remove("SLURM_GPUS_PER_SOCKET");
    let given = |command: &mut Command| {
        ended(command).expect(3);
        fs::read_to_string(lab.join("given")).expect("it was called")
    };
    assert!(!given(&mut command).contains("--gres"), "a stage of rdpipe has the job's GPUs");
    command.envs(unwanted.map(|name| (name, "1")));
    let in_job = given(&mut command);
    let has = |option: &str| in_job.contains(&format!("\n{option}\n"));
    assert!(in_job.contains("SLURM_JOB_ID=") && has("--gres=none") && has("--mem=0"), "{in_job}");
    unwanted.iter().for_each(|name| assert!(!in_job.contains(&format!("{name}=")), "{in_job}"));
    // Outside a job they are what the person asks for.
    let outside = given(command.env_remove("SLURM_JOB_ID"));
    assert!(!outside.contains("--mem") && outside.contains("SLURM_MEM_PER_CPU="), "{outside}");
    assert!(outside.contains("SLURM_MEM_PER_NODE="), "{outside}");
}

/// A gateway with too many logins at once closes some of the connections, and takes them a moment later.
#[test]
fn a_login_that_is_turned_away_is_tried_again() {
    let lab = Lab::new();
    lab.0.file("source", b"1");
    let at = lab.0.path().display();
    let refuse = "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255";
    let last = "while [ $# -gt 2 ]; do shift; done";
    let tried = format!("echo 1 >>'{at}'/tries-$1");
    let first = format!("if [ \"$1\" = full ] || ! [ -e '{at}'/been-$1 ]; then : >'{at}'/been-$1; {refuse}; fi");
    lab.script("ssh", &format!("{last}\n{tried}\n{first}\nexec sh -c \"exec $2\""));
    let run = |hosts: &[&str]| {
        let mut command = lab.command(rdcp(), "ssh", AGENT);
        command
            .arg("source")
            .args(hosts.iter().flat_map(|host| ["--to".into(), lab.there(host, &format!("to-{host}"))]));
        ended(&mut command)
    };
    let tries = |host: &str| fs::read_to_string(lab.join(&format!("tries-{host}"))).expect("tries").lines().count();
    let ended = run(&["h1", "h2", "full"]);
    ended.expect(8);
    assert!(
        ended.stderr.contains("closed by remote host; too many logins at once? see --parallel"),
        "{}",
        ended.stderr
    );
    assert_eq!(["h1", "h2", "full"].map(tries), [2, 2, 4]);
    assert!(["to-h1", "to-h2"].iter().all(|copy| lab.join(copy).exists()), "{}", ended.stderr);
    // A single login is not one of too many.
    let ended = run(&["h3"]);
    ended.expect(3);
    assert!(tries("h3") == 1 && !ended.stderr.contains("--parallel"), "{}", ended.stderr);
}

/// The copies that the source gives at the same time share its limit, four at most. A host that is added while others
/// have a copy has its share too.
#[test]
fn a_source_is_read_no_faster_for_several_hosts() {
    let lab = Lab::new();
    lab.0.file("source", &noise(1 << 20));
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--sync", "--bwlimit=1M", "source"]);
    for host in ["h1", "h2"] {
        command.arg("--to").arg(lab.there(host, &format!("to-{host}")));
    }
    let began = Instant::now();
    ended(&mut command).expect(0);
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds > 1.6, "1 MiB at half of 1 MiB/s in {seconds} s");
}

/// What `--hosts-failed` would replace or remove.
#[test]
fn a_file_that_is_no_list_of_hosts_is_not_lost() {
    let lab = Lab::new();
    lab.0.file("source", b"h9\n");
    lab.0.file("weights", &[0; 100]);
    for (name, bytes) in [("weights", &[0; 100][..]), ("source", b"h9\n"), ("./source", b"h9\n")] {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        let ended = ended(command.args(["source", "h1:x", "--hosts-failed", name]));
        ended.expect(1).one_line("rdcp", &[&format!("--hosts-failed {name}: "), "name another file"]);
        assert_eq!(fs::read(lab.join(name)).expect("as it was"), bytes);
    }
    assert!(lab.launches().is_empty());
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

/// No host has failed if there is nothing to copy. The list of an earlier copy, whose hosts still lack theirs, stays.
#[test]
fn a_missing_source_is_the_failure_of_no_host() {
    let lab = Lab::new();
    for list in [None, Some("h1\n")] {
        if let Some(list) = list {
            lab.0.file("failed", list.as_bytes());
        }
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["nosuch", "--hosts-failed", "failed"]).arg(lab.there("h1", "one"));
        ended(command.arg("--to").arg(lab.there("h2", "two"))).expect(5);
        assert_eq!(fs::read_to_string(lab.join("failed")).ok().as_deref(), list);
    }
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

/// As after a name that is written out: with `--sync` the contents are meant, and a link is followed.
#[test]
fn a_slash_after_a_pattern_counts() {
    let lab = Lab::new();
    for name in ["my dir", "p-1", "p-2", "a", "b", "c", "d"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    for name in ["my dir/f", "p-1/one", "p-2/two"] {
        lab.0.file(name, b"1");
    }
    std::os::unix::fs::symlink("p-1", lab.join("current")).expect("a link");
    for (is_synced, from, to, copies) in [
        (true, "my\\ dir/", "a", &["f"][..]),
        (true, "p*1/", "b", &["one"]),
        (true, "p-*/", "c", &["one", "two"]),
        (false, "cur*/", "d", &["current/one"]),
    ] {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(is_synced.then_some("--sync")).arg("-r").arg(lab.there("h", from)).arg(lab.join(to));
        let ended = ended(&mut command);
        ended.expect(0);
        for copy in copies {
            assert!(lab.join(to).join(copy).is_file(), "{from}: {copy} is missing: {}", ended.stderr);
        }
    }
    assert!(fs::symlink_metadata(lab.join("d/current")).expect("a copy").is_dir(), "the link was copied");
}

/// A source that is its own destination is not merged with the others, and what only it has is not deleted.
#[test]
fn a_merged_source_that_is_its_own_destination_loses_nothing() {
    for (from, to) in [("", ""), ("", "h1"), ("h1", ""), ("h1", "h1"), ("h1", "h2")] {
        let lab = Lab::new();
        for name in ["a/x", "dst/x"] {
            fs::create_dir_all(lab.join(name)).expect("directories");
        }
        lab.0.file("a/x/new", b"1");
        lab.0.file("dst/x/only", b"1");
        let at = |host: &str, name: &str| match host {
            "" => lab.join(name).into_os_string(),
            host => lab.there(host, name),
        };
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args(["-r", "--sync", "--delete"]).args([at(from, "a/x"), at(from, "dst/x"), at(to, "dst")]);
        let ended = ended(&mut command);
        ended.expect(5);
        assert!(ended.stderr.contains("nothing copied: with merged sources"), "{from} {to}: {}", ended.stderr);
        assert!(lab.join("dst/x/only").exists() && !lab.join("dst/x/new").exists(), "{from} {to}");
    }
    // One that is merged with no other is left out alone.
    let lab = Lab::new();
    for name in ["a/x", "b/x", "dst/x", "dst/z"] {
        fs::create_dir_all(lab.join(name)).expect("directories");
    }
    for name in ["a/x/new", "b/x/newer", "dst/x/old", "dst/z/kept"] {
        lab.0.file(name, b"1");
    }
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    let sources = ["a/x", "b/x", "dst/z", "dst"].map(|name| lab.join(name));
    let ended = ended(command.args(["-r", "--sync", "--delete"]).args(sources));
    ended.expect(8);
    let is_there = ["x/new", "x/newer", "x/old", "z/kept"].map(|name| lab.join("dst").join(name).exists());
    assert_eq!(is_there, [true, true, false, true], "{}", ended.stderr);
}

/// What was not deleted on several hosts does not count as an entry that was not copied.
#[test]
fn hosts_where_not_everything_was_deleted_have_the_copy() {
    let lab = Lab::new();
    for name in ["src", "one", "two"] {
        fs::create_dir(lab.join(name)).expect("a directory");
    }
    for name in ["src/new", "one/old", "two/old"] {
        lab.0.file(name, b"1");
    }
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    command.args(["--sync", "-r", "--delete", "--max-delete=0", "--hosts-failed", "failed", "src/"]);
    let ended = ended(command.arg(lab.there("h1", "one")).arg("--to").arg(lab.there("h2", "two")));
    ended.expect(8);
    assert_eq!(ended.stderr.matches("--max-delete keeps 1 entry").count(), 2, "{}", ended.stderr);
    assert!(!ended.stderr.contains("not copied in full"), "{}", ended.stderr);
    let failed = fs::read_to_string(lab.join("failed")).expect("a list");
    assert_eq!(failed.matches("not everything that the source lacks was deleted").count(), 2, "{failed}");
    for name in ["one/new", "two/new", "one/old", "two/old"] {
        assert!(lab.join(name).exists(), "{name}");
    }
}

/// All sources go into one request to each host. Those that cannot are refused before anything is copied.
#[test]
fn more_names_than_fit_into_a_request_are_refused_in_time() {
    for (from, count, code) in [("", 500, 0), ("h9", 700, 1), ("", 1400, 1)] {
        let lab = Lab::new();
        for name in ["from", "one", "two"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        let source = |number: usize| {
            let name = format!("from/{}{number:04}", "n".repeat(200));
            lab.0.file(&name, b"");
            if from.is_empty() { OsString::from(name) } else { lab.there(from, &name) }
        };
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        command.args((0..count).map(source)).arg(lab.there("h1", "one")).arg("--to").arg(lab.there("h2", "two"));
        let ended = ended(&mut command);
        ended.expect(code);
        assert_eq!(ended.stderr.contains("too many SRC for a copy to several hosts"), code == 1, "{}", ended.stderr);
        for name in ["one", "two"] {
            let copies = fs::read_dir(lab.join(name)).expect("a directory").count();
            assert_eq!(copies, if code == 0 { count } else { 0 }, "{from} {name}");
        }
    }
}

/// A missing source is a failure, and a host where the source itself stands is none, as when the copy is made.
#[test]
fn a_dry_run_to_several_hosts_ends_as_the_copy_would() {
    for is_dry in [true, false] {
        let lab = Lab::new();
        lab.0.file("file", b"1");
        for name in ["one", "two"] {
            fs::create_dir(lab.join(name)).expect("a directory");
        }
        let run = |sources: &[&str], first: &str| {
            let mut command = lab.command(rdcp(), "rsh", AGENT);
            command.args(is_dry.then_some("-n")).args(sources);
            ended(command.arg(lab.there("h1", first)).arg("--to").arg(lab.there("h2", "two")))
        };
        run(&["file"], "").expect(0);
        run(&["file", "nosuch"], "one").expect(8);
        assert_eq!(lab.join("two/file").exists(), !is_dry);
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
