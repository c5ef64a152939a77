use std::thread;

use super::*;
use crate::tree::sync_tests::Maker;

/// Returns a seed from the environment, or a new one, and prints it.
fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    println!("SEED={seed}");
    seed
}

fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn stream(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(byte_at).collect()
}

static NOT_OVER: AtomicBool = AtomicBool::new(false);

fn has_room(spool: &Spool) -> bool {
    crate::locked(&spool.state).used_bytes + SEGMENT_BYTES <= spool.bytes_max
}

fn begun(spool: &Arc<Spool>, from: u64) -> SpoolOutput {
    let output = spool.output();
    output.take_mark(&encode_mark(from)).expect("an offset");
    output
}

fn offset_of(mark: &[u8]) -> u64 {
    u64::from_le_bytes(mark.try_into().expect("8 bytes"))
}

/// Copies the next part of the stream, as a session does.
fn fill(output: &SpoolOutput, target: &mut [u8], over: &AtomicBool) -> Result<usize, Outgoing> {
    match output.next(target.len(), over) {
        Outgoing::Chunk(chunk) => {
            let length = chunk.length();
            chunk.copy_to(target);
            assert!(chunk.whole().is_none_or(|whole| whole == &target[..length]));
            output.pass(chunk).map(|()| length).map_err(|Gone| Outgoing::Gone)
        }
        none => Err(none),
    }
}

#[test]
fn whatever_comes_in_any_order_is_kept_as_long_as_it_is_needed() {
    let seed = seed();
    for case in 0..100 {
        let mut random = Maker(seed.wrapping_add(case));
        let segments = 4 + random.below(8);
        let (has_tree, has_next) = (random.below(4) > 0, random.below(4) > 0);
        let spool = Spool::new(segments * SEGMENT_BYTES as u64, has_tree, has_next);
        let (mut input, mut output) = (spool.input(), None::<SpoolOutput>);
        let (mut end, mut tree, mut held) = (0, 0, VecDeque::new());
        // Offsets: up to where data was sent, where the next host's session began, what the next host asked to be kept,
        // and up to where the previous host may let go.
        let (mut sent, mut session_from, mut kept, mut said) = (0, 0, 0, 0);
        let mut target = vec![0; 2 << 20];
        // Buffers of a session that receives. If RDMA uses its pool, nothing is exchanged.
        let bytes = NonZeroUsize::new(SEGMENT_BYTES).expect("not 0");
        let (pool, mut buffers) = Pool::new(1, bytes).expect("a pool");
        if random.below(4) == 0 {
            pool.pin();
        }
        for _ in 0..150 {
            match random.below(14) {
                0..=3 if has_room(&spool) => {
                    let most = [10, 5000, SEGMENT_BYTES as u64][random.below(3) as usize];
                    let length = 1 + random.below(most);
                    input.append(&stream(end, length), &NOT_OVER).expect("room");
                    end += length;
                }
                12 | 13 if has_room(&spool) => {
                    let some = [random.below(5000), SEGMENT_BYTES as u64 - 5000 + random.below(5000)];
                    let length = 1 + some[random.below(2) as usize] as usize;
                    let buffer = &mut buffers[0];
                    buffer.payload_mut()[..length].copy_from_slice(&stream(end, length as u64));
                    input.append_from(buffer, length, &NOT_OVER).expect("room");
                    buffer.payload_mut().fill(0);
                    end += length as u64;
                }
                4 | 5 if has_tree && tree < end => {
                    let Ok(Some(slice)) = spool.take() else { panic!("there is more") };
                    assert!(slice.as_ref() == stream(tree, slice.as_ref().len() as u64), "case {case}");
                    tree += slice.as_ref().len() as u64;
                    held.push_back(slice);
                }
                6 => drop(held.pop_front()),
                7 | 8 if sent < end => {
                    let Some(output) = &output else { continue };
                    let length = 4096 + random.below(target.len() as u64 - 4096) as usize;
                    let bytes = fill(output, &mut target[..length], &NOT_OVER).expect("there is more");
                    assert!(target[..bytes] == stream(sent, bytes as u64), "case {case}");
                    sent += bytes as u64;
                }
                9 => {
                    let Some(output) = &output else { continue };
                    output.note_taken(sent - session_from);
                    kept += random.below(sent.saturating_sub(kept) + 1);
                    output.take_mark(&encode_mark(kept)).expect("within what was sent");
                }
                10 if has_next => {
                    // The next host has died. The host behind it has at least as much as was reported for it.
                    let from = kept + random.below(end - kept + 1);
                    let places = crate::locked(&spool.state).places;
                    assert!(places.start <= kept, "case {case}: {places:?}");
                    output = Some(begun(&spool, from));
                    (sent, session_from) = (from, from);
                }
                11 => {
                    if let Some(mark) = input.next_mark() {
                        let mark = offset_of(&mark);
                        let most = if has_next { sent } else { end };
                        assert!(mark == end || mark <= most.max(said), "case {case}");
                        said = mark;
                    }
                    if random.below(8) == 0 {
                        // The previous host has died.
                        input = spool.input();
                        assert_eq!(input.next_mark().map(|mark| offset_of(&mark)), Some(end));
                    }
                }
                _ => {}
            }
            let state = crate::locked(&spool.state);
            let memory_of = |segment: &Segment| match &segment.memory {
                Memory::Whole(..) => SEGMENT_BYTES,
                Memory::Part { bytes, .. } => bytes.capacity(),
            };
            let used: usize = state.segments.iter().map(|segment| memory_of(segment)).sum();
            let idle = state.spare.len() * SEGMENT_BYTES;
            let pages = state.segments.len() * PAGE_BYTES as usize;
            assert!(used + idle <= spool.bytes_max + pages, "case {case}: {used} + {idle} bytes");
            assert_eq!(state.places.end, end);
            let mut at = state.places.start;
            for segment in &state.segments {
                assert_eq!((segment.start, segment.data().as_ptr().align_offset(PAGE_BYTES as usize)), (at, 0));
                at = segment.end();
            }
            assert!(state.blank.iter().all(|buffer| !buffer.has_pages()), "case {case}");
            assert_eq!(at, end, "case {case}");
            if !has_next && !has_tree {
                assert_eq!(state.places.start, end, "nobody needs it");
            }
            drop(state);
        }
    }
}

