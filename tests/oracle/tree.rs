//! Random trees: grown from a seed, changed at random, and made below a directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat, utimensat};

use crate::rig::Random;

/// Users and groups that own files, if root makes them.
const IDS: &[u32] = &[0, 1, 1000, 65534, 2_000_000_000];

/// The ordinary user who makes some of the copies.
pub const USER: u32 = 65534;

/// Names that programs have mishandled.
const NAMES: &[&[u8]] = &[
    b"a",
    b"file.txt",
    b".hidden",
    b"...",
    b"with space",
    b" ",
    b"new\nline",
    b"\ttab",
    b"-",
    b"-rf",
    b"--help",
    b"*",
    b"?[a-c]",
    b"#x#",
    b"~",
    b"$HOME",
    b"'q\"",
    b"back\\slash",
    b"host:path",
    b"\xff\xfe",
    b"half \xc3",
    b"\x01\x7f",
    b"a.rd-part",
    b".a.rd-part",
    b".a.rd-link",
    b"{a,b}",
    b"!",
    b"z\xcc\x88",
    b"rd-part",
];

/// Maximum number of entries of a tree, and its maximum depth.
const ENTRIES_MAX: u64 = 24;
const DEPTH_MAX: usize = 4;

/// Size from which a partial file is resumed.
const LARGE_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub enum Kind {
    Directory(Vec<(Vec<u8>, Node)>),
    /// The size, and the pieces of data: offset, length and seed of each.
    File(u64, Vec<(u64, usize, u64)>),
    Link(Vec<u8>),
    Fifo,
    Socket,
    /// Whether it is a character device, and the device number.
    Device(bool, u32, u32),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: (i64, i64),
    pub attributes: Vec<(&'static str, Vec<u8>)>,
    /// Nodes with equal numbers are hard links to one file.
    pub links: Option<u64>,
}

/// Grows the trees of one seed.
pub struct Gardener<'a> {
    pub random: &'a mut Random,
    /// Whether everything belongs to [`USER`], who makes the copy.
    pub is_users: bool,
    entries_left: u64,
    linked: Vec<Node>,
}

