//! Effects of the options, as far as one machine can show them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::*;
use crate::usage::ended;

/// Returns the number of bytes that went from sender to receiver through a counting proxy, for an input and options.
#[track_caller]
fn wire_bytes(send_options: &[&str], recv_options: &[&str], input: &[u8]) -> u64 {
    let (mut recv, port) = start_recv(recv_options, None);
    let output = drain(recv.stdout());
    let proxy = proxy::Proxy::start(port, proxy::Plan::default());
    let mut send = start_send(send_options, proxy.port(), None);
    feed(send.stdin(), input.to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), input);
    proxy.forwarded(proxy::Way::Up)
}

#[test]
fn compression_gives_right_bytes_and_fewer_of_them_on_the_wire() {
    let input = text(4 * CHUNK + 321);
    let plain = wire_bytes(&["--compress", "off"], &[], &input);
    assert!(plain >= input.len() as u64, "{plain}");
    for how in ["lz4", "zstd"] {
        let wire = wire_bytes(&["--compress", how], &[], &input);
        assert!(wire < plain / 4, "{how}: {wire} of {plain}");
    }
}

#[test]
fn what_does_not_shrink_is_sent_as_it_is() {
    let input = noise(3 * CHUNK);
    for how in ["lz4", "zstd", "auto"] {
        let wire = wire_bytes(&["--compress", how], &[], &input);
        assert!(wire < input.len() as u64 + 20_000, "{how}: {wire} of {}", input.len());
    }
}

#[test]
fn automatic_compression_sets_in_when_the_link_is_slow() {
    let input = text(24 * CHUNK);
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let plan = proxy::Plan { bytes_per_second: Some(8 << 20), ..proxy::Plan::default() };
    let proxy = proxy::Proxy::start(port, plan);
    let mut send = start_send(&["--compress", "auto", "--buffer", "4M"], proxy.port(), None);
    feed(send.stdin(), input.clone());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
    let wire = proxy.forwarded(proxy::Way::Up);
    assert!(wire < input.len() as u64 * 3 / 4, "{wire} of {}", input.len());
}

#[test]
fn encryption_as_asked_for_and_what_auto_makes_of_it() {
    let input = text(2 * CHUNK);
    // On loopback both addresses belong to this host, so `auto` does not encrypt.
    let table = [
        ("auto", "auto", false),
        ("always", "auto", true),
        ("auto", "always", true),
        ("never", "auto", false),
        ("auto", "never", false),
        ("always", "always", true),
    ];
    for (ours, theirs, encrypted) in table {
        let (mut recv, port) = start_recv(&["--json-fd=2", "--encrypt", theirs], None);
        let output = drain(recv.stdout());
        let proxy = proxy::Proxy::start(port, proxy::Plan { record: true, ..proxy::Plan::default() });
        let mut send = start_send(&["--json-fd=2", "--encrypt", ours], proxy.port(), None);
        feed(send.stdin(), input.clone());
        let (send, recv) = (send.wait(), recv.wait());
        for ended in [&send, &recv] {
            assert_eq!(ended.expect(0).report()["encrypted"], encrypted, "{ours} {theirs}");
        }
        same(&output.join().expect("no panic"), &input);
        let sent = proxy.recorded(proxy::Way::Up).concat();
        let readable = sent.windows(24).any(|window| window == &input[..24]);
        assert_eq!(readable, !encrypted, "{ours} {theirs}: the data can be read on the wire");
    }
}

#[test]
fn always_against_never_is_refused_at_both_ends() {
    let (mut recv, port) = start_recv(&["--encrypt", "never", "--wait", "2"], None);
    let mut send = start_send(&["--encrypt", "always"], port, None);
    send.wait().expect(3).one_line("rdsend", &["--encrypt", "always", "never"]).within(SOON);
    // The receiver reports that, and waits for another sender.
    recv.line_with("--encrypt");
    let ended = recv.wait();
    let last = ended.expect(3).stderr.lines().last().unwrap_or_default();
    assert!(last.contains("--encrypt") && last.contains("no sender could be served"), "{last}");
}

#[test]
fn rdma_without_a_device_is_refused_and_preferring_it_falls_back() {
    // On a host with a device this proves nothing. The hosts of hosts.rs certainly have none.
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return not_run("this machine has an RDMA device");
    }
    let (_recv, port) = start_recv::<&str>(&[], None);
    start_send(&["--transport", "rdma"], port, None).wait().expect(3).one_line("rdsend", &["transport"]);
    let input = noise(1000);
    let both = transfer(&["--transport", "prefer-rdma"], &[], &input);
    both.well(&input);
    both.send.one_line("rdsend", &["RDMA", "TCP"]);
}

