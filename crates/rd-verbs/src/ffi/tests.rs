//! Compares this module with the system's headers: a C program prints every size and offset.

use std::io::Write;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use crate::ffi;

/// Adds lines that each hold an expression in C and its value according to Rust.
macro_rules! layout {
    ($lines:ident: $(size $rust:ty = $c:literal;)* $(at $at:ty = $in:literal { $($field:ident $(. $sub:ident)* = $name:literal),* $(,)? })*) => {
        $($lines.push((format!("sizeof({})", $c), size_of::<$rust>()));)*
        $($($lines.push((format!("offsetof({}, {})", $in, $name), offset_of!($at, $field $(. $sub)*)));)*)*
    };
}

fn expected() -> Vec<(String, usize)> {
    let mut lines = Vec::new();
    layout! { lines:
        size ffi::Device = "struct ibv_device";
        size ffi::ContextOps = "struct ibv_context_ops";
        size ffi::QpCap = "struct ibv_qp_cap";
        size ffi::QpInitAttr = "struct ibv_qp_init_attr";
        size ffi::QpAttr = "struct ibv_qp_attr";
        size crate::memory::Segment = "struct ibv_sge";
        size ffi::SendWr = "struct ibv_send_wr";
        size ffi::RecvWr = "struct ibv_recv_wr";
        size ffi::WorkCompletion = "struct ibv_wc";
        size ffi::DeviceAttr = "struct ibv_device_attr";
        size ffi::PortAttr = "struct ibv_port_attr";
        size ffi::AsyncEvent = "struct ibv_async_event";
        size ffi::CmChannel = "struct rdma_event_channel";
        size ffi::CmAddr = "struct rdma_addr";
        size ffi::CmRoute = "struct rdma_route";
        size ffi::ConnParam = "struct rdma_conn_param";
        at ffi::Device = "struct ibv_device" {
            node_type = "node_type", transport_type = "transport_type", name = "name", dev_name = "dev_name",
            dev_path = "dev_path", ibdev_path = "ibdev_path",
        }
        at ffi::ContextOps = "struct ibv_context_ops" {
            poll_cq = "poll_cq", req_notify_cq = "req_notify_cq", post_send = "post_send", post_recv = "post_recv",
        }
        at ffi::Context = "struct ibv_context" { device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd" }
        at ffi::Mr = "struct ibv_mr" { handle = "handle", lkey = "lkey" }
        at ffi::CompChannel = "struct ibv_comp_channel" { context = "context", fd = "fd" }
        at ffi::QpCap = "struct ibv_qp_cap" {
            max_send_wr = "max_send_wr", max_recv_wr = "max_recv_wr", max_send_sge = "max_send_sge",
            max_recv_sge = "max_recv_sge", max_inline_data = "max_inline_data",
        }
        at ffi::QpInitAttr = "struct ibv_qp_init_attr" {
            send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all",
        }
        at ffi::QpAttr = "struct ibv_qp_attr" { qp_state = "qp_state" }
        at crate::memory::Segment = "struct ibv_sge" { address = "addr", length = "length", local_key = "lkey" }
        at ffi::SendWr = "struct ibv_send_wr" {
            wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
            send_flags = "send_flags", imm_data = "imm_data",
        }
        at ffi::RecvWr = "struct ibv_recv_wr" { wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge" }
        at ffi::WorkCompletion = "struct ibv_wc" {
            wr_id = "wr_id", status = "status", opcode = "opcode", vendor_err = "vendor_err", byte_len = "byte_len",
        }
        at ffi::DeviceAttr = "struct ibv_device_attr" {
            vendor_id = "vendor_id", max_qp = "max_qp", max_qp_wr = "max_qp_wr", max_sge = "max_sge", max_cqe = "max_cqe",
        }
        at ffi::PortAttr = "struct ibv_port_attr" {
            state = "state", max_mtu = "max_mtu", active_mtu = "active_mtu", max_msg_sz = "max_msg_sz",
            active_width = "active_width", active_speed = "active_speed",
        }
        at ffi::AsyncEvent = "struct ibv_async_event" { element = "element", event_type = "event_type" }
        at ffi::CmChannel = "struct rdma_event_channel" { fd = "fd" }
        at ffi::CmId = "struct rdma_cm_id" {
            verbs = "verbs", channel = "channel", qp = "qp", route = "route", ps = "ps", port_num = "port_num",
            route.addr.src = "route.addr.src_addr", route.addr.dst = "route.addr.dst_addr",
        }
        at ffi::ConnParam = "struct rdma_conn_param" {
            private_data = "private_data", private_data_len = "private_data_len",
            responder_resources = "responder_resources", initiator_depth = "initiator_depth",
            flow_control = "flow_control", retry_count = "retry_count", rnr_retry_count = "rnr_retry_count",
            srq = "srq", qp_num = "qp_num",
        }
        at ffi::CmEvent = "struct rdma_cm_event" {
            id = "id", listen_id = "listen_id", event = "event", status = "status", conn = "param.conn",
        }
    }
    for (name, value) in [
        ("IBV_ACCESS_LOCAL_WRITE", ffi::ACCESS_LOCAL_WRITE as usize),
        ("IBV_QPT_RC", ffi::QPT_RC as usize),
        ("IBV_QPS_ERR", ffi::QPS_ERR as usize),
        ("IBV_QP_STATE", ffi::QP_STATE as usize),
        ("IBV_WR_SEND", ffi::WR_SEND as usize),
        ("IBV_SEND_SIGNALED", ffi::SEND_SIGNALED as usize),
        ("IBV_SEND_INLINE", ffi::SEND_INLINE as usize),
        ("IBV_WC_SUCCESS", ffi::WC_SUCCESS as usize),
        ("IBV_WC_WR_FLUSH_ERR", ffi::WC_WR_FLUSH_ERR as usize),
        ("IBV_PORT_ACTIVE", ffi::PORT_ACTIVE as usize),
        ("IBV_TRANSPORT_IWARP", ffi::TRANSPORT_IWARP as usize),
        ("IBV_EVENT_DEVICE_FATAL", ffi::EVENT_DEVICE_FATAL as usize),
        ("RDMA_PS_TCP", ffi::PS_TCP as usize),
        ("RDMA_OPTION_ID", ffi::OPTION_ID as usize),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", ffi::OPTION_ID_ACK_TIMEOUT as usize),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", 0),
        ("RDMA_CM_EVENT_ADDR_ERROR", 1),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", 2),
        ("RDMA_CM_EVENT_ROUTE_ERROR", 3),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", 4),
        ("RDMA_CM_EVENT_CONNECT_ERROR", 6),
        ("RDMA_CM_EVENT_UNREACHABLE", 7),
        ("RDMA_CM_EVENT_REJECTED", 8),
        ("RDMA_CM_EVENT_ESTABLISHED", 9),
        ("RDMA_CM_EVENT_DISCONNECTED", 10),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", 11),
    ] {
        lines.push((name.to_owned(), value));
    }
    lines
}

#[test]
fn structures_agree_with_the_systems_headers() {
    let expected = expected();
    let mut source =
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n".to_owned();
    for (expression, _) in &expected {
        source.push_str(&format!("printf(\"%zu\\n\", (size_t)({expression}));\n"));
    }
    source.push_str("return 0; }\n");

    let program = std::env::temp_dir().join(format!("rd-verbs-layout-{}", std::process::id()));
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-o"])
        .arg(&program)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler (cc) is needed for this test");
    compiler.stdin.take().expect("piped").write_all(source.as_bytes()).expect("cc reads the program");
    assert!(compiler.wait().expect("cc ends").success(), "needs the headers of libibverbs-dev and librdmacm-dev");
    let output = Command::new(&program).output().expect("the compiled program runs");
    let _ = std::fs::remove_file(&program);

    let printed = String::from_utf8(output.stdout).expect("numbers");
    let printed: Vec<usize> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(printed.len(), expected.len());
    let wrong: Vec<_> = expected.iter().zip(&printed).filter(|((_, ours), theirs)| ours != *theirs).collect();
    assert!(wrong.is_empty(), "(expression, ours), theirs: {wrong:?}");
}
