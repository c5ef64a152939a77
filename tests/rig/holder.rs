//! A hand-made peer. It has KEY and completes the handshake, and then behaves as no real end does.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rd_proto::control::{Encrypt, Offer, Policy, RdmaKind, Role};
use rd_proto::handshake::{Established, Key, LaneId, SessionId, connect_first, connect_join};
use rdma_pipe::engine::link::{LinkError, authenticate, exchange_offers, rng, with_length};

use super::{CHUNK, KEY};

/// The first lane of a session, authenticated.
pub struct Holder {
    port: u16,
    stream: TcpStream,
    established: Established,
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    stream
}

impl Holder {
    /// Starts a session with this key.
    pub fn first(port: u16, key: &str) -> Self {
        let key = Key::new(key.as_bytes().to_vec()).expect("not empty");
        let mut stream = connect(port);
        let hello = connect_first(&key, SessionId::random(&mut rng()), &mut rng());
        let deadline = Instant::now() + Duration::from_secs(5);
        let established = authenticate(&mut stream, hello, deadline).expect("the right key");
        Self { port, stream, established }
    }

    /// Starts a session with [`KEY`].
    pub fn with_key(port: u16) -> Self {
        Self::first(port, KEY)
    }

    /// Opens another lane of the session, and returns the confirming message without sending it.
    pub fn half_lane(&self, index: u16, generation: u32) -> (TcpStream, Vec<u8>) {
        let mut stream = connect(self.port);
        let lane = LaneId { index, generation };
        let (state, hello) = connect_join(&self.established.secret, self.established.session, lane, &mut rng());
        stream.write_all(&with_length(&hello)).expect("sent");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("the session is served");
        let mut reply = vec![0; usize::from(u16::from_le_bytes(length))];
        stream.read_exact(&mut reply).expect("an answer");
        let (_, confirm) = state.finish(&reply).expect("the right secret");
        (stream, with_length(&confirm))
    }

    /// Opens another lane of the session.
    pub fn lane(&self, index: u16, generation: u32) -> TcpStream {
        let (mut stream, confirm) = self.half_lane(index, generation);
        stream.write_all(&confirm).expect("sent");
        stream
    }

    /// Sends an offer with this role, and returns the other end's offer.
    pub fn offer(&mut self, role: Role) -> Result<Offer, LinkError> {
        let offer = Offer {
            role,
            policy: Policy::Tcp,
            encrypt: Encrypt::Auto,
            peer_is_local: true,
            lanes: 0,
            chunk_bytes: CHUNK as u32,
            reconnect_s: 30,
            size_bytes: None,
            rdma: RdmaKind::None,
            ticket: [0; 16],
            host: Vec::new(),
        };
        exchange_offers(&mut self.stream, &mut self.established.control, &offer)
    }
}
