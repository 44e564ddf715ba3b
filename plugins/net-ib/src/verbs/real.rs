//! Verbs of the machine, through libibverbs.

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hawser_plugin::net::{MemoryKinds, Region};

use super::gid::Gid;
use super::sys::{
    IbvAhAttr, IbvAsyncEvent, IbvContext, IbvCq, IbvDeviceAttr, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr,
    IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc, Library, bits,
};
use super::{Caps, Cq, Device, DeviceInfo, Errno, Event, Mr, PortInfo, Qp, Route, Span, Verbs, Wc};

/// Completions taken with one call.
const BATCH: usize = 32;

/// The machine's verbs.
pub(crate) struct Machine;

/// The library is opened once per process.
fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let load = || Library::load(&crate::config::library());
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

impl Verbs for Machine {
    fn open(&self) -> Result<Vec<Arc<dyn Device>>, String> {
        let lib = library()?;
        // As NCCL does: without it a child of fork(2) may take registered pages along, where the kernel is
        // old.
        if let Some(init) = lib.fork_init {
            // SAFETY: before any other call of the library here; a failure leaves things as they are.
            unsafe { init() };
        }
        let mut count = 0;
        // SAFETY: the library fills the count and returns a list or NULL.
        let list = unsafe { (lib.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(format!("the kernel offers no verbs: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the list has this many devices, which live while they are open or listed.
        let devices = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
        let opened = devices.iter().filter_map(|&device| Opened::new(lib, device)).collect::<Vec<_>>();
        // SAFETY: the list came from get_device_list.
        unsafe { (lib.free_device_list)(list) };
        if opened.is_empty() {
            return Err("there is no InfiniBand or RoCE device that can be opened".into());
        }
        // By PCI address, as NCCL does: equal on hosts of one kind.
        let is_ordered = crate::config::is_pci_order();
        let mut devices: Vec<Arc<dyn Device>> = Vec::with_capacity(opened.len());
        for device in opened {
            let key = |device: &dyn Device| (device.info().pci_path.clone(), device.info().name.clone());
            let own = key(&device);
            let at = devices.partition_point(|other| !is_ordered || key(other.as_ref()) <= own);
            devices.insert(at, Arc::new(device));
        }
        Ok(devices)
    }
}

/// An open device; closed when the last of its queues is gone.
struct Handle {
    lib: &'static Library,
    context: *mut IbvContext,
    pd: *mut IbvPd,
}

// SAFETY: libibverbs is thread-safe; the pointers are only passed to it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: queues keep their device; registrations are given back by their ports, which keep it too.
        unsafe {
            (self.lib.dealloc_pd)(self.pd);
            (self.lib.close_device)(self.context);
        }
    }
}

struct Opened {
    handle: Arc<Handle>,
    info: DeviceInfo,
    folder: PathBuf,
}

impl std::ops::Deref for Opened {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Opened {
    fn new(lib: &'static Library, device: *mut super::sys::IbvDevice) -> Option<Self> {
        // SAFETY: the device is of the list; its name is a C string that lives as long.
        let name = unsafe { CStr::from_ptr((lib.get_device_name)(device)) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let context = unsafe { (lib.open_device)(device) };
        if context.is_null() {
            return None;
        }
        // SAFETY: the context is open.
        let pd = unsafe { (lib.alloc_pd)(context) };
        if pd.is_null() {
            // SAFETY: as above, and not used again.
            unsafe { (lib.close_device)(context) };
            return None;
        }
        // SAFETY: all-zero bytes are a valid value of this plain struct.
        let mut attr: IbvDeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the struct is larger than what is written.
        unsafe { (lib.query_device)(context, &mut attr) };
        // SAFETY: the context is open; asynchronous events must not block us.
        unsafe {
            let fd = (*context).async_fd;
            libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
        }
        let folder = Path::new("/sys/class/infiniband").join(&name);
        let path = std::fs::canonicalize(folder.join("device")).ok();
        let info = DeviceInfo {
            pci_path: path.map(|path| path.to_string_lossy().into_owned()),
            guid: u64::from_be(attr.sys_image_guid),
            ports: (1..=attr.phys_port_cnt.max(1)).collect(),
            peer_memory: has_peer_memory(),
            dmabuf: lib.reg_dmabuf_mr.is_some() && takes_dmabuf(lib, pd),
            name,
        };
        Some(Self { handle: Arc::new(Handle { lib, context, pd }), info, folder })
    }

    fn attribute(&self, port: u8, name: &str) -> Option<String> {
        let path = self.folder.join(format!("ports/{port}/{name}"));
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }
}

/// NVIDIA's module that lets HCAs read and write GPU memory by address.
fn has_peer_memory() -> bool {
    [
        "/sys/module/nvidia_peermem/version",
        "/sys/module/nv_peer_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
    ]
    .iter()
    .any(|path| Path::new(path).exists())
}

/// True if the driver knows DMA-BUF: it complains about the descriptor, not about the call.
fn takes_dmabuf(lib: &Library, pd: *mut IbvPd) -> bool {
    let Some(register) = lib.reg_dmabuf_mr else { return false };
    // SAFETY: an impossible descriptor only gives an error.
    let mr = unsafe { register(pd, 0, 0, 0, -1, 0) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    mr.is_null() && errno != Some(libc::EOPNOTSUPP) && errno != Some(libc::EPROTONOSUPPORT)
}

impl Device for Opened {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn port(&self, port: u8) -> Result<PortInfo, Errno> {
        let mut attr = IbvPortAttr::default();
        // SAFETY: the context is open; the struct is larger than what is written.
        let code = unsafe { (self.lib.query_port)(self.context, port, &mut attr) };
        if code != 0 {
            return Err(code);
        }
        // Others, as EFA, have no reliable connected queue pairs.
        if !matches!(attr.link_layer, bits::INFINIBAND | bits::ETHERNET) {
            return Err(libc::EPROTONOSUPPORT);
        }
        // Newer speeds are only in sysfs.
        let rate = self.attribute(port, "rate").and_then(|text| rate(&text));
        let speed_mbps = rate.unwrap_or_else(|| lane_mbps(attr.active_speed) * rail_qps(attr.active_width));
        Ok(PortInfo {
            active: attr.state == bits::PORT_ACTIVE,
            speed_mbps,
            ethernet: attr.link_layer == bits::ETHERNET,
            lid: attr.lid,
            mtu: attr.active_mtu.clamp(1, 5) as u8,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
        })
    }

    fn gid(&self, port: u8, index: u32) -> Option<Gid> {
        let mut bytes = [0; 16];
        // SAFETY: the context is open; the array takes what is written.
        let code = unsafe { (self.lib.query_gid)(self.context, port, index as c_int, &mut bytes) };
        let kind = self.attribute(port, &format!("gid_attrs/types/{index}"));
        let version = match kind.as_deref() {
            Some("RoCE v2") => 2,
            Some(text) if text.contains("RoCE v1") => 1,
            _ => 0,
        };
        (code == 0 && bytes != [0; 16]).then_some(Gid { bytes, version })
    }

    fn interface(&self, port: u8, gid: u32) -> Option<String> {
        self.attribute(port, &format!("gid_attrs/ndevs/{gid}"))
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let mut event = IbvAsyncEvent { element: 0, event_type: 0 };
            // SAFETY: the context is open and its descriptor does not block.
            if unsafe { (self.lib.get_async_event)(self.context, &mut event) } != 0 {
                return events;
            }
            let port = event.element as u8;
            match event.event_type {
                8 => events.push(Event::Fatal),
                9 => events.push(Event::PortUp(port)),
                10 => events.push(Event::PortDown(port)),
                11 | 18 => events.push(Event::Gid(port)),
                _ => {}
            }
            // SAFETY: the event came from get_async_event.
            unsafe { (self.lib.ack_async_event)(&mut event) };
        }
    }

    unsafe fn register(&self, region: &Region, relaxed: bool) -> Result<Mr, Errno> {
        let access = bits::LOCAL_WRITE | bits::REMOTE_WRITE | bits::REMOTE_READ;
        let addr = region.addr as *mut _;
        let mr = match (region.dmabuf, self.lib.reg_dmabuf_mr, self.lib.reg_mr_iova2) {
            (Some((fd, offset)), Some(register), _) if region.kind == MemoryKinds::DMABUF => {
                let access = if relaxed { access | bits::RELAXED } else { access };
                // SAFETY: the caller vouches for the descriptor.
                unsafe { register(self.pd, offset, region.bytes, region.addr, fd, access) }
            }
            _ if region.kind == MemoryKinds::DMABUF => return Err(libc::EOPNOTSUPP),
            (_, _, Some(register)) if relaxed => {
                let access = (access | bits::RELAXED) as u32;
                // SAFETY: the caller vouches for the memory.
                unsafe { register(self.pd, addr, region.bytes, region.addr, access) }
            }
            // SAFETY: as above.
            _ => unsafe { (self.lib.reg_mr)(self.pd, addr, region.bytes, access) },
        };
        if mr.is_null() {
            return Err(last_errno());
        }
        // SAFETY: the registration is alive.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Mr { lkey, rkey, token: mr as u64 })
    }

    fn deregister(&self, mr: Mr) -> Result<(), Errno> {
        // SAFETY: the token is a pointer from `register`, given back once.
        check(unsafe { (self.lib.dereg_mr)(mr.token as *mut IbvMr) })
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Cq>, Errno> {
        let none = std::ptr::null_mut();
        // SAFETY: the context is open.
        let cq = unsafe { (self.lib.create_cq)(self.context, depth as c_int, none, none, 0) };
        if cq.is_null() {
            return Err(last_errno());
        }
        Ok(Box::new(Queue(Arc::new(CqHandle { device: self.handle.clone(), cq }))))
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().filter(|&errno| errno != 0).unwrap_or(libc::EIO)
}

fn check(code: c_int) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        -1 => Err(last_errno()),
        code => Err(code.abs()),
    }
}

/// Megabits per second of sysfs' `100 Gb/sec (4X EDR)`.
fn rate(text: &str) -> Option<u32> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number > 0.0 && number < 1e6).then_some((number * 1000.0) as u32)
}

fn lane_mbps(speed: u8) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 10_000,
    }
}

