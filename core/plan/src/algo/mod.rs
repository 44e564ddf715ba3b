//! The table of generators: (collective, algorithm) → program, for any rank count and root.
//!
//! A generator is a pure function of (key, rank) and costs O(steps of that rank), so a rank of
//! 1,024 never builds the other 1,023 programs. Every generator is proved by
//! [`hawser_program::verify`] for 1…64 ranks in this crate's tests.

mod allpairs;
mod alltoall;
mod direct;
mod hierarchical;
mod knomial;
mod oneshot;
mod pat;
mod recursive;
mod ring;
mod tree;

use crate::imported::kept;
use hawser_program::build::{copy, input, output};
use hawser_program::{Program, RankProgram, Shape};
use hawser_types::{Algorithm, Collective, PlanError, Result};

/// Most ranks of a program.
pub const MAX_RANKS: u32 = 1024;

/// What identifies a generated program; equal keys give equal programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgramKey {
    /// Which collective.
    pub collective: Collective,
    /// Which family.
    pub algorithm: Algorithm,
    /// Number of ranks, 1…[`MAX_RANKS`].
    pub ranks: u32,
    /// Root, 0 where there is none.
    pub root: u32,
    /// Ranks of each host, for programs that know hosts; 0 = of their own choosing.
    pub per_host: u32,
}

impl ProgramKey {
    /// A program that knows no hosts, or splits the ranks into hosts by itself.
    pub const fn new(collective: Collective, algorithm: Algorithm, ranks: u32, root: u32) -> Self {
        Self { collective, algorithm, ranks, root, per_host: 0 }
    }
}

/// What is equal for all ranks of the program; its name is that of the generator (`ring_all_reduce`).
///
/// # Errors
/// `BadProgram` when there is no such generator, or not for so many ranks, or the root is no rank.
pub fn shape(key: &ProgramKey) -> Result<Shape> {
    if let Some(program) = imported(key) {
        return Ok(program.shape.clone());
    }
    let generator = generator(key)?;
    let per_block = if key.ranks == 1 { 1 } else { (generator.per_block)(key) };
    Ok(Shape {
        name: name(key.collective, key.algorithm),
        collective: key.collective,
        ranks: key.ranks,
        root: key.root,
        per_block,
        scratch: if key.algorithm == Algorithm::Knomial { knomial::scratch(key) } else { 0 },
    })
}

/// The program of one rank.
///
/// # Errors
/// Those of [`shape`], and a `rank` that is no rank.
pub fn rank_program(key: &ProgramKey, rank: u32) -> Result<RankProgram> {
    let generator = generator(key)?;
    if rank >= key.ranks {
        return Err(PlanError::argument(format!("rank {rank} is not one of {} ranks", key.ranks)));
    }
    if key.ranks == 1 {
        let mut step = copy(input(0), output(0));
        step.finish = key.collective.reduces();
        return Ok(RankProgram::single(vec![step]));
    }
    Ok(match imported(key) {
        Some(program) => program.ranks[rank as usize].clone(),
        None => (generator.build)(key, rank),
    })
}

/// The programs of all ranks, and of the networks that they talk to if there are any.
///
/// # Errors
/// Those of [`shape`].
pub fn program(key: &ProgramKey) -> Result<Program> {
    let mut ranks = (0..key.ranks).map(|rank| rank_program(key, rank)).collect::<Result<Vec<_>>>()?;
    if key.algorithm == Algorithm::CollNet && key.ranks > 1 {
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

/// The families that have a generator for `collective`, in the order in which ties are decided.
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => &[
            Algorithm::Ring,
            Algorithm::Tree,
            Algorithm::OneShot,
            Algorithm::AllPairs,
            Algorithm::Hierarchical,
            Algorithm::RecursiveDoubling,
            Algorithm::HalvingDoubling,
        ],
        Collective::AllGather | Collective::ReduceScatter => {
            &[Algorithm::Ring, Algorithm::AllPairs, Algorithm::Pat]
        }
        Collective::Broadcast | Collective::Reduce => {
            &[Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::AllPairs, Algorithm::Knomial]
        }
        Collective::AllToAll => &[Algorithm::Direct, Algorithm::Bruck, Algorithm::Pairwise],
        Collective::Gather | Collective::Scatter => &[Algorithm::Direct],
        Collective::SendRecv => &[],
    }
}

/// The user's program that a key names.
fn imported(key: &ProgramKey) -> Option<&'static Program> {
    match key.algorithm {
        Algorithm::Imported(program) if key.ranks > 1 => Some(&kept(program).program),
        _ => None,
    }
}

/// Most ranks for which `algorithm` is offered.
pub fn max_ranks(collective: Collective, algorithm: Algorithm) -> u32 {
    match algorithm {
        Algorithm::AllPairs if collective == Collective::Reduce => allpairs::MAX_REDUCE_RANKS,
        Algorithm::OneShot => oneshot::MAX_RANKS,
        Algorithm::AllPairs => allpairs::MAX_RANKS,
        Algorithm::Hierarchical => hierarchical::MAX_RANKS,
        Algorithm::CollNet => MAX_RANKS,
        Algorithm::Ring | Algorithm::Tree | Algorithm::Direct => MAX_RANKS,
        Algorithm::RecursiveDoubling => recursive::MAX_DOUBLING_RANKS,
        Algorithm::HalvingDoubling => recursive::MAX_HALVING_RANKS,
        Algorithm::Bruck => alltoall::MAX_BRUCK_RANKS,
        Algorithm::Pairwise => alltoall::MAX_PAIRWISE_RANKS,
        Algorithm::Knomial => knomial::MAX_RANKS,
        Algorithm::Pat => pat::MAX_RANKS,
        Algorithm::Imported(program) => kept(program).program.shape.ranks,
    }
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
    generator(key)?;
    Ok(match key.algorithm {
        _ if key.ranks == 1 => 1,
        Algorithm::Tree => 2,
        Algorithm::Direct => direct::channels(key.collective, key.ranks),
        Algorithm::AllPairs if key.collective == Collective::AllGather => {
            allpairs::gather_channels(key.ranks)
        }
        Algorithm::Ring | Algorithm::OneShot | Algorithm::AllPairs => 1,
        Algorithm::Hierarchical | Algorithm::CollNet => 1,
        Algorithm::Bruck => alltoall::bruck_channels(key.ranks),
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling | Algorithm::Pairwise => 1,
        Algorithm::Knomial | Algorithm::Pat => 1,
        Algorithm::Imported(program) => kept(program).channels(),
    })
}

