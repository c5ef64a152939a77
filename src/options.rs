//! Options that concern both ends: parsed from the command line, sent whole to the ends, and queried where they matter.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rd_proto::control::{Encrypt, Policy};
use rd_proto::frame::CHUNK_BYTES_MAX;
use rd_proto::session::{CHUNK_BYTES_MIN, RDMA_LANE_FIRST};
use rd_proto::tree::PATH_BYTES_MAX;

mod chmod;
mod generations;
mod rails;
mod rules;
mod sizes;

pub use chmod::Chmod;
pub use generations::{Generations, LATEST, Session};
pub use rails::RailChoice;
pub(crate) use rules::read_bounded;
pub use rules::{Rule, Rules};
pub use sizes::Sizes;

/// Default size of the pool, in bytes, and its minimum if little memory is free.
pub const BUFFER_BYTES_DEFAULT: u64 = 32 << 20;
const BUFFER_BYTES_DEFAULT_MIN: u64 = 4 << 20;

/// Minimum number of buffers with which reading, sealing, sending and acknowledging still overlap, and the maximum that
/// the span of sequences can keep busy.
const BUFFERS_MIN: u64 = 4;
const BUFFERS_MAX: u64 = 4096;

/// Memory for a pool if the command line sets no limit: this fraction (1/8) of the free memory, and for a long line at
/// most this much.
const MEMORY_PART: u64 = 8;
const MEMORY_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Transport {
    /// RDMA if both ends have adapters that reach each other, and a round trip takes less than 5 ms; else TCP
    #[default]
    #[n(0)]
    Auto,
    /// RDMA only; fail if there is none
    #[n(1)]
    Rdma,
    /// RDMA, also on software devices (rxe, siw), else TCP
    #[n(2)]
    PreferRdma,
    /// TCP only
    #[n(3)]
    Tcp,
}

impl Transport {
    /// Returns the transports that a session may use.
    pub fn policy(self) -> Policy {
        match self {
            Self::Auto => Policy::Auto,
            Self::Rdma => Policy::Rdma,
            Self::PreferRdma => Policy::PreferRdma,
            Self::Tcp => Policy::Tcp,
        }
    }
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
    /// Never; only accidental corruption is detected
    #[n(2)]
    Never,
}

/// `--compress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Compress {
    /// No compression
    #[default]
    #[n(0)]
    Off,
    /// LZ4 or Zstandard, as strong as the line rate allows; uncompressed if that is faster or the data does not shrink
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
    /// Transport for the data
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    #[n(0)]
    pub transport: Transport,
    /// When to encrypt the data
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    #[n(1)]
    pub encrypt: Encryption,
    /// How the sender compresses the data; ignored by a receiver
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    #[n(2)]
    pub compress: Compress,
    /// Number of connections, 1 to 16; the lower of the two ends' values applies [default: 2 on TCP, more if they raise
    /// the rate; 1 on RDMA]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(RDMA_LANE_FIRST)))]
    #[n(3)]
    pub lanes: Option<u8>,
    /// Networks to spread the data over: a number, all, interfaces IF,IF, or auto (adds networks while each adds 10%;
    /// none for unencrypted TCP, or with --lanes)
    #[arg(long, value_name = "WHICH", value_parser = RailChoice::parse, default_value = "auto")]
    #[n(11)]
    pub rails: RailChoice,
    /// Memory for data in flight at this end, at most 4096 times --chunk; a larger buffer helps a bursty source or
    /// destination [default: 32M, less if little memory is free, more on high-latency links: see --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    #[n(4)]
    pub buffer: Option<u64>,
    /// Maximum size of the buffer on high-latency links, at most 4096 times --chunk [default: 1/8 of free memory, at
    /// most 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    #[n(10)]
    pub memory: Option<u64>,
    /// Maximum chunk size, 4K to 1M: the unit sent, checked and sent again; the lower of the two ends' values applies
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk, default_value = "1M")]
    #[n(8)]
    pub chunk: u32,
    /// Ports that the listening end may use: for RDMA, and for TCP if no port is given
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    #[n(5)]
    pub port_range: Option<RangeInclusive<u16>>,
    /// Seconds to wait for a lost connection to return, 0 to give up at once; the lower of the two ends' values applies
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    #[n(6)]
    pub reconnect: u32,
    /// Send at most this many bytes per second, before compression, such as 200M; ignored by a receiver
    #[arg(long, value_name = "RATE", value_parser = parse_bytes)]
    #[n(7)]
    pub bwlimit: Option<u64>,
    /// Whether a caller waits for answers. Data of a stream is then sent as soon as no more is ready, instead of after
    /// a longer pause.
    #[arg(skip)]
    #[n(9)]
    pub prompt: bool,
}

