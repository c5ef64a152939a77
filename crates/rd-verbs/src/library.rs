//! libibverbs and librdmacm, loaded when first needed and never unloaded.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::ffi;

/// Why there is no RDMA in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library is not installed, or cannot be loaded.
    #[error("cannot load {library}: {reason}")]
    Missing {
        /// File name of the library.
        library: &'static str,
        /// Message of the loader.
        reason: String,
    },
    /// A library lacks a function, so it is too old.
    #[error("{library} has no {symbol}")]
    TooOld {
        /// File name of the library.
        library: &'static str,
        /// Name of the function.
        symbol: &'static str,
    },
    /// The kernel has no user-space verbs: the module `ib_uverbs` is not loaded.
    #[error("this kernel offers no RDMA verbs (ib_uverbs is not loaded)")]
    NoVerbs,
}

impl LoadError {
    /// Returns why the kernel has no verbs, if it has none. This asks no device, so it does not wait for one.
    pub fn of_kernel() -> Option<Self> {
        (!std::path::Path::new("/sys/class/infiniband_verbs").exists()).then_some(Self::NoVerbs)
    }
}

macro_rules! api {
    ($($handle:ident = $library:literal { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions of both libraries that this crate calls.
        pub(crate) struct Api {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Api {
            fn load() -> Result<Self, LoadError> {
                $(let $handle = open($library)?;)*
                Ok(Self { $($($name: symbol($handle, $library, stringify!($name))?,)*)* })
            }
        }
    };
}

api! {
    verbs = "libibverbs.so.1" {
        ibv_get_async_event: fn(*mut ffi::Context, *mut ffi::AsyncEvent) -> c_int;
        ibv_ack_async_event: fn(*mut ffi::AsyncEvent);
        ibv_query_device: fn(*mut ffi::Context, *mut ffi::DeviceAttr) -> c_int;
        ibv_query_port: fn(*mut ffi::Context, u8, *mut ffi::PortAttr) -> c_int;
        ibv_alloc_pd: fn(*mut ffi::Context) -> *mut ffi::Pd;
        ibv_dealloc_pd: fn(*mut ffi::Pd) -> c_int;
        ibv_reg_mr: fn(*mut ffi::Pd, *mut c_void, usize, c_int) -> *mut ffi::Mr;
        ibv_dereg_mr: fn(*mut ffi::Mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ffi::Context) -> *mut ffi::CompChannel;
        ibv_destroy_comp_channel: fn(*mut ffi::CompChannel) -> c_int;
        ibv_create_cq: fn(*mut ffi::Context, c_int, *mut c_void, *mut ffi::CompChannel, c_int) -> *mut ffi::Cq;
        ibv_destroy_cq: fn(*mut ffi::Cq) -> c_int;
        ibv_get_cq_event: fn(*mut ffi::CompChannel, *mut *mut ffi::Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ffi::Cq, c_uint);
        ibv_modify_qp: fn(*mut ffi::Qp, *mut ffi::QpAttr, c_int) -> c_int;
        ibv_wc_status_str: fn(c_uint) -> *const c_char;
    }
    cm = "librdmacm.so.1" {
        rdma_create_event_channel: fn() -> *mut ffi::CmChannel;
        rdma_destroy_event_channel: fn(*mut ffi::CmChannel);
        rdma_create_id: fn(*mut ffi::CmChannel, *mut *mut ffi::CmId, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut ffi::CmId) -> c_int;
        rdma_bind_addr: fn(*mut ffi::CmId, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr: fn(*mut ffi::CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut ffi::CmId, c_int) -> c_int;
        rdma_create_qp: fn(*mut ffi::CmId, *mut ffi::Pd, *mut ffi::QpInitAttr) -> c_int;
        rdma_destroy_qp: fn(*mut ffi::CmId);
        rdma_connect: fn(*mut ffi::CmId, *mut ffi::ConnParam) -> c_int;
        rdma_listen: fn(*mut ffi::CmId, c_int) -> c_int;
        rdma_accept: fn(*mut ffi::CmId, *mut ffi::ConnParam) -> c_int;
        rdma_reject: fn(*mut ffi::CmId, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut ffi::CmId) -> c_int;
        rdma_get_cm_event: fn(*mut ffi::CmChannel, *mut *mut ffi::CmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut ffi::CmEvent) -> c_int;
        rdma_migrate_id: fn(*mut ffi::CmId, *mut ffi::CmChannel) -> c_int;
        rdma_set_option: fn(*mut ffi::CmId, c_int, c_int, *mut c_void, usize) -> c_int;
    }
}

/// Opens a library, which is kept open until the process ends.
fn open(name: &'static str) -> Result<&'static Library, LoadError> {
    // SAFETY: the initialisers of these two libraries only set up their own tables. They start no threads and touch no
    // state of this program.
    match unsafe { Library::new(name) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(LoadError::Missing { library: name, reason: error.to_string() }),
    }
}

/// Looks up one function. `F` must be its type as the header declares it: `api!` is the only caller.
fn symbol<F: Copy>(library: &Library, library_name: &'static str, name: &'static str) -> Result<F, LoadError> {
    // SAFETY: the types in `api!` are those of the headers, and the library is never unloaded, so that the copied
    // function pointer stays valid.
    unsafe { library.get::<F>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| LoadError::TooOld { library: library_name, symbol: name })
}

/// Returns the functions, or why there are none.
///
/// Once libibverbs has found no verbs, it remembers that for good. So it is not loaded before the kernel has verbs, and
/// a kernel module that is loaded later is found without a restart.
pub(crate) fn api() -> Result<&'static Api, LoadError> {
    static API: OnceLock<Result<Api, LoadError>> = OnceLock::new();
    if let Some(lacking) = LoadError::of_kernel() {
        return Err(lacking);
    }
    API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
}
