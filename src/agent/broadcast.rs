//! A host's node of a broadcast: the stream between the host before and the host behind, and the node's own tree.
//!
//! The source's node reads a tree once and makes the stream of it. Any other node takes the stream from a session and
//! keeps a bounded part of it in its spool. From there, a thread takes it to make the node's own tree, and the session
//! to the host behind takes it as well. Sessions come and go with the neighbouring hosts; the node stays. In a
//! pipeline, stages take the place of the trees (`stream.rs`).
//!
//! # Invariants
//!
//! * Data passed on by a host is trusted only once it is proven: the source tells the caller what its stream was, and
//!   the caller tells each node. No node finishes its tree before that, and a directory at the top has no name until
//!   then.
//! * A node whose own tree has failed or is too slow goes on passing the stream.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use minicbor::bytes::ByteVec;

use super::end::Moves;
use super::place;
use super::tree::{Countable, count, destination, figures, path_of, progress, tell_failed, tell_kept};
use crate::control::frames::{Broadcast, BroadcastProof, BroadcastRole, BroadcastState, Fault, Message, Report};
use crate::control::tunnel::Emit;
use crate::engine::Summary;
use crate::fault::Exit;
use crate::fs::direct::Tally;
use crate::options::TreeOptions;
use crate::transport::spool::{Gone, Spool};
use crate::tree::Root;
use crate::tree::entries::EntryStream;
use crate::tree::packed::{self, Unpacker};
use crate::tree::progress::Progress;
use crate::tree::proof::{Summing, TreeProof};
use crate::tree::sink::{Bytes, Destination, Refused, TreeSink};
use crate::tree::source::TreeSource;

/// How often the node reports its state if the state has changed, and how often it does so at least.
const STATE_EVERY: Duration = Duration::from_millis(200);
const STATE_AT_LEAST: Duration = Duration::from_secs(1);

/// How long a node whose caller is lost may take to discard its tree.
const ABANDON_MAX: Duration = Duration::from_secs(2);

/// A node, running from the moment it is created. It ends when it is dropped, at the latest.
pub(super) struct Node {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    is_source: bool,
    countable: Countable,
}

/// State shared by the threads of a node.
struct Shared {
    emit: Emit,
    spool: Arc<Spool>,
    /// Whether the node must end. `signal` is the signal that caused this, or 0.
    stop: Arc<AtomicBool>,
    signal: AtomicU8,
    proof: Mutex<Option<BroadcastProof>>,
    /// Notified when the node's stream has been proven or the node must end.
    is_decided: Condvar,
    /// Whether the node's own tree has ended.
    has_ended: Arc<AtomicBool>,
    progress: Arc<Progress>,
    entries: Arc<EntryStream>,
    told: Mutex<Told>,
}

/// The state that was reported last.
struct Told {
    state: BroadcastState,
    at: Instant,
    idle_micros: u64,
}

impl Node {
    /// Begins a node. `emit` takes the node's messages and must not block. `moves` is the output or input of the stage,
    /// if the role needs one; `None` if the stage does not exist.
    pub(super) fn begin(emit: Emit, broadcast: Broadcast, moves: Option<Moves>) -> Self {
        let Broadcast { role, spool_bytes, has_next } = broadcast;
        let told = Arc::clone(&emit);
        let shared = Arc::new(Shared {
            emit,
            spool: Spool::new(spool_bytes, !role.is_source(), has_next),
            stop: Arc::default(),
            signal: AtomicU8::new(0),
            proof: Mutex::default(),
            is_decided: Condvar::new(),
            has_ended: Arc::default(),
            progress: Arc::default(),
            entries: Arc::new(EntryStream::new(Box::new(move |entries| told(Message::Entries(entries))))),
            told: Mutex::new(Told { state: BroadcastState::default(), at: Instant::now(), idle_micros: 0 }),
        });
        let countable = match &role {
            BroadcastRole::Source { roots, settings } => Some((roots.clone(), settings.clone())),
            _ => None,
        };
        let is_source = role.is_source();
        let mut node = Self { shared: Arc::clone(&shared), thread: None, is_source, countable };
        let (telling, running) = (Arc::clone(&shared), Arc::clone(&shared));
        let begun = crate::spawn("broadcast-state", 128 << 10, move || telling.tell());
        match begun.and_then(|_| crate::spawn("broadcast", 2 << 20, move || running.run(role, moves))) {
            Ok(thread) => node.thread = Some(thread),
            Err(error) => shared.end(failed(Exit::Connect, format!("cannot start a thread: {error}"))),
        }
        node
    }