impl Default for TransferOptions {
    /// Returns the options of a command line that names none.
    fn default() -> Self {
        static DEFAULT: LazyLock<TransferOptions> = LazyLock::new(of_no_words);
        DEFAULT.clone()
    }
}

/// Returns the options of a command line without words: only the attributes of the options state their defaults.
fn of_no_words<T: Args>() -> T {
    let matches = T::augment_args(clap::Command::new("options")).try_get_matches_from([""]);
    matches.and_then(|matches| T::from_arg_matches(&matches)).expect("none has to be given")
}

impl TransferOptions {
    /// Returns when a session encrypts its data.
    pub fn encrypt(&self) -> Encrypt {
        match self.encrypt {
            Encryption::Auto => Encrypt::Auto,
            Encryption::Always => Encrypt::Always,
            Encryption::Never => Encrypt::Never,
        }
    }

    /// Returns the number of lanes requested; 0 leaves the number to the other end.
    pub fn lanes(&self) -> u8 {
        self.lanes.unwrap_or(0)
    }

    /// Reports whether a command line could express these options. Checked because a peer may send anything.
    pub fn is_valid(&self) -> bool {
        self.lanes.is_none_or(|lanes| (1..=RDMA_LANE_FIRST).contains(&u16::from(lanes)))
            && self.rails.is_valid()
            && is_chunk(self.chunk.into())
            && self.buffer != Some(0)
            && self.memory != Some(0)
            && self.bwlimit != Some(0)
    }

    /// Returns the size of the largest chunk that was asked for and leaves enough buffers. A rate limit only shortens
    /// what is read into a buffer, because a record of a tree must fit.
    pub fn chunk_bytes(&self) -> usize {
        let largest = (self.first_bytes() / BUFFERS_MIN).min(self.chunk.into()) as usize;
        let whole_pages = largest / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN;
        whole_pages.max(CHUNK_BYTES_MIN)
    }

    /// Returns the initial size of the buffer, in bytes.
    fn first_bytes(&self) -> u64 {
        self.buffer.unwrap_or(BUFFER_BYTES_DEFAULT.min(self.memory.unwrap_or(u64::MAX)))
    }

    /// Returns two numbers of buffers for chunks of this size: the initial number and the maximum. `available_bytes` is
    /// the memory that is free; `None` if that is not known.
    pub fn buffers(&self, chunk_bytes: usize, available_bytes: Option<u64>) -> [u32; 2] {
        let mut first = self.first_bytes();
        let free = available_bytes.map(part_of_memory);
        if let Some(free) = free.filter(|_| self.shares_memory()) {
            first = first.min(free.max(BUFFER_BYTES_DEFAULT_MIN));
        }
        let free = free.unwrap_or(0).min(MEMORY_BYTES_DEFAULT_MAX);
        let most = if self.buffer.is_some() { first } else { self.memory.unwrap_or(free).max(first) };
        [first, most].map(|bytes| (bytes / chunk_bytes as u64).clamp(BUFFERS_MIN, BUFFERS_MAX) as u32)
    }

    /// Reports whether the command line leaves open how much memory the buffer may have.
    pub fn shares_memory(&self) -> bool {
        self.buffer.is_none() && self.memory.is_none()
    }
}

