//! All forms of command lines: every kind of source combined with every kind of destination.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Mutex;

use crate::copies::{Form, Line, WAYS, Way};
use crate::differences::{ITSELF, Instead, LINES, is_itself, matches};
use crate::report;
use crate::rig::lab::Lab;
use crate::rig::seeds::{each, is_long};
use crate::snapshot::{Finding, Snapshot, differences, snapshot};

/// Sources, below `from`.
const SOURCES: &[&[&str]] = &[
    &["f"],
    &["d"],
    &["d/"],
    &["d/."],
    &["lf"],
    &["ld"],
    &["ld/"],
    &["ld/."],
    &["lx"],
    &["lf/"],
    &["p"],
    &["missing"],
    &["f", "g"],
    &["f", "missing"],
    &["missing", "f"],
    &["d", "e"],
    &["d/.", "e/."],
    &["d/", "e"],
    &["f", "d/."],
    &["d/.", "f"],
    &["lf", "ld"],
    &["d", "missing"],
    &["f", "deep/f"],
    &["d", "deep/d"],
    &["f", "f"],
    &["d", "d"],
];

/// Destinations, below the scene.
const DESTINATIONS: &[&str] = &[
    "into/new",
    "into/new/",
    "into/none/new",
    "into/to",
    "into/to/",
    "into/to/.",
    "into/tf",
    "into/tf/",
    "into/tl",
    "into/tl/",
    "into/tlf",
    "into/tlf/",
    "into/tlx",
    "into/tlx/",
    "into/tp",
    "into/clash",
    "from",
    "from/d",
    "from/ld",
    "from/f",
    "from/lf",
    "from/hf",
    "from/d/x",
];

/// A command line.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    sources: &'static [&'static str],
    destination: &'static str,
    form: Form,
}

impl Case {
    /// Returns `-T SOURCE > DESTINATION`, the text matched by patterns of differences.
    pub fn shown(&self) -> String {
        let form = match self.form {
            Form::Plain => "",
            Form::Exact => "-T ",
            Form::Into => "-t ",
            Form::Files => "no -r: ",
        };
        format!("{form}{} > {}", self.sources.join(" "), self.destination)
    }

    /// Whether cp would block in opening a FIFO, because no other process opens its other end.
    fn waits(&self) -> bool {
        let is_file = ["f", "g", "deep/f"].contains(&self.sources[0]);
        match self.form {
            Form::Files => self.sources.contains(&"p") || self.destination == "into/tp",
            Form::Plain | Form::Exact => self.destination == "into/tp" && is_file && self.sources.len() == 1,
            Form::Into => false,
        }
    }

    /// Whether the case adds to the other cases. Without -r every program leaves directories out, and with several
    /// sources -T makes nothing anywhere.
    fn is_telling(&self) -> bool {
        match self.form {
            Form::Plain | Form::Into => true,
            Form::Exact => self.sources.len() == 1 || self.destination == "into/to",
            Form::Files => ["f", "lf", "lx", "missing"].contains(&self.sources[0]) || self.destination == "into/to",
        }
    }

