//! Two rings in opposite directions, each for half of the data, so that links that carry both ways at once
//! are used both ways.
//!
//! Channel 0 runs the ring 0 → 1 → … on the first half of the chunks, channel 1 the ring … → 1 → 0 on the
//! second half. The second one is the first seen from a rank that counts the others backwards.

use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send,
    recv_reduce_send, send,
};
use hawser_program::{Channel, RankProgram, Ref, Step};
use hawser_types::{Algorithm, Collective, Measured};

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, two};

/// Two rings in opposite directions.
pub const DOUBLE_RING: Entry = Entry {
    algorithm: Algorithm::DoubleRing,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            per_block: |key| 2 * key.ranks,
            channels: two,
            most_channel_steps: |key| 2 * key.ranks,
            max_ranks: MAX_RANKS,
            ..Generator::new(Collective::AllReduce, all_reduce, all_reduce_traffic, all_reduce_across)
        },
        Generator {
            per_block: two,
            channels: two,
            most_channel_steps: ranks_steps,
            max_ranks: MAX_RANKS,
            ..Generator::new(Collective::AllGather, all_gather, traffic, across)
        },
        Generator {
            per_block: two,
            channels: two,
            most_channel_steps: ranks_steps,
            max_ranks: MAX_RANKS,
            ..Generator::new(Collective::ReduceScatter, reduce_scatter, traffic, across)
        },
    ],
};

/// Most ranks: an all-reduce has two steps for each rank, and a block takes 255 steps.
const MAX_RANKS: u32 = 127;

fn ranks_steps(key: &ProgramKey) -> u32 {
    key.ranks
}

fn traffic(load: &Load) -> Traffic {
    let part = load.part() / 2.0;
    load.by_form(load.others(), part, load.bytes / (2.0 * load.ranks()))
}

fn all_reduce_traffic(load: &Load) -> Traffic {
    load.by_form(2.0 * load.others(), load.part(), load.bytes / (2.0 * load.ranks()))
}

fn across(load: &Across) -> NetTraffic {
    NetTraffic { more_messages: 1.0, ..NetTraffic::new(load.ring(), load.hosts) }.over(ends(load))
}

fn all_reduce_across(load: &Across) -> NetTraffic {
    NetTraffic { more_messages: 1.0, ..NetTraffic::new(2.0 * load.ring(), 2.0 * load.hosts) }.over(ends(load))
}

/// The ranks of a host that send to other hosts: one for each direction.
fn ends(load: &Across) -> f64 {
    load.local.min(2.0)
}

/// Reduce-scatter, then all-gather, in both directions: chunk `c` of a half starts at the rank `c` of that
/// direction, is complete at the one before it and goes round once more.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |ring| {
        let n = ring.ranks;
        let chunk = |back: u32| ring.half * n + ring.at(back);
        let mut steps = vec![send(input(chunk(0)), ring.next())];
        for back in 1..n - 1 {
            steps.push(recv_reduce_send(ring.from(), input(chunk(back)), 1, ring.next()));
        }
        let complete = chunk(n - 1);
        steps.push(
            recv_reduce_copy_send(ring.from(), input(complete), 1, output(complete), ring.next()).finish(),
        );
        for back in 0..n - 2 {
            steps.push(recv_copy_send(ring.previous, output(chunk(back)), ring.next()));
        }
        steps.push(recv(ring.previous, output(chunk(n - 2))));
        steps
    })
}

/// Half of every block starts at its owner and goes round once, the other half the other way.
fn all_gather(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |ring| {
        let n = ring.ranks;
        let mut steps = vec![copy_send(input(ring.half), ring.block(output, 0), ring.next())];
        for back in 1..n - 1 {
            steps.push(recv_copy_send(ring.previous, ring.block(output, back), ring.next()));
        }
        steps.push(recv(ring.previous, ring.block(output, n - 1)));
        steps
    })
}

/// Half of block `b` starts at the rank after `b` and is complete at rank `b`, the other half comes the other
/// way.
fn reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |ring| {
        let mut steps = vec![send(ring.block(input, 1), ring.next())];
        for back in 2..ring.ranks {
            steps.push(recv_reduce_send(ring.from(), ring.block(input, back), 1, ring.next()));
        }
        steps.push(recv_reduce_copy(ring.from(), ring.block(input, 0), 1, output(ring.half)).finish());
        steps
    })
}

/// A program of two channels, each with the steps of one ring.
fn both(key: &ProgramKey, rank: u32, steps: impl Fn(&Ring) -> Vec<Step>) -> RankProgram {
    let channels = (0..2).map(|half| Channel { steps: steps(&Ring::new(key, rank, half)) }).collect();
    RankProgram { channels, lanes: Vec::new(), runs: Vec::new() }
}

/// A rank's place in one of the rings.
struct Ring {
    /// The half of the data that this ring carries: 0 upwards, 1 downwards.
    half: u32,
    /// This rank.
    rank: u32,
    /// Number of ranks.
    ranks: u32,
    /// The rank that this one sends to.
    next: u32,
    /// The rank that this one receives from.
    previous: u32,
}

impl Ring {
    fn new(key: &ProgramKey, rank: u32, half: u32) -> Self {
        let n = key.ranks;
        let (up, down) = ((rank + 1) % n, (rank + n - 1) % n);
        let (next, previous) = if half == 0 { (up, down) } else { (down, up) };
        Self { half, rank, ranks: n, next, previous }
    }

    fn next(&self) -> Vec<u32> {
        vec![self.next]
    }

    fn from(&self) -> Vec<u32> {
        vec![self.previous]
    }

    /// The rank `distance` places back along the ring.
    fn at(&self, distance: u32) -> u32 {
        let forward = if self.half == 0 { self.ranks - distance % self.ranks } else { distance };
        (self.rank + forward) % self.ranks
    }

    /// This ring's half of the block of the rank `distance` places back.
    fn block(&self, buffer: fn(u32) -> Ref, distance: u32) -> Ref {
        buffer(2 * self.at(distance) + self.half)
    }
}