/// Returns how much of the memory that is free now one session may have for a long line. Memory that other sessions
/// have taken by then is not free, so that all sessions together never take all of it.
pub fn part_of_memory(available_bytes: u64) -> u64 {
    available_bytes / MEMORY_PART
}

/// `--verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Encode, Decode)]
#[cbor(index_only)]
pub enum Verify {
    /// Data stored on the disk
    #[n(0)]
    Disk,
}

/// Which symbolic links stand for what they lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Followed {
    /// All of them.
    #[n(0)]
    pub all: bool,
    /// Those that lead to directories.
    #[n(1)]
    pub to_directories: bool,
    /// Those that are absolute or lead outside SRC.
    #[n(2)]
    pub leading_out: bool,
}

/// What a list of paths (`--files-from`, `-R`) names. The receiver, which does not have the list, is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Listed {
    /// Entries of the root. No others are known to be gone.
    #[n(0)]
    Part,
    /// The root itself, and maybe entries of it.
    #[n(1)]
    Root,
}

/// Which entries of a tree are copied, and how they are written. A field that a `--no-` option clears, such as `mode`,
/// is true by default.
#[derive(Args, Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[command(next_help_heading = "Files")]
pub struct TreeOptions {
    /// Copy directories with their contents
    // Without this option a directory is refused, and a symbolic link named as source is followed.
    #[arg(short, long)]
    #[n(0)]
    pub recursive: bool,
    /// Rules of `--exclude` and `--include`, also from files.
    #[command(flatten)]
    #[n(10)]
    pub rules: Rules,
    /// Do not preserve modes and ACLs; use those of new files
    #[arg(long = "no-mode", action = ArgAction::SetFalse)]
    #[n(1)]
    pub mode: bool,
    /// Do not preserve owner (root only) and group (root, or a member of the group)
    #[arg(long = "no-owner", action = ArgAction::SetFalse)]
    #[n(2)]
    pub owner: bool,
    /// Do not preserve modification and access times
    #[arg(long = "no-times", action = ArgAction::SetFalse)]
    #[n(3)]
    pub times: bool,
    /// Do not preserve extended attributes and ACLs
    // Only root can preserve those of `security.` and `trusted.`.
    #[arg(long = "no-xattrs", action = ArgAction::SetFalse)]
    #[n(4)]
    pub xattrs: bool,
    /// Copy hard links as separate files
    #[arg(long = "no-hard-links", action = ArgAction::SetFalse)]
    #[n(5)]
    pub hard_links: bool,
    /// Write holes of sparse files as zeros
    #[arg(long = "no-sparse", action = ArgAction::SetFalse)]
    #[n(6)]
    pub sparse: bool,
    /// Skip symbolic links
    #[arg(long = "no-symlinks", action = ArgAction::SetFalse)]
    #[n(12)]
    pub symlinks: bool,
    /// Skip FIFOs, sockets and devices
    #[arg(long = "no-specials", action = ArgAction::SetFalse)]
    #[n(7)]
    pub specials: bool,
    /// Skip directories that have only directories in and below them; with --delete, one whose contents are not known
    /// (unreadable, or a mount point with -x) is copied without them
    #[arg(short = 'm', long)]
    #[n(66)]
    pub prune_empty_dirs: bool,
    /// Do not preserve the times of directories
    #[arg(long)]
    #[n(67)]
    pub omit_dir_times: bool,
    /// Create all missing directories above DST
    #[arg(long)]
    #[n(68)]
    pub mkpath: bool,
    /// Do not cross file system boundaries; mount points are copied as empty directories, what is listed is copied
    /// wherever it is mounted, and --delete leaves what is mounted in DST
    #[arg(short = 'x', long)]
    #[n(40)]
    pub one_file_system: bool,
    /// Copy the targets of symbolic links, not the links
    #[arg(short = 'L', long)]
    #[n(41)]
    pub copy_links: bool,
    /// Copy the targets of symbolic links to directories, not the links
    #[arg(short = 'k', long)]
    #[n(42)]
    pub copy_dirlinks: bool,
    /// Copy the targets of links that are absolute or lead outside SRC, not the links
    #[arg(long)]
    #[n(43)]
    pub copy_unsafe_links: bool,
    /// Skip links that are absolute or lead outside SRC
    #[arg(long)]
    #[n(44)]
    pub safe_links: bool,
    /// Change the modes of copies, such as D755,F644 or u+rwX,go-w; may be repeated
    #[arg(long, value_name = "CHANGES", value_parser = parse_chmod)]
    #[n(45)]
    pub chmod: Vec<String>,
    /// Give all copies this owner (root only), group (root, or a member of the group), or both
    #[arg(long, value_name = "USER:GROUP", value_parser = parse_chown)]
    #[n(46)]
    pub chown: Option<String>,
    /// Preserve numeric user and group IDs instead of mapping names to IDs at the destination
    #[arg(long)]
    #[n(47)]
    pub numeric_ids: bool,
    /// Write into existing files, also into own ones that are read-only, instead of replacing them once all data has
    /// arrived
    // A file whose copy stops in the middle is then broken.
    #[arg(long)]
    #[n(8)]
    pub in_place: bool,
    /// Append to large files shorter than the source, after comparing the existing part by digests; skip files that are
    /// not shorter
    // Data that differs is written in place as well.
    #[arg(long, requires = "sync")]
    #[n(50)]
    pub append_verify: bool,
    /// Flush each file, then its directory, to stable storage before the copy ends
    #[arg(long)]
    #[n(9)]
    pub fsync: bool,
    /// Read all data back from the disk and compare it before its file appears; not for copies within one host
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "disk"
    )]
    #[n(11)]
    pub verify: Option<Verify>,
    /// Copy only what differs at DST; files are compared by size and modification time
    #[arg(long)]
    #[n(20)]
    pub sync: bool,
    /// With --sync, compare files by contents, not by size and time
    // `-c` is defined in `cli/habits.rs`, because before a cipher it is scp's option.
    #[arg(long)]
    #[n(21)]
    pub checksum: bool,
    /// With --checksum, cache the digests of files in FILE (an absolute path at both ends), so that unchanged files are
    /// not read again [default FILE: ~/.cache/rdma-pipe/digests]
    // An empty value means the default.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = absolute_path(),
        requires = "checksum"
    )]
    #[n(63)]
    pub digest_cache: Option<ByteVec>,
    /// Treat times that differ by at most SECONDS as equal, as for FAT and some servers
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "sync")]
    #[n(22)]
    pub modify_window: u32,
    /// Which files are left out because of their sizes, and whether files are compared by size alone.
    #[command(flatten)]
    #[n(65)]
    pub sizes: Sizes,
    /// Delete entries that are not at the source, in each directory once its entries have been copied
    #[arg(long, requires = "sync")]
    #[n(23)]
    pub delete: bool,
    /// Delete at the end instead, and only if everything was copied; not if several hosts have SRC
    #[arg(long, requires = "sync")]
    #[n(58)]
    pub delete_after: bool,
    /// Delete excluded entries as well; implies --delete
    #[arg(long, requires = "sync")]
    #[n(24)]
    pub delete_excluded: bool,
    /// With --delete, delete at most N entries
    #[arg(long, value_name = "N", requires = "sync")]
    #[n(25)]
    pub max_delete: Option<u64>,
    /// Delete, or switch latest with --snapshot, even if a SRC is empty, which may be an unmounted disk
    #[arg(long, requires = "sync")]
    #[n(26)]
    pub force_empty: bool,
    /// Remove all but directories from SRC, including what DST already had, once the receiver has verified the whole
    /// copy without any failure; what has changed meanwhile is kept and reported
    #[arg(
        long,
        requires = "sync",
        conflicts_with_all = ["delete", "delete_after", "delete_excluded", "existing", "ignore_existing", "copy_links",
            "copy_dirlinks", "copy_unsafe_links"]
    )]
    #[n(69)]
    pub remove_source_files: bool,
    /// Skip entries that are missing at DST
    #[arg(long, requires = "sync")]
    #[n(27)]
    pub existing: bool,
    /// Leave existing entries unchanged; create new ones; a directory for which DST has a file fails
    #[arg(long, requires = "sync")]
    #[n(28)]
    pub ignore_existing: bool,
    /// Skip files that are newer at the destination
    #[arg(short, long, requires = "sync")]
    #[n(29)]
    pub update: bool,
    /// Options for earlier generations, and for files that have been moved.
    #[command(flatten)]
    #[n(53)]
    pub generations: Generations,
    /// Print a line for each changed entry, in the format of rsync's -i; with --sync, -v prints only the names
    #[arg(long)]
    #[n(30)]
    pub itemize_changes: bool,
    /// Whether nothing is changed and no contents are sent: `--dry-run` with `--sync`.
    #[arg(skip)]
    #[n(31)]
    pub dry_run: bool,
    /// Whether contents are not sent if digests prove that they are at the destination already. For copies without
    /// `--sync` to a destination that exists.
    #[arg(skip)]
    #[n(62)]
    pub compares: bool,
    /// Whether the receiving end counts the numbers that `--stats` prints.
    #[arg(skip)]
    #[n(61)]
    pub stats: bool,
    /// Whether the receiving end reports each entry with the digest of its contents: `--manifest`, `--manifest-b3sum`.
    #[arg(skip)]
    #[n(60)]
    pub manifest: bool,
    /// Move replaced or deleted entries to DIR, which is relative to DST, on the same file system and never deleted
    /// itself; not with --in-place or --append-verify, which write into existing files
    #[arg(
        long,
        value_name = "DIR",
        value_parser = path_parser(),
        requires = "sync",
        conflicts_with_all = ["in_place", "append_verify"]
    )]
    #[n(59)]
    pub backup_dir: Option<ByteVec>,
    /// With --relative or --files-from, do not change directories in DST that only lead to listed paths, even if one is
    /// a relative symbolic link to a directory within DST; missing ones are created without the source's metadata
    #[arg(long, requires = "sync")]
    #[n(64)]
    pub no_implied_dirs: bool,
    /// Whether only some entries of the root are copied, and not the root itself, which keeps its metadata.
    #[arg(skip)]
    #[n(48)]
    pub keeps_root: bool,
    /// Whether the root of the copy is the contents of SRC instead of SRC itself, so that DST becomes the same as SRC.
    #[arg(skip)]
    #[n(57)]
    pub contents: bool,
    /// Set if only listed paths are copied.
    #[arg(skip)]
    #[n(70)]
    pub listed: Option<Listed>,
}

