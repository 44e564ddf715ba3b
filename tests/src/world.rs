//! Communicators for tests, and operations on them that check their own results.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::time::Duration;

use hawser_plan::{Call, Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, Config, Error, ErrorKind, Result, Stream, unique_id};

use crate::oracle::{Buffer, Case, RankBuffers};
use crate::skip::skipped;

/// Returns true if the tests can run: they use host memory.
pub fn on_host() -> bool {
    if !hawser_device::is_host() {
        skipped("it uses host memory; run it with HAWSER_DEVICE=host");
    }
    hawser_device::is_host()
}

/// One thread per rank, each with its own communicator, which is destroyed afterwards. When one fails, the
/// communicators of all are aborted, so that the failure shows instead of a hang.
pub fn in_threads(ranks: u32, work: impl Fn(&Comm) + Sync) {
    let id = unique_id().unwrap();
    let all = Mutex::new(Vec::new());
    let run = |rank: u32| {
        let comm = Comm::init(&[id], ranks, rank, rank, Config::default()).unwrap();
        all.lock().unwrap().push(comm.clone());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(&comm))) {
            all.lock().unwrap().iter().for_each(|comm| drop(comm.abort()));
            resume_unwind(panic);
        }
        comm.destroy().unwrap();
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        let failures: Vec<_> = threads.into_iter().filter_map(|t| t.join().err()).collect();
        if let Some(first) = failures.into_iter().next() {
            resume_unwind(first);
        }
    });
}

/// A communicator in threads of this process whose rank `i` counts as a rank of host `hosts[i]`.
pub fn on_hosts(hosts: &str, config: &Config, work: impl Fn(&Comm) + Sync) {
    let (id, ranks) = (unique_id().unwrap(), hosts.len() as u32);
    std::thread::scope(|scope| {
        for (rank, host) in (0..).zip(hosts.chars()) {
            let work = &work;
            scope.spawn(move || {
                let config = Config { host: Some(host.to_string()), ..config.clone() };
                let comm = Comm::init(&[id], ranks, rank, rank, config).unwrap();
                work(&comm);
                comm.destroy().unwrap();
            });
        }
    });
}

/// The call of a case by `rank`, with the addresses of its buffers.
pub fn call(case: &Case, rank: u32, (input, output): (u64, u64)) -> Call {
    Call {
        collective: case.collective,
        count: case.count as u64,
        dtype: case.dtype,
        op: case.op,
        scalar: case.scalar(rank),
        root: case.root,
        input,
        output,
        gap: 0,
    }
}

/// A case of float32 sums (or moves), rank 0 the root.
pub fn plain(collective: Collective, ranks: u32, count: usize) -> Case {
    Case { collective, dtype: DataType::Float32, op: ReduceOp::Sum, ranks, root: 0, count }
}

/// An operation of one rank that was put into a group or runs in the background, with its buffers.
pub struct Issued {
    case: Case,
    rank: u32,
    buffers: RankBuffers,
}

/// Calls a collective. The buffers must be kept until it is over.
pub fn issue(comm: &Comm, case: Case, in_place: bool, shift: usize) -> Result<Issued> {
    let rank = comm.rank();
    let buffers = RankBuffers::new(&case, rank, in_place, shift);
    comm.collective(call(&case, rank, buffers.addresses(&case, rank)), Stream(0))?;
    Ok(Issued { case, rank, buffers })
}

impl Issued {
    /// Says what is wrong with the result, once the operation is over.
    pub fn fault(&self) -> Option<String> {
        self.buffers.fault(&self.case, self.rank)
    }
}

/// Runs a collective to its end.
///
/// # Errors
/// The library's; `Internal` with the difference when the result is wrong.
pub fn run(comm: &Comm, case: Case, in_place: bool, shift: usize) -> Result<()> {
    let fault = issue(comm, case, in_place, shift)?.fault();
    fault.map_or(Ok(()), |text| Err(Error::internal(format!("wrong result: {text}"))))
}

/// Runs a float32 all-reduce of all ranks to its end.
///
/// # Errors
/// As [`run`].
pub fn all_reduce(comm: &Comm, count: usize) -> Result<()> {
    run(comm, plain(Collective::AllReduce, comm.ranks(), count), false, 0)
}

/// Returns true if rank 0 says yes; all ranks ask.
///
/// # Errors
/// The library's.
pub fn rank_0_says(comm: &Comm, yes: bool) -> Result<bool> {
    let case = plain(Collective::Broadcast, comm.ranks(), 1);
    let mut answer = Buffer::new(4, 0);
    answer.bytes_mut().copy_from_slice(&f32::from(yes).to_le_bytes());
    comm.collective(call(&case, comm.rank(), (answer.addr(), answer.addr())), Stream(0))?;
    Ok(answer.bytes().iter().any(|byte| *byte != 0))
}

/// Options of a communicator whose calls return at once.
pub fn non_blocking() -> Config {
    Config { blocking: false, ..Config::default() }
}

/// Polls until no call is in progress any more: what the communicator then says.
pub fn settled(comm: &Comm) -> Option<Error> {
    loop {
        match comm.async_error() {
            Some(error) if error.kind == ErrorKind::InProgress => {
                std::thread::sleep(Duration::from_micros(200))
            }
            state => return state,
        }
    }
}

/// Polls a communicator until it is ready for calls.
#[track_caller]
pub fn wait_until_ready(comm: &Comm) {
    assert_eq!(settled(comm), None);
}
