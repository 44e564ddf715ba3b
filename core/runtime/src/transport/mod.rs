//! Transports: memory in which the FIFOs between ranks of one host lie.
//!
//! Every rank owns a **heap** that its peers map and write into ([`HeapLayout`] says where). With the
//! *p2p* transport heaps are device memory, with *shm* host memory that all devices reach. The
//! executors see only the resulting [`Conn`] table: how a FIFO's memory came about is known here alone.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_plan::device_plan::{Conn, DevComm, MAX_BLOCKS, Report};
use hawser_plan::layout::HeapLayout;

use crate::bootstrap::Bootstrap;
use crate::device::{Device, HeapKind, HostWords, Memory};
use crate::error::{Error, Result};
use crate::log::{self, Subsys};
use crate::wait::Wait;

/// Bytes of a FIFO's private counters: `sent[3]`, `taken[3]`, padded to a cache line.
const COUNTER_BYTES: u64 = 64;
/// Tag under which heap descriptors are passed.
const HEAP_TAG: u64 = 1;
/// Offset of the report in the host words; the abort flag is at 0.
const REPORT_AT: usize = 64;

/// All memory of a communicator on one rank.
pub struct Fabric {
    /// Image of the communicator for the executors.
    pub dev_comm: Memory,
    words: HostWords,
    held: Vec<Memory>,
}

/// What connecting needs to know of the peers.
pub struct Peers<'a> {
    /// This rank.
    pub rank: u32,
    /// Process of each rank: equal numbers mean one process.
    pub processes: &'a [u64],
    /// Where heaps lie.
    pub kind: HeapKind,
    /// Nanoseconds that a wait on the device may last; 0 = for ever.
    pub deadline_ns: u64,
}

impl Fabric {
    /// Allocates this rank's heap, exchanges heaps with all peers and builds the image. Collective.
    pub fn connect(
        device: &dyn Device,
        bootstrap: &Bootstrap,
        peers: &Peers<'_>,
        layout: &HeapLayout,
        wait: &Wait,
    ) -> Result<Self> {
        let heap = device.alloc_heap(layout.heap_bytes(), peers.kind)?;
        let mapped = exchange(device, bootstrap, peers, &heap, wait)?;
        let words = device.host_words(128)?;
        let (lanes, ranks) = (layout.lanes, layout.ranks);
        let entries = u64::from(lanes) * u64::from(ranks);
        let counters = device.alloc(entries * COUNTER_BYTES)?;
        let deps = device.alloc(8 + 8 * MAX_BLOCKS as u64)?;
        let table = conn_table(layout, peers.rank, &heap, &mapped, counters.addr);
        let conns = device.alloc(entries * size_of::<Conn>() as u64)?;
        device.upload(conns.addr, bytes_of(&table))?;
        let image = DevComm {
            conns: conns.addr,
            abort: words.memory.addr,
            report: words.memory.addr + REPORT_AT as u64,
            deadline_ns: peers.deadline_ns,
            deps: deps.addr,
            ..layout.dev_comm(peers.rank)
        };
        let dev_comm = device.alloc(size_of::<DevComm>() as u64)?;
        device.upload(dev_comm.addr, bytes_of(std::slice::from_ref(&image)))?;
        let mut held = vec![heap, counters, conns, deps];
        held.extend(mapped.into_iter().flatten());
        Ok(Self { dev_comm, words, held })
    }

    /// Makes every wait of this communicator's launches end.
    pub fn abort(&self) {
        // SAFETY: the words are at least 128 bytes, aligned, and live as long as `self`.
        unsafe { &*(self.words.host as *const AtomicU32) }.store(1, Ordering::Release);
    }

