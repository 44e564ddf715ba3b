//! One hop, one step: everyone (or the root) hears from everyone at once. For small sizes.

use super::entry::{
    Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, one_step_keeps, others,
};
use hawser_program::build::{copy_send, input, output, recv, recv_reduce_copy, send};
use hawser_program::{MAX_FAN, RankProgram};
use hawser_types::{Algorithm, Collective, Measured};

/// Everything to everybody at once.
pub const ONE_SHOT: Entry = Entry {
    algorithm: Algorithm::OneShot,
    measured: Measured::Everywhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            max_ranks: MAX_RANKS,
            exchanges: 1,
            keeps: one_step_keeps,
            ..Generator::new(Collective::AllReduce, all_reduce, all_reduce_traffic, all_reduce_across)
        },
        Generator {
            max_ranks: MAX_RANKS,
            exchanges: 1,
            ..Generator::new(Collective::Broadcast, broadcast, traffic, across)
        },
        Generator {
            max_ranks: MAX_RANKS,
            exchanges: 1,
            keeps: one_step_keeps,
            ..Generator::new(Collective::Reduce, reduce, traffic, across)
        },
    ],
};

fn all_reduce_traffic(load: &Load) -> Traffic {
    let out = load.bytes * load.others();
    Traffic { out, streamed: 1.6 * out, chunk: load.bytes, ..load.pairs() }
}

fn traffic(load: &Load) -> Traffic {
    let out = load.bytes * load.others();
    Traffic { out, share: load.chain().share, streamed: out, chunk: load.bytes, ..load.pairs() }
}

fn all_reduce_across(load: &Across) -> NetTraffic {
    at_once(load, load.bytes * load.local * load.far()).over(load.local)
}

fn across(load: &Across) -> NetTraffic {
    at_once(load, load.bytes * load.far())
}

fn at_once(load: &Across, out: f64) -> NetTraffic {
    let far = load.far();
    NetTraffic { busiest: far, more_messages: 2.0 * (far - 1.0), ..NetTraffic::new(out, 1.0) }
}

/// A single reduction takes [`MAX_FAN`] peers at most.
const MAX_RANKS: u32 = MAX_FAN as u32 + 1;

/// Every rank sends its input to all and reduces everything itself in the order of ranks, so the
/// results of all ranks are equal to the last bit.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![
        send(input(0), others(rank, key.ranks).collect()),
        recv_reduce_copy(sorted_others(rank, key.ranks), input(0), rank, output(0)).finish(),
    ])
}

/// The root sends to all at once.
fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![if rank == key.root {
        copy_send(input(0), output(0), others(rank, key.ranks).collect())
    } else {
        recv(key.root, output(0))
    }])
}

/// All send to the root, which reduces in the order of ranks.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![if rank == key.root {
        recv_reduce_copy(sorted_others(rank, key.ranks), input(0), rank, output(0)).finish()
    } else {
        send(input(0), vec![key.root])
    }])
}

fn sorted_others(rank: u32, ranks: u32) -> Vec<u32> {
    (0..ranks).filter(|&peer| peer != rank).collect()
}
