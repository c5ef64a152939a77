//! `rdperf` as a command: over loopback with a server, with a launcher that runs the agent on this host, and on this
//! host's own storage and memory. `tests/perf_rdma.rs` tests the same over RDMA.

mod rig;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::holder::Holder;
use rig::proxy::{Damage, Plan, Proxy, Spot, Way};
use rig::*;
use serde_json::Value;

/// How a run ended, and its output.
struct Measured {
    ended: Ended,
    text: String,
}

impl Measured {
    #[track_caller]
    fn json(&self) -> Value {
        self.ended.expect(0);
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }
}

fn run(command: &mut Command) -> Measured {
    use std::io::Read;
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut stdout = process.stdout();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let ended = process.wait();
    Measured { ended, text: reader.join().expect("no panic").expect("text") }
}

/// A server with [`KEY`].
struct Server {
    process: Process,
    port: u16,
}

impl Server {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let mut command = rdperf();
        command.args(["serve", "0"]).args(arguments).env("RD_KEY", KEY).stdin(Stdio::null());
        let process = Process::spawn(&mut command);
        let port = process.port();
        Self { process, port }
    }

    fn measure(&self, arguments: &[&str]) -> Measured {
        measure_at(self.port, arguments)
    }

    /// Measures once the server has noticed the end of an earlier session that failed at the other end.
    fn measure_after_failure(&self, arguments: &[&str]) -> Measured {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let measured = self.measure(arguments);
            if !measured.ended.stderr.contains("is busy") || Instant::now() > until {
                return measured;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn measure_at(port: u16, arguments: &[&str]) -> Measured {
    run(rdperf().arg(format!("127.0.0.1:{port}")).args(arguments).env("RD_KEY", KEY))
}

#[test]
fn latency_and_bandwidth_in_perftests_columns() {
    let server = Server::start();
    let measured = server.measure(&["--duration", "0.05"]);
    measured.ended.expect(0);
    let lines: Vec<&str> = measured.text.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines[0].contains("TCP to 127.0.0.1, 1 connection, depth 128, events"), "{}", lines[0]);
    assert_eq!(lines[1], "Latency, half a round trip, in usec");
    assert!(lines[2].trim_start().starts_with("#bytes") && lines[2].contains("t_min"), "{}", lines[2]);
    assert!(lines[4].contains("BW peak[MB/sec]") && lines[4].contains("MsgRate[Mpps]"), "{}", lines[4]);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "80 columns: {}", measured.text);
    let numbers =
        |line: &str| -> Vec<f64> { line.split_whitespace().map(|number| number.parse().expect("a number")).collect() };
    let latency = numbers(lines[3]);
    assert_eq!((latency.len(), latency[0]), (10, 2.0));
    assert!(
        latency[1] >= 10.0 && latency[2] > 0.1 && latency[2] <= latency[6] && latency[6] <= latency[9],
        "{latency:?}"
    );
    let bandwidth = numbers(lines[5]);
    assert_eq!((bandwidth.len(), bandwidth[0]), (5, 65_536.0));
    assert!(bandwidth[2] >= bandwidth[3] && bandwidth[3] > 10.0, "{bandwidth:?}");
    // The server keeps running.
    server.measure(&["lat", "--iterations", "5"]).ended.expect(0);
}

