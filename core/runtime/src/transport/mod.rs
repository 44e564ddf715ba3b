//! Transports: memory in which the FIFOs between ranks lie.
//!
//! Inside a host every rank owns a **heap** that its peers map and write into ([`HeapLayout`] says where).
//! With the *p2p* transport heaps are device memory, with *shm* host memory that all devices reach. Between
//! hosts, FIFOs end in memory of the same rank, and the proxy carries slots over a net plugin ([`net`]). The
//! executors see only the resulting [`Conn`] table: how a FIFO's memory came about is known here alone.

pub mod control;
mod image;
pub mod net;
pub mod parts;
pub mod suspend;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Device, HeapKind, Memory};
use hawser_kernels_abi::{Conn, Entry};
use hawser_plan::executor::copy_engine::Bases;
use hawser_plan::layout::{HeapLayout, Part};

use crate::bootstrap::{Bootstrap, Tag};
use control::Control;
use image::Image;
use parts::LateParts;

/// All memory of a communicator on one rank.
pub struct PeerMemory {
    /// The communicator as executors see it.
    image: Image,
    /// The control words that end its launches.
    pub control: Arc<Control>,
    heap: Memory,
    kind: HeapKind,
    /// The heaps of the other ranks of the host.
    mapped: Vec<(Near, Memory)>,
    /// The parts that are not in the heaps.
    late: Option<LateParts>,
    /// The counters of fused kernels; None without areas for such kernels.
    epochs: Option<Memory>,
    /// Place on its host of each rank.
    places: Vec<u32>,
    /// Set once the image has FIFOs that were made late.
    has_late_fifos: OnceLock<()>,
    layout: HeapLayout,
    staging: Option<Bases>,
    rank: u32,
}

/// Another rank of this host.
#[derive(Debug, Clone, Copy)]
pub struct Near {
    rank: u32,
    /// It lives in another process.
    is_elsewhere: bool,
}

/// The table of connections: where the device has it, and what it holds.
#[derive(Clone)]
pub struct ConnectionTable {
    /// Device address.
    pub conns: u64,
    /// Its entries, `[lane * columns + peer]`.
    pub table: Vec<Conn>,
}

/// The facts about the peers that connecting needs.
pub struct Peers<'a> {
    /// This rank.
    pub rank: u32,
    /// Process of each rank: equal numbers mean one process.
    pub processes: &'a [u64],
    /// Host of each rank.
    pub hosts: &'a [u32],
    /// Place of each rank on its host.
    pub places: &'a [u32],
    /// The kind of memory that heaps lie in.
    pub kind: HeapKind,
    /// Nanoseconds that a wait on the device may last; 0 = for ever.
    pub deadline_ns: u64,
    /// Ends the waits of operations.
    pub abort: &'a AbortFlag,
}

impl Peers<'_> {
    /// True if a rank lives in another process than this one.
    fn is_elsewhere(&self, peer: u32) -> bool {
        self.processes[peer as usize] != self.processes[self.rank as usize]
    }

    /// True if a rank is another one on this rank's host.
    fn is_near(&self, peer: usize) -> bool {
        peer != self.rank as usize && self.hosts[peer] == self.hosts[self.rank as usize]
    }
}

impl PeerMemory {
    /// Allocates this rank's heap, exchanges heaps with the peers of its host and builds the image.
    /// Collective.
    pub fn connect(
        device: &Arc<dyn Device>,
        bootstrap: &Arc<Bootstrap>,
        peers: &Peers<'_>,
        layout: &HeapLayout,
        wait: &Wait,
    ) -> Result<Self> {
        let near = |rank: u32| Near { rank, is_elsewhere: peers.is_elsewhere(rank) };
        let others = || (0..bootstrap.nranks()).filter(|rank| peers.is_near(*rank as usize)).map(near);
        // Before the first barrier: others may ask for parts as soon as they have passed it.
        let late = layout
            .has_late_parts
            .then(|| LateParts::new(device, bootstrap, others().collect(), layout, peers.abort));
        let device = &**device;
        let heap = device.alloc_heap(layout.heap_bytes().max(1), peers.kind)?;
        let mapped = exchange(device, bootstrap, peers, &heap, wait)?;
        let control = Control::new(device)?;
        let starts =
            (!layout.is_late(Part::Fifos)).then(|| starts(layout, Part::Fifos, (peers.rank, &heap), &mapped));
        let image = Image::new(device, layout, peers, control.addresses(), starts.as_deref())?;
        let staging = staging(device, layout, peers, &heap, &mapped)?;
        let epochs = layout.area.map(|area| device.alloc(area.epoch_bytes)).transpose()?;
        let mapped = (0..).zip(mapped).filter_map(|(rank, memory)| Some((near(rank), memory?)));
        Ok(Self {
            image,
            control: Arc::new(control),
            heap,
            kind: peers.kind,
            mapped: mapped.collect(),
            late,
            epochs,
            places: peers.places.to_vec(),
            has_late_fifos: OnceLock::new(),
            layout: *layout,
            staging,
            rank: peers.rank,
        })
    }

