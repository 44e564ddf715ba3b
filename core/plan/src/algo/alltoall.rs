//! All-to-all with few peers at a time: Bruck's and pairwise.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{copy, input, output, recv, send};
use hawser_program::{Op, RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// Blocks travel by the binary digits of their distance.
pub const BRUCK: Entry = Entry {
    algorithm: Algorithm::Bruck,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[Generator {
        max_ranks: MAX_BRUCK_RANKS,
        channels: |key| bruck_channels(key.ranks),
        most_channel_steps: |key| most_bruck_steps(key.ranks),
        ..Generator::new(Collective::AllToAll, bruck_all_to_all, bruck_traffic, bruck_across)
    }],
};

/// Two by two: every rank exchanges with one other at a time.
pub const PAIRWISE: Entry = Entry {
    algorithm: Algorithm::Pairwise,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[Generator {
        max_ranks: MAX_PAIRWISE_RANKS,
        ..Generator::new(Collective::AllToAll, pairwise_all_to_all, pairwise_traffic, pairwise_across)
    }],
};

fn bruck_traffic(load: &Load) -> Traffic {
    load.by_form(load.levels(), load.part() * load.levels() / 2.0, load.bytes / load.ranks())
}

fn bruck_across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.pairs() * load.levels(), load.levels()).over(load.local)
}

fn pairwise_traffic(load: &Load) -> Traffic {
    load.by_form(load.others(), load.part(), load.bytes / load.ranks())
}

fn pairwise_across(load: &Across) -> NetTraffic {
    NetTraffic::new(load.pairs(), load.far()).over(load.local)
}

/// The longest channel then has as many steps as a channel can have.
const MAX_BRUCK_RANKS: u32 = 256;
/// Two steps per peer in one channel.
const MAX_PAIRWISE_RANKS: u32 = 127;
/// Blocks that travel side by side.
const CHANNELS: u32 = 8;

/// Channels of [`bruck_all_to_all`].
fn bruck_channels(ranks: u32) -> u32 {
    ranks.saturating_sub(1).clamp(1, CHANNELS)
}

/// Most steps of one of them.
fn most_bruck_steps(ranks: u32) -> u32 {
    let steps = |channel: u32| -> u32 {
        let distances = (1..ranks).filter(|distance| (distance - 1) % bruck_channels(ranks) == channel);
        distances.map(|distance| distance.count_ones() + 1).sum::<u32>() + u32::from(channel == 0)
    };
    (0..bruck_channels(ranks)).map(steps).max().unwrap_or(1)
}

/// The block for the rank at distance `d` goes 2^k ranks on for every digit k of `d` that is set, the lowest
/// first: a rank talks to log2 others each way. Blocks are passed on as they come and need no memory.
fn bruck_all_to_all(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let count = bruck_channels(n);
    let mut program = RankProgram::with_channels(count as usize);
    program.channels[0].push(copy(input(rank), output(rank)));
    for distance in 1..n {
        let hops: Vec<u32> = (0..u32::BITS).map(|bit| distance & 1 << bit).filter(|hop| *hop > 0).collect();
        let to = |hop: u32| vec![(rank + hop) % n];
        let from = |hop: u32| (rank + n - hop) % n;
        let pass = |pair: &[u32]| Step {
            recv: vec![from(pair[0])],
            send: to(pair[1]),
            ..Step::new(Op::RecvCopySend)
        };
        let channel = &mut program.channels[((distance - 1) % count) as usize];
        channel.push(send(input((rank + distance) % n), to(hops[0])));
        hops.windows(2).for_each(|pair| channel.push(pass(pair)));
        channel.push(recv(from(hops[hops.len() - 1]), output(from(distance))));
    }
    program
}

/// In round `r`, ranks whose sum is `r` (modulo the number of ranks) exchange their blocks.
fn pairwise_all_to_all(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let steps = (0..n).flat_map(|round| {
        let peer = (round + n - rank) % n;
        match peer == rank {
            true => vec![copy(input(rank), output(rank))],
            false => vec![send(input(peer), vec![peer]), recv(peer, output(peer))],
        }
    });
    RankProgram::single(steps.collect())
}
