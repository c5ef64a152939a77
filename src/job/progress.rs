//! Progress and outcome of a job, as facts. The command line turns them into words.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use crate::engine::{Figures, Waits};
use crate::fault::Failure;
use crate::job::plan::Spec;
use crate::tree::progress::Amount;
use crate::tree::stats::{Kinds, Stats, TreeFigures};

/// Period over which the displayed rate is measured.
const RATE_OVER: Duration = Duration::from_secs(3);

/// The rate over the last seconds.
#[derive(Default)]
pub(crate) struct Rate(VecDeque<(Instant, u64, Waits)>);

impl Rate {
    pub(crate) fn add(&mut self, now: Instant, bytes: u64, waits: Waits) {
        self.0.push_back((now, bytes, waits));
        // At least two measurements are kept, however old, because lines may be printed further apart than that.
        while self.0.len() > 2 && self.0.front().is_some_and(|(then, ..)| now - *then > RATE_OVER) {
            self.0.pop_front();
        }
    }

    /// Returns the rate. `None` as long as there is no second measurement to compare with.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        match (self.0.front(), self.0.back()) {
            (Some((first, before, _)), Some((last, after, _))) if last > first => {
                // The numbers may come from another host, so they may also fall.
                Some(after.saturating_sub(*before) as f64 / (*last - *first).as_secs_f64())
            }
            _ => None,
        }
    }

    /// Returns where the time went over the same period.
    pub(crate) fn waits(&self) -> Waits {
        match (self.0.front(), self.0.back()) {
            (Some((.., before)), Some((.., after))) => after.since(*before),
            _ => Waits::default(),
        }
    }
}

/// Progress of a comparison. The `files` of [`Shown`] are those with nothing left to do. Its `bytes` are those sent,
/// and those found at the destination in files that are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    /// Number of bytes sent.
    pub(crate) sent_bytes: u64,
    /// Recent rate of bytes sent or found at the destination.
    pub(crate) bytes_per_second: Option<f64>,
    /// Recent rate in files per second.
    pub(crate) files_per_second: Option<f64>,
}

/// Progress of a transfer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// Number of files done. `None` for a single file or a stream.
    pub(crate) files: Option<u64>,
    /// Total number of files, as far as known.
    pub(crate) files_total: Option<u64>,
    pub(crate) bytes: u64,
    /// Total number of bytes, as far as known.
    pub(crate) bytes_total: Option<u64>,
    /// Whether `files_total` is final.
    pub(crate) files_final: bool,
    /// Whether `bytes_total` is final.
    pub(crate) is_final: bool,
    /// Recent rate, in bytes per second.
    pub(crate) rate: Option<f64>,
    /// Progress of the comparison, for a tree that is compared.
    pub(crate) compared: Option<Compared>,
    /// Where the time went recently.
    pub(crate) waits: Waits,
    /// Time elapsed, in seconds. Shown if the remaining time is unknown.
    pub(crate) seconds: u64,
    /// Path of an entry that is being copied, or empty.
    pub(crate) name: Vec<u8>,
    /// Text shown in place of the rate while there is no link.
    pub(crate) no_link: Option<String>,
}

impl Shown {
    /// Returns the estimated seconds until all is done, if they can be estimated.
    pub(crate) fn seconds_left(&self) -> Option<u64> {
        let left = |done: u64, total: Option<u64>, rate: Option<f64>| match total?.saturating_sub(done) {
            0 if self.compared.is_some() => Some(0),
            left => rate.filter(|rate| *rate >= 1.0).map(|rate| (left as f64 / rate).ceil() as u64),
        };
        let rate = self.compared.map_or(self.rate, |compared| compared.bytes_per_second);
        let bytes = if self.is_final { left(self.bytes, self.bytes_total, rate) } else { None };
        let Some(compared) = self.compared.filter(|_| self.files.is_some()) else {
            return bytes;
        };
        // Both files and bytes have to be finished. While the number of bytes to send is unknown, files are the best
        // measure.
        let files_total = self.files_total.filter(|_| self.files_final);
        let files = left(self.files?, files_total, compared.files_per_second);
        // The last file may be a large one.
        files.max(bytes).filter(|_| !self.is_final || bytes.is_some())
    }
}

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    /// Figures of files and trees. Its data is the data copied by this run.
    pub(crate) tree: TreeFigures,
    /// Bytes sent for the files at the source, of copies between hosts that compare.
    pub(crate) compared: Option<u64>,
    /// Whether only differences were copied: `--sync`.
    pub(crate) is_sync: bool,
    /// Bytes of records, contents and answers that this host has sent and received, before compression. If this host is
    /// neither sender nor receiver, the sender's. Shown if `--stats` asks for them.
    pub(crate) totals: Option<[u64; 2]>,
    pub(crate) seconds: f64,
    /// Whether the receiver has compared digests of everything.
    pub(crate) is_verified: bool,
    /// Whether this was a dry run, so that the figures say what would have been done.
    pub(crate) is_dry: bool,
    /// How many of how many hosts have the copy.
    pub(crate) hosts: Option<(usize, usize)>,
}

