//! Lanes: blocks that share a connection get one lane, and blocks of a rank that share a peer different ones,
//! as few as possible.

use rustc_hash::{FxHashMap, FxHashSet};

use super::xml::{Algo, Block};
use hawser_program::RankProgram;

/// A channel: rank, number.
pub(super) type Place = (u32, u32);

/// Whom a block really sends to and receives from.
pub(super) fn peers(block: &Block) -> (Option<u32>, Option<u32>) {
    let sends = block.steps.iter().any(|step| step.kind.sends());
    let receives = block.steps.iter().any(|step| step.kind.receives());
    (block.send.filter(|_| sends), block.recv.filter(|_| receives))
}

/// Sets of channels that must have one lane, since each shares a connection with another one of the set.
pub(super) struct Groups {
    /// Set of every channel.
    pub of: FxHashMap<Place, usize>,
    /// The channels of every set; empty where a set was joined to another one.
    pub members: Vec<Vec<Place>>,
}

impl Groups {
    /// Those of the blocks of a file.
    pub fn new(algo: &Algo) -> Self {
        let mut groups = Self { of: FxHashMap::default(), members: Vec::new() };
        let mut senders: FxHashMap<(u32, u32, u32), Place> = FxHashMap::default();
        for gpu in &algo.gpus {
            for block in &gpu.blocks {
                groups.of.insert((gpu.id, block.id), groups.members.len());
                groups.members.push(vec![(gpu.id, block.id)]);
                if let Some(to) = peers(block).0 {
                    senders.insert((gpu.id, to, block.chan), (gpu.id, block.id));
                }
            }
        }
        for gpu in &algo.gpus {
            for block in &gpu.blocks {
                let sender = peers(block).1.and_then(|from| senders.get(&(from, gpu.id, block.chan)));
                if let Some(sender) = sender {
                    groups.join(groups.of[sender], groups.of[&(gpu.id, block.id)]);
                }
            }
        }
        groups
    }

    /// Makes one set of two.
    pub fn join(&mut self, one: usize, other: usize) {
        if one == other {
            return;
        }
        let moved = std::mem::take(&mut self.members[other]);
        moved.iter().for_each(|member| {
            self.of.insert(*member, one);
        });
        self.members[one].extend(moved);
    }

    /// Gives every channel its lane.
    pub fn color(&self, ranks: &mut [RankProgram]) {
        let mut taken: Vec<FxHashSet<(u32, u32)>> = Vec::new();
        for rank in ranks.iter_mut() {
            rank.lanes = vec![0; rank.channels.len()];
        }
        for channels in self.members.iter().filter(|channels| !channels.is_empty()) {
            let ends: Vec<(u32, u32)> = channels.iter().flat_map(|place| ends(ranks, *place)).collect();
            if ends.is_empty() {
                continue;
            }
            let free = taken.iter().position(|taken| !ends.iter().any(|end| taken.contains(end)));
            let lane = free.unwrap_or(taken.len());
            if lane == taken.len() {
                taken.push(Default::default());
            }
            taken[lane].extend(ends);
            for &(rank, channel) in channels {
                ranks[rank as usize].lanes[channel as usize] = lane as u32;
            }
        }
    }
}

/// The peers of a channel, each with the channel's rank in front; without repetitions.
pub(super) fn ends(ranks: &[RankProgram], (rank, channel): Place) -> Vec<(u32, u32)> {
    let steps = &ranks[rank as usize].channels[channel as usize].steps;
    let mut peers: Vec<u32> =
        steps.iter().flat_map(|step| step.recv.iter().chain(&step.send)).copied().collect();
    peers.sort_unstable();
    peers.dedup();
    peers.into_iter().map(|peer| (rank, peer)).collect()
}
