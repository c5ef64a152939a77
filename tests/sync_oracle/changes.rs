//! Changes a source between two runs.

use crate::rig::Random;
use crate::tree::{Gardener, Kind, Node, is_temporary};

/// Sizes at which programs change their behaviour. Neighbouring sizes are tried too.
const EDGES: &[u64] = &[0, 1, 4096, 64 << 10, 128 << 10, 1 << 20];

/// Returns the same tree, in which more files have sizes around these limits.
pub fn edged(gardener: &mut Gardener<'_>, mut node: Node) -> Node {
    match &mut node.kind {
        Kind::Directory(entries) => {
            let before = std::mem::take(entries);
            entries.extend(before.into_iter().map(|(name, below)| (name, edged(gardener, below))));
        }
        Kind::File(size, pieces) if node.links.is_none() && gardener.random.below(3) == 0 => {
            *size = (gardener.pick(EDGES) + gardener.random.below(3)).saturating_sub(1);
            *pieces = vec![(0, *size as usize, gardener.random.next())];
        }
        _ => {}
    }
    node
}

/// Returns the same tree without hard links: each name becomes a separate file.
pub fn unlinked(mut node: Node) -> Node {
    node.links = None;
    if let Kind::Directory(entries) = &mut node.kind {
        let before = std::mem::take(entries);
        entries.extend(before.into_iter().map(|(name, below)| (name, unlinked(below))));
    }
    node
}

/// Returns the same tree without the names of rdcp's own temporary files, which no copy touches.
pub fn without_temporaries(mut node: Node) -> Node {
    if let Kind::Directory(entries) = &mut node.kind {
        entries.retain(|(name, _)| !is_temporary(name));
        let before = std::mem::take(entries);
        entries.extend(before.into_iter().map(|(name, below)| (name, without_temporaries(below))));
    }
    node
}

/// Returns the tree as it is at a later time.
pub fn changed(gardener: &mut Gardener<'_>, node: &Node) -> Node {
    let mut node = node.clone();
    let Kind::Directory(entries) = &mut node.kind else { return node };
    let before = std::mem::take(entries);
    let mut after: Vec<(Vec<u8>, Node)> = Vec::new();
    for (name, below) in before {
        match gardener.random.below(12) {
            0 => {}
            1 => after.push(([b"moved ", &name[..name.len().min(200)]].concat(), below)),
            2 => after.push((name, gardener.entry(2))),
            3..7 => after.push((name, altered(gardener, below))),
            _ => after.push((name, changed(gardener, &below))),
        }
    }
    if gardener.random.below(3) == 0 {
        after.push((b"added".to_vec(), gardener.entry(2)));
    }
    after.sort_by(|left, right| left.0.cmp(&right.0));
    after.dedup_by(|left, right| left.0 == right.0);
    node.kind = Kind::Directory(after);
    node
}

/// Returns another state of the same file, or the file with other metadata.
fn altered(gardener: &mut Gardener<'_>, mut node: Node) -> Node {
    let how = gardener.random.below(8);
    match (&mut node.kind, how) {
        // Other contents. If size and time are the same, only a checksum finds the difference.
        (Kind::File(size, pieces), 0..6) if *size > 0 => match how {
            0 => renewed(gardener.random, pieces),
            1 => {
                renewed(gardener.random, pieces);
                node.modified.0 += 1 + gardener.random.below(5) as i64;
            }
            2 => {
                renewed(gardener.random, pieces);
                node.modified.1 = (node.modified.1 + 1) % 1_000_000_000;
            }
            3 => {
                *size += 5000;
                pieces.push((*size - 5000, 5000, gardener.random.next()));
                node.modified.0 += 60;
            }
            4 => {
                *size = gardener.random.below(*size);
                pieces.retain(|&(at, _, _)| at < *size);
                for (at, length, _) in pieces {
                    *length = (*length).min((*size - *at) as usize);
                }
            }
            _ => {
                let length = (*size).min(700);
                pieces.push((gardener.random.below(*size - length + 1), length as usize, gardener.random.next()));
                node.modified.0 -= 60;
            }
        },
        // The file becomes a separate one again, or gets other metadata.
        (_, 6) if node.links.is_some() => node.links = None,
        (_, 7) => node.modified = gardener.node(Kind::Fifo).modified,
        _ => {
            let fresh = gardener.node(node.kind.clone());
            node = Node { modified: node.modified, links: node.links, ..fresh };
        }
    }
    node
}

/// Puts other bytes at the same offsets.
fn renewed(random: &mut Random, pieces: &mut [(u64, usize, u64)]) {
    pieces.iter_mut().for_each(|piece| piece.2 = random.next());
}
