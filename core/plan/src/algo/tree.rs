//! Two complementary binary trees, each for half of the data: channel `t` runs tree `t` on chunk `t`.
//!
//! The root sits on top of both trees with a single child. The other `m = ranks - 1` ranks take
//! places 1…m of an in-order binary tree, whose leaves are the odd places. The second tree is the
//! first mirrored (even m) or shifted by one place (odd m), so that a leaf of one is an inner node
//! of the other and every rank sends about as much as it receives (Sanders, Speck and Träff,
//! "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).

use super::entry::{Across, Entry, Generator, Load, Needs, NetTraffic, ProgramKey, Traffic, two};
use hawser_program::build::{
    copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, recv_reduce_copy_send,
    recv_reduce_send, send,
};
use hawser_program::{Channel, RankProgram, Step};
use hawser_types::{Algorithm, Collective, Measured};

/// Two complementary binary trees.
pub const TREE: Entry = Entry {
    algorithm: Algorithm::Tree,
    measured: Measured::Everywhere,
    needs: Needs::Nothing,
    generators: &[
        Generator {
            per_block: two,
            channels: two,
            ..Generator::new(Collective::AllReduce, all_reduce, all_reduce_traffic, all_reduce_across)
        },
        Generator {
            per_block: two,
            channels: two,
            ..Generator::new(Collective::Broadcast, broadcast, traffic, across)
        },
        Generator {
            per_block: two,
            channels: two,
            ..Generator::new(Collective::Reduce, reduce, traffic, across)
        },
    ],
};

fn depth(load: &Load) -> f64 {
    f64::from(load.key.ranks.max(2).ilog2()) + 1.0
}

/// It goes up and down before the next tile starts.
fn all_reduce_traffic(load: &Load) -> Traffic {
    let (hops, bytes) = (2.0 * depth(load), load.bytes);
    let (out, streamed, chunk) = (2.0 * bytes, 3.0 * bytes, bytes / 2.0);
    Traffic { hops, waits: hops, fill: hops, out, streamed, chunk, ..load.chain() }
}

fn traffic(load: &Load) -> Traffic {
    let (depth, bytes) = (depth(load), load.bytes);
    Traffic {
        hops: depth,
        fill: depth - 1.0,
        share: 0.9,
        streamed: 2.0 * bytes,
        chunk: bytes / 2.0,
        ..load.chain()
    }
}

/// Times that a block with two children moves a tile for each hop between hosts, by the twin: it takes it,
/// adds to it, and sends it to two others.
pub(super) const PASSES: f64 = 2.9;

fn all_reduce_across(load: &Across) -> NetTraffic {
    NetTraffic { passes: PASSES, ..NetTraffic::new(2.0 * load.bytes, 2.0 * load.levels()) }
}

fn across(load: &Across) -> NetTraffic {
    NetTraffic { busiest: 6.0, ..NetTraffic::new(load.bytes, load.levels()) }
}

/// Up to the root, which holds the complete value, and down again.
fn all_reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |chunk, node| match node.parent {
        None => vec![
            recv_reduce_copy_send(
                node.children(),
                input(chunk),
                node.order(),
                output(chunk),
                node.children(),
            )
            .finish(),
        ],
        Some(parent) => vec![up(chunk, node, parent), down(chunk, node, parent)],
    })
}

/// Down from the root.
fn broadcast(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |chunk, node| {
        vec![match node.parent {
            None => copy_send(input(chunk), output(chunk), node.children()),
            Some(parent) => down(chunk, node, parent),
        }]
    })
}

/// Up to the root.
fn reduce(key: &ProgramKey, rank: u32) -> RankProgram {
    both(key, rank, |chunk, node| {
        vec![match node.parent {
            None => recv_reduce_copy(node.children(), input(chunk), node.order(), output(chunk)).finish(),
            Some(parent) => up(chunk, node, parent),
        }]
    })
}

fn both(key: &ProgramKey, rank: u32, steps: impl Fn(u32, &Node) -> Vec<Step>) -> RankProgram {
    let channels = (0..2)
        .map(|tree| Channel { steps: steps(tree, &Node::new(key.ranks, key.root, rank, tree)) })
        .collect();
    RankProgram { channels, lanes: Vec::new(), runs: Vec::new() }
}

