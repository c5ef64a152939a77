//! What the other tests here rely on: the limits on what is left of a command hold, whatever else waits for it.

use super::*;

#[test]
#[should_panic(expected = "sleep 100")]
fn a_process_that_holds_an_output_is_named() {
    let mut process = Process::spawn(Command::new("sleep").arg("100").stdin(Stdio::null()).stdout(Stdio::piped()));
    let stdout = process.stdout();
    let pipe = pipe_name(&stdout);
    read_whole(drain(stdout), &pipe, Instant::now());
}

#[test]
fn an_end_is_told_from_a_wait_for_standard_error() {
    let start = Instant::now();
    let mut shell = Command::new("sh");
    let mut process = Process::spawn(shell.args(["-c", "sleep 3 & exit 3"]).stdin(Stdio::null()));
    let ended = process.wait();
    ended.expect(3);
    assert!(start.elapsed() > ended.after + Duration::from_millis(500), "{:?}", ended.after);
}

#[test]
#[should_panic(expected = "all are gone, but only after")]
fn an_end_that_comes_too_late_is_noticed() {
    let lab = Lab::new();
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(1100));
    lab.deserted_since(start, Duration::from_millis(50));
}
