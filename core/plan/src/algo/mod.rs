//! The registry of algorithms, and the programs that they make: (collective, algorithm) → program, for any
//! rank count and root.
//!
//! A generator is a pure function of (key, rank) and costs O(steps of that rank), so a rank of
//! 1,024 never builds the other 1,023 programs. Every generator is proved by
//! [`hawser_program::verify`] for 1…64 ranks in this crate's tests.
//!
//! To add an algorithm, write its file with an [`Entry`] and name that in `REGISTRY`: settings, the chooser,
//! the cost model, executors, texts and tests read the registry.

mod allpairs;
mod alltoall;
mod direct;
mod doublering;
mod entry;
mod hierarchical;
mod knomial;
mod nested;
mod oneshot;
mod pat;
mod rails;
mod recursive;
mod relay;
mod ring;
mod tree;

use std::sync::LazyLock;

use hawser_program::build::{copy, input, output};
use hawser_program::verify::Declared;
use hawser_program::{Program, RankProgram, Shape};
use hawser_types::{Algorithm, Collective, Measured, PlanError, Result};

pub use entry::{Across, Entry, Generator, Load, MAX_RANKS, Needs, NetTraffic, ProgramKey, Traffic};

use crate::imported::kept;

/// All algorithms, in the order in which ties are decided.
static REGISTRY: [&Entry; 18] = [
    &ring::RING,
    &tree::TREE,
    &oneshot::ONE_SHOT,
    &allpairs::ALL_PAIRS,
    &direct::DIRECT,
    &hierarchical::HIERARCHICAL,
    &hierarchical::COLLNET,
    &recursive::RECURSIVE_DOUBLING,
    &recursive::HALVING_DOUBLING,
    &alltoall::BRUCK,
    &alltoall::PAIRWISE,
    &knomial::KNOMIAL,
    &pat::PAT,
    &doublering::DOUBLE_RING,
    &nested::NESTED,
    &rails::RAIL_RING,
    &rails::RAIL_TREE,
    &relay::RAIL_RELAY,
];

/// The families that have a generator for each collective of [`Collective::ALL`].
static OFFERED: LazyLock<Vec<Vec<Algorithm>>> = LazyLock::new(|| {
    let offers = |entry: &&&Entry, collective| {
        entry.needs != Needs::ReducingNetwork && entry.generators.iter().any(|g| g.collective == collective)
    };
    let of = |c| REGISTRY.iter().filter(|entry| offers(entry, c)).map(|entry| entry.algorithm).collect();
    Collective::ALL.into_iter().map(of).collect()
});

/// The answers of [`most_ranks`] for the collectives of [`Collective::ALL`].
static MOST_RANKS: LazyLock<[u32; Collective::ALL.len()]> = LazyLock::new(|| {
    Collective::ALL.map(|collective| {
        let free = algorithms(collective).iter().filter(|algorithm| needs(**algorithm) == Needs::Nothing);
        free.map(|algorithm| max_ranks(collective, *algorithm)).max().unwrap_or(MAX_RANKS)
    })
});

/// The families that have a generator for `collective` and need no network that reduces, in the order in
/// which ties are decided.
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    let index = Collective::ALL.iter().position(|c| *c == collective);
    index.map_or(&[], |index| &OFFERED[index])
}

/// The families that only a network that reduces can run, for `collective`.
pub fn algorithms_of_networks(collective: Collective) -> impl Iterator<Item = Algorithm> {
    let of_networks = REGISTRY.iter().filter(|entry| entry.needs == Needs::ReducingNetwork);
    let offered =
        of_networks.filter(move |entry| entry.generators.iter().any(|g| g.collective == collective));
    offered.map(|entry| entry.algorithm)
}

/// The entry of an algorithm; None for a program that a user brought.
pub fn entry(algorithm: Algorithm) -> Option<&'static Entry> {
    REGISTRY.iter().find(|entry| entry.algorithm == algorithm).copied()
}

/// Returns the kind of topology that an algorithm needs besides its ranks.
pub fn needs(algorithm: Algorithm) -> Needs {
    entry(algorithm).map_or(Needs::Nothing, |entry| entry.needs)
}

