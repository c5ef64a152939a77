//! The protocol of rdma-pipe, without any I/O: no sockets, files, threads or clock.
//!
//! * [`frame`], [`control`]: encoding and bounded decoding of what crosses the wire.
//! * [`handshake`]: authentication of a lane, and its control channel.
//! * [`record`], [`compress`]: protection and compression of a chunk's payload.
//! * [`session`]: the state machines of a sender and a receiver.
//! * [`tree`]: the records of a tree; [`broadcast`]: a tree as one stream for many hosts.
//!
//! Time is an argument ([`std::time::Duration`] since the session began) and randomness is passed in. Every length that
//! a peer sends is checked against a named limit before anything is allocated for it.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros,
        reason = "tests read their corpus and print their seed"
    )
)]

pub mod broadcast;
pub mod compress;
pub mod control;
#[cfg(test)]
mod corpus;
pub mod frame;
pub mod handshake;
mod reader;
pub mod record;
pub mod session;
pub mod tree;
