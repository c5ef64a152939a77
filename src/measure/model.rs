//! Models an adapter's on-board memory, and how the number of connections affects throughput.
//!
//! An adapter keeps the context of each connection in host memory and caches it in on-board SRAM. A small operation
//! needs the connection's state, the work queue entry, and the translation (MTT) and protection (MPT) entries of the
//! memory that it names. While all of that fits, an operation takes only as long as the adapter's pipeline needs. With
//! more connections, LRU evicts entries that other connections will need again, and each operation waits for reads over
//! PCIe.
//!
//! # What is known and what is fitted
//!
//! * It is known that a connection has 375 bytes of state, and that the SRAM holds about 2 MB (ConnectX-4 and -5).
//!   These figures alone would allow 5600 connections. A ConnectX-6 at 100 Gb/s keeps its peak up to about 450 (Wang
//!   and others, StaR, ICNP 2021, figure 1: 32-byte READs, one in flight on each connection).
//! * So each connection takes 4.6 KB, twelve times its state. In this model the difference is a window of 64 work queue
//!   entries of 64 bytes, which adapters prefetch, and one cache line each of MTT, MPT and completion queue context.
//!   The sizes of the entries are usual ones; the window of *64* entries is fitted to the 450 connections.
//! * The number of parallel PCIe reads is fitted to the share of the peak that is left at 3000 connections. The paper
//!   says that performance past 3000 connections "is 70 % of the peak". The model reads that literally by default. The
//!   sentence can also mean *lower by* 70 %, which is `left_at_3000` = 0.3.
//! * The pipeline's rate and the round trip are round numbers. They scale the curve and do not change its shape.
//!
//! # Throughput
//!
//! Each connection has one operation in flight. The operation spends `round_trip` on the wire and at the other end, and
//! then queues for the adapter. That is a closed queueing network with one server; mean value analysis gives its exact
//! throughput. Connections are assumed to be used in random order, so LRU finds an entry with probability `capacity /
//! connections` (strictly in turn, LRU would find none). A test compares that with a simulated LRU cache.

use super::report;

/// Bytes of a cache line, the unit in which MTT, MPT and completion queue contexts are cached.
const LINE_BYTES: f64 = 64.0;

/// Number of connections that `left_at_3000` refers to.
const FAR: u32 = 3000;

/// Largest number of connections on a curve.
const CURVE_MAX: u32 = 4096;

/// State of a connection in bytes, without its work queue.
const STATE_BYTES: f64 = 375.0;

/// Number of work queue entries that are cached for a connection, and the size of an entry in bytes.
const WORK_ENTRIES: f64 = 64.0;
const WORK_ENTRY_BYTES: f64 = 64.0;

/// Number of MTT, MPT and completion queue context entries of a connection, each a cache line.
const OTHER_LINES: f64 = 3.0;

/// Size of the SRAM in bytes, unless another size is asked for. What is fitted is fitted to this size.
const SRAM_BYTES: f64 = 2.0 * 1024.0 * 1024.0;

/// Bytes of SRAM that a connection takes, with everything that its operations need.
const CONNECTION_BYTES: f64 = STATE_BYTES + WORK_ENTRIES * WORK_ENTRY_BYTES + OTHER_LINES * LINE_BYTES;

/// Time that an operation takes in the pipeline if everything is cached, in nanoseconds.
const SERVICE_NS: f64 = 40.0;

/// Time that an operation spends outside this adapter, in nanoseconds.
const ROUND_TRIP_NS: f64 = 2000.0;

/// Time of a read over PCIe, in nanoseconds.
const PCIE_NS: f64 = 900.0;

/// Number of PCIe reads for an operation if nothing of its connection is cached.
const PCIE_READS: f64 = 4.0;

/// Length of a turn of a group in nanoseconds: ScaleRPC's 100 µs.
const TURN_NS: f64 = 100_000.0;

/// The two parameters in which adapters differ here. All others are the constants above, those of a ConnectX-6 at
/// 100 Gb/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapter {
    /// Size of the on-board cache memory in bytes.
    pub sram_bytes: f64,
    /// Number of PCIe reads that run in parallel.
    pcie_parallel: f64,
}

