//! What a session knows of each sequence that may be under way.

use std::ops::{Index, IndexMut};

use crate::control::SPAN_MAX;

/// The states of [`SPAN_MAX`] sequences in a row. It has memory only as far as sequences have come: most sessions end
/// long before they have had that many.
#[derive(Debug, Default)]
pub(super) struct Span<T> {
    states: Vec<T>,
    /// The state of a sequence that nothing is known of.
    absent: T,
}

impl<T> Index<u64> for Span<T> {
    type Output = T;

    fn index(&self, sequence: u64) -> &T {
        self.states.get(sequence as usize % SPAN_MAX).unwrap_or(&self.absent)
    }
}

impl<T: Copy + Default> IndexMut<u64> for Span<T> {
    fn index_mut(&mut self, sequence: u64) -> &mut T {
        let at = sequence as usize % SPAN_MAX;
        if at >= self.states.len() {
            self.states.resize(at + 1, T::default());
        }
        &mut self.states[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_with_the_sequences_and_places_come_round() {
        let last = SPAN_MAX as u64 - 1;
        let mut span = Span::<u32>::default();
        assert_eq!((span[0], span[last], span.states.capacity()), (0, 0, 0));
        span[2] = 5;
        assert_eq!([0_u64, 1, 2, 3].map(|sequence| span[sequence]), [0, 0, 5, 0]);
        span[last + 2] = 6;
        assert_eq!((span[1], span[last + 3], span[last], span.states.len()), (6, 5, 0, 3));
        span[last] = 7;
        assert_eq!((span[last], span[last + 1], span.states.len()), (7, 0, SPAN_MAX));
    }
}