#[test]
fn a_sweep_of_all_lengths_as_json_and_drawings() {
    let scratch = Scratch::new();
    let server = Server::start();
    let svg = scratch.join("sweep.svg");
    let json = scratch.join("sweep.json");
    let options = [format!("--plot={}", svg.display()), format!("--json={}", json.display())];
    let mut arguments = vec!["--all", "--iterations", "12"];
    arguments.extend(options.iter().map(String::as_str));
    server.measure(&arguments).ended.expect(0);
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((report["rdperf"].as_u64(), report["wire"]["medium"].as_str()), (Some(1), Some("tcp")));
    for table in ["latency", "bandwidth"] {
        let rows = report[table].as_array().expect("rows");
        let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().expect("a number")).collect();
        assert_eq!(sizes, (1..=23).map(|power| 1 << power).collect::<Vec<u64>>(), "{table}");
        assert!(rows.iter().all(|row| row["iterations"] == 12), "{table}: {rows:?}");
    }
    for name in ["min_us", "typical_us", "p50_us", "p99_us", "p999_us", "max_us"] {
        assert!(report["latency"][0][name].as_f64().is_some_and(|time| time > 0.0), "{name}");
    }
    for name in ["peak_mib_s", "average_mib_s", "rate_mpps"] {
        assert!(report["bandwidth"][22][name].as_f64().is_some_and(|rate| rate > 0.0), "{name}");
    }
    let drawn = fs::read_to_string(&svg).expect("written");
    assert!(drawn.starts_with("<svg") && drawn.contains("Bandwidth") && drawn.contains("Latency"));
    let date = report["date"].as_str().expect("a date");
    let shown = date.replace('T', " ").replace('Z', " UTC");
    assert!(drawn.contains(&format!("TCP to 127.0.0.1, 1 connection, depth 128, events, {shown}")), "{date}");

    // Draws two runs over each other, without measuring.
    let both = scratch.join("both.svg");
    let other = scratch.join("other.json");
    fs::copy(&json, &other).expect("a copy");
    let mut compare = rdperf();
    compare.arg("--plot").arg(&both).arg("--compare").arg(&json).arg("--compare").arg(&other);
    run(&mut compare).ended.expect(0);
    assert!(fs::read_to_string(&both).expect("written").contains("other: median"));
}

#[test]
fn both_directions_several_connections_the_other_way_and_polling() {
    let server = Server::start();
    let both =
        server.measure(&["bw", "--bidirectional", "--qp", "3", "--iterations", "300", "--size", "4K", "--json"]).json();
    assert_eq!(
        (&both["bandwidth"][0]["iterations"], &both["bandwidth"][0]["bidirectional"]),
        (&600.into(), &true.into())
    );
    assert_eq!(both["wire"]["connections"], 3);
    let back = server.measure(&["bw", "--reverse", "--iterations", "100", "--json"]).json();
    assert_eq!(back["bandwidth"][0]["iterations"], 100);
    let poll = server.measure(&["lat", "--poll", "--iterations", "50", "--json"]).json();
    assert_eq!((&poll["wire"]["wait"], &poll["latency"][0]["iterations"]), (&"polling".into(), &50.into()));
}

#[test]
fn no_room_for_threads_is_said_and_the_server_goes_on() {
    if !rustix::process::geteuid().is_root() {
        return not_run("needs root, to run the program as another user");
    }
    // Root has no such limit, so the program runs as a user who runs nothing else, neither here nor in another run of
    // these tests: the threads of a user are counted on the whole machine.
    let user = 20_000 + std::process::id() % 40_000;
    let limited = |threads: u32, command: &Command| {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nproc={threads}:{threads}"));
        limited.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
        limited
            .arg(command.get_program())
            .args(command.get_args())
            .envs([("RD_KEY", KEY), ("RDMA_PIPE_CONFIG", "none")]);
        limited
    };
    let both = |port: u16| {
        let mut command = rdperf();
        command.arg(format!("127.0.0.1:{port}")).args(["bw", "--bidirectional", "--qp", "32", "--duration", "1"]);
        command
    };
    let server = Server::start();
    let measured = run(&mut limited(48, &both(server.port)));
    measured.ended.expect(3).one_line("rdperf", &["thread", "Resource temporarily unavailable"]);
    server.measure_after_failure(&["bw", "--iterations", "5"]).ended.expect(0);

    let mut command = rdperf();
    command.args(["serve", "0"]);
    let process = Process::spawn(limited(48, &command).stdin(Stdio::null()));
    let served = Server { port: process.port(), process };
    run(both(served.port).env("RD_KEY", KEY)).ended.expect(3);
    served.measure_after_failure(&["bw", "--iterations", "5"]).ended.expect(0);
}

#[test]
fn throughput_against_the_number_of_connections() {
    let server = Server::start();
    let report = server.measure(&["qps", "--qp", "6", "--duration", "0.05", "--json"]).json();
    let rows = report["connections"].as_array().expect("rows");
    let counts: Vec<u64> = rows.iter().map(|row| row["connections"].as_u64().expect("a number")).collect();
    assert_eq!(counts, [1, 2, 4, 6]);
    for row in rows {
        for name in ["operations_s", "operation_us", "large_mib_s"] {
            assert!(row[name].as_f64().is_some_and(|number| number > 0.0), "{name} in {row}");
        }
    }
}

