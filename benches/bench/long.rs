//! Streams over a long line, made by the testbed in a process of its own: its kernel may have no netem. All contestants have
//! the same line, one after the other.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::record::Kind;
use crate::streams::KEY;

type Measure = fn() -> Result<Vec<Row>>;

pub const ROWS: [(&str, Measure); 1] = [("long", long)];

const DELAY_MS: u32 = 150;
const RATE_MBIT: u32 = 300;
const LOSS_PPM: u32 = 1000;

/// From when on it is counted, and until when.
const FROM: Duration = Duration::from_secs(10);
const UNTIL: Duration = Duration::from_secs(25);

/// What of a packet of 1500 bytes is payload: without the headers of IP and TCP, with time stamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;

/// A process that is ended when it is not needed any more.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Payload that a receiver gives, in Mbit/s, from [`FROM`] to [`UNTIL`] after it was started.
fn rate(net: &Net, loss_ppm: u32, receive: &[&str], send: &[&str]) -> Result<f64> {
    let _line = net.line(DELAY_MS, RATE_MBIT, loss_ppm)?;
    let start = |host: usize, words: &[&str], output: Stdio| -> Result<Killed> {
        let mut command = net.on(host);
        let zeros = std::fs::File::open("/dev/zero").map_err(text)?;
        command.args(words).stdin(zeros).stdout(output).stderr(Stdio::null());
        command.spawn().map(Killed).map_err(text)
    };
    let mut receiver = start(1, receive, Stdio::piped())?;
    std::thread::sleep(Duration::from_millis(500));
    let _sender = start(0, send, Stdio::null())?;
    let mut output = receiver.0.stdout.take().expect("it is piped");
    let (began, mut piece, mut bytes, mut counted) = (Instant::now(), vec![0; 1 << 20], 0_u64, None);
    while began.elapsed() < UNTIL {
        let length = output.read(&mut piece).map_err(text)?;
        if length == 0 {
            return Err("the receiver has ended".into());
        }
        if began.elapsed() >= FROM {
            counted.get_or_insert_with(Instant::now);
            bytes += length as u64;
        }
    }
    let seconds = counted.map_or(1.0, |since| since.elapsed().as_secs_f64());
    Ok(bytes as f64 * 8.0 / 1e6 / seconds)
}

fn long() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("long") {
        return Ok(absent);
    }
    let net = Net::start(2)?;
    let [recv, send] = ["rdrecv", "rdsend"].map(|name| bin_directory().join(name).display().to_string());
    let ours = |loss: u32, port: &str| {
        let receive = [recv.as_str(), "--transport", "tcp", port, KEY];
        rate(&net, loss, &receive, &[send.as_str(), "--transport", "tcp", Net::FAR, port, KEY])
    };
    let socat = |loss: u32, port: &str| {
        let (listen, far) = (format!("TCP-LISTEN:{port},reuseaddr"), format!("TCP:{}:{port}", Net::FAR));
        rate(&net, loss, &["socat", "-u", "-b", "1048576", &listen, "-"], &["socat", "-u", "-b", "1048576", "-", &far])
    };
    let (command, peers) = ("rdsend --transport tcp {host} {port} {secret}", "socat -u -b 1048576 - TCP:{host}:{port}");
    let lossy = ["rdsend, packets lost", "socat, packets lost"];
    let contestants = [
        Contestant::new(Kind::Ours, "rdsend", command, || ours(0, "7001")),
        Contestant::new(Kind::Peer, "socat", peers, || socat(0, "7002")),
        Contestant::new(Kind::Ours, lossy[0], command, || ours(LOSS_PPM, "7003")),
        Contestant::new(Kind::Peer, lossy[1], peers, || socat(LOSS_PPM, "7004")),
    ];
    let title = format!(
        "A stream from the 10th second on, {} ms there and back, {RATE_MBIT} Mbit/s; no packet lost, or 0.1 %",
        2 * DELAY_MS
    );
    let found = contest("long", &title, "Mbit/s", &contestants, runs().min(3))?;
    let share: Vec<f64> = found.entries[0].values.iter().map(|rate| rate / (f64::from(RATE_MBIT) * PAYLOAD)).collect();
    let name = "long: 0.1 % lost, over socat";
    Ok(vec![
        Row::at_least("long: part of the line from the 10th second on", 0.9, "x", &share),
        found.compare(name, lossy, |ours, socat| Row::ratio(name, 2.0, &ours.values, &socat.values)),
    ])
}
