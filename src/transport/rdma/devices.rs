//! The process's open devices, the thread that watches them, and the pool registered on them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::sys::resource::Resource;
use rd_proto::control::Endpoint as Offered;
use rd_verbs::{
    Device, Error as VerbsError, EventChannel, EventKind, Id, LoadError, MemoryRegion, ProtectionDomain,
    interface_addresses,
};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::{Wake, sleep};
use crate::limits;
use crate::transport::{LaneError, Medium, Pool};

const ENODEV: i32 = Errno::NODEV.raw_os_error();
const ENOMEM: i32 = Errno::NOMEM.raw_os_error();

/// How often the presence of a device is checked. The kernel announces a removal only to processes connected through
/// rdma_cm. Depending on the order in which its modules were loaded, even these are not told before they have released
/// the device. More frequent checks would not be free: each one interrupts a thread that polls a queue all the time.
const PRESENCE_CHECK: Duration = Duration::from_millis(300);

/// How often closing a removed device is tried, until its last user has released it.
const RELEASE_RETRY: Duration = Duration::from_millis(5);

/// How long a device may stay in use before closing it is tried less often.
const RELEASE_PROMPTLY: Duration = Duration::from_secs(2);

/// Vendor numbers that the software devices invented: siw, rxe, and old versions of rxe.
const SOFTWARE_VENDORS: [u32; 3] = [0x0062_6d74, 0x00ff_ffff, 0];

/// An address of this host that belongs to an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The kernel's name of the device, such as `mlx5_0`.
    pub device: String,
    /// [`Medium::RdmaHardware`] or [`Medium::RdmaSoftware`].
    pub medium: Medium,
    /// The address.
    pub address: IpAddr,
    /// Number of leading bits of the address that identify its subnet.
    pub prefix_bits: u8,
    /// Rate of the port in megabits per second; 0 if unknown. Software devices invent theirs.
    pub rate_mbps: u32,
    /// The MTU in use, in bytes of payload; 0 if unknown, and meaningless on iWARP.
    pub mtu_bytes: u32,
    /// The largest MTU that the port supports, in bytes of payload; 0 if unknown.
    pub mtu_max_bytes: u32,
    /// Whether the device is iWARP, that is, RDMA over TCP, whose segments are the packets.
    pub is_iwarp: bool,
}

impl Endpoint {
    /// Returns the endpoint as it is offered to a peer, listening on `port`.
    pub fn offered(&self, port: u16) -> Offered {
        Offered {
            hardware: self.medium == Medium::RdmaHardware,
            address: SocketAddr::new(self.address, port),
            prefix_bits: self.prefix_bits,
            rate_mbps: self.rate_mbps,
        }
    }
}

/// Why this host has no RDMA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The libraries or the kernel's support are missing.
    #[error(transparent)]
    NotInstalled(#[from] LoadError),
    /// There is no RDMA device.
    #[error("no RDMA device")]
    NoDevice,
    /// There is a device, but no address of this host belongs to it.
    #[error("no RDMA device has an IP address on an interface that is up")]
    NoAddress,
    /// There is a device with an address, but its port is down.
    #[error("the port of RDMA device {0} is down")]
    Down(String),
    /// Something else failed.
    #[error("cannot use RDMA: {0}")]
    Failed(VerbsError),
}

impl From<VerbsError> for Unavailable {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Load(error) => Self::NotInstalled(error),
            error if error.errno() == Some(ENODEV) => Self::NoDevice,
            error => Self::Failed(error),
        }
    }
}

