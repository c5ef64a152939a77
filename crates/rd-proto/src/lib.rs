//! The protocol of rdma-pipe, without any I/O: no sockets, files, threads or clock.
//!
//! * [`frame`]: what crosses the wire, bounded encode and decode.
//! * [`session`]: the state machines of a sender and a receiver.
//!
//! Time is an argument ([`std::time::Duration`] since the session began), randomness is passed in, and every length
//! that a peer sends is checked against a named limit before anything is allocated for it.

#![forbid(unsafe_code)]

pub mod control;
pub mod frame;
pub mod session;