fn rail_qps(width: u8) -> u32 {
    match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    }
}

/// A completion queue; destroyed when the last of its queue pairs is gone.
struct CqHandle {
    device: Arc<Handle>,
    cq: *mut IbvCq,
}

// SAFETY: libibverbs is thread-safe; the pointers are only passed to it.
unsafe impl Send for CqHandle {}
// SAFETY: as above.
unsafe impl Sync for CqHandle {}

impl Drop for CqHandle {
    fn drop(&mut self) {
        // SAFETY: its queue pairs keep it, so there are none.
        unsafe { (self.device.lib.destroy_cq)(self.cq) };
    }
}

struct Queue(Arc<CqHandle>);

impl Cq for Queue {
    fn poll(&mut self, out: &mut Vec<Wc>) -> Result<(), Errno> {
        // SAFETY: the queue is alive, and so is its context.
        let poll = unsafe { (*(*self.0.cq).context).ops.poll_cq }.ok_or(libc::ENOSYS)?;
        loop {
            let mut batch = [IbvWc::default(); BATCH];
            // SAFETY: the array has this many entries.
            let found = unsafe { poll(self.0.cq, BATCH as c_int, batch.as_mut_ptr()) };
            let found = usize::try_from(found).map_err(|_| libc::EIO)?;
            out.extend(batch[..found].iter().map(|wc| Wc {
                qp: wc.qp_num,
                wr: wc.wr_id,
                status: wc.status,
                vendor: wc.vendor_err,
                imm: (wc.wc_flags & bits::WITH_IMM != 0).then(|| u32::from_be(wc.imm_data)),
                bytes: wc.byte_len,
            }));
            if found < BATCH {
                return Ok(());
            }
        }
    }

