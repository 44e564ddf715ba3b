//! Memory that peers of the same host map: made, named, and opened again.
//!
//! | heap | same process | other process |
//! |---|---|---|
//! | VMM | the physical memory mapped once more, for the importer's device | the same, by file descriptor |
//! | legacy (`cuMemAlloc`) | the same pointer, peer access enabled | `cuIpcOpenMemHandle` |
//! | host memory | the same registered range | the memfd mapped and registered once more |
//!
//! Lengths are multiples of the pool's granularity: smaller legacy allocations share a block, and IPC shares
//! whole blocks.
//!
//! Rule: [`REGISTRY`] holds weak references, so it never keeps memory alive; every user of a heap in
//! this process, owner or importer, holds an `Arc` of its [`Body`].

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle};
use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::log;
use rustc_hash::FxHashMap;

use super::context::{Context, platform};
use super::memory::{Block, Copier, check_allocation, in_context};
use super::result::code;
use super::shared::HostRange;
use super::token::{self, Kind, Token};
use super::vmm::{self, Mapping, Physical, Use};
use crate::device::{Export, HeapKind};
use crate::memory::Memory;
use crate::pool::{GRANULARITY, Pool, Ticket};

/// Heaps of this process by key.
static REGISTRY: LazyLock<Mutex<FxHashMap<u64, Weak<Body>>>> = LazyLock::new(Mutex::default);

/// The part of a heap that everybody in this process who uses it holds. Fields are dropped in this order.
struct Body {
    made_of: Made,
    /// True if somebody was told how to map it: then it is never used for anything else.
    is_exported: AtomicBool,
    /// The pool's leave; none for host memory.
    ticket: Option<Arc<Ticket>>,
}

/// The heaps that all devices of this process with peer access may use: (device, first address, bytes).
static SHARED: Mutex<Vec<(u32, CUdeviceptr, u64)>> = Mutex::new(Vec::new());

/// The memory that a heap is made of.
enum Made {
    /// None while it is detached.
    Vmm(Mutex<Option<Physical>>),
    Legacy(Block),
    Host(HostRange),
}

/// The owner's end of a heap.
struct Heap {
    /// Taken out when it is dropped.
    held: Option<Held>,
    pool: Arc<Pool>,
    bytes: u64,
    key: u64,
}

/// A heap that the pool may keep. Fields are dropped in this order.
struct Held {
    mapping: Option<Mapping>,
    body: Arc<Body>,
}

impl Held {
    fn addr(&self) -> u64 {
        match (&self.mapping, &self.body.made_of) {
            (Some(mapping), _) => mapping.addr,
            (None, Made::Legacy(block)) => block.addr,
            (None, Made::Vmm(_) | Made::Host(_)) => 0,
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        if let Some(mapping) = self.held.as_ref().and_then(|held| held.mapping.as_ref()) {
            shared().retain(|(_, first, _)| *first != mapping.addr);
        }
        let Some(held) = self.held.take() else { return };
        // Nobody finds it any more: those who have it are counted.
        let is_free = Arc::strong_count(&held.body) == 1 && !held.body.is_exported.load(Ordering::Acquire);
        if let (Some(ticket), true) = (held.body.ticket.clone(), is_free) {
            self.pool.keep(ticket, Box::new(held));
        }
    }
}

/// An importer's end of a heap of the same process. Fields are dropped in this order.
struct Shared {
    mapping: Option<Mapping>,
    body: Arc<Body>,
}

/// An importer's end of a VMM heap of another process. Fields are dropped in this order.
struct Remote {
    mapping: Mapping,
    physical: Mutex<Option<Physical>>,
}

/// Zeroed memory for peers to map.
pub fn alloc(
    pool: &Arc<Pool>,
    copier: &Copier,
    context: &Arc<Context>,
    bytes: u64,
    kind: HeapKind,
) -> Result<Memory> {
    let (held, addr) = match kind {
        HeapKind::Host => {
            let range = HostRange::create(context, bytes)?;
            let _scope = context.enter_relaxed()?;
            let addr = range.device_pointer(context)?;
            let body = Body { made_of: Made::Host(range), is_exported: false.into(), ticket: None };
            (Held { mapping: None, body: Arc::new(body) }, addr)
        }
        HeapKind::Device => {
            let held = device_heap(pool, context, bytes)?;
            let addr = held.addr();
            (held, addr)
        }
    };
    static NEXT_KEY: AtomicU64 = AtomicU64::new(1);
    let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::downgrade(&held.body));
    let heap = Heap { held: Some(held), pool: pool.clone(), bytes, key };
    if kind == HeapKind::Device {
        copier.zero(addr, bytes.max(1))?;
    }
    Ok(Memory { addr, bytes, owner: Box::new(heap) })
}

