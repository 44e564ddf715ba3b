//! Everyone to everyone: one hop for a reduce-scatter or an all-gather, two for an all-reduce.
//!
//! Every chunk has one reducer. It takes its peers in ascending order, at most [`MAX_FAN`] per
//! step; its own operand comes at its place among the first [`MAX_FAN`] peers, or after them for a
//! rank above. Later groups are reduced onto the partial result, which is kept in the output. One reducer
//! per chunk makes the results of all ranks equal to the last bit.

use super::entry::{
    Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, one_step_keeps, others, ranks,
};
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send,
    recv_reduce_send, send,
};
use hawser_program::{MAX_FAN, RankProgram, Ref, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// Everyone to everyone, in two hops where parts are combined or passed on.
pub const ALL_PAIRS: Entry = Entry {
    algorithm: Algorithm::AllPairs,
    measured: Measured::Everywhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            per_block: ranks,
            exchanges: 2,
            by_copies: true,
            ..generator(Collective::AllReduce, all_reduce, all_reduce_traffic)
        },
        Generator {
            channels: |key| gather_channels(key.ranks),
            exchanges: 1,
            by_copies: true,
            ..generator(Collective::AllGather, all_gather, Load::pairs)
        },
        Generator {
            exchanges: 1,
            by_copies: true,
            ..generator(Collective::ReduceScatter, reduce_scatter, reduce_scatter_traffic)
        },
        Generator {
            per_block: rooted_chunks,
            exchanges: 2,
            ..generator(Collective::Broadcast, broadcast, rooted_traffic)
        },
        Generator {
            per_block: rooted_chunks,
            max_ranks: MAX_REDUCE_RANKS,
            exchanges: 2,
            by_copies: true,
            ..generator(Collective::Reduce, reduce, rooted_traffic)
        },
    ],
};

const fn generator(
    collective: Collective,
    build: fn(&ProgramKey, u32) -> RankProgram,
    traffic: fn(&Load) -> Traffic,
) -> Generator {
    Generator {
        max_ranks: MAX_RANKS,
        most_channel_steps: |key| most_gather_steps(key.ranks),
        keeps: one_step_keeps,
        ..Generator::new(collective, build, traffic, across)
    }
}

/// Every step of a block costs about a hop, whether it waits or not.
fn all_reduce_traffic(load: &Load) -> Traffic {
    let (hops, part) = (2.0 * load.ranks() - 1.0, load.part());
    Traffic { hops, waits: 2.0, out: 2.0 * part, streamed: 2.0 * part, ..load.pairs() }
}

fn reduce_scatter_traffic(load: &Load) -> Traffic {
    Traffic { hops: load.others(), ..load.pairs() }
}

/// All of it leaves the root, or comes to it; every other rank passes on its share.
fn rooted_traffic(load: &Load) -> Traffic {
    let (others, bytes) = (load.others(), load.bytes);
    Traffic {
        hops: others + 1.0,
        waits: 2.0,
        out: bytes,
        streamed: 2.0 * bytes,
        chunk: bytes / others,
        ..load.pairs()
    }
}

fn across(load: &Across) -> NetTraffic {
    let (far, pairs) = (load.far(), load.pairs());
    let (out, hops, more_messages) = match load.key.collective {
        Collective::AllReduce => (2.0 * pairs, 2.0, 4.0 * (far - 1.0)),
        _ => (pairs, 1.0, 2.0 * (far - 1.0)),
    };
    NetTraffic { busiest: 2.0 * far, more_messages, ..NetTraffic::new(out, hops) }.over(load.local)
}

/// A rank that is not the root has no place for partial results of a reduction: it takes all peers in one
/// step.
const MAX_REDUCE_RANKS: u32 = MAX_FAN as u32 + 1;

/// Above this, a rank's steps (two per peer) and FIFOs are better spent on rings and trees.
const MAX_RANKS: u32 = 64;

/// Reduce-scatter over `ranks` chunks, then all-gather; the last reduction sends at once.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let mut steps = scatter_steps(key, rank);
    let peers: Vec<u32> = others(rank, key.ranks).collect();
    let (first, rest) = peers.split_at(peers.len().min(MAX_FAN));
    reduction(&mut steps, key, rank, output(rank), first);
    steps.extend(rest.chunks(MAX_FAN).map(|group| send(output(rank), group.to_vec())));
    steps.extend(gather_steps(key, rank));
    RankProgram::single(steps)
}

/// Block `b` goes to rank `b`, which reduces it.
fn reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    let mut steps = scatter_steps(key, rank);
    reduction(&mut steps, key, rank, output(0), &[]);
    RankProgram::single(steps)
}