    /// Returns the spool that sessions put data into or take data from. `None` if a session would put data into the
    /// source's spool, which only the source fills.
    pub(super) fn spool(&self, puts_in: bool) -> Option<Arc<Spool>> {
        (!(self.is_source && puts_in)).then(|| Arc::clone(&self.shared.spool))
    }

    /// Handles a message, if it is one for a node.
    pub(super) fn handle(&mut self, message: &Message) {
        match message {
            Message::BroadcastProof(proof) => {
                *crate::locked(&self.shared.proof) = Some(*proof);
                self.shared.is_decided.notify_all();
            }
            Message::BroadcastNext(is_there) => self.shared.spool.set_next(*is_there),
            Message::BroadcastLeave => self.shared.spool.leave(true),
            Message::EntriesTaken(messages) => self.shared.entries.taken(*messages),
            Message::Count => count(&mut self.countable, &self.shared.progress, &self.shared.has_ended),
            _ => {}
        }
    }

    /// Stops the node as a signal would.
    pub(super) fn stop(&self, number: u8) {
        if i32::from(number) != libc::SIGTSTP {
            self.shared.signal.store(number, Ordering::Relaxed);
            self.shared.stop();
        }
    }

    /// Whether the node must end but its tree has not ended yet.
    pub(super) fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed) && !self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the node has the whole stream and its proof, so that it needs no other host any more.
    pub(super) fn is_complete(&self) -> bool {
        self.shared.spool.status().has_all && crate::locked(&self.shared.proof).is_some()
    }

    /// Handles the loss of the caller. Returns the thread to wait for, and how long to wait.
    pub(super) fn abandon(&mut self) -> Option<(JoinHandle<()>, Option<Duration>)> {
        let limit = (!self.is_complete()).then_some(ABANDON_MAX);
        if limit.is_some() {
            self.stop(libc::SIGHUP as u8);
        }
        self.thread.take().map(|thread| (thread, limit))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

fn failed(exit: Exit, detail: impl Into<String>) -> Report {
    Report { fault: Some(Fault::plain(exit.code(), detail)), ..Report::default() }
}

/// Returns what proves the bytes that `hasher` has taken.
fn proof_of(hasher: &blake3::Hasher, tree: Option<TreeProof>) -> BroadcastProof {
    BroadcastProof { bytes: hasher.count(), digest: *hasher.finalize().as_bytes(), tree }
}

/// Returns the settings of a node: everything is sent, and the existing destination is never compared.
fn plain(settings: TreeOptions) -> TreeOptions {
    TreeOptions {
        sync: false,
        checksum: false,
        delete: false,
        delete_after: false,
        existing: false,
        ignore_existing: false,
        update: false,
        append_verify: false,
        compares: false,
        dry_run: false,
        ..settings
    }
}

impl Shared {
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.spool.stop();
        // Held, because a thread that has just checked and is about to wait would miss the notification.
        let _proof = crate::locked(&self.proof);
        self.is_decided.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reports the state of the node until the node ends.
    fn tell(&self) {
        while !self.is_stopped() {
            self.spool.wait_for_news(STATE_EVERY);
            self.entries.send_waiting();
            self.tell_state();
        }
    }

    fn tell_state(&self) {
        // The lock is taken first, so that an older state is never reported after a newer one.
        let mut told = crate::locked(&self.told);
        let status = self.spool.status();
        let micros = told.at.elapsed().as_micros() as u64;
        let idle_micros = status.idle_micros.saturating_sub(told.idle_micros);
        let state = BroadcastState {
            received: status.received,
            written: status.written,
            passed: status.passed,
            has_all: status.has_all,
            is_behind: status.is_behind,
            tree: Some(progress(&self.progress)),
            busy_permille: match status.has_tree && micros > 0 {
                true => (micros.saturating_sub(idle_micros) * 1000 / micros) as u16,
                false => 0,
            },
        };
        if state != told.state || told.at.elapsed() >= STATE_AT_LEAST {
            *told = Told { state: state.clone(), at: Instant::now(), idle_micros: status.idle_micros };
            // The lock is still held, so that an older state never arrives after a newer one.
            (self.emit)(Message::BroadcastState(state));
        }
    }

    fn run(&self, role: BroadcastRole, moves: Option<Moves>) {
        let start = Instant::now();
        let mut summary = Summary::default();
        let stopped = Arc::clone(&self.stop);
        self.entries.end_when(move || stopped.load(Ordering::Relaxed));
        let done = match role {
            BroadcastRole::Source { settings, .. } | BroadcastRole::Copy { settings, .. } if settings.dry_run => {
                Err(Fault::plain(Exit::Usage.code(), "a broadcast cannot be a dry run"))
            }
            BroadcastRole::Source { roots, settings } => self.read(roots, plain(settings), &mut summary),
            BroadcastRole::Copy { directory, names, settings } => {
                let settings = plain(settings);
                let make = || self.begin_tree(&directory, &names, &settings);
                self.write(make, &mut summary)
            }
            BroadcastRole::SourceStage { .. } | BroadcastRole::SourceStandard => self.read_stream(moves),
            BroadcastRole::Stage { disk_bytes, .. } => self.write_stream(moves, disk_bytes),
        };
        tell_failed(&summary, &self.emit);
        summary.figures.counters.bytes = self.spool.status().received;
        summary.figures.seconds = start.elapsed().as_secs_f64();
        let (tree, fault) = (figures(&summary), done.err());
        self.end(Report { fault, figures: summary.figures, tree, ..Report::default() });
    }

    fn end(&self, report: Report) {
        self.spool.leave(false);
        self.entries.send_waiting();
        self.tell_state();
        self.has_ended.store(true, Ordering::Relaxed);
        (self.emit)(Message::BroadcastEnded(Box::new(report)));
    }

    /// Returns why this node ends before its tree is complete.
    fn given_up(&self) -> Fault {
        match self.signal.load(Ordering::Relaxed) {
            0 if self.spool.status().is_behind => {
                Fault::plain(Exit::Partial.code(), "too slow for the other hosts; the rest has to be copied later")
            }
            0 => Fault::plain(Exit::Signal(libc::SIGTERM as u8).code(), ""),
            number => Fault::plain(Exit::Signal(number).code(), ""),
        }
    }

    /// Makes the stream from a tree.
    fn read(&self, roots: Vec<Root>, settings: TreeOptions, summary: &mut Summary) -> Result<(), Fault> {
        let mut summing = Summing::new(roots.len(), &settings);
        let source = TreeSource::new(roots, packed::PART_BYTES, settings, Arc::clone(&self.progress));
        let source = source.map_err(|fact| Fault::unreadable(&fact))?.unanswered();
        let (input, tally) = (self.spool.input(), Tally::default());
        let (mut hasher, mut is_cut) = (blake3::Hasher::new(), false);
        let packed = packed::pack(&source, &tally, |packet| {
            hasher.update(packet.bytes);
            if let Some((item, position, data)) = packet.part {
                summing.take(item, position, data);
            }
            is_cut = input.append(packet.bytes, &self.stop).is_err();
            !is_cut
        });
        let sent = source.sent();
        summary.figures.read.direct_bytes = tally.direct_bytes.load(Ordering::Relaxed);
        summary.figures.read.cached_bytes = sent.figures.amount.bytes.saturating_sub(summary.figures.read.direct_bytes);
        summary.sent_tree = Some(sent);
        packed.map_err(|error| Fault::plain(Exit::Connect.code(), format!("cannot start a thread: {error}")))?;
        if is_cut {
            return Err(self.given_up());
        }
        // The proof is sent before any host can have the end of the stream.
        (self.emit)(Message::BroadcastProof(proof_of(&hasher, summing.finish())));
        input.end().map_err(|_| self.given_up())
    }

    /// Creates the sink of the node's own tree. Also returns the directory made for the tree, which is removed if it
    /// stays empty.
    fn begin_tree(
        &self,
        directory: &[u8],
        names: &[ByteVec],
        settings: &TreeOptions,
    ) -> Result<(TreeSink, Option<place::Made>), Fault> {
        let unwritable = |fact| Fault::unwritable(&fact);
        let made = place::make(directory, settings).map_err(unwritable)?;
        let options = Destination { awaits_proof: true, ..destination(names, settings, &self.progress, &self.entries) };
        // The whole tree is on its way whatever exists here, so the sink's answers are dropped.
        let mut sink = TreeSink::new(&path_of(directory), options, Box::new(|_| {})).map_err(unwritable)?;
        sink.list_to(&self.entries);
        tell_kept(&mut sink, &self.emit);
        Ok((sink, made))
    }

    /// Makes a tree from the stream.
    fn write(
        &self,
        make: impl FnOnce() -> Result<(TreeSink, Option<place::Made>), Fault>,
        summary: &mut Summary,
    ) -> Result<(), Fault> {
        let (mut hasher, mut unpacker) = (blake3::Hasher::new(), Unpacker::default());
        let mut make = Some(make);
        // `_made` is dropped after the sink, which has then removed everything that was not published.
        let (mut _made, mut sink) = (None, None::<TreeSink>);
        let mut broken = None;
        while let Some(slice) = self.spool.take().map_err(|Gone| self.given_up())? {
            if let Some(make) = make.take() {
                let (begun, made) = make()?;
                (_made, sink) = (made, Some(begun));
            }
            let slice: Bytes = Arc::new(slice);
            hasher.update((*slice).as_ref());
            let Some(open) = &mut sink else { continue };
            match unpacker.take(&slice, |item, position, bytes| open.push(item, position, bytes)) {
                Ok(()) => {}
                Err(Refused::Io(fact)) => {
                    // Other hosts must not wait until what was made is removed.
                    self.spool.leave(false);
                    return Err(Fault::unwritable(&fact));
                }
                // The stream is not a tree, or not the source's tree. The proof will tell which.
                Err(refused) => {
                    open.discard();
                    (sink, broken) = (None, Some(refused));
                }
            }
        }
        let proof = self.await_proof()?;
        if proof_of(&hasher, proof.tree) != proof {
            sink.iter_mut().for_each(TreeSink::discard_forged);
            let detail = "data from an earlier host does not match the source; unpublished files are discarded";
            return Err(Fault::misled(detail));
        }
        let sink = sink.as_mut().filter(|_| unpacker.has_ended());
        let Some(sink) = sink else {
            let refused =
                broken.map_or_else(|| "the stream has no end record".to_owned(), |refused| refused.to_string());
            return Err(Fault::plain(Exit::Protocol.code(), refused));
        };
        match sink.finish() {
            Ok(received) => {
                summary.figures.written = received.written;
                summary.received_tree = Some(received);
                Ok(())
            }
            Err(Refused::Io(fact)) => Err(Fault::unwritable(&fact)),
            Err(refused) => Err(Fault::plain(Exit::Protocol.code(), refused.to_string())),
        }
    }

    /// Waits for the proof of the stream, for as long as the node lives.
    fn await_proof(&self) -> Result<BroadcastProof, Fault> {
        let proof = crate::locked(&self.proof);
        let waiting = self.is_decided.wait_while(proof, |proof| proof.is_none() && !self.is_stopped());
        let proof = *waiting.expect("no panics under it");
        proof.ok_or_else(|| self.given_up())
    }
}

mod stream;

#[cfg(test)]
mod tests;
