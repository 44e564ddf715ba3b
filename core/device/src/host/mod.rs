//! The host device: buffers are host memory, programs run on the CPU.
//!
//! Heaps are anonymous files (memfd) that other processes of the host map, so communicators of
//! threads and of processes use the same path.

pub mod reduce;

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::liveness::forked;
use hawser_plan::topology::DeviceKind;
use rustc_hash::FxHashMap;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::device::{
    Caps, Device, Export, Exposed, HeapKind, HostWords, Moment, OwnedStream, SharedMemory, Stream,
    StreamState, Streams,
};
use crate::memory::Memory;
use crate::pool::{self, Pool, Source, Ticket};

/// A device that stands for one rank's share of the CPU.
pub struct HostDevice {
    caps: Caps,
    pool: Arc<Pool>,
}

impl HostDevice {
    /// A host device. Every one has an identity of its own, so any number of ranks fits a host; those of one
    /// ordinal share a pool.
    ///
    /// # Errors
    /// The thread of `NCCL_CUMEM_MONITOR` could not be started.
    pub fn new(ordinal: u32) -> Result<Self> {
        Self::with_pool(ordinal, &format!("host device {ordinal}"), &pool::Policy::of(env::settings()))
    }

    /// One for memory that the ranks of a host share beside that of their devices: it does not count for the
    /// limits of pools.
    ///
    /// # Errors
    /// None in this version.
    pub fn beside() -> Result<Self> {
        Self::with_pool(0, "host memory beside devices", &pool::Policy::default())
    }

    fn with_pool(ordinal: u32, name: &str, policy: &pool::Policy) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = format!("host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let caps = Caps {
            kind: DeviceKind::Host,
            ordinal,
            id,
            name: "host CPU".into(),
            peers: Vec::new(),
            nvlink: false,
            multiprocessors: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            queues: u32::MAX,
        };
        let source = || -> Result<Box<dyn Source>> { Ok(Box::new(HostSource)) };
        let pool = pool::of(name, policy, source)?;
        Ok(Self { caps, pool })
    }
}

/// A mapping of this process, unmapped when dropped.
struct Mapping {
    addr: usize,
    bytes: usize,
    fd: Option<OwnedFd>,
    /// True if somebody was told how to map it: then it is never used for anything else.
    is_exported: AtomicBool,
    /// The pool's leave; none for an importer's mapping and for the pool's own.
    ticket: Option<Arc<Ticket>>,
}

/// The owner's end of a heap.
struct Heap {
    /// Taken out when it is dropped.
    mapping: Option<Arc<Mapping>>,
    pool: Arc<Pool>,
}

impl Drop for Heap {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        let is_free = Arc::strong_count(&mapping) == 1 && !mapping.is_exported.load(Ordering::Acquire);
        if let (Some(ticket), true) = (mapping.ticket.clone(), is_free) {
            self.pool.keep(ticket, Box::new(mapping));
        }
    }
}

/// Anonymous memory for the pool.
struct HostSource;

impl Source for HostSource {
    fn take(&self, bytes: u64) -> Result<Memory> {
        Ok(memory(Arc::new(map(bytes, None)?)))
    }

    fn zero(&self, addr: u64, bytes: u64) -> Result<()> {
        // SAFETY: the pool owns the range and nobody else knows it.
        unsafe { std::ptr::write_bytes(addr as *mut u8, 0, bytes as usize) };
        Ok(())
    }

    fn is_zeroed(&self) -> bool {
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and nobody holds this mapping any more.
        if let Err(e) = unsafe { munmap(self.addr as *mut _, self.bytes) } {
            hawser_base::log::warn(&format!("munmap of {} bytes failed: {e}", self.bytes));
        }
    }
}

/// Heaps of this process by key, so that ranks of one process share a mapping.
fn registry() -> &'static Mutex<FxHashMap<u64, Weak<Mapping>>> {
    static REGISTRY: OnceLock<Mutex<FxHashMap<u64, Weak<Mapping>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

