//! A record as pages: tables and drawings, in Markdown.
//!
//! A page of docs/performance has a section for each row of the suite, with the date, version and machine of its run.
//! Publishing a run of some rows replaces their sections and leaves the others as they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::chart;
use crate::harness::*;
use crate::record::{self, BUSY_MAX, Contest, Kind, Record};

/// The pages of docs/performance: file, title, and the sections on it, in this order.
const PAGES: [(&str, &str, &[&str]); 7] = [
    (
        "streams.md",
        "Streams over TCP, measured",
        &[
            "peers",
            "cpu",
            "compress",
            "compress-slow",
            "lanes",
            "sizes",
            "sinks",
            "cold",
            "memory",
            "byte",
            "instructions",
        ],
    ),
    (
        "copies.md",
        "Copies, measured",
        &["copy-small", "copy-big", "trees", "copy-byte", "copy-local", "copy-memory", "copy-resume"],
    ),
    (
        "synchronizing.md",
        "What has changed since, measured",
        &["sync-small", "sync-million", "sync-delta", "sync-reflink", "sync-touched", "sync-appended", "sync-renamed"],
    ),
    ("pipelines.md", "Pipelines, measured", &["pipe-hop", "hops", "pipe-three", "pipe-cpu", "pipe-setup", "rdsh"]),
    ("many.md", "One tree to many hosts, measured", &["many", "many-faults", "many-joins"]),
    ("long-lines.md", "Long lines, measured", &["long"]),
    ("rdma.md", "RDMA in the guest, measured", &["rdma", "perf", "siw"]),
];

/// The table in the terminal.
pub fn table(rows: &[Row]) {
    println!("\n{:<52} {:<20} {:<40} verdict", "row", "target", "measured (median, quartiles)");
    for row in rows {
        println!("{:<52} {:<20} {:<40} {}", row.name, row.target, row.measured, row.verdict);
    }
}

/// Writes report.md and its drawings.
pub fn write(record: &Record, directory: &Path) -> Result<()> {
    // Drawings of an earlier run, which had other contests.
    remove_drawings(directory, |_| true)?;
    draw(record, directory)?;
    let mut page = "# Measured\n".to_owned();
    for name in sections(record) {
        page += &section(record, name);
    }
    fs::write(directory.join("report.md"), page).map_err(text)
}

/// Puts what is under build/bench into docs/performance.
pub fn publish() -> Result<()> {
    let record = Record::read(&record::directory())?;
    let directory = record::root().join("docs/performance");
    let measured = sections(&record);
    if let Some(name) = measured.iter().find(|name| !PAGES.iter().any(|(.., sections)| sections.contains(name))) {
        return Err(format!("{name} has no page: add it to PAGES in benches/bench/report.rs"));
    }
    fs::create_dir_all(&directory).map_err(text)?;
    remove_drawings(&directory, |name| measured.contains(&name))?;
    draw(&record, &directory)?;
    for (file, title, names) in PAGES {
        let replaced: Vec<&str> = names.iter().copied().filter(|name| measured.contains(name)).collect();
        if replaced.is_empty() {
            continue;
        }
        let path = directory.join(file);
        let before = fs::read_to_string(&path).unwrap_or_default();
        let kept: BTreeMap<&str, &str> =
            before.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
        let mut page = format!("# {title}\n\nWritten by `make bench-report`. [How it is measured](method.md).\n");
        for name in names {
            if replaced.contains(name) {
                page += &section(&record, name);
            } else if let Some(body) = kept.get(name) {
                let _ = writeln!(page, "\n## {name}\n{}", body.trim_end_matches('\n'));
            }
        }
        fs::write(&path, page).map_err(text)?;
        println!("{}: {} of the run of {}", path.display(), replaced.join(", "), record.began);
    }
    Ok(())
}

fn draw(record: &Record, directory: &Path) -> Result<()> {
    for (contest, name) in drawings(record) {
        if let Some(svg) = chart::draw(contest) {
            fs::write(directory.join(name), svg).map_err(text)?;
        }
    }
    Ok(())
}

/// Removes the drawings of those sections that `of` selects.
fn remove_drawings(directory: &Path, of: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(text)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".svg")
            && of(stem.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-'))
        {
            fs::remove_file(entry.path()).map_err(text)?;
        }
    }
    Ok(())
}