/// How connections are managed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// Each connection is used whenever it has work.
    Plain,
    /// Connections are used in groups that take turns (ScaleRPC). Each group fits in the cache, and is fetched at the
    /// start of its turn.
    Grouped,
    /// The client keeps the state and sends it with each packet (StaR), so the adapter caches nothing.
    ClientState,
}

impl Adapter {
    /// Returns a ConnectX-6 at 100 Gb/s that keeps this share of its peak at 3000 connections, with 2 MiB of SRAM.
    pub fn with_left_at_3000(left: f64) -> Self {
        let adapter = Self { sram_bytes: SRAM_BYTES, pcie_parallel: 1.0 };
        // At 3000 connections the adapter is the bottleneck, so misses add directly to the time of an operation.
        let added_ns = SERVICE_NS * (1.0 / left.clamp(0.01, 1.0) - 1.0);
        let misses = 1.0 - adapter.capacity() / f64::from(FAR);
        let needed = PCIE_READS * PCIE_NS * misses / added_ns.max(1e-9);
        Self { pcie_parallel: needed, ..adapter }
    }

    /// Number of connections that fit in the SRAM.
    pub fn capacity(&self) -> f64 {
        self.sram_bytes / CONNECTION_BYTES
    }

    /// How long an operation waits for PCIe if nothing of its connection is cached, in nanoseconds.
    pub fn miss_ns(&self) -> f64 {
        PCIE_READS * PCIE_NS / self.pcie_parallel
    }

    /// Share of operations whose connection is cached.
    pub fn hit_ratio(&self, connections: u32) -> f64 {
        (self.capacity() / f64::from(connections.max(1))).min(1.0)
    }

    /// Throughput in millions of operations per second.
    pub fn mops(&self, connections: u32, scheme: Scheme) -> f64 {
        let plain = |connections: u32| {
            let service = SERVICE_NS + (1.0 - self.hit_ratio(connections)) * self.miss_ns();
            closed_network(connections, service, ROUND_TRIP_NS)
        };
        let per_ns = match scheme {
            Scheme::Plain => plain(connections),
            Scheme::ClientState => closed_network(connections, SERVICE_NS, ROUND_TRIP_NS),
            Scheme::Grouped => {
                let group = (self.capacity() as u32).max(1);
                if connections <= group {
                    plain(connections)
                } else {
                    // Each turn begins with a group that has been evicted from the cache.
                    let fetching = (f64::from(group) * self.miss_ns()).min(TURN_NS);
                    plain(group) * (1.0 - fetching / TURN_NS)
                }
            }
        };
        per_ns * 1000.0
    }

    /// Returns the number of connections with the highest throughput, and that throughput in Mops. Of several such
    /// numbers, the largest is returned.
    pub fn peak(&self) -> (u32, f64) {
        let mut best = (1, 0.0);
        for connections in points() {
            let mops = self.mops(connections, Scheme::Plain);
            if mops >= best.1 {
                best = (connections, mops);
            }
        }
        best
    }

    /// Number of queue pairs that each of `clients` may use without passing the peak; 0 if even one queue pair each
    /// passes the peak.
    pub fn queue_pairs_for(&self, clients: u32) -> u32 {
        self.capacity() as u32 / clients.max(1)
    }

    /// Describes the result of [`Self::queue_pairs_for`] in words.
    pub fn advice(&self, clients: u32) -> String {
        let capacity = self.capacity() as u32;
        match self.queue_pairs_for(clients) {
            0 => {
                let left = 100.0 * self.mops(clients, Scheme::Plain) / self.peak().1;
                let grouped = 100.0 * self.mops(clients, Scheme::Grouped) / self.peak().1;
                format!(
                    "{clients} clients: even 1 queue pair each is more than the {capacity} that the adapter caches; \
                     about {left:.0} % of the peak is left, {grouped:.0} % if groups of {capacity} take turns"
                )
            }
            each => format!(
                "{clients} clients: up to {each} queue pair{} each ({} of the {capacity} that the adapter caches)",
                if each == 1 { "" } else { "s" },
                each * clients
            ),
        }
    }

