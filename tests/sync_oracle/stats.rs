//! Compares `--stats` with rsync's: the numbers that must be equal, for destinations changed in any way.

use std::collections::BTreeMap;

use crate::itemize::{Printed, by_rdcp, by_rsync, copy_before};
use crate::modes::{MODES, Mode, Selects};
use crate::random::{Grown, History, LONG_COUNT, SEEDS, grow, operands, plant, scene};
use crate::rig::seeds::{each, seeds};

/// Numbers and their details as printed: `Number of files: 3 (reg: 2, dir: 1)`.
type Numbers = BTreeMap<String, String>;

/// Numbers for which both programs print the same words and values.
const SAME: &[&str] = &["Number of files", "Number of created files", "Number of deleted files", "Total file size"];

/// Further numbers that rdcp prints.
const OTHERS: &[&str] = &[
    "Number of regular files transferred",
    "Total transferred file size",
    "Literal data",
    "Matched data",
    "Total bytes sent",
    "Total bytes received",
];

fn numbers(printed: &Printed) -> Numbers {
    let line = |line: &String| line.split_once(": ").map(|(name, rest)| (name.to_owned(), rest.to_owned()));
    let lines = printed.lines.iter().filter_map(line);
    lines.filter(|(name, _)| SAME.contains(&&**name) || OTHERS.contains(&&**name)).collect()
}

fn number(of: &Numbers, name: &str) -> u64 {
    let text = of.get(name).map_or("", |text| text.split(' ').next().unwrap_or_default());
    text.replace(',', "").parse().unwrap_or(u64::MAX)
}

/// Counts the lines of entries for which `is_one` holds.
fn count(printed: &Printed, is_one: impl Fn(&str) -> bool) -> u64 {
    printed.lines.iter().filter(|line| is_one(line)).count() as u64
}

fn check(seed: u64, mode: &Mode) -> Vec<String> {
    let grown: Grown = grow(seed, false, mode);
    let lab = plant(&grown);
    let [one, other] = ["rsync", "rdcp"].map(|name| {
        let scene = scene(&lab, name, &grown);
        if matches!(grown.history, History::Copied(_)) {
            copy_before(&lab, &scene, &grown);
        }
        scene
    });
    let theirs =
        by_rsync(&lab, operands(&lab, &one, "now", &grown), &[mode.rsync, &["--stats"]].concat(), &grown.patterns);
    let to = operands(&lab, &other, "now", &grown);
    let ours = by_rdcp(&lab, grown.way, to, &[mode.rdcp, &["--stats"]].concat(), &grown.patterns);
    let (reference, got) = (numbers(&theirs), numbers(&ours));
    let mut wrong = Vec::new();
    for name in SAME {
        // rsync counts an entry that is listed twice as two.
        if mode.selects == Selects::Listed && ["Number of files", "Total file size"].contains(name) {
            continue;
        }
        // rsync also counts directories that it leaves unchanged because they only lead to others.
        if mode.rsync.contains(&"--no-implied-dirs") && *name == "Number of files" {
            continue;
        }
        if reference.get(*name) != got.get(*name) {
            wrong.push(format!("{name}: {:?}, rsync {:?}", got.get(*name), reference.get(*name)));
        }
    }
    // The numbers of transferred, created and deleted files must match the lines of entries.
    let is_sent = |line: &str| line.starts_with("<f") || line.starts_with(">f");
    for (name, lines) in [
        ("Number of regular files transferred", count(&ours, is_sent)),
        ("Number of created files", count(&ours, |line| line.get(2..11) == Some("+++++++++"))),
        ("Number of deleted files", count(&ours, |line| line.starts_with("*deleting "))),
    ] {
        if number(&got, name) != lines {
            wrong.push(format!("{name}: {:?}, and {lines} lines", got.get(name)));
        }
    }
    // A file whose contents already exist is not sent again, as rsync does if the time differs.
    for name in &OTHERS[..2] {
        if number(&got, name) > number(&reference, name) {
            wrong.push(format!("{name}: {:?}, rsync {:?}", got.get(*name), reference.get(*name)));
        }
    }
    let sum = number(&got, "Literal data").saturating_add(number(&got, "Matched data"));
    if sum != number(&got, "Total transferred file size") {
        wrong.push(format!("what was sent and what was not are {sum}"));
    }
    if OTHERS.iter().any(|name| !got.contains_key(*name)) {
        wrong.push(format!("lines are missing: {got:?}"));
    }
    if wrong.is_empty() {
        return wrong;
    }
    let head = format!("seed {seed}, mode {}, {:?}, nested {}", mode.name, grown.way, grown.is_nested);
    wrong.insert(0, head);
    wrong.push(format!("rdcp ends with {}: {}", ours.ended.code, ours.ended.stderr));
    wrong.push(format!("again: RD_SEED={seed} RD_MODE={}; kept: {}", mode.name, lab.0.keep().display()));
    wrong
}

#[test]
fn numbers_are_those_of_rsync() {
    let only = std::env::var("RD_MODE").ok();
    let modes: Vec<&Mode> = MODES.iter().filter(|mode| only.as_deref().is_none_or(|only| only == mode.name)).collect();
    let wrong = each(seeds("stats", SEEDS, LONG_COUNT), |seed| {
        let mode = modes[seed as usize % modes.len()];
        check(seed, &Mode { has_links: false, ..*mode })
    });
    assert!(wrong == 0, "{wrong} seeds with other numbers, see above");
}
