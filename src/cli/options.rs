//! Options that all commands that move data share; one definition for parsing, help and manual.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rd_proto::control::{Encrypt, Policy};
use rd_proto::frame::CHUNK_BYTES_MAX;
use rd_proto::session::{CHUNK_BYTES_MIN, RDMA_LANE_FIRST};

use super::color::ColorOption;
use crate::control::frames::Settings;
use crate::engine::work::CompressMode;

/// Bytes of the pool where nobody asks for another size.
pub(crate) const BUFFER_BYTES_DEFAULT: u64 = 32 << 20;

/// Fewest buffers that still let reading, sealing, sending and acknowledging overlap.
const BUFFERS_MIN: u64 = 4;

/// The largest pool: what the span of sequences can keep busy.
const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// RDMA where both ends have an adapter that reaches the other, else TCP
    #[default]
    Auto,
    /// RDMA only; fail where there is none
    Rdma,
    /// RDMA, software devices (rxe, siw) included, else TCP
    PreferRdma,
    /// TCP only
    Tcp,
}

/// `--encrypt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// On TCP between different hosts; not on RDMA
    #[default]
    Auto,
    /// On every transport
    Always,
    /// On none; data is still checked against accidents
    Never,
}

/// `--compress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// Send data as it is
    #[default]
    Off,
    /// LZ4 while the link is the bottleneck and the data shrinks
    Auto,
    /// LZ4
    Lz4,
    /// Zstandard, level 1
    Zstd,
}

/// Options of a transfer.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Transfer")]
pub struct TransferOptions {
    /// Which transport carries the data
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub transport: Transport,
    /// Whether the data is encrypted
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub encrypt: Encryption,
    /// How the sender compresses the data; without effect at a receiver
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub compress: Compress,
    /// Connections to spread the data over, 1 to 16; the smaller wish counts [default: 2 on TCP and software
    /// RDMA, 1 on RDMA adapters]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(RDMA_LANE_FIRST)))]
    pub lanes: Option<u8>,
    /// Memory for data on its way at this end; more of it smooths a source or sink that works in bursts
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "32M")]
    pub buffer: u64,
    /// Most bytes of a chunk, the unit that is sent, checked and repeated: 4K to 1M; the smaller wish counts
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk, default_value = "1M")]
    pub chunk: u32,
    /// Ports that the listening end may take: for RDMA, and for TCP where none is given
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    pub port_range: Option<RangeInclusive<u16>>,
    /// Seconds to wait for a lost link to come back; 0 gives up at once. The smaller wish of both ends counts
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    pub reconnect: u32,
    /// Most bytes a second that the sender reads, such as 200M; without effect at a receiver
    #[arg(long, value_name = "RATE", value_parser = parse_bytes)]
    pub bwlimit: Option<u64>,
}

/// Options of what is told.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct ReportOptions {
    /// Print which way the data goes, how files were read and written, what limited, and the bandwidth
    #[arg(short, long, overrides_with = "verbose")]
    pub verbose: bool,
    /// Print errors only, also with -v and --progress
    #[arg(short, long, overrides_with = "quiet")]
    pub quiet: bool,
    /// Show progress and what limits it: a bar on a terminal, where that is the default, else a line every 5 seconds
    #[arg(long, overrides_with = "progress")]
    pub progress: bool,
    /// Report as JSON, an object a line, to FILE or else to standard output where that carries no data
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// The same, to the open file descriptor FD
    #[arg(long, value_name = "FD", conflicts_with = "json", allow_negative_numbers = true)]
    pub json_fd: Option<i32>,
    /// `--color`.
    #[command(flatten)]
    pub color: ColorOption,
}

/// Options that say where KEY comes from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Key")]
pub struct KeyOptions {
    /// Read KEY from the first line of FILE; KEY is then not among the arguments
    #[arg(long, value_name = "FILE", conflicts_with = "key_fd")]
    pub key_file: Option<PathBuf>,
    /// Read KEY from the first line of the open file descriptor FD; KEY is then not among the arguments
    #[arg(long, value_name = "FD", allow_negative_numbers = true)]
    pub key_fd: Option<i32>,
}

