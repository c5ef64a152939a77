//! Data that does not pass its tag.

use super::*;

#[test]
fn a_lane_that_brings_more_damage_counts_once() {
    let mut receiver = accepting();
    for generation in 0..=CORRUPT_MAX as u32 {
        let lane = LaneId { index: 1, generation };
        receiver.handle_lane_up(lane, Duration::ZERO);
        for _ in 0..100 {
            receiver.handle_corrupt(lane, Duration::ZERO);
        }
        assert_eq!(receiver.counters().corrupt, u64::from(generation) + 1);
        let gives_up = receiver.core_ref().is_ending();
        assert_eq!(gives_up, u64::from(generation) == CORRUPT_MAX, "after {generation}");
    }
}

/// Takes damage on one lane after another until the session gives up, or `max` times. `chunks` chunks come through
/// before each further time. Returns how often it was.
fn damaged(receiver: &mut Receiver, chunks: u64, max: u32) -> u32 {
    let first = receiver.counters().corrupt as u32;
    for generation in first..first + max {
        let lane = LaneId { index: 1, generation };
        receiver.handle_lane_up(lane, Duration::ZERO);
        receiver.handle_corrupt(lane, Duration::ZERO);
        if receiver.core_ref().is_ending() {
            return generation - first + 1;
        }
        receiver.core().counters.chunks += chunks;
    }
    max
}

#[test]
fn damage_is_forgiven_once_enough_has_come_through() {
    let mut receiver = accepting();
    assert_eq!(damaged(&mut receiver, CHUNKS_PER_CORRUPT, 100), 100);
    assert!(!receiver.core_ref().is_ending());
    assert_eq!(damaged(&mut receiver, 0, 100), CORRUPT_MAX as u32 + 1, "all of it was forgiven");
    // Half as much forgives half of it.
    assert_eq!(damaged(&mut accepting(), CHUNKS_PER_CORRUPT / 2, 100), 2 * CORRUPT_MAX as u32);
}
