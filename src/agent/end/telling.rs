//! Messages in which an end reports to its caller about a session.

use std::sync::{Arc, Mutex};

use rd_proto::control::Cause;
use rd_proto::session::Outcome;

use crate::agent::{tree, words};
use crate::control::frames::{Fault, Message, Report};
use crate::control::tunnel::Emit;
use crate::engine::session::Ended;
use crate::engine::{Observer, SessionEvent};
use crate::fault::Failure;
use crate::transport::Medium;
use crate::tree::entries::EntryStream;
use crate::tree::progress::Progress;

/// Sends the caller a message for each event of a session.
#[derive(Clone)]
pub(super) struct Messenger {
    pub(super) emit: Emit,
    pub(super) lanes: Arc<Mutex<Vec<(Medium, String)>>>,
    /// Progress of files and trees, if they are transferred.
    pub(super) progress: Option<Arc<Progress>>,
    pub(super) entries: Arc<EntryStream>,
}

impl Observer for Messenger {
    fn observe(&mut self, event: SessionEvent) {
        let message = match event {
            SessionEvent::Notice(notice, reason) => Message::Notice(notice, reason),
            SessionEvent::LaneUp(_, medium, description) => {
                let mut lanes = crate::locked(&self.lanes);
                // One lane of each medium is reported.
                if !lanes.iter().any(|(known, _)| *known == medium) {
                    lanes.push((medium, description));
                }
                return;
            }
            SessionEvent::Progress(counters, waits) => {
                self.entries.send_waiting();
                let tree = self.progress.as_ref().map(|progress| tree::progress(progress));
                Message::Progress { bytes: counters.bytes, waits, tree }
            }
            other => match words::remark(&other) {
                Some(line) => Message::Say(line),
                None => return,
            },
        };
        (self.emit)(message);
    }
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
            Fault::misled(format!("data from {peer} does not match the source"))
        }
        Outcome::PeerAborted(_) | Outcome::LinkLost { .. } => Fault { own: false, ..plain(failure) },
        _ => plain(failure),
    });
    let route = summary.figures.media.first().and_then(|first| lanes.iter().find(|(medium, _)| medium == first));
    let route = route.map(|(_, route)| route.clone()).unwrap_or_default();
    Report { fault, route, figures: summary.figures.clone(), tree: tree::figures(summary) }
}