    /// Returns the curve and the constants for a report.
    pub fn report(&self, clients: Option<u32>) -> report::Model {
        let (peak_connections, peak_mops) = self.peak();
        let curve = points()
            .into_iter()
            .map(|connections| {
                let mops = |scheme| self.mops(connections, scheme);
                (connections, mops(Scheme::Plain), mops(Scheme::Grouped), mops(Scheme::ClientState))
            })
            .collect();
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        let is_usual = (self.sram_bytes - SRAM_BYTES).abs() < 1.0;
        let sram_origin = if is_usual { "known: about 2 MB" } else { "given by --sram" };
        let constants = [
            ("SRAM, bytes", self.sram_bytes, sram_origin.to_owned()),
            ("connection state, bytes", STATE_BYTES, "known".to_owned()),
            ("work queue entries kept", WORK_ENTRIES, "fitted: 450 connections fill 2 MiB".to_owned()),
            ("work queue entry, bytes", WORK_ENTRY_BYTES, "typical".to_owned()),
            ("MTT, MPT, CQ lines of 64 bytes", OTHER_LINES, "typical".to_owned()),
            ("bytes of one connection", CONNECTION_BYTES, "sum of the above".to_owned()),
            ("connections that fit", self.capacity().floor(), "SRAM divided by that".to_owned()),
            ("pipeline, ns", SERVICE_NS, "assumed: scales the curve".to_owned()),
            ("round trip, ns", ROUND_TRIP_NS, "assumed: sets how fast it rises".to_owned()),
            ("PCIe read, ns", PCIE_NS, "typical".to_owned()),
            ("PCIe reads of a miss", PCIE_READS, "state, work queue, MTT, MPT".to_owned()),
            ("PCIe reads side by side", self.pcie_parallel, "fitted: share left at 3000 with 2 MiB".to_owned()),
        ];
        report::Model {
            constants: constants
                .into_iter()
                .map(|(name, value, origin)| (name.to_owned(), rounded(value), origin))
                .collect(),
            curve,
            peak_connections,
            peak_mops,
            answers: clients.map(|clients| self.advice(clients)).into_iter().collect(),
        }
    }
}

/// Returns the numbers of connections at which curves are evaluated.
fn points() -> Vec<u32> {
    let mut points: Vec<u32> =
        geometric(1.0, f64::from(CURVE_MAX), 73).into_iter().map(|point| point.round() as u32).collect();
    points.extend([450, FAR]);
    points.sort_unstable();
    points.dedup();
    points
}

fn geometric(first: f64, last: f64, count: u32) -> Vec<f64> {
    let factor = (last / first).powf(1.0 / f64::from(count - 1));
    (0..count).map(|step| first * factor.powi(step as i32)).collect()
}

