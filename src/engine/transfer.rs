//! What a transfer is made of: what reaches its loop, which way payload flows, and who makes its lanes.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::{Receiver as Queue, SendTimeoutError, Sender as Post, bounded};
use rd_proto::control::{Endpoint, IoFact, Path, RailAddress};
use rd_proto::frame::ChunkHeader;
use rd_proto::handshake::{ControlChannel, LaneId, SessionSecret};
use rd_proto::session::Agreed;

use super::Observer;
use super::link::LinkError;
use super::listen::Incoming;
use crate::fs::sink::{FileSink, StreamSink, Target};
use crate::fs::source::{Part, Source};
use crate::fs::standard;
use crate::options::Compress;
use crate::transport::relay::RelayOutput;
use crate::transport::spool::{SpoolInput, SpoolOutput};
use crate::transport::{Buffer, Lane, LaneEvent, Pool, Report};
use crate::tree::sink::{Refused, Report as TreeReport, TreeSink};
use crate::tree::source::TreeSource;

/// Events that may wait for the loop. A peer that floods it with control frames waits in its turn.
const EVENTS_MAX: usize = 4096;

/// The loop's channel. Only the loop takes from it, and it never posts with waiting: that would be for itself.
pub fn channel() -> (Post<Event>, Queue<Event>) {
    bounded(EVENTS_MAX)
}

/// What reaches the loop.
#[derive(Debug)]
pub enum Event {
    /// A lane reports.
    Lane(LaneId, LaneEvent),
    /// A lane is there.
    LaneUp(LaneId, Box<dyn Lane>, Box<ControlChannel>),
    /// A lane could not be made.
    DialFailed(LaneId, LinkError),
    /// This end's RDMA listeners.
    Endpoints(Vec<Endpoint>),
    /// The addresses at which this end listens.
    Addresses(Vec<RailAddress>),
    /// A peer has connected.
    Incoming(Incoming),
    /// The stream's reader has filled a buffer.
    Filled(Buffer, Part),
    /// A chunk is sealed.
    Sealed(Buffer, ChunkHeader),
    /// The source had nothing more for this buffer.
    Unfilled(Buffer),
    /// What goes into this buffer is read by a device that does many reads at once.
    Queued(u32),
    /// The source failed.
    SourceFailed(Buffer, IoFact),
    /// A chunk has been checked and, if genuine, opened.
    Opened(Buffer, bool),
    /// The sink has a chunk.
    Written(Buffer),
    /// The sink failed.
    SinkFailed(Buffer, IoFact),
    /// The sink's reader has closed it.
    SinkGone,
    /// The sink of a tree puts its answers here.
    Answers(Queue<Vec<u8>>),
    /// One more is there.
    Answer,
    /// The sink of a tree cannot go on.
    Refused(Refused),
    /// The sink has published what could be; of a tree, what came of it.
    Committed(Result<Option<Box<TreeReport>>, Refused>),
    /// A signal to this process.
    Signal(i32),
    /// The other end can be heard only by its lanes from now on: two seconds without one end this one.
    Orphaned,
    /// As [`Event::Orphaned`], and the caller, which is not the other end, cannot be reached any more: the session goes on as
    /// long as the other end can.
    Unwatched,
}