/// Device memory that the pool kept, or new one.
fn device_heap(pool: &Arc<Pool>, context: &Arc<Context>, bytes: u64) -> Result<Held> {
    let rounded = bytes.max(1).next_multiple_of(GRANULARITY);
    if let Some((_, payload)) = pool.reuse(rounded)
        && let Ok(held) = payload.downcast::<Held>()
    {
        return Ok(*held);
    }
    let ticket = pool.ticket(rounded)?;
    let mut made = new_device_heap(context, rounded);
    if made.is_err() && pool.give_back() {
        made = new_device_heap(context, rounded);
    }
    let (mapping, made_of) = made?;
    let body = Body { made_of, is_exported: false.into(), ticket: Some(ticket) };
    Ok(Held { mapping, body: Arc::new(body) })
}

/// Device memory of the kind that the settings, the device and the container allow.
fn new_device_heap(context: &Arc<Context>, bytes: u64) -> Result<(Option<Mapping>, Made)> {
    let wish = env::settings().cumem_enable;
    if wish != Some(false) && vmm::is_supported(context) {
        match Physical::create(context, bytes, Use::Shared)? {
            Ok(physical) => {
                let mapping = Mapping::new(context, &physical).map_err(advise_sharing)?;
                return Ok((Some(mapping), Made::Vmm(Mutex::new(Some(physical)))));
            }
            // Some containers forbid handles that can be shared.
            Err(status)
                if wish.is_none() && matches!(status.code, code::NOT_PERMITTED | code::NOT_SUPPORTED) =>
            {
                log::info(log::Subsys::Init, || {
                    format!("{}; using legacy IPC instead", status.error(context))
                });
            }
            Err(status) => check_allocation(context, status, bytes).map_err(advise_sharing)?,
        }
    }
    Ok((None, Made::Legacy(Block::new(context, bytes)?)))
}

/// Lets every device of this process with peer access use a heap. Legacy memory needs no grant for copies.
pub fn share(context: &Arc<Context>, heap: &Memory) -> Result<()> {
    let heap: Option<&Heap> = heap.owner.downcast_ref();
    let held = heap.and_then(|heap| heap.held.as_ref());
    let Some(mapping) = held.and_then(|held| held.mapping.as_ref()) else { return Ok(()) };
    for &device in platform()?.devices.iter().filter(|device| **device != context.device) {
        let mut can: c_int = 0;
        // SAFETY: `can` is valid for the number.
        let asked = unsafe { context.driver.device_can_access_peer(&mut can, device, context.device) };
        if asked.is_ok() && can != 0 {
            mapping.grant(device)?;
        }
    }
    shared().push((context.ordinal, mapping.addr, heap.map_or(0, |heap| heap.bytes)));
    Ok(())
}

/// True if [`share`] has been called for memory of the device that holds all of a range.
pub fn is_shared(context: &Context, addr: u64, bytes: u64) -> bool {
    let holds = |(ordinal, first, length): &(u32, CUdeviceptr, u64)| {
        let offset = addr.checked_sub(*first);
        *ordinal == context.ordinal && offset.is_some_and(|at| at <= *length && bytes <= *length - at)
    };
    shared().iter().any(holds)
}

