//! Devices, their capabilities, their asynchronous events, and the addresses of this host.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::cm::{EventChannel, Id, socket_address};
use crate::library::Api;
use crate::{Error, check, ffi, set_nonblocking};

/// An open device, reached by one of its addresses.
///
/// The value holds an identifier bound to that address: librdmacm opened the device for the identifier, and keeps it
/// open as long as the identifier exists.
pub struct Device {
    context: NonNull<ffi::Context>,
    id: Id,
}

// SAFETY: the context is used through libibverbs, whose calls are thread-safe, and lives as long as `id`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Capabilities of a device, as far as they matter here.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    /// PCI number of the vendor, or the made-up number of a software device.
    pub vendor_id: u32,
    /// Maximum number of outstanding work requests on one queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter-gather entries of one work request.
    pub max_sge: u32,
    /// Maximum number of entries of one completion queue.
    pub max_cqe: u32,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
}

/// Capabilities of a port, as far as they matter here.
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// Whether the port is up.
    pub active: bool,
    /// Maximum length of a message, in bytes.
    pub max_message_bytes: u32,
    /// Signalling rate times width, in megabits per second; 0 if the port reports no known value.
    pub rate_mbps: u32,
    /// MTU in use, in bytes; 0 if the port reports no known value.
    pub active_mtu_bytes: u32,
    /// Maximum MTU, in bytes; 0 if the port reports no known value.
    pub max_mtu_bytes: u32,
}

impl Device {
    /// Opens the device that has this local address.
    ///
    /// # Errors
    ///
    /// `ENODEV` if no device has the address, else the error of binding.
    pub fn open(channel: &Arc<EventChannel>, address: IpAddr) -> Result<Self, Error> {
        let mut id = Id::new(channel)?;
        id.bind(SocketAddr::new(address, 0))?;
        let context = id.context().ok_or(Error::Call { call: "rdma_bind_addr", errno: libc::ENODEV })?;
        let device = Self { context, id };
        set_nonblocking(device.async_fd())?;
        Ok(device)
    }

    pub(crate) fn context(&self) -> NonNull<ffi::Context> {
        self.context
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.id.api()
    }

    fn raw_device(&self) -> &ffi::Device {
        // SAFETY: the context is open as long as `self.id`; its device is valid as long as the context.
        unsafe { &*(*self.context.as_ptr()).device }
    }

    fn async_fd(&self) -> c_int {
        // SAFETY: the context is open as long as `self.id`.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// Returns the kernel's name for the device, such as `mlx5_0`.
    pub fn name(&self) -> String {
        text(&self.raw_device().name)
    }

    /// Returns the device's directory in sysfs, which goes when the device does.
    pub fn sysfs_path(&self) -> String {
        text(&self.raw_device().dev_path)
    }

    /// Reports whether the device is iWARP: RDMA over TCP.
    pub fn is_iwarp(&self) -> bool {
        self.raw_device().transport_type == ffi::TRANSPORT_IWARP
    }

    /// Reports whether `other` is this very device, and not a later device of the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        self.context == other.context
    }

    /// Reports whether an identifier is bound to this very device.
    pub fn has(&self, id: &Id) -> bool {
        id.context() == Some(self.context)
    }

    /// Returns the capabilities of the device.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_device`.
    pub fn attributes(&self) -> Result<DeviceAttr, Error> {
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut raw: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the call writes to `raw`.
        let answer = unsafe { (self.api().ibv_query_device)(self.context.as_ptr(), &mut raw) };
        check("ibv_query_device", answer)?;
        let positive = |value: c_int| u32::try_from(value).unwrap_or(0);
        Ok(DeviceAttr {
            vendor_id: raw.vendor_id,
            max_qp_wr: positive(raw.max_qp_wr),
            max_sge: positive(raw.max_sge),
            max_cqe: positive(raw.max_cqe),
            max_qp: positive(raw.max_qp),
        })
    }

    /// Returns the capabilities of the port of the address by which the device was opened.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_port`.
    pub fn port(&self) -> Result<PortAttr, Error> {
        self.port_of(&self.id)
    }

