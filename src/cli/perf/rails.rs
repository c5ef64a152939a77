//! `rdperf HOST rails`: measures each network that both hosts are on, first by itself and then all at once.

use super::wire::{self, BANDWIDTH_BYTES};
use super::{PerfArguments, Target};
use crate::cli::words;
use crate::engine::perf::Driver;
use crate::engine::perf::frames::{Load, Run};
use crate::engine::rails::{self, Rail};
use crate::fault::{Exit, Failure};
use crate::job::measure::Reached;
use crate::measure::report::{Bandwidth, Rails, Report, Way};
use crate::options::RailChoice;

/// Default number of connections on each network, as in a copy.
const LANES: u32 = 2;

/// Returns the measurements, and a failure if one of the networks did not carry everything.
pub(super) fn measure(arguments: &PerfArguments, target: &Target) -> Result<(Report, Option<Failure>), Failure> {
    let usage = |message: &str| Err(Exit::Usage.with(message));
    let Target::Launched(host) = target else {
        return usage(
            "rails: rdperf serve runs one measurement at a time; give HOST alone, to start the other end by ssh",
        );
    };
    let load = &arguments.load;
    let mut launched = wire::launch(arguments, host)?;
    let first = launched.reach()?;
    let mut ways = ways(&first)?;
    let count = ways.len();
    if let Some(ports) = arguments.serve.port_range.as_ref().filter(|ports| count > 1 && ports.len() <= count) {
        let (has, needs) = (ports.len(), count + 1);
        return usage(&format!("--port-range has {has} ports; {count} networks at once need {needs}"));
    }
    let sizes = load.sizes(BANDWIDTH_BYTES);
    let connections = load.qp.unwrap_or(LANES);
    let settings = load.settings(connections, *sizes.iter().max().expect("at least one"));
    // Usable for one measurement only, so the other end is reached again for each later one.
    let mut reached = Some(first);
    let label = launched.label();
    let mut open = |way: &Option<Rail>| -> Result<Driver, Failure> {
        let Reached { stream, established, .. } = reached.take().map_or_else(|| launched.reach(), Ok)?;
        let driver = Driver::open(stream, established, load.transport, settings, way.clone()).and_then(|mut driver| {
            driver.grow(connections)?;
            Ok(driver)
        });
        driver.map_err(|error| words::measured(&error, &label))
    };
    let mut progress = wire::Progress::new(sizes.len() * (count + 1), arguments.output.verbose);
    let (mut rows, mut gain): (Vec<Way>, _) = (Vec::new(), None);
    let mut failed = 0;
    for message_bytes in sizes {
        let run = load.run(Load::Stream, message_bytes);
        let (mut best, mut last_failure) = (0_f64, None);
        for way in std::mem::take(&mut ways) {
            let measured = open(&way).and_then(|mut driver| {
                let name = way.as_ref().map_or_else(|| driver.describe(), ToString::to_string);
                progress.step(&format!("{name}, {message_bytes} bytes"));
                let ran = driver.run(run, None).map_err(|error| words::measured(&error, &label))?;
                progress.note(run, &ran);
                let medium = driver.medium().name();
                driver.close();
                Ok((name, medium, wire::bandwidth(run, &ran)))
            });
            match (measured, &way) {
                (Ok((name, medium, carried)), _) => {
                    best = best.max(carried.average_mib_s);
                    let interface = way.as_ref().map(|rail| &*rail.interface);
                    rows.push(Way::new(name, medium, interface, &carried));
                    ways.push(way);
                }
                // A failed network among several is a result, not a reason to stop.
                (Err(failure), Some(rail)) => {
                    rows.push(Way::failed(
                        rail.to_string(),
                        Some(&rail.interface),
                        message_bytes.into(),
                        reason(&failure),
                    ));
                    failed += 1;
                    last_failure = Some(failure);
                }
                (Err(failure), None) => return Err(failure),
            }
        }
        if let Some(failure) = last_failure.filter(|_| ways.is_empty()) {
            return Err(failure);
        }
        if ways.len() > 1 {
            progress.step(&format!("all at once, {message_bytes} bytes"));
            let name = format!("all {} at once", ways.len());
            let drivers = ways.iter().map(&mut open).collect::<Result<Vec<_>, _>>();
            match drivers.and_then(|drivers| at_once(run, drivers, &label, &mut progress)) {
                Ok(each) => {
                    let mut carried = Bandwidth::default();
                    for (rail, each) in ways.iter().flatten().zip(&each) {
                        carried.add(each);
                        if arguments.output.verbose {
                            crate::cli::say(&format!("rdperf: {rail}, at once: {:.2} MB/s", each.average_mib_s));
                        }
                    }
                    rows.push(Way::new(name, "", None, &carried));
                    gain = (best > 0.0).then(|| carried.average_mib_s / best);
                }
                Err(failure) => {
                    rows.push(Way::failed(name, None, message_bytes.into(), reason(&failure)));
                    failed += 1;
                }
            }
        }
    }
    drop(progress);
    let mut media = rows.iter().map(|row| &*row.medium).filter(|medium| !medium.is_empty());
    let first = media.next().unwrap_or_default();
    let medium = if media.all(|medium| medium == first) { first } else { "mixed" };
    let route = if count == 1 { "the only network".to_owned() } else { format!("each of {count} networks") };
    let wire = wire::described(arguments, &label, medium, route, connections);
    let lines = rows.len();
    let failure = (failed > 0).then(|| {
        let what = format!("{failed} of {lines} measurements failed; the table says why");
        Exit::Partial.with(what)
    });
    let rails = Rails { sentence: sentence(gain, count, ways.len()), ways: rows, gain };
    Ok((Report { wire: Some(wire), rails: Some(rails), ..Report::new() }, failure))
}

fn reason(failure: &Failure) -> String {
    failure.message.clone().unwrap_or_default()
}

/// Returns the networks to the other end; if there is only one, it has no name (`None`).
fn ways(first: &Reached) -> Result<Vec<Option<Rail>>, Failure> {
    let ends = first.stream.local_addr().and_then(|local| Ok([local, first.stream.peer_addr()?]));
    let ends = ends.map_err(|error| Exit::LinkLost.with(format!("lost the connection: {error}")))?;
    let found = rails::find(&RailChoice::All, ends, &first.addresses);
    Ok(if found.is_empty() { vec![None] } else { found.into_iter().map(Some).collect() })
}

/// Runs the same load on all drivers at the same time.
fn at_once(
    run: Run,
    mut drivers: Vec<Driver>,
    label: &str,
    progress: &mut wire::Progress,
) -> Result<Vec<Bandwidth>, Failure> {
    let ran: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = drivers.iter_mut().map(|driver| scope.spawn(move || driver.run(run, None))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic in it")).collect()
    });
    let each = ran.into_iter().map(|ran| {
        let carried = ran.map(|ran| {
            progress.note(run, &ran);
            wire::bandwidth(run, &ran)
        });
        carried.map_err(|error| words::measured(&error, label))
    });
    let each = each.collect::<Result<Vec<_>, _>>()?;
    drivers.into_iter().for_each(Driver::close);
    Ok(each)
}

fn sentence(gain: Option<f64>, networks: usize, working: usize) -> String {
    match gain {
        Some(gain) => format!("All at once carry {gain:.2} times as much as the best one alone."),
        None if networks == 1 => "These hosts share only one network: no other has an interface on both.".to_owned(),
        None if working == 1 => "Only one of the networks between these hosts works.".to_owned(),
        None => "Not all networks between these hosts could be measured at once.".to_owned(),
    }
}
