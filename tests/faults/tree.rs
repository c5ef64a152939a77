//! The tree that is copied, and the possible contents of a destination.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::rig::{CHUNK, Scratch, noise, text};
use crate::story::Story;

/// Size from which a file's partial copy is kept when the copy is given up.
pub const LARGE_BYTES: u64 = 64 << 20;

/// The source of a copy.
pub struct Tree {
    pub scratch: Scratch,
    /// Number of bytes that a copy moves.
    pub bytes: u64,
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// Kind, mode, owner, length, time of change, and target of a link.
    line: String,
    /// The first name of the same inode.
    first: PathBuf,
    /// Digest of a file's contents.
    digest: Option<blake3::Hash>,
}

/// Makes a tree with a large file that contains `data_bytes` of data, the rest holes. There is no large
/// file if `large_bytes` is 0.
pub fn plant(large_bytes: u64, data_bytes: u64) -> Tree {
    let scratch = Scratch::new();
    let top = scratch.join("tree");
    for directory in ["m/deep/deeper", "m/empty", "z"] {
        fs::create_dir_all(top.join(directory)).expect("a directory");
    }
    for number in 0..60 {
        let bytes = if number % 2 == 0 { noise(number * number * 11) } else { text(number * 700) };
        fs::write(top.join(format!("m/small{number:02}")), bytes).expect("room");
    }
    fs::write(top.join("m/deep/deeper/medium"), noise(CHUNK + 77)).expect("room");
    fs::write(top.join("z/medium"), noise(CHUNK / 2)).expect("room");
    if large_bytes > 0 {
        let file = fs::File::create(top.join("large")).expect("room");
        file.set_len(large_bytes).expect("room");
        let pieces = (data_bytes / CHUNK as u64).max(1);
        for piece in 0..pieces {
            let at = large_bytes / pieces * piece / 4096 * 4096;
            file.write_all_at(&noise((data_bytes / pieces) as usize), at).expect("room");
        }
    }
    fs::hard_link(top.join("m/small07"), top.join("z/linked")).expect("a link");
    symlink("../m/small01", top.join("z/symbolic")).expect("a link");
    symlink("nowhere", top.join("dangling")).expect("a link");
    fs::set_permissions(top.join("m/small03"), fs::Permissions::from_mode(0o4711)).expect("ours");
    fs::set_permissions(top.join("m/deep"), fs::Permissions::from_mode(0o555)).expect("ours");
    fs::set_permissions(&top, fs::Permissions::from_mode(0o750)).expect("ours");
    let entries = entries(&top);
    let bytes = 3 * CHUNK as u64 / 2 + 1_500_000 + data_bytes;
    Tree { scratch, bytes, entries }
}

/// Makes an empty directory. Returns whether it has an older tree, the directory, and the path to
/// which `tree` is to be copied.
pub fn destination(story: &mut Story, tree: &Tree) -> (bool, PathBuf, PathBuf) {
    let had_old = story.pick(&[true, false]);
    let directory = story.lab.join("there");
    fs::create_dir(&directory).expect("a directory");
    let copy = directory.join("copy");
    if had_old {
        plant_old(tree, &copy);
    }
    (had_old, directory, copy)
}

/// Puts older files at every other name of `tree` below `top`.
fn plant_old(tree: &Tree, top: &Path) {
    fs::create_dir_all(top).expect("a directory");
    for (number, (name, entry)) in tree.entries.iter().enumerate() {
        let path = top.join(name);
        if entry.line.starts_with('d') {
            fs::create_dir_all(path).expect("a directory");
        } else if number % 2 == 0 {
            fs::write(&path, old(name)).expect("room");
        }
    }
}

fn old(name: &Path) -> Vec<u8> {
    format!("what was {} before", name.display()).into_bytes()
}