    fn pair(&mut self, port: u8, pkey: u16, caps: Caps) -> Result<Box<dyn Qp>, Errno> {
        let device = &self.0.device;
        let mut attr = IbvQpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: self.0.cq,
            recv_cq: self.0.cq,
            srq: std::ptr::null_mut(),
            cap: IbvQpCap {
                max_send_wr: caps.sends,
                max_recv_wr: caps.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: caps.inline,
            },
            qp_type: bits::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are alive.
        let mut qp = unsafe { (device.lib.create_qp)(device.pd, &mut attr) };
        if qp.is_null() && caps.inline > 0 {
            attr.cap.max_inline_data = 0;
            // SAFETY: as above.
            qp = unsafe { (device.lib.create_qp)(device.pd, &mut attr) };
        }
        if qp.is_null() {
            return Err(last_errno());
        }
        let inline = attr.cap.max_inline_data.min(caps.inline);
        let mut pair = Pair { queue: self.0.clone(), qp, inline };
        let access = (bits::LOCAL_WRITE | bits::REMOTE_WRITE | bits::REMOTE_READ) as u32;
        let attr = IbvQpAttr {
            qp_state: bits::QPS_INIT,
            port_num: port,
            pkey_index: pkey,
            qp_access_flags: access,
            ..Default::default()
        };
        pair.modify(attr, bits::TO_INIT)?;
        Ok(Box::new(pair))
    }
}

