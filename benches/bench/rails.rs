//! A stream between hosts that have two networks in common: over one, over both, and while one of
//! them fails and works again.

use std::fs::File;
use std::io::{Read, Seek};
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::process::Killed;
use crate::streams::KEY;

const RATE: &str = "200mbit";

/// [`RATE`] in Mbit/s.
const RATE_MBIT: f64 = 200.0;

/// What a stream over one network carries, as a share of [`RATE`]. Beyond these bounds, the stream did not run as it
/// should, or nothing held the network: nothing can be compared with that.
const SHARE: RangeInclusive<f64> = 0.8..=1.1;

/// Interval of each count.
const STEP: Duration = Duration::from_millis(250);

/// One end of a stream.
struct End {
    name: &'static str,
    process: Killed,
    /// Standard error.
    said: File,
}

impl End {
    fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        // A file instead of a pipe, which would have to be read meanwhile.
        let said = tempfile::tempfile().map_err(text)?;
        command.stdin(Stdio::null()).stderr(said.try_clone().map_err(text)?);
        let process = command.spawn().map(Killed).map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, process, said })
    }

    /// Fails if the process has ended.
    fn runs(&mut self) -> Result<()> {
        let Some(status) = self.process.0.try_wait().map_err(text)? else { return Ok(()) };
        let mut bytes = Vec::new();
        self.said.rewind().and_then(|()| self.said.read_to_end(&mut bytes)).map_err(text)?;
        let said = String::from_utf8_lossy(&bytes);
        Err(format!("{} has ended, {status}: {}", self.name, said.trim().lines().last().unwrap_or("it said nothing")))
    }
}

/// A stream of zeros from the first host to the second.
struct Stream {
    arrived: Arc<AtomicU64>,
    ends: [End; 2],
}

impl Stream {
    /// Starts both ends, the sender when the receiver listens.
    fn start(net: &Net, port: u16, options: &[&str]) -> Result<Self> {
        let [recv, send] = ["rdrecv", "rdsend"].map(|name| bin_directory().join(name));
        let (number, port) = (port, port.to_string());
        let mut command = net.on(1);
        command.arg(recv).args(["--transport", "tcp", port.as_str(), KEY]).stdout(Stdio::piped());
        let mut receiver = End::start("rdrecv", &mut command)?;
        wait_until("rdrecv to listen", || {
            let table = net.on(1).args(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).output();
            let listens = table.is_ok_and(|table| listens(&String::from_utf8_lossy(&table.stdout), number));
            // One that has ended need not be waited for.
            listens || receiver.runs().is_err()
        })?;
        let mut command = net.on(0);
        command.arg(send).args(["--transport", "tcp"]).args(options);
        command.args([&Net::address(1), port.as_str(), KEY, "/dev/zero"]).stdout(Stdio::null());
        let sender = End::start("rdsend", &mut command)?;
        let mut output = receiver.process.0.stdout.take().expect("it is piped");
        let arrived = Arc::<AtomicU64>::default();
        let count = Arc::clone(&arrived);
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 20];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        Ok(Self { arrived, ends: [receiver, sender] })
    }

    /// Measures the rate in Mbit/s from now on, in each step of this time. Fails unless both ends still run then.
    fn rates(&mut self, during: Duration) -> Result<Vec<f64>> {
        let (start, mut rates) = (Instant::now(), Vec::new());
        while start.elapsed() < during {
            let (from, before) = (Instant::now(), self.arrived.load(Ordering::Relaxed));
            std::thread::sleep(STEP);
            let bytes = self.arrived.load(Ordering::Relaxed) - before;
            rates.push(bytes as f64 * 8e-6 / from.elapsed().as_secs_f64());
        }
        self.ends.iter_mut().try_for_each(End::runs)?;
        Ok(rates)
    }

    fn rate(&mut self, seconds: u64) -> Result<f64> {
        self.rates(Duration::from_secs(seconds)).map(|rates| mean(&rates))
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

/// Returns after how many seconds the mean over two seconds stays at or above `least`. The mean over one second is too
/// noisy: a single chunk is a twentieth of what a network carries in one second.
fn seconds_until(rates: &[f64], least: f64) -> f64 {
    let steps = (2.0 / STEP.as_secs_f64()) as usize;
    let is_low = |window: &[f64]| mean(window) < least;
    let low = rates.windows(steps).rposition(is_low).map_or(0, |at| at + 1);
    low as f64 * STEP.as_secs_f64()
}

pub fn rails() -> Result<Vec<Row>> {
    if let Some(absent) = without_root("rails") {
        return Ok(absent);
    }
    let net = Net::start(2)?;
    let both = |what: &str| (0..2).try_for_each(|host| timed(net.testbed("rail", host).arg(what)).map(drop));
    (0..2).try_for_each(|host| net.hold(host, RATE))?;
    both(RATE)?;
    let (mut gains, mut left_after, mut back_after) = (Vec::new(), Vec::new(), Vec::new());
    // A round takes 36 s, too long for more than one in `make bench`.
    let rounds = by_kind(1, 1, 3);
    for round in 0..rounds {
        let [first, second] = [0, 1].map(|at| 7001 + 2 * round + at);
        let mut alone = Stream::start(&net, first, &["--rails", "1"])?;
        std::thread::sleep(Duration::from_secs(2));
        let one = alone.rate(4)?;
        drop(alone);
        if !SHARE.contains(&(one / RATE_MBIT)) {
            return Err(format!("a stream over one network, held to {RATE_MBIT} Mbit/s, carried {one:.1} Mbit/s"));
        }
        let mut stream = Stream::start(&net, second, &[])?;
        std::thread::sleep(Duration::from_secs(3));
        gains.push(stream.rate(4)? / one);
        timed(net.testbed("rail", 1).arg("silent"))?;
        let left = stream.rates(Duration::from_secs(8))?;
        // Otherwise the network still works, and the stream had nothing to cope with.
        let later = mean(&left[left.len() / 2..]);
        if later > SHARE.end() * RATE_MBIT {
            return Err(format!("one of the two networks was cut off, but the stream carried {later:.1} Mbit/s"));
        }
        left_after.push(seconds_until(&left, 0.9 * one));
        timed(net.testbed("rail", 1).arg("heal"))?;
        back_after.push(seconds_until(&stream.rates(Duration::from_secs(15))?, 1.8 * one));
    }
    let mut rows = vec![
        Row::at_least("rails: two networks of 200 Mbit/s over one", 1.9, "x", &gains),
        Row::limit("rails: one fails, until 0.9 of what is left", 2.0, "s", &left_after),
        Row::limit("rails: it works again, until 1.8 of one", 10.0, "s", &back_after),
    ];
    if rounds == 1 {
        // Its quartiles are the value itself, and say nothing about the spread.
        rows.iter_mut().for_each(|row| row.measured += ", of 1 round");
    }
    Ok(rows)
}
