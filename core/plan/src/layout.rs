//! The places of FIFOs and counters in a rank's **heap**, the memory that its peers write into.
//!
//! Rank `a` writes what it sends to `b` into `b`'s heap at `entry(lane, a)`; `b` returns credits
//! into `a`'s heap at `entry(lane, b)`. A pure function of the agreed settings, so no offsets are exchanged.
//! Only ranks of one host write into each other's heaps: peers are counted by their place on the host.

use crate::config::PlanConfig;
use crate::executor::copy_engine::{self, Staging};
use crate::executor::fused::{self, Area};
use crate::topology::Topology;
use hawser_kernels_abi::DevComm;

/// Bytes of the counter page of an entry: tails at 0, credits at 256, one counter per 64 bytes.
const COUNTERS: u64 = 512;

/// A part of a rank's heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// FIFOs of the interpreter, with their counters.
    Fifos,
    /// Slots of fused kernels with LL.
    Words,
    /// Slots of fused kernels with LL128.
    Lines,
    /// Slots of fused kernels with Simple, and the flags and lines by which those with zero copy meet.
    Tiles,
    /// Staging of copy engines.
    Staging,
}

impl Part {
    /// All parts, in the order in which they lie in a heap. The position of each is its number.
    pub const ALL: [Part; 5] = [Part::Fifos, Part::Words, Part::Lines, Part::Tiles, Part::Staging];
}

/// The layout of every heap of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapLayout {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Ranks of its largest host.
    pub local: u32,
    /// FIFO lanes per peer: those of collectives, then those of messages.
    pub lanes: u32,
    /// Lanes of messages. Each carries one direction only, so two of them share an entry.
    pub message_lanes: u32,
    /// Slots per FIFO.
    pub depth: u32,
    /// Payload bytes per slot by protocol (LL, LL128, Simple).
    pub slot_bytes: [u32; 3],
    /// Bytes that the network uses in front of each of its slots, see [`PlanConfig::slot_lead`].
    pub slot_lead: u32,
    /// Bytes from slot to slot by protocol.
    pub slot_stride: [u32; 3],
    /// Offset of each protocol's FIFO within an entry's FIFO memory.
    pub fifo_offset: [u32; 3],
    /// Bytes of an entry.
    pub entry_bytes: u64,
    /// The area for exchanges behind the entries, if ranks have any.
    pub area: Option<Area>,
    /// Staging for copy engines behind that, if ranks have any.
    pub staging: Option<Staging>,
    /// True if most parts are made when an operation first needs them ([`HeapLayout::is_late`]).
    pub has_late_parts: bool,
}

impl HeapLayout {
    /// The layout for `ranks` ranks, at most `local` of them on a host. A slot of 0 bytes leaves a protocol
    /// out.
    pub fn new(ranks: u32, local: u32, config: &PlanConfig) -> Self {
        let slot_bytes = config.slot_bytes;
        let slot_stride =
            [slot_bytes[0] * 2, slot_bytes[1].div_ceil(120) * 128, slot_bytes[2] + config.slot_lead];
        let mut fifo_offset = [0; 3];
        let mut at = 0;
        for p in 0..3 {
            fifo_offset[p] = at;
            at += (slot_stride[p] * config.depth).next_multiple_of(512);
        }
        let entry_bytes = COUNTERS + u64::from(at);
        Self {
            ranks,
            local,
            lanes: config.lanes + config.message_lanes(),
            message_lanes: config.message_lanes(),
            depth: config.depth,
            slot_bytes,
            slot_lead: config.slot_lead,
            slot_stride,
            fifo_offset,
            entry_bytes,
            area: None,
            staging: None,
            has_late_parts: false,
        }
    }

    /// The layout of a communicator, with all that its heaps hold.
    pub fn of(topology: &Topology, config: &PlanConfig) -> Self {
        let mut layout = Self::new(topology.size(), topology.places().1, config);
        layout.area = fused::area(topology, config);
        if copy_engine::has_staging(topology, config) {
            layout = layout.with_staging(config);
        }
        // Without areas nearly all operations need the FIFOs.
        layout.has_late_parts = config.late_parts && layout.area.is_some();
        layout
    }

    /// The same with staging for copy engines.
    pub fn with_staging(self, config: &PlanConfig) -> Self {
        Self { staging: Some(Staging::new(self.local, config)), ..self }
    }

    /// Bytes of a heap: none where no two ranks share a host. Late parts are not in it.
    pub fn heap_bytes(&self) -> u64 {
        if self.local < 2 {
            return 0;
        }
        self.offset(Part::Staging) + self.staging.map_or(0, |staging| staging.bytes())
    }

    /// True if a part is memory of its own, made when an operation first needs it. LL's words are not: the
    /// smallest part, and that of the operations that come first.
    pub fn is_late(&self, part: Part) -> bool {
        self.has_late_parts && matches!(part, Part::Fifos | Part::Lines | Part::Tiles)
    }