#[test]
fn lanes_as_asked_for() {
    let input = noise(12 * CHUNK);
    for (ours, theirs, lanes) in [("1", "1", 1), ("4", "4", 4), ("4", "1", 1), ("16", "16", 16)] {
        let both = transfer(&["--json-fd=2", "--lanes", ours], &["--json-fd=2", "--lanes", theirs], &input);
        both.well(&input);
        // Further lanes come up while data flows. A short stream may be over before the last of them is up.
        for ended in [&both.send, &both.recv] {
            let used = ended.report()["lanes"].as_u64().expect("a number");
            assert!((1..=lanes).contains(&used), "{ours} {theirs}: {used}");
        }
    }
}

#[test]
fn four_lanes_all_carry_data() {
    let input = noise(24 * CHUNK);
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let plan = proxy::Plan { bytes_per_second: Some(16 << 20), ..proxy::Plan::default() };
    let proxy = proxy::Proxy::start(port, plan);
    let mut send = start_send(&["--lanes", "4", "--json-fd=2"], proxy.port(), None);
    feed(send.stdin(), input.clone());
    let send = send.wait();
    assert_eq!(send.expect(0).report()["lanes"], 4);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), &input);
    let by_lane = proxy.forwarded_by_connection(proxy::Way::Up);
    assert_eq!(by_lane.len(), 4);
    assert!(by_lane.iter().all(|&bytes| bytes > CHUNK as u64), "{by_lane:?}");
}

#[test]
fn the_smaller_chunk_counts() {
    let input = noise(3 * CHUNK + 5);
    for (ours, theirs) in [("4K", "1M"), ("1M", "64K"), ("100000", "1M")] {
        transfer(&["--chunk", ours], &["--chunk", theirs], &input).well(&input);
    }
}

#[test]
fn the_smallest_and_a_large_buffer() {
    let input = noise(6 * CHUNK + 5);
    for (ours, theirs) in [("64K", "64K"), ("64K", "256M"), ("256M", "64K"), ("256M", "256M"), ("1", "1")] {
        transfer(&["--buffer", ours], &["--buffer", theirs], &input).well(&input);
    }
}

#[test]
fn a_rate_limit_holds() {
    let input = noise(3_000_000);
    let start = Instant::now();
    let both = transfer(&["--bwlimit", "2MB"], &[], &input);
    let seconds = start.elapsed().as_secs_f64();
    both.well(&input);
    assert!((1.2..4.0).contains(&seconds), "3 MB at 2 MB/s: {seconds} s");
}

#[test]
fn the_report_has_every_field() {
    let scratch = Scratch::new();
    let input = noise(2 * CHUNK + 9);
    let file = scratch.join("report");
    let option = format!("--json={}", file.display());
    let both = transfer(&["--json-fd=2"], &[&option], &input);
    both.well(&input);
    let written = std::fs::read_to_string(&file).expect("the report");
    let there: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    for report in [both.send.report(), there] {
        assert_eq!(report["bytes"], input.len());
        assert_eq!(report["transport"], "tcp");
        assert_eq!(report["encrypted"], false);
        assert_eq!(report["retries"], 0);
        assert_eq!(report["exit"], 0);
        assert!(report["error"].is_null());
        assert!(report["lanes"].as_u64().expect("a number") >= 1);
        let seconds = report["seconds"].as_f64().expect("a number");
        assert!(seconds > 0.0 && seconds < 30.0, "{seconds}");
        let rate = report["gb_per_s"].as_f64().expect("a number");
        assert!((rate - input.len() as f64 / 1e9 / seconds).abs() < 0.02 * rate + 1e-5, "{rate} in {seconds} s");
        for waited_for in ["source", "cpu", "credits", "wire", "sink"] {
            let waited = report["wait_seconds"][waited_for].as_f64().expect("a number");
            assert!((0.0..=seconds + 0.1).contains(&waited), "{waited_for}: {waited} of {seconds}");
        }
    }
}

