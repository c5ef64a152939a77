//! The first of many facts, kept in memory that does not grow with the tree.

use std::ops::Deref;

use rd_proto::control::IoFact;

/// Maximum number of facts kept. The caller only counts the others.
pub const FIRST_MAX: usize = 10_000;

/// Maximum size of the facts' paths and details together, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// The first facts that fit, in order.
#[derive(Clone, Debug, Default)]
pub struct First {
    facts: Vec<IoFact>,
    bytes: usize,
}

impl First {
    /// Keeps a fact if there is room for it.
    pub fn keep(&mut self, fact: IoFact) {
        let bytes = fact.path.len() + fact.detail.len();
        if self.facts.len() < FIRST_MAX && self.bytes + bytes <= BYTES_MAX {
            self.bytes += bytes;
            self.facts.push(fact);
        }
    }
}

impl Extend<IoFact> for First {
    fn extend<I: IntoIterator<Item = IoFact>>(&mut self, facts: I) {
        facts.into_iter().for_each(|fact| self.keep(fact));
    }
}

impl IntoIterator for First {
    type Item = IoFact;
    type IntoIter = std::vec::IntoIter<IoFact>;

    fn into_iter(self) -> Self::IntoIter {
        self.facts.into_iter()
    }
}

impl Deref for First {
    type Target = [IoFact];

    fn deref(&self) -> &[IoFact] {
        &self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_and_long_ones_are_bounded() {
        let kept = |bytes| {
            let mut first = First::default();
            let fact = |number| IoFact { errno: number, path: vec![b'x'; bytes], detail: Vec::new() };
            first.extend((0..2 * FIRST_MAX as i32).map(fact));
            first.iter().map(|fact| fact.errno as usize).collect::<Vec<_>>()
        };
        assert_eq!(kept(10), (0..FIRST_MAX).collect::<Vec<_>>());
        assert_eq!(kept(4096), (0..256).collect::<Vec<_>>());
    }
}
