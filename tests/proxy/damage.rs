//! Bytes that change in transit: they are repaired or refused, but never written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::rig::proxy::{Damage, Plan, Proxy, Spot, Way};
use crate::rig::*;

/// Exit codes, besides 0, with which a run on a damaging network may end.
const REFUSALS: [i32; 5] = [2, 3, 4, 7, 9];

/// Runs a transfer on a damaging network. If either end exits with 0, the bytes must be right. If the sender does, the
/// receiver must too. Returns how both ended, and how many times damage was done: the connection may have carried
/// nothing to the place.
#[track_caller]
fn survives(plan: Plan, encrypt: &str, input: &[u8]) -> (Ended, Ended, usize) {
    let what = format!("{:?} --encrypt {encrypt}", plan.damage);
    let (mut recv, port) = start_recv(&["--json-fd=2", "--wait", "12", "--reconnect", "4"], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, plan);
    let options = ["--json-fd=2", "--encrypt", encrypt, "--connect-timeout", "4", "--reconnect", "4"];
    let mut send = start_send(&options, proxy.port(), None);
    feed(send.stdin(), input.to_vec());
    let (send, recv) = (send.wait(), recv.wait());
    let output = output.join().expect("no panic");
    for ended in [&send, &recv] {
        assert!(ended.code == 0 || REFUSALS.contains(&ended.code), "{what}: {} {}", ended.code, ended.stderr);
    }
    if recv.code == 0 {
        same(&output, input);
    } else {
        assert_ne!(send.code, 0, "{what}: the sender knows better than the receiver: {}", recv.stderr);
        same(&output, &input[..output.len()]);
    }
    (send, recv, proxy.damages())
}

/// Repeats such a transfer until the damage has been done. Returns how both ends ended then. How much a connection
/// carries is left to chance, so a run may have nothing at the place. As good as never does that happen in all of 20.
#[track_caller]
fn survives_damage(plan: &Plan, encrypt: &str, input: &[u8]) -> (Ended, Ended) {
    for _ in 0..20 {
        let (send, recv, done) = survives(plan.clone(), encrypt, input);
        if done > 0 {
            return (send, recv);
        }
    }
    panic!("nothing was damaged: {:?} --encrypt {encrypt}", plan.damage);
}

/// Runs a test with encryption and without at the same time, because most of its time is waiting.
fn in_both_modes(test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for encrypt in ["always", "never"] {
            let test = &test;
            scope.spawn(move || test(encrypt));
        }
    });
}

fn at(way: Way, connection: usize, offset: u64, damage: Damage) -> (Spot, Damage) {
    (Spot { way, connection: Some(connection), offset }, damage)
}

fn plan(damage: Vec<(Spot, Damage)>) -> Plan {
    Plan { damage, ..Plan::default() }
}

#[test]
fn a_flipped_bit_in_every_part_of_the_handshake() {
    let input = noise(1000);
    // The connector's hello and confirmation, with their lengths, and the listener's answer. The cases mostly
    // wait, so all run at once.
    let up = (0..130).step_by(13).map(|offset| (Way::Up, offset));
    let down = (0..90).step_by(11).map(|offset| (Way::Down, offset));
    let damages = [Way::Up, Way::Down].map(|way| (way, AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for (way, offset) in up.chain(down) {
            let (input, done) = (&input, &damages[way as usize].1);
            scope.spawn(move || {
                let damage = plan(vec![at(way, 0, offset, Damage::Flip(offset as u8))]);
                done.fetch_add(survives(damage, "always", input).2, Ordering::SeqCst);
            });
        }
    });
    for (way, done) in damages {
        assert!(done.into_inner() > 0, "nothing was damaged: {way:?}");
    }
}

#[test]
fn a_flipped_bit_in_control_frames() {
    let (input, longer) = (noise(3 * CHUNK), noise(24 * CHUNK));
    for encrypt in ["always", "never"] {
        for offset in [150, 190, 260] {
            for way in [Way::Up, Way::Down] {
                let damage = plan(vec![at(way, 0, offset, Damage::Flip(3))]);
                let (send, recv) = survives_damage(&damage, encrypt, &input);
                for ended in [&send, &recv] {
                    assert!(!ended.stderr.contains("release"), "{way:?} {offset}: {}", ended.stderr);
                }
                // The first sealed message: no lane is up yet that could be replaced. A receiver
                // waits for another sender.
                let (hit, code) = if way == Way::Up { (&recv, 3) } else { (&send, 7) };
                if offset == 150 {
                    assert_eq!(hit.code, code, "{way:?}: {}", hit.stderr);
                    assert!(
                        hit.stderr.contains("damaged in transit, or encrypted with a different KEY"),
                        "{}",
                        hit.stderr
                    );
                }
            }
        }
        // Acknowledgements in the other direction, while data flows, on the connection that carries as many.
        let damage = plan(vec![(Spot { way: Way::Down, connection: None, offset: 500 }, Damage::Flip(0))]);
        let (send, _) = survives_damage(&damage, encrypt, &longer);
        assert!([0, 4].contains(&send.code), "{}", send.stderr);
    }
}

