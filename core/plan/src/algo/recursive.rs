//! Partners at doubling distances: recursive doubling, and Rabenseifner's halving and doubling.
//!
//! Both want a power of two. Of `n` ranks, the first `2 * (n - p)` form pairs: the odd one gives its data to
//! the even one and gets the result at the end, so that `p` ranks are left.

use super::entry::{Across, Entry, Generator, Load, MAX_RANKS, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{input, output, recv, recv_reduce_copy, send};
use hawser_program::verify::{Declared, Order};
use hawser_program::{RankProgram, Ref, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// Everything to a partner at twice the distance each time.
pub const RECURSIVE_DOUBLING: Entry = Entry {
    algorithm: Algorithm::RecursiveDoubling,
    measured: Measured::BetweenHosts,
    needs: Needs::Nothing,
    generators: &[Generator {
        max_ranks: MAX_DOUBLING_RANKS,
        keeps: doubling_keeps,
        ..Generator::new(Collective::AllReduce, doubling_all_reduce, doubling_traffic, doubling_across)
    }],
};

/// Halves to partners until every rank has a part, then back.
pub const HALVING_DOUBLING: Entry = Entry {
    algorithm: Algorithm::HalvingDoubling,
    measured: Measured::Nowhere,
    needs: Needs::Nothing,
    generators: &[Generator {
        max_ranks: MAX_HALVING_RANKS,
        per_block: parts,
        ..Generator::new(Collective::AllReduce, halving_doubling_all_reduce, halving_traffic, halving_across)
    }],
};

fn doubling_traffic(load: &Load) -> Traffic {
    load.by_form(load.levels(), load.bytes * load.levels(), load.bytes)
}

/// Times that a block moves a tile for each hop between hosts, by the twin.
const PASSES: f64 = 1.5;

fn doubling_across(load: &Across) -> NetTraffic {
    let whole = NetTraffic::new(load.bytes * load.local * load.levels(), load.levels());
    NetTraffic { passes: PASSES, ..whole.over(load.local) }
}

fn halving_traffic(load: &Load) -> Traffic {
    load.by_form(2.0 * load.levels(), 2.0 * load.part(), load.bytes / load.ranks())
}

fn halving_across(load: &Across) -> NetTraffic {
    NetTraffic::new(2.0 * load.bytes * load.local, 2.0 * load.levels()).over(load.local)
}

/// Pairs, then neighbours at doubling distances, are the nested tree where the ranks without a partner are
/// the last ones of every block: 2^a - 2^b ranks.
fn doubling_keeps(key: &ProgramKey, declared: &Declared) -> bool {
    let lowest = 1 << key.ranks.trailing_zeros();
    let is_nested = (key.ranks + lowest).is_power_of_two() || key.ranks.is_power_of_two();
    match declared.order {
        Order::Nested => is_nested,
        Order::Ranks => key.ranks == 2 || key.ranks == 3 && !declared.is_narrow,
    }
}

/// Steps are few: as many ranks as there are.
const MAX_DOUBLING_RANKS: u32 = MAX_RANKS;

/// Every part is a step of its own, there and back: 64 parts are as many as a channel can have.
const MAX_HALVING_RANKS: u32 = 127;

/// Chunks per block of [`halving_doubling_all_reduce`]: one per rank that is left.
fn parts(key: &ProgramKey) -> u32 {
    power(key)
}

/// Partners exchange all they have and add it, at distances 1, 2, 4, …
fn doubling_all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let role = Role::new(key, rank);
    let Some(id) = role.id else { return RankProgram::single(role.idle(1)) };
    let mut steps = role.before(1);
    let mut own = if role.partner.is_some() { output(0) } else { input(0) };
    let masks = (0..power(key).ilog2()).map(|bit| 1 << bit);
    for mask in masks {
        let peer = role.rank_of(id ^ mask);
        // The lower one's operand comes first on both sides: equal to the last bit.
        let order = u32::from(id & mask != 0);
        steps.push(send(own, vec![peer]));
        let sum = recv_reduce_copy(vec![peer], own, order, output(0));
        steps.push(if mask * 2 == power(key) { sum.finish() } else { sum });
        own = output(0);
    }
    steps.extend(role.after(1));
    RankProgram::single(steps)
}

/// Halves of what is left go to partners, the farthest first, until every rank has one reduced part; then the
/// parts go back.
fn halving_doubling_all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let role = Role::new(key, rank);
    let parts = power(key);
    let Some(id) = role.id else { return RankProgram::single(role.idle(parts)) };
    let mut steps = role.before(parts);
    let bits = parts.ilog2();
    for bit in (0..bits).rev() {
        let mask = 1 << bit;
        let peer = role.rank_of(id ^ mask);
        let own = |part: u32| -> Ref {
            if bit + 1 < bits || role.partner.is_some() { output(part) } else { input(part) }
        };
        // What is kept has our digit, what is sent has the other.
        let kept = id & !(mask - 1);
        for k in 0..mask {
            steps.push(send(own((kept ^ mask) + k), vec![peer]));
            let order = u32::from(id & mask != 0);
            let sum = recv_reduce_copy(vec![peer], own(kept + k), order, output(kept + k));
            steps.push(if bit == 0 { sum.finish() } else { sum });
        }
    }
    for bit in 0..bits {
        let mask = 1 << bit;
        let peer = role.rank_of(id ^ mask);
        let own = id & !(mask - 1);
        for k in 0..mask {
            steps.push(send(output(own + k), vec![peer]));
            steps.push(recv(peer, output((own ^ mask) + k)));
        }
    }
    steps.extend(role.after(parts));
    RankProgram::single(steps)
}

/// The largest power of two that is at most the number of ranks.
fn power(key: &ProgramKey) -> u32 {
    1 << key.ranks.ilog2()
}

/// The part of a rank in the exchange among the ranks of a power of two.
struct Role {
    /// Its number there; None = its partner works for it.
    id: Option<u32>,
    /// The other one of its pair.
    partner: Option<u32>,
    pairs: u32,
}

impl Role {
    fn new(key: &ProgramKey, rank: u32) -> Self {
        let pairs = key.ranks - power(key);
        let partner = (rank < 2 * pairs).then_some(rank ^ 1);
        let id = match partner {
            Some(_) => rank.is_multiple_of(2).then_some(rank / 2),
            None => Some(rank - pairs),
        };
        Self { id, partner, pairs }
    }

    fn rank_of(&self, id: u32) -> u32 {
        if id < self.pairs { 2 * id } else { id + self.pairs }
    }

    /// The steps of the rank of a pair that takes no part in between.
    fn idle(&self, chunks: u32) -> Vec<Step> {
        let there = |peer| send(input(0), vec![peer]).repeat(chunks, 1);
        let back = |peer| recv(peer, output(0)).repeat(chunks, 1);
        self.partner.into_iter().flat_map(|peer| [there(peer), back(peer)]).collect()
    }

    fn before(&self, chunks: u32) -> Vec<Step> {
        let take = |peer| recv_reduce_copy(vec![peer], input(0), 0, output(0)).repeat(chunks, 1);
        self.partner.map(take).into_iter().collect()
    }

    fn after(&self, chunks: u32) -> Option<Step> {
        self.partner.map(|peer| send(output(0), vec![peer]).repeat(chunks, 1))
    }
}