#[test]
fn ping_compares_what_comes_back() {
    let server = Server::start();
    let measured = server.measure(&["ping", "--iterations", "20", "--size", "10000"]);
    measured.ended.expect(0);
    assert!(measured.text.contains("20 of 20 messages came back unchanged"), "{}", measured.text);
    let all = server.measure(&["ping", "--all", "--iterations", "3"]);
    all.ended.expect(0);
    let first = |line: &str| line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let sizes: Vec<u64> = all.text.lines().skip(1).filter_map(first).collect();
    let expected: Vec<u64> = (1..=23).map(|power| 1 << power).chain([69]).collect();
    assert_eq!(sizes, expected, "each length, then the count: {}", all.text);
    assert!(all.text.contains("69 of 69 messages came back unchanged"), "{}", all.text);
}

#[test]
fn a_damaged_echo_is_caught() {
    let server = Server::start();
    // The second connection carries the measurement, whose data begins after its handshake.
    for way in [Way::Up, Way::Down] {
        let spot = Spot { way, connection: Some(1), offset: 150_000 };
        let proxy = Proxy::start(server.port, Plan { damage: vec![(spot, Damage::Flip(3))], ..Plan::default() });
        let measured = measure_at(proxy.port(), &["ping", "--iterations", "4", "--size", "64K"]);
        measured.ended.expect(7).one_line("rdperf", &["1 messages came back", "corrupted"]);
        assert!(measured.text.contains("3 of 4 messages came back unchanged"), "{way:?}: {}", measured.text);
    }
}

#[test]
fn a_wrong_key_no_server_and_another_program() {
    let server = Server::start();
    let address = format!("127.0.0.1:{}", server.port);
    let wrong = run(rdperf().arg(&address).env("RD_KEY", "another"));
    wrong.ended.expect(2).one_line("rdperf", &["a different KEY", &address]);
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let nobody = measure_at(free, &["lat"]);
    nobody.ended.expect(3).one_line("rdperf", &["cannot reach", "refused", "rdperf serve"]);
    let none = run(rdperf().arg(&address).stdin(Stdio::null()));
    assert!([1, 2].contains(&none.ended.code), "no KEY at all: {:?}", none.ended);

    // rdsend and rdperf refuse each other's servers.
    let mut send = rdsend();
    let sent = run(send.args(["127.0.0.1", &server.port.to_string(), KEY, "/dev/null"]));
    sent.ended.expect(3).one_line("rdsend", &["rejected this end's offer"]);
    let mut receiver = rdrecv();
    let receiver = Process::spawn(receiver.args(["0", KEY]).stdin(Stdio::null()).stdout(Stdio::null()));
    measure_at(receiver.port(), &["lat"]).ended.expect(9).one_line("rdperf", &["does not speak rdperf's protocol"]);
    // The server still serves.
    server.measure(&["lat", "--iterations", "5"]).ended.expect(0);
}

#[test]
fn a_server_serves_one_at_a_time_and_once() {
    let mut server = Server::with(&["--once", "--verbose"]);
    let mut first = rdperf();
    let address = format!("127.0.0.1:{}", server.port);
    first.args([&address, "bw", "--duration", "30"]).env("RD_KEY", KEY).stdin(Stdio::null()).stdout(Stdio::null());
    let mut first = Process::spawn(&mut first);
    server.process.line_with("127.0.0.1 is measuring");
    let second = run(rdperf().args([&address, "lat", "--iterations", "1"]).env("RD_KEY", KEY));
    second.ended.expect(3).one_line("rdperf", &["busy"]);
    // The server notices that its client was killed.
    first.signal(rustix::process::Signal::KILL);
    first.wait().expect(137);
    let ended = server.process.wait();
    assert_eq!(ended.code, 4, "{}", ended.stderr);
}

#[test]
fn connections_of_an_earlier_measurement_are_not_taken_for_the_next() {
    let server = Server::with(&["--verbose"]);
    let earlier = Holder::with_key(server.port);
    let further: Vec<_> = (1..=4).map(|generation| earlier.lane(1, generation)).collect();
    // A later lane has been answered, so these have been accepted.
    drop(earlier.half_lane(1, 9));
    drop(earlier);
    server.process.line_with("lost the link");
    // Their ends here are still open, so the server would wait for data sent to them.
    server.measure(&["lat", "--iterations", "5"]).ended.expect(0);
    drop(further);
}

