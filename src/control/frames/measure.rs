//! What an agent has measured.

use minicbor::{Decode, Encode};

/// How fast storage is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Storage {
    /// Blocks in a million seconds.
    #[n(0)]
    pub micro_iops: u64,
    /// Bytes of each.
    #[n(1)]
    pub bytes: u64,
    /// Blocks on their way.
    #[n(2)]
    pub depth: u32,
    /// Past the page cache.
    #[n(3)]
    pub direct: bool,
}