struct Pair {
    queue: Arc<CqHandle>,
    qp: *mut IbvQp,
    inline: u32,
}

// SAFETY: libibverbs is thread-safe; the pointers are only passed to it.
unsafe impl Send for Pair {}

impl Pair {
    fn modify(&mut self, mut attr: IbvQpAttr, mask: c_int) -> Result<(), Errno> {
        // SAFETY: the pair is alive; the struct has the library's layout.
        check(unsafe { (self.queue.device.lib.modify_qp)(self.qp, &mut attr, mask) })
    }

    /// # Safety
    /// As [`Qp::send`].
    unsafe fn post(
        &mut self,
        wr: u64,
        span: Span,
        opcode: u32,
        flags: u32,
        to: (u64, u32),
        imm: u32,
    ) -> Result<(), Errno> {
        let mut sge = IbvSge { addr: span.addr, length: span.len, lkey: span.lkey };
        // SAFETY: all-zero bytes are a valid value of this plain struct.
        let mut request: IbvSendWr = unsafe { std::mem::zeroed() };
        (request.wr_id, request.sg_list, request.num_sge) = (wr, &mut sge, c_int::from(span.len > 0));
        (request.opcode, request.send_flags, request.imm_data) = (opcode, flags, imm.to_be());
        (request.remote_addr, request.rkey) = to;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is alive, and so is its context.
        let post = unsafe { (*(*self.qp).context).ops.post_send }.ok_or(libc::ENOSYS)?;
        // SAFETY: the library copies the request; the caller vouches for the memory.
        check(unsafe { post(self.qp, &mut request, &mut bad) })
    }
}

impl Qp for Pair {
    fn number(&self) -> u32 {
        // SAFETY: the pair is alive.
        unsafe { (*self.qp).qp_num }
    }

    fn inline(&self) -> u32 {
        self.inline
    }

