//! libibverbs as it is in memory: only what this plugin touches, laid out by hand (LP64) and found by dlopen,
//! so that neither headers nor the library are needed to build or to start. The layouts are those of the
//! stable ABI of libibverbs.so.1. The offsets below are those that a C compiler found in the headers of
//! rdma-core 44; where headers are installed, a test asks a compiler again (`headers.rs`).

use std::ffi::{c_char, c_int, c_void};

macro_rules! pinned {
    ($($type:ty = $bytes:literal { $($field:ident @ $at:literal),* $(,)? })*) => { $(
        const _: () = {
            assert!(std::mem::size_of::<$type>() == $bytes);
            $(assert!(std::mem::offset_of!($type, $field) == $at);)*
        };
    )*
        /// Each type with its size and the offsets of its fields, for the comparison with the headers.
        #[cfg(test)]
        pub(crate) const PINNED: &[(&str, usize, &[(&str, usize)])] =
            &[$((stringify!($type), $bytes, &[$((stringify!($field), $at)),*])),*];
    };
}

pub(crate) enum IbvDevice {}
pub(crate) enum IbvPd {}

/// The head of `ibv_context`; the fast calls are in its table.
#[repr(C)]
pub(crate) struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

#[repr(C)]
pub(crate) struct IbvOps {
    unused: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    unused2: [*mut c_void; 13],
    pub post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    unused3: [*mut c_void; 5],
}

#[repr(C)]
pub(crate) struct IbvCq {
    pub context: *mut IbvContext,
}

/// The head of `ibv_qp`.
#[repr(C)]
pub(crate) struct IbvQp {
    pub context: *mut IbvContext,
    unused: [u64; 5],
    handle: u32,
    pub qp_num: u32,
}

/// The head of `ibv_mr`.
#[repr(C)]
pub(crate) struct IbvMr {
    unused: [u64; 4],
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct IbvPortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    unused: [u32; 4],
    pkey_tbl_len: u16,
    pub lid: u16,
    sm_lid: u16,
    lmc: u8,
    unused2: [u8; 4],
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    flags: u8,
    /// Newer libraries write here.
    tail: [u8; 16],
}

#[repr(C)]
pub(crate) struct IbvDeviceAttr {
    unused: [u64; 9],
    pub sys_image_guid: u64,
    unused2: [u32; 8],
    pub max_qp_wr: c_int,
    unused3: [u32; 4],
    pub max_cqe: c_int,
    unused4: [u8; 91],
    pub phys_port_cnt: u8,
    /// Padding, and room for newer libraries.
    tail: [u8; 36],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut c_void,
    pub cap: IbvQpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvAhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub pad: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct IbvQpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: IbvQpCap,
    pub ah: IbvAhAttr,
    pub alt_ah: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub(crate) struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub(crate) struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Network order.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    unused: [u32; 19],
}

#[repr(C)]
pub(crate) struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvWc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Network order.
    pub imm_data: u32,
    pub qp_num: u32,
    src_qp: u32,
    pub wc_flags: u32,
    unused: [u32; 2],
}

#[repr(C)]
pub(crate) struct IbvAsyncEvent {
    /// A pointer, or a port number.
    pub element: u64,
    pub event_type: u32,
}

pinned! {
    IbvOps = 256 { poll_cq @ 88, post_send @ 200, post_recv @ 208 }
    IbvContext = 272 { ops @ 8, async_fd @ 268 }
    IbvQp = 56 { context @ 0, qp_num @ 52 }
    IbvMr = 48 { lkey @ 36, rkey @ 40 }
    IbvPortAttr = 64 { active_mtu @ 8, gid_tbl_len @ 12, lid @ 34, active_width @ 43, active_speed @ 44,
        link_layer @ 46 }
    IbvDeviceAttr = 264 { sys_image_guid @ 72, max_qp_wr @ 112, max_cqe @ 132, phys_port_cnt @ 227 }
    IbvQpInitAttr = 64 { send_cq @ 8, cap @ 32, qp_type @ 52, sq_sig_all @ 56 }
    IbvAhAttr = 32 { flow_label @ 16, sgid_index @ 20, dlid @ 24, sl @ 26, is_global @ 29, port_num @ 30 }
    IbvQpAttr = 144 { path_mtu @ 8, rq_psn @ 20, dest_qp_num @ 28, qp_access_flags @ 32, ah @ 56,
        pkey_index @ 120, max_rd_atomic @ 126, min_rnr_timer @ 128, port_num @ 129, timeout @ 130,
        rnr_retry @ 132 }
    IbvSge = 16 { length @ 8, lkey @ 12 }
    IbvSendWr = 128 { sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_data @ 36,
        remote_addr @ 40, rkey @ 48 }
    IbvRecvWr = 32 { sg_list @ 16, num_sge @ 24 }
    IbvWc = 48 { status @ 8, byte_len @ 20, imm_data @ 24, qp_num @ 28, wc_flags @ 36 }
    IbvAsyncEvent = 16 { event_type @ 8 }
}

