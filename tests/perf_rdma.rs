//! `rdperf` over RDMA. `tests/run` runs it in a guest, on a host with an rxe or siw device that talks to itself.

mod rig;

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use rig::*;
use serde_json::Value;

/// Some hundred megabytes take long under emulation and on a busy machine.
const LONG: Duration = Duration::from_secs(240);

/// The testbed's first host.
const HOST: &str = "10.9.0.1";

/// A line for [`in_shell`] that changes nothing.
const AS_USUAL: &str = "exec \"$@\"";

/// A server, and its port.
fn server() -> (Process, u16) {
    server_by(AS_USUAL)
}

fn server_by(line: &str) -> (Process, u16) {
    let mut command = rdperf();
    let mut command = in_shell(line, command.args(["serve", "0"]).env("RD_KEY", KEY));
    let server = Process::spawn(command.stdin(Stdio::null()));
    let port = server.port();
    (server, port)
}

#[track_caller]
fn measure(port: u16, arguments: &[&str]) -> Value {
    measure_by(AS_USUAL, port, arguments)
}

#[track_caller]
fn measure_by(line: &str, port: u16, arguments: &[&str]) -> Value {
    let mut command = rdperf();
    command.arg(format!("{HOST}:{port}")).args(arguments).arg("--json").env("RD_KEY", KEY);
    let mut command = in_shell(line, &command);
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut stdout = process.stdout();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    process.wait_for(LONG).expect(0);
    let text = reader.join().expect("no panic").expect("text");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

#[track_caller]
fn is_positive(row: &Value, names: &[&str]) {
    for name in names {
        assert!(row[name].as_f64().is_some_and(|number| number > 0.0), "{name} in {row}");
    }
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn every_length_by_events() {
    let (_server, port) = server();
    let report = measure(port, &["--transport", "rdma", "--all", "--iterations", "6"]);
    assert_eq!(report["wire"]["medium"], "rdma-software");
    for (table, names) in
        [("latency", &["min_us", "p50_us", "p99_us", "max_us"][..]), ("bandwidth", &["average_mib_s", "rate_mpps"])]
    {
        let rows = report[table].as_array().expect("rows");
        assert_eq!(rows.len(), 23, "{table}");
        for row in rows {
            assert_eq!(row["iterations"], 6, "{row}");
            is_positive(row, names);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn both_ways_backwards_and_polling_with_several_queue_pairs() {
    let (_server, port) = server();
    // If messages have the length of a credit, credits are sent with another length.
    for size in ["8", "4", "4096"] {
        let row = &measure(
            port,
            &["bw", "--transport", "rdma", "--bidirectional", "--qp", "4", "--iterations", "500", "--size", size],
        )["bandwidth"][0];
        assert_eq!((&row["iterations"], &row["bidirectional"]), (&1000.into(), &true.into()), "{size}");
        is_positive(row, &["average_mib_s"]);
    }
    let back = measure(port, &["bw", "--transport", "rdma", "--reverse", "--iterations", "300", "--size", "1000"]);
    assert_eq!(back["bandwidth"][0]["iterations"], 300);
    for mode in ["bw", "lat"] {
        let poll = measure(port, &[mode, "--transport", "rdma", "--poll", "--iterations", "300", "--depth", "1"]);
        assert_eq!(poll["wire"]["wait"], "polling");
    }
    // By time: which message is the last is not known until the time is over.
    let timed = measure(
        port,
        &["bw", "--transport", "rdma", "--qp", "3", "--bidirectional", "--duration", "0.5", "--size", "64"],
    );
    is_positive(&timed["bandwidth"][0], &["average_mib_s", "peak_mib_s"]);
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn many_queue_pairs() {
    let (_server, port) = server();
    let report = measure(port, &["qps", "--transport", "rdma", "--qp", "40", "--duration", "0.2"]);
    let rows = report["connections"].as_array().expect("rows");
    let counts: Vec<u64> = rows.iter().map(|row| row["connections"].as_u64().expect("a number")).collect();
    assert_eq!(counts, [1, 2, 4, 8, 16, 32, 40]);
    for row in rows {
        is_positive(row, &["operations_s", "operation_us", "large_mib_s"]);
    }
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn connections_are_added_after_an_echo() {
    let (_server, port) = server();
    // The last messages of the echo have asked for no completion.
    for more in [&[][..], &["--bidirectional"]] {
        let arguments = ["--transport", "rdma", "--qp", "4", "--iterations", "300", "--size", "64"];
        let report = measure(port, &[&arguments[..], more].concat());
        assert_eq!(report["latency"][0]["iterations"], 300, "{more:?}");
        is_positive(&report["bandwidth"][0], &["average_mib_s"]);
    }
    // Fewer messages than connections: some send nothing between an echo and the next growth.
    let rows = &measure(port, &["qps", "--transport", "rdma", "--qp", "16", "--iterations", "3"])["connections"];
    assert_eq!(rows.as_array().expect("rows").len(), 5, "{rows}");
}

/// Both ends share a processor, and the asking end goes first. So it knows that the echo is over before the other end
/// has taken the completion of its last message. The greetings come behind that completion.
#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn connections_are_added_while_the_last_message_completes() {
    let (_server, port) = server_by("exec taskset -c 0 \"$@\"");
    for _ in 0..3 {
        // With 32 that warm up, a multiple of 8: each eighth message asks for a completion, so the last one does.
        let arguments = ["--depth", "1", "--iterations", "304", "--bidirectional", "--qp", "2", "--size", "64"];
        let arguments = [&["--transport", "rdma"][..], &arguments].concat();
        let report = measure_by("exec taskset -c 0 nice -n -20 \"$@\"", port, &arguments);
        assert_eq!(report["bandwidth"][0]["iterations"], 608);
    }
}

/// iWARP connects from TCP ports that the RDMA connection manager picks without checking. Here every tenth is taken.
#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn siw_many_queue_pairs_where_ports_are_taken() {
    const TAKEN: usize = 2800;
    let limit = rustix::process::Rlimit { current: Some(2 * TAKEN as u64), maximum: Some(2 * TAKEN as u64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("a limit");
    let taken = || std::net::TcpListener::bind((HOST, 0)).expect("a port");
    let _taken: Vec<_> = (0..TAKEN).map(|_| taken()).collect();
    let (_server, port) = server();
    let report = measure(port, &["bw", "--transport", "rdma", "--qp", "40", "--iterations", "4", "--size", "64"]);
    assert_eq!(report["wire"]["connections"], 40);
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn pings_come_back_as_they_were_sent() {
    let (_server, port) = server();
    for size in ["1", "64", "100000"] {
        let report = measure(port, &["ping", "--transport", "rdma", "--iterations", "20", "--size", size]);
        assert_eq!((&report["ping"]["damaged"], &report["ping"]["latency"]["iterations"]), (&0.into(), &20.into()));
    }
}

#[test]
#[ignore = "needs an RDMA device; tests/run has guests with one"]
fn software_devices_count_where_they_are_asked_for() {
    let (_server, port) = server();
    assert_eq!(measure(port, &["lat", "--iterations", "20"])["wire"]["medium"], "tcp");
    assert_eq!(
        measure(port, &["lat", "--iterations", "20", "--transport", "prefer-rdma"])["wire"]["medium"],
        "rdma-software"
    );
    assert_eq!(measure(port, &["lat", "--iterations", "20", "--transport", "tcp"])["wire"]["medium"], "tcp");
}