#[test]
fn a_lost_link_ends_it() {
    let scratch = Scratch::new();
    // The second has measured latencies before, which are kept.
    for (mode, how, at) in [(Some("bw"), ["--duration", "60"], 1 << 20), (None, ["--iterations", "2000"], 32 << 20)] {
        let server = Server::start();
        let proxy = Proxy::start(server.port, Plan { resets_at: vec![at], ..Plan::default() });
        let mut command = rdperf();
        command.arg(format!("127.0.0.1:{}", proxy.port())).args(mode).arg("--json").args(how);
        let report = fs::File::create(scratch.join("report")).expect("a file");
        let mut process = Process::spawn(command.env("RD_KEY", KEY).stdin(Stdio::null()).stdout(report));
        process.wait_for(PATIENCE).expect(4).one_line("rdperf", &["lost"]);
        let text = fs::read_to_string(scratch.join("report")).expect("a file");
        assert_eq!(text.contains("\"latency\""), mode.is_none(), "{text}");
    }
}

/// Makes a launcher that runs the agent on this host. Returns the options that select it.
fn launcher(scratch: &Scratch) -> Vec<String> {
    let path = scratch.file("rsh", b"#!/bin/sh\nexec sh -c \"exec $2\"\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::create_dir(scratch.join("home")).expect("a directory");
    vec!["--rsh".to_owned(), path.display().to_string(), "--agent".to_owned(), AGENT.to_owned()]
}

#[test]
fn the_other_end_is_started_by_the_launcher() {
    let scratch = Scratch::new();
    let options = launcher(&scratch);
    let home = scratch.join("home");
    let report =
        run(rdperf().arg("h1").args(&options).args(["--json", "--duration", "0.05"]).env("HOME", &home)).json();
    assert_eq!((&report["wire"]["to"], &report["wire"]["medium"]), (&"h1".into(), &"tcp".into()));
    assert!(report["bandwidth"][0]["average_mib_s"].as_f64().is_some_and(|rate| rate > 10.0), "{report}");
    let missing = run(rdperf().args(["h1", "--rsh", "sh -c 'exit 127' x"]));
    missing.ended.expect(3).one_line("rdperf", &["h1 has no rdma-pipe-agent"]);
}

#[test]
fn what_limits_a_copy() {
    let scratch = Scratch::new();
    let mut options = launcher(&scratch);
    let home = scratch.join("home");
    fs::create_dir(home.join("sink")).expect("a directory");
    let source = scratch.file("source", &noise(8 << 20));
    options.extend(["--source".to_owned(), source.display().to_string()]);
    options.extend(["--duration", "0.2"].map(str::to_owned));
    let limits =
        |target: &str| run(rdperf().args([target, "limits"]).args(&options).arg("--json").env("HOME", &home)).json();
    let report = limits("h1:sink");
    let stages = report["limits"]["stages"].as_array().expect("stages");
    let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["source", "memory", "wire", "sink"]);
    let rate = |stage: &Value| stage["mib_s"].as_f64().expect("a number");
    let slowest = stages.iter().min_by(|one, other| rate(one).total_cmp(&rate(other))).expect("four");
    assert_eq!(report["limits"]["limit"], slowest["name"]);
    let sentence = report["limits"]["sentence"].as_str().expect("a sentence");
    for part in [
        &format!("The {} is the limit", slowest["name"].as_str().expect("a name"))[..],
        "operations/s x 1 MiB x",
        "at a time =",
    ] {
        assert!(sentence.contains(part), "{part} in {sentence}");
    }
    for stage in stages {
        let product = stage["operations_s"].as_f64().expect("a number")
            * stage["parallel"].as_f64().expect("a number")
            * stage["bytes"].as_f64().expect("a number")
            / 1_048_576.0;
        assert!((product / rate(stage) - 1.0).abs() < 1e-6, "{stage}");
    }
    assert_eq!(home.join("sink").read_dir().expect("readable").count(), 0, "nothing is left");
    assert!(fs::read(&source).expect("there") == noise(8 << 20), "the source is as it was");

    let missing = run(rdperf().args(["h1:nowhere", "limits"]).args(&options).env("HOME", &home));
    assert!([5, 6].contains(&missing.ended.code), "{:?}", missing.ended);
    missing.ended.one_line("rdperf", &["h1:nowhere: ", "No such file"]);
}

