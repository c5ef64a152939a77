//! A stream between hosts that have two networks in common: over one, over both, and while one of
//! them fails and works again.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::net::{Net, without_root};
use crate::process::Killed;
use crate::streams::KEY;

const RATE: &str = "200mbit";

/// Interval of each count.
const STEP: Duration = Duration::from_millis(250);

/// A stream of zeros from the first host to the second.
struct Stream {
    arrived: Arc<AtomicU64>,
    _ends: [Killed; 2],
}

impl Stream {
    fn start(net: &Net, port: &str, options: &[&str]) -> Result<Self> {
        let [recv, send] = ["rdrecv", "rdsend"].map(|name| bin_directory().join(name));
        let mut command = net.on(1);
        command.arg(recv).args(["--transport", "tcp", port, KEY]).stdin(Stdio::null());
        let mut receiver = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map(Killed).map_err(text)?;
        let mut command = net.on(0);
        command.arg(send).args(["--transport", "tcp"]).args(options).args([&Net::address(1), port, KEY, "/dev/zero"]);
        let sender = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let sender = sender.spawn().map(Killed).map_err(text)?;
        let mut output = receiver.0.stdout.take().expect("it is piped");
        let arrived = Arc::<AtomicU64>::default();
        let count = Arc::clone(&arrived);
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 20];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        Ok(Self { arrived, _ends: [receiver, sender] })
    }

    /// Measures the rate in Mbit/s from now on, in each step of this time.
    fn rates(&self, during: Duration) -> Vec<f64> {
        let (start, mut rates) = (Instant::now(), Vec::new());
        while start.elapsed() < during {
            let (from, before) = (Instant::now(), self.arrived.load(Ordering::Relaxed));
            std::thread::sleep(STEP);
            let bytes = self.arrived.load(Ordering::Relaxed) - before;
            rates.push(bytes as f64 * 8e-6 / from.elapsed().as_secs_f64());
        }
        rates
    }

    fn rate(&self, seconds: u64) -> f64 {
        let rates = self.rates(Duration::from_secs(seconds));
        rates.iter().sum::<f64>() / rates.len() as f64
    }
}

/// Returns after how many seconds the mean over two seconds stays at or above `least`. The mean over one second is too
/// noisy: a single chunk is a twentieth of what a network carries in one second.
fn seconds_until(rates: &[f64], least: f64) -> f64 {
    let steps = (2.0 / STEP.as_secs_f64()) as usize;
    let is_low = |window: &[f64]| window.iter().sum::<f64>() / (window.len() as f64) < least;
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
    for round in 0..by_kind(1, 1, 3) {
        let [first, second] = [0, 1].map(|at| (7001 + 2 * round + at).to_string());
        let alone = Stream::start(&net, &first, &["--rails", "1"])?;
        std::thread::sleep(Duration::from_secs(2));
        let one = alone.rate(4);
        drop(alone);
        let stream = Stream::start(&net, &second, &[])?;
        std::thread::sleep(Duration::from_secs(3));
        gains.push(stream.rate(4) / one);
        timed(net.testbed("rail", 1).arg("silent"))?;
        left_after.push(seconds_until(&stream.rates(Duration::from_secs(8)), 0.9 * one));
        timed(net.testbed("rail", 1).arg("heal"))?;
        back_after.push(seconds_until(&stream.rates(Duration::from_secs(15)), 1.8 * one));
    }
    Ok(vec![
        Row::at_least("rails: two networks of 200 Mbit/s over one", 1.9, "x", &gains),
        Row::limit("rails: one fails, until 0.9 of what is left", 2.0, "s", &left_after),
        Row::limit("rails: it works again, until 1.8 of one", 10.0, "s", &back_after),
    ])
}