/// Most steps of one channel on any rank, where a program has several channels.
pub(crate) fn most_channel_steps(key: &ProgramKey) -> u32 {
    match key.algorithm {
        Algorithm::Direct => direct::most_channel_steps(key.collective, key.ranks),
        Algorithm::AllPairs => allpairs::most_gather_steps(key.ranks),
        Algorithm::Bruck => alltoall::most_bruck_steps(key.ranks),
        _ => 2,
    }
}

/// How a program is made; only called for two ranks or more.
struct Generator {
    per_block: PerBlock,
    build: Build,
}

/// Chunks per block.
type PerBlock = fn(&ProgramKey) -> u32;
/// The program of a rank.
type Build = fn(&ProgramKey, u32) -> RankProgram;

fn generator(key: &ProgramKey) -> Result<Generator> {
    check_ranks(key)?;
    let ProgramKey { collective, algorithm, .. } = *key;
    use Algorithm as A;
    use Collective as C;
    let (per_block, build): (PerBlock, Build) = match (algorithm, collective) {
        (A::Ring, C::AllReduce) => (same, ring::all_reduce),
        (A::Ring, C::AllGather) => (one, ring::all_gather),
        (A::Ring, C::ReduceScatter) => (one, ring::reduce_scatter),
        (A::Ring, C::Broadcast) => (one, ring::broadcast),
        (A::Ring, C::Reduce) => (one, ring::reduce),
        (A::Tree, C::AllReduce) => (two, tree::all_reduce),
        (A::Tree, C::Broadcast) => (two, tree::broadcast),
        (A::Tree, C::Reduce) => (two, tree::reduce),
        (A::OneShot, C::AllReduce) => (one, oneshot::all_reduce),
        (A::OneShot, C::Broadcast) => (one, oneshot::broadcast),
        (A::OneShot, C::Reduce) => (one, oneshot::reduce),
        (A::AllPairs, C::AllReduce) => (same, allpairs::all_reduce),
        (A::AllPairs, C::AllGather) => (one, allpairs::all_gather),
        (A::AllPairs, C::ReduceScatter) => (one, allpairs::reduce_scatter),
        (A::AllPairs, C::Broadcast) => (allpairs::rooted_chunks, allpairs::broadcast),
        (A::AllPairs, C::Reduce) => (allpairs::rooted_chunks, allpairs::reduce),
        (A::Hierarchical, C::AllReduce) => {
            hierarchical::check(key)?;
            (hierarchical::per_block, hierarchical::all_reduce)
        }
        (A::CollNet, C::AllReduce) => {
            hierarchical::check(key)?;
            (hierarchical::per_block, hierarchical::collnet_all_reduce)
        }
        (A::Direct, C::AllToAll) => (one, direct::all_to_all),
        (A::RecursiveDoubling, C::AllReduce) => (one, recursive::doubling_all_reduce),
        (A::HalvingDoubling, C::AllReduce) => (recursive::parts, recursive::halving_doubling_all_reduce),
        (A::Bruck, C::AllToAll) => (one, alltoall::bruck_all_to_all),
        (A::Pairwise, C::AllToAll) => (one, alltoall::pairwise_all_to_all),
        (A::Knomial, C::Broadcast) => (one, knomial::broadcast),
        (A::Knomial, C::Reduce) => (one, knomial::reduce),
        (A::Pat, C::AllGather) => (one, pat::all_gather),
        (A::Pat, C::ReduceScatter) => (one, pat::reduce_scatter),
        // Handled before; its ranks and root are checked here.
        (A::Imported(_), _) => (one, ring::all_gather),
        (A::Direct, C::Gather) => (one, direct::gather),
        (A::Direct, C::Scatter) => (one, direct::scatter),
        _ => {
            let offered: Vec<&str> = algorithms(collective).iter().map(|a| a.name()).collect();
            return Err(PlanError::program(format!(
                "there is no {} program for {}: offered are {}",
                algorithm.name(),
                collective.name(),
                offered.join(", ")
            )));
        }
    };
    Ok(Generator { per_block, build })
}

/// Whether the algorithm takes so many ranks, and the root is one of them.
fn check_ranks(key: &ProgramKey) -> Result<()> {
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
    Ok(())
}

fn one(_key: &ProgramKey) -> u32 {
    1
}

fn two(_key: &ProgramKey) -> u32 {
    2
}

fn same(key: &ProgramKey) -> u32 {
    key.ranks
}

/// All ranks but `rank`, beginning with its successor, so that no two ranks begin with the same peer.
fn others(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (1..ranks).map(move |d| (rank + d) % ranks)
}