#[test]
fn what_is_not_kept_or_not_there_is_refused() {
    let spool = Spool::new(0, false, true);
    let input = spool.input();
    let output = begun(&spool, 0);
    let mut target = vec![0; 1 << 20];
    for at in 0..3 {
        input.append(&stream(at * SEGMENT_BYTES as u64, SEGMENT_BYTES as u64), &NOT_OVER).expect("room");
    }
    while crate::locked(&spool.state).places.next.and_then(|next| next.reader) != Some(3 * SEGMENT_BYTES as u64) {
        assert!(fill(&output, &mut target, &NOT_OVER).is_ok());
    }
    output.take_mark(&encode_mark(2 * SEGMENT_BYTES as u64)).expect("it was sent");
    for (from, is_kept) in [(2, true), (3, true), (1, false), (4, false), (u64::MAX, false)] {
        let from = from.min(u64::MAX / SEGMENT_BYTES as u64) * SEGMENT_BYTES as u64;
        let again = spool.output();
        again.take_mark(&encode_mark(from)).expect("an offset");
        if from < 3 * SEGMENT_BYTES as u64 && is_kept {
            assert!(fill(&again, &mut target, &NOT_OVER).is_ok(), "{from}");
        } else {
            assert_eq!(crate::locked(&spool.state).is_refused, !is_kept, "{from}");
            if !is_kept {
                again.take_mark(&encode_mark(1)).expect("it has not heard of it");
                assert!(matches!(again.next(1, &NOT_OVER), Outgoing::NotKept));
            }
        }
    }
}

#[test]
fn another_end_takes_the_place_of_the_one_before() {
    let spool = Spool::new(0, false, true);
    let (first, first_output) = (spool.input(), begun(&spool, 0));
    first.append(b"one", &NOT_OVER).expect("room");
    let second = spool.input();
    assert_eq!(first.append(b"lost", &NOT_OVER), Err(Gone));
    assert_eq!(first.end(), Err(Gone));
    assert_eq!((first.next_mark(), second.next_mark()), (None, Some(encode_mark(3))));
    second.append(b"two", &NOT_OVER).expect("room");
    second.end().expect("its turn");
    let second_output = begun(&spool, 0);
    let mut target = [0; 10];
    assert!(matches!(first_output.next(1, &NOT_OVER), Outgoing::Gone));
    first_output.take_mark(b"whatever it says").expect("nobody listens");
    assert_eq!(fill(&second_output, &mut target, &NOT_OVER).ok(), Some(6));
    assert_eq!(&target[..6], b"onetwo");
    assert!(matches!(second_output.next(1, &NOT_OVER), Outgoing::Ended));
}