impl Copied {
    /// Returns the outcome of copying a stream, or copying into a stream.
    pub(crate) fn of_stream(bytes: u64, is_pull: bool) -> Self {
        let mut stats = Stats { found: Kinds { regular: 1, ..Kinds::default() }, ..Stats::default() };
        stats.note_transferred(bytes, bytes);
        let amount = Amount { entries: 1, directories: 0, bytes };
        let tree = TreeFigures { amount, size_bytes: bytes, stats, ..TreeFigures::default() };
        let totals = Some(if is_pull { [0, bytes] } else { [bytes, 0] });
        Self { tree, totals, is_verified: true, ..Self::default() }
    }

    /// Adds the outcome of a later session.
    pub(crate) fn add(&mut self, later: Self) {
        if self.tree.amount.entries == 0 {
            *self = later;
            return;
        }
        self.tree = self.tree.plus(later.tree);
        let both = self.totals.zip(later.totals);
        self.totals = both.map(|(all, more)| std::array::from_fn(|at| all[at].saturating_add(more[at])));
        self.compared = self.compared.zip(later.compared).map(|(all, more)| all.saturating_add(more));
        self.is_verified &= later.is_verified;
    }
}

/// Outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Streamed {
    pub(crate) bytes: u64,
    /// How many of how many hosts have the stream, if it went to several.
    pub(crate) hosts: Option<(usize, usize)>,
    pub(crate) seconds: f64,
    /// Whether these hosts have found it to be what the source has sent. A command may also take less than all of it.
    pub(crate) is_verified: bool,
}

/// A transfer that has ended.
pub(crate) struct Ended {
    pub(crate) figures: Figures,
    pub(crate) failure: Option<Failure>,
    /// Outcome of a copy.
    pub(crate) copied: Option<Copied>,
    /// Outcome on each of several hosts.
    pub(crate) hosts: Vec<HostEnded>,
}

/// Outcome of a copy to one of several hosts.
pub(crate) struct HostEnded {
    pub(crate) spec: Spec,
    pub(crate) failure: Option<Failure>,
}

impl HostEnded {
    /// Returns the host's destination and the cause, if the host has failed.
    pub(crate) fn failed(&self) -> Option<(Spec, String)> {
        let failure = self.failure.as_ref()?;
        Some((self.spec.clone(), failure.message.clone().unwrap_or_default()))
    }
}

/// State of one of several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "HostState")]
pub enum HostStanding {
    /// The host has not answered yet.
    Starting,
    /// The host receives the stream as it comes.
    Receiving,
    /// The host has received the whole stream and is still working on it.
    Finishing,
    /// The host takes no part in the stream (any more), and waits for its copy.
    Behind,
    /// The host gets its copy from another host or from the source; with --sync always from the source.
    Copying,
    /// The host has everything, and that is proven.
    Done,
    /// The host has no copy, and will not get one.
    Failed,
}

/// Progress of one of several hosts.
#[derive(Clone, Debug)]
pub(crate) struct HostShown {
    /// Name of the host, for a person.
    pub(crate) host: String,
    pub(crate) standing: HostStanding,
    /// Bytes of the stream that the host has received, and bytes from which it has made its tree.
    pub(crate) received: u64,
    pub(crate) written: u64,
    /// Number of the host that sends it the stream, or its copy. `None` for the host that has the source, or if no host
    /// sends.
    pub(crate) before: Option<usize>,
}

/// Formats a size for a person: `407 MiB`, `1.2 GiB`.
pub(crate) fn size_words(bytes: u64) -> String {
    let (factor, unit) = unit(bytes);
    format!("{} {unit}", number(bytes, factor))
}

/// Returns the unit in which a size is given, and the unit's bytes.
pub(crate) fn unit(bytes: u64) -> (u64, &'static str) {
    [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(factor, _)| bytes >= *factor)
        .unwrap_or((1, "B"))
}

/// Formats a size as a number of units.
pub(crate) fn number(bytes: u64, factor: u64) -> String {
    let value = bytes as f64 / factor as f64;
    if factor > 1 && bytes > 0 && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}
