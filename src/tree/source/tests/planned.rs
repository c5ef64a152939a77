//! Ranges that are planned, and read later by the thread that sends them.

use super::*;

/// Takes everything, planning up to `ahead` ranges where possible. Returns also how many were planned. `on_plan` sees
/// each.
fn planned(source: &TreeSource, ahead: usize, mut on_plan: impl FnMut(&Part)) -> (Parts, usize) {
    let (mut parts, mut count, tally) = (Parts::new(), 0, Tally::default());
    loop {
        let plans: Vec<Part> = (0..ahead).map_while(|_| source.plan(PART_BYTES)).collect();
        count += plans.len();
        plans.iter().for_each(&mut on_plan);
        // In reverse order, as lanes may do it, and every other one by a worker.
        for (at, plan) in plans.iter().enumerate().rev() {
            let mut target = vec![0xee; PART_BYTES];
            let by_lane = at % 2 == 0 && source.read_cached(plan, &mut target, &tally);
            let part = if by_lane { *plan } else { by_worker(source, plan, &mut target) };
            assert_eq!((part.sequence, part.position, part.item), (plan.sequence, plan.position, plan.item));
            target.truncate(part.length);
            parts.push((part, target));
        }
        if plans.is_empty() {
            match one(source, PART_BYTES) {
                Some(part) => parts.push(part),
                None => return (parts, count),
            }
        }
    }
}

fn by_worker(source: &TreeSource, plan: &Part, target: &mut [u8]) -> Part {
    let tally = Tally::default();
    match source.read_planned(plan, target, &tally) {
        Next::Part(part) => part,
        Next::Cold(range, cold) => {
            source.note_arrival();
            source.settle(&range, &cold, Err(Errno::INVAL), target, &tally).expect("its number is taken")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn planned_ranges_are_parts_like_others() {
    let scratch = Scratch::new();
    scratch.directory("d/e");
    for (name, parts) in [("a", 1), ("d/b", 7), ("d/e/c", 3), ("z", 20)] {
        scratch.write(name, bytes(parts * PART_BYTES + 5, parts));
        scratch.write(format!("{name}.small"), b"small");
    }
    let holes = fs::File::create(scratch.0.join("holes")).expect("made");
    holes.write_all_at(&bytes(PART_BYTES, 9), 4 << 20).expect("written");
    for ahead in [1, 4] {
        let source = scratch.source(PART_BYTES);
        let (parts, count) = planned(&source, ahead, |_| {});
        assert!(count >= 31, "{count} ranges were planned");
        assert_same(&scratch, &rebuild(parts));
        assert_eq!(facts(&source), [""; 0]);
    }
}

/// A server may take a minute to say where a file has data, and the session's loop must not wait for that.
#[test]
fn ranges_are_planned_while_the_system_is_asked_for_holes() {
    let scratch = Scratch::new();
    let holes = fs::File::create(scratch.0.join("holes")).expect("made");
    holes.write_all_at(&bytes(PART_BYTES, 9), 4 << 20).expect("written");
    scratch.write("plain", bytes(3 * PART_BYTES, 1));
    let source = scratch.source(PART_BYTES);
    let (mut parts, mut target) = (Parts::new(), vec![0; PART_BYTES]);
    let next = || source.task(PART_BYTES, Duration::ZERO);
    let (file, position) = loop {
        match next() {
            Task::Walk(walk, come) => {
                let part = source.walk(walk, come, &mut target, PART_BYTES);
                parts.extend(part.map(|part| (part, target[..part.length].to_vec())));
            }
            Task::Read(file, Piece::Look(position)) => break (file, position),
            _ => panic!("the file with holes comes first"),
        }
    };
    let mut count = 0;
    while let Some(plan) = source.plan(PART_BYTES) {
        let part = by_worker(&source, &plan, &mut target);
        parts.push((part, target[..part.length].to_vec()));
        count += 1;
    }
    assert_eq!((count, position), (3, 0));
    assert!(matches!(next(), Task::Wait), "the file has not ended");
    // As an answer of the receiver does.
    crate::locked(&source.shared).ready.push_back(file.item);
    assert!(matches!(next(), Task::Wait), "the system is asked once");
    source.look(&file, position);
    parts.extend(rest(&source, 1, PART_BYTES));
    assert_same(&scratch, &rebuild(parts));
    assert_eq!(facts(&source), [""; 0]);
}

#[test]
fn a_planned_range_that_cannot_be_read_is_a_part_of_nothing() {
    let scratch = Scratch::new();
    for name in ["intact", "shrinks", "z"] {
        scratch.write(name, bytes(6 * PART_BYTES, 1));
    }
    let source = scratch.source(PART_BYTES);
    let mut shrunk = false;
    let (parts, _) = planned(&source, 3, |part| {
        if part.item == 2 && !std::mem::replace(&mut shrunk, true) {
            let file = fs::OpenOptions::new().write(true).open(scratch.0.join("shrinks")).expect("there");
            file.set_len(PART_BYTES as u64 + 1).expect("resized");
        }
    });
    assert!(parts.iter().any(|(part, _)| part.item == 2 && part.length == 0));
    let tree = rebuild(parts);
    assert_eq!(facts(&source), ["shrinks: shrank while it was read"]);
    assert_eq!(tree.failures, 1);
    let names: Vec<&[u8]> = tree.entries.keys().map(|name| &name[..]).collect();
    assert_eq!(names, [&b"t"[..], b"t/intact", b"t/z"]);
}

/// A file system writes into one file at a time, so several are given out in turns. Few are, so that few are
/// unfinished.
#[test]
fn a_few_large_files_are_sent_in_turns() {
    const PARTS: usize = 4;
    for plans in [false, true] {
        let scratch = Scratch::new();
        for number in 0..6 {
            scratch.write(format!("f{number}"), bytes(PARTS * PART_BYTES, number));
        }
        let source = scratch.source(PART_BYTES);
        let mut items = Vec::new();
        loop {
            let planned = if plans { source.plan(PART_BYTES) } else { None };
            if let Some(part) = planned {
                let mut target = vec![0; PART_BYTES];
                // Not every file system tells what is in memory.
                if !source.read_cached(&part, &mut target, &Tally::default()) {
                    by_worker(&source, &part, &mut target);
                }
                items.push(part.item);
            } else if let Some((part, _)) = one(&source, PART_BYTES) {
                items.extend(Some(part.item).filter(|item| *item != 0));
            } else {
                break;
            }
        }
        assert_eq!(items.len(), 6 * PARTS);
        let first = |item: u32| items.iter().position(|other| *other == item).expect("all are sent");
        let last = |item: u32| items.iter().rposition(|other| *other == item).expect("all are sent");
        assert!((1..=4).all(|item| first(item) < FILES_AT_ONCE), "{items:?}");
        assert!(first(5) > last(1) && first(6) > last(2), "{items:?}");
    }
}