impl Default for TreeOptions {
    /// Returns the options for all of a tree, with all its metadata.
    fn default() -> Self {
        static DEFAULT: LazyLock<TreeOptions> = LazyLock::new(|| TreeOptions { recursive: true, ..of_no_words() });
        DEFAULT.clone()
    }
}

impl TreeOptions {
    /// Reports whether files may be listed before their contents are sent.
    pub fn lists(&self) -> bool {
        self.sync || self.compares
    }

    /// Reports whether listed files are compared by contents, whatever their size and time say.
    pub fn compares_contents(&self) -> bool {
        self.checksum || !self.sync
    }

    /// Reports whether a copy over an earlier copy means the same if existing data is kept and only its metadata is
    /// set. This holds if files get the times of their sources, need not be proven to be on the disk, and are made anew
    /// in any case.
    pub fn may_compare(&self) -> bool {
        let is_plain = !self.sync && self.recursive && !self.in_place;
        is_plain && self.times && !self.syncs()
    }

    /// Reports whether the root may have entries at the source that do not come, because they are not listed. A
    /// generation is to have only what is listed.
    pub fn lists_some(&self) -> bool {
        self.listed == Some(Listed::Part) && self.generations.snapshot.is_none()
    }

    /// Returns which symbolic links below SRC stand for what they lead to.
    pub fn followed(&self) -> Followed {
        Followed { all: self.copy_links, to_directories: self.copy_dirlinks, leading_out: self.copy_unsafe_links }
    }