fn up(chunk: u32, node: &Node, parent: u32) -> Step {
    if node.is_leaf() {
        send(input(chunk), vec![parent])
    } else {
        recv_reduce_send(node.children(), input(chunk), node.order(), vec![parent])
    }
}

fn down(chunk: u32, node: &Node, parent: u32) -> Step {
    if node.is_leaf() {
        recv(parent, output(chunk))
    } else {
        recv_copy_send(parent, output(chunk), node.children())
    }
}

/// A rank's place in one of the trees.
pub(super) struct Node {
    parent: Option<u32>,
    left: Option<u32>,
    right: Option<u32>,
}

impl Node {
    /// The place of `rank` among `n` ranks.
    pub(super) fn new(n: u32, root: u32, rank: u32, tree: u32) -> Self {
        let m = n - 1;
        let rank_at = |place: u32| (root + 1 + shuffle(place, m, tree)) % n;
        if rank == root {
            return Self { parent: None, left: Some(rank_at(top(m))), right: None };
        }
        let place = unshuffle((rank + n - root - 1) % n, m, tree);
        let parent = parent(place, m).map_or(root, rank_at);
        let (left, right) = children(place, m);
        Self { parent: Some(parent), left: left.map(rank_at), right: right.map(rank_at) }
    }

    fn is_leaf(&self) -> bool {
        self.left.is_none() && self.right.is_none()
    }

    /// The rank above; None for the root.
    pub(super) fn parent(&self) -> Option<u32> {
        self.parent
    }

    /// The ranks below.
    pub(super) fn children(&self) -> Vec<u32> {
        self.left.into_iter().chain(self.right).collect()
    }

    /// Operands are folded in the order of places: left child, own, right child.
    fn order(&self) -> u32 {
        u32::from(self.left.is_some())
    }
}

/// Index (0…m-1) of the rank at `place` (1…m).
fn shuffle(place: u32, m: u32, tree: u32) -> u32 {
    match (tree, m % 2) {
        (0, _) => place - 1,
        (_, 0) => m - place,
        _ => place % m,
    }
}

/// Inverse of [`shuffle`].
fn unshuffle(index: u32, m: u32, tree: u32) -> u32 {
    match (tree, m % 2) {
        (0, _) => index + 1,
        (_, 0) => m - index,
        _ => (index + m - 1) % m + 1,
    }
}

/// The top of an in-order tree of `m` places: the largest power of two.
fn top(m: u32) -> u32 {
    1 << m.ilog2()
}

fn parent(place: u32, m: u32) -> Option<u32> {
    let low = 1 << place.trailing_zeros();
    let above = (place ^ low) | (low << 1);
    match if above > m { place ^ low } else { above } {
        0 => None,
        parent => Some(parent),
    }
}

fn children(place: u32, m: u32) -> (Option<u32>, Option<u32>) {
    let low = 1u32 << place.trailing_zeros();
    let left = (low > 1).then(|| place - low / 2);
    let mut step = low / 2;
    while step > 0 && place + step > m {
        step /= 2;
    }
    (left, (step > 0).then_some(place + step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_reach_the_top() {
        for m in 1..if cfg!(miri) { 40 } else { 200 } {
            for place in 1..=m {
                let (left, right) = children(place, m);
                for child in left.into_iter().chain(right) {
                    assert_eq!(parent(child, m), Some(place), "m {m} place {place}");
                }
                match parent(place, m) {
                    None => assert_eq!(place, top(m)),
                    Some(p) => assert!(children(p, m).0 == Some(place) || children(p, m).1 == Some(place)),
                }
            }
        }
    }

    #[test]
    fn no_place_is_inner_in_both_trees() {
        for m in 1..if cfg!(miri) { 40 } else { 200 } {
            for index in 0..m {
                assert_eq!(shuffle(unshuffle(index, m, 1), m, 1), index);
                let inner = (0..2).filter(|&t| children(unshuffle(index, m, t), m) != (None, None)).count();
                // Shifting an odd count leaves one place (the last, a leaf) a leaf twice.
                assert!(inner <= 1, "m {m} index {index}");
            }
        }
    }
}