impl KeyOptions {
    /// KEY is none of the positional arguments.
    pub fn is_elsewhere(&self) -> bool {
        self.key_file.is_some() || self.key_fd.is_some()
    }
}

impl ReportOptions {
    /// The same, where `-q` counts wherever it stands, as with scp and rsync.
    pub fn settled(self) -> Self {
        Self { verbose: self.verbose && !self.quiet, progress: self.progress && !self.quiet, ..self }
    }
}

impl TransferOptions {
    /// As the session knows it.
    pub fn policy(&self) -> Policy {
        match self.transport {
            Transport::Auto => Policy::Auto,
            Transport::Rdma => Policy::Rdma,
            Transport::PreferRdma => Policy::PreferRdma,
            Transport::Tcp => Policy::Tcp,
        }
    }

    /// As the session knows it.
    pub fn encrypt(&self) -> Encrypt {
        match self.encrypt {
            Encryption::Auto => Encrypt::Auto,
            Encryption::Always => Encrypt::Always,
            Encryption::Never => Encrypt::Never,
        }
    }

    /// As the engine knows it.
    pub fn compress(&self) -> CompressMode {
        match self.compress {
            Compress::Off => CompressMode::Off,
            Compress::Auto => CompressMode::Auto,
            Compress::Lz4 => CompressMode::Lz4,
            Compress::Zstd => CompressMode::Zstd,
        }
    }

    /// Lanes asked for; 0 leaves it to the other end.
    pub fn lanes(&self) -> u8 {
        self.lanes.unwrap_or(0)
    }

    /// As an agent is told them.
    pub fn settings(&self) -> Settings {
        Settings {
            transport: self.transport as u8,
            encrypt: self.encrypt as u8,
            compress: self.compress as u8,
            lanes: self.lanes,
            buffer_bytes: self.buffer,
            chunk_bytes: Some(self.chunk),
            ports: self.port_range.as_ref().map(|ports| (*ports.start(), *ports.end())),
            reconnect_s: self.reconnect,
            bwlimit: self.bwlimit,
        }
    }

    /// As an agent was told them; `None` where a value is none that a command line could have had.
    pub fn from_settings(settings: &Settings) -> Option<Self> {
        let lanes_allowed = settings.lanes.is_none_or(|lanes| (1..=RDMA_LANE_FIRST).contains(&u16::from(lanes)));
        let chunk = settings.chunk_bytes.unwrap_or(CHUNK_BYTES_MAX as u32);
        if !lanes_allowed || !is_chunk(chunk.into()) || settings.buffer_bytes == 0 || settings.bwlimit == Some(0) {
            return None;
        }
        Some(Self {
            transport: *Transport::value_variants().get(usize::from(settings.transport))?,
            encrypt: *Encryption::value_variants().get(usize::from(settings.encrypt))?,
            compress: *Compress::value_variants().get(usize::from(settings.compress))?,
            lanes: settings.lanes,
            buffer: settings.buffer_bytes,
            chunk,
            port_range: settings.ports.map(|(first, last)| first..=last),
            reconnect: settings.reconnect_s,
            bwlimit: settings.bwlimit,
        })
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
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
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

pub(crate) fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let usage = || "give FIRST-LAST, two ports from 1 to 65535".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(usage)?;
    let (first, last): (u16, u16) = (first.parse().map_err(|_| usage())?, last.parse().map_err(|_| usage())?);
    if first == 0 || first > last { Err(usage()) } else { Ok(first..=last) }
}

/// PORT as a positional argument.
///
/// # Errors
///
/// A sentence, if it is no number from 0 to 65535.
pub fn parse_port(text: &OsString) -> Result<u16, String> {
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("PORT must be a number from 0 to 65535, not {:?}", crate::fault::escaped(text)))
}