/// Everyone sends its block to all. Channel `c` serves the distances `1 + c`, `1 + c + channels`, …, so
/// that a rank receives from several peers at once; channel 0 keeps the own block too.
fn all_gather(key: &ProgramKey, rank: u32) -> RankProgram {
    let n = key.ranks;
    let channels = gather_channels(n);
    let mut program = RankProgram::with_channels(channels as usize);
    for (c, channel) in (0..channels).zip(&mut program.channels) {
        let distances: Vec<u32> = (1 + c..n).step_by(channels as usize).collect();
        let peers: Vec<u32> = distances.iter().map(|d| (rank + d) % n).collect();
        for (index, group) in peers.chunks(MAX_FAN).enumerate() {
            channel.steps.push(match (c, index) {
                (0, 0) => copy_send(input(0), output(rank), group.to_vec()),
                _ => send(input(0), group.to_vec()),
            });
        }
        let senders = distances.iter().map(|d| (rank + n - d) % n);
        channel.steps.extend(senders.map(|peer| recv(peer, output(peer))));
    }
    program
}

/// The root sends every other rank a chunk, which that one passes on to all but the root: as many bytes leave
/// the root as it has.
fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    let peers = others(rank, key.ranks);
    if rank == key.root {
        let steps =
            peers.map(|peer| copy_send(input(chunk(key, peer)), output(chunk(key, peer)), vec![peer]));
        return RankProgram::single(steps.collect());
    }
    let readers: Vec<u32> = peers.filter(|&peer| peer != key.root).collect();
    let own = output(chunk(key, rank));
    let (first, rest) = readers.split_at(readers.len().min(MAX_FAN));
    let mut steps = vec![match first {
        [] => recv(key.root, own),
        first => recv_copy_send(key.root, own, first.to_vec()),
    }];
    steps.extend(rest.chunks(MAX_FAN).map(|group| send(own, group.to_vec())));
    let senders = gather_order(key, rank).filter(|&peer| peer != key.root);
    steps.extend(senders.map(|peer| recv(peer, output(chunk(key, peer)))));
    RankProgram::single(steps)
}

/// Every rank but the root reduces a chunk and sends it to the root: as many bytes come to the root as it
/// gets.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let peers: Vec<u32> = others(rank, key.ranks).filter(|&peer| peer != key.root).collect();
    let mut steps: Vec<Step> = peers.iter().map(|&peer| send(input(chunk(key, peer)), vec![peer])).collect();
    if rank == key.root {
        let senders = gather_order(key, rank);
        steps.extend(senders.map(|peer| recv(peer, output(chunk(key, peer)))));
        return RankProgram::single(steps);
    }
    let from: Vec<u32> = (0..key.ranks).filter(|&peer| peer != rank).collect();
    steps.push(recv_reduce_send(from, input(chunk(key, rank)), rank, vec![key.root]).finish());
    RankProgram::single(steps)
}

/// Chunks of broadcast and reduce: one for every rank but the root.
fn rooted_chunks(key: &ProgramKey) -> u32 {
    key.ranks.saturating_sub(1).max(1)
}

/// The chunk of a rank that is not the root.
fn chunk(key: &ProgramKey, rank: u32) -> u32 {
    if rank < key.root { rank } else { rank - 1 }
}

/// Channels of the all-gather.
fn gather_channels(ranks: u32) -> u32 {
    ranks.saturating_sub(1).clamp(1, 8)
}

/// Most steps of one channel of the all-gather.
fn most_gather_steps(ranks: u32) -> u32 {
    let distances = ranks.saturating_sub(1).max(1).div_ceil(gather_channels(ranks));
    distances + distances.div_ceil(MAX_FAN as u32)
}

fn scatter_steps(key: &ProgramKey, rank: u32) -> Vec<Step> {
    others(rank, key.ranks).map(|peer| send(input(peer), vec![peer])).collect()
}

/// Receives in the order in which the peers send: the nearest predecessor sends to us first.
fn gather_steps(key: &ProgramKey, rank: u32) -> impl Iterator<Item = Step> {
    gather_order(key, rank).map(|peer| recv(peer, output(peer)))
}

fn gather_order(key: &ProgramKey, rank: u32) -> impl Iterator<Item = u32> {
    let n = key.ranks;
    (1..n).map(move |d| (rank + n - d) % n)
}

/// Reduces chunk `rank` of all ranks into `dst`; the last step sends it to `to`.
fn reduction(steps: &mut Vec<Step>, key: &ProgramKey, rank: u32, dst: Ref, to: &[u32]) {
    let peers: Vec<u32> = (0..key.ranks).filter(|&peer| peer != rank).collect();
    let groups = peers.len().div_ceil(MAX_FAN);
    for (index, group) in peers.chunks(MAX_FAN).enumerate() {
        let (src, order) = if index == 0 { (input(rank), rank.min(group.len() as u32)) } else { (dst, 0) };
        let step = if index + 1 < groups {
            recv_reduce_copy(group.to_vec(), src, order, dst)
        } else if to.is_empty() {
            recv_reduce_copy(group.to_vec(), src, order, dst).finish()
        } else {
            recv_reduce_copy_send(group.to_vec(), src, order, dst, to.to_vec()).finish()
        };
        steps.push(step);
    }
}