/// Returns every RDMA-capable address of this host: addresses of all interfaces that are up, except loopback
/// and IPv6 link-local ones.
///
/// Takes some milliseconds. The devices found stay open and watched until they go or the process ends.
///
/// # Errors
///
/// Why there is no such address, in readable words.
pub fn endpoints() -> Result<Vec<Endpoint>, Unavailable> {
    let channel = EventChannel::new()?;
    let (mut found, mut down) = (Vec::new(), None);
    for interface in interface_addresses()? {
        let mut probe = Id::new(&channel)?;
        // For an address without a device, binding fails with ENODEV or EINVAL, or succeeds without a device.
        if probe.bind(SocketAddr::new(interface.address, 0)).is_err() || !probe.has_device() {
            continue;
        }
        // A device may have several ports.
        let Ok(held) = hold(interface.address) else { continue };
        if !held.device.has(&probe) {
            continue;
        }
        let (Ok(attributes), Ok(port)) = (held.device.attributes(), held.device.port_of(&probe)) else { continue };
        if !port.active {
            down.get_or_insert_with(|| held.device.name());
            continue;
        }
        let software = SOFTWARE_VENDORS.contains(&attributes.vendor_id);
        found.push(Endpoint {
            device: held.device.name(),
            medium: if software { Medium::RdmaSoftware } else { Medium::RdmaHardware },
            address: interface.address,
            prefix_bits: interface.prefix_bits,
            rate_mbps: port.rate_mbps,
            mtu_bytes: port.active_mtu_bytes,
            mtu_max_bytes: port.max_mtu_bytes,
            is_iwarp: held.device.is_iwarp(),
        });
    }
    if !found.is_empty() {
        return Ok(found);
    }
    if let Some(device) = down {
        return Err(Unavailable::Down(device));
    }
    // sysfs is checked, because librdmacm itself remembers a removed device until there is another one.
    let any = std::fs::read_dir("/sys/class/infiniband_verbs")
        .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())));
    Err(if any { Unavailable::NoAddress } else { Unavailable::NoDevice })
}

/// Called when a device goes. Everything made on the device must be dropped at once.
pub(super) trait Subscriber: Send + Sync {
    /// Called from the watching thread. Must not block for longer than dropping a few verbs objects takes.
    fn device_gone(&self, device: &str);
}

impl Subscriber for Wake {
    fn device_gone(&self, _device: &str) {
        self.wake();
    }
}

/// A device in use. Its owner must subscribe, or must not keep it for long.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) device: Arc<Device>,
    watch: Arc<Watch>,
}

struct Watch {
    gone: AtomicBool,
    subscribers: Mutex<Vec<Weak<dyn Subscriber>>>,
}

impl Held {
    /// Whether the device is going, so that it must be dropped.
    pub(super) fn is_gone(&self) -> bool {
        self.watch.gone.load(Ordering::Acquire)
    }

    /// Fails if the device is going.
    pub(super) fn check(&self) -> Result<(), LaneError> {
        if self.is_gone() { Err(LaneError::DeviceGone(self.device.name())) } else { Ok(()) }
    }

    /// From now on, calls `subscriber` when the device goes. If it has gone already, calls `subscriber` at once.
    pub(super) fn subscribe(&self, subscriber: &Arc<impl Subscriber + 'static>) {
        let weak: Weak<dyn Subscriber> = Arc::downgrade(subscriber) as _;
        let mut subscribers = crate::locked(&self.watch.subscribers);
        subscribers.retain(|known| known.strong_count() > 0);
        subscribers.push(weak);
        // Checked while the list is locked, because the watching thread sets `gone` before it takes the list.
        if self.is_gone() {
            drop(subscribers);
            subscriber.device_gone(&self.device.name());
        }
    }

    /// Has the device treated as gone, for a caller that learns of the removal before the watching thread.
    pub(super) fn report_gone(&self) {
        if !self.watch.gone.swap(true, Ordering::AcqRel)
            && let Ok(registry) = registry()
        {
            registry.wake.wake();
        }
    }
}

/// An open device in the registry.
struct Entry {
    held: Held,
    /// Event channel of the identifier that holds the device open.
    channel: Arc<EventChannel>,
    name: String,
    /// The device's directory in sysfs, which is the first thing to vanish when the device goes.
    sysfs_path: String,
}

impl Entry {
    /// Whether any source says that the device is going.
    fn has_gone(&self) -> bool {
        let mut gone = self.held.is_gone();
        while let Ok(Some(event)) = self.channel.next_event() {
            gone |= event.kind == EventKind::DeviceRemoval;
        }
        gone |= self.held.device.has_failed();
        gone || !exists(&self.sysfs_path)
    }
}

/// The open devices of this process. There is one list, because librdmacm keeps one context for each device.
struct Registry {
    open: Mutex<Vec<Entry>>,
    wake: Wake,
}