#[test]
fn who_waits_is_released_when_its_session_is_over() {
    let spool = Spool::new(0, true, true);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let input = spool.input();
        let over = &over;
        let filling = scope.spawn(move || (0..10).try_for_each(|_| input.append(&vec![7; SEGMENT_BYTES], over)));
        let output = spool.output();
        let emptying = scope.spawn(move || output.next(10, over));
        thread::sleep(Duration::from_millis(50));
        over.store(true, Ordering::Relaxed);
        assert_eq!(filling.join().expect("no panic"), Err(Gone));
        assert!(matches!(emptying.join().expect("no panic"), Outgoing::Gone));
    });
    assert_eq!(spool.status().received, (SEGMENTS_MIN * SEGMENT_BYTES) as u64);
}

/// Takes everything that comes for the next host, until nothing comes for a while. Returns the number of bytes.
fn pass_on(spool: &Arc<Spool>, lasting: Duration) -> u64 {
    let (output, over) = (begun(spool, 0), AtomicBool::new(false));
    let (mut bytes, mut target) = (0, vec![0; 1 << 20]);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(lasting);
            over.store(true, Ordering::Relaxed);
        });
        while let Ok(length) = fill(&output, &mut target, &over) {
            bytes += length as u64;
            output.note_taken(bytes);
            output.take_mark(&encode_mark(bytes)).expect("it was sent");
        }
    });
    bytes
}

#[test]
fn a_tree_that_stands_still_is_left_behind() {
    let spool = Spool::new(0, true, true);
    let over = AtomicBool::new(false);
    let input = spool.input();
    // The tree has taken a segment, and never finishes writing it.
    let piece = vec![1; SEGMENT_BYTES];
    input.append(&piece, &over).expect("room");
    let Ok(Some(_held)) = spool.take() else { panic!("there is some") };
    thread::scope(|scope| {
        scope.spawn(|| while input.append(&piece, &over).is_ok() {});
        let bytes = pass_on(&spool, LAG_MAX + Duration::from_secs(1));
        over.store(true, Ordering::Relaxed);
        assert!(bytes > (SEGMENTS_MIN * SEGMENT_BYTES) as u64, "{bytes}");
    });
    assert!(spool.status().is_behind);
    assert!(matches!(spool.take(), Err(Gone)));
}

#[test]
fn a_slow_tree_is_not_left_behind_by_the_node_alone() {
    let spool = Spool::new(0, true, true);
    let over = AtomicBool::new(false);
    let input = spool.input();
    let piece = vec![1; SEGMENT_BYTES];
    thread::scope(|scope| {
        scope.spawn(|| while input.append(&piece, &over).is_ok() {});
        let tree = scope.spawn(|| {
            while let Ok(Some(slice)) = spool.take() {
                thread::sleep(Duration::from_millis(300));
                drop(slice);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        pass_on(&spool, LAG_MAX + Duration::from_secs(1));
        over.store(true, Ordering::Relaxed);
        tree.join().expect("no panic");
    });
    assert!(!spool.status().is_behind);
    spool.leave(true);
    assert!(spool.status().is_behind && matches!(spool.take(), Err(Gone)));
}

/// Whatever the length of chunks, a spool holds nearly as much as it may. The chain judges by that
/// which host waits for which.
#[test]
fn short_chunks_fill_a_spool_as_well_as_long_ones() {
    let bytes_max = 32 << 20;
    for length in [50_000, 100_000, 260_000, 500_000, 700_000, SEGMENT_BYTES] {
        let spool = Spool::new(bytes_max as u64, true, true);
        let input = spool.input();
        let (mut held, piece) = (0, vec![7; length]);
        while crate::locked(&spool.state).used_bytes + room_for(length) <= spool.bytes_max {
            input.append(&piece, &NOT_OVER).expect("room");
            held += length;
        }
        assert!(held > bytes_max / 4 * 3, "{held} bytes in pieces of {length}");
    }
}
