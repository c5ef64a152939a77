//! Examines several hosts. A problem is printed once, with all hosts that have it. Only pairs that stand out are
//! printed.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use super::output::{Painter, finding_text};
use super::{DoctorArguments, Format, Section, of_found, of_host};
use crate::cli::report::area::ProgressArea;
use crate::fault::{Failure, escaped};
use crate::job::Setup;
use crate::job::examine::many::{Step, survey};
use crate::job::targets::folded;
use crate::measure::matrix::Matrix;
use crate::measure::{Facts, Finding, Fix, Level};
use crate::options::TransferOptions;

/// Maximum number of hosts whose matrix fits into 80 columns.
const MATRIX_HOSTS_MAX: usize = 8;

/// Columns of a cell of the matrix.
const CELL_COLUMNS: usize = 7;

/// Columns of the host names before the cells.
const LABEL_COLUMNS: usize = 20;

/// Number of columns up to which names of hosts are kept on one line.
const NAMES_COLUMNS: usize = 40;

/// Maximum number of lines shown with the same code. `--json` has all.
const ALIKE_MAX: usize = 8;

/// How many seconds each direction of a pair is measured by default.
const SECONDS: u32 = 1;

pub(super) fn examine(
    hosts: &[OsString],
    arguments: &DoctorArguments,
    setup: Setup,
    transfer: &TransferOptions,
    here: &Facts,
) -> Result<(), Failure> {
    let seconds = arguments.seconds.unwrap_or(SECONDS);
    let lasting = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    let within = Duration::from_secs(arguments.within.into());
    let mut area = ProgressArea::at_terminal("rddoctor", true);
    let surveyed = survey(setup, hosts, lasting, within, transfer, here, &mut |step| area.draw(&[step_line(step)]))?;
    drop(area);
    let mut sections = vec![of_host("this host", "here", here)];
    for (host, found) in hosts.iter().zip(surveyed.hosts) {
        sections.extend(of_found(host, arguments, &here.host, found));
    }
    let findings = surveyed.matrix.examine();
    if !findings.is_empty() {
        let (title, node) = ("pairs".to_owned(), here.host.clone());
        sections.push(Section { title, part: "pairs", node, is_here: true, name: String::new(), findings });
    }
    let format = Format::of(arguments);
    if let Format::Text(painter) = format {
        super::print(&text(&sections, hosts, &surveyed.matrix, painter))?;
    }
    let typed = match (&arguments.hosts_from, &arguments.host) {
        (Some(from), _) => format!("--hosts {}", shell_words::quote(&escaped(from))),
        (None, Some(host)) => shell_words::quote(&escaped(host)).into_owned(),
        (None, None) => String::new(),
    };
    format.end(&sections, Some(&surveyed.matrix), Some(OsStr::new(&typed)))
}

/// Returns a line that says how far the survey has come.
fn step_line(step: Step) -> String {
    match step {
        Step::Hosts { done, all } => format!("{done} of {all} hosts contacted"),
        Step::Ports { done, all } => format!("ports of {done} of {all} hosts tested"),
        Step::Rounds { done, all, left } => format!("round {} of {all}, {} s left", done + 1, left.as_secs().max(1)),
    }
}

/// A finding, and all hosts for which it is the same.
struct Alike<'a> {
    finding: &'a Finding,
    names: Vec<OsString>,
}

/// What a finding says, apart from how severe that is for the host.
fn said(finding: &Finding) -> (&str, &str, &str, &str, &str, Option<&Fix>) {
    let Finding { check, about, code, found, why, fix, .. } = finding;
    (check, about, code, found, why, fix.as_ref())
}