impl<'a> Gardener<'a> {
    pub fn new(random: &'a mut Random, is_users: bool) -> Self {
        let entries_left = 1 + random.below(ENTRIES_MAX);
        Self { random, is_users, entries_left, linked: Vec::new() }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.random.below(among.len() as u64) as usize]
    }

    /// Grows a directory with its entries.
    pub fn tree(&mut self) -> Node {
        let mut top = self.directory(0);
        // Occasionally one large file, most of which is a hole.
        if self.chance(12)
            && let Kind::Directory(entries) = &mut top.kind
        {
            let size = LARGE_BYTES + self.random.below(9 << 20);
            let mut pieces: Vec<_> = (0..3).map(|_| (self.random.below(size - 70_000), 70_000, 7)).collect();
            pieces[0].0 = 0;
            entries.push((b"large".to_vec(), self.node(Kind::File(size, pieces))));
        }
        top
    }

    fn directory(&mut self, depth: usize) -> Node {
        let mut entries: Vec<(Vec<u8>, Node)> = Vec::new();
        let wanted = if depth == 0 { ENTRIES_MAX } else { self.random.below(8) };
        for _ in 0..wanted {
            if self.entries_left == 0 {
                break;
            }
            self.entries_left -= 1;
            let name = self.name();
            if entries.iter().any(|(other, _)| *other == name) {
                continue;
            }
            entries.push((name, self.entry(depth)));
        }
        let mut node = self.node(Kind::Directory(entries));
        if self.chance(20) {
            let acl = self.acl(node.mode);
            node.attributes.push(("system.posix_acl_default", acl));
        }
        node
    }

    fn name(&mut self) -> Vec<u8> {
        match self.random.below(12) {
            0 => vec![b'n'; 255],
            1 => {
                let mut name = "é".repeat(127).into_bytes();
                name.push(b'0' + self.random.below(10) as u8);
                name
            }
            2 if self.chance(20) => {
                // A temporary name that an interrupted copy leaves beside the file `a`, or beside another file. The mark
                // of a file that is there would be a failure.
                let (name, ending) = (self.pick(&[b"a", b"b"]), self.pick(&["rd-part", "rd-link", "rd-half"]));
                let hash = blake3::hash(if ending == "rd-half" { b"/" } else { name }).to_hex();
                format!(".{}.{ending}", &hash[..32]).into_bytes()
            }
            3..6 => format!("plain{}", self.random.below(1000)).into_bytes(),
            _ => {
                let mut name = self.pick(NAMES).to_vec();
                if self.chance(30) {
                    name.extend(self.random.below(100).to_string().into_bytes());
                }
                name
            }
        }
    }

    /// Grows an entry of any kind. Some are further hard links to existing entries.
    pub fn entry(&mut self, depth: usize) -> Node {
        if !self.linked.is_empty() && self.chance(12) {
            let which = self.random.below(self.linked.len() as u64) as usize;
            return self.linked[which].clone();
        }
        let kind = match self.random.below(20) {
            0..5 if depth + 1 < DEPTH_MAX => return self.directory(depth + 1),
            0..12 => self.file(),
            12..16 => Kind::Link(self.target(depth)),
            16..18 => Kind::Fifo,
            18 => Kind::Socket,
            _ => Kind::Device(self.chance(50), self.random.below(300) as u32, self.random.below(1 << 18) as u32),
        };
        let mut node = self.node(kind);
        if self.chance(30) {
            node.links = Some(self.random.next());
            self.linked.push(node.clone());
        }
        node
    }

    pub fn file(&mut self) -> Kind {
        let size = match self.random.below(10) {
            0 | 1 => 0,
            2..6 => 1 + self.random.below(100),
            6..8 => 1 + self.random.below(20_000),
            8 => self.random.below(300_000),
            _ => return self.sparse(),
        };
        Kind::File(size, vec![(0, size as usize, self.random.next())])
    }

    fn sparse(&mut self) -> Kind {
        let size = (1 << 20) + self.random.below(2 << 20);
        let pieces = (0..self.random.below(4)).map(|_| (self.random.below(size - 9000), 9000, self.random.next()));
        Kind::File(size, pieces.collect())
    }

    fn target(&mut self, depth: usize) -> Vec<u8> {
        match self.random.below(6) {
            0 => b"/nonexistent/place".to_vec(),
            1 => b"..".to_vec(),
            2 => b"/etc/hostname".to_vec(),
            3 => [b"../".repeat(depth), self.name()].concat(),
            4 => vec![b't'; 1 + self.random.below(4000) as usize],
            _ => self.name(),
        }
    }

    /// Makes a node with random metadata.
    pub fn node(&mut self, kind: Kind) -> Node {
        let is_link = matches!(kind, Kind::Link(_));
        let is_plain = matches!(kind, Kind::File(..) | Kind::Directory(_));
        let mode = match &kind {
            Kind::Directory(_) if self.is_users => self.pick(&[0o755, 0o555, 0o700, 0o1777, 0o2775, 0o555, 0o750]),
            Kind::Directory(_) => self.pick(&[0o755, 0o700, 0o1777, 0o2775, 0o555, 0, 0o6777, 0o7751]),
            _ if self.is_users => self.pick(&[0o644, 0o600, 0o755, 0o444, 0o4755, 0o2755, 0o6750, 0o1666]),
            _ => self.pick(&[0o644, 0o600, 0o755, 0o444, 0, 0o4755, 0o2755, 0o6711, 0o1666, 0o7777]),
        };
        let seconds = match self.random.below(8) {
            0 => -1 - self.random.below(1_000_000_000) as i64,
            1 => 4_000_000_000 + self.random.below(6_000_000_000) as i64,
            2 => 0,
            _ => 1_000_000_000 + self.random.below(700_000_000) as i64,
        };
        let nanoseconds = if self.chance(20) { 0 } else { self.random.below(1_000_000_000) as i64 };
        let owner = if self.is_users { (USER, USER) } else { (self.pick(IDS), self.pick(IDS)) };
        let mut attributes = Vec::new();
        if is_plain && self.chance(30) {
            for name in ["user.one", "user.two", "user.\u{fc}ber"] {
                if self.chance(50) {
                    let mut value = vec![0; self.random.below(200) as usize];
                    self.random.fill(&mut value);
                    attributes.push((name, value));
                }
            }
        }
        if !is_link && self.chance(15) {
            let acl = self.acl(mode);
            attributes.push(("system.posix_acl_access", acl));
        }
        Node { kind, mode, owner, modified: (seconds, nanoseconds), attributes, links: None }
    }

    /// Returns an ACL that fits a mode, in the kernel's format: a version, then tag, rights and id of each entry.
    pub fn acl(&mut self, mode: u32) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let rights = |shift: u32| (mode >> shift & 7) as u16;
        let (user, group) = (self.random.below(8) as u16, self.random.below(8) as u16);
        let id = self.pick(IDS);
        let entries = [
            (1, rights(6), NOBODY),
            (2, user, id),
            (4, group, NOBODY),
            (8, user ^ 1, id),
            (16, rights(3), NOBODY),
            (32, rights(0), NOBODY),
        ];
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            bytes.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Returns the remains of an earlier copy, changed since then. `climb` is the number of levels from the entry's
    /// directory up to the directory that contains `outside`.
    pub fn aged(&mut self, node: &Node, climb: usize) -> Node {
        let mut node = node.clone();
        if let Kind::Directory(entries) = &mut node.kind {
            let before = std::mem::take(entries);
            for (name, below) in before {
                match self.random.below(12) {
                    0 => {}
                    // Usually another kind: a directory becomes a file, a file a directory.
                    1 => entries.push((name, self.entry(DEPTH_MAX - 1))),
                    2 => entries.push((name, self.directory(DEPTH_MAX))),
                    3 => {
                        let place = self.pick(&["file", "dir", "nothing"]);
                        let target = format!("{}outside/{place}", "../".repeat(climb));
                        entries.push((name, self.node(Kind::Link(target.into_bytes()))));
                    }
                    4 => entries.push((name, self.remade(below))),
                    _ => entries.push((name, self.aged(&below, climb + 1))),
                }
            }
            if self.chance(30) {
                entries.push((b"only there".to_vec(), self.entry(DEPTH_MAX - 1)));
            }
        }
        if self.chance(40) { self.remade(node) } else { node }
    }

    /// Returns the node with other metadata; a file also gets other data.
    fn remade(&mut self, node: Node) -> Node {
        let kind = match node.kind {
            Kind::File(..) => self.file(),
            other => other,
        };
        self.node(kind)
    }
}

