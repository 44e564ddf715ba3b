//! Parallel aggregated trees: a binomial tree from every rank, all at once, the largest distance first, so
//! that what crosses the most of the machine is the least.
//!
//! In the tree of block `b`, a rank's place is its distance from `b`. Its parent is its place without the
//! lowest digit that is set, so messages go over distances that are powers of two. All ranks take places in
//! the same order, which keeps every FIFO in order.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_send, send,
};
use hawser_program::{MAX_CHANNEL_STEPS, RankProgram};
use hawser_types::{Algorithm, Collective, Measured};

/// Parallel aggregated trees.
pub const PAT: Entry = Entry {
    algorithm: Algorithm::Pat,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            max_ranks: MAX_RANKS,
            ..Generator::new(Collective::AllGather, all_gather, traffic, across)
        },
        Generator {
            max_ranks: MAX_RANKS,
            ..Generator::new(Collective::ReduceScatter, reduce_scatter, traffic, across)
        },
    ],
};

fn traffic(load: &Load) -> Traffic {
    load.by_form(load.levels(), load.part(), load.bytes / load.ranks())
}

fn across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.ring() * load.local, load.levels()).over(load.local)
}

/// One step per rank in one channel; up to eight children.
const MAX_RANKS: u32 = MAX_CHANNEL_STEPS;

/// Every block goes down its tree.
fn all_gather(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let steps = (0..n).map(|place| {
        let block = (rank + n - place) % n;
        let (parent, children) = node(rank, place, n);
        match (parent, children.is_empty()) {
            (None, _) => copy_send(input(0), output(block), children),
            (Some(parent), true) => recv(parent, output(block)),
            (Some(parent), false) => recv_copy_send(parent, output(block), children),
        }
    });
    RankProgram::single(steps.collect())
}

/// Every block comes up its tree.
fn reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let steps = (0..n).rev().map(|place| {
        let block = (rank + n - place) % n;
        let (parent, children) = node(rank, place, n);
        match (parent, children.is_empty()) {
            (None, _) => recv_reduce_copy(children, input(block), 0, output(0)).finish(),
            (Some(parent), true) => send(input(block), vec![parent]),
            (Some(parent), false) => recv_reduce_send(children, input(block), 0, vec![parent]),
        }
    });
    RankProgram::single(steps.collect())
}

/// Parent and children of the rank at `place`, the farthest child first.
fn node(rank: u32, place: u32, n: u32) -> (Option<u32>, Vec<u32>) {
    let lowest = if place == 0 { n.next_power_of_two() } else { 1 << place.trailing_zeros() };
    let parent = (place != 0).then(|| (rank + n - lowest) % n);
    let distances = (0..lowest.ilog2()).rev().map(|bit| 1 << bit).filter(|distance| place + distance < n);
    (parent, distances.map(|distance| (rank + distance) % n).collect())
}