/// Returns the report for a person.
pub(super) fn text(sections: &[Section], hosts: &[OsString], matrix: &Matrix, painter: Painter) -> String {
    let mut out = String::new();
    let of_hosts = || sections.iter().filter(|section| section.part != "pairs");
    let is_bad = |finding: &&Finding| finding.level != Level::Ok;
    let name = |section: &Section| match section.name.is_empty() {
        true => OsString::from("this host"),
        false => OsString::from(&section.name),
    };
    let mut alike: Vec<Alike<'_>> = Vec::new();
    let mut ill: Vec<OsString> = Vec::new();
    for section in of_hosts() {
        for finding in section.findings.iter().filter(is_bad) {
            ill.push(name(section));
            match alike.iter_mut().find(|known| said(known.finding) == said(finding)) {
                Some(known) => known.names.push(name(section)),
                None => alike.push(Alike { finding, names: vec![name(section)] }),
            }
        }
    }
    let _ = writeln!(out, "{}", painter.bold(&format!("{} hosts and this one", hosts.len())));
    let all = std::iter::once(OsString::from("this host")).chain(hosts.iter().map(|host| escaped(host).into()));
    let well: Vec<OsString> = all.filter(|name| !ill.contains(name)).collect();
    if !well.is_empty() {
        out += &finding_text(painter, Level::Ok, "all checks", &names(&well), None);
    }
    let findings = alike.into_iter().map(|Alike { finding, names: mut of }| {
        of.dedup();
        (finding, format!("{}: {}", names(&of), finding.found))
    });
    out += &some_of_each(painter, findings);
    for section in sections.iter().filter(|section| section.part == "pairs") {
        let _ = writeln!(out, "\n{}", painter.bold(&section.title));
        if (2..=MATRIX_HOSTS_MAX).contains(&matrix.hosts.len()) {
            out += &table(matrix);
        }
        out += &some_of_each(painter, section.findings.iter().map(|finding| (finding, finding.found.clone())));
    }
    out.push('\n');
    out
}

/// Returns findings as text, each with what to say was found. Of findings with the same code, only the first
/// [`ALIKE_MAX`] are shown.
fn some_of_each<'a>(painter: Painter, findings: impl Iterator<Item = (&'a Finding, String)>) -> String {
    let mut out = String::new();
    let mut shown: Vec<(&'static str, usize)> = Vec::new();
    for (finding, found) in findings {
        let at = shown.iter().position(|(code, _)| *code == finding.code).unwrap_or_else(|| {
            shown.push((finding.code, 0));
            shown.len() - 1
        });
        shown[at].1 += 1;
        let name = super::output::name(finding);
        match shown[at].1 {
            // The reason and the fix are the same for all findings with this code.
            1 => out += &finding_text(painter, finding.level, &name, &found, Some(finding)),
            2..=ALIKE_MAX => out += &finding_text(painter, finding.level, &name, &found, None),
            _ => {}
        }
    }
    for (code, count) in shown.into_iter().filter(|(_, count)| *count > ALIKE_MAX) {
        let _ = writeln!(out, "        … and {} more {code}; --json lists all", count - ALIKE_MAX);
    }
    out
}

/// Returns names in a short form.
fn names(of: &[OsString]) -> String {
    let (ours, others): (Vec<_>, Vec<_>) = of.iter().cloned().partition(|name| name == "this host");
    let mut others = escaped(&folded(&others));
    if others.len() > NAMES_COLUMNS {
        // Allows the text to be wrapped.
        others = others.replace(',', ", ");
    }
    match (ours.is_empty(), others.is_empty()) {
        (true, _) => others,
        (false, true) => "this host".to_owned(),
        (false, false) => format!("this host, {others}"),
    }
}

/// Returns the last columns of a name, because the ends of names tell hosts apart.
fn tail(name: &str, columns: usize) -> String {
    let letters = name.chars().count();
    name.chars().skip(letters.saturating_sub(columns)).collect()
}

/// Returns the rates of all pairs, with a row for each sending host.
fn table(matrix: &Matrix) -> String {
    let mut out = format!("  {:LABEL_COLUMNS$}", "MB/s from, to");
    for host in &matrix.hosts {
        let _ = write!(out, "{:>CELL_COLUMNS$}", tail(host, CELL_COLUMNS - 1));
    }
    out.push('\n');
    for (from, host) in matrix.hosts.iter().enumerate() {
        let _ = write!(out, "  {:LABEL_COLUMNS$}", tail(host, LABEL_COLUMNS - 1));
        for to in 0..matrix.hosts.len() {
            let pair = matrix.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to));
            let cell = match pair.map(|pair| (&pair.speed, pair.mbps())) {
                None if from == to => String::new(),
                None => "-".to_owned(),
                Some((Err(_), _)) => "failed".to_owned(),
                Some((Ok(_), None)) => "ssh".to_owned(),
                Some((Ok(_), Some(mbps))) => match mbps as f64 / 8.0 {
                    rate if rate < 9.95 => format!("{rate:.1}"),
                    rate => format!("{rate:.0}"),
                },
            };
            let _ = write!(out, "{cell:>CELL_COLUMNS$}");
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}
