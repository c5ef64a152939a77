//! Turns records into pages: tables and drawings, in Markdown.
//!
//! A page of docs/performance has a section for each row of the suite, with the date, version and machine of its run.
//! Publishing replaces the sections for which there are records, and leaves the others unchanged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::chart;
use crate::harness::*;
use crate::record::{self, BUSY_MAX, Contest, Kind, Record, Run};

/// The pages of docs/performance: file, title, and sections in this order.
const PAGES: [(&str, &str, &[&str]); 8] = [
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
    ("scaling.md", "More processors, measured", &["scaling"]),
    (
        "copies.md",
        "Copies, measured",
        &["copy-small", "copy-big", "trees", "copy-byte", "copy-local", "copy-memory", "copy-resume", "copy-cold"],
    ),
    (
        "synchronizing.md",
        "What has changed since, measured",
        &[
            "sync-small",
            "sync-login",
            "sync-million",
            "sync-delta",
            "sync-pages",
            "sync-reflink",
            "sync-touched",
            "sync-appended",
            "sync-renamed",
            "check",
        ],
    ),
    (
        "pipelines.md",
        "Pipelines, measured",
        &["pipe-hop", "hops", "pipe-three", "pipe-cpu", "pipe-setup", "rdsh", "rdsh-tools"],
    ),
    ("many.md", "One tree to many hosts, measured", &["many", "many-faults", "many-joins", "many-cpu", "sbcast"]),
    ("long-lines.md", "Long lines and several networks, measured", &["long", "long-lanes", "rails", "rails-rdma"]),
    ("rdma.md", "RDMA in the guest, measured", &["rdma", "perf", "siw"]),
];

/// Returns the section of a verdict, from the beginning of its name or the contest that it comes from.
pub fn section_of(row: &Row) -> &str {
    match row.name.split([':', ',']).next().unwrap_or_default() {
        "tcp" | "encrypted" | "scp" | "streams" => "peers",
        "rxe" => "rdma",
        name => name,
    }
}

/// Returns the position of a section in the pages.
pub fn place_of(section: &str) -> usize {
    let mut all = PAGES.iter().flat_map(|(.., sections)| sections.iter());
    all.position(|name| *name == section).unwrap_or(usize::MAX)
}

/// Prints the table in the terminal: failures first, then open verdicts.
pub fn table(run: &Run) {
    let mut rows = run.rows();
    rows.sort_by_key(|row| row.rank());
    println!("\n{:<52} {:<20} {:<40} verdict", "row", "target", "measured (median, quartiles)");
    for row in rows {
        println!("{:<52} {:<20} {:<40} {}", row.name, row.target, row.measured, row.verdict);
    }
    let minutes = |seconds: f64| format!("{:.1}", seconds / 60.0);
    let mut records: Vec<&Record> = run.records.iter().collect();
    records.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let by_section = records.iter().map(|record| format!("{} {}", record.section, minutes(record.seconds)));
    let all = records.iter().map(|record| record.seconds).sum();
    println!("\n{} minutes: {}", minutes(all), by_section.collect::<Vec<String>>().join(", "));
    println!("congestion control over loopback: {}", run.head.control);
}

/// Writes report.md and its drawings.
pub fn write(records: &[Record], directory: &Path) -> Result<()> {
    // Removes drawings of earlier runs, which had other contests.
    remove_drawings(directory, |_| true)?;
    let mut page = "# Measured\n".to_owned();
    page += &verdicts(records);
    for record in records {
        draw(record, directory)?;
        page += &section(record);
    }
    fs::write(directory.join("report.md"), page).map_err(text)
}

