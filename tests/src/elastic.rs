//! The time that it takes to go on with one rank less, and to have it again: the ranks are threads of one
//! process. Each communicator is destroyed when the next one is there, as a program does it.

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use hawser_runtime::{Comm, Config, Result, Shrink, UniqueId, unique_id};

use crate::world::all_reduce;

/// Times of the slowest rank.
struct Times {
    init: Duration,
    shrink: Duration,
    destroy: Duration,
    grow: Duration,
}

/// Makes a communicator of `ranks` ranks, shrinks it by the last one, and grows it again. Writes a line.
///
/// # Errors
/// A rank failed.
pub fn measure(ranks: u32) -> Result<()> {
    let (together, id) = (Barrier::new(ranks as usize), unique_id()?);
    let (grown, slowest): (Mutex<Option<UniqueId>>, _) = (Mutex::default(), Mutex::new(Times::NONE));
    let rank = |rank: u32| -> Result<()> {
        let timed = |of: fn(&mut Times) -> &mut Duration, begin: Instant| {
            let mut slowest = slowest.lock().expect("no rank has panicked");
            let time = of(&mut slowest);
            *time = begin.elapsed().max(*time);
        };
        together.wait();
        let begin = Instant::now();
        let comm = Comm::init(&[id], ranks, rank, 0, Config::default())?;
        timed(|times| &mut times.init, begin);
        together.wait();
        let (begin, last) = (Instant::now(), ranks - 1);
        let shrunk = match rank == last {
            true => None,
            false => Some(comm.shrink(&[last.cast_signed()], None, Shrink::Abort)?),
        };
        if let Some(shrunk) = &shrunk {
            timed(|times| &mut times.shrink, begin);
            all_reduce(shrunk, 100)?;
        }
        if rank == 0 {
            let made = shrunk.as_ref().map(Comm::grow_id).transpose()?;
            *grown.lock().expect("no rank has panicked") = made;
        }
        together.wait();
        let begin = Instant::now();
        comm.destroy()?;
        timed(|times| &mut times.destroy, begin);
        together.wait();
        let begin = Instant::now();
        let id = grown.lock().expect("no rank has panicked").filter(|_| rank == 0 || rank == last);
        let whole = match &shrunk {
            Some(shrunk) => shrunk.grow(ranks, id, None)?,
            None => Comm::init(id.as_slice(), ranks, rank, 0, Config::default())?,
        };
        timed(|times| &mut times.grow, begin);
        all_reduce(&whole, 100)?;
        together.wait();
        Ok(())
    };
    std::thread::scope(|scope| {
        let start = |number| {
            scope.spawn({
                let rank = &rank;
                move || rank(number)
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;
    let Times { init, shrink, destroy, grow } = slowest.into_inner().expect("no rank has panicked");
    println!(
        "{ranks} ranks: init {init:.2?}, shrink by one {shrink:.2?}, destroy the first {destroy:.2?}, \
         grow by one {grow:.2?}"
    );
    Ok(())
}

impl Times {
    const NONE: Self = {
        let zero = Duration::ZERO;
        Self { init: zero, shrink: zero, destroy: zero, grow: zero }
    };
}
