//! Describes a tree by digests that every host can compute from its own copy. So a copy is proven against the source
//! even if another host supplied it.
//!
//! * The *outline* is BLAKE3 over the records in the order of the walk, which is the same on every host: names, kinds,
//!   sizes, targets, and the metadata that the options keep.
//! * The *contents* are a sum over all regular files, because these are finished in any order. The path, size and
//!   BLAKE3 of each file are stretched to 1024 numbers of 16 bits, and these are added (LtHash). A sum whose terms an
//!   attacker chooses needs to be that long. To find other terms with the same sum is then as hard as finding short
//!   vectors of a lattice.
//!
//! Nothing here grows with the tree except the names of the directories on the way to an entry.
//!
//! Owners have a digest of their own, because only root can give files to others. A host whose agent is not root does
//! not have the owners of the source, and could not be given wrong ones either.

use std::collections::BTreeMap;
use std::sync::Mutex;

use minicbor::{Decode, Encode};
use rd_proto::tree::{AclNames, Extension, Metadata, Record};

use super::manifest::digest::RangeDigest;
use crate::fs::metadata::{ACLS, acl_entries, named_by};
use crate::options::TreeOptions;

const FILE_CONTEXT: &str = "rdma-pipe v2 file of a proven tree";
const TREE_CONTEXT: &str = "rdma-pipe v2 proven tree";

/// Number of numbers in the sum of the contents.
const LANES: usize = 1024;

/// Kinds of entries in an outline.
const DIRECTORY: u8 = 1;
const LEAVE: u8 = 2;
const FILE: u8 = 3;
const SYMLINK: u8 = 4;
const HARD_LINK: u8 = 5;
const SPECIAL: u8 = 6;

/// Digests that describe a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TreeProof {
    /// Digest of everything except owners and other metadata that only root can set.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub entries: [u8; 32],
    /// Digest of that metadata.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub rights: [u8; 32],
}

/// What is expected of a received tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Expected {
    /// Proof that the tree must have.
    #[n(0)]
    pub proof: TreeProof,
    /// Whether a tree with another proof is refused. If not, a difference is only reported: the source itself sends
    /// what it has now.
    #[n(1)]
    pub is_bound: bool,
}

/// The sum of the contents of regular files. Any thread may add to it.
#[derive(Debug)]
pub struct Contents(Mutex<Box<[u16; LANES]>>);

impl Default for Contents {
    fn default() -> Self {
        Self(Mutex::new(Box::new([0; LANES])))
    }
}

impl Contents {
    /// Adds a file. The order does not matter.
    pub fn add(&self, path: &[u8], size: u64, digest: &[u8; 32]) {
        let mut hasher = blake3::Hasher::new_derive_key(FILE_CONTEXT);
        put(&mut hasher, path);
        hasher.update(&size.to_le_bytes()).update(digest);
        let mut stretched = [0; 2 * LANES];
        hasher.finalize_xof().fill(&mut stretched);
        let mut lanes = crate::locked(&self.0);
        for (lane, term) in lanes.iter_mut().zip(stretched.chunks_exact(2)) {
            *lane = lane.wrapping_add(u16::from_le_bytes([term[0], term[1]]));
        }
    }
}

/// The records of a tree, in order.
#[derive(Debug, Default)]
pub struct Outline {
    entries: blake3::Hasher,
    rights: blake3::Hasher,
    /// Names of the directories that have been entered.
    names: Vec<Vec<u8>>,
    /// Whether there is a single root. Its name is not part of a path, because each host may give it another name.
    pub(super) is_single: bool,
    options: TreeOptions,
}

impl Outline {
    /// Creates the outline of a tree that is sent with these options.
    pub fn new(options: &TreeOptions) -> Self {
        Self { options: options.clone(), ..Self::default() }
    }