    /// Returns the capabilities of the port of the address to which an identifier is bound. The identifier must be bound
    /// to this very device, see [`Device::has`].
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_port`.
    pub fn port_of(&self, id: &Id) -> Result<PortAttr, Error> {
        // SAFETY: the identifier is alive and bound, so that its port is set.
        let port = unsafe { (*id.raw.as_ptr()).port_num };
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut raw: ffi::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the exported function writes a prefix of the structure.
        let answer = unsafe { (self.api().ibv_query_port)(self.context.as_ptr(), port.max(1), &mut raw) };
        check("ibv_query_port", answer)?;
        Ok(PortAttr {
            active: raw.state == ffi::PORT_ACTIVE,
            max_message_bytes: raw.max_msg_sz,
            rate_mbps: lane_mbps(raw.active_speed) * u32::from(lanes(raw.active_width)),
            active_mtu_bytes: mtu_bytes(raw.active_mtu),
            max_mtu_bytes: mtu_bytes(raw.max_mtu),
        })
    }

    /// Takes and acknowledges all asynchronous events that there are now. Returns whether one of them says that the
    /// device has failed for good, or is being removed.
    pub fn has_failed(&self) -> bool {
        let (mut raw, mut has_failed) = (ffi::AsyncEvent { element: ptr::null_mut(), event_type: 0 }, false);
        // SAFETY: the context is open, and the call writes to `raw`.
        while unsafe { (self.api().ibv_get_async_event)(self.context.as_ptr(), &mut raw) } == 0 {
            has_failed |= raw.event_type == ffi::EVENT_DEVICE_FATAL;
            // SAFETY: the event is acknowledged once. Its element still exists, because destroying an element waits for
            // this call.
            unsafe { (self.api().ibv_ack_async_event)(&mut raw) };
        }
        has_failed
    }

    /// Releases a device that is being removed, if no object made on it is left. Otherwise returns the device.
    ///
    /// librdmacm keeps a device open after its last identifier has gone, until it next reads a list with another device
    /// in it. The kernel does not finish the removal while any process has the device open. So the device's descriptors
    /// are replaced by descriptors of /dev/null, which librdmacm will close in its own time.
    pub fn release(self: Arc<Self>) -> Result<(), Arc<Self>> {
        if Arc::strong_count(&self) > 1 {
            return Err(self);
        }
        let device = Arc::try_unwrap(self)?;
        // SAFETY: the context is open, since `device.id` is alive; no other object made on it is left.
        let (command_fd, async_fd) =
            unsafe { ((*device.context.as_ptr()).cmd_fd, (*device.context.as_ptr()).async_fd) };
        let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
            return Err(Arc::new(device));
        };
        for fd in [command_fd, async_fd] {
            // SAFETY: both belong to this context. Only librdmacm still refers to them, and only to close them.
            unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
        Ok(())
    }
}

/// The descriptor becomes readable when there is an asynchronous event.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

/// Converts `active_width` to a number of lanes.
fn lanes(width: u8) -> u8 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Converts `active_speed` to the rate of one lane, in megabits per second.
fn lane_mbps(speed: u8) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

/// Converts `enum ibv_mtu` to bytes.
fn mtu_bytes(mtu: std::ffi::c_uint) -> u32 {
    match mtu {
        1..=5 => 128 << mtu,
        _ => 0,
    }
}

fn text(field: &[std::ffi::c_char]) -> String {
    // SAFETY: a `c_char` is a byte; the slice is as long as the field.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    CStr::from_bytes_until_nul(bytes).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// An address of an interface of this host that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Number of leading bits of the address that name its subnet.
    pub prefix_bits: u8,
}

/// Returns every IPv4 and IPv6 address of interfaces that are up, without loopback and IPv6 link-local addresses. Other
/// addresses of a loopback interface come last; a host that is reached by way of its neighbours has such addresses.
///
/// # Errors
///
/// The error of `getifaddrs`, if the addresses cannot be read without netlink sockets either.
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>, Error> {
    let all = by_netlink().or_else(|error| without_netlink().map_err(|_| error))?;
    let is_wanted = |(known, flags): &(InterfaceAddress, InterfaceFlags)| {
        let is_local = matches!(known.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        flags.contains(InterfaceFlags::IFF_UP) && !known.address.is_loopback() && !is_local
    };
    let (on_loopback, found): (Vec<_>, Vec<_>) =
        all.into_iter().filter(is_wanted).partition(|(_, flags)| flags.contains(InterfaceFlags::IFF_LOOPBACK));
    Ok(found.into_iter().chain(on_loopback).map(|(known, _)| known).collect())
}

impl InterfaceAddress {
    /// Names the interface itself. For an IPv4 address with a label, such as `eth0:1`, the system reports the label,
    /// which begins with the interface's name and a colon. No interface has a colon in its name.
    pub fn without_label(mut self) -> Self {
        if let Some(at) = self.interface.find(':') {
            self.interface.truncate(at);
        }
        self
    }
}

/// Returns every address of every interface, with the flags of the interface, by getifaddrs(3).
fn by_netlink() -> Result<Vec<(InterfaceAddress, InterfaceFlags)>, Error> {
    let list = getifaddrs().map_err(|errno| Error::Call { call: "getifaddrs", errno: errno as i32 })?;
    let ip = |raw: Option<SockaddrStorage>| Some(socket_address(&raw?)?.ip());
    let known = list.filter_map(|entry| {
        let address = ip(entry.address)?;
        let prefix_bits = match ip(entry.netmask) {
            Some(mask) => ones(mask),
            None if address.is_ipv4() => 32,
            None => 128,
        };
        Some((InterfaceAddress { interface: entry.interface_name, address, prefix_bits }, entry.flags))
    });
    Ok(known.collect())
}

/// Returns the number of leading ones of a network mask.
fn ones(mask: IpAddr) -> u8 {
    match mask {
        IpAddr::V4(mask) => u32::from(mask).leading_ones() as u8,
        IpAddr::V6(mask) => u128::from(mask).leading_ones() as u8,
    }
}

/// Number of IPv4 addresses that are read without netlink.
const IPV4_MAX: usize = 1024;

/// Returns the same as [`by_netlink`] where sandboxes allow no netlink sockets (systemd's `RestrictAddressFamilies=`):
/// netdevice(7) for IPv4, and /proc/net/if_inet6 for IPv6.
fn without_netlink() -> std::io::Result<Vec<(InterfaceAddress, InterfaceFlags)>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all zeros is a valid `ifreq`.
    let empty: libc::ifreq = unsafe { std::mem::zeroed() };
    let mut requests = vec![empty; IPV4_MAX];
    let ifc_ifcu = libc::__c_anonymous_ifc_ifcu { ifcu_req: requests.as_mut_ptr() };
    let mut list = libc::ifconf { ifc_len: size_of_val(&*requests) as c_int, ifc_ifcu };
    // SAFETY: the kernel writes at most `ifc_len` bytes to `requests`, and the number of bytes to `list`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFCONF as _, &raw mut list) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    requests.truncate(list.ifc_len as usize / size_of::<libc::ifreq>());
    // Asks for what belongs to the interface, and the address, in a request.
    let ask = |mut request: libc::ifreq, what| {
        // SAFETY: `what` is a request for which the kernel reads and writes a `libc::ifreq`.
        let answer = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) };
        (answer == 0).then_some(request)
    };
    let flags = |request: libc::ifreq| {
        let answer = ask(request, libc::SIOCGIFFLAGS as _)?;
        // SAFETY: SIOCGIFFLAGS has filled in the flags.
        Some(InterfaceFlags::from_bits_truncate(c_int::from(unsafe { answer.ifr_ifru.ifru_flags })))
    };
    let ipv4 = |request: libc::ifreq| {
        // SAFETY: SIOCGIFCONF and SIOCGIFNETMASK fill in an address of the family AF_INET, which is as long.
        let address: libc::sockaddr_in = unsafe { std::mem::transmute(request.ifr_ifru.ifru_addr) };
        IpAddr::from(u32::from_be(address.sin_addr.s_addr).to_be_bytes())
    };
    let mut found: Vec<_> = requests
        .into_iter()
        .filter_map(|request| {
            let prefix_bits = ones(ipv4(ask(request, libc::SIOCGIFNETMASK as _)?));
            let interface = text(&request.ifr_name);
            Some((InterfaceAddress { interface, address: ipv4(request), prefix_bits }, flags(request)?))
        })
        .collect();
    // Each line: address, number of the interface, prefix length, scope, flags (all hexadecimal), interface.
    found.extend(std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default().lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let address = IpAddr::from(u128::from_str_radix(fields.first()?, 16).ok()?.to_be_bytes());
        let prefix_bits = u8::from_str_radix(fields.get(2)?, 16).ok()?;
        let interface = (*fields.get(5)?).to_owned();
        let mut request = empty;
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as c_char;
        }
        Some((InterfaceAddress { interface, address, prefix_bits }, flags(request)?))
    }));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_can_be_read() {
        for known in interface_addresses().expect("getifaddrs") {
            assert!(!known.address.is_loopback() && !known.interface.is_empty(), "{known:?}");
            assert!(known.prefix_bits <= if known.address.is_ipv4() { 32 } else { 128 }, "{known:?}");
        }
    }

    #[test]
    fn a_label_is_no_interface_of_its_own() {
        let address = |interface: &str| InterfaceAddress {
            interface: interface.to_owned(),
            address: Ipv4Addr::new(10, 0, 0, 1).into(),
            prefix_bits: 24,
        };
        for (reported, interface) in [("eth0:1", "eth0"), ("bond0.7:vip:2", "bond0.7"), ("eth0", "eth0")] {
            assert_eq!(address(reported).without_label(), address(interface));
        }
    }

    #[test]
    fn addresses_are_the_same_without_netlink() {
        let sorted = |mut all: Vec<(InterfaceAddress, InterfaceFlags)>| {
            all.sort_by_key(|(known, _)| (known.interface.clone(), known.address));
            let are_used = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_LOOPBACK;
            all.into_iter().map(|(known, flags)| (known, flags & are_used)).collect::<Vec<_>>()
        };
        let all = sorted(without_netlink().expect("addresses"));
        assert!(!all.is_empty(), "127.0.0.1 at least");
        assert_eq!(all, sorted(by_netlink().expect("addresses")));
    }
}
