//! `rddoctor`: examines this host, another, and the way between them, and says what to do about what it finds.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Parser};

use super::options::CommonOptions;
use super::rdcp::HostOptions;
use super::{Arguments, print};
use crate::fault::{Exit, Failure, escaped};
use crate::job::examine::Examination;
use crate::job::plan::Spec;
use crate::measure::{Facts, Level, compare, examine, gather};
use crate::options::{TransferOptions, Transport, parse_ports};

mod output;
mod words;

use words::{Examined, Fix, Words};

/// The bandwidth is measured for so long at most, in seconds.
const SECONDS_MAX: i64 = 600;

/// Examine hosts for fast transfers, and say how to fix what is wrong
///
/// Without HOST it examines this host: RDMA libraries, modules, devices, ports, addresses, limits, processors. With HOST,
/// which ssh must reach, it examines both hosts and the way between them: which ports can be reached over TCP and over
/// RDMA, by which network the data goes, and how fast. Each check is a line; what is wrong comes with the reason why it
/// matters and the command that fixes it. Nothing is changed on any host.
#[derive(Parser, Debug)]
#[command(
    name = "rddoctor",
    version,
    override_usage = "rddoctor [OPTIONS] [HOST]",
    after_help = EXIT_CODES,
    after_long_help = super::examples::help(super::examples::RDDOCTOR, EXIT_CODES)
)]
pub struct DoctorArguments {
    /// A host to examine as well: NAME, USER@NAME or an address
    #[arg(value_name = "HOST")]
    host: Option<OsString>,
    /// Print the findings as one JSON object
    #[arg(long, conflicts_with = "fix_script")]
    json: bool,
    /// Print the fixes as a shell script, to be read and then run as root on each host
    #[arg(long)]
    fix_script: bool,
    /// Seconds to measure the bandwidth to HOST; 0 leaves it out
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=SECONDS_MAX))]
    seconds: u32,
    /// Which transport the bandwidth is measured on
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    transport: Transport,
    /// Ports that may be taken for what is tried
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    port_range: Option<RangeInclusive<u16>>,
    #[command(flatten)]
    hosts: HostOptions,
    #[command(flatten)]
    common: CommonOptions,
}

/// The exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 all is well; 1 usage; 10 warnings: it works, but worse than it could; \
    11 failures: something does not work; 128+n ended by signal n; 141 standard output was closed";

/// The whole command; `words` begin with its name.
pub fn main(words: Vec<OsString>) -> ExitCode {
    super::run("rddoctor", || super::with_arguments(words, |arguments| diagnose(&arguments)))
}

impl Arguments for DoctorArguments {
    fn hosts(given: &ArgMatches) -> Vec<OsString> {
        given.get_one::<OsString>("host").and_then(|host| parse_host(host).ok()).into_iter().collect()
    }
}

/// One line of the report.
struct Line {
    check: &'static str,
    about: String,
    level: Level,
    words: Words,
}

/// One host, or the way between two.
struct Section {
    /// For a person.
    title: String,
    /// For programs: `here`, `there`, `path`.
    part: &'static str,
    /// Where its fixes are to be run, as `uname -n` says it.
    node: String,
    lines: Vec<Line>,
}

fn diagnose(arguments: &DoctorArguments) -> Result<(), Failure> {
    let host = arguments.host.as_deref().map(parse_host).transpose()?;
    let setup = arguments.hosts.setup("rddoctor", host.as_deref(), false, false)?;
    let here = gather::here();
    let mut sections = vec![of_host("this host", "here", &here)];
    let format = Format::of(arguments);
    // The other host takes some seconds; this part can be read meanwhile.
    format.section(&sections)?;
    if let Some(host) = &host {
        let transfer = TransferOptions {
            transport: arguments.transport,
            port_range: arguments.port_range.clone(),
            reconnect: 0,
            ..TransferOptions::default()
        };
        let examination = Examination {
            setup,
            host,
            lasting: (arguments.seconds > 0).then(|| Duration::from_secs(arguments.seconds.into())),
            transfer: &transfer,
        };
        let others = of_other(&examination, arguments, here)?;
        format.section(&others)?;
        sections.extend(others);
    }
    format.end(&sections, host.as_deref())
}