    /// The address of the device's image of the communicator.
    pub fn image(&self) -> u64 {
        self.image.addr()
    }

    /// The place where kernels of a protocol begin.
    pub fn entry(&self, protocol: u8) -> Entry {
        let fifo_offset = self.layout.fifo_offset.get(usize::from(protocol)).copied().unwrap_or(0);
        self.image.entry(fifo_offset)
    }

    /// The table of connections, for the net transport to go on with.
    ///
    /// # Errors
    /// The device refused.
    pub fn connections(&self, device: &dyn Device) -> Result<ConnectionTable> {
        self.image.connections(device, &self.layout)
    }

    /// True if this rank and the others of its host have VMM and share device memory by descriptors.
    pub fn has_shared_vmm(&self, device: &dyn Device) -> bool {
        self.kind == HeapKind::Device
            && device.can_detach(&self.heap)
            && self.mapped.iter().all(|(_, memory)| device.can_detach(memory))
    }

    /// Address of the `u32` to which blocks of launches add 1 when they are over.
    pub fn done(&self) -> u64 {
        self.image.done()
    }

    /// Everybody's staging for copy engines, if ranks have any.
    pub fn staging(&self) -> Option<&Bases> {
        self.staging.as_ref()
    }

    /// Address of the counters of fused kernels.
    ///
    /// # Errors
    /// `Internal`: the ranks have no areas for such kernels.
    pub fn fused_epochs(&self) -> Result<u64> {
        let epochs = self.epochs.as_ref().map(|epochs| epochs.addr);
        epochs.ok_or_else(|| Error::internal("a fused kernel without areas"))
    }

    /// The addresses at which a part begins, by rank; all ranks are of one host. A part that is late is made
    /// and mapped at its first use, on all ranks.
    ///
    /// # Errors
    /// As [`LateParts::reach`].
    pub fn reach(&self, part: Part, wait: &Wait) -> Result<Vec<u64>> {
        if let Some(late) = self.late.as_ref().filter(|_| self.layout.is_late(part)) {
            return late.reach(part, wait).map(<[u64]>::to_vec);
        }
        let at = self.layout.offset(part);
        let mut starts = vec![self.heap.addr + at; self.places.len()];
        for (near, memory) in &self.mapped {
            starts[near.rank as usize] = memory.addr + at;
        }
        Ok(starts)
    }

    /// Makes sure that the FIFOs between the ranks of this host are there.
    ///
    /// # Errors
    /// As [`LateParts::reach`], or the device refused the table.
    pub fn reach_fifos(&self, device: &dyn Device, wait: &Wait) -> Result<()> {
        if !self.layout.is_late(Part::Fifos) || self.has_late_fifos.get().is_some() {
            return Ok(());
        }
        let starts = self.reach(Part::Fifos, wait)?;
        let starts: Vec<Option<u64>> = starts.into_iter().map(Some).collect();
        // Two threads that do it at once write the same; nobody reads it before it is there.
        self.image.enter_fifos(device, &self.layout, (self.rank, &self.places), &starts)?;
        self.has_late_fifos.get_or_init(|| ());
        Ok(())
    }

    /// Takes the memory out: it lives as long as the answer.
    pub fn take_memory(&mut self) -> Vec<Memory> {
        let heap = self.heap.take();
        let mapped = std::mem::take(&mut self.mapped).into_iter().map(|(_, memory)| memory);
        let late = self.late.as_ref().map(LateParts::take_memory).into_iter().flatten();
        let own = std::iter::once(heap).chain(self.image.take_memory()).chain(self.epochs.take());
        own.chain(mapped).chain(late).collect()
    }

    /// Device memory that this rank allocated (without what is mapped from peers).
    pub fn bytes(&self) -> u64 {
        let late = self.late.as_ref().map_or(0, LateParts::bytes);
        let epochs = self.epochs.as_ref().map_or(0, |epochs| epochs.bytes);
        self.heap.bytes + late + self.image.bytes() + epochs
    }
}

