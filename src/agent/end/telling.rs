//! What an end reports to its caller of a session, as messages; and what the caller makes of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rd_proto::control::Cause;
use rd_proto::handshake::LaneId;
use rd_proto::session::{Counters, Notice, Outcome, RDMA_LANE_FIRST, path_of};

use crate::agent::{tree, words};
use crate::control::frames::{Fault, Message, Report};
use crate::control::tunnel::Emit;
use crate::engine::session::Ended;
use crate::engine::{Line, Observer, Read, SessionEvent, Summary, Waits};
use crate::fault::Failure;
use crate::fs::direct::write::Written;
use crate::transport::Medium;
use crate::tree::entries::EntryStream;
use crate::tree::progress::Progress;

/// Sends the caller what happens during a session.
#[derive(Clone)]
pub(super) struct Messenger {
    pub(super) emit: Emit,
    pub(super) lanes: Arc<Mutex<Vec<(Medium, String)>>>,
    /// Of files and trees.
    pub(super) progress: Option<Arc<Progress>>,
    pub(super) entries: Arc<EntryStream>,
}

impl Observer for Messenger {
    fn observe(&mut self, event: SessionEvent) {
        let message = match event {
            SessionEvent::Notice(notice, reason) => {
                let LaneId { index, generation } = match notice {
                    Notice::LaneLost(lane) => lane,
                    Notice::RailLeft(path, rail) | Notice::RailBack(path, rail) => {
                        LaneId { index: path as u16 * RDMA_LANE_FIRST + u16::from(rail), generation: 0 }
                    }
                    _ => LaneId { index: 0, generation: 0 },
                };
                let code = notices(index, generation).iter().position(|coded| *coded == notice);
                Message::Notice { code: code.expect("all have a code") as u8, index, generation, reason }
            }
            SessionEvent::LaneUp(_, medium, description) => {
                let mut lanes = self.lanes.lock().expect("no panic with it locked");
                // One of each medium is reported.
                if !lanes.iter().any(|(known, _)| *known == medium) {
                    lanes.push((medium, description));
                }
                return;
            }
            SessionEvent::Progress(counters, waits) => {
                self.entries.send_waiting();
                let tree = self.progress.as_ref().map(|progress| tree::progress(progress));
                Message::Progress { bytes: counters.bytes, waits: as_micros(waits), tree }
            }
            SessionEvent::Begun { .. } | SessionEvent::Detail(_) => return,
            event @ (SessionEvent::NoDevice { .. } | SessionEvent::LockedMemory { .. }) => {
                match words::remark(&event) {
                    Some(line) => Message::Say(line),
                    None => return,
                }
            }
        };
        (self.emit)(message);
    }
}

/// The notice that a message has; `None` for one that this version does not know.
pub(crate) fn notice(code: u8, index: u16, generation: u32) -> Option<Notice> {
    notices(index, generation).get(usize::from(code)).copied()
}

/// All notices of a lane, or of the rail whose number is in the place of a lane's of its path: each at its code.
fn notices(index: u16, generation: u32) -> [Notice; 7] {
    let lane = LaneId { index, generation };
    let (path, rail) = (path_of(lane), (index % RDMA_LANE_FIRST) as u8);
    [
        Notice::FellBack,
        Notice::BackOnRdma,
        Notice::LinkLost,
        Notice::LinkRestored,
        Notice::LaneLost(lane),
        Notice::RailLeft(path, rail),
        Notice::RailBack(path, rail),
    ]
}

pub(super) fn plain(failure: &Failure) -> Fault {
    Fault::plain(failure.exit.code(), failure.message.clone().unwrap_or_default())
}

pub(super) fn report(ended: &Ended, lanes: &[(Medium, String)]) -> Report {
    let Ended { summary, peer } = ended;
    let failure = words::outcome(&summary.outcome, summary.reason.as_deref(), peer);
    let fault = failure.as_ref().map(|failure| match &summary.outcome {
        Outcome::Aborted(Cause::Source(fact)) => Fault::unreadable(fact),
        Outcome::Aborted(Cause::Sink(fact)) => Fault::unwritable(fact),
        Outcome::Aborted(Cause::Integrity) if summary.is_forged => {
            Fault::misled(format!("what {peer} has given is not what the source has"))
        }
        Outcome::PeerAborted(_) | Outcome::LinkLost { .. } => Fault { own: false, ..plain(failure) },
        _ => plain(failure),
    });
    let route = summary.media.first().and_then(|first| lanes.iter().find(|(medium, _)| medium == first));
    let mut report = Report {
        fault,
        bytes: summary.counters.bytes,
        micros: (summary.seconds * 1e6) as u64,
        media: summary.media.iter().map(|medium| medium.name().to_owned()).collect(),
        route: route.map(|(_, route)| route.clone()).unwrap_or_default(),
        lanes: summary.lanes as u32,
        round_trip_us: summary.line.round_trip.map_or(0, |trip| trip.as_micros() as u64),
        buffer_bytes: summary.line.buffer_bytes,
        rails: summary.line.rails as u32,
        encrypted: summary.encrypted,
        retries: summary.counters.retries,
        replayed: summary.counters.replayed,
        corrupt: summary.counters.corrupt,
        waits: as_micros(summary.waits),
        read_direct_bytes: summary.read.direct_bytes,
        read_cached_bytes: summary.read.cached_bytes,
        written_direct_bytes: summary.written.direct_bytes,
        written_buffered_bytes: summary.written.buffered_bytes,
        ..Report::default()
    };
    tree::add_to(&mut report, summary);
    report
}

fn as_micros(waits: Waits) -> Vec<u64> {
    waits.to_array().map(|seconds| (seconds * 1e6) as u64).to_vec()
}

/// Where the time went, as an end tells it; an older one may not know all of it.
pub(crate) fn waits(micros: &[u64]) -> Waits {
    Waits::from_array(std::array::from_fn(|at| micros.get(at).map_or(0.0, |&micros| micros as f64 / 1e6)))
}

/// How an end has written files.
pub(crate) fn written(report: &Report) -> Written {
    Written { direct_bytes: report.written_direct_bytes, buffered_bytes: report.written_buffered_bytes }
}

/// What an end has reported, as the summary of a session here.
pub(crate) fn summary(report: &Report) -> Summary {
    Summary {
        counters: Counters {
            // Of a tree, what is in its files counts, not what tells about them.
            bytes: if report.entries > 0 { report.data_bytes } else { report.bytes },
            retries: report.retries,
            replayed: report.replayed,
            corrupt: report.corrupt,
            ..Counters::default()
        },
        seconds: report.micros as f64 / 1e6,
        waits: waits(&report.waits),
        media: report.media.iter().filter_map(|name| Medium::from_name(name)).collect(),
        lanes: report.lanes as usize,
        line: Line {
            round_trip: (report.round_trip_us > 0).then(|| Duration::from_micros(report.round_trip_us)),
            buffer_bytes: report.buffer_bytes,
            rails: report.rails as usize,
        },
        encrypted: report.encrypted,
        read: Read { direct_bytes: report.read_direct_bytes, cached_bytes: report.read_cached_bytes },
        written: written(report),
        ..Summary::default()
    }
}
