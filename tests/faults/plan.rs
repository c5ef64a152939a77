//! Faults of a network during a session: several faults at random places.

use std::path::PathBuf;
use std::time::Duration;

use crate::rig::Random;
use crate::rig::proxy::{Damage, Plan, Spot, Way};

/// Number of bytes of a handshake in either direction, alone, with the first control frames, and with some more frames.
const HANDSHAKE_BYTES: u64 = 160;
const BEGINNING_BYTES: u64 = 900;
const FRAMES_BYTES: u64 = 4000;

/// Plans the network of a session that moves `bytes` in the direction `data`. The faults done are recorded in `log`.
pub fn network(random: &mut Random, bytes: u64, data: Way, log: PathBuf) -> Plan {
    let mut damage = faults(random, bytes, data);
    let gone_with_a_cut = random.below(4) == 0;
    if gone_with_a_cut {
        // In the middle of the data, as far as the first connection gets.
        let offset = BEGINNING_BYTES.min(bytes / 2) + random.below(bytes / 2 + 1);
        damage.push((Spot { way: data, connection: Some(0), offset }, Damage::Reset));
    }
    Plan { damage, gone_with_a_cut, log: Some(log), ..Plan::default() }
}

fn faults(random: &mut Random, bytes: u64, data: Way) -> Vec<(Spot, Damage)> {
    let count = if random.below(5) == 0 { 4 + random.below(10) } else { 1 + random.below(3) };
    (0..count)
        .map(|_| {
            let way = if random.below(3) == 0 { Way::Down } else { Way::Up };
            let reach = match random.below(8) {
                0 => HANDSHAKE_BYTES,
                1 | 2 => BEGINNING_BYTES,
                _ if way != data => FRAMES_BYTES,
                // Each of several lanes carries a part of the data, and may be given up before its end.
                3 | 4 => bytes / 4 + BEGINNING_BYTES,
                _ => bytes + BEGINNING_BYTES,
            };
            let damage = fault(random);
            // A fault at the same offset of every connection may let nothing pass, however often the ends reconnect.
            let connection = if random.below(4) != 0 { Some(random.below(3) as usize) } else { None };
            // Usually the first connection, because it always exists.
            let connection = connection.map(|number| number.saturating_sub(random.below(3) as usize));
            (Spot { way, connection, offset: random.below(reach) }, damage)
        })
        .collect()
}

fn fault(random: &mut Random) -> Damage {
    let most = if random.below(4) == 0 { 100_000 } else { 3000 };
    let length = 1 + random.below(most) as usize;
    match random.below(12) {
        0..3 => Damage::Flip(random.below(8) as u8),
        3 | 4 => Damage::Reset,
        5 => Damage::Truncate,
        6 | 7 => Damage::Delay(Duration::from_millis(random.below(3000))),
        8 => Damage::Duplicate(length),
        9 | 10 => Damage::Swap(length),
        _ => Damage::Drop(length),
    }
}
