//! Calls whose buffers are registered, which networks may read and write without staging.

use std::sync::{Barrier, OnceLock};

use hawser_base::figures;
use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Error, Result, Stream, group};

use crate::oracle::{Buffer, Case, RankBuffers};
use crate::world::{call, plain};

/// The bytes that the rails of this process have sent, and those that went without staging, sent and
/// received.
pub fn moved() -> (u64, u64) {
    let sum = |name: &str| {
        let all = figures::all().into_iter();
        all.filter(|figure| figure.name.ends_with(name)).map(|figure| figure.value).sum()
    };
    (sum("rail_sent_bytes_total"), sum("rail_unstaged_bytes_total"))
}

/// A buffer that is registered as long as this lives.
struct Registered<'a> {
    comm: &'a Comm,
    addr: u64,
    bytes: u64,
}

impl<'a> Registered<'a> {
    fn new(comm: &'a Comm, buffer: &Buffer) -> Result<Self> {
        let (addr, bytes) = (buffer.addr(), buffer.bytes().len() as u64);
        comm.register_buffer(addr, bytes)?;
        Ok(Self { comm, addr, bytes })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.comm.deregister_buffer(self.addr, self.bytes);
    }
}

/// Runs a call whose buffers are registered for it alone.
fn run(comm: &Comm, case: Case, in_place: bool) -> Result<()> {
    let rank = comm.rank();
    let buffers = RankBuffers::new(&case, rank, in_place, 1);
    let _input = Registered::new(comm, &buffers.input)?;
    let _output = Registered::new(comm, &buffers.output)?;
    comm.collective(call(&case, rank, buffers.addresses(&case, rank)), Stream(0))?;
    wrong(buffers.fault(&case, rank))
}

fn wrong(fault: Option<String>) -> Result<()> {
    fault.map_or(Ok(()), |text| Err(Error::internal(format!("wrong result: {text}"))))
}

/// All collectives in and out of place, below and above the length from which buffers go unstaged, and
/// messages around in a ring.
///
/// # Errors
/// The library's; `Internal` with the difference when a result is wrong.
pub fn run_all(comm: &Comm) -> Result<()> {
    for collective in Collective::ALL {
        for count in [1, 5_000, 40_009, 300_007] {
            let root = if collective.rooted() { comm.ranks() - 1 } else { 0 };
            let case = Case { root, ..plain(collective, comm.ranks(), count) };
            run(comm, case, false)?;
            if collective != Collective::AllToAll {
                run(comm, case, true)?;
            }
        }
    }
    (0..4).try_for_each(|round| ring(comm, 50_000 + round))
}

/// A message to the next rank, and one from the rank before.
fn ring(comm: &Comm, count: usize) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let from = (rank + ranks - 1) % ranks;
    let case = plain(Collective::AllGather, ranks, count);
    let own = RankBuffers::new(&case, rank, false, 0);
    let mut output = Buffer::new(4 * count, 0);
    output.bytes_mut().fill(0xee);
    let _input = Registered::new(comm, &own.input)?;
    let _output = Registered::new(comm, &output)?;
    group::start()?;
    comm.send(own.input.addr(), 4 * count as u64, (rank + 1) % ranks, Stream(0))?;
    comm.recv(output.addr(), 4 * count as u64, from, Stream(0))?;
    group::end()?;
    let expected = RankBuffers::new(&case, from, false, 0);
    let is_right = output.guards_hold() && output.bytes() == expected.input.bytes();
    wrong((!is_right).then(|| format!("a message of {count} elements from rank {from}")))
}

/// Writes how many bytes rails sent in a call of each collective that moves, and how many of all that were
/// sent and received went without staging. Each is called once before, since a first call opens connections.
/// All ranks are threads of one process.
///
/// # Errors
/// As [`run_all`].
pub fn count(comm: &Comm) -> Result<()> {
    static ALL: OnceLock<Barrier> = OnceLock::new();
    let all = ALL.get_or_init(|| Barrier::new(comm.ranks() as usize));
    for collective in Collective::ALL.into_iter().filter(|collective| !collective.reduces()) {
        let case =
            Case { dtype: DataType::Int8, op: ReduceOp::Sum, ..plain(collective, comm.ranks(), 6 << 20) };
        run(comm, case, false)?;
        all.wait();
        let before = moved();
        all.wait();
        run(comm, case, false)?;
        all.wait();
        if comm.rank() == 0 {
            let after = moved();
            println!("moved {} {} {}", collective.name(), after.0 - before.0, after.1 - before.1);
        }
    }
    Ok(())
}
