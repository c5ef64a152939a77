//! Measuring: what hosts are like, what is wrong with them, and how they reach each other.
//!
//! Three steps that know nothing of each other. *Facts* are gathered on each host ([`gather`]), by an agent as well, and
//! are values without a verdict. *Checks* are functions from facts to findings; they do no I/O, so that a recorded tree of
//! `/sys` and `/proc` tests each of them. *Words* for a finding, and the command that fixes it, are made in
//! `cli::doctor`.
//!
//! * `root`: the kernel's files about its host. `facts`: what is known of a host. `gather`: finds it out.
//! * `finding`: what a check can say. `checks`: the checks of one host, and of the way between two.
//! * `counters`: what adapters have counted, and what it says. `matrix`: which pairs of many hosts are measured, and which of
//!   them, or which hosts, are slow.
//! * `probe`: opens ports to be tried, and tries those of another host.
//!
//! Beside that, what is measured and what is made of it, numbers in, tables and drawings out:
//!
//! * `report`: the numbers, as text and JSON. `plot`: as drawings.
//! * `model`: an adapter's on-board cache, and what it does to many connections.
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

pub use checks::{compare, examine};
pub use facts::Facts;
pub use finding::{Finding, Level, What};

use minicbor::{Decode, Encode};
use probe::Attempt;

/// What one host tells another, as it travels.
pub fn encode(told: &impl Encode<()>) -> Vec<u8> {
    minicbor::to_vec(told).expect("a vector takes everything")
}

/// As another host sent it; `None` if the bytes are none.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Option<T> {
    minicbor::decode(bytes).ok()
}

/// What is known of the way between two hosts. A part that was not looked at is absent, and then nothing is said of it.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// This host.
    pub here: Facts,
    /// The other.
    pub there: Facts,
    /// Both are one machine.
    pub is_one_machine: bool,
    /// How long it took until the agent there had answered, in microseconds.
    pub agent_micros: u64,
    /// What came of connecting to ports that were opened there; an error is why none could be.
    pub to_there: Option<Result<Vec<Attempt>, String>>,
    /// The same from there to ports that were opened here.
    pub to_here: Option<Result<Vec<Attempt>, String>>,
    /// How fast it went.
    pub speed: Option<Result<Speed, String>>,
    /// What both had counted when all was done.
    pub after: Option<[Vec<counters::Counter>; 2]>,
}

/// A measured transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Payload.
    pub bytes: u64,
    /// In this time.
    pub micros: u64,
    /// As the reports name it: `tcp`, `rdma`, `rdma-software`.
    pub medium: String,
    /// What took the most of the time that was waited: `source`, `cpu`, `credits`, `wire`, `sink`; empty if nothing did.
    pub limiter: String,
    /// It went through the launcher's connection.
    pub is_tunneled: bool,
    /// It was encrypted.
    pub is_encrypted: bool,
}

impl Speed {
    /// In Mbit/s.
    pub fn mbps(&self) -> u64 {
        self.bytes.saturating_mul(8).checked_div(self.micros).unwrap_or(0)
    }
}
