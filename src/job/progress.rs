//! How far a job has come, and what it came to: facts, of which the command line makes words.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use crate::engine::{Figures, Waits};
use crate::fault::Failure;
use crate::job::plan::Spec;
use crate::tree::progress::Amount;
use crate::tree::stats::{Kinds, Stats, TreeFigures};

/// The rate that is shown is that of the last seconds.
const RATE_OVER: Duration = Duration::from_secs(3);

/// The rate over the last seconds.
#[derive(Default)]
pub(crate) struct Rate(VecDeque<(Instant, u64, Waits)>);

impl Rate {
    pub(crate) fn add(&mut self, now: Instant, bytes: u64, waits: Waits) {
        self.0.push_back((now, bytes, waits));
        // Two are left, however old: lines are printed further apart than that.
        while self.0.len() > 2 && self.0.front().is_some_and(|(then, ..)| now - *then > RATE_OVER) {
            self.0.pop_front();
        }
    }

    /// `None` as long as there is nothing to compare with.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        match (self.0.front(), self.0.back()) {
            (Some((first, before, _)), Some((last, after, _))) if last > first => {
                // Of another host's telling: it may also fall.
                Some(after.saturating_sub(*before) as f64 / (*last - *first).as_secs_f64())
            }
            _ => None,
        }
    }

    /// Where the time went meanwhile.
    pub(crate) fn waits(&self) -> Waits {
        match (self.0.front(), self.0.back()) {
            (Some((.., before)), Some((.., after))) => after.since(*before),
            _ => Waits::default(),
        }
    }
}

/// How far a comparison has come: `files` are those of which nothing is left to do, `bytes` what has been sent or found to be
/// there in files that are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    /// Bytes that were sent.
    pub(crate) sent_bytes: u64,
    /// Those and what was found to be there, a second, lately.
    pub(crate) bytes_per_second: Option<f64>,
    /// Files a second, lately.
    pub(crate) files_per_second: Option<f64>,
}

/// How far a transfer has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// Files that are done; `None` where it is about a single one or a stream.
    pub(crate) files: Option<u64>,
    /// As far as it is known.
    pub(crate) files_total: Option<u64>,
    pub(crate) bytes: u64,
    /// As far as it is known.
    pub(crate) bytes_total: Option<u64>,
    /// There will be no more files.
    pub(crate) files_final: bool,
    /// There will be no more bytes.
    pub(crate) is_final: bool,
    /// In bytes a second, lately.
    pub(crate) rate: Option<f64>,
    /// Of a tree that is compared.
    pub(crate) compared: Option<Compared>,
    /// Where the time went lately.
    pub(crate) waits: Waits,
    /// How long it has taken so far, in seconds: shown where nobody knows how much is left.
    pub(crate) seconds: u64,
    /// The path of an entry that is being copied, or nothing.
    pub(crate) name: Vec<u8>,
    /// In place of a rate, while there is no link.
    pub(crate) no_link: Option<String>,
}

impl Shown {
    /// Seconds until all is done, where they can be estimated.
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
        // Both have to end; as long as nobody knows how much is to be sent, files say most.
        let files_total = self.files_total.filter(|_| self.files_final);
        let files = left(self.files?, files_total, compared.files_per_second);
        // A large one may be the last.
        files.max(bytes).filter(|_| !self.is_final || bytes.is_some())
    }
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    /// What became of files and trees; its data is that which was copied now.
    pub(crate) tree: TreeFigures,
    /// What was sent for the files at the source, in bytes; of copies that compare, between hosts.
    pub(crate) compared: Option<u64>,
    /// Only what differs was copied: `--sync`.
    pub(crate) is_sync: bool,
    /// Bytes of records, contents and answers that this host has sent and received: the sender, where it is neither. Before
    /// compression. If `--stats` asks for it.
    pub(crate) totals: Option<[u64; 2]>,
    pub(crate) seconds: f64,
    /// The receiver has compared digests of all of it.
    pub(crate) is_verified: bool,
    /// Nothing was done: it is what would have been.
    pub(crate) is_dry: bool,
    /// So many of several hosts have it.
    pub(crate) hosts: Option<(usize, usize)>,
}

impl Copied {
    /// That of a stream, or of what goes into one.
    pub(crate) fn of_stream(bytes: u64, is_pull: bool) -> Self {
        let mut stats = Stats { found: Kinds { regular: 1, ..Kinds::default() }, ..Stats::default() };
        stats.note_transferred(bytes, bytes);
        let amount = Amount { entries: 1, directories: 0, bytes };
        let tree = TreeFigures { amount, size_bytes: bytes, stats, ..TreeFigures::default() };
        let totals = Some(if is_pull { [0, bytes] } else { [bytes, 0] });
        Self { tree, totals, is_verified: true, ..Self::default() }
    }

    /// Adds that of a later session.
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

/// A transfer that has ended.
pub(crate) struct Ended {
    pub(crate) figures: Figures,
    pub(crate) failure: Option<Failure>,
    /// What a copy came to.
    pub(crate) copied: Option<Copied>,
    /// What it came to on each of several hosts.
    pub(crate) hosts: Vec<HostEnded>,
}

/// What a copy to one of several hosts came to.
pub(crate) struct HostEnded {
    pub(crate) spec: Spec,
    pub(crate) failure: Option<Failure>,
}

impl HostEnded {
    /// Its place and the cause, if it has failed.
    pub(crate) fn failed(&self) -> Option<(Spec, String)> {
        let failure = self.failure.as_ref()?;
        Some((self.spec.clone(), failure.message.clone().unwrap_or_default()))
    }
}

/// How one of several hosts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "HostState")]
pub enum HostStanding {
    /// It has not answered yet.
    Starting,
    /// It takes the stream as it comes.
    Receiving,
    /// It has all of the stream, and is not done with it.
    Finishing,
    /// It was too slow, or cut off, and waits for its copy from another host.
    Behind,
    /// It gets its copy from another host.
    Copying,
    /// It has all, and that is proven.
    Done,
    /// It has not got its copy, and will not.
    Failed,
}

/// How far one of several hosts has come.
#[derive(Clone, Debug)]
pub(crate) struct HostShown {
    /// For a person.
    pub(crate) host: String,
    pub(crate) standing: HostStanding,
    /// Bytes of the stream that it has, and those of which its tree has been made.
    pub(crate) received: u64,
    pub(crate) written: u64,
    /// The number of the host that gives it the stream, or its copy; `None` for the one that has the source, and for none.
    pub(crate) before: Option<usize>,
}

/// A size for a person: `407 MiB`, `1.2 GiB`.
pub(crate) fn size_words(bytes: u64) -> String {
    let (factor, unit) = unit(bytes);
    format!("{} {unit}", number(bytes, factor))
}

/// The unit that a size is given in, and its bytes.
pub(crate) fn unit(bytes: u64) -> (u64, &'static str) {
    [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(factor, _)| bytes >= *factor)
        .unwrap_or((1, "B"))
}

/// A size in a unit.
pub(crate) fn number(bytes: u64, factor: u64) -> String {
    let value = bytes as f64 / factor as f64;
    if factor > 1 && bytes > 0 && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}