/// The places where an algorithm has been measured on GPUs; a program of a user's counts as measured by who
/// brought it.
pub fn measured(algorithm: Algorithm) -> Measured {
    entry(algorithm).map_or(Measured::Everywhere, |entry| entry.measured)
}

/// The generator of an algorithm's program for a collective, if there is one.
pub fn generator(collective: Collective, algorithm: Algorithm) -> Option<&'static Generator> {
    entry(algorithm)?.generators.iter().find(|generator| generator.collective == collective)
}

/// The part of the program that is equal for all ranks; its name is that of the generator
/// (`ring_all_reduce`).
///
/// # Errors
/// `BadProgram` when there is no such generator, or not for so many ranks, or the root is no rank.
pub fn shape(key: &ProgramKey) -> Result<Shape> {
    let ProgramKey { collective, ranks, root, .. } = *key;
    let name = name(collective, key.algorithm);
    let (per_block, scratch) = match checked(key)? {
        Source::OneRank => (1, 0),
        Source::Brought(program) => return Ok(program.shape.clone()),
        Source::Generated(generator) => ((generator.per_block)(key), (generator.scratch)(key)),
    };
    Ok(Shape { name, collective, ranks, root, per_block, scratch })
}

/// The program of one rank.
///
/// # Errors
/// Those of [`shape`], and a `rank` that is no rank.
pub fn rank_program(key: &ProgramKey, rank: u32) -> Result<RankProgram> {
    let source = checked(key)?;
    if rank >= key.ranks {
        return Err(PlanError::argument(format!("rank {rank} is not one of {} ranks", key.ranks)));
    }
    Ok(match source {
        Source::OneRank => {
            let mut step = copy(input(0), output(0));
            step.finish = key.collective.reduces();
            RankProgram::single(vec![step])
        }
        Source::Brought(program) => program.ranks[rank as usize].clone(),
        Source::Generated(generator) => (generator.build)(key, rank),
    })
}

/// The programs of all ranks, and of the networks that they talk to if there are any.
///
/// # Errors
/// Those of [`shape`].
pub fn program(key: &ProgramKey) -> Result<Program> {
    let mut ranks = (0..key.ranks).map(|rank| rank_program(key, rank)).collect::<Result<Vec<_>>>()?;
    if needs(key.algorithm) == Needs::ReducingNetwork && key.ranks > 1 {
        add_networks(key, &mut ranks);
    }
    Ok(Program { shape: shape(key)?, ranks })
}

/// Lets every rank talk to the network of its place instead of "the network", and adds those networks.
fn add_networks(key: &ProgramKey, ranks: &mut Vec<RankProgram>) {
    let networks = hierarchical::networks(key);
    let count = networks.len() as u32;
    for (rank, program) in (0..).zip(ranks.iter_mut()) {
        for step in program.channels.iter_mut().flat_map(|c| &mut c.steps) {
            let peers = step.recv.iter_mut().chain(&mut step.send);
            peers.filter(|peer| **peer == key.ranks).for_each(|peer| *peer += rank % count);
        }
    }
    ranks.extend(networks);
}

/// True if the program of a key combines values in a declared order; a program that a user brought is asked
/// by [`crate::imported::other_order`].
pub fn keeps(key: &ProgramKey, declared: &Declared) -> bool {
    generator(key.collective, key.algorithm).is_some_and(|generator| (generator.keeps)(key, declared))
}

/// Most ranks for which `algorithm` is offered.
pub fn max_ranks(collective: Collective, algorithm: Algorithm) -> u32 {
    match algorithm {
        Algorithm::Imported(program) => kept(program).program.shape.ranks,
        _ => generator(collective, algorithm).map_or(MAX_RANKS, |generator| generator.max_ranks),
    }
}

/// Most ranks for which there is a program that needs no hosts of equally many ranks and no network that
/// reduces. Every call asks, so it is looked up, not searched for.
pub fn most_ranks(collective: Collective) -> u32 {
    let index = Collective::ALL.iter().position(|c| *c == collective);
    index.map_or(MAX_RANKS, |index| MOST_RANKS[index])
}

