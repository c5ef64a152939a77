//! Bounds on the contents of a message. The bound on a message's length does not bound memory well, because a list
//! member may take one byte of a message and a hundred bytes of memory. So the number of list members is bounded too.

use crate::tree::entries::{ENTRIES_MAX, Entry};
use crate::tree::watch::{TOUCHED_BYTES_MAX, TOUCHED_MAX};

use super::{
    BroadcastState, FAULTS_MAX, FOUND_MAX, KEPT_PATH_BYTES_MAX, LOG_ABOUT_BYTES_MAX, LOG_TEXT_BYTES_MAX,
    MANIFEST_PIECE_BYTES, Message, PROGRESS_NAME_BYTES_MAX, SPOOL_BYTES_MAX,
};

/// Maximum number of endpoints of one end.
const ENDPOINTS_MAX: usize = 64;

/// Maximum number of media in a report.
const MEDIA_MAX: usize = 64;

impl Message {
    /// Whether the message's lists and options are within their bounds.
    pub(super) fn is_within_bounds(&self) -> bool {
        match self {
            Self::Begin(begin) => begin.options.is_valid(),
            Self::Found(found) => found.len() <= FOUND_MAX,
            Self::EntriesFailed(faults) => faults.len() <= FAULTS_MAX,
            Self::Entries(entries) => entries.len() <= ENTRIES_MAX && entries.iter().all(Entry::is_valid),
            Self::Manifest(piece) => piece.len() <= MANIFEST_PIECE_BYTES,
            Self::Listening(endpoints) | Self::Dial { endpoints, .. } => endpoints.len() <= ENDPOINTS_MAX,
            Self::Changed(Some(directories)) => {
                directories.len() <= TOUCHED_MAX
                    && directories.iter().map(|path| path.len()).sum::<usize>() <= TOUCHED_BYTES_MAX
            }
            Self::Placed(placed) => placed.addresses.len() <= ENDPOINTS_MAX,
            Self::Kept(kept) => kept.path.len() <= KEPT_PATH_BYTES_MAX,
            Self::LogLine(line) => line.about.len() <= LOG_ABOUT_BYTES_MAX && line.text.len() <= LOG_TEXT_BYTES_MAX,
            Self::BeginBroadcast(broadcast) => broadcast.spool_bytes <= SPOOL_BYTES_MAX,
            Self::Progress { tree: Some(tree), .. } | Self::BroadcastState(BroadcastState { tree: Some(tree), .. }) => {
                tree.name.len() <= PROGRESS_NAME_BYTES_MAX
            }
            Self::Ended(report) | Self::BroadcastEnded(report) => report.figures.media.len() <= MEDIA_MAX,
            _ => true,
        }
    }
}
