//! The work of ranks in the tests in which some of them die or fork: loops that end with the first error, and
//! children.

use std::time::Duration;

use hawser_plan::Collective;
use hawser_runtime::{Comm, Config, Error, Result, Shrink, Stream, UniqueId, group};

use crate::oracle::Buffer;
use crate::process::hex;
use crate::world;

/// Lengths of calls, in elements: within one slot, several slots, more than all slots hold.
const COUNTS: [usize; 4] = [3, 2_000, 70_001, 700_001];

/// Calls of one collective until one fails.
pub fn looped(comm: &Comm, name: &str) -> Result<()> {
    let collective = Collective::ALL.into_iter().find(|c| c.name() == name);
    let collective = collective.ok_or_else(|| Error::invalid_argument(format!("no collective {name}")))?;
    for round in 0.. {
        let mut case = world::plain(collective, comm.ranks(), COUNTS[round % COUNTS.len()]);
        if collective.rooted() {
            case.root = (round / COUNTS.len()) as u32 % comm.ranks();
        }
        world::run(comm, case, false, 0)?;
    }
    Ok(())
}

/// Messages to the next rank, and from the one before, until one fails.
pub fn ring(comm: &Comm) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    for round in 0.. {
        let bytes = 4 * COUNTS[round % COUNTS.len()];
        let (out, into) = (Buffer::new(bytes, 0), Buffer::new(bytes, 0));
        group::start()?;
        let sent = comm.send(out.addr(), bytes as u64, (rank + 1) % ranks, Stream(0));
        let received = comm.recv(into.addr(), bytes as u64, (rank + ranks - 1) % ranks, Stream(0));
        group::end().and(sent).and(received)?;
    }
    Ok(())
}

/// Splits of all ranks in another order, each used once, until something fails.
pub fn splits(comm: &Comm) -> Result<()> {
    for round in 0.. {
        let key = (comm.rank() + round) % comm.ranks();
        let color = i32::from(round % 3 == 0 && comm.rank() % 2 == 1);
        let child = comm.split(color, key as i32, None)?.ok_or_else(|| Error::internal("no child"))?;
        world::all_reduce(&child, 2_000)?;
        child.destroy()?;
    }
    Ok(())
}

/// Communicators without one rank, another one each time, and an all-reduce of all ranks, until something
/// fails.
pub fn shrinks(comm: &Comm) -> Result<()> {
    for round in 0.. {
        let excluded = round % comm.ranks();
        if excluded != comm.rank() {
            let child = comm.shrink(&[excluded.cast_signed()], None, Shrink::Keep)?;
            world::all_reduce(&child, 2_000)?;
            child.destroy()?;
        }
        world::all_reduce(comm, 100)?;
    }
    Ok(())
}

/// Communicators with one rank more, which a thread of rank 0's process is, each with an all-reduce, until
/// something fails.
pub fn grows(comm: &Comm) -> Result<()> {
    loop {
        grow_by_a_thread(comm)?;
    }
}

/// A communicator with one rank more, which works.
pub fn grow_once(comm: &Comm) -> Result<()> {
    grow_by_a_thread(comm)?;
    println!("has grown");
    Ok(())
}

fn grow_by_a_thread(comm: &Comm) -> Result<()> {
    let id = (comm.rank() == 0).then(|| comm.grow_id()).transpose()?;
    std::thread::scope(|scope| {
        let ranks = comm.ranks();
        let newcomer = id.map(|id| scope.spawn(move || join(&id, ranks)));
        let old = comm.grow(ranks + 1, id, None).and_then(|child| use_and_destroy(&child));
        let new = newcomer.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("the newcomer panicked")))
        });
        old.and(new)
    })
}

