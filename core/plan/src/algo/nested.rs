//! All pairs, whose owners add up along a balanced tree over ranks: what `HAWSER_REPRODUCIBLE=2` declares.
//!
//! Every chunk has one owner, which gets it from everybody. Each step combines two values and keeps the
//! result, so that every node of the tree is rounded to the data type, as it is where ranks of a smaller
//! communicator have added it up ([`Order::Nested`]). Partial results are in scratch, one chunk for each
//! level of the tree: in place, the own input is where the result goes.

use hawser_program::build::{
    copy, input, output, recv, recv_reduce_copy, reduce as combine, scratch as spare, send,
};
use hawser_program::verify::Order;
use hawser_program::{MAX_FAN, Op, RankProgram, Ref, Step};
use hawser_types::{Algorithm, Collective, Measured};

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, others, ranks};

/// Everyone to everyone, added up along the nested tree.
pub const NESTED: Entry = Entry {
    algorithm: Algorithm::Nested,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[
        generator(Collective::AllReduce, all_reduce, twice, twice_across),
        Generator {
            per_block: super::entry::one,
            ..generator(Collective::ReduceScatter, reduce_scatter, traffic, across)
        },
        // The root gets its chunk of everybody, and everybody's sum.
        generator(Collective::Reduce, reduce, twice, twice_across),
    ],
};

const fn generator(
    collective: Collective,
    build: fn(&ProgramKey, u32) -> RankProgram,
    traffic: fn(&Load) -> Traffic,
    across: fn(&Across) -> NetTraffic,
) -> Generator {
    Generator {
        max_ranks: MAX_RANKS,
        per_block: ranks,
        scratch,
        keeps: |_, declared| declared.order == Order::Nested,
        ..Generator::new(collective, build, traffic, across)
    }
}

/// A rank sends to all and receives from all, twice for an all-reduce, and combines: four steps for each rank
/// are below what a channel takes.
const MAX_RANKS: u32 = 60;

/// Every value is read and the result written once for each pair.
fn traffic(load: &Load) -> Traffic {
    let part = load.part();
    load.by_form(2.0 * load.others(), part, load.bytes / load.ranks())
}

/// The same, and what is added up moves once more.
fn twice(load: &Load) -> Traffic {
    load.by_form(3.0 * load.others(), 2.0 * load.part(), load.bytes / load.ranks())
}

fn across(load: &Across) -> NetTraffic {
    let far = load.far();
    NetTraffic { more_messages: 2.0 * (far - 1.0), ..NetTraffic::new(load.pairs(), 1.0) }.over(load.local)
}

fn twice_across(load: &Across) -> NetTraffic {
    let far = load.far();
    NetTraffic { more_messages: 4.0 * (far - 1.0), ..NetTraffic::new(2.0 * load.pairs(), 2.0) }
        .over(load.local)
}

/// Chunks of scratch: one for each level of the tree.
fn scratch(key: &ProgramKey) -> u32 {
    key.ranks.next_power_of_two().ilog2().max(1)
}

/// Chunk `r` is added up at rank `r` and goes to all.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let mut steps = to_owners(key, rank);
    let peers: Vec<u32> = others(rank, key.ranks).collect();
    let (first, rest) = peers.split_at(peers.len().min(MAX_FAN));
    add_up(&mut steps, key, rank, Some(output(rank)), first);
    steps.extend(rest.chunks(MAX_FAN).map(|group| send(output(rank), group.to_vec())));
    steps.extend(from_owners(key, rank));
    RankProgram::single(steps)
}

/// Block `r` is added up at rank `r`.
fn reduce_scatter(key: &ProgramKey, rank: u32) -> RankProgram {
    let mut steps = to_owners(key, rank);
    add_up(&mut steps, key, rank, Some(output(0)), &[]);
    RankProgram::single(steps)
}

/// Chunk `r` is added up at rank `r` and goes to the root.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let mut steps = to_owners(key, rank);
    if rank == key.root {
        add_up(&mut steps, key, rank, Some(output(rank)), &[]);
        steps.extend(from_owners(key, rank));
    } else {
        add_up(&mut steps, key, rank, None, &[key.root]);
    }
    RankProgram::single(steps)
}

fn to_owners(key: &ProgramKey, rank: u32) -> Vec<Step> {
    others(rank, key.ranks).map(|peer| send(input(peer), vec![peer])).collect()
}

/// Receives in the order in which the peers send: the nearest predecessor sends to us first.
fn from_owners(key: &ProgramKey, rank: u32) -> impl Iterator<Item = Step> {
    let n = key.ranks;
    (1..n).map(move |d| (rank + n - d) % n).map(|peer| recv(peer, output(peer)))
}

/// Adds up chunk `rank` of all ranks, keeps the sum in `dst`, which may be where the own operand lies, and
/// sends it to `to`.
fn add_up(steps: &mut Vec<Step>, key: &ProgramKey, rank: u32, dst: Option<Ref>, to: &[u32]) {
    let middle = Order::Nested.split(0, key.ranks);
    let mut owner = Owner { rank, steps };
    let last = if key.ranks == 2 {
        recv_reduce_copy(vec![1 - rank], input(rank), rank, spare(0))
    } else if key.ranks - middle == 1 && rank != middle {
        owner.node(0, middle, 0);
        recv_reduce_copy(vec![middle], spare(0), 0, spare(0))
    } else {
        owner.node(0, key.ranks, 0);
        copy(spare(0), spare(0))
    };
    let op = match (last.op, dst.is_some(), to.is_empty()) {
        (Op::Copy, true, true) => Op::Copy,
        (Op::Copy, true, false) => Op::CopySend,
        (Op::Copy, false, _) => Op::Send,
        (_, true, true) => Op::RecvReduceCopy,
        (_, true, false) => Op::RecvReduceCopySend,
        (_, false, _) => Op::RecvReduceSend,
    };
    steps.push(Step { op, dst, send: to.to_vec(), ..last }.finish());
}

/// The owner of a chunk, which adds it up.
struct Owner<'a> {
    rank: u32,
    steps: &'a mut Vec<Step>,
}

impl Owner<'_> {
    /// Adds up the values of the ranks `first..end`, two or more, into the scratch of a level.
    fn node(&mut self, first: u32, end: u32, level: u32) {
        let sum = spare(level);
        if end - first == 2 {
            return self.pair(first, sum);
        }
        let middle = Order::Nested.split(first, end);
        self.node(first, middle, level);
        let step = match end - middle {
            1 if middle == self.rank => combine(input(self.rank), sum),
            1 => recv_reduce_copy(vec![middle], sum, 0, sum),
            _ => {
                self.node(middle, end, level + 1);
                combine(spare(level + 1), sum)
            }
        };
        self.steps.push(step);
    }

    /// Adds up the values of two neighbours.
    fn pair(&mut self, first: u32, sum: Ref) {
        let second = first + 1;
        let step = if first == self.rank {
            recv_reduce_copy(vec![second], input(first), 0, sum)
        } else if second == self.rank {
            recv_reduce_copy(vec![first], input(second), 1, sum)
        } else {
            self.steps.push(recv(first, sum));
            recv_reduce_copy(vec![second], sum, 0, sum)
        };
        self.steps.push(step);
    }
}