/// Returns the throughput, in operations per nanosecond, of `customers` that each spend `elsewhere` and then queue for
/// one server. Uses exact mean value analysis.
fn closed_network(customers: u32, service: f64, elsewhere: f64) -> f64 {
    let mut queue = 0.0;
    let mut throughput = 0.0;
    for number in 1..=customers {
        let residence = service * (1.0 + queue);
        throughput = f64::from(number) / (elsewhere + residence);
        queue = throughput * residence;
    }
    throughput
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    #[test]
    fn state_alone_would_allow_many_more_connections() {
        let adapter = Adapter::with_left_at_3000(0.7);
        assert_eq!((adapter.sram_bytes / STATE_BYTES) as u32, 5592);
        assert_eq!(adapter.capacity().round(), 450.0);
    }

    #[test]
    fn the_peak_is_near_450_and_then_it_falls() {
        let adapter = Adapter::with_left_at_3000(0.7);
        let (peak, mops) = adapter.peak();
        assert!((400..=500).contains(&peak), "{peak}");
        let mut before = mops;
        for connections in [600, 1000, 2000, 3000, 4000] {
            let now = adapter.mops(connections, Scheme::Plain);
            assert!(now < before, "{connections}");
            before = now;
        }
        for (one, more) in [(1, 2), (2, 8), (8, 32), (32, 100)] {
            let rise = adapter.mops(more, Scheme::Plain) / adapter.mops(one, Scheme::Plain);
            assert!(rise > 1.2, "{one} to {more}: {rise}");
        }
    }

    #[test]
    fn at_3000_as_much_is_left_as_was_asked_for() {
        for left in [0.7, 0.3] {
            let adapter = Adapter::with_left_at_3000(left);
            let share = adapter.mops(3000, Scheme::Plain) / adapter.peak().1;
            assert!((share - left).abs() < 0.01, "{left}: {share}");
            assert!((400..=500).contains(&adapter.peak().0));
        }
    }

    #[test]
    fn grouping_and_state_at_the_client_do_not_fall() {
        let adapter = Adapter::with_left_at_3000(0.7);
        for connections in [1000, 3000, 4096] {
            let [plain, grouped, client] =
                [Scheme::Plain, Scheme::Grouped, Scheme::ClientState].map(|scheme| adapter.mops(connections, scheme));
            assert!(plain < grouped && grouped < client, "{connections}: {plain} {grouped} {client}");
            assert!(client > 0.99 * adapter.peak().1, "{connections}");
        }
        // Below the capacity, all connections form one group.
        assert_eq!(adapter.mops(100, Scheme::Grouped), adapter.mops(100, Scheme::Plain));
    }

    /// Returns the share of hits in a simulated LRU cache.
    fn simulated_hits(capacity: usize, connections: u64, accesses: u64) -> f64 {
        let (mut used, mut order) = (HashMap::new(), BTreeMap::new());
        let (mut state, mut hits, mut counted) = (7_u64, 0, 0);
        for time in 0..accesses {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let connection = state % connections;
            let known = used.insert(connection, time);
            if let Some(before) = known {
                order.remove(&before);
            }
            order.insert(time, connection);
            if used.len() > capacity {
                let (_, oldest) = order.pop_first().expect("more than the capacity");
                used.remove(&oldest);
            }
            if time > accesses / 4 {
                counted += 1;
                hits += u64::from(known.is_some());
            }
        }
        hits as f64 / counted as f64
    }

    #[test]
    fn lru_finds_what_the_model_says() {
        let adapter = Adapter::with_left_at_3000(0.7);
        for connections in [100, 450, 900, 3000] {
            let simulated = simulated_hits(adapter.capacity() as usize, connections, 200_000);
            let said = adapter.hit_ratio(connections as u32);
            assert!((simulated - said).abs() < 0.02, "{connections}: {simulated} {said}");
        }
    }

    #[test]
    fn one_connection_waits_for_its_round_trip_only() {
        let adapter = Adapter::with_left_at_3000(0.7);
        let expected = 1000.0 / (ROUND_TRIP_NS + SERVICE_NS);
        assert!((adapter.mops(1, Scheme::Plain) - expected).abs() < 1e-9);
        assert!(adapter.mops(100_000, Scheme::ClientState) <= 1000.0 / SERVICE_NS);
    }

    #[test]
    fn constants_say_for_which_sram_they_hold() {
        let usual = Adapter::with_left_at_3000(0.7);
        let origin = |adapter: Adapter, name: &str| {
            let constants = adapter.report(None).constants;
            constants.into_iter().find(|(known, ..)| known == name).map(|(.., origin)| origin).expect("a constant")
        };
        assert_eq!(origin(usual, "SRAM, bytes"), "known: about 2 MB");
        let small = Adapter { sram_bytes: SRAM_BYTES / 2.0, ..usual };
        assert_eq!(origin(small, "SRAM, bytes"), "given by --sram");
        for fitted in ["work queue entries kept", "PCIe reads side by side"] {
            assert!(origin(small, fitted).ends_with(" 2 MiB"), "{fitted}");
        }
    }

    #[test]
    fn clients_share_what_fits() {
        let adapter = Adapter::with_left_at_3000(0.7);
        assert_eq!(adapter.queue_pairs_for(1), 449);
        assert_eq!(adapter.queue_pairs_for(64), 7);
        assert_eq!(adapter.queue_pairs_for(3000), 0);
        assert!(adapter.advice(64).starts_with("64 clients: up to 7 queue pairs each (448 of the 449"));
        assert!(adapter.advice(3000).contains("about 70 % of the peak is left"), "{}", adapter.advice(3000));
    }
}