fn map(bytes: u64, fd: Option<OwnedFd>) -> Result<Mapping> {
    let bytes = usize::try_from(bytes.max(1))
        .map_err(|_| Error::invalid_argument(format!("{bytes} bytes do not fit the address space")))?;
    let (access, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
    let addr = unsafe {
        match &fd {
            Some(fd) => mmap(null, bytes, access, MapFlags::SHARED, fd, 0),
            None => mmap_anonymous(null, bytes, access, MapFlags::PRIVATE),
        }
    }
    .map_err(|e| {
        Error::system(format!("mmap of {bytes} bytes of host memory"), e)
            .remedy("free memory or lower NCCL_BUFFSIZE")
    })?;
    if fd.is_some() {
        forked::keep_out(addr as usize, bytes);
    }
    Ok(Mapping { addr: addr as usize, bytes, fd, is_exported: false.into(), ticket: None })
}

fn memory(mapping: Arc<Mapping>) -> Memory {
    Memory { addr: mapping.addr as u64, bytes: mapping.bytes as u64, owner: Box::new(mapping) }
}

impl Device for HostDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn enter(&self) -> Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn alloc(&self, bytes: u64) -> Result<Memory> {
        self.pool.alloc(bytes)
    }

    fn alloc_as_user(&self, bytes: u64) -> Result<Memory> {
        Ok(memory(Arc::new(map(bytes, None)?)))
    }

    fn host_words(&self, bytes: u64) -> Result<HostWords> {
        let memory = memory(Arc::new(map(bytes, None)?));
        Ok(HostWords { host: memory.addr as *mut u8, memory })
    }

    fn upload(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller names memory of this device (host memory) of at least this length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, addr: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn accepts(&self, addr: u64) -> Result<bool> {
        let mut byte = [0u8; 1];
        let own = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let there = libc::iovec { iov_base: addr as *mut _, iov_len: 1 };
        let process = std::process::id().cast_signed();
        // SAFETY: the kernel reads the byte for us, whatever the address is, and writes it into `byte`.
        let read = unsafe { libc::process_vm_readv(process, &raw const own, 1, &raw const there, 1, 0) };
        // A kernel that does not let processes read memory this way tells nothing about the address.
        let is_fault = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
        Ok(addr != 0 && (read == 1 || !is_fault()))
    }
}

impl Streams for HostDevice {
    fn stream(&self) -> Result<OwnedStream> {
        Ok(OwnedStream { stream: Stream(0), owner: Box::new(()) })
    }

    fn urgent_stream(&self) -> Result<OwnedStream> {
        self.stream()
    }

    fn stream_state(&self, stream: Stream) -> Result<StreamState> {
        Ok(StreamState { id: stream.0, capture: None })
    }

    fn order(&self, _earlier: Stream, _later: Stream) -> Result<()> {
        Ok(())
    }

    fn fork(&self, _earlier: Stream, _later: Stream) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _stream: Stream, dst: u64, src: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller names memory of this device (host memory) of at least this length; ranges may
        // overlap.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes as usize) };
        Ok(())
    }

    fn copy_and_wait(&self, own: &OwnedStream, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.copy(own.stream, dst, src, bytes)
    }

    fn copy_beside_kernels(
        &self,
        own: &OwnedStream,
        dst: u64,
        src: u64,
        bytes: u64,
        _bounce: (u64, u64),
    ) -> Result<()> {
        self.copy(own.stream, dst, src, bytes)
    }

    fn moment(&self, _stream: Stream) -> Result<Moment> {
        // What is called has run to its end.
        Ok(Moment { owner: Box::new(Instant::now()) })
    }

    fn between(&self, earlier: &Moment, later: &Moment) -> Result<Option<Duration>> {
        let of = |moment: &Moment| moment.owner.downcast_ref::<Instant>().copied();
        let (earlier, later) =
            of(earlier).zip(of(later)).ok_or_else(|| Error::internal("a moment of a GPU"))?;
        Ok(Some(later - earlier))
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn is_idle(&self, _stream: Stream) -> Result<bool> {
        Ok(true)
    }
}

impl SharedMemory for HostDevice {
    fn alloc_heap(&self, bytes: u64, _kind: HeapKind) -> Result<Memory> {
        let length = bytes.max(1);
        let kept = self.pool.reuse(length).and_then(|(_, payload)| payload.downcast::<Arc<Mapping>>().ok());
        let mapping = match kept {
            Some(mapping) => {
                HostSource.zero(mapping.addr as u64, length)?;
                *mapping
            }
            None => {
                let ticket = self.pool.ticket(length)?;
                let fd = memfd_create("hawser-heap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                    .map_err(no_file)?;
                ftruncate(&fd, length)
                    .map_err(|e| Error::system(format!("reserving {bytes} bytes of shared memory"), e))?;
                // A peer that made it shorter would kill who touches it (SIGBUS).
                fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
                    .map_err(|e| Error::system("sealing shared memory", e))?;
                let mut mapping = map(length, Some(fd))?;
                mapping.ticket = Some(ticket);
                Arc::new(mapping)
            }
        };
        let (addr, bytes) = (mapping.addr as u64, mapping.bytes as u64);
        let owner = Heap { mapping: Some(mapping), pool: self.pool.clone() };
        Ok(Memory { addr, bytes, owner: Box::new(owner) })
    }

    fn share(&self, _heap: &Memory) -> Result<()> {
        Ok(())
    }

    fn export(&self, heap: &Memory, _kind: HeapKind) -> Result<Export> {
        let mapping = heap
            .owner
            .downcast_ref::<Heap>()
            .and_then(|heap| heap.mapping.as_ref())
            .ok_or_else(|| Error::internal("export of memory that is not a heap of the host device"))?;
        let mut registry = registry().lock().map_err(|_| Error::internal("heap registry is poisoned"))?;
        registry.retain(|_, mapping| mapping.strong_count() > 0);
        registry.insert(heap.addr, Arc::downgrade(mapping));
        let fd = mapping.fd.as_ref().ok_or_else(|| Error::internal("heap without a descriptor"))?;
        let fd =
            fd.as_fd().try_clone_to_owned().map_err(|e| Error::system("dup of a heap's descriptor", e))?;
        mapping.is_exported.store(true, Ordering::Release);
        let words = [u64::from(std::process::id()), heap.addr, heap.bytes];
        Ok(Export { token: words.iter().flat_map(|w| w.to_le_bytes()).collect(), fd: Some(fd) })
    }

    fn import(&self, token: &[u8], fd: Option<OwnedFd>, _kind: HeapKind) -> Result<Memory> {
        let word =
            |i: usize| token.get(i * 8..i * 8 + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let (Some(_pid), Some(key), Some(bytes)) = (word(0), word(1), word(2)) else {
            return Err(Error::remote(format!(
                "a peer sent a heap token of {} bytes, expected 24",
                token.len()
            )));
        };
        if let Some(fd) = fd {
            let size =
                rustix::fs::fstat(&fd).map_err(|e| Error::system("fstat of a peer's heap", e))?.st_size;
            if u64::try_from(size).ok() != Some(bytes) {
                return Err(Error::remote(format!("a peer's heap has {size} bytes, its token says {bytes}")));
            }
            if !fcntl_get_seals(&fd).unwrap_or(SealFlags::empty()).contains(SealFlags::SHRINK) {
                return Err(Error::remote("a peer's heap is not sealed: it could become shorter under us"));
            }
            let mut mapping = map(bytes, Some(fd))?;
            // The mapping keeps the memory: a descriptor per peer and communicator would run into ulimit -n.
            mapping.fd = None;
            return Ok(memory(Arc::new(mapping)));
        }
        let registry = registry().lock().map_err(|_| Error::internal("heap registry is poisoned"))?;
        let mapping = registry.get(&key).and_then(Weak::upgrade);
        mapping
            .map(memory)
            .ok_or_else(|| Error::remote("a peer of this process freed its heap during bring-up"))
    }

    fn host_address(&self, memory: &Memory) -> Option<u64> {
        Some(memory.addr)
    }

    fn can_detach(&self, _memory: &Memory) -> bool {
        true
    }

    /// The pages go; whoever touches them finds zeros, and takes memory again.
    fn detach(&self, memory: &Memory) -> Result<()> {
        let heap = memory.owner.downcast_ref::<Heap>().and_then(|heap| heap.mapping.as_ref());
        // A peer's heap is given back by its owner.
        let Some(mapping) = heap else { return Ok(()) };
        let fd = mapping.fd.as_ref().ok_or_else(|| Error::internal("heap without a descriptor"))?;
        fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, mapping.bytes as u64)
            .map_err(|e| Error::system("giving the pages of shared memory back", e))
    }

    fn attach(&self, _heap: &Memory) -> Result<()> {
        Ok(())
    }

    fn attach_peer(&self, _memory: &Memory, _token: &[u8], _fd: Option<OwnedFd>) -> Result<()> {
        Ok(())
    }

    fn expose(&self, addr: u64) -> Result<Option<Exposed>> {
        // Threads share everything.
        Ok(Some(Exposed { base: addr, bytes: u64::MAX - addr, id: 0 }))
    }

    fn reach(&self, _ordinal: u32) -> Result<()> {
        Ok(())
    }
}

/// The reason why there is no file for a heap. With many ranks in one process it is most often the limit of
/// open files.
fn no_file(errno: rustix::io::Errno) -> Error {
    let error = Error::system("memfd_create", errno);
    match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => {
            error.remedy("raise the limit of open files (ulimit -n): ranks of one process take about 10 each")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_is_shared_within_and_through_its_descriptor() {
        let device = HostDevice::new(0).unwrap();
        let heap = device.alloc_heap(4096, HeapKind::Host).unwrap();
        let export = device.export(&heap, HeapKind::Host).unwrap();
        let near = device.import(&export.token, None, HeapKind::Host).unwrap();
        let far = device.import(&export.token, export.fd, HeapKind::Host).unwrap();
        device.upload(heap.addr + 8, b"rope").unwrap();
        for seen in [&near, &far] {
            let mut bytes = [0; 4];
            device.download(seen.addr + 8, &mut bytes).unwrap();
            assert_eq!(&bytes, b"rope");
        }
        assert_eq!(near.addr, heap.addr);
        assert_ne!(far.addr, heap.addr);
    }

    /// A peer cannot make memory shorter under those who use it, and what could become shorter is not mapped.
    #[test]
    fn a_heap_keeps_its_length() {
        let device = HostDevice::new(0).unwrap();
        let heap = device.alloc_heap(4096, HeapKind::Host).unwrap();
        let export = device.export(&heap, HeapKind::Host).unwrap();
        let fd = export.fd.unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        let error = device.import(&export.token, Some(loose), HeapKind::Host).err().unwrap();
        assert!(error.text.contains("not sealed"), "{error}");
    }

    #[test]
    fn there_is_a_stream_but_no_graphs() {
        let device = HostDevice::new(0).unwrap();
        assert_eq!(device.stream().unwrap().stream, Stream(0));
        let device: &dyn Device = &device;
        assert!(device.kernels().is_none() && device.stream_words().is_none() && device.ipc().is_none());
        assert!(device.needs_graphs().err().unwrap().text.contains("graphs need CUDA"));
    }

    #[test]
    fn bad_tokens_are_refused() {
        let device = HostDevice::new(0).unwrap();
        assert!(device.import(b"short", None, HeapKind::Host).is_err());
        assert!(device.import(&[7; 24], None, HeapKind::Host).is_err());
    }
}
