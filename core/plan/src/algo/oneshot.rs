//! One hop, one step: everyone (or the root) hears from everyone at once. For small sizes.

use super::{ProgramKey, others};
use hawser_program::build::{copy_send, input, output, recv, recv_reduce_copy, send};
use hawser_program::{MAX_FAN, RankProgram};

/// A single reduction takes [`MAX_FAN`] peers at most.
pub const MAX_RANKS: u32 = MAX_FAN as u32 + 1;

/// Every rank sends its input to all and reduces everything itself in the order of ranks, so the
/// results of all ranks are equal to the last bit.
pub fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![
        send(input(0), others(rank, key.ranks).collect()),
        recv_reduce_copy(sorted_others(rank, key.ranks), input(0), rank, output(0)).finish(),
    ])
}

/// The root sends to all at once.
pub fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![if rank == key.root {
        copy_send(input(0), output(0), others(rank, key.ranks).collect())
    } else {
        recv(key.root, output(0))
    }])
}

/// All send to the root, which reduces in the order of ranks.
pub fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    RankProgram::single(vec![if rank == key.root {
        recv_reduce_copy(sorted_others(rank, key.ranks), input(0), rank, output(0)).finish()
    } else {
        send(input(0), vec![key.root])
    }])
}

fn sorted_others(rank: u32, ranks: u32) -> Vec<u32> {
    (0..ranks).filter(|&peer| peer != rank).collect()
}