    /// Adds the next record. Records that bring the contents of a file listed before must not be added.
    pub fn take(&mut self, record: &Record<'_>) {
        match *record {
            // Such a record is only a name, which a receiver that deletes has to know.
            Record::Symlink { .. } if !self.options.symlinks => {}
            Record::Symlink { target, .. } if self.options.safe_links && target.starts_with(b"/") => {}
            Record::Special { .. } if !self.options.specials => {}
            Record::Directory { name, metadata } => {
                self.begin(DIRECTORY, name);
                if !self.names.is_empty() || !self.options.keeps_root {
                    self.describe(&metadata, true, self.options.keeps_times(true));
                }
                self.names.push(name.to_vec());
            }
            Record::Leave => {
                self.begin(LEAVE, b"");
                self.names.pop();
            }
            Record::File { name, metadata, data } => self.file(name, &metadata, data.len() as u64),
            Record::Large { name, metadata, size, .. } | Record::Listed { name, metadata, size } => {
                self.file(name, &metadata, size);
            }
            Record::Symlink { name, metadata, target } => {
                self.begin(SYMLINK, name);
                put(&mut self.entries, target);
                self.describe(&metadata, false, self.options.keeps_times(false));
            }
            Record::HardLink { name, first } => {
                self.begin(HARD_LINK, name);
                put(&mut self.entries, first);
            }
            Record::Special { name, metadata, kind, device } => {
                self.begin(SPECIAL, name);
                self.entries.update(&[kind as u8]);
                self.entries.update(&device.0.to_le_bytes()).update(&device.1.to_le_bytes());
                self.describe(&metadata, true, self.options.keeps_times(false));
            }
            // These records bring contents, or say what becomes of entries that are in the outline already or do not come.
            Record::Wanted { .. }
            | Record::Same { .. }
            | Record::Differs { .. }
            | Record::Gone { .. }
            | Record::Vanished { .. }
            | Record::Incomplete
            | Record::Closed { .. }
            | Record::End { .. } => {}
        }
    }

    /// Returns the path of an entry in the directory entered last.
    pub(super) fn path(&self, name: &[u8]) -> Vec<u8> {
        let names = self.names.iter().map(Vec::as_slice).chain([name]).skip(usize::from(self.is_single));
        names.collect::<Vec<_>>().join(&b'/')
    }

    fn file(&mut self, name: &[u8], metadata: &Metadata<'_>, size: u64) {
        self.begin(FILE, name);
        self.entries.update(&size.to_le_bytes());
        self.describe(metadata, true, self.options.keeps_times(false));
    }

    fn begin(&mut self, kind: u8, name: &[u8]) {
        for hasher in [&mut self.entries, &mut self.rights] {
            hasher.update(&[kind]);
            put(hasher, name);
        }
    }

    fn describe(&mut self, metadata: &Metadata<'_>, has_mode: bool, has_time: bool) {
        if self.options.mode && has_mode {
            self.entries.update(&metadata.mode.to_le_bytes());
        }
        if has_time {
            self.entries.update(&metadata.modified.seconds.to_le_bytes());
            self.entries.update(&metadata.modified.nanoseconds.to_le_bytes());
        }
        if self.options.owner && self.options.chown.is_none() {
            // Numbers may differ between hosts on which the names are the same.
            let (mut user, mut group) = (None, None);
            for extension in metadata.extensions.iter() {
                match extension {
                    Extension::User(name) => user = Some(name),
                    Extension::Group(name) => group = Some(name),
                    _ => {}
                }
            }
            for (name, number) in [(user, metadata.uid), (group, metadata.gid)] {
                // As for the receiver, which takes some by their numbers whatever their names.
                match name.filter(|_| number != 0 && !self.options.numeric_ids) {
                    Some(name) => put(&mut self.rights, name),
                    None => put(&mut self.rights, &number.to_le_bytes()),
                }
            }
        }
        if self.options.xattrs {
            let acl_names = metadata.extensions.iter().find_map(|extension| match extension {
                Extension::AclNames(names) => Some(names),
                _ => None,
            });
            // File systems list attributes in any order.
            let mut all: Vec<_> = metadata.xattrs.iter().collect();
            all.sort_unstable();
            for (name, value) in all {
                let is_roots = name.starts_with(b"security.") || name.starts_with(b"trusted.");
                let hasher = if is_roots { &mut self.rights } else { &mut self.entries };
                let acl = acl_names.filter(|_| ACLS.contains(&name)).map(|names| by_names(value, names));
                hasher.update(if acl.is_some() { b"a" } else { b"x" });
                put(hasher, name);
                put(hasher, acl.as_deref().unwrap_or(value));
            }
        }
        self.entries.update(b".");
        self.rights.update(b".");
    }

