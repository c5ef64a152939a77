//! `rdperf HOST rails`: each network that both hosts are on by itself, and all of them at once.

use rd_proto::control::measure::{Load, Run};

use super::wire::{self, BANDWIDTH_BYTES};
use super::{PerfArguments, Target};
use crate::cli::words;
use crate::engine::perf::Driver;
use crate::engine::rails::{self, Rail};
use crate::fault::{Exit, Failure};
use crate::job::measure::Reached;
use crate::measure::report::{Bandwidth, Rails, Report, Way, Wire};
use crate::options::RailChoice;
use crate::transport::bundle::Settings;

/// Connections by each network: as a copy has, where no number is asked for.
const LANES: u32 = 2;

pub(super) fn measure(arguments: &PerfArguments, target: &Target) -> Result<Report, Failure> {
    let usage = |message: &str| Err(Failure::new(Exit::Usage, message));
    let Target::Launched(host) = target else {
        return usage(
            "rails: an rdperf serve answers one measurement at a time; give HOST alone, and ssh starts the other end",
        );
    };
    if arguments.hosts.via.is_some() {
        return usage("--via: rails measures every network that both hosts are on");
    }
    let load = &arguments.load;
    let mut launched = wire::launch(arguments, host)?;
    let first = launched.reach()?;
    let ways = ways(&first)?;
    if let Some(ports) = arguments.serve.port_range.as_ref().filter(|ports| ports.len() <= ways.len() && ways.len() > 1)
    {
        let (has, needs) = (ports.len(), ways.len() + 1);
        return usage(&format!("--port-range has {has} ports; {} networks at once need {needs}", ways.len()));
    }
    let sizes = load.sizes(BANDWIDTH_BYTES);
    let connections = load.qp.unwrap_or(LANES);
    let settings = Settings {
        connections_max: connections,
        message_bytes_max: sizes.iter().copied().max().expect("at least one"),
        depth: load.depth(),
        poll: load.poll,
        threads: 1,
    };
    // Told again for each measurement: it is for one.
    let mut reached = Some(first);
    let label = launched.label();
    let mut open = |way: &Option<Rail>| -> Result<Driver, Failure> {
        let Reached { stream, established, .. } = reached.take().map_or_else(|| launched.reach(), Ok)?;
        let policy = load.transport.policy();
        let driver = Driver::open(stream, established, policy, settings, way.clone()).and_then(|mut driver| {
            driver.grow(connections)?;
            Ok(driver)
        });
        driver.map_err(|error| words::measured(&error, &label))
    };
    let (duration, messages) = load.extent();
    let duration_us = duration.as_micros() as u64;
    let (forward, backward) = (!load.reverse, load.reverse || load.bidirectional);
    let mut progress = wire::Progress::new(sizes.len() * (ways.len() + 1), arguments.output.verbose);
    let (mut rows, mut media, mut gain) = (Vec::new(), Vec::new(), None);
    let mut dead: Vec<&Option<Rail>> = Vec::new();
    for message_bytes in sizes {
        let run = Run { load: Load::Stream, forward, backward, message_bytes, messages, duration_us };
        let mut best = 0_f64;
        for way in &ways {
            if dead.contains(&way) {
                continue;
            }
            let opened = open(way);
            let (mut driver, name) = match (opened, way) {
                // One of several that does not work is what is looked for.
                (Err(failure), Some(way)) if dead.len() + 1 < ways.len() => {
                    rows.push(Way::failed(way.to_string(), &way.interface, failure.message.unwrap_or_default()));
                    dead.push(ways.iter().find(|one| one.as_ref() == Some(way)).expect("it is one of them"));
                    continue;
                }
                (opened, way) => {
                    let driver = opened?;
                    let name = way.as_ref().map_or_else(|| driver.describe(), ToString::to_string);
                    (driver, name)
                }
            };
            progress.step(&format!("{name}, {message_bytes} bytes"));
            let ran = driver.run(run, None).map_err(|error| words::measured(&error, &label))?;
            let carried = wire::bandwidth(run, &ran);
            best = best.max(carried.average_mib_s);
            media.push(wire::medium(&driver));
            rows.push(Way::new(name, wire::medium(&driver), way.as_ref().map(|way| &*way.interface), &carried));
            driver.close();
        }
        let live: Vec<_> = ways.iter().filter(|way| !dead.contains(way)).collect();
        if live.len() > 1 {
            progress.step(&format!("all at once, {message_bytes} bytes"));
            let mut drivers = live.iter().map(|way| open(way)).collect::<Result<Vec<_>, _>>()?;
            let each = at_once(run, &mut drivers, &label)?;
            drivers.into_iter().for_each(Driver::close);
            let mut carried = Bandwidth::default();
            for (way, each) in live.iter().filter_map(|way| way.as_ref()).zip(&each) {
                carried.add(each);
                if arguments.output.verbose {
                    crate::cli::say(&format!("rdperf: {way}, at once: {:.2} MB/s", each.average_mib_s));
                }
            }
            rows.push(Way::new(format!("all {} at once", live.len()), "", None, &carried));
            gain = (best > 0.0).then(|| carried.average_mib_s / best);
        }
    }
    drop(progress);
    let is_one_medium = media.iter().all(|medium| *medium == media[0]);
    let wire = Wire {
        from: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        to: label,
        medium: if is_one_medium { media[0] } else { "mixed" }.to_owned(),
        route: match ways.len() {
            1 => "the only network".to_owned(),
            count => format!("each of {count} networks"),
        },
        wait: if load.poll { "polling" } else { "events" }.to_owned(),
        connections,
        depth: load.depth().into(),
    };
    Ok(Report {
        wire: Some(wire),
        rails: Some(Rails { ways: rows, gain, sentence: sentence(gain, ways.len()) }),
        ..Report::new()
    })
}

/// The ways to the other end; one, which has no name, where there is no second one.
fn ways(first: &Reached) -> Result<Vec<Option<Rail>>, Failure> {
    let ends = first.stream.local_addr().and_then(|local| Ok([local, first.stream.peer_addr()?]));
    let ends = ends.map_err(|error| Failure::new(Exit::LinkLost, format!("the connection has broken: {error}")))?;
    let found = rails::find(&RailChoice::All, ends, &first.addresses);
    Ok(if found.is_empty() { vec![None] } else { found.into_iter().map(Some).collect() })
}

/// Runs the same load over each at the same time.
fn at_once(run: Run, drivers: &mut [Driver], label: &str) -> Result<Vec<Bandwidth>, Failure> {
    let ran: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = drivers.iter_mut().map(|driver| scope.spawn(move || driver.run(run, None))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic in it")).collect()
    });
    let carried = |ran: Result<_, _>| ran.map(|ran| wire::bandwidth(run, &ran));
    ran.into_iter().map(|ran| carried(ran).map_err(|error| words::measured(&error, label))).collect()
}

fn sentence(gain: Option<f64>, networks: usize) -> String {
    match gain {
        None if networks > 1 => "One of the networks between these hosts works.".to_owned(),
        Some(gain) => format!("All at once carry {gain:.2} times what the best of them carries by itself."),
        None => "There is one network between these hosts: no other has an interface of each.".to_owned(),
    }
}