    fn connect(&mut self, route: &Route) -> Result<(), Errno> {
        let mut ah = IbvAhAttr {
            dlid: route.lid,
            sl: route.service_level,
            port_num: route.port,
            ..IbvAhAttr::default()
        };
        if route.global {
            let (high, low) = route.gid.split_at(8);
            ah.dgid = [high, low].map(|half| half.try_into().map_or(0, u64::from_ne_bytes));
            (ah.is_global, ah.hop_limit) = (1, 255);
            (ah.sgid_index, ah.traffic_class) = (route.gid_index, route.traffic_class);
        }
        let rtr = IbvQpAttr {
            qp_state: bits::QPS_RTR,
            path_mtu: u32::from(route.mtu),
            dest_qp_num: route.qp,
            rq_psn: route.psn.1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah,
            ..Default::default()
        };
        self.modify(rtr, bits::TO_RTR)?;
        let rts = IbvQpAttr {
            qp_state: bits::QPS_RTS,
            timeout: route.timeout,
            retry_cnt: route.retries,
            rnr_retry: 7,
            sq_psn: route.psn.0,
            max_rd_atomic: 1,
            ..Default::default()
        };
        self.modify(rts, bits::TO_RTS)
    }

    fn stop(&mut self) -> Result<(), Errno> {
        self.modify(IbvQpAttr { qp_state: bits::QPS_ERR, ..Default::default() }, bits::STATE)
    }

    unsafe fn receive(&mut self, wr: u64, span: Span) -> Result<(), Errno> {
        let mut sge = IbvSge { addr: span.addr, length: span.len, lkey: span.lkey };
        let mut request = IbvRecvWr { wr_id: wr, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is alive, and so is its context.
        let post = unsafe { (*(*self.qp).context).ops.post_recv }.ok_or(libc::ENOSYS)?;
        // SAFETY: the library copies the request; the caller vouches for the memory.
        check(unsafe { post(self.qp, &mut request, &mut bad) })
    }

    unsafe fn send(&mut self, wr: u64, span: Span, inline: bool) -> Result<(), Errno> {
        let flags = bits::SIGNALED | if inline { bits::INLINE } else { 0 };
        // SAFETY: the caller vouches for the memory.
        unsafe { self.post(wr, span, bits::SEND, flags, (0, 0), 0) }
    }

    unsafe fn write(
        &mut self,
        wr: u64,
        span: Span,
        to: (u64, u32),
        imm: u32,
        split: bool,
    ) -> Result<(), Errno> {
        if !split {
            // SAFETY: the caller vouches for the memory.
            return unsafe { self.post(wr, span, bits::RDMA_WRITE_IMM, bits::SIGNALED, to, imm) };
        }
        // SAFETY: as above; the completion of the second tells of the first.
        unsafe {
            self.post(wr, span, bits::RDMA_WRITE, 0, to, 0)?;
            self.post(wr, Span { len: 0, ..span }, bits::RDMA_WRITE_IMM, bits::SIGNALED, to, imm)
        }
    }

    unsafe fn read(&mut self, wr: u64, into: Span, from: (u64, u32)) -> Result<(), Errno> {
        // SAFETY: the caller vouches for the memory.
        unsafe { self.post(wr, into, bits::RDMA_READ, bits::SIGNALED, from, 0) }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: it came from create_qp and is not used again.
        unsafe { (self.queue.device.lib.destroy_qp)(self.qp) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_why_it_has_no_verbs_or_has_devices() {
        match Machine.open() {
            Ok(devices) => assert!(devices.iter().all(|device| !device.info().name.is_empty())),
            Err(text) => assert!(text.len() > 10 && !text.contains('\n'), "{text}"),
        }
        let missing = Library::load("libibverbs-there-is-none.so.1").err().unwrap();
        assert!(missing.contains("cannot be loaded"), "{missing}");
    }

    #[test]
    fn rates_of_sysfs() {
        assert_eq!(rate("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(rate("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(rate("0 Gb/sec"), None);
        assert_eq!(rate("fast"), None);
    }
}