/// Makes lanes, from the end that connects.
pub trait Dialer: Send + Sync {
    /// Connects and authenticates one lane, by that rail of its path; takes some seconds at most.
    ///
    /// # Errors
    ///
    /// Why there is no lane.
    fn dial(&self, lane: LaneId, rail: u8, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError>;

    /// Where the peer listens for RDMA from now on.
    fn handle_endpoints(&self, _endpoints: &[Endpoint]) {}

    /// At which addresses the peer listens, and the two that the first lane of a path went by. How many rails that makes, and
    /// whether all are used whatever they carry.
    fn find_rails(&self, _path: Path, _first: [IpAddr; 2], _addresses: &[RailAddress]) -> (u8, bool) {
        (1, false)
    }

    /// What a person would call a rail.
    fn rail_name(&self, _path: Path, _rail: u8) -> Option<String> {
        None
    }
}

/// Which way payload flows, and from or to what.
pub enum Work {
    /// Send this.
    Send(Source),
    /// Send a tree.
    SendTree(Box<TreeSource>),
    /// Send what another session of this process receives.
    SendRelay(RelayOutput),
    /// Send what this host keeps of a broadcast, from where the other end says.
    SendSpool(SpoolOutput),
    /// Receive what this host has not got of a broadcast.
    ReceiveSpool(SpoolInput),
    /// Receive into this file.
    ReceiveFile(FileSink),
    /// Receive a tree.
    ReceiveTree(Box<TreeSink>),
    /// Receive into what this opens.
    ReceiveStream(Box<dyn FnOnce() -> Result<StreamSink, IoFact> + Send>),
}

impl Work {
    /// Receives to a destination, or to standard output without one.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn receive(target: Option<&Target>) -> Result<Self, IoFact> {
        match target {
            Some(Target::File(path)) => FileSink::create(path).map(Self::ReceiveFile),
            Some(Target::Special(path)) => {
                let path = path.clone();
                Ok(Self::ReceiveStream(Box::new(move || StreamSink::open(&path))))
            }
            None => {
                let output = standard::named_output()?;
                Ok(Self::ReceiveStream(Box::new(move || Ok(StreamSink::new(output, standard::OUTPUT.as_ref())))))
            }
        }
    }
}

/// All that a transfer needs.
pub struct Transfer {
    /// What the two ends agreed on.
    pub agreed: Agreed,
    /// The session's secret.
    pub secret: SessionSecret,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// So many of them may be in use until the line is seen to need more.
    pub first: u32,
    /// More than that only as far as memory is free, now and later.
    pub shares_memory: bool,
    /// Their pool.
    pub pool: Arc<Pool>,
    /// Makes lanes; `None` at the end that accepts them.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// Where events come from.
    pub events: Queue<Event>,
    /// Where they are posted.
    pub post: Post<Event>,
    /// What to compress, at the sender.
    pub compress: Compress,
    /// Bytes a second, at the sender.
    pub bwlimit: Option<u64>,
    /// Sees what happens.
    pub observer: Box<dyn Observer>,
}

/// How long a new lane may wait for room among the events. The loop takes them without a pause; before it runs, a peer that
/// floods a channel that is not read yet must not hold up the thread that is to run it.
const ANNOUNCE_MAX: Duration = Duration::from_secs(5);

/// Makes a lane whose reports reach the loop only after [`Event::LaneUp`] has.
///
/// # Errors
///
/// What `make` answered; nothing has been posted then. [`LinkError::TimedOut`] where no events are taken.
pub fn announce(
    post: &Post<Event>,
    id: LaneId,
    make: impl FnOnce(Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError>,
) -> Result<(), LinkError> {
    let early = Arc::new(Mutex::new(Some(Vec::new())));
    let report: Report = {
        let (early, post) = (Arc::clone(&early), post.clone());
        Arc::new(move |event| {
            // Posting happens under the lock, so that no event overtakes one that was held back.
            match &mut *early.lock().expect("no panic with it locked") {
                Some(held_back) => held_back.push(event),
                // It fails only when the loop has ended.
                None => drop(post.send(Event::Lane(id, event))),
            }
        })
    };
    let (lane, control) = make(report)?;
    let mut early = early.lock().expect("no panic with it locked");
    let deadline = Instant::now() + ANNOUNCE_MAX;
    let events = early.take().into_iter().flatten().map(|event| Event::Lane(id, event));
    for event in std::iter::once(Event::LaneUp(id, lane, Box::new(control))).chain(events) {
        if let Err(SendTimeoutError::Timeout(_)) = post.send_deadline(event, deadline) {
            return Err(LinkError::TimedOut);
        }
    }
    Ok(())
}
