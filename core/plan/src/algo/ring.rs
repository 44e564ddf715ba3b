//! Rings and chains: every rank receives from its predecessor and sends to its successor.
//!
//! Repeats keep a ring at a handful of steps per rank. Chunk numbers are chosen so that every
//! chunk of an in-place buffer is read for the last time before it is overwritten.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, ranks};
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send,
    recv_reduce_send, send,
};
use hawser_program::verify::{Declared, Order};
use hawser_program::{RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// One ring, or a chain.
pub const RING: Entry = Entry {
    algorithm: Algorithm::Ring,
    measured: Measured::Everywhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            per_block: ranks,
            ..Generator::new(Collective::AllReduce, all_reduce, all_reduce_traffic, all_reduce_across)
        },
        Generator {
            by_copies: true,
            ..Generator::new(Collective::AllGather, all_gather, Load::ring, across)
        },
        Generator::new(Collective::ReduceScatter, reduce_scatter, reduce_scatter_traffic, across),
        Generator {
            by_copies: true,
            ..Generator::new(Collective::Broadcast, broadcast, Load::chain, chain_across)
        },
        Generator {
            keeps: chain_keeps,
            ..Generator::new(Collective::Reduce, reduce, Load::chain, chain_across)
        },
    ],
};

fn all_reduce_traffic(load: &Load) -> Traffic {
    let (hops, part) = (2.0 * load.others(), load.part());
    Traffic { hops, waits: hops, out: 2.0 * part, streamed: 2.0 * part, ..load.ring() }
}

fn reduce_scatter_traffic(load: &Load) -> Traffic {
    Traffic { streamed: 1.2 * load.part(), ..load.ring() }
}

fn all_reduce_across(load: &Across) -> NetTraffic {
    NetTraffic::new(2.0 * load.ring(), 2.0 * load.hosts)
}

fn across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.ring(), load.hosts)
}

fn chain_across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.bytes, load.hosts - 1.0)
}

/// A chain to the last rank adds up in the order of ranks, if sums on the way are as good as rounded ones.
fn chain_keeps(key: &ProgramKey, declared: &Declared) -> bool {
    let is_last = key.root == key.ranks - 1;
    is_last && (key.ranks == 2 || declared.order == Order::Ranks && !declared.is_narrow)
}

/// Reduce-scatter, then all-gather, over `ranks` chunks: chunk `c` starts at rank `c`, is complete
/// at rank `c - 1` and goes round once more.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let ring = Ring::new(key, rank);
    let n = key.ranks;
    let mut steps = vec![send(input(rank), ring.next())];
    push_repeat(&mut steps, recv_reduce_send(ring.from(), input(ring.back(1)), 1, ring.next()), n - 2);
    let complete = ring.back(n - 1);
    steps
        .push(recv_reduce_copy_send(ring.from(), input(complete), 1, output(complete), ring.next()).finish());
    push_repeat(&mut steps, recv_copy_send(ring.previous, output(rank), ring.next()), n - 2);
    steps.push(recv(ring.previous, output(ring.back(n - 2))));
    RankProgram::single(steps)
}

/// Every block starts at its owner and goes round once.
fn all_gather(key: &ProgramKey, rank: u32) -> RankProgram {
    let ring = Ring::new(key, rank);
    let n = key.ranks;
    let mut steps = vec![copy_send(input(0), output(rank), ring.next())];
    push_repeat(&mut steps, recv_copy_send(ring.previous, output(ring.back(1)), ring.next()), n - 2);
    steps.push(recv(ring.previous, output(ring.back(n - 1))));
    RankProgram::single(steps)
}

/// Block `b` starts at rank `b + 1` and is complete at rank `b`.
fn reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    let ring = Ring::new(key, rank);
    let n = key.ranks;
    let mut steps = vec![send(input(ring.back(1)), ring.next())];
    push_repeat(&mut steps, recv_reduce_send(ring.from(), input(ring.back(2)), 1, ring.next()), n - 2);
    steps.push(recv_reduce_copy(ring.from(), input(rank), 1, output(0)).finish());
    RankProgram::single(steps)
}

/// A chain from the root to its predecessor; tiles make it a pipeline.
fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    let ring = Ring::new(key, rank);
    let step = if rank == key.root {
        copy_send(input(0), output(0), ring.next())
    } else if ring.next == key.root {
        recv(ring.previous, output(0))
    } else {
        recv_copy_send(ring.previous, output(0), ring.next())
    };
    RankProgram::single(vec![step])
}

/// A chain from the root's successor to the root.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let ring = Ring::new(key, rank);
    let step = if rank == key.root {
        recv_reduce_copy(ring.from(), input(0), 1, output(0)).finish()
    } else if ring.previous == key.root {
        send(input(0), ring.next())
    } else {
        recv_reduce_send(ring.from(), input(0), 1, ring.next())
    };
    RankProgram::single(vec![step])
}

/// A rank's place in the ring 0 → 1 → … → 0.
struct Ring {
    rank: u32,
    ranks: u32,
    next: u32,
    previous: u32,
}

impl Ring {
    fn new(key: &ProgramKey, rank: u32) -> Self {
        let n = key.ranks;
        Self { rank, ranks: n, next: (rank + 1) % n, previous: (rank + n - 1) % n }
    }

    fn next(&self) -> Vec<u32> {
        vec![self.next]
    }

    fn from(&self) -> Vec<u32> {
        vec![self.previous]
    }

    /// The rank (or chunk) `distance` places back.
    fn back(&self, distance: u32) -> u32 {
        (self.rank + self.ranks - distance % self.ranks) % self.ranks
    }
}

fn push_repeat(steps: &mut Vec<Step>, step: Step, times: u32) {
    if times > 0 {
        steps.push(step.repeat(times, -1));
    }
}