fn registry() -> Result<&'static Registry, VerbsError> {
    static REGISTRY: Mutex<Option<&'static Registry>> = Mutex::new(None);
    let mut known = crate::locked(&REGISTRY);
    if let Some(registry) = *known {
        return Ok(registry);
    }
    let wake = Wake::new().map_err(|error| VerbsError::Call { call: "eventfd", errno: error.raw_os_error() })?;
    let registry: &'static Registry = Box::leak(Box::new(Registry { open: Mutex::new(Vec::new()), wake }));
    crate::spawn("rd-rdma-watch", 2 << 20, || watch(registry))
        .map_err(|error| VerbsError::Call { call: "pthread_create", errno: error.raw_os_error().unwrap_or(0) })?;
    Ok(known.insert(registry))
}

/// Opens the device that has this address, or returns it if it is open already.
pub(super) fn hold(address: IpAddr) -> Result<Held, VerbsError> {
    let registry = registry()?;
    let mut open = crate::locked(&registry.open);
    let channel = EventChannel::new()?;
    let device = Device::open(&channel, address)?;
    let name = device.name();
    for entry in open.iter().filter(|entry| entry.name == name && !entry.held.is_gone()) {
        if entry.held.device.is_same(&device) {
            return Ok(entry.held.clone());
        }
        // Another device has this name now, so the known device has gone.
        entry.held.report_gone();
    }
    let device = Arc::new(device);
    let sysfs_path = device.sysfs_path();
    if !exists(&sysfs_path) {
        // The device's removal has begun, but rdma_cm does not know of it yet.
        return Err(VerbsError::Call { call: "rdma_bind_addr", errno: ENODEV });
    }
    let watch = Arc::new(Watch { gone: AtomicBool::new(false), subscribers: Mutex::new(Vec::new()) });
    let held = Held { device, watch };
    open.push(Entry { held: held.clone(), channel, name, sysfs_path });
    drop(open);
    registry.wake.wake();
    Ok(held)
}

fn exists(path: &str) -> bool {
    std::path::Path::new(path).exists()
}

/// Body of the watching thread, which lives as long as the process.
fn watch(registry: &Registry) {
    let mut going: Vec<(Instant, Arc<Device>)> = Vec::new();
    loop {
        let (gone, timeout);
        {
            let mut open = crate::locked(&registry.open);
            gone = open.extract_if(.., |entry| entry.has_gone()).collect::<Vec<_>>();
            timeout = match (open.is_empty(), going.is_empty() && gone.is_empty()) {
                (true, true) => Duration::from_secs(3600),
                (false, true) => PRESENCE_CHECK,
                (_, false) if going.iter().all(|(since, _)| since.elapsed() > RELEASE_PROMPTLY) => PRESENCE_CHECK,
                (_, false) => RELEASE_RETRY,
            };
        }
        // The list is unlocked here, because a subscriber may be opening another device.
        for entry in gone {
            entry.held.watch.gone.store(true, Ordering::Release);
            let subscribers = std::mem::take(&mut *crate::locked(&entry.held.watch.subscribers));
            for subscriber in subscribers.iter().filter_map(Weak::upgrade) {
                subscriber.device_gone(&entry.name);
            }
            going.push((Instant::now(), entry.held.device));
        }
        going = going.into_iter().filter_map(|(since, device)| Some((since, device.release().err()?))).collect();

        // Clones of the handles, because the list may change while this thread sleeps.
        let sources: Vec<(Arc<Device>, Arc<EventChannel>)> = crate::locked(&registry.open)
            .iter()
            .map(|entry| (Arc::clone(&entry.held.device), Arc::clone(&entry.channel)))
            .collect();
        let mut descriptors = vec![PollFd::new(&registry.wake, PollFlags::IN)];
        for (device, channel) in &sources {
            descriptors.push(PollFd::new(&**device, PollFlags::IN));
            descriptors.push(PollFd::new(&**channel, PollFlags::IN));
        }
        sleep(&mut descriptors, timeout);
        drop(descriptors);
        registry.wake.clear();
    }
}

/// Why the pool could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The limit on locked memory is too low.
    #[error("registering {wanted_bytes} bytes with the RDMA device exceeds the locked-memory limit of {limit_bytes}")]
    MemoryLock {
        /// The soft RLIMIT_MEMLOCK, in bytes.
        limit_bytes: u64,
        /// Number of bytes to be registered.
        wanted_bytes: u64,
    },
    /// The device no longer exists.
    #[error("RDMA device {0} is gone")]
    DeviceGone(String),
    /// Something else failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl RegisterError {
    /// Converts a failed registration. The kernel returns ENOMEM if the limit is exceeded.
    pub(super) fn registering(error: VerbsError, wanted_bytes: usize) -> Self {
        match (error.errno(), limits::soft(Resource::RLIMIT_MEMLOCK)) {
            (Some(ENOMEM), Some(limit_bytes)) => Self::MemoryLock { limit_bytes, wanted_bytes: wanted_bytes as u64 },
            _ => Self::Verbs(error),
        }
    }
}

