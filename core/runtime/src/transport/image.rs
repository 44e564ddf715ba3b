//! The device's image of a communicator: what executors read in device memory.

use hawser_base::error::Result;
use hawser_device::{Device, Memory};
use hawser_kernels_abi::{COUNTER_BYTES, Conn, DevComm, Entry, MAX_BLOCKS};
use hawser_plan::layout::HeapLayout;

use super::{ConnectionTable, Peers, bytes_of};

/// Bytes of what the channels of a launch tell each other (`HawserDeps`); the counter of blocks that are over
/// follows.
const DEPS_BYTES: u64 = 8 + 8 * MAX_BLOCKS as u64;

/// The image of a communicator in device memory, and the tables that it leads to.
pub struct Image {
    /// The image itself, a [`DevComm`].
    dev_comm: Memory,
    /// The counters of FIFOs, the table of connections, and what channels tell each other.
    tables: [Memory; 3],
    /// The table of connections, for the net transport to go on with.
    pub connections: ConnectionTable,
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
        let table = conn_table(layout, (peers.rank, peers.places), starts, counters.addr);
        let conns = device.alloc(entries * size_of::<Conn>() as u64)?;
        device.upload(conns.addr, bytes_of(&table))?;
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
        let connections = ConnectionTable { conns: conns.addr, table };
        Ok(Self { dev_comm, tables: [counters, conns, deps], connections, entry })
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
        let table = conn_table(layout, own, Some(starts), self.entry.counters);
        device.upload(self.entry.conns, bytes_of(&table))
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

/// The entries of the ranks of this host whose FIFOs are there; those of others have only their counters.
fn conn_table(
    layout: &HeapLayout,
    (rank, places): (u32, &[u32]),
    starts: Option<&[Option<u64>]>,
    counters: u64,
) -> Vec<Conn> {
    let mut table = Vec::with_capacity((layout.lanes * layout.columns()) as usize);
    for lane in 0..layout.lanes {
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
    table
}
