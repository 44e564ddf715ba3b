//! Binomial trees: in each round everybody who has the data gives them to one more rank.
//!
//! Ranks are counted from the root, in digits of base 2. The parent lacks the last digit that is not 0.
//! Larger bases have fewer rounds and more messages of the root, whose proxy is what calls that follow one
//! another wait for between hosts.

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic};
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_send, scratch as spare,
    send,
};
use hawser_program::verify::{Declared, Order};
use hawser_program::{MAX_FAN, RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// Binomial trees.
pub const KNOMIAL: Entry = Entry {
    algorithm: Algorithm::Knomial,
    measured: Measured::BetweenHosts,
    needs: Needs::Nothing,
    generators: &[
        Generator { scratch, ..Generator::new(Collective::Broadcast, broadcast, traffic, across) },
        Generator { scratch, keeps, ..Generator::new(Collective::Reduce, reduce, traffic, across) },
    ],
};

fn traffic(load: &Load) -> Traffic {
    load.by_form(load.levels(), load.bytes * load.levels(), load.bytes)
}

fn across(load: &Across) -> NetTraffic {
    let levels = load.levels();
    NetTraffic { busiest: levels, ..NetTraffic::new(load.bytes * levels, levels) }
}

/// A node takes its own value, then those of its children, the nearest first: the nested tree, if the root is
/// rank 0 and sums within a step are as good as rounded ones.
fn keeps(key: &ProgramKey, declared: &Declared) -> bool {
    let is_nested = key.root == 0 && !declared.is_narrow;
    key.ranks == 2 && key.root == 0 || is_nested && declared.order == Order::Nested
}

/// As many ranks as there are.
const RADIX: u32 = 2;

/// Scratch for partial results, where an inner node has more children than a step takes.
fn scratch(key: &ProgramKey) -> u32 {
    u32::from(key.ranks > 1 << MAX_FAN)
}

/// Down from the root.
fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    let (parent, children) = node(key, rank);
    let (first, rest) = children.split_at(children.len().min(MAX_FAN));
    let mut steps = vec![match (parent, first) {
        (None, _) => copy_send(input(0), output(0), first.to_vec()),
        (Some(parent), []) => recv(parent, output(0)),
        (Some(parent), _) => recv_copy_send(parent, output(0), first.to_vec()),
    }];
    let own = if parent.is_none() { input(0) } else { output(0) };
    steps.extend(rest.chunks(MAX_FAN).map(|group| send(own, group.to_vec())));
    RankProgram::single(steps)
}

/// Up to the root; a node's own operand comes first, then its children, the nearest first.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    let (parent, mut children) = node(key, rank);
    children.reverse();
    let partial = if parent.is_none() { output(0) } else { spare(0) };
    let groups: Vec<&[u32]> = children.chunks(MAX_FAN).collect();
    let mut steps: Vec<Step> = Vec::new();
    let mut own = input(0);
    for (index, group) in groups.iter().enumerate() {
        let step = match parent.filter(|_| index + 1 == groups.len()) {
            Some(parent) => recv_reduce_send(group.to_vec(), own, 0, vec![parent]),
            None => recv_reduce_copy(group.to_vec(), own, 0, partial),
        };
        steps.push(if parent.is_none() && index + 1 == groups.len() { step.finish() } else { step });
        own = partial;
    }
    if let (true, Some(parent)) = (groups.is_empty(), parent) {
        steps.push(send(input(0), vec![parent]));
    }
    RankProgram::single(steps)
}

/// Parent and children of a rank, the farthest child first.
fn node(key: &ProgramKey, rank: u32) -> (Option<u32>, Vec<u32>) {
    let n = key.ranks;
    let rank_at = |place: u32| (place + key.root) % n;
    let place = (rank + n - key.root) % n;
    let mut children = Vec::new();
    let mut unit = 1;
    while unit < n && place.is_multiple_of(unit * RADIX) {
        children.extend((1..RADIX).map(|digit| place + digit * unit).filter(|child| *child < n).map(rank_at));
        unit *= RADIX;
    }
    children.reverse();
    // `unit` is that of the last digit which is not 0.
    let parent = (place != 0).then(|| rank_at(place - place / unit % RADIX * unit));
    (parent, children)
}
