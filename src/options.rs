//! What the options of a transfer are: parsed from the command line, sent whole to the ends, and asked by who needs them.

use std::ops::RangeInclusive;

use clap::{Args, ValueEnum};
use minicbor::{Decode, Encode};
use rd_proto::control::{Encrypt, Policy};
use rd_proto::frame::CHUNK_BYTES_MAX;
use rd_proto::session::{CHUNK_BYTES_MIN, RDMA_LANE_FIRST};

/// The default size of the pool, in bytes.
pub const BUFFER_BYTES_DEFAULT: u64 = 32 << 20;

/// Fewest buffers that still let reading, sealing, sending and acknowledging overlap.
const BUFFERS_MIN: u64 = 4;

/// The largest pool: what the span of sequences can keep busy.
const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Transport {
    /// RDMA where both ends have an adapter that reaches the other, else TCP
    #[default]
    #[n(0)]
    Auto,
    /// RDMA only; fail where there is none
    #[n(1)]
    Rdma,
    /// RDMA, software devices (rxe, siw) included, else TCP
    #[n(2)]
    PreferRdma,
    /// TCP only
    #[n(3)]
    Tcp,
}

/// `--encrypt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Encryption {
    /// On TCP between different hosts; not on RDMA
    #[default]
    #[n(0)]
    Auto,
    /// On every transport
    #[n(1)]
    Always,
    /// On none; data is still checked against accidents
    #[n(2)]
    Never,
}

/// `--compress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Compress {
    /// Send data as it is
    #[default]
    #[n(0)]
    Off,
    /// LZ4 while the link is the bottleneck and the data shrinks
    #[n(1)]
    Auto,
    /// LZ4
    #[n(2)]
    Lz4,
    /// Zstandard, level 1
    #[n(3)]
    Zstd,
}

/// Options of a transfer.
#[derive(Args, Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[command(next_help_heading = "Transfer")]
pub struct TransferOptions {
    /// Which transport carries the data
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    #[n(0)]
    pub transport: Transport,
    /// Whether the data is encrypted
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    #[n(1)]
    pub encrypt: Encryption,
    /// How the sender compresses the data; ignored by a receiver
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    #[n(2)]
    pub compress: Compress,
    /// Connections to spread the data over, 1 to 16; the lower of the two ends' values applies [default: 2 on TCP and
    /// software RDMA, 1 on RDMA adapters]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(RDMA_LANE_FIRST)))]
    #[n(3)]
    pub lanes: Option<u8>,
    /// Memory for data in flight at this end; a larger buffer smooths a source or sink that works in bursts
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "32M")]
    #[n(4)]
    pub buffer: u64,
    /// Largest chunk, the unit that is sent, checked and sent again: 4K to 1M; the lower of the two ends' values applies
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk, default_value = "1M")]
    #[n(8)]
    pub chunk: u32,
    /// Ports that the listening end may use: for RDMA, and for TCP where no port is given
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    #[n(5)]
    pub port_range: Option<RangeInclusive<u16>>,
    /// Seconds to wait for a lost connection to come back, 0 to give up at once; the lower of the two ends' values applies
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    #[n(6)]
    pub reconnect: u32,
    /// Most bytes a second that the sender reads, such as 200M; ignored by a receiver
    #[arg(long, value_name = "RATE", value_parser = parse_bytes)]
    #[n(7)]
    pub bwlimit: Option<u64>,
}

impl Default for TransferOptions {
    /// Those of a command line that names none.
    fn default() -> Self {
        Self {
            transport: Transport::Auto,
            encrypt: Encryption::Auto,
            compress: Compress::Off,
            lanes: None,
            buffer: BUFFER_BYTES_DEFAULT,
            chunk: CHUNK_BYTES_MAX as u32,
            port_range: None,
            reconnect: 30,
            bwlimit: None,
        }
    }
}

impl TransferOptions {
    /// The transports that the session may use.
    pub fn policy(&self) -> Policy {
        match self.transport {
            Transport::Auto => Policy::Auto,
            Transport::Rdma => Policy::Rdma,
            Transport::PreferRdma => Policy::PreferRdma,
            Transport::Tcp => Policy::Tcp,
        }
    }

    /// Whether the session encrypts.
    pub fn encrypt(&self) -> Encrypt {
        match self.encrypt {
            Encryption::Auto => Encrypt::Auto,
            Encryption::Always => Encrypt::Always,
            Encryption::Never => Encrypt::Never,
        }
    }

