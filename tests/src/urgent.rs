//! Urgent operations beside best-effort ones: two communicators of the same ranks, in two threads of each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hawser_plan::Class;
use hawser_runtime::{Comm, Config, Error, Result};

use crate::world::{all_reduce, rank_0_says};

/// The most elements of an urgent operation, and of a best-effort one.
const MOST: [u64; 2] = [16 << 10, 1 << 20];
/// The longest pause before an urgent operation, in microseconds.
const LONGEST_PAUSE: u64 = 400;

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)) % end
    }
}

/// A communicator of the same ranks with a class.
///
/// # Errors
/// The library's.
pub fn of_class(comm: &Comm, class: Class) -> Result<Comm> {
    let config = Config { class: Some(class), ..Config::default() };
    comm.split(0, comm.rank() as i32, Some(config))?.ok_or_else(|| Error::internal("a split without a child"))
}

/// Runs so many urgent all-reduces of random sizes after random pauses, beside best-effort ones that never
/// end until these are over. All results are checked.
///
/// # Errors
/// The library's; `Internal` for a wrong result.
pub fn beside(comm: &Comm, rounds: u32) -> Result<()> {
    let (urgent, bulk) = (of_class(comm, Class::Urgent)?, of_class(comm, Class::BestEffort)?);
    let is_over = AtomicBool::new(false);
    let carry = || -> Result<()> {
        let mut sizes = Random(1);
        while !rank_0_says(&bulk, is_over.load(Ordering::Relaxed))? {
            all_reduce(&bulk, 1 + sizes.below(MOST[1]) as usize)?;
        }
        Ok(())
    };
    let hurry = || -> Result<()> {
        let (mut sizes, mut pauses) = (Random(2), Random(3 + u64::from(comm.rank())));
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_micros(pauses.below(LONGEST_PAUSE)));
            all_reduce(&urgent, 1 + sizes.below(MOST[0]) as usize)?;
        }
        Ok(())
    };
    // One that fails ends the other, which would wait for ranks that do not come.
    let ended = |outcome: Result<()>| {
        is_over.store(true, Ordering::Relaxed);
        outcome.inspect_err(|_| [&urgent, &bulk].into_iter().for_each(|comm| drop(comm.abort())))
    };
    let carried = std::thread::scope(|scope| {
        let carrying = scope.spawn(|| ended(carry()));
        let hurried = ended(hurry());
        let carried = carrying.join().unwrap_or_else(|_| Err(Error::internal("a panic")));
        hurried.and(carried)
    });
    carried?;
    urgent.destroy()?;
    bulk.destroy()
}