    /// Returns the proof of the tree with the contents of its files.
    pub fn finish(&self, contents: &Contents) -> TreeProof {
        let mut hasher = blake3::Hasher::new_derive_key(TREE_CONTEXT);
        hasher.update(self.entries.finalize().as_bytes());
        for lane in crate::locked(&contents.0).iter() {
            hasher.update(&lane.to_le_bytes());
        }
        TreeProof { entries: *hasher.finalize().as_bytes(), rights: *self.rights.finalize().as_bytes() }
    }
}

/// Returns an ACL in a form that is the same on hosts with other numbers for its names, and so in another order.
fn by_names(acl: &[u8], names: AclNames<'_>) -> Vec<u8> {
    let names: BTreeMap<_, _> = names.iter().map(|(tag, number, name)| ((tag, number), name)).collect();
    let mut entries: Vec<_> = acl_entries(acl)
        .iter()
        .map(|entry| {
            let name = named_by(entry).filter(|named| named.1 != 0).and_then(|named| names.get(&named).copied());
            // The length tells names and numbers apart.
            let who = name.map_or([&[0][..], &entry[4..]].concat(), |name| [&[name.len() as u8][..], name].concat());
            [&entry[..4], &who].concat()
        })
        .collect();
    entries.sort_unstable();
    entries.concat()
}

/// Hashes a field with its length, so that two fields cannot be taken for two others.
fn put(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
}

/// A large file of which the data is hashed as it arrives, and kept nowhere.
pub(super) struct Passing {
    path: Vec<u8>,
    size: u64,
    digest: RangeDigest,
}

impl Passing {
    /// Begins a file of this size.
    pub(super) fn new(path: Vec<u8>, size: u64) -> Self {
        Self { path, size, digest: RangeDigest::new(size) }
    }

    /// Takes a range of the file.
    pub(super) fn add(&self, data: &[u8], position: u64) {
        self.digest.add(data, position);
    }

    /// Adds the file, of which `data_bytes` have arrived, to a sum. Data that has not arrived is a hole. Returns false
    /// if the file cannot be described: it came in so many pieces that not all of them were kept.
    pub(super) fn sum(&self, contents: &Contents, data_bytes: u64) -> bool {
        let mut holes = 0;
        let found = self.digest.finish(|target, _| {
            holes += target.len() as u64;
            target.fill(0);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(digest) = found;
        let is_all = holes == self.size - data_bytes.min(self.size);
        if is_all {
            contents.add(&self.path, self.size, digest.as_bytes());
        }
        is_all
    }
}

/// Computes the proof of a tree from the parts in which it is sent.
pub struct Summing {
    outline: Outline,
    contents: Contents,
    large: BTreeMap<u32, Passing>,
    /// Whether the tree cannot be described.
    is_void: bool,
}

impl Summing {
    /// Prepares for this many roots that are sent with these options.
    pub fn new(roots: usize, options: &TreeOptions) -> Self {
        Self {
            outline: Outline { is_single: roots == 1, ..Outline::new(options) },
            contents: Contents::default(),
            large: BTreeMap::new(),
            is_void: false,
        }
    }

    /// Takes the next part, like [`TreeSink::push`](super::sink::TreeSink::push).
    pub fn take(&mut self, item: u32, position: u64, data: &[u8]) {
        if item > 0 {
            if let Some(file) = self.large.get(&item) {
                file.add(data, position);
            }
            return;
        }
        let mut rest = data;
        while let Ok(Some(record)) = Record::decode(&mut rest) {
            self.outline.take(&record);
            match record {
                Record::File { name, data, .. } => {
                    self.contents.add(&self.outline.path(name), data.len() as u64, blake3::hash(data).as_bytes());
                }
                Record::Large { name, item, size, .. } => {
                    self.large.insert(item, Passing::new(self.outline.path(name), size));
                }
                Record::Closed { item, data_bytes, is_intact } => {
                    let file = self.large.remove(&item).filter(|_| is_intact);
                    self.is_void |= file.is_some_and(|file| !file.sum(&self.contents, data_bytes));
                }
                _ => {}
            }
        }
    }

    /// Returns the proof of the tree; `None` if the tree cannot be described.
    pub fn finish(&self) -> Option<TreeProof> {
        (!self.is_void).then(|| self.outline.finish(&self.contents))
    }
}

#[cfg(test)]
mod tests;