#[test]
fn storage_of_this_host() {
    let scratch = Scratch::new();
    let file = scratch.file("data", &noise(4 << 20));
    let report = run(rdperf().arg("disk").arg(&file).args(["--duration", "0.02", "--json"])).json();
    let rows = report["disk"].as_array().expect("rows");
    assert_eq!(rows.len(), 9, "three sizes at three depths");
    assert!(rows.iter().all(|row| row["action"] == "read" && row["iops"].as_f64().is_some_and(|iops| iops > 0.0)));
    assert!(fs::read(&file).expect("there") == noise(4 << 20));
    let directory = scratch.path().display().to_string();
    let report =
        run(rdperf().args(["disk", &directory, "--duration", "0.02", "--size", "4K", "--depth", "4", "--json"])).json();
    let actions: Vec<&str> =
        report["disk"].as_array().expect("rows").iter().map(|row| row["action"].as_str().expect("text")).collect();
    assert_eq!(actions, ["write", "read"]);
    assert_eq!(scratch.names(), ["data"]);
    run(rdperf().args(["disk", "/nonexistent"])).ended.expect(5).one_line("rdperf", &["/nonexistent", "No such file"]);
}

/// As with any other failure to write. By default, the system ends the process.
#[test]
fn storage_for_files_that_may_not_be_so_long() {
    let scratch = Scratch::new();
    let mut command = rdperf();
    command.arg("disk").arg(scratch.path());
    let measured = run(&mut in_shell("ulimit -f 1000; exec \"$@\"", &command));
    measured.ended.expect(6).one_line("rdperf", &["File too large (errno 27)"]);
}

#[test]
fn memory_and_the_model() {
    let memory = run(rdperf().args(["mem", "--duration", "0.02", "--json"])).json();
    assert!(memory["memory"][0]["mib_s"].as_f64().is_some_and(|rate| rate > 100.0), "{memory}");
    let scratch = Scratch::new();
    let svg = scratch.join("model.svg");
    let model = run(rdperf().args(["model", "--clients", "64", "--plot"]).arg(&svg));
    model.ended.expect(0);
    for part in ["state at client[Mops]", "64 clients: up to 7 queue pairs each", "fitted: 450", "known"] {
        assert!(model.text.contains(part), "{part} in {}", model.text);
    }
    assert!(fs::read_to_string(&svg).expect("written").contains("StaR"));
    let small = run(rdperf().args(["model", "--sram", "1M"]));
    assert!(small.text.contains("given by --sram") && !small.text.contains("about 2 MB"), "{}", small.text);
    let report = run(rdperf().args(["model", "--json"])).json();
    let peak = report["model"]["peak_connections"].as_u64().expect("a number");
    assert!((400..=500).contains(&peak), "{peak}");
}

/// For every kind of measurement: one command, its numbers, and a drawing of them.
#[test]
fn every_kind_of_measurement_can_be_drawn() {
    let scratch = Scratch::new();
    let server = Server::start();
    let address = format!("127.0.0.1:{}", server.port);
    let directory = scratch.join("storage");
    fs::create_dir(&directory).expect("a directory");
    let directory = directory.display().to_string();
    for (words, parts) in [
        (vec![&address[..]], &["99.9 %", "average", "peak"][..]),
        (vec![&address, "ping"], &["shortest", "longest"]),
        (vec![&address, "qps", "--qp", "2"], &["32-byte round trips", "64 KiB messages"]),
        (vec![&address, "limits"], &["source: ", "memory: ", "wire: "]),
        (vec!["disk", &directory], &["write 1M, in order", "read 4K, random"]),
        (vec!["mem"], &["MiB/s"]),
    ] {
        let file = scratch.join("it.svg");
        let arguments = ["--duration", "0.02", "--plot"];
        let measured =
            run(rdperf().args(&words).args(arguments).arg(&file).current_dir(scratch.path()).env("RD_KEY", KEY));
        measured.ended.expect(0);
        let drawn = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        for part in parts.iter().chain(&[" UTC\n"]) {
            assert!(drawn.contains(part), "{words:?}: no {part}");
        }
        fs::remove_file(file).expect("ours");
    }
}