    /// Lanes asked for; 0 leaves it to the other end.
    pub fn lanes(&self) -> u8 {
        self.lanes.unwrap_or(0)
    }

    /// Whether a command line could say this: a peer may send anything.
    pub fn is_valid(&self) -> bool {
        self.lanes.is_none_or(|lanes| (1..=RDMA_LANE_FIRST).contains(&u16::from(lanes)))
            && is_chunk(self.chunk.into())
            && self.buffer > 0
            && self.bwlimit != Some(0)
    }

    /// The largest chunk that was asked for, that leaves enough buffers, and that the rate limit allows.
    pub fn chunk_bytes(&self, part_bytes: impl Fn(usize) -> usize) -> usize {
        let largest = (self.buffer / BUFFERS_MIN).min(self.chunk.into()) as usize;
        let whole_pages = largest / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN;
        part_bytes(whole_pages.max(CHUNK_BYTES_MIN))
    }

    /// Number of buffers for chunks of this size.
    pub fn buffers(&self, chunk_bytes: usize) -> u32 {
        (self.buffer.min(BUFFER_BYTES_MAX) / chunk_bytes as u64).clamp(BUFFERS_MIN, 4096) as u32
    }
}

/// Whether a chunk can be of this size.
fn is_chunk(bytes: u64) -> bool {
    (CHUNK_BYTES_MIN as u64..=CHUNK_BYTES_MAX as u64).contains(&bytes)
}

/// The size of a chunk, in bytes.
fn parse_chunk(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).ok().filter(|_| is_chunk(bytes)).ok_or_else(|| "a chunk has 4K to 1M".to_owned())
}

/// A number of bytes: `K M G T` and `KiB MiB …` are powers of 1024, `kB MB GB TB` powers of 1000.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        "T" | "t" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err("give a number with K, M, G, T, or kB, MB, GB, TB".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    let bytes = number * factor as f64;
    if (1.0..=u64::MAX as f64).contains(&bytes) { Ok(bytes as u64) } else { Err("out of range".to_owned()) }
}

/// Two ports, first and last.
///
/// # Errors
///
/// How they are written.
pub fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let usage = || "give FIRST-LAST, two ports from 1 to 65535".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(usage)?;
    let (first, last): (u16, u16) = (first.parse().map_err(|_| usage())?, last.parse().map_err(|_| usage())?);
    if first == 0 || first > last { Err(usage()) } else { Ok(first..=last) }
}

const _: () = assert!(BUFFER_BYTES_DEFAULT < 64 << 20, "the default pool stays under 64 MiB");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("64K"), Ok(65536));
        assert_eq!(parse_bytes("10m"), Ok(10 << 20));
        assert_eq!(parse_bytes("1.5M"), Ok(3 << 19));
        assert_eq!(parse_bytes("2GB"), Ok(2_000_000_000));
        for bad in ["", "M", "0", "-1", "1X", "1e9", "99999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_no_command_line_can_say_is_refused() {
        let valid = TransferOptions { lanes: Some(16), bwlimit: Some(1), ..TransferOptions::default() };
        assert!(valid.is_valid() && TransferOptions::default().is_valid());
        for bytes in [0, 4095, (1 << 20) + 1, u32::MAX] {
            assert!(!TransferOptions { chunk: bytes, ..valid.clone() }.is_valid(), "{bytes}");
        }
        for lanes in [0, 17, u8::MAX] {
            assert!(!TransferOptions { lanes: Some(lanes), ..valid.clone() }.is_valid(), "{lanes}");
        }
        assert!(!TransferOptions { buffer: 0, ..valid.clone() }.is_valid());
        assert!(!TransferOptions { bwlimit: Some(0), ..valid }.is_valid());
    }

    #[test]
    fn the_defaults_are_those_of_the_command_line() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            transfer: TransferOptions,
        }
        let parsed = <Only as clap::Parser>::try_parse_from(["rdcp"]).expect("no option is needed");
        assert_eq!(parsed.transfer, TransferOptions::default());
    }

    #[test]
    fn port_ranges() {
        assert_eq!(parse_ports("7000-7010"), Ok(7000..=7010));
        for bad in ["", "7000", "0-1", "2-1", "1-65536", "a-b"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }
}