    /// Reports whether entries keep their times. Those of directories may be left out.
    pub fn keeps_times(&self, is_directory: bool) -> bool {
        self.times && !(is_directory && self.omit_dir_times)
    }

    /// Reports whether ACLs are preserved. They are a part of the mode.
    pub fn acls(&self) -> bool {
        self.mode && self.xattrs
    }

    /// Reports whether all data is read back from the disk and compared before its file is published.
    pub fn reads_back(&self) -> bool {
        self.verify == Some(Verify::Disk)
    }

    /// Reports whether each file is on stable storage before it is published, and each directory afterwards.
    pub fn syncs(&self) -> bool {
        self.fsync || self.reads_back()
    }
}

/// Returns a parser for a path of any bytes, in the form in which it is sent.
fn path_parser() -> impl TypedValueParser<Value = ByteVec> {
    OsStringValueParser::new().try_map(|text: OsString| match text.as_bytes() {
        b"" => Err("a path is required"),
        path if path.len() > PATH_BYTES_MAX => Err("the path is too long"),
        path => Ok(ByteVec::from(path.to_vec())),
    })
}

/// Returns a parser for a path that means the same at both ends, or for an empty path.
fn absolute_path() -> impl TypedValueParser<Value = ByteVec> {
    OsStringValueParser::new().try_map(|text: OsString| match text.as_bytes() {
        path if path.len() > PATH_BYTES_MAX => Err("the path is too long"),
        path if !path.is_empty() && !path.starts_with(b"/") => Err("give an absolute path: it is used at both ends"),
        path => Ok(ByteVec::from(path.to_vec())),
    })
}

