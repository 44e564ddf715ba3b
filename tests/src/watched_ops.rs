//! Very many operations on several communicators while others read the journals and ask why nothing moves:
//! memory stays as it is, and calls do not wait for those who read.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use hawser_plan::Collective;
use hawser_runtime::progress::reader;
use hawser_runtime::rules_update::client;
use hawser_runtime::{Comm, Result, Stream, group};

use crate::deadline::LIMIT;
use crate::leaks::resident_kib;
use crate::world;

/// Communicators of two ranks, both in one thread.
const COMMS: usize = 16;
/// Elements of an all-reduce.
const COUNT: usize = 8;
/// The growth of memory, in KiB, that is none: a byte for each of a million operations would be as much.
const MEMORY: usize = 1_000;

/// Carries out a tenth of so many operations before memory is looked at for the first time, and then so many.
/// Memory is looked at while nobody reads: a report that is being made is no leak.
///
/// # Errors
/// The text says what grew, or what a reader found.
pub fn run(operations: u64) -> std::result::Result<(), String> {
    let failed = |error: hawser_runtime::Error| error.to_string();
    let comms: Vec<Vec<Comm>> =
        (0..COMMS).map(|_| Comm::init_all(&[0, 1])).collect::<Result<_>>().map_err(failed)?;
    watched(&comms, operations / 10)?;
    let before = resident_kib();
    let seen = watched(&comms, operations)?;
    let grown = resident_kib().saturating_sub(before);
    comms.iter().flatten().try_for_each(Comm::destroy).map_err(failed)?;
    let text = format!(
        "{operations} operations on {COMMS} communicators: {grown} KiB more, {} looks at the journals, \
         {} answers",
        seen.looks, seen.answers
    );
    println!("{text}");
    if grown > MEMORY { Err(text) } else { Ok(()) }
}

/// The number of times that those who read have been told something.
struct Seen {
    looks: u64,
    answers: u64,
}

/// Carries out so many operations, or more until both who read have been told something, while they read.
fn watched(comms: &[Vec<Comm>], operations: u64) -> std::result::Result<Seen, String> {
    let is_over = AtomicBool::new(false);
    let (looks, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(&is_over, &looks));
        let asker = scope.spawn(|| ask_until(&is_over, &answers));
        let mut outcome = call_all(comms, operations);
        // A reader that ended has failed, and says so below.
        let is_waiting = || count(&looks) == 0 && !reader.is_finished() || count(&answers) == 0;
        let deadline = Instant::now() + LIMIT;
        while outcome.is_ok() && is_waiting() && Instant::now() < deadline {
            outcome = call_all(comms, COMMS as u64);
        }
        is_over.store(true, Ordering::Release);
        let ends = [reader.join(), asker.join()];
        let ended: std::result::Result<(), String> =
            ends.into_iter().try_for_each(|end| end.unwrap_or_else(|_| Err("a reader panicked".into())));
        outcome.map_err(|error| error.to_string()).and(ended)
    })?;
    let seen = Seen { looks: count(&looks), answers: count(&answers) };
    if seen.looks == 0 || seen.answers == 0 {
        return Err(format!(
            "{} looks at the journals and {} answers in {LIMIT:?}",
            seen.looks, seen.answers
        ));
    }
    Ok(seen)
}

/// All-reduces on all communicators in turn, of both ranks in a group.
fn call_all(comms: &[Vec<Comm>], operations: u64) -> Result<()> {
    let case = world::plain(Collective::AllReduce, 2, COUNT);
    let from = [[1f32; COUNT], [2f32; COUNT]];
    let mut to = [[0f32; COUNT]; 2];
    for number in 0..operations as usize {
        group::start()?;
        for (rank, comm) in comms[number % COMMS].iter().enumerate() {
            let buffers = (from[rank].as_ptr() as u64, to[rank].as_mut_ptr() as u64);
            comm.collective(world::call(&case, rank as u32, buffers), Stream(0))?;
        }
        group::end()?;
        assert_eq!(to, [[3f32; COUNT]; 2], "operation {number}");
        to = [[0f32; COUNT]; 2];
    }
    Ok(())
}

/// Reads the journals of this process as another process does, until all is over.
fn read_until(is_over: &AtomicBool, looks: &AtomicU64) -> std::result::Result<(), String> {
    while !is_over.load(Ordering::Acquire) {
        let report = reader::read(process::id()).map_err(|error| error.to_string())?;
        let ranks: usize = report.comms.iter().filter(|comm| comm.ranks == 2).count();
        if ranks != 2 * COMMS {
            return Err(format!("journals of {ranks} ranks"));
        }
        let operations = report.comms.iter().flat_map(|comm| &comm.operations);
        let expected = format!("all_reduce({COUNT} x float, sum)");
        if let Some(other) = operations.map(|operation| &operation.what).find(|w| w.to_string() != expected) {
            return Err(format!("a journal tells of {other}"));
        }
        looks.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Asks this process why nothing moves, again and again, until all is over.
fn ask_until(is_over: &AtomicBool, answers: &AtomicU64) -> std::result::Result<(), String> {
    while !is_over.load(Ordering::Acquire) {
        // On a busy host the answer for so many communicators may take longer than somebody who asks has.
        if client::hang(process::id()).is_ok() {
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
