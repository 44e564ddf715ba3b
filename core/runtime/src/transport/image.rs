//! The device's image of a communicator: what executors read in device memory.

use hawser_base::error::Result;
use hawser_device::{Device, Memory};
use hawser_kernels_abi::{COUNTER_BYTES, Conn, DevComm, Entry, MAX_BLOCKS};
use hawser_plan::layout::HeapLayout;

use super::{ConnectionTable, Peers, bytes_of};

/// Bytes of what the channels of a launch tell each other (`HawserDeps`); the counter of blocks that are over
/// follows.
const DEPS_BYTES: u64 = 8 + 8 * MAX_BLOCKS as u64;

/// The bytes of the table of connections that are written at a time.
const TABLE_BYTES_AT_ONCE: usize = 64 << 10;

/// The image of a communicator in device memory, and the tables that it leads to.
pub struct Image {
    /// The image itself, a [`DevComm`].
    dev_comm: Memory,
    /// The counters of FIFOs, the table of connections, and what channels tell each other.
    tables: [Memory; 3],
    entry: Entry,
}

impl Image {
    /// Makes the image of a rank. The words that end launches lie at `control` (abort word and report), the
    /// FIFOs of the ranks at `starts`, if they are there.
    pub fn new(
        device: &dyn Device,
        layout: &HeapLayout,
        peers: &Peers<'_>,
        control: (u64, u64),
        starts: Option<&[Option<u64>]>,
    ) -> Result<Self> {
        let entries = u64::from(layout.lanes) * u64::from(layout.columns());
        let counters = device.alloc(entries * COUNTER_BYTES)?;
        let deps = device.alloc(DEPS_BYTES + 4)?;
        let conns = device.alloc(entries * size_of::<Conn>() as u64)?;
        let (abort, report) = control;
        let image = DevComm {
            conns: conns.addr,
            abort,
            report,
            deadline_ns: peers.deadline_ns,
            deps: deps.addr,
            ..layout.dev_comm(peers.rank)
        };
        let dev_comm = device.alloc(size_of::<DevComm>() as u64)?;
        device.upload(dev_comm.addr, bytes_of(std::slice::from_ref(&image)))?;
        let entry = Entry {
            conns: conns.addr,
            counters: counters.addr,
            deps: deps.addr,
            columns: image.ranks,
            fifo_offset: 0,
        };
        let image = Self { dev_comm, tables: [counters, conns, deps], entry };
        image.write_conns(device, layout, (peers.rank, peers.places), starts)?;
        Ok(image)
    }

    /// The table of connections, for the net transport to go on with.
    ///
    /// # Errors
    /// The device refused.
    pub fn connections(&self, device: &dyn Device, layout: &HeapLayout) -> Result<ConnectionTable> {
        let conns = self.entry.conns;
        let mut bytes = vec![0; (layout.lanes * layout.columns()) as usize * size_of::<Conn>()];
        device.download(conns, &mut bytes)?;
        let entry = |bytes: &[u8]| {
            // SAFETY: the device has the table as it was written, and an entry is made of numbers only.
            unsafe { bytes.as_ptr().cast::<Conn>().read_unaligned() }
        };
        let table = bytes.chunks_exact(size_of::<Conn>()).map(entry).collect();
        Ok(ConnectionTable { conns, table })
    }

    /// The address of the image.
    pub fn addr(&self) -> u64 {
        self.dev_comm.addr
    }

    /// The place where kernels whose FIFOs begin at this offset find their tables.
    pub fn entry(&self, fifo_offset: u32) -> Entry {
        Entry { fifo_offset, ..self.entry }
    }

    /// Address of the `u32` to which blocks of launches add 1 when they are over.
    pub fn done(&self) -> u64 {
        self.entry.deps + DEPS_BYTES
    }

    /// Fills the table on the device in, once the FIFOs of this host's ranks are there.
    ///
    /// # Errors
    /// The device refused.
    pub fn enter_fifos(
        &self,
        device: &dyn Device,
        layout: &HeapLayout,
        own: (u32, &[u32]),
        starts: &[Option<u64>],
    ) -> Result<()> {
        self.write_conns(device, layout, own, Some(starts))
    }

    /// Writes the table of connections, some lanes at a time: a whole one of many ranks is long.
    fn write_conns(
        &self,
        device: &dyn Device,
        layout: &HeapLayout,
        own: (u32, &[u32]),
        starts: Option<&[Option<u64>]>,
    ) -> Result<()> {
        let lane_bytes = layout.columns() as usize * size_of::<Conn>();
        let at_once = (TABLE_BYTES_AT_ONCE / lane_bytes.max(1)).max(1) as u32;
        let mut entries = Vec::new();
        for first in (0..layout.lanes).step_by(at_once as usize) {
            entries.clear();
            for lane in first..layout.lanes.min(first + at_once) {
                push_lane(&mut entries, lane, layout, own, starts, self.entry.counters);
            }
            device.upload(self.entry.conns + u64::from(first) * lane_bytes as u64, bytes_of(&entries))?;
        }
        Ok(())
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        self.memory().map(|memory| memory.bytes).sum()
    }

    fn memory(&self) -> impl Iterator<Item = &Memory> {
        std::iter::once(&self.dev_comm).chain(&self.tables)
    }

    /// Takes the memory out: it lives as long as the answer.
    pub fn take_memory(&mut self) -> impl Iterator<Item = Memory> + use<> {
        let [counters, conns, deps] = &mut self.tables;
        [&mut self.dev_comm, counters, conns, deps].map(Memory::take).into_iter()
    }
}

/// Adds a lane's entries of the ranks of this host whose FIFOs are there; those of others have only their
/// counters.
fn push_lane(
    table: &mut Vec<Conn>,
    lane: u32,
    layout: &HeapLayout,
    (rank, places): (u32, &[u32]),
    starts: Option<&[Option<u64>]>,
    counters: u64,
) {
    for peer in 0..layout.columns() {
        let index = u64::from(lane) * u64::from(layout.columns()) + u64::from(peer);
        let conn = Conn { counters: counters + index * COUNTER_BYTES, ..Conn::default() };
        let start = |of: u32| starts.and_then(|starts| *starts.get(of as usize)?);
        let (Some(own), Some(theirs)) = (start(rank), start(peer).filter(|_| peer != rank)) else {
            table.push(conn);
            continue;
        };
        let (here, there) = (places[rank as usize], places[peer as usize]);
        table.push(Conn {
            send_fifo: theirs + layout.fifo(lane, here),
            send_tail: theirs + layout.tail(lane, here),
            send_credit: own + layout.credit(lane, there),
            recv_fifo: own + layout.fifo(lane, there),
            recv_tail: own + layout.tail(lane, there),
            recv_credit: theirs + layout.credit(lane, here),
            ..conn
        });
    }
}
