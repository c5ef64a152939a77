//! The C side of libibverbs and librdmacm: the structures that this crate reads and writes, and nothing else.
//!
//! The structures are written by hand. The tests below hold them to the system's headers: a compiled C program prints
//! every size and offset for comparison. Structures that the libraries allocate are declared as prefixes, up to the
//! last field used here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::memory::Segment;

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const QPT_RC: c_uint = 2;
pub const QPS_ERR: c_uint = 6;
pub const QP_STATE: c_int = 1;
pub const WR_SEND: c_uint = 2;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_INLINE: c_uint = 1 << 3;
pub const WC_SUCCESS: c_uint = 0;
pub const WC_WR_FLUSH_ERR: c_uint = 5;
pub const PORT_ACTIVE: c_uint = 4;
pub const PS_TCP: c_uint = 0x0106;
pub const OPTION_ID: c_int = 0;
pub const OPTION_ID_ACK_TIMEOUT: c_int = 3;
pub const TRANSPORT_IWARP: c_int = 1;

pub const EVENT_DEVICE_FATAL: c_uint = 8;

/// `struct ibv_device`
#[repr(C)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`; only the four functions that C calls inline have their types.
#[repr(C)]
pub struct ContextOps {
    pub before_poll: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub before_send: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub after_recv: [*mut c_void; 5],
}

/// Prefix of `struct ibv_context`
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// Prefix of `struct ibv_pd`
#[repr(C)]
pub struct Pd(*mut Context);

/// Prefix of `struct ibv_mr`
#[repr(C)]
pub struct Mr {
    pub before: [usize; 4],
    pub handle: u32,
    pub lkey: u32,
}

/// Prefix of `struct ibv_comp_channel`
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
}

/// Prefix of `struct ibv_cq`
#[repr(C)]
pub struct Cq(*mut Context);

/// Prefix of `struct ibv_qp`
#[repr(C)]
pub struct Qp(*mut Context);

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`; only the state is set here, and the rest is padding.
#[repr(C, align(8))]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub rest: [u32; 35],
}

/// `struct ibv_send_wr`; the unions after `send_flags` are for operations that are not used here.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Segment,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub unions: [u64; 11],
}

/// `struct ibv_recv_wr`
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Segment,
    pub num_sge: c_int,
}

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub rest: [u32; 6],
}

/// `struct ibv_device_attr`
#[repr(C)]
pub struct DeviceAttr {
    pub before: [u64; 12],
    pub vendor_id: u32,
    pub before_max_qp: [u32; 2],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub before_max_cqe: [c_int; 2],
    pub max_cqe: c_int,
    pub rest: [c_int; 23],
}

/// `struct ibv_port_attr`
#[repr(C)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub before_max_msg_sz: [u32; 2],
    pub max_msg_sz: u32,
    pub before_active_width: [u8; 19],
    pub active_width: u8,
    pub active_speed: u8,
    pub rest: [u8; 7],
}

/// `struct ibv_async_event`
#[repr(C)]
pub struct AsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_uint,
}

/// `struct rdma_event_channel`
#[repr(C)]
pub struct CmChannel {
    pub fd: c_int,
}

/// `struct rdma_addr`
#[repr(C)]
pub struct CmAddr {
    pub src: libc::sockaddr_storage,
    pub dst: libc::sockaddr_storage,
    pub ib: [u64; 5],
}

/// `struct rdma_route`
#[repr(C)]
pub struct CmRoute {
    pub addr: CmAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// Prefix of `struct rdma_cm_id`
#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut CmChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: CmRoute,
    pub ps: c_uint,
    pub port_num: u8,
}

/// `struct rdma_conn_param`
#[repr(C)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// Prefix of `struct rdma_cm_event`; the union of parameters is declared as that of a connection.
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_uint,
    pub status: c_int,
    pub conn: ConnParam,
}

#[cfg(test)]
mod tests;