    /// Whether [`Fabric::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        // SAFETY: as in `abort`.
        unsafe { &*(self.words.host as *const AtomicU32) }.load(Ordering::Acquire) != 0
    }

    /// Never frees the memory: a kernel may still be using it.
    pub fn leak(&mut self) {
        let nothing = || Memory { addr: 0, bytes: 0, owner: Box::new(()) };
        std::mem::forget(std::mem::take(&mut self.held));
        std::mem::forget(std::mem::replace(&mut self.dev_comm, nothing()));
        std::mem::forget(std::mem::replace(&mut self.words.memory, nothing()));
    }

    /// What a launch wrote when it gave up; `code` is 0 when none did.
    pub fn report(&self) -> Report {
        // SAFETY: as above; a report is plain integers, written once, `code` last.
        unsafe { self.words.host.add(REPORT_AT).cast::<Report>().read_volatile() }
    }

    /// Device memory that this rank allocated (without what is mapped from peers).
    pub fn bytes(&self) -> u64 {
        self.held.iter().take(4).map(|m| m.bytes).sum::<u64>() + self.dev_comm.bytes
    }
}

/// Maps every peer's heap; None for this rank.
fn exchange(
    device: &dyn Device,
    bootstrap: &Bootstrap,
    peers: &Peers<'_>,
    heap: &Memory,
    wait: &Wait,
) -> Result<Vec<Option<Memory>>> {
    let export = device.export(heap, peers.kind)?;
    let tokens = bootstrap.all_gather(&export.token, wait)?;
    let me = peers.rank as usize;
    let elsewhere = |peer: usize| peers.processes[peer] != peers.processes[me];
    let with_fd = export.fd.is_some();
    let mut received: Vec<Option<OwnedFd>> = tokens.iter().map(|_| None).collect();
    if let Some(fd) = &export.fd {
        for peer in (0..tokens.len()).filter(|&p| elsewhere(p)) {
            bootstrap.send_fd(peer as u32, HEAP_TAG, fd.as_fd(), wait)?;
        }
    }
    for (peer, slot) in received.iter_mut().enumerate() {
        if with_fd && elsewhere(peer) {
            *slot = Some(bootstrap.recv_fd(peer as u32, HEAP_TAG, wait)?);
        }
    }
    let mut mapped = Vec::with_capacity(tokens.len());
    for (peer, (token, fd)) in tokens.iter().zip(received).enumerate() {
        let memory = (peer != me).then(|| device.import(token, fd, peers.kind)).transpose();
        mapped.push(
            memory.map_err(|e: Error| e.context(format!("rank {me} cannot map the heap of rank {peer}")))?,
        );
    }
    log::info(Subsys::Init, || {
        let far = (0..tokens.len()).filter(|&p| elsewhere(p)).count();
        format!(
            "rank {me}: mapped {} peers ({far} in other processes), heap {} KiB in {:?} memory",
            tokens.len() - 1,
            heap.bytes >> 10,
            peers.kind
        )
    });
    // Nobody frees its heap or reuses its token before all peers have mapped it.
    bootstrap.barrier(wait)?;
    Ok(mapped)
}

fn conn_table(
    layout: &HeapLayout,
    rank: u32,
    heap: &Memory,
    mapped: &[Option<Memory>],
    counters: u64,
) -> Vec<Conn> {
    let mut table = Vec::with_capacity((layout.lanes * layout.ranks) as usize);
    for lane in 0..layout.lanes {
        for (peer, memory) in (0..layout.ranks).zip(mapped) {
            let own = heap.addr;
            let theirs = memory.as_ref().map_or(own, |m| m.addr);
            table.push(Conn {
                send_fifo: theirs + layout.fifo(lane, rank),
                send_tail: theirs + layout.tail(lane, rank),
                send_credit: own + layout.credit(lane, peer),
                recv_fifo: own + layout.fifo(lane, peer),
                recv_tail: own + layout.tail(lane, peer),
                recv_credit: theirs + layout.credit(lane, rank),
                counters: counters
                    + (u64::from(lane) * u64::from(layout.ranks) + u64::from(peer)) * COUNTER_BYTES,
                send_bytes: 0,
            });
        }
    }
    table
}

/// The bytes of plain-old-data structures of `device_plan`.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: all `repr(C)` types of `device_plan` are integers without implicit padding, and any byte may be read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