#[test]
fn a_flipped_bit_in_a_payload_is_repaired() {
    let input = noise(24 * CHUNK);
    for encrypt in ["always", "never"] {
        for connection in [0, 1] {
            let damage = vec![at(Way::Up, connection, 300_000, Damage::Flip(5))];
            // Long and slow enough for the second connection to get a share, because sockets alone hold several chunks.
            let damage = Plan { damage, bytes_per_second: Some(32 << 20), ..Plan::default() };
            let (send, recv, _) = survives(damage, encrypt, &input);
            send.expect(0);
            recv.expect(0);
            assert!(recv.report()["corrupt_chunks"].as_u64() >= Some(1), "it was seen: {}", recv.stderr);
            assert!(recv.report()["retries"].as_u64() >= Some(1), "{}", recv.stderr);
        }
    }
}

#[test]
fn a_flipped_bit_in_every_byte_of_a_chunk_header() {
    let input = noise(4 * CHUNK);
    in_both_modes(|encrypt| {
        let header = first_header(encrypt, &input);
        for byte in 0..48 {
            let damage = plan(vec![at(Way::Up, 0, header + byte, Damage::Flip((byte % 8) as u8))]);
            let (send, _) = survives_damage(&damage, encrypt, &input);
            assert!([0, 4, 7].contains(&send.code), "byte {byte}: {}", send.stderr);
        }
    });
}

/// Returns the offset of the first chunk header on the first connection of an undisturbed run. Which connection gets a
/// chunk is left to chance. On a busy machine the first connection may get none.
#[track_caller]
fn first_header(encrypt: &str, input: &[u8]) -> u64 {
    (0..20).find_map(|_| header_in(&undisturbed(encrypt, input))).expect("a chunk on the first connection")
}

/// Returns what the first connection carries upwards in an undisturbed run.
#[track_caller]
fn undisturbed(encrypt: &str, input: &[u8]) -> Vec<u8> {
    let (mut recv, port) = start_recv::<&str>(&[], None);
    let output = drain(recv.stdout());
    let proxy = Proxy::start(port, Plan { record: true, ..Plan::default() });
    let mut send = start_send(&["--encrypt", encrypt], proxy.port(), None);
    feed(send.stdin(), input.to_vec());
    send.wait().expect(0);
    recv.wait().expect(0);
    same(&output.join().expect("no panic"), input);
    proxy.recorded(Way::Up).swap_remove(0)
}

/// Finds the first chunk record after the handshake, which is two messages with their lengths; then come records.
fn header_in(bytes: &[u8]) -> Option<u64> {
    let mut offset = 0;
    for _ in 0..2 {
        offset += 2 + usize::from(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]));
    }
    while *bytes.get(offset)? == b'F' {
        offset += 4 + usize::from(u16::from_le_bytes([bytes[offset + 2], bytes[offset + 3]]));
    }
    assert_eq!(bytes[offset], b'C', "a chunk");
    Some(offset as u64)
}

#[test]
fn heartbeats_do_not_fill_a_gap() {
    // The only chunk arrives too short. After it come only heartbeats, some 20 bytes a second.
    let input = noise(48 << 10);
    in_both_modes(|encrypt| {
        let header = first_header(encrypt, &input);
        // Another connection may carry the chunk.
        let is_done = (0..20).any(|_| {
            let began = Instant::now();
            let damage = plan(vec![at(Way::Up, 0, header + 1000, Damage::Drop(2000))]);
            let (send, recv, done) = survives(damage, encrypt, &input);
            send.expect(0);
            recv.expect(0);
            assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
            done > 0
        });
        assert!(is_done, "the first connection never carried the chunk with --encrypt {encrypt}");
    });
}

#[test]
fn ranges_dropped_duplicated_and_swapped() {
    let input = noise(6 * CHUNK);
    in_both_modes(|encrypt| {
        let header = first_header(encrypt, &input);
        let record = 48 + CHUNK;
        let damages = [
            Damage::Drop(1),
            Damage::Drop(4096),
            Damage::Drop(record),
            Damage::Duplicate(1),
            Damage::Duplicate(4096),
            Damage::Duplicate(record),
            Damage::Swap(2000),
            Damage::Swap(record),
            Damage::Truncate,
        ];
        for damage in damages {
            for offset in [header, header + 300_000] {
                let (send, _) = survives_damage(&plan(vec![at(Way::Up, 0, offset, damage)]), encrypt, &input);
                assert!([0, 4, 7].contains(&send.code), "{damage:?} at {offset}: {}", send.stderr);
            }
        }
    });
}