pub(crate) mod bits {
    //! Constants of `verbs.h`.
    pub const QPT_RC: u32 = 2;
    pub const QPS_INIT: u32 = 1;
    pub const QPS_RTR: u32 = 2;
    pub const QPS_RTS: u32 = 3;
    pub const QPS_ERR: u32 = 6;
    pub const STATE: c_int = 1;
    /// State, access, pkey index, port.
    pub const TO_INIT: c_int = STATE | 8 | 16 | 32;
    /// State, address, mtu, peer's pair, its first packet, atomics, RNR timer.
    pub const TO_RTR: c_int = STATE | 128 | 256 | 1 << 20 | 4096 | 1 << 17 | 1 << 15;
    /// State, time-out, retries, RNR retries, first packet, atomics.
    pub const TO_RTS: c_int = STATE | 512 | 1024 | 2048 | 1 << 16 | 8192;
    pub const LOCAL_WRITE: c_int = 1;
    pub const REMOTE_WRITE: c_int = 2;
    pub const REMOTE_READ: c_int = 4;
    pub const RELAXED: c_int = 1 << 20;
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const RDMA_READ: u32 = 4;
    pub const SIGNALED: u32 = 2;
    pub const INLINE: u32 = 8;
    pub const WITH_IMM: u32 = 2;
    pub const PORT_ACTIVE: u32 = 4;
    pub const INFINIBAND: u8 = 1;
    pub const ETHERNET: u8 = 2;
    use std::ffi::c_int;
}

macro_rules! library {
    (
        required { $($r:ident: fn($($ra:ty),*) $(-> $rr:ty)?;)* }
        optional { $($o:ident: fn($($oa:ty),*) $(-> $or:ty)?;)* }
    ) => {
        /// The functions, named as in the library without `ibv_`.
        pub(crate) struct Library {
            $(pub $r: unsafe extern "C" fn($($ra),*) $(-> $rr)?,)*
            $(pub $o: Option<unsafe extern "C" fn($($oa),*) $(-> $or)?>,)*
        }

        impl Library {
            /// Opens the library and leaves it open for good.
            ///
            /// # Errors
            /// A sentence that says what is missing.
            pub fn load(name: &str) -> Result<Self, String> {
                use libloading::os::unix::{Library as Dl, RTLD_LOCAL, RTLD_NOW};
                // SAFETY: loading runs the library's initialisers, which are harmless.
                let dl = unsafe { Dl::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|error| format!("{name} cannot be loaded: {error}"))?;
                let library = Self {
                    // SAFETY: the symbol has this signature in every libibverbs.so.1.
                    $($r: *unsafe { dl.get(concat!("ibv_", stringify!($r), "\0").as_bytes()) }
                        .map_err(|_| format!("{name} has no ibv_{}: it is too old", stringify!($r)))?,)*
                    // SAFETY: as above.
                    $($o: unsafe { dl.get(concat!("ibv_", stringify!($o), "\0").as_bytes()) }
                        .ok()
                        .map(|s| *s),)*
                };
                std::mem::forget(dl);
                Ok(library)
            }
        }
    };
}

library! {
    required {
        get_device_list: fn(*mut c_int) -> *mut *mut IbvDevice;
        free_device_list: fn(*mut *mut IbvDevice);
        get_device_name: fn(*mut IbvDevice) -> *const c_char;
        open_device: fn(*mut IbvDevice) -> *mut IbvContext;
        close_device: fn(*mut IbvContext) -> c_int;
        query_device: fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        query_port: fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        query_gid: fn(*mut IbvContext, u8, c_int, *mut [u8; 16]) -> c_int;
        alloc_pd: fn(*mut IbvContext) -> *mut IbvPd;
        dealloc_pd: fn(*mut IbvPd) -> c_int;
        reg_mr: fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
        dereg_mr: fn(*mut IbvMr) -> c_int;
        create_cq: fn(*mut IbvContext, c_int, *mut c_void, *mut c_void, c_int) -> *mut IbvCq;
        destroy_cq: fn(*mut IbvCq) -> c_int;
        create_qp: fn(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
        modify_qp: fn(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        destroy_qp: fn(*mut IbvQp) -> c_int;
        get_async_event: fn(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
        ack_async_event: fn(*mut IbvAsyncEvent);
    }
    optional {
        reg_mr_iova2: fn(*mut IbvPd, *mut c_void, usize, u64, u32) -> *mut IbvMr;
        reg_dmabuf_mr: fn(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;
        fork_init: fn() -> c_int;
    }
}