/// Checks `--chmod`. The sender parses the text again, with its own umask.
fn parse_chmod(text: &str) -> Result<String, &'static str> {
    Chmod::parse(text, 0).map(|_| text.to_owned())
}

/// Checks `--chown`. Only the receiver can look up its names.
fn parse_chown(text: &str) -> Result<String, &'static str> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let is_name = |name: &str| name.len() <= 255 && !name.contains([':', '\0']);
    let is_valid = is_name(user) && is_name(group) && !(user.is_empty() && group.is_empty());
    if is_valid { Ok(text.to_owned()) } else { Err("give USER, :GROUP or USER:GROUP") }
}

/// Reports whether a chunk can have this size.
fn is_chunk(bytes: u64) -> bool {
    (CHUNK_BYTES_MIN as u64..=CHUNK_BYTES_MAX as u64).contains(&bytes)
}

/// Parses the size of a chunk, in bytes.
fn parse_chunk(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).ok().filter(|_| is_chunk(bytes)).ok_or_else(|| "give 4K to 1M".to_owned())
}

/// Parses a number of bytes: `K M G T` and `KiB MiB …` are powers of 1024, `kB MB GB TB` powers of 1000, in either
/// case.
///
/// # Errors
///
/// What is wrong with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match &*unit.trim().to_ascii_lowercase() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err("give a number of bytes, or one with K, M, G, T, kB, MB, GB or TB".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    let bytes = number * factor as f64;
    // 2^64, to which `u64::MAX` is rounded here, is one too many.
    if (1.0..u64::MAX as f64).contains(&bytes) { Ok(bytes as u64) } else { Err("out of range".to_owned()) }
}

