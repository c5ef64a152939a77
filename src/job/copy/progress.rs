//! Progress of a copy, combined from the reports of its ends: the sender knows what there is to copy, the receiver what
//! is at the destination.

use std::time::{Duration, Instant};

use super::Copy;
use crate::control::frames::{Message, TreeProgress};
use crate::engine::Waits;
use crate::job::event::{self, rounded};
use crate::job::hop::Side;
use crate::job::progress::{Compared, Rate, Shown};
use crate::tree::progress::Amount;

/// How long a session runs before its entries are counted ahead. A copy that ends sooner needs no count.
const COUNT_AFTER: Duration = Duration::from_secs(1);

/// How often `--json` reports progress.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// Progress of a copy.
#[derive(Default)]
pub(super) struct Progress {
    began: Option<Instant>,
    /// Total of all sources, if they are known to be files.
    known: Option<Amount>,
    /// Amount copied by the sessions that are over.
    before: Amount,
    before_sent: u64,
    /// Whether sources are left for later sessions.
    has_more: bool,
    is_tree: bool,
    /// Of the current session: what is at the destination, what there is to copy, and the payload moved.
    done: Amount,
    kept_bytes: u64,
    found: Amount,
    has_found_all: bool,
    may_send_more: bool,
    /// Whether only differences are copied.
    is_compared: bool,
    files_rate: Rate,
    done_rate: Rate,
    payload_bytes: u64,
    /// When the session began. `None` once its sender has been asked to count.
    uncounted_since: Option<Instant>,
    waits_before: Waits,
    waits: Waits,
    rate: Rate,
    name: Vec<u8>,
}

impl Progress {
    pub(super) fn new(is_compared: bool) -> Self {
        Self { is_compared, ..Self::default() }
    }

    /// Begins the copy. `known`: its total, if that is known beforehand.
    pub(super) fn expect(&mut self, known: Option<Amount>) {
        (self.known, self.began) = (known, Some(Instant::now()));
    }

    /// Begins a session. `waits`: those of the sessions before it.
    pub(super) fn begin(&mut self, is_tree: bool, has_more: bool, waits: Waits) {
        (self.is_tree, self.has_more, self.waits_before) = (is_tree, has_more, waits);
        (self.done, self.found, self.kept_bytes, self.payload_bytes) = Default::default();
        (self.has_found_all, self.may_send_more) = (false, false);
        self.uncounted_since = (is_tree && self.known.is_none()).then(Instant::now);
    }

    /// Ends the current session.
    pub(super) fn end(&mut self) {
        let done = self.done();
        self.before = self.before.plus(done);
        self.before_sent = self.before_sent.saturating_add(self.session_bytes());
        (self.done, self.found, self.kept_bytes, self.payload_bytes) = Default::default();
    }

    /// Records what one end reports about trees. `ends`: both, if it is the only end of a copy within one host.
    pub(super) fn hear(&mut self, ends: &[Side], tree: TreeProgress) {
        if ends.contains(&Side::From) {
            (self.found, self.has_found_all, self.kept_bytes) = (tree.found, tree.has_found_all, tree.kept_bytes);
            self.may_send_more = tree.may_send_more;
        }
        if ends.contains(&Side::To) {
            self.done = tree.done;
            if !tree.name.is_empty() {
                self.name = tree.name;
            }
        }
    }

    /// Records the session's payload and where its time went.
    pub(super) fn hear_payload(&mut self, bytes: u64, waits: Waits) {
        self.payload_bytes = bytes;
        self.waits = self.waits_before.plus(waits);
        let copied = self.before.bytes.saturating_add(self.session_bytes());
        self.rate.add(Instant::now(), copied, self.waits);
        let done = self.before.plus(self.done());
        self.files_rate.add(Instant::now(), done.files(), Waits::default());
        self.done_rate.add(Instant::now(), done.bytes, Waits::default());
    }

    /// Discards the rates measured so far. A rate that spans a time without a link says nothing about the rest.
    pub(super) fn forget_rates(&mut self) {
        (self.rate, self.files_rate, self.done_rate) = Default::default();
    }

    /// Whether the sender should count now, if a person watches. True once in a session.
    pub(super) fn is_count_due(&mut self) -> bool {
        let is_due = self.uncounted_since.is_some_and(|since| since.elapsed() >= COUNT_AFTER);
        if is_due {
            self.uncounted_since = None;
        }
        is_due && !self.has_found_all
    }

    /// Returns how much data the current session has moved.
    fn session_bytes(&self) -> u64 {
        if self.is_tree { self.done.bytes } else { self.payload_bytes }
    }

    /// Returns what the current session has brought to the destination, including what was already there.
    fn done(&self) -> Amount {
        Amount { bytes: self.session_bytes().saturating_add(self.kept_bytes), ..self.done }
    }

    /// Returns what is done, what there is as far as known, and whether that total is final.
    fn all(&self) -> (Amount, Option<Amount>, bool) {
        let done = self.before.plus(self.done());
        match self.known {
            Some(known) => (done, Some(known), true),
            None if !self.is_tree || self.found.entries == 0 => (done, None, false),
            None => {
                let (found, is_final) = (self.before.plus(self.found), self.has_found_all && !self.has_more);
                // The thread that counts may be behind the threads that copy.
                (done, Some(found).filter(|_| is_final || found.entries > done.entries), is_final)
            }
        }
    }