/// Grows by so many ranks of other processes, and uses the new communicator until a call fails.
pub fn take_in(comm: &Comm, newcomers: &str) -> Result<()> {
    let newcomers: u32 = newcomers.parse().map_err(|_| Error::invalid_argument("newcomers"))?;
    let id = (comm.rank() == 0).then(|| comm.grow_id()).transpose()?;
    if let Some(id) = &id {
        println!("growth by id {}", hex(&id.to_bytes()));
    }
    let grown = comm.grow(comm.ranks() + newcomers, id, None)?;
    let failed = looped(&grown, "all_reduce");
    grown.destroy()?;
    failed
}

/// The newcomer to a communicator that had so many ranks.
fn join(id: &UniqueId, ranks: u32) -> Result<()> {
    use_and_destroy(&Comm::init(&[*id], ranks + 1, ranks, 0, Config::default())?)
}

fn use_and_destroy(comm: &Comm) -> Result<()> {
    world::all_reduce(comm, 2_000)?;
    comm.destroy()
}

/// The work of survivors: they go on without the rank that has died, and without the communicator that it was
/// in.
pub fn survive(comm: &Comm, dead: &str) -> Result<()> {
    let dead = dead.parse().map_err(|_| Error::invalid_argument("dead rank"))?;
    let child = comm.shrink(&[dead], None, Shrink::Abort)?;
    world::all_reduce(&child, 70_001)?;
    comm.destroy()?;
    world::all_reduce(&child, 5_000)?;
    child.destroy()?;
    println!("survived");
    Ok(())
}

/// One message of a few bytes to or from another rank.
pub fn message(comm: &Comm, send: bool, peer: &str) -> Result<()> {
    let peer = peer.parse().map_err(|_| Error::invalid_argument("peer"))?;
    let buffer = Buffer::new(64, 0);
    if send {
        comm.send(buffer.addr(), 64, peer, Stream(0))
    } else {
        comm.recv(buffer.addr(), 64, peer, Stream(0))
    }
}

/// Forks a child that lives on for a while and holds what it inherited. It lives longer than any wait for its
/// parent's death should last.
pub fn fork_a_sleeper() -> Result<()> {
    let sleep = || {
        // Who reads what the rank writes waits for the end of all that could write.
        (0..3).for_each(|descriptor| {
            // SAFETY: the child has a copy of these descriptors, which nobody else uses.
            unsafe { libc::close(descriptor) };
        });
        std::thread::sleep(Duration::from_secs(15));
    };
    fork(sleep).map(drop)
}

/// Forks a child that calls what it must not, and ends as a program does. Fails unless every call was
/// refused.
pub fn fork_a_caller(comm: &Comm) -> Result<()> {
    let child = fork(|| {
        let calls: [(&str, Result<()>); 6] = [
            ("all_reduce", world::all_reduce(comm, 5_000)),
            ("split", comm.split(0, 0, None).map(drop)),
            ("finalize", comm.finalize()),
            ("destroy", comm.destroy()),
            ("abort", comm.abort()),
            ("async_error", comm.async_error().map_or(Ok(()), Err)),
        ];
        for (name, outcome) in calls {
            if !outcome.as_ref().is_err_and(|error| error.text.contains("spawn or forkserver")) {
                eprintln!("{name} in a child: {outcome:?}");
                std::process::exit(1);
            }
        }
        drop(comm.clone());
        // With all handlers of the end of a process.
        std::process::exit(0);
    })?;
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match (ended == child, status) {
        (true, 0) => Ok(()),
        _ => Err(Error::internal(format!("the child ended with status {status}"))),
    }
}

/// Forks; the child does something and ends without handlers. The number of the child.
fn fork(work: impl FnOnce()) -> Result<i32> {
    // SAFETY: no other thread of a rank holds the locks that `work` takes: the log's and those of
    // communicators.
    match unsafe { libc::fork() } {
        -1 => Err(Error::system("fork", std::io::Error::last_os_error())),
        0 => {
            // SAFETY: ends the child if it hangs.
            unsafe { libc::alarm(20) };
            work();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}