    fn line(&self, scene: &Path) -> Line {
        Line {
            form: self.form,
            sources: self.sources.iter().map(|name| scene.join("from").join(name).into_os_string()).collect(),
            destination: scene.join(self.destination).into_os_string(),
            is_users: false,
            umask: 0o022,
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for sources in SOURCES {
        for destination in DESTINATIONS {
            for form in [Form::Plain, Form::Exact, Form::Into, Form::Files] {
                let case = Case { sources, destination, form };
                if case.is_telling() && !case.waits() {
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// Makes the files from which all cases start.
fn make_scene(scene: &Path) {
    for directory in
        ["from/d/sub", "from/e", "from/deep/d", "into/to/d", "into/clash/f", "into/clash/lf", "into/clash/p"]
    {
        fs::create_dir_all(scene.join(directory)).expect("a directory");
    }
    let files = [
        ("from/f", "the file f"),
        ("from/g", "the file g, longer"),
        ("from/d/x", "x of d"),
        ("from/d/sub/y", "y of d"),
        ("from/e/x", "x of e"),
        ("from/e/z", "z of e"),
        ("from/deep/f", "another f"),
        ("from/deep/d/x", "x of another d"),
        ("into/to/keep", "kept"),
        ("into/to/f", "old f"),
        ("into/to/x", "old x"),
        ("into/to/sub", "no directory"),
        ("into/to/d/x", "old x of d"),
        ("into/to/d/old", "stays"),
        ("into/tf", "old file"),
        ("into/clash/d", "no directory"),
    ];
    for (name, text) in files {
        fs::write(scene.join(name), text).expect("a file");
    }
    let links = [
        ("from/lf", "f"),
        ("from/ld", "d"),
        ("from/lx", "nowhere"),
        ("into/tl", "to"),
        ("into/tlf", "tf"),
        ("into/tlx", "nowhere"),
        ("into/to/ld", "d"),
        ("into/to/lf", "keep"),
    ];
    for (name, target) in links {
        symlink(target, scene.join(name)).expect("a link");
    }
    fs::hard_link(scene.join("from/f"), scene.join("from/hf")).expect("a link");
    for name in ["from/p", "into/tp", "into/to/p"] {
        rustix::fs::mknodat(rustix::fs::CWD, scene.join(name), rustix::fs::FileType::Fifo, 0o644.into(), 0)
            .expect("a FIFO");
    }
    settle(scene);
}

/// Gives all entries the same old time, so that times set by a copy are visible.
pub fn settle(path: &Path) {
    let stat = fs::symlink_metadata(path).expect("made");
    if stat.is_dir() {
        for entry in fs::read_dir(path).expect("made") {
            settle(&entry.expect("readable").path());
        }
    }
    let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("ours");
}

/// Directories in which entries are made. Their times are those of the copy.
const TIMELESS: &[&[u8]] = &[b"", b"from", b"into", b"into/to", b"from/d", b"into/clash", b"into/new"];

struct Scene {
    line: Line,
    before: Snapshot,
}

fn scene(lab: &Lab, name: &str, case: &Case) -> Scene {
    let top = lab.join(name);
    make_scene(&top);
    Scene { line: case.line(&top), before: snapshot(&top) }
}

/// Returns one of the sensible ways, a different one for each case in turn. The long run takes two.
fn ways(number: u64, case: &Case) -> Vec<Way> {
    let all: Vec<Way> = WAYS.iter().copied().filter(|&way| way != Way::Mixed || case.sources.len() > 1).collect();
    let at = |number: u64| all[number as usize % all.len()];
    if is_long() { vec![at(number), at(number + 1)] } else { vec![at(number)] }
}

fn violations(number: u64, case: &Case, used: &Mutex<Vec<&'static str>>) -> Vec<String> {
    let lab = Lab::for_users();
    let shown = case.shown();
    let meant = LINES.iter().find(|lines| lines.patterns.iter().any(|pattern| matches(pattern, &shown)));
    let options: &[&str] = match meant {
        Some(lines) if lines.instead == Instead::Replaced => &["--remove-destination"],
        _ => &[],
    };
    let cp_scene = scene(&lab, "cp", case);
    if let Some(Instead::Made(path)) = meant.map(|lines| lines.instead) {
        let directory = lab.join("cp").join(path);
        fs::create_dir(&directory).expect("a directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let cp = cp_scene.line.by_cp(&lab, options);
    let mut reference = snapshot(&lab.join("cp"));
    if let Some(Instead::Without(path)) = meant.map(|lines| lines.instead) {
        reference.retain(|name, _| !name.starts_with(path.as_bytes()));
    }
    let mut wrong = Vec::new();
    for way in ways(number, case) {
        let name = format!("{way:?}");
        let scene = scene(&lab, &name, case);
        let ended = scene.line.by_rdcp(&lab, way);
        let got = snapshot(&lab.join(&name));
        let mut lines = Vec::new();
        let (expected, should_fail) = match meant {
            Some(lines) if lines.instead == Instead::Refused => (&scene.before, true),
            _ => (&reference, cp.code != 0),
        };
        let is_left = should_fail && ended.code == 0 && is_itself(way, &cp.stderr);
        if is_left {
            used.lock().expect("no panic").push(ITSELF);
        } else if should_fail != (ended.code != 0) {
            lines.push(format!("cp ends with {}, rdcp with {}", cp.code, ended.code));
        }
        lines.extend(differences(expected, &got, TIMELESS).iter().map(Finding::shown));
        if !lines.is_empty() {
            wrong.push(report(&shown, &scene.line.shown(way), &lines, &cp, &ended));
        } else if let Some(lines) = meant {
            used.lock().expect("no panic").push(lines.heading);
        }
    }
    wrong
}

#[test]
fn command_lines_do_what_they_do_with_cp() {
    let cases = cases();
    let used = Mutex::new(Vec::new());
    // The long run takes all cases. Otherwise every fourth case, always the same ones.
    let step = if is_long() { 1 } else { 4 };
    let count = cases.len() as u64 / step;
    let wrong = each(0..count, |number| violations(number, &cases[(number * step) as usize], &used));
    assert!(wrong == 0, "{wrong} of {count} command lines with violations, see above");
    eprintln!("command lines: {count}, no violation");
    let used = used.into_inner().expect("no panic");
    let headings = LINES.iter().map(|lines| lines.heading).chain([ITSELF]);
    let unused: Vec<&str> = headings.filter(|heading| !used.contains(heading)).collect();
    assert!(unused.is_empty(), "no command line differs as these say: {unused:?}");
}