fn shared() -> MutexGuard<'static, Vec<(u32, CUdeviceptr, u64)>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the way in which a peer maps a heap that [`alloc`] made.
pub fn export(context: &Arc<Context>, heap: &Memory, kind: HeapKind) -> Result<Export> {
    let heap: &Heap = heap
        .owner
        .downcast_ref()
        .ok_or_else(|| Error::internal(format!("{context}: export of memory that is not a heap")))?;
    let mut token = Token {
        kind: Kind::Vmm,
        pid: std::process::id(),
        process: *token::process(),
        key: heap.key,
        bytes: heap.bytes,
        mapped: 0,
        device: context.id.clone(),
        ipc: [0; 64],
    };
    let body = match &heap.held {
        Some(held) => &held.body,
        None => return Err(Error::internal("export of a heap that is gone")),
    };
    let fd = match (&body.made_of, kind) {
        (Made::Vmm(physical), HeapKind::Device) => {
            let physical = taken(physical);
            let physical = physical.as_ref().ok_or_else(|| Error::internal("export of a detached heap"))?;
            token.mapped = physical.bytes;
            Some(physical.export().map_err(advise_sharing)?)
        }
        (Made::Legacy(block), HeapKind::Device) => {
            token.kind = Kind::Legacy;
            token.mapped = heap.bytes.max(1).next_multiple_of(GRANULARITY);
            token.ipc = ipc_handle(context, block.addr)?;
            None
        }
        (Made::Host(range), HeapKind::Host) => {
            token.kind = Kind::Host;
            token.mapped = range.bytes();
            Some(range.fd()?)
        }
        _ => {
            return Err(Error::internal(format!(
                "{context}: export of a heap of another kind than {kind:?}"
            )));
        }
    };
    body.is_exported.store(true, Ordering::Release);
    Ok(Export { token: token.encode(), fd })
}

/// Maps a peer's heap for the context's device.
pub fn import(context: &Arc<Context>, token: &[u8], fd: Option<OwnedFd>, kind: HeapKind) -> Result<Memory> {
    let token = Token::decode(token)?;
    if (token.kind == Kind::Host) != (kind == HeapKind::Host) {
        let text = format!(
            "{context}: a peer offers a heap of kind {:?} where {kind:?} memory was agreed",
            token.kind
        );
        return Err(Error::remote(text).remedy("set NCCL_P2P_DISABLE alike on all ranks"));
    }
    let imported =
        if token.is_local() { import_local(context, &token) } else { import_remote(context, &token, fd) };
    imported.map_err(|e| {
        e.context(format_args!("mapping the heap of process {} on {} for {context}", token.pid, token.device))
    })
}

fn import_local(context: &Arc<Context>, token: &Token) -> Result<Memory> {
    let found =
        REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).get(&token.key).and_then(Weak::upgrade);
    let body = found.ok_or_else(|| Error::remote("its owner has freed it"))?;
    let (mapping, addr) = match &body.made_of {
        Made::Vmm(physical) => {
            let physical = taken(physical);
            let physical = physical.as_ref().ok_or_else(|| Error::remote("its owner has detached it"))?;
            let mapping = Mapping::new(context, physical).map_err(advise_sharing)?;
            let addr = mapping.addr;
            (Some(mapping), addr)
        }
        Made::Legacy(block) => {
            enable_peer_access(context, block.context())?;
            (None, block.addr)
        }
        Made::Host(range) => {
            let _scope = context.enter_relaxed()?;
            (None, range.device_pointer(context)?)
        }
    };
    Ok(Memory { addr, bytes: token.bytes, owner: Box::new(Shared { mapping, body }) })
}

