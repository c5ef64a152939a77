//! The first of many failures, in memory that does not grow with the tree.

use rd_proto::control::IoFact;

/// How many are kept. The others are for whoever keeps them to count.
pub const FIRST_MAX: usize = 10_000;

/// Bytes of their paths and words together.
const BYTES_MAX: usize = 1 << 20;

/// As many of the first as fit.
#[derive(Debug)]
pub struct First<T> {
    kept: Vec<T>,
    bytes: usize,
}

impl<T> Default for First<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), bytes: 0 }
    }
}

impl<T> First<T> {
    /// Keeps this one, whose path and words have so many `bytes`, if there is room for it.
    pub fn keep(&mut self, one: T, bytes: usize) {
        if self.kept.len() < FIRST_MAX && self.bytes + bytes <= BYTES_MAX {
            self.bytes += bytes;
            self.kept.push(one);
        }
    }

    /// Those that were kept, in their order.
    pub fn into_kept(self) -> Vec<T> {
        self.kept
    }
}

impl First<IoFact> {
    /// Keeps this one, if there is room for it.
    pub fn keep_fact(&mut self, fact: IoFact) {
        let bytes = fact.path.len() + fact.detail.len();
        self.keep(fact, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_and_long_ones_are_bounded() {
        let kept = |bytes| {
            let mut first = First::default();
            (0..2 * FIRST_MAX).for_each(|one| first.keep(one, bytes));
            first.into_kept()
        };
        assert_eq!(kept(10), (0..FIRST_MAX).collect::<Vec<_>>());
        assert_eq!(kept(4096), (0..256).collect::<Vec<_>>());
    }
}
