//! Fewer channels than a file has blocks, where a launch has no room for all of them.
//!
//! Two channels of a rank become one whose steps come in an order in which all steps of the program can run.
//! Channels that talk to the same peer stay apart, since the other end would have to fold alike.

use rustc_hash::FxHashMap;

use super::lanes::{Groups, Place, ends};
use hawser_program::limits::{MAX_CHANNELS, device_steps};
use hawser_program::{Dep, RankProgram};

/// The place of a step: channel, number.
type At = (u32, u32);

/// Most peers of channels that are compared, so that no file takes for ever.
const MOST_LOOKS: u64 = 1 << 27;

/// Folds the channels of every rank that has too many. `order` has the channel of every step in an order in
/// which all can run, by rank. Returns the new place of every old step by rank, channel and number; None:
/// nothing had to be folded, or no channels are left that can be.
pub(super) fn fold(
    ranks: &mut [RankProgram],
    groups: &mut Groups,
    order: &[Vec<u32>],
) -> Option<Vec<Vec<Vec<At>>>> {
    if ranks.iter().all(|rank| rank.channels.len() <= MAX_CHANNELS) {
        return None;
    }
    let mut search = Search::new(ranks);
    let mut folded: Vec<Vec<Vec<u32>>> = Vec::new();
    for (rank, program) in (0..).zip(ranks.iter()) {
        let steps = program.channels.iter().map(device_steps).collect();
        folded.push(search.partners(groups, rank, steps)?);
    }
    let of_rank = |((rank, folded), order): ((&mut RankProgram, &Vec<Vec<u32>>), &Vec<u32>)| {
        fold_rank(rank, folded, order)
    };
    let places = ranks.iter_mut().zip(&folded).zip(order).map(of_rank).collect();
    // Sets name the new channels.
    for members in &mut groups.members {
        for (rank, channel) in members.iter_mut() {
            let new = folded[*rank as usize].iter().position(|olds| olds.contains(channel));
            *channel = new.unwrap_or(0) as u32;
        }
        members.sort_unstable();
        members.dedup();
    }
    Some(places)
}

/// The search for channels that can be one.
struct Search {
    /// The peers of every channel, each with the channel's rank in front.
    ends: FxHashMap<Place, Vec<(u32, u32)>>,
    /// The channel that stands for those that are folded with it.
    stands: FxHashMap<Place, u32>,
    looks: u64,
}

impl Search {
    fn new(ranks: &[RankProgram]) -> Self {
        let channels = |(rank, program): (u32, &RankProgram)| {
            (0..program.channels.len() as u32).map(move |channel| (rank, channel))
        };
        let places = (0..).zip(ranks).flat_map(channels);
        let ends = places.map(|place| (place, ends(ranks, place))).collect();
        Self { ends, stands: FxHashMap::default(), looks: 0 }
    }

    /// The channels of a rank that become one each; None: they are too many whatever is folded.
    fn partners(&mut self, groups: &mut Groups, rank: u32, steps: Vec<usize>) -> Option<Vec<Vec<u32>>> {
        let mut folded: Vec<Vec<u32>> = (0..steps.len() as u32).map(|channel| vec![channel]).collect();
        let count = |olds: &[u32]| olds.iter().map(|channel| steps[*channel as usize]).sum::<usize>();
        while folded.len() > MAX_CHANNELS {
            // Those with the fewest steps first, so that all channels have about as many.
            folded.sort_by_key(|olds| (count(olds), olds[0]));
            let mut pairs = (1..folded.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
            let (one, other) =
                pairs.find(|&(a, b)| self.can_join(groups, rank, folded[a][0], folded[b][0]))?;
            let second = folded.remove(other);
            let first = &mut folded[one];
            groups.join(groups.of[&(rank, first[0])], groups.of[&(rank, second[0])]);
            first.extend(second);
            self.stands.extend(first.iter().map(|channel| ((rank, *channel), first[0])));
        }
        folded.iter_mut().for_each(|olds| olds.sort_unstable());
        folded.sort();
        Some(folded)
    }

    /// True if two channels of a rank can be one: they share no peer, whose messages would share a FIFO, and
    /// no rank would have two channels of their set that share a peer.
    fn can_join(&mut self, groups: &Groups, rank: u32, one: u32, other: u32) -> bool {
        let sets = [groups.of[&(rank, one)], groups.of[&(rank, other)]];
        let sets = if sets[0] == sets[1] { &sets[..1] } else { &sets[..] };
        let mut users: FxHashMap<(u32, u32), (u32, u32)> = FxHashMap::default();
        for place in sets.iter().flat_map(|set| &groups.members[*set]) {
            let before = self.stands.get(place).copied().unwrap_or(place.1);
            let joined = if (place.0, before) == (rank, other) { one } else { before };
            let ends = &self.ends[place];
            self.looks += ends.len() as u64 + 1;
            for end in ends {
                // One channel uses a peer, and it did so before.
                if *users.entry(*end).or_insert((joined, before)) != (joined, before) {
                    return false;
                }
            }
        }
        self.looks <= MOST_LOOKS
    }
}

/// Makes the channels of `folded` one each. Returns the new place of every old step.
fn fold_rank(rank: &mut RankProgram, folded: &[Vec<u32>], order: &[u32]) -> Vec<Vec<At>> {
    let olds = std::mem::take(&mut rank.channels);
    let mut places: Vec<Vec<At>> = vec![Vec::new(); olds.len()];
    let mut new_of = vec![0_u32; olds.len()];
    for (new, channels) in (0..).zip(folded) {
        channels.iter().for_each(|old| new_of[*old as usize] = new);
    }
    rank.channels.resize_with(folded.len(), Default::default);
    for &old in order {
        let (old, new) = (old as usize, new_of[old as usize]);
        let mut step = olds[old].steps[places[old].len()].clone();
        let renamed = step.after.iter().map(|dep| places[dep.channel as usize][dep.step as usize]);
        // What the channel itself has done is over.
        let others = renamed.filter(|(channel, _)| *channel != new);
        step.after = others.map(|(channel, step)| Dep { channel, step }).collect();
        let steps = &mut rank.channels[new as usize].steps;
        places[old].push((new, steps.len() as u32));
        steps.push(step);
    }
    places
}