#[test]
fn the_report_tells_what_limits() {
    let mut send_report = None;
    // A source that pauses, then a sink that pauses.
    let (mut recv, port) = start_recv(&["--json-fd=2"], None);
    let output = drain(recv.stdout());
    let mut send = start_send(&["--json-fd=2"], port, None);
    let mut pipe = send.stdin();
    for _ in 0..8 {
        pipe.write_all(&noise(10_000)).expect("rdsend reads");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(pipe);
    send_report.replace(send.wait().expect(0).report());
    recv.wait().expect(0);
    drop(output);
    let report = send_report.expect("just set");
    let source = report["wait_seconds"]["source"].as_f64().expect("a number");
    assert!(source > 0.5, "0.8 s of waiting for the source: {report}");
}

#[test]
fn verbose_prints_the_bandwidth_line() {
    let input = noise(CHUNK);
    let both = transfer(&["-v"], &["-v"], &input);
    both.well(&input);
    for ended in [&both.send, &both.recv] {
        let line = ended.stderr.lines().last().expect("a line");
        let rate = line.strip_prefix("Bandwidth ").and_then(|rest| rest.split_once(' '));
        let (number, unit) = rate.unwrap_or_else(|| panic!("{line:?} is not like `Bandwidth 5.10 GB/s`"));
        let is_rate = match unit {
            "GB/s" => number.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 2),
            "MB/s" | "kB/s" | "B/s" => number.parse::<u32>().is_ok_and(|number| (1..1000).contains(&number)),
            _ => false,
        };
        assert!(is_rate, "{line}");
    }
}

#[test]
fn quiet_and_plain_runs_print_nothing() {
    let input = noise(CHUNK);
    let port = free_port();
    let mut command = rdrecv();
    command.args(["-q", &port.to_string(), KEY]).stdin(std::process::Stdio::null());
    let mut recv = Process::spawn(command.stdout(std::process::Stdio::piped()));
    let output = drain(recv.stdout());
    let mut send = start_send(&["-q"], port, None);
    feed(send.stdin(), input.clone());
    for ended in [send.wait(), recv.wait()] {
        assert_eq!(ended.expect(0).stderr, "");
    }
    same(&output.join().expect("no panic"), &input);
    let both = transfer(&[], &[], &input);
    assert_eq!(both.well(&input).send.stderr, "");
}

#[test]
fn nobody_comes_within_the_wait() {
    let mut command = rdrecv();
    command.args(["--wait", "1", "0", KEY]).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let start = Instant::now();
    Process::spawn(&mut command).wait().expect(3).one_line("rdrecv", &["--wait"]);
    let seconds = start.elapsed().as_secs_f64();
    assert!((0.9..3.0).contains(&seconds), "{seconds}");
}

#[test]
fn nobody_listens_within_the_connect_timeout() {
    let start = Instant::now();
    let port = free_port();
    let ended = start_send(&["--connect-timeout", "1"], port, None).wait();
    ended.expect(3).one_line("rdsend", &[&format!("127.0.0.1:{port}"), "refused", "errno 111"]);
    let seconds = start.elapsed().as_secs_f64();
    assert!((0.7..3.0).contains(&seconds), "{seconds}");
}

#[test]
#[ignore = "long"]
fn the_connect_timeout_is_ten_seconds_by_default() {
    let start = Instant::now();
    start_send::<&str>(&[], free_port(), None).wait().expect(3);
    let seconds = start.elapsed().as_secs_f64();
    assert!((9.5..13.0).contains(&seconds), "{seconds}");
}