/// Whether the name is one of rdcp's temporary names: `.HASH.rd-part` and `.HASH.rd-link` for entries that are not
/// complete yet, and `.HASH.rd-half`, which marks a half-written file.
pub fn is_temporary(name: &[u8]) -> bool {
    let Some((b".", rest)) = name.split_at_checked(1) else { return false };
    let Some((hash, ending)) = rest.split_at_checked(32) else { return false };
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    hash.iter().all(is_digit) && [&b".rd-part"[..], b".rd-link", b".rd-half"].contains(&ending)
}

/// Makes a tree under an unused name. Root also sets the owners.
pub fn make(path: &Path, node: &Node) {
    let is_root = rustix::process::geteuid().is_root();
    make_entry(path, node, is_root, &mut BTreeMap::new());
}

fn make_entry(path: &Path, node: &Node, is_root: bool, made: &mut BTreeMap<u64, PathBuf>) {
    let failed = |error: &dyn std::fmt::Display| -> ! { panic!("{}: {error}", path.display()) };
    if let Some(number) = node.links {
        if let Some(first) = made.get(&number) {
            fs::hard_link(first, path).unwrap_or_else(|error| failed(&error));
            return;
        }
        made.insert(number, path.to_owned());
    }
    let special = |kind, device| {
        mknodat(CWD, path, kind, Mode::RUSR, device).unwrap_or_else(|error| failed(&error));
    };
    match &node.kind {
        Kind::Directory(entries) => {
            fs::create_dir(path).unwrap_or_else(|error| failed(&error));
            for (name, below) in entries {
                make_entry(&path.join(OsStr::from_bytes(name)), below, is_root, made);
            }
        }
        Kind::File(size, pieces) => {
            let file = File::create_new(path).unwrap_or_else(|error| failed(&error));
            file.set_len(*size).expect("a size");
            for &(at, length, seed) in pieces {
                let mut bytes = vec![0; length];
                Random::new(seed).fill(&mut bytes);
                file.write_all_at(&bytes, at).expect("space");
            }
        }
        Kind::Link(target) => {
            std::os::unix::fs::symlink(OsStr::from_bytes(target), path).unwrap_or_else(|error| failed(&error));
        }
        Kind::Fifo => special(FileType::Fifo, 0),
        Kind::Socket => special(FileType::Socket, 0),
        // Only root can make devices. Other users make a FIFO instead.
        Kind::Device(..) if !is_root => special(FileType::Fifo, 0),
        Kind::Device(true, major, minor) => special(FileType::CharacterDevice, makedev(*major, *minor)),
        Kind::Device(false, major, minor) => special(FileType::BlockDevice, makedev(*major, *minor)),
    }
    if is_root {
        let (user, group) = node.owner;
        std::os::unix::fs::lchown(path, Some(user), Some(group)).unwrap_or_else(|error| failed(&error));
    }
    if !matches!(node.kind, Kind::Link(_)) {
        fs::set_permissions(path, fs::Permissions::from_mode(node.mode)).unwrap_or_else(|error| failed(&error));
    }
    for (name, value) in &node.attributes {
        set_attribute(path, name, value);
    }
    let (seconds, nanoseconds) = node.modified;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap_or_else(|error| failed(&error));
}

pub fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{}: {name}: {error}; build where attributes and ACLs work", path.display()));
}
