//! Memory for the FIFOs in front of the network, in large blocks: page-locking is slow, and may have to wait
//! for the device, so the first block is there before anything runs.

use hawser_base::error::Result;
use hawser_device::{Device, HostWords, Memory};

/// Pieces per block, unless told otherwise.
const PIECES: u64 = 16;
/// Slots begin at multiples of this.
const ALIGN: u64 = 4096;

/// Zeroed pieces of equal size that live as long as the arena.
pub struct Arena {
    /// Bytes in front of the slots, always of the host.
    page_bytes: u64,
    slot_bytes: u64,
    in_device: bool,
    /// Pieces per block.
    pieces: u64,
    blocks: Vec<Block>,
    /// Pieces taken of the last block.
    taken: u64,
}

struct Block {
    host: HostWords,
    /// The slots, if they lie in device memory.
    device: Option<Memory>,
}

/// Memory of one end of a connection: a page for counters in host memory, and slots.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Host address of the page.
    pub page: *mut u8,
    /// Device address of the page.
    pub page_addr: u64,
    /// Device address of the slots.
    pub slots: u64,
    /// The slots' address for the plugin: a host address, or `slots` in device memory.
    pub slots_for_net: u64,
    /// True if the slots lie in device memory.
    pub in_device: bool,
}

// SAFETY: only addresses; whoever uses them keeps the rules of the memory behind them.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Arena {
    /// An arena of pieces with so many bytes of page and slots each, with its first block.
    pub fn new(device: &dyn Device, bytes: (u64, u64), in_device: bool) -> Result<Self> {
        Self::with_pieces(device, bytes, in_device, PIECES)
    }

    /// The same with so many pieces per block.
    pub fn with_pieces(
        device: &dyn Device,
        (page_bytes, slot_bytes): (u64, u64),
        in_device: bool,
        pieces: u64,
    ) -> Result<Self> {
        let (page_bytes, slot_bytes) =
            (page_bytes.next_multiple_of(ALIGN), slot_bytes.next_multiple_of(ALIGN));
        let mut arena = Self { page_bytes, slot_bytes, in_device, pieces, blocks: Vec::new(), taken: pieces };
        arena.grow(device)?;
        Ok(arena)
    }

    /// A piece that nobody has.
    pub fn take(&mut self, device: &dyn Device) -> Result<Piece> {
        if self.taken == self.pieces {
            self.grow(device)?;
        }
        let block = &self.blocks[self.blocks.len() - 1];
        let at = self.host_piece() * self.taken;
        // SAFETY: `pieces` pieces fit the block.
        let page = unsafe { block.host.host.add(at as usize) };
        let page_addr = block.host.memory.addr + at;
        let (slots, slots_for_net) = match &block.device {
            Some(memory) => [memory.addr + self.slot_bytes * self.taken; 2].into(),
            None => (page_addr + self.page_bytes, page as u64 + self.page_bytes),
        };
        self.taken += 1;
        Ok(Piece { page, page_addr, slots, slots_for_net, in_device: self.in_device })
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.host.memory.bytes + b.device.as_ref().map_or(0, |d| d.bytes)).sum()
    }

    fn host_piece(&self) -> u64 {
        self.page_bytes + if self.in_device { 0 } else { self.slot_bytes }
    }

    fn grow(&mut self, device: &dyn Device) -> Result<()> {
        let slots = self.in_device.then(|| device.alloc(self.slot_bytes * self.pieces)).transpose()?;
        self.blocks.push(Block { host: device.host_words(self.host_piece() * self.pieces)?, device: slots });
        self.taken = 0;
        Ok(())
    }
}