    /// Bytes of a part.
    pub fn part_bytes(&self, part: Part) -> u64 {
        let area = |bytes: fn(&Area) -> u64| self.area.as_ref().map_or(0, bytes);
        match part {
            Part::Fifos => {
                self.entry_bytes * u64::from(self.lanes - self.message_lanes / 2) * u64::from(self.local)
            }
            Part::Words => area(|area| area.slots[1]),
            Part::Lines => area(|area| area.slots[2] - area.slots[1]),
            Part::Tiles => area(|area| area.bytes - area.slots[2]),
            Part::Staging => self.staging.map_or(0, |staging| staging.bytes()),
        }
    }

    /// Offset of a part in the heap; 0 for a late one.
    pub fn offset(&self, part: Part) -> u64 {
        if self.is_late(part) {
            return 0;
        }
        let before = Part::ALL.iter().take(part as usize).filter(|before| !self.is_late(**before));
        let end = before.map(|before| self.part_bytes(*before)).sum::<u64>();
        let is_aligned = part == Part::Staging && self.staging.is_some();
        if is_aligned { end.next_multiple_of(64 << 10) } else { end }
    }

    /// Offset of the FIFO memory of (`lane`, place `peer`).
    pub fn fifo(&self, lane: u32, peer: u32) -> u64 {
        self.entry(lane, peer) + COUNTERS
    }

    /// Offset of the tail counters that place `peer` writes.
    pub fn tail(&self, lane: u32, peer: u32) -> u64 {
        self.entry(lane, peer)
    }

    /// Offset of the credit counters that place `peer` writes.
    pub fn credit(&self, lane: u32, peer: u32) -> u64 {
        self.entry(lane, peer) + 256
    }

    /// Entries of the device's table of connections per lane: all ranks, and the network.
    pub fn columns(&self) -> u32 {
        self.ranks + 1
    }

    /// A device image of the settings; addresses are left 0.
    pub fn dev_comm(&self, rank: u32) -> DevComm {
        DevComm {
            rank,
            ranks: self.columns(),
            lanes: self.lanes,
            depth: self.depth,
            slot_bytes: self.slot_bytes,
            slot_stride: self.slot_stride,
            fifo_offset: self.fifo_offset,
            ..DevComm::default()
        }
    }

    fn entry(&self, lane: u32, peer: u32) -> u64 {
        let half = self.message_lanes / 2;
        let lane = if lane < self.lanes - half { lane } else { lane - half };
        (u64::from(lane) * u64::from(self.local) + u64::from(peer)) * self.entry_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_do_not_overlap_and_fit() {
        let layout = HeapLayout::new(9, 5, &PlanConfig { lanes: 3, ..PlanConfig::default() });
        assert_eq!((layout.lanes, layout.message_lanes), (7, 4));
        // The two directions of messages.
        assert_eq!(layout.entry(3, 1), layout.entry(5, 1));
        let mut starts: Vec<u64> = (0..5).flat_map(|l| (0..5).map(move |p| layout.entry(l, p))).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|w| w[1] - w[0] == layout.entry_bytes));
        assert_eq!(starts.last().unwrap() + layout.entry_bytes, layout.heap_bytes());
        assert_eq!(HeapLayout::new(9, 1, &PlanConfig::default()).heap_bytes(), 0);
        let with_area =
            HeapLayout { area: Some(Area::new(8)), ..HeapLayout::new(8, 8, &PlanConfig::default()) };
        assert_eq!(with_area.offset(Part::Words) % 512, 0);
        assert_eq!(with_area.heap_bytes(), with_area.offset(Part::Words) + with_area.area.unwrap().bytes);
        for p in 0..3 {
            assert_eq!(layout.fifo_offset[p] % 512, 0);
            let end = layout.fifo_offset[p] + layout.slot_stride[p] * layout.depth;
            let next = if p == 2 { layout.entry_bytes as u32 - 512 } else { layout.fifo_offset[p + 1] };
            assert!(end <= next);
        }
    }

    #[test]
    fn late_parts_are_not_in_the_heap() {
        let config = PlanConfig::default();
        let whole = HeapLayout { area: Some(Area::new(4)), ..HeapLayout::new(4, 4, &config) };
        let late = HeapLayout { has_late_parts: true, ..whole };
        let bytes = |layout: &HeapLayout| Part::ALL.map(|part| layout.part_bytes(part)).iter().sum::<u64>();
        assert_eq!((bytes(&whole), whole.heap_bytes()), (bytes(&late), bytes(&whole)));
        assert_eq!((late.offset(Part::Words), late.heap_bytes()), (0, late.part_bytes(Part::Words)));
        for (number, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, number);
            assert!(late.is_late(part) || late.offset(part) + late.part_bytes(part) <= late.heap_bytes());
        }
        // Staging is what a user asks for: it is there from the first.
        let staged = late.with_staging(&config);
        assert!(!staged.is_late(Part::Staging) && staged.offset(Part::Staging).is_multiple_of(64 << 10));
    }
}