/// One pool, registered on each device when the device is first used, with a protection domain and one region for each.
///
/// When a device goes, everything on it is dropped.
pub struct Adapters {
    pool: Arc<Pool>,
    registered: Arc<RegisteredDevices>,
}

#[derive(Default)]
struct RegisteredDevices(Mutex<HashMap<String, Arc<Registered>>>);

impl Subscriber for RegisteredDevices {
    fn device_gone(&self, device: &str) {
        let mut all = crate::locked(&self.0);
        // Another device may have got the name since.
        let registered =
            if all.get(device).is_some_and(|known| known.held.is_gone()) { all.remove(device) } else { None };
        // Dropped after the lock has been released.
        drop(all);
        drop(registered);
    }
}

/// The pool's registration on one device.
pub(super) struct Registered {
    region: MemoryRegion,
    pub(super) pool: Arc<Pool>,
    pub(super) held: Held,
}

impl Registered {
    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        self.region.domain()
    }

    pub(super) fn local_key(&self) -> u32 {
        self.region.local_key()
    }
}

impl Adapters {
    /// Takes a pool. Nothing is registered yet.
    pub fn new(pool: Arc<Pool>) -> Self {
        pool.pin();
        Self { pool, registered: Arc::default() }
    }

    /// Registers the pool on an endpoint's device now, so that the caller learns early whether that is allowed.
    ///
    /// # Errors
    ///
    /// [`RegisterError::MemoryLock`] if a smaller pool or a higher limit is needed.
    pub fn register(&self, endpoint: &Endpoint) -> Result<(), RegisterError> {
        self.on(endpoint).map(drop)
    }

    /// Returns the pool's registration on an endpoint's device.
    pub(super) fn on(&self, endpoint: &Endpoint) -> Result<Arc<Registered>, RegisterError> {
        let mut registered = crate::locked(&self.registered.0);
        if let Some(known) = registered.get(&endpoint.device)
            && !known.held.is_gone()
        {
            return Ok(Arc::clone(known));
        }
        let held = hold(endpoint.address).map_err(|error| match error.errno() {
            Some(ENODEV) => RegisterError::DeviceGone(endpoint.device.clone()),
            _ => RegisterError::Verbs(error),
        })?;
        let (start, bytes) = self.pool.mapping();
        let domain = ProtectionDomain::new(&held.device)?;
        let owner = Arc::clone(&self.pool) as _;
        let region = domain.register(start, bytes, owner).map_err(|error| RegisterError::registering(error, bytes))?;
        let pool = Arc::clone(&self.pool);
        let new = Arc::new(Registered { region, pool, held: held.clone() });
        registered.insert(held.device.name(), Arc::clone(&new));
        // Unlocked first, because subscribing may call back at once and take the same lock.
        drop(registered);
        held.subscribe(&self.registered);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::close::tests::where_calls_fail;

    /// Sandboxes allow no netlink sockets. The C library asks netlink by sendto(2), which is all that can be refused here.
    #[test]
    fn addresses_are_known_without_netlink() {
        let sorted = |mut all: Vec<rd_verbs::InterfaceAddress>| {
            all.sort_by_key(|known| (known.interface.clone(), known.address));
            all
        };
        let known = where_calls_fail(&[libc::SYS_sendto], libc::EPERM, interface_addresses).expect("known");
        assert_eq!(sorted(known), sorted(interface_addresses().expect("known")));
    }

    #[test]
    fn without_rdma_there_is_a_reason_and_no_hang() {
        if std::path::Path::new("/sys/class/infiniband_verbs").exists() {
            return crate::not_run::not_run("this host has RDMA");
        }
        let reason = endpoints().expect_err("no RDMA here");
        assert!(matches!(reason, Unavailable::NotInstalled(_)), "{reason}");
        assert!(!reason.to_string().is_empty());
    }
}
