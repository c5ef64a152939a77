//! A record as a page: tables and drawings, in Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::chart;
use crate::harness::*;
use crate::record::{self, BUSY_MAX, Contest, Kind, Record};

/// Between these, docs/PERFORMANCE.md has what was measured.
const BEGIN: &str = "<!-- measured: written by `make bench-report` -->";
const END: &str = "<!-- /measured -->";

/// Where docs/PERFORMANCE.md finds drawings.
const DRAWINGS: &str = "performance";

/// The table in the terminal.
pub fn table(rows: &[Row]) {
    println!("\n{:<52} {:<20} {:<40} verdict", "row", "target", "measured (median, quartiles)");
    for row in rows {
        println!("{:<52} {:<20} {:<40} {}", row.name, row.target, row.measured, row.verdict);
    }
}

/// Writes report.md and its drawings.
pub fn write(record: &Record, directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(text)?.flatten() {
        // Of contests that this run does not have.
        if entry.path().extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(entry.path()).map_err(text)?;
        }
    }
    for (contest, name) in drawings(record) {
        if let Some(svg) = chart::draw(contest) {
            fs::write(directory.join(name), svg).map_err(text)?;
        }
    }
    fs::write(directory.join("report.md"), page(record, "")).map_err(text)
}

/// Puts what is under build/bench into the documents.
pub fn publish() -> Result<()> {
    let record = Record::read(&record::directory())?;
    let documents = record::root().join("docs");
    let page_path = documents.join("PERFORMANCE.md");
    let before = fs::read_to_string(&page_path).map_err(text)?;
    let (head, rest) = before.split_once(BEGIN).ok_or(format!("no {BEGIN} in {}", page_path.display()))?;
    let (_, tail) = rest.split_once(END).ok_or(format!("no {END} in {}", page_path.display()))?;
    let drawn = documents.join(DRAWINGS);
    if drawn.exists() {
        fs::remove_dir_all(&drawn).map_err(text)?;
    }
    fs::create_dir_all(&drawn).map_err(text)?;
    for (contest, name) in drawings(&record) {
        if let Some(svg) = chart::draw(contest) {
            fs::write(drawn.join(name), svg).map_err(text)?;
        }
    }
    let page = format!("{head}{BEGIN}\n{}{END}{tail}", page(&record, &format!("{DRAWINGS}/")));
    fs::write(&page_path, page).map_err(text)?;
    println!("{} and {} are of the run of {}", page_path.display(), drawn.display(), record.began);
    Ok(())
}

/// A file name for each contest.
fn drawings(record: &Record) -> impl Iterator<Item = (&Contest, String)> {
    record.contests.iter().enumerate().map(|(number, contest)| {
        let earlier = record.contests[..number].iter().filter(|other| other.row == contest.row).count();
        let name = if earlier == 0 { contest.row.clone() } else { format!("{}-{}", contest.row, earlier + 1) };
        (contest, format!("{name}.svg"))
    })
}

fn page(record: &Record, drawings_at: &str) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "\nMeasured {} by `{}`, rdma-pipe {}.\n", record.began, record.command, record.version);
    let busy = record.contests.iter().map(|contest| contest.busy).fold(0.0, f64::max);
    if record.quick || busy > BUSY_MAX {
        let why = if record.quick { "a quick run, with small sizes and few rounds".to_owned() } else { String::new() };
        let load = if busy > BUSY_MAX {
            format!("on a busy machine: others had up to {:.0} % of its processors", busy * 100.0)
        } else {
            String::new()
        };
        let both = if why.is_empty() || load.is_empty() { "" } else { ", " };
        let _ = writeln!(page, "**Not for claims: {why}{both}{load}.**\n");
    }
    let _ = writeln!(page, "| machine | |\n|---|---|");
    for (name, value) in &record.machine {
        let _ = writeln!(page, "| {name} | {} |", cell(value));
    }
    let _ = writeln!(page, "\n### What must hold\n\n| row | target | measured | verdict |\n|---|---|---|---|");
    for row in &record.rows {
        let cells = [&row.name, &row.target, &row.measured, &row.verdict].map(|text| cell(text));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    for (contest, name) in drawings(record) {
        section(&mut page, contest, &format!("{drawings_at}{name}"));
    }
    page
}

fn section(page: &mut String, contest: &Contest, drawing: &str) {
    let place = if contest.place == "here" { String::new() } else { format!(" (guest, {})", contest.place) };
    let Contest { row, title, unit, .. } = contest;
    let _ = writeln!(page, "\n### {row}: {title}{place}\n\n`ONLY={row} make bench`\n");
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
                let told = if values.is_empty() { String::new() } else { format!("{:.3}", Spread::of(&values).median) };
                let _ = write!(page, " {told} |");
            }
        }
        page.push('\n');
    }
    for (name, why) in &contest.absent {
        let _ = writeln!(page, "\n{name}: NOT MEASURED: {}", cell(why));
    }
    let _ = writeln!(page, "\n<details><summary>Commands</summary>\n\n```text");
    let mut told: Vec<&str> = Vec::new();
    for entry in &contest.entries {
        let command = entry.command.as_str();
        if !told.contains(&command) {
            let _ = writeln!(page, "{}: {command}", entry.name);
            told.push(command);
        }
    }
    let _ = writeln!(page, "```\n\n</details>");
}

/// Nothing that ends a table's cell.
fn cell(text: &str) -> String {
    let line: String = text.chars().take(200).collect();
    line.replace('\n', " ").replace('|', "\\|")
}
