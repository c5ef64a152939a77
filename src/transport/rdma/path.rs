//! What an endpoint's packets can be, for reports.

use super::Endpoint;
use super::devices::hold;

/// The properties of an endpoint's port that bound its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMtu {
    /// The MTU in use, in bytes of payload; of no meaning on iWARP.
    pub mtu_bytes: u32,
    /// The largest MTU that the port can have, in bytes of payload.
    pub mtu_max_bytes: u32,
    /// RDMA over TCP, whose segments are the packets.
    pub is_iwarp: bool,
}

/// Asks the device of an endpoint; `None` where it has gone.
pub fn port_mtu(endpoint: &Endpoint) -> Option<PortMtu> {
    let held = hold(endpoint.address).ok()?;
    let port = held.device.port().ok()?;
    Some(PortMtu {
        mtu_bytes: port.active_mtu_bytes,
        mtu_max_bytes: port.max_mtu_bytes,
        is_iwarp: held.device.is_iwarp(),
    })
}