/// A report never overwrites data that is moved, or another report.
#[test]
fn a_report_is_a_file_of_its_own() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"precious");
    std::os::unix::fs::symlink("source", scratch.join("link")).expect("a link");
    std::fs::create_dir(scratch.join("tree")).expect("a directory");
    let refused = |mut command: Command, arguments: &[&str], name: &str, parts: &[&str]| {
        command.current_dir(scratch.path()).args(arguments).stdin(Stdio::null());
        ended(&mut command).expect(1).one_line(name, parts);
        assert_eq!(std::fs::read(&source).expect("it"), b"precious", "{arguments:?}");
    };
    for name in ["source", "./source", "link"] {
        for option in ["--json", "--report", "--trace"] {
            let report = format!("{option}={name}");
            let parts = [option, "is also FILE"];
            refused(rdsend(), &[&report, "127.0.0.1", "1", KEY, "source"], "rdsend", &parts);
            refused(rdrecv(), &[&report, "0", KEY, "source"], "rdrecv", &parts);
            refused(rdcp(), &[&report, "source", "copy"], "rdcp", &[option, "is also SRC"]);
            refused(rdcp(), &[&report, "/dev/null", "source"], "rdcp", &[option, "is also DST"]);
        }
    }
    refused(rdcp(), &["--trace=none/t", "source", "copy"], "rdcp", &["cannot write the trace to none/t: "]);
    refused(rdcp(), &["--report=none/p", "source", "copy"], "rdcp", &["cannot write the report to none/p: "]);
    refused(rdrecv(), &["--json=new", "0", KEY, "new"], "rdrecv", &["--json new", "FILE"]);
    refused(
        rdsend(),
        &["--json=new", "--trace=new", "127.0.0.1", "1", KEY, "source"],
        "rdsend",
        &["--trace new", "--json"],
    );
    refused(rdcp(), &["-r", "--json=new", "--manifest=./new", "tree", "copy"], "rdcp", &["--json new", "--manifest"]);
    for redirected in ["\"$@\" <source", "\"$@\" >>source"] {
        let mut command = if redirected.contains('<') { rdsend() } else { rdrecv() };
        let is_sender = redirected.contains('<');
        let words: &[&str] = if is_sender { &["127.0.0.1", "1", KEY] } else { &["0", KEY] };
        let command = in_shell(redirected, command.arg("--json=source").args(words));
        let (name, what) = if is_sender { ("rdsend", "standard input") } else { ("rdrecv", "standard output") };
        refused(command, &[], name, &["--json source", what]);
    }
    let mut command = rdrecv();
    let command = in_shell("\"$@\" | cat", command.args(["--json=/dev/stdout", "0", KEY]));
    let output = { command }.stderr(Stdio::piped()).output().expect("run");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is also standard output"), "{output:?}");
    // A file to be written in DST, and the file that standard output is.
    refused(rdcp(), &["--json=tree/source", "source", "tree"], "rdcp", &["--json tree/source", "the copy in DST"]);
    let mut command = rdcp();
    let command = in_shell("\"$@\" >page.html", command.args(["--json=-", "--report=page.html", "source", "copy"]));
    refused(command, &[], "rdcp", &["--report page.html", "--json"]);
    // A report may share a pipe with other lines.
    let mut command = rdcp();
    let command =
        in_shell("\"$@\" 2>&1 | cat", command.args(["-r", "--itemize-changes", "--json-fd=2", "source", "copy"]));
    let output = { command }.current_dir(scratch.path()).output().expect("run");
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"event\":\"end\""), "{output:?}");
    // A special file may be used for several purposes.
    let target = scratch.join("target");
    let (mut recv, port) = start_recv(&["--json=/dev/null"], Some(&target));
    start_send(&["--json=/dev/null"], port, Some(Path::new("/dev/null"))).wait().expect(0);
    recv.wait().expect(0);
}

/// A report that would be part of the copy is refused, and what it would have overwritten stays.
#[test]
fn a_report_in_what_is_copied_is_refused() {
    let scratch = Scratch::new();
    for directory in ["src/sub", "dst"] {
        std::fs::create_dir_all(scratch.join(directory)).expect("a directory");
    }
    let precious = [scratch.file("src/sub/file", b"precious"), scratch.file("dst/file", b"precious")];
    let run = |arguments: &[&str]| ended(rdcp().current_dir(scratch.path()).args(arguments));
    for arguments in [
        &["-r", "--json=src/sub/file", "src", "copy"][..],
        &["-r", "--json=src/new", "src/", "copy"],
        &["-n", "-r", "--json=src/sub/file", "src", "copy"],
        &["--sync", "-r", "--delete", "--json=dst/file", "src/", "dst"],
        &["--sync", "-r", "--delete", "--json=dst/new", "src/", "dst"],
        // A stream gets the refusal as an event; a file is left alone.
        &["-r", "--json", "--report=src/sub/file", "src", "copy"],
        &["--sync", "-r", "--delete", "--json-fd=2", "--trace=dst/file", "src/", "dst"],
        // A missing source is reported before.
        &["-r", "--json=src/sub/file", "missing", "src", "dst"],
    ] {
        let ended = run(arguments);
        assert!(ended.expect(1).stderr.contains("which is copied; choose another path"), "{}", ended.stderr);
        for file in &precious {
            assert_eq!(std::fs::read(file).expect("it stays"), b"precious", "{arguments:?}");
        }
        assert!(!scratch.join("copy").exists() && !scratch.join("src/new").exists(), "{arguments:?}");
        assert!(!scratch.join("dst/new").exists(), "{arguments:?}");
    }
    // A longer file is replaced, and not only its beginning.
    let told = scratch.file("told", &[b'x'; 100_000]);
    run(&["-r", "--json=told", "src", "first"]).expect(0);
    let text = std::fs::read_to_string(told).expect("a report");
    assert!(text.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{text}");
    assert!(text.contains("\"event\":\"end\""), "{text}");
    // What is no file may be anywhere.
    let ended = run(&["-r", "--json=/dev/stderr", "src", "second"]);
    assert!(ended.expect(0).stderr.contains("\"event\":\"end\""), "{}", ended.stderr);
    let fifo = scratch.join("src/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
    let mut pipe = std::fs::File::from(rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()).expect("a FIFO"));
    run(&["-r", "--json=src/fifo", "src", "third"]).expect(0);
    let mut text = vec![0; 64 << 10];
    let count = pipe.read(&mut text).expect("a report");
    assert!(String::from_utf8_lossy(&text[..count]).contains("\"event\":\"end\""));
}

#[test]
fn the_last_event_says_that_the_page_could_not_be_written() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("sub")).expect("a directory");
    let ended = ended(rdpipe().current_dir(scratch.path()).args(["--json=told", "--report=sub/page", "rm -r sub"]));
    ended.expect(6).one_line("rdpipe", &["cannot write the report to sub/page"]);
    let text = std::fs::read_to_string(scratch.join("told")).expect("a report");
    let told: serde_json::Value = serde_json::from_str(text.lines().last().expect("an event")).expect("an object");
    assert_eq!((told["exit"].as_u64(), told["failure"]["code"].as_str()), (Some(6), Some("destination")), "{told}");
}