/// Returns all verdicts in one table: failures first, then open verdicts.
fn verdicts(records: &[Record]) -> String {
    let mut rows: Vec<(&Row, &Record)> =
        records.iter().flat_map(|record| record.rows.iter().map(move |row| (row, record))).collect();
    rows.sort_by_key(|(row, _)| row.rank());
    let mut page = "\n| row | target | measured | verdict | of |\n|---|---|---|---|---|\n".to_owned();
    for (row, record) in rows {
        let of = format!("{}, {}", record.version, record.began);
        let cells = [&row.name, &row.target, &row.measured, &row.verdict, &of].map(|text| cell(text));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    page
}

/// Publishes the records under build/bench in docs/performance.
pub fn publish() -> Result<()> {
    let mut records = Record::read_all(&record::directory())?;
    // A row that could not be measured here does not replace another machine's measurement.
    records.retain(|record| record.rows.iter().any(|row| row.verdict != NOT_MEASURED));
    let directory = record::root().join("docs/performance");
    if let Some(record) = records.iter().find(|record| place_of(&record.section) == usize::MAX) {
        return Err(format!("{} has no page: add it to PAGES in benches/bench/report.rs", record.section));
    }
    fs::create_dir_all(&directory).map_err(text)?;
    remove_drawings(&directory, |name| records.iter().any(|record| record.section == name))?;
    for record in &records {
        draw(record, &directory)?;
    }
    for (file, title, names) in PAGES {
        let replaced: Vec<&Record> = records.iter().filter(|record| names.contains(&record.section.as_str())).collect();
        if replaced.is_empty() {
            continue;
        }
        let path = directory.join(file);
        let before = fs::read_to_string(&path).unwrap_or_default();
        let kept: BTreeMap<&str, &str> =
            before.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
        let mut page = format!("# {title}\n\nWritten by `make bench-report`. [How it is measured](method.md).\n");
        for name in names {
            if let Some(record) = replaced.iter().find(|record| record.section == *name) {
                page += &section(record);
            } else if let Some(body) = kept.get(name) {
                let _ = writeln!(page, "\n## {name}\n{}", body.trim_end_matches('\n'));
            }
        }
        fs::write(&path, page).map_err(text)?;
        let replaced = replaced.iter().map(|record| format!("{} of {}", record.section, record.began));
        println!("{}: {}", path.display(), replaced.collect::<Vec<String>>().join(", "));
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

/// Removes the drawings of the sections for which `of` is true.
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

/// Returns the contests, with a file name for each drawing.
fn drawings(record: &Record) -> impl Iterator<Item = (&Contest, String)> {
    record.contests.iter().enumerate().map(|(number, contest)| {
        let earlier = record.contests[..number].iter().filter(|other| other.row == contest.row).count();
        let name = if earlier == 0 { contest.row.clone() } else { format!("{}-{}", contest.row, earlier + 1) };
        (contest, format!("{name}.svg"))
    })
}

/// Returns a record as a section.
fn section(record: &Record) -> String {
    let Record { section, began, command, version, control, .. } = record;
    let mut page = format!("\n## {section}\n\n");
    let _ = writeln!(page, "Measured {began} by `{command}`, rdma-pipe {version}.");
    let _ = writeln!(page, "Congestion control over loopback: {control}.\n");
    let busy = record.contests.iter().map(|contest| contest.busy).fold(0.0, f64::max);
    if record.quick {
        page += "**Not for claims: a quick run, with small sizes and few rounds.**\n\n";
    }
    if busy > BUSY_MAX {
        let percent = busy * 100.0;
        let _ = writeln!(page, "**Not for claims: others used up to {percent:.0} % of the machine's processors.**\n");
    }
    if !record.rows.is_empty() {
        page += "| row | target | measured | verdict |\n|---|---|---|---|\n";
    }
    let mut rows: Vec<&Row> = record.rows.iter().collect();
    rows.sort_by_key(|row| row.rank());
    for row in rows {
        let cells = [&row.name, &row.target, &row.measured, &row.verdict].map(|text| cell(text));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    for (contest, drawing) in drawings(record) {
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

/// Returns text without anything that would end a table's cell.
fn cell(text: &str) -> String {
    let line: String = text.chars().take(200).collect();
    line.replace('\n', " ").replace('|', "\\|")
}
