//! Messages: standard error of the stages, `-v`, `--json`, and what is not printed at all.

use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn lines_have_the_name_of_their_host() {
    let lab = Lab::new();
    let stages = ["h1:echo one >&2; printf two >&2", "h2:cat; echo three >&2", "echo four >&2; cat"];
    let sorted = |ran: &Ran| {
        ran.ended.expect(0);
        let mut lines: Vec<String> = ran.ended.stderr.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&lab.pipe(&stages)), ["h1: one", "h1: two", "h2: three", "localhost: four"]);
    let bare = lab.pipe(&[&["--no-label"], &stages[..]].concat());
    let mut text: Vec<String> = bare.ended.expect(0).stderr.split_whitespace().map(str::to_owned).collect();
    text.sort();
    // Without its newline the second line may be joined with another.
    assert_eq!(text.concat().len(), "onetwothreefour".len(), "{}", bare.ended.stderr);
    assert!(!bare.ended.stderr.contains("h1") && !bare.ended.stderr.contains("localhost"), "{}", bare.ended.stderr);
    // With a single host, lines need no name.
    assert_eq!(sorted(&lab.pipe(&["h1:echo one >&2"])), ["one"]);
    assert_eq!(sorted(&lab.pipe(&["h1:echo one >&2", "h1:echo two >&2"])), ["one", "two"]);
    assert_eq!(sorted(&lab.pipe(&["echo one >&2"])), ["one"]);
    // For a user at a host.
    let ran = lab.pipe(&["me@h1:echo one >&2", "h2:cat"]);
    assert!(["me@h1: one", "h1: one"].contains(&sorted(&ran).concat().as_str()), "{}", ran.ended.stderr);
    lab.deserted(GONE);
}

#[test]
fn many_and_long_lines_arrive_whole() {
    let lab = Lab::new();
    let stages = ["h1:seq 100000 >&2", "h2:cat; seq 100000 >&2; head -c 300000 /dev/zero | tr '\\0' z >&2"];
    let ran = lab.pipe(&stages);
    ran.ended.expect(0);
    for host in ["h1", "h2"] {
        let start = format!("{host}: ");
        let lines: Vec<&str> = ran.ended.stderr.lines().filter_map(|line| line.strip_prefix(&start)).collect();
        let numbers: Vec<u32> = lines.iter().filter_map(|line| line.parse().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=100_000), "{host}: {} of them, in order", numbers.len());
    }
    assert_eq!(ran.ended.stderr.matches('z').count(), 300_000);
    lab.deserted(GONE);
}

#[test]
fn an_error_comes_while_the_stage_still_runs() {
    let lab = Lab::new();
    let mut process = lab.start(&["h1:echo began >&2; cat", "h2:cat"]);
    process.line_with("h1: began");
    assert!(process.is_running());
    drop(process.stdin());
    finish(process, PATIENCE).quietly_ends("h1: began\n");
    lab.deserted(GONE);
}

impl Ran {
    #[track_caller]
    fn quietly_ends(&self, stderr: &str) {
        assert_eq!((self.ended.code, self.ended.stderr.as_str()), (0, stderr));
    }
}

#[test]
fn each_hop_is_told_of() {
    let lab = Lab::new();
    let bytes = noise(2_000_000);
    let ran = lab.pipe_with(&["-v", "fs1:cat", "fs2:head -c 1000000", "fs1:cat"], &bytes);
    same(&ran.output, &bytes[..1_000_000]);
    ran.ended.expect(0);
    let told = &ran.ended.stderr;
    for hop in ["localhost -> fs1: ", "fs1 -> fs2: ", "fs2 -> fs1: ", "fs1 -> localhost: "] {
        let start = format!("rdpipe: {hop}");
        let lines: Vec<&str> = told.lines().filter(|line| line.starts_with(&start)).collect();
        assert_eq!(lines.len(), 1, "{hop}{told}");
        assert!(lines[0].contains("B/s, tcp"), "{}", lines[0]);
    }
    assert!(told.contains("fs2 -> fs1: 977 KiB, "), "{told}");
    assert!(told.lines().all(|line| line.starts_with("rdpipe: ")), "{told}");
    // The stage that holds the others up is named.
    let slow = lab.pipe_with(&["-v", "fs1:cat", "fs2:sleep 2; cat", "fs3:cat"], &bytes);
    let last = slow.ended.expect(0).stderr.lines().last().unwrap_or_default().to_owned();
    assert!(last.contains("fs2"), "{}", slow.ended.stderr);
    lab.deserted(GONE);
}