/// The name of a generator, such as `ring_all_reduce`.
pub fn name(collective: Collective, algorithm: Algorithm) -> String {
    format!("{}_{}", algorithm.name().to_ascii_lowercase(), collective.name())
}

/// Inverse of [`name`].
pub fn find(text: &str) -> Option<(Collective, Algorithm)> {
    let all = Collective::ALL.into_iter().flat_map(|c| algorithms(c).iter().map(move |&a| (c, a)));
    all.into_iter().find(|&(c, a)| name(c, a) == text)
}

/// Channels of the program on every rank (those of a rank may be empty).
///
/// # Errors
/// Those of [`shape`].
pub fn channels(key: &ProgramKey) -> Result<u32> {
    Ok(match (checked(key)?, key.algorithm) {
        (Source::OneRank, _) => 1,
        (Source::Generated(generator), _) => (generator.channels)(key),
        (Source::Brought(_), Algorithm::Imported(program)) => kept(program).channels(),
        (Source::Brought(program), _) => program.ranks.first().map_or(1, |rank| rank.channels.len() as u32),
    })
}

/// Most steps of one channel on any rank, where a program has several channels.
pub(crate) fn most_channel_steps(key: &ProgramKey) -> u32 {
    let generator = generator(key.collective, key.algorithm).filter(|_| key.ranks > 1);
    generator.map_or(2, |generator| (generator.most_channel_steps)(key))
}

/// True if any channels of a generated program may share a lane: no two of a rank have a peer in common.
pub fn shares_lanes(key: &ProgramKey) -> bool {
    generator(key.collective, key.algorithm).is_some_and(|generator| (generator.shares_lanes)(key))
}

/// True if channels of a generated program wait for steps of others.
pub fn waits_across(key: &ProgramKey) -> bool {
    generator(key.collective, key.algorithm).is_some_and(|generator| generator.waits_across)
}

/// The lanes of a generated program that says itself which channels share one; 0 = each channel has its own.
pub fn lanes(key: &ProgramKey) -> u32 {
    let generator = generator(key.collective, key.algorithm).filter(|_| key.ranks > 1);
    generator.map_or(0, |generator| (generator.lanes)(key))
}

/// The most chunks that a step of a generated program moves as one.
pub fn run(key: &ProgramKey) -> u32 {
    let generator = generator(key.collective, key.algorithm).filter(|_| key.ranks > 1);
    generator.map_or(1, |generator| (generator.run)(key))
}

/// The origin of a program: a copy, a generator or the user.
enum Source {
    /// With one rank there is only a copy.
    OneRank,
    /// A user brought it.
    Brought(&'static Program),
    /// The registry has its generator.
    Generated(&'static Generator),
}

/// Returns the source of the program of a key, if the key is right.
fn checked(key: &ProgramKey) -> Result<Source> {
    let ProgramKey { collective, algorithm, ranks, root, .. } = *key;
    if ranks == 0 || ranks > max_ranks(collective, algorithm) {
        return Err(PlanError::program(format!(
            "{} is offered for 1 to {} ranks, not for {ranks}: take another algorithm",
            name(collective, algorithm),
            max_ranks(collective, algorithm)
        )));
    }
    if root >= ranks {
        return Err(PlanError::program(format!("root {root} is not one of {ranks} ranks")));
    }
    if let Algorithm::Imported(program) = algorithm {
        return Ok(if ranks > 1 { Source::Brought(&kept(program).program) } else { Source::OneRank });
    }
    let Some(generator) = generator(collective, algorithm) else {
        let offered: Vec<&str> = algorithms(collective).iter().map(|a| a.name()).collect();
        return Err(PlanError::program(format!(
            "there is no {} program for {}: offered are {}",
            algorithm.name(),
            collective.name(),
            offered.join(", ")
        )));
    };
    (generator.check)(key)?;
    Ok(if ranks > 1 { Source::Generated(generator) } else { Source::OneRank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_entry() {
        for (algorithm, entry) in Algorithm::ALL.into_iter().zip(REGISTRY) {
            assert_eq!(entry.algorithm, algorithm, "names and entries have one order");
            assert!(!entry.generators.is_empty());
        }
        assert_eq!(Algorithm::ALL.len(), REGISTRY.len());
    }
}
