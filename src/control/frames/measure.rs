//! Results of an agent's measurements.

use minicbor::{Decode, Encode};

/// Speed of storage.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Storage {
    /// Blocks per million seconds.
    #[n(0)]
    pub micro_iops: u64,
    /// Size of each block in bytes.
    #[n(1)]
    pub bytes: u64,
    /// Number of blocks in flight.
    #[n(2)]
    pub depth: u32,
    /// Whether the page cache was bypassed.
    #[n(3)]
    pub direct: bool,
}