/// Maps the heaps of the other ranks of the host; None for all others.
pub(crate) fn exchange(
    device: &dyn Device,
    bootstrap: &Bootstrap,
    peers: &Peers<'_>,
    heap: &Memory,
    wait: &Wait,
) -> Result<Vec<Option<Memory>>> {
    let me = peers.rank as usize;
    let elsewhere = |peer: usize| peers.is_near(peer) && peers.is_elsewhere(peer as u32);
    let others: Vec<u32> = (0..bootstrap.nranks()).filter(|peer| elsewhere(*peer as usize)).collect();
    if others.is_empty() {
        bootstrap.take_no_descriptors();
    }
    let (tokens, received) = pass_handles(device, bootstrap, &others, (heap, peers.kind), wait)?;
    let mut mapped = Vec::with_capacity(tokens.len());
    for (peer, (token, fd)) in tokens.iter().zip(received).enumerate() {
        let memory = peers.is_near(peer).then(|| device.import(token, fd, peers.kind)).transpose();
        mapped.push(memory.map_err(|error: Error| {
            let text = format!("rank {me} cannot map the heap of rank {peer}");
            error.context(text).with_peer(peer as u32)
        })?);
    }
    log::info(Subsys::Init, || {
        let near = (0..tokens.len()).filter(|&p| peers.is_near(p)).count();
        let far = (0..tokens.len()).filter(|&p| elsewhere(p)).count();
        format!(
            "rank {me}: mapped {near} peers ({far} in other processes), heap {} KiB in {:?} memory",
            heap.bytes >> 10,
            peers.kind
        )
    });
    // Nobody frees its heap or reuses its token before all peers have mapped it.
    bootstrap.barrier(wait)?;
    Ok(mapped)
}

/// The tokens of heaps and their descriptors, by rank.
type Handles = (Vec<Vec<u8>>, Vec<Option<OwnedFd>>);

/// Tells all ranks how to map this rank's heap, and learns it of theirs: the tokens, and the descriptors of
/// the ranks that live in other processes of this host. Collective.
fn pass_handles(
    device: &dyn Device,
    bootstrap: &Bootstrap,
    elsewhere: &[u32],
    (heap, kind): (&Memory, HeapKind),
    wait: &Wait,
) -> Result<Handles> {
    let export = device.export(heap, kind)?;
    let tokens = bootstrap.all_gather(&export.token, wait)?;
    let mut received: Vec<Option<OwnedFd>> = tokens.iter().map(|_| None).collect();
    if let Some(fd) = &export.fd {
        for peer in elsewhere {
            bootstrap.send_fd(*peer, Tag::Heap.word(), fd.as_fd(), wait)?;
        }
        for peer in elsewhere {
            received[*peer as usize] = Some(bootstrap.recv_fd(*peer, Tag::Heap.word(), wait)?);
        }
    }
    Ok((tokens, received))
}

/// Everybody's staging, with this rank's slots free. Nobody looks at them before all ranks have passed a
/// barrier.
fn staging(
    device: &dyn Device,
    layout: &HeapLayout,
    peers: &Peers<'_>,
    heap: &Memory,
    mapped: &[Option<Memory>],
) -> Result<Option<Bases>> {
    let Some(staging) = layout.staging else { return Ok(None) };
    let bases = |staging_of: Vec<u64>| {
        let places = peers.places.to_vec();
        Ok(Some(Bases { rank: peers.rank, staging: staging_of, places, layout: staging }))
    };
    if layout.local < 2 {
        return bases(vec![0; mapped.len()]);
    }
    let own = heap.addr + layout.offset(Part::Staging);
    let (at, bytes) = staging.free_words();
    let words: Vec<u32> = (0..bytes / 4).map(|word| u32::from(word % 4 == 0)).collect();
    device.upload(own + at, bytes_of(&words))?;
    let base = |theirs: &Option<Memory>| {
        theirs.as_ref().map_or(0, |memory| memory.addr + layout.offset(Part::Staging))
    };
    let mut all: Vec<u64> = mapped.iter().map(base).collect();
    all[peers.rank as usize] = own;
    bases(all)
}

/// The addresses at which a part of the heaps begins, by rank; None for ranks of other hosts.
fn starts(
    layout: &HeapLayout,
    part: Part,
    (rank, heap): (u32, &Memory),
    mapped: &[Option<Memory>],
) -> Vec<Option<u64>> {
    let at = layout.offset(part);
    let mut starts: Vec<_> = mapped.iter().map(|memory| memory.as_ref().map(|m| m.addr + at)).collect();
    starts[rank as usize] = Some(heap.addr + at);
    starts
}

/// The bytes of plain-old-data structures of `device_plan`.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: all `repr(C)` types of `device_plan` are integers without implicit padding, and any byte may be
    // read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