/// A host, as the launcher takes it.
fn parse_host(text: &OsStr) -> Result<OsString, Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    // As rdcp takes it, with its colon or without.
    let mut with_colon = text.to_owned();
    if !text.as_bytes().ends_with(b":") {
        with_colon.push(":");
    }
    match Spec::parse(&with_colon) {
        Ok(Spec::There(host, path)) if path.is_empty() => Ok(host),
        // An IPv6 address without its brackets.
        _ if text.to_str().is_some_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok()) => Ok(text.to_owned()),
        _ => Err(usage(format!("HOST is a name or an address, not {:?}; see --help", escaped(text)))),
    }
}

fn of_host(label: &str, part: &'static str, facts: &Facts) -> Section {
    let title = if label == facts.host { label.to_owned() } else { format!("{label} ({})", facts.host) };
    let examined = Examined { facts, ports: None };
    let lines = examine(facts).into_iter().map(|finding| line(finding, &examined)).collect();
    Section { title, part, node: facts.host.clone(), lines }
}

fn line(finding: crate::measure::Finding, examined: &Examined<'_>) -> Line {
    let words = words::words(&finding.what, &finding.about, examined);
    Line { check: finding.check, about: finding.about, level: finding.level, words }
}

/// The other host, and the way there.
fn of_other(examination: &Examination<'_>, arguments: &DoctorArguments, here: Facts) -> Result<Vec<Section>, Failure> {
    let host = examination.host;
    let (label, node) = (escaped(host), here.host.clone());
    let path_title = format!("this host -> {label}");
    match examination.run(here) {
        Ok(path) => {
            let there = of_host(&label, "there", &path.there);
            let examined = Examined { facts: &path.there, ports: arguments.port_range.clone() };
            let lines = compare(&path).into_iter().map(|finding| line(finding, &examined)).collect();
            Ok(vec![there, Section { title: path_title, part: "path", node: path.there.host.clone(), lines }])
        }
        Err(no_way) => {
            if matches!(no_way.failure.exit, Exit::Signal(_)) {
                return Err(no_way.failure);
            }
            let found = no_way.failure.message.unwrap_or_else(|| "it could not be examined".to_owned());
            let code = match (no_way.lacks_agent, no_way.failure.exit) {
                (true, _) => "agent-missing",
                (false, Exit::Protocol) => "agent-of-another-version",
                (false, Exit::LinkLost) => "agent-lost",
                (false, _) => "agent-unreachable",
            };
            let words = words::no_way(found, code, host);
            let lines = vec![Line { check: "ssh", about: String::new(), level: Level::Failure, words }];
            Ok(vec![Section { title: path_title, part: "path", node, lines }])
        }
    }
}

/// The form of the report.
#[derive(Clone, Copy)]
enum Format {
    /// As they come; in colour or not.
    Text(bool),
    /// When all are known.
    Json,
    Script,
}

impl Format {
    fn of(arguments: &DoctorArguments) -> Self {
        match (arguments.json, arguments.fix_script) {
            (true, _) => Self::Json,
            (false, true) => Self::Script,
            (false, false) => Self::Text(console::colors_enabled()),
        }
    }

    fn section(self, sections: &[Section]) -> Result<(), Failure> {
        match self {
            Self::Text(colour) => print(&output::text(sections, colour)),
            Self::Json | Self::Script => Ok(()),
        }
    }

    fn end(self, sections: &[Section], host: Option<&OsStr>) -> Result<(), Failure> {
        let worst = sections.iter().flat_map(|section| &section.lines).map(|line| line.level).max();
        let exit = match worst {
            Some(Level::Failure) => Some(Exit::Failures),
            Some(Level::Warning) => Some(Exit::Warnings),
            Some(Level::Ok) | None => None,
        };
        print(&match self {
            Self::Text(colour) => output::sum(sections, colour, host),
            Self::Json => output::json(sections, exit.map_or(0, Exit::code)),
            Self::Script => output::script(sections),
        })?;
        exit.map_or(Ok(()), |exit| Err(Failure::silent(exit)))
    }
}

#[cfg(test)]
mod tests;