#[test]
fn damage_at_random_places() {
    let mut random = Random::printed("damage_at_random_places");
    let (mut runs, mut damages) = (0, 0);
    // A connection may carry nothing to its place. As good as never does that happen in all of the runs.
    while runs < 12 || damages == 0 {
        assert!(runs < 60, "nothing was damaged");
        runs += 1;
        let input = noise(4 * CHUNK);
        let damage = (0..1 + random.below(3))
            .map(|_| {
                let way = if random.below(4) == 0 { Way::Down } else { Way::Up };
                let reach = if way == Way::Up { 2 * CHUNK as u64 } else { 1200 };
                let offset = if random.below(2) == 0 { random.below(600) } else { random.below(reach) };
                let length = 1 + random.below(5000) as usize;
                let what = match random.below(6) {
                    0 => Damage::Drop(length),
                    1 => Damage::Duplicate(length),
                    2 => Damage::Swap(length),
                    3 => Damage::Truncate,
                    _ => Damage::Flip(random.below(8) as u8),
                };
                at(way, random.below(3) as usize, offset, what)
            })
            .collect();
        let encrypt = ["always", "never"][random.below(2) as usize];
        damages += survives(plan(damage), encrypt, &input).2;
    }
}

#[test]
fn a_network_that_damages_everything_is_given_up() {
    // One bit is flipped in each chunk of 1 MiB that passes. Replacing lanes for ever would not help.
    let input = noise(64 * CHUNK);
    in_both_modes(|encrypt| {
        let (mut recv, port) = start_recv(&["--json-fd=2"], None);
        let output = drain(recv.stdout());
        let proxy = Proxy::start(port, Plan { flip_every: Some(500_000), ..Plan::default() });
        let mut send = start_send(&["--json-fd=2", "--encrypt", encrypt], proxy.port(), None);
        feed(send.stdin(), input.clone());
        let limit = Duration::from_secs(30);
        let (send, recv) = (send.wait_for(limit), recv.wait_for(limit));
        recv.expect(7);
        send.expect(7);
        assert!(send.stderr.contains("checksums") && recv.stderr.contains("checksums"), "{}", send.stderr);
        let output = output.join().expect("no panic");
        same(&output, &input[..output.len()]);
    });
}

#[test]
fn a_version_turned_down_on_the_way() {
    // The version is sent in clear before anything is authenticated. An altered major version is refused. The minor
    // version is part of what both ends hash, so an altered minor version appears as a wrong key.
    let input = noise(1000);
    for (way, offset) in [(Way::Up, 2 + 8), (Way::Up, 2 + 10), (Way::Down, 2 + 8), (Way::Down, 2 + 10)] {
        for value in [0, 9] {
            let damage = plan(vec![(Spot { way, connection: None, offset }, Damage::Set(value))]);
            let (mut recv, port) = start_recv(&["--wait", "3"], None);
            let proxy = Proxy::start(port, damage);
            let mut send = start_send(&["--connect-timeout", "1"], proxy.port(), None);
            feed(send.stdin(), input.clone());
            let unchanged = value == 0 && offset == 2 + 10;
            let ended = send.wait();
            if unchanged {
                ended.expect(0);
                recv.wait().expect(0);
            } else {
                assert!([2, 9].contains(&ended.code), "{way:?} {offset} {value}: {} {}", ended.code, ended.stderr);
                recv.wait().expect(3);
            }
        }
    }
}

#[test]
fn encryption_turned_off_on_the_way() {
    // The flag for "sealed" is cleared. In an encrypted transfer such a chunk is refused, whatever its checksum.
    let input = noise(4 * CHUNK);
    let header = first_header("always", &input);
    // Bit 0 means final, bit 1 sealed. The first of several chunks has only the latter set.
    for flags in [0, 4] {
        // The first connection may carry no chunk, or something else at that place.
        let is_refused = (0..20).any(|_| {
            let damage = plan(vec![at(Way::Up, 0, header + 1, Damage::Set(flags))]);
            let (send, recv, _) = survives(damage, "always", &input);
            send.expect(0);
            recv.report()["corrupt_chunks"].as_u64() >= Some(1)
        });
        assert!(is_refused, "no chunk was refused with the flags {flags}");
    }
}
