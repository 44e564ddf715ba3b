//! Calls whose buffers are registered, which networks may read and write without staging.

use std::sync::{Barrier, OnceLock};
use std::time::Duration;

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
///
/// # Errors
/// The library's; `Internal` with the difference when a result is wrong.
pub fn run(comm: &Comm, case: Case, in_place: bool) -> Result<()> {
    let rank = comm.rank();
    let buffers = RankBuffers::new(&case, rank, in_place, 1);
    let _input = Registered::new(comm, &buffers.input)?;
    let _output = Registered::new(comm, &buffers.output)?;
    comm.collective(call(&case, rank, buffers.addresses(&case, rank)), Stream(0))?;
    let is_kept = in_place || buffers.input.bytes() == RankBuffers::new(&case, rank, false, 1).input.bytes();
    wrong((!is_kept).then(|| format!("{case:?}: rank {rank}: the input has changed")))?;
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
        all.wait();
    }
    Ok(())
}

/// Rank 0 waits for a message of rank 1 that comes too late: its call fails at the deadline, or is `aborted`,
/// and from then on nothing is written to its buffer, though the message is sent. Writes "kept".
///
/// # Errors
/// The library's; `Internal` if the call does not fail or the buffer was written.
pub fn given_up(comm: &Comm, aborted: bool) -> Result<()> {
    let mut buffer = Buffer::new(1 << 20, 0);
    let (addr, bytes) = (buffer.addr(), buffer.bytes().len() as u64);
    comm.register_buffer(addr, bytes)?;
    let message = || match comm.rank() {
        0 => comm.recv(addr, bytes, 1, Stream(0)),
        _ => comm.send(addr, bytes, 0, Stream(0)),
    };
    // The connection is there from now on.
    message()?;
    if comm.rank() > 0 {
        std::thread::sleep(Duration::from_millis(2500));
        // It fails, or is too early to know.
        let _ = message();
        std::thread::sleep(Duration::from_secs(1));
        return Ok(());
    }
    let other = comm.clone();
    let abort = aborted.then(|| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            other.abort()
        })
    });
    let outcome = message();
    abort.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(Error::internal("a panic"))))?;
    let before = moved();
    buffer.bytes_mut().fill(0x77);
    std::thread::sleep(Duration::from_millis(2500));
    if outcome.is_ok() || buffer.bytes().iter().any(|byte| *byte != 0x77) {
        return Err(Error::internal(format!("{outcome:?}, and the buffer was written afterwards")));
    }
    println!("kept {}", before.1);
    outcome
}
