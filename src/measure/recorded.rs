//! Recorded hosts for tests: `tests/doctor/NAME.tree`.
//!
//! A tree consists of lines, which take effect in order. `like NAME` starts from another tree. `let NAME PATH` defines
//! `$NAME` as a path. `PATH = TEXT` is a file (`\n` in TEXT ends a line), and `PATH -> TARGET` is a symbolic link. `-
//! PATH` removes everything at or below a path. Facts that are not in files have lines of their own: `address INTERFACE
//! ADDRESS/BITS`, `rdma DEVICE ADDRESS/BITS hardware|software MBPS`, `registered DEVICE BYTES|all`, `ssh OURS THEIRS`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::facts::{Address, Facts, RdmaAddress, Registration};
use super::gather::{WANTED_BYTES, from_files};
use super::root::Root;

#[derive(Default)]
struct Tree {
    names: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
    live: Vec<Vec<String>>,
}

enum Entry {
    File(String),
    Link(String),
}

impl Tree {
    fn read(&mut self, name: &str) {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/doctor", &format!("{name}.tree")].iter().collect();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["like", other] => self.read(other),
                ["let", name, path] => drop(self.names.insert(format!("${name}"), path.to_owned())),
                ["address" | "rdma" | "registered" | "ssh", ..] => {
                    self.live.push(words.iter().map(|word| (*word).to_owned()).collect());
                }
                ["-", path] => {
                    let gone = self.named(path);
                    let below = format!("{gone}/");
                    self.entries.retain(|path, _| *path != gone && !path.starts_with(&below));
                    // Other lines about a removed interface or device are removed too.
                    let name = gone.rsplit('/').next().expect("one");
                    let is_of = |words: &[String]| words[1] == name || name == "infiniband" && words[0] != "address";
                    self.live.retain(|words| words[0] == "ssh" || !is_of(words));
                }
                [path, "->", target] => drop(self.entries.insert(self.named(path), Entry::Link(target.to_owned()))),
                [path, "=", ..] => {
                    let text = line.split_once(" =").expect("just seen").1.trim_start().replace("\\n", "\n");
                    self.entries.insert(self.named(path), Entry::File(text));
                }
                _ => panic!("{}: {line}", path.display()),
            }
        }
    }

    fn named(&self, path: &str) -> String {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        match self.names.get(first) {
            Some(known) if rest.is_empty() => known.clone(),
            Some(known) => format!("{known}/{rest}"),
            None => path.to_owned(),
        }
    }

    fn make(&self, at: &Path) {
        for (path, entry) in &self.entries {
            let path = at.join(path);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("ours");
            match entry {
                Entry::File(text) => std::fs::write(&path, text).expect("ours"),
                Entry::Link(target) => std::os::unix::fs::symlink(target, &path).expect("ours"),
            }
        }
    }
}

fn address(text: &str) -> Address {
    let (address, bits) = text.split_once('/').expect("ADDRESS/BITS");
    Address { ip: address.parse().expect("an address"), prefix_bits: bits.parse().expect("a number") }
}

/// Returns the facts of a recorded host. Each host is written to disk only once.
pub(crate) fn facts(name: &str) -> Facts {
    static KNOWN: Mutex<BTreeMap<String, Facts>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(|| gathered(name)).clone()
}

fn gathered(name: &str) -> Facts {
    let mut tree = Tree::default();
    tree.read(name);
    let directory = tempfile::tempdir().expect("a directory");
    tree.make(directory.path());
    let mut facts = from_files(&Root::at(directory.path())).bounded();
    for words in &tree.live {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["address", name, text] => {
                let interface = facts.interfaces.iter_mut().find(|interface| interface.name == name);
                interface.unwrap_or_else(|| panic!("no {name}")).addresses.push(address(text));
            }
            ["rdma", device, text, kind, rate] => facts.rdma.push(RdmaAddress {
                device: device.to_owned(),
                address: address(text),
                is_hardware: kind == "hardware",
                rate_mbps: rate.parse().expect("a number"),
            }),
            ["registered", name, bytes] => {
                let bytes = if bytes == "all" { WANTED_BYTES } else { bytes.parse().expect("a number") };
                let reason = if bytes < WANTED_BYTES { "the limit on locked memory is 64 kB" } else { "" };
                let done = Registration { wanted_bytes: WANTED_BYTES, bytes, micros: 4200, reason: reason.to_owned() };
                facts.devices.iter_mut().find(|device| device.name == name).expect("a device").registration =
                    Some(done);
            }
            ["ssh", ours, _] => facts.ssh = ours.to_owned(),
            _ => panic!("{words:?}"),
        }
    }
    facts
}