fn import_remote(context: &Arc<Context>, token: &Token, fd: Option<OwnedFd>) -> Result<Memory> {
    let bytes = token.bytes;
    let need_fd = || Error::internal("the heap's file descriptor did not come with its token");
    match token.kind {
        Kind::Vmm => {
            let fd = fd.ok_or_else(need_fd)?;
            let physical = Physical::import(context, fd.as_fd(), token.mapped).map_err(advise_sharing)?;
            let mapping = Mapping::new(context, &physical).map_err(advise_sharing)?;
            let (addr, physical) = (mapping.addr, Mutex::new(Some(physical)));
            Ok(Memory { addr, bytes, owner: Box::new(Remote { mapping, physical }) })
        }
        Kind::Legacy => {
            let opened = OpenedHandle::open(context, &token.ipc)?;
            Ok(Memory { addr: opened.addr, bytes, owner: Box::new(opened) })
        }
        Kind::Host => {
            let range = HostRange::import(context, fd.ok_or_else(need_fd)?, token.mapped)?;
            let _scope = context.enter_relaxed()?;
            Ok(Memory { addr: range.device_pointer(context)?, bytes, owner: Box::new(range) })
        }
    }
}

/// The address by which this process reaches host memory.
pub fn host_address(memory: &Memory) -> Option<u64> {
    let owner = &memory.owner;
    if let Some(range) = owner.downcast_ref::<HostRange>() {
        return Some(range.host_address());
    }
    let held = owner.downcast_ref::<Heap>().and_then(|heap| heap.held.as_ref().map(|held| &held.body));
    let body = held.or_else(|| owner.downcast_ref::<Shared>().map(|shared| &shared.body))?;
    match &body.made_of {
        Made::Host(range) => Some(range.host_address()),
        Made::Vmm(_) | Made::Legacy(_) => None,
    }
}

/// True if the memory is VMM's: only that can be taken from under its addresses.
pub fn can_detach(memory: &Memory) -> bool {
    mapping_of(memory).is_some()
}

/// See [`crate::SharedMemory::detach`].
pub fn detach(memory: &Memory) -> Result<()> {
    let mapping = mapping_of(memory).ok_or_else(|| {
        Error::invalid_usage("memory that is not VMM's cannot be given back under its address")
            .remedy("use a device with VMM, and do not set NCCL_CUMEM_ENABLE=0")
    })?;
    mapping.unmap()?;
    if let Some(Held { body, .. }) = memory.owner.downcast_ref::<Heap>().and_then(|heap| heap.held.as_ref())
        && let Made::Vmm(physical) = &body.made_of
    {
        taken(physical).take();
    } else if let Some(remote) = memory.owner.downcast_ref::<Remote>() {
        taken(&remote.physical).take();
    }
    Ok(())
}

/// See [`crate::SharedMemory::attach`].
pub fn attach(context: &Arc<Context>, heap: &Memory) -> Result<()> {
    let held = heap.owner.downcast_ref::<Heap>().and_then(|heap| heap.held.as_ref());
    let Some(Held { mapping: Some(mapping), body }) = held else {
        return Err(Error::internal(format!("{context}: attach of memory that is no VMM heap")));
    };
    let Made::Vmm(slot) = &body.made_of else {
        return Err(Error::internal(format!("{context}: a mapping of memory that is not VMM's")));
    };
    let length = heap.bytes.max(1).next_multiple_of(GRANULARITY);
    let physical = match Physical::create(context, length, Use::Shared)? {
        Ok(physical) => physical,
        Err(status) => return check_allocation(context, status, length),
    };
    mapping.map(&physical, &[context.device])?;
    *taken(slot) = Some(physical);
    Ok(())
}

