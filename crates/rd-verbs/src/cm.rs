//! Connections: the event channel and identifiers of librdmacm.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use crate::library::{Api, api};
use crate::{Error, check, ffi, set_nonblocking};

/// A channel on which connection events arrive. Reading never blocks: poll its descriptor.
pub struct EventChannel {
    raw: NonNull<ffi::CmChannel>,
    api: &'static Api,
    /// librdmacm moves a queue pair through its states while reading an event, so that reading and destroying must not
    /// overlap.
    reading: Mutex<()>,
}

// SAFETY: librdmacm locks the data that its calls share, except where an event is read while a queue pair is destroyed.
// `reading` locks that.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] without the libraries or without kernel support; `ENODEV` if there is no device.
    pub fn new() -> Result<Arc<Self>, Error> {
        let api = api()?;
        // SAFETY: the call takes no arguments and returns an owned channel or NULL.
        let raw = NonNull::new(unsafe { (api.rdma_create_event_channel)() })
            .ok_or_else(|| Error::last("rdma_create_event_channel"))?;
        let channel = Self { raw, api, reading: Mutex::new(()) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as `self`, and its descriptor never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// Returns the next event, or `None` if there is none now. The event has been acknowledged: everything in it is a
    /// copy.
    ///
    /// # Errors
    ///
    /// The error of `rdma_get_cm_event`. This call moves a queue pair to the connected state, so that the error may
    /// also be the device's.
    pub fn next_event(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        let _reading = self.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open, and `raw` receives an event that is owned here until it is acknowledged.
        if unsafe { (self.api.rdma_get_cm_event)(self.raw.as_ptr(), &mut raw) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if error.errno() == Some(libc::EAGAIN) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the call returned an event, which is valid until acknowledged below.
        let event = unsafe { &*raw };
        let kind = EventKind::from_raw(event.event);
        let private_data = if kind == EventKind::ConnectRequest && !event.conn.private_data.is_null() {
            let length = usize::from(event.conn.private_data_len);
            // SAFETY: librdmacm gives `private_data_len` valid bytes within the event.
            unsafe { std::slice::from_raw_parts(event.conn.private_data.cast::<u8>(), length) }.to_vec()
        } else {
            Vec::new()
        };
        let id = IdKey(event.id as usize);
        let incoming = (kind == EventKind::ConnectRequest)
            .then(|| NonNull::new(event.id))
            .flatten()
            .map(|raw| Id { raw, channel: Arc::clone(self) });
        let event = Event { kind, status: event.status, id, private_data, incoming };
        // SAFETY: the event is acknowledged exactly once, and nothing of it is used afterwards.
        unsafe { (self.api.rdma_ack_cm_event)(raw) };
        Ok(Some(event))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every `Id` holds an `Arc` of its channel, so that no identifier is left. All events were
        // acknowledged.
        unsafe { (self.api.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// What happened on an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The address was resolved.
    AddressResolved,
    /// The route was resolved.
    RouteResolved,
    /// A peer asks to connect; the event carries the new identifier.
    ConnectRequest,
    /// The address or the route could not be resolved, connecting failed, or the peer did not answer.
    Failed,
    /// The peer rejected the request, or no process listens.
    Rejected,
    /// Connected.
    Established,
    /// The peer has disconnected, or is gone.
    Disconnected,
    /// The device is being removed: everything on it must be dropped.
    DeviceRemoval,
    /// Any other event, by its number.
    Other(u32),
}

impl EventKind {
    fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::AddressResolved,
            1 | 3 | 6 | 7 => Self::Failed,
            2 => Self::RouteResolved,
            4 => Self::ConnectRequest,
            8 => Self::Rejected,
            9 => Self::Established,
            10 => Self::Disconnected,
            11 => Self::DeviceRemoval,
            other => Self::Other(other),
        }
    }
}

/// A copy of one connection event.
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// A negative errno, or the transport's reason; 0 if nothing is wrong.
    pub status: i32,
    /// The identifier on which the event occurred; compare with [`Id::key`].
    pub id: IdKey,
    /// Private data that the peer sent with a connect request, as it arrived: some transports pad it with zeros.
    pub private_data: Vec<u8>,
    /// The new identifier of a connect request. Dropping the identifier rejects the request, which the peer sees.
    pub incoming: Option<Id>,
}

/// Key of an identifier, by which events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdKey(usize);

/// Parameters of a connect or an accept.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParameters<'a> {
    /// Private data; at most 56 bytes in a connect request.
    pub private_data: &'a [u8],
    /// Number of retries of a message that is not acknowledged, 0 to 7.
    pub retry_count: u8,
    /// Number of retries of a message that found no receive posted, 0 to 7, where 7 is without limit.
    pub rnr_retry_count: u8,
}

impl ConnectParameters<'_> {
    fn raw(&self) -> ffi::ConnParam {
        ffi::ConnParam {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).expect("private data of at most 56 bytes"),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// A connection identifier, which is to RDMA what a socket is to TCP.
pub struct Id {
    pub(crate) raw: NonNull<ffi::CmId>,
    /// Dropped after the identifier, which is destroyed through the channel.
    pub(crate) channel: Arc<EventChannel>,
}

// SAFETY: librdmacm's calls on an identifier are ioctls on the channel's descriptor, and its own bookkeeping is locked.
unsafe impl Send for Id {}
// SAFETY: as above; the calls that change an identifier's fields take `&mut self` or are made before it is shared.
unsafe impl Sync for Id {}

impl Id {
    /// Makes an identifier whose events arrive on `channel`.
    ///
    /// # Errors
    ///
    /// The error of `rdma_create_id`.
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open and outlives the identifier, which holds it.
        let answer =
            unsafe { (channel.api.rdma_create_id)(channel.raw.as_ptr(), &mut raw, ptr::null_mut(), ffi::PS_TCP) };
        check("rdma_create_id", answer)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("rdma_create_id"))?;
        Ok(Self { raw, channel: Arc::clone(channel) })
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.channel.api
    }

    /// Returns the key by which events name this identifier ([`Event::id`]).
    pub fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr() as usize)
    }

    pub(crate) fn context(&self) -> Option<NonNull<ffi::Context>> {
        // SAFETY: the identifier is alive; librdmacm sets `verbs` once, when it is bound to a device.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// Binds to a local address and, if the address belongs to a device, to that device.
    ///
    /// # Errors
    ///
    /// The error of `rdma_bind_addr`: `EADDRINUSE`, `ENODEV`, `EADDRNOTAVAIL`…
    pub fn bind(&mut self, address: SocketAddr) -> Result<(), Error> {
        let address = SockaddrStorage::from(address);
        // SAFETY: the address is a complete sockaddr of its family, which the call reads.
        check("rdma_bind_addr", unsafe { (self.api().rdma_bind_addr)(self.raw.as_ptr(), address.as_ptr().cast_mut()) })
    }

    /// Reports whether a bound identifier has a device.
    pub fn has_device(&self) -> bool {
        self.context().is_some()
    }

    /// Starts resolving `remote` from `local`, whose port may be 0. The outcome arrives as an event.
    ///
    /// # Errors
    ///
    /// The error of `rdma_resolve_addr`.
    pub fn resolve_address(&mut self, local: SocketAddr, remote: SocketAddr, timeout: Duration) -> Result<(), Error> {
        let (local, remote) = (SockaddrStorage::from(local), SockaddrStorage::from(remote));
        // SAFETY: both addresses are complete sockaddrs of their families, which the call reads.
        let answer = unsafe {
            (self.api().rdma_resolve_addr)(
                self.raw.as_ptr(),
                local.as_ptr().cast_mut(),
                remote.as_ptr().cast_mut(),
                milliseconds(timeout),
            )
        };
        check("rdma_resolve_addr", answer)
    }

    /// Starts resolving the route. The outcome arrives as an event.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the address has not been resolved before, else the error of `rdma_resolve_route`.
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), Error> {
        if !self.has_device() {
            return Err(Error::Call { call: "rdma_resolve_route", errno: libc::ENODEV });
        }
        // SAFETY: the identifier is bound to a device, which the call accesses.
        check("rdma_resolve_route", unsafe {
            (self.api().rdma_resolve_route)(self.raw.as_ptr(), milliseconds(timeout))
        })
    }

    /// Sets how long a packet may stay unacknowledged: 4.096 µs × 2^`exponent`. Must be called before connecting.
    ///
    /// # Errors
    ///
    /// The error of `rdma_set_option`; iWARP has no such option.
    pub fn set_ack_timeout(&mut self, exponent: u8) -> Result<(), Error> {
        let mut exponent = exponent;
        // SAFETY: the option is one byte, copied during the call.
        check("rdma_set_option", unsafe {
            (self.api().rdma_set_option)(
                self.raw.as_ptr(),
                ffi::OPTION_ID,
                ffi::OPTION_ID_ACK_TIMEOUT,
                (&raw mut exponent).cast(),
                1,
            )
        })
    }

    /// Listens for connect requests, which arrive as events.
    ///
    /// # Errors
    ///
    /// The error of `rdma_listen`. On iWARP, `EADDRINUSE` also if a TCP port is taken.
    pub fn listen(&mut self, backlog: u16) -> Result<(), Error> {
        // SAFETY: the identifier is alive.
        check("rdma_listen", unsafe { (self.api().rdma_listen)(self.raw.as_ptr(), c_int::from(backlog)) })
    }

    /// Refuses a connect request.
    pub fn reject(self) {
        // SAFETY: the identifier is alive. A failure means that the peer has gone, which is as good.
        unsafe { (self.api().rdma_reject)(self.raw.as_ptr(), ptr::null(), 0) };
    }

    /// Asks the peer to connect. The queue pair must exist already. The outcome arrives as an event.
    ///
    /// On iWARP this may block in the kernel for as long as a TCP connect does.
    ///
    /// # Errors
    ///
    /// The error of `rdma_connect`.
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut raw = parameters.raw();
        // SAFETY: `raw` points to private data that outlives the call, which copies it.
        check("rdma_connect", unsafe { (self.api().rdma_connect)(self.raw.as_ptr(), &mut raw) })
    }

    /// Accepts a connect request. The queue pair must exist already, with the receives that the peer may use at once.
    ///
    /// # Errors
    ///
    /// The error of `rdma_accept`.
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut raw = parameters.raw();
        // SAFETY: as in `connect`.
        check("rdma_accept", unsafe { (self.api().rdma_accept)(self.raw.as_ptr(), &mut raw) })
    }

    /// Disconnects; the peer gets an event. Posted work is flushed: it completes with an error.
    ///
    /// # Errors
    ///
    /// The error of `rdma_disconnect`; `EINVAL` if the identifier was not connected.
    pub fn disconnect(&self) -> Result<(), Error> {
        if !self.has_device() {
            return Err(Error::Call { call: "rdma_disconnect", errno: libc::EINVAL });
        }
        // SAFETY: the identifier is bound to a device, which the call accesses.
        check("rdma_disconnect", unsafe { (self.api().rdma_disconnect)(self.raw.as_ptr()) })
    }

    /// Moves the identifier and its pending events to another channel.
    ///
    /// # Errors
    ///
    /// The error of `rdma_migrate_id`. The identifier then stays on its channel.
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        // SAFETY: both channels are open, and all events that were read have been acknowledged.
        check("rdma_migrate_id", unsafe { (self.api().rdma_migrate_id)(self.raw.as_ptr(), channel.raw.as_ptr()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// Returns the local address, with the port that was bound.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive.
        address_of(unsafe { &(*self.raw.as_ptr()).route.addr.src })
    }

    /// Returns the peer's address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as in `local_address`.
        address_of(unsafe { &(*self.raw.as_ptr()).route.addr.dst })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the identifier is destroyed once, after its owner has destroyed any queue pair on it. All its events
        // are acknowledged, so that the call does not wait for any.
        unsafe { (self.api().rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// Converts a socket address from its form in C; `None` for families other than IPv4 and IPv6.
pub(crate) fn socket_address(raw: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = raw.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| raw.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

/// Converts one of an identifier's addresses.
fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let length = size_of_val(storage) as libc::socklen_t;
    // SAFETY: the storage is complete, and its family says what it holds.
    socket_address(&unsafe { SockaddrStorage::from_raw(ptr::from_ref(storage).cast(), Some(length)) }?)
}