#[test]
fn a_dry_run_says_who_listens() {
    let lab = Lab::new();
    for (options, line) in [
        (&["-n"][..], "data: h1 ('cat') -> h2 ('cat'); h2 listens on a free port"),
        (&["-n", "--port-range=7000-7010"], "data: h1 ('cat') -> h2 ('cat'); h2 listens on a port of 7000-7010"),
        (&["-n", "--relay"], "data: h1 ('cat') -> h2 ('cat'); h2 listens, through the launcher"),
    ] {
        let ran = lab.pipe(&[options, &["h1:cat", "h2:cat"]].concat());
        assert!(ran.text().lines().any(|told| told == line), "{options:?}: {}", ran.text());
    }
    assert!(lab.launches().is_empty());
}

#[test]
fn the_report_has_stages_and_hops() {
    let lab = Lab::new();
    let bytes = noise(3 * CHUNK + 1);
    let stages = ["--json=report", "--lanes", "1", "h1:cat", "h2:head -c 1000; cat >/dev/null", "tr a b"];
    let ran = lab.pipe_with(&stages, &bytes);
    ran.ended.expect(0);
    assert_eq!(ran.ended.stderr, "");
    let told = report(&lab.join("report"));
    assert_eq!(told["exit"], 0);
    let length = bytes.len() as u64;
    let list = |name: &str| told[name].as_array().unwrap_or_else(|| panic!("{name}: {told}")).clone();
    let wanted = [
        ("h1", "cat", length, Some(length)),
        ("h2", "head -c 1000; cat >/dev/null", length, Some(1000)),
        // This stage has rdpipe's own standard output, and the bytes written there are not counted.
        ("localhost", "tr a b", 1000, None),
    ];
    assert_eq!(list("stages").len(), 3);
    for (stage, (host, command, bytes_in, bytes_out)) in list("stages").iter().zip(wanted) {
        assert_eq!((stage["host"].as_str(), stage["command"].as_str()), (Some(host), Some(command)));
        assert_eq!((stage["exit"].as_i64(), stage["signal"].is_null()), (Some(0), true), "{stage}");
        assert_eq!((stage["bytes_in"].as_u64(), stage["bytes_out"].as_u64()), (Some(bytes_in), bytes_out), "{stage}");
        let seconds = stage["seconds"].as_f64().expect("a number");
        assert!(seconds > 0.0 && seconds < 60.0, "{stage}");
    }
    let wanted = [("localhost", "h1", length), ("h1", "h2", length), ("h2", "localhost", 1000)];
    assert_eq!(list("hops").len(), 3);
    for (hop, (from, to, bytes)) in list("hops").iter().zip(wanted) {
        assert_eq!((hop["from"].as_str(), hop["to"].as_str()), (Some(from), Some(to)));
        assert_eq!(hop["bytes"].as_u64(), Some(bytes), "{hop}");
        assert_eq!((hop["transport"].as_str(), hop["lanes"].as_u64()), (Some("tcp"), Some(1)), "{hop}");
        assert_eq!((hop["encrypted"].as_bool(), hop["retries"].as_u64()), (Some(false), Some(0)), "{hop}");
        assert!(hop["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{hop}");
        assert!(hop["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{hop}");
    }
    assert!(told.get("limiter").is_some(), "{told}");
    // To standard error if no file is named.
    let ran = lab.pipe_with(&["--json-fd=2", "h:cat"], b"x");
    assert_eq!(ran.ended.report()["exit"], 0);
    lab.deserted(GONE);
}

#[test]
fn the_report_of_a_failure() {
    let lab = Lab::new();
    let ran = lab.pipe_with(&["--json=report", "h1:cat; exit 3", "h2:cat; kill -KILL $$", "h3:cat"], b"12345");
    ran.fails(137, &["h2: ", "signal 9"]);
    let told = report(&lab.join("report"));
    assert_eq!(told["exit"], 137);
    assert_eq!(told["stages"][0]["exit"], 3);
    assert_eq!(told["stages"][1]["signal"], 9);
    assert_eq!(told["stages"][2]["exit"], 0);
    // A command that ends with 1 is no refused command, and an old report does not stay.
    lab.pipe_with(&["--json=report", "--report", "page", "h1:cat; exit 1"], b"").fails(1, &["h1"]);
    assert_eq!(report(&lab.join("report"))["exit"], 1);
    assert!(fs::read_to_string(lab.join("page")).is_ok_and(|page| page.contains("class=\"exit\" value=\"1\"")));
    // A report is written even if nothing began.
    fs::remove_file(lab.join("report")).expect("it is there");
    let launcher = lab.patchy();
    run(lab.rdpipe_by(launcher).args(["--json=report", "h1:cat", "away:cat"])).fails(3, &["away"]);
    assert_eq!(report(&lab.join("report"))["exit"], 3);
    lab.deserted(GONE);
}

#[test]
fn the_encryption_that_was_asked_for_is_told() {
    let lab = Lab::new();
    lab.pipe_with(&["--json=report", "--encrypt", "always", "h1:cat", "h2:cat"], b"x").gives(b"x");
    let told = report(&lab.join("report"));
    let hops = told["hops"].as_array().expect("hops");
    assert!(hops.len() == 3 && hops.iter().all(|hop| hop["encrypted"] == true), "{told}");
    lab.deserted(GONE);
}

#[test]
fn secrets_stay_out_of_sight() {
    let lab = Lab::new();
    let secret = "echo this-is-nobodys-business; sleep 30";
    let mut process = lab.start(&["h1:cat", &format!("h2:{secret}"), "cat"]);
    let mut output = process.stdout();
    std::io::Read::read_exact(&mut output, &mut [0; 10]).expect("it runs");
    let all = marked(lab.0.path());
    assert!(all.len() > 4, "{all:?}");
    for process in &all {
        for file in ["cmdline", "environ"] {
            let shown = fs::read(format!("/proc/{}/{file}", process.pid)).unwrap_or_default();
            let long_hex = shown.split(|byte| !byte.is_ascii_hexdigit()).any(|word| word.len() >= 64);
            assert!(!long_hex, "no key in {file} of {process:?}");
        }
        let is_stage = ["sh", "sleep"].contains(&process.name.as_str());
        assert!(is_stage || process.pid == first_of(&all) || !process.arguments.contains("nobodys"), "{process:?}");
    }
    for (_, host, command) in lab.launches() {
        assert_eq!(command, AGENT, "{host} is told nothing but what to start");
    }
    process.signal(rustix::process::Signal::TERM);
    process.wait_for(GONE).expect(143);
    lab.deserted(GONE);
}

/// Returns the caller, whose own arguments contain the commands.
fn first_of(all: &[Marked]) -> u32 {
    let is_it = |process: &&Marked| process.arguments.starts_with(&format!("{PROGRAM} rdpipe "));
    all.iter().find(is_it).map(|process| process.pid).expect("rdpipe itself")
}

#[test]
fn what_strangers_say_is_made_printable_in_our_lines() {
    let lab = Lab::new();
    let ran = lab.pipe(&[OsStr::from_bytes(b"h:exit 3 # \x1b]0;pwned\x07\n\xff")]);
    ran.ended.expect(3);
    assert!(!ran.ended.stderr.contains(['\x1b', '\x07']), "{:?}", ran.ended.stderr);
    ran.fails(3, &["h: ", "exit code 3"]);
    assert_eq!(ran.ended.stderr.lines().count(), 1, "one line: {:?}", ran.ended.stderr);
    lab.deserted(GONE);
}
