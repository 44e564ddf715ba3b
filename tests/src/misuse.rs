//! Calls with wrong arguments, by seed, from several threads: each is an error, and harms nothing.

use hawser_plan::{Call, Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Error, Result, Stream, group};

use crate::attack::dice;
use crate::oracle::Buffer;
use crate::world;

/// Threads of a rank that call at a time.
const THREADS: u64 = 4;
/// Wrong calls of each.
const CALLS: u64 = 50;

/// Calls with wrong arguments from several threads.
///
/// # Errors
/// A wrong call has succeeded.
pub fn run(comm: &Comm, seed: &str) -> Result<()> {
    let seed: u64 = seed.parse().map_err(|_| Error::invalid_argument("misuse=SEED"))?;
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || of_a_thread(comm, seed, thread));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a wrong call panicked")))
        };
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

fn of_a_thread(comm: &Comm, seed: u64, thread: u64) -> Result<()> {
    let mut below = dice(seed, 0xe703_7ed1_a0b4_28db ^ (thread << 8) ^ u64::from(comm.rank()));
    let buffer = Buffer::new(4096, 0);
    for number in 0..CALLS {
        let outcome = wrong(comm, &buffer, &mut below);
        if outcome.is_ok() {
            return Err(Error::internal(format!("wrong call {number} of thread {thread} has succeeded")));
        }
    }
    Ok(())
}

/// One wrong call.
fn wrong(comm: &Comm, buffer: &Buffer, below: &mut impl FnMut(u64) -> u64) -> Result<()> {
    let collective = Collective::ALL[below(Collective::ALL.len() as u64) as usize];
    let far = comm.ranks() + below(1 << 20) as u32;
    let right = Call {
        collective,
        count: 1 + below(64),
        dtype: DataType::Float32,
        op: ReduceOp::Sum,
        scalar: world::plain(collective, comm.ranks(), 1).scalar(comm.rank()),
        root: 0,
        input: buffer.addr(),
        output: buffer.addr(),
        gap: 0,
    };
    match below(6) {
        0 => comm.collective(Call { root: far, ..right }, Stream(0)),
        1 => comm.collective(Call { count: u64::MAX - below(1000), ..right }, Stream(0)),
        2 => comm.send(buffer.addr(), 64, far, Stream(0)),
        3 => comm.recv(buffer.addr(), 64, far, Stream(0)),
        4 => comm.send(buffer.addr(), u64::MAX - below(1000), 0, Stream(0)),
        _ => group::end(),
    }
}

/// A call on a communicator that was destroyed.
///
/// # Errors
/// It has succeeded.
pub fn late(comm: &Comm) -> Result<()> {
    match world::all_reduce(comm, 100) {
        Err(_) => Ok(()),
        Ok(()) => Err(Error::internal("a communicator works after its end")),
    }
}
