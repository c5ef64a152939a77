//! The parts of a transfer: the events that reach its loop, the direction of the payload, and the maker of its lanes.

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

/// Maximum number of events waiting for the loop. A peer that floods the loop with control frames has to wait as well.
const EVENTS_MAX: usize = 4096;

/// Creates the loop's channel. Only the loop takes events from it, so the loop never blocks on posting: it would wait
/// for itself.
pub fn channel() -> (Post<Event>, Queue<Event>) {
    bounded(EVENTS_MAX)
}

/// An event for the loop.
#[derive(Debug)]
pub enum Event {
    /// A lane reports an event.
    Lane(LaneId, LaneEvent),
    /// A lane has come up.
    LaneUp(LaneId, Box<dyn Lane>, Box<ControlChannel>),
    /// A lane could not be made.
    DialFailed(LaneId, LinkError),
    /// The RDMA listeners of this end.
    Endpoints(Vec<Endpoint>),
    /// The addresses on which this end listens.
    Addresses(Vec<RailAddress>),
    /// A peer has connected.
    Incoming(Incoming),
    /// The stream's reader has filled a buffer.
    Filled(Buffer, Part),
    /// A chunk is sealed.
    Sealed(Buffer, ChunkHeader),
    /// The source had no more data for this buffer.
    Unfilled(Buffer),
    /// The data for the buffer with this number is being read directly, many reads at once.
    Queued(u32),
    /// The source failed.
    SourceFailed(Buffer, IoFact),
    /// A chunk has been checked and, if genuine, opened.
    Opened(Buffer, bool),
    /// The sink has taken a chunk.
    Written(Buffer),
    /// The sink failed.
    SinkFailed(Buffer, IoFact),
    /// The sink's reader has closed it.
    SinkGone,
    /// The sink of a tree puts its answers into this queue.
    Answers(Queue<Vec<u8>>),
    /// The queue of answers has one more.
    Answer,
    /// The sink of a tree cannot go on.
    Refused(Refused),
    /// The sink has published all that could be published. For a tree, with its report.
    Committed(Result<Option<Box<TreeReport>>, Refused>),
    /// This process has received a signal.
    Signal(i32),
    /// The stream to be sent has ended before its time. The other end must not take a part for the whole.
    Cut,
    /// The caller is gone, so only the lanes show from now on whether the other end lives. After two seconds without a
    /// lane this end finishes, or thirty if it had lost its lanes long before.
    Orphaned,
    /// The channel of the other end is gone, which shows the same, except that the network may be gone as well: if this
    /// end had lost its lanes long before, the reconnect window counts.
    OtherLost,
    /// As [`Event::Orphaned`], except that the lost caller is not the other end. The session goes on as long as the
    /// other end can.
    Unwatched,
}

/// Makes lanes, at the end that connects.
pub trait Dialer: Send + Sync {
    /// Connects and authenticates one lane, over this rail of its path. Takes some seconds at most.
    ///
    /// # Errors
    ///
    /// Why the lane could not be made.
    fn dial(&self, lane: LaneId, rail: u8, report: Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError>;

    /// Records where the peer listens for RDMA from now on.
    fn handle_endpoints(&self, _endpoints: &[Endpoint]) {}

    /// Finds rails from the addresses on which the peer listens and the two addresses of a path's first lane. Returns
    /// the number of rails, and whether all of them are used whatever they carry.
    fn find_rails(&self, _path: Path, _first: [IpAddr; 2], _addresses: &[RailAddress]) -> (u8, bool) {
        (1, false)
    }

    /// Returns why a path has one rail although more were asked for. Tells it only once. `addresses` are those that the
    /// peer has announced, if it has.
    fn why_one_rail(&self, _path: Path, _addresses: Option<&[RailAddress]>) -> Option<&'static str> {
        None
    }

    /// Returns the name of a rail for messages.
    fn rail_name(&self, _path: Path, _rail: u8) -> Option<String> {
        None
    }
}

/// The direction of the payload, with its source or sink.
pub enum Work {
    /// Send this file or stream.
    Send(Source),
    /// Send a tree.
    SendTree(Box<TreeSource>),
    /// Send the data that another session of this process receives.
    SendRelay(RelayOutput),
    /// Send the data of a broadcast that this host keeps, from the offset that the other end requests.
    SendSpool(SpoolOutput),
    /// Receive the data of a broadcast that this host does not have yet.
    ReceiveSpool(SpoolInput),
    /// Receive into this file.
    ReceiveFile(FileSink),
    /// Receive a tree.
    ReceiveTree(Box<TreeSink>),
    /// Receive into the stream that this function opens.
    ReceiveStream(Box<dyn FnOnce() -> Result<StreamSink, IoFact> + Send>),
}

impl Work {
    /// Receives to a destination, or to standard output if there is none.
    ///
    /// # Errors
    ///
    /// Fails if the destination cannot be opened.
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

/// Everything that a transfer needs.
pub struct Transfer {
    /// What the two ends agreed on.
    pub agreed: Agreed,
    /// The session's secret.
    pub secret: SessionSecret,
    /// The buffers of the pool.
    pub buffers: Vec<Buffer>,
    /// Number of buffers that may be in use until the line is seen to need more.
    pub first: u32,
    /// Whether the use of further buffers also depends on how much memory is free, now and later.
    pub shares_memory: bool,
    /// The pool of the buffers.
    pub pool: Arc<Pool>,
    /// Makes lanes; `None` at the end that accepts lanes.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// Where events come from.
    pub events: Queue<Event>,
    /// Where events are posted.
    pub post: Post<Event>,
    /// What the sender compresses.
    pub compress: Compress,
    /// Rate limit of the sender in bytes per second.
    pub bwlimit: Option<u64>,
    /// Receives the events of the transfer.
    pub observer: Box<dyn Observer>,
}

/// How long a new lane may wait for room in the event channel. The running loop takes events without a pause. Before
/// the loop runs, a peer that floods the channel must not hold up the thread that is to run the loop.
const ANNOUNCE_MAX: Duration = Duration::from_secs(5);

/// Makes a lane whose reports reach the loop only after [`Event::LaneUp`].
///
/// # Errors
///
/// The error of `make`; nothing has been posted then. [`LinkError::TimedOut`] if no events are taken.
pub fn announce(
    post: &Post<Event>,
    id: LaneId,
    make: impl FnOnce(Report) -> Result<(Box<dyn Lane>, ControlChannel), LinkError>,
) -> Result<(), LinkError> {
    let early = Arc::new(Mutex::new(Some(Vec::new())));
    let report: Report = {
        let (early, post) = (Arc::clone(&early), post.clone());
        Arc::new(move |event| {
            // Events are posted under the lock, so that no event overtakes an earlier one that was held back.
            match &mut *crate::locked(&early) {
                Some(held_back) => held_back.push(event),
                // Fails only if the loop has ended.
                None => drop(post.send(Event::Lane(id, event))),
            }
        })
    };
    let (lane, control) = make(report)?;
    let mut early = crate::locked(&early);
    let deadline = Instant::now() + ANNOUNCE_MAX;
    let events = early.take().into_iter().flatten().map(|event| Event::Lane(id, event));
    for event in std::iter::once(Event::LaneUp(id, lane, Box::new(control))).chain(events) {
        if let Err(SendTimeoutError::Timeout(_)) = post.send_deadline(event, deadline) {
            return Err(LinkError::TimedOut);
        }
    }
    Ok(())
}