    /// Returns the progress for a person.
    pub(super) fn shown(&self) -> Shown {
        let (done, total, is_final) = self.all();
        let is_single = self.known.is_some_and(|known| known.entries == 1) || !self.is_tree;
        Shown {
            files: (!is_single).then(|| done.files()),
            files_total: total.map(|total| total.files()),
            bytes: done.bytes,
            bytes_total: total.map(|total| total.bytes),
            files_final: is_final,
            is_final: is_final && !self.may_send_more,
            rate: self.rate.bytes_per_second(),
            compared: self.is_compared.then(|| Compared {
                sent_bytes: self.before_sent.saturating_add(self.session_bytes()),
                bytes_per_second: self.done_rate.bytes_per_second(),
                files_per_second: self.files_rate.bytes_per_second(),
            }),
            waits: self.rate.waits(),
            seconds: self.began.map_or(0, |began| began.elapsed().as_secs()),
            name: self.name.clone(),
            no_link: None,
        }
    }

    /// Returns the progress for a program.
    pub(super) fn event(&self) -> event::Progress {
        let (done, total, is_final) = self.all();
        let shown = self.shown();
        event::Progress {
            bytes: done.bytes,
            bytes_total: total.map(|total| total.bytes),
            entries: self.is_tree.then_some(done.entries),
            entries_total: total.map(|total| total.entries),
            totals_final: is_final && !self.may_send_more,
            bytes_per_second: shown.rate.map(rounded),
            seconds_left: shown.seconds_left(),
        }
    }
}

impl Copy<'_> {
    /// Records what one end reports, and shows it where progress is shown.
    pub(super) fn hear_progress(
        &mut self,
        hop: usize,
        side: Side,
        bytes: u64,
        waits: Waits,
        tree: Option<TreeProgress>,
    ) {
        self.observer.measured(&self.job.hops[hop], side, bytes, waits);
        if let Some(tree) = tree {
            let is_within = self.job.hops[hop].sides().len() == 1;
            let ends = if is_within { &[Side::From, Side::To][..] } else { std::slice::from_ref(&side) };
            self.progress.hear(ends, tree);
        }
        if side != self.told_by {
            return;
        }
        self.progress.hear_payload(bytes, waits);
        self.observer.show(&self.progress.shown());
        if self.observer.is_watched() && self.progress.is_count_due() {
            self.job.send_end(hop, Side::From, &Message::Count);
        }
        if self.told.elapsed() >= EVENT_EVERY {
            self.told = Instant::now();
            self.observer.event(&event::Event::Progress(self.progress.event()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(entries: u64, directories: u64, bytes: u64) -> Amount {
        Amount { entries, directories, bytes }
    }

    fn found(entries: u64, bytes: u64, has_found_all: bool) -> TreeProgress {
        TreeProgress { found: amount(entries, 1, bytes), has_found_all, ..TreeProgress::default() }
    }

    fn done(entries: u64, bytes: u64) -> TreeProgress {
        TreeProgress { done: amount(entries, 1, bytes), name: b"n".to_vec(), ..TreeProgress::default() }
    }

    /// From each end, only what that end knows is used, whatever else it reports.
    #[test]
    fn two_ends_make_one_progress() {
        let mut progress = Progress::new(false);
        progress.begin(true, false, Waits::default());
        assert_eq!(progress.all(), (amount(0, 0, 0), None, false));
        progress.hear(&[Side::From], TreeProgress { done: amount(99, 0, 0), kept_bytes: 5, ..found(11, 100, false) });
        progress.hear(&[Side::To], TreeProgress { found: amount(99, 0, 0), ..done(4, 30) });
        assert_eq!(progress.all(), (amount(4, 1, 35), Some(amount(11, 1, 100)), false));
        assert_eq!((progress.shown().files, progress.shown().name), (Some(3), b"n".to_vec()));
        progress.hear(&[Side::From], found(12, 200, true));
        assert!(progress.all().2);
    }

    #[test]
    fn sessions_add_up_and_what_is_left_for_others_is_not_known() {
        let mut progress = Progress::new(false);
        progress.begin(true, true, Waits::default());
        progress.hear(&[Side::From, Side::To], TreeProgress { done: amount(3, 0, 10), ..found(3, 10, true) });
        assert!(!progress.all().2, "there are more sources");
        progress.end();
        progress.begin(true, false, Waits::default());
        progress.hear(&[Side::From, Side::To], found(2, 7, true));
        assert_eq!(progress.all(), (amount(3, 0, 10), Some(amount(5, 1, 17)), true));
    }

    #[test]
    fn files_are_known_before_and_a_stream_never() {
        let mut progress = Progress::new(false);
        progress.expect(Some(amount(1, 0, 100)));
        progress.begin(true, false, Waits::default());
        progress.hear(&[Side::To], done(0, 50));
        assert!(!progress.is_count_due());
        let event = progress.event();
        assert_eq!((event.bytes_total, event.totals_final), (Some(100), true));
        assert_eq!((progress.shown().files, progress.shown().bytes), (None, 50));
        let mut stream = Progress::new(false);
        stream.begin(false, false, Waits::default());
        stream.hear_payload(7, Waits::default());
        let event = stream.event();
        assert_eq!((event.bytes, event.bytes_total, event.entries), (7, None, None));
        assert_eq!((event.bytes_per_second, event.seconds_left), (None, None));
    }

    /// Numbers that a hostile agent could report.
    #[test]
    fn numbers_that_cannot_be_do_no_harm() {
        let mut progress = Progress::new(false);
        progress.begin(true, false, Waits::default());
        for number in [u64::MAX, 0, u64::MAX] {
            let done = amount(number, u64::MAX - number, number);
            let all = TreeProgress { done, kept_bytes: number, ..found(number, number, true) };
            progress.hear(&[Side::From, Side::To], all);
            progress.hear_payload(number, Waits::default());
            progress.end();
            progress.begin(true, false, Waits::default());
            (0..200).for_each(|columns| drop(progress.shown().line(columns)));
            progress.event();
        }
    }
}