/// The sections that a record fills, in the order of its run.
fn sections(record: &Record) -> Vec<&str> {
    let of_contests = record.contests.iter().map(|contest| contest.row.as_str());
    let mut names: Vec<&str> = Vec::new();
    for name in of_contests.chain(record.rows.iter().map(section_of)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The section of a verdict: what its name begins with, or the contest that it is taken from.
fn section_of(row: &Row) -> &str {
    match row.name.split([':', ',']).next().unwrap_or_default() {
        "tcp" | "encrypted" | "scp" | "streams" => "peers",
        "rxe" => "rdma",
        name => name,
    }
}

/// A file name for each contest.
fn drawings(record: &Record) -> impl Iterator<Item = (&Contest, String)> {
    record.contests.iter().enumerate().map(|(number, contest)| {
        let earlier = record.contests[..number].iter().filter(|other| other.row == contest.row).count();
        let name = if earlier == 0 { contest.row.clone() } else { format!("{}-{}", contest.row, earlier + 1) };
        (contest, format!("{name}.svg"))
    })
}

/// All that a record has on one section.
fn section(record: &Record, name: &str) -> String {
    let mut page = format!("\n## {name}\n\n");
    let _ = writeln!(page, "Measured {} by `{}`, rdma-pipe {}.\n", record.began, record.command, record.version);
    let contests = || drawings(record).filter(|(contest, _)| contest.row == name);
    let busy = contests().map(|(contest, _)| contest.busy).fold(0.0, f64::max);
    if record.quick {
        page += "**Not for claims: a quick run, with small sizes and few rounds.**\n\n";
    }
    if busy > BUSY_MAX {
        let percent = busy * 100.0;
        let _ = writeln!(page, "**Not for claims: others used up to {percent:.0} % of the machine's processors.**\n");
    }
    let rows: Vec<&Row> = record.rows.iter().filter(|row| section_of(row) == name).collect();
    if !rows.is_empty() {
        page += "| row | target | measured | verdict |\n|---|---|---|---|\n";
    }
    for row in rows {
        let cells = [&row.name, &row.target, &row.measured, &row.verdict].map(|text| cell(text));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    for (contest, drawing) in contests() {
        write_contest(&mut page, contest, &drawing);
    }
    let machine: Vec<String> = record.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let _ = writeln!(page, "\n<details><summary>Machine</summary>\n\n{}\n\n</details>", machine.join("; "));
    page
}

fn write_contest(page: &mut String, contest: &Contest, drawing: &str) {
    let place = if contest.place == "here" { String::new() } else { format!(" (guest, {})", contest.place) };
    let Contest { title, unit, .. } = contest;
    let _ = writeln!(page, "\n### {title}{place}\n");
    if !contest.entries.is_empty() {
        let _ = writeln!(page, "![{title}]({drawing})\n");
    }
    let with_cpu = contest.entries.iter().any(|entry| !entry.cpu.is_empty());
    let at = contest.across.as_deref().map(|across| (format!(" {across} |"), "---|")).unwrap_or_default();
    let cpu = if with_cpu { (" receiver, s/GB | sender, s/GB |", "---|---|") } else { ("", "") };
    let _ = writeln!(page, "| |{} {unit} | rounds |{}\n|---|{}---|---|{}", at.0, cpu.0, at.1, cpu.1);
    for entry in &contest.entries {
        let name = cell(&entry.name);
        let name = if entry.kind == Kind::Ours { format!("**{name}**") } else { name };
        let at = entry.at.map_or(String::new(), |at| format!(" {at} |"));
        let _ = write!(page, "| {name} |{at} {} | {} |", Spread::of(&entry.values), entry.values.len());
        if with_cpu {
            for end in [0, 1] {
                let values: Vec<f64> = entry.cpu.iter().map(|ends| ends[end]).collect();
                let shown =
                    if values.is_empty() { String::new() } else { format!("{:.3}", Spread::of(&values).median) };
                let _ = write!(page, " {shown} |");
            }
        }
        page.push('\n');
    }
    for (name, why) in &contest.absent {
        let _ = writeln!(page, "\n{name}: NOT MEASURED: {}", cell(why));
    }
    let _ = writeln!(page, "\n<details><summary>Commands</summary>\n\n```text");
    let mut shown: Vec<&str> = Vec::new();
    for entry in &contest.entries {
        let command = entry.command.as_str();
        if !shown.contains(&command) {
            let _ = writeln!(page, "{}: {command}", entry.name);
            shown.push(command);
        }
    }
    let _ = writeln!(page, "```\n\n</details>");
}

/// Nothing that ends a table's cell.
fn cell(text: &str) -> String {
    let line: String = text.chars().take(200).collect();
    line.replace('\n', " ").replace('|', "\\|")
}
