//! The MTU of an endpoint's port, for reports.

use std::net::SocketAddr;

use rd_verbs::{EventChannel, Id};

use super::Endpoint;
use super::devices::hold;

/// The properties of an endpoint's port that limit the size of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMtu {
    /// The MTU in use, in bytes of payload; meaningless on iWARP.
    pub mtu_bytes: u32,
    /// The largest MTU that the port supports, in bytes of payload.
    pub mtu_max_bytes: u32,
    /// Whether the device is iWARP, that is, RDMA over TCP, whose segments are the packets.
    pub is_iwarp: bool,
}

/// Asks the device of an endpoint; `None` if the device is gone.
pub fn port_mtu(endpoint: &Endpoint) -> Option<PortMtu> {
    let held = hold(endpoint.address).ok()?;
    let channel = EventChannel::new().ok()?;
    let mut id = Id::new(&channel).ok()?;
    id.bind(SocketAddr::new(endpoint.address, 0)).ok()?;
    let port = if held.device.has(&id) { held.device.port_of(&id).ok()? } else { return None };
    Some(PortMtu {
        mtu_bytes: port.active_mtu_bytes,
        mtu_max_bytes: port.max_mtu_bytes,
        is_iwarp: held.device.is_iwarp(),
    })
}