/// Parses two ports, first and last, or a single port that is both.
///
/// # Errors
///
/// The accepted forms.
pub fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let usage = || "give FIRST-LAST, two ports from 1 to 65535, or one".to_owned();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
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
        assert_eq!(parse_bytes("17179869183G"), Ok(17_179_869_183 << 30));
        for bad in ["", "M", "0", "-1", "1X", "1e9", "99999999T", "17179869184G"] {
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
        assert!(!TransferOptions { buffer: Some(0), ..valid.clone() }.is_valid());
        assert!(!TransferOptions { bwlimit: Some(0), ..valid }.is_valid());
    }

    #[test]
    fn a_rate_limit_makes_no_chunk_too_small_for_a_record() {
        let limited = TransferOptions { bwlimit: Some(1), ..TransferOptions::default() };
        assert_eq!(limited.chunk_bytes(), CHUNK_BYTES_MAX);
    }

    #[test]
    fn buffers_take_an_eighth_of_the_free_memory_unless_told_otherwise() {
        let buffers = |options: &TransferOptions, mib: u64| options.buffers(1 << 20, Some(mib << 20));
        let plain = TransferOptions::default();
        for (mib, expected) in [(64 << 10, [32, 1024]), (1024, [32, 128]), (128, [16, 16]), (8, [4, 4])] {
            assert_eq!(buffers(&plain, mib), expected, "{mib} MiB");
        }
        assert_eq!(plain.buffers(1 << 20, None), [32, 32]);
        let told = TransferOptions { memory: Some(64 << 20), ..plain.clone() };
        assert_eq!(buffers(&told, 128), [32, 64]);
        let told = TransferOptions { buffer: Some(32 << 20), ..plain.clone() };
        assert_eq!(buffers(&told, 128), [32, 32]);
        let told = TransferOptions { buffer: Some(8 << 30), ..plain };
        assert_eq!(buffers(&told, 128), [4096, 4096], "no more can be in use");
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
        assert_eq!(parse_ports("7000"), Ok(7000..=7000));
        for bad in ["", "0", "-", "7000-", "0-1", "2-1", "1-65536", "a-b"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }

    #[derive(clap::Parser)]
    struct Tree {
        #[command(flatten)]
        options: TreeOptions,
    }

    fn tree(arguments: &[&str]) -> TreeOptions {
        let parsed = <Tree as clap::Parser>::try_parse_from([&["rdcp"], arguments].concat());
        parsed.expect("options of a tree").options
    }

    #[test]
    fn each_option_of_a_tree_changes_what_it_names() {
        let plain = TreeOptions { recursive: false, ..TreeOptions::default() };
        assert_eq!(tree(&[]), plain);
        let with = |change: &dyn Fn(&mut TreeOptions)| {
            let mut options = plain.clone();
            change(&mut options);
            options
        };
        for (option, expected) in [
            ("-r", with(&|it| it.recursive = true)),
            ("--no-mode", with(&|it| it.mode = false)),
            ("--no-owner", with(&|it| it.owner = false)),
            ("--no-times", with(&|it| it.times = false)),
            ("--no-xattrs", with(&|it| it.xattrs = false)),
            ("--no-hard-links", with(&|it| it.hard_links = false)),
            ("--no-sparse", with(&|it| it.sparse = false)),
            ("--no-symlinks", with(&|it| it.symlinks = false)),
            ("--no-specials", with(&|it| it.specials = false)),
            ("--in-place", with(&|it| it.in_place = true)),
            ("--fsync", with(&|it| it.fsync = true)),
            ("--verify=disk", with(&|it| it.verify = Some(Verify::Disk))),
        ] {
            assert_eq!(tree(&[option]), expected, "{option}");
        }
        assert!(tree(&["--verify=disk"]).syncs() && tree(&["--fsync"]).syncs() && !plain.syncs());
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let Rules(rules) = tree(&["--include", "a", "--exclude=b", "--include", "c"]).rules;
        let rules: Vec<_> = rules.iter().map(|rule| (&rule.pattern[..], rule.is_include)).collect();
        assert_eq!(rules, [(&b"a"[..], true), (b"b", false), (b"c", true)]);
    }
}