fn entries(top: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let stat = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let kind = if stat.is_dir() {
            'd'
        } else if stat.is_file() {
            'f'
        } else {
            'l'
        };
        let length = if stat.is_file() { stat.len() } else { 0 };
        let links = if stat.is_dir() { 0 } else { stat.nlink() };
        let target = fs::read_link(&path).unwrap_or_default();
        let line = format!(
            "{kind} {:o} {} {} {length} bytes, {links} names, {}.{:09} {}",
            stat.mode() & 0o7777,
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            target.display()
        );
        let digest = stat.is_file().then(|| {
            let mut hasher = blake3::Hasher::new();
            std::io::copy(&mut fs::File::open(&path).expect("a file"), &mut hasher).expect("readable");
            hasher.finalize()
        });
        let name = path.strip_prefix(top).expect("below it").to_owned();
        found.insert(name, (stat.ino(), line, digest));
        if stat.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()));
        }
    }
    let mut firsts = BTreeMap::new();
    let entry = |(name, (inode, line, digest)): (PathBuf, (u64, String, _))| {
        let first = firsts.entry(inode).or_insert_with(|| name.clone()).clone();
        (name, Entry { line, first, digest })
    };
    found.into_iter().map(entry).collect()
}

/// Whether this is a temporary name, which only an entry being made has.
fn is_temporary(name: &str) -> bool {
    let hashed = name.strip_prefix('.').and_then(|rest| rest.split_once('.'));
    hashed.is_some_and(|(hash, ending)| {
        hash.len() == 32
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
            && ["rd-part", "rd-link", "rd-half"].contains(&ending)
    })
}

/// Temporary names in and below a directory.
pub fn temporaries(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if is_temporary(&entry.file_name().to_string_lossy()) {
                found.push(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
    found
}

impl Tree {
    pub fn top(&self) -> PathBuf {
        self.scratch.join("tree")
    }

    /// Checks that the copy is equal in everything that `rdcp -r` preserves.
    pub fn equals(&self, copy: &Path) -> Result<(), String> {
        let there = entries(copy);
        for (name, entry) in &self.entries {
            let other = there.get(name);
            if other != Some(entry) {
                return Err(format!("{} is {other:?}, not {entry:?}", copy.join(name).display()));
            }
        }
        match there.keys().find(|name| !self.entries.contains_key(*name)) {
            Some(name) => Err(format!("{} was never in the source", copy.join(name).display())),
            None => Ok(()),
        }
    }

    /// Checks that each final name below `top` is an old entry or a complete new one, and that no old entry is gone.
    /// Temporary names are skipped. `had_old`: whether [`plant_old`] has made older files.
    pub fn is_old_or_new(&self, top: &Path, had_old: bool) -> Result<(), String> {
        if fs::symlink_metadata(top).is_err() {
            return if had_old { Err(format!("{} has gone", top.display())) } else { Ok(()) };
        }
        let there = entries(top);
        for (name, entry) in &there {
            if name.components().any(|part| is_temporary(&part.as_os_str().to_string_lossy())) {
                continue;
            }
            let path = top.join(name);
            let Some(source) = self.entries.get(name) else {
                return Err(format!("{} was never in the source", path.display()));
            };
            let was = blake3::hash(&old(name));
            let is_old = had_old && entry.digest == Some(was);
            let is_new = entry.digest == source.digest && entry.line.as_bytes()[0] == source.line.as_bytes()[0];
            if !is_old && !is_new {
                return Err(format!("{} is neither old nor new: {entry:?}", path.display()));
            }
            // A new file has all its metadata before it gets its name. Only the number of its
            // hard links may still grow.
            let but_names = |line: &str| {
                line.split(' ')
                    .enumerate()
                    .filter(|&(at, _)| at != 6)
                    .map(|(_, word)| word.to_owned())
                    .collect::<Vec<_>>()
            };
            if !is_old && entry.digest.is_some() && but_names(&entry.line) != but_names(&source.line) {
                return Err(format!("{} is new but {entry:?}, not {source:?}", path.display()));
            }
        }
        for (number, name) in self.entries.keys().enumerate() {
            if had_old && number % 2 == 0 && !there.contains_key(name) {
                return Err(format!("{} has gone", top.join(name).display()));
            }
        }
        Ok(())
    }
}
