//! Buffers of captured calls: the ranks of a team map them for each other as long as the graph is there, so
//! that replays need no staging. Nobody has to register anything.
//!
//! All ranks capture a call or none does (NCCL demands it), so all are in the same call on the host, and
//! agree there. A buffer is known again within its capture only: memory that a graph uses is not freed before
//! the graph, while an address says nothing about memory of another time. Calls outside of the capture never
//! use these mappings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_base::error::Result;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::Wait;
use hawser_device::{FlatMaps, Memory, Stream, size_text};

use super::Lsa;
use super::allocation::Allocation;
use super::exchange::{Mapping, Purpose, Share};
use crate::transport::bytes_of;

/// The buffers that graphs of a communicator use.
#[derive(Default)]
pub struct GraphBuffers {
    graphs: Mutex<Vec<OfGraph>>,
    /// Set when some graph is gone.
    some_is_over: Arc<AtomicBool>,
}

/// The buffers of a graph.
struct OfGraph {
    /// The capture that made it.
    capture: u64,
    /// The buffers, in the order in which the ranks have agreed on them.
    buffers: Vec<Lent>,
    /// Set when the graph is gone.
    is_over: Arc<AtomicBool>,
}

/// A buffer, or the allocation around it, that all ranks have mapped. Fields are dropped in this order.
struct Lent {
    /// The numbers by which other ranks find it.
    numbers: Memory,
    _mapping: Mapping,
    addr: u64,
    bytes: u64,
}

impl Lent {
    fn holds(&self, (addr, bytes): (u64, u64)) -> bool {
        addr.checked_sub(self.addr).is_some_and(|at| at <= self.bytes && bytes <= self.bytes - at)
    }
}

/// Tells the communicator that a graph is gone, when the driver drops it.
struct EndOfGraph {
    is_over: Arc<AtomicBool>,
    some_is_over: Arc<AtomicBool>,
}

impl Drop for EndOfGraph {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.some_is_over.store(true, Ordering::Release);
    }
}

impl GraphBuffers {
    /// The places of those buffers of a capture that hold this one, in order.
    fn holding(&self, capture: u64, buffer: (u64, u64)) -> Vec<u32> {
        let graphs = self.lock();
        let of_graph = graphs.iter().find(|graph| graph.capture == capture);
        let buffers = (0..).zip(of_graph.map_or(&[][..], |graph| &graph.buffers));
        buffers.filter(|(_, lent)| lent.holds(buffer)).map(|(place, _)| place).collect()
    }

    /// The address of the numbers by which other ranks find a buffer of a capture, by its place.
    fn numbers(&self, capture: u64, place: u32) -> Option<u64> {
        let graphs = self.lock();
        let of_graph = graphs.iter().find(|graph| graph.capture == capture)?;
        of_graph.buffers.get(place as usize).map(|lent| lent.numbers.addr)
    }