#[test]
fn command_lines_that_make_no_sense() {
    for arguments in [
        &[][..],
        &["h", "nothing"],
        &["h", "bw", "x"],
        &["disk"],
        &["h:0"],
        &["fd00::1"],
        &["h", "--size", "9M"],
        &["h", "--all", "--size", "2"],
        &["h", "--duration", "0"],
        &["model", "--plot", "x.gif"],
        &["--compare", "x.json"],
        &["h", "--relay"],
        &["h", "rails", "--via", "lo"],
        &["mem", "--size", "4K"],
        &["mem", "--once"],
        &["model", "--transport", "tcp"],
        &["disk", ".", "--all"],
        &["h", "lat", "--bidirectional"],
        &["h", "--key-file", "nokey"],
        &["h:7000", "-J", "far"],
        &["serve", "--json"],
    ] {
        let wrong = run(rdperf().args(arguments));
        assert_eq!((wrong.ended.code, wrong.text.as_str()), (1, ""), "{arguments:?}: {}", wrong.ended.stderr);
    }
    run(rdperf().args(["model", "--compare", "missing.json", "--plot", "x.svg"])).ended.expect(5);
    for list in ["h[1-2]", "h1,h2"] {
        let refused = run(rdperf().args([list, "lat"]));
        refused.ended.expect(1).one_line("rdperf", &[list, "is a list of hosts", "rddoctor"]);
    }
}

/// A setting for all commands is ignored where it has no meaning, and `--show-config` says so.
#[test]
fn settings_that_mean_nothing_for_it_are_left_out() {
    let scratch = Scratch::new();
    let file = scratch.file("config.toml", b"port-range = '7000-7001'\nrelay = true\nduration = '0.02'\n");
    let set = |arguments: &[&str]| run(rdperf().args(arguments).env("RDMA_PIPE_CONFIG", &file));
    set(&["mem"]).ended.expect(0);
    let shown = set(&["mem", "--show-config"]);
    shown.ended.expect(0);
    assert!(shown.text.contains("ignored: --port-range cannot be used with mem"), "{}", shown.text);
    assert!(shown.text.contains("duration = \"0.02\""), "{}", shown.text);
    set(&["mem", "--size", "4K"]).ended.expect(1).one_line("rdperf", &["--size cannot be used with mem"]);
}

/// No server listens there, so an error about the file shows that the file was checked first.
#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let scratch = Scratch::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let missing = scratch.join("no/such.svg").display().to_string();
    for option in [format!("--json={missing}"), format!("--plot={missing}")] {
        let measured = measure_at(free, &[&option]);
        measured.ended.expect(1).one_line("rdperf", &["cannot write", "no/such.svg", "No such file"]);
    }
    measure_at(free, &[&format!("--json={}", scratch.path().display())]).ended.expect(1);
    let one = scratch.join("one.svg").display().to_string();
    let measured = measure_at(free, &[&format!("--json={one}"), &format!("--plot={one}")]);
    measured.ended.expect(1).one_line("rdperf", &["--json and --plot name the same file"]);
    // An existing file is kept if nothing was measured.
    let file = scratch.file("it.json", b"as it was");
    measure_at(free, &[&format!("--json={}", file.display())]).ended.expect(3);
    assert_eq!((fs::read(&file).expect("there"), scratch.names()), (b"as it was".to_vec(), vec!["it.json".to_owned()]));
}

#[test]
fn a_report_may_go_to_a_device_a_fifo_or_standard_output() {
    let scratch = Scratch::new();
    let mem = |json: &str| run(rdperf().args(["mem", "--duration", "0.02", &format!("--json={json}")]));
    // The figures are printed even if the report cannot be written in the end.
    let full = mem("/dev/full");
    full.ended.expect(6).one_line("rdperf", &["cannot write /dev/full", "No space"]);
    assert!(full.text.contains("MiB/s") || full.text.contains("MB/s"), "{}", full.text);
    mem("/dev/null").ended.expect(0);
    let both = mem("/dev/stdout");
    both.ended.expect(0);
    assert!(both.text.starts_with("{\"rdperf\":1,") && both.text.lines().count() > 2, "{}", both.text);
    // The same if standard output is a file.
    let file = scratch.join("out");
    let mut command = rdperf();
    command.args(["mem", "--duration", "0.02", "--json=/dev/stdout"]);
    let mut redirected = in_shell(&format!("exec \"$@\" >'{}'", file.display()), &command);
    Process::spawn(redirected.stdin(Stdio::null())).wait().expect(0);
    let text = fs::read_to_string(&file).expect("written");
    assert!(text.starts_with("{\"rdperf\":1,") && text.lines().count() > 2, "{text}");
    let fifo = scratch.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || fs::read_to_string(fifo))
    };
    mem(&fifo.display().to_string()).ended.expect(0);
    assert!(reader.join().expect("no panic").expect("text").starts_with("{\"rdperf\":1,"));
}