#[test]
fn the_report_goes_where_no_data_goes() {
    let scratch = Scratch::new();
    let elsewhere = ["standard output carries data", "--json=FILE", "--json-fd"];
    ended(rdrecv().args(["--json", "0", KEY])).expect(1).one_line("rdrecv", &elsewhere);
    ended(rdrecv().args(["--json=-", "0", KEY, "-"])).expect(1).one_line("rdrecv", &elsewhere);
    ended(rdrecv().args(["--json-fd", "1", "0", KEY])).expect(1).one_line("rdrecv", &elsewhere);
    ended(rdpipe().args(["--json", "true"])).expect(1).one_line("rdpipe", &elsewhere);
    let elsewhere = ["standard output carries the list of changes", "--json=FILE", "--json-fd"];
    let mut listing = rdcp();
    listing.args(["-r", "--sync", "--itemize-changes", "--json", "source", "copy"]).current_dir(scratch.path());
    ended(&mut listing).expect(1).one_line("rdcp", &elsewhere);
    ended(rdpipe().args(["--json-fd", "9", "true"])).expect(1).one_line("rdpipe", &["--json-fd 9", "errno 9"]);
    let both = rdpipe().args(["--json-fd", "1", "--json=it", "true"]).output().expect("run");
    assert_eq!(both.status.code(), Some(1));
    // A descriptor passed to the process, but not to its commands.
    let report = scratch.join("report");
    let mut given = rdpipe();
    given.args(["--json-fd=3", "(echo stray >&3) 2>/dev/null; echo data"]);
    let ran = in_shell(&format!("exec 3>{}; \"$@\"", report.display()), &given).output().expect("run");
    assert_eq!((ran.status.code(), &ran.stdout[..], &ran.stderr[..]), (Some(0), &b"data\n"[..], &b""[..]));
    let told: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("one object");
    assert_eq!((told["schema"].as_u64(), told["event"].as_str()), (Some(1), Some("end")));
    // The sender's standard output is free, and gets nothing but the report.
    let target = scratch.join("target");
    let (mut recv, port) = start_recv(&["--json=/dev/null"], Some(&target));
    let mut send = rdsend();
    let sent = send.args(["-v", "--json", "127.0.0.1", &port.to_string(), KEY]).arg(scratch.file("source", b"all"));
    let sent = sent.output().expect("run");
    recv.wait().expect(0);
    let told: serde_json::Value = serde_json::from_slice(&sent.stdout).expect("nothing but JSON");
    assert_eq!((told["bytes"].as_u64(), told["exit"].as_u64(), told["failure"].is_null()), (Some(3), Some(0), true));
    assert!(String::from_utf8_lossy(&sent.stderr).contains("Bandwidth"), "{sent:?}");
}

#[test]
fn a_failure_is_reported_with_its_file_and_error() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing");
    let mut send = rdsend();
    let sent = send.args(["--json", "127.0.0.1", "9", KEY]).arg(&missing).output().expect("run");
    assert_eq!(sent.status.code(), Some(5));
    let told: serde_json::Value = serde_json::from_slice(&sent.stdout).expect("nothing but JSON");
    let failure = &told["failure"];
    assert_eq!((failure["code"].as_str(), failure["errno"].as_i64()), (Some("source"), Some(2)), "{told}");
    assert_eq!((failure["at"]["path"].as_str(), failure["at"]["host"].is_null()), (missing.to_str(), true), "{told}");
}