/// See [`crate::SharedMemory::attach_peer`].
pub fn attach_peer(context: &Arc<Context>, memory: &Memory, token: &[u8], fd: Option<OwnedFd>) -> Result<()> {
    let token = Token::decode(token)?;
    if let Some(Shared { mapping: Some(mapping), body }) = memory.owner.downcast_ref() {
        let Made::Vmm(physical) = &body.made_of else {
            return Err(Error::internal(format!("{context}: a mapping of memory that is not VMM's")));
        };
        let physical = taken(physical);
        let physical = physical.as_ref().ok_or_else(|| Error::remote("its owner has detached it"))?;
        return mapping.map(physical, &[context.device]);
    }
    let Some(remote) = memory.owner.downcast_ref::<Remote>() else {
        return Err(Error::internal(format!("{context}: attach of memory that is no peer's VMM heap")));
    };
    let fd = fd.ok_or_else(|| Error::internal("the heap's file descriptor did not come with its token"))?;
    let physical = Physical::import(context, fd.as_fd(), token.mapped).map_err(advise_sharing)?;
    remote.mapping.map(&physical, &[context.device])?;
    *taken(&remote.physical) = Some(physical);
    Ok(())
}

/// The mapping of a heap, or of a peer's heap.
fn mapping_of(memory: &Memory) -> Option<&Mapping> {
    let owner = &memory.owner;
    if let Some(heap) = owner.downcast_ref::<Heap>() {
        return heap.held.as_ref()?.mapping.as_ref();
    }
    let shared = owner.downcast_ref::<Shared>().and_then(|shared| shared.mapping.as_ref());
    shared.or_else(|| owner.downcast_ref::<Remote>().map(|remote| &remote.mapping))
}

fn taken(physical: &Mutex<Option<Physical>>) -> MutexGuard<'_, Option<Physical>> {
    physical.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the context's device reach memory of `owner`'s device, and the other way round.
pub fn enable_peer_access(context: &Context, owner: &Context) -> Result<()> {
    if context.device == owner.device {
        return Ok(());
    }
    for (from, to) in [(context, owner), (owner, context)] {
        let _scope = from.enter_relaxed()?;
        // SAFETY: both contexts are retained.
        let status = unsafe { from.driver.ctx_enable_peer_access(to.raw, 0) };
        if status.code != code::PEER_ACCESS_ALREADY_ENABLED {
            status.check(&format_args!("{from} for {to}"))?;
        }
    }
    Ok(())
}

pub fn ipc_handle(context: &Context, addr: CUdeviceptr) -> Result<[u8; 64]> {
    let _scope = context.enter_relaxed()?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: valid for the handle.
    unsafe { context.driver.ipc_mem_handle(&mut handle, addr) }
        .check(context)
        .map_err(|e| e.remedy("set NCCL_P2P_DISABLE=1 on all ranks where CUDA IPC is not allowed"))?;
    Ok(handle.reserved.map(|c| c as u8))
}

/// Another process's memory, opened by its IPC handle.
pub struct OpenedHandle {
    context: Arc<Context>,
    /// The address at which it is mapped.
    pub addr: CUdeviceptr,
}

impl OpenedHandle {
    /// Maps it.
    pub fn open(context: &Arc<Context>, ipc: &[u8; 64]) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let handle = CUipcMemHandle { reserved: ipc.map(|b| b as c_char) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut addr = 0;
        // SAFETY: valid for the address; the driver checks the handle.
        unsafe { context.driver.ipc_open_mem_handle(&mut addr, handle, flags) }.check(context).map_err(
            |e| {
                e.remedy(
                    "set NCCL_P2P_DISABLE=1 on all ranks where CUDA IPC is not allowed (containers need \
                      --ipc=host or a shared PID namespace)",
                )
            },
        )?;
        Ok(OpenedHandle { context: context.clone(), addr })
    }
}

impl Drop for OpenedHandle {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: opened in `open`; whoever used the memory has let go of it.
            unsafe { self.context.driver.ipc_close_mem_handle(self.addr) }
        });
    }
}

/// Sharing VMM memory may fail for reasons of the container.
fn advise_sharing(error: Error) -> Error {
    error.remedy(
        "if the container forbids shared handles set NCCL_CUMEM_ENABLE=0 on all ranks (legacy IPC), \
         if the GPUs have no path to each other NCCL_P2P_DISABLE=1 (staging in host memory)",
    )
}
