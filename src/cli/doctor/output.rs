//! Formats the report as text, as JSON, and as a script of fixes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::IsTerminal;

use console::Style;
use rustix::termios::tcgetwinsize;
use serde_json::json;

use super::Section;
use crate::fault::escaped;
use crate::measure::matrix::{Fault, Matrix, Measured};
use crate::measure::{Finding, Fix, Level, Speed};

/// Columns of a check's name.
const NAME_COLUMNS: usize = 22;

/// Columns before the description of what was found.
const FOUND: usize = 8 + NAME_COLUMNS + 1;

/// Columns before the reason and the advice.
const WHY: usize = 12;

/// Version of the JSON report. It is increased when a field changes its meaning or is removed.
const JSON_VERSION: u32 = 1;

pub(super) fn name(finding: &Finding) -> String {
    if finding.about.is_empty() {
        finding.check.to_owned()
    } else {
        format!("{} {}", finding.check, escaped(OsStr::new(&finding.about)))
    }
}

fn all(sections: &[Section]) -> impl Iterator<Item = &Finding> {
    sections.iter().flat_map(|section| &section.findings)
}

fn count(sections: &[Section], level: Level) -> usize {
    all(sections).filter(|finding| finding.level == level).count()
}

fn several(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Number of columns if the report is not printed to a terminal, or if the terminal does not report its size.
const COLUMNS: usize = 80;

/// Minimum width to which a report is wrapped, and width below which what was found is indented as little as the
/// reason.
const COLUMNS_MIN: usize = 40;
const COLUMNS_FEW: usize = 60;

/// Adds colours, if enabled, and wraps text to the width of the terminal. Commands to be copied are not wrapped.
#[derive(Clone, Copy)]
pub(super) struct Painter {
    is_coloured: bool,
    columns: usize,
}

impl Painter {
    /// Makes a painter for a terminal with `columns` columns; 0 if that is unknown.
    pub(super) fn new(is_coloured: bool, columns: usize) -> Self {
        let columns = if columns == 0 { COLUMNS } else { columns.max(COLUMNS_MIN) };
        Self { is_coloured, columns }
    }

    /// Makes a painter for standard output.
    pub(super) fn of_output() -> Self {
        let output = std::io::stdout();
        let columns = if output.is_terminal() { tcgetwinsize(&output).map_or(0, |size| size.ws_col) } else { 0 };
        Self::new(console::colors_enabled(), columns.into())
    }

    fn paint(self, style: &Style, text: &str) -> String {
        style.clone().force_styling(self.is_coloured).apply_to(text).to_string()
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.paint(&Style::new().bold(), text)
    }

    /// Wraps text that begins after `taken` columns of a line. Further lines are indented.
    fn wrapped(self, text: &str, taken: usize, indent: usize) -> String {
        let (mut out, mut column) = (String::new(), taken);
        for word in text.split(' ') {
            let letters = word.chars().count();
            if column > taken.min(indent) && column + 1 + letters > self.columns {
                let _ = write!(out, "\n{:indent$}", "");
                column = indent;
            } else if !out.is_empty() {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += letters;
        }
        out
    }
}

fn failure() -> Style {
    Style::new().red().bold()
}

fn warning() -> Style {
    Style::new().yellow()
}

/// Returns the report for a person: each check as a wrapped line, followed by the reason and the fix if something is
/// wrong.
pub(super) fn text(sections: &[Section], painter: Painter) -> String {
    let mut out = String::new();
    for section in sections {
        let _ = writeln!(out, "{}", painter.bold(&escaped(OsStr::new(&section.title))));
        for finding in &section.findings {
            out += &finding_text(painter, finding.level, &name(finding), &finding.found, Some(finding));
        }
        out.push('\n');
    }
    out
}

/// Returns one line of the report, wrapped. The reason and the fix of the finding, if any, follow.
pub(super) fn finding_text(
    painter: Painter,
    level: Level,
    name: &str,
    found: &str,
    finding: Option<&Finding>,
) -> String {
    let dim = Style::new().dim();
    let mut out = String::new();
    let (style, mark) = match level {
        Level::Ok => (Style::new().cyan(), "ok  "),
        Level::Warning => (warning(), "warn"),
        Level::Failure => (failure(), "FAIL"),
    };
    let taken = FOUND + name.chars().count().max(NAME_COLUMNS) - NAME_COLUMNS;
    let indent = if painter.columns < COLUMNS_FEW { WHY } else { FOUND };
    let found = painter.wrapped(&escaped(OsStr::new(found)), taken, indent);
    let name = if found.starts_with('\n') { name.to_owned() } else { format!("{name:NAME_COLUMNS$} ") };
    let _ = writeln!(out, "  {}  {name}{found}", painter.paint(&style, mark));
    let Some(finding) = finding else { return out };
    if !finding.why.is_empty() {
        let _ = writeln!(out, "        {} {}", painter.paint(&dim, "why"), painter.wrapped(&finding.why, WHY, WHY));
    }
    match &finding.fix {
        Some(Fix::Run(command)) => {
            let _ = writeln!(out, "        {} {}", painter.paint(&dim, "fix"), painter.bold(command));
        }
        Some(Fix::Do(advice)) => {
            let advice = painter.wrapped(&escaped(OsStr::new(advice)), WHY, WHY);
            let _ = writeln!(out, "        {} {advice}", painter.paint(&dim, "fix"));
        }
        None => {}
    }
    out
}

/// Returns the last line, which sums up the report.
pub(super) fn sum(sections: &[Section], painter: Painter, host: Option<&OsStr>) -> String {
    let (warnings, failures) = (count(sections, Level::Warning), count(sections, Level::Failure));
    let checked = several(all(sections).count(), "check");
    if warnings + failures == 0 {
        return format!("{checked}, all is well\n");
    }
    let mut parts = Vec::new();
    if failures > 0 {
        parts.push(painter.paint(&failure(), &several(failures, "failure")));
    }
    if warnings > 0 {
        parts.push(painter.paint(&warning(), &several(warnings, "warning")));
    }
    if sections.iter().all(|section| section.part == "drill") {
        return format!("{} in {checked}\n", parts.join(" and "));
    }
    let host = host.map_or(String::new(), |host| format!(" {}", escaped(host)));
    format!("{} in {checked}; rddoctor --fix-script{host} prints the fixes\n", parts.join(" and "))
}

/// Returns the report for programs: one object, on one line.
pub(super) fn json(sections: &[Section], matrix: Option<&Matrix>, exit: u8) -> String {
    let findings: Vec<serde_json::Value> = sections
        .iter()
        .flat_map(|section| section.findings.iter().map(move |finding| (section, finding)))
        .map(|(section, finding)| {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warning => "warning",
                Level::Failure => "failure",
            };
            let (command, advice) = match &finding.fix {
                Some(Fix::Run(command)) => (Some(command), None),
                Some(Fix::Do(advice)) => (None, Some(advice)),
                None => (None, None),
            };
            json!({
                "part": section.part,
                "host": section.node,
                "name": section.name,
                "check": finding.check,
                "about": finding.about,
                "level": level,
                "code": finding.code,
                "found": finding.found,
                "why": finding.why,
                "command": command,
                "advice": advice,
            })
        })
        .collect();
    let mut report = json!({
        "version": JSON_VERSION,
        "program": env!("CARGO_PKG_VERSION"),
        "exit": exit,
        "warnings": count(sections, Level::Warning),
        "failures": count(sections, Level::Failure),
        "findings": findings,
    });
    if let Some(matrix) = matrix {
        report["hosts"] = json!(matrix.hosts);
        report["rounds"] = json!({ "measured": matrix.rounds, "all": matrix.rounds_all });
        let pairs = matrix.pairs.iter().zip(matrix.faults());
        report["pairs"] = pairs.map(|(pair, fault)| pair_json(matrix, pair, fault)).collect();
    }
    format!("{report}\n")
}

/// Describes one direction of a pair.
fn pair_json(matrix: &Matrix, pair: &Measured, fault: Option<Fault>) -> serde_json::Value {
    let speed = pair.speed.as_ref().ok();
    let fault = fault.map(|fault| match fault {
        Fault::Slow => "slow",
        Fault::Tunneled => "not-reached",
        Fault::Unmeasured => "unmeasured",
    });
    json!({
        "from": matrix.hosts[pair.from],
        "to": matrix.hosts[pair.to],
        "fault": fault,
        "reason": pair.speed.as_ref().err(),
        "mbps": speed.map(Speed::mbps),
        "bytes": speed.map(|speed| speed.bytes),
        "micros": speed.map(|speed| speed.micros),
        "transport": speed.map(|speed| &speed.medium),
        "limiter": speed.map(|speed| &speed.limiter),
        "tunneled": speed.map(|speed| speed.is_tunneled),
        "encrypted": speed.map(|speed| speed.is_encrypted),
    })
}

/// Returns the fixes as one script for all hosts, of which each host runs its own part. A command that several findings
/// of a host need appears once. Hosts report their names themselves: if several report the same, their commands become
/// comments, because one of them may have claimed the name in order to change the other.
pub(super) fn script(sections: &[Section]) -> String {
    let mut nodes: Vec<&str> = Vec::new();
    for section in sections.iter().filter(|section| section.findings.iter().any(|finding| finding.fix.is_some())) {
        if !nodes.contains(&section.node.as_str()) {
            nodes.push(&section.node);
        }
    }
    let mut out = format!(
        "#!/bin/sh\n# Fixes for the problems that rddoctor {} found. Read this script, then run it as root\n\
         # on each host named below: each host runs only its own part. Nothing else is changed.\nset -eu\n",
        env!("CARGO_PKG_VERSION")
    );
    if nodes.is_empty() {
        out.push_str("\n# Nothing to fix.\n");
        return out;
    }
    out.push_str(
        "\n[ \"$(id -u)\" = 0 ] || { echo \"$0: run this as root\" >&2; exit 1; }\n\ncase \"$(uname -n)\" in\n",
    );
    for node in nodes {
        let _ = writeln!(out, "{})", shell_words::quote(node));
        let of_node = || sections.iter().filter(move |section| section.node == node);
        let owners: BTreeSet<&str> = of_node().map(Section::owner).collect();
        let is_shared = owners.len() > 1;
        if is_shared {
            let names = escaped(OsStr::new(&owners.into_iter().collect::<Vec<_>>().join(", ")));
            let _ = writeln!(
                out,
                "    # Several hosts report this name: {names}. So commands for other hosts than the one that has written \
                 this are comments; run each on its host."
            );
        }
        let mut told: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut commands = 0;
        let found = of_node().flat_map(|section| section.findings.iter().map(move |finding| (section, finding)));
        for (section, finding) in found {
            let Some(fix) = &finding.fix else { continue };
            let (Fix::Run(text) | Fix::Do(text)) = fix;
            if !told.insert((section.owner(), text.as_str())) {
                continue;
            }
            let of = if is_shared { format!("{}: ", escaped(OsStr::new(section.owner()))) } else { String::new() };
            let _ = writeln!(out, "    # {of}{}: {}", name(finding), escaped(OsStr::new(&finding.found)));
            // It may say what else has to be done.
            let _ = writeln!(out, "    # Why: {}", escaped(OsStr::new(&finding.why)));
            match fix {
                Fix::Run(command) if is_shared && !section.is_here => {
                    let _ = writeln!(out, "    # {}", escaped(OsStr::new(command)));
                }
                Fix::Run(command) => {
                    commands += 1;
                    let _ = writeln!(out, "    {command}");
                }
                Fix::Do(advice) => {
                    let _ = writeln!(out, "    # By hand: {}", escaped(OsStr::new(advice)));
                }
            }
        }
        if commands == 0 {
            out.push_str("    :\n");
        }
        out.push_str("    ;;\n");
    }
    out.push_str("*)\n    echo \"$0: no fixes for $(uname -n)\" >&2\n    exit 1\n    ;;\nesac\n");
    out
}
