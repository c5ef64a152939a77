//! Records all entries below a directory, including their attributes, and compares two such records.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};

/// Number of bytes hashed together. Blocks of zeros are skipped.
const BLOCK_BYTES: usize = 64 << 10;

/// An entry without its name. Each field holds a value to compare; an unreadable part is
/// recorded as such in both trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: &'static str,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: (i64, i64),
    /// For files the length and hash of the data, for links the target, for devices the number.
    pub content: String,
    pub attributes: BTreeMap<String, Vec<u8>>,
    /// The first of the entry's names, if it has several.
    pub first_name: Option<Vec<u8>>,
    /// Bytes on the disk, for files.
    pub allocated_bytes: u64,
}

/// Entries by path. The path of the top is empty.
pub type Snapshot = BTreeMap<Vec<u8>, Entry>;

/// Records all entries below `top`.
pub fn snapshot(top: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    look(top, Vec::new(), &mut found, &mut BTreeMap::new());
    let mut firsts: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for entry in found.values() {
        if let Some(name) = &entry.first_name {
            *firsts.entry(name.clone()).or_default() += 1;
        }
    }
    for entry in found.values_mut() {
        entry.first_name.take_if(|name| firsts[name] == 1);
    }
    found
}

fn look(path: &Path, name: Vec<u8>, found: &mut Snapshot, inodes: &mut BTreeMap<(u64, u64), Vec<u8>>) {
    let stat = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let kind = stat.file_type();
    let (word, content) = match () {
        () if kind.is_dir() => ("directory", String::new()),
        () if kind.is_file() => ("file", format!("{} bytes, {}", stat.len(), data(path, stat.len()))),
        () if kind.is_symlink() => {
            ("link", fs::read_link(path).expect("a link").as_os_str().as_bytes().escape_ascii().to_string())
        }
        () if kind.is_fifo() => ("FIFO", String::new()),
        () if kind.is_socket() => ("socket", String::new()),
        () if kind.is_char_device() => ("character device", format!("{:x}", stat.rdev())),
        () => ("block device", format!("{:x}", stat.rdev())),
    };
    let first_name = (!kind.is_dir() && stat.nlink() > 1)
        .then(|| inodes.entry((stat.dev(), stat.ino())).or_insert_with(|| name.clone()).clone());
    let entry = Entry {
        kind: word,
        mode: if kind.is_symlink() { 0 } else { stat.mode() & 0o7777 },
        owner: (stat.uid(), stat.gid()),
        modified: (stat.mtime(), stat.mtime_nsec()),
        content,
        attributes: attributes(path),
        first_name,
        allocated_bytes: if kind.is_file() { stat.blocks() * 512 } else { 0 },
    };
    found.insert(name.clone(), entry);
    if kind.is_dir() {
        let Ok(entries) = fs::read_dir(path) else { return };
        let mut names: Vec<Vec<u8>> = entries.map(|entry| entry.expect("readable").file_name().into_vec()).collect();
        names.sort();
        for below in names {
            let path = path.join(std::ffi::OsStr::from_bytes(&below));
            let name = if name.is_empty() { below } else { [&name[..], b"/", &below].concat() };
            look(&path, name, found, inodes);
        }
    }
}

/// Hashes the data and its offsets. Zeros are ignored, whether they are written or a hole.
fn data(path: &Path, size: u64) -> String {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return error.to_string(),
    };
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = start - start % BLOCK_BYTES as u64;
        let hole = seek(&file, SeekFrom::Hole(start)).expect("the end at least");
        while at < hole {
            let length = BLOCK_BYTES.min((size - at) as usize);
            file.read_exact_at(&mut block[..length], at).expect("data");
            if block[..length].iter().any(|&byte| byte != 0) {
                hasher.update(&at.to_le_bytes()).update(&block[..length]);
            }
            at += BLOCK_BYTES as u64;
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    for name in names.filter(|name| !name.starts_with(b"security.")) {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, &name, &mut value[..]);
        value.truncate(length.unwrap_or(0));
        found.insert(name, value);
    }
    found
}

/// One difference between two trees.
#[derive(Clone, Debug)]
pub struct Finding {
    pub path: Vec<u8>,
    /// Name of the differing field; for an attribute, the attribute's own name.
    pub what: String,
    /// The value made by the reference (cp, rsync), and the value made by rdcp.
    pub reference: Option<String>,
    pub got: Option<String>,
}

impl Finding {
    pub fn shown(&self) -> String {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (path, what) = (short(&self.path), &self.what);
        let (mut reference, mut got) = (side(&self.reference), side(&self.got));
        for text in [&mut reference, &mut got] {
            text.truncate(200);
        }
        format!("{path}: {what}: expected {reference}, rdcp has {got}")
    }
}

/// Returns a printable path in which each name can be recognized and none is long.
fn short(path: &[u8]) -> String {
    let names = path.split(|&byte| byte == b'/').map(|name| match name {
        name if name.len() > 40 => format!("{}…({} bytes)", name[..8].escape_ascii(), name.len()),
        name => name.escape_ascii().to_string(),
    });
    names.collect::<Vec<_>>().join("/")
}

/// Returns the differences. `timeless`: directories whose times are those of the copy itself.
pub fn differences(reference: &Snapshot, got: &Snapshot, timeless: &[&[u8]]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut paths: Vec<&Vec<u8>> = reference.keys().chain(got.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let mut differ = |what: &str, reference: Option<String>, got: Option<String>| {
            if reference != got {
                findings.push(Finding { path: path.clone(), what: what.to_owned(), reference, got });
            }
        };
        let (cp, rdcp) = match (reference.get(path), got.get(path)) {
            (Some(cp), Some(rdcp)) if cp.kind == rdcp.kind => (cp, rdcp),
            (cp, rdcp) => {
                differ("kind", cp.map(|entry| entry.kind.to_owned()), rdcp.map(|entry| entry.kind.to_owned()));
                continue;
            }
        };
        let mut field = |what: &str, show: &dyn Fn(&Entry) -> String| differ(what, Some(show(cp)), Some(show(rdcp)));
        field("content", &|entry| entry.content.clone());
        field("mode", &|entry| format!("{:04o}", entry.mode));
        field("owner", &|entry| format!("{}:{}", entry.owner.0, entry.owner.1));
        if !timeless.contains(&&path[..]) {
            field("modified", &|entry| format!("{}.{:09}", entry.modified.0, entry.modified.1));
        }
        field("first name", &|entry| entry.first_name.as_ref().map_or("itself".to_owned(), |name| short(name)));
        // Where holes are depends on the file system and on compared blocks, which are sent whole.
        // That holes exist is checked.
        if rdcp.allocated_bytes > cp.allocated_bytes + cp.allocated_bytes / 4 + (512 << 10) {
            field("bytes on disk", &|entry| entry.allocated_bytes.to_string());
        }
        let names = cp.attributes.keys().chain(rdcp.attributes.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            differ(
                name,
                cp.attributes.get(name).map(|value| hex(value)),
                rdcp.attributes.get(name).map(|value| hex(value)),
            );
        }
    }
    findings
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
