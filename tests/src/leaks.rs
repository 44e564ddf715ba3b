//! Counts what rounds of creating and destroying communicators leave behind in this process.

use std::time::{Duration, Instant};

use hawser_plan::Collective;
use hawser_runtime::{Comm, Config, ErrorKind, Shrink, Stream, UniqueId, group, unique_id};

use crate::deadline::{Deadline, LIMIT};
use crate::watched_ops;
use crate::world::{self, all_reduce, in_threads, non_blocking};

/// The things that a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    /// All mappings: stacks and arenas of the C library come and go.
    mappings: usize,
    /// Mappings of communicators' heaps.
    heaps: usize,
    /// Memory that is there, in KiB, without what the C library keeps of what was freed.
    resident: usize,
}

/// The growth of memory that is no leak, in KiB: 20 in each of 50 rounds would be one.
const MEMORY: usize = 1_000;

impl Holdings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: maps.lines().count(),
            heaps: maps.lines().filter(|line| line.contains("hawser-heap")).count(),
            resident: resident_kib(),
        }
    }

    /// Returns true if rounds added nothing. A leak of one thing per round would be at least fifty.
    fn is_near(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.heaps <= before.heaps
            && self.mappings <= before.mappings + 25
            && self.resident <= before.resident + MEMORY
    }
}

/// Runs a scenario: some rounds to warm up, then many whose remains are counted.
///
/// # Errors
/// The text says what was left behind, or that the scenario is unknown.
pub fn run(scenario: &str) -> Result<(), String> {
    let (round, rounds): (fn(), u32) = match scenario {
        "groups" => return groups(),
        "watched" => return watched_ops::run(20_000),
        "watched-long" => return watched_ops::run(1_000_000),
        "init" => (init, 200),
        "abort" => (abort, 50),
        "split" => (split, 50),
        "failed" => (failed, 50),
        "elastic" => (elastic, 50),
        "elastic-long" => (elastic, 1_000),
        other => return Err(format!("no scenario is called {other}")),
    };
    let carry_out = |count: u32| {
        let mut left = count;
        while left > 0 {
            let _deadline = Deadline::start();
            let some = left.min(50);
            (0..some).for_each(|_| round());
            left -= some;
        }
    };
    // What allocators and stacks keep has its size after so many.
    carry_out((rounds / 5).max(20));
    settle(|_| false);
    let before = Holdings::now();
    carry_out(rounds);
    settle(|now| now.is_near(&before));
    let after = Holdings::now();
    if after.is_near(&before) {
        println!("{rounds} rounds of {scenario}: before {before:?}, after {after:?}");
        return Ok(());
    }
    Err(format!("{rounds} rounds of {scenario} left things behind: before {before:?}, after {after:?}"))
}

/// Waits until `done`, or until nothing has changed for a while: what was told to end may still be at it.
fn settle(done: impl Fn(&Holdings) -> bool) {
    let (started, mut last, mut since) = (Instant::now(), Holdings::now(), Instant::now());
    let is_same = |a: &Holdings, b: &Holdings| Holdings { resident: b.resident, ..*a } == *b;
    while !done(&last) && since.elapsed() < Duration::from_secs(1) && started.elapsed() < LIMIT / 4 {
        std::thread::sleep(Duration::from_millis(5));
        let now = Holdings::now();
        if !is_same(&now, &last) {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Groups of threads that end soon: what a thread keeps for its groups goes with it.
fn groups() -> Result<(), String> {
    let _deadline = Deadline::start();
    let comm = Comm::init(&[unique_id().unwrap()], 1, 0, 0, Config::default()).unwrap();
    let (from, mut to) = ([1u64; 4], [0u64; 4]);
    let (from, to) = (from.as_ptr() as u64, to.as_mut_ptr() as u64);
    let in_a_group = || {
        group::start().unwrap();
        comm.send(from, 32, 0, Stream::default()).unwrap();
        comm.recv(to, 32, 0, Stream::default()).unwrap();
        group::end().unwrap();
    };
    let rounds = |count| (0..count).for_each(|_| std::thread::scope(|s| drop(s.spawn(in_a_group).join())));
    rounds(1_000);
    let before = resident_kib();
    rounds(5_000);
    let grown = resident_kib().saturating_sub(before);
    comm.destroy().unwrap();
    // A list that each thread left would be 2,900 KiB.
    if grown < 1_000 {
        Ok(())
    } else {
        Err(format!("5000 threads with a group each left {grown} KiB behind"))
    }
}

/// Resident memory of this process, after the C library gave back what it keeps of freed blocks: whether it
/// keeps some megabytes at the end of its heap depends on the order in which threads freed.
pub fn resident_kib() -> usize {
    // SAFETY: it takes the C library's own locks and has no other conditions.
    unsafe { libc::malloc_trim(0) };
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4
}

fn init() {
    in_threads(2, |comm| all_reduce(comm, 1_000).unwrap());
}

/// Aborts while an operation hangs, and while bring-up hangs.
fn abort() {
    let id = unique_id().unwrap();
    std::thread::scope(|scope| {
        let [a, b] = [0, 1].map(|rank| scope.spawn(move || join(id, rank)));
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        let hangs = scope.spawn({
            let a = a.clone();
            move || all_reduce(&a, 1_000).unwrap_err()
        });
        a.abort().unwrap();
        b.abort().unwrap();
        hangs.join().unwrap();
    });
    let lonely = Comm::init(&[unique_id().unwrap()], 2, 0, 0, non_blocking()).unwrap();
    lonely.abort().unwrap();
}

fn split() {
    in_threads(3, |comm| {
        let color = if comm.rank() == 1 { -1 } else { 0 };
        if let Some(child) = comm.split(color, 0, None).unwrap() {
            all_reduce(&child, 1_000).unwrap();
            child.destroy().unwrap();
        }
    });
}

/// Everything that makes a communicator of another one, or gives memory back and takes it again.
fn elastic() {
    in_threads(3, |comm| {
        for collective in Collective::ALL {
            world::run(comm, world::plain(collective, comm.ranks(), 1_000), false, 0).unwrap();
        }
        comm.suspend().unwrap();
        comm.resume().unwrap();
        let part = comm.split(0, 0, None).unwrap().unwrap();
        if comm.rank() != 1 {
            let shrunk = part.shrink(&[1], None, Shrink::Abort).unwrap();
            all_reduce(&shrunk, 1_000).unwrap();
            shrunk.revoke().unwrap();
            shrunk.split(0, 0, None).unwrap().unwrap().destroy().unwrap();
            shrunk.destroy().unwrap();
        }
        all_reduce(comm, 1_000).unwrap();
        part.destroy().unwrap();
    });
}

/// Bring-up that fails because both claim the same rank.
fn failed() {
    let id = unique_id().unwrap();
    std::thread::scope(|scope| {
        let twins = [0, 0].map(|rank| scope.spawn(move || Comm::init(&[id], 2, rank, 0, Config::default())));
        for twin in twins {
            assert_eq!(twin.join().unwrap().err().map(|e| e.kind), Some(ErrorKind::InvalidUsage));
        }
    });
}

fn join(id: UniqueId, rank: u32) -> Comm {
    Comm::init(&[id], 2, rank, rank, Config::default()).unwrap()
}
