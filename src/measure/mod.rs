//! Measures and examines hosts: what they are like, what is wrong with them, and how they reach each other.
//!
//! The examination has two steps, each of which knows nothing of the other. *Facts* are values without a verdict; they
//! are gathered on each host ([`gather`]), also by agents. *Checks* are functions from facts to findings, which say
//! what was found and name the command that fixes it. They do no I/O, so a recorded tree of `/sys` and `/proc` can test
//! each check.
//!
//! * `root`: the kernel's files about its host. `facts`: what is known of a host. `gather`: gathers the facts.
//! * `finding`: what a check can report. `checks`: the checks of one host, and of the path between two hosts. `words`:
//!   rates, sizes and times for a person.
//! * `counters`: what adapters have counted, and what the counts mean. `matrix`: chooses which pairs of many hosts are
//!   measured, and finds slow pairs and slow hosts.
//! * `probe`: opens ports for another host to try, and tries the ports of another host.
//!
//! Other modules measure, or turn numbers into tables and drawings:
//!
//! * `report`: the numbers as text and JSON. `plot`: the numbers as drawings.
//! * `model`: an adapter's on-board cache, and its effect on many connections.
//! * `disk`, `mem`: storage and memory of this host.

pub mod checks;
#[cfg(test)]
mod corpus;
pub mod counters;
pub mod disk;
pub mod facts;
pub mod finding;
pub mod gather;
pub mod matrix;
pub mod mem;
pub mod model;
pub mod plot;
pub mod probe;
#[cfg(test)]
pub(crate) mod recorded;
pub mod report;
pub mod root;
pub mod words;

pub use checks::{compare, examine};
pub use facts::Facts;
pub use finding::{Finding, Fix, Level};

use minicbor::{Decode, Encode};
use probe::Attempt;

/// Encodes a value for sending to another host.
pub fn encode(told: &impl Encode<()>) -> Vec<u8> {
    minicbor::to_vec(told).expect("a vector takes everything")
}

/// Decodes a value that another host sent; `None` if the bytes are malformed.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Option<T> {
    minicbor::decode(bytes).ok()
}

/// What is known of the path between two hosts. A part that was not examined is absent, and no check reports on it.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// Facts of this host.
    pub here: Facts,
    /// Facts of the other host.
    pub there: Facts,
    /// Whether both hosts are the same machine.
    pub is_one_machine: bool,
    /// Time until the agent on the other host had answered, in microseconds.
    pub agent_micros: u64,
    /// Whether there was no time to try ports.
    pub is_untried: bool,
    /// Outcome of connecting to ports that were opened on the other host; an error says why no port could be opened.
    pub to_there: Option<Result<Vec<Attempt>, String>>,
    /// Outcome of connecting from the other host to ports that were opened here.
    pub to_here: Option<Result<Vec<Attempt>, String>>,
    /// The measured speed, or why it could not be measured.
    pub speed: Option<Result<Speed, String>>,
    /// Counters of this host and of the other host after all measurements.
    pub after: Option<[Vec<counters::Counter>; 2]>,
}

/// A measured transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes of payload.
    pub bytes: u64,
    /// Duration of the transfer in microseconds.
    pub micros: u64,
    /// The medium, as reports name it: `tcp`, `rdma`, `rdma-software`.
    pub medium: String,
    /// Maximum number of networks with connections at once. Not all of them may have carried payload.
    pub rails: usize,
    /// What the transfer waited for longest: `source`, `cpu`, `credits`, `wire`, `sink`; empty if it did not wait.
    pub limiter: String,
    /// Whether the data went through the launcher's connection.
    pub is_tunneled: bool,
    /// Whether the data was encrypted.
    pub is_encrypted: bool,
}

impl Speed {
    /// The rate in Mbit/s.
    pub fn mbps(&self) -> u64 {
        self.bytes.saturating_mul(8).checked_div(self.micros).unwrap_or(0)
    }
}