const _: () = assert!(BUFFER_BYTES_DEFAULT < 64 << 20, "the default pool stays under 64 MiB");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cli::definitions;
    use crate::cli::habits::{Here, LETTERS, Number};

    /// What a letter or word may mean in one command that it does not in the others.
    const EXCEPTIONS: &[(&str, &str, &str)] = &[
        ("rdpipe", "-p", "rdpipe's own from the beginning: the port that it listens on"),
        ("rdpipe", "-H", "rdpipe's own from the beginning: what the hosts next to this one call it"),
        ("rddoctor", "--json", "no data and nothing else goes to its standard output, so it takes no FILE"),
    ];

    /// A letter stands for one word, a word has one letter and one kind of value, and rdcp takes no letter of another
    /// command for something of scp's or rsync's.
    #[test]
    fn a_letter_or_word_means_the_same_in_all_commands() {
        let mut meanings: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut used = Vec::new();
        for command in definitions() {
            let name = command.get_name();
            for option in command.get_arguments().filter(|option| !option.is_positional()) {
                let letter = option.get_short().map(|letter| format!("-{letter}"));
                let word = option.get_long().map(|word| format!("--{word}"));
                let takes = if option.get_action().takes_values() { option.get_value_names() } else { None };
                let meaning = format!("{letter:?} {word:?} {takes:?}");
                for form in letter.iter().chain(&word) {
                    if let Some(known) = EXCEPTIONS.iter().position(|(of, what, _)| (*of, *what) == (name, form)) {
                        used.push(known);
                        continue;
                    }
                    let (first, known) =
                        meanings.entry(form.clone()).or_insert_with(|| (name.to_owned(), meaning.clone()));
                    assert_eq!(*known, meaning, "{form} in {first} and in {name}");
                }
                let Some(letter) = option.get_short() else { continue };
                let known = LETTERS.iter().find(|known| known.letter == letter).map(|known| known.here);
                let is_own = matches!(known, Some(Here::Own | Here::OwnValue | Here::Number(Number::Port)));
                let is_exception = EXCEPTIONS.iter().any(|(of, what, _)| (*of, *what) == (name, &format!("-{letter}")));
                assert!(is_own || is_exception, "-{letter} of {name} is {known:?} in rdcp");
            }
        }
        used.sort_unstable();
        assert_eq!(used, (0..EXCEPTIONS.len()).collect::<Vec<_>>(), "each exception is one");
    }

    #[test]
    fn quiet_counts_wherever_it_stands() {
        use clap::Parser;
        for line in ["rdcp -q -v --progress a b", "rdcp -v -v -v -q a b", "rdcp --progress -q a b"] {
            let arguments = crate::cli::rdcp::CopyArguments::try_parse_from(line.split(' ')).expect(line);
            let report = arguments.report.settled();
            assert_eq!((report.quiet, report.verbose, report.progress), (true, false, false), "{line}");
        }
    }

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
    fn settings_survive_the_way_to_an_agent() {
        let options = TransferOptions {
            transport: Transport::PreferRdma,
            encrypt: Encryption::Never,
            compress: Compress::Zstd,
            lanes: Some(3),
            buffer: 8 << 20,
            chunk: 64 << 10,
            port_range: Some(7000..=7009),
            reconnect: 7,
            bwlimit: Some(1),
        };
        let settings = options.settings();
        let back = TransferOptions::from_settings(&settings).expect("all of them possible");
        assert_eq!(back.settings(), settings);
        assert_eq!(
            (back.transport, back.encrypt, back.compress),
            (options.transport, options.encrypt, options.compress)
        );
        assert!(TransferOptions::from_settings(&Settings { transport: 4, ..settings.clone() }).is_none());
        assert!(TransferOptions::from_settings(&Settings { lanes: Some(0), ..settings.clone() }).is_none());
        for bytes in [0, 4095, (1 << 20) + 1, u32::MAX] {
            let settings = Settings { chunk_bytes: Some(bytes), ..settings.clone() };
            assert!(TransferOptions::from_settings(&settings).is_none(), "{bytes}");
        }
    }

    #[test]
    fn port_ranges() {
        assert_eq!(parse_ports("7000-7010"), Ok(7000..=7010));
        for bad in ["", "7000", "0-1", "2-1", "1-65536", "a-b"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_pool_is_the_documented_one() {
        assert_eq!(parse_bytes("32M"), Ok(BUFFER_BYTES_DEFAULT));
    }
}
