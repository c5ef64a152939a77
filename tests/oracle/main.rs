//! Compares `rdcp -r` with `cp -a`, an oracle that is independent of it: random trees, and all forms of command lines,
//! within a host and between hosts (a launcher runs the agent on this host). Intended differences are listed in
//! `differences.rs`, and in the manual page under "Differences from cp". Every other difference is a violation.

#[path = "../rig/mod.rs"]
mod rig;

mod copies;
mod differences;
mod forms;
mod habits;
mod random;
mod snapshot;
mod tree;

use rig::Ended;

/// Maximum number of violations printed for one copy.
const LINES_MAX: usize = 12;

/// Describes the violations of one copy, in several lines.
fn report(which: &str, line: &str, wrong: &[String], cp: &Ended, rdcp: &Ended) -> String {
    let mut text = format!("{which}: {line}\n");
    for line in wrong.iter().take(LINES_MAX) {
        text += &format!("    {line}\n");
    }
    if wrong.len() > LINES_MAX {
        text += &format!("    and {} more\n", wrong.len() - LINES_MAX);
    }
    for (name, ended) in [("cp", cp), ("rdcp", rdcp)] {
        for line in ended.stderr.lines().take(4) {
            text += &format!("    {name} {}: {}\n", ended.code, line.chars().take(300).collect::<String>());
        }
    }
    text
}

/// Each difference has its heading in the manual page, and each heading belongs to a difference.
#[test]
fn the_manual_has_each_difference() {
    let mut headings: Vec<&str> = differences::LINES.iter().map(|lines| lines.heading).collect();
    headings.push(differences::ITSELF);
    headings.extend(differences::ENTRIES.iter().map(|entries| entries.heading));
    headings.sort_unstable();
    headings.dedup();
    let page = include_str!("../../docs/man/rdcp.1");
    let (_, section) = page.split_once(".SH \"DIFFERENCES FROM CP\"\n").expect("the section");
    let section = section.split("\n.SH").next().expect("it has an end");
    let bold = |line: &str| Some(line.strip_prefix("\\fB")?.strip_suffix("\\fR")?.replace("\\-", "-"));
    let mut written: Vec<String> = section.lines().filter_map(bold).collect();
    written.sort_unstable();
    assert_eq!(headings, written, "what differs, and what docs/man/rdcp.1 says that differs");
}