    /// Keeps a buffer with those of its capture. Returns the end of the graph, if it is the first one.
    fn keep(&self, capture: u64, lent: Lent) -> Option<EndOfGraph> {
        let mut graphs = self.lock();
        if let Some(of_graph) = graphs.iter_mut().find(|graph| graph.capture == capture) {
            of_graph.buffers.push(lent);
            return None;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        graphs.push(OfGraph { capture, buffers: vec![lent], is_over: is_over.clone() });
        Some(EndOfGraph { is_over, some_is_over: self.some_is_over.clone() })
    }

    /// Lets the buffers of graphs go that are gone.
    fn let_go(&self) {
        if !self.some_is_over.load(Ordering::Relaxed) || !self.some_is_over.swap(false, Ordering::AcqRel) {
            return;
        }
        let is_over = |graph: &mut OfGraph| graph.is_over.load(Ordering::Acquire);
        let over: Vec<OfGraph> = self.lock().extract_if(.., is_over).collect();
        // Unmapped when nothing is locked.
        drop(over);
    }

    /// Device memory that this rank allocated for them.
    pub fn bytes(&self) -> u64 {
        self.lock().iter().flat_map(|graph| &graph.buffers).map(|lent| lent.numbers.bytes).sum()
    }

    /// Takes all out: they are mapped as long as the answer lives.
    pub fn take(&self) -> impl Send + use<> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OfGraph>> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lsa {
    /// True if buffers of captured calls are mapped, on all ranks alike.
    pub fn lends_to_graphs(&self) -> bool {
        self.lends.to_graphs
    }

    /// Lets the buffers of graphs go that are gone.
    pub fn let_go_of_graphs(&self) {
        self.graphs.let_go();
    }

    /// The address of the numbers by which other ranks find a buffer of a call that is captured on `stream`;
    /// none, on all ranks alike, if some rank's buffer cannot be mapped, or some rank has none to lend.
    /// Collective: all ranks are in the same call.
    ///
    /// # Errors
    /// Another rank did not answer, or there is no memory for the numbers.
    pub fn lend_to_graph(
        &self,
        (stream, capture): (Stream, u64),
        buffer: Option<(u64, u64)>,
        wait: &Wait,
    ) -> Result<Option<u64>> {
        let holding = buffer.map(|buffer| self.graphs.holding(capture, buffer));
        let all = self.exchange(true, wait).offer(&holding)?;
        let Some(all) = all.into_iter().collect::<Option<Vec<Vec<u32>>>>() else { return Ok(None) };
        let is_common = |place: &u32| all.iter().all(|places| places.contains(place));
        let Some(buffer) = buffer else { return Ok(None) };
        if let Some(place) = holding.into_iter().flatten().find(is_common) {
            return Ok(self.graphs.numbers(capture, place));
        }
        let maps = self.maps()?;
        let (whole, share) = self.whole(maps, buffer)?;
        let exchange = self.exchange(self.lends.to_graphs, wait);
        let mapping = match exchange.run(maps, Purpose::Graph, whole, share.map(Some))? {
            Ok(Some(mapping)) if !mapping.seen_at.is_empty() => mapping,
            Ok(_) => return Ok(None),
            Err(error) => {
                self.tell(|rank| format!("rank {rank}: a graph's buffer is not mapped: {error}"));
                return Ok(None);
            }
        };
        self.keep_for_graph((stream, capture), whole, mapping).map(Some)
    }

    /// The memory around a buffer: the pieces or the allocation that it lies in, from its begin. So others in
    /// it need no mapping, and ranks may have theirs at different places. The buffer alone, and the reason,
    /// where others cannot map it.
    fn whole(&self, maps: &dyn FlatMaps, (addr, bytes): (u64, u64)) -> Result<((u64, u64), Result<Share>)> {
        let why = match maps.pieces(addr, bytes) {
            Ok(pieces) => {
                let length = pieces.pieces.iter().map(|(length, _)| length).sum();
                return Ok(((pieces.base, length), Ok(Share::Pieces(pieces))));
            }
            Err(why) => why,
        };
        let holds = |base: u64, length: u64| {
            addr.checked_sub(base).is_some_and(|at| at <= length && bytes <= length - at)
        };
        let found = self.device.expose(addr)?.filter(|found| holds(found.base, found.bytes));
        let whole = found.map_or((addr, bytes), |found| (found.base, found.bytes));
        let allocation = Allocation::around(&*self.device, whole, &self.team, why);
        Ok((whole, allocation.map(Share::Allocation)))
    }

    fn keep_for_graph(
        &self,
        (stream, capture): (Stream, u64),
        (addr, bytes): (u64, u64),
        mapping: Mapping,
    ) -> Result<u64> {
        let shifts: Vec<u64> = mapping.seen_at.iter().map(|there| there.wrapping_sub(addr)).collect();
        let numbers = self.device.alloc(size_of_val(&*shifts) as u64)?;
        self.device.upload(numbers.addr, bytes_of(&shifts))?;
        let place = numbers.addr;
        if let Some(end) = self.graphs.keep(capture, Lent { numbers, _mapping: mapping, addr, bytes }) {
            let is_over = end.is_over.clone();
            if !self.device.needs_graphs()?.keep_for_graph(stream, Box::new(end))? {
                // Nobody tells when the graph is gone: kept until the communicator ends.
                is_over.store(false, Ordering::Release);
            }
        }
        self.tell(|rank| format!("rank {rank}: {} are mapped for a graph", size_text(bytes)));
        Ok(place)
    }

    fn tell(&self, line: impl FnOnce(u32) -> String) {
        log::info(Subsys::Reg, || line(self.bootstrap.rank()));
    }
}
